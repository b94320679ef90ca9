use super::*;
use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn book(spec: &Value) -> Book {
    serde_json::from_value(json!({
        "apiVersion": "christianb93.github.com/v1", "kind": "Book",
        "metadata": {"name": "b", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

fn written(plan: &Plan<BookStatus>) -> BookStatus {
    assert!(plan.steps.is_empty());
    plan.status.clone().unwrap()
}

#[test]
fn a_book_with_author_and_title_is_accepted() {
    let plan = plan(&book(&json!({"author": "Dickens", "title": "David Copperfield"})), now());
    let status = plan.status.unwrap();
    assert_eq!(status.observed_generation, Some(1));
    let ready = &status.conditions[0];
    assert_eq!((&*ready.type_, &*ready.status, &*ready.reason), ("Ready", "True", "Accepted"));
    assert_eq!(ready.observed_generation, Some(1));
}

#[rstest]
#[case::nothing(json!(null), "Set spec.author and spec.title to one line of text")]
#[case::the_tutorials(json!({"foo": "bar"}), "Set spec.author and spec.title to one line of text")]
#[case::null(json!({"author": null, "title": "t"}), "Set spec.author to one line of text")]
#[case::blank(json!({"author": " \t", "title": "t"}), "Set spec.author to one line of text")]
#[case::empty(json!({"author": "a", "title": ""}), "Set spec.title to one line of text")]
#[case::number(json!({"author": 5, "title": "t"}), "Set spec.author to one line of text")]
#[case::lists(json!({"author": ["a"], "title": {}}), "Set spec.author and spec.title to one line of text")]
#[case::no_object(json!("hello"), "Set spec.author and spec.title to one line of text")]
#[case::lines(json!({"author": "a\nb", "title": "t"}), "Set spec.author to one line of text")]
#[case::a_line_separator(json!({"author": "a", "title": "t\u{2028}"}), "Set spec.title to one line of text")]
#[case::long(json!({"author": "a", "title": "ä".repeat(1025)}), "Set spec.title to one line of text")]
fn names_missing_fields_of_books_without_schema(#[case] spec: Value, #[case] message: &str) {
    let status = written(&plan(&book(&spec), now()));
    let ready = &status.conditions[0];
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Invalid"));
    assert!(ready.message.starts_with(message), "{}", ready.message);
}

#[rstest]
#[case::longest(json!({"author": "ä".repeat(1024), "title": "t"}))]
#[case::a_blank_outside_of_the_pattern(json!({"author": "\u{a0}", "title": "t"}))]
fn accepts_what_the_schema_accepts(#[case] spec: Value) {
    assert_eq!(written(&plan(&book(&spec), now())).conditions[0].status, "True");
}

#[rstest]
#[case::valid(json!({"author": "a", "title": "t"}))]
#[case::missing(json!(null))]
#[case::of_another_type(json!({"author": 5, "title": "t"}))]
fn writes_the_status_once_per_generation(#[case] spec: Value) {
    let mut book = book(&spec);
    book.status = Some(written(&plan(&book, now())));
    let later = now() + SignedDuration::from_hours(1);
    let again = plan(&book, later);
    assert!(again.steps.is_empty() && again.again.is_none() && again.events.is_empty());
    assert_eq!(again.status, book.status);

    book.metadata.generation = Some(2);
    let next = written(&plan(&book, later));
    assert_eq!(next.observed_generation, Some(2));
    let since = |status: &BookStatus| status.conditions[0].last_transition_time.clone();
    assert_eq!(since(&next), since(&book.status.unwrap()));
}

#[test]
fn a_corrected_book_is_ready() {
    let mut book = book(&json!({"author": 5}));
    book.status = Some(written(&plan(&book, now())));
    book.spec = serde_json::from_value(json!({"author": "a", "title": "t"})).unwrap();
    book.metadata.generation = Some(2);
    let plan = plan(&book, now());
    assert_eq!(plan.status.unwrap().conditions[0].status, "True");
}

#[test]
fn names_unknown_fields() {
    let spec = json!({"author": "a", "title": "t", "publ\nsher": 1, "year": {}});
    let status = written(&plan(&book(&spec), now()));
    let ready = &status.conditions[0];
    assert_eq!((&*ready.status, &*ready.reason), ("True", "Accepted"));
    let message = "The book has an author and a title. Unknown fields are stored and ignored: spec.publ\\nsher, spec.year.";
    assert_eq!(ready.message, message);
}

#[test]
fn ignores_a_terminating_book() {
    let mut book = book(&json!({"author": 5}));
    book.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(plan(&book, now()), Plan::default());
}
