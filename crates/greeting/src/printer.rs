//! Standard output: one thread writes it, so that a blocked pipe stops no pass.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines that may wait for a slow reader.
const WAITING: usize = 16_384;
/// How long an orderly end waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(3);

/// Where lines go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Printer {
    sender: SyncSender<Message>,
}

#[derive(Debug)]
enum Message {
    Lines(Vec<String>),
    Flush(SyncSender<()>),
}

impl Printer {
    /// Starts the thread that writes to `output`.
    pub fn start(output: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("printer".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || print_all(output, &receiver))?;
        Ok(Self { sender })
    }

    /// Prints lines, in order and without others in between. Never waits.
    pub fn print(&self, lines: Vec<String>) -> Result<(), String> {
        self.sender.try_send(Message::Lines(lines)).map_err(|error| match error {
            TrySendError::Full(_) => {
                format!("{WAITING} lines wait for whoever reads standard output: a line is lost")
            }
            TrySendError::Disconnected(_) => "standard output is closed: a line is lost".to_owned(),
        })
    }

    /// Waits until everything printed so far is written, but not for ever. True where it is.
    pub fn flush(&self) -> bool {
        let (done, written) = sync_channel(1);
        self.sender.try_send(Message::Flush(done)).is_ok() && written.recv_timeout(FLUSH).is_ok()
    }
}

fn print_all(mut output: impl Write, receiver: &Receiver<Message>) {
    let mut broken = false;
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Lines(lines) => {
                let mut text = lines.join("\n");
                text.push('\n');
                let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
                match written {
                    Ok(()) => broken = false,
                    Err(error) if !broken => {
                        tracing::error!(%error, "standard output cannot be written: lines are lost");
                        broken = true;
                    }
                    Err(_) => {}
                }
            }
            Message::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flush_comes_after_what_was_printed() {
        let buffer = Buffer::default();
        let printer = Printer::start(buffer.clone()).unwrap();
        printer.print(vec!["a".into(), "b".into()]).unwrap();
        printer.print(vec!["c".into()]).unwrap();
        assert!(printer.flush());
        assert_eq!(*buffer.0.lock().unwrap(), b"a\nb\nc\n");
    }

    #[test]
    fn a_blocked_reader_blocks_nobody() {
        struct Blocked;
        impl Write for Blocked {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                std::thread::park();
                Ok(0)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let printer = Printer::start(Blocked).unwrap();
        let lost = (0..=WAITING + 1).filter(|_| printer.print(vec!["x".into()]).is_err()).count();
        assert!(lost > 0);
    }
}
