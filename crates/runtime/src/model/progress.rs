//! How far a cache has come, as the caches, the gate and the writer compare it.

use tokio::time::Instant;

/// How far a cache has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The highest resourceVersion that its watch or list has shown.
    pub position: u64,
    /// The highest resourceVersion of anything that it has seen happen: as `position`, without the bookmarks, which say that
    /// nothing happens and reach each watch at a time of their own.
    pub seen: u64,
    /// When the newest complete list was begun; a list shows every write answered before that.
    pub listed: Option<Instant>,
}
