//! How a pod ended, and what that counts for: Job's rules, applied to one node at a time.
//!
//! Sources: the Job controller's backoffLimit (restarts of containers count under OnFailure), KEP-3329
//! (podFailurePolicy, DisruptionTarget), KEP-3850 (FailIndex).

use jiff::{SignedDuration, Timestamp};
use quintet_kit::types::{Phase, Pod};

use crate::api::{DaemonJob, ExitCodeOperator, PodFailureAction, PodFailurePolicy, PodFailureRule};
use crate::ledger::Outcome;

/// Failures that a node may have where the spec says nothing: the Job's default.
const BACKOFF_LIMIT: i32 = 6;

/// Annotation: the pod was given up since it had not started in time, in the run that started then. It is set before the
/// pod is deleted, so that nobody need guess from clocks who deleted it.
pub const GIVEN_UP_ANNOTATION: &str = "dj.dysproz.io/given-up";

/// How far the clocks of a node and of the API server may differ before a kill is taken for a failure.
const SKEW: SignedDuration = SignedDuration::from_secs(2);

/// What a DaemonJob says about failures.
#[derive(Debug)]
pub struct Rules<'a> {
    policy: Option<&'a PodFailurePolicy>,
    /// Whether the kubelet starts containers again: then a pod rarely fails, and restarts count instead.
    restarts: bool,
    limit: i64,
    pending_deadline: Option<SignedDuration>,
}

/// What has become of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or may yet.
    Open,
    /// It was asked to go before it was given a node: it never ran and never will, and nobody counts it.
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
        let restart = job.spec.template.spec().get("restartPolicy").and_then(serde_json::Value::as_str);
        Self {
            policy: job.spec.pod_failure_policy.as_ref(),
            restarts: restart != Some("Never"),
            limit: i64::from(job.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT)),
            pending_deadline: job.spec.pending_deadline_seconds.map(SignedDuration::from_secs),
        }
    }

    /// Whether a node with so many failures is not tried again.
    pub fn exceeds_limit(&self, failures: u32) -> bool {
        i64::from(failures) > self.limit
    }

    /// Whether a pod that the kubelet starts again and again has failed too often, together with the failures
    /// before it: Job's test, which at a limit of 0 lets no restart pass.
    pub fn restarts_too_often(&self, pod: &Pod, failures: u32) -> bool {
        let all = i64::from(failures) + i64::from(pod.restarts);
        self.restarts && pod.restarts > 0 && all >= self.limit
    }

    /// When a pod that is still Pending is given up; its init containers may have run.
    pub fn pending_until(&self, pod: &Pod) -> Option<Timestamp> {
        let created = pod.meta.created.filter(|_| pod.phase == Phase::Pending)?;
        created.checked_add(self.pending_deadline?).ok()
    }

    /// What has become of a pod, after so many failures of its node with the same template.
    pub fn fate(&self, pod: &Pod, failures: u32) -> Fate {
        let asked = pod.meta.deletion_asked();
        let given_up = given_up_in(pod);
        // No clock is believed to be behind what another one has shown to be over.
        let at = pod.finished.max(asked).max(pod.meta.created).unwrap_or_default();
        let ended = |outcome, failures| Fate::Ended { outcome, failures, at };
        // It counts for the run that gave it up and for no later one, however long it takes to go.
        let gave_up =
            |in_run| Fate::Ended { outcome: Outcome::PendingDeadlineExceeded, failures: 0, at: in_run };
        match pod.phase {
            Phase::Succeeded => ended(Outcome::Succeeded, 0),
            Phase::Failed => {
                let made_to_go = asked.is_some_and(|asked| self.was_made_to_go(pod, asked));
                match self.action(pod, made_to_go) {
                    Some(PodFailureAction::FailJob) => return ended(Outcome::FailedJob, 1),
                    Some(PodFailureAction::FailIndex) => return ended(Outcome::FailedIndex, 1),
                    // A disruption remains one, for which a cordoned node waits.
                    Some(PodFailureAction::Ignore) if !made_to_go && !pod.disrupted => {
                        return ended(Outcome::Ignored, 0);
                    }
                    Some(PodFailureAction::Ignore) => return ended(Outcome::Disrupted, 0),
                    Some(PodFailureAction::Count) => return ended(Outcome::Failed, 1),
                    None => {}
                }
                if let Some(in_run) = given_up.filter(|_| made_to_go) {
                    gave_up(in_run)
                } else if made_to_go && pod.restarts > 0 && self.restarts_too_often(pod, failures) {
                    ended(Outcome::Failed, pod.restarts.saturating_add(1))
                } else if made_to_go || pod.disrupted {
                    ended(Outcome::Disrupted, 0)
                } else {
                    ended(Outcome::Failed, 1)
                }
            }
            _ if asked.is_some() && pod.node.is_none() => given_up.map_or(Fate::NeverRan, gave_up),
            _ => Fate::Open,
        }
    }

    /// Whether a pod that has failed did so because it was asked to go. Where the kubelet starts containers again, one that
    /// lies between two starts is not started any more: its last end is then older than the request.
    fn was_made_to_go(&self, pod: &Pod, asked: Timestamp) -> bool {
        let has_own_reason = pod.reason.as_deref().is_some_and(|reason| !reason.is_empty());
        let ended_after = |finished: Timestamp| finished.checked_add(SKEW).is_ok_and(|end| end >= asked);
        self.restarts && !has_own_reason || pod.finished.is_none_or(ended_after)
    }

    /// What the first rule that matches says. How a container ended that was made to go tells nothing.
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

/// The start of the run that gave a pod up, where one did.
pub fn given_up_in(pod: &Pod) -> Option<Timestamp> {
    pod.meta.annotations.get(GIVEN_UP_ANNOTATION)?.parse().ok()
}

/// Why a pod failed, in one word: for a person, and for the metric of failures.
pub fn why(pod: &Pod) -> &str {
    let reason = pod.reason.as_deref().filter(|reason| !reason.is_empty());
    let exit = || pod.exits.first().map(|exit| &*exit.reason).filter(|reason| !reason.is_empty());
    reason.or_else(exit).unwrap_or("Error")
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
            "spec": {"nodeName": "n"},
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
        match Rules::of(&job(spec)).fate(&serde_json::from_value(pod).unwrap(), failures) {
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

    #[test]
    fn a_pod_without_a_node_that_is_asked_to_go_never_ran() {
        let mut pod = asked(failed(0), 15);
        pod["status"] = json!({"phase": "Pending"});
        pod["spec"] = json!({});
        assert_eq!(fate(&json!({}), pod.clone(), 0), (None, 1));
        assert_eq!(fate(&json!({"pendingDeadlineSeconds": 16}), pod.clone(), 0), (None, 1));
        // Whoever gave it up has marked it; the time of the request tells nothing, as clocks differ.
        pod["metadata"]["annotations"] = json!({GIVEN_UP_ANNOTATION: "2026-01-01T00:10:00Z"});
        let late = (Some(Outcome::PendingDeadlineExceeded), 0);
        assert_eq!(fate(&json!({"pendingDeadlineSeconds": 16}), pod.clone(), 0), late);
        // On a node it blocks until the kubelet says that it is over.
        pod["spec"] = json!({"nodeName": "n"});
        assert_eq!(fate(&json!({"pendingDeadlineSeconds": 15}), pod.clone(), 0), (None, 0));
        pod["status"]["phase"] = json!("Failed");
        assert_eq!(fate(&json!({"pendingDeadlineSeconds": 15}), pod.clone(), 0), late);
        let Fate::Ended { at, .. } =
            Rules::of(&job(&json!({}))).fate(&serde_json::from_value(pod).unwrap(), 0)
        else {
            panic!()
        };
        assert_eq!(at.to_string(), "2026-01-01T00:10:00Z", "it is of the run that gave it up");
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
        let spec = json!({"template": {"spec": {"restartPolicy": "OnFailure"}}});
        assert_eq!(fate(&spec, pod, 0), (Some(outcome), failures));
    }

    #[test]
    fn no_clock_is_believed_to_be_behind() {
        let mut pod = failed(1);
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:05:00Z");
        let pod = serde_json::from_value(pod).unwrap();
        let Fate::Ended { at, .. } = Rules::of(&job(&json!({}))).fate(&pod, 0) else { panic!() };
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
        let decoded: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(Rules::of(&job(&spec)).restarts_too_often(&decoded, failures), too_often);
        // Once it was made to go for that, its node has failed for good; else it was only disrupted.
        let (outcome, counted) = fate(&spec, pod, failures);
        assert_eq!(outcome == Some(Outcome::Failed), too_often);
        assert_eq!(Rules::of(&job(&spec)).exceeds_limit(failures + counted), too_often);
        // Under Never they do not.
        let never = json!({"backoffLimit": limit, "template": {"spec": {"restartPolicy": "Never"}}});
        assert!(!Rules::of(&job(&never)).restarts_too_often(&decoded, failures));
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
