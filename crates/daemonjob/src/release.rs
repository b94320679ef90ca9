//! Decides when the manager removes the finalizer of a pod, by which the ledger holds it until it has a line.

use std::cell::Cell;
use std::ptr;

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::PODS;

use crate::FINALIZER;
use crate::history::AssessedPod;
use crate::labels::NODE_UID_LABEL;
use crate::outcome::PodOutcome;
use crate::record::{Actions, Record};

/// Recorded pods are released after no pod was created or ended for this long, so that releases do not compete
/// with a burst.
const QUIET: SignedDuration = SignedDuration::from_secs(20);
/// They are released this long after their end even if new nodes or managers leave no quiet time.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_mins(10);
/// The most pods that are deleted or released together without urgency, and the time until the next ones.
const MOST_TIDIED: usize = 200;
const TIDY_PACE: SignedDuration = SignedDuration::from_secs(1);

/// When the manager removes the finalizer of a terminating pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Release {
    /// The pod does not need a record.
    Now,
    /// After this plan's ledger step.
    Recorded,
}

/// Removes the finalizer, if it is still at its observed index.
pub fn release<S>(meta: &Meta) -> Option<Action<S>> {
    meta.without_finalizer(FINALIZER).map(|operations| Action::json_patch(PODS, meta, operations))
}

impl Record<'_> {
    /// Whether the finalizer of a terminating pod may be removed.
    pub(crate) fn release(&self, assessed: &AssessedPod<'_>) -> Option<Release> {
        let survey = self.survey;
        match (&assessed.fate, survey.histories.target_uid(assessed)) {
            (PodOutcome::Ended { .. }, _) if survey.histories.is_line_frozen(assessed) => {
                self.world.refusals.namespace_terminating.then_some(Release::Now)
            }
            (PodOutcome::Open, _) => None,
            (PodOutcome::NeverRan, _) => Some(Release::Now),
            (PodOutcome::Ended { .. }, Some(target)) => self.when_recorded(target, !assessed.recorded),
            // The outcome depends on the rollout, so the status must have the new rollout first.
            (PodOutcome::Ended { .. }, None) if survey.changes => None,
            (PodOutcome::Ended { .. }, None) => {
                let uid = assessed.pod.label(NODE_UID_LABEL).unwrap_or_default();
                let owed = survey.histories.gone.get(uid).is_some_and(|gone| gone.owed.is_some());
                self.when_recorded(uid, owed && !assessed.recorded)
            }
        }
    }

    fn when_recorded(&self, uid: &str, is_owed: bool) -> Option<Release> {
        let is_known = !is_owed && !self.restores_shard_of(uid);
        if is_known || self.world.refusals.namespace_terminating {
            return Some(Release::Now);
        }
        self.writes_shard_of(uid).then_some(Release::Recorded)
    }

    /// Deletes recorded pods that are not needed. After a quiet time, also releases the other recorded pods, so
    /// that a drain or the deletion of a namespace needs no manager. The number of pods is bounded, and writes
    /// whose refusal waits do not count. The second value is when the next ones may follow.
    pub(crate) fn tidied(&self, unneeded: &[&AssessedPod<'_>]) -> (Actions, Option<Timestamp>) {
        let (clocks, survey, now) = (&self.world.clocks, self.survey, self.now);
        let rests = |assessed: &AssessedPod<'_>| {
            let uid = survey.histories.target_uid(assessed).or_else(|| assessed.pod.label(NODE_UID_LABEL));
            assessed.recorded
                && !survey.histories.is_line_frozen(assessed)
                && uid.is_some_and(|uid| self.keeps_shard_of(uid))
        };
        let quiet = clocks.busy.and_then(|busy| busy.checked_add(QUIET).ok()).filter(|until| *until > now);
        let gone: HashSet<_> = unneeded.iter().copied().map(ptr::from_ref).collect();
        let is_held = |assessed: &&AssessedPod<'_>| {
            let has_ended = matches!(assessed.fate, PodOutcome::Ended { .. }) && !assessed.is_deleted;
            let is_kept = has_ended && !gone.contains(&ptr::from_ref(*assessed));
            is_kept && rests(assessed) && assessed.pod.meta.has_finalizer(FINALIZER)
        };
        let deleted = unneeded
            .iter()
            .copied()
            .filter(|assessed| rests(assessed))
            .map(|assessed| Action::delete(PODS, &assessed.pod.meta, false));
        let mut held = survey.pods().iter().filter(is_held).peekable();
        let quiet = quiet.filter(|_| held.peek().is_some());
        let has_waited = |assessed: &&AssessedPod<'_>| {
            let ended = survey.histories.recorded(assessed).map_or(now, |line| line.ended);
            quiet.is_none() || now.duration_since(ended) >= LONGEST_HOLD
        };
        let released = held.filter(has_waited).filter_map(|assessed| release(&assessed.pod.meta));
        let retry = Cell::new(None);
        let is_due = |action: &Action<_>| {
            let waits = action.waits_until(&self.world.refusals, now);
            retry.set(retry.get().into_iter().chain(waits).min());
            waits.is_none()
        };
        let mut open = deleted.chain(released).filter(is_due).peekable();
        if open.peek().is_none() {
            return (Vec::new(), quiet.into_iter().chain(retry.get()).min());
        }
        let paced = clocks.tidied.and_then(|last| last.checked_add(TIDY_PACE).ok());
        if let Some(until) = paced.filter(|until| *until > now) {
            return (Vec::new(), Some(until));
        }
        let tidied = open.by_ref().take(MOST_TIDIED).collect();
        let next = open.peek().and_then(|_| now.checked_add(TIDY_PACE).ok());
        (tidied, [next, quiet, retry.get()].into_iter().flatten().min())
    }
}
