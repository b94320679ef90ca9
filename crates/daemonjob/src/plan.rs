//! What should be done for one DaemonJob: a pure function of what is observed and the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use quintet_kit::clock::{doubled, whole_seconds};
use quintet_kit::conditions::{self, Wanted};
use quintet_kit::object::{Object as _, controller_reference};
use quintet_kit::plan::{Action, Event, EventType, Plan};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::types::{Node, Phase, Pod};
use quintet_kit::{KIND_LABEL, digest};
use serde_json::{Value, json};

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::nodes::{Placement, Verdict, pinned};
use crate::observe::World;

/// Label: the DaemonJob's name, as the post meant to set it.
pub const NAME_LABEL: &str = "daemonjob";
/// Label: the DaemonJob's UID.
pub const UID_LABEL: &str = "dj.dysproz.io/daemonjob-uid";
/// Label: the UID of the node that the pod is for.
pub const NODE_UID_LABEL: &str = "dj.dysproz.io/node-uid";
/// Label: the hash of the template that the pod was made from.
pub const HASH_LABEL: &str = "dj.dysproz.io/template-hash";
/// Label: the run number, counted for each node by itself.
pub const RUN_LABEL: &str = "dj.dysproz.io/run";
/// Annotation: the name of the node that the pod is for.
pub const NODE_NAME_ANNOTATION: &str = "dj.dysproz.io/node-name";
/// Annotation: the node's boot ID when the pod was made.
pub const BOOT_ID_ANNOTATION: &str = "dj.dysproz.io/boot-id";

/// Failed pods that a node may have where the spec says nothing: the Job's default.
const BACKOFF_LIMIT: i32 = 6;
/// The wait after a node's first failed pod, as the Job controller's.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The longest wait between two pods of a node, as the Job controller's.
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);

/// What is the matter with one eligible node.
#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Its last success was made from the current template.
    Done,
    /// It has failed too often.
    Failed,
    /// A pod runs there, or is about to.
    Active,
    /// It must wait, for this reason.
    Waiting(Wait, String),
    /// It gets a pod of this run number now.
    Due(u64),
}

/// What a node waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    /// The end of its backoff.
    Backoff,
    /// Another try of the pod of this run, which the API server refused.
    Refused(u64),
}

/// Makes the plan.
pub fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = Plan::default();
    if job.terminating() {
        // Owner references take the pods away; a status would come too late to be read.
        return plan;
    }
    let hash = job.spec.template.hash();
    let before = job.status.clone().unwrap_or_default();
    let placement = Placement::of(job.spec.template.spec());
    let view = View::of(world);

    let mut eligible: Vec<&Arc<Node>> = world
        .nodes
        .iter()
        .filter(|node| !node.terminating() && placement.verdict(node) == Verdict::Run)
        .collect();
    eligible
        .sort_by(|one, other| other.ready.cmp(&one.ready).then_with(|| one.meta.name.cmp(&other.meta.name)));

    let limit = job.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT);
    let states: Vec<(&Arc<Node>, State)> = eligible
        .iter()
        .map(|node| (*node, state(job, &view, node, &hash, limit, world, now, &mut plan)))
        .collect();
    let count = |wanted: fn(&State) -> bool| states.iter().filter(|(_, state)| wanted(state)).count();
    let done = count(|state| *state == State::Done);
    let failed = count(|state| *state == State::Failed);
    let unfinished = eligible.len() - done - failed;
    let elsewhere = elsewhere(world, &states);
    let open = unfinished > 0 || elsewhere > 0;

    // The run: it starts with its status, before its first pod.
    let finished_before = conditions::is_true(&before.conditions, "Complete")
        || conditions::is_true(&before.conditions, "Failed");
    let ended = before.conditions.iter().any(|old| {
        old.type_ == "Failed"
            && old.status == "True"
            && old.reason == "DeadlineExceeded"
            && old.observed_generation == job.metadata.generation
    });
    let same_run = before.start_time.is_some()
        && before.template_hash.as_ref() == Some(&hash)
        && (ended || !finished_before || unfinished == 0);
    let start = match &before.start_time {
        Some(start) if same_run => start.0,
        _ => whole_seconds(now),
    };
    let deadline = job
        .spec
        .active_deadline_seconds
        .and_then(|seconds| start.checked_add(SignedDuration::from_secs(seconds)).ok());
    let exceeded = ended || open && deadline.is_some_and(|deadline| deadline <= now);
    if let (Some(deadline), false, true) = (deadline, exceeded, open) {
        plan.look_again(deadline);
    }

    let mut deletes: Vec<Action<DaemonJobStatus>> = Vec::new();
    for pod in &world.pods {
        let over = exceeded && pod.is_counted();
        if over || is_misplaced(pod, &view, &placement, &hash) {
            deletes.push(Action::Delete {
                resource: PODS,
                namespace: pod.meta.namespace.clone(),
                name: pod.meta.name.clone(),
                uid: pod.meta.uid.clone(),
                // Whether it has started decides, except at the end of the run.
                resource_version: (!over).then(|| pod.meta.resource_version.clone()),
            });
        }
    }
    if !deletes.is_empty() {
        plan.steps.push(deletes);
    }
    if same_run && !exceeded {
        let creates: Vec<_> = states
            .iter()
            .filter_map(|(node, state)| match state {
                State::Due(run) => Some(create(job, node, &hash, *run)),
                _ => None,
            })
            .collect();
        if !creates.is_empty() {
            plan.steps.push(creates);
        }
    }

    let status = status(
        job,
        world,
        &before,
        &Counts { states: &states, done, failed, elsewhere, exceeded },
        start,
        hash,
        now,
    );
    announce(&before, &status, &mut plan.events);
    plan.status = Some(status);
    plan
}

/// The pods, by what the rules ask about them.
struct View<'a> {
    nodes: BTreeMap<&'a str, &'a Arc<Node>>,
    by_node: BTreeMap<&'a str, Vec<&'a Arc<Pod>>>,
    running_on: BTreeSet<&'a str>,
}

impl<'a> View<'a> {
    fn of(world: &'a World) -> Self {
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in &world.pods {
            by_node.entry(pod.label(NODE_UID_LABEL).unwrap_or_default()).or_default().push(pod);
        }
        Self {
            nodes: world.nodes.iter().map(|node| (&*node.meta.uid, node)).collect(),
            by_node,
            running_on: world
                .pods
                .iter()
                .filter(|pod| pod.is_running())
                .filter_map(|pod| pinned_to(pod))
                .collect(),
        }
    }
}

/// The name of the node that a pod was made for.
fn pinned_to(pod: &Pod) -> Option<&str> {
    pod.meta.annotations.get(NODE_NAME_ANNOTATION).or(pod.node.as_deref())
}

fn run_of(pod: &Pod) -> u64 {
    pod.label(RUN_LABEL).and_then(|run| run.parse().ok()).unwrap_or(0)
}

/// A pod that was asked to go, or was disrupted, before it ended: its failure counts for nobody.
fn is_disrupted(pod: &Pod) -> bool {
    pod.phase == Phase::Failed && (pod.disrupted || pod.meta.deleted.is_some())
}

#[expect(clippy::too_many_arguments, reason = "the inputs of one rule")]
fn state(
    job: &DaemonJob,
    view: &View<'_>,
    node: &Node,
    hash: &str,
    limit: i32,
    world: &World,
    now: Timestamp,
    plan: &mut Plan<DaemonJobStatus>,
) -> State {
    let pods = view.by_node.get(&*node.meta.uid).map_or(&[][..], Vec::as_slice);
    let last_success = pods.iter().filter(|pod| pod.phase == Phase::Succeeded).max_by_key(|pod| run_of(pod));
    if last_success.is_some_and(|pod| pod.label(HASH_LABEL) == Some(hash)) {
        return State::Done;
    }
    // One running pod for a node name, whichever node, template or run it was made for.
    if view.running_on.contains(&*node.meta.name) {
        return State::Active;
    }
    let current =
        || pods.iter().filter(|pod| pod.phase == Phase::Failed && pod.label(HASH_LABEL) == Some(hash));
    let failures = current().filter(|pod| !is_disrupted(pod)).count();
    if i64::try_from(failures).unwrap_or(i64::MAX) > i64::from(limit) {
        return State::Failed;
    }
    let attempts = current().count();
    if let Some(last) = current().filter_map(|pod| pod.finished.or(pod.meta.created)).max()
        && attempts > 0
    {
        let doublings = u32::try_from(attempts - 1).unwrap_or(u32::MAX);
        let wait = doubled(FIRST_BACKOFF, doublings, LONGEST_BACKOFF);
        let until = last.checked_add(wait).unwrap_or(now);
        if until > now {
            plan.look_again(until);
            let why = format!("backing off until {} after {attempts} pods", whole_seconds(until));
            return State::Waiting(Wait::Backoff, why);
        }
    }
    let run = pods.iter().map(|pod| run_of(pod)).max().unwrap_or(0) + 1;
    if let Some(refusal) = world.refusals.get(&pod_name(job, node, run))
        && refusal.until > now
    {
        plan.look_again(refusal.until);
        return State::Waiting(Wait::Refused(run), format!("{}: {}", refusal.reason, refusal.message));
    }
    State::Due(run)
}

/// A pod that has not started and must not: made from an old template, or for a node that is gone or no longer
/// eligible. Nobody else deletes a pod that is pinned to a node that does not exist.
fn is_misplaced(pod: &Pod, view: &View<'_>, placement: &Placement, hash: &str) -> bool {
    if !pod.is_counted() {
        return false;
    }
    match pod.label(NODE_UID_LABEL).and_then(|uid| view.nodes.get(uid)) {
        None => true,
        Some(node) => {
            pod.phase == Phase::Pending
                && (pod.label(HASH_LABEL) != Some(hash)
                    || pod.node.is_none() && matches!(placement.verdict(node), Verdict::Refuse(_)))
        }
    }
}

/// The name of a node's pod: the same for whoever makes it, so that two makers collide at the API server.
fn pod_name(job: &DaemonJob, node: &Node, run: u64) -> String {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let name = job.meta().name.as_deref().unwrap_or_default();
    format!("{}-{}-{run}", digest::cut(name, 40), digest::short(&[uid, &node.meta.uid], 10))
}

fn create(job: &DaemonJob, node: &Node, hash: &str, run: u64) -> Action<DaemonJobStatus> {
    let meta = job.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = pod_name(job, node, run);
    let mut body = job.spec.template.pod(
        namespace,
        &name,
        &controller_reference(&Resource::of::<DaemonJob>(), meta),
        &[
            (KIND_LABEL, "DaemonJob"),
            (NAME_LABEL, meta.name.as_deref().unwrap_or_default()),
            (UID_LABEL, meta.uid.as_deref().unwrap_or_default()),
            (NODE_UID_LABEL, &node.meta.uid),
            (HASH_LABEL, hash),
            (RUN_LABEL, &run.to_string()),
        ],
        &[(NODE_NAME_ANNOTATION, &node.meta.name), (BOOT_ID_ANNOTATION, &node.boot_id)],
    );
    let mut spec = pinned(job.spec.template.spec(), &node.meta.name);
    // A pod that is always restarted never completes; the post made it OnFailure too.
    if matches!(spec.get("restartPolicy").and_then(Value::as_str), None | Some("Always")) {
        spec["restartPolicy"] = json!("OnFailure");
    }
    body["spec"] = spec;
    Action::Create { resource: PODS, namespace: namespace.into(), name, body }
}

/// Nodes that are not eligible, or gone, but where a pod still runs.
fn elsewhere(world: &World, states: &[(&Arc<Node>, State)]) -> usize {
    let eligible: BTreeSet<&str> = states.iter().map(|(node, _)| &*node.meta.uid).collect();
    let running: BTreeSet<&str> = world
        .pods
        .iter()
        .filter(|pod| pod.is_running())
        .filter_map(|pod| pod.label(NODE_UID_LABEL))
        .filter(|uid| !eligible.contains(uid))
        .collect();
    running.len()
}

struct Counts<'a> {
    states: &'a [(&'a Arc<Node>, State)],
    done: usize,
    failed: usize,
    elsewhere: usize,
    exceeded: bool,
}

fn status(
    job: &DaemonJob,
    world: &World,
    before: &DaemonJobStatus,
    counts: &Counts<'_>,
    start: Timestamp,
    hash: String,
    now: Timestamp,
) -> DaemonJobStatus {
    let Counts { states, done, failed, elsewhere, exceeded } = *counts;
    let pending =
        states.iter().filter(|(_, state)| matches!(state, State::Waiting(..) | State::Due(_))).count();
    let unfinished = states.len() - done - failed;
    let desired = states.len() + elsewhere;

    let complete = unfinished == 0 && failed == 0 && elsewhere == 0 && !exceeded;
    let waits = || {
        states
            .iter()
            .find_map(|(node, state)| match state {
                State::Waiting(_, why) => Some(format!("; {}: {why}", node.meta.name)),
                _ => None,
            })
            .unwrap_or_default()
    };
    let nodes_failed = unfinished == 0 && failed > 0 && elsewhere == 0;
    let (reason, message) = if complete && states.is_empty() {
        ("NoEligibleNodes", "No node is eligible.".to_owned())
    } else if complete {
        ("AllNodesDone", format!("All {done} eligible nodes are done."))
    } else if exceeded {
        ("DeadlineExceeded", format!("{done} of {desired} nodes were done in time."))
    } else if nodes_failed {
        ("NodesFailed", format!("{failed} of {desired} nodes have failed, {done} are done."))
    } else {
        ("NodesPending", format!("{done} of {desired} nodes are done{}", waits()))
    };
    let mut wanted =
        vec![Wanted { type_: "Complete", status: Some(complete), reason, message: message.clone() }];
    let has_failed = exceeded || nodes_failed;
    wanted.push(Wanted {
        type_: "Failed",
        status: Some(has_failed),
        reason: if has_failed { reason } else { "NotFailed" },
        message: if has_failed { message } else { String::new() },
    });
    // Of the pods that are wanted now: True until one goes through, also while it is tried again.
    let mut wanted_names = states.iter().filter_map(|(node, state)| match state {
        State::Due(run) | State::Waiting(Wait::Refused(run), _) => Some(pod_name(job, node, *run)),
        _ => None,
    });
    if let Some(refusal) = wanted_names.find_map(|name| world.refusals.get(&name)) {
        let reason = if refusal.reason == "NameTaken" { "NameTaken" } else { "FailedCreate" };
        wanted.push(Wanted {
            type_: "PodsRefused",
            status: Some(true),
            reason,
            message: refusal.message.clone(),
        });
    }
    if job.spec.selector.is_some() || job.spec.manual_selector.is_some() {
        wanted.push(Wanted {
            type_: "SelectorIgnored",
            status: Some(true),
            reason: "NoEffect",
            message:
                "selector and manualSelector are accepted without effect: pods belong to their DaemonJob \
                      by owner reference"
                    .to_owned(),
        });
    }
    let finished = complete || has_failed;
    DaemonJobStatus {
        observed_generation: job.metadata.generation,
        desired: number(desired),
        active: number(world.pods.iter().filter(|pod| pod.is_counted()).count()),
        succeeded: number(done),
        failed: number(failed),
        pending: number(pending),
        terminating: number(
            world.pods.iter().filter(|pod| pod.is_running() && pod.meta.deleted.is_some()).count(),
        ),
        start_time: Some(Time(start)),
        completion_time: match (&before.completion_time, complete) {
            (Some(at), true) if before.start_time == Some(Time(start)) => Some(at.clone()),
            (_, true) => Some(Time(whole_seconds(now))),
            (_, false) => None,
        },
        template_hash: Some(hash),
        conditions: conditions::next(
            if finished || before.start_time == Some(Time(start)) { &before.conditions } else { &[] },
            wanted,
            job.metadata.generation,
            now,
        ),
    }
}

fn number(count: usize) -> Option<i32> {
    i32::try_from(count).ok()
}

/// An Event when a run ends, made from the difference of two statuses so that it comes once.
fn announce(before: &DaemonJobStatus, after: &DaemonJobStatus, events: &mut Vec<Event>) {
    for (condition, type_, reason) in
        [("Complete", EventType::Normal, "Completed"), ("Failed", EventType::Warning, "Failed")]
    {
        if conditions::is_true(&after.conditions, condition)
            && !conditions::is_true(&before.conditions, condition)
        {
            let note = after
                .conditions
                .iter()
                .find(|one| one.type_ == condition)
                .map(|one| one.message.clone())
                .unwrap_or_default();
            events.push(Event { type_, reason, action: "Finish", note });
        }
    }
}

#[cfg(test)]
mod tests;
