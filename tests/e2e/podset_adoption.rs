//! PodSet: the adoption of running pods.

use std::collections::BTreeSet;

use quintet_e2e::TestEnv;
use serde_json::{Value, json};

use crate::podset::{UID_LABEL, podset};
use crate::podset_rollout::{rolled_out, template};

/// The label of a pod's template.
const HASH_LABEL: &str = "batch.tutorial.kubebuilder.io/template-hash";

fn web() -> Value {
    let mut template = template("busybox", &json!({}));
    template["metadata"]["labels"] = json!({ "run": "web" });
    template
}

/// A PodSet that adopts the pods with the label `run: web`.
fn adopting(replicas: i64) -> Value {
    let adopt = json!({ "selector": { "matchLabels": { "run": "web" } } });
    podset("set", &json!({ "replicas": replicas, "template": web(), "adopt": adopt }))
}

fn uids(env: &TestEnv) -> BTreeSet<String> {
    let pods = env.list("pods", "run=web");
    pods.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn takes_over_from_a_replicaset() {
    let env = TestEnv::new("pa-set");
    let _manager = env.manager("podset");
    let selector = json!({ "matchLabels": { "run": "web" } });
    let set = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "web" },
        "spec": { "replicas": 4, "selector": selector, "template": web() } });
    env.apply(&set).unwrap();
    env.wait_for("replicaset", "web", "four pods are ready", |set| set["status"]["readyReplicas"] == 4);
    let before = uids(&env);
    // Pods that have an owner stay with it.
    env.apply(&adopting(1)).unwrap();
    env.wait_for("podset", "set", "one own pod is ready", rolled_out(1));
    env.kubectl(&["delete", "podset", "set", "--timeout=60s"]).unwrap();
    env.wait("the pod is gone", || uids(&env) == before);

    env.kubectl(&["delete", "replicaset", "web", "--cascade=orphan"]).unwrap();
    env.wait("the pods have no owner", || {
        env.list("pods", "run=web").iter().all(|pod| pod["metadata"]["ownerReferences"].is_null())
    });
    env.apply(&adopting(3)).unwrap();
    env.wait_for("podset", "set", "three pods are ready", rolled_out(3));
    assert_eq!(uids(&env), before, "no pod was created or deleted");
    let adopted = env.list("pods", UID_LABEL);
    assert_eq!(adopted.len(), 3, "the fourth stays without an owner");
    assert!(adopted.iter().all(|pod| pod["metadata"]["labels"]["run"] == "web"));
    assert!(adopted.iter().all(|pod| pod["metadata"]["labels"][HASH_LABEL].is_string()));
    env.kubectl(&["scale", "podset", "set", "--replicas=4"]).unwrap();
    env.wait_for("podset", "set", "four pods are ready", rolled_out(4));
    assert_eq!(uids(&env), before);
    // A pod that a user takes out is not taken back.
    let out = adopted[0]["metadata"]["name"].as_str().unwrap();
    env.kubectl(&["label", "pod", out, &format!("{UID_LABEL}-")]).unwrap();
    env.wait("the pod is replaced", || uids(&env).len() == 5);
    env.wait_for("podset", "set", "four pods are ready", rolled_out(4));
    assert!(env.get("pod", out).unwrap()["metadata"]["ownerReferences"].is_null());
}

#[test]
fn takes_over_from_a_deleted_podset() {
    let env = TestEnv::new("pa-orphan");
    let _manager = env.manager("podset");
    env.apply(&adopting(3)).unwrap();
    env.wait_for("podset", "set", "three pods are ready", rolled_out(3));
    let before = uids(&env);
    env.kubectl(&["delete", "podset", "set", "--cascade=orphan"]).unwrap();
    env.wait("the PodSet is gone", || env.get("podset", "set").is_none());
    env.apply(&adopting(3)).unwrap();
    env.wait_for("podset", "set", "three pods are ready", rolled_out(3));
    assert_eq!(uids(&env), before, "no pod was created or deleted");
    // A new template reaches adopted pods too.
    env.patch(
        "podset",
        "set",
        &json!({ "spec": { "adopt": null, "minReadySeconds": 1,
        "template": { "spec": { "terminationGracePeriodSeconds": 1 } } } }),
    );
    env.wait_for("podset", "set", "three new pods are ready", rolled_out(3));
    env.wait("the adopted pods are gone", || uids(&env).is_disjoint(&before));
    let bad = podset("bad", &json!({ "adopt": { "selector": {} } }));
    let refusal = env.apply(&bad).unwrap_err();
    assert!(refusal.contains("adopt.selector must not be empty"), "{refusal}");
}
