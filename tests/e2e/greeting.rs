//! Greeting: prints every line at most once, because a claim precedes each print.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use quintet_e2e::{Dice, TestEnv, condition};
use quintet_localcluster::manager::Manager;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::daemonjob_samples::{promise, samples};

pub(crate) fn greeting(name: &str, message: &str) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": { "name": name },
        "spec": { "message": message } })
}

/// The printed lines. Of consecutive equal ticks only the first, because a slow machine sees more of them.
fn lines(printed: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.dedup_by(|later, earlier| later == earlier && later.starts_with("Timer: "));
    lines
}

#[test]
fn prints_each_line_once_across_restarts() {
    let env = TestEnv::new("gr-life");
    let manager = env.manager("greeting");
    env.apply_sample("greeting/hello-world.yaml").unwrap();
    let hello = env.wait_for("greeting", "hello-world", "the Greeting is Ready", |greeting| {
        condition(greeting, "Ready").0 == "True"
    });
    assert_eq!(hello["status"]["lastGreeting"], "Hello, World!");
    let first = ["Greeting: Hello, World!", "Create: Hello, World!", "Timer: Hello, World!"];
    env.wait("the first lines are printed", || lines(&manager.printed()) == first);
    let created = env.writes_at_rest().len();
    assert_eq!(created, 2, "finalizer and claim: {:?}", env.writes());

    // A label, an annotation and a restart print and write nothing.
    env.kubectl(&["annotate", "greeting", "hello-world", "a=b"]).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = env.manager("greeting");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lines(&manager.printed()), first);
    assert_eq!(env.writes().len(), created);

    env.apply(&greeting("hello-world", "Hello again!")).unwrap();
    env.wait("the update is printed", || lines(&manager.printed()).get(3) == Some(&"Update: Hello again!"));

    // The Event follows the line. A manager killed in between would lose the Event.
    let seen = |reasons: &[&str]| {
        env.kubectl(&["get", "events.events.k8s.io"])
            .is_ok_and(|events| reasons.iter().all(|reason| events.contains(reason)))
    };
    env.wait("the update has an Event", || seen(&["Updated"]));

    // The manager is killed; two changes and a deletion happen while it is down.
    manager.kill().unwrap();
    env.apply(&greeting("other", "one")).unwrap();
    env.apply(&greeting("other", "two")).unwrap();
    env.kubectl(&["delete", "greeting", "hello-world", "--wait=false"]).unwrap();
    let manager = env.manager("greeting");
    env.wait("the Greeting is gone", || env.get("greeting", "hello-world").is_none());
    env.wait("the other Greeting is printed", || manager.printed().contains("Timer: two"));
    env.wait("the deletion is printed", || manager.printed().contains("Delete: Hello again!"));
    let printed = manager.printed();
    assert_eq!(printed.matches("Delete: Hello again!").count(), 1, "{printed}");
    assert_eq!(printed.matches("Create: two").count(), 1, "{printed}");
    assert!(!printed.contains("one\n"), "changes without a manager count as one: {printed}");
    for once in first[..2].iter().chain(&["Update: Hello again!"]) {
        assert_eq!(printed.matches(once).count(), 1, "{once}: {printed}");
    }

    let row = env.kubectl(&["get", "gr", "other", "--no-headers"]).unwrap();
    assert!(row.contains("two"), "{row}");
    env.wait("each cause has an Event", || seen(&["Greeted", "Updated", "Deleted"]));
}

#[test]
fn prints_nothing_when_the_message_is_the_same() {
    let env = TestEnv::new("gr-still");
    let manager = env.manager("greeting");
    let mut still = greeting("still", "one");
    still["metadata"]["finalizers"] = json!(["example.com/of-another"]);
    env.apply(&still).unwrap();
    env.wait("the message is printed", || manager.printed().contains("Timer: one"));
    assert_eq!(manager.stop().unwrap(), Some(0));
    for message in ["two", "one"] {
        env.patch("greeting", "still", &json!({ "spec": { "message": message } }));
    }
    let manager = env.manager("greeting");
    env.kubectl(&["label", "greeting", "still", "a=b"]).unwrap();
    env.patch("greeting/status", "still", &json!({ "status": { "lastGreeting": "nonsense" } }));
    env.patch("greeting", "still", &json!({ "spec": { "intervalSeconds": 3000 } }));
    let seen = env.wait_for("greeting", "still", "the status observes the last generation", |still| {
        still["status"]["observedGeneration"] == still["metadata"]["generation"]
    });
    assert!(seen["status"]["updates"].is_null(), "{seen:#}");
    assert_eq!(lines(&manager.printed()), ["Greeting: one", "Create: one", "Timer: one"]);

    // Another finalizer precedes ours. The manager prints the last line once and leaves the other finalizer.
    env.patch("greeting", "still", &json!({ "spec": { "message": "three" } }));
    env.wait("the update is printed", || manager.printed().contains("Update: three"));
    env.kubectl(&["delete", "greeting", "still", "--wait=false"]).unwrap();
    env.wait("the deletion is printed", || manager.printed().ends_with("Delete: three\n"));
    assert_eq!(manager.kill().unwrap(), None);
    let manager = env.manager("greeting");
    env.wait_for("greeting", "still", "only the other finalizer is left", |still| {
        still["metadata"]["finalizers"] == json!(["example.com/of-another"])
    });
    env.patch("greeting", "still", &json!({ "metadata": { "finalizers": null } }));
    env.wait("the Greeting is gone", || env.get("greeting", "still").is_none());
    let expected = ["Greeting: one", "Create: one", "Timer: one", "Update: three", "Delete: three"];
    assert_eq!(lines(&manager.printed()), expected);
}

/// The Greetings as one list for kubectl.
fn list(greetings: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<Value> = greetings.into_iter().collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// How often each line was printed, without ticks.
fn counts(printed: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for line in printed.lines().filter(|line| !line.starts_with("Timer: ")) {
        *counts.entry(line).or_default() += 1;
    }
    counts
}

/// The lines of Greetings that were created as v1, changed to v2 and deleted.
fn lives(count: usize) -> BTreeMap<String, usize> {
    let of = |number| {
        ["Greeting: g{} v1", "Create: g{} v1", "Update: g{} v2", "Delete: g{} v2"]
            .map(|line| (line.replace("{}", &format!("{number}")), 1))
    };
    (0..count).flat_map(of).collect()
}

fn versions(count: usize, version: &str) -> Value {
    list((0..count).map(|number| greeting(&format!("g{number}"), &format!("g{number} {version}"))))
}

fn owned(counts: BTreeMap<&str, usize>) -> BTreeMap<String, usize> {
    counts.into_iter().map(|(line, count)| (line.to_owned(), count)).collect()
}

const MANY: usize = 20;

/// Restarts the manager while it prints creations, changes and deletions. Every line is printed exactly once.
#[test]
fn prints_every_line_across_restarts() {
    let env = TestEnv::new("gr-term");
    let mut manager = Some(env.manager("greeting"));
    let restart = |manager: Option<Manager>, what: &str| {
        let manager = manager.unwrap();
        env.wait("some lines are printed", || manager.printed().matches(what).count() > 2);
        assert_eq!(manager.stop().unwrap(), Some(0));
        Some(env.manager("greeting"))
    };
    for (version, what) in [("v1", "Create: "), ("v2", "Update: ")] {
        let applied = apply_in_background(&env, &versions(MANY, version));
        manager = restart(manager, what);
        applied.join().unwrap();
        env.wait("all lines are printed", || {
            manager.as_ref().is_some_and(|manager| manager.printed().matches(what).count() >= MANY)
        });
    }
    env.kubectl(&["delete", "greetings", "--all", "--wait=false"]).unwrap();
    manager = restart(manager, "Delete: ");
    env.wait("all Greetings are gone", || env.list("greetings", "").is_empty());
    assert_eq!(manager.unwrap().stop().unwrap(), Some(0));
    let manager = env.manager("greeting");
    assert_eq!(owned(counts(&manager.printed())), lives(MANY));
}

/// Runs `kubectl apply` in the background, again if an object is deleted between kubectl's read and patch.
fn apply_in_background(env: &TestEnv, object: &Value) -> JoinHandle<()> {
    let mut command = env.kube().kubectl();
    command.args(["-n", env.namespace(), "apply", "-f", "-"]);
    let text = object.to_string();
    std::thread::spawn(move || {
        while let Err(error) = run::stdout_with_input(&mut command, Some(&text)) {
            let error = format!("{error:#}");
            assert!(error.contains("NotFound"), "{error}");
        }
    })
}

/// Two managers may both write; each line is printed by one of them.
#[test]
fn two_active_managers_print_each_line_once() {
    let env = TestEnv::new("gr-two");
    let (first, second) =
        (env.manager_with("first", "greeting", &[]), env.manager_with("second", "greeting", &[]));
    let printed = || first.printed() + &second.printed();
    for (version, what) in [("v1", "Create: "), ("v2", "Update: ")] {
        env.apply(&versions(MANY, version)).unwrap();
        env.wait("all lines are printed", || printed().matches(what).count() >= MANY);
    }
    env.kubectl(&["delete", "greetings", "--all", "--timeout=60s"]).unwrap();
    env.wait("all lines are printed", || printed().matches("Delete: ").count() >= MANY);
    assert_eq!(owned(counts(&printed())), lives(MANY));
}

/// Kills the manager at 50 random moments while Greetings are created, changed and deleted. Lines may be
/// lost, but no line is printed twice, and at the end every claim is current.
#[test]
fn fifty_kills_print_no_line_twice() {
    let env = TestEnv::new("gr-kills");
    let path = env.kube().log(&format!("{}-killed.out", env.namespace()));
    let mut dice = Dice::new();
    for round in 0..50 {
        let out = File::options().create(true).append(true).open(&path).unwrap();
        let mut manager = env.bare_manager_printing("greeting", out);
        let fresh = (0..2).map(|one| greeting(&format!("g{round}-{one}"), &format!("g{round}-{one} v1")));
        let name = |of: u64| format!("g{of}-{}", round % 2);
        let changed = (round > 0).then(|| dice.below(round)).map(name);
        let changed = changed.map(|name| greeting(&name, &format!("{name} v{}", round + 2)));
        let mut all: Vec<Value> = fresh.collect();
        if let Some(changed) =
            changed.filter(|one| all.iter().all(|other| one["metadata"] != other["metadata"]))
        {
            all.push(changed);
        }
        let applied = apply_in_background(&env, &list(all));
        if round % 3 == 2 {
            let gone = format!("g{}-1", dice.below(round));
            let _ = env.kubectl(&["delete", "greeting", &gone, "--wait=false", "--ignore-not-found"]);
        }
        std::thread::sleep(Duration::from_millis(dice.below(400)));
        manager.kill().unwrap();
        manager.wait().unwrap();
        applied.join().unwrap();
    }
    let manager = env.manager("greeting");
    env.wait("every Greeting is Ready or gone", || {
        env.list("greetings", "").iter().all(|one| {
            one["metadata"]["deletionTimestamp"].is_null()
                && condition(one, "Ready").0 == "True"
                && one["status"]["lastGreeting"] == one["spec"]["message"]
        })
    });
    let printed = std::fs::read_to_string(&path).unwrap() + &manager.printed();
    let doubled: Vec<(&str, usize)> = counts(&printed).into_iter().filter(|(_, count)| *count > 1).collect();
    assert_eq!(doubled, [], "{printed}");
}

/// While standard output is blocked, the manager claims only what the queue holds, and other kinds continue.
/// It prints the queue once the reader continues.
#[test]
fn a_blocked_reader_stops_no_other_kind_and_loses_no_line() {
    const LARGE: usize = 110;
    let env = TestEnv::new("gr-blocked");
    let mut manager = env.bare_manager_printing("greeting,book", Stdio::piped());
    let large = |number: usize| {
        let message = format!("{number:03} {}", "long ".repeat(3_200));
        let mut large = greeting(&format!("g{number}"), message.trim_end());
        // One tick each, even while the queue is full.
        large["spec"]["intervalSeconds"] = json!(3600);
        large
    };
    // Together larger than the queue and the pipe.
    let all = list((0..LARGE).map(large)).to_string();
    let create = ["-n", env.namespace(), "create", "-f", "-"];
    run::stdout_with_input(env.kube().kubectl().args(create), Some(&all)).unwrap();
    let claimed = || {
        let all = env.list("greetings", "");
        all.iter().filter(|one| !one["status"]["claim"].is_null()).count()
    };
    env.wait("the queue is full", || claimed() > 50);
    env.apply_sample("book/david-copperfield.yaml").unwrap();
    env.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert!(claimed() < LARGE, "the manager claims only what the queue holds");

    let stdout = manager.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for line in lines {
            let (prefix, rest) = line.split_once(": ").unwrap();
            assert_eq!(rest.len(), "000 ".len() + "long ".len() * 3_200 - 1);
            *counts.entry(format!("{prefix} {}", &rest[..3])).or_default() += 1;
        }
        counts
    });
    env.wait("all Greetings are claimed", || claimed() == LARGE);
    stop(&mut manager);
    let counts = reader.join().unwrap();
    let expected: BTreeMap<String, usize> = (0..LARGE)
        .flat_map(|number| ["Greeting", "Create", "Timer"].map(|line| (format!("{line} {number:03}"), 1)))
        .collect();
    assert_eq!(counts, expected);
}

/// When the reader closes the pipe, the manager claims nothing more. The next manager prints the line.
#[test]
fn claims_nothing_after_its_output_is_closed() {
    let env = TestEnv::new("gr-closed");
    let manager = env.manager("greeting");
    let log = env.kube().log(&format!("{}-manager.log", env.namespace()));
    assert_eq!(manager.stop().unwrap(), Some(0));
    let mut closed = env.bare_manager_printing("greeting", Stdio::piped());
    drop(closed.stdout.take());
    env.apply(&greeting("first", "lost")).unwrap();
    env.wait("the manager logs the error", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cannot write to standard output"))
    });
    env.apply(&greeting("second", "kept")).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let second = env.get("greeting", "second").unwrap();
    assert!(second["status"]["claim"].is_null(), "{second:#}");
    stop(&mut closed);
    let manager = env.manager("greeting");
    env.wait("the next manager prints the line", || manager.printed().contains("Create: kept"));
    assert!(!manager.printed().contains("lost"), "{}", manager.printed());
}

#[test]
fn every_sample_ends_as_its_comment_states() {
    let env = TestEnv::new("gr-samples");
    let manager = env.manager("greeting");
    for file in samples("greeting") {
        let path = file.display().to_string();
        env.kubectl(&["apply", "-f", &path]).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = std::fs::read_to_string(&file).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap();
        let promised = promise(&text, "Ready (Greeted)");
        env.wait_for("greeting", name, &format!("{path} is {promised:?}"), |greeting| {
            condition(greeting, &promised.0) == ("True".into(), promised.1.clone())
        });
        for expected in text.lines().filter_map(|line| line.strip_prefix("# Prints: ")) {
            env.wait(&format!("{path} prints {expected}"), || {
                manager.printed().lines().any(|line| line == expected)
            });
        }
    }
}

/// Stops a bare manager with SIGTERM.
pub(crate) fn stop(manager: &mut Child) {
    let pid = manager.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(manager.wait().unwrap().code(), Some(0));
}

#[test]
fn timer_ticks_without_a_write() {
    let env = TestEnv::new("gr-timer");
    let manager = env.manager("greeting");
    let mut tick = greeting("tick", "tock");
    tick["spec"]["intervalSeconds"] = json!(1);
    env.apply(&tick).unwrap();
    env.wait("four ticks are printed", || manager.printed().matches("Timer: tock").count() >= 4);
    assert_eq!(env.writes().len(), 2, "{:?}", env.writes());
    env.kubectl(&["delete", "greeting", "tick", "--timeout=30s"]).unwrap();
    env.wait("the deletion is printed", || manager.printed().ends_with("Delete: tock\n"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(manager.printed().ends_with("Delete: tock\n"), "the timer has stopped: {}", manager.printed());
}

#[test]
fn escapes_line_breaks_and_rejects_bad_input() {
    let env = TestEnv::new("gr-bad");
    let manager = env.manager("greeting");
    env.apply(&greeting("odd", "two\nlines \u{1b}[31m שלום 👋")).unwrap();
    env.wait("the message is printed", || manager.printed().contains("Timer: "));
    assert_eq!(lines(&manager.printed())[0], "Greeting: two\\nlines \\u{1b}[31m שלום 👋");
    let long = format!("{} ende", "ä👩\u{200d}🚀".repeat(800));
    assert!(long.len() > 10_000);
    env.apply(&greeting("long", &long)).unwrap();
    let created = format!("Create: {long}");
    env.wait("the message is printed in full", || manager.printed().lines().any(|line| line == created));
    let seen = env.get("greeting", "long").unwrap();
    let kept = seen["status"]["lastGreeting"].as_str().unwrap();
    assert!(kept.len() <= 256 && long.starts_with(kept.trim_end_matches('…')), "{kept}");

    let none = json!({ "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": { "name": "none" }, "spec": {} });
    let text = env.apply(&none).unwrap_err();
    assert!(text.contains("spec.message") && text.contains("Required"), "{text}");
    let text = env.apply(&greeting("empty", "")).unwrap_err();
    assert!(text.contains("spec.message"), "{text}");
    let mut often = greeting("often", "x");
    often["spec"]["intervalSeconds"] = json!(0);
    let text = env.apply(&often).unwrap_err();
    assert!(text.contains("intervalSeconds"), "{text}");
}
