use super::*;
use proptest::prelude::*;
use quintet_kit::plan::Refusal;
use quintet_kit::template::RawTemplate;

const START: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    START.parse().unwrap()
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

/// The job as it is once the plan's status was written.
fn told(mut job: DaemonJob, world: &World, at: Timestamp) -> DaemonJob {
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
                NODE_UID_LABEL: format!("uid-{node}"), RUN_LABEL: run.to_string(),
                HASH_LABEL: job.spec.template.hash()},
            "annotations": {NODE_NAME_ANNOTATION: node}},
        "status": {"phase": phase}
    }))
    .unwrap()
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
            Action::Create { body, .. } => {
                Some(body["metadata"]["annotations"][NODE_NAME_ANNOTATION].as_str().unwrap().to_owned())
            }
            _ => None,
        })
        .collect()
}

fn deleted(plan: &Plan<DaemonJobStatus>) -> Vec<String> {
    plan.steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Delete { name, .. } => Some(name.to_string()),
            _ => None,
        })
        .collect()
}

fn reason(plan: &Plan<DaemonJobStatus>, type_: &str) -> (String, String) {
    let condition =
        plan.status.as_ref().unwrap().conditions.iter().find(|one| one.type_ == type_).unwrap().clone();
    (condition.status, condition.reason)
}

#[test]
fn the_start_is_told_before_the_first_pod() {
    let world = world(&["a", "b"], vec![]);
    let first = plan(&simple(), &world, now());
    assert!(first.steps.is_empty());
    assert_eq!(first.status.as_ref().unwrap().start_time, Some(Time(now())));
    let second = plan(&told(simple(), &world, now()), &world, now());
    assert_eq!(created(&second), ["a", "b"]);
}

#[test]
fn a_pod_is_named_labelled_and_pinned() {
    let world = world(&["a"], vec![]);
    let plan = plan(&told(simple(), &world, now()), &world, now());
    let Action::Create { name, body, .. } = &plan.steps[0][0] else { panic!() };
    assert!(name.starts_with("d-") && name.ends_with("-1"), "{name}");
    assert_eq!(body["metadata"]["labels"][NAME_LABEL], "d");
    assert_eq!(body["metadata"]["labels"][KIND_LABEL], "DaemonJob");
    assert_eq!(body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], true);
    assert_eq!(body["spec"]["restartPolicy"], "OnFailure");
    let pin = &body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(pin["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], "a");
}

#[test]
fn names_are_the_same_for_every_maker_and_differ_by_node_and_run() {
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
fn a_finished_node_never_runs_again_and_all_done_is_complete() {
    let job = simple();
    let pods = vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Running")];
    let some = world(&["a", "b"], pods);
    let told = told(job.clone(), &some, now());
    let half = plan(&told, &some, now());
    assert!(half.steps.is_empty());
    assert_eq!(reason(&half, "Complete"), ("False".into(), "NodesPending".into()));
    let all = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Succeeded")]);
    let whole = plan(&told, &all, now());
    assert!(whole.steps.is_empty());
    assert_eq!(reason(&whole, "Complete"), ("True".into(), "AllNodesDone".into()));
    assert_eq!(whole.events.len(), 1);
    let status = whole.status.unwrap();
    assert_eq!((status.desired, status.succeeded, status.active), (Some(2), Some(2), Some(0)));
    assert_eq!(status.completion_time, Some(Time(now())));
}

#[test]
fn nothing_is_written_once_it_is_complete() {
    let job = simple();
    let world = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let job = told(told(job, &world, now()), &world, now());
    let later = now() + SignedDuration::from_hours(5);
    let again = plan(&job, &world, later);
    assert!(again.steps.is_empty() && again.events.is_empty() && again.again.is_none());
    assert_eq!(again.status, job.status);
}

#[test]
fn a_late_node_starts_a_new_run_of_its_own() {
    let job = simple();
    let before = world(&["a"], vec![pod(&job, "a", 1, "Succeeded")]);
    let job = told(told(job, &before, now()), &before, now());
    let later = now() + SignedDuration::from_hours(1);
    let after = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded")]);
    let start = plan(&job, &after, later);
    assert!(start.steps.is_empty());
    let status = start.status.clone().unwrap();
    assert_eq!((status.start_time, status.completion_time), (Some(Time(later)), None));
    assert_eq!(reason(&start, "Complete").0, "False");
    assert_eq!(created(&plan(&told(job, &after, later), &after, later)), ["b"]);
}

#[test]
fn no_eligible_node_is_complete() {
    let job = job(&json!({"template": {"spec": {
        "containers": [{"name": "c"}], "nodeSelector": {"app": "v2"}}}}));
    let plan = plan(&job, &world(&["a"], vec![]), now());
    assert_eq!(reason(&plan, "Complete"), ("True".into(), "NoEligibleNodes".into()));
}

#[test]
fn failures_back_off_and_end_at_the_limit() {
    let mut job = simple();
    job.spec.backoff_limit = Some(1);
    let failed = |run| {
        let mut pod = pod(&job, "a", run, "Failed");
        pod.finished = Some(now());
        pod
    };
    let one = world(&["a"], vec![failed(1)]);
    let started = told(job.clone(), &one, now());
    let waiting = plan(&started, &one, now());
    assert!(waiting.steps.is_empty());
    assert_eq!(waiting.again, Some(now() + SignedDuration::from_secs(10)));
    let later = now() + SignedDuration::from_secs(10);
    assert_eq!(created(&plan(&started, &one, later)), ["a"]);
    let two = world(&["a"], vec![failed(1), failed(2)]);
    let ended = plan(&started, &two, later);
    assert!(ended.steps.is_empty());
    assert_eq!(reason(&ended, "Failed"), ("True".into(), "NodesFailed".into()));
    assert_eq!(reason(&ended, "Complete").0, "False");
}

#[test]
fn a_disrupted_pod_does_not_count_against_the_limit() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let mut evicted = pod(&job, "a", 1, "Failed");
    evicted.disrupted = true;
    let world = world(&["a"], vec![evicted]);
    let later = now() + SignedDuration::from_secs(10);
    assert_eq!(created(&plan(&told(job, &world, now()), &world, later)), ["a"]);
}

#[test]
fn a_terminating_pod_blocks_its_node_until_it_has_ended() {
    let job = simple();
    let mut going = pod(&job, "a", 1, "Running");
    going.meta.deleted = Some(now());
    let world = world(&["a"], vec![going]);
    assert!(created(&plan(&told(job, &world, now()), &world, now())).is_empty());
}

#[test]
fn a_pod_for_a_vanished_node_is_deleted_and_blocks_a_new_node_of_that_name() {
    let job = simple();
    let mut old = pod(&job, "a", 1, "Pending");
    old.meta.labels =
        [(NODE_UID_LABEL, "gone"), (HASH_LABEL, &job.spec.template.hash()), (RUN_LABEL, "1")].into();
    let world = world(&["a"], vec![old]);
    let plan = plan(&told(job, &world, now()), &world, now());
    assert_eq!(deleted(&plan), ["a-1"]);
    assert!(created(&plan).is_empty());
}

#[test]
fn a_new_template_replaces_what_has_not_started_and_lets_the_rest_finish() {
    let old = simple();
    let mut new = told(old.clone(), &world(&["a", "b", "c"], vec![]), now());
    new.spec.template = RawTemplate(json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}));
    let world = world(
        &["a", "b", "c"],
        vec![pod(&old, "a", 1, "Succeeded"), pod(&old, "b", 1, "Running"), pod(&old, "c", 1, "Pending")],
    );
    let first = plan(&new, &world, now());
    assert_eq!(deleted(&first), ["c-1"]);
    assert!(created(&first).is_empty(), "the new run is told first");
    let second = plan(&told(new, &world, now()), &world, now());
    assert_eq!(created(&second), ["a"]);
}

#[test]
fn the_deadline_ends_the_run_and_holds() {
    let mut job = simple();
    job.spec.active_deadline_seconds = Some(60);
    let running = world(&["a", "b"], vec![pod(&job, "a", 1, "Succeeded"), pod(&job, "b", 1, "Running")]);
    let job = told(job, &running, now());
    assert_eq!(plan(&job, &running, now()).again, Some(now() + SignedDuration::from_mins(1)));
    let later = now() + SignedDuration::from_mins(1);
    let ended = plan(&job, &running, later);
    assert_eq!(deleted(&ended), ["b-1"]);
    assert_eq!(reason(&ended, "Failed"), ("True".into(), "DeadlineExceeded".into()));
    let job = told(job, &running, later);
    let gone = world(&["a", "b", "c"], vec![pod(&job, "a", 1, "Succeeded")]);
    let after = plan(&job, &gone, later + SignedDuration::from_hours(1));
    assert!(after.steps.is_empty(), "{:?}", after.steps);
    assert_eq!(reason(&after, "Failed").0, "True");
}

#[test]
fn a_refusal_waits_and_is_said() {
    let job = simple();
    let mut world = world(&["a"], vec![]);
    let job = told(job, &world, now());
    let until = now() + SignedDuration::from_secs(10);
    world.refusals.insert(
        pod_name(&job, &node("a"), 1),
        Refusal { verb: "create", reason: "Invalid".into(), message: "no image".into(), times: 1, until },
    );
    let refused = plan(&job, &world, now());
    assert!(refused.steps.is_empty());
    assert_eq!(refused.again, Some(until));
    assert_eq!(reason(&refused, "PodsRefused"), ("True".into(), "FailedCreate".into()));
    assert_eq!(created(&plan(&job, &world, until)), ["a"]);
}

#[test]
fn an_object_that_goes_gets_nothing() {
    let mut job = simple();
    job.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(plan(&job, &world(&["a"], vec![]), now()), Plan::default());
}

/// The hash of the post's sample. It must never change: an upgrade would run every DaemonJob again.
#[test]
fn golden_hash_of_the_sample() {
    let template = RawTemplate(json!({"spec": {
        "containers": [{"name": "test-job", "image": "busybox", "command": ["sleep", "20"]}],
        "nodeSelector": {"app": "v1"}, "restartPolicy": "OnFailure"}}));
    assert_eq!(template.hash(), "v1-7ji4ojlv5d");
}

proptest! {
    /// Whatever pods there are: at most one is made for a node, none where one runs, none where it is done.
    #[test]
    fn never_two_for_a_node(phases in prop::collection::vec((0..4_usize, 1..4_u64, 0..4_usize, any::<bool>(), any::<bool>()), 0..12)) {
        let job = simple();
        let names = ["a", "b", "c", "d"];
        let pods: Vec<Pod> = phases
            .iter()
            .map(|(at, run, phase, going, old)| {
                let mut pod = pod(&job, names[*at], *run, ["Pending", "Running", "Succeeded", "Failed"][*phase]);
                if *going { pod.meta.deleted = Some(now()); }
                if *old {
                    let uid = format!("uid-{}", names[*at]);
                    pod.meta.labels = [(NODE_UID_LABEL, uid.as_str()), (HASH_LABEL, "v1-old"), (RUN_LABEL, "1")].into();
                }
                pod
            })
            .collect();
        let world = world(&names, pods);
        let later = now() + SignedDuration::from_hours(24);
        let job = told(job, &world, later);
        let plan = plan(&job, &world, later);
        let made = created(&plan);
        let mut once = made.clone();
        once.dedup();
        prop_assert_eq!(&made, &once);
        for name in &made {
            prop_assert!(!world.pods.iter().any(|pod| pod.is_running() && pinned_to(pod) == Some(name)));
        }
        for action in plan.steps.iter().flatten() {
            if let Action::Create { name, .. } = action {
                let run: u64 = name.rsplit('-').next().unwrap().parse().unwrap();
                let of = world.nodes.iter().find(|node| pod_name(&job, node, run) == *name).unwrap();
                prop_assert!(world.pods.iter().all(|pod| pod.label(NODE_UID_LABEL) != Some(&of.meta.uid) || run_of(pod) < run));
            }
        }
    }
}
