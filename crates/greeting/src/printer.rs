//! Standard output. One thread writes it, so that a blocked pipe stops no reconcile.
//!
//! The controller reserves bytes for a line before it claims the line. So a claimed line always fits into the
//! bounded queue. While writes fail there is no room, so that no line is claimed that cannot be printed.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may wait for a slow reader.
const WAITING: u32 = 4 << 20;
/// How long an orderly exit waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(8);
/// The pause after a failed write.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause while the reader catches up.
const SOON: Duration = Duration::from_millis(10);

/// Room in the queue, until its last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// None by default, as in a queue without a bound.
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Room {
    /// Shows whether the lines in this room still wait.
    pub fn waiting(&self) -> Waiting {
        self.permit.as_ref().map(Arc::downgrade).unwrap_or_default()
    }
}

/// Lines in the queue, which it does not hold. While they wait, it has a strong count.
pub type Waiting = Weak<OwnedSemaphorePermit>;

/// Why standard output has no room for lines. It is shown as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum NoRoom {
    /// Lines wait for its reader.
    #[strum(to_string = "The reader of the manager's standard output is too slow.")]
    Full,
    /// Writing to it fails.
    #[strum(to_string = "Writing to the manager's standard output fails.")]
    Failing,
}

impl PartialEq for Room {
    /// All rooms are equal.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Prints lines. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Printer {
    sender: Sender<Message>,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    failing: AtomicBool,
    unwritten: AtomicUsize,
}

#[derive(Debug)]
enum Message {
    Lines { lines: Vec<String>, room: Room },
    Flush(SyncSender<()>),
}

impl Printer {
    /// Starts the thread that writes to standard output.
    pub fn stdout() -> std::io::Result<Self> {
        // Without the buffer of `Stdout`, which does not report the written bytes of a failed write.
        Self::start(File::from(std::io::stdout().as_fd().try_clone_to_owned()?))
    }

    /// Starts the thread that writes to `output`.
    pub fn start(output: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let shared = Arc::<Shared>::default();
        let state = shared.clone();
        std::thread::Builder::new()
            .name("printer".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || print_all(output, &receiver, &state))?;
        let room = Arc::new(Semaphore::new(usize::try_from(WAITING).unwrap_or(usize::MAX)));
        Ok(Self { sender, room, shared })
    }

    /// Reserves this number of bytes, at most the whole queue, or returns the reason why there is no room.
    pub fn reserve(&self, bytes: usize) -> Result<Room, NoRoom> {
        if self.shared.failing.load(Ordering::Relaxed) {
            return Err(NoRoom::Failing);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(WAITING);
        match self.room.clone().try_acquire_many_owned(bytes) {
            Ok(permit) => Ok(Room { permit: Some(Arc::new(permit)) }),
            Err(_) => Err(NoRoom::Full),
        }
    }

    /// Prints lines in their reserved room, in order, without other lines in between. Never waits.
    pub fn print(&self, lines: Vec<String>, room: Room) -> Result<(), String> {
        self.shared.unwritten.fetch_add(lines.len(), Ordering::Relaxed);
        let sent = self.sender.send(Message::Lines { lines, room });
        sent.map_err(|_| "the printer has exited; a line is lost".to_owned())
    }

    /// Bytes that waiting lines reserve.
    pub fn waiting(&self) -> u32 {
        WAITING.saturating_sub(self.room.available_permits().try_into().unwrap_or(WAITING))
    }

    /// Waits up to `FLUSH` until everything is written. The error is the number of lines that are not.
    pub fn flush(&self) -> Result<(), usize> {
        let (done, written) = sync_channel(1);
        let failing = self.shared.failing.load(Ordering::Relaxed);
        let flushed =
            !failing && self.sender.send(Message::Flush(done)).is_ok() && written.recv_timeout(FLUSH).is_ok();
        if flushed { Ok(()) } else { Err(self.shared.unwritten.load(Ordering::Relaxed)) }
    }
}

fn print_all(mut output: impl Write, receiver: &Receiver<Message>, shared: &Shared) {
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Lines { lines, room } => {
                let count = lines.len();
                let mut text = lines.join("\n");
                text.push('\n');
                write_out(&mut output, text.as_bytes(), &shared.failing);
                shared.unwritten.fetch_sub(count, Ordering::Relaxed);
                drop(room);
            }
            Message::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// Writes every byte exactly once, and retries without end.
fn write_out(output: &mut impl Write, mut rest: &[u8], failing: &AtomicBool) {
    while !rest.is_empty() {
        let written = output.write(rest).and_then(|count| match count {
            0 => Err(ErrorKind::WriteZero.into()),
            count => Ok(count),
        });
        match written {
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                if failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("standard output accepts writes again");
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A process that shares the file has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(SOON),
            Err(error) => {
                if !failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "cannot write to standard output; printing no lines until it works again");
                }
                std::thread::sleep(AGAIN);
            }
        }
    }
    let _ = output.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Mutex;

    /// Accepts bytes as in its script, then all; none while it fails.
    #[derive(Clone, Default)]
    struct Scripted {
        fails: Arc<AtomicBool>,
        script: Arc<Mutex<Vec<io::Result<usize>>>>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Scripted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.fails.load(Ordering::SeqCst) {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let count = self.script.lock().unwrap().pop().unwrap_or(Ok(bytes.len()))?.min(bytes.len());
            self.taken.lock().unwrap().extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Accepts nothing until it gets a message.
    struct Blocked(Receiver<()>);

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn print(printer: &Printer, lines: &[&str]) {
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        let room = printer.reserve(lines.iter().map(String::len).sum()).unwrap();
        printer.print(lines, room).unwrap();
    }

    #[test]
    fn a_flush_waits_for_the_printed_lines() {
        let output = Scripted::default();
        let printer = Printer::start(output.clone()).unwrap();
        print(&printer, &["a", "b"]);
        print(&printer, &["c"]);
        assert_eq!(printer.flush(), Ok(()));
        assert_eq!(*output.taken.lock().unwrap(), b"a\nb\nc\n");
        assert_eq!(printer.waiting(), 0, "the room is free again");
    }

    #[test]
    fn a_blocked_reader_fills_the_queue_and_blocks_no_print() {
        let (read, blocked) = channel();
        let printer = Printer::start(Blocked(blocked)).unwrap();
        let line = "x".repeat(64 * 1024);
        let mut printed = 0;
        while let Ok(room) = printer.reserve(line.len()) {
            printer.print(vec![line.clone()], room).unwrap();
            printed += 1;
        }
        assert_eq!(printed, 64, "4 MiB");
        assert_eq!(printer.reserve(1).unwrap_err(), NoRoom::Full);
        // The reader continues, and so do the waiting lines.
        for _ in 0..printed {
            read.send(()).unwrap();
        }
        assert_eq!(printer.flush(), Ok(()));
        assert!(printer.reserve(1).is_ok());
    }

    #[test]
    fn an_oversized_line_takes_the_whole_queue() {
        let printer = Printer::start(Scripted::default()).unwrap();
        let all = printer.reserve(usize::MAX).unwrap();
        assert_eq!(printer.reserve(1).unwrap_err(), NoRoom::Full);
        drop(all);
        assert!(printer.reserve(1).is_ok());
    }

    #[test]
    fn writes_every_byte_once_despite_failures() {
        let output = Scripted::default();
        *output.script.lock().unwrap() =
            vec![Ok(2), Err(ErrorKind::WouldBlock.into()), Err(ErrorKind::Interrupted.into()), Ok(1)];
        output.fails.store(true, Ordering::SeqCst);
        let printer = Printer::start(output.clone()).unwrap();
        print(&printer, &["abcdef"]);
        // While the write fails, there is no room.
        while printer.reserve(1).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(printer.reserve(1).unwrap_err(), NoRoom::Failing);
        assert_eq!(printer.flush(), Err(1), "a flush does not wait for failing writes");
        output.fails.store(false, Ordering::SeqCst);
        while printer.reserve(1).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(printer.flush(), Ok(()));
        assert_eq!(*output.taken.lock().unwrap(), b"abcdef\n");
    }
}
