//! Objects in memory, and the index of objects by their controller.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::object::{Key, Object, Owner};

/// Objects of one controller, by name.
type Siblings<T> = BTreeMap<Arc<str>, Arc<T>>;

pub(super) struct Store<T> {
    pub objects: BTreeMap<(Arc<str>, Arc<str>), Arc<T>>,
    /// By the namespace of the objects and the UID of their controller, then by name.
    pub owned: HashMap<(Arc<str>, Arc<str>), Siblings<T>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), owned: HashMap::new() }
    }
}

impl<T: Object> Store<T> {
    pub fn insert(&mut self, key: &Key, object: Arc<T>) -> Option<Arc<T>> {
        let old = self.remove(key);
        if let Some(owner) = object.owner() {
            let family = (key.namespace.clone(), owner.uid.clone());
            self.owned.entry(family).or_default().insert(key.name.clone(), object.clone());
        }
        self.objects.insert((key.namespace.clone(), key.name.clone()), object);
        old
    }

    /// Any object of this owner in this namespace.
    pub fn sibling(&self, namespace: &Arc<str>, owner: &Owner) -> Option<Arc<T>> {
        self.owned.get(&(namespace.clone(), owner.uid.clone()))?.values().next().cloned()
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        let old = self.objects.remove(&(key.namespace.clone(), key.name.clone()))?;
        if let Some(owner) = old.owner() {
            let family = (key.namespace.clone(), owner.uid.clone());
            if let Some(siblings) = self.owned.get_mut(&family) {
                siblings.remove(&key.name);
                if siblings.is_empty() {
                    self.owned.remove(&family);
                }
            }
        }
        Some(old)
    }
}
