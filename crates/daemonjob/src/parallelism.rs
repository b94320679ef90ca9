//! Decides which nodes get a pod now: the slots of `parallelism` and their holders.
//!
//! A pod that has not ended holds a slot, and so does a node that has been not Ready since an attempt. Unless
//! the failure policy is Continue, a node that waits for its retry does too. The longest holder goes first.
//! After `kubectl replace --force`, running pods of the deleted DaemonJob hold slots too, and their nodes wait.
//! With waves, only some of the nodes that have not started get a slot.

use foldhash::{HashMap, HashSet, HashSetExt as _};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::int_or_percent::{Round, scaled_value};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::MOST_CREATIONS;

use crate::api::{DaemonJob, OutdatedPods};
use crate::history::AssessedPod;
use crate::labels::pinned_to;
use crate::node_state::{
    Cause, Message, Reason, SelectedNode, State, counted, node_lost_after, occupants, pod_name,
};
use crate::observe::World;
use crate::outcome::DeletedFor;
use crate::rollout::Key;
use crate::survey::Survey;
use crate::waves::{Waves, order};

/// The number of pods that may run at the same time, or None without a limit.
pub fn parallelism(job: &DaemonJob, desired: usize) -> Option<usize> {
    let amount = job.spec.parallelism.as_ref()?;
    // A percentage always allows one pod.
    let least = usize::from(matches!(amount, IntOrString::String(_)));
    scaled_value(amount, desired, Round::Up).map(|limit| limit.max(least))
}

/// By the index of a node in the survey's histories: whether a pod for it holds a slot.
fn occupied(survey: &Survey<'_>) -> Vec<bool> {
    let mut occupied = vec![false; survey.histories.nodes.len()];
    let holders = survey.pods().iter().filter(|assessed| survey.holds_slot(assessed));
    for at in holders.filter_map(|assessed| assessed.on_at) {
        occupied[at] = true;
    }
    occupied
}

/// The slots and their use.
struct Slots {
    limit: usize,
    /// Pods that have not ended.
    running: usize,
    /// Running pods, and nodes that hold a slot without a pod.
    held: usize,
    made: usize,
    /// The number of further nodes that may start in the wave.
    room: usize,
}

/// The running pods of deleted DaemonJobs with the same name. They occupy their nodes.
fn predecessors(world: &World) -> impl Iterator<Item = &Pod> {
    let occupies = |pod: &&Pod| pod.is_running() && (pod.node.is_some() || !pod.terminating());
    world.predecessors.iter().map(|pod| &**pod).filter(occupies)
}

/// When such a pod loses its slot: its node is then lost, although this DaemonJob has no attempt there. None
/// while the node is Ready.
fn loses_slot_at(job: &DaemonJob, world: &World, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    let name = pinned_to(pod)?;
    let at = world.nodes.binary_search_by(|node| (*node.meta.name).cmp(name)).ok()?;
    let node = world.nodes.get(at).filter(|node| !node.ready)?;
    world.clocks.node(&node.meta.uid).not_ready.unwrap_or(now).checked_add(node_lost_after(job)).ok()
}

/// Gives slots to nodes, unless the run is held.
pub(crate) fn take_turns<'a>(survey: &mut Survey<'a>, job: &DaemonJob, world: &'a World, now: Timestamp) {
    let limit = parallelism(job, survey.desired());
    for pod in predecessors(world) {
        let until = loses_slot_at(job, world, pod, now);
        if until.is_none_or(|until| until > now) {
            survey.predecessors.push(pod);
            // In an outage the clocks of the nodes stop, and the recovery of a node is an event.
            let is_outage = survey.hold.as_ref().is_some_and(|hold| hold.cause == Cause::FleetUnhealthy);
            survey.requeue_at(until.filter(|_| !is_outage));
        }
    }
    let running = survey.pods().iter().filter(|assessed| survey.holds_slot(assessed)).count()
        + survey.predecessors.len();
    let occupied = occupied(survey);
    let holders = survey.nodes.iter().filter(|one| one.holds_slot.is_some());
    let holders = holders.filter(|one| !occupied[one.at]).count();
    let mut slots = Slots {
        limit: limit.unwrap_or(usize::MAX),
        running,
        held: running + holders + survey.holders_elsewhere.len(),
        made: 0,
        room: survey.waves.as_ref().map_or(usize::MAX, Waves::room),
    };
    if let Some(hold) = survey.hold.clone() {
        for selected in survey.nodes.iter_mut().filter(|one| matches!(one.state, State::Due(_))) {
            selected.state = State::Waiting(hold.clone());
        }
    } else {
        let predecessors: HashMap<&str, &Pod> =
            predecessors(world).filter_map(|pod| Some((pinned_to(pod)?, pod))).collect();
        give_turns(survey, &mut slots, |node, number| {
            let predecessor = predecessors.get(&*node.meta.name).map(|pod| predecessor_runs(pod));
            predecessor.or_else(|| name_taken(job, world, node, number))
        });
        survey.replaced = replaced(survey, job, &slots);
    }
    mention_slots(survey, limit);
}

/// The reason if a pod of a deleted DaemonJob with the same name runs on the node.
fn predecessor_runs(pod: &Pod) -> Reason {
    let (cause, state) = if pod.terminating() {
        (Cause::PreviousPodTerminating, "is terminating")
    } else {
        (Cause::PreviousPod, "runs")
    };
    let message = format!("{} of a deleted DaemonJob with the same name {state}", pod.meta.name);
    Reason::new(cause, message)
}

/// The reason if another pod has the name of the node's next pod: a user changed the labels and annotations of
/// that pod, so that it does not count for the node.
fn name_taken(job: &DaemonJob, world: &World, node: &Node, number: u64) -> Option<Reason> {
    let name = (!world.pods.is_empty()).then(|| pod_name(job, node, number))?;
    world.pods.binary_search_by(|pod| (*pod.meta.name).cmp(&*name)).ok()?;
    let message =
        format!("{name} is the name of a pod whose labels were changed; the node waits for its deletion");
    Some(Reason::new(Cause::NameTaken, message))
}

fn give_turns(survey: &mut Survey<'_>, slots: &mut Slots, blocked: impl Fn(&Node, u64) -> Option<Reason>) {
    let is_due = |one: &SelectedNode<'_>| matches!(one.state, State::Due(_));
    if !survey.nodes.iter().any(is_due) {
        return;
    }
    let pods_elsewhere = survey.elsewhere_message();
    let wave = survey.waves.as_ref().and_then(Waves::open);
    let mut due: Vec<_> = survey.nodes.iter_mut().filter(|one| is_due(one)).collect();
    if wave.is_some() {
        due.sort_by_cached_key(|one| wave_order(&survey.key, one));
    }
    // The sort is stable, so nodes without a slot keep their order.
    due.sort_by_key(|one| (one.holds_slot.is_none(), one.holds_slot));
    for selected in due {
        let State::Due(number) = selected.state else { continue };
        if let (Some((number, size)), false, 0) = (wave, selected.has_started, slots.room) {
            let message = Message::Wave { number, size };
            selected.state = State::Waiting(Reason { cause: Cause::WaitsForWave, message });
            continue;
        }
        let is_holder = selected.holds_slot.is_some();
        let is_free = slots.running < slots.limit && (is_holder || slots.held < slots.limit);
        if is_free && slots.made < MOST_CREATIONS {
            if let Some(reason) = blocked(selected.node, number) {
                selected.state = State::Waiting(reason);
            } else {
                slots.running += 1;
                slots.held += usize::from(!is_holder);
                slots.made += 1;
                slots.room -= usize::from(!selected.has_started);
            }
            continue;
        }
        let Slots { limit, running, held, made, .. } = *slots;
        let message = if made >= MOST_CREATIONS {
            format!("this reconcile creates {MOST_CREATIONS} pods; the next one creates this pod")
        } else {
            let pods = counted(running as u64, "pod");
            let nodes = counted((held - running) as u64, "node");
            let others = format!(", slots held by {nodes} without a pod");
            let others = if held > running { &others } else { "" };
            format!("parallelism allows {limit}; running: {pods}{others}{pods_elsewhere}")
        };
        selected.state = State::Waiting(Reason::new(Cause::WaitingForTurn, message));
    }
}

/// With outdatedPods Replace: UIDs of running pods of an older template whose node has a slot for the new
/// one.
fn replaced<'a>(survey: &Survey<'a>, job: &DaemonJob, slots: &Slots) -> HashSet<&'a str> {
    if job.spec.outdated_pods != Some(OutdatedPods::Replace) || survey.begins || survey.changes {
        return HashSet::new();
    }
    let occupants = occupants(&survey.histories);
    let is_outdated =
        |state: &State| matches!(state, State::Waiting(reason) if reason.cause == Cause::OutdatedTemplate);
    let nodes = survey.nodes.iter().filter(|one| one.eligible && is_outdated(&one.state));
    let mut nodes: Vec<_> = nodes.collect();
    if survey.waves.as_ref().is_some_and(|waves| waves.open().is_some()) {
        nodes.sort_by_cached_key(|one| wave_order(&survey.key, one));
    }
    let pods: Vec<&str> =
        nodes.into_iter().filter_map(|one| Some(&*occupants[one.at]?.pod.meta.uid)).collect();
    // A node that runs the older template already holds a slot, so only the slots of other nodes count.
    let busy = slots.held.saturating_sub(pods.len());
    // A node starts when its outdated pod is gone. The pod of a lost node may never go.
    let is_going = |assessed: &&AssessedPod<'_>| {
        let is_outdated = assessed.deleted_for == Some(DeletedFor::Outdated);
        assessed.is_deleted && is_outdated && survey.holds_slot(assessed)
    };
    let going = occupants.iter().flatten().copied().filter(is_going).count();
    let most = slots.limit.saturating_sub(busy).min(slots.room.saturating_sub(going));
    pods.into_iter().take(most).collect()
}

/// The place of a node in the order of a wave: nodes that have started first, then Ready nodes.
fn wave_order(key: &Key, selected: &SelectedNode<'_>) -> (bool, bool, u64) {
    (!selected.has_started, !selected.node.ready, order(key, &selected.node.meta.uid))
}

/// Adds to the messages of nodes that hold a slot without a healthy running pod.
fn mention_slots(survey: &mut Survey<'_>, limit: Option<usize>) {
    let Some(limit) = limit else { return };
    let occupied = occupied(survey);
    for selected in &mut survey.nodes {
        let holds = selected.holds_slot.is_some() || occupied[selected.at];
        if let (State::Starting(reason) | State::Waiting(reason) | State::Failed(reason), true) =
            (&mut selected.state, holds)
            && !matches!(reason.cause, Cause::Starting | Cause::Scheduling | Cause::OutdatedTemplate)
        {
            let before = if reason.message.is_empty() { "" } else { "; " };
            reason.message = format!("{}{before}holds 1 of {limit} slots", reason.message).into();
        }
    }
}
