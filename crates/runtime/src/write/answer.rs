//! Classifies the API server's answers to writes.

use crate::model::object::Meta;
use crate::model::refusals::{RefusalReason, Verb};

/// The answer to one write.
pub(super) enum Answer {
    /// The write succeeded. Holds the object's metadata after the write; None for a deletion, a claim and an effect.
    Done(Option<Box<Meta>>),
    /// The object already exists, is gone, or has changed. The cache will show the current state.
    Stale,
    /// The API server rejected the write. `stops_creations`: it would reject each other pod of the owner too.
    Refused { reason: RefusalReason, message: String, stops_creations: bool },
    /// The namespace is being deleted, so the API server rejects creations in it.
    NamespaceTerminating,
}

/// The outcome of a write, as far as an answer shows it.
pub(super) enum Sorted {
    /// The outcome is certain.
    Answer(Answer),
    /// The write had no effect; retry it later.
    Later(String),
    /// The outcome is unknown: the write may have succeeded.
    Ambiguous(String),
}

/// Classifies an error status of the API server.
pub(super) fn sort(verb: Verb, status: kube::core::Status) -> Sorted {
    let terminating = is_namespace_terminating(&status);
    let kube::core::Status { code, reason, message, .. } = status;
    let refused = |reason: RefusalReason, message: String| {
        let stops_creations = message.contains("exceeded quota");
        Sorted::Answer(Answer::Refused { reason, message, stops_creations })
    };
    match code {
        404 if verb != Verb::Create => Sorted::Answer(Answer::Stale),
        // The message of the API server itself; a proxy would quote the path instead.
        404 if reason == "NotFound" && message.starts_with("namespaces \"") => {
            Sorted::Answer(Answer::NamespaceTerminating)
        }
        409 if reason == "AlreadyExists" => refused(RefusalReason::AlreadyExists, message),
        // Another manager owns the fields, and this apply was not forced. Any other conflict means a changed object.
        409 if verb == Verb::Apply && message.starts_with("Apply failed") => {
            refused(RefusalReason::Other, message)
        }
        409 => Sorted::Answer(Answer::Stale),
        // A `test` of the patch failed: the object has changed since the plan was made.
        422 if verb == Verb::JsonPatch && message.starts_with("the server rejected our request") => {
            Sorted::Answer(Answer::Stale)
        }
        403 if terminating => Sorted::Answer(Answer::NamespaceTerminating),
        400 | 403 | 404 | 413 | 422 => refused(RefusalReason::Other, message),
        500 if message.contains("failed to create typed") => refused(RefusalReason::Untyped, message),
        // A value of a custom resource that no schema checked, such as a quantity.
        500 if verb == Verb::Apply && message.contains("failed to convert new object") => {
            refused(RefusalReason::Other, message)
        }
        // kube parses any JSON as a Status, with code 0 if it has none, so this may be the answer of a proxy.
        0 | 500..=599 => Sorted::Ambiguous(message),
        _ => Sorted::Later(message),
    }
}

fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
        || status.message.contains("unable to create new content in namespace")
}
