//! Wires DaemonJobs, their pods, their ledgers and the nodes to the queue and the plan.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::try_join_all;
use jiff::Timestamp;
use quintet_kit::controller::{Controller, Reconciler, Waker};
use quintet_kit::departed::Departed;
use quintet_kit::executor::{Carried, Error, Executor};
use quintet_kit::informer::{Change, Informer};
use quintet_kit::object::{Key, Meta, Object as _};
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::{CONFIG_MAPS, JOBS, PODS, Resource};
use quintet_kit::shared::Shared;
use quintet_kit::types::{Node, Pod};
use tokio::sync::watch;

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::ledger::{LEDGER_LABEL, SHARDS, Shard, shard_name};
use crate::metrics::Metrics;
use crate::nodes::{Placement, Verdict, Why};
use crate::observe::{World, may_have_lost_its_label};
use crate::plan::plan;
use crate::{CONTROLLER, FINALIZER};

struct DaemonJobs {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    ledger: Informer<Shard>,
    departed_pods: Arc<Departed<Pod>>,
    departed_shards: Arc<Departed<Shard>>,
    executor: Arc<Executor>,
    metrics: Metrics,
    stop: watch::Receiver<bool>,
    /// UIDs of DaemonJobs of which the post's operator has left no Job behind.
    without_old_job: Mutex<HashSet<Arc<str>>>,
}

impl Reconciler for DaemonJobs {
    type Object = DaemonJob;
    type Status = DaemonJobStatus;
    type World = World;
    type Effect = std::convert::Infallible;

    fn name(&self) -> &'static str {
        CONTROLLER
    }

    fn resource(&self) -> Resource {
        Resource::of::<DaemonJob>()
    }

    fn status<'a>(&self, object: &'a DaemonJob) -> Option<&'a DaemonJobStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &DaemonJob, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        let mut world = World {
            pods: self.pods.owned_by(&key),
            nodes: self.nodes.all(),
            stopping: *self.stop.borrow(),
            refusals,
            ..World::default()
        };
        if object.terminating() {
            return Ok(world);
        }
        self.observe_ledger(object, &key, &mut world).await?;
        let departed = self.departed_pods.owned_by(&key).into_iter().map(|pod| async {
            let found = self.executor.read_meta(&PODS, &key.namespace, &pod.meta.name).await?;
            let is_owned = |meta: &Meta| meta.is_controlled_by(&key);
            let found = found.filter(|meta| meta.uid == pod.meta.uid);
            // One that has lost its owner as well is to be seen again, so that the sweeper takes our finalizer off.
            let found = found.filter(|meta| is_owned(meta) || meta.has_finalizer(FINALIZER));
            if found.is_none() {
                self.departed_pods.settle(&pod);
            }
            Ok::<_, Error>(found.map(|meta| (is_owned(&meta), pod)))
        });
        for (is_owned, pod) in try_join_all(departed).await?.into_iter().flatten() {
            world.pods.extend(is_owned.then(|| pod.clone()));
            world.unlabelled.pods.push(pod);
        }
        world.old_job = self.has_old_job(object, &key).await?;
        Ok(world)
    }

    fn plan(&self, object: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
        plan(object, world, now)
    }

    fn carried(&self, carried: &Carried) {
        self.metrics.count(carried);
    }

    fn has_last_pass(&self) -> bool {
        true
    }

    fn forget(&self, key: &Key) {
        self.departed_pods.forget(key);
        self.departed_shards.forget(key);
        self.without_old_job().remove(&key.uid);
    }
}

impl DaemonJobs {
    fn without_old_job(&self) -> std::sync::MutexGuard<'_, HashSet<Arc<str>>> {
        self.without_old_job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards that the cache shows, and what has become of those that it should show and does not.
    async fn observe_ledger(&self, object: &DaemonJob, key: &Key, world: &mut World) -> Result<(), Error> {
        let number = |shard: &Shard| shard.number(&key.name);
        let mut open: HashSet<u8> = (0..SHARDS).collect();
        for shard in self.ledger.owned_by(key) {
            if number(&shard).is_some_and(|number| open.remove(&number)) {
                let is_going = shard.terminating();
                (if is_going { &mut world.deleted_shards } else { &mut world.ledger }).push(shard);
            }
        }
        for shard in self.departed_shards.owned_by(key) {
            let Some(number) = number(&shard).filter(|number| open.remove(number)) else {
                self.departed_shards.settle(&shard);
                continue;
            };
            if let Some(found) = self.read_shard(key, number).await? {
                world.ledger.push(found.clone());
                world.unlabelled.shards.push(found);
            } else {
                let mut shard = Arc::unwrap_or_clone(shard);
                // It is gone now, however slowly it went.
                shard.meta.deleted = None;
                world.deleted_shards.push(Arc::new(shard));
            }
        }
        // Written once and not to be seen: gone, or without its label, since before this process looked.
        for number in object.status.iter().flat_map(|status| &status.ledger_shards) {
            if open.remove(number)
                && let Some(found) = self.read_shard(key, *number).await?
            {
                world.ledger.push(found.clone());
                world.unlabelled.shards.push(found);
            }
        }
        Ok(())
    }

    /// A shard, read past the cache; None where it is not there or not ours.
    async fn read_shard(&self, key: &Key, number: u8) -> Result<Option<Arc<Shard>>, Error> {
        let name = shard_name(&key.name, number);
        let found = self.executor.read::<Shard>(&CONFIG_MAPS, &key.namespace, &name).await?;
        let is_ours = |shard: &Shard| shard.meta.is_controlled_by(key) && !shard.terminating();
        Ok(found.filter(is_ours).map(Arc::new))
    }

    /// Whether the Job that the post's operator made for this DaemonJob is still there. Asked until something was
    /// begun here.
    async fn has_old_job(&self, object: &DaemonJob, key: &Key) -> Result<bool, Error> {
        let has_begun = object.status.as_ref().is_some_and(|status| status.template_hash.is_some());
        if has_begun || self.without_old_job().contains(&key.uid) {
            return Ok(false);
        }
        let job = self.executor.read_meta(&JOBS, &key.namespace, &format!("{}-job", key.name)).await?;
        let is_there = job.is_some_and(|meta| meta.is_controlled_by(key));
        if !is_there {
            self.without_old_job().insert(key.uid.clone());
        }
        Ok(is_there)
    }
}

/// Wakes the DaemonJobs that a change of a node concerns. What their templates say about nodes is parsed once for each
/// generation: there may be thousands of nodes.
fn wake_by_nodes(nodes: &Informer<Node>, objects: &Informer<DaemonJob>, waker: Waker) {
    let placements: Arc<Mutex<HashMap<Key, (i64, Placement)>>> = Arc::default();
    let parsed = placements.clone();
    objects.subscribe(move |change| {
        let mut placements = parsed.lock().unwrap_or_else(PoisonError::into_inner);
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
        let placements = placements.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, _) in placements.iter().filter(|(_, (_, placement))| concerns(placement, change)) {
            waker.look_again(key.clone());
        }
    });
}

/// Whether a change of a node may change anything for a template that says this: it selects the node, or did.
fn concerns(placement: &Placement, change: &Change<'_, Node>) -> bool {
    let selects = |node: &Node| {
        !matches!(
            placement.verdict(node),
            Verdict::Continue(Why::NotSelected) | Verdict::Refuse(Why::NotSelected)
        )
    };
    match change {
        Change::Applied { new, old, .. } => selects(new) || old.is_some_and(|old| selects(old)),
        // Its pods, if any, have lost their node.
        Change::Deleted { .. } => true,
        Change::Undecodable { .. } | Change::Vanished { .. } => false,
    }
}

/// Adds the DaemonJob controller to the process. Returns the cache of the DaemonJobs that it serves.
pub fn register(shared: &Shared) -> Result<Informer<DaemonJob>, prometheus::Error> {
    let (pods, nodes) = (shared.pods(), shared.nodes());
    let resource = Resource::of::<DaemonJob>();
    let objects = shared.informer::<DaemonJob>("daemonjobs", resource, None);
    let ledger = shared.informer::<Shard>("ledgers", CONFIG_MAPS, Some(LEDGER_LABEL));
    let metrics = Metrics::new(&shared.metrics.registry)?;
    metrics.follow(&objects, &pods, &shared.gate);
    let reads = [pods.followers(), nodes.followers(), ledger.followers()].concat();
    let reconciler = DaemonJobs {
        departed_pods: Departed::from(&pods, &objects, may_have_lost_its_label),
        departed_shards: Departed::from(&ledger, &objects, |_| true),
        pods: pods.clone(),
        nodes: nodes.clone(),
        ledger: ledger.clone(),
        executor: shared.executor.clone(),
        metrics,
        stop: shared.stop.clone(),
        without_old_job: Mutex::default(),
    };
    let controller = Controller::new(shared, reconciler, objects.clone(), reads);
    let waker = controller.waker();
    pods.subscribe(move |change| waker.wake_owner(change, &resource));
    let waker = controller.waker();
    ledger.subscribe(move |change| waker.wake_owner(change, &resource));
    wake_by_nodes(&nodes, &objects, controller.waker());
    shared.spawn_controller(CONTROLLER, controller.run());
    Ok(objects)
}
