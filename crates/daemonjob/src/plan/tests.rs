//! The rules of the plan, by behaviour. This file has the objects of the tests and the readers of a plan.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::core_types::{Exit, Phase, Pod, Taint};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use quintet_runtime::model::resource::NODES;
use rstest::rstest;
use std::sync::Arc;

use crate::api::NodeReason;
use crate::clocks::Clocks;
use crate::labels::{number_of, pinned_to};
use crate::ledger::{GONE, Gone, Shard, shard_name, shard_of};
use crate::outcome::{DELETED_FOR_ANNOTATION, DeletedFor};
use jiff::SignedDuration;
use scene::{Event, NOT_READY, Scene, annotate, cautious, tolerate};
use std::collections::BTreeMap;

mod brake;
mod clean_up;
mod conditions;
mod creation;
mod health;
mod holds;
mod ledger;
mod node_marks;
mod nodes;
mod outcomes;
mod places;
mod scene;
mod schedule;
mod waves;

const START: &str = "2026-01-01T00:00:00Z";
const FOUR: [&str; 4] = ["a", "b", "c", "d"];

fn now() -> Timestamp {
    START.parse().unwrap()
}

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// The plan without the writes that the API server rejected recently.
fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = super::plan(job, world, now);
    plan.withhold(&world.refusals, now);
    plan
}

fn job(spec: &Value) -> DaemonJob {
    serde_json::from_value(json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": {"name": "d", "namespace": "ns", "uid": "job", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

/// The fields of one object and those of another, which wins.
fn merged(mut fields: Value, more: &Value) -> Value {
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

fn simple() -> DaemonJob {
    job(&json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}))
}

/// A job with this spec and the simplest template.
fn with(spec: &Value) -> DaemonJob {
    job(&merged(template(&json!({})), spec))
}

/// The field of a spec that has the simplest template and these fields of a pod's spec.
fn template(pod: &Value) -> Value {
    let simplest = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    json!({"template": {"spec": merged(simplest, pod)}})
}

fn node(name: &str) -> Arc<Node> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "v1"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}
        }))
        .unwrap(),
    )
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: "".into(), effect: effect.into() }
}

fn pod(job: &DaemonJob, node: &str, run: u64, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{node}-{run}"), "namespace": "ns", "uid": format!("{node}-{run}"), "resourceVersion": "1",
            "creationTimestamp": START,
            "labels": {
                NODE_UID_LABEL: format!("uid-{node}"), POD_NUMBER_LABEL: run.to_string(),
                HASH_LABEL: job.spec.template.hash()},
            "annotations": {NODE_NAME_ANNOTATION: node}},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "containerStatuses": containers(phase)}
    }))
    .unwrap()
}

fn containers(phase: &str) -> Value {
    match phase {
        "Pending" => json!([]),
        "Running" => json!([{"name": "c", "state": {"running": {"startedAt": START}}}]),
        _ => json!([{"name": "c", "state": {"terminated": {
            "exitCode": i32::from(phase == "Failed"), "startedAt": START, "finishedAt": START}}}]),
    }
}

/// The pod gets a deletion timestamp, without a grace period.
fn terminate(pod: &mut Pod, at: Timestamp) {
    pod.meta.deleted = Some(at);
    pod.meta.finalizers = Box::new([FINALIZER.into()]);
}

/// The pod gets a reason for its deletion in its annotation.
fn mark(pod: &mut Pod, reason: DeletedFor) {
    let old = pod.meta.annotations.get(NODE_NAME_ANNOTATION).unwrap_or_default().to_owned();
    pod.meta.annotations = [(NODE_NAME_ANNOTATION, &*old), (DELETED_FOR_ANNOTATION, reason.word())].into();
}

/// The pod has the labels of a pod for an earlier Node of the same name.
fn of_an_earlier_node(pod: &mut Pod) {
    let hash = pod.label(HASH_LABEL).unwrap().to_owned();
    pod.meta.labels = [(NODE_UID_LABEL, "gone"), (HASH_LABEL, &hash), (POD_NUMBER_LABEL, "1")].into();
}

/// The end of a container.
fn exit(code: i32, reason: &str, message: &str) -> Exit {
    Exit { container: "c".into(), code, reason: reason.into(), message: message.into() }
}

/// A rejected creation.
fn refusal(reason: RefusalReason, message: &str, until: Timestamp) -> Refusal {
    Refusal { verb: Verb::Create, reason, message: message.into(), times: 1, until }
}

/// The world after the ledger steps of the plan. Other steps have no effect.
fn recorded(job: &DaemonJob, mut world: World, plan: &Plan<DaemonJobStatus>) -> World {
    for (name, lines, is_new) in shards(plan) {
        let old = world.ledger.iter().position(|shard| *shard.meta.name == *name);
        assert_eq!(old.is_none(), is_new, "the manager creates {name} once");
        let mut shard = old.map_or_else(
            || serde_json::from_value(json!({"metadata": {"name": name}})).unwrap(),
            |old| Shard::clone(&world.ledger.remove(old)),
        );
        for (uid, line) in &lines {
            match line.as_str() {
                line if uid == GONE => shard.gone = line.map_or_else(|| Ok(Gone::default()), str::parse),
                Some(line) => _ = shard.entries.insert(uid.as_str().into(), line.parse()),
                None => _ = shard.entries.remove(&**uid),
            }
        }
        assert!(shard.number(&job.metadata.name.clone().unwrap()).is_some());
        world.ledger.push(Arc::new(shard));
    }
    world
}

fn world(nodes: &[&str], pods: impl IntoIterator<Item = Pod>) -> World {
    World {
        nodes: nodes.iter().map(|name| node(name)).collect(),
        pods: pods.into_iter().map(Arc::new).collect(),
        ..World::default()
    }
}

/// Applies `pick` to each action of a plan.
fn picked<'p, T>(
    plan: &'p Plan<DaemonJobStatus>,
    pick: impl Fn(&'p Action<DaemonJobStatus>) -> Option<T>,
) -> Vec<T> {
    plan.actions().filter_map(pick).collect()
}

/// The nodes of the pods that a plan creates.
fn created(plan: &Plan<DaemonJobStatus>) -> Vec<String> {
    picked(plan, |action| match action {
        Action::Create { resource: PODS, body, .. } => {
            Some(body.value()["metadata"]["annotations"][NODE_NAME_ANNOTATION].as_str().unwrap().to_owned())
        }
        _ => None,
    })
}

/// The reason for the deletion of a pod that an action writes or removes.
fn mark_of(action: &Action<DaemonJobStatus>) -> Option<(&str, Option<&str>)> {
    let Action::MergePatch { resource: PODS, name, body, .. } = action else { return None };
    let mark = body.pointer("/metadata/annotations")?.get(DELETED_FOR_ANNOTATION)?;
    Some((&**name, mark.as_str()))
}

/// The reasons for the deletion of pods, by name.
fn marks(plan: &Plan<DaemonJobStatus>) -> Vec<(&str, Option<&str>)> {
    picked(plan, mark_of)
}

/// The pods that a plan deletes or marks for deletion.
fn deleted(plan: &Plan<DaemonJobStatus>) -> Vec<&str> {
    picked(plan, |action| match action {
        Action::Delete { name, .. } => Some(&**name),
        _ => mark_of(action).filter(|(_, mark)| mark.is_some()).map(|(name, _)| name),
    })
}

/// The pods whose finalizers a plan removes.
fn released(plan: &Plan<DaemonJobStatus>) -> Vec<&str> {
    picked(plan, |action| match action {
        Action::JsonPatch { resource: PODS, name, .. } => Some(&**name),
        _ => None,
    })
}

/// The nodes that a plan patches, and the operations.
fn patched(plan: &Plan<DaemonJobStatus>) -> Vec<(&str, &Value)> {
    picked(plan, |action| match action {
        Action::JsonPatch { resource: NODES, name, operations, .. } => Some((&**name, operations)),
        _ => None,
    })
}

/// The shards that a plan writes: their names, their changed lines, and whether they are new.
fn shards(plan: &Plan<DaemonJobStatus>) -> Vec<(String, serde_json::Map<String, Value>, bool)> {
    let shard = |name: &str, body: &Value, is_new| {
        Some((name.to_owned(), body["data"].as_object().unwrap().clone(), is_new))
    };
    picked(plan, |action| match action {
        Action::Create { resource: CONFIG_MAPS, name, body, .. } => shard(name, &body.value(), true),
        Action::MergePatch { resource: CONFIG_MAPS, name, body, .. } if body["data"].is_object() => {
            shard(name, body, false)
        }
        _ => None,
    })
}

/// The lines that a plan writes to the ledger, by node UID.
fn written(plan: &Plan<DaemonJobStatus>) -> BTreeMap<String, String> {
    let lines = shards(plan).into_iter().flat_map(|(_, lines, _)| lines);
    lines.map(|(uid, line)| (uid, line.as_str().unwrap_or("(dropped)").to_owned())).collect()
}

/// Status and reason of a condition.
fn condition<'p>(plan: &'p Plan<DaemonJobStatus>, type_: &str) -> (&'p str, &'p str) {
    let conditions = &plan.status.as_ref().unwrap().conditions;
    let condition = conditions.iter().find(|one| one.type_ == type_).unwrap();
    (&condition.status, &condition.reason)
}

/// The reason of a node in a list of the status.
fn reason<'p>(plan: &'p Plan<DaemonJobStatus>, node: &str) -> Option<&'p str> {
    state(plan.status.as_ref().unwrap(), node)
}

fn state<'s>(status: &'s DaemonJobStatus, node: &str) -> Option<&'s str> {
    let lists = [&status.failed_nodes, &status.pending_nodes, &status.skipped_nodes];
    lists.into_iter().flatten().find(|listed| listed.node == node).map(|listed| listed.reason.as_str())
}
