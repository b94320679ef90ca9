//! A thread that writes to standard error: a pipe without a reader must block neither reconciles nor probes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for a slow reader. Further lines are dropped and counted.
const WAITING: usize = 1024;

/// How long a shutdown waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(1);

/// The queue of log lines. Writing to it never blocks.
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

    /// Waits up to [`FLUSH`] until all earlier lines are written.
    pub fn drain(&self) {
        let (done, written) = sync_channel(1);
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH);
        }
    }
}

impl Write for Lines {
    /// Queues a line. The log's formatter passes whole lines.
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

/// Writes the queued lines. A line is lost if the write fails, because standard error is closed or the disk is full.
fn write_all(mut output: impl Write, receiver: &Receiver<Message>, dropped: &AtomicU64) {
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Empty) => {
                let lines = dropped.swap(0, Ordering::Relaxed);
                if lines > 0 {
                    tracing::warn!(lines, "dropped log lines: the reader of standard error is too slow");
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

    /// An output that writes a line when the test allows it.
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
    fn logging_never_blocks_and_keeps_the_order() {
        let (go, let_go) = std::sync::mpsc::channel();
        let (taken, lines) = std::sync::mpsc::channel();
        let mut log = Lines::to(Slow { let_go, taken }).unwrap();
        for number in 0..WAITING + 100 {
            log.write_all(number.to_string().as_bytes()).unwrap();
        }
        // The thread may already have taken one line.
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!((99..=100).contains(&dropped), "{dropped}");
        for number in 0..WAITING {
            go.send(()).unwrap();
            assert_eq!(lines.recv().unwrap(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn drain_waits_for_earlier_lines() {
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
