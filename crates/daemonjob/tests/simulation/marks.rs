//! The invariants of marks: the changes of `onSuccess` to Nodes.

use std::collections::{BTreeMap, BTreeSet};

use quintet_daemonjob::api::DaemonJobStatus;
use quintet_daemonjob::eligibility::Placement;
use quintet_daemonjob::labels::{MARKED_ANNOTATION, NODE_NAME_ANNOTATION, NODE_UID_LABEL, number_of};
use quintet_daemonjob::marks;
use quintet_runtime::model::conditions::is_true;
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::NODES;
use serde_json::{Value, json};

use crate::machines::rollout_of;
use crate::manager::Pass;
use crate::rollout::{View, selected};
use crate::server::Server;
use crate::truth::{Judgement, annotation, label};

/// The taint with which nodes register.
pub const TAINT: &str = "example.com/raw";
/// The label of prepared nodes.
pub const LABEL: &str = "example.com/ready";

/// A spec that prepares nodes.
pub fn on_success() -> Value {
    json!({"labels": {LABEL: "yes"}, "removeTaints": [{"key": TAINT, "effect": "NoSchedule"}]})
}

/// By UID of a Node and recorded success: the number of accepted patches.
#[derive(Default)]
pub struct Marked(BTreeMap<(String, String), usize>);

impl Marked {
    /// The server has accepted a patch of a Node. A patch makes the changes of the spec and records them, once
    /// for each success and only after it. So the manager never reverts a change by an administrator.
    pub fn accepted(&mut self, server: &Server, before: &Value, after: &Value) -> Judgement {
        let text = |path: &str| before.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (uid, name) = (text("/metadata/uid"), text("/metadata/name"));
        let annotations = after["metadata"]["annotations"].as_object();
        let mut records =
            annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(MARKED_ANNOTATION));
        let Some((key, record)) = records.next() else {
            return Err(format!("marks: {name} is patched, and has no record"));
        };
        let mut expected = before.clone();
        expected["metadata"]["annotations"][key] = record.clone();
        expected["metadata"]["labels"][LABEL] = json!("yes");
        let taints = expected["spec"]["taints"].as_array_mut().unwrap();
        taints.retain(|taint| taint["key"] != TAINT || taint["effect"] != "NoSchedule");
        expected["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
        if expected != *after {
            return Err(format!("marks: {before} becomes {after}"));
        }
        let record = record.as_str().unwrap();
        let is_success = |pod: &&Pod| {
            let is_there = label(pod, NODE_UID_LABEL) == uid || annotation(pod, NODE_NAME_ANNOTATION) == name;
            let success = format!("{}/{}", rollout_of(pod), number_of(pod));
            is_there && pod.phase == Phase::Succeeded && success == record
        };
        let pods = server.pods.log.iter().filter_map(|change| change.object.as_deref());
        let successes: BTreeSet<&str> = pods.filter(is_success).map(|pod| &*pod.meta.uid).collect();
        let count = self.0.entry((uid.to_owned(), record.to_owned())).or_default();
        *count += 1;
        if *count > successes.len() {
            return Err(format!(
                "marks: patch {count} of {name} after {} successes {record}",
                successes.len()
            ));
        }
        Ok(())
    }
}

impl View {
    /// A node is marked if its last attempt has succeeded and settled.
    pub fn marks_are_due(&self, pass: &Pass) -> Judgement {
        let status = pass.plan.status.clone().or_else(|| pass.job.status.clone()).unwrap_or_default();
        for action in pass.plan.actions() {
            let Action::JsonPatch { resource, name, .. } = action else { continue };
            let node = pass.world.nodes.iter().find(|node| *resource == NODES && *node.meta.name == **name);
            let Some(node) = node.filter(|node| !self.machine(node).is_odd) else { continue };
            if !self.is_done(node, &pass.job, &status) || self.is_settling(&node.meta.uid, &pass.job) {
                return Err(format!("marks: {name} is marked, but is not done or has not settled"));
            }
        }
        Ok(())
    }

    /// Each done node of a Complete DaemonJob has the mark of its last success.
    pub fn is_marked(&self, pass: &Pass, status: &DaemonJobStatus) -> Judgement {
        let job = &pass.job;
        if job.spec.on_success.is_none() || !is_true(&status.conditions, "Complete") {
            return Ok(());
        }
        let record = marks::annotation(job.metadata.uid.as_deref().unwrap());
        let is_listed = |name: &str| {
            let mut listed = status.failed_nodes.iter().chain(&status.skipped_nodes);
            listed.any(|listed| listed.node == name)
        };
        for (node, _) in selected(pass, &Placement::of(job.spec.template.spec())) {
            let machine = self.machine(node);
            let is_sure = node.ready && !machine.is_odd && !is_listed(&node.meta.name);
            let Some(last) = machine.last.filter(|_| is_sure && self.is_done(node, job, status)) else {
                continue;
            };
            let expected = format!("{}/{}", last.rollout, last.number);
            let recorded = node.meta.annotations.get(&record);
            if recorded != Some(&*expected) {
                let name = &node.meta.name;
                return Err(format!("marks: Complete, but {name} has {recorded:?} instead of {expected}"));
            }
        }
        Ok(())
    }
}
