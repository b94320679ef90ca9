//! Entries that could not be dealt with, and when they are asked for again.
//!
//! Pure data: entries go in with their time, and come out when it has come.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::EntryId;

/// An entry that does not come is not asked for more often than that, whatever the delay.
const SELDOM: Duration = Duration::from_secs(1);

/// The entries of a session's consumers that are to be asked for again.
#[derive(Debug, Default)]
pub struct Refused {
    /// Whether all that are not acknowledged come when one of them is asked for, as in Exclusive and Failover.
    all_at_once: bool,
    /// When, whose and which; the first ones first.
    entries: VecDeque<(Instant, usize, EntryId)>,
}

impl Refused {
    /// None. `all_at_once` says whether all that are not acknowledged come when one of them is asked for.
    pub fn new(all_at_once: bool) -> Self {
        Self { all_at_once, ..Self::default() }
    }

    /// An entry of a consumer is to be asked for then, unless it is to be asked for anyway.
    pub fn push(&mut self, due: Instant, consumer: usize, entry: EntryId) {
        // With another one it may have come before it was asked for.
        if !self.entries.iter().any(|(_, of, refused)| (*of, *refused) == (consumer, entry)) {
            self.entries.push_back((due, consumer, entry));
        }
    }

    /// When the first one is to be asked for.
    pub fn due(&self) -> Option<Instant> {
        self.entries.front().map(|(due, ..)| *due)
    }

    /// The next one that is to be asked for now.
    ///
    /// Where all come with it, the others of its consumer need not be asked for. But a broker may miss the question while
    /// it reads or while another consumer is active: they stay here, to be asked for after the delay, until they
    /// [came](Self::came).
    pub fn take_due(&mut self, now: Instant, delay: Duration) -> Option<(usize, EntryId)> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        let (_, consumer, entry) = self.entries.pop_front()?;
        if self.all_at_once {
            let again = now + delay.max(SELDOM);
            let (same, others): (VecDeque<_>, VecDeque<_>) =
                self.entries.drain(..).partition(|(_, of, _)| *of == consumer);
            self.entries = others;
            self.entries.push_back((again, consumer, entry));
            self.entries.extend(same.into_iter().map(|(_, of, entry)| (again, of, entry)));
        }
        Some((consumer, entry))
    }

    /// An entry has come: it is not asked for any more.
    pub fn came(&mut self, consumer: usize, entry: EntryId) {
        self.entries.retain(|(_, of, refused)| (*of, *refused) != (consumer, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_mins(1);

    fn id(entry: u64) -> EntryId {
        EntryId { ledger: 1, entry }
    }

    fn take_all(refused: &mut Refused, now: Instant) -> Vec<(usize, EntryId)> {
        std::iter::from_fn(|| refused.take_due(now, DELAY)).collect()
    }

    #[test]
    fn each_is_asked_for_once_and_when_its_time_has_come() {
        let begin = Instant::now();
        let mut refused = Refused::new(false);
        for (entry, later) in [(1, 0), (2, 0), (1, 0), (3, 5)] {
            refused.push(begin + Duration::from_secs(later), 0, id(entry));
        }
        assert_eq!(refused.due(), Some(begin));
        assert_eq!(take_all(&mut refused, begin), [(0, id(1)), (0, id(2))]);
        assert_eq!(refused.due(), Some(begin + Duration::from_secs(5)));
    }

    #[test]
    fn where_all_come_at_once_one_question_is_enough_for_each_consumer() {
        let begin = Instant::now();
        let mut refused = Refused::new(true);
        for (consumer, entry, later) in [(0, 1, 0), (0, 2, 0), (1, 1, 0), (0, 3, 5), (1, 2, 5)] {
            refused.push(begin + Duration::from_secs(later), consumer, id(entry));
        }
        assert_eq!(take_all(&mut refused, begin), [(0, id(1)), (1, id(1))]);
        // What did not come is asked for again, and so on.
        for entry in 1..=3 {
            refused.came(0, id(entry));
        }
        refused.came(1, id(1));
        assert_eq!(refused.due(), Some(begin + DELAY));
        assert_eq!(take_all(&mut refused, begin + DELAY), [(1, id(2))]);
        refused.came(1, id(2));
        assert_eq!(refused.due(), None);
    }

    #[test]
    fn without_a_delay_a_question_is_not_asked_again_at_once() {
        let begin = Instant::now();
        let mut refused = Refused::new(true);
        refused.push(begin, 0, id(1));
        assert_eq!(refused.take_due(begin, Duration::ZERO), Some((0, id(1))));
        assert_eq!(refused.take_due(begin, Duration::ZERO), None);
        assert_eq!(refused.due(), Some(begin + SELDOM));
    }
}
