//! The input of a DaemonJob's plan: plain data from the caches.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::refusals::Refusals;

use crate::FINALIZER;
use crate::clocks::Clocks;
use crate::index::Index;
use crate::labels::HASH_LABEL;
use crate::ledger::Shard;
use crate::mark_prefixes::Permitted;

/// The state that a plan reads besides the DaemonJob.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name, including pods that lost the label of the watch.
    pub pods: Vec<Arc<Pod>>,
    /// The pods of deleted DaemonJobs that had the same name.
    pub predecessors: Vec<Arc<Pod>>,
    /// Every node, by name.
    pub nodes: Vec<Arc<Node>>,
    /// The shards of its ledger.
    pub ledger: Vec<Arc<Shard>>,
    /// Shards that another client deleted while this process ran, as they were last seen. A shard cannot be
    /// created again while it is terminating.
    pub deleted_shards: Vec<Arc<Shard>>,
    /// Existing pods and shards that lost the label of the watch.
    pub unlabelled: Unlabelled,
    /// The API server's message if it rejects the pods of this template, and the time of the next dry run.
    pub invalid_template: Option<(String, Timestamp)>,
    /// Whether this process is about to exit. The plan then only records outcomes and releases pods.
    pub stopping: bool,
    /// The keys of further taints that announce the deletion of a node.
    pub deletion_taints: Arc<[String]>,
    /// The keys that `onSuccess` may use in this namespace.
    pub permitted_marks: Permitted,
    /// How long nodes have been not Ready or unhealthy, as this process has seen it.
    pub clocks: Clocks,
    /// The index of this state, or of an earlier one.
    pub index: Arc<Index>,
    /// The writes that the API server rejected recently.
    pub refusals: Refusals,
}

/// Objects that lost the label of the watch.
#[derive(Debug, Default)]
pub struct Unlabelled {
    /// Pods. Those with their owner reference are also in [`World::pods`].
    pub pods: Vec<Arc<Pod>>,
    /// Shards of the ledger. They are also in [`World::ledger`].
    pub shards: Vec<Arc<Shard>>,
}

impl World {
    /// Every shard whose lines are known, whether or not it still exists.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Shard>> + Clone {
        self.ledger.iter().chain(&self.deleted_shards)
    }

    /// The index of this state, for a template with this hash.
    pub fn indexed(&self, hash: &str) -> Arc<Index> {
        Index::of(&self.index, hash, &self.nodes, &self.pods, self.shards())
    }

    /// Whether a pod of the template with this hash exists or existed.
    pub fn had_pod_of(&self, hash: &str) -> bool {
        let mut lines = self.shards().flat_map(|shard| shard.entries.values().flatten());
        self.pods.iter().any(|pod| pod.label(HASH_LABEL) == Some(hash))
            || lines.any(|line| *line.hash == *hash)
    }
}

/// Whether the manager must look up a pod that left the watch, because it may only have lost its label. A pod
/// that the plan released does not need it: it had ended and was recorded, or it never had a node.
pub fn may_have_lost_its_label(pod: &Pod) -> bool {
    let is_held = pod.meta.has_finalizer(FINALIZER);
    if pod.terminating() {
        is_held && pod.is_running() && pod.node.is_some()
    } else {
        is_held || pod.is_running()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::runs("Running", Some("n"), false, true, true)]
    #[case::runs_and_is_terminating("Running", Some("n"), true, true, true)]
    #[case::has_ended_and_is_not_recorded("Succeeded", Some("n"), false, true, true)]
    #[case::was_recorded_and_deleted("Succeeded", Some("n"), false, false, false)]
    #[case::was_deleted_and_then_recorded("Succeeded", Some("n"), true, true, false)]
    #[case::never_had_a_node("Pending", None, true, true, false)]
    #[case::another_client_removed_the_finalizer("Running", Some("n"), true, false, false)]
    fn looks_up_only_pods_it_has_not_released(
        #[case] phase: &str,
        #[case] node: Option<&str>,
        #[case] is_terminating: bool,
        #[case] is_held: bool,
        #[case] expected: bool,
    ) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "p",
                "deletionTimestamp": is_terminating.then_some("2026-01-01T00:00:00Z"),
                "finalizers": if is_held { vec![FINALIZER] } else { Vec::new() },
            },
            "spec": { "nodeName": node },
            "status": { "phase": phase },
        }))
        .unwrap();
        assert_eq!(may_have_lost_its_label(&pod), expected);
    }
}
