//! A connection to one broker: TLS, the handshake with the token, requests and answers, and keep-alives.
//!
//! A broken connection is not repaired: its owner drops it and connects again.

use std::collections::VecDeque;
use std::fmt;
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
use tokio::time::{Instant, timeout};
use tokio_util::codec::Framed;

use crate::address::Host;
use crate::exit::Exit;
use crate::frame::{self, Codec, Entry, Frame};
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

/// The supported version of the protocol: with partial successes and renewed authentication.
const PROTOCOL: i32 = 19;

/// A broker's default limit of an entry's payload, in bytes.
const MAX_MESSAGE_SIZE: usize = 5 << 20;

/// The size of a read.
const BUFFER: usize = 64 << 10;

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection to a broker.
pub struct Link {
    host: Host,
    files: Files,
    framed: Framed<Box<dyn Transport>, Codec>,
    /// Frames that came before an awaited answer.
    inbox: VecDeque<Frame>,
    requests: u64,
    heard: Instant,
    asked: bool,
    /// The last token that the broker got.
    token: Option<String>,
    /// Whether the broker waits for a new token.
    challenged: bool,
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
        let mut link = Self {
            host: host.clone(),
            files: files.clone(),
            framed: Framed::with_capacity(transport, Codec, BUFFER),
            inbox: VecDeque::new(),
            requests: 0,
            heard: Instant::now(),
            asked: false,
            token: None,
            challenged: false,
            max_message_size: 0,
        };
        link.shake_hands(behind).await?;
        Ok(link)
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
        self.send(command(Type::Connect, |c| c.connect = Some(connect))).await?;
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
            self.attend(&answer).await?;
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

    /// Sends a command.
    pub async fn send(&mut self, command: Box<BaseCommand>) -> Result<(), Problem> {
        self.send_with(command, None).await
    }

    /// Sends a command with an entry.
    pub async fn send_with(
        &mut self,
        command: Box<BaseCommand>,
        entry: Option<Entry>,
    ) -> Result<(), Problem> {
        match timeout(ANSWER_LIMIT, self.framed.send((command, entry))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.broken(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// Sends a command with a new request number, and returns the number. The answer arrives as a frame.
    pub async fn ask(&mut self, make: impl FnOnce(u64) -> Box<BaseCommand>) -> Result<u64, Problem> {
        let request = self.requests;
        self.requests += 1;
        self.send(make(request)).await?;
        Ok(request)
    }

    /// Sends a command and waits for the answer. An error in the answer is a problem.
    pub async fn request(
        &mut self,
        make: impl FnOnce(u64) -> Box<BaseCommand>,
    ) -> Result<Box<BaseCommand>, Problem> {
        let request = self.ask(make).await?;
        let answer = async {
            loop {
                match self.next().await? {
                    Frame::Command(command) if answers(&command) == Some(request) => return Ok(command),
                    Frame::Command(command) if self.attend(&command).await? => {}
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
        let next = self.framed.next().await;
        self.received(next)
    }

    /// The next frame, if there is one.
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame, Problem>> {
        if let Some(frame) = self.inbox.pop_front() {
            return Poll::Ready(Ok(frame));
        }
        self.framed.poll_next_unpin(context).map(|next| self.received(next))
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

    /// Answers a ping or a request for a token. Returns whether the command was one of these.
    pub async fn attend(&mut self, asked: &BaseCommand) -> Result<bool, Problem> {
        if asked.ping.is_some() {
            self.send(command(Type::Pong, |c| c.pong = Some(CommandPong {}))).await?;
        } else if asked.auth_challenge.is_some() {
            self.challenged = true;
            self.answer_challenge().await?;
        } else {
            return Ok(asked.pong.is_some());
        }
        Ok(true)
    }

    /// Answers a request for a new token, also one whose answer was cancelled: an issuer may take seconds.
    async fn answer_challenge(&mut self) -> Result<(), Problem> {
        if self.challenged {
            // The token expires; the file or the issuer may have a newer one.
            self.files.drop_token(self.token.as_deref()).await;
            let token = self.files.token().await?;
            self.token.clone_from(&token);
            let response = CommandAuthResponse {
                client_version: Some(client_version()),
                response: Some(AuthData {
                    auth_method_name: self.files.method().map(str::to_owned),
                    auth_data: Some(token.unwrap_or_default().into_bytes()),
                }),
                protocol_version: Some(PROTOCOL),
            };
            self.challenged = false;
            self.send(command(Type::AuthResponse, |c| c.auth_response = Some(response))).await?;
        }
        Ok(())
    }

    /// Pings a silent broker, and fails if it stays silent.
    pub async fn keep_alive(&mut self) -> Result<(), Problem> {
        let silence = self.heard.elapsed();
        if silence >= LOST {
            return Err(self.silent());
        }
        if silence >= SILENCE && !self.asked {
            self.asked = true;
            self.send(command(Type::Ping, |c| c.ping = Some(CommandPing {}))).await?;
        }
        self.answer_challenge().await?;
        // A cancelled wait may have left data.
        match timeout(ANSWER_LIMIT, self.framed.flush()).await {
            Ok(flushed) => flushed.map_err(|error| self.broken(&error)),
            Err(_) => Err(self.silent()),
        }
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

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

fn tls_failed(host: &Host, why: &dyn fmt::Display) -> Problem {
    Problem::passing(Code::TlsFailed, format!("TLS with {host} failed: {why}"))
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
fn answers(command: &BaseCommand) -> Option<u64> {
    command
        .success
        .as_ref()
        .map(|answer| answer.request_id)
        .or_else(|| command.error.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.lookup_topic_response.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.partition_metadata_response.as_ref().map(|answer| answer.request_id))
        .or_else(|| command.producer_success.as_ref().map(|answer| answer.request_id))
}

fn client_version() -> String {
    format!("quintet-pulsar-client-v{}", env!("CARGO_PKG_VERSION"))
}
