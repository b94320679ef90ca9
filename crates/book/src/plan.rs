//! What should be done for one Book: say whether it is Ready.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_kit::conditions::{self, Wanted};
use quintet_kit::object::Object as _;
use quintet_kit::plan::Plan;
use serde_json::Value;

use crate::api::{Book, BookStatus};

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
            message: format!("Set spec.{} to a text that is not blank.", lacks.join(" and spec.")),
        }
    };
    let before = book.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = book.meta().generation;
    Plan {
        status: Some(BookStatus {
            observed_generation: generation,
            conditions: conditions::next(before, [wanted], generation, now),
        }),
        ..Plan::default()
    }
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn book(spec: &Value) -> Book {
        serde_json::from_value(json!({
            "apiVersion": "christianb93.github.com/v1", "kind": "Book",
            "metadata": {"name": "b", "generation": 1}, "spec": spec
        }))
        .unwrap()
    }

    #[rstest]
    #[case(json!({"author": "Dickens", "title": "David Copperfield"}), "Accepted", "The book has")]
    #[case(json!({"foo": "bar"}), "Invalid", "Set spec.author and spec.title to")]
    #[case(json!({"author": "Dickens"}), "Invalid", "Set spec.title to")]
    #[case(json!({"author": " ", "title": "x"}), "Invalid", "Set spec.author to")]
    #[case(json!({"author": 5, "title": "x"}), "Invalid", "Set spec.author to")]
    fn ready(#[case] spec: Value, #[case] reason: &str, #[case] message: &str) {
        let plan = plan(&book(&spec), Timestamp::UNIX_EPOCH);
        let condition = &plan.status.unwrap().conditions[0];
        assert_eq!(condition.reason, reason);
        assert!(condition.message.starts_with(message), "{}", condition.message);
    }

    #[test]
    fn one_status_for_each_generation() {
        let mut book = book(&json!({"author": "a", "title": "b"}));
        book.status = plan(&book, Timestamp::UNIX_EPOCH).status;
        assert_eq!(plan(&book, Timestamp::now()).status, book.status, "nothing to write later");
        book.metadata.generation = Some(2);
        assert_ne!(plan(&book, Timestamp::now()).status, book.status);
    }
}
