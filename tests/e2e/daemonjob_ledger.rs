//! The ledger and the finalizer of a DaemonJob's pods: an outcome survives its pod, and no deletion hangs.
//!
//! All nodes are simulated. Drains, evictions by the API, deletions, garbage collection and the scheduler are
//! real. kwok (`tests/controlplane/stages`) or writes of a status play the kubelet.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use quintet_daemonjob::ledger::id_digest;
use quintet_e2e::{PATIENCE, TestEnv, condition, program};
use quintet_localcluster::{chart, run};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};

/// The finalizer of a DaemonJob's pods.
const FINALIZER: &str = "dj.dysproz.io/ledger";
/// The label of the ledger's ConfigMaps.
const LEDGER: &str = "dj.dysproz.io/ledger";

/// A DaemonJob whose pods run until [`end`] releases them.
pub(crate) fn held(env: &TestEnv, name: &str, spec: &Value) -> Value {
    let mut job = daemonjob(env, name, spec);
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/hold"] = json!("true");
    job
}

/// Lets held pods exit with this code.
pub(crate) fn end(env: &TestEnv, pods: &[&str], code: i32) {
    let code = format!("kwok.quintet.dev/exit-code={code}");
    let mut args = vec!["annotate", "pod"];
    args.extend(pods);
    args.extend([&*code, "kwok.quintet.dev/hold-"]);
    env.kubectl(&args).unwrap();
}

/// Waits until the pod of this node and number runs.
pub(crate) fn running(env: &TestEnv, job: &str, node: &str, number: u64) -> String {
    let selector = format!("daemonjob={job},dj.dysproz.io/pod-number={number}");
    let found =
        run::poll(&format!("pod {number} of {node} runs"), PATIENCE, Duration::from_millis(200), || {
            let pod = env.list("pods", &selector).into_iter().find(|pod| {
                pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *node
                    && pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            Ok(pod.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()))
        });
    found.unwrap_or_else(|error| panic!("{error}\n{:#}", env.get("daemonjob", job).unwrap_or_default()))
}

/// The lines of a ledger, by node name.
pub(crate) fn ledger(env: &TestEnv, job: &str) -> BTreeMap<String, String> {
    let shards = env.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
    let lines = shards.iter().flat_map(|shard| shard["data"].as_object().into_iter().flatten());
    lines
        .filter(|(uid, _)| *uid != "gone")
        .map(|(_, line)| line.as_str().unwrap().to_owned())
        .map(|line| (line.split(' ').next().unwrap().trim_start_matches("node=").to_owned(), line))
        .collect()
}

/// The number of deleted nodes that a ledger counts as failed: by their lines, or in the hourly counts.
fn deleted(env: &TestEnv, job: &str) -> usize {
    let shards = env.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
    let lines = shards.iter().flat_map(|shard| shard["data"].as_object().into_iter().flatten());
    let counts = lines.map(|(uid, line)| {
        let words = line.as_str().unwrap().split(' ');
        if uid == "gone" {
            let hours = words.filter(|word| word.starts_with("hour-"));
            hours.map(|word| word.rsplit('=').next().unwrap().parse::<usize>().unwrap()).sum()
        } else {
            usize::from(words.into_iter().any(|word| word.starts_with("gone=")))
        }
    });
    counts.sum()
}

/// The shard with the line of a node, and the key of the line.
pub(crate) fn shard_of(env: &TestEnv, job: &str, node: &str) -> (String, String) {
    let shards = env.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
    let found = shards.iter().find_map(|shard| {
        let mut lines = shard["data"].as_object()?.iter();
        let (uid, _) =
            lines.find(|(_, line)| line.as_str().unwrap().starts_with(&format!("node={node} ")))?;
        Some((shard["metadata"]["name"].as_str()?.to_owned(), uid.clone()))
    });
    found.unwrap_or_else(|| panic!("no line of {node} in {shards:#?}"))
}

/// Reason and message of a node in a list of the status.
pub(crate) fn told(job: &Value, list: &str, node: &str) -> Option<(String, String)> {
    let nodes = job["status"][list].as_array()?;
    let told = nodes.iter().find(|told| told["node"] == *node)?;
    let part = |member: &str| told[member].as_str().unwrap_or_default().to_owned();
    Some((part("reason"), part("message")))
}

/// The reason of a node in a list; empty if the list lacks the node.
pub(crate) fn word(job: &Value, list: &str, node: &str) -> String {
    told(job, list, node).unwrap_or_default().0
}

/// The number of created pods by pod number, from the audit log: `[3, 1]` is three first pods and one second
/// pod. Asserts that no pod was created twice.
pub(crate) fn runs(env: &TestEnv) -> Vec<usize> {
    by_number(env.created_pods())
}

/// As [`runs`], of the pods that were created this number of times.
pub(crate) fn by_number(created: BTreeMap<String, usize>) -> Vec<usize> {
    let mut runs = Vec::new();
    for (name, times) in created {
        assert_eq!(times, 1, "{name} was created {times} times");
        let run: usize = name.rsplit('-').next().unwrap().parse().unwrap();
        runs.resize(runs.len().max(run), 0);
        runs[run - 1] += 1;
    }
    runs
}

fn has_event(env: &TestEnv, reason: &str) {
    env.wait(&format!("the Event {reason} is recorded"), || {
        let events = env.kubectl(&["get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"]);
        events.is_ok_and(|events| events.split(' ').any(|one| one == reason))
    });
}

/// One user deletes a finished pod, another drains the nodes of a finished and of a running pod. Deletion,
/// eviction and `kubectl drain` are real.
#[test]
fn done_nodes_stay_done_without_their_pods() {
    let env = TestEnv::new("dl-drain");
    let nodes = env.nodes(["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let manager = env.manager("daemonjob");
    env.apply(&held(&env, "kept", &json!({}))).unwrap();
    let [on_a, on_b, _] = [a, b, c].map(|node| running(&env, "kept", node, 1));
    end(&env, &[&on_a, &on_b], 0);
    env.wait_for("daemonjob", "kept", "two nodes have succeeded", |job| job["status"]["succeeded"] == 2);
    assert!(ledger(&env, "kept").is_empty(), "existing pods are the record of their outcomes");
    let pod = env.get("pod", &on_a).unwrap();
    assert_eq!(pod["metadata"]["finalizers"], json!([FINALIZER]));

    env.kubectl(&["delete", "pod", &on_a, "--timeout=60s"]).unwrap();
    let line = ledger(&env, "kept")[a].clone();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 10, "{line}");
    assert!(words[1].starts_with("template=v1-"), "{line}");
    assert_eq!(words[2..6], ["rollout=1", "run=1", "pod=1", "outcome=Succeeded"], "{line}");
    let info = env.get("node", a).unwrap()["status"]["nodeInfo"].clone();
    for (word, key, id) in [(words[6], "boot", "bootID"), (words[7], "machine", "machineID")] {
        assert_eq!(word, format!("{key}={}", id_digest(info[id].as_str().unwrap())), "{line}");
    }
    assert!(words[8] == "clear=true" && words[9].starts_with("ended=2"), "{line}");

    env.kubectl(&["drain", b, "--timeout=60s"]).unwrap();
    assert!(ledger(&env, "kept")[b].contains(" pod=1 outcome=Succeeded "));
    env.kubectl(&["drain", c, "--timeout=60s"]).unwrap();
    let line = ledger(&env, "kept")[c].clone();
    // A disruption on a cordoned node does not count.
    assert!(line.contains(" pod=1 outcome=Ignored ignored=1 attempt=Disrupted/"), "{line}");
    assert!(env.list("pods", "daemonjob=kept").is_empty(), "a drained pod does not stay");
    env.wait_for("daemonjob", "kept", "the drained node is pending", |job| {
        word(job, "pendingNodes", c) == "Cordoned" && job["status"]["succeeded"] == 2
    });
    assert_eq!(runs(&env), [3]);

    // A new process continues from the ledger.
    assert_eq!(manager.stop().unwrap(), Some(0));
    let _manager = env.manager("daemonjob");
    for node in [b, c] {
        env.kubectl(&["uncordon", node]).unwrap();
    }
    end(&env, &[&running(&env, "kept", c, 2)], 0);
    let job = env.wait_for("daemonjob", "kept", "it is complete", is_complete);
    assert_eq!((&job["status"]["succeeded"], &job["status"]["failed"]), (&json!(3), &json!(0)));
    assert_eq!(runs(&env), [3, 1]);
}

/// An eviction by the node (a scripted status write) and the deletion of a pod that was never scheduled do not
/// count. The backoffLimit is 0. The scheduler is real.
#[test]
fn evicted_and_never_scheduled_pods_do_not_count() {
    let env = TestEnv::new("dl-evict");
    let node = env.node("a");
    let manager = env.manager("daemonjob");
    let watch = env.watch("daemonjobs.dj.dysproz.io", "");
    env.apply(&held(&env, "evicted", &json!({ "backoffLimit": 0 }))).unwrap();
    let mut big = daemonjob(&env, "big", &json!({ "backoffLimit": 0 }));
    big["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1000" } });
    env.apply(&big).unwrap();

    let name = running(&env, "evicted", &node, 1);
    env.patch(
        "pod/status",
        &name,
        &json!({ "status": {
            "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
            "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }],
        } }),
    );

    let is_unschedulable = |job: &Value| {
        told(job, "pendingNodes", &node)
            .is_some_and(|(word, message)| word == "Unschedulable" && message.contains("Insufficient cpu"))
    };
    env.wait_for("daemonjob", "big", "the status has the scheduler's message", is_unschedulable);
    let first = env.list("pods", "daemonjob=big").remove(0);
    let name = first["metadata"]["name"].as_str().unwrap();
    env.kubectl(&["delete", "pod", name, "--timeout=60s", "--wait=false"]).unwrap();
    env.wait("a new pod replaces it", || {
        let pods = env.list("pods", "daemonjob=big");
        pods.len() == 1 && pods[0]["metadata"]["uid"] != first["metadata"]["uid"]
    });
    let job = env.wait_for("daemonjob", "big", "it is unschedulable again", is_unschedulable);
    assert_eq!((&job["status"]["failed"], condition(&job, "Failed").0), (&json!(0), "False".to_owned()));

    watch.wait_for("the node backs off", |job| {
        job["metadata"]["name"] == "evicted" && word(job, "pendingNodes", &node) == "BackingOff"
    });
    end(&env, &[&running(&env, "evicted", &node, 2)], 0);
    let job = env.wait_for("daemonjob", "evicted", "it is complete", is_complete);
    assert_eq!(job["status"]["failed"], 0);
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_daemonjob_pod_failures_total{reason=\"Evicted\"} 1"), "{metrics}");
}

/// Nodes with a finished and a running pod are deleted, and one is created again with the same name. The
/// garbage collector of kube-controller-manager is real; it takes 40 to 80 s.
#[test]
fn runs_on_recreated_nodes_and_drops_deleted_ones() {
    let env = TestEnv::new("dl-nodes");
    let nodes = env.nodes(["gone", "stays", "swapped"]);
    let [gone, stays, swapped] = &nodes[..] else { unreachable!() };
    let _manager = env.manager("daemonjob");
    env.apply(&daemonjob(&env, "quick", &json!({}))).unwrap();
    env.apply(&held(&env, "held", &json!({}))).unwrap();
    env.wait_for("daemonjob", "quick", "it is complete", is_complete);
    for node in &nodes {
        running(&env, "held", node, 1);
    }
    let watch = env.watch("pods", "daemonjob=held");
    assert!(watch.events().len() >= 3, "the watch has begun");
    env.kubectl(&["delete", "node", gone, swapped]).unwrap();
    env.node("swapped");

    // Both jobs run once on the new machine.
    let pods_on = |job: &str, node: &str| {
        let mut pods = env.list("pods", &format!("daemonjob={job}"));
        pods.retain(|pod| pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *node);
        pods
    };
    let uid = env.get("node", swapped).unwrap()["metadata"]["uid"].clone();
    let is_for_the_new_one = |pod: &Value| pod["metadata"]["labels"]["dj.dysproz.io/node-uid"] == uid;
    env.wait_for("daemonjob", "quick", "the new node has succeeded", |job| {
        is_complete(job)
            && job["status"]["desired"] == 2
            && pods_on("quick", swapped)
                .iter()
                .any(|pod| is_for_the_new_one(pod) && pod["status"]["phase"] == "Succeeded")
    });
    env.wait("the new machine's pod has replaced the old machine's", || {
        let pods = pods_on("held", swapped);
        pods.len() == 1 && is_for_the_new_one(&pods[0]) && pods[0]["status"]["phase"] == "Running"
    });
    // Two pods never run at the same time.
    let mut live: BTreeMap<String, bool> = BTreeMap::new();
    for (_, pod) in watch.events() {
        if pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *swapped {
            let runs = !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            live.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), runs);
            assert!(live.values().filter(|live| **live).count() <= 1, "{:#?}", watch.events());
        }
    }
    let pods: Vec<String> = [stays, swapped].map(|node| running(&env, "held", node, 1)).into();
    end(&env, &pods.iter().map(String::as_str).collect::<Vec<_>>(), 0);

    // Pods of the deleted node are garbage-collected and do not delay the run.
    run::poll("the pods are garbage-collected", Duration::from_mins(3), Duration::from_secs(1), || {
        Ok((pods_on("quick", gone).is_empty() && pods_on("held", gone).is_empty()).then_some(()))
    })
    .unwrap();
    let job = env.wait_for("daemonjob", "held", "it is complete", is_complete);
    assert_eq!((&job["status"]["desired"], &job["status"]["succeeded"]), (&json!(2), &json!(2)));
    assert_eq!(runs(&env), [8], "two jobs on three nodes and on the new one");
    // Both machines of `held` ran a pod when their Nodes were deleted, and count as failed.
    assert_eq!((deleted(&env, "held"), deleted(&env, "quick")), (2, 0));
}

/// A pod for a replaced machine that starts on the new machine counts for the new one. The start is scripted.
#[test]
fn counts_a_run_for_the_machine_that_ran_it() {
    let env = TestEnv::new("dl-again");
    let node = env.node("a");
    let manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "early", &json!({}));
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/start"] = json!("never");
    env.apply(&job).unwrap();
    env.wait("the pod is bound", || {
        env.list("pods", "daemonjob=early").first().is_some_and(|pod| pod["spec"]["nodeName"] == *node)
    });
    manager.kill().unwrap();
    env.kubectl(&["delete", "node", &node]).unwrap();
    // Creation timestamps have whole seconds.
    std::thread::sleep(Duration::from_millis(1_100));
    env.node("a");
    let name = env.list("pods", "daemonjob=early")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    env.kubectl(&["annotate", "pod", &name, "kwok.quintet.dev/start-"]).unwrap();
    env.wait_for("pod", &name, "the pod has succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    let _manager = env.manager("daemonjob");
    let job = env.wait_for("daemonjob", "early", "it is complete", is_complete);
    assert_eq!((&job["status"]["desired"], &job["status"]["succeeded"]), (&json!(1), &json!(1)));
    env.wait("the new node has a line", || ledger(&env, "early").contains_key(&node));
    let uid = env.get("node", &node).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(shard_of(&env, "early", &node).1, uid);
    assert_eq!(runs(&env), [1]);
}

/// Creates a job whose pod has finished on the first node and runs on the second.
fn half_done(env: &TestEnv, name: &str, nodes: &[String]) -> [String; 2] {
    env.apply(&held(env, name, &json!({}))).unwrap();
    let pods = [running(env, name, &nodes[0], 1), running(env, name, &nodes[1], 1)];
    end(env, &[&pods[0]], 0);
    env.wait_for("daemonjob", name, "one node has succeeded", |job| job["status"]["succeeded"] == 1);
    pods
}

/// Deletes jobs with finished and running pods: foreground, background and orphan. The garbage collector is
/// real.
#[test]
fn a_deleted_daemonjob_leaves_no_finalizer() {
    let env = TestEnv::new("dl-delete");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    half_done(&env, "front", &nodes);
    half_done(&env, "back", &nodes);
    let pods = half_done(&env, "orphaned", &nodes);
    env.kubectl(&["delete", "dj", "front", "--cascade=foreground", "--timeout=60s"]).unwrap();
    assert!(env.list("pods", "daemonjob=front").is_empty(), "foreground deletion deletes the pods first");
    env.kubectl(&["delete", "dj", "back", "--cascade=background", "--timeout=60s"]).unwrap();
    env.kubectl(&["delete", "dj", "orphaned", "--cascade=orphan", "--timeout=60s"]).unwrap();
    env.wait("the pods are deleted after the job", || env.list("pods", "daemonjob=back").is_empty());
    for pod in &pods {
        let pod = env.wait_for("pod", pod, "the orphaned pod has no finalizer and no owner", |pod| {
            pod["metadata"]["finalizers"].is_null() && pod["metadata"]["ownerReferences"].is_null()
        });
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
    }
    let phases = pods.each_ref().map(|pod| env.get("pod", pod).unwrap()["status"]["phase"].clone());
    assert_eq!(phases, ["Succeeded", "Running"]);
    env.kubectl(&["delete", "pod", &pods[0], &pods[1], "--timeout=60s"]).unwrap();
    assert_eq!(runs(&env), [6]);
}

/// The namespace controller is real.
#[test]
fn a_namespace_with_daemonjobs_can_be_deleted() {
    let env = TestEnv::new("dl-space");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    half_done(&env, "one", &nodes);
    half_done(&env, "other", &nodes);
    env.kubectl(&["delete", "namespace", env.namespace(), "--timeout=80s"]).unwrap();
    assert_eq!(runs(&env), [4], "the deletion creates no pod");
}

/// With the kind switched off, deleted pods and the DaemonJob still disappear.
#[test]
fn switched_off_kind_does_not_hold_pods() {
    let env = TestEnv::new("dl-off");
    let nodes = env.nodes(["a", "b"]);
    let manager = env.manager("daemonjob");
    let pods = half_done(&env, "off", &nodes);
    half_done(&env, "rest", &nodes);
    manager.kill().unwrap();
    let _manager = env.manager_with("other", "podset", &[]);
    // Managers of other tests would release the pods too, but only after a minute.
    env.kubectl(&["delete", "pod", &pods[0], &pods[1], "--timeout=30s"]).unwrap();
    for pod in env.list("pods", "daemonjob=rest") {
        assert_eq!(pod["metadata"]["finalizers"], json!([FINALIZER]), "other pods keep it");
    }
    env.kubectl(&["delete", "dj", "off", "rest", "--timeout=60s"]).unwrap();
    env.wait("all pods are gone", || env.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
}

/// Deletes the definition, and every DaemonJob with it, while the manager runs and while none runs. The manager
/// also removes the finalizer of a Greeting, for which its definition waits. Uses a separate cluster.
#[test]
fn deleted_definition_does_not_hold_pods() {
    const DEFINITION: &str = "crd/daemonjobs.dj.dysproz.io";
    let env = TestEnv::alone("dl-crd");
    let nodes = env.nodes(["a", "b"]);
    let no_pods = || env.list("pods", "quintet.dev/kind=DaemonJob").is_empty();
    // If the owner's type is gone, the garbage collector may keep the pods; then the user deletes them.
    let delete = |pods: &[String; 2]| env.kubectl(&["delete", "pod", &pods[0], &pods[1], "--wait=false"]);
    let manager = env.manager("daemonjob,greeting");
    env.apply_sample("greeting/hello-world.yaml").unwrap();
    env.wait_for("greeting", "hello-world", "it has a finalizer", |greeting| {
        greeting["metadata"]["finalizers"].is_array()
    });
    env.kubectl(&["delete", "crd/greetings.example.com", "--timeout=60s"]).unwrap();
    let pods = half_done(&env, "seen", &nodes);
    env.kubectl(&["delete", DEFINITION, "--timeout=60s"]).unwrap();
    let _ = delete(&pods);
    env.wait("the pods are deleted with their DaemonJob", no_pods);

    chart::install(env.kube()).unwrap();
    env.wait("the type is served again", || env.kubectl(&["get", "daemonjobs.dj.dysproz.io"]).is_ok());
    let pods = half_done(&env, "unseen", &nodes);
    manager.kill().unwrap();
    env.kubectl(&["delete", DEFINITION, "--timeout=60s"]).unwrap();
    let _ = delete(&pods);
    // Without the definition the manager never becomes ready, so the test does not wait for it.
    let mut manager = env.bare_manager("daemonjob");
    env.wait("the pods are deleted without a DaemonJob", no_pods);
    manager.kill().unwrap();
    manager.wait().unwrap();
}

/// While the manager runs, another client deletes a shard, removes its label, and garbles a line.
#[test]
fn restores_a_ledger_that_another_client_damages() {
    let env = TestEnv::new("dl-harm");
    let nodes = env.nodes(["a", "b"]);
    let [a, _] = &nodes[..] else { unreachable!() };
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "harmed", &json!({}));
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "harmed", "it is complete", is_complete);
    env.wait("the ledger has both lines", || ledger(&env, "harmed").len() == 2);
    let pod_of = |node: &str| {
        let pods = env.list("pods", "daemonjob=harmed");
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    env.kubectl(&["delete", "pod", &pod_of(a), "--timeout=60s"]).unwrap();

    let before = ledger(&env, "harmed");
    let (shard, _) = shard_of(&env, "harmed", a);
    let owner = env.get("configmap", &shard).unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("DaemonJob"), &json!(true)));
    env.kubectl(&["delete", "configmap", &shard]).unwrap();
    env.wait("the shard is created again", || ledger(&env, "harmed") == before);
    has_event(&env, "LedgerRestored");

    env.kubectl(&["label", "configmap", &shard, &format!("{LEDGER}-")]).unwrap();
    env.wait("the shard has its label again", || ledger(&env, "harmed") == before);
    has_event(&env, "LabelsRestored");
    let done = env.get("daemonjob", "harmed").unwrap();
    assert!(is_complete(&done), "{done:#}");
    assert_eq!(runs(&env), [2], "no node runs again");

    // If a line is unreadable and the pod is gone, the node does not run again on a guess.
    let (shard, uid) = shard_of(&env, "harmed", a);
    env.patch("configmap", &shard, &json!({ "data": { &*uid: "scribble" } }));
    let lost = env.wait_for("daemonjob", "harmed", "the status reports the lost record", |job| {
        condition(job, "LedgerLost").0 == "True" && is_complete(job)
    });
    assert_eq!(word(&lost, "skippedNodes", a), "RecordLost");
    assert_eq!(condition(&lost, "Complete").1, "NodesSkipped");
    assert_eq!((&lost["status"]["succeeded"], &lost["status"]["skipped"]), (&json!(1), &json!(1)));
    has_event(&env, "LedgerLost");
    assert_eq!(runs(&env), [2], "no node runs again");
    job["spec"]["template"]["metadata"]["annotations"]["again"] = json!("please");
    env.apply(&job).unwrap();
    let done = env.wait_for("daemonjob", "harmed", "every node has succeeded again", |job| {
        is_complete(job) && job["status"]["succeeded"] == 2
    });
    assert_eq!(condition(&done, "LedgerLost").0, "");
    let made = env.created_pods();
    assert_eq!(made.values().sum::<usize>(), 4, "one further pod on each node: {made:?}");
}

/// Like the test above, while no manager runs.
#[test]
fn runs_nothing_after_a_loss_without_a_manager() {
    let env = TestEnv::new("dl-lost");
    let nodes = env.nodes(["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "lost", &json!({}));
    env.apply(&job).unwrap();
    env.apply(&daemonjob(&env, "kept", &json!({}))).unwrap();
    let [unlabelled, other] = half_done(&env, "half", &nodes);
    let third = running(&env, "half", c, 1);
    let pod_of = |job: &str, node: &str| {
        let pods = env.list("pods", &format!("daemonjob={job}"));
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    for name in ["lost", "kept"] {
        env.wait_for("daemonjob", name, "it is complete and lists its shards", |job| {
            is_complete(job) && job["status"]["ledgerShards"].is_array()
        });
        env.wait("the ledger has all lines", || ledger(&env, name).len() == 3);
        env.kubectl(&["delete", "pod", &pod_of(name, a), &pod_of(name, b), "--timeout=60s"]).unwrap();
    }
    manager.kill().unwrap();

    env.kubectl(&["delete", "configmap", "-l", &format!("daemonjob=lost,{LEDGER}")]).unwrap();
    let of_kept = format!("daemonjob=kept,{LEDGER}");
    env.kubectl(&["label", "configmap", "-l", &of_kept, &format!("{LEDGER}-")]).unwrap();
    assert!(ledger(&env, "kept").is_empty());
    env.kubectl(&["label", "pod", &unlabelled, "quintet.dev/kind-"]).unwrap();
    let _manager = env.manager("daemonjob");

    let lost = env.wait_for("daemonjob", "lost", "the status reports the lost records", |job| {
        condition(job, "LedgerLost").0 == "True" && condition(job, "Complete").1 == "NodesSkipped"
    });
    assert_eq!(word(&lost, "skippedNodes", a), "RecordLost");
    assert_eq!(word(&lost, "skippedNodes", b), "RecordLost");
    assert_eq!(told(&lost, "skippedNodes", c), None, "its pod still exists");
    assert_eq!(lost["status"]["succeeded"], 1);
    has_event(&env, "LedgerLost");
    // The manager finds shards and pods without their label and labels them again.
    env.wait("the shards have their label again", || ledger(&env, "kept").len() == 3);
    env.wait_for("pod", &unlabelled, "the pod has its label again", |pod| {
        pod["metadata"]["labels"]["quintet.dev/kind"] == "DaemonJob"
    });
    end(&env, &[&other, &third], 0);
    env.wait_for("daemonjob", "half", "it is complete", |job| {
        is_complete(job) && job["status"]["succeeded"] == 3
    });
    let kept = env.get("daemonjob", "kept").unwrap();
    assert!(is_complete(&kept) && kept["status"]["succeeded"] == 3, "{kept:#}");
    assert_eq!(condition(&kept, "LedgerLost").0, "");
    assert_eq!(runs(&env), [9], "no node runs again");

    job["spec"]["template"]["metadata"]["annotations"]["again"] = json!("please");
    env.apply(&job).unwrap();
    let done = env.wait_for("daemonjob", "lost", "every node has succeeded again", |job| {
        is_complete(job) && job["status"]["succeeded"] == 3
    });
    assert_eq!(condition(&done, "LedgerLost").0, "");
    assert_eq!(env.created_pods().values().sum::<usize>(), 12);
}

/// Pods are deleted after ttlSecondsAfterFinished. The ledger stays, even across a restart.
#[test]
fn expired_pods_are_deleted_and_no_node_reruns() {
    let env = TestEnv::new("dl-ttl");
    let nodes = env.nodes(["a", "b"]);
    let manager = env.manager("daemonjob");
    env.apply(&daemonjob(&env, "brief", &json!({ "ttlSecondsAfterFinished": 2 }))).unwrap();
    let mut failing = daemonjob(&env, "failing", &json!({ "ttlSecondsAfterFinished": 0, "backoffLimit": 0 }));
    failing["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("1");
    env.apply(&failing).unwrap();
    let before = env.wait_for("daemonjob", "brief", "it is complete and lists its shards", |job| {
        is_complete(job) && job["status"]["ledgerShards"].is_array()
    });
    env.wait_for("daemonjob", "failing", "it has failed", |job| condition(job, "Failed").0 == "True");
    env.wait("the pods are gone", || env.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
    for node in &nodes {
        assert!(ledger(&env, "brief")[node].contains(" outcome=Succeeded "));
        assert!(ledger(&env, "failing")[node].contains(" outcome=Failed failures=1 "));
    }
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = env.manager("daemonjob");
    env.kubectl(&["label", "node", &nodes[0], "touched=yes"]).unwrap();
    env.wait("the restarted manager has reconciled", || {
        manager.metrics().unwrap_or_default().lines().any(|line| {
            line.starts_with(
                "controller_runtime_reconcile_total{controller=\"daemonjob\",result=\"success\"}",
            ) && !line.ends_with(" 0")
        })
    });
    std::thread::sleep(Duration::from_secs(1));
    let after = env.get("daemonjob", "brief").unwrap();
    assert_eq!(after["status"], before["status"]);
    assert_eq!(condition(&env.get("daemonjob", "failing").unwrap(), "Failed").1, "NodesFailed");
    assert_eq!(runs(&env), [4]);
}

/// At shutdown the manager records outcomes that only pods have.
#[test]
fn shutdown_writes_the_ledger() {
    let env = TestEnv::new("dl-term");
    let nodes = env.nodes(["a", "b"]);
    let manager = env.manager("daemonjob");
    half_done(&env, "half", &nodes);
    assert!(ledger(&env, "half").is_empty());
    assert_eq!(manager.stop().unwrap(), Some(0));
    let lines = ledger(&env, "half");
    assert!(lines[&nodes[0]].contains(" run=1 pod=1 outcome=Succeeded "), "{lines:?}");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(env.list("pods", "daemonjob=half").len(), 2, "shutdown changes no pod");
}

/// A manager that serves other namespaces ignores the pods of an earlier manager. `quintet uninstall`
/// releases them.
#[test]
fn uninstall_releases_pods_outside_the_managers_scope() {
    let env = TestEnv::new("dl-scope");
    let elsewhere = TestEnv::new("dl-scope-other");
    let nodes = env.nodes(["a", "b"]);
    let manager = env.manager("daemonjob");
    let pods = half_done(&env, "left", &nodes);
    manager.kill().unwrap();
    let _manager = elsewhere.manager("daemonjob");
    for pod in &pods {
        env.kubectl(&["delete", "pod", pod, "--wait=false"]).unwrap();
    }
    env.wait("both pods are deleted and not running", || {
        env.list("pods", "daemonjob=left")
            .iter()
            .all(|pod| !pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] != "Running")
    });
    // A DaemonJob of the other namespace runs, which shows that the manager works.
    elsewhere.apply(&daemonjob(&elsewhere, "served", &json!({}))).unwrap();
    elsewhere.wait_for("daemonjob", "served", "it is complete", is_complete);
    assert_eq!(env.list("pods", "daemonjob=left").len(), 2);
    let mut uninstall = Command::new(program());
    uninstall.args(["uninstall", "--yes", "--namespace", env.namespace()]);
    run::stdout(uninstall.env("KUBECONFIG", env.cluster().kubeconfig())).unwrap();
    env.wait("the pods are released", || env.list("pods", "daemonjob=left").is_empty());
    assert!(env.get("daemonjob", "left").is_some());
}
