//! Rollouts and runs: when they begin, how long a run has worked, and what ends it.
//!
//! A rollout is about one template and retryToken; failures and limits are counted for it. A run has a start and a
//! deadline; suspend and resume begin another run of the same rollout. Both are known by number: a clock that is wrong
//! changes neither.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions;
use quintet_runtime::model::digest;
use strum::VariantArray as _;

use crate::api::{DaemonJob, DaemonJobStatus, RerunOn, Rollout};
use crate::history::{ROLLOUT_ANNOTATION, RUN_ANNOTATION, hash_of};
use crate::ledger::Outcome;
use crate::node_state::{Cause, is_done, reruns_on};
use crate::observe::World;
use crate::survey::Survey;

/// What pods and records are compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The hash of the template.
    pub hash: Arc<str>,
    /// The number of the rollout.
    pub rollout: u64,
    /// The number of the run.
    pub run: u64,
}

/// Why the run ends before every node is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Ending {
    /// It has worked for activeDeadlineSeconds.
    Deadline,
    /// Under FailFast, more nodes have failed than maxFailedNodes allows.
    FailFast,
    /// A rule of podFailurePolicy says FailJob.
    FailJob,
}

impl Ending {
    /// The reason of the condition Failed.
    pub fn reason(self) -> &'static str {
        Cause::from(self).word()
    }

    /// A digest of the limits whose change lets the run go on.
    pub fn limits(self, job: &DaemonJob) -> String {
        let spec = &job.spec;
        let limits = match self {
            Self::Deadline => format!("{:?}", spec.active_deadline_seconds),
            Self::FailFast => {
                let policy = spec.failure_policy.as_ref();
                let (type_, max) =
                    (policy.map(|policy| policy.type_), policy.map(|policy| &policy.max_failed_nodes));
                format!("{type_:?} {max:?} {:?} {:?}", spec.backoff_limit, spec.disruption_limit)
            }
            Self::FailJob => String::new(),
        };
        digest::short(&[&limits], 8)
    }
}

/// What the last status tells of the rollout, where it is the current one.
pub fn rollout_before<'j>(job: &'j DaemonJob, key: &Key) -> Option<&'j Rollout> {
    let rollout = job.status.as_ref()?.rollout.as_ref()?;
    (number(rollout.number) == key.rollout).then_some(rollout)
}

fn number(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The current key, before it is known whether a run begins.
pub fn current_key(job: &DaemonJob, world: &World) -> Key {
    let hash: Arc<str> = job.spec.template.hash().into();
    let before = job.status.as_ref();
    let told = before.and_then(|before| before.rollout.as_ref());
    let run = before.and_then(|before| before.run).map(number);
    if let Some(rollout) = told {
        let is_same_template = before.and_then(|before| before.template_hash.as_deref()) == Some(&*hash);
        let is_same_token = job.spec.retry_token.is_none() || job.spec.retry_token == rollout.retry_token;
        let changes = !(is_same_template && is_same_token);
        let rollout = number(rollout.number) + u64::from(changes);
        return Key { hash, rollout, run: run.unwrap_or_default() };
    }
    // The status is lost, or there was none: pods and ledger know the numbers that were used.
    let (mut last, mut last_run) = ((0, false), run.unwrap_or_default());
    let lines = world.shards().flat_map(|shard| shard.entries.values().flatten());
    for line in lines {
        last = last.max((line.rollout, *line.hash == *hash));
        last_run = last_run.max(line.run);
    }
    for pod in &world.pods {
        let told = |annotation| pod.meta.annotations.get(annotation)?.parse().ok();
        last = last.max((told(ROLLOUT_ANNOTATION).unwrap_or_default(), hash_of(pod, &hash) == &*hash));
        last_run = last_run.max(told(RUN_ANNOTATION).unwrap_or_default());
    }
    let goes_on = last.1 && last.0 > 0 && job.spec.retry_token.is_none();
    Key { hash, rollout: last.0 + u64::from(!goes_on), run: last_run }
}

/// Whether a run begins now: at creation, at resume, at a change of the template; and, if the last run was over, for a
/// Node that was created since it began, or that was rebooted or installed again where rerunOn names that.
pub fn begins(job: &DaemonJob, survey: &Survey<'_>) -> bool {
    if job.spec.suspend == Some(true) {
        return false;
    }
    let Some(before) = &job.status else { return true };
    let Some(start) = &before.start_time else { return true };
    // The status of the tutorial's operator knows no template: its run began elsewhere.
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
            // A done node that is suspect, or whose name another pod keeps, waits; it does not run again.
            let is_changed = has_succeeded
                && history.is_some_and(|history| !is_done(history, &survey.key.hash, job, surveyed.node));
            is_new || is_changed
        })
    };
    is_other_template || survey.ending.is_none() && was_finished(job) && has_new_work()
}

/// Whether the last status says that every node was finished.
pub fn was_finished(job: &DaemonJob) -> bool {
    job.status.as_ref().is_some_and(|before| {
        conditions::is_true(&before.conditions, "Complete")
            || before.conditions.iter().any(|one| one.type_ == "Failed" && one.reason == "NodesFailed")
    })
}

/// The start of a run that begins now: not before the creation of a Node that is there, whatever the clocks say.
pub fn start(world: &World, now: Timestamp) -> Timestamp {
    let created = world.nodes.iter().filter_map(|node| node.meta.created).max();
    whole_seconds(created.map_or(now, |created| created.max(now)))
}

/// Why the run has ended, as the status tells; it holds for the rollout until a limit changes.
pub fn ended_before(job: &DaemonJob, key: &Key) -> Option<Ending> {
    let rollout = rollout_before(job, key)?;
    let ending =
        Ending::VARIANTS.iter().copied().find(|one| Some(one.reason()) == rollout.ended.as_deref())?;
    let holds = rollout.ended_by.as_deref() == Some(&ending.limits(job));
    // The next run has time of its own.
    let is_next = job.spec.suspend == Some(true) && ending == Ending::Deadline;
    (holds && !is_next).then_some(ending)
}

/// Why the run ends now, or has ended.
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

/// When the run has worked for too long, if it works on without a hold.
pub fn deadline(job: &DaemonJob, survey: &Survey<'_>, now: Timestamp) -> Option<Timestamp> {
    let limit = job.spec.active_deadline_seconds?;
    let before = job.status.as_ref().filter(|_| !survey.begins && !survey.changes)?;
    let since = before.working_since.as_ref().map_or(now, |since| since.0.max(survey.led_since));
    let left = limit.saturating_sub(before.worked_seconds.unwrap_or_default());
    // A start in the future was written by a manager whose clock is ahead.
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
    // Another manager's clock may differ, and the user may have held the run while no manager looked.
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
