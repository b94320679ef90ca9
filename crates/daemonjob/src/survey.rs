//! What there is to say of every node: done, failed, running, skipped, or why it waits.
//!
//! One pure function that puts the rules together. The plan acts upon it, and `quintet explain` prints it.

use foldhash::HashSet;
use jiff::Timestamp;

use crate::failure_policy::Failures;
use crate::history::{Histories, Judged};
use crate::labels::{NODE_UID_LABEL, pinned_to};
use crate::node_state::{Reason, State, Surveyed};
use crate::rollout::{Ending, Key};

/// Everything that there is to say.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a run may begin or a rollout change, and pods may run or wait meanwhile"
)]
pub struct Survey<'a> {
    /// Template, rollout and run.
    pub key: Key,
    /// When the current run started.
    pub start: Timestamp,
    /// Whether a run begins now. The status tells its start before anything is done.
    pub begins: bool,
    /// Whether the rollout changes now. The status tells its number before anything is done.
    pub changes: bool,
    /// The selected nodes, in the order in which they get their pods.
    pub nodes: Vec<Surveyed<'a>>,
    /// What is known of the nodes and the pods.
    pub histories: Histories<'a>,
    /// Places of nodes that several counted pods are there for: by a write that came late.
    pub doubled: Vec<usize>,
    /// By the place of a node: whether its pods hold no places, since it was not Ready, or unhealthy, for too long.
    pub written_off: Vec<bool>,
    /// Pods that have not ended on nodes that are not selected, or gone.
    pub elsewhere: usize,
    /// Names of suspect nodes without a pod that are not selected or being deleted: they hold places all the same.
    pub suspects_elsewhere: Vec<&'a str>,
    /// The nodes that count as failed.
    pub failures: Failures,
    /// The largest number of selected nodes in this rollout.
    pub base: usize,
    /// The smallest number of unhealthy nodes in this run.
    pub unhealthy_from_start: usize,
    /// Whether the API server finds a pod of the template invalid: nothing is known of the nodes that it selects.
    pub is_template_invalid: bool,
    /// UIDs of running pods of an older template that are replaced now.
    pub replaced: HashSet<&'a str>,
    /// Whether a pod runs, or may yet, on a node that is healthy and not suspect.
    pub has_working_pod: bool,
    /// Since when this process leads: times before that are another manager's.
    pub led_since: Timestamp,
    /// Whether a node waits for a place.
    pub waits_for_turn: bool,
    /// Why the run ends, or has ended.
    pub ending: Option<Ending>,
    /// Why no pods are made, if that is not for want of nodes.
    pub hold: Option<Reason>,
    /// When time alone would change any of this.
    pub again: Option<Timestamp>,
}

impl<'a> Survey<'a> {
    /// The pods, by node and number.
    pub fn pods(&self) -> &[Judged<'a>] {
        &self.histories.pods
    }

    /// Whether the line of the pod's node must stay as it is: then nothing of the pod can be recorded.
    pub fn is_line_frozen(&self, judged: &Judged<'_>) -> bool {
        match self.histories.of_home(judged) {
            Some(history) => history.is_frozen,
            None => judged
                .pod
                .label(NODE_UID_LABEL)
                .is_some_and(|uid| self.histories.gone.get(uid).is_some_and(|gone| gone.is_frozen)),
        }
    }

    /// How many selected nodes are in such a state.
    pub fn count(&self, wanted: fn(&State) -> bool) -> usize {
        self.nodes.iter().filter(|node| wanted(&node.state)).count()
    }

    /// Nodes that are done, have failed, run or are to run, and others where a pod still runs.
    pub fn desired(&self) -> usize {
        self.count(State::is_desired) + self.elsewhere
    }

    /// Nodes that are neither done nor failed nor skipped.
    pub fn unfinished(&self) -> usize {
        self.count(State::is_unfinished)
    }

    /// Whether a pod holds a place: it has not ended, and its node was not written off.
    pub(crate) fn holds_place(&self, judged: &Judged<'_>) -> bool {
        judged.occupies() && judged.on_at.is_none_or(|at| !self.written_off[at])
    }

    /// Whether any pod is there that has not ended and is not terminating.
    pub fn has_counted_pods(&self) -> bool {
        self.pods().iter().any(|judged| judged.is_counted() && self.holds_place(judged))
    }

    /// Whether the run is over: nothing is left to do.
    pub fn is_finished(&self) -> bool {
        !self.is_template_invalid && self.unfinished() == 0 && self.elsewhere == 0 && !self.has_counted_pods()
    }

    /// Whether a pod runs on a healthy node, or may be made: then the time of the run passes.
    pub fn works(&self) -> bool {
        self.hold.is_none()
            && (self.has_working_pod || self.nodes.iter().any(|one| matches!(one.state, State::Due(_))))
    }

    /// Names a pod that holds a place and is in no list, since its node is gone or not selected.
    pub(crate) fn elsewhere_message(&self) -> String {
        if let Some(node) = self.suspects_elsewhere.first() {
            return format!("; {node} has not been Ready since its pod ran and holds a place");
        }
        if self.elsewhere == 0 {
            return String::new();
        }
        let told: HashSet<usize> = self.nodes.iter().map(|one| one.at).collect();
        let is_told = |judged: &&Judged<'_>| judged.on_at.is_some_and(|at| told.contains(&at));
        let holder = self.pods().iter().find(|judged| self.holds_place(judged) && !is_told(judged));
        holder.map_or_else(String::new, |judged| {
            format!(
                "; {} on {} holds a place",
                judged.pod.meta.name,
                pinned_to(judged.pod).unwrap_or("no node")
            )
        })
    }

    pub(crate) fn look_again(&mut self, at: Option<Timestamp>) {
        self.again = self.again.into_iter().chain(at).min();
    }
}
