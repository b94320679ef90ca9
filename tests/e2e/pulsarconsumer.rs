//! PulsarConsumer: its Deployment, applied and kept.

use quintet_e2e::{Arena, condition};
use serde_json::json;

const SAMPLE: &str = "pulsarconsumer-sample-1";
const DEPLOYMENT: &str = "pulsarconsumer-sample-1-deployment";

#[test]
fn the_deployment_is_applied_observed_and_repaired() {
    let arena = Arena::new("pc-life");
    let _manager = arena.manager("pulsarconsumer");
    arena.apply_sample("pulsarconsumer/pulsarconsumer-sample-1.yaml").unwrap();
    let consumer = arena.wait_for("pulsarconsumer", SAMPLE, "its status is observed", |consumer| {
        consumer["status"]["replicas"] == 1 && condition(consumer, "Available").0 == "True"
    });
    assert_eq!(consumer["status"]["server"], "pulsar://localhost:6650");
    assert_eq!(consumer["status"]["topic"], "my-topic");
    assert_eq!(consumer["status"]["subscription"], "first-subscription");
    let writes = arena.writes();
    assert!(writes.len() <= 3, "{writes:?}");
    let deployment = arena.get("deployment", DEPLOYMENT).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["name"], "pulsarconsumer");
    assert_eq!(container["image"], "krvarma/pulsarconsumer:latest");
    let env = container["env"].to_string();
    for name in ["PULSAR_SERVER", "PULSAR_TOPIC", "PULSAR_SUBSCRIPTION_NAME"] {
        assert!(env.contains(name), "{env}");
    }
    assert_eq!(
        deployment["spec"]["selector"]["matchLabels"],
        json!({ "pulsarcrd": format!("{SAMPLE}-pulsarcrd") })
    );

    // Drift in our fields is repaired; fields of others stay.
    let patch = r#"{"spec":{"template":{"spec":{"containers":[{"name":"pulsarconsumer","image":"evil"}]}}},
        "metadata":{"annotations":{"theirs":"kept"}}}"#;
    arena.kubectl(&["patch", "deployment", DEPLOYMENT, "-p", patch]).unwrap();
    let repaired = arena.wait_for("deployment", DEPLOYMENT, "the image is repaired", |deployment| {
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "krvarma/pulsarconsumer:latest"
    });
    assert_eq!(repaired["metadata"]["annotations"]["theirs"], "kept");

    // Deleted by hand: made again.
    let uid = repaired["metadata"]["uid"].clone();
    arena.kubectl(&["delete", "deployment", DEPLOYMENT, "--wait=false"]).unwrap();
    arena.wait_for("deployment", DEPLOYMENT, "it is made again", |deployment| {
        deployment["metadata"]["uid"].is_string() && deployment["metadata"]["uid"] != uid
    });

    // Scaled by its scale subresource.
    arena.kubectl(&["scale", "pulsarconsumer", SAMPLE, "--replicas=2"]).unwrap();
    arena.wait_for("pulsarconsumer", SAMPLE, "two consumers are ready", |consumer| {
        consumer["status"]["replicas"] == 2 && condition(consumer, "Available").0 == "True"
    });
    arena.kubectl(&["delete", "pulsarconsumer", SAMPLE, "--timeout=60s"]).unwrap();
    arena.wait("its Deployment is gone", || arena.get("deployment", DEPLOYMENT).is_none());
}

#[test]
fn a_strangers_deployment_is_never_touched() {
    let arena = Arena::new("pc-stranger");
    let _manager = arena.manager("pulsarconsumer");
    let theirs = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": DEPLOYMENT },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "theirs" } },
            "template": { "metadata": { "labels": { "app": "theirs" } },
                "spec": { "containers": [{ "name": "theirs", "image": "theirs" }] } } } });
    arena.apply(&theirs).unwrap();
    let before = arena.get("deployment", DEPLOYMENT).unwrap()["spec"].clone();
    arena.apply_sample("pulsarconsumer/pulsarconsumer-sample-1.yaml").unwrap();
    arena.wait_for("pulsarconsumer", SAMPLE, "the stranger is named", |consumer| {
        condition(consumer, "Available") == ("False".into(), "DeploymentNotOwned".into())
    });
    assert_eq!(arena.get("deployment", DEPLOYMENT).unwrap()["spec"], before);
    assert!(arena.writes().iter().all(|write| !write.contains("deployments")), "{:?}", arena.writes());
}

#[test]
fn bad_input_is_refused_at_apply() {
    let arena = Arena::new("pc-bad");
    let consumer = |address: &str, replicas: i64| {
        json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
            "metadata": { "name": "bad" },
            "spec": { "serverAddress": address, "topic": "t", "subscriptionName": "s", "replicas": replicas } })
    };
    let text = arena.apply(&consumer("http://broker", 1)).unwrap_err();
    assert!(text.contains("pulsar://"), "{text}");
    let text = arena.apply(&consumer("pulsar://broker:6650", -1)).unwrap_err();
    assert!(text.contains("spec.replicas"), "{text}");
    let empty = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "bad" }, "spec": {} });
    let text = arena.apply(&empty).unwrap_err();
    for field in ["spec.serverAddress", "spec.topic", "spec.subscriptionName"] {
        assert!(text.contains(field), "{text}");
    }
}
