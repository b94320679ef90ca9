//! The changes of a DaemonJob by `quintet rollout`.
//!
//! Each patch tests that the DaemonJob is the one that was read. The command reads it again if it has changed.

use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::rollout::Change;
use serde_json::{Value, json};

use super::progress::{Hold, Phase, phase};
use super::subject::Subject;
use crate::api::DaemonJob;
use crate::labels::{APPROVED_ANNOTATION, PAUSED_ANNOTATION};

/// Approves a wave, or the current one. `is_ahead` allows an approval before the wave has settled. An error is
/// one sentence.
pub fn approve(job: &DaemonJob, wave: Option<u64>, is_ahead: bool) -> Result<Change, String> {
    let subject = Subject { job };
    if subject.observed().is_none() {
        return Err(format!(
            "the manager has not observed the last change of {subject} yet: wait, and run the command again"
        ));
    }
    let phase = phase(subject);
    if matches!(phase, Phase::Complete | Phase::Failed) {
        return Err(format!("the rollout of {subject} is over, so nothing waits for an approval"));
    }
    let (Some(current), Some(rollout)) = (subject.wave(), subject.rollout()) else {
        return Err(format!("{subject} has no waves, so nothing waits for an approval"));
    };
    let (number, last) = (wave.unwrap_or(current), subject.last_wave());
    let Some(size) = subject.size(number) else {
        return Err(format!("wave {number} needs no approval: the last wave of {subject} is {last}"));
    };
    if number < current {
        return Err(format!("wave {number} of {subject} has passed: the current wave is {current}"));
    }
    let value = format!("{}/{number}", rollout.number);
    let check = match phase {
        Phase::Held(Hold::WaveFailed) if number == current => {
            check_failed_wave(subject, number, wave.is_some(), &value)
        }
        _ if subject.approved().is_some_and(|approved| approved >= number) => {
            Err(format!("wave {number} of {subject} is approved already"))
        }
        Phase::Held(Hold::WaitsForApproval) if number == current => Ok(()),
        _ if !subject.needs_approval(number) => {
            Err(format!("spec.rollout.approval of {subject} does not include wave {number}"))
        }
        _ if !is_ahead => Err(format!(
            "wave {number} of {subject} does not wait for its approval yet ({} of {size} nodes are settled): wait, or \
             pass --ahead",
            subject.settled()
        )),
        _ => Ok(()),
    };
    check?;
    Ok(Change {
        operations: unchanged(job, &annotate(job, APPROVED_ANNOTATION, &value)),
        message: format!("{subject}: wave {number} of rollout {} is approved", rollout.number),
    })
}

/// Checks the approval of a failed wave. The manager ignores an approval that is older than the failure.
fn check_failed_wave(subject: Subject<'_>, wave: u64, is_explicit: bool, value: &str) -> Result<(), String> {
    if !is_explicit {
        return Err(format!(
            "wave {wave} of {subject} failed: to continue nevertheless, pass --wave={wave}; to retry its failed nodes, \
             run quintet rollout retry {}",
            subject.target()
        ));
    }
    if subject.void_approval() != Some(value) {
        return Ok(());
    }
    if subject.annotation(APPROVED_ANNOTATION) == Some(value) {
        return Err(format!(
            "wave {wave} of {subject} failed after its approval: first remove the annotation {APPROVED_ANNOTATION}"
        ));
    }
    Err("the manager has not observed yet that the earlier approval is removed: run the command again"
        .to_owned())
}

/// Pauses a DaemonJob for a reason. An error is one sentence.
pub fn pause(job: &DaemonJob, reason: &str) -> Result<Change, String> {
    let subject = Subject { job };
    if let Some(before) = subject.annotation(PAUSED_ANNOTATION) {
        return Err(format!("{subject} is paused already: {before}"));
    }
    Ok(Change {
        operations: unchanged(job, &annotate(job, PAUSED_ANNOTATION, reason)),
        message: format!("{subject} paused"),
    })
}

/// Ends the pause of [`pause`]. An error is one sentence.
pub fn resume(job: &DaemonJob) -> Result<Change, String> {
    let subject = Subject { job };
    let is_paused = job.spec.paused == Some(true);
    match (subject.annotation(PAUSED_ANNOTATION), is_paused) {
        (None, false) => Err(format!("{subject} is not paused")),
        (None, true) => Err(format!("{subject} is paused by spec.paused: set it to false in the manifest")),
        (Some(_), _) => {
            let remove = json!({ "op": "remove", "path": path(PAUSED_ANNOTATION) });
            let rest = if is_paused { ", but spec.paused is true" } else { "" };
            Ok(Change { operations: unchanged(job, &remove), message: format!("{subject} resumed{rest}") })
        }
    }
}

/// Retries failed nodes by a new retryToken. An error is one sentence.
pub fn retry(job: &DaemonJob, token: &str) -> Result<Change, String> {
    let subject = Subject { job };
    let in_spec = job.spec.retry_token.as_deref();
    // A token remains in effect after its removal from the spec.
    let in_effect = subject.rollout().and_then(|rollout| rollout.retry_token.as_deref());
    if [in_spec, in_effect].contains(&Some(token)) {
        return Err(format!("the retryToken of {subject} is {token:?} already: pass another --token"));
    }
    let add = json!({ "op": "add", "path": "/spec/retryToken", "value": token });
    Ok(Change {
        operations: unchanged(job, &add),
        message: format!(
            "{subject} retries its failed nodes with spec.retryToken {token}\nIf a GitOps tool applies the manifest, set \
             retryToken to {token} in the manifest too."
        ),
    })
}

/// The operation that sets an annotation.
fn annotate(job: &DaemonJob, annotation: &str, value: &str) -> Value {
    let has_annotations = job.metadata.annotations.as_ref().is_some_and(|all| !all.is_empty());
    if has_annotations {
        json!({ "op": "add", "path": path(annotation), "value": value })
    } else {
        json!({ "op": "add", "path": "/metadata/annotations", "value": { annotation: value } })
    }
}

/// The path of an annotation, with the escape of a JSON pointer.
fn path(annotation: &str) -> String {
    format!("/metadata/annotations/{}", annotation.replace('/', "~1"))
}

/// The patch, for an unchanged object alone.
fn unchanged(job: &DaemonJob, operation: &Value) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": job.metadata.uid },
        { "op": "test", "path": "/metadata/resourceVersion", "value": job.resource_version() },
        operation,
    ])
}
