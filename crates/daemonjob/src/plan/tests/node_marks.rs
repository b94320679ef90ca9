//! Marks of nodes after a success: once for each success, and never after a change by an administrator.

use super::*;
use crate::mark_prefixes::Permitted;

const RAW: &str = "example.com/raw";
const READY: &str = "example.com/ready";

fn on_success() -> Value {
    json!({"labels": {READY: "yes"}, "removeTaints": [{"key": RAW, "effect": "NoSchedule"}]})
}

fn allow(scene: &mut Scene) -> &mut Scene {
    let prefixes: [Box<str>; 1] = ["example.com/".into()];
    scene.world.permitted_marks = Permitted::Prefixes(prefixes.into());
    scene
}

/// A DaemonJob that prepares nodes. They have a taint from their creation.
fn preparing(more: &Value, nodes: &[&str]) -> Scene {
    let tolerations = json!([{"key": RAW, "operator": "Exists"}]);
    let spec = merged(template(&json!({ "tolerations": tolerations })), &json!({"onSuccess": on_success()}));
    let mut scene = Scene::unseen(job(&merged(spec, more)), nodes);
    for node in nodes {
        scene.edit_node_unseen(node, |node| scene::add_taint(node, RAW));
    }
    allow(&mut scene).passes();
    scene
}

impl Scene {
    fn node(&self, name: &str) -> &Node {
        self.world.nodes.iter().find(|node| *node.meta.name == *name).unwrap()
    }

    fn is_raw(&self, node: &str) -> bool {
        self.node(node).taints.iter().any(|taint| &*taint.key == RAW)
    }

    /// The success that the Node records.
    fn marked(&self, node: &str) -> Option<&str> {
        self.node(node).meta.annotations.get("dj.dysproz.io/marked-job")
    }

    /// Another client removes the label and adds the taint again.
    fn quarantine(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| {
            let kept = node.meta.labels.iter().filter(|(key, _)| *key != READY);
            node.meta.labels = kept.collect();
            scene::add_taint(node, RAW);
        })
    }

    fn has_quarantine(&self, node: &str) -> bool {
        self.is_raw(node) && self.node(node).meta.labels.get(READY).is_none()
    }
}

#[test]
fn marks_a_node_after_its_success() {
    let mut scene = preparing(&json!({}), &["a", "b"]);
    scene.run("a");
    assert!(scene.is_raw("a") && scene.marked("a").is_none());
    scene.end_unseen("a", Phase::Succeeded);
    let plan = scene.pass();
    let [(name, operations)] = patched(&plan)[..] else { panic!("{plan:?}") };
    assert_eq!((name, &operations[0]["value"]), ("a", &json!("uid-a")));
    assert!(!scene.is_raw("a") && scene.is_raw("b"));
    assert_eq!((scene.marked("a"), scene.node("a").meta.labels.get(READY)), (Some("1/1"), Some("yes")));
    assert!(patched(&scene.pass()).is_empty(), "one patch for each node and success");
    scene.succeed("b");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// The status does not report that the run is complete before its marks are there.
#[test]
fn is_complete_after_the_last_mark() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.run("a").end_unseen("a", Phase::Succeeded);
    let plan = scene.pass();
    assert_eq!(patched(&plan).len(), 1);
    assert_eq!((condition(&plan, "Complete"), condition(&plan, "Failed").0), (("False", "Marking"), "False"));
    let message = scene.message("Complete");
    assert_eq!(message, "1 of 1 nodes are done, 1 of them without the changes of onSuccess");
    assert_eq!(condition(&scene.pass(), "Complete").0, "True");
}

/// N17: an administrator's change of a marked node stays, also for a new leader, and until the next success.
#[test]
fn an_administrators_change_stays() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.succeed("a").quarantine("a");
    assert!(scene.has_quarantine("a"));
    scene.change_leader().after(3_600).suspend().resume().retry("again");
    assert!(scene.has_quarantine("a"), "{:?}", scene.node("a"));
    scene.edit(|job| job.spec.on_success.as_mut().unwrap().labels = None);
    assert!(scene.has_quarantine("a"), "a change of onSuccess has an effect at the next success");
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    scene.use_template("v2").succeed("a");
    assert_eq!((scene.is_raw("a"), scene.marked("a")), (false, Some("3/2")));
}

/// A15, N17: the manager dies between the success and the patch, or before it sees the answer to the patch.
#[test]
fn a_new_leader_writes_a_missing_mark_once() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.run("a").end_unseen("a", Phase::Succeeded).die_before_marks();
    assert!(scene.is_raw("a") && scene.marked("a").is_none());
    scene.passes();
    assert!(!scene.is_raw("a"));
    scene.quarantine("a").change_leader();
    assert!(scene.has_quarantine("a"));
}

/// The pods are gone, and the ledger has the success.
#[test]
fn the_ledger_has_the_success_of_a_mark() {
    let mut scene = preparing(&json!({"ttlSecondsAfterFinished": 0}), &["a"]);
    scene.succeed("a").after(60);
    assert!(scene.world.pods.is_empty(), "{:?}", scene.world.pods);
    scene.quarantine("a").change_leader();
    assert!(scene.has_quarantine("a"));
}

/// The Node was created again with the same name: another node, which runs and gets its mark.
#[test]
fn a_recreated_node_gets_its_mark() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.succeed("a").tick(60).delete_node("a").create_node_unseen("a", "new");
    scene.edit_node("a", |node| scene::add_taint(node, RAW));
    assert!(scene.is_raw("a") && scene.marked("a").is_none());
    scene.succeed("a");
    assert_eq!((scene.is_raw("a"), scene.marked("a")), (false, Some("1/1")));
}

/// A reboot during the run is another success of the same run.
#[test]
fn a_second_success_of_the_same_run_marks_again() {
    let mut scene = preparing(&json!({"rerunOn": ["TemplateChange", "NodeReboot"]}), &["a", "b"]);
    scene.edit_node("a", |node| node.boot_id = "one".into());
    scene.use_template("v2");
    scene.succeed("a").quarantine("a");
    let run = scene.status().run;
    scene.edit_node("a", |node| node.boot_id = "two".into()).succeed("a");
    assert_eq!(scene.status().run, run, "b has not run yet");
    assert!(!scene.is_raw("a"), "{:?}", scene.status());
}

/// Another pod that never ran does not make the success a new one.
#[test]
fn a_rejected_pod_of_another_template_marks_nothing() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.succeed("a").quarantine("a");
    scene.use_template("v2").reject("a").after(60);
    scene.use_template("i").passes();
    assert!(scene.condition("Complete").0, "{:?}", scene.status());
    assert!(scene.has_quarantine("a"));
}

#[test]
fn marks_a_node_after_it_has_settled() {
    let mut scene = preparing(&json!({"rollout": {"settleSeconds": 60}}), &["a"]);
    scene.succeed("a").after(30).kill("a").heal("a").after(59);
    assert!(scene.is_raw("a"), "it was not Ready for a minute without a break");
    scene.after(2);
    assert!(!scene.is_raw("a"));
}

#[test]
fn marks_no_failed_and_no_suspect_node() {
    let mut scene = preparing(&json!({"backoffLimit": 0}), &["a", "b"]);
    scene.fail("a").run("b").kill_unseen("b").end_unseen("b", Phase::Succeeded).passes();
    assert!(scene.is_raw("a") && scene.is_raw("b"));
    scene.heal("b");
    assert!(scene.is_raw("a") && !scene.is_raw("b"));
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
}

/// Failed nodes are reported, even if the marks of the other nodes are missing.
#[test]
fn a_missing_mark_does_not_hide_a_failure() {
    let mut scene = preparing(&json!({"backoffLimit": 0}), &["a", "b"]);
    scene.world.permitted_marks = Permitted::default();
    scene.fail("a").succeed("b");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
    assert_eq!(scene.condition("MarkRefused"), (true, "NotAllowed"));
}

/// The condition is there before the first success, and the marks follow when the chart allows them.
#[test]
fn reports_what_is_not_allowed_and_marks_later() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.world.permitted_marks = Permitted::default();
    scene.passes();
    assert_eq!(scene.condition("MarkRefused"), (true, "NotAllowed"));
    assert!(!scene.condition("Stalled").0, "the pods run");
    let remedy = "set the chart value daemonJob.nodeMarks, for example to {ns: [example.com/]}";
    assert!(scene.message("MarkRefused").ends_with(remedy), "{}", scene.message("MarkRefused"));
    scene.succeed("a").after(3_600);
    assert!(scene.is_raw("a") && scene.marked("a").is_none());
    assert_eq!(
        (scene.condition("Complete"), scene.condition("Stalled")),
        ((false, "MarkRefused"), (true, "MarkRefused"))
    );
    assert_eq!((scene.condition("Ready"), scene.condition("Failed").0), ((false, "MarkRefused"), false));
    assert_eq!(scene.status().succeeded, Some(1));
    // The chart's new value restarts the manager.
    allow(&mut scene).change_leader();
    assert_eq!((scene.is_raw("a"), scene.marked("a")), (false, Some("1/1")));
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!(scene.condition("MarkRefused"), (false, ""));
}

#[test]
fn an_event_reports_a_refused_mark_once() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.world.permitted_marks = Permitted::default();
    let reasons = |plan: &Plan<DaemonJobStatus>| plan.events.iter().map(|one| one.reason).collect::<Vec<_>>();
    assert_eq!(reasons(&scene.pass()), ["MarkRefused"]);
    assert!(reasons(&scene.pass()).is_empty());
}

fn rejected(scene: &mut Scene, node: &str, until: i64) {
    let refusal = Refusal {
        verb: Verb::JsonPatch,
        ..refusal(RefusalReason::Other, "denied by a policy", later(until))
    };
    scene.world.refusals.insert(&NODES, node, refusal);
}

/// The API server rejects the mark of one node. The others get theirs, and it is retried.
#[test]
fn retries_a_rejected_mark() {
    let mut scene = preparing(&json!({}), &["a", "b"]);
    rejected(&mut scene, "a", 10);
    scene.succeed("a").succeed("b");
    assert!(scene.is_raw("a") && !scene.is_raw("b"));
    assert_eq!(scene.condition("MarkRefused"), (true, "FailedWrite"));
    assert_eq!((scene.condition("Complete").1, scene.condition("Stalled").0), ("MarkRefused", false));
    assert!(scene.message("MarkRefused").contains("denied by a policy"));
    assert!(scene.plan().again.is_some_and(|again| again <= later(10)));
    scene.after(10);
    assert!(!scene.is_raw("a"));
    // The executor drops the refusal after the write.
    scene.world.refusals.clear();
    scene.passes();
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// Two DaemonJobs remove the same taint. The second patch only has its record.
#[test]
fn a_taint_that_another_daemonjob_removed_needs_no_operation() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.run("a").end_unseen("a", Phase::Succeeded);
    scene.edit_node_unseen("a", |node| node.taints = Box::default());
    let plan = scene.pass();
    let [(_, operations)] = patched(&plan)[..] else { panic!("{plan:?}") };
    assert!(!operations.to_string().contains("/spec/taints"), "{operations}");
    assert_eq!(scene.marked("a"), Some("1/1"));
}

/// A pause stops the creation of pods, not the consequences of earlier successes.
#[test]
fn marks_nodes_while_paused() {
    let mut scene = preparing(&json!({}), &["a", "b"]);
    scene.run("a").pause().succeed("a");
    assert!(!scene.is_raw("a"));
    assert_eq!(scene.condition("Paused"), (true, "Paused"));
}

/// The rules of waves count settled nodes, with or without a mark.
#[test]
fn a_refused_mark_does_not_stop_a_wave() {
    let rollout = json!({"failurePolicy": {"type": "Pause"}, "rollout": {"waveSizes": [1]}});
    let mut scene = preparing(&rollout, &["a", "b"]);
    scene.world.permitted_marks = Permitted::default();
    let first = scene.counted()[0].to_owned();
    scene.succeed(&first);
    assert_eq!((scene.rollout().wave, scene.counted().len()), (Some(2), 1));
}

#[test]
fn marks_nothing_without_changes_or_for_a_deleted_daemonjob() {
    let mut scene = preparing(&json!({"onSuccess": {}}), &["a"]);
    scene.succeed("a");
    assert_eq!((scene.marked("a"), scene.condition("Complete").0), (None, true));
    let mut scene = preparing(&json!({}), &["a"]);
    scene.run("a").end_unseen("a", Phase::Succeeded);
    scene.job.metadata.deletion_timestamp = Some(Time(now()));
    assert!(patched(&scene.plan()).is_empty());
}

/// Nodes that were done before the field existed get their marks too, without another run.
#[test]
fn adding_on_success_marks_done_nodes() {
    let mut scene = preparing(&json!({}), &["a"]);
    scene.edit(|job| job.spec.on_success = None).succeed("a");
    assert!(scene.is_raw("a") && scene.condition("Complete").0);
    let run = scene.status().run;
    let spec = serde_json::from_value(on_success()).unwrap();
    scene.edit(|job| job.spec.on_success = Some(spec));
    assert_eq!((scene.is_raw("a"), scene.status().run), (false, run));
    assert!(scene.condition("Complete").0 && scene.counted().is_empty());
}
