//! What pods count for when they end, are deleted or are rejected, and what is recorded of that.

use super::scene::{Scene, annotate, cautious};
use super::*;
use quintet_runtime::model::core_types::Exit;
use rstest::rstest;

/// H4 and A22: done is about the last attempt: after A, half of B, and A again, A runs where B started.
#[rstest]
#[case::b_failed(Phase::Failed, true, true)]
#[case::b_succeeded(Phase::Succeeded, true, true)]
#[case::b_never_started(Phase::Failed, false, false)]
fn a_rollback_runs_where_the_newer_template_started(
    #[case] second: Phase,
    #[case] has_started: bool,
    #[case] runs: bool,
) {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6})), &["a"]);
    scene.passes();
    scene.succeed("a");
    scene.use_template("b");
    if has_started {
        scene.end("a", second);
    } else {
        scene.reject("a");
    }
    scene.use_template("i");
    assert_eq!(scene.pod("a").is_counted(), runs);
    // The ledger alone tells the same.
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.world.pods.len(), usize::from(runs));
}

/// A22 (iii): a superfluous pod does not undo a success.
#[test]
fn a_superfluous_pod_is_no_attempt() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.succeed("a");
    let mut late = pod(&scene.job, "a", 1, "Running");
    late.meta.name = "late".into();
    annotate(&mut late, 1, 1);
    scene.world.pods.push(Arc::new(late));
    scene.passes();
    let late = scene.world.pods.iter_mut().find(|pod| &*pod.meta.name == "late").unwrap();
    assert_eq!(DeletedFor::of(late), Some(DeletedFor::Superfluous));
    Arc::make_mut(late).phase = Phase::Failed;
    scene.passes();
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// L1: Complete waits for a terminating pod of another template on a node that was done.
#[test]
fn complete_waits_for_a_terminating_pod_of_another_template() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.succeed("a");
    scene.use_template("b");
    scene.run("a");
    scene.edit(|job| job.spec.suspend = Some(true));
    scene.edit(|job| {
        job.spec.suspend = None;
        job.spec.template.0["spec"]["containers"][0]["image"] = json!("i");
    });
    assert!(scene.pod("a").meta.deleted.is_some());
    assert!(!scene.condition("Complete").0);
    assert_eq!(scene.reason("a"), Some("PreviousPodTerminating"));
    // A35: on a node that dies it delays Complete no longer than the node itself would.
    scene.kill("a");
    scene.wait(700);
    assert_eq!(scene.reason("a"), Some("NotReady"));
    assert!(scene.condition("Complete").0);
}

/// H5 and A20: a pod that the kubelet rejects costs no attempt, and is bounded.
#[test]
fn a_rejected_pod_costs_no_attempt() {
    let job = cautious(&json!({"pendingDeadlineSeconds": 60}));
    let mut scene = Scene::new(job, &["a", "b"]);
    scene.passes();
    scene.reject("a");
    assert!(!scene.is_braked());
    assert_eq!(scene.reason("a"), Some("Rejected"));
    assert!(scene.status().pending_nodes[0].message.contains("OutOfpods: too many pods"));
    assert!(scene.pod("b").is_counted(), "its place is free");
    scene.succeed("b");
    assert_eq!(scene.wait(10), ["a"]);
    scene.reject("a");
    scene.wait(60);
    assert_eq!(scene.reason("a"), Some("PendingDeadlineExceeded"));
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
}

/// M5 and A34: disruptions in a row fail a node where a limit says so; those that the manager causes do not count.
#[test]
fn disruptions_in_a_row_fail_a_node() {
    let mut scene =
        Scene::new(cautious(&json!({"disruptionLimit": 1, "failurePolicy": {"type": "Continue"}})), &["a"]);
    scene.passes();
    let evict = |scene: &mut Scene| {
        scene.run("a");
        let now = scene.now();
        scene
            .edit_pod("a", |pod| (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now)));
        scene.passes();
    };
    for _ in 0..3 {
        scene.run("a");
        scene.edit(|job| job.spec.suspend = Some(true));
        scene.fail("a");
        scene.edit(|job| job.spec.suspend = None);
        assert!(scene.pod("a").is_counted());
    }
    evict(&mut scene);
    assert_eq!(scene.reason("a"), Some("BackingOff"));
    scene.wait(600);
    evict(&mut scene);
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
}

/// A4: a pod that restarts too often is a failure, although the manager deletes it.
#[test]
fn an_exhausted_pod_is_a_failure() {
    let template = json!({"template": {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}},
        "backoffLimit": 2});
    let mut scene = Scene::new(cautious(&template), &["a", "b"]);
    scene.passes();
    scene.run("a");
    scene.edit_pod("a", |pod| pod.restarts = 2);
    scene.passes();
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Exhausted));
    scene.fail("a");
    assert_eq!(scene.reason("a"), Some("BackoffLimitExceeded"));
    assert!(scene.is_braked());
}

/// A5: a reason that does not hold any more comes off, and one that came too late decides nothing.
#[test]
fn a_reason_that_does_not_hold_is_removed() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.run("a");
    scene.job.spec.suspend = Some(true);
    scene.pass();
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Suspend));
    // The manager dies before it deletes, and the user resumes.
    scene.job.spec.suspend = None;
    scene.pass();
    assert_eq!(DeletedFor::of(scene.pod("a")), None);
    // It ends between the mark and the deletion: it is recorded without the mark, before anything deletes it.
    scene.job.spec.suspend = Some(true);
    scene.pass();
    let now = scene.now();
    scene.edit_pod("a", |pod| (pod.phase, pod.finished) = (Phase::Failed, Some(now)));
    scene.job.spec.suspend = None;
    scene.second += 5;
    scene.pass();
    scene.pass();
    assert!(scene.line("uid-a").unwrap().contains("outcome=Failed"), "{:?}", scene.line("uid-a"));
    scene.edit_pod("a", |pod| pod.meta.deleted = Some(now));
    scene.passes();
    assert!(scene.is_braked());
}

/// L2 and A33: everything is recorded when the spec changes, and later changes do not judge it again.
#[test]
fn what_a_pod_counts_for_is_fixed_when_the_spec_changes() {
    let rules = |action: &str| json!({"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [1]}}]});
    let job =
        cautious(&json!({"failurePolicy": {"type": "Continue"}, "podFailurePolicy": rules("FailIndex")}));
    let mut scene = Scene::new(job, &["a", "b"]);
    scene.passes();
    scene.run("a");
    let exit = quintet_runtime::model::core_types::Exit {
        container: "c".into(),
        code: 1,
        reason: "Error".into(),
        message: "".into(),
    };
    scene.edit_pod("a", |pod| pod.exits = Box::new([exit]));
    scene.fail("a");
    assert_eq!((scene.reason("a"), scene.line("uid-a")), (Some("PodFailurePolicy"), None));
    scene.edit(|job| job.spec.paused = Some(true));
    assert!(scene.line("uid-a").unwrap().contains("outcome=FailedIndex"));
    scene.edit(|job| job.spec.pod_failure_policy = Some(serde_json::from_value(rules("Ignore")).unwrap()));
    assert_eq!(scene.reason("a"), Some("PodFailurePolicy"));
    // Whether a node is failed is judged by the present limits.
    scene.edit(|job| job.spec.pod_failure_policy = None);
    assert_eq!(scene.status().failed, Some(1));
}

/// A33: raising backoffLimit tries failed nodes again.
#[test]
fn a_raised_limit_tries_again() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.fail("a");
    scene.second += 600;
    scene.edit(|job| job.spec.backoff_limit = Some(1));
    assert!(scene.pod("a").is_counted());
}

/// M6: exit 0 on SIGTERM means done.
#[test]
fn a_deleted_pod_that_succeeds_is_done() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    scene.passes();
    scene.run("a");
    scene.edit(|job| job.spec.suspend = Some(true));
    scene.succeed("a");
    scene.edit(|job| job.spec.suspend = None);
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// M10: pods that nothing waits for are recorded with others, not one by one.
#[test]
fn superseded_pods_do_not_write_the_ledger() {
    let mut scene = Scene::new(cautious(&json!({"backoffLimit": 6, "parallelism": null})), &["a", "b"]);
    scene.passes();
    for _ in 0..3 {
        scene.fail("a");
        scene.wait(60);
    }
    assert!(scene.world.ledger.is_empty(), "{:?}", scene.line("uid-a"));
    scene.wait(300);
    let line = scene.line("uid-a").unwrap();
    assert!(line.contains("pod=3"), "{line}");
}

/// N16: a shard in the old format is named, and its nodes are skipped until it is deleted.
#[test]
fn nodes_of_an_old_shard_are_skipped_until_it_is_deleted() {
    let number = (0..8).find(|number| old_shard(*number).may_have("d", "uid-a")).unwrap();
    let mut scene = Scene { job: cautious(&json!({})), world: world(&["a"], vec![]), second: 0 };
    scene.world.ledger = vec![Arc::new(old_shard(number))];
    assert!(scene.passes().is_empty());
    assert_eq!(scene.reason("a"), Some("LedgerFormat"));
    let lost = scene.status().conditions.iter().find(|one| one.type_ == "LedgerLost").unwrap();
    assert!(lost.message.contains(&format!("d-ledger-{number}")), "{}", lost.message);
    assert_eq!(*scene.world.ledger[0], old_shard(number), "untouched");
    scene.world.ledger.clear();
    assert_eq!(scene.passes(), ["a"]);
}

fn old_shard(number: u8) -> Shard {
    serde_json::from_value(json!({
        "metadata": {"name": format!("d-ledger-{number}"), "labels": {crate::ledger::LEDGER_LABEL: "v1"}},
        "data": {"uid-a": "a v1-x run=1 Succeeded failures=0 boot=x 2026-01-01T00:00:00Z"}
    }))
    .unwrap()
}

/// A32: a line with a value that this version does not know stays as it is, and its node is skipped.
#[test]
fn a_line_of_a_newer_version_is_untouched() {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.passes();
    scene.succeed("a");
    scene.succeed("b");
    let at = scene.world.ledger.iter().position(|shard| shard.entries.contains_key("uid-a")).unwrap();
    let line = scene.line("uid-a").unwrap().replace("Succeeded", "Postponed");
    Arc::make_mut(&mut scene.world.ledger[at]).entries.insert("uid-a".into(), line.parse());
    scene.world.pods.clear();
    scene.passes();
    assert_eq!(scene.reason("a"), Some("LedgerFormat"));
    scene.edit(|job| job.spec.suspend = Some(true));
    assert!(scene.world.ledger[at].entries["uid-a"].is_err());
}

/// A pod whose line is of a newer version keeps its finalizer, on a node that exists and on a deleted one: nothing of it
/// can be recorded.
#[rstest]
#[case::node_exists(false)]
#[case::node_is_deleted(true)]
fn a_pod_whose_line_is_of_a_newer_version_is_kept(#[case] is_node_deleted: bool) {
    let mut scene = Scene::new(cautious(&json!({"ttlSecondsAfterFinished": 10})), &["a", "b"]);
    scene.passes();
    let newer = "node=a template=v1-x rollout=1 run=1 pod=0 outcome=Postponed";
    scene.end("a", Phase::Failed);
    let shard = json!({
        "metadata": {"name": shard_name("d", shard_of("uid-a"))},
        "data": {"uid-a": newer},
    });
    scene.world.ledger.retain(|shard| shard.number("d") != Some(shard_of("uid-a")));
    scene.world.ledger.push(Arc::new(serde_json::from_value(shard).unwrap()));
    if is_node_deleted {
        scene.world.nodes.remove(0);
    }
    scene.delete_pod("a");
    scene.wait(4_000);
    assert_eq!(scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some("a")).count(), 1);
    let shard = scene.world.ledger.iter().find(|shard| shard.entries.contains_key("uid-a")).unwrap();
    assert!(shard.entries["uid-a"].is_err(), "untouched");
}

/// A41: the template's mistake is shown in the server's words, and no node is tried meanwhile.
#[test]
fn no_pod_is_made_of_an_invalid_template() {
    let mut scene = Scene { job: cautious(&json!({})), world: world(&["a"], vec![]), second: 0 };
    scene.world.invalid_template = Some(("spec.containers[0].image: Required value".into(), later(10)));
    assert!(scene.passes().is_empty());
    assert_eq!(scene.condition("PodsRefused"), (true, "TemplateInvalid"));
    assert_eq!((scene.condition("Complete").0, scene.reason("a")), (false, Some("TemplateInvalid")));
    assert_eq!(scene.pass().again, Some(later(10)));
    scene.world.invalid_template = None;
    assert_eq!(scene.passes(), ["a"]);
}

/// A selector that the API server refuses selects no node. That completes nothing, and running pods go on.
#[rstest]
#[case::no_node(&[], json!({}))]
#[case::nodes(&["a", "b"], json!({}))]
#[case::paused(&["a", "b"], json!({"paused": true}))]
#[case::no_template_change(&["a", "b"], json!({"rerunOn": []}))]
fn an_invalid_selector_completes_nothing(#[case] nodes: &[&str], #[case] spec: Value) {
    let mut scene = Scene::new(with(&json!({})), nodes);
    scene.passes();
    if !nodes.is_empty() {
        scene.run("a");
        scene.succeed("b");
    }
    let mut changed = json!({"template": {"spec": {"nodeSelector": {"the zone": "a"},
        "containers": [{"name": "c", "image": "i"}]}}});
    changed.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    scene.job.spec = with(&changed).spec;
    scene.world.invalid_template = Some(("Invalid value: \"the zone\"".into(), later(3_600)));
    assert!(scene.passes().is_empty());
    let held_by = if spec["paused"] == true { "Paused" } else { "TemplateInvalid" };
    let plan = scene.pass();
    assert_eq!(reason(&plan, "Complete"), ("False".into(), held_by.into()));
    assert_eq!(reason(&plan, "Failed").0, "False");
    assert_eq!(plan.status.unwrap().active, Some(i32::from(!nodes.is_empty())), "the running pod goes on");
    // Mended, it runs.
    if held_by == "TemplateInvalid" {
        scene.world.invalid_template = None;
        changed["template"]["spec"]["nodeSelector"] = json!({});
        scene.job.spec = with(&changed).spec;
        scene.passes();
        assert_eq!(scene.condition("Complete").0, nodes.is_empty());
    }
}

/// Once there was a pod of a template, in the cache or in the ledger, nothing is asked about it.
#[test]
fn a_template_of_earlier_pods_is_known() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    let hash = scene.job.spec.template.hash();
    assert!(!scene.world.had_pod_of(&hash));
    scene.passes();
    assert!(scene.world.had_pod_of(&hash));
    scene.succeed("a");
    scene.wait(4_000);
    scene.world.pods.clear();
    assert!(scene.world.had_pod_of(&hash));
    assert!(!scene.world.had_pod_of("v1-another"));
}

#[test]
fn a_pod_is_tried_without_an_eligible_node() {
    let job = with(&json!({"template": {"spec": {"nodeSelector": {"zone": "b"},
        "containers": [{"name": "c", "image": "i"}]}}}));
    for world in [world(&["a"], vec![]), world(&[], vec![])] {
        assert!(eligible_node(&job, &world).is_none());
        assert!(pod_on_trial(&job, &world, None).is_some());
    }
}

/// M5: rejections add up although an older success is still the last attempt.
#[test]
fn rejections_after_an_older_success_add_up() {
    let job = cautious(&json!({"disruptionLimit": 2, "failurePolicy": {"type": "Continue"}}));
    let mut scene = Scene::new(job, &["a"]);
    scene.passes();
    scene.succeed("a");
    scene.use_template("b");
    for _ in 0..3 {
        scene.reject("a");
        scene.wait(600);
    }
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
}

/// M4 and A37: a crash loop is told with restarts, exit code and reason, a failed node too; a termination message is not.
#[test]
fn a_crash_loop_and_a_failed_node_tell_their_exit() {
    let exit = || Exit {
        container: "c".into(),
        code: 137,
        reason: "OOMKilled".into(),
        message: "password=hunter2".into(),
    };
    let template = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut scene = Scene::new(job(&json!({"template": template, "backoffLimit": 2})), &["a"]);
    scene.passes();
    scene.run("a");
    scene.edit_pod("a", |pod| {
        (pod.restarts, pod.crashed, pod.has_running_container) = (1, Some(Box::new(exit())), false);
    });
    scene.passes();
    let pending = &scene.status().pending_nodes[0];
    let pod = scene.pod("a").meta.name.clone();
    assert_eq!(
        (pending.reason.as_str(), pending.message.as_str()),
        ("Restarting", format!("1 restart of {pod}; last exit 137 (OOMKilled)").as_str())
    );
    // The kubelet starts the container again.
    scene.edit_pod("a", |pod| (pod.crashed, pod.has_running_container) = (None, true));
    scene.passes();
    assert_eq!(scene.status().pending, Some(0));
    // After its last restart the pod is deleted, and has failed.
    scene.edit_pod("a", |pod| {
        (pod.restarts, pod.exits) = (2, Box::new([exit()]));
    });
    scene.passes();
    scene.fail("a");
    let failed = scene.status().failed_nodes[0].clone();
    assert_eq!(
        failed.message,
        "3 failures, backoffLimit allows 2; the last pod was 1, with exit 137 (OOMKilled)"
    );
    // A new leader tells the same without the pod.
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.status().failed_nodes[0], failed);
    let told = format!("{:?} {:?}", scene.status(), scene.world.ledger);
    assert!(!told.contains("hunter2"), "{told}");
}
