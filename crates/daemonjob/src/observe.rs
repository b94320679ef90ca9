//! What a DaemonJob's plan looks at: plain data, gathered from the caches.

use std::sync::Arc;

use quintet_kit::plan::Refusals;
use quintet_kit::types::{Node, Pod};

use crate::ledger::Shard;

/// What a plan looks at besides the DaemonJob itself.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name; those that have lost the label that the watch selects by included.
    pub pods: Vec<Arc<Pod>>,
    /// Every node, by name.
    pub nodes: Vec<Arc<Node>>,
    /// The shards of its ledger.
    pub ledger: Vec<Arc<Shard>>,
    /// Shards that somebody else has deleted while we ran, as they were last seen. One that is still terminating stands in
    /// the way of its successor.
    pub deleted_shards: Vec<Arc<Shard>>,
    /// Pods and shards that are there, but have lost the label that the watch selects by.
    pub unlabelled: Unlabelled,
    /// Whether the Job that the post's operator made for it is still there.
    pub old_job: bool,
    /// Whether this process is about to end: what is known is written down, and nothing else is done.
    pub stopping: bool,
    /// What the API server refused lately.
    pub refusals: Refusals,
}

/// What has lost the label that the watch selects by.
#[derive(Debug, Default)]
pub struct Unlabelled {
    /// Pods; they are among [`World::pods`] as well.
    pub pods: Vec<Arc<Pod>>,
    /// Shards of the ledger; they are among [`World::ledger`] as well.
    pub shards: Vec<Arc<Shard>>,
}

impl World {
    /// Every shard whose lines are known, whether or not it is still there.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.ledger.iter().chain(&self.deleted_shards).map(|shard| &**shard)
    }
}
