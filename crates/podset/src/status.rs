//! The status of a PodSet, and the Events from its changes.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource as _;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions::{self, READY, Wanted, number};
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::plan::{Event, EventType};

use crate::api::{NotReady, PodSet, PodSetStatus, UpdateStrategyType};
use crate::labels::UID_LABEL;
use crate::observe::World;
use crate::revision::{self, CurrentTemplate, Templates};
use crate::rollout::{CandidatePod, Limits};

/// The reason of ReplicaFailure for a current template that is not stored.
const REVISION_MISSING: &str = "RevisionMissing";
/// The reason of Progressing after progressDeadlineSeconds without progress.
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
/// The limit of pod names in the status.
const MOST_NAMES: usize = 100;
/// The limit of pods that are not ready in the status.
const MOST_NOT_READY: usize = 20;
/// The default of progressDeadlineSeconds, as for a Deployment.
const PROGRESS_DEADLINE: i32 = 600;

/// The results of a plan that the status reports.
pub struct StatusInput<'a> {
    /// The templates.
    pub templates: &'a Templates<'a>,
    /// The limits of the spec.
    pub limits: Limits,
    /// The world.
    pub world: &'a World,
    /// Whether the plan adopts pods. The next plan knows their templates.
    pub is_adopting: bool,
    /// The counted pods.
    pub members: Vec<CandidatePod<'a>>,
    /// Pods that are being deleted and have not ended.
    pub terminating: usize,
    /// How many pods of older templates are still to be replaced.
    pub outdated: usize,
    /// Until when the replacement waits for pods that keep ending.
    pub held_until: Option<Timestamp>,
    /// The refusal to report: the reason of the condition, and the API server's message.
    pub failure: Option<(&'static str, &'a str)>,
}

/// Returns the status, and when it changes by time alone.
pub fn status(podset: &PodSet, found: &StatusInput<'_>, now: Timestamp) -> (PodSetStatus, Option<Timestamp>) {
    let members = &found.members;
    let nothing = PodSetStatus::default();
    let before = podset.status.as_ref().unwrap_or(&nothing);
    let all_ready = || members.iter().filter(|member| member.pod.ready_since.is_some());
    let available = members.iter().filter(|member| member.available).count();
    let updated = members.iter().filter(|member| !member.outdated).count();
    let mut pod_names: Vec<String> = all_ready().map(|member| member.pod.meta.name.to_string()).collect();
    pod_names.sort_unstable();
    pod_names.truncate(MOST_NAMES);
    let mut not_ready: Vec<NotReady> =
        members.iter().filter_map(|member| why_not_ready(member.pod)).collect();
    not_ready.sort_unstable_by(|one, other| one.pod.cmp(&other.pod));
    let more_not_ready = number(not_ready.len().saturating_sub(MOST_NOT_READY)).filter(|more| *more > 0);
    not_ready.truncate(MOST_NOT_READY);

    let meta = podset.meta();
    let mut status = PodSetStatus {
        observed_generation: meta.generation,
        replicas: number(members.len()),
        ready_replicas: number(all_ready().count()),
        available_replicas: number(available),
        updated_replicas: number(updated),
        terminating_replicas: number(found.terminating),
        pod_names,
        not_ready,
        more_not_ready,
        update_revision: Some(revision::name(podset, found.templates.updated)),
        current_revision: if found.is_adopting {
            before.current_revision.clone()
        } else {
            Some(revision::name(podset, &found.templates.current))
        },
        template_hash: Some(found.templates.updated.to_owned()),
        last_progress_time: None,
        selector: Some(format!("{UID_LABEL}={}", meta.uid.as_deref().unwrap_or_default())),
        conditions: Vec::new(),
    };
    let is_complete = is_complete(podset, found, available);
    // The deadline starts over when a complete PodSet is no longer complete.
    let is_settled = is_complete || is_paused(found);
    let begins = !is_settled && (was_settled(before) || before.observed_generation != meta.generation);
    let since = match &before.last_progress_time {
        Some(at) if !begins && !has_progressed(before, &status) => at.0,
        _ => whole_seconds(now),
    };
    status.last_progress_time = Some(Time(since));
    let deadline =
        SignedDuration::from_secs(podset.spec.progress_deadline_seconds.unwrap_or(PROGRESS_DEADLINE).into());
    let deadline = since.checked_add(deadline).unwrap_or(Timestamp::MAX);

    let wanted = found.limits.wanted;
    let is_enough = available >= found.limits.needed;
    let is_done = matches_spec(found, available);
    let held_until = found.held_until.filter(|_| available < wanted).map(whole_seconds);
    let waits = held_until.map(|at| format!(" Pods keep ending. The next one is created at {at}."));
    let waits = waits.unwrap_or_default();
    let progressing = progressing(podset, found, available, (deadline, now));
    let waits_for_deadline = progressing.reason == "Updating";
    let failure = replica_failure(found);
    let stalled = (progressing.status == Some(false)).then(|| progressing.stalled());
    let available = Wanted {
        type_: "Available",
        status: Some(is_enough),
        reason: if is_enough { "PodsAvailable" } else { "PodsUnavailable" },
        message: format!("{} of {wanted} pods are available.{waits}", available.min(wanted)),
    };
    let ready = ready(&failure, &progressing, &available, is_done);
    let all = [ready, available, progressing, failure].into_iter().chain(stalled);
    status.conditions = conditions::next(&before.conditions, all, meta.generation, now);
    (status, waits_for_deadline.then_some(deadline))
}

/// The first of these obstacles that explains why the PodSet is not ready.
fn ready(failure: &Wanted, progressing: &Wanted, available: &Wanted, is_done: bool) -> Wanted {
    let is_complete = COMPLETE.contains(&progressing.reason);
    let (is_ready, reason, message) = match failure.status {
        // Until a pod needs the missing template, nothing fails.
        Some(true) if failure.reason != REVISION_MISSING => (false, failure.reason, &failure.message),
        // A pod failed after the rollout. Enough others may be available.
        _ if is_complete && !is_done => (false, "PodsUnavailable", &available.message),
        _ => (is_complete, progressing.reason, &progressing.message),
    };
    Wanted { type_: READY, status: Some(is_ready), reason, message: message.clone() }
}

fn replica_failure(found: &StatusInput<'_>) -> Wanted {
    let (status, reason, message) = match found.failure {
        _ if found.world.refusals.namespace_terminating => (
            true,
            "NamespaceTerminating",
            "the namespace is being deleted, so no pod can be created".to_owned(),
        ),
        Some((reason, message)) => (true, reason, message.to_owned()),
        None if found.templates.kept > 0 && found.world.current_template == CurrentTemplate::Missing => (
            true,
            REVISION_MISSING,
            "the ControllerRevision of status.currentRevision is missing, so a lost pod of this template is \
             replaced by one of the spec's template"
                .to_owned(),
        ),
        None => (false, "NoFailure", String::new()),
    };
    Wanted { type_: "ReplicaFailure", status: Some(status), reason, message }
}

/// Whether there was progress since `before`: more available pods, fewer outdated pods, or another template.
/// A creation alone is not progress, because a pod may end and be created again.
fn has_progressed(before: &PodSetStatus, after: &PodSetStatus) -> bool {
    let outdated = |status: &PodSetStatus| Some(status.replicas? - status.updated_replicas?);
    before.template_hash != after.template_hash
        || after.available_replicas > before.available_replicas
        || outdated(after) < outdated(before)
}

/// Whether pods of an older template wait for the end of a pause.
fn is_paused(found: &StatusInput<'_>) -> bool {
    found.limits.paused && found.members.iter().any(|member| member.outdated)
}

/// The reasons of Progressing after a complete rollout.
const COMPLETE: [&str; 3] = ["PodsUpdated", "OnDelete", "PartitionReached"];

/// Whether the pods match the spec, or have matched it and only their availability has changed since. As for a
/// Deployment, a pod that fails later does not make the rollout fail.
fn is_complete(podset: &PodSet, found: &StatusInput<'_>, available: usize) -> bool {
    let generation = podset.meta().generation;
    let was_complete = || {
        let progressing = podset.status.as_ref().and_then(progressing_before);
        progressing.is_some_and(|before| {
            COMPLETE.contains(&&*before.reason) && before.observed_generation == generation
        })
    };
    matches_spec(found, available) || found.outdated == 0 && was_complete()
}

/// Whether all desired pods are available, and no rollout is to do.
fn matches_spec(found: &StatusInput<'_>, available: usize) -> bool {
    found.members.len() == found.limits.wanted && available >= found.limits.wanted && found.outdated == 0
}

fn progressing_before(before: &PodSetStatus) -> Option<&Condition> {
    before.conditions.iter().find(|condition| condition.type_ == "Progressing")
}

/// Whether the rollout was complete, paused or not automatic.
fn was_settled(before: &PodSetStatus) -> bool {
    progressing_before(before)
        .is_some_and(|condition| COMPLETE.contains(&&*condition.reason) || condition.reason == "Paused")
}

fn progressing(
    podset: &PodSet,
    found: &StatusInput<'_>,
    available: usize,
    (deadline, now): (Timestamp, Timestamp),
) -> Wanted {
    let strategy = podset.spec.update_strategy.as_ref();
    let all = found.members.len();
    let older = found.members.iter().filter(|member| member.outdated).count();
    let so_far = format!("{} of {} pods have the spec's template", all - older, found.limits.wanted);
    let say = |status, reason, message| Wanted { type_: "Progressing", status, reason, message };
    let is_complete = is_complete(podset, found, available);
    if is_paused(found) {
        return say(None, "Paused", format!("updateStrategy.paused is set; {so_far}."));
    }
    if !is_complete && deadline <= now {
        let first = found.members.iter().filter(|member| !member.outdated);
        let mut stuck = first.filter_map(|member| why_not_ready(member.pod));
        let why = stuck.next().map(|first| format!("; {}: {} {}", first.pod, first.reason, first.message));
        let message = format!("{so_far}, {available} are available{}", why.unwrap_or_default());
        return say(Some(false), DEADLINE_EXCEEDED, message);
    }
    if !is_complete {
        return say(Some(true), "Updating", format!("{so_far}, {available} are available."));
    }
    let on_delete = strategy.is_some_and(|strategy| strategy.type_ == UpdateStrategyType::OnDelete);
    match older {
        0 => say(Some(true), "PodsUpdated", format!("All {all} pods have the spec's template.")),
        _ if on_delete => {
            say(Some(true), "OnDelete", format!("{so_far}; the others are replaced after their deletion."))
        }
        _ => say(Some(true), "PartitionReached", format!("{so_far}; partition keeps the others.")),
    }
}

/// Why a counted pod is not ready; None if it is ready.
fn why_not_ready(pod: &Pod) -> Option<NotReady> {
    if pod.ready_since.is_some() {
        return None;
    }
    // Before a restart, the container is terminated and has no waiting reason.
    let crash_loop = pod.crashed.as_ref().map(|_| "CrashLoopBackOff");
    let (reason, message) = if let Some(message) = &pod.unschedulable {
        ("Unschedulable", message.to_string())
    } else if let Some(waiting) = pod.held_up().or(crash_loop) {
        let crashed = pod.crashed.as_ref().map(|exit| {
            let word = if exit.reason.is_empty() { "Error" } else { &*exit.reason };
            format!("container {} ended with exit code {} ({word})", exit.container, exit.code)
        });
        (waiting, crashed.unwrap_or_default())
    } else if pod.node.is_none() {
        ("Scheduling", String::new())
    } else if pod.phase == Phase::Unknown {
        ("Unknown", "the node does not report".to_owned())
    } else if pod.phase == Phase::Pending {
        ("Starting", String::new())
    } else {
        ("NotReady", "the pod runs; its readiness probes or gates fail".to_owned())
    };
    let message = conditions::shorten(message, 256);
    Some(NotReady { pod: pod.meta.name.to_string(), reason: reason.to_owned(), message })
}

/// Returns Events from the difference of two statuses, so that each is recorded once.
pub fn events(before: Option<&PodSetStatus>, after: &PodSetStatus) -> Vec<Event> {
    let was = before.and_then(progressing_before).map(|before| &*before.reason);
    let Some(now) = progressing_before(after) else { return Vec::new() };
    let (type_, reason) = match (was, &*now.reason) {
        (Some(DEADLINE_EXCEEDED), "PodsUpdated") => (EventType::Normal, "PodsUpdated"),
        (was, DEADLINE_EXCEEDED) if was != Some(DEADLINE_EXCEEDED) => (EventType::Warning, DEADLINE_EXCEEDED),
        _ => return Vec::new(),
    };
    vec![Event { type_, reason, action: "Update", note: now.message.clone() }]
}
