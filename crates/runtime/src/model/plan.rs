//! A plan: everything that should be done for one object now, as data.
//!
//! A kind's `plan.rs` is a pure function that makes one; the [`crate::write::executor`] alone carries it out.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::refusals::{Refusals, Verb};
use crate::model::resource::Resource;

/// What should be done for one object, and what its status is if nothing more happens.
///
/// `S` is the kind's status, `E` its own effects (a greeting's line); most kinds have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S, E = Infallible> {
    /// The writes. Steps are taken in order, each only if the one before went through; the actions of one step
    /// run side by side.
    pub steps: Vec<Vec<Action<S, E>>>,
    /// The whole status; None leaves it as it is. It is written only where it differs from the cached one, and only if the object
    /// has not changed since: a late status of a predecessor must not count, and the API server ignores the UID there.
    pub status: Option<S>,
    /// News for `kubectl describe`.
    pub events: Vec<Event>,
    /// When time alone would change the answer.
    pub again: Option<Timestamp>,
}

impl<S, E> Default for Plan<S, E> {
    fn default() -> Self {
        Self { steps: Vec::new(), status: None, events: Vec::new(), again: None }
    }
}

impl<S, E> Plan<S, E> {
    /// Looks again at `at`, or earlier if that was wished before.
    pub fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |already| already.min(at)));
    }

    /// Drops the actions that were refused lately, and looks again when the first of them may be tried again: no plan can make a
    /// hot loop. All other writes go on, those of later steps too. Claims and effects that follow do not, nor do the events of
    /// such a plan: they state what was written before them.
    pub fn withhold(&mut self, refusals: &Refusals, now: Timestamp) {
        let mut first: Option<Timestamp> = None;
        for step in &mut self.steps {
            let is_owed = first.is_some();
            step.retain(|action| match action.target() {
                Some((verb, resource, name)) => {
                    let until = refusals.until(verb, resource, name).filter(|until| *until > now);
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
            self.look_again(until);
        }
    }
}

/// One write, or one effect of the kind's own.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<S, E = Infallible> {
    /// POST an object. Its name is deterministic: AlreadyExists is news, not an error.
    Create {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name, the same as in the body.
        name: String,
        /// The object.
        body: Body,
    },
    /// DELETE an object if it is still the one that was seen.
    Delete {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
        /// Precondition.
        uid: Arc<str>,
        /// Precondition, where the decision depends on more than the identity.
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
        /// The object, with every field that we own and no other.
        body: Value,
        /// Whether fields of other managers are taken over. Not so on first creation, where a stranger's
        /// object of the same name must be left alone.
        force: bool,
    },
    /// JSON patch, with its own `test` operations.
    Patch {
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
    Merge {
        /// Type.
        resource: Resource,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
        /// What changes.
        body: Value,
    },
    /// Writes the status with resourceVersion, so that of several claimants one wins. The steps that follow are
    /// taken only if this process won: after an unclear answer the object is read and `token` looked for in
    /// `status.claim.token`.
    Claim {
        /// The whole status.
        status: S,
        /// What makes this claim ours.
        token: String,
    },
    /// Something of the kind's own, handed to [`crate::control::reconciler::Reconciler::effect`].
    Effect(E),
}

impl<S, E> Action<S, E> {
    /// What it writes: the verb, the type and the name. None for a claim and an effect, which concern the owner itself.
    pub fn target(&self) -> Option<(Verb, &Resource, &str)> {
        match self {
            Self::Create { resource, name, .. } => Some((Verb::Create, resource, name)),
            Self::Delete { resource, name, .. } => Some((Verb::Delete, resource, name)),
            Self::Apply { resource, name, .. } => Some((Verb::Apply, resource, name)),
            Self::Patch { resource, name, .. } => Some((Verb::JsonPatch, resource, name)),
            Self::Merge { resource, name, .. } => Some((Verb::MergePatch, resource, name)),
            Self::Claim { .. } | Self::Effect(_) => None,
        }
    }
}

/// An object as JSON text: a plan may make thousands, and a tree of each would take ten times as much memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(Box<[u8]>);

impl Body {
    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.0).unwrap_or_default()
    }
}

impl From<Value> for Body {
    fn from(value: Value) -> Self {
        Self(value.to_string().into_bytes().into())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Good or neutral news.
    Normal,
    /// Something that a person should look at.
    Warning,
}

/// News about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Good news or not.
    pub type_: EventType,
    /// Reason, CamelCase, from a fixed set.
    pub reason: &'static str,
    /// What was done or tried, CamelCase.
    pub action: &'static str,
    /// What a person reads.
    pub note: String,
}

/// Pods that one plan makes, so that memory stays small. Between two of them nothing is sent: the first waits for its
/// answers and the second for the watch.
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
        Action::Create { resource: PODS, namespace: "n".into(), name, body: json!({}).into() }
    }

    /// What was refused for a minute.
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
    fn withholds_what_was_refused_and_nothing_else() {
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
    fn withholds_every_creation_while_creations_wait() {
        let mut refusals = refused(&["a"]);
        refusals.creations = refusals.of(Verb::Create, &PODS, "a").cloned();
        refusals.forget(Verb::Create, &PODS, "a");
        let mut plan = Plan { steps: vec![vec![create("b")]], ..Plan::default() };
        plan.withhold(&refusals, NOW);
        assert!(plan.steps.is_empty() && plan.again.is_some());
    }
}
