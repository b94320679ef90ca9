//! The Book custom resource.
//!
//! The schema refuses what lacks an author or a title, with one line for each, at plain `kubectl apply`. For that the
//! spec keeps unknown fields: without that, strict validation answers `unknown field` and the schema is never asked. It
//! has no CEL rule either, since one adds a line about rules that were not checked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a Book says of itself. Anything decodes: the post's first definition let anything be stored.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "christianb93.github.com",
    version = "v1",
    kind = "Book",
    plural = "books",
    singular = "book",
    category = "quintet",
    namespaced,
    status = "BookStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Book is a record of an author and a title.",
    selectable = ".spec.author",
    selectable = ".spec.title",
    printcolumn(name = "Title", type_ = "string", json_path = ".spec.title"),
    printcolumn(name = "Author", type_ = "string", json_path = ".spec.author"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true, "required" = ["author", "title"]))]
pub struct BookSpec {
    /// Who wrote it. Not blank, at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "text")]
    pub author: Value,

    /// What it is called. Not blank, at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "text")]
    pub title: Value,
}

fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 1024, "pattern": "\\S" })
}

/// What the controller says of a Book.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BookStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready: it has an author and a title.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt as _;

    #[test]
    fn the_schema_is_what_makes_kubectl_name_both_fields() {
        let crd = serde_json::to_value(Book::crd()).unwrap();
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        assert!(schema["required"].as_array().unwrap().contains(&"spec".into()));
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(spec["required"], serde_json::json!(["author", "title"]));
        assert_eq!(spec["properties"]["author"]["pattern"], "\\S");
        assert!(!crd.to_string().contains("x-kubernetes-validations"));
        assert_eq!(version["selectableFields"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn anything_that_was_stored_decodes() {
        let book: Book = serde_json::from_value(serde_json::json!({
            "apiVersion": "christianb93.github.com/v1", "kind": "Book", "metadata": {"name": "b"},
            "spec": {"author": 5, "foo": "bar"}
        }))
        .unwrap();
        assert_eq!(book.spec.author, 5);
    }
}
