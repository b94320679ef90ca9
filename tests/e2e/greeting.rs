//! Greeting: every line at most once, by claim before print.

use std::time::Duration;

use quintet_e2e::{Arena, condition};
use serde_json::{Value, json};

fn greeting(name: &str, message: &str) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": { "name": name },
        "spec": { "message": message } })
}

/// The lines that were said; of ticks that follow each other only the first, for a slow machine sees more of them.
fn lines(printed: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.dedup_by(|later, earlier| later == earlier && later.starts_with("Timer: "));
    lines
}

#[test]
fn create_update_delete_and_the_timer_are_said_once_over_restarts() {
    let arena = Arena::new("gr-life");
    let manager = arena.manager("greeting");
    arena.apply_sample("greeting/hello-world.yaml").unwrap();
    let hello = arena.wait_for("greeting", "hello-world", "it is greeted", |greeting| {
        condition(greeting, "Ready").0 == "True"
    });
    assert_eq!(hello["status"]["lastGreeting"], "Hello, World!");
    let first = ["Greeting: Hello, World!", "Create: Hello, World!", "Timer: Hello, World!"];
    arena.wait("the first lines are said", || lines(&manager.printed()) == first);
    let created = arena.writes().len();
    assert_eq!(created, 2, "finalizer and claim: {:?}", arena.writes());

    // A label, an annotation, a restart: nothing is said and nothing written.
    arena.kubectl(&["annotate", "greeting", "hello-world", "a=b"]).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = arena.manager("greeting");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lines(&manager.printed()), first);
    assert_eq!(arena.writes().len(), created);

    arena.apply(&greeting("hello-world", "Hello again!")).unwrap();
    arena.wait("the update is said", || lines(&manager.printed()).get(3) == Some(&"Update: Hello again!"));

    // Killed, not stopped; two changes and a deletion while down.
    manager.kill().unwrap();
    arena.apply(&greeting("other", "one")).unwrap();
    arena.apply(&greeting("other", "two")).unwrap();
    arena.kubectl(&["delete", "greeting", "hello-world", "--wait=false"]).unwrap();
    let manager = arena.manager("greeting");
    arena.wait("the deletion is let through", || arena.get("greeting", "hello-world").is_none());
    arena.wait("the other one is said", || manager.printed().contains("Timer: two"));
    let printed = manager.printed();
    assert_eq!(printed.matches("Delete: Hello again!").count(), 1, "{printed}");
    assert_eq!(printed.matches("Create: two").count(), 1, "{printed}");
    assert!(!printed.contains("one\n"), "changes while down are one: {printed}");
    for once in first[..2].iter().chain(&["Update: Hello again!"]) {
        assert_eq!(printed.matches(once).count(), 1, "{once}: {printed}");
    }

    let row = arena.kubectl(&["get", "gr", "other", "--no-headers"]).unwrap();
    assert!(row.contains("two"), "{row}");
    arena.wait("events tell", || {
        arena.kubectl(&["get", "events.events.k8s.io"]).is_ok_and(|events| events.contains("Greeted"))
    });
}

#[test]
fn the_timer_ticks_without_a_write() {
    let arena = Arena::new("gr-timer");
    let manager = arena.manager("greeting");
    let mut tick = greeting("tick", "tock");
    tick["spec"]["intervalSeconds"] = json!(1);
    arena.apply(&tick).unwrap();
    arena.wait("ticks are said", || manager.printed().matches("Timer: tock").count() >= 4);
    assert_eq!(arena.writes().len(), 2, "{:?}", arena.writes());
    arena.kubectl(&["delete", "greeting", "tick", "--timeout=30s"]).unwrap();
    arena.wait("the farewell is said", || manager.printed().ends_with("Delete: tock\n"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(manager.printed().ends_with("Delete: tock\n"), "the timer has stopped: {}", manager.printed());
}

#[test]
fn one_line_stays_one_line_and_bad_input_is_refused() {
    let arena = Arena::new("gr-bad");
    let manager = arena.manager("greeting");
    arena.apply(&greeting("odd", "two\nlines \u{1b}[31m שלום 👋")).unwrap();
    arena.wait("it is said", || manager.printed().contains("Timer: "));
    assert_eq!(lines(&manager.printed())[0], "Greeting: two\\nlines \\u{1b}[31m שלום 👋");

    let none = json!({ "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": { "name": "none" }, "spec": {} });
    let text = arena.apply(&none).unwrap_err();
    assert!(text.contains("spec.message") && text.contains("Required"), "{text}");
    let text = arena.apply(&greeting("empty", "")).unwrap_err();
    assert!(text.contains("spec.message"), "{text}");
    let mut often = greeting("often", "x");
    often["spec"]["intervalSeconds"] = json!(0);
    let text = arena.apply(&often).unwrap_err();
    assert!(text.contains("intervalSeconds"), "{text}");
}
