//! The machines and their pods, according to the server's events that a manager has seen.
//!
//! This module does not use the plan. The events may not show how a pod counts, for example if another client
//! deleted it while it ran. The attempt is then unsure. Invariants that forbid an action use sure attempts,
//! and invariants that need a reason use possible ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use quintet_daemonjob::api::{DaemonJob, RerunOn};
use quintet_daemonjob::clocks::DELETION_TAINTS;
use quintet_daemonjob::labels::{
    BOOT_ID_ANNOTATION, DUE_TIME_ANNOTATION, HASH_LABEL, MACHINE_ID_ANNOTATION, NODE_NAME_ANNOTATION,
    NODE_READY_ANNOTATION, NODE_UID_LABEL, ROLLOUT_ANNOTATION, number_of,
};
use quintet_daemonjob::outcome::DeletedFor;
use quintet_runtime::model::core_types::{Node, Phase, Pod};

use crate::due_times::Target;
use crate::server::Server;
use crate::truth::{Truth, annotation, label, reruns_on};

/// The end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Open,
    Succeeded,
    /// It failed, or the manager deleted it for its restarts.
    Failed,
    Disrupted,
    /// It failed, and the cause is unknown.
    Unsure,
}

/// The last attempt on a machine.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub number: u64,
    pub rollout: u64,
    pub hash: String,
    /// Its due time, or an empty text.
    pub due: String,
    pub boot: String,
    pub machine: String,
    pub end: End,
    /// The failures that it surely adds.
    counted: u32,
}

/// One machine: a Node object by its UID.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub name: String,
    /// None if it was deleted.
    pub node: Option<Arc<Node>>,
    /// Whether later events are uncertain. The cause is a late write, a record that another client deleted,
    /// or a Node that was created again with the same name.
    pub is_odd: bool,
    /// Whether it was ever cordoned or marked for deletion.
    pub was_leaving: bool,
    /// The rollout of the last pod that ended.
    pub rollout: u64,
    /// Whether the last pod that ended succeeded.
    pub ended_well: bool,
    /// The sure failures in this rollout since the last success.
    pub failures: u32,
    /// The possible failures in this rollout since the last success.
    pub most_failures: u32,
    /// The possible disruptions in this rollout.
    pub most_disruptions: u32,
    pub last: Option<Attempt>,
    /// The rollout and number of the last pod whose end left the node not Ready until now.
    unclear: Option<(u64, u64)>,
    /// The rollout of the last pod that was bound to it.
    pub bound: Option<u64>,
    /// The rollout that its deletion counts for, and whether this is sure.
    pub gone: Option<(u64, bool)>,
    pub pods: BTreeMap<Arc<str>, Arc<Pod>>,
}

pub fn rollout_of(pod: &Pod) -> u64 {
    annotation(pod, ROLLOUT_ANNOTATION).parse().unwrap()
}

fn was_made_on_a_ready_node(pod: &Pod) -> bool {
    !annotation(pod, NODE_READY_ANNOTATION).is_empty()
}

impl Machine {
    pub fn has_succeeded(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.end == End::Succeeded)
    }

    /// Whether its last attempt was one of this rollout.
    pub fn last_is_of(&self, rollout: u64) -> bool {
        self.last.as_ref().is_some_and(|last| last.rollout == rollout)
    }

    /// Whether its last attempt is a success that still counts, apart from reboots.
    pub fn is_done(&self, job: &DaemonJob, target: &Target) -> bool {
        let Some(last) = self.last.as_ref().filter(|last| last.end == End::Succeeded) else { return false };
        let is_current = last.hash == target.hash || !reruns_on(job, RerunOn::TemplateChange);
        is_current && (target.due.is_empty() || last.due == target.due)
    }

    /// Whether its last attempt surely failed in this rollout.
    pub fn has_failed_in(&self, rollout: u64) -> bool {
        self.last.as_ref().is_some_and(|last| last.end == End::Failed && last.rollout == rollout)
    }

    /// Rollout and number of a pod that was created while the node was Ready, was bound, and has not ended.
    fn risky_pod(&self) -> Option<(u64, u64)> {
        let is_risky =
            |pod: &&Arc<Pod>| pod.node.is_some() && pod.is_running() && was_made_on_a_ready_node(pod);
        self.pods.values().find(is_risky).map(|pod| (rollout_of(pod), number_of(pod)))
    }

    /// The rollout of the attempt after which it has surely not been Ready.
    pub fn suspect_rollout(&self) -> Option<u64> {
        let is_ready = self.node.as_ref().is_none_or(|node| node.ready);
        if is_ready { None } else { self.risky_pod().or(self.unclear).map(|(rollout, _)| rollout) }
    }

    /// Whether it may have failed permanently in this rollout.
    pub fn may_have_failed(&self, rollout: u64, limit: i64, disruption_limit: Option<i64>) -> bool {
        let exceeds_disruptions =
            disruption_limit.is_some_and(|limit| i64::from(self.most_disruptions) > limit);
        let exceeds = i64::from(self.most_failures) > limit || exceeds_disruptions;
        self.is_odd || self.rollout == rollout && !self.ended_well && exceeds
    }

    fn took(&mut self, pod: &Pod, before: Option<&Pod>, is_fixed: bool) {
        let number = number_of(pod);
        let was = |state: fn(&Pod) -> bool| before.is_some_and(state);
        if pod.node.is_some() && !was(|pod| pod.node.is_some()) {
            self.is_odd |= self.node.is_none();
            self.bound = Some(rollout_of(pod));
        }
        if pod.started.is_some() && !was(|pod| pod.started.is_some()) {
            self.attempt(pod, End::Open, 0);
        }
        if !pod.is_running() && !was(|pod| !pod.is_running()) {
            self.ended(pod);
        }
        // Until its end is seen or recorded, a deletion may count as the cause of the end.
        let is_deleted_late =
            was(|pod| !pod.is_running() && pod.meta.deleted.is_none()) && pod.meta.deleted.is_some();
        if is_deleted_late
            && !is_fixed
            && let Some(last) =
                self.last.as_mut().filter(|last| last.number == number && last.end != End::Succeeded)
        {
            self.failures = self.failures.saturating_sub(last.counted);
            self.most_failures += pod.restarts + 1;
            self.most_disruptions += 1;
            self.gone = self.gone.map(|(rollout, _)| (rollout, false));
            (last.end, last.counted) = (End::Unsure, 0);
        }
    }

    fn attempt(&mut self, pod: &Pod, end: End, counted: u32) {
        self.last = Some(Attempt {
            number: number_of(pod),
            rollout: rollout_of(pod),
            hash: label(pod, HASH_LABEL).to_owned(),
            due: annotation(pod, DUE_TIME_ANNOTATION).to_owned(),
            boot: annotation(pod, BOOT_ID_ANNOTATION).to_owned(),
            machine: annotation(pod, MACHINE_ID_ANNOTATION).to_owned(),
            end,
            counted,
        });
    }

    fn ended(&mut self, pod: &Pod) {
        let rollout = rollout_of(pod);
        let is_superfluous = DeletedFor::of(pod) == Some(DeletedFor::Superfluous);
        if pod.phase == Phase::Failed && pod.meta.deleted.is_some() && is_superfluous {
            return;
        }
        if self.rollout != rollout || self.ended_well {
            (self.failures, self.most_failures, self.most_disruptions) = (0, 0, 0);
        }
        self.rollout = rollout;
        self.ended_well = pod.phase == Phase::Succeeded;
        let is_rejected = pod.rejection.is_some();
        if let Some((_, is_sure)) = &mut self.gone
            && (is_rejected || DeletedFor::of(pod) == Some(DeletedFor::Superfluous))
        {
            *is_sure = false;
        }
        let (end, sure, possible) = match (pod.phase, pod.meta.deleted.is_some(), DeletedFor::of(pod)) {
            (Phase::Succeeded, _, _) => (End::Succeeded, 0, 0),
            (_, true, Some(DeletedFor::Exhausted)) => (End::Failed, pod.restarts + 1, pod.restarts + 1),
            (_, true, Some(_)) => (End::Disrupted, 0, 0),
            (_, _, None) if is_rejected => (End::Disrupted, 0, 0),
            (_, false, None) if pod.disrupted => (End::Disrupted, 0, 0),
            (_, false, None) => (End::Failed, 1, 1),
            (_, _, _) => (End::Unsure, 0, pod.restarts + 1),
        };
        self.failures += sure;
        self.most_failures += possible;
        self.most_disruptions += u32::from(matches!(end, End::Disrupted | End::Unsure));
        let has_run = pod.started.is_some() || end != End::Disrupted;
        let is_down = self.node.as_ref().is_some_and(|node| !node.ready);
        // A node that died immediately does not report the start.
        let is_silent = is_down && pod.node.is_some() && !is_rejected || end == End::Unsure;
        self.is_odd |= pod.started.is_none() && is_silent && self.has_succeeded();
        if has_run && !(is_rejected && end == End::Disrupted) {
            self.attempt(pod, end, sure);
        }
        if is_down && pod.node.is_some() && was_made_on_a_ready_node(pod) && !is_rejected {
            self.unclear = Some((rollout, number_of(pod)));
        }
    }

    fn changed(&mut self, node: &Arc<Node>) {
        let is_marked = node.taints.iter().any(|taint| DELETION_TAINTS.contains(&&*taint.key));
        self.was_leaving |= node.unschedulable || is_marked || node.meta.deleted.is_some();
        if node.ready {
            self.unclear = None;
        }
        self.name = node.meta.name.to_string();
        self.node = Some(node.clone());
    }

    fn deleted(&mut self, truth: &Truth, uid: &str) {
        let has_bound = self.pods.values().any(|pod| pod.node.is_some() && pod.is_running());
        // After a reconcile saw the end of the pod and the node Ready, the node is not suspect.
        let suspect = |(rollout, number)| (rollout, !self.was_leaving && !truth.is_cleared(uid, number));
        let last = self.last.as_ref().filter(|last| matches!(last.end, End::Failed | End::Unsure));
        let failed = last.filter(|_| !has_bound).map(|last| (last.rollout, last.end == End::Failed));
        self.gone = match self.risky_pod() {
            Some(pod) => Some(suspect(pod)),
            None if failed.is_some_and(|(_, is_sure)| is_sure) => failed,
            None => self.unclear.map(suspect).or(failed).or_else(|| Some((self.bound?, false))),
        };
        self.node = None;
    }
}

/// The machines by UID, according to the events of pods and nodes before these revisions.
pub fn machines(
    server: &Server,
    truth: &Truth,
    pods_until: u64,
    nodes_until: u64,
) -> BTreeMap<String, Machine> {
    let mut machines: BTreeMap<String, Machine> = BTreeMap::new();
    let mut names: BTreeMap<&str, &Arc<Node>> = BTreeMap::new();
    let mut there: BTreeMap<&str, &Arc<Pod>> = BTreeMap::new();
    let mut pods = server.pods.log.iter().take_while(|change| change.revision < pods_until).peekable();
    let mut nodes = server.nodes.log.iter().take_while(|change| change.revision < nodes_until).peekable();
    loop {
        let next = (pods.peek().map(|pod| pod.revision), nodes.peek().map(|node| node.revision));
        let is_pod = match next {
            (None, None) => break,
            (pod, node) => pod.unwrap_or(u64::MAX) < node.unwrap_or(u64::MAX),
        };
        if is_pod {
            let Some(change) = pods.next() else { break };
            let before = there.remove(&*change.name);
            if let Some(before) = before
                && change.object.as_ref().is_none_or(|pod| pod.meta.uid != before.meta.uid)
            {
                machines
                    .entry(label(before, NODE_UID_LABEL).to_owned())
                    .or_default()
                    .pods
                    .remove(&before.meta.uid);
            }
            let Some(pod) = &change.object else { continue };
            there.insert(&change.name, pod);
            let before = before.filter(|before| before.meta.uid == pod.meta.uid);
            let uid = label(pod, NODE_UID_LABEL);
            let machine = machines.entry(uid.to_owned()).or_default();
            machine.took(
                pod,
                before.map(|pod| &**pod),
                truth.is_recorded(uid, number_of(pod), change.revision) || truth.has_sighted(pod),
            );
            machine.pods.insert(pod.meta.uid.clone(), pod.clone());
            let is_foreign = pod.phase == Phase::Succeeded && machine.node.is_none();
            if truth.is_late(pod) || is_foreign {
                machine.is_odd = true;
                if let Some(node) = names.get(annotation(pod, NODE_NAME_ANNOTATION)) {
                    machines.entry(node.meta.uid.to_string()).or_default().is_odd = true;
                }
            }
        } else {
            let Some(change) = nodes.next() else { break };
            let before = names.remove(&*change.name);
            if let Some(before) = before
                && change.object.as_ref().is_none_or(|node| node.meta.uid != before.meta.uid)
            {
                let uid = &*before.meta.uid;
                machines.entry(uid.to_owned()).or_default().deleted(truth, uid);
            }
            let Some(node) = &change.object else { continue };
            names.insert(&change.name, node);
            // The manager compares the start of a pod of the earlier Node with the creation of this Node.
            let is_of_name = |pod: &&&Arc<Pod>| {
                annotation(pod, NODE_NAME_ANNOTATION) == change.name && pod.started.is_some()
            };
            let uid = &*node.meta.uid;
            if server.nodes_are_ahead()
                && there.values().any(|pod| is_of_name(&pod) && label(pod, NODE_UID_LABEL) != uid)
            {
                machines.entry(uid.to_owned()).or_default().is_odd = true;
            }
            machines.entry(node.meta.uid.to_string()).or_default().changed(node);
        }
    }
    for (uid, machine) in &mut machines {
        machine.is_odd |= truth.has_lost_records(uid);
        // A reconcile saw the end of the pod and the node Ready, before the node controller changed the Node.
        machine.unclear = machine.unclear.filter(|(_, number)| !truth.is_cleared(uid, *number));
    }
    machines
}
