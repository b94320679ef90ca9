//! What a kind must say of itself, so that [`crate::control::controller`] can run it.

use jiff::Timestamp;
use serde::Serialize;

use crate::model::object::{Key, Object};
use crate::model::plan::Plan;
use crate::model::refusals::Refusals;
use crate::model::resource::Resource;
use crate::write::executor::{Error, Execution};

/// A kind: how one object of it is observed and planned. Everything else is the same for all kinds.
pub trait Reconciler: Send + Sync + 'static {
    /// The custom resource.
    type Object: Object;
    /// Its status.
    type Status: Serialize + PartialEq + Send + Sync;
    /// What a plan looks at besides the object.
    type World: Send + Sync;
    /// Effects of the kind's own; `Infallible` where it has none.
    type Effect: Send;

    /// The controller's name, as in `--controllers` and in metrics.
    fn name(&self) -> &'static str;

    /// Where the custom resource lives.
    fn resource(&self) -> Resource;

    /// The status that the object has now.
    fn status<'a>(&self, object: &'a Self::Object) -> Option<&'a Self::Status>;

    /// Gathers what the plan looks at, from the caches; reads past them only where a rule says so.
    fn observe(
        &self,
        object: &Self::Object,
        refusals: Refusals,
    ) -> impl Future<Output = Result<Self::World, Error>> + Send;

    /// The pure plan.
    fn plan(
        &self,
        object: &Self::Object,
        world: &Self::World,
        now: Timestamp,
    ) -> Plan<Self::Status, Self::Effect>;

    /// Carries out an effect of the kind's own. Must not wait.
    fn effect(&self, _object: &Self::Object, _effect: Self::Effect) -> Result<(), String> {
        Ok(())
    }

    /// Whether an object needs passes at all; asked when it changes and when this process takes over.
    fn concerns(&self, _object: &Self::Object) -> bool {
        true
    }

    /// What a pass over this object wrote, for metrics and memories of the kind's own.
    fn executed(&self, _key: &Key, _execution: &Execution) {}

    /// Whether every object gets one more pass when the process is asked to end.
    fn has_last_pass(&self) -> bool {
        false
    }

    /// Whether its passes are too many and too small to be logged one by one.
    fn is_quiet(&self) -> bool {
        false
    }

    /// The object is gone: forgets what was kept of it.
    fn forget(&self, _key: &Key) {}
}
