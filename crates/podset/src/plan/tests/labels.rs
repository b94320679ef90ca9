//! Pods that lost a label, and pods of others.

use super::*;

/// A pod without the label of the selector.
fn stray(scene: &mut Scene, number: usize) {
    Arc::make_mut(&mut scene.world.pods[number]).meta.labels =
        [(NAME_LABEL, "p"), (KIND_LABEL, "PodSet")].into();
}

#[test]
fn releases_and_replaces_a_pod_without_its_label() {
    let mut scene = Scene::new(of(2), "0-1 Running");
    stray(&mut scene, 0);
    let plan = scene.plan(0);
    assert_eq!(steps(&plan), "patch 0; create 2 (attempt 1)", "its name is not free");
    let path = "/metadata/ownerReferences/1";
    let operations = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "test", "path": "/metadata/uid", "value": format!("uid-{}", name(0))},
        {"op": "test", "path": format!("{path}/uid"), "value": "set"},
        {"op": "remove", "path": path},
        {"op": "add", "path": "/metadata/labels/batch.tutorial.kubebuilder.io~1released", "value": "true"}]);
    assert_eq!(patches(&plan), [&operations]);
    assert_eq!(plan.status.unwrap().replicas, Some(1));
}

/// A policy that removes the label from each new pod must not leave pods behind that belong to no PodSet.
#[test]
fn releases_a_pod_only_beside_a_labelled_one() {
    let mut scene = Scene::new(of(1), "0 Running");
    stray(&mut scene, 0);
    assert_eq!(steps(&scene.plan(0)), "create 1 (attempt 1)");
    scene.refuse(Verb::Create, 1, RefusalReason::LabelsOverwritten, 60);
    scene.world.refusals.creations = scene.world.refusals.of(Verb::Create, &PODS, &name(1)).cloned();
    let plan = scene.plan(1);
    assert_eq!((&*steps(&plan), plan.again), ("", Some(after(60))));
    assert_eq!(condition(&plan, "ReplicaFailure").1, "LabelsOverwritten");
    // Without pods to create, no pod can lose it.
    scene.edit(of(0));
    assert_eq!(steps(&scene.plan(1)), "patch 0");
}

/// Records that a pod was created without its label and could not be deleted.
fn leave(scene: &mut Scene, number: usize) {
    let meta = scene.world.pods[number].meta.clone();
    scene.world.refusals.left.insert(meta.name.to_string(), meta.uid);
}

/// If policies remove the label and forbid deletions, a retry must not leave one more pod.
#[test]
fn a_retry_uses_the_name_of_a_pod_that_lost_its_label() {
    let mut scene = Scene::new(of(3), "0 Running, 1 Running");
    stray(&mut scene, 0);
    stray(&mut scene, 1);
    leave(&mut scene, 1);
    scene.refuse(Verb::Create, 1, RefusalReason::LabelsOverwritten, 60);
    scene.world.refusals.creations = scene.world.refusals.of(Verb::Create, &PODS, &name(1)).cloned();
    assert_eq!(steps(&scene.plan(1)), "delete 1", "it is not released");
    assert_eq!(steps(&scene.plan(60)), "delete 1; create 1 (attempt 1); create 2 3");
    scene.refuse(Verb::Delete, 1, RefusalReason::Other, 60);
    assert_eq!(condition(&scene.plan(1), "ReplicaFailure").1, "LabelsOverwritten");
    // Only such a pod gives its name away.
    Arc::make_mut(&mut scene.world.pods[1]).meta.deleted = Some(after(1));
    assert_eq!(steps(&scene.plan(60)), "create 2 (attempt 1); create 3 4");
    let mut scene = Scene::new(of(2), "0 Running");
    leave(&mut scene, 0);
    assert_eq!(steps(&scene.plan(60)), "create 1", "a client has restored the label");
    // Another pod with this name is a pod that the user took out.
    let mut scene = Scene::new(of(1), "0 Running");
    stray(&mut scene, 0);
    scene.world.refusals.left.insert(name(0), "another".into());
    assert_eq!(steps(&scene.plan(60)), "create 1 (attempt 1)");
}

/// After a restart, the refusals are lost.
#[test]
fn one_pod_is_tried_beside_a_pod_without_its_label() {
    let mut scene = Scene::new(of(3), "0 Running");
    stray(&mut scene, 0);
    assert_eq!(steps(&scene.plan(0)), "create 1 (attempt 1); create 2 3");
}

/// A policy that removes the label some time after the creation gets a pod in ten minutes, not one in each second.
#[test]
fn replacements_of_released_pods_are_delayed() {
    let mut scene = Scene::new(of(2), "0 Running, 1 Running 3");
    stray(&mut scene, 1);
    let plan = scene.plan(39);
    assert_eq!((&*steps(&plan), plan.again), ("", Some(after(40))));
    assert_eq!(steps(&scene.plan(40)), "patch 1; create 2 (attempt 4)");
    assert_eq!(steps(&scene.plan(1_199)), "patch 1; create 2 (attempt 4)", "a long pause is not a long life");
    assert_eq!(steps(&scene.plan(1_200)), "patch 1; create 2");
}

#[test]
fn another_app_label_changes_nothing() {
    let mut scene = Scene::new(of(1), "0 Running");
    Arc::make_mut(&mut scene.world.pods[0]).meta.labels = [(NAME_LABEL, "theirs"), (UID_LABEL, "set")].into();
    assert_eq!(steps(&scene.plan(0)), "");
}

#[test]
fn restores_the_label_of_the_watch() {
    let mut scene = Scene::new(of(1), "0 Running");
    scene.world.unlabelled = scene.world.pods.clone();
    let plan = scene.plan(0);
    assert_eq!(steps(&plan), "merge 0", "it still counts");
    assert_eq!(patches(&plan), [&json!({KIND_LABEL: "PodSet"})]);
}

#[test]
fn skips_any_number_of_foreign_names() {
    let mut scene = Scene::new(of(3), "");
    scene.world.taken = (0..200).map(|number| name(number).into()).collect();
    assert_eq!(steps(&scene.plan(0)), "create 200; create 201 202");
}
