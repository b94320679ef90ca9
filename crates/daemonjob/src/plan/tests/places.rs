//! The holders of slots of `parallelism`. No node or pod holds a slot permanently.

use super::*;

/// H1 and A19: a node that waits for its retry keeps its slot, except with the failure policy Continue.
#[rstest]
#[case("Pause", &[])]
#[case("FailFast", &[])]
#[case("Continue", &["b"])]
fn a_node_that_backs_off_keeps_its_slot(#[case] type_: &str, #[case] next: &[&str]) {
    let spec = json!({"backoffLimit": 6, "failurePolicy": {"type": type_}});
    let mut scene = Scene::cautious_with(&spec, &FOUR);
    scene.run("a").end_unseen("a", Phase::Failed);
    assert_eq!(scene.passes(), next);
    if next.is_empty() {
        assert_eq!(scene.reason("a"), Some("BackingOff"));
        let message = &scene.status().pending_nodes[0].message;
        assert!(message.ends_with("holds 1 of 1 slots"), "{message}");
        assert_eq!(scene.wait(10), ["a"], "the holder goes first");
    }
}

/// A16: a lower parallelism delays pods and does not cause a deadlock.
#[test]
fn a_lower_parallelism_does_not_deadlock() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 3, "backoffLimit": 6}), &FOUR);
    for name in ["b", "a", "c"] {
        scene.fail(name).tick(1);
    }
    scene.edit(|job| job.spec.parallelism = Some(IntOrString::Int(1)));
    assert_eq!(scene.wait(60), ["b"], "the node that waits longest");
    scene.each(&["b", "a", "c", "d"], Scene::succeed);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A17 and N11: a dead node gives up its slot, but not its name.
#[test]
fn a_lost_node_gives_up_its_slot() {
    let mut scene = Scene::cautious_with(&json!({"failurePolicy": {"type": "Continue"}}), &["a", "b", "c"]);
    scene.run("a").kill("a");
    assert!(scene.is_idle_for(&[590]));
    assert_eq!(scene.wait(20), ["b"]);
    scene.succeed("b").succeed("c");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    let runs = scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some("a")).count();
    assert_eq!(runs, 1, "the name is not reused while its pod may run");
    scene.heal("a").succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A3: with a job that reboots its node, two nodes are never down at the same time.
#[test]
fn a_job_that_reboots_its_node_keeps_its_slot() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a").evict_unseen("a").kill("a");
    assert!(scene.is_idle_for(&[300]));
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    let message = &scene.pending("a").message;
    assert!(message.ends_with("holds 1 of 1 slots"), "{message}");
    scene.tick(60).heal("a");
    assert!(scene.has_pod("a") || scene.has_pod("b"));
    assert_eq!(scene.counted().len(), 1);
}

/// N6: a disrupted suspect node is not skipped, and Complete waits until the node is clear or lost.
#[test]
fn does_not_skip_a_disrupted_suspect_node() {
    let mut scene = Scene::cautious_with(&json!({"failurePolicy": {"type": "Continue"}}), &["a"]);
    scene.run("a").evict_unseen("a").kill("a").after(400);
    assert_eq!((scene.reason("a"), scene.condition("Complete").0), (Some("NotReadySinceAttempt"), false));
    scene.wait(300);
    assert_eq!((scene.reason("a"), scene.condition("Failed").0), (Some("NodeLost"), true));
}

/// H7: an unreachable node with a running pod is in a list, with its slot.
#[test]
fn lists_an_unreachable_node_with_a_running_pod() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a").kill("a");
    let NodeReason { reason, message, .. } = scene.pending("a");
    assert_eq!(reason, "NotReadySinceAttempt");
    assert!(message.contains("d-") && message.ends_with("holds 1 of 1 slots"), "{message}");
}

/// A21: with outdatedPods Replace, a running pod of an older template is deleted when its node has a slot.
#[test]
fn replaces_outdated_pods_in_turn() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 2, "outdatedPods": "Replace"}), &FOUR);
    scene.run("a").run("b").edit(|job| {
        job.spec.parallelism = Some(IntOrString::Int(1));
        job.spec.template.0["spec"]["containers"][0]["image"] = json!("other");
    });
    assert_eq!(scene.terminating(), ["a"]);
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Outdated));
    assert_eq!(scene.reason("b"), Some("OutdatedTemplate"));
    scene.pause().fail("a");
    assert!(!scene.terminating().contains(&"b"), "no pod is replaced while the DaemonJob is paused");
}

/// H3 and A21: with outdatedPods Finish, a pod of an older template is deleted only if none of its containers
/// runs.
#[rstest]
#[case::crash_loop(true, false, true)]
#[case::restarted_once_and_runs(true, true, false)]
#[case::runs(false, true, false)]
fn replaces_an_outdated_pod_that_only_crashes(
    #[case] has_crashed: bool,
    #[case] runs: bool,
    #[case] goes: bool,
) {
    let mut scene = Scene::cautious(&["a"]);
    scene.run("a").edit_pod("a", |pod| {
        pod.crashed = has_crashed.then(|| Box::new(exit(1, "Error", "")));
        (pod.has_running_container, pod.restarts) = (runs, 0);
    });
    scene.use_template("other");
    assert_eq!(scene.pod("a").meta.deleted.is_some(), goes);
    if !goes {
        assert_eq!(scene.reason("a"), Some("OutdatedTemplate"));
    }
}

/// A dead node that is being deleted, or that lost its label, keeps its slot.
#[rstest]
#[case::being_deleted(|node: &mut Node| node.meta.deleted = Some(now()))]
#[case::deselected(|node: &mut Node| node.meta.labels = [].into())]
fn a_suspect_node_that_is_not_selected_keeps_its_slot(#[case] change: fn(&mut Node)) {
    let mut scene = Scene::cautious_with(&template(&json!({"nodeSelector": {"app": "v1"}})), &FOUR);
    scene.run("a").evict_unseen("a").kill("a").edit_node("a", change);
    assert!(scene.is_idle_for(&[500]));
}
