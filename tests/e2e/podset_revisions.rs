//! PodSet: the templates in ControllerRevisions, and the command `quintet rollout`.

use std::collections::BTreeMap;
use std::process::Command;

use quintet_e2e::{TestEnv, condition, program};
use serde_json::{Value, json};

use crate::podset::podset;
use crate::podset_rollout::{images, rolled_out, template};

/// The label of the watch, which each revision has.
const LABEL: &str = "quintet.dev/kind=PodSet";

/// Runs `quintet rollout`. Returns whether it succeeded, and its output.
fn rollout(env: &TestEnv, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(program());
    command.arg("rollout").args(args).args(["-n", env.namespace()]);
    let output = command.env("KUBECONFIG", env.cluster().kubeconfig()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap().trim_end().to_owned())
}

fn canary(image: &str) -> Value {
    podset(
        "set",
        &json!({ "replicas": 4, "template": template(image, &json!({})),
            "updateStrategy": { "partition": "75%", "maxUnavailable": 2 } }),
    )
}

/// A PodSet with "two" in one of four pods.
fn start_canary(env: &TestEnv) {
    env.apply(&canary("one")).unwrap();
    env.wait_for("podset", "set", "four pods are ready", rolled_out(4));
    env.apply(&canary("two")).unwrap();
    env.wait_for("podset", "set", "the canary is ready", is_canary);
    assert_eq!(images(env), counts(&[("one", 3), ("two", 1)]));
}

fn is_canary(set: &Value) -> bool {
    let status = &set["status"];
    condition(set, "Ready") == ("True".into(), "PartitionReached".into())
        && status["observedGeneration"] == set["metadata"]["generation"]
        && status["updatedReplicas"] == 1
        && status["currentRevision"] != status["updateRevision"]
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(image, count)| ((*image).to_owned(), *count)).collect()
}

/// The numbers of the revisions, by image.
fn numbers(env: &TestEnv) -> BTreeMap<String, i64> {
    let revisions = env.list("controllerrevisions", LABEL);
    let entry = |one: &Value| {
        let image = one["data"]["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
        (image.to_owned(), one["revision"].as_i64().unwrap())
    };
    revisions.iter().map(entry).collect()
}

fn delete_pods(env: &TestEnv, image: &str, count: usize) {
    let pods = env.list("pods", LABEL);
    let of_image = |pod: &&Value| pod["spec"]["containers"][0]["image"] == image;
    for pod in pods.iter().filter(of_image).take(count) {
        env.kubectl(&["delete", "pod", pod["metadata"]["name"].as_str().unwrap(), "--wait=false"]).unwrap();
    }
    let gone: Vec<Value> =
        pods.iter().filter(of_image).take(count).map(|pod| pod["metadata"]["uid"].clone()).collect();
    env.wait("the pods are replaced", || {
        let pods = env.list("pods", LABEL);
        pods.len() == 4 && !pods.iter().any(|pod| gone.contains(&pod["metadata"]["uid"]))
    });
}

#[test]
fn a_canary_outlives_lost_pods_and_a_new_manager() {
    let env = TestEnv::new("pv-canary");
    let manager = env.manager("podset");
    start_canary(&env);
    delete_pods(&env, "one", 2);
    env.wait_for("podset", "set", "the canary is ready", is_canary);
    assert_eq!(images(&env), counts(&[("one", 3), ("two", 1)]));
    drop(manager);
    let _manager = env.manager("podset");
    delete_pods(&env, "two", 1);
    delete_pods(&env, "one", 1);
    env.wait_for("podset", "set", "the canary is ready", is_canary);
    assert_eq!(images(&env), counts(&[("one", 3), ("two", 1)]));
    // A user takes the labels from the revisions, and deletes one.
    let set = env.get("podset", "set").unwrap();
    let revision = |field: &str| set["status"][field].as_str().unwrap().to_owned();
    let (current, updated) = (revision("currentRevision"), revision("updateRevision"));
    for revision in [&updated, &current] {
        env.kubectl(&["label", "controllerrevision", revision, "quintet.dev/kind-"]).unwrap();
        env.wait_for("controllerrevision", revision, "the label is restored", |revision| {
            revision["metadata"]["labels"]["quintet.dev/kind"] == "PodSet"
        });
    }
    env.kubectl(&["delete", "controllerrevision", &current]).unwrap();
    env.wait_for("podset", "set", "the loss is reported", |set| {
        condition(set, "ReplicaFailure") == ("True".into(), "RevisionMissing".into())
    });
    delete_pods(&env, "one", 1);
    env.wait_for("podset", "set", "it is ready with another template", |set| {
        condition(set, "Ready") == ("True".into(), "PartitionReached".into())
    });
    assert_eq!(images(&env), counts(&[("one", 2), ("two", 2)]));
    env.kubectl(&["delete", "podset", "set", "--timeout=60s"]).unwrap();
    env.wait("the revisions are gone", || env.list("controllerrevisions", LABEL).is_empty());
}

#[test]
fn rollout_has_the_commands_of_kubectl() {
    let env = TestEnv::new("pv-rollout");
    let _manager = env.manager("podset");
    start_canary(&env);
    assert_eq!(numbers(&env), BTreeMap::from([("one".to_owned(), 1), ("two".to_owned(), 2)]));
    let (succeeded, text) = rollout(&env, &["status", "podset/set", "--timeout=1m"]);
    assert!(succeeded && text.contains("1 of 4 pods have the spec's template"), "{text}");
    let (_, table) = rollout(&env, &["history", "podset/set"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[1][0], lines[1][2], lines[1][3]), ("1", "current", "one"), "{table}");
    assert_eq!((lines[2][0], lines[2][2], lines[2][3]), ("2", "updated", "two"), "{table}");
    let (_, document) = rollout(&env, &["history", "podset", "set", "--revision=2"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["spec"]["containers"][0]["image"], "two");

    let (succeeded, text) = rollout(&env, &["undo", "podset/set"]);
    assert_eq!((succeeded, &*text), (true, "podset/set returns to revision 1 (one)"));
    env.wait_for("podset", "set", "four old pods are ready", rolled_out(4));
    assert_eq!(images(&env), counts(&[("one", 4)]));
    env.wait("the restored template has the highest number", || {
        numbers(&env) == BTreeMap::from([("one".to_owned(), 3), ("two".to_owned(), 2)])
    });
    let (succeeded, text) = rollout(&env, &["undo", "podset/set", "--to-revision=9"]);
    assert_eq!((succeeded, &*text), (false, "quintet: podset/set has no revision 9; it has 2, 3"));
    let (succeeded, text) = rollout(&env, &["undo", "podset/set", "--to-revision=3"]);
    assert_eq!((succeeded, &*text), (true, "podset/set has the template of this revision already"));

    env.patch("podset", "set", &json!({ "spec": { "updateStrategy": { "partition": 0 } } }));
    let before: Vec<Value> =
        env.list("pods", LABEL).iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
    let (succeeded, text) = rollout(&env, &["restart", "podset/set"]);
    assert_eq!((succeeded, &*text), (true, "podset/set restarted"));
    let (succeeded, text) = rollout(&env, &["status", "podset/set", "--timeout=1m"]);
    assert!(succeeded && text.ends_with("All 4 pods have the spec's template."), "{text}");
    let after = env.list("pods", LABEL);
    assert!(!after.iter().any(|pod| before.contains(&pod["metadata"]["uid"])), "all pods are new");

    let (succeeded, text) = rollout(&env, &["pause", "podset/set"]);
    assert_eq!((succeeded, &*text), (true, "podset/set paused"));
    let (succeeded, text) = rollout(&env, &["restart", "podset/set"]);
    assert!(!succeeded && text.contains("first run quintet rollout resume podset/set"), "{text}");
    let (succeeded, text) = rollout(&env, &["resume", "podset/set"]);
    assert_eq!((succeeded, &*text), (true, "podset/set resumed"));

    // A rollout that cannot end.
    env.apply(&podset(
        "set",
        &json!({ "replicas": 4, "progressDeadlineSeconds": 3,
            "template": template("bad", &json!({ "kwok.quintet.dev/ready": "false" })) }),
    ))
    .unwrap();
    let (succeeded, text) = rollout(&env, &["status", "podset/set", "--timeout=1m"]);
    assert!(!succeeded && text.contains("NotReady"), "{text}");
    env.patch("podset", "set", &json!({ "spec": { "updateStrategy": { "paused": true } } }));
    let (succeeded, text) = rollout(&env, &["undo", "podset/set"]);
    let resume = format!("first run quintet rollout resume podset/set -n {}", env.namespace());
    assert_eq!((succeeded, text), (false, format!("quintet: cannot undo podset/set: {resume}")));
    let (succeeded, text) = rollout(&env, &["status", "podset/none"]);
    assert!(!succeeded && text.contains("podset/none does not exist in namespace"), "{text}");
}

/// Without the command: an annotation of the template replaces the pods, and kubectl lists the templates.
#[test]
fn restart_and_history_by_plain_fields() {
    let env = TestEnv::new("pv-fields");
    let _manager = env.manager("podset");
    let set = podset("set", &json!({ "replicas": 2, "template": template("one", &json!({})) }));
    env.apply(&set).unwrap();
    env.wait_for("podset", "set", "two pods are ready", rolled_out(2));
    let uids = || -> Vec<Value> {
        env.list("pods", LABEL).iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
    };
    let before = uids();
    let annotation = json!({ "metadata": { "annotations": { "example.com/restarted": "1" } } });
    env.patch("podset", "set", &json!({ "spec": { "template": annotation } }));
    env.wait_for("podset", "set", "the pods are replaced", rolled_out(2));
    env.wait("all pods are new", || !uids().iter().any(|uid| before.contains(uid)));
    let listed = env.kubectl(&["get", "controllerrevisions", "-l", "app=set", "-o", "name"]).unwrap();
    assert_eq!(listed.lines().count(), 2, "{listed}");
}
