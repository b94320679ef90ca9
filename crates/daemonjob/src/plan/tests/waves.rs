//! Waves, settling, approval, and the pause by annotation.

use super::*;

/// A DaemonJob with waves of one node, half of the nodes, and the rest. It tolerates one failed node.
fn waved(more: &Value) -> DaemonJob {
    let spec = json!({
        "backoffLimit": 0, "failurePolicy": {"type": "Pause", "maxFailedNodes": 1},
        "rollout": {"waveSizes": [1, "50%"]},
    });
    with(&merged(spec, more))
}

fn in_waves(more: &Value, nodes: &[&str]) -> Scene {
    Scene::begun(waved(more), nodes)
}

/// One node at a time, each of which settles for a minute.
fn settling(more: &Value, nodes: &[&str]) -> Scene {
    Scene::cautious_with(&merged(json!({"rollout": {"settleSeconds": 60}}), more), nodes)
}

fn approved_waves(approval: &str) -> Value {
    json!({"rollout": {"waveSizes": [1, "50%"], "approval": approval}})
}

/// The node whose pod runs or may run. There is only one.
fn only(scene: &Scene) -> String {
    let counted = scene.counted();
    assert_eq!(counted.len(), 1, "{counted:?} {:?}", scene.rollout());
    counted[0].to_owned()
}

/// The pods that run succeed. Returns their number.
fn all_succeed(scene: &mut Scene) -> usize {
    let nodes: Vec<String> = scene.counted().into_iter().map(str::to_owned).collect();
    for node in &nodes {
        scene.succeed(node);
    }
    nodes.len()
}

fn wave(scene: &Scene) -> (Option<i32>, Option<&str>) {
    (scene.rollout().wave, scene.rollout().waiting_for.as_deref())
}

#[test]
fn starts_one_node_then_half_then_the_rest() {
    let mut scene = in_waves(&json!({}), &FOUR);
    assert_eq!(scene.rollout().wave_sizes, [1, 2]);
    assert_eq!((wave(&scene), scene.rollout().started), ((Some(1), Some("Nodes")), Some(1)));
    let waits = scene.status().pending_nodes.iter().filter(|one| one.reason == "WaitsForWave");
    assert_eq!(
        waits.map(|one| one.message.as_str()).collect::<Vec<_>>(),
        ["wave 1 allows 1 node to start"; 3]
    );
    assert_eq!(all_succeed(&mut scene), 1);
    assert_eq!((wave(&scene), scene.rollout().settled), ((Some(2), Some("Nodes")), Some(1)));
    assert_eq!(all_succeed(&mut scene), 1);
    assert_eq!(wave(&scene), (Some(3), Some("Nodes")));
    assert_eq!(all_succeed(&mut scene), 2);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!((wave(&scene), scene.rollout().settled), ((Some(3), None), Some(4)));
}

/// The status has a wave before the first node starts in it, so that a new leader knows the wave.
#[test]
fn writes_the_wave_before_the_first_pod_of_it() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.run(&first).end_unseen(&first, Phase::Succeeded);
    let plan = scene.pass();
    assert!(created(&plan).is_empty());
    assert_eq!(plan.status.as_ref().unwrap().rollout.as_ref().unwrap().wave, Some(2));
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["WaveStarted"]);
    assert_eq!(created(&scene.pass()).len(), 1);
}

fn nothing<'s>(scene: &'s mut Scene, _: &str) -> &'s mut Scene {
    scene
}

/// N13: no later event of the failed canary lets another node start.
#[rstest]
#[case::nothing(nothing)]
#[case::unhealthy(Scene::kill)]
#[case::tainted(Scene::taint)]
#[case::deselected(Scene::deselect)]
#[case::deleted(Scene::delete_node)]
fn a_failed_canary_does_not_open_the_next_wave(#[case] event: Event) {
    let mut scene = in_waves(&template(&json!({"nodeSelector": {"app": "v1"}})), &FOUR);
    let first = only(&scene);
    scene.fail(&first);
    event(&mut scene, &first);
    assert!(scene.is_idle_for(&[0, 60, 700, 26 * 3_600]), "{:?}", scene.status());
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
    assert_eq!(wave(&scene), (Some(1), Some("WaveFailed")));
    let message = scene.message("Paused");
    assert!(message.contains("1 node failed and 0 succeeded in wave 1"), "{message}");
    assert!(message.contains("set spec.retryToken"), "{message}");
    assert!(
        message.contains("kubectl annotate daemonjob d --overwrite dj.dysproz.io/approved=1/1"),
        "{message}"
    );
    scene.change_leader();
    assert!(scene.is_idle_for(&[0, 700]));
    scene.retry("again");
    assert_eq!((scene.counted().len(), wave(&scene).0), (1, Some(1)));
}

/// A canary that fails beyond maxFailedNodes stops the rollout, as without waves.
#[test]
fn failed_nodes_stop_the_rollout_before_a_failed_wave() {
    let mut scene = in_waves(&json!({"failurePolicy": {"type": "Pause"}}), &FOUR);
    let first = only(&scene);
    scene.fail(&first);
    assert!(scene.stays_braked(&[700]));
    tolerate(&mut scene.job, 1);
    scene.passes();
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
}

/// The other nodes of the wave succeed, but the status keeps the wave whose node failed.
#[test]
fn no_wave_passes_while_failed_nodes_stop_the_rollout() {
    let more = json!({"failurePolicy": {"type": "Pause"}, "rollout": {"waveSizes": [3]}});
    let mut scene = in_waves(&more, &FOUR);
    let first = scene.counted()[0].to_owned();
    scene.fail(&first);
    assert_eq!(all_succeed(&mut scene), 2);
    assert!(scene.stays_braked(&[700]));
    assert_eq!(wave(&scene).0, Some(1));
    tolerate(&mut scene.job, 1);
    scene.passes();
    assert_eq!((scene.counted().len(), wave(&scene)), (1, (Some(2), Some("Nodes"))));
}

#[test]
fn an_approval_opens_a_failed_wave() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.fail(&first).approve("1/2");
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"), "the approval must name the failed wave");
    scene.approve("1/1");
    assert_eq!((scene.counted().len(), wave(&scene)), (1, (Some(2), Some("Nodes"))));
    assert_ne!(only(&scene), first);
}

/// The user approved the wave while it worked, and did not know that it would fail.
#[test]
fn an_approval_in_advance_does_not_open_a_failed_wave() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.approve("1/1").fail(&first);
    assert!(scene.is_idle_for(&[0, 3_600]));
    let message = scene.message("Paused");
    assert!(message.contains("the approval 1/1 is older than the failure"), "{message}");
    scene.change_leader();
    assert!(scene.is_idle_for(&[60]));
    scene.approve(None);
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
    assert!(scene.approve("1/1").has_other_pod(&first));
}

impl Scene {
    /// Whether a pod runs or may run on another node.
    fn has_other_pod(&self, node: &str) -> bool {
        self.counted().iter().any(|one| *one != node)
    }
}

/// A failed wave continues when its failed node recovers.
#[test]
fn a_lost_canary_that_recovers_opens_the_next_wave() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.run(&first).kill(&first).after(601);
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
    assert!(!scene.condition("Stalled").0, "the node may recover");
    scene.heal(&first).succeed(&first);
    assert_eq!((wave(&scene).0, scene.counted().len()), (Some(2), 1));
}

/// T1: the kubelet rejects the canary's pod, which never ran.
#[test]
fn a_rejected_pod_does_not_start_its_node() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.reject(&first);
    let second = only(&scene);
    assert_ne!(first, second);
    assert!(scene.is_idle_for(&[10, 600]), "wave 1 has its node");
    assert_eq!(scene.reason(&first), Some("WaitsForWave"));
    scene.succeed(&second);
    assert_eq!((wave(&scene).0, scene.counted().len()), (Some(2), 1));
}

/// A11: skipped nodes leave the count, and the next node in the order takes their turn.
#[test]
fn a_skipped_canary_leaves_the_wave() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.evict(&first).taint(&first);
    assert_eq!(scene.reason(&first), Some("Tainted"));
    let second = only(&scene);
    assert_ne!(first, second);
    scene.untaint(&first).after(600);
    assert_eq!(scene.counted().len(), 2, "a node that has started may run again");
    assert_eq!(all_succeed(&mut scene), 2);
    assert_eq!(wave(&scene).0, Some(3), "both waves are over");
}

/// A container of the canary started and hangs, so the template may be the cause. The next node must not hang too.
#[test]
fn a_canary_that_hangs_while_it_starts_has_failed() {
    let mut scene = in_waves(&json!({"pendingDeadlineSeconds": 60}), &FOUR);
    let first = only(&scene);
    let now = scene.now();
    scene.edit_pod(&first, |pod| (pod.node, pod.started) = (Some(first.as_str().into()), Some(now)));
    scene.passes();
    scene.after(61);
    scene.end_unseen(&first, Phase::Failed).passes();
    assert_eq!(scene.reason(&first), Some("PendingDeadlineExceeded"));
    assert!(scene.is_idle_for(&[0, 700]), "{:?}", scene.status());
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
}

/// A node that was cordoned before it died does not count as failed. If it is not selected either, no list has it.
#[rstest]
#[case::running(false)]
#[case::settling(true)]
fn a_wave_does_not_wait_for_a_lost_node_that_is_not_selected(#[case] succeeds: bool) {
    let rollout = json!({"rollout": {"waveSizes": [1, "50%"], "settleSeconds": 60}});
    let selector = template(&json!({"nodeSelector": {"app": "v1"}}));
    let mut scene = in_waves(&merged(selector, &rollout), &FOUR);
    let first = only(&scene);
    scene.run(&first).cordon(&first);
    if succeeds {
        scene.succeed(&first);
    }
    scene.deselect(&first).kill(&first);
    assert!(scene.is_idle_for(&[599]));
    scene.after(1);
    assert!(scene.has_other_pod(&first), "{:?}", scene.rollout());
}

/// An unhealthy node that has not started does not keep the wave from beginning or ending.
#[test]
fn an_unhealthy_node_does_not_hold_its_wave() {
    let mut scene = Scene::new(waved(&json!({})), &FOUR);
    scene.kill("a");
    assert_ne!(only(&scene), "a");
    for expected in [1, 1, 1] {
        assert_eq!(all_succeed(&mut scene), expected);
    }
    assert_eq!(wave(&scene), (Some(3), Some("Nodes")));
    scene.after(300);
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
}

/// A retry of a started node needs no room in the wave.
#[test]
fn retries_a_started_node_in_a_full_wave() {
    let mut scene = in_waves(&json!({"backoffLimit": 3}), &FOUR);
    let first = only(&scene);
    scene.fail(&first);
    assert_eq!((scene.reason(&first), wave(&scene)), (Some("BackingOff"), (Some(1), Some("Nodes"))));
    assert_eq!(scene.wait(10), [first.as_str()]);
    scene.succeed(&first);
    assert_eq!(wave(&scene).0, Some(2));
}

/// A11: nodes that join raise the base and the sizes, and do not open a wave again that was over.
#[test]
fn a_wave_that_is_over_stays_over_when_nodes_join() {
    let rollout = json!({"rollout": {"waveSizes": ["50%"], "approval": "EveryWave"}});
    let mut scene = in_waves(&rollout, &FOUR);
    assert_eq!(all_succeed(&mut scene), 2);
    assert_eq!(scene.condition("Paused"), (true, "WaitsForApproval"));
    scene.approve("1/1");
    assert_eq!(all_succeed(&mut scene), 2);
    assert!(scene.condition("Complete").0);
    for name in ["e", "f", "g", "h"] {
        scene.tick(1).create_node(name, name);
    }
    assert_eq!((scene.rollout().base, &scene.rollout().wave_sizes[..]), (8, &[4][..]));
    assert_eq!(scene.counted().len(), 4, "{:?}", scene.status());
}

/// N12: the canary of a wave that is over may be deleted, and the leader may change.
#[test]
fn a_wave_that_is_over_stays_over_without_its_nodes() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.succeed(&first);
    assert_eq!(wave(&scene).0, Some(2));
    let second = only(&scene);
    scene.fail(&second).delete_node(&first).change_leader();
    assert_eq!(wave(&scene).0, Some(2));
}

/// N12: with templates A, B, A, each rollout begins with its first wave, and an approval is void for the next.
#[test]
fn a_new_template_begins_with_the_first_wave() {
    let mut scene = in_waves(&approved_waves("FirstWave"), &FOUR);
    for (number, image) in [(1, "b"), (2, "i"), (3, "c")] {
        assert_eq!((scene.rollout().number, wave(&scene)), (number, (Some(1), Some("Nodes"))));
        assert_eq!(all_succeed(&mut scene), 1);
        assert_eq!(wave(&scene), (Some(1), Some("Approval")));
        assert!(
            scene.approve(["", "1/1", "2/1", "3/1"][usize::try_from(number).unwrap()]).counted().len() == 1
        );
        scene.use_template(image);
        let outdated = scene.world.pods.iter().filter(|pod| pod.meta.deleted.is_some()).count();
        assert_eq!(outdated, 0, "an unbound pod of the older template disappears");
    }
}

/// A12: only an approval of this rollout and wave has an effect.
#[rstest]
#[case::another_rollout("2/1")]
#[case::an_earlier_wave("1/0")]
#[case::no_number("yes")]
#[case::no_wave("1")]
#[case::empty("")]
fn ignores_an_approval_of_something_else(#[case] approval: &'static str) {
    let mut scene = in_waves(&approved_waves("FirstWave"), &FOUR);
    scene.approve(approval);
    all_succeed(&mut scene);
    assert!(scene.is_idle_for(&[0, 3_600]));
    assert_eq!(scene.condition("Paused"), (true, "WaitsForApproval"));
    let message = scene.message("Paused");
    assert!(message.contains("wave 1 is over, with 1 node done and 0 failed"), "{message}");
    assert!(message.contains("approved=1/1"), "{message}");
    scene.approve("1/1");
    all_succeed(&mut scene);
    assert_eq!((wave(&scene).0, scene.counted().len()), (Some(3), 2), "only the first wave needs approval");
}

#[test]
fn every_wave_but_the_last_needs_approval() {
    let mut scene = in_waves(&approved_waves("EveryWave"), &FOUR);
    for (approval, running) in [("1/1", 1), ("1/2", 2)] {
        all_succeed(&mut scene);
        assert_eq!((scene.counted().len(), wave(&scene).1), (0, Some("Approval")));
        assert_eq!(scene.approve(approval).counted().len(), running);
    }
    all_succeed(&mut scene);
    assert!(scene.condition("Complete").0);
}

/// T9: an approval in advance has effect when the wave has settled, not earlier.
#[test]
fn an_approval_in_advance_does_not_open_a_wave_that_works() {
    let mut scene = in_waves(&approved_waves("EveryWave"), &FOUR);
    scene.approve("1/2");
    assert!(scene.is_idle_for(&[0, 60]));
    assert_eq!(wave(&scene), (Some(1), Some("Nodes")));
    all_succeed(&mut scene);
    assert_eq!(wave(&scene), (Some(2), Some("Nodes")));
    all_succeed(&mut scene);
    assert_eq!(wave(&scene).0, Some(3));
}

/// A23 and N14: a rollout that waits for approval uses none of its working time.
#[test]
fn waiting_for_approval_uses_no_working_time() {
    let spec = merged(approved_waves("FirstWave"), &json!({"activeDeadlineSeconds": 60}));
    let mut scene = in_waves(&spec, &FOUR);
    all_succeed(&mut scene);
    assert!(scene.is_idle_for(&[3_600, 86_400]));
    assert_eq!((scene.condition("Failed").0, scene.condition("Ready").0), (false, false));
    scene.approve("1/1");
    for _ in 0..2 {
        all_succeed(&mut scene);
    }
    assert!(scene.condition("Complete").0, "{:?}", scene.status());
}

/// A12: an apply of the manifest reverts neither a pause nor an approval. Running pods continue.
#[test]
fn a_pause_by_annotation_lasts_until_it_is_removed() {
    let mut scene = in_waves(&json!({}), &FOUR);
    let first = only(&scene);
    scene.run(&first).pause_for("INC-7").edit(|job| job.spec.paused = None).succeed(&first);
    assert_eq!(scene.condition("Paused"), (true, "PausedByAnnotation"));
    assert!(
        scene.message("Paused").contains("dj.dysproz.io/paused is set: INC-7"),
        "{}",
        scene.message("Paused")
    );
    assert_eq!(wave(&scene), (Some(2), Some("Paused")));
    scene.retry("again").use_template("other");
    assert!(scene.is_idle_for(&[0, 3_600]));
    scene.pause_for(None);
    assert_eq!(scene.counted().len(), 1);
}

/// A27: after a retry, done nodes do not run, and the other nodes go through the waves.
#[test]
fn a_retry_runs_the_other_nodes_in_waves() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": 0}});
    let mut scene = in_waves(&policy, &FOUR);
    let first = only(&scene);
    scene.succeed(&first);
    let second = only(&scene);
    scene.fail(&second);
    assert!(scene.is_braked());
    scene.retry("again");
    assert_eq!((scene.rollout().number, wave(&scene).0), (2, Some(1)));
    assert_eq!(only(&scene), second, "the order stays, so the failed node comes first");
    scene.succeed(&second);
    assert_eq!((wave(&scene).0, scene.counted().len()), (Some(2), 1));
    while all_succeed(&mut scene) > 0 {}
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    let runs = scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some(&*first)).count();
    assert_eq!(runs, 1, "N1: a done node does not run again");
}

/// A change of the sizes keeps the number of nodes that are over. Without sizes, all nodes may start.
#[test]
fn the_user_may_change_the_sizes() {
    let mut scene = in_waves(&approved_waves("EveryWave"), &FOUR);
    let set = |scene: &mut Scene, sizes: &Value| {
        let sizes = serde_json::from_value(sizes.clone()).unwrap();
        scene.edit(|job| job.spec.rollout.as_mut().unwrap().wave_sizes = sizes);
    };
    all_succeed(&mut scene);
    scene.approve("1/1");
    assert_eq!((wave(&scene).0, scene.counted().len()), (Some(2), 1));
    set(&mut scene, &json!(["25%", 3]));
    assert_eq!((wave(&scene), scene.counted().len()), ((Some(2), Some("Nodes")), 2));
    set(&mut scene, &json!(null));
    scene.edit(|job| job.spec.rollout = None);
    assert_eq!(scene.counted().len(), 3);
    assert_eq!((wave(&scene), scene.rollout().started), ((None, None), None));
}

/// With outdatedPods Replace, a template changes while its pods run. Returns the first node whose pod is deleted.
fn replacing() -> (Scene, String) {
    let mut scene =
        Scene::begun(with(&json!({"outdatedPods": "Replace", "failurePolicy": {"type": "Pause"}})), &FOUR);
    scene.each(&FOUR, Scene::run).edit(|job| {
        job.spec.rollout = serde_json::from_value(json!({"waveSizes": [1]})).unwrap();
        job.spec.template.0["spec"]["containers"][0]["image"] = json!("other");
    });
    let terminating = scene.terminating();
    assert_eq!(terminating.len(), 1);
    let first = terminating[0].to_owned();
    (scene, first)
}

/// A21: only pods of nodes that may start are deleted.
#[test]
fn replaces_outdated_pods_of_one_wave() {
    let (mut scene, first) = replacing();
    assert_eq!(scene.after(60).terminating(), [first.as_str()]);
    scene.fail(&first);
    assert_eq!((scene.rollout().started, scene.counted().len()), (Some(1), 4));
    assert!(scene.terminating().is_empty(), "the other pods continue");
}

/// N11: the deleted pod of a dead node may stay permanently. After nodeLostAfterSeconds, another node starts.
#[test]
fn a_dead_node_does_not_hold_back_replacements() {
    let (mut scene, first) = replacing();
    scene.kill(&first).after(599);
    assert_eq!(scene.terminating(), [first.as_str()]);
    assert_eq!(scene.after(1).terminating().len(), 2);
    scene.change_leader().after(600);
    assert_eq!(scene.terminating().len(), 2, "wave 1 has one node");
}

/// A26: a node that settles keeps its slot, and is not done before it has settled.
#[test]
fn a_node_that_settles_keeps_its_slot() {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a");
    assert!(scene.is_idle_for(&[0, 59]));
    assert_eq!((scene.reason("a"), scene.status().succeeded), (Some("Settling"), Some(0)));
    let message = &scene.pending("a").message;
    assert_eq!(message, "the node must stay Ready until 2026-01-01T00:01:00Z; holds 1 of 1 slots");
    assert_eq!((wave(&scene), scene.rollout().started), ((Some(1), Some("Settling")), Some(1)));
    assert_eq!(scene.plan().again, Some(later(60)));
    assert_eq!(scene.wait(1), ["b"]);
    assert_eq!((scene.status().succeeded, scene.rollout().settled), (Some(1), Some(1)));
}

/// N7: the last node succeeds and dies. Complete does not become True and then False.
#[test]
fn is_not_complete_while_a_node_settles() {
    let mut scene = settling(&json!({"failurePolicy": {"type": "Continue"}}), &["a"]);
    scene.succeed("a").after(59);
    assert!(!scene.condition("Complete").0);
    scene.kill("a").after(601);
    assert_eq!((scene.condition("Failed"), scene.reason("a")), ((true, "NodesFailed"), Some("NodeLost")));
    scene.heal("a").after(60);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    scene.tick(1_000_000).kill("a").after(700);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"), "a node that has settled is not suspect");
}

/// A26: a node that breaks while it settles is not followed by another, and a retry does not run it.
#[test]
fn a_node_that_breaks_while_it_settles_stops_the_rollout() {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a").tick(20).kill("a");
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    assert!(scene.is_idle_for(&[599]) && !scene.is_braked());
    assert!(scene.is_idle_for(&[1]) && scene.is_braked());
    scene.heal("a");
    assert!(!scene.is_braked() && scene.is_idle_for(&[59]), "the node settles again");
    assert_eq!(scene.wait(1), ["b"]);
    let runs = scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some("a")).count();
    assert_eq!(runs, 1);
}

/// The node must be Ready without a break.
#[test]
fn a_break_begins_the_settling_again() {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a").after(50).kill("a").tick(5).heal("a");
    assert!(scene.is_idle_for(&[59]));
    assert_eq!(scene.wait(1), ["b"]);
}

/// A node that was not Ready when its pod ran gets time to become Ready.
#[test]
fn a_node_must_become_ready_to_settle() {
    let template = template(&json!({"tolerations": [{"key": NOT_READY, "operator": "Exists"}]}));
    let spec = merged(template, &json!({"rollout": {"settleSeconds": 60}}));
    let mut scene = Scene::new(cautious(&spec), &["a"]);
    scene.kill("a").after(1_000).succeed("a");
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    assert!(scene.is_idle_for(&[599]) && !scene.is_braked(), "{:?}", scene.status());
    scene.heal("a").after(60);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// N3: a node that is deleted while it settles counts as failed, unless it was leaving.
#[rstest]
#[case::deleted(false)]
#[case::left(true)]
fn a_node_that_is_deleted_while_it_settles_has_failed(#[case] is_leaving: bool) {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a");
    if is_leaving {
        scene.cordon("a");
    }
    scene.delete_node("a");
    assert_eq!(scene.is_braked(), !is_leaving, "{:?}", scene.status());
}

/// N2: a new leader lets a node settle again, but not one whose line has that it settled.
#[test]
fn a_new_leader_lets_a_node_settle_again() {
    let mut scene = settling(&json!({}), &["a", "b", "c"]);
    scene.succeed("a").after(40).change_leader();
    assert!(scene.is_idle_for(&[59]));
    assert_eq!(scene.wait(1), ["b"]);
    scene.run("b").after(301);
    assert!(scene.line("uid-a").unwrap().contains("clear=true"), "{:?}", scene.line("uid-a"));
    scene.succeed("b").change_leader().kill("a");
    assert_eq!((scene.reason("a"), scene.reason("b")), (None, Some("Settling")));
}

/// The ledger has a success before the node has settled, and its pod may be gone.
#[test]
fn a_node_settles_without_its_pod() {
    let mut scene = settling(&json!({"rollout": {"settleSeconds": 600}}), &["a", "b"]);
    scene.succeed("a").after(301);
    assert!(!scene.line("uid-a").unwrap().contains("clear"), "{:?}", scene.line("uid-a"));
    scene.world.pods.clear();
    assert!(scene.is_idle_for(&[298]));
    assert_eq!(scene.wait(1), ["b"]);
}

/// N15: a node that settles with an older template keeps its slot, and runs the new template in it.
#[test]
fn a_new_template_runs_on_the_node_that_settles() {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a").use_template("other");
    assert_eq!(scene.counted(), ["a"]);
    scene.succeed("a");
    assert!(scene.is_idle_for(&[59]));
    assert_eq!(scene.wait(1), ["b"]);
}

/// A wave is over when its nodes have settled.
#[test]
fn the_next_wave_waits_until_nodes_have_settled() {
    let rollout = json!({"waveSizes": [1, "50%"], "settleSeconds": 60});
    let mut scene = in_waves(&json!({ "rollout": rollout }), &FOUR);
    let first = only(&scene);
    scene.succeed(&first);
    assert!(scene.is_idle_for(&[59]));
    assert_eq!(wave(&scene), (Some(1), Some("Settling")));
    assert_eq!(scene.wait(1).len(), 1);
    assert_eq!(wave(&scene), (Some(2), Some("Nodes")));
}

/// Without settleSeconds, nodes that settle are done at once.
#[test]
fn the_user_may_remove_settle_seconds() {
    let mut scene = settling(&json!({}), &["a", "b"]);
    scene.succeed("a").edit(|job| job.spec.rollout = None);
    assert!(scene.has_pod("b") && scene.status().succeeded == Some(1));
}

/// Fifty nodes settle within a minute. The ledger is written at the end of the run, one write for each shard.
#[test]
fn nodes_that_settle_need_few_writes() {
    let names: Vec<String> = (0..50).map(|number| format!("n{number}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut scene = Scene::begun(with(&json!({"rollout": {"settleSeconds": 60}})), &nodes);
    scene.each(&nodes, Scene::run);
    let mut writes = 0;
    for second in 0..120 {
        if let Some(node) = nodes.get(second) {
            scene.end_unseen(node, Phase::Succeeded);
        }
        scene.tick(1);
        for _ in 0..3 {
            writes += shards(&scene.pass()).len();
        }
    }
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert!(writes <= 16, "{writes} writes");
}
