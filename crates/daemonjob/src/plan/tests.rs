use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use std::sync::Arc;

use crate::clocks::Clocks;
use crate::labels::{number_of, pinned_to};
use crate::ledger::{GONE, Gone, Shard, shard_name, shard_of};
use crate::outcome::{DELETED_FOR_ANNOTATION, DeletedFor};
use jiff::SignedDuration;
use quintet_runtime::model::core_types::{Phase, Pod};
use std::collections::BTreeMap;

mod brake;
mod clean_up;
mod conditions;
mod health;
mod outcomes;
mod places;
mod scene;

const START: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    START.parse().unwrap()
}

/// The plan without the writes that the API server rejected recently.
fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = super::plan(job, world, now);
    plan.withhold(&world.refusals, now);
    plan
}

fn job(spec: &Value) -> DaemonJob {
    serde_json::from_value(json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": {"name": "d", "namespace": "ns", "uid": "job", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

fn simple() -> DaemonJob {
    job(&json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}))
}

/// The job after the plan's status was written.
fn with_status(mut job: DaemonJob, world: &World, at: Timestamp) -> DaemonJob {
    job.status = plan(&job, world, at).status;
    job
}

fn node(name: &str) -> Arc<Node> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "v1"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}
        }))
        .unwrap(),
    )
}

fn pod(job: &DaemonJob, node: &str, run: u64, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{node}-{run}"), "namespace": "ns", "uid": format!("{node}-{run}"), "resourceVersion": "1",
            "creationTimestamp": START,
            "labels": {
                NODE_UID_LABEL: format!("uid-{node}"), POD_NUMBER_LABEL: run.to_string(),
                HASH_LABEL: job.spec.template.hash()},
            "annotations": {NODE_NAME_ANNOTATION: node}},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "containerStatuses": containers(phase)}
    }))
    .unwrap()
}

fn containers(phase: &str) -> Value {
    match phase {
        "Pending" => json!([]),
        "Running" => json!([{"name": "c", "state": {"running": {"startedAt": START}}}]),
        _ => json!([{"name": "c", "state": {"terminated": {
            "exitCode": i32::from(phase == "Failed"), "startedAt": START, "finishedAt": START}}}]),
    }
}

/// The world after the ledger steps of the plan. Other steps have no effect.
fn recorded(job: &DaemonJob, mut world: World, plan: &Plan<DaemonJobStatus>) -> World {
    for action in plan.steps.iter().flatten() {
        let (name, data, whole) = match action {
            Action::Create { resource: CONFIG_MAPS, name, body, .. } => {
                (name.clone(), body.value()["data"].clone(), true)
            }
            Action::MergePatch { resource: CONFIG_MAPS, name, body, .. } => {
                (name.to_string(), body["data"].clone(), false)
            }
            _ => continue,
        };
        let old = world.ledger.iter().find(|shard| *shard.meta.name == *name).cloned();
        assert_eq!(old.is_none(), whole, "the manager creates {name} once");
        world.ledger.retain(|shard| *shard.meta.name != *name);
        let mut shard: Shard =
            old.map_or_else(|| serde_json::from_value(json!({})).unwrap(), |old| (*old).clone());
        shard.meta.name = name.as_str().into();
        for (uid, line) in data.as_object().unwrap() {
            if uid == GONE {
                shard.gone = line.as_str().map_or_else(|| Ok(Gone::default()), str::parse);
                continue;
            }
            match line.as_str() {
                Some(line) => shard.entries.insert(uid.as_str().into(), line.parse()),
                None => shard.entries.remove(&**uid),
            };
        }
        assert!(shard.number(&job.metadata.name.clone().unwrap()).is_some());
        world.ledger.push(Arc::new(shard));
    }
    world
}

/// Plans until neither the status nor the ledger changes.
fn settled(mut job: DaemonJob, mut world: World, at: Timestamp) -> (DaemonJob, World) {
    for _ in 0..5 {
        let plan = plan(&job, &world, at);
        world = recorded(&job, world, &plan);
        job.status = plan.status;
    }
    (job, world)
}

fn world(nodes: &[&str], pods: Vec<Pod>) -> World {
    World {
        nodes: nodes.iter().map(|name| node(name)).collect(),
        pods: pods.into_iter().map(Arc::new).collect(),
        ..World::default()
    }
}

fn created(plan: &Plan<DaemonJobStatus>) -> Vec<String> {
    plan.steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Create { resource: PODS, body, .. } => {
                let body = body.value();
                Some(body["metadata"]["annotations"][NODE_NAME_ANNOTATION].as_str().unwrap().to_owned())
            }
            _ => None,
        })
        .collect()
}

/// The pods that a plan deletes or marks for deletion.
fn deleted(plan: &Plan<DaemonJobStatus>) -> Vec<String> {
    plan.steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Delete { name, .. } => Some(name.to_string()),
            Action::MergePatch { resource: PODS, name, body, .. } => {
                body.pointer("/metadata/annotations")?.get(DELETED_FOR_ANNOTATION)?.as_str()?;
                Some(name.to_string())
            }
            _ => None,
        })
        .collect()
}

/// The reasons for the deletion of pods, by name.
fn marks(plan: &Plan<DaemonJobStatus>) -> Vec<(String, Option<String>)> {
    let marks = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::MergePatch { resource: PODS, name, body, .. } => {
            let mark = body.pointer("/metadata/annotations")?.get(DELETED_FOR_ANNOTATION)?;
            Some((name.to_string(), mark.as_str().map(str::to_owned)))
        }
        _ => None,
    });
    marks.collect()
}

/// The pod with a reason for its deletion in its annotation.
fn marked(mut pod: Pod, reason: DeletedFor) -> Pod {
    let old = pod.meta.annotations.get(NODE_NAME_ANNOTATION).unwrap_or_default().to_owned();
    pod.meta.annotations = [(NODE_NAME_ANNOTATION, &*old), (DELETED_FOR_ANNOTATION, reason.word())].into();
    pod
}

fn reason(plan: &Plan<DaemonJobStatus>, type_: &str) -> (String, String) {
    let condition =
        plan.status.as_ref().unwrap().conditions.iter().find(|one| one.type_ == type_).unwrap().clone();
    (condition.status, condition.reason)
}

#[test]
fn writes_the_start_before_the_first_pod() {
    let world = world(&["a", "b"], vec![]);
    let first = plan(&simple(), &world, now());
    assert!(first.steps.is_empty());
    assert_eq!(first.status.as_ref().unwrap().start_time, Some(Time(now())));
    let second = plan(&with_status(simple(), &world, now()), &world, now());
    assert_eq!(created(&second), ["a", "b"]);
}

#[test]
fn names_labels_and_pins_a_pod() {
    let world = world(&["a"], vec![]);
    let plan = plan(&with_status(simple(), &world, now()), &world, now());
    let Action::Create { name, body, .. } = &plan.steps[0][0] else { panic!() };
    let body = body.value();
    assert!(name.starts_with("d-") && name.ends_with("-1"), "{name}");
    assert_eq!(body["metadata"]["labels"][NAME_LABEL], "d");
    assert_eq!(body["metadata"]["labels"][KIND_LABEL], "DaemonJob");
    assert_eq!(body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], true);
    assert_eq!(body["spec"]["restartPolicy"], "OnFailure");
    let pin = &body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(pin["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], "a");
}

#[test]
fn pod_names_differ_by_node_and_number_alone() {
    let (job, a, b) = (simple(), node("a"), node("b"));
    assert_eq!(pod_name(&job, &a, 1), pod_name(&job.clone(), &a.clone(), 1));
    assert_ne!(pod_name(&job, &a, 1), pod_name(&job, &b, 1));
    assert_ne!(pod_name(&job, &a, 1), pod_name(&job, &a, 2));
    let long = "x".repeat(63);
    let mut named = simple();
    named.metadata.name = Some(long);
    assert!(pod_name(&named, &a, 1_000_000).len() <= 63);
}

#[test]
fn does_not_run_a_done_node_again() {
    let job = simple();
    let pods = vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Running")];
    let some = world(&["a", "b"], pods);
    let started = with_status(job.clone(), &some, now());
    let half = plan(&started, &some, now());
    assert!(half.steps.is_empty());
    assert_eq!(reason(&half, "Complete"), ("False".into(), "NodesPending".into()));
    let all = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Succeeded")]);
    let first = plan(&started, &all, now());
    assert!(created(&first).is_empty());
    let all = recorded(&started, all, &first);
    let whole = plan(&started, &all, now());
    assert!(whole.steps.is_empty());
    assert_eq!(reason(&whole, "Complete"), ("True".into(), "AllNodesDone".into()));
    assert_eq!(whole.events.len(), 1);
    let status = whole.status.unwrap();
    assert_eq!((status.desired, status.succeeded, status.active), (Some(2), Some(2), Some(0)));
    assert_eq!(status.completion_time, Some(Time(now())));
}

#[test]
fn writes_nothing_after_it_is_complete() {
    let job = simple();
    let world = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (job, world) = settled(job, world, now());
    let later = now() + SignedDuration::from_hours(5);
    let again = plan(&job, &world, later);
    assert!(again.steps.is_empty() && again.events.is_empty() && again.again.is_none());
    assert_eq!(again.status, job.status);
}

#[test]
fn a_new_node_begins_a_run_after_a_complete_run() {
    let job = simple();
    let before = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let job = with_status(with_status(job, &before, now()), &before, now());
    let later = now() + SignedDuration::from_hours(1);
    let mut after = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded")]);
    // A node that existed before belongs to the finished run.
    assert_eq!(plan(&job, &after, later).status.unwrap().start_time, Some(Time(now())));
    let mut new = (*after.nodes[1]).clone();
    new.meta.created = Some(now() + SignedDuration::from_secs(1));
    after.nodes[1] = Arc::new(new);
    let start = plan(&job, &after, later);
    assert!(created(&start).is_empty());
    let status = start.status.clone().unwrap();
    assert_eq!((status.start_time, status.completion_time), (Some(Time(later)), None));
    assert_eq!(reason(&start, "Complete").0, "False");
    assert_eq!(created(&plan(&with_status(job, &after, later), &after, later)), ["b"]);
}

#[test]
fn no_eligible_node_is_complete() {
    let job = job(&json!({"template": {"spec": {
        "containers": [{"name": "c"}], "nodeSelector": {"app": "v2"}}}}));
    let plan = plan(&job, &world(&["a"], vec![]), now());
    assert_eq!(reason(&plan, "Complete"), ("True".into(), "NoEligibleNodes".into()));
}

#[test]
fn backs_off_after_failures_up_to_the_limit() {
    let mut job = simple();
    job.spec.backoff_limit = Some(1);
    let failed = |run| {
        let mut pod = pod(&job, "a", run, "Failed");
        pod.finished = Some(now());
        pod
    };
    let one = world(&["a"], vec![failed(1)]);
    let started = with_status(job.clone(), &one, now());
    let waiting = plan(&started, &one, now());
    assert!(waiting.steps.is_empty());
    assert_eq!(waiting.again, Some(now() + SignedDuration::from_secs(10)));
    let later = now() + SignedDuration::from_secs(10);
    assert_eq!(created(&plan(&started, &one, later)), ["a"]);
    let two = world(&["a"], vec![failed(1), failed(2)]);
    let ended = plan(&started, &two, later);
    assert!(created(&ended).is_empty());
    let world = recorded(&started, two, &ended);
    assert_eq!(deleted(&plan(&started, &world, later)), ["a-1"], "the newest failed pod is kept");
    assert_eq!(reason(&ended, "Failed"), ("True".into(), "NodesFailed".into()));
    assert_eq!(reason(&ended, "Complete").0, "False");
}

#[test]
fn does_not_count_a_disrupted_pod_against_the_limit() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let mut evicted = pod(&job, "a", 1, "Failed");
    evicted.disrupted = true;
    let world = world(&["a"], vec![evicted]);
    let later = now() + SignedDuration::from_secs(10);
    assert_eq!(created(&plan(&with_status(job, &world, now()), &world, later)), ["a"]);
}

#[test]
fn a_terminating_pod_occupies_its_node() {
    let job = simple();
    let mut going = pod(&job, "a", 1, "Running");
    going.meta.deleted = Some(now());
    let world = world(&["a"], vec![going]);
    assert!(created(&plan(&with_status(job, &world, now()), &world, now())).is_empty());
}

#[test]
fn an_unbound_pod_without_annotation_occupies_its_node() {
    let job = simple();
    let mut waiting = pod(&job, "a", 1, "Pending");
    (waiting.meta.annotations, waiting.node) = ([].into(), None);
    let alone = world(&["a"], vec![waiting.clone()]);
    let first = plan(&with_status(job.clone(), &alone, now()), &alone, now());
    assert!(created(&first).is_empty() && deleted(&first).is_empty(), "{first:?}");
    let both = world(&["a"], vec![waiting, pod(&job, "a", 2, "Running")]);
    assert_eq!(
        deleted(&plan(&with_status(job, &both, now()), &both, now())),
        ["a-1"],
        "one of two pods for one node is deleted"
    );
}

#[test]
fn a_pod_of_a_deleted_node_occupies_a_new_node_until_deleted() {
    let job = simple();
    let mut old = pod(&job, "a", 1, "Pending");
    old.meta.labels =
        [(NODE_UID_LABEL, "gone"), (HASH_LABEL, &job.spec.template.hash()), (POD_NUMBER_LABEL, "1")].into();
    let world = world(&["a"], vec![old]);
    let plan = plan(&with_status(job, &world, now()), &world, now());
    assert_eq!(deleted(&plan), ["a-1"]);
    assert!(created(&plan).is_empty());
}

#[test]
fn a_new_template_replaces_only_pods_that_have_not_started() {
    let old = simple();
    let mut new = with_status(old.clone(), &world(&["a", "b", "c"], vec![]), now());
    new.spec.template = RawTemplate(json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}));
    let world = world(
        &["a", "b", "c"],
        vec![pod(&old, "a", 1, "Succeeded"), pod(&old, "b", 1, "Running"), pod(&old, "c", 1, "Pending")],
    );
    let first = plan(&new, &world, now());
    assert_eq!(deleted(&first), ["c-1"]);
    assert!(created(&first).is_empty(), "the status has the new run first");
    let second = plan(&with_status(new, &world, now()), &world, now());
    assert_eq!(created(&second), ["a"]);
}

#[test]
fn the_deadline_ends_the_run() {
    let mut job = simple();
    job.spec.active_deadline_seconds = Some(60);
    let running = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Running")]);
    let job = with_status(job, &running, now());
    assert_eq!(plan(&job, &running, now()).again, Some(now() + SignedDuration::from_mins(1)));
    let later = now() + SignedDuration::from_mins(1);
    let ended = plan(&job, &running, later);
    assert_eq!(deleted(&ended), ["b-1"]);
    assert_eq!(reason(&ended, "Failed").0, "False", "it becomes True when the deletions are accepted");
    let mut going = pod(&job, "b", 1, "Running");
    going.meta.deleted = Some(later);
    let accepted = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), going]);
    let (job, _) = settled(job, accepted, later);
    let gone = world(&["a", "b", "c"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (_, gone) = settled(job.clone(), gone, later);
    let after = plan(&job, &gone, later + SignedDuration::from_hours(1));
    assert_eq!(reason(&after, "Failed"), ("True".into(), "DeadlineExceeded".into()));
    assert!(after.steps.is_empty(), "{:?}", after.steps);
    assert_eq!(reason(&after, "Failed").0, "True");
}

#[test]
fn waits_after_a_refusal_and_reports_it() {
    let job = simple();
    let mut world = world(&["a"], vec![]);
    let job = with_status(job, &world, now());
    let until = now() + SignedDuration::from_secs(10);
    world.refusals.insert(
        &PODS,
        pod_name(&job, &node("a"), 1),
        Refusal {
            verb: Verb::Create,
            reason: RefusalReason::Other,
            message: "no image".into(),
            times: 1,
            until,
        },
    );
    let refused = plan(&job, &world, now());
    assert!(refused.steps.is_empty());
    assert_eq!(refused.again, Some(until));
    assert_eq!(reason(&refused, "PodsRefused"), ("True".into(), "FailedCreate".into()));
    assert_eq!(created(&plan(&job, &world, until)), ["a"]);
}

#[test]
fn plans_nothing_for_a_terminating_object() {
    let mut job = simple();
    job.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(plan(&job, &world(&["a"], vec![]), now()), Plan::default());
}

/// A job with this spec and the simplest template.
fn with(spec: &Value) -> DaemonJob {
    let mut all = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    job(&all)
}

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// The pod with a deletion timestamp, without a grace period.
fn going(mut pod: Pod, at: Timestamp) -> Pod {
    pod.meta.deleted = Some(at);
    pod.meta.finalizers = Box::new([FINALIZER.into()]);
    pod
}

fn state<'s>(status: &'s DaemonJobStatus, node: &str) -> Option<&'s str> {
    let lists = [&status.failed_nodes, &status.pending_nodes, &status.skipped_nodes];
    lists.into_iter().flatten().find(|listed| listed.node == node).map(|listed| listed.reason.as_str())
}

fn released(plan: &Plan<DaemonJobStatus>) -> Vec<String> {
    let patches = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::JsonPatch { name, .. } => Some(name.to_string()),
        _ => None,
    });
    patches.collect()
}

/// The lines that a plan writes to the ledger, by node UID.
fn written(plan: &Plan<DaemonJobStatus>) -> BTreeMap<String, String> {
    let bodies = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::Create { resource: CONFIG_MAPS, body, .. } => body.value()["data"].as_object().cloned(),
        Action::MergePatch { resource: CONFIG_MAPS, body, .. } => body["data"].as_object().cloned(),
        _ => None,
    });
    bodies
        .flatten()
        .map(|(uid, line)| (uid.clone(), line.as_str().unwrap_or("(dropped)").to_owned()))
        .collect()
}

#[rstest::rstest]
#[case::number(json!(2), 10, Some(2))]
#[case::none(json!(0), 10, Some(0))]
#[case::percent_up(json!("25%"), 10, Some(3))]
#[case::at_least_one(json!("1%"), 10, Some(1))]
#[case::at_least_one_of_none(json!("50%"), 0, Some(1))]
#[case::all(json!("100%"), 7, Some(7))]
fn parallelism_is_rounded_up(#[case] value: Value, #[case] desired: usize, #[case] limit: Option<usize>) {
    assert_eq!(crate::parallelism::parallelism(&with(&json!({"parallelism": value})), desired), limit);
}

#[rstest::rstest]
#[case::number(json!(2), 10, 2)]
#[case::percent_down(json!("25%"), 10, 2)]
#[case::none(json!("9%"), 10, 0)]
#[case::absent(json!(null), 10, 0)]
fn max_failed_nodes_are_rounded_down(#[case] value: Value, #[case] desired: usize, #[case] max: usize) {
    let job = with(&json!({"failurePolicy": {"type": "FailFast", "maxFailedNodes": value}}));
    assert_eq!(crate::failure_policy::max_failed(&job, desired), max);
}

#[test]
fn nodes_take_turns_and_holders_of_slots_are_named() {
    let job = with(&json!({"parallelism": 1}));
    let empty = world(&["a", "b", "c"], vec![]);
    let started = with_status(job, &empty, now());
    assert_eq!(created(&plan(&started, &empty, now())), ["a"]);
    let mut stuck = pod(&started, "a", 1, "Pending");
    stuck.node = None;
    stuck.unschedulable = Some("0/3 nodes are available".into());
    let world = world(&["a", "b", "c"], vec![stuck]);
    let plan = plan(&started, &world, now());
    assert!(created(&plan).is_empty());
    let status = plan.status.unwrap();
    assert_eq!(state(&status, "a"), Some("Unschedulable"));
    let message = &status.pending_nodes[0].message;
    assert!(
        message.contains("0/3 nodes are available") && message.contains("holds 1 of 1 slots"),
        "{message}"
    );
    assert_eq!(state(&status, "b"), Some("WaitingForTurn"));
    assert_eq!(status.pending, Some(3));
}

#[test]
fn runs_ready_nodes_first() {
    let job = with(&json!({"parallelism": 1}));
    let mut world = world(&["a", "b"], vec![]);
    let mut down = (*world.nodes[0]).clone();
    down.ready = false;
    world.nodes[0] = Arc::new(down);
    assert_eq!(created(&plan(&with_status(job, &world, now()), &world, now())), ["b"]);
}

#[test]
fn suspend_deletes_and_records_pods_and_resume_begins_a_run() {
    let running = world(
        &["a", "b"],
        vec![pod(&with(&json!({})), "a", 1, "Succeeded"), pod(&with(&json!({})), "b", 1, "Running")],
    );
    let mut job = with_status(with(&json!({})), &running, now());
    job.spec.suspend = Some(true);
    let plan_ = plan(&job, &running, later(5));
    assert_eq!(marks(&plan_), [("b-1".to_owned(), Some("Suspend".to_owned()))]);
    assert_eq!(written(&plan_).into_keys().collect::<Vec<_>>(), ["uid-a"]);
    let status = plan_.status.clone().unwrap();
    assert_eq!((status.start_time.clone(), reason(&plan_, "Complete").1), (None, "Suspended".into()));
    assert_eq!(reason(&plan_, "Suspended").0, "True");
    assert_eq!(reason(&plan_, "Failed").0, "False");
    // The status does not change again.
    let mut gone = pod(&job, "b", 1, "Failed");
    gone.finished = Some(later(6));
    let gone = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), going(gone, later(5))]);
    let (job, gone) = settled(job, gone, later(10));
    let again = plan(&job, &gone, later(3_000));
    assert_eq!(again.status, job.status);
    // The disruption does not count, and a new run has no backoff.
    let mut resumed = job;
    resumed.spec.suspend = None;
    let first = plan(&resumed, &gone, later(10));
    assert_eq!(first.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["Resumed"]);
    resumed.status = first.status;
    assert_eq!(resumed.status.as_ref().unwrap().start_time, Some(Time(later(10))));
    assert_eq!(created(&plan(&resumed, &gone, later(10))), ["b"]);
}

#[test]
fn paused_creates_no_pods_and_deletes_none() {
    let job = with(&json!({"paused": true}));
    let world = world(&["a", "b"], vec![pod(&job, "a", 1, "Running")]);
    let plan = plan(&with_status(job, &world, now()), &world, now());
    assert!(plan.steps.is_empty());
    assert_eq!(reason(&plan, "Paused"), ("True".into(), "Paused".into()));
    assert_eq!(reason(&plan, "Complete"), ("False".into(), "Paused".into()));
    assert_eq!(state(plan.status.as_ref().unwrap(), "b"), Some("Paused"));
}

#[rstest::rstest]
#[case::continues("Continue", 0, true, None)]
#[case::fails_fast("FailFast", 0, false, None)]
#[case::tolerates_one("FailFast", 1, true, None)]
#[case::pauses("Pause", 0, false, Some("MaxFailedNodesExceeded"))]
#[case::resumes_when_raised("Pause", 1, true, None)]
fn applies_the_failure_policy(
    #[case] type_: &str,
    #[case] max: i32,
    #[case] continues: bool,
    #[case] paused: Option<&str>,
) {
    let job = with(&json!({"backoffLimit": 0, "failurePolicy": {"type": type_, "maxFailedNodes": max}}));
    let pods = vec![pod(&job, "a", 1, "Failed"), pod(&job, "b", 1, "Running")];
    let world = world(&["a", "b", "c"], pods);
    let job = with_status(job, &world, now());
    let plan = plan(&job, &world, now());
    assert_eq!(created(&plan) == ["c"], continues);
    assert_eq!(deleted(&plan) == ["b-1"], type_ == "FailFast" && max == 0);
    let status = plan.status.as_ref().unwrap();
    let held = status.conditions.iter().find(|one| one.type_ == "Paused").map(|one| one.reason.as_str());
    assert_eq!(held, paused);
    assert_eq!((status.failed, state(status, "a")), (Some(1), Some("BackoffLimitExceeded")));
}

#[test]
fn fail_fast_stays_ended_until_the_policy_changes() {
    let job = with(&json!({"backoffLimit": 0, "failurePolicy": {"type": "FailFast"}}));
    let over = world(&["a", "b"], vec![pod(&job, "a", 1, "Failed")]);
    let (mut job, over) = settled(job, over, now());
    assert_eq!(reason(&plan(&job, &over, now()), "Failed"), ("True".into(), "MaxFailedNodesExceeded".into()));
    assert!(plan(&job, &over, later(900)).steps.is_empty());
    job.spec.failure_policy = None;
    job.metadata.generation = Some(2);
    assert_eq!(created(&plan(&job, &over, later(900))), ["b"]);
}

#[test]
fn fail_job_ends_the_run_and_fail_index_only_its_node() {
    let rules = |action| {
        json!({"podFailurePolicy": {"rules": [
        {"action": action, "onExitCodes": {"operator": "In", "values": [1]}}]}})
    };
    for (action, ends) in [("FailJob", true), ("FailIndex", false)] {
        let job = with(&rules(action));
        let world = world(&["a", "b"], vec![pod(&job, "a", 1, "Failed")]);
        let (job, world) = settled(job, world, now());
        let plan = plan(&job, &world, later(60));
        assert_eq!(created(&plan).is_empty(), ends);
        assert_eq!(reason(&plan, "Failed").1 == "PodFailurePolicy", ends);
        assert_eq!(state(plan.status.as_ref().unwrap(), "a"), Some("PodFailurePolicy"));
    }
}

#[test]
fn a_pod_that_restarts_too_often_fails_its_node() {
    let mut job = simple();
    job.spec.backoff_limit = Some(2);
    let mut looping = pod(&job, "a", 1, "Running");
    looping.restarts = 2;
    let one = world(&["a"], vec![looping.clone()]);
    let job = with_status(job, &one, now());
    let plan_ = plan(&job, &one, now());
    assert_eq!(deleted(&plan_), ["a-1"]);
    assert_eq!(marks(&plan_), [("a-1".to_owned(), Some("Exhausted".to_owned()))]);
    let mut dead = going(marked(looping, DeletedFor::Exhausted), later(1));
    (dead.phase, dead.finished) = (Phase::Failed, Some(later(2)));
    let over = world(&["a"], vec![dead]);
    let plan_ = plan(&job, &over, later(5));
    assert_eq!(state(plan_.status.as_ref().unwrap(), "a"), Some("BackoffLimitExceeded"));
    assert!(written(&plan_)["uid-a"].contains("outcome=Failed failures=3"), "{:?}", written(&plan_));
}

#[test]
fn writes_the_ledger_at_most_once_a_second_for_a_finalizer() {
    let job = simple();
    let pods = vec![going(pod(&job, "a", 1, "Succeeded"), now()), pod(&job, "b", 1, "Running")];
    let mut world = world(&["a", "b"], pods);
    let job = with_status(job, &world, now());
    world.clocks.ledger_written(now());
    let gathering = plan(&job, &world, now());
    assert!(gathering.steps.is_empty());
    assert_eq!(gathering.again, Some(later(1)));
    let flush = plan(&job, &world, later(1));
    assert_eq!(flush.steps.len(), 2, "the ledger is acknowledged first");
    assert_eq!(
        written(&flush)["uid-a"],
        format!(
            "node=a template={} rollout=1 run=1 pod=1 outcome=Succeeded clear=true ended=2026-01-01T00:00:00Z",
            job.spec.template.hash()
        )
    );
    assert_eq!(released(&flush), ["a-1"]);
    assert!(matches!(flush.steps[1][0], Action::JsonPatch { .. }));
    let world = recorded(&job, world, &flush);
    let after = plan(&job, &world, later(1));
    assert!(written(&after).is_empty());
    assert_eq!(released(&after), ["a-1"], "a recorded pod is released immediately");
    // The node is done even without its pod.
    let gone = World { pods: vec![world.pods[1].clone()], ..world };
    let done = plan(&job, &gone, later(2));
    assert!(created(&done).is_empty());
    assert_eq!(done.status.unwrap().succeeded, Some(1));
}

#[test]
fn a_rejected_ledger_write_delays_only_the_release() {
    let job = simple();
    let mut world = world(&["a", "b"], vec![going(pod(&job, "a", 1, "Succeeded"), now())]);
    let job = with_status(job, &world, now());
    let until = later(60);
    let shard = shard_name("d", shard_of("uid-a"));
    let refusal = Refusal {
        verb: Verb::Create,
        reason: RefusalReason::Other,
        message: "quota".into(),
        times: 1,
        until,
    };
    world.refusals.insert(&CONFIG_MAPS, shard, refusal);
    let plan = plan(&job, &world, later(5));
    assert!(released(&plan).is_empty() && written(&plan).is_empty());
    assert_eq!(created(&plan), ["b"]);
    assert_eq!(plan.again, Some(until));
    assert_eq!(reason(&plan, "LedgerRefused"), ("True".into(), "FailedWrite".into()));
}

#[test]
fn only_releases_pods_in_a_terminating_namespace() {
    let job = simple();
    let mut world = world(&["a", "b"], vec![going(pod(&job, "a", 1, "Succeeded"), now())]);
    let job = with_status(job, &world, now());
    world.refusals.namespace_terminating = true;
    let plan = plan(&job, &world, now());
    assert_eq!(released(&plan), ["a-1"]);
    assert!(created(&plan).is_empty());
}

#[test]
fn releases_a_pod_that_never_ran_without_a_record() {
    let job = simple();
    let mut never = going(pod(&job, "a", 1, "Pending"), now());
    never.node = None;
    let world = world(&["a"], vec![never]);
    let plan = plan(&with_status(job, &world, now()), &world, now());
    assert_eq!(released(&plan), ["a-1"]);
    assert!(written(&plan).is_empty());
    assert_eq!(created(&plan), ["a"], "the node is free immediately");
    let Action::Create { name, .. } = &plan.steps[1][0] else { panic!() };
    assert!(name.ends_with("-2"), "{name}");
}

#[test]
fn skips_a_node_whose_pod_does_not_start_in_time() {
    let job = with(&json!({"pendingDeadlineSeconds": 30}));
    let mut waiting = world(&["a", "b"], vec![pod(&job, "a", 1, "Pending"), pod(&job, "b", 1, "Running")]);
    let job = with_status(job, &waiting, now());
    let mut clocks = waiting.clocks.clone();
    clocks.step(&job, &waiting, (now(), SignedDuration::ZERO));
    waiting.clocks = clocks;
    assert_eq!(plan(&job, &waiting, now()).again, Some(later(30)));
    // Clocks differ, so the annotation comes first. A pod that has started by then stays and loses it.
    let first = plan(&job, &waiting, later(30));
    let Action::MergePatch { body, .. } = &first.steps[0][0] else { panic!("{first:?}") };
    assert_eq!(body["metadata"]["annotations"], json!({ DELETED_FOR_ANNOTATION: "PendingDeadline" }));
    assert_eq!(body["metadata"]["resourceVersion"], "1");
    let with_mark = |phase: &str| marked(pod(&job, "a", 1, phase), DeletedFor::PendingDeadline);
    let mut again = world(&["a", "b"], vec![with_mark("Pending"), pod(&job, "b", 1, "Running")]);
    again.clocks = waiting.clocks.clone();
    assert_eq!(deleted(&plan(&job, &again, later(30))), ["a-1"]);
    again.pods[0] = Arc::new(with_mark("Running"));
    let started = plan(&job, &again, later(30));
    let Action::MergePatch { body, .. } = &started.steps[0][0] else { panic!("{started:?}") };
    assert_eq!(body["metadata"]["annotations"], json!({ DELETED_FOR_ANNOTATION: null }));
    assert!(deleted(&started).is_empty());
    // The API server's clock is behind the manager's.
    let mut given_up = going(with_mark("Pending"), later(1));
    given_up.node = None;
    let over = world(&["a", "b"], vec![given_up, pod(&job, "b", 1, "Succeeded")]);
    let flush = plan(&job, &over, later(32));
    assert!(written(&flush)["uid-a"].contains("PendingDeadlineExceeded"));
    let (job, over) = settled(job, over, later(32));
    let after = plan(&job, &World { pods: vec![over.pods[1].clone()], ..over }, later(3_600));
    assert!(created(&after).is_empty());
    assert_eq!(state(after.status.as_ref().unwrap(), "a"), Some("PendingDeadlineExceeded"));
    assert_eq!(reason(&after, "Complete"), ("True".into(), "NodesSkipped".into()));
}

#[test]
fn ignores_late_nodes_with_the_policy_ignore() {
    let mut job = with(&json!({"lateNodes": "Ignore"}));
    let one = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    (job, _) = settled(job, one, now());
    let mut late = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded")]);
    let mut new = (*late.nodes[1]).clone();
    new.meta.created = Some(later(10));
    late.nodes[1] = Arc::new(new);
    let (job, late) = settled(job, late, later(20));
    let plan = plan(&job, &late, later(20));
    assert!(created(&plan).is_empty());
    assert_eq!(state(plan.status.as_ref().unwrap(), "b"), Some("Late"));
    assert_eq!(reason(&plan, "Complete").0, "True");
}

fn booted(world: &mut World, boot: &str) {
    for node in &mut world.nodes {
        let mut other = (**node).clone();
        other.boot_id = boot.into();
        *node = Arc::new(other);
    }
}

#[test]
fn runs_again_after_a_reboot_only_with_node_reboot() {
    for (rerun_on, runs) in
        [(json!(["TemplateChange", "NodeReboot"]), true), (json!(["TemplateChange"]), false)]
    {
        let job = with(&json!({"rerunOn": rerun_on}));
        let mut ran = pod(&job, "a", 1, "Succeeded");
        ran.meta.annotations = [(NODE_NAME_ANNOTATION, "a"), (BOOT_ID_ANNOTATION, "one")].into();
        let mut world = world(&["a"], vec![ran]);
        booted(&mut world, "one");
        let (mut job, mut world) = settled(job, world, now());
        assert_eq!(reason(&plan(&job, &world, now()), "Complete").0, "True");
        booted(&mut world, "two");
        let first = plan(&job, &world, later(100));
        assert_eq!(first.status.as_ref().unwrap().start_time == Some(Time(later(100))), runs);
        job.status = first.status;
        assert_eq!(created(&plan(&job, &world, later(100))) == ["a"], runs);
    }
}

#[test]
fn a_recreated_node_runs_unless_a_pod_ran_on_it() {
    let job = simple();
    let mut old = pod(&job, "a", 1, "Succeeded");
    old.meta.labels =
        [(NODE_UID_LABEL, "gone"), (HASH_LABEL, &job.spec.template.hash()), (POD_NUMBER_LABEL, "1")].into();
    for (created_at, due) in [(later(1), true), (now(), false)] {
        let mut world = world(&["a"], vec![old.clone()]);
        let mut recreated = (*world.nodes[0]).clone();
        recreated.meta.created = Some(created_at);
        world.nodes[0] = Arc::new(recreated);
        let job = with_status(job.clone(), &world, later(5));
        assert_eq!(created(&plan(&job, &world, later(5))) == ["a"], due);
    }
}

#[test]
fn a_cordoned_node_waits_only_after_a_disruption() {
    let job = simple();
    let cordoned = |pods| {
        let mut world = world(&["a"], pods);
        let mut node = (*world.nodes[0]).clone();
        node.unschedulable = true;
        world.nodes[0] = Arc::new(node);
        world
    };
    let first = cordoned(vec![]);
    assert_eq!(created(&plan(&with_status(job.clone(), &first, now()), &first, now())), ["a"]);
    let mut evicted = pod(&job, "a", 1, "Failed");
    evicted.disrupted = true;
    let drained = cordoned(vec![evicted]);
    let job = with_status(job, &drained, now());
    let waits = plan(&job, &drained, later(600));
    assert!(created(&waits).is_empty());
    assert_eq!(state(waits.status.as_ref().unwrap(), "a"), Some("Cordoned"));
    // L7: the disruption was of an older template.
    let changed = with(&json!({"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}}));
    let changed = with_status(DaemonJob { status: job.status, ..changed }, &drained, later(600));
    assert_eq!(created(&plan(&changed, &drained, later(600))), ["a"]);
}

/// L5: the deadline of a gated pod begins when the gates are removed.
#[test]
fn a_gated_pod_has_no_deadline() {
    let job = with(&json!({"pendingDeadlineSeconds": 60}));
    let job = with_status(job, &world(&["a"], vec![]), now());
    let mut gated = pod(&job, "a", 1, "Pending");
    (gated.node, gated.is_gated) = (None, true);
    let mut clocks = Clocks::default();
    let mut pass = |pod: &Pod, second| {
        let mut world = world(&["a"], vec![pod.clone()]);
        clocks.step(&job, &world, (later(second), SignedDuration::from_secs(second)));
        world.clocks = clocks.clone();
        plan(&job, &world, later(second))
    };
    pass(&gated, 0);
    let waits = pass(&gated, 600);
    let listed = &waits.status.as_ref().unwrap().pending_nodes[0];
    assert_eq!(listed.reason, "Scheduling");
    assert!(listed.message.contains("scheduling gates"), "{}", listed.message);
    let deletes = |plan: &Plan<_>| {
        plan.steps
            .iter()
            .flatten()
            .any(|action| matches!(action, Action::Delete { .. } | Action::MergePatch { resource: PODS, .. }))
    };
    assert!(!deletes(&waits));
    gated.is_gated = false;
    assert!(!deletes(&pass(&gated, 601)));
    assert!(deletes(&pass(&gated, 661)));
}

#[test]
fn skips_nodes_of_a_lost_shard_until_the_template_changes() {
    let job = simple();
    let done = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    assert_eq!(job.status.as_ref().unwrap().ledger_shards, [shard_of("uid-a")]);
    let lost = World { pods: Vec::new(), ledger: Vec::new(), ..done };
    let plan_ = plan(&job, &lost, later(60));
    assert!(created(&plan_).is_empty());
    assert!(written(&plan_)["uid-a"].contains("RecordLost"), "the ledger keeps the loss");
    assert_eq!(reason(&plan_, "LedgerLost"), ("True".into(), "RecordLost".into()));
    assert_eq!(reason(&plan_, "Complete"), ("True".into(), "NodesSkipped".into()));
    let (mut job, lost) = settled(job, lost, later(60));
    let again = plan(&job, &lost, later(120));
    assert!(again.steps.is_empty());
    assert_eq!(state(again.status.as_ref().unwrap(), "a"), Some("RecordLost"));
    job.spec.template.0["metadata"]["annotations"]["again"] = json!("yes");
    job.metadata.generation = Some(2);
    let job = with_status(job, &lost, later(180));
    assert_eq!(created(&plan(&job, &lost, later(180))), ["a"]);
}

#[test]
fn replaces_unreadable_lines_but_not_lines_of_newer_versions() {
    let job = simple();
    let done = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    let garbled = |format: &str| {
        let mut shard = (*done.ledger[0]).clone();
        shard.meta.labels = [(LEDGER_LABEL, format)].into();
        shard.entries.insert("uid-a".into(), "scribble".parse());
        World { nodes: done.nodes.clone(), ledger: vec![Arc::new(shard)], ..World::default() }
    };
    let scribble = plan(&job, &garbled("v2"), later(60));
    assert!(created(&scribble).is_empty());
    assert!(written(&scribble)["uid-a"].contains("RecordLost"));
    let newer = plan(&job, &garbled("v3"), later(60));
    assert!(newer.steps.is_empty(), "{:?}", newer.steps);
    assert_eq!(state(newer.status.as_ref().unwrap(), "a"), Some("LedgerFormat"));
    assert_eq!(reason(&newer, "LedgerLost"), ("True".into(), "LedgerFormat".into()));
    // A deleted pod waits for a version that can record it.
    let mut held = garbled("v3");
    held.pods.push(Arc::new(going(pod(&job, "a", 1, "Succeeded"), now())));
    assert!(released(&plan(&job, &held, later(60))).is_empty());
}

#[test]
fn recreates_a_deleted_shard_from_the_cache() {
    let job = simple();
    let done = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    let before = done.ledger.len();
    let deleted = World { pods: Vec::new(), deleted_shards: done.ledger, ledger: Vec::new(), ..done };
    let plan = plan(&job, &deleted, later(60));
    assert_eq!(plan.steps.concat().len(), before);
    assert_eq!(written(&plan).len(), 2);
    assert!(written(&plan)["uid-a"].contains("Succeeded"));
    assert_eq!(plan.events[0].reason, "LedgerRestored");
    assert_eq!(reason(&plan, "Complete").0, "True");
}

#[test]
fn restores_lost_labels() {
    let job = simple();
    let naked = Arc::new(pod(&job, "a", 1, "Running"));
    let mut one = world(&["a"], vec![]);
    one.pods.push(naked.clone());
    one.unlabelled.pods.push(naked);
    let job = with_status(job, &one, now());
    let plan_ = plan(&job, &one, now());
    assert!(created(&plan_).is_empty());
    let Action::MergePatch { body, .. } = &plan_.steps[0][0] else { panic!() };
    assert_eq!(body["metadata"], json!({"uid": "a-1", "labels": {KIND_LABEL: "DaemonJob"}}));
    // A pod without its label that no watch has shown has the name of the new pod.
    let mut met = world(&["a"], vec![]);
    let until = later(10);
    let refusal = Refusal {
        verb: Verb::Create,
        reason: RefusalReason::LabelsMissing,
        message: String::new(),
        times: 1,
        until,
    };
    met.refusals.insert(&PODS, pod_name(&job, &node("a"), 1), refusal);
    let plan_ = plan(&job, &met, now());
    assert!(created(&plan_).is_empty());
    assert!(matches!(&plan_.steps[0][0], Action::MergePatch { resource: PODS, .. }));
}

#[test]
fn deletes_pods_after_the_ttl_and_keeps_the_record() {
    let job = with(&json!({"ttlSecondsAfterFinished": 60}));
    let done = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    let early = plan(&job, &done, later(59));
    assert_eq!((early.steps.len(), early.again), (0, Some(later(60))));
    assert_eq!(deleted(&plan(&job, &done, later(60))), ["a-1"]);
    let (job, after) = settled(job, World { pods: Vec::new(), ..done }, later(61));
    let quiet = plan(&job, &after, later(7_200));
    assert!(quiet.steps.is_empty() && quiet.again.is_none());
    assert_eq!(quiet.status.unwrap().succeeded, Some(1));
}

#[test]
fn keeps_a_bounded_number_of_failed_pods() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let names: Vec<String> = (0..150).map(|index| format!("n{index:03}")).collect();
    let pods: Vec<Pod> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let mut failed = pod(&job, name, 1, "Failed");
            failed.finished = Some(later(i64::try_from(index).unwrap()));
            failed
        })
        .collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let (job, world) = settled(job.clone(), world(&nodes, pods), later(600));
    let gone = deleted(&plan(&job, &world, later(600)));
    assert_eq!(gone.len(), 50);
    assert!(gone.contains(&"n000-1".to_owned()) && !gone.contains(&"n149-1".to_owned()));
    let status = job.status.unwrap();
    assert_eq!(
        (status.failed, status.failed_nodes.len(), status.more_failed_nodes),
        (Some(150), 20, Some(130))
    );
}

#[test]
fn deletes_a_surplus_pod() {
    let job = simple();
    let done = world(&["a"], vec![pod(&job, "a", 2, "Failed")]);
    let (job, done) = settled(job, done, now());
    let mut suspended = job.clone();
    suspended.spec.suspend = Some(true);
    let (_, done) = settled(suspended, done, now());
    // The ledger has a later end: this pod was created late.
    let late = World { pods: vec![Arc::new(pod(&job, "a", 2, "Pending"))], ..done };
    assert_eq!(deleted(&plan(&job, &late, now())), ["a-2"]);
    // Two pods for one node name: the pod that has started stays.
    let two = world(&["a"], vec![pod(&job, "a", 3, "Running"), pod(&job, "a", 4, "Pending")]);
    assert_eq!(deleted(&plan(&job, &two, now())), ["a-4"]);
}

#[test]
fn deletes_running_pods_as_a_daemonset_does() {
    let job =
        with(&json!({"template": {"spec": {"containers": [{"name": "c"}], "nodeSelector": {"app": "v1"}}}}));
    for (change, goes) in [("unselected", true), ("NoExecute", true), ("NoSchedule", false)] {
        let mut world = world(&["a"], vec![pod(&job, "a", 1, "Running")]);
        let mut node = (*world.nodes[0]).clone();
        if change == "unselected" {
            node.meta.labels = [("app", "v2")].into();
        } else {
            node.taints = serde_json::from_value(json!([{"key": "k", "effect": change}])).unwrap();
        }
        world.nodes[0] = Arc::new(node);
        let plan = plan(&with_status(job.clone(), &world, now()), &world, now());
        assert_eq!(!deleted(&plan).is_empty(), goes, "{change}");
        assert_eq!(plan.status.unwrap().desired, Some(1), "a running pod counts as desired");
    }
}

#[test]
fn skips_a_tainted_node_and_waits_for_an_unhealthy_node() {
    let mut world = world(&["a", "b"], vec![]);
    for (index, taint) in ["special", "node.kubernetes.io/not-ready"].into_iter().enumerate() {
        let mut node = (*world.nodes[index]).clone();
        node.taints =
            serde_json::from_value(json!([{"key": taint, "value": "v", "effect": "NoSchedule"}])).unwrap();
        world.nodes[index] = Arc::new(node);
    }
    let plan = plan(&simple(), &world, now());
    let status = plan.status.as_ref().unwrap();
    assert_eq!((state(status, "a"), state(status, "b")), (Some("Tainted"), Some("NotReady")));
    assert!(status.skipped_nodes[0].message.contains("special=v:NoSchedule"));
    assert_eq!((status.desired, status.pending, status.skipped), (Some(1), Some(1), Some(1)));
    assert_eq!(reason(&plan, "Complete"), ("False".into(), "NodesPending".into()));
}

/// Statuses of the tutorial's operator are decoded.
#[test]
fn decodes_statuses_of_the_tutorials_operator() {
    let mut job = serde_json::to_value(simple()).unwrap();
    job["status"] = json!({"startTime": START, "completionTime": START, "succeeded": 3, "conditions": [
        {"type": "Complete", "status": "True", "lastProbeTime": START, "lastTransitionTime": START},
        {"type": "Failed", "status": "False"}]});
    let job: DaemonJob = serde_json::from_value(job).unwrap();
    let plan = plan(&job, &world(&["a"], vec![]), now());
    assert!(plan.status.unwrap().template_hash.is_some());
}

#[test]
fn only_records_outcomes_before_the_process_exits() {
    let job = simple();
    let mut world = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded")]);
    let job = with_status(job, &world, now());
    world.stopping = true;
    let plan = plan(&job, &world, now());
    assert_eq!(written(&plan).into_keys().collect::<Vec<_>>(), ["uid-a"]);
    assert_eq!(plan.steps.len(), 1);
    assert!(plan.status.is_none() && created(&plan).is_empty());
}

#[test]
fn drops_lines_of_deleted_nodes_with_the_next_write() {
    let job = simple();
    // Two nodes of one shard.
    let names: Vec<String> = (0..50)
        .map(|index| format!("n{index}"))
        .filter(|name| shard_of(&format!("uid-{name}")) == 0)
        .collect();
    let (one, two) = (names[0].as_str(), names[1].as_str());
    let (job, done) = settled(job.clone(), world(&[one], vec![pod(&job, one, 1, "Succeeded")]), now());
    let replaced = World { ledger: done.ledger, ..world(&[two], vec![pod(&job, two, 1, "Succeeded")]) };
    let plan = plan(&job, &replaced, later(60));
    assert_eq!(written(&plan)[&format!("uid-{one}")], "(dropped)");
    assert!(written(&plan)[&format!("uid-{two}")].contains("Succeeded"));
}

/// The status and the shards stay small for any number of nodes.
#[test]
fn limits_the_size_of_status_and_ledger() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let names: Vec<String> =
        (0..5_000).map(|index| format!("ip-10-0-{index:05}.eu-central-1.compute.internal")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let phases = ["Succeeded", "Failed", "Pending"];
    let pods = nodes.iter().enumerate().map(|(index, name)| pod(&job, name, 1, phases[index % 3])).collect();
    let (mut job, mut world) = settled(job, world(&nodes, pods), later(60));
    job.spec.suspend = Some(true);
    (job, world) = settled(job, world, later(60));
    let size = serde_json::to_string(&job.status).unwrap().len();
    assert!(size < 32 * 1024, "{size} bytes of status");
    for shard in &world.ledger {
        let bytes: usize = shard
            .entries
            .iter()
            .map(|(uid, line)| uid.len() + line.as_ref().unwrap().to_string().len())
            .sum();
        assert!(bytes < 256 * 1024, "{bytes} bytes in {}", shard.meta.name);
    }
}

/// The hash of the tutorial's sample. A change would run every DaemonJob again at an upgrade.
#[test]
fn golden_hash_of_the_sample() {
    let template = RawTemplate(json!({"spec": {
        "containers": [{"name": "test-job", "image": "busybox", "command": ["sleep", "20"]}],
        "nodeSelector": {"app": "v1"}, "restartPolicy": "OnFailure"}}));
    assert_eq!(template.hash(), "v1-7ji4ojlv5d");
}

proptest! {
    /// For any pods, at most one pod is created for a node, and none if a pod runs there or the node is done.
    #[test]
    fn never_creates_two_pods_for_a_node(phases in prop::collection::vec((0..4_usize, 1..4_u64, 0..4_usize, any::<bool>(), any::<bool>()), 0..12)) {
        let job = simple();
        let names = ["a", "b", "c", "d"];
        let pods: Vec<Pod> = phases
            .iter()
            .map(|(at, run, phase, going, old)| {
                let mut pod = pod(&job, names[*at], *run, ["Pending", "Running", "Succeeded", "Failed"][*phase]);
                if *going { pod.meta.deleted = Some(now()); }
                if *old {
                    let uid = format!("uid-{}", names[*at]);
                    pod.meta.labels = [(NODE_UID_LABEL, uid.as_str()), (HASH_LABEL, "v1-old"), (POD_NUMBER_LABEL, "1")].into();
                }
                pod
            })
            .collect();
        let world = world(&names, pods);
        let later = now() + SignedDuration::from_hours(24);
        let job = with_status(job, &world, later);
        let plan = plan(&job, &world, later);
        let made = created(&plan);
        let mut once = made.clone();
        once.dedup();
        prop_assert_eq!(&made, &once);
        for name in &made {
            prop_assert!(!world.pods.iter().any(|pod| pod.is_running() && pinned_to(pod) == Some(name)));
        }
        for action in plan.steps.iter().flatten() {
            if let Action::Create { resource: PODS, name, .. } = action {
                let run: u64 = name.rsplit('-').next().unwrap().parse().unwrap();
                let of = world.nodes.iter().find(|node| pod_name(&job, node, run) == *name).unwrap();
                prop_assert!(world.pods.iter().all(|pod| pod.label(NODE_UID_LABEL) != Some(&of.meta.uid) || number_of(pod) < run));
            }
        }
    }
}

/// A node's clock that is ahead must not delay a release or a node.
#[test]
fn a_nodes_clock_that_is_ahead_delays_nothing() {
    let job = simple();
    let mut ahead = going(pod(&job, "a", 1, "Succeeded"), now());
    ahead.finished = Some(later(3_600));
    let world = world(&["a"], vec![ahead]);
    let job = with_status(job, &world, now());
    let plan = plan(&job, &world, later(1));
    assert!(written(&plan)["uid-a"].ends_with("2026-01-01T00:00:01Z"), "{:?}", written(&plan));
    assert_eq!(released(&plan), ["a-1"]);
}

/// An earlier definition accepted 0.
#[test]
fn a_stored_parallelism_of_zero_creates_nothing() {
    let job = with(&json!({"parallelism": 0}));
    let world = world(&["a"], vec![]);
    let plan = plan(&with_status(job.clone(), &world, now()), &world, now());
    assert!(created(&plan).is_empty());
    let status = plan.status.unwrap();
    assert_eq!(state(&status, "a"), Some("WaitingForTurn"));
    assert_eq!(status.pending_nodes[0].message, "parallelism allows 0; running: 0 pods");
}

#[test]
fn a_taint_does_not_hide_a_terminating_pod() {
    let job = with(&json!({"parallelism": 1}));
    let mut world = world(&["a", "b"], vec![going(pod(&job, "a", 1, "Running"), now())]);
    let mut dead = (*world.nodes[0]).clone();
    dead.taints = serde_json::from_value(json!([
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]))
    .unwrap();
    world.nodes[0] = Arc::new(dead);
    let status = plan(&job, &world, now()).status.unwrap();
    let listed = status.pending_nodes.iter().find(|node| node.node == "a").unwrap();
    assert_eq!(listed.reason, "PreviousPodTerminating");
    assert!(listed.message.contains("holds 1 of 1 slots"), "{}", listed.message);
    assert_eq!((state(&status, "b"), status.pending), (Some("WaitingForTurn"), Some(2)));
    // A deleted node is in no list, so the message of the waiting node names its pod.
    world.nodes.remove(0);
    let status = plan(&job, &world, now()).status.unwrap();
    assert!(status.pending_nodes[0].message.contains("a-1 on a holds a slot"), "{status:?}");
}

#[test]
fn reads_a_terminating_shard_until_it_is_gone() {
    let job = simple();
    let done = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    let mut going_shard = (*done.ledger[0]).clone();
    going_shard.meta.deleted = Some(later(10));
    let one = World {
        pods: vec![Arc::new(going(pod(&job, "a", 2, "Succeeded"), later(10)))],
        deleted_shards: vec![Arc::new(going_shard)],
        ledger: Vec::new(),
        ..done
    };
    let plan_ = plan(&job, &one, later(60));
    assert!(plan_.steps.is_empty() && plan_.events.is_empty(), "{plan_:?}");
    assert_eq!(reason(&plan_, "Complete").0, "True");
    let mut gone = (*one.deleted_shards[0]).clone();
    gone.meta.deleted = None;
    let gone = World { deleted_shards: vec![Arc::new(gone)], ..one };
    let plan = plan(&job, &gone, later(60));
    assert!(written(&plan)["uid-a"].contains("pod=2"));
    assert_eq!((released(&plan), plan.events[0].reason), (vec!["a-2".to_owned()], "LedgerRestored"));
}

/// A kept failed pod must not run a node again whose success was in a lost shard.
#[test]
fn an_old_failure_does_not_replace_a_lost_record() {
    let job = simple();
    let done = world(&["a"], vec![pod(&job, "a", 1, "Failed"), pod(&job, "a", 2, "Succeeded")]);
    let (job, done) = settled(job, done, now());
    let lost = World { pods: vec![done.pods[0].clone()], ledger: Vec::new(), ..done };
    let lost_plan = plan(&job, &lost, later(3_600));
    assert!(created(&lost_plan).is_empty());
    assert_eq!(state(lost_plan.status.as_ref().unwrap(), "a"), Some("RecordLost"));
    // A pod that runs, or has succeeded with this template, replaces the record.
    for phase in ["Running", "Succeeded"] {
        let known = World { pods: vec![Arc::new(pod(&job, "a", 3, phase))], ..World::default() };
        let known = World { nodes: lost.nodes.clone(), ..known };
        assert_eq!(state(plan(&job, &known, later(3_600)).status.as_ref().unwrap(), "a"), None, "{phase}");
    }
}

/// The manager restores only the label of the watch. A pod without the other labels still counts.
#[test]
fn a_pod_that_lost_its_labels_still_counts() {
    let job = simple();
    for phase in ["Running", "Succeeded"] {
        let mut naked = pod(&job, "a", 1, phase);
        naked.meta.name = "d-abcdefghij-1".into();
        naked.meta.labels = [(KIND_LABEL, "DaemonJob")].into();
        let mut one = world(&["a"], vec![naked]);
        let mut aged = (*one.nodes[0]).clone();
        aged.meta.created = Some(now());
        one.nodes[0] = Arc::new(aged);
        let job = with_status(job.clone(), &one, now());
        let plan = plan(&job, &one, later(60));
        assert!(created(&plan).is_empty() && deleted(&plan).is_empty(), "{phase}: {plan:?}");
    }
}

#[test]
fn a_status_without_a_template_always_begins_a_run() {
    let mut job = with(&json!({"rerunOn": [], "activeDeadlineSeconds": 600}));
    job.status = Some(DaemonJobStatus { start_time: Some(Time(now())), ..DaemonJobStatus::default() });
    let month = later(2_600_000);
    let begun = plan(&job, &world(&["a"], vec![]), month).status.unwrap();
    assert_eq!(begun.start_time, Some(Time(month)));
    job.status = Some(begun);
    assert_eq!(created(&plan(&job, &world(&["a"], vec![]), month)), ["a"]);
}

#[test]
fn a_suspended_run_has_no_deadline() {
    let job = with(&json!({"suspend": true, "activeDeadlineSeconds": 1}));
    let world = world(&["a"], vec![]);
    let job = with_status(job, &world, now());
    assert_eq!(plan(&job, &world, later(10)).again, None);
}
