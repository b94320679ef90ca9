//! PulsarConsumer and other clients that scale its Deployment through the scale subresource, as `kubectl scale`
//! and autoscalers do. The audit log shows what the manager writes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use quintet_e2e::{TestEnv, condition};
use quintet_localcluster::image;
use serde_json::{Value, json};

use crate::pulsarconsumer::{consumer, container, is_available};

const DEPLOYMENT: &str = "one-deployment";
/// The field manager of the other client.
const SCALER: &str = "their-autoscaler";
/// The seconds after each patch. The last pause is longer than the interval of the backlog's reads, and than the
/// requeue interval of an object that no watch shows (`LOOK_AGAIN`, one minute).
const PAUSES: [u64; 6] = [3, 3, 3, 3, 3, 65];

/// The writes to the Deployment, of all writes of the manager.
fn to_deployment(writes: Vec<String>) -> Vec<String> {
    writes.into_iter().filter(|write| write.contains(" deployments")).collect()
}

/// All writes of the manager to the Deployment, once the manager has not written for 2 s.
fn deployment_writes(env: &TestEnv) -> Vec<String> {
    to_deployment(env.writes_at_rest())
}

fn is_applied(one: &Value, reason: &str) -> bool {
    condition(one, "Applied").1 == reason
}

/// The message of the condition Applied.
fn message(one: &Value) -> &str {
    let conditions = one["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|one| one["type"] == "Applied")
        .find_map(|one| one["message"].as_str())
        .unwrap_or_default()
}

#[test]
fn writes_nothing_while_another_client_scales() {
    let env = TestEnv::new("pc-autoscaled");
    let manager = env.manager("pulsarconsumer");
    // No broker listens here. The poller tries again every 10 seconds.
    let fields = json!({ "adminURL": "http://127.0.0.1:9", "backlogPollSeconds": 10 });
    env.apply(&consumer("one", &fields)).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
    let before = deployment_writes(&env);
    assert_eq!(before, ["patch deployments 201"]);
    let watch = env.watch("pulsarconsumers", "");
    let patch = |replicas: u32| {
        let patch = json!({ "spec": { "replicas": replicas } }).to_string();
        let scale = ["patch", "deployment", DEPLOYMENT, "--subresource=scale", "--type=merge", "-p", &patch];
        let manager = format!("--field-manager={SCALER}");
        env.kubectl(&[&scale[..], &[&manager]].concat()).unwrap();
    };
    let is_reported = |replicas: u32| {
        move |one: &Value| {
            let status = &one["status"];
            is_applied(one, "ReplicasManagedElsewhere")
                && message(one).starts_with(&format!("{SCALER} scales Deployment {DEPLOYMENT}"))
                && condition(one, "Ready").0 == "True"
                && (&status["replicas"], &status["readyReplicas"]) == (&json!(replicas), &json!(replicas))
        }
    };
    for (pause, replicas) in PAUSES.into_iter().zip([3, 5].into_iter().cycle()) {
        let began = Instant::now();
        patch(replicas);
        // The status shows that the manager has seen the patch.
        env.wait_for("pulsarconsumer", "one", "the status names the client", is_reported(replicas));
        sleep(Duration::from_secs(pause).saturating_sub(began.elapsed()));
        assert_eq!(env.get("deployment", DEPLOYMENT).unwrap()["spec"]["replicas"], replicas);
        assert_eq!(to_deployment(env.writes()), before, "after {replicas} replicas");
    }
    let first =
        watch.events().iter().position(|(_, one)| is_applied(one, "ReplicasManagedElsewhere")).unwrap();
    let later = watch.events().split_off(first);
    let is_named =
        |one: &Value| is_applied(one, "ReplicasManagedElsewhere") && message(one).starts_with(SCALER);
    assert!(later.iter().all(|(_, one)| is_named(one)), "the condition always names the client: {later:#?}");

    // A new manager does not know the last apply.
    assert_eq!(manager.stop().unwrap(), Some(0));
    patch(3);
    let _manager = env.manager("pulsarconsumer");
    env.wait_for("pulsarconsumer", "one", "the status names the client", is_reported(3));
    assert_eq!(deployment_writes(&env), before, "a new manager writes nothing either");
    // The audit log has the writes of the manager: the user's scale causes one.
    env.kubectl(&["scale", "pcon", "one", "--replicas=2"]).unwrap();
    env.wait_for("deployment", DEPLOYMENT, "it is scaled", |one| one["spec"]["replicas"] == 2);
    let after = deployment_writes(&env);
    assert_eq!(after[..1], before);
    assert_eq!(after[1..], ["patch deployments 200"]);
}

#[test]
fn keeps_scaled_replicas_when_it_writes_other_fields() {
    let env = TestEnv::new("pc-scaled");
    let _manager = env.manager("pulsarconsumer");
    env.apply(&consumer("one", &json!({}))).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
    let scale = |replicas: u32| {
        env.kubectl(&["scale", "deployment", DEPLOYMENT, &format!("--replicas={replicas}")]).unwrap();
    };
    let comes_to = |reason: &str| {
        env.wait_for("pulsarconsumer", "one", reason, |one| is_applied(one, reason));
    };
    // The Deployment controller writes too, so the API server may answer a write with a conflict.
    let successful = || deployment_writes(&env).into_iter().filter(|write| !write.ends_with(" 409")).count();
    scale(3);
    comes_to("ReplicasManagedElsewhere");
    assert_eq!(successful(), 1, "the manager has created the Deployment: {:?}", env.writes());
    // The manager repairs another field and keeps the replicas.
    let patch = r#"{"spec":{"template":{"spec":{"containers":[{"name":"pulsarconsumer","image":"evil"}]}}}}"#;
    env.kubectl(&["patch", "deployment", DEPLOYMENT, "-p", patch]).unwrap();
    let repaired = env.wait_for("deployment", DEPLOYMENT, "the image is repaired", |one| {
        container(one)["image"] == image::name("pulsar-consumer")
    });
    assert_eq!(repaired["spec"]["replicas"], 3);
    assert_eq!(successful(), 2, "one repair: {:?}", env.writes());
    // So does a change of another field.
    env.apply(&consumer("one", &json!({ "topic": "other" }))).unwrap();
    let changed = env.wait_for("deployment", DEPLOYMENT, "the topic is changed", |one| {
        container(one)["env"].to_string().contains("other")
    });
    assert_eq!(changed["spec"]["replicas"], 3);
    assert_eq!(successful(), 3, "one change: {:?}", env.writes());
    assert_eq!(env.get("deployment", DEPLOYMENT).unwrap()["spec"]["replicas"], 3);
    scale(1);
    comes_to("AsSpecified");
    // The last change wins.
    scale(3);
    comes_to("ReplicasManagedElsewhere");
    assert_eq!(successful(), 3, "no write for a scale: {:?}", env.writes());
    env.kubectl(&["scale", "pcon", "one", "--replicas=2"]).unwrap();
    env.wait_for("deployment", DEPLOYMENT, "it is scaled", |one| one["spec"]["replicas"] == 2);
    comes_to("AsSpecified");
    assert_eq!(successful(), 4, "one scale: {:?}", env.writes());
}
