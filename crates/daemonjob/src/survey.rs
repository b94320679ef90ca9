//! The survey: the state of every node, and the reason why no pods are created. [`crate::assess`] makes it,
//! the plan acts on it, and `quintet explain` prints it.

use foldhash::HashSet;
use jiff::Timestamp;
use quintet_runtime::model::core_types::Pod;

use crate::failure_policy::Failures;
use crate::fleet::Fleet;
use crate::history::{AssessedPod, Histories};
use crate::labels::pinned_to;
use crate::marks::Marks;
use crate::node_state::{Cause, Reason, SelectedNode, State};
use crate::rollout::{Ending, Key};
use crate::schedule::Agenda;
use crate::waves::{Progress, Waves};

/// The result of the assessment.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact about the run")]
pub struct Survey<'a> {
    /// The template, the rollout and the run.
    pub key: Key,
    /// When the current run started.
    pub start: Timestamp,
    /// Whether a run begins now. The status must have its start before anything else happens.
    pub begins: bool,
    /// The schedule, if the spec has one.
    pub agenda: Option<Agenda>,
    /// With a schedule, whether every node was finished at this due time. Nodes that have not run wait for the next one.
    pub is_over: bool,
    /// With a schedule, whether the template has changed. It has no effect before the next due time.
    pub has_pending_template: bool,
    /// Whether the rollout changes now. The status must have its number before anything else happens.
    pub changes: bool,
    /// The selected nodes: Ready nodes first, in the order of their names. Without waves, they get their pods in
    /// this order.
    pub nodes: Vec<SelectedNode<'a>>,
    /// The histories of the nodes and their pods.
    pub histories: Histories<'a>,
    /// The indexes of nodes with several counted pods, which a late write can cause.
    pub duplicates: Vec<usize>,
    /// By the index of a node: whether its pods hold no slots, because it was unwell for too long.
    pub written_off: Vec<bool>,
    /// The number of pods that have not ended, on nodes that are not selected or deleted.
    pub pods_elsewhere: usize,
    /// The running pods of deleted DaemonJobs with the same name that hold slots.
    pub predecessors: Vec<&'a Pod>,
    /// The names of suspect or settling nodes without a pod that are not selected or being deleted, and whether
    /// each one settles. They hold slots too.
    pub holders_elsewhere: Vec<(&'a str, bool)>,
    /// The nodes that count as failed.
    pub failures: Failures,
    /// The nodes of the rollout, counted for its waves. Only with rollout rules.
    pub progress: Progress,
    /// The waves of the rollout. None without rollout rules.
    pub waves: Option<Waves>,
    /// When the failure policy stopped the rollout, as in the last status.
    pub braked_since: Option<Timestamp>,
    /// The largest number of selected nodes in this rollout.
    pub base: usize,
    /// The selected nodes, counted.
    pub fleet: Fleet,
    /// The smallest number of nodes that were unhealthy at the same time in this run.
    pub unhealthy_from_start: usize,
    /// Whether the API server finds a pod of the template invalid, so that the selected nodes are unknown.
    pub is_template_invalid: bool,
    /// The UIDs of running pods of an older template that are replaced now.
    pub replaced: HashSet<&'a str>,
    /// Whether a pod runs, or may run later, on a node that is healthy and not suspect.
    pub has_working_pod: bool,
    /// When this process became the leader. Earlier times are another manager's.
    pub led_since: Timestamp,
    /// The reason why the run ends, or has ended.
    pub ending: Option<Ending>,
    /// The reason why no pods are created, apart from a lack of nodes.
    pub hold: Option<Reason>,
    /// The marks of nodes. None without `onSuccess`.
    pub marks: Option<Marks>,
    /// When time alone would change the survey.
    pub again: Option<Timestamp>,
}

impl<'a> Survey<'a> {
    /// The pods, by node and number.
    pub fn pods(&self) -> &[AssessedPod<'a>] {
        &self.histories.pods
    }

    /// The number of selected nodes in such a state.
    pub fn count(&self, is_one: impl Fn(&State) -> bool) -> usize {
        self.nodes.iter().filter(|selected| is_one(&selected.state)).count()
    }

    /// The number of selected nodes that are skipped for such a cause.
    pub fn skipped(&self, is_one: impl Fn(Cause) -> bool) -> usize {
        self.count(|state| matches!(state, State::Skipped(reason) if is_one(reason.cause)))
    }

    /// The number of failed nodes whose failure has such a cause.
    pub fn failed(&self, is_one: impl Fn(Cause) -> bool) -> usize {
        self.count(|state| matches!(state, State::Failed(reason) if is_one(reason.cause)))
    }

    /// The number of desired nodes, and of other nodes where a pod still runs. A node that a taint keeps pods
    /// away from is not desired.
    pub fn desired(&self) -> usize {
        self.nodes.len() - self.skipped(Cause::is_a_taint) + self.pods_elsewhere
    }

    /// Whether the fleet is unhealthy as a whole.
    pub fn is_fleet_unhealthy(&self) -> bool {
        self.fleet.is_unhealthy(self.unhealthy_from_start)
    }

    /// Whether a pod holds a slot: it has not ended, and its node was not written off.
    pub(crate) fn holds_slot(&self, assessed: &AssessedPod<'_>) -> bool {
        assessed.occupies() && assessed.on_at.is_none_or(|at| !self.written_off[at])
    }

    /// Whether a pod exists that has not ended, is not terminating and holds a slot.
    pub fn has_counted_pods(&self) -> bool {
        self.pods().iter().any(|assessed| assessed.is_counted() && self.holds_slot(assessed))
    }

    /// Whether the run is finished: no node is left to run.
    pub fn is_finished(&self) -> bool {
        !self.is_template_invalid
            && self.count(State::is_unfinished) == 0
            && self.pods_elsewhere == 0
            && !self.has_counted_pods()
    }

    /// Whether a pod runs on a healthy node, or may be created. The clock of the run advances then.
    pub fn works(&self) -> bool {
        self.hold.is_none()
            && (self.has_working_pod || self.nodes.iter().any(|one| matches!(one.state, State::Due(_))))
    }

    /// Names a pod or node that holds a slot and is in no list, because it is deleted or not selected.
    pub(crate) fn elsewhere_message(&self) -> String {
        if let Some((node, settles)) = self.holders_elsewhere.first() {
            let why = if *settles { "settles" } else { "has not been Ready since its pod ran" };
            return format!("; {node} {why} and holds a slot");
        }
        if let Some(pod) = self.predecessors.first() {
            return format!("; {} of a deleted DaemonJob with the same name holds a slot", pod.meta.name);
        }
        if self.pods_elsewhere == 0 {
            return String::new();
        }
        let listed: HashSet<usize> = self.nodes.iter().map(|one| one.at).collect();
        let is_listed = |assessed: &&AssessedPod<'_>| assessed.on_at.is_some_and(|at| listed.contains(&at));
        let holder = self.pods().iter().find(|assessed| self.holds_slot(assessed) && !is_listed(assessed));
        holder.map_or_else(String::new, |assessed| {
            let node = pinned_to(assessed.pod).unwrap_or("no node");
            format!("; {} on {node} holds a slot", assessed.pod.meta.name)
        })
    }

    pub(crate) fn requeue_at(&mut self, at: Option<Timestamp>) {
        self.again = self.again.into_iter().chain(at).min();
    }
}
