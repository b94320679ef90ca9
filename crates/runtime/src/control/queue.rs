//! The work queue: which key is worked on next. Pure data; the [`crate::control::controller`] gives it the time.
//!
//! Own code because kube-runtime's scheduler loses deletions, hides its depth, knows no priorities and adds a
//! millisecond to every key. Rules: a key is worked on by one pass at a time; events that arrive meanwhile make
//! one further pass; fresh keys go before bulk ones (a relist, a take-over); a failing key waits, exponentially
//! longer and with jitter, and events do not shorten that wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::object::Key;

/// The wait after the first failure; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// How urgent a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Something just happened to it.
    Fresh,
    /// It is one of many that are looked at again.
    Bulk,
}

impl Priority {
    /// As a label of metrics: controller-runtime's number for it (0 is its default, -100 that of what it lists at the start).
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "0",
            Self::Bulk => "-100",
        }
    }
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Well. `again` is when time alone would change the answer.
    Well {
        /// When to look again without an event.
        again: Option<Instant>,
        /// How long events may wait before they are looked at: an object whose passes cost much is not looked at for
        /// each of a thousand events.
        rest: Duration,
    },
    /// It failed: look again after a growing wait.
    Failed,
}

#[derive(Debug, Default)]
struct Entry {
    /// Since when it waits in a deque.
    waiting: Option<Instant>,
    /// Whether a pass runs.
    running: bool,
    /// Whether an event arrived while a pass ran.
    dirty: Option<Priority>,
    /// Its timer, if one is set.
    timer: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// A failing or resting key is not looked at before.
    not_before: Option<Instant>,
    /// Whether the timer only ends a rest: nothing has happened meanwhile.
    idle: bool,
}

/// The queue of one controller.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    fresh: VecDeque<Key>,
    bulk: VecDeque<Key>,
    timers: BTreeSet<(Instant, Key)>,
}

impl Queue {
    /// Adds a key because something happened to it. True where it was not waiting already.
    pub fn add(&mut self, key: Key, priority: Priority, now: Instant) -> bool {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.running {
            let first = entry.dirty.is_none();
            entry.dirty = Some(entry.dirty.map_or(priority, |already| already.min(priority)));
            return first;
        }
        if entry.waiting.is_some() {
            if priority == Priority::Fresh && self.bulk.len() < 64 && self.bulk.contains(&key) {
                // Cheap for short deques; in a long one the key waits its turn, which is bounded as well.
                self.bulk.retain(|other| *other != key);
                self.fresh.push_back(key);
            }
            return false;
        }
        if let Some(not_before) = entry.not_before
            && not_before > now
        {
            let waits = !entry.idle && entry.timer.is_some_and(|timer| timer <= not_before);
            entry.idle = false;
            if !waits {
                if let Some(timer) = entry.timer.replace(not_before) {
                    self.timers.remove(&(timer, key.clone()));
                }
                self.timers.insert((not_before, key));
            }
            return !waits;
        }
        self.enqueue(key, priority, now);
        true
    }

    fn enqueue(&mut self, key: Key, priority: Priority, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(timer) = entry.timer.take() {
            self.timers.remove(&(timer, key.clone()));
        }
        entry.idle = false;
        entry.waiting = Some(now);
        match priority {
            Priority::Fresh => self.fresh.push_back(key),
            Priority::Bulk => self.bulk.push_back(key),
        }
    }

    /// The next key to work on, and how long it has waited.
    pub fn pop(&mut self, now: Instant) -> Option<(Key, Duration)> {
        self.fire(now);
        let key = self.fresh.pop_front().or_else(|| self.bulk.pop_front())?;
        let entry = self.entries.entry(key.clone()).or_default();
        let waited =
            entry.waiting.take().map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        entry.running = true;
        Some((key, waited))
    }

    /// Moves keys whose time has come into the queue.
    fn fire(&mut self, now: Instant) {
        while let Some((at, _)) = self.timers.first()
            && *at <= now
        {
            if let Some((_, key)) = self.timers.pop_first() {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.timer = None;
                    if std::mem::take(&mut entry.idle) {
                        self.entries.remove(&key);
                        continue;
                    }
                }
                self.enqueue(key, Priority::Fresh, now);
            }
        }
    }

    /// When the next timer fires.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes note of how a pass ended.
    pub fn done(&mut self, key: &Key, ended: Ended, now: Instant) {
        let pause = self.pause(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = false;
        let dirty = entry.dirty.take();
        let timer = match ended {
            Ended::Well { again, rest } => {
                entry.failures = 0;
                entry.not_before = (!rest.is_zero()).then(|| now + rest);
                match (entry.not_before, dirty) {
                    (None, Some(priority)) => {
                        self.enqueue(key.clone(), priority, now);
                        return;
                    }
                    (rested, Some(_)) => rested,
                    (Some(rested), None) if again.is_none() => {
                        entry.idle = true;
                        Some(rested)
                    }
                    (rested, None) => again.map(|again| rested.map_or(again, |rested| rested.max(again))),
                }
            }
            Ended::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                entry.not_before = Some(now + pause);
                entry.not_before
            }
        };
        match timer {
            Some(at) => {
                entry.timer = Some(at);
                self.timers.insert((at, key.clone()));
            }
            None => {
                self.entries.remove(key);
            }
        }
    }

    /// Puts a popped key aside: it is added again by whoever knows when. Its failures are not forgotten.
    pub fn park(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = false;
        entry.dirty = None;
        if entry.failures == 0 {
            self.entries.remove(key);
        }
    }

    /// Forgets that keys have failed: what they failed of is over. Those that wait for that are due now.
    pub fn forgive(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (key, entry) in &mut self.entries {
            if std::mem::take(&mut entry.failures) > 0 && !entry.running && entry.waiting.is_none() {
                entry.not_before = None;
                due.push(key.clone());
            }
        }
        due.sort();
        for key in due {
            self.enqueue(key, Priority::Bulk, now);
        }
    }

    /// The wait after the next failure of `key`: doubled each time, less up to a quarter, which is another one for each key and
    /// the same whenever it comes to that: what went wrong can be brought back.
    fn pause(&self, key: &Key) -> Duration {
        let failures = self.entries.get(key).map_or(0, |entry| entry.failures);
        let full = FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(LONGEST_RETRY);
        let quarter = u64::try_from(full.as_millis()).unwrap_or(u64::MAX) / 4;
        let mut hasher = DefaultHasher::new();
        (&key.uid, failures).hash(&mut hasher);
        let less = hasher.finish() % quarter.max(1);
        full.saturating_sub(Duration::from_millis(less))
    }

    /// Forgets a key: its object is gone. A pass that runs goes on.
    pub fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            if let Some(timer) = entry.timer.take() {
                self.timers.remove(&(timer, key.clone()));
            }
            entry.failures = 0;
            entry.not_before = None;
            if !entry.running && entry.waiting.is_none() {
                self.entries.remove(key);
            }
        }
    }

    /// Forgets all keys that are meant. Passes that run go on.
    pub fn leave(&mut self, goes: impl Fn(&Key) -> bool) {
        self.fresh.retain(|key| !goes(key));
        self.bulk.retain(|key| !goes(key));
        self.timers.retain(|(_, key)| !goes(key));
        self.entries.retain(|key, entry| {
            if goes(key) {
                *entry = Entry { running: entry.running, ..Entry::default() };
            }
            !goes(key) || entry.running
        });
    }

    /// How many keys wait for a pass.
    pub fn depth(&self) -> usize {
        self.depths().map(|(_, depth)| depth).iter().sum()
    }

    /// How many keys of each priority wait for a pass.
    pub fn depths(&self) -> [(Priority, usize); 2] {
        [(Priority::Fresh, self.fresh.len()), (Priority::Bulk, self.bulk.len())]
    }

    /// How many keys it knows of: waiting, running or with a timer.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it knows of no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: &str) -> Key {
        Key { namespace: "n".into(), name: name.into(), uid: name.into() }
    }

    const WELL: Ended = Ended::Well { again: None, rest: Duration::ZERO };

    #[test]
    fn events_during_a_pass_make_one_more() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        assert!(queue.add(key("a"), Priority::Fresh, now));
        assert!(!queue.add(key("a"), Priority::Fresh, now));
        assert!(queue.pop(now).is_none(), "one pass at a time");
        queue.done(&a, WELL, now);
        assert!(queue.pop(now).is_some());
        queue.done(&a, WELL, now);
        assert!(queue.pop(now).is_none());
        assert!(queue.is_empty(), "nothing is remembered of a settled key");
    }

    #[test]
    fn fresh_goes_before_bulk() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Bulk, now);
        queue.add(key("b"), Priority::Bulk, now);
        queue.add(key("c"), Priority::Fresh, now);
        assert_eq!(queue.depths(), [(Priority::Fresh, 1), (Priority::Bulk, 2)]);
        queue.add(key("b"), Priority::Fresh, now);
        assert_eq!(queue.depths(), [(Priority::Fresh, 2), (Priority::Bulk, 1)]);
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop(now)).map(|(key, _)| key.name.to_string()).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }

    #[test]
    fn a_failing_key_waits_longer_each_time_and_events_do_not_help() {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let mut waits = Vec::new();
        for _ in 0..12 {
            let (a, _) = queue.pop(now).unwrap();
            queue.done(&a, Ended::Failed, now);
            assert!(!queue.add(key("a"), Priority::Fresh, now));
            assert!(queue.pop(now).is_none());
            let at = queue.next_timer().unwrap();
            waits.push(at - now);
            now = at;
        }
        assert!(waits[0] >= FIRST_RETRY * 3 / 4 && waits[0] <= FIRST_RETRY);
        assert!(waits[3] >= FIRST_RETRY * 6);
        assert!(waits.iter().all(|wait| *wait <= LONGEST_RETRY));
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, WELL, now);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_failed_of_something_that_is_over_is_due_at_once() {
        let mut queue = Queue::default();
        let now = Instant::now();
        for _ in 0..5 {
            queue.add(key("failed"), Priority::Fresh, now);
            let (failed, _) = queue.pop(now + LONGEST_RETRY).unwrap();
            queue.done(&failed, Ended::Failed, now);
        }
        queue.add(key("well"), Priority::Fresh, now);
        let (well, _) = queue.pop(now).unwrap();
        let again = Some(now + Duration::from_secs(5));
        queue.done(&well, Ended::Well { again, rest: Duration::ZERO }, now);
        queue.forgive(now);
        let (failed, _) = queue.pop(now).unwrap();
        assert_eq!((&*failed.name, queue.pop(now)), ("failed", None), "the other one's time has not come");
        queue.done(&failed, Ended::Failed, now);
        assert!(queue.next_timer().unwrap() <= now + FIRST_RETRY, "it begins anew");
    }

    #[test]
    fn an_event_after_a_timer_was_set_uses_it_up() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, Ended::Well { again: Some(now + Duration::from_secs(5)), rest: Duration::ZERO }, now);
        assert!(queue.pop(now).is_none());
        queue.add(key("a"), Priority::Fresh, now);
        assert!(queue.pop(now).is_some());
        queue.done(&a, WELL, now);
        assert!(queue.pop(now + Duration::from_secs(6)).is_none());
    }

    #[test]
    fn a_timer_fires() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, Ended::Well { again: Some(now + Duration::from_secs(5)), rest: Duration::ZERO }, now);
        assert!(queue.pop(now + Duration::from_secs(4)).is_none());
        assert!(queue.pop(now + Duration::from_secs(5)).is_some());
    }

    #[test]
    fn a_forgotten_key_leaves_nothing() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, Ended::Failed, now);
        queue.forget(&a);
        assert!(queue.is_empty());
        assert!(queue.next_timer().is_none());
    }

    #[test]
    fn who_may_not_look_keeps_nothing_of_what_is_gone() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["fails", "runs", "waits"] {
            queue.add(key(name), Priority::Fresh, now);
        }
        let (failing, _) = queue.pop(now).unwrap();
        let (running, _) = queue.pop(now).unwrap();
        queue.done(&failing, Ended::Failed, now);
        queue.leave(|key| &*key.name != "other");
        assert_eq!((queue.depth(), queue.len(), queue.next_timer()), (0, 1, None), "what runs is remembered");
        queue.done(&running, WELL, now);
        assert!(queue.is_empty());
        assert!(queue.add(key("waits"), Priority::Fresh, now), "it may wait again");
    }

    #[test]
    fn a_rest_gathers_events_and_is_forgotten_without_any() {
        let (mut queue, now, rest) = (Queue::default(), Instant::now(), Duration::from_millis(50));
        let rested = Ended::Well { again: None, rest };
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), rested, now);
        assert!(queue.add(key("a"), Priority::Fresh, now));
        assert!(!queue.add(key("a"), Priority::Fresh, now), "it waits already");
        assert_eq!((queue.pop(now), queue.next_timer()), (None, Some(now + rest)));
        assert!(queue.pop(now + rest).is_some());
        // What came while the pass ran waits as well.
        queue.add(key("a"), Priority::Fresh, now + rest);
        queue.done(&key("a"), rested, now + rest);
        assert_eq!(queue.pop(now + rest), None);
        assert!(queue.pop(now + rest * 2).is_some());
        // Nothing has happened: no pass, and nothing is kept.
        queue.done(&key("a"), rested, now + rest * 2);
        assert_eq!(queue.pop(now + rest * 3), None);
        assert!(queue.entries.is_empty() && queue.timers.is_empty());
        // A wish to look again within the rest is granted after it.
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), Ended::Well { again: Some(now), rest }, now);
        assert_eq!((queue.pop(now), queue.next_timer()), (None, Some(now + rest)));
    }

    #[test]
    fn an_event_at_the_end_of_a_rest_takes_nothing_from_what_comes_after() {
        let (mut queue, now, rest) = (Queue::default(), Instant::now(), Duration::from_millis(50));
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), Ended::Well { again: None, rest }, now);
        // The rest is over, and the event is there before its timer was looked at.
        let (later, again) = (now + rest, now + rest * 2);
        queue.add(key("a"), Priority::Fresh, later);
        queue.pop(later).unwrap();
        queue.done(&key("a"), Ended::Well { again: Some(again), rest: Duration::ZERO }, later);
        assert!(queue.pop(again).is_some(), "what was asked for is not forgotten with the rest");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Pass(u64),
        Add(u8, Priority),
        Pop,
        Done { key: u8, again: Option<u64>, rest: u64, failed: bool },
        Park(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let priority = prop_oneof![Just(Priority::Fresh), Just(Priority::Bulk)];
        let done = (0..3_u8, proptest::option::of(0..5_u64), 0..3_u64, proptest::bool::weighted(0.2));
        prop_oneof![
            (1..4_u64).prop_map(Step::Pass),
            (0..3_u8, priority).prop_map(|(key, priority)| Step::Add(key, priority)),
            Just(Step::Pop),
            done.prop_map(|(key, again, rest, failed)| Step::Done { key, again, rest, failed }),
            (0..3_u8).prop_map(Step::Park),
        ]
    }

    /// What a key is owed: a pass, not before a time and not long after it.
    #[derive(Clone, Copy, Default)]
    struct Owed {
        running: bool,
        dirty: bool,
        /// No pass before.
        rests_until: Option<Instant>,
        /// A pass from then on.
        due: Option<Instant>,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever happens in whatever order: what is due is given, and nothing else is.
        #[test]
        fn every_wake_is_followed_by_a_pass(steps in proptest::collection::vec(step(), 1..40)) {
            let start = Instant::now();
            let (mut queue, mut now) = (Queue::default(), start);
            let mut owed = [Owed::default(); 3];
            let named = |index: u8| key(&index.to_string());
            let seconds = |count| Duration::from_secs(count);
            for step in steps {
                match step {
                    Step::Pass(count) => now += seconds(count),
                    Step::Add(index, priority) => {
                        queue.add(named(index), priority, now);
                        let one = &mut owed[usize::from(index)];
                        if one.running {
                            one.dirty = true;
                        } else {
                            let at = one.rests_until.unwrap_or(now).max(now);
                            one.due = Some(one.due.map_or(at, |due| due.min(at)));
                        }
                    }
                    Step::Pop => match queue.pop(now) {
                        Some((key, _)) => {
                            let one = &mut owed[key.name.parse::<usize>().unwrap()];
                            prop_assert!(!one.running && one.due.is_some_and(|due| due <= now));
                            *one = Owed { running: true, ..Owed::default() };
                        }
                        None => prop_assert!(
                            owed.iter().all(|one| one.running || one.due.is_none_or(|due| due > now))
                        ),
                    },
                    Step::Done { key, again, rest, failed } if owed[usize::from(key)].running => {
                        let one = &mut owed[usize::from(key)];
                        let again = again.map(|again| now + seconds(again));
                        let rests = now + seconds(rest);
                        if failed {
                            queue.done(&named(key), Ended::Failed, now);
                            // The wait has jitter: the queue says how long it is.
                            let until = queue.entries[&named(key)].not_before;
                            prop_assert!(until.is_some_and(|until| until > now && until <= now + LONGEST_RETRY));
                            *one = Owed { rests_until: until, due: until, ..Owed::default() };
                        } else {
                            queue.done(&named(key), Ended::Well { again, rest: seconds(rest) }, now);
                            let due = if one.dirty { Some(rests) } else { again.map(|again| again.max(rests)) };
                            *one = Owed { rests_until: Some(rests), due, ..Owed::default() };
                        }
                    }
                    Step::Park(index) if owed[usize::from(index)].running => {
                        // Whoever parks it adds it again.
                        queue.park(&named(index));
                        owed[usize::from(index)] = Owed::default();
                    }
                    Step::Done { .. } | Step::Park(_) => {}
                }
            }
            // In the end nothing that is owed is left over.
            let end = now + LONGEST_RETRY * 2;
            while let Some((key, _)) = queue.pop(end) {
                owed[key.name.parse::<usize>().unwrap()] = Owed { running: true, ..Owed::default() };
            }
            prop_assert!(owed.iter().all(|one| one.running || one.due.is_none()));
        }
    }
}
