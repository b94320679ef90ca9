//! Lets watches enqueue the objects of a controller.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::cache::informer::Change;
use crate::control::queue::Priority;
use crate::model::object::{Key, Object};
use crate::model::resource::Resource;

/// Enqueues a controller's objects. Cheap to clone.
#[derive(Clone)]
pub struct Waker {
    pub(super) sender: mpsc::UnboundedSender<Wake>,
}

/// A message to a controller.
pub(super) enum Wake {
    Key(Key, Priority),
    Gone(Key),
}

impl Waker {
    /// Enqueues an object because of an event.
    pub fn wake(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Fresh));
    }

    /// Enqueues an object with bulk priority, as one of many.
    pub fn enqueue_low_priority(&self, key: Key) {
        let _ = self.sender.send(Wake::Key(key, Priority::Bulk));
    }

    /// Enqueues the owner of `kind` that controls the changed object. If the owner has changed, enqueues both.
    pub fn wake_owner<T: Object>(&self, change: &Change<'_, T>, kind: &Resource) {
        let wake = |object: &Arc<T>| {
            if let Some(owner) = object.owner().filter(|owner| owner.is_a(kind)) {
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
