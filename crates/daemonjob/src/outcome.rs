//! The meaning of a pod's end: the rules of a Job, applied to each node separately.
//!
//! Sources: the Job controller's backoffLimit (restarts of containers count under OnFailure), KEP-3329
//! (podFailurePolicy, DisruptionTarget), KEP-3850 (FailIndex).

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::core_types::{Exit, Node, Phase, Pod};

use crate::api::{DaemonJob, ExitCodeOperator, PodFailureAction, PodFailurePolicy, PodFailureRule};
use crate::eligibility::Placement;
use crate::ledger::{Entry, Outcome};

/// The default of backoffLimit, as for a Job.
const BACKOFF_LIMIT: i32 = 6;

/// Annotation: the reason why the manager deletes the pod. The manager sets it before the deletion, so that
/// no rule depends on exit codes or clocks to recognize its own deletions.
pub const DELETED_FOR_ANNOTATION: &str = "dj.dysproz.io/deleted-for";

/// The reason why the manager deletes a pod that may be running. Pods store the names of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum DeletedFor {
    /// spec.suspend is set.
    Suspend,
    /// activeDeadlineSeconds have passed.
    Deadline,
    /// FailFast ended the run.
    FailFast,
    /// A rule of podFailurePolicy failed the run.
    FailJob,
    /// The pod must not run on its node.
    Misplaced,
    /// The pod did not start in time.
    PendingDeadline,
    /// The kubelet restarted its containers too often.
    Exhausted,
    /// Another pod exists for the node, or the ledger has a later pod.
    Superfluous,
    /// The pod has an older template.
    Outdated,
}

impl DeletedFor {
    /// The value of the annotation.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The reason in the annotation of a pod.
    pub fn of(pod: &Pod) -> Option<Self> {
        pod.meta.annotations.get(DELETED_FOR_ANNOTATION)?.parse().ok()
    }
}

/// The largest expected difference between the clocks of a node and of the API server.
const SKEW: SignedDuration = SignedDuration::from_secs(2);

/// The failure rules of a DaemonJob.
#[derive(Debug)]
pub struct Rules<'a> {
    policy: Option<&'a PodFailurePolicy>,
    limit: i64,
    disruption_limit: Option<i64>,
    pending_deadline: Option<SignedDuration>,
    /// The node rules of the template.
    pub placement: Placement,
}

/// The limit that ended the attempts on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// A rule of podFailurePolicy.
    Rule,
    /// backoffLimit, with its value.
    BackoffLimit(i64),
    /// disruptionLimit, with its value.
    DisruptionLimit(i64),
}

/// The fate of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// The pod runs, or may run later.
    Open,
    /// The pod does not count: it was deleted before it was bound to a node, or as superfluous.
    NeverRan,
    /// The pod has ended.
    Ended {
        /// Its outcome.
        outcome: Outcome,
        /// The failures that it adds, for backoffLimit.
        failures: u32,
        /// When it ended.
        at: Timestamp,
    },
}

impl<'a> Rules<'a> {
    /// The rules of this DaemonJob.
    pub fn of(job: &'a DaemonJob) -> Self {
        Self {
            policy: job.spec.pod_failure_policy.as_ref(),
            limit: i64::from(job.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT)),
            disruption_limit: job.spec.disruption_limit.map(i64::from),
            pending_deadline: job.spec.pending_deadline_seconds.map(SignedDuration::from_secs),
            placement: Placement::of(job.spec.template.spec()),
        }
    }

    /// Whether the node is cordoned or tainted, so that disruptions there do not count.
    pub fn keeps_away(&self, node: &Node) -> bool {
        node.unschedulable || self.placement.is_tainted(node)
    }

    /// The limit that a node exceeds in this rollout. Such a node is not retried.
    pub fn exceeded(&self, latest: &Entry, rollout: u64) -> Option<Exceeded> {
        if !latest.counts_on(rollout) {
            return None;
        }
        if latest.outcome.is_final() {
            Some(Exceeded::Rule)
        } else if self.exceeds_limit(latest.failures) {
            Some(Exceeded::BackoffLimit(self.limit))
        } else {
            let limit = self.disruption_limit.filter(|limit| i64::from(latest.disruptions) > *limit)?;
            Some(Exceeded::DisruptionLimit(limit))
        }
    }

    fn exceeds_limit(&self, failures: u32) -> bool {
        i64::from(failures) > self.limit
    }

    /// Whether the restarts of a pod and the earlier failures of its node exceed the limit. The test is that
    /// of a Job: a limit of 0 allows no restart.
    pub fn restarts_too_often(&self, pod: &Pod, failures: u32) -> bool {
        pod.restarts > 0 && i64::from(failures) + i64::from(pod.restarts) >= self.limit
    }

    /// When the manager skips a node whose pods the kubelet has rejected since then.
    pub fn rejected_until(&self, since: Timestamp) -> Option<Timestamp> {
        since.checked_add(self.pending_deadline?).ok()
    }

    /// When the manager gives up a pod that has been Pending since then. Its init containers may have run.
    pub fn pending_until(&self, pod: &Pod, since: impl FnOnce() -> Timestamp) -> Option<Timestamp> {
        let deadline = self.pending_deadline.filter(|_| pod.phase == Phase::Pending)?;
        since().checked_add(deadline).ok()
    }

    /// The fate of a pod. `failures` counts the earlier failures of its node in the same rollout.
    /// `is_kept_away` means that the node is cordoned or tainted.
    pub fn fate(&self, pod: &Pod, failures: u32, is_kept_away: bool) -> PodOutcome {
        let asked = pod.meta.deletion_asked();
        // The clock of the node may be behind the clock of the API server.
        let at = || pod.finished.max(asked).max(pod.meta.created).unwrap_or_default();
        let ended = |outcome, failures| PodOutcome::Ended { outcome, failures, at: at() };
        let disrupted = if is_kept_away { Outcome::Ignored } else { Outcome::Disrupted };
        let mark = asked.and_then(|_| DeletedFor::of(pod));
        match (pod.phase, mark) {
            (Phase::Succeeded, _) => ended(Outcome::Succeeded, 0),
            (Phase::Failed, Some(mark)) => match mark {
                DeletedFor::Exhausted => ended(Outcome::Failed, pod.restarts.saturating_add(1)),
                DeletedFor::PendingDeadline => ended(Outcome::PendingDeadlineExceeded, 0),
                DeletedFor::Superfluous => PodOutcome::NeverRan,
                _ => ended(Outcome::Ignored, 0),
            },
            (Phase::Failed, None) if pod.rejection.is_some() => ended(Outcome::Rejected, 0),
            (Phase::Failed, None) => {
                let made_to_go = asked.is_some_and(|asked| was_made_to_go(pod, asked));
                match self.action(pod, made_to_go) {
                    Some(PodFailureAction::FailJob) => ended(Outcome::FailedJob, 1),
                    Some(PodFailureAction::FailIndex) => ended(Outcome::FailedIndex, 1),
                    // The pod still counts as disrupted, so that a cordoned node waits.
                    Some(PodFailureAction::Ignore) if made_to_go || pod.disrupted => ended(disrupted, 0),
                    Some(PodFailureAction::Ignore) => ended(Outcome::Ignored, 0),
                    None if made_to_go && self.restarts_too_often(pod, failures) => {
                        ended(Outcome::Failed, pod.restarts.saturating_add(1))
                    }
                    None if made_to_go || pod.disrupted => ended(disrupted, 0),
                    Some(PodFailureAction::Count) | None => ended(Outcome::Failed, 1),
                }
            }
            _ if asked.is_some() && pod.node.is_none() => match mark {
                Some(DeletedFor::PendingDeadline) => ended(Outcome::PendingDeadlineExceeded, 0),
                Some(DeletedFor::Misplaced) => ended(Outcome::Ignored, 0),
                _ => PodOutcome::NeverRan,
            },
            _ => PodOutcome::Open,
        }
    }

    /// The action of the first rule that matches. Exit codes of a deleted pod do not count: the deletion
    /// causes some.
    fn action(&self, pod: &Pod, made_to_go: bool) -> Option<PodFailureAction> {
        let matches = |rule: &&PodFailureRule| {
            let by_exit = rule.on_exit_codes.as_ref().is_some_and(|on_exit| {
                let concerned =
                    |container: &str| on_exit.container_name.as_deref().is_none_or(|name| name == container);
                let mut exits = pod.exits.iter().filter(|exit| concerned(&exit.container));
                let is_in = on_exit.operator == ExitCodeOperator::In;
                !made_to_go && exits.any(|exit| on_exit.values.contains(&exit.code) == is_in)
            });
            let by_condition = rule.on_pod_conditions.iter().flatten().any(|on_condition| {
                pod.conditions.iter().any(|(type_, status)| {
                    **type_ == *on_condition.type_
                        && **status == *on_condition.status.as_deref().unwrap_or("True")
                })
            });
            by_exit || by_condition
        };
        self.policy?.rules.iter().find(matches).map(|rule| rule.action)
    }
}

/// Whether a deletion by another client caused the failure of a pod. The kubelet does not restart a container
/// of a terminating pod, so its last end may be older than the request.
fn was_made_to_go(pod: &Pod, asked: Timestamp) -> bool {
    let has_own_reason = pod.reason.as_deref().is_some_and(|reason| !reason.is_empty());
    let ended_after = |finished: Timestamp| finished.checked_add(SKEW).is_ok_and(|end| end >= asked);
    pod.restartable && !has_own_reason || pod.finished.is_none_or(ended_after)
}

/// The reason for a pod's failure in one word, for messages and for the metric of failures.
pub fn why(pod: &Pod) -> &str {
    let exit = last_failure(pod).map(|exit| &*exit.reason);
    let mut reasons = [pod.reason.as_deref(), exit].into_iter().flatten();
    reasons.find(|reason| !reason.is_empty()).unwrap_or("Error")
}

/// Exit code and reason of a failed pod, as in the ledger: `1/Error`, or `/Evicted` without a container's
/// end.
pub fn exit(pod: &Pod) -> String {
    let code = last_failure(pod).map(|exit| exit.code.to_string());
    format!("{}/{}", code.unwrap_or_default(), why(pod))
}

fn last_failure(pod: &Pod) -> Option<&Exit> {
    pod.exits.first().or(pod.last_exit.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn job(spec: &Value) -> DaemonJob {
        let mut spec = spec.clone();
        if spec.get("template").is_none() {
            spec["template"] = json!({"spec": {"restartPolicy": "Never"}});
        }
        serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "d"}, "spec": spec}))
        .unwrap()
    }

    /// A pod that was created at 00:00, ran from 00:10 and ended with this code at 00:20.
    fn failed(code: i32) -> Value {
        json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n", "restartPolicy": "Never"},
            "status": {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {
                "exitCode": code, "reason": "Error",
                "startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:20Z"}}}]}
        })
    }

    fn asked(mut pod: Value, second: u32) -> Value {
        pod["metadata"]["deletionTimestamp"] = json!(format!("2026-01-01T00:01:{second:02}Z"));
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(60);
        pod
    }

    fn fate(spec: &Value, pod: Value, failures: u32) -> (Option<Outcome>, u32) {
        match Rules::of(&job(spec)).fate(&serde_json::from_value(pod).unwrap(), failures, false) {
            PodOutcome::Ended { outcome, failures, .. } => (Some(outcome), failures),
            PodOutcome::NeverRan => (None, 1),
            PodOutcome::Open => (None, 0),
        }
    }

    fn with(mut pod: Value, path: &str, value: Value) -> Value {
        *pod.pointer_mut(path).unwrap() = value;
        pod
    }

    fn disrupted(mut pod: Value) -> Value {
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
        pod
    }

    #[rstest]
    #[case::failed(failed(1), Some(Outcome::Failed), 1)]
    #[case::succeeded(with(failed(0), "/status/phase", json!("Succeeded")), Some(Outcome::Succeeded), 0)]
    #[case::succeeded_while_terminating(asked(with(failed(0), "/status/phase", json!("Succeeded")), 15), Some(Outcome::Succeeded), 0)]
    #[case::running(with(failed(0), "/status/phase", json!("Running")), None, 0)]
    #[case::terminating_and_running(asked(with(failed(0), "/status/phase", json!("Running")), 15), None, 0)]
    #[case::killed(asked(failed(137), 15), Some(Outcome::Disrupted), 0)]
    #[case::killed_in_the_same_second(asked(failed(137), 20), Some(Outcome::Disrupted), 0)]
    #[case::killed_by_a_clock_ahead(asked(failed(137), 22), Some(Outcome::Disrupted), 0)]
    #[case::deleted_after_it_failed(asked(failed(1), 23), Some(Outcome::Failed), 1)]
    #[case::evicted(disrupted(failed(137)), Some(Outcome::Disrupted), 0)]
    fn outcomes(#[case] pod: Value, #[case] outcome: Option<Outcome>, #[case] failures: u32) {
        assert_eq!(fate(&json!({}), pod, 0), (outcome, failures));
    }

    fn marked(mut pod: Value, reason: DeletedFor) -> Value {
        pod["metadata"]["annotations"] = json!({DELETED_FOR_ANNOTATION: reason.word()});
        pod
    }

    #[rstest]
    #[case::by_another_client(None, None)]
    #[case::in_time(Some(DeletedFor::PendingDeadline), Some(Outcome::PendingDeadlineExceeded))]
    #[case::its_node_became_unhealthy(Some(DeletedFor::Misplaced), Some(Outcome::Ignored))]
    #[case::suspended(Some(DeletedFor::Suspend), None)]
    fn judges_a_pod_that_is_deleted_before_it_is_bound(
        #[case] reason: Option<DeletedFor>,
        #[case] outcome: Option<Outcome>,
    ) {
        let mut pod = asked(failed(0), 15);
        pod["status"] = json!({"phase": "Pending"});
        pod["spec"] = json!({});
        let pod = reason.map_or(pod.clone(), |reason| marked(pod, reason));
        let never = u32::from(outcome.is_none());
        assert_eq!(fate(&json!({}), pod.clone(), 0), (outcome, never));
        // A bound pod is open until the kubelet reports its end.
        let bound = with(pod, "/spec", json!({"nodeName": "n"}));
        assert_eq!(fate(&json!({}), bound, 0), (None, 0));
    }

    /// M1: the annotation decides, not exit codes or clocks.
    #[rstest]
    #[case::suspend(DeletedFor::Suspend, Some(Outcome::Ignored), 0)]
    #[case::deadline(DeletedFor::Deadline, Some(Outcome::Ignored), 0)]
    #[case::fail_fast(DeletedFor::FailFast, Some(Outcome::Ignored), 0)]
    #[case::fail_job(DeletedFor::FailJob, Some(Outcome::Ignored), 0)]
    #[case::misplaced(DeletedFor::Misplaced, Some(Outcome::Ignored), 0)]
    #[case::outdated(DeletedFor::Outdated, Some(Outcome::Ignored), 0)]
    #[case::pending(DeletedFor::PendingDeadline, Some(Outcome::PendingDeadlineExceeded), 0)]
    #[case::exhausted(DeletedFor::Exhausted, Some(Outcome::Failed), 3)]
    #[case::superfluous(DeletedFor::Superfluous, None, 1)]
    fn the_reason_on_a_deleted_pod_decides(
        #[case] reason: DeletedFor,
        #[case] outcome: Option<Outcome>,
        #[case] failures: u32,
    ) {
        // By its node's clock the pod ended long before its deletion, with an exit code that fails the run.
        let rules = json!({"podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]}});
        let mut pod = marked(asked(failed(143), 59), reason);
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(2);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        assert_eq!(fate(&rules, pod.clone(), 0), (outcome, failures));
        // A success overrides every reason.
        let succeeded = with(pod.clone(), "/status/phase", json!("Succeeded"));
        assert_eq!(fate(&rules, succeeded, 0), (Some(Outcome::Succeeded), 0));
        // Without a deletion the annotation has no effect.
        pod["metadata"]["deletionTimestamp"] = Value::Null;
        assert_eq!(fate(&rules, pod, 0), (Some(Outcome::FailedJob), 1));
    }

    /// H5 and A20: a pod that the kubelet rejects never ran. A pod that failed to start did.
    #[rstest]
    #[case::node_affinity("NodeAffinity", json!([]), Outcome::Rejected)]
    #[case::out_of_pods("OutOfpods", json!([{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]), Outcome::Rejected)]
    #[case::admission("UnexpectedAdmissionError", json!([]), Outcome::Rejected)]
    #[case::deadline("DeadlineExceeded", json!([]), Outcome::Failed)]
    #[case::evicted("Evicted", json!([]), Outcome::Failed)]
    #[case::start_error("", json!([{"name": "c", "state": {"terminated": {"exitCode": 128, "reason": "StartError",
        "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:20Z"}}}]), Outcome::Failed)]
    fn does_not_count_a_rejected_pod_as_an_attempt(
        #[case] reason: &str,
        #[case] containers: Value,
        #[case] outcome: Outcome,
    ) {
        let mut pod = failed(1);
        pod["status"] = json!({"phase": "Failed", "reason": reason, "containerStatuses": containers});
        assert_eq!(fate(&json!({}), pod, 0).0, Some(outcome));
    }

    #[test]
    fn ignores_a_disruption_on_a_cordoned_node() {
        let pod: Pod = serde_json::from_value(disrupted(failed(137))).unwrap();
        let job = job(&json!({}));
        let outcome = |is_kept_away| match Rules::of(&job).fate(&pod, 0, is_kept_away) {
            PodOutcome::Ended { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        };
        assert_eq!((outcome(false), outcome(true)), (Outcome::Disrupted, Outcome::Ignored));
    }

    /// L3: the kubelet does not restart a container with restartPolicy Never, whatever the pod's is.
    #[test]
    fn fails_a_deleted_pod_whose_container_never_restarts() {
        let mut pod = asked(failed(1), 59);
        pod["spec"] = json!({"nodeName": "n", "restartPolicy": "OnFailure",
            "containers": [{"name": "c", "restartPolicy": "Never"}]});
        assert_eq!(fate(&json!({}), pod.clone(), 0), (Some(Outcome::Failed), 1));
        pod["spec"]["containers"] = json!([{"name": "c"}]);
        assert_eq!(fate(&json!({}), pod, 0), (Some(Outcome::Disrupted), 0));
    }

    /// L3 and L4: only restarts of the containers that do the work count.
    #[test]
    fn does_not_count_restarts_of_sidecars() {
        let pod = |restarts: Value, policy: Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "c", "restartPolicy": policy}],
                    "initContainers": [{"name": "s", "restartPolicy": "Always"}]},
                "status": {"phase": "Running", "initContainerStatuses": [{"name": "s", "restartCount": 9}],
                    "containerStatuses": [{"name": "c", "restartCount": restarts}]}
            }))
            .unwrap()
        };
        let job = job(&json!({"backoffLimit": 2}));
        let rules = Rules::of(&job);
        assert!(!rules.restarts_too_often(&pod(json!(0), json!(null)), 0));
        assert!(rules.restarts_too_often(&pod(json!(2), json!("OnFailure")), 0));
    }

    /// L10: a pod without a container's end ended when its condition Ready became False.
    #[test]
    fn dates_a_pod_without_container_ends_by_its_readiness() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n"},
            "status": {"phase": "Failed", "reason": "Evicted", "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:20:00Z"}]}
        }))
        .unwrap();
        let PodOutcome::Ended { at, .. } = Rules::of(&job(&json!({}))).fate(&pod, 0, false) else { panic!() };
        assert_eq!(at.to_string(), "2026-01-01T00:20:00Z");
    }

    /// The kubelet does not restart a container of a terminating pod, so the last crash remains.
    #[rstest]
    #[case::between_two_starts(2, "", Outcome::Disrupted, 0)]
    #[case::too_often(6, "", Outcome::Failed, 7)]
    #[case::evicted_before(2, "Evicted", Outcome::Failed, 1)]
    fn judges_a_deleted_pod_between_two_restarts(
        #[case] restarts: u32,
        #[case] own_reason: &str,
        #[case] outcome: Outcome,
        #[case] failures: u32,
    ) {
        let mut pod = asked(failed(1), 59);
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(restarts);
        pod["status"]["reason"] = json!(own_reason);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        let spec = json!({"template": {"spec": {"restartPolicy": "OnFailure"}}});
        assert_eq!(fate(&spec, pod, 0), (Some(outcome), failures));
    }

    #[test]
    fn a_pod_never_ends_before_its_creation() {
        let mut pod = failed(1);
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:05:00Z");
        let pod = serde_json::from_value(pod).unwrap();
        let PodOutcome::Ended { at, .. } = Rules::of(&job(&json!({}))).fate(&pod, 0, false) else { panic!() };
        assert_eq!(Some(at), pod.meta.created);
    }

    #[rstest]
    #[case::no_rules(json!([]), failed(1), Outcome::Failed)]
    #[case::in_(json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 42]}}]), failed(42), Outcome::FailedJob)]
    #[case::not_listed(json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]), failed(42), Outcome::Failed)]
    #[case::not_in(json!([{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1]}}]), failed(42), Outcome::FailedIndex)]
    #[case::other_container(json!([{"action": "FailJob", "onExitCodes": {"containerName": "x", "operator": "In", "values": [1]}}]), failed(1), Outcome::Failed)]
    #[case::this_container(json!([{"action": "Ignore", "onExitCodes": {"containerName": "c", "operator": "In", "values": [1]}}]), failed(1), Outcome::Ignored)]
    #[case::first_wins(json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]), failed(1), Outcome::Ignored)]
    #[case::condition(json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]), disrupted(failed(1)), Outcome::Disrupted)]
    #[case::counted_condition(json!([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]), disrupted(failed(1)), Outcome::Failed)]
    #[case::other_status(json!([{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]), disrupted(failed(1)), Outcome::Disrupted)]
    #[case::killed(json!([{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]), asked(failed(137), 15), Outcome::Disrupted)]
    fn applies_the_pod_failure_policy_first(
        #[case] rules: Value,
        #[case] pod: Value,
        #[case] outcome: Outcome,
    ) {
        assert_eq!(fate(&json!({"podFailurePolicy": {"rules": rules}}), pod, 0).0, Some(outcome));
    }

    #[rstest]
    #[case::below(3, 1, 1, false)]
    #[case::reached_by_both(3, 1, 2, true)]
    #[case::reached_by_restarts(3, 0, 3, true)]
    #[case::limit_0_without_restart(0, 0, 0, false)]
    #[case::limit_0_with_one(0, 0, 1, true)]
    fn counts_restarts_with_restart_policy_on_failure(
        #[case] limit: i32,
        #[case] failures: u32,
        #[case] restarts: u32,
        #[case] too_often: bool,
    ) {
        let spec = json!({"backoffLimit": limit, "template": {"spec": {"restartPolicy": "OnFailure"}}});
        let mut pod = asked(failed(137), 15);
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(restarts);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        let decoded: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(Rules::of(&job(&spec)).restarts_too_often(&decoded, failures), too_often);
        // A pod deleted for its restarts fails its node permanently. Otherwise the pod was only disrupted.
        let (outcome, counted) = fate(&spec, pod, failures);
        assert_eq!(outcome == Some(Outcome::Failed), too_often);
        assert_eq!(Rules::of(&job(&spec)).exceeds_limit(failures + counted), too_often);
    }

    #[test]
    fn allows_as_many_failures_as_the_limit() {
        let job = job(&json!({"backoffLimit": 2}));
        assert!(!Rules::of(&job).exceeds_limit(2) && Rules::of(&job).exceeds_limit(3));
    }

    #[test]
    fn names_the_reason_for_a_failure() {
        let pod = |value: Value| -> Pod { serde_json::from_value(value).unwrap() };
        assert_eq!(why(&pod(failed(1))), "Error");
        let mut evicted = failed(1);
        evicted["status"]["reason"] = json!("Evicted");
        assert_eq!(why(&pod(evicted)), "Evicted");
        assert_eq!(why(&pod(json!({"metadata": {"name": "p"}}))), "Error");
    }
}
