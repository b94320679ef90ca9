//! The writes to the ledger, the pods that wait for them, and records that were lost.

use super::*;

#[test]
fn writes_the_ledger_at_most_once_a_second_for_a_finalizer() {
    let pods = [("a", 1, "Succeeded"), ("b", 1, "Running")];
    let mut scene = Scene::with_pods(simple(), &["a", "b"], &pods);
    scene.edit_pod("a", |pod| terminate(pod, now())).write_status();
    scene.world.clocks.flushed = Some(now());
    let gathering = scene.plan();
    assert!(gathering.steps.is_empty());
    assert_eq!(gathering.again, Some(later(1)));
    let flush = scene.tick(1).plan();
    assert_eq!(flush.steps.len(), 2, "the ledger is acknowledged first");
    assert_eq!(
        written(&flush)["uid-a"],
        format!(
            "node=a template={} rollout=1 run=1 pod=1 outcome=Succeeded clear=true ended=2026-01-01T00:00:00Z",
            scene.job.spec.template.hash()
        )
    );
    assert_eq!(released(&flush), ["a-1"]);
    assert!(matches!(flush.steps[1][0], Action::JsonPatch { .. }));
    scene.record(&flush);
    let after = scene.plan();
    assert!(written(&after).is_empty());
    assert_eq!(released(&after), ["a-1"], "a recorded pod is released immediately");
    // The node is done even without its pod.
    scene.world.pods.remove(0);
    let done = scene.plan_at(2);
    assert!(created(&done).is_empty());
    assert_eq!(done.status.unwrap().succeeded, Some(1));
}

/// Two nodes. The pod of one has succeeded and is being deleted.
fn terminating() -> Scene {
    let mut scene = Scene::with_pods(simple(), &["a", "b"], &[("a", 1, "Succeeded")]);
    scene.edit_pod("a", |pod| terminate(pod, now())).write_status();
    scene
}

#[test]
fn a_rejected_ledger_write_delays_only_the_release() {
    let mut scene = terminating();
    let shard = shard_name("d", shard_of("uid-a"));
    scene.world.refusals.insert(&CONFIG_MAPS, shard, refusal(RefusalReason::Other, "quota", later(60)));
    let plan = scene.plan_at(5);
    assert!(released(&plan).is_empty() && written(&plan).is_empty());
    assert_eq!(created(&plan), ["b"]);
    assert_eq!(plan.again, Some(later(60)));
    assert_eq!(condition(&plan, "LedgerRefused"), ("True", "FailedWrite"));
}

/// The retry had no answer, or another manager wrote the line.
#[test]
fn a_rejection_is_over_when_the_ledger_has_every_line() {
    let mut scene = terminating();
    let flush = scene.plan();
    scene.record(&flush);
    let shard = shard_name("d", shard_of("uid-a"));
    scene.world.refusals.insert(&CONFIG_MAPS, shard, refusal(RefusalReason::Other, "quota", later(0)));
    let status = scene.plan_at(5).status.unwrap();
    assert!(status.conditions.iter().all(|condition| condition.type_ != "LedgerRefused"));
}

#[test]
fn only_releases_pods_in_a_terminating_namespace() {
    let mut scene = terminating();
    scene.world.refusals.namespace_terminating = true;
    let plan = scene.plan();
    assert_eq!(released(&plan), ["a-1"]);
    assert!(created(&plan).is_empty());
}

#[test]
fn releases_a_pod_that_never_ran_without_a_record() {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, "Pending")]);
    scene.edit_pod("a", |pod| terminate(pod, now())).edit_pod("a", |pod| pod.node = None);
    let plan = scene.write_status().plan();
    assert_eq!(released(&plan), ["a-1"]);
    assert!(written(&plan).is_empty());
    assert_eq!(created(&plan), ["a"], "the node is free immediately");
    let Action::Create { name, .. } = &plan.steps[1][0] else { panic!() };
    assert!(name.ends_with("-2"), "{name}");
}

/// A node's clock that is ahead must not delay a release or a node.
#[test]
fn a_nodes_clock_that_is_ahead_delays_nothing() {
    let mut scene = Scene::with_pods(simple(), &["a"], &[("a", 1, "Succeeded")]);
    scene.edit_pod("a", |pod| terminate(pod, now())).edit_pod("a", |pod| pod.finished = Some(later(3_600)));
    let plan = scene.write_status().plan_at(1);
    assert!(written(&plan)["uid-a"].ends_with("2026-01-01T00:00:01Z"), "{:?}", written(&plan));
    assert_eq!(released(&plan), ["a-1"]);
}

#[test]
fn only_records_outcomes_before_the_process_exits() {
    let mut scene = Scene::started(simple(), &["a", "b"], &[("a", 1, "Succeeded")]);
    scene.world.stopping = true;
    let plan = scene.plan();
    assert_eq!(written(&plan).into_keys().collect::<Vec<_>>(), ["uid-a"]);
    assert_eq!(plan.steps.len(), 1);
    assert!(plan.status.is_none() && created(&plan).is_empty());
}

#[test]
fn skips_nodes_of_a_lost_shard_until_the_template_changes() {
    let mut scene = Scene::settled(simple(), &["a"], &[("a", 1, "Succeeded")]);
    assert_eq!(scene.status().ledger_shards, [shard_of("uid-a")]);
    scene.world.pods.clear();
    scene.world.ledger.clear();
    let lost = scene.tick(60).plan();
    assert!(created(&lost).is_empty());
    assert!(written(&lost)["uid-a"].contains("RecordLost"), "the ledger keeps the loss");
    assert_eq!(condition(&lost, "LedgerLost"), ("True", "RecordLost"));
    assert_eq!(condition(&lost, "Complete"), ("True", "NodesSkipped"));
    let again = scene.settle().plan_at(120);
    assert!(!again.has_actions());
    assert_eq!(reason(&again, "a"), Some("RecordLost"));
    scene.job.spec.template.0["metadata"]["annotations"]["again"] = json!("yes");
    scene.job.metadata.generation = Some(2);
    assert_eq!(created(&scene.tick(120).write_status().plan()), ["a"]);
}

#[test]
fn replaces_unreadable_lines_but_not_lines_of_newer_versions() {
    let mut scene = Scene::settled(simple(), &["a"], &[("a", 1, "Succeeded")]);
    let shard = (*scene.world.ledger[0]).clone();
    let mut scribble = |format: &str| {
        let mut shard = shard.clone();
        shard.meta.labels = [(LEDGER_LABEL, format)].into();
        shard.entries.insert("uid-a".into(), "scribble".parse());
        scene.world = World { ledger: vec![Arc::new(shard)], ..world(&["a"], []) };
        scene.plan_at(60)
    };
    let unreadable = scribble("v2");
    assert!(created(&unreadable).is_empty());
    assert!(written(&unreadable)["uid-a"].contains("RecordLost"));
    let newer = scribble("v3");
    assert!(!newer.has_actions(), "{:?}", newer.steps);
    assert_eq!(reason(&newer, "a"), Some("LedgerFormat"));
    assert_eq!(condition(&newer, "LedgerLost"), ("True", "LedgerFormat"));
    // A deleted pod waits for a version that can record it.
    scene.set_pods(&[("a", 1, "Succeeded")]).edit_pod("a", |pod| terminate(pod, now()));
    assert!(released(&scene.plan_at(60)).is_empty());
}

#[test]
fn recreates_a_deleted_shard_from_the_cache() {
    let pods = [("a", 1, "Succeeded"), ("b", 1, "Succeeded")];
    let mut scene = Scene::settled(simple(), &["a", "b"], &pods);
    scene.world.pods.clear();
    scene.world.deleted_shards = std::mem::take(&mut scene.world.ledger);
    let plan = scene.plan_at(60);
    assert_eq!(plan.steps.concat().len(), scene.world.deleted_shards.len());
    assert_eq!(written(&plan).len(), 2);
    assert!(written(&plan)["uid-a"].contains("Succeeded"));
    assert_eq!(plan.repairs[0].reason, "LedgerRestored");
    assert_eq!(condition(&plan, "Complete").0, "True");
}

#[test]
fn reads_a_terminating_shard_until_it_is_gone() {
    let mut scene = Scene::settled(simple(), &["a"], &[("a", 1, "Succeeded")]);
    let mut shard = scene.world.ledger.remove(0);
    Arc::make_mut(&mut shard).meta.deleted = Some(later(10));
    scene.world.deleted_shards = vec![shard];
    scene.set_pods(&[("a", 2, "Succeeded")]).edit_pod("a", |pod| terminate(pod, later(10)));
    let plan = scene.tick(60).plan();
    assert!(!plan.has_actions() && plan.events.is_empty(), "{plan:?}");
    assert_eq!(condition(&plan, "Complete").0, "True");
    Arc::make_mut(&mut scene.world.deleted_shards[0]).meta.deleted = None;
    let plan = scene.plan();
    assert!(written(&plan)["uid-a"].contains("pod=2"));
    assert_eq!((released(&plan), plan.repairs[0].reason), (vec!["a-2"], "LedgerRestored"));
}

/// A kept failed pod must not run a node again whose success was in a lost shard.
#[test]
fn an_old_failure_does_not_replace_a_lost_record() {
    let pods = [("a", 1, "Failed"), ("a", 2, "Succeeded")];
    let mut scene = Scene::settled(simple(), &["a"], &pods);
    scene.world.ledger.clear();
    let lost = scene.set_pods(&[("a", 1, "Failed")]).plan_at(3_600);
    assert!(created(&lost).is_empty());
    assert_eq!(reason(&lost, "a"), Some("RecordLost"));
    // A pod that runs, or has succeeded with this template, replaces the record.
    for phase in ["Running", "Succeeded"] {
        let known = scene.set_pods(&[("a", 3, phase)]).plan_at(3_600);
        assert_eq!(reason(&known, "a"), None, "{phase}");
    }
}

#[test]
fn drops_lines_of_deleted_nodes_with_the_next_write() {
    // Two nodes of one shard.
    let names = (0..50).map(|index| format!("n{index}"));
    let names: Vec<String> = names.filter(|name| shard_of(&format!("uid-{name}")) == 0).collect();
    let (one, two) = (names[0].as_str(), names[1].as_str());
    let mut scene = Scene::settled(simple(), &[one], &[(one, 1, "Succeeded")]);
    scene.world.nodes = vec![node(two)];
    let plan = scene.set_pods(&[(two, 1, "Succeeded")]).plan_at(60);
    assert_eq!(written(&plan)[&format!("uid-{one}")], "(dropped)");
    assert!(written(&plan)[&format!("uid-{two}")].contains("Succeeded"));
}

/// The status and the shards stay small for any number of nodes.
#[test]
fn limits_the_size_of_status_and_ledger() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let names: Vec<String> =
        (0..5_000).map(|index| format!("ip-10-0-{index:05}.eu-central-1.compute.internal")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let phases = ["Succeeded", "Failed", "Pending"].into_iter().cycle();
    let pods: Vec<_> = nodes.iter().zip(phases).map(|(name, phase)| (*name, 1, phase)).collect();
    let mut scene = Scene::with_pods(job, &nodes, &pods);
    scene.tick(60).settle().job.spec.suspend = Some(true);
    scene.settle();
    let size = serde_json::to_string(&scene.job.status).unwrap().len();
    assert!(size < 32 * 1024, "{size} bytes of status");
    for shard in &scene.world.ledger {
        let lines = shard.entries.iter().map(|(uid, line)| (uid, line.as_ref().unwrap().to_string()));
        let bytes: usize = lines.map(|(uid, line)| uid.len() + line.len()).sum();
        assert!(bytes < 256 * 1024, "{bytes} bytes in {}", shard.meta.name);
    }
}

/// Statuses of the tutorial's operator are decoded.
#[test]
fn decodes_statuses_of_the_tutorials_operator() {
    let mut job = serde_json::to_value(simple()).unwrap();
    job["status"] = json!({"startTime": START, "completionTime": START, "succeeded": 3, "conditions": [
        {"type": "Complete", "status": "True", "lastProbeTime": START, "lastTransitionTime": START},
        {"type": "Failed", "status": "False"}]});
    let plan = Scene::unseen(serde_json::from_value(job).unwrap(), &["a"]).plan();
    assert!(plan.status.unwrap().template_hash.is_some());
}
