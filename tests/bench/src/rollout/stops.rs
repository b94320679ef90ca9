//! Rolls out a template that breaks nodes, until the rollout reaches no further node.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::kube::is_true;
use quintet_localcluster::run;
use serde_json::{Value, json};

use super::figures::{Contender, Hold, Scenario, Stop};
use super::objects::{self, Entry, NAME, has_started, has_succeeded, has_template};
use super::upgrade;
use crate::client::Patch;
use crate::contest::{Round, Worker, counts};
use crate::daemonjob::kruise::Kruise;
use crate::rig::{Rig, pods};

/// The time limit of a rollout.
pub const LIMIT: Duration = Duration::from_hours(2);

/// The polling interval of a rollout that takes minutes.
pub const LOOK_AT_NODES: Duration = Duration::from_secs(1);

/// The seconds after the start of the last pod in which this pod has succeeded.
const LAST_SUCCESS: f64 = 10.0;

/// The nodes that a rollout has reached. Times are seconds since it began.
#[derive(Debug, Default)]
struct Fleet {
    /// The nodes on which a pod of the template has started.
    reached: BTreeSet<String>,
    last_reached: f64,
    /// The nodes that will break, and when.
    due: BTreeMap<String, f64>,
    broken: BTreeSet<String>,
}

impl Fleet {
    /// Adds the nodes of pods, and returns the nodes that break now.
    fn see(&mut self, pods: &[Value], contender: Contender, scenario: &Scenario, now: f64) -> Vec<String> {
        for pod in pods.iter().filter(|pod| has_template(contender, pod) && has_started(pod)) {
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            if !self.reached.contains(node) {
                self.reached.insert(node.to_owned());
                self.last_reached = now;
            }
            let breaks = scenario.breaks(node) && !self.broken.contains(node);
            if breaks && has_succeeded(contender, pod) {
                self.due.entry(node.to_owned()).or_insert(now + f64::from(scenario.breaks_after_seconds));
            }
        }
        let is_due = |(node, at): (&String, &f64)| (*at <= now).then(|| node.clone());
        let breaking: Vec<String> = self.due.iter().filter_map(is_due).collect();
        for node in &breaking {
            self.due.remove(node);
            self.broken.insert(node.clone());
        }
        breaking
    }

    /// Whether no further node will be reached or break.
    fn is_at_rest(&self, scenario: &Scenario, now: f64) -> bool {
        let patience = if self.reached.len() == scenario.nodes {
            LAST_SUCCESS
        } else {
            f64::from(scenario.quiet_seconds)
        };
        self.due.is_empty() && now - self.last_reached >= patience
    }
}

/// Starts a contender's controller. Also returns the version of a peer.
fn start(rig: &Rig, contender: Contender, namespace: &str, round: Round) -> Result<(Worker, Option<String>)> {
    Ok(match contender {
        Contender::DaemonJob => (Worker::Quintet(rig.manager()?), None),
        Contender::BroadcastJob => {
            let kruise = Kruise::install(rig)?;
            (Worker::Peer(kruise.start(rig, round.setting)?), Some(kruise.version().to_owned()))
        }
        Contender::DaemonSet => (Worker::Other(rig.pid(Component::ControllerManager)?), None),
        Contender::Plan => {
            let (running, version) = upgrade::start(rig, namespace)?;
            (Worker::Peer(running), Some(version))
        }
    })
}

/// Begins the rollout. A DaemonSet first has the earlier version on all nodes.
fn begin(rig: &Rig, contender: Contender, entry: &Entry) -> Result<()> {
    rig.create(&entry.collection, &entry.object)?;
    if contender != Contender::DaemonSet {
        return Ok(());
    }
    run::poll("the DaemonSet is available", LIMIT, LOOK_AT_NODES, || {
        rig.tick();
        let set = rig.get(&entry.path)?.unwrap_or_default();
        Ok(counts(&set["status"]["numberAvailable"], rig.nodes()).then_some(()))
    })?;
    rig.patch(&entry.path, Patch::Merge, &objects::update()).map(drop)
}

/// Rolls out the template with a contender, and breaks nodes until the rollout reaches no further node.
pub fn stop(rig: &Rig, contender: Contender, round: Round, scenario: &Scenario) -> Result<Stop> {
    let namespace = rig.namespace()?;
    let (worker, version) = start(rig, contender, &namespace, round)?;
    let entry = Entry::of(contender, &namespace, scenario)?;
    begin(rig, contender, &entry)?;
    let (began, mut fleet, mut hold) = (Instant::now(), Fleet::default(), None);
    run::poll("the rollout has stopped", LIMIT, LOOK_AT_NODES, || {
        rig.tick();
        let now = began.elapsed().as_secs_f64();
        let all = rig.list(&pods(&namespace))?;
        for node in fleet.see(&all, contender, scenario, now) {
            break_node(rig, &namespace, &node, &all)?;
        }
        if contender == Contender::DaemonJob && hold.is_none() {
            hold = held(rig, &namespace, &entry.path, &fleet.broken)?;
        }
        Ok(fleet.is_at_rest(scenario, now).then_some(()))
    })?;
    worker.stop()?;
    let Fleet { reached, last_reached: last_reached_seconds, broken, .. } = fleet;
    ensure!(!reached.is_empty(), "{contender} has started no pod");
    let (reached, broken) = (reached.len(), broken.len());
    let left = scenario.nodes - reached;
    Ok(Stop { contender, round: round.number, reached, broken, left, last_reached_seconds, version, hold })
}

/// Stops the simulated kubelet of a node. Its running pods are then not Ready, as the node controller reports.
fn break_node(rig: &Rig, namespace: &str, node: &str, all: &[Value]) -> Result<()> {
    let annotate = |path: &str, annotation: &str, value: &str| {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        rig.patch(path, Patch::Merge, &patch).map(drop)
    };
    let runs_there = |pod: &&Value| pod["spec"]["nodeName"] == node && pod["status"]["phase"] == "Running";
    for name in all.iter().filter(runs_there).filter_map(|pod| pod["metadata"]["name"].as_str()) {
        annotate(&format!("{}/{name}", pods(namespace)), "kwok.quintet.dev/ready", "false")?;
    }
    annotate(&format!("/api/v1/nodes/{node}"), "kwok.quintet.dev/not-ready", "true")
}

/// The output of `quintet rollout status`, if the DaemonJob is paused.
fn held(rig: &Rig, namespace: &str, path: &str, broken: &BTreeSet<String>) -> Result<Option<Hold>> {
    if !rig.get(path)?.is_some_and(|job| is_true(&job, "Paused")) {
        return Ok(None);
    }
    let mut command = Command::new(rig.program());
    command.args(["rollout", "status", &format!("daemonjob/{NAME}"), "--watch=false", "-n", namespace]);
    command.env("KUBECONFIG", rig.cluster().kubeconfig());
    let output = run::output(&mut command, None)?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    let missing = missing(&text, namespace, broken);
    Ok(Some(Hold { exit_code: output.status.code(), text, missing }))
}

/// The parts that a user needs and the text has not.
fn missing(text: &str, namespace: &str, broken: &BTreeSet<String>) -> Vec<String> {
    let way_out = format!("run: quintet rollout retry daemonjob/{NAME} -n {namespace}");
    let parts = [" is held in wave 1 of 3 ", " (MaxFailedNodesExceeded): ", way_out.as_str()];
    let parts = parts.into_iter().filter(|part| !text.contains(*part));
    let mut missing: Vec<String> = parts.map(|part| part.trim().to_owned()).collect();
    if !broken.iter().any(|node| text.contains(&format!("{node}: NodeLost: "))) {
        missing.push("a broken node with the reason NodeLost".to_owned());
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: usize, phase: &str) -> Value {
        json!({"spec": {"nodeName": format!("node-{node:05}")}, "status": {"phase": phase}})
    }

    #[test]
    fn every_twentieth_node_breaks_after_its_success() {
        let scenario = Scenario::full(1_000);
        let mut fleet = Fleet::default();
        let mut see = |pods: &[Value], now| fleet.see(pods, Contender::DaemonJob, &scenario, now);
        assert!(see(&[pod(20, "Running"), pod(21, "Succeeded"), pod(40, "Pending")], 1.0).is_empty());
        assert!(see(&[pod(20, "Succeeded")], 2.0).is_empty());
        assert!(see(&[pod(20, "Succeeded")], 21.9).is_empty());
        assert_eq!(see(&[pod(20, "Succeeded")], 22.0), ["node-00020"]);
        assert!(see(&[pod(20, "Succeeded")], 60.0).is_empty());
        assert_eq!(fleet.reached.iter().collect::<Vec<_>>(), ["node-00020", "node-00021"]);
        assert_eq!(fleet.broken.len(), 1);
        assert_eq!([300.0, 301.0].map(|now| fleet.is_at_rest(&scenario, now)), [false, true]);
    }

    #[test]
    fn the_status_needs_wave_reason_node_and_command() {
        let text = "daemonjob/bench is held in wave 1 of 3 (MaxFailedNodesExceeded): 1 node failed (1 lost)\n\
            node-00020: NodeLost: not Ready for more than 30 s\n\
            To retry the failed nodes, run: quintet rollout retry daemonjob/bench -n bench-1";
        let broken = |node: &str| BTreeSet::from([node.to_owned()]);
        assert_eq!(missing(text, "bench-1", &broken("node-00020")), [""; 0]);
        assert_eq!(missing(text, "bench-2", &broken("node-00040")).len(), 2);
        assert_eq!(missing("", "bench-1", &broken("node-00020")).len(), 4);
    }
}
