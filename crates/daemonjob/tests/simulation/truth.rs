//! The invariants of pods, according to the events at the server and on the machines. Each node runs once and
//! has one pod, and no pod is released before its record.

use std::collections::{BTreeMap, BTreeSet};

use quintet_daemonjob::api::{DaemonJob, RerunOn};
use quintet_daemonjob::labels::{
    BOOT_ID_ANNOTATION, DUE_TIME_ANNOTATION, HASH_LABEL, MACHINE_ID_ANNOTATION, NODE_NAME_ANNOTATION,
    NODE_UID_LABEL, number_of,
};
use quintet_daemonjob::ledger::{Outcome, shard_of};
use quintet_daemonjob::outcome::DeletedFor;
use quintet_runtime::model::core_types::{Phase, Pod};

use crate::server::{JOB, Server};

/// The broken invariant.
pub type Judgement = Result<(), String>;

/// The client that created a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// The leader.
    Leader,
    /// A manager that was no longer the leader. The write was in flight when it lost the lease.
    Late,
}

struct Success {
    hash: String,
    due: String,
    boot: String,
    machine: String,
    revision: u64,
    is_late: bool,
}

/// The events so far.
#[derive(Default)]
pub struct Truth {
    /// By UID of the pod: its creator, and the revision of its creation.
    made: BTreeMap<String, (Maker, u64)>,
    /// The last attempt on each machine, if it is a success, by the node's UID.
    successes: BTreeMap<String, Success>,
    /// Machines where a pod ran that was created for another Node of the same name, or by a late write.
    mixed: BTreeSet<String>,
    /// By the node's UID: the pod numbers in the ledger, with the revision since which each was there.
    recorded: BTreeMap<String, BTreeMap<u64, u64>>,
    /// By the node's UID: the number of the last pod that a reconcile saw ended while the node was Ready.
    cleared: BTreeMap<String, u64>,
    /// UIDs of pods that the present process saw ended and not deleted.
    sighted: BTreeSet<String>,
    /// Shards that another client has deleted.
    touched: BTreeSet<u8>,
    /// Nodes whose lines were lost with a shard while no manager had seen them. True means that no manager
    /// may run them before the next rollout, because the status lists the shard and the node has no pod.
    lost: BTreeMap<String, bool>,
}

pub fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.label(key).unwrap_or_default()
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.meta.annotations.get(key).unwrap_or_default()
}

/// Whether a pod runs or may run. A pod that was deleted before it was bound never runs.
pub fn occupies(pod: &Pod) -> bool {
    pod.is_running() && (pod.meta.deleted.is_none() || pod.node.is_some())
}

pub fn reruns_on(job: &DaemonJob, what: RerunOn) -> bool {
    job.spec.rerun_on.as_ref().map_or(what == RerunOn::TemplateChange, |list| list.contains(&what))
}

impl Truth {
    pub fn is_late(&self, pod: &Pod) -> bool {
        matches!(self.made.get(&*pod.meta.uid), Some((Maker::Late, _)))
    }

    pub fn made(&mut self, pod: &Pod, by: Maker, revision: u64) {
        self.made.insert(pod.meta.uid.to_string(), (by, revision));
    }

    /// Whether the ledger had a line of this pod, or of a later pod, before this revision.
    pub fn is_recorded(&self, uid: &str, number: u64, before: u64) -> bool {
        self.recorded.get(uid).is_some_and(|lines| lines.range(number..).any(|(_, since)| *since < before))
    }

    /// A reconcile saw that this pod had ended before its deletion.
    pub fn sights(&mut self, pod: &Pod) {
        if !self.sighted.contains(&*pod.meta.uid) {
            self.sighted.insert(pod.meta.uid.to_string());
        }
    }

    pub fn has_sighted(&self, pod: &Pod) -> bool {
        self.sighted.contains(&*pod.meta.uid)
    }

    /// Whether a line of the machine may be lost.
    pub fn has_lost_records(&self, uid: &str) -> bool {
        self.touched.contains(&shard_of(uid))
    }

    pub fn is_cleared(&self, uid: &str, number: u64) -> bool {
        self.cleared.get(uid).is_some_and(|cleared| *cleared >= number)
    }

    /// A reconcile saw the node Ready and these pods of it ended.
    pub fn clears(&mut self, uid: &str, number: u64) {
        let most = self.cleared.entry(uid.to_owned()).or_default();
        *most = (*most).max(number);
    }

    /// One pod a node: no two running pods are pinned to the same node name. Late writes of a deposed leader
    /// are exempt, because a request in flight cannot be cancelled.
    pub fn one_pod_a_node(&self, server: &Server) -> Judgement {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for pod in server.pods.objects.values().map(|pod| &pod.seen) {
            if !occupies(pod) || self.is_late(pod) {
                continue;
            }
            let name = annotation(pod, NODE_NAME_ANNOTATION);
            if let Some(other) = seen.insert(name, &pod.meta.name) {
                return Err(format!("one pod a node: {other} and {} run on node {name}", pod.meta.name));
            }
        }
        Ok(())
    }

    /// Once: no container starts on a machine whose last attempt is a success that still counts.
    pub fn starts(&mut self, server: &Server, job: &DaemonJob, pod: &Pod) -> Judgement {
        let machine = &*server.nodes.objects[pod.node.as_deref().unwrap()].seen.meta.uid;
        let created = self.made.get(&*pod.meta.uid).map_or(0, |(_, revision)| *revision);
        if label(pod, NODE_UID_LABEL) != machine || self.is_late(pod) {
            self.mixed.insert(machine.to_owned());
        }
        let Some(success) = self.successes.remove(machine) else { return Ok(()) };
        let is_odd = self.mixed.contains(machine) || success.is_late;
        let is_lost = self.lost.get(machine) == Some(&false);
        if is_odd || is_lost || success.revision > created {
            return Ok(());
        }
        let is_other = |what, key: &str, then: &str| reruns_on(job, what) && annotation(pod, key) != then;
        let is_other_template =
            success.hash != label(pod, HASH_LABEL) && reruns_on(job, RerunOn::TemplateChange);
        let due = annotation(pod, DUE_TIME_ANNOTATION);
        // A pod for another due time runs again. Without a schedule, a pod has none.
        if is_other_template
            || !due.is_empty() && due != success.due
            || is_other(RerunOn::NodeReboot, BOOT_ID_ANNOTATION, &success.boot)
            || is_other(RerunOn::MachineChange, MACHINE_ID_ANNOTATION, &success.machine)
        {
            return Ok(());
        }
        // A node that died immediately did not report the start of a pod.
        let mut later = server.pods.log.iter().filter(|change| change.revision > success.revision);
        let may_have_run = later.any(|change| {
            change.object.as_ref().is_some_and(|pod| {
                label(pod, NODE_UID_LABEL) == machine
                    && pod.node.is_some()
                    && !pod.is_running()
                    && pod.started.is_none()
            })
        });
        if may_have_run {
            return Ok(());
        }
        Err(format!("once: {} runs again on node {machine}, which was done", pod.meta.name))
    }

    pub fn succeeded(&mut self, server: &Server, pod: &Pod) {
        let machine = server.nodes.objects[pod.node.as_deref().unwrap()].seen.meta.uid.to_string();
        if machine != label(pod, NODE_UID_LABEL) {
            // The pod counts for the new Node only if the manager sees both in time.
            return;
        }
        let success = Success {
            hash: label(pod, HASH_LABEL).to_owned(),
            due: annotation(pod, DUE_TIME_ANNOTATION).to_owned(),
            boot: annotation(pod, BOOT_ID_ANNOTATION).to_owned(),
            machine: annotation(pod, MACHINE_ID_ANNOTATION).to_owned(),
            revision: server.revision,
            is_late: self.is_late(pod),
        };
        self.successes.insert(machine, success);
    }

    pub fn ledger_written(&mut self, server: &Server) {
        for shard in server.shards.objects.values() {
            for (uid, line) in &shard.seen.entries {
                let number = line.as_ref().map_or(0, |line| line.pod);
                self.recorded.entry(uid.to_string()).or_default().entry(number).or_insert(server.revision);
            }
        }
    }

    pub fn shard_deleted(&mut self, number: u8) {
        self.touched.insert(number);
    }

    /// The process that saw pods and ledger last has exited. The lines of a missing shard are lost.
    pub fn leader_gone(&mut self, server: &Server) {
        self.sighted.clear();
        let status = server.job().and_then(|job| job.seen.status.clone()).unwrap_or_default();
        let is_absent =
            |number: u8| !server.shards.objects.values().any(|shard| shard.seen.number(JOB) == Some(number));
        // A missing shard may have had the line of any of its nodes.
        for uid in self.recorded.keys().chain(self.successes.keys()) {
            let number = shard_of(uid);
            if self.touched.contains(&number) && is_absent(number) {
                let has_pods =
                    server.pods.objects.values().any(|pod| label(&pod.seen, NODE_UID_LABEL) == uid);
                let is_listed = status.ledger_shards.contains(&number) && !has_pods;
                let stays = self.lost.entry(uid.clone()).or_insert(true);
                *stays &= is_listed;
            }
        }
    }

    /// A late write created a shard again without the lines that its last owner knew.
    pub fn shard_made_late(&mut self, number: u8) {
        if self.touched.contains(&number) {
            let uids = self.recorded.keys().filter(|uid| shard_of(uid) == number);
            self.lost.extend(uids.map(|uid| (uid.clone(), false)));
        }
    }

    /// In a new rollout, nodes whose record was lost run again.
    pub fn rollout_changed(&mut self) {
        self.lost.values_mut().for_each(|stays| *stays = false);
    }

    /// Released: an ended pod loses its finalizer only when the ledger has its line or a later one. The
    /// exceptions are a deleted Node and a deleted DaemonJob.
    pub fn released(&self, server: &Server, pod: &Pod) -> Judgement {
        let uid = label(pod, NODE_UID_LABEL);
        let exists = server.nodes.objects.values().any(|node| &*node.seen.meta.uid == uid);
        let is_served = server.job().is_some_and(|job| job.seen.metadata.deletion_timestamp.is_none());
        let is_superfluous =
            pod.phase == Phase::Failed && DeletedFor::of(pod) == Some(DeletedFor::Superfluous);
        if pod.is_running() || !exists || !is_served || is_superfluous {
            return Ok(());
        }
        let number = shard_of(uid);
        if self.touched.contains(&number) {
            // The manager restores its copy of a deleted shard, so it is enough that the line was written.
            let is_written = self.is_recorded(uid, number_of(pod), u64::MAX);
            return is_written.then_some(()).ok_or(format!("released: {} was never recorded", pod.meta.name));
        }
        let shard = server.shards.objects.values().find(|shard| shard.seen.number(JOB) == Some(number));
        let line = shard.and_then(|shard| shard.seen.entries.get(uid)).and_then(|line| line.as_ref().ok());
        let Some(line) = line.filter(|line| line.pod >= number_of(pod)) else {
            return Err(format!(
                "released: {} loses its finalizer, but the ledger has {line:?}",
                pod.meta.name
            ));
        };
        // A late write created a second pod with a number that was already recorded.
        let is_exempt = line.pod > number_of(pod) || self.is_late(pod);
        let agrees = is_exempt || (line.outcome == Outcome::Succeeded) == (pod.phase == Phase::Succeeded);
        agrees
            .then_some(())
            .ok_or(format!("released: {} is {:?}, but the ledger has {line}", pod.meta.name, pod.phase))
    }
}
