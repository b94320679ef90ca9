//! The input of a PodSet's plan: plain data from the caches.

use std::sync::Arc;

use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::refusals::Refusals;

/// The input of a plan besides the PodSet.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name, including pods that lost the label of the watch.
    pub pods: Vec<Arc<Pod>>,
    /// Its pods that lost that label.
    pub unlabelled: Vec<Arc<Pod>>,
    /// Names in the PodSet's form that other pods have, mostly released ones.
    pub taken: Vec<Arc<str>>,
    /// The recent refusals, by pod name.
    pub refusals: Refusals,
}
