//! Addresses to listen on, and the probes: /healthz and /readyz.
//!
//! `axum::serve` and axum-server limit neither the number nor the age of connections.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The time limit for the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may last.
const CONNECTION: Duration = Duration::from_mins(5);
/// The most connections to one address at a time. A new one closes the oldest, but first those with an unfinished handshake. So
/// other clients cannot use up the file descriptors of the process, and cannot lock out clients with connections that they
/// leave open.
pub const CONNECTIONS: usize = 64;

/// The number of connections that wait until the process accepts them. [`TcpListener::bind`] has the same limit, which is that
/// of the standard library.
const BACKLOG: u32 = 128;

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct Error {
    address: String,
    error: String,
}

/// Listens on `[host]:port`. `0` means no address, and an empty host means every address.
pub async fn listen(address: &str) -> Result<Option<TcpListener>, Error> {
    if address == "0" {
        return Ok(None);
    }
    let fail = |error: String| Error { address: address.to_owned(), error };
    let listener = match address.strip_prefix(':') {
        Some(port) => {
            let port: u16 =
                port.parse().map_err(|_| fail("the port must be a number below 65536".to_owned()))?;
            match TcpSocket::new_v6().and_then(|socket| listen_everywhere(socket, port)) {
                // Hosts without IPv6.
                Err(error) if error.kind() != ErrorKind::AddrInUse => {
                    TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
                }
                listened => listened,
            }
        }
        None => TcpListener::bind(address).await,
    };
    listener.map(Some).map_err(|error| fail(error.to_string()))
}

/// Listens on every IPv6 and IPv4 address, even if the host's `net.ipv6.bindv6only` separates them.
fn listen_everywhere(socket: TcpSocket, port: u16) -> io::Result<TcpListener> {
    SockRef::from(&socket).set_only_v6(false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    socket.listen(BACKLOG)
}

/// Serves a router permanently. Each connection has a time limit, and the number of connections is limited.
pub async fn serve(listener: TcpListener, router: Router) {
    serve_streams(listener, router, false, |stream| std::future::ready(Ok(stream))).await;
}

/// Serves a router like [`serve`], over the streams that `handshake` makes from connections.
pub async fn serve_over<S, O>(listener: TcpListener, router: Router, handshake: impl Fn(TcpStream) -> O)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Future<Output = io::Result<S>> + Send + 'static,
{
    serve_streams(listener, router, true, handshake).await;
}

/// An accepted connection.
struct Connection {
    task: AbortHandle,
    /// Whether its handshake is not complete.
    is_unfinished: Arc<AtomicBool>,
}

/// Drops ended connections. If there are too many others, closes the oldest one with an unfinished handshake, or else the
/// oldest one.
fn make_room(connections: &mut VecDeque<Connection>) {
    connections.retain(|connection| !connection.task.is_finished());
    if connections.len() >= CONNECTIONS {
        let unfinished = connections.iter().position(|one| one.is_unfinished.load(Ordering::Relaxed));
        if let Some(closed) = connections.remove(unfinished.unwrap_or(0)) {
            closed.task.abort();
        }
    }
}

async fn serve_streams<S, O>(
    mut listener: TcpListener,
    router: Router,
    has_handshake: bool,
    open: impl Fn(TcpStream) -> O,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Future<Output = io::Result<S>> + Send + 'static,
{
    let mut connections = VecDeque::new();
    loop {
        // axum's accept logs errors and continues.
        let (stream, _) = Listener::accept(&mut listener).await;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let (opened, service) = (open(stream), TowerToHyperService::new(router.clone()));
        make_room(&mut connections);
        let is_unfinished = Arc::new(AtomicBool::new(has_handshake));
        let finished = is_unfinished.clone();
        let serving = async move {
            if let Ok(stream) = opened.await {
                finished.store(false, Ordering::Relaxed);
                // A failed connection concerns only its client.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            }
        };
        let task = tokio::spawn(timeout(CONNECTION, serving)).abort_handle();
        connections.push_back(Connection { task, is_unfinished });
    }
}

/// Serves /healthz and /readyz permanently. `ready` returns one line for each reason why /readyz fails.
pub async fn probes(listener: TcpListener, ready: impl Fn() -> Vec<String> + Clone + Send + Sync + 'static) {
    let router = Router::new()
        .route("/healthz", get(|| std::future::ready("ok\n")))
        .route("/readyz", get(move || std::future::ready(readiness(&ready()))));
    serve(listener, router).await;
}

fn readiness(wrong: &[String]) -> (StatusCode, String) {
    if wrong.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, wrong.join("\n") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn zero_disables_and_errors_quote_the_address() {
        assert!(listen("0").await.unwrap().is_none());
        assert!(listen(":99999").await.unwrap_err().to_string().contains(":99999"));
        assert!(listen("nonsense").await.unwrap_err().to_string().contains("nonsense"));
        assert!(listen("127.0.0.1:0").await.unwrap().is_some());
    }

    /// As if the host had set `net.ipv6.bindv6only`.
    #[tokio::test]
    async fn an_empty_host_accepts_ipv4() {
        let Ok(socket) = TcpSocket::new_v6() else { return };
        SockRef::from(&socket).set_only_v6(true).unwrap();
        let listener = listen_everywhere(socket, 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    }

    /// Returns an address that answers `ok`.
    async fn served() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Router::new().route("/", get(|| std::future::ready("ok")))));
        address
    }

    async fn ask(address: std::net::SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn idle_connections_do_not_lock_out_clients() {
        let address = served().await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address).await.unwrap().ends_with("ok"), "a new connection gets an answer");
        let mut closed = Vec::new();
        let _ = idle[0].read_to_end(&mut closed).await;
        assert!(closed.is_empty(), "the oldest is closed");
        idle[CONNECTIONS - 1]
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        idle[CONNECTIONS - 1].read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok"), "the others stay open");
    }

    /// The handshake of this test is one byte in each direction.
    #[tokio::test]
    async fn closes_unfinished_handshakes_before_older_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handshake = |mut stream: TcpStream| async move {
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            Ok::<_, io::Error>(stream)
        };
        let router = Router::new().route("/", get(|| std::future::ready("ok")));
        tokio::spawn(serve_over(listener, router, handshake));
        let connect = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_u8(1).await.unwrap();
            stream.read_u8().await.unwrap();
            stream
        };
        let mut first = connect().await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let closed = timeout(HEAD, silent[0].read_u8()).await;
        assert!(closed.is_ok_and(|read| read.is_err()), "the oldest unfinished handshake is closed");
        first.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        first.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok"), "the oldest connection is still open: {answer}");
        // Only complete handshakes: a new connection closes the oldest.
        let mut complete = Vec::new();
        for _ in 0..=CONNECTIONS {
            complete.push(connect().await);
        }
        assert!(complete[0].read_u8().await.is_err(), "the oldest is closed");
    }

    #[tokio::test(start_paused = true)]
    async fn closes_a_connection_without_a_request() {
        let address = served().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HT").await.unwrap();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // The server may answer before it closes the connection.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(began.elapsed() >= HEAD && began.elapsed() < CONNECTION, "{:?}", began.elapsed());
    }
}
