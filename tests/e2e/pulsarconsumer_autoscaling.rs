//! PulsarConsumer and KEDA: compares the manager's objects with KEDA's definitions and source. KEDA does not
//! run; the test writes the status of a ScaledObject. KEDA runs in `pulsarconsumer_keda`.

use std::fs;

use quintet_e2e::shell::Shell;
use quintet_e2e::{TestEnv, condition, workspace};
use quintet_localcluster::cluster::binaries::keda_source;
use quintet_localcluster::documents;
use quintet_localcluster::manager::NAMESPACE;
use serde_json::{Value, json};

use crate::guard_rails::{ALLOWED, Requests};
use crate::pulsarconsumer::consumer;

/// The names that a KEDA scaler reads, from the tags of its source: `keda:"name=adminURL, order=..."`.
fn names_in(source: &str) -> Vec<String> {
    let tags = source.split("keda:\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let names = tags.filter_map(|(tag, _)| tag.split(',').find_map(|part| part.trim().strip_prefix("name=")));
    names.flat_map(|names| names.split(';')).map(str::to_owned).collect()
}

fn is_reason(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |consumer| condition(consumer, "AutoscalingReady").1 == reason
}

/// Neither the guard rails nor the manager change an object of KEDA that no PulsarConsumer controls.
fn foreign_objects_of_keda_stay(env: &TestEnv) {
    let uid = env.get("pulsarconsumer", "scaled").unwrap()["metadata"]["uid"].clone();
    let owner = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "name": "scaled", "uid": uid, "controller": true });
    let object = |kind: &str, name: &str, owners: &Value, spec: &Value| {
        json!({ "apiVersion": "keda.sh/v1alpha1", "kind": kind,
            "metadata": { "name": name, "ownerReferences": owners }, "spec": spec })
    };
    let (owned, unowned) = (json!([owner]), json!([]));
    let scaling = json!({ "scaleTargetRef": { "name": "theirs" },
        "triggers": [{ "type": "cpu", "metadata": { "value": "50" } }] });
    let token = json!({ "secretTargetRef": [{ "parameter": "token", "name": "theirs", "key": "token" }] });
    let manager = Requests::of(env, (NAMESPACE, "quintet"), env.namespace());
    manager.wait_until_denied(&object("ScaledObject", "new", &unowned, &scaling));
    let (write, change) = (Some("may write only objects"), Some("may change and delete only objects"));
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    let seizure = json!({ "metadata": { "ownerReferences": owned } });
    for (kind, own, spec) in [
        ("ScaledObject", "scaled-pulsarcrd", &scaling),
        ("TriggerAuthentication", "scaled-pulsarcrd-token", &token),
    ] {
        env.apply(&object(kind, "theirs", &unowned, spec)).unwrap();
        manager.create(&object(kind, "new", &owned, spec), ALLOWED);
        manager.create(&object(kind, "new", &unowned, spec), write);
        let kind = kind.to_lowercase();
        manager.patch((&kind, own), &label, ALLOWED);
        manager.patch((&kind, "theirs"), &label, write);
        manager.patch((&kind, "theirs"), &seizure, change);
        manager.delete((&kind, own), ALLOWED);
        manager.delete((&kind, "theirs"), change);
    }
    manager.check();

    env.apply(&object("ScaledObject", "taken-pulsarcrd", &unowned, &scaling)).unwrap();
    let before = env.get("scaledobject", "taken-pulsarcrd").unwrap();
    let fields = json!({ "adminURL": "http://127.0.0.1:9", "autoscaling": { "maxReplicas": 2 } });
    let mut taken = consumer("taken", &fields);
    taken["spec"].as_object_mut().unwrap().remove("replicas");
    env.apply(&taken).unwrap();
    env.wait_for("pulsarconsumer", "taken", "its ScaledObject is foreign", is_reason("NotOwned"));
    env.kubectl(&["delete", "pulsarconsumer", "taken", "--timeout=60s"]).unwrap();
    assert_eq!(env.get("scaledobject", "taken-pulsarcrd").unwrap(), before);
}

/// Runs the commands of docs/pulsarconsumer.md that pause and resume the scaling by KEDA.
fn follow_the_page(env: &TestEnv) {
    let commands = documents::commands(&workspace().join("docs/pulsarconsumer.md"));
    let commands = commands.iter().filter(|command| command.contains(" scaledobject "));
    let commands: Vec<String> =
        commands.map(|command| command.replace("pulsarconsumer-autoscaled", "scaled")).collect();
    let [get, pause, resume] = &commands[..] else { panic!("{commands:?}") };
    let shell = Shell::new(env.cluster(), env.namespace());
    let paused = || {
        let object = env.get("scaledobject", "scaled-pulsarcrd").unwrap();
        object["metadata"]["annotations"]["autoscaling.keda.sh/paused-replicas"].clone()
    };
    assert!(shell.stdout(get).contains("scaled-pulsarcrd"));
    shell.stdout(pause);
    // The manager repairs its own fields, and keeps the annotation.
    env.patch("scaledobject", "scaled-pulsarcrd", &json!({ "spec": { "maxReplicaCount": 2 } }));
    env.wait_for("scaledobject", "scaled-pulsarcrd", "it is repaired", |object| {
        object["spec"]["maxReplicaCount"] == 5
    });
    assert_eq!(paused(), "0");
    shell.stdout(resume);
    assert_eq!(paused(), Value::Null);
}

#[test]
fn uses_keda_once_it_is_installed_until_it_is_not_needed() {
    let env = TestEnv::alone("pc-keda");
    env.node("one");
    let keda = keda_source().unwrap();
    let manager = env.manager("pulsarconsumer");
    let fields = json!({
        // No broker listens here. An unknown topic does not prevent scaling.
        "adminURL": "http://127.0.0.1:9",
        "auth": { "tokenSecret": { "name": "credentials" } },
        "autoscaling": { "minReplicas": 1, "maxReplicas": 5, "targetBacklog": 100, "activationBacklog": 2,
            "pollingIntervalSeconds": 15, "cooldownSeconds": 60 },
    });
    let mut scaled = consumer("scaled", &fields);
    scaled["spec"].as_object_mut().unwrap().remove("replicas");
    env.apply(&scaled).unwrap();
    env.wait_for("pulsarconsumer", "scaled", "KEDA is missing", is_reason("KedaMissing"));

    for definition in ["scaledobjects", "triggerauthentications"] {
        let file = keda.join(format!("config/crd/bases/keda.sh_{definition}.yaml"));
        env.kubectl(&["create", "-f", file.to_str().unwrap()]).unwrap();
    }
    env.wait_for("pulsarconsumer", "scaled", "the status waits for KEDA", is_reason("KedaPending"));
    assert!(manager.is_alive(), "the manager did not restart");
    let object = env.get("scaledobject", "scaled-pulsarcrd").unwrap();
    let authentication = env.get("triggerauthentication", "scaled-pulsarcrd-token").unwrap();
    foreign_objects_of_keda_stay(&env);

    // The API server kept every field, so KEDA's definitions have them. The scaler's source has the rest.
    let trigger = &object["spec"]["triggers"][0];
    assert_eq!(trigger["authenticationRef"]["name"], "scaled-pulsarcrd-token");
    assert_eq!(object["spec"]["pollingInterval"], 15);
    assert_eq!(object["spec"]["cooldownPeriod"], 60);
    let read = |file: &str| names_in(&fs::read_to_string(keda.join("pkg/scalers").join(file)).unwrap());
    let mut known = read("pulsar_scaler.go");
    known.extend(read("authentication/authentication_types.go"));
    assert!(known.len() > 10, "{known:?}");
    for name in trigger["metadata"].as_object().unwrap().keys() {
        assert!(known.contains(name), "{name} is not in {known:?}");
    }
    let parameter = authentication["spec"]["secretTargetRef"][0]["parameter"].as_str().unwrap();
    assert!(known.iter().any(|name| name == parameter), "{parameter} is not in {known:?}");

    let ready = |status: &str, message: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "message": message, "reason": "x" }] } });
    env.patch("scaledobject/status", "scaled-pulsarcrd", &ready("False", "no such secret"));
    env.wait_for("pulsarconsumer", "scaled", "it is not ready", is_reason("ScaledObjectNotReady"));
    env.patch("scaledobject/status", "scaled-pulsarcrd", &ready("True", "ok"));
    env.wait_for("pulsarconsumer", "scaled", "KEDA is ready", is_reason("ScaledObjectReady"));

    // The autoscaler's replicas stay, even when the user applies the manifest again without replicas.
    env.kubectl(&["scale", "pcon", "scaled", "--replicas=4"]).unwrap();
    env.wait_for("deployment", "scaled-deployment", "it is scaled", |one| one["spec"]["replicas"] == 4);
    env.apply(&scaled).unwrap();
    // The manager keeps KEDA's changes and repairs its own fields.
    env.patch(
        "scaledobject",
        "scaled-pulsarcrd",
        &json!({ "metadata": { "labels": { "scaledobject.keda.sh/name": "x" } },
        "spec": { "maxReplicaCount": 1 } }),
    );
    let object = env.wait_for("scaledobject", "scaled-pulsarcrd", "it is repaired", |object| {
        object["spec"]["maxReplicaCount"] == 5
    });
    assert_eq!(object["metadata"]["labels"]["scaledobject.keda.sh/name"], "x");
    assert_eq!(env.get("deployment", "scaled-deployment").unwrap()["spec"]["replicas"], 4);

    follow_the_page(&env);

    // KEDA's finalizer, which the test stands for, restores the replicas that KEDA set to 0.
    env.kubectl(&["scale", "pcon", "scaled", "--replicas=0"]).unwrap();
    let finalizers = |finalizers: &Value| {
        env.patch("scaledobject", "scaled-pulsarcrd", &json!({ "metadata": { "finalizers": finalizers } }));
    };
    finalizers(&json!(["finalizer.keda.sh"]));
    scaled["spec"].as_object_mut().unwrap().remove("autoscaling");
    env.apply(&scaled).unwrap();
    env.wait_for("scaledobject", "scaled-pulsarcrd", "it is being deleted", |object| {
        !object["metadata"]["deletionTimestamp"].is_null()
            && object["spec"]["advanced"]["restoreToOriginalReplicaCount"] == true
    });
    finalizers(&json!(null));
    env.wait("the KEDA objects are gone", || {
        env.get("scaledobject", "scaled-pulsarcrd").is_none()
            && env.get("triggerauthentication", "scaled-pulsarcrd-token").is_none()
    });
    env.wait_for("pulsarconsumer", "scaled", "the status has no AutoscalingReady", |consumer| {
        condition(consumer, "AutoscalingReady").0.is_empty()
    });
    // The test also wrote to the object, so a concurrent status write may conflict; the manager repeats it. So may a
    // write of the Deployment, whose controller writes too.
    let conflicts = ["patch pulsarconsumers/status 409", "patch deployments 409"];
    let is_expected =
        |write: &str| write.ends_with(" 200") || write.ends_with(" 201") || conflicts.contains(&write);
    let writes = env.writes();
    let unexpected: Vec<_> = writes.iter().filter(|write| !is_expected(write)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}
