//! How Helm, Flux and Argo CD see a DaemonJob in each state.
//!
//! The tests produce each row of the table in docs/daemonjob.md and compare it with kstatus and with the
//! health check in samples/gitops. Nodes are simulated. Helm, kstatus and Argo CD's Lua interpreter are real.

use std::fs;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use quintet_daemonjob::ledger::shard_names;
use quintet_e2e::health::{Judge, Page, is_observed};
use quintet_e2e::{TestEnv, condition};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, running, told, word};
use crate::daemonjob_policies::{has_failed, never};
use crate::daemonjob_promises::hold_down;

const PAGE: Page = Page {
    file: "daemonjob.md",
    kind: "daemonjob",
    key: "resource.customizations.health.dj.dysproz.io_DaemonJob",
    conditions: &["Ready", "Finished", "Stalled"],
};

/// The states that each test produces.
const WITHOUT_A_MANAGER: [&str; 2] = ["no manager has seen it", "no manager has seen the new spec"];
const RUNNING: [&str; 5] = [
    "running",
    "running, pods are rejected",
    "running, the ledger is rejected",
    "complete, the ledger is rejected",
    "complete",
];
const FAILED: [&str; 7] = [
    "complete, failures are tolerated",
    "failed",
    "ended by `FailFast`",
    "ended by `activeDeadlineSeconds`",
    "ended by `FailJob`",
    "paused by failed nodes",
    "wave failed",
];
const HELD: [&str; 9] = [
    "paused by the user",
    "paused by an annotation",
    "settling",
    "waiting for approval",
    "changes of `onSuccess` are not allowed",
    "suspended",
    "waiting for the first due time",
    "the schedule is invalid",
    "the template is invalid",
];
const SCHEDULED: [&str; 1] = ["running at a due time"];
const NODES: [&str; 5] = [
    "complete before nodes joined",
    "failed, failed nodes can recover",
    "paused by failed nodes that can recover",
    "wave failed, failed nodes can recover",
    "paused by an unhealthy fleet",
];
const DEFINITION: [&str; 1] = ["the definition is outdated"];
const DELETED: [&str; 1] = ["being deleted, alone or with its namespace"];

/// Whether the condition is True for this reason.
fn is_true(job: &Value, type_: &str, reason: &str) -> bool {
    condition(job, type_) == ("True".into(), reason.into())
}

/// A DaemonJob whose pods exit with this code.
fn ending_with(env: &TestEnv, name: &str, code: i32, spec: &Value) -> Value {
    let mut job = never(daemonjob(env, name, spec));
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] =
        json!(code.to_string());
    job
}

/// Waits until the first pod of each node runs.
fn all_running(env: &TestEnv, job: &str, nodes: &[String]) -> Vec<String> {
    nodes.iter().map(|node| running(env, job, node, 1)).collect()
}

/// Lets held pods succeed.
fn end_all(env: &TestEnv, pods: &[String]) {
    end(env, &pods.iter().map(String::as_str).collect::<Vec<_>>(), 0);
}

fn list(objects: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects })
}

/// Needs no cluster: the tests below produce each row of the table.
#[test]
fn tests_produce_every_row_of_the_table() {
    PAGE.has_exactly(
        &[&WITHOUT_A_MANAGER[..], &RUNNING, &FAILED, &HELD, &SCHEDULED, &NODES, &DEFINITION, &DELETED]
            .concat(),
    );
}

#[test]
fn in_progress_until_a_manager_has_seen_the_spec() {
    let env = TestEnv::new("dh-unseen");
    let judge = Judge::new(&env, PAGE);
    env.node("a");
    env.apply(&daemonjob(&env, "new", &json!({}))).unwrap();
    let job = env.get("daemonjob", "new").unwrap();
    assert_eq!(job["status"], json!({ "observedGeneration": -1 }));
    judge.expect("no manager has seen it", &job);
    // Meanwhile only a manager without this kind runs.
    let other = env.manager("podset");
    sleep(Duration::from_secs(3));
    judge.expect("no manager has seen it", &env.get("daemonjob", "new").unwrap());
    assert_eq!(other.stop().unwrap(), Some(0));

    let manager = env.manager("daemonjob");
    let job = env.wait_for("daemonjob", "new", "it is complete", is_complete);
    assert_eq!(judge.health(&[&job])[0].kstatus.status, "Current");
    assert_eq!(manager.stop().unwrap(), Some(0));
    env.patch("daemonjob", "new", &json!({ "spec": { "parallelism": 1 } }));
    let job = env.get("daemonjob", "new").unwrap();
    assert_eq!(condition(&job, "Ready").0, "True", "the conditions are still those of the old spec");
    judge.expect("no manager has seen the new spec", &job);
    judge.end(&WITHOUT_A_MANAGER);
}

#[test]
fn running_and_complete() {
    let env = TestEnv::new("dh-running");
    let judge = Judge::new(&env, PAGE);
    let nodes = env.nodes(["a", "b"]);
    // ConfigMaps of another owner have the ledger's names.
    let taken = shard_names("unrecorded")
        .map(|name| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } }));
    env.apply(&list(&taken.collect::<Vec<_>>())).unwrap();

    let _manager = env.manager("daemonjob");
    let mut rejected = daemonjob(&env, "rejected", &json!({}));
    rejected["spec"]["template"]["spec"]["serviceAccountName"] = json!("missing");
    let mut nowhere = daemonjob(&env, "nowhere", &json!({}));
    nowhere["spec"]["template"]["spec"]["nodeSelector"]["nowhere"] = json!("yes");
    let mut late = daemonjob(&env, "skips", &json!({ "pendingDeadlineSeconds": 2 }));
    late["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/start"] = json!("never");
    let done = daemonjob(&env, "done", &json!({}));
    let unrecorded = held(&env, "unrecorded", &json!({}));
    env.apply(&list(&[unrecorded, rejected, nowhere, late, done])).unwrap();

    let pods = all_running(&env, "unrecorded", &nodes);
    judge.wait("running", "unrecorded", |job| job["status"]["active"] == 2);
    judge.wait("running, pods are rejected", "rejected", |job| is_true(job, "PodsRefused", "FailedCreate"));
    for (name, reason) in
        [("done", "AllNodesDone"), ("nowhere", "NoEligibleNodes"), ("skips", "NodesSkipped")]
    {
        judge.wait("complete", name, |job| is_true(job, "Complete", reason));
    }

    // A deleted pod keeps its finalizer until the ledger has its outcome.
    end(&env, &[&pods[0]], 0);
    env.wait_for("daemonjob", "unrecorded", "a node has succeeded", |job| job["status"]["succeeded"] == 1);
    env.kubectl(&["delete", "pod", &pods[0], "--wait=false"]).unwrap();
    judge.wait("running, the ledger is rejected", "unrecorded", |job| {
        condition(job, "LedgerRefused").0 == "True"
    });
    end(&env, &[&pods[1]], 0);
    let job = judge.wait("complete, the ledger is rejected", "unrecorded", is_complete);
    assert_eq!(condition(&job, "LedgerRefused").0, "True", "{:#}", job["status"]);
    judge.end(&RUNNING);
}

#[test]
fn failed_nodes() {
    let env = TestEnv::new("dh-failed");
    let judge = Judge::new(&env, PAGE);
    env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let with = |name: &str, policy: Value| {
        let spec = json!({ "backoffLimit": 0, "parallelism": 1, "failurePolicy": policy });
        ending_with(&env, name, 1, &spec)
    };
    let rule = json!({ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } });
    let fails_all = ending_with(&env, "fails-all", 42, &json!({ "podFailurePolicy": { "rules": [rule] } }));
    let mut wave = with("wave", json!({ "type": "Pause", "maxFailedNodes": 1 }));
    wave["spec"]["rollout"] = json!({ "waveSizes": [1] });
    env.apply(&list(&[
        with("tolerates", json!({ "type": "Continue", "maxFailedNodes": 2 })),
        with("fails", Value::Null),
        with("fast", json!({ "type": "FailFast" })),
        with("pauses", json!({ "type": "Pause" })),
        held(&env, "late", &json!({ "activeDeadlineSeconds": 3 })),
        wave,
        fails_all,
    ]))
    .unwrap();
    judge.wait("complete, failures are tolerated", "tolerates", is_complete);
    judge.wait("failed", "fails", has_failed);
    judge.wait("ended by `FailFast`", "fast", has_failed);
    judge.wait("ended by `activeDeadlineSeconds`", "late", has_failed);
    judge.wait("ended by `FailJob`", "fails-all", has_failed);
    judge.wait("paused by failed nodes", "pauses", |job| is_true(job, "Paused", "MaxFailedNodesExceeded"));
    judge.wait("wave failed", "wave", |job| is_true(job, "Paused", "WaveFailed"));
    judge.end(&FAILED);
}

#[test]
fn held_by_the_spec() {
    let env = TestEnv::new("dh-held");
    let judge = Judge::new(&env, PAGE);
    env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let mut wrong = daemonjob(&env, "wrong", &json!({}));
    // The schema accepts the template, but the API server rejects the pod.
    wrong["spec"]["template"]["spec"]["containers"][0]["name"] = json!("Not_A_Name");
    let pauses = daemonjob(&env, "pauses", &json!({ "paused": true }));
    let sleeps = daemonjob(&env, "sleeps", &json!({ "suspend": true }));
    let settles = daemonjob(&env, "settles", &json!({ "rollout": { "settleSeconds": 600 } }));
    let rollout = json!({ "waveSizes": [1], "approval": "FirstWave" });
    let waits =
        daemonjob(&env, "waits", &json!({ "failurePolicy": { "type": "Pause" }, "rollout": rollout }));
    let mut stops = daemonjob(&env, "stops", &json!({}));
    stops["metadata"]["annotations"] = json!({ "dj.dysproz.io/paused": "incident" });
    let on_success = json!({ "labels": { "example.com/ready": "yes" } });
    let marks = daemonjob(&env, "marks", &json!({ "onSuccess": on_success }));
    let nightly = daemonjob(&env, "nightly", &json!({ "schedule": "0 3 29 2 *" }));
    let never = daemonjob(&env, "never", &json!({ "schedule": "0 25 * * *" }));
    env.apply(&list(&[pauses, sleeps, wrong, settles, waits, stops, marks, nightly, never])).unwrap();
    judge.wait("paused by the user", "pauses", |job| is_true(job, "Paused", "Paused"));
    judge.wait("paused by an annotation", "stops", |job| is_true(job, "Paused", "PausedByAnnotation"));
    judge.wait("settling", "settles", |job| condition(job, "Complete").1 == "Settling");
    judge.wait("waiting for approval", "waits", |job| is_true(job, "Paused", "WaitsForApproval"));
    judge.wait("changes of `onSuccess` are not allowed", "marks", |job| {
        condition(job, "Complete").1 == "MarkRefused"
    });
    judge.wait("suspended", "sleeps", |job| is_true(job, "Suspended", "Suspended"));
    judge.wait("waiting for the first due time", "nightly", |job| is_true(job, "Ready", "WaitsForDueTime"));
    judge.wait("the schedule is invalid", "never", |job| is_true(job, "ScheduleInvalid", "ScheduleInvalid"));
    judge.wait("the template is invalid", "wrong", |job| is_true(job, "PodsRefused", "TemplateInvalid"));
    judge.end(&HELD);
}

#[test]
fn runs_at_a_due_time() {
    let env = TestEnv::new("dh-scheduled");
    let judge = Judge::new(&env, PAGE);
    env.node("a");
    let _manager = env.manager("daemonjob");
    env.apply(&held(&env, "minutely", &json!({ "schedule": "* * * * *" }))).unwrap();
    judge.wait("running at a due time", "minutely", |job| is_true(job, "Ready", "RunsAtDueTime"));
    judge.end(&SCHEDULED);
}

/// Nodes join and stop reporting; the node controller taints the silent nodes.
#[test]
fn nodes_join_and_break() {
    let env = TestEnv::new("dh-nodes");
    let judge = Judge::new(&env, PAGE);
    let mut nodes = env.nodes(["a", "b", "c"]);
    let _manager = env.manager("daemonjob");
    env.apply(&held(&env, "first", &json!({}))).unwrap();
    let pods = all_running(&env, "first", &nodes);
    end_all(&env, &pods);
    env.wait_for("daemonjob", "first", "it is complete", is_complete);
    nodes.push(env.node("d"));
    let pod = running(&env, "first", &nodes[3], 1);
    judge.wait("complete before nodes joined", "first", |job| job["status"]["active"] == 1);
    end(&env, &[&pod], 0);
    let [a, b, c, d] = &nodes[..] else { unreachable!() };

    let lost = |type_: &str| json!({ "type": type_, "nodeLostAfterSeconds": 4 });
    env.apply(&held(&env, "loses", &json!({ "failurePolicy": lost("Continue") }))).unwrap();
    let mut pausing = held(&env, "pauses", &json!({ "parallelism": 1, "failurePolicy": lost("Pause") }));
    pausing["spec"]["template"]["spec"]["nodeSelector"]["pair"] = json!("yes");
    env.kubectl(&["label", "node", c, d, "pair=yes"]).unwrap();
    env.apply(&pausing).unwrap();
    env.apply(&held(&env, "fleet", &json!({ "parallelism": 1 }))).unwrap();
    let mut policy = lost("Pause");
    policy["maxFailedNodes"] = json!(1);
    let mut wave = held(&env, "wave", &json!({ "failurePolicy": policy, "rollout": { "waveSizes": [2] } }));
    wave["spec"]["template"]["spec"]["nodeSelector"]["wave"] = json!("yes");
    env.kubectl(&["label", "node", c, d, "wave=yes"]).unwrap();
    env.apply(&wave).unwrap();
    running(&env, "wave", c, 1);
    let second = running(&env, "wave", d, 1);
    let pods = all_running(&env, "loses", &nodes);
    running(&env, "pauses", c, 1);
    running(&env, "fleet", a, 1);
    hold_down(&env, c, true);
    end(&env, &[&pods[0], &pods[1], &pods[3]], 0);
    let job = judge.wait("failed, failed nodes can recover", "loses", has_failed);
    assert_eq!(word(&job, "failedNodes", c), "NodeLost");
    judge.wait("paused by failed nodes that can recover", "pauses", |job| {
        is_true(job, "Paused", "MaxFailedNodesExceeded")
    });
    // One of the two nodes of the wave is lost, and a third one joins.
    end(&env, &[&second], 0);
    env.kubectl(&["label", "node", b, "wave=yes"]).unwrap();
    judge.wait("wave failed, failed nodes can recover", "wave", |job| is_true(job, "Paused", "WaveFailed"));

    for node in [a, b] {
        hold_down(&env, node, true);
    }
    judge.wait("paused by an unhealthy fleet", "fleet", |job| is_true(job, "Paused", "FleetUnhealthy"));
    judge.end(&NODES);
}

/// Uses a separate cluster whose definition lacks `status.rollout`.
#[test]
fn definition_without_the_rollout() {
    let env = TestEnv::alone("dh-definition");
    let judge = Judge::new(&env, PAGE);
    env.node("a");
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/rollout";
    let patch = json!([{ "op": "remove", "path": path }]).to_string();
    env.kubectl(&["patch", "crd", "daemonjobs.dj.dysproz.io", "--type=json", "-p", &patch]).unwrap();
    let _manager = env.manager("daemonjob");
    env.apply(&held(&env, "unknown", &json!({}))).unwrap();
    judge.wait("the definition is outdated", "unknown", |job| is_true(job, "Paused", "DefinitionOutdated"));
    judge.end(&DEFINITION);
}

/// Another client's finalizer keeps the DaemonJobs.
#[test]
fn terminating_when_deleted() {
    let env = TestEnv::new("dh-deleted");
    let judge = Judge::new(&env, PAGE);
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let deleted = DELETED[0];
    let kept = |name: &str| {
        let mut job = held(&env, name, &json!({ "parallelism": 1 }));
        job["metadata"]["finalizers"] = json!(["example.com/keep"]);
        job
    };
    env.apply(&list(&[kept("alone"), kept("with-namespace")])).unwrap();
    for name in ["alone", "with-namespace"] {
        running(&env, name, &nodes[0], 1);
    }
    let is_deleted = |job: &Value| !job["metadata"]["deletionTimestamp"].is_null();
    env.kubectl(&["delete", "daemonjob", "alone", "--wait=false"]).unwrap();
    let job = env.wait_for("daemonjob", "alone", "it is being deleted", is_deleted);
    judge.expect(deleted, &job);
    assert!(!is_deleted(&env.get("daemonjob", "with-namespace").unwrap()));
    env.kubectl(&["delete", "namespace", env.namespace(), "--wait=false"]).unwrap();
    let job = env.wait_for("daemonjob", "with-namespace", "it is being deleted", is_deleted);
    judge.expect(deleted, &job);
    for name in ["alone", "with-namespace"] {
        env.patch("daemonjob", name, &json!({ "metadata": { "finalizers": null } }));
    }
    judge.end(&DELETED);
}

/// A chart with one DaemonJob.
fn chart(env: &TestEnv, job: &Value) -> String {
    let name = job["metadata"]["name"].as_str().unwrap();
    let folder = env.kube().dir().join(format!("{}-{name}-chart", env.namespace()));
    fs::create_dir_all(folder.join("templates")).unwrap();
    let about = json!({ "apiVersion": "v2", "name": name, "version": "0.1.0" });
    fs::write(folder.join("Chart.yaml"), about.to_string()).unwrap();
    fs::write(folder.join("templates/daemonjob.yaml"), job.to_string()).unwrap();
    folder.display().to_string()
}

/// Starts helm with `--wait`. The thread returns its standard output, or its error.
fn helm(env: &TestEnv, args: &[&str]) -> JoinHandle<Result<String, String>> {
    let mut helm = env.cluster().helm();
    helm.args(args).args(["--wait", "--timeout=4m", "--namespace", env.namespace()]);
    thread::spawn(move || run::stdout(&mut helm).map_err(|error| format!("{error:#}")))
}

/// helm starts before the manager and returns when the DaemonJob is complete, for an install and an upgrade.
#[test]
fn helm_waits_until_complete() {
    let env = TestEnv::new("dh-helm");
    let judge = Judge::new(&env, PAGE);
    let nodes = env.nodes(["a", "b"]);
    let watch = env.watch("daemonjobs.dj.dysproz.io", "");
    let mut job = held(&env, "work", &json!({}));
    let mut without_a_manager = WITHOUT_A_MANAGER.into_iter();
    for (command, number) in [("install", 1), ("upgrade", 2)] {
        let running_helm = helm(&env, &[command, "work", &chart(&env, &job)]);
        env.wait_for("daemonjob", "work", "the API server has the new generation", |job| {
            job["metadata"]["generation"] == number
        });
        let state = without_a_manager.next().unwrap();
        let check = |seconds: u64, state: &str| {
            for _ in 0..seconds {
                sleep(Duration::from_secs(1));
                judge.expect(state, &env.get("daemonjob", "work").unwrap());
                assert!(!running_helm.is_finished(), "helm {command} returned in state {state}");
            }
        };
        check(20, state);
        let manager = env.manager("daemonjob");
        let pods: Vec<String> = nodes.iter().map(|node| running(&env, "work", node, number)).collect();
        check(5, "running");
        end_all(&env, &pods);
        running_helm.join().unwrap().unwrap();
        let done = env.get("daemonjob", "work").unwrap();
        assert!(is_observed(&done) && is_complete(&done), "helm returned early: {done:#}");
        assert_eq!(manager.stop().unwrap(), Some(0));
        job["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    }

    let jobs: Vec<Value> = watch.events().into_iter().map(|(_, job)| job).collect();
    let health = judge.health(&jobs.iter().collect::<Vec<_>>());
    let mut current = 0;
    for (job, health) in jobs.iter().zip(health) {
        let is_done = is_observed(job) && is_complete(job);
        current += usize::from(is_done);
        let expected = if is_done { "Current" } else { "InProgress" };
        assert_eq!(health.kstatus.status, expected, "{} {job:#}", health.kstatus.message);
    }
    println!("{current} of {} statuses are Current", jobs.len());
    assert!(current >= 2 && jobs.len() - current >= 4, "{jobs:#?}");
}

/// helm fails with the DaemonJob's message long before its timeout.
#[test]
fn helm_fails_when_the_daemonjob_fails() {
    let env = TestEnv::new("dh-helm-fails");
    let nodes = env.nodes(["a"]);
    let _manager = env.manager("daemonjob");
    let job = ending_with(&env, "broken", 3, &json!({ "backoffLimit": 0 }));
    let install = helm(&env, &["install", "broken", &chart(&env, &job)]);
    let failed = env.wait_for("daemonjob", "broken", "it has failed", has_failed);
    assert!(told(&failed, "failedNodes", &nodes[0]).is_some());
    env.wait("helm has exited", || install.is_finished());
    let error_of_helm = install.join().unwrap().unwrap_err();
    let message =
        failed["status"]["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Stalled");
    let message = message.unwrap()["message"].as_str().unwrap();
    assert!(error_of_helm.contains("status: Failed") && error_of_helm.contains(message), "{error_of_helm}");
    assert!(!error_of_helm.contains("deadline exceeded"), "{error_of_helm}");
}
