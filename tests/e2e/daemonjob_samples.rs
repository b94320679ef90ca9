//! The samples of DaemonJob: each comes to what its comment promises.
//!
//! Nodes are simulated: the cluster's own, which carry the label that the samples select, and a control plane node. They
//! run no containers; how long these take and how they end is said by annotations in the samples.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use quintet_e2e::{Arena, condition, workspace};
use serde_json::{Value, json};

use crate::daemonjob::is_complete;

/// The line of a sample that states how the object ends: `# Ends as: CONDITION (REASON)`.
const PROMISE: &str = "# Ends as: ";

/// What a sample promises that does not say it: the post's, which is kept as it was.
const USUAL: &str = "Complete (AllNodesDone)";

/// The manifests of a kind's folder, by name.
pub(crate) fn samples(kind: &str) -> Vec<PathBuf> {
    let folder = workspace().join("samples").join(kind);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// Condition and reason that the comment of a sample promises.
pub(crate) fn promise(text: &str, usual: &str) -> (String, String) {
    let promise = text.lines().find_map(|line| line.strip_prefix(PROMISE)).unwrap_or(usual);
    let (condition, reason) = promise.split_once(" (").expect("CONDITION (REASON)");
    (condition.to_owned(), reason.strip_suffix(')').expect("CONDITION (REASON)").to_owned())
}

/// Applies a manifest; what the server has made of each object in it.
fn apply(arena: &Arena, file: &str) -> Vec<Value> {
    let answer =
        arena.kubectl(&["apply", "-f", file, "-o", "json"]).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut answer: Value = serde_json::from_str(&answer).unwrap();
    match answer["items"].take() {
        Value::Array(items) => items,
        _ => vec![answer],
    }
}

#[test]
fn every_sample_comes_to_what_it_promises() {
    let arena = Arena::new("ds-all");
    let node = arena.node("control-plane");
    let role = "node-role.kubernetes.io/control-plane";
    arena.kubectl(&["label", "node", &node, &format!("{role}=")]).unwrap();
    arena.kubectl(&["taint", "node", &node, &format!("{role}=:NoSchedule")]).unwrap();
    let _manager = arena.manager("daemonjob");
    // Nodes of other tests may come and go: what a sample has come to may change again.
    let watch = arena.watch("daemonjobs.dj.dysproz.io", "");

    let mut made: BTreeMap<(String, String), PathBuf> = BTreeMap::new();
    let mut promises = Vec::new();
    for file in samples("daemonjob") {
        let text = fs::read_to_string(&file).unwrap();
        let is_the_posts = file.file_name().is_some_and(|name| name == "daemonjob-sample.yaml");
        assert!(text.contains(PROMISE) != is_the_posts, "{}: what does it come to?", file.display());
        let (type_, reason) = promise(&text, USUAL);
        let mut jobs = 0;
        for object in apply(&arena, file.to_str().unwrap()) {
            let part = |member: &Value| member.as_str().unwrap().to_owned();
            let (kind, name) = (part(&object["kind"]), part(&object["metadata"]["name"]));
            if kind == "DaemonJob" {
                jobs += 1;
                promises.push((name.clone(), type_.clone(), reason.clone()));
            }
            let other = made.insert((kind, name), file.clone());
            assert!(other.is_none(), "{} makes what {} makes", file.display(), other.unwrap().display());
        }
        assert_eq!(jobs, 1, "{}", file.display());
    }
    assert!(promises.len() > 15, "only {} samples were found", promises.len());

    for (name, type_, reason) in promises {
        arena.wait(&format!("{name} is {type_} ({reason})"), || {
            watch.events().iter().any(|(_, job)| {
                job["metadata"]["name"] == *name
                    && job["status"]["observedGeneration"] == job["metadata"]["generation"]
                    && condition(job, &type_) == ("True".to_owned(), reason.clone())
            })
        });
    }

    // What the comments say to look at.
    let told = |name: &str, list: &str, reason: &str| {
        watch.events().iter().any(|(_, job)| {
            let nodes = job["status"][list].as_array();
            job["metadata"]["name"] == *name
                && nodes.is_some_and(|nodes| nodes.iter().any(|node| node["reason"] == *reason))
        })
    };
    assert!(arena.list("pods", "daemonjob=daemonjob-suspend").is_empty());
    assert!(arena.list("pods", "daemonjob=daemonjob-paused").is_empty());
    assert!(told("daemonjob-fail-fast", "failedNodes", "BackoffLimitExceeded"));
    assert!(told("daemonjob-pause-on-failures", "pendingNodes", "MaxFailedNodesExceeded"));
    assert!(told("daemonjob-pod-failure-policy", "failedNodes", "PodFailurePolicy"));
    assert!(told("daemonjob-pending-deadline", "skippedNodes", "PendingDeadlineExceeded"));
    let tries = |run: &str| {
        !arena.list("pods", &format!("daemonjob=daemonjob-backoff,dj.dysproz.io/pod-number={run}")).is_empty()
    };
    assert!(tries("2") && !tries("3"), "a second try and no third one");
    let pods = arena.list("pods", "daemonjob=daemonjob-control-plane");
    assert!(pods.iter().any(|pod| pod["spec"]["nodeName"] == *node), "{pods:#?}");
    let network = arena.list("pods", "daemonjob=daemonjob-host-network");
    assert!(network.iter().all(|pod| pod["spec"]["hostNetwork"] == true) && !network.is_empty());
    arena.wait("finished pods go after their time", || {
        arena.list("pods", "daemonjob=daemonjob-ttl").is_empty()
    });
    let records = arena.list("configmaps", "daemonjob=daemonjob-ttl");
    let lines = records.iter().flat_map(|shard| shard["data"].as_object().unwrap().values());
    assert!(
        lines.filter(|line| line.as_str().unwrap().contains(" outcome=Succeeded ")).count()
            >= arena.cluster().nodes()
    );

    // Both that wait go on as their comments say.
    for (name, field) in [("daemonjob-suspend", "suspend"), ("daemonjob-paused", "paused")] {
        arena.patch("daemonjob", name, &json!({ "spec": { field: false } }));
        arena.wait_for("daemonjob", name, "it is complete", is_complete);
    }
}

/// The CronJob is real, and so are the Job that is made from it and what its ServiceAccount may do. The Job's pod is
/// simulated: its command is run here.
#[test]
fn the_schedule_runs_every_node_again() {
    let arena = Arena::new("ds-schedule");
    let _manager = arena.manager("daemonjob");
    let file = workspace().join("samples/daemonjob/schedule.yaml");
    let kinds: Vec<Value> =
        apply(&arena, file.to_str().unwrap()).into_iter().map(|mut one| one["kind"].take()).collect();
    assert_eq!(kinds, ["DaemonJob", "CronJob", "Role", "ServiceAccount", "RoleBinding"]);
    let name = "daemonjob-nightly";
    let first = arena.wait_for("daemonjob", name, "it is complete", is_complete);

    arena.kubectl(&["create", "job", "--from=cronjob/daemonjob-nightly", "tonight"]).unwrap();
    arena.wait("the Job has its pod", || {
        !arena.list("pods", "batch.kubernetes.io/job-name=tonight").is_empty()
    });
    let pod = arena.list("pods", "batch.kubernetes.io/job-name=tonight").remove(0);
    let container = &pod["spec"]["containers"][0];
    let field = container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap();
    let label = field.strip_prefix("metadata.labels['").and_then(|rest| rest.strip_suffix("']")).unwrap();
    let job = pod["metadata"]["labels"][label].as_str().expect("the Job controller labels its pods");
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let user = format!("--as=system:serviceaccount:{}:{account}", arena.namespace());
    let command: Vec<String> = container["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap().replace("$(JOB_NAME)", job))
        .collect();
    assert_eq!(command[0], "kubectl");
    let patch = || {
        let mut args = vec![user.as_str()];
        args.extend(command[1..].iter().map(String::as_str));
        arena.kubectl(&args).unwrap()
    };
    assert!(patch().contains("patched"));
    arena.wait_for("daemonjob", name, "it has run again", |job| {
        is_complete(job) && job["status"]["templateHash"] != first["status"]["templateHash"]
    });
    // A Job that tries again says the same, which is no change.
    assert!(patch().contains("no change"));
    let may = |name: &str| {
        arena.kubectl(&[&user, "auth", "can-i", "patch", &format!("daemonjobs.dj.dysproz.io/{name}")]).is_ok()
    };
    assert!(may(name) && !may("another"), "it may change one DaemonJob only");
}
