//! The objects at the end of a run, without the parts that differ between runs: UIDs, versions, times, run
//! numbers, and numbers in names.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use quintet_fake_apiserver::store::State;
use serde_json::{Map, Value, json};

use crate::marks::MARKED;
use crate::promises;

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The controller of an object, as `kind/name`.
fn owner(object: &Value) -> String {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    controller.map_or(String::new(), |owner| format!("{}/{}", text(owner, "/kind"), text(owner, "/name")))
}

/// The names of the nodes, by UID.
fn node_names(state: &State) -> BTreeMap<String, String> {
    let name =
        |node: &Arc<Value>| (text(node, "/metadata/uid").to_owned(), text(node, "/metadata/name").to_owned());
    state.objects("nodes").map(name).collect()
}

/// Whether another client has created the object.
fn is_of_stranger(object: &Value) -> bool {
    !object["metadata"]["labels"]["stranger"].is_null()
}

/// The state, one line for each object.
pub fn state(state: &State) -> Vec<String> {
    let nodes = node_names(state);
    let mut lines: Vec<String> = state
        .all()
        .filter(|(_, object)| !is_of_stranger(object))
        .flat_map(|(plural, object)| {
            let kind = plural.split('.').next().unwrap_or_default();
            match kind {
                "leases" | "events" | "namespaces" => Vec::new(),
                "nodes" => marked(object),
                // If the watch of PodSets is behind an orphaning deletion, the manager writes the owner again, and the
                // garbage collector deletes the revision.
                "controllerrevisions" if owner(object).is_empty() => Vec::new(),
                "pods" => vec![pod(object)],
                "configmaps" => ledger(object, &nodes, |word| {
                    begins_with_one(word, &PARTICULAR_WORDS) || begins_with_one(word, &DISRUPTION_WORDS)
                }),
                _ => vec![whole(kind, object)],
            }
        })
        .collect();
    lines.sort();
    lines
}

/// Like [`state`], with further lines for parts that a plan reads and that may differ at the end: nodes, pods on their way,
/// disruptions in ledgers, and other clients' objects.
pub fn detailed(state: &State) -> Vec<String> {
    let nodes = node_names(state);
    let details = state.all().flat_map(|(plural, object)| {
        let kind = plural.split('.').next().unwrap_or_default();
        match kind {
            _ if is_of_stranger(object) => vec![format!("{kind} of another client")],
            "nodes" => vec![node(object)],
            "pods" => vec![pod_on_its_way(object)],
            "configmaps" => ledger(object, &nodes, |word| begins_with_one(word, &PARTICULAR_WORDS)),
            _ => Vec::new(),
        }
    });
    let mut lines: Vec<String> = self::state(state).into_iter().chain(details).collect();
    lines.sort();
    lines
}

/// The conditions of a node or pod, such as `Ready=True`.
fn conditions(object: &Value) -> Vec<String> {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut conditions: Vec<String> =
        conditions.map(|one| format!("{}={}", text(one, "/type"), text(one, "/status"))).collect();
    conditions.sort();
    conditions
}

fn node(node: &Value) -> String {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut taints: Vec<[&str; 3]> =
        taints.map(|taint| ["/key", "/value", "/effect"].map(|field| text(taint, field))).collect();
    taints.sort_unstable();
    let is_cordoned = node["spec"]["unschedulable"] == true;
    let name = text(node, "/metadata/name");
    format!("node {name} {:?} taints {taints:?} cordoned {is_cordoned}", conditions(node))
}

/// The pod, with whether it has a node, its conditions, and why a manager deleted it.
fn pod_on_its_way(object: &Value) -> String {
    let has_node = !text(object, "/spec/nodeName").is_empty();
    let deleted_for = text(object, "/metadata/annotations/dj.dysproz.io~1deleted-for");
    format!("{} has node {has_node} {:?} deleted for {deleted_for:?}", pod(object), conditions(object))
}

/// Parts of a status that depend on earlier changes, by kind. The name of a revision depends on the UID.
const HISTORY: [(&str, &str); 4] = [
    ("greetings", "updates"),
    ("daemonjobs", "rollout"),
    ("podsets", "currentRevision"),
    ("podsets", "updateRevision"),
];

/// Like [`state`], without parts that depend on earlier changes: ledgers, pods without an owner, ended pods of DaemonJobs,
/// and all revisions but the last of each PodSet.
pub fn without_history(state: &State) -> Vec<String> {
    let revision = |object: &Value| object["revision"].as_i64();
    let is_last = |one: &Value| {
        let mut others = state.objects("controllerrevisions.apps").filter(|other| owner(other) == owner(one));
        others.all(|other| revision(other) <= revision(one))
    };
    let mut lines: Vec<String> = state
        .all()
        .filter_map(|(plural, object)| {
            let kind = plural.split('.').next().unwrap_or_default();
            match kind {
                "leases" | "events" | "namespaces" | "nodes" | "configmaps" => None,
                "pods" | "controllerrevisions" if owner(object).is_empty() => None,
                "controllerrevisions" => is_last(object).then(|| {
                    let hash = "/metadata/labels/batch.tutorial.kubebuilder.io~1template-hash";
                    format!("revision of {} {}", owner(object), text(object, hash))
                }),
                "pods" => {
                    let is_over = matches!(text(object, "/status/phase"), "Succeeded" | "Failed");
                    (!is_over || !owner(object).starts_with("DaemonJob/")).then(|| pod(object))
                }
                _ => {
                    let mut object = Value::clone(object);
                    for (_, field) in HISTORY.iter().filter(|(of, _)| *of == kind) {
                        if let Some(status) = object["status"].as_object_mut() {
                            status.remove(*field);
                        }
                    }
                    // Without pods, Recreate stays after a change of the subscription type.
                    if kind == "deployments" && object["spec"]["replicas"] == 0 {
                        object["spec"]["strategy"] = Value::Null;
                    }
                    Some(whole(kind, &object))
                }
            }
        })
        .collect();
    lines.sort();
    lines
}

/// A Node that `onSuccess` has changed: its labels and taints.
fn marked(node: &Value) -> Vec<String> {
    let annotations = node["metadata"]["annotations"].as_object();
    let is_marked = annotations.into_iter().flatten().any(|(key, _)| key.starts_with(MARKED));
    let line = || {
        let (name, taints) = (text(node, "/metadata/name"), normal(&node["spec"]["taints"]));
        format!("node {name}: labels {}, taints {taints}", node["metadata"]["labels"])
    };
    is_marked.then(line).into_iter().collect()
}

fn pod(pod: &Value) -> String {
    let is_going = !text(pod, "/metadata/deletionTimestamp").is_empty();
    let node = text(pod, "/metadata/annotations/dj.dysproz.io~1node-name");
    let labels = pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let labels: Map<String, Value> = labels
        .into_iter()
        .filter(|(key, _)| !key.ends_with("uid") && !key.ends_with("/pod-number"))
        .collect();
    format!(
        "pod of {} {node} {}{} finalizers {} {}",
        owner(pod),
        text(pod, "/status/phase"),
        if is_going { " going" } else { "" },
        pod["metadata"]["finalizers"],
        Value::Object(labels)
    )
}

/// Words of a ledger line that differ between runs.
const PARTICULAR_WORDS: [&str; 7] =
    ["rollout=", "run=", "pod=", "boot=", "machine=", "ended=", "rejected-since="];
/// Words that differ because no manager counts a pod that was disrupted before any manager saw it.
const DISRUPTION_WORDS: [&str; 2] = ["disruptions=", "ignored="];

/// A word of a ledger line without the pod number of the attempt.
fn without_pod(word: &str) -> &str {
    if word.starts_with("attempt=") { word.rsplit_once('/').map_or(word, |(rest, _)| rest) } else { word }
}

fn begins_with_one(word: &str, of: &[&str]) -> bool {
    of.iter().any(|begin| word.starts_with(begin))
}

/// The lines of a shard without some words. A node's UID selects its shard. The next write of a shard drops the lines of
/// deleted nodes.
fn ledger(
    shard: &Value,
    nodes: &BTreeMap<String, String>,
    is_left_out: impl Fn(&str) -> bool,
) -> Vec<String> {
    let lines = shard["data"].as_object().into_iter().flatten();
    lines
        .filter_map(|(uid, line)| {
            let node = nodes.get(uid)?;
            let words = line.as_str().unwrap_or_default().split(' ');
            let words: Vec<&str> = words.filter(|word| !is_left_out(word)).map(without_pod).collect();
            Some(format!("ledger of {} {node}: {}", owner(shard), words.join(" ")))
        })
        .collect()
}

/// Whether a field differs between runs.
fn is_particular(field: &str) -> bool {
    field.ends_with("Time")
        || field.ends_with("Since")
        || field.ends_with("Timestamp")
        || field.ends_with("edAt")
        || matches!(
            field,
            "uid"
                | "resourceVersion"
                | "message"
                | "claim"
                | "podNames"
                | "notReady"
                | "selector"
                | "at"
                | "ledgerShards"
                | "workedSeconds"
                | "base"
                | "number"
                | "run"
                | "observedGeneration"
                | "generation"
                // Of the applied Deployment, with its owner's UID.
                | "digest"
        )
}

fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !is_particular(name));
            let kept = kept.map(|(name, value)| (name.clone(), normal(value)));
            // An empty map equals an absent one.
            let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
            Value::Object(kept.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(normal).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}

fn whole(kind: &str, object: &Value) -> String {
    let meta = &object["metadata"];
    let mut of = json!({ "finalizers": meta["finalizers"], "owner": owner(object) });
    of["going"] = json!(!meta["deletionTimestamp"].is_null());
    // Compares only whether the status is current: the number of generations depends on the scenario.
    let observed = &object["status"]["observedGeneration"];
    of["observed"] = json!(observed.is_null() || *observed == meta["generation"]);
    of["spec"] = normal(&object["spec"]);
    of["status"] = normal(&object["status"]);
    format!("{kind} {} {of}", text(object, "/metadata/name"))
}

/// Violations that no end may have.
pub fn wrong(state: &State) -> Vec<String> {
    let uids: HashSet<&str> = state.all().map(|(_, object)| text(object, "/metadata/uid")).collect();
    let mut wrong = Vec::new();
    for (plural, object) in state.all() {
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let uid = owner["uid"].as_str().unwrap_or_default();
            if !uids.contains(uid) {
                let name = text(object, "/metadata/name");
                wrong.push(format!(
                    "{plural} {name} has the owner {} {}, which does not exist",
                    text(owner, "/kind"),
                    text(owner, "/name")
                ));
            }
        }
    }
    wrong.extend(state.objects("daemonjobs.dj.dysproz.io").filter_map(|job| promises::unexplained(job)));
    wrong
}
