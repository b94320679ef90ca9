//! Upgrades the chart and the program of an earlier commit, and rolls both back, while DaemonJobs run.
//!
//! These tests run only by request, because the first build of the earlier program takes five minutes. They fail if the
//! checkout's history lacks the commit.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use quintet_e2e::{condition, program};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::previous;
use serde_json::{Value, json};

use crate::chart::{Site, chart, daemonjob, wait};
use crate::daemonjob_ledger::by_number;

const NODES: usize = 5;

/// The most pods of a held DaemonJob that run at the same time.
const PARALLELISM: usize = 2;

/// Creates a DaemonJob whose pods run until [`advance`] ends them.
fn create_held(site: &Site, name: &str) {
    let mut job = daemonjob(name);
    job["spec"]["parallelism"] = json!(PARALLELISM);
    job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/hold"] = json!("true");
    create(site, &job);
}

fn create(site: &Site, job: &Value) {
    site.kubectl(&["apply", "-f", "-"], Some(&job.to_string())).unwrap();
}

/// The names of the DaemonJob's pods that run and are held.
fn running(site: &Site, job: &str) -> Vec<String> {
    let is_running = |pod: &&Value| {
        pod["metadata"]["labels"]["daemonjob"] == job
            && pod["metadata"]["annotations"]["kwok.quintet.dev/hold"] == "true"
            && pod["status"]["phase"] == "Running"
    };
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    site.list("pods").iter().filter(is_running).map(name).collect()
}

/// Ends one pod of a held DaemonJob. Waits until the leader has counted its node as number `done`, and has created the next
/// pod.
fn advance(site: &Site, job: &str, done: usize) {
    let runs = |count: usize| running(site, job).len() == PARALLELISM.min(NODES - count);
    wait(&format!("the next pods of {job} run"), || runs(done - 1));
    let pod = running(site, job).remove(0);
    let end = ["kwok.quintet.dev/exit-code=0", "kwok.quintet.dev/hold-"];
    site.kubectl(&[&["annotate", "pod", &pod, "-n", "default"], &end[..]].concat(), None).unwrap();
    wait(&format!("{done} nodes of {job} have succeeded"), || {
        site.get("default", "daemonjob", job)["status"]["succeeded"] == done && runs(done)
    });
}

/// Waits until the DaemonJob has this condition with all nodes in this count of the status.
fn ends(site: &Site, job: &str, ends_as: &str, count: &str) {
    wait(&format!("{job} is {ends_as} on all nodes"), || {
        let job = site.get("default", "daemonjob", job);
        condition(&job, ends_as).0 == "True" && job["status"][count] == NODES
    });
}

fn start(site: &Site, name: &str, program: PathBuf) -> Manager {
    let options =
        ManagerOptions { name: name.to_owned(), program: Some(program), ..ManagerOptions::default() };
    Manager::start(site.cluster().kube(), &options).unwrap()
}

/// Replaces the leader as a Deployment does: the next manager is ready before the leader stops.
fn replace(site: &Site, leader: Manager, name: &str, program: PathBuf) -> Manager {
    let next = start(site, name, program);
    assert!(!next.leads(), "the next manager stands by");
    assert_eq!(leader.stop().unwrap(), Some(0), "the leader stops in order");
    wait("the next manager leads", || next.leads());
    next
}

/// Each manager also leads with the other version's chart for a while, as during the rollout of a Deployment.
#[test]
fn upgrade_and_rollback_run_each_node_once() {
    let before = previous::ensure().unwrap_or_else(|error| panic!("{error:#}"));
    let site = Site::new("skew", NODES);
    // The Deployment has no replicas; the managers are local processes.
    let elsewhere = ["--set", "replicas=0"];
    let old_chart = before.chart.display().to_string();
    site.helm(&[&["install", "quintet", &old_chart, "--create-namespace"], &elsewhere[..]].concat()).unwrap();
    let old = start(&site, "old", before.program.clone());
    wait("the old manager leads", || old.leads());

    create_held(&site, "steady");
    create(&site, &daemonjob("quick"));
    let mut broken = daemonjob("broken");
    broken["spec"]["backoffLimit"] = json!(0);
    broken["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("3");
    create(&site, &broken);
    ends(&site, "quick", "Complete", "succeeded");
    ends(&site, "broken", "Failed", "failed");
    // From now on, only the ledger knows that the nodes are done.
    site.kubectl(
        &["delete", "pods", "-n", "default", "-l", "daemonjob in (quick,broken)", "--timeout=60s"],
        None,
    )
    .unwrap();
    advance(&site, "steady", 1);
    let kinds = ["pods", "daemonjobs", "configmaps", "crds"];
    let objects = site.uids(&kinds);
    let kept = |what: &str| {
        let now = site.uids(&kinds);
        for (name, uid) in &objects {
            assert_eq!(now.get(name), Some(uid), "{name} after the {what}");
        }
    };

    site.helm(&[&["upgrade", "quintet", &chart()], &elsewhere[..]].concat()).unwrap();
    advance(&site, "steady", 2);
    kept("upgrade of the chart");
    let new = replace(&site, old, "new", program());
    advance(&site, "steady", 3);
    create_held(&site, "later");
    advance(&site, "later", 1);
    kept("upgrade of the manager");

    site.helm(&["rollback", "quintet", "1"]).unwrap();
    // The new manager may wait for its own definitions, but must not run a node again.
    thread::sleep(Duration::from_secs(3));
    kept("rollback of the chart");
    let old = replace(&site, new, "old", before.program);
    advance(&site, "steady", 4);
    advance(&site, "steady", 5);
    for done in 2..=NODES {
        advance(&site, "later", done);
    }
    create(&site, &daemonjob("last"));
    for job in ["steady", "quick", "later", "last"] {
        ends(&site, job, "Complete", "succeeded");
    }
    ends(&site, "broken", "Failed", "failed");
    kept("rollback of the manager");

    // The audit log shows a request a moment after its answer.
    thread::sleep(Duration::from_secs(3));
    let created = by_number(site.created_pods());
    assert_eq!(created, [5 * NODES], "each DaemonJob has created one pod for each node");
    assert_eq!(old.stop().unwrap(), Some(0));
}
