//! The effect of failed nodes on the rollout, with the orders of events that could let a bad template
//! continue.

use super::*;

const SEVEN: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

fn selecting(more: &Value, nodes: &[&str]) -> Scene {
    Scene::cautious_with(&merged(template(&json!({"nodeSelector": {"app": "v1"}})), more), nodes)
}

/// C1: no later event of the failed node lets the next node run.
#[rstest]
#[case::unhealthy(Scene::kill)]
#[case::tainted(Scene::taint)]
#[case::deselected(Scene::deselect)]
#[case::deleted(Scene::delete_node)]
#[case::cordoned(Scene::cordon)]
fn stays_stopped_after_any_event_of_the_failed_node(#[case] event: Event) {
    let mut scene = selecting(&json!({}), &FOUR);
    scene.fail("a");
    assert!(scene.is_braked());
    event(&mut scene, "a");
    assert!(scene.stays_braked(&[60, 700, 3_600]), "{:?}", scene.status());
    scene.change_leader();
    assert!(scene.stays_braked(&[0]));
}

/// C1: Failed does not become Complete when the failed node disappears.
#[rstest]
#[case::unhealthy(Scene::kill, true)]
#[case::tainted(Scene::taint, true)]
#[case::cordoned(Scene::cordon, true)]
#[case::deselected(Scene::deselect, false)]
#[case::deleted(Scene::delete_node, false)]
fn stays_failed_until_the_failed_node_is_gone(#[case] event: Event, #[case] stays: bool) {
    let mut scene =
        selecting(&json!({"failurePolicy": {"type": "Continue"}, "parallelism": null}), &["a", "b"]);
    scene.succeed("b").fail("a");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    event(&mut scene, "a");
    for seconds in [60, 700] {
        scene.wait(seconds);
        assert_eq!((scene.condition("Failed").0, scene.condition("Complete").0), (stays, !stays));
    }
}

/// A1: with the default backoffLimit a node that failed once counts when it cannot be retried.
#[rstest]
#[case::tainted(Scene::taint, 0)]
#[case::deselected(Scene::deselect, 0)]
#[case::deleted(Scene::delete_node, 0)]
#[case::unhealthy(Scene::kill, 601)]
fn counts_a_failed_node_that_cannot_be_retried(#[case] event: Event, #[case] after: i64) {
    let mut scene = selecting(&json!({"backoffLimit": 6}), &FOUR);
    scene.fail("a");
    assert!(!scene.is_braked());
    assert_eq!(scene.reason("b"), Some("WaitingForTurn"), "H1: the node keeps its slot while it backs off");
    event(&mut scene, "a");
    assert!(scene.is_idle_for(&[after]));
    assert!(scene.stays_braked(&[60, 700, 3_600]), "{:?}", scene.status());
    assert!(!scene.condition("Complete").0);
}

/// N10: such a failure ends when the node can be retried.
#[test]
fn retries_a_failed_node_after_its_taint_is_removed() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6}), &FOUR);
    scene.fail("a").taint("a");
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.is_braked());
    scene.tick(60).untaint("a");
    assert!(!scene.is_braked());
    assert!(scene.has_pod("a"), "only a is retried");
    assert!(scene.world.pods.iter().all(|pod| pinned_to(pod) == Some("a")));
}

/// A2 and N3: a deleted dead node counts immediately, and a new Node with its name does not end the failure.
#[test]
fn counts_a_deleted_suspect_node_immediately() {
    let mut scene = Scene::cautious(&FOUR);
    scene.run("a").kill("a");
    assert!(!scene.is_braked());
    scene.delete_node("a");
    assert!(scene.is_braked(), "{:?}", scene.status());
    scene.create_node("a", "uid-a-2");
    assert!(scene.stays_braked(&[0, 7_200]));
    let message = scene.message("Paused");
    assert!(message.contains("1 node failed (1 deleted), maxFailedNodes allows 0"), "{message}");
    assert!(message.contains("set spec.retryToken"), "{message}");
}

/// The ledger has the record of a deleted node before its pod is released.
#[test]
fn records_a_deleted_suspect_node_before_releasing_its_pod() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a");
    scene.world.nodes.remove(0);
    let plan = scene.pass();
    let line = &written(&plan)["uid-a"];
    assert!(line.contains("outcome=NodeDeleted attempt=Disrupted/"), "{line}");
    assert!(released(&plan).is_empty());
    // The pod ends and is released, and one write counts the node and drops its line.
    scene.delete_node("a");
    assert!(scene.world.pods.is_empty());
    scene.wait(400);
    assert_eq!(scene.line("uid-a"), None);
    let gone: usize = scene.gone_lines().map(|gone| gone.count(scene.now())).sum();
    assert_eq!(gone, 1);
    assert!(scene.is_braked());
}

/// An unusable line of deleted nodes is not changed, and the rollout stays stopped.
#[test]
fn stays_stopped_with_an_unusable_line_of_deleted_nodes() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.fail("a").delete_node("a").after(400);
    assert!(scene.is_braked() && scene.line("uid-a").is_none());
    let at = scene.world.ledger.iter().position(|shard| shard.gone != Ok(Gone::default())).unwrap();
    let scribble: Result<Gone, _> = "scribble".parse();
    Arc::make_mut(&mut scene.world.ledger[at]).gone = scribble.clone();
    assert!(scene.stays_braked(&[4_000]));
    assert_eq!(scene.world.ledger[at].gone, scribble, "the line must not change");
    scene.retry("again");
    assert!(!scene.is_braked() && scene.has_pod("b"));
}

/// The rollout stays stopped when the record of the failed node is lost.
#[test]
fn stays_stopped_when_the_record_is_lost() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.fail("a").after(400);
    assert!(scene.is_braked() && scene.line("uid-a").is_some());
    scene.world.pods.clear();
    scene.world.ledger.clear();
    assert!(scene.stays_braked(&[4_000]));
    assert_eq!(scene.reason("a"), Some("RecordLost"));
    let message = scene.message("Paused");
    assert!(message.contains("1 node failed (1 without a record), maxFailedNodes allows 0"), "{message}");
}

/// A6 and N10: a provisional failure pauses the rollout. It does not end the run and deletes no pod.
#[test]
fn a_lost_node_pauses_fail_fast_without_ending_the_run() {
    let policy = json!({"failurePolicy": {"type": "FailFast"}, "parallelism": 2});
    let mut scene = Scene::cautious_with(&policy, &FOUR);
    scene.run("a").run("b").kill("a").after(601);
    assert_eq!(scene.reason("a"), Some("NodeLost"));
    assert!(scene.is_braked());
    assert!(!scene.condition("Failed").0 && scene.has_pod("b"));
    scene.heal("a");
    assert!(!scene.is_braked());
    scene.succeed("a").succeed("b");
    assert_eq!(scene.status().succeeded, Some(2));
}

/// FailFast ends the run after recorded failures, until the policy changes. The message has the remedy.
#[rstest]
#[case::another_limit(|job: &mut DaemonJob| tolerate(job, 1))]
#[case::no_policy(|job: &mut DaemonJob| job.spec.failure_policy = None)]
fn fail_fast_stays_ended_until_the_policy_changes(#[case] change: fn(&mut DaemonJob)) {
    let ended = (true, "MaxFailedNodesExceeded");
    let mut scene = Scene::cautious_with(&json!({"failurePolicy": {"type": "FailFast"}}), &FOUR);
    scene.fail("a");
    assert_eq!(scene.condition("Failed"), ended);
    let message = scene.message("Failed");
    assert!(message.contains("1 node failed, maxFailedNodes allows 0; fix the cause"), "{message}");
    scene.delete_node("a").edit(|job| job.spec.parallelism = None);
    assert_eq!(scene.condition("Failed"), ended, "another field does not let the run continue");
    assert!(!scene.condition("Complete").0);
    assert!(scene.after(900).pass().steps.is_empty());
    scene.edit(change);
    assert_eq!(scene.counted(), ["b", "c", "d"]);
}

/// A10: neither a resume nor a reboot nor a new node lets the rollout continue, even if the new node raises the
/// base of a percentage.
#[rstest]
#[case::none(json!({"type": "Pause"}))]
#[case::percentage(json!({"type": "Pause", "maxFailedNodes": "20%"}))]
fn a_new_run_of_the_same_rollout_stays_stopped(#[case] policy: Value) {
    let spec = json!({"rerunOn": ["TemplateChange", "NodeReboot"], "failurePolicy": policy});
    let mut scene = Scene::cautious_with(&spec, &FOUR);
    scene.fail("a").suspend().tick(60).resume();
    assert!(scene.is_braked());
    scene.edit_node("d", |node| node.boot_id = "two".into()).create_node("e", "uid-e");
    assert!(scene.stays_braked(&[60, 7_200]));
}

/// A higher limit, another type, a new template and a new retryToken let the rollout continue.
#[rstest]
#[case::limit(|job: &mut DaemonJob| tolerate(job, 1))]
#[case::type_(|job: &mut DaemonJob| job.spec.failure_policy = None)]
#[case::template(|job: &mut DaemonJob| job.spec.template.0["spec"]["containers"][0]["image"] = json!("other"))]
#[case::token(|job: &mut DaemonJob| job.spec.retry_token = Some("1".into()))]
fn continues_after_a_change_by_the_user(#[case] change: fn(&mut DaemonJob)) {
    let mut scene = Scene::cautious(&FOUR);
    scene.fail("a").tick(60);
    let before = scene.world.pods.len();
    scene.edit(change);
    assert!(!scene.is_braked());
    assert_eq!(scene.world.pods.len(), before + 1);
}

/// A9: the percentage is of the largest fleet, not of the present nodes.
#[test]
fn takes_the_percentage_of_the_largest_fleet() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": "50%"}, "parallelism": null});
    let mut scene = Scene::cautious_with(&policy, &FOUR);
    assert_eq!(scene.rollout().base, 4);
    scene.fail("a").each(&["d", "c", "b"], Scene::delete_node);
    assert_eq!(scene.rollout().base, 4);
    scene.each(&["e", "f", "g", "h"], |scene, name| scene.create_node(name, name));
    assert_eq!(scene.rollout().base, 5);
}

/// A7: a node that was not Ready when its pod was created is not suspect, and a tolerated taint has no
/// effect.
#[test]
fn runs_on_not_ready_nodes_that_the_template_tolerates() {
    let template = template(&json!({"tolerations": [{"key": NOT_READY, "operator": "Exists"}]}));
    let mut scene = Scene::new(cautious(&template), &["a"]);
    scene.kill("a");
    assert!(scene.has_pod("a"));
    scene.delete_pod("a").run("a").after(700);
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// A8 and N9: daily failures of repaired nodes do not add up. Time alone does not end a stop.
#[test]
fn counts_deleted_nodes_for_a_day() {
    let policy = json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": 1}});
    let mut scene = Scene::cautious_with(&policy, &["a0"]);
    for day in 0..5 {
        let (old, new) = (format!("a{day}"), format!("a{}", day + 1));
        scene.fail(&old).create_node(&new, &new).delete_node(&old);
        assert!(!scene.is_braked(), "day {day}: {:?}", scene.status());
        scene.wait(24 * 3_600 + 1_800);
        assert!(scene.has_pod(&new), "day {day}");
    }
    let gone: usize = scene.gone_lines().map(|gone| gone.to_string().len()).sum();
    assert!(gone < 16 * 80, "{gone} bytes");
    // Two failures in one day stop the rollout permanently.
    scene.fail("a5").create_node("b", "b").delete_node("a5").after(60).fail("b");
    assert!(scene.is_braked());
    scene.create_node("c", "c").delete_node("b");
    assert!(scene.stays_braked(&[20 * 3_600; 4]));
}

/// A18 and N7: a lost node is failed, done or not. It is never Complete first and Failed later.
#[test]
fn waits_for_a_node_that_dies_after_its_success() {
    let mut scene = Scene::cautious_with(&json!({"failurePolicy": {"type": "Continue"}}), &["a", "b"]);
    scene.succeed("a").run("b").end_unseen("b", Phase::Succeeded).kill("b");
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
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a").end_unseen("a", Phase::Succeeded).kill("a");
    assert!(scene.is_idle_for(&[400]));
    assert!(!scene.line("uid-a").unwrap().contains("clear"), "{:?}", scene.line("uid-a"));
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    assert!(scene.is_idle_for(&[400]), "a new leader may wait again");
    scene.wait(300);
    assert!(scene.is_braked());
    scene.heal("a");
    assert!(scene.line("uid-a").unwrap().contains("clear=true"));
    scene.succeed("b");
    assert!(scene.condition("Complete").0);
    scene.tick(1_000_000).kill("a").after(700);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// N4: a remediation operator taints each dead node within seconds. The node holds its slot even after its
/// pod has ended.
#[rstest]
#[case::runs(false)]
#[case::ended(true)]
fn a_taint_on_a_dead_node_does_not_free_its_slot(#[case] has_ended: bool) {
    let mut scene = Scene::cautious(&FOUR);
    scene.run("a").kill("a").taint("a");
    if has_ended {
        scene.evict("a");
    }
    assert!(scene.is_idle_for(&[500]));
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    if !has_ended {
        assert!(scene.is_idle_for(&[200]));
        assert!(scene.is_braked());
    }
}

/// N5: with a job that cordons, drains and reboots its node, one node is down at a time, and no node is lost.
#[test]
fn a_job_that_cordons_and_reboots_takes_one_node_at_a_time() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a").cordon("a").evict_unseen("a").kill("a");
    assert!(scene.is_idle_for(&[590]), "the node holds its slot while it is down");
    assert!(!scene.is_braked());
    assert_eq!(scene.wait(20), ["b"], "the slot is not held permanently");
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.delete_node("a");
    assert!(!scene.is_braked());
}

/// N8: after three of four nodes die and are replaced, the replacements do not run.
#[test]
fn does_not_run_replacements_of_dead_nodes() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 3}), &FOUR);
    scene.each(&FOUR[..3], Scene::run).each(&FOUR[..3], Scene::kill);
    assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
    for name in &FOUR[..3] {
        scene.delete_node(name).create_node(name, &format!("{name}-2"));
    }
    assert!(scene.stays_braked(&[3_600]));
}

/// N8: during an outage of an hour no node is lost or skipped, and no condition changes.
#[test]
fn an_outage_changes_no_condition() {
    let mut scene = Scene::cautious(&FOUR);
    scene.run("a").each(&FOUR, Scene::kill);
    for _ in 0..6 {
        assert!(scene.is_idle_for(&[600]));
        assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
        assert!(!scene.condition("Complete").0 && !scene.condition("Failed").0);
    }
    scene.each(&FOUR, Scene::heal);
    assert!(!scene.condition("Paused").0);
    scene.succeed("a");
    assert!(scene.has_pod("b"));
}

/// N8: nodes that were offline before the run began do not stop the rollout.
#[test]
fn runs_a_fleet_that_is_permanently_half_offline() {
    let mut scene = Scene::unseen(cautious(&json!({})), &FOUR);
    scene.each(&FOUR[1..], Scene::kill_unseen);
    assert_eq!(scene.passes(), ["a"]);
    scene.succeed("a").after(301);
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
}

/// N15: a suspect node of an older rollout holds its slot, but does not count in the newer rollout.
#[test]
fn does_not_count_a_suspect_node_of_an_older_rollout() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.run("a").kill("a").use_template("other");
    assert!(scene.is_idle_for(&[500]), "the node holds its slot");
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
    let mut scene = Scene::cautious_with(&json!({"failurePolicy": policy}), &["a", "b"]);
    scene.fail("a").after(60).succeed("b");
    assert_eq!(scene.condition("Complete"), (complete, why));
    assert_eq!(scene.condition("Failed").0, !complete);
}

/// A node that was Ready after its pod ended is not suspect, even if the ledger does not have that yet.
#[rstest]
#[case::deleted(Scene::delete_node)]
#[case::not_ready(Scene::kill)]
fn a_node_that_was_ready_after_its_pod_is_not_suspect(#[case] event: Event) {
    let mut scene = Scene::cautious(&FOUR);
    scene.succeed("a");
    assert_eq!(scene.line("uid-a"), None);
    event(scene.tick(60), "a");
    assert!(!scene.is_braked(), "{:?}", scene.status());
    scene.succeed("b");
    assert!(scene.has_pod("c"), "a holds no slot");
}

/// A rollout that stopped at a lost node stays stopped under a new leader.
#[test]
fn a_new_leader_stays_stopped_at_a_lost_node() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 2}), &FOUR);
    scene.run("a").kill("a").after(601).succeed("b");
    assert!(scene.is_braked());
    let since = scene.rollout().braked_since.clone();
    scene.change_leader();
    assert!(scene.stays_braked(&[0, 300, 300, 300]), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("NodeLost"));
    assert_eq!(scene.rollout().braked_since, since);
    scene.change_leader().heal("a");
    assert!(!scene.is_braked() && scene.has_pod("c"));
}

/// The same for a failed node that was unhealthy for too long.
#[test]
fn a_new_leader_stays_stopped_at_an_unhealthy_failed_node() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6}), &FOUR);
    scene.fail("a").kill("a").after(601);
    assert!(scene.is_braked());
    scene.change_leader();
    assert!(scene.stays_braked(&[300]), "{:?}", scene.status());
}

/// An outage stops the clocks. A node that was lost before the outage stays lost.
#[test]
fn a_lost_node_stays_lost_during_an_outage() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 2}), &SEVEN);
    scene.run("a").kill("a").after(601).succeed("b");
    assert!(scene.is_braked());
    scene.each(&SEVEN[2..6], Scene::kill);
    assert!(scene.is_idle_for(&[60]));
    scene.each(&SEVEN[2..6], Scene::heal);
    assert!(scene.stays_braked(&[60]), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("NodeLost"));
}

/// The time before an outage counts, and the outage does not.
#[test]
fn an_outage_stops_the_clocks() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 2}), &SEVEN);
    scene.run("a").kill("a").after(300).each(&SEVEN[2..6], Scene::kill);
    assert_eq!(scene.condition("Paused"), (true, "FleetUnhealthy"));
    scene.after(3_600).each(&SEVEN[2..6], Scene::heal).after(299);
    assert_eq!(scene.reason("a"), Some("NotReadySinceAttempt"));
    scene.wait(2);
    assert_eq!(scene.reason("a"), Some("NodeLost"));
}

/// A2: a node over its disruptionLimit counts after its Node was deleted.
#[rstest]
#[case::evicted(Scene::evict)]
#[case::rejected(Scene::reject)]
fn counts_a_deleted_node_over_its_disruption_limit(#[case] disrupt: Event) {
    let mut scene = Scene::cautious_with(&json!({"disruptionLimit": 1}), &["a"]);
    for _ in 0..2 {
        disrupt(scene.after(600), "a");
    }
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
    scene.create_node("b", "uid-b").delete_node("a");
    assert!(scene.stays_braked(&[3_600]), "{:?}", scene.status());
}

/// A1: a node that failed once and whose retry does not start in time has failed.
#[rstest]
#[case::pending(false)]
#[case::rejected(true)]
fn fails_a_node_whose_retry_does_not_start(#[case] is_rejected: bool) {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6, "pendingDeadlineSeconds": 60}), &FOUR);
    scene.fail("a");
    assert_eq!(scene.wait(10), ["a"]);
    if is_rejected {
        scene.reject("a");
    }
    for _ in 0..8 {
        assert!(scene.wait(10).iter().all(|name| name == "a"));
    }
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.stays_braked(&[3_600]) && !scene.condition("Complete").0, "{:?}", scene.status());
}

/// The failure counts even if the manager deletes the retry or the retry is evicted.
#[test]
fn a_deleted_retry_does_not_undo_the_failure() {
    let mut scene = selecting(&json!({"backoffLimit": 6}), &FOUR);
    scene.fail("a").after(10).run("a").deselect("a");
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Misplaced));
    assert!(scene.is_braked());
    scene.fail("a");
    assert!(scene.stays_braked(&[3_600]), "{:?}", scene.status());
}

/// N10: one failure of six and a node that is briefly not Ready do not end the run.
#[rstest]
fn retries_a_failed_node_that_was_briefly_not_ready(#[values("Continue", "FailFast", "Pause")] type_: &str) {
    let mut scene =
        Scene::cautious_with(&json!({"backoffLimit": 6, "failurePolicy": {"type": type_}}), &["a"]);
    scene.fail("a").kill("a").after(20);
    assert!(!scene.condition("Failed").0 && !scene.is_braked(), "{:?}", scene.status());
    scene.heal("a");
    assert!(scene.has_pod("a"));
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// If only the count of deleted nodes was in a lost shard, the rollout stays stopped.
#[test]
fn stays_stopped_when_the_count_of_deleted_nodes_is_lost() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.fail("a").delete_node("a").after(400);
    assert!(scene.is_braked() && scene.gone_lines().any(|gone| !gone.is_empty()));
    scene.world.ledger.clear();
    scene.change_leader();
    assert!(scene.stays_braked(&[3_600]), "{:?}", scene.status());
}

/// A record that was lost before the rollout stopped does not keep it stopped.
#[test]
fn continues_despite_an_older_lost_record() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6}), &["a", "b"]);
    scene.succeed("a").after(400);
    scene.world.pods.retain(|pod| pinned_to(pod) != Some("a"));
    scene.world.ledger.clear();
    scene.wait(60);
    assert_eq!(scene.reason("a"), Some("RecordLost"));
    scene.tick(10).fail("b").taint("b");
    assert!(scene.is_braked());
    scene.untaint("b");
    assert!(!scene.is_braked(), "{:?}", scene.status());
}

/// The taint controller sets its condition on a pod that failed earlier. The failure still counts.
#[test]
fn a_failed_pod_that_is_evicted_later_stays_failed() {
    let mut scene = Scene::cautious(&FOUR);
    let now = scene.fail("a").now();
    scene.edit_pod("a", |pod| {
        (pod.disrupted, pod.meta.deleted) = (true, Some(now));
        pod.conditions = [("DisruptionTarget".into(), "True".into())].into();
    });
    assert!(scene.is_idle_for(&[60]) && scene.is_braked(), "{:?}", scene.status());
    assert_eq!(scene.reason("a"), Some("BackoffLimitExceeded"));
}

/// A failed suspect node is in both lists: it counts as failed and holds a slot.
#[test]
fn lists_a_failed_suspect_node_as_pending_too() {
    let policy = json!({"failurePolicy": {"type": "Continue", "maxFailedNodes": 1}});
    let mut scene = Scene::cautious_with(&policy, &["a"]);
    scene.run("a").kill("a").fail("a");
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
    scene.cordon("a").fail("a");
    assert_eq!(scene.wait(10), ["a"]);
    scene.run("a").kill("a");
    assert!(scene.is_idle_for(&[601]));
    assert_eq!(scene.reason("a"), Some("FailedAndGone"));
    assert!(scene.is_braked(), "{:?}", scene.status());
    scene.heal("a");
    assert!(!scene.is_braked());
}
