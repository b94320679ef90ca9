//! DaemonJob's rules when its pods break nodes.
//!
//! The images of these tests cannot harm a node, so the test acts once a pod runs. It unplugs the node (the
//! kubelet is silent while the pod runs), kills the node, or boots it.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use quintet_e2e::condition;
use serde_json::{Value, json};

use crate::site::Site;

/// Longer than the manager needs to react, and than a node needs to be lost.
pub(crate) const A_WHILE: Duration = Duration::from_secs(15);

/// A job on the nodes from `node-2`. The managers run on `node-1`.
pub(crate) fn job(name: &str, command: &[&str], spec: &Value) -> Value {
    let mut job = json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "OnFailure", "nodeSelector": { "work": "yes" },
            "containers": [{ "name": "work", "image": "busybox", "command": command }] } } } });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

fn paused_by_policy(max_failed: i32) -> Value {
    json!({ "parallelism": 1, "backoffLimit": 0, "failurePolicy": { "type": "Pause", "maxFailedNodes": max_failed,
        "nodeLostAfterSeconds": 20 } })
}

/// A cluster with the managers on the first node and this number of further nodes.
pub(crate) fn site(purpose: &str, workers: u8) -> Site {
    let site = Site::new(purpose, usize::from(workers) + 1);
    let names: Vec<String> = (2..=workers + 1).map(|number| format!("node-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    site.kubectl(&[&["cordon"], &names[..]].concat()).unwrap();
    site.install(&[]);
    site.kubectl(&[&["uncordon"], &names[..]].concat()).unwrap();
    site.kubectl(&[&["label", "node"], &names[..], &["work=yes"]].concat()).unwrap();
    site
}

pub(crate) fn is_ready(site: &Site, node: &str) -> bool {
    condition(&site.get("node", node), "Ready").0 == "True"
}

/// The nodes that had a pod of the job, while the pods exist.
pub(crate) fn touched(site: &Site, name: &str) -> BTreeSet<String> {
    let pods = site.list("pods", &format!("daemonjob={name}"));
    let node =
        |pod: &Value| pod["metadata"]["annotations"]["dj.dysproz.io/node-name"].as_str().unwrap().to_owned();
    pods.iter().map(node).collect()
}

/// Waits for a running container of the job on a node outside `but`. Returns the number of the node.
fn next_running(site: &Site, name: &str, but: &BTreeSet<String>) -> u8 {
    let find = || {
        let pods = site.list("pods", &format!("daemonjob={name}"));
        let runs = |pod: &&Value| {
            pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
                && !but.contains(pod["spec"]["nodeName"].as_str().unwrap_or_default())
        };
        pods.iter().find(runs).map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
    };
    site.wait(&format!("{name} runs on a node besides {but:?}"), || find().is_some());
    find().unwrap().strip_prefix("node-").unwrap().parse().unwrap()
}

pub(crate) fn paused_for(site: &Site, name: &str) -> String {
    let job = site.get("daemonjob", name);
    let message = job["status"]["conditions"].as_array().into_iter().flatten();
    let mut paused = message.filter(|one| one["type"] == "Paused" && one["status"] == "True");
    paused
        .next()
        .map(|one| format!("{} {}", one["reason"].as_str().unwrap(), one["message"].as_str().unwrap()))
        .unwrap_or_default()
}

#[test]
fn a_job_that_breaks_its_nodes_stops_at_max_failed_nodes() {
    let mut site = site("real-broken", 3);
    // The kubelet is silent while the pod runs.
    site.apply(&job("silences", &["sleep", "600"], &paused_by_policy(0)));
    let first = next_running(&site, "silences", &BTreeSet::new());
    let begin = Instant::now();
    site.cluster().plug_node(first, false).unwrap();
    let node = format!("node-{first}");
    site.wait("the node is lost", || {
        let job = site.get("daemonjob", "silences");
        job["status"]["failedNodes"][0]["node"] == *node
            && job["status"]["failedNodes"][0]["reason"] == "NodeLost"
    });
    println!("a silent node is lost after {:.1} s", begin.elapsed().as_secs_f64());
    sleep(A_WHILE);
    assert_eq!(touched(&site, "silences"), [node.clone()].into(), "one node more than the limit of 0");
    let paused = paused_for(&site, "silences");
    assert!(paused.starts_with("MaxFailedNodesExceeded 1 node failed (1 lost)"), "{paused}");
    assert_eq!(condition(&site.get("daemonjob", "silences"), "Failed").0, "False");

    // The node recovers: its pod still runs, so the others still wait for a slot.
    site.cluster().plug_node(first, true).unwrap();
    site.wait("the node is Ready again", || is_ready(&site, &node));
    site.wait("the job is no longer paused", || paused_for(&site, "silences").is_empty());
    sleep(Duration::from_secs(5));
    assert_eq!(touched(&site, "silences"), [node].into(), "parallelism is 1");
    site.kubectl(&["delete", "daemonjob", "silences"]).unwrap();
    site.wait("the pods are gone", || site.list("pods", "daemonjob=silences").is_empty());

    // The node dies and its Node is deleted at once, as auto-repair does.
    site.apply(&job("kills", &["sleep", "600"], &paused_by_policy(0)));
    let second = next_running(&site, "kills", &BTreeSet::new());
    site.cluster().kill_node(second).unwrap();
    let node = format!("node-{second}");
    site.kubectl(&["delete", "node", &node]).unwrap();
    site.wait("the deleted node counts as failed", || {
        paused_for(&site, "kills").starts_with("MaxFailedNodesExceeded 1 node failed (1 deleted)")
    });
    // The pod disappears with its node despite its finalizer.
    site.wait("the pod of the deleted node is gone", || site.list("pods", "daemonjob=kills").is_empty());
    sleep(A_WHILE);
    assert!(touched(&site, "kills").is_empty(), "no further node has a pod: {:?}", site.pods_of("kills"));
    let paused = paused_for(&site, "kills");
    assert!(paused.contains("(1 deleted)") && paused.contains("spec.retryToken"), "{paused}");
    // A higher limit allows one more node.
    let one_more = r#"{"spec":{"failurePolicy":{"maxFailedNodes":1}}}"#;
    site.kubectl(&["patch", "daemonjob", "kills", "--type=merge", "-p", one_more]).unwrap();
    let third = next_running(&site, "kills", &BTreeSet::new());
    sleep(Duration::from_secs(5));
    assert_eq!(touched(&site, "kills"), [format!("node-{third}")].into());
}

#[test]
fn a_rejected_pod_is_not_an_attempt_and_a_reboot_keeps_its_slot() {
    let mut site = site("real-reboot", 2);
    // nodeName bypasses the scheduler, so the kubelet must reject a pod that does not fit.
    let cpus = site.get("node", "node-2")["status"]["allocatable"]["cpu"].as_str().unwrap().to_owned();
    let asks = |cpus: &str| json!({ "requests": { "cpu": cpus } });
    site.apply(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "filler", "namespace": "default" },
        "spec": { "nodeName": "node-2", "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "busybox",
            "command": ["sleep", "600"], "resources": asks(&cpus) }] } }));
    site.wait("the node is full", || site.get("pod", "filler")["status"]["phase"] == "Running");
    let mut rejected = job("rejected", &["true"], &json!({ "backoffLimit": 0 }));
    rejected["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    rejected["spec"]["template"]["spec"]["nodeName"] = json!("node-2");
    rejected["spec"]["template"]["spec"]["containers"][0]["resources"] = asks("100m");
    site.apply(&rejected);
    site.wait("the status has the kubelet's message", || {
        let job = site.get("daemonjob", "rejected");
        let waits = &job["status"]["pendingNodes"][0];
        waits["reason"] == "Rejected" && waits["message"].as_str().is_some_and(|words| words.contains("cpu"))
    });
    let job_then = site.get("daemonjob", "rejected");
    assert_eq!(
        (&job_then["status"]["failed"], condition(&job_then, "Failed").0),
        (&json!(0), "False".to_owned())
    );
    site.kubectl(&["delete", "pod", "filler", "--grace-period=0", "--force"]).unwrap();
    site.wait("the job completes once there is room", || {
        let job = site.get("daemonjob", "rejected");
        condition(&job, "Complete").0 == "True"
            && job["status"]["succeeded"] == 1
            && job["status"]["failed"] == 0
    });

    // Each node dies while its pod runs and boots again, as if the pod had rebooted it. One node at a time.
    site.apply(&job(
        "reboots",
        &["sleep", "45"],
        &json!({ "parallelism": 1, "failurePolicy": { "type": "Pause" } }),
    ));
    let mut booted = BTreeSet::new();
    for _ in 0..2 {
        let number = next_running(&site, "reboots", &booted);
        let node = format!("node-{number}");
        booted.insert(node.clone());
        site.cluster().kill_node(number).unwrap();
        site.wait("the node is down", || !is_ready(&site, &node));
        sleep(A_WHILE);
        let others = touched(&site, "reboots");
        assert_eq!(others, booted, "no further node has a pod while {node} is down");
        let job = site.get("daemonjob", "reboots");
        let waits = job["status"]["pendingNodes"].as_array().unwrap().iter().find(|one| one["node"] == *node);
        let waits = waits.unwrap_or_else(|| panic!("{node} is not pending: {:#}", job["status"]));
        assert_eq!(waits["reason"], "NotReadySinceAttempt");
        assert!(waits["message"].as_str().unwrap().contains("holds 1 of 1 slots"), "{waits}");
        site.cluster().boot_node(number).unwrap();
    }
    site.wait("both nodes have succeeded", || {
        let job = site.get("daemonjob", "reboots");
        condition(&job, "Complete").0 == "True" && job["status"]["succeeded"] == 2
    });
}
