//! Server-side apply: the owners of fields, and the effect of an apply.
//!
//! Owned fields are sets of leaves, each a path through maps and keyed lists. A list is keyed if a custom
//! resource's schema or `KEYED` defines keys; any other list is a leaf.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A field of a map.
    Field(String),
    /// An item of a keyed list, by its keys as JSON.
    Item(String),
}

/// A path to a leaf.
pub type Path = Vec<Step>;

/// An owner of fields: the manager's name, its operation (`Apply` or `Update`) and the subresource.
pub type Manager = (String, &'static str, String);

/// The owners of an object's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(BTreeMap<Manager, BTreeSet<Path>>);

/// The keyed lists of Kubernetes' types, by the name of their field.
const KEYED: [(&str, &[&str]); 8] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("volumes", &["name"]),
    ("env", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("volumeMounts", &["mountPath"]),
    ("conditions", &["type"]),
    ("ownerReferences", &["uid"]),
];

fn keys_of(schema: Option<&Value>, field: &str) -> Option<Vec<String>> {
    if let Some(schema) = schema {
        let is_map = schema["x-kubernetes-list-type"] == "map";
        let keys = schema["x-kubernetes-list-map-keys"].as_array().filter(|_| is_map)?;
        return Some(keys.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    let keyed = KEYED.iter().find(|(name, _)| *name == field)?;
    Some(keyed.1.iter().map(|key| (*key).to_owned()).collect())
}

fn key_of(item: &Value, keys: &[String]) -> String {
    let mut of = Map::new();
    for key in keys {
        // The protocol of a port has a default.
        let value = match &item[key.as_str()] {
            Value::Null if key == "protocol" => Value::from("TCP"),
            value => value.clone(),
        };
        of.insert(key.clone(), value);
    }
    Value::Object(of).to_string()
}

fn below<'s>(schema: Option<&'s Value>, field: &str) -> Option<&'s Value> {
    let schema = schema?;
    schema["properties"].get(field).or_else(|| schema.get("additionalProperties")).or(Some(&Value::Null))
}

fn leaves(schema: Option<&Value>, field: &str, value: &Value, at: &Path, found: &mut BTreeSet<Path>) {
    let is_atomic = schema.is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic");
    match value {
        Value::Object(fields) if !fields.is_empty() && !is_atomic => {
            for (name, value) in fields {
                let mut at = at.clone();
                at.push(Step::Field(name.clone()));
                leaves(below(schema, name), name, value, &at, found);
            }
        }
        Value::Array(items) if keys_of(schema, field).is_some() => {
            let keys = keys_of(schema, field).unwrap_or_default();
            let items_schema = schema.and_then(|schema| schema.get("items"));
            for item in items {
                let mut at = at.clone();
                at.push(Step::Item(key_of(item, &keys)));
                found.insert(at.clone());
                leaves(items_schema, "", item, &at, found);
            }
        }
        _ => {
            found.insert(at.clone());
        }
    }
}

fn find<'v>(schema: Option<&Value>, field: &str, value: &'v Value, path: &[Step]) -> Option<&'v Value> {
    match path.split_first() {
        None => Some(value),
        Some((Step::Field(name), rest)) => find(below(schema, name), name, value.get(name)?, rest),
        Some((Step::Item(key), rest)) => {
            let keys = keys_of(schema, field)?;
            let item = value.as_array()?.iter().find(|item| key_of(item, &keys) == *key)?;
            find(schema.and_then(|schema| schema.get("items")), "", item, rest)
        }
    }
}

fn remove(schema: Option<&Value>, field: &str, value: &mut Value, path: &[Step]) {
    match path.split_first() {
        Some((Step::Field(name), rest)) => {
            let Some(fields) = value.as_object_mut() else { return };
            if rest.is_empty() {
                fields.remove(name);
            } else if let Some(inner) = fields.get_mut(name) {
                remove(below(schema, name), name, inner, rest);
                // A map that an apply created is removed when it becomes empty.
                if inner.as_object().is_some_and(Map::is_empty) || inner.as_array().is_some_and(Vec::is_empty)
                {
                    fields.remove(name);
                }
            }
        }
        Some((Step::Item(key), rest)) => {
            let (Some(keys), Some(items)) = (keys_of(schema, field), value.as_array_mut()) else { return };
            if rest.is_empty() {
                items.retain(|item| key_of(item, &keys) != *key);
            } else if let Some(item) = items.iter_mut().find(|item| key_of(item, &keys) == *key) {
                remove(schema.and_then(|schema| schema.get("items")), "", item, rest);
            }
        }
        None => {}
    }
}

fn merge(schema: Option<&Value>, field: &str, live: &mut Value, config: &Value) {
    let is_atomic = schema.is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic");
    match config {
        Value::Object(fields) if live.is_object() && !is_atomic => {
            for (name, value) in fields {
                merge(below(schema, name), name, &mut live[name], value);
            }
        }
        Value::Array(items) if live.is_array() && keys_of(schema, field).is_some() => {
            let keys = keys_of(schema, field).unwrap_or_default();
            let items_schema = schema.and_then(|schema| schema.get("items"));
            let Some(there) = live.as_array_mut() else { return };
            for item in items {
                let key = key_of(item, &keys);
                match there.iter_mut().find(|one| key_of(one, &keys) == key) {
                    Some(one) => merge(items_schema, "", one, item),
                    None => there.push(item.clone()),
                }
            }
        }
        _ => *live = config.clone(),
    }
}

/// The fields that can be owned: all except identity and those that the server sets.
fn owned_part(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
        if let Some(meta) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.retain(|name, _| {
                matches!(&**name, "labels" | "annotations" | "finalizers" | "ownerReferences")
            });
        }
        if fields.get("metadata").and_then(Value::as_object).is_some_and(Map::is_empty) {
            fields.remove("metadata");
        }
    }
    object
}

fn all_leaves(schema: Option<&Value>, object: &Value) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    let part = owned_part(object);
    if part.as_object().is_some_and(|fields| !fields.is_empty()) {
        leaves(schema, "", &part, &Vec::new(), &mut found);
    }
    found
}

fn show(path: &Path) -> String {
    path.iter().fold(String::new(), |text, step| match step {
        Step::Field(name) => format!("{text}.{name}"),
        Step::Item(key) => format!("{text}[{}]", key.trim_matches(['{', '}'])),
    })
}

impl Owners {
    /// Applies `config` to `live` for a manager. The error is the server's message about conflicts.
    pub fn apply(
        &mut self,
        schema: Option<&Value>,
        live: &mut Value,
        config: &Value,
        manager: &Manager,
        force: bool,
    ) -> Result<(), String> {
        let config = owned_part(config);
        let applied = all_leaves(schema, &config);
        let mut conflicts = Vec::new();
        for (other, fields) in self.0.iter().filter(|(other, _)| *other != manager) {
            for path in fields.intersection(&applied) {
                let is_item = matches!(path.last(), Some(Step::Item(_)));
                if !is_item && find(schema, "", live, path) != find(schema, "", &config, path) {
                    conflicts.push((other.clone(), path.clone()));
                }
            }
        }
        if !conflicts.is_empty() && !force {
            let of = &conflicts[0].0;
            let subresource =
                if of.2.is_empty() { String::new() } else { format!(" with subresource \"{}\"", of.2) };
            let fields: Vec<String> = conflicts.iter().map(|(_, path)| show(path)).collect();
            let count = conflicts.len();
            return Err(if count == 1 {
                format!(
                    "Apply failed with 1 conflict: conflict with \"{}\"{subresource}: {}",
                    of.0, fields[0]
                )
            } else {
                format!(
                    "Apply failed with {count} conflicts: conflicts with \"{}\"{subresource}:\n- {}",
                    of.0,
                    fields.join("\n- ")
                )
            });
        }
        for (other, path) in &conflicts {
            if let Some(fields) = self.0.get_mut(other) {
                fields.remove(path);
            }
        }
        let before = self.0.insert(manager.clone(), applied.clone()).unwrap_or_default();
        merge(schema, "", live, &config);
        // An item is removed before its fields, because it is found by its keys.
        for path in before.difference(&applied) {
            // An empty map that gets fields is no longer owned itself, but stays because of them.
            let is_field = matches!(path.last(), Some(Step::Field(_)));
            let owns = |fields: &BTreeSet<Path>| {
                fields
                    .range::<Path, _>(path..)
                    .next()
                    .is_some_and(|one| one == path || is_field && one.starts_with(path))
            };
            if !self.0.values().any(owns) {
                remove(schema, "", live, path);
            }
        }
        self.0.retain(|_, fields| !fields.is_empty());
        Ok(())
    }

    /// Records the changes of a write that is not an apply.
    pub fn update(&mut self, schema: Option<&Value>, old: Option<&Value>, new: &Value, manager: &Manager) {
        let now = all_leaves(schema, new);
        let differs =
            |path: &Path| old.is_none_or(|old| find(schema, "", old, path) != find(schema, "", new, path));
        let changed: BTreeSet<Path> = now.iter().filter(|path| differs(path)).cloned().collect();
        for (other, fields) in &mut self.0 {
            if other == manager {
                fields.retain(|path| now.contains(path));
            } else {
                fields.retain(|path| now.contains(path) && !changed.contains(path));
            }
        }
        if !changed.is_empty() {
            self.0.entry(manager.clone()).or_default().extend(changed);
        }
        self.0.retain(|_, fields| !fields.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(
        owners: &mut Owners,
        live: &mut Value,
        config: &Value,
        who: &str,
        force: bool,
    ) -> Result<(), String> {
        owners.apply(None, live, config, &(who.to_owned(), "Apply", String::new()), force)
    }

    #[test]
    fn removes_fields_no_longer_applied_unless_another_owns_them() {
        let (mut owners, mut live) = (Owners::default(), json!({}));
        let config = json!({ "data": { "a": "1", "b": "2" } });
        apply(&mut owners, &mut live, &config, "one", false).unwrap();
        apply(&mut owners, &mut live, &json!({ "data": { "a": "1" } }), "two", false).unwrap();
        apply(&mut owners, &mut live, &json!({ "data": { "c": "3" } }), "one", false).unwrap();
        assert_eq!(live, json!({ "data": { "a": "1", "c": "3" } }));
    }

    #[test]
    fn an_empty_map_that_gets_fields_stays() {
        let (mut owners, mut live) = (Owners::default(), json!({}));
        apply(&mut owners, &mut live, &json!({ "spec": { "options": {} } }), "one", false).unwrap();
        let config = json!({ "spec": { "options": { "type": "a" } } });
        apply(&mut owners, &mut live, &config, "one", false).unwrap();
        assert_eq!(live, config);
        apply(&mut owners, &mut live, &json!({ "spec": { "options": {} } }), "one", false).unwrap();
        assert!(live["spec"]["options"]["type"].is_null());
    }

    #[test]
    fn conflicts_over_a_field_of_another_manager_unless_forced() {
        let (mut owners, mut live) = (Owners::default(), json!({}));
        let theirs = json!({ "spec": { "replicas": 1 } });
        owners.update(None, None, &theirs, &("them".to_owned(), "Update", String::new()));
        live.clone_from(&theirs);
        let ours = json!({ "spec": { "replicas": 2 } });
        let error = apply(&mut owners, &mut live, &ours, "us", false).unwrap_err();
        assert_eq!(error, "Apply failed with 1 conflict: conflict with \"them\": .spec.replicas");
        apply(&mut owners, &mut live, &ours, "us", true).unwrap();
        assert_eq!(live, ours);
        apply(&mut owners, &mut live, &json!({}), "us", true).unwrap();
        assert_eq!(live, json!({}), "it was ours alone");
    }

    #[test]
    fn owns_items_of_keyed_lists_separately() {
        let (mut owners, mut live) = (Owners::default(), json!({}));
        let container = |name: &str, image: &str| json!({ "name": name, "image": image });
        let of = |containers: Vec<Value>| json!({ "spec": { "containers": containers } });
        apply(&mut owners, &mut live, &of(vec![container("a", "1")]), "one", false).unwrap();
        apply(&mut owners, &mut live, &of(vec![container("b", "2")]), "two", false).unwrap();
        assert_eq!(live, of(vec![container("a", "1"), container("b", "2")]));
        apply(&mut owners, &mut live, &of(vec![container("c", "3")]), "one", false).unwrap();
        assert_eq!(live, of(vec![container("b", "2"), container("c", "3")]));
    }
}
