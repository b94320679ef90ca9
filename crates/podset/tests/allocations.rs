//! Counts the allocations of a plan.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests may panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use std::sync::Arc;

use jiff::Timestamp;
use quintet_podset::api::PodSet;
use quintet_podset::observe::World;
use quintet_podset::plan::plan;
use quintet_runtime::model::plan::Action;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::counter::allocations;

const REPLICAS: usize = 1_000;

/// The limits of allocations for each pod: for a plan that creates all pods, and for one without work.
const TO_MAKE: u64 = 140;
const TO_LOOK: u64 = 2;

fn podset(status: &Value) -> PodSet {
    let object = json!({ "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "generation": 1 },
        "spec": { "replicas": REPLICAS }, "status": status });
    PodSet::deserialize(object).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn a_plan_allocates_little_for_each_pod() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let (empty, mut world) = (podset(&json!({})), World::default());
    let (made, first) = allocations(|| plan(&empty, &world, now()));
    for (number, action) in first.steps.into_iter().flatten().enumerate() {
        let body = match action {
            Action::Create { body, .. } => body,
            Action::Apply { body, .. } => {
                world.revisions.push(Arc::new(serde_json::from_value(body).unwrap()));
                continue;
            }
            other => panic!("{other:?}"),
        };
        let mut pod = body.value();
        pod["metadata"]["uid"] = json!(format!("uid-{number}"));
        pod["metadata"]["resourceVersion"] = json!(number.to_string());
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["spec"]["nodeName"] = json!("node-1");
        pod["status"] = json!({ "phase": "Running", "conditions":
            [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z" }] });
        world.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
    }
    assert_eq!(world.pods.len(), REPLICAS);
    let full = podset(&serde_json::to_value(plan(&empty, &world, now()).status).unwrap());
    let (looked, second) = allocations(|| plan(&full, &world, now()));
    assert_eq!((second.steps.len(), second.status.as_ref()), (0, full.status.as_ref()), "nothing to do");
    let pods = u64::try_from(REPLICAS).unwrap();
    println!("{made} allocations to create {REPLICAS} pods, {looked} without work");
    assert!(made <= TO_MAKE * pods, "{made} to create {REPLICAS} pods");
    assert!(looked <= TO_LOOK * pods, "{looked} for {REPLICAS} pods without work");
}
