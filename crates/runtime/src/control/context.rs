//! What the controllers of one process share: a client, a gate, one executor and one informer per type.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::KIND_LABEL;
use crate::cache::informer::{Health, Informer, SILENCE};
use crate::control::activity::Activity;
use crate::model::clock::Clock;
use crate::model::core_types::{Deployment, Node, Pod};
use crate::model::object::Object;
use crate::model::progress::Progress;
use crate::model::resource::{DEPLOYMENTS, NODES, PODS, Resource};
use crate::server::connectivity::Link;
use crate::server::gate::{Gate, Seen};
use crate::server::metrics::Metrics;
use crate::write::events::Recorder;
use crate::write::executor::Executor;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Watched = Box<dyn Fn() -> Option<String> + Send + Sync>;
/// A cache: what it holds, how many, how far it has come, and whether it can be relied on.
type Cached = Box<dyn Fn() -> Cache + Send + Sync>;
type Position = Box<dyn Fn() -> (Resource, String, Progress) + Send + Sync>;

/// What the controllers of the process share. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The client that everything but the election uses.
    pub client: Client,
    /// The one writer.
    pub executor: Arc<Executor>,
    /// Whether this process may write.
    pub gate: Gate,
    /// News about the connections to the API server.
    pub link: Link,
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

/// What a process shares, as [`Context::new`] takes it.
pub struct ContextConfig {
    /// See [`Context::client`].
    pub client: Client,
    /// See [`Context::link`]; the client was made with it.
    pub link: Link,
    /// See [`Context::gate`].
    pub gate: Gate,
    /// See [`Context::metrics`].
    pub metrics: Metrics,
    /// See [`Context::clock`].
    pub clock: Clock,
    /// Who reports events.
    pub instance: String,
    /// Narrow every watch of namespaced objects; none means all.
    pub namespaces: Vec<String>,
    /// See [`Context::stop`].
    pub stop: watch::Receiver<bool>,
}

struct Inner {
    namespaces: Vec<String>,
    tasks: Mutex<Vec<(&'static str, Task)>>,
    controllers: Mutex<Vec<(&'static str, Task)>>,
    watched: Mutex<Vec<Watched>>,
    activities: Mutex<Vec<(&'static str, Activity)>>,
    caches: Mutex<Vec<Cached>>,
    positions: Mutex<Vec<Position>>,
    pods: Mutex<Option<Informer<Pod>>>,
    nodes: Mutex<Option<Informer<Node>>>,
    deployments: Mutex<Option<Informer<Deployment>>>,
}

/// A cache as it is now.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Of which type.
    pub resource: Resource,
    /// What it caches; see [`crate::cache::informer::NamespaceInformer::scope`].
    pub scope: String,
    /// How many objects.
    pub objects: usize,
    /// How many besides that could not be decoded.
    pub undecodable: usize,
    /// How far it has come.
    pub progress: Progress,
    /// Whether it can be relied on.
    pub health: Health,
    /// When it was begun.
    pub began: Instant,
    /// Whether its type may well be absent.
    pub patient: bool,
}

impl Cache {
    /// For how long it has not been known whether what it holds is so; none where its type may well be absent and is.
    fn silence(&self) -> Option<Duration> {
        match self.health {
            Health::Synced { heard } => Some(heard.elapsed()),
            Health::Unsynced | Health::Absent { .. } if self.patient => None,
            Health::Unsynced => Some(self.began.elapsed()),
            Health::Absent { since } => Some(since.elapsed()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Shares a client and what goes with it.
    pub fn new(setup: ContextConfig) -> Self {
        let ContextConfig { client, link, gate, metrics, clock, instance, namespaces, stop } = setup;
        let (recorder, sender) =
            Recorder::new(client.clone(), gate.clone(), clock, metrics.clone(), instance);
        let context = Self {
            executor: Arc::new(Executor::new(client.clone(), gate.clone(), clock)),
            client,
            gate,
            link,
            recorder,
            metrics,
            clock,
            stop,
            inner: Arc::new(Inner {
                namespaces,
                tasks: Mutex::default(),
                controllers: Mutex::default(),
                watched: Mutex::default(),
                activities: Mutex::default(),
                caches: Mutex::default(),
                positions: Mutex::default(),
                pods: Mutex::default(),
                nodes: Mutex::default(),
                deployments: Mutex::default(),
            }),
        };
        context.spawn("events", sender);
        context
    }

    /// The namespaces that every watch of namespaced objects is narrowed to; none means all.
    pub fn namespaces(&self) -> &[String] {
        &self.inner.namespaces
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
        self.start(name, Informer::new(resource, &self.inner.namespaces, selector))
    }

    /// An informer of a type that may well be absent, and that nobody waits for; of the objects that `selector` selects.
    pub fn optional_informer<T: Object>(
        &self,
        name: &'static str,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        let informer = Informer::new(resource, &self.inner.namespaces, selector).patient();
        self.hand_over(&informer);
        self.spawn(name, self.keep(&informer));
        informer
    }

    /// Keeps a cache, for ever.
    fn keep<T: Object>(&self, informer: &Informer<T>) -> impl Future<Output = ()> + Send + use<T> {
        let began = Instant::now();
        for part in informer.parts() {
            let part = part.clone();
            lock(&self.inner.caches).push(Box::new(move || Cache {
                resource: part.resource(),
                scope: part.scope(),
                objects: part.len(),
                undecodable: part.undecodable().len(),
                progress: *part.progress().borrow(),
                health: part.health().borrow().clone(),
                began,
                patient: part.is_patient(),
            }));
        }
        informer.clone().run(self.client.clone(), self.link.clone())
    }

    fn once<T: Object>(
        &self,
        slot: &Mutex<Option<Informer<T>>>,
        name: &'static str,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        let mut slot = lock(slot);
        slot.get_or_insert_with(|| {
            self.start(name, Informer::new(resource, &self.inner.namespaces, selector))
        })
        .clone()
    }

    fn start<T: Object>(&self, name: &'static str, informer: Informer<T>) -> Informer<T> {
        for part in informer.parts() {
            let (health, what, began) = (part.health(), part.scope(), Instant::now());
            let watched: Watched = Box::new(move || unready(&what, &health.borrow(), began));
            lock(&self.inner.watched).push(watched);
        }
        self.hand_over(&informer);
        self.spawn(name, self.keep(&informer));
        informer
    }

    /// Has a successor told what this cache has seen; see [`Self::seen`].
    fn hand_over<T: Object>(&self, informer: &Informer<T>) {
        for part in informer.parts() {
            let (resource, scope, progress) = (part.resource(), part.scope(), part.progress());
            let position: Position = Box::new(move || (resource, scope.clone(), *progress.borrow()));
            lock(&self.inner.positions).push(position);
        }
    }

    /// What the controller of this name does now.
    pub fn activity(&self, controller: &'static str) -> Activity {
        let activity = Activity::default();
        lock(&self.inner.activities).push((controller, activity.clone()));
        activity
    }

    /// What every controller does now.
    pub fn activities(&self) -> Vec<(&'static str, Activity)> {
        lock(&self.inner.activities).clone()
    }

    /// Every cache of the process.
    pub fn caches(&self) -> Vec<Cache> {
        lock(&self.inner.caches).iter().map(|cache| cache()).collect()
    }

    /// Brings those metrics up to date that change without anything happening.
    pub fn measure(&self) {
        // The election learns only with its next try that its time is over.
        let leads = f64::from(u8::from(self.gate.term().is_some()));
        self.metrics.leader.with_label_values(&[&*self.metrics.lease]).set(leads);
        for (controller, activity) in self.activities() {
            let ((unfinished, longest), labels) = (activity.unfinished(), [controller, controller]);
            let metrics = &self.metrics;
            metrics.unfinished_work.with_label_values(&labels).set(unfinished.as_secs_f64());
            metrics.longest_running.with_label_values(&labels).set(longest.as_secs_f64());
            let (failing, refused) = activity.in_trouble();
            for (gauge, objects) in [(&metrics.failing, failing), (&metrics.refused, refused)] {
                gauge.with_label_values(&[controller]).set(i64::try_from(objects).unwrap_or(i64::MAX));
            }
        }
        let mut cached = BTreeMap::<&str, (usize, usize)>::new();
        for cache in self.caches() {
            let (objects, undecodable) = cached.entry(cache.resource.plural).or_default();
            (*objects, *undecodable) = (*objects + cache.objects, *undecodable + cache.undecodable);
            let scope = [cache.scope.as_str()];
            match cache.silence() {
                Some(silence) => {
                    self.metrics.silence.with_label_values(&scope).set(silence.as_secs_f64());
                }
                None => {
                    let _ = self.metrics.silence.remove_label_values(&scope);
                }
            }
        }
        for (resource, (objects, undecodable)) in cached {
            for (gauge, count) in [(&self.metrics.cached, objects), (&self.metrics.undecodable, undecodable)]
            {
                gauge.with_label_values(&[resource]).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Adds a task that must run for as long as the process does.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.inner.tasks).push((name, Box::pin(task)));
    }

    /// Adds a controller: a task that must run as well, and that ends by itself, with nothing left undone, when the
    /// process is asked to.
    pub fn spawn_controller(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.inner.controllers).push((name, Box::pin(task)));
    }

    /// Takes the tasks that were added, for the manager to run.
    pub fn take_tasks(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *lock(&self.inner.tasks))
    }

    /// Takes the controllers that were added, for the manager to run.
    pub fn take_controllers(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *lock(&self.inner.controllers))
    }

    /// What a successor must have seen of everything to go on where this process ends. A type of which a write of ours was
    /// not seen yet is left out: nobody can say when it is.
    pub fn seen(&self) -> Seen {
        let unshown = self.executor.memory.unshown();
        let positions = lock(&self.inner.positions);
        let positions = positions.iter().map(|position| position());
        // What a predecessor has written is seen by who has caught up in its own term, and by nobody else.
        let known = positions.filter(|(resource, scope, progress)| {
            progress.seen > 0 && !unshown.contains(resource) && self.gate.is_caught_up(scope, progress)
        });
        known.map(|(_, scope, progress)| (scope, progress.seen)).collect()
    }

    /// What keeps this process from being ready: one line for each cache that cannot be relied on.
    pub fn unready(&self) -> Vec<String> {
        let watched = lock(&self.inner.watched);
        watched.iter().filter_map(|watched| watched()).collect()
    }
}

/// Why a cache that was begun at `began` cannot be relied on, and since when.
fn unready(what: &str, health: &Health, began: Instant) -> Option<String> {
    let seconds = |since: &Instant| since.elapsed().as_secs();
    match health {
        Health::Unsynced => {
            Some(format!("the cache of {what} is not filled yet, after {} s", seconds(&began)))
        }
        Health::Absent { since } => {
            let seconds = seconds(since);
            Some(format!("waiting for the CustomResourceDefinition {what} for {seconds} s"))
        }
        Health::Synced { heard } if heard.elapsed() > SILENCE => {
            Some(format!("the watch of {what} has been silent for {} s", seconds(heard)))
        }
        Health::Synced { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_silent_since_it_was_begun_or_its_type_is_absent_unless_that_may_be() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(200)).await;
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(100)).await;
        let silence = |health: Health, patient: bool| {
            let (scope, progress) = (String::new(), Progress::default());
            let cache =
                Cache { resource: PODS, scope, objects: 0, undecodable: 0, progress, health, began, patient };
            cache.silence().map(|silence| silence.as_secs())
        };
        for patient in [false, true] {
            assert_eq!(silence(Health::Synced { heard: since }, patient), Some(100));
        }
        assert_eq!(silence(Health::Unsynced, false), Some(300));
        assert_eq!(silence(Health::Absent { since }, false), Some(100));
        assert_eq!(silence(Health::Unsynced, true), None);
        assert_eq!(silence(Health::Absent { since }, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_ready_says_since_when() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(200)).await;
        let said = |health: Health| unready("pods", &health, began).unwrap_or_default();
        assert_eq!(said(Health::Unsynced), "the cache of pods is not filled yet, after 200 s");
        let absent = Health::Absent { since: began };
        assert_eq!(said(absent), "waiting for the CustomResourceDefinition pods for 200 s");
        let silent = Health::Synced { heard: began };
        assert_eq!(said(silent), "the watch of pods has been silent for 200 s");
        assert_eq!(said(Health::Synced { heard: Instant::now() }), "");
    }
}
