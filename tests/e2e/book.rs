//! Book: validated by its schema alone.

use quintet_e2e::{Arena, condition};
use serde_json::json;

#[test]
fn the_posts_books_are_accepted_and_refused() {
    let arena = Arena::new("book");
    let _manager = arena.manager("book");
    arena.apply_sample("book/david-copperfield.yaml").unwrap();
    let book = arena
        .wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert_eq!(book["status"]["observedGeneration"], 1);
    let row = arena.kubectl(&["get", "book", "david-copperfield", "--no-headers"]).unwrap();
    assert!(row.contains("David Copperfield") && row.contains("Dickens") && row.contains("True"), "{row}");

    let text = arena.apply_sample("book/moby-dick.yaml").unwrap_err();
    assert!(text.contains("spec.author: Required value"), "{text}");
    assert!(text.contains("spec.title: Required value"), "{text}");
    assert_eq!(text.matches("spec.").count(), 2, "exactly two reasons: {text}");
    assert!(arena.get("book", "moby-dick").is_none());

    let blank = json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book",
        "metadata": { "name": "blank" }, "spec": { "author": "  ", "title": "x" } });
    let text = arena.apply(&blank).unwrap_err();
    assert!(text.contains("spec.author"), "{text}");

    let found =
        arena.kubectl(&["get", "books", "--field-selector", "spec.author=Dickens", "-o", "name"]).unwrap();
    assert!(found.contains("david-copperfield"), "{found}");
    let found =
        arena.kubectl(&["get", "books", "--field-selector", "spec.author=Melville", "-o", "name"]).unwrap();
    assert!(found.is_empty(), "{found}");

    // One status write for each generation.
    assert_eq!(arena.writes(), ["patch books/status 200"]);
    arena
        .kubectl(&[
            "patch",
            "book",
            "david-copperfield",
            "--type=merge",
            "-p",
            r#"{"spec":{"title":"D. C."}}"#,
        ])
        .unwrap();
    arena.wait_for("book", "david-copperfield", "the new generation is observed", |book| {
        book["status"]["observedGeneration"] == 2
    });
    assert_eq!(arena.writes().len(), 2);
}
