//! The plan for a Book: set the condition Ready.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_runtime::model::conditions::{self, READY, Wanted};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::Plan;
use serde_json::Value;

use crate::api::{Book, BookStatus, LONGEST};

/// Makes the plan.
pub fn plan(book: &Book, now: Timestamp) -> Plan<BookStatus> {
    if book.terminating() {
        return Plan::default();
    }
    let fields = [("author", &book.spec.author), ("title", &book.spec.title)];
    let lacks: Vec<_> = fields.iter().filter(|(_, value)| !is_text(value)).map(|(field, _)| *field).collect();
    let (status, reason, message) = if lacks.is_empty() {
        (true, "Accepted", "The book has an author and a title.".to_owned())
    } else {
        let rule = format!("one line of text that is not blank and has at most {LONGEST} characters");
        (false, "Invalid", format!("Set spec.{} to {rule}.", lacks.join(" and spec.")))
    };
    let message = message + &ignored(&book.spec.unknown);
    let ready = Wanted { type_: READY, status: Some(status), reason, message };
    let stalled = (!status).then(|| ready.stalled());
    let before = book.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = book.meta().generation;
    let status = BookStatus {
        observed_generation: generation,
        conditions: conditions::next(before, [ready].into_iter().chain(stalled), generation, now),
    };
    Plan { status: Some(status), ..Plan::default() }
}

/// Names unknown fields, which may be misspelt.
fn ignored(unknown: &[String]) -> String {
    let names = (!unknown.is_empty()).then(|| unknown.join(", spec."));
    names.map_or_else(String::new, |names| format!(" Unknown fields are stored and ignored: spec.{names}."))
}

/// Whether the schema accepts the value.
fn is_text(value: &Value) -> bool {
    let is_break = |character: char| character.is_control() || ['\u{2028}', '\u{2029}'].contains(&character);
    let is_line = |text: &str| !text.trim_matches(' ').is_empty() && !text.contains(is_break);
    value.as_str().is_some_and(|text| is_line(text) && text.chars().count() <= LONGEST)
}

#[cfg(test)]
mod tests;
