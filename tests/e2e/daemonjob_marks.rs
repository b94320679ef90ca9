//! Changes of a DaemonJob on Nodes after a success, and DaemonJobs that exclude each other on a node.
//!
//! The nodes are simulated. The API server, the scheduler and the rights of the chart are real.

use std::collections::BTreeMap;

use quintet_e2e::{TestEnv, condition, has_made_a_pass};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, running, word};

const LABEL: &str = "example.com/prepared";
const TAINT: &str = "example.com/unprepared";

fn on_success() -> Value {
    json!({ "labels": { LABEL: "true" }, "removeTaints": [{ "key": TAINT, "effect": "NoSchedule" }] })
}

/// A DaemonJob that tolerates the taint and removes it.
fn preparing(mut job: Value) -> Value {
    job["spec"]["onSuccess"] = on_success();
    job["spec"]["template"]["spec"]["tolerations"] = json!([{ "key": TAINT, "operator": "Exists" }]);
    job
}

fn add_taint(env: &TestEnv, node: &str) {
    env.kubectl(&["taint", "node", node, &format!("{TAINT}=:NoSchedule")]).unwrap();
}

fn is_tainted(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == TAINT))
}

fn is_labelled(node: &Value) -> bool {
    node["metadata"]["labels"][LABEL] == "true"
}

/// The success that a Node records for a DaemonJob.
fn recorded(node: &Value, job: &Value) -> Value {
    let uid = job["metadata"]["uid"].as_str().unwrap();
    node["metadata"]["annotations"][&format!("dj.dysproz.io/marked-{uid}")].clone()
}

fn is_bound(env: &TestEnv, pod: &str) -> bool {
    env.get("pod", pod).is_some_and(|pod| pod["spec"]["nodeName"].is_string())
}

#[test]
fn prepares_a_node_before_other_pods() {
    let env = TestEnv::new("dm-prepare");
    let node = env.node("a");
    add_taint(&env, &node);
    let watch = env.watch("nodes", &format!("env={}", env.namespace()));
    let other = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "other" },
        "spec": { "nodeSelector": { "env": env.namespace() }, "containers": [{ "name": "c", "image": "i" }] } });
    env.apply(&other).unwrap();
    let _manager = env.manager_with("manager", "daemonjob", &[&env.node_marks()]);
    env.apply(&preparing(held(&env, "prepare", &json!({})))).unwrap();
    let pod = running(&env, "prepare", &node, 1);
    assert!(is_tainted(&env.get("node", &node).unwrap()) && !is_bound(&env, "other"));
    assert_eq!(env.node_writes(&node), [0; 0]);

    end(&env, &[&pod], 0);
    let job = env.wait_for("daemonjob", "prepare", "it is complete", is_complete);
    env.wait("the other pod is bound", || is_bound(&env, "other"));
    let now = env.get("node", &node).unwrap();
    assert!(is_labelled(&now) && !is_tainted(&now), "{now:#}");
    assert_eq!(recorded(&now, &job), "1/1");
    // Each state of the Node has all changes or none.
    for (_, node) in watch.events() {
        let has_record = recorded(&node, &job).is_string();
        assert!(!has_record || is_labelled(&node) && !is_tainted(&node), "{node:#}");
        assert!(has_record || !is_labelled(&node), "{node:#}");
    }
    env.wait("the audit log has the patch", || !env.node_writes(&node).is_empty());
    assert_eq!(env.node_writes(&node), [200]);
}

/// The changes of an administrator last until the next success, even after a restart of the manager.
#[test]
fn changes_a_node_once_for_each_success() {
    let env = TestEnv::new("dm-once");
    let nodes = env.nodes(["a", "b"]);
    let flag = env.node_marks();
    let manager = env.manager_with("manager", "daemonjob", &[&flag]);
    let mut job = preparing(daemonjob(&env, "prepare", &json!({})));
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "prepare", "it is complete", is_complete);

    // One node is in quarantine, and the other one has lost its label.
    add_taint(&env, &nodes[0]);
    env.kubectl(&["label", "node", &nodes[1], &format!("{LABEL}-")]).unwrap();
    env.wait_for("node", &nodes[1], "the label is removed", |node| !is_labelled(node));
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = env.manager_with("manager", "daemonjob", &[&flag]);
    env.wait("the manager has reconciled", || has_made_a_pass(&manager, "daemonjob"));
    env.writes_at_rest();
    assert!(is_tainted(&env.get("node", &nodes[0]).unwrap()));
    assert!(!is_labelled(&env.get("node", &nodes[1]).unwrap()));
    for node in &nodes {
        assert_eq!(env.node_writes(node), [200]);
    }

    // The next success changes both again.
    job["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    env.apply(&job).unwrap();
    let job = env.wait_for("daemonjob", "prepare", "it is complete again", |job| {
        is_complete(job) && job["status"]["observedGeneration"] == 2
    });
    for node in &nodes {
        let now = env.get("node", node).unwrap();
        assert!(is_labelled(&now) && !is_tainted(&now), "{now:#}");
        assert_eq!(recorded(&now, &job), "2/2");
        env.wait("the audit log has the patch", || env.node_writes(node).len() > 1);
        assert_eq!(env.node_writes(node), [200, 200]);
    }
}

/// The DaemonJob runs without the permission, and reports the missing value.
#[test]
fn waits_until_an_administrator_allows_the_keys() {
    let env = TestEnv::new("dm-allow");
    let node = env.node("a");
    add_taint(&env, &node);
    let other = format!("--daemon-job-node-marks={}=example.com/other", env.namespace());
    let value = format!("daemonJob.nodeMarks, for example to {{{}: [example.com/]}}", env.namespace());
    let mut pods = None;
    for (flags, reason) in
        [(vec![], "may not change Nodes"), (vec![other.as_str()], "no prefix that is allowed in namespace")]
    {
        let manager = env.manager_with("manager", "daemonjob", &flags);
        env.apply(&preparing(daemonjob(&env, "prepare", &json!({})))).unwrap();
        let job = env.wait_for("daemonjob", "prepare", "it reports the missing value", |job| {
            let conditions = job["status"]["conditions"].to_string();
            condition(job, "Complete") == ("False".into(), "MarkRefused".into())
                && job["status"]["succeeded"] == 1
                && conditions.contains(reason)
                && conditions.contains(&value)
        });
        assert_eq!(condition(&job, "MarkRefused"), ("True".into(), "NotAllowed".into()), "{job:#}");
        assert_eq!(condition(&job, "Stalled").0, "True", "{job:#}");
        env.wait("the gauge counts the DaemonJob", || {
            let series = "quintet_daemonjob_objects{state=\"MarkRefused\"} 1";
            manager.metrics().is_ok_and(|metrics| metrics.contains(series))
        });
        assert_eq!(manager.stop().unwrap(), Some(0));
        let created = env.created_pods();
        assert_eq!(*pods.get_or_insert(created.clone()), created);
    }
    assert_eq!(env.node_writes(&node), [0; 0]);

    let _manager = env.manager_with("manager", "daemonjob", &[&env.node_marks()]);
    let job = env.wait_for("daemonjob", "prepare", "it is complete", is_complete);
    assert_eq!(condition(&job, "MarkRefused"), (String::new(), String::new()), "{job:#}");
    let now = env.get("node", &node).unwrap();
    assert!(is_labelled(&now) && !is_tainted(&now), "{now:#}");
    assert_eq!(Some(env.created_pods()), pods, "no node runs again");
}

/// A policy rejects the patch for some time.
#[test]
fn retries_a_rejected_change() {
    let env = TestEnv::new("dm-rejected");
    let node = env.node("a");
    let name = env.namespace();
    let spec = json!({
        "matchConstraints": {
            "objectSelector": { "matchLabels": { "env": name } },
            "resourceRules": [{ "apiGroups": [""], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["nodes"] }],
        },
        "validations": [{ "message": "a policy of the test",
            "expression": "request.userInfo.username != 'system:serviceaccount:quintet-system:quintet'" }],
    });
    let binding = json!({ "policyName": name, "validationActions": ["Deny"] });
    for (kind, spec) in [("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)] {
        let object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": name }, "spec": spec });
        env.apply(&object).unwrap();
    }
    let patch = json!({ "metadata": { "labels": { "example.com/probe": "x" } } }).to_string();
    let user = "--as=system:serviceaccount:quintet-system:quintet";
    env.wait("the policy has an effect", || {
        env.kubectl(&[user, "patch", "node", &node, "--type=merge", "-p", &patch]).is_err()
    });
    let _manager = env.manager_with("manager", "daemonjob", &[&env.node_marks()]);
    env.apply(&preparing(daemonjob(&env, "prepare", &json!({})))).unwrap();
    let job = env.wait_for("daemonjob", "prepare", "it reports the rejection", |job| {
        condition(job, "Complete") == ("False".into(), "MarkRefused".into())
    });
    assert_eq!(condition(&job, "MarkRefused"), ("True".into(), "FailedWrite".into()), "{job:#}");
    assert_eq!(condition(&job, "Stalled").0, "", "the manager retries: {job:#}");
    assert!(job["status"]["conditions"].to_string().contains("a policy of the test"), "{job:#}");

    env.allow();
    let job = env.wait_for("daemonjob", "prepare", "it is complete", is_complete);
    assert_eq!(recorded(&env.get("node", &node).unwrap(), &job), "1/1");
    env.wait("the audit log has the patch", || env.node_writes(&node).last() == Some(&200));
    let writes = env.node_writes(&node);
    assert!(writes.iter().filter(|code| **code == 200).count() == 1 && writes.len() < 8, "{writes:?}");
}

/// The pod anti-affinity of the sample: the second DaemonJob waits on each node until the first one has ended.
#[test]
fn two_daemonjobs_never_run_on_a_node_together() {
    let env = TestEnv::new("dm-apart");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let key = "changes-the-node";
    let alone = |name: &str| {
        let mut job = held(&env, name, &json!({}));
        let term = json!({ "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": { key: "true" } } });
        let template = &mut job["spec"]["template"];
        template["metadata"]["labels"][key] = json!("true");
        template["spec"]["affinity"]["podAntiAffinity"] =
            json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] });
        job
    };
    let watch = env.watch("pods", &format!("{key}=true"));
    env.apply(&alone("first")).unwrap();
    let first: Vec<String> = nodes.iter().map(|node| running(&env, "first", node, 1)).collect();
    env.apply(&alone("second")).unwrap();
    env.wait_for("daemonjob", "second", "both pods wait", |job| {
        nodes.iter().all(|node| word(job, "pendingNodes", node) == "Unschedulable")
    });
    end(&env, &[&first[0]], 0);
    let pod = running(&env, "second", &nodes[0], 1);
    assert_eq!(word(&env.get("daemonjob", "second").unwrap(), "pendingNodes", &nodes[1]), "Unschedulable");
    end(&env, &[&pod, &first[1]], 0);
    let pod = running(&env, "second", &nodes[1], 1);
    end(&env, &[&pod], 0);
    for name in ["first", "second"] {
        env.wait_for("daemonjob", name, "it is complete", is_complete);
    }

    // The pods that hold each node, by the events of the API server.
    let mut holders: BTreeMap<String, String> = BTreeMap::new();
    for (type_, pod) in watch.events() {
        let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
        let name = pod["metadata"]["name"].as_str().unwrap();
        let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let holder = holders.get(node);
        if type_ == "DELETED" || has_ended {
            if holder.is_some_and(|holder| holder == name) {
                holders.remove(node);
            }
        } else {
            assert!(holder.is_none_or(|holder| holder == name), "{name} runs with {holder:?} on {node}");
            holders.insert(node.to_owned(), name.to_owned());
        }
    }
    assert!(holders.is_empty(), "{holders:?}");
}
