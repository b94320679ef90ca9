//! How Helm, Flux and Argo CD see a PulsarConsumer in each state.
//!
//! The tests produce each row of the table in docs/pulsarconsumer.md and compare it with kstatus and with the
//! health check in samples/gitops. Nodes are simulated. The test writes the status of a pod whose image is missing.

use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::health::{Judge, Page, is_observed};
use quintet_e2e::shell::Shell;
use quintet_e2e::{TestEnv, condition, workspace};
use quintet_localcluster::documents;
use serde_json::{Value, json};

use crate::pulsarconsumer::{consumer, is_available, pod_status};

const PAGE: Page = Page {
    file: "pulsarconsumer.md",
    kind: "pulsarconsumer",
    key: "resource.customizations.health.pulsar.pulsarconsumer.krvarma.com_PulsarConsumer",
    conditions: &["Ready", "Stalled"],
};

const UNSEEN: &str = "no manager has seen the spec";
const ROLLING: &str = "pods are being replaced, or one is not ready";
const READY: &str = "all pods are ready and have the current template";
const EXPIRED: &str = "the rollout exceeded the Deployment's deadline";
const DELETED: &str = "being deleted";

/// The image that no registry has.
const MISSING_IMAGE: &str = "registry.invalid/missing:1";

/// The annotations of pods that a simulated node runs, but that are not ready.
fn unready() -> Value {
    json!({ "template": { "metadata": { "annotations": { "kwok.quintet.dev/ready": "false" } } } })
}

/// The spec of a rollout whose image is missing. A simulated node does not start the pods.
fn broken(fields: &Value) -> Value {
    let mut fields = fields.clone();
    fields["image"] = json!(MISSING_IMAGE);
    fields["template"] = json!({ "metadata": { "annotations": { "kwok.quintet.dev/start": "never" } } });
    fields
}

fn is_ready(consumer: &Value) -> bool {
    condition(consumer, "Ready") == ("True".into(), "ConsumersReady".into())
}

/// The message of a condition.
fn message<'a>(consumer: &'a Value, type_: &str) -> &'a str {
    let conditions = consumer["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|one| one["type"] == type_).unwrap()["message"].as_str().unwrap()
}

/// Writes the status of a kubelet that cannot pull the image of a pod, and returns the pod's name.
fn fail_to_pull(env: &TestEnv, name: &str) -> String {
    let find = || {
        let pods = env.list("pods", &format!("pulsarcrd={name}-pulsarcrd"));
        let mut broken = pods.into_iter().filter(|pod| {
            pod["spec"]["containers"][0]["image"] == MISSING_IMAGE && pod["spec"]["nodeName"].is_string()
        });
        broken.next().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
    };
    env.wait("a pod with the missing image is bound", || find().is_some());
    let pod = find().unwrap();
    let state = json!({ "waiting": { "reason": "ImagePullBackOff" } });
    env.patch("pod/status", &pod, &pod_status("Pending", &state));
    pod
}

/// Sets the deadline of a rollout, which the manager leaves to other clients.
fn set_deadline(env: &TestEnv, name: &str, seconds: u32) {
    let deadline = json!({ "spec": { "progressDeadlineSeconds": seconds } });
    env.patch("deployment", &format!("{name}-deployment"), &deadline);
}

/// Needs no cluster: the tests below produce each row of the table.
#[test]
fn tests_produce_every_row_of_the_table() {
    PAGE.has_exactly(&[UNSEEN, ROLLING, READY, EXPIRED, DELETED]);
}

#[test]
fn in_progress_until_a_manager_has_seen_the_spec() {
    let env = TestEnv::new("ph-unseen");
    let judge = Judge::new(&env, PAGE);
    env.apply(&consumer("new", &json!({}))).unwrap();
    let new = env.get("pulsarconsumer", "new").unwrap();
    assert_eq!(new["status"], json!({ "observedGeneration": -1 }));
    judge.expect(UNSEEN, &new);
    // Meanwhile only a manager without this kind runs.
    let other = env.manager("podset");
    sleep(Duration::from_secs(3));
    judge.expect(UNSEEN, &env.get("pulsarconsumer", "new").unwrap());
    assert_eq!(other.stop().unwrap(), Some(0));

    let manager = env.manager("pulsarconsumer");
    judge.wait(READY, "new", is_ready);
    assert_eq!(manager.stop().unwrap(), Some(0));
    env.patch("pulsarconsumer", "new", &json!({ "spec": { "image": MISSING_IMAGE } }));
    let new = env.get("pulsarconsumer", "new").unwrap();
    assert!(is_ready(&new), "the conditions are still those of the old spec: {:#}", new["status"]);
    judge.expect(UNSEEN, &new);
    judge.end(&[UNSEEN, READY]);
}

/// The pods of the old template stay ready, so Available stays True while Ready is False.
#[test]
fn a_missing_image_blocks_the_rollout_of_ready_pods() {
    let env = TestEnv::new("ph-image");
    let judge = Judge::new(&env, PAGE);
    let _manager = env.manager("pulsarconsumer");
    let fields = json!({ "replicas": 2 });
    let mut slow = fields.clone();
    slow["template"] = unready()["template"].clone();
    env.apply(&consumer("one", &slow)).unwrap();
    let one = judge.wait(ROLLING, "one", |one| {
        one["status"]["replicas"] == 2 && condition(one, "Available").1 == "ConsumersNotReady"
    });
    assert_eq!(condition(&one, "Ready"), ("False".into(), "RolloutUnfinished".into()));
    let annotate = ["annotate", "pods", "--overwrite", "kwok.quintet.dev/ready=true", "-l"];
    env.kubectl(&[&annotate[..], &["pulsarcrd=one-pulsarcrd"]].concat()).unwrap();
    judge.wait(READY, "one", is_ready);

    let watch = env.watch("pulsarconsumers", "");
    env.apply(&consumer("one", &broken(&fields))).unwrap();
    let broken = env.get("pulsarconsumer", "one").unwrap()["metadata"]["generation"].clone();
    let pod = fail_to_pull(&env, "one");
    let one = judge.wait(ROLLING, "one", |one| condition(one, "Ready").1 == "ImagePullFailed");
    let failure = format!("cannot pull an image of pod {pod}");
    assert_eq!(
        message(&one, "Ready"),
        format!("1 of 2 consumers have the current template, 2 are ready: {failure}")
    );
    assert_eq!(condition(&one, "Available"), ("True".into(), "ConsumersReady".into()));
    assert!(message(&one, "Available").starts_with("2 of 2 consumers are ready, 1 of 2 have the current"));
    let (status, reason) = condition(&one, "Progressing");
    assert!(
        status == "True" && ["NewReplicaSetCreated", "ReplicaSetUpdated"].contains(&&*reason),
        "{reason}"
    );
    assert_eq!(judge.health(&[&one])[0].kstatus.message, message(&one, "Ready"));
    env.wait("an Event reports the blocked rollout", || {
        let events = env.kubectl(&["get", "events", "-o", "json", "--field-selector=reason=RolloutBlocked"]);
        events.is_ok_and(|events| events.contains(&failure))
    });

    set_deadline(&env, "one", 3);
    let one = judge.wait(EXPIRED, "one", |one| condition(one, "Stalled").0 == "True");
    for type_ in ["Progressing", "Stalled"] {
        assert_eq!(condition(&one, type_).1, "ProgressDeadlineExceeded", "{type_}: {:#}", one["status"]);
    }
    assert_eq!(condition(&one, "Progressing").0, "False");
    assert_eq!(condition(&one, "Ready").1, "ImagePullFailed");
    assert_eq!(condition(&one, "Available").0, "True");
    assert!(message(&one, "Stalled").contains(&failure), "{}", message(&one, "Stalled"));
    assert_eq!(judge.health(&[&one])[0].kstatus.message, message(&one, "Stalled"));

    // No tool ever took the rollout for complete.
    let states: Vec<Value> = watch.events().into_iter().map(|(_, one)| one).collect();
    let states: Vec<&Value> = states.iter().filter(|one| one["metadata"]["generation"] == broken).collect();
    assert!(states.iter().filter(|one| is_observed(one)).count() >= 2, "{states:#?}");
    for (one, health) in states.iter().zip(judge.health(&states)) {
        assert!(!(is_observed(one) && is_ready(one)), "{one:#}");
        assert_ne!(health.kstatus.status, "Current", "{one:#}");
        assert_ne!(health.argo.unwrap().status, "Healthy", "{one:#}");
    }

    set_deadline(&env, "one", 600);
    env.apply(&consumer("one", &fields)).unwrap();
    judge.wait(READY, "one", is_ready);
    judge.end(&[ROLLING, READY, EXPIRED]);
}

#[test]
fn a_missing_image_fails_the_first_rollout() {
    let env = TestEnv::new("ph-first");
    let judge = Judge::new(&env, PAGE);
    let _manager = env.manager("pulsarconsumer");
    env.apply(&consumer("one", &broken(&json!({})))).unwrap();
    let failure = format!("cannot pull an image of pod {}", fail_to_pull(&env, "one"));
    let is_failed = |one: &Value| {
        ["Available", "Ready"]
            .iter()
            .all(|type_| condition(one, type_) == ("False".into(), "ImagePullFailed".into()))
    };
    let one = judge.wait(ROLLING, "one", is_failed);
    assert!(message(&one, "Ready").contains(&failure), "{:#}", one["status"]);
    set_deadline(&env, "one", 3);
    let one = judge.wait(EXPIRED, "one", |one| condition(one, "Stalled").0 == "True" && is_failed(one));
    assert!(message(&one, "Stalled").contains(&failure), "{:#}", one["status"]);
    judge.end(&[ROLLING, EXPIRED]);
}

/// One object has the finalizer of another client, and one waits for its subscription.
#[test]
fn terminating_when_deleted() {
    let env = TestEnv::new("ph-deleted");
    let judge = Judge::new(&env, PAGE);
    let _manager = env.manager("pulsarconsumer");
    let mut kept = consumer("kept", &json!({}));
    kept["metadata"]["finalizers"] = json!(["example.com/keep"]);
    env.apply(&kept).unwrap();
    // No broker listens here.
    let cleanup = json!({ "subscriptionName": "waiting", "adminURL": "http://127.0.0.1:9",
        "subscription": { "cleanup": "Delete" } });
    env.apply(&consumer("waiting", &cleanup)).unwrap();
    for name in ["kept", "waiting"] {
        env.wait_for("pulsarconsumer", name, "the consumer is available", is_available);
        judge.wait(READY, name, is_ready);
        env.kubectl(&["delete", "pulsarconsumer", name, "--wait=false"]).unwrap();
        let deleted = env.get("pulsarconsumer", name).unwrap();
        assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted:#}");
        judge.expect(DELETED, &deleted);
    }
    let waiting = env.wait_for("pulsarconsumer", "waiting", "the admin API does not answer", |one| {
        condition(one, "SubscriptionDeleted").1 == "AdminUnreachable"
    });
    judge.expect(DELETED, &waiting);
    let page = workspace().join("docs/pulsarconsumer.md");
    let keep = documents::command(&page, "kubectl patch pulsarconsumer preview ", "Keep");
    Shell::new(env.cluster(), env.namespace()).stdout(&keep.replace(" preview ", " waiting "));
    judge.expect(DELETED, &env.get("pulsarconsumer", "kept").unwrap());
    env.patch("pulsarconsumer", "kept", &json!({ "metadata": { "finalizers": null } }));
    for name in ["kept", "waiting"] {
        env.wait("the PulsarConsumer is deleted", || env.get("pulsarconsumer", name).is_none());
    }
    judge.end(&[READY, DELETED]);
}
