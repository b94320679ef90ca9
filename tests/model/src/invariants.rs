//! The invariants of a DaemonJob (docs/reliability.md), assessed by the events and not by the plan's reports.
//!
//! The rules may leave open whether something counts, such as a write in flight or a failure during a
//! deletion. Then an invariant that requires something assumes fewer failures, and one that forbids assumes
//! more.

use quintet_daemonjob::api::{DaemonJobStatus, FailurePolicyType, NodeReason};
use quintet_runtime::model::conditions::is_true;

use crate::state::{NodeId, Outcome, Phase, Pod, State};
use crate::world::{Pass, Worlds, name_of};

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
    Ok(())
}

/// Checks a state in which no event remains.
pub fn of_rest(worlds: &Worlds, state: &State) -> Judgement {
    let Some(status) = worlds.status(state.status) else { return Err("5: no status was written".to_owned()) };
    let is = |type_| is_true(&status.conditions, type_);
    let is_held = is_braked(status) || has_reason(status, "Paused", "WaveFailed");
    let has_ended = is("Complete") || is("Failed") || is("Suspended") || is_held;
    has_ended.then_some(()).ok_or_else(|| {
        "5: without disturbances, the DaemonJob is not Complete, Failed or held for a user".to_owned()
    })
}

/// Checks a reconcile.
pub fn of_pass(worlds: &Worlds, state: &State, pass: &Pass) -> Judgement {
    let facts = Facts { worlds, state, pass };
    facts.creations()?;
    facts.waves()?;
    facts.lists()?;
    if is_true(&pass.status.conditions, "Complete") {
        facts.complete()?;
    }
    facts.reasons()
}

/// The state before a reconcile, and what the leader has measured: how long nodes have not been Ready.
struct Facts<'s> {
    worlds: &'s Worlds,
    state: &'s State,
    pass: &'s Pass,
}

impl Facts<'_> {
    /// The rollout of this reconcile.
    fn rollout(&self) -> u8 {
        let truth = self.state.truth;
        truth.rollout + u8::from(truth.template != Some(self.state.spec.template))
    }

    /// The deleted nodes that count as failed in every reading of the rules.
    fn gone(&self) -> u8 {
        let truth = self.state.truth;
        if self.rollout() == truth.rollout { truth.gone } else { 0 }
    }

    /// Whether a pod of this rollout was bound to the node.
    fn was_tried(&self, id: NodeId) -> bool {
        self.state.truth.nodes[id.slot()].tried == Some(self.rollout())
    }

    fn last(&self, id: NodeId, outcome: Outcome) -> bool {
        let last = self.state.truth.nodes[id.slot()].last;
        last.is_some_and(|last| last.outcome == outcome && last.rollout == self.rollout())
    }

    /// Whether an attempt failed in this rollout and none has succeeded since. `failures` is their number.
    fn has_failed(&self, id: NodeId, failures: u8) -> bool {
        let is_current = self.state.truth.nodes[id.slot()].rollout == self.rollout();
        self.last(id, Outcome::Failed) || is_current && failures > 0 && !self.last(id, Outcome::Succeeded)
    }

    fn is_done(&self, id: NodeId) -> bool {
        let last = self.state.truth.nodes[id.slot()].last;
        last.is_some_and(|last| {
            last.outcome == Outcome::Succeeded && last.template == self.state.spec.template
        })
    }

    /// Whether the leader may judge the last attempt on the node differently.
    fn is_ambiguous(&self, id: NodeId) -> bool {
        self.state.truth.nodes[id.slot()].is_ambiguous
    }

    /// Whether the node has more than `backoffLimit` failures.
    fn exceeds(&self, id: NodeId, failures: u8) -> bool {
        let is_current = self.state.truth.nodes[id.slot()].rollout == self.rollout();
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
        let rollout = self.rollout();
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
        if state.spec.is_suspended || state.truth.template != Some(state.spec.template) {
            return Err("a pod is created while suspended, or before the status has the rollout".to_owned());
        }
        for pod in made {
            let name = name_of(pod.node.name);
            if state.node_of(pod.node).is_none_or(|node| node.is_tainted || !node.is_ready) {
                return Err(format!("a pod is created for node {name}, which may not have one"));
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

    /// The wave in the stored status, if it is of this rollout.
    fn stored_wave(&self) -> Option<i32> {
        let stored = self.worlds.status(self.state.status)?.rollout.as_ref()?;
        let is_same =
            self.pass.status.rollout.as_ref().is_some_and(|planned| planned.number == stored.number);
        stored.wave.filter(|_| is_same)
    }

    /// Invariant 7: one node starts in the first wave, and the second one begins after a success.
    fn waves(&self) -> Judgement {
        let Facts { worlds, state, pass } = self;
        if !worlds.variant.has_waves || self.stored_wave() != Some(1) {
            return Ok(());
        }
        let rollout = self.rollout();
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
        let Facts { worlds, state, pass } = self;
        if state.truth.is_convicted {
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
