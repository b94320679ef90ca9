//! Rollouts and runs by number, and what the last status tells of them.
//!
//! A rollout is about one template and retryToken; failures and limits are counted for it. Suspend and resume begin another run
//! of the same rollout. Both are known by number: a clock that is wrong changes neither.

use std::sync::Arc;

use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::{conditions, digest};

use crate::api::{DaemonJob, Rollout};
use crate::labels::{ROLLOUT_ANNOTATION, RUN_ANNOTATION, hash_of, numbered};
use crate::observe::World;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum Ending {
    /// It has worked for activeDeadlineSeconds.
    #[strum(serialize = "DeadlineExceeded")]
    Deadline,
    /// Under FailFast, more nodes have failed than maxFailedNodes allows.
    #[strum(serialize = "MaxFailedNodesExceeded")]
    FailFast,
    /// A rule of podFailurePolicy says FailJob.
    #[strum(serialize = "PodFailurePolicy")]
    FailJob,
}

impl Ending {
    /// The reason of the condition Failed.
    pub fn reason(self) -> &'static str {
        self.into()
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

/// Whether the last status says that every node was finished.
pub fn was_finished(job: &DaemonJob) -> bool {
    job.status.as_ref().is_some_and(|before| {
        conditions::is_true(&before.conditions, "Complete")
            || before.conditions.iter().any(|one| one.type_ == "Failed" && one.reason == "NodesFailed")
    })
}

/// Why the run has ended, as the status tells; it holds for the rollout until a limit changes.
pub fn ended_before(job: &DaemonJob, key: &Key) -> Option<Ending> {
    let rollout = rollout_before(job, key)?;
    let ending: Ending = rollout.ended.as_deref()?.parse().ok()?;
    let holds = rollout.ended_by.as_deref() == Some(&ending.limits(job));
    // The next run has time of its own.
    let is_next = job.spec.suspend == Some(true) && ending == Ending::Deadline;
    (holds && !is_next).then_some(ending)
}

/// The rollout of a pod. A pod that has lost the annotation is of the current rollout if it has the current template.
pub fn rollout_of(pod: &Pod, key: &Key) -> u64 {
    let current = || if hash_of(pod, &key.hash) == &*key.hash { key.rollout } else { 0 };
    numbered(pod, ROLLOUT_ANNOTATION).unwrap_or_else(current)
}
