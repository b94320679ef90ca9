//! One watch per type for the whole process, and the cache that it keeps.
//!
//! Differences from a reflector of kube-runtime, and why:
//! - objects are decoded one by one from the line they came in, so a poisoned object concerns itself alone;
//! - deletions are delivered, with the last known object;
//! - a relist marks and sweeps: the cache is never empty in between, and what did not change wakes nobody;
//! - the position of the watch is known (events and bookmarks), which is what reading one's own writes needs;
//! - pods and nodes come in protobuf, which costs the API server less ([`crate::model::protobuf`]);
//! - objects are indexed by the UID of their controller.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use axum::body::Body;
use futures::future::join_all;
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, TryStreamExt as _};
use http::{HeaderValue, Request, Response, header};
use kube::Client;
use kube::core::Status;
use kube_runtime::utils::Backoff as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::log_repeated;
use crate::model::conditions::shorten;
use crate::model::object::{Key, Meta, MetaOnly, Object, Owner};
use crate::model::progress::Progress;
use crate::model::protobuf::{self, Malformed};
use crate::model::resource::{Resource, escape};
use crate::server::client::{CALL, brief, brief_causes};
use crate::server::connectivity::Link;

/// A page of a list where the server cannot stream it: small, because the decoded page is what memory peaks by.
const PAGE: usize = 100;
/// Bytes of an error that are kept of an object that cannot be decoded.
const LONGEST_ERROR: usize = 512;
/// Bytes of an answer that is an error which are read.
const LONGEST_REFUSAL: usize = 64 * 1024;
/// Bytes of a buffer that is kept for the next event.
const BUFFER: usize = 64 * 1024;
/// Bytes that an event may have: many times what etcd takes.
const LARGEST_EVENT: usize = 32 * 1024 * 1024;
/// How long the server may keep one watch open; it is then continued where it was. client-go takes 5 to 10 minutes.
const WATCH: Duration = Duration::from_secs(590);
/// A watch without event or bookmark for this long is taken for dead. Bookmarks come about once a minute.
pub const SILENCE: Duration = Duration::from_secs(150);
/// How long a watch must last until what went wrong before it is over.
const LASTED: Duration = Duration::from_mins(2);
/// How long nothing must have worked until that it works again is news for the others: a connection that is cut is none.
const OUTAGE: Duration = Duration::from_secs(3);
/// How often an absent custom resource definition is asked for again.
const ABSENT: Duration = Duration::from_secs(2);
/// The same for one that may stay absent.
const PATIENTLY: Duration = Duration::from_secs(75);
/// The longest wait before a server that does not answer at all is asked again: it costs nobody anything.
const GONE: Duration = Duration::from_secs(1);

/// What happened to an object.
#[derive(Debug)]
pub enum Change<'a, T> {
    /// It is new or differs from the old one in something that is read.
    Applied {
        /// As it is now.
        new: &'a Arc<T>,
        /// As it was.
        old: Option<&'a Arc<T>>,
        /// Whether the watch has shown it come: it was not there when the list was made.
        came: bool,
    },
    /// It is gone, or has left the selection.
    Deleted {
        /// As it was last seen.
        old: &'a Arc<T>,
    },
    /// It cannot be decoded. Its previous version has left the cache.
    Undecodable {
        /// Which object.
        key: &'a Key,
        /// Why.
        error: &'a str,
    },
    /// It could not be decoded, and is gone.
    Vanished {
        /// Which object.
        key: &'a Key,
    },
}

impl<T: Object> Change<'_, T> {
    /// The object that it concerns: as it is now, else as it was.
    pub fn object(&self) -> Option<&Arc<T>> {
        match self {
            Self::Applied { new, .. } => Some(new),
            Self::Deleted { old } => Some(old),
            Self::Undecodable { .. } | Self::Vanished { .. } => None,
        }
    }
}

type Subscriber<T> = Arc<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// The cache of one type of object, and the task that keeps it. Cheap to clone.
///
/// It has one part for each namespace that the process watches, or one for all of them: each has a watch of its own.
pub struct Informer<T> {
    parts: Arc<[Part<T>]>,
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

/// What one watch keeps: the objects of a namespace, or all.
pub struct Part<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<T> {
    resource: Resource,
    namespace: String,
    selector: Option<&'static str>,
    cache: RwLock<Cache<T>>,
    subscribers: Mutex<Vec<Subscriber<T>>>,
    undecodable: Mutex<BTreeMap<Key, String>>,
    progress: watch::Sender<Progress>,
    health: watch::Sender<Health>,
    streaming: AtomicBool,
    /// Whether protobuf is asked for where it can be read.
    protobuf: AtomicBool,
    /// Since when a list is asked for.
    relist: watch::Sender<Option<Instant>>,
    patient: AtomicBool,
}

/// Whether a cache can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its first list is not complete.
    Unsynced,
    /// The type does not exist in this cluster (yet).
    Absent {
        /// Since when that is known.
        since: Instant,
    },
    /// It follows its watch.
    Synced {
        /// When the watch last said anything.
        heard: Instant,
    },
}

/// Objects of one controller, by name.
type Siblings<T> = BTreeMap<Arc<str>, Arc<T>>;

struct Cache<T> {
    objects: BTreeMap<(Arc<str>, Arc<str>), Arc<T>>,
    /// By the namespace that they are in and the UID of their controller, then by name.
    owned: HashMap<(Arc<str>, Arc<str>), Siblings<T>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), owned: HashMap::new() }
    }
}

impl<T: Object> Cache<T> {
    fn insert(&mut self, key: &Key, object: Arc<T>) -> Option<Arc<T>> {
        let old = self.remove(key);
        if let Some(owner) = object.owner() {
            let family = (key.namespace.clone(), owner.uid.clone());
            self.owned.entry(family).or_default().insert(key.name.clone(), object.clone());
        }
        self.objects.insert((key.namespace.clone(), key.name.clone()), object);
        old
    }

    /// Any object of this owner in this namespace.
    fn sibling(&self, namespace: &Arc<str>, owner: &Owner) -> Option<Arc<T>> {
        self.owned.get(&(namespace.clone(), owner.uid.clone()))?.values().next().cloned()
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        let old = self.objects.remove(&(key.namespace.clone(), key.name.clone()))?;
        if let Some(owner) = old.owner() {
            let family = (key.namespace.clone(), owner.uid.clone());
            if let Some(siblings) = self.owned.get_mut(&family) {
                siblings.remove(&key.name);
                if siblings.is_empty() {
                    self.owned.remove(&family);
                }
            }
        }
        Some(old)
    }
}

/// Why a list or watch ended.
#[derive(Debug, thiserror::Error)]
enum Interrupted {
    #[error("{}", brief(.0))]
    Kube(#[from] kube::Error),
    #[error("{}", brief_causes(.0))]
    Read(#[from] std::io::Error),
    #[error("the answer is not the JSON that was expected: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Protobuf(#[from] Malformed),
    #[error("the server ended the watch: {} {}", .0.reason, .0.message)]
    Watch(Box<Status>),
    #[error("the server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
}

/// Tells of one of so many interruptions that are nothing unusual, ever more rarely.
fn tell(times: u64, resource: Resource, interrupted: &Interrupted, next: &str) {
    let (resource, reason) = (resource.plural, interrupted);
    log_repeated!(info, times, resource, %reason, "{next}");
}

impl Interrupted {
    /// Whether there was no answer of the API server at all: none, or that of a proxy before it.
    fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Kube(kube::Error::Service(_) | kube::Error::HyperError(_))
                | Self::Read(_)
                | Self::Silent(_)
        ) || matches!(self.code(), Some(502..=504))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) | Self::Watch(status) => Some(status.code),
            _ => None,
        }
    }

    /// Whether JSON may be answered better: what came in protobuf cannot be read, or came as something else, or the server, or
    /// a proxy, does not want to be asked for it.
    fn is_misunderstanding(&self) -> bool {
        matches!(self, Self::Protobuf(_) | Self::Json(_)) || self.code() == Some(406)
    }

    /// The version that was asked for is too old (or too new, after a restore): only a fresh list helps.
    fn needs_list(&self) -> bool {
        self.code() == Some(410)
            || matches!(self, Self::Watch(status) if status.reason == "Expired" || status.reason == "Gone")
            || matches!(self, Self::Kube(kube::Error::Api(status)) if status.message.contains("Too large resource version"))
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    type_: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The resourceVersions that the server has shown during one list.
type Seen = std::collections::HashSet<(Arc<str>, Arc<str>)>;

impl<T: Object> Informer<T> {
    /// A cache of `resource` in `namespaces` (all where there are none), of the objects that `selector` selects.
    pub fn new(resource: Resource, namespaces: &[String], selector: Option<&'static str>) -> Self {
        let everywhere = [String::new()];
        let namespaces = if namespaces.is_empty() || !resource.namespaced { &everywhere } else { namespaces };
        let parts = namespaces.iter().map(|namespace| Part::new(resource, namespace, selector));
        Self { parts: parts.collect() }
    }

    /// Asks rarely for a type that is absent.
    #[must_use]
    pub fn patient(self) -> Self {
        for part in &*self.parts {
            part.inner.patient.store(true, Ordering::Relaxed);
        }
        self
    }

    /// What it caches.
    pub fn resource(&self) -> Resource {
        self.parts[0].inner.resource
    }

    /// Its parts.
    pub fn parts(&self) -> &[Part<T>] {
        &self.parts
    }

    /// Which of its parts objects of this namespace are in, if they are cached at all.
    pub fn part_of(&self, namespace: &str) -> Option<usize> {
        self.parts.iter().position(|part| part.covers(namespace))
    }

    /// The highest resourceVersion that the watch or list of the objects of this namespace has shown; 0 before the first.
    pub fn position(&self, namespace: &str) -> u64 {
        self.part(namespace).map_or(0, |part| part.progress().borrow().position)
    }

    /// The part that objects of this namespace are in, if they are cached at all.
    fn part(&self, namespace: &str) -> Option<&Part<T>> {
        self.parts.iter().find(|part| part.covers(namespace))
    }

    /// Calls `subscriber` for every change, in order, from the watch's own task: it must be quick.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        let subscriber: Subscriber<T> = Arc::new(subscriber);
        for part in &*self.parts {
            lock(&part.inner.subscribers).push(subscriber.clone());
        }
    }

    /// The cached object of this key; None where it is gone or another object has its name.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.find(&key.namespace, &key.name).filter(|object| object.key().uid == key.uid)
    }

    /// The cached object of this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let place = (Arc::from(namespace), Arc::from(name));
        self.part(namespace)?.read().objects.get(&place).cloned()
    }

    /// The objects in the owner's namespace whose controller is `owner`, by name. An owner reference that crosses
    /// namespaces is forged.
    pub fn owned_by(&self, owner: &Key) -> Vec<Arc<T>> {
        let Some(part) = self.part(&owner.namespace) else { return Vec::new() };
        let cache = part.read();
        let family = (owner.namespace.clone(), owner.uid.clone());
        cache.owned.get(&family).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// All cached objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.parts.iter().flat_map(Part::all).collect()
    }

    /// The objects that cannot be decoded now, and why.
    pub fn undecodable(&self) -> Vec<(Key, String)> {
        self.parts.iter().flat_map(Part::undecodable).collect()
    }

    /// The names in a namespace that begin so, in order, of objects that are `wanted`.
    pub fn names(&self, namespace: &str, prefix: &str, wanted: impl Fn(&T) -> bool) -> Vec<Arc<str>> {
        let Some(part) = self.part(namespace) else { return Vec::new() };
        let from: (Arc<str>, Arc<str>) = (namespace.into(), prefix.into());
        let cache = part.read();
        let begin_so = |(of, name): &(Arc<str>, Arc<str>)| **of == *namespace && name.starts_with(prefix);
        let named = cache.objects.range(from..).take_while(|(place, _)| begin_so(place));
        named.filter(|(_, object)| wanted(object)).map(|((_, name), _)| name.clone()).collect()
    }

    /// Whether the cache can be relied on: as far as the worst of its parts can.
    pub fn health(&self) -> Health {
        let worse = |one: Health, other: Health| match (one, other) {
            (Health::Unsynced, _) | (_, Health::Unsynced) => Health::Unsynced,
            (Health::Absent { since }, _) | (_, Health::Absent { since }) => Health::Absent { since },
            (Health::Synced { heard: one }, Health::Synced { heard: other }) => {
                Health::Synced { heard: one.min(other) }
            }
        };
        let parts = self.parts.iter().map(|part| part.health().borrow().clone());
        parts.reduce(worse).unwrap_or(Health::Unsynced)
    }

    /// Wakes whenever one of its parts can be relied on more or less than before.
    pub fn watch_health(&self) -> Vec<watch::Receiver<Health>> {
        self.parts.iter().map(Part::health).collect()
    }

    /// Lists and watches for ever. Ends only with the future that it is.
    pub async fn run(self, client: Client, link: Link) {
        let parts = self.parts.iter().cloned();
        join_all(parts.map(|part| part.run(client.clone(), link.clone()))).await;
    }
}

impl<T: Object> Part<T> {
    fn new(resource: Resource, namespace: &str, selector: Option<&'static str>) -> Self {
        Self {
            inner: Arc::new(Inner {
                resource,
                namespace: namespace.to_owned(),
                selector,
                cache: RwLock::default(),
                subscribers: Mutex::default(),
                undecodable: Mutex::default(),
                progress: watch::Sender::new(Progress::default()),
                health: watch::Sender::new(Health::Unsynced),
                streaming: AtomicBool::new(true),
                protobuf: AtomicBool::new(true),
                relist: watch::channel(None).0,
                patient: AtomicBool::new(false),
            }),
        }
    }

    /// What it caches.
    pub fn resource(&self) -> Resource {
        self.inner.resource
    }

    /// Whether its type may well be absent.
    pub fn is_patient(&self) -> bool {
        self.inner.patient.load(Ordering::Relaxed)
    }

    /// The namespace that it is narrowed to; empty where it is not.
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// Whether objects of this namespace are in it.
    pub fn covers(&self, namespace: &str) -> bool {
        self.inner.namespace.is_empty() || self.inner.namespace == namespace
    }

    /// What it caches, in a word that another process has for the same: the type, and the namespace if it is narrowed to
    /// one.
    pub fn scope(&self) -> String {
        let (namespace, name) = (&self.inner.namespace, self.inner.resource.crd_name());
        if namespace.is_empty() { name } else { format!("{namespace}/{name}") }
    }

    /// How many objects it holds.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// All objects that it holds, by namespace and name.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().objects.values().cloned().collect()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects that cannot be decoded now, and why.
    pub fn undecodable(&self) -> Vec<(Key, String)> {
        lock(&self.inner.undecodable).iter().map(|(key, error)| (key.clone(), error.clone())).collect()
    }

    /// How far it has come; changes wake the receiver.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress.subscribe()
    }

    /// Asks for a list that is begun at `since` or later, if there is none yet: [`Progress::listed`] tells when it is
    /// complete.
    pub fn relist(&self, since: Instant) {
        self.inner.relist.send_modify(|asked| *asked = (*asked).max(Some(since)));
    }

    /// Whether it can be relied on; changes wake the receiver.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.inner.health.subscribe()
    }

    /// Whether an object that was deleted is gone from it, or shown as terminating.
    pub fn shows_deletion(&self, key: &Key) -> bool {
        let place = (key.namespace.clone(), key.name.clone());
        self.read()
            .objects
            .get(&place)
            .is_none_or(|object| object.key().uid != key.uid || object.terminating())
    }

    fn read(&self) -> RwLockReadGuard<'_, Cache<T>> {
        self.inner.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: &Change<'_, T>) {
        for subscriber in lock(&self.inner.subscribers).iter() {
            subscriber(change);
        }
    }

    /// Takes in one object as the server sent it; whether it `came` is for the subscribers.
    fn apply(&self, raw: &RawValue, came: bool) -> Result<(Key, String), Interrupted> {
        // One object over which somebody stumbles must not take the cache of all others along, and the process with it.
        let taken = catch_unwind(AssertUnwindSafe(|| self.take_in(raw, came)));
        match taken.unwrap_or_else(|_| Err("it led to a panic, of which the log has more".to_owned())) {
            Ok(taken) => Ok(taken),
            Err(error) => self.set_aside(raw, error),
        }
    }

    /// Takes in one object that can be decoded.
    fn take_in(&self, raw: &RawValue, came: bool) -> Result<(Key, String), String> {
        let mut object = serde_json::from_str::<T>(raw.get()).map_err(|error| error.to_string())?;
        object.slim();
        let namespace = object.key().namespace;
        if let Some(sibling) = object.owner().and_then(|owner| self.read().sibling(&namespace, owner)) {
            object.share(&sibling);
        }
        let key = object.key();
        let version = object.resource_version().to_owned();
        let vanished = self.decodes(&key).into_iter().find(|before| before.uid != key.uid);
        if let Some(before) = &vanished {
            self.tell(&Change::Vanished { key: before });
        }
        let object = Arc::new(object);
        let old = self.write().insert(&key, object.clone());
        match &old {
            // The name lives on with another object: the old one is gone for its owner.
            Some(before) if before.key().uid != key.uid => {
                self.tell(&Change::Deleted { old: before });
                self.tell(&Change::Applied { new: &object, old: None, came });
            }
            Some(before) if object.same(before) => {}
            _ => self.tell(&Change::Applied { new: &object, old: old.as_ref(), came }),
        }
        Ok((key, version))
    }

    /// Takes note of an object that cannot be decoded.
    fn set_aside(&self, raw: &RawValue, error: String) -> Result<(Key, String), Interrupted> {
        // Not even metadata: this answer is broken, not this object.
        let meta = Meta::from(serde_json::from_str::<MetaOnly>(raw.get())?.metadata);
        let key = meta.key();
        let resource = self.inner.resource;
        // A node or pod that cannot be read is still there: what was last known of it stands.
        if resource.custom {
            let old = self.write().remove(&key);
            if let Some(before) = old.filter(|before| before.key().uid != key.uid) {
                self.tell(&Change::Deleted { old: &before });
            }
        }
        let known = lock(&self.inner.undecodable).get(&key).cloned();
        if let Some(before) = self.decodes(&key).filter(|before| before.uid != key.uid) {
            self.tell(&Change::Vanished { key: &before });
        }
        // It may quote a value in full, and it is kept for as long as the object is.
        let error = shorten(error, LONGEST_ERROR);
        lock(&self.inner.undecodable).insert(key.clone(), error.clone());
        if known.as_ref() != Some(&error) {
            let resource = resource.plural;
            tracing::warn!(resource, object = %key, error, "skipped an object that cannot be decoded");
        }
        self.tell(&Change::Undecodable { key: &key, error: &error });
        Ok((key, meta.resource_version.into()))
    }

    fn delete(&self, key: &Key) {
        let vanished = self.decodes(key);
        let old = self.write().remove(key);
        if let Some(old) = &old {
            self.tell(&Change::Deleted { old });
        } else if let Some(key) = &vanished {
            self.tell(&Change::Vanished { key });
        }
    }

    /// What has this name can be decoded, or is gone. Returns what could not be until now.
    fn decodes(&self, key: &Key) -> Option<Key> {
        let mut undecodable = lock(&self.inner.undecodable);
        let known =
            undecodable.keys().find(|known| (&known.namespace, &known.name) == (&key.namespace, &key.name));
        let known = known.cloned()?;
        undecodable.remove(&known);
        Some(known)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Cache<T>> {
        self.inner.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, resource_version: &str, happened: bool) {
        if let Ok(version) = resource_version.parse::<u64>() {
            self.inner.progress.send_if_modified(|progress| {
                let ahead = version > progress.position;
                progress.position = progress.position.max(version);
                if happened {
                    progress.seen = progress.seen.max(version);
                }
                ahead
            });
        }
    }

    /// Ends a list: what it did not show is gone, and the cache is complete as of `version`.
    fn sweep(&self, seen: &Seen, version: &str, began: Instant) {
        let mut gone: Vec<Key> = self
            .read()
            .objects
            .iter()
            .filter(|(name, _)| !seen.contains(*name))
            .map(|(_, object)| object.key())
            .collect();
        let undecodable = self.undecodable().into_iter().map(|(key, _)| key);
        gone.extend(undecodable.filter(|key| !seen.contains(&(key.namespace.clone(), key.name.clone()))));
        for key in &gone {
            self.delete(key);
        }
        let version = version.parse::<u64>().ok().filter(|version| *version > 0);
        self.inner.progress.send_modify(|progress| {
            // A list is of what is now: one that is behind is of a store that was restored, whose numbers begin anew.
            progress.position = version.unwrap_or(progress.position);
            // What a list does not show has gone at some time before it.
            progress.seen = version.unwrap_or(progress.seen);
            progress.listed = Some(began);
        });
        self.heard();
    }

    fn heard(&self) {
        self.inner.health.send_replace(Health::Synced { heard: Instant::now() });
    }

    /// Lists and watches for ever.
    async fn run(self, client: Client, link: Link) {
        let resource = self.inner.resource;
        let mut backoff = kube_runtime::watcher::DefaultBackoff::default();
        let mut position: Option<String> = None;
        let (mut doubts, mut returns) = (link.doubts(), link.returns());
        let mut relists = self.inner.relist.subscribe();
        // Since when nothing works.
        let mut failing: Option<Instant> = None;
        // Interruptions since a watch has last lasted.
        let mut interruptions: u64 = 0;
        let is_back = |failing: &mut Option<Instant>| {
            if failing.take().is_some_and(|since| since.elapsed() >= OUTAGE) {
                link.is_back();
            }
        };
        loop {
            let began = Instant::now();
            let followed = position.is_some();
            let ended = match position.take() {
                None => match self.list(&client).await {
                    Ok(listed) => {
                        let objects = self.len();
                        tracing::debug!(resource = resource.plural, objects, version = listed, "listed");
                        position = Some(listed);
                        Ok(())
                    }
                    Err(interrupted) => Err(interrupted),
                },
                Some(from) => {
                    let mut at = from;
                    let listed = self.inner.progress.borrow().listed;
                    let mut relist = self.inner.relist.subscribe();
                    doubts.mark_unchanged();
                    let ended = tokio::select! {
                        ended = self.follow(&client, &mut at, || is_back(&mut failing)) => ended,
                        _ = relist.wait_for(|since| *since > listed) => continue,
                        // It may be connected to nobody: it goes on where it was, by another connection.
                        _ = doubts.changed() => Ok(()),
                    };
                    if !ended.as_ref().is_err_and(Interrupted::needs_list) {
                        position = Some(at);
                    }
                    ended
                }
            };
            if ended.as_ref().is_err_and(Interrupted::is_misunderstanding) {
                self.inner.protobuf.store(false, Ordering::Relaxed);
            }
            if followed && began.elapsed() >= LASTED {
                backoff.reset();
                interruptions = 0;
            }
            match ended {
                Ok(()) => {
                    if !followed {
                        is_back(&mut failing);
                    }
                    // A server, or a proxy, that ends watches at once must not be asked in a circle.
                    if followed && began.elapsed() < Duration::from_secs(1) {
                        tokio::time::sleep(backoff.next().unwrap_or(ABSENT).min(ABSENT)).await;
                    } else if began.elapsed() >= Duration::from_secs(5) {
                        backoff.reset();
                    }
                }
                Err(interrupted) if resource.custom && interrupted.code() == Some(404) => {
                    position = None;
                    self.absent();
                    let patient = self.is_patient();
                    tokio::time::sleep(if patient { PATIENTLY } else { ABSENT }).await;
                }
                Err(interrupted) if interrupted.needs_list() => {
                    interruptions += 1;
                    tell(interruptions, resource, &interrupted, "lists again");
                    let pause = backoff.next().unwrap_or(ABSENT).min(Duration::from_secs(1));
                    tokio::time::sleep(pause).await;
                }
                Err(interrupted) if interrupted.code() == Some(429) => {
                    // Just defined types answer this for a moment; later it means that the server is busy.
                    let pause = backoff.next().unwrap_or(ABSENT).min(ABSENT);
                    interruptions += 1;
                    tell(interruptions, resource, &interrupted, "asks again later");
                    tokio::time::sleep(pause).await;
                }
                Err(interrupted) => {
                    // Who was away for long has refused nothing: the first refusal does not wait for long.
                    if interrupted.is_silence() {
                        backoff.reset();
                    }
                    let pause = backoff.next().unwrap_or(Duration::from_secs(30));
                    let pause = if interrupted.is_silence() { pause.min(GONE) } else { pause };
                    failing.get_or_insert_with(Instant::now);
                    interruptions += 1;
                    let again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                    let (resource, error) = (resource.plural, interrupted.to_string());
                    log_repeated!(
                        warn,
                        interruptions,
                        resource,
                        error,
                        again_in_ms,
                        "a list or watch was interrupted"
                    );
                    returns.mark_unchanged();
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = returns.changed() => {}
                        // Who has just come to lead waits for it.
                        _ = relists.changed() => {}
                    }
                }
            }
        }
    }

    /// The type is not there. Its objects are kept until a list says otherwise: nobody plans for them meanwhile, and
    /// one wrong answer of a proxy must not look like their deletion.
    fn absent(&self) {
        let newly = self.inner.health.send_if_modified(|health| {
            let newly = !matches!(health, Health::Absent { .. });
            if newly {
                *health = Health::Absent { since: Instant::now() };
            }
            newly
        });
        if newly {
            let crd = self.inner.resource.crd_name();
            tracing::warn!(crd, "the cluster does not know this type: waiting for its definition");
        }
    }

    /// Fills the cache anew, by a streaming list where the server has it, else by pages.
    async fn list(&self, client: &Client) -> Result<String, Interrupted> {
        if self.inner.streaming.load(Ordering::Relaxed) {
            match self.list_by_stream(client).await {
                // Servers without streaming lists refuse the parameters (422, or 400 from older ones).
                Err(refused) if matches!(refused.code(), Some(400 | 422)) => {
                    self.inner.streaming.store(false, Ordering::Relaxed);
                }
                answered => return answered,
            }
        }
        self.list_by_pages(client).await
    }

    async fn list_by_pages(&self, client: &Client) -> Result<String, Interrupted> {
        let began = Instant::now();
        let mut seen = Seen::new();
        let mut next = String::new();
        loop {
            let request = self.request(&format!("limit={PAGE}{next}"))?;
            let text = timeout(CALL, client.request_text(request))
                .await
                .map_err(|_elapsed| Interrupted::Silent(CALL))??;
            let page: Page<'_> = serde_json::from_str(&text)?;
            for raw in page.items {
                let (key, _) = self.apply(raw, false)?;
                seen.insert((key.namespace, key.name));
            }
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => next = format!("&continue={}", escape(&token)),
                _ => {
                    self.sweep(&seen, &page.metadata.resource_version, began);
                    return Ok(page.metadata.resource_version);
                }
            }
        }
    }

    async fn list_by_stream(&self, client: &Client) -> Result<String, Interrupted> {
        let began = Instant::now();
        let mut seen = Seen::new();
        let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&timeoutSeconds=60";
        let mut events = self.open(client, query).await?;
        let mut line = Vec::new();
        while events.next(&mut line, CALL).await? {
            let event: Line<'_> = serde_json::from_slice(&line)?;
            match &*event.type_ {
                "BOOKMARK" => {
                    let meta: MetaOnly = serde_json::from_str(event.object.get())?;
                    let meta = Meta::from(meta.metadata);
                    if meta.annotations.get("k8s.io/initial-events-end") == Some("true") {
                        self.sweep(&seen, &meta.resource_version, began);
                        return Ok(meta.resource_version.into());
                    }
                }
                "ERROR" => return Err(Interrupted::Watch(serde_json::from_str(event.object.get())?)),
                "DELETED" => {
                    let meta: MetaOnly = serde_json::from_str(event.object.get())?;
                    let key = Meta::from(meta.metadata).key();
                    seen.remove(&(key.namespace.clone(), key.name.clone()));
                    self.delete(&key);
                }
                _ => {
                    let (key, _) = self.apply(event.object, false)?;
                    seen.insert((key.namespace, key.name));
                }
            }
        }
        Err(Interrupted::Read(std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Follows one watch from `position` until the server ends it, moving `position` along.
    async fn follow(
        &self,
        client: &Client,
        position: &mut String,
        mut opened: impl FnMut(),
    ) -> Result<(), Interrupted> {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={}",
            WATCH.as_secs()
        );
        let mut events = self.open(client, &query).await?;
        opened();
        let mut line = Vec::new();
        while events.next(&mut line, SILENCE).await? {
            let event: Line<'_> = serde_json::from_slice(&line)?;
            if &*event.type_ == "ERROR" {
                return Err(Interrupted::Watch(serde_json::from_str(event.object.get())?));
            }
            let happened = &*event.type_ != "BOOKMARK";
            *position = match &*event.type_ {
                added @ ("ADDED" | "MODIFIED") => self.apply(event.object, added == "ADDED")?.1,
                other => {
                    let meta = Meta::from(serde_json::from_str::<MetaOnly>(event.object.get())?.metadata);
                    if other == "DELETED" {
                        self.delete(&meta.key());
                    }
                    meta.resource_version.into()
                }
            };
            self.advance(position, happened);
            self.heard();
        }
        Ok(())
    }

    fn request(&self, query: &str) -> Result<Request<Vec<u8>>, Interrupted> {
        let path = self.inner.resource.path(&self.inner.namespace);
        let selector = self
            .inner
            .selector
            .map(|labels| format!("&labelSelector={}", escape(labels)))
            .unwrap_or_default();
        Ok(Request::get(format!("{path}?{query}{selector}"))
            // The server compresses watches event by event, which saves nothing on a local network.
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Vec::new())?)
    }

    /// Opens a watch, in protobuf where it can be read and the server has it.
    async fn open(
        &self,
        client: &Client,
        query: &str,
    ) -> Result<Events<impl AsyncBufRead + Unpin + use<T>>, Interrupted> {
        let mut request = self.request(query)?.map(kube::client::Body::from);
        let of = T::in_protobuf().filter(|_| self.inner.protobuf.load(Ordering::Relaxed));
        if of.is_some() {
            request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(protobuf::ACCEPT));
        }
        let answer = client.send(request).await?;
        let is_protobuf = answer
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|of| of.as_bytes().starts_with(protobuf::CONTENT_TYPE.as_bytes()));
        if !answer.status().is_success() {
            let refused = timeout(CALL, refusal(answer, is_protobuf)).await;
            return Err(refused.map_or(Interrupted::Silent(CALL), Interrupted::Kube));
        }
        let body = Body::new(answer.into_body()).into_data_stream();
        Ok(Events {
            body: body.map_err(std::io::Error::other).into_async_read(),
            of: of.filter(|_| is_protobuf),
            frame: Vec::new(),
        })
    }
}

/// The error that a server's answer is, as kube would have it: protobuf is Greek to it.
async fn refusal(answer: Response<kube::client::Body>, is_protobuf: bool) -> kube::Error {
    let code = answer.status().as_u16();
    let mut body = Vec::new();
    let mut chunks = Body::new(answer.into_body()).into_data_stream();
    // What came before the connection went away may still say something.
    while body.len() < LONGEST_REFUSAL
        && let Ok(Some(chunk)) = chunks.try_next().await
    {
        body.extend_from_slice(&chunk);
    }
    let json = if is_protobuf { protobuf::status(&body).ok() } else { None };
    let status = serde_json::from_slice::<Status>(json.as_ref().unwrap_or(&body));
    // Any object is a Status, to kube.
    let status = status.ok().filter(|status| status.code != 0).unwrap_or_else(|| {
        let words = String::from_utf8_lossy(&body);
        Status::failure(words.trim(), "not what an API server answers").with_code(code)
    });
    kube::Error::Api(status.boxed())
}

/// What a watch says, one event after another.
struct Events<B> {
    body: B,
    /// What its objects are, where they come in protobuf.
    of: Option<&'static protobuf::Type>,
    frame: Vec<u8>,
}

impl<B: AsyncBufRead + Unpin> Events<B> {
    /// Reads the next event, as a line of JSON; false at the end.
    async fn next(&mut self, line: &mut Vec<u8>, silence: Duration) -> Result<bool, Interrupted> {
        // One huge object must not keep its buffer for the life of the watch.
        for buffer in [&mut *line, &mut self.frame] {
            buffer.clear();
            buffer.shrink_to(BUFFER);
        }
        let reading = async {
            match self.of {
                None => self.read_line(line).await,
                Some(of) => self.read_frame(of, line).await,
            }
        };
        timeout(silence, reading).await.unwrap_or(Err(Interrupted::Silent(silence)))
    }

    async fn read_line(&mut self, line: &mut Vec<u8>) -> Result<bool, Interrupted> {
        self.body.read_until(b'\n', line).await?;
        // The connection may go away in the middle of a line: what came whole was taken in.
        Ok(line.ends_with(b"\n"))
    }

    /// A frame is its length, in four bytes, and an event.
    async fn read_frame(&mut self, of: &protobuf::Type, line: &mut Vec<u8>) -> Result<bool, Interrupted> {
        let mut length = [0; 4];
        if !read_whole(&mut self.body, &mut length).await? {
            return Ok(false);
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > LARGEST_EVENT {
            return Err(Malformed("an event that is larger than any object").into());
        }
        self.frame.resize(length, 0);
        let is_whole = read_whole(&mut self.body, &mut self.frame).await?;
        if is_whole {
            protobuf::event(&self.frame, of, line)?;
        }
        Ok(is_whole)
    }
}

/// Fills a buffer; false where the connection has ended before.
async fn read_whole(body: &mut (impl AsyncBufRead + Unpin), buffer: &mut [u8]) -> Result<bool, Interrupted> {
    match body.read_exact(buffer).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of several has changed.
pub async fn any_changed<T>(watched: &mut [watch::Receiver<T>]) {
    let changes = watched.iter_mut().map(|watched| Box::pin(watched.changed()));
    let _ = futures::future::select_all(changes).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
