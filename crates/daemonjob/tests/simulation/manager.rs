//! A manager's process as far as a plan depends on it. It executes a reconcile write by write.
//!
//! It imitates `quintet_runtime::control` (reconcile, take-over), `quintet_runtime::write::executor`
//! (execute, caught_up, clarify, refusals) and `controller.rs` of this crate (observe).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus};
use quintet_daemonjob::clocks::Clocks;
use quintet_daemonjob::index::Index;
use quintet_daemonjob::ledger::{SHARDS, Shard, shard_name};
use quintet_daemonjob::mark_prefixes::{MarkPrefix, MarkPrefixes};
use quintet_daemonjob::observe::World;
use quintet_daemonjob::status::is_finished;
use quintet_runtime::model::clock::doubled;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object;
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Refusals, Verb};
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES, PODS, Resource};
use quintet_runtime::model::status_pace::{ChangedStatus, StatusTimes};

use crate::server::{Change, JOB, Kind, NAMESPACE, Server};

/// The backoff after a reconcile that failed or met an unexpected object.
const BACKOFF: SignedDuration = SignedDuration::from_millis(500);
/// The time until the next reconcile, if writes without urgency wait for it.
const TURN: SignedDuration = SignedDuration::from_secs(1);
/// How many events the caches of a process may lag behind the server.
pub type Lag = u8;

/// The cache of one type.
pub struct View<T> {
    applied: usize,
    pub objects: BTreeMap<String, Arc<T>>,
}

impl<T: Object> View<T> {
    fn fresh(kind: &Kind<T>) -> Self {
        let objects = kind.objects.iter().map(|(name, stored)| (name.clone(), stored.seen.clone())).collect();
        Self { applied: kind.log.len(), objects }
    }

    /// Applies events until at most `lag` are left, and at least those up to `revision`. Returns removed
    /// objects.
    fn follow(&mut self, kind: &Kind<T>, lag: Lag, revision: u64) -> Vec<Arc<T>> {
        let owed = kind.log.partition_point(|change| change.revision <= revision);
        let until = kind.log.len().saturating_sub(usize::from(lag)).max(owed);
        let mut left = Vec::new();
        while self.applied < until {
            let Change { name, object, .. } = &kind.log[self.applied];
            self.applied += 1;
            match object {
                Some(object) => {
                    // An object that is deleted and created again with the same name is another object.
                    let old = self.objects.insert(name.clone(), object.clone());
                    left.extend(old.filter(|old| old.key() != object.key()));
                }
                None => left.extend(self.objects.remove(name)),
            }
        }
        left
    }
}

/// The resourceVersions that the caches must show before the next plan.
#[derive(Clone, Copy, Default)]
struct Written {
    pods: u64,
    nodes: u64,
    shards: u64,
    job: u64,
}

pub struct Manager {
    pub pods: View<Pod>,
    pub nodes: View<Node>,
    pub shards: View<Shard>,
    pub jobs: View<DaemonJob>,
    /// Shards that left the cache without having been seen terminating.
    deselected: BTreeMap<Arc<str>, Arc<Shard>>,
    offset: SignedDuration,
    clocks: Clocks,
    index: Arc<Index>,
    written: Written,
    /// The objects of writes without an answer.
    unclear: Vec<(Resource, String)>,
    refusals: Refusals,
    generation: Option<i64>,
    status_times: StatusTimes<Timestamp>,
    /// The current reconcile.
    pub pass: Option<Pass>,
    /// Whether an event has happened since the last reconcile began.
    pub woken: bool,
    /// The time of the next reconcile without an event, in true time.
    pub again: Option<Timestamp>,
}

/// A plan in execution.
pub struct Pass {
    pub job: Arc<DaemonJob>,
    pub world: World,
    /// By the manager's clock.
    pub now: Timestamp,
    pub plan: Plan<DaemonJobStatus>,
    steps: VecDeque<Vec<Action<DaemonJobStatus>>>,
    complete: bool,
    news: bool,
    refused: bool,
    writes: usize,
}

/// The next write of a reconcile.
pub enum Next {
    Write(Action<DaemonJobStatus>),
    Status(DaemonJobStatus),
    /// The reconcile is finished.
    Over,
}

impl Manager {
    /// A process that starts now, with fresh caches.
    pub fn start(server: &Server, offset: SignedDuration) -> Self {
        Self {
            offset,
            clocks: Clocks::default(),
            index: Arc::default(),
            pods: View::fresh(&server.pods),
            nodes: View::fresh(&server.nodes),
            shards: View::fresh(&server.shards),
            jobs: View::fresh(&server.jobs),
            deselected: BTreeMap::new(),
            written: Written::default(),
            unclear: Vec::new(),
            refusals: Refusals::default(),
            generation: None,
            status_times: StatusTimes::default(),
            pass: None,
            woken: true,
            again: None,
        }
    }

    /// The caches follow the server until these numbers of events are left: pods, nodes, ledger, DaemonJob.
    pub fn follow(&mut self, server: &Server, lags: [Lag; 4]) {
        let before = (self.pods.applied, self.nodes.applied, self.shards.applied, self.jobs.applied);
        self.pods.follow(&server.pods, lags[0], self.written.pods);
        self.nodes.follow(&server.nodes, lags[1], self.written.nodes);
        for shard in self.shards.follow(&server.shards, lags[2], self.written.shards) {
            self.deselected.insert(shard.meta.uid.clone(), shard);
        }
        for shard in self.shards.objects.values() {
            self.deselected.remove(&shard.meta.uid);
        }
        self.jobs.follow(&server.jobs, lags[3], self.written.job);
        let after = (self.pods.applied, self.nodes.applied, self.shards.applied, self.jobs.applied);
        self.woken |= before != after;
    }

    /// The revisions before which its caches of pods and nodes show every event.
    pub fn seen_until(&self, server: &Server) -> (u64, u64) {
        let next = |revision: Option<u64>| revision.unwrap_or(u64::MAX);
        let pods = server.pods.log.get(self.pods.applied).map(|change| change.revision);
        let nodes = server.nodes.log.get(self.nodes.applied).map(|change| change.revision);
        (next(pods), next(nodes))
    }

    pub fn offset(&self) -> SignedDuration {
        self.offset
    }

    fn local(&self, at: Timestamp) -> Timestamp {
        at.checked_add(self.offset).unwrap()
    }

    /// It has acquired the lease, and lists DaemonJobs and ledgers again.
    pub fn take_over(&mut self, server: &Server, pods: Lag, nodes: Lag) {
        self.clocks = Clocks::default();
        self.follow(server, [pods, nodes, 0, 0]);
        self.woken = true;
    }

    /// Reads the objects of writes without an answer.
    fn clarify(&mut self, server: &Server) {
        for (resource, name) in std::mem::take(&mut self.unclear) {
            if resource == PODS {
                let found = server.pods.objects.get(&name).map(|pod| pod.seen.resource_version());
                // The executor waits for a deleted pod by its UID. The simulation waits for all events.
                let revision = found.map_or(server.revision, |found| found.parse().unwrap());
                self.written.pods = self.written.pods.max(revision);
            } else if resource == NODES {
                let found = server.nodes.objects.get(&name).map(|node| node.seen.resource_version());
                let revision = found.map_or(server.revision, |found| found.parse().unwrap());
                self.written.nodes = self.written.nodes.max(revision);
            } else if resource == CONFIG_MAPS {
                if let Some(found) = server.shards.objects.get(&name) {
                    self.written.shards =
                        self.written.shards.max(found.seen.resource_version().parse().unwrap());
                }
            } else if let Some(found) = server.job() {
                self.written.job = self.written.job.max(found.seen.resource_version().parse().unwrap());
            }
        }
    }

    /// Begins a reconcile after the caches show the earlier writes. None if there is no DaemonJob.
    pub fn begin(
        &mut self,
        server: &Server,
        lags: [Lag; 4],
        stopping: bool,
        plan: impl Fn(&DaemonJob, &World, Timestamp) -> Plan<DaemonJobStatus>,
    ) -> Option<&Pass> {
        self.clarify(server);
        self.follow(server, lags);
        self.woken = false;
        self.again = None;
        let job = self.jobs.objects.get(JOB)?.clone();
        let generation = job.generation();
        if self.generation.replace(generation).is_some_and(|before| before != generation) {
            self.refusals.clear();
        }
        let world = self.observe(server, &job, stopping);
        let now = self.local(server.now);
        let mut plan = plan(&job, &world, now);
        plan.withhold(&self.refusals, now);
        let steps = plan.steps.clone().into();
        let pass =
            Pass { job, world, now, plan, steps, complete: true, news: false, refused: false, writes: 0 };
        Some(self.pass.insert(pass))
    }

    fn observe(&mut self, server: &Server, job: &DaemonJob, stopping: bool) -> World {
        let key = job.key();
        let owned = |owner: Option<&quintet_runtime::model::object::Owner>| {
            owner.is_some_and(|owner| owner.uid == key.uid)
        };
        let mut world = World {
            pods: self.pods.objects.values().filter(|pod| owned(pod.owner())).cloned().collect(),
            nodes: self.nodes.objects.values().cloned().collect(),
            stopping,
            refusals: self.refusals.clone(),
            permitted_marks: MarkPrefixes::from(&[mark_prefix()][..]).of(NAMESPACE),
            ..World::default()
        };
        if job.terminating() {
            return world;
        }
        let number = |shard: &Shard| shard.number(JOB);
        let shards = self.shards.objects.values().filter(|shard| owned(shard.owner()));
        world.ledger = shards.filter(|shard| number(shard).is_some()).cloned().collect();
        let read = |number: u8| {
            let found = server.shards.objects.get(&shard_name(JOB, number))?;
            owned(found.seen.owner()).then(|| found.seen.clone())
        };
        let mut open: BTreeSet<u8> = (0..SHARDS).collect();
        for shard in &world.ledger {
            open.remove(&number(shard).unwrap());
        }
        for shard in
            self.deselected.values().filter(|shard| owned(shard.owner())).cloned().collect::<Vec<_>>()
        {
            let Some(number) = number(&shard).filter(|number| open.remove(number)) else {
                self.deselected.remove(&shard.meta.uid);
                continue;
            };
            match read(number) {
                Some(found) => {
                    world.ledger.push(found.clone());
                    world.unlabelled.shards.push(found);
                }
                None => world.deleted_shards.push(shard),
            }
        }
        for number in job.status.iter().flat_map(|status| &status.ledger_shards) {
            if open.remove(number)
                && let Some(found) = read(*number)
            {
                world.ledger.push(found.clone());
                world.unlabelled.shards.push(found);
            }
        }
        let steady = server.now.duration_since(Timestamp::UNIX_EPOCH);
        self.clocks.step(job, &world, (self.local(server.now), steady));
        world.clocks = self.clocks.clone();
        let hash = job.spec.template.hash();
        let rebuilt = world.indexed(&hash);
        world.index = std::mem::take(&mut self.index);
        self.index = world.indexed(&hash);
        assert_eq!(self.index, rebuilt, "the updated index differs from a rebuilt one");
        world.index = self.index.clone();
        world
    }

    /// Takes the next write out of the reconcile. The actions of a step run concurrently: `any` selects one.
    pub fn next(&mut self, now: Timestamp, any: usize) -> Next {
        let Some(pass) = &mut self.pass else { return Next::Over };
        while let Some(step) = pass.steps.front_mut() {
            if !step.is_empty() {
                let at = any % step.len();
                return Next::Write(step.remove(at));
            }
            pass.steps.pop_front();
            if !pass.complete {
                pass.steps.clear();
            }
        }
        if let Some(status) = self.owed_status(now) {
            return Next::Status(status);
        }
        if let Some(pass) = self.pass.as_mut().filter(|pass| pass.writes == 0 && !pass.news)
            && !pass.plan.background.is_empty()
        {
            pass.steps.push_back(std::mem::take(&mut pass.plan.background));
            return self.next(now, any);
        }
        self.end(now);
        Next::Over
    }

    /// The status, if this reconcile writes it.
    fn owed_status(&mut self, now: Timestamp) -> Option<DaemonJobStatus> {
        let pass = self.pass.as_mut()?;
        let stored = pass.job.status.as_ref();
        let status = pass.plan.status.take().filter(|status| stored != Some(status))?;
        let settles = pass.complete && is_finished(&status) && !stored.is_some_and(is_finished);
        let changed = ChangedStatus { follows_writes: pass.writes > 0, settles };
        let since = |at| now.duration_since(at).unsigned_abs();
        let Some(wait) = changed.wait(self.status_times, since) else {
            if settles {
                self.status_times.settled = Some(now);
            }
            return Some(status);
        };
        let at = now.checked_add(wait).unwrap();
        self.again = Some(self.again.map_or(at, |already| already.min(at)));
        None
    }

    fn end(&mut self, now: Timestamp) {
        let Some(pass) = self.pass.take() else { return };
        let backoff = now.checked_add(BACKOFF).unwrap();
        let again = pass.plan.again.map(|at| at.checked_sub(self.offset).unwrap_or(at));
        let background_waits = pass.writes > 0 && !pass.news && !pass.plan.background.is_empty();
        let turn = background_waits.then(|| now.checked_add(TURN).unwrap());
        let more = [again, pass.refused.then_some(now), turn, pass.news.then_some(backoff), self.again];
        self.again = more.into_iter().flatten().min();
    }

    /// The reconcile failed, and its remaining writes are dropped.
    pub fn fail(&mut self, now: Timestamp) {
        self.pass = None;
        self.again = Some(now.checked_add(BACKOFF).unwrap());
    }

    /// The writes that are in flight together with the next one: the rest of its step.
    pub fn in_flight(&mut self) -> Vec<Action<DaemonJobStatus>> {
        self.pass.as_mut().and_then(|pass| pass.steps.pop_front()).unwrap_or_default()
    }

    pub fn wrote(&mut self, action: &Action<DaemonJobStatus>, revision: u64, now: Timestamp) {
        let Some((verb, name)) = name_of(action) else { return };
        if resource_of(action) == CONFIG_MAPS {
            self.clocks.flushed = Some(self.local(now));
        } else if resource_of(action) == PODS
            && matches!(action, Action::Delete { .. } | Action::JsonPatch { .. })
        {
            self.clocks.tidied = Some(self.local(now));
        }
        self.refusals.forget(verb, &resource_of(action), name);
        self.saw(action, revision);
        if let Some(pass) = &mut self.pass {
            pass.writes += 1;
        }
    }

    /// The next plan must know this resourceVersion of an object.
    fn saw(&mut self, action: &Action<DaemonJobStatus>, revision: u64) {
        let resource = resource_of(action);
        let written = if resource == PODS {
            &mut self.written.pods
        } else if resource == NODES {
            &mut self.written.nodes
        } else {
            &mut self.written.shards
        };
        *written = (*written).max(revision);
    }

    /// A write met an unexpected object. If the manager owns the object, the next plan waits for it.
    pub fn met_news(&mut self, action: &Action<DaemonJobStatus>, revision: Option<u64>) {
        if let Some(revision) = revision {
            self.saw(action, revision);
        }
        if let Some(pass) = &mut self.pass {
            (pass.complete, pass.news) = (false, true);
        }
    }

    pub fn was_refused(&mut self, action: &Action<DaemonJobStatus>, reason: &str, now: Timestamp) {
        let Some((verb, name)) = name_of(action) else { return };
        let times = self.refusals.of(verb, &resource_of(action), name).map_or(0, |refusal| refusal.times);
        let wait = doubled(SignedDuration::from_secs(10), times, SignedDuration::from_mins(10));
        let until = self.local(now).checked_add(wait).unwrap();
        let message = format!("{reason} by the simulation");
        let refusal = Refusal { verb, reason: RefusalReason::Other, message, times: times + 1, until };
        self.refusals.insert(&resource_of(action), name, refusal);
        if let Some(pass) = &mut self.pass {
            (pass.complete, pass.refused) = (false, true);
        }
    }

    /// A write got no answer. The manager reads the object before the next plan.
    pub fn got_no_answer(&mut self, action: Option<&Action<DaemonJobStatus>>) {
        let about = action.and_then(|action| Some((resource_of(action), name_of(action)?.1.to_owned())));
        self.unclear.push(about.unwrap_or((Resource::of::<DaemonJob>(), JOB.to_owned())));
    }

    pub fn wrote_status(&mut self, revision: u64, now: Timestamp) {
        self.written.job = self.written.job.max(revision);
        self.status_times.written = Some(now);
    }
}

/// The keys that `onSuccess` may use.
fn mark_prefix() -> MarkPrefix {
    format!("{NAMESPACE}=example.com/").parse().unwrap()
}

fn resource_of(action: &Action<DaemonJobStatus>) -> Resource {
    action.target().map_or_else(Resource::of::<DaemonJob>, |(_, resource, _)| *resource)
}

pub fn name_of(action: &Action<DaemonJobStatus>) -> Option<(Verb, &str)> {
    action.target().map(|(verb, _, name)| (verb, name))
}
