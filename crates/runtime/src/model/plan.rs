//! A plan: all writes that one object needs now, as data.
//!
//! A kind's `plan.rs` is a pure function that returns a plan; only [`crate::write::executor`] executes it.

use std::convert::Infallible;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::object::Meta;
use crate::model::refusals::{Refusals, Verb};
use crate::model::resource::Resource;

/// The writes for one object, and its status.
///
/// `S` is the status of the kind. `E` is its own effects, e.g. the line of a Greeting; most kinds have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S, E = Infallible> {
    /// The writes. Steps run in order, each only if the step before succeeded. The actions of one step run
    /// concurrently.
    pub steps: Vec<Vec<Action<S, E>>>,
    /// Writes without urgency, such as the removal of what is no longer needed; no claims and no effects. They run after the
    /// status, few at the same time, and only if the steps wrote nothing: after writes, another plan follows. A refused step
    /// does not stop them.
    pub background: Vec<Action<S, E>>,
    /// The whole status; None leaves it unchanged. It is written only if it differs from the cached one and the
    /// object has not changed since. The resourceVersion guards against a late write of a predecessor, because the
    /// API server ignores the UID there.
    pub status: Option<S>,
    /// The Events about the changes of the status. They are recorded with the status, which the next plan compares with.
    pub events: Vec<Event>,
    /// The Events about the writes. They are recorded when all writes have succeeded, because the next plan does not have
    /// their cause.
    pub repairs: Vec<Event>,
    /// When to plan again without an event, because the plan depends on the time.
    pub again: Option<Timestamp>,
}

impl<S, E> Default for Plan<S, E> {
    fn default() -> Self {
        let (steps, background) = (Vec::new(), Vec::new());
        Self { steps, background, status: None, events: Vec::new(), repairs: Vec::new(), again: None }
    }
}

impl<S, E> Plan<S, E> {
    /// Requeues at `at`, if it is a time, unless an earlier time is set.
    pub fn requeue_at(&mut self, at: impl Into<Option<Timestamp>>) {
        self.again = self.again.into_iter().chain(at.into()).min();
    }

    /// All actions, in their order.
    pub fn actions(&self) -> impl Iterator<Item = &Action<S, E>> {
        self.steps.iter().flatten().chain(&self.background)
    }

    /// Whether the plan has an action.
    pub fn has_actions(&self) -> bool {
        self.actions().next().is_some()
    }

    /// Drops the actions with a waiting refusal, and requeues when the first of them may be retried. So no plan can
    /// cause a hot loop. Other writes stay, even in later steps. Claims and effects of later steps are dropped, and
    /// with them the plan's Events, because they report the writes before them.
    pub fn withhold(&mut self, refusals: &Refusals, now: Timestamp) {
        let mut first: Option<Timestamp> = None;
        for step in self.steps.iter_mut().chain([&mut self.background]) {
            let is_owed = first.is_some();
            step.retain(|action| match action.target() {
                Some(_) => {
                    let until = action.waits_until(refusals, now);
                    first = first.into_iter().chain(until).min();
                    until.is_none()
                }
                None if is_owed => {
                    self.events.clear();
                    false
                }
                None => true,
            });
        }
        if let Some(until) = first {
            self.steps.retain(|step| !step.is_empty());
            self.requeue_at(until);
        }
    }
}

/// One write, or one effect of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<S, E = Infallible> {
    /// POST an object. Its name is deterministic, so AlreadyExists makes the plan stale and is not an error.
    Create {
        /// The type.
        resource: Resource,
        /// The namespace.
        namespace: Arc<str>,
        /// The name, equal to the one in the body.
        name: String,
        /// A label that the object must have, with the owner's UID, besides that of the watch. If the API server creates
        /// the object without one of them, the executor deletes the object, and the creation counts as rejected.
        owner_label: Option<&'static str>,
        /// The object.
        body: Body,
    },
    /// DELETE an object, if it is still the one that the plan saw.
    Delete {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
        /// A precondition.
        uid: Arc<str>,
        /// A precondition, if the decision depends on more than the UID.
        resource_version: Option<Box<str>>,
    },
    /// Server-side apply.
    Apply {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name, the same as in the body.
        name: String,
        /// As for [`Action::Create`], for an object that gets an owner.
        owner_label: Option<&'static str>,
        /// The object, with exactly the fields that the manager owns.
        body: Value,
        /// Whether to take over fields of other managers. False on the first creation, which must not change a
        /// foreign object with the same name.
        force: bool,
    },
    /// JSON patch, with its own `test` operations.
    JsonPatch {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
        /// The operations.
        operations: Value,
    },
    /// JSON merge patch. A uid or resourceVersion in its metadata is a precondition.
    MergePatch {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
        /// The changes.
        body: Value,
    },
    /// Writes the status with its resourceVersion, so that only one of several claimants succeeds. Later steps run
    /// only if this process succeeded. After an unclear answer, the executor reads the object and compares
    /// `status.claim.token` with `token`.
    Claim {
        /// The whole status.
        status: S,
        /// Identifies this claim.
        token: String,
    },
    /// An effect of the kind, for [`crate::control::reconciler::Reconciler::effect`].
    Effect(E),
}

impl<S, E> Action<S, E> {
    /// DELETE of an observed object, perhaps only if it has not changed since.
    pub fn delete(resource: Resource, meta: &Meta, if_unchanged: bool) -> Self {
        Self::Delete {
            resource,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: if_unchanged.then(|| meta.resource_version.0.clone()),
        }
    }

    /// JSON patch of an observed object.
    pub fn json_patch(resource: Resource, meta: &Meta, operations: Value) -> Self {
        Self::JsonPatch { resource, namespace: meta.namespace.clone(), name: meta.name.clone(), operations }
    }

    /// JSON merge patch of an observed object.
    pub fn merge_patch(resource: Resource, meta: &Meta, body: Value) -> Self {
        Self::MergePatch { resource, namespace: meta.namespace.clone(), name: meta.name.clone(), body }
    }

    /// The verb, type and name of the write. None for a claim and an effect, which concern the owner itself.
    pub fn target(&self) -> Option<(Verb, &Resource, &str)> {
        match self {
            Self::Create { resource, name, .. } => Some((Verb::Create, resource, name)),
            Self::Delete { resource, name, .. } => Some((Verb::Delete, resource, name)),
            Self::Apply { resource, name, .. } => Some((Verb::Apply, resource, name)),
            Self::JsonPatch { resource, name, .. } => Some((Verb::JsonPatch, resource, name)),
            Self::MergePatch { resource, name, .. } => Some((Verb::MergePatch, resource, name)),
            Self::Claim { .. } | Self::Effect(_) => None,
        }
    }

    /// When this write may be retried, if the API server rejected it and the time has not come.
    pub fn waits_until(&self, refusals: &Refusals, now: Timestamp) -> Option<Timestamp> {
        let (verb, resource, name) = self.target()?;
        refusals.until(verb, resource, name).filter(|until| *until > now)
    }
}

/// An object as JSON text. A plan may hold thousands, and a parsed tree takes ten times as much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(Box<str>);

impl Body {
    /// The text.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The object.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<Value> for Body {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
pub enum EventType {
    /// Normal operation.
    Normal,
    /// A problem that a user should look at.
    Warning,
}

/// An Event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Normal or Warning.
    pub type_: EventType,
    /// Reason, CamelCase, from a fixed set.
    pub reason: &'static str,
    /// The action of the manager, CamelCase.
    pub action: &'static str,
    /// The message for users.
    pub note: String,
}

/// The limit of pods that one plan creates, which limits memory use. Between two plans no write is sent: the first
/// waits for its answers, the second for the watch.
pub const MOST_CREATIONS: usize = 2_000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::refusals::{Refusal, RefusalReason};
    use crate::model::resource::PODS;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn create(name: &str) -> Action<(), ()> {
        let name = name.to_owned();
        Action::Create {
            resource: PODS,
            namespace: "n".into(),
            name,
            owner_label: None,
            body: json!({}).into(),
        }
    }

    /// Refusals of these pods that wait for a minute.
    fn refused(names: &[&str]) -> Refusals {
        let until = Timestamp::from_second(60).unwrap();
        let refusal = Refusal {
            verb: Verb::Create,
            reason: RefusalReason::Other,
            message: String::new(),
            times: 1,
            until,
        };
        let mut refusals = Refusals::default();
        for name in names {
            refusals.insert(&PODS, *name, refusal.clone());
        }
        refusals
    }

    #[test]
    fn withholds_only_refused_writes() {
        let steps = vec![vec![create("a")], vec![create("b"), create("c")]];
        let mut plan = Plan { steps, ..Plan::default() };
        let untouched = plan.clone();
        plan.withhold(&Refusals::default(), NOW);
        assert_eq!(plan, untouched);
        let refusals = refused(&["a", "b"]);
        plan.withhold(&refusals, NOW);
        assert_eq!(plan.steps, [[create("c")]], "an empty step stops nothing");
        let until = Timestamp::from_second(60).unwrap();
        assert_eq!(plan.again, Some(until));
        let mut later = untouched.clone();
        later.withhold(&refusals, until);
        assert_eq!(later, untouched, "its time has come");
    }

    #[test]
    fn withholds_effects_of_a_withheld_write() {
        let effect = || vec![Action::Effect(())];
        let event = Event { type_: EventType::Normal, reason: "Said", action: "Say", note: String::new() };
        let steps = vec![effect(), vec![create("a")], effect(), vec![create("b")]];
        let mut plan: Plan<(), ()> = Plan { steps, events: vec![event], ..Plan::default() };
        plan.withhold(&refused(&["a"]), NOW);
        assert_eq!(plan.steps, [effect(), vec![create("b")]]);
        assert!(plan.events.is_empty());
    }

    #[test]
    fn withholds_all_creations_while_creations_wait() {
        let mut refusals = refused(&["a"]);
        refusals.creations = refusals.of(Verb::Create, &PODS, "a").cloned();
        refusals.forget(Verb::Create, &PODS, "a");
        let mut plan = Plan { steps: vec![vec![create("b")]], ..Plan::default() };
        plan.withhold(&refusals, NOW);
        assert!(plan.steps.is_empty() && plan.again.is_some());
    }
}
