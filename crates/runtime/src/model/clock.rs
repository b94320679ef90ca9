//! The only source of wall-clock time, so that tests can control it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The wall clock for times in the API (start times, conditions, deadlines).
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The clock of the machine.
    #[default]
    System,
    /// A clock that follows tokio's clock, which `start_paused` tests control.
    Tokio {
        /// The wall-clock time at `since`.
        origin: Timestamp,
        /// The tokio instant at `origin`.
        since: Instant,
        /// The total adjustment in seconds since `since`.
        set: &'static AtomicI64,
    },
}

impl Clock {
    /// A clock that starts at `origin` now and moves with tokio's clock.
    pub fn tokio(origin: Timestamp) -> Self {
        static NEVER: AtomicI64 = AtomicI64::new(0);
        Self::tokio_that_is_set(origin, &NEVER)
    }

    /// Like [`Self::tokio`], with an adjustment in seconds that a test may change.
    pub fn tokio_that_is_set(origin: Timestamp, set: &'static AtomicI64) -> Self {
        Self::Tokio { origin, since: Instant::now(), set }
    }

    /// The current time.
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

/// A point in time from which to measure even if the machine sleeps meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic clock, which stops while the machine sleeps.
    pub at: Instant,
    /// How long the machine had slept by then.
    pub asleep: Duration,
}

/// How long the machine has slept since boot, when the monotonic clock stops.
#[cfg(target_os = "linux")]
pub fn asleep() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    // In this order, the time between the two readings counts as sleep, which is the safe error.
    let awake = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(awake)
}

/// Other systems do not report their sleep.
#[cfg(not(target_os = "linux"))]
pub fn asleep() -> Duration {
    Duration::ZERO
}

/// Whether `at` is less than `within` ago. A future time, seen after the clock was set back, is not recent.
pub fn is_recent(at: Timestamp, within: SignedDuration, now: Timestamp) -> bool {
    at <= now && now.duration_since(at) < within
}

/// The backoff after the first failure, as in the Job controller.
pub const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The longest backoff, as in the Job controller.
pub const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);

/// The backoff after `times + 1` failures: `first`, doubled `times` times, up to `longest`.
pub fn doubled(first: SignedDuration, times: u32, longest: SignedDuration) -> SignedDuration {
    let factor = 1_i32.checked_shl(times).filter(|factor| *factor > 0).unwrap_or(i32::MAX);
    first.checked_mul(factor).unwrap_or(longest).min(longest)
}

/// Truncates a time to whole seconds, the precision of the Kubernetes API.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
