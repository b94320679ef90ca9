//! How long each node has been unwell, as this process has seen it.
//!
//! Timestamps on a Node come from the clocks of kubelets and of the node controller, so no rule uses them. The manager
//! measures from the pass that saw the node unwell first; a new leader measures again from the beginning.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::core_types::{Node, Phase, Pod};

use crate::api::DaemonJob;
use crate::eligibility::{Placement, is_condition_taint};
use crate::fleet::is_fleet_unhealthy;
use crate::labels::NODE_UID_LABEL;
use crate::observe::World;
use crate::outcome::Rules;

/// Taints by which autoscalers announce that they delete a node.
pub const DELETION_TAINTS: [&str; 2] = ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"];

/// By how much the wall clock may differ from the steady clock before it counts as set.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// What one process remembers for one DaemonJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Wall clock and steady clock of the last step.
    last: Option<(Timestamp, SignedDuration)>,
    /// Whether the clocks stood still at the last step.
    stood_still: bool,
    /// When this process first looked at the DaemonJob.
    began: Option<Timestamp>,
    /// Whether the brake is on since before this process first looked.
    inherits_brake: bool,
    /// When this process last wrote to the ledger.
    flushed: Option<Timestamp>,
    /// When this process last deleted pods or removed their finalizers.
    tidied: Option<Timestamp>,
    /// When this process last saw a new pod or the end of one.
    busy: Option<Timestamp>,
    /// The creation of the newest pod.
    newest: Option<Timestamp>,
    /// Since when the status of this generation and template has no rollout.
    untold: Option<Timestamp>,
    /// By UID of a pod that has ended. Shared with the worlds that are planned for: it changes rarely.
    ends: Arc<HashMap<Arc<str>, Sight>>,
    /// By UID of a pod that is Pending: when this process first saw it, where a deadline needs that.
    pending: HashMap<Arc<str>, Timestamp>,
    /// By node UID; nodes that are well and stay are not in it.
    nodes: HashMap<Arc<str>, NodeClock>,
}

/// How a pass first saw that a pod had ended. What happens later, before the ledger has the outcome, does not change what
/// the pod counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that may change later")]
pub struct Sight {
    /// When that was, by the manager's clock.
    pub at: Timestamp,
    /// Whether the pod was already deleted.
    pub was_deleted: bool,
    /// Whether the pod was already disrupted.
    pub was_disrupted: bool,
    /// Whether its node was cordoned or tainted.
    pub is_kept_away: bool,
    /// Whether its node was Ready, then or in a later pass.
    pub is_clear: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct NodeClock {
    not_ready: Option<Timestamp>,
    unhealthy: Option<Timestamp>,
    is_leaving: bool,
    /// Whether it was unwell when this process first looked, and is so since.
    is_inherited: bool,
}

impl Clocks {
    /// Looks at the nodes, by the wall clock and by one that cannot be set. While the fleet is unhealthy as a whole, the
    /// clocks of the nodes stand still.
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
        let placement = world.nodes.iter().any(|node| is_unwell(node)).then(|| {
            // Parsed only where it is needed: in most passes every node is well.
            Placement::of(job.spec.template.spec())
        });
        let stand_still =
            placement.as_ref().is_some_and(|placement| is_fleet_unhealthy(job, placement, &world.nodes));
        let stalled = if stand_still || self.stood_still { passed } else { SignedDuration::ZERO };
        let since = |before: Option<Timestamp>| {
            before.map_or(now, |before| before.checked_add(stalled).unwrap_or(now).min(now))
        };
        for node in &world.nodes {
            if let Some(placement) = placement.as_ref().filter(|_| is_unwell(node)) {
                let clock = self.nodes.entry(node.meta.uid.clone()).or_default();
                clock.not_ready = (!node.ready).then(|| since(clock.not_ready));
                clock.unhealthy = placement.is_unhealthy(node).then(|| since(clock.unhealthy));
                clock.is_inherited |= is_first;
            } else if let Some(clock) = self.nodes.get_mut(&node.meta.uid) {
                (clock.not_ready, clock.unhealthy, clock.is_inherited) = (None, None, false);
            }
            if node.ready {
                let is_leaving = node.unschedulable
                    || node.taints.iter().any(|taint| {
                        let is_named = world.deletion_taints.iter().any(|key| **key == *taint.key);
                        is_named || DELETION_TAINTS.contains(&&*taint.key)
                    });
                if is_leaving {
                    self.nodes.entry(node.meta.uid.clone()).or_default().is_leaving = true;
                } else if let Some(clock) = self.nodes.get_mut(&node.meta.uid) {
                    clock.is_leaving = false;
                }
            }
        }
        self.stood_still = stand_still;
        let newest = world.pods.iter().filter_map(|pod| pod.meta.created).max();
        if is_first || newest > self.newest {
            (self.newest, self.busy) = (newest, Some(now));
        }
        self.see_ends(job, world, now);
        self.see_pending(job, world, now);
        self.forget(world);
    }

    /// Remembers since when pods are Pending, if there is a deadline for that.
    fn see_pending(&mut self, job: &DaemonJob, world: &World, now: Timestamp) {
        if job.spec.pending_deadline_seconds.is_none() {
            self.pending.clear();
            return;
        }
        // The deadline of a pod begins when its scheduling gates are removed.
        let pods = world.pods.iter().filter(|pod| pod.phase == Phase::Pending && !pod.is_gated);
        let seen = pods.map(|pod| {
            let since = self.pending.get(&pod.meta.uid).copied();
            (pod.meta.uid.clone(), since.unwrap_or(now))
        });
        self.pending = seen.collect();
    }

    /// Remembers the pods that have ended, and of what kind their nodes are.
    fn see_ends(&mut self, job: &DaemonJob, world: &World, now: Timestamp) {
        if self.ends.len() > world.pods.len() {
            let there: HashSet<&str> = world.pods.iter().map(|pod| &*pod.meta.uid).collect();
            Arc::make_mut(&mut self.ends).retain(|uid, _| there.contains(&**uid));
        }
        let has_ended = |pod: &Pod| !pod.is_running() || pod.node.is_none() && pod.meta.deleted.is_some();
        let is_known = |pod: &Pod| self.ends.get(&pod.meta.uid).is_some_and(|sight| sight.is_clear);
        let open: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| has_ended(pod) && !is_known(pod)).collect();
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

    /// How a pass first saw the end of a pod.
    pub fn sight(&self, pod_uid: &str) -> Option<&Sight> {
        self.ends.get(pod_uid)
    }

    /// Forgets the nodes that are well, and deleted ones of which nothing is left.
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
        let times = self.nodes.values_mut().flat_map(|clock| [&mut clock.not_ready, &mut clock.unhealthy]);
        for sight in Arc::make_mut(&mut self.ends).values_mut() {
            sight.at = sight.at.checked_add(jump).unwrap_or(sight.at);
        }
        for since in self.pending.values_mut() {
            *since = since.checked_add(jump).unwrap_or(*since);
        }
        let own = [&mut self.began, &mut self.flushed, &mut self.tidied, &mut self.busy, &mut self.untold];
        for time in times.chain(own) {
            *time = time.map(|at| at.checked_add(jump).unwrap_or(at));
        }
    }

    /// The ledger was written.
    pub fn ledger_written(&mut self, now: Timestamp) {
        self.flushed = Some(now);
    }

    /// When this process last wrote to the ledger.
    pub fn flushed(&self) -> Option<Timestamp> {
        self.flushed
    }

    /// Pods were deleted or lost their finalizers.
    pub fn pods_tidied(&mut self, now: Timestamp) {
        self.tidied = Some(now);
    }

    /// When this process last deleted pods or removed their finalizers.
    pub fn tidied(&self) -> Option<Timestamp> {
        self.tidied
    }

    /// When this process last saw a new pod or the end of one, in its present term.
    pub fn busy(&self) -> Option<Timestamp> {
        self.busy
    }

    /// Since when the status has no rollout, although it is about this generation and template: the definition of
    /// DaemonJobs is older than this program, and the API server drops the field.
    pub fn untold_since(&self) -> Option<Timestamp> {
        self.untold
    }

    /// When this process last wrote to the ledger, else when it first looked.
    pub fn flushed_or_began(&self) -> Option<Timestamp> {
        self.flushed.or(self.began)
    }

    /// Since when the node is not Ready at a stretch; `now` where this is the first look.
    pub fn not_ready_since(&self, uid: &str, now: Timestamp) -> Timestamp {
        self.nodes.get(uid).and_then(|clock| clock.not_ready).unwrap_or(now)
    }

    /// Since when the node is unhealthy at a stretch; `now` where this is the first look.
    pub fn unhealthy_since(&self, uid: &str, now: Timestamp) -> Timestamp {
        self.nodes.get(uid).and_then(|clock| clock.unhealthy).unwrap_or(now)
    }

    /// Since when the pod is Pending; `now` where this is the first look.
    pub fn pending_since(&self, pod_uid: &str, now: Timestamp) -> Timestamp {
        self.pending.get(pod_uid).copied().unwrap_or(now)
    }

    /// When the nodes were last looked at.
    pub fn looked_at(&self) -> Option<Timestamp> {
        self.last.map(|(at, _)| at)
    }

    /// When this process first looked at the DaemonJob in its present term.
    pub fn began(&self) -> Option<Timestamp> {
        self.began
    }

    /// Whether the brake may rest on this node, by what another manager saw: both are so since before this process first
    /// looked.
    pub fn is_inherited(&self, uid: &str) -> bool {
        self.inherits_brake && self.nodes.get(uid).is_some_and(|clock| clock.is_inherited)
    }

    /// Whether the node was cordoned, or marked for deletion, when it was last Ready.
    pub fn is_leaving(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|clock| clock.is_leaving)
    }
}

/// Whether a status of this format was written, and came back without its rollout.
fn is_untold(job: &DaemonJob) -> bool {
    job.status.as_ref().is_some_and(|status| {
        status.rollout.is_none()
            && status.observed_generation == job.metadata.generation
            && status.template_hash.as_deref() == Some(&*job.spec.template.hash())
    })
}
