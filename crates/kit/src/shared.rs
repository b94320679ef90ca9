//! What the controllers of one process share: a client, a gate, one executor and one informer per type.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use tokio::sync::watch;

use crate::KIND_LABEL;
use crate::clock::Clock;
use crate::election::{Gate, Seen};
use crate::events::Recorder;
use crate::executor::Executor;
use crate::informer::{Health, Informer, Progress, SILENCE};
use crate::metrics::Metrics;
use crate::object::Object;
use crate::resource::{DEPLOYMENTS, NODES, PODS, Resource};
use crate::types::{Deployment, Node, Pod};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Watched = Box<dyn Fn() -> Option<String> + Send + Sync>;
type Position = Box<dyn Fn() -> (Resource, String, Progress) + Send + Sync>;

/// Shared by all controllers of the process. Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    /// The client that everything but the election uses.
    pub client: Client,
    /// The one writer.
    pub executor: Arc<Executor>,
    /// Whether this process may write.
    pub gate: Gate,
    /// News for `kubectl describe`.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Metrics,
    /// Time.
    pub clock: Clock,
    /// Becomes true when the process is asked to end.
    pub stop: watch::Receiver<bool>,
    inner: Arc<Inner>,
}

struct Inner {
    namespace: String,
    tasks: Mutex<Vec<(&'static str, Task)>>,
    controllers: Mutex<Vec<(&'static str, Task)>>,
    watched: Mutex<Vec<Watched>>,
    positions: Mutex<Vec<Position>>,
    pods: Mutex<Option<Informer<Pod>>>,
    nodes: Mutex<Option<Informer<Node>>>,
    deployments: Mutex<Option<Informer<Deployment>>>,
}

impl Shared {
    /// Shares a client. `namespace` narrows every watch of namespaced objects; empty means all.
    pub fn new(
        client: Client,
        gate: Gate,
        metrics: Metrics,
        clock: Clock,
        instance: String,
        namespace: String,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let (recorder, sender) =
            Recorder::new(client.clone(), gate.clone(), clock, metrics.clone(), instance);
        let shared = Self {
            executor: Arc::new(Executor::new(client.clone(), gate.clone(), clock)),
            client,
            gate,
            recorder,
            metrics,
            clock,
            stop,
            inner: Arc::new(Inner {
                namespace,
                tasks: Mutex::default(),
                controllers: Mutex::default(),
                watched: Mutex::default(),
                positions: Mutex::default(),
                pods: Mutex::default(),
                nodes: Mutex::default(),
                deployments: Mutex::default(),
            }),
        };
        shared.spawn("events", sender);
        shared
    }

    /// The namespace that every watch of namespaced objects is narrowed to; empty means all.
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// The one Pod watch of the process: the pods that carry [`KIND_LABEL`].
    pub fn pods(&self) -> Informer<Pod> {
        self.once(&self.inner.pods, "pods", PODS, Some(KIND_LABEL))
    }

    /// The one Node watch of the process.
    pub fn nodes(&self) -> Informer<Node> {
        self.once(&self.inner.nodes, "nodes", NODES, None)
    }

    /// The one Deployment watch of the process: those that `selector` selects.
    pub fn deployments(&self, selector: &'static str) -> Informer<Deployment> {
        self.once(&self.inner.deployments, "deployments", DEPLOYMENTS, Some(selector))
    }

    /// An informer of one kind's own: of a custom resource, or of the objects of a type that `selector` selects.
    pub fn informer<T: Object>(
        &self,
        name: &'static str,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        self.start(name, Informer::new(resource, &self.inner.namespace, selector))
    }

    /// An informer of a type that may well be absent, and that nobody waits for; of the objects that `selector` selects.
    pub fn patient_informer<T: Object>(
        &self,
        name: &'static str,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        let informer = Informer::new(resource, &self.inner.namespace, selector).patient();
        self.hand_over(&informer);
        self.spawn(name, informer.clone().run(self.client.clone(), self.metrics.clone()));
        informer
    }

    fn once<T: Object>(
        &self,
        slot: &Mutex<Option<Informer<T>>>,
        name: &'static str,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| self.start(name, Informer::new(resource, &self.inner.namespace, selector)))
            .clone()
    }

    fn start<T: Object>(&self, name: &'static str, informer: Informer<T>) -> Informer<T> {
        let health = informer.health();
        let what = informer.resource().crd_name();
        let watched: Watched = Box::new(move || match &*health.borrow() {
            Health::Unsynced => Some(format!("the cache of {what} is not filled yet")),
            Health::Absent => Some(format!("waiting for the CustomResourceDefinition {what}")),
            Health::Synced { heard } if heard.elapsed() > SILENCE => {
                Some(format!("the watch of {what} has been silent for {} s", heard.elapsed().as_secs()))
            }
            Health::Synced { .. } => None,
        });
        self.inner.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        self.hand_over(&informer);
        self.spawn(name, informer.clone().run(self.client.clone(), self.metrics.clone()));
        informer
    }

    /// Has a successor told what this cache has seen; see [`Self::seen`].
    pub fn hand_over<T: Object>(&self, informer: &Informer<T>) {
        let (resource, scope, progress) = (informer.resource(), informer.scope(), informer.progress());
        let position: Position = Box::new(move || (resource, scope.clone(), *progress.borrow()));
        self.inner.positions.lock().unwrap_or_else(PoisonError::into_inner).push(position);
    }

    /// Adds a task that must run for as long as the process does.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).push((name, Box::pin(task)));
    }

    /// Adds a controller: a task that must run as well, and that ends by itself, with nothing left undone, when the
    /// process is asked to.
    pub fn spawn_controller(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.controllers.lock().unwrap_or_else(PoisonError::into_inner).push((name, Box::pin(task)));
    }

    /// Takes the tasks that were added, for the manager to run.
    pub fn take_tasks(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the controllers that were added, for the manager to run.
    pub fn take_controllers(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *self.inner.controllers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a successor must have seen of everything to go on where this process ends. A type of which a write of ours was
    /// not seen yet is left out: nobody can say when it is.
    pub fn seen(&self) -> Seen {
        let unshown = self.executor.unshown();
        let positions = self.inner.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let positions = positions.iter().map(|position| position());
        // What a predecessor has written is seen by who has caught up in its own term, and by nobody else.
        let known = positions.filter(|(resource, scope, progress)| {
            progress.seen > 0 && !unshown.contains(resource) && self.gate.is_caught_up(scope, progress)
        });
        known.map(|(_, scope, progress)| (scope, progress.seen)).collect()
    }

    /// What keeps this process from being ready: one line for each cache that cannot be relied on.
    pub fn unready(&self) -> Vec<String> {
        let watched = self.inner.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().filter_map(|watched| watched()).collect()
    }
}
