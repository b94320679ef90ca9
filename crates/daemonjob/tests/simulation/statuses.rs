//! The invariants of a status: each selected node is counted once, with a true reason, and the counts agree.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use quintet_daemonjob::api::{DaemonJobStatus, NodeReason};
use quintet_daemonjob::eligibility::{Eligibility, Placement};
use quintet_daemonjob::labels::NODE_NAME_ANNOTATION;
use quintet_daemonjob::parallelism::parallelism;
use quintet_runtime::model::conditions::is_true;
use quintet_runtime::model::core_types::Node;

use crate::machines::End;
use crate::manager::Pass;
use crate::rollout::{View, rollout_number, selected};
use crate::truth::{Judgement, annotation, occupies};

/// Reasons for which a done node is pending.
const DONE_AND_PENDING: [&str; 5] =
    ["NotReadySinceAttempt", "OutdatedTemplate", "PreviousPod", "PreviousPodTerminating", "Settling"];
/// Reasons for which a skipped node is not desired.
const NOT_DESIRED: [&str; 4] = ["Tainted", "NotReady", "Unreachable", "Unhealthy"];
/// Reasons for which no node gets a pod. A condition has the same reason.
const HOLDS: [&str; 9] = [
    "DeadlineExceeded",
    "FleetUnhealthy",
    "MaxFailedNodesExceeded",
    "Paused",
    "PausedByAnnotation",
    "PodFailurePolicy",
    "Suspended",
    "WaitsForApproval",
    "WaveFailed",
];

fn count(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or_default()).unwrap()
}

fn wrong<T>(what: &str) -> Result<T, String> {
    Err(format!("status: {what}"))
}

/// The entry of one node in the status.
#[derive(PartialEq)]
enum Listed<'s> {
    Nothing,
    Failed(&'s NodeReason),
    Pending(&'s NodeReason),
    Skipped(&'s NodeReason),
}

fn listed<'s>(status: &'s DaemonJobStatus, name: &str) -> Result<Listed<'s>, String> {
    let of = |list: &'s [NodeReason]| list.iter().find(|one| one.node == name);
    let failed = of(&status.failed_nodes);
    // A failed node that keeps its slot while it is not Ready is pending too.
    let keeps_place = |one: &&NodeReason| failed.is_some() && one.reason == "NotReadySinceAttempt";
    let found = [
        failed.map(Listed::Failed),
        of(&status.pending_nodes).filter(|one| !keeps_place(one)).map(Listed::Pending),
        of(&status.skipped_nodes).map(Listed::Skipped),
    ];
    let mut found = found.into_iter().flatten();
    let first = found.next();
    if found.next().is_some() {
        wrong(&format!("{name} is in two lists"))
    } else {
        Ok(first.unwrap_or(Listed::Nothing))
    }
}

/// The status is true according to the events that its planner saw.
pub fn status_is_true(view: &View, pass: &Pass, status: &DaemonJobStatus) -> Judgement {
    let placement = Placement::of(pass.job.spec.template.spec());
    let nodes = selected(pass, &placement);
    let mut undesired = 0;
    let (mut done, mut least_done) = (0, 0);
    for (node, eligibility) in &nodes {
        let entry = listed(status, &node.meta.name)?;
        if let Listed::Skipped(why) = &entry {
            undesired += usize::from(NOT_DESIRED.contains(&why.reason.as_str()));
        }
        node_is_true(view, pass, status, (node, eligibility), &entry)?;
        if entry == Listed::Nothing {
            let is_odd = view.machine(node).is_odd;
            let is_done = view.is_done(node, &pass.job, status);
            done += usize::from(is_odd || is_done);
            least_done += usize::from(!is_odd && is_done && occupant(pass, &node.meta.name).is_none());
        }
    }
    let names: BTreeSet<&str> = nodes.iter().map(|(node, _)| &*node.meta.name).collect();
    let mut listed =
        [&status.failed_nodes, &status.pending_nodes, &status.skipped_nodes].into_iter().flatten();
    if let Some(foreign) = listed.find(|one| !names.contains(one.node.as_str())) {
        return wrong(&format!("{foreign:?} is listed, but not selected"));
    }
    let pods_elsewhere: BTreeSet<&str> = pass
        .world
        .pods
        .iter()
        .filter(|pod| occupies(pod))
        .map(|pod| annotation(pod, NODE_NAME_ANNOTATION))
        .filter(|name| !names.contains(name))
        .collect();
    let may_be_written_off = |name: &&&str| {
        let node = pass.world.nodes.iter().find(|node| *node.meta.name == ***name);
        node.is_some_and(|node| view.may_be_written_off(node, &pass.job))
    };
    let least = pods_elsewhere.len() - pods_elsewhere.iter().filter(may_be_written_off).count();
    let here = nodes.len() - undesired;
    let within = |what: &str, number: Option<i32>, least: usize, most: usize| {
        if (least..=most).contains(&count(number)) {
            Ok(())
        } else {
            wrong(&format!("{what} is {number:?}, but must be {least} to {most}"))
        }
    };
    within("desired", status.desired, here + least, here + pods_elsewhere.len())?;
    within("succeeded", status.succeeded, least_done, done)?;
    let active = pass.world.pods.iter().filter(|pod| pod.is_counted()).count();
    within("active", status.active, active, active)?;
    let going = pass.world.pods.iter().filter(|pod| occupies(pod) && pod.meta.deleted.is_some()).count();
    within("terminating", status.terminating, going, going)?;
    for (what, number, list) in [
        ("failed", status.failed, &status.failed_nodes),
        ("pending", status.pending, &status.pending_nodes),
        ("skipped", status.skipped, &status.skipped_nodes),
    ] {
        within(what, number, list.len(), list.len())?;
    }
    has_reasons(pass, status)
}

fn occupant<'p>(pass: &'p Pass, name: &str) -> Option<&'p quintet_runtime::model::core_types::Pod> {
    let mut pods = pass.world.pods.iter().map(|pod| &**pod);
    pods.find(|pod| occupies(pod) && annotation(pod, NODE_NAME_ANNOTATION) == name)
}

fn node_is_true(
    view: &View,
    pass: &Pass,
    status: &DaemonJobStatus,
    (node, eligibility): (&Node, &Eligibility),
    entry: &Listed<'_>,
) -> Judgement {
    let (job, name) = (&pass.job, &node.meta.name);
    let machine = view.machine(node);
    let is_done = view.is_done(node, job, status);
    let has_pod = occupant(pass, name).is_some();
    let rollout = rollout_number(Some(status)).unwrap_or_default();
    let limit = job.spec.backoff_limit.map_or(6, i64::from);
    if machine.is_odd {
        return Ok(());
    }
    let has_failed = machine.rollout == rollout && !machine.ended_well && i64::from(machine.failures) > limit;
    if has_failed && node.ready && !has_pod && !matches!(entry, Listed::Failed(_)) {
        return wrong(&format!("{name} has failed and is not listed"));
    }
    match entry {
        Listed::Nothing if is_done || has_pod => Ok(()),
        Listed::Nothing => wrong(&format!("{name} is neither done nor listed, and no pod runs there")),
        Listed::Pending(why) if is_done && !DONE_AND_PENDING.contains(&why.reason.as_str()) => {
            wrong(&format!("{why:?} is pending, but it is done"))
        }
        Listed::Skipped(why) if is_done && !has_pod => wrong(&format!("{why:?} is skipped, but it is done")),
        Listed::Failed(why) => {
            let last = machine.last.as_ref().filter(|last| last.rollout == rollout);
            let may_have_failed = last.is_some_and(|last| matches!(last.end, End::Failed | End::Unsure));
            let is_true = match why.reason.as_str() {
                "BackoffLimitExceeded" => machine.may_have_failed(rollout, limit, None),
                "DisruptionLimitExceeded" => {
                    machine.may_have_failed(rollout, i64::MAX, job.spec.disruption_limit.map(i64::from))
                }
                "NodeLost" => !node.ready,
                "FailedAndGone" => {
                    // The retry of an eligible node may not start in time.
                    let may_be_late = job.spec.pending_deadline_seconds.is_some();
                    may_have_failed && (may_be_late || *eligibility != Eligibility::Run)
                }
                _ => false,
            };
            if is_true { Ok(()) } else { wrong(&format!("{why:?} is not true")) }
        }
        Listed::Pending(_) | Listed::Skipped(_) => Ok(()),
    }
}

/// Each hold has a condition, and each holder of a slot is named.
fn has_reasons(pass: &Pass, status: &DaemonJobStatus) -> Judgement {
    let is = |type_| is_true(&status.conditions, type_);
    let conditions: BTreeSet<&str> =
        status.conditions.iter().filter(|one| one.status == "True").map(|one| one.reason.as_str()).collect();
    let is_idle = !pass.world.pods.iter().any(|pod| occupies(pod));
    let waits = |one: &Condition| {
        one.type_ == "Complete" && one.message.contains("has not been Ready since its pod ran")
    };
    let is_marking =
        |one: &Condition| one.type_ == "Complete" && matches!(one.reason.as_str(), "Marking" | "MarkRefused");
    let is_explained = status.conditions.iter().any(|one| waits(one) || is_marking(one))
        || conditions.contains("WaitsForDueTime")
        || is("Complete")
        || is("Failed")
        || is("Suspended")
        || is("Paused");
    if is_idle && !is_explained && status.pending_nodes.is_empty() {
        return Err("reason: nothing runs, and the status has no reason".to_owned());
    }
    for pending in &status.pending_nodes {
        let reason = pending.reason.as_str();
        let waits_for_end = reason == "MaxFailedNodesExceeded" && !is_idle || reason == "DeadlineExceeded";
        if reason.is_empty() || HOLDS.contains(&reason) && !conditions.contains(reason) && !waits_for_end {
            return Err(format!("reason: no condition has the reason of {pending:?}: {conditions:?}"));
        }
    }
    let limit = parallelism(&pass.job, count(status.desired)).unwrap_or(usize::MAX);
    if status.pending_nodes.iter().any(|one| one.reason == "WaitingForTurn") {
        let running: BTreeSet<&str> = pass
            .world
            .pods
            .iter()
            .filter(|pod| occupies(pod))
            .map(|pod| annotation(pod, NODE_NAME_ANNOTATION))
            .collect();
        let holds = |one: &&NodeReason| {
            let is_new = !running.contains(one.node.as_str());
            is_new && (one.message.contains("holds 1 of") || one.reason == "Creating")
        };
        let pods = pass.world.pods.iter().filter(|pod| occupies(pod)).count();
        let listed = status.pending_nodes.iter().chain(&status.failed_nodes).filter(holds).count();
        // The message names only the first holder that is in no list.
        let waiting = status.pending_nodes.iter().find(|one| one.reason == "WaitingForTurn");
        let is_named = waiting.is_some_and(|one| one.message.contains("and holds a slot"));
        let held = if is_named { limit } else { pods + listed };
        if held < limit {
            return Err(format!("reason: nodes wait for slots, but only {held} of {limit} are held"));
        }
    }
    Ok(())
}
