//! The metrics of all DaemonJobs together, so that the number of series is bounded. Alerts use `crate::problems`, which
//! names DaemonJobs.

use jiff::{SignedDuration, Timestamp};
use prometheus::{
    IntCounter, IntCounterVec, PullingGauge, Registry, register_int_counter_vec_with_registry,
    register_int_counter_with_registry,
};
use quintet_runtime::cache::aggregate_gauge::Sums;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::conditions::{find_true, is_true};
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::refusals::Verb;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::write::executor::Execution;

use crate::api::{DaemonJob, DaemonJobStatus, ScheduledRun};
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
    objects: Sums<{ OBJECT_STATES.len() }>,
    due_times: IntCounterVec,
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
            objects: Sums::new(
                registry,
                "quintet_daemonjob_objects",
                "DaemonJobs by state, as in the conditions: those that settle, are stopped, or need a user.",
                OBJECT_STATES,
            )?,
            due_times: register_int_counter_vec_with_registry!(
                "quintet_daemonjob_due_times_total",
                "Due times of schedules by result: Complete, Failed, Held, Missed, Unfinished.",
                &["result"],
                registry
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
        for result in RESULTS {
            metrics.due_times.with_label_values(&[result]);
        }
        Ok(metrics)
    }

    /// Updates the gauges from the statuses, and counts failures of pods and results of due times. A standby does
    /// not count, because the sum over the processes would be wrong.
    pub fn follow(&self, objects: &Informer<DaemonJob>, pods: &Informer<Pod>, gate: &Gate) {
        self.nodes.follow(objects, counts);
        self.objects.follow(objects, states);
        let (due_times, of_leader) = (self.due_times.clone(), gate.clone());
        objects.subscribe(move |change| {
            if let Change::Applied { new, old: Some(old), .. } = change
                && of_leader.deadline().is_some()
            {
                for result in new_results(history(old), history(new)) {
                    due_times.with_label_values(&[result]).inc();
                }
            }
        });
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

/// The states of DaemonJobs in the gauge: reasons of the conditions Paused and Failed, other conditions, and
/// reasons why a wave is not over.
const OBJECT_STATES: [&str; 7] = [
    "MarkRefused",
    "MaxFailedNodesExceeded",
    "PausedByAnnotation",
    "ScheduleInvalid",
    "Settling",
    "WaitsForApproval",
    "WaveFailed",
];

/// The states of a DaemonJob, in the order of [`OBJECT_STATES`]. It may have several: a user may pause it while
/// its wave has failed.
fn states(job: &DaemonJob) -> [i64; OBJECT_STATES.len()] {
    let Some(status) = &job.status else { return [0; OBJECT_STATES.len()] };
    let reason = |type_| find_true(&status.conditions, type_).map(|condition| &*condition.reason);
    let waiting_for = status.rollout.as_ref().and_then(|rollout| rollout.waiting_for.as_deref());
    let reasons = [reason("Paused"), reason("Failed"), waiting_for];
    OBJECT_STATES.map(|state| i64::from(reasons.contains(&Some(state)) || is_true(&status.conditions, state)))
}

/// The results of due times, as in the history of the status.
const RESULTS: [&str; 5] = ["Complete", "Failed", "Held", "Missed", "Unfinished"];

fn history(job: &DaemonJob) -> &[ScheduledRun] {
    job.status.as_ref().map_or(&[][..], |status| &status.history)
}

/// The results that a history has and the one before has not. A run that is retried has another result later.
fn new_results(before: &[ScheduledRun], after: &[ScheduledRun]) -> Vec<&'static str> {
    let is_known = |one: &ScheduledRun| {
        before.iter().any(|known| known.due_time == one.due_time && known.result == one.result)
    };
    let new = after.iter().filter(|one| !is_known(one));
    new.filter_map(|one| RESULTS.into_iter().find(|result| one.result.as_deref() == Some(*result))).collect()
}

/// Registers the gauge of due times that no manager has processed.
pub fn register_lag(
    registry: &Registry,
    objects: &Informer<DaemonJob>,
    clock: Clock,
) -> Result<(), prometheus::Error> {
    let objects = objects.clone();
    let seconds = move || longest_lag(objects.all().iter().map(|job| &**job), clock.now()).as_secs_f64();
    let gauge = PullingGauge::new(
        "quintet_daemonjob_due_time_lag_seconds",
        "Time since the oldest due time that the manager has not processed; 0 if there is none.",
        Box::new(seconds),
    )?;
    registry.register(Box::new(gauge))
}

/// The time since the oldest due time that no status has processed. At a due time, the manager writes the next
/// one into the status, even if it begins no run.
fn longest_lag<'j>(jobs: impl Iterator<Item = &'j DaemonJob>, now: Timestamp) -> SignedDuration {
    let next = |job: &DaemonJob| Some(job.status.as_ref()?.schedule.as_ref()?.next_due_time.as_ref()?.0);
    let oldest = jobs.filter(|job| !job.terminating()).filter_map(next).min();
    oldest.map_or(SignedDuration::ZERO, |due| now.duration_since(due).max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn job(status: &Value) -> DaemonJob {
        serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "d"}, "spec": {"template": {}}, "status": status}))
        .unwrap()
    }

    /// The conditions that are True, and what the wave waits for.
    #[rstest]
    #[case::running(&[], "Nodes", &[])]
    #[case::settling(&[], "Settling", &["Settling"])]
    #[case::approval(&[("Paused", "WaitsForApproval")], "Approval", &["WaitsForApproval"])]
    #[case::failed_wave(&[("Paused", "WaveFailed")], "WaveFailed", &["WaveFailed"])]
    #[case::paused_in_a_failed_wave(&[("Paused", "PausedByAnnotation")], "WaveFailed",
        &["PausedByAnnotation", "WaveFailed"])]
    #[case::failed_nodes(&[("Paused", "MaxFailedNodesExceeded")], "Repair", &["MaxFailedNodesExceeded"])]
    #[case::fail_fast(&[("Failed", "MaxFailedNodesExceeded")], "", &["MaxFailedNodesExceeded"])]
    #[case::paused_in_the_spec(&[("Paused", "Paused")], "Paused", &[])]
    #[case::marks(&[("MarkRefused", "NotAllowed")], "Nodes", &["MarkRefused"])]
    #[case::schedule(&[("ScheduleInvalid", "ScheduleInvalid")], "", &["ScheduleInvalid"])]
    fn finds_the_states_in_the_status(
        #[case] conditions: &[(&str, &str)],
        #[case] waiting_for: &str,
        #[case] expected: &[&str],
    ) {
        let condition = |(type_, reason): &(&str, &str)| {
            json!({"type": type_, "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let job = job(&json!({"conditions": conditions, "rollout": {"waitingFor": waiting_for}}));
        let states = OBJECT_STATES.into_iter().zip(states(&job));
        let found: Vec<&str> = states.filter(|(_, count)| *count == 1).map(|(state, _)| state).collect();
        assert_eq!(found, expected);
    }

    /// The due times in the history, as hours, and their results.
    #[rstest]
    #[case::begins(&[], &[(3, None)], &[])]
    #[case::ends(&[(3, None)], &[(3, Some("Complete"))], &["Complete"])]
    #[case::stays(&[(3, Some("Complete"))], &[(3, Some("Complete"))], &[])]
    #[case::retry(&[(3, Some("Failed"))], &[(3, None)], &[])]
    #[case::ends_after_the_retry(&[(3, None)], &[(3, Some("Complete"))], &["Complete"])]
    #[case::next(&[(3, None)], &[(4, None), (3, Some("Unfinished"))], &["Unfinished"])]
    #[case::held(&[(3, None)], &[(4, Some("Held")), (3, None)], &["Held"])]
    #[case::missed(&[(4, Some("Held"))], &[(5, Some("Missed")), (4, Some("Held"))], &["Missed"])]
    #[case::of_another_version(&[], &[(3, Some("Postponed"))], &[])]
    fn counts_each_result_of_a_due_time_once(
        #[case] before: &[(i64, Option<&str>)],
        #[case] after: &[(i64, Option<&str>)],
        #[case] expected: &[&str],
    ) {
        let job = |runs: &[(i64, Option<&str>)]| {
            let run = |(hour, result): &(i64, Option<&str>)| {
                let due_time = format!("2026-01-01T{hour:02}:00:00Z");
                json!({"dueTime": due_time, "result": result})
            };
            job(&json!({"history": runs.iter().map(run).collect::<Vec<_>>()}))
        };
        assert_eq!(new_results(history(&job(before)), history(&job(after))), expected);
    }

    #[test]
    fn the_lag_is_that_of_the_oldest_due_time() {
        let of = |due: &str| job(&json!({"schedule": {"schedule": "@", "nextDueTime": due}}));
        let now = "2026-01-01T03:00:10Z".parse().unwrap();
        let lag = |jobs: &[DaemonJob]| longest_lag(jobs.iter(), now).as_secs();
        let (late, next) = (of("2026-01-01T03:00:00Z"), of("2026-01-01T04:00:00Z"));
        assert_eq!(lag(&[]), 0);
        assert_eq!(lag(&[job(&json!({})), next.clone()]), 0);
        assert_eq!(lag(&[next, late.clone(), of("2026-01-01T03:00:07Z")]), 10);
        let mut terminating = late;
        terminating.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T02:00:00Z")).unwrap();
        assert_eq!(lag(&[terminating]), 0);
    }

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
