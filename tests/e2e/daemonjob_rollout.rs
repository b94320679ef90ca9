//! DaemonJob: `quintet rollout` follows, approves, pauses, resumes and retries a rollout.
//!
//! All nodes are simulated.

use std::process::Command;
use std::time::Duration;

use quintet_e2e::{PATIENCE, TestEnv, condition, program};
use quintet_localcluster::{run, terminal};
use serde_json::{Value, json};

use crate::daemonjob::daemonjob;
use crate::daemonjob_ledger::{end, held, running};

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

fn wait_for_pause(env: &TestEnv, job: &str, reason: &str) {
    env.wait_for("daemonjob", job, &format!("it is paused for the reason {reason}"), |job| {
        condition(job, "Paused") == ("True".into(), reason.into())
    });
}

#[test]
fn follows_pauses_and_approves_waves() {
    let env = TestEnv::new("dr-waves");
    env.nodes(["a", "b", "c", "d", "e"]);
    let _manager = env.manager("daemonjob");
    let spec = json!({ "failurePolicy": { "type": "Pause" },
        "rollout": { "waveSizes": [1, 3], "approval": "FirstWave" } });
    env.apply(&daemonjob(&env, "waves", &spec)).unwrap();
    let waits = "daemonjob/waves is held in wave 1 of 3 (WaitsForApproval): ";
    let way_out = format!("quintet rollout approve daemonjob/waves -n {}", env.namespace());
    check(&env, "status daemonjob/waves --timeout=1m", 3, &[waits, &way_out]);
    assert_eq!(env.get("daemonjob", "waves").unwrap()["status"]["succeeded"], 1);
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
