//! The history of templates, and what pods are created from.

use super::*;
use crate::revision::{CONTROLLER_REVISIONS, Revision};

/// The writes of revisions in words: "apply 3", "merge 4", "delete 1", by their numbers.
fn writes(scene: &Scene) -> Vec<String> {
    let plan = scene.plan(0);
    let numbers =
        |name: &str| scene.world.revisions.iter().find(|one| *one.meta.name == *name).map(|one| one.number);
    let word = |action: &Action<PodSetStatus>| match action {
        Action::Apply { resource: CONTROLLER_REVISIONS, body, .. } => {
            Some(format!("apply {}", body["revision"]))
        }
        Action::MergePatch { resource: CONTROLLER_REVISIONS, body, .. } => {
            Some(format!("merge {}", body["revision"]))
        }
        Action::Delete { resource: CONTROLLER_REVISIONS, name, .. } => {
            Some(format!("delete {}", numbers(name).unwrap()))
        }
        _ => None,
    };
    plan.steps.iter().flatten().filter_map(word).collect()
}

/// Three of four pods are to stay.
fn canary(image: &str) -> PodSet {
    let mut podset = updating(image, &json!({"partition": "75%"}));
    podset.spec.replicas = 4;
    podset
}

/// A canary of "new" in pod 3, beside pods of "old".
fn with_canary() -> Scene {
    let mut scene = Scene::new(canary("old"), "0-3 Running");
    scene.pass(0);
    scene.edit(canary("new"));
    scene.world.pods[3] = Arc::new(pod(&scene.podset, 3, "Running"));
    assert_eq!(steps(&scene.pass(0)), "");
    scene
}

fn current(plan: &Plan<PodSetStatus>) -> &str {
    plan.status.as_ref().unwrap().current_revision.as_deref().unwrap()
}

fn revision_of(image: &str) -> String {
    revision::name(&of(0), &template_hash(&of_image(image)))
}

fn images(plan: &Plan<PodSetStatus>) -> Vec<String> {
    let created = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::Create { body, .. } => {
            Some(body.value()["spec"]["containers"][0]["image"].as_str()?.to_owned())
        }
        _ => None,
    });
    created.collect()
}

#[test]
fn writes_a_revision_before_the_pods() {
    let mut scene = Scene::new(of_image("one"), "");
    scene.world.revisions.clear();
    let plan = scene.plan(0);
    let Action::Apply { name, body, .. } = &plan.steps[0][0] else { panic!("{:?}", plan.steps) };
    assert_eq!(*name, revision_of("one"));
    assert_eq!(body["data"]["spec"]["template"]["spec"]["containers"][0]["image"], "one");
    assert_eq!(body["metadata"]["labels"][KIND_LABEL], "PodSet", "so that the watch shows it");
    assert_eq!(steps(&plan), "create 0 1");
}

/// A return to an older template raises its number, also beside the highest possible one.
#[test]
fn the_updated_revision_has_the_highest_number() {
    let mut scene = Scene::new(of_image("one"), "0-1 Running");
    scene.edit(of_image("two"));
    assert_eq!(writes(&scene), [""; 0]);
    scene.podset = of_image("one");
    assert_eq!(writes(&scene), ["merge 3"]);
    let set = |scene: &mut Scene, numbers: [i64; 2]| {
        for (one, number) in scene.world.revisions.iter_mut().zip(numbers) {
            Arc::make_mut(one).number = number;
        }
    };
    set(&mut scene, [2, 2]);
    assert_eq!(writes(&scene), ["merge 3"], "equal numbers have no order");
    set(&mut scene, [1, i64::MAX]);
    assert_eq!(writes(&scene), [""; 0]);
    scene.podset = of_image("three");
    assert_eq!(writes(&scene), [format!("apply {}", i64::MAX)]);
}

#[test]
fn keeps_the_revisions_of_pods_and_the_last_others() {
    let mut scene = Scene::new(of_image("0"), "0-1 Running");
    for image in 1..5 {
        scene.edit(of_image(&image.to_string()));
    }
    scene.podset.status =
        Some(PodSetStatus { current_revision: Some(revision_of("1")), ..PodSetStatus::default() });
    scene.world.pods.push(Arc::new(pod(&of_image("2"), 2, "Running")));
    scene.podset.spec.replicas = 4;
    scene.podset.spec.revision_history_limit = Some(0);
    assert_eq!(writes(&scene), ["delete 4"], "0 and 2 have pods, 1 is current, and 4 is the spec's");
    scene.podset.spec.revision_history_limit = Some(1);
    assert_eq!(writes(&scene), [""; 0]);
}

#[rstest]
#[case::one_node("0", &["old"])]
#[case::two_nodes("0 1", &["old", "old"])]
#[case::the_canary("3", &["new"])]
#[case::with_the_canary("0 3", &["old", "new"])]
#[case::all("0 1 2 3", &["old", "old", "old", "new"])]
fn a_lost_pod_keeps_its_template(#[case] lost: &str, #[case] created: &[&str]) {
    let mut scene = with_canary();
    let names: Vec<String> = lost.split(' ').map(|number| name(number.parse().unwrap())).collect();
    scene.world.pods.retain(|pod| !names.contains(&pod.meta.name.to_string()));
    if created.contains(&"old") {
        scene.read_revision(&of_image("old"));
    }
    let plan = scene.pass(0);
    assert_eq!(images(&plan), created);
    assert_eq!(current(&plan), revision_of("old"));
}

#[test]
fn a_paused_canary_does_not_spread() {
    let mut scene = with_canary();
    scene.podset.spec.update_strategy.as_mut().unwrap().paused = Some(true);
    scene.world.pods.remove(0);
    scene.world.pods.pop();
    scene.read_revision(&of_image("old"));
    assert_eq!(images(&scene.plan(0)), ["old", "old"]);
}

#[test]
fn an_undo_replaces_the_canary_alone() {
    let mut scene = with_canary();
    scene.edit(canary("old"));
    assert_eq!(steps(&scene.pass(0)), "delete 3");
    scene.world.pods.pop();
    let plan = scene.plan(0);
    assert_eq!((images(&plan), current(&plan)), (vec!["old".to_owned()], &*revision_of("old")));
}

/// The second change during a canary replaces the first, and keeps the other pods.
#[test]
fn a_second_canary_replaces_the_first() {
    let mut scene = with_canary();
    scene.edit(canary("newer"));
    let plan = scene.pass(0);
    assert_eq!((&*steps(&plan), current(&plan)), ("delete 3", &*revision_of("old")));
}

/// Pods of a template between the two are replaced, and lost ones of the current template return.
#[test]
fn replaces_a_template_between_the_two() {
    let mut scene = with_canary();
    let between = pod(&scene.podset, 0, "Running");
    let mut pods = vec![between.clone()];
    pods.extend(
        [1, 2].map(|number| Pod { meta: pod(&scene.podset, number, "Running").meta, ..between.clone() }),
    );
    pods.push(pod(&of_image("old"), 3, "Running"));
    scene.world.pods = pods.into_iter().map(Arc::new).collect();
    scene.edit(canary("newer"));
    assert_eq!(
        steps(&scene.pass(0)).split(' ').count(),
        2,
        "one of the three, because partition keeps any three"
    );
    scene.world.pods.remove(0);
    assert_eq!(images(&scene.plan(0)), ["newer"]);
    scene.world.pods.remove(0);
    scene.read_revision(&of_image("old"));
    assert_eq!(images(&scene.plan(0)), ["old", "newer"]);
}

/// The manager died before it stored that a rollout was complete.
#[test]
fn the_template_of_all_pods_is_current() {
    let mut scene = Scene::new(canary("old"), "0-3 Running");
    scene.pass(0);
    scene.edit(canary("new"));
    scene.see("0-3 Running");
    scene.edit(canary("newer"));
    let plan = scene.pass(0);
    assert_eq!(
        (current(&plan), plan.status.as_ref().unwrap().updated_replicas),
        (&*revision_of("new"), Some(0))
    );
}

#[test]
fn the_template_of_most_pods_is_current_if_none_is_known() {
    let mut scene = with_canary();
    scene.podset.status = None;
    assert_eq!(current(&scene.plan(0)), revision_of("old"));
}

#[test]
fn a_partition_is_the_end_of_no_rollout() {
    let mut scene = Scene::new(canary("old"), "0-3 Running");
    scene.pass(0);
    scene.edit(canary("new"));
    scene.see("0-3 Running");
    assert_eq!(current(&scene.pass(0)), revision_of("old"));
    scene.podset.spec.update_strategy = None;
    scene.see("0-2 Running, 3 Pending");
    assert_eq!(current(&scene.pass(0)), revision_of("old"));
    scene.see("0-3 Running");
    assert_eq!(current(&scene.pass(0)), revision_of("new"));
}

/// A revision that a user deleted, or another one in its place with another template, must not create pods of a wrong one.
#[test]
fn reports_that_the_current_template_is_gone() {
    let mut scene = with_canary();
    scene.world.pods.remove(0);
    let mut exchanged = Scene { podset: scene.podset.clone(), world: world([]) };
    exchanged.world.pods.clone_from(&scene.world.pods);
    exchanged.world.revisions.clone_from(&scene.world.revisions);
    exchanged.read_revision(&of_image("exchanged"));
    assert_eq!(exchanged.world.current_template, CurrentTemplate::Missing);
    scene.world.revisions.retain(|one| *one.meta.name != *revision_of("old"));
    for mut scene in [scene, exchanged] {
        let plan = scene.pass(0);
        assert_eq!(images(&plan), ["new"]);
        scene.world.revisions.retain(|one| *one.meta.name != *revision_of("old"));
        scene.world.pods.push(Arc::new(pod(&scene.podset, 0, "Running")));
        assert_eq!(condition(&scene.plan(0), "ReplicaFailure").1, "RevisionMissing");
    }
}

/// Failures of the canary delay no pod of the current template.
#[test]
fn each_template_has_its_own_backoff() {
    let mut scene = with_canary();
    let mut failed = pod(&scene.podset, 3, "Failed");
    failed.meta.annotations = [(ATTEMPT_ANNOTATION, "5")].into();
    scene.world.pods[3] = Arc::new(failed);
    scene.world.pods.remove(0);
    scene.read_revision(&of_image("old"));
    let plan = scene.plan(0);
    assert_eq!((images(&plan), &*steps(&plan)), (vec!["old".to_owned()], "create 0"));
}

#[test]
fn decodes_a_revision_without_its_template() {
    let revision: Revision = serde_json::from_value(json!({
        "metadata": {"name": "r", "annotations": {"a": "b"}}, "revision": 3, "data": {"spec": {"template": {}}}}))
    .unwrap();
    assert_eq!((&*revision.meta.name, revision.number, revision.meta.annotations.get("a")), ("r", 3, None));
}
