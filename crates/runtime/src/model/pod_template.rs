//! Pod templates as the API server returned them: stored, hashed and made into pods as raw JSON.
//!
//! Typed structs would drop unknown fields. An upgrade of Quintet would then change the hash and run everything
//! again.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::model::digest;

/// A pod template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawTemplate(pub Value);

impl JsonSchema for RawTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        crate::model::schema::pod_template(generator)
    }
}

impl RawTemplate {
    /// `v1-` and 10 characters of the digest of the template, which ignores key order and nulls. The prefix names the
    /// algorithm; golden tests freeze it.
    pub fn hash(&self) -> String {
        format!("v1-{}", digest::of_json(&self.0, 10))
    }

    /// The spec of the pod; empty if there is none.
    pub fn spec(&self) -> &Map<String, Value> {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        self.0.get("spec").and_then(Value::as_object).unwrap_or(&EMPTY)
    }

    /// A pod of this template. As in every Kubernetes controller, it takes only labels, annotations and finalizers
    /// from the template's metadata. The manager's own labels, annotations and finalizers take precedence.
    pub fn pod(
        &self,
        namespace: &str,
        name: &str,
        owner: &Value,
        labels: &[(&str, &str)],
        annotations: &[(&str, &str)],
        finalizer: Option<&str>,
    ) -> Value {
        let merged = |member: &str, ours: &[(&str, &str)]| {
            let mut all = self
                .0
                .pointer(&format!("/metadata/{member}"))
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            for (key, value) in ours {
                all.insert((*key).to_owned(), Value::from(*value));
            }
            all
        };
        let mut metadata = json!({
            "name": name,
            "namespace": namespace,
            "labels": merged("labels", labels),
            "ownerReferences": [owner],
        });
        let annotations = merged("annotations", annotations);
        if !annotations.is_empty() {
            metadata["annotations"] = Value::Object(annotations);
        }
        let theirs = self.0.pointer("/metadata/finalizers").and_then(Value::as_array);
        let mut finalizers = theirs.cloned().unwrap_or_default();
        finalizers.extend(finalizer.map(Value::from));
        if !finalizers.is_empty() {
            metadata["finalizers"] = Value::Array(finalizers);
        }
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.spec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_labels_take_precedence_and_unknown_fields_stay() {
        let template = RawTemplate(json!({
            "metadata": {"name": "ignored", "labels": {"app": "theirs", "x": "y"}},
            "spec": {"containers": [{"name": "c", "fieldOfTomorrow": 1}]}
        }));
        let pod = template.pod("ns", "p", &json!({"uid": "u"}), &[("app", "ours")], &[], None);
        assert_eq!(pod["metadata"]["labels"], json!({"app": "ours", "x": "y"}));
        assert_eq!(pod["metadata"]["name"], "p");
        assert_eq!(pod["spec"]["containers"][0]["fieldOfTomorrow"], 1);
        assert!(pod["metadata"].get("annotations").is_none());
    }
}
