//! Wires PodSets and their pods to the queue and the plan.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_kit::KIND_LABEL;
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::departed::Departed;
use quintet_kit::executor::{Error, Executor};
use quintet_kit::informer::Informer;
use quintet_kit::object::{Key, Object as _};
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::shared::Shared;
use quintet_kit::types::Pod;

use crate::CONTROLLER;
use crate::api::{PodSet, PodSetStatus};
use crate::metrics;
use crate::observe::World;
use crate::plan::{NAME_LABEL, UID_LABEL, name_prefix, plan};

struct PodSets {
    pods: Informer<Pod>,
    executor: Arc<Executor>,
    /// Pods that have left the watch without having been deleted.
    departed: Arc<Departed<Pod>>,
}

impl Reconciler for PodSets {
    type Object = PodSet;
    type Status = PodSetStatus;
    type World = World;
    type Effect = std::convert::Infallible;

    fn name(&self) -> &'static str {
        CONTROLLER
    }

    fn resource(&self) -> Resource {
        Resource::of::<PodSet>()
    }

    fn status<'a>(&self, object: &'a PodSet) -> Option<&'a PodSetStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &PodSet, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        let mut world = World { pods: self.pods.owned_by(&key), refusals, ..World::default() };
        world.taken = self.pods.names(&key.namespace, &name_prefix(&key.name), |pod| !is_of(pod, &key));
        if object.terminating() {
            return Ok(world);
        }
        for pod in self.departed.owned_by(&key) {
            let found = self.executor.read::<Pod>(&PODS, &key.namespace, &pod.meta.name).await?;
            match found.filter(|found| found.meta.uid == pod.meta.uid && is_of(found, &key)).map(Arc::new) {
                Some(found) => {
                    world.pods.push(found.clone());
                    world.unlabelled.push(found);
                }
                None => self.departed.settle(&pod),
            }
        }
        self.look_for_older_pods(object, &key, &mut world).await?;
        Ok(world)
    }

    fn plan(&self, object: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
        plan(object, world, now)
    }

    fn forget(&self, key: &Key) {
        self.departed.forget(key);
    }
}

/// Whether a pod has none of our labels: one that has only lost the label of the watch is no older one.
fn is_older(pod: &Pod) -> bool {
    pod.label(KIND_LABEL).is_none() && pod.label(UID_LABEL).is_none()
}

fn is_of(pod: &Pod, key: &Key) -> bool {
    pod.owner().is_some_and(|owner| owner.uid == key.uid)
}

impl PodSets {
    /// Pods that the post's operator made have its label and not that of our watch: asked for until a first status of ours
    /// is written. Who else has pods of that label is told then.
    async fn look_for_older_pods(&self, object: &PodSet, key: &Key, world: &mut World) -> Result<(), Error> {
        let has_begun = object.status.as_ref().is_some_and(|status| status.selector.is_some());
        if has_begun {
            return Ok(());
        }
        let selector = format!("{NAME_LABEL}={}", key.name);
        let found = self.executor.list::<Pod>(&PODS, &key.namespace, &selector).await?;
        let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|pod| is_of(pod, key));
        world.unmigrated = ours.into_iter().filter(is_older).map(Arc::new).collect();
        if object.status.as_ref().is_some_and(|status| status.observed_generation.is_some()) {
            // They were told with the first status.
            return Ok(());
        }
        world.strangers = others.first().map(|first| {
            let (count, first) = (others.len(), &first.meta.name);
            format!(
                "{count} pods of others have the label {selector}, {first} for instance: they are left alone"
            )
        });
        Ok(())
    }
}

/// Adds the PodSet controller to the process.
pub fn register(shared: &Shared) -> Result<(), prometheus::Error> {
    let pods = shared.pods();
    let resource = Resource::of::<PodSet>();
    let objects = shared.informer::<PodSet>("podsets", resource, None);
    metrics::follow(&shared.metrics.registry, &objects)?;
    let reads = pods.followers();
    let reconciler = PodSets {
        departed: Departed::from(&pods, &objects, Pod::is_counted),
        pods: pods.clone(),
        executor: shared.executor.clone(),
    };
    let controller = Controller::new(shared, reconciler, objects, reads);
    let waker = controller.waker();
    pods.subscribe(move |change| waker.wake_owner(change, &resource));
    shared.spawn_controller(CONTROLLER, controller.run());
    Ok(())
}
