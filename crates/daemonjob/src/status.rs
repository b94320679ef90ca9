//! What the status says of a survey, and what is news in it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quintet_kit::clock::whole_seconds;
use quintet_kit::conditions::{self, Wanted, number};
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Event, EventType, LABELS_MISSING, NAME_TAKEN, Refusal};

use crate::api::{DaemonJob, DaemonJobStatus, NodeReason};
use crate::ledger::{SHARDS, shard_name};
use crate::observe::World;
use crate::survey::{Reason, State, Survey, pod_name};

/// Entries of a list of nodes; how many more there are is told beside it.
const LISTED: usize = 20;

/// The whole status.
pub fn status(job: &DaemonJob, world: &World, survey: &Survey<'_>, now: Timestamp) -> DaemonJobStatus {
    let before = job.status.clone().unwrap_or_default();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let mut ledger_shards = before.ledger_shards.clone();
    ledger_shards.extend(world.shards().filter_map(|shard| shard.number(name)));
    ledger_shards.sort_unstable();
    ledger_shards.dedup();
    let failed = nodes(survey, |state| match state {
        State::Failed(reason) => Some(reason.clone()),
        _ => None,
    });
    let pending = nodes(survey, |state| match state {
        State::Starting(reason) | State::Waiting(reason) => Some(reason.clone()),
        State::Due(_) => Some(Reason { word: "Creating", message: String::new() }),
        _ => None,
    });
    let skipped = nodes(survey, |state| match state {
        State::Skipped(reason) => Some(reason.clone()),
        _ => None,
    });
    let terminating =
        survey.pods.iter().filter(|judged| judged.occupies() && judged.pod.meta.deleted.is_some()).count();
    if world.old_job {
        // Nothing has begun: the next look asks again whether the Job is gone.
        return DaemonJobStatus {
            observed_generation: job.metadata.generation,
            conditions: conditions::next(
                &before.conditions,
                conditions(job, world, survey),
                job.metadata.generation,
                now,
            ),
            ..DaemonJobStatus::default()
        };
    }
    let is_suspended = job.spec.suspend == Some(true);
    let start = (!is_suspended).then_some(Time(survey.start));
    let wanted = conditions(job, world, survey);
    let complete = wanted.iter().any(|wanted| wanted.type_ == "Complete" && wanted.status == Some(true));
    DaemonJobStatus {
        observed_generation: job.metadata.generation,
        desired: number(survey.desired()),
        active: number(survey.pods.iter().filter(|judged| judged.pod.is_counted()).count()),
        succeeded: number(survey.count(|state| *state == State::Done)),
        failed: number(failed.len()),
        pending: number(
            survey.count(|state| matches!(state, State::Starting(_) | State::Waiting(_) | State::Due(_))),
        ),
        skipped: number(skipped.len()),
        terminating: number(terminating),
        completion_time: match (&before.completion_time, complete) {
            (Some(at), true) if before.start_time == start => Some(at.clone()),
            (_, true) => Some(Time(whole_seconds(now))),
            (_, false) => None,
        },
        start_time: start,
        template_hash: Some(survey.hash.to_string()),
        ledger_shards,
        more_failed_nodes: more(&failed),
        failed_nodes: listed(failed),
        more_pending_nodes: more(&pending),
        pending_nodes: listed(pending),
        more_skipped_nodes: more(&skipped),
        skipped_nodes: listed(skipped),
        conditions: conditions::next(
            // What an earlier run's conditions changed last is of no interest to this one.
            if survey.begins { &[] } else { &before.conditions },
            wanted,
            job.metadata.generation,
            now,
        ),
    }
}

fn nodes(survey: &Survey<'_>, reason: impl Fn(&State) -> Option<Reason>) -> Vec<NodeReason> {
    let told = survey.nodes.iter().filter_map(|surveyed| {
        let Reason { word, message } = reason(&surveyed.state)?;
        Some(NodeReason { node: surveyed.node.meta.name.to_string(), reason: word.to_owned(), message })
    });
    told.collect()
}

fn listed(mut nodes: Vec<NodeReason>) -> Vec<NodeReason> {
    nodes.truncate(LISTED);
    nodes
}

fn more(nodes: &[NodeReason]) -> Option<i32> {
    number(nodes.len().saturating_sub(LISTED)).filter(|more| *more > 0)
}

fn conditions(job: &DaemonJob, world: &World, survey: &Survey<'_>) -> Vec<Wanted> {
    let done = survey.count(|state| *state == State::Done);
    let failed = survey.count(|state| matches!(state, State::Failed(_)));
    let skipped = survey.count(|state| matches!(state, State::Skipped(_)));
    let desired = survey.desired();
    let hold = survey.hold.as_ref();
    let is_held = hold.is_some_and(|hold| matches!(hold.word, "OldJobPresent" | "Suspended"));
    let is_over = survey.is_finished() && !is_held;
    let complete = is_over && failed == 0 && survey.ending.is_none();
    let nodes_failed = is_over && failed > 0 && survey.ending.is_none();
    let so_far = format!("{done} of {desired} nodes are done");
    let (reason, message) = if complete && desired == 0 {
        ("NoEligibleNodes", "No node is eligible.".to_owned())
    } else if complete && skipped > 0 {
        ("NodesSkipped", format!("{done} nodes are done, {skipped} are skipped."))
    } else if complete {
        ("AllNodesDone", format!("All {done} eligible nodes are done."))
    } else if let (true, Some(hold)) = (is_held, hold) {
        (hold.word, format!("{}; {so_far}.", hold.message))
    } else if let Some(ending) = survey.ending {
        (ending.reason(), format!("{so_far}, {failed} have failed."))
    } else if nodes_failed {
        ("NodesFailed", format!("{failed} of {desired} nodes have failed, {done} are done."))
    } else if let Some(hold) = hold {
        (hold.word, format!("{}; {so_far}.", hold.message))
    } else {
        let waits = survey.nodes.iter().find_map(|surveyed| match &surveyed.state {
            State::Starting(reason) | State::Waiting(reason) if reason.word != "WaitingForTurn" => {
                Some(format!("; {}: {} {}", surveyed.node.meta.name, reason.word, reason.message))
            }
            _ => None,
        });
        ("NodesPending", format!("{so_far}{}", waits.unwrap_or_default()))
    };
    // A run has ended when the last of its pods was asked to go.
    let has_failed = nodes_failed || !is_held && survey.ending.is_some() && !survey.has_counted_pods();
    let mut wanted = vec![
        Wanted { type_: "Complete", status: Some(complete), reason, message: message.clone() },
        Wanted {
            type_: "Failed",
            status: Some(has_failed),
            reason: if has_failed { reason } else { "NotFailed" },
            message: if has_failed { message } else { String::new() },
        },
    ];
    let mut say = |type_, reason, message: String| {
        wanted.push(Wanted { type_, status: Some(true), reason, message });
    };
    match hold {
        Some(hold) if hold.word == "Suspended" => say("Suspended", "Suspended", hold.message.clone()),
        Some(hold) if hold.word == "OldJobPresent" => {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let how = format!("{}: delete it with its pods (kubectl delete job {name}-job)", hold.message);
            say("OldJobPresent", "OldJobPresent", how);
        }
        Some(hold) if matches!(hold.word, "Paused" | "MaxFailedNodesExceeded") && survey.ending.is_none() => {
            say("Paused", hold.word, hold.message.clone());
        }
        _ => {}
    }
    if let Some(refusal) = refused_pod(job, world, survey) {
        let reason = if refusal.reason == NAME_TAKEN { NAME_TAKEN } else { "FailedCreate" };
        say("PodsRefused", reason, refusal.message.clone());
    }
    let is_lost = |state: &State| matches!(state, State::Skipped(reason) if reason.word == "RecordLost");
    let lost = survey.nodes.iter().filter(|surveyed| is_lost(&surveyed.state)).count();
    if lost > 0 {
        let how = "change an annotation of the template to run everywhere again";
        say(
            "LedgerLost",
            "RecordLost",
            format!("what was recorded of {lost} nodes is gone, so they are skipped: {how}"),
        );
    }
    let is_newer = |state: &State| matches!(state, State::Skipped(reason) if reason.word == "LedgerFormat");
    let newer = survey.nodes.iter().filter(|surveyed| is_newer(&surveyed.state)).count();
    if newer > 0 && lost == 0 {
        say(
            "LedgerLost",
            "LedgerFormat",
            format!(
                "what was recorded of {newer} nodes was written by a newer version of Quintet: upgrade this one"
            ),
        );
    }
    if let Some(refusal) = refused_shard(job, world) {
        let reason = if refusal.reason == NAME_TAKEN { NAME_TAKEN } else { "FailedWrite" };
        say("LedgerRefused", reason, format!("outcomes cannot be recorded: {}", refusal.message));
    }
    if job.spec.selector.is_some() || job.spec.manual_selector.is_some() {
        let message = "selector and manualSelector are accepted without effect: pods belong to their DaemonJob by owner \
                       reference";
        say("SelectorIgnored", "NoEffect", message.to_owned());
    }
    wanted
}

/// A refusal of a pod that is wanted now: told until one goes through, also while it is tried again.
fn refused_pod<'a>(job: &DaemonJob, world: &'a World, survey: &Survey<'_>) -> Option<&'a Refusal> {
    if world.refusals.is_empty() {
        return None;
    }
    let wanted = survey.nodes.iter().filter(|surveyed| match &surveyed.state {
        State::Due(_) => true,
        State::Waiting(reason) => matches!(reason.word, "FailedCreate" | NAME_TAKEN | "WaitingForTurn"),
        _ => false,
    });
    let mut refused = wanted.filter_map(|surveyed| {
        let history = survey.histories.get(&*surveyed.node.meta.uid)?;
        world.refusals.of("create", &pod_name(job, surveyed.node, history.run + 1))
    });
    refused.find(|refusal| refusal.reason != LABELS_MISSING)
}

fn refused_shard<'a>(job: &DaemonJob, world: &'a World) -> Option<&'a Refusal> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    (0..SHARDS)
        .map(|shard| shard_name(name, shard))
        .find_map(|shard| world.refusals.of("merge", &shard).or_else(|| world.refusals.of("create", &shard)))
}

/// Events, made from the difference of two statuses so that each comes once.
pub fn news(job: &DaemonJob, world: &World, after: &DaemonJobStatus) -> Vec<Event> {
    let nothing = DaemonJobStatus::default();
    let before = job.status.as_ref().unwrap_or(&nothing);
    let mut events = Vec::new();
    for (condition, type_, reason, action) in [
        ("Complete", EventType::Normal, "Completed", "Finish"),
        ("Failed", EventType::Warning, "Failed", "Finish"),
        ("Suspended", EventType::Normal, "Suspended", "Suspend"),
        ("Paused", EventType::Normal, "Paused", "Pause"),
        ("LedgerLost", EventType::Warning, "LedgerLost", "Skip"),
        ("LedgerRefused", EventType::Warning, "LedgerRefused", "Record"),
        ("OldJobPresent", EventType::Warning, "OldJobPresent", "Wait"),
    ] {
        let of = |conditions: &[Condition]| -> Option<String> {
            let told = conditions.iter().find(|one| one.type_ == condition && one.status == "True")?;
            Some(told.message.clone())
        };
        if let (Some(note), None) = (of(&after.conditions), of(&before.conditions)) {
            events.push(Event { type_, reason, action, note });
        }
    }
    let was_suspended = conditions::is_true(&before.conditions, "Suspended");
    if was_suspended && !conditions::is_true(&after.conditions, "Suspended") {
        let note = "A new run begins.".to_owned();
        events.push(Event { type_: EventType::Normal, reason: "Resumed", action: "Resume", note });
    }
    if after.failed > before.failed.or(Some(0)) {
        let first = after.failed_nodes.iter().find(|node| !before.failed_nodes.contains(node));
        let first = first.map(|node| format!("; {}: {}", node.node, node.message)).unwrap_or_default();
        let note = format!("{} nodes have failed{first}", after.failed.unwrap_or_default());
        events.push(Event { type_: EventType::Warning, reason: "NodeFailed", action: "Run", note });
    }
    let unlabelled = world.unlabelled.pods.len() + world.unlabelled.shards.len();
    if unlabelled > 0 {
        let note =
            format!("{unlabelled} pods or ConfigMaps have lost a label that Quintet needs; it is put back");
        events.push(Event { type_: EventType::Warning, reason: "LabelsRestored", action: "Label", note });
    }
    if world.deleted_shards.iter().any(|shard| !shard.terminating()) {
        let note =
            "A ConfigMap of the ledger was deleted; it is made again from what was last seen".to_owned();
        events.push(Event { type_: EventType::Warning, reason: "LedgerRestored", action: "Record", note });
    }
    events
}
