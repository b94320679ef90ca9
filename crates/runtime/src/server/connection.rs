//! Connections to the API server: TCP notices by itself when the peer is gone, what may be connected to nobody is not used
//! again, and a write is not sent when its term is over.
//!
//! A process may be stopped at any moment and wake when another one leads. So the clock is looked at in two places after a write
//! was handed to the client: when hyper asks for its body, which is when it hands head and body to the connection ([`Fenced`]), and,
//! below TLS, each time before the kernel is given bytes of it ([`Connection`]). Between the second look and the system call nothing is
//! encoded or encrypted any more. What was sent in part by then is left in part, and no complete request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http::Request;
use hyper::body::{Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{
    self, CaptureConnection, Connect, Connected, HttpConnector, capture_connection,
};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::util::MapResponse;
use tower::{BoxError, Service, ServiceExt as _};

use crate::server::connectivity::Link;
use crate::server::gate::Fence;

/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Idle time after which TCP asks whether the peer is there; the same between questions.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long TCP waits for the peer to acknowledge bytes: this is what notices a silent partition.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// What makes connections.
pub(crate) type Connector = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> Connection>;

/// Connects by TCP, which notices by itself when the peer is gone.
pub(crate) fn connector() -> Connector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(2));
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    http.map_response(Connection::over)
}

/// Sends requests, and keeps the connections for the next ones; those of before a doubt are kept for none. A watch that was opened
/// anew over one of them would wait for an answer in vain, and so would a write.
#[derive(Clone)]
pub(crate) struct Transport<C> {
    builder: legacy::Builder,
    connector: C,
    doubts: watch::Receiver<u64>,
    /// The pool, and the doubts that there were when it was begun.
    pool: Arc<Mutex<(u64, legacy::Client<C, Fenced>)>>,
}

impl<C: Connect + Clone> Transport<C> {
    /// Connects by `connector` and pools as `builder` says.
    pub(crate) fn new(builder: legacy::Builder, connector: C, link: &Link) -> Self {
        let doubts = link.doubts();
        let pool = Arc::new(Mutex::new((*doubts.borrow(), builder.build(connector.clone()))));
        Self { builder, connector, doubts, pool }
    }

    /// The pool since the last doubt. What is under way over the one before it goes on.
    fn pool(&self) -> legacy::Client<C, Fenced> {
        let doubts = *self.doubts.borrow();
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.0 != doubts {
            *pool = (doubts, self.builder.build(self.connector.clone()));
        }
        pool.1.clone()
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> Service<Request<Fenced>> for Transport<C> {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), legacy::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Fenced>) -> legacy::ResponseFuture {
        self.pool().request(request)
    }
}

/// The term is over in which a write was begun, and it was not sent.
#[derive(Debug, thiserror::Error)]
#[error("the lease was lost, or not renewed in time, before this was sent")]
struct Late;

/// The term of the write that a connection is sending, if it is sending one. Cheap to clone; every clone is the same.
#[derive(Clone, Default)]
struct Sending(Arc<Mutex<Option<Fence>>>);

impl Sending {
    fn set(&self, fence: Option<Fence>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fence;
    }

    /// Fails where the term of what is being sent is over.
    fn check(&self) -> io::Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(fence) if !fence.holds() => Err(io::Error::other(Late)),
            _ => Ok(()),
        }
    }
}

/// A TCP connection that fails rather than send bytes of a write whose term is over.
pub(crate) struct Connection {
    tcp: TokioIo<TcpStream>,
    sending: Sending,
}

impl Connection {
    fn over(tcp: TokioIo<TcpStream>) -> Self {
        Self { tcp, sending: Sending::default() }
    }
}

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        self.tcp.connected().extra(self.sending.clone())
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, bytes)
    }
}

impl Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sending.check()?;
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sending.check()?;
        Pin::new(&mut self.tcp).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    /// hyper and TLS ask for it when they have nothing left to send: what comes next on this connection may be a read.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.tcp).poll_flush(context))?;
        self.sending.set(None);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

/// The body of a request; that of a write fails when the term is over in which that was begun. hyper asks for it when it hands
/// the request to the connection, head and body together: what waited until then for a connection, or for its turn, is not sent.
pub(crate) struct Fenced {
    body: Body,
    write: Option<(Fence, CaptureConnection)>,
}

/// Gives a request's body the fence that it came with.
pub(crate) fn fenced(mut request: Request<Body>) -> Request<Fenced> {
    let fence: Option<Fence> = request.extensions_mut().remove();
    let write = fence.map(|fence| (fence, capture_connection(&mut request)));
    request.map(|body| Fenced { body, write })
}

impl Fenced {
    /// Fails where the term of a write is over, and lets the connection look once more.
    fn check(&self) -> Result<(), Late> {
        let Some((fence, on)) = &self.write else { return Ok(()) };
        if !fence.holds() {
            return Err(Late);
        }
        let mut about = http::Extensions::new();
        if let Some(connected) = &*on.connection_metadata() {
            connected.get_extras(&mut about);
        }
        let sending = about.get::<Sending>();
        debug_assert!(sending.is_some(), "every connection is one that looks");
        if let Some(sending) = sending {
            sending.set(Some(fence.clone()));
        }
        Ok(())
    }
}

impl HttpBody for Fenced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Err(late) = self.check() {
            return Poll::Ready(Some(Err(late.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::{Client, Config};
    use serde::de::IgnoredAny;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::*;
    use crate::server::client::{self, LONGEST_REST};
    use crate::server::gate::Gate;
    use crate::server::metrics::Metrics;

    thread_local! {
        /// Looks at the clock until it says that the term is over.
        static LOOKS: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// For how long the machine has slept, at the last of some looks for longer than any term.
    fn asleep() -> Duration {
        let left = LOOKS.get();
        LOOKS.set(left.saturating_sub(1));
        if left == 0 { Duration::from_hours(24) } else { Duration::ZERO }
    }

    /// Answers every request until `asked` is over, and says what it has received on each connection that it was sent something on.
    async fn serve(listener: TcpListener, asked: impl Future<Output = ()>) -> Vec<Vec<String>> {
        let mut connections = JoinSet::new();
        let accept = async {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(answer(connection));
            }
        };
        tokio::select! { () = asked => {}, () = accept => {} }
        let mut received = connections.join_all().await;
        received.retain(|requests| !requests.is_empty());
        received
    }

    /// Answers every request of a connection until that ends, and says what they were.
    async fn answer(mut connection: TcpStream) -> Vec<String> {
        let mut received = Vec::new();
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = connection.read(&mut bytes).await {
            received.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        }
        received
    }

    fn client(listener: &TcpListener, link: &Link) -> Client {
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        client::build(config, &Metrics::new().unwrap(), LONGEST_REST, link).unwrap()
    }

    /// Whichever look it is that finds the term over, the server sees nothing of the write: no head, and no part of a body. And
    /// a term that is over is nothing to the next read of the same connection.
    #[tokio::test]
    async fn a_write_whose_term_is_over_before_its_bytes_leave_is_not_sent() {
        let gate = Gate::with_sleep(asleep);
        gate.open_until(Instant::now() + Duration::from_mins(1));
        let since = gate.term().unwrap().since;
        for looks in 0.. {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = client(&listener, &Link::default());
            let mut write = Request::post("/api/v1/namespaces/n/pods").body(b"{}".to_vec()).unwrap();
            write.extensions_mut().insert(gate.fence(since));
            let mut written = None;
            let asked = async {
                LOOKS.set(looks);
                written = Some(client::ask::<IgnoredAny>(&client, write).await);
                LOOKS.set(0);
                let read = Request::get("/version").body(Vec::new()).unwrap();
                client::ask::<IgnoredAny>(&client, read).await.unwrap();
                drop(client);
            };
            let received = serve(listener, asked).await;
            let verbs = |requests: &Vec<String>| {
                requests.iter().filter_map(|request| request.split(' ').next()).collect::<Vec<_>>().join(" ")
            };
            let received: Vec<String> = received.iter().map(verbs).collect();
            if let Some(Err(error)) = written {
                let error = client::brief(&error);
                assert!(error.contains("before this was sent"), "{error}");
                assert_eq!(received, ["GET"]);
            } else {
                assert_eq!(received, ["POST GET"]);
                assert_eq!(looks, 2, "when the body is asked for, and when its bytes leave");
                return;
            }
        }
    }

    #[tokio::test]
    async fn what_was_connected_before_a_doubt_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::default();
        let client = client(&listener, &link);
        let asked = async {
            for path in ["/a", "/b", "/doubt", "/c", "/d"] {
                if path == "/doubt" {
                    link.doubt();
                    continue;
                }
                let read = Request::get(path).body(Vec::new()).unwrap();
                client::ask::<IgnoredAny>(&client, read).await.unwrap();
            }
            drop(client);
        };
        let received = serve(listener, asked).await;
        let path = |request: &String| request.split(' ').nth(1).unwrap().to_owned();
        let mut paths: Vec<Vec<String>> =
            received.iter().map(|requests| requests.iter().map(path).collect()).collect();
        paths.sort();
        assert_eq!(paths, [["/a", "/b"], ["/c", "/d"]]);
    }

    /// Both ends of TCP: questions while nothing is sent, and a limit for what is sent and not acknowledged.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_notice_a_peer_that_is_gone() {
        use rustix::net::sockopt;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", server.local_addr().unwrap()).parse().unwrap();
        let connected = connector().oneshot(address).await.unwrap();
        let socket = connected.tcp.inner();
        assert!(socket.nodelay().unwrap() && sockopt::socket_keepalive(socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 2);
        assert_eq!(u128::from(sockopt::tcp_user_timeout(socket).unwrap()), USER_TIMEOUT.as_millis());
    }
}
