//! Gathers what a DaemonJob's plan looks at, from the caches.

use std::sync::Arc;

use quintet_kit::informer::Informer;
use quintet_kit::object::Key;
use quintet_kit::plan::Refusals;
use quintet_kit::types::{Node, Pod};

/// What a plan looks at besides the DaemonJob itself.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name.
    pub pods: Vec<Arc<Pod>>,
    /// Every node, by name.
    pub nodes: Vec<Arc<Node>>,
    /// What the API server refused lately, by pod name.
    pub refusals: Refusals,
}

/// The world of the DaemonJob with this key.
pub fn observe(key: &Key, pods: &Informer<Pod>, nodes: &Informer<Node>, refusals: Refusals) -> World {
    World { pods: pods.owned_by(key), nodes: nodes.all(), refusals }
}
