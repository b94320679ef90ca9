//! What goes on in a controller right now: for its gauges, for the debug pages, and for logs that do not repeat
//! themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::model::conditions::shorten;
use crate::model::object::Key;
use crate::model::repeated::is_worth_a_line;

/// Bytes of an error that are kept.
const LONGEST: usize = 512;

/// What a controller does now. Cheap to clone; every clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    inner: Arc<Mutex<Now>>,
}

/// A snapshot of an [`Activity`].
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Keys that wait for a pass.
    pub waiting: usize,
    /// Keys that wait for the caches to show what was written for them.
    pub parked: usize,
    /// Keys that the queue knows: those that wait for a pass or for a time, and those of the passes that run.
    pub known: usize,
    /// The passes that run, and since when.
    pub running: BTreeMap<Key, Instant>,
    /// The objects whose last pass failed. Each goes with its next good pass, or with its object.
    pub failing: BTreeMap<Key, Failing>,
    /// The objects for which the API server refuses something that is tried again, and its words. Each goes with the next pass
    /// for which nothing is refused, or with its object.
    pub refused: BTreeMap<Key, String>,
}

/// How the passes of an object have failed lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Failing {
    /// The last failure.
    pub error: String,
    /// How often in a row it was this one.
    pub times: u64,
    /// When it was last.
    pub at: Timestamp,
}

impl Now {
    /// For how long the passes that run have run, together.
    pub fn unfinished(&self) -> Duration {
        self.running.values().map(Instant::elapsed).sum()
    }

    /// For how long the longest of them has run.
    pub fn longest(&self) -> Duration {
        self.running.values().map(Instant::elapsed).max().unwrap_or_default()
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long the passes that run have run, together and the longest of them.
    pub fn unfinished(&self) -> (Duration, Duration) {
        let now = self.lock();
        (now.unfinished(), now.longest())
    }

    /// What it does now.
    pub fn now(&self) -> Now {
        self.lock().clone()
    }

    /// How many keys wait for a pass, how many for the caches, and how many the queue knows.
    pub fn waits(&self, waiting: usize, parked: usize, known: usize) {
        let mut now = self.lock();
        (now.waiting, now.parked, now.known) = (waiting, parked, known);
    }

    /// A pass over this object has begun.
    pub fn begins(&self, key: &Key) {
        self.lock().running.insert(key.clone(), Instant::now());
    }

    /// It has ended well, apart from what the API server has refused.
    pub fn ends(&self, key: &Key, refused: Option<String>) {
        let mut now = self.lock();
        now.running.remove(key);
        now.failing.remove(key);
        match refused {
            Some(message) => now.refused.insert(key.clone(), message),
            None => now.refused.remove(key),
        };
    }

    /// How many objects fail, and for how many something is refused.
    pub fn in_trouble(&self) -> (usize, usize) {
        let now = self.lock();
        (now.failing.len(), now.refused.len())
    }

    /// It ended early and says nothing about the object.
    pub fn breaks_off(&self, key: &Key) {
        self.lock().running.remove(key);
    }

    /// It has failed. Returns how often in a row it has failed like this.
    pub fn fails(&self, key: &Key, error: &str, at: Timestamp) -> u64 {
        let error = &*shorten(error.to_owned(), LONGEST);
        let mut now = self.lock();
        now.running.remove(key);
        let before = now.failing.get(key).filter(|failing| failing.error == error);
        let times = before.map_or(0, |failing| failing.times) + 1;
        now.failing.insert(key.clone(), Failing { error: error.to_owned(), times, at });
        times
    }

    /// These objects are another process's to look at.
    pub fn leaves(&self, goes: impl Fn(&Key) -> bool) {
        let mut now = self.lock();
        now.failing.retain(|key, _| !goes(key));
        now.refused.retain(|key, _| !goes(key));
    }

    /// The object is gone.
    pub fn forgets(&self, key: &Key) {
        let mut now = self.lock();
        now.failing.remove(key);
        now.refused.remove(key);
    }
}

/// So many objects that fail are told of one by one.
const FEW: usize = 20;

/// How often one of more than a few is told of.
const SELDOM: Duration = Duration::from_secs(10);

/// Whether the n-th of the same failures of one object is worth a line of the log, where so many objects fail and the last line
/// was so long ago: what is wrong with thousands is mostly one thing.
pub fn is_worth_a_line_among(times: u64, failing: usize, last: Option<Duration>) -> bool {
    is_worth_a_line(times) && (failing <= FEW || last.is_none_or(|last| last >= SELDOM))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "n".into(), name: name.into(), uid: name.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_and_what_fails_is_known_until_it_ends() {
        let (activity, at) = (Activity::default(), Timestamp::UNIX_EPOCH);
        activity.begins(&key("a"));
        tokio::time::sleep(Duration::from_secs(2)).await;
        activity.begins(&key("b"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = activity.now();
        assert_eq!((now.unfinished(), now.longest()), (Duration::from_secs(4), Duration::from_secs(3)));
        activity.ends(&key("a"), None);
        assert_eq!(activity.fails(&key("b"), "no", at), 1);
        assert_eq!(activity.fails(&key("b"), "no", at), 2);
        assert_eq!(activity.fails(&key("b"), "never", at), 1, "another failure is counted anew");
        activity.breaks_off(&key("b"));
        assert_eq!(activity.now().failing[&key("b")].error, "never", "who breaks off has not succeeded");
        assert!(activity.now().running.is_empty());
        activity.ends(&key("b"), Some("a quota".to_owned()));
        assert_eq!(activity.in_trouble(), (0, 1));
        activity.fails(&key("b"), "no", at);
        assert_eq!(activity.now().refused[&key("b")], "a quota", "a pass that fails says nothing about it");
        activity.ends(&key("b"), None);
        assert_eq!(activity.in_trouble(), (0, 0));
        for name in ["c", "d"] {
            activity.ends(&key(name), Some("a quota".to_owned()));
            activity.fails(&key(name), "no", at);
        }
        activity.forgets(&key("c"));
        activity.leaves(|key| &*key.name == "d");
        assert_eq!(activity.in_trouble(), (0, 0));
    }

    #[test]
    fn what_is_wrong_with_thousands_is_not_told_of_each() {
        let soon = Some(Duration::from_secs(1));
        assert!(is_worth_a_line_among(1, FEW, soon), "a few");
        assert!(!is_worth_a_line_among(1, FEW + 1, soon));
        assert!(is_worth_a_line_among(1, FEW + 1, None) && is_worth_a_line_among(1, FEW + 1, Some(SELDOM)));
        assert!(!is_worth_a_line_among(3, FEW + 1, None));
    }
}
