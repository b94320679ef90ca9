//! Ctrl-C. A signal only sets a flag, so that everything that was started is stopped in order. Every wait in
//! this crate checks the flag. A second Ctrl-C exits at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The user asked to stop.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag that [`check`] reads. Only a program calls it, and once.
pub fn install() -> Result<()> {
    let interrupted = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(interrupted)))
            .context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// Fails with [`Interrupted`] after the user asked to stop.
pub fn check() -> Result<()> {
    match FLAG.get() {
        Some(interrupted) if interrupted.load(Ordering::Relaxed) => Err(Interrupted.into()),
        _ => Ok(()),
    }
}

/// Waits for `time`, or until the user asks to stop.
pub fn pause(time: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        check()?;
        thread::sleep(time.saturating_sub(began.elapsed()).min(Duration::from_millis(50)));
    }
    Ok(())
}
