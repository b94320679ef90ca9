//! The table of states: the conditions of each, for users and for tools that wait.

use super::scene::{Scene, cautious};
use super::*;
use rstest::rstest;

fn scene(spec: &Value) -> Scene {
    let mut all = json!({"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut scene = Scene::new(job(&all), &["a", "b", "c"]);
    scene.passes();
    scene
}

fn running() -> Scene {
    scene(&json!({}))
}

fn complete() -> Scene {
    let mut scene = running();
    for node in ["a", "b", "c"] {
        scene.succeed(node);
    }
    scene
}

fn nodes_skipped() -> Scene {
    let mut scene = running();
    scene.succeed("a");
    scene.succeed("b");
    scene.delete_pod("c");
    scene.kill("c");
    scene.wait(300);
    scene
}

fn no_nodes() -> Scene {
    scene(
        &json!({"template": {"spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "i"}]}}}),
    )
}

fn one_fails(policy: &Value) -> Scene {
    let mut scene = scene(&json!({ "failurePolicy": policy }));
    scene.succeed("b");
    scene.succeed("c");
    scene.fail("a");
    scene
}

fn fail_fast() -> Scene {
    let mut scene = scene(&json!({"failurePolicy": {"type": "FailFast"}}));
    scene.run("b");
    scene.fail("a");
    scene
}

fn fail_fast_is_over() -> Scene {
    let mut scene = fail_fast();
    scene.fail("b");
    scene
}

fn paused_by_policy() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b", "c"]);
    scene.passes();
    scene.fail("a");
    scene
}

fn paused_by_a_lost_node() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b", "c"]);
    scene.passes();
    scene.run("a");
    scene.kill("a");
    scene.wait(600);
    scene
}

fn complete_and_stopped() -> Scene {
    let mut scene = scene(&json!({"failurePolicy": {"type": "Pause"}}));
    scene.run("a");
    scene.succeed("b");
    scene.succeed("c");
    scene.delete_node("a");
    assert!(scene.is_braked());
    scene
}

fn paused_by_a_user() -> Scene {
    let mut scene = running();
    scene.succeed("a");
    scene.edit(|job| job.spec.paused = Some(true));
    scene.delete_pod("b");
    scene
}

fn a_done_node_is_lost() -> Scene {
    let mut scene = running();
    scene.succeed("a");
    scene.run("b");
    scene.kill("b");
    scene.succeed("c");
    scene.wait(600);
    scene
}

fn fleet_unhealthy() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b", "c"]);
    scene.passes();
    scene.kill("b");
    scene.kill("c");
    scene
}

fn suspended() -> Scene {
    let mut scene = running();
    scene.succeed("a");
    scene.edit(|job| job.spec.suspend = Some(true));
    scene
}

fn resumed() -> Scene {
    let mut scene = suspended();
    scene.edit(|job| job.spec.suspend = None);
    scene
}

fn deadline_exceeded() -> Scene {
    let mut scene = scene(&json!({"activeDeadlineSeconds": 60}));
    scene.run("a");
    scene.wait(60);
    scene
}

fn fail_job() -> Scene {
    let mut scene = scene(&json!({"podFailurePolicy": {"rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}));
    scene.run("a");
    let condition = ("DisruptionTarget".into(), "True".into());
    scene.edit_pod("a", |pod| pod.conditions = Box::new([condition]));
    scene.fail("a");
    scene
}

fn invalid_template() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.world.invalid_template = Some(("spec.containers[0].image: Required value".into(), later(10)));
    scene.passes();
    scene
}

fn refused_pod() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    let name = pod_name(&scene.job, &scene.world.nodes[0], 1);
    let message = "exceeded quota".into();
    let refusal =
        Refusal { verb: Verb::Create, reason: RefusalReason::Other, message, times: 1, until: later(10) };
    scene.world.refusals.insert(&PODS, name, refusal);
    scene.passes();
    scene
}

fn namespace_terminating() -> Scene {
    let mut scene = Scene::new(cautious(&json!({})), &["a", "b"]);
    scene.world.refusals.namespace_terminating = true;
    scene.passes();
    scene
}

fn a_node_joins() -> Scene {
    let mut scene = complete();
    scene.wait(10);
    scene.create_node("d", "uid-d");
    scene
}

fn a_joined_node_fails() -> Scene {
    let mut scene = a_node_joins();
    scene.fail("d");
    scene
}

fn a_new_template() -> Scene {
    let mut scene = complete();
    scene.use_template("j");
    scene
}

/// The columns are Ready, Complete, Failed, Finished and Stalled. The reason is that of Ready.
#[rstest]
#[case::running(running(), "NodesPending", [false, false, false, false, false])]
#[case::complete(complete(), "AllNodesDone", [true, true, false, true, false])]
#[case::nodes_skipped(nodes_skipped(), "NodesSkipped", [true, true, false, true, false])]
#[case::no_nodes(no_nodes(), "NoEligibleNodes", [true, true, false, true, false])]
#[case::tolerated(one_fails(&json!({"maxFailedNodes": 1})), "FailuresTolerated", [true, true, false, true, false])]
#[case::failed(one_fails(&json!(null)), "NodesFailed", [false, false, true, true, true])]
#[case::fail_fast(fail_fast(), "MaxFailedNodesExceeded", [false, false, true, true, true])]
#[case::fail_fast_is_over(fail_fast_is_over(), "MaxFailedNodesExceeded", [false, false, true, true, true])]
#[case::paused_by_policy(paused_by_policy(), "MaxFailedNodesExceeded", [false, false, false, false, true])]
#[case::paused_by_a_lost_node(paused_by_a_lost_node(), "MaxFailedNodesExceeded", [false, false, false, false, false])]
#[case::complete_and_stopped(complete_and_stopped(), "AllNodesDone", [true, true, false, true, false])]
#[case::paused_by_a_user(paused_by_a_user(), "Paused", [false, false, false, false, false])]
#[case::a_done_node_is_lost(a_done_node_is_lost(), "NodesFailed", [false, false, true, true, false])]
#[case::fleet_unhealthy(fleet_unhealthy(), "FleetUnhealthy", [false, false, false, false, false])]
#[case::suspended(suspended(), "Suspended", [true, false, false, false, false])]
#[case::resumed(resumed(), "NodesPending", [false, false, false, false, false])]
#[case::deadline_exceeded(deadline_exceeded(), "DeadlineExceeded", [false, false, true, true, true])]
#[case::fail_job(fail_job(), "PodFailurePolicy", [false, false, true, true, true])]
#[case::invalid_template(invalid_template(), "TemplateInvalid", [false, false, false, false, true])]
#[case::refused_pod(refused_pod(), "NodesPending", [false, false, false, false, false])]
#[case::namespace_terminating(namespace_terminating(), "NamespaceTerminating", [false, false, false, false, false])]
#[case::a_node_joins(a_node_joins(), "CompletedBefore", [true, false, false, false, false])]
#[case::a_joined_node_fails(a_joined_node_fails(), "NodesFailed", [false, false, true, true, true])]
#[case::a_new_template(a_new_template(), "NodesPending", [false, false, false, false, false])]
fn sets_the_conditions_of_each_state(
    #[case] scene: Scene,
    #[case] reason: &str,
    #[case] expected: [bool; 5],
) {
    let types = ["Ready", "Complete", "Failed", "Finished", "Stalled"];
    let statuses = types.map(|type_| scene.condition(type_).0);
    assert_eq!(statuses, expected, "{types:?} in {:#?}", scene.status());
    assert_eq!(scene.condition("Ready").1, reason);
    let present: Vec<&str> = scene.status().conditions.iter().map(|one| one.type_.as_str()).collect();
    assert_eq!(present[..4], ["Ready", "Complete", "Failed", "Finished"]);
    assert_eq!(present.contains(&"Stalled"), expected[4], "Stalled is present only while it is True");
}
