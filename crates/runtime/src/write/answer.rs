//! What an answer of the API server to a write means for the plan.

use crate::model::object::Meta;
use crate::model::refusals::{RefusalReason, Verb};

/// The answer to one write.
pub(super) enum Answer {
    /// Done, with the object's metadata after the write; None for a deletion, a claim and an effect.
    Done(Option<Box<Meta>>),
    /// Nothing to do: it is there already, gone already, or has changed. The cache will show it.
    Stale,
    /// Refused.
    Refused { reason: RefusalReason, message: String, quota: bool },
    /// The namespace is being deleted: nothing can be made there any more.
    NamespaceTerminating,
}

/// What an answer of the API server means for the plan.
pub(super) enum Sorted {
    /// It was carried out, or was not, and that is certain.
    Answer(Answer),
    /// It was not carried out, and should be tried again later.
    Later(String),
    /// It may have been carried out.
    Ambiguous(String),
}

/// Sorts a failure that the API server states.
pub(super) fn sort(verb: Verb, status: kube::core::Status) -> Sorted {
    let terminating = is_namespace_terminating(&status);
    let kube::core::Status { code, reason, message, .. } = status;
    let refused = |reason: RefusalReason, message: String| {
        let quota = message.contains("exceeded quota");
        Sorted::Answer(Answer::Refused { reason, message, quota })
    };
    match code {
        404 if verb != Verb::Create => Sorted::Answer(Answer::Stale),
        // The API server's own words, and not those of a proxy that quotes the path.
        404 if reason == "NotFound" && message.starts_with("namespaces \"") => {
            Sorted::Answer(Answer::NamespaceTerminating)
        }
        409 if reason == "AlreadyExists" => refused(RefusalReason::AlreadyExists, message),
        // Fields of other managers, and we did not force; any other conflict is a changed object.
        409 if verb == Verb::Apply && message.starts_with("Apply failed") => {
            refused(RefusalReason::Other, message)
        }
        409 => Sorted::Answer(Answer::Stale),
        // A `test` of the patch failed: the object is not as the plan saw it.
        422 if verb == Verb::JsonPatch && message.starts_with("the server rejected our request") => {
            Sorted::Answer(Answer::Stale)
        }
        403 if terminating => Sorted::Answer(Answer::NamespaceTerminating),
        400 | 403 | 404 | 413 | 422 => refused(RefusalReason::Other, message),
        500 if message.contains("failed to create typed") => refused(RefusalReason::Untyped, message),
        // Any JSON is a Status to kube, without a code where it is none: the words of whoever stands between.
        0 | 500..=599 => Sorted::Ambiguous(message),
        _ => Sorted::Later(message),
    }
}

fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
        || status.message.contains("because it is being terminated")
}
