//! The history of each node: its ledger line and its pods, folded together.

use std::cell::OnceCell;
use std::ops::Deref;
use std::sync::Arc;

use foldhash::HashMap;

use jiff::Timestamp;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::core_types::{Node, Phase, Pod};

use crate::api::DaemonJob;
use crate::clocks::{Clocks, settle_time};
use crate::eligibility::Eligibility;
use crate::index::{Index, PodEntry};
use crate::labels::{
    BOOT_ID_ANNOTATION, MACHINE_ID_ANNOTATION, NODE_READY_ANNOTATION, NODE_UID_LABEL, RUN_ANNOTATION,
    due_time_of, hash_of, numbered, pinned_to,
};
use crate::ledger::{
    Attempt, AttemptResult, Ended, Entry, Outcome, SHARDS, Unusable, id_digest, shard_of, still_counts,
};
use crate::observe::World;
use crate::outcome::{self, DeletedFor, PodOutcome, Rules};
use crate::rollout::Key;

/// Condition of a pod that Kubernetes disrupts (KEP-3329).
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// A pod and its meaning.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is another fact about the pod")]
pub struct AssessedPod<'a> {
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// The index in [`Histories::nodes`] of the node that the pod counts for, if the node exists.
    pub target: Option<usize>,
    /// The index in [`Histories::nodes`] of the existing node whose name the pod occupies. It is the node of
    /// its label, or else the node that has the name [`pinned_to`] now.
    pub on_at: Option<usize>,
    /// Its number.
    pub number: u64,
    /// The number of its rollout.
    pub rollout: u64,
    /// Whether it has the current template.
    pub is_current: bool,
    /// Its phase. Most loops need no other field, and the pod itself is rarely in the processor's cache.
    pub phase: Phase,
    /// Whether it has a deletion timestamp.
    pub is_deleted: bool,
    /// Whether a container has crashed and waits for its restart.
    pub is_crashed: bool,
    /// The reason for its deletion, from its annotation.
    pub deleted_for: Option<DeletedFor>,
    /// The result of the pod so far.
    pub fate: PodOutcome,
    /// Whether the ledger has its outcome.
    pub recorded: bool,
    /// Whether the kubelet has restarted its containers too often. Only of a pod that counts for a node.
    pub exhausted: bool,
}

impl AssessedPod<'_> {
    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        !self.phase.has_ended()
    }

    /// Whether a container has started.
    pub fn has_started(&self) -> bool {
        self.pod.started.is_some() || self.phase != Phase::Pending
    }

    /// Whether it has not ended and is not terminating.
    pub fn is_counted(&self) -> bool {
        self.is_running() && !self.is_deleted
    }

    /// Whether it occupies its node's name: it runs, or may run later.
    pub fn occupies(&self) -> bool {
        self.is_running() && self.fate == PodOutcome::Open
    }

    /// Whether its containers run, or may have run, on a node that was Ready when the pod was created.
    fn makes_suspect(&self) -> bool {
        self.occupies()
            && self.pod.node.is_some()
            && self.pod.meta.annotations.get(NODE_READY_ANNOTATION).is_some()
    }
}

/// The latest record of a node.
#[derive(Clone, Debug)]
pub enum Latest<'a> {
    /// The ledger has the record.
    Recorded(&'a Entry),
    /// The pods add to the record in the ledger.
    Owed(Box<Entry>),
}

impl Deref for Latest<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        match self {
            Self::Recorded(entry) => entry,
            Self::Owed(entry) => entry,
        }
    }
}

/// The history of one existing node, selected or not.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact about a missing line")]
pub struct History<'a> {
    /// The node.
    pub node: &'a Arc<Node>,
    /// Whether the node may have a pod.
    pub eligibility: Eligibility,
    /// Its line in the ledger.
    pub recorded: Option<&'a Entry>,
    /// The ledger line and the pods together. The higher pod number wins.
    pub latest: Option<Latest<'a>>,
    /// Whether its line is lost or unreadable, and no pod replaces it.
    pub lost: bool,
    /// Whether its line or shard is in the format of another version, and no pod replaces it.
    pub unknown: bool,
    /// Whether its line has a value that this version does not know. The manager must not change the line.
    pub is_frozen: bool,
    /// The greatest number of a pod so far.
    pub number: u64,
    /// The rollout of the pod that makes the node suspect while it runs.
    pub risky_pod: Option<u64>,
    /// The kubelet's message for the rejection of the last pod.
    pub rejection: Option<&'a str>,
    /// Whether a pod makes the line unnecessary: it runs, or has succeeded with the current template.
    is_superseded: bool,
}

impl History<'_> {
    /// Whether the record of this rollout on the node was lost at or after this time.
    pub fn is_record_lost_since(&self, since: Timestamp, rollout: u64) -> bool {
        let is_lost = |latest: &Entry| {
            latest.outcome == Outcome::RecordLost && latest.rollout == rollout && latest.ended >= since
        };
        self.lost || self.latest.as_deref().is_some_and(is_lost)
    }

    /// The rollout of the attempt after which the node has not been Ready, or None.
    pub fn suspect_rollout(&self) -> Option<u64> {
        let rollout = || self.risky_pod.or_else(|| Some(self.latest.as_ref()?.unclear()?.rollout));
        if self.node.ready { None } else { rollout() }
    }

    /// Whether the node is Ready after a success and has not settled.
    pub fn is_settling(&self) -> bool {
        self.node.ready && self.latest.as_ref().is_some_and(|latest| latest.unclear().is_some())
    }
}

/// A deleted node of which a pod or a ledger line exists.
#[derive(Clone, Debug, Default)]
pub struct GoneNode<'a> {
    /// Its line in the ledger.
    pub recorded: Option<&'a Entry>,
    /// The line that the ledger must have before the manager releases the pods, or None.
    pub owed: Option<Entry>,
    /// When it began to count as failed in the current rollout.
    pub counts_since: Option<Timestamp>,
    /// Whether one of its pods exists.
    pub has_pods: bool,
    /// Whether its line has a value that this version does not know. The manager must not change the line.
    pub is_frozen: bool,
    /// Whether its line must be dropped immediately, because a new leader would judge it differently.
    pub must_settle: bool,
}

/// The histories of all nodes.
#[derive(Debug, Default)]
pub struct Histories<'a> {
    /// The existing nodes, in the order in which they were observed.
    pub nodes: Vec<History<'a>>,
    /// The deleted nodes, by UID.
    pub gone: HashMap<&'a str, GoneNode<'a>>,
    /// The pods, by node and number.
    pub pods: Vec<AssessedPod<'a>>,
    by_uid: OnceCell<HashMap<&'a str, usize>>,
    /// When the manager gives up pods that are Pending and count for a node, by UID. Rarely any, so it is not a
    /// field of each pod.
    pending: HashMap<&'a str, Timestamp>,
}

impl<'a> Histories<'a> {
    /// The index of an existing node.
    pub fn at(&self, uid: &str) -> Option<usize> {
        let all = || {
            let nodes = self.nodes.iter().enumerate();
            nodes.map(|(at, history)| (&*history.node.meta.uid, at)).collect()
        };
        self.by_uid.get_or_init(all).get(uid).copied()
    }

    /// When the manager gives up a pod, if it is Pending and counts for a node.
    pub fn pending_until(&self, assessed: &AssessedPod<'_>) -> Option<Timestamp> {
        // Without the first question, every pod would be read from memory.
        if self.pending.is_empty() { None } else { self.pending.get(&*assessed.pod.meta.uid).copied() }
    }

    /// The existing nodes that the template selects.
    pub fn selected(&self) -> impl Iterator<Item = &'a Node> {
        let selected = self.nodes.iter().filter(|history| history.eligibility.is_selected());
        selected.map(|history| &**history.node)
    }

    /// The history of the node that a pod counts for.
    pub fn of_target(&self, assessed: &AssessedPod<'_>) -> Option<&History<'a>> {
        assessed.target.map(|target| &self.nodes[target])
    }

    /// The deleted node of a pod that counts for no existing node.
    fn of_gone(&self, assessed: &AssessedPod<'_>) -> Option<&GoneNode<'a>> {
        self.gone.get(assessed.pod.label(NODE_UID_LABEL)?)
    }

    /// The ledger line of a pod's node.
    pub fn recorded(&self, assessed: &AssessedPod<'_>) -> Option<&'a Entry> {
        match self.of_target(assessed) {
            Some(history) => history.recorded,
            None => self.of_gone(assessed)?.recorded,
        }
    }

    /// Whether the ledger line of the pod's node must not change, so that the pod cannot be recorded.
    pub fn is_line_frozen(&self, assessed: &AssessedPod<'_>) -> bool {
        match self.of_target(assessed) {
            Some(history) => history.is_frozen,
            None => self.of_gone(assessed).is_some_and(|gone| gone.is_frozen),
        }
    }

    /// The UID of the node that a pod counts for.
    pub fn target_uid(&self, assessed: &AssessedPod<'_>) -> Option<&'a str> {
        Some(&self.of_target(assessed)?.node.meta.uid)
    }
}

/// Judges every pod, and folds the pods into the ledger lines.
pub fn histories<'a>(
    job: &DaemonJob,
    world: &'a World,
    rules: &Rules<'_>,
    key: &Key,
    now: Timestamp,
) -> Histories<'a> {
    let history = |node: &'a Arc<Node>| History {
        node,
        eligibility: rules.placement.eligibility(node),
        recorded: None,
        latest: None,
        lost: false,
        unknown: false,
        is_frozen: false,
        number: 0,
        risky_pod: None,
        rejection: None,
        is_superseded: false,
    };
    let mut all = Histories { nodes: world.nodes.iter().map(history).collect(), ..Histories::default() };
    let index = world.indexed(&key.hash);
    all.pods = assessed_pods(world, &index, key);
    let known = world.shards().zip(index.shards()).filter(|(shard, _)| shard.is_known_format());
    for ((uid, line), at) in known.flat_map(|(shard, nodes)| shard.entries.iter().zip(nodes)) {
        match (at.map(|at| &mut all.nodes[at as usize]), line) {
            (Some(history), Ok(entry)) => (history.recorded, history.number) = (Some(entry), entry.pod),
            (Some(history), Err(Unusable::Unreadable)) => history.lost = true,
            (Some(history), Err(Unusable::Newer(_))) => {
                (history.unknown, history.is_frozen) = (true, true);
            }
            (None, line) => {
                let (recorded, is_frozen) = (line.as_ref().ok(), matches!(line, Err(Unusable::Newer(_))));
                all.gone.insert(uid, GoneNode { recorded, is_frozen, ..GoneNode::default() });
            }
        }
    }
    mark_unread_shards(job, world, &mut all.nodes);
    let judge = Judge { rules, clocks: &world.clocks, key, now, settles: settle_time(job).is_some() };
    let Histories { nodes, gone, pods, pending, .. } = &mut all;
    for assessed in pods {
        if let Some(target) = assessed.target {
            judge.fold(&mut nodes[target], assessed);
            let uid = &*assessed.pod.meta.uid;
            let until = rules.pending_until(assessed.pod, || world.clocks.pending_since(uid, now));
            pending.extend(until.map(|until| (uid, until)));
            continue;
        }
        assessed.fate = judge.fate(assessed.pod, 0, false);
        if let Some(uid) = assessed.pod.label(NODE_UID_LABEL) {
            judge.fold_gone(gone.entry(uid).or_default(), assessed);
        }
    }
    for history in nodes {
        history.lost &= !history.is_superseded;
        history.unknown &= !history.is_superseded;
        if history.latest.is_none() {
            history.latest = history.recorded.map(Latest::Recorded);
        }
        let node = history.node;
        if let Some(latest) = &mut history.latest
            && latest.unclear().is_some_and(|attempt| judge.clears(attempt, Some(node), &node.meta.uid))
        {
            let mut entry = Box::new((**latest).clone());
            entry.attempt = entry.attempt.map(|attempt| Attempt { clear: true, ..attempt });
            *latest = Latest::Owed(entry);
        }
    }
    for (uid, gone) in gone {
        judge.assess_gone(uid, gone);
    }
    all
}

/// The pods, by node and number, before their fates are known.
fn assessed_pods<'a>(world: &'a World, index: &Index, key: &Key) -> Vec<AssessedPod<'a>> {
    let mut by_name: Option<HashMap<&str, usize>> = None;
    let mut named = |name: &str| {
        let all = || world.nodes.iter().enumerate().map(|(at, node)| (&*node.meta.name, at)).collect();
        by_name.get_or_insert_with(all).get(name).copied()
    };
    let is_renewed = |pod: &Pod, node: &Node| {
        let is_its = match pod.label(NODE_UID_LABEL) {
            // The Node was recreated with the same name. A pod that ran on the new machine counts for it.
            Some(_) => pod.phase == Phase::Succeeded && pod.started? >= node.meta.created?,
            None => pod.meta.created? >= node.meta.created?,
        };
        Some(is_its)
    };
    let assess = |(pod, entry): (&'a Arc<Pod>, &PodEntry)| {
        let own = entry.node.map(|at| at as usize);
        let on_at = own.or_else(|| named(pinned_to(pod)?));
        let target = on_at.filter(|at| own.is_some() || is_renewed(pod, &world.nodes[*at]) == Some(true));
        AssessedPod {
            pod,
            target,
            on_at,
            number: entry.number,
            // Without the annotation, a pod of the current template has the current rollout.
            rollout: entry.rollout.unwrap_or(if entry.is_current { key.rollout } else { 0 }),
            is_current: entry.is_current,
            phase: pod.phase,
            is_deleted: pod.meta.deleted.is_some(),
            is_crashed: pod.crashed.is_some(),
            deleted_for: entry.deleted_for,
            fate: PodOutcome::Open,
            recorded: false,
            exhausted: false,
        }
    };
    let mut pods: Vec<AssessedPod<'_>> = world.pods.iter().zip(index.pods()).map(assess).collect();
    // The pods are large, so each is moved only once.
    pods.sort_by_cached_key(|one| (one.target, one.number));
    pods
}

/// The input for the judgement of pods.
struct Judge<'s> {
    rules: &'s Rules<'s>,
    clocks: &'s Clocks,
    key: &'s Key,
    now: Timestamp,
    /// Whether a node must settle after a success.
    settles: bool,
}

impl Judge<'_> {
    /// Judges one pod, after the pods with lower numbers.
    fn fold<'a>(&self, history: &mut History<'a>, assessed: &mut AssessedPod<'a>) {
        let node: &Node = history.node;
        let before = history.latest.as_deref().or(history.recorded);
        let same = before.filter(|before| before.counts_on(assessed.rollout));
        let failures = same.map_or(0, |before| before.failures);
        assessed.recorded = history.recorded.is_some_and(|recorded| assessed.number <= recorded.pod);
        assessed.fate = if assessed.recorded {
            // The ledger has the outcome, so the first sight of its end no longer matters.
            self.rules.fate(assessed.pod, failures, false)
        } else {
            self.fate(assessed.pod, failures, self.rules.keeps_away(node))
        };
        assessed.exhausted =
            assessed.fate == PodOutcome::Open && self.rules.restarts_too_often(assessed.pod, failures);
        history.number = history.number.max(assessed.number);
        history.rejection = assessed.pod.rejection.as_deref();
        history.is_superseded |= match assessed.fate {
            PodOutcome::Open => assessed.is_running(),
            PodOutcome::NeverRan => false,
            PodOutcome::Ended { outcome, .. } => outcome == Outcome::Succeeded && assessed.is_current,
        };
        if assessed.recorded {
            return;
        }
        // No Ready node is suspect.
        if !node.ready && assessed.makes_suspect() {
            history.risky_pod = Some(assessed.rollout);
        }
        if let Some(ended) = self.ended(assessed, Some(node)) {
            history.latest = Some(Latest::Owed(Box::new(Entry::after(before, ended))));
        }
    }

    /// The record of an ended pod, whether its node exists or not. None if the pod has not ended or never ran.
    fn ended(&self, assessed: &AssessedPod<'_>, node: Option<&Node>) -> Option<Ended> {
        let PodOutcome::Ended { outcome, failures, at } = assessed.fate else { return None };
        let pod = assessed.pod;
        let sight = self.clocks.sight(&pod.meta.uid);
        let saw_ready = sight.is_some_and(|sight| sight.is_clear);
        let uid = node.map(|node| &*node.meta.uid).or_else(|| pod.label(NODE_UID_LABEL));
        let has_settled = || uid.is_some_and(|uid| self.clocks.has_settled(uid));
        let id = |annotation| pod.meta.annotations.get(annotation).map(id_digest).unwrap_or_default();
        let is_annotated = pod.meta.annotations.get(NODE_READY_ANNOTATION).is_some();
        let entry = Entry {
            node: node.map(|node| &*node.meta.name).or_else(|| pinned_to(pod)).unwrap_or_default().into(),
            hash: hash_of(pod, &self.key.hash).into(),
            rollout: assessed.rollout,
            run: numbered(pod, RUN_ANNOTATION).unwrap_or(self.key.run),
            pod: assessed.number,
            outcome,
            failures,
            exit: (failures > 0).then(|| outcome::exit(pod).into()),
            // The manager's clock. The clocks of the node and the API server may differ.
            ended: sight.map_or_else(|| at.min(whole_seconds(self.now)), |sight| sight.at),
            ..Entry::default()
        };
        Some(Ended {
            entry,
            has_started: pod.started.is_some(),
            // The pods of this rollout have its due time, even if a user removes their annotation.
            due: due_time_of(pod).or(self.key.due.filter(|_| assessed.rollout == self.key.rollout)),
            boot: id(BOOT_ID_ANNOTATION),
            machine: id(MACHINE_ID_ANNOTATION),
            is_unclear: if self.settles && outcome == Outcome::Succeeded {
                !has_settled()
            } else {
                is_annotated
                    && node.is_none_or(|node| !node.ready)
                    && !saw_ready
                    && pod.node.is_some()
                    && outcome != Outcome::Rejected
            },
        })
    }

    /// Whether the node is no longer suspect after this attempt. None: the Node was deleted.
    fn clears(&self, attempt: &Attempt, node: Option<&Node>, uid: &str) -> bool {
        if self.settles && attempt.result == AttemptResult::Succeeded {
            self.clocks.has_settled(uid)
        } else {
            node.is_some_and(|node| node.ready)
        }
    }

    /// The fate of a pod when a reconcile first saw its end. A later deletion, disruption or cordon has no
    /// effect.
    fn fate(&self, pod: &Pod, failures: u32, is_kept_away: bool) -> PodOutcome {
        let rules = self.rules;
        let Some(sight) = self.clocks.sight(&pod.meta.uid) else {
            return rules.fate(pod, failures, is_kept_away);
        };
        let is_deleted_since = !sight.was_deleted && pod.meta.deleted.is_some();
        let is_disrupted_since = !sight.was_disrupted && pod.disrupted;
        if !is_deleted_since && !is_disrupted_since {
            return rules.fate(pod, failures, sight.is_kept_away);
        }
        let mut as_seen = pod.clone();
        if is_deleted_since {
            as_seen.meta.deleted = None;
        }
        if is_disrupted_since {
            // The taint controller also sets its condition on pods that failed earlier.
            as_seen.disrupted = false;
            let others = as_seen.conditions.iter().filter(|(type_, _)| &**type_ != DISRUPTION_TARGET);
            as_seen.conditions = others.cloned().collect();
        }
        rules.fate(&as_seen, failures, sight.is_kept_away)
    }

    /// Folds a pod into the history of its deleted node.
    fn fold_gone(&self, gone: &mut GoneNode<'_>, assessed: &mut AssessedPod<'_>) {
        gone.has_pods = true;
        let is_covered = |recorded: &Entry| assessed.number <= recorded.pod || recorded.gone.is_some();
        assessed.recorded = gone.recorded.is_some_and(is_covered);
        if assessed.recorded {
            return;
        }
        let before = gone.owed.as_ref().or(gone.recorded);
        let same = before.filter(|before| before.counts_on(assessed.rollout));
        let failures = same.map_or(0, |before| before.failures);
        assessed.fate = self.fate(assessed.pod, failures, false);
        if assessed.makes_suspect() {
            let running = PodOutcome::Ended { outcome: Outcome::NodeDeleted, failures: 0, at: self.now };
            let as_ended = AssessedPod { fate: running, ..assessed.clone() };
            gone.owed = self.ended(&as_ended, None).map(|ended| Entry::after(before, ended));
        } else if let Some(ended) = self.ended(assessed, None) {
            gone.owed = Some(Entry::after(before, ended));
        }
    }

    /// Decides whether a deleted node counts as failed, and the line that this requires.
    fn assess_gone(&self, uid: &str, gone: &mut GoneNode<'_>) {
        let (key, is_leaving) = (self.key, self.clocks.node(uid).is_leaving);
        if let Some(recorded) = gone.recorded
            && let Some(since) = recorded.gone
        {
            gone.owed = None;
            gone.counts_since = Some(since).filter(|_| recorded.rollout == key.rollout);
            return;
        }
        let latest = gone.owed.take().or_else(|| gone.recorded.cloned());
        let is_suspect = |latest: &Entry| {
            latest
                .unclear()
                .is_some_and(|attempt| attempt.rollout == key.rollout && !self.clears(attempt, None, uid))
        };
        let has_failed = |latest: &Entry| {
            latest.has_failed_in(key.rollout) || self.rules.exceeded(latest, key.rollout).is_some()
        };
        gone.must_settle = latest.as_ref().is_some_and(|latest| is_suspect(latest) || has_failed(latest));
        if let Some(mut latest) =
            latest.filter(|latest| has_failed(latest) || is_suspect(latest) && !is_leaving)
        {
            latest.gone = Some(whole_seconds(self.now));
            latest.rollout = key.rollout;
            gone.counts_since = latest.gone;
            gone.owed = Some(latest);
        }
    }
}

/// The number of unusable lines that count deleted nodes, and of lost shards without an existing node. Each
/// may be the record of failed nodes. Existing nodes of a lost shard count themselves.
pub fn unusable_gone_lines(job: &DaemonJob, world: &World) -> usize {
    let unusable = world.shards().filter(|shard| shard.is_known_format() && shard.gone.is_err()).count();
    let mut missing = missing_shards(job, world);
    if missing.contains(&true) {
        for node in &world.nodes {
            missing[usize::from(shard_of(&node.meta.uid))] = false;
        }
    }
    unusable + missing.into_iter().filter(|is_missing| *is_missing).count()
}

/// The shards that the status lists and that do not exist.
fn missing_shards(job: &DaemonJob, world: &World) -> [bool; SHARDS as usize] {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let mut missing = [false; SHARDS as usize];
    // A status without a rollout is older than this format.
    let status = job.status.as_ref().filter(|status| status.rollout.is_some());
    for shard in status.iter().flat_map(|status| &status.ledger_shards) {
        if let Some(missing) = missing.get_mut(usize::from(*shard)) {
            *missing = true;
        }
    }
    for number in world.shards().filter_map(|shard| shard.number(name)) {
        missing[usize::from(number)] = false;
    }
    missing
}

/// Marks the nodes whose shard is missing, or has a format that this version does not read.
fn mark_unread_shards(job: &DaemonJob, world: &World, nodes: &mut [History<'_>]) {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let missing = missing_shards(job, world);
    let foreign: Vec<_> = world.shards().filter(|shard| !shard.is_known_format()).collect();
    if !missing.contains(&true) && foreign.is_empty() {
        return;
    }
    for history in nodes {
        let uid = &*history.node.meta.uid;
        history.lost |= missing[usize::from(shard_of(uid))] && history.recorded.is_none();
        history.unknown |= foreign.iter().any(|shard| shard.may_have(name, uid));
    }
}

/// The number of deleted nodes that count as failed in the current rollout, at the time `horizon`.
pub fn gone_count(histories: &Histories<'_>, world: &World, key: &Key, horizon: Timestamp) -> usize {
    let known = world.shards().filter(|shard| shard.is_known_format());
    let folded =
        known.filter_map(|shard| shard.gone.as_ref().ok()).filter(|gone| gone.rollout == key.rollout);
    let folded: usize = folded.map(|gone| gone.count(horizon)).sum();
    let lines = histories.gone.values().filter_map(|gone| gone.counts_since);
    folded + lines.filter(|since| still_counts(*since, horizon)).count()
}
