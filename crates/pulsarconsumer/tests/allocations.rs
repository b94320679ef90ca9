//! Counts the allocations of a plan.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests may panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_pulsarconsumer::Image;
use quintet_pulsarconsumer::api::PulsarConsumer;
use quintet_pulsarconsumer::observe::World;
use quintet_pulsarconsumer::plan::plan;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::plan::Action;
use serde_json::{Value, json};

use crate::counter::allocations;

/// The limits of allocations for a plan that creates the Deployment, and for one without work.
const TO_MAKE: u64 = 750;
const TO_LOOK: u64 = 830;

/// The tutorial's sample.
fn consumer(status: &Value) -> PulsarConsumer {
    let object = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "generation": 1 },
        "spec": { "serverAddress": "pulsar://localhost:6650", "topic": "my-topic",
            "subscriptionName": "first-subscription", "replicas": 1 },
        "status": status });
    serde_json::from_value(object).unwrap()
}

/// The applied Deployment with ready pods.
fn ready(mut body: Value) -> Deployment {
    body["metadata"]["uid"] = json!("uid-0");
    body["metadata"]["resourceVersion"] = json!("7");
    body["metadata"]["generation"] = json!(1);
    body["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    body["spec"]["progressDeadlineSeconds"] = json!(600);
    body["spec"]["revisionHistoryLimit"] = json!(10);
    let pod = &mut body["spec"]["template"]["spec"];
    pod["dnsPolicy"] = json!("ClusterFirst");
    pod["restartPolicy"] = json!("Always");
    pod["schedulerName"] = json!("default-scheduler");
    pod["terminationGracePeriodSeconds"] = json!(30);
    let replicas = body["spec"]["replicas"].clone();
    body["status"] = json!({ "observedGeneration": 1, "replicas": replicas, "readyReplicas": replicas });
    serde_json::from_value(body).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn a_plan_allocates_little() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let name = "quintet/pulsar-consumer:1".to_owned();
    let image = Arc::new(Image { name, health_port: Some(8080), any_user: false });
    let mut world = World { image, ..World::default() };
    let new = consumer(&Value::Null);
    let (made, first) = allocations(|| plan(&new, &world, now()));
    let mut actions = first.steps.into_iter().flatten();
    let (Some(Action::Apply { body, .. }), Some(Action::Effect(_)), None) =
        (actions.next(), actions.next(), actions.next())
    else {
        panic!("one apply creates the Deployment")
    };
    world.deployment = Some(Arc::new(ready(body)));
    let applied = json!({ "applied": [{ "kind": "Deployment", "uid": "uid-0", "generation": 1 }] });
    let told = consumer(&json!(plan(&consumer(&applied), &world, now()).status));
    let later = now() + SignedDuration::from_hours(1);
    let (looked, second) = allocations(|| plan(&told, &world, later));
    assert!(second.steps.is_empty() && second.events.is_empty() && second.again.is_none(), "{second:?}");
    assert_eq!(second.status, told.status, "nothing to do");
    println!("{made} allocations to create a Deployment, {looked} without work");
    assert!(made <= TO_MAKE, "{made} to create a Deployment");
    assert!(looked <= TO_LOOK, "{looked} without work");
}
