//! A small HTTPS server that grants terms, and counts the writes that arrive after them.
//!
//! It counts a write when its last byte arrives, even if the client closes the connection at that moment. An HTTP
//! library would drop the request.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quintet_runtime::lock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

/// The path of a request for a term.
pub const TERM: &str = "/term";

/// The waits in [`Server::settle`], and the length of each.
const TURNS: usize = 3;
const TURN: Duration = Duration::from_millis(1);

/// A term of the writing process. It is over when its length has passed since it began.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    pub number: u64,
    /// When the server granted it. By the clock of the process, it began earlier, as it does for a Lease.
    pub began: Instant,
}

/// A running server.
pub struct Server {
    pub url: String,
    /// In DER.
    pub certificate: Vec<u8>,
    /// The granted terms.
    pub terms: Receiver<Term>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// One thread serves all connections.
    runtime: Runtime,
}

impl Server {
    /// Starts a server that grants terms of this length.
    pub fn start(length: Duration) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])
            .context("cannot create a certificate")?;
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.context("cannot start the thread of the server")?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.context("cannot listen for the writing process")?;
        let url = format!("https://{}", listener.local_addr().context("the server has no address")?);
        let (granted, terms) = mpsc::channel();
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let desk = Desk { arrivals: arrivals.clone(), granted, length };
        runtime.spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), desk));
        Ok(Self { url, certificate: certificate.to_vec(), terms, arrivals, runtime })
    }

    /// Waits until the server has read all bytes that have arrived. The thread polls all sockets in each turn.
    pub fn settle(&self) -> Result<()> {
        let turns = self.runtime.spawn(async {
            for _ in 0..TURNS {
                tokio::time::sleep(TURN).await;
            }
        });
        self.runtime.block_on(turns).context("the thread of the server has panicked")
    }

    /// Ends a term: further writes of it are late. Returns the number of its writes so far, or `None` if the process
    /// has ended the term and is in a newer one.
    pub fn end(&self, term: u64) -> Option<usize> {
        lock(&self.arrivals).end(term)
    }

    /// The terms with a late write.
    pub fn late(&self) -> BTreeSet<u64> {
        lock(&self.arrivals).late.clone()
    }
}

/// The writes of the last term, and the late writes of all terms.
#[derive(Debug, Default)]
struct Arrivals {
    /// The number of the last term.
    term: u64,
    /// Whether the last term is over.
    is_over: bool,
    /// The writes of the last term that arrived before its end.
    writes: usize,
    late: BTreeSet<u64>,
}

impl Arrivals {
    /// Begins a term, and returns its number.
    fn begin(&mut self) -> u64 {
        *self = Self { term: self.term + 1, late: std::mem::take(&mut self.late), ..Self::default() };
        self.term
    }

    fn add(&mut self, term: u64) {
        if term == self.term && !self.is_over {
            self.writes += 1;
        } else {
            self.late.insert(term);
        }
    }

    fn end(&mut self, term: u64) -> Option<usize> {
        if term != self.term {
            return None;
        }
        self.is_over = true;
        Some(self.writes)
    }
}

/// Answers requests. Clones share their state.
#[derive(Clone)]
struct Desk {
    arrivals: Arc<Mutex<Arrivals>>,
    granted: Sender<Term>,
    /// The length of a term.
    length: Duration,
}

impl Desk {
    /// The answer to a request for this target.
    fn answer(&self, target: &str) -> String {
        let body = if let Some(term) = written_in(target) {
            lock(&self.arrivals).add(term);
            json!({"metadata": {"name": "pod", "resourceVersion": "1"}})
        } else {
            let number = lock(&self.arrivals).begin();
            // The bench may have ended.
            let _ = self.granted.send(Term { number, began: Instant::now() });
            json!({"number": number, "length": self.length})
        };
        let body = body.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        format!("{head} {}\r\n\r\n{body}", body.len())
    }
}

/// The term of a write. The process writes to a namespace with its number.
fn written_in(target: &str) -> Option<u64> {
    target.strip_prefix("/api/v1/namespaces/")?.split('/').next()?.parse().ok()
}

/// The target and the length of the first request, if all its bytes have arrived.
fn first_request(received: &[u8]) -> Option<(&str, usize)> {
    const END: &[u8] = b"\r\n\r\n";
    let head = received.windows(END.len()).position(|bytes| bytes == END)? + END.len();
    let text = str::from_utf8(&received[..head]).ok()?;
    let body = text.lines().filter_map(|line| line.split_once(':'));
    let mut body = body.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = head + body.next().map_or(Some(0), |(_, length)| length.trim().parse().ok())?;
    Some((text.split(' ').nth(1)?, length)).filter(|_| received.len() >= length)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, desk: Desk) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, acceptor.clone(), desk.clone()));
    }
}

/// Answers the requests of a connection until the client closes the connection.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, desk: Desk) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let (mut received, mut bytes) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        while let Some((target, length)) = first_request(&received) {
            let answer = desk.answer(target);
            received.drain(..length);
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
        }
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            length => received.extend_from_slice(&bytes[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_after_the_end_of_its_term_is_late() {
        let mut arrivals = Arrivals::default();
        for term in 1..=4 {
            assert_eq!(arrivals.begin(), term);
            arrivals.add(term);
            if term == 3 {
                arrivals.add(2);
            }
            if term != 4 {
                assert_eq!((arrivals.end(term - 1), arrivals.end(term)), (None, Some(1)));
            }
            if term == 1 {
                arrivals.add(term);
            }
        }
        arrivals.add(4);
        assert_eq!((arrivals.end(4), arrivals.late), (Some(2), [1, 2].into()));
    }

    #[test]
    fn a_request_is_whole_with_its_last_byte() {
        let write = b"POST /api/v1/namespaces/17/pods?a=b HTTP/1.1\r\nContent-Length: 3\r\n\r\n{ }GET";
        let whole = write.len() - "GET".len();
        for length in 0..whole {
            assert_eq!(first_request(&write[..length]), None, "{length}");
        }
        let (target, length) = first_request(write).unwrap();
        assert_eq!((length, written_in(target)), (whole, Some(17)));
        let read = b"GET /term HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(first_request(read), Some((TERM, read.len())));
        assert_eq!(written_in(TERM), None);
    }
}
