//! The record that a leaving holder writes into the released Lease, for its successor.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::election::lease::Lease;
use crate::server::gate::Seen;

/// The annotation of a released Lease: a [`Seen`] as JSON, with its term. The next holder removes it.
pub const SEEN_ANNOTATION: &str = "quintet.dev/written";

/// The value of the annotation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Handover {
    /// The Lease's transitions. A later holder that keeps the annotation increments them, which invalidates it.
    pub(super) lease_transitions: Option<i64>,
    pub(super) seen: Seen,
}

/// Adds the record to a Lease.
pub(super) fn annotate(lease: &mut Lease, handover: &Handover) {
    if let Some(metadata) = lease.metadata.as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[SEEN_ANNOTATION] = json!(json!(handover).to_string());
    }
}

/// The record in a Lease; empty if there is none for its last term.
pub(super) fn handed_over(lease: &Lease) -> Seen {
    let text = lease.metadata["annotations"][SEEN_ANNOTATION].as_str();
    let handover = text.and_then(|text| serde_json::from_str::<Handover>(text).ok());
    let current = handover.filter(|handover| handover.lease_transitions == lease.spec.lease_transitions);
    current.map(|handover| handover.seen).unwrap_or_default()
}

/// Removes the record from a Lease.
pub(super) fn without_seen(mut lease: Lease) -> Lease {
    if let Some(annotations) = lease.metadata["annotations"].as_object_mut() {
        annotations.remove(SEEN_ANNOTATION);
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::lease::LeaseSpec;

    #[test]
    fn reads_the_record_of_the_last_term_only() {
        let lease = |annotation: &str| Lease {
            metadata: json!({ "name": "l", "annotations": { SEEN_ANNOTATION: annotation, "theirs": "x" } }),
            spec: LeaseSpec::default(),
        };
        let seen = Seen::from([("pods.".to_owned(), 7)]);
        let handover =
            |lease_transitions| json!(Handover { lease_transitions, seen: seen.clone() }).to_string();
        let released = lease(&handover(None));
        assert_eq!(handed_over(&released), seen);
        assert_eq!(handed_over(&lease(&handover(Some(1)))), Seen::new(), "of an earlier term");
        let taken = without_seen(released);
        assert_eq!(taken.metadata["annotations"], json!({ "theirs": "x" }));
        assert_eq!(handed_over(&taken), Seen::new());
        for nonsense in ["", "[]", "{\"pods.\": -1}", "null"] {
            assert_eq!(handed_over(&lease(nonsense)), Seen::new());
        }
        for (metadata, is_told) in
            [(json!("x"), false), (json!({ "annotations": ["x"] }), true), (json!({}), true)]
        {
            let mut lease = Lease { metadata, spec: LeaseSpec::default() };
            annotate(&mut lease, &Handover { lease_transitions: None, seen: seen.clone() });
            assert_eq!(handed_over(&lease) == seen, is_told);
        }
        assert_eq!(handed_over(&Lease::default()), Seen::new());
    }
}
