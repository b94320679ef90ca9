//! Unhealthy nodes, the waits of a run, and the beginning of a run.

use super::*;

/// H2: the run waits for an unhealthy node that is not done. The later skip begins no run.
#[rstest]
#[case(json!(null), Some(300))]
#[case(json!({"skipAfterSeconds": 20}), Some(20))]
#[case(json!({"policy": "Wait"}), None)]
fn waits_for_an_unhealthy_node(#[case] rule: Value, #[case] skipped_after: Option<i64>) {
    let spec = json!({"unhealthyNodes": rule, "lateNodes": "Ignore"});
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.kill("b").succeed("a");
    assert_eq!((scene.reason("b"), scene.condition("Complete").0), (Some("NotReady"), false));
    assert_eq!((scene.status().desired, scene.status().pending), (Some(2), Some(1)));
    let start = scene.status().start_time.clone();
    scene.wait(skipped_after.map_or(100_000, |seconds| seconds - 1));
    assert!(!scene.condition("Complete").0);
    if skipped_after.is_some() {
        scene.wait(1);
        assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
        assert_eq!(scene.status().desired, Some(1));
    }
    scene.heal("b");
    assert_eq!(scene.status().start_time, start, "the node joins the run");
    scene.succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A24: the manager measures the time, so a new leader waits again.
#[test]
fn a_new_leader_waits_again() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.kill("b").succeed("a").after(299).change_leader().after(299);
    assert!(!scene.condition("Complete").0);
    scene.wait(1);
    assert!(scene.condition("Complete").0);
}

/// A24: a change of the manager's wall clock does not lose or skip a node.
#[test]
fn a_change_of_the_wall_clock_skips_no_node() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.kill("a");
    let mut clocks = scene.world.clocks.clone();
    let since = clocks.node("uid-a").unhealthy.unwrap();
    clocks.step(&scene.job, &scene.world, (later(3_600), SignedDuration::from_secs(10)));
    assert_eq!(clocks.node("uid-a").unhealthy, Some(since + SignedDuration::from_secs(3_590)));
}

/// M2: an unbound pod is deleted when its node becomes unhealthy or tainted, and the next pod waits.
#[rstest]
#[case::unhealthy(Scene::kill, Scene::heal)]
#[case::tainted(Scene::taint, Scene::untaint)]
fn deletes_an_unbound_pod_of_an_unhealthy_node(#[case] begin: Event, #[case] end: Event) {
    let mut scene = Scene::cautious(&["a", "b"]);
    assert!(scene.pod("a").node.is_none());
    begin(&mut scene, "a");
    assert!(scene.has_pod("b"), "the slot is free");
    assert!(scene.world.pods.iter().all(|pod| pinned_to(pod) != Some("a")), "{:?}", scene.world.pods);
    end(scene.succeed("b"), "a");
    assert_eq!(scene.reason("a"), Some("BackingOff"), "A39");
    assert_eq!(scene.wait(10), ["a"]);
}

/// A25: nodes that exist when the run begins are not late, even if clocks differ.
#[test]
fn a_wrong_clock_makes_no_node_late() {
    let mut scene = Scene::unseen(cautious(&json!({"lateNodes": "Ignore"})), &["a"]);
    scene.edit_node_unseen("a", |node| node.meta.created = Some(later(600)));
    assert_eq!(scene.passes(), ["a"]);
    assert_eq!(scene.status().start_time, Some(Time(later(600))));
}

/// A25: a node that joins during the run belongs to it. A node that becomes eligible later begins a new run.
#[test]
fn a_node_that_becomes_eligible_later_begins_a_run() {
    let mut scene = Scene::cautious(&["a"]);
    let run = scene.status().run;
    scene.tick(10).create_node("b", "uid-b").create_node("c", "uid-c").taint("c");
    scene.succeed("a").succeed("b");
    assert!(scene.condition("Complete").0);
    assert_eq!(scene.status().run, run, "b joined the current run");
    scene.untaint("c");
    assert_eq!(scene.status().run, run.map(|run| run + 1));
}

/// A23 and N14: the deadline counts only the time in which the run works.
#[test]
fn a_hold_stops_the_deadline() {
    let mut scene = Scene::cautious_with(&json!({"activeDeadlineSeconds": 100}), &["a", "b"]);
    scene.run("a").after(60).pause();
    assert_eq!(scene.status().worked_seconds, Some(60));
    scene.after(3_600).edit(|job| job.spec.paused = None);
    assert!(scene.is_idle_for(&[39]));
    assert!(scene.has_pod("a"));
    scene.wait(1);
    assert!(scene.pod("a").meta.deleted.is_some());
    scene.fail("a");
    assert_eq!(scene.condition("Failed"), (true, "DeadlineExceeded"));
    scene.retry("1");
    assert_eq!((scene.condition("Failed").0, scene.status().worked_seconds), (false, Some(0)));
    assert!(scene.has_pod("a"));
}

/// A23: waiting for an unhealthy node does not count.
#[test]
fn an_unhealthy_node_stops_the_deadline() {
    let mut scene = Scene::cautious_with(&json!({"activeDeadlineSeconds": 100}), &["a", "b"]);
    scene.kill("b").succeed("a").after(290);
    assert!(!scene.condition("Failed").0);
    scene.heal("b");
    assert!(scene.has_pod("b"));
}

/// A23: the clock of the run stops while the only pod is on a node that is not Ready.
#[test]
fn the_only_pod_on_an_unhealthy_node_stops_the_deadline() {
    let mut scene = Scene::cautious_with(&json!({"activeDeadlineSeconds": 120}), &["a", "b"]);
    scene.run("a").after(60).kill("a").after(300);
    assert_eq!((scene.condition("Failed").0, scene.status().worked_seconds), (false, Some(60)));
    scene.heal("a").after(59);
    assert!(scene.has_pod("a"));
    scene.wait(1);
    assert!(scene.pod("a").meta.deleted.is_some());
}

/// A23: after a finished run the clock does not advance until a node joins.
#[test]
fn a_node_that_joins_a_failed_run_has_the_full_deadline() {
    let spec = json!({"activeDeadlineSeconds": 100, "failurePolicy": {"type": "Continue"}});
    let mut scene = Scene::cautious_with(&spec, &["a"]);
    scene.fail("a");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    scene.after(100_000).create_node("b", "uid-b");
    assert!(scene.has_pod("b") && scene.condition("Failed").1 != "DeadlineExceeded");
}

/// Neither the earlier leader's clock nor a pause without a leader ends a run.
#[rstest]
#[case::clock_ahead(false)]
#[case::paused_meanwhile(true)]
fn the_time_before_this_leader_ends_no_run(#[case] is_paused: bool) {
    let mut scene = Scene::cautious_with(&json!({"activeDeadlineSeconds": 900}), &["a", "b"]);
    scene.run("a").after(300).tick(3_600);
    scene.world.clocks = Clocks::default();
    if is_paused {
        scene.pause();
    }
    scene.passes();
    assert!(!scene.condition("Failed").0 && scene.has_pod("a"), "{:?}", scene.status());
}

/// A new template gets a new deadline even if it begins no run.
#[test]
fn a_new_template_has_the_full_deadline_without_a_new_run() {
    let spec = json!({"activeDeadlineSeconds": 100, "rerunOn": ["NodeReboot"]});
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.run("a").after(100).fail("a");
    assert_eq!(scene.condition("Failed"), (true, "DeadlineExceeded"));
    scene.use_template("other");
    assert!(!scene.condition("Failed").0 && scene.has_pod("a"), "{:?}", scene.status());
}

/// A finished run has no deadline.
#[test]
fn a_lower_deadline_does_not_fail_a_complete_run() {
    let mut scene = Scene::cautious_with(&json!({"activeDeadlineSeconds": 100}), &["a"]);
    scene.run("a").after(60).succeed("a");
    assert!(scene.condition("Complete").0);
    scene.edit(|job| job.spec.active_deadline_seconds = Some(50));
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"), "{:?}", scene.condition("Failed"));
}

/// M11: the backoff depends on numbers, not on the clocks of the manager and the node.
#[test]
fn a_retry_waits_if_the_managers_clock_is_ahead() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6}), &["a"]);
    // The node's clock is 5 s behind the start of the run.
    scene.run("a").edit_pod("a", |pod| {
        (pod.phase, pod.finished, pod.meta.created) = (Phase::Failed, Some(later(-5)), Some(later(-5)));
    });
    assert!(scene.passes().is_empty());
    assert_eq!(scene.reason("a"), Some("BackingOff"));
}

/// M11: the waits are correct even if the manager's clock is ten minutes ahead.
#[test]
fn a_clock_that_is_far_ahead_does_not_shorten_a_wait() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6, "pendingDeadlineSeconds": 60}), &["a"]);
    scene.edit_pod("a", |pod| pod.meta.created = Some(later(-600)));
    assert!(scene.is_idle_for(&[59]));
    assert!(scene.has_pod("a"), "the pod still has time to start");
    scene.run("a").edit_pod("a", |pod| (pod.phase, pod.finished) = (Phase::Failed, Some(later(-600))));
    assert!(scene.passes().is_empty());
    assert_eq!(scene.reason("a"), Some("BackingOff"));
    assert_eq!(scene.wait(10), ["a"]);
}

/// A resumed run has no backoff, but an exceeded limit stays exceeded.
#[test]
fn a_resumed_run_has_no_backoff() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 1}), &["a"]);
    scene.fail("a").suspend().resume();
    assert!(scene.has_pod("a"));
    scene.fail("a");
    assert_eq!(scene.reason("a"), Some("BackoffLimitExceeded"));
}

/// N1: done nodes stay done with a new retryToken and after its removal.
#[test]
fn a_retry_token_runs_only_failed_nodes() {
    let spec = json!({"failurePolicy": {"type": "Continue"}, "parallelism": null});
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.fail("a").succeed("b");
    let before = (scene.status().run, scene.status().start_time.clone());
    scene.tick(100).retry("1");
    assert!(scene.has_pod("a") && !scene.has_pod("b"));
    assert_eq!((scene.status().run, scene.status().start_time.clone()), before, "a retry is not a new run");
    assert_eq!(scene.rollout().number, 2);
    scene.succeed("a");
    for token in [None, Some("1".to_owned())] {
        scene.edit(|job| job.spec.retry_token = token);
        assert_eq!(scene.rollout().number, 2);
        assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    }
}

fn boot(node: &mut Node, id: &str) {
    node.boot_id = id.into();
}

fn install(node: &mut Node, id: &str) {
    node.machine_id = id.into();
}

/// M7: a rebooted node or a reinstalled machine with the same Node runs again if rerunOn names that.
#[rstest]
#[case(json!(["TemplateChange", "NodeReboot"]), boot, "one", "two", true)]
#[case(json!(["TemplateChange"]), boot, "one", "two", false)]
#[case(json!(["TemplateChange", "MachineChange"]), install, "one", "two", true)]
#[case(json!(["TemplateChange", "MachineChange"]), install, "one", "one", false)]
#[case(json!(["TemplateChange", "MachineChange"]), install, "", "two", false)]
#[case(json!(["TemplateChange", "MachineChange"]), install, "one", "", false)]
#[case(json!(["TemplateChange"]), install, "one", "two", false)]
fn runs_again_after_a_change_of_the_node(
    #[case] rerun: Value,
    #[case] change: fn(&mut Node, &str),
    #[case] old: &str,
    #[case] new: &str,
    #[case] runs: bool,
) {
    let mut scene = Scene::unseen(cautious(&json!({"rerunOn": rerun})), &["a"]);
    scene.edit_node("a", |node| change(node, old)).succeed("a");
    assert!(scene.condition("Complete").0);
    let run = scene.status().run.unwrap();
    scene.tick(10).edit_node("a", |node| change(node, new));
    assert_eq!(scene.has_pod("a"), runs);
    assert_eq!(scene.status().run, Some(run + i64::from(runs)));
    assert_eq!(scene.status().start_time == Some(Time(later(10))), runs);
}

/// After a lost status the numbers continue.
#[test]
fn keeps_its_numbers_after_a_lost_status() {
    let mut scene = Scene::cautious(&["a"]);
    scene.succeed("a").use_template("other").succeed("a");
    scene.job.status = None;
    scene.world.pods.clear();
    scene.passes();
    assert_eq!(scene.rollout().number, 2);
    assert!(scene.world.pods.is_empty() && scene.condition("Complete").0);
}

/// Every new node is not Ready at first. That does not move it into a later run.
#[rstest]
#[case::ready(false)]
#[case::not_ready_yet(true)]
fn ignores_late_nodes_with_the_policy_ignore(#[case] is_not_ready: bool) {
    let mut scene = Scene::cautious_with(&json!({"lateNodes": "Ignore"}), &["a"]);
    let run = scene.succeed("a").status().run;
    scene.tick(10).create_node_unseen("b", "uid-b");
    if is_not_ready {
        scene.kill_unseen("b");
    }
    assert!(scene.passes().is_empty());
    assert_eq!((scene.reason("b"), scene.status().run), (Some("Late"), run));
    assert!(scene.condition("Complete").0);
    scene.heal("b");
    assert_eq!((scene.reason("b"), scene.status().run), (Some("Late"), run));
}

/// A node that a tool has marked for deletion does not count as failed.
#[rstest]
#[case("karpenter.sh/disrupted", true)]
#[case("example.com/going-away", true)]
#[case("example.com/other", false)]
fn does_not_count_a_node_that_is_marked_for_deletion(#[case] key: &str, #[case] is_exempt: bool) {
    let mut scene = Scene::unseen(cautious(&json!({})), &["a", "b"]);
    scene.world.deletion_taints = Arc::from(["example.com/going-away".to_owned()]);
    scene.passes();
    scene.run("a").edit_node("a", |node| node.taints = [taint(key, "PreferNoSchedule")].into());
    scene.kill("a").delete_node("a");
    assert_eq!(scene.is_braked(), !is_exempt);
}

/// Every new node is not Ready at first, so it does not count for the health of the fleet.
#[test]
fn new_nodes_that_are_not_ready_do_not_stop_the_run() {
    let mut scene = Scene::cautious(&FOUR);
    scene.run("a").tick(60);
    for name in ["n0", "n1", "n2", "n3", "n4", "n5"] {
        scene.create_node_unseen(name, &format!("uid-{name}")).kill_unseen(name);
    }
    scene.passes();
    scene.succeed("a");
    assert!(!scene.condition("Paused").0, "{:?}", scene.status().conditions);
    assert!(scene.has_pod("b"));
}

/// A retry is not a new run, so the outage continues.
#[test]
fn a_retry_token_does_not_end_fleet_unhealthy() {
    let mut scene = Scene::cautious(&FOUR);
    scene.fail("a").each(&FOUR[..3], Scene::kill).retry("1");
    assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
}

/// A skipped node does not make Complete False when it is not Ready.
#[test]
fn a_skipped_node_that_is_not_ready_stays_skipped() {
    let mut scene = Scene::cautious_with(&json!({"pendingDeadlineSeconds": 60}), &["a", "b"]);
    scene.succeed("a").after(60);
    assert_eq!((scene.reason("b"), scene.condition("Complete").0), (Some("PendingDeadlineExceeded"), true));
    scene.kill("b");
    assert!(scene.condition("Complete").0, "{:?}", scene.reason("b"));
}

/// With a definition that drops status.rollout, the condition has the remedy and the manager creates no pods.
#[test]
fn reports_an_outdated_definition() {
    let mut scene = Scene::unseen(cautious(&json!({})), &["a"]);
    let mut plan = scene.pass();
    for second in [0, 5, 10] {
        scene.second = second;
        let status = scene.job.status.as_mut().unwrap();
        (status.rollout, status.run) = (None, None);
        plan = scene.pass();
        assert!(created(&plan).is_empty());
    }
    assert_eq!(scene.condition("Paused"), (true, "DefinitionOutdated"));
    assert_eq!(plan.status.unwrap().pending_nodes[0].reason, "DefinitionOutdated");
}

/// An untolerated node, such as a control plane node, is listed, but the run counts as complete.
#[test]
fn a_tainted_node_does_not_make_a_run_incomplete() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.taint("b").succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!((scene.status().desired, scene.reason("b")), (Some(1), Some("Tainted")));
}

/// A new leader cannot know how long a node has been not Ready. It begins no run because of that.
#[test]
fn a_new_leader_begins_no_run() {
    let spec = json!({"failurePolicy": {"type": "Continue"}, "parallelism": null, "lateNodes": "Ignore"});
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.run("a").end_unseen("a", Phase::Succeeded).kill("a").succeed("b").after(601);
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    let run = scene.status().run;
    scene.change_leader();
    assert_eq!(scene.status().run, run);
}

/// A rebooted node that waits for its turn is not done while it is not Ready.
#[test]
fn a_rebooted_node_that_is_not_ready_is_not_done() {
    let rerun = json!({"rerunOn": ["TemplateChange", "NodeReboot"]});
    let mut scene = Scene::unseen(cautious(&rerun), &["a", "b"]);
    scene.edit_node("a", |node| boot(node, "one")).edit_node("b", |node| boot(node, "one"));
    scene.succeed("a").succeed("b");
    assert!(scene.condition("Complete").0);
    scene.tick(60).edit_node("a", |node| boot(node, "two"));
    let run = scene.status().run;
    scene.edit_node("b", |node| boot(node, "two")).kill("b").succeed("a");
    assert_eq!((scene.condition("Complete").0, scene.reason("b")), (false, Some("NotReady")));
    scene.heal("b");
    assert!(scene.has_pod("b"));
    assert_eq!(scene.status().run, run);
}

/// A tolerated taint does not count for the time in which a node is unhealthy.
#[test]
fn a_tolerated_taint_starts_no_clock() {
    let mut scene = Scene::new(cautious(&template(&json!({"hostNetwork": true}))), &["a", "b"]);
    let network = taint("node.kubernetes.io/network-unavailable", "NoSchedule");
    scene.edit_node("b", |node| node.taints = [network].into());
    scene.after(600).kill("b").succeed("a");
    assert_eq!((scene.reason("b"), scene.condition("Complete").0), (Some("NotReady"), false));
}
