//! Standard output on a separate thread. A blocked reader stops the lines, but not the answers to the broker
//! and the kubelet. One text is in progress at a time, so a slow reader uses no memory.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A larger buffer is not reused for the next text.
const KEPT: usize = 1 << 20;

/// The pause before a retry if standard output is non-blocking.
const PATIENCE: Duration = Duration::from_millis(5);

/// Prints one text after another.
#[derive(Debug)]
pub struct Printer {
    texts: SyncSender<Vec<u8>>,
    printed: UnboundedReceiver<io::Result<Vec<u8>>>,
    busy: bool,
}

impl Printer {
    /// Prints to standard output.
    pub fn start() -> io::Result<Self> {
        // Not `Stdout`, which searches all text for line ends.
        Self::to(io::stdout().as_fd().try_clone_to_owned()?)
    }

    /// Prints to a file.
    pub fn to(output: OwnedFd) -> io::Result<Self> {
        let (texts, to_print) = sync_channel(1);
        let (done, printed) = unbounded_channel();
        thread::Builder::new()
            .name("printer".to_owned())
            .spawn(move || print_all(&mut File::from(output), &to_print, &done))?;
        Ok(Self { texts, printed, busy: false })
    }

    /// Whether a text is in progress.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Prints a text. No other text may be in progress.
    pub fn print(&mut self, text: Vec<u8>) {
        debug_assert!(!self.busy);
        self.busy = true;
        // If the thread is gone, `printed` returns an error.
        let _ = self.texts.send(text);
    }

    /// Waits until the text is printed, and returns its buffer. Without a text it waits permanently. Cancel
    /// safe.
    pub async fn printed(&mut self) -> io::Result<Vec<u8>> {
        if !self.busy {
            return std::future::pending().await;
        }
        let printed = self.printed.recv().await;
        self.busy = false;
        printed.unwrap_or_else(|| Err(io::Error::other("the printer is gone")))
    }
}

fn print_all(output: &mut File, texts: &Receiver<Vec<u8>>, done: &UnboundedSender<io::Result<Vec<u8>>>) {
    for mut text in texts {
        let printed = print(output, &text).map(|()| {
            text.clear();
            if text.capacity() > KEPT { Vec::new() } else { text }
        });
        if done.send(printed).is_err() {
            return;
        }
    }
}

fn print(output: &mut File, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match output.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A process that shares the pipe has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PATIENCE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn prints_texts_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::to(writer.into()).unwrap();
        for text in ["a\n", "b\n"] {
            printer.print(text.into());
            assert!(printer.is_busy());
            assert!(printer.printed().await.unwrap().is_empty());
        }
        drop(printer);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "a\nb\n");
    }

    #[tokio::test]
    async fn a_closed_reader_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut printer = Printer::to(writer.into()).unwrap();
        printer.print(b"a\n".to_vec());
        assert_eq!(printer.printed().await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
