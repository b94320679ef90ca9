//! Objects that left a watch although nobody was seen deleting them.
//!
//! A watch that selects by label reports an object that loses the label as deleted. Whether it is gone or has only
//! left the selection is known by one GET; until then nobody may act as if it were gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::informer::{Change, Informer};
use crate::model::object::{Key, Object};

type ByOwner<T> = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<T>>>;

/// What has left the selection of one informer, by the UIDs of its owner and of itself.
pub struct Departed<T> {
    objects: Mutex<ByOwner<T>>,
}

impl<T: Object> Departed<T> {
    /// Follows an informer, as far as its objects belong to `owners` and are `missed`.
    pub fn from<O: Object>(
        informer: &Informer<T>,
        owners: &Informer<O>,
        missed: impl Fn(&T) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let departed = Arc::new(Self { objects: Mutex::default() });
        let (follower, owners) = (departed.clone(), owners.clone());
        informer.subscribe(move |change| match change {
            Change::Deleted { old } if missed(old) => {
                let Key { namespace, .. } = old.key();
                if let Some(owner) = old.owner()
                    && let (name, uid) = (owner.name.clone(), owner.uid.clone())
                    // Nobody misses what belongs to an owner that is gone or going.
                    && owners.get(&Key { namespace, name, uid }).is_some_and(|owner| !owner.terminating())
                {
                    let mut objects = follower.lock();
                    objects.entry(owner.uid.clone()).or_default().insert(old.key().uid, Arc::clone(old));
                }
            }
            // It is back, or was never away.
            Change::Applied { new, .. } => follower.settle(new),
            _ => {}
        });
        departed
    }

    fn lock(&self) -> MutexGuard<'_, ByOwner<T>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has departed from an owner, as it was last seen.
    pub fn owned_by(&self, owner: &Key) -> Vec<Arc<T>> {
        let objects = self.lock();
        let departed = objects.get(&owner.uid).into_iter().flat_map(BTreeMap::values);
        departed.filter(|object| object.key().namespace == owner.namespace).cloned().collect()
    }

    /// An object is known to be gone, or is back.
    pub fn settle(&self, object: &T) {
        let Some(owner) = object.owner() else { return };
        let mut objects = self.lock();
        if let Some(departed) = objects.get_mut(&owner.uid) {
            departed.remove(&object.key().uid);
            if departed.is_empty() {
                objects.remove(&owner.uid);
            }
        }
    }

    /// The owner is gone.
    pub fn forget(&self, owner: &Key) {
        self.lock().remove(&owner.uid);
    }
}
