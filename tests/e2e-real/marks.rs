//! A new node that is prepared before other pods, and DaemonJobs that exclude each other on a node.

use quintet_e2e::condition;
use serde_json::{Value, json};

use crate::site::Site;

const TAINT: &str = "example.com/unprepared";
const LABEL: &str = "example.com/prepared";
const EXCLUSIVE: &str = "changes-the-node";

fn job(name: &str, seconds: &str, template: &Value) -> Value {
    let mut job = json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "template": { "metadata": {}, "spec": { "restartPolicy": "Never",
            "containers": [{ "name": "work", "image": "busybox", "command": ["sleep", seconds] }] } } } });
    for part in ["metadata", "spec"] {
        for (field, value) in template[part].as_object().into_iter().flatten() {
            job["spec"]["template"][part][field] = value.clone();
        }
    }
    job
}

fn is_complete(site: &Site, name: &str, succeeded: i64) -> bool {
    let job = site.get("daemonjob", name);
    condition(&job, "Complete").0 == "True" && job["status"]["succeeded"] == succeeded
}

fn has_taint(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == TAINT))
}

/// Start and end of the only container of an ended pod, in whole seconds.
fn interval(pod: &Value) -> (String, String) {
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let time = |field: &str| ended[field].as_str().unwrap_or_else(|| panic!("{pod:#}")).to_owned();
    (time("startedAt"), time("finishedAt"))
}

#[test]
fn prepares_a_new_node_before_other_pods() {
    let mut site = Site::new("real-marks", 1);
    site.install(&["--set", "daemonJob.nodeMarks.default={example.com/}"]);
    let template = json!({ "spec": { "tolerations": [{ "key": TAINT, "operator": "Exists", "effect": "NoSchedule" }] } });
    let mut prepare = job("prepare", "5", &template);
    prepare["spec"]["onSuccess"] =
        json!({ "labels": { LABEL: "true" }, "removeTaints": [{ "key": TAINT, "effect": "NoSchedule" }] });
    site.apply(&prepare);
    site.wait("the first node is prepared", || is_complete(&site, "prepare", 1));

    // The pods of the Deployment fit only on the new node.
    let labels = json!({ "app": "web" });
    site.apply(&json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "replicas": 2, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "terminationGracePeriodSeconds": 1, "nodeSelector": { "kubernetes.io/hostname": "node-2" },
                "containers": [{ "name": "web", "image": "busybox", "command": ["sleep", "600"] }] } } } }));
    let nodes = site.watch("nodes", "kubernetes.io/hostname=node-2");
    site.cluster().register_with_taint(2, &format!("{TAINT}=:NoSchedule")).unwrap();
    site.cluster().boot_node(2).unwrap();
    site.wait("the new node is prepared", || is_complete(&site, "prepare", 2));
    let took = site.wait("the Deployment is available", || {
        site.get("deployment", "web")["status"]["availableReplicas"] == 2
    });
    println!("the Deployment was available {:.1} s after the node was prepared", took.as_secs_f64());

    // The Node has the taint from its registration on, until one write makes all changes.
    let uid = site.get("daemonjob", "prepare")["metadata"]["uid"].as_str().unwrap().to_owned();
    let record = format!("dj.dysproz.io/marked-{uid}");
    let states: Vec<Value> = nodes.events().into_iter().map(|(_, node)| node).collect();
    for node in &states {
        let is_prepared = node["metadata"]["labels"][LABEL] == "true";
        assert_eq!(node["metadata"]["annotations"][&record].is_string(), is_prepared, "{node:#}");
        assert_eq!(has_taint(node), !is_prepared, "{node:#}");
    }
    assert!(has_taint(&states[0]), "{:#}", states[0]);
    let pods = site.list("pods", "daemonjob=prepare");
    let (_, prepared) = interval(pods.iter().find(|pod| pod["spec"]["nodeName"] == "node-2").unwrap());
    for pod in site.list("pods", "app=web") {
        assert!(pod["status"]["startTime"].as_str().unwrap() >= prepared.as_str(), "{prepared}: {pod:#}");
    }

    // Only the manager may change Nodes.
    let may = |account: &str| {
        let user = format!("--as=system:serviceaccount:{account}");
        site.kubectl(&["auth", "can-i", "patch", "nodes", &user]).is_ok()
    };
    assert!(may("quintet-system:quintet") && !may("default:default"));

    // A quarantine outlives the managers.
    site.kubectl(&["taint", "node", "node-2", &format!("{TAINT}=:NoSchedule")]).unwrap();
    site.kubectl(&["rollout", "restart", "deployment", "quintet", "-n", "quintet-system"]).unwrap();
    site.kubectl(&["rollout", "status", "deployment", "quintet", "-n", "quintet-system", "--timeout=3m"])
        .unwrap();
    site.apply(&job("after", "1", &template));
    site.wait("a new manager has run another DaemonJob", || is_complete(&site, "after", 2));
    assert!(has_taint(&site.get("node", "node-2")));
}

#[test]
fn two_daemonjobs_never_run_on_a_node_together() {
    let site = Site::with_chart("real-apart", 2);
    let term = json!({ "topologyKey": "kubernetes.io/hostname",
        "labelSelector": { "matchLabels": { EXCLUSIVE: "true" } } });
    let template = json!({ "metadata": { "labels": { EXCLUSIVE: "true" } },
        "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } } });
    let names = ["first", "second", "third"];
    for name in names {
        site.apply(&job(name, "4", &template));
    }
    for name in names {
        let took = site.wait(&format!("{name} is complete"), || is_complete(&site, name, 2));
        println!("{name} is complete after {:.1} s more", took.as_secs_f64());
    }
    let pods = site.list("pods", &format!("{EXCLUSIVE}=true"));
    for node in ["node-1", "node-2"] {
        let on_it = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node);
        let mut intervals: Vec<(String, String)> = on_it.map(interval).collect();
        intervals.sort();
        assert_eq!(intervals.len(), names.len(), "{node}: {intervals:?}");
        for pair in intervals.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{node}: {intervals:?}");
        }
    }
}
