//! Standard error, written by a thread of its own: a reader that takes nothing stops neither messages nor the signs of
//! life that a broker and a kubelet expect.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that may wait for a slow reader; more are dropped, and counted.
const WAITING: usize = 1_000;

/// How long an end waits for a slow reader.
const END: Duration = Duration::from_secs(1);

/// How soon it is looked again whether there is room for what is said at the end.
const SOON: Duration = Duration::from_millis(5);

/// Standard error; none where there is no thread to be had for it.
static STDERR: OnceLock<Option<Notes>> = OnceLock::new();

fn stderr() -> Option<&'static Notes> {
    STDERR.get_or_init(|| Notes::to(io::stderr()).ok()).as_ref()
}

/// A line on stderr. It waits for nobody: where nobody reads it, it is not missed.
pub fn note(line: &str) {
    if let Some(notes) = stderr() {
        notes.say(line);
    } else {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// The end: says a last line, where there is one, and waits until all that was said is written, but not for long.
pub fn conclude(last: Option<&str>) {
    if let Some(notes) = stderr() {
        notes.conclude(last);
    } else if let Some(line) = last {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Where lines go.
#[derive(Debug)]
struct Notes {
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    /// With its end.
    Line(String),
    /// Tells when all that was said before it is written.
    Flush(SyncSender<()>),
}

impl Message {
    fn line(line: &str) -> Self {
        Self::Line(format!("{line}\n"))
    }
}

impl Notes {
    /// Starts the thread that writes to `output`.
    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, to_write) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        thread::Builder::new().name("notes".to_owned()).spawn(move || write_all(output, &to_write, &lost))?;
        Ok(Self { messages, dropped })
    }

    fn say(&self, line: &str) {
        if self.messages.try_send(Message::line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn conclude(&self, last: Option<&str>) {
        let until = Instant::now() + END;
        let (done, written) = sync_channel(1);
        if last.is_none_or(|line| self.insist(Message::line(line), until))
            && self.insist(Message::Flush(done), until)
        {
            let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Hands a message over as soon as there is room, and says whether there was some in time.
    fn insist(&self, mut message: Message, until: Instant) -> bool {
        loop {
            match self.messages.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) if Instant::now() < until => {
                    message = back;
                    thread::sleep(SOON);
                }
                Err(_) => return false,
            }
        }
    }
}

/// Writes what comes. What cannot be written, as where standard error is closed, is lost.
fn write_all(mut output: impl Write, messages: &Receiver<Message>, dropped: &AtomicU64) {
    loop {
        let message = match messages.try_recv() {
            Err(TryRecvError::Empty) => {
                let lines = dropped.swap(0, Ordering::Relaxed);
                if lines > 0 {
                    let line = format!("{lines} lines were dropped: standard error is read too slowly\n");
                    let _ = output.write_all(line.as_bytes());
                }
                messages.recv().ok()
            }
            received => received.ok(),
        };
        match message {
            Some(Message::Line(line)) => {
                let _ = output.write_all(line.as_bytes());
            }
            Some(Message::Flush(done)) => {
                let _ = done.try_send(());
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Takes a line whenever it is let, and tells which.
    struct Slow {
        let_go: Receiver<()>,
        taken: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.let_go.recv().map_err(io::Error::other)?;
            self.taken.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Notes, Sender<()>, Receiver<String>) {
        let (go, let_go) = channel();
        let (taken, lines) = channel();
        (Notes::to(Slow { let_go, taken }).unwrap(), go, lines)
    }

    #[test]
    fn who_notes_something_never_waits_and_what_is_dropped_is_counted() {
        let (notes, go, lines) = slow();
        for number in 0..WAITING + 100 {
            notes.say(&number.to_string());
        }
        let dropped = notes.dropped.load(Ordering::Relaxed);
        // One may be in the hands of the thread already.
        assert!((99..=100).contains(&dropped), "{dropped}");
        for number in 0..WAITING + 100 - usize::try_from(dropped).unwrap() {
            go.send(()).unwrap();
            assert_eq!(lines.recv().unwrap(), format!("{number}\n"));
        }
        go.send(()).unwrap();
        assert_eq!(
            lines.recv().unwrap(),
            format!("{dropped} lines were dropped: standard error is read too slowly\n")
        );
    }

    #[test]
    fn the_last_line_is_written_though_there_was_no_room_for_it() {
        let (notes, go, lines) = slow();
        for number in 0..WAITING + 100 {
            notes.say(&number.to_string());
        }
        // The reader goes on.
        for _ in 0..WAITING + 100 {
            go.send(()).unwrap();
        }
        notes.conclude(Some("error: why"));
        assert!(lines.try_iter().any(|line| line == "error: why\n"));
    }

    #[test]
    fn an_end_waits_for_what_was_said() {
        let (notes, go, lines) = slow();
        for _ in 0..3 {
            go.send(()).unwrap();
            notes.say("line");
        }
        notes.conclude(None);
        assert_eq!(lines.try_iter().count(), 3);
    }
}
