//! Entries that could not be handled, and when to request them again.
//!
//! Pure data: entries go in with a time, and come out at that time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::EntryId;

/// The shortest interval of requests for an entry that does not come.
const SELDOM: Duration = Duration::from_secs(1);

/// The longest interval of requests for an entry that does not come, perhaps because it has expired.
const LONGEST: Duration = Duration::from_hours(1);

/// A request for an entry.
#[derive(Clone, Copy, Debug)]
struct Question {
    due: Instant,
    consumer: usize,
    entry: EntryId,
    /// The number of requests without an answer.
    times: u32,
}

impl Question {
    /// The next request, after the delay, which doubles each time.
    fn again(self, now: Instant, delay: Duration) -> Self {
        let pause = delay.max(SELDOM).saturating_mul(1 << self.times.min(16)).min(LONGEST.max(delay));
        Self { due: now + pause, times: self.times + 1, ..self }
    }
}

/// The pending requests of a session's consumers.
#[derive(Debug, Default)]
pub struct Refused {
    /// Whether a request makes the broker send all unacknowledged entries, as for Exclusive and Failover.
    all_at_once: bool,
    /// Sorted by time.
    questions: VecDeque<Question>,
}

impl Refused {
    /// Without requests. `all_at_once` is whether a request makes the broker send all unacknowledged entries.
    pub fn new(all_at_once: bool) -> Self {
        Self { all_at_once, ..Self::default() }
    }

    /// Adds a request for an entry, unless there is one.
    pub fn push(&mut self, due: Instant, consumer: usize, entry: EntryId) {
        // The entry may have come with another one before its request.
        if !self.questions.iter().any(|one| (one.consumer, one.entry) == (consumer, entry)) {
            let at = self.questions.partition_point(|question| question.due <= due);
            self.questions.insert(at, Question { due, consumer, entry, times: 0 });
        }
    }

    /// The time of the next request.
    pub fn due(&self) -> Option<Instant> {
        self.questions.front().map(|question| question.due)
    }

    /// Returns the next due request.
    ///
    /// If all unacknowledged entries come with it, the consumer's other entries need no request. But a broker
    /// may miss a request while it reads, or while another consumer is active. So they stay here with a
    /// growing delay until they [came](Self::came).
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

    /// Removes the request of an entry that has come.
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
    fn requests_each_entry_once_at_its_time() {
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
    fn exclusive_needs_one_request_for_each_consumer() {
        let begin = Instant::now();
        let mut refused = Refused::new(true);
        for (consumer, entry, later) in [(0, 1, 0), (0, 2, 0), (1, 1, 0), (0, 3, 5), (1, 2, 5)] {
            refused.push(begin + Duration::from_secs(later), consumer, id(entry));
        }
        assert_eq!(take_all(&mut refused, begin), [(0, id(1)), (1, id(1))]);
        // Entries that did not come are requested again.
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
    fn without_a_delay_requests_have_a_minimum_interval() {
        let begin = Instant::now();
        let mut refused = Refused::new(true);
        refused.push(begin, 0, id(1));
        assert_eq!(refused.take_due(begin, Duration::ZERO), Some((0, id(1))));
        assert_eq!(refused.take_due(begin, Duration::ZERO), None);
        assert_eq!(refused.due(), Some(begin + SELDOM));
    }

    #[test]
    fn the_interval_of_requests_doubles() {
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
        // A new request does not wait.
        refused.push(begin, 1, id(2));
        assert_eq!((refused.due(), refused.take_due(begin, DELAY)), (Some(begin), Some((1, id(2)))));
    }
}
