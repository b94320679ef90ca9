//! File locks between commands: one build at a time, and one command at a time for a cluster. The kernel
//! releases a lock when its holder exits.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::interrupt;
use crate::progress::Step;

/// Takes the lock of a file and holds it until the value is dropped. While it waits, the user sees `holder`.
pub(crate) fn take(file: &Path, holder: &str) -> Result<File> {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let mut waiting = None;
    loop {
        let lock = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        match lock.try_lock() {
            Ok(()) if is_still(&lock, file) => return Ok(lock),
            // The holder removed the file, so this lock excludes no other process.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                interrupt::check()?;
                waiting.get_or_insert_with(|| Step::start_long(format!("waiting for {holder}"))).tick();
                thread::sleep(Duration::from_millis(100));
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", file.display()));
            }
        }
    }
}

fn is_still(open: &File, file: &Path) -> bool {
    match (open.metadata(), fs::metadata(file)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}
