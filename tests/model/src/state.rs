//! The state of the model: everything that the plan reads, and the truth by which the invariants are assessed.
//!
//! A state is small and has no clock. A time is an age, rounded down to the last threshold that it has
//! passed. Ledger lines and statuses are numbers of interned values, see [`crate::world`].

use crate::world::MARKS;

/// The maximum number of node names.
pub const NAMES: usize = 3;
/// The maximum number of Nodes with a name: a Node is deleted and created again once.
const GENERATIONS: usize = 2;
/// More than the maximum number of pods of a node.
const MOST_PODS: usize = 5;
/// The maximum number of Node objects.
pub const NODES: usize = NAMES * GENERATIONS;

/// A Node object, by its name and its number among the Nodes of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    pub name: u8,
    pub generation: u8,
}

impl NodeId {
    /// The index in arrays of [`NODES`].
    pub fn slot(self) -> usize {
        usize::from(self.name) * GENERATIONS + usize::from(self.generation)
    }

    /// The inverse of [`Self::slot`].
    pub fn at(slot: usize) -> Self {
        let part = |part: usize| u8::try_from(part).unwrap_or_default();
        Self { name: part(slot / GENERATIONS), generation: part(slot % GENERATIONS) }
    }

    /// Whether another Node may be created under its name.
    pub fn has_next(self) -> bool {
        usize::from(self.generation) + 1 < GENERATIONS
    }
}

/// A success by the numbers of its rollout and pod, as the annotation of a Node records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Success {
    pub rollout: u8,
    pub pod: u8,
}

/// The present or the last Node with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "a node has independent conditions")]
pub struct Node {
    pub generation: u8,
    pub exists: bool,
    /// A node that is not Ready has the taint not-ready.
    pub is_ready: bool,
    pub is_tainted: bool,
    pub is_cordoned: bool,
    /// Whether it was created after the run began.
    pub is_new: bool,
    /// Whether it has the taint that `onSuccess` removes.
    pub is_raw: bool,
    /// The last success after which the manager has changed the Node.
    pub record: Option<Success>,
}

impl Node {
    pub fn created(generation: u8) -> Self {
        Self {
            generation,
            exists: true,
            is_ready: true,
            is_tainted: false,
            is_cordoned: false,
            is_new: generation > 0,
            is_raw: false,
            record: None,
        }
    }

    /// Whether its kubelet can start and end pods.
    pub fn is_up(self) -> bool {
        self.exists && self.is_ready
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    Unbound,
    /// Bound to its node; no container has started.
    Bound,
    Running,
    Succeeded,
    Failed,
    /// Rejected by the kubelet.
    Rejected,
    /// Failed because the garbage collector found its node deleted.
    Collected,
}

impl Phase {
    pub fn has_ended(self) -> bool {
        self >= Self::Succeeded
    }
}

/// Whether and when the deletion of a pod was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deletion {
    None,
    BeforeItsEnd,
    AfterItsEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pod {
    pub node: NodeId,
    pub number: u8,
    pub template: u8,
    pub rollout: u8,
    pub run: u8,
    /// Its due time, or 0. See [`State::clock`].
    pub due: u8,
    pub phase: Phase,
    /// The annotation node-ready.
    pub has_node_ready: bool,
    /// The Node on which its container started.
    pub started_on: Option<u8>,
    /// The annotation deleted-for, as an index into [`crate::world::MARKS`].
    pub mark: Option<u8>,
    pub deletion: Deletion,
    pub has_finalizer: bool,
    /// The seconds since the leader saw its end. The leader sees an end before time passes, so a later
    /// deletion changes nothing.
    pub age: u8,
    /// The number of its rollout, see [`Truth::rollout`].
    pub truth: u8,
    /// Created by a write of a deposed leader, after its successor created or recorded another pod.
    pub is_late: bool,
}

impl Pod {
    pub fn of(node: NodeId, number: u8) -> Self {
        Self {
            node,
            number,
            template: 0,
            rollout: 0,
            run: 0,
            due: 0,
            phase: Phase::Unbound,
            has_node_ready: false,
            started_on: None,
            mark: None,
            deletion: Deletion::None,
            has_finalizer: false,
            age: 0,
            truth: 0,
            is_late: false,
        }
    }

    /// Whether its containers run or may still run.
    pub fn occupies(&self) -> bool {
        !self.phase.has_ended() && (self.deletion == Deletion::None || self.phase != Phase::Unbound)
    }

    /// Whether the annotation deleted-for has this value.
    pub fn has_mark(&self, word: &str) -> bool {
        self.mark.is_some_and(|mark| MARKS[usize::from(mark)] == word)
    }

    /// A bit for its node and number.
    pub fn bit(&self) -> u32 {
        1 << (self.node.slot() * MOST_PODS + usize::from(self.number) % MOST_PODS)
    }

    /// Whether `other` has the same name and UID.
    pub fn is(&self, other: &Self) -> bool {
        (self.node, self.number, self.is_late) == (other.node, other.number, other.is_late)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    pub generation: u8,
    pub template: u8,
    pub has_raised_max: bool,
    pub is_suspended: bool,
    /// Whether retryToken is set.
    pub has_token: bool,
    /// 1: due at each even half-day. 2: due at each odd one. 0: no schedule.
    pub schedule: u8,
}

impl Spec {
    /// The last due time up to this half-day. See [`State::clock`].
    pub fn last_due(self, clock: u8) -> Option<u8> {
        let parity = self.schedule.checked_sub(1)?;
        clock.checked_sub(u8::from(clock % 2 != parity)).filter(|due| *due > 0)
    }
}

/// The measurements of a process about a node: ages in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeMemory {
    pub not_ready: Option<u16>,
    pub unhealthy: Option<u16>,
    pub is_leaving: bool,
    /// Whether an earlier leader may have stopped the rollout because of this node.
    pub is_inherited: bool,
}

/// The leader's memory: the values of `Clocks`, as ages in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Since its first reconcile.
    pub began: Option<u16>,
    /// Since its last write to the ledger.
    pub flushed: Option<u16>,
    /// Whether the clocks were stopped, because the fleet was unhealthy as a whole.
    pub stood_still: bool,
    /// The pods that it saw ended, by [`Pod::bit`]. Then three parts of these: already deleted; on cordoned
    /// or tainted nodes; on Ready nodes.
    pub ends: [u32; 4],
    pub nodes: [NodeMemory; NODES],
}

/// The ConfigMap of a node. The model's UIDs are in different shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard {
    pub exists: bool,
    /// The node's line; 0 for none.
    pub line: u16,
    /// The line `gone`; 0 for none.
    pub gone: u16,
}

/// A bit for a pod of a node, see [`NodeTruth::successes`].
pub fn success_bit(pod: u8) -> u8 {
    1 << (pod % 8)
}

/// A write with its preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Create(Pod),
    Mark { pod: Pod, mark: Option<u8> },
    Delete { pod: Pod, if_unchanged: bool },
    Release(Pod),
    Record { slot: u8, before: Shard, after: Shard },
    Status { before: (Spec, u16), after: u16 },
    MarkNode(NodeMark),
}

/// The change of a Node after a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeMark {
    pub node: NodeId,
    pub before: Option<Success>,
    /// Whether the patch tests `before`.
    pub is_tested: bool,
    pub after: Success,
    /// Whether it removes the taint.
    pub removes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Succeeded,
    Failed,
    Disrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub outcome: Outcome,
    pub template: u8,
    pub rollout: u8,
    pub due: u8,
}

/// The events on a node, known to the manager or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeTruth {
    /// The rollout of the counts.
    pub rollout: u8,
    /// Failures since the last success, in the reading of the rules with the fewest.
    pub failures: u8,
    /// Failures since the last success, in the reading of the rules with the most.
    pub possible_failures: u8,
    pub last: Option<Attempt>,
    /// The rollout of an attempt after which no reconcile saw the node Ready.
    pub unclear: Option<u8>,
    pub was_cordoned: bool,
    /// Whether it is open how the last attempt counts, or a late write created another pod for the node.
    pub is_ambiguous: bool,
    /// Whether a late write created another pod for the node. A known gap of the plan: if the ledger has one
    /// of the two pods, the plan ignores results of the other, unless its number is higher.
    pub has_second_pod: bool,
    /// The latest rollout with a pod that was bound.
    pub tried: Option<u8>,
    /// With `onSuccess`: the numbers of the pods that succeeded, as bits, and those for which the Node was changed.
    pub successes: u8,
    pub marks: u8,
    /// The pod for whose success the Node was changed twice.
    pub marked_twice: Option<u8>,
}

/// The events, known to the manager or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Truth {
    /// The number of rollouts that the manager has seen.
    pub rollout: u8,
    pub template: Option<u8>,
    pub has_token: bool,
    /// The due time of the rollout, or 0.
    pub due: u8,
    /// The latest due time whose run has begun, or 0.
    pub begun: u8,
    /// The half-day of the last change of the schedule, or of the last resume after a status with the suspend.
    pub changed: u8,
    /// Nodes deleted while they were suspect or failed in every reading of the rules.
    pub gone: u8,
    /// Whether the status was Failed, without a later event that allows Complete.
    pub is_convicted: bool,
    pub nodes: [NodeTruth; NODES],
}

/// The remaining disturbances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub all: u8,
    /// Of each [`crate::environment::Fault`].
    pub each: [u8; FAULTS],
}

/// Kinds of disturbances.
pub const FAULTS: usize = 13;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub nodes: [Node; NAMES],
    /// Sorted.
    pub pods: Vec<Pod>,
    pub shards: [Shard; NODES],
    pub spec: Spec,
    /// With a schedule, the number of half-days by the leader's clock. Due times are such numbers. Without one, 0.
    pub clock: u8,
    /// The status; 0 for none.
    pub status: u16,
    pub memory: Memory,
    /// Writes of a deposed leader that may still arrive.
    pub in_flight: Vec<Write>,
    pub truth: Truth,
    pub budget: Budget,
}

impl State {
    pub fn node_of(&self, id: NodeId) -> Option<&Node> {
        let node = &self.nodes[usize::from(id.name)];
        (node.exists && node.generation == id.generation).then_some(node)
    }

    pub fn deleted(&self) -> impl Iterator<Item = NodeId> {
        let ids = (0..NODES).map(NodeId::at);
        ids.filter(|id| {
            let node = &self.nodes[usize::from(id.name)];
            id.generation < node.generation || id.generation == node.generation && !node.exists
        })
    }

    pub fn existing(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.iter().zip(0..).filter(|(node, _)| node.exists);
        nodes.map(|(node, name)| (NodeId { name, generation: node.generation }, node))
    }

    /// Whether a pod occupies the node's name.
    pub fn is_occupied(&self, name: u8) -> bool {
        self.pods.iter().any(|pod| pod.node.name == name && pod.occupies())
    }

    /// Whether an attempt of a rollout accepted by `of` makes the node suspect while it is not Ready or
    /// deleted. Pods of late writes do not count: the ledger may have later ones.
    pub fn is_suspect(&self, id: NodeId, of: impl Fn(u8) -> bool) -> bool {
        let runs = |pod: &Pod| {
            pod.node == id
                && matches!(pod.phase, Phase::Bound | Phase::Running)
                && pod.has_node_ready
                && !pod.is_late
                && !self.truth.nodes[id.slot()].has_second_pod
        };
        self.truth.nodes[id.slot()].unclear.is_some_and(&of)
            || self.pods.iter().any(|pod| runs(pod) && of(pod.truth))
    }

    pub fn sort(&mut self) {
        self.pods.sort_unstable();
    }

    /// Removes a pod. A later pod with its name has another UID, so requests and memory are dropped.
    pub fn remove_pod(&mut self, at: usize) {
        let pod = self.pods.remove(at);
        self.memory.ends = self.memory.ends.map(|bits| bits & !pod.bit());
        let target = |write: &Write| match write {
            Write::Mark { pod, .. } | Write::Delete { pod, .. } | Write::Release(pod) => Some(*pod),
            _ => None,
        };
        self.in_flight.retain(|write| !target(write).is_some_and(|target| target.is(&pod)));
    }

    /// Removes a deleted pod that has no finalizer.
    pub fn settle_pod(&mut self, at: usize) {
        let pod = self.pods[at];
        let is_over = pod.phase.has_ended() || pod.phase == Phase::Unbound;
        if is_over && pod.deletion != Deletion::None && !pod.has_finalizer {
            self.remove_pod(at);
        }
    }

    pub fn delete_pod(&mut self, at: usize) {
        let pod = &mut self.pods[at];
        if pod.deletion == Deletion::None {
            let has_ended = pod.phase.has_ended();
            pod.deletion = if has_ended { Deletion::AfterItsEnd } else { Deletion::BeforeItsEnd };
        }
        self.settle_pod(at);
    }

    /// Changes a Node after a success. The patch fails if another process has changed the Node since.
    fn mark_node(&mut self, mark: NodeMark) {
        let NodeMark { node: id, before, is_tested, after, removes } = mark;
        let node = &mut self.nodes[usize::from(id.name)];
        let is_it = node.exists && node.generation == id.generation;
        if !is_it || is_tested && node.record != before || removes && !node.is_raw {
            return;
        }
        node.record = Some(after);
        node.is_raw &= !removes;
        let (truth, bit) = (&mut self.truth.nodes[id.slot()], success_bit(after.pod));
        // A second pod of the same number has a success of its own.
        let is_again = truth.marks & bit != 0 && !truth.has_second_pod;
        truth.marked_twice = truth.marked_twice.or(is_again.then_some(after.pod));
        truth.marks |= bit;
    }

    /// Executes a write, which may be a late one of a deposed leader.
    pub fn apply(&mut self, write: &Write) {
        let found = |pods: &[Pod], pod: &Pod| pods.iter().position(|other| other.is(pod));
        match write {
            Write::Create(pod) => {
                let exists = |other: &Pod| (other.node, other.number) == (pod.node, pod.number);
                if !self.pods.iter().any(exists) {
                    let has_others = self.pods.iter().any(|other| other.node.name == pod.node.name);
                    let is_late = pod.is_late && (has_others || self.shards[pod.node.slot()].line != 0);
                    let truth = &mut self.truth.nodes[pod.node.slot()];
                    truth.is_ambiguous |= is_late;
                    truth.has_second_pod |= is_late;
                    self.pods.push(Pod { is_late, ..*pod });
                }
            }
            Write::Mark { pod, mark } => {
                if let Some(at) = found(&self.pods, pod).filter(|at| self.pods[*at] == *pod) {
                    self.pods[at].mark = *mark;
                }
            }
            Write::Delete { pod, if_unchanged } => {
                if let Some(at) = found(&self.pods, pod).filter(|at| !if_unchanged || self.pods[*at] == *pod)
                {
                    self.delete_pod(at);
                }
            }
            Write::Release(pod) => {
                if let Some(at) = found(&self.pods, pod) {
                    self.pods[at].has_finalizer = false;
                    self.settle_pod(at);
                }
            }
            Write::Record { slot, before, after } => {
                let shard = &mut self.shards[usize::from(*slot)];
                if shard == before {
                    *shard = *after;
                }
            }
            Write::Status { before, after } => {
                if (self.spec, self.status) == *before {
                    self.status = *after;
                }
            }
            Write::MarkNode(mark) => self.mark_node(*mark),
        }
        self.sort();
    }
}
