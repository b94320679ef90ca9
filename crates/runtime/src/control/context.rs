//! The parts that the controllers of one process share: a client, a gate, the executors and one informer per type.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::informer::Informer;
use crate::cache::state::Health;
use crate::cache::tracked::TrackedCache as _;
use crate::control::activity::Activity;
use crate::model::clock::Clock;
use crate::model::core_types::{Node, Pod};
use crate::model::object::{Key, Object};
use crate::model::problem::{ObjectProblem, Onsets, Problem, Selection, Selector};
use crate::model::progress::Progress;
use crate::model::resource::{NODES, PODS, Resource};
use crate::server::connectivity::Link;
use crate::server::gate::{Gate, Seen};
use crate::server::memory;
use crate::server::metrics::Metrics;
use crate::write::events::Recorder;
use crate::write::executor::Executor;
use crate::{KIND_LABEL, lock};

/// A cache without a list, event or bookmark for this long makes the process unready.
pub const UNREADY: Duration = Duration::from_secs(150);

/// Stands for all namespaces in the metric that shows in which namespaces this process may write.
const EVERYWHERE: &str = "*";

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Returns the current state of a cache.
type Cached = Box<dyn Fn() -> Cache + Send + Sync>;
/// Calls its argument for each problem of objects of a kind.
type FindProblems = Box<dyn Fn(Timestamp, &mut dyn FnMut(&Key, Problem)) + Send + Sync>;
/// Path and objects of a cache; see [`crate::cache::informer::NamespaceInformer::contents`].
type Contents = (String, BTreeSet<[String; 4]>);

/// The parts that all controllers of the process share. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The client of everything except the election.
    pub client: Client,
    /// Executes plans; see [`Self::windowed`].
    pub executor: Arc<Executor>,
    /// Whether this process may write.
    pub gate: Gate,
    /// The state of the connections to the API server.
    pub link: Link,
    /// Records Events.
    pub recorder: Recorder,
    /// The metrics of the process.
    pub metrics: Metrics,
    /// The clock that plans read.
    pub clock: Clock,
    /// Becomes true at shutdown.
    pub stop: watch::Receiver<bool>,
    inner: Arc<Inner>,
}

/// The arguments of [`Context::new`].
pub struct ContextConfig {
    /// See [`Context::client`].
    pub client: Client,
    /// See [`Context::link`]; must be the link that the client was built with.
    pub link: Link,
    /// See [`Context::gate`].
    pub gate: Gate,
    /// See [`Context::metrics`].
    pub metrics: Metrics,
    /// See [`Context::clock`].
    pub clock: Clock,
    /// The `reportingInstance` of Events.
    pub instance: String,
    /// The namespaces that every watch of namespaced objects is limited to; empty means all namespaces.
    pub namespaces: Vec<String>,
    /// See [`Context::stop`].
    pub stop: watch::Receiver<bool>,
}

#[derive(Default)]
struct Inner {
    namespaces: Vec<String>,
    tasks: Mutex<Vec<(&'static str, Task)>>,
    controllers: Mutex<Vec<(&'static str, Task)>>,
    activities: Mutex<Vec<(&'static str, Activity)>>,
    /// The sources of problems, by kind.
    problems: Mutex<Vec<(&'static str, FindProblems)>>,
    onsets: Mutex<Onsets>,
    /// Held during a scrape, so that no other scrape sees a list of problems that is being replaced.
    scraping: Mutex<()>,
    caches: Mutex<Vec<Cached>>,
    contents: Mutex<Vec<Box<dyn Fn() -> Contents + Send + Sync>>>,
    pods: OnceLock<Informer<Pod>>,
    nodes: OnceLock<Informer<Node>>,
}

/// The current state of a cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The cached type.
    pub resource: Resource,
    /// The scope of the cache; see [`crate::cache::tracked::TrackedCache::scope`].
    pub scope: String,
    /// The number of objects.
    pub objects: usize,
    /// The number of further objects that could not be decoded.
    pub undecodable: usize,
    /// How far the cache has come.
    pub progress: Progress,
    /// Whether the cache can be relied on.
    pub health: Health,
    /// See [`crate::cache::informer::NamespaceInformer::unwatched`].
    pub unwatched: Option<Instant>,
    /// When the cache was started.
    pub began: Instant,
    /// See [`crate::cache::informer::NamespaceInformer::last_answer`].
    pub answered: Instant,
    /// Whether the type may be absent.
    pub patient: bool,
}

impl Cache {
    /// How long the cache has had no event, or has failed to watch. None if its type may be absent, and is absent or
    /// not listed yet.
    fn silence(&self) -> Option<Duration> {
        match self.health {
            Health::Synced { heard } => {
                Some(self.unwatched.map_or(heard, |since| since.min(heard)).elapsed())
            }
            Health::Unsynced | Health::Absent { .. } if self.patient => None,
            Health::Unsynced => Some(self.began.elapsed()),
            Health::Absent { since } => Some(since.elapsed()),
        }
    }
}

impl Context {
    /// Creates the shared parts from `setup`, and adds the task that sends Events.
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
            inner: Arc::new(Inner { namespaces, ..Inner::default() }),
        };
        context.spawn("events", sender);
        context
    }

    /// The same parts for another kind, with a window of its own for writes and reads.
    #[must_use]
    pub fn windowed(&self) -> Self {
        Self { executor: Arc::new(self.executor.windowed()), ..self.clone() }
    }

    /// The only Pod watch of the process: pods with the label [`KIND_LABEL`].
    pub fn pods(&self) -> Informer<Pod> {
        self.inner.pods.get_or_init(|| self.informer(PODS, Some(KIND_LABEL))).clone()
    }

    /// The only Node watch of the process.
    pub fn nodes(&self) -> Informer<Node> {
        self.inner.nodes.get_or_init(|| self.informer(NODES, None)).clone()
    }

    /// An informer that only one kind uses. With `selector`, it caches only the selected objects.
    pub fn informer<T: Object>(&self, resource: Resource, selector: Option<&'static str>) -> Informer<T> {
        self.start(Informer::new(resource, &self.inner.namespaces, selector))
    }

    /// Like [`Self::informer`], for a type that may be absent. Readiness does not wait for this informer.
    pub fn optional_informer<T: Object>(
        &self,
        resource: Resource,
        selector: Option<&'static str>,
    ) -> Informer<T> {
        self.start(Informer::new(resource, &self.inner.namespaces, selector).patient())
    }

    /// Adds the informer's caches to [`Self::caches`], and the task that keeps them filled.
    fn start<T: Object>(&self, informer: Informer<T>) -> Informer<T> {
        let began = Instant::now();
        for part in informer.parts() {
            let (part, shown, undecodable) = (part.clone(), part.clone(), part.clone());
            self.find_problems(informer.resource().kind, move |now, found| {
                undecodable.state().find_undecodable(|key, known| {
                    let known = SignedDuration::try_from(known).unwrap_or(SignedDuration::ZERO);
                    let since = now.checked_sub(known).unwrap_or(now);
                    found(key, Problem::failing("Undecodable", since));
                });
            });
            lock(&self.inner.contents).push(Box::new(move || shown.contents()));
            lock(&self.inner.caches).push(Box::new(move || {
                let state = part.state();
                Cache {
                    resource: part.resource(),
                    scope: state.scope().to_owned(),
                    objects: part.count(),
                    undecodable: state.undecodable_count(),
                    progress: state.progress(),
                    health: state.health().borrow().clone(),
                    unwatched: state.unwatched(),
                    began,
                    answered: state.last_answer(),
                    patient: state.is_patient(),
                }
            }));
        }
        let task = informer.clone().run(self.client.clone(), self.link.clone(), self.gate.clone());
        self.spawn(informer.resource().plural, task);
        informer
    }

    /// Creates the activity record of the controller with this name.
    pub fn activity(&self, controller: &'static str) -> Activity {
        let activity = Activity::default();
        lock(&self.inner.activities).push((controller, activity.clone()));
        activity
    }

    /// The activity of every controller.
    pub fn activities(&self) -> Vec<(&'static str, Activity)> {
        lock(&self.inner.activities).clone()
    }

    /// The current state of every cache.
    pub fn caches(&self) -> Vec<Cache> {
        lock(&self.inner.caches).iter().map(|cache| cache()).collect()
    }

    /// Path and objects of every cache, for a comparison with the API server; see
    /// [`crate::cache::informer::NamespaceInformer::contents`].
    pub fn contents(&self) -> Vec<Contents> {
        lock(&self.inner.contents).iter().map(|contents| contents()).collect()
    }

    /// Adds a source of problems of objects of a kind. Each scrape asks it, with the current time.
    pub fn find_problems(
        &self,
        kind: &'static str,
        find: impl Fn(Timestamp, &mut dyn FnMut(&Key, Problem)) + Send + Sync + 'static,
    ) {
        lock(&self.inner.problems).push((kind, Box::new(find)));
    }

    /// Adds the problems that the statuses of these objects show. An object that is being deleted has none.
    pub fn find_problems_in<T: Object>(
        &self,
        objects: &Informer<T>,
        problems: fn(&T, Timestamp) -> Vec<Problem>,
    ) {
        let (kind, objects) = (objects.resource().kind, objects.clone());
        self.find_problems(kind, move |now, found| {
            for object in objects.all().iter().filter(|object| !object.terminating()) {
                for problem in problems(object, now) {
                    found(&object.key(), problem);
                }
            }
        });
    }

    /// The problems of objects that a metric lists.
    fn problems(&self, now: Timestamp) -> Selection {
        // Until the first list of a cache is complete, its objects show no problem.
        let is_complete = self.unready().is_empty();
        let (mut selector, mut onsets) = (Selector::default(), lock(&self.inner.onsets));
        for (kind, find) in lock(&self.inner.problems).iter() {
            let add = &mut |key: &Key, problem| {
                selector.add(onsets.correct(ObjectProblem { problem, kind, key: key.clone() }));
            };
            find(now, add);
        }
        onsets.end(is_complete.then_some(now));
        selector.select()
    }

    /// All metrics in the Prometheus text format, current as of now.
    pub fn scrape(&self) -> Result<String, prometheus::Error> {
        let _scraping = lock(&self.inner.scraping);
        self.measure();
        self.metrics.text()
    }

    /// Updates the metrics that change over time without an event.
    fn measure(&self) {
        // The gate closes at the renew deadline, before the election's next attempt notices it.
        let leads = self.gate.term().is_some();
        self.metrics.leader.with_label_values(&[&*self.metrics.lease]).set(f64::from(u8::from(leads)));
        let (everywhere, namespaces) = ([EVERYWHERE.to_owned()], &self.inner.namespaces[..]);
        let watched = if namespaces.is_empty() { &everywhere } else { namespaces };
        for namespace in watched {
            self.metrics.namespace_leader.with_label_values(&[namespace]).set(i64::from(leads));
        }
        self.metrics.memory_limit.set(memory::limit());
        let now = self.clock.now();
        self.metrics.list_problems(&self.problems(now), now);
        self.metrics.store_restored.inc_by(self.gate.take_restores());
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

    /// Adds a task that must run as long as the process runs.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.inner.tasks).push((name, Box::pin(task)));
    }

    /// Adds a controller: a task that must run too, and that returns by itself at shutdown.
    pub fn spawn_controller(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.inner.controllers).push((name, Box::pin(task)));
    }

    /// Takes the added tasks, for the manager to run.
    pub fn take_tasks(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *lock(&self.inner.tasks))
    }

    /// Takes the added controllers, for the manager to run.
    pub fn take_controllers(&self) -> Vec<(&'static str, Task)> {
        std::mem::take(&mut *lock(&self.inner.controllers))
    }

    /// The resourceVersions that a successor must have seen to continue without a relist. A type is left out while
    /// the caches have not shown all writes of this process.
    pub fn seen(&self) -> Seen {
        let unshown = self.executor.memory.unshown();
        // Only a cache that caught up in this process's own term has seen the predecessor's writes.
        let known = self.caches().into_iter().filter(|Cache { resource, scope, progress, .. }| {
            progress.seen > 0 && !unshown.contains(resource) && self.gate.is_caught_up(scope, progress)
        });
        known.map(|cache| (cache.scope, cache.progress.seen)).collect()
    }

    /// How long each cache of a type that must not be absent has had no answer from the API server.
    pub fn silences(&self) -> Vec<Duration> {
        let caches = self.caches();
        caches.iter().filter(|cache| !cache.patient).map(|cache| cache.answered.elapsed()).collect()
    }

    /// Why this process is not ready: one line for each unreliable cache of a type that must not be absent.
    pub fn unready(&self) -> Vec<String> {
        let caches = self.caches();
        let required = caches.iter().filter(|cache| !cache.patient);
        required.filter_map(unready).collect()
    }
}

/// Why a cache is unreliable, and for how long.
fn unready(cache: &Cache) -> Option<String> {
    let (what, seconds) = (&cache.scope, |since: Instant| since.elapsed().as_secs());
    match cache.health {
        Health::Unsynced => {
            Some(format!("the first list of {what} is not complete after {} s", seconds(cache.began)))
        }
        Health::Absent { since } => {
            Some(format!("waiting for the CustomResourceDefinition {what} for {} s", seconds(since)))
        }
        Health::Synced { heard } if heard.elapsed() > UNREADY => {
            Some(format!("no events from the watch of {what} for {} s", seconds(heard)))
        }
        Health::Synced { .. } => {
            let since = cache.unwatched.filter(|since| since.elapsed() > UNREADY)?;
            Some(format!("lists of {what} succeed, but watches have failed for {} s", seconds(since)))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// A context with an open gate, whose API server does not answer.
    pub(crate) fn silent(namespaces: &[&str]) -> Context {
        let silent = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
        Context::new(ContextConfig {
            client: Client::new(tower::service_fn(silent), "n"),
            link: Link::default(),
            gate: Gate::open(),
            metrics: Metrics::new().unwrap(),
            clock: Clock::System,
            instance: "test".into(),
            namespaces: namespaces.iter().map(|&namespace| namespace.to_owned()).collect(),
            stop: watch::channel(false).1,
        })
    }

    #[tokio::test]
    async fn a_scrape_lists_problems_and_served_namespaces() {
        let (context, activity) = (silent(&["team-a", "team-b"]), Activity::default());
        let shown = activity.clone();
        context.find_problems("Book", move |_, found| shown.find_problems(found));
        let key = Key { namespace: "team-a".into(), name: "b".into(), uid: "u".into() };
        activity.fails(&key, "no", Timestamp::UNIX_EPOCH);
        let problem = "quintet_object_problem_seconds{kind=\"Book\",name=\"b\",namespace=\"team-a\",\
                       reason=\"ReconcileFailed\",state=\"failing\"} ";
        let text = context.scrape().unwrap();
        assert!(text.contains(problem), "{text}");
        for namespace in ["team-a", "team-b"] {
            let line = format!("quintet_namespace_leader{{watched=\"{namespace}\"}} 1\n");
            assert!(text.contains(&line), "{text}");
        }
        activity.ends(&key, None, Timestamp::UNIX_EPOCH);
        let text = context.scrape().unwrap();
        assert!(!text.contains("quintet_object_problem_seconds{"), "{text}");
        let everywhere = silent(&[]).scrape().unwrap();
        assert!(everywhere.contains("quintet_namespace_leader{watched=\"*\"} 1\n"), "{everywhere}");
    }

    /// How long a problem has lasted according to a scrape. Its own time is old, and the last scrape did not find it.
    fn seconds_after_a_break(context: &Context) -> f64 {
        let activity = Activity::default();
        let shown = activity.clone();
        context.find_problems("Book", move |_, found| shown.find_problems(found));
        context.scrape().unwrap();
        let key = Key { namespace: "team-a".into(), name: "b".into(), uid: "u".into() };
        activity.fails(&key, "no", Timestamp::UNIX_EPOCH);
        let text = context.scrape().unwrap();
        let line = text.lines().find(|line| line.starts_with("quintet_object_problem_seconds{")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_scrape_shows_that_a_problem_came_back() {
        assert!(seconds_after_a_break(&silent(&[])) < 3_600.0);
        let filling = silent(&[]);
        let _pods = filling.pods();
        assert!(seconds_after_a_break(&filling) > 1e9, "the first scrape knew no objects");
    }

    /// A cache of pods that started at `began`.
    fn cache(health: Health, unwatched: Option<Instant>, began: Instant) -> Cache {
        Cache {
            resource: PODS,
            scope: "pods".to_owned(),
            objects: 0,
            undecodable: 0,
            progress: Progress::default(),
            health,
            unwatched,
            began,
            answered: began,
            patient: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn measures_silence_unless_the_type_may_be_absent() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(200)).await;
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(100)).await;
        let silence = |health: Health, patient: bool| {
            let cache = Cache { patient, ..cache(health, None, began) };
            cache.silence().map(|silence| silence.as_secs())
        };
        for patient in [false, true] {
            assert_eq!(silence(Health::Synced { heard: since }, patient), Some(100));
        }
        assert_eq!(silence(Health::Unsynced, false), Some(300));
        assert_eq!(silence(Health::Absent { since }, false), Some(100));
        assert_eq!(silence(Health::Unsynced, true), None);
        assert_eq!(silence(Health::Absent { since }, true), None);
        let listed = cache(Health::Synced { heard: Instant::now() }, Some(since), began);
        assert_eq!(listed.silence().map(|silence| silence.as_secs()), Some(100), "lists are not events");
    }

    #[tokio::test(start_paused = true)]
    async fn unready_caches_state_a_reason_and_a_duration() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(200)).await;
        let reason =
            |health: Health, unwatched| unready(&cache(health, unwatched, began)).unwrap_or_default();
        assert_eq!(reason(Health::Unsynced, None), "the first list of pods is not complete after 200 s");
        let absent = Health::Absent { since: began };
        assert_eq!(reason(absent, Some(began)), "waiting for the CustomResourceDefinition pods for 200 s");
        let silent = Health::Synced { heard: began };
        assert_eq!(reason(silent, Some(began)), "no events from the watch of pods for 200 s");
        let listed = || Health::Synced { heard: Instant::now() };
        assert_eq!(reason(listed(), Some(began)), "lists of pods succeed, but watches have failed for 200 s");
        assert_eq!(reason(listed(), Some(Instant::now())), "");
        assert_eq!(reason(listed(), None), "");
    }
}
