//! The fields of the spec that hold or end a run: parallelism, failurePolicy, deadlines, suspend and paused.

use super::*;

#[rstest]
#[case::number(json!(2), 10, Some(2))]
#[case::none(json!(0), 10, Some(0))]
#[case::percent_up(json!("25%"), 10, Some(3))]
#[case::at_least_one(json!("1%"), 10, Some(1))]
#[case::at_least_one_of_none(json!("50%"), 0, Some(1))]
#[case::all(json!("100%"), 7, Some(7))]
fn parallelism_is_rounded_up(#[case] value: Value, #[case] desired: usize, #[case] limit: Option<usize>) {
    assert_eq!(crate::parallelism::parallelism(&with(&json!({"parallelism": value})), desired), limit);
}

#[rstest]
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
    let mut scene = Scene::started(with(&json!({"parallelism": 1})), &["a", "b", "c"], &[]);
    assert_eq!(created(&scene.plan()), ["a"]);
    scene.set_pods(&[("a", 1, "Pending")]).edit_pod("a", |pod| {
        (pod.node, pod.unschedulable) = (None, Some("0/3 nodes are available".into()));
    });
    let plan = scene.plan();
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
fn waits_for_pods_of_a_deleted_daemonjob_with_its_name() {
    let mut scene = Scene::started(with(&json!({"parallelism": 2})), &["a", "b", "c"], &[]);
    let mut old = scene.pod_of("a", 7, "Running");
    scene.world.predecessors = vec![Arc::new(old.clone())];
    let plan = scene.plan();
    assert_eq!(created(&plan), ["b"], "the old pod holds one of two slots");
    assert_eq!(reason(&plan, "a"), Some("PreviousPod"));
    assert_eq!(reason(&plan, "c"), Some("WaitingForTurn"));
    let status = plan.status.unwrap();
    let message = &status.pending_nodes.iter().find(|one| one.node == "c").unwrap().message;
    assert!(message.contains(&*old.meta.name), "{message}");

    terminate(&mut old, now());
    scene.world.predecessors = vec![Arc::new(old.clone())];
    assert_eq!(reason(&scene.plan(), "a"), Some("PreviousPodTerminating"));
    old.phase = Phase::Failed;
    scene.world.predecessors = vec![Arc::new(old)];
    assert_eq!(created(&scene.plan()), ["a", "b"]);
}

/// A pod of a deleted DaemonJob loses its slot when its node is lost, whether or not the template selects the node.
#[rstest]
#[case::untolerated(json!({}))]
#[case::tolerated(json!({"tolerations": [{"operator": "Exists"}]}))]
#[case::deselected(json!({"nodeSelector": {"role": "other"}}))]
fn a_predecessor_loses_its_slot_with_its_node(#[case] spec: Value) {
    let job = with(&merged(template(&spec), &json!({"parallelism": 1})));
    let mut scene = Scene::unseen(job, &["a", "b"]);
    scene.edit_node_unseen("b", |node| {
        node.meta.labels = [("app", "v1"), ("role", "other")].into();
    });
    scene.world.predecessors = vec![Arc::new(scene.pod_of("a", 7, "Running"))];
    scene.pass();
    scene.kill("a");
    assert!(scene.world.pods.is_empty());
    assert!(scene.after(599).world.pods.is_empty());
    assert!(scene.after(2).has_pod("b"));
    assert_eq!(scene.counted(), ["b"]);
}

/// A pod that was deleted before it was bound never runs, even if a foreign finalizer keeps it.
#[test]
fn a_deleted_unbound_predecessor_occupies_no_node() {
    let mut scene = Scene::started(with(&json!({})), &["a"], &[]);
    let mut old = scene.pod_of("a", 7, "Pending");
    old.node = None;
    terminate(&mut old, now());
    scene.world.predecessors = vec![Arc::new(old)];
    assert_eq!(created(&scene.plan()), ["a"]);
}

/// An earlier definition accepted 0.
#[test]
fn a_stored_parallelism_of_zero_creates_nothing() {
    let plan = Scene::started(with(&json!({"parallelism": 0})), &["a"], &[]).plan();
    assert!(created(&plan).is_empty());
    assert_eq!(reason(&plan, "a"), Some("WaitingForTurn"));
    assert_eq!(plan.status.unwrap().pending_nodes[0].message, "parallelism allows 0; running: 0 pods");
}

#[test]
fn suspend_deletes_and_records_pods_and_resume_begins_a_run() {
    let pods = [("a", 1, "Succeeded"), ("b", 1, "Running")];
    let mut scene = Scene::started(with(&json!({})), &["a", "b"], &pods);
    scene.job.spec.suspend = Some(true);
    let plan = scene.plan_at(5);
    assert_eq!(marks(&plan), [("b-1", Some("Suspend"))]);
    assert_eq!(written(&plan).into_keys().collect::<Vec<_>>(), ["uid-a"]);
    assert_eq!(plan.status.as_ref().unwrap().start_time, None);
    assert_eq!(condition(&plan, "Complete").1, "Suspended");
    assert_eq!(condition(&plan, "Suspended").0, "True");
    assert_eq!(condition(&plan, "Failed").0, "False");
    // The status does not change again.
    scene.set_pods(&[("a", 1, "Succeeded"), ("b", 1, "Failed")]).edit_pod("b", |pod| {
        terminate(pod, later(5));
        pod.finished = Some(later(6));
    });
    scene.tick(10).settle();
    assert_eq!(scene.plan_at(3_000).status, scene.job.status);
    // The disruption does not count, and a new run has no backoff.
    scene.job.spec.suspend = None;
    let first = scene.plan();
    assert_eq!(first.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["Resumed"]);
    scene.write_status();
    assert_eq!(scene.status().start_time, Some(Time(later(10))));
    assert_eq!(created(&scene.plan()), ["b"]);
}

#[test]
fn paused_creates_no_pods_and_deletes_none() {
    let plan = Scene::started(with(&json!({"paused": true})), &["a", "b"], &[("a", 1, "Running")]).plan();
    assert!(plan.steps.is_empty());
    assert_eq!(condition(&plan, "Paused"), ("True", "Paused"));
    assert_eq!(condition(&plan, "Complete"), ("False", "Paused"));
    assert_eq!(reason(&plan, "b"), Some("Paused"));
}

#[rstest]
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
    let plan = Scene::started(job, &["a", "b", "c"], &[("a", 1, "Failed"), ("b", 1, "Running")]).plan();
    assert_eq!(created(&plan) == ["c"], continues);
    assert_eq!(deleted(&plan) == ["b-1"], type_ == "FailFast" && max == 0);
    let status = plan.status.as_ref().unwrap();
    let held = status.conditions.iter().find(|one| one.type_ == "Paused").map(|one| one.reason.as_str());
    assert_eq!(held, paused);
    assert_eq!((status.failed, state(status, "a")), (Some(1), Some("BackoffLimitExceeded")));
}

#[rstest]
#[case("FailJob", true)]
#[case("FailIndex", false)]
fn fail_job_ends_the_run_and_fail_index_only_its_node(#[case] action: &str, #[case] ends: bool) {
    let rule = json!({"action": action, "onExitCodes": {"operator": "In", "values": [1]}});
    let job = with(&json!({"podFailurePolicy": {"rules": [rule]}}));
    let plan = Scene::settled(job, &["a", "b"], &[("a", 1, "Failed")]).plan_at(60);
    assert_eq!(created(&plan).is_empty(), ends);
    assert_eq!(condition(&plan, "Failed").1 == "PodFailurePolicy", ends);
    assert_eq!(reason(&plan, "a"), Some("PodFailurePolicy"));
}

#[test]
fn a_pod_that_restarts_too_often_fails_its_node() {
    let mut job = simple();
    job.spec.backoff_limit = Some(2);
    let mut scene = Scene::with_pods(job, &["a"], &[("a", 1, "Running")]);
    scene.edit_pod("a", |pod| pod.restarts = 2);
    let looping = scene.write_status().plan();
    assert_eq!(deleted(&looping), ["a-1"]);
    assert_eq!(marks(&looping), [("a-1", Some("Exhausted"))]);
    scene.edit_pod("a", |pod| {
        mark(pod, DeletedFor::Exhausted);
        terminate(pod, later(1));
        (pod.phase, pod.finished) = (Phase::Failed, Some(later(2)));
    });
    let over = scene.plan_at(5);
    assert_eq!(reason(&over, "a"), Some("BackoffLimitExceeded"));
    assert!(written(&over)["uid-a"].contains("outcome=Failed failures=3"), "{:?}", written(&over));
}

#[test]
fn the_deadline_ends_the_run() {
    let mut job = simple();
    job.spec.active_deadline_seconds = Some(60);
    let pods = [("a", 1, "Succeeded"), ("b", 1, "Running")];
    let mut scene = Scene::started(job, &["a", "b"], &pods);
    assert_eq!(scene.plan().again, Some(later(60)));
    let ended = scene.plan_at(60);
    assert_eq!(deleted(&ended), ["b-1"]);
    assert_eq!(condition(&ended, "Failed").0, "False", "it becomes True when the deletions are accepted");
    scene.edit_pod("b", |pod| pod.meta.deleted = Some(later(60))).tick(60).settle();
    let job = scene.job.clone();
    scene.world = world(&["a", "b", "c"], [scene.pod_of("a", 1, "Succeeded")]);
    scene.settle().job = job;
    let after = scene.plan_at(60 + 3_600);
    assert_eq!(condition(&after, "Failed"), ("True", "DeadlineExceeded"));
    assert!(after.steps.is_empty(), "{:?}", after.steps);
}

#[test]
fn a_suspended_run_has_no_deadline() {
    let job = with(&json!({"suspend": true, "activeDeadlineSeconds": 1}));
    assert_eq!(Scene::started(job, &["a"], &[]).plan_at(10).again, None);
}

#[test]
fn skips_a_node_whose_pod_does_not_start_in_time() {
    let job = with(&json!({"pendingDeadlineSeconds": 30}));
    let pods = [("a", 1, "Pending"), ("b", 1, "Running")];
    let mut scene = Scene::started(job, &["a", "b"], &pods);
    scene.step_clocks();
    assert_eq!(scene.plan().again, Some(later(30)));
    // Clocks differ, so the annotation comes first. A pod that has started by then stays and loses it.
    let first = scene.plan_at(30);
    let Action::MergePatch { body, .. } = &first.steps[0][0] else { panic!("{first:?}") };
    assert_eq!(body["metadata"]["annotations"], json!({ DELETED_FOR_ANNOTATION: "PendingDeadline" }));
    assert_eq!(body["metadata"]["resourceVersion"], "1");
    scene.edit_pod("a", |pod| mark(pod, DeletedFor::PendingDeadline));
    assert_eq!(deleted(&scene.plan_at(30)), ["a-1"]);
    let mut running = scene.pod_of("a", 1, "Running");
    mark(&mut running, DeletedFor::PendingDeadline);
    let marked = std::mem::replace(&mut scene.world.pods[0], Arc::new(running));
    let started = scene.plan_at(30);
    let Action::MergePatch { body, .. } = &started.steps[0][0] else { panic!("{started:?}") };
    assert_eq!(body["metadata"]["annotations"], json!({ DELETED_FOR_ANNOTATION: null }));
    assert!(deleted(&started).is_empty());
    // The API server's clock is behind the manager's.
    scene.world = world(&["a", "b"], [(*marked).clone(), scene.pod_of("b", 1, "Succeeded")]);
    scene.tick(32).edit_pod("a", |pod| {
        terminate(pod, later(1));
        pod.node = None;
    });
    assert!(written(&scene.plan())["uid-a"].contains("PendingDeadlineExceeded"));
    scene.settle().world.pods.remove(0);
    let after = scene.plan_at(3_600);
    assert!(created(&after).is_empty());
    assert_eq!(reason(&after, "a"), Some("PendingDeadlineExceeded"));
    assert_eq!(condition(&after, "Complete"), ("True", "NodesSkipped"));
}

/// L5: the deadline of a gated pod begins when the gates are removed.
#[test]
fn a_gated_pod_has_no_deadline() {
    let job = with(&json!({"pendingDeadlineSeconds": 60}));
    let mut scene = Scene::started(job, &["a"], &[]);
    scene.set_pods(&[("a", 1, "Pending")]).edit_pod("a", |pod| (pod.node, pod.is_gated) = (None, true));
    let mut look_at = |second: i64, is_gated: bool| {
        scene.second = second;
        scene.edit_pod("a", |pod| pod.is_gated = is_gated).step_clocks();
        scene.plan()
    };
    look_at(0, true);
    let waits = look_at(600, true);
    let listed = &waits.status.as_ref().unwrap().pending_nodes[0];
    assert_eq!(listed.reason, "Scheduling");
    assert!(listed.message.contains("scheduling gates"), "{}", listed.message);
    assert!(waits.steps.is_empty(), "{waits:?}");
    assert!(look_at(601, false).steps.is_empty());
    assert_eq!(deleted(&look_at(661, false)), ["a-1"]);
}

#[test]
fn a_status_without_a_template_always_begins_a_run() {
    let job = with(&json!({"rerunOn": [], "activeDeadlineSeconds": 600}));
    let mut scene = Scene::unseen(job, &["a"]);
    scene.job.status = Some(DaemonJobStatus { start_time: Some(Time(now())), ..DaemonJobStatus::default() });
    let month = 2_600_000;
    scene.tick(month).write_status();
    assert_eq!(scene.status().start_time, Some(Time(later(month))));
    assert_eq!(created(&scene.plan()), ["a"]);
}
