//! DaemonJob: `quintet rollout` follows, approves, pauses, resumes and retries a rollout.
//!
//! All nodes are simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use quintet_e2e::objects::Watch;
use quintet_e2e::shell::Shell;
use quintet_e2e::{PATIENCE, TestEnv, condition, program, workspace};
use quintet_localcluster::manager::Manager;
use quintet_localcluster::{run, terminal};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, running, shard_of, word};

/// The width of a terminal on which no message is wrapped.
const COLUMNS: u16 = 400;

/// A command of `quintet rollout`.
fn command(env: &TestEnv, line: &str) -> Command {
    let mut command = Command::new(program());
    command.arg("rollout").args(line.split(' ')).args(["-n", env.namespace()]);
    command.env("KUBECONFIG", env.cluster().kubeconfig());
    command
}

/// The exit code and the output of `quintet rollout`.
fn rollout(env: &TestEnv, line: &str) -> (Option<i32>, String) {
    let output = command(env, line).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap().trim_end().to_owned())
}

/// Asserts the exit code of a command, and parts of its output.
pub(crate) fn check(env: &TestEnv, line: &str, code: i32, parts: &[&str]) {
    let (actual, text) = rollout(env, line);
    assert_eq!(actual, Some(code), "{line}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line}: {text}");
    }
}

/// Waits until a pod runs. Returns its name and its node.
fn first_running(env: &TestEnv, job: &str) -> (String, String) {
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    let found = run::poll("a pod runs", PATIENCE, Duration::from_millis(200), || {
        Ok(env.list("pods", &format!("daemonjob={job}")).into_iter().find(is_running))
    });
    let pod = found.unwrap_or_else(|error| panic!("{error}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]))
}

/// Waits until the gauge of DaemonJobs has these states, each for one DaemonJob.
fn wait_for_states(env: &TestEnv, manager: &Manager, expected: &[&str]) {
    env.wait(&format!("the states are {expected:?}"), || {
        let metrics = manager.metrics().unwrap();
        let counts =
            metrics.lines().filter_map(|line| line.strip_prefix("quintet_daemonjob_objects{state=\""));
        counts.filter_map(|line| line.strip_suffix("\"} 1")).collect::<Vec<_>>() == expected
    });
}

fn wait_for_pause(env: &TestEnv, job: &str, reason: &str) {
    env.wait_for("daemonjob", job, &format!("it is paused for the reason {reason}"), |job| {
        condition(job, "Paused") == ("True".into(), reason.into())
    });
}

#[test]
fn follows_pauses_and_approves_waves() {
    let env = TestEnv::new("dr-waves");
    env.nodes(["a", "b", "c", "d", "e"]);
    let manager = env.manager("daemonjob");
    let spec = json!({ "failurePolicy": { "type": "Pause" },
        "rollout": { "waveSizes": [1, 3], "approval": "FirstWave" } });
    env.apply(&daemonjob(&env, "waves", &spec)).unwrap();
    let waits = "daemonjob/waves is held in wave 1 of 3 (WaitsForApproval): ";
    let way_out = format!("quintet rollout approve daemonjob/waves -n {}", env.namespace());
    check(&env, "status daemonjob/waves --timeout=1m", 3, &[waits, &way_out]);
    assert_eq!(env.get("daemonjob", "waves").unwrap()["status"]["succeeded"], 1);
    wait_for_states(&env, &manager, &["WaitsForApproval"]);
    // On a terminal, a bar for each wave comes first.
    let (status, text) = terminal::output(command(&env, "status daemonjob/waves"), COLUMNS).unwrap();
    assert_eq!(status.code(), Some(3), "{text}");
    let bars = [
        "Wave 1   [##############################]     1/1     waits for approval",
        "Wave 2   [------------------------------]     0/2",
        "Wave 3   [------------------------------]     0/2",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], bars, "{text}");
    assert!(lines[3].starts_with(waits) && lines[4].ends_with(&way_out), "{text}");

    check(&env, "pause daemonjob/waves --reason=incident-7", 0, &["daemonjob/waves paused"]);
    wait_for_pause(&env, "waves", "PausedByAnnotation");
    wait_for_states(&env, &manager, &["PausedByAnnotation"]);
    check(&env, "pause daemonjob/waves", 1, &["daemonjob/waves is paused already: incident-7"]);
    check(
        &env,
        "approve daemonjob/waves",
        1,
        &["wave 1 of daemonjob/waves does not wait for its approval yet"],
    );
    let way_out = format!("quintet rollout resume daemonjob/waves -n {}", env.namespace());
    check(&env, "status daemonjob/waves", 3, &["(PausedByAnnotation): ", &way_out]);
    check(&env, "resume daemonjob/waves", 0, &["daemonjob/waves resumed"]);
    wait_for_pause(&env, "waves", "WaitsForApproval");

    check(&env, "approve daemonjob/waves", 0, &["daemonjob/waves: wave 1 of rollout 1 is approved"]);
    check(&env, "status daemonjob/waves --timeout=1m", 0, &["All 5 eligible nodes are done."]);
    check(&env, "approve daemonjob/waves", 1, &["the rollout of daemonjob/waves is over"]);
    wait_for_states(&env, &manager, &[]);
}

#[test]
fn follows_the_runbooks_of_a_held_rollout() {
    let env = TestEnv::new("dr-runbooks");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let shell = Shell::new(env.cluster(), env.namespace());
    let follow =
        |document: &str, heading: &str, job: &str| shell.follow(document, heading, env.namespace(), job);
    let alerts = "docs/alerts.md";
    let done = ["All 2 eligible nodes are done."];

    let spec = json!({ "failurePolicy": { "type": "Pause" },
        "rollout": { "waveSizes": [1], "approval": "EveryWave" } });
    for (job, document, heading) in [
        ("waves", alerts, "### QuintetDaemonJobWaitsForApproval"),
        ("drivers", "docs/rollout.md", "## Approve a wave"),
    ] {
        env.apply(&daemonjob(&env, job, &spec)).unwrap();
        wait_for_pause(&env, job, "WaitsForApproval");
        check(&env, &format!("pause daemonjob/{job} --reason=incident-7"), 0, &["paused"]);
        wait_for_pause(&env, job, "PausedByAnnotation");
        let pauses = follow(alerts, "### QuintetDaemonJobPausedByAnnotation", job);
        assert!(pauses.contains("incident-7"), "{pauses}");
        wait_for_pause(&env, job, "WaitsForApproval");
        follow(document, heading, job);
        check(&env, &format!("status daemonjob/{job} --timeout=1m"), 0, &done);
    }

    let spec = json!({ "backoffLimit": 0, "parallelism": 2, "failurePolicy": { "type": "Pause" } });
    env.apply(&held(&env, "failing", &spec)).unwrap();
    let [failed, other] = &nodes[..] else { unreachable!() };
    // A run of which all nodes are done has ended, and is not held.
    let runs = running(&env, "failing", other, 1);
    for (number, heading) in
        [(1, "### QuintetDaemonJobRolloutStopped"), (2, "### QuintetDaemonJobNodesFailed")]
    {
        end(&env, &[&running(&env, "failing", failed, number)], 1);
        check(&env, "status daemonjob/failing --timeout=1m", 3, &["(MaxFailedNodesExceeded): "]);
        let printed = follow(alerts, heading, "failing");
        assert!(printed.contains("BackoffLimitExceeded") && printed.contains(failed), "{printed}");
    }
    end(&env, &[&running(&env, "failing", failed, 3), &runs], 0);
    check(&env, "status daemonjob/failing --timeout=1m", 0, &done);
}

#[test]
fn approves_a_wave_ahead_on_request() {
    let env = TestEnv::new("dr-ahead");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let spec = json!({ "failurePolicy": { "type": "Pause" },
        "rollout": { "waveSizes": [1], "approval": "EveryWave" } });
    env.apply(&held(&env, "ahead", &spec)).unwrap();
    let (pod, node) = first_running(&env, "ahead");
    check(&env, "approve daemonjob/ahead", 1, &["does not wait for its approval yet"]);
    check(&env, "approve daemonjob/ahead --ahead", 0, &["wave 1 of rollout 1 is approved"]);
    end(&env, &[&pod], 0);
    let other = nodes.iter().find(|one| **one != node).unwrap();
    end(&env, &[&running(&env, "ahead", other, 1)], 0);
    check(&env, "status daemonjob/ahead --timeout=1m", 0, &["All 2 eligible nodes are done."]);
}

#[test]
fn retries_failed_nodes_and_returns_exit_codes() {
    let env = TestEnv::new("dr-retry");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let spec = json!({ "parallelism": 1, "backoffLimit": 0, "failurePolicy": { "type": "Pause" } });
    env.apply(&held(&env, "job", &spec)).unwrap();
    let (pod, node) = first_running(&env, "job");
    let (code, text) = rollout(&env, "status daemonjob/job --watch=false");
    assert_eq!(code, Some(0), "{text}");
    check(&env, "status daemonjob/job --timeout=2s", 1, &["daemonjob/job was not complete in time: "]);
    end(&env, &[&pod], 1);
    let failed = format!("{node}: BackoffLimitExceeded: ");
    let way_out = format!("quintet rollout retry daemonjob/job -n {}", env.namespace());
    check(&env, "status daemonjob/job --timeout=1m", 3, &["(MaxFailedNodesExceeded): ", &failed, &way_out]);

    env.patch("daemonjob", "job", &json!({ "spec": { "parallelism": 2 } }));
    check(&env, "retry daemonjob/job --token=again", 0, &["spec.retryToken again"]);
    check(
        &env,
        "retry daemonjob/job --token=again",
        1,
        &["the retryToken of daemonjob/job is \"again\" already"],
    );
    let other = nodes.iter().find(|one| **one != node).unwrap();
    end(&env, &[&running(&env, "job", &node, 2), &running(&env, "job", other, 1)], 0);
    check(&env, "status daemonjob/job --timeout=1m", 0, &["All 2 eligible nodes are done."]);

    let mut failing = daemonjob(&env, "failing", &json!({ "backoffLimit": 0 }));
    failing["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("3");
    env.apply(&failing).unwrap();
    check(
        &env,
        "status daemonjob/failing --timeout=1m",
        1,
        &["quintet: daemonjob/failing failed (NodesFailed): "],
    );
    check(&env, "status daemonjob/none", 2, &["daemonjob/none does not exist in namespace"]);
    check(&env, "undo daemonjob/job", 1, &["rollout undo supports only PodSets"]);
}

/// The reasons in the section of docs/daemonjob.md about retries.
fn documented_reasons() -> BTreeSet<String> {
    let page = fs::read_to_string(workspace().join("docs/daemonjob.md")).unwrap();
    let (_, section) = page.split_once("### Retry failed nodes\n").unwrap();
    let (section, _) = section.split_once("\n#").unwrap();
    let is_reason =
        |word: &&str| word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphabetic);
    section.split('`').skip(1).step_by(2).filter(is_reason).map(str::to_owned).collect()
}

/// The nodes in a status that a new retryToken retries according to the page.
fn retried_by_the_page(job: &Value) -> BTreeSet<String> {
    let nodes = |list: &str| job["status"][list].as_array().cloned().unwrap_or_default();
    let reasons = documented_reasons();
    let mut skipped = nodes("skippedNodes");
    skipped.retain(|node| reasons.contains(node["reason"].as_str().unwrap()));
    let retried = nodes("failedNodes").into_iter().chain(skipped);
    retried.map(|node| node["node"].as_str().unwrap().to_owned()).collect()
}

/// The number of created pods by node, from the audit log. The watch has the node of each name.
fn created_by_node(env: &TestEnv, pods: &Watch) -> BTreeMap<String, usize> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let node_of = |pod: &Value| {
        let meta = &pod["metadata"];
        (text(&meta["name"]), text(&meta["annotations"]["dj.dysproz.io/node-name"]))
    };
    let nodes: BTreeMap<String, String> = pods.events().iter().map(|(_, pod)| node_of(pod)).collect();
    let mut created = BTreeMap::new();
    for (pod, times) in env.created_pods() {
        *created.entry(nodes[&pod].clone()).or_default() += times;
    }
    created
}

/// A new token retries the nodes of the page, each once, and no other node. The audit log counts the pods.
#[test]
fn retries_only_the_nodes_that_the_page_names() {
    let env = TestEnv::new("dr-named");
    let nodes = env.nodes(["done", "failed", "lost", "pending", "tainted"]);
    let [done, failed, lost, pending, tainted] = &nodes[..] else { unreachable!() };
    env.kubectl(&["taint", "node", tainted, "special=yes:NoSchedule"]).unwrap();
    // It fills its node, so that the job's pod cannot be scheduled there.
    let cpus = |cpus: &str| json!({ "requests": { "cpu": cpus } });
    env.apply(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "filler" },
        "spec": { "nodeName": pending, "containers": [{ "name": "c", "image": "i", "resources": cpus("32") }] } }))
        .unwrap();
    env.wait_for("node", tainted, "the node has its taint", |node| node["spec"]["taints"].is_array());
    let _manager = env.manager("daemonjob");
    let pods = env.watch("pods", "daemonjob=job");
    let mut job = held(&env, "job", &json!({ "backoffLimit": 0 }));
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = cpus("1");
    env.apply(&job).unwrap();
    let [on_done, on_failed, on_lost] = [done, failed, lost].map(|node| running(&env, "job", node, 1));
    end(&env, &[&on_done, &on_lost], 0);
    end(&env, &[&on_failed], 1);
    env.wait_for("daemonjob", "job", "three nodes have ended", |job| {
        job["status"]["succeeded"] == 2 && word(job, "failedNodes", failed) == "BackoffLimitExceeded"
    });
    env.kubectl(&["delete", "pod", &on_lost, "--timeout=60s"]).unwrap();
    let (shard, uid) = shard_of(&env, "job", lost);
    env.patch("configmap", &shard, &json!({ "data": { &*uid: "scribble" } }));
    env.patch("daemonjob", "job", &json!({ "spec": { "pendingDeadlineSeconds": 1 } }));
    let ended = env.wait_for("daemonjob", "job", "every node has ended", |job| {
        condition(job, "Failed") == ("True".into(), "NodesFailed".into())
            && word(job, "skippedNodes", lost) == "RecordLost"
            && word(job, "skippedNodes", pending) == "PendingDeadlineExceeded"
            && word(job, "skippedNodes", tainted) == "Tainted"
    });
    let expected: BTreeSet<String> = [failed, lost, pending].map(Clone::clone).into();
    assert_eq!(retried_by_the_page(&ended), expected, "{:#}", ended["status"]);

    // Without a new token, no node runs again, even if it could.
    env.kubectl(&["delete", "pod", "filler", "--timeout=60s"]).unwrap();
    env.patch("daemonjob", "job", &json!({ "spec": { "pendingDeadlineSeconds": 600 } }));
    env.writes_at_rest();
    let mut counts: BTreeMap<String, usize> =
        [done, failed, lost, pending].map(|node| (node.clone(), 1)).into();
    assert_eq!(created_by_node(&env, &pods), counts);

    check(&env, "retry daemonjob/job --token=again", 0, &["spec.retryToken again"]);
    let run = || {
        let pods = env.list("pods", "daemonjob=job");
        let pods = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
        pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    env.wait("the retried nodes run", || run().len() == expected.len());
    let retried = run();
    end(&env, &retried.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    env.wait_for("daemonjob", "job", "it is complete", |job| {
        is_complete(job) && job["status"]["succeeded"] == 4
    });
    env.writes_at_rest();
    for node in &expected {
        *counts.get_mut(node).unwrap() += 1;
    }
    assert_eq!(created_by_node(&env, &pods), counts);

    // A further token has nothing to retry.
    check(&env, "retry daemonjob/job --token=third", 0, &["spec.retryToken third"]);
    env.wait_for("daemonjob", "job", "the token is in effect", |job| {
        job["status"]["rollout"]["retryToken"] == "third" && is_complete(job)
    });
    env.writes_at_rest();
    assert_eq!(created_by_node(&env, &pods), counts);
}
