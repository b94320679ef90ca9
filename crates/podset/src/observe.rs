//! The input of a PodSet's plan: plain data from the caches.

use std::sync::Arc;

use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::refusals::Refusals;

use crate::adoption::Orphans;
use crate::revision::{CurrentTemplate, Revision};

/// The input of a plan besides the PodSet.
#[derive(Debug, Default)]
pub struct World {
    /// Its pods, by name, including pods that lost the label of the watch.
    pub pods: Vec<Arc<Pod>>,
    /// Its pods that lost that label.
    pub unlabelled: Vec<Arc<Pod>>,
    /// Names in the PodSet's form that other pods have, mostly released ones.
    pub taken: Vec<Arc<str>>,
    /// Pods to adopt.
    pub orphans: Orphans,
    /// Its ControllerRevisions.
    pub revisions: Vec<Arc<Revision>>,
    /// The current template, if the plan creates pods from it.
    pub current_template: CurrentTemplate,
    /// The recent refusals, by pod name.
    pub refusals: Refusals,
}

impl World {
    /// Whether there is a ControllerRevision with this name.
    pub fn has_revision(&self, name: &str) -> bool {
        self.revisions.iter().any(|one| *one.meta.name == *name)
    }
}
