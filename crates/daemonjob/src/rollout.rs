//! Rollouts and runs by number, and their state in the last status.
//!
//! Failures and limits count for a rollout, which has one template, due time and retryToken. Suspend and resume
//! begin another run of it. Numbers, not times, identify both, so a wrong clock does not matter.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::model::{conditions, digest};

use crate::api::{DaemonJob, Rollout};
use crate::labels::{ROLLOUT_ANNOTATION, RUN_ANNOTATION, due_time_of, hash_of, numbered};
use crate::observe::World;

/// The hash and the numbers with which pods and records are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The hash of the template.
    pub hash: Arc<str>,
    /// The number of the rollout.
    pub rollout: u64,
    /// The number of the run.
    pub run: u64,
    /// With a schedule, the due time that began the rollout.
    pub due: Option<Timestamp>,
}

/// The reason why a run ends before every node is finished. The status has the names of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum Ending {
    /// It has worked for activeDeadlineSeconds.
    DeadlineExceeded,
    /// With FailFast, more nodes have failed than maxFailedNodes allows.
    MaxFailedNodesExceeded,
    /// A rule of podFailurePolicy has the action FailJob.
    PodFailurePolicy,
}

impl Ending {
    /// The reason of the condition Failed.
    pub fn reason(self) -> &'static str {
        self.into()
    }

    /// A digest of the limits. A change of these limits lets the run continue.
    pub fn limits(self, job: &DaemonJob) -> String {
        let spec = &job.spec;
        let limits = match self {
            Self::DeadlineExceeded => format!("{:?}", spec.active_deadline_seconds),
            Self::MaxFailedNodesExceeded => {
                let policy = spec.failure_policy.as_ref();
                let (type_, max) =
                    (policy.map(|policy| policy.type_), policy.map(|policy| &policy.max_failed_nodes));
                format!("{type_:?} {max:?} {:?} {:?}", spec.backoff_limit, spec.disruption_limit)
            }
            Self::PodFailurePolicy => String::new(),
        };
        digest::short(&[&limits], 8)
    }
}

/// The rollout of the last status, if it is the current one.
pub fn rollout_before<'j>(job: &'j DaemonJob, key: &Key) -> Option<&'j Rollout> {
    let rollout = job.status.as_ref()?.rollout.as_ref()?;
    (number(rollout.number) == key.rollout).then_some(rollout)
}

fn number(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The hash of the template with which pods are compared. With a schedule, a changed template has no effect before
/// the next due time.
pub fn hash_in_force(job: &DaemonJob) -> Arc<str> {
    let reported =
        job.status.as_ref().filter(|before| job.spec.schedule.is_some() && before.rollout.is_some());
    let reported = reported.and_then(|before| before.template_hash.as_deref());
    reported.map_or_else(|| job.spec.template.hash().into(), Arc::from)
}

/// The current key, apart from the number of a run that begins now and from a due time that has come.
pub fn current_key(job: &DaemonJob, world: &World) -> Key {
    let hash = hash_in_force(job);
    let is_scheduled = job.spec.schedule.is_some();
    let before = job.status.as_ref();
    let reported = before.and_then(|before| before.rollout.as_ref());
    let run = before.and_then(|before| before.run).map(number);
    if let Some(rollout) = reported {
        let is_same_template = before.and_then(|before| before.template_hash.as_deref()) == Some(&*hash);
        let is_same_token = job.spec.retry_token.is_none() || job.spec.retry_token == rollout.retry_token;
        let changes = !(is_same_template && is_same_token);
        let due = rollout.due_time.as_ref().filter(|_| is_scheduled).map(|due| due.0);
        let rollout = number(rollout.number) + u64::from(changes);
        return Key { hash, rollout, run: run.unwrap_or_default(), due };
    }
    // The status is lost or new. Pods and ledger have the numbers that were used.
    let (mut last, mut last_run) = ((0, false, None), run.unwrap_or_default());
    let lines = world.shards().flat_map(|shard| shard.entries.values().flatten());
    for line in lines {
        let attempt = line.attempt.as_ref().filter(|attempt| attempt.rollout == line.rollout);
        let due = attempt.and_then(|attempt| attempt.due);
        last = last.max((line.rollout, *line.hash == *hash, due));
        last_run = last_run.max(line.run);
    }
    for pod in &world.pods {
        let rollout = numbered(pod, ROLLOUT_ANNOTATION).unwrap_or_default();
        last = last.max((rollout, hash_of(pod, &hash) == &*hash, due_time_of(pod)));
        last_run = last_run.max(numbered(pod, RUN_ANNOTATION).unwrap_or_default());
    }
    let (rollout, is_same_template, due) = last;
    let continues = is_same_template && rollout > 0 && job.spec.retry_token.is_none();
    let due = due.filter(|_| is_scheduled && continues);
    Key { hash, rollout: rollout + u64::from(!continues), run: last_run, due }
}

/// Whether every node was finished in the last status.
pub fn was_finished(job: &DaemonJob) -> bool {
    job.status.as_ref().is_some_and(|before| {
        conditions::is_true(&before.conditions, "Complete")
            || before.conditions.iter().any(|one| one.type_ == "Failed" && one.reason == "NodesFailed")
    })
}

/// Whether the run of the current due time was over in the last status. A retry of failed nodes does not change that.
pub fn was_over(job: &DaemonJob, key: &Key) -> bool {
    let rollout = job.status.as_ref().and_then(|before| before.rollout.as_ref());
    let is_its = |rollout: &Rollout| rollout.due_time.as_ref().map(|due| due.0) == key.due;
    key.due.is_some() && rollout.is_some_and(|rollout| rollout.over == Some(true) && is_its(rollout))
}

/// The reason in the status why the run ended. It applies to the rollout until a limit changes.
pub fn ended_before(job: &DaemonJob, key: &Key) -> Option<Ending> {
    let rollout = rollout_before(job, key)?;
    let ending: Ending = rollout.ended.as_deref()?.parse().ok()?;
    let holds = rollout.ended_by.as_deref() == Some(&ending.limits(job));
    // The next run has a new deadline.
    let is_next = job.spec.suspend == Some(true) && ending == Ending::DeadlineExceeded;
    (holds && !is_next).then_some(ending)
}
