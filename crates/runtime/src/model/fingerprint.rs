//! A fingerprint of a schema, to compare a CustomResourceDefinition with the schema that an API server serves.
//!
//! The OpenAPI document of an API server has the schema in another form. It adds metadata and rules for numbers that may be
//! strings. So the fingerprint covers the fields with their types, required fields, allowed values and validation rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use crate::model::digest;

/// The fields that every object has. A CustomResourceDefinition does not define them.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// The characters of a fingerprint: 80 bits.
const LENGTH: usize = 16;

/// The compared parts of a schema.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Schema {
    #[serde(rename = "type")]
    type_: String,
    properties: BTreeMap<String, Self>,
    items: Option<Box<Self>>,
    #[serde(rename = "additionalProperties")]
    additional: Option<Additional>,
    required: Vec<String>,
    #[serde(rename = "enum")]
    values: Vec<Value>,
    #[serde(rename = "x-kubernetes-validations")]
    rules: Vec<Validation>,
}

/// The schema of the values of a map, or whether a map allows any value.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Additional {
    Any(bool),
    Values(Box<Schema>),
}

#[derive(Clone, Debug, Deserialize)]
struct Validation {
    rule: String,
}

impl Schema {
    /// The fingerprint. Descriptions and the order of fields do not change it.
    pub fn fingerprint(mut self) -> String {
        for field in OF_EVERY_OBJECT {
            self.properties.remove(field);
        }
        let mut text = String::new();
        self.write("", &mut text);
        digest::short(&[&text], LENGTH)
    }

    /// Writes a line for each field, with its path.
    fn write(&self, path: &str, text: &mut String) {
        let sorted = |mut words: Vec<String>| {
            words.sort_unstable();
            words.join(" ")
        };
        let rules = self.rules.iter().map(|validation| validation.rule.clone()).collect();
        let values = self.values.iter().map(Value::to_string).collect();
        let (required, values, rules) = (sorted(self.required.clone()), sorted(values), sorted(rules));
        let _ = writeln!(text, "{path} {} [{required}] [{values}] [{rules}]", self.type_);
        for (name, field) in &self.properties {
            field.write(&format!("{path}.{name}"), text);
        }
        if let Some(items) = &self.items {
            items.write(&format!("{path}[]"), text);
        }
        match &self.additional {
            Some(Additional::Values(values)) => values.write(&format!("{path}{{}}"), text),
            Some(Additional::Any(true)) => {
                let _ = writeln!(text, "{path}{{}}");
            }
            Some(Additional::Any(false)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fingerprint(schema: Value) -> String {
        serde_json::from_value::<Schema>(schema).unwrap().fingerprint()
    }

    fn schema() -> Value {
        json!({ "type": "object", "required": ["spec"], "properties": { "spec": {
            "type": "object", "required": ["a", "b"],
            "properties": {
                "a": { "type": "string", "enum": ["x", "y"] },
                "b": { "type": "array", "items": { "type": "integer" } },
                "c": { "type": "object", "additionalProperties": { "type": "string" } },
                "d": { "x-kubernetes-int-or-string": true },
            },
            "x-kubernetes-validations": [{ "rule": "self.a != ''", "message": "a must not be empty" }],
        } } })
    }

    #[test]
    fn accepts_the_form_of_an_openapi_document() {
        let mut served = schema();
        served["description"] = json!("A thing.");
        served["x-kubernetes-group-version-kind"] = json!([{ "group": "g", "version": "v1", "kind": "K" }]);
        for (name, field) in [
            ("apiVersion", json!({ "type": "string" })),
            ("kind", json!({ "type": "string" })),
            ("metadata", json!({ "allOf": [{ "$ref": "#/components/schemas/meta" }] })),
        ] {
            served["properties"][name] = field;
        }
        let spec = &mut served["properties"]["spec"];
        spec["required"] = json!(["b", "a"]);
        spec["properties"]["d"]["anyOf"] = json!([{ "type": "integer" }, { "type": "string" }]);
        assert_eq!(fingerprint(served), fingerprint(schema()));
    }

    #[test]
    fn differs_if_a_field_or_a_rule_differs() {
        let original = fingerprint(schema());
        for (path, value) in [
            ("/properties/spec/properties/e", json!({ "type": "string" })),
            ("/properties/spec/properties/a/type", json!("integer")),
            ("/properties/spec/properties/a/enum", json!(["x"])),
            ("/properties/spec/properties/b/items/type", json!("string")),
            ("/properties/spec/properties/c/additionalProperties", json!(true)),
            ("/properties/spec/required", json!(["a"])),
            ("/properties/spec/x-kubernetes-validations", json!([{ "rule": "true" }])),
        ] {
            let (parent, name) = path.rsplit_once('/').unwrap();
            let mut changed = schema();
            changed.pointer_mut(parent).unwrap()[name] = value;
            assert_ne!(fingerprint(changed), original, "{path}");
        }
    }
}
