//! A new node that is prepared before other pods, and DaemonJobs that exclude each other on a node.

use quintet_e2e::{condition, workspace};
use serde_json::{Value, json};

use crate::site::Site;

const TAINT: &str = "example.com/unprepared";
const LABEL: &str = "example.com/prepared";
const EXCLUSIVE: &str = "changes-the-node";

/// A DaemonJob whose pods tolerate the taint.
fn job(name: &str, seconds: &str) -> Value {
    json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "Never",
            "tolerations": [{ "key": TAINT, "operator": "Exists", "effect": "NoSchedule" }],
            "containers": [{ "name": "work", "image": "busybox", "command": ["sleep", seconds] }] } } } })
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

/// Whether a ServiceAccount has a permission for Nodes.
fn may(site: &Site, account: &str, verb: &str) -> bool {
    let user = format!("--as=system:serviceaccount:{account}");
    site.kubectl(&["auth", "can-i", verb, "nodes", &user]).is_ok()
}

/// Without the chart value, the DaemonJob runs and reports the missing value. Then an administrator sets it.
fn allow_the_keys(site: &Site) {
    site.wait_for("daemonjob", "prepare", "MarkRefused", "NotAllowed");
    site.wait("the pod has succeeded", || site.get("daemonjob", "prepare")["status"]["succeeded"] == 1);
    let conditions = site.get("daemonjob", "prepare")["status"]["conditions"].to_string();
    let missing = "let an administrator set the chart value daemonJob.nodeMarks, for example to {default: [example.com/]}";
    assert!(conditions.contains(missing), "{conditions}");
    assert!(!is_complete(site, "prepare", 1) && !may(site, "quintet-system:quintet", "patch"));
    let chart = workspace().join("charts/quintet").display().to_string();
    let value = "daemonJob.nodeMarks.default={example.com/}";
    site.helm(&["upgrade", "quintet", &chart, "--reset-then-reuse-values", "--set", value, "--wait"])
        .unwrap();
    assert!(may(site, "quintet-system:quintet", "patch"));
}

#[test]
fn prepares_a_new_node_before_other_pods() {
    let mut site = Site::with_chart("real-marks", 1);
    let mut prepare = job("prepare", "5");
    prepare["spec"]["onSuccess"] =
        json!({ "labels": { LABEL: "true" }, "removeTaints": [{ "key": TAINT, "effect": "NoSchedule" }] });
    site.apply(&prepare);
    allow_the_keys(&site);
    site.wait("the first node is prepared", || is_complete(&site, "prepare", 1));
    assert_eq!(site.created_pods().len(), 1, "the node does not run again");

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

    // The pod's account may not even read Nodes.
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete"] {
        assert!(!may(&site, "default:default", verb), "{verb}");
    }

    // A quarantine outlives the managers.
    site.kubectl(&["taint", "node", "node-2", &format!("{TAINT}=:NoSchedule")]).unwrap();
    site.kubectl(&["rollout", "restart", "deployment", "quintet", "-n", "quintet-system"]).unwrap();
    site.kubectl(&["rollout", "status", "deployment", "quintet", "-n", "quintet-system", "--timeout=3m"])
        .unwrap();
    site.apply(&job("after", "1"));
    site.wait("a new manager has run another DaemonJob", || is_complete(&site, "after", 2));
    assert!(has_taint(&site.get("node", "node-2")));
}

/// Three DaemonJobs of the sample, with longer work.
#[test]
fn two_daemonjobs_never_run_on_a_node_together() {
    let site = Site::with_chart("real-apart", 2);
    let file = workspace().join("samples/daemonjob/one-at-a-time.yaml").display().to_string();
    let sample = site.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &file]).unwrap();
    let states = site.watch("daemonjobs.dj.dysproz.io", "");
    let names = ["first", "second", "third"];
    for name in names {
        let mut job: Value = serde_json::from_str(&sample).unwrap();
        job["metadata"]["name"] = json!(name);
        job["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["sleep", "4"]);
        site.apply(&job);
    }
    for name in names {
        let took = site.wait(&format!("{name} is complete"), || is_complete(&site, name, 2));
        println!("{name} is complete after {:.1} s more", took.as_secs_f64());
    }
    let waits = |job: &Value| {
        let nodes = job["status"]["pendingNodes"].as_array();
        nodes.into_iter().flatten().any(|node| node["reason"] == "Unschedulable")
    };
    assert!(states.events().iter().any(|(_, job)| waits(job)), "no pod has waited for another one");
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
