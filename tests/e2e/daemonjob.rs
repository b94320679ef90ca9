//! DaemonJob on simulated nodes: one pod on every eligible node.

use std::collections::BTreeMap;
use std::time::Duration;

use quintet_e2e::{TestEnv, condition, has_made_a_pass};
use serde_json::{Value, json};

use crate::daemonjob_ledger::{held, running, told, word};

pub(crate) fn daemonjob(env: &TestEnv, name: &str, spec: &Value) -> Value {
    let mut job = json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name },
        "spec": { "template": { "spec": {
            "containers": [{ "name": "c", "image": "busybox", "command": ["true"] }],
            "nodeSelector": { "env": env.namespace() },
        } } },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

/// The number of existing pods of a DaemonJob, by node.
pub(crate) fn pods_by_node(env: &TestEnv, name: &str) -> BTreeMap<String, usize> {
    let mut pods = BTreeMap::new();
    for pod in env.list("pods", &format!("daemonjob={name}")) {
        let node = pod["metadata"]["annotations"]["dj.dysproz.io/node-name"].as_str().unwrap_or_default();
        *pods.entry(node.to_owned()).or_insert(0) += 1;
    }
    pods
}

pub(crate) fn is_complete(job: &Value) -> bool {
    condition(job, "Complete").0 == "True"
}

#[test]
fn runs_once_on_every_node_and_on_late_nodes() {
    let env = TestEnv::new("dj-once");
    let nodes: Vec<String> = ["a", "b", "c"].iter().map(|name| env.node(name)).collect();
    let _manager = env.manager("daemonjob");
    env.apply(&daemonjob(&env, "once", &json!({}))).unwrap();
    env.kubectl(&["wait", "--for=condition=Complete", "daemonjob/once", "--timeout=90s"]).unwrap();
    let job = env.get("daemonjob", "once").unwrap();
    assert_eq!(job["status"]["succeeded"], 3, "{job:#}");
    assert_eq!(job["status"]["desired"], 3);
    let ran = pods_by_node(&env, "once");
    assert_eq!(ran, nodes.iter().map(|node| (node.clone(), 1)).collect());
    for pod in env.list("pods", "daemonjob=once") {
        // The scheduler bound the pod to the node of its annotation.
        assert_eq!(pod["spec"]["nodeName"], pod["metadata"]["annotations"]["dj.dysproz.io/node-name"]);
    }
    let row = env.kubectl(&["get", "dj", "once", "--no-headers"]).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[..6], ["once", "3", "0", "3", "0", "AllNodesDone"], "{row}");

    // Changes of a done node start no pod.
    let before = env.writes();
    for node in &nodes {
        env.kubectl(&["label", "node", node, "touched=yes"]).unwrap();
        env.kubectl(&["cordon", node]).unwrap();
        env.kubectl(&["uncordon", node]).unwrap();
    }
    // A late node gets the only new pod.
    let late = env.node("d");
    env.wait_for("daemonjob", "once", "the late node has succeeded", |job| {
        is_complete(job) && job["status"]["succeeded"] == 4
    });
    let ran = pods_by_node(&env, "once");
    assert_eq!(ran.values().copied().collect::<Vec<_>>(), [1; 4], "{ran:?}");
    assert!(ran.contains_key(&late));
    let creates = env.writes().iter().filter(|write| write.starts_with("create pods")).count();
    assert_eq!(creates, before.iter().filter(|write| write.starts_with("create pods")).count() + 1);

    // Deletion removes the pods.
    env.kubectl(&["delete", "daemonjob", "once", "--timeout=60s"]).unwrap();
    env.wait("the pods are gone", || env.list("pods", "daemonjob=once").is_empty());
}

#[test]
fn runs_the_tutorials_sample_and_respects_taints() {
    let env = TestEnv::new("dj-sample");
    let _manager = env.manager("daemonjob");
    // The cluster's simulated nodes have the label app=v1 that the sample selects.
    env.apply_sample("daemonjob/daemonjob-sample.yaml").unwrap();
    env.kubectl(&["wait", "--for=condition=Complete", "daemonjob/daemonjob-sample", "--timeout=90s"])
        .unwrap();
    let job = env.get("daemonjob", "daemonjob-sample").unwrap();
    assert_eq!(job["status"]["succeeded"], env.cluster().nodes());

    let tainted = env.node("tainted");
    let free = env.node("free");
    env.kubectl(&["taint", "node", &tainted, "special=yes:NoSchedule"]).unwrap();
    env.wait_for("node", &tainted, "the node has its taint", |node| node["spec"]["taints"].is_array());
    // Nodes and DaemonJobs have separate watches, so the job is paused until the taint is seen.
    env.apply(&daemonjob(&env, "plain", &json!({ "paused": true }))).unwrap();
    env.wait_for("daemonjob", "plain", "the manager sees the taint", |job| {
        word(job, "skippedNodes", &tainted) == "Tainted"
    });
    env.patch("daemonjob", "plain", &json!({ "spec": { "paused": false } }));
    env.wait_for("daemonjob", "plain", "it is complete without the tainted node", |job| {
        is_complete(job) && job["status"]["desired"] == 1
    });
    assert_eq!(pods_by_node(&env, "plain").into_keys().collect::<Vec<_>>(), [free]);
    env.kubectl(&["taint", "node", &tainted, "special-"]).unwrap();
    env.wait_for("daemonjob", "plain", "the node without its taint has succeeded too", |job| {
        is_complete(job) && job["status"]["succeeded"] == 2
    });
}

#[test]
fn counts_failures_for_each_node() {
    let env = TestEnv::new("dj-fail");
    env.node("a");
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "fails", &json!({ "backoffLimit": 0 }));
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("3");
    env.apply(&job).unwrap();
    let job = env.wait_for("daemonjob", "fails", "it has failed", |job| condition(job, "Failed").0 == "True");
    assert_eq!(condition(&job, "Failed").1, "NodesFailed");
    assert_eq!((&job["status"]["failed"], &job["status"]["desired"]), (&json!(1), &json!(1)));
    assert_eq!(pods_by_node(&env, "fails").values().sum::<usize>(), 1);
}

#[test]
fn reruns_a_changed_template_and_writes_nothing_at_restart() {
    let env = TestEnv::new("dj-again");
    env.node("a");
    env.node("b");
    let manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "again", &json!({}));
    env.apply(&job).unwrap();
    let first = env.wait_for("daemonjob", "again", "it is complete", is_complete);
    job["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "again", "it is complete again", |job| {
        is_complete(job) && job["status"]["templateHash"] != first["status"]["templateHash"]
    });
    // The manager deletes the pods of the first run, which it no longer needs, and releases the others.
    env.wait("only the second run's pods exist, without finalizers", || {
        let is_last = |pod: &Value| pod["metadata"]["labels"]["dj.dysproz.io/pod-number"] == "2";
        let pods = env.list("pods", "daemonjob=again");
        pods.len() == 2 && pods.iter().all(|pod| is_last(pod) && pod["metadata"]["finalizers"].is_null())
    });

    assert_eq!(manager.stop().unwrap(), Some(0), "the manager exits with 0");
    let before = env.writes_at_rest();
    let manager = env.manager("daemonjob");
    env.wait("the restarted manager has reconciled the job", || has_made_a_pass(&manager, "daemonjob"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(env.writes(), before, "a reconcile without a change writes nothing");
}

#[test]
fn waits_for_the_pods_of_its_deleted_predecessor() {
    let env = TestEnv::new("dj-replaced");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let job = held(&env, "replaced", &json!({}));
    env.apply(&job).unwrap();
    let old: Vec<String> = nodes.iter().map(|node| running(&env, "replaced", node, 1)).collect();
    let ends_late = json!({"metadata": {"annotations": {"kwok.quintet.dev/stop-seconds": "10"}}});
    env.patch("pod", &old[0], &ends_late);
    env.kubectl(&["delete", "daemonjob/replaced", "--cascade=background"]).unwrap();
    env.apply(&job).unwrap();
    let job = env.wait_for("daemonjob", "replaced", "the first node waits", |job| {
        word(job, "pendingNodes", &nodes[0]) == "PreviousPodTerminating"
    });
    assert!(told(&job, "pendingNodes", &nodes[0]).unwrap().1.contains(&old[0]));
    running(&env, "replaced", &nodes[1], 1);
    assert_eq!(env.created_pods().len(), 3, "the first node has no second pod");
    running(&env, "replaced", &nodes[0], 1);
    assert!(env.created_pods().values().all(|times| *times == 1));
}

#[test]
fn reports_a_rejected_template_and_backs_off() {
    let env = TestEnv::new("dj-refused");
    env.node("a");
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "refused", &json!({}));
    // The schema accepts the template, but the API server rejects the pod.
    job["spec"]["template"]["spec"]["containers"][0]["name"] = json!("Not_A_Name");
    env.apply(&job).unwrap();
    let refused = env.wait_for("daemonjob", "refused", "the status reports the rejection", |job| {
        condition(job, "PodsRefused").0 == "True"
    });
    // A dry run finds the error before the manager creates a pod.
    assert_eq!(condition(&refused, "PodsRefused").1, "TemplateInvalid");
    assert_eq!(condition(&refused, "Complete"), ("False".into(), "TemplateInvalid".into()));
    assert!(refused["status"].to_string().contains("Not_A_Name"), "the API server's message: {refused:#}");
    env.wait("a Warning is recorded", || {
        env.kubectl(&["get", "events.events.k8s.io", "-o", "json"])
            .is_ok_and(|events| events.contains("TemplateInvalid") && events.contains("Not_A_Name"))
    });
    std::thread::sleep(Duration::from_secs(5));
    let dry_runs = env.dry_runs();
    assert!((1..=2).contains(&dry_runs), "{dry_runs} dry runs in a few seconds");
    assert!(!env.writes().iter().any(|write| write.starts_with("create pods")), "{:?}", env.writes());
    // The corrected template runs.
    job["spec"]["template"]["spec"]["containers"][0]["name"] = json!("a-name");
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "refused", "the corrected job is complete", is_complete);
}

#[test]
fn admission_rejects_bad_input() {
    let env = TestEnv::new("dj-bad");
    let refusal = |spec: &Value| {
        let job = json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": { "name": "bad" }, "spec": spec });
        env.apply(&job).unwrap_err()
    };
    assert!(refusal(&json!({})).contains("template"));
    let text = refusal(&json!({ "template": { "spec": { "containers": [] } } }));
    assert!(text.contains("must list at least one container"), "{text}");
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let text = refusal(&json!({ "template": template, "backoffLimit": -1 }));
    assert!(text.contains("backoffLimit"), "{text}");
    let long = json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": "x".repeat(64) }, "spec": { "template": template } });
    let text = env.apply(&long).unwrap_err();
    assert!(text.contains("63 characters"), "{text}");
}

/// Prints the number of writes for a DaemonJob: at most one creation a pod and one status write a second.
#[test]
fn writes_little_for_a_hundred_nodes() {
    let env = TestEnv::new("dj-hundred");
    let nodes = 100;
    env.nodes(0..nodes);
    let _manager = env.manager("daemonjob");
    let began = std::time::Instant::now();
    env.apply(&daemonjob(&env, "hundred", &json!({}))).unwrap();
    env.wait_for("daemonjob", "hundred", "it is complete", |job| {
        is_complete(job) && job["status"]["succeeded"] == nodes
    });
    let seconds = began.elapsed().as_secs();
    // The manager releases each recorded pod with one write, after a quiet time.
    let is_held = |pod: &Value| !pod["metadata"]["finalizers"].is_null();
    env.wait("the pods are released", || !env.list("pods", "daemonjob=hundred").iter().any(is_held));
    let writes = env.writes_at_rest();
    let creates = writes.iter().filter(|write| *write == "create pods 201").count();
    let releases = writes.iter().filter(|write| *write == "patch pods 200").count();
    let statuses = writes.iter().filter(|write| write.starts_with("patch daemonjobs/status")).count();
    let ledger = writes.iter().filter(|write| *write == "create configmaps 201").count();
    println!(
        "{nodes} nodes: {} writes: {creates} creations, {statuses} statuses, {ledger} of the ledger, {releases} releases, in {seconds} s",
        writes.len()
    );
    assert_eq!((creates, releases), (nodes, nodes));
    assert!(ledger <= 16, "{ledger} shards");
    assert_eq!(creates + statuses + ledger + releases, writes.len(), "{writes:?}");
    assert!(statuses as u64 <= seconds + 3, "{statuses} status writes in {seconds} s");
}
