//! The changes of a DaemonJob by `quintet rollout`.
//!
//! Each patch tests that the DaemonJob is the one that was read. The command reads it again if it has changed.

use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::rollout::Change;
use serde_json::{Value, json};

use super::progress::{Hold, Phase, phase};
use super::subject::{APPROVED_ANNOTATION, PAUSED_ANNOTATION, Subject};

/// Approves a wave, or the current one. `is_ahead` allows an approval before the wave has settled. An error is
/// one sentence.
pub fn approve(subject: &Subject, wave: Option<u64>, is_ahead: bool) -> Result<Change, String> {
    if subject.observed().is_none() {
        return Err(format!(
            "the manager has not observed the last change of {subject} yet: wait, and run the command again"
        ));
    }
    let (phase, waves) = (phase(subject), &subject.waves);
    if matches!(phase, Phase::Complete | Phase::Failed) {
        return Err(format!("the rollout of {subject} is over, so nothing waits for an approval"));
    }
    let (Some(current), Some(rollout)) = (waves.current, subject.rollout()) else {
        return Err(format!("{subject} has no waves, so nothing waits for an approval"));
    };
    let (number, last) = (wave.unwrap_or(current), waves.last());
    let Some(size) = waves.size(number) else {
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
        _ if !subject.approval.applies_to(number) => {
            Err(format!("spec.rollout.approval of {subject} does not include wave {number}"))
        }
        _ if !is_ahead => Err(format!(
            "wave {number} of {subject} does not wait for its approval yet ({} of {size} nodes are settled): wait, or \
             pass --ahead",
            waves.settled
        )),
        _ => Ok(()),
    };
    check?;
    Ok(Change {
        operations: unchanged(subject, &annotate(subject, APPROVED_ANNOTATION, &value)),
        message: format!("{subject}: wave {number} of rollout {} is approved", rollout.number),
    })
}

/// Checks the approval of a failed wave. The manager ignores an approval that is older than the failure.
fn check_failed_wave(subject: &Subject, wave: u64, is_explicit: bool, value: &str) -> Result<(), String> {
    if !is_explicit {
        return Err(format!(
            "wave {wave} of {subject} failed: to continue nevertheless, pass --wave={wave}; to retry its failed nodes, \
             run quintet rollout retry {}",
            subject.target()
        ));
    }
    if subject.waves.void_approval.as_deref() != Some(value) {
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
pub fn pause(subject: &Subject, reason: &str) -> Result<Change, String> {
    if let Some(before) = subject.annotation(PAUSED_ANNOTATION) {
        return Err(format!("{subject} is paused already: {before}"));
    }
    Ok(Change {
        operations: unchanged(subject, &annotate(subject, PAUSED_ANNOTATION, reason)),
        message: format!("{subject} paused"),
    })
}

/// Ends the pause of [`pause`]. An error is one sentence.
pub fn resume(subject: &Subject) -> Result<Change, String> {
    let is_paused = subject.job.spec.paused == Some(true);
    match (subject.annotation(PAUSED_ANNOTATION), is_paused) {
        (None, false) => Err(format!("{subject} is not paused")),
        (None, true) => Err(format!("{subject} is paused by spec.paused: set it to false in the manifest")),
        (Some(_), _) => {
            let remove = json!({ "op": "remove", "path": path(PAUSED_ANNOTATION) });
            let rest = if is_paused { ", but spec.paused is true" } else { "" };
            Ok(Change {
                operations: unchanged(subject, &remove),
                message: format!("{subject} resumed{rest}"),
            })
        }
    }
}

/// Retries failed nodes by a new retryToken. An error is one sentence.
pub fn retry(subject: &Subject, token: &str) -> Result<Change, String> {
    let in_spec = subject.job.spec.retry_token.as_deref();
    // A token remains in effect after its removal from the spec.
    let in_effect = subject.rollout().and_then(|rollout| rollout.retry_token.as_deref());
    if [in_spec, in_effect].contains(&Some(token)) {
        return Err(format!("the retryToken of {subject} is {token:?} already: pass another --token"));
    }
    let add = json!({ "op": "add", "path": "/spec/retryToken", "value": token });
    Ok(Change {
        operations: unchanged(subject, &add),
        message: format!(
            "{subject} retries its failed nodes with spec.retryToken {token}\nIf a GitOps tool applies the manifest, set \
             retryToken to {token} in the manifest too."
        ),
    })
}

/// The operation that sets an annotation.
fn annotate(subject: &Subject, annotation: &str, value: &str) -> Value {
    let has_annotations = subject.job.metadata.annotations.as_ref().is_some_and(|all| !all.is_empty());
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
fn unchanged(subject: &Subject, operation: &Value) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": subject.job.metadata.uid },
        { "op": "test", "path": "/metadata/resourceVersion", "value": subject.resource_version() },
        operation,
    ])
}
