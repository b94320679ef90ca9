//! A TCP proxy to the API server that tests and benches can break: it forwards, rejects or silences
//! connections, or drops their packets.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::ports;

/// How soon the proxy notices a change of mode.
const TICK: Duration = Duration::from_millis(20);

/// A proxy on a loopback port. Dropping it stops it.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: SocketAddr,
    /// The proxy does not listen, and closes its connections.
    gone: AtomicBool,
    ended: AtomicBool,
    /// Connections with a number below this forward nothing and stay open.
    silent_below: AtomicUsize,
    accepted: AtomicUsize,
    /// The client and the target of each connection.
    open: Mutex<Vec<[TcpStream; 2]>>,
}

impl Proxy {
    /// Forwards to a port of 127.0.0.1.
    pub fn to(port: u16) -> Result<Self> {
        // A port that no outgoing connection gets while the proxy does not listen.
        let address = SocketAddr::from(([127, 0, 0, 1], ports::one()?));
        let listener = listen(address).with_context(|| format!("cannot listen on {address}"))?;
        let state = Arc::new(State {
            target: SocketAddr::from(([127, 0, 0, 1], port)),
            gone: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            silent_below: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let accepting = state.clone();
        thread::spawn(move || accepting.accept(listener, address));
        Ok(Self { address, state })
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Closes all connections and accepts no new ones, like a server that is down.
    pub fn cut(&self) {
        self.state.gone.store(true, Ordering::SeqCst);
        for stream in self.state.open().drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Listens again.
    pub fn restore(&self) {
        self.state.gone.store(false, Ordering::SeqCst);
    }

    /// Stops forwarding on the open connections; new ones work.
    pub fn silence(&self) {
        self.state.silent_below.store(self.accepted(), Ordering::SeqCst);
    }

    /// Drops the packets of the open connections and acknowledges none; new connections work.
    #[cfg(target_os = "linux")]
    pub fn unplug(&self) -> Result<()> {
        // A packet filter that keeps 0 bytes of each packet: BPF_RET with BPF_K, linux/bpf_common.h.
        let nothing = [socket2::SockFilter::new(0x06, 0, 0, 0)];
        self.silence();
        for [client, _] in self.state.open().iter() {
            socket2::SockRef::from(client).attach_filter(&nothing).context("cannot filter packets")?;
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.cut();
    }
}

/// A listener that does not block.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl State {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<[TcpStream; 2]>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: TcpListener, address: SocketAddr) {
        let mut listening = Some(listener);
        while !self.ended.load(Ordering::SeqCst) {
            if self.gone.load(Ordering::SeqCst) {
                listening = None;
                thread::sleep(TICK);
                continue;
            }
            if listening.is_none() {
                listening = listen(address).ok();
            }
            let Some(listener) = &listening else {
                thread::sleep(TICK);
                continue;
            };
            match listener.accept() {
                Ok((client, _)) => {
                    let number = self.accepted.fetch_add(1, Ordering::SeqCst);
                    let Ok(server) = TcpStream::connect(self.target) else { continue };
                    let _ = client.set_nonblocking(false);
                    let pairs =
                        [(client.try_clone(), server.try_clone()), (server.try_clone(), client.try_clone())];
                    {
                        // A connection accepted during `cut` is closed too.
                        let mut open = self.open();
                        if self.gone.load(Ordering::SeqCst) {
                            continue;
                        }
                        open.push([client, server]);
                    }
                    for (from, to) in pairs {
                        let (Ok(from), Ok(to)) = (from, to) else { continue };
                        let state = self.clone();
                        thread::spawn(move || state.copy(from, to, number));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
                Err(_) => thread::sleep(TICK),
            }
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, number: usize) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count) = from.read(&mut buffer) {
            if count == 0 {
                break;
            }
            // Bytes sent over a silent connection are lost.
            if number >= self.silent_below.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
