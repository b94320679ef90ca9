//! The write slots of a kind, which limit its requests in flight.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The parts of a slot.
const WHOLE: u32 = 3;
/// The parts that a deletion takes.
const DELETION: u32 = 2;

/// Slots for concurrent writes. Three deletions take two slots: they cost the API server less than other writes, and other
/// clients wait no longer for them (`docs/bench/goals.md`, Reasons).
#[derive(Clone)]
pub(super) struct Slots(Arc<Semaphore>);

impl Slots {
    /// Creates this number of slots.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count * WHOLE as usize)))
    }

    /// The deletions that fit this number of slots.
    pub const fn deletions(count: usize) -> usize {
        count * WHOLE as usize / DELETION as usize
    }

    /// Whether a write would not wait.
    pub fn is_free(&self) -> bool {
        self.0.available_permits() >= WHOLE as usize
    }

    /// Waits for the slot of a write, in the order of the calls.
    pub async fn slot(&self, is_deletion: bool) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_many_owned(if is_deletion { DELETION } else { WHOLE }).await.ok()
    }
}
