//! Plans after the API server rejected a write.

use super::*;
use RefusalReason::{LabelsMissing, NameTaken, Other};
use Verb::{Create, Delete};

/// The API server rejected the write of a pod, which may be retried in second 10. A rejected creation is retried
/// first and alone. A quota on objects counts ended pods too, so they are deleted before it.
#[rstest]
#[case::waits_for_a_creation(5, "0-2 Running", (Create, 3), 0, "", Some("FailedCreate"))]
#[case::retries_a_creation_alone(5, "0-2 Running", (Create, 3), 10, "create 3; create 4", Some("FailedCreate"))]
#[case::deletes_an_ended_pod(2, "0 Failed, 1 Running", (Create, 2), 0, "delete 0", Some("FailedCreate"))]
#[case::uses_another_free_number(5, "0 Running, 2 Running", (Create, 3), 0, "create 1", Some("FailedCreate"))]
#[case::ignores_an_unneeded_creation(3, "0-2 Running", (Create, 3), 0, "", None)]
#[case::waits_for_a_deletion(1, "0 Running, 1 Pending", (Delete, 1), 0, "", Some("FailedDelete"))]
#[case::retries_the_same_deletion(1, "0 Running, 1 Pending", (Delete, 1), 10, "delete 1", Some("FailedDelete"))]
fn handles_a_rejected_write(
    #[case] replicas: i32,
    #[case] pods: &str,
    #[case] (verb, number): (Verb, u64),
    #[case] second: i64,
    #[case] expected: &str,
    #[case] reason: Option<&str>,
) {
    let mut scene = Scene::new(of(replicas), pods);
    scene.refuse(verb, number, Other, 10);
    let plan = scene.plan(second);
    assert_eq!(steps(&plan), expected);
    let failure = reason.map_or(("False", "NoFailure", ""), |reason| ("True", reason, "exceeded quota: q"));
    assert_eq!(condition(&plan, "ReplicaFailure"), failure);
    if second == 0 {
        assert_eq!(plan.again, reason.map(|_| after(10)));
    }
}

#[test]
fn skips_the_name_of_a_foreign_pod() {
    let mut scene = Scene::new(of(2), "");
    scene.refuse(Create, 0, NameTaken, 10);
    let plan = scene.plan(0);
    assert_eq!(steps(&plan), "create 1; create 2");
    assert_eq!(condition(&plan, "ReplicaFailure").0, "False");
}

#[test]
fn labels_and_counts_a_pod_that_lost_the_watch_label() {
    let mut scene = Scene::new(of(2), "");
    scene.refuse(Create, 0, LabelsMissing, 60);
    let plan = scene.plan(0);
    assert_eq!(steps(&plan), "merge 0; create 1");
    assert_eq!(patches(&plan), [&json!({KIND_LABEL: "PodSet"})]);
}

#[test]
fn deletes_and_reports_while_creations_wait() {
    let mut scene = Scene::new(of(3), "0 Running, 1 Failed");
    scene.world.refusals.creations = Some(refusal_until(Create, Other, after(300)));
    let plan = scene.plan(0);
    assert_eq!((&*steps(&plan), plan.again), ("delete 1", Some(after(300))));
    assert_eq!(condition(&plan, "ReplicaFailure"), ("True", "FailedCreate", "exceeded quota: q"));
    // Then one creation is attempted, and the others follow if it succeeds.
    assert_eq!(steps(&scene.plan(300)), "delete 1; create 2 (attempt 1); create 3");
    scene.world.refusals.namespace_terminating = true;
    let plan = scene.plan(300);
    assert_eq!(steps(&plan), "delete 1");
    assert_eq!(condition(&plan, "ReplicaFailure").1, "NamespaceTerminating");
}

/// The pause of all creations ends before the rejected names may be retried.
#[test]
fn waits_for_rejected_names_after_the_pause() {
    let mut scene = Scene::new(of(3), "");
    scene.world.refusals.creations = Some(refusal_until(Create, Other, after(1)));
    for number in 0..3 {
        scene.refuse(Create, number, Other, 10);
    }
    assert_eq!(scene.plan(0).again, Some(after(1)));
    let plan = scene.plan(1);
    assert_eq!((&*steps(&plan), plan.again), ("", Some(after(10))));
    assert_eq!(condition(&plan, "ReplicaFailure").0, "True");
    assert_eq!(steps(&scene.plan(10)), "create 0; create 1 2");
}
