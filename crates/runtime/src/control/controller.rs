//! The loop that every kind runs in: a queue of keys, and passes over them.
//!
//! A pass waits until the caches show what was last written for its object, observes, plans, and hands the plan to
//! the executor. Nothing is remembered between passes but refusals and what the caches must still show: the
//! process may die between any two writes, and the next pass makes the same plan again.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::cache::informer::{Change, Health, Informer, Part, any_changed};
use crate::cache::tracked::Follower;
use crate::control::activity::{Activity, is_worth_a_line_among};
use crate::control::context::Shared;
use crate::control::queue::{Ended, Priority, Queue};
use crate::model::clock::Clock;
use crate::model::conditions::shorten;
use crate::model::object::{Key, Object};
use crate::model::plan::{Event, EventType, Plan};
use crate::model::progress::Progress;
use crate::model::refusals::{Refusals, Verb};
use crate::model::resource::Resource;
use crate::write::executor::{Carried, Error, Executor};

/// Passes of one kind side by side.
const WORKERS: usize = 16;
/// How long one pass may take: long enough for thousands of creations.
const PASS: Duration = Duration::from_mins(5);
/// How long a status may lag behind while every pass writes something else.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// Observing and planning that takes less than this makes no event wait, if it found something to do.
const CHEAP: Duration = Duration::from_millis(1);
/// The longest that events wait because a pass costs much.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The longest that events wait because the pass before found nothing to do.
const LONGEST_GATHERING: Duration = Duration::from_millis(50);
/// A wait below this is none: the timer would cost more than the pass.
const SHORTEST_GATHERING: Duration = Duration::from_millis(5);
/// How long a cache may lag behind what a predecessor had seen before it is listed anew.
const HANDED: Duration = Duration::from_millis(200);
/// How long the caches may take to show what was written last when the process is asked to end.
const SHOWN: Duration = Duration::from_millis(500);
/// Bytes of an error that are logged: it may quote what could not be decoded.
const LONGEST_ERROR: usize = 1_024;
/// How long passes in flight may take to end when the process is asked to.
const DRAIN: Duration = Duration::from_secs(10);

/// A kind: how one object of it is observed and planned. Everything else is the same for all kinds.
pub trait Reconciler: Send + Sync + 'static {
    /// The custom resource.
    type Object: Object;
    /// Its status.
    type Status: Serialize + PartialEq + Send + Sync;
    /// What a plan looks at besides the object.
    type World: Send + Sync;
    /// Effects of the kind's own; `Infallible` where it has none.
    type Effect: Send;

    /// The controller's name, as in `--controllers` and in metrics.
    fn name(&self) -> &'static str;

    /// Where the custom resource lives.
    fn resource(&self) -> Resource;

    /// The status that the object has now.
    fn status<'a>(&self, object: &'a Self::Object) -> Option<&'a Self::Status>;

    /// Gathers what the plan looks at, from the caches; reads past them only where a rule says so.
    fn observe(
        &self,
        object: &Self::Object,
        refusals: Refusals,
    ) -> impl Future<Output = Result<Self::World, Error>> + Send;

    /// The pure plan.
    fn plan(
        &self,
        object: &Self::Object,
        world: &Self::World,
        now: Timestamp,
    ) -> Plan<Self::Status, Self::Effect>;

    /// Carries out an effect of the kind's own. Must not wait.
    fn effect(&self, _object: &Self::Object, _effect: Self::Effect) -> Result<(), String> {
        Ok(())
    }

    /// Whether an object needs passes at all; asked when it changes and when this process takes over.
    fn concerns(&self, _object: &Self::Object) -> bool {
        true
    }

    /// What a pass over this object wrote, for metrics and memories of the kind's own.
    fn carried(&self, _key: &Key, _carried: &Carried) {}

    /// Whether every object gets one more pass when the process is asked to end.
    fn has_last_pass(&self) -> bool {
        false
    }

    /// Whether its passes are too many and too small to be logged one by one.
    fn is_quiet(&self) -> bool {
        false
    }

    /// The object is gone: forgets what was kept of it.
    fn forget(&self, _key: &Key) {}
}

/// Wakes a controller's objects. Cheap to clone.
#[derive(Clone)]
pub struct Waker {
    sender: mpsc::UnboundedSender<Wake>,
}

enum Wake {
    Key(Key, Priority),
    Gone(Key),
}

impl Waker {
    /// Something happened to this object.
    pub fn wake(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Fresh));
    }

    /// This object is one of many to be looked at again.
    pub fn look_again(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Bulk));
    }

    /// Wakes the object of `kind` that controls what changed; on a change of owner both.
    pub fn wake_owner<T: Object>(&self, change: &Change<'_, T>, kind: &Resource) {
        let wake = |object: &Arc<T>| {
            if let Some(owner) = object.owner()
                && *owner.group == *kind.group
                && *owner.kind == *kind.kind
            {
                self.wake(Key {
                    namespace: object.key().namespace,
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                });
            }
        };
        match change {
            Change::Applied { new, old, .. } => {
                wake(new);
                if let Some(old) = old
                    && old.owner() != new.owner()
                {
                    wake(old);
                }
            }
            Change::Deleted { old } => wake(old),
            Change::Undecodable { .. } | Change::Vanished { .. } => {}
        }
    }
}

fn undecodable(error: &str) -> Event {
    Event {
        type_: EventType::Warning,
        reason: "Undecodable",
        action: "Decode",
        note: format!("This object cannot be understood and is left alone: {error}"),
    }
}

/// One kind's controller: its queue and the caches that its plans look at.
pub struct Controller<R: Reconciler> {
    shared: Shared,
    reconciler: Arc<R>,
    objects: Informer<R::Object>,
    followers: Arc<[Arc<dyn Follower>]>,
    waker: Waker,
    wakes: mpsc::UnboundedReceiver<Wake>,
}

impl<R: Reconciler> Controller<R> {
    /// A controller of `objects`, whose plans also look at the caches `reads`. Whenever this process takes over, all of
    /// them are listed anew before it plans.
    pub fn new(
        shared: &Shared,
        reconciler: R,
        objects: Informer<R::Object>,
        reads: impl IntoIterator<Item = Arc<dyn Follower>>,
    ) -> Self {
        let (sender, wakes) = mpsc::unbounded_channel();
        let waker = Waker { sender };
        let mut followers = objects.followers();
        followers.extend(reads);
        let (own, recorder, resource) = (waker.clone(), shared.recorder.clone(), reconciler.resource());
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
        Self { shared: shared.clone(), reconciler, objects, followers: followers.into(), waker, wakes }
    }

    /// What wakes its objects.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Runs until the process is asked to stop, then lets passes in flight end.
    pub async fn run(mut self) {
        let mut state = State::new(self.reconciler.name(), &self.shared);
        let mut gate = self.shared.gate.watch();
        let mut stop = self.shared.stop.clone();
        let mut progress: Vec<_> = self.followers.iter().map(|follower| follower.watch_progress()).collect();
        let mut health = self.objects.watch_health();
        let mut returns = self.shared.link.returns();
        let mut begun = self.nowhere();
        let mut batch = Vec::new();
        loop {
            let (now, coming) = self.may_begin();
            if now != begun {
                // What woke somebody until now is part of everything that is looked at below.
                while let Ok(wake) = self.wakes.try_recv() {
                    self.take(&mut state, wake, &begun);
                }
                for (part, (was, is)) in self.objects.parts().iter().zip(begun.iter().zip(&now)) {
                    match (*was, *is) {
                        (false, true) => self.begin(&mut state, part),
                        (true, false) => state.leave(|key| part.covers(&key.namespace)),
                        _ => {}
                    }
                }
                begun = now;
            }
            let may_write = begun.contains(&true);
            if may_write {
                state.unpark(&self.shared.executor, &self.followers);
                while state.passes.len() < WORKERS
                    && let Some(key) = state.pop()
                {
                    if self.shared.executor.memory.caught_up(&key, &self.followers) {
                        state.start(&key, self.pass(key.clone()));
                    } else {
                        state.park(key);
                    }
                }
            }
            let timer = state.queue.next_timer().filter(|_| may_write && state.passes.len() < WORKERS);
            let waits = begun.contains(&false);
            tokio::select! {
                received = self.wakes.recv_many(&mut batch, 1024) => {
                    if received == 0 {
                        break;
                    }
                    for wake in batch.drain(..) {
                        self.take(&mut state, wake, &begun);
                    }
                }
                Some(ended) = state.passes.join_next_with_id(), if !state.passes.is_empty() => {
                    if let Some(key) = state.ended(ended) {
                        if self.objects.get(&key).is_none() {
                            // It went while the pass ran, which may have remembered something of it.
                            state.forget(&key);
                            self.shared.executor.memory.forget(&key);
                            self.reconciler.forget(&key);
                        }
                        if !self.is_begun(&begun, &key) {
                            state.forget(&key);
                        }
                    }
                }
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {}
                () = sleep_until(coming.unwrap_or_else(Instant::now)), if coming.is_some() => {}
                _ = gate.changed() => {}
                // What failed while the server was gone need not wait as if it would fail again.
                _ = returns.changed() => state.queue.forgive(Instant::now()),
                () = any_changed(&mut health), if waits => {}
                () = any_changed(&mut progress), if waits || !state.parked.is_empty() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        let drained = async {
            while let Some(ended) = state.passes.join_next_with_id().await {
                state.ended(ended);
            }
            if !self.reconciler.has_last_pass() {
                return;
            }
            // A pass does nothing before the caches show what the one before has written.
            let _ = timeout(SHOWN, self.all_shown(&mut progress)).await;
            let all = self.objects.all();
            let due = all.iter().filter(|object| self.is_begun(&begun, &object.key()));
            for object in due.filter(|object| self.reconciler.concerns(object)) {
                if state.passes.len() >= WORKERS
                    && let Some(ended) = state.passes.join_next_with_id().await
                {
                    state.ended(ended);
                }
                let key = object.key();
                state.start(&key, self.pass(key.clone()));
            }
            while let Some(ended) = state.passes.join_next_with_id().await {
                state.ended(ended);
            }
        };
        if timeout(DRAIN, drained).await.is_err() {
            tracing::warn!(
                controller = self.reconciler.name(),
                "passes did not end in time and were cut off"
            );
        }
        // A successor can be told what it must have seen only if this process has seen it.
        let _ = timeout(SHOWN, self.all_shown(&mut progress)).await;
    }

    /// Waits until the caches show everything that this process has written.
    async fn all_shown(&self, progress: &mut [watch::Receiver<Progress>]) {
        while !self.shared.executor.memory.all_caught_up(&self.followers) {
            any_changed(progress).await;
        }
    }

    /// Which parts of its objects may be worked on: those that are known, with everything that plans for them look at, as
    /// this term wants it. Where a cache is about to come by itself, the second value says until when it is waited for.
    fn may_begin(&self) -> (Vec<bool>, Option<Instant>) {
        let Some(term) = self.shared.gate.term() else { return (self.nowhere(), None) };
        let mut coming = None;
        let mut behind = Vec::new();
        for cache in self.followers.iter() {
            let scope = cache.scope();
            if self.shared.gate.is_caught_up(&scope, &cache.progress()) {
                continue;
            }
            // What a predecessor wrote before it lost the lease may not have come yet.
            behind.push(cache);
            let soon = term.since + HANDED;
            if self.shared.gate.handed(&scope).is_some() && Instant::now() < soon {
                coming = Some(soon);
            } else {
                cache.relist(term.since);
            }
        }
        // A namespace that cannot be watched keeps only its own objects waiting.
        let is_ready = |part: &Part<R::Object>| {
            let is_read =
                |cache: &&Arc<dyn Follower>| part.namespace().is_empty() || cache.covers(part.namespace());
            matches!(*part.health().borrow(), Health::Synced { .. }) && !behind.iter().any(is_read)
        };
        (self.objects.parts().iter().map(is_ready).collect(), coming)
    }

    fn nowhere(&self) -> Vec<bool> {
        vec![false; self.objects.parts().len()]
    }

    fn is_begun(&self, begun: &[bool], key: &Key) -> bool {
        self.objects.part_of(&key.namespace).is_some_and(|part| begun[part])
    }

    /// Looks at everything once, as a new leader does; what is as it should be costs no write.
    fn begin(&self, state: &mut State, part: &Part<R::Object>) {
        for object in part.all().iter().filter(|object| self.reconciler.concerns(object)) {
            state.add(object.key(), Priority::Bulk);
        }
        for (key, error) in part.undecodable() {
            self.shared.recorder.record(self.reconciler.resource(), &key, undecodable(&error));
        }
    }

    /// Takes note of a wake. Who may not write keeps no queue: taking over begins with all objects.
    fn take(&self, state: &mut State, wake: Wake, begun: &[bool]) {
        match wake {
            Wake::Key(key, priority) if self.is_begun(begun, &key) => state.add(key, priority),
            Wake::Key(..) => {}
            Wake::Gone(key) => {
                state.forget(&key);
                self.shared.executor.memory.forget(&key);
                self.reconciler.forget(&key);
            }
        }
    }

    /// One pass over one object, bounded in time; a panic in it is caught by whoever awaits it.
    fn pass(&self, key: Key) -> impl Future<Output = (Key, PassResult)> + Send + 'static {
        let reconciler = self.reconciler.clone();
        let object = self.objects.get(&key);
        let objects = self.objects.clone();
        let shared = self.shared.clone();
        let followers = self.followers.clone();
        async move {
            let Some(object) = object else { return (key, Ok(Passed::default())) };
            let still = || {
                objects.get(&key).is_some_and(|now| {
                    now.generation() == object.generation() && now.terminating() == object.terminating()
                })
            };
            let pass = AssertUnwindSafe(reconcile(&*reconciler, &shared, &object, &key, &followers, &still))
                .catch_unwind();
            let ended = match timeout(PASS, pass).await {
                Ok(Ok(Ok(passed))) => Ok(passed),
                Ok(Ok(Err(error))) => Err(Failure::Error(error)),
                Ok(Err(_panic)) => Err(Failure::Panic),
                Err(_elapsed) => Err(Failure::Timeout),
            };
            (key, ended)
        }
    }
}

/// How a pass ended well.
#[derive(Default)]
struct Passed {
    /// When to look again.
    again: Option<Instant>,
    /// How long it took to observe and to plan.
    thought: Duration,
    /// Whether there was anything to write.
    wrote: bool,
    /// What the API server said to what it refuses now.
    refused: Option<String>,
}

impl Passed {
    /// How long events may wait: thinking takes a tenth of the time at most. After a pass that found nothing to do it takes a
    /// 400th, for a short while: a run of many pods brings hundreds of events of which few matter, and those of a moment are
    /// looked at together.
    fn rest(&self) -> Duration {
        let dear = if self.thought < CHEAP { Duration::ZERO } else { (self.thought * 9).min(LONGEST_REST) };
        let idle = if self.wrote { Duration::ZERO } else { (self.thought * 400).min(LONGEST_GATHERING) };
        dear.max(if idle < SHORTEST_GATHERING { Duration::ZERO } else { idle })
    }
}

/// How a pass ended: well, or why it failed.
type PassResult = Result<Passed, Failure>;

/// A pass as the join set gives it back.
type Joined = Result<(tokio::task::Id, (Key, PassResult)), tokio::task::JoinError>;

/// Why a pass ended badly.
enum Failure {
    Error(Error),
    Panic,
    Timeout,
}

/// What the loop keeps: the queue, the passes that run, and the keys that wait for the caches.
struct State {
    controller: &'static str,
    queue: Queue,
    passes: JoinSet<(Key, PassResult)>,
    running: HashMap<tokio::task::Id, (Key, Instant)>,
    parked: HashSet<Key>,
    metrics: crate::server::metrics::Metrics,
    activity: Activity,
    /// When it was last told of an object that fails.
    told: Option<Instant>,
    clock: Clock,
}

impl State {
    fn new(controller: &'static str, shared: &Shared) -> Self {
        let metrics = shared.metrics.clone();
        metrics.begin_controller(controller, WORKERS);
        Self {
            controller,
            queue: Queue::default(),
            passes: JoinSet::new(),
            running: HashMap::new(),
            parked: HashSet::new(),
            metrics,
            activity: shared.activity(controller),
            told: None,
            clock: shared.clock,
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
        self.activity.waits(self.queue.depth(), self.parked.len(), self.queue.len());
    }

    /// Puts a key aside until the caches show what was written for it.
    fn park(&mut self, key: Key) {
        self.queue.park(&key);
        self.parked.insert(key);
    }

    fn unpark(&mut self, executor: &Executor, followers: &[Arc<dyn Follower>]) {
        let shown: Vec<Key> =
            self.parked.iter().filter(|key| executor.memory.caught_up(key, followers)).cloned().collect();
        for key in shown {
            self.parked.remove(&key);
            self.add(key, Priority::Fresh);
        }
    }

    fn forget(&mut self, key: &Key) {
        self.queue.forget(key);
        self.parked.remove(key);
        self.activity.forgets(key);
        self.measure();
    }

    /// Forgets everything that waits for objects that are nobody's business now: to begin anew is to look at all of them.
    fn leave(&mut self, goes: impl Fn(&Key) -> bool) {
        self.queue.leave(&goes);
        self.parked.retain(|key| !goes(key));
        self.activity.leaves(&goes);
        self.measure();
    }

    fn start(&mut self, key: &Key, pass: impl Future<Output = (Key, PassResult)> + Send + 'static) {
        let handle = self.passes.spawn(pass);
        self.running.insert(handle.id(), (key.clone(), Instant::now()));
        self.activity.begins(key);
        self.measure();
    }

    /// Takes note of a pass that has ended, and says of which object.
    fn ended(&mut self, joined: Joined) -> Option<Key> {
        let id = match &joined {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let (key, began) = self.running.remove(&id)?;
        let result = joined.map_or(Err(Failure::Panic), |(_, (_, result))| result);
        let took = began.elapsed();
        let controller = self.controller;
        self.metrics.reconcile_time.with_label_values(&[controller]).observe(took.as_secs_f64());
        self.metrics.work_duration.with_label_values(&self.labels()).observe(took.as_secs_f64());
        let (result, ended) = match result {
            Ok(passed) => {
                let result = if passed.again.is_some() { "requeue_after" } else { "success" };
                let ended = Ended::Well { again: passed.again, rest: passed.rest() };
                self.activity.ends(&key, passed.refused);
                (result, ended)
            }
            // Not an error: the cache will show what has changed, or another process leads.
            Err(Failure::Error(error @ (Error::Stale(_) | Error::NotLeading))) => {
                self.activity.breaks_off(&key);
                tracing::debug!(controller, object = %key, outcome = "requeue", %error, "ends early");
                ("requeue", Ended::Failed)
            }
            Err(failure) => {
                let error = match failure {
                    Failure::Error(error) => error.to_string(),
                    Failure::Panic => {
                        self.metrics.reconcile_panics.with_label_values(&[controller]).inc();
                        "the pass panicked".to_owned()
                    }
                    Failure::Timeout => {
                        self.metrics.reconcile_timeouts.with_label_values(&[controller]).inc();
                        format!("the pass took longer than {} s", PASS.as_secs())
                    }
                };
                let error = shorten(error, LONGEST_ERROR);
                let times = self.activity.fails(&key, &error, self.clock.now());
                let (failing, _) = self.activity.in_trouble();
                if is_worth_a_line_among(times, failing, self.told.map(|told| told.elapsed())) {
                    self.told = Some(Instant::now());
                    let duration_ms = millis(took);
                    tracing::warn!(
                        controller, object = %key, outcome = "error", duration_ms, times, failing, error,
                        "a pass failed and will be repeated"
                    );
                } else {
                    tracing::debug!(controller, object = %key, times, error, "a pass failed as before");
                }
                self.metrics.reconcile_errors.with_label_values(&[controller]).inc();
                self.metrics.queue_retries.with_label_values(&self.labels()).inc();
                ("error", Ended::Failed)
            }
        };
        self.metrics.reconciles.with_label_values(&[controller, result]).inc();
        self.queue.done(&key, ended, Instant::now());
        self.measure();
        Some(key)
    }
}

/// One pass: observe, plan, carry out, report. Returns when to look again without an event.
async fn reconcile<R: Reconciler>(
    reconciler: &R,
    shared: &Shared,
    object: &R::Object,
    key: &Key,
    followers: &[Arc<dyn Follower>],
    still: &(dyn Fn() -> bool + Sync),
) -> Result<Passed, Error> {
    let executor = &shared.executor;
    let started = Instant::now();
    executor.clarify(key).await?;
    if !executor.memory.caught_up(key, followers) {
        // What was just found out is not in the caches yet: the next pass waits until it is.
        return Ok(Passed { again: Some(Instant::now()), ..Passed::default() });
    }
    executor.memory.observe_generation(key, object.generation());
    let began = Instant::now();
    let world = reconciler.observe(object, executor.memory.refusals(key)).await?;
    let now = shared.clock.now();
    let mut plan = reconciler.plan(object, &world, now);
    executor.memory.withhold(key, &mut plan);
    let thought = began.elapsed();
    let resource = reconciler.resource();
    let Plan { steps, status, events, again } = plan;
    let mut carried = executor
        .carry_out(key, &resource, object.resource_version(), steps, still, |effect| {
            reconciler.effect(object, effect)
        })
        .await;
    let refused = carried.refusals.len();
    // What went through is told and counted also where the rest did not.
    let log = |writes: usize, outcome: &str| {
        if writes > 0 && !reconciler.is_quiet() {
            let (controller, duration_ms) = (reconciler.name(), millis(started.elapsed()));
            tracing::info!(controller, object = %key, outcome, duration_ms, writes, refused, "carried out");
        }
    };
    reconciler.carried(key, &carried);
    // Who may not write says nothing either; everyone else is told.
    if !matches!(carried.failure, Some(Error::NotLeading)) {
        report(shared, &resource, key, &carried);
    }
    if let Some(error) = carried.failure.take() {
        log(carried.writes, "error");
        if !matches!(error, Error::NotLeading) {
            tracing::debug!(object = %key, %error, "a plan was not carried out");
        }
        // A webhook that fails may do so for long: what is true is told meanwhile.
        if let (Error::Unanswered { is_said: true, .. }, Some(status)) = (&error, status)
            && reconciler.status(object) != Some(&status)
            && deferred(executor, key, carried.writes).is_none()
        {
            match executor.write_status(key, &resource, &status, object.resource_version()).await {
                Ok(()) => events.into_iter().for_each(|event| shared.recorder.record(resource, key, event)),
                Err(error) => tracing::debug!(object = %key, %error, "nor was its status written"),
            }
        }
        return Err(error);
    }
    let mut again = again.map(|at| instant(now, at));
    let mut sooner = |at: Instant| again = Some(again.map_or(at, |already| already.min(at)));
    if let Some(until) = executor.memory.terminating_until(key) {
        sooner(instant(now, until));
    }
    if carried.refused {
        // The next plan knows of the refusal and says so in the status.
        sooner(Instant::now());
    }
    let mut writes = carried.writes;
    let told = match status {
        Some(status) if reconciler.status(object) != Some(&status) => {
            if let Some(until) = deferred(executor, key, writes) {
                sooner(until);
                false
            } else {
                let version = object.resource_version();
                if let Err(error) = executor.write_status(key, &resource, &status, version).await {
                    log(writes, "error");
                    return Err(error);
                }
                writes += 1;
                true
            }
        }
        _ => carried.complete,
    };
    if told {
        for event in events {
            shared.recorder.record(resource, key, event);
        }
    }
    log(writes, if refused == 0 { "success" } else { "refused" });
    if carried.news {
        return Err(Error::Stale(format!("something of {} {key}", resource.kind)));
    }
    Ok(Passed { again, thought, wrote: writes > 0, refused: executor.memory.refused_now(key) })
}

/// Until when a status is not written, after a pass with so many writes: it is written no oftener than its pace.
fn deferred(executor: &Executor, key: &Key, writes: usize) -> Option<Instant> {
    let next = executor.memory.status_written(key)? + Executor::STATUS_PACE;
    if next > Instant::now() {
        return Some(next);
    }
    // What was just written will be seen and planned upon; until then nothing new is true. A plan that always writes must
    // still tell.
    (writes > 0 && next.elapsed() < LONGEST_SILENCE).then(|| Instant::now() + Executor::STATUS_PACE)
}

/// One Event for each verb: never one for each pod.
fn report(shared: &Shared, resource: &Resource, key: &Key, carried: &Carried) {
    for (verb, reason, action, past) in [
        (Verb::Create, "SuccessfulCreate", "Create", "Created"),
        (Verb::Delete, "SuccessfulDelete", "Delete", "Deleted"),
        (Verb::Apply, "SuccessfulApply", "Apply", "Applied"),
    ] {
        let names: Vec<&(Verb, &str, String)> =
            carried.done.iter().filter(|(done, ..)| *done == verb).collect();
        if let Some((_, kind, first)) = names.first() {
            let note = match names.len() {
                1 => format!("{past} {kind} {first}"),
                many => format!("{past} {many} {}s: {first} and {} more", kind, many - 1),
            };
            shared.recorder.record(*resource, key, Event { type_: EventType::Normal, reason, action, note });
        }
    }
    for (verb, reason, action) in [
        (Verb::Create, "FailedCreate", "Create"),
        (Verb::Delete, "FailedDelete", "Delete"),
        (Verb::Apply, "FailedApply", "Apply"),
        (Verb::JsonPatch, "FailedPatch", "Patch"),
        (Verb::MergePatch, "FailedPatch", "Patch"),
    ] {
        let mut refused = carried.refusals.iter().filter(|(tried, ..)| *tried == verb);
        if let Some((_, name, message)) = refused.next() {
            let more = refused.count();
            let note = if more == 0 {
                format!("{name}: {message}")
            } else {
                format!("{name} (and {more} more): {message}")
            };
            shared.recorder.record(*resource, key, Event { type_: EventType::Warning, reason, action, note });
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The instant at which the wall clock will show `at`.
fn instant(now: Timestamp, at: Timestamp) -> Instant {
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    // A far future is looked at again once a day: clocks may be set meanwhile.
    Instant::now() + wait.min(Duration::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_after_what_costs_much_and_after_what_finds_nothing() {
        let rest = |micros: u64, wrote: bool| {
            Passed { thought: Duration::from_micros(micros), wrote, ..Passed::default() }.rest()
        };
        assert_eq!(rest(900, true), Duration::ZERO, "there may be more to do");
        assert_eq!(rest(2_000, true), Duration::from_millis(18), "a tenth of the time");
        assert_eq!(rest(10_000_000, true), LONGEST_REST);
        assert_eq!(rest(10, false), Duration::ZERO, "cheaper than a timer");
        assert_eq!(rest(100, false), Duration::from_millis(40));
        assert_eq!(rest(1_500, false), LONGEST_GATHERING);
        assert_eq!(rest(20_000, false), Duration::from_millis(180));
    }
}
