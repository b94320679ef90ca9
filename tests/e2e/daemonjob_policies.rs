//! Failures, pace, deadlines and re-runs of a DaemonJob, and the reasons in its status.
//!
//! All nodes are simulated. Annotations script the end of a pod through kwok's stages
//! (`tests/controlplane/stages`). Writes of a status script evictions, container restarts and boot IDs.

use std::collections::BTreeMap;
use std::time::Duration;

use quintet_e2e::objects::Watch;
use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, ledger, running, runs, told, word};

/// The DaemonJob with `restartPolicy: Never`.
pub(crate) fn never(mut job: Value) -> Value {
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    job
}

pub(crate) fn has_failed(job: &Value) -> bool {
    condition(job, "Failed").0 == "True"
}

/// The number of a DaemonJob's pods that have neither ended nor a deletion timestamp.
fn counted(env: &TestEnv, job: &str) -> usize {
    let pods = env.list("pods", &format!("daemonjob={job}"));
    let is_counted = |pod: &&Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && matches!(pod["status"]["phase"].as_str(), Some("Pending" | "Running"))
    };
    pods.iter().filter(is_counted).count()
}

/// Pods of one DaemonJob by pod number, as [`runs`] counts them for all.
fn runs_of(env: &TestEnv, job: &str) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for (name, times) in env.created_pods() {
        if let Some(rest) = name.strip_prefix(&format!("{job}-")) {
            let (_, run) = rest.split_once('-').unwrap();
            *runs.entry(run.to_owned()).or_insert(0) += times;
        }
    }
    runs
}

/// Sets the restart count of a pod's container.
fn restarted(env: &TestEnv, pod: &str, times: u32) {
    let mut containers = env.get("pod", pod).unwrap()["status"]["containerStatuses"].clone();
    containers[0]["restartCount"] = json!(times);
    env.patch("pod/status", pod, &json!({ "status": { "containerStatuses": containers } }));
}

/// The maximum number of pods that ran at the same time, terminating pods included.
fn most_at_a_time(watch: &Watch) -> usize {
    let mut live = BTreeMap::new();
    let mut most = 0;
    for (change, pod) in watch.events() {
        let runs =
            change != "DELETED" && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        live.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), runs);
        most = most.max(live.values().filter(|runs| **runs).count());
    }
    most
}

/// Each node counts its failures with a backoff, and container restarts count as for a Job.
#[test]
fn retries_with_backoff_up_to_the_limit() {
    let env = TestEnv::new("dp-backoff");
    let nodes = env.nodes(["a", "b"]);
    let [a, b] = &nodes[..] else { unreachable!() };
    let manager = env.manager("daemonjob");
    let watch = env.watch("daemonjobs.dj.dysproz.io", "");
    env.apply(&never(held(&env, "tries", &json!({ "backoffLimit": 1 })))).unwrap();
    env.apply(&held(&env, "restarts", &json!({ "backoffLimit": 2 }))).unwrap();
    env.apply(&held(&env, "norestart", &json!({ "backoffLimit": 0 }))).unwrap();
    let first = running(&env, "tries", a, 1);
    end(&env, &[&first], 3);
    end(&env, &[&running(&env, "tries", b, 1)], 0);

    // backoffLimit 2 allows one restart, backoffLimit 0 allows none.
    let (twice, once) = (running(&env, "restarts", a, 1), running(&env, "norestart", a, 1));
    let (fine, other) = (running(&env, "restarts", b, 1), running(&env, "norestart", b, 1));
    restarted(&env, &twice, 1);
    restarted(&env, &once, 1);
    end(&env, &[&fine, &other], 0);
    let job = env.wait_for("daemonjob", "norestart", "one restart fails the node", has_failed);
    assert_eq!(word(&job, "failedNodes", a), "BackoffLimitExceeded");
    assert_eq!((&job["status"]["failed"], &job["status"]["succeeded"]), (&json!(1), &json!(1)));
    assert!(env.get("pod", &twice).unwrap()["metadata"]["deletionTimestamp"].is_null());
    restarted(&env, &twice, 2);
    let job = env.wait_for("daemonjob", "restarts", "two restarts fail the node", has_failed);
    assert_eq!(condition(&job, "Failed").1, "NodesFailed");
    assert_eq!(word(&job, "failedNodes", a), "BackoffLimitExceeded");

    // The backoff lasts 10 s, in which a busy machine may not read the status, so a watch looks for it.
    let job = watch.wait_for("the node backs off", |job| {
        job["metadata"]["name"] == "tries" && word(job, "pendingNodes", a) == "BackingOff"
    });
    let (_, message) = told(&job, "pendingNodes", a).unwrap();
    assert!(message.contains("retries at ") && message.contains(", after 1 attempt"), "{message}");
    let second = running(&env, "tries", a, 2);
    let at = |pod: &str, path: &str| {
        let pod = env.get("pod", pod).unwrap();
        let time = pod.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("{pod:#}")).to_owned();
        seconds(&time)
    };
    let wait = at(&second, "/metadata/creationTimestamp")
        - at(&first, "/status/containerStatuses/0/state/terminated/finishedAt");
    assert!(wait >= 10, "the second attempt began after {wait} s");
    end(&env, &[&second], 3);
    let job = env.wait_for("daemonjob", "tries", "it has failed", has_failed);
    assert_eq!(condition(&job, "Failed").1, "NodesFailed");
    let (word, message) = told(&job, "failedNodes", a).unwrap();
    assert_eq!(word, "BackoffLimitExceeded");
    assert!(message.starts_with("2 failures, backoffLimit allows 1"), "{message}");
    assert_eq!((&job["status"]["failed"], &job["status"]["succeeded"]), (&json!(1), &json!(1)));
    assert!(
        ledger(&env, "tries")[a].contains(" pod=2 outcome=Failed failures=2 "),
        "{:?}",
        ledger(&env, "tries")
    );
    // The newest failed pod of a node stays.
    env.wait("the older failed pod is gone", || env.get("pod", &first).is_none());
    assert!(env.get("pod", &second).is_some());
    assert_eq!(runs(&env), [6, 1]);
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_daemonjob_pod_failures_total{reason=\"Error\"} 4"), "{metrics}");
}

/// Seconds of a timestamp since an arbitrary midnight, for differences within a month.
fn seconds(time: &str) -> i64 {
    let part = |range: std::ops::Range<usize>| time[range].parse::<i64>().unwrap();
    ((part(8..10) * 24 + part(11..13)) * 60 + part(14..16)) * 60 + part(17..19)
}

/// FailJob, FailIndex and Ignore by exit code; Count by condition, with a scripted eviction.
#[test]
fn applies_the_pod_failure_policy() {
    let env = TestEnv::new("dp-policy");
    let nodes = env.nodes(["a", "b"]);
    let [a, b] = &nodes[..] else { unreachable!() };
    let _manager = env.manager("daemonjob");
    let by_exit = |action: &str, code: i32| json!({ "rules": [{ "action": action, "onExitCodes": { "operator": "In", "values": [code] } }] });
    let start = |name: &str, limit: i32, policy: &Value| {
        let spec = json!({ "backoffLimit": limit, "podFailurePolicy": policy });
        env.apply(&never(held(&env, name, &spec))).unwrap();
        [running(&env, name, a, 1), running(&env, name, b, 1)]
    };
    let ignored = start("ignore", 0, &by_exit("Ignore", 5));
    end(&env, &[&ignored[0]], 5);
    end(&env, &[&ignored[1]], 0);

    let [on_a, on_b] = start("failjob", 6, &by_exit("FailJob", 42));
    end(&env, &[&on_a], 42);
    let job = env.wait_for("daemonjob", "failjob", "the whole run has failed", has_failed);
    assert_eq!(condition(&job, "Failed").1, "PodFailurePolicy");
    env.wait("the other node's pod is gone", || {
        env.get("pod", &on_b).is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    });

    let [on_a, on_b] = start("failindex", 6, &by_exit("FailIndex", 7));
    end(&env, &[&on_a], 7);
    let job =
        env.wait_for("daemonjob", "failindex", "the node has failed", |job| job["status"]["failed"] == 1);
    assert_eq!(word(&job, "failedNodes", a), "PodFailurePolicy");
    assert!(!has_failed(&job), "the other node continues");
    end(&env, &[&on_b], 0);
    let job = env.wait_for("daemonjob", "failindex", "it has failed", has_failed);
    assert_eq!(condition(&job, "Failed").1, "NodesFailed");
    assert_eq!(job["status"]["succeeded"], 1);

    let condition_rule = json!({ "rules": [
        { "action": "Count", "onPodConditions": [{ "type": "DisruptionTarget" }] }] });
    let [on_a, on_b] = start("count", 0, &condition_rule);
    env.patch(
        "pod/status",
        &on_a,
        &json!({ "status": { "phase": "Failed", "reason": "Preempting",
            "conditions": [{ "type": "DisruptionTarget", "status": "True" }] } }),
    );
    end(&env, &[&on_b], 0);
    let job = env.wait_for("daemonjob", "count", "the eviction counts as a failure", has_failed);
    assert_eq!(word(&job, "failedNodes", a), "BackoffLimitExceeded");

    let job =
        env.wait_for("daemonjob", "ignore", "one node has succeeded", |job| job["status"]["succeeded"] == 1);
    assert_eq!(job["status"]["failed"], 0, "{job:#}");
    end(&env, &[&running(&env, "ignore", a, 2)], 0);
    let job = env.wait_for("daemonjob", "ignore", "it is complete", is_complete);
    assert_eq!(job["status"]["failed"], 0);
    assert_eq!(runs(&env), [8, 1], "only the ignored failure is retried");
}

/// Reaches `parallelism` as a number and as a percentage and never exceeds it, even when a changed template
/// rolls out.
#[test]
fn parallelism_is_never_exceeded() {
    let env = TestEnv::new("dp-pace");
    env.nodes(["a", "b", "c", "d", "e", "f"]);
    let _manager = env.manager("daemonjob");
    let watches = ["two", "third"].map(|name| env.watch("pods", &format!("daemonjob={name}")));
    let mut two = daemonjob(&env, "two", &json!({ "parallelism": 2 }));
    env.apply(&two).unwrap();
    env.apply(&daemonjob(&env, "third", &json!({ "parallelism": "34%" }))).unwrap();
    for name in ["two", "third"] {
        env.wait_for("daemonjob", name, "it is complete", is_complete);
    }
    two["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    env.apply(&two).unwrap();
    env.wait_for("daemonjob", "two", "it is complete again", |job| {
        is_complete(job) && job["status"]["observedGeneration"] == 2
    });
    assert_eq!(watches.each_ref().map(most_at_a_time), [2, 3]);
    assert_eq!(runs_of(&env, "two"), [("1".to_owned(), 6), ("2".to_owned(), 6)].into());
    assert_eq!(runs_of(&env, "third"), [("1".to_owned(), 6)].into());
}

/// suspend deletes running pods without counting a failure, and resume starts a new run. paused lets running
/// pods continue.
#[test]
fn suspends_and_pauses() {
    let env = TestEnv::new("dp-hold");
    let nodes = env.nodes(["a", "b"]);
    let [a, b] = &nodes[..] else { unreachable!() };
    let _manager = env.manager("daemonjob");
    env.apply(&held(&env, "sleeper", &json!({ "backoffLimit": 0 }))).unwrap();
    env.apply(&held(&env, "pausing", &json!({ "parallelism": 1 }))).unwrap();
    env.apply(&held(&env, "unborn", &json!({ "suspend": true }))).unwrap();

    let pods = [running(&env, "sleeper", a, 1), running(&env, "sleeper", b, 1)];
    end(&env, &[&pods[0]], 0);
    let before =
        env.wait_for("daemonjob", "sleeper", "a node succeeded", |job| job["status"]["succeeded"] == 1);
    env.patch("daemonjob", "sleeper", &json!({ "spec": { "suspend": true } }));
    let job = env.wait_for("daemonjob", "sleeper", "it is suspended", |job| {
        condition(job, "Suspended").0 == "True" && job["status"]["active"] == 0
    });
    assert_eq!(condition(&job, "Complete"), ("False".into(), "Suspended".into()));
    assert_eq!(condition(&job, "Failed").0, "False");
    assert!(job["status"]["startTime"].is_null());
    env.wait("the running pod is gone", || env.get("pod", &pods[1]).is_none());
    let lines = ledger(&env, "sleeper");
    assert!(lines[b].contains(" run=1 pod=1 outcome=Ignored ignored=1 attempt=Disrupted/"), "{lines:?}");
    assert!(lines[a].contains(" run=1 pod=1 outcome=Succeeded "), "suspend writes the ledger: {lines:?}");

    let first = running(&env, "pausing", a, 1);
    env.patch("daemonjob", "pausing", &json!({ "spec": { "paused": true } }));
    env.wait_for("daemonjob", "pausing", "it is paused", |job| condition(job, "Paused").0 == "True");
    end(&env, &[&first], 0);
    let job =
        env.wait_for("daemonjob", "pausing", "the pod has succeeded", |job| job["status"]["succeeded"] == 1);
    assert_eq!(condition(&job, "Paused"), ("True".into(), "Paused".into()));
    assert_eq!(word(&job, "pendingNodes", b), "Paused");
    assert_eq!(counted(&env, "pausing"), 0);

    env.patch("daemonjob", "sleeper", &json!({ "spec": { "suspend": false } }));
    env.patch("daemonjob", "pausing", &json!({ "spec": { "paused": false } }));
    end(&env, &[&running(&env, "pausing", b, 1)], 0);
    end(&env, &[&running(&env, "sleeper", b, 2)], 0);
    let job = env.wait_for("daemonjob", "sleeper", "it is complete", is_complete);
    assert_ne!(job["status"]["startTime"], before["status"]["startTime"], "a new run");
    assert_eq!((&job["status"]["succeeded"], &job["status"]["failed"]), (&json!(2), &json!(0)));
    assert_eq!(condition(&job, "Suspended").0, "");
    env.wait_for("daemonjob", "pausing", "it is complete", is_complete);
    let unborn = env.get("daemonjob", "unborn").unwrap();
    assert_eq!(condition(&unborn, "Complete"), ("False".into(), "Suspended".into()));
    assert_eq!(runs(&env), [4, 1], "done nodes do not rerun, and a job that starts suspended does not run");
}

/// Continue, FailFast and Pause, and how FailFast and Pause continue after a change.
#[test]
fn applies_failure_policies() {
    let env = TestEnv::new("dp-fail");
    let nodes = env.nodes(["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { unreachable!() };
    let _manager = env.manager("daemonjob");
    let start = |name: &str, policy: &str, parallelism: i32| {
        let spec =
            json!({ "backoffLimit": 0, "parallelism": parallelism, "failurePolicy": { "type": policy } });
        env.apply(&held(&env, name, &spec)).unwrap();
    };
    start("fast", "FailFast", 2);
    start("pause", "Pause", 1);
    start("on", "Continue", 1);

    let beside = running(&env, "fast", b, 1);
    end(&env, &[&running(&env, "fast", a, 1), &running(&env, "pause", a, 1), &running(&env, "on", a, 1)], 1);
    let job = env.wait_for("daemonjob", "fast", "the run has failed", has_failed);
    assert_eq!(condition(&job, "Failed").1, "MaxFailedNodesExceeded");
    assert_eq!(word(&job, "failedNodes", a), "BackoffLimitExceeded");
    assert_eq!(counted(&env, "fast"), 0, "running pods are deleted");
    env.wait("the other running pod is gone", || env.get("pod", &beside).is_none());
    let job = env.wait_for("daemonjob", "pause", "it pauses", |job| condition(job, "Paused").0 == "True");
    assert_eq!(condition(&job, "Paused").1, "MaxFailedNodesExceeded");
    assert_eq!(
        (condition(&job, "Failed").0, condition(&job, "Complete").0),
        ("False".into(), "False".into())
    );
    assert_eq!(word(&job, "pendingNodes", b), "MaxFailedNodesExceeded");
    assert_eq!(counted(&env, "pause"), 0);

    end(&env, &[&running(&env, "on", b, 1)], 0);
    end(&env, &[&running(&env, "on", c, 1)], 0);
    let job = env.wait_for("daemonjob", "on", "the other nodes have finished", has_failed);
    assert_eq!(condition(&job, "Failed").1, "NodesFailed");
    assert_eq!((&job["status"]["failed"], &job["status"]["succeeded"]), (&json!(1), &json!(2)));

    // With a higher maxFailedNodes both continue. 34% of three nodes, rounded down, is one.
    assert_eq!(runs(&env), [6]);
    env.patch("daemonjob", "fast", &json!({ "spec": { "failurePolicy": { "maxFailedNodes": 1 } } }));
    env.patch("daemonjob", "pause", &json!({ "spec": { "failurePolicy": { "maxFailedNodes": "34%" } } }));
    end(&env, &[&running(&env, "pause", b, 1), &running(&env, "fast", c, 1)], 0);
    end(&env, &[&running(&env, "pause", c, 1), &running(&env, "fast", b, 2)], 0);
    for name in ["fast", "pause"] {
        let job = env.wait_for("daemonjob", name, "the run has failed", |job| {
            condition(job, "Failed") == ("True".into(), "NodesFailed".into())
        });
        assert_eq!((&job["status"]["failed"], &job["status"]["succeeded"]), (&json!(1), &json!(2)));
        assert_eq!(condition(&job, "Paused").0, "");
    }
    assert_eq!(runs(&env), [9, 1]);
}

/// Deadlines pass without an event and while no manager runs. The scheduler is real.
#[test]
fn deadlines_fire_without_events_and_after_a_restart() {
    let env = TestEnv::new("dp-late");
    let node = env.node("a");
    let manager = env.manager("daemonjob");
    let watch = env.watch("pods", "quintet.dev/kind=DaemonJob");
    let start = |suffix: &str, after: i64| {
        let name = |name: &str| format!("{name}{suffix}");
        env.apply(&held(&env, &name("active"), &json!({ "activeDeadlineSeconds": after }))).unwrap();
        let mut job = daemonjob(&env, &name("unready"), &json!({ "pendingDeadlineSeconds": after }));
        job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/start"] = json!("never");
        env.apply(&job).unwrap();
        let mut job = daemonjob(&env, &name("unplaced"), &json!({ "pendingDeadlineSeconds": after }));
        job["spec"]["template"]["spec"]["containers"][0]["resources"] =
            json!({ "requests": { "cpu": "1000" } });
        env.apply(&job).unwrap();
        // A deadline may pass before a busy machine reads, so a watch looks for the phase.
        for (name, phase) in [("active", "Running"), ("unready", "Pending"), ("unplaced", "Pending")] {
            let name = format!("{name}{suffix}");
            watch.wait_for(&format!("the pod of {name} is {phase}"), |pod| {
                pod["metadata"]["labels"]["daemonjob"] == *name && pod["status"]["phase"] == phase
            });
        }
    };
    let check = |suffix: &str| {
        let name = |name: &str| format!("{name}{suffix}");
        let job = env.wait_for("daemonjob", &name("active"), "the job exceeds its deadline", has_failed);
        assert_eq!(condition(&job, "Failed").1, "DeadlineExceeded");
        assert_eq!(condition(&job, "Complete"), ("False".into(), "DeadlineExceeded".into()));
        for name in [name("unready"), name("unplaced")] {
            let job = env.wait_for("daemonjob", &name, "the pod exceeds its deadline", is_complete);
            assert_eq!(condition(&job, "Complete").1, "NodesSkipped");
            assert_eq!(word(&job, "skippedNodes", &node), "PendingDeadlineExceeded");
        }
        for name in ["active", "unready", "unplaced"].map(name) {
            env.wait("the pod is gone", || env.list("pods", &format!("daemonjob={name}")).is_empty());
        }
    };
    start("", 5);
    check("");
    start("-again", 20);
    manager.kill().unwrap();
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(counted(&env, "active-again"), 1, "no manager ran at the deadline");
    let _manager = env.manager("daemonjob");
    check("-again");
    assert_eq!(runs(&env), [6]);
}

/// lateNodes, rerunOn, and a node that leaves the selection and returns. Reboots are scripted.
#[test]
fn handles_late_rebooted_and_returning_nodes() {
    let env = TestEnv::new("dp-rerun");
    let a = env.node("a");
    env.kubectl(&["label", "node", &a, "pick=yes"]).unwrap();
    let _manager = env.manager("daemonjob");
    env.apply(&daemonjob(&env, "plain", &json!({}))).unwrap();
    env.apply(&daemonjob(&env, "punctual", &json!({ "lateNodes": "Ignore" }))).unwrap();
    let mut boots = daemonjob(&env, "boots", &json!({ "rerunOn": ["NodeReboot"] }));
    env.apply(&boots).unwrap();
    let mut picky = daemonjob(&env, "picky", &json!({}));
    picky["spec"]["template"]["spec"]["nodeSelector"]["pick"] = json!("yes");
    env.apply(&picky).unwrap();
    for name in ["plain", "punctual", "boots", "picky"] {
        env.wait_for("daemonjob", name, "it is complete", is_complete);
    }

    // Creation timestamps have whole seconds.
    std::thread::sleep(Duration::from_millis(1_100));
    let b = env.node("b");
    for name in ["plain", "boots"] {
        env.wait_for("daemonjob", name, "the late node has succeeded", |job| {
            is_complete(job) && job["status"]["succeeded"] == 2
        });
    }
    let job = env.wait_for("daemonjob", "punctual", "the late node is skipped", |job| {
        word(job, "skippedNodes", &b) == "Late"
    });
    assert_eq!(condition(&job, "Complete"), ("True".into(), "NodesSkipped".into()));

    env.kubectl(&["label", "node", &a, "pick-"]).unwrap();
    env.wait_for("daemonjob", "picky", "the node is not selected", |job| job["status"]["desired"] == 0);
    env.kubectl(&["label", "node", &a, "pick=yes"]).unwrap();
    let job =
        env.wait_for("daemonjob", "picky", "the node is selected again", |job| job["status"]["desired"] == 1);
    assert!(is_complete(&job), "a done node stays done: {job:#}");

    // A changed template does not rerun this job; a reboot does.
    boots["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    env.apply(&boots).unwrap();
    env.wait_for("daemonjob", "boots", "the status observes the template", |job| {
        is_complete(job) && job["status"]["observedGeneration"] == 2
    });
    assert_eq!(runs_of(&env, "boots"), [("1".to_owned(), 2)].into());
    env.patch("node/status", &a, &json!({ "status": { "nodeInfo": { "bootID": "another" } } }));
    env.wait("the rebooted node has run again", || {
        let pods = env.list("pods", "daemonjob=boots,dj.dysproz.io/pod-number=2");
        pods.len() == 1 && pods[0]["spec"]["nodeName"] == *a && pods[0]["status"]["phase"] == "Succeeded"
    });
    env.wait_for("daemonjob", "boots", "it is complete again", |job| {
        is_complete(job) && job["status"]["succeeded"] == 2
    });
    assert_eq!(runs_of(&env, "boots"), [("1".to_owned(), 2), ("2".to_owned(), 1)].into());
    for (name, count) in [("plain", 2), ("punctual", 1), ("picky", 1)] {
        assert_eq!(runs_of(&env, name), [("1".to_owned(), count)].into(), "{name}");
    }
}

/// The status names the taint, and a pod that stops slowly.
#[test]
fn reasons_name_the_taint_and_the_terminating_pod() {
    let env = TestEnv::new("dp-why");
    let nodes = env.nodes(["a", "b"]);
    let [a, b] = &nodes[..] else { unreachable!() };
    env.kubectl(&["taint", "node", b, "special=yes:NoSchedule"]).unwrap();
    let _manager = env.manager("daemonjob");
    let mut job = held(&env, "why", &json!({}));
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/stop-seconds"] = json!("8");
    env.apply(&job).unwrap();
    let pod = running(&env, "why", a, 1);
    let job = env.wait_for("daemonjob", "why", "the status names the taint", |job| {
        word(job, "skippedNodes", b) == "Tainted" && job["status"]["active"] == 1
    });
    let (_, message) = told(&job, "skippedNodes", b).unwrap();
    assert!(message.contains("special=yes:NoSchedule"), "{message}");
    assert_eq!((&job["status"]["desired"], &job["status"]["skipped"]), (&json!(1), &json!(1)));

    let watch = env.watch("pods", "daemonjob=why");
    let jobs = env.watch("daemonjobs.dj.dysproz.io", "");
    assert!(!watch.events().is_empty() && !jobs.events().is_empty(), "the watches have started");
    env.kubectl(&["delete", "pod", &pod, "--wait=false"]).unwrap();
    let job = jobs.wait_for("the node waits", |job| word(job, "pendingNodes", a) == "PreviousPodTerminating");
    assert_eq!((&job["status"]["terminating"], &job["status"]["active"]), (&json!(1), &json!(0)));
    end(&env, &[&running(&env, "why", a, 2)], 0);
    env.wait_for("daemonjob", "why", "it is complete", is_complete);
    assert_eq!(most_at_a_time(&watch), 1);
    assert_eq!(runs(&env), [1, 1]);
}

/// The kind's metrics match the API server's audit log.
#[test]
fn metrics_match_the_audit_log() {
    let env = TestEnv::new("dp-metrics");
    let nodes = env.nodes(["a", "b"]);
    env.kubectl(&["taint", "node", &nodes[1], "special=yes:NoSchedule"]).unwrap();
    let manager = env.manager("daemonjob");
    let mut fails = daemonjob(&env, "fails", &json!({ "backoffLimit": 0 }));
    fails["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("1");
    fails["spec"]["template"]["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
    env.apply(&fails).unwrap();
    env.apply(&daemonjob(&env, "works", &json!({}))).unwrap();
    env.apply(&daemonjob(&env, "waits", &json!({ "paused": true }))).unwrap();
    env.wait_for("daemonjob", "fails", "it has failed", has_failed);
    env.wait_for("daemonjob", "works", "it is complete", is_complete);
    env.wait_for("daemonjob", "waits", "the paused job is pending", |job| job["status"]["pending"] == 1);
    let value = |metrics: &str, name: &str| -> i64 {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} is missing in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let nodes_by_state = |metrics: &str| {
        ["desired", "succeeded", "failed", "pending", "skipped"]
            .map(|state| value(metrics, &format!("quintet_daemonjob_nodes{{state=\"{state}\"}}")))
    };
    env.wait("the gauges are the sums of the statuses", || {
        nodes_by_state(&manager.metrics().unwrap()) == [4, 1, 2, 1, 2]
    });
    let metrics = manager.metrics().unwrap();
    let made: usize = env.created_pods().values().sum();
    assert_eq!((made, value(&metrics, "quintet_daemonjob_attempts_total")), (3, 3));
    assert_eq!(value(&metrics, "quintet_daemonjob_pod_failures_total{reason=\"Error\"}"), 2);
    let writes = env.writes();
    let ledger = writes.iter().filter(|write| write.contains(" configmaps ")).count();
    assert!(ledger > 0, "{writes:?}");
    assert_eq!(value(&metrics, "quintet_daemonjob_ledger_writes_total"), i64::try_from(ledger).unwrap());
    assert!(!metrics.contains("works"), "no object is a label value");
    // Deleted objects no longer count.
    env.kubectl(&["delete", "dj", "--all", "--timeout=60s"]).unwrap();
    env.wait("the gauges are 0", || nodes_by_state(&manager.metrics().unwrap()) == [0; 5]);
}
