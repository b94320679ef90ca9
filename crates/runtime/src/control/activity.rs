//! The current work of a controller, for gauges, debug pages, and logs that do not repeat themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::lock;
use crate::model::conditions::shorten;
use crate::model::object::Key;
use crate::model::repeated::is_worth_a_line;

/// Bytes of an error that are kept.
const LONGEST: usize = 512;

/// The current work of a controller. Clones are cheap and share their state.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    inner: Arc<Mutex<Now>>,
}

/// A snapshot of an [`Activity`].
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Keys that wait for a reconcile.
    pub waiting: usize,
    /// Keys that wait until the caches show the writes for them.
    pub parked: usize,
    /// Keys in the queue: waiting, running or with a timer.
    pub known: usize,
    /// The running reconciles and when they started.
    pub running: BTreeMap<Key, Instant>,
    /// The objects whose last reconcile failed. The next successful reconcile or a deletion removes an entry.
    pub failing: BTreeMap<Key, Failing>,
    /// The API server's message for objects with a refusal that waits for a retry. The next reconcile without a
    /// refusal removes the entry, and so does a deletion.
    pub refused: BTreeMap<Key, String>,
}

/// The recent failures of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Failing {
    /// The last error.
    pub error: String,
    /// How often in a row this error occurred.
    pub times: u64,
    /// When the error last occurred.
    pub at: Timestamp,
}

impl Activity {
    /// The total and the longest time that the running reconciles have taken so far.
    pub fn unfinished(&self) -> (Duration, Duration) {
        let now = lock(&self.inner);
        let taken = || now.running.values().map(Instant::elapsed);
        (taken().sum(), taken().max().unwrap_or_default())
    }

    /// Returns a snapshot.
    pub fn now(&self) -> Now {
        lock(&self.inner).clone()
    }

    /// Sets the numbers of keys: waiting for a reconcile, waiting for the caches, and in the queue.
    pub fn waits(&self, waiting: usize, parked: usize, known: usize) {
        let mut now = lock(&self.inner);
        (now.waiting, now.parked, now.known) = (waiting, parked, known);
    }

    /// Records the start of a reconcile.
    pub fn begins(&self, key: &Key) {
        lock(&self.inner).running.insert(key.clone(), Instant::now());
    }

    /// Records a successful reconcile, with the message of a refusal if there is one.
    pub fn ends(&self, key: &Key, refused: Option<String>) {
        let mut now = lock(&self.inner);
        now.running.remove(key);
        now.failing.remove(key);
        match refused {
            Some(message) => now.refused.insert(key.clone(), message),
            None => now.refused.remove(key),
        };
    }

    /// The number of failing objects, and the number of objects with a refusal.
    pub fn in_trouble(&self) -> (usize, usize) {
        let now = lock(&self.inner);
        (now.failing.len(), now.refused.len())
    }

    /// Records a reconcile that ended early, which leaves the object's last result unchanged.
    pub fn breaks_off(&self, key: &Key) {
        lock(&self.inner).running.remove(key);
    }

    /// Records a failed reconcile. Returns how often in a row this error occurred.
    pub fn fails(&self, key: &Key, error: &str, at: Timestamp) -> u64 {
        let error = &*shorten(error.to_owned(), LONGEST);
        let mut now = lock(&self.inner);
        now.running.remove(key);
        let before = now.failing.get(key).filter(|failing| failing.error == error);
        let times = before.map_or(0, |failing| failing.times) + 1;
        now.failing.insert(key.clone(), Failing { error: error.to_owned(), times, at });
        times
    }

    /// Drops the objects that this process may not reconcile any more.
    pub fn leaves(&self, goes: impl Fn(&Key) -> bool) {
        let mut now = lock(&self.inner);
        now.failing.retain(|key, _| !goes(key));
        now.refused.retain(|key, _| !goes(key));
    }

    /// Drops a deleted object.
    pub fn forgets(&self, key: &Key) {
        let mut now = lock(&self.inner);
        now.failing.remove(key);
        now.refused.remove(key);
    }
}

/// Up to this number of failing objects, each of them is logged.
const FEW: usize = 20;

/// The shortest time between log lines while more objects fail.
const SELDOM: Duration = Duration::from_secs(10);

/// Whether to log the n-th equal failure of an object, given the number of failing objects and the time since the
/// last log line. If thousands of objects fail, most share one cause.
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
    async fn tracks_running_failing_and_refused_objects() {
        let (activity, at) = (Activity::default(), Timestamp::UNIX_EPOCH);
        activity.begins(&key("a"));
        tokio::time::sleep(Duration::from_secs(2)).await;
        activity.begins(&key("b"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(activity.unfinished(), (Duration::from_secs(4), Duration::from_secs(3)));
        activity.ends(&key("a"), None);
        assert_eq!(activity.fails(&key("b"), "no", at), 1);
        assert_eq!(activity.fails(&key("b"), "no", at), 2);
        assert_eq!(activity.fails(&key("b"), "never", at), 1, "another error restarts the count");
        activity.breaks_off(&key("b"));
        assert_eq!(activity.now().failing[&key("b")].error, "never", "a requeue keeps the error");
        assert!(activity.now().running.is_empty());
        activity.ends(&key("b"), Some("a quota".to_owned()));
        assert_eq!(activity.in_trouble(), (0, 1));
        activity.fails(&key("b"), "no", at);
        assert_eq!(activity.now().refused[&key("b")], "a quota", "a failed reconcile keeps the refusal");
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
    fn limits_log_lines_while_many_objects_fail() {
        let soon = Some(Duration::from_secs(1));
        assert!(is_worth_a_line_among(1, FEW, soon), "a few");
        assert!(!is_worth_a_line_among(1, FEW + 1, soon));
        assert!(is_worth_a_line_among(1, FEW + 1, None) && is_worth_a_line_among(1, FEW + 1, Some(SELDOM)));
        assert!(!is_worth_a_line_among(3, FEW + 1, None));
    }
}
