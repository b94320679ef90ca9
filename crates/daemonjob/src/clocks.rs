//! How long each node has been not Ready or unhealthy, or Ready after a success, as this process has seen it.
//!
//! The kubelet and the node controller set the times in a Node by their clocks, so no rule uses them. The
//! manager measures from the reconcile that first saw the node in that state. A new leader measures again.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::core_types::{Node, Phase, Pod, Taint};

use crate::api::DaemonJob;
use crate::eligibility::{Placement, is_condition_taint};
use crate::fleet::is_fleet_unhealthy;
use crate::labels::{NODE_UID_LABEL, number_of};
use crate::ledger::{AttemptResult, Entry};
use crate::observe::World;
use crate::outcome::Rules;

/// The taints with which autoscalers announce the deletion of a node.
pub const DELETION_TAINTS: [&str; 2] = ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"];

/// A larger difference between the wall clock and the steady clock means that the wall clock was set.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// How long a node must stay Ready after its success, if the spec requires it.
pub fn settle_time(job: &DaemonJob) -> Option<SignedDuration> {
    let seconds = job.spec.rollout.as_ref()?.settle_seconds.filter(|seconds| *seconds > 0)?;
    Some(SignedDuration::from_secs(seconds))
}

/// The times that this process keeps for one DaemonJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// The wall clock and the steady clock at the last step.
    last: Option<(Timestamp, SignedDuration)>,
    /// Whether the clocks of the nodes were stopped at the last step.
    stood_still: bool,
    /// When this process first reconciled the DaemonJob in its present term.
    pub began: Option<Timestamp>,
    /// Whether the failure policy has stopped the rollout since before that time.
    inherits_brake: bool,
    /// When this process last wrote to the ledger.
    pub flushed: Option<Timestamp>,
    /// When this process last deleted pods or removed their finalizers.
    pub tidied: Option<Timestamp>,
    /// When this process last saw a new pod or the end of one.
    pub busy: Option<Timestamp>,
    /// When the newest pod was created.
    newest: Option<Timestamp>,
    /// Since when the status has no rollout, although it describes this generation and template. The definition
    /// of DaemonJobs is then older than this program, and the API server drops the field.
    pub untold: Option<Timestamp>,
    /// By UID of a pod that has ended. Shared with the worlds of the plans, because it changes rarely.
    ends: Arc<HashMap<Arc<str>, Sight>>,
    /// By UID of a Pending pod: when this process first saw it. Empty without a deadline for pending pods.
    pending: HashMap<Arc<str>, Timestamp>,
    /// By node UID: the last success, if the ledger does not have that the node has settled. Empty without
    /// settleSeconds. Shared like `ends`.
    settling: Arc<HashMap<Arc<str>, Settling>>,
    /// By node UID. Nodes that are Ready, healthy and not leaving are not in it.
    nodes: HashMap<Arc<str>, NodeClock>,
}

/// A pod's end, as a reconcile first saw it. Changes before the record do not change its meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that may change later")]
pub struct Sight {
    /// The time of that reconcile, by the manager's clock.
    pub at: Timestamp,
    /// Whether the pod was already deleted.
    pub was_deleted: bool,
    /// Whether the pod was already disrupted.
    pub was_disrupted: bool,
    /// Whether its node was cordoned or tainted.
    pub is_kept_away: bool,
    /// Whether its node was Ready, in that reconcile or in a later one.
    pub is_clear: bool,
}

/// A success after which the node must stay Ready for settleSeconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settling {
    /// The number of the pod.
    pod: u64,
    /// Since when this process has seen the node Ready without a break. None while the node is not Ready.
    ready_since: Option<Timestamp>,
    /// Whether the node was Ready for settleSeconds. Its later states do not matter.
    has_settled: bool,
}

/// How long a node has been unwell, as this process has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeClock {
    /// Since when the node has been not Ready without a break.
    pub not_ready: Option<Timestamp>,
    /// Since when the node has been unhealthy without a break.
    pub unhealthy: Option<Timestamp>,
    /// Whether the node was cordoned, or marked for deletion, when it was last Ready.
    pub is_leaving: bool,
    /// Whether the node has been not Ready or unhealthy since before this process first saw it.
    is_inherited: bool,
}

impl Clocks {
    /// Updates the clocks of the nodes with the wall clock and a clock that cannot be set. While the fleet is
    /// unhealthy as a whole, the clocks of the nodes are stopped.
    pub fn step(&mut self, job: &DaemonJob, world: &World, (now, steady): (Timestamp, SignedDuration)) {
        let mut passed = SignedDuration::ZERO;
        if let Some((before, steady_before)) = self.last {
            passed = steady - steady_before;
            let jump = now.duration_since(before) - passed;
            if jump.abs() > JUMP {
                self.shift(jump);
            }
        }
        self.last = Some((now, steady));
        let is_braked =
            job.status.as_ref().and_then(|status| status.rollout.as_ref()?.braked_since.as_ref()).is_some();
        let is_first = self.began.is_none();
        self.inherits_brake = is_braked && (is_first || self.inherits_brake);
        self.began.get_or_insert(now);
        self.untold = is_untold(job).then(|| self.untold.unwrap_or(now));
        let is_unwell = |node: &Node| !node.ready || node.taints.iter().any(is_condition_taint);
        // The template is parsed only if a node is unwell, which is rare.
        let is_one_unwell = world.nodes.iter().any(|node| is_unwell(node));
        let placement = is_one_unwell.then(|| Placement::of(job.spec.template.spec()));
        let stand_still =
            placement.as_ref().is_some_and(|placement| is_fleet_unhealthy(job, placement, &world.nodes));
        let stalled = if stand_still || self.stood_still { passed } else { SignedDuration::ZERO };
        let since = |before: Option<Timestamp>| {
            before.map_or(now, |before| before.checked_add(stalled).unwrap_or(now).min(now))
        };
        let announces_deletion = |taint: &Taint| {
            let is_named = world.deletion_taints.iter().any(|key| **key == *taint.key);
            is_named || DELETION_TAINTS.contains(&&*taint.key)
        };
        for node in &world.nodes {
            let before = self.node(&node.meta.uid);
            let is_unhealthy = placement.as_ref().is_some_and(|placement| placement.is_unhealthy(node));
            let is_leaving = || node.unschedulable || node.taints.iter().any(announces_deletion);
            let clock = NodeClock {
                not_ready: (!node.ready).then(|| since(before.not_ready)),
                unhealthy: is_unhealthy.then(|| since(before.unhealthy)),
                is_leaving: if node.ready { is_leaving() } else { before.is_leaving },
                is_inherited: is_unwell(node) && (is_first || before.is_inherited),
            };
            if clock != before {
                self.nodes.insert(node.meta.uid.clone(), clock);
            }
        }
        self.stood_still = stand_still;
        let newest = world.pods.iter().filter_map(|pod| pod.meta.created).max();
        if is_first || newest > self.newest {
            (self.newest, self.busy) = (newest, Some(now));
        }
        self.note_ends(job, world, now);
        self.note_settling(job, world, now);
        self.note_pending(job, world, now);
        self.forget(world);
    }

    /// Stores since when pods are Pending, if there is a deadline for pending pods.
    fn note_pending(&mut self, job: &DaemonJob, world: &World, now: Timestamp) {
        let has_deadline = job.spec.pending_deadline_seconds.is_some();
        // The deadline of a pod begins when its scheduling gates are removed.
        let counts = |pod: &&Arc<Pod>| has_deadline && pod.phase == Phase::Pending && !pod.is_gated;
        let pods = world.pods.iter().filter(counts);
        let seen = pods.map(|pod| (pod.meta.uid.clone(), self.pending_since(&pod.meta.uid, now)));
        self.pending = seen.collect();
    }

    /// Stores the ends of pods, and the state of their nodes.
    fn note_ends(&mut self, job: &DaemonJob, world: &World, now: Timestamp) {
        if self.ends.len() > world.pods.len() {
            let there: HashSet<&str> = world.pods.iter().map(|pod| &*pod.meta.uid).collect();
            Arc::make_mut(&mut self.ends).retain(|uid, _| there.contains(&**uid));
        }
        let has_ended = |pod: &Pod| !pod.is_running() || pod.node.is_none() && pod.meta.deleted.is_some();
        let is_open = |pod: &Pod| self.ends.get(&pod.meta.uid).is_none_or(|sight| !sight.is_clear);
        let open: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| has_ended(pod) && is_open(pod)).collect();
        if open.is_empty() {
            return;
        }
        let rules = Rules::of(job);
        let nodes: HashMap<&str, &Node> = world.nodes.iter().map(|node| (&*node.meta.uid, &**node)).collect();
        let ends = Arc::make_mut(&mut self.ends);
        for pod in open {
            let node = pod.label(NODE_UID_LABEL).and_then(|uid| nodes.get(uid));
            let sight = ends.entry(pod.meta.uid.clone()).or_insert_with(|| {
                self.busy = Some(now);
                Sight {
                    at: whole_seconds(now),
                    was_deleted: pod.meta.deleted.is_some(),
                    was_disrupted: pod.disrupted,
                    is_kept_away: node.is_some_and(|node| rules.keeps_away(node)),
                    is_clear: false,
                }
            });
            sight.is_clear |= node.is_some_and(|node| node.ready);
        }
    }

    /// Stores since when nodes have been Ready without a break after their last success.
    fn note_settling(&mut self, job: &DaemonJob, world: &World, now: Timestamp) {
        let Some(after) = settle_time(job) else {
            if !self.settling.is_empty() {
                self.settling = Arc::default();
            }
            return;
        };
        let known = world.shards().filter(|shard| shard.is_known_format());
        let lines = known.flat_map(|shard| shard.entries.iter());
        let lines = lines.filter_map(|(uid, line)| Some((&**uid, line.as_ref().ok()?)));
        let recorded: HashMap<&str, &Entry> = lines.collect();
        let succeeded = world.pods.iter().filter(|pod| pod.phase == Phase::Succeeded);
        let succeeded = succeeded.filter_map(|pod| Some((pod.label(NODE_UID_LABEL)?, number_of(pod))));
        // The line of a node replaces the pods up to its number.
        let is_newer = |uid: &str, number: u64| recorded.get(uid).is_none_or(|line| number > line.pod);
        let is_unsettled =
            |line: &Entry| line.unclear().is_some_and(|attempt| attempt.result == AttemptResult::Succeeded);
        let unsettled = recorded.iter().filter(|(_, line)| is_unsettled(line));
        let mut last: HashMap<&str, u64> = unsettled.map(|(uid, line)| (*uid, line.pod)).collect();
        for (uid, number) in succeeded.filter(|(uid, number)| is_newer(uid, *number)) {
            let last = last.entry(uid).or_default();
            *last = number.max(*last);
        }
        let nodes: HashMap<&str, &Node> = world.nodes.iter().map(|node| (&*node.meta.uid, &**node)).collect();
        // Whole seconds, so that nodes that settle at almost the same time cause one reconcile.
        let second = whole_seconds(now);
        let next_second = || second.checked_add(SignedDuration::from_secs(1)).unwrap_or(now);
        let second = if second < now { next_second() } else { second };
        let next = last.into_iter().map(|(uid, pod)| {
            let known = self.settling.get_key_value(uid);
            let before = known.map(|(_, before)| *before).filter(|before| before.pod == pod);
            let is_ready = nodes.get(uid).is_some_and(|node| node.ready);
            let ready_since = before.and_then(|before| before.ready_since).unwrap_or(second);
            let until = ready_since.checked_add(after).unwrap_or(Timestamp::MAX);
            let settling = Settling {
                pod,
                ready_since: is_ready.then_some(ready_since),
                has_settled: before.is_some_and(|before| before.has_settled) || is_ready && until <= now,
            };
            (known.map_or_else(|| uid.into(), |(uid, _)| uid.clone()), settling)
        });
        self.settling = Arc::new(next.collect());
    }

    /// Whether a node was Ready for settleSeconds after its last success, as this process has seen it.
    pub fn has_settled(&self, uid: &str) -> bool {
        self.settling.get(uid).is_some_and(|settling| settling.has_settled)
    }

    /// When a node will have settled, if it stays Ready.
    pub fn settles_at(&self, job: &DaemonJob, uid: &str) -> Option<Timestamp> {
        self.settling.get(uid)?.ready_since?.checked_add(settle_time(job)?).ok()
    }

    /// A pod's end, as a reconcile first saw it.
    pub fn sight(&self, pod_uid: &str) -> Option<&Sight> {
        self.ends.get(pod_uid)
    }

    /// Drops the nodes that are well, and the deleted nodes without pods and ledger lines.
    fn forget(&mut self, world: &World) {
        if self.nodes.is_empty() {
            return;
        }
        let there: HashSet<&str> = world.nodes.iter().map(|node| &*node.meta.uid).collect();
        let of_pods: HashSet<&str> = world.pods.iter().filter_map(|pod| pod.label(NODE_UID_LABEL)).collect();
        let is_known =
            |uid: &str| of_pods.contains(uid) || world.shards().any(|shard| shard.entries.contains_key(uid));
        self.nodes.retain(|uid, clock| {
            *clock != NodeClock::default() && (there.contains(&**uid) || clock.is_leaving && is_known(uid))
        });
    }

    fn shift(&mut self, jump: SignedDuration) {
        let own = [&mut self.began, &mut self.flushed, &mut self.tidied, &mut self.busy, &mut self.untold];
        let nodes = self.nodes.values_mut().flat_map(|clock| [&mut clock.not_ready, &mut clock.unhealthy]);
        let settling = Arc::make_mut(&mut self.settling).values_mut();
        let settling = settling.map(|settling| &mut settling.ready_since);
        let ends = Arc::make_mut(&mut self.ends).values_mut().map(|sight| &mut sight.at);
        let times = nodes.chain(own).chain(settling).flatten();
        for time in times.chain(ends).chain(self.pending.values_mut()) {
            *time = time.checked_add(jump).unwrap_or(*time);
        }
    }

    /// The clock of a node.
    pub fn node(&self, uid: &str) -> NodeClock {
        self.nodes.get(uid).copied().unwrap_or_default()
    }

    /// Since when the pod is Pending; `now` for the first time.
    pub fn pending_since(&self, pod_uid: &str, now: Timestamp) -> Timestamp {
        self.pending.get(pod_uid).copied().unwrap_or(now)
    }

    /// The time of the last step.
    pub fn looked_at(&self) -> Option<Timestamp> {
        self.last.map(|(at, _)| at)
    }

    /// Whether this node's failure, as another manager saw it, may have stopped the rollout. Both the stop
    /// and the node's state are then older than this process's first reconcile.
    pub fn is_inherited(&self, uid: &str) -> bool {
        self.inherits_brake && self.node(uid).is_inherited
    }
}

/// Whether the manager wrote a status in this format, and the status lost its rollout.
fn is_untold(job: &DaemonJob) -> bool {
    job.status.as_ref().is_some_and(|status| {
        status.rollout.is_none()
            && status.observed_generation == job.metadata.generation
            && status.template_hash.as_deref() == Some(&*job.spec.template.hash())
    })
}
