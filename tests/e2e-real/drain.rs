//! `kubectl drain` of a cluster's only node: it evicts the managers together with pods that need a manager.
//! The commands are those of docs/daemonjob.md.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quintet_e2e::{condition, workspace};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::site::Site;

const TOLERATE: &str = "helm upgrade quintet charts/quintet --namespace quintet-system --reset-then-reuse-values --set tolerateCordon=true --wait";
const DRAIN: &str = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data";
const DRAIN_THAT_SKIPS: &str =
    "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data --skip-wait-for-delete-timeout=30";
const UNCORDON: &str = "kubectl uncordon NODE";
const STOP_THE_MANAGER: &str = "kubectl scale deployment quintet --namespace quintet-system --replicas=0";
const UNINSTALL: &str = "quintet uninstall --namespace NAMESPACE --yes";

/// The drain's message while the PodDisruptionBudget keeps a manager.
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Pods of `stops-late` run this long after their eviction. A manager exits within 1 s.
const STOPS_AFTER: u64 = 15;

/// Longer than a drain or a manager needs to end a wait. A drain retries every 5 s.
const A_WHILE: Duration = Duration::from_secs(15);

const FINALIZER: &str = "dj.dysproz.io/ledger";

/// Runs a command, which docs/daemonjob.md must contain as a line.
fn follow(site: &Site, line: &str) {
    run::stdout(&mut site.command(documented(line))).unwrap_or_else(|error| panic!("{error:#}"));
}

fn documented(line: &str) -> &str {
    let text = fs::read_to_string(workspace().join("docs/daemonjob.md")).unwrap();
    assert!(text.lines().any(|one| one == line), "docs/daemonjob.md has no line {line:?}");
    line
}

/// A drain that runs in parallel with the test.
struct Drain {
    process: RefCell<Child>,
    output: PathBuf,
    begin: Instant,
}

impl Drain {
    fn start(site: &Site, line: &str) -> Self {
        let output = std::env::temp_dir().join(format!("{}.drain", site.name()));
        let file = File::create(&output).unwrap();
        let mut drain = site.command(documented(line));
        drain.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
        Self { process: RefCell::new(drain.spawn().unwrap()), output, begin: Instant::now() }
    }

    fn runs(&self) -> bool {
        self.process.borrow_mut().try_wait().unwrap().is_none()
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    fn wait_for_its_end(&self, site: &Site) {
        site.wait("the drain exits", || !self.runs());
        assert!(self.process.borrow_mut().wait().unwrap().success(), "{}", self.printed());
        println!("the drain ended after {:.1} s", self.begin.elapsed().as_secs_f64());
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        let process = self.process.get_mut();
        let _ = process.kill();
        let _ = process.wait();
        let _ = fs::remove_file(&self.output);
    }
}

/// A job on the only node.
fn job(name: &str, command: &[&str]) -> Value {
    json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "backoffLimit": 0, "template": { "spec": { "restartPolicy": "Never",
            "nodeSelector": { "kubernetes.io/hostname": "node-1" },
            "containers": [{ "name": "work", "image": "busybox", "command": command }] } } } })
}

/// A Node without a machine: no pod can run there, so the run of a DaemonJob that selects it cannot end.
fn add_a_node_without_a_machine(site: &Site) {
    site.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "absent" },
        "spec": { "taints": [{ "key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule" }] } }));
}

fn is_held(pod: &Value) -> bool {
    pod["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == FINALIZER))
}

/// The DaemonJobs with a pod that has Quintet's finalizer.
fn held(site: &Site) -> BTreeSet<String> {
    let pods = site.list("pods", "quintet.dev/kind=DaemonJob");
    let name = |pod: &Value| pod["metadata"]["labels"]["daemonjob"].as_str().unwrap().to_owned();
    pods.iter().filter(|pod| is_held(pod)).map(name).collect()
}

fn pod_runs(site: &Site, name: &str, number: &str) -> bool {
    let pods = site.list("pods", &format!("daemonjob={name},dj.dysproz.io/pod-number={number}"));
    pods.iter().any(|pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object())
}

/// The ledger's lines of the only node.
fn recorded(site: &Site, name: &str) -> String {
    let shards = site.list("configmaps", &format!("daemonjob={name}"));
    let lines = shards.iter().flat_map(|shard| shard["data"].as_object().into_iter().flatten());
    let lines = lines.filter_map(|(_, line)| line.as_str());
    lines.filter(|line| line.starts_with("node=node-1 ")).collect()
}

/// One pod of each kind that a drain can meet: finished and recorded, finished and unrecorded, and running.
fn start_jobs(site: &Site) {
    site.apply(&job("succeeds", &["true"]));
    site.apply(&job("fails", &["false"]));
    site.apply(&job("stops-at-once", &["sleep", "600"]));
    let mut late = job("stops-late", &["sleep", "600"]);
    let pod = &mut late["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(60);
    pod["containers"][0]["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": STOPS_AFTER } } });
    site.apply(&late);
    site.wait("pods run", || ["stops-at-once", "stops-late"].iter().all(|name| pod_runs(site, name, "1")));
    site.wait_for("daemonjob", "succeeds", "Complete", "AllNodesDone");
    site.wait_for("daemonjob", "fails", "Failed", "NodesFailed");
    site.wait("recorded pods are released", || held(site) == of(["stops-at-once", "stops-late"]));
    let mut unrecorded = job("unrecorded", &["true"]);
    unrecorded["spec"]["template"]["spec"].as_object_mut().unwrap().remove("nodeSelector");
    site.apply(&unrecorded);
    site.wait("a pod has succeeded in an unfinished run", || {
        site.get("daemonjob", "unrecorded")["status"]["succeeded"] == 1
    });
    assert_eq!(held(site), of(["stops-at-once", "stops-late", "unrecorded"]));
    assert_eq!(recorded(site, "unrecorded"), "");
}

fn of<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// A disruption on a cordoned node does not count. A manager that starts after the uncordon counts it.
const WHILE_CORDONED: &str = "outcome=Ignored ignored=1 attempt=Disrupted/";
const AFTER_UNCORDON: &str = "outcome=Disrupted disruptions=1 ";

/// Asserts the ledger after a drain, once a manager has processed it.
fn all_is_recorded(site: &Site, disrupted: &str) {
    for (name, outcome) in [
        ("succeeds", "outcome=Succeeded"),
        ("fails", "outcome=Failed"),
        ("unrecorded", "outcome=Succeeded"),
        // A manager may have seen the pod's end on the cordoned node.
        ("stops-at-once", "attempt=Disrupted/"),
        ("stops-late", disrupted),
    ] {
        let line = recorded(site, name);
        assert!(line.contains(" pod=1 ") && line.contains(outcome), "{name}: {line:?}");
    }
}

/// Waits until the disrupted pods, and only these, run again.
fn runs_again(site: &Site) {
    site.wait("the disrupted pods run again", || {
        ["stops-at-once", "stops-late"].iter().all(|name| pod_runs(site, name, "2"))
    });
    for name in ["succeeds", "fails", "unrecorded"] {
        assert!(site.pods_of(name).is_empty(), "{name} has run again: {:?}", site.pods_of(name));
    }
}

fn delete_jobs(site: &Site) {
    site.kubectl(&["delete", "daemonjobs", "--all"]).unwrap();
    site.wait("the pods are gone", || site.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
}

/// UIDs of the managers' Ready pods, and of those that are not scheduled.
fn managers(site: &Site) -> (BTreeSet<String>, BTreeSet<String>) {
    let pods = site.list("pods", "app.kubernetes.io/name=quintet");
    let are = |type_: &str, status: &str| {
        let such = pods.iter().filter(|pod| condition(pod, type_).0 == status);
        such.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    };
    (are("Ready", "True"), are("PodScheduled", "False"))
}

fn run_one_manager(site: &Site) {
    let chart = workspace().join("charts/quintet").display().to_string();
    site.helm(&["upgrade", "quintet", &chart, "--reset-then-reuse-values", "--set", "replicas=1", "--wait"])
        .unwrap();
    site.wait("one manager is left", || {
        let pods = site.list("pods", "app.kubernetes.io/name=quintet");
        pods.len() == 1 && managers(site).0.len() == 1
    });
}

#[test]
fn drain_of_the_only_node_ends_if_managers_tolerate_cordon() {
    let site = Site::with_chart("real-drain", 1);
    add_a_node_without_a_machine(&site);
    follow(&site, TOLERATE);
    for replicas in [2, 1] {
        if replicas == 1 {
            run_one_manager(&site);
        }
        start_jobs(&site);
        let (before, _) = managers(&site);
        assert_eq!(before.len(), replicas);

        println!("managers: {replicas}");
        Drain::start(&site, DRAIN).wait_for_its_end(&site);
        assert_eq!(site.list("pods", "quintet.dev/kind=DaemonJob"), Vec::<Value>::new());
        all_is_recorded(&site, WHILE_CORDONED);
        site.wait("the managers are ready", || managers(&site).0.len() == replicas);
        let (after, _) = managers(&site);
        assert!(after.is_disjoint(&before), "the drain evicts every manager");
        assert_eq!(site.get("node", "node-1")["spec"]["unschedulable"], true);
        for name in ["stops-at-once", "stops-late"] {
            let waits = &site.get("daemonjob", name)["status"]["pendingNodes"][0];
            assert_eq!((&waits["node"], &waits["reason"]), (&json!("node-1"), &json!("Cordoned")), "{name}");
        }

        follow(&site, UNCORDON);
        runs_again(&site);
        delete_jobs(&site);
    }

    // The Job of an uninstall tolerates the cordon too.
    site.kubectl(&["cordon", "node-1"]).unwrap();
    site.helm(&["uninstall", "quintet", "--timeout", "2m"]).unwrap();
}

#[test]
fn drain_of_the_only_node_waits_for_a_manager() {
    let site = Site::with_chart("real-drain-waits", 1);
    add_a_node_without_a_machine(&site);
    start_jobs(&site);

    // One of the two managers stays and processes the pods. Its PodDisruptionBudget protects it permanently.
    let (before, _) = managers(&site);
    let drain = Drain::start(&site, DRAIN);
    site.wait("the pods are gone", || site.list("pods", "quintet.dev/kind=DaemonJob").is_empty());
    println!("the pods are gone after {:.1} s", drain.begin.elapsed().as_secs_f64());
    all_is_recorded(&site, WHILE_CORDONED);
    site.wait("the drain prints why it waits", || drain.printed().contains(REFUSED));
    sleep(A_WHILE);
    let (ready, waiting) = managers(&site);
    assert!(drain.runs(), "{}", drain.printed());
    assert!(ready.len() == 1 && ready.is_subset(&before) && waiting.len() == 1, "{ready:?} {waiting:?}");
    follow(&site, UNCORDON);
    drain.wait_for_its_end(&site);
    drop(drain);
    runs_again(&site);
    delete_jobs(&site);

    // A single manager is evicted with the pods.
    run_one_manager(&site);
    start_jobs(&site);
    let drain = drain_that_waits(&site, "1");
    // An interrupted drain, or one that does not wait, loses nothing: the pod has its outcome.
    drop(drain);
    Drain::start(&site, DRAIN_THAT_SKIPS).wait_for_its_end(&site);
    assert!(held(&site).contains("stops-late"));
    follow(&site, UNCORDON);
    runs_again(&site);
    site.wait("the pod is released", || {
        site.list("pods", "daemonjob=stops-late,dj.dysproz.io/pod-number=1").is_empty()
    });
    all_is_recorded(&site, AFTER_UNCORDON);

    // Uncordoning the node also ends the drain.
    let drain = drain_that_waits(&site, "2");
    follow(&site, UNCORDON);
    drain.wait_for_its_end(&site);
    drop(drain);
    site.wait("the disrupted pod runs again", || pod_runs(&site, "stops-late", "3"));
    assert!(recorded(&site, "stops-late").contains(" pod=2 "), "{}", recorded(&site, "stops-late"));

    // Without a manager the user releases the pods, and the outcome is lost.
    let drain = drain_that_waits(&site, "3");
    follow(&site, STOP_THE_MANAGER);
    follow(&site, UNINSTALL);
    drain.wait_for_its_end(&site);
    assert!(site.list("pods", "daemonjob=stops-late").is_empty());
    assert!(recorded(&site, "stops-late").contains(" pod=2 "), "{}", recorded(&site, "stops-late"));
}

/// Starts a drain that waits for this pod of `stops-late`: the pod has ended, and no manager can start.
fn drain_that_waits(site: &Site, number: &str) -> Drain {
    let drain = Drain::start(site, DRAIN);
    site.wait("the pod has ended without a manager", || {
        let pods = site.list("pods", &format!("daemonjob=stops-late,dj.dysproz.io/pod-number={number}"));
        let (ready, waiting) = managers(site);
        ready.is_empty() && waiting.len() == 1 && pods.iter().all(|pod| pod["status"]["phase"] == "Failed")
    });
    sleep(A_WHILE);
    assert!(drain.runs(), "{}", drain.printed());
    // A pod that ends with the manager may stay. The manager's last reconcile releases the others.
    let mut waits = held(site);
    println!("the drain waits for pods of {waits:?}");
    waits.remove("stops-at-once");
    assert_eq!(waits, of(["stops-late"]));
    let pods = site.list("pods", "daemonjob=stops-late");
    let container = &pods[0]["status"]["containerStatuses"][0]["state"];
    assert!(container["terminated"].is_object(), "no container runs: {container}");
    drain
}
