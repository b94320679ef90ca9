//! One watch per type for the whole process, and its cache.
//!
//! Differences from kube-runtime's watcher and reflector:
//! - the position of the watch is known (events and bookmarks), so that plans can wait for their own writes;
//! - a list is at least as new as its request, so that a new leader can catch up, and pages replace a streaming list
//!   that fails;
//! - a relist marks and sweeps, so that unchanged objects cause no event;
//! - pods and nodes arrive in protobuf ([`crate::model::protobuf`]);
//! - objects are indexed by the UID of their controller.
//!
//! Objects are decoded one by one, so a malformed object affects no other object, as with kube's `DeserializeGuard`.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures::future::join_all;
use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::list_watch::{self, Part, Seen};
use crate::cache::state::{Health, State, Undecodable};
use crate::cache::store::Store;
use crate::cache::tracked::TrackedCache;
use crate::lock;
use crate::model::conditions::shorten;
use crate::model::object::{Key, MetaOnly, Object, Owner};
use crate::model::progress::{Progress, revision};
use crate::model::resource::{Resource, escape};
use crate::server::connectivity::Link;
use crate::server::gate::Gate;

/// Bytes kept of the error for an object that cannot be decoded.
const LONGEST_ERROR: usize = 512;
/// The error of an object over which a subscriber or the decoder panicked.
const PANICKED: &str = "it caused a panic; see the log";

/// A change of an object.
#[derive(Debug)]
pub enum Change<'a, T> {
    /// The object is new, or a field that plans read has changed.
    Applied {
        /// The current version.
        new: &'a Arc<T>,
        /// The previous version.
        old: Option<&'a Arc<T>>,
        /// Whether the watch reported the object as added, after the list was complete.
        came: bool,
    },
    /// The object is gone, or has left the selection.
    Deleted {
        /// The last known version.
        old: &'a Arc<T>,
    },
    /// The object cannot be decoded. The cache drops a custom resource, and keeps the last version of other types.
    Undecodable {
        /// The key of the object.
        key: &'a Key,
        /// The error of the decoder.
        error: &'a str,
    },
    /// An object that could not be decoded is gone.
    Vanished {
        /// The key of the object.
        key: &'a Key,
    },
}

type Subscriber<T> = Arc<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// The cache of one type of object, and the task that fills it. Cheap to clone.
///
/// The cache has one part with its own watch for each namespace that the process watches, or one for all namespaces.
pub struct Informer<T> {
    parts: Arc<[NamespaceInformer<T>]>,
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

/// The cache of one watch: the objects of one namespace, or of all namespaces.
pub struct NamespaceInformer<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Clone for NamespaceInformer<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<T> {
    state: State,
    cache: RwLock<Store<T>>,
    subscribers: Mutex<Vec<Subscriber<T>>>,
}

impl<T: Object> Informer<T> {
    /// A cache of `resource` in `namespaces` (empty: all), limited to the objects that `selector` selects.
    pub fn new(resource: Resource, namespaces: &[String], selector: Option<&'static str>) -> Self {
        let everywhere = [String::new()];
        let namespaces = if namespaces.is_empty() || !resource.namespaced { &everywhere } else { namespaces };
        let parts = namespaces.iter().map(|namespace| NamespaceInformer::new(resource, namespace, selector));
        Self { parts: parts.collect() }
    }

    /// Lets the informer retry an absent type less often.
    #[must_use]
    pub fn patient(self) -> Self {
        for part in &*self.parts {
            part.inner.state.patient.store(true, Ordering::Relaxed);
        }
        self
    }

    /// The cached type.
    pub fn resource(&self) -> Resource {
        self.parts[0].inner.state.resource
    }

    /// The parts, one per watched namespace.
    pub fn parts(&self) -> &[NamespaceInformer<T>] {
        &self.parts
    }

    /// The parts as the caches that plans wait for.
    pub fn tracked(&self) -> Vec<Arc<dyn TrackedCache>> {
        self.parts.iter().map(|part| Arc::new(part.clone()) as Arc<dyn TrackedCache>).collect()
    }

    /// The index of the part for this namespace; None if the namespace is not watched.
    pub fn part_of(&self, namespace: &str) -> Option<usize> {
        self.parts.iter().position(|part| part.covers(namespace))
    }

    /// The part for this namespace; None if the namespace is not watched.
    fn part(&self, namespace: &str) -> Option<&NamespaceInformer<T>> {
        self.parts.iter().find(|part| part.covers(namespace))
    }

    /// Calls `subscriber` for every change, in order, from the task of the watch. The subscriber must not block.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        let subscriber: Subscriber<T> = Arc::new(subscriber);
        for part in &*self.parts {
            lock(&part.inner.subscribers).push(subscriber.clone());
        }
    }

    /// The cached object with this key; None if the object is gone or another object has its name.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        let place = (key.namespace.clone(), key.name.clone());
        let cache = self.part(&key.namespace)?.read();
        cache.objects.get(&place).filter(|object| object.key().uid == key.uid).cloned()
    }

    /// The cached object with this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let place = (Arc::from(namespace), Arc::from(name));
        self.part(namespace)?.read().objects.get(&place).cloned()
    }

    /// The objects in the owner's namespace whose controller is `owner`, by name. An owner reference across
    /// namespaces is not valid and is ignored.
    pub fn owned_by(&self, owner: &Key) -> Vec<Arc<T>> {
        let Some(part) = self.part(&owner.namespace) else { return Vec::new() };
        let cache = part.read();
        let family = (owner.namespace.clone(), owner.uid.clone());
        cache.owned.get(&family).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// The objects in the owner's namespace whose controller is a deleted object of `kind` with the owner's name.
    pub fn owned_by_predecessors(&self, owner: &Key, kind: &Resource) -> Vec<Arc<T>> {
        let Some(part) = self.part(&owner.namespace) else { return Vec::new() };
        let cache = part.read();
        let is_one = |other: &Owner| *other.name == *owner.name && other.is_a(kind);
        let families = cache.owned.iter().filter(|((namespace, uid), siblings)| {
            let mut owners = siblings.values().filter_map(|object| object.owner());
            *namespace == owner.namespace && *uid != owner.uid && owners.next().is_some_and(is_one)
        });
        let mut all: Vec<_> = families.flat_map(|(_, siblings)| siblings.values()).cloned().collect();
        all.sort_by_cached_key(|object| object.key());
        all
    }

    /// All cached objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.parts.iter().flat_map(NamespaceInformer::all).collect()
    }

    /// The objects that cannot be decoded, with the errors.
    pub fn undecodable(&self) -> Vec<(Key, String)> {
        self.parts.iter().flat_map(|part| part.inner.state.undecodable()).collect()
    }

    /// The names in a namespace with this prefix, in order, of objects for which `wanted` returns true.
    pub fn names(&self, namespace: &str, prefix: &str, wanted: impl Fn(&T) -> bool) -> Vec<Arc<str>> {
        let Some(part) = self.part(namespace) else { return Vec::new() };
        let from: (Arc<str>, Arc<str>) = (namespace.into(), prefix.into());
        let cache = part.read();
        let begin_so = |(of, name): &(Arc<str>, Arc<str>)| **of == *namespace && name.starts_with(prefix);
        let named = cache.objects.range(from..).take_while(|(place, _)| begin_so(place));
        named.filter(|(_, object)| wanted(object)).map(|((_, name), _)| name.clone()).collect()
    }

    /// The health of the least healthy part.
    pub fn health(&self) -> Health {
        let worse = |one: Health, other: Health| match (one, other) {
            (Health::Unsynced, _) | (_, Health::Unsynced) => Health::Unsynced,
            (Health::Absent { since }, _) | (_, Health::Absent { since }) => Health::Absent { since },
            (Health::Synced { heard: one }, Health::Synced { heard: other }) => {
                Health::Synced { heard: one.min(other) }
            }
        };
        let parts = self.parts.iter().map(|part| part.inner.state.health().borrow().clone());
        parts.reduce(worse).unwrap_or(Health::Unsynced)
    }

    /// Receivers that wake when the health of a part changes.
    pub fn watch_health(&self) -> Vec<watch::Receiver<Health>> {
        self.parts.iter().map(|part| part.inner.state.health()).collect()
    }

    /// Lists and watches until the future is dropped, which also drops the subscribers.
    pub fn run(self, client: Client, link: Link, gate: Gate) -> impl Future<Output = ()> + Send {
        // Not in the async block, because the future may be dropped before it is polled.
        let subscribed = Subscribed(self);
        async move {
            let parts = subscribed.0.parts.iter().cloned();
            join_all(parts.map(|part| {
                let gate = part.inner.state.gate.get_or_init(|| gate.clone()).clone();
                list_watch::run(Arc::new(part), client.clone(), link.clone(), gate)
            }))
            .await;
        }
    }
}

/// An informer that drops its subscribers at its end. A subscriber usually owns this informer or another one that has a
/// subscriber with this informer, so neither would ever be freed.
struct Subscribed<T>(Informer<T>);

impl<T> Drop for Subscribed<T> {
    fn drop(&mut self) {
        for part in &*self.0.parts {
            // A subscriber is dropped after the lock is released, because its drop may run any code.
            let subscribers = std::mem::take(&mut *lock(&part.inner.subscribers));
            drop(subscribers);
        }
    }
}

impl<T: Object> TrackedCache for NamespaceInformer<T> {
    fn resource(&self) -> Resource {
        self.inner.state.resource
    }

    fn covers(&self, namespace: &str) -> bool {
        self.inner.state.namespace.is_empty() || self.inner.state.namespace == namespace
    }

    fn scope(&self) -> &str {
        self.inner.state.scope()
    }

    fn progress(&self) -> Progress {
        *self.inner.state.progress.borrow()
    }

    fn watch_progress(&self) -> watch::Receiver<Progress> {
        self.inner.state.progress.subscribe()
    }

    fn shows_deletion(&self, key: &Key) -> bool {
        let place = (key.namespace.clone(), key.name.clone());
        self.read()
            .objects
            .get(&place)
            .is_none_or(|object| object.key().uid != key.uid || object.terminating())
    }

    fn relist(&self, since: Instant) {
        // A repeated request must not end the pause after a failed list.
        self.inner.state.relist.send_if_modified(|asked| {
            let is_later = *asked < Some(since);
            *asked = (*asked).max(Some(since));
            is_later
        });
    }
}

impl<T: Object> NamespaceInformer<T> {
    /// The state that does not depend on the type of the objects.
    pub fn state(&self) -> &State {
        &self.inner.state
    }

    fn new(resource: Resource, namespace: &str, selector: Option<&'static str>) -> Self {
        Self {
            inner: Arc::new(Inner {
                state: State::new(resource, namespace, selector, T::in_protobuf()),
                cache: RwLock::default(),
                subscribers: Mutex::default(),
            }),
        }
    }

    /// The number of objects.
    pub fn count(&self) -> usize {
        self.read().objects.len()
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().objects.values().cloned().collect()
    }

    /// The path of the list that fills the cache; and the namespace, name, UID and resourceVersion of each object.
    pub fn contents(&self) -> (String, BTreeSet<[String; 4]>) {
        let State { resource, namespace, selector, .. } = &self.inner.state;
        let selector = selector.map(|labels| format!("?labelSelector={}", escape(labels)));
        let cache = self.read();
        let objects = cache.objects.iter().map(|((namespace, name), object)| {
            [&**namespace, &**name, &*object.key().uid, object.resource_version()].map(str::to_owned)
        });
        (resource.path(namespace) + &selector.unwrap_or_default(), objects.collect())
    }

    fn read(&self) -> RwLockReadGuard<'_, Store<T>> {
        self.inner.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a change to every subscriber. Returns whether none of them panicked.
    fn tell(&self, change: &Change<'_, T>) -> bool {
        let mut is_told = true;
        for subscriber in lock(&self.inner.subscribers).iter() {
            // A panic of one subscriber must neither hide the change from the others nor end the watch.
            is_told &= catch_unwind(AssertUnwindSafe(|| subscriber(change))).is_ok();
        }
        is_told
    }

    /// Decodes and stores one object.
    fn take_in(&self, raw: &RawValue, came: bool) -> Result<(Key, String), String> {
        let mut object = serde_json::from_str::<T>(raw.get()).map_err(|error| error.to_string())?;
        object.slim();
        let namespace = object.key().namespace;
        if let Some(sibling) = object.owner().and_then(|owner| self.read().sibling(&namespace, owner)) {
            object.share(&sibling);
        }
        let key = object.key();
        let version = object.resource_version().to_owned();
        self.compare(&key, &version);
        let vanished = self.inner.state.decodes(&key).into_iter().find(|before| before.uid != key.uid);
        if let Some(before) = &vanished {
            self.tell(&Change::Vanished { key: before });
        }
        let object = Arc::new(object);
        let old = self.write().insert(&key, object.clone());
        let is_told = match &old {
            // The name now belongs to another object: for its owner, the old one is deleted.
            Some(before) if before.key().uid != key.uid => {
                let is_told = self.tell(&Change::Deleted { old: before });
                self.tell(&Change::Applied { new: &object, old: None, came }) && is_told
            }
            Some(before) if object.same(before) => true,
            _ => self.tell(&Change::Applied { new: &object, old: old.as_ref(), came }),
        };
        if is_told { Ok((key, version)) } else { Err(PANICKED.to_owned()) }
    }

    /// Reports a restore of etcd if the API server shows an object in an old version that this cache does not have: it knows
    /// every object as of its position.
    fn compare(&self, key: &Key, version: &str) {
        let shown = revision(version);
        if shown == 0 || shown > self.inner.state.progress.borrow().position {
            return;
        }
        let place = (key.namespace.clone(), key.name.clone());
        let is_known =
            self.read().objects.get(&place).is_some_and(|object| object.resource_version() == version);
        let is_undecodable = || {
            let undecodable = lock(&self.inner.state.undecodable);
            undecodable.keys().any(|known| (&known.namespace, &known.name) == (&place.0, &place.1))
        };
        if !is_known && !is_undecodable() {
            self.inner.state.report_restore(&format!("{key} in version {version}"));
        }
    }

    /// Records an object that cannot be decoded.
    fn set_aside(&self, raw: &RawValue, error: String) -> Result<(Key, String), serde_json::Error> {
        // If not even the metadata can be decoded, the whole answer is malformed, not only this object.
        let meta = serde_json::from_str::<MetaOnly>(raw.get())?.metadata;
        let key = meta.key();
        let resource = self.inner.state.resource;
        // A node or pod that cannot be decoded still exists, so the cache keeps its last known version.
        if resource.custom {
            let old = self.write().remove(&key);
            if let Some(before) = old.filter(|before| before.key().uid != key.uid) {
                self.tell(&Change::Deleted { old: &before });
            }
        }
        let known = lock(&self.inner.state.undecodable).get(&key).cloned();
        if let Some(before) = self.inner.state.decodes(&key).filter(|before| before.uid != key.uid) {
            self.tell(&Change::Vanished { key: &before });
        }
        // The error may quote a value in full, and it is kept as long as the object exists.
        let error = shorten(error, LONGEST_ERROR);
        let since = known.as_ref().map_or_else(Instant::now, |known| known.since);
        let undecodable = Undecodable { error: error.clone(), since };
        lock(&self.inner.state.undecodable).insert(key.clone(), undecodable);
        if known.is_none_or(|known| known.error != error) {
            let resource = resource.plural;
            tracing::warn!(resource, object = %key, error, "skipped an object that cannot be decoded");
        }
        self.tell(&Change::Undecodable { key: &key, error: &error });
        Ok((key, meta.resource_version.0.into()))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Store<T>> {
        self.inner.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Object> Part for NamespaceInformer<T> {
    fn state(&self) -> &State {
        self.state()
    }

    fn count(&self) -> usize {
        self.count()
    }

    fn apply(&self, raw: &RawValue, came: bool) -> Result<(Key, String), serde_json::Error> {
        // A panic over one object must end neither the cache of all other objects nor the process.
        let taken = catch_unwind(AssertUnwindSafe(|| self.take_in(raw, came)));
        match taken.unwrap_or_else(|_| Err(PANICKED.to_owned())) {
            Ok(taken) => Ok(taken),
            Err(error) => self.set_aside(raw, error),
        }
    }

    fn delete(&self, key: &Key) {
        let vanished = self.inner.state.decodes(key);
        let old = self.write().remove(key);
        if let Some(old) = &old {
            self.tell(&Change::Deleted { old });
        } else if let Some(key) = &vanished {
            self.tell(&Change::Vanished { key });
        }
    }

    fn missing(&self, seen: &Seen) -> Vec<Key> {
        let cache = self.read();
        let missing = cache.objects.iter().filter(|(name, _)| !seen.contains(*name));
        missing.map(|(_, object)| object.key()).collect()
    }
}
