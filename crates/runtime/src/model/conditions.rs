//! Conditions of a status (`metav1.Condition`): the transition time changes only with the condition's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;

use crate::model::clock::whole_seconds;

/// The type of the condition that every kind has: True if the object is as its spec demands.
pub const READY: &str = "Ready";
/// The longest message in bytes; the API allows 32,768.
const LONGEST_MESSAGE: usize = 1024;

/// A condition as a plan returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Type, CamelCase.
    pub type_: &'static str,
    /// True, False, or None for Unknown.
    pub status: Option<bool>,
    /// Reason, CamelCase and stable.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
}

impl Wanted {
    /// The condition Stalled for the same reason: the object stays as it is until a user acts. kstatus then reports it
    /// as failed.
    #[must_use]
    pub fn stalled(&self) -> Self {
        Self { type_: "Stalled", status: Some(true), ..self.clone() }
    }
}

/// The conditions of the next status. A condition keeps its transition time while its status is unchanged. Conditions
/// that are not in `wanted` are removed.
pub fn next(
    previous: &[Condition],
    wanted: impl IntoIterator<Item = Wanted>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    wanted
        .into_iter()
        .map(|wanted| {
            let status = match wanted.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let since = previous
                .iter()
                .find(|old| old.type_ == wanted.type_ && old.status == status)
                .map_or_else(|| Time(whole_seconds(now)), |old| old.last_transition_time.clone());
            Condition {
                type_: wanted.type_.to_owned(),
                status: status.to_owned(),
                reason: wanted.reason.to_owned(),
                message: shorten(wanted.message, LONGEST_MESSAGE),
                last_transition_time: since,
                observed_generation: generation,
            }
        })
        .collect()
}

/// A count for a status field; None if it does not fit.
pub fn number(count: usize) -> Option<i32> {
    i32::try_from(count).ok()
}

/// Decodes the conditions of these types. Leaves out those of other writers, which an apply keeps, and any that is not a
/// `metav1.Condition`.
pub fn of_types<'de, D: Deserializer<'de>>(
    types: &[&str],
    deserializer: D,
) -> Result<Vec<Condition>, D::Error> {
    let all: Vec<Value> = Option::deserialize(deserializer)?.unwrap_or_default();
    let ours = all.into_iter().filter(|one| one["type"].as_str().is_some_and(|type_| types.contains(&type_)));
    Ok(ours.filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// The condition of this type, if it is True.
pub fn find_true<'c>(conditions: &'c [Condition], type_: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether a condition of this type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find_true(conditions, type_).is_some()
}

/// Truncates a text to at most `limit` bytes, at a character boundary, and marks the cut with `…`.
pub fn shorten(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ready(status: bool, message: &str) -> Wanted {
        Wanted { type_: "Ready", status: Some(status), reason: "Because", message: message.into() }
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-01-01T00:01:00.5Z".parse().unwrap();
        let one = next(&[], [ready(false, "a")], Some(1), first);
        let two = next(&one, [ready(false, "b")], Some(2), later);
        assert_eq!(two[0].last_transition_time.0, first);
        assert_eq!((two[0].message.as_str(), two[0].observed_generation), ("b", Some(2)));
        let three = next(&two, [ready(true, "c")], Some(2), later);
        assert_eq!(three[0].last_transition_time.0, "2026-01-01T00:01:00Z".parse().unwrap());
        assert!(next(&three, [], Some(2), later).is_empty());
    }

    #[test]
    fn conditions_of_other_writers_are_left_out() {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Because", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut other = ready.clone();
        other["type"] = "Synced".into();
        let read = |all: Value| of_types(&["Ready"], all).unwrap().len();
        assert_eq!(read(json!([other, ready, {"type": "Ready"}, 5])), 1);
        assert_eq!(read(Value::Null), 0);
    }

    #[test]
    fn truncates_long_messages_at_a_character_boundary() {
        assert_eq!(shorten("abc".into(), 3), "abc");
        assert_eq!(shorten("ääääää".into(), 8), "ää…");
    }
}
