//! The adoption of pods without an owner.

use super::*;
use crate::adoption::{Orphans, is_orphan};

/// A PodSet that adopts pods.
fn adopting(image: &str, replicas: i32) -> PodSet {
    let mut podset = of_image(image);
    podset.spec.replicas = replicas;
    let adopt = json!({"selector": {"matchLabels": {"app": "web"}}});
    podset.spec.adopt = serde_json::from_value(adopt).unwrap();
    podset
}

/// A pod without an owner that is older than the PodSet.
fn orphan(name: &str, image: Option<&str>) -> Arc<Pod> {
    let mut pod = pod(&of_image(image.unwrap_or("any")), 0, "Running");
    if image.is_none() {
        pod.meta.labels = [(NAME_LABEL, "web")].into();
    }
    pod.meta.name = name.into();
    pod.meta.uid = format!("uid-{name}").into();
    pod.meta.owner = None;
    pod.meta.created = Some(after(-1));
    Arc::new(pod)
}

/// The names of adopted pods.
fn adopted(plan: &Plan<PodSetStatus>) -> Vec<&str> {
    let names = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::Apply { resource: PODS, name, .. } => Some(&**name),
        _ => None,
    });
    names.collect()
}

fn creates(plan: &Plan<PodSetStatus>) -> usize {
    plan.steps.iter().flatten().filter(|action| matches!(action, Action::Create { .. })).count()
}

#[test]
fn adopts_pods_in_place_of_missing_ones() {
    let mut scene = Scene::new(adopting("one", 3), "0 Running");
    let mut unready = Pod::clone(&orphan("a", None));
    unready.ready_since = None;
    scene.world.orphans =
        Orphans::Found(vec![Arc::new(unready.clone()), orphan("b", None), orphan("c", None)]);
    let plan = scene.plan(0);
    assert_eq!(
        (adopted(&plan), creates(&plan)),
        (vec!["b", "c"], 0),
        "ready ones first, and no more than missing"
    );
    scene.world.orphans = Orphans::Found(vec![Arc::new(unready), orphan("b", None)]);
    scene.world.pods.clear();
    let plan = scene.plan(0);
    assert_eq!((adopted(&plan), creates(&plan)), (vec!["b", "a"], 1));
    let Action::Apply { body, .. } = &plan.steps[0][0] else { panic!("{:?}", plan.steps) };
    let meta = &body["metadata"];
    assert_eq!((&meta["uid"], &meta["resourceVersion"]), (&json!("uid-b"), &json!("1")), "only if unchanged");
    assert_eq!(meta["ownerReferences"][0]["uid"], "set");
    assert_eq!(meta["labels"][HASH_LABEL], *template_hash(&scene.podset), "a later rollout replaces it");
    assert_eq!((&meta["labels"][UID_LABEL], &meta["labels"][KIND_LABEL]), (&json!("set"), &json!("PodSet")));
}

#[rstest]
#[case::owned(|pod: &mut Pod| pod.meta.owner = super::pod(&of(1), 0, "Running").meta.owner)]
#[case::ended(|pod: &mut Pod| pod.phase = Phase::Failed)]
#[case::terminating(|pod: &mut Pod| pod.meta.deleted = Some(after(0)))]
#[case::taken_out(|pod: &mut Pod| pod.meta.labels = [(RELEASED_LABEL, "true")].into())]
fn leaves_other_pods(#[case] change: fn(&mut Pod)) {
    let mut scene = Scene::new(adopting("one", 1), "");
    let mut other = Pod::clone(&orphan("a", None));
    change(&mut other);
    assert!(!is_orphan(&other), "the manager does not read the PodSet because of it");
    scene.world.orphans = Orphans::Found(vec![Arc::new(other)]);
    let plan = scene.plan(0);
    assert_eq!((adopted(&plan), creates(&plan)), (vec![], 1));
}

/// Adopted pods of another template are the current ones, and roll within the limits.
#[test]
fn elects_the_current_template_after_the_adoption() {
    let mut podset = adopting("two", 2);
    podset.spec.update_strategy = serde_json::from_value(json!({"partition": 1})).unwrap();
    let mut scene = Scene::new(podset, "");
    scene.world.orphans = Orphans::Found(vec![orphan("a", Some("one")), orphan("b", Some("one"))]);
    let plan = scene.pass(0);
    assert_eq!(plan.status.unwrap().current_revision, None);
    scene.world.orphans = Orphans::Unread;
    scene.world.pods = [0, 1].map(|number| Arc::new(pod(&of_image("one"), number, "Running"))).into();
    let current = scene.plan(0).status.unwrap().current_revision;
    assert_eq!(current, Some(revision::name(&of(0), &template_hash(&of_image("one")))));
}

/// In the gap of a rollout, an orphan without a hash has the image of before.
#[test]
fn an_orphan_in_a_rollout_gets_the_current_hash() {
    let mut scene = Scene::new(adopting("one", 3), "0-2 Running");
    scene.pass(0);
    scene.edit(adopting("two", 3));
    scene.world.pods.pop();
    scene.world.orphans = Orphans::Found(vec![orphan("a", None)]);
    let plan = scene.plan(0);
    let adoption = plan.steps.iter().flatten().find_map(|action| match action {
        Action::Apply { resource: PODS, body, .. } => Some(&body["metadata"]["labels"][HASH_LABEL]),
        _ => None,
    });
    assert_eq!(adoption.unwrap(), &*template_hash(&of_image("one")));
}

/// A policy rejects the adoption of one pod.
#[test]
fn a_rejected_adoption_leaves_its_place() {
    let mut scene = Scene::new(adopting("one", 1), "");
    scene.world.orphans = Orphans::Found(vec![orphan("a", None), orphan("b", None)]);
    let refusal = refusal_until(Verb::Apply, RefusalReason::Other, after(60));
    scene.world.refusals.insert(&PODS, "a", refusal.clone());
    let plan = scene.plan(0);
    assert_eq!((adopted(&plan), condition(&plan, "ReplicaFailure").1), (vec!["b"], "FailedAdoption"));
    scene.world.refusals.insert(&PODS, "b", refusal);
    assert_eq!(creates(&scene.plan(0)), 1);
    assert_eq!(adopted(&scene.plan(60)), ["a"]);
}

#[test]
fn a_rejected_selector_stops_no_pods() {
    let mut scene = Scene::new(adopting("one", 1), "");
    scene.world.orphans = Orphans::Rejected("bad key".to_owned());
    let plan = scene.plan(0);
    let (_, reason, message) = condition(&plan, "ReplicaFailure");
    assert_eq!((creates(&plan), reason, message), (1, "FailedAdoption", "bad key"));
}

#[test]
fn reads_pods_only_while_some_are_missing() {
    let adopts = |podset: &PodSet, counted| crate::adoption::selector(podset, counted);
    assert_eq!(adopts(&adopting("one", 2), 1), Some(Ok("app=web".to_owned())));
    assert_eq!(adopts(&adopting("one", 2), 2), None);
    assert_eq!(adopts(&of(2), 0), None);
}

#[rstest]
#[case(json!({"matchLabels": {"a/b": "c"}, "matchExpressions": [{"key": "d", "operator": "In", "values": ["e", "f"]}]}), Ok("a/b=c,d in (e,f)"))]
#[case(json!({"matchExpressions": [{"key": "d", "operator": "Exists"}]}), Ok("d"))]
#[case(json!({}), Err("adopt.selector is empty"))]
#[case(json!({"matchLabels": {"a": "my web"}}), Err("\"my web\" is neither"))]
#[case(json!({"matchLabels": {"a": "b,c=d"}}), Err("\"b,c=d\" is neither"))]
#[case(json!({"matchLabels": {"a,b": "c"}}), Err("\"a,b\" is neither"))]
#[case(json!({"matchExpressions": [{"key": "d", "operator": "NotIn"}]}), Err("NotIn of d;"))]
#[case(json!({"matchExpressions": [{"key": "d", "operator": "Exists", "values": ["e"]}]}), Err("Exists of d;"))]
#[case(json!({"matchExpressions": [{"key": "d", "operator": "Like"}]}), Err("adopt.selector is not valid"))]
fn reads_the_selector(#[case] selector: Value, #[case] expected: Result<&str, &str>) {
    let mut podset = adopting("one", 1);
    podset.spec.adopt = serde_json::from_value(json!({"selector": selector})).unwrap();
    match (crate::adoption::selector(&podset, 0).unwrap(), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected),
        (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
        (found, _) => panic!("{found:?}"),
    }
}
