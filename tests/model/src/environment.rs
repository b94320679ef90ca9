//! The possible events: for nodes, pods, the spec, the leader and time.
//!
//! Repairs and progress are always possible. Disturbances use up a budget that is part of the state, so the
//! number of states is finite. Time passes only while the leader is idle: it is faster than every wait. A half-day,
//! which brings a due time, may also pass while no manager runs.

use std::fmt;

use quintet_daemonjob::api::FailurePolicyType;
use quintet_runtime::model::conditions::is_true;

use crate::frame::{FIRST, HALF_DAY, LAST, Reported};
use crate::invariants;
use crate::state::{
    Attempt, Budget, Deletion, Memory, NAMES, NODES, Node, NodeId, Outcome, Phase, Pod, Shard, Spec, State,
    Truth, Write, success_bit,
};
use crate::world::{DAY, Feature, Pass, Variant, Worlds, name_of};

/// A kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Break,
    Taint,
    Cordon,
    Delete,
    Fail,
    Reject,
    Kill,
    Act,
    Leader,
    Day,
    Away,
    Clock,
    PutBack,
}

/// A pod, by node and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRef(NodeId, u8);

/// A step from a state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Break(u8),
    Recover(u8),
    Taint(u8),
    Untaint(u8),
    Cordon(u8),
    Uncordon(u8),
    DeleteNode(u8),
    CreateNode(u8),
    Bind(PodRef),
    Start(PodRef),
    Reject(PodRef),
    Succeed(PodRef),
    Fail(PodRef),
    /// The kubelet ends a pod that is being deleted.
    Stop(PodRef),
    /// A user deletes a pod.
    Kill(PodRef),
    /// The garbage collector fails and deletes a pod of a deleted node.
    Collect(PodRef),
    ChangeTemplate,
    RaiseMax,
    Suspend,
    Resume,
    EditSchedule,
    Retry,
    /// An administrator puts the taint back that the manager removed.
    PutBack(u8),
    Pass,
    /// A reconcile whose status is written later, because the executor limits the rate of status writes.
    PassWithoutStatus,
    /// The leader dies after this number of writes. `is_in_flight`: parallel writes may still arrive.
    NewLeader {
        written: u8,
        is_in_flight: bool,
    },
    Land,
    Drop,
    Wait,
    Day,
    /// The next half-day of a schedule begins.
    HalfDay,
    /// The same while no manager runs.
    HalfDayAway,
    /// The leader's clock is set back by half a day, or another leader has such a clock.
    SetBack,
}

impl Event {
    /// The priority of an event without disturbances: repairs first, time last. `None` for a disturbance.
    pub fn is_provisional(self) -> Option<u8> {
        Some(match self {
            Self::Drop => 0,
            Self::Recover(_) => 1,
            Self::Untaint(_) => 2,
            Self::Uncordon(_) => 3,
            Self::Pass => 4,
            Self::Collect(_) => 5,
            Self::Stop(_) => 6,
            Self::Bind(_) => 7,
            Self::Start(_) => 8,
            Self::Succeed(_) => 9,
            Self::Wait => 10,
            _ => return None,
        })
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(node, number) = self;
        write!(f, "pod {number} of node {}", name_of(node.name))?;
        if node.generation > 0 { write!(f, " (created again)") } else { Ok(()) }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Break(name) => write!(f, "node {} becomes not Ready", name_of(*name)),
            Self::Recover(name) => write!(f, "node {} becomes Ready", name_of(*name)),
            Self::Taint(name) => write!(f, "an administrator taints node {}", name_of(*name)),
            Self::Untaint(name) => write!(f, "an administrator untaints node {}", name_of(*name)),
            Self::Cordon(name) => write!(f, "an administrator cordons node {}", name_of(*name)),
            Self::Uncordon(name) => write!(f, "an administrator uncordons node {}", name_of(*name)),
            Self::DeleteNode(name) => write!(f, "Node {} is deleted", name_of(*name)),
            Self::CreateNode(name) => write!(f, "Node {} is created again", name_of(*name)),
            Self::Bind(pod) => write!(f, "the scheduler binds {pod}"),
            Self::Start(pod) => write!(f, "the kubelet starts {pod}"),
            Self::Reject(pod) => write!(f, "the kubelet rejects {pod}"),
            Self::Succeed(pod) => write!(f, "{pod} succeeds"),
            Self::Fail(pod) => write!(f, "{pod} fails"),
            Self::Stop(pod) => write!(f, "the kubelet stops {pod}, which is being deleted"),
            Self::Kill(pod) => write!(f, "a user deletes {pod}"),
            Self::Collect(pod) => write!(f, "the garbage collector fails and deletes {pod}"),
            Self::ChangeTemplate => write!(f, "a user changes the template to the other one of two"),
            Self::RaiseMax => write!(f, "a user raises maxFailedNodes by 1"),
            Self::Suspend => write!(f, "a user suspends"),
            Self::Resume => write!(f, "a user resumes"),
            Self::EditSchedule => write!(f, "a user changes the schedule, or removes a changed one"),
            Self::Retry => write!(f, "a user sets another retryToken"),
            Self::PutBack(name) => {
                write!(f, "an administrator puts the taint back on node {}", name_of(*name))
            }
            Self::Pass => write!(f, "the leader reconciles"),
            Self::PassWithoutStatus => write!(f, "the leader reconciles and writes the status later"),
            Self::NewLeader { written, is_in_flight } => {
                let rest =
                    if *is_in_flight { "; the writes parallel to the next one may still arrive" } else { "" };
                write!(f, "the leader dies after {written} writes of a reconcile{rest}")
            }
            Self::Land => write!(f, "writes of the deposed leader arrive"),
            Self::Drop => write!(f, "writes of the deposed leader are lost"),
            Self::Wait => write!(f, "time passes until the plan changes"),
            Self::Day => write!(f, "a day passes"),
            Self::HalfDay => write!(f, "half a day passes"),
            Self::HalfDayAway => write!(f, "half a day passes, and no manager runs"),
            Self::SetBack => write!(f, "the leader's clock is set back by half a day"),
        }
    }
}

/// The initial state: Nodes, and a DaemonJob that no manager has seen.
pub fn initial(variant: Variant, budget: Budget) -> State {
    let mut nodes = [Node { is_raw: variant.has_marks(), ..Node::created(0) }; NAMES];
    for node in nodes.iter_mut().skip(usize::from(variant.nodes)) {
        node.exists = false;
    }
    State {
        nodes,
        pods: Vec::new(),
        shards: [Shard::default(); NODES],
        spec: Spec { schedule: variant.has_schedule().into(), ..Spec::default() },
        clock: if variant.has_schedule() { FIRST } else { 0 },
        status: 0,
        memory: Memory::default(),
        in_flight: Vec::new(),
        truth: Truth::default(),
        budget,
    }
}

/// Collects the states that may follow.
pub struct Successors<'w> {
    worlds: &'w mut Worlds,
    from: &'w State,
    found: Vec<(Event, State)>,
}

/// The events that are possible in a state. An error is a broken invariant with the event that breaks it.
pub fn successors(worlds: &mut Worlds, from: &State) -> Result<Vec<(Event, State)>, (Event, String)> {
    let pass = worlds.pass(from);
    invariants::of_pass(worlds, from, &pass).map_err(|broken| (Event::Pass, broken))?;
    let mut all = Successors { worlds, from, found: Vec::new() };
    all.nodes();
    all.pods();
    all.acts();
    all.leaders(&pass);
    all.clocks();
    for (event, state) in &mut all.found {
        state.sort();
        invariants::of_state(state).map_err(|broken| (*event, broken))?;
    }
    Ok(all.found)
}

impl Successors<'_> {
    fn add(&mut self, event: Event, change: impl FnOnce(&mut State)) {
        let mut state = self.from.clone();
        change(&mut state);
        self.found.push((event, state));
    }

    fn may_disturb(&self, fault: Fault) -> bool {
        let Budget { all, each } = self.from.budget;
        all > 0 && each[fault as usize] > 0
    }

    /// Adds a disturbance, if the budget allows it.
    fn disturb(&mut self, fault: Fault, event: Event, change: impl FnOnce(&mut State)) {
        if self.may_disturb(fault) {
            self.add(event, |state| {
                state.budget.all -= 1;
                state.budget.each[fault as usize] -= 1;
                change(state);
            });
        }
    }

    /// Whether the node may need another pod, besides those of later due times.
    fn may_retry(&self, id: NodeId) -> bool {
        let recorded = self.worlds.line(self.from.shards[id.slot()].line).map_or(0, |line| line.pod);
        let pods = self.from.pods.iter().filter(|pod| pod.node == id).map(|pod| u64::from(pod.number));
        let number = pods.chain([recorded]).max().unwrap_or_default();
        number + self.later_due_times() < u64::from(self.worlds.variant.attempts)
    }

    /// The number of due times that may still begin a run.
    fn later_due_times(&self) -> u64 {
        let State { spec, truth, .. } = self.from;
        let later = truth.begun.max(truth.changed) + 1..=LAST;
        later.filter(|due| spec.last_due(*due) == Some(*due)).count() as u64
    }

    /// Whether the node may need another pod if its pods that have not started are deleted.
    fn may_lose_unstarted(&self, id: NodeId) -> bool {
        let has_not_started = |pod: &Pod| pod.node == id && pod.phase == Phase::Unbound;
        !self.from.pods.iter().any(has_not_started) || self.may_retry(id)
    }

    fn nodes(&mut self) {
        for (name, node) in (0..self.worlds.variant.nodes).zip(self.from.nodes) {
            let id = NodeId { name, generation: node.generation };
            let at = usize::from(name);
            if !node.exists {
                if id.has_next() {
                    let is_raw = self.worlds.variant.has_marks();
                    self.add(Event::CreateNode(name), |state| {
                        state.nodes[at] = Node { is_raw, ..Node::created(node.generation + 1) };
                    });
                }
                continue;
            }
            let is_free = self.may_lose_unstarted(id);
            if !node.is_ready {
                self.add(Event::Recover(name), |state| {
                    state.nodes[at].is_ready = true;
                    state.truth.is_convicted = false;
                });
            } else if is_free {
                self.disturb(Fault::Break, Event::Break(name), |state| state.nodes[at].is_ready = false);
            }
            if node.is_tainted {
                self.add(Event::Untaint(name), |state| {
                    state.nodes[at].is_tainted = false;
                    state.truth.is_convicted = false;
                });
            } else if is_free {
                self.disturb(Fault::Taint, Event::Taint(name), |state| state.nodes[at].is_tainted = true);
            }
            if node.is_cordoned {
                self.add(Event::Uncordon(name), |state| state.nodes[at].is_cordoned = false);
            } else {
                self.disturb(Fault::Cordon, Event::Cordon(name), |state| {
                    state.nodes[at].is_cordoned = true;
                    state.truth.nodes[id.slot()].was_cordoned = true;
                });
            }
            if node.record.is_some() && !node.is_raw {
                self.disturb(Fault::PutBack, Event::PutBack(name), |state| state.nodes[at].is_raw = true);
            }
            self.disturb(Fault::Delete, Event::DeleteNode(name), |state| {
                state.count_deleted(id);
                state.nodes[at].exists = false;
                state.truth.is_convicted = false;
            });
        }
    }

    fn pods(&mut self) {
        for (at, pod) in self.from.pods.iter().enumerate() {
            let this = PodRef(pod.node, pod.number);
            let node = self.from.nodes[usize::from(pod.node.name)];
            let is_going = pod.deletion != Deletion::None;
            let may_retry = self.may_retry(pod.node);
            if !is_going && (may_retry || pod.phase.has_ended()) {
                self.disturb(Fault::Kill, Event::Kill(this), |state| state.delete_pod(at));
            }
            if !node.exists && pod.phase != Phase::Unbound && !(is_going && pod.phase.has_ended()) {
                self.add(Event::Collect(this), |state| state.collect(at));
            }
            if !node.is_up() {
                continue;
            }
            match pod.phase {
                Phase::Unbound if !is_going && !node.is_tainted => self.add(Event::Bind(this), |state| {
                    state.pods[at].phase = Phase::Bound;
                    let tried = &mut state.truth.nodes[pod.node.slot()].tried;
                    *tried = (*tried).max(Some(pod.truth));
                }),
                Phase::Bound if is_going => {
                    self.add(Event::Stop(this), |state| state.end(at, Phase::Failed, None));
                }
                Phase::Bound => {
                    self.add(Event::Start(this), |state| {
                        state.pods[at].phase = Phase::Running;
                        state.pods[at].started_on = Some(node.generation);
                    });
                    if may_retry {
                        self.disturb(Fault::Reject, Event::Reject(this), |state| {
                            state.end(at, Phase::Rejected, None);
                        });
                    }
                }
                Phase::Running => {
                    let has_marks = self.worlds.variant.has_marks();
                    self.add(Event::Succeed(this), |state| {
                        if has_marks {
                            let slot = state.target(pod, true).slot();
                            state.truth.nodes[slot].successes |= success_bit(pod.number);
                        }
                        state.end(at, Phase::Succeeded, Some(Outcome::Succeeded));
                    });
                    if is_going {
                        let stopped = Some(Outcome::Disrupted);
                        self.add(Event::Stop(this), |state| state.end(at, Phase::Failed, stopped));
                    } else if may_retry {
                        let failed = Some(Outcome::Failed);
                        self.disturb(Fault::Fail, Event::Fail(this), |state| {
                            state.end(at, Phase::Failed, failed);
                        });
                    }
                }
                _ => {}
            }
        }
    }

    fn acts(&mut self) {
        if self.from.spec.is_suspended {
            let status = self.worlds.status(self.from.status);
            let was_seen = status.is_some_and(|status| is_true(&status.conditions, "Suspended"));
            self.add(Event::Resume, |state| {
                state.edit(|spec| spec.is_suspended = false);
                if was_seen {
                    state.truth.changed = state.clock;
                }
            });
            return;
        }
        if self.from.spec.schedule > 0 {
            self.disturb(Fault::Act, Event::EditSchedule, |state| {
                state.edit(|spec| spec.schedule = (spec.schedule + 1) % 3);
                state.truth.changed = state.clock;
            });
        }
        if self.worlds.variant.policy != FailurePolicyType::Continue && !self.from.spec.has_raised_max {
            self.disturb(Fault::Act, Event::RaiseMax, |state| state.edit(|spec| spec.has_raised_max = true));
        }
        let all_may_retry = self.from.existing().all(|(id, _)| self.may_retry(id));
        if all_may_retry {
            self.disturb(Fault::Act, Event::ChangeTemplate, |state| state.edit(|spec| spec.template ^= 1));
            self.disturb(Fault::Act, Event::Suspend, |state| state.edit(|spec| spec.is_suspended = true));
            let Variant { feature, .. } = self.worlds.variant;
            let may_retry = matches!(feature, Feature::Schedule { .. } | Feature::Marks);
            if may_retry && !self.from.spec.has_token {
                self.disturb(Fault::Act, Event::Retry, |state| state.edit(|spec| spec.has_token = true));
            }
        }
    }

    fn leaders(&mut self, pass: &Pass) {
        let writes: Vec<Write> = pass.steps.iter().flatten().copied().collect();
        let without_status: Vec<Write> =
            writes.iter().filter(|write| !matches!(write, Write::Status { .. })).copied().collect();
        let whole = passed(self.worlds, self.from, pass, &writes);
        let is_idle = whole == *self.from;
        if !is_idle {
            self.found.push((Event::Pass, whole));
        }
        if !without_status.is_empty() && without_status.len() < writes.len() {
            let state = passed(self.worlds, self.from, pass, &without_status);
            self.found.push((Event::PassWithoutStatus, state));
        }
        self.new_leader(pass, &writes);
        if !self.from.in_flight.is_empty() {
            self.add(Event::Drop, |state| state.in_flight.clear());
            let mut landed = State { in_flight: Vec::new(), ..self.from.clone() };
            for write in &self.from.in_flight {
                write_once(self.worlds, &mut landed, write);
            }
            // A late status describes the past.
            landed.truth.is_convicted &= self.from.truth.is_convicted;
            self.found.push((Event::Land, landed));
        } else if is_idle {
            // With a schedule, the plan always waits for the next due time.
            if let Some(seconds) = pass.again.filter(|seconds| *seconds < HALF_DAY) {
                let state = self.worlds.wait(self.from, seconds);
                self.found.push((Event::Wait, state));
            } else if self.worlds.variant.has_schedule() && self.from.clock < LAST {
                let mut later = self.worlds.wait(self.from, HALF_DAY);
                later.clock += 1;
                self.found.push((Event::HalfDay, later));
            }
            if self.worlds.counts_deleted_nodes(self.from) {
                let mut later = self.worlds.wait(self.from, DAY);
                if is_true(&pass.status.conditions, "Failed") || !invariants::is_braked(&pass.status) {
                    later.truth.gone = 0;
                }
                self.disturb(Fault::Day, Event::Day, |state| state.replace(later));
            }
        }
    }

    /// The clock of a schedule, while a leader runs or not.
    fn clocks(&mut self) {
        if !self.worlds.variant.has_schedule() {
            return;
        }
        if self.from.clock < LAST && self.may_disturb(Fault::Away) {
            let mut later = self.worlds.wait(self.from, HALF_DAY);
            (later.memory, later.in_flight) = (Memory::default(), Vec::new());
            later.clock += 1;
            self.disturb(Fault::Away, Event::HalfDayAway, |state| state.replace(later));
        }
        if self.from.clock > FIRST {
            self.disturb(Fault::Clock, Event::SetBack, |state| {
                state.clock -= 1;
                // By its clock, the leader may see the change earlier.
                state.truth.changed = state.truth.changed.min(state.clock);
            });
        }
    }

    /// The leader dies before one of its writes, with or without writes in flight.
    fn new_leader(&mut self, pass: &Pass, writes: &[Write]) {
        let mut end_of_step = 0;
        let mut ends = Vec::new();
        for step in &pass.steps {
            end_of_step += step.len();
            ends.extend(step.iter().map(|_| end_of_step));
        }
        for written in 0..writes.len().max(1) {
            let mut state = passed(self.worlds, self.from, pass, &writes[..written]);
            state.memory = Memory::default();
            for pod in &mut state.pods {
                pod.age = 0;
            }
            let end = ends.get(written).copied().unwrap_or(written);
            for is_in_flight in [false, true] {
                let rest: Vec<Write> = writes[written..end].iter().map(|write| late(*write)).collect();
                if is_in_flight && rest.is_empty() {
                    continue;
                }
                let event =
                    Event::NewLeader { written: u8::try_from(written).unwrap_or(u8::MAX), is_in_flight };
                let state = state.clone();
                self.disturb(Fault::Leader, event, |next| {
                    next.replace(state);
                    next.in_flight = if is_in_flight { rest } else { Vec::new() };
                });
            }
        }
    }
}

fn late(write: Write) -> Write {
    match write {
        Write::Create(pod) => Write::Create(Pod { is_late: true, ..pod }),
        write => write,
    }
}

/// The state after these writes of a reconcile.
fn passed(worlds: &Worlds, from: &State, pass: &Pass, writes: &[Write]) -> State {
    let mut state = from.clone();
    state.memory = pass.memory;
    for (id, node) in from.existing() {
        if node.is_ready {
            state.truth.nodes[id.slot()].unclear = None;
        }
    }
    for write in writes {
        write_once(worlds, &mut state, write);
        if matches!(write, Write::Record { .. }) {
            state.memory.began = None;
            state.memory.flushed = Some(0);
        }
    }
    state
}

/// Executes a write and updates the truth.
fn write_once(worlds: &Worlds, state: &mut State, write: &Write) {
    let before = state.status;
    state.apply(write);
    if state.status == before {
        return;
    }
    let Some(status) = worlds.status(state.status) else { return };
    if worlds.status(before).and_then(|before| before.run) != status.run {
        state.nodes.iter_mut().for_each(|node| node.is_new = false);
    }
    let Reported { template, has_token, due, .. } = worlds.reported(state.status).unwrap_or_default();
    let truth = state.truth;
    let begins = due > 0 && due != truth.due;
    if truth.template != template || truth.has_token != has_token || begins {
        let begun = truth.begun.max(due);
        let rollout = truth.rollout + 1;
        state.truth = Truth { rollout, template, has_token, begun, gone: 0, is_convicted: false, ..truth };
    }
    state.truth.due = due;
    state.truth.is_convicted |= is_true(&status.conditions, "Failed");
}

impl State {
    /// Becomes another state, but keeps the budget.
    fn replace(&mut self, other: Self) {
        let budget = self.budget;
        *self = other;
        self.budget = budget;
    }

    fn edit(&mut self, change: fn(&mut Spec)) {
        change(&mut self.spec);
        self.spec.generation += 1;
        self.truth.is_convicted = false;
    }

    /// The Node that a pod counts for when the kubelet of an existing node reports its end.
    fn target(&self, pod: &Pod, has_succeeded: bool) -> NodeId {
        let generation = self.nodes[usize::from(pod.node.name)].generation;
        let is_renewed = has_succeeded && pod.started_on == Some(generation);
        if is_renewed { NodeId { generation, ..pod.node } } else { pod.node }
    }

    /// The kubelet of an existing node reports the end of a pod. `outcome` is that of its attempt.
    fn end(&mut self, at: usize, phase: Phase, outcome: Option<Outcome>) {
        let pod = &mut self.pods[at];
        pod.phase = phase;
        pod.age = 0;
        let pod = *pod;
        let target = self.target(&pod, outcome == Some(Outcome::Succeeded));
        // After the deletion, the mark shows that the pod was not an attempt.
        let is_superfluous = pod.deletion != Deletion::None && pod.has_mark("Superfluous");
        let outcome = outcome.filter(|outcome| *outcome == Outcome::Succeeded || !is_superfluous);
        // A marked pod may fail by itself and be deleted afterwards. If a pod is deleted before its start and
        // its node is not Ready afterwards, it is unknown whether it ran.
        let is_open = pod.mark.is_some() && outcome == Some(Outcome::Failed);
        self.truth.nodes[pod.node.slot()].is_ambiguous |=
            is_open || outcome.is_none() && phase == Phase::Failed;
        let has_own =
            self.shards[target.slot()].line != 0 || self.pods.iter().any(|other| other.node == target);
        let truth = &mut self.truth.nodes[target.slot()];
        // A late write created the pod for the former Node of this name, and the present Node had its own
        // pod. The rules do not decide which of the two counts.
        truth.has_second_pod |= target != pod.node && (has_own || truth.tried.is_some());
        truth.is_ambiguous |= truth.has_second_pod;
        truth.tried = truth.tried.max(Some(pod.truth));
        // A superfluous pod has no outcome, so the rules do not decide whether it makes its node suspect. The
        // ledger may have a later pod than a late one.
        let is_open = truth.has_second_pod || is_superfluous && phase == Phase::Failed;
        if pod.has_node_ready && phase != Phase::Rejected && !pod.is_late && !is_open {
            truth.unclear = Some(pod.truth);
        }
        if let Some(outcome) = outcome {
            // A late pod of an older rollout does not reset the counts: its number is lower.
            if truth.rollout < pod.truth {
                truth.rollout = pod.truth;
                (truth.failures, truth.possible_failures) = (0, 0);
            }
            truth.last = Some(Attempt { outcome, template: pod.template, rollout: pod.truth, due: pod.due });
            match outcome {
                Outcome::Succeeded => {
                    truth.failures = 0;
                    // Of two concurrent pods, the one with the higher number counts, whichever ended last.
                    if !truth.is_ambiguous {
                        truth.possible_failures = 0;
                    }
                }
                Outcome::Failed => {
                    truth.possible_failures += u8::from(truth.rollout == pod.truth);
                    truth.failures += u8::from(pod.mark.is_none() && !pod.is_late);
                }
                Outcome::Disrupted => {}
            }
        }
        self.truth.is_convicted = false;
        self.settle_pod(at);
    }

    /// The garbage collector fails a pod of a deleted node, and deletes it.
    fn collect(&mut self, at: usize) {
        let pod = &mut self.pods[at];
        if !pod.phase.has_ended() {
            pod.phase = Phase::Collected;
            pod.age = 0;
        }
        self.delete_pod(at);
    }

    /// Counts a node before its deletion.
    fn count_deleted(&mut self, id: NodeId) {
        let rollout = self.truth.rollout;
        let truth = self.truth.nodes[id.slot()];
        let has_failed = truth.last.is_some_and(|last| {
            last.outcome == Outcome::Failed && last.rollout == rollout && !truth.is_ambiguous
        });
        // The mark of a superfluous pod shows that it was not an attempt.
        let runs = self.pods.iter().any(|pod| {
            let is_attempt = pod.has_node_ready && !pod.is_late && pod.mark.is_none() && pod.truth == rollout;
            pod.node == id && pod.phase == Phase::Running && is_attempt && !truth.has_second_pod
        });
        let is_suspect = runs || truth.unclear == Some(rollout) && !self.nodes[usize::from(id.name)].is_ready;
        // On a cordoned node, a running retry may succeed before the leader reconciles. Then nothing counts.
        let may_succeed =
            truth.was_cordoned && self.pods.iter().any(|pod| pod.node == id && pod.phase == Phase::Running);
        self.truth.gone += u8::from(has_failed && !may_succeed || is_suspect && !truth.was_cordoned);
    }
}
