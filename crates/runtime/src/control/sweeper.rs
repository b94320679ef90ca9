//! Removes a finalizer from deleted objects of a disabled kind, so that no deletion hangs.

use std::convert::Infallible;
use std::marker::PhantomData;

use jiff::Timestamp;

use crate::control::context::Context;
use crate::control::controller::Controller;
use crate::control::reconciler::Reconciler;
use crate::model::finalizer;
use crate::model::object::Object;
use crate::model::plan::Plan;
use crate::model::refusals::Refusals;
use crate::model::resource::Resource;
use crate::write::executor::Error;

struct Sweeper<K> {
    finalizer: &'static str,
    kind: PhantomData<fn() -> K>,
}

impl<K: kube::Resource<DynamicType = ()> + Object> Reconciler for Sweeper<K> {
    type Object = K;
    type Status = ();
    type World = ();
    type Effect = Infallible;

    async fn observe(&self, _object: &K, _refusals: Refusals) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, object: &K, _world: &(), _now: Timestamp) -> Plan<()> {
        let removal = self.concerns(object).then(|| vec![finalizer::remove(object, self.finalizer)]);
        Plan { steps: Vec::from_iter(removal), ..Plan::default() }
    }

    fn concerns(&self, object: &K) -> bool {
        object.terminating() && finalizer::has(object, self.finalizer)
    }

    fn is_quiet(&self) -> bool {
        true
    }
}

/// Adds the sweeper of a disabled kind to the process. Metrics and logs contain `name`.
pub fn register<K>(context: &Context, name: &'static str, finalizer: &'static str)
where
    K: kube::Resource<DynamicType = ()> + Object,
{
    let objects = context.optional_informer::<K>(Resource::of::<K>(), None);
    let sweeper = Sweeper { finalizer, kind: PhantomData };
    context.spawn_controller(name, Controller::new(context, name, sweeper, objects, []).run());
}
