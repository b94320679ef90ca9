//! The invariants of a schedule. They use the specs, the statuses at the server and the events, and never the rule of
//! the plan. The simulated schedules have a due time every minute or every two minutes.

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus};
use quintet_daemonjob::labels::{DUE_TIME_ANNOTATION, HASH_LABEL, NODE_UID_LABEL};
use quintet_daemonjob::waves::paused;
use quintet_runtime::model::core_types::Pod;

use crate::manager::Pass;
use crate::server::Server;
use crate::truth::{Judgement, annotation, label};

/// The schedules, with the seconds between their due times.
pub const SCHEDULES: [(&str, i64); 2] = [("* * * * *", 60), ("*/2 * * * *", 120)];

fn wrong(what: &str) -> Judgement {
    Err(format!("due times: {what}"))
}

/// The due time of the rollout in a status.
pub fn due_time(status: Option<&DaemonJobStatus>) -> Option<Timestamp> {
    Some(status?.rollout.as_ref()?.due_time.as_ref()?.0)
}

/// The template and the due time with which a success is compared.
pub struct Target {
    pub hash: String,
    pub due: String,
}

impl Target {
    /// With a schedule, the spec's template has no effect before the next due time.
    pub fn of(job: &DaemonJob, status: &DaemonJobStatus) -> Self {
        let hash = status.template_hash.clone().filter(|_| job.spec.schedule.is_some());
        Self {
            hash: hash.unwrap_or_else(|| job.spec.template.hash()),
            due: due_time(Some(status)).map(|due| due.to_string()).unwrap_or_default(),
        }
    }
}

/// A run begins only at a due time that is later than the last one, than the change of the schedule and than the end of
/// a suspend, within startingDeadlineSeconds, and not while the DaemonJob is suspended or paused.
pub fn are_in_order(pass: &Pass, status: &DaemonJobStatus) -> Judgement {
    let (job, before) = (&pass.job, pass.job.status.as_ref());
    let Some(due) = due_time(Some(status)) else { return Ok(()) };
    let Some(schedule) = &job.spec.schedule else { return wrong("a due time without a schedule") };
    if due_time(before) == Some(due) {
        return Ok(());
    }
    let gap = SCHEDULES.iter().find(|(known, _)| known == schedule).map_or(0, |(_, gap)| *gap);
    if gap == 0 || due.as_second() % gap != 0 || due.subsec_nanosecond() != 0 {
        return wrong(&format!("{due} is not a due time of {schedule:?}"));
    }
    // A lost status loses its last due time.
    let schedule_before = before.and_then(|before| before.schedule.as_ref());
    let is_same = schedule_before.is_some_and(|before| before.schedule == *schedule);
    let since = schedule_before.and_then(|before| before.since.as_ref()).map(|since| since.0);
    let last = schedule_before.and_then(|before| before.last_due_time.as_ref()).map(|last| last.0);
    if !is_same || since.is_none_or(|since| due <= since) || last.is_some_and(|last| due <= last) {
        return wrong(&format!("{due} begins, but the status before had {schedule_before:?}"));
    }
    let deadline = job.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let late = pass.now.duration_since(due);
    let second = SignedDuration::from_secs(1);
    if late < SignedDuration::ZERO || deadline.is_some_and(|deadline| late >= deadline + second) {
        return wrong(&format!("{due} begins at {}", pass.now));
    }
    // Only the last of several due times begins.
    if late >= SignedDuration::from_secs(gap) {
        return wrong(&format!("{due} begins at {}, after a later due time", pass.now));
    }
    if job.spec.suspend == Some(true) || job.spec.paused == Some(true) || paused(job).is_some() {
        return wrong(&format!("{due} begins while the DaemonJob is suspended or paused"));
    }
    Ok(())
}

/// A pod is created for the template and the due time of the stored status, and for a node that existed when the run
/// began. After the end of the run, only nodes with an earlier pod of this due time get another one. `is_odd`: the
/// node's record may be lost.
pub fn may_make(server: &Server, pass: &Pass, pod: &Pod, is_odd: bool) -> Judgement {
    let (job, due) = (&pass.job, annotation(pod, DUE_TIME_ANNOTATION));
    let (name, status) = (&pod.meta.name, job.status.as_ref());
    if job.spec.schedule.is_none() {
        return if due.is_empty() { Ok(()) } else { wrong(&format!("{name} has {due} without a schedule")) };
    }
    if due_time(status).map(|due| due.to_string()).as_deref() != Some(due) {
        return wrong(&format!("{name} has {due:?}, and the status {:?}", due_time(status)));
    }
    let hash = status.and_then(|status| status.template_hash.as_deref());
    if hash != Some(label(pod, HASH_LABEL)) || hash != Some(&*job.spec.template.hash()) {
        return wrong(&format!("{name} is created, but the template has changed since the due time"));
    }
    let is_over = status.and_then(|status| status.rollout.as_ref()?.over) == Some(true);
    let is_earlier = |other: &Pod| {
        other.meta.uid != pod.meta.uid
            && label(other, NODE_UID_LABEL) == label(pod, NODE_UID_LABEL)
            && annotation(other, DUE_TIME_ANNOTATION) == due
    };
    let mut earlier = server.pods.log.iter().filter_map(|change| change.object.as_ref());
    if is_over && !is_odd && !earlier.any(|other| is_earlier(other)) {
        return wrong(&format!("{name} is created after the run was over"));
    }
    let start = status.and_then(|status| status.start_time.as_ref()).map(|start| start.0);
    let mut nodes = pass.world.nodes.iter();
    let node = nodes.find(|node| &*node.meta.uid == label(pod, NODE_UID_LABEL));
    let is_late = node.is_some_and(|node| node.meta.created > start);
    if is_late { wrong(&format!("{name} is created for a node that joined after {start:?}")) } else { Ok(()) }
}
