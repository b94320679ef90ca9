//! Counts the allocations of a plan.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests may panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use jiff::{SignedDuration, Timestamp};
use quintet_greeting::FINALIZER;
use quintet_greeting::api::Greeting;
use quintet_greeting::observe::{Recalled, World};
use quintet_greeting::plan::{Effect, plan};
use quintet_greeting::printer::Room;
use quintet_runtime::model::plan::Action;
use serde_json::{Value, json};

use crate::counter::allocations;

/// The limits of allocations for a plan that adds the finalizer, one that claims the first lines, and one
/// between two ticks.
const TO_HOLD: u64 = 60;
const TO_CLAIM: u64 = 32;
const TO_LOOK: u64 = 30;

fn greeting(finalizers: &[&str], status: &Value) -> Greeting {
    let object = json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "resourceVersion": "1",
            "generation": 1, "finalizers": finalizers },
        "spec": { "message": "Hello" }, "status": status });
    serde_json::from_value(object).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn a_plan_allocates_little() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut world = World {
        token: "me-1".to_owned(),
        leading_since: now(),
        recalled: Recalled::default(),
        room: Ok(Room::default()),
    };
    let new = greeting(&[], &Value::Null);
    let (held, first) = allocations(|| plan(&new, &world, now()));
    let mut actions = first.steps.iter().flatten();
    assert!(matches!((actions.next(), actions.next()), (Some(Action::JsonPatch { .. }), None)), "{first:?}");

    let new = greeting(&[FINALIZER], &Value::Null);
    let (claimed, second) = allocations(|| plan(&new, &world, now()));
    let mut status = Value::Null;
    for action in second.steps.into_iter().flatten() {
        match action {
            Action::Claim { status: claim, .. } => status = json!(claim),
            Action::Effect(Effect::Say(say)) => world.recalled.ticked = say.tick,
            Action::Effect(Effect::Owe(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    let told = greeting(&[FINALIZER], &status);
    let later = now() + SignedDuration::from_secs(10);
    let (looked, third) = allocations(|| plan(&told, &world, later));
    assert!(third.steps.is_empty() && third.events.is_empty(), "{third:?}");
    assert_eq!(third.status, told.status, "nothing to do");
    println!("{held} allocations to add the finalizer, {claimed} to claim the lines, {looked} without work");
    assert!(held <= TO_HOLD, "{held} to add the finalizer");
    assert!(claimed <= TO_CLAIM, "{claimed} to claim the lines");
    assert!(looked <= TO_LOOK, "{looked} to look");
}
