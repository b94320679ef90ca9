//! What should be done for one Book: say whether it is Ready.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_kit::conditions::{self, Wanted};
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Action, Plan};
use quintet_kit::resource::Resource;
use serde_json::{Value, json};

use crate::api::{Book, BookSpec, BookStatus, LONGEST};

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
                "Set spec.{} to a text that is not blank and has at most {LONGEST} characters.",
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
    let mut plan = Plan::default();
    if is_typed(&book.spec) {
        plan.status = Some(status);
    } else if book.status.as_ref() != Some(&status) {
        plan.steps.push(vec![set_status(book, &status)]);
    }
    plan
}

/// Whether the schema takes it. Its `\S` knows these blanks and no others.
fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| {
        !text.trim_matches([' ', '\t', '\n', '\r', '\x0c']).is_empty() && text.chars().count() <= LONGEST
    })
}

/// Whether what is stored has the schema's types, if not its values.
fn is_typed(spec: &BookSpec) -> bool {
    !spec.no_object && [&spec.author, &spec.title].iter().all(|value| value.is_string() || value.is_null())
}

/// Sets the status by a JSON patch. Server-side apply, of whatever part, answers 500 ("failed to create typed live
/// object") for an object that was stored with other types than the schema's.
fn set_status(book: &Book, status: &BookStatus) -> Action<BookStatus> {
    let meta = book.meta();
    Action::Patch {
        resource: Resource::of::<Book>(),
        namespace: meta.namespace.as_deref().unwrap_or_default().into(),
        name: format!("{}/status", meta.name.as_deref().unwrap_or_default()).into(),
        operations: json!([
            { "op": "test", "path": "/metadata/uid", "value": meta.uid },
            { "op": "add", "path": "/status", "value": status },
        ]),
    }
}

#[cfg(test)]
mod tests;
