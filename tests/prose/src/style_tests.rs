//! The rules fire on every "before" of the style page and stay silent on every "after".

use crate::Finding;
use crate::text::Text;
use crate::vale::Vale;

/// What was written, and what is written now.
const TABLE: [(&str, &str); 13] = [
    (
        "Serve /metrics over TLS, to whom the cluster allows it: a bearer token, and the right to get /metrics.",
        "Serve /metrics over TLS and require a bearer token that is authorized to GET /metrics.",
    ),
    (
        "The pause between tries to renew that fail, and between looks at a Lease that cannot be watched.",
        "Wait this long between failed attempts to renew or read the Lease.",
    ),
    (
        "holds the lease again, as nobody had it meanwhile",
        "re-acquired the lease; no other holder in between",
    ),
    ("the end took too long and was cut off", "shutdown timed out; exiting"),
    (
        "The manager's rights would go to the ServiceAccount default, as which every pod of the namespace runs that names no \
         other: set serviceAccount.name.",
        "This would grant the manager's permissions to the \"default\" ServiceAccount, which every pod without its own uses. Set \
         serviceAccount.name.",
    ),
    ("What pod X knows of Y is 12m old.", "Pod X has received no Y watch events for 12m."),
    (
        "Something that a controller wants is not allowed, and is not done.",
        "The API server denies a request that the controller needs.",
    ),
    (
        "A pod that was deleted before it was given a node never ran. It is no outcome: another takes its place at once.",
        "A pod deleted before it was scheduled never ran. It does not count as an attempt, and the manager replaces it immediately.",
    ),
    (
        "How the containers of a pod ended that was deleted tells nothing, so exit codes are not looked at there.",
        "The manager ignores the exit codes of a deleted pod, because the deletion itself can cause them.",
    ),
    (
        "takes off the finalizers by which Greetings owe a last line, and pods of DaemonJobs an outcome, so that nothing waits for \
         a manager that is gone",
        "removes the finalizers from Greetings and DaemonJob pods, so that nothing waits for a manager that is gone",
    ),
    (
        "Of each of them it is forgotten what is shown: who hands over tells of the rest.",
        "Drop the writes that the caches already show; the hand-over record lists only the rest.",
    ),
    (
        "That the server answers from memory. What is now it asks its store for, and waits until its memory has come so far, up \
         to 100 ms.",
        "With `since`, the API server answers from its watch cache. Without it, it reads etcd and may wait 100 ms for the cache.",
    ),
    (
        "kit: of pods that we let go nobody asks whether they are gone; rules that two kinds share are in kit",
        "daemonjob: skip the lookup of pods already released",
    ),
];

/// The names of tests in the same table.
const NAMES: (&str, &str) = (
    "only_of_a_pod_that_we_did_not_let_go_it_is_asked_whether_it_is_gone",
    "looks_up_only_pods_it_has_not_released",
);

/// What Vale finds in each sentence.
fn findings(sentences: &[&str]) -> Vec<Vec<Finding>> {
    let mut text = Text::default();
    for (i, sentence) in sentences.iter().enumerate() {
        text.line(i, sentence);
        text.end_paragraph();
    }
    let mut vale = Vale::new().unwrap();
    vale.text("table.txt", text).unwrap();
    let mut found = vec![Vec::new(); sentences.len()];
    for finding in vale.run().unwrap() {
        found[finding.line].push(finding);
    }
    found
}

#[test]
fn finds_words_across_the_end_of_a_line() {
    if !crate::is_built() {
        return;
    }
    let mut text = Text::default();
    text.line(3, "The manager lists so");
    text.line(4, "many pods. There is");
    text.line(5, "no pod.");
    let mut vale = Vale::new().unwrap();
    vale.text("two_lines.txt", text).unwrap();
    let found: Vec<_> = vale.run().unwrap().into_iter().map(|found| (found.line, found.word)).collect();
    assert_eq!(found, [(3, ["so", "many"].join(" "))]);
}

#[test]
fn the_rules_know_the_style_page() {
    if !crate::is_built() {
        eprintln!("skipped: Vale is not built, see `cargo xtask prose`");
        return;
    }
    let names = (NAMES.0.replace('_', " "), NAMES.1.replace('_', " "));
    let names = (names.0.as_str(), names.1.as_str());
    let table: Vec<(&str, &str)> = TABLE.into_iter().chain([names]).collect();
    let before = findings(&table.iter().map(|(before, _)| *before).collect::<Vec<_>>());
    for (found, (before, _)) in before.iter().zip(&table) {
        assert!(found.iter().any(|finding| finding.is_error), "no rule fires on: {before}");
    }
    let after = findings(&table.iter().map(|(_, after)| *after).collect::<Vec<_>>());
    let after: Vec<String> = after.iter().flatten().map(ToString::to_string).collect();
    assert!(after.is_empty(), "{}", after.join("\n"));
}
