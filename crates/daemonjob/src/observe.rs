//! What a DaemonJob's plan looks at: plain data, gathered from the caches.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::refusals::Refusals;

use crate::FINALIZER;
use crate::clocks::Clocks;
use crate::labels::HASH_LABEL;
use crate::ledger::Shard;

/// What a plan looks at besides the DaemonJob itself.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name; those that have lost the label that the watch selects by included.
    pub pods: Vec<Arc<Pod>>,
    /// Every node, by name.
    pub nodes: Vec<Arc<Node>>,
    /// The shards of its ledger.
    pub ledger: Vec<Arc<Shard>>,
    /// Shards that somebody else has deleted while we ran, as they were last seen. One that is still terminating stands in
    /// the way of its successor.
    pub deleted_shards: Vec<Arc<Shard>>,
    /// Pods and shards that are there, but have lost the label that the watch selects by.
    pub unlabelled: Unlabelled,
    /// Why the API server does not take a pod of this template, if it does not, and when it is asked again.
    pub invalid_template: Option<(String, Timestamp)>,
    /// Whether this process is about to end: what is known is written down, and nothing else is done.
    pub stopping: bool,
    /// Keys of further taints that announce the deletion of a node.
    pub deletion_taints: Arc<[String]>,
    /// How long nodes have been unwell, as this process has seen it.
    pub clocks: Clocks,
    /// What the API server refused lately.
    pub refusals: Refusals,
}

/// What has lost the label that the watch selects by.
#[derive(Debug, Default)]
pub struct Unlabelled {
    /// Pods; but for those that have lost their owner as well, they are among [`World::pods`], too.
    pub pods: Vec<Arc<Pod>>,
    /// Shards of the ledger; they are among [`World::ledger`] as well.
    pub shards: Vec<Arc<Shard>>,
}

impl World {
    /// Every shard whose lines are known, whether or not it is still there.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.ledger.iter().chain(&self.deleted_shards).map(|shard| &**shard)
    }

    /// Whether there is, or was, a pod of the template with this hash.
    pub fn had_pod_of(&self, hash: &str) -> bool {
        let mut lines = self.shards().flat_map(|shard| shard.entries.values().flatten());
        self.pods.iter().any(|pod| pod.label(HASH_LABEL) == Some(hash))
            || lines.any(|line| *line.hash == *hash)
    }
}

/// Whether a pod that has left the watch is asked for, since it may only have lost its label. One that the plan may have let go
/// has gone by that: it had ended and was recorded, or never had a node.
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
    #[case::runs_and_is_told_to_go("Running", Some("n"), true, true, true)]
    #[case::has_ended_and_is_not_recorded("Succeeded", Some("n"), false, true, true)]
    #[case::was_recorded_and_deleted("Succeeded", Some("n"), false, false, false)]
    #[case::was_deleted_and_then_recorded("Succeeded", Some("n"), true, true, false)]
    #[case::never_had_a_node("Pending", None, true, true, false)]
    #[case::somebody_took_our_finalizer_off("Running", Some("n"), true, false, false)]
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
