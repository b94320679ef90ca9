//! The current work of a controller, for gauges, debug pages, and logs that do not repeat themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::lock;
use crate::model::conditions::shorten;
use crate::model::object::Key;
use crate::model::problem::Problem;
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
    /// The objects with a refusal that waits for a retry. The next reconcile without a refusal removes the entry, and
    /// so does a deletion.
    pub refused: BTreeMap<Key, Refused>,
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
    /// When the first of the failures in a row occurred, with any error.
    pub since: Timestamp,
}

/// A refusal of an object that waits for a retry.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The API server's message for the last one.
    pub message: String,
    /// Since when the object has had a refusal after every reconcile.
    pub since: Timestamp,
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

    /// Records a successful reconcile at this time, with the message of a refusal if there is one.
    pub fn ends(&self, key: &Key, refused: Option<String>, at: Timestamp) {
        let mut now = lock(&self.inner);
        now.running.remove(key);
        now.failing.remove(key);
        let before = now.refused.remove(key);
        if let Some(message) = refused {
            let since = before.map_or(at, |before| before.since);
            now.refused.insert(key.clone(), Refused { message, since });
        }
    }

    /// The number of failing objects, and the number of objects with a refusal.
    pub fn in_trouble(&self) -> (usize, usize) {
        let now = lock(&self.inner);
        (now.failing.len(), now.refused.len())
    }

    /// Calls `found` for each failing object and each object with a refusal.
    pub fn find_problems(&self, found: &mut dyn FnMut(&Key, Problem)) {
        let now = lock(&self.inner);
        for (key, failing) in &now.failing {
            found(key, Problem::failing("ReconcileFailed", failing.since));
        }
        for (key, refused) in &now.refused {
            found(key, Problem::failing("WriteRejected", refused.since));
        }
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
        let before = now.failing.get(key);
        let since = before.map_or(at, |failing| failing.since);
        let times = before.filter(|failing| failing.error == error).map_or(0, |failing| failing.times) + 1;
        now.failing.insert(key.clone(), Failing { error: error.to_owned(), times, at, since });
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
        activity.ends(&key("a"), None, at);
        assert_eq!(activity.fails(&key("b"), "no", at), 1);
        assert_eq!(activity.fails(&key("b"), "no", at), 2);
        assert_eq!(activity.fails(&key("b"), "never", at), 1, "another error restarts the count");
        activity.breaks_off(&key("b"));
        assert_eq!(activity.now().failing[&key("b")].error, "never", "a requeue keeps the error");
        assert!(activity.now().running.is_empty());
        activity.ends(&key("b"), Some("a quota".to_owned()), at);
        assert_eq!(activity.in_trouble(), (0, 1));
        activity.fails(&key("b"), "no", at);
        assert_eq!(
            activity.now().refused[&key("b")].message,
            "a quota",
            "a failed reconcile keeps the refusal"
        );
        activity.ends(&key("b"), None, at);
        assert_eq!(activity.in_trouble(), (0, 0));
        for name in ["c", "d"] {
            activity.ends(&key(name), Some("a quota".to_owned()), at);
            activity.fails(&key(name), "no", at);
        }
        activity.forgets(&key("c"));
        activity.leaves(|key| &*key.name == "d");
        assert_eq!(activity.in_trouble(), (0, 0));
    }

    #[test]
    fn a_problem_lasts_until_a_reconcile_succeeds() {
        let (activity, at) = (Activity::default(), |second| Timestamp::from_second(second).unwrap());
        let problems = || {
            let mut found = Vec::new();
            activity.find_problems(&mut |key, problem| found.push((key.name.to_string(), problem)));
            found
        };
        activity.fails(&key("a"), "no", at(1));
        activity.fails(&key("a"), "never", at(2));
        activity.breaks_off(&key("a"));
        let failed = Problem::failing("ReconcileFailed", at(1));
        assert_eq!(problems(), [("a".to_owned(), failed)], "another error is the same problem");
        activity.ends(&key("a"), Some("a quota".to_owned()), at(3));
        activity.fails(&key("a"), "no", at(4));
        activity.ends(&key("a"), Some("a webhook".to_owned()), at(5));
        let rejected = Problem::failing("WriteRejected", at(3));
        assert_eq!(problems(), [("a".to_owned(), rejected)]);
        activity.ends(&key("a"), None, at(6));
        assert_eq!(problems(), []);
        activity.fails(&key("a"), "no", at(7));
        assert_eq!(problems(), [("a".to_owned(), Problem::failing("ReconcileFailed", at(7)))]);
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
