//! The rules of marks: how a manager may change a Node for `onSuccess` of a DaemonJob.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The beginning of the annotations of Nodes that record successes. The UID of the DaemonJob follows.
pub const MARKED: &str = "dj.dysproz.io/marked-";
/// The beginning of the keys that `onSuccess` may use.
const ALLOWED: &str = "example.com/";
/// The parts of a Node that other clients set.
const PARTS: [&str; 6] = [
    "/metadata/labels",
    "/metadata/annotations",
    "/metadata/finalizers",
    "/spec/taints",
    "/spec/unschedulable",
    "/status",
];

/// The successes and their marks: by UIDs of DaemonJob and Node, and by the numbers of rollout and pod.
#[derive(Clone, Debug, Default)]
pub struct Marks(BTreeMap<(String, String, String), Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    successes: usize,
    patches: usize,
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The parts of a Node without the labels, taints and annotations of marks. An absent part equals an empty one.
fn others(node: &Value) -> [Value; PARTS.len()] {
    PARTS.map(|path| {
        let mut part = node.pointer(path).cloned().unwrap_or_default();
        match &mut part {
            Value::Object(pairs) => {
                pairs.retain(|key, _| !key.starts_with(ALLOWED) && !key.starts_with(MARKED));
            }
            Value::Array(items) => items.retain(|item| !text(item, "/key").starts_with(ALLOWED)),
            _ => {}
        }
        if part == json!({}) || part == json!([]) { Value::Null } else { part }
    })
}

/// The annotations that record successes.
fn records(node: &Value) -> BTreeSet<(String, String)> {
    let annotations = node["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations
        .filter_map(|(key, success)| {
            Some((key.strip_prefix(MARKED)?.to_owned(), success.as_str()?.to_owned()))
        })
        .collect()
}

impl Marks {
    /// A pod of a DaemonJob has succeeded on a node.
    pub fn succeeded(&mut self, job: &str, node: &str, success: String) {
        self.0.entry((job.to_owned(), node.to_owned(), success)).or_default().successes += 1;
    }

    /// A manager has patched a Node. It changes only labels and taints with allowed keys, once for each success
    /// and only after it. So it never reverts a change by an administrator. Returns the violations.
    pub fn patched(&mut self, old: &Value, new: &Value) -> Vec<String> {
        let name = text(new, "/metadata/name");
        let mut wrong = Vec::new();
        if others(old) != others(new) {
            wrong.push(format!("a manager changes node {name} more than it may: {old} becomes {new}"));
        }
        let added = &records(new) - &records(old);
        if added.len() != 1 {
            wrong.push(format!("a manager changes node {name} and records {added:?}"));
        }
        for (job, success) in added {
            let key = (job, text(new, "/metadata/uid").to_owned(), success.clone());
            let counts = self.0.entry(key).or_default();
            counts.patches += 1;
            let Counts { successes, patches } = *counts;
            if patches > successes {
                wrong.push(format!("node {name} gets {patches} marks after {successes} successes {success}"));
            }
        }
        wrong
    }
}
