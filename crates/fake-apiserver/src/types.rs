//! The types of objects, and the server's behaviour for each.

use serde_json::{Map, Value, json};

/// A type of object.
#[derive(Clone, Debug)]
pub struct Type {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The plural, as in paths.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether its status is a subresource.
    pub has_status: bool,
    /// Whether its objects have a generation.
    pub has_generation: bool,
    /// The schema of a custom resource.
    pub schema: Option<Value>,
}

impl Type {
    fn core(group: &str, kind: &str, plural: &str, namespaced: bool, has_status: bool) -> Self {
        Self {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced,
            has_status,
            has_generation: matches!(kind, "Pod" | "Deployment" | "Job"),
            schema: None,
        }
    }

    /// The types of Kubernetes itself.
    pub fn built_in() -> Vec<Self> {
        vec![
            Self::core("", "Namespace", "namespaces", false, true),
            Self::core("", "Node", "nodes", false, true),
            Self::core("", "Pod", "pods", true, true),
            Self::core("", "ConfigMap", "configmaps", true, false),
            Self::core("", "Secret", "secrets", true, false),
            Self::core("", "Event", "events", true, false),
            Self::core("events.k8s.io", "Event", "events", true, false),
            Self::core("batch", "Job", "jobs", true, true),
            Self::core("apps", "Deployment", "deployments", true, true),
            Self::core("apps", "ControllerRevision", "controllerrevisions", true, false),
            Self::core("coordination.k8s.io", "Lease", "leases", true, false),
        ]
    }

    /// The type of a CustomResourceDefinition, with its first version. `None` if `crd` is not a definition.
    pub fn defined_by(crd: &Value) -> Option<Self> {
        let (spec, version) = (&crd["spec"], &crd["spec"]["versions"][0]);
        Some(Self {
            group: spec["group"].as_str()?.to_owned(),
            version: version["name"].as_str()?.to_owned(),
            kind: spec["names"]["kind"].as_str()?.to_owned(),
            plural: spec["names"]["plural"].as_str()?.to_owned(),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            has_generation: true,
            schema: version["schema"].get("openAPIV3Schema").cloned(),
        })
    }

    /// `group/version`, or only the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `plural.group`, or only the plural for the core group, as in the server's messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether this is its qualified plural.
    pub fn is_called(&self, qualified: &str) -> bool {
        match qualified.split_once('.') {
            Some((plural, group)) => plural == self.plural && group == self.group,
            None => qualified == self.plural && self.group.is_empty(),
        }
    }

    /// Whether a CustomResourceDefinition defines it.
    pub fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    /// Sets defaults, and prunes unknown fields of a custom resource.
    pub fn complete(&self, object: &mut Value) {
        if let Some(schema) = &self.schema {
            let (mut meta, mut rest) = (Value::Null, Map::new());
            if let Some(fields) = object.as_object_mut() {
                meta = fields.remove("metadata").unwrap_or_default();
                rest = std::mem::take(fields);
            }
            let mut body = Value::Object(rest);
            prune(schema, &mut body);
            default(schema, &mut body);
            body["metadata"] = meta;
            *object = body;
            object["apiVersion"] = json!(self.api_version());
            object["kind"] = json!(self.kind);
            return;
        }
        if self.kind == "Pod" {
            let spec = &mut object["spec"];
            if spec["restartPolicy"].is_null() {
                spec["restartPolicy"] = json!("Always");
            }
            if spec["terminationGracePeriodSeconds"].is_null() {
                spec["terminationGracePeriodSeconds"] = json!(30);
            }
            if object["status"]["phase"].is_null() {
                object["status"]["phase"] = json!("Pending");
            }
        }
        if self.kind == "ConfigMap"
            && object["data"].as_object().is_some_and(Map::is_empty)
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("data");
        }
        if self.kind == "Namespace" && object["metadata"]["deletionTimestamp"].is_null() {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
        }
        if self.kind == "Deployment" && object["spec"]["replicas"].is_null() {
            object["spec"]["replicas"] = json!(1);
        }
    }

    /// The errors of an object.
    pub fn validate(&self, object: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(schema) = &self.schema {
            check(schema, object, "", &mut wrong);
        } else if self.kind == "Pod" && object["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
            wrong.push("spec.containers: Required value".to_owned());
        }
        let owners = object["metadata"]["ownerReferences"].as_array();
        if owners.into_iter().flatten().filter(|owner| owner["controller"] == true).count() > 1 {
            let why = "Only one reference can have Controller set to true";
            wrong.push(format!("metadata.ownerReferences: Invalid value: {why}"));
        }
        wrong
    }
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(properties) = schema["properties"].as_object() {
                if !keeps_unknown(schema) {
                    fields.retain(|name, _| {
                        properties.contains_key(name) || matches!(&**name, "apiVersion" | "kind" | "metadata")
                    });
                }
                for (name, field) in fields.iter_mut() {
                    if let Some(schema) = properties.get(name) {
                        prune(schema, field);
                    }
                }
            } else if schema["additionalProperties"].is_object() {
                for field in fields.values_mut() {
                    prune(&schema["additionalProperties"], field);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                prune(&schema["items"], item);
            }
        }
        _ => {}
    }
}

fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(properties) = schema["properties"].as_object() {
                for (name, schema) in properties {
                    // A null counts as absent if the field has a default and is not nullable.
                    let is_absent =
                        fields.get(name).is_none_or(|value| value.is_null() && schema["nullable"] != true);
                    if is_absent && let Some(default) = schema.get("default") {
                        fields.insert(name.clone(), default.clone());
                    }
                }
                for (name, field) in fields.iter_mut() {
                    if let Some(schema) = properties.get(name) {
                        default(schema, field);
                    }
                }
            } else if schema["additionalProperties"].is_object() {
                for field in fields.values_mut() {
                    default(&schema["additionalProperties"], field);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                default(&schema["items"], item);
            }
        }
        _ => {}
    }
}

/// Validates types, required fields, enumerations, bounds and lengths; not expressions.
fn check(schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
    if value.is_null() && (schema["nullable"] == true || path.is_empty()) {
        return;
    }
    let is_of = |type_: &str| match type_ {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => true,
    };
    let at = path.trim_start_matches('.');
    if schema["x-kubernetes-int-or-string"] == true {
        if !is_of("integer") && !is_of("string") {
            wrong.push(format!("{at}: Invalid value: must be of type int-or-string"));
            return;
        }
    } else if let Some(type_) = schema["type"].as_str()
        && !is_of(type_)
    {
        wrong.push(format!("{at}: Invalid value: {at} in body must be of type {type_}"));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        wrong.push(format!("{at}: Unsupported value: {value}"));
    }
    if let Some(number) = value.as_f64() {
        if schema["minimum"].as_f64().is_some_and(|least| number < least) {
            wrong.push(format!(
                "{at}: Invalid value: {value}: {at} in body should be greater than or equal to {}",
                schema["minimum"]
            ));
        }
        if schema["maximum"].as_f64().is_some_and(|most| number > most) {
            wrong.push(format!(
                "{at}: Invalid value: {value}: {at} in body should be less than or equal to {}",
                schema["maximum"]
            ));
        }
    }
    let outside = |length: usize, least: &str, most: &str| {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        schema[least].as_u64().is_some_and(|least| length < least)
            || schema[most].as_u64().is_some_and(|most| length > most)
    };
    match value {
        Value::String(text) if outside(text.chars().count(), "minLength", "maxLength") => {
            wrong.push(format!("{at}: Invalid value: the length is out of bounds"));
        }
        Value::Array(items) => {
            if outside(items.len(), "minItems", "maxItems") {
                wrong.push(format!("{at}: Invalid value: the number of items is out of bounds"));
            }
            for (index, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{index}]"), wrong);
            }
        }
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    wrong.push(format!(
                        "{}: Required value",
                        format!("{path}.{name}").trim_start_matches('.')
                    ));
                }
            }
            for (name, field) in fields {
                if let Some(schema) = schema["properties"].get(name) {
                    check(schema, field, &format!("{path}.{name}"), wrong);
                } else if schema["additionalProperties"].is_object() {
                    check(&schema["additionalProperties"], field, &format!("{path}.{name}"), wrong);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lamp() -> Type {
        Type::defined_by(&json!({ "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": { "kind": "Lamp", "plural": "lamps" },
            "versions": [{ "name": "v1", "subresources": { "status": {} }, "schema": { "openAPIV3Schema": {
                "type": "object", "required": ["spec"],
                "properties": { "spec": { "type": "object", "required": ["name"], "default": {}, "properties": {
                    "name": { "type": "string", "maxLength": 3 },
                    "watts": { "type": "integer", "minimum": 0, "default": 40 },
                    "raw": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    "mode": { "type": "string", "enum": ["On", "Off"] },
                } } },
            } } }],
        } }))
        .unwrap()
    }

    #[test]
    fn sets_defaults_and_prunes_unknown_fields() {
        let mut object = json!({ "metadata": { "name": "a" },
            "spec": { "name": "x", "colour": "red", "raw": { "any": 1 } } });
        lamp().complete(&mut object);
        assert_eq!(object["spec"], json!({ "name": "x", "watts": 40, "raw": { "any": 1 } }));
        assert_eq!(object["metadata"]["name"], "a");
    }

    #[test]
    fn reports_an_error_for_each_invalid_field() {
        let wrong = |spec: Value| lamp().validate(&json!({ "spec": spec }));
        assert!(wrong(json!({ "name": "x" })).is_empty());
        for bad in [
            json!({}),
            json!({ "name": 1 }),
            json!({ "name": "long" }),
            json!({ "name": "x", "watts": -1 }),
            json!({ "name": "x", "mode": "Dim" }),
        ] {
            assert_eq!(wrong(bad.clone()).len(), 1, "{bad}");
        }
    }
}
