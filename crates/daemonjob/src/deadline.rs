//! `activeDeadlineSeconds`: how long a run has worked, and when it has worked for too long.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_runtime::model::clock::whole_seconds;

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::survey::Survey;

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
    if survey.works() {
        return (Some(worked), Some(Time(since.unwrap_or(now))));
    }
    let more = since.map_or(0, |since| now.duration_since(since).as_secs().max(0));
    (Some(worked.saturating_add(more)), None)
}
