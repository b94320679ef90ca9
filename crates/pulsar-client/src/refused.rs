//! Entries that could not be dealt with, and when they are asked for again.
//!
//! Pure data: entries go in with their time, and come out when it has come.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::EntryId;

/// An entry that does not come is not asked for more often than that, whatever the delay.
const SELDOM: Duration = Duration::from_secs(1);

/// The longest wait until an entry is asked for once more that does not come: it may have expired.
const LONGEST: Duration = Duration::from_hours(1);

/// An entry that is to be asked for.
#[derive(Clone, Copy, Debug)]
struct Question {
    due: Instant,
    consumer: usize,
    entry: EntryId,
    /// How often it was asked in vain.
    times: u32,
}

impl Question {
    /// The same once more, after the delay, doubled each time.
    fn again(self, now: Instant, delay: Duration) -> Self {
        let pause = delay.max(SELDOM).saturating_mul(1 << self.times.min(16)).min(LONGEST.max(delay));
        Self { due: now + pause, times: self.times + 1, ..self }
    }
}

/// The entries of a session's consumers that are to be asked for again.
#[derive(Debug, Default)]
pub struct Refused {
    /// Whether all that are not acknowledged come when one of them is asked for, as in Exclusive and Failover.
    all_at_once: bool,
    /// The first ones first.
    questions: VecDeque<Question>,
}

impl Refused {
    /// None. `all_at_once` says whether all that are not acknowledged come when one of them is asked for.
    pub fn new(all_at_once: bool) -> Self {
        Self { all_at_once, ..Self::default() }
    }

    /// An entry of a consumer is to be asked for then, unless it is to be asked for anyway.
    pub fn push(&mut self, due: Instant, consumer: usize, entry: EntryId) {
        // With another one it may have come before it was asked for.
        if !self.questions.iter().any(|one| (one.consumer, one.entry) == (consumer, entry)) {
            let at = self.questions.partition_point(|question| question.due <= due);
            self.questions.insert(at, Question { due, consumer, entry, times: 0 });
        }
    }

    /// When the first one is to be asked for.
    pub fn due(&self) -> Option<Instant> {
        self.questions.front().map(|question| question.due)
    }

    /// The next one that is to be asked for now.
    ///
    /// Where all come with it, the others of its consumer need not be asked for. But a broker may miss the question while
    /// it reads or while another consumer is active: they stay here, to be asked for again after the delay, and more and
    /// more seldom, until they [came](Self::came).
    pub fn take_due(&mut self, now: Instant, delay: Duration) -> Option<(usize, EntryId)> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        let asked = self.questions.pop_front()?;
        if self.all_at_once {
            let (same, others): (VecDeque<_>, VecDeque<_>) =
                self.questions.drain(..).partition(|question| question.consumer == asked.consumer);
            self.questions = others;
            let again = [asked].into_iter().chain(same).map(|question| question.again(now, delay));
            self.questions.extend(again);
            self.questions.make_contiguous().sort_by_key(|question| question.due);
        }
        Some((asked.consumer, asked.entry))
    }

    /// An entry has come: it is not asked for any more.
    pub fn came(&mut self, consumer: usize, entry: EntryId) {
        self.questions.retain(|one| (one.consumer, one.entry) != (consumer, entry));
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

    #[test]
    fn what_does_not_come_is_asked_for_more_and_more_seldom() {
        let begin = Instant::now();
        let mut refused = Refused::new(true);
        refused.push(begin, 0, id(1));
        let mut pauses = Vec::new();
        let mut now = begin;
        for _ in 0..8 {
            assert_eq!(refused.take_due(now, DELAY), Some((0, id(1))));
            let due = refused.due().unwrap();
            pauses.push((due - now).as_secs() / 60);
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        // A new one does not wait for that.
        refused.push(begin, 1, id(2));
        assert_eq!((refused.due(), refused.take_due(begin, DELAY)), (Some(begin), Some((1, id(2)))));
    }
}
