//! The plan for a Book: set the condition Ready.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_runtime::model::conditions::{self, Wanted};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::Plan;
use serde_json::Value;

use crate::api::{Book, BookStatus, LONGEST};

/// Makes the plan.
pub fn plan(book: &Book, now: Timestamp) -> Plan<BookStatus> {
    if book.terminating() {
        return Plan::default();
    }
    let lacks: Vec<&str> = [("author", &book.spec.author), ("title", &book.spec.title)]
        .into_iter()
        .filter(|(_, value)| !is_text(value))
        .map(|(field, _)| field)
        .collect();
    let wanted = if lacks.is_empty() {
        Wanted {
            type_: "Ready",
            status: Some(true),
            reason: "Accepted",
            message: "The book has an author and a title.".to_owned(),
        }
    } else {
        Wanted {
            type_: "Ready",
            status: Some(false),
            reason: "Invalid",
            message: format!(
                "Set spec.{} to a string that is not blank and has at most {LONGEST} characters.",
                lacks.join(" and spec.")
            ),
        }
    };
    let before = book.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = book.meta().generation;
    let status = BookStatus {
        observed_generation: generation,
        conditions: conditions::next(before, [wanted], generation, now),
    };
    Plan { status: Some(status), ..Plan::default() }
}

/// Whether the schema accepts the value. Its `\S` excludes only these blanks.
fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| {
        !text.trim_matches([' ', '\t', '\n', '\r', '\x0c']).is_empty() && text.chars().count() <= LONGEST
    })
}

#[cfg(test)]
mod tests;
