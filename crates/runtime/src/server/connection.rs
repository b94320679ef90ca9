//! Connections to the API server: they detect a vanished peer, are not reused after a doubt, and send no write after
//! its term.
//!
//! A process may be stopped at any moment and wake when another process leads. So a write checks the clock
//! twice. The first check is when hyper takes its body and hands the request to the connection ([`Fenced`]).
//! The second is below TLS, before each system call that sends bytes ([`Connection`]). Nothing is encoded or
//! encrypted between the second check and the system call. A partly sent write stays incomplete.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
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

use crate::lock;
use crate::server::connectivity::Link;
use crate::server::gate::Fence;

/// The time limit of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);
/// The idle time before the first TCP keepalive probe, and the interval between probes.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long TCP waits for an acknowledgement; this limit detects a silent partition. Only Linux has it.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Opens connections.
pub(crate) type Connector = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> Connection>;

/// Opens TCP connections that detect a vanished peer.
pub(crate) fn connector() -> Connector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(2));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    http.map_response(Connection::over)
}

/// Sends requests over pooled connections. After a doubt it starts a new pool, because a new watch or write on an old
/// connection might never get an answer.
#[derive(Clone)]
pub(crate) struct Transport<C> {
    builder: legacy::Builder,
    connector: C,
    doubts: watch::Receiver<u64>,
    /// The pool, and the number of doubts when it was created.
    pool: Arc<Mutex<(u64, legacy::Client<C, Fenced>)>>,
}

impl<C: Connect + Clone> Transport<C> {
    /// Opens connections by `connector`, and pools them with the settings of `builder`.
    pub(crate) fn new(builder: legacy::Builder, connector: C, link: &Link) -> Self {
        let doubts = link.doubts();
        let pool = Arc::new(Mutex::new((*doubts.borrow(), builder.build(connector.clone()))));
        Self { builder, connector, doubts, pool }
    }

    /// The pool since the last doubt. Requests on the previous pool continue.
    fn pool(&self) -> legacy::Client<C, Fenced> {
        let doubts = *self.doubts.borrow();
        let mut pool = lock(&self.pool);
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

/// The reason why a write was not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    /// Its term is over.
    #[error("the lease was lost, or not renewed in time, before the request was sent")]
    Late,
    /// A connector without [`Connection`] made the connection.
    #[error("the connection does not check the lease before it sends")]
    Unchecked,
}

/// The term of the write that a connection is sending, if any. Clones are cheap and share their state.
#[derive(Clone, Default)]
struct Sending(Arc<Mutex<Option<Fence>>>);

impl Sending {
    fn set(&self, fence: Option<Fence>) {
        *lock(&self.0) = fence;
    }

    /// Fails if the term of the current write is over.
    fn check(&self) -> io::Result<()> {
        match &*lock(&self.0) {
            Some(fence) if !fence.holds() => Err(io::Error::other(Unsent::Late)),
            _ => Ok(()),
        }
    }
}

/// A TCP connection that fails before it sends bytes of a write whose term is over.
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

    /// hyper and TLS flush when all bytes are sent. The next request on this connection may be a read.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.tcp).poll_flush(context))?;
        self.sending.set(None);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

/// The body of a request. The body of a write fails if its term is over. hyper takes the body when it hands the
/// request to the connection, so a write that waited for a connection is checked after the wait.
pub(crate) struct Fenced {
    body: Body,
    write: Option<(Fence, CaptureConnection)>,
}

/// Moves the fence from a request's extensions to its body.
pub(crate) fn fenced(mut request: Request<Body>) -> Request<Fenced> {
    let fence: Option<Fence> = request.extensions_mut().remove();
    let write = fence.map(|fence| (fence, capture_connection(&mut request)));
    request.map(|body| Fenced { body, write })
}

impl Fenced {
    /// Fails if the term of a write is over, or if its connection has no second check. Otherwise passes the fence to the
    /// connection for that check.
    fn check(&self) -> Result<(), Unsent> {
        let Some((fence, on)) = &self.write else { return Ok(()) };
        if !fence.holds() {
            return Err(Unsent::Late);
        }
        let mut about = http::Extensions::new();
        if let Some(connected) = &*on.connection_metadata() {
            connected.get_extras(&mut about);
        }
        about.get::<Sending>().ok_or(Unsent::Unchecked)?.set(Some(fence.clone()));
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
        if let Err(unsent) = self.check() {
            return Poll::Ready(Some(Err(unsent.into())));
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

    use hyper_util::rt::TokioExecutor;
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
        /// The number of clock readings until the term is over.
        static LOOKS: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// The sleep time of the machine: longer than any term after [`LOOKS`] readings.
    fn asleep() -> Duration {
        let left = LOOKS.get();
        LOOKS.set(left.saturating_sub(1));
        if left == 0 { Duration::from_hours(24) } else { Duration::ZERO }
    }

    /// Answers every request until `asked` completes, and returns the requests of each connection.
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

    /// Answers every request of a connection until it closes, and returns the requests.
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

    /// Whichever check finds the term over, the server receives no byte of the write. The next read on the same
    /// connection succeeds.
    #[tokio::test]
    async fn sends_no_byte_of_a_write_whose_term_is_over() {
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
                assert!(error.contains("before the request was sent"), "{error}");
                assert_eq!(received, ["GET"]);
            } else {
                assert_eq!(received, ["POST GET"]);
                assert_eq!(looks, 2, "for the body, and for its bytes");
                return;
            }
        }
    }

    /// As after a connector for proxies that someone may add.
    #[tokio::test]
    async fn sends_no_write_over_a_connection_without_the_check() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Gate::with_sleep(|| Duration::ZERO);
        gate.open_until(Instant::now() + Duration::from_mins(1));
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let mut write = Request::post(address).body(Body::from(b"{}".to_vec())).unwrap();
        write.extensions_mut().insert(gate.fence(gate.term().unwrap().since));
        let pool = legacy::Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let mut error = None;
        let received = serve(listener, async { error = pool.request(fenced(write)).await.err() }).await;
        let error = client::brief_causes(&error.unwrap());
        assert!(error.contains("does not check the lease") && received.is_empty(), "{error} {received:?}");
    }

    #[tokio::test]
    async fn does_not_reuse_connections_after_a_doubt() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::default();
        let client = client(&listener, &link);
        let asked = async {
            for path in ["/a", "/b", "/doubt", "/c", "/d"] {
                if path == "/doubt" {
                    link.suspect();
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

    /// Both ends of TCP: keepalive probes for an idle connection, and a limit for unacknowledged bytes.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_detect_a_vanished_peer() {
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
