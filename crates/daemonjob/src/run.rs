//! Decides when a run begins and ends. [`crate::rollout`] has its numbers.

use jiff::Timestamp;
use quintet_runtime::model::clock::whole_seconds;

use crate::api::{DaemonJob, RerunOn};
use crate::deadline::deadline;
use crate::ledger::{Entry, Outcome};
use crate::node_state::{is_done, reruns_on};
use crate::observe::World;
use crate::rollout::{Ending, ended_before, was_finished};
use crate::survey::Survey;

/// Whether a run begins now: at creation, at resume or at a change of the template. After a finished run, a
/// Node created since then begins one, and so does a reboot or reinstallation that rerunOn names. With a schedule,
/// only a due time begins a run, and a resume after one.
pub fn begins(job: &DaemonJob, survey: &Survey<'_>) -> bool {
    if job.spec.suspend == Some(true) {
        return false;
    }
    if let Some(agenda) = &survey.agenda {
        let has_start = job.status.as_ref().is_some_and(|before| before.start_time.is_some());
        return agenda.begins.is_some() || survey.key.due.is_some() && !has_start;
    }
    let Some(before) = &job.status else { return true };
    let Some(start) = &before.start_time else { return true };
    // The status of the tutorial's operator has no template hash.
    let is_other = |hash: &str| *hash != *survey.key.hash && reruns_on(job, RerunOn::TemplateChange);
    let is_other_template = before.template_hash.as_deref().is_none_or(is_other);
    let has_new_work = || {
        survey.nodes.iter().filter(|selected| selected.state.is_unfinished()).any(|selected| {
            let is_new = selected.node.meta.created.is_some_and(|created| created > start.0);
            let history = &survey.histories.nodes[selected.at];
            let has_succeeded = history.latest.as_ref().is_some_and(|latest| {
                latest.has_succeeded()
                    && latest.attempt.as_ref().is_some_and(|attempt| attempt.hash == survey.key.hash)
            });
            // A done node that is suspect, or whose name another pod occupies, waits and does not run again.
            let is_changed = has_succeeded && !is_done(history, &survey.key, job, selected.node);
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
    let of_nodes = survey.histories.nodes.iter().filter_map(|history| history.latest.as_deref());
    let of_gone = survey.histories.gone.values().filter_map(|gone| gone.owed.as_ref().or(gone.recorded));
    let fails_job = |line: &Entry| line.outcome == Outcome::FailedJob && line.rollout == survey.key.rollout;
    if of_nodes.chain(of_gone).any(fails_job) {
        return Some(Ending::PodFailurePolicy);
    }
    if survey.failures.ends_run() {
        return Some(Ending::MaxFailedNodesExceeded);
    }
    let is_over = !survey.is_finished() && deadline(job, survey, now).is_some_and(|deadline| deadline <= now);
    is_over.then_some(Ending::DeadlineExceeded)
}
