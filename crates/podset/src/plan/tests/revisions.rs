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
    let mut podset = updating(image, &json!({"partition": "75%", "maxUnavailable": 2}));
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
    assert_eq!(steps(&plan), "create 0; create 1");
}

/// The garbage collector deletes the revision of a deleted PodSet, whose deletion the watch may not show yet.
#[test]
fn a_lost_revision_is_a_reason_to_read_the_podset() {
    let mut scene = Scene::new(of_image("one"), "0-1 Running");
    let is_lost = |scene: &Scene| revision::is_lost(&scene.podset, &scene.world);
    let stored = std::mem::take(&mut scene.world.revisions);
    assert!(!is_lost(&scene), "no status names it, so it is new");
    scene.world.revisions = stored;
    scene.pass(0);
    assert!(!is_lost(&scene));
    scene.world.revisions.clear();
    assert!(is_lost(&scene));
    scene.podset.spec.template = of_image("two").spec.template;
    assert!(!is_lost(&scene), "the revision of a changed template is new");
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

/// A partition accepts no template while pods of the updated one are missing or unavailable.
#[test]
fn a_partition_accepts_a_template_that_all_pods_have() {
    let mut scene = Scene::new(canary("old"), "0-3 Running");
    scene.pass(0);
    scene.edit(canary("new"));
    scene.see("0-2 Running, 3 Pending");
    assert_eq!(current(&scene.pass(0)), revision_of("old"));
    scene.see("0-2 Running");
    assert_eq!(current(&scene.pass(0)), revision_of("old"));
    scene.see("0-3 Running");
    assert_eq!(current(&scene.pass(0)), revision_of("new"));
}

/// Without a partition, no pod is kept: the last pod of the old template is gone, and a freeze of the rollout must not
/// bring it back.
#[test]
fn a_freeze_after_the_last_old_pod_keeps_the_new_ones() {
    let mut scene = Scene::new(of_image("old"), "0-1 Running");
    scene.pass(0);
    scene.edit(of_image("new"));
    scene.see("0 Running, 1 Pending");
    assert_eq!(current(&scene.pass(0)), revision_of("new"));
    scene.edit(updating("new", &json!({"paused": true})));
    scene.see("0 Running");
    assert_eq!(images(&scene.pass(0)), ["new"]);
}

/// The revision of the current template that a user deleted, exchanged, or took the label from.
#[test]
fn repairs_or_reports_the_current_revision() {
    let lose = |scene: &mut Scene| scene.world.revisions.retain(|one| *one.meta.name != *revision_of("old"));
    let missing = |plan: &Plan<PodSetStatus>| condition(plan, "ReplicaFailure").1 == "RevisionMissing";
    let mut scene = with_canary();
    assert!(revision_to_read(&scene.podset, &scene.world).is_none());
    // Without the label, the cache does not show it.
    lose(&mut scene);
    scene.read_revision(&of_image("old"));
    assert!(!missing(&scene.plan(0)));
    assert_eq!(writes(&scene), ["apply 1"]);
    scene.world.current_template = CurrentTemplate::Missing;
    let plan = scene.plan(0);
    assert!(missing(&plan));
    assert_eq!(condition(&plan, "Ready").1, "PartitionReached");
    scene.world.pods.remove(0);
    assert_eq!(images(&scene.plan(0)), ["new"]);

    let mut scene = with_canary();
    scene.world.pods.remove(0);
    scene.read_revision(&of_image("exchanged"));
    let plan = scene.plan(0);
    assert!(missing(&plan));
    assert_eq!(images(&plan), ["new"]);
}

#[test]
fn waits_for_a_template_that_cannot_be_read() {
    let mut scene = with_canary();
    scene.world.pods.remove(0);
    scene.world.pods.pop();
    scene.world.current_template = CurrentTemplate::Unreadable("busy".to_owned());
    let plan = scene.plan(0);
    assert_eq!(images(&plan), ["new"], "the canary is not concerned");
    let (_, reason, message) = condition(&plan, "ReplicaFailure");
    assert_eq!((reason, message, plan.again), ("FailedRevision", "busy", Some(after(10))));
}

/// A template without pods and without a revision is lost: of the others, that of most pods is current.
#[test]
fn a_lost_template_is_not_current() {
    let mut scene = with_canary();
    scene.edit(canary("newer"));
    let old = revision_of("old");
    scene.world.revisions.retain(|one| *one.meta.name != *old);
    assert_eq!(current(&scene.plan(0)), old, "pods have it");
    scene.world.pods.drain(..3);
    assert_eq!(current(&scene.plan(0)), revision_of("new"));
}

/// Only the revision of a template without pods is written before them.
#[test]
fn the_history_delays_no_pods() {
    let mut scene = with_canary();
    let updated = revision_of("new");
    scene.world.revisions.retain(|one| *one.meta.name != *updated);
    scene.world.pods.remove(0);
    scene.read_revision(&of_image("old"));
    assert_eq!(scene.plan(0).steps[0][0].target().unwrap().0, Verb::Create);
    scene.world.refusals.namespace_terminating = true;
    assert_eq!(writes(&scene), [""; 0]);
}

/// The rejection of one template must not stop the other.
#[rstest]
#[case::the_current_one(None, &["new"])]
#[case::the_updated_one(Some("old"), &["old"])]
fn each_template_has_its_own_refusals(#[case] refused: Option<&str>, #[case] created: &[&str]) {
    let mut scene = with_canary();
    scene.world.pods.remove(0);
    scene.world.pods.pop();
    scene.read_revision(&of_image("old"));
    let hash = template_hash(&of_image("old"));
    let name = pod_name(&of(0), refused.is_none().then_some(&*hash), 0);
    for until in [60, 0] {
        let refusal = refusal_until(Verb::Create, RefusalReason::Other, after(until));
        scene.world.refusals.insert(&PODS, name.clone(), refusal);
        let plan = scene.plan(0);
        let first: Vec<String> = images(&plan).into_iter().take(created.len()).collect();
        if until > 0 {
            assert_eq!(images(&plan), created);
        } else {
            assert_eq!((first.len(), plan.steps[0].len()), (1, 2), "both are attempted: {:?}", plan.steps);
        }
        assert_eq!(condition(&plan, "ReplicaFailure").1, "FailedCreate");
    }
}

/// Pods that lost the labels of the selector and the template wait like those of the template that is created.
#[test]
fn pods_without_labels_wait_in_a_pause() {
    let mut scene = with_canary();
    scene.podset.spec.update_strategy.as_mut().unwrap().paused = Some(true);
    let mut stray = pod(&scene.podset, 0, "Running");
    stray.meta.labels = [(NAME_LABEL, "p")].into();
    stray.meta.annotations = [(ATTEMPT_ANNOTATION, "3")].into();
    scene.world.pods[0] = Arc::new(stray);
    scene.read_revision(&of_image("old"));
    assert_eq!(images(&scene.plan(1)), [""; 0]);
    assert_eq!(images(&scene.plan(700)), ["old"]);
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
    assert_eq!((images(&plan), &*steps(&plan)), (vec!["old".to_owned()], "create older"));
}

#[test]
fn decodes_a_revision_without_its_template() {
    let revision: Revision = serde_json::from_value(json!({
        "metadata": {"name": "r", "annotations": {"a": "b"}}, "revision": 3, "data": {"spec": {"template": {}}}}))
    .unwrap();
    assert_eq!((&*revision.meta.name, revision.number, revision.meta.annotations.get("a")), ("r", 3, None));
}
