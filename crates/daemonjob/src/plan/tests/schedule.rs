//! The schedule: each node runs at most once at each due time, and at no other time.

use super::*;
use crate::labels::{DUE_TIME_ANNOTATION, due_time_of};

/// The seconds from [`START`] to the first due time of [`nightly`].
const DUE: i64 = 3 * HOUR;
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// Two nodes that run at three each night.
fn nightly(more: &Value) -> Scene {
    Scene::begun(with(&merged(json!({"schedule": "0 3 * * *"}), more)), &["a", "b"])
}

/// One node at a time. The first failed node stops the rollout.
fn careful() -> Scene {
    nightly(&json!({"parallelism": 1, "backoffLimit": 0, "failurePolicy": {"type": "Pause"}}))
}

/// The time is this number of seconds after [`START`], and the manager reconciles. Returns the nodes of the created
/// pods.
fn reach(scene: &mut Scene, second: i64) -> Vec<String> {
    scene.second = second;
    scene.passes()
}

/// Both nodes succeed at the due time of this day.
fn night(scene: &mut Scene, day: i64) {
    assert_eq!(reach(scene, DUE + day * DAY), ["a", "b"], "{:?}", scene.status());
    scene.each(&["a", "b"], Scene::succeed);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// The due time of the last pod of a node.
fn due_of(scene: &Scene, node: &str) -> Option<Timestamp> {
    due_time_of(scene.pod(node))
}

/// The due times in the history, as days, and their results.
fn history(scene: &Scene) -> Vec<(i64, &str)> {
    let day = |at: Timestamp| (at.duration_since(now()).as_secs() - DUE) / DAY;
    let all = scene.status().history.iter();
    all.map(|one| (day(one.due_time.0), one.result.as_deref().unwrap_or_default())).collect()
}

#[test]
fn nothing_runs_before_the_first_due_time() {
    let mut scene = nightly(&json!({}));
    assert!(scene.is_idle_for(&[0, HOUR, HOUR]));
    assert_eq!(scene.condition("Ready"), (true, "WaitsForDueTime"));
    assert_eq!(
        scene.message("Ready"),
        "the first run begins at 2026-01-01T03:00:00Z; 0 of 2 nodes are done."
    );
    assert_eq!((scene.condition("Complete").0, scene.condition("Finished").0), (false, false));
    assert_eq!((scene.reason("a"), scene.status().skipped), (Some("WaitsForDueTime"), Some(2)));
    assert_eq!((&scene.status().start_time, scene.status().run), (&None, Some(0)));
    let schedule = scene.status().schedule.clone().unwrap();
    assert_eq!(schedule.next_due_time, Some(Time(later(DUE))));
    assert_eq!((schedule.since, schedule.last_due_time), (Some(Time(now())), None));
    assert_eq!(scene.plan().again, Some(later(scene.second + 600)), "the clock may be set forward");
    scene.second = DUE - 60;
    assert_eq!(scene.plan().again, Some(later(DUE)));
}

#[test]
fn every_node_runs_at_each_due_time() {
    let mut scene = nightly(&json!({}));
    for day in 0..3 {
        night(&mut scene, day);
        assert_eq!(due_of(&scene, "a"), Some(later(DUE + day * DAY)));
        assert_eq!(scene.rollout().due_time, Some(Time(later(DUE + day * DAY))));
        assert!(scene.message("Complete").ends_with(&format!("is {}.", later(DUE + (day + 1) * DAY))));
        assert!(scene.is_idle_for(&[60, 5 * HOUR, 10 * HOUR]));
    }
    assert_eq!(history(&scene), [(2, "Complete"), (1, "Complete"), (0, "Complete")]);
    let last = &scene.status().history[0];
    assert_eq!((last.succeeded, last.failed), (Some(2), Some(0)));
    assert!(last.end_time.is_some() && last.start_time == scene.status().start_time);
}

/// In Berlin, 02:30 does not exist on 29 March, and exists twice on 25 October.
#[test]
fn a_year_of_nights_runs_each_node_once_a_night() {
    let spec = json!({"schedule": "30 2 * * *", "timeZone": "Europe/Berlin"});
    let mut scene = Scene::begun(with(&spec), &["a", "b"]);
    let mut runs: BTreeMap<(String, Timestamp), usize> = BTreeMap::new();
    while scene.second < 365 * DAY - 6 * HOUR {
        for node in scene.wait(6 * HOUR - 7) {
            *runs.entry((node.clone(), due_of(&scene, &node).unwrap())).or_default() += 1;
            scene.succeed(&node);
        }
    }
    assert!(runs.values().all(|count| *count == 1));
    assert_eq!(runs.len(), 2 * 364);
}

/// A new leader knows the due time before a pod of it exists.
#[test]
fn writes_the_due_time_before_the_first_pod() {
    let mut scene = nightly(&json!({}));
    scene.second = DUE;
    let plan = scene.pass();
    assert!(created(&plan).is_empty());
    assert_eq!(scene.rollout().due_time, Some(Time(later(DUE))));
    assert_eq!(scene.status().schedule.as_ref().unwrap().last_due_time, Some(Time(later(DUE))));
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["DueTimeReached"]);
    assert_eq!(scene.condition("Ready"), (true, "RunsAtDueTime"));
    scene.world.clocks = Clocks::default();
    assert_eq!(created(&scene.pass()), ["a", "b"]);
    assert_eq!((scene.rollout().number, scene.status().run), (2, Some(1)));
}

#[test]
fn a_failed_node_is_retried_at_the_same_due_time() {
    let mut scene = nightly(&json!({"backoffLimit": 1}));
    reach(&mut scene, DUE);
    scene.succeed("a").fail("b");
    assert_eq!(scene.wait(10), ["b"]);
    assert_eq!(due_of(&scene, "b"), Some(later(DUE)));
    scene.fail("b");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    assert!(scene.is_idle_for(&[HOUR]));
    scene.retry("again");
    assert_eq!((scene.counted(), due_of(&scene, "b")), (vec!["b"], Some(later(DUE))));
    scene.succeed("b");
    assert_eq!((scene.condition("Complete").0, history(&scene)), (true, vec![(0, "Complete")]));
    night(&mut scene, 1);
}

/// A node that has run does not join, so it is retried even after the end of the run.
#[test]
fn a_failed_node_is_retried_after_the_run() {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    scene.succeed("b").fail("a").taint("a");
    assert_eq!(
        (scene.condition("Failed"), scene.reason("a")),
        ((true, "NodesFailed"), Some("FailedAndGone"))
    );
    scene.after(HOUR).untaint("a");
    assert_eq!((scene.counted(), due_of(&scene, "a")), (vec!["a"], Some(later(DUE))));
    scene.succeed("a");
    assert_eq!((scene.condition("Complete").0, history(&scene)), (true, vec![(0, "Complete")]));
    assert!(scene.is_idle_for(&[0, HOUR]));
}

/// A new retryToken retries failed nodes. Nodes that wait for the next due time still wait.
#[test]
fn a_retry_after_the_run_runs_only_failed_nodes() {
    let mut scene = nightly(&json!({"backoffLimit": 0}));
    scene.tick(HOUR).kill("b");
    assert_eq!(reach(&mut scene, DUE), ["a"]);
    scene.fail("a").after(HOUR).heal("b");
    assert_eq!(scene.reason("b"), Some("WaitsForDueTime"));
    scene.retry("again");
    assert_eq!((scene.counted(), scene.reason("b")), (vec!["a"], Some("WaitsForDueTime")));
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
    assert!(scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 1);
}

/// A failed node is not skipped, so the run is not complete without it.
#[test]
fn a_failed_node_waits_for_the_due_time_of_a_changed_template() {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    scene.succeed("b").fail("a").use_template("j");
    assert_eq!((scene.condition("Complete").0, scene.condition("Failed").0), (false, false));
    assert_eq!(scene.pending("a").reason, "WaitsForDueTime");
    assert!(scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 1);
    assert_eq!(history(&scene), [(1, "Complete"), (0, "Unfinished")]);
}

#[rstest]
#[case::during_the_run(60)]
#[case::after_the_run(HOUR)]
fn a_node_that_joins_waits_for_the_next_due_time(#[case] wait: i64) {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    if wait == HOUR {
        scene.each(&["a", "b"], Scene::succeed);
    }
    scene.after(wait).create_node("c", "uid-c");
    assert_eq!(scene.reason("c"), Some("WaitsForDueTime"));
    if wait < HOUR {
        scene.each(&["a", "b"], Scene::succeed);
    }
    assert_eq!((scene.condition("Complete").0, scene.condition("Ready").0), (true, true));
    assert!(scene.is_idle_for(&[0, 10 * HOUR]));
    assert_eq!(reach(&mut scene, DUE + DAY), ["a", "b", "c"]);
}

#[test]
fn a_changed_template_waits_for_the_next_due_time() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    let hash = scene.status().template_hash.clone();
    scene.after(HOUR).use_template("j");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!((scene.condition("Ready").0, scene.status().succeeded), (true, Some(2)));
    assert_eq!(scene.status().template_hash, hash);
    assert!(scene.is_idle_for(&[0, 10 * HOUR]));
    night(&mut scene, 1);
    assert_ne!(scene.status().template_hash, hash);
    assert_eq!(scene.pod("a").label(HASH_LABEL), scene.status().template_hash.as_deref());
}

/// Nodes that have not run yet wait, and the running pod is not replaced.
#[test]
fn a_template_that_changes_during_a_run_waits_too() {
    let mut scene = nightly(&json!({"parallelism": 1, "outdatedPods": "Replace"}));
    assert_eq!(reach(&mut scene, DUE), ["a"]);
    scene.run("a").after(60).use_template("j");
    assert!(scene.has_pod("a"), "the running pod finishes");
    assert_eq!(scene.reason("b"), Some("WaitsForDueTime"));
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(reach(&mut scene, DUE + DAY), ["a"]);
    scene.succeed("a").succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// The node rules of a changed template wait for the next due time too.
#[rstest]
#[case::selects_other_nodes(json!({"nodeSelector": {"app": "v2"}}), false)]
#[case::tolerates_less(json!({"tolerations": []}), true)]
fn a_changed_template_deletes_no_running_pod(#[case] pod: Value, #[case] is_tainted: bool) {
    let tolerating = json!({"tolerations": [{"operator": "Exists"}]});
    let mut scene = nightly(&template(&tolerating));
    reach(&mut scene, DUE);
    scene.succeed("b").run("a");
    if is_tainted {
        scene.edit_node("a", |node| node.taints = Box::new([taint("old", "NoExecute")]));
    }
    scene.edit(|job| job.spec.template = with(&template(&pod)).spec.template);
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert!(scene.has_pod("a") && marks(&scene.plan()).is_empty());
    scene.succeed("a");
    assert!(scene.is_idle_for(&[0, HOUR]));
}

#[test]
fn a_node_that_was_away_waits_for_the_next_due_time() {
    let mut scene = nightly(&json!({}));
    scene.tick(HOUR).kill("b");
    assert_eq!(reach(&mut scene, DUE), ["a"]);
    scene.succeed("a").after(HOUR);
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
    scene.after(6 * HOUR).heal("b");
    assert_eq!(scene.reason("b"), Some("WaitsForDueTime"));
    assert!(scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 1);
}

/// A node that recovers while the run continues still runs.
#[test]
fn a_node_that_recovers_in_time_joins_the_run() {
    let mut scene = nightly(&json!({}));
    scene.tick(HOUR).kill("b");
    reach(&mut scene, DUE);
    scene.run("a").after(HOUR).heal("b");
    assert_eq!(due_of(&scene, "b"), Some(later(DUE)));
}

#[test]
fn a_node_whose_pod_still_runs_is_due_when_it_ends() {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    scene.run("a").succeed("b");
    assert_eq!(reach(&mut scene, DUE + DAY), ["b"]);
    assert_eq!(history(&scene), [(1, ""), (0, "Unfinished")]);
    scene.succeed("b").after(HOUR).succeed("a");
    assert_eq!(due_of(&scene, "a"), Some(later(DUE + DAY)), "the first pod counts for the first night");
    scene.succeed("a");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert!(scene.is_idle_for(&[0, HOUR]));
}

/// A user removes the annotations of a pod. No pod is better than a second one.
#[test]
fn a_pod_without_its_annotations_counts_for_its_due_time() {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    scene.run("a").edit_pod("a", |pod| {
        let kept = pod.meta.annotations.iter().filter(|(key, _)| *key == NODE_NAME_ANNOTATION);
        pod.meta.annotations = kept.collect();
    });
    scene.each(&["a", "b"], Scene::succeed);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert!(scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 1);
}

#[test]
fn only_the_last_missed_due_time_begins() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    assert_eq!(reach(&mut scene, DUE + 5 * DAY + 9 * HOUR), ["a", "b"]);
    assert_eq!(due_of(&scene, "a"), Some(later(DUE + 5 * DAY)));
    scene.each(&["a", "b"], Scene::succeed);
    assert!(scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 6);
    assert_eq!(history(&scene), [(6, "Complete"), (5, "Complete"), (0, "Complete")]);
}

#[test]
fn a_due_time_is_missed_after_its_starting_deadline() {
    let mut scene = nightly(&json!({"startingDeadlineSeconds": HOUR}));
    night(&mut scene, 0);
    scene.second = DUE + 5 * DAY + HOUR + 1;
    let plan = scene.pass();
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["DueTimeMissed"]);
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(
        (scene.condition("Complete").0, history(&scene)),
        (true, vec![(5, "Missed"), (0, "Complete")])
    );
    // The deadline is about the beginning of the run, not about each pod.
    scene.edit(|job| job.spec.parallelism = Some(IntOrString::Int(1)));
    assert_eq!(reach(&mut scene, DUE + 6 * DAY + HOUR), ["a"]);
    scene.run("a").after(2 * HOUR).succeed("a");
    assert_eq!(scene.counted(), ["b"]);
}

/// A30: a schedule that is edited past a due time does not make it current.
#[rstest]
#[case::past("0 4 * * *", None)]
#[case::now("0 10 * * *", None)]
#[case::later("0 12 * * *", Some(12 * HOUR))]
fn due_times_before_a_change_do_not_begin(#[case] schedule: &str, #[case] due: Option<i64>) {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    scene.second = 10 * HOUR;
    scene.edit(|job| job.spec.schedule = Some(schedule.into()));
    assert!(scene.counted().is_empty());
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(reach(&mut scene, 12 * HOUR).len(), if due.is_some() { 2 } else { 0 });
    assert_eq!(scene.rollout().due_time, Some(Time(later(due.unwrap_or(DUE)))));
}

/// The change and the due time after it come while no manager runs.
#[test]
fn a_change_counts_from_when_the_manager_sees_it() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    scene.second = 10 * HOUR;
    scene.job.spec.time_zone = Some("Asia/Tokyo".into());
    scene.job.metadata.generation = Some(2);
    // Three o'clock in Tokyo.
    assert!(reach(&mut scene, 18 * HOUR + 60).is_empty());
    assert_eq!(reach(&mut scene, 42 * HOUR), ["a", "b"]);
}

#[test]
fn due_times_during_a_suspend_do_not_count() {
    let mut scene = nightly(&json!({}));
    scene.tick(HOUR).suspend();
    assert!(reach(&mut scene, DUE).is_empty());
    scene.second = 5 * HOUR;
    scene.resume();
    assert!(scene.counted().is_empty());
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(scene.condition("Ready"), (true, "WaitsForDueTime"));
    night(&mut scene, 1);
}

#[test]
fn a_resume_continues_the_run_of_the_last_due_time() {
    let mut scene = nightly(&json!({}));
    reach(&mut scene, DUE);
    scene.succeed("a").run("b").after(60).suspend();
    scene.end_unseen("b", Phase::Failed).passes();
    scene.after(HOUR).resume();
    assert_eq!((scene.counted(), due_of(&scene, "b")), (vec!["b"], Some(later(DUE))));
    scene.succeed("b").after(HOUR).suspend().after(HOUR).resume();
    assert!(scene.counted().is_empty() && scene.is_idle_for(&[0, HOUR]));
    night(&mut scene, 1);
}

/// A pause only delays the beginning, within the deadline.
#[rstest]
#[case::without_a_deadline(json!(null), true)]
#[case::within_the_deadline(json!(2 * HOUR), true)]
#[case::after_the_deadline(json!(HOUR), false)]
fn a_pause_delays_a_due_time(#[case] deadline: Value, #[case] begins: bool) {
    let mut scene = nightly(&json!({"startingDeadlineSeconds": deadline}));
    scene.tick(HOUR).pause_for("incident");
    assert!(reach(&mut scene, DUE).is_empty());
    let until = deadline.as_i64().map_or(DUE + DAY, |deadline| DUE + deadline + 1);
    scene.second = until - 1;
    assert_eq!(scene.plan().again, Some(later(until)));
    scene.second = DUE + 2 * HOUR;
    scene.pause_for(None);
    assert_eq!(scene.counted().len(), if begins { 2 } else { 0 });
    let expected = if begins { (0, "") } else { (0, "Missed") };
    assert_eq!(history(&scene), [expected]);
}

/// N9: the next due time neither begins nor lets the rollout continue, and time alone changes nothing.
#[test]
fn no_due_time_begins_while_failed_nodes_stop_the_rollout() {
    let mut scene = careful();
    reach(&mut scene, DUE);
    scene.fail("a");
    for day in 1..4 {
        scene.second = DUE + day * DAY;
        let plan = scene.pass();
        assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["DueTimeHeld"]);
        assert!(scene.stays_braked(&[0, HOUR]));
        scene.change_leader();
    }
    assert_eq!(history(&scene), [(3, "Held"), (2, "Held"), (1, "Held"), (0, "")]);
    scene.retry("fixed");
    assert_eq!((scene.counted(), due_of(&scene, "a")), (vec!["a"], Some(later(DUE))));
    scene.succeed("a").succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!(reach(&mut scene, DUE + 4 * DAY), ["a"]);
}

#[test]
fn a_changed_template_lets_the_next_due_time_begin() {
    let mut scene = careful();
    reach(&mut scene, DUE);
    scene.fail("a").after(HOUR).use_template("j");
    assert!(scene.stays_braked(&[0, HOUR]), "the template changes with the next due time");
    assert_eq!(reach(&mut scene, DUE + DAY), ["a"]);
    assert!(!scene.is_braked());
}

/// A fleet in which one node fails each night is not stopped.
#[test]
fn continue_begins_each_due_time() {
    let mut scene = nightly(&json!({"backoffLimit": 0}));
    for day in 0..3 {
        assert_eq!(reach(&mut scene, DUE + day * DAY), ["a", "b"]);
        scene.fail("a").succeed("b");
        assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    }
}

#[test]
fn a_failed_wave_holds_the_next_due_time() {
    let policy = json!({"type": "Pause", "maxFailedNodes": 1});
    let mut scene =
        nightly(&json!({"backoffLimit": 0, "failurePolicy": policy, "rollout": {"waveSizes": [1]}}));
    let first = reach(&mut scene, DUE);
    scene.fail(&first[0]);
    assert_eq!(scene.condition("Paused"), (true, "WaveFailed"));
    assert!(reach(&mut scene, DUE + DAY).is_empty());
    assert_eq!(history(&scene), [(1, "Held"), (0, "")]);
}

/// N1: neither a retryToken nor the removal of the schedule makes a done node undone.
#[test]
fn done_nodes_stay_done_without_the_schedule() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    let number = scene.rollout().number;
    scene.after(HOUR).edit(|job| job.spec.schedule = None);
    assert_eq!((scene.rollout().number, scene.condition("Complete").0), (number, true));
    assert!(scene.status().schedule.is_none() && scene.status().history.is_empty());
    assert!(scene.is_idle_for(&[0, 2 * DAY]));
    scene.retry("again");
    assert!(scene.is_idle_for(&[0, HOUR]));
    scene.edit(|job| job.spec.schedule = Some("0 3 * * *".into())).retry("once again");
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    night(&mut scene, 3);
}

/// Without the schedule, the nodes that waited for a due time run.
#[test]
fn nodes_that_wait_run_when_the_schedule_is_removed() {
    let mut scene = nightly(&json!({}));
    scene.after(HOUR).edit(|job| job.spec.schedule = None);
    assert_eq!(scene.counted(), ["a", "b"]);
    assert!(scene.pod("a").meta.annotations.get(DUE_TIME_ANNOTATION).is_none());
}

/// Running pods of a DaemonJob that gets a schedule finish. Other nodes wait.
#[test]
fn nodes_wait_when_a_schedule_is_added() {
    let mut scene = Scene::begun(with(&json!({"parallelism": 1})), &["a", "b"]);
    scene.run("a").edit(|job| job.spec.schedule = Some("0 3 * * *".into()));
    assert_eq!((scene.counted(), scene.reason("b")), (vec!["a"], Some("WaitsForDueTime")));
    scene.succeed("a");
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(reach(&mut scene, DUE), ["a"]);
}

#[test]
fn a_clock_that_is_set_back_repeats_no_due_time() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    for second in [DUE - 1_200, DUE, DUE + 60] {
        assert!(reach(&mut scene, second).is_empty(), "{second}");
    }
    // Another leader, whose clock is ten minutes behind.
    scene.second = DUE + DAY;
    scene.passes();
    scene.each(&["a", "b"], Scene::succeed);
    scene.second -= 600;
    scene.change_leader();
    assert!(scene.is_idle_for(&[0, 600, 60]));
    night(&mut scene, 2);
}

/// A clock that was ahead began the run of a far due time. The user removes the schedule and sets it again.
#[test]
fn a_clock_that_was_ahead_leaves_no_node_out() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 400);
    scene.second = HOUR;
    assert!(scene.is_idle_for(&[0, DAY]), "the clock has not passed the last due time");
    scene.edit(|job| job.spec.schedule = None);
    scene.edit(|job| job.spec.schedule = Some("0 3 * * *".into()));
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    night(&mut scene, 2);
    night(&mut scene, 3);
}

/// A pod that has started is an attempt, so the success before it does not count.
#[test]
fn a_node_is_not_done_while_a_pod_of_a_removed_schedule_runs() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    reach(&mut scene, DUE + DAY);
    scene.run("a").edit(|job| job.spec.schedule = None);
    assert_eq!((scene.status().succeeded, scene.counted()), (Some(1), vec!["a", "b"]));
    scene.fail("a");
    assert_eq!(scene.status().succeeded, Some(1));
    scene.after(HOUR).succeed("a").succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// Pods and ledger have the due time too.
#[test]
fn a_lost_status_repeats_no_due_time() {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    reach(&mut scene, DUE + DAY);
    scene.succeed("a").run("b");
    scene.job.status = None;
    assert!(scene.is_idle_for(&[0, HOUR]));
    assert_eq!(
        (scene.counted(), scene.rollout().due_time.clone()),
        (vec!["b"], Some(Time(later(DUE + DAY))))
    );
    scene.succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    night(&mut scene, 2);
}

#[rstest]
#[case::schedule("0 3 * *", None, "five fields")]
#[case::zone("0 3 * * *", Some("Europe/Atlantis"), "Europe/Atlantis")]
#[case::never("0 0 30 2 *", None, "no due time within five years")]
fn an_invalid_schedule_creates_no_pods(
    #[case] schedule: &str,
    #[case] zone: Option<&str>,
    #[case] words: &str,
) {
    let mut scene = nightly(&json!({}));
    night(&mut scene, 0);
    scene.after(HOUR).edit(|job| {
        (job.spec.schedule, job.spec.time_zone) = (Some(schedule.into()), zone.map(str::to_owned));
    });
    assert_eq!(scene.condition("ScheduleInvalid"), (true, "ScheduleInvalid"));
    assert!(scene.message("ScheduleInvalid").contains(words), "{}", scene.message("ScheduleInvalid"));
    assert_eq!((scene.condition("Ready").0, scene.condition("Stalled").0), (false, true));
    assert!(scene.is_idle_for(&[0, 3 * DAY]));
    assert_eq!(scene.plan().again, None);
    scene.edit(|job| (job.spec.schedule, job.spec.time_zone) = (Some("0 3 * * *".into()), None));
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert!(!scene.condition("ScheduleInvalid").0 && scene.is_idle_for(&[0]));
    night(&mut scene, 4);
}
