//! A connection to one broker: TLS, the handshake with the token, requests and answers, and keep-alives.
//!
//! A broken connection is not repaired: its owner drops it and connects again.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::{
    AuthData, BaseCommand, CommandAuthResponse, CommandConnect, CommandPing, CommandPong, FeatureFlags,
    ServerError,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::codec::{Encoder as _, Framed};

use crate::address::Host;
use crate::exit::Exit;
use crate::frame::{self, Codec, Entry, Frame};
use crate::notes::note;
use crate::problem::{Code, Problem};
use crate::security::Files;

/// The time limit to connect to one address, including TLS and the handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The time limit for an answer, and for a send.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The time of silence after which the client pings the broker.
const SILENCE: Duration = Duration::from_secs(20);

/// The time of silence after which the connection is lost.
const LOST: Duration = Duration::from_secs(45);

/// The interval in which a broker hears from the client, even if the client does not read the broker's pings.
const SIGN: Duration = Duration::from_secs(10);

/// The pause between two attempts to get the token that a connected broker waits for, about a minute.
const TOKEN_PAUSE: Duration = Duration::from_secs(5);

/// The supported version of the protocol: with partial successes and renewed authentication.
const PROTOCOL: i32 = 19;

/// A broker's default limit of an entry's payload, in bytes.
const MAX_MESSAGE_SIZE: usize = 5 << 20;

/// The size of a read.
const BUFFER: usize = 64 << 10;

/// A stream to a broker.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection to a broker.
pub struct Link {
    host: Host,
    files: Files,
    framed: Framed<Box<dyn Transport>, Codec>,
    /// Frames that came before an awaited answer.
    inbox: VecDeque<Frame>,
    requests: u64,
    /// When the last frame came, or when the connection was last not read.
    heard: Instant,
    /// Whether a ping waits for an answer.
    asked: bool,
    /// When the last command was sent.
    spoke: Instant,
    /// Whether commands wait for their transmission, here or in the TLS session.
    unsent: bool,
    /// The last token that the broker got.
    token: Option<String>,
    /// Gets the new token that the broker waits for.
    renewal: Option<JoinHandle<Result<Option<String>, Problem>>>,
    /// As the broker states it; 0 if it does not.
    max_message_size: i32,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Link {
    /// Connects to a host. If the host is a proxy, `behind` is the broker.
    pub async fn connect(
        tls: bool,
        host: &Host,
        behind: Option<String>,
        files: &Files,
    ) -> Result<Self, Problem> {
        let unreachable =
            |why: &str| Problem::passing(Code::Unreachable, format!("cannot connect to {host}: {why}"));
        let found = timeout(CONNECT_LIMIT, tokio::net::lookup_host((host.name.as_str(), host.port))).await;
        let addresses: Vec<_> = match found {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => return Err(unreachable(&format!("unknown host ({error})"))),
            Err(_) => return Err(unreachable("the lookup of the host timed out")),
        };
        let mut problem = unreachable("the host has no address");
        for address in addresses {
            let begun = timeout(CONNECT_LIMIT, async {
                let stream =
                    TcpStream::connect(address).await.map_err(|error| unreachable(&error.to_string()))?;
                // Acknowledgements are small and must not wait.
                stream.set_nodelay(true).map_err(|error| unreachable(&error.to_string()))?;
                Self::begin(tls, host, behind.clone(), files, stream).await
            });
            match begun.await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(other)) => problem = other,
                Err(_) => problem = unreachable("no answer in time"),
            }
            if problem.end.is_some() {
                break;
            }
        }
        Err(problem)
    }

    async fn begin(
        tls: bool,
        host: &Host,
        behind: Option<String>,
        files: &Files,
        stream: TcpStream,
    ) -> Result<Self, Problem> {
        let transport: Box<dyn Transport> = if tls {
            let name = ServerName::try_from(host.name.clone()).map_err(|error| tls_failed(host, &error))?;
            let stream = files.tls()?.connect(name, stream).await;
            Box::new(stream.map_err(|error| tls_failed(host, &error))?)
        } else {
            Box::new(stream)
        };
        let mut link = Self::over(transport, host, files);
        link.shake_hands(behind).await?;
        Ok(link)
    }

    /// A connection before its handshake.
    pub fn over(transport: Box<dyn Transport>, host: &Host, files: &Files) -> Self {
        Self {
            host: host.clone(),
            files: files.clone(),
            framed: Framed::with_capacity(transport, Codec, BUFFER),
            inbox: VecDeque::new(),
            requests: 0,
            heard: Instant::now(),
            asked: false,
            spoke: Instant::now(),
            unsent: false,
            token: None,
            renewal: None,
            max_message_size: 0,
        }
    }

    async fn shake_hands(&mut self, behind: Option<String>) -> Result<(), Problem> {
        self.token = self.files.token().await?;
        let method = self.files.method();
        let connect = CommandConnect {
            client_version: client_version(),
            auth_method_name: method.map(str::to_owned),
            auth_data: method.map(|_| self.token.clone().unwrap_or_default().into_bytes()),
            protocol_version: Some(PROTOCOL),
            proxy_to_broker_url: behind,
            feature_flags: Some(FeatureFlags {
                supports_auth_refresh: Some(true),
                ..FeatureFlags::default()
            }),
            ..CommandConnect::default()
        };
        self.send(command(Type::Connect, |c| c.connect = Some(connect)))?;
        loop {
            let Frame::Command(answer) = self.next().await? else { continue };
            if let Some(error) = &answer.error {
                let kind = error.error();
                if kind == ServerError::AuthenticationError && method.is_none() {
                    return Err(Problem::last(
                        Exit::Unauthorized,
                        Code::Unauthorized,
                        format!("{} requires a token or a client certificate, and neither is set", self.host),
                    ));
                }
                if kind == ServerError::AuthenticationError {
                    self.files.drop_token(self.token.as_deref()).await;
                }
                return Err(Problem::answered(kind, &error.message));
            }
            if let Some(connected) = &answer.connected {
                self.max_message_size = connected.max_message_size();
                return Ok(());
            }
            if answer.auth_challenge.is_some() {
                let token = new_token(&self.files, self.token.as_deref()).await?;
                self.send_token(token)?;
            } else {
                self.control(&answer)?;
            }
        }
    }

    /// The size limit of an entry's payload at the broker, in bytes.
    pub fn max_message_size(&self) -> usize {
        usize::try_from(self.max_message_size).ok().filter(|size| *size > 0).unwrap_or(MAX_MESSAGE_SIZE)
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Sends a command. It does not wait: the next poll transmits the command.
    pub fn send(&mut self, command: Box<BaseCommand>) -> Result<(), Problem> {
        self.enqueue(command, None)
    }

    /// Sends a command with an entry.
    pub async fn send_with(&mut self, command: Box<BaseCommand>, entry: Entry) -> Result<(), Problem> {
        self.enqueue(command, Some(entry))?;
        match timeout(ANSWER_LIMIT, self.framed.flush()).await {
            Ok(flushed) => flushed.map_err(|error| self.broken(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    fn enqueue(&mut self, command: Box<BaseCommand>, entry: Option<Entry>) -> Result<(), Problem> {
        self.spoke = Instant::now();
        self.unsent = true;
        Codec.encode((command, entry), self.framed.write_buffer_mut()).map_err(|error| self.broken(&error))
    }

    /// Sends a command with a new request number, and returns the number. The answer arrives as a frame.
    pub fn ask(&mut self, make: impl FnOnce(u64) -> Box<BaseCommand>) -> Result<u64, Problem> {
        let request = self.requests;
        self.requests += 1;
        self.send(make(request))?;
        Ok(request)
    }

    /// Sends a command and waits for the answer. An error in the answer is a problem.
    pub async fn request(
        &mut self,
        make: impl FnOnce(u64) -> Box<BaseCommand>,
    ) -> Result<Box<BaseCommand>, Problem> {
        let request = self.ask(make)?;
        let answer = async {
            loop {
                match self.next().await? {
                    Frame::Command(command) if answers(&command) == Some(request) => return Ok(command),
                    Frame::Command(command) if self.control(&command)? => {}
                    frame => self.inbox.push_back(frame),
                }
            }
        };
        let answer = match timeout(ANSWER_LIMIT, answer).await {
            Ok(answer) => answer?,
            Err(_) => return Err(self.silent()),
        };
        match &answer.error {
            Some(error) => Err(Problem::answered(error.error(), &error.message)),
            None => Ok(answer),
        }
    }

    /// The next frame from the network.
    async fn next(&mut self) -> Result<Frame, Problem> {
        poll_fn(|context| self.poll_network(context)).await
    }

    /// The next frame, if there is one. Cancel safe.
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame, Problem>> {
        match self.inbox.pop_front() {
            Some(frame) => Poll::Ready(Ok(frame)),
            None => self.poll_network(context),
        }
    }

    fn poll_network(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame, Problem>> {
        if let Some(problem) = self.poll_unsent(context) {
            return Poll::Ready(Err(problem));
        }
        self.framed.poll_next_unpin(context).map(|next| self.received(next))
    }

    /// Transmits the unsent commands as far as possible, without reading. Returns a failure.
    pub fn poll_unsent(&mut self, context: &mut Context<'_>) -> Option<Problem> {
        if !self.unsent {
            return None;
        }
        let Poll::Ready(flushed) = self.framed.poll_flush_unpin(context) else { return None };
        self.unsent = false;
        flushed.err().map(|error| self.broken(&error))
    }

    /// The size of an incomplete frame, in bytes.
    pub fn partial(&self) -> usize {
        self.framed.read_buffer().len()
    }

    fn received(&mut self, next: Option<Result<Frame, frame::Error>>) -> Result<Frame, Problem> {
        match next {
            Some(Ok(frame)) => {
                self.heard = Instant::now();
                self.asked = false;
                Ok(frame)
            }
            Some(Err(error)) => Err(self.broken(&error)),
            None => Err(self.broken(&frame::Error::Io(io::ErrorKind::UnexpectedEof.into()))),
        }
    }

    /// Handles a ping or a request for a token, which [`Self::keep_alive`] or [`Self::answer_challenge`] answers.
    /// Returns whether the command was one of these.
    pub fn control(&mut self, command: &BaseCommand) -> Result<bool, Problem> {
        if command.ping.is_some() {
            self.pong()?;
        } else if command.auth_challenge.is_some() {
            self.renew(Duration::ZERO);
        } else {
            return Ok(command.pong.is_some());
        }
        Ok(true)
    }

    fn pong(&mut self) -> Result<(), Problem> {
        self.send(command(Type::Pong, |c| c.pong = Some(CommandPong {})))
    }

    /// Begins to get a new token after a pause. An issuer may take seconds, during which other work continues.
    fn renew(&mut self, pause: Duration) {
        let (files, expired) = (self.files.clone(), self.token.clone());
        self.renewal = Some(tokio::spawn(async move {
            sleep(pause).await;
            new_token(&files, expired.as_deref()).await
        }));
    }

    /// Answers a request for a new token if the token is there. After a failure, gets it again later: the connection is
    /// good until the broker ends it.
    pub async fn answer_challenge(&mut self) -> Result<(), Problem> {
        let Some(renewal) = self.renewal.take_if(|renewal| renewal.is_finished()) else { return Ok(()) };
        match renewal.await {
            Ok(Ok(token)) => return self.send_token(token),
            Ok(Err(problem)) => note(&format!("No new token for {}: {problem}", self.host)),
            Err(_) => {}
        }
        self.renew(TOKEN_PAUSE);
        Ok(())
    }

    fn send_token(&mut self, token: Option<String>) -> Result<(), Problem> {
        self.token.clone_from(&token);
        let response = CommandAuthResponse {
            client_version: Some(client_version()),
            response: Some(AuthData {
                auth_method_name: self.files.method().map(str::to_owned),
                auth_data: Some(token.unwrap_or_default().into_bytes()),
            }),
            protocol_version: Some(PROTOCOL),
        };
        self.send(command(Type::AuthResponse, |c| c.auth_response = Some(response)))
    }

    /// Sends the broker a sign of life when one is due, and fails if the broker is silent. A connection that is not read
    /// (`is_read`) does not count as silent.
    pub async fn keep_alive(&mut self, is_read: bool) -> Result<(), Problem> {
        if !is_read {
            self.heard = Instant::now();
            self.asked = false;
        }
        match due(self.heard.elapsed(), self.asked, self.spoke.elapsed()) {
            Due::Nothing => {}
            Due::Pong => self.pong()?,
            Due::Ping => {
                self.asked = true;
                self.send(command(Type::Ping, |c| c.ping = Some(CommandPing {})))?;
            }
            Due::End => return Err(self.silent()),
        }
        self.answer_challenge().await
    }

    fn broken(&self, error: &frame::Error) -> Problem {
        let host = &self.host;
        let sentence = match error {
            frame::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                format!("{host} closed the connection")
            }
            // A broker checks the client's certificate after the client has completed the handshake.
            frame::Error::Io(error) if is_tls(error) => {
                return tls_failed(host, error);
            }
            frame::Error::Io(error) => format!("the connection to {host} failed: {error}"),
            frame::Error::Protocol(why) => format!("{host} does not speak Pulsar's protocol: {why}"),
        };
        Problem::passing(Code::Unreachable, sentence)
    }

    fn silent(&self) -> Problem {
        Problem::passing(Code::Unreachable, format!("{} does not answer", self.host))
    }
}

/// The sign of life that is due on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The broker heard nothing for a while. Its ping may wait behind messages that the client does not read yet,
    /// so the client answers in advance. A broker accepts any command as a sign of life.
    Pong,
    /// The broker must show that it is alive.
    Ping,
    /// The broker is lost.
    End,
}

/// `silence` is the time since the broker's last frame, and `quiet` since the client's last command.
fn due(silence: Duration, asked: bool, quiet: Duration) -> Due {
    if silence >= LOST {
        Due::End
    } else if silence >= SILENCE && !asked {
        Due::Ping
    } else if quiet >= SIGN {
        Due::Pong
    } else {
        Due::Nothing
    }
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

fn tls_failed(host: &Host, why: &dyn fmt::Display) -> Problem {
    Problem::passing(Code::TlsFailed, format!("TLS with {host} failed: {why}"))
}

/// A token in place of one that expires. The file or the issuer may have a newer one.
async fn new_token(files: &Files, expired: Option<&str>) -> Result<Option<String>, Problem> {
    files.drop_token(expired).await;
    files.token().await
}

/// A command of a type, filled by `fill`.
pub fn command(kind: Type, fill: impl FnOnce(&mut BaseCommand)) -> Box<BaseCommand> {
    let mut command = Box::new(BaseCommand { r#type: kind as i32, ..BaseCommand::default() });
    fill(&mut command);
    command
}

/// An index as a number of the protocol.
pub fn number(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}

/// The number of the request that a command answers.
pub fn answers(command: &BaseCommand) -> Option<u64> {
    command
        .success
        .as_ref()
        .map(|answer| answer.request_id)
        .or_else(|| command.error.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.lookup_topic_response.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.partition_metadata_response.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.producer_success.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.get_topics_of_namespace_response.as_ref().map(|answer| answer.request_id))
}

fn client_version() -> String {
    format!("quintet-pulsar-client-v{}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use pulsar::message::proto::CommandAuthChallenge;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::security::TokenSource;

    /// A link and its broker, with a socket of this size.
    fn connected(size: usize) -> (Link, Framed<DuplexStream, Codec>) {
        let (client, broker) = duplex(size);
        let host = Host { name: "fake".to_owned(), port: 1 };
        (Link::over(Box::new(client), &host, &Files::default()), Framed::new(broker, Codec))
    }

    async fn next_type(broker: &mut Framed<DuplexStream, Codec>) -> Type {
        match broker.next().await.unwrap().unwrap() {
            Frame::Command(command) => command.r#type(),
            Frame::Messages(_) => panic!("messages for a broker"),
        }
    }

    /// Large enough to fill the socket and the buffer of the sender.
    fn long_command() -> Box<BaseCommand> {
        let connect = CommandConnect { client_version: "x".repeat(100_000), ..CommandConnect::default() };
        command(Type::Connect, |c| c.connect = Some(connect))
    }

    /// While the socket is full, the owner drops the future that handles the broker's requests.
    #[tokio::test]
    async fn a_full_socket_loses_no_answer() {
        let (mut link, mut broker) = connected(1_000);
        link.send(long_command()).unwrap();
        let challenge = CommandAuthChallenge::default();
        broker
            .send((command(Type::AuthChallenge, |c| c.auth_challenge = Some(challenge)), None))
            .await
            .unwrap();
        broker.send((command(Type::Ping, |c| c.ping = Some(CommandPing {})), None)).await.unwrap();
        for _ in 0..2 {
            let Frame::Command(command) = link.next().await.unwrap() else { panic!("messages") };
            let handled = async { link.control(&command) };
            assert!(tokio::select! { biased; handled = handled => handled.unwrap(), () = async {} => false });
        }
        tokio::select! { biased; _ = link.next() => panic!("a frame"), () = async {} => {} }
        sleep(Duration::from_millis(20)).await;
        link.keep_alive(true).await.unwrap();
        let sent = async {
            let mut types = Vec::new();
            while types.len() < 3 {
                types.push(next_type(&mut broker).await);
            }
            types
        };
        let types = tokio::select! { types = sent => types, _ = link.next() => panic!("a frame") };
        assert_eq!(types, [Type::Connect, Type::Pong, Type::AuthResponse]);
    }

    /// A Secret may be empty for a moment, just when the broker requests a new token.
    #[tokio::test(start_paused = true)]
    async fn an_empty_token_file_does_not_end_the_connection() {
        let (mut link, mut broker) = connected(1_000);
        let file = std::env::temp_dir().join(format!("quintet-challenge-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        link.files.token = Some(TokenSource::File(file.clone()));
        let challenge = CommandAuthChallenge::default();
        assert!(link.control(&command(Type::AuthChallenge, |c| c.auth_challenge = Some(challenge))).unwrap());
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            link.keep_alive(true).await.unwrap();
            assert!(!link.unsent, "there is no token to send");
        }
        std::fs::write(&file, "renewed").unwrap();
        while !link.unsent {
            sleep(Duration::from_secs(1)).await;
            link.answer_challenge().await.unwrap();
        }
        std::fs::remove_file(&file).unwrap();
        poll_fn(|context| {
            assert!(link.poll_unsent(context).is_none());
            Poll::Ready(())
        })
        .await;
        let answer = timeout(SIGN, broker.next()).await.unwrap().unwrap().unwrap();
        let Frame::Command(answer) = answer else { panic!("messages for a broker") };
        let sent = answer.auth_response.unwrap().response.unwrap().auth_data.unwrap();
        assert_eq!(sent, b"renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_broker_hears_the_client_and_is_not_lost() {
        let (mut link, mut broker) = connected(1 << 20);
        for _ in 0..600 {
            tokio::time::advance(Duration::from_secs(1)).await;
            link.keep_alive(false).await.unwrap();
        }
        poll_fn(|context| {
            assert!(link.poll_unsent(context).is_none());
            Poll::Ready(())
        })
        .await;
        for pong in 0..60 {
            let heard = timeout(SIGN, next_type(&mut broker)).await;
            assert_eq!(heard.ok(), Some(Type::Pong), "{pong}");
        }
        // From now on it is read, and silent.
        for second in 1..=45 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(link.keep_alive(true).await.is_ok(), second < 45, "{second}");
        }
    }

    #[test]
    fn each_silence_has_its_sign_of_life() {
        let seconds =
            |silence, asked, quiet| due(Duration::from_secs(silence), asked, Duration::from_secs(quiet));
        assert_eq!(seconds(19, false, 9), Due::Nothing);
        assert_eq!(seconds(0, false, 10), Due::Pong);
        assert_eq!(seconds(20, false, 20), Due::Ping);
        assert_eq!(seconds(44, true, 9), Due::Nothing);
        assert_eq!(seconds(45, true, 0), Due::End);
    }
}
