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
use crate::history::{History, histories};
use crate::labels::pinned_to;
use crate::node_state::{Assessor, Cause, Failure, NodeAssessment, Reason, SelectedNode, State, occupants};
use crate::observe::World;
use crate::outcome::Rules;
use crate::parallelism::take_turns;
use crate::rollout::{Key, current_key, ended_before, rollout_before};
use crate::run;
use crate::survey::Survey;

/// A status that lacks its rollout for this long means that the definition is outdated.
const UNTOLD: SignedDuration = SignedDuration::from_secs(10);

/// Surveys every node.
pub fn assess<'a>(job: &DaemonJob, world: &'a World, now: Timestamp) -> Survey<'a> {
    let rules = Rules::of(job);
    let key = current_key(job, world);
    let before = job.status.as_ref();
    let started = before.and_then(|before| before.start_time.as_ref()).map(|start| start.0);
    let rollout = rollout_before(job, &key);
    let histories = histories(job, world, &rules, &key, now);
    let mut fleet = Fleet::of(histories.selection(), rules.placement(), started);
    let base = rollout.map_or(0, |rollout| usize::try_from(rollout.base).unwrap_or_default());
    // Nodes that join raise the base, except while the failure policy stops the rollout.
    let is_braked = rollout.is_some_and(|rollout| rollout.braked_since.is_some());
    let base = if is_braked { base } else { base.max(fleet.selected) };
    let mut survey = Survey {
        histories,
        // While the DaemonJob is suspended, no node is late.
        start: started.filter(|_| job.spec.suspend != Some(true)).unwrap_or(Timestamp::MAX),
        changes: rollout.is_none(),
        base,
        unhealthy_from_start: unhealthy_from_start(job, false, fleet),
        is_template_invalid: world.invalid_template.is_some(),
        led_since: world.clocks.began.map_or(Timestamp::MIN, whole_seconds),
        key,
        ..Survey::default()
    };
    survey.ending = ended_before(job, &survey.key);
    look_at_nodes(&mut survey, job, world, &rules, fleet, now);
    survey.begins = run::begins(job, &survey);
    if survey.begins {
        survey.key.run += 1;
        survey.start = run::start(world, now);
        fleet = Fleet::of(survey.histories.selection(), rules.placement(), None);
        survey.unhealthy_from_start = unhealthy_from_start(job, true, fleet);
        look_at_nodes(&mut survey, job, world, &rules, fleet, now);
    }
    survey.ending = run::ending(job, &survey, now);
    survey.hold = hold(job, world, &mut survey, fleet, now);
    take_turns(&mut survey, job, world, now);
    if survey.ending.is_none() && survey.works() {
        let deadline = deadline(job, &survey, now);
        survey.requeue_at(deadline);
    }
    survey
}

/// Why no pods are created, or None.
fn hold(
    job: &DaemonJob,
    world: &World,
    survey: &mut Survey<'_>,
    fleet: Fleet,
    now: Timestamp,
) -> Option<Reason> {
    if job.spec.suspend == Some(true) {
        return Some(Reason::new(Cause::Suspended, "spec.suspend is set"));
    }
    if let Some(ending) = survey.ending {
        return Some(Reason::new(ending.into(), "the run has ended"));
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
    if let Some(brake) = survey.failures.hold() {
        return Some(brake);
    }
    if let Some((message, until)) = &world.invalid_template {
        survey.requeue_at(Some(*until));
        return Some(Reason::new(Cause::TemplateInvalid, conditions::shorten(message.clone(), 256)));
    }
    if fleet.is_unhealthy(survey.unhealthy_from_start) && survey.unfinished() > 0 {
        let message = format!(
            "{} of {} selected nodes are unhealthy, {} of them since before the run began. The manager creates pods again \
             when half of the other nodes are healthy. Repair or delete nodes",
            fleet.unhealthy, fleet.members, survey.unhealthy_from_start
        );
        return Some(Reason::new(Cause::FleetUnhealthy, message));
    }
    let is_terminating = world.refusals.namespace_terminating;
    is_terminating.then(|| Reason::new(Cause::NamespaceTerminating, "the namespace is being deleted"))
}

/// Sets the state of every selected node without regard to other nodes, and counts the failed nodes.
fn look_at_nodes(
    survey: &mut Survey<'_>,
    job: &DaemonJob,
    world: &World,
    rules: &Rules<'_>,
    fleet: Fleet,
    now: Timestamp,
) {
    survey.again = None;
    survey.written_off.clear();
    let mut failures = failures(job, world, &survey.histories, &survey.key, survey.base, now);
    // While suspended, nodes are assessed as in the next run, which does not wait for earlier outcomes.
    let is_suspended = job.spec.suspend == Some(true);
    let key = Key { run: survey.key.run + u64::from(is_suspended), ..survey.key.clone() };
    let assessor = Assessor {
        job,
        world,
        rules,
        key: &key,
        is_fleet_unhealthy: fleet.is_unhealthy(survey.unhealthy_from_start),
        start: survey.start,
        now,
    };
    let occupants = occupants(&survey.histories);
    let braked_since = rollout_before(job, &survey.key)
        .and_then(|rollout| rollout.braked_since.as_ref())
        .map(|since| since.0);
    let mut has_working_pod = false;
    let mut nodes = Vec::with_capacity(survey.histories.nodes.len());
    let mut again = None;
    let mut written_off = vec![false; occupants.len()];
    let mut is_selected = vec![false; occupants.len()];
    let mut suspects_elsewhere: Vec<&str> = Vec::new();
    for (at, history) in survey.histories.nodes.iter().enumerate() {
        let Some(node) = history.node else { continue };
        let blocking = occupants[at];
        let mut assessment = assessor.assessment(node, history);
        // While its pod runs, a node has not failed, except if the node was not Ready for too long.
        let is_lost =
            assessment.failure.as_ref().is_some_and(|failure| failure.reason().cause == Cause::NodeLost);
        let is_tried = blocking.is_some_and(|assessed| {
            assessed.is_counted() && !assessed.recorded && assessed.rollout == survey.key.rollout
        });
        if is_tried
            && !is_lost
            && !assessment.is_written_off
            && !matches!(assessment.failure, Some(Failure::Recorded(_)))
        {
            assessment.failure = None;
        }
        written_off[at] = assessment.is_written_off;
        if let Some(failure) = &assessment.failure {
            failures.add(failure, *assessment.eligibility != Eligibility::Run);
        } else {
            let is_lost = |since| history.is_record_lost_since(since, survey.key.rollout);
            failures.unrecorded += usize::from(braked_since.is_some_and(is_lost));
        }
        let is_well = !assessment.is_unhealthy && assessment.suspect.is_none();
        has_working_pod |= blocking.is_some() && is_well;
        again = again.into_iter().chain(assessment.again).min();
        if node.meta.deleted.is_none() && assessment.eligibility.is_selected() {
            let (state, until) = assessor.state(node, history, &mut assessment, blocking);
            again = again.into_iter().chain(until).min();
            let holds_slot = slot_since(&failures, survey.key.rollout, history, &assessment, &state);
            let eligible = *assessment.eligibility == Eligibility::Run;
            is_selected[at] = true;
            nodes.push(SelectedNode { node, at, eligible, state, holds_slot });
        } else if assessment.is_suspect() && blocking.is_none() {
            suspects_elsewhere.push(&node.meta.name);
        }
    }
    suspects_elsewhere.sort_unstable();
    // Ready nodes get their pods first. The sort is stable: the nodes are in the order of their names.
    nodes.sort_by_key(|one| !one.node.ready);
    let is_elsewhere = |at: &usize| occupants[*at].is_some() && !is_selected[*at] && !written_off[*at];
    let of_gone_nodes =
        survey.pods().iter().filter(|assessed| assessed.on_at.is_none() && assessed.occupies());
    let of_gone_nodes: HashSet<&str> = of_gone_nodes.filter_map(|assessed| pinned_to(assessed.pod)).collect();
    let pods_elsewhere = (0..occupants.len()).filter(is_elsewhere).count() + of_gone_nodes.len();
    let mut has_pod = vec![false; occupants.len()];
    let mut duplicates = Vec::new();
    for at in
        survey.pods().iter().filter(|assessed| assessed.is_counted()).filter_map(|assessed| assessed.on_at)
    {
        if std::mem::replace(&mut has_pod[at], true) {
            duplicates.push(at);
        }
    }
    survey.failures = failures;
    survey.suspects_elsewhere = suspects_elsewhere;
    survey.pods_elsewhere = pods_elsewhere;
    survey.has_working_pod = has_working_pod;
    survey.duplicates = duplicates;
    survey.written_off = written_off;
    survey.nodes = nodes;
    survey.requeue_at(again);
}

/// Since when a node holds a slot without a running pod. A suspect node does, and so does a node that waits
/// for its retry under a failure policy that stops at failed nodes.
fn slot_since(
    failures: &Failures,
    rollout: u64,
    history: &History<'_>,
    assessment: &NodeAssessment<'_>,
    state: &State,
) -> Option<Timestamp> {
    let latest = history.latest.as_ref();
    if assessment.is_suspect() {
        return Some(latest.map_or(Timestamp::MIN, |latest| latest.ended));
    }
    let retries = failures.retries_hold_slots()
        && matches!(state, State::Due(_) | State::Waiting(_))
        && latest.is_some_and(|latest| latest.has_failed_in(rollout));
    latest.filter(|_| retries).map(|latest| latest.ended)
}
