//! Caches of any type whose progress can be compared with writes.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::object::Key;
use crate::model::progress::Progress;
use crate::model::resource::Resource;

/// A cache whose progress can be compared with writes.
pub trait TrackedCache: Send + Sync {
    /// The cached type.
    fn resource(&self) -> Resource;
    /// Whether the cache holds objects of this namespace.
    fn covers(&self, namespace: &str) -> bool;
    /// The type, and the namespace if the cache is limited to one. The hand-over identifies caches by this value.
    fn scope(&self) -> &str;
    /// How far the cache has come.
    fn progress(&self) -> Progress;
    /// A receiver that wakes when the cache advances.
    fn watch_progress(&self) -> watch::Receiver<Progress>;
    /// Whether the cache shows a deleted object as gone or terminating.
    fn shows_deletion(&self, key: &Key) -> bool;
    /// Requests a list that starts at `since` or later, if there is none yet. [`Progress::listed`] shows when the
    /// list is complete.
    fn relist(&self, since: Instant);
}
