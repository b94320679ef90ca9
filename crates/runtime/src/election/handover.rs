//! What a holder that leaves tells its successor, in an annotation of the released Lease.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::election::lease::Lease;
use crate::server::gate::Seen;

/// Annotation of a released Lease: a [`Seen`] as JSON, and the term that it is of. Whoever acquires the Lease takes it off.
pub const SEEN_ANNOTATION: &str = "quintet.dev/written";

/// The annotation of a released Lease.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Handover {
    /// Those of the record that it belongs to: a later holder that leaves the annotation as it is counts on.
    pub(super) lease_transitions: Option<i64>,
    pub(super) seen: Seen,
}

/// Tells a successor what was seen.
pub(super) fn annotate(lease: &mut Lease, handover: &Handover) {
    if let Some(metadata) = lease.metadata.as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[SEEN_ANNOTATION] = json!(json!(handover).to_string());
    }
}

/// What the last holder had seen, by a Lease that it has released.
pub(super) fn handed_over(lease: &Lease) -> Seen {
    let text = lease.metadata["annotations"][SEEN_ANNOTATION].as_str();
    let handover = text.and_then(|text| serde_json::from_str::<Handover>(text).ok());
    let current = handover.filter(|handover| handover.lease_transitions == lease.spec.lease_transitions);
    current.map(|handover| handover.seen).unwrap_or_default()
}

/// A Lease without what its last holder had seen.
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
    fn what_was_seen_is_read_once() {
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
