//! Wires Greetings to the queue and the plan, and their lines to standard output.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::executor::Error;
use quintet_kit::object::{Key, Object as _};
use quintet_kit::plan::{Action, Plan, Refusals};
use quintet_kit::resource::Resource;
use quintet_kit::shared::Shared;

use crate::CONTROLLER;
use crate::api::{Greeting, GreetingStatus};
use crate::observe::World;
use crate::plan::{Say, plan};
use crate::printer::Printer;

struct Greetings {
    shared: Shared,
    printer: Printer,
    identity: String,
    passes: AtomicU64,
    ticked: Mutex<HashMap<Arc<str>, Timestamp>>,
    /// The tokens of claims that were sent and whose lines are not said yet.
    claimed: Mutex<HashMap<Arc<str>, String>>,
}

impl Greetings {
    fn claimed(&self) -> MutexGuard<'_, HashMap<Arc<str>, String>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticked(&self) -> MutexGuard<'_, HashMap<Arc<str>, Timestamp>> {
        self.ticked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconciler for Greetings {
    type Object = Greeting;
    type Status = GreetingStatus;
    type World = World;
    type Effect = Say;

    fn name(&self) -> &'static str {
        CONTROLLER
    }

    fn resource(&self) -> Resource {
        Resource::of::<Greeting>()
    }

    fn status<'a>(&self, object: &'a Greeting) -> Option<&'a GreetingStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &Greeting, _refusals: Refusals) -> Result<World, Error> {
        let term = self.shared.gate.term().ok_or(Error::NotLeading)?;
        let led = SignedDuration::try_from(term.since.elapsed()).unwrap_or_default();
        let pass = self.passes.fetch_add(1, Ordering::Relaxed);
        Ok(World {
            token: self
                .claimed()
                .get(&object.key().uid)
                .cloned()
                .unwrap_or_else(|| format!("{}-{pass}", self.identity)),
            leading_since: self.shared.clock.now().checked_sub(led).unwrap_or(Timestamp::MIN),
            ticked: self.ticked().get(&object.key().uid).copied(),
        })
    }

    fn plan(&self, object: &Greeting, world: &World, now: Timestamp) -> Plan<GreetingStatus, Say> {
        let plan = plan(object, world, now);
        if plan.steps.iter().flatten().any(|action| matches!(action, Action::Claim { .. })) {
            self.claimed().insert(object.key().uid, world.token.clone());
        }
        plan
    }

    fn effect(&self, object: &Greeting, say: Say) -> Result<(), String> {
        self.claimed().remove(&object.key().uid);
        if let Some(tick) = say.tick {
            self.ticked().insert(object.key().uid, tick);
        }
        self.printer.print(say.lines)
    }

    fn forget(&self, key: &Key) {
        self.ticked().remove(&key.uid);
        self.claimed().remove(&key.uid);
    }
}

/// Adds the Greeting controller to the process, which is known to others by `identity`.
pub fn register(shared: &Shared, identity: &str, printer: Printer) {
    let objects = shared.informer::<Greeting>("greetings", Resource::of::<Greeting>(), None);
    let reconciler = Greetings {
        shared: shared.clone(),
        printer: printer.clone(),
        identity: identity.to_owned(),
        passes: AtomicU64::new(0),
        ticked: Mutex::default(),
        claimed: Mutex::default(),
    };
    let controller = Controller::new(shared, reconciler, objects, []);
    shared.spawn_controller(CONTROLLER, async move {
        controller.run().await;
        // An orderly end loses no line that was claimed.
        let flushed = tokio::task::spawn_blocking(move || printer.flush()).await.unwrap_or(false);
        if !flushed {
            tracing::warn!("standard output did not take all lines in time");
        }
    });
}
