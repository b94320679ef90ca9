//! Merges the user's pod template over the manager's, as a strategic merge patch.
//!
//! Source: the patch strategies in the comments of Kubernetes' core/v1 types, for the lists that the manager's
//! template has. There are no directives such as `$patch`, and the API server drops nulls, so a value of the
//! manager can be replaced but not removed. The schema rejects what must not change.

use serde_json::{Map, Value, json};

/// The lists whose items are merged, and the member that identifies an item. Other lists are replaced.
const MERGED_LISTS: [(&str, &str); 6] = [
    ("containers", "name"),
    ("initContainers", "name"),
    (VOLUMES, "name"),
    ("env", "name"),
    (PORTS, "containerPort"),
    ("volumeMounts", "mountPath"),
];
/// An item of this list has one of many sources, so an item of the same name is replaced.
const VOLUMES: &str = "volumes";
/// The protocol, TCP by default, identifies an item of this list too.
const PORTS: &str = "ports";

/// Merges `theirs` into `ours`, the value of `field`: maps by key, some lists by an identity, and all else is
/// replaced.
pub fn merge(ours: &mut Value, theirs: &Value, field: &str) {
    let identity = MERGED_LISTS.iter().find(|(list, _)| *list == field);
    match (ours, theirs, identity) {
        (Value::Object(ours), Value::Object(theirs), _) => {
            // As for every Kubernetes controller, only these metadata of a pod template count.
            let counts = |key: &str| field != "metadata" || matches!(key, "labels" | "annotations");
            for (key, value) in theirs.iter().filter(|(key, _)| counts(key)) {
                // An empty value sets nothing, and would stay after its removal.
                if ours.contains_key(key) || !is_empty(value) {
                    merge(ours.entry(key).or_insert(Value::Null), value, key);
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs), Some((_, identity))) => {
            let known = ours.len();
            for item in theirs {
                let name = item.get(identity).filter(|name| !name.is_null());
                let protocol = |one: &Value| one.get("protocol").map_or(json!("TCP"), Value::clone);
                let is_same = |one: &&mut Value| {
                    let has_name = name.is_some() && one.get(identity) == name;
                    has_name && (field != PORTS || protocol(one) == protocol(item))
                };
                match ours.iter_mut().take(known).find(is_same) {
                    Some(one) if field == VOLUMES => *one = item.clone(),
                    Some(one) => merge(one, item, ""),
                    None => ours.push(item.clone()),
                }
            }
        }
        (ours, theirs, _) => *ours = theirs.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::map(json!({"a": {"x": 1, "y": 2}}), json!({"a": {"y": 3, "z": 4}}), json!({"a": {"x": 1, "y": 3, "z": 4}}))]
    #[case::new_item(
        json!({"containers": [{"name": "c", "image": "i"}]}),
        json!({"containers": [{"name": "sidecar", "image": "s"}]}),
        json!({"containers": [{"name": "c", "image": "i"}, {"name": "sidecar", "image": "s"}]})
    )]
    #[case::same_item(
        json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "a"}]}]}),
        json!({"containers": [{"name": "c", "stdin": true, "env": [{"name": "B", "value": "b"}]}]}),
        json!({"containers": [{"name": "c", "image": "i", "stdin": true,
            "env": [{"name": "A", "value": "a"}, {"name": "B", "value": "b"}]}]})
    )]
    #[case::one_volume_at_two_paths(
        json!({"volumeMounts": [{"name": "ours", "mountPath": "/o"}]}),
        json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]}),
        json!({"volumeMounts": [{"name": "ours", "mountPath": "/o"}, {"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]})
    )]
    #[case::ports_by_number(
        json!({"ports": [{"name": "health", "containerPort": 1}]}),
        json!({"ports": [{"name": "metrics", "containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]}),
        json!({"ports": [{"name": "metrics", "containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]})
    )]
    #[case::another_source_of_a_volume(
        json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
        json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}),
        json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]})
    )]
    #[case::empty_values(json!({}), json!({"tolerations": [], "affinity": {}}), json!({}))]
    #[case::an_empty_directory(
        json!({"volumes": []}),
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "emptyDir": {}}]})
    )]
    #[case::metadata(
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"labels": {"c": "d"}, "name": "x", "ownerReferences": []}}),
        json!({"metadata": {"labels": {"a": "b", "c": "d"}}})
    )]
    #[case::other_list(json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]}))]
    #[case::a_list_that_is_no_pod_field(json!({"command": [1]}), json!({"command": []}), json!({"command": []}))]
    #[case::value(json!({"securityContext": {"runAsUser": 1}}), json!({"securityContext": {"runAsUser": 2}}), json!({"securityContext": {"runAsUser": 2}}))]
    fn merges(#[case] mut ours: Value, #[case] theirs: Value, #[case] expected: Value) {
        merge(&mut ours, &theirs, "");
        assert_eq!(ours, expected);
        merge(&mut ours, &json!({}), "");
        assert_eq!(ours, expected, "an empty template changes nothing");
    }
}
