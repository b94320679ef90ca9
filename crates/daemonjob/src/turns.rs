//! Which nodes get a pod now: the places of `parallelism`, and what holds them.
//!
//! A place is held by a pod that has not ended, by a node that is not Ready since an attempt, and, unless the failure
//! policy is Continue, by a node that waits for its retry. Holders go first, the longest first.

use std::fmt::Write as _;

use foldhash::{HashSet, HashSetExt as _};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::int_or_percent::{Round, of_whole};
use quintet_runtime::model::plan::MOST_CREATIONS;

use crate::api::{DaemonJob, OutdatedPods};
use crate::history::Judged;
use crate::node_state::{Cause, State, because, counted, occupants};
use crate::survey::Survey;

/// The number of pods that may run at one time; None if nothing limits them.
pub fn parallelism(job: &DaemonJob, desired: usize) -> Option<usize> {
    let amount = job.spec.parallelism.as_ref()?;
    // A percentage of few nodes, or of none yet, allows one pod all the same.
    let least = usize::from(matches!(amount, IntOrString::String(_)));
    of_whole(amount, desired, Round::Up).map(|limit| limit.max(least))
}

/// By the place of a node in the survey's histories: whether a pod for it holds a place.
fn occupied(survey: &Survey<'_>) -> Vec<bool> {
    let mut occupied = vec![false; survey.histories.nodes.len()];
    let holders = survey.pods().iter().filter(|judged| survey.holds_place(judged));
    for at in holders.filter_map(|judged| judged.on_at) {
        occupied[at] = true;
    }
    occupied
}

/// The places, as they are held.
struct Places {
    limit: usize,
    /// Pods that have not ended.
    running: usize,
    /// Running pods, and nodes that hold a place without one.
    held: usize,
    made: usize,
}

impl Places {
    /// Whether a node gets its pod now. A holder has a place already.
    fn take(&mut self, is_holder: bool) -> bool {
        let is_free = self.running < self.limit && (is_holder || self.held < self.limit);
        if !is_free || self.made >= MOST_CREATIONS {
            return false;
        }
        self.running += 1;
        self.held += usize::from(!is_holder);
        self.made += 1;
        true
    }
}

/// Gives the nodes their turns; none while something holds them all.
pub(crate) fn take_turns(survey: &mut Survey<'_>, job: &DaemonJob) {
    let limit = parallelism(job, survey.desired());
    let running: Vec<&Judged<'_>> =
        survey.pods().iter().filter(|judged| survey.holds_place(judged)).collect();
    let occupied = occupied(survey);
    let holders = survey.nodes.iter().filter(|one| one.holds_place.is_some());
    let holders = holders.filter(|one| !occupied[one.at]).count();
    let mut places = Places {
        limit: limit.unwrap_or(usize::MAX),
        running: running.len(),
        held: running.len() + holders + survey.suspects_elsewhere.len(),
        made: 0,
    };
    if let Some(hold) = survey.hold.clone() {
        for surveyed in survey.nodes.iter_mut().filter(|one| matches!(one.state, State::Due(_))) {
            surveyed.state = State::Waiting(hold.clone());
        }
    } else {
        give_turns(survey, &mut places);
        survey.replaced = replaced(survey, job, &places);
    }
    tell_places(survey, limit);
}

fn give_turns(survey: &mut Survey<'_>, places: &mut Places) {
    let mut due: Vec<usize> =
        (0..survey.nodes.len()).filter(|at| matches!(survey.nodes[*at].state, State::Due(_))).collect();
    if due.is_empty() {
        return;
    }
    // The sort is stable: nodes without a place stay in their order.
    due.sort_by_key(|at| {
        let since = survey.nodes[*at].holds_place;
        (since.is_none(), since)
    });
    let told = survey.elsewhere_message();
    for at in due {
        let surveyed = &mut survey.nodes[at];
        if places.take(surveyed.holds_place.is_some()) {
            continue;
        }
        let Places { limit, running, held, made } = *places;
        let message = if made >= MOST_CREATIONS {
            format!("this pass creates {MOST_CREATIONS} pods; this one follows in the next")
        } else if held > running {
            let pods = counted(running as u64, "pod");
            let nodes = counted((held - running) as u64, "node");
            format!("parallelism allows {limit}; running: {pods}, places held by {nodes} without a pod{told}")
        } else {
            format!("parallelism allows {limit}; running: {}{told}", counted(running as u64, "pod"))
        };
        surveyed.state = State::Waiting(because(Cause::WaitingForTurn, message));
        survey.waits_for_turn = true;
    }
}

/// UIDs of running pods of an older template whose node's turn has come, under outdatedPods Replace.
fn replaced<'a>(survey: &Survey<'a>, job: &DaemonJob, places: &Places) -> HashSet<&'a str> {
    if job.spec.outdated_pods != Some(OutdatedPods::Replace) || survey.begins || survey.changes {
        return HashSet::new();
    }
    let occupants = occupants(&survey.histories);
    let is_outdated =
        |state: &State| matches!(state, State::Waiting(reason) if reason.cause == Cause::OutdatedTemplate);
    let nodes = survey.nodes.iter().filter(|one| one.eligible && is_outdated(&one.state));
    let pods: Vec<&str> = nodes.filter_map(|one| Some(&*occupants[one.at]?.pod.meta.uid)).collect();
    // A node that runs the older template holds a place already; so many others must be free of it.
    let busy = places.held.saturating_sub(pods.len());
    pods.into_iter().take(places.limit.saturating_sub(busy)).collect()
}

/// Says of what holds a place without a healthy running pod that it does.
fn tell_places(survey: &mut Survey<'_>, limit: Option<usize>) {
    let Some(limit) = limit else { return };
    let occupied = occupied(survey);
    for surveyed in &mut survey.nodes {
        let holds = surveyed.holds_place.is_some() || occupied[surveyed.at];
        if let (State::Starting(reason) | State::Waiting(reason) | State::Failed(reason), true) =
            (&mut surveyed.state, holds)
            && !matches!(reason.cause, Cause::Starting | Cause::Scheduling | Cause::OutdatedTemplate)
        {
            let _ = write!(
                reason.message,
                "{}holds 1 of {limit} places",
                if reason.message.is_empty() { "" } else { "; " }
            );
        }
    }
}
