//! Connects PodSets and their pods with the queue and the plan.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::cache::deselected::Deselected;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::conditions::{self, READY};
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Key, Object as _};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::{PODS, Resource};
use quintet_runtime::server::client::brief;
use quintet_runtime::write::executor::{Error, Executor};
use tokio::sync::OnceCell;

use crate::CONTROLLER;
use crate::adoption::{self, Orphans};
use crate::api::{PodSet, PodSetStatus};
use crate::labels::UID_LABEL;
use crate::metrics;
use crate::observe::World;
use crate::plan::{name_prefix, plan, revision_to_read};
use crate::revision::{self, CONTROLLER_REVISIONS, CurrentTemplate, Revision, StoredRevision};

struct PodSets {
    pods: Informer<Pod>,
    executor: Arc<Executor>,
    revisions: Informer<Revision>,
    /// Pods that left the watch without a deletion.
    deselected: Arc<Deselected<Pod>>,
    /// For each part of the watch, whether pods that left it before this process began were listed.
    searched: Vec<OnceCell<()>>,
}

impl Reconciler for PodSets {
    type Object = PodSet;
    type Status = PodSetStatus;
    type World = World;
    type Effect = std::convert::Infallible;

    fn status<'a>(&self, object: &'a PodSet) -> Option<&'a PodSetStatus> {
        object.status.as_ref()
    }

    fn is_settled(&self, status: &PodSetStatus) -> bool {
        conditions::is_true(&status.conditions, READY)
    }

    async fn observe(&self, object: &PodSet, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        if !object.terminating()
            && let Some(part) = self.pods.part_of(&key.namespace)
        {
            self.searched[part].get_or_try_init(|| self.search(part)).await?;
        }
        let mut world = World { pods: self.pods.owned_by(&key), refusals, ..World::default() };
        world.taken =
            self.pods.names(&key.namespace, &name_prefix(&key.name), |pod| !pod.meta.is_controlled_by(&key));
        if object.terminating() {
            return Ok(world);
        }
        for pod in self.deselected.owned_by(&key) {
            let found = self.executor.reads.read::<Pod>(&PODS, &key.namespace, &pod.meta.name).await?;
            let is_it = |found: &Pod| found.meta.uid == pod.meta.uid && found.meta.is_controlled_by(&key);
            match found.filter(is_it).map(Arc::new) {
                // The cache shows the pod again.
                Some(found) if world.pods.iter().any(|pod| pod.meta.uid == found.meta.uid) => {
                    self.deselected.settle(&found);
                }
                Some(found) => {
                    world.pods.push(found.clone());
                    world.unlabelled.push(found);
                }
                None => self.deselected.settle(&pod),
            }
        }
        let has_label = |pod: &&Arc<Pod>| pod.is_counted() && pod.label(UID_LABEL) == Some(&*key.uid);
        world.orphans = self.orphans(object, &key, world.pods.iter().filter(has_label).count()).await?;
        if let Orphans::Found(found) = &world.orphans {
            // An adopted pod that an admission policy took the labels from is in no watch.
            let is_in = |one: &Arc<Pod>| world.pods.iter().any(|pod| pod.meta.uid == one.meta.uid);
            let owned = found.iter().filter(|pod| pod.meta.is_controlled_by(&key) && !is_in(pod));
            world.pods.extend(owned.cloned().collect::<Vec<_>>());
        }
        if !world.refusals.left.is_empty() {
            for pod in world.pods.iter().filter(has_label).filter(|pod| world.refusals.has_left(&pod.meta)) {
                self.executor.memory.leave(&key, &pod.meta.name, None);
            }
        }
        world.revisions = self.revisions.owned_by(&key);
        // The garbage collector deletes a revision that is stored for a deleted PodSet, which would be stored again at once.
        if revision::is_lost(object, &world) {
            self.require(&key).await?;
        }
        if let Some(name) = revision_to_read(object, &world) {
            let read =
                self.executor.reads.read::<StoredRevision>(&CONTROLLER_REVISIONS, &key.namespace, &name);
            world.current_template = match read.await {
                Ok(Some(stored)) => CurrentTemplate::of(object, &name, &stored),
                Ok(None) => CurrentTemplate::Missing,
                Err(error) => CurrentTemplate::Unreadable(brief(&error)),
            };
        }
        Ok(world)
    }

    fn plan(&self, object: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
        plan(object, world, now)
    }

    fn forget(&self, key: &Key) {
        self.deselected.forget(key);
    }

    fn restored(&self) {
        self.deselected.clear();
    }
}

impl PodSets {
    /// Reads the pods to adopt, if pods are missing. `counted` is the number of counted pods with the label of the
    /// selector.
    async fn orphans(&self, podset: &PodSet, key: &Key, counted: usize) -> Result<Orphans, Error> {
        let selector = match adoption::selector(podset, counted) {
            None => return Ok(Orphans::Unread),
            Some(Err(why)) => return Ok(Orphans::Rejected(why)),
            Some(Ok(selector)) => selector,
        };
        let reads = &self.executor.reads;
        let pods = match reads.list::<Pod>(&PODS, &key.namespace, &selector).await {
            Ok(pods) => pods,
            Err(kube::Error::Api(status)) if status.code == 400 => {
                return Ok(Orphans::Rejected(status.message.clone()));
            }
            Err(error) => return Err(error.into()),
        };
        // The deletion of this PodSet may have orphaned the pods, and the garbage collector deletes what a deleted PodSet
        // adopts. So read the PodSet after the pods, as for a ReplicaSet.
        if pods.iter().any(adoption::is_orphan) {
            self.require(key).await?;
        }
        Ok(Orphans::Found(pods.into_iter().map(Arc::new).collect()))
    }

    /// Reads the PodSet, because the watch of PodSets may be behind the others. Returns an error if it is deleted.
    async fn require(&self, key: &Key) -> Result<(), Error> {
        let found =
            self.executor.reads.read_meta(&Resource::of::<PodSet>(), &key.namespace, &key.name).await?;
        match found.filter(|meta| meta.uid == key.uid && meta.deleted.is_none()) {
            Some(_) => Ok(()),
            None => Err(Error::Stale(format!("PodSet {key}"))),
        }
    }

    /// Lists the pods that lost the label of the watch before this process watched them. One namespace without
    /// permissions must not stop the others.
    async fn search(&self, part: usize) -> Result<(), Error> {
        let selector = format!("{UID_LABEL},!{KIND_LABEL}");
        let namespace = self.pods.parts()[part].state().namespace();
        for pod in self.executor.reads.list::<Pod>(&PODS, namespace, &selector).await? {
            self.deselected.insert(Arc::new(pod));
        }
        Ok(())
    }
}

/// Adds the PodSet controller to the process.
pub fn register(context: &Context) -> Result<(), prometheus::Error> {
    let pods = context.pods();
    let objects = context.informer::<PodSet>(Resource::of::<PodSet>(), None);
    metrics::follow(&context.metrics.registry, &objects)?;
    context.find_problems_in(&objects, metrics::problems);
    let revisions = context.informer::<Revision>(CONTROLLER_REVISIONS, Some(KIND_LABEL));
    let reads = [pods.tracked(), revisions.tracked()].concat();
    let executor = context.executor.clone();
    let reconciler = PodSets {
        deselected: Deselected::from(&pods, &objects, move |pod: &Pod| {
            // A pod without a node is gone at once, without a version in which it terminates.
            pod.is_counted()
                && !pod.owner().is_some_and(|owner| executor.memory.deletes(&owner.uid, &pod.meta.uid))
        }),
        searched: pods.parts().iter().map(|_| OnceCell::new()).collect(),
        pods: pods.clone(),
        revisions: revisions.clone(),
        executor: context.executor.clone(),
    };
    let controller = Controller::new(context, CONTROLLER, reconciler, objects, reads);
    controller.owns(&pods);
    controller.owns(&revisions);
    context.spawn_controller(CONTROLLER, controller.run());
    Ok(())
}
