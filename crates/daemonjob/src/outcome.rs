//! How a pod ended, and what that counts for: Job's rules, applied to one node at a time.
//!
//! Sources: the Job controller's backoffLimit (restarts of containers count under OnFailure), KEP-3329
//! (podFailurePolicy, DisruptionTarget), KEP-3850 (FailIndex).

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::core_types::{Node, Phase, Pod};

use crate::api::{DaemonJob, ExitCodeOperator, PodFailureAction, PodFailurePolicy, PodFailureRule};
use crate::eligibility::Placement;
use crate::ledger::{Entry, Outcome};

/// Failures that a node may have where the spec says nothing: the Job's default.
const BACKOFF_LIMIT: i32 = 6;

/// Annotation: why the manager deletes the pod. It is set before the pod is deleted, so that neither exit codes nor
/// clocks need to tell who deleted it.
pub const DELETED_FOR_ANNOTATION: &str = "dj.dysproz.io/deleted-for";

/// Why the manager deletes a pod that may be running. The names of the variants are stored.
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
    /// The node must not run it any more.
    Misplaced,
    /// It did not start in time.
    PendingDeadline,
    /// The kubelet restarted its containers too often.
    Exhausted,
    /// There is another pod for the node, or the ledger has a later one.
    Superfluous,
    /// It has an older template.
    Outdated,
}

impl DeletedFor {
    /// The value of the annotation.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The reason that is written on a pod.
    pub fn of(pod: &Pod) -> Option<Self> {
        pod.meta.annotations.get(DELETED_FOR_ANNOTATION)?.parse().ok()
    }
}

/// How far the clocks of a node and of the API server may differ before a kill is taken for a failure.
const SKEW: SignedDuration = SignedDuration::from_secs(2);

/// What a DaemonJob says about failures.
#[derive(Debug)]
pub struct Rules<'a> {
    policy: Option<&'a PodFailurePolicy>,
    limit: i64,
    disruption_limit: Option<i64>,
    pending_deadline: Option<SignedDuration>,
    placement: Placement,
}

/// Why a node is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// A rule of podFailurePolicy.
    Rule,
    /// backoffLimit, which is this.
    BackoffLimit(i64),
    /// disruptionLimit, which is this.
    DisruptionLimit(i64),
}

/// What has become of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or may yet.
    Open,
    /// It counts for nothing: it was deleted before it was bound to a node, or as superfluous.
    NeverRan,
    /// It is over.
    Ended {
        /// How.
        outcome: Outcome,
        /// By how much that counts against backoffLimit.
        failures: u32,
        /// When.
        at: Timestamp,
    },
}

impl<'a> Rules<'a> {
    /// What this DaemonJob says.
    pub fn of(job: &'a DaemonJob) -> Self {
        Self {
            policy: job.spec.pod_failure_policy.as_ref(),
            limit: i64::from(job.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT)),
            disruption_limit: job.spec.disruption_limit.map(i64::from),
            pending_deadline: job.spec.pending_deadline_seconds.map(SignedDuration::from_secs),
            placement: Placement::of(job.spec.template.spec()),
        }
    }

    /// What the template says about nodes.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether the node is cordoned or tainted: then disruptions there do not count.
    pub fn keeps_away(&self, node: &Node) -> bool {
        node.unschedulable || self.placement.is_tainted(node)
    }

    /// Which limit a node exceeds in this rollout: it is not tried again.
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

    /// Whether the kubelet has restarted the containers of a pod too often, together with the failures before it: Job's
    /// test, which at a limit of 0 allows no restart.
    pub fn restarts_too_often(&self, pod: &Pod, failures: u32) -> bool {
        pod.restarts > 0 && i64::from(failures) + i64::from(pod.restarts) >= self.limit
    }

    /// When a node is skipped whose pods the kubelet rejects since then.
    pub fn rejected_until(&self, since: Timestamp) -> Option<Timestamp> {
        since.checked_add(self.pending_deadline?).ok()
    }

    /// When a pod that is Pending since then is given up; its init containers may have run.
    pub fn pending_until(&self, pod: &Pod, since: Timestamp) -> Option<Timestamp> {
        let deadline = self.pending_deadline.filter(|_| pod.phase == Phase::Pending)?;
        since.checked_add(deadline).ok()
    }

    /// What has become of a pod, after this number of failures of its node in the same rollout. `is_kept_away`: the node
    /// is cordoned or tainted.
    pub fn fate(&self, pod: &Pod, failures: u32, is_kept_away: bool) -> Fate {
        let asked = pod.meta.deletion_asked();
        // The clock of a node may be behind the API server's.
        let at = pod.finished.max(asked).max(pod.meta.created).unwrap_or_default();
        let ended = |outcome, failures| Fate::Ended { outcome, failures, at };
        let disrupted = if is_kept_away { Outcome::Ignored } else { Outcome::Disrupted };
        let mark = asked.and_then(|_| DeletedFor::of(pod));
        match (pod.phase, mark) {
            (Phase::Succeeded, _) => ended(Outcome::Succeeded, 0),
            (Phase::Failed, Some(mark)) => match mark {
                DeletedFor::Exhausted => ended(Outcome::Failed, pod.restarts.saturating_add(1)),
                DeletedFor::PendingDeadline => ended(Outcome::PendingDeadlineExceeded, 0),
                DeletedFor::Superfluous => Fate::NeverRan,
                _ => ended(Outcome::Ignored, 0),
            },
            (Phase::Failed, None) if pod.rejection.is_some() => ended(Outcome::Rejected, 0),
            (Phase::Failed, None) => {
                let made_to_go = asked.is_some_and(|asked| was_made_to_go(pod, asked));
                match self.action(pod, made_to_go) {
                    Some(PodFailureAction::FailJob) => ended(Outcome::FailedJob, 1),
                    Some(PodFailureAction::FailIndex) => ended(Outcome::FailedIndex, 1),
                    // A disruption remains one, for which a cordoned node waits.
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
                _ => Fate::NeverRan,
            },
            _ => Fate::Open,
        }
    }

    /// What the first rule that matches says. It ignores the exit codes of a deleted pod: the deletion can cause them.
    fn action(&self, pod: &Pod, made_to_go: bool) -> Option<PodFailureAction> {
        let matches = |rule: &&PodFailureRule| {
            let by_exit = rule.on_exit_codes.as_ref().is_some_and(|wanted| {
                let concerned =
                    |container: &str| wanted.container_name.as_deref().is_none_or(|name| name == container);
                !made_to_go
                    && pod.exits.iter().filter(|exit| concerned(&exit.container)).any(|exit| {
                        let listed = wanted.values.contains(&exit.code);
                        match wanted.operator {
                            ExitCodeOperator::In => listed,
                            ExitCodeOperator::NotIn => !listed,
                        }
                    })
            });
            let by_condition = rule.on_pod_conditions.iter().flatten().any(|wanted| {
                pod.conditions.iter().any(|(type_, status)| {
                    **type_ == *wanted.type_ && **status == *wanted.status.as_deref().unwrap_or("True")
                })
            });
            by_exit || by_condition
        };
        self.policy?.rules.iter().find(matches).map(|rule| rule.action)
    }
}

/// Whether a pod that was deleted, by another client than the manager, failed because of that. The kubelet does not
/// restart a container of a terminating pod: its last end is then older than the request.
fn was_made_to_go(pod: &Pod, asked: Timestamp) -> bool {
    let has_own_reason = pod.reason.as_deref().is_some_and(|reason| !reason.is_empty());
    let ended_after = |finished: Timestamp| finished.checked_add(SKEW).is_ok_and(|end| end >= asked);
    pod.restartable && !has_own_reason || pod.finished.is_none_or(ended_after)
}

/// Why a pod failed, in one word: for a person, and for the metric of failures.
pub fn why(pod: &Pod) -> &str {
    let reason = pod.reason.as_deref().filter(|reason| !reason.is_empty());
    let exit = || {
        pod.exits
            .first()
            .or(pod.last_exit.as_deref())
            .map(|exit| &*exit.reason)
            .filter(|reason| !reason.is_empty())
    };
    reason.or_else(exit).unwrap_or("Error")
}

/// Exit code and reason of a pod that failed, as the ledger keeps them: `1/Error`, or `/Evicted` if no container ended.
pub fn exit(pod: &Pod) -> String {
    let code = pod.exits.first().or(pod.last_exit.as_deref()).map(|exit| exit.code.to_string());
    format!("{}/{}", code.unwrap_or_default(), why(pod))
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
            Fate::Ended { outcome, failures, .. } => (Some(outcome), failures),
            Fate::NeverRan => (None, 1),
            Fate::Open => (None, 0),
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
    fn a_pod_that_is_deleted_before_it_is_bound(
        #[case] reason: Option<DeletedFor>,
        #[case] outcome: Option<Outcome>,
    ) {
        let mut pod = asked(failed(0), 15);
        pod["status"] = json!({"phase": "Pending"});
        pod["spec"] = json!({});
        let pod = reason.map_or(pod.clone(), |reason| marked(pod, reason));
        let never = u32::from(outcome.is_none());
        assert_eq!(fate(&json!({}), pod.clone(), 0), (outcome, never));
        // On a node it is open until the kubelet reports its end.
        let bound = with(pod, "/spec", json!({"nodeName": "n"}));
        assert_eq!(fate(&json!({}), bound, 0), (None, 0));
    }

    /// M1: the word decides, not exit codes or clocks.
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
        // By the clock of its node it ended long before it was deleted, with a code that fails the run.
        let rules = json!({"podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]}});
        let mut pod = marked(asked(failed(143), 59), reason);
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(2);
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        assert_eq!(fate(&rules, pod.clone(), 0), (outcome, failures));
        // A success wins over every reason.
        let succeeded = with(pod.clone(), "/status/phase", json!("Succeeded"));
        assert_eq!(fate(&rules, succeeded, 0), (Some(Outcome::Succeeded), 0));
        // Without a deletion the reason has no effect.
        pod["metadata"]["deletionTimestamp"] = Value::Null;
        assert_eq!(fate(&rules, pod, 0), (Some(Outcome::FailedJob), 1));
    }

    /// H5 and A20: what the kubelet rejects never ran; what failed to start did.
    #[rstest]
    #[case::node_affinity("NodeAffinity", json!([]), Outcome::Rejected)]
    #[case::out_of_pods("OutOfpods", json!([{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]), Outcome::Rejected)]
    #[case::admission("UnexpectedAdmissionError", json!([]), Outcome::Rejected)]
    #[case::deadline("DeadlineExceeded", json!([]), Outcome::Failed)]
    #[case::evicted("Evicted", json!([]), Outcome::Failed)]
    #[case::start_error("", json!([{"name": "c", "state": {"terminated": {"exitCode": 128, "reason": "StartError",
        "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:20Z"}}}]), Outcome::Failed)]
    fn a_rejected_pod_is_no_attempt(
        #[case] reason: &str,
        #[case] containers: Value,
        #[case] outcome: Outcome,
    ) {
        let mut pod = failed(1);
        pod["status"] = json!({"phase": "Failed", "reason": reason, "containerStatuses": containers});
        assert_eq!(fate(&json!({}), pod, 0).0, Some(outcome));
    }

    #[test]
    fn a_disruption_of_a_cordoned_node_counts_for_nothing() {
        let pod: Pod = serde_json::from_value(disrupted(failed(137))).unwrap();
        let job = job(&json!({}));
        let outcome = |is_kept_away| match Rules::of(&job).fate(&pod, 0, is_kept_away) {
            Fate::Ended { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        };
        assert_eq!((outcome(false), outcome(true)), (Outcome::Disrupted, Outcome::Ignored));
    }

    /// L3: the kubelet does not restart a container with restartPolicy Never, whatever the pod's policy.
    #[test]
    fn a_failed_container_that_is_not_restarted_fails_a_deleted_pod() {
        let mut pod = asked(failed(1), 59);
        pod["spec"] = json!({"nodeName": "n", "restartPolicy": "OnFailure",
            "containers": [{"name": "c", "restartPolicy": "Never"}]});
        assert_eq!(fate(&json!({}), pod.clone(), 0), (Some(Outcome::Failed), 1));
        pod["spec"]["containers"] = json!([{"name": "c"}]);
        assert_eq!(fate(&json!({}), pod, 0), (Some(Outcome::Disrupted), 0));
    }

    /// L3 and L4: only restarts of containers that the job is made of count.
    #[test]
    fn restarts_of_sidecars_do_not_count() {
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

    /// L10: a pod without an end of any container ended when it was not Ready any more.
    #[test]
    fn a_pod_without_container_ends_ended_when_it_was_not_ready() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n"},
            "status": {"phase": "Failed", "reason": "Evicted", "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:20:00Z"}]}
        }))
        .unwrap();
        let Fate::Ended { at, .. } = Rules::of(&job(&json!({}))).fate(&pod, 0, false) else { panic!() };
        assert_eq!(at.to_string(), "2026-01-01T00:20:00Z");
    }

    /// The kubelet does not start containers of a pod again that was asked to go: the last crash stays.
    #[rstest]
    #[case::between_two_starts(2, "", Outcome::Disrupted, 0)]
    #[case::too_often(6, "", Outcome::Failed, 7)]
    #[case::evicted_before(2, "Evicted", Outcome::Failed, 1)]
    fn a_pod_that_crashes_and_is_deleted(
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
    fn no_clock_is_believed_to_be_behind() {
        let mut pod = failed(1);
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:05:00Z");
        let pod = serde_json::from_value(pod).unwrap();
        let Fate::Ended { at, .. } = Rules::of(&job(&json!({}))).fate(&pod, 0, false) else { panic!() };
        assert_eq!(Some(at), pod.meta.created);
    }

    #[rstest]
    #[case::no_rule(json!([]), failed(1), Outcome::Failed)]
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
    fn the_failure_policy_decides_first(#[case] rules: Value, #[case] pod: Value, #[case] outcome: Outcome) {
        assert_eq!(fate(&json!({"podFailurePolicy": {"rules": rules}}), pod, 0).0, Some(outcome));
    }

    #[rstest]
    #[case::below(3, 1, 1, false)]
    #[case::reached_by_both(3, 1, 2, true)]
    #[case::reached_by_restarts(3, 0, 3, true)]
    #[case::limit_0_without_restart(0, 0, 0, false)]
    #[case::limit_0_with_one(0, 0, 1, true)]
    fn restarts_count_under_on_failure(
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
        // Once it was made to go for that, its node has failed for good; else it was only disrupted.
        let (outcome, counted) = fate(&spec, pod, failures);
        assert_eq!(outcome == Some(Outcome::Failed), too_often);
        assert_eq!(Rules::of(&job(&spec)).exceeds_limit(failures + counted), too_often);
    }

    #[test]
    fn a_limit_is_exceeded_and_not_reached() {
        let job = job(&json!({"backoffLimit": 2}));
        assert!(!Rules::of(&job).exceeds_limit(2) && Rules::of(&job).exceeds_limit(3));
    }

    #[test]
    fn a_failure_has_a_word() {
        let pod = |value: Value| -> Pod { serde_json::from_value(value).unwrap() };
        assert_eq!(why(&pod(failed(1))), "Error");
        let mut evicted = failed(1);
        evicted["status"]["reason"] = json!("Evicted");
        assert_eq!(why(&pod(evicted)), "Evicted");
        assert_eq!(why(&pod(json!({"metadata": {"name": "p"}}))), "Error");
    }
}
