//! The Greeting custom resource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What to say, and how often.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    // The post's schema did not require it: an object stored under that schema decodes and gets a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "message")]
    pub message: Option<String>,

    /// Seconds between two `Timer:` lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "interval")]
    pub interval_seconds: Option<i64>,
}

fn message(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 16384 })
}

fn interval(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 1, "maximum": 315_360_000, "default": 60 })
}

/// What was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GreetingStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When it was first greeted; the timer counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greeted_at: Option<Time>,
    /// The first 256 bytes of the message that was said last on creation or change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_greeting: Option<String>,
    /// Who said it: written before the line is printed, so that nobody says it twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Ready: the message was said. False with reason NoMessage where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A claim on having said a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Identifies the message; the mark before the dash says how it was made.
    #[serde(default)]
    pub message_hash: String,
    /// Create or Update.
    #[serde(default)]
    pub kind: String,
    /// The process and the attempt that claimed.
    #[serde(default)]
    pub token: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}
