//! PulsarConsumer and KEDA: what is written for it, held against KEDA's own definitions and source.
//!
//! KEDA itself does not run here: its words on a ScaledObject are written by the test.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use quintet_e2e::{Arena, condition, workspace};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::pulsarconsumer::consumer;

/// The Go module of KEDA, as the Go command keeps it: `tests/controlplane/keda/go.mod` states its version.
fn keda() -> PathBuf {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", "github.com/kedacore/keda/v2"]);
    go.current_dir(workspace().join("tests/controlplane/keda"));
    let answer: Value = serde_json::from_str(&run::stdout(&mut go).unwrap()).unwrap();
    answer["Dir"].as_str().unwrap().into()
}

/// The names that a scaler of KEDA's reads, from the tags of its source: `keda:"name=adminURL, order=..."`.
fn names_in(source: &str) -> Vec<String> {
    let tags = source.split("keda:\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let names = tags.filter_map(|(tag, _)| tag.split(',').find_map(|part| part.trim().strip_prefix("name=")));
    names.flat_map(|names| names.split(';')).map(str::to_owned).collect()
}

fn is_reason(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |consumer| condition(consumer, "AutoscalingReady").1 == reason
}

#[test]
fn keda_is_used_as_soon_as_it_is_there_and_let_go_when_it_is_not_wanted() {
    let arena = Arena::alone("pc-keda");
    arena.node("one");
    let keda = keda();
    let manager = arena.manager("pulsarconsumer");
    let fields = json!({
        // Nobody listens there: the topic is not known, which keeps nobody from being scaled.
        "adminURL": "http://127.0.0.1:9",
        "auth": { "tokenSecret": { "name": "credentials" } },
        "autoscaling": { "minReplicas": 1, "maxReplicas": 5, "targetBacklog": 100, "activationBacklog": 2,
            "pollingIntervalSeconds": 15, "cooldownSeconds": 60 },
    });
    let mut scaled = consumer("scaled", &fields);
    scaled["spec"].as_object_mut().unwrap().remove("replicas");
    arena.apply(&scaled).unwrap();
    arena.wait_for("pulsarconsumer", "scaled", "KEDA is missed", is_reason("KedaMissing"));

    for definition in ["scaledobjects", "triggerauthentications"] {
        let file = keda.join(format!("config/crd/bases/keda.sh_{definition}.yaml"));
        arena.kubectl(&["create", "-f", file.to_str().unwrap()]).unwrap();
    }
    arena.wait_for("pulsarconsumer", "scaled", "KEDA is told", is_reason("KedaPending"));
    assert!(manager.is_alive(), "no restart was needed");
    let object = arena.get("scaledobject", "scaled-pulsarcrd").unwrap();
    let authentication = arena.get("triggerauthentication", "scaled-pulsarcrd-token").unwrap();

    // The API server has kept every field, so KEDA's definitions know them; the scaler's own source knows the rest.
    let trigger = &object["spec"]["triggers"][0];
    assert_eq!(trigger["authenticationRef"]["name"], "scaled-pulsarcrd-token");
    assert_eq!(object["spec"]["pollingInterval"], 15);
    assert_eq!(object["spec"]["cooldownPeriod"], 60);
    let read = |file: &str| names_in(&fs::read_to_string(keda.join("pkg/scalers").join(file)).unwrap());
    let mut known = read("pulsar_scaler.go");
    known.extend(read("authentication/authentication_types.go"));
    assert!(known.len() > 10, "{known:?}");
    for name in trigger["metadata"].as_object().unwrap().keys() {
        assert!(known.contains(name), "{name} is none of {known:?}");
    }
    let parameter = authentication["spec"]["secretTargetRef"][0]["parameter"].as_str().unwrap();
    assert!(known.iter().any(|name| name == parameter), "{parameter} is none of {known:?}");

    let ready = |status: &str, message: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "message": message, "reason": "x" }] } });
    arena.patch("scaledobject/status", "scaled-pulsarcrd", &ready("False", "no such secret"));
    arena.wait_for("pulsarconsumer", "scaled", "KEDA's words", is_reason("ScaledObjectNotReady"));
    arena.patch("scaledobject/status", "scaled-pulsarcrd", &ready("True", "ok"));
    arena.wait_for("pulsarconsumer", "scaled", "KEDA's word", is_reason("ScaledObjectReady"));

    // What the autoscaler writes is what is applied, also when the manifest is applied again without replicas.
    arena.kubectl(&["scale", "pcon", "scaled", "--replicas=4"]).unwrap();
    arena.wait_for("deployment", "scaled-deployment", "it is scaled", |one| one["spec"]["replicas"] == 4);
    arena.apply(&scaled).unwrap();
    // KEDA's own changes to its objects stay, ours are repaired.
    arena.patch(
        "scaledobject",
        "scaled-pulsarcrd",
        &json!({ "metadata": { "labels": { "scaledobject.keda.sh/name": "x" } },
        "spec": { "maxReplicaCount": 1 } }),
    );
    let object = arena.wait_for("scaledobject", "scaled-pulsarcrd", "it is repaired", |object| {
        object["spec"]["maxReplicaCount"] == 5
    });
    assert_eq!(object["metadata"]["labels"]["scaledobject.keda.sh/name"], "x");
    assert_eq!(arena.get("deployment", "scaled-deployment").unwrap()["spec"]["replicas"], 4);

    scaled["spec"].as_object_mut().unwrap().remove("autoscaling");
    arena.apply(&scaled).unwrap();
    arena.wait("nothing of it is left", || {
        arena.get("scaledobject", "scaled-pulsarcrd").is_none()
            && arena.get("triggerauthentication", "scaled-pulsarcrd-token").is_none()
    });
    arena.wait_for("pulsarconsumer", "scaled", "it is not spoken of", |consumer| {
        condition(consumer, "AutoscalingReady").0.is_empty()
    });
    // The test has written to the object too: a status that was on its way then is refused, as it must be, and written anew.
    let is_expected = |write: &str| {
        write.ends_with(" 200") || write.ends_with(" 201") || write == "patch pulsarconsumers/status 409"
    };
    let writes = arena.writes();
    let refused: Vec<_> = writes.iter().filter(|write| !is_expected(write)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
