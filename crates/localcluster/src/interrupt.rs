//! Ctrl-C and time limits. A signal only sets a flag, so that everything that was started is stopped in order.
//! Every wait in this crate checks the flag and the time limit. A second Ctrl-C exits at once.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

thread_local! {
    /// The end of the time limit of [`within`]. Only the thread that has the limit waits for what it started.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The reason to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The user asked to stop.
    ByUser,
    /// The time limit of [`within`] has passed.
    TooLate,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByUser => "interrupted",
            Self::TooLate => "the time limit has passed",
        })
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

/// Fails with [`Interrupted`] after the user asked to stop, or after the time limit.
pub fn check() -> Result<()> {
    if FLAG.get().is_some_and(|interrupted| interrupted.load(Ordering::Relaxed)) {
        return Err(Interrupted::ByUser.into());
    }
    match DEADLINE.get() {
        Some(deadline) if Instant::now() >= deadline => Err(Interrupted::TooLate.into()),
        _ => Ok(()),
    }
}

/// Does `work` with a time limit: later, [`check`] and every wait of this thread fail. The limit ends with the work.
/// Limits are not nested.
pub fn within<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    struct Limited;
    impl Drop for Limited {
        fn drop(&mut self) {
            DEADLINE.set(None);
        }
    }
    DEADLINE.set(Some(Instant::now() + limit));
    let _limited = Limited;
    work()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_ends_waits_and_then_itself() {
        let late = within(Duration::from_millis(20), || pause(Duration::from_mins(1)));
        assert_eq!(late.unwrap_err().downcast_ref(), Some(&Interrupted::TooLate));
        assert!(check().is_ok());
        assert!(within(Duration::from_mins(1), check).is_ok());
    }
}
