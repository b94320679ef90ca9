//! What must hold, judged by what happened at the server and on the machines, and not by what anybody believed.

use std::collections::{BTreeMap, BTreeSet};

use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus, RerunOn};
use quintet_daemonjob::ledger::{Outcome, shard_of};
use quintet_daemonjob::nodes::{Placement, Verdict};
use quintet_daemonjob::observe::World;
use quintet_daemonjob::survey::{
    BOOT_ID_ANNOTATION, HASH_LABEL, NODE_NAME_ANNOTATION, NODE_UID_LABEL, run_of,
};
use quintet_kit::conditions;
use quintet_kit::types::{Node, Phase, Pod};

use crate::server::{JOB, Server};

/// What is wrong, for a person.
pub type Judgement = Result<(), String>;

/// Who made a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// The leader, counted anew with each that takes over.
    Leader(u32),
    /// One who was no longer the leader: the write was under way when it lost the lease.
    Late,
}

/// A success, as it happened.
struct Success {
    hash: String,
    boot: String,
    revision: u64,
    late: bool,
}

/// What has happened so far.
#[derive(Default)]
pub struct Truth {
    /// By UID of the pod: who made it, and at which revision.
    made: BTreeMap<String, (Maker, u64)>,
    /// The last success on each machine, by the node's UID.
    successes: BTreeMap<String, Success>,
    /// The greatest run number that the ledger ever had, by the node's UID.
    recorded: BTreeMap<String, u64>,
    /// Shards that a stranger has deleted at some time.
    touched: BTreeSet<u8>,
    /// Nodes whose lines went with a shard while nobody was there who knew them. True: until the template changes the
    /// manager must not run them again, since its status told of the shard and the node has no pod.
    lost: BTreeMap<String, bool>,
}

fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.label(key).unwrap_or_default()
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.meta.annotations.get(key).unwrap_or_default()
}

/// A running pod in the words of the design, but for one that was asked to go before it had a node: it never ran and
/// never will.
pub fn occupies(pod: &Pod) -> bool {
    pod.is_running() && (pod.meta.deleted.is_none() || pod.node.is_some())
}

pub fn reruns_on(job: &DaemonJob, what: RerunOn) -> bool {
    job.spec.rerun_on.as_ref().map_or(what == RerunOn::TemplateChange, |list| list.contains(&what))
}

impl Truth {
    fn is_late(&self, pod: &Pod) -> bool {
        matches!(self.made.get(&*pod.meta.uid), Some((Maker::Late, _)))
    }

    pub fn made(&mut self, pod: &Pod, by: Maker, revision: u64) {
        self.made.insert(pod.meta.uid.to_string(), (by, revision));
    }

    /// How many pods of this leader run.
    pub fn running_of(&self, server: &Server, leader: u32) -> usize {
        let by = |pod: &Pod| matches!(self.made.get(&*pod.meta.uid), Some((Maker::Leader(maker), _)) if *maker == leader);
        server.pods.objects.values().filter(|pod| occupies(&pod.seen) && by(&pod.seen)).count()
    }

    /// Invariant 1: no two running pods are pinned to one node name. Excepted are pods that exist by a late write of a
    /// deposed leader: it could not know of what its successor had made under another number or for another node of the
    /// name, and nobody can unsend a request.
    pub fn one_pod_a_node(&self, server: &Server) -> Judgement {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for pod in server.pods.objects.values().map(|pod| &pod.seen) {
            if !occupies(pod) || self.is_late(pod) {
                continue;
            }
            let name = annotation(pod, NODE_NAME_ANNOTATION);
            if let Some(other) = seen.insert(name, &pod.meta.name) {
                return Err(format!("1: {other} and {} run on node {name}", pod.meta.name));
            }
        }
        Ok(())
    }

    /// Invariant 2: a pod whose containers are about to start on a machine whose last success still stands.
    pub fn starts(&self, server: &Server, job: &DaemonJob, pod: &Pod) -> Judgement {
        let machine = &*server.nodes.objects[pod.node.as_deref().unwrap()].seen.meta.uid;
        let created = self.made.get(&*pod.meta.uid).map_or(0, |(_, revision)| *revision);
        let Some(success) = self.successes.get(machine) else { return Ok(()) };
        // Made for the node that had this name before, or by a late write, or told of by one.
        let is_odd = label(pod, NODE_UID_LABEL) != machine || self.is_late(pod) || success.late;
        let is_lost = self.lost.get(machine) == Some(&false);
        if is_odd || is_lost || success.revision > created {
            return Ok(());
        }
        let is_other_template =
            success.hash != label(pod, HASH_LABEL) && reruns_on(job, RerunOn::TemplateChange);
        let boot = annotation(pod, BOOT_ID_ANNOTATION);
        let has_booted = boot != success.boot && reruns_on(job, RerunOn::NodeReboot);
        if is_other_template || has_booted {
            return Ok(());
        }
        Err(format!("2: {} runs again on node {machine}, which was done", pod.meta.name))
    }

    pub fn succeeded(&mut self, server: &Server, pod: &Pod) {
        let machine = server.nodes.objects[pod.node.as_deref().unwrap()].seen.meta.uid.to_string();
        if machine != label(pod, NODE_UID_LABEL) {
            // It counts for the new node only if its manager sees both in time.
            return;
        }
        let success = Success {
            hash: label(pod, HASH_LABEL).to_owned(),
            boot: annotation(pod, BOOT_ID_ANNOTATION).to_owned(),
            revision: server.revision,
            late: self.is_late(pod),
        };
        self.successes.insert(machine, success);
    }

    /// The ledger was written.
    pub fn ledger_written(&mut self, server: &Server) {
        for shard in server.shards.objects.values() {
            for (uid, line) in &shard.seen.entries {
                let run = line.as_ref().map_or(0, |line| line.run);
                let most = self.recorded.entry(uid.to_string()).or_default();
                *most = (*most).max(run);
            }
        }
    }

    pub fn shard_deleted(&mut self, number: u8) {
        self.touched.insert(number);
    }

    /// Whoever saw the ledger last is gone: what a missing shard said is lost.
    pub fn leader_gone(&mut self, server: &Server) {
        let status = server.job().and_then(|job| job.seen.status.clone()).unwrap_or_default();
        let absent =
            |number: u8| !server.shards.objects.values().any(|shard| shard.seen.number(JOB) == Some(number));
        for uid in self.recorded.keys() {
            let number = shard_of(uid);
            if self.touched.contains(&number) && absent(number) {
                let has_pods =
                    server.pods.objects.values().any(|pod| label(&pod.seen, NODE_UID_LABEL) == uid);
                let is_told = status.ledger_shards.contains(&number) && !has_pods;
                let stays = self.lost.entry(uid.clone()).or_insert(true);
                *stays &= is_told;
            }
        }
    }

    /// A template annotation runs nodes again whose record was lost.
    pub fn template_changed(&mut self) {
        self.lost.values_mut().for_each(|stays| *stays = false);
    }

    /// Invariant 3: a pod that has ended loses our finalizer only when the ledger has a line of its run or a later one,
    /// which knows of a success if that was one; unless its node or its DaemonJob is gone.
    pub fn released(&self, server: &Server, pod: &Pod) -> Judgement {
        let uid = label(pod, NODE_UID_LABEL);
        let lives = server.nodes.objects.values().any(|node| &*node.seen.meta.uid == uid);
        let is_served = server.job().is_some_and(|job| job.seen.metadata.deletion_timestamp.is_none());
        if pod.is_running() || !lives || !is_served {
            return Ok(());
        }
        let number = shard_of(uid);
        if self.touched.contains(&number) {
            // What a stranger deletes is made again from what was seen; that it was written must do.
            let written = self.recorded.get(uid).is_some_and(|run| *run >= run_of(pod));
            return written.then_some(()).ok_or(format!("3: {} was never recorded", pod.meta.name));
        }
        let shard = server.shards.objects.values().find(|shard| shard.seen.number(JOB) == Some(number));
        let line = shard.and_then(|shard| shard.seen.entries.get(uid)).and_then(|line| line.as_ref().ok());
        let Some(line) = line.filter(|line| line.run >= run_of(pod)) else {
            return Err(format!("3: {} loses its finalizer and the ledger says {line:?}", pod.meta.name));
        };
        let has_succeeded = pod.phase == Phase::Succeeded;
        let agrees = if self.is_late(pod) {
            // A second one of a run that was recorded and gone, which nobody asked for.
            true
        } else if line.run == run_of(pod) {
            (line.outcome == Outcome::Succeeded) == has_succeeded
        } else {
            !has_succeeded || line.last_success().is_some()
        };
        agrees
            .then_some(())
            .ok_or(format!("3: {} is {:?} and the ledger says {line}", pod.meta.name, pod.phase))
    }
}

/// What a node's last success is, by what a planner saw.
fn last_success(world: &World, node: &Node) -> Option<(String, String)> {
    let line = world.shards().find_map(|shard| shard.entries.get(&node.meta.uid)?.as_ref().ok());
    let of = |line: &quintet_daemonjob::ledger::Entry| {
        let success = line.last_success()?;
        Some((success.hash.to_string(), success.boot.to_string()))
    };
    let mut last = line.and_then(of);
    let recorded = line.map_or(0, |line| line.run);
    let ran_here = |pod: &Pod| {
        let is_renewed = !world.nodes.iter().any(|node| pod.label(NODE_UID_LABEL) == Some(&node.meta.uid))
            && annotation(pod, NODE_NAME_ANNOTATION) == &*node.meta.name
            && pod.started.zip(node.meta.created).is_some_and(|(started, created)| started >= created);
        label(pod, NODE_UID_LABEL) == &*node.meta.uid || is_renewed
    };
    let mut pods: Vec<&Pod> = world.pods.iter().map(|pod| &**pod).filter(|pod| ran_here(pod)).collect();
    pods.sort_by_key(|pod| run_of(pod));
    for pod in pods.into_iter().filter(|pod| pod.phase == Phase::Succeeded && run_of(pod) > recorded) {
        last = Some((label(pod, HASH_LABEL).to_owned(), annotation(pod, BOOT_ID_ANNOTATION).to_owned()));
    }
    last
}

fn is_done(job: &DaemonJob, world: &World, node: &Node) -> bool {
    last_success(world, node).is_some_and(|(hash, boot)| {
        let is_current = hash == job.spec.template.hash() || !reruns_on(job, RerunOn::TemplateChange);
        let has_booted = node.ready && boot != *node.boot_id && reruns_on(job, RerunOn::NodeReboot);
        is_current && !has_booted
    })
}

/// Invariant 5: what a status says is so in what its planner saw.
pub fn status_is_true(job: &DaemonJob, world: &World, status: &DaemonJobStatus) -> Judgement {
    let placement = Placement::of(job.spec.template.spec());
    let eligible: Vec<&Node> = world
        .nodes
        .iter()
        .map(|node| &**node)
        .filter(|node| placement.verdict(node) == Verdict::Run && node.meta.deleted.is_none())
        .collect();
    let is_eligible = |name: &str| eligible.iter().any(|node| &*node.meta.name == name);
    let skipped = |node: &Node| status.skipped_nodes.iter().any(|skipped| skipped.node == *node.meta.name);
    if conditions::is_true(&status.conditions, "Complete") {
        if let Some(node) = eligible.iter().find(|node| !is_done(job, world, node) && !skipped(node)) {
            return Err(format!("5: Complete, but {} is not done", node.meta.name));
        }
        if let Some(pod) = world.pods.iter().find(|pod| pod.is_counted()) {
            return Err(format!("5: Complete, but {} runs", pod.meta.name));
        }
        if conditions::is_true(&status.conditions, "Failed") || status.completion_time.is_none() {
            return Err("5: Complete, and Failed or without completionTime".to_owned());
        }
    }
    let elsewhere: BTreeSet<&str> = world
        .pods
        .iter()
        .filter(|pod| occupies(pod))
        .map(|pod| annotation(pod, NODE_NAME_ANNOTATION))
        .filter(|name| !is_eligible(name))
        .collect();
    let count = |number: Option<i32>| usize::try_from(number.unwrap_or_default()).unwrap();
    let equal = |what: &str, told: Option<i32>, counted: usize| {
        if count(told) == counted {
            Ok(())
        } else {
            Err(format!("5: {what} is told as {told:?} and is {counted}"))
        }
    };
    equal("desired", status.desired, eligible.len() + elsewhere.len())?;
    equal("succeeded", status.succeeded, eligible.iter().filter(|node| is_done(job, world, node)).count())?;
    equal("active", status.active, world.pods.iter().filter(|pod| pod.is_counted()).count())?;
    let going = world.pods.iter().filter(|pod| occupies(pod) && pod.meta.deleted.is_some()).count();
    equal("terminating", status.terminating, going)?;
    let skipped = status.skipped_nodes.iter().filter(|node| is_eligible(&node.node)).count();
    let told =
        count(status.succeeded) + count(status.failed) + count(status.pending) + skipped + elsewhere.len();
    let running = world.pods.iter().filter(|pod| occupies(pod)).count();
    let desired = count(status.desired);
    if told > desired || desired - told > running {
        return Err(format!("5: {told} nodes are told of, {desired} are desired, {running} pods run"));
    }
    Ok(())
}
