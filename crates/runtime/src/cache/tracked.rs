//! Caches whose progress can be compared with what was written, whatever they hold.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::informer::{Informer, NamespaceInformer};
use crate::model::object::{Key, Object};
use crate::model::progress::Progress;
use crate::model::resource::Resource;

/// A cache whose progress can be compared with what was written.
pub trait TrackedCache: Send + Sync {
    /// What it caches.
    fn resource(&self) -> Resource;
    /// Whether objects of this namespace are in it.
    fn covers(&self, namespace: &str) -> bool;
    /// See [`NamespaceInformer::scope`].
    fn scope(&self) -> String;
    /// How far it has come.
    fn progress(&self) -> Progress;
    /// Wakes whenever it comes further.
    fn watch_progress(&self) -> watch::Receiver<Progress>;
    /// Whether an object that was deleted is gone from it, or shown as terminating.
    fn shows_deletion(&self, key: &Key) -> bool;
    /// Asks for a list that is begun at `since` or later.
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
    /// What a plan that reads this cache waits for.
    pub fn tracked(&self) -> Vec<Arc<dyn TrackedCache>> {
        self.parts().iter().map(|part| Arc::new(part.clone()) as Arc<dyn TrackedCache>).collect()
    }
}
