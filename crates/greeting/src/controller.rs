//! Connects Greetings with the queue and the plan, and their lines with standard output.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::lock;
use quintet_runtime::model::object::{Key, Object as _};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::write::executor::{Error, Execution};

use crate::CONTROLLER;
use crate::api::{Greeting, GreetingStatus};
use crate::line::most_bytes;
use crate::metrics::{Said, problems};
use crate::observe::{Memory, World};
use crate::plan::{Effect, plan};
use crate::printer::Printer;

struct Greetings {
    context: Context,
    printer: Printer,
    said: Said,
    identity: String,
    claims: AtomicU64,
    memory: Mutex<HashMap<Arc<str>, Memory>>,
}

impl Greetings {
    /// Returns a unique token.
    fn token(&self) -> String {
        format!("{}-{}", self.identity, self.claims.fetch_add(1, Ordering::Relaxed))
    }
}

impl Reconciler for Greetings {
    type Object = Greeting;
    type Status = GreetingStatus;
    type World = World;
    type Effect = Effect;

    fn status<'a>(&self, object: &'a Greeting) -> Option<&'a GreetingStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &Greeting, _refusals: Refusals) -> Result<World, Error> {
        let term = self.context.gate.term().ok_or(Error::NotLeading)?;
        let led = SignedDuration::try_from(term.since.elapsed()).unwrap_or_default();
        let recalled = lock(&self.memory).get_mut(&object.key().uid).map(|memory| memory.recall(object));
        let recalled = recalled.unwrap_or_default();
        let room = match &recalled.owed {
            Some(owed) => Ok(owed.say.room.clone()),
            None => self.printer.reserve(most_bytes(object.spec.message.as_deref().unwrap_or_default())),
        };
        Ok(World {
            // A claim that may still be stored is sent again with the same token.
            token: recalled.owed.as_ref().map_or_else(|| self.token(), |owed| owed.token.clone()),
            leading_since: self.context.clock.now().checked_sub(led).unwrap_or(Timestamp::MIN),
            recalled,
            room,
        })
    }

    fn plan(&self, object: &Greeting, world: &World, now: Timestamp) -> Plan<GreetingStatus, Effect> {
        plan(object, world, now)
    }

    fn effect(&self, object: &Greeting, effect: Effect) -> Result<(), String> {
        let say = lock(&self.memory).entry(object.key().uid).or_default().take(effect);
        say.map_or(Ok(()), |say| {
            self.said.count(&say);
            self.printer.print(say.lines, say.room)
        })
    }

    fn executed(&self, key: &Key, execution: &Execution) {
        if execution.failure.as_ref().is_some_and(Error::is_rejection)
            && let Some(memory) = lock(&self.memory).get_mut(&key.uid)
        {
            memory.reject();
        }
    }

    fn forget(&self, key: &Key) {
        lock(&self.memory).remove(&key.uid);
    }
}

/// Adds the Greeting controller to the process. `identity` is unique to the process.
pub fn register(context: &Context, identity: &str, printer: Printer) -> Result<(), prometheus::Error> {
    let objects = context.informer::<Greeting>(Resource::of::<Greeting>(), None);
    context.find_problems_in(&objects, problems);
    let reconciler = Greetings {
        context: context.clone(),
        said: Said::register(&context.metrics.registry, printer.clone())?,
        printer: printer.clone(),
        identity: identity.to_owned(),
        claims: AtomicU64::new(0),
        memory: Mutex::default(),
    };
    let controller = Controller::new(context, CONTROLLER, reconciler, objects, []);
    context.spawn_controller(CONTROLLER, async move {
        controller.run().await;
        // An orderly exit loses no claimed line.
        let flushed = tokio::task::spawn_blocking(move || printer.flush()).await;
        if let Ok(Err(lines)) = flushed {
            tracing::error!(lines, "standard output was too slow; these lines are lost");
        }
    });
    Ok(())
}
