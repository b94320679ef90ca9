//! Combines the rules into a survey: the state of every node, and the reason why no pods are created.
//!
//! A pure function. The plan acts on its result, and `quintet explain` prints the result.

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions;

use crate::api::DaemonJob;
use crate::deadline::deadline;
use crate::eligibility::Eligibility;
use crate::failure_policy::{Failures, failures};
use crate::fleet::{Fleet, unhealthy_from_start};
use crate::history::{Histories, History, gone_count, histories};
use crate::labels::{PAUSED_ANNOTATION, pinned_to};
use crate::marks::Marks;
use crate::node_state::{Assessor, Cause, NodeAssessment, Reason, SelectedNode, State, occupants};
use crate::observe::World;
use crate::outcome::Rules;
use crate::parallelism::take_turns;
use crate::rollout::{Ending, Key, current_key, ended_before, rollout_before, was_over};
use crate::run;
use crate::schedule::{Agenda, Decision, DueTimeWait, PassedOver};
use crate::survey::Survey;
use crate::waves::{OpenPod, Progress, Standing, WaveState, Waves, paused};

/// A status that lacks its rollout for this long means that the definition is outdated.
const UNTOLD: SignedDuration = SignedDuration::from_secs(10);

/// The longest time until a DaemonJob with a schedule is planned again.
const LONGEST_TIMER: SignedDuration = SignedDuration::from_mins(10);

/// Surveys every node. A due time that has come begins another rollout, unless failed nodes stop the rollout or a user
/// has paused it.
pub fn assess<'a>(job: &DaemonJob, world: &'a World, now: Timestamp) -> Survey<'a> {
    let rules = Rules::of(job);
    let mut survey = survey_rollout(job, world, &rules, current_key(job, world), Agenda::of(job, now), now);
    let Some(agenda) = survey.agenda.take() else { return survey };
    let is_paused = job.spec.paused == Some(true) || paused(job).is_some();
    survey.agenda = Some(match agenda.decision {
        Decision::Missed(due) => agenda.passing_over(due, PassedOver::Missed),
        Decision::Begins(due) if !is_paused && stops_due_times(&survey) => {
            agenda.passing_over(due, PassedOver::Held)
        }
        Decision::Begins(due) if !is_paused => {
            let (hash, rollout) = (job.spec.template.hash().into(), survey.key.rollout + 1);
            let key = Key { hash, rollout, run: survey.key.run, due: Some(due) };
            return survey_rollout(job, world, &rules, key, Some(agenda.beginning(due)), now);
        }
        Decision::Waits => agenda,
        Decision::Begins(_) => {
            survey.requeue_at(agenda.late_at);
            agenda
        }
    });
    survey
}

/// Whether failed nodes or a failed wave of the last due time stop the next one. A changed template ends that.
fn stops_due_times(survey: &Survey<'_>) -> bool {
    let has_failed = |waves: &Waves| waves.state == WaveState::Failed;
    let is_stopped = survey.failures.brakes()
        || survey.ending == Some(Ending::MaxFailedNodesExceeded)
        || survey.waves.as_ref().is_some_and(has_failed) && survey.count(State::is_unfinished) > 0;
    is_stopped && !survey.has_pending_template
}

/// Surveys every node in the rollout of this key.
fn survey_rollout<'a>(
    job: &DaemonJob,
    world: &'a World,
    rules: &Rules<'_>,
    key: Key,
    agenda: Option<Agenda>,
    now: Timestamp,
) -> Survey<'a> {
    let before = job.status.as_ref();
    let started = before.and_then(|before| before.start_time.as_ref()).map(|start| start.0);
    let rollout = rollout_before(job, &key);
    let histories = histories(job, world, rules, &key, now);
    let fleet = Fleet::of(histories.selected(), &rules.placement, started);
    let base = rollout.map_or(0, |rollout| usize::try_from(rollout.base).unwrap_or_default());
    // Nodes that join raise the base, except while the failure policy stops the rollout.
    let braked_since = rollout.and_then(|rollout| rollout.braked_since.as_ref()).map(|since| since.0);
    let base = if braked_since.is_some() { base } else { base.max(fleet.selected) };
    let mut survey = Survey {
        histories,
        // While the DaemonJob is suspended, no node is late.
        start: started.filter(|_| job.spec.suspend != Some(true)).unwrap_or(Timestamp::MAX),
        is_over: was_over(job, &key),
        has_pending_template: agenda.is_some() && job.spec.template.hash() != *key.hash,
        agenda,
        changes: rollout.is_none(),
        braked_since,
        base,
        fleet,
        unhealthy_from_start: unhealthy_from_start(job, fleet),
        is_template_invalid: world.invalid_template.is_some(),
        led_since: world.clocks.began.map_or(Timestamp::MIN, whole_seconds),
        key,
        ..Survey::default()
    };
    survey.ending = ended_before(job, &survey.key);
    look_at_nodes(&mut survey, job, world, rules, now);
    survey.begins = run::begins(job, &survey);
    if survey.begins {
        survey.key.run += 1;
        survey.start = run::start(world, now);
        survey.fleet = Fleet::of(survey.histories.selected(), &rules.placement, None);
        survey.unhealthy_from_start = survey.fleet.unhealthy;
        look_at_nodes(&mut survey, job, world, rules, now);
    }
    survey.ending = run::ending(job, &survey, now);
    let is_stopped = survey.failures.brakes();
    survey.waves = Waves::of(job, survey.key.rollout, survey.base, rollout, survey.progress, is_stopped);
    survey.hold = hold(job, world, &mut survey, now);
    take_turns(&mut survey, job, world, now);
    survey.marks = Marks::of(job, world, &survey.nodes, &survey.histories, now);
    let again = survey.marks.as_ref().and_then(|marks| marks.again);
    survey.requeue_at(again);
    if survey.ending.is_none() && survey.works() {
        let deadline = deadline(job, &survey, now);
        survey.requeue_at(deadline);
    }
    let next = survey.agenda.as_ref().and_then(Agenda::next_due_time);
    // A timer does not notice that the wall clock is set forward.
    let soon = now.checked_add(LONGEST_TIMER).unwrap_or(now);
    survey.requeue_at(next.map(|next| next.min(soon)));
    survey
}

/// Why no pods are created, or None.
fn hold(job: &DaemonJob, world: &World, survey: &mut Survey<'_>, now: Timestamp) -> Option<Reason> {
    if job.spec.suspend == Some(true) {
        return Some(Reason::new(Cause::Suspended, "spec.suspend is set"));
    }
    if let Some(ending) = survey.ending {
        return Some(Reason::new(Cause::of_ending(ending), "the run has ended"));
    }
    if let Some(Err(why)) = survey.agenda.as_ref().map(|agenda| &agenda.next) {
        return Some(Reason::new(Cause::ScheduleInvalid, conditions::shorten(why.clone(), 256)));
    }
    if let Some(since) = world.clocks.untold {
        let until = since.checked_add(UNTOLD).unwrap_or(now);
        if until <= now {
            let message = "the CustomResourceDefinition daemonjobs.dj.dysproz.io has no status.rollout: apply the \
                           definition of this version of Quintet (helm upgrade does)";
            return Some(Reason::new(Cause::DefinitionOutdated, message));
        }
        survey.requeue_at(Some(until));
    }
    if job.spec.paused == Some(true) {
        return Some(Reason::new(Cause::Paused, "spec.paused is set"));
    }
    if let Some(reason) = paused(job) {
        let message = format!("the annotation {PAUSED_ANNOTATION} is set: {reason}");
        return Some(Reason::new(Cause::PausedByAnnotation, conditions::shorten(message, 256)));
    }
    if let Some(brake) = survey.failures.hold() {
        return Some(brake);
    }
    if let Some((message, until)) = &world.invalid_template {
        survey.requeue_at(Some(*until));
        return Some(Reason::new(Cause::TemplateInvalid, conditions::shorten(message.clone(), 256)));
    }
    if survey.is_fleet_unhealthy() && survey.count(State::is_unfinished) > 0 {
        let message = format!(
            "{} of {} selected nodes are unhealthy, {} of them since before the run began. The manager creates pods again \
             when half of the other nodes are healthy. Repair or delete nodes",
            survey.fleet.unhealthy, survey.fleet.members, survey.unhealthy_from_start
        );
        return Some(Reason::new(Cause::FleetUnhealthy, message));
    }
    if let Some(waves) = &survey.waves
        && survey.count(State::is_unfinished) > 0
        && let Some(hold) = waves.hold(job, survey.key.rollout)
    {
        return Some(hold);
    }
    // No due time has come yet.
    if let Some(Ok(next)) = survey.agenda.as_ref().map(|agenda| &agenda.next)
        && survey.key.run == 0
    {
        return Some(Reason::new(Cause::WaitsForDueTime, format!("the first run begins at {next}")));
    }
    let is_terminating = world.refusals.namespace_terminating;
    is_terminating.then(|| Reason::new(Cause::NamespaceTerminating, "the namespace is being deleted"))
}

/// Sets the state of every selected node without regard to other nodes, and counts the failed nodes.
fn look_at_nodes(survey: &mut Survey<'_>, job: &DaemonJob, world: &World, rules: &Rules<'_>, now: Timestamp) {
    let mut failures = failures(job, world, survey, now);
    // While suspended, nodes are assessed as in the next run, which does not wait for earlier outcomes.
    let is_suspended = job.spec.suspend == Some(true);
    let key = Key { run: survey.key.run + u64::from(is_suspended), ..survey.key.clone() };
    let assessor = Assessor {
        job,
        world,
        rules,
        key: &key,
        is_fleet_unhealthy: survey.is_fleet_unhealthy(),
        start: survey.start,
        due_times: due_time_wait(survey),
        now,
    };
    let rollout = survey.key.rollout;
    let open = job.spec.rollout.is_some().then(|| open_pods(&survey.histories, rollout));
    let gone = open.as_ref().map_or(0, |_| gone_count(&survey.histories, world, &key, Timestamp::MIN));
    survey.progress = Progress { failed: gone, ..Progress::default() };
    let occupants = occupants(&survey.histories);
    survey.has_working_pod = false;
    survey.nodes = Vec::with_capacity(occupants.len());
    survey.again = None;
    survey.written_off = vec![false; occupants.len()];
    survey.holders_elsewhere.clear();
    let mut is_selected = vec![false; occupants.len()];
    for (at, history) in survey.histories.nodes.iter().enumerate() {
        let node = history.node;
        let blocking = occupants[at];
        let mut assessment = assessor.assessment(node, history);
        // While its pod runs, a node has not failed, except if the node was not Ready for too long.
        let is_tried = blocking.is_some_and(|assessed| {
            assessed.is_counted() && !assessed.recorded && assessed.rollout == rollout
        });
        if is_tried && !assessment.is_written_off {
            assessment.failure = assessment.failure.filter(|failure| failure.cause != Cause::FailedAndGone);
        }
        survey.written_off[at] = assessment.is_written_off;
        if let Some(failure) = &assessment.failure {
            failures.add(failure.cause, history.eligibility != Eligibility::Run);
        } else {
            let is_lost = |since| history.is_record_lost_since(since, rollout);
            failures.unrecorded += usize::from(survey.braked_since.is_some_and(is_lost));
        }
        let is_well = !assessment.is_unhealthy && assessment.suspect.is_none();
        survey.has_working_pod |= blocking.is_some() && is_well;
        survey.again = survey.again.into_iter().chain(assessment.again).min();
        let cause = assessment.failure.as_ref().map(|failure| failure.cause);
        let is_written_off = assessment.is_written_off;
        let standing = |state: Option<&State>| {
            let Some(open) = &open else { return Standing::Away };
            match Standing::of(history, rollout, open[at], cause, state) {
                // A wave does not wait for a lost node that is not selected.
                Standing::Working | Standing::Settling if state.is_none() && is_written_off => Standing::Away,
                standing => standing,
            }
        };
        if node.meta.deleted.is_none() && history.eligibility.is_selected() {
            let (state, until) = assessor.state(node, history, &mut assessment, blocking);
            survey.again = survey.again.into_iter().chain(until).min();
            let holds_slot = slot_since(&failures, rollout, history, &assessment, &state);
            let eligible = history.eligibility == Eligibility::Run;
            is_selected[at] = true;
            let standing = standing(Some(&state));
            survey.progress.add(standing);
            let has_started = standing != Standing::Away;
            survey.nodes.push(SelectedNode { node, at, eligible, has_started, state, holds_slot });
            continue;
        }
        survey.progress.add(standing(None));
        if assessment.keeps_slot() && blocking.is_none() {
            survey.holders_elsewhere.push((&*node.meta.name, assessment.is_settling));
        }
    }
    survey.holders_elsewhere.sort_unstable();
    // Ready nodes get their pods first. The sort is stable: the nodes are in the order of their names.
    survey.nodes.sort_by_key(|one| !one.node.ready);
    let holds = occupants.iter().zip(&is_selected).zip(&survey.written_off);
    let elsewhere = holds.filter(|((occupant, is_selected), is_written_off)| {
        occupant.is_some() && !**is_selected && !**is_written_off
    });
    survey.pods_elsewhere = elsewhere.count();
    survey.failures = failures;
    look_elsewhere(survey);
}

/// With a schedule, which nodes wait for the next due time.
fn due_time_wait(survey: &Survey<'_>) -> Option<DueTimeWait> {
    let agenda = survey.agenda.as_ref()?;
    Some(DueTimeWait {
        for_all: survey.key.due.is_none() || survey.has_pending_template,
        is_over: survey.is_over,
        next: agenda.next_due_time(),
    })
}

/// Counts the pods of deleted nodes that hold slots, and finds the nodes with several pods.
fn look_elsewhere(survey: &mut Survey<'_>) {
    let of_gone_nodes =
        survey.pods().iter().filter(|assessed| assessed.on_at.is_none() && assessed.occupies());
    let of_gone_nodes: HashSet<&str> = of_gone_nodes.filter_map(|assessed| pinned_to(assessed.pod)).collect();
    let of_gone_nodes = of_gone_nodes.len();
    survey.pods_elsewhere += of_gone_nodes;
    let mut has_pod = vec![false; survey.histories.nodes.len()];
    let counted = survey.histories.pods.iter().filter(|assessed| assessed.is_counted());
    let places = counted.filter_map(|assessed| assessed.on_at);
    survey.duplicates = places.filter(|at| std::mem::replace(&mut has_pod[*at], true)).collect();
}

/// By the index of a node: the pod of this rollout that runs there, or may run later.
fn open_pods(histories: &Histories<'_>, rollout: u64) -> Vec<Option<OpenPod>> {
    let mut found = vec![None; histories.nodes.len()];
    let open = histories.pods.iter().filter(|assessed| assessed.occupies() && assessed.rollout == rollout);
    for assessed in open {
        let Some(at) = assessed.target else { continue };
        let is_bound = assessed.pod.node.is_some();
        found[at] = found[at].max(Some(if is_bound { OpenPod::Bound } else { OpenPod::Unbound }));
    }
    found
}

/// Since when a node holds a slot without a running pod. A suspect or settling node does, and so does a node
/// that waits for its retry under a failure policy that stops at failed nodes.
fn slot_since(
    failures: &Failures,
    rollout: u64,
    history: &History<'_>,
    assessment: &NodeAssessment,
    state: &State,
) -> Option<Timestamp> {
    let latest = history.latest.as_ref();
    if assessment.keeps_slot() {
        return Some(latest.map_or(Timestamp::MIN, |latest| latest.ended));
    }
    let retries = failures.retries_hold_slots()
        && matches!(state, State::Due(_) | State::Waiting(_))
        && latest.is_some_and(|latest| latest.has_failed_in(rollout));
    latest.filter(|_| retries).map(|latest| latest.ended)
}
