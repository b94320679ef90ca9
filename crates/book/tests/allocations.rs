//! What a pass costs, exactly: allocations of the plan, as the allocator counts them.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use jiff::{SignedDuration, Timestamp};
use quintet_book::api::Book;
use quintet_book::plan::plan;
use serde_json::{Value, json};

use crate::counter::allocations;

/// The most allocations of a plan for a new Book and of one for a Book of which everything is said already.
const TO_SAY: u64 = 5;
const TO_LOOK: u64 = 5;

fn book(status: &Value) -> Book {
    let object = json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book",
        "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "generation": 1 },
        "spec": { "author": "Dickens", "title": "David Copperfield" }, "status": status });
    serde_json::from_value(object).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn a_plan_allocates_little() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let new = book(&Value::Null);
    let (said, first) = allocations(|| plan(&new, now()));
    let told = book(&json!(first.status));
    let later = now() + SignedDuration::from_hours(1);
    let (looked, second) = allocations(|| plan(&told, later));
    assert!(second.steps.is_empty() && second.events.is_empty() && second.again.is_none(), "{second:?}");
    assert_eq!(second.status, told.status, "nothing is to be done");
    println!("{said} allocations to say that a Book is ready, {looked} to look at it");
    assert!(said <= TO_SAY, "{said} to say that a Book is ready");
    assert!(looked <= TO_LOOK, "{looked} to look at it");
}
