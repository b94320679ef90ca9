//! Replacing pods of an older template, and the progress of that.

use super::*;

#[test]
fn a_rollout_keeps_its_limits_and_reports_progress() {
    let mut scene = Scene::new(of_image("old"), "0-1 Running");
    scene.pass(0);
    assert_eq!(condition(&scene.plan(0), "Progressing").1, "PodsUpdated");
    scene.edit(of_image("new"));
    let first = scene.plan(5);
    assert_eq!(steps(&first), "delete 1");
    assert_eq!((condition(&first, "Progressing").1, first.again), ("Updating", Some(after(605))));
    let status = first.status.unwrap();
    assert_eq!((status.updated_replicas, status.replicas), (Some(0), Some(2)));
    assert_eq!(status.last_progress_time, Some(Time(after(5))));
    // The new pod crashes. No other pod is deleted, and after the deadline the status reports it.
    let new = pod(&scene.podset, 0, "Running");
    let crashing = Pod { ready_since: None, waiting: Some("CrashLoopBackOff".into()), ..new.clone() };
    scene.world.pods[0] = Arc::new(Pod { crashed: Some(Box::new(exit())), ..crashing });
    scene.pass(6);
    let waiting = scene.plan(100);
    assert!(waiting.steps.is_empty() && waiting.status == scene.podset.status, "{:?}", waiting.steps);
    assert_eq!(waiting.again, Some(after(606)));
    let late = scene.pass(606);
    let (status, reason, message) = condition(&late, "Progressing");
    assert_eq!((&*steps(&late), status, reason), ("", "False", "ProgressDeadlineExceeded"));
    assert!(message.contains("CrashLoopBackOff container c ended with exit code 3 (Error)"), "{message}");
    assert_eq!(late.events[0].reason, "ProgressDeadlineExceeded");
    let status = late.status.as_ref().unwrap();
    assert_eq!((status.not_ready[0].reason.as_str(), status.not_ready.len()), ("CrashLoopBackOff", 1));
    // The Event is recorded once, and the next progress ends the failure.
    assert!(scene.plan(900).events.is_empty());
    scene.world.pods[0] = Arc::new(new);
    let healed = scene.plan(1_000);
    assert_eq!((&*steps(&healed), condition(&healed, "Progressing").1), ("delete 1", "Updating"));
}

#[rstest]
#[case(json!({"type": "OnDelete"}), "True", "OnDelete", "new")]
#[case(json!({"type": "OnDelete", "partition": 2}), "True", "OnDelete", "old")]
#[case(json!({"paused": true}), "Unknown", "Paused", "old")]
#[case(json!({"partition": "100%"}), "True", "PartitionReached", "old")]
fn reports_why_old_pods_stay(
    #[case] strategy: Value,
    #[case] status: &str,
    #[case] reason: &str,
    #[case] replacement: &str,
) {
    let mut scene = Scene::new(of_image("old"), "0-1 Running");
    scene.edit(updating("new", &strategy));
    let plan = scene.pass(0);
    let (is, why, _) = condition(&plan, "Progressing");
    assert_eq!((&*steps(&plan), is, why), ("", status, reason));
    assert_eq!(scene.plan(100_000).status, scene.podset.status, "no deadline");
    // A pod that disappears is still replaced.
    scene.world.pods.truncate(1);
    if replacement == "old" {
        assert_eq!(steps(&scene.plan(0)), "", "the template is not read yet");
        scene.read_revision(&of_image("old"));
    }
    assert_eq!(body(&scene.plan(0))["spec"]["containers"][0]["image"], replacement);
}

/// A crashing rollout that is paused must not write its status repeatedly.
#[test]
fn a_paused_rollout_stops_writing() {
    let old = pod(&of_image("old"), 1, "Running");
    let mut scene = Scene::new(of_image("new"), "0-1 Running");
    Arc::make_mut(&mut scene.world.pods[0]).ready_since = None;
    scene.world.pods[1] = Arc::new(old);
    scene.pass(0);
    scene.edit(updating("new", &json!({"paused": true})));
    scene.pass(10);
    assert_eq!(condition(&scene.plan(20), "Progressing").1, "Paused");
    for later in [20, 1_000, 100_000] {
        assert_eq!(scene.plan(later).status, scene.podset.status);
    }
}

/// The deadline starts over when a PodSet that was complete for an hour has work again.
#[test]
fn the_deadline_counts_from_the_start_of_work() {
    let hour = 3_600;
    let mut scene = Scene::new(of(2), "0-1 Running");
    scene.pass(0);
    assert_eq!(scene.plan(hour).status, scene.podset.status, "writes nothing meanwhile");
    let mut scaled = Scene { podset: scene.podset.clone(), world: world([]) };
    scaled.podset.spec.replicas = 5;
    scaled.podset.metadata.generation = Some(2);
    scaled.see("0-1 Running");
    let plan = scaled.pass(hour);
    assert!(plan.events.is_empty());
    assert_eq!(condition(&plan, "Progressing").1, "Updating");
    assert_eq!(condition(&scaled.plan(hour + 599), "Progressing").1, "Updating");
    assert_eq!(condition(&scaled.plan(hour + 600), "Progressing").1, "ProgressDeadlineExceeded");
}

/// Available, and not Progressing, reports a pod that fails after a complete rollout.
#[test]
fn a_complete_rollout_stays_complete() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 1});
    let mut scene = Scene::new(updating("new", &strategy), "0-1 Running");
    scene.pass(0);
    scene.see("0 Running, 1 Pending");
    for second in [10, 1_000, 100_000] {
        let plan = scene.pass(second);
        assert_eq!(condition(&plan, "Progressing").1, "PodsUpdated");
        assert_eq!(condition(&plan, "Available").1, "PodsUnavailable");
    }
    // Another template is a new rollout.
    scene.edit(updating("newer", &strategy));
    assert_eq!(condition(&scene.pass(100_001), "Progressing").1, "Updating");
}

/// The conditions that Helm, Flux and Argo CD read.
#[rstest]
#[case::complete("one", json!({}), "0-1 Running", 0, ("True", "PodsUpdated"), false)]
#[case::starting("one", json!({}), "0 Running, 1 Pending", 0, ("False", "Updating"), false)]
#[case::late("one", json!({}), "0 Running, 1 Pending", 600, ("False", "ProgressDeadlineExceeded"), true)]
#[case::paused("two", json!({"paused": true}), "0-1 Running", 0, ("False", "Paused"), false)]
#[case::partition("two", json!({"partition": 2}), "0-1 Running", 0, ("True", "PartitionReached"), false)]
#[case::on_delete("two", json!({"type": "OnDelete"}), "0-1 Running", 0, ("True", "OnDelete"), false)]
#[case::updating("two", json!({}), "0-1 Running", 0, ("False", "Updating"), false)]
fn ready_and_stalled(
    #[case] image: &str,
    #[case] strategy: Value,
    #[case] pods: &str,
    #[case] second: i64,
    #[case] (status, reason): (&str, &str),
    #[case] is_stalled: bool,
) {
    let mut scene = Scene::new(updating("one", &strategy), pods);
    scene.edit(updating(image, &strategy));
    scene.pass(0);
    let plan = scene.plan(second);
    let (found, found_reason, _) = condition(&plan, "Ready");
    assert_eq!((found, found_reason), (status, reason));
    let conditions = &plan.status.as_ref().unwrap().conditions;
    assert_eq!(conditions.iter().any(|one| one.type_ == "Stalled"), is_stalled);
}

#[test]
fn a_pod_that_fails_later_makes_it_unready() {
    let mut scene = Scene::new(updating("one", &json!({"maxUnavailable": 1})), "0-1 Running");
    scene.pass(0);
    scene.see("0 Running, 1 Pending");
    let plan = scene.plan(10);
    assert_eq!(condition(&plan, "Ready"), ("False", "PodsUnavailable", "1 of 2 pods are available."));
    assert_eq!(condition(&plan, "Available").0, "True");
    scene.see("0 Running");
    scene.refuse(Verb::Create, 1, RefusalReason::Other, 60);
    assert_eq!(condition(&scene.plan(10), "Ready").1, "FailedCreate");
}

#[rstest]
#[case(0, "", "PodsAvailable")]
#[case(1, "", "PodsUnavailable")]
#[case::at_least_one(1, "0 Pending", "PodsUnavailable")]
#[case::one_of_two_is_replaced_at_a_time(2, "0 Running, 1 Pending", "PodsAvailable")]
#[case::a_quarter_may_be_unavailable(4, "0-2 Running, 3 Pending", "PodsAvailable")]
#[case(4, "0-1 Running, 2-3 Pending", "PodsUnavailable")]
fn available_as_for_a_deployment(#[case] replicas: i32, #[case] pods: &str, #[case] expected: &str) {
    assert_eq!(condition(&Scene::new(of(replicas), pods).plan(0), "Available").1, expected);
}

#[test]
fn a_pod_that_keeps_ending_is_not_progress() {
    let mut scene = Scene::new(of(1), "");
    scene.pass(0);
    for minute in 1..=10 {
        for pods in ["0 Pending", ""] {
            scene.see(pods);
            scene.pass(minute * 60);
        }
    }
    assert_eq!(condition(&scene.plan(601), "Progressing").1, "ProgressDeadlineExceeded");
}
