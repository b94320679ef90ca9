//! Lets watches enqueue the objects of a controller.

use tokio::sync::mpsc;

use crate::control::queue::Priority;
use crate::model::object::Key;

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
}
