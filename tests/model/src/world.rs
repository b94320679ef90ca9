//! Converts a state to the plan's input, and the plan's actions to writes.
//!
//! The plan, the clocks, the ledger lines and the status are the real ones. A search happens at one moment,
//! [`NOW`]. Times in the plan's input are `NOW` minus the ages in the state.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::Hash;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_daemonjob::FINALIZER;
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus, FailurePolicyType, Rollout};
use quintet_daemonjob::clocks::Clocks;
use quintet_daemonjob::eligibility::Placement;
use quintet_daemonjob::fleet::is_fleet_unhealthy;
use quintet_daemonjob::labels::{
    DUE_TIME_ANNOTATION, HASH_LABEL, NODE_NAME_ANNOTATION, NODE_READY_ANNOTATION, NODE_UID_LABEL,
    POD_NUMBER_LABEL, ROLLOUT_ANNOTATION, RUN_ANNOTATION,
};
use quintet_daemonjob::ledger::{self, Entry, GONE, Gone, shard_name, shard_of};
use quintet_daemonjob::mark_prefixes::Permitted;
use quintet_daemonjob::marks;
use quintet_daemonjob::node_state::pod_name;
use quintet_daemonjob::observe::World;
use quintet_daemonjob::outcome::DELETED_FOR_ANNOTATION;
use quintet_daemonjob::plan::plan;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::{Node as KubeNode, Phase as KubePhase, Pod as KubePod, Taint};
use quintet_runtime::model::object::{Meta, Pairs, Version};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES as NODE_OBJECTS, PODS};
use serde_json::{Value, json};

use crate::frame::{
    NOW, Reported, STARTING_DEADLINE, crontab, half_day_of, shown_line, shown_status, stored_line,
    stored_status, time_of,
};
use crate::state::{
    Deletion, Memory, NODES, Node, NodeId, NodeMark, Phase, Pod, Shard, Spec, State, Success, Write,
};

const JOB: &str = "d";
const JOB_UID: &str = "job";
/// The taint that `onSuccess` removes, and that the template tolerates.
const RAW: &str = "example.com/raw";

/// The values of the annotation deleted-for.
pub const MARKS: [&str; 9] = [
    "Suspend",
    "Deadline",
    "FailFast",
    "FailJob",
    "Misplaced",
    "PendingDeadline",
    "Exhausted",
    "Superfluous",
    "Outdated",
];

/// Longer than the time for which a deleted node counts, rounded to the hour.
pub const DAY: i64 = 25 * 3_600;
/// The delays of the backoff.
const BACKOFFS: [i64; 4] = [0, 10, 20, 40];
/// The ages at which a pending unhealthy node is skipped, and a suspect one is lost.
const CLOCKS: [i64; 3] = [0, 300, 600];
/// The minimum and the maximum time between two writes to the ledger.
const FLUSHES: [i64; 3] = [0, 1, 300];
const GONE_AGES: [i64; 2] = [0, DAY];

/// The last threshold that an age has passed.
fn floor(age: i64, thresholds: &[i64]) -> i64 {
    thresholds.iter().rev().find(|threshold| **threshold <= age).copied().unwrap_or_default()
}

fn ago(seconds: i64) -> Timestamp {
    NOW.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(NOW)
}

fn age_of(at: Timestamp) -> i64 {
    NOW.duration_since(at).as_secs()
}

/// The age of an event after more time has passed.
fn aged(at: Timestamp, seconds: i64, thresholds: &[i64]) -> Timestamp {
    ago(floor(age_of(at) + seconds, thresholds))
}

/// A feature of the spec, besides the failure policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    Plain,
    /// The first wave has one node.
    Waves,
    /// A run at each due time. `has_deadline`: with startingDeadlineSeconds.
    Schedule {
        has_deadline: bool,
    },
    /// `onSuccess` removes a taint.
    Marks,
}

#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub nodes: u8,
    /// The maximum number of pods of a node.
    pub attempts: u8,
    pub policy: FailurePolicyType,
    pub max_failed: u8,
    pub parallelism: u8,
    pub backoff_limit: u8,
    pub feature: Feature,
}

impl Variant {
    pub fn has_schedule(self) -> bool {
        matches!(self.feature, Feature::Schedule { .. })
    }

    pub fn has_marks(self) -> bool {
        self.feature == Feature::Marks
    }
}

/// Values by number; 0 for none.
struct Interner<T> {
    numbers: HashMap<String, u16>,
    values: Vec<T>,
}

impl<T> Interner<T> {
    fn new() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }

    fn number(&mut self, key: String, value: T) -> u16 {
        let next = u16::try_from(self.values.len() + 1).expect("fewer than 65,536 different values");
        *self.numbers.entry(key).or_insert_with(|| {
            self.values.push(value);
            next
        })
    }

    fn get(&self, number: u16) -> Option<&T> {
        self.values.get(usize::from(number).checked_sub(1)?)
    }
}

pub struct Pass {
    /// The writes of each step. The last step writes the status, if it changes.
    pub steps: Vec<Vec<Write>>,
    pub creations: Vec<Pod>,
    pub status: DaemonJobStatus,
    pub reported: Reported,
    /// The leader's memory before its writes.
    pub memory: Memory,
    /// The seconds after which time alone changes the plan.
    pub again: Option<i64>,
}

/// Builds the plan's input, and caches it.
pub struct Worlds {
    pub variant: Variant,
    lines: Interner<Entry>,
    gone: Interner<Gone>,
    statuses: Interner<Arc<DaemonJobStatus>>,
    hashes: [String; 2],
    uids: Vec<Arc<str>>,
    nodes: HashMap<(NodeId, Node), Arc<KubeNode>>,
    pods: HashMap<(Pod, u8, u8), Arc<KubePod>>,
    shards: HashMap<(usize, Shard, u8), Arc<ledger::Shard>>,
    jobs: HashMap<(Spec, u16, u8), Arc<DaemonJob>>,
    clocks: HashMap<(Memory, Vec<(u32, u8)>), Clocks>,
}

/// Returns the cached value of a key, or builds it.
fn kept<K: Hash + Eq + Copy, V>(kept: &mut HashMap<K, Arc<V>>, key: K, build: impl FnOnce() -> V) -> Arc<V> {
    kept.entry(key).or_insert_with(|| Arc::new(build())).clone()
}

fn number<T: TryFrom<u64> + Default>(text: &Value) -> T {
    let number = text.as_str().and_then(|text| text.parse().ok());
    number.and_then(|number| T::try_from(number).ok()).unwrap_or_default()
}

impl Worlds {
    pub fn new(variant: Variant) -> Self {
        let mut worlds = Self {
            variant,
            lines: Interner::new(),
            gone: Interner::new(),
            statuses: Interner::new(),
            hashes: Default::default(),
            uids: (0..NODES).map(|slot| uid(NodeId::at(slot)).into()).collect(),
            nodes: HashMap::new(),
            pods: HashMap::new(),
            shards: HashMap::new(),
            jobs: HashMap::new(),
            clocks: HashMap::new(),
        };
        for template in [0, 1] {
            let job = worlds.job(Spec { template, ..Spec::default() }, 0, 0);
            worlds.hashes[usize::from(template)] = job.spec.template.hash();
        }
        worlds
    }

    /// The number of failed nodes that the spec tolerates.
    pub fn max_failed(&self, spec: Spec) -> u8 {
        self.variant.max_failed + u8::from(spec.has_raised_max)
    }

    /// A written status, without the fields that no later plan reads.
    pub fn status(&self, number: u16) -> Option<&DaemonJobStatus> {
        self.statuses.get(number).map(|status| &**status)
    }

    /// The rollout and the schedule in a written status.
    pub fn reported(&self, number: u16) -> Option<Reported> {
        self.status(number).map(|status| Reported::of(status, &self.hashes))
    }

    pub fn line(&self, number: u16) -> Option<&Entry> {
        self.lines.get(number)
    }

    /// A shard in readable form.
    pub fn told(&self, slot: u8, shard: Shard) -> String {
        let line = self.line(shard.line).map_or_else(|| "no line".to_owned(), ToString::to_string);
        let gone = self.gone.get(shard.gone).map_or_else(String::new, |gone| format!("; gone: {gone}"));
        format!("{}: {line}{gone}", self.uids[usize::from(slot)])
    }

    /// The state after this number of seconds without an event.
    pub fn wait(&mut self, state: &State, seconds: i64) -> State {
        let mut state = state.clone();
        for pod in state.pods.iter_mut().filter(|pod| pod.phase.has_ended()) {
            pod.age = u8::try_from(floor(i64::from(pod.age) + seconds, &BACKOFFS)).unwrap_or(u8::MAX);
        }
        for shard in &mut state.shards {
            if let Some(entry) = self.lines.get(shard.line) {
                let entry = entry.clone();
                shard.line = self.intern_line(entry, seconds);
            }
            if let Some(gone) = self.gone.get(shard.gone) {
                let text = gone.to_string();
                shard.gone = self.intern_gone(&text, seconds);
            }
        }
        let older = |age: Option<u16>, thresholds: &[i64]| {
            age.and_then(|age| u16::try_from(floor(i64::from(age) + seconds, thresholds)).ok())
        };
        let memory = &mut state.memory;
        memory.began = older(memory.began, &CLOCKS);
        memory.flushed = older(memory.flushed, &FLUSHES);
        for node in memory.nodes.iter_mut().filter(|_| !memory.stood_still) {
            node.not_ready = older(node.not_ready, &CLOCKS);
            node.unhealthy = older(node.unhealthy, &CLOCKS);
        }
        if let Some(status) = self.status(state.status).cloned() {
            state.status = self.intern_status(status, seconds);
        }
        state.sort();
        state
    }

    pub fn counts_deleted_nodes(&self, state: &State) -> bool {
        let has_gone = |shard: &Shard| {
            shard.gone != 0 || self.lines.get(shard.line).is_some_and(|entry| entry.gone.is_some())
        };
        state.shards.iter().any(has_gone)
    }

    fn intern_line(&mut self, mut entry: Entry, seconds: i64) -> u16 {
        entry.ended = aged(entry.ended, seconds, &BACKOFFS);
        entry.gone = entry.gone.map(|at| aged(at, seconds, &GONE_AGES));
        // Only pendingDeadlineSeconds reads this.
        entry.rejected_since = entry.rejected_since.map(|_| NOW);
        // Only onSuccess reads this.
        if let Some(attempt) = entry.attempt.as_mut().filter(|_| !self.variant.has_marks()) {
            attempt.pod = entry.pod;
        }
        self.lines.number(entry.to_string(), entry)
    }

    fn intern_gone(&mut self, text: &str, seconds: i64) -> u16 {
        let mut hours: BTreeMap<Timestamp, u32> = BTreeMap::new();
        let mut line = String::new();
        for (key, value) in text.split(' ').filter_map(|word| word.split_once('=')) {
            match key.strip_prefix("hour-").and_then(|hour| hour.parse().ok()) {
                Some(hour) => {
                    *hours.entry(aged(hour, seconds, &GONE_AGES)).or_default() += value.parse().unwrap_or(0);
                }
                None => {
                    let _ = write!(line, "{key}={value}");
                }
            }
        }
        for (hour, count) in hours {
            let _ = write!(line, " hour-{hour}={count}");
        }
        let gone = line.parse().expect("a line of the ledger can be read");
        self.gone.number(line, gone)
    }

    fn intern_status(&mut self, told: DaemonJobStatus, seconds: i64) -> u16 {
        let mut status = DaemonJobStatus {
            observed_generation: told.observed_generation,
            // Nodes are created before or after it, see `node`.
            start_time: told.start_time.map(|_| Time(ago(500))),
            template_hash: told.template_hash,
            rollout: told.rollout,
            run: told.run,
            schedule: told.schedule,
            ledger_shards: told.ledger_shards,
            conditions: told.conditions.into_iter().filter(|one| one.status == "True").collect(),
            ..DaemonJobStatus::default()
        };
        for condition in &mut status.conditions {
            condition.message.clear();
            condition.last_transition_time = Time(NOW);
            condition.observed_generation = None;
        }
        if let Some(rollout) = &mut status.rollout {
            let older = |at: Time| Time(aged(at.0, seconds, &GONE_AGES));
            rollout.braked_since = rollout.braked_since.take().map(older);
            (rollout.started, rollout.settled) = (None, None);
        }
        let key = serde_json::to_string(&status).unwrap_or_default();
        self.statuses.number(key, Arc::new(status))
    }

    pub fn pass(&mut self, state: &State) -> Pass {
        let job = self.job(state.spec, state.status, state.clock);
        let (world, memory) = self.world(state, &job);
        let plan = plan(&job, &world, NOW);
        let mut creations = Vec::new();
        let mut steps = Vec::new();
        for step in &plan.steps {
            let writes: Vec<Write> = step.iter().map(|action| self.write(state, &world, action)).collect();
            creations.extend(writes.iter().filter_map(|write| match write {
                Write::Create(pod) => Some(*pod),
                _ => None,
            }));
            steps.push(writes);
        }
        let status = plan.status.unwrap_or_default();
        let stored = stored_status(status.clone(), state.spec.schedule, state.clock);
        let reported = Reported::of(&stored, &self.hashes);
        let after = self.intern_status(stored, 0);
        if after != state.status {
            steps.push(vec![Write::Status { before: (state.spec, state.status), after }]);
        }
        if plan.steps.is_empty() && !plan.background.is_empty() {
            steps.push(plan.background.iter().map(|action| self.write(state, &world, action)).collect());
        }
        Pass { steps, creations, status, reported, memory, again: plan.again.map(|at| -age_of(at)) }
    }

    fn world(&mut self, state: &State, job: &DaemonJob) -> (World, Memory) {
        let mut world = World::default();
        if self.variant.has_marks() {
            let prefixes: [Box<str>; 1] = ["example.com/".into()];
            world.permitted_marks = Permitted::Prefixes(prefixes.into());
        }
        for (id, node) in state.existing() {
            world.nodes.push(self.node(id, *node));
        }
        for pod in &state.pods {
            let current = state.nodes[usize::from(pod.node.name)].generation;
            world.pods.push(self.pod(*pod, current, state.clock));
        }
        for (slot, shard) in state.shards.iter().enumerate().filter(|(_, shard)| shard.exists) {
            world.ledger.push(self.shard(slot, *shard, state.clock));
        }
        let mut clocks = self.clocks(state);
        clocks.step(job, &world, (NOW, steady(NOW)));
        let placement = Placement::of(job.spec.template.spec());
        let age = |at: Timestamp| u16::try_from(age_of(at)).ok();
        let mut memory = Memory {
            began: clocks.began.filter(|_| clocks.flushed.is_none()).and_then(age),
            flushed: clocks.flushed.and_then(age),
            stood_still: state.existing().any(|(_, node)| !node.is_ready)
                && is_fleet_unhealthy(job, &placement, &world.nodes),
            ..Memory::default()
        };
        for (pod, seen) in state.pods.iter().zip(&world.pods) {
            let Some(sight) = clocks.sight(&seen.meta.uid) else { continue };
            let facts = [true, sight.was_deleted, sight.is_kept_away, sight.is_clear];
            for (bits, _) in memory.ends.iter_mut().zip(facts).filter(|(_, fact)| *fact) {
                *bits |= pod.bit();
            }
        }
        for (slot, known) in memory.nodes.iter_mut().enumerate() {
            let uid = &self.uids[slot];
            let clock = clocks.node(uid);
            if state.node_of(NodeId::at(slot)).is_some_and(|node| !node.is_ready) {
                known.not_ready = age(clock.not_ready.unwrap_or(NOW));
                known.unhealthy = age(clock.unhealthy.unwrap_or(NOW));
            }
            known.is_leaving = clock.is_leaving;
            known.is_inherited = clocks.is_inherited(uid);
        }
        world.clocks = clocks;
        (world, memory)
    }

    /// Clocks with this memory. They are shown the nodes and pods that lead to it.
    fn clocks(&mut self, state: &State) -> Clocks {
        let memory = &state.memory;
        let seen = state.pods.iter().filter(|pod| memory.ends[0] & pod.bit() != 0);
        let sights: Vec<(u32, u8)> = seen.map(|pod| (pod.bit(), pod.age)).collect();
        let key = (*memory, sights);
        if let Some(clocks) = self.clocks.get(&key) {
            return clocks.clone();
        }
        let mut clocks = Clocks::default();
        if *memory != Memory::default() {
            let job = self.remembered_job(memory, i32::MAX);
            let began = memory.began.map_or(1_000, i64::from);
            let look = |clocks: &mut Clocks, age: i64, world: &World| {
                clocks.step(&job, world, (ago(age), steady(ago(age))));
            };
            let nodes = self.remembered_nodes(memory, i64::MAX);
            look(&mut clocks, began, &World { nodes, ..World::default() });
            let pods = self.remember_ends(&mut clocks, &key, &look);
            let ages = memory.nodes.iter().flat_map(|node| [node.not_ready, node.unhealthy]).flatten();
            let mut ages: Vec<i64> = ages.map(i64::from).collect();
            ages.sort_unstable_by_key(|age| -age);
            // At first, all nodes are Ready.
            for (at, age) in std::iter::once((began, i64::MAX)).chain(ages.into_iter().map(|age| (age, age)))
            {
                let nodes = self.remembered_nodes(memory, age);
                // First without the taint: an inherited node already had it, and its clock must start here.
                let mut untainted = nodes.clone();
                for (node, known) in untainted.iter_mut().zip(&memory.nodes) {
                    if known.is_inherited && known.not_ready.map(i64::from) == Some(age) {
                        Arc::make_mut(node).taints = Box::default();
                    }
                }
                look(&mut clocks, at, &World { pods: pods.clone(), nodes: untainted, ..World::default() });
                look(&mut clocks, at, &World { pods: pods.clone(), nodes, ..World::default() });
            }
            let nodes = self.remembered_nodes(memory, 0);
            look(&mut clocks, 0, &World { pods: pods.clone(), nodes, ..World::default() });
            if memory.stood_still {
                self.stand_still(&mut clocks, memory, pods);
            }
            if let Some(age) = memory.flushed {
                clocks.flushed = Some(ago(age.into()));
            }
        }
        self.clocks.insert(key, clocks.clone());
        clocks
    }

    /// A DaemonJob whose status reports a stopped rollout if the leader inherited one.
    fn remembered_job(&mut self, memory: &Memory, unhealthy_from_start: i32) -> DaemonJob {
        let is_braked = memory.nodes.iter().any(|node| node.is_inherited);
        let rollout = Rollout {
            number: 1,
            unhealthy_from_start,
            braked_since: is_braked.then_some(Time(NOW)),
            ..Rollout::default()
        };
        let status = DaemonJobStatus {
            template_hash: Some(self.hashes[0].clone()),
            rollout: Some(rollout),
            ..DaemonJobStatus::default()
        };
        DaemonJob { status: Some(status), ..(*self.job(Spec::default(), 0, 0)).clone() }
    }

    /// Shows the clocks each ended pod of the memory. Returns as many running pods, so that all ends are
    /// kept.
    fn remember_ends(
        &mut self,
        clocks: &mut Clocks,
        (memory, sights): &(Memory, Vec<(u32, u8)>),
        look: &impl Fn(&mut Clocks, i64, &World),
    ) -> Vec<Arc<KubePod>> {
        let mut running = Vec::new();
        let numbers = 0..=self.variant.attempts + 1;
        for (slot, number) in (0..NODES).flat_map(|slot| numbers.clone().map(move |number| (slot, number))) {
            let pod = Pod::of(NodeId::at(slot), number);
            let [is_seen, was_deleted, is_kept_away, is_clear] =
                memory.ends.map(|bits| bits & pod.bit() != 0);
            if !is_seen {
                continue;
            }
            let deletion = if was_deleted { Deletion::AfterItsEnd } else { Deletion::None };
            let ended = self.pod(Pod { phase: Phase::Succeeded, deletion, ..pod }, 0, 0);
            let mut pods = running.clone();
            pods.push(ended);
            let mut nodes = self.remembered_nodes(memory, i64::MAX);
            let node = Arc::make_mut(&mut nodes[slot]);
            (node.ready, node.unschedulable) = (is_clear, is_kept_away);
            let age = sights.iter().find(|(bit, _)| *bit == pod.bit()).map_or(0, |(_, age)| i64::from(*age));
            look(clocks, age, &World { pods, nodes, ..World::default() });
            running.push(Arc::new(KubePod { phase: KubePhase::Running, ..KubePod::default() }));
        }
        running
    }

    /// The nodes of the memory at this age.
    fn remembered_nodes(&mut self, memory: &Memory, age: i64) -> Vec<Arc<KubeNode>> {
        let mut nodes = Vec::new();
        for (slot, known) in memory.nodes.iter().enumerate() {
            let is_over = |since: Option<u16>| since.is_some_and(|since| i64::from(since) >= age);
            let node = Node { is_cordoned: known.is_leaving, ..Node::created(0) };
            let mut node = Arc::unwrap_or_clone(self.node(NodeId::at(slot), node));
            node.ready = !is_over(known.not_ready);
            if is_over(known.unhealthy) || known.is_inherited && node.ready {
                node.taints = Box::new([taint("node.kubernetes.io/not-ready")]);
            }
            nodes.push(Arc::new(node));
        }
        nodes
    }

    /// Shows the clocks a fleet that is unhealthy as a whole.
    fn stand_still(&mut self, clocks: &mut Clocks, memory: &Memory, pods: Vec<Arc<KubePod>>) {
        let mut nodes = self.remembered_nodes(memory, 0);
        let sick = self.node(NodeId::at(0), Node { is_ready: false, ..Node::created(0) });
        for number in 0..2 * NODES {
            let mut node = (*sick).clone();
            node.meta.uid = format!("other-{number}").into();
            nodes.push(Arc::new(node));
        }
        let job = self.remembered_job(memory, 0);
        let world = World { pods, nodes, ..World::default() };
        clocks.step(&job, &world, (NOW, steady(NOW)));
    }

    fn job(&mut self, spec: Spec, status: u16, clock: u8) -> Arc<DaemonJob> {
        let Variant { policy, parallelism, backoff_limit, feature, .. } = self.variant;
        let max_failed = self.max_failed(spec);
        let statuses = &self.statuses;
        kept(&mut self.jobs, (spec, status, clock), || {
            let image = ["a", "b"][usize::from(spec.template)];
            let schedule = crontab(spec.schedule, clock);
            let has_deadline = schedule.is_some() && feature == Feature::Schedule { has_deadline: true };
            let is = |one: Feature| feature == one;
            let on_success = json!({"removeTaints": [{"key": RAW, "effect": "NoSchedule"}]});
            let json = json!({
                "apiVersion": "dj.dysproz.io/v1",
                "kind": "DaemonJob",
                "metadata": {"name": JOB, "namespace": "ns", "uid": JOB_UID, "generation": i64::from(spec.generation) + 1},
                "spec": {
                    "template": {"spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "c", "image": image}],
                        "tolerations": [{"key": RAW, "operator": "Exists"}],
                    }},
                    "parallelism": parallelism,
                    "backoffLimit": backoff_limit,
                    "failurePolicy": {"type": policy, "maxFailedNodes": max_failed},
                    "rollout": is(Feature::Waves).then(|| json!({"waveSizes": [1]})),
                    "schedule": schedule,
                    "startingDeadlineSeconds": has_deadline.then_some(STARTING_DEADLINE),
                    "retryToken": spec.has_token.then_some("again"),
                    "onSuccess": is(Feature::Marks).then_some(on_success),
                    "suspend": spec.is_suspended,
                },
            });
            let job: DaemonJob = serde_json::from_value(json).expect("a DaemonJob");
            let status = statuses.get(status).map(|status| shown_status((**status).clone(), clock));
            DaemonJob { status, ..job }
        })
    }

    fn node(&mut self, id: NodeId, node: Node) -> Arc<KubeNode> {
        let uid = &self.uids[id.slot()];
        kept(&mut self.nodes, (id, node), || {
            let annotation = marks::annotation(JOB_UID);
            let record = node.record.map(|success| format!("{}/{}", success.rollout, success.pod));
            let mut taints = Vec::new();
            if node.is_raw {
                taints.push(taint(RAW));
            }
            if !node.is_ready {
                taints.push(taint("node.kubernetes.io/not-ready"));
            }
            if node.is_tainted {
                taints.push(taint("example.com/broken"));
            }
            KubeNode {
                meta: Meta {
                    name: name_of(id.name).into(),
                    uid: uid.clone(),
                    resource_version: Version("1".into()),
                    created: Some(ago(if node.is_new { 100 } else { 1_000 })),
                    annotations: record.iter().map(|text| (&*annotation, &**text)).collect(),
                    ..Meta::default()
                },
                has_annotations: true,
                unschedulable: node.is_cordoned,
                taints: taints.into(),
                ready: node.is_ready,
                ..KubeNode::default()
            }
        })
    }

    /// `current` is the number of the present or last Node with the name.
    fn pod(&mut self, pod: Pod, current: u8, clock: u8) -> Arc<KubePod> {
        let node = self.node(pod.node, Node::created(0));
        let job = self.job(Spec::default(), 0, 0);
        let hash = &self.hashes[usize::from(pod.template)];
        let clock = if pod.due > 0 { clock } else { 0 };
        kept(&mut self.pods, (pod, current, clock), || {
            let name: Arc<str> = pod_name(&job, &node, pod.number.into()).into();
            let on = name_of(pod.node.name);
            let (rollout, run) = (pod.rollout.to_string(), pod.run.to_string());
            let mut annotations = BTreeMap::from([
                (NODE_NAME_ANNOTATION, on),
                (ROLLOUT_ANNOTATION, &*rollout),
                (RUN_ANNOTATION, &*run),
            ]);
            let due = time_of(pod.due, clock).to_string();
            if pod.due > 0 {
                annotations.insert(DUE_TIME_ANNOTATION, &due);
            }
            if pod.has_node_ready {
                annotations.insert(NODE_READY_ANNOTATION, "true");
            }
            if let Some(mark) = pod.mark {
                annotations.insert(DELETED_FOR_ANNOTATION, MARKS[usize::from(mark)]);
            }
            let at = ago(pod.age.into());
            let is_rejected = pod.phase == Phase::Rejected;
            let has_own_end = matches!(pod.phase, Phase::Succeeded | Phase::Failed);
            let finished =
                ago(i64::from(pod.age) + if pod.deletion == Deletion::AfterItsEnd { 10 } else { 0 });
            KubePod {
                meta: Meta {
                    namespace: "ns".into(),
                    uid: format!("pod-{name}").into(),
                    resource_version: Version("1".into()),
                    created: Some(if is_rejected { finished } else { ago(3_000) }),
                    deleted: (pod.deletion != Deletion::None).then_some(at),
                    labels: Pairs::from([
                        (KIND_LABEL, "DaemonJob"),
                        (NODE_UID_LABEL, &*node.meta.uid),
                        (HASH_LABEL, hash),
                        (POD_NUMBER_LABEL, &*pod.number.to_string()),
                    ]),
                    annotations: annotations.into_iter().collect(),
                    finalizers: if pod.has_finalizer { Box::new([FINALIZER.into()]) } else { Box::default() },
                    name,
                    ..Meta::default()
                },
                node: (pod.phase != Phase::Unbound).then(|| on.into()),
                phase: match pod.phase {
                    Phase::Unbound | Phase::Bound => KubePhase::Pending,
                    Phase::Running => KubePhase::Running,
                    Phase::Succeeded => KubePhase::Succeeded,
                    Phase::Failed | Phase::Rejected | Phase::Collected => KubePhase::Failed,
                },
                disrupted: pod.phase == Phase::Collected,
                has_running_container: pod.phase == Phase::Running,
                started: pod.started_on.map(|on| ago(if on == current { 50 } else { 2_000 })),
                finished: has_own_end.then_some(finished),
                rejection: is_rejected.then(|| "OutOfcpu".into()),
                ..KubePod::default()
            }
        })
    }

    fn shard(&mut self, slot: usize, shard: Shard, clock: u8) -> Arc<ledger::Shard> {
        let (uid, lines, gone) = (&self.uids[slot], &self.lines, &self.gone);
        kept(&mut self.shards, (slot, shard, clock), || ledger::Shard {
            meta: Meta {
                namespace: "ns".into(),
                name: shard_name(JOB, shard_of(uid)).into(),
                uid: "shard".into(),
                resource_version: Version("1".into()),
                ..Meta::default()
            },
            entries: lines
                .get(shard.line)
                .map(|entry| (uid.clone(), Ok(shown_line(entry.clone(), clock))))
                .into_iter()
                .collect(),
            gone: Ok(gone.get(shard.gone).cloned().unwrap_or_default()),
        })
    }

    fn write(&mut self, state: &State, world: &World, action: &Action<DaemonJobStatus>) -> Write {
        let pod = |name: &str| {
            let at = world.pods.iter().position(|pod| *pod.meta.name == *name);
            state.pods[at.expect("the plan writes to pods that exist")]
        };
        match action {
            Action::Create { resource, body, .. } if *resource == PODS => self.creation(state, &body.value()),
            Action::Create { resource, name, body, .. } if *resource == CONFIG_MAPS => {
                self.record(state, name, &body.value()["data"])
            }
            Action::MergePatch { resource, name, body, .. } if *resource == CONFIG_MAPS => {
                self.record(state, name, &body["data"])
            }
            Action::MergePatch { name, body, .. } => {
                let word = body["metadata"]["annotations"][DELETED_FOR_ANNOTATION].as_str();
                let mark = word.and_then(|word| (0..).zip(MARKS).find(|(_, mark)| *mark == word));
                Write::Mark { pod: pod(name), mark: mark.map(|(number, _)| number) }
            }
            Action::Delete { name, resource_version, .. } => {
                Write::Delete { pod: pod(name), if_unchanged: resource_version.is_some() }
            }
            Action::JsonPatch { resource, name, operations, .. } if *resource == NODE_OBJECTS => {
                node_mark(state, name, operations)
            }
            Action::JsonPatch { name, .. } => Write::Release(pod(name)),
            other => panic!("no plan of this kind does this: {other:?}"),
        }
    }

    fn creation(&self, state: &State, body: &Value) -> Write {
        let (labels, annotations) = (&body["metadata"]["labels"], &body["metadata"]["annotations"]);
        let slot = self.uids.iter().position(|uid| labels[NODE_UID_LABEL] == **uid);
        let template = self.hashes.iter().position(|hash| labels[HASH_LABEL] == *hash);
        let due: Option<Timestamp> =
            annotations[DUE_TIME_ANNOTATION].as_str().and_then(|text| text.parse().ok());
        Write::Create(Pod {
            template: u8::try_from(template.expect("a template of the model")).unwrap_or_default(),
            rollout: number(&annotations[ROLLOUT_ANNOTATION]),
            run: number(&annotations[RUN_ANNOTATION]),
            due: due.map_or(0, |due| half_day_of(due, state.clock)),
            has_node_ready: !annotations[NODE_READY_ANNOTATION].is_null(),
            has_finalizer: !body["metadata"]["finalizers"].is_null(),
            truth: state.truth.rollout,
            ..Pod::of(NodeId::at(slot.expect("a node of the model")), number(&labels[POD_NUMBER_LABEL]))
        })
    }

    fn record(&mut self, state: &State, name: &str, data: &Value) -> Write {
        let slot = self.uids.iter().position(|uid| shard_name(JOB, shard_of(uid)) == name);
        let slot = slot.expect("a shard of the model");
        let before = state.shards[slot];
        let mut after = Shard { exists: true, ..before };
        for (key, line) in data.as_object().into_iter().flatten() {
            let text = line.as_str();
            if key == GONE {
                after.gone = text.map_or(0, |text| self.intern_gone(text, 0));
            } else {
                assert_eq!(**key, *self.uids[slot], "a line in the shard of its node");
                let entry = text.map(|text| text.parse().expect("a line of the ledger can be read"));
                let entry = entry.map(|entry| stored_line(entry, state.clock));
                after.line = entry.map_or(0, |entry| self.intern_line(entry, 0));
            }
        }
        Write::Record { slot: u8::try_from(slot).unwrap_or_default(), before, after }
    }
}

fn of_annotation(path: &str) -> bool {
    path.starts_with("/metadata/annotations/")
}

/// The change of a Node, from the operations of a patch.
fn node_mark(state: &State, name: &str, operations: &Value) -> Write {
    let found = state.existing().find(|(id, _)| name_of(id.name) == name);
    let (id, node) = found.expect("the plan changes Nodes that exist");
    let operations = operations.as_array().map(Vec::as_slice).unwrap_or_default();
    let record = operations.iter().find(|one| one["op"] == "add");
    let success = record.and_then(|one| one["value"].as_str()?.split_once('/'));
    let (rollout, pod) = success.expect("the patch records the success");
    let number = |text: &str| -> u8 { text.parse().expect("a number") };
    let after = Success { rollout: number(rollout), pod: number(pod) };
    let tests = |one: &Value| one["op"] == "test" && one["path"].as_str().is_some_and(of_annotation);
    let is_tested = operations.iter().any(tests);
    let removes = operations.iter().any(|one| one["op"] == "remove");
    Write::MarkNode(NodeMark { node: id, before: node.record, is_tested, after, removes })
}

fn steady(at: Timestamp) -> SignedDuration {
    SignedDuration::from_secs(at.as_second())
}

fn taint(key: &str) -> Taint {
    Taint { key: key.into(), value: "".into(), effect: "NoSchedule".into() }
}

pub fn name_of(name: u8) -> &'static str {
    ["a", "b", "c"][usize::from(name)]
}

/// UIDs that are in different shards.
fn uid(id: NodeId) -> String {
    format!("{}{}", name_of(id.name), id.generation + 1)
}
