//! Book: the schema validates it, and the manager reports it as Ready.

use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

/// A valid Book.
pub(crate) fn book(name: &str) -> Value {
    json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book", "metadata": { "name": name },
        "spec": { "title": name, "author": "Anonymous" } })
}

#[test]
fn accepts_and_rejects_the_tutorials_books() {
    let env = TestEnv::new("book");
    let _manager = env.manager("book");
    env.apply_sample("book/david-copperfield.yaml").unwrap();
    let book =
        env.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert_eq!(book["status"]["observedGeneration"], 1);
    let row = env.kubectl(&["get", "book", "david-copperfield", "--no-headers"]).unwrap();
    assert!(row.contains("David Copperfield") && row.contains("Dickens") && row.contains("True"), "{row}");

    let text = env.apply_sample("book/moby-dick.yaml").unwrap_err();
    assert!(text.contains("spec.author: Required value"), "{text}");
    assert!(text.contains("spec.title: Required value"), "{text}");
    assert_eq!(text.matches("spec.").count(), 2, "two reasons: {text}");
    assert!(env.get("book", "moby-dick").is_none());

    let book = |author: Value, title: Value| {
        json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book",
            "metadata": { "name": "odd" }, "spec": { "author": author, "title": title, "shelf": 3 } })
    };
    for (author, title, sentences) in [
        (json!("  "), json!("x"), vec!["spec.author in body should match"]),
        (json!("a\nb"), json!("x"), vec!["spec.author in body should match"]),
        (
            json!("\t\n"),
            json!(""),
            vec!["spec.author in body should match", "spec.title in body should match"],
        ),
        (
            json!(5),
            json!(["x"]),
            vec!["spec.author in body must be of type string", "spec.title in body must be of type string"],
        ),
        (json!("x".repeat(1_025)), json!("x"), vec!["spec.author: Too long: may not be more than 1024"]),
    ] {
        let text = env.apply(&book(author, title)).unwrap_err();
        for sentence in sentences {
            assert!(text.contains(sentence), "{sentence}: {text}");
        }
    }
    // Unknown fields stay, and any script is a valid text.
    env.apply(&book(json!("\u{1f409}"), json!("\u{5d0}\u{5d1}"))).unwrap();
    let odd = env.wait_for("book", "odd", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert_eq!(odd["spec"]["shelf"], 3);
    let message = odd["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("Unknown fields are stored and ignored: spec.shelf."), "{message}");
    env.kubectl(&["delete", "book", "odd", "--timeout=30s"]).unwrap();

    for selector in ["spec.author=Dickens", "spec.title=David Copperfield"] {
        let found = env.kubectl(&["get", "bk", "--field-selector", selector, "-o", "name"]).unwrap();
        assert_eq!(found.trim(), "book.christianb93.github.com/david-copperfield", "{selector}");
    }
    let found =
        env.kubectl(&["get", "books", "--field-selector", "spec.author=Melville", "-o", "name"]).unwrap();
    assert!(found.is_empty(), "{found}");

    // One status write for each generation.
    assert_eq!(env.writes_when(2), vec!["patch books/status 200"; 2], "one for each Book");
    env.patch("book", "david-copperfield", &json!({ "spec": { "title": "D. C." } }));
    env.wait_for("book", "david-copperfield", "the status observes the new generation", |book| {
        book["status"]["observedGeneration"] == 2
    });
    assert_eq!(env.writes_when(3).len(), 3);
}
