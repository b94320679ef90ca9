//! The process between the machine and a cluster with real nodes. It forwards loopback ports of the machine
//! to the same ports in the cluster's network, and serves images to the nodes.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{network, registry};
use crate::cluster::processes::{Launch, Process};
use crate::interrupt;

/// The arguments of the gateway, which only this program starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's network namespace
    #[arg(long)]
    network: PathBuf,
    /// A port to forward
    #[arg(long)]
    port: Vec<u16>,
    /// The folder with the archives of images
    #[arg(long)]
    images: Option<PathBuf>,
}

/// The gateway of a network, ready to start.
pub(crate) fn launch<'a>(
    name: &'a str,
    keeper: &Process,
    ports: &[u16],
    images: Option<&Path>,
    log: PathBuf,
) -> Result<Launch<'a>> {
    let mut command = Command::new(super::this_program()?);
    command.args(["cluster", "gateway", "--network"]).arg(network::namespace(keeper)).current_dir("/");
    for port in ports {
        command.args(["--port", &port.to_string()]);
    }
    if let Some(images) = images {
        command.arg("--images").arg(images);
    }
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let fingerprint = format!("{} {}", words.join(" "), keeper.started);
    let port = ports.first().copied().unwrap_or_default();
    Ok(Launch { name, command, port, fingerprint, stdout: log.clone(), stderr: log })
}

/// Forwards connections until it is interrupted.
pub fn run(args: &Args) -> Result<()> {
    let network = File::open(&args.network)
        .with_context(|| format!("cannot open the network {}", args.network.display()))?;
    let network = Arc::new(network);
    let mut threads = Vec::new();
    if let Some(images) = &args.images {
        let listener = within(&network, || {
            TcpListener::bind((network::CONTROL_PLANE, registry::PORT)).context("the image port is in use")
        })?;
        let images = images.clone();
        threads.push(thread::spawn(move || registry::serve(listener, images)));
    }
    for &port in &args.port {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("port {port} of 127.0.0.1 is in use"))?;
        let network = Arc::clone(&network);
        threads.push(thread::spawn(move || accept(&listener, &network, port)));
    }
    // Until an interrupt, or until a thread fails.
    while threads.iter().all(|thread| !thread.is_finished()) {
        if interrupt::check().is_err() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    for thread in threads.into_iter().filter(thread::JoinHandle::is_finished) {
        thread.join().map_err(|_| anyhow!("a thread of the gateway died"))??;
    }
    Ok(())
}

/// Runs `work` in another network namespace. A socket that it opens stays in that namespace.
pub(super) fn within<T: Send>(network: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let entered = scope.spawn(|| enter(network).and_then(|()| work()));
        entered.join().map_err(|_| anyhow!("a thread of the gateway died"))?
    })
}

/// Moves this thread into a network namespace.
#[cfg(target_os = "linux")]
fn enter(network: &File) -> Result<()> {
    use std::os::fd::AsFd as _;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the cluster's network")
}

#[cfg(not(target_os = "linux"))]
fn enter(_: &File) -> Result<()> {
    anyhow::bail!("only Linux has network namespaces")
}

fn accept(listener: &TcpListener, network: &Arc<File>, port: u16) -> Result<()> {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // For instance too many connections: there may be room later.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let network = Arc::clone(network);
        thread::spawn(move || {
            let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot connect");
            // Without an answer, the client's connection is closed.
            if let Ok(inner) = within(&network, connect) {
                copy(&stream, &inner);
            }
        });
    }
}

/// Copies bytes in both directions, until both sides have closed.
fn copy(one: &TcpStream, other: &TcpStream) {
    let half = |mut from: &TcpStream, mut to: &TcpStream| {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
        // A side that died does not read either.
        let _ = from.shutdown(Shutdown::Read);
    };
    let _ = one.set_nodelay(true);
    let _ = other.set_nodelay(true);
    thread::scope(|scope| {
        scope.spawn(|| half(one, other));
        half(other, one);
    });
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn copies_both_ways_until_both_sides_close() {
        let pair = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let ((mut client, outer), (inner, mut server)) = (pair(), pair());
        let passing = thread::spawn(move || copy(&outer, &inner));
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut question = String::new();
        server.read_to_string(&mut question).unwrap();
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        passing.join().unwrap();
        assert_eq!((question.as_str(), reply.as_str()), ("question", "answer"));
    }
}
