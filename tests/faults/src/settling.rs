//! The rule of settling: a node that has settled stays settled while the same leader leads.
//!
//! A new leader may let the node settle again. The ledger has no line for each node that settles, because this would
//! cost a write for each node. The memory of a process that restarts, or that loses the Lease, is gone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// A leader renews its Lease every 5 s. After a longer gap, its term may have ended.
const LONGEST_TERM_WITHOUT_RENEWAL: SignedDuration = SignedDuration::from_secs(6);

/// The nodes that settle, and those that have settled.
#[derive(Debug, Default)]
pub struct Settling {
    /// The number of terms that have ended.
    ended: usize,
    /// Whether etcd was restored since the last write of the Lease. The next write shows this to the leader.
    is_restored: bool,
    holder: String,
    renewed: Option<Timestamp>,
    /// By UIDs of DaemonJob and Node: the term and the generation of the status in which the node had settled.
    settled: BTreeMap<(String, String), (usize, i64)>,
}

/// A node that is done with the template of a status, according to the events.
#[derive(Debug)]
pub struct DoneNode {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

fn listed<'v>(job: &'v Value, list: &str) -> impl Iterator<Item = &'v Value> {
    job["status"][list].as_array().into_iter().flatten()
}

/// Whether a status lists a node as settling.
pub fn settles(job: &Value, name: &str) -> bool {
    listed(job, "pendingNodes").any(|one| one["node"] == name && one["reason"] == "Settling")
}

impl Settling {
    /// The Lease was written.
    pub fn lease(&mut self, holder: &str, now: Timestamp) {
        let is_late = |renewed: Timestamp| now.duration_since(renewed) > LONGEST_TERM_WITHOUT_RENEWAL;
        if std::mem::take(&mut self.is_restored) || holder != self.holder || self.renewed.is_some_and(is_late)
        {
            self.term_ends();
        }
        (self.holder, self.renewed) = (holder.to_owned(), Some(now));
    }

    /// The leader drops what it has measured.
    fn term_ends(&mut self) {
        self.ended += 1;
    }

    /// Etcd was restored. A leader that notices this begins another term.
    pub fn restored(&mut self) {
        self.term_ends();
        self.is_restored = true;
    }

    /// A pod has succeeded, so its node must settle again.
    pub fn succeeded(&mut self, job: &str, node: &str) {
        self.settled.remove(&(job.to_owned(), node.to_owned()));
    }

    /// A manager has written a status. `done` are the nodes that are done with its template. A change of the spec may
    /// require a longer time. Returns the violations.
    pub fn status(&mut self, job: &Value, done: &[DoneNode]) -> Vec<String> {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        let term = (self.ended, job["metadata"]["generation"].as_i64().unwrap_or_default());
        let lists = ["failedNodes", "pendingNodes", "skippedNodes"];
        let is_listed = |node: &&DoneNode| {
            lists.iter().any(|list| listed(job, list).any(|one| one["node"] == node.name.as_str()))
        };
        let (named, others): (Vec<&DoneNode>, Vec<&DoneNode>) = done.iter().partition(is_listed);
        let mut wrong = Vec::new();
        for node in named.into_iter().filter(|node| settles(job, &node.name)) {
            let key = (uid.to_owned(), node.uid.clone());
            if self.settled.remove(&key) == Some(term) {
                wrong.push(format!("node {} has settled, and settles again without a new leader", node.name));
            }
        }
        // A manager that has not seen the success yet lists a node neither as done nor as settling.
        let succeeded = job["status"]["succeeded"].as_i64().and_then(|count| usize::try_from(count).ok());
        if succeeded == Some(others.len()) {
            self.settled.extend(others.iter().map(|node| ((uid.to_owned(), node.uid.clone()), term)));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A status with this number of done nodes and these nodes that settle.
    fn judge(settling: &mut Settling, succeeded: i64, settles: &[&str]) -> usize {
        let pending: Vec<Value> =
            settles.iter().map(|node| json!({ "node": node, "reason": "Settling" })).collect();
        let status = json!({ "succeeded": succeeded, "pendingNodes": pending });
        let job = json!({ "metadata": { "uid": "job", "generation": 1 }, "status": status });
        let done = ["a", "b"].map(|name| DoneNode { name: name.to_owned(), uid: format!("uid-{name}") });
        settling.status(&job, &done).len()
    }

    #[test]
    fn a_node_settles_again_after_a_success_or_for_a_new_leader() {
        let mut settling = Settling::default();
        settling.lease("one", at(0));
        assert_eq!(judge(&mut settling, 0, &["a"]), 0, "the manager has not seen the success of b");
        assert_eq!(judge(&mut settling, 1, &["b"]), 0);
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.lease("one", at(5));
        assert_eq!(judge(&mut settling, 1, &["a"]), 1);
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.succeeded("job", "uid-a");
        assert_eq!(judge(&mut settling, 1, &["a"]), 0);
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.lease("two", at(6));
        assert_eq!(judge(&mut settling, 0, &["a", "b"]), 0);
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.lease("two", at(20));
        assert_eq!(judge(&mut settling, 1, &["b"]), 0, "the term may have ended");
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.restored();
        assert_eq!(judge(&mut settling, 2, &[]), 0, "the leader has not noticed the restore");
        settling.lease("two", at(25));
        assert_eq!(judge(&mut settling, 1, &["a"]), 0);
        assert_eq!(judge(&mut settling, 2, &[]), 0);
        settling.lease("two", at(30));
        assert_eq!(judge(&mut settling, 1, &["a"]), 1);
    }
}
