//! Decides when the manager removes the finalizer of a pod, by which the ledger holds it until it has a line.

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::PODS;

use crate::FINALIZER;
use crate::history::Judged;
use crate::labels::NODE_UID_LABEL;
use crate::observe::World;
use crate::outcome::Fate;
use crate::plan::Actions;
use crate::record::Record;
use crate::removal::delete;
use crate::survey::Survey;

/// During a run, recorded pods are released after no pod was created or ended for this long.
const QUIET: SignedDuration = SignedDuration::from_mins(1);
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
    let operations = meta.without_finalizer(FINALIZER)?;
    Some(Action::Patch {
        resource: PODS,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        operations,
    })
}

impl Record<'_> {
    /// Whether the finalizer of a terminating pod may be removed.
    pub(crate) fn release(&self, world: &World, survey: &Survey<'_>, judged: &Judged<'_>) -> Option<Release> {
        match (&judged.fate, survey.histories.home_uid(judged)) {
            (Fate::Ended { .. }, _) if survey.is_line_frozen(judged) => {
                world.refusals.namespace_terminating.then_some(Release::Now)
            }
            (Fate::Open, _) => None,
            (Fate::NeverRan, _) => Some(Release::Now),
            (Fate::Ended { .. }, Some(home)) => self.when_recorded(home, !judged.recorded, world),
            // The outcome depends on the rollout, so the status must have the new rollout first.
            (Fate::Ended { .. }, None) if survey.changes => None,
            (Fate::Ended { .. }, None) => {
                let uid = judged.pod.label(NODE_UID_LABEL).unwrap_or_default();
                let owed = survey.histories.gone.get(uid).is_some_and(|gone| gone.owed.is_some());
                self.when_recorded(uid, owed && !judged.recorded, world)
            }
        }
    }

    fn when_recorded(&self, uid: &str, is_owed: bool, world: &World) -> Option<Release> {
        if !is_owed || world.refusals.namespace_terminating {
            return Some(Release::Now);
        }
        self.writes_shard_of(uid).then_some(Release::Recorded)
    }

    /// Deletes recorded pods that are not needed. After the end of the run, or after a quiet time, also
    /// releases the other recorded pods, so that a drain or the deletion of a namespace needs no manager. The
    /// number of pods is bounded. The second value is when the next ones follow.
    pub(crate) fn tidied(
        &self,
        world: &World,
        survey: &Survey<'_>,
        unneeded: &[&Judged<'_>],
        now: Timestamp,
    ) -> (Actions, Option<Timestamp>) {
        let rests = |judged: &Judged<'_>| {
            let uid = survey.histories.home_uid(judged).or_else(|| judged.pod.label(NODE_UID_LABEL));
            judged.recorded
                && !survey.is_line_frozen(judged)
                && uid.is_some_and(|uid| self.keeps_shard_of(uid))
        };
        let has_ended = survey.ending.is_some() || survey.is_finished();
        let quiet = world.clocks.busy().and_then(|busy| busy.checked_add(QUIET).ok());
        let quiet = quiet.filter(|until| !has_ended && *until > now);
        let is_held = |judged: &&Judged<'_>| {
            let has_ended = matches!(judged.fate, Fate::Ended { .. }) && !judged.is_deleted;
            has_ended && rests(judged) && judged.pod.meta.has_finalizer(FINALIZER)
        };
        let gone: HashSet<&str> = unneeded.iter().map(|judged| &*judged.pod.meta.uid).collect();
        let deleted =
            unneeded.iter().copied().filter(|judged| rests(judged)).map(|judged| delete(judged.pod, false));
        let held = survey.pods().iter().filter(is_held);
        let held = held.filter(|judged| !gone.contains(&*judged.pod.meta.uid));
        let mut released = held.filter_map(|judged| release(&judged.pod.meta)).peekable();
        let quiet = quiet.filter(|_| released.peek().is_some());
        let mut open = deleted.chain(released.filter(|_| quiet.is_none())).peekable();
        if open.peek().is_none() {
            return (Vec::new(), quiet);
        }
        let paced = world.clocks.tidied().and_then(|last| last.checked_add(TIDY_PACE).ok());
        if let Some(until) = paced.filter(|until| *until > now) {
            return (Vec::new(), Some(until));
        }
        let tidied = open.by_ref().take(MOST_TIDIED).collect();
        let next = open.peek().and_then(|_| now.checked_add(TIDY_PACE).ok());
        (tidied, next.or(quiet))
    }
}
