//! PodSet: the desired number of pods.

use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

/// The label of the selector, with the PodSet's UID.
pub(crate) const UID_LABEL: &str = "batch.tutorial.kubebuilder.io/podset-uid";

pub(crate) fn podset(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": name }, "spec": spec })
}

fn ready(count: i64) -> impl Fn(&Value) -> bool {
    move |set| {
        set["status"]["readyReplicas"].as_i64().unwrap_or(0) == count && set["status"]["replicas"] == count
    }
}

#[test]
fn scales_in_one_step_and_replaces_deleted_pods() {
    let env = TestEnv::new("ps-scale");
    let _manager = env.manager("podset");
    // A foreign pod with the same labels as the PodSet's pods.
    let foreign = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "foreign", "labels": { "app": "set", "version": "v0.1" } },
        "spec": { "containers": [{ "name": "c", "image": "busybox" }] } });
    env.apply(&foreign).unwrap();
    let template = crate::podset_rollout::template("busybox", &json!({}));
    env.apply(&podset("set", &json!({ "replicas": 3, "template": template }))).unwrap();
    let set = env.wait_for("podset", "set", "three pods are ready", ready(3));
    assert_eq!(set["status"]["podNames"].as_array().unwrap().len(), 3);
    env.kubectl(&["scale", "podset", "set", "--replicas=20"]).unwrap();
    env.wait_for("podset", "set", "twenty pods are ready", ready(20));
    let creates = env.writes().iter().filter(|write| write.starts_with("create pods")).count();
    assert_eq!(creates, 20, "one creation for each pod, no overshoot");

    let gone = set["status"]["podNames"][0].as_str().unwrap().to_owned();
    let uid = env.get("pod", &gone).unwrap()["metadata"]["uid"].clone();
    env.kubectl(&["delete", "pod", &gone, "--wait=false"]).unwrap();
    env.wait("the pod is replaced", || {
        let pods = env.list("pods", "quintet.dev/kind=PodSet");
        pods.len() == 20 && pods.iter().all(|pod| pod["metadata"]["uid"] != uid)
    });
    env.wait_for("podset", "set", "twenty pods are ready again", ready(20));

    env.kubectl(&["scale", "podset", "set", "--replicas=2"]).unwrap();
    env.wait_for("podset", "set", "two pods are ready", ready(2));
    env.wait("eighteen pods are gone", || env.list("pods", "quintet.dev/kind=PodSet").len() == 2);
    assert!(env.get("pod", "foreign").unwrap()["metadata"]["deletionTimestamp"].is_null());

    env.kubectl(&["delete", "podset", "set", "--timeout=60s"]).unwrap();
    env.wait("the pods are gone", || env.list("pods", "quintet.dev/kind=PodSet").is_empty());
    assert!(env.get("pod", "foreign").is_some());
}

#[test]
fn runs_the_tutorials_sample() {
    let env = TestEnv::new("ps-sample");
    let manager = env.manager("podset");
    env.apply_sample("podset/podset-sample.yaml").unwrap();
    env.wait_for("podset", "podset-sample", "the pod is ready", ready(1));
    let pods = env.list("pods", "app=podset-sample,version=v0.1");
    assert_eq!(pods.len(), 1);
    assert!(pods[0]["metadata"]["name"].as_str().unwrap().starts_with("podset-sample-pod-"));
    assert_eq!(pods[0]["spec"]["containers"][0]["image"], "busybox");
    assert_eq!(pods[0]["spec"]["containers"][0]["command"], json!(["sleep", "3600"]));

    // A restarted manager creates nothing.
    manager.kill().unwrap();
    let before = env.writes_at_rest();
    let _manager = env.manager("podset");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(env.writes(), before);
}

/// The simulated kubelet ends the pod eight seconds after its deletion began.
#[test]
fn waits_for_the_end_of_a_terminating_pod() {
    let env = TestEnv::new("ps-single");
    let _manager = env.manager("podset");
    let template =
        crate::podset_rollout::template("busybox", &json!({ "kwok.quintet.dev/stop-seconds": "8" }));
    env.apply(&podset("set", &json!({ "podReplacementPolicy": "Failed", "template": template }))).unwrap();
    env.wait_for("podset", "set", "the pod is ready", ready(1));
    let pods = || env.list("pods", "app=set");
    let uid = pods()[0]["metadata"]["uid"].clone();
    env.kubectl(&["delete", "pods", "-l", "app=set", "--wait=false"]).unwrap();
    env.wait_for("podset", "set", "the pod is terminating", |set| {
        set["status"]["terminatingReplicas"] == 1 && set["status"]["replicas"] == 0
    });
    env.wait("the pod is gone", || {
        let pods = pods();
        // The manager replaces a pod that has ended, even if it is not gone.
        let runs = |pod: &&Value| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        assert!(pods.iter().filter(runs).count() <= 1, "never two pods at once: {pods:#?}");
        pods.iter().all(|pod| pod["metadata"]["uid"] != uid)
    });
    env.wait_for("podset", "set", "the pod is replaced", ready(1));
}

#[test]
fn admission_rejects_bad_input() {
    let env = TestEnv::new("ps-bad");
    let text = env.apply(&podset("bad", &json!({ "replicas": -1 }))).unwrap_err();
    assert!(text.contains("spec.replicas") && text.contains("greater than or equal to 0"), "{text}");
    let text = env.apply(&podset("bad", &json!({ "replicas": 1_000_000 }))).unwrap_err();
    assert!(text.contains("spec.replicas"), "{text}");
    let text = env.apply(&podset(&"x".repeat(80), &json!({}))).unwrap_err();
    assert!(text.contains("63"), "{text}");
    for (spec, sentence) in [
        (
            json!({ "updateStrategy": { "maxUnavailable": "101%" } }),
            "maxUnavailable must be a whole number or a percentage",
        ),
        (json!({ "updateStrategy": { "maxSurge": "x" } }), "maxSurge must be a whole number or a percentage"),
        (
            json!({ "updateStrategy": { "partition": -1 } }),
            "partition must be a whole number or a percentage",
        ),
        (
            json!({ "updateStrategy": { "type": "Recreate" } }),
            "supported values: \"RollingUpdate\", \"OnDelete\"",
        ),
        (json!({ "progressDeadlineSeconds": 0 }), "progressDeadlineSeconds"),
        (json!({ "template": {} }), "must list at least one container"),
        (
            json!({ "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } } }),
            "restartPolicy must be Always",
        ),
    ] {
        let text = env.apply(&podset("bad", &spec)).unwrap_err();
        assert!(text.contains(sentence), "{spec}: {text}");
    }
}

#[test]
fn reports_a_quota_and_backs_off() {
    let env = TestEnv::new("ps-quota");
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" },
        "spec": { "hard": { "pods": "2" } } });
    env.apply(&quota).unwrap();
    env.wait_for("resourcequota", "few", "the quota takes effect", |quota| {
        !quota["status"]["hard"].is_null()
    });
    let manager = env.manager("podset");
    env.apply(&podset("many", &json!({ "replicas": 5 }))).unwrap();
    let set = env.wait_for("podset", "many", "the status reports the rejection", |set| {
        condition(set, "ReplicaFailure").0 == "True" && set["status"]["readyReplicas"] == 2
    });
    assert!(set["status"].to_string().contains("exceeded quota"), "{set:#}");
    std::thread::sleep(std::time::Duration::from_secs(5));
    let rejected = env.writes().iter().filter(|write| write.starts_with("create pods 403")).count();
    assert!((1..=8).contains(&rejected), "{rejected} rejections: {:?}", env.writes());
    let counted = |objects: u8| {
        let line = format!("quintet_refused_objects{{controller=\"podset\"}} {objects}\n");
        manager.metrics().is_ok_and(|metrics| metrics.contains(&line))
    };
    assert!(counted(1), "{}", manager.metrics().unwrap());
    let mut wider = quota;
    wider["spec"]["hard"]["pods"] = json!("9");
    env.apply(&wider).unwrap();
    env.wait_for("podset", "many", "all five pods are ready", |set| set["status"]["readyReplicas"] == 5);
    env.wait("no write is rejected", || counted(0));
}

/// A policy that changes new pods of the test's namespace by a CEL expression. Returns when it takes effect.
fn apply_policy(env: &TestEnv, operations: &[&str], expression: &str) {
    let name = env.namespace();
    let policy = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
                "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["pods"] }],
            },
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }],
        } });
    env.apply(&policy).unwrap();
    let binding = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": name }, "spec": { "policyName": name } });
    env.apply(&binding).unwrap();
    let probe = probe();
    env.wait("the policy takes effect", || {
        env.apply(&probe).unwrap();
        let found = env.get("pod", "probe").unwrap()["metadata"]["labels"].clone();
        env.kubectl(&["delete", "pod", "probe", "--now"]).unwrap();
        found != probe["metadata"]["labels"]
    });
}

/// A pod with labels that policies change.
fn probe() -> Value {
    let labels = json!({ "app": "probe", UID_LABEL: "probe", "quintet.dev/kind": "probe" });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "probe", "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "busybox" }] } })
}

fn delete_policy(env: &TestEnv) {
    for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
        env.kubectl(&["delete", kind, env.namespace()]).unwrap();
    }
}

#[test]
fn a_policy_that_overwrites_app_changes_nothing() {
    let env = TestEnv::new("ps-app");
    let _manager = env.manager("podset");
    apply_policy(&env, &["CREATE"], "[JSONPatch{op: 'add', path: '/metadata/labels/app', value: 'theirs'}]");
    env.apply(&podset("set", &json!({ "replicas": 2 }))).unwrap();
    env.wait_for("podset", "set", "two pods are ready", ready(2));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!((env.created_pods().len(), env.list("pods", "app=theirs").len()), (2, 2));
    delete_policy(&env);
}

/// Policies remove the label and forbid deletions. A retry makes no further pod, and the pods are deleted when that is
/// allowed again.
#[test]
fn a_pod_without_the_label_that_cannot_be_deleted_stays_alone() {
    let env = TestEnv::new("ps-undeletable");
    let _manager = env.manager("podset");
    let remove = format!("'/metadata/labels/' + jsonpatch.escapeKey('{UID_LABEL}')");
    apply_policy(&env, &["CREATE", "UPDATE"], &format!("[JSONPatch{{op: 'remove', path: {remove}}}]"));
    env.forbid("DELETE", ("", "pods"));
    env.apply(&probe()).unwrap();
    env.wait("the policy takes effect", || {
        env.kubectl(&["delete", "pod", "probe", "--dry-run=server"]).is_err()
    });
    env.apply(&podset("set", &json!({ "replicas": 3 }))).unwrap();
    let set = env.wait_for("podset", "set", "the condition names the label", |set| {
        condition(set, "ReplicaFailure").1 == "LabelsOverwritten"
    });
    let conditions = set["status"]["conditions"].to_string();
    let pods = env.list("pods", "app=set");
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    assert!(
        pods.len() == 1 && conditions.contains(&format!("{name}, which cannot be deleted")),
        "{conditions}"
    );
    assert!(conditions.contains(UID_LABEL), "{conditions}");
    env.wait("a retry", || {
        let retries = env
            .writes()
            .iter()
            .filter(|write| write.starts_with("create pods") && write.ends_with("409"))
            .count();
        retries >= 1
    });
    assert_eq!(env.list("pods", "app=set").len(), 1);
    env.allow();
    delete_policy(&env);
    env.wait_for("podset", "set", "three pods are ready", ready(3));
    env.wait("no other pod is left", || env.list("pods", "app=set").len() == 3);
}

/// Of the pods that a policy takes the label from, none is left, and none belongs to no PodSet.
#[test]
fn a_policy_that_removes_our_labels_stops_creations() {
    let env = TestEnv::new("ps-labels");
    let _manager = env.manager("podset");
    let remove = |label: &str| {
        format!("JSONPatch{{op: 'remove', path: '/metadata/labels/' + jsonpatch.escapeKey('{label}')}}")
    };
    for (name, label) in [("set", UID_LABEL), ("other", "quintet.dev/kind")] {
        apply_policy(&env, &["CREATE"], &format!("[{}]", remove(label)));
        let before = env.created_pods().len();
        env.apply(&podset(name, &json!({ "replicas": 3 }))).unwrap();
        let set = env.wait_for("podset", name, "the condition names the label", |set| {
            condition(set, "ReplicaFailure").1 == "LabelsOverwritten"
        });
        assert!(set["status"]["conditions"].to_string().contains(label), "{set:#}");
        std::thread::sleep(std::time::Duration::from_secs(5));
        assert!(env.created_pods().len() <= before + 1, "one creation alone: {:?}", env.writes());
        env.wait("no pod is left", || env.list("pods", "").is_empty());
        delete_policy(&env);
        env.wait_for("podset", name, "three pods are ready", ready(3));
        env.kubectl(&["delete", "podset", name, "--timeout=60s"]).unwrap();
        env.wait("the pods are gone", || env.list("pods", "").is_empty());
    }
}
