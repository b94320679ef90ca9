//! Connects PulsarConsumers, Deployments, pods, KEDA's objects and the poller with the queue and the plan.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::cache::state::{Health, any_changed};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::lock;
use quintet_runtime::model::conditions::{self, READY};
use quintet_runtime::model::core_types::{Deployment, Pod};
use quintet_runtime::model::finalizer;
use quintet_runtime::model::object::{Key, Object};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource};
use quintet_runtime::write::executor::{Error, Execution};

use crate::admin::Admin;
use crate::api::{AppliedObject, PulsarConsumer, PulsarConsumerStatus};
use crate::backlog::Unknown;
use crate::cleanup::is_shared;
use crate::deployment::{Image, NAME_LABEL, deployment_name};
use crate::keda::{
    KedaObject, SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS, scaled_object_name, trigger_authentication_name,
};
use crate::managed_object::{Attempts, Effect};
use crate::metrics::{self, Metrics};
use crate::observe::{Keda, Sharing, World};
use crate::plan::{is_same_version, may_be_outdated, plan};
use crate::poller::Poller;
use crate::reach::Reach;
use crate::{CONTROLLER, FINALIZER, pods};

/// The settings of this kind, from flags of the manager.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The default image of consumers.
    pub image: Image,
    /// Whether the manager does not access objects of KEDA.
    pub without_keda: bool,
    /// Where requests to `adminURL` and `tokenURL` may go.
    pub reach: Reach,
}

struct PulsarConsumers {
    context: Context,
    objects: Informer<PulsarConsumer>,
    deployments: Informer<Deployment>,
    pods: Informer<Pod>,
    /// ScaledObjects and TriggerAuthentications; None without KEDA.
    keda: Option<[Informer<KedaObject>; 2]>,
    poller: Arc<Poller>,
    image: Arc<Image>,
    /// By the PulsarConsumer's UID.
    attempts: Mutex<HashMap<Arc<str>, Attempts>>,
}

impl Reconciler for PulsarConsumers {
    type Object = PulsarConsumer;
    type Status = PulsarConsumerStatus;
    type World = World;
    type Effect = Effect;

    fn status<'a>(&self, object: &'a PulsarConsumer) -> Option<&'a PulsarConsumerStatus> {
        object.status.as_ref()
    }

    fn is_settled(&self, status: &PulsarConsumerStatus) -> bool {
        conditions::is_true(&status.conditions, READY)
    }

    async fn observe(&self, object: &PulsarConsumer, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        let mut world = World {
            image: self.image.clone(),
            refusals,
            attempts: lock(&self.attempts).get(&key.uid).cloned().unwrap_or_default(),
            ..World::default()
        };
        let name = deployment_name(object);
        if object.terminating() {
            if finalizer::has(object, FINALIZER) {
                world.deployment = self.find(&self.deployments, &key.namespace, &name, false).await?;
                world.deletion = self.poller.deletion(&key);
                world.running_pods = pods::of(&self.pods, object, Pod::is_running).len();
                world.sharing = self.sharing(object);
            }
            return Ok(world);
        }
        world.backlog = self.poller.reading(&key);
        world.deployment = self.find(&self.deployments, &key.namespace, &name, false).await?;
        world.keda = self.keda(object, &key).await;
        // Without leader election, another manager may know a newer version, and an older one must not replace or delete
        // its objects.
        if may_be_outdated(object, &world) {
            let reads = &self.context.executor.reads;
            let found = reads.read_meta(&self.objects.resource(), &key.namespace, &key.name).await?;
            if found.is_none_or(|found| !is_same_version(object, &found)) {
                return Err(Error::Stale(format!("PulsarConsumer {key}")));
            }
        }
        world.unready = pods::of(&self.pods, object, pods::is_unready);
        Ok(world)
    }

    fn plan(
        &self,
        object: &PulsarConsumer,
        world: &World,
        now: Timestamp,
    ) -> Plan<PulsarConsumerStatus, Effect> {
        plan(object, world, now)
    }

    fn effect(&self, object: &PulsarConsumer, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Attempt(attempt) => {
                lock(&self.attempts).entry(object.key().uid).or_default().insert(attempt.resource, *attempt);
            }
            Effect::DeleteSubscription => self.poller.allow_deletion(&object.key()),
        }
        Ok(())
    }

    fn executed(&self, key: &Key, execution: &Execution) {
        let mut all = lock(&self.attempts);
        let Some(attempts) = all.get_mut(&key.uid) else { return };
        for (resource, meta) in &execution.applied {
            if let Some(attempt) = attempts.get_mut(resource) {
                attempt.after = Some(AppliedObject::of(resource, meta));
            }
        }
    }

    fn forget(&self, key: &Key) {
        lock(&self.attempts).remove(&key.uid);
    }
}

impl PulsarConsumers {
    /// Whether another PulsarConsumer needs the subscription of this one.
    fn sharing(&self, object: &PulsarConsumer) -> Sharing {
        let unknown = |message: String| Sharing::Unknown(Unknown::new("CacheIncomplete", message));
        if let Some(other) = self.objects.all().into_iter().find(|other| is_shared(object, other)) {
            return Sharing::With(other.key().to_string());
        }
        let parts = self.objects.tracked();
        let is_current =
            parts.iter().all(|part| self.context.gate.is_caught_up(part.scope(), &part.progress()));
        if !is_current || !matches!(self.objects.health(), Health::Synced { .. }) {
            return unknown("The manager cannot list the PulsarConsumers of all its namespaces.".to_owned());
        }
        match self.objects.undecodable().first() {
            Some((key, _)) => {
                unknown(format!("PulsarConsumer {key} is invalid, and may use the subscription."))
            }
            None => Sharing::Unshared,
        }
    }

    /// Finds the object with a name.
    ///
    /// The caches hold only objects with the label `pulsarcrd`. An object that is not in the cache may be
    /// foreign, may have lost its label, or may be newer than the cache. Then the API server is read, as with
    /// `is_behind`.
    async fn find<T: Object>(
        &self,
        cache: &Informer<T>,
        namespace: &str,
        name: &str,
        is_behind: bool,
    ) -> Result<Option<Arc<T>>, Error> {
        let cached = cache.find(namespace, name).filter(|_| !is_behind);
        if cached.is_some() {
            return Ok(cached);
        }
        let found = self.context.executor.reads.read(&cache.resource(), namespace, name).await?;
        Ok(found.map(Arc::new))
    }

    /// Finds the objects of KEDA. If a read fails, the rest of the plan continues.
    async fn keda(&self, object: &PulsarConsumer, key: &Key) -> Keda {
        let Some(caches) = &self.keda else { return Keda::Absent };
        match presence(caches) {
            Some(true) => {}
            Some(false) => return Keda::Absent,
            None => return Keda::Unknown,
        }
        let scales = object.spec.autoscaling.is_some();
        let wanted = [scales, scales && object.spec.has_admin_auth()];
        let names = [scaled_object_name(object), trigger_authentication_name(object)];
        let mut found = [None, None];
        for (at, (cache, name)) in caches.iter().zip(names).enumerate() {
            // A reconcile does not wait until these caches show the last write or continue their
            // watches, so it reads newer objects.
            let parts = cache.tracked();
            let is_current = self.context.executor.is_current(&key.namespace, &parts);
            let is_behind = !is_current || !self.context.executor.memory.caught_up(key, &parts);
            found[at] = if wanted[at] || is_behind {
                match self.find(cache, &key.namespace, &name, is_behind).await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::warn!(object = %key, %error, "cannot read an object of KEDA");
                        return Keda::Unknown;
                    }
                }
            } else {
                cache.find(&key.namespace, &name)
            };
        }
        let [scaled_object, trigger_authentication] = found;
        Keda::There { scaled_object, trigger_authentication }
    }
}

/// Wakes all PulsarConsumers when KEDA is installed or removed.
async fn follow_keda(
    caches: [Informer<KedaObject>; 2],
    objects: Informer<PulsarConsumer>,
    waker: quintet_runtime::control::waker::Waker,
) {
    let mut health: Vec<_> = caches.iter().flat_map(Informer::watch_health).collect();
    let mut was = None;
    loop {
        let is = presence(&caches);
        if is != was {
            was = is;
            // Including those without autoscaling, whose objects of KEDA must be deleted.
            for object in objects.all() {
                waker.enqueue_low_priority(object.key());
            }
        }
        any_changed(&mut health).await;
    }
}

/// Whether KEDA is installed; None if unknown.
fn presence(caches: &[Informer<KedaObject>; 2]) -> Option<bool> {
    let health = caches.each_ref().map(Informer::health);
    if health.iter().any(|health| matches!(health, Health::Absent { .. })) {
        return Some(false);
    }
    health.iter().all(|health| matches!(health, Health::Synced { .. })).then_some(true)
}

/// Adds the PulsarConsumer controller to the process.
pub fn register(context: &Context, settings: Settings) -> Result<(), prometheus::Error> {
    let Settings { image, without_keda, reach } = settings;
    let deployments = context.informer::<Deployment>(DEPLOYMENTS, Some(NAME_LABEL));
    let objects = context.informer::<PulsarConsumer>(Resource::of::<PulsarConsumer>(), None);
    let keda = (!without_keda).then(|| {
        [SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS]
            .map(|resource| context.optional_informer::<KedaObject>(resource, Some(NAME_LABEL)))
    });
    let metrics = Metrics::new(&context.metrics.registry, &objects)?;
    context.find_problems_in(&objects, metrics::problems);
    let pods = context.pods();
    let reads = [deployments.tracked(), pods.tracked()].concat();
    let poller = Arc::new(Poller::default());
    let reconciler = PulsarConsumers {
        context: context.clone(),
        objects: objects.clone(),
        deployments: deployments.clone(),
        pods: pods.clone(),
        keda: keda.clone(),
        poller: poller.clone(),
        image: Arc::new(image),
        attempts: Mutex::default(),
    };
    let controller = Controller::new(context, CONTROLLER, reconciler, objects.clone(), reads);
    let waker = controller.waker();
    pods::follow(&pods, &objects, waker.clone());
    poller.follow(context, &objects, metrics, waker.clone(), Admin::new(reach));
    controller.owns(&deployments);
    if let Some(caches) = keda {
        for cache in &caches {
            controller.owns(cache);
        }
        context.spawn("keda", follow_keda(caches, objects, waker));
    }
    context.spawn_controller(CONTROLLER, controller.run());
    Ok(())
}
