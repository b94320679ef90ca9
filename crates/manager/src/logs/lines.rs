//! A thread that writes to standard error: a pipe without a reader must block neither reconciles nor probes.
//!
//! tracing-appender does not log how many lines it dropped. If its queue is full at the end, it prints to standard
//! output, which belongs to Greetings.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait for a slow reader. Further lines are dropped and counted.
const WAITING: usize = 1024;

/// How long a shutdown waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(1);

/// The queue of log lines. Writing to it never blocks.
#[derive(Clone, Debug)]
pub struct Lines {
    sender: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines that are not written yet.
    waiting: AtomicUsize,
    /// Dropped lines that no warning has reported yet.
    dropped: AtomicUsize,
}

impl Lines {
    /// Starts the thread that writes to `output`.
    pub fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || write_all(output, &receiver, &shared))?;
        Ok(Self { sender, counts })
    }

    /// Waits up to [`FLUSH`] until all lines and the warning about dropped lines are written.
    pub fn drain(&self) {
        let (until, Counts { waiting, dropped }) = (Instant::now() + FLUSH, &*self.counts);
        // Read `dropped` first: the log's thread queues its warning before it subtracts from `dropped`.
        let unwritten = || dropped.load(Ordering::SeqCst) + waiting.load(Ordering::SeqCst);
        while unwritten() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Write for Lines {
    /// Queues a line. The log's formatter passes whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.counts.waiting.fetch_add(1, Ordering::SeqCst);
        if self.sender.try_send(line.to_vec()).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::SeqCst);
            self.counts.waiting.fetch_sub(1, Ordering::SeqCst);
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
fn write_all(mut output: impl Write, receiver: &Receiver<Vec<u8>>, counts: &Counts) {
    loop {
        let line = match receiver.try_recv() {
            Ok(line) => line,
            Err(TryRecvError::Empty) => {
                let lines = counts.dropped.load(Ordering::SeqCst);
                if lines > 0 {
                    tracing::warn!(lines, "dropped log lines: the reader of standard error is too slow");
                    counts.dropped.fetch_sub(lines, Ordering::SeqCst);
                }
                let Ok(line) = receiver.recv() else { return };
                line
            }
            Err(TryRecvError::Disconnected) => return,
        };
        let _ = output.write_all(&line);
        counts.waiting.fetch_sub(1, Ordering::SeqCst);
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
        let dropped = log.counts.dropped.load(Ordering::SeqCst);
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

    #[test]
    fn drain_waits_for_a_full_queue() {
        let (taken, lines) = std::sync::mpsc::channel();
        let (go, let_go) = std::sync::mpsc::channel();
        let mut log = Lines::to(Slow { let_go, taken }).unwrap();
        for _ in 0..WAITING + 100 {
            log.write_all(b"line\n").unwrap();
        }
        let kept = WAITING + 100 - log.counts.dropped.load(Ordering::SeqCst);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            for _ in 0..kept {
                go.send(()).unwrap();
            }
        });
        log.drain();
        assert_eq!(lines.try_iter().count(), kept);
    }
}
