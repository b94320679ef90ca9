//! A Deployment that the post's operator made is taken over.
//!
//! That operator created and updated whole objects, so the API server holds it for the owner of every field, and an apply
//! of ours would never take one away. Its entries in managedFields are turned into ours once: from then on a field that we
//! do not apply goes.

use quintet_runtime::FIELD_MANAGER;
use serde::Deserialize;
use serde_json::{Value, json};

/// The names under which the post's operator wrote: its container's program, and `go run`'s.
const PREDECESSORS: [&str; 2] = ["manager", "main"];

/// An object's metadata, as far as it says who owns its fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Owned {
    /// Its metadata.
    pub metadata: OwnedMeta,
}

/// See [`Owned`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnedMeta {
    /// The object's version.
    pub resource_version: String,
    /// Who owns which fields.
    pub managed_fields: Vec<Value>,
}

/// The JSON patch that makes what the post's operator owned ours; None where it owned nothing.
pub fn adoption(found: &Owned) -> Option<Value> {
    let OwnedMeta { resource_version, managed_fields } = &found.metadata;
    let is_predecessors = |entry: &Value| {
        entry["operation"] == "Update"
            && entry["subresource"].as_str().unwrap_or_default().is_empty()
            && entry["manager"].as_str().is_some_and(|manager| PREDECESSORS.contains(&manager))
    };
    let is_ours = |entry: &Value| {
        entry["operation"] == "Apply"
            && entry["subresource"].as_str().unwrap_or_default().is_empty()
            && entry["manager"] == FIELD_MANAGER
    };
    if !managed_fields.iter().any(is_predecessors) {
        return None;
    }
    let mut ours: Option<Value> = None;
    let mut entries = Vec::new();
    for entry in managed_fields {
        if !is_predecessors(entry) && !is_ours(entry) {
            entries.push(entry.clone());
            continue;
        }
        match &mut ours {
            None => {
                let mut entry = entry.clone();
                entry["manager"] = FIELD_MANAGER.into();
                entry["operation"] = "Apply".into();
                ours = Some(entry);
            }
            Some(ours) => merge(&mut ours["fieldsV1"], &entry["fieldsV1"]),
        }
    }
    entries.extend(ours);
    Some(json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": resource_version },
        { "op": "replace", "path": "/metadata/managedFields", "value": entries },
    ]))
}

/// Adds a set of fields to another.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert_with(|| json!({})), value);
            }
        }
        (into, from) => {
            if into.is_null() {
                *into = from.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({ "manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields })
    }

    fn found(managed_fields: Vec<Value>) -> Owned {
        Owned { metadata: OwnedMeta { resource_version: "7".into(), managed_fields } }
    }

    #[test]
    fn what_the_predecessor_owned_becomes_ours() {
        let mut status = entry("kube-controller-manager", "Update", &json!({ "f:status": {} }));
        status["subresource"] = "status".into();
        let patch = adoption(&found(vec![
            entry("main", "Update", &json!({ "f:spec": { "f:a": {} } })),
            status.clone(),
            entry("manager", "Update", &json!({ "f:spec": { "f:b": { ".": {} } } })),
        ]))
        .unwrap();
        assert_eq!(patch[0]["value"], "7");
        let ours = entry("quintet", "Apply", &json!({ "f:spec": { "f:a": {}, "f:b": { ".": {} } } }));
        assert_eq!(patch[1]["value"], json!([status, ours]));
    }

    #[test]
    fn others_are_left_alone_and_once_is_enough() {
        let theirs = entry("kubectl-edit", "Update", &json!({ "f:spec": {} }));
        let ours = entry("quintet", "Apply", &json!({ "f:spec": {} }));
        assert_eq!(adoption(&found(vec![theirs, ours])), None);
    }
}
