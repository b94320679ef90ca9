//! The rules of the workflows: which code runs with which rights.

use std::collections::BTreeMap;
use std::fs;

use quintet_localcluster::paths;
use serde_json::{Value, json};

/// The actions with their tags and the commits of the tags, as `git show-ref --tags --dereference` shows them in the
/// repository of each action. Add an action, or change one, only after you have looked there.
const ACTIONS: [(&str, &str, &str); 7] = [
    ("actions/cache", "v5.0.5", "27d5ce7f107fe9357f9df03efb73ab90386fccae"),
    ("actions/checkout", "v7.0.1", "3d3c42e5aac5ba805825da76410c181273ba90b1"),
    ("actions/download-artifact", "v8.0.1", "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c"),
    ("actions/setup-go", "v7.0.0", "b7ad1dad31e06c5925ef5d2fc7ad053ef454303e"),
    ("actions/setup-java", "v5.7.0", "b6effb05e454b25005698d916606bdc6ffcbf961"),
    ("actions/upload-artifact", "v7.0.0", "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f"),
    ("EmbarkStudios/cargo-deny-action", "v2.0.17", "91bf2b620e09e18d6eb78b92e7861937469acedb"),
];

/// Actions whose commit is not verified: name and tag. A workflow may name only these by a tag.
const OPEN: [(&str, &str); 0] = [];

fn workflows() -> BTreeMap<String, String> {
    let folder = paths::workspace().join(".github/workflows");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = entries.map(|file| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(file).unwrap())
    });
    texts.collect()
}

fn parse(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn release() -> Value {
    parse(&workflows()["release.yaml"])
}

fn steps(job: &Value) -> &[Value] {
    job["steps"].as_array().unwrap()
}

fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Value)> {
    workflow["jobs"].as_object().unwrap().iter()
}

/// The scripts of a job.
fn scripts(job: &Value) -> String {
    steps(job).iter().filter_map(|step| step["run"].as_str()).collect::<Vec<_>>().join("\n")
}

/// The uses of actions, at any depth.
fn uses(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().flat_map(uses).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match value.as_str() {
                Some(used) if key == "uses" => vec![used],
                _ => uses(value),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The lines with uses of actions, with their comments.
fn lines_with_uses(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.split_once("uses: "));
    lines.map(|(_, used)| used.trim()).collect()
}

/// The uses of actions that are not pinned to a known commit.
fn unpinned(text: &str) -> Vec<&str> {
    let mut uses = lines_with_uses(text);
    uses.retain(|used| {
        let is_pinned =
            |(name, tag, commit): &(&str, &str, &str)| *used == format!("{name}@{commit} # {tag}");
        let is_open = |(name, tag): &(&str, &str)| *used == format!("{name}@{tag}");
        !ACTIONS.iter().any(is_pinned) && !OPEN.iter().any(is_open)
    });
    uses
}

#[test]
fn workflows_pin_actions_to_known_commits() {
    let workflows = workflows();
    assert!(workflows.len() >= 2);
    for (name, text) in &workflows {
        assert_eq!(unpinned(text), [""; 0], "{name}");
        let workflow = parse(text);
        assert_eq!(lines_with_uses(text).len(), uses(&workflow).len(), "{name}: write `uses: ` in one line");
    }
}

#[test]
fn finds_tags_and_unknown_commits() {
    let commit = ACTIONS[1].2;
    let text = format!(
        "- uses: actions/checkout@v7\n- uses: actions/checkout@{commit} # v7.0.0\n- uses: a/b@{commit} # v7.0.1\n\
         - uses: actions/checkout@{commit} # v7.0.1\n"
    );
    assert_eq!(unpinned(&text).len(), 3);
    let hidden = "steps:\n- \"uses\": a/b@v1\n- uses:\n    a/b@v2\n";
    assert_eq!(lines_with_uses(hidden), [""; 0]);
    assert_eq!(uses(&parse(hidden)), ["a/b@v1", "a/b@v2"]);
}

#[test]
fn only_the_job_that_publishes_has_rights() {
    for (file, text) in workflows() {
        let mut workflow = parse(&text);
        assert_eq!(workflow["permissions"], json!({ "contents": "read" }), "{file}");
        assert!(!text.contains("pull_request_target"), "{file}");
        for (name, job) in jobs(&workflow) {
            let allowed = match (file.as_str(), name.as_str()) {
                ("release.yaml", "publish") => {
                    json!({ "contents": "write", "packages": "write", "id-token": "write" })
                }
                _ => Value::Null,
            };
            assert_eq!(job["permissions"], allowed, "{file}: {name}");
        }
        if file == "release.yaml" {
            workflow["jobs"].as_object_mut().unwrap().remove("publish").unwrap();
        }
        let rest = workflow.to_string();
        for word in ["secrets", "github.token", "github[", "(github)"] {
            assert!(!rest.contains(word), "{file} reads a token: {word}");
        }
    }
}

#[test]
fn checkouts_keep_no_token() {
    for (file, text) in workflows() {
        for (name, job) in jobs(&parse(&text)) {
            let uses = |step: &&Value| {
                step["uses"].as_str().is_some_and(|used| used.starts_with("actions/checkout@"))
            };
            for step in steps(job).iter().filter(uses) {
                assert_eq!(step["with"]["persist-credentials"], false, "{file}: {name}");
            }
        }
    }
}

#[test]
fn scripts_contain_no_expressions() {
    // An expression in a script runs text that others choose, such as the name of a branch.
    for (file, text) in workflows() {
        for (name, job) in jobs(&parse(&text)) {
            assert!(!scripts(job).contains("${{"), "{file}: {name}");
        }
    }
}

#[test]
fn publishing_runs_no_code_of_crates() {
    let release = release();
    let publish = &release["jobs"]["publish"];
    let scripts = scripts(publish);
    for word in ["cargo", "rustup", "xtask", "npm", "mvn", ".ci/run", "go run", "go test"] {
        assert!(!scripts.contains(word), "publish runs {word}");
    }
    assert!(scripts.contains("\n.ci/publish files ") && scripts.contains("sha256sum --check"), "{scripts}");
    let actions: Vec<&str> = uses(publish).iter().map(|used| used.split('@').next().unwrap()).collect();
    assert_eq!(actions, ["actions/checkout", "actions/setup-go", "actions/download-artifact"]);
    // A job without rights can write to a cache.
    assert_eq!(steps(publish)[1]["with"]["cache"], false);
    assert_eq!(publish["needs"], "build");
    assert_eq!(release["jobs"]["build"]["needs"], json!(["test", "programs"]));
}

#[test]
fn a_release_builds_from_the_lock_file() {
    for (name, job) in jobs(&release()) {
        for line in scripts(job).lines().filter(|line| line.contains("cargo ")) {
            assert!(line.trim().starts_with("cargo run --locked "), "{name}: {line}");
        }
    }
    let run = fs::read_to_string(paths::workspace().join(".ci/run")).unwrap();
    assert!(run.contains("\ncargo build --locked "), "{run}");
}

#[test]
fn every_platform_has_a_runner() {
    let release = release();
    let matrix = release["jobs"]["programs"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let names: Vec<String> = super::platform::Platform::ALL.map(super::platform::Platform::name).into();
    let named: Vec<&str> = matrix.iter().map(|one| one["platform"].as_str().unwrap()).collect();
    assert_eq!(named, names);
    assert!(scripts(&release["jobs"]["programs"]).contains("release --programs-only"));
    let ci = parse(&workflows()["ci.yaml"]);
    assert_eq!(
        ci["jobs"]["programs"]["strategy"]["matrix"],
        release["jobs"]["programs"]["strategy"]["matrix"]
    );
    assert_eq!(scripts(&ci["jobs"]["programs"]), scripts(&release["jobs"]["programs"]));
}
