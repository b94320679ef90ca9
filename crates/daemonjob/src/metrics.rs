//! The metrics for alerts, summed over all DaemonJobs, so that the number of series is bounded.

use prometheus::{
    IntCounter, IntCounterVec, Registry, register_int_counter_vec_with_registry,
    register_int_counter_with_registry,
};
use quintet_runtime::cache::aggregate_gauge::Sums;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::refusals::Verb;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::write::executor::Execution;

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::labels::daemonjob_of;
use crate::outcome::{self, DeletedFor};

/// The values of the label `reason`. Other reasons count as `Other`, so that the number of series is bounded.
const REASONS: [&str; 9] = [
    "Error",
    "OOMKilled",
    "Evicted",
    "DeadlineExceeded",
    "ContainerCannotRun",
    "StartError",
    "NodeAffinity",
    "OutOfcpu",
    "OutOfmemory",
];

/// The metrics of this kind.
#[derive(Clone, Debug)]
pub struct Metrics {
    nodes: Sums<{ STATES.len() }>,
    attempts: IntCounter,
    failures: IntCounterVec,
    ledger_writes: IntCounter,
    marks: IntCounter,
}

impl Metrics {
    /// Creates and registers the metrics.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            nodes: Sums::new(
                registry,
                "quintet_daemonjob_nodes",
                "Nodes by state, summed over the status of every DaemonJob: desired, succeeded, failed, pending, skipped.",
                STATES,
            )?,
            attempts: register_int_counter_with_registry!(
                "quintet_daemonjob_attempts_total",
                "Pods created for DaemonJobs.",
                registry
            )?,
            failures: register_int_counter_vec_with_registry!(
                "quintet_daemonjob_pod_failures_total",
                "Pods of DaemonJobs that failed without being deleted, by reason.",
                &["reason"],
                registry
            )?,
            ledger_writes: register_int_counter_with_registry!(
                "quintet_daemonjob_ledger_writes_total",
                "Writes to the ledgers' ConfigMaps.",
                registry
            )?,
            marks: register_int_counter_with_registry!(
                "quintet_daemonjob_node_marks_total",
                "Nodes that the manager changed after a success, as onSuccess requires.",
                registry
            )?,
        };
        for reason in REASONS.into_iter().chain(["Other"]) {
            metrics.failures.with_label_values(&[reason]);
        }
        Ok(metrics)
    }

    /// Updates the gauges from the statuses, and counts failures of pods. A standby does not count failures,
    /// because the sum over the processes would be wrong.
    pub fn follow(&self, objects: &Informer<DaemonJob>, pods: &Informer<Pod>, gate: &Gate) {
        self.nodes.follow(objects, counts);
        let (metrics, gate) = (self.clone(), gate.clone());
        pods.subscribe(move |change| {
            if let Change::Applied { new, old: Some(old), .. } = change
                && failed(old, new)
                && daemonjob_of(new).is_some()
                && gate.deadline().is_some()
            {
                let why = outcome::why(new);
                let reason = REASONS.into_iter().find(|known| *known == why).unwrap_or("Other");
                metrics.failures.with_label_values(&[reason]).inc();
            }
        });
    }

    /// Counts the writes of a reconcile.
    pub fn count(&self, execution: &Execution) {
        for (verb, kind, _) in &execution.done {
            self.attempts.inc_by(u64::from((*verb, *kind) == (Verb::Create, "Pod")));
            self.ledger_writes.inc_by(u64::from(*kind == "ConfigMap"));
            self.marks.inc_by(u64::from(*kind == "Node"));
        }
    }
}

/// Whether a pod failed without being deleted. A suspended or drained pod must not raise an alert.
fn failed(old: &Pod, new: &Pod) -> bool {
    let is_exhausted = || DeletedFor::of(new) == Some(DeletedFor::Exhausted);
    (new.meta.deleted.is_none() || is_exhausted()) && new.phase == Phase::Failed && old.phase != Phase::Failed
}

/// The states of nodes in the gauge.
const STATES: [&str; 5] = ["desired", "succeeded", "failed", "pending", "skipped"];

/// Nodes by state, in the order of [`STATES`].
fn counts(job: &DaemonJob) -> [i64; STATES.len()] {
    let DaemonJobStatus { desired, succeeded, failed, pending, skipped, .. } =
        job.status.clone().unwrap_or_default();
    [desired, succeeded, failed, pending, skipped].map(|count| count.unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L8: neither suspend nor a drain counts as a failure.
    #[test]
    fn does_not_count_deleted_pods_as_failures() {
        let pod = |deleted: Option<&str>, phase: &str, reason: Option<&str>| -> Pod {
            let annotations = serde_json::json!({"dj.dysproz.io/deleted-for": reason});
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "p", "deletionTimestamp": deleted,
                    "annotations": reason.map(|_| annotations)},
                "status": {"phase": phase}
            }))
            .unwrap()
        };
        let (running, at) = (pod(None, "Running", None), Some("2026-01-01T00:00:00Z"));
        assert!(failed(&running, &pod(None, "Failed", None)));
        assert!(!failed(&running, &pod(at, "Failed", None)));
        assert!(!failed(&running, &pod(at, "Failed", Some("Suspend"))));
        assert!(failed(&running, &pod(at, "Failed", Some("Exhausted"))));
        assert!(!failed(&pod(None, "Failed", None), &pod(None, "Failed", None)));
    }

    #[test]
    fn counts_writes_by_kind_and_verb() {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let execution = Execution {
            done: vec![
                (Verb::Create, "Pod", "a".into()),
                (Verb::Create, "Pod", "b".into()),
                (Verb::Delete, "Pod", "c".into()),
                (Verb::MergePatch, "ConfigMap", "d".into()),
                (Verb::Create, "ConfigMap", "e".into()),
                (Verb::JsonPatch, "Pod", "f".into()),
                (Verb::JsonPatch, "Node", "g".into()),
            ],
            ..Execution::default()
        };
        metrics.count(&execution);
        assert_eq!((metrics.attempts.get(), metrics.ledger_writes.get(), metrics.marks.get()), (2, 2, 1));
    }
}
