//! Standard error, written by a thread of its own: a pipe that nobody reads must stop neither passes nor probes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for a slow reader; more are dropped, and counted.
const WAITING: usize = 1024;

/// How long an orderly end waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(1);

/// Where lines of the log go. Cheap to clone; it never waits.
#[derive(Clone, Debug)]
pub struct Lines {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl Lines {
    /// Starts the thread that writes to `output`.
    pub fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = dropped.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || write_all(output, &receiver, &lost))?;
        Ok(Self { sender, dropped })
    }

    /// Waits until everything that was logged so far is written, but not for long.
    pub fn drain(&self) {
        let (done, written) = sync_channel(1);
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH);
        }
    }
}

impl Write for Lines {
    /// A line, whole: so the log's format hands it over.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Writes what comes. What cannot be written (standard error is closed, the disk is full) is lost.
fn write_all(mut output: impl Write, receiver: &Receiver<Message>, dropped: &AtomicU64) {
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Empty) => {
                let lines = dropped.swap(0, Ordering::Relaxed);
                if lines > 0 {
                    tracing::warn!(lines, "lines of the log were dropped: standard error is read too slowly");
                }
                receiver.recv()
            }
            Err(TryRecvError::Disconnected) => return,
        };
        match message {
            Ok(Message::Line(line)) => {
                let _ = output.write_all(&line);
            }
            Ok(Message::Flush(done)) => {
                let _ = done.try_send(());
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    /// Takes a line whenever it is let, and tells which.
    struct Slow {
        let_go: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.let_go.recv().map_err(io::Error::other)?;
            self.taken.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_never_waits_and_lines_keep_their_order() {
        let (go, let_go) = std::sync::mpsc::channel();
        let (taken, lines) = std::sync::mpsc::channel();
        let mut log = Lines::to(Slow { let_go, taken }).unwrap();
        for number in 0..WAITING + 100 {
            log.write_all(number.to_string().as_bytes()).unwrap();
        }
        // One may be in the hands of the thread already.
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!((99..=100).contains(&dropped), "{dropped}");
        for number in 0..WAITING {
            go.send(()).unwrap();
            assert_eq!(lines.recv().unwrap(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn an_end_waits_for_what_was_logged() {
        let (taken, lines) = std::sync::mpsc::channel();
        let (go, let_go) = std::sync::mpsc::channel();
        let mut log = Lines::to(Slow { let_go, taken }).unwrap();
        for _ in 0..3 {
            go.send(()).unwrap();
            log.write_all(b"line\n").unwrap();
        }
        log.drain();
        assert_eq!(lines.try_iter().count(), 3);
    }
}
