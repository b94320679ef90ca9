//! The one source of time, so that tests can pause it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time for what is written to the API (start times, conditions, deadlines).
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock that moves with tokio's, which `start_paused` tests control.
    Tokio {
        /// The wall-clock time at `since`.
        origin: Timestamp,
        /// The tokio instant at `origin`.
        since: Instant,
        /// By how many seconds it was set since.
        set: &'static AtomicI64,
    },
}

impl Clock {
    /// A clock that starts at `origin` now and moves with tokio's clock.
    pub fn tokio(origin: Timestamp) -> Self {
        static NEVER: AtomicI64 = AtomicI64::new(0);
        Self::tokio_that_is_set(origin, &NEVER)
    }

    /// The same, and somebody sets it, by so many seconds in all.
    pub fn tokio_that_is_set(origin: Timestamp, set: &'static AtomicI64) -> Self {
        Self::Tokio { origin, since: Instant::now(), set }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Tokio { origin, since, set } => {
                let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
                let elapsed = elapsed + SignedDuration::from_secs(set.load(Ordering::Relaxed));
                origin.checked_add(elapsed).unwrap_or(Timestamp::MAX)
            }
        }
    }
}

/// A point of time that can be measured from although the machine sleeps in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the clock that stands still while the machine sleeps.
    pub at: Instant,
    /// For how long the machine had slept until then.
    pub asleep: Duration,
}

/// For how long this machine has slept since it was started: the monotonic clock stands still meanwhile.
#[cfg(target_os = "linux")]
pub fn asleep() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    // In this order: what passes between the two readings looks like sleep, which is the safe mistake.
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}

/// Elsewhere it is not known.
#[cfg(not(target_os = "linux"))]
pub fn asleep() -> Duration {
    Duration::ZERO
}

/// Whether something is not longer ago than a while; a clock that was set back since makes nothing recent.
pub fn is_recent(at: Timestamp, within: SignedDuration, now: Timestamp) -> bool {
    at <= now && now.duration_since(at) < within
}

/// The first wait after a failure, as the Job controller's.
pub const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The longest wait after a failure, as the Job controller's.
pub const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);

/// `first`, doubled `times` times, at most `longest`: the wait after `times + 1` failures.
pub fn doubled(first: SignedDuration, times: u32, longest: SignedDuration) -> SignedDuration {
    let factor = 1_i32.checked_shl(times).filter(|factor| *factor > 0).unwrap_or(i32::MAX);
    first.checked_mul(factor).unwrap_or(longest).min(longest)
}

/// Cuts a timestamp to whole seconds, the precision that the Kubernetes API stores.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
