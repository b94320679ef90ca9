//! The number of failed nodes, and whether it pauses the rollout or ends the run.
//!
//! Every node of the rollout counts, eligible or not, because a broken node often stops being eligible. Three
//! kinds count. A recorded failure is final. A provisional failure ends when the node can be retried or is
//! Ready. A failed node whose Node was deleted counts for 24 hours. While the failure policy stops the
//! rollout, a lost record counts as a failed node, so that lost records do not let the rollout continue.

use jiff::Timestamp;
use quintet_runtime::model::int_or_percent::{Round, scaled_value};

use crate::api::{DaemonJob, FailurePolicyType};
use crate::history::{gone_count, unusable_gone_lines};
use crate::node_state::{Cause, Reason, counted};
use crate::observe::World;
use crate::survey::Survey;

/// The failed nodes of the rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Nodes that failed permanently.
    pub recorded: usize,
    /// Nodes that count as failed until they can be retried.
    pub provisional: usize,
    /// Nodes of both kinds that a taint or their labels keep away.
    pub kept_away: usize,
    /// Provisionally failed nodes that have been not Ready since an attempt.
    pub lost: usize,
    /// Nodes whose Node was deleted.
    pub gone: usize,
    /// While the failure policy stops the rollout: lost records, which may have been of failed nodes.
    pub unrecorded: usize,
    /// The number of failed nodes that is tolerated.
    pub max: usize,
    type_: FailurePolicyType,
}

impl Failures {
    /// The number of all failed nodes.
    pub fn count(&self) -> usize {
        self.recorded + self.provisional + self.gone + self.unrecorded
    }

    /// Whether failures stop the creation of pods.
    pub fn brakes(&self) -> bool {
        self.type_ != FailurePolicyType::Continue && self.count() > self.max
    }

    /// Whether permanent failures alone stop the creation of pods. Only a user can then continue.
    pub fn brakes_for_good(&self) -> bool {
        self.brakes() && self.count() - self.provisional > self.max
    }

    /// Whether failures end the run. Only recorded failures do, because the other nodes may recover.
    pub fn ends_run(&self) -> bool {
        self.type_ == FailurePolicyType::FailFast && self.recorded > self.max
    }

    /// Whether a node that waits for its retry keeps its slot.
    pub fn retries_hold_slots(&self) -> bool {
        self.type_ != FailurePolicyType::Continue
    }

    /// Counts the failure of an existing node.
    pub fn add(&mut self, cause: Cause, is_kept_away: bool) {
        self.recorded += usize::from(!cause.is_provisional());
        self.provisional += usize::from(cause.is_provisional());
        let is_lost = cause == Cause::NodeLost;
        self.lost += usize::from(is_lost);
        self.kept_away += usize::from(is_kept_away && !is_lost);
    }

    /// The reason why no pods are created, with the numbers and the remedy.
    pub fn hold(&self) -> Option<Reason> {
        self.brakes().then(|| Reason::new(Cause::MaxFailedNodesExceeded, self.message()))
    }

    /// The number of failed nodes, and the remedy.
    pub fn message(&self) -> String {
        let parts = [
            (self.gone, "deleted"),
            (self.unrecorded, "without a record"),
            (self.lost, "lost"),
            (self.kept_away, "tainted, unhealthy or deselected"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, word)| format!("{count} {word}")).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let (nodes, max) = (counted(self.count() as u64, "node"), self.max);
        format!(
            "{nodes} failed{parts}, maxFailedNodes allows {max}; fix the cause and set spec.retryToken to a new \
             value, or raise maxFailedNodes"
        )
    }
}

/// The number of failed nodes that the failure policy tolerates, for this number of nodes.
pub fn max_failed(job: &DaemonJob, base: usize) -> usize {
    let max = job.spec.failure_policy.as_ref().and_then(|policy| policy.max_failed_nodes.as_ref());
    max.and_then(|max| scaled_value(max, base, Round::Down)).unwrap_or(0)
}

/// Whether the failed nodes leave a DaemonJob Complete: with type Continue, within a limit of the user.
pub fn tolerates(job: &DaemonJob, failed: usize, base: usize) -> bool {
    let policy = job.spec.failure_policy.as_ref();
    policy.is_some_and(|policy| {
        policy.type_ == FailurePolicyType::Continue
            && policy.max_failed_nodes.is_some()
            && failed <= max_failed(job, base)
    })
}

/// The failures of deleted nodes, before the existing nodes are added. While the failure policy stops the
/// rollout, deleted nodes count as at the time of the stop. Time alone then does not end the stop.
pub fn failures(job: &DaemonJob, world: &World, survey: &Survey<'_>, now: Timestamp) -> Failures {
    let horizon = survey.braked_since.map_or(now, |since| since.min(now));
    Failures {
        gone: gone_count(&survey.histories, world, &survey.key, horizon),
        unrecorded: if survey.braked_since.is_some() { unusable_gone_lines(job, world) } else { 0 },
        max: max_failed(job, survey.base),
        type_: job.spec.failure_policy.as_ref().map(|policy| policy.type_).unwrap_or_default(),
        ..Failures::default()
    }
}
