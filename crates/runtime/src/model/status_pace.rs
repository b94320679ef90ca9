//! When a changed status is written.
//!
//! Each event of a pod changes the status of an object with many pods. Users need the first and the last of these
//! statuses immediately, and one a second of the others.

use std::time::Duration;

/// The shortest time between two status writes of one object while it progresses.
pub const PACE: Duration = Duration::from_secs(1);
/// How long the status of an object may stay as it is while every reconcile writes something else.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// A status that differs from the stored one, at the end of a reconcile.
#[derive(Clone, Copy, Debug)]
pub struct ChangedStatus {
    /// The time since this process last wrote the status of the object; None if it has not.
    pub since_written: Option<Duration>,
    /// The time since this process last wrote a status that settled the object; None if it has not.
    pub since_settled: Option<Duration>,
    /// Whether the reconcile has written other objects, so that another reconcile follows.
    pub follows_writes: bool,
    /// Whether the status shows that nothing is left to do, and the stored status does not.
    pub settles: bool,
}

impl ChangedStatus {
    /// How long the status waits; None if it is written now. So two status writes a second are the most, even if another
    /// client changes the status again and again.
    pub fn wait(self) -> Option<Duration> {
        let may_settle = self.since_settled.is_none_or(|since| since >= PACE);
        let since = self.since_written.filter(|_| !(self.settles && may_settle))?;
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

    const CHANGED: ChangedStatus =
        ChangedStatus { since_written: None, since_settled: None, follows_writes: false, settles: false };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn writes_the_first_status_at_once() {
        for follows_writes in [false, true] {
            assert_eq!(ChangedStatus { follows_writes, ..CHANGED }.wait(), None);
        }
    }

    #[test]
    fn writes_at_most_one_status_a_second() {
        let after = |since| ChangedStatus { since_written: Some(ms(since)), ..CHANGED }.wait();
        assert_eq!([after(0), after(400), after(1_000)], [Some(ms(1_000)), Some(ms(600)), None]);
    }

    #[test]
    fn puts_off_a_status_that_the_next_reconcile_makes_current() {
        let after =
            |since| ChangedStatus { since_written: Some(ms(since)), follows_writes: true, ..CHANGED }.wait();
        let waits = [after(400), after(1_000), after(5_999), after(6_000)];
        assert_eq!(waits, [Some(ms(600)), Some(PACE), Some(PACE), None]);
    }

    #[test]
    fn writes_the_last_status_at_once() {
        let last =
            ChangedStatus { since_written: Some(ms(1)), follows_writes: true, settles: true, ..CHANGED };
        assert_eq!(last.wait(), None);
        let again = ChangedStatus { since_settled: Some(ms(1)), ..last };
        assert_eq!(again.wait(), Some(ms(999)));
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
                let since = |at: u64| ms(now - at);
                let settles = is_settled && !stored;
                let status = ChangedStatus {
                    since_written: writes.last().copied().map(since),
                    since_settled: settled.map(since),
                    follows_writes,
                    settles,
                };
                if status.wait().is_none() {
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
