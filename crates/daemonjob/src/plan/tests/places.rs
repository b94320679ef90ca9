//! The holders of slots of `parallelism`. No node or pod holds a slot permanently.

use super::scene::{Scene, cautious};
use super::*;
use rstest::rstest;

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

/// H1 and A19: a node that waits for its retry keeps its slot, except with the failure policy Continue.
#[rstest]
#[case("Pause", &[])]
#[case("FailFast", &[])]
#[case("Continue", &["b"])]
fn a_node_that_backs_off_keeps_its_slot(#[case] type_: &str, #[case] next: &[&str]) {
    let mut scene =
        Scene::new(cautious(&json!({"backoffLimit": 6, "failurePolicy": {"type": type_}})), &FOUR);
    scene.passes();
    scene.run("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.finished) = (Phase::Failed, Some(now)));
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
    let mut scene = Scene::new(cautious(&json!({"parallelism": 3, "backoffLimit": 6})), &FOUR);
    scene.passes();
    for name in ["b", "a", "c"] {
        scene.fail(name);
        scene.second += 1;
    }
    scene.edit(|job| job.spec.parallelism = Some(serde_json::from_value(json!(1)).unwrap()));
    assert_eq!(scene.wait(60), ["b"], "the node that waits longest");
    scene.succeed("b");
    scene.succeed("a");
    scene.succeed("c");
    scene.succeed("d");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A17 and N11: a dead node gives up its slot, but not its name.
#[test]
fn a_lost_node_gives_up_its_slot() {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": {"type": "Continue"}})), &["a", "b", "c"]);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    assert!(scene.wait(590).is_empty());
    assert_eq!(scene.wait(20), ["b"]);
    scene.succeed("b");
    scene.succeed("c");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    let runs = scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some("a")).count();
    assert_eq!(runs, 1, "the name is not reused while its pod may run");
    scene.heal("a");
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A3: with a job that reboots its node, two nodes are never down at the same time.
#[test]
fn a_job_that_reboots_its_node_keeps_its_slot() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now)));
    scene.kill("a");
    assert!(scene.wait(300).is_empty());
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    let message = &scene.status().pending_nodes.iter().find(|one| one.node == "a").unwrap().message;
    assert!(message.ends_with("holds 1 of 1 slots"), "{message}");
    scene.second += 60;
    scene.heal("a");
    assert!(scene.pod("a").is_counted() || scene.pod("b").is_counted());
    assert_eq!(scene.world.pods.iter().filter(|pod| pod.is_counted()).count(), 1);
}

/// N6: a disrupted suspect node is not skipped, and Complete waits until the node is clear or lost.
#[test]
fn does_not_skip_a_disrupted_suspect_node() {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": {"type": "Continue"}})), &["a"]);
    scene.passes();
    scene.run("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now)));
    scene.kill("a");
    scene.wait(400);
    assert_eq!((scene.reason("a"), scene.condition("Complete").0), (Some("NotReadySinceAttempt"), false));
    scene.wait(300);
    assert_eq!((scene.reason("a"), scene.condition("Failed").0), (Some("NodeLost"), true));
}

/// H7: an unreachable node with a running pod is in a list, with its slot.
#[test]
fn lists_an_unreachable_node_with_a_running_pod() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    let listed = scene.status().pending_nodes.iter().find(|one| one.node == "a").unwrap();
    assert_eq!(listed.reason, "NotReadySinceAttempt");
    assert!(
        listed.message.contains("d-") && listed.message.ends_with("holds 1 of 1 slots"),
        "{}",
        listed.message
    );
}

/// A21: with outdatedPods Replace, a running pod of an older template is deleted when its node has a slot.
#[test]
fn replaces_outdated_pods_in_turn() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 2, "outdatedPods": "Replace"})), &FOUR);
    scene.passes();
    scene.run("a");
    scene.run("b");
    scene.edit(|job| {
        job.spec.parallelism = Some(serde_json::from_value(json!(1)).unwrap());
        job.spec.template.0["spec"]["containers"][0]["image"] = json!("other");
    });
    let going = |scene: &Scene| {
        scene
            .world
            .pods
            .iter()
            .filter(|pod| pod.meta.deleted.is_some())
            .map(|pod| pinned_to(pod).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(going(&scene), ["a"]);
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Outdated));
    assert_eq!(scene.reason("b"), Some("OutdatedTemplate"));
    scene.edit(|job| job.spec.paused = Some(true));
    scene.fail("a");
    assert!(going(&scene).iter().all(|name| name != "b"), "no pod is replaced while the DaemonJob is paused");
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
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.run("a");
    let exit = quintet_runtime::model::core_types::Exit {
        container: "c".into(),
        code: 1,
        reason: "Error".into(),
        message: "".into(),
    };
    scene.edit_pod("a", |pod| {
        pod.restarts = u32::from(has_crashed);
        pod.crashed = has_crashed.then(|| Box::new(exit));
        pod.has_running_container = runs;
        pod.restarts = 0;
    });
    scene.use_template("other");
    assert_eq!(scene.pod("a").meta.deleted.is_some(), goes);
    if !goes {
        assert_eq!(scene.reason("a"), Some("OutdatedTemplate"));
    }
}

/// A dead node that is being deleted, or that lost its label, keeps its slot.
#[rstest]
#[case::being_deleted(true)]
#[case::deselected(false)]
fn a_suspect_node_that_is_not_selected_keeps_its_slot(#[case] is_deleted: bool) {
    let template = json!({"template": {"spec": {"restartPolicy": "Never", "nodeSelector": {"app": "v1"},
        "containers": [{"name": "c", "image": "i"}]}}});
    let mut scene = Scene::new(cautious(&template), &FOUR);
    scene.passes();
    scene.run("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now)));
    scene.kill("a");
    scene.edit_node("a", |node| {
        if is_deleted {
            node.meta.deleted = Some(now);
        } else {
            node.meta.labels = [].into();
        }
    });
    assert!(scene.wait(500).is_empty());
}
