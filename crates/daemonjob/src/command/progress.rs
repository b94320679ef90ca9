//! The progress of a DaemonJob's rollout, from its status.

use quintet_runtime::model::conditions::{READY, find_true};
use quintet_runtime::model::rollout::{RolloutState, RolloutStatus, Step};

use super::subject::{Subject, count};
use crate::api::{DaemonJob, DaemonJobStatus, NodeReason};
use crate::marks::REFUSED as MARK_REFUSED;
use crate::status::RUNS_AT_DUE_TIME;
use crate::waves::{WaitingFor, paused};

/// The number of nodes that the details list.
const LISTED: usize = 5;

/// Why the manager creates no pods, or does not mark the done nodes. The conditions Suspended, Paused, PodsRefused,
/// ScheduleInvalid and Ready have the names of the variants as reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub(super) enum Hold {
    DefinitionOutdated,
    FleetUnhealthy,
    MarkRefused,
    MaxFailedNodesExceeded,
    Paused,
    PausedByAnnotation,
    ScheduleInvalid,
    Suspended,
    TemplateInvalid,
    WaitsForApproval,
    WaitsForDueTime,
    WaveFailed,
    /// A reason that this version does not know.
    Other,
}

/// The meaning of the status for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The manager has not observed a change by the user.
    Unobserved(&'static str),
    /// Pods run, or will run without a user.
    Working,
    /// The rollout is complete.
    Complete,
    /// The rollout has ended, and is not complete.
    Failed,
    /// The manager creates no pods, or does not mark the done nodes.
    Held(Hold),
}

/// The progress of a rollout.
pub fn progress(job: &DaemonJob) -> RolloutStatus {
    let subject = Subject { job };
    let phase = phase(subject);
    let (reason, message) = summary(subject);
    let (state, message, details) = match phase {
        Phase::Unobserved(change) => {
            let message = format!("The manager has not observed {change} yet.");
            (RolloutState::Continues, message, Vec::new())
        }
        Phase::Working => {
            (RolloutState::Continues, format!("{}{message}", wave_progress(subject)), Vec::new())
        }
        Phase::Complete => (RolloutState::Complete, message.to_owned(), Vec::new()),
        Phase::Failed => {
            let message = format!("{subject} failed ({reason}): {message}");
            (RolloutState::Failed, message, details(subject, Hold::MaxFailedNodesExceeded))
        }
        Phase::Held(hold) => {
            let (state, verb) = match hold {
                Hold::ScheduleInvalid | Hold::TemplateInvalid => (RolloutState::Failed, "failed"),
                _ => (RolloutState::Held, "is held"),
            };
            let wave = wave(subject).map(|wave| format!(" in {wave}")).unwrap_or_default();
            let word = if hold == Hold::Other { reason } else { <&'static str>::from(hold) };
            (state, format!("{subject} {verb}{wave} ({word}): {message}"), details(subject, hold))
        }
    };
    RolloutStatus { state, message, details, steps: steps(subject, state == RolloutState::Complete) }
}

/// The meaning of the status. A change of an annotation does not change the generation.
pub(super) fn phase(subject: Subject<'_>) -> Phase {
    let Some(status) = subject.observed() else { return Phase::Unobserved("the change of the spec") };
    let is_true = |type_| find_true(&status.conditions, type_).is_some();
    let ready = find_true(&status.conditions, READY).map(|ready| ready.reason.as_str());
    match ready {
        Some(reason) if reason == <&str>::from(Hold::WaitsForDueTime) => {
            return Phase::Held(Hold::WaitsForDueTime);
        }
        // A DaemonJob stays Ready while nodes join after its rollout was complete, and while nodes run at a due time.
        Some(reason) if reason != RUNS_AT_DUE_TIME && !is_true("Suspended") => return Phase::Complete,
        _ => {}
    }
    if is_true("Failed") {
        return Phase::Failed;
    }
    let is_paused = paused(subject.job).is_some();
    match hold(subject, status) {
        Some(Hold::WaitsForApproval) if subject.is_approved(false) => Phase::Unobserved("the approval"),
        Some(Hold::WaveFailed) if subject.is_approved(true) => Phase::Unobserved("the approval"),
        Some(Hold::PausedByAnnotation) if !is_paused => Phase::Unobserved("the end of the pause"),
        Some(hold) => Phase::Held(hold),
        None if is_true("Stalled") => Phase::Failed,
        None if is_paused => Phase::Unobserved("the pause"),
        None => Phase::Working,
    }
}

fn hold(subject: Subject<'_>, status: &DaemonJobStatus) -> Option<Hold> {
    let of = |type_| {
        let condition = find_true(&status.conditions, type_)?;
        Some(condition.reason.parse().unwrap_or(Hold::Other))
    };
    // The manager retries a rejected pod, except one of an invalid template.
    let refused = || of("PodsRefused").filter(|hold| *hold == Hold::TemplateInvalid);
    let waits = || match subject.waiting_for()? {
        WaitingFor::Approval => Some(Hold::WaitsForApproval),
        WaitingFor::WaveFailed => Some(Hold::WaveFailed),
        // A condition reports the other holds.
        _ => None,
    };
    // The manager retries a rejected mark, except one that the chart does not allow.
    let unmarked = || {
        let is_refused = find_true(&status.conditions, "Stalled")?.reason == MARK_REFUSED;
        is_refused.then_some(Hold::MarkRefused)
    };
    let invalid = || of("ScheduleInvalid");
    of("Suspended")
        .or_else(|| of("Paused"))
        .or_else(refused)
        .or_else(invalid)
        .or_else(waits)
        .or_else(unmarked)
}

/// The reason and the message of the condition Ready, which sums up the status.
fn summary(subject: Subject<'_>) -> (&str, &str) {
    let conditions = subject.job.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let ready = conditions.iter().find(|condition| condition.type_ == READY);
    ready.map_or(("", ""), |ready| (&*ready.reason, &*ready.message))
}

/// The current wave in words; None without waves.
fn wave(subject: Subject<'_>) -> Option<String> {
    let last = ends(subject).len() as u64;
    subject.wave().map(|current| format!("wave {} of {last}", current.min(last)))
}

/// The progress of the current wave, as the beginning of a message.
fn wave_progress(subject: Subject<'_>) -> String {
    let (Some(current), ends) = (subject.wave(), ends(subject)) else { return String::new() };
    let at = usize::try_from(current).unwrap_or(usize::MAX).min(ends.len());
    let Some(end) = at.checked_sub(1).and_then(|at| ends.get(at)) else { return String::new() };
    let (settled, started) = (subject.settled(), subject.started());
    let note = note(subject.waiting_for());
    format!(
        "Wave {at} of {} ({note}): {settled} of {end} nodes are settled, {started} have started. ",
        ends.len()
    )
}

/// The current work of a wave.
fn note(waiting_for: Option<WaitingFor>) -> &'static str {
    match waiting_for {
        Some(WaitingFor::Nodes) => "running",
        Some(WaitingFor::Settling) => "settling",
        Some(WaitingFor::Approval) => "waits for approval",
        Some(WaitingFor::WaveFailed) => "failed",
        Some(WaitingFor::Paused) => "paused",
        Some(WaitingFor::Repair) => "needs a repair",
        None => "waiting",
    }
}

/// The lines below the message: failed or unhealthy nodes, and the command that continues the rollout.
fn details(subject: Subject<'_>, hold: Hold) -> Vec<String> {
    let Some(status) = &subject.job.status else { return Vec::new() };
    let (nodes, more) = match hold {
        Hold::MaxFailedNodesExceeded | Hold::WaveFailed => {
            (&status.failed_nodes[..], status.more_failed_nodes)
        }
        Hold::FleetUnhealthy => (&status.pending_nodes[..], status.more_pending_nodes),
        _ => (&[][..], None),
    };
    let mut lines: Vec<String> = nodes.iter().take(LISTED).map(node).collect();
    let more = count(more) + nodes.len().saturating_sub(LISTED) as u64;
    if more > 0 {
        lines.push(format!("{more} more nodes: quintet explain {} lists them", subject.target()));
    }
    lines.extend(ways_out(subject, hold));
    lines
}

fn node(node: &NodeReason) -> String {
    format!("{}: {}: {}", node.node, node.reason, node.message)
}

/// The commands that continue the rollout.
fn ways_out(subject: Subject<'_>, hold: Hold) -> Vec<String> {
    let target = subject.target();
    let set_false = |field: &str| {
        let target = target.replacen('/', " ", 1);
        let patch = format!("'{{\"spec\":{{\"{field}\":false}}}}'");
        vec![format!("To continue, run: kubectl patch {target} --type=merge -p {patch}")]
    };
    match hold {
        Hold::WaitsForApproval => vec![format!("To continue, run: quintet rollout approve {target}")],
        Hold::WaveFailed => {
            let wave = subject.wave().unwrap_or_default();
            vec![
                format!("To retry the failed nodes, run: quintet rollout retry {target}"),
                format!("To continue without them, run: quintet rollout approve {target} --wave={wave}"),
            ]
        }
        Hold::PausedByAnnotation => vec![format!("To continue, run: quintet rollout resume {target}")],
        Hold::Paused => set_false("paused"),
        Hold::Suspended => set_false("suspend"),
        Hold::MaxFailedNodesExceeded => {
            vec![format!("To retry the failed nodes, run: quintet rollout retry {target}")]
        }
        Hold::FleetUnhealthy => vec![
            "To continue, repair or delete the unhealthy nodes.".to_owned(),
            format!("To list all nodes, run: quintet explain {target}"),
        ],
        Hold::DefinitionOutdated => {
            vec!["To continue, apply the CustomResourceDefinition of the manager's version.".to_owned()]
        }
        Hold::MarkRefused => {
            vec!["To continue, allow the keys in the chart, or change onSuccess.".to_owned()]
        }
        Hold::TemplateInvalid => vec!["To continue, fix the template.".to_owned()],
        Hold::ScheduleInvalid => vec!["To continue, fix schedule or timeZone.".to_owned()],
        Hold::WaitsForDueTime => Vec::new(),
        Hold::Other => vec![format!("To list all nodes, run: quintet explain {target}")],
    }
}

/// The number of nodes that have started at the end of each wave, the last wave included. The sizes are
/// cumulative, and a node that was skipped belongs to no wave.
fn ends(subject: Subject<'_>) -> Vec<u64> {
    let status = subject.job.status.as_ref();
    let base = count(subject.rollout().map(|rollout| rollout.base));
    let skipped = count(status.and_then(|status| status.skipped));
    let all = base.saturating_sub(skipped).max(subject.started());
    subject.sizes().filter(|size| *size < all).chain([all]).collect()
}

/// A step for each wave, or one step for all nodes of a DaemonJob without waves.
fn steps(subject: Subject<'_>, is_complete: bool) -> Vec<Step> {
    let Some(status) = subject.observed() else { return Vec::new() };
    let Some(current) = subject.wave() else {
        let (done, failed) = (count(status.succeeded), count(status.failed));
        let note = if failed > 0 { format!("{failed} failed") } else { String::new() };
        return vec![Step { name: "Nodes".to_owned(), done, size: count(status.desired), note }];
    };
    let mut steps = Vec::new();
    let mut before = 0;
    for (number, end) in (1..).zip(ends(subject)) {
        let size = end.saturating_sub(before);
        // Failed and skipped nodes of earlier waves do not settle.
        let has_passed = is_complete || number < current;
        let done = if has_passed { size } else { subject.settled().saturating_sub(before).min(size) };
        let note = if number == current && !is_complete { note(subject.waiting_for()) } else { "" };
        steps.push(Step { name: format!("Wave {number}"), done, size, note: note.to_owned() });
        before = end;
    }
    steps
}
