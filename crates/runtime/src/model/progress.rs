//! How far a cache has come, for comparison by the caches, the gate and the writer.

use tokio::time::Instant;

/// How far a cache has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The highest resourceVersion that the watch or list has shown.
    pub position: u64,
    /// Like `position`, but without bookmarks: they report no change, and reach each watch at a different time.
    pub seen: u64,
    /// When the newest complete list started. It shows every write that was answered before.
    pub listed: Option<Instant>,
    /// Whether the cache may lack changes, until its watch continues or a list is complete.
    pub expired: bool,
}

/// A resourceVersion as a number, which it is for an API server with etcd; 0 otherwise.
pub(crate) fn revision(version: &str) -> u64 {
    version.parse().unwrap_or_default()
}
