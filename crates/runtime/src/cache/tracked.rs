//! Caches of any type whose progress can be compared with writes.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::informer::{Informer, NamespaceInformer};
use crate::model::object::{Key, Object};
use crate::model::progress::Progress;
use crate::model::resource::Resource;

/// A cache whose progress can be compared with writes.
pub trait TrackedCache: Send + Sync {
    /// The cached type.
    fn resource(&self) -> Resource;
    /// Whether the cache holds objects of this namespace.
    fn covers(&self, namespace: &str) -> bool;
    /// See [`NamespaceInformer::scope`].
    fn scope(&self) -> String;
    /// How far the cache has come.
    fn progress(&self) -> Progress;
    /// A receiver that wakes when the cache advances.
    fn watch_progress(&self) -> watch::Receiver<Progress>;
    /// Whether the cache shows a deleted object as gone or terminating.
    fn shows_deletion(&self, key: &Key) -> bool;
    /// Requests a list that starts at `since` or later.
    fn relist(&self, since: Instant);
}

impl<T: Object> TrackedCache for NamespaceInformer<T> {
    fn resource(&self) -> Resource {
        NamespaceInformer::resource(self)
    }

    fn covers(&self, namespace: &str) -> bool {
        NamespaceInformer::covers(self, namespace)
    }

    fn scope(&self) -> String {
        NamespaceInformer::scope(self)
    }

    fn progress(&self) -> Progress {
        *NamespaceInformer::progress(self).borrow()
    }

    fn watch_progress(&self) -> watch::Receiver<Progress> {
        NamespaceInformer::progress(self)
    }

    fn shows_deletion(&self, key: &Key) -> bool {
        NamespaceInformer::shows_deletion(self, key)
    }

    fn relist(&self, since: Instant) {
        NamespaceInformer::relist(self, since);
    }
}

impl<T: Object> Informer<T> {
    /// The parts as the caches that plans wait for.
    pub fn tracked(&self) -> Vec<Arc<dyn TrackedCache>> {
        self.parts().iter().map(|part| Arc::new(part.clone()) as Arc<dyn TrackedCache>).collect()
    }
}
