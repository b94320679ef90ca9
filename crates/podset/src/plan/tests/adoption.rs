//! The adoption of pods without an owner.

use super::*;

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
    scene.world.orphans = vec![Arc::new(unready), orphan("b", None), orphan("c", None)];
    let plan = scene.plan(0);
    assert_eq!(
        (adopted(&plan), creates(&plan)),
        (vec!["b", "c"], 0),
        "ready ones first, and no more than missing"
    );
    scene.world.orphans.truncate(2);
    scene.world.pods.clear();
    let plan = scene.plan(0);
    assert_eq!((adopted(&plan), creates(&plan)), (vec!["b", "a"], 1));
    let Action::Apply { body, .. } = &plan.steps[0][0] else { panic!("{:?}", plan.steps) };
    let meta = &body["metadata"];
    assert_eq!((&meta["uid"], &meta["resourceVersion"]), (&json!("uid-b"), &json!("1")), "only if unchanged");
    assert_eq!(meta["ownerReferences"][0]["uid"], "set");
    assert_eq!((&meta["labels"][UID_LABEL], &meta["labels"][KIND_LABEL]), (&json!("set"), &json!("PodSet")));
    scene.podset.spec.adopt = None;
    scene.world.orphans.clear();
    assert_eq!(adopted(&scene.plan(0)), [""; 0]);
}

#[rstest]
#[case::owned(|pod: &mut Pod| pod.meta.owner = super::pod(&of(1), 0, "Running").meta.owner)]
#[case::ended(|pod: &mut Pod| pod.phase = Phase::Failed)]
#[case::terminating(|pod: &mut Pod| pod.meta.deleted = Some(after(0)))]
#[case::as_young_as_the_podset(|pod: &mut Pod| pod.meta.created = Some(after(0)))]
#[case::adopted_before(|pod: &mut Pod| pod.meta.labels = [(ADOPTED_LABEL, "set")].into())]
fn leaves_other_pods(#[case] change: fn(&mut Pod)) {
    let mut scene = Scene::new(adopting("one", 1), "");
    let mut other = Pod::clone(&orphan("a", None));
    change(&mut other);
    scene.world.orphans = vec![Arc::new(other)];
    let plan = scene.plan(0);
    assert_eq!((adopted(&plan), creates(&plan)), (vec![], 1));
}

/// Adopted pods of another template are the current ones, and roll within the limits.
#[test]
fn elects_the_current_template_after_the_adoption() {
    let mut podset = adopting("two", 2);
    podset.spec.update_strategy = serde_json::from_value(json!({"partition": 1})).unwrap();
    let mut scene = Scene::new(podset, "");
    scene.world.orphans = vec![orphan("a", Some("one")), orphan("b", Some("one"))];
    let plan = scene.pass(0);
    assert_eq!(plan.status.unwrap().current_revision, None);
    scene.world.orphans.clear();
    scene.world.pods = [0, 1].map(|number| Arc::new(pod(&of_image("one"), number, "Running"))).into();
    let current = scene.plan(0).status.unwrap().current_revision;
    assert_eq!(current, Some(revision::name(&of(0), &template_hash(&of_image("one")))));
}

#[test]
fn reads_pods_only_while_some_are_missing() {
    let adopts = |podset: &PodSet, counted| crate::adoption::selector(podset, counted);
    assert_eq!(adopts(&adopting("one", 2), 1).as_deref(), Some("app=web"));
    assert_eq!(adopts(&adopting("one", 2), 2), None);
    assert_eq!(adopts(&of(2), 0), None);
    let mut everything = adopting("one", 2);
    everything.spec.adopt = Some(crate::api::Adoption::default());
    assert_eq!(adopts(&everything, 0), None, "an empty selector selects every pod");
}
