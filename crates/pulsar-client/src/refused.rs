//! Entries that could not be handled, and when to request them again.
//!
//! Pure data: entries go in with a time, and come out at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pulsar::message::proto::command_ack::ValidationError;
use tokio::time::Instant;

use crate::frame::Damage;
use crate::ledger::EntryId;
use crate::letters::Destination;
use crate::settings::DeadLetterPolicy;

/// The shortest interval of requests for an entry that does not come.
const SELDOM: Duration = Duration::from_secs(1);

/// The longest interval of requests for an entry that does not come, perhaps because it has expired.
const LONGEST: Duration = Duration::from_hours(1);

/// The treatment of an unreadable entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Request it again later.
    Repeat,
    /// Send it to the retry-letter topic, or at last to the dead-letter topic.
    Send(Destination),
    /// Acknowledge it with this error, as no client can read it.
    Discard(ValidationError),
}

/// Decides on an unreadable entry.
///
/// Pulsar's Java client discards a corrupt entry at once. Here it gets a second delivery, in case it was damaged on
/// its way, and it is not discarded if it becomes a dead letter after too many redeliveries. An entry that is only
/// unsupported, such as an encrypted one, is intact, so it is not discarded. `retries` is how often the entry was sent
/// to the retry-letter topic; None if its metadata are unreadable.
pub fn verdict(
    damage: &Damage,
    came_again: bool,
    policy: Option<&DeadLetterPolicy>,
    retries: Option<u32>,
) -> Verdict {
    match (policy, retries, damage.corruption) {
        (
            Some(DeadLetterPolicy { max_redeliver_count, retry_delays: Some(delays), .. }),
            Some(retries),
            _,
        ) => {
            let at = usize::try_from(retries).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
            match delays.get(at) {
                Some(delay) if retries < *max_redeliver_count => {
                    Verdict::Send(Destination::Retry(retries + 1, *delay))
                }
                _ => Verdict::Send(Destination::DeadLetter),
            }
        }
        (Some(_), Some(_), _) => Verdict::Repeat,
        (_, _, Some(corruption)) if came_again => Verdict::Discard(corruption),
        _ => Verdict::Repeat,
    }
}

/// The time of the next request for an entry, and the number of requests without an answer.
#[derive(Clone, Copy, Debug)]
struct Request {
    due: Instant,
    times: u32,
}

/// The pending requests of a session's consumers.
#[derive(Debug, Default)]
pub struct Refused {
    /// Whether a request makes the broker send all unacknowledged entries, as for Exclusive and Failover.
    all_at_once: bool,
    requests: BTreeMap<(usize, EntryId), Request>,
    by_time: BTreeSet<(Instant, usize, EntryId)>,
}

impl Refused {
    /// Without requests. `all_at_once` is whether a request makes the broker send all unacknowledged entries.
    pub fn new(all_at_once: bool) -> Self {
        Self { all_at_once, ..Self::default() }
    }

    /// Adds a request for an entry, unless there is one.
    pub fn push(&mut self, due: Instant, consumer: usize, entry: EntryId) {
        // The entry may have come with another one before its request.
        if !self.requests.contains_key(&(consumer, entry)) {
            self.insert(consumer, entry, Request { due, times: 0 });
        }
    }

    fn insert(&mut self, consumer: usize, entry: EntryId, request: Request) {
        self.requests.insert((consumer, entry), request);
        self.by_time.insert((request.due, consumer, entry));
    }

    /// The time of the next request.
    pub fn due(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, ..)| *due)
    }

    /// Takes the due requests: for each consumer its entries.
    ///
    /// If all unacknowledged entries come with one of them, the consumer's other entries need no request. But a
    /// broker may miss a request while it reads, or while another consumer is active. So they stay here with a
    /// growing delay until they [came](Self::came).
    pub fn take_due(&mut self, now: Instant, delay: Duration) -> BTreeMap<usize, Vec<EntryId>> {
        let mut taken: BTreeMap<usize, Vec<EntryId>> = BTreeMap::new();
        while let Some((_, consumer, entry)) = self.by_time.first().copied().filter(|(due, ..)| *due <= now) {
            taken.entry(consumer).or_default().push(entry);
            if !self.all_at_once {
                self.came(consumer, entry);
                continue;
            }
            let same: Vec<EntryId> = self.of(consumer).collect();
            for entry in same {
                let Some(Request { due, times }) = self.requests.remove(&(consumer, entry)) else {
                    continue;
                };
                self.by_time.remove(&(due, consumer, entry));
                let pause = delay.max(SELDOM).saturating_mul(1 << times.min(16)).min(LONGEST.max(delay));
                self.insert(consumer, entry, Request { due: now + pause, times: times + 1 });
            }
        }
        taken
    }

    /// The entries of a consumer.
    fn of(&self, consumer: usize) -> impl Iterator<Item = EntryId> {
        let first = EntryId { ledger: 0, entry: 0 };
        let entries = self.requests.range((consumer, first)..(consumer + 1, first));
        entries.map(|((_, entry), _)| *entry)
    }

    /// Removes the request of an entry that has come. Returns whether there was one.
    pub fn came(&mut self, consumer: usize, entry: EntryId) -> bool {
        let request = self.requests.remove(&(consumer, entry));
        request.is_some_and(|request| self.by_time.remove(&(request.due, consumer, entry)))
    }

    /// Removes the requests of a lost consumer.
    pub fn drop_from(&mut self, consumer: usize) {
        let entries: Vec<EntryId> = self.of(consumer).collect();
        for entry in entries {
            self.came(consumer, entry);
        }
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
        let taken = refused.take_due(now, DELAY).into_iter();
        taken
            .flat_map(|(consumer, entries)| entries.into_iter().map(move |entry| (consumer, entry)))
            .collect()
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
        assert_eq!(refused.take_due(begin, Duration::ZERO), BTreeMap::from([(0, vec![id(1)])]));
        assert!(refused.take_due(begin, Duration::ZERO).is_empty());
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
            assert_eq!(take_all(&mut refused, now), [(0, id(1))]);
            let due = refused.due().unwrap();
            pauses.push((due - now).as_secs() / 60);
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        // A new request does not wait.
        refused.push(begin, 1, id(2));
        assert_eq!((refused.due(), take_all(&mut refused, begin)), (Some(begin), vec![(1, id(2))]));
    }

    /// As many as the broker sends without acknowledgements. A scan of all for each would take minutes.
    #[test]
    fn many_entries_need_one_request() {
        let begin = Instant::now();
        for all_at_once in [false, true] {
            let mut refused = Refused::new(all_at_once);
            for entry in 0..50_000 {
                refused.push(begin, 0, id(entry));
            }
            let taken = refused.take_due(begin, DELAY);
            assert_eq!(taken[&0].len(), if all_at_once { 1 } else { 50_000 });
            for entry in 0..50_000 {
                assert_eq!(refused.came(0, id(entry)), all_at_once);
            }
        }
    }

    #[test]
    fn drops_only_the_entries_of_a_lost_consumer() {
        let begin = Instant::now();
        let mut refused = Refused::new(false);
        for (consumer, entry) in [(0, 9), (1, 0), (1, 7), (2, 0)] {
            refused.push(begin, consumer, id(entry));
        }
        refused.drop_from(1);
        assert_eq!(take_all(&mut refused, begin), [(0, id(9)), (2, id(0))]);
    }

    #[test]
    fn discards_only_what_no_client_can_read() {
        let how = ValidationError::ChecksumMismatch;
        let corrupt = Damage::corrupt(how, "");
        assert_eq!(verdict(&corrupt, true, None, Some(0)), Verdict::Discard(how));
        assert_eq!(verdict(&corrupt, false, None, None), Verdict::Repeat);
        let letters = policy(None);
        assert_eq!(verdict(&corrupt, true, Some(&letters), Some(0)), Verdict::Repeat);
        assert_eq!(verdict(&corrupt, true, Some(&letters), None), Verdict::Discard(how));
        assert_eq!(verdict(&Damage::unsupported(""), true, None, Some(0)), Verdict::Repeat);
    }

    fn policy(retry_delays: Option<Vec<Duration>>) -> DeadLetterPolicy {
        let (topic, subscription) = ("d".parse().unwrap(), "d".to_owned());
        DeadLetterPolicy { max_redeliver_count: 3, topic, subscription, retry_delays }
    }

    #[test]
    fn each_retry_has_its_delay() {
        let [short, long] = [1, 60].map(Duration::from_secs);
        let policy = policy(Some(vec![short, long]));
        let damage = Damage::unsupported("");
        let expected = [
            Destination::Retry(1, short),
            Destination::Retry(2, long),
            Destination::Retry(3, long),
            Destination::DeadLetter,
            Destination::DeadLetter,
        ];
        for (retries, destination) in (0..).zip(expected) {
            assert_eq!(verdict(&damage, false, Some(&policy), Some(retries)), Verdict::Send(destination));
        }
        assert_eq!(verdict(&damage, false, Some(&policy), None), Verdict::Repeat);
    }
}
