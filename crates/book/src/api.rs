//! The Book custom resource.
//!
//! On `kubectl apply`, the API server rejects a Book without author or title, with one line for each missing field. This needs
//! a spec that keeps unknown fields: otherwise strict validation fails first, with `unknown field`. The schema has no CEL rule,
//! because a CEL rule adds a line about rules that were not checked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use quintet_runtime::model::conditions::{self, READY};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

/// The most characters that an author or a title may have.
pub const LONGEST: usize = 1024;

/// The desired Book. The API server also keeps unknown fields of the spec.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize)]
#[kube(
    group = "christianb93.github.com",
    version = "v1",
    kind = "Book",
    plural = "books",
    singular = "book",
    shortname = "bk",
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
    /// The author of the book. The text is one line, must not be blank, and has at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(with = "String", length(max = LONGEST), regex(pattern = LINE))]
    pub author: Value,

    /// The title of the book. The text is one line, must not be blank, and has at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(with = "String", length(max = LONGEST), regex(pattern = LINE))]
    pub title: Value,

    /// At most 64 characters of the names of at most five unknown fields, escaped.
    #[serde(skip)]
    pub unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for BookSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The tutorial's first definition accepted any spec, or none. A derived struct would make such Books undecodable.
        let stored = Option::<Value>::deserialize(deserializer)?.unwrap_or_default();
        let Value::Object(mut fields) = stored else { return Ok(Self::default()) };
        let mut take = |field: &str| fields.remove(field).unwrap_or_default();
        let (author, title) = (take("author"), take("title"));
        let unknown = fields.keys().take(5).map(|name| name.escape_debug().take(64).collect());
        Ok(Self { author, title, unknown: unknown.collect() })
    }
}

/// One line with more than spaces.
const LINE: &str = "^[^\\x00-\\x1f\\x7f-\\x9f\u{2028}\u{2029}]*[^\\x00-\\x20\\x7f-\\x9f\u{2028}\u{2029}][^\\x00-\\x1f\\x7f-\\x9f\u{2028}\u{2029}]*$";

/// The observed state of a Book.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct BookStatus {
    /// The generation that this status describes. The value is -1 until a manager writes the status.
    pub observed_generation: Option<i64>,
    /// The condition Ready is True if the Book has a valid author and a valid title. Otherwise Ready is False, and
    /// Stalled is True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl<'de> Deserialize<'de> for BookStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Under the tutorial's definition, the status may be invalid. The controller then overwrites it.
        let mut stored = Value::deserialize(deserializer)?;
        let all = stored.get_mut("conditions").map(Value::take).unwrap_or_default();
        Ok(Self {
            observed_generation: stored.get("observedGeneration").and_then(Value::as_i64),
            conditions: conditions::of_types(&[READY, "Stalled"], all).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt as _;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn the_schema_makes_kubectl_name_both_fields() {
        let crd = serde_json::to_value(Book::crd()).unwrap();
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        assert!(schema["required"].as_array().unwrap().contains(&"spec".into()));
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(spec["required"], json!(["author", "title"]));
        for field in ["author", "title"] {
            let mut text = spec["properties"][field].clone();
            assert!(text.as_object_mut().unwrap().remove("description").is_some());
            assert_eq!(text, json!({"type": "string", "maxLength": 1024, "pattern": LINE}));
        }
        assert_eq!(spec["properties"].as_object().unwrap().len(), 2);
        assert!(!crd.to_string().contains("x-kubernetes-validations"));
        assert_eq!(version["selectableFields"].as_array().unwrap().len(), 2);
    }

    #[rstest]
    #[case::other_types(json!({"spec": {"author": 5, "foo": "bar"}}), json!(5))]
    #[case::no_spec(json!({}), Value::Null)]
    #[case::null(json!({"spec": null}), Value::Null)]
    #[case::no_object(json!({"spec": "hello"}), Value::Null)]
    fn decodes_any_stored_spec(#[case] stored: Value, #[case] author: Value) {
        let mut book =
            json!({"apiVersion": "christianb93.github.com/v1", "kind": "Book", "metadata": {"name": "b"}});
        book.as_object_mut().unwrap().extend(stored.as_object().unwrap().clone());
        let book: Book = serde_json::from_value(book).unwrap();
        assert_eq!(book.spec.author, author);
    }
}
