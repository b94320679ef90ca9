//! When a changed status is written.
//!
//! Each event of a pod changes the status of an object with many pods. Users need the first and the last of these
//! statuses immediately, and one a second of the others.

use std::time::Duration;

/// The shortest time between two status writes of one object while it progresses.
pub const PACE: Duration = Duration::from_secs(1);
/// How long a status may be out of date while every reconcile writes something else.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// A status that differs from the stored one, at the end of a reconcile.
#[derive(Clone, Copy, Debug)]
pub struct ChangedStatus {
    /// The time since this process last wrote the status of the object; None if it has not.
    pub since_written: Option<Duration>,
    /// The time since the status was first put off after that write; zero if it was not.
    pub since_put_off: Duration,
    /// Whether the reconcile has written other objects.
    pub follows_writes: bool,
    /// Whether the status shows that nothing is left to do, and the stored status does not.
    pub settles: bool,
}

impl ChangedStatus {
    /// How long the status waits; None if it is written now.
    pub fn wait(self) -> Option<Duration> {
        // Such a write follows the write of an unsettled status, which obeys the pace. So two writes a second are the most.
        if self.settles {
            return None;
        }
        let rest = self.since_written.map(|since| PACE.saturating_sub(since)).filter(|rest| !rest.is_zero());
        // The writes of this reconcile cause another one, whose status is more current. A plan that writes in every
        // reconcile must still update its status.
        let is_outdated = self.follows_writes && self.since_put_off < LONGEST_SILENCE;
        rest.or(is_outdated.then_some(PACE))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHANGED: ChangedStatus = ChangedStatus {
        since_written: None,
        since_put_off: Duration::ZERO,
        follows_writes: false,
        settles: false,
    };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn writes_the_first_status_at_once() {
        assert_eq!(CHANGED.wait(), None);
    }

    #[test]
    fn writes_at_most_one_status_a_second() {
        let after = |since| ChangedStatus { since_written: Some(ms(since)), ..CHANGED }.wait();
        assert_eq!([after(0), after(400), after(1_000)], [Some(ms(1_000)), Some(ms(600)), None]);
    }

    /// A status from before 1,000 writes does not count them, and would delay the next one by a second.
    #[test]
    fn puts_off_a_status_from_before_the_writes() {
        for since_written in [None, Some(ms(60_000))] {
            let status = ChangedStatus { since_written, follows_writes: true, ..CHANGED };
            assert_eq!(status.wait(), Some(PACE));
        }
    }

    #[test]
    fn shows_the_progress_of_a_plan_that_always_writes() {
        let put_off =
            |since| ChangedStatus { since_put_off: ms(since), follows_writes: true, ..CHANGED }.wait();
        assert_eq!([put_off(4_999), put_off(5_000)], [Some(PACE), None]);
    }

    #[test]
    fn writes_the_last_status_at_once() {
        let status =
            ChangedStatus { since_written: Some(ms(1)), follows_writes: true, settles: true, ..CHANGED };
        assert_eq!(status.wait(), None);
    }

    proptest! {
        /// An object that becomes ready and unready all the time.
        #[test]
        fn writes_at_most_two_statuses_a_second(
            events in proptest::collection::vec((1..400_u64, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let (mut now, mut stored, mut put_off) = (0, false, None);
            let mut writes = Vec::new();
            for (pause, is_settled, follows_writes) in events {
                now += pause;
                let since = |at: u64| ms(now - at);
                let status = ChangedStatus {
                    since_written: writes.last().copied().map(since),
                    since_put_off: put_off.map(since).unwrap_or_default(),
                    follows_writes,
                    settles: is_settled && !stored,
                };
                if status.wait().is_none() {
                    writes.push(now);
                    (stored, put_off) = (is_settled, None);
                } else {
                    put_off.get_or_insert(now);
                }
            }
            prop_assert!(writes.windows(3).all(|three| three[2] - three[0] >= 1_000), "{writes:?}");
        }
    }
}
