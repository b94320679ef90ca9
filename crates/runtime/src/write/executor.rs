//! Carries plans out. It alone writes.
//!
//! Before every write it asks the gate whether this process may still write, and the time left is the write's
//! deadline. Writes run side by side in a sliding window. What the server answers is sorted into done, news,
//! refusals (which count against one object and wait), and failures (which make the whole pass wait).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use http::Request;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::cache::tracked::Follower;
use crate::model::clock::{Clock, FIRST_BACKOFF, LONGEST_BACKOFF, doubled};
use crate::model::object::{Key, Meta, MetaOnly};
use crate::model::plan::{Action, Body, LABELS_MISSING, NAME_TAKEN, Refusal, Refusals};
use crate::model::resource::{PODS, Resource, escape};
use crate::server::client::{CALL, Resting, WINDOW, ask, ask_in_term, brief};
use crate::server::gate::Gate;
use crate::{FIELD_MANAGER, KIND_LABEL};

/// How long it is taken for granted that a namespace is being deleted: it may have been made anew.
const TERMINATING: SignedDuration = LONGEST_BACKOFF;
/// So many refusals in a row stop a pass: something is wrong with all of it.
const STOP_AFTER: usize = 3;
/// The wait before more is made after that, doubled while nothing goes through.
const FIRST_STOP: SignedDuration = SignedDuration::from_secs(1);

/// Whether a refusal is about the name of an object and not about the object.
fn is_of_the_name(reason: &str) -> bool {
    matches!(reason, NAME_TAKEN | LABELS_MISSING)
}

/// How an effect of a kind's own is called: it is no write.
const EFFECT: &str = "effect";

/// The reason of an apply that the server cannot carry out because what is stored does not fit the schema.
const UNTYPED: &str = "Untyped";

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process may not write (any more).
    #[error("this process does not hold the lease")]
    NotLeading,
    /// The server could not be reached, or asked to come back later, or the answer is unclear.
    #[error("{verb} {object}: {error}")]
    Unanswered {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// What came instead of an answer.
        error: String,
        /// Whether the API server said so itself (InternalError): it answers, and may well do something else.
        is_said: bool,
    },
    /// The object has changed since the plan was made.
    #[error("{0} has changed meanwhile")]
    Stale(String),
    /// A write that concerns the owner itself was refused.
    #[error("the API server refuses {object}: {message}")]
    Refused {
        /// What was to be written.
        object: String,
        /// The server's words.
        message: String,
    },
    /// Reading what the plan needs failed.
    #[error("{}", brief(.0))]
    Read(#[from] kube::Error),
    /// The kind's own effect failed.
    #[error("{0}")]
    Effect(String),
}

/// What carrying out the steps of a plan came to.
#[derive(Debug, Default)]
pub struct Carried {
    /// Writes that went through.
    pub writes: usize,
    /// Whether all steps went through.
    pub complete: bool,
    /// Whether a refusal was remembered: the next plan knows more than this one did.
    pub refused: bool,
    /// Whether something was not as the plan saw it. The cache will mostly say how, but not always (an object that
    /// existed a moment ago and is gone): the pass is repeated soon.
    pub news: bool,
    /// When the first of the actions that were withheld, because they were refused lately, may be tried again.
    pub withheld_until: Option<Timestamp>,
    /// What was done, for the log and the events: verb and object, as in `created pod a`.
    pub done: Vec<(&'static str, &'static str, String)>,
    /// What was refused: verb, object, the server's words.
    pub refusals: Vec<(&'static str, String, String)>,
    /// What ended it: nothing was begun after that.
    pub failure: Option<Error>,
}

/// The answer to one write.
enum Answer {
    /// Done.
    Done,
    /// Nothing to do: it is there already, gone already, or has changed. The cache will show it.
    News,
    /// Refused.
    Refused { reason: String, message: String, quota: bool },
    /// The namespace is being deleted: nothing can be made there any more.
    NamespaceTerminating,
}

/// Type, namespace and name of an object.
type Place = (Resource, Arc<str>, String);

/// One write: what it does to which object.
struct Write<'a> {
    verb: &'static str,
    resource: Resource,
    namespace: &'a Arc<str>,
    name: &'a str,
    /// The UID of the object that it deletes.
    deletes: Option<&'a Arc<str>>,
}

#[derive(Clone, Debug, Default)]
struct Written {
    /// By type and namespace.
    versions: HashMap<(Resource, Arc<str>), (u64, Instant)>,
    deletes: Vec<(Resource, Key, Instant)>,
    /// What an unanswered write may have done; for a deletion, the UID that it was about.
    unclear: HashMap<Place, Option<Arc<str>>>,
}

impl Written {
    /// Forgets what the caches show; whether that is all of their types.
    fn is_shown(&mut self, followers: &[Arc<dyn Follower>]) -> bool {
        for follower in followers {
            let resource = follower.resource();
            let progress = follower.progress();
            let listed_since = |answered: Instant| progress.listed.is_some_and(|began| began > answered);
            let follows = |of: &Resource, namespace: &str| *of == resource && follower.covers(namespace);
            self.versions.retain(|(of, namespace), (version, answered)| {
                !(follows(of, namespace) && (progress.position >= *version || listed_since(*answered)))
            });
            self.deletes.retain(|(of, key, answered)| {
                let is_shown = || follower.shows_deletion(key) || listed_since(*answered);
                !(follows(of, &key.namespace) && is_shown())
            });
        }
        let followed = |of: &Resource, namespace: &str| {
            followers.iter().any(|follower| follower.resource() == *of && follower.covers(namespace))
        };
        !self.versions.keys().any(|(of, namespace)| followed(of, namespace))
            && !self.deletes.iter().any(|(of, key, _)| followed(of, &key.namespace))
    }

    /// The types of what is not shown.
    fn resources(&self) -> impl Iterator<Item = Resource> {
        let deleted = self.deletes.iter().map(|(resource, ..)| *resource);
        let unclear = self.unclear.keys().map(|(resource, ..)| *resource);
        self.versions.keys().map(|(resource, _)| *resource).chain(deleted).chain(unclear)
    }
}

/// The one writer of the process.
pub struct Executor {
    client: Client,
    gate: Gate,
    clock: Clock,
    window: Semaphore,
    /// What is read past the caches has as many connections again, so that it does not wait behind writes.
    reads: Semaphore,
    memory: Mutex<HashMap<Arc<str>, Memory>>,
}

/// What is remembered of one owner: forgotten with it.
#[derive(Default)]
struct Memory {
    written: Written,
    refusals: Refusals,
    /// Until when the owner's namespace counts as one that is being deleted.
    terminating: Option<Timestamp>,
    /// The generation that was refused: a changed spec deserves another try.
    generation: Option<i64>,
    /// How often creations were stopped without one that went through.
    stops: u32,
    status_written: Option<Instant>,
}

impl Executor {
    /// An executor that writes while `gate` is open.
    pub fn new(client: Client, gate: Gate, clock: Clock) -> Self {
        Self {
            client,
            gate,
            clock,
            window: Semaphore::new(WINDOW),
            reads: Semaphore::new(WINDOW),
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<Arc<str>, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets an owner that is gone.
    pub fn forget(&self, owner: &Key) {
        self.memory().remove(&owner.uid);
    }

    /// The UIDs of the owners of whom anything is remembered.
    pub fn remembered(&self) -> Vec<Arc<str>> {
        self.memory().keys().cloned().collect()
    }

    /// What was refused for this owner.
    pub fn refusals(&self, owner: &Key) -> Refusals {
        let now = self.clock.now();
        let latest = now.checked_add(LONGEST_BACKOFF).unwrap_or(Timestamp::MAX);
        let mut memory = self.memory();
        let Some(memory) = memory.get_mut(&owner.uid) else { return Refusals::default() };
        memory.refusals.wait_until_at_most(latest);
        memory.terminating = memory.terminating.filter(|until| *until > now).map(|until| until.min(latest));
        memory.refusals.namespace_terminating = memory.terminating.is_some();
        memory.refusals.clone()
    }

    /// When it is to be asked again whether the owner's namespace is still being deleted.
    pub fn terminating_until(&self, owner: &Key) -> Option<Timestamp> {
        self.memory().get(&owner.uid)?.terminating
    }

    /// What the API server said to something of this owner that it refused and that waits to be tried again.
    pub fn refused_now(&self, owner: &Key) -> Option<String> {
        let memory = self.memory();
        Some(memory.get(&owner.uid)?.refusals.waiting(self.clock.now())?.message.clone())
    }

    /// Forgets what was refused if the owner's spec has changed since.
    pub fn observe_generation(&self, owner: &Key, generation: i64) {
        if let Some(memory) = self.memory().get_mut(&owner.uid)
            && let Some(refused) = memory.generation.replace(generation)
            && refused != generation
        {
            memory.refusals.clear();
            (memory.terminating, memory.stops) = (None, 0);
        }
    }

    /// Whether the caches show everything that was written for `owner`.
    pub fn caught_up(&self, owner: &Key, followers: &[Arc<dyn Follower>]) -> bool {
        let mut memory = self.memory();
        memory.get_mut(&owner.uid).is_none_or(|memory| memory.written.is_shown(followers))
    }

    /// Whether the caches show everything that was written for anybody.
    pub fn all_caught_up(&self, followers: &[Arc<dyn Follower>]) -> bool {
        // Of each of them it is forgotten what is shown: who hands over tells of the rest.
        let mut memory = self.memory();
        let mut shown = true;
        for memory in memory.values_mut() {
            shown &= memory.written.is_shown(followers);
        }
        shown
    }

    /// The types of which something was written, or may have been, that no cache has shown yet.
    pub fn unshown(&self) -> HashSet<Resource> {
        let memory = self.memory();
        let written = memory.values().map(|memory| &memory.written);
        written.flat_map(Written::resources).collect()
    }

    /// Reads what an unclear answer may have written, so that the next plan waits for it.
    pub async fn clarify(&self, owner: &Key) -> Result<(), Error> {
        let unclear: Vec<(Place, Option<Arc<str>>)> = self
            .memory()
            .get(&owner.uid)
            .map(|memory| memory.written.unclear.clone().into_iter().collect())
            .unwrap_or_default();
        for ((resource, namespace, name), deleted) in unclear {
            let found = match self.read_meta(&resource, &namespace, &name).await {
                // With its type, what was written is gone.
                Err(error) if resource.custom && !self.is_served(&resource).await.unwrap_or(true) => {
                    tracing::debug!(error = brief(&error), "the type of what was written is gone");
                    None
                }
                found => found?,
            };
            let is_gone = |uid: &Arc<str>| found.as_ref().is_none_or(|meta| meta.uid != *uid);
            if let Some(meta) = &found {
                self.wrote(owner, resource, meta);
            }
            if let Some(memory) = self.memory().get_mut(&owner.uid) {
                if let Some(uid) = deleted.filter(is_gone) {
                    let key = Key { namespace: namespace.clone(), name: name.as_str().into(), uid };
                    memory.written.deletes.push((resource, key, Instant::now()));
                }
                memory.written.unclear.remove(&(resource, namespace, name));
            }
        }
        Ok(())
    }

    fn wrote(&self, owner: &Key, resource: Resource, meta: &Meta) {
        if let Ok(version) = meta.resource_version.parse::<u64>() {
            let mut memory = self.memory();
            let versions = &mut memory.entry(owner.uid.clone()).or_default().written.versions;
            let place = (resource, owner.namespace.clone());
            let highest = versions.get(&place).map_or(0, |(highest, _)| *highest).max(version);
            versions.insert(place, (highest, Instant::now()));
        }
    }

    /// The metadata of an object, read past the caches; None where it does not exist.
    pub async fn read_meta(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Meta>, kube::Error> {
        Ok(self.read::<MetaOnly>(resource, namespace, name).await?.map(|only| Meta::from(only.metadata)))
    }

    /// An object, read past the caches; None where it does not exist. A 404 that is not the API server's word on that
    /// object is an error: so are a proxy's, and one on a type that is not there.
    pub async fn read<T: serde::de::DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, kube::Error> {
        let path = format!("{}/{}", resource.path(namespace), escape(name));
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let _permit = self.reads.acquire().await;
        match timeout(CALL, ask(&self.client, request)).await {
            Ok(Ok(object)) => Ok(Some(object)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && status.reason == "NotFound" => {
                Ok(None)
            }
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// Asks the API server whether it would take a new object, without creating it. Returns the server's words if it finds
    /// the object invalid (422), None if it takes the object or denies it for another reason, and an error if there is no
    /// answer that says anything of the object (429 and 5xx too).
    pub async fn find_invalid(
        &self,
        resource: &Resource,
        namespace: &str,
        body: &Body,
    ) -> Result<Option<String>, kube::Error> {
        let path = format!("{}?dryRun=All&fieldManager={FIELD_MANAGER}", resource.path(namespace));
        let request = request("POST", path, "application/json", body.bytes().to_vec())
            .map_err(kube::Error::HttpError)?;
        let _permit = self.reads.acquire().await;
        match timeout(CALL, ask::<serde::de::IgnoredAny>(&self.client, request)).await {
            Ok(Ok(_)) => Ok(None),
            Ok(Err(kube::Error::Api(status))) if status.code == 422 => Ok(Some(status.message.clone())),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// The objects of a namespace that a label selector selects, read past the caches: as they are now, or, where `since` is
    /// not 0, as they were at that resourceVersion or later. That the server answers from memory. What is now it asks its store
    /// for, and waits until its memory has come so far, up to 100 ms.
    pub async fn list<T: serde::de::DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
        since: u64,
    ) -> Result<Vec<T>, kube::Error> {
        let selected = format!("labelSelector={}", escape(selector));
        if since > 0 {
            let at = format!("&resourceVersion={since}&resourceVersionMatch=NotOlderThan");
            match self.list_where(resource, namespace, &selected, &at).await {
                // This server is behind, or its store was restored from a time before that.
                Err(kube::Error::Api(status)) if status.code == 504 => {}
                answer => return answer,
            }
        }
        self.list_where(resource, namespace, &selected, "").await
    }

    /// The objects of a namespace that a field selector selects, read past the caches.
    pub async fn list_fields<T: serde::de::DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<T>, kube::Error> {
        self.list_where(resource, namespace, &format!("fieldSelector={}", escape(selector)), "").await
    }

    async fn list_where<T: serde::de::DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selected: &str,
        at: &str,
    ) -> Result<Vec<T>, kube::Error> {
        #[derive(serde::Deserialize)]
        #[serde(bound = "T: serde::de::DeserializeOwned")]
        struct Page<T> {
            #[serde(default)]
            metadata: kube::api::ListMeta,
            items: Vec<T>,
        }
        // The pages after the first are of the same state, and the server refuses to be told which.
        let (mut objects, mut next) = (Vec::new(), at.to_owned());
        loop {
            let path = format!("{}?{selected}&limit=500{next}", resource.path(namespace));
            let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            let _permit = self.reads.acquire().await;
            let answer = timeout(CALL, ask::<Page<T>>(&self.client, request)).await;
            let Page { metadata, items } =
                answer.map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
            objects.extend(items);
            match metadata.continue_.filter(|continue_| !continue_.is_empty()) {
                Some(continue_) => next = format!("&continue={}", escape(&continue_)),
                None => return Ok(objects),
            }
        }
    }

    /// Whether the API server serves this version of this group; where it does not, no object of it can be read.
    pub async fn is_served(&self, resource: &Resource) -> Result<bool, kube::Error> {
        let groups = timeout(CALL, self.client.list_api_groups()).await;
        let groups = groups.map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
        let is_asked = |version: &str| version == resource.version;
        let group = groups.groups.into_iter().find(|group| group.name == resource.group);
        Ok(group.is_some_and(|group| group.versions.iter().any(|version| is_asked(&version.version))))
    }

    /// Takes the steps of a plan, one after the other, for as long as the plan is `still` about the object as it is.
    pub async fn carry_out<S, E>(
        &self,
        owner: &Key,
        resource: &Resource,
        version: &str,
        steps: Vec<Vec<Action<S, E>>>,
        still: &(dyn Fn() -> bool + Sync),
        effect: impl Fn(E) -> Result<(), String>,
    ) -> Carried
    where
        S: Serialize,
    {
        let mut carried = Carried { complete: true, ..Carried::default() };
        for (index, step) in steps.into_iter().enumerate() {
            // What comes after a claim or a patch is owed by whoever made it.
            let claimed = index > 0;
            let step = self.not_withheld(owner, resource, step, &mut carried);
            let stop = AtomicBool::new(false);
            let (stop, effect) = (&stop, &effect);
            let mut answers = futures::stream::iter(step)
                .map(|action| async move {
                    let is_effect = matches!(action, Action::Effect(_));
                    if stop.load(Ordering::Relaxed) || !is_effect && !still() {
                        return None;
                    }
                    let (verb, kind, name) = describe(&action, owner, resource);
                    let answer = self.act(owner, resource, version, action, claimed, effect).await;
                    Some((verb, kind, name, answer))
                })
                .buffer_unordered(WINDOW);
            let mut refused_in_a_row = 0;
            while let Some(answer) = answers.next().await {
                let Some((verb, kind, name, answer)) = answer else {
                    carried.complete = false;
                    continue;
                };
                match answer {
                    Ok(Answer::Done) => {
                        refused_in_a_row = 0;
                        if verb != EFFECT {
                            carried.writes += 1;
                            self.accepted(owner, verb, kind, &name);
                            carried.done.push((verb, kind, name));
                        }
                    }
                    Ok(Answer::News) => {
                        if verb == "merge" {
                            self.forget_creation(owner, &name);
                        }
                        carried.complete = false;
                        carried.news = true;
                    }
                    Ok(Answer::NamespaceTerminating) => {
                        carried.complete = false;
                        // The next plan knows.
                        let until = self.clock.now().checked_add(TERMINATING).unwrap_or(Timestamp::MAX);
                        let mut memory = self.memory();
                        let memory = memory.entry(owner.uid.clone()).or_default();
                        carried.refused |= memory.terminating.replace(until).is_none();
                        stop.store(true, Ordering::Relaxed);
                    }
                    Ok(Answer::Refused { reason, message, quota }) => {
                        carried.complete = false;
                        carried.refused = true;
                        // What is wrong with a name, or was refused before, is not news about the others.
                        let is_new = !is_of_the_name(&reason) && !self.was_refused(owner, verb, &name);
                        refused_in_a_row += usize::from(is_new);
                        let quota = quota && kind == PODS.kind;
                        if quota || refused_in_a_row >= STOP_AFTER {
                            stop.store(true, Ordering::Relaxed);
                        }
                        self.refused(owner, verb, &name, reason, &message, quota);
                        let is_pod = verb == "create" && kind == PODS.kind;
                        if is_pod && !quota && is_new && refused_in_a_row == STOP_AFTER {
                            self.pause_creations(owner, &name);
                        }
                        carried.refusals.push((verb, name, message));
                    }
                    Err(error) => {
                        carried.complete = false;
                        stop.store(true, Ordering::Relaxed);
                        carried.failure.get_or_insert(error);
                    }
                }
            }
            if !carried.complete {
                break;
            }
        }
        carried
    }

    /// The actions of a step that were not refused lately: no plan, however written, can make a hot loop.
    fn not_withheld<S, E>(
        &self,
        owner: &Key,
        resource: &Resource,
        step: Vec<Action<S, E>>,
        carried: &mut Carried,
    ) -> Vec<Action<S, E>> {
        let refusals = match self.memory().get(&owner.uid) {
            Some(memory) if !memory.refusals.is_empty() => memory.refusals.clone(),
            _ => return step,
        };
        let creations_until = refusals.creations.as_ref().map(|refusal| refusal.until);
        let now = self.clock.now();
        step.into_iter()
            .filter(|action| {
                let (verb, kind, name) = describe(action, owner, resource);
                let refused = refusals.of(verb, &name).map(|refusal| refusal.until);
                let is_pod = verb == "create" && kind == PODS.kind;
                let until = if is_pod { refused.max(creations_until) } else { refused };
                match until {
                    Some(until) if until > now => {
                        carried.complete = false;
                        carried.withheld_until =
                            Some(carried.withheld_until.map_or(until, |earlier| earlier.min(until)));
                        false
                    }
                    _ => true,
                }
            })
            .collect()
    }

    fn refused(
        &self,
        owner: &Key,
        verb: &'static str,
        name: &str,
        reason: String,
        message: &str,
        quota: bool,
    ) {
        let now = self.clock.now();
        let mut memory = self.memory();
        let memory = memory.entry(owner.uid.clone()).or_default();
        let refusals = &mut memory.refusals;
        // What is no longer tried (another template, fewer pods) must not be remembered for ever.
        refusals.retain(|refusal| {
            refusal.until.checked_add(LONGEST_BACKOFF).is_ok_and(|forgotten| forgotten > now)
        });
        let times = refusals.of(verb, name).map_or(0, |refusal| refusal.times);
        let until = now.checked_add(doubled(FIRST_BACKOFF, times, LONGEST_BACKOFF)).unwrap_or(Timestamp::MAX);
        let message = crate::model::conditions::shorten(message.to_owned(), 512);
        let refusal = Refusal { verb, reason, message, times: times + 1, until };
        if quota {
            refusals.creations = Some(refusal.clone());
        }
        refusals.insert(name, refusal);
    }

    /// Whatever is wrong with one object is wrong with the others too, it seems: a template that is not taken must not be
    /// tried on thousands of nodes in one go.
    fn pause_creations(&self, owner: &Key, name: &str) {
        let now = self.clock.now();
        let mut memory = self.memory();
        let memory = memory.entry(owner.uid.clone()).or_default();
        let until = now.checked_add(doubled(FIRST_STOP, memory.stops, LONGEST_BACKOFF));
        let last = memory.refusals.of("create", name).cloned();
        memory.refusals.creations =
            last.map(|last| Refusal { until: until.unwrap_or(Timestamp::MAX), ..last });
        memory.stops += 1;
    }

    fn was_refused(&self, owner: &Key, verb: &'static str, name: &str) -> bool {
        self.memory().get(&owner.uid).is_some_and(|memory| memory.refusals.of(verb, name).is_some())
    }

    /// What stood in the way of a creation has changed: it is tried again when it is wanted again.
    fn forget_creation(&self, owner: &Key, name: &str) {
        if let Some(memory) = self.memory().get_mut(&owner.uid) {
            memory.refusals.forget("create", name);
        }
    }

    fn accepted(&self, owner: &Key, verb: &'static str, kind: &str, name: &str) {
        if verb == "merge" {
            self.forget_creation(owner, name);
        }
        if let Some(memory) = self.memory().get_mut(&owner.uid) {
            memory.refusals.forget(verb, name);
            if verb == "create" {
                memory.terminating = None;
            }
            // One that was sent before the others were refused tells nothing.
            if verb == "create"
                && kind == PODS.kind
                && memory.refusals.creations.as_ref().is_some_and(|stop| stop.until <= self.clock.now())
            {
                (memory.refusals.creations, memory.stops) = (None, 0);
            }
        }
    }

    async fn act<S: Serialize, E>(
        &self,
        owner: &Key,
        resource: &Resource,
        version: &str,
        action: Action<S, E>,
        claimed: bool,
        effect: impl Fn(E) -> Result<(), String>,
    ) -> Result<Answer, Error> {
        match action {
            Action::Create { resource, namespace, name, body } => {
                let path = format!("{}?fieldManager={FIELD_MANAGER}", resource.path(&namespace));
                let request = request("POST", path, "application/json", body.bytes().to_vec());
                let answer = self
                    .write(
                        owner,
                        Write { verb: "create", resource, namespace: &namespace, name: &name, deletes: None },
                        request,
                    )
                    .await?;
                let Answer::Refused { reason, .. } = &answer else { return Ok(answer) };
                if reason != "AlreadyExists" {
                    return Ok(answer);
                }
                // A retried POST of ours, or a stranger's object?
                match self.read_meta(&resource, &namespace, &name).await? {
                    Some(meta)
                        if resource == PODS
                            && meta.is_controlled_by(owner)
                            && meta.labels.get(KIND_LABEL).is_none() =>
                    {
                        // The watch selects by that label: the cache will never show this pod.
                        Ok(Answer::Refused {
                            reason: LABELS_MISSING.to_owned(),
                            message: format!(
                                "Pod {name} exists already, but has lost its label {KIND_LABEL}"
                            ),
                            quota: false,
                        })
                    }
                    Some(meta) if meta.is_controlled_by(owner) => {
                        self.wrote(owner, resource, &meta);
                        Ok(Answer::News)
                    }
                    Some(meta) => Ok(Answer::Refused {
                        reason: NAME_TAKEN.to_owned(),
                        message: match meta.owner {
                            Some(of) => format!(
                                "{} {name} exists already and belongs to {} {}",
                                resource.kind, of.kind, of.name
                            ),
                            None => format!("{} {name} exists already and belongs to nobody", resource.kind),
                        },
                        quota: false,
                    }),
                    None => Ok(Answer::News),
                }
            }
            Action::Delete { resource, namespace, name, uid, resource_version } => {
                let mut preconditions = json!({ "uid": uid });
                if let Some(version) = resource_version {
                    preconditions["resourceVersion"] = Value::from(&*version);
                }
                let body =
                    json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
                let path = format!("{}/{name}", resource.path(&namespace));
                let request = json_request("DELETE", path, "application/json", &body);
                let answer = self
                    .write(
                        owner,
                        Write {
                            verb: "delete",
                            resource,
                            namespace: &namespace,
                            name: &name,
                            deletes: Some(&uid),
                        },
                        request,
                    )
                    .await?;
                if matches!(answer, Answer::Done) {
                    let key = Key { namespace, name, uid };
                    let mut memory = self.memory();
                    let written = &mut memory.entry(owner.uid.clone()).or_default().written;
                    written.deletes.push((resource, key, Instant::now()));
                }
                Ok(answer)
            }
            Action::Apply { resource, namespace, name, body, force } => {
                let path = format!(
                    "{}/{name}?fieldManager={FIELD_MANAGER}&force={force}&fieldValidation=Strict",
                    resource.path(&namespace)
                );
                let request = json_request("PATCH", path, "application/apply-patch+yaml", &body);
                self.write(
                    owner,
                    Write { verb: "apply", resource, namespace: &namespace, name: &name, deletes: None },
                    request,
                )
                .await
            }
            Action::Patch { resource, namespace, name, operations } => {
                let path = format!("{}/{name}?fieldManager={FIELD_MANAGER}", resource.path(&namespace));
                let request = json_request("PATCH", path, "application/json-patch+json", &operations);
                self.write(
                    owner,
                    Write { verb: "patch", resource, namespace: &namespace, name: &name, deletes: None },
                    request,
                )
                .await
            }
            Action::Merge { resource, namespace, name, body } => {
                let path = format!("{}/{name}?fieldManager={FIELD_MANAGER}", resource.path(&namespace));
                let request = json_request("PATCH", path, "application/merge-patch+json", &body);
                self.write(
                    owner,
                    Write { verb: "merge", resource, namespace: &namespace, name: &name, deletes: None },
                    request,
                )
                .await
            }
            Action::Claim { status, token } => {
                match self.write_status(owner, resource, &status, Some(version)).await {
                    Ok(()) => Ok(Answer::Done),
                    Err(Error::Stale(_)) => Ok(Answer::News),
                    Err(error @ Error::Unanswered { .. }) => {
                        // Did it commit? The object itself knows.
                        let ours =
                            self.read::<Claimed>(resource, &owner.namespace, &owner.name).await?.is_some_and(
                                |claimed| claimed.status.claim.is_some_and(|claim| claim.token == token),
                            );
                        if ours { Ok(Answer::Done) } else { Err(error) }
                    }
                    Err(error) => Err(error),
                }
            }
            Action::Effect(own) => {
                // What was claimed is carried through, whoever leads by now.
                if !claimed && self.gate.deadline().is_none() {
                    return Err(Error::NotLeading);
                }
                effect(own).map(|()| Answer::Done).map_err(Error::Effect)
            }
        }
    }

    /// Sends one write, within the window, for as long as the gate is open and the call limit lasts.
    async fn write(
        &self,
        owner: &Key,
        write: Write<'_>,
        request: Result<Request<Vec<u8>>, http::Error>,
    ) -> Result<Answer, Error> {
        let Write { verb, resource, namespace, name, deletes } = write;
        let request = request.map_err(|error| Error::Read(kube::Error::HttpError(error)))?;
        let Ok(_permit) = self.window.acquire().await else { return Err(Error::NotLeading) };
        let term = self.gate.term().ok_or(Error::NotLeading)?;
        // Noted before it is sent: whatever becomes of this task, the next plan knows that something may have happened.
        let place: Place = (resource, namespace.clone(), name.to_owned());
        self.unclear(owner, |unclear| unclear.insert(place.clone(), deletes.cloned()));
        // A lease that is renewed meanwhile gives it more time: a webhook of somebody else may need it.
        let mut is_said = false;
        let sorted = match ask_in_term::<MetaOnly>(&self.client, &self.gate, term, CALL, request).await {
            None => Sorted::Unclear("the lease was lost, or not renewed in time".to_owned()),
            Some(Ok(Ok(only))) => {
                if verb != "delete" {
                    self.wrote(owner, resource, &Meta::from(only.metadata));
                }
                Sorted::Answer(Answer::Done)
            }
            Some(Ok(Err(kube::Error::Api(status)))) => {
                // As where a webhook fails. What its store says goes without a reason: such a server is not asked for more.
                is_said = status.code == 500 && status.reason == "InternalError";
                sort(verb, *status)
            }
            // It was not sent.
            Some(Ok(Err(kube::Error::Service(error)))) if error.is::<Resting>() => {
                Sorted::Later(error.to_string())
            }
            Some(Ok(Err(error))) => Sorted::Unclear(brief(&error)),
            Some(Err(_elapsed)) => Sorted::Unclear("no answer in time".to_owned()),
        };
        if !matches!(sorted, Sorted::Unclear(_)) {
            self.unclear(owner, |unclear| unclear.remove(&place));
        }
        match sorted {
            Sorted::Answer(answer) => Ok(answer),
            Sorted::Later(error) | Sorted::Unclear(error) => {
                Err(Error::Unanswered { verb, object: format!("{} {name}", resource.kind), error, is_said })
            }
        }
    }

    fn unclear<T>(&self, owner: &Key, change: impl FnOnce(&mut HashMap<Place, Option<Arc<str>>>) -> T) -> T {
        change(&mut self.memory().entry(owner.uid.clone()).or_default().written.unclear)
    }

    /// When a status of `owner` was last written.
    pub fn status_written(&self, owner: &Key) -> Option<Instant> {
        self.memory().get(&owner.uid).and_then(|memory| memory.status_written)
    }

    /// Applies the whole status, guarded by the resourceVersion where `version` is given. The UID guards nothing: the API server
    /// does not read it where the status of a custom resource is written.
    pub async fn write_status<S: Serialize>(
        &self,
        owner: &Key,
        resource: &Resource,
        status: &S,
        version: Option<&str>,
    ) -> Result<(), Error> {
        let mut metadata =
            json!({ "name": &*owner.name, "namespace": &*owner.namespace, "uid": &*owner.uid });
        if let Some(version) = version {
            metadata["resourceVersion"] = Value::from(version);
        }
        let body = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": metadata,
            "status": status,
        });
        let path = format!(
            "{}/{}/status?fieldManager={FIELD_MANAGER}&force=true",
            resource.path(&owner.namespace),
            escape(&owner.name)
        );
        let request = json_request("PATCH", path, "application/apply-patch+yaml", &body);
        let object = format!("the status of {} {owner}", resource.kind);
        let mut answer = self
            .write(
                owner,
                Write {
                    verb: "update",
                    resource: *resource,
                    namespace: &owner.namespace,
                    name: &owner.name,
                    deletes: None,
                },
                request,
            )
            .await?;
        if matches!(&answer, Answer::Refused { reason, .. } if reason == UNTYPED) {
            let request = Self::untyped_status(owner, resource, status, version);
            answer = self
                .write(
                    owner,
                    Write {
                        verb: "patch",
                        resource: *resource,
                        namespace: &owner.namespace,
                        name: &owner.name,
                        deletes: None,
                    },
                    request,
                )
                .await?;
        }
        match answer {
            Answer::Done => {
                self.memory().entry(owner.uid.clone()).or_default().status_written = Some(Instant::now());
                Ok(())
            }
            Answer::News | Answer::NamespaceTerminating => {
                // The cache is behind, perhaps for long: the next plan waits for what the server has, or for the end of the
                // owner. Until then it would make the same again for somebody who may be gone.
                let place = (*resource, owner.namespace.clone(), owner.name.to_string());
                self.unclear(owner, |unclear| unclear.insert(place, Some(owner.uid.clone())));
                Err(Error::Stale(object))
            }
            Answer::Refused { message, .. } => Err(Error::Refused { object, message }),
        }
    }

    /// The status by JSON patch, for an object that was stored with other types than the schema's: server-side
    /// apply, of whatever part, cannot take such an object.
    fn untyped_status<S: Serialize>(
        owner: &Key,
        resource: &Resource,
        status: &S,
        version: Option<&str>,
    ) -> Result<Request<Vec<u8>>, http::Error> {
        let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": &*owner.uid })];
        if let Some(version) = version {
            operations.push(json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
        }
        operations.push(json!({ "op": "add", "path": "/status", "value": status }));
        let path =
            format!("{}/{}/status?fieldManager={FIELD_MANAGER}", resource.path(&owner.namespace), owner.name);
        json_request("PATCH", path, "application/json-patch+json", &operations.into())
    }

    /// The shortest time between two status writes of one object while it progresses.
    pub const STATUS_PACE: Duration = Duration::from_secs(1);
}

#[derive(Deserialize)]
struct Claimed {
    #[serde(default)]
    status: ClaimedStatus,
}

#[derive(Deserialize, Default)]
struct ClaimedStatus {
    claim: Option<ClaimedToken>,
}

#[derive(Deserialize)]
struct ClaimedToken {
    #[serde(default)]
    token: String,
}

/// What an answer of the API server means for the plan.
enum Sorted {
    /// It was carried out, or was not, and that is certain.
    Answer(Answer),
    /// It was not carried out, and should be tried again later.
    Later(String),
    /// It may have been carried out.
    Unclear(String),
}

/// Sorts a failure that the API server states.
fn sort(verb: &str, status: kube::core::Status) -> Sorted {
    let terminating = is_namespace_terminating(&status);
    let kube::core::Status { code, reason, message, .. } = status;
    let refused = |reason: String, message: String| {
        let quota = message.contains("exceeded quota");
        Sorted::Answer(Answer::Refused { reason, message, quota })
    };
    match code {
        404 if verb != "create" => Sorted::Answer(Answer::News),
        // The API server's own words, and not those of a proxy that quotes the path.
        404 if reason == "NotFound" && message.starts_with("namespaces \"") => {
            Sorted::Answer(Answer::NamespaceTerminating)
        }
        409 if reason == "AlreadyExists" => refused(reason, message),
        // Fields of other managers, and we did not force; any other conflict is a changed object.
        409 if verb == "apply" && message.starts_with("Apply failed") => refused(reason, message),
        409 => Sorted::Answer(Answer::News),
        // A `test` of the patch failed: the object is not as the plan saw it.
        422 if verb == "patch" && message.starts_with("the server rejected our request") => {
            Sorted::Answer(Answer::News)
        }
        403 if terminating => Sorted::Answer(Answer::NamespaceTerminating),
        400 | 403 | 404 | 413 | 422 => refused(reason, message),
        500 if message.contains("failed to create typed") => refused(UNTYPED.to_owned(), message),
        // Any JSON is a Status to kube, without a code where it is none: the words of whoever stands between.
        0 | 500..=599 => Sorted::Unclear(message),
        _ => Sorted::Later(message),
    }
}

fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
        || status.message.contains("because it is being terminated")
}

fn describe<S, E>(
    action: &Action<S, E>,
    owner: &Key,
    own: &Resource,
) -> (&'static str, &'static str, String) {
    match action {
        Action::Create { resource, name, .. } => ("create", resource.kind, name.clone()),
        Action::Delete { resource, name, .. } => ("delete", resource.kind, name.to_string()),
        Action::Apply { resource, name, .. } => ("apply", resource.kind, name.clone()),
        Action::Patch { resource, name, .. } => ("patch", resource.kind, name.to_string()),
        Action::Merge { resource, name, .. } => ("merge", resource.kind, name.to_string()),
        Action::Claim { .. } => ("claim", own.kind, owner.name.to_string()),
        Action::Effect(_) => (EFFECT, own.kind, owner.name.to_string()),
    }
}

fn json_request(
    method: &str,
    path: String,
    content_type: &str,
    body: &Value,
) -> Result<Request<Vec<u8>>, http::Error> {
    request(method, path, content_type, body.to_string().into_bytes())
}

fn request(
    method: &str,
    path: String,
    content_type: &str,
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, http::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .header(http::header::ACCEPT, "application/json")
        .body(body)
}
