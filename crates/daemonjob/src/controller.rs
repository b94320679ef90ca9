//! Wires DaemonJobs, their pods and the nodes to the queue and the plan.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::executor::{Error, Follower};
use quintet_kit::informer::Informer;
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::Resource;
use quintet_kit::shared::Shared;
use quintet_kit::types::{Node, Pod};

use crate::CONTROLLER;
use crate::api::{DaemonJob, DaemonJobStatus};
use crate::observe::{World, observe};
use crate::plan::plan;

struct DaemonJobs {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
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
        Ok(observe(&object.key(), &self.pods, &self.nodes, refusals))
    }

    fn plan(&self, object: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
        plan(object, world, now)
    }
}

/// Adds the DaemonJob controller to the process.
pub fn register(shared: &Shared) {
    let (pods, nodes) = (shared.pods(), shared.nodes());
    let resource = Resource::of::<DaemonJob>();
    let objects = shared.informer::<DaemonJob>("daemonjobs", resource);
    let reads: [Arc<dyn Follower>; 2] = [Arc::new(pods.clone()), Arc::new(nodes.clone())];
    let reconciler = DaemonJobs { pods: pods.clone(), nodes: nodes.clone() };
    let controller = Controller::new(shared, reconciler, objects.clone(), reads);
    let waker = controller.waker();
    pods.subscribe(move |change| waker.wake_owner(change, &resource));
    let waker = controller.waker();
    nodes.subscribe(move |_change| {
        // Which DaemonJobs a node concerns is the plan's question; a change that nobody reads never comes here.
        for daemonjob in objects.all() {
            waker.look_again(daemonjob.key());
        }
    });
    shared.spawn_controller(CONTROLLER, controller.run());
}
