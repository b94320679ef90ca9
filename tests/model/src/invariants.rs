//! The invariants of a DaemonJob (docs/reliability.md), assessed by the events and not by the plan's reports.
//!
//! The rules may leave open whether something counts, such as a write in flight or a failure during a
//! deletion. Then an invariant that requires something assumes fewer failures, and one that forbids assumes
//! more.

use quintet_daemonjob::api::{DaemonJobStatus, FailurePolicyType, NodeReason};
use quintet_runtime::model::conditions::is_true;

use crate::frame::Reported;
use crate::state::{NodeId, NodeMark, Outcome, Phase, Pod, State, Truth, Write, success_bit};
use crate::world::{Feature, Pass, Worlds, name_of};

/// Ok, or a description of the broken invariant.
type Judgement = Result<(), String>;

/// The seconds after which a suspect node is lost.
const LOST: u16 = 600;

fn has_reason(status: &DaemonJobStatus, type_: &str, reason: &str) -> bool {
    let holds = |one: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        one.type_ == type_ && one.status == "True" && one.reason == reason
    };
    status.conditions.iter().find(holds).is_some()
}

/// Whether the failure policy stops the rollout.
pub fn is_braked(status: &DaemonJobStatus) -> bool {
    has_reason(status, "Paused", "MaxFailedNodesExceeded")
}

fn listed(list: &[NodeReason], id: NodeId) -> Option<String> {
    list.iter().find(|one| one.node == name_of(id.name)).map(|one| one.reason.clone())
}

/// Checks a state.
pub fn of_state(state: &State) -> Judgement {
    for (at, pod) in state.pods.iter().enumerate() {
        let is_other = |other: &&Pod| other.occupies() && !other.is_late && other.node.name == pod.node.name;
        if pod.occupies() && !pod.is_late && state.pods[at + 1..].iter().any(|other| is_other(&other)) {
            return Err(format!("two pods run on node {}", name_of(pod.node.name)));
        }
    }
    for (slot, truth) in state.truth.nodes.iter().enumerate() {
        if let Some(pod) = truth.marked_twice {
            let name = name_of(NodeId::at(slot).name);
            return Err(format!("9: node {name} is changed twice for the success of pod {pod}"));
        }
    }
    Ok(())
}

/// Checks a state in which no event remains.
pub fn of_rest(worlds: &Worlds, state: &State) -> Judgement {
    let Some(status) = worlds.status(state.status) else { return Err("5: no status was written".to_owned()) };
    let is = |type_| is_true(&status.conditions, type_);
    let is_held = is_braked(status) || has_reason(status, "Paused", "WaveFailed");
    let has_ended = is("Complete") || is("Failed") || is("Suspended") || is_held;
    // Then every undone node waits for the next due time.
    let has_other_template = state.truth.template != Some(state.spec.template);
    let waits = state.spec.schedule > 0 && (state.truth.due == 0 || has_other_template);
    if !has_ended && !waits {
        let why = "5: without disturbances, the DaemonJob is not Complete, Failed or held for a user";
        return Err(why.to_owned());
    }
    let Reported { since, last_due, .. } = worlds.reported(state.status).unwrap_or_default();
    match state.spec.last_due(state.clock).filter(|_| !state.spec.is_suspended) {
        Some(due) if due > since && due > last_due => {
            Err(format!("5: half-day {due} is due, and neither begins a run nor is passed over"))
        }
        _ => Ok(()),
    }
}

/// Checks a reconcile.
pub fn of_pass(worlds: &Worlds, state: &State, pass: &Pass) -> Judgement {
    let facts = Facts::of(worlds, state, pass);
    facts.due_times()?;
    facts.creations()?;
    facts.waves()?;
    facts.marks()?;
    facts.lists()?;
    if is_true(&pass.status.conditions, "Complete") {
        facts.complete()?;
    }
    facts.reasons()
}

/// The state before a reconcile, and what the leader has measured: how long nodes have not been Ready.
#[derive(Clone, Copy)]
struct Facts<'s> {
    worlds: &'s Worlds,
    state: &'s State,
    pass: &'s Pass,
    /// Whether a due time begins a run in this reconcile.
    begins: bool,
    /// The template in force. With a schedule, a changed template waits for the next due time.
    template: u8,
    /// The rollout of this reconcile.
    rollout: u8,
}

impl<'s> Facts<'s> {
    fn of(worlds: &'s Worlds, state: &'s State, pass: &'s Pass) -> Self {
        let (truth, spec, due) = (state.truth, state.spec, pass.reported.due);
        let begins = due > 0 && due != truth.due;
        let reported = truth.template.filter(|_| spec.schedule > 0 && !begins);
        let template = reported.unwrap_or(spec.template);
        let is_same = truth.template == Some(template) && truth.has_token == spec.has_token && !begins;
        let rollout = truth.rollout + u8::from(!is_same);
        Self { worlds, state, pass, begins, template, rollout }
    }
}

impl Facts<'_> {
    /// The deleted nodes that count as failed in every reading of the rules.
    fn gone(&self) -> u8 {
        let truth = self.state.truth;
        if self.rollout == truth.rollout { truth.gone } else { 0 }
    }

    /// Whether a pod of this rollout was bound to the node.
    fn was_tried(&self, id: NodeId) -> bool {
        self.state.truth.nodes[id.slot()].tried == Some(self.rollout)
    }

    fn last(&self, id: NodeId, outcome: Outcome) -> bool {
        let last = self.state.truth.nodes[id.slot()].last;
        last.is_some_and(|last| last.outcome == outcome && last.rollout == self.rollout)
    }

    /// Whether an attempt failed in this rollout and none has succeeded since. `failures` is their number.
    fn has_failed(&self, id: NodeId, failures: u8) -> bool {
        let is_current = self.state.truth.nodes[id.slot()].rollout == self.rollout;
        self.last(id, Outcome::Failed) || is_current && failures > 0 && !self.last(id, Outcome::Succeeded)
    }

    fn is_done(&self, id: NodeId) -> bool {
        let (last, due) = (self.state.truth.nodes[id.slot()].last, self.pass.reported.due);
        last.is_some_and(|last| {
            let is_of_due_time = due == 0 || last.due == due;
            last.outcome == Outcome::Succeeded && last.template == self.template && is_of_due_time
        })
    }

    /// Whether the leader may judge the last attempt on the node differently.
    fn is_ambiguous(&self, id: NodeId) -> bool {
        self.state.truth.nodes[id.slot()].is_ambiguous
    }

    /// Whether the node has more than `backoffLimit` failures.
    fn exceeds(&self, id: NodeId, failures: u8) -> bool {
        let is_current = self.state.truth.nodes[id.slot()].rollout == self.rollout;
        is_current && failures > self.worlds.variant.backoff_limit
    }

    /// Whether the leader has seen the node not Ready for [`LOST`] seconds.
    fn has_been_down(&self, id: NodeId) -> bool {
        self.pass.memory.nodes[id.slot()].not_ready.is_some_and(|age| age >= LOST)
    }

    /// Whether the node has not been Ready since an attempt.
    fn is_suspect(&self, id: NodeId) -> bool {
        let is_ready = self.state.node_of(id).is_some_and(|node| node.is_ready);
        !is_ready && self.state.is_suspect(id, |_| true)
    }

    /// Whether the rollout was stopped when the leader began, and the node has not been Ready since.
    fn is_inherited(&self, id: NodeId) -> bool {
        self.pass.memory.nodes[id.slot()].is_inherited
    }

    /// The number of nodes that count as failed in every reading of the rules.
    fn failed(&self) -> u8 {
        let rollout = self.rollout;
        let failed = self.state.existing().filter(|(id, node)| {
            let truth = self.state.truth.nodes[id.slot()];
            let is_free = !self.state.is_occupied(id.name);
            let is_recorded = is_free && self.exceeds(*id, truth.failures);
            let is_kept_away = is_free && node.is_tainted && self.has_failed(*id, truth.failures);
            let is_suspect = !node.is_ready && self.state.is_suspect(*id, |of| of == rollout);
            let is_lost =
                is_suspect && (self.has_been_down(*id) || self.is_inherited(*id)) && !truth.was_cordoned;
            !self.is_ambiguous(*id) && (is_recorded || is_kept_away) || is_lost
        });
        u8::try_from(failed.count()).unwrap_or(u8::MAX).saturating_add(self.gone())
    }

    /// Whether the node counts as failed in some reading of the rules.
    fn may_have_failed(&self, id: NodeId) -> bool {
        let Some(node) = self.state.node_of(id) else { return false };
        let is_down = self.has_been_down(id) || self.is_inherited(id);
        let is_kept_away = node.is_tainted || is_down;
        let failures = self.state.truth.nodes[id.slot()].possible_failures;
        self.exceeds(id, failures)
            || self.has_failed(id, failures) && is_kept_away
            || !node.is_ready && is_down && self.was_tried(id)
    }

    /// Invariants 1 and 2, and that a node succeeds once.
    fn creations(&self) -> Judgement {
        let made = &self.pass.creations;
        if made.is_empty() {
            return Ok(());
        }
        let Facts { worlds, state, .. } = self;
        let (failed, max) = (self.failed(), worlds.max_failed(state.spec));
        if worlds.variant.policy != FailurePolicyType::Continue && failed > max {
            return Err(format!("1: a pod is created, but {failed} nodes have failed and {max} may fail"));
        }
        if state.spec.is_suspended
            || state.truth.template != Some(state.spec.template)
            || self.rollout != state.truth.rollout
        {
            return Err("a pod is created while suspended, or before the status has the rollout".to_owned());
        }
        let is_scheduled = state.spec.schedule > 0;
        let due = if is_scheduled { state.truth.due } else { 0 };
        for pod in made {
            let name = name_of(pod.node.name);
            if state.node_of(pod.node).is_none_or(|node| node.is_tainted || !node.is_ready) {
                return Err(format!("a pod is created for node {name}, which may not have one"));
            }
            if pod.due != due || is_scheduled && due == 0 {
                return Err(format!("10: a pod is created for half-day {}, the status has {due}", pod.due));
            }
            if is_scheduled && state.node_of(pod.node).is_some_and(|node| node.is_new) {
                return Err(format!("10: a pod is created for node {name}, which joined after the due time"));
            }
            if self.is_done(pod.node) && !self.is_ambiguous(pod.node) {
                return Err(format!("node {name} succeeded with this template and runs again"));
            }
            if pod.number > worlds.variant.attempts + 1 {
                return Err(format!("pod {} of node {name} exceeds the attempts", pod.number));
            }
        }
        self.places(made)
    }

    /// Invariant 10: a due time begins one run, in time, after the last change of the schedule, and not while failed
    /// nodes stop the rollout.
    fn due_times(&self) -> Judgement {
        let Facts { worlds, state, pass, .. } = *self;
        let State { spec, truth, clock, .. } = *state;
        let Reported { due, since, last_due, .. } = pass.reported;
        let Some(last) = spec.last_due(clock).or((spec.schedule > 0).then_some(0)) else {
            let is_none = due == 0 && since == 0 && last_due == 0;
            return is_none.then_some(()).ok_or_else(|| "10: a due time without a schedule".to_owned());
        };
        let stored = worlds.reported(state.status).filter(|stored| stored.schedule == spec.schedule);
        let status = worlds.status(state.status);
        let resumes =
            !spec.is_suspended && status.is_some_and(|status| is_true(&status.conditions, "Suspended"));
        let expected = stored.filter(|_| !resumes).map_or(clock, |stored| stored.since);
        if since != expected {
            return Err(format!("10: due times count since {since}, but must count since {expected}"));
        }
        let before = Facts { rollout: truth.rollout, ..*self };
        let has_changed = truth.template != Some(spec.template) || truth.has_token != spec.has_token;
        let (failed, max) = (before.failed(), worlds.max_failed(spec));
        let is_stopped = worlds.variant.policy != FailurePolicyType::Continue && failed > max && !has_changed;
        let is_late = worlds.variant.feature == Feature::Schedule { has_deadline: true } && last != clock;
        if self.begins {
            let is_new = due > truth.begun.max(truth.changed);
            let is_in_time = due == last && !is_late && is_new && !spec.is_suspended;
            if !is_in_time || is_stopped || last_due != due {
                let Truth { begun, changed, .. } = truth;
                return Err(format!(
                    "10: half-day {due} begins a run in half-day {clock}: last run {begun}, last change {changed}, {failed} \
                     failed nodes of {max}"
                ));
            }
            return Ok(());
        }
        let passed = worlds.reported(state.status).map_or(0, |stored| stored.last_due);
        let is_held = is_braked(&pass.status) || worlds.variant.policy == FailurePolicyType::FailFast;
        if last_due != passed && !is_late && !is_held {
            return Err(format!("10: half-day {last_due} is passed over without a reason"));
        }
        Ok(())
    }

    /// Invariant 9: a Node is changed after a success of the template in force, and once for it.
    fn marks(&self) -> Judgement {
        let marks = self.pass.steps.iter().flatten();
        let marks = marks.filter_map(|write| match write {
            Write::MarkNode(mark) => Some(*mark),
            _ => None,
        });
        for NodeMark { node: id, after, .. } in marks.filter(|mark| !self.is_ambiguous(mark.node)) {
            let (truth, bit) = (self.state.truth.nodes[id.slot()], success_bit(after.pod));
            if !self.is_done(id) || truth.successes & bit == 0 || truth.marks & bit != 0 {
                return Err(format!(
                    "9: node {} is changed for pod {}, but has no new success",
                    name_of(id.name),
                    after.pod
                ));
            }
        }
        Ok(())
    }

    /// Whether the Node was changed after its last success.
    fn is_marked(&self, id: NodeId) -> bool {
        let truth = self.state.truth.nodes[id.slot()];
        let last = (0..8).map(success_bit).filter(|bit| truth.successes & *bit != 0).max();
        last.is_none_or(|last| truth.marks & last != 0)
    }

    /// The wave in the stored status, if it is of this rollout.
    fn stored_wave(&self) -> Option<i32> {
        let stored = self.worlds.status(self.state.status)?.rollout.as_ref()?;
        let is_same =
            self.pass.status.rollout.as_ref().is_some_and(|planned| planned.number == stored.number);
        stored.wave.filter(|_| is_same)
    }

    /// Invariant 7: one node starts in the first wave, and the second one begins after a success.
    fn waves(&self) -> Judgement {
        let Facts { worlds, state, pass, .. } = self;
        if worlds.variant.feature != Feature::Waves || self.stored_wave() != Some(1) {
            return Ok(());
        }
        let rollout = self.rollout;
        let has_pod = |id: NodeId| {
            let is_open = |pod: &Pod| pod.node == id && pod.occupies() && pod.truth == rollout;
            state.pods.iter().any(is_open)
        };
        let was_tried =
            |id: NodeId| state.truth.nodes[id.slot()].last.is_some_and(|last| last.rollout == rollout);
        // A node that is tainted or not Ready may be skipped.
        let started = state.existing().filter(|(id, node)| {
            let is_here = node.is_ready && !node.is_tainted && !self.is_ambiguous(*id);
            is_here && (has_pod(*id) || was_tried(*id))
        });
        let started = started.count() + usize::from(self.gone());
        let is_new = |pod: &&Pod| !self.was_tried(pod.node) && !self.is_ambiguous(pod.node);
        let new = pass.creations.iter().filter(is_new).count();
        if new > 0 && started + new > 1 {
            return Err(format!("7: {started} nodes have started in the first wave, and {new} more start"));
        }
        let succeeded = |id: NodeId| self.last(id, Outcome::Succeeded) || self.is_ambiguous(id);
        let next = pass.status.rollout.as_ref().and_then(|planned| planned.wave);
        if next > Some(1) && !state.existing().any(|(id, _)| succeeded(id)) {
            return Err("7: the second wave begins, and no node has succeeded".to_owned());
        }
        Ok(())
    }

    fn places(&self, made: &[Pod]) -> Judgement {
        let state = self.state;
        let is_written_off = |name: u8| {
            let down = |(id, _): (NodeId, _)| id.name == name && self.has_been_down(id);
            state.existing().any(down)
        };
        let runs = |pod: &&Pod| pod.occupies() && !is_written_off(pod.node.name);
        let running = state.pods.iter().filter(runs).count() + made.len();
        let is_holder = |id: NodeId, failures: u8| {
            let truth = state.truth.nodes[id.slot()];
            let is_tainted = state.node_of(id).is_some_and(|node| node.is_tainted);
            let retries = self.worlds.variant.policy != FailurePolicyType::Continue
                && self.has_failed(id, failures)
                && !self.exceeds(id, truth.possible_failures)
                && !is_tainted;
            (self.is_suspect(id) || retries) && !is_written_off(id.name)
        };
        let idle = |id: NodeId| !state.is_occupied(id.name) && !made.iter().any(|pod| pod.node == id);
        let surely_holds = |id: NodeId| {
            let failures = state.truth.nodes[id.slot()].failures;
            is_holder(id, failures) && (!self.is_ambiguous(id) || self.is_suspect(id))
        };
        let held = state.existing().filter(|(id, _)| surely_holds(*id) && idle(*id)).count();
        let may_hold = |pod: &Pod| is_holder(pod.node, state.truth.nodes[pod.node.slot()].possible_failures);
        let all_hold = made.iter().all(may_hold);
        let limit = usize::from(self.worlds.variant.parallelism);
        if running > limit || !all_hold && running + held > limit {
            return Err(format!("2: {running} pods run, {held} more slots are held, parallelism is {limit}"));
        }
        Ok(())
    }

    /// The failures in the status are true.
    fn lists(&self) -> Judgement {
        let status = &self.pass.status;
        for (id, _) in self.state.existing() {
            if let Some(reason) = listed(&status.failed_nodes, id)
                && !self.may_have_failed(id)
            {
                return Err(format!(
                    "node {} is listed as failed, {reason}, but has not failed",
                    name_of(id.name)
                ));
            }
            if let Some(reason) = listed(&status.skipped_nodes, id)
                && self.has_failed(id, self.state.truth.nodes[id.slot()].failures)
                && !self.is_ambiguous(id)
            {
                return Err(format!("node {} has failed, but is skipped, {reason}", name_of(id.name)));
            }
        }
        let failed = self.state.existing().filter(|(id, _)| self.may_have_failed(*id)).count();
        let failed = failed + self.state.deleted().filter(|id| self.was_tried(*id)).count();
        if is_braked(status) && failed <= usize::from(self.worlds.max_failed(self.state.spec)) {
            return Err(format!("the rollout is stopped, but only {failed} nodes have failed"));
        }
        Ok(())
    }

    /// Invariants 3 and 4.
    fn complete(&self) -> Judgement {
        let Facts { worlds, state, pass, .. } = self;
        if state.truth.is_convicted && self.rollout == state.truth.rollout {
            return Err("4: Failed becomes Complete without an event that allows it".to_owned());
        }
        let mut failed = 0;
        for (id, node) in state.existing() {
            let name = name_of(id.name);
            if !node.is_ready && state.is_suspect(id, |_| true) && !self.has_been_down(id) {
                return Err(format!("3: Complete, but node {name} is suspect"));
            }
            let is_lost = listed(&pass.status.failed_nodes, id).is_some();
            failed += u8::from(is_lost);
            let is_explained = is_lost || listed(&pass.status.skipped_nodes, id).is_some();
            if !self.is_done(id) && !self.is_ambiguous(id) && !is_explained {
                return Err(format!("3: Complete, but node {name} is neither done nor listed"));
            }
            let may_be_marked = node.is_ready && !is_lost && !self.is_ambiguous(id);
            if self.is_done(id) && may_be_marked && !self.is_marked(id) {
                return Err(format!("9: Complete, but node {name} has no change for its success"));
            }
        }
        let tolerated = match worlds.variant.policy {
            FailurePolicyType::Continue => worlds.max_failed(state.spec),
            _ => 0,
        };
        if failed > tolerated {
            return Err(format!("3: Complete, but {failed} nodes have failed and {tolerated} may fail"));
        }
        Ok(())
    }

    /// Invariant 6: every waiting node has a reason.
    fn reasons(&self) -> Judgement {
        let status = &self.pass.status;
        let is = |type_| is_true(&status.conditions, type_);
        for (id, _) in self.state.existing() {
            let runs = |pod: &Pod| pod.node.name == id.name && pod.phase == Phase::Running;
            let pending = listed(&status.pending_nodes, id);
            let is_listed =
                listed(&status.failed_nodes, id).is_some() || listed(&status.skipped_nodes, id).is_some();
            let is_explained = pending.is_some() || is_listed || self.state.pods.iter().any(runs);
            if !is_explained && !self.is_done(id) && !self.is_ambiguous(id) {
                return Err(format!("6: node {} waits without a reason", name_of(id.name)));
            }
            let is_held = is("Paused") || is("Suspended") || is("Complete") || is("Failed");
            let begins = !self.pass.steps.is_empty();
            if pending.as_deref() == Some("Creating") && !is_held && !begins {
                return Err(format!("6: node {} gets no pod, but no hold explains it", name_of(id.name)));
            }
        }
        Ok(())
    }
}
