//! The pods that a plan creates: their names, their order, and the pods that replace them.

use super::*;
use proptest::prelude::*;

#[test]
fn writes_the_start_before_the_first_pod() {
    let mut scene = Scene::unseen(simple(), &["a", "b"]);
    let first = scene.plan();
    assert!(first.steps.is_empty());
    assert_eq!(first.status.as_ref().unwrap().start_time, Some(Time(now())));
    assert_eq!(created(&scene.write_status().plan()), ["a", "b"]);
}

#[test]
fn names_labels_and_pins_a_pod() {
    let plan = Scene::started(simple(), &["a"], &[]).plan();
    let Action::Create { name, body, .. } = &plan.steps[0][0] else { panic!() };
    let body = body.value();
    assert!(name.starts_with("d-") && name.ends_with("-1"), "{name}");
    assert_eq!(body["metadata"]["labels"][NAME_LABEL], "d");
    assert_eq!(body["metadata"]["labels"][KIND_LABEL], "DaemonJob");
    assert_eq!(body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], true);
    assert_eq!(body["spec"]["restartPolicy"], "OnFailure");
    let pin = &body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(pin["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], "a");
}

#[test]
fn pod_names_differ_by_node_and_number_alone() {
    let (job, a, b) = (simple(), node("a"), node("b"));
    assert_eq!(pod_name(&job, &a, 1), pod_name(&job.clone(), &a.clone(), 1));
    assert_ne!(pod_name(&job, &a, 1), pod_name(&job, &b, 1));
    assert_ne!(pod_name(&job, &a, 1), pod_name(&job, &a, 2));
    let mut named = simple();
    named.metadata.name = Some("x".repeat(63));
    assert!(pod_name(&named, &a, 1_000_000).len() <= 63);
}

/// The hash of the tutorial's sample. A change would run every DaemonJob again at an upgrade.
#[test]
fn golden_hash_of_the_sample() {
    let template = RawTemplate(json!({"spec": {
        "containers": [{"name": "test-job", "image": "busybox", "command": ["sleep", "20"]}],
        "nodeSelector": {"app": "v1"}, "restartPolicy": "OnFailure"}}));
    assert_eq!(template.hash(), "v1-7ji4ojlv5d");
}

#[test]
fn does_not_run_a_done_node_again() {
    let pods = [("a", 1, "Succeeded"), ("b", 1, "Running")];
    let mut scene = Scene::started(simple(), &["a", "b"], &pods);
    let half = scene.plan();
    assert!(half.steps.is_empty());
    assert_eq!(condition(&half, "Complete"), ("False", "NodesPending"));
    let first = scene.set_pods(&[("a", 1, "Succeeded"), ("b", 1, "Succeeded")]).plan();
    assert!(created(&first).is_empty());
    scene.record(&first);
    let whole = scene.plan();
    assert!(whole.steps.is_empty());
    assert_eq!(condition(&whole, "Complete"), ("True", "AllNodesDone"));
    assert_eq!(whole.events.len(), 1);
    let status = whole.status.unwrap();
    assert_eq!((status.desired, status.succeeded, status.active), (Some(2), Some(2), Some(0)));
    assert_eq!(status.completion_time, Some(Time(now())));
}

#[test]
fn writes_nothing_after_it_is_complete() {
    let scene = Scene::settled(simple(), &["a"], &[("a", 1, "Succeeded")]);
    let again = scene.plan_at(5 * 3_600);
    assert!(!again.has_actions() && again.events.is_empty() && again.again.is_none());
    assert_eq!(again.status, scene.job.status);
}

#[test]
fn backs_off_after_failures_up_to_the_limit() {
    let mut job = simple();
    job.spec.backoff_limit = Some(1);
    let mut scene = Scene::started(job, &["a"], &[("a", 1, "Failed")]);
    let waiting = scene.plan();
    assert!(!waiting.has_actions());
    assert_eq!(waiting.again, Some(later(10)));
    assert_eq!(created(&scene.tick(10).plan()), ["a"]);
    let ended = scene.set_pods(&[("a", 1, "Failed"), ("a", 2, "Failed")]).plan();
    assert!(created(&ended).is_empty());
    scene.record(&ended);
    assert_eq!(deleted(&scene.plan()), ["a-1"], "the newest failed pod is kept");
    assert_eq!(condition(&ended, "Failed"), ("True", "NodesFailed"));
    assert_eq!(condition(&ended, "Complete").0, "False");
}

/// A failed pod that was disrupted does not count against the limit. The other pods occupy their node.
#[rstest]
#[case::disrupted("Failed", |pod: &mut Pod| pod.disrupted = true, &["a"], &[])]
#[case::terminating("Running", |pod: &mut Pod| pod.meta.deleted = Some(now()), &[], &[])]
#[case::of_an_earlier_node("Pending", of_an_earlier_node, &[], &["a-1"])]
#[case::unbound_without_annotation("Pending", unbind, &[], &[])]
fn a_pod_occupies_its_node(
    #[case] phase: &str,
    #[case] change: fn(&mut Pod),
    #[case] creates: &[&str],
    #[case] deletes: &[&str],
) {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let mut scene = Scene::with_pods(job, &["a"], &[("a", 1, phase)]);
    scene.edit_pod("a", change).write_status();
    let plan = scene.plan_at(10);
    assert_eq!(created(&plan), creates);
    assert_eq!(deleted(&plan), deletes);
}

fn unbind(pod: &mut Pod) {
    (pod.meta.annotations, pod.node) = ([].into(), None);
}

#[test]
fn deletes_one_of_two_pods_of_a_node() {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, "Pending")]);
    scene.edit_pod("a", unbind).world.pods.push(Arc::new(pod(&simple(), "a", 2, "Running")));
    assert_eq!(deleted(&scene.write_status().plan()), ["a-1"]);
}

#[test]
fn a_new_template_replaces_only_pods_that_have_not_started() {
    let nodes = ["a", "b", "c"];
    let mut scene = Scene::started(simple(), &nodes, &[]);
    scene.set_pods(&[("a", 1, "Succeeded"), ("b", 1, "Running"), ("c", 1, "Pending")]);
    scene.job.spec.template = RawTemplate(json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}));
    let first = scene.plan();
    assert_eq!(deleted(&first), ["c-1"]);
    assert!(created(&first).is_empty(), "the status has the new run first");
    assert_eq!(created(&scene.write_status().plan()), ["a"]);
}

#[test]
fn waits_after_a_refusal_and_reports_it() {
    let mut scene = Scene::started(simple(), &["a"], &[]);
    let name = pod_name(&scene.job, &node("a"), 1);
    scene.world.refusals.insert(&PODS, name, refusal(RefusalReason::Other, "no image", later(10)));
    let refused = scene.plan();
    assert!(!refused.has_actions());
    assert_eq!(refused.again, Some(later(10)));
    assert_eq!(condition(&refused, "PodsRefused"), ("True", "FailedCreate"));
    assert_eq!(created(&scene.plan_at(10)), ["a"]);
}

#[test]
fn plans_nothing_for_a_terminating_object() {
    let mut scene = Scene::unseen(simple(), &["a"]);
    scene.job.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn restores_lost_labels() {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, "Running")]);
    scene.world.unlabelled.pods.push(scene.world.pods[0].clone());
    let plan = scene.write_status().plan();
    assert!(created(&plan).is_empty());
    let Action::MergePatch { body, .. } = &plan.steps[0][0] else { panic!() };
    assert_eq!(body["metadata"], json!({"uid": "a-1", "labels": {KIND_LABEL: "DaemonJob"}}));
    // A pod without its label that no watch has shown has the name of the new pod.
    scene.world = world(&["a"], []);
    let name = pod_name(&scene.job, &node("a"), 1);
    scene.world.refusals.insert(&PODS, name, refusal(RefusalReason::LabelsMissing, "", later(10)));
    let plan = scene.plan();
    assert!(created(&plan).is_empty());
    assert!(matches!(&plan.steps[0][0], Action::MergePatch { resource: PODS, .. }));
}

/// The manager restores only the label of the watch. A pod without the other labels still counts.
#[rstest]
fn a_pod_that_lost_its_labels_still_counts(#[values("Running", "Succeeded")] phase: &str) {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, phase)]);
    scene.edit_node_unseen("a", |node| node.meta.created = Some(now())).edit_pod("a", |pod| {
        pod.meta.name = "d-abcdefghij-1".into();
        pod.meta.labels = [(KIND_LABEL, "DaemonJob")].into();
    });
    let plan = scene.write_status().plan_at(60);
    assert!(created(&plan).is_empty() && deleted(&plan).is_empty(), "{plan:?}");
}

proptest! {
    /// For any pods, at most one pod is created for a node, and none if a pod runs there or the node is done.
    #[test]
    fn never_creates_two_pods_for_a_node(phases in prop::collection::vec((0..4_usize, 1..4_u64, 0..4_usize, any::<bool>(), any::<bool>()), 0..12)) {
        let job = simple();
        let pods = phases.iter().map(|(at, run, phase, going, old)| {
            let mut pod = pod(&job, FOUR[*at], *run, ["Pending", "Running", "Succeeded", "Failed"][*phase]);
            if *going { pod.meta.deleted = Some(now()); }
            if *old {
                let uid = format!("uid-{}", FOUR[*at]);
                pod.meta.labels = [(NODE_UID_LABEL, uid.as_str()), (HASH_LABEL, "v1-old"), (POD_NUMBER_LABEL, "1")].into();
            }
            pod
        });
        let mut scene = Scene { job: job.clone(), world: world(&FOUR, pods), second: 24 * 3_600 };
        let plan = scene.write_status().plan();
        let (job, world) = (&scene.job, &scene.world);
        let made = created(&plan);
        let mut once = made.clone();
        once.dedup();
        prop_assert_eq!(&made, &once);
        for name in &made {
            prop_assert!(!world.pods.iter().any(|pod| pod.is_running() && pinned_to(pod) == Some(name)));
        }
        for action in plan.steps.iter().flatten() {
            if let Action::Create { resource: PODS, name, .. } = action {
                let run: u64 = name.rsplit('-').next().unwrap().parse().unwrap();
                let of = world.nodes.iter().find(|node| pod_name(job, node, run) == *name).unwrap();
                prop_assert!(world.pods.iter().all(|pod| pod.label(NODE_UID_LABEL) != Some(&of.meta.uid) || number_of(pod) < run));
            }
        }
    }
}

/// A pod whose labels and annotations a user removed keeps its name.
#[test]
fn names_a_pod_that_has_the_name_of_the_next_one() {
    let mut scene = Scene::begun(simple(), &["a"]);
    scene.pass();
    scene.edit_pod("a", |pod| {
        (pod.meta.labels, pod.meta.annotations, pod.node) = ([].into(), [].into(), None);
    });
    scene.pass();
    assert_eq!(scene.reason("a"), Some("NameTaken"));
    let message = &scene.pending("a").message;
    assert!(message.starts_with(&*scene.world.pods[0].meta.name), "{message}");
}
