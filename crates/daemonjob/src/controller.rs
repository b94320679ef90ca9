//! Connects DaemonJobs, their pods, their ledgers and the nodes to the queue and the plan.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use quintet_runtime::cache::deselected::Deselected;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::control::waker::Waker;
use quintet_runtime::lock;
use quintet_runtime::model::clock::{Clock, FIRST_BACKOFF, LONGEST_BACKOFF, doubled};
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::{Key, Meta, Object as _};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::{Refusals, Verb};
use quintet_runtime::model::resource::{CONFIG_MAPS, PODS, Resource};
use quintet_runtime::server::client::brief;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::write::executor::{Error, Execution, Executor};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::clocks::Clocks;
use crate::eligibility::Placement;
use crate::index::Index;
use crate::ledger::{LEDGER_LABEL, SHARDS, Shard, shard_name};
use crate::mark_prefixes::{MarkPrefix, MarkPrefixes};
use crate::metrics::{Metrics, register_lag};
use crate::observe::{World, may_have_lost_its_label};
use crate::plan::{eligible_node, plan, pod_on_trial};
use crate::problems::problems;
use crate::rollout::hash_in_force;
use crate::status::is_finished;
use crate::waves::paused;
use crate::{CONTROLLER, FINALIZER};

struct DaemonJobs {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    ledger: Informer<Shard>,
    deselected_pods: Arc<Deselected<Pod>>,
    deselected_shards: Arc<Deselected<Shard>>,
    executor: Arc<Executor>,
    metrics: Metrics,
    stop: watch::Receiver<bool>,
    clock: Clock,
    deletion_taints: Arc<[String]>,
    mark_prefixes: MarkPrefixes,
    /// The start of the steady clock.
    origin: Instant,
    /// Without a term the controller does not reconcile.
    gate: Gate,
    /// By UID of the DaemonJob.
    memories: Mutex<HashMap<Arc<str>, Memory>>,
}

/// The times and the dry run that this process keeps for one DaemonJob in one term.
#[derive(Default)]
struct Memory {
    /// When the term began.
    term: Option<Instant>,
    clocks: Clocks,
    index: Arc<Index>,
    /// The dry run of the last template.
    trial: Option<Trial>,
}

/// The API server's answer to a dry run of a template's pod.
#[derive(Clone)]
struct Trial {
    hash: String,
    /// If the pod is invalid: the message, the number of such answers, and the time of the next dry run.
    invalid: Option<(String, u32, Timestamp)>,
}

impl Reconciler for DaemonJobs {
    type Object = DaemonJob;
    type Status = DaemonJobStatus;
    type World = World;
    type Effect = std::convert::Infallible;

    fn status<'a>(&self, object: &'a DaemonJob) -> Option<&'a DaemonJobStatus> {
        object.status.as_ref()
    }

    fn is_settled(&self, status: &DaemonJobStatus) -> bool {
        is_finished(status)
    }

    async fn observe(&self, object: &DaemonJob, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        let mut world = World {
            pods: self.pods.owned_by(&key),
            nodes: self.nodes.all(),
            stopping: *self.stop.borrow(),
            deletion_taints: self.deletion_taints.clone(),
            permitted_marks: self.mark_prefixes.of(&key.namespace),
            refusals,
            ..World::default()
        };
        if object.terminating() {
            return Ok(world);
        }
        world.predecessors = self.pods.owned_by_predecessors(&key, &Resource::of::<DaemonJob>());
        self.observe_ledger(object, &key, &mut world).await?;
        let deselected = self.deselected_pods.owned_by(&key).into_iter().map(|pod| async {
            let found = self.executor.reads.read_meta(&PODS, &key.namespace, &pod.meta.name).await?;
            let is_owned = |meta: &Meta| meta.is_controlled_by(&key);
            let found = found.filter(|meta| meta.uid == pod.meta.uid);
            // A pod that also lost its owner gets its label back, so that the sweeper sees it.
            let found = found.filter(|meta| is_owned(meta) || meta.has_finalizer(FINALIZER));
            if found.is_none() {
                self.deselected_pods.settle(&pod);
            }
            Ok::<_, Error>(found.map(|meta| (is_owned(&meta), pod)))
        });
        for (is_owned, pod) in try_join_all(deselected).await?.into_iter().flatten() {
            world.pods.extend(is_owned.then(|| pod.clone()));
            world.unlabelled.pods.push(pod);
        }
        if !world.unlabelled.pods.is_empty() {
            world.pods.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        }
        self.remember(object, &key, &mut world);
        world.invalid_template = self.try_template(object, &key, &world).await;
        Ok(world)
    }

    fn plan(&self, object: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
        plan(object, world, now)
    }

    fn executed(&self, key: &Key, execution: &Execution) {
        self.metrics.count(execution);
        let (now, mut memories) = (self.clock.now(), lock(&self.memories));
        let Some(memory) = memories.get_mut(&key.uid) else { return };
        for (verb, kind, _) in &execution.done {
            if *kind == CONFIG_MAPS.kind {
                memory.clocks.flushed = Some(now);
            } else if *kind == PODS.kind && matches!(verb, Verb::Delete | Verb::JsonPatch) {
                memory.clocks.tidied = Some(now);
            }
        }
    }

    fn still_applies(&self, planned: &DaemonJob, now: &DaemonJob) -> bool {
        // A pause by annotation stops the creations of a plan, although the generation stays the same.
        now.generation() == planned.generation()
            && now.terminating() == planned.terminating()
            && paused(now).is_some() == paused(planned).is_some()
    }

    fn has_last_pass(&self) -> bool {
        true
    }

    fn forget(&self, key: &Key) {
        self.deselected_pods.forget(key);
        self.deselected_shards.forget(key);
        lock(&self.memories).remove(&key.uid);
    }

    fn restored(&self) {
        self.deselected_pods.clear();
        self.deselected_shards.clear();
    }
}

impl DaemonJobs {
    /// Sends a dry run of a pod of a new template, so that the manager reports an invalid template before the
    /// first node runs. An invalid template gets another dry run after a backoff, because an admission policy
    /// may be the cause. A template that already had a pod is valid.
    async fn try_template(
        &self,
        object: &DaemonJob,
        key: &Key,
        world: &World,
    ) -> Option<(String, Timestamp)> {
        let hash = object.spec.template.hash();
        let now = self.clock.now();
        let before = lock(&self.memories).get(&key.uid).and_then(|memory| memory.trial.clone());
        let before = before.filter(|trial| trial.hash == hash).map(|trial| trial.invalid);
        let (message, times) = match before {
            Some(Some((message, _, until))) if until > now => return Some((message, until)),
            Some(Some((message, times, _))) => (Some(message), times),
            Some(None) => return None,
            None if world.had_pod_of(&hash) => return None,
            None => (None, 0),
        };
        if world.stopping || object.spec.suspend == Some(true) {
            return None;
        }
        let node = eligible_node(object, world);
        let body = pod_on_trial(object, world, node)?;
        let invalid = match self.executor.reads.find_invalid(&PODS, &key.namespace, &body).await {
            Ok(invalid) => invalid,
            // The creation of the node's pod will report the error.
            Err(_) if message.is_none() && node.is_some() => return None,
            // An error in the template may be the reason why no node is eligible.
            Err(error) => {
                let unknown = || {
                    let what = "the API server did not answer whether it accepts a pod of the template";
                    format!("{what}: {}", brief(&error))
                };
                let until = now.checked_add(FIRST_BACKOFF).unwrap_or(now);
                return Some((message.unwrap_or_else(unknown), until));
            }
        };
        let until = now.checked_add(doubled(FIRST_BACKOFF, times, LONGEST_BACKOFF)).unwrap_or(now);
        let invalid = invalid.map(|message| (message, times + 1, until));
        let trial = Trial { hash, invalid: invalid.clone() };
        lock(&self.memories).entry(key.uid.clone()).or_default().trial = Some(trial);
        invalid.map(|(message, _, until)| (message, until))
    }

    /// Updates the clocks of the nodes and the index. The clocks of an earlier term are dropped, because
    /// another manager may have led in between.
    fn remember(&self, object: &DaemonJob, key: &Key, world: &mut World) {
        let steady = SignedDuration::try_from(self.origin.elapsed()).unwrap_or(SignedDuration::MAX);
        let term = self.gate.term().map(|term| term.since);
        let mut memories = lock(&self.memories);
        let memory = memories.entry(key.uid.clone()).or_default();
        if term.is_some() && memory.term != term {
            *memory = Memory { term, ..Memory::default() };
        }
        memory.clocks.step(object, world, (self.clock.now(), steady));
        world.clocks = memory.clocks.clone();
        world.index = std::mem::take(&mut memory.index);
        memory.index = world.indexed(&hash_in_force(object));
        world.index = memory.index.clone();
    }

    /// Reads the ledger: the shards in the cache, and the shards that the cache has lost or never showed.
    async fn observe_ledger(&self, object: &DaemonJob, key: &Key, world: &mut World) -> Result<(), Error> {
        let number = |shard: &Shard| shard.number(&key.name);
        let mut open: HashSet<u8> = (0..SHARDS).collect();
        for shard in self.ledger.owned_by(key) {
            let is_foreign = !shard.is_known_format() && number(&shard).is_none();
            if is_foreign || number(&shard).is_some_and(|number| open.remove(&number)) {
                let is_going = shard.terminating();
                (if is_going { &mut world.deleted_shards } else { &mut world.ledger }).push(shard);
            }
        }
        for shard in self.deselected_shards.owned_by(key) {
            let Some(number) = number(&shard).filter(|number| open.remove(number)) else {
                self.deselected_shards.settle(&shard);
                continue;
            };
            if let Some(found) = self.read_shard(key, number).await? {
                world.unlabelled.shards.push(found);
            } else {
                let mut shard = Arc::unwrap_or_clone(shard);
                // The shard no longer exists, even if its deletion took time.
                shard.meta.deleted = None;
                world.deleted_shards.push(Arc::new(shard));
            }
        }
        // The manager created this shard, and the cache does not show it: it was deleted or lost its label
        // before this process started.
        for number in object.status.iter().flat_map(|status| &status.ledger_shards) {
            if open.remove(number)
                && let Some(found) = self.read_shard(key, *number).await?
            {
                world.unlabelled.shards.push(found);
            }
        }
        world.ledger.extend(world.unlabelled.shards.iter().cloned());
        Ok(())
    }

    /// Reads a shard from the API server, not from the cache. None if it does not exist or has another owner.
    async fn read_shard(&self, key: &Key, number: u8) -> Result<Option<Arc<Shard>>, Error> {
        let name = shard_name(&key.name, number);
        let found = self.executor.reads.read::<Shard>(&CONFIG_MAPS, &key.namespace, &name).await?;
        let is_ours = |shard: &Shard| shard.meta.is_controlled_by(key) && !shard.terminating();
        Ok(found.filter(is_ours).map(Arc::new))
    }
}

/// Requeues the DaemonJobs that a change of a node affects. The node rules of a template are parsed once for
/// each generation, because there may be thousands of nodes.
fn wake_by_nodes(nodes: &Informer<Node>, objects: &Informer<DaemonJob>, waker: Waker) {
    let placements: Arc<Mutex<HashMap<Key, (i64, Placement)>>> = Arc::default();
    let parsed = placements.clone();
    objects.subscribe(move |change| {
        let mut placements = lock(&parsed);
        match change {
            Change::Applied { new, .. } => {
                let (key, generation) = (new.key(), new.generation());
                if placements.get(&key).is_none_or(|(known, _)| *known != generation) {
                    placements.insert(key, (generation, Placement::of(new.spec.template.spec())));
                }
            }
            Change::Deleted { old } => drop(placements.remove(&old.key())),
            Change::Undecodable { key, .. } | Change::Vanished { key } => drop(placements.remove(key)),
        }
    });
    nodes.subscribe(move |change| {
        let placements = lock(&placements);
        for (key, _) in placements.iter().filter(|(_, (_, placement))| concerns(placement, change)) {
            waker.enqueue_low_priority(key.clone());
        }
    });
}

/// Whether a change of a node may affect a template with these rules: the template selects the node, or did.
fn concerns(placement: &Placement, change: &Change<'_, Node>) -> bool {
    let selects = |node: &Node| placement.eligibility(node).is_selected();
    match change {
        // A node that is no longer selected may count as failed until it is Ready.
        Change::Applied { new, old, .. } => {
            selects(new) || old.is_some_and(|old| selects(old) || old.ready != new.ready)
        }
        // The node's pods, if any, have lost their node.
        Change::Deleted { .. } => true,
        Change::Undecodable { .. } | Change::Vanished { .. } => false,
    }
}

/// Adds the DaemonJob controller to the process. Returns the cache of the DaemonJobs that it serves.
/// `deletion_taints` are further keys of taints that announce the deletion of a node. `mark_prefixes` allow keys in
/// `onSuccess`.
pub fn register(
    context: &Context,
    deletion_taints: &[String],
    mark_prefixes: &[MarkPrefix],
) -> Result<Informer<DaemonJob>, prometheus::Error> {
    let (pods, nodes) = (context.pods(), context.nodes());
    let objects = context.informer::<DaemonJob>(Resource::of::<DaemonJob>(), None);
    let ledger = context.informer::<Shard>(CONFIG_MAPS, Some(LEDGER_LABEL));
    let metrics = Metrics::new(&context.metrics.registry)?;
    metrics.follow(&objects, &pods, &context.gate);
    register_lag(&context.metrics.registry, &objects, context.clock)?;
    context.find_problems_in(&objects, problems);
    let reads = [pods.tracked(), nodes.tracked(), ledger.tracked()].concat();
    let reconciler = DaemonJobs {
        deselected_pods: Deselected::from(&pods, &objects, may_have_lost_its_label),
        deselected_shards: Deselected::from(&ledger, &objects, |_| true),
        pods: pods.clone(),
        nodes: nodes.clone(),
        ledger: ledger.clone(),
        executor: context.executor.clone(),
        metrics,
        stop: context.stop.clone(),
        clock: context.clock,
        gate: context.gate.clone(),
        deletion_taints: deletion_taints.iter().filter(|key| !key.is_empty()).cloned().collect(),
        mark_prefixes: mark_prefixes.into(),
        origin: Instant::now(),
        memories: Mutex::default(),
    };
    let controller = Controller::new(context, CONTROLLER, reconciler, objects.clone(), reads);
    controller.owns(&pods);
    controller.owns(&ledger);
    wake_by_nodes(&nodes, &objects, controller.waker());
    context.spawn_controller(CONTROLLER, controller.run());
    Ok(objects)
}
