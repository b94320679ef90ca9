//! Wires PodSets and their pods to the queue and the plan.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::executor::{Error, Follower};
use quintet_kit::informer::Informer;
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::Resource;
use quintet_kit::shared::Shared;
use quintet_kit::types::Pod;

use crate::CONTROLLER;
use crate::api::{PodSet, PodSetStatus};
use crate::observe::{World, observe};
use crate::plan::plan;

struct PodSets {
    pods: Informer<Pod>,
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
        Ok(observe(&object.key(), &self.pods, refusals))
    }

    fn plan(&self, object: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
        plan(object, world, now)
    }
}

/// Adds the PodSet controller to the process.
pub fn register(shared: &Shared) {
    let pods = shared.pods();
    let resource = Resource::of::<PodSet>();
    let objects = shared.informer::<PodSet>("podsets", resource, None);
    let reads: [Arc<dyn Follower>; 1] = [Arc::new(pods.clone())];
    let controller = Controller::new(shared, PodSets { pods: pods.clone() }, objects, reads);
    let waker = controller.waker();
    pods.subscribe(move |change| waker.wake_owner(change, &resource));
    shared.spawn_controller(CONTROLLER, controller.run());
}
