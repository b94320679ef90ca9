//! When a changed status is written.
//!
//! Each event of a pod changes the status of an object with many pods. Users need the first and the last of these
//! statuses immediately, and one a second of the others.

use std::time::Duration;

/// The shortest time between two status writes of one object while it progresses.
pub const PACE: Duration = Duration::from_secs(1);
/// How long the status of an object may stay as it is while every reconcile writes something else.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// When this process wrote the status of an object, by the clock of the caller.
#[derive(Clone, Copy, Debug)]
pub struct StatusTimes<T> {
    /// The last write.
    pub written: Option<T>,
    /// The last write that settled the object.
    pub settled: Option<T>,
}

impl<T> Default for StatusTimes<T> {
    fn default() -> Self {
        Self { written: None, settled: None }
    }
}

/// A status that differs from the stored one, at the end of a reconcile.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChangedStatus {
    /// Whether the reconcile has written other objects, so that another reconcile follows.
    pub follows_writes: bool,
    /// Whether the status shows that nothing is left to do, and the stored status does not.
    pub settles: bool,
}

impl ChangedStatus {
    /// How long the status waits; None if it is written now. So two status writes a second are the most, even if another
    /// client changes the status again and again. `since` returns the time since an instant of `times`.
    pub fn wait<T>(self, times: StatusTimes<T>, since: impl Fn(T) -> Duration) -> Option<Duration> {
        let may_settle = times.settled.map(&since).is_none_or(|since| since >= PACE);
        let since = times.written.map(since).filter(|_| !(self.settles && may_settle))?;
        let rest = PACE.saturating_sub(since);
        // The status of the reconcile that follows is more current. A plan that writes in every reconcile must still update
        // its status.
        let is_outdated = self.follows_writes && since < PACE + LONGEST_SILENCE;
        if rest.is_zero() { is_outdated.then_some(PACE) } else { Some(rest) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The wait of a status, from the milliseconds since the last writes.
    fn wait(status: ChangedStatus, written: Option<u64>, settled: Option<u64>) -> Option<Duration> {
        status.wait(StatusTimes { written, settled }, ms)
    }

    #[test]
    fn writes_the_first_status_at_once() {
        for follows_writes in [false, true] {
            let status = ChangedStatus { follows_writes, ..ChangedStatus::default() };
            assert_eq!(wait(status, None, None), None);
        }
    }

    #[test]
    fn writes_at_most_one_status_a_second() {
        let after = |since| wait(ChangedStatus::default(), Some(since), None);
        assert_eq!([after(0), after(400), after(1_000)], [Some(ms(1_000)), Some(ms(600)), None]);
    }

    #[test]
    fn puts_off_a_status_that_the_next_reconcile_makes_current() {
        let status = ChangedStatus { follows_writes: true, settles: false };
        let after = |since| wait(status, Some(since), None);
        let waits = [after(400), after(1_000), after(5_999), after(6_000)];
        assert_eq!(waits, [Some(ms(600)), Some(PACE), Some(PACE), None]);
    }

    #[test]
    fn writes_the_last_status_at_once() {
        let last = ChangedStatus { follows_writes: true, settles: true };
        assert_eq!(wait(last, Some(1), None), None);
        assert_eq!(wait(last, Some(1), Some(1)), Some(ms(999)));
    }

    proptest! {
        /// An object that settles and unsettles all the time, while another client overwrites its status.
        #[test]
        fn writes_at_most_two_statuses_a_second(
            events in proptest::collection::vec((1..400_u64, any::<[bool; 4]>()), 1..200),
        ) {
            let (mut now, mut stored, mut settled) = (0, false, None);
            let mut writes = Vec::new();
            for (pause, [is_settled, follows_writes, is_overwritten, overwritten]) in events {
                now += pause;
                if is_overwritten {
                    stored = overwritten;
                }
                let settles = is_settled && !stored;
                let times = StatusTimes { written: writes.last().copied(), settled };
                if (ChangedStatus { follows_writes, settles }).wait(times, |at: u64| ms(now - at)).is_none() {
                    writes.push(now);
                    stored = is_settled;
                    if settles {
                        settled = Some(now);
                    }
                }
            }
            prop_assert!(writes.windows(3).all(|three| three[2] - three[0] >= 1_000), "{writes:?}");
        }
    }
}
