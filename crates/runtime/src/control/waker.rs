//! Tells a controller which of its objects to look at.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::cache::informer::Change;
use crate::control::queue::Priority;
use crate::model::object::{Key, Object};
use crate::model::resource::Resource;

/// Wakes a controller's objects. Cheap to clone.
#[derive(Clone)]
pub struct Waker {
    pub(super) sender: mpsc::UnboundedSender<Wake>,
}

/// What a controller is woken for.
pub(super) enum Wake {
    Key(Key, Priority),
    Gone(Key),
}

impl Waker {
    /// Something happened to this object.
    pub fn wake(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Fresh));
    }

    /// This object is one of many to be looked at again.
    pub fn look_again(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Bulk));
    }

    /// Wakes the object of `kind` that controls what changed; on a change of owner both.
    pub fn wake_owner<T: Object>(&self, change: &Change<'_, T>, kind: &Resource) {
        let wake = |object: &Arc<T>| {
            if let Some(owner) = object.owner()
                && *owner.group == *kind.group
                && *owner.kind == *kind.kind
            {
                self.wake(Key {
                    namespace: object.key().namespace,
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                });
            }
        };
        match change {
            Change::Applied { new, old, .. } => {
                wake(new);
                if let Some(old) = old
                    && old.owner() != new.owner()
                {
                    wake(old);
                }
            }
            Change::Deleted { old } => wake(old),
            Change::Undecodable { .. } | Change::Vanished { .. } => {}
        }
    }
}
