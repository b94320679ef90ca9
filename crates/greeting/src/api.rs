//! The Greeting custom resource.
//!
//! The tutorial's definition has no schema or one without required fields, so every stored object must
//! decode. Otherwise the controller would ignore it, and its finalizer would stay. A message that is not a
//! string counts as missing; an unreadable claim counts as one of another version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use quintet_runtime::model::conditions::{self, READY};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

/// The longest interval between two ticks, in seconds: ten years.
pub const LONGEST_INTERVAL: i64 = 315_360_000;

/// The message that the manager prints, and the interval of the `Timer:` lines.
#[skip_serializing_none]
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
    doc = "Greeting is a message that the manager prints on creation, on change, on deletion and at every interval.",
    printcolumn(name = "Message", type_ = "string", json_path = ".spec.message"),
    printcolumn(name = "Greeted", type_ = "date", json_path = ".status.greetedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["message"]))]
pub struct GreetingSpec {
    /// The message that the manager prints. The manager escapes control characters, so that each printed
    /// message is one line.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1, max = 16_384))]
    pub message: Option<String>,

    /// Seconds between two `Timer:` lines.
    #[serde(default)]
    #[schemars(with = "i64", range(min = 1, max = LONGEST_INTERVAL), extend("default" = 60))]
    pub interval_seconds: Option<i64>,
}

impl<'de> Deserialize<'de> for GreetingSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A derived struct could not decode a Greeting without a spec.
        let stored = Option::<Value>::deserialize(deserializer)?.unwrap_or_default();
        let message = stored.get("message").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { message, interval_seconds: stored.get("intervalSeconds").and_then(Value::as_i64) })
    }
}

/// The observed state of a Greeting.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct GreetingStatus {
    /// The generation that this status describes. The value is -1 until a manager writes the status.
    #[schemars(extend("default" = -1))]
    pub observed_generation: Option<i64>,
    /// The time of the first line. `Timer:` line k is due at this time plus k intervals, where k begins
    /// at 0.
    pub greeted_at: Option<Time>,
    /// The first 256 bytes of the message that was last printed on creation or change.
    pub last_greeting: Option<String>,
    /// How often the manager printed a changed message.
    pub updates: Option<i64>,
    /// The manager process that prints the last line. A process writes its claim before it prints the line,
    /// so that no other process prints the same line.
    #[serde(default)]
    #[schemars(with = "Option<Claim>")]
    pub claim: Option<StoredClaim>,
    /// Ready is True if the manager has printed the message. Ready is False with the reason NoMessage if
    /// there is no valid message. The reason is OutputBlocked if standard output has had no room for a minute, and
    /// ClaimedByOtherVersion if another version of the manager has claimed the line. Stalled is True if only a user can
    /// change that, for NoMessage and ClaimedByOtherVersion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// All other fields, if another version has written the claim.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

impl<'de> Deserialize<'de> for GreetingStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Value::Object(mut stored) = Value::deserialize(deserializer)? else { return Ok(Self::default()) };
        let claim = stored.remove("claim").filter(|claim| !claim.is_null()).map(StoredClaim::of);
        let conditions = stored.remove("conditions").unwrap_or_default();
        let conditions = conditions::of_types(&[READY, "Stalled"], conditions).unwrap_or_default();
        let observed_generation = stored.remove("observedGeneration").and_then(|number| number.as_i64());
        if let Some(StoredClaim::Other(_)) = claim {
            // A write must keep what another version has stored.
            return Ok(Self { claim, conditions, other: stored, ..Self::default() });
        }
        Ok(Self {
            observed_generation,
            greeted_at: stored.remove("greetedAt").and_then(|at| serde_json::from_value(at).ok()),
            last_greeting: stored.get("lastGreeting").and_then(Value::as_str).map(str::to_owned),
            updates: stored.get("updates").and_then(Value::as_i64),
            claim,
            other: Map::new(),
            conditions,
        })
    }
}

/// The mark of the hash's algorithm in a claim of this version.
pub const MARK: &str = "v1-";

/// A claim in the status.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StoredClaim {
    /// Of this version.
    Known(Claim),
    /// A claim in the format of another version. A write must not change it.
    Other(Value),
}

impl StoredClaim {
    fn of(stored: Value) -> Self {
        match Claim::deserialize(&stored) {
            Ok(claim) if claim.message_hash.starts_with(MARK) => Self::Known(claim),
            _ => Self::Other(stored),
        }
    }

    /// The claim, if it is of this version.
    pub fn known(&self) -> Option<&Claim> {
        match self {
            Self::Known(claim) => Some(claim),
            Self::Other(_) => None,
        }
    }
}

/// The claim of one process to print a line.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Hash of the message. The text before the dash names the hash algorithm.
    #[serde(default)]
    pub message_hash: String,
    /// The cause of the line: Create, Update or Delete.
    #[serde(default)]
    pub kind: String,
    /// A unique token of the process and the claim.
    #[serde(default)]
    pub token: String,
    /// Time of the claim.
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
    #[case::not_an_object(json!({"spec": "hello"}))]
    #[case::no_message(json!({"spec": {"foo": "bar"}}))]
    #[case::not_a_string(json!({"spec": {"message": 5, "intervalSeconds": "often"}}))]
    fn decodes_every_stored_spec(#[case] part: Value) {
        assert_eq!(stored(&part).spec, GreetingSpec::default());
    }

    #[rstest]
    #[case::null(json!(null), None)]
    #[case::not_an_object(json!(5), Some(GreetingStatus::default()))]
    #[case::of_another_client(json!({"kopf": {"progress": {}}, "conditions": [{"type": 5}], "greetedAt": "soon"}), Some(GreetingStatus::default()))]
    fn decodes_every_stored_status(#[case] status: Value, #[case] expected: Option<GreetingStatus>) {
        assert_eq!(stored(&json!({"status": status})).status, expected);
    }

    #[test]
    fn an_unreadable_claim_is_a_claim() {
        let greeting = stored(&json!({"spec": {"message": "Hi"}, "status": {"claim": {"token": ["new"]}}}));
        assert_eq!(greeting.status.unwrap().claim, Some(StoredClaim::Other(json!({"token": ["new"]}))));
    }

    #[test]
    fn reads_what_it_writes() {
        let time: Time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let status = GreetingStatus {
            observed_generation: Some(2),
            greeted_at: Some(time.clone()),
            last_greeting: Some("Hi".into()),
            updates: Some(1),
            claim: Some(StoredClaim::Known(Claim {
                message_hash: "v1-x".into(),
                kind: "Update".into(),
                token: "t".into(),
                at: Some(time),
            })),
            conditions: Vec::new(),
            other: Map::new(),
        };
        let text = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<GreetingStatus>(text).unwrap(), status);
    }
}
