//! What a PodSet's plan looks at: plain data, gathered from the caches.

use std::sync::Arc;

use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::refusals::Refusals;

/// What a plan looks at besides the PodSet itself.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name; those that have lost the label that the watch selects by included.
    pub pods: Vec<Arc<Pod>>,
    /// Those of them that have lost that label.
    pub unlabelled: Vec<Arc<Pod>>,
    /// Pods that the post's operator made for it, which have none of our labels yet.
    pub unmigrated: Vec<Arc<Pod>>,
    /// Whether those were not looked for yet: the PodSet was just made, and there can be none.
    pub unsearched: bool,
    /// Names like those of its pods that other pods have: released ones, mostly.
    pub taken: Vec<Arc<str>>,
    /// What there is to say of pods of others that have its name as a label, where that was just found out.
    pub strangers: Option<String>,
    /// What the API server refused lately, by pod name.
    pub refusals: Refusals,
}
