//! The table of states: the conditions of each, for users and for tools that wait.

use super::*;

const THREE: [&str; 3] = ["a", "b", "c"];

/// The events that lead to a state.
type Story = for<'s> fn(&'s mut Scene) -> &'s mut Scene;

fn told(mut scene: Scene, story: Story) -> Scene {
    story(&mut scene);
    scene
}

/// Three nodes that run at the same time, and events.
fn free(spec: &Value, story: Story) -> Scene {
    let job = with(&merged(json!({"backoffLimit": 0}), spec));
    told(Scene::begun(job, &THREE), story)
}

/// Three nodes of a DaemonJob that stops at the first failed node, and events.
fn careful(story: Story) -> Scene {
    told(Scene::cautious(&THREE), story)
}

fn one_fails(policy: &Value) -> Scene {
    free(&json!({ "failurePolicy": policy }), |scene| scene.succeed("b").succeed("c").fail("a"))
}

fn fail_fast(story: Story) -> Scene {
    told(free(&json!({"failurePolicy": {"type": "FailFast"}}), |scene| scene.run("b").fail("a")), story)
}

fn fail_job() -> Scene {
    let rule = json!({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]});
    free(&json!({"podFailurePolicy": {"rules": [rule]}}), |scene| {
        let condition = ("DisruptionTarget".into(), "True".into());
        scene.run("a").edit_pod("a", |pod| pod.conditions = Box::new([condition])).fail("a")
    })
}

fn complete_and_stopped() -> Scene {
    let scene = free(&json!({"failurePolicy": {"type": "Pause"}}), |scene| {
        scene.run("a").succeed("b").succeed("c").delete_node("a")
    });
    assert!(scene.is_braked());
    scene
}

/// A first wave of one node, which must settle and be approved, and an event of this node.
fn first_wave(event: Event) -> Scene {
    let rollout = json!({"waveSizes": [1], "approval": "FirstWave", "settleSeconds": 60});
    let policy = json!({"type": "Pause", "maxFailedNodes": 1});
    let spec = json!({"backoffLimit": 0, "failurePolicy": policy, "rollout": rollout});
    let mut scene = Scene::begun(with(&spec), &THREE);
    let first = scene.counted()[0].to_owned();
    event(&mut scene, &first);
    scene
}

/// A DaemonJob whose pods cannot be created.
fn refused(refuse: fn(&mut Scene)) -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    refuse(&mut scene);
    scene.passes();
    scene
}

fn refuse_pod(scene: &mut Scene) {
    let name = pod_name(&scene.job, &scene.world.nodes[0], 1);
    scene.world.refusals.insert(&PODS, name, refusal(RefusalReason::Other, "exceeded quota", later(10)));
}

fn refuse_template(scene: &mut Scene) {
    scene.world.invalid_template = Some(("spec.containers[0].image: Required value".into(), later(10)));
}

fn terminate_namespace(scene: &mut Scene) {
    scene.world.refusals.namespace_terminating = true;
}

fn nightly() -> Value {
    json!({"schedule": "0 3 * * *"})
}

fn complete(story: Story) -> Scene {
    told(free(&json!({}), |scene| scene.each(&THREE, Scene::succeed)), story)
}

/// The reason is that of Ready. The last column names the conditions that are True.
#[rstest]
#[case::running(free(&json!({}), |scene| scene), "NodesPending", "")]
#[case::complete(complete(|scene| scene), "AllNodesDone", "Ready Complete Finished")]
#[case::nodes_skipped(
    free(&json!({}), |scene| scene.succeed("a").succeed("b").delete_pod("c").kill("c").after(300)),
    "NodesSkipped", "Ready Complete Finished",
)]
#[case::no_nodes(
    free(&template(&json!({"nodeSelector": {"no": "node"}})), |scene| scene),
    "NoEligibleNodes", "Ready Complete Finished",
)]
#[case::tolerated(one_fails(&json!({"maxFailedNodes": 1})), "FailuresTolerated", "Ready Complete Finished")]
#[case::failed(one_fails(&json!(null)), "NodesFailed", "Failed Finished Stalled")]
#[case::fail_fast(fail_fast(|scene| scene), "MaxFailedNodesExceeded", "Failed Finished Stalled")]
#[case::fail_fast_is_over(fail_fast(|scene| scene.fail("b")), "MaxFailedNodesExceeded", "Failed Finished Stalled")]
#[case::paused_by_policy(careful(|scene| scene.fail("a")), "MaxFailedNodesExceeded", "Stalled")]
#[case::paused_by_a_lost_node(careful(|scene| scene.run("a").kill("a").after(600)), "MaxFailedNodesExceeded", "")]
#[case::complete_and_stopped(complete_and_stopped(), "AllNodesDone", "Ready Complete Finished")]
#[case::paused_by_a_user(free(&json!({}), |scene| scene.succeed("a").pause().delete_pod("b")), "Paused", "")]
#[case::a_done_node_is_lost(
    free(&json!({}), |scene| scene.succeed("a").run("b").kill("b").succeed("c").after(600)),
    "NodesFailed", "Failed Finished",
)]
#[case::paused_by_annotation(first_wave(|scene, _| scene.pause_for("incident")), "PausedByAnnotation", "")]
#[case::settling(first_wave(Scene::succeed), "Settling", "")]
#[case::waits_for_approval(first_wave(|scene, first| scene.succeed(first).after(60)), "WaitsForApproval", "")]
#[case::wave_failed(first_wave(Scene::fail), "WaveFailed", "Stalled")]
#[case::wave_failed_by_a_lost_node(
    first_wave(|scene, first| scene.run(first).kill(first).after(600)),
    "WaveFailed", "",
)]
#[case::fleet_unhealthy(careful(|scene| scene.kill("b").kill("c")), "FleetUnhealthy", "")]
#[case::suspended(free(&json!({}), |scene| scene.succeed("a").suspend()), "Suspended", "Ready")]
#[case::resumed(free(&json!({}), |scene| scene.succeed("a").suspend().resume()), "NodesPending", "")]
#[case::deadline_exceeded(
    free(&json!({"activeDeadlineSeconds": 60}), |scene| scene.run("a").after(60)),
    "DeadlineExceeded", "Failed Finished Stalled",
)]
#[case::fail_job(fail_job(), "PodFailurePolicy", "Failed Finished Stalled")]
#[case::waits_for_due_time(free(&nightly(), |scene| scene), "WaitsForDueTime", "Ready")]
#[case::runs_at_due_time(free(&nightly(), |scene| scene.after(10_800)), "RunsAtDueTime", "Ready")]
#[case::complete_at_due_time(
    free(&nightly(), |scene| scene.after(10_800).each(&THREE, Scene::succeed)),
    "AllNodesDone", "Ready Complete Finished",
)]
#[case::failed_at_due_time(
    free(&nightly(), |scene| scene.after(10_800).each(&THREE, Scene::fail)),
    "NodesFailed", "Failed Finished Stalled",
)]
#[case::invalid_schedule(free(&json!({"schedule": "never"}), |scene| scene), "ScheduleInvalid", "Stalled")]
#[case::invalid_template(refused(refuse_template), "TemplateInvalid", "Stalled")]
#[case::refused_pod(refused(refuse_pod), "NodesPending", "")]
#[case::namespace_terminating(refused(terminate_namespace), "NamespaceTerminating", "")]
#[case::a_node_joins(complete(|scene| scene.after(10).create_node("d", "uid-d")), "CompletedBefore", "Ready")]
#[case::a_joined_node_fails(
    complete(|scene| scene.after(10).create_node("d", "uid-d").fail("d")),
    "NodesFailed", "Failed Finished Stalled",
)]
#[case::a_new_template(complete(|scene| scene.use_template("j")), "NodesPending", "")]
fn sets_the_conditions_of_each_state(#[case] scene: Scene, #[case] reason: &str, #[case] expected: &str) {
    let types = ["Ready", "Complete", "Failed", "Finished", "Stalled"];
    let are_true: Vec<&str> = types.into_iter().filter(|type_| scene.condition(type_).0).collect();
    assert_eq!(are_true.join(" "), expected, "{:#?}", scene.status());
    assert_eq!(scene.condition("Ready").1, reason);
    let present: Vec<&str> = scene.status().conditions.iter().map(|one| one.type_.as_str()).collect();
    assert_eq!(present[..4], types[..4]);
    assert_eq!(present.contains(&"Stalled"), are_true.contains(&"Stalled"), "present only while it is True");
}
