//! Decides when a run begins and ends, and counts how long it has worked. [`crate::rollout`] has its numbers.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_runtime::model::clock::whole_seconds;

use crate::api::{DaemonJob, DaemonJobStatus, RerunOn};
use crate::ledger::Outcome;
use crate::node_state::{is_done, reruns_on};
use crate::observe::World;
use crate::rollout::{Ending, ended_before, was_finished};
use crate::survey::Survey;

/// Whether a run begins now: at creation, at resume or at a change of the template. After a finished run, a
/// Node created since then begins one, and so does a reboot or reinstallation that rerunOn names.
pub fn begins(job: &DaemonJob, survey: &Survey<'_>) -> bool {
    if job.spec.suspend == Some(true) {
        return false;
    }
    let Some(before) = &job.status else { return true };
    let Some(start) = &before.start_time else { return true };
    // The status of the tutorial's operator has no template hash.
    let is_other_template = match before.template_hash.as_deref() {
        Some(hash) => *hash != *survey.key.hash && reruns_on(job, RerunOn::TemplateChange),
        None => true,
    };
    let has_new_work = || {
        survey.nodes.iter().filter(|surveyed| surveyed.state.is_unfinished()).any(|surveyed| {
            let is_new = surveyed.node.meta.created.is_some_and(|created| created > start.0);
            let history = survey.histories.of(&surveyed.node.meta.uid);
            let latest = history.and_then(|history| history.latest.as_ref());
            let has_succeeded = latest.is_some_and(|latest| {
                latest.has_succeeded()
                    && latest.attempt.as_ref().is_some_and(|attempt| attempt.hash == survey.key.hash)
            });
            // A done node that is suspect, or whose name another pod occupies, waits and does not run again.
            let is_changed = has_succeeded
                && history.is_some_and(|history| !is_done(history, &survey.key.hash, job, surveyed.node));
            is_new || is_changed
        })
    };
    is_other_template || survey.ending.is_none() && was_finished(job) && has_new_work()
}

/// The start of a run that begins now. It is not before the creation of an existing Node.
pub fn start(world: &World, now: Timestamp) -> Timestamp {
    let created = world.nodes.iter().filter_map(|node| node.meta.created).max();
    whole_seconds(created.map_or(now, |created| created.max(now)))
}

/// The reason why the run ends now, or has ended.
pub fn ending(job: &DaemonJob, survey: &Survey<'_>, now: Timestamp) -> Option<Ending> {
    if let Some(ending) = ended_before(job, &survey.key) {
        return Some(ending);
    }
    let fails_job = survey.histories.nodes.iter().any(|history| {
        let latest = history.latest.as_ref();
        latest.is_some_and(|latest| {
            latest.outcome == Outcome::FailedJob && latest.rollout == survey.key.rollout
        })
    });
    let was_failed = survey.histories.gone.values().any(|gone| {
        let line = gone.owed.as_ref().or(gone.recorded);
        line.is_some_and(|line| line.outcome == Outcome::FailedJob && line.rollout == survey.key.rollout)
    });
    if fails_job || was_failed {
        return Some(Ending::FailJob);
    }
    if survey.failures.ends_run() {
        return Some(Ending::FailFast);
    }
    let is_over = !survey.is_finished() && deadline(job, survey, now).is_some_and(|deadline| deadline <= now);
    is_over.then_some(Ending::Deadline)
}

/// When the run will have worked for too long, if nothing holds it until then.
pub fn deadline(job: &DaemonJob, survey: &Survey<'_>, now: Timestamp) -> Option<Timestamp> {
    let limit = job.spec.active_deadline_seconds?;
    let before = job.status.as_ref().filter(|_| !survey.begins && !survey.changes)?;
    let since = before.working_since.as_ref().map_or(now, |since| since.0.max(survey.led_since));
    let left = limit.saturating_sub(before.worked_seconds.unwrap_or_default());
    // A start in the future comes from a manager whose clock was ahead.
    since.min(now).checked_add(SignedDuration::from_secs(left)).ok()
}

/// `workedSeconds` and `workingSince` of the next status.
pub fn worked(
    before: &DaemonJobStatus,
    survey: &Survey<'_>,
    is_suspended: bool,
    now: Timestamp,
) -> (Option<i64>, Option<Time>) {
    if is_suspended {
        return (None, None);
    }
    let now = whole_seconds(now);
    let starts_again = survey.begins || survey.changes;
    let since = before.working_since.as_ref().filter(|_| !starts_again);
    // The time before this term does not count: clocks may differ, and the user may have held the run.
    let since = since.map(|since| since.0.max(survey.led_since));
    let worked = before.worked_seconds.filter(|_| !starts_again).unwrap_or_default();
    match (since, survey.works()) {
        (since, true) => (Some(worked), Some(Time(since.unwrap_or(now)))),
        (Some(since), false) => {
            (Some(worked.saturating_add(now.duration_since(since).as_secs().max(0))), None)
        }
        (None, false) => (Some(worked), None),
    }
}
