//! Pods that lost a label, and pods of others.

use super::*;

#[rstest]
#[case((NAME_LABEL, "p"))]
#[case((UID_LABEL, "set"))]
fn releases_and_replaces_a_pod_without_its_labels(#[case] kept: (&str, &str)) {
    let mut scene = Scene::new(of(2), "0-1 Running");
    Arc::make_mut(&mut scene.world.pods[0]).meta.labels = [kept].into();
    let plan = scene.plan(0);
    assert_eq!(steps(&plan), "patch 0; create 2", "its name is not free");
    let path = "/metadata/ownerReferences/1";
    let mut operations = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "test", "path": "/metadata/uid", "value": format!("uid-{}", name(0))},
        {"op": "test", "path": format!("{path}/uid"), "value": "set"},
        {"op": "remove", "path": path}]);
    if kept.0 == UID_LABEL {
        let label = "/metadata/labels/batch.tutorial.kubebuilder.io~1podset-uid";
        operations.as_array_mut().unwrap().push(json!({"op": "remove", "path": label}));
    }
    assert_eq!(patches(&plan), [&operations]);
    assert_eq!(plan.status.unwrap().replicas, Some(1));
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
fn adopts_pods_of_the_tutorials_operator() {
    let mut scene = Scene::new(of(2), "7 Running");
    scene.world.unmigrated = std::mem::take(&mut scene.world.pods);
    let plan = scene.plan(0);
    // The pods count already. Without a selector in the status, the search continues.
    assert_eq!(steps(&plan), "merge 7; create 0");
    let labels = json!({KIND_LABEL: "PodSet", "app": "p", UID_LABEL: "set", HASH_LABEL: "v1-default"});
    assert_eq!(patches(&plan), [&labels]);
    let status = plan.status.unwrap();
    assert_eq!((status.replicas, status.updated_replicas, status.selector), (Some(1), Some(1), None));
    // A rejected label stops no other write.
    scene.refuse(Verb::MergePatch, 7, RefusalReason::Other, 60);
    let plan = scene.plan(0);
    assert_eq!((&*steps(&plan), plan.again), ("create 0", Some(after(60))));
    assert_eq!(condition(&plan, "ReplicaFailure").1, "FailedPatch");
}

#[test]
fn a_new_podset_gets_pods_before_its_status() {
    let mut scene = Scene::new(of(2), "");
    scene.world.unsearched = true;
    let plan = scene.plan(0);
    assert_eq!((&*steps(&plan), plan.again), ("create 0 1", Some(after(0))));
    assert!(plan.status.is_none() && plan.events.is_empty(), "the status ends the search for older pods");
}

#[test]
fn skips_any_number_of_foreign_names() {
    let mut scene = Scene::new(of(3), "");
    scene.world.taken = (0..200).map(|number| name(number).into()).collect();
    assert_eq!(steps(&scene.plan(0)), "create 200 201 202");
}

#[test]
fn reports_foreign_pods() {
    let mut scene = Scene::new(of(0), "");
    scene.world.foreign_pods = Some("3 pods of others".into());
    let events = &scene.plan(0).events;
    assert_eq!((events[0].reason, &*events[0].note), ("ForeignPods", "3 pods of others"));
}
