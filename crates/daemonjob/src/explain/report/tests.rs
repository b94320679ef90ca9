use super::*;
use crate::ledger::{SHARDS, shard_name, shard_of};
use crate::mark_prefixes::Permitted;
use crate::rollout::Ending;
use rstest::rstest;
use serde_json::json;
use std::sync::Arc;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// A DaemonJob whose run began at 00:00.
fn job(spec: &Value) -> DaemonJob {
    let mut job = json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": {"name": "d", "namespace": "ns", "uid": "job", "generation": 1},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"app": "v1"}}}},
        "status": {"observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z"}});
    for (field, value) in spec.as_object().unwrap().clone() {
        job["spec"][field] = value;
    }
    let mut job: DaemonJob = serde_json::from_value(job).unwrap();
    let hash = job.spec.template.hash();
    let status = job.status.as_mut().unwrap();
    (status.template_hash, status.run) = (Some(hash), Some(1));
    status.rollout = serde_json::from_value(json!({"number": 1})).unwrap();
    job
}

fn new(job: DaemonJob) -> DaemonJob {
    let mut job = DaemonJob { status: None, ..job };
    job.metadata.uid = None;
    job
}

fn node(name: &str, more: &Value) -> Value {
    let mut node = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "v1"},
            "creationTimestamp": "2025-01-01T00:00:00Z"},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "b"}}});
    for (pointer, value) in more.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        node.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    node
}

/// Nodes that may run.
fn ready(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| node(name, &json!({}))).collect()
}

fn pod(job: &DaemonJob, node: &str, run: u64, status: &Value) -> Value {
    json!({"metadata": {"name": format!("d-{node}-{run}"), "namespace": "ns", "uid": format!("pod-{node}-{run}"),
            "creationTimestamp": "2026-01-01T00:00:01Z",
            "labels": {"dj.dysproz.io/node-uid": format!("uid-{node}"), "dj.dysproz.io/pod-number": run.to_string(),
                "dj.dysproz.io/template-hash": job.spec.template.hash()},
            "annotations": {"dj.dysproz.io/node-name": node, "dj.dysproz.io/boot-id": "b"},
            "ownerReferences": [{"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "d", "uid": "job",
                "controller": true}]},
        "spec": {"nodeName": node}, "status": status})
}

/// Pods by node, number and phase. Their containers started at 00:00:05.
fn pods(job: &DaemonJob, pods: &[(&str, u64, &str)]) -> Vec<Value> {
    let status = |phase: &str| {
        let started = "2026-01-01T00:00:05Z";
        let state = match phase {
            "Pending" => return json!({"phase": phase}),
            "Running" => json!({"running": {"startedAt": started}}),
            _ => json!({"terminated": {"exitCode": u8::from(phase == "Failed"), "reason": "Error",
                "startedAt": started, "finishedAt": "2026-01-01T00:00:10Z"}}),
        };
        json!({"phase": phase, "containerStatuses": [{"name": "c", "state": state}]})
    };
    pods.iter().map(|(node, number, phase)| pod(job, node, *number, &status(phase))).collect()
}

fn world(nodes: Vec<Value>, pods: Vec<Value>) -> World {
    World { nodes: decoded(nodes), pods: decoded(pods), ..World::default() }
}

fn decoded<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<Arc<T>> {
    values.into_iter().map(|value| Arc::new(serde_json::from_value(value).unwrap())).collect()
}

fn recorded(mut world: World, node: &str, line: &str) -> World {
    let uid = format!("uid-{node}");
    let name = shard_name("d", shard_of(&uid));
    let shard =
        json!({"metadata": {"name": name, "labels": {"dj.dysproz.io/ledger": "v2"}}, "data": {uid: line}});
    world.ledger.push(Arc::new(serde_json::from_value(shard).unwrap()));
    world
}

fn explain(job: &DaemonJob, world: &World) -> Report {
    report(job, world, Origin::Cluster, now())
}

fn row<'a>(report: &'a Report, node: &str) -> &'a Row {
    report.rows.iter().find(|row| row.node == node).unwrap_or_else(|| panic!("no {node} in {report:#?}"))
}

/// State and reason of a node.
fn seen<'a>(report: &'a Report, node: &str) -> (Word, &'a str) {
    let row = row(report, node);
    (row.state, &row.reason)
}

/// A37: the report shows the termination message, which the status omits, to users who may read the pod.
#[test]
fn shows_the_termination_message() {
    let job = job(&json!({"backoffLimit": 0}));
    let terminated = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no disk\n",
        "startedAt": "2026-01-01T00:00:05Z", "finishedAt": "2026-01-01T00:00:06Z"}});
    let status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "state": terminated}]});
    let world = world(ready(&["a"]), vec![pod(&job, "a", 1, &status)]);
    let report = report(&job, &world, Origin::Cluster, now());
    let row = row(&report, "a");
    assert_eq!((row.state, row.termination_message.as_deref()), (Word::Failed, Some("no disk")));
    assert!(row.message.ends_with("with exit 3 (Error)"), "{}", row.message);
}

#[test]
fn gives_every_node_a_row_and_a_reason() {
    let job = job(&json!({"backoffLimit": 0}));
    let mut nodes = ready(&["due", "runs", "starts", "done", "failed"]);
    nodes.extend([
        node("tainted", &json!({"/spec/taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})),
        node("other", &json!({"/metadata/labels/app": "v2"})),
        node("bare", &json!({"/metadata/labels": {}})),
    ]);
    let pods = pods(&job, &[("runs", 3, "Running"), ("starts", 1, "Pending"), ("failed", 1, "Failed")]);
    let hash = job.spec.template.hash();
    let line = format!(
        "node=done template={hash} rollout=1 run=1 pod=2 outcome=Succeeded clear=true ended=2026-01-01T00:00:30Z"
    );
    let report = explain(&job, &recorded(world(nodes, pods), "done", &line));
    let of = |name: &str| {
        let row = row(&report, name);
        (row.state, row.reason.as_str(), row.number, row.message.as_str())
    };
    assert_eq!(of("due"), (Word::WouldRun, "FirstRun", Some(1), ""));
    assert_eq!(of("runs"), (Word::Running, "", Some(3), "since 2026-01-01T00:00:05Z"));
    assert_eq!(of("starts"), (Word::Starting, "Starting", Some(1), ""));
    assert_eq!(of("done"), (Word::Done, "Succeeded", Some(2), "pod 2 at 2026-01-01T00:00:30Z"));
    assert_eq!(seen(&report, "failed"), (Word::Failed, "BackoffLimitExceeded"));
    assert_eq!(seen(&report, "tainted"), (Word::Skipped, "Tainted"));
    assert!(of("tainted").3.contains("k=v:NoSchedule"), "{}", of("tainted").3);
    let other = "nodeSelector requires app=v1, the node has app=v2";
    assert_eq!(of("other"), (Word::NotSelected, "NodeSelector", None, other));
    let bare = "nodeSelector requires app=v1, the node has no label app";
    assert_eq!(of("bare"), (Word::NotSelected, "NodeSelector", None, bare));
    assert_eq!(row(&report, "runs").pod.as_deref(), Some("d-runs-3"));
    assert_eq!(row(&report, "failed").last.as_ref().unwrap().outcome, Outcome::Failed);
    assert_eq!((report.selected(), report.rows.len()), (6, 8));
    assert_eq!(
        report.summary(),
        "6 nodes selected: 1 done, 1 would run now, 1 running, 1 starting, 0 waiting, 1 skipped, 1 failed."
    );
    assert!(!report.all_run());
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[rstest]
#[case::all_would_run(json!({}), ready(&["a", "b"]), true)]
#[case::others_do_not_matter(json!({}), vec![node("a", &json!({})), node("b", &json!({"/metadata/labels": {}}))], true)]
#[case::a_turn_comes(json!({"parallelism": 1}), ready(&["a", "b"]), true)]
#[case::paused(json!({"paused": true}), ready(&["a"]), false)]
#[case::suspended(json!({"suspend": true}), ready(&["a"]), false)]
#[case::tainted(json!({}), vec![node("a", &json!({"/spec/taints": [{"key": "k", "effect": "NoExecute"}]}))], false)]
#[case::no_node(json!({}), vec![], true)]
fn knows_whether_all_nodes_run(#[case] spec: Value, #[case] nodes: Vec<Value>, #[case] all_run: bool) {
    for job in [job(&spec), new(job(&spec))] {
        assert_eq!(explain(&job, &world(nodes.clone(), vec![])).all_run(), all_run);
    }
}

#[test]
fn names_the_nodes_that_wait_for_their_turn() {
    let report = explain(&job(&json!({"parallelism": 1})), &world(ready(&["a", "b"]), vec![]));
    assert_eq!(row(&report, "a").state, Word::WouldRun);
    let waits = row(&report, "b");
    assert_eq!((waits.state, &*waits.reason, waits.number), (Word::Waiting, "WaitingForTurn", Some(1)));
}

#[test]
fn runs_every_node_for_a_new_file() {
    let report = report(&new(job(&json!({}))), &world(ready(&["a"]), vec![]), Origin::New, now());
    assert!(report.begins);
    assert_eq!((row(&report, "a").state, row(&report, "a").number), (Word::WouldRun, Some(1)));
    assert_eq!(report.notes.len(), 1);
    assert!(report.notes[0].contains("applying the file creates it"), "{:?}", report.notes);
}

#[test]
fn runs_again_for_a_changed_file_and_gives_the_reason() {
    let before = job(&json!({}));
    let mut after = before.clone();
    after.metadata.generation = Some(2);
    after.spec.template.0["metadata"]["annotations"]["version"] = json!("2");
    let pods = pods(&before, &[("done", 1, "Succeeded"), ("runs", 1, "Running"), ("starts", 1, "Pending")]);
    let world = world(ready(&["done", "runs", "starts"]), pods);
    let report = report(&after, &world, Origin::Changed, now());
    assert!(report.begins);
    let again = row(&report, "done");
    assert_eq!((again.state, &*again.reason, again.number), (Word::WouldRun, "TemplateChanged", Some(2)));
    // A pod that has started continues. A pod that has not started is replaced.
    let runs = row(&report, "runs");
    assert_eq!((runs.state, &*runs.reason, runs.is_going), (Word::Waiting, "OutdatedTemplate", false));
    let replaced = row(&report, "starts");
    assert_eq!((replaced.state, &*replaced.reason, replaced.is_going), (Word::Waiting, "Outdated", true));
    assert!(replaced.message.contains("d-starts-1 would be deleted"), "{}", replaced.message);
    assert!(!report.all_run());
    assert_eq!(report.notes, ["Applying the file changes DaemonJob d in namespace ns.", "A new run begins."]);
}

/// An ending applies to its rollout, and a changed template is another rollout.
#[test]
fn a_changed_file_begins_a_run_after_a_failure() {
    let mut failed = job(&json!({"activeDeadlineSeconds": 60}));
    let limits = Ending::DeadlineExceeded.limits(&failed);
    let rollout = failed.status.as_mut().unwrap().rollout.as_mut().unwrap();
    (rollout.ended, rollout.ended_by) = (Some("DeadlineExceeded".into()), Some(limits));
    let world = world(ready(&["a"]), vec![]);
    let held = explain(&failed, &world);
    assert_eq!(seen(&held, "a"), (Word::Waiting, "DeadlineExceeded"));
    assert!(held.notes[0].contains("The manager creates no pods"), "{:?}", held.notes);
    failed.metadata.generation = Some(2);
    failed.spec.template.0["metadata"]["annotations"]["version"] = json!("2");
    let again = report(&failed, &world, Origin::Changed, now());
    assert_eq!(row(&again, "a").state, Word::WouldRun);
}

#[test]
fn names_the_pods_that_would_be_deleted() {
    let job = job(&json!({"suspend": true}));
    let world = world(ready(&["a"]), pods(&job, &[("a", 1, "Running")]));
    let report = explain(&job, &world);
    let row = row(&report, "a");
    assert_eq!((row.state, &*row.reason, row.is_going), (Word::Running, "Suspend", true));
    assert_eq!(row.message, "pod d-a-1 would be deleted");
    assert!(!report.all_run());
    assert!(report.hold.is_some_and(|hold| hold.cause == Cause::Suspended));
}

#[test]
fn shows_pods_on_nodes_that_may_not_have_them() {
    let job = job(&json!({}));
    let taint = |effect: &str| json!({"/spec/taints": [{"key": "k", "effect": effect}]});
    let nodes = vec![
        node("stays", &taint("NoSchedule")),
        node("goes", &taint("NoExecute")),
        node("done", &taint("NoSchedule")),
        node("unselected", &json!({"/metadata/labels": {}})),
        node("going", &json!({"/metadata/deletionTimestamp": "2026-01-01T00:59:00Z"})),
    ];
    let running = ["stays", "goes", "unselected", "gone"].map(|node| (node, 1, "Running"));
    let pods = [pods(&job, &running), pods(&job, &[("done", 1, "Succeeded")])].concat();
    let report = explain(&job, &world(nodes, pods));
    let of = |name: &str| {
        let row = row(&report, name);
        (row.state, row.reason.as_str(), row.is_going, row.message.as_str())
    };
    let tolerates = "the template does not tolerate the taint k:NoSchedule";
    let continues = format!("its pod continues, and {tolerates}");
    let done = format!("pod 1 at 2026-01-01T00:00:10Z; {tolerates}");
    assert_eq!(of("stays"), (Word::Running, "Tainted", false, continues.as_str()));
    assert_eq!(of("goes"), (Word::Running, "Misplaced", true, "pod d-goes-1 would be deleted"));
    assert_eq!(of("done"), (Word::Done, "Succeeded", false, done.as_str()));
    let (state, reason, is_going, message) = of("unselected");
    assert_eq!((state, reason, is_going), (Word::NotSelected, "NodeSelector", true));
    assert!(message.ends_with("pod d-unselected-1 would be deleted"), "{message}");
    assert_eq!(of("going").1, "NodeTerminating");
    assert_eq!(report.notes, ["Pods of deleted nodes: 1, for example d-gone-1; they would be deleted."]);
}

#[test]
fn gives_the_reason_why_a_node_runs_again() {
    let job = job(&json!({"rerunOn": ["NodeReboot"]}));
    let booted = node("a", &json!({"/status/nodeInfo/bootID": "c"}));
    let report = explain(&job, &world(vec![booted], pods(&job, &[("a", 1, "Succeeded")])));
    assert_eq!(seen(&report, "a"), (Word::WouldRun, "NodeChanged"));
    let report = explain(&job, &world(ready(&["a"]), pods(&job, &[("a", 1, "Failed")])));
    let again = row(&report, "a");
    assert_eq!((again.state, &*again.reason), (Word::WouldRun, "Retry"));
    assert_eq!(again.message, "pod 2; pod 1 was Failed, after 1 failure");
}

#[test]
fn shows_a_node_that_was_done_before_its_last_pod() {
    let job = job(&json!({}));
    let hash = job.spec.template.hash();
    let line = format!(
        "node=a template=v1-other rollout=1 run=1 pod=2 outcome=Rejected attempt=Succeeded/{hash}/1/1 clear=true \
         ended=2026-01-01T00:00:30Z"
    );
    let report = explain(&job, &recorded(world(ready(&["a"]), vec![]), "a", &line));
    let done = row(&report, "a");
    assert_eq!((done.state, &*done.message), (Word::Done, "before pod 2, which was Rejected"));
}

#[test]
fn takes_rejected_pods_from_the_status() {
    let mut job = job(&json!({}));
    let status = job.status.as_mut().unwrap();
    status.pending_nodes = serde_json::from_value(
        json!([{"node": "a", "reason": "FailedCreate", "message": "denied by a webhook"},
            {"node": "b", "reason": "WaitingForTurn", "message": ""}]),
    )
    .unwrap();
    status.conditions =
        serde_json::from_value(json!([{"type": "PodsRefused", "status": "True", "reason": "FailedCreate",
        "message": "denied by a webhook", "lastTransitionTime": "2026-01-01T00:01:00Z"}]))
        .unwrap();
    let world = world(ready(&["a", "b"]), vec![]);
    let report = explain(&job, &world);
    let refused = row(&report, "a");
    assert_eq!((refused.state, &*refused.reason), (Word::Waiting, "FailedCreate"));
    assert_eq!(refused.message, "denied by a webhook");
    assert_eq!(row(&report, "b").state, Word::WouldRun);
    assert_eq!(report.notes, ["The condition PodsRefused is True: denied by a webhook."]);
    assert!(!report.all_run());
    // The manager attempts a changed template again.
    job.spec.template.0["metadata"]["annotations"]["version"] = json!("2");
    assert!(super::report(&job, &world, Origin::Changed, now()).all_run());
}

#[test]
fn skips_a_node_whose_record_is_lost() {
    let mut job = job(&json!({}));
    job.status.as_mut().unwrap().ledger_shards = (0..SHARDS).collect();
    let report = explain(&job, &world(ready(&["a"]), vec![]));
    assert_eq!(seen(&report, "a"), (Word::Skipped, "RecordLost"));
}

#[test]
fn runs_no_node_of_a_daemonjob_that_is_being_deleted() {
    let mut job = job(&json!({}));
    job.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:59:00Z")).unwrap();
    let report = explain(&job, &world(ready(&["a"]), vec![]));
    assert_eq!(seen(&report, "a"), (Word::Waiting, "Terminating"));
    assert!(!report.all_run() && !report.begins);
    assert!(report.notes[0].contains("being deleted"), "{:?}", report.notes);
}

#[test]
fn notes_a_generation_that_was_not_reconciled() {
    let mut job = job(&json!({}));
    job.metadata.generation = Some(4);
    let report = explain(&job, &world(ready(&["a"]), vec![]));
    assert!(report.notes[0].contains("status has generation 1, the spec 4"), "{:?}", report.notes);
}

#[test]
fn names_the_part_that_does_not_select_a_node() {
    let mut job = job(&json!({}));
    job.spec.template.0["spec"]["nodeName"] = json!("b");
    let world = world(ready(&["a"]), vec![]);
    assert_eq!(row(&explain(&job, &world), "a").reason, "NodeName");
    job.spec.template.0["spec"]["nodeName"] = Value::Null;
    job.spec.template.0["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]});
    let report = explain(&job, &world);
    assert_eq!(row(&report, "a").reason, "NodeAffinity");
    assert!(report.notes.contains(&"The template selects no node.".to_owned()), "{:?}", report.notes);
}

/// Nodes that wait for a wave only wait for their turn.
#[test]
fn explains_the_current_wave() {
    let job = job(&json!({"failurePolicy": {"type": "Pause"}, "rollout": {"waveSizes": [1]}}));
    let report = explain(&job, &world(ready(&["a", "b", "c"]), Vec::new()));
    assert_eq!((report.count(Word::WouldRun), report.count(Word::Waiting)), (1, 2));
    let waits = report.rows.iter().find(|row| row.state == Word::Waiting).unwrap();
    assert_eq!((&*waits.reason, &*waits.message), ("WaitsForWave", "wave 1 allows 1 node to start"));
    assert!(report.all_run());
    let note = "Wave 1 allows 1 node to start: 0 started, 0 done and settled.";
    assert!(report.notes.iter().any(|one| one == note), "{:?}", report.notes);
}

/// The ledger does not have that the node has settled. It does not run again.
#[test]
fn explains_a_node_that_settles() {
    let job = job(&json!({"rollout": {"settleSeconds": 60}}));
    let world = world(ready(&["a"]), pods(&job, &[("a", 1, "Succeeded")]));
    let report = explain(&job, &world);
    assert_eq!(seen(&report, "a"), (Word::Waiting, "Settling"));
    let row = row(&report, "a");
    assert_eq!((&*row.message, row.number), ("the node must stay Ready for settleSeconds", Some(1)));
    assert!(report.all_run());
}

#[test]
fn notes_the_changes_of_on_success() {
    let on_success = json!({"labels": {"example.com/ready": "yes"},
        "removeTaints": [{"key": "example.com/raw", "effect": "NoSchedule"}]});
    let mut job = job(&json!({"onSuccess": on_success}));
    let message = "let an administrator set the chart value daemonJob.nodeMarks";
    let condition = json!([{"type": "MarkRefused", "status": "True", "reason": "NotAllowed", "message": message,
        "lastTransitionTime": "2026-01-01T00:01:00Z"}]);
    job.status.as_mut().unwrap().conditions = serde_json::from_value(condition).unwrap();
    let hash = job.spec.template.hash();
    let line = format!(
        "node=a template={hash} rollout=1 run=1 pod=2 outcome=Succeeded clear=true ended=2026-01-01T00:00:30Z"
    );
    let notes = |node: Value| {
        let world = World { permitted_marks: Permitted::Unknown, ..world(vec![node], Vec::new()) };
        explain(&job, &recorded(world, "a", &line)).notes
    };
    let changes = "After each success, the manager changes the Node: sets label example.com/ready=yes, removes taint \
                   example.com/raw:NoSchedule.";
    let missing = "Done nodes without the changes of their last success: 1.";
    let refused = format!("The condition MarkRefused is True: {message}.");
    assert_eq!(notes(node("a", &json!({}))), [changes, missing, &refused]);
    let record = json!({"/metadata/annotations": {"dj.dysproz.io/marked-job": "1/2"}});
    assert_eq!(notes(node("a", &record)), [changes, &refused]);
}

/// A DaemonJob that runs at each full hour, and the line of a node that was done at midnight.
fn hourly(last_due_time: &str) -> (DaemonJob, String) {
    let mut job = job(&json!({"schedule": "0 * * * *"}));
    let line = format!(
        "node=a template={} rollout=1 run=1 pod=1 outcome=Succeeded due=2026-01-01T00:00:00Z clear=true \
         ended=2026-01-01T00:01:00Z",
        job.spec.template.hash()
    );
    let status = job.status.as_mut().unwrap();
    status.rollout =
        serde_json::from_value(json!({"number": 1, "dueTime": last_due_time, "over": true})).unwrap();
    status.schedule =
        serde_json::from_value(json!({"schedule": "0 * * * *", "since": "2025-12-31T23:30:00Z",
        "lastDueTime": last_due_time}))
        .unwrap();
    (job, line)
}

#[test]
fn explains_a_run_at_a_due_time() {
    let (job, line) = hourly("2026-01-01T00:00:00Z");
    let report = explain(&job, &recorded(world(ready(&["a"]), vec![]), "a", &line));
    assert!(report.begins, "{:?}", report.notes);
    assert_eq!(seen(&report, "a"), (Word::WouldRun, "DueTime"));
    assert_eq!(row(&report, "a").message, "pod 2, for the due time 2026-01-01T01:00:00Z");
    let expected = ["A new run begins.", "The next due time is 2026-01-01T02:00:00Z."];
    assert_eq!(report.notes, expected);
}

/// The DaemonJob is paused at its due time.
#[rstest]
#[case::without_a_deadline(json!({"paused": true}), "")]
#[case::in_time(json!({"paused": true, "startingDeadlineSeconds": 60}), " before 2026-01-01T01:01:01Z")]
fn explains_a_due_time_that_waits_for_a_pause(#[case] spec: Value, #[case] until: &str) {
    let (mut job, line) = hourly("2026-01-01T00:00:00Z");
    job.spec.paused = spec["paused"].as_bool();
    job.spec.starting_deadline_seconds = spec["startingDeadlineSeconds"].as_i64();
    let report = explain(&job, &recorded(world(ready(&["a"]), vec![]), "a", &line));
    let waits =
        format!("The due time 2026-01-01T01:00:00Z has come. Its run begins if the pause ends{until}.");
    let held = "The manager creates no pods: spec.paused is set (Paused).";
    assert_eq!(report.notes, [held, &waits, "The next due time is 2026-01-01T02:00:00Z."]);
}

#[test]
fn notes_a_due_time_without_a_run() {
    let (mut job, line) = hourly("2026-01-01T01:00:00Z");
    let notes = |job: &DaemonJob| explain(job, &recorded(world(ready(&["a"]), vec![]), "a", &line)).notes;
    let next = "The next due time is 2026-01-01T02:00:00Z.";
    for result in ["Held", "Missed"] {
        let history = json!([{"dueTime": "2026-01-01T01:00:00Z", "result": result},
            {"dueTime": "2026-01-01T00:00:00Z", "result": "Complete"}]);
        job.status.as_mut().unwrap().history = serde_json::from_value(history).unwrap();
        let last = format!("No run began at the last due time, 2026-01-01T01:00:00Z ({result}).");
        assert_eq!(notes(&job), [last.as_str(), next]);
    }
    job.status.as_mut().unwrap().history.remove(0);
    assert_eq!(notes(&job), [next]);
}

/// Nodes that wait for a due time need no user.
#[test]
fn explains_a_node_that_waits_for_a_due_time() {
    let (mut job, _) = hourly("2026-01-01T01:00:00Z");
    let report = explain(&job, &world(ready(&["b"]), vec![]));
    assert_eq!(seen(&report, "b"), (Word::Skipped, "WaitsForDueTime"));
    assert_eq!(row(&report, "b").message, "the node runs at the next due time, 2026-01-01T02:00:00Z");
    assert!(report.all_run() && !report.begins);
    job.spec.schedule = Some("0 25 * * *".into());
    let report = explain(&job, &world(ready(&["b"]), vec![]));
    assert_eq!(report.hold.as_ref().map(|hold| hold.cause), Some(Cause::ScheduleInvalid));
}
