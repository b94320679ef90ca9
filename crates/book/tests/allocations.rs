//! The number of allocations of a plan.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

#[path = "../../runtime/tests/counter/mod.rs"]
mod counter;

use jiff::{SignedDuration, Timestamp};
use quintet_book::api::Book;
use quintet_book::plan::plan;
use serde_json::{Value, json};

use crate::counter::allocations;

/// The most allocations of a plan for a new Book, and for a Book with a current status.
const NEW: u64 = 5;
const UNCHANGED: u64 = 5;

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
    let (for_new, first) = allocations(|| plan(&new, now()));
    let current = book(&json!(first.status));
    let later = now() + SignedDuration::from_hours(1);
    let (for_unchanged, second) = allocations(|| plan(&current, later));
    assert!(second.steps.is_empty() && second.events.is_empty() && second.again.is_none(), "{second:?}");
    assert_eq!(second.status, current.status, "the plan changes nothing");
    println!("{for_new} allocations for a new Book, {for_unchanged} for an unchanged one");
    assert!(for_new <= NEW, "{for_new} for a new Book");
    assert!(for_unchanged <= UNCHANGED, "{for_unchanged} for an unchanged Book");
}
