//! The meaning of a pod's end, deletion or rejection, and the record of it.

use super::*;

/// H4 and A22: the last attempt decides. After template A, half of B, and A again, A runs where B started.
#[rstest]
#[case::b_failed(Scene::fail, true)]
#[case::b_succeeded(Scene::succeed, true)]
#[case::b_never_started(Scene::reject, false)]
fn a_rollback_runs_where_the_newer_template_started(#[case] end: Event, #[case] runs: bool) {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6}), &["a"]);
    end(scene.succeed("a").use_template("b"), "a");
    scene.use_template("i");
    assert_eq!(scene.has_pod("a"), runs);
    // The ledger alone gives the same result.
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.world.pods.len(), usize::from(runs));
}

/// A22 (iii): a superfluous pod does not undo a success.
#[test]
fn does_not_count_a_superfluous_pod_as_an_attempt() {
    let mut scene = Scene::cautious(&["a"]);
    scene.succeed("a");
    let mut late = scene.pod_of("a", 1, "Running");
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
fn complete_waits_for_a_terminating_pod() {
    let mut scene = Scene::cautious(&["a"]);
    scene.succeed("a").use_template("b").run("a").suspend();
    scene.edit(|job| {
        job.spec.suspend = None;
        job.spec.template.0["spec"]["containers"][0]["image"] = json!("i");
    });
    assert!(scene.pod("a").meta.deleted.is_some());
    assert!(!scene.condition("Complete").0);
    assert_eq!(scene.reason("a"), Some("PreviousPodTerminating"));
    // A35: the pod on a dying node delays Complete no longer than the node itself would.
    scene.kill("a").after(700);
    assert_eq!(scene.reason("a"), Some("NotReady"));
    assert!(scene.condition("Complete").0);
}

/// H5 and A20: a pod that the kubelet rejects is not an attempt, and rejections are bounded.
#[test]
fn does_not_fail_a_node_for_a_rejected_pod() {
    let mut scene = Scene::cautious_with(&json!({"pendingDeadlineSeconds": 60}), &["a", "b"]);
    scene.reject("a");
    assert!(!scene.is_braked());
    assert_eq!(scene.reason("a"), Some("Rejected"));
    assert!(scene.status().pending_nodes[0].message.contains("OutOfpods: too many pods"));
    assert!(scene.has_pod("b"), "the slot is free");
    scene.succeed("b");
    assert_eq!(scene.wait(10), ["a"]);
    scene.reject("a").after(60);
    assert_eq!(scene.reason("a"), Some("PendingDeadlineExceeded"));
    assert_eq!(scene.condition("Complete"), (true, "NodesSkipped"));
}

/// M5 and A34: consecutive disruptions over the limit fail a node. Deletions by the manager do not count.
#[test]
fn consecutive_disruptions_fail_a_node() {
    let spec = json!({"disruptionLimit": 1, "failurePolicy": {"type": "Continue"}});
    let mut scene = Scene::cautious_with(&spec, &["a"]);
    for _ in 0..3 {
        scene.run("a").suspend().fail("a").resume();
        assert!(scene.has_pod("a"));
    }
    scene.evict("a");
    assert_eq!(scene.reason("a"), Some("BackingOff"));
    scene.after(600).evict("a");
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
}

/// A4: a pod that restarts too often is a failure, even though the manager deletes it.
#[test]
fn counts_an_exhausted_pod_as_a_failure() {
    let spec = merged(template(&json!({"restartPolicy": "OnFailure"})), &json!({"backoffLimit": 2}));
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.run("a").edit_pod("a", |pod| pod.restarts = 2).passes();
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Exhausted));
    scene.fail("a");
    assert_eq!(scene.reason("a"), Some("BackoffLimitExceeded"));
    assert!(scene.is_braked());
}

/// A5: an annotation that no longer applies is removed, and an annotation that came too late has no effect.
#[test]
fn removes_a_reason_that_no_longer_applies() {
    let mut scene = Scene::cautious(&["a"]);
    scene.run("a");
    scene.job.spec.suspend = Some(true);
    scene.pass();
    assert_eq!(DeletedFor::of(scene.pod("a")), Some(DeletedFor::Suspend));
    // The manager exits before it deletes the pod, and the user resumes.
    scene.job.spec.suspend = None;
    scene.pass();
    assert_eq!(DeletedFor::of(scene.pod("a")), None);
    // The pod ends between the annotation and its deletion. The record ignores the annotation.
    scene.job.spec.suspend = Some(true);
    scene.pass();
    let now = scene.end_unseen("a", Phase::Failed).now();
    scene.job.spec.suspend = None;
    scene.tick(5);
    scene.pass();
    scene.pass();
    assert!(scene.line("uid-a").unwrap().contains("outcome=Failed"), "{:?}", scene.line("uid-a"));
    scene.edit_pod("a", |pod| pod.meta.deleted = Some(now)).passes();
    assert!(scene.is_braked());
}

/// L2 and A33: a change of the spec records every pod, and a later change does not change the outcomes.
#[test]
fn a_change_of_the_spec_fixes_the_outcomes() {
    let rules = |action: &str| json!({"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [1]}}]});
    let spec = json!({"failurePolicy": {"type": "Continue"}, "podFailurePolicy": rules("FailIndex")});
    let mut scene = Scene::cautious_with(&spec, &["a", "b"]);
    scene.run("a").edit_pod("a", |pod| pod.exits = Box::new([exit(1, "Error", "")])).fail("a");
    assert_eq!((scene.reason("a"), scene.line("uid-a")), (Some("PodFailurePolicy"), None));
    scene.pause();
    assert!(scene.line("uid-a").unwrap().contains("outcome=FailedIndex"));
    scene.edit(|job| job.spec.pod_failure_policy = Some(serde_json::from_value(rules("Ignore")).unwrap()));
    assert_eq!(scene.reason("a"), Some("PodFailurePolicy"));
    // The present limits decide whether a node is failed.
    scene.edit(|job| job.spec.pod_failure_policy = None);
    assert_eq!(scene.status().failed, Some(1));
}

/// A33: a higher backoffLimit retries failed nodes.
#[test]
fn a_higher_limit_retries_failed_nodes() {
    let mut scene = Scene::cautious(&["a"]);
    scene.fail("a").tick(600).edit(|job| job.spec.backoff_limit = Some(1));
    assert!(scene.has_pod("a"));
}

/// M6: exit code 0 after SIGTERM means done.
#[test]
fn a_deleted_pod_that_succeeds_is_done() {
    let mut scene = Scene::cautious(&["a"]);
    scene.run("a").suspend().succeed("a").resume();
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
}

/// M10: pods that nothing waits for are recorded together.
#[test]
fn does_not_write_the_ledger_for_superseded_pods() {
    let mut scene = Scene::cautious_with(&json!({"backoffLimit": 6, "parallelism": null}), &["a", "b"]);
    for _ in 0..3 {
        scene.fail("a").after(60);
    }
    assert!(scene.world.ledger.is_empty(), "{:?}", scene.line("uid-a"));
    scene.wait(300);
    let line = scene.line("uid-a").unwrap();
    assert!(line.contains("pod=3"), "{line}");
}

/// N16: the condition names a shard in the old format, and its nodes are skipped until it is deleted.
#[test]
fn skips_nodes_of_an_old_shard_until_it_is_deleted() {
    let number = (0..8).find(|number| old_shard(*number).may_have("d", "uid-a")).unwrap();
    let mut scene = Scene::unseen(cautious(&json!({})), &["a"]);
    scene.world.ledger = vec![Arc::new(old_shard(number))];
    assert!(scene.passes().is_empty());
    assert_eq!(scene.reason("a"), Some("LedgerFormat"));
    let message = scene.message("LedgerLost");
    assert!(message.contains(&format!("d-ledger-{number}")), "{message}");
    assert_eq!(*scene.world.ledger[0], old_shard(number), "the shard must not change");
    scene.world.ledger.clear();
    assert_eq!(scene.passes(), ["a"]);
}

fn old_shard(number: u8) -> Shard {
    serde_json::from_value(json!({
        "metadata": {"name": format!("d-ledger-{number}"), "labels": {LEDGER_LABEL: "v1"}},
        "data": {"uid-a": "a v1-x run=1 Succeeded failures=0 boot=x 2026-01-01T00:00:00Z"}
    }))
    .unwrap()
}

/// A32: a line with an unknown value is not changed, and its node is skipped.
#[test]
fn does_not_change_a_line_of_a_newer_version() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.succeed("a").succeed("b");
    let at = scene.shard_at("uid-a");
    let line = scene.line("uid-a").unwrap().replace("Succeeded", "Postponed");
    Arc::make_mut(&mut scene.world.ledger[at]).entries.insert("uid-a".into(), line.parse());
    scene.world.pods.clear();
    scene.passes();
    assert_eq!(scene.reason("a"), Some("LedgerFormat"));
    scene.suspend();
    assert!(scene.world.ledger[at].entries["uid-a"].is_err());
}

/// A pod whose line is of a newer version keeps its finalizer, because it cannot be recorded.
#[rstest]
#[case::node_exists(false)]
#[case::node_is_deleted(true)]
fn keeps_a_pod_whose_line_is_of_a_newer_version(#[case] is_node_deleted: bool) {
    let mut scene = Scene::cautious_with(&json!({"ttlSecondsAfterFinished": 10}), &["a", "b"]);
    scene.fail("a");
    let number = shard_of("uid-a");
    let newer = "node=a template=v1-x rollout=1 run=1 pod=0 outcome=Postponed";
    let shard = json!({"metadata": {"name": shard_name("d", number)}, "data": {"uid-a": newer}});
    scene.world.ledger.retain(|shard| shard.number("d") != Some(number));
    scene.world.ledger.push(Arc::new(serde_json::from_value(shard).unwrap()));
    if is_node_deleted {
        scene.world.nodes.remove(0);
    }
    scene.delete_pod("a").after(4_000);
    assert_eq!(scene.world.pods.iter().filter(|pod| pinned_to(pod) == Some("a")).count(), 1);
    let at = scene.shard_at("uid-a");
    assert!(scene.world.ledger[at].entries["uid-a"].is_err(), "the line must not change");
}

/// A41: the condition has the API server's message about the template, and no node runs.
#[test]
fn creates_no_pod_of_an_invalid_template() {
    let mut scene = Scene::unseen(cautious(&json!({})), &["a"]);
    scene.world.invalid_template = Some(("spec.containers[0].image: Required value".into(), later(10)));
    assert!(scene.passes().is_empty());
    assert_eq!(scene.condition("PodsRefused"), (true, "TemplateInvalid"));
    assert_eq!((scene.condition("Complete").0, scene.reason("a")), (false, Some("TemplateInvalid")));
    assert_eq!(scene.pass().again, Some(later(10)));
    scene.world.invalid_template = None;
    assert_eq!(scene.passes(), ["a"]);
}

/// An invalid selector selects no node. The run is not complete, and running pods continue.
#[rstest]
#[case::no_node(&[], json!({}))]
#[case::nodes(&["a", "b"], json!({}))]
#[case::paused(&["a", "b"], json!({"paused": true}))]
#[case::no_template_change(&["a", "b"], json!({"rerunOn": []}))]
fn an_invalid_selector_does_not_complete_the_run(#[case] nodes: &[&str], #[case] spec: Value) {
    let selecting = |labels: Value| {
        let template = json!({"nodeSelector": labels, "containers": [{"name": "c", "image": "i"}]});
        with(&merged(json!({"template": {"spec": template}}), &spec)).spec
    };
    let mut scene = Scene::begun(with(&json!({})), nodes);
    if !nodes.is_empty() {
        scene.run("a").succeed("b");
    }
    scene.job.spec = selecting(json!({"the zone": "a"}));
    scene.world.invalid_template = Some(("Invalid value: \"the zone\"".into(), later(3_600)));
    assert!(scene.passes().is_empty());
    let held_by = if spec["paused"] == true { "Paused" } else { "TemplateInvalid" };
    let plan = scene.pass();
    assert_eq!(condition(&plan, "Complete"), ("False", held_by));
    assert_eq!(condition(&plan, "Failed").0, "False");
    assert_eq!(plan.status.unwrap().active, Some(i32::from(!nodes.is_empty())), "the running pod continues");
    // After a correction it runs.
    if held_by == "TemplateInvalid" {
        scene.world.invalid_template = None;
        scene.job.spec = selecting(json!({}));
        scene.passes();
        assert_eq!(scene.condition("Complete").0, nodes.is_empty());
    }
}

/// A template that had a pod, in the cache or in the ledger, needs no dry run.
#[test]
fn a_template_with_earlier_pods_needs_no_dry_run() {
    let mut scene = Scene::new(cautious(&json!({})), &["a"]);
    let hash = scene.job.spec.template.hash();
    assert!(!scene.world.had_pod_of(&hash));
    scene.passes();
    assert!(scene.world.had_pod_of(&hash));
    scene.succeed("a").after(4_000);
    scene.world.pods.clear();
    assert!(scene.world.had_pod_of(&hash));
    assert!(!scene.world.had_pod_of("v1-another"));
}

#[rstest]
fn tries_a_pod_without_an_eligible_node(#[values(&["a"], &[])] nodes: &[&str]) {
    let scene = Scene::unseen(with(&template(&json!({"nodeSelector": {"zone": "b"}}))), nodes);
    assert!(eligible_node(&scene.job, &scene.world).is_none());
    assert!(pod_on_trial(&scene.job, &scene.world, None).is_some());
}

/// M5: rejections count even if an older success is still the last attempt.
#[test]
fn counts_rejections_after_an_older_success() {
    let spec = json!({"disruptionLimit": 2, "failurePolicy": {"type": "Continue"}});
    let mut scene = Scene::cautious_with(&spec, &["a"]);
    scene.succeed("a").use_template("b");
    for _ in 0..3 {
        scene.reject("a").after(600);
    }
    assert_eq!(scene.reason("a"), Some("DisruptionLimitExceeded"));
}

/// M4 and A37: messages have restarts, exit code and reason, but not the termination message.
#[test]
fn shows_the_exit_of_crash_loops_and_failed_nodes() {
    let exit = || exit(137, "OOMKilled", "password=hunter2");
    let mut job = simple();
    job.spec.backoff_limit = Some(2);
    let mut scene = Scene::begun(job, &["a"]);
    scene.run("a").edit_pod("a", |pod| {
        (pod.restarts, pod.crashed, pod.has_running_container) = (1, Some(Box::new(exit())), false);
    });
    scene.passes();
    let pending = &scene.status().pending_nodes[0];
    let pod = &scene.pod("a").meta.name;
    let message = format!("1 restart of {pod}; last exit 137 (OOMKilled)");
    assert_eq!((pending.reason.as_str(), pending.message.as_str()), ("Restarting", message.as_str()));
    // The kubelet restarts the container.
    scene.edit_pod("a", |pod| (pod.crashed, pod.has_running_container) = (None, true)).passes();
    assert_eq!(scene.status().pending, Some(0));
    // After its last restart the manager deletes the pod, and the node has failed.
    scene.edit_pod("a", |pod| (pod.restarts, pod.exits) = (2, Box::new([exit()]))).passes();
    scene.fail("a");
    let failed = scene.status().failed_nodes[0].clone();
    assert_eq!(
        failed.message,
        "3 failures, backoffLimit allows 2; the last pod was 1, with exit 137 (OOMKilled)"
    );
    // A new leader shows the same without the pod.
    scene.world.pods.clear();
    scene.change_leader();
    assert_eq!(scene.status().failed_nodes[0], failed);
    let shown = format!("{:?} {:?}", scene.status(), scene.world.ledger);
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn keeps_the_first_sight_of_an_end_while_its_pod_exists() {
    let mut scene = Scene::begun(simple(), &["a", "b"]);
    scene.pass();
    // The end on b can still become clear.
    scene.end_unseen("a", Phase::Succeeded).end_unseen("b", Phase::Succeeded).kill_unseen("b").step_clocks();
    let uid = scene.pod("a").meta.uid.clone();
    let sight = |scene: &Scene| scene.world.clocks.sight(&uid).copied();
    let first = sight(&scene);
    assert!(first.is_some());
    // Each relist decodes the pods again.
    for _ in 0..3 {
        for pod in &mut scene.world.pods {
            Arc::make_mut(pod).meta.uid = Arc::from(&*pod.meta.uid);
        }
        scene.tick(10).step_clocks();
        assert_eq!(sight(&scene), first);
    }
    // A pod that is absent for a moment gets a new sight.
    let absent = scene.pod("a").clone();
    scene.world.pods.retain(|pod| pod.meta.uid != uid);
    scene.step_clocks();
    assert_eq!(sight(&scene), None);
    scene.world.pods.push(absent);
    scene.step_clocks();
    assert!(sight(&scene).is_some());
}
