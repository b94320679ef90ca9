//! `ttlSecondsAfterFinished`: when ended pods expire. [`crate::removal`] deletes them.

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::conditions;

use crate::api::DaemonJob;
use crate::history::AssessedPod;
use crate::node_state::is_done;
use crate::outcome::PodOutcome;
use crate::survey::Survey;

/// When a pod ended, by the manager's clock if the ledger has the time.
pub(crate) fn ended_at(survey: &Survey<'_>, assessed: &AssessedPod<'_>) -> Option<Timestamp> {
    let PodOutcome::Ended { at, .. } = assessed.fate else { return None };
    let line = survey.histories.of_target(assessed).and_then(|history| history.recorded);
    Some(line.filter(|line| line.pod == assessed.number).map_or(at, |line| line.ended))
}

/// When a pod of a done node is deleted.
pub(crate) fn pod_expiry(
    job: &DaemonJob,
    survey: &Survey<'_>,
    assessed: &AssessedPod<'_>,
) -> Option<Timestamp> {
    let ttl = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?));
    let history = survey.histories.of_target(assessed)?;
    let is_done = is_done(history, &survey.key, job, history.node);
    ended_at(survey, assessed)?.checked_add(ttl).ok().filter(|_| is_done)
}

/// When all pods of a finished run are deleted. The status must have its end first.
pub(crate) fn expiry(job: &DaemonJob, survey: &Survey<'_>) -> Option<Timestamp> {
    let ttl = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?));
    let before = job.status.as_ref()?;
    let is_over =
        !survey.begins && job.spec.suspend != Some(true) && (survey.is_finished() || survey.ending.is_some());
    let is_true = |type_| conditions::find_true(&before.conditions, type_);
    let complete = is_true("Complete").and(before.completion_time.as_ref());
    let failed = is_true("Failed").map(|failed| &failed.last_transition_time);
    let at = complete.or(failed).filter(|_| is_over)?;
    at.0.checked_add(ttl).ok()
}
