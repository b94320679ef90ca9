//! Wires PulsarConsumers and their Deployments to the queue and the plan.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::executor::{Error, Executor, Follower};
use quintet_kit::informer::{Change, Informer};
use quintet_kit::object::{Key, Object as _};
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::Resource;
use quintet_kit::shared::Shared;
use quintet_kit::types::Deployment;

use crate::CONTROLLER;
use crate::api::{PulsarConsumer, PulsarConsumerStatus};
use crate::observe::{Tried, World, observe};
use crate::plan::{DEPLOYMENT_SUFFIX, NAME_LABEL, is_overruled, plan};

struct PulsarConsumers {
    deployments: Informer<Deployment>,
    executor: Arc<Executor>,
    image: Arc<str>,
    /// By the PulsarConsumer's UID. Forgotten as soon as an apply has shown its effect.
    tried: Mutex<HashMap<Arc<str>, Tried>>,
}

impl PulsarConsumers {
    fn tried(&self) -> MutexGuard<'_, HashMap<Arc<str>, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconciler for PulsarConsumers {
    type Object = PulsarConsumer;
    type Status = PulsarConsumerStatus;
    type World = World;
    type Effect = Tried;

    fn name(&self) -> &'static str {
        CONTROLLER
    }

    fn resource(&self) -> Resource {
        Resource::of::<PulsarConsumer>()
    }

    fn status<'a>(&self, object: &'a PulsarConsumer) -> Option<&'a PulsarConsumerStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &PulsarConsumer, refusals: Refusals) -> Result<World, Error> {
        let tried = self.tried().get(&object.key().uid).cloned();
        observe(object, &self.deployments, &self.executor, self.image.clone(), refusals, tried).await
    }

    fn plan(
        &self,
        object: &PulsarConsumer,
        world: &World,
        now: Timestamp,
    ) -> Plan<PulsarConsumerStatus, Tried> {
        let plan = plan(object, world, now);
        if !is_overruled(&plan) {
            self.tried().remove(&object.key().uid);
        }
        plan
    }

    fn effect(&self, object: &PulsarConsumer, tried: Tried) -> Result<(), String> {
        self.tried().insert(object.key().uid, tried);
        Ok(())
    }

    fn forget(&self, key: &Key) {
        self.tried().remove(&key.uid);
    }
}

/// Adds the PulsarConsumer controller to the process. `image` is what consumers run where their object names none.
pub fn register(shared: &Shared, image: String) {
    let deployments = shared.deployments(NAME_LABEL);
    let resource = Resource::of::<PulsarConsumer>();
    let objects = shared.informer::<PulsarConsumer>("pulsarconsumers", resource, None);
    let reads: [Arc<dyn Follower>; 1] = [Arc::new(deployments.clone())];
    let reconciler = PulsarConsumers {
        deployments: deployments.clone(),
        executor: shared.executor.clone(),
        image: image.into(),
        tried: Mutex::default(),
    };
    let controller = Controller::new(shared, reconciler, objects.clone(), reads);
    let waker = controller.waker();
    deployments.subscribe(move |change| {
        waker.wake_owner(change, &resource);
        // Whoever it belonged to (a deleted PulsarConsumer of the same name, most often), its name is free now.
        if let Change::Deleted { old } = change
            && let Some(name) = old.meta.name.strip_suffix(DEPLOYMENT_SUFFIX)
            && let Some(consumer) = objects.find(&old.meta.namespace, name)
        {
            waker.wake(consumer.key());
        }
    });
    shared.spawn_controller(CONTROLLER, controller.run());
}
