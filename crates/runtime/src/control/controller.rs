//! The loop that every kind runs in: a queue of keys, and reconciles of these keys.
//!
//! A reconcile waits until the caches show the last writes for its object. If an object of its name was deleted, it
//! also waits for the reconcile and the writes of that object. It then observes, plans, and hands the
//! plan to the executor. Between reconciles the process keeps only refusals and the writes that the caches must still
//! show. The process may die between any two writes: the next reconcile makes the same plan again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::cache::informer::{Change, Informer, NamespaceInformer};
use crate::cache::state::{Health, any_changed};
use crate::cache::tracked::TrackedCache;
use crate::control::activity::{Activity, is_worth_a_line_among};
use crate::control::context::Context;
use crate::control::queue::{Ended, Priority, Queue};
use crate::control::reconcile::{Pass, Passed, millis, reconcile};
use crate::control::reconciler::Reconciler;
use crate::control::waker::{Wake, Waker};
use crate::model::clock::Clock;
use crate::model::conditions::shorten;
use crate::model::object::{Key, Object};
use crate::model::plan::{Event, EventType};
use crate::model::progress::Progress;
use crate::server::metrics::Metrics;
use crate::write::executor::{Error, Executor};

/// Concurrent reconciles of one kind.
const WORKERS: usize = 16;
/// The time limit of one reconcile: enough for thousands of creations.
const PASS: Duration = Duration::from_mins(5);
/// How long a cache may lag behind the predecessor before the controller lists it again.
const HANDED: Duration = Duration::from_millis(200);
/// How long a shutdown waits for the caches to show the last writes.
const SHOWN: Duration = Duration::from_millis(500);
/// How long a shutdown waits for interrupted watches.
const CONTINUED: Duration = Duration::from_secs(3);
/// Bytes of a logged error, because an error may quote the object that could not be decoded.
const LONGEST_ERROR: usize = 1_024;
/// How long a shutdown waits for running reconciles.
const DRAIN: Duration = Duration::from_secs(10);

fn undecodable(error: &str) -> Event {
    Event {
        type_: EventType::Warning,
        reason: "Undecodable",
        action: "Decode",
        note: format!("Ignoring this object, because it cannot be decoded: {error}"),
    }
}

/// The controller of one kind: its queue and the caches that its plans read.
pub struct Controller<R: Reconciler> {
    context: Context,
    name: &'static str,
    reconciler: Arc<R>,
    objects: Informer<R::Object>,
    caches: Arc<[Arc<dyn TrackedCache>]>,
    waker: Waker,
    wakes: mpsc::UnboundedReceiver<Wake>,
}

impl<R: Reconciler> Controller<R> {
    /// A controller of `objects`, whose plans also read the caches `reads`. `name` appears in metrics and logs. A new
    /// leader lists a cache again unless the cache has caught up with its predecessor; see
    /// [`crate::server::gate::Gate::is_caught_up`].
    pub fn new(
        context: &Context,
        name: &'static str,
        reconciler: R,
        objects: Informer<R::Object>,
        reads: impl IntoIterator<Item = Arc<dyn TrackedCache>>,
    ) -> Self {
        let (sender, wakes) = mpsc::unbounded_channel();
        let waker = Waker { sender };
        let mut caches = objects.tracked();
        caches.extend(reads);
        let (own, recorder, resource) = (waker.clone(), context.recorder.clone(), objects.resource());
        let reconciler = Arc::new(reconciler);
        let asked = reconciler.clone();
        objects.subscribe(move |change| match change {
            Change::Applied { new, .. } if asked.concerns(new) => own.wake(new.key()),
            Change::Applied { .. } => {}
            Change::Deleted { old } => {
                let _ = own.sender.send(Wake::Gone(old.key()));
            }
            Change::Undecodable { key, error } => recorder.record(resource, key, undecodable(error)),
            Change::Vanished { key } => {
                let _ = own.sender.send(Wake::Gone((*key).clone()));
            }
        });
        Self { context: context.clone(), name, reconciler, objects, caches: caches.into(), waker, wakes }
    }

    /// Enqueues an object when an object that it controls changes. If the controller of the changed object
    /// changes, both are enqueued. So is the object that now has the name of a deleted controller: it may wait
    /// for what the deleted one left, as after `kubectl replace --force`.
    pub fn owns<T: Object>(&self, owned: &Informer<T>) {
        let (waker, owners, kind) = (self.waker(), self.objects.clone(), self.objects.resource());
        let wake = move |object: &Arc<T>| {
            let Some(owner) = object.owner().filter(|owner| owner.is_a(&kind)) else { return };
            let namespace = object.key().namespace;
            let namesake = owners.find(&namespace, &owner.name).map(|namesake| namesake.key());
            if let Some(successor) = namesake.filter(|key| key.uid != owner.uid) {
                waker.wake(successor);
            }
            waker.wake(Key { namespace, name: owner.name.clone(), uid: owner.uid.clone() });
        };
        owned.subscribe(move |change| match change {
            Change::Applied { new, old, .. } => {
                wake(new);
                if let Some(old) = old.filter(|old| old.owner() != new.owner()) {
                    wake(old);
                }
            }
            Change::Deleted { old } => wake(old),
            Change::Undecodable { .. } | Change::Vanished { .. } => {}
        });
    }

    /// Returns a handle that enqueues this controller's objects.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Runs until shutdown, then waits for running reconciles.
    pub async fn run(mut self) {
        let mut state = State::new(self.name, self.objects.resource().kind, &self.context);
        let mut gate = self.context.gate.watch();
        let mut stop = self.context.stop.clone();
        let mut progress: Vec<_> = self.caches.iter().map(|cache| cache.watch_progress()).collect();
        let mut health = self.objects.watch_health();
        let mut returns = self.context.link.recoveries();
        let mut unshown = self.context.gate.unshown();
        let mut begun = self.nowhere();
        let mut batch = Vec::new();
        loop {
            let (since, now, coming) = self.may_begin(&begun);
            state.since = since;
            if now != begun {
                self.change(&mut state, &begun, &now);
                begun = now;
            }
            let may_write = begun.contains(&true);
            if may_write {
                self.start(&mut state);
            }
            let timer = state.queue.next_timer().filter(|_| may_write && state.passes.len() < WORKERS);
            let waits = begun.contains(&false);
            tokio::select! {
                // This controller's own waker keeps the channel open.
                _ = self.wakes.recv_many(&mut batch, 1024) => {
                    for wake in batch.drain(..) {
                        self.take(&mut state, wake, &begun);
                    }
                }
                Some(ended) = state.passes.join_next_with_id(), if !state.passes.is_empty() => {
                    self.ended(&mut state, ended, &begun);
                    state.has_news = true;
                }
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {}
                () = sleep_until(coming.unwrap_or_else(Instant::now)), if coming.is_some() => {}
                _ = gate.changed() => {}
                // The API server is back, so keys that failed while it was away need no backoff.
                _ = returns.changed() => state.queue.forgive(Instant::now()),
                _ = unshown.changed() => self.begin_again(&mut state, &begun),
                () = any_changed(&mut health), if waits => {}
                () = any_changed(&mut progress), if waits || !state.parked.is_empty() => {
                    state.has_news = true;
                }
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if timeout(DRAIN, self.drain(&mut state, &begun, &mut progress)).await.is_err() {
            tracing::warn!(controller = self.name, "shutdown timed out; aborting running reconciles");
        }
        // The hand-over can list only what the caches of this process have shown.
        let _ = timeout(SHOWN, self.all_shown(&mut progress)).await;
    }

    /// Starts with the parts that are ready now, and drops the keys of parts that are not ready any more.
    fn change(&mut self, state: &mut State, begun: &[bool], now: &[bool]) {
        // Drain the wakes first: `begin` enqueues every object, so wakes of a new part are not needed.
        while let Ok(wake) = self.wakes.try_recv() {
            self.take(state, wake, begun);
        }
        for (part, (was, is)) in self.objects.parts().iter().zip(begun.iter().zip(now)) {
            match (*was, *is) {
                (false, true) => self.begin(state, part),
                (true, false) => state.leave(|key| part.covers(&key.namespace)),
                _ => {}
            }
        }
    }

    /// Starts reconciles until all workers are busy.
    fn start(&self, state: &mut State) {
        if state.restores.has_changed().unwrap_or_default() {
            state.restores.mark_unchanged();
            self.reconciler.restored();
        }
        if std::mem::take(&mut state.has_news) {
            state.unpark(&self.context.executor, &self.caches);
        }
        while state.passes.len() < WORKERS
            && let Some(key) = state.pop()
        {
            if state.may_start(&key, &self.context.executor, &self.caches) {
                self.start_one(state, &key);
            } else {
                state.park(key);
            }
        }
    }

    /// Starts a reconcile in the term for which the caches were judged.
    fn start_one(&self, state: &mut State, key: &Key) {
        if let Some(since) = state.since {
            state.start(key, self.pass(key.clone(), since));
        }
    }

    /// Records the end of a reconcile.
    fn ended(&self, state: &mut State, ended: Joined, begun: &[bool]) {
        let Some(key) = state.ended(ended) else { return };
        if self.objects.get(&key).is_none() {
            // The object was deleted during the reconcile, and the reconcile may have stored something about it.
            self.forget(state, &key);
        }
        if !self.is_begun(begun, &key) {
            state.forget(&key);
        }
    }

    /// Waits for running reconciles. If the kind has a last reconcile, runs it for every object.
    async fn drain(&self, state: &mut State, begun: &[bool], progress: &mut [watch::Receiver<Progress>]) {
        state.all_ended().await;
        if !self.reconciler.has_last_pass() {
            return;
        }
        // A reconcile does nothing until the caches show the writes of the one before, and while a watch is interrupted.
        let _ = timeout(SHOWN, self.all_shown(progress)).await;
        let _ = timeout(CONTINUED, self.all_continued(progress)).await;
        let all = self.objects.all();
        let due = all.iter().filter(|object| self.is_begun(begun, &object.key()));
        for object in due.filter(|object| self.reconciler.concerns(object)) {
            if state.passes.len() >= WORKERS
                && let Some(ended) = state.passes.join_next_with_id().await
            {
                state.ended(ended);
            }
            self.start_one(state, &object.key());
        }
        state.all_ended().await;
    }

    /// Waits until no watch is interrupted.
    async fn all_continued(&self, progress: &mut [watch::Receiver<Progress>]) {
        while self.caches.iter().any(|cache| cache.progress().expired) {
            any_changed(progress).await;
        }
    }

    /// Waits until the caches show all writes of this process.
    async fn all_shown(&self, progress: &mut [watch::Receiver<Progress>]) {
        while !self.context.executor.memory.all_caught_up(&self.caches) {
            any_changed(progress).await;
        }
    }

    /// Returns which parts may be reconciled: their objects and every cache that their plans read are up to date for
    /// this term. The first value is the start of the term, and the last one when to relist a cache that is expected to
    /// catch up without a relist.
    fn may_begin(&self, begun: &[bool]) -> (Option<Instant>, Vec<bool>, Option<Instant>) {
        let Some(term) = self.context.gate.term() else { return (None, self.nowhere(), None) };
        let mut coming = None;
        let (mut behind, mut interrupted) = (Vec::new(), Vec::new());
        for cache in self.caches.iter() {
            let (scope, progress) = (cache.scope(), cache.progress());
            if self.context.gate.is_caught_up(scope, &Progress { expired: false, ..progress }) {
                // A watch that continues delivers the changes since, so the keys of a part that has begun only wait.
                interrupted.extend(Some(cache).filter(|_| progress.expired));
                continue;
            }
            // Writes of the predecessor, sent before it lost the Lease, may not be in this cache yet.
            behind.push(cache);
            let soon = term.since + HANDED;
            if self.context.gate.handed(scope).is_some() && Instant::now() < soon {
                coming = Some(soon);
            } else {
                cache.relist(term.since);
            }
        }
        // A namespace whose watch fails delays only its own objects.
        let is_ready = |(part, has_begun): (&NamespaceInformer<R::Object>, &bool)| {
            let is_read = |cache: &&Arc<dyn TrackedCache>| {
                let namespace = part.state().namespace();
                namespace.is_empty() || cache.covers(namespace)
            };
            let waits = !has_begun && interrupted.iter().any(is_read);
            matches!(*part.state().health().borrow(), Health::Synced { .. })
                && !waits
                && !behind.iter().any(is_read)
        };
        (Some(term.since), self.objects.parts().iter().zip(begun).map(is_ready).collect(), coming)
    }

    fn nowhere(&self) -> Vec<bool> {
        vec![false; self.objects.parts().len()]
    }

    fn is_begun(&self, begun: &[bool], key: &Key) -> bool {
        self.objects.part_of(&key.namespace).is_some_and(|part| begun[part])
    }

    /// Enqueues every object once, as a new leader does. An object in its desired state costs no write.
    fn begin(&self, state: &mut State, part: &NamespaceInformer<R::Object>) {
        for object in part.all().iter().filter(|object| self.reconciler.concerns(object)) {
            state.add(object.key(), Priority::Bulk);
        }
        for (key, error) in part.state().undecodable() {
            self.context.recorder.record(self.objects.resource(), &key, undecodable(&error));
        }
    }

    /// Enqueues every object of the parts that have begun.
    fn begin_again(&self, state: &mut State, begun: &[bool]) {
        let parts = self.objects.parts().iter().zip(begun);
        parts.filter(|(_, begun)| **begun).for_each(|(part, _)| self.begin(state, part));
    }

    /// Handles a wake. A standby drops keys, because `begin` enqueues every object after a takeover.
    fn take(&self, state: &mut State, wake: Wake, begun: &[bool]) {
        match wake {
            Wake::Key(key, priority) if self.is_begun(begun, &key) => state.add(key, priority),
            Wake::Key(..) => {}
            Wake::Gone(key) => self.forget(state, &key),
        }
    }

    /// Drops everything stored about a deleted object. While a reconcile of it runs, a write may be in flight, so its
    /// writes are dropped at the end of the reconcile.
    fn forget(&self, state: &mut State, key: &Key) {
        state.forget(key);
        if !state.running.values().any(|(running, _)| running == key) {
            self.context.executor.memory.forget(key, &self.objects.resource(), &self.caches);
        }
        self.reconciler.forget(key);
    }

    /// One reconcile of one object, with a time limit. Its task catches a panic.
    fn pass(&self, key: Key, since: Instant) -> impl Future<Output = PassResult> + Send + 'static {
        let (controller, reconciler) = (self.name, self.reconciler.clone());
        let object = self.objects.get(&key);
        let objects = self.objects.clone();
        let context = self.context.clone();
        let caches = self.caches.clone();
        async move {
            let Some(object) = object else { return Ok(Passed::default()) };
            let still = || objects.get(&key).is_some_and(|now| reconciler.still_applies(&object, &now));
            let pass = Pass {
                controller,
                resource: objects.resource(),
                reconciler: &*reconciler,
                context: &context,
                object: &object,
                key: &key,
                caches: &caches,
                since,
                still: &still,
            };
            timeout(PASS, reconcile(pass)).await.map_err(|_elapsed| Failure::Timeout)?.map_err(Failure::Error)
        }
    }
}

/// The result of a reconcile.
type PassResult = Result<Passed, Failure>;

/// A finished reconcile, as the join set returns it.
type Joined = Result<(Id, PassResult), JoinError>;

/// Why a reconcile failed.
enum Failure {
    Error(Error),
    Panic,
    Timeout,
}

/// The state of the loop: the queue, the running reconciles, and the keys that wait for the caches.
struct State {
    controller: &'static str,
    queue: Queue,
    passes: JoinSet<PassResult>,
    running: HashMap<Id, (Key, Instant)>,
    parked: HashMap<Key, Priority>,
    /// The start of the term; None if this process may not write.
    since: Option<Instant>,
    /// Changes at each proof of a restore of etcd.
    restores: watch::Receiver<Option<Instant>>,
    /// Whether a reconcile ended or a cache advanced since the last check of the parked keys. Nothing else frees a
    /// parked key, and a check of thousands of keys at every event costs too much.
    has_news: bool,
    metrics: Metrics,
    activity: Activity,
    /// When this controller last logged a failing object at level warn.
    logged_at: Option<Instant>,
    clock: Clock,
}

impl State {
    fn new(controller: &'static str, kind: &'static str, context: &Context) -> Self {
        let metrics = context.metrics.clone();
        metrics.begin_controller(controller, WORKERS);
        let activity = context.activity(controller);
        let shown = activity.clone();
        context.find_problems(kind, move |_, found| shown.find_problems(found));
        Self {
            controller,
            queue: Queue::default(),
            passes: JoinSet::new(),
            running: HashMap::new(),
            parked: HashMap::new(),
            since: None,
            restores: context.gate.restores(),
            has_news: false,
            metrics,
            activity,
            logged_at: None,
            clock: context.clock,
        }
    }

    fn labels(&self) -> [&'static str; 2] {
        [self.controller, self.controller]
    }

    fn add(&mut self, key: Key, priority: Priority) {
        if self.queue.add(key, priority, Instant::now()) {
            self.metrics.queue_adds.with_label_values(&self.labels()).inc();
        }
        self.measure();
    }

    fn pop(&mut self) -> Option<Key> {
        let (key, waited) = self.queue.pop(Instant::now())?;
        self.metrics.queue_duration.with_label_values(&self.labels()).observe(waited.as_secs_f64());
        self.measure();
        Some(key)
    }

    fn measure(&self) {
        for (priority, depth) in self.queue.depths() {
            let labels = [self.controller, self.controller, priority.label()];
            self.metrics.queue_depth.with_label_values(&labels).set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
        let active = i64::try_from(self.passes.len()).unwrap_or(i64::MAX);
        self.metrics.active_workers.with_label_values(&[self.controller]).set(active);
        self.activity.waits(self.queue.depth(), self.parked.len(), self.queue.known());
    }

    /// Puts a key aside until the caches show the writes for it. The key keeps its highest priority.
    fn park(&mut self, key: Key) {
        let priority = self.queue.park(&key);
        self.parked.entry(key).and_modify(|before| *before = priority.min(*before)).or_insert(priority);
    }

    fn unpark(&mut self, executor: &Executor, caches: &[Arc<dyn TrackedCache>]) {
        let mut parked = std::mem::take(&mut self.parked);
        let ready: Vec<_> = parked.extract_if(|key, _| self.may_start(key, executor, caches)).collect();
        self.parked = parked;
        for (key, priority) in ready {
            self.add(key, priority);
        }
    }

    /// Whether no object of the key's name is reconciled, and the caches are current and show every write for the name.
    fn may_start(&self, key: &Key, executor: &Executor, caches: &[Arc<dyn TrackedCache>]) -> bool {
        let is_namesake = |other: &Key| other.name == key.name && other.namespace == key.namespace;
        !self.running.values().any(|(other, _)| is_namesake(other))
            && executor.is_current(&key.namespace, caches)
            && executor.memory.caught_up(key, caches)
    }

    fn forget(&mut self, key: &Key) {
        self.queue.forget(key);
        self.parked.remove(key);
        self.activity.forgets(key);
        self.measure();
    }

    /// Drops every key for which `goes` returns true. A later `begin` enqueues all objects again.
    fn leave(&mut self, goes: impl Fn(&Key) -> bool) {
        self.queue.leave(&goes);
        self.parked.retain(|key, _| !goes(key));
        self.activity.leaves(&goes);
        self.measure();
    }

    fn start(&mut self, key: &Key, pass: impl Future<Output = PassResult> + Send + 'static) {
        let handle = self.passes.spawn(pass);
        self.running.insert(handle.id(), (key.clone(), Instant::now()));
        self.activity.begins(key);
        self.measure();
    }

    /// Waits until no reconcile runs.
    async fn all_ended(&mut self) {
        while let Some(ended) = self.passes.join_next_with_id().await {
            self.ended(ended);
        }
    }

    /// Records the end of a reconcile, and returns its key.
    fn ended(&mut self, joined: Joined) -> Option<Key> {
        let id = match &joined {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let (key, began) = self.running.remove(&id)?;
        let result = joined.map_or(Err(Failure::Panic), |(_, result)| result);
        let took = began.elapsed();
        let controller = self.controller;
        self.metrics.reconcile_time.with_label_values(&[controller]).observe(took.as_secs_f64());
        self.metrics.work_duration.with_label_values(&self.labels()).observe(took.as_secs_f64());
        let (result, ended) = match result {
            Ok(passed) => {
                let result = if passed.again.is_some() { "requeue_after" } else { "success" };
                let ended = Ended::Well { again: passed.again, rest: passed.rest() };
                self.activity.ends(&key, passed.refused, self.clock.now());
                (result, ended)
            }
            // Not an error: the cache is about to show the change, or another process is the leader.
            Err(Failure::Error(error @ (Error::Stale(_) | Error::NotLeading))) => {
                self.activity.breaks_off(&key);
                tracing::debug!(controller, object = %key, outcome = "requeue", %error, "reconcile stopped early");
                ("requeue", Ended::Failed)
            }
            Err(failure) => {
                self.failed(&key, failure, took);
                ("error", Ended::Failed)
            }
        };
        self.metrics.reconciles.with_label_values(&[controller, result]).inc();
        self.queue.done(&key, ended, Instant::now());
        self.measure();
        Some(key)
    }

    /// Counts and logs a failed reconcile.
    fn failed(&mut self, key: &Key, failure: Failure, took: Duration) {
        let controller = self.controller;
        let error = match failure {
            Failure::Error(error) => error.to_string(),
            Failure::Panic => {
                self.metrics.reconcile_panics.with_label_values(&[controller]).inc();
                "the reconcile panicked".to_owned()
            }
            Failure::Timeout => {
                self.metrics.reconcile_timeouts.with_label_values(&[controller]).inc();
                format!("the reconcile took longer than {} s", PASS.as_secs())
            }
        };
        let error = shorten(error, LONGEST_ERROR);
        let times = self.activity.fails(key, &error, self.clock.now());
        let (failing, _) = self.activity.in_trouble();
        if is_worth_a_line_among(times, failing, self.logged_at.map(|at| at.elapsed())) {
            self.logged_at = Some(Instant::now());
            let duration_ms = millis(took);
            tracing::warn!(
                controller, object = %key, outcome = "error", duration_ms, times, failing, error,
                "reconcile failed; retrying"
            );
        } else {
            tracing::debug!(controller, object = %key, times, error, "reconcile failed again");
        }
        self.metrics.reconcile_errors.with_label_values(&[controller]).inc();
        self.metrics.queue_retries.with_label_values(&self.labels()).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::context::tests::silent;

    /// Keys of a take-over stay bulk while they wait for the caches, and a user's change stays fresh.
    #[tokio::test]
    async fn parked_keys_keep_their_highest_priority() {
        let context = silent(&[]);
        let mut state = State::new("test", "Book", &context);
        for (name, events) in [
            ("bulk", [Priority::Bulk, Priority::Bulk]),
            ("changed", [Priority::Bulk, Priority::Fresh]),
            ("changed before", [Priority::Fresh, Priority::Bulk]),
        ] {
            for priority in events {
                state.add(Key { namespace: "n".into(), name: name.into(), uid: name.into() }, priority);
                let key = state.pop().unwrap();
                state.park(key);
            }
        }
        assert_eq!((state.queue.depth(), state.parked.len()), (0, 3));
        state.unpark(&context.executor, &[]);
        assert_eq!(state.queue.depths(), [(Priority::Fresh, 2), (Priority::Bulk, 1)]);
    }
}
