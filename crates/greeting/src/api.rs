//! The Greeting custom resource.
//!
//! The post's schema asked for nothing, and its definition may have had none at all. So whatever is stored decodes: a
//! message that is no text is no message, and a claim that cannot be read is one that a newer version wrote. An object
//! that did not decode would be left alone, with our finalizer on.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use quintet_runtime::model::conditions;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The longest interval between two ticks, in seconds: ten years.
pub const LONGEST_INTERVAL: i64 = 315_360_000;

/// What to say, and how often.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Greeting",
    plural = "greetings",
    singular = "greeting",
    shortname = "gr",
    category = "quintet",
    namespaced,
    status = "GreetingStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Greeting is a message that is said on creation, on change, on deletion and at every interval.",
    printcolumn(name = "Message", type_ = "string", json_path = ".spec.message"),
    printcolumn(name = "Greeted", type_ = "date", json_path = ".status.greetedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["message"]))]
pub struct GreetingSpec {
    /// What is said. Control characters are printed escaped, so that one line stays one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "message")]
    pub message: Option<String>,

    /// Seconds between two `Timer:` lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "interval")]
    pub interval_seconds: Option<i64>,
}

impl<'de> Deserialize<'de> for GreetingSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An Option may be absent, too; a derived struct would make a Greeting without a spec undecodable.
        let mut stored = Option::<Value>::deserialize(deserializer)?.unwrap_or_default();
        let message = match stored.get_mut("message").map(Value::take) {
            Some(Value::String(message)) => Some(message),
            _ => None,
        };
        Ok(Self { message, interval_seconds: stored.get("intervalSeconds").and_then(Value::as_i64) })
    }
}

fn message(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 16384 })
}

fn interval(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 1, "maximum": LONGEST_INTERVAL, "default": 60 })
}

/// What was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GreetingStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When it was first greeted. Tick k of the timer is at this time plus k intervals; the first one is tick 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greeted_at: Option<Time>,
    /// The first 256 bytes of the message that was said last on creation or change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_greeting: Option<String>,
    /// How often a changed message was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<i64>,
    /// Who said it: written before the line is printed, so that nobody says it twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Ready: the message was said. False with the reason NoMessage where there is none, and TimedOut where standard
    /// output took no line for too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl<'de> Deserialize<'de> for GreetingStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn read<T: DeserializeOwned>(value: Option<Value>) -> Option<T> {
            value.and_then(|value| serde_json::from_value(value).ok())
        }
        let mut stored = Value::deserialize(deserializer)?;
        let mut take = |field: &str| stored.get_mut(field).map(Value::take).filter(|value| !value.is_null());
        Ok(Self {
            observed_generation: read(take("observedGeneration")),
            greeted_at: read(take("greetedAt")),
            last_greeting: read(take("lastGreeting")),
            updates: read(take("updates")),
            claim: take("claim").map(|claim| serde_json::from_value(claim).unwrap_or_default()),
            conditions: take("conditions").map(conditions::lenient).and_then(Result::ok).unwrap_or_default(),
        })
    }
}

/// A claim on having said a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Identifies the message; the mark before the dash says how it was made.
    #[serde(default)]
    pub message_hash: String,
    /// Create, Update or Delete.
    #[serde(default)]
    pub kind: String,
    /// The process and the attempt that claimed.
    #[serde(default)]
    pub token: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn stored(part: &Value) -> Greeting {
        let mut greeting =
            json!({"apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": "g"}});
        greeting.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        serde_json::from_value(greeting).unwrap()
    }

    #[rstest]
    #[case::no_spec(json!({}))]
    #[case::null(json!({"spec": null}))]
    #[case::no_object(json!({"spec": "hello"}))]
    #[case::no_message(json!({"spec": {"foo": "bar"}}))]
    #[case::no_text(json!({"spec": {"message": 5, "intervalSeconds": "often"}}))]
    fn anything_that_was_stored_decodes(#[case] part: Value) {
        assert_eq!(stored(&part).spec, GreetingSpec::default());
    }

    #[rstest]
    #[case::null(json!(null), None)]
    #[case::no_object(json!(5), Some(GreetingStatus::default()))]
    #[case::somebody_elses(json!({"kopf": {"progress": {}}, "conditions": [{"type": 5}], "greetedAt": "soon"}), Some(GreetingStatus::default()))]
    fn any_status_decodes(#[case] status: Value, #[case] expected: Option<GreetingStatus>) {
        assert_eq!(stored(&json!({"status": status})).status, expected);
    }

    #[test]
    fn a_claim_that_cannot_be_read_is_a_claim() {
        let greeting = stored(&json!({"spec": {"message": "Hi"}, "status": {"claim": {"token": ["new"]}}}));
        assert_eq!(greeting.status.unwrap().claim, Some(Claim::default()));
    }

    #[test]
    fn what_is_written_is_read() {
        let time: Time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let status = GreetingStatus {
            observed_generation: Some(2),
            greeted_at: Some(time.clone()),
            last_greeting: Some("Hi".into()),
            updates: Some(1),
            claim: Some(Claim {
                message_hash: "v1-x".into(),
                kind: "Update".into(),
                token: "t".into(),
                at: Some(time),
            }),
            conditions: Vec::new(),
        };
        let text = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<GreetingStatus>(text).unwrap(), status);
    }
}
