//! Follows the printed lines of a contender, with the time at which each was read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::peer::GLANCE;

/// The count of each line, and when it was first read.
pub type Seen = HashMap<String, (usize, Instant)>;

/// Follows a file from its present end on.
#[derive(Debug)]
pub struct Lines {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Lines {
    /// Follows a file, and creates it if it does not exist yet.
    pub fn follow(path: &Path) -> Result<Self> {
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        file.seek(SeekFrom::End(0)).with_context(|| format!("cannot read {}", path.display()))?;
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (into, until) = (seen.clone(), stop.clone());
        let reader = thread::spawn(move || read(BufReader::new(file), &into, &until));
        Ok(Self { seen, stop, reader: Some(reader) })
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of these lines were read at least once.
    pub fn count(&self, expected: &[String]) -> usize {
        let seen = self.seen();
        expected.iter().filter(|line| seen.contains_key(*line)).count()
    }

    pub fn with_prefix(&self, prefix: &str) -> usize {
        self.seen().iter().filter(|(line, _)| line.starts_with(prefix)).map(|(_, (count, _))| count).sum()
    }

    /// The count of lines that are not ticks.
    pub fn but_ticks(&self) -> usize {
        self.seen().iter().filter(|(line, _)| !line.starts_with("Timer: ")).map(|(_, (count, _))| count).sum()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(mut file: BufReader<File>, seen: &Mutex<Seen>, stop: &AtomicBool) {
    let mut line = String::new();
    while !stop.load(Ordering::Relaxed) {
        match file.read_line(&mut line) {
            Ok(0) => thread::sleep(GLANCE),
            Ok(_) if line.ends_with('\n') => {
                let now = Instant::now();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.entry(line.trim_end().to_owned()).or_insert((0, now)).0 += 1;
                line.clear();
            }
            // The rest of the line is not there yet.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn counts_only_new_lines() {
        let path = std::env::temp_dir().join(format!("quintet-lines-{}", std::process::id()));
        std::fs::write(&path, "before\n").unwrap();
        let lines = Lines::follow(&path).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        for part in ["Timer: a\nTimer", ": a\n", "Create: b\nhalf"] {
            file.write_all(part.as_bytes()).unwrap();
        }
        while lines.but_ticks() < 1 {
            thread::yield_now();
        }
        assert_eq!(lines.with_prefix("Timer: "), 2);
        assert_eq!(lines.count(&["Create: b".to_owned(), "before".to_owned(), "half".to_owned()]), 1);
        drop(lines);
        std::fs::remove_file(path).unwrap();
    }
}
