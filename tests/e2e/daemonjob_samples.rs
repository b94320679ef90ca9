//! The samples of DaemonJob end as their comments state.
//!
//! Nodes are simulated: the cluster's, which have the label that the samples select, and a control plane
//! node. Annotations in the samples script the duration and the exit code of containers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use quintet_e2e::{TestEnv, condition, workspace};
use serde_json::{Value, json};

use crate::daemonjob::is_complete;
use crate::daemonjob_ledger::runs;

/// The line of a sample with its final condition: `# Ends as: CONDITION (REASON)`.
const PROMISE: &str = "# Ends as: ";

/// The final condition of a sample without that line: the tutorial's, which stays unchanged.
const USUAL: &str = "Complete (AllNodesDone)";

/// The manifests of a kind's folder, sorted by name.
pub(crate) fn samples(kind: &str) -> Vec<PathBuf> {
    let folder = workspace().join("samples").join(kind);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// The final condition and its reason, from the sample's comment.
pub(crate) fn promise(text: &str, usual: &str) -> (String, String) {
    let promise = text.lines().find_map(|line| line.strip_prefix(PROMISE)).unwrap_or(usual);
    let (condition, reason) = promise.split_once(" (").expect("CONDITION (REASON)");
    (condition.to_owned(), reason.strip_suffix(')').expect("CONDITION (REASON)").to_owned())
}

/// Applies a manifest and returns the API server's objects.
fn apply(env: &TestEnv, file: &str) -> Vec<Value> {
    let answer =
        env.kubectl(&["apply", "-f", file, "-o", "json"]).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut answer: Value = serde_json::from_str(&answer).unwrap();
    match answer["items"].take() {
        Value::Array(items) => items,
        _ => vec![answer],
    }
}

#[test]
fn every_sample_ends_as_its_comment_states() {
    let env = TestEnv::new("ds-all");
    let node = env.node("control-plane");
    let role = "node-role.kubernetes.io/control-plane";
    env.kubectl(&["label", "node", &node, &format!("{role}=")]).unwrap();
    env.kubectl(&["taint", "node", &node, &format!("{role}=:NoSchedule")]).unwrap();
    let _manager = env.manager_with("manager", "daemonjob", &[&env.node_marks()]);
    // Nodes of other tests come and go, and a final condition may change again, so a watch keeps each status.
    let watch = env.watch("daemonjobs.dj.dysproz.io", "");

    let mut made: BTreeMap<(String, String), PathBuf> = BTreeMap::new();
    let mut promises = Vec::new();
    for file in samples("daemonjob") {
        let text = fs::read_to_string(&file).unwrap();
        let is_tutorial = file.file_name().is_some_and(|name| name == "daemonjob-sample.yaml");
        assert!(text.contains(PROMISE) != is_tutorial, "{}: needs a line \"{PROMISE}…\"", file.display());
        let (type_, reason) = promise(&text, USUAL);
        let mut jobs = 0;
        for object in apply(&env, file.to_str().unwrap()) {
            let part = |member: &Value| member.as_str().unwrap().to_owned();
            let (kind, name) = (part(&object["kind"]), part(&object["metadata"]["name"]));
            if kind == "DaemonJob" {
                jobs += 1;
                promises.push((name.clone(), type_.clone(), reason.clone()));
            }
            let other = made.insert((kind, name), file.clone());
            assert!(other.is_none(), "{} repeats {}", file.display(), other.unwrap().display());
        }
        assert_eq!(jobs, 1, "{}", file.display());
    }
    assert!(promises.len() > 15, "only {} samples were found", promises.len());

    for (name, type_, reason) in promises {
        env.wait(&format!("{name} is {type_} ({reason})"), || {
            watch.events().iter().any(|(_, job)| {
                job["metadata"]["name"] == *name
                    && job["status"]["observedGeneration"] == job["metadata"]["generation"]
                    && condition(job, &type_) == ("True".to_owned(), reason.clone())
            })
        });
    }

    // The further results that the comments describe.
    let has_listed = |name: &str, list: &str, reason: &str| {
        watch.events().iter().any(|(_, job)| {
            let nodes = job["status"][list].as_array();
            job["metadata"]["name"] == *name
                && nodes.is_some_and(|nodes| nodes.iter().any(|node| node["reason"] == *reason))
        })
    };
    assert!(env.list("pods", "daemonjob=daemonjob-suspend").is_empty());
    assert!(env.list("pods", "daemonjob=daemonjob-paused").is_empty());
    assert!(has_listed("daemonjob-fail-fast", "failedNodes", "BackoffLimitExceeded"));
    assert!(has_listed("daemonjob-pause-on-failures", "pendingNodes", "MaxFailedNodesExceeded"));
    assert!(has_listed("daemonjob-pod-failure-policy", "failedNodes", "PodFailurePolicy"));
    assert!(has_listed("daemonjob-pending-deadline", "skippedNodes", "PendingDeadlineExceeded"));
    let has_attempt = |run: &str| {
        !env.list("pods", &format!("daemonjob=daemonjob-backoff,dj.dysproz.io/pod-number={run}")).is_empty()
    };
    assert!(has_attempt("2") && !has_attempt("3"), "a second attempt and no third");
    let pods = env.list("pods", "daemonjob=daemonjob-control-plane");
    assert!(pods.iter().any(|pod| pod["spec"]["nodeName"] == *node), "{pods:#?}");
    let network = env.list("pods", "daemonjob=daemonjob-host-network");
    assert!(network.iter().all(|pod| pod["spec"]["hostNetwork"] == true) && !network.is_empty());
    let annotated = |node: &Value| node["metadata"]["annotations"].to_string();
    let job = env.get("daemonjob", "daemonjob-on-success").unwrap();
    let record = format!("dj.dysproz.io/marked-{}", job["metadata"]["uid"].as_str().unwrap());
    let prepared = env.list("nodes", "app=v1,example.com/prepared=true");
    let marked = prepared.iter().filter(|node| annotated(node).contains(&record));
    assert_eq!(marked.count(), env.cluster().nodes());
    env.wait("finished pods are deleted after their ttl", || {
        env.list("pods", "daemonjob=daemonjob-ttl").is_empty()
    });
    let records = env.list("configmaps", "daemonjob=daemonjob-ttl");
    let lines = records.iter().flat_map(|shard| shard["data"].as_object().unwrap().values());
    assert!(
        lines.filter(|line| line.as_str().unwrap().contains(" outcome=Succeeded ")).count()
            >= env.cluster().nodes()
    );

    // The wave continues as its comment states, and the two held jobs too.
    env.patch(
        "daemonjob",
        "daemonjob-waves",
        &json!({ "metadata": { "annotations": { "dj.dysproz.io/approved": "1/1" } } }),
    );
    env.wait_for("daemonjob", "daemonjob-waves", "it is complete", is_complete);
    for (name, field) in [("daemonjob-suspend", "suspend"), ("daemonjob-paused", "paused")] {
        env.patch("daemonjob", name, &json!({ "spec": { field: false } }));
        env.wait_for("daemonjob", name, "it is complete", is_complete);
    }
}

/// With a schedule of each minute instead of each night, the sample runs once at the next due time.
#[test]
fn schedule_runs_at_its_due_time() {
    let env = TestEnv::new("ds-schedule");
    let manager = env.manager("daemonjob");
    let file = workspace().join("samples/daemonjob/schedule.yaml");
    let made = apply(&env, file.to_str().unwrap());
    assert_eq!(made.iter().map(|one| one["kind"].clone()).collect::<Vec<_>>(), ["DaemonJob"]);
    let name = "daemonjob-nightly";
    let waits = env.wait_for("daemonjob", name, "it waits", |job| {
        condition(job, "Ready") == ("True".to_owned(), "WaitsForDueTime".to_owned())
    });
    assert!(
        waits["status"]["schedule"]["nextDueTime"].as_str().is_some_and(|next| next.ends_with(":30:00Z"))
    );
    assert!(env.created_pods().is_empty());

    env.patch("daemonjob", name, &json!({ "spec": { "schedule": "* * * * *" } }));
    let job = env.wait_for("daemonjob", name, "it is complete", |job| {
        is_complete(job) && job["status"]["history"][0]["result"] == "Complete"
    });
    env.patch("daemonjob", name, &json!({ "spec": { "suspend": true } }));
    env.wait("the metrics count the run", || {
        manager.metrics().unwrap().contains("quintet_daemonjob_due_times_total{result=\"Complete\"} ")
    });
    let due = job["status"]["rollout"]["dueTime"].as_str().unwrap();
    assert!(due.ends_with(":00Z") && job["status"]["history"][0]["dueTime"] == due, "{:#}", job["status"]);
    let pods = env.list("pods", &format!("daemonjob={name}"));
    assert!(pods.iter().all(|pod| pod["metadata"]["annotations"]["dj.dysproz.io/due-time"] == due));
    // Another test may have created a node meanwhile.
    let nodes = usize::try_from(job["status"]["succeeded"].as_u64().unwrap()).unwrap();
    assert_eq!((pods.len(), runs(&env)), (nodes, vec![nodes]));
    assert!(nodes >= env.cluster().nodes(), "{nodes}");
}
