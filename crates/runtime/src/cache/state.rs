//! The state of one cache that does not depend on the type of its objects: how far its watch has come, and whether it can
//! be relied on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::lock;
use crate::model::object::Key;
use crate::model::progress::Progress;
use crate::model::protobuf;
use crate::model::resource::Resource;
use crate::server::client::CALL;
use crate::server::gate::Gate;

/// After this long without an event or bookmark, a list replaces the watch. Bookmarks arrive about once a minute, except
/// from an API server without a watch cache.
pub const SILENCE: Duration = Duration::from_secs(75);

/// The start of a list; see [`State::listing`].
pub(super) struct Listing {
    began: Instant,
    /// See [`State::known`].
    pub known: u64,
    /// How far the watch had come.
    position: u64,
    /// The most objects that a list had shown before, since one was complete.
    most_before: usize,
}

/// Whether a cache can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The first list is not complete.
    Unsynced,
    /// The API server does not serve the type.
    Absent {
        /// When this was first known.
        since: Instant,
    },
    /// The cache follows its watch.
    Synced {
        /// When a list was last complete, or the watch last delivered an event or bookmark.
        heard: Instant,
    },
}

/// The state of one cache that does not depend on the type of its objects.
pub struct State {
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) selector: Option<&'static str>,
    scope: String,
    pub(super) progress: watch::Sender<Progress>,
    health: watch::Sender<Health>,
    /// See [`Self::unwatched`].
    unwatched: Mutex<Option<Instant>>,
    /// See [`Self::last_answer`].
    answered: Mutex<Instant>,
    /// The most objects that a list has shown since one was complete.
    most_listed: AtomicUsize,
    /// How to read the type in protobuf, if this process can.
    in_protobuf: Option<&'static protobuf::Type>,
    /// Whether the API server has answered in protobuf that cannot be read.
    only_json: AtomicBool,
    /// The start time that the next list must reach; None if no list is requested.
    pub(super) relist: watch::Sender<Option<Instant>>,
    /// Gets the report of a restore of etcd. Set before the first list.
    pub(super) gate: OnceLock<Gate>,
    pub(super) patient: AtomicBool,
    /// The objects that cannot be decoded.
    pub(super) undecodable: Mutex<BTreeMap<Key, Undecodable>>,
}

/// An object that cannot be decoded.
#[derive(Clone, Debug)]
pub(super) struct Undecodable {
    /// The error.
    pub error: String,
    /// When this was first known.
    pub since: Instant,
}

impl State {
    pub(super) fn new(
        resource: Resource,
        namespace: &str,
        selector: Option<&'static str>,
        in_protobuf: Option<&'static protobuf::Type>,
    ) -> Self {
        let name = resource.crd_name();
        Self {
            resource,
            namespace: namespace.to_owned(),
            selector,
            scope: if namespace.is_empty() { name } else { format!("{namespace}/{name}") },
            progress: watch::Sender::new(Progress::default()),
            health: watch::Sender::new(Health::Unsynced),
            unwatched: Mutex::default(),
            answered: Mutex::new(Instant::now()),
            most_listed: AtomicUsize::new(0),
            in_protobuf,
            only_json: AtomicBool::new(false),
            relist: watch::channel(None).0,
            gate: OnceLock::new(),
            patient: AtomicBool::new(false),
            undecodable: Mutex::default(),
        }
    }

    /// The type, and the namespace if the cache is limited to one. The hand-over identifies caches by this value.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// How far the cache has come.
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// How to read the next answer in protobuf; None to ask for JSON.
    pub(super) fn protobuf(&self) -> Option<&'static protobuf::Type> {
        self.in_protobuf.filter(|_| !self.only_json.load(Ordering::Relaxed))
    }

    /// Asks for JSON from now on.
    pub(super) fn ask_for_json(&self) {
        self.only_json.store(true, Ordering::Relaxed);
    }

    /// Records the end of a list in this version of the store; None if it has none.
    pub(super) fn listed(&self, version: Option<u64>, listing: &Listing) {
        self.progress.send_modify(|progress| {
            progress.position = version.unwrap_or(progress.position);
            // An object that the list does not show was deleted before the list.
            progress.seen = version.unwrap_or(progress.seen);
            progress.listed = Some(listing.began);
            progress.expired = false;
        });
        self.most_listed.store(0, Ordering::Relaxed);
        self.heard();
        if listing.known > listing.position
            && let Some(gate) = self.gate.get()
        {
            gate.report_unshown();
        }
    }

    /// Whether the type may be absent.
    pub fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    /// The namespace that the cache is limited to; empty means all namespaces.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The health of the cache; changes wake the receiver.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Reports that the store is older than this cache, because etcd was restored. Every cache is then listed again.
    pub(super) fn report_restore(&self, shown: &str) {
        let Progress { position, listed, .. } = *self.progress.borrow();
        if self.gate.get().is_some_and(|gate| gate.restored(listed)) {
            let resource = self.resource.plural;
            tracing::warn!(resource, cache = position, shown, "etcd was restored; listing everything again");
        }
    }

    /// Records that the cache may lack changes until its watch continues, or until the next list. No plan uses it until
    /// then.
    pub(super) fn expire(&self) {
        self.progress.send_if_modified(|progress| !std::mem::replace(&mut progress.expired, true));
    }

    /// Records that a list or watch failed.
    pub(super) fn lost(&self) {
        lock(&self.unwatched).get_or_insert_with(Instant::now);
    }

    /// Since when lists or watches have failed without an open watch in between; None while the watch is open, and after
    /// its orderly end.
    pub fn unwatched(&self) -> Option<Instant> {
        *lock(&self.unwatched)
    }

    /// Records that the watch continues where it was interrupted.
    pub(super) fn connected(&self) {
        *lock(&self.unwatched) = None;
        self.progress.send_if_modified(|progress| std::mem::take(&mut progress.expired));
    }

    pub(super) fn advance(&self, resource_version: &str, happened: bool) {
        if let Ok(version) = resource_version.parse::<u64>() {
            self.progress.send_if_modified(|progress| {
                let ahead = version > progress.position;
                progress.position = progress.position.max(version);
                if happened {
                    progress.seen = progress.seen.max(version);
                }
                ahead
            });
        }
    }

    pub(super) fn heard(&self) {
        self.health.send_replace(Health::Synced { heard: Instant::now() });
        self.answered();
    }

    /// Whether the cache has had no list, event or bookmark for [`SILENCE`].
    pub(super) fn is_silent(&self) -> bool {
        matches!(*self.health.borrow(), Health::Synced { heard } if heard.elapsed() >= SILENCE)
    }

    /// Records an answer of the API server, which may be a rejection.
    pub(super) fn answered(&self) {
        *lock(&self.answered) = Instant::now();
    }

    /// Records that a list has shown this number of objects so far. A slow list is an answer. A list that always breaks at
    /// the same object is not, nor are the first objects of the first list.
    pub(super) fn listing(&self, objects: usize, list: &Listing) {
        let is_more = self.most_listed.fetch_max(objects, Ordering::Relaxed) < objects;
        if is_more && (list.most_before > 0 || list.began.elapsed() >= CALL) {
            self.answered();
        }
    }

    /// The start of a list, before its request.
    pub(super) fn begin_list(&self) -> Listing {
        let most_before = self.most_listed.load(Ordering::Relaxed);
        let position = self.progress.borrow().position;
        Listing { began: Instant::now(), known: self.known(), position, most_before }
    }

    /// The version of the store that this process knows from this cache and from its own writes. An older store was restored.
    pub(super) fn known(&self) -> u64 {
        let written = self.gate.get().map_or(0, |gate| gate.written(&self.resource));
        written.max(self.progress.borrow().position)
    }

    /// When the API server last delivered an event, a bookmark or a list, or rejected a request for the type; at first
    /// the creation of the cache.
    pub fn last_answer(&self) -> Instant {
        *lock(&self.answered)
    }

    /// Records that the API server does not serve the type. The cache keeps its objects until the next list, because
    /// one wrong answer of a proxy must not look like a deletion. Until then no plan uses them.
    pub(super) fn absent(&self) {
        let newly = self.health.send_if_modified(|health| {
            let newly = !matches!(health, Health::Absent { .. });
            if newly {
                *health = Health::Absent { since: Instant::now() };
            }
            newly
        });
        if newly {
            let crd = self.resource.crd_name();
            tracing::warn!(
                crd,
                "the API server does not serve this type; waiting for its CustomResourceDefinition"
            );
        }
    }

    /// The objects that cannot be decoded, with the errors.
    pub fn undecodable(&self) -> Vec<(Key, String)> {
        lock(&self.undecodable).iter().map(|(key, one)| (key.clone(), one.error.clone())).collect()
    }

    /// Calls `found` for each object that cannot be decoded, with the time since this is known.
    pub fn find_undecodable(&self, mut found: impl FnMut(&Key, Duration)) {
        lock(&self.undecodable).iter().for_each(|(key, one)| found(key, one.since.elapsed()));
    }

    /// The number of objects that cannot be decoded.
    pub fn undecodable_count(&self) -> usize {
        lock(&self.undecodable).len()
    }

    /// Records that the object with this name can be decoded or is gone. Returns the key of an earlier undecodable
    /// object.
    pub(super) fn decodes(&self, key: &Key) -> Option<Key> {
        let mut undecodable = lock(&self.undecodable);
        let known =
            undecodable.keys().find(|known| (&known.namespace, &known.name) == (&key.namespace, &key.name));
        let known = known.cloned()?;
        undecodable.remove(&known);
        Some(known)
    }
}

/// Waits until one of several receivers has a change.
pub async fn any_changed<T>(watched: &mut [watch::Receiver<T>]) {
    let changes = watched.iter_mut().map(|watched| Box::pin(watched.changed()));
    let _ = futures::future::select_all(changes).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::resource::PODS;

    /// A restore of etcd may have lost the write, even if the list has a higher version.
    #[test]
    fn a_list_after_an_unshown_write_is_reported() {
        for (written, is_reported) in [(7, false), (8, true)] {
            let (state, gate) = (State::new(PODS, "", None, None), Gate::open());
            assert!(state.gate.set(gate.clone()).is_ok());
            state.advance("7", true);
            gate.wrote(PODS, written);
            let unshown = gate.unshown();
            state.listed(Some(2_000), &state.begin_list());
            assert_eq!(unshown.has_changed().unwrap(), is_reported, "{written}");
        }
    }
}
