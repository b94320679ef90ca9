//! Removes the finalizer from deleted Greetings while their kind is off, so that no deletion hangs.

use std::convert::Infallible;

use jiff::Timestamp;
use kube::Resource as _;
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::write::executor::Error;

use crate::FINALIZER;
use crate::api::{Greeting, GreetingStatus};
use crate::plan::let_go;

/// The sweeper's name in metrics and logs.
pub const NAME: &str = "greeting-sweeper";

struct Sweeper;

impl Reconciler for Sweeper {
    type Object = Greeting;
    type Status = GreetingStatus;
    type World = ();
    type Effect = Infallible;

    fn name(&self) -> &'static str {
        NAME
    }

    fn resource(&self) -> Resource {
        Resource::of::<Greeting>()
    }

    fn status<'a>(&self, object: &'a Greeting) -> Option<&'a GreetingStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, _object: &Greeting, _refusals: Refusals) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, object: &Greeting, _world: &(), _now: Timestamp) -> Plan<GreetingStatus> {
        let step = if self.concerns(object) { vec![let_go(object)] } else { Vec::new() };
        Plan { steps: Vec::from_iter((!step.is_empty()).then_some(step)), ..Plan::default() }
    }

    fn concerns(&self, object: &Greeting) -> bool {
        object.terminating()
            && object.meta().finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
    }

    fn is_quiet(&self) -> bool {
        true
    }
}

/// Adds the sweeper to a process in which the kind is off.
pub fn register(context: &Context) {
    let objects = context.optional_informer::<Greeting>(NAME, Resource::of::<Greeting>(), None);
    context.spawn_controller(NAME, Controller::new(context, Sweeper, objects, []).run());
}
