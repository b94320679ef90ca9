//! The allocations of a plan, as the allocator counts them.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use std::sync::Arc;

use jiff::Timestamp;
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::observe::World;
use quintet_daemonjob::plan::plan;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::PODS;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::counter::allocations;

const NODES: usize = 1_000;

/// The limits for each node, of a plan that creates all pods and of a plan that finds all pods running.
const TO_MAKE: u64 = 252;
const TO_LOOK: u64 = 2;

fn daemonjob(status: &Value) -> DaemonJob {
    let object = json!({ "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "busybox" }] } } },
        "status": status });
    DaemonJob::deserialize(object).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn a_plan_allocates_little_for_each_node() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let nodes = (0..NODES).map(|number| {
        let node = json!({ "metadata": { "name": format!("node-{number:05}"), "uid": format!("node-{number}"),
                "resourceVersion": "1", "labels": { "kubernetes.io/hostname": format!("node-{number:05}") } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }],
                "nodeInfo": { "bootID": "b" } } });
        Arc::new(serde_json::from_value(node).unwrap())
    });
    let mut world = World { nodes: nodes.collect(), ..World::default() };
    // The status must have the start of the run before any creation.
    let begun = plan(&daemonjob(&json!({})), &world, now()).status;
    let job = daemonjob(&serde_json::to_value(begun).unwrap());
    let (made, first) = allocations(|| plan(&job, &world, now()));
    for (number, action) in first.steps.into_iter().flatten().enumerate() {
        let Action::Create { resource: PODS, body, .. } = action else { continue };
        let mut pod = body.value();
        pod["metadata"]["uid"] = json!(format!("uid-{number}"));
        pod["metadata"]["resourceVersion"] = json!(number.to_string());
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:09:59Z");
        pod["spec"]["nodeName"] = pod["metadata"]["annotations"]["dj.dysproz.io/node-name"].clone();
        pod["status"] = json!({ "phase": "Running" });
        world.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
    }
    world.pods.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
    assert_eq!(world.pods.len(), NODES);
    let (looked, second) = allocations(|| plan(&job, &world, now()));
    let creations = second
        .steps
        .iter()
        .flatten()
        .filter(|action| matches!(action, Action::Create { resource: PODS, .. }));
    assert_eq!(creations.count(), 0, "every node has its pod");
    let nodes = u64::try_from(NODES).unwrap();
    println!("{made} allocations to create {NODES} pods, {looked} to find them running");
    assert!(made <= TO_MAKE * nodes, "{made} allocations to create {NODES} pods");
    assert!(looked <= TO_LOOK * nodes, "{looked} allocations to find {NODES} pods running");
}
