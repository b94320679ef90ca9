//! The effect of failed nodes on the rollout, with the orders of events that could let a bad template
//! continue.

use super::scene::{Scene, cautious};
use super::*;
use rstest::rstest;

const SEVEN: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const FOUR: [&str; 4] = ["a", "b", "c", "d"];

/// An event of the failed node.
fn apply_event(scene: &mut Scene, event: &str) {
    match event {
        "unhealthy" => scene.kill("a"),
        "tainted" => scene.taint("a"),
        "deselected" => scene.edit_node("a", |node| node.meta.labels = [].into()),
        "deleted" => scene.delete_node("a"),
        "cordoned" => scene.edit_node("a", |node| node.unschedulable = true),
        other => panic!("{other}"),
    }
}

fn selecting(more: &Value) -> DaemonJob {
    let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "nodeSelector": {"app": "v1"},
        "containers": [{"name": "c", "image": "i"}]}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    cautious(&spec)
}

/// C1: no later event of the failed node lets the next node run.
#[rstest]
#[case("unhealthy")]
#[case("tainted")]
#[case("deselected")]
#[case("deleted")]
#[case("cordoned")]
fn stays_stopped_after_any_event_of_the_failed_node(#[case] event: &str) {
    let mut scene = Scene::new(selecting(&json!({})), &FOUR);
    scene.passes();
    scene.fail("a");
    assert!(scene.is_braked());
    apply_event(&mut scene, event);
    assert!(scene.is_braked(), "{:?}", scene.status().conditions);
    for seconds in [60, 700, 3_600] {
        assert!(scene.wait(seconds).is_empty(), "{event} after {seconds} s");
    }
    scene.change_leader();
    assert!(scene.is_braked() && scene.passes().is_empty());
}

/// C1: Failed does not become Complete when the failed node disappears.
#[rstest]
#[case("unhealthy", true)]
#[case("tainted", true)]
#[case("cordoned", true)]
#[case("deselected", false)]
#[case("deleted", false)]
fn stays_failed_until_the_failed_node_is_gone(#[case] event: &str, #[case] stays: bool) {
    let mut scene = Scene::new(
        selecting(&json!({"failurePolicy": {"type": "Continue"}, "parallelism": null})),
        &["a", "b"],
    );
    scene.passes();
    scene.succeed("b");
    scene.fail("a");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    apply_event(&mut scene, event);
    for seconds in [60, 700] {
        scene.wait(seconds);
        assert_eq!((scene.condition("Failed").0, scene.condition("Complete").0), (stays, !stays), "{event}");
    }
}

/// A1: with the default backoffLimit a node that failed once counts when it cannot be retried.
#[rstest]
#[case("tainted", 0)]
#[case("deselected", 0)]
#[case("deleted", 0)]
#[case("unhealthy", 601)]
fn counts_a_failed_node_that_cannot_be_retried(#[case] event: &str, #[case] after: i64) {
    let mut scene = Scene::new(selecting(&json!({"backoffLimit": 6})), &FOUR);
    scene.passes();
    scene.fail("a");
    assert!(!scene.is_braked());
    assert_eq!(scene.reason("b"), Some("WaitingForTurn"), "H1: the node keeps its slot while it backs off");
    apply_event(&mut scene, event);
    assert!(scene.wait(after).is_empty());
    assert!(scene.is_braked(), "{:?}", scene.status());
    for seconds in [60, 700, 3_600] {
        assert!(scene.wait(seconds).is_empty(), "{event} after {seconds} s");
    }
    assert!(!scene.condition("Complete").0);
}

/// N10: such a failure ends when the node can be retried.
#[test]
fn retries_a_failed_node_after_its_taint_is_removed() {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6})), &FOUR);
    scene.passes();
    scene.fail("a");
    scene.taint("a");
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.is_braked());
    scene.second += 60;
    scene.untaint("a");
    assert!(!scene.is_braked());
    assert_eq!(scene.pod("a").meta.name, scene.pod("a").meta.name);
    assert!(scene.pod("a").is_counted(), "only a is retried");
    assert!(scene.world.pods.iter().all(|pod| pinned_to(pod) == Some("a")));
}

/// A2 and N3: a deleted dead node counts immediately, and a new Node with its name does not end the failure.
#[test]
fn counts_a_deleted_suspect_node_immediately() {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    assert!(!scene.is_braked());
    scene.delete_node("a");
    assert!(scene.is_braked(), "{:?}", scene.status());
    scene.create_node("a", "uid-a-2");
    assert!(scene.is_braked() && scene.passes().is_empty());
    assert!(scene.wait(7_200).is_empty());
    let message = &scene.status().conditions.iter().find(|one| one.type_ == "Paused").unwrap().message;
    assert!(message.contains("1 node failed (1 deleted), maxFailedNodes allows 0"), "{message}");
    assert!(message.contains("set spec.retryToken"), "{message}");
}

/// The ledger has the record of a deleted node before its pod is released.
#[test]
fn records_a_deleted_suspect_node_before_releasing_its_pod() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    scene.world.nodes.remove(0);
    let plan = scene.pass();
    assert!(
        written(&plan)["uid-a"].contains("outcome=NodeDeleted attempt=Disrupted/"),
        "{:?}",
        written(&plan)
    );
    assert!(released(&plan).is_empty());
    // The pod ends and is released, and one write counts the node and drops its line.
    scene.delete_node("a");
    assert!(scene.world.pods.is_empty());
    scene.wait(400);
    let line = |uid| scene.line(uid);
    assert_eq!(line("uid-a"), None);
    let gone: usize = scene.gone_lines().map(|gone| gone.count(scene.now())).sum();
    assert_eq!(gone, 1);
    assert!(scene.is_braked());
}

/// An unusable line of deleted nodes is not changed, and the rollout stays stopped.
#[test]
fn stays_stopped_with_an_unusable_line_of_deleted_nodes() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.fail("a");
    scene.delete_node("a");
    scene.wait(400);
    assert!(scene.is_braked() && scene.line("uid-a").is_none());
    let at = scene.world.ledger.iter().position(|shard| shard.gone != Ok(Gone::default())).unwrap();
    let scribble: Result<Gone, _> = "scribble".parse();
    Arc::make_mut(&mut scene.world.ledger[at]).gone = scribble.clone();
    assert!(scene.wait(4_000).is_empty());
    assert!(scene.is_braked());
    assert_eq!(scene.world.ledger[at].gone, scribble, "the line must not change");
    scene.edit(|job| job.spec.retry_token = Some("again".into()));
    scene.passes();
    assert!(!scene.is_braked() && scene.pod("b").is_counted());
}

/// The rollout stays stopped when the record of the failed node is lost.
#[test]
fn stays_stopped_when_the_record_is_lost() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.fail("a");
    scene.wait(400);
    assert!(scene.is_braked() && scene.line("uid-a").is_some());
    scene.world.pods.clear();
    scene.world.ledger.clear();
    assert!(scene.wait(4_000).is_empty());
    assert!(scene.is_braked());
    assert_eq!(scene.reason("a"), Some("RecordLost"));
    let message = &scene.status().conditions.iter().find(|one| one.type_ == "Paused").unwrap().message;
    assert!(message.contains("1 node failed (1 without a record), maxFailedNodes allows 0"), "{message}");
}

/// A6 and N10: a provisional failure pauses the rollout. It does not end the run and deletes no pod.
#[test]
fn a_lost_node_pauses_fail_fast_without_ending_the_run() {
    let policy = json!({"failurePolicy": {"type": "FailFast"}, "parallelism": 2});
    let mut scene = Scene::new(cautious(&policy), &FOUR);
    scene.passes();
    scene.run("a");
    scene.run("b");
    scene.kill("a");
    scene.wait(601);
    assert_eq!(scene.reason("a"), Some("NodeLost"));
    assert!(scene.is_braked());
    assert!(!scene.condition("Failed").0 && scene.pod("b").is_counted());
    scene.heal("a");
    assert!(!scene.is_braked());
    scene.succeed("a");
    scene.succeed("b");
    assert_eq!(scene.status().succeeded, Some(2));
}

/// FailFast ends the run after recorded failures, until a limit changes.
#[test]
fn fail_fast_stays_ended_after_the_failed_node_is_deleted() {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": {"type": "FailFast"}})), &FOUR);
    scene.passes();
    scene.fail("a");
    assert_eq!(scene.condition("Failed"), (true, "MaxFailedNodesExceeded"));
    scene.delete_node("a");
    scene.edit(|job| job.spec.parallelism = None);
    assert_eq!(
        scene.condition("Failed"),
        (true, "MaxFailedNodesExceeded"),
        "another field does not let the run continue"
    );
    assert!(!scene.condition("Complete").0);
    scene.edit(|job| {
        let policy = job.spec.failure_policy.as_mut().unwrap();
        policy.max_failed_nodes = Some(serde_json::from_value(json!(1)).unwrap());
    });
    assert_eq!(scene.world.pods.iter().filter(|pod| pod.is_counted()).count(), 3);
}

/// A10: neither a resume nor a reboot nor a new node lets the rollout continue.
#[test]
fn a_new_run_of_the_same_rollout_stays_stopped() {
    let mut scene = Scene::new(cautious(&json!({"rerunOn": ["TemplateChange", "NodeReboot"]})), &FOUR);
    scene.passes();
    scene.fail("a");
    scene.edit(|job| job.spec.suspend = Some(true));
    scene.second += 60;
    scene.edit(|job| job.spec.suspend = None);
    assert!(scene.is_braked());
    scene.edit_node("d", |node| node.boot_id = "two".into());
    scene.create_node("e", "uid-e");
    assert!(scene.is_braked() && scene.wait(7_200).is_empty());
}

/// A higher limit, another type, a new template and a new retryToken let the rollout continue.
#[rstest]
#[case("limit")]
#[case("type")]
#[case("template")]
#[case("token")]
fn continues_after_a_change_by_the_user(#[case] event: &str) {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.fail("a");
    scene.second += 60;
    let before = scene.world.pods.len();
    match event {
        "template" => scene.use_template("other"),
        "token" => scene.edit(|job| job.spec.retry_token = Some("1".into())),
        "type" => scene.edit(|job| job.spec.failure_policy = None),
        _ => scene.edit(|job| {
            let max = serde_json::from_value(json!(1)).unwrap();
            job.spec.failure_policy.as_mut().unwrap().max_failed_nodes = Some(max);
        }),
    }
    assert!(!scene.is_braked());
    assert_eq!(scene.world.pods.len(), before + 1, "{event}");
}

/// A9: the percentage is of the largest fleet, not of the present nodes.
#[test]
fn takes_the_percentage_of_the_largest_fleet() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": "50%"}, "parallelism": null});
    let mut scene = Scene::new(cautious(&policy), &FOUR);
    assert_eq!(scene.status().rollout.as_ref().unwrap().base, 4);
    scene.passes();
    scene.fail("a");
    scene.delete_node("d");
    scene.delete_node("c");
    scene.delete_node("b");
    assert_eq!(scene.status().rollout.as_ref().unwrap().base, 4);
    for name in ["e", "f", "g", "h"] {
        scene.create_node(name, name);
    }
    assert_eq!(scene.status().rollout.as_ref().unwrap().base, 5);
}

/// A7: a node that was not Ready when its pod was created is not suspect, and a tolerated taint has no
/// effect.
#[test]
fn runs_on_not_ready_nodes_that_the_template_tolerates() {
    let template = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"key": super::scene::NOT_READY, "operator": "Exists"}]}}});
    let mut scene = Scene::new(cautious(&template), &["a"]);
    scene.kill("a");
    assert!(scene.pod("a").is_counted());
    scene.delete_pod("a");
    scene.run("a");
    scene.wait(700);
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A8 and N9: daily failures of repaired nodes do not add up. Time alone does not end a stop.
#[test]
fn counts_deleted_nodes_for_a_day() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": 1}});
    let mut scene = Scene::new(cautious(&policy), &["a0"]);
    scene.passes();
    for day in 0..5 {
        let (old, new) = (format!("a{day}"), format!("a{}", day + 1));
        scene.fail(&old);
        scene.create_node(&new, &new);
        scene.delete_node(&old);
        assert!(!scene.is_braked(), "day {day}: {:?}", scene.status());
        scene.wait(24 * 3_600 + 1_800);
        assert!(scene.pod(&new).is_counted(), "day {day}");
    }
    let gone: usize = scene.gone_lines().map(|gone| gone.to_string().len()).sum();
    assert!(gone < 16 * 80, "{gone} bytes");
    // Two failures in one day stop the rollout permanently.
    scene.fail("a5");
    scene.create_node("b", "b");
    scene.delete_node("a5");
    scene.wait(60);
    scene.fail("b");
    assert!(scene.is_braked());
    scene.create_node("c", "c");
    scene.delete_node("b");
    for _ in 0..4 {
        assert!(scene.wait(20 * 3_600).is_empty());
        assert!(scene.is_braked());
    }
}

/// A18 and N7: a lost node is failed, done or not. It is never Complete first and Failed later.
#[test]
fn waits_for_a_node_that_dies_after_its_success() {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": {"type": "Continue"}})), &["a", "b"]);
    scene.passes();
    scene.succeed("a");
    scene.run("b");
    let now = scene.now();
    scene.edit_pod("b", |pod| (pod.phase, pod.finished) = (Phase::Succeeded, Some(now)));
    scene.kill("b");
    assert!(!scene.condition("Complete").0);
    assert_eq!(scene.reason("b"), Some("NotReadySinceAttempt"));
    scene.wait(601);
    assert_eq!((scene.condition("Failed"), scene.reason("b")), ((true, "NodesFailed"), Some("NodeLost")));
    assert_eq!((scene.status().succeeded, scene.status().failed), (Some(1), Some(1)));
    scene.heal("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// N2: a new leader still suspects the node. A done node that breaks weeks later is not suspect.
#[test]
fn a_node_stays_suspect_under_a_new_leader() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.finished) = (Phase::Succeeded, Some(now)));
    scene.kill("a");
    assert!(scene.wait(400).is_empty());
    assert!(!scene.line("uid-a").unwrap().contains("clear"), "{:?}", scene.line("uid-a"));
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    assert!(scene.wait(400).is_empty(), "a new leader may wait again");
    scene.wait(300);
    assert!(scene.is_braked());
    scene.heal("a");
    assert!(scene.line("uid-a").unwrap().contains("clear=true"));
    scene.succeed("b");
    assert!(scene.condition("Complete").0);
    scene.second += 1_000_000;
    scene.kill("a");
    scene.wait(700);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// N4: a remediation operator taints each dead node within seconds.
#[test]
fn a_taint_on_a_dead_node_does_not_free_its_slot() {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.taint("a");
    assert!(scene.wait(500).is_empty());
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    assert!(scene.wait(200).is_empty());
    assert!(scene.is_braked());
}

/// N5: with a job that cordons, drains and reboots its node, one node is down at a time, and no node is lost.
#[test]
fn a_job_that_cordons_and_reboots_takes_one_node_at_a_time() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    scene.edit_node("a", |node| node.unschedulable = true);
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now)));
    scene.kill("a");
    assert!(scene.wait(590).is_empty(), "the node holds its slot while it is down");
    assert!(!scene.is_braked());
    assert_eq!(scene.wait(20), ["b"], "the slot is not held permanently");
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.delete_node("a");
    assert!(!scene.is_braked());
}

/// N8: after three of four nodes die and are replaced, the replacements do not run.
#[test]
fn does_not_run_replacements_of_dead_nodes() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 3})), &FOUR);
    scene.passes();
    for name in ["a", "b", "c"] {
        scene.run(name);
    }
    for name in ["a", "b", "c"] {
        scene.kill(name);
    }
    assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
    for name in ["a", "b", "c"] {
        scene.delete_node(name);
        scene.create_node(name, &format!("{name}-2"));
    }
    assert!(scene.is_braked() && scene.wait(3_600).is_empty());
}

/// N8: during an outage of an hour no node is lost or skipped, and no condition changes.
#[test]
fn an_outage_changes_no_condition() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 1})), &FOUR);
    scene.passes();
    scene.run("a");
    for name in FOUR {
        scene.kill(name);
    }
    for _ in 0..6 {
        assert!(scene.wait(600).is_empty());
        assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
        assert!(!scene.condition("Complete").0 && !scene.condition("Failed").0);
    }
    for name in FOUR {
        scene.heal(name);
    }
    assert!(!scene.condition("Paused").0);
    scene.succeed("a");
    assert!(scene.pod("b").is_counted());
}

/// N8: nodes that were offline before the run began do not stop the rollout.
#[test]
fn runs_a_fleet_that_is_permanently_half_offline() {
    let mut scene = Scene { job: cautious(&json!({})), world: world(&FOUR, vec![]), second: 0 };
    for name in ["b", "c", "d"] {
        let at = scene.world.nodes.iter().position(|one| *one.meta.name == *name).unwrap();
        let node = Arc::make_mut(&mut scene.world.nodes[at]);
        node.ready = false;
        let taint = json!([{"key": super::scene::NOT_READY, "effect": "NoSchedule"}]);
        node.taints = serde_json::from_value(taint).unwrap();
    }
    assert_eq!(scene.passes(), ["a"]);
    scene.succeed("a");
    scene.wait(301);
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
}

/// N15: a suspect node of an older rollout holds its slot, but does not count in the newer rollout.
#[test]
fn does_not_count_a_suspect_node_of_an_older_rollout() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.use_template("other");
    assert!(scene.wait(500).is_empty(), "the node holds its slot");
    assert_eq!(scene.wait(200), ["b"]);
    assert!(!scene.is_braked());
    scene.delete_node("a");
    assert!(!scene.is_braked());
}

/// Failures are tolerated only with type Continue and within a limit that the user set.
#[rstest]
#[case(json!({"type": "Continue", "maxFailedNodes": 1}), true, "FailuresTolerated")]
#[case(json!({"type": "Continue"}), false, "NodesFailed")]
#[case(json!({"type": "Pause", "maxFailedNodes": 1}), false, "NodesFailed")]
fn tolerates_failures_within_a_limit(#[case] policy: Value, #[case] complete: bool, #[case] why: &str) {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": policy})), &["a", "b"]);
    scene.passes();
    scene.fail("a");
    scene.wait(60);
    scene.succeed("b");
    assert_eq!(scene.condition("Complete"), (complete, why));
    assert_eq!(scene.condition("Failed").0, !complete);
}

/// A node that was Ready after its pod ended is not suspect, even if the ledger does not have that yet.
#[rstest]
#[case::deleted(true)]
#[case::not_ready(false)]
fn a_node_that_was_ready_after_its_pod_is_not_suspect(#[case] is_deleted: bool) {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.succeed("a");
    assert_eq!(scene.line("uid-a"), None);
    scene.second += 60;
    if is_deleted {
        scene.delete_node("a");
    } else {
        scene.kill("a");
    }
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.succeed("b");
    assert!(scene.pod("c").is_counted(), "a holds no slot");
}

/// A10: nodes that join raise the base of a percentage, but do not let a stopped rollout continue.
#[test]
fn stays_stopped_when_nodes_join() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": "20%"}});
    let mut scene = Scene::new(cautious(&policy), &FOUR);
    scene.passes();
    scene.fail("a");
    assert!(scene.is_braked());
    scene.create_node("e", "uid-e");
    assert!(scene.is_braked() && scene.wait(60).is_empty());
}

/// The message of a run that FailFast ended has the numbers and the remedy.
#[test]
fn the_message_of_a_failed_run_has_the_remedy() {
    let mut scene = Scene::new(cautious(&json!({"failurePolicy": {"type": "FailFast"}})), &FOUR);
    scene.passes();
    scene.fail("a");
    let failed = scene.status().conditions.iter().find(|one| one.type_ == "Failed").unwrap();
    assert!(
        failed.message.contains("1 node failed, maxFailedNodes allows 0; fix the cause"),
        "{}",
        failed.message
    );
}

/// A rollout that stopped at a lost node stays stopped under a new leader.
#[test]
fn a_new_leader_stays_stopped_at_a_lost_node() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 2})), &FOUR);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.wait(601);
    scene.succeed("b");
    assert!(scene.is_braked());
    let since = scene.status().rollout.as_ref().unwrap().braked_since.clone();
    scene.change_leader();
    for seconds in [0, 300, 300, 300] {
        assert!(scene.wait(seconds).is_empty() && scene.is_braked(), "{:?}", scene.status());
    }
    assert_eq!(scene.reason("a"), Some("NodeLost"));
    assert_eq!(scene.status().rollout.as_ref().unwrap().braked_since, since);
    scene.change_leader();
    scene.heal("a");
    assert!(!scene.is_braked() && scene.pod("c").is_counted());
}

/// The same for a failed node that was unhealthy for too long.
#[test]
fn a_new_leader_stays_stopped_at_an_unhealthy_failed_node() {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6})), &FOUR);
    scene.passes();
    scene.fail("a");
    scene.kill("a");
    scene.wait(601);
    assert!(scene.is_braked());
    scene.change_leader();
    assert!(scene.wait(300).is_empty() && scene.is_braked(), "{:?}", scene.status());
}

/// An outage stops the clocks. A node that was lost before the outage stays lost.
#[test]
fn a_lost_node_stays_lost_during_an_outage() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 2})), &SEVEN);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.wait(601);
    scene.succeed("b");
    assert!(scene.is_braked());
    for name in &SEVEN[2..6] {
        scene.kill(name);
    }
    assert!(scene.wait(60).is_empty());
    for name in &SEVEN[2..6] {
        scene.heal(name);
    }
    assert!(scene.wait(60).is_empty() && scene.is_braked(), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("NodeLost"));
}

/// The time before an outage counts, and the outage does not.
#[test]
fn an_outage_stops_the_clocks() {
    let mut scene = Scene::new(cautious(&json!({"parallelism": 2})), &SEVEN);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.wait(300);
    for name in &SEVEN[2..6] {
        scene.kill(name);
    }
    assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
    scene.wait(3_600);
    for name in &SEVEN[2..6] {
        scene.heal(name);
    }
    scene.wait(299);
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    scene.wait(2);
    assert_eq!(scene.reason("a"), Some("NodeLost"));
}

/// A2: a node over its disruptionLimit counts after its Node was deleted.
#[rstest]
#[case::evicted(false)]
#[case::rejected(true)]
fn counts_a_deleted_node_over_its_disruption_limit(#[case] is_rejected: bool) {
    let mut scene = Scene::new(cautious(&json!({"disruptionLimit": 1})), &["a"]);
    scene.passes();
    for _ in 0..2 {
        scene.wait(600);
        if is_rejected {
            scene.reject("a");
        } else {
            scene.evict("a");
        }
    }
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
    scene.create_node("b", "uid-b");
    scene.delete_node("a");
    assert!(scene.is_braked() && scene.wait(3_600).is_empty(), "{:?}", scene.status());
}

/// A1: a node that failed once and whose retry does not start in time has failed.
#[rstest]
#[case::pending(false)]
#[case::rejected(true)]
fn fails_a_node_whose_retry_does_not_start(#[case] is_rejected: bool) {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6, "pendingDeadlineSeconds": 60})), &FOUR);
    scene.passes();
    scene.fail("a");
    assert_eq!(scene.wait(10), ["a"]);
    if is_rejected {
        scene.reject("a");
    }
    for _ in 0..8 {
        assert!(scene.wait(10).iter().all(|name| name == "a"));
    }
    assert!(scene.is_braked(), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.wait(3_600).is_empty() && !scene.condition("Complete").0);
}

/// The failure counts even if the manager deletes the retry or the retry is evicted.
#[test]
fn a_deleted_retry_does_not_undo_the_failure() {
    let mut scene = Scene::new(selecting(&json!({"backoffLimit": 6})), &FOUR);
    scene.passes();
    scene.fail("a");
    scene.wait(10);
    scene.run("a");
    apply_event(&mut scene, "deselected");
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Misplaced));
    assert!(scene.is_braked());
    scene.fail("a");
    assert!(scene.is_braked() && scene.wait(3_600).is_empty(), "{:?}", scene.status());
}

/// N10: one failure of six and a node that is briefly not Ready do not end the run.
#[rstest]
#[case("Continue")]
#[case("FailFast")]
#[case("Pause")]
fn retries_a_failed_node_that_was_briefly_not_ready(#[case] type_: &str) {
    let mut scene =
        Scene::new(cautious(&json!({"backoffLimit": 6, "failurePolicy": {"type": type_}})), &["a"]);
    scene.passes();
    scene.fail("a");
    scene.kill("a");
    scene.wait(20);
    assert!(!scene.condition("Failed").0 && !scene.is_braked(), "{:?}", scene.status());
    scene.heal("a");
    assert!(scene.pod("a").is_counted());
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// N4: the node holds its slot even after its pod has ended.
#[test]
fn a_taint_on_a_suspect_node_does_not_free_its_slot() {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.taint("a");
    scene.evict("a");
    assert!(scene.wait(500).is_empty());
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
}

/// If only the count of deleted nodes was in a lost shard, the rollout stays stopped.
#[test]
fn stays_stopped_when_the_count_of_deleted_nodes_is_lost() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.fail("a");
    scene.delete_node("a");
    scene.wait(400);
    assert!(scene.is_braked() && scene.gone_lines().any(|gone| !gone.is_empty()));
    scene.world.ledger.clear();
    scene.change_leader();
    assert!(scene.is_braked() && scene.wait(3_600).is_empty(), "{:?}", scene.status());
}

/// A record that was lost before the rollout stopped does not keep it stopped.
#[test]
fn continues_despite_an_older_lost_record() {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6})), &["a", "b"]);
    scene.passes();
    scene.succeed("a");
    scene.wait(400);
    scene.world.pods.retain(|pod| pinned_to(pod) != Some("a"));
    scene.world.ledger.clear();
    scene.wait(60);
    assert_eq!(scene.reason("a"), Some("RecordLost"));
    scene.second += 10;
    scene.fail("b");
    scene.taint("b");
    assert!(scene.is_braked());
    scene.untaint("b");
    assert!(!scene.is_braked(), "{:?}", scene.status());
}

/// The taint controller sets its condition on a pod that failed earlier. The failure still counts.
#[test]
fn a_failed_pod_that_is_evicted_later_stays_failed() {
    let mut scene = Scene::new(cautious(&json!({})), &FOUR);
    scene.passes();
    scene.fail("a");
    let now = scene.now();
    scene.edit_pod("a", |pod| {
        (pod.disrupted, pod.meta.deleted) = (true, Some(now));
        pod.conditions = [("DisruptionTarget".into(), "True".into())].into();
    });
    assert!(scene.wait(60).is_empty() && scene.is_braked(), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("BackoffLimitExceeded"));
}

/// A failed suspect node is in both lists: it counts as failed and holds a slot.
#[test]
fn lists_a_failed_suspect_node_as_pending_too() {
    let policy = json!({"failurePolicy": {"type": "Continue", "maxFailedNodes": 1}});
    let mut scene = Scene::new(cautious(&policy), &["a"]);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.fail("a");
    let status = scene.status();
    assert_eq!((status.failed, status.pending, scene.condition("Complete").0), (Some(1), Some(1), false));
    assert_eq!(status.pending_nodes[0].reason, "NotReadySinceAttempt");
    assert!(status.pending_nodes[0].message.ends_with("holds 1 of 1 slots"), "{status:?}");
    scene.heal("a");
    assert_eq!((scene.condition("Complete"), scene.status().pending), ((true, "FailuresTolerated"), Some(0)));
}

/// A failed node that was cordoned and dies during its retry has failed. It is not skipped.
#[test]
fn fails_a_node_that_dies_during_its_retry() {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 1})), &["a", "b"]);
    scene.edit_node("a", |node| node.unschedulable = true);
    scene.passes();
    scene.fail("a");
    assert_eq!(scene.wait(10), ["a"]);
    scene.run("a");
    scene.kill("a");
    assert!(scene.wait(601).is_empty());
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.is_braked(), "{:?}", scene.status());
    scene.heal("a");
    assert!(!scene.is_braked());
}
