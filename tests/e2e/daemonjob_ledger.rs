//! The ledger of a DaemonJob and the finalizer on its pods: an outcome survives its pod, and nothing hangs.
//!
//! All nodes are simulated. Drains, evictions by the API, deletions, garbage collection and the scheduler are real; what
//! a kubelet would do is played by kwok (`tests/controlplane/stages`) or scripted by writes to a status.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use quintet_daemonjob::ledger::id_digest;
use quintet_e2e::{Arena, PATIENCE, condition, program};
use quintet_localcluster::{chart, run};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};

/// The finalizer on the pods of a DaemonJob.
const FINALIZER: &str = "dj.dysproz.io/ledger";
/// The label of the ledger's ConfigMaps.
const LEDGER: &str = "dj.dysproz.io/ledger";

/// A DaemonJob whose pods run until [`end`] lets them.
pub(crate) fn held(arena: &Arena, name: &str, spec: &Value) -> Value {
    let mut job = daemonjob(arena, name, spec);
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/hold"] = json!("true");
    job
}

/// Lets pods that were held end with this code.
pub(crate) fn end(arena: &Arena, pods: &[&str], code: i32) {
    let code = format!("kwok.quintet.dev/exit-code={code}");
    let mut args = vec!["annotate", "pod"];
    args.extend(pods);
    args.extend([&*code, "kwok.quintet.dev/hold-"]);
    arena.kubectl(&args).unwrap();
}

/// The pod of a node that has this number, once its containers run.
pub(crate) fn running(arena: &Arena, job: &str, node: &str, number: u64) -> String {
    let selector = format!("daemonjob={job},dj.dysproz.io/pod-number={number}");
    let found =
        run::poll(&format!("pod {number} of {node} runs"), PATIENCE, Duration::from_millis(200), || {
            let pod = arena.list("pods", &selector).into_iter().find(|pod| {
                pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *node
                    && pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            Ok(pod.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()))
        });
    found.unwrap_or_else(|error| panic!("{error}\n{:#}", arena.get("daemonjob", job).unwrap_or_default()))
}

/// The lines of a ledger, by node name.
pub(crate) fn ledger(arena: &Arena, job: &str) -> BTreeMap<String, String> {
    let shards = arena.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
    let lines = shards.iter().flat_map(|shard| shard["data"].as_object().into_iter().flatten());
    lines
        .filter(|(uid, _)| *uid != "gone")
        .map(|(_, line)| line.as_str().unwrap().to_owned())
        .map(|line| (line.split(' ').next().unwrap().trim_start_matches("node=").to_owned(), line))
        .collect()
}

/// How many deleted nodes a ledger counts as failed: by their own lines, or by the hour.
fn deleted(arena: &Arena, job: &str) -> usize {
    let shards = arena.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
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

/// The shard that has the line of a node, and the key of the line.
fn shard_of(arena: &Arena, job: &str, node: &str) -> (String, String) {
    let shards = arena.list("configmaps", &format!("daemonjob={job},{LEDGER}"));
    let found = shards.iter().find_map(|shard| {
        let mut lines = shard["data"].as_object()?.iter();
        let (uid, _) =
            lines.find(|(_, line)| line.as_str().unwrap().starts_with(&format!("node={node} ")))?;
        Some((shard["metadata"]["name"].as_str()?.to_owned(), uid.clone()))
    });
    found.unwrap_or_else(|| panic!("no line of {node} in {shards:#?}"))
}

/// Reason and message of a node in a list of a status.
pub(crate) fn told(job: &Value, list: &str, node: &str) -> Option<(String, String)> {
    let nodes = job["status"][list].as_array()?;
    let told = nodes.iter().find(|told| told["node"] == *node)?;
    let part = |member: &str| told[member].as_str().unwrap_or_default().to_owned();
    Some((part("reason"), part("message")))
}

/// The reason alone; empty where the node is not listed.
pub(crate) fn word(job: &Value, list: &str, node: &str) -> String {
    told(job, list, node).unwrap_or_default().0
}

/// Runs by their numbers at the ends of the pods' names, as the audit log has them: `[3, 1]` is three pods of first and
/// one of second runs. No pod may have been made twice.
pub(crate) fn runs(arena: &Arena) -> Vec<usize> {
    let mut runs = Vec::new();
    for (name, times) in arena.created_pods() {
        assert_eq!(times, 1, "{name} was made {times} times");
        let run: usize = name.rsplit('-').next().unwrap().parse().unwrap();
        runs.resize(runs.len().max(run), 0);
        runs[run - 1] += 1;
    }
    runs
}

fn has_event(arena: &Arena, reason: &str) {
    arena.wait(&format!("the event {reason}"), || {
        let events = arena.kubectl(&["get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"]);
        events.is_ok_and(|events| events.split(' ').any(|one| one == reason))
    });
}

/// A person deletes a finished pod, another one drains the nodes of a finished and of a running one.
/// Nodes are simulated; deletion, eviction and `kubectl drain` are real.
#[test]
fn what_is_done_stays_done_when_its_pod_is_deleted_or_drained() {
    let arena = Arena::new("dl-drain");
    let nodes = arena.nodes(["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let manager = arena.manager("daemonjob");
    arena.apply(&held(&arena, "kept", &json!({}))).unwrap();
    let [on_a, on_b, _] = [a, b, c].map(|node| running(&arena, "kept", node, 1));
    end(&arena, &[&on_a, &on_b], 0);
    arena.wait_for("daemonjob", "kept", "two nodes are done", |job| job["status"]["succeeded"] == 2);
    assert!(ledger(&arena, "kept").is_empty(), "the pods are the record for as long as they are there");
    let pod = arena.get("pod", &on_a).unwrap();
    assert_eq!(pod["metadata"]["finalizers"], json!([FINALIZER]));

    arena.kubectl(&["delete", "pod", &on_a, "--timeout=60s"]).unwrap();
    let line = ledger(&arena, "kept")[a].clone();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 10, "{line}");
    assert!(words[1].starts_with("template=v1-"), "{line}");
    assert_eq!(words[2..6], ["rollout=1", "run=1", "pod=1", "outcome=Succeeded"], "{line}");
    let info = arena.get("node", a).unwrap()["status"]["nodeInfo"].clone();
    for (word, key, id) in [(words[6], "boot", "bootID"), (words[7], "machine", "machineID")] {
        assert_eq!(word, format!("{key}={}", id_digest(info[id].as_str().unwrap())), "{line}");
    }
    assert!(words[8] == "clear=true" && words[9].starts_with("ended=2"), "{line}");

    arena.kubectl(&["drain", b, "--timeout=60s"]).unwrap();
    assert!(ledger(&arena, "kept")[b].contains(" pod=1 outcome=Succeeded "));
    arena.kubectl(&["drain", c, "--timeout=60s"]).unwrap();
    let line = ledger(&arena, "kept")[c].clone();
    // A disruption on a cordoned node does not count.
    assert!(line.contains(" pod=1 outcome=Ignored ignored=1 attempt=Disrupted/"), "{line}");
    assert!(arena.list("pods", "daemonjob=kept").is_empty(), "nothing holds a drained pod");
    arena.wait_for("daemonjob", "kept", "the drained node waits", |job| {
        word(job, "pendingNodes", c) == "Cordoned" && job["status"]["succeeded"] == 2
    });
    assert_eq!(runs(&arena), [3]);

    // Another process knows the same.
    assert_eq!(manager.stop().unwrap(), Some(0));
    let _manager = arena.manager("daemonjob");
    for node in [b, c] {
        arena.kubectl(&["uncordon", node]).unwrap();
    }
    end(&arena, &[&running(&arena, "kept", c, 2)], 0);
    let job = arena.wait_for("daemonjob", "kept", "it is complete", is_complete);
    assert_eq!((&job["status"]["succeeded"], &job["status"]["failed"]), (&json!(3), &json!(0)));
    assert_eq!(runs(&arena), [3, 1]);
}

/// The node evicts a running pod (scripted by a status write), and a pod that was never scheduled is deleted: neither
/// counts against a backoffLimit of 0. Nodes are simulated; the scheduler is real.
#[test]
fn evicted_and_never_scheduled_pods_do_not_count() {
    let arena = Arena::new("dl-evict");
    let node = arena.node("a");
    let manager = arena.manager("daemonjob");
    let watch = arena.watch("daemonjobs.dj.dysproz.io", "");
    arena.apply(&held(&arena, "evicted", &json!({ "backoffLimit": 0 }))).unwrap();
    let mut big = daemonjob(&arena, "big", &json!({ "backoffLimit": 0 }));
    big["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1000" } });
    arena.apply(&big).unwrap();

    let name = running(&arena, "evicted", &node, 1);
    arena.patch(
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
    arena.wait_for("daemonjob", "big", "the scheduler's words are told", is_unschedulable);
    let first = arena.list("pods", "daemonjob=big").remove(0);
    let name = first["metadata"]["name"].as_str().unwrap();
    arena.kubectl(&["delete", "pod", name, "--timeout=60s", "--wait=false"]).unwrap();
    arena.wait("a new pod takes its place", || {
        let pods = arena.list("pods", "daemonjob=big");
        pods.len() == 1 && pods[0]["metadata"]["uid"] != first["metadata"]["uid"]
    });
    let job = arena.wait_for("daemonjob", "big", "it waits again", is_unschedulable);
    assert_eq!((&job["status"]["failed"], condition(&job, "Failed").0), (&json!(0), "False".to_owned()));

    watch.wait_for("the node backs off", |job| {
        job["metadata"]["name"] == "evicted" && word(job, "pendingNodes", &node) == "BackingOff"
    });
    end(&arena, &[&running(&arena, "evicted", &node, 2)], 0);
    let job = arena.wait_for("daemonjob", "evicted", "it is complete", is_complete);
    assert_eq!(job["status"]["failed"], 0);
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_daemonjob_pod_failures_total{reason=\"Evicted\"} 1"), "{metrics}");
}

/// A node goes with a finished and a running pod; another one is made anew under its name. Nodes are simulated; the
/// garbage collector of kube-controller-manager, which takes 40 to 80 seconds, is real.
#[test]
fn nodes_go_and_are_made_anew() {
    let arena = Arena::new("dl-nodes");
    let nodes = arena.nodes(["gone", "stays", "swapped"]);
    let [gone, stays, swapped] = &nodes[..] else { unreachable!() };
    let _manager = arena.manager("daemonjob");
    arena.apply(&daemonjob(&arena, "quick", &json!({}))).unwrap();
    arena.apply(&held(&arena, "held", &json!({}))).unwrap();
    arena.wait_for("daemonjob", "quick", "it is complete", is_complete);
    for node in &nodes {
        running(&arena, "held", node, 1);
    }
    let watch = arena.watch("pods", "daemonjob=held");
    assert!(watch.events().len() >= 3, "the watch has begun");
    arena.kubectl(&["delete", "node", gone, swapped]).unwrap();
    arena.node("swapped");

    // The new machine runs both, once.
    let pods_on = |job: &str, node: &str| {
        let mut pods = arena.list("pods", &format!("daemonjob={job}"));
        pods.retain(|pod| pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *node);
        pods
    };
    let uid = arena.get("node", swapped).unwrap()["metadata"]["uid"].clone();
    let is_for_the_new_one = |pod: &Value| pod["metadata"]["labels"]["dj.dysproz.io/node-uid"] == uid;
    arena.wait_for("daemonjob", "quick", "the new node is done", |job| {
        is_complete(job)
            && job["status"]["desired"] == 2
            && pods_on("quick", swapped)
                .iter()
                .any(|pod| is_for_the_new_one(pod) && pod["status"]["phase"] == "Succeeded")
    });
    arena.wait("the old machine's running pod has made way", || {
        let pods = pods_on("held", swapped);
        pods.len() == 1 && is_for_the_new_one(&pods[0]) && pods[0]["status"]["phase"] == "Running"
    });
    // At no time two of them ran.
    let mut live: BTreeMap<String, bool> = BTreeMap::new();
    for (_, pod) in watch.events() {
        if pod["metadata"]["annotations"]["dj.dysproz.io/node-name"] == *swapped {
            let runs = !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            live.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), runs);
            assert!(live.values().filter(|live| **live).count() <= 1, "{:#?}", watch.events());
        }
    }
    let pods: Vec<String> = [stays, swapped].map(|node| running(&arena, "held", node, 1)).into();
    end(&arena, &pods.iter().map(String::as_str).collect::<Vec<_>>(), 0);

    // What is on the node that is gone goes, and holds nothing up.
    run::poll("pods are collected", Duration::from_mins(3), Duration::from_secs(1), || {
        Ok((pods_on("quick", gone).is_empty() && pods_on("held", gone).is_empty()).then_some(()))
    })
    .unwrap();
    let job = arena.wait_for("daemonjob", "held", "it is complete", is_complete);
    assert_eq!((&job["status"]["desired"], &job["status"]["succeeded"]), (&json!(2), &json!(2)));
    assert_eq!(runs(&arena), [8], "two jobs on three nodes, and once more on the new one");
    // Both machines of `held` ran a pod when their Nodes were deleted: the ledger counts them. Those of `quick` were done.
    assert_eq!((deleted(&arena, "held"), deleted(&arena, "quick")), (2, 0));
}

/// A pod made for a machine that was replaced before the pod started runs on the new one: that counts. Nodes are
/// simulated; when the pod starts is scripted.
#[test]
fn what_ran_on_the_new_machine_counts_for_it() {
    let arena = Arena::new("dl-anew");
    let node = arena.node("a");
    let manager = arena.manager("daemonjob");
    let mut job = daemonjob(&arena, "early", &json!({}));
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/start"] = json!("never");
    arena.apply(&job).unwrap();
    arena.wait("its pod is bound", || {
        arena.list("pods", "daemonjob=early").first().is_some_and(|pod| pod["spec"]["nodeName"] == *node)
    });
    manager.kill().unwrap();
    arena.kubectl(&["delete", "node", &node]).unwrap();
    // Creation times are told to the second.
    std::thread::sleep(Duration::from_millis(1_100));
    arena.node("a");
    let name = arena.list("pods", "daemonjob=early")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    arena.kubectl(&["annotate", "pod", &name, "kwok.quintet.dev/start-"]).unwrap();
    arena.wait_for("pod", &name, "it has run", |pod| pod["status"]["phase"] == "Succeeded");
    let _manager = arena.manager("daemonjob");
    let job = arena.wait_for("daemonjob", "early", "it is complete", is_complete);
    assert_eq!((&job["status"]["desired"], &job["status"]["succeeded"]), (&json!(1), &json!(1)));
    arena.wait("the new node has a line", || ledger(&arena, "early").contains_key(&node));
    let uid = arena.get("node", &node).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(shard_of(&arena, "early", &node).1, uid);
    assert_eq!(runs(&arena), [1]);
}

/// A job with a finished pod on the first node and a running one on the second.
fn half_done(arena: &Arena, name: &str, nodes: &[String]) -> [String; 2] {
    arena.apply(&held(arena, name, &json!({}))).unwrap();
    let pods = [running(arena, name, &nodes[0], 1), running(arena, name, &nodes[1], 1)];
    end(arena, &[&pods[0]], 0);
    arena.wait_for("daemonjob", name, "one node is done", |job| job["status"]["succeeded"] == 1);
    pods
}

/// Deleted in the foreground, in the background and by orphaning, with finished and running pods. Nodes are simulated;
/// the garbage collector is real.
#[test]
fn a_deleted_daemonjob_holds_nothing() {
    let arena = Arena::new("dl-delete");
    let nodes = arena.nodes(["a", "b"]);
    let _manager = arena.manager("daemonjob");
    half_done(&arena, "front", &nodes);
    half_done(&arena, "back", &nodes);
    let pods = half_done(&arena, "orphaned", &nodes);
    arena.kubectl(&["delete", "dj", "front", "--cascade=foreground", "--timeout=60s"]).unwrap();
    assert!(arena.list("pods", "daemonjob=front").is_empty(), "foreground: the pods go first");
    arena.kubectl(&["delete", "dj", "back", "--cascade=background", "--timeout=60s"]).unwrap();
    arena.kubectl(&["delete", "dj", "orphaned", "--cascade=orphan", "--timeout=60s"]).unwrap();
    arena.wait("the pods go after it", || arena.list("pods", "daemonjob=back").is_empty());
    for pod in &pods {
        let pod = arena.wait_for("pod", pod, "an orphan is free", |pod| {
            pod["metadata"]["finalizers"].is_null() && pod["metadata"]["ownerReferences"].is_null()
        });
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
    }
    let phases = pods.each_ref().map(|pod| arena.get("pod", pod).unwrap()["status"]["phase"].clone());
    assert_eq!(phases, ["Succeeded", "Running"]);
    arena.kubectl(&["delete", "pod", &pods[0], &pods[1], "--timeout=60s"]).unwrap();
    assert_eq!(runs(&arena), [6]);
}

/// A namespace with finished and running pods goes. Nodes are simulated; the namespace controller is real.
#[test]
fn a_namespace_goes_with_its_daemonjobs() {
    let arena = Arena::new("dl-space");
    let nodes = arena.nodes(["a", "b"]);
    let _manager = arena.manager("daemonjob");
    half_done(&arena, "one", &nodes);
    half_done(&arena, "other", &nodes);
    arena.kubectl(&["delete", "namespace", arena.namespace(), "--timeout=80s"]).unwrap();
    assert_eq!(runs(&arena), [4], "nothing was made on the way");
}

/// The kind is switched off: pods that are deleted go, finished or running, and the DaemonJob too. Nodes are simulated.
#[test]
fn a_kind_that_is_switched_off_holds_no_pod() {
    let arena = Arena::new("dl-off");
    let nodes = arena.nodes(["a", "b"]);
    let manager = arena.manager("daemonjob");
    let pods = half_done(&arena, "off", &nodes);
    half_done(&arena, "rest", &nodes);
    manager.kill().unwrap();
    let _manager = arena.manager_with("other", "podset", &[]);
    // Managers of other tests would free them too, but only after a minute.
    arena.kubectl(&["delete", "pod", &pods[0], &pods[1], "--timeout=30s"]).unwrap();
    for pod in arena.list("pods", "daemonjob=rest") {
        assert_eq!(pod["metadata"]["finalizers"], json!([FINALIZER]), "what was not deleted keeps it");
    }
    arena.kubectl(&["delete", "dj", "off", "rest", "--timeout=60s"]).unwrap();
    arena.wait("all pods are gone", || arena.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
}

/// The definition is deleted, and every DaemonJob with it: while the manager looks on, and while none runs. Nodes are
/// simulated; the cluster is the test's own.
#[test]
fn a_definition_that_is_deleted_holds_no_pod() {
    const DEFINITION: &str = "crd/daemonjobs.dj.dysproz.io";
    let arena = Arena::alone("dl-crd");
    let nodes = arena.nodes(["a", "b"]);
    let no_pods = || arena.list("pods", "quintet.dev/kind=DaemonJob").is_empty();
    // The garbage collector may not know what has become of an owner whose type is gone; then a person deletes them.
    let delete = |pods: &[String; 2]| arena.kubectl(&["delete", "pod", &pods[0], &pods[1], "--wait=false"]);
    let manager = arena.manager("daemonjob");
    let pods = half_done(&arena, "seen", &nodes);
    arena.kubectl(&["delete", DEFINITION, "--timeout=60s"]).unwrap();
    let _ = delete(&pods);
    arena.wait("the pods go with their DaemonJob", no_pods);

    chart::install(arena.kube()).unwrap();
    arena.wait("the type is served again", || arena.kubectl(&["get", "daemonjobs.dj.dysproz.io"]).is_ok());
    let pods = half_done(&arena, "unseen", &nodes);
    manager.kill().unwrap();
    arena.kubectl(&["delete", DEFINITION, "--timeout=60s"]).unwrap();
    let _ = delete(&pods);
    // It is not ready without the definition, so it is not waited for.
    let mut manager = arena.bare_manager("daemonjob");
    arena.wait("the pods go without a DaemonJob", no_pods);
    manager.kill().unwrap();
    manager.wait().unwrap();
}

/// While the manager runs, a stranger deletes a shard, takes the labels off, and garbles a line. Nodes are simulated.
#[test]
fn a_ledger_that_a_stranger_harms_is_mended() {
    let arena = Arena::new("dl-harm");
    let nodes = arena.nodes(["a", "b"]);
    let [a, _] = &nodes[..] else { unreachable!() };
    let _manager = arena.manager("daemonjob");
    let mut job = daemonjob(&arena, "harmed", &json!({}));
    arena.apply(&job).unwrap();
    arena.wait_for("daemonjob", "harmed", "it is complete", is_complete);
    arena.wait("both lines are there", || ledger(&arena, "harmed").len() == 2);
    let pod_of = |node: &str| {
        let pods = arena.list("pods", "daemonjob=harmed");
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    arena.kubectl(&["delete", "pod", &pod_of(a), "--timeout=60s"]).unwrap();

    let before = ledger(&arena, "harmed");
    let (shard, _) = shard_of(&arena, "harmed", a);
    let owner = arena.get("configmap", &shard).unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("DaemonJob"), &json!(true)));
    arena.kubectl(&["delete", "configmap", &shard]).unwrap();
    arena.wait("the shard is made again", || ledger(&arena, "harmed") == before);
    has_event(&arena, "LedgerRestored");

    arena.kubectl(&["label", "configmap", &shard, &format!("{LEDGER}-")]).unwrap();
    arena.wait("its label is put back", || ledger(&arena, "harmed") == before);
    has_event(&arena, "LabelsRestored");
    let done = arena.get("daemonjob", "harmed").unwrap();
    assert!(is_complete(&done), "{done:#}");
    assert_eq!(runs(&arena), [2], "nothing ran again");

    // What cannot be read any more, and no pod tells, is not run by guess.
    let (shard, uid) = shard_of(&arena, "harmed", a);
    arena.patch("configmap", &shard, &json!({ "data": { &*uid: "scribble" } }));
    let lost = arena.wait_for("daemonjob", "harmed", "the loss is said", |job| {
        condition(job, "LedgerLost").0 == "True" && is_complete(job)
    });
    assert_eq!(word(&lost, "skippedNodes", a), "RecordLost");
    assert_eq!(condition(&lost, "Complete").1, "NodesSkipped");
    assert_eq!((&lost["status"]["succeeded"], &lost["status"]["skipped"]), (&json!(1), &json!(1)));
    has_event(&arena, "LedgerLost");
    assert_eq!(runs(&arena), [2], "nothing ran again");
    job["spec"]["template"]["metadata"]["annotations"]["again"] = json!("please");
    arena.apply(&job).unwrap();
    let done = arena.wait_for("daemonjob", "harmed", "it has run everywhere again", |job| {
        is_complete(job) && job["status"]["succeeded"] == 2
    });
    assert_eq!(condition(&done, "LedgerLost").0, "");
    let made = arena.created_pods();
    assert_eq!(made.values().sum::<usize>(), 4, "once more on each node: {made:?}");
}

/// The same while no manager runs. Nodes are simulated.
#[test]
fn a_ledger_that_is_lost_while_nobody_looks_runs_nothing() {
    let arena = Arena::new("dl-lost");
    let nodes = arena.nodes(["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let manager = arena.manager("daemonjob");
    let mut job = daemonjob(&arena, "lost", &json!({}));
    arena.apply(&job).unwrap();
    arena.apply(&daemonjob(&arena, "kept", &json!({}))).unwrap();
    let [unlabelled, other] = half_done(&arena, "half", &nodes);
    let third = running(&arena, "half", c, 1);
    let pod_of = |job: &str, node: &str| {
        let pods = arena.list("pods", &format!("daemonjob={job}"));
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    for name in ["lost", "kept"] {
        arena.wait_for("daemonjob", name, "it is complete and lists its shards", |job| {
            is_complete(job) && job["status"]["ledgerShards"].is_array()
        });
        arena.wait("all lines are there", || ledger(&arena, name).len() == 3);
        arena.kubectl(&["delete", "pod", &pod_of(name, a), &pod_of(name, b), "--timeout=60s"]).unwrap();
    }
    manager.kill().unwrap();

    arena.kubectl(&["delete", "configmap", "-l", &format!("daemonjob=lost,{LEDGER}")]).unwrap();
    let of_kept = format!("daemonjob=kept,{LEDGER}");
    arena.kubectl(&["label", "configmap", "-l", &of_kept, &format!("{LEDGER}-")]).unwrap();
    assert!(ledger(&arena, "kept").is_empty());
    arena.kubectl(&["label", "pod", &unlabelled, "quintet.dev/kind-"]).unwrap();
    let _manager = arena.manager("daemonjob");

    let lost = arena.wait_for("daemonjob", "lost", "the loss is said", |job| {
        condition(job, "LedgerLost").0 == "True" && condition(job, "Complete").1 == "NodesSkipped"
    });
    assert_eq!(word(&lost, "skippedNodes", a), "RecordLost");
    assert_eq!(word(&lost, "skippedNodes", b), "RecordLost");
    assert_eq!(told(&lost, "skippedNodes", c), None, "its pod is still there");
    assert_eq!(lost["status"]["succeeded"], 1);
    has_event(&arena, "LedgerLost");
    // What has only lost its label is found, and labelled again.
    arena.wait("the shards have their label again", || ledger(&arena, "kept").len() == 3);
    arena.wait_for("pod", &unlabelled, "it has its label again", |pod| {
        pod["metadata"]["labels"]["quintet.dev/kind"] == "DaemonJob"
    });
    end(&arena, &[&other, &third], 0);
    arena.wait_for("daemonjob", "half", "it is complete", |job| {
        is_complete(job) && job["status"]["succeeded"] == 3
    });
    let kept = arena.get("daemonjob", "kept").unwrap();
    assert!(is_complete(&kept) && kept["status"]["succeeded"] == 3, "{kept:#}");
    assert_eq!(condition(&kept, "LedgerLost").0, "");
    assert_eq!(runs(&arena), [9], "nothing ran again");

    job["spec"]["template"]["metadata"]["annotations"]["again"] = json!("please");
    arena.apply(&job).unwrap();
    let done = arena.wait_for("daemonjob", "lost", "it has run everywhere again", |job| {
        is_complete(job) && job["status"]["succeeded"] == 3
    });
    assert_eq!(condition(&done, "LedgerLost").0, "");
    assert_eq!(arena.created_pods().values().sum::<usize>(), 12);
}

/// Pods go after ttlSecondsAfterFinished, the record stays, also over a restart. Nodes are simulated.
#[test]
fn finished_pods_go_after_their_time_and_nothing_runs_again() {
    let arena = Arena::new("dl-ttl");
    let nodes = arena.nodes(["a", "b"]);
    let manager = arena.manager("daemonjob");
    arena.apply(&daemonjob(&arena, "brief", &json!({ "ttlSecondsAfterFinished": 2 }))).unwrap();
    let mut failing =
        daemonjob(&arena, "failing", &json!({ "ttlSecondsAfterFinished": 0, "backoffLimit": 0 }));
    failing["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("1");
    arena.apply(&failing).unwrap();
    let before = arena.wait_for("daemonjob", "brief", "it is complete and lists its shards", |job| {
        is_complete(job) && job["status"]["ledgerShards"].is_array()
    });
    arena.wait_for("daemonjob", "failing", "it has failed", |job| condition(job, "Failed").0 == "True");
    arena.wait("the pods are gone", || arena.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
    for node in &nodes {
        assert!(ledger(&arena, "brief")[node].contains(" outcome=Succeeded "));
        assert!(ledger(&arena, "failing")[node].contains(" outcome=Failed failures=1 "));
    }
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = arena.manager("daemonjob");
    arena.kubectl(&["label", "node", &nodes[0], "touched=yes"]).unwrap();
    arena.wait("the restarted manager has looked at them", || {
        manager.metrics().unwrap_or_default().lines().any(|line| {
            line.starts_with(
                "controller_runtime_reconcile_total{controller=\"daemonjob\",result=\"success\"}",
            ) && !line.ends_with(" 0")
        })
    });
    std::thread::sleep(Duration::from_secs(1));
    let after = arena.get("daemonjob", "brief").unwrap();
    assert_eq!(after["status"], before["status"]);
    assert_eq!(condition(&arena.get("daemonjob", "failing").unwrap(), "Failed").1, "NodesFailed");
    assert_eq!(runs(&arena), [4]);
}

/// What pods alone tell is written down when the manager is asked to end. Nodes are simulated.
#[test]
fn an_orderly_end_writes_the_ledger() {
    let arena = Arena::new("dl-term");
    let nodes = arena.nodes(["a", "b"]);
    let manager = arena.manager("daemonjob");
    half_done(&arena, "half", &nodes);
    assert!(ledger(&arena, "half").is_empty());
    assert_eq!(manager.stop().unwrap(), Some(0));
    let lines = ledger(&arena, "half");
    assert!(lines[&nodes[0]].contains(" run=1 pod=1 outcome=Succeeded "), "{lines:?}");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(arena.list("pods", "daemonjob=half").len(), 2, "nothing else was done");
}

/// A manager that serves other namespaces leaves the pods of an earlier one alone, and `quintet uninstall` frees them.
/// Nodes are simulated.
#[test]
fn uninstall_frees_pods_that_a_narrowed_scope_leaves() {
    let arena = Arena::new("dl-scope");
    let elsewhere = Arena::new("dl-scope-other");
    let nodes = arena.nodes(["a", "b"]);
    let manager = arena.manager("daemonjob");
    let pods = half_done(&arena, "left", &nodes);
    manager.kill().unwrap();
    let _manager = elsewhere.manager("daemonjob");
    for pod in &pods {
        arena.kubectl(&["delete", "pod", pod, "--wait=false"]).unwrap();
    }
    arena.wait("both are over", || {
        arena
            .list("pods", "daemonjob=left")
            .iter()
            .all(|pod| !pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] != "Running")
    });
    // A DaemonJob of the other namespace runs, so the manager works.
    elsewhere.apply(&daemonjob(&elsewhere, "served", &json!({}))).unwrap();
    elsewhere.wait_for("daemonjob", "served", "it is complete", is_complete);
    assert_eq!(arena.list("pods", "daemonjob=left").len(), 2);
    let mut uninstall = Command::new(program());
    uninstall.args(["uninstall", "--yes", "--namespace", arena.namespace()]);
    run::stdout(uninstall.env("KUBECONFIG", arena.cluster().kubeconfig())).unwrap();
    arena.wait("they are freed", || arena.list("pods", "daemonjob=left").is_empty());
    assert!(arena.get("daemonjob", "left").is_some());
}
