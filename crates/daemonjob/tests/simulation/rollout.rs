//! The invariants of a rollout: the failure policy, the slots, Complete and Failed. They use the events that
//! the manager had seen when it made a plan, and never the numbers of the plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus, FailurePolicyType, RerunOn, Rollout};
use quintet_daemonjob::clocks::settle_time;
use quintet_daemonjob::eligibility::{Eligibility, Placement};
use quintet_daemonjob::failure_policy::max_failed;
use quintet_daemonjob::labels::{NODE_NAME_ANNOTATION, NODE_UID_LABEL, number_of};
use quintet_daemonjob::node_state::node_lost_after;
use quintet_daemonjob::parallelism::parallelism;
use quintet_daemonjob::rollout::was_finished;
use quintet_daemonjob::waves::paused;
use quintet_runtime::model::conditions::is_true;
use quintet_runtime::model::core_types::{Node, Phase, Pod};

use crate::due_times::{self, Target, due_time};
use crate::machines::{End, Machine, machines, rollout_of};
use crate::manager::Pass;
use crate::server::Server;
use crate::truth::{Judgement, Truth, annotation, label, occupies, reruns_on};

/// The default of backoffLimit.
const BACKOFF_LIMIT: i64 = 6;
/// A deleted node surely counts for this long.
const GONE_SURELY_COUNTS: SignedDuration = SignedDuration::from_hours(22);

/// How long one process has seen a node unwell without a break, in true time.
#[derive(Clone, Copy, Default)]
struct Unwell {
    /// Not Ready, while the fleet was surely well.
    not_ready: Option<Timestamp>,
    /// With a condition taint, while the fleet was surely well.
    unhealthy: Option<Timestamp>,
    /// Either of them.
    any: Option<Timestamp>,
}

/// The memory between two reconciles.
#[derive(Default)]
pub struct Memory {
    /// Whether the fleet was surely well in the last reconcile.
    is_well: bool,
    /// By node UID, for the present process only.
    unwell: BTreeMap<String, Unwell>,
    /// By node UID: when a reconcile first saw that the Node was deleted.
    gone: BTreeMap<String, Timestamp>,
    /// The rollout that the failure policy surely stops, and since when.
    braked: Option<(u64, Timestamp)>,
    /// UIDs of nodes that surely counted while the status had the stop, and have been unwell since.
    counted: BTreeSet<String>,
    /// The largest number of nodes at the same time.
    most_nodes: usize,
    /// The last written failure: the events that its planner had seen, the generation, and the due time.
    failed: Option<(u64, Option<i64>, Option<Timestamp>)>,
    /// By node UID: the number of the last pod that succeeded, and when a reconcile first saw that.
    succeeded: BTreeMap<String, (u64, Timestamp)>,
}

/// The knowledge that a manager may have when it begins a reconcile.
pub struct View {
    pub machines: BTreeMap<String, Machine>,
    unwell: BTreeMap<String, Unwell>,
    counted: BTreeSet<String>,
    gone: BTreeMap<String, Timestamp>,
    succeeded: BTreeMap<String, (u64, Timestamp)>,
    horizon: Timestamp,
    now: Timestamp,
    most_nodes: usize,
    /// The manager has seen the events of both caches before this revision.
    seen_until: u64,
    /// UIDs of the pods that this reconcile has created.
    made: BTreeSet<String>,
}

fn policy_type(job: &DaemonJob) -> FailurePolicyType {
    job.spec.failure_policy.as_ref().map(|policy| policy.type_).unwrap_or_default()
}

fn backoff_limit(job: &DaemonJob) -> i64 {
    job.spec.backoff_limit.map_or(BACKOFF_LIMIT, i64::from)
}

/// Whether a pod occupies the node, so that the node has not failed yet.
fn is_occupied(pass: &Pass, name: &str) -> bool {
    pass.world.pods.iter().any(|pod| occupies(pod) && annotation(pod, NODE_NAME_ANNOTATION) == name)
}

pub fn selected<'p>(pass: &'p Pass, placement: &Placement) -> Vec<(&'p Node, Eligibility)> {
    let nodes = pass.world.nodes.iter().map(|node| (&**node, placement.eligibility(node)));
    nodes.filter(|(node, eligibility)| eligibility.is_selected() && node.meta.deleted.is_none()).collect()
}

pub fn rollout_number(status: Option<&DaemonJobStatus>) -> Option<u64> {
    u64::try_from(status?.rollout.as_ref()?.number).ok()
}

/// Whether more than half of the nodes that existed when the run began may be unhealthy.
fn may_be_unhealthy(pass: &Pass, placement: &Placement) -> bool {
    let start = |status: Option<&DaemonJobStatus>| Some(status?.start_time.as_ref()?.0);
    let starts = [start(pass.job.status.as_ref()), start(pass.plan.status.as_ref()), None];
    starts.into_iter().any(|start| {
        let mut nodes = selected(pass, placement);
        nodes.retain(|(node, _)| {
            start.is_none_or(|start| node.meta.created.is_none_or(|created| created <= start))
        });
        let unhealthy = nodes.iter().filter(|(node, _)| placement.is_unhealthy(node)).count();
        nodes.len() >= 3 && unhealthy * 2 > nodes.len()
    })
}

impl Memory {
    /// Another process leads, or the leader's process has restarted.
    pub fn restarted(self) -> Self {
        Self { unwell: BTreeMap::new(), ..self }
    }

    fn look(&mut self, pass: &Pass, placement: &Placement, now: Timestamp) {
        let was_well = std::mem::replace(&mut self.is_well, !may_be_unhealthy(pass, placement));
        let is_well = was_well && self.is_well;
        let before = std::mem::take(&mut self.unwell);
        for node in &pass.world.nodes {
            let uid = node.meta.uid.to_string();
            let mut unwell = before.get(&uid).copied().unwrap_or_default();
            let is_unhealthy = node.taints.iter().any(quintet_daemonjob::eligibility::is_condition_taint);
            let since = |is: bool, keeps: bool, before: Option<Timestamp>| {
                is.then(|| before.filter(|_| keeps).unwrap_or(now))
            };
            unwell.not_ready = since(!node.ready, is_well, unwell.not_ready);
            unwell.unhealthy = since(placement.is_unhealthy(node), is_well, unwell.unhealthy);
            unwell.any = since(!node.ready || is_unhealthy, true, unwell.any);
            self.unwell.insert(uid, unwell);
        }
    }
}

impl View {
    /// The knowledge of the manager that begins this reconcile, with the revisions of its caches.
    pub fn of(
        server: &Server,
        truth: &mut Truth,
        memory: &mut Memory,
        pass: &Pass,
        seen: (u64, u64),
    ) -> Self {
        let placement = Placement::of(pass.job.spec.template.spec());
        memory.look(pass, &placement, server.now);
        memory.most_nodes = memory.most_nodes.max(pass.world.nodes.len());
        for node in pass.world.nodes.iter().filter(|node| node.ready) {
            let of_node = |pod: &&std::sync::Arc<Pod>| label(pod, NODE_UID_LABEL) == &*node.meta.uid;
            let pods = || pass.world.pods.iter().filter(of_node);
            let ended = pods().filter(|pod| !pod.is_running());
            if let Some(number) = ended.map(|pod| number_of(pod)).max() {
                truth.clears(&node.meta.uid, number);
            }
        }
        for pod in pass.world.pods.iter().filter(|pod| !pod.is_running() && pod.meta.deleted.is_none()) {
            truth.sights(pod);
        }
        for pod in pass.world.pods.iter().filter(|pod| pod.phase == Phase::Succeeded) {
            let number = number_of(pod);
            let known = memory.succeeded.entry(label(pod, NODE_UID_LABEL).to_owned());
            let known = known.or_insert((number, server.now));
            if number > known.0 {
                *known = (number, server.now);
            }
        }
        let machines = machines(server, truth, seen.0, seen.1);
        for (uid, _) in machines.iter().filter(|(_, machine)| machine.gone.is_some()) {
            memory.gone.entry(uid.clone()).or_insert(server.now);
        }
        let rollout =
            rollout_number(pass.plan.status.as_ref().or(pass.job.status.as_ref())).unwrap_or_default();
        let since = memory.braked.filter(|(braked, _)| *braked == rollout).map(|(_, since)| since);
        let reported = pass.job.status.as_ref().and_then(|status| status.rollout.as_ref());
        let is_reported = reported.is_some_and(|rollout| rollout.braked_since.is_some())
            && rollout_number(pass.job.status.as_ref()) == Some(rollout);
        let is_unwell = |uid: &str| memory.unwell.get(uid).is_some_and(|unwell| unwell.any.is_some());
        memory.counted.retain(|uid| is_reported && is_unwell(uid));
        let view = Self {
            machines,
            unwell: memory.unwell.clone(),
            counted: memory.counted.clone(),
            gone: memory.gone.clone(),
            succeeded: memory.succeeded.clone(),
            horizon: since.unwrap_or(server.now),
            now: server.now,
            most_nodes: memory.most_nodes,
            seen_until: seen.0.min(seen.1).min(server.revision + 1),
            made: BTreeSet::new(),
        };
        let is_braked = policy_type(&pass.job) != FailurePolicyType::Continue
            && view.sure_failures(pass, rollout).len() > max_failed(&pass.job, view.most_nodes);
        if is_braked && is_reported {
            let names = view.sure_failures(pass, rollout);
            let nodes = pass.world.nodes.iter().filter(|node| {
                names.iter().any(|name| **name == *node.meta.name) && is_unwell(&node.meta.uid)
            });
            memory.counted.extend(nodes.map(|node| node.meta.uid.to_string()));
        }
        memory.braked = is_braked.then(|| (rollout, since.unwrap_or(server.now)));
        view
    }

    pub fn machine(&self, node: &Node) -> Machine {
        self.machines.get(&*node.meta.uid).cloned().unwrap_or_default()
    }

    fn has_been(&self, since: Option<Timestamp>, job: &DaemonJob) -> bool {
        since.is_some_and(|since| self.now.duration_since(since) >= node_lost_after(job))
    }

    fn unwell(&self, uid: &str) -> Unwell {
        self.unwell.get(uid).copied().unwrap_or_default()
    }

    /// Whether a node's pods may hold no slots, because it was unwell for too long.
    pub fn may_be_written_off(&self, node: &Node, job: &DaemonJob) -> bool {
        !node.ready && self.has_been(self.unwell(&node.meta.uid).any, job)
    }

    /// Whether the node is done in the rollout of this status, according to the events.
    pub fn is_done(&self, node: &Node, job: &DaemonJob, status: &DaemonJobStatus) -> bool {
        let machine = self.machine(node);
        let Some(last) = &machine.last else { return false };
        // A change begins a run only while the node is Ready. A run that continues waits for the node.
        let is_known = node.ready || !was_finished(job);
        let is_other = |what, then: &str, is: &str| {
            is_known && reruns_on(job, what) && !then.is_empty() && !is.is_empty() && then != is
        };
        machine.is_done(job, &Target::of(job, status))
            && !is_other(RerunOn::NodeReboot, &last.boot, &node.boot_id)
            && !is_other(RerunOn::MachineChange, &last.machine, &node.machine_id)
    }

    /// Whether the node surely has not been Ready for settleSeconds since its success.
    pub fn is_settling(&self, uid: &str, job: &DaemonJob) -> bool {
        let machine = self.machines.get(uid).filter(|machine| !machine.is_odd);
        let last = machine.and_then(|machine| machine.last.as_ref());
        let seen = last
            .filter(|last| last.end == End::Succeeded)
            .and_then(|last| self.succeeded.get(uid).filter(|(number, _)| *number == last.number));
        let time = seen.map(|(_, since)| self.now.duration_since(*since));
        time.is_some_and(|time| settle_time(job).is_some_and(|settles| time < settles))
    }

    /// The names of nodes that surely count as failed.
    fn sure_failures(&self, pass: &Pass, rollout: u64) -> Vec<String> {
        let job = &pass.job;
        let placement = Placement::of(job.spec.template.spec());
        let mut failed = Vec::new();
        for node in &pass.world.nodes {
            let machine = self.machine(node);
            let unwell = self.unwell(&node.meta.uid);
            let is_counted = self.counted.contains(&*node.meta.uid);
            let is_tried = is_occupied(pass, &node.meta.name);
            let is_recorded = machine.rollout == rollout
                && !machine.ended_well
                && i64::from(machine.failures) > backoff_limit(job);
            // A node must become Ready within a time after its success.
            let settles = settle_time(job).is_some() && machine.has_succeeded();
            let is_lost = machine.suspect_rollout() == Some(rollout)
                && !machine.was_leaving
                && !settles
                && (self.has_been(unwell.not_ready, job) || is_counted);
            let is_kept_away = node.meta.deleted.is_some()
                || !placement.eligibility(node).is_selected()
                || placement.is_tainted(node)
                || placement.is_unhealthy(node) && (self.has_been(unwell.unhealthy, job) || is_counted);
            let is_gone = machine.has_failed_in(rollout) && is_kept_away;
            if !machine.is_odd && (is_lost || is_recorded || is_gone && !is_tried) {
                failed.push(node.meta.name.to_string());
            }
        }
        let still_counts = |uid: &str| {
            let seen = self.gone.get(uid).copied().unwrap_or(self.now);
            self.horizon.duration_since(seen) < GONE_SURELY_COUNTS
        };
        let gone = self.machines.iter().filter(|(uid, machine)| {
            !machine.is_odd && machine.gone == Some((rollout, true)) && still_counts(uid)
        });
        failed.extend(gone.map(|(uid, machine)| format!("{} ({uid}, deleted)", machine.name)));
        failed
    }

    /// The number of nodes that may count as failed: only recorded failures, or provisional ones too.
    fn possible_failures(&self, pass: &Pass, rollout: u64, recorded: bool) -> usize {
        let job = &pass.job;
        let placement = Placement::of(job.spec.template.spec());
        let limits = (backoff_limit(job), job.spec.disruption_limit.map(i64::from));
        let existing = pass.world.nodes.iter().filter(|node| {
            let machine = self.machine(node);
            let last = machine.last.as_ref().filter(|last| last.rollout == rollout);
            let has_failed = last.is_some_and(|last| matches!(last.end, End::Failed | End::Unsure));
            let has_run = last.is_some() || machine.bound == Some(rollout);
            // The retry of an eligible node may not start in time.
            let cannot_be_retried = || {
                job.spec.pending_deadline_seconds.is_some()
                    || placement.eligibility(node) != Eligibility::Run
                    || node.meta.deleted.is_some()
            };
            machine.may_have_failed(rollout, limits.0, limits.1)
                || !recorded && !node.ready && has_run
                || !recorded && has_failed && cannot_be_retried()
        });
        let gone = self.machines.values().filter(|machine| {
            machine.node.is_none()
                && (machine.is_odd
                    || machine.bound == Some(rollout)
                    || machine.gone.is_some_and(|(of, _)| of == rollout))
        });
        existing.count() + if recorded { 0 } else { gone.count() }
    }

    /// The names of nodes that surely hold a slot without a pod.
    fn holders(&self, pass: &Pass, rollout: u64) -> Vec<&str> {
        let job = &pass.job;
        let placement = Placement::of(job.spec.template.spec());
        let status = pass.plan.status.as_ref();
        let is_over = |node: &Node| {
            let lists = status.map(|status| [&status.failed_nodes, &status.skipped_nodes]);
            lists.into_iter().flatten().flatten().any(|listed| listed.node == *node.meta.name)
        };
        let mut holders = Vec::new();
        for node in &pass.world.nodes {
            let eligibility = placement.eligibility(node);
            let machine = self.machines.get(&*node.meta.uid);
            let Some(machine) = machine.filter(|machine| !machine.is_odd) else { continue };
            let is_suspect = machine.suspect_rollout().is_some() && !self.may_be_written_off(node, job);
            let retries = policy_type(job) != FailurePolicyType::Continue
                && eligibility == Eligibility::Run
                && machine.has_failed_in(rollout)
                && node.meta.deleted.is_none()
                && !is_over(node);
            let settles = self.is_settling(&node.meta.uid, job) && !self.may_be_written_off(node, job);
            if (is_suspect || settles || retries) && !is_occupied(pass, &node.meta.name) {
                holders.push(&*machine.name);
            }
        }
        holders
    }

    /// Whether the leader may create this pod. It may create none while too many nodes have failed. Running
    /// pods and held slots together must not exceed parallelism.
    pub fn may_make(&mut self, server: &Server, pass: &Pass, pod: &Pod) -> Judgement {
        let job = &pass.job;
        self.made.insert(pod.meta.uid.to_string());
        let rollout = rollout_of(pod);
        let (failed, max) = (self.sure_failures(pass, rollout), max_failed(job, self.most_nodes));
        if policy_type(job) != FailurePolicyType::Continue && failed.len() > max {
            return Err(format!(
                "policy: {} is created, but {failed:?} failed and maxFailedNodes is {max}",
                pod.meta.name
            ));
        }
        if let Some(reason) = paused(job) {
            return Err(format!("paused: {} is created while paused for {reason}", pod.meta.name));
        }
        let is_odd = self.machines.get(label(pod, NODE_UID_LABEL)).is_some_and(|machine| machine.is_odd);
        due_times::may_make(server, pass, pod, is_odd)?;
        self.wave_has_room(server, pass, pod)?;
        let desired = pass.plan.status.as_ref().or(job.status.as_ref()).and_then(|status| status.desired);
        let Some(limit) = parallelism(job, usize::try_from(desired.unwrap_or_default()).unwrap()) else {
            return Ok(());
        };
        let may_be_free = |pod: &Pod| {
            let nodes = &mut pass.world.nodes.iter();
            let node = nodes.find(|node| &*node.meta.name == annotation(pod, NODE_NAME_ANNOTATION));
            node.is_some_and(|node| self.may_be_written_off(node, job))
        };
        let is_seen =
            |uid: &str| self.made.contains(uid) || pass.world.pods.iter().any(|pod| &*pod.meta.uid == uid);
        let pods = server.pods.objects.values().map(|pod| &*pod.seen);
        let running: Vec<&Pod> = pods.filter(|pod| occupies(pod) && is_seen(&pod.meta.uid)).collect();
        let names: BTreeSet<&str> = running.iter().map(|pod| annotation(pod, NODE_NAME_ANNOTATION)).collect();
        let running = running.iter().filter(|pod| !may_be_free(pod)).count();
        let mut holders = self.holders(pass, rollout);
        holders.retain(|name| !names.contains(name));
        // A node that settles, or whose last attempt may have failed, may use its own slot.
        let machine = self.machines.get(label(pod, NODE_UID_LABEL)).cloned().unwrap_or_default();
        let may_hold = machine.is_odd
            || settle_time(job).is_some() && machine.has_succeeded()
            || policy_type(job) != FailurePolicyType::Continue
                && machine.last.is_some_and(|last| {
                    last.rollout == rollout && matches!(last.end, End::Failed | End::Unsure)
                });
        let held = if may_hold { 0 } else { holders.len() };
        if running + held > limit {
            return Err(format!(
                "slots: {} is created: {running} pods run, {holders:?} hold slots, and parallelism is {limit}",
                pod.meta.name
            ));
        }
        Ok(())
    }

    /// A node starts only if fewer nodes have started than the wave of the stored status allows.
    fn wave_has_room(&self, server: &Server, pass: &Pass, pod: &Pod) -> Judgement {
        let job = &pass.job;
        let rollout = rollout_of(pod);
        let of = |status: Option<&DaemonJobStatus>| status?.rollout.clone();
        let stored = of(job.status.as_ref()).filter(|stored| u64::try_from(stored.number) == Ok(rollout));
        let Some(stored) = stored.filter(|_| job.spec.rollout.is_some()) else { return Ok(()) };
        let at = usize::try_from(stored.wave.unwrap_or(1) - 1).unwrap();
        let size = |of: &Rollout| of.wave_sizes.get(at).map(|size| usize::try_from(*size).unwrap());
        // Nodes that join may raise the sizes in this reconcile.
        let planned = of(pass.plan.status.as_ref()).unwrap_or_else(|| stored.clone());
        let (Some(size), Some(planned)) = (size(&stored), size(&planned)) else { return Ok(()) };
        let own = label(pod, NODE_UID_LABEL);
        let has_tried = |machine: &Machine| {
            let last = machine.last.as_ref().filter(|last| last.rollout == rollout);
            last.is_some_and(|last| last.end != End::Unsure)
        };
        // A node that was skipped left the count, and continues when it returns.
        let has_had_pod = |machine: &Machine| {
            machine.is_odd || machine.last_is_of(rollout) || machine.bound == Some(rollout)
        };
        if self.machines.get(own).is_some_and(has_had_pod) {
            return Ok(());
        }
        let skipped = |name: &str| {
            let status = pass.plan.status.as_ref();
            status.is_some_and(|status| status.skipped_nodes.iter().any(|one| one.node == name))
        };
        let is_seen =
            |uid: &str| self.made.contains(uid) || pass.world.pods.iter().any(|pod| &*pod.meta.uid == uid);
        let pods = server.pods.objects.values().map(|pod| &*pod.seen);
        let open = pods.filter(|pod| occupies(pod) && is_seen(&pod.meta.uid) && rollout_of(pod) == rollout);
        let is_there = |uid: &str| pass.world.nodes.iter().any(|node| &*node.meta.uid == uid);
        // A skipped node does not count, except while the manager deletes its pod, which may be bound meanwhile.
        let is_bound = |uid: &str| {
            let known = pass.world.pods.iter().find(|pod| &*pod.meta.uid == uid);
            known.is_some_and(|pod| pod.node.is_some())
        };
        let open =
            open.filter(|pod| !(is_bound(&pod.meta.uid) && skipped(annotation(pod, NODE_NAME_ANNOTATION))));
        let open = open.map(|pod| label(pod, NODE_UID_LABEL)).filter(|uid| is_there(uid));
        let mut started: BTreeSet<&str> = open.collect();
        let placement = Placement::of(job.spec.template.spec());
        for (node, _) in selected(pass, &placement) {
            let machine = self.machines.get(&*node.meta.uid).filter(|machine| !machine.is_odd);
            if machine.is_some_and(has_tried) && !skipped(&node.meta.name) {
                started.insert(&node.meta.uid);
            }
        }
        started.remove(own);
        // A wave does not wait for a lost node. If the node was leaving, it has not failed.
        let is_given_up = |uid: &str| {
            let node = pass.world.nodes.iter().find(|node| &*node.meta.uid == uid);
            let was_leaving = self.machines.get(uid).is_some_and(|machine| machine.was_leaving);
            was_leaving && node.is_some_and(|node| self.may_be_written_off(node, job))
        };
        started.retain(|uid| !is_given_up(uid));
        let gone = self.machines.iter().filter(|(uid, machine)| {
            let seen = self.gone.get(*uid).copied().unwrap_or(self.now);
            !machine.is_odd
                && machine.gone == Some((rollout, true))
                && self.now.duration_since(seen) < GONE_SURELY_COUNTS
        });
        let count = started.len() + gone.count();
        if count < size.max(planned) {
            return Ok(());
        }
        let name = &pod.meta.name;
        Err(format!("waves: {name} is created, but {count} nodes have started and {size} may: {started:?}"))
    }

    /// Whether Complete, the stop by the failure policy and the end of a run are correct.
    pub fn outcome_is_true(&self, pass: &Pass, status: &DaemonJobStatus) -> Judgement {
        let job = &pass.job;
        let rollout = rollout_number(Some(status)).unwrap_or_default();
        let max = |base: i32| max_failed(job, usize::try_from(base).unwrap_or_default());
        let base = status.rollout.as_ref().map_or(0, |rollout| rollout.base);
        let held = status.conditions.iter().find(|one| one.type_ == "Paused" && one.status == "True");
        match held.map(|held| held.reason.as_str()) {
            Some("MaxFailedNodesExceeded") if self.possible_failures(pass, rollout, false) <= max(base) => {
                return Err("policy: no pods are created, but too few nodes have failed".to_owned());
            }
            Some("FleetUnhealthy") => {
                let placement = Placement::of(job.spec.template.spec());
                if !may_be_unhealthy(pass, &placement) {
                    return Err("policy: FleetUnhealthy, but most nodes are healthy".to_owned());
                }
            }
            _ => {}
        }
        let ended = |status: Option<&DaemonJobStatus>| status?.rollout.as_ref()?.ended.clone();
        let is_new = ended(job.status.as_ref()) != ended(Some(status));
        if is_new
            && ended(Some(status)).as_deref() == Some("MaxFailedNodesExceeded")
            && self.possible_failures(pass, rollout, true) <= max(base)
        {
            return Err("policy: FailFast ends the run, but too few nodes have failed permanently".to_owned());
        }
        if is_true(&status.conditions, "Complete") { self.is_complete(pass, status, rollout) } else { Ok(()) }
    }

    fn is_complete(&self, pass: &Pass, status: &DaemonJobStatus, rollout: u64) -> Judgement {
        let job = &pass.job;
        let placement = Placement::of(job.spec.template.spec());
        let wrong = |name: &str, why: &str| Err(format!("complete: {name} {why}"));
        let policy = job.spec.failure_policy.as_ref();
        let tolerates = policy.is_some_and(|policy| {
            policy.type_ == FailurePolicyType::Continue && policy.max_failed_nodes.is_some()
        });
        let sure = self.sure_failures(pass, rollout);
        let failed: BTreeSet<&str> = status.failed_nodes.iter().map(|failed| failed.node.as_str()).collect();
        let is_tolerated = tolerates && failed.len() <= max_failed(job, self.most_nodes);
        if !failed.is_empty() && !is_tolerated {
            return Err(format!("complete: {failed:?} failed and is not tolerated"));
        }
        for (node, eligibility) in selected(pass, &placement) {
            let name = &*node.meta.name;
            let machine = self.machine(node);
            let is_skipped = status.skipped_nodes.iter().any(|skipped| skipped.node == name);
            if machine.is_odd {
                continue;
            }
            // A lost node counts only for the rollout of its attempt.
            let is_written_off = self.may_be_written_off(node, job);
            if machine.suspect_rollout().is_some() && !is_written_off {
                return wrong(name, "has not been Ready since its attempt");
            }
            if self.is_done(node, job, status) && self.is_settling(&node.meta.uid, job) && !is_written_off {
                return wrong(name, "has not settled");
            }
            if failed.contains(name) {
                continue;
            }
            if sure.iter().any(|failed| failed == name) {
                return wrong(name, "has failed and is not counted");
            }
            if eligibility == Eligibility::Run && !is_skipped && !self.is_done(node, job, status) {
                return wrong(name, "is not done");
            }
        }
        if let Some(pod) = pass.world.pods.iter().find(|pod| {
            let nodes = &mut pass.world.nodes.iter();
            let node = nodes.find(|node| &*node.meta.name == annotation(pod, NODE_NAME_ANNOTATION));
            pod.is_counted() && !node.is_some_and(|node| self.may_be_written_off(node, job))
        }) {
            return wrong(&pod.meta.name, "runs");
        }
        if is_true(&status.conditions, "Failed") || status.completion_time.is_none() {
            return Err("complete: Failed is True too, or completionTime is missing".to_owned());
        }
        Ok(())
    }

    /// A status is written: Failed becomes Complete only for a reason.
    pub fn was_written(
        &self,
        server: &Server,
        memory: &mut Memory,
        job: &DaemonJob,
        status: &DaemonJobStatus,
    ) -> Judgement {
        let is = |type_| is_true(&status.conditions, type_);
        if is("Failed") {
            memory.failed = Some((self.seen_until, job.metadata.generation, due_time(Some(status))));
            return Ok(());
        }
        let Some((since, generation, due)) = memory.failed else { return Ok(()) };
        if !is("Complete") {
            return Ok(());
        }
        let is_excused = generation != job.metadata.generation
            || due != due_time(Some(status))
            || self.machines.values().any(|machine| machine.is_odd)
            || has_recovered(server, since);
        memory.failed = None;
        if is_excused { Ok(()) } else { Err("unfailed: Failed becomes Complete without a reason".to_owned()) }
    }
}

/// Whether a node was deleted, deselected or made eligible, or an attempt began, since this revision.
fn has_recovered(server: &Server, since: u64) -> bool {
    let starts = server.pods.log.iter().filter(|change| change.revision >= since);
    let mut pods = starts.filter_map(|change| change.object.as_ref());
    if pods.any(|pod| pod.started.is_some() || !pod.is_running()) {
        return true;
    }
    let mut before: BTreeMap<&str, &Node> = BTreeMap::new();
    for change in &server.nodes.log {
        let Some(node) = change.object.as_deref() else {
            before.remove(&*change.name);
            if change.revision >= since {
                return true;
            }
            continue;
        };
        if let Some(before) = before.insert(&change.name, node)
            && change.revision >= since
            && (node.ready && !before.ready
                || before.taints.iter().any(|taint| !node.taints.contains(taint))
                || node.meta.labels != before.meta.labels
                || node.meta.deleted.is_some())
        {
            return true;
        }
    }
    false
}
