//! Objects that this kind applies and keeps in the applied state.
//!
//! An object is applied if its annotation has another hash, or if its generation is not the one that the last
//! apply returned, unless another client only scales it. An apply without a change does not change the
//! generation, so a repetition is harmless.
//! Server-side apply keeps fields of other clients. A foreign object is not changed, and an object that
//! another client keeps changing back is repaired with backoff.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::{doubled, is_recent};
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Key, Meta, Object};
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::refusals::{Refusal, Refusals, Verb};
use quintet_runtime::model::resource::Resource;
use serde_json::{Value, json};

use crate::api::{AppliedObject, PulsarConsumerStatus};

/// Annotation of applied objects: the hash of the last apply, and its `replicas` if it has them.
pub const APPLIED_ANNOTATION: &str = "quintet.dev/applied";
/// The requeue interval for a foreign or terminating object, which no watch shows.
pub const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// The requeue interval after an apply, because an apply without a change causes no event.
pub const FOLLOW_UP: SignedDuration = SignedDuration::from_secs(5);
/// The number of immediate repairs in a row.
const REPAIRS: u32 = 3;
/// The longest wait between later repairs. The first is [`LOOK_AGAIN`], and each one doubles it.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(1);
/// After this time without a change, the count of repairs starts over.
const HELD: SignedDuration = SignedDuration::from_mins(10);

/// The last apply of an object by this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The object's type.
    pub resource: Resource,
    /// The hash of the applied body.
    pub hash: String,
    /// The time of the apply.
    pub at: Timestamp,
    /// How many times in a row another client had changed it back.
    pub repairs: u32,
    /// The object's generation before the apply; 0 if there was no object.
    pub before: i64,
    /// The object after the apply, from the API server's answer; None until then.
    pub after: Option<AppliedObject>,
}

impl Attempt {
    /// Whether the apply is not older than `wait`.
    pub fn is_recent(&self, wait: SignedDuration, now: Timestamp) -> bool {
        is_recent(self.at, wait, now)
    }

    /// Whether it changed the object's spec, or may have.
    fn has_changed(&self) -> bool {
        self.after.as_ref().is_none_or(|after| after.generation != self.before)
    }

    /// The wait before the same apply is repeated.
    fn wait(&self) -> SignedDuration {
        let more = self.repairs.checked_sub(REPAIRS);
        more.map_or(SignedDuration::ZERO, |more| doubled(LOOK_AGAIN, more, LONGEST_WAIT))
    }
}

/// The effects of a plan besides writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Stores an apply.
    Attempt(Box<Attempt>),
    /// Tries once to delete the subscription at the admin API.
    DeleteSubscription,
}

/// The last apply of each type by this process.
pub type Attempts = BTreeMap<Resource, Attempt>;

/// An object that this module can keep.
pub trait ManagedObject: Object {
    /// Its metadata, with the annotation of this kind.
    fn meta(&self) -> &Meta;
    /// Its spec, including defaults and foreign fields.
    fn spec(&self) -> &Value;
    /// The field manager that owns its replicas through the scale subresource.
    fn scaled_by(&self) -> Option<&str> {
        None
    }
    /// A digest that changes with the spec, except with the replicas; None if no other client scales such objects.
    fn digest(&self) -> Option<String> {
        None
    }
}

impl ManagedObject for Deployment {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn spec(&self) -> &Value {
        &self.spec
    }

    fn scaled_by(&self) -> Option<&str> {
        self.scaled_by.as_deref()
    }

    fn digest(&self) -> Option<String> {
        let mut spec = self.spec.clone();
        // The digest of an earlier apply must not match.
        spec["replicas"] = json!(self.meta.annotations.get(APPLIED_ANNOTATION));
        Some(digest::of_json(&spec, 16))
    }
}

/// The desired state of an object.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// Its type.
    pub resource: Resource,
    /// Its owner.
    pub owner: &'a Key,
    /// Its name.
    pub name: String,
    /// Only the fields that this kind owns.
    pub body: Value,
    /// Whether the body depends on the found object, so that the API server must reject it if the object has
    /// changed.
    pub is_conditional: bool,
    /// Whether the body's replicas apply even if another client scales the object.
    pub overrides_scaler: bool,
}

/// Earlier applies.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// The applied objects in the status.
    pub reported: &'a [AppliedObject],
    /// The applies of this process.
    pub attempts: &'a Attempts,
    /// The recent refusals.
    pub refusals: &'a Refusals,
}

impl<'a> Past<'a> {
    /// The results of applies of a type: the last of this process, then the one in the status, perhaps of
    /// another manager.
    pub fn returned(&self, resource: &Resource) -> impl Iterator<Item = &'a AppliedObject> {
        let after = self.attempts.get(resource).and_then(|attempt| attempt.after.as_ref());
        after.into_iter().chain(self.reported_of(resource))
    }

    /// Whether the last apply of an object had another body than this one, and neither this process nor the status knows
    /// that apply. The manager that made it may know a newer owner. Without a body, there is nothing to apply.
    pub fn is_superseded(
        &self,
        resource: &Resource,
        own: &impl ManagedObject,
        body: impl FnOnce() -> Option<Value>,
    ) -> bool {
        let meta = own.meta();
        let Some(last) = meta.annotations.get(APPLIED_ANNOTATION) else { return false };
        // An apply that changes only metadata does not change the generation.
        let attempt = self.attempts.get(resource).filter(|attempt| *attempt.hash == *last);
        let after = attempt.and_then(|attempt| attempt.after.as_ref());
        // The digest includes the annotation.
        let mut reported = self.reported_of(resource).filter(|one| one.digest.is_some());
        let is_known = after.is_some_and(|after| after.is_unchanged(meta))
            || reported.any(|one| one.is_unchanged(meta) && one.digest == own.digest());
        !is_known && body().is_some_and(|body| *last != *hash_of(&body))
    }

    /// The applied object of a type in the status.
    fn reported_of(&self, resource: &Resource) -> impl Iterator<Item = &'a AppliedObject> + use<'a> {
        let (kind, reported) = (resource.kind, self.reported);
        reported.iter().filter(move |one| one.kind == kind)
    }
}

/// A plan of this kind.
pub type ConsumerPlan = Plan<PulsarConsumerStatus, Effect>;

/// The steps of a plan of this kind.
pub type Steps = Vec<Vec<Action<PulsarConsumerStatus, Effect>>>;

/// The state of an object compared with its target.
#[derive(Debug)]
pub enum ApplyState<'a, T> {
    /// It matches the target.
    Settled(&'a T),
    /// These steps apply it now.
    Due(Steps),
    /// It is being applied.
    Applying,
    /// The API server has recently rejected it.
    Refused(&'a Refusal, Option<&'a T>),
    /// Another client changed it back several times. The time of the next apply.
    Drifted(&'a T, Timestamp),
    /// It is our own and is being deleted.
    Terminating(&'a T),
    /// An object with its name belongs to another owner, or another operator created it for this PulsarConsumer.
    NotOwned(&'a T),
}

impl<'a, T: ManagedObject> ApplyState<'a, T> {
    /// Compares `found`, the object with the target's name, with the target.
    pub fn of(target: Target<'_>, found: Option<&'a T>, past: Past<'a>, now: Timestamp) -> Self {
        let Target { resource, owner, name, mut body, is_conditional, overrides_scaler } = target;
        let hash = hash_of(&body);
        body["metadata"]["annotations"] = json!({ APPLIED_ANNOTATION: hash });
        let mut attempt = Attempt { resource, hash, at: now, repairs: 0, before: 0, after: None };
        let own = match found {
            Some(found) if !is_of(found, owner) => return Self::NotOwned(found),
            Some(own) if own.terminating() => return Self::Terminating(own),
            Some(own) if !is_applied_once(own, &resource, past) => return Self::NotOwned(own),
            own => own,
        };
        let is_kept = own.is_none_or(|own| is_visibly(own, &body, &attempt.hash));
        if let Some(own) = own
            && is_kept
            && (past.returned(&resource).any(|one| one.is_unchanged(own.meta()))
                || is_only_scaled(own, &resource, past))
        {
            return Self::Settled(own);
        }
        let refused = |verb| past.refusals.of(verb, &resource, &name).filter(|refusal| refusal.until > now);
        // The apply includes the merge patch that prepares it.
        if let Some(refusal) = [Verb::Apply, Verb::MergePatch].into_iter().find_map(refused) {
            return Self::Refused(refusal, own);
        }
        if let Some(own) = own {
            attempt.before = own.meta().generation;
            if let Some(last) = past.attempts.get(&resource).filter(|last| last.hash == attempt.hash) {
                let wait = last.wait();
                if last.is_recent(wait, now) {
                    return Self::Drifted(own, in_future(last.at, wait));
                }
                if last.is_recent(wait.max(HELD) * 2, now) {
                    attempt.repairs = last.repairs + u32::from(!is_kept || last.has_changed());
                }
            }
            // If another object has the name now, the API server rejects the apply.
            body["metadata"]["uid"] = json!(own.meta().uid);
            if is_conditional {
                body["metadata"]["resourceVersion"] = json!(*own.meta().resource_version);
            }
            let last = past.attempts.get(&resource).map(|last| &*last.hash);
            let last = own.meta().annotations.get(APPLIED_ANNOTATION).or(last);
            let is_asked =
                last.and_then(replicas_of).is_some_and(|last| Some(last) != replicas_of(&attempt.hash));
            if own.scaled_by().is_some()
                && !(is_asked || overrides_scaler)
                && let Some(spec) = body["spec"].as_object_mut()
            {
                // The scaler's value stays, also if this kind owns the field too.
                spec.remove("replicas");
            }
        }
        // Without `force`, because another client may create the object before the apply.
        let (namespace, force) = (owner.namespace.clone(), own.is_some());
        let apply = Action::Apply { resource, namespace, name, owner_label: None, body, force };
        Self::Due(vec![vec![apply], vec![Action::Effect(Effect::Attempt(attempt.into()))]])
    }

    /// Returns the due steps, and marks the object as being applied.
    pub fn take_due(&mut self) -> Steps {
        let Self::Due(steps) = self else { return Vec::new() };
        let steps = std::mem::take(steps);
        *self = Self::Applying;
        steps
    }

    /// The object, if it is our own.
    pub fn own(&self) -> Option<&'a T> {
        match self {
            Self::Settled(own) | Self::Drifted(own, _) | Self::Terminating(own) => Some(own),
            Self::Refused(_, own) => *own,
            Self::Due(_) | Self::Applying | Self::NotOwned(_) => None,
        }
    }

    /// The last apply, for the status.
    pub fn applied(&self, resource: &Resource, past: Past<'_>) -> Option<AppliedObject> {
        match self {
            Self::Settled(own) => {
                let reported = past.reported_of(resource).find(|one| one.is_unchanged(own.meta()));
                let digest = reported.and_then(|one| one.digest.clone()).or_else(|| own.digest());
                Some(AppliedObject { digest, ..AppliedObject::of(resource, own.meta()) })
            }
            _ => past.returned(resource).next().cloned(),
        }
    }

    /// When to requeue without an event.
    pub fn requeue_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Settled(_) | Self::Applying => None,
            Self::Due(_) => Some(in_future(now, FOLLOW_UP)),
            Self::Refused(refusal, _) => Some(refusal.until),
            Self::Drifted(_, at) => Some(*at),
            Self::Terminating(_) | Self::NotOwned(_) => Some(in_future(now, LOOK_AGAIN)),
        }
    }

    /// The reason and message of a False condition; None if the object matches, or soon will.
    pub fn trouble(&self, resource: &Resource, name: &str) -> Option<(&'static str, String)> {
        let what = format!("{} {name}", resource.kind);
        match self {
            Self::Settled(_) | Self::Due(_) | Self::Applying => None,
            Self::Refused(refusal, _) => {
                Some(("Refused", format!("The API server rejected {what}: {}", refusal.message)))
            }
            Self::Drifted(..) => Some((
                DRIFTED,
                format!(
                    "Another client changed {what} back after several applies. Find the admission webhook or controller \
                     with `kubectl get --show-managed-fields`."
                ),
            )),
            Self::Terminating(_) => {
                Some((TERMINATING, format!("{what} is being deleted, and is then created again.")))
            }
            Self::NotOwned(found) => {
                let owner = found.meta().owner.as_ref().map_or_else(
                    || "no controller".to_owned(),
                    |owner| format!("{} {} (UID {})", owner.kind, owner.name, owner.uid),
                );
                Some((
                    NOT_OWNED,
                    format!(
                        "{what} belongs to {owner}, and this manager did not create it. Delete it, and the manager creates \
                         its own (kubectl delete {} {name}), or give this PulsarConsumer another name.",
                        resource.plural
                    ),
                ))
            }
        }
    }
}

/// The reason for a foreign object.
pub const NOT_OWNED: &str = "NotOwned";
/// The reason if another client changes an object back.
pub const DRIFTED: &str = "Drifted";
/// The reason while our own object is being deleted.
pub const TERMINATING: &str = "Terminating";

/// Whether an object's controller is `owner`.
pub fn is_of(found: &impl ManagedObject, owner: &Key) -> bool {
    found.meta().is_controlled_by(owner)
}

/// `now` plus `wait`.
pub fn in_future(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The value of the annotation for a body.
fn hash_of(body: &Value) -> String {
    let replicas = body["spec"]["replicas"].as_i64().map(|replicas| format!("-{replicas}"));
    format!("v1-{}{}", digest::of_json(body, 16), replicas.unwrap_or_default())
}

/// The replicas in a value of the annotation; None if it has none, as that of an earlier build.
fn replicas_of(hash: &str) -> Option<&str> {
    hash.splitn(3, '-').nth(2)
}

/// Whether this kind ever applied an object. If a webhook removed the annotation, the UID shows it.
fn is_applied_once(own: &impl ManagedObject, resource: &Resource, past: Past<'_>) -> bool {
    let meta = own.meta();
    meta.annotations.get(APPLIED_ANNOTATION).is_some()
        || past.returned(resource).any(|one| *one.uid == *meta.uid)
}

/// Whether another client has changed only the replicas since the status.
fn is_only_scaled(own: &impl ManagedObject, resource: &Resource, past: Past<'_>) -> bool {
    let same_uid = |one: &&AppliedObject| *one.uid == *own.meta().uid && one.digest.is_some();
    own.scaled_by().is_some()
        && past.reported_of(resource).find(same_uid).is_some_and(|one| one.digest == own.digest())
}

/// Whether an object has the annotation and labels of this kind, whose change does not change the generation.
/// Also compares the replicas, unless another client scales it.
fn is_visibly(own: &impl ManagedObject, body: &Value, hash: &str) -> bool {
    let meta = own.meta();
    let labels = body["metadata"]["labels"].as_object();
    meta.annotations.get(APPLIED_ANNOTATION) == Some(hash)
        && labels.into_iter().flatten().all(|(key, value)| meta.labels.get(key) == value.as_str())
        && (own.scaled_by().is_some() || own.spec()["replicas"] == body["spec"]["replicas"])
}
