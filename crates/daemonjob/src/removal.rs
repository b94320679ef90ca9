//! Decides which pods the manager deletes before they end, and which ended pods are no longer needed.

use std::cmp::Reverse;

use jiff::Timestamp;
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::PODS;
use serde_json::json;

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::eligibility::Eligibility;
use crate::history::AssessedPod;
use crate::outcome::{DELETED_FOR_ANNOTATION, DeletedFor, PodOutcome};
use crate::rollout::Ending;
use crate::survey::Survey;
use crate::ttl::{ended_at, expiry, pod_expiry};

/// The number of succeeded pods to keep. Many more would make Kubernetes' pod garbage collector delete the
/// ended pods of other owners (`--terminated-pod-gc-threshold` of kube-controller-manager, 12,500).
const KEPT_SUCCEEDED_PODS: usize = 1_000;
/// The number of failed pods to keep, so that users can inspect them.
const KEPT_FAILED_PODS: usize = 100;

/// The write for a pod that has not ended, or when its pending deadline passes.
pub(crate) fn pod_action(
    job: &DaemonJob,
    survey: &Survey<'_>,
    assessed: &AssessedPod<'_>,
    now: Timestamp,
) -> (Option<Action<DaemonJobStatus>>, Option<Timestamp>) {
    let pod = assessed.pod;
    let reason = deletion_reason(job, survey, assessed, now);
    // The annotation determines the outcome of an unbound pod only in these cases.
    let counts = || {
        pod.node.is_some()
            || reason == Some(DeletedFor::PendingDeadline)
            || reason == Some(DeletedFor::Misplaced) && assessed.target.is_some()
    };
    let action = match (reason, assessed.deleted_for) {
        _ if !assessed.is_counted() => return (None, None),
        (None, None) => return (None, survey.histories.pending_until(assessed)),
        // The annotation has the reason.
        (Some(reason), Some(marked)) if reason == marked => Action::delete(PODS, &pod.meta, false),
        // The pod is deleted in a later reconcile.
        (Some(reason), _) if counts() => mark(pod, Some(reason)),
        // The pod was not bound to a node and never ran. It is deleted unless it has changed.
        (Some(_), _) => Action::delete(PODS, &pod.meta, true),
        // The annotation no longer applies.
        (None, Some(_)) => mark(pod, None),
    };
    (Some(action), None)
}

/// The reason for which the manager deletes a pod before it ends, or None.
pub fn deletion_reason(
    job: &DaemonJob,
    survey: &Survey<'_>,
    assessed: &AssessedPod<'_>,
    now: Timestamp,
) -> Option<DeletedFor> {
    let pod = assessed.pod;
    if !assessed.is_counted() {
        return None;
    }
    if job.spec.suspend == Some(true) {
        return Some(DeletedFor::Suspend);
    }
    if let Some(ending) = survey.ending {
        return Some(match ending {
            Ending::DeadlineExceeded => DeletedFor::Deadline,
            Ending::MaxFailedNodesExceeded => DeletedFor::FailFast,
            Ending::PodFailurePolicy => DeletedFor::FailJob,
        });
    }
    // No other controller deletes a pod that is pinned to a missing node. A new Node of that name would run
    // it.
    let Some(history) = survey.histories.of_target(assessed) else { return Some(DeletedFor::Misplaced) };
    // A template that waits for its due time must not delete the running pods of the earlier template.
    let is_of_earlier = survey.has_pending_template && pod.node.is_some();
    let is_misplaced = match history.eligibility {
        Eligibility::Run => false,
        // An invalid template must not delete the running pods of the earlier template.
        Eligibility::NotSelected => !(survey.is_template_invalid || is_of_earlier),
        // A pod that was not bound has nothing to continue.
        Eligibility::Continue(_) => pod.node.is_none(),
        Eligibility::Refuse(_) => !is_of_earlier,
    };
    let hangs = || pod.crashed.is_some() && !pod.has_running_container;
    if is_misplaced {
        Some(DeletedFor::Misplaced)
    } else if assessed.recorded || is_duplicate(survey, assessed) {
        // An earlier leader created it without knowing the record or the other pod.
        Some(DeletedFor::Superfluous)
    } else if assessed.exhausted {
        Some(DeletedFor::Exhausted)
    } else if !assessed.is_current
        && (!assessed.has_started() || hangs() || survey.replaced.contains(&*pod.meta.uid))
    {
        Some(DeletedFor::Outdated)
    } else {
        let is_late = survey.histories.pending_until(assessed).is_some_and(|until| until <= now);
        is_late.then_some(DeletedFor::PendingDeadline)
    }
}

/// Whether another pod for the same node name has precedence: a started pod, or else the higher number.
fn is_duplicate(survey: &Survey<'_>, assessed: &AssessedPod<'_>) -> bool {
    let order = |assessed: &AssessedPod<'_>| {
        (assessed.pod.started.is_some(), assessed.number, assessed.pod.meta.uid.clone())
    };
    let Some(at) = assessed.on_at.filter(|at| survey.duplicates.contains(at)) else { return false };
    let others = survey.pods().iter().filter(|other| other.on_at == Some(at) && other.is_counted());
    others.map(order).max() > Some(order(assessed))
}

/// Sets or removes the annotation, if the pod has not changed.
fn mark(pod: &Pod, reason: Option<DeletedFor>) -> Action<DaemonJobStatus> {
    let body = json!({ "metadata": {
        "uid": &*pod.meta.uid,
        "resourceVersion": &*pod.meta.resource_version,
        "annotations": { DELETED_FOR_ANNOTATION: reason.map(DeletedFor::word) },
    }});
    Action::merge_patch(PODS, &pod.meta, body)
}

/// Ended pods that are no longer needed, and when the next pod will be. The last pod and the last failed pod
/// of each node are kept, up to the newest [`KEPT_SUCCEEDED_PODS`] and [`KEPT_FAILED_PODS`].
pub(crate) fn unneeded<'s>(
    job: &DaemonJob,
    survey: &'s Survey<'_>,
    now: Timestamp,
) -> (Vec<&'s AssessedPod<'s>>, Option<Timestamp>) {
    let run_expires = expiry(job, survey);
    let mut again = run_expires.filter(|at| *at > now);
    let run_expired = run_expires.is_some_and(|at| at <= now);
    let is_over = |assessed: &&AssessedPod<'_>| {
        matches!(assessed.fate, PodOutcome::Ended { .. }) && !assessed.is_deleted
    };
    let ended: Vec<&AssessedPod<'_>> = survey.pods().iter().filter(is_over).collect();
    let (mut unneeded, mut succeeded, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    // The pods are sorted by node and number, so a later pod replaces an earlier one.
    for of_node in ended.chunk_by(|one, other| one.target == other.target) {
        let has_failed = |assessed: &AssessedPod<'_>| assessed.phase == Phase::Failed;
        let last_failed = of_node.iter().rposition(|assessed| has_failed(assessed));
        for (at, assessed) in of_node.iter().copied().enumerate() {
            let is_kept = at + 1 == of_node.len() || Some(at) == last_failed;
            let expires = pod_expiry(job, survey, assessed);
            if !is_kept || run_expired || expires.is_some_and(|at| at <= now) {
                unneeded.push(assessed);
                continue;
            }
            again = again.into_iter().chain(expires).min();
            if has_failed(assessed) { &mut failed } else { &mut succeeded }.push(assessed);
        }
    }
    for (mut kept, most) in [(succeeded, KEPT_SUCCEEDED_PODS), (failed, KEPT_FAILED_PODS)] {
        if kept.len() > most {
            // The sort is stable, so of pods that ended at the same time those of the first nodes are kept.
            kept.sort_by_cached_key(|assessed| Reverse(ended_at(survey, assessed)));
            unneeded.extend(kept.drain(most..));
        }
    }
    (unneeded, again)
}
