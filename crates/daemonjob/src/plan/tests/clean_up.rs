//! Ended pods: their release, their deletion after the ttl, and the limits of their number.

use super::*;

fn numbered(nodes: usize) -> Scene {
    let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut scene = Scene::new(with(&json!({})), &names);
    scene.pass();
    scene
}

/// Ends all running pods without a reconcile.
fn end_all(scene: &mut Scene) {
    end(scene, usize::MAX);
}

/// Ends the first pods without a reconcile.
fn end(scene: &mut Scene, count: usize) {
    let now = scene.now();
    for pod in scene.world.pods.iter_mut().take(count) {
        let pod = Arc::make_mut(pod);
        pod.node = pinned_to(pod).map(Arc::from);
        (pod.phase, pod.started, pod.finished) = (Phase::Succeeded, Some(now), Some(now));
    }
}

fn held(scene: &Scene) -> usize {
    scene.world.pods.iter().filter(|pod| pod.meta.has_finalizer(FINALIZER)).count()
}

/// Reconciles each second, as the manager does while work remains.
fn seconds(scene: &mut Scene, count: i64) {
    for _ in 0..count {
        scene.tick(1).pass();
    }
}

/// H6: two minutes after the end of a run that rests, no recorded pod has the finalizer. The rate is bounded.
#[test]
fn releases_recorded_pods_after_the_end_of_the_run() {
    let mut scene = numbered(500);
    end_all(&mut scene);
    scene.pass();
    assert_eq!(scene.condition("Complete"), (true, "AllNodesDone"));
    assert_eq!(held(&scene), 500, "the manager records the pods first");
    let early = scene.tick(19).pass();
    assert_eq!((early.has_actions(), early.again), (false, Some(later(scene.second + 1))));
    let plan = scene.tick(1).pass();
    assert_eq!((plan.steps.len(), plan.background.len()), (0, 200), "without urgency");
    assert_eq!(plan.again, Some(later(scene.second + 1)));
    assert_eq!(held(&scene), 300);
    assert!(!scene.pass().has_actions(), "the next pods follow after a second");
    seconds(&mut scene, 2);
    assert_eq!(held(&scene), 0);
    assert_eq!(scene.pass().again, None, "nothing is left to do");
    assert_eq!(scene.world.pods.len(), 500);
}

/// A run that continues releases recorded pods after a time without a new pod and without the end of a pod.
#[test]
fn releases_recorded_pods_in_a_quiet_run() {
    let mut scene = Scene::cautious_with(&json!({"parallelism": 2}), &["a", "b", "c"]);
    // The manager creates a pod for c. The ledger has the first outcome after at most five minutes.
    scene.succeed("a").after(300);
    assert!(scene.line("uid-a").is_some());
    assert_eq!(held(&scene), 2, "a is recorded and the quiet time is over");
    scene.succeed("b").after(19);
    assert_eq!(held(&scene), 2, "b is not recorded, and c runs");
    scene.retry("now");
    assert!(scene.line("uid-b").is_some(), "a change of the spec records every pod");
    assert_eq!(held(&scene), 2, "b ended 19 s ago");
    scene.wait(1);
    assert_eq!(held(&scene), 1);
}

/// A cluster in which a node joins each 15 s has no quiet time. A pod is released ten minutes after its end.
#[test]
fn releases_old_pods_in_a_run_without_a_quiet_time() {
    let mut scene = Scene::begun(with(&json!({})), &["a"]);
    scene.succeed("a");
    let is_held = |scene: &Scene| scene.pod("a").meta.has_finalizer(FINALIZER);
    let mut joined = 0;
    let mut join = |scene: &mut Scene, count: usize| {
        for number in joined..joined + count {
            let name = format!("n{number}");
            scene.tick(15).create_node(&name, &name).succeed(&name);
        }
        joined += count;
    };
    join(&mut scene, 39);
    assert!(scene.line("uid-a").is_some() && is_held(&scene), "585 s after its end");
    join(&mut scene, 1);
    assert!(!is_held(&scene), "600 s after its end");
    assert_eq!(held(&scene), 40, "the others ended later");
}

/// Managers that fail after some seconds see no quiet time either.
#[test]
fn releases_old_pods_although_leaders_change() {
    let mut scene = Scene::begun(with(&json!({})), &["a"]);
    scene.succeed("a");
    for _ in 0..39 {
        scene.change_leader().after(15);
    }
    assert_eq!(held(&scene), 1, "585 s after its end");
    scene.change_leader().after(15);
    assert_eq!(held(&scene), 0);
}

/// Pods whose release an admission policy rejects do not keep other pods from theirs.
#[test]
fn releases_other_pods_while_refusals_wait() {
    let mut scene = numbered(300);
    end_all(&mut scene);
    scene.pass();
    scene.tick(20);
    let rejected =
        |until| Refusal { verb: Verb::JsonPatch, ..refusal(RefusalReason::Other, "policy", until) };
    for action in scene.plan().background {
        let (_, resource, name) = action.target().unwrap();
        scene.world.refusals.insert(resource, name, rejected(later(80)));
    }
    scene.tick(1);
    let plan = scene.pass();
    assert_eq!((plan.background.len(), plan.again), (100, Some(later(80))));
    assert_eq!(held(&scene), 200);
    let waiting = scene.tick(2).plan();
    assert_eq!((waiting.has_actions(), waiting.again), (false, Some(later(80))));
    assert_eq!(scene.tick(60).plan().background.len(), 200);
}

/// A new leader measures the quiet time again, and has its own rate.
#[test]
fn a_new_leader_waits_for_a_quiet_time() {
    let mut scene = Scene::cautious(&["a", "b"]);
    scene.succeed("a").retry("now").change_leader().after(19);
    assert_eq!(held(&scene), 2);
    scene.wait(1);
    assert_eq!(held(&scene), 1);
}

/// A lost shard may have had the record of a pod. The manager keeps the pod until the shard is written again.
#[rstest]
fn does_not_release_a_pod_whose_shard_is_lost(#[values(false, true)] is_deleted: bool) {
    let mut scene = numbered(1);
    end_all(&mut scene);
    scene.pass();
    let shard = scene.world.ledger.pop().unwrap();
    scene.world.deleted_shards.push(shard);
    if is_deleted {
        let now = scene.now();
        Arc::make_mut(&mut scene.world.pods[0]).meta.deleted = Some(now);
    }
    let mut plan = scene.plan();
    let released = plan.steps.split_off(1);
    assert_eq!(released.iter().flatten().count(), usize::from(is_deleted), "after the shard exists");
    assert!(matches!(&plan.steps[0][..], [Action::Create { resource: CONFIG_MAPS, .. }]));
    assert!(plan.background.is_empty());
    // While the API server rejects the new shard, only this process knows its lines.
    let [[Action::Create { name, .. }]] = &plan.steps.iter().map(|step| &step[..]).collect::<Vec<_>>()[..]
    else {
        panic!("{plan:?}")
    };
    scene.world.refusals.insert(&CONFIG_MAPS, name, refusal(RefusalReason::Other, "quota", later(60)));
    assert!(!scene.plan().has_actions());
}

/// A14: a drain may delete the pods together with the manager, and no other manager may be able to run.
#[test]
fn releases_deleted_pods_before_the_process_exits() {
    let mut scene = numbered(2);
    end_all(&mut scene);
    let now = scene.now();
    for pod in &mut scene.world.pods {
        Arc::make_mut(pod).meta.deleted = Some(now);
    }
    scene.world.stopping = true;
    let plan = scene.pass();
    assert!(matches!(plan.steps[0][0], Action::Create { resource: CONFIG_MAPS, .. }));
    assert!(scene.world.pods.is_empty(), "{:?}", scene.world.pods);
}

/// M3: the ttl of a pod begins at its end. The pods of a failed node wait for the end of the run.
#[test]
fn applies_the_ttl_to_each_pod() {
    let spec = json!({"ttlSecondsAfterFinished": 400, "backoffLimit": 0, "parallelism": 3});
    let mut scene = Scene::begun(with(&spec), &["a", "b", "c"]);
    let left = |scene: &Scene| -> Vec<String> {
        scene.world.pods.iter().filter_map(|pod| pinned_to(pod).map(str::to_owned)).collect()
    };
    scene.succeed("a").fail("b").run("c").after(399);
    assert_eq!(scene.world.pods.len(), 3);
    scene.wait(1);
    assert_eq!(left(&scene), ["b", "c"]);
    scene.succeed("c").after(399);
    assert_eq!(left(&scene), ["b", "c"]);
    scene.wait(1);
    assert_eq!(left(&scene), [""; 0], "the run ended 400 s ago");
    assert_eq!(scene.condition("Failed"), (true, "NodesFailed"));
}

#[test]
fn deletes_pods_after_the_ttl_and_keeps_the_record() {
    let job = with(&json!({"ttlSecondsAfterFinished": 60}));
    let mut scene = Scene::settled(job, &["a"], &[("a", 1, "Succeeded")]);
    let early = scene.plan_at(59);
    assert_eq!((early.has_actions(), early.again), (false, Some(later(60))));
    assert_eq!(deleted(&scene.plan_at(60)), ["a-1"]);
    let quiet = scene.set_pods(&[]).tick(61).settle().plan_at(7_200);
    assert!(!quiet.has_actions() && quiet.again.is_none());
    assert_eq!(quiet.status.unwrap().succeeded, Some(1));
}

/// M8: only the newest succeeded pods are kept, so that the pod garbage collector spares the pods of others.
#[test]
fn keeps_a_thousand_succeeded_pods() {
    let mut scene = numbered(1_300);
    scene.succeed("n0");
    let oldest = scene.pod("n0").meta.uid.clone();
    end_all(scene.tick(1));
    scene.pass();
    seconds(&mut scene, 30);
    let running = scene.world.pods.iter().filter(|pod| pod.meta.deleted.is_none()).count();
    assert_eq!((running, held(&scene)), (1_000, 0));
    assert_eq!(scene.status().succeeded, Some(1_300));
    assert!(!scene.world.pods.iter().any(|pod| pod.meta.uid == oldest));
}

/// From 12,500 ended pods, kube-controller-manager deletes those of other owners too.
#[test]
fn records_and_deletes_pods_during_a_run_with_many_nodes() {
    let mut scene = numbered(5_002);
    while scene.world.pods.len() < 5_002 {
        scene.pass();
    }
    end(&mut scene, 5_000);
    scene.tick(1).pass();
    assert_eq!(held(&scene), 5_002);
    assert!(scene.world.ledger.is_empty());
    end(&mut scene, 5_001);
    scene.tick(1).pass();
    assert_eq!(scene.world.ledger.len(), 16);
    assert!(!scene.condition("Complete").0, "a pod runs");
    seconds(&mut scene, 60);
    assert_eq!(scene.world.pods.len(), 1_001, "1,000 have ended, and one runs");
}

/// A rollout may write in every plan until its end. It has no time for the background then.
#[test]
fn deletes_many_unneeded_pods_with_urgency() {
    let mut scene = numbered(6_100);
    while scene.world.pods.len() < 6_100 {
        scene.pass();
    }
    end_all(&mut scene);
    scene.pass();
    let plan = scene.plan();
    assert_eq!((plan.steps.concat().len(), plan.background.len()), (200, 0));
    while scene.world.pods.len() > 5_900 {
        scene.tick(1).pass();
    }
    assert_eq!(scene.tick(1).plan().background.len(), 200);
}

#[test]
fn keeps_a_bounded_number_of_failed_pods() {
    let mut job = simple();
    job.spec.backoff_limit = Some(0);
    let names: Vec<String> = (0..150).map(|index| format!("n{index:03}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let pods: Vec<_> = nodes.iter().map(|name| (*name, 1, "Failed")).collect();
    let mut scene = Scene::with_pods(job, &nodes, &pods);
    for (name, second) in nodes.iter().zip(0..) {
        scene.edit_pod(name, |pod| pod.finished = Some(later(second)));
    }
    let plan = scene.tick(600).settle().plan();
    let gone = deleted(&plan);
    assert_eq!(gone.len(), 50);
    assert!(gone.contains(&"n000-1") && !gone.contains(&"n149-1"));
    let status = scene.status();
    assert_eq!(
        (status.failed, status.failed_nodes.len(), status.more_failed_nodes),
        (Some(150), 20, Some(130))
    );
}

#[test]
fn deletes_a_surplus_pod() {
    let mut scene = Scene::settled(simple(), &["a"], &[("a", 2, "Failed")]);
    let job = scene.job.clone();
    scene.job.spec.suspend = Some(true);
    scene.settle().job = job;
    // The ledger has a later end: this pod was created late.
    assert_eq!(deleted(&scene.set_pods(&[("a", 2, "Pending")]).plan()), ["a-2"]);
    // Two pods for one node name: the pod that has started stays.
    scene.world.ledger.clear();
    assert_eq!(deleted(&scene.set_pods(&[("a", 3, "Running"), ("a", 4, "Pending")]).plan()), ["a-4"]);
}
