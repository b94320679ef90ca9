//! The interface that a kind implements, so that [`crate::control::controller`] can run it.

use jiff::Timestamp;
use serde::Serialize;

use crate::model::object::{Key, Object};
use crate::model::plan::Plan;
use crate::model::refusals::Refusals;
use crate::write::executor::{Error, Execution};

/// A kind: how to observe and plan one object. Everything else is the same for all kinds.
pub trait Reconciler: Send + Sync + 'static {
    /// The custom resource.
    type Object: Object;
    /// Its status.
    type Status: Serialize + PartialEq + Send + Sync;
    /// The input of a plan besides the object.
    type World: Send + Sync;
    /// Side effects that only this kind has; `Infallible` if it has none.
    type Effect: Send;

    /// The current status of the object; None if it has none, as for a kind without a status.
    fn status<'a>(&self, _object: &'a Self::Object) -> Option<&'a Self::Status> {
        None
    }

    /// Whether a status shows that nothing is left to do, so that users wait for it. Such a status is written immediately.
    fn is_settled(&self, _status: &Self::Status) -> bool {
        false
    }

    /// Collects what the plan reads from the caches. Reads from the API server only where a rule of the kind requires
    /// it.
    fn observe(
        &self,
        object: &Self::Object,
        refusals: Refusals,
    ) -> impl Future<Output = Result<Self::World, Error>> + Send;

    /// Plans without I/O: the result depends only on the arguments.
    fn plan(
        &self,
        object: &Self::Object,
        world: &Self::World,
        now: Timestamp,
    ) -> Plan<Self::Status, Self::Effect>;

    /// Runs an effect of this kind. Must not wait.
    fn effect(&self, _object: &Self::Object, _effect: Self::Effect) -> Result<(), String> {
        Ok(())
    }

    /// Whether an object needs reconciles; called on each change and after a takeover.
    fn concerns(&self, _object: &Self::Object) -> bool {
        true
    }

    /// Whether the rest of a plan for `planned` still applies to the object as it is `now`; called before each write.
    fn still_applies(&self, planned: &Self::Object, now: &Self::Object) -> bool {
        now.generation() == planned.generation() && now.terminating() == planned.terminating()
    }

    /// Receives the result of a reconcile's writes, for the kind's own metrics and state.
    fn executed(&self, _key: &Key, _execution: &Execution) {}

    /// Whether every object gets one more reconcile at shutdown.
    fn has_last_pass(&self) -> bool {
        false
    }

    /// Whether the info log skips the reconciles of this kind, because they are many and small.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Drops what the kind has stored about a deleted object.
    fn forget(&self, _key: &Key) {}

    /// Drops what the kind has concluded from changes that a restore of etcd took back.
    fn restored(&self) {}
}
