//! Nodes that join, change, or may not have a pod, and the runs that they begin.

use super::*;

#[test]
fn a_new_node_begins_a_run_after_a_complete_run() {
    let mut scene = Scene::started(simple(), &["a"], &[("a", 1, "Succeeded")]);
    scene.write_status();
    // A node that existed before belongs to the finished run.
    scene.world.nodes.push(node("b"));
    assert_eq!(scene.tick(3_600).plan().status.unwrap().start_time, Some(Time(now())));
    scene.edit_node_unseen("b", |node| node.meta.created = Some(later(1)));
    let start = scene.plan();
    assert!(created(&start).is_empty());
    let status = start.status.as_ref().unwrap();
    assert_eq!((&status.start_time, &status.completion_time), (&Some(Time(later(3_600))), &None));
    assert_eq!(condition(&start, "Complete").0, "False");
    assert_eq!(created(&scene.write_status().plan()), ["b"]);
}

#[test]
fn no_eligible_node_is_complete() {
    let plan = Scene::unseen(with(&template(&json!({"nodeSelector": {"app": "v2"}}))), &["a"]).plan();
    assert_eq!(condition(&plan, "Complete"), ("True", "NoEligibleNodes"));
}

#[test]
fn runs_ready_nodes_first() {
    let mut scene = Scene::unseen(with(&json!({"parallelism": 1})), &["a", "b"]);
    scene.edit_node_unseen("a", |node| node.ready = false).write_status();
    assert_eq!(created(&scene.plan()), ["b"]);
}

#[rstest]
#[case::created_after_the_pod(1, true)]
#[case::created_with_the_pod(0, false)]
fn a_recreated_node_runs_unless_a_pod_ran_on_it(#[case] created_at: i64, #[case] is_due: bool) {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, "Succeeded")]);
    scene.edit_pod("a", of_an_earlier_node);
    scene.edit_node_unseen("a", |node| node.meta.created = Some(later(created_at)));
    assert_eq!(created(&scene.tick(5).write_status().plan()) == ["a"], is_due);
}

#[test]
fn a_cordoned_node_waits_only_after_a_disruption() {
    let cordoned = |pods: &[(&str, u64, &str)]| {
        let mut scene = Scene::with_pods(simple(), &["a"], pods);
        scene.edit_node_unseen("a", |node| node.unschedulable = true);
        scene
    };
    assert_eq!(created(&cordoned(&[]).write_status().plan()), ["a"]);
    let mut scene = cordoned(&[("a", 1, "Failed")]);
    scene.edit_pod("a", |pod| pod.disrupted = true).write_status().tick(600);
    let waits = scene.plan();
    assert!(created(&waits).is_empty());
    assert_eq!(reason(&waits, "a"), Some("Cordoned"));
    // L7: the disruption was of an older template.
    scene.job.spec.template = RawTemplate(json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}));
    assert_eq!(created(&scene.write_status().plan()), ["a"]);
}

#[rstest]
#[case::unselected(|node: &mut Node| node.meta.labels = [("app", "v2")].into(), true)]
#[case::no_execute(|node: &mut Node| node.taints = [taint("k", "NoExecute")].into(), true)]
#[case::no_schedule(|node: &mut Node| node.taints = [taint("k", "NoSchedule")].into(), false)]
fn deletes_running_pods_as_a_daemonset_does(#[case] change: fn(&mut Node), #[case] goes: bool) {
    let job = with(&template(&json!({"nodeSelector": {"app": "v1"}})));
    let mut scene = Scene::with_pods(job, &["a"], &[("a", 1, "Running")]);
    let plan = scene.edit_node_unseen("a", change).write_status().plan();
    assert_eq!(!deleted(&plan).is_empty(), goes);
    assert_eq!(plan.status.unwrap().desired, Some(1), "a running pod counts as desired");
}

#[test]
fn skips_a_tainted_node_and_waits_for_an_unhealthy_node() {
    let mut scene = Scene::unseen(simple(), &["a", "b"]);
    let special = Taint { value: "v".into(), ..taint("special", "NoSchedule") };
    scene.edit_node_unseen("a", |node| node.taints = [special].into());
    scene.edit_node_unseen("b", |node| node.taints = [taint(NOT_READY, "NoSchedule")].into());
    let plan = scene.plan();
    let status = plan.status.as_ref().unwrap();
    assert_eq!((state(status, "a"), state(status, "b")), (Some("Tainted"), Some("NotReady")));
    assert!(status.skipped_nodes[0].message.contains("special=v:NoSchedule"));
    assert_eq!((status.desired, status.pending, status.skipped), (Some(1), Some(1), Some(1)));
    assert_eq!(condition(&plan, "Complete"), ("False", "NodesPending"));
}

#[test]
fn a_taint_does_not_hide_a_terminating_pod() {
    let job = with(&json!({"parallelism": 1}));
    let mut scene = Scene::with_pods(job, &["a", "b"], &[("a", 1, "Running")]);
    let unreachable = |effect| taint("node.kubernetes.io/unreachable", effect);
    scene.edit_pod("a", |pod| terminate(pod, now())).edit_node_unseen("a", |node| {
        node.taints = ["NoSchedule", "NoExecute"].map(unreachable).into();
    });
    let status = scene.plan().status.unwrap();
    let listed = status.pending_nodes.iter().find(|node| node.node == "a").unwrap();
    assert_eq!(listed.reason, "PreviousPodTerminating");
    assert!(listed.message.contains("holds 1 of 1 slots"), "{}", listed.message);
    assert_eq!((state(&status, "b"), status.pending), (Some("WaitingForTurn"), Some(2)));
    // A deleted node is in no list, so the message of the waiting node names its pod.
    scene.world.nodes.remove(0);
    let status = scene.plan().status.unwrap();
    assert!(status.pending_nodes[0].message.contains("a-1 on a holds a slot"), "{status:?}");
}
