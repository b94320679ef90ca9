//! The pods that a plan creates and deletes, and their names.

use super::*;

#[test]
fn the_tutorials_empty_spec_creates_one_busybox() {
    let plan = Scene::new(podset(&json!({})), "").plan(0);
    assert_eq!(steps(&plan), "create 0");
    let body = body(&plan);
    assert_eq!(
        body["spec"],
        json!({"containers": [{"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}]})
    );
    assert_eq!(
        body["metadata"]["labels"],
        json!({KIND_LABEL: "PodSet", "app": "p", "version": "v0.1", UID_LABEL: "set", HASH_LABEL: "v1-default"})
    );
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("set"), &json!(true)));
    assert!(body["metadata"]["name"].as_str().unwrap().starts_with("p-pod-"));
    assert!(body["metadata"].get("annotations").is_none());
}

#[test]
fn keeps_template_labels_except_its_own() {
    let podset = podset(&json!({"template": {
        "metadata": {"labels": {"app": "x", "version": "v2", "tier": "front", UID_LABEL: "y"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}));
    let hash = template_hash(&podset);
    let body = body(&Scene::new(podset.clone(), "").plan(0));
    assert_eq!(
        body["metadata"]["labels"],
        json!({KIND_LABEL: "PodSet", "app": "p", "version": "v2", "tier": "front", UID_LABEL: "set",
            HASH_LABEL: hash})
    );
    assert_eq!(body["spec"]["containers"][0]["image"], "i");
}

#[test]
fn names_are_deterministic_and_fit_a_host_name() {
    let mut podset = of(1);
    assert_eq!(pod_name(&podset, None, 0), pod_name(&podset.clone(), None, 0));
    assert_ne!(pod_name(&podset, None, 0), pod_name(&podset, None, 1));
    podset.metadata.name = Some("x".repeat(63));
    assert_eq!(pod_name(&podset, None, u64::MAX).len(), 63);
}

/// Frozen: with other names, an old and a new version would create a pod each.
#[test]
fn golden_names() {
    assert_eq!([0, 1].map(|number| pod_name(&of(2), None, number)), ["p-pod-vcvfslhegy", "p-pod-eahiwkmi4r"]);
}

#[test]
fn golden_hash_of_the_built_in_template() {
    assert_eq!(template_hash(&of(1)), "v1-default");
    assert_eq!(template_hash(&of_image("i")), "v1-ke6a5g4uky");
}

/// A pod that must not run twice is replaced when it is gone.
#[test]
fn waits_for_the_end_of_terminating_pods() {
    let policy = |replicas: i32| podset(&json!({"replicas": replicas, "podReplacementPolicy": "Failed"}));
    let mut scene = Scene::new(policy(2), "0 Running, 1 Terminating");
    assert_eq!(steps(&scene.plan(0)), "");
    scene.see("0 Running, 1 Terminated");
    assert_eq!(steps(&scene.plan(0)), "create 2");
    scene.see("0 Running");
    assert_eq!(steps(&scene.plan(0)), "create 1");
    let mut scene = Scene::new(policy(5), "0 Running, 1-2 Terminating");
    assert_eq!(steps(&scene.plan(0)), "create 3; create 4");
    scene.edit(of(5));
    assert_eq!(steps(&scene.plan(0)), "create 3; create 4 5 6");
}

/// A replacement has another name. An ended pod is deleted only after its replacement was created.
#[rstest]
#[case::creates_the_first_missing_pod_alone(5, "0-1 Running", "create 2; create 3 4")]
#[case::small_free_numbers(
    4,
    "1 Running, 2 Terminating, 4 Succeeded",
    "create 0 (attempt 1); create 3 5; delete 4"
)]
#[case::replaces_a_terminating_pod(1, "0 Terminating", "create 1")]
#[case::deletes_surplus_pods_in_one_step(1, "0 Running, 1 Pending, 2 Running, 3 Unknown", "delete 1 3 2")]
#[case::deletes_all_pods_of_zero_replicas(0, "0-1 Running", "delete 1 0")]
#[case::deletes_all_pods_of_negative_replicas(-3, "0-1 Running", "delete 1 0")]
#[case::replaces_a_failed_pod(2, "0 Failed, 1 Running", "create 2 (attempt 1); delete 0")]
#[case::replaces_a_succeeded_pod(2, "0 Succeeded, 1 Running", "create 2 (attempt 1); delete 0")]
#[case::a_waiting_replacement_delays_no_other(3, "0 Failed 9, 1 Running", "create 2")]
fn creates_and_deletes_pods(#[case] replicas: i32, #[case] pods: &str, #[case] expected: &str) {
    assert_eq!(steps(&Scene::new(of(replicas), pods).plan(0)), expected);
}

#[test]
fn deletes_a_pod_by_its_uid_in_any_version() {
    let plan = Scene::new(of(1), "0 Running, 1 Pending").plan(0);
    let Action::Delete { uid, resource_version, .. } = &plan.steps[0][0] else { panic!() };
    assert_eq!((&**uid, resource_version), (&*format!("uid-{}", name(1)), &None));
}

#[test]
fn writes_nothing_when_converged() {
    let mut scene = Scene::new(of(3), "0-2 Running");
    let first = scene.pass(0);
    assert!(first.steps.is_empty() && first.again.is_none() && first.events.is_empty());
    assert_eq!(scene.plan(3600), first);
}

#[test]
fn stores_the_attempt_in_an_annotation() {
    let body = body(&Scene::new(of(2), "0 Failed, 1 Running").plan(0));
    assert_eq!(body["metadata"]["annotations"], json!({ATTEMPT_ANNOTATION: "1"}));
}

#[rstest]
#[case("1", 10, "create 1 (attempt 2); delete 0")]
#[case("2", 20, "create 1 (attempt 3); delete 0")]
#[case("4", 80, "create 1 (attempt 5); delete 0")]
#[case("99", 600, "create 1 (attempt 100); delete 0")]
fn backs_off_for_pods_that_keep_ending(#[case] attempt: &str, #[case] wait: i64, #[case] due: &str) {
    let scene = Scene::new(of(1), &format!("0 Failed {attempt}"));
    let early = scene.plan(wait - 1);
    assert_eq!((&*steps(&early), early.again), ("", Some(after(wait))));
    assert!(condition(&early, "Available").2.contains("Pods keep ending"));
    assert_eq!(steps(&scene.plan(wait)), due);
}

#[test]
fn a_long_lifetime_resets_the_backoff() {
    let mut scene = Scene::new(of(1), "0 Failed 7");
    Arc::make_mut(&mut scene.world.pods[0]).finished = Some(after(600));
    let plan = scene.plan(600);
    assert_eq!(steps(&plan), "create 1; delete 0");
    assert!(body(&plan)["metadata"].get("annotations").is_none());
}

#[test]
fn a_fixed_template_needs_no_backoff() {
    let mut scene = Scene::new(of_image("bad"), "0 Failed 7, 1 Failed");
    assert_eq!(steps(&scene.plan(0)), "create 2 (attempt 1); delete 1", "one waits");
    scene.edit(of_image("good"));
    assert_eq!(steps(&scene.plan(0)), "create 2; create 3; delete 0 1");
}

#[test]
fn deletes_an_ended_pod_without_need_for_a_replacement() {
    let plan = Scene::new(of(1), "0 Failed 9, 1 Running").plan(0);
    assert_eq!((&*steps(&plan), plan.again), ("delete 0", None));
}

#[test]
fn limits_the_creations_of_one_plan() {
    let steps = Scene::new(of(5_000), "").plan(0).steps;
    assert_eq!(steps.iter().map(Vec::len).sum::<usize>(), MOST_CREATIONS);
    assert_eq!(Limits::of(&of(i32::MAX)).wanted, 100_000);
}

#[test]
fn plans_nothing_for_a_deleted_object() {
    let mut scene = Scene::new(of(3), "0 Running");
    scene.podset.metadata.deletion_timestamp = Some(Time(after(0)));
    assert_eq!(scene.plan(0), Plan::default());
}
