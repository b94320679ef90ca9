//! Objects that left a watch, perhaps without having been deleted.
//!
//! A watch with a label selector reports an object that loses the label as deleted. Only a GET shows whether the
//! object is gone. Until then no plan may treat the object as gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crate::cache::informer::{Change, Informer};
use crate::lock;
use crate::model::object::{Key, Object};

type ByOwner<T> = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<T>>>;

/// The objects that left the selection of one informer, by the UID of the owner and of the object.
pub struct Deselected<T> {
    objects: Mutex<ByOwner<T>>,
}

impl<T: Object> Deselected<T> {
    /// Follows the objects of an informer that belong to `owners` and for which `missed` returns true.
    pub fn from<O: Object>(
        informer: &Informer<T>,
        owners: &Informer<O>,
        missed: impl Fn(&T) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let deselected = Arc::new(Self { objects: Mutex::default() });
        let (follower, owners) = (deselected.clone(), owners.clone());
        informer.subscribe(move |change| match change {
            Change::Deleted { old } if missed(old) => {
                let Key { namespace, .. } = old.key();
                if let Some(owner) = old.owner()
                    && let (name, uid) = (owner.name.clone(), owner.uid.clone())
                    // If the owner is gone or terminating, no plan needs the object.
                    && owners.get(&Key { namespace, name, uid }).is_some_and(|owner| !owner.terminating())
                {
                    follower.insert(Arc::clone(old));
                }
            }
            // The object is back, or it never left.
            Change::Applied { new, .. } => follower.settle(new),
            _ => {}
        });
        deselected
    }

    /// Adds an object that is not in the selection.
    pub fn insert(&self, object: Arc<T>) {
        let Some(owner) = object.owner().map(|owner| owner.uid.clone()) else { return };
        lock(&self.objects).entry(owner).or_default().insert(object.key().uid, object);
    }

    /// The last known versions of an owner's objects that left the selection.
    pub fn owned_by(&self, owner: &Key) -> Vec<Arc<T>> {
        let objects = lock(&self.objects);
        let deselected = objects.get(&owner.uid).into_iter().flat_map(BTreeMap::values);
        deselected.filter(|object| object.key().namespace == owner.namespace).cloned().collect()
    }

    /// Drops an object that is known to be gone, or that is back.
    pub fn settle(&self, object: &T) {
        let Some(owner) = object.owner() else { return };
        let mut objects = lock(&self.objects);
        if let Some(deselected) = objects.get_mut(&owner.uid) {
            deselected.remove(&object.key().uid);
            if deselected.is_empty() {
                objects.remove(&owner.uid);
            }
        }
    }

    /// Drops all objects. After a restore of etcd, the lists lack objects that no client deleted.
    pub fn clear(&self) {
        lock(&self.objects).clear();
    }

    /// Drops the objects of a deleted owner.
    pub fn forget(&self, owner: &Key) {
        lock(&self.objects).remove(&owner.uid);
    }
}
