//! One watch per type for the whole process, and the cache that it keeps.
//!
//! Differences from a reflector of kube-runtime, and why:
//! - objects are decoded one by one from the line they came in, so a poisoned object concerns itself alone;
//! - deletions are delivered, with the last known object;
//! - a relist marks and sweeps: the cache is never empty in between, and what did not change wakes nobody;
//! - the position of the watch is known (events and bookmarks), which is what reading one's own writes needs;
//! - pods and nodes come in protobuf, which costs the API server less ([`crate::model::protobuf`]);
//! - objects are indexed by the UID of their controller.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::list_watch;
use crate::cache::store::Store;
use crate::model::conditions::shorten;
use crate::model::object::{Key, Meta, MetaOnly, Object};
use crate::model::progress::Progress;
use crate::model::resource::Resource;
use crate::server::connectivity::Link;

/// Bytes of an error that are kept of an object that cannot be decoded.
const LONGEST_ERROR: usize = 512;
/// A watch without event or bookmark for this long is taken for dead. Bookmarks come about once a minute.
pub const SILENCE: Duration = Duration::from_secs(150);
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
    parts: Arc<[NamespaceInformer<T>]>,
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone() }
    }
}

/// What one watch keeps: the objects of a namespace, or all.
pub struct NamespaceInformer<T> {
    pub(super) inner: Arc<Inner<T>>,
}

impl<T> Clone for NamespaceInformer<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(super) struct Inner<T> {
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) selector: Option<&'static str>,
    cache: RwLock<Store<T>>,
    subscribers: Mutex<Vec<Subscriber<T>>>,
    undecodable: Mutex<BTreeMap<Key, String>>,
    pub(super) progress: watch::Sender<Progress>,
    health: watch::Sender<Health>,
    pub(super) streaming: AtomicBool,
    /// Whether protobuf is asked for where it can be read.
    pub(super) protobuf: AtomicBool,
    /// Since when a list is asked for.
    pub(super) relist: watch::Sender<Option<Instant>>,
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

/// The resourceVersions that the server has shown during one list.
pub(super) type Seen = std::collections::HashSet<(Arc<str>, Arc<str>)>;

impl<T: Object> Informer<T> {
    /// A cache of `resource` in `namespaces` (all where there are none), of the objects that `selector` selects.
    pub fn new(resource: Resource, namespaces: &[String], selector: Option<&'static str>) -> Self {
        let everywhere = [String::new()];
        let namespaces = if namespaces.is_empty() || !resource.namespaced { &everywhere } else { namespaces };
        let parts = namespaces.iter().map(|namespace| NamespaceInformer::new(resource, namespace, selector));
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
    pub fn parts(&self) -> &[NamespaceInformer<T>] {
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
    fn part(&self, namespace: &str) -> Option<&NamespaceInformer<T>> {
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
        self.parts.iter().flat_map(NamespaceInformer::all).collect()
    }

    /// The objects that cannot be decoded now, and why.
    pub fn undecodable(&self) -> Vec<(Key, String)> {
        self.parts.iter().flat_map(NamespaceInformer::undecodable).collect()
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
        self.parts.iter().map(NamespaceInformer::health).collect()
    }

    /// Lists and watches for ever. Ends only with the future that it is.
    pub async fn run(self, client: Client, link: Link) {
        let parts = self.parts.iter().cloned();
        join_all(parts.map(|part| list_watch::run(part, client.clone(), link.clone()))).await;
    }
}

impl<T: Object> NamespaceInformer<T> {
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

    fn read(&self) -> RwLockReadGuard<'_, Store<T>> {
        self.inner.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: &Change<'_, T>) {
        for subscriber in lock(&self.inner.subscribers).iter() {
            subscriber(change);
        }
    }

    /// Takes in one object as the server sent it; whether it `came` is for the subscribers.
    pub(super) fn apply(&self, raw: &RawValue, came: bool) -> Result<(Key, String), serde_json::Error> {
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
    fn set_aside(&self, raw: &RawValue, error: String) -> Result<(Key, String), serde_json::Error> {
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

    pub(super) fn delete(&self, key: &Key) {
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

    fn write(&self) -> RwLockWriteGuard<'_, Store<T>> {
        self.inner.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn advance(&self, resource_version: &str, happened: bool) {
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
    pub(super) fn sweep(&self, seen: &Seen, version: &str, began: Instant) {
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

    pub(super) fn heard(&self) {
        self.inner.health.send_replace(Health::Synced { heard: Instant::now() });
    }

    /// The type is not there. Its objects are kept until a list says otherwise: nobody plans for them meanwhile, and
    /// one wrong answer of a proxy must not look like their deletion.
    pub(super) fn absent(&self) {
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
}

/// Waits until one of several has changed.
pub async fn any_changed<T>(watched: &mut [watch::Receiver<T>]) {
    let changes = watched.iter_mut().map(|watched| Box::pin(watched.changed()));
    let _ = futures::future::select_all(changes).await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
