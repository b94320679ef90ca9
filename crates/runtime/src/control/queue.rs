//! The work queue: it decides which key is reconciled next. Pure data; [`crate::control::controller`] passes the
//! time.
//!
//! The project has its own queue because kube-runtime's scheduler hides its depth, has no priorities, and adds a
//! millisecond to every key. Only one reconcile of a key runs at a time, and all events that arrive during
//! it cause one more. Fresh keys go before bulk keys, and an event makes a waiting bulk key fresh. A failing key
//! waits with exponential backoff and jitter, and events do not shorten that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::object::Key;

/// The backoff after the first failure; it doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest backoff.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// After this number of fresh keys in a row, a waiting bulk key is next.
const FRESH_IN_A_ROW: u32 = 16;

/// How urgent a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// An event concerns this key.
    Fresh,
    /// The key is one of many that are reconciled again, after a relist or a change of the leader.
    Bulk,
}

impl Priority {
    /// The label value in metrics: controller-runtime's number (0: its default, -100: its initial list).
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "0",
            Self::Bulk => "-100",
        }
    }
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The reconcile succeeded.
    Well {
        /// When to reconcile again without an event, because the plan depends on the time.
        again: Option<Instant>,
        /// How long events wait for the next reconcile, so that an expensive object is not reconciled for every
        /// event.
        rest: Duration,
    },
    /// The reconcile failed; the key waits for its backoff.
    Failed,
}

/// The place of a key that waits for its reconcile.
#[derive(Clone, Copy, Debug)]
struct Place {
    since: Instant,
    priority: Priority,
    turn: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// Where the key waits.
    waiting: Option<Place>,
    /// The priority with which the running reconcile was taken.
    running: Option<Priority>,
    /// The priority of an event that arrived during the reconcile.
    dirty: Option<Priority>,
    /// When the key's timer fires.
    timer: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// The end of the key's backoff or rest; no reconcile starts before it.
    not_before: Option<Instant>,
    /// Whether the timer only ends a rest. If no event arrived by then, no reconcile follows.
    idle: bool,
}

/// The queue of one controller.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    /// The waiting keys of each priority, by turn.
    waiting: [BTreeMap<u64, Key>; 2],
    /// The number of turns that were given.
    turns: u64,
    /// The number of fresh keys that were taken in a row while a bulk key waited.
    fresh_in_a_row: u32,
    timers: BTreeSet<(Instant, Key)>,
}

impl Queue {
    /// Adds a key because of an event. Returns whether this event causes a further reconcile.
    pub fn add(&mut self, key: Key, priority: Priority, now: Instant) -> bool {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.running.is_some() {
            let first = entry.dirty.is_none();
            entry.dirty = Some(entry.dirty.map_or(priority, |already| already.min(priority)));
            return first;
        }
        if let Some(place) = entry.waiting {
            if priority < place.priority {
                self.waiting[place.priority as usize].remove(&place.turn);
                self.enqueue(key, priority, place.since);
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

    fn enqueue(&mut self, key: Key, priority: Priority, since: Instant) {
        self.turns += 1;
        let turn = self.turns;
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(timer) = entry.timer.take() {
            self.timers.remove(&(timer, key.clone()));
        }
        entry.idle = false;
        entry.waiting = Some(Place { since, priority, turn });
        self.waiting[priority as usize].insert(turn, key);
    }

    /// Returns the next key and how long it has waited, and marks the key as running.
    pub fn pop(&mut self, now: Instant) -> Option<(Key, Duration)> {
        self.fire(now);
        let [fresh, bulk] = &mut self.waiting;
        let is_bulk_due = fresh.is_empty() || self.fresh_in_a_row >= FRESH_IN_A_ROW && !bulk.is_empty();
        let (_, key) = if is_bulk_due { bulk.pop_first() } else { fresh.pop_first() }?;
        self.fresh_in_a_row = if is_bulk_due || bulk.is_empty() { 0 } else { self.fresh_in_a_row + 1 };
        let entry = self.entries.entry(key.clone()).or_default();
        let place = entry.waiting.take();
        entry.running = Some(if is_bulk_due { Priority::Bulk } else { Priority::Fresh });
        Some((key, place.map_or(Duration::ZERO, |place| now.saturating_duration_since(place.since))))
    }

    /// Enqueues the keys whose timers have fired.
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

    /// Records the end of a reconcile, and enqueues the key or sets its timer if another reconcile is due.
    pub fn done(&mut self, key: &Key, ended: Ended, now: Instant) {
        let pause = self.pause(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = None;
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

    /// Puts a popped key aside and keeps its failure count. Returns the priority with which the caller adds the key again
    /// later.
    pub fn park(&mut self, key: &Key) -> Priority {
        let Some(entry) = self.entries.get_mut(key) else { return Priority::Fresh };
        let priority = entry.running.take().into_iter().chain(entry.dirty.take()).min();
        if entry.failures == 0 {
            self.entries.remove(key);
        }
        priority.unwrap_or(Priority::Fresh)
    }

    /// Clears all failure counts after the cause is gone, and enqueues the keys that are in backoff.
    pub fn forgive(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (key, entry) in &mut self.entries {
            if std::mem::take(&mut entry.failures) > 0 && entry.running.is_none() && entry.waiting.is_none() {
                entry.not_before = None;
                due.push(key.clone());
            }
        }
        due.sort();
        for key in due {
            self.enqueue(key, Priority::Bulk, now);
        }
    }

    /// The backoff after the next failure of `key`: doubled each time, less up to a quarter as jitter. The jitter is
    /// a hash of the UID and the failure count, so that a faulty run can be reproduced.
    fn pause(&self, key: &Key) -> Duration {
        let failures = self.entries.get(key).map_or(0, |entry| entry.failures);
        let full = FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(LONGEST_RETRY);
        let quarter = u64::try_from(full.as_millis()).unwrap_or(u64::MAX) / 4;
        let mut hasher = DefaultHasher::new();
        (&key.uid, failures).hash(&mut hasher);
        let less = hasher.finish() % quarter.max(1);
        full.saturating_sub(Duration::from_millis(less))
    }

    /// Drops the timer and the failures of a deleted object's key. A running reconcile continues.
    pub fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            if let Some(timer) = entry.timer.take() {
                self.timers.remove(&(timer, key.clone()));
            }
            entry.failures = 0;
            entry.not_before = None;
            if entry.running.is_none() && entry.waiting.is_none() {
                self.entries.remove(key);
            }
        }
    }

    /// Drops every key for which `goes` returns true. Running reconciles continue.
    pub fn leave(&mut self, goes: impl Fn(&Key) -> bool) {
        for waiting in &mut self.waiting {
            waiting.retain(|_, key| !goes(key));
        }
        self.timers.retain(|(_, key)| !goes(key));
        self.entries.retain(|key, entry| {
            if goes(key) {
                *entry = Entry { running: entry.running, ..Entry::default() };
            }
            !goes(key) || entry.running.is_some()
        });
    }

    /// The number of keys that wait for a reconcile.
    pub fn depth(&self) -> usize {
        self.depths().map(|(_, depth)| depth).iter().sum()
    }

    /// The number of keys of each priority that wait for a reconcile.
    pub fn depths(&self) -> [(Priority, usize); 2] {
        [Priority::Fresh, Priority::Bulk].map(|priority| (priority, self.waiting[priority as usize].len()))
    }

    /// The number of keys in the queue: waiting, running or with a timer.
    pub fn known(&self) -> usize {
        self.entries.len()
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
    fn events_during_a_reconcile_cause_one_more() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        assert!(queue.add(key("a"), Priority::Fresh, now));
        assert!(!queue.add(key("a"), Priority::Fresh, now));
        assert!(queue.pop(now).is_none(), "one reconcile at a time");
        queue.done(&a, WELL, now);
        assert!(queue.pop(now).is_some());
        queue.done(&a, WELL, now);
        assert!(queue.pop(now).is_none());
        assert!(queue.entries.is_empty(), "drops a settled key");
    }

    #[test]
    fn takes_fresh_keys_before_bulk_keys() {
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
    fn an_event_moves_a_key_before_any_number_of_bulk_keys() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for number in 0..5_000 {
            queue.add(key(&number.to_string()), Priority::Bulk, now);
        }
        let later = now + Duration::from_secs(1);
        assert!(!queue.add(key("4999"), Priority::Fresh, later), "it waits already");
        let (first, waited) = queue.pop(later).unwrap();
        assert_eq!((&*first.name, waited), ("4999", later - now), "the wait began with the first event");
        assert_eq!(queue.depths(), [(Priority::Fresh, 0), (Priority::Bulk, 4_999)]);
    }

    #[test]
    fn fresh_keys_do_not_starve_bulk_keys() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("bulk"), Priority::Bulk, now);
        for pass in 0..=16 {
            queue.add(key("fresh"), Priority::Fresh, now);
            let (next, _) = queue.pop(now).unwrap();
            assert_eq!(&*next.name == "bulk", pass == 16, "{pass}");
            queue.done(&next, WELL, now);
        }
    }

    #[test]
    fn backoff_grows_and_events_do_not_shorten_it() {
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
        assert!(queue.entries.is_empty());
    }

    #[test]
    fn forgive_enqueues_failed_keys_and_resets_their_backoff() {
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
        assert_eq!(
            (&*failed.name, queue.pop(now)),
            ("failed", None),
            "the timer of the other key has not fired"
        );
        queue.done(&failed, Ended::Failed, now);
        assert!(queue.next_timer().unwrap() <= now + FIRST_RETRY, "the backoff starts again");
    }

    #[test]
    fn an_event_replaces_the_timer() {
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
    fn enqueues_a_key_when_its_timer_fires() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, Ended::Well { again: Some(now + Duration::from_secs(5)), rest: Duration::ZERO }, now);
        assert!(queue.pop(now + Duration::from_secs(4)).is_none());
        assert!(queue.pop(now + Duration::from_secs(5)).is_some());
    }

    #[test]
    fn drops_the_timer_and_failures_of_a_key() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add(key("a"), Priority::Fresh, now);
        let (a, _) = queue.pop(now).unwrap();
        queue.done(&a, Ended::Failed, now);
        queue.forget(&a);
        assert!(queue.entries.is_empty());
        assert!(queue.next_timer().is_none());
    }

    #[test]
    fn leave_drops_the_matching_keys() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["fails", "runs", "waits"] {
            queue.add(key(name), Priority::Fresh, now);
        }
        let (failing, _) = queue.pop(now).unwrap();
        let (running, _) = queue.pop(now).unwrap();
        queue.done(&failing, Ended::Failed, now);
        queue.leave(|key| &*key.name != "other");
        assert_eq!((queue.depth(), queue.known(), queue.next_timer()), (0, 1, None), "keeps the running key");
        queue.done(&running, WELL, now);
        assert!(queue.entries.is_empty());
        assert!(queue.add(key("waits"), Priority::Fresh, now), "it may wait again");
    }

    #[test]
    fn a_rest_batches_events_and_expires_without_any() {
        let (mut queue, now, rest) = (Queue::default(), Instant::now(), Duration::from_millis(50));
        let rested = Ended::Well { again: None, rest };
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), rested, now);
        assert!(queue.add(key("a"), Priority::Fresh, now));
        assert!(!queue.add(key("a"), Priority::Fresh, now), "it waits already");
        assert_eq!((queue.pop(now), queue.next_timer()), (None, Some(now + rest)));
        assert!(queue.pop(now + rest).is_some());
        // An event that arrived during the reconcile waits for the rest too.
        queue.add(key("a"), Priority::Fresh, now + rest);
        queue.done(&key("a"), rested, now + rest);
        assert_eq!(queue.pop(now + rest), None);
        assert!(queue.pop(now + rest * 2).is_some());
        // Without an event the queue starts no reconcile and drops the key.
        queue.done(&key("a"), rested, now + rest * 2);
        assert_eq!(queue.pop(now + rest * 3), None);
        assert!(queue.entries.is_empty() && queue.timers.is_empty());
        // A requeue within the rest waits until the rest is over.
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), Ended::Well { again: Some(now), rest }, now);
        assert_eq!((queue.pop(now), queue.next_timer()), (None, Some(now + rest)));
    }

    #[test]
    fn an_event_at_the_end_of_a_rest_keeps_the_next_requeue() {
        let (mut queue, now, rest) = (Queue::default(), Instant::now(), Duration::from_millis(50));
        queue.add(key("a"), Priority::Fresh, now);
        queue.pop(now).unwrap();
        queue.done(&key("a"), Ended::Well { again: None, rest }, now);
        // The event arrives after the end of the rest, but before the queue has read the timer.
        let (later, again) = (now + rest, now + rest * 2);
        queue.add(key("a"), Priority::Fresh, later);
        queue.pop(later).unwrap();
        queue.done(&key("a"), Ended::Well { again: Some(again), rest: Duration::ZERO }, later);
        assert!(queue.pop(again).is_some(), "the end of the rest keeps the requeue");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Pass(u64),
        Add(u8, Priority),
        Pop,
        Done { key: u8, again: Option<u64>, rest: u64, failed: bool },
        Park(u8),
        Forgive,
    }

    fn step() -> impl Strategy<Value = Step> {
        let priority = prop_oneof![Just(Priority::Fresh), Just(Priority::Bulk)];
        let done = (0..KEYS, proptest::option::of(0..5_u64), 0..3_u64, proptest::bool::weighted(0.2));
        prop_oneof![
            2 => (1..4_u64).prop_map(Step::Pass),
            4 => (0..KEYS, priority).prop_map(|(key, priority)| Step::Add(key, priority)),
            4 => Just(Step::Pop),
            4 => done.prop_map(|(key, again, rest, failed)| Step::Done { key, again, rest, failed }),
            1 => (0..KEYS).prop_map(Step::Park),
            1 => Just(Step::Forgive),
        ]
    }

    const KEYS: u8 = 4;

    /// The reconcile that the queue owes a key.
    #[derive(Clone, Copy, Default)]
    struct Owed {
        /// The priority of the running reconcile.
        running: Option<Priority>,
        /// The highest priority of the events during the reconcile.
        dirty: Option<Priority>,
        /// Whether the last reconcile failed.
        failed: bool,
        /// The reconcile must not start before this time.
        rests_until: Option<Instant>,
        /// The reconcile is due from this time on.
        due: Option<Instant>,
        /// The highest priority of the events that the reconcile answers, if the key waits.
        waits: Option<Priority>,
    }

    impl Owed {
        /// An event, or the end of a reconcile with an event.
        fn wait(&mut self, priority: Priority, now: Instant) {
            self.due = Some(self.due.map_or(now, |due| due.min(now)));
            self.waits = Some(self.waits.map_or(priority, |already| already.min(priority)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// In any order of steps, the queue starts each reconcile that is due and no other, and those that answer a fresh
        /// event before the others.
        #[test]
        fn every_wake_is_followed_by_a_reconcile(steps in proptest::collection::vec(step(), 1..120)) {
            let start = Instant::now();
            let (mut queue, mut now) = (Queue::default(), start);
            let mut owed = [Owed::default(); KEYS as usize];
            let mut fresh_in_a_row = 0;
            let named = |index: u8| key(&index.to_string());
            let seconds = |count| Duration::from_secs(count);
            for step in steps {
                match step {
                    Step::Pass(count) => now += seconds(count),
                    Step::Add(index, priority) => {
                        queue.add(named(index), priority, now);
                        let one = &mut owed[usize::from(index)];
                        if one.running.is_some() {
                            one.dirty = Some(one.dirty.map_or(priority, |already| already.min(priority)));
                        } else if let Some(until) = one.rests_until.filter(|until| one.waits.is_none() && *until > now) {
                            one.due = Some(one.due.map_or(until, |due| due.min(until)));
                        } else {
                            one.wait(priority, now);
                        }
                    }
                    Step::Pop => {
                        for one in owed.iter_mut().filter(|one| one.waits.is_none()) {
                            // A timer is fresh.
                            one.waits = one.due.filter(|due| *due <= now).map(|_| Priority::Fresh);
                        }
                        let next = |priority| owed.iter().any(|one| one.waits == Some(priority));
                        let (fresh, bulk) = (next(Priority::Fresh), next(Priority::Bulk));
                        match queue.pop(now) {
                            Some((key, _)) => {
                                let one = &mut owed[key.name.parse::<usize>().unwrap()];
                                prop_assert!(one.running.is_none() && one.due.is_some_and(|due| due <= now));
                                let is_bulk_due = !fresh || bulk && fresh_in_a_row == FRESH_IN_A_ROW;
                                prop_assert_eq!(one.waits == Some(Priority::Bulk), is_bulk_due);
                                fresh_in_a_row = if is_bulk_due || !bulk { 0 } else { fresh_in_a_row + 1 };
                                *one = Owed { running: one.waits, failed: one.failed, ..Owed::default() };
                            }
                            None => prop_assert!(!fresh && !bulk),
                        }
                    }
                    Step::Done { key, again, rest, failed } if owed[usize::from(key)].running.is_some() => {
                        let one = &mut owed[usize::from(key)];
                        let (again, dirty) = (again.map(|again| now + seconds(again)), one.dirty);
                        *one = Owed { failed, ..Owed::default() };
                        if failed {
                            queue.done(&named(key), Ended::Failed, now);
                            // The backoff has jitter, so take its end from the queue.
                            let until = queue.entries[&named(key)].not_before;
                            prop_assert!(until.is_some_and(|until| until > now && until <= now + LONGEST_RETRY));
                            (one.rests_until, one.due) = (until, until);
                        } else {
                            queue.done(&named(key), Ended::Well { again, rest: seconds(rest) }, now);
                            let rests = now + seconds(rest);
                            one.rests_until = Some(rests);
                            match dirty {
                                Some(priority) if rest == 0 => one.wait(priority, now),
                                Some(_) => one.due = Some(rests),
                                None => one.due = again.map(|again| again.max(rests)),
                            }
                        }
                    }
                    Step::Park(index) if owed[usize::from(index)].running.is_some() => {
                        let one = &mut owed[usize::from(index)];
                        // As in the controller, the code that parks a key adds it again, with this priority.
                        let priority = one.running.into_iter().chain(one.dirty).min();
                        prop_assert_eq!(Some(queue.park(&named(index))), priority);
                        *one = Owed { failed: one.failed, ..Owed::default() };
                    }
                    Step::Done { .. } | Step::Park(_) => {}
                    Step::Forgive => {
                        queue.forgive(now);
                        for one in &mut owed {
                            if std::mem::take(&mut one.failed) && one.running.is_none() && one.waits.is_none() {
                                *one = Owed::default();
                                one.wait(Priority::Bulk, now);
                            }
                        }
                    }
                }
            }
            // At the end the queue owes no reconcile.
            let end = now + LONGEST_RETRY * 2;
            while let Some((key, _)) = queue.pop(end) {
                let running = Some(Priority::Fresh);
                owed[key.name.parse::<usize>().unwrap()] = Owed { running, ..Owed::default() };
            }
            prop_assert!(owed.iter().all(|one| one.running.is_some() || one.due.is_none()));
        }
    }
}
