//! Objects that this kind applies and keeps as applied.
//!
//! An object is applied when the hash of what is wanted is not the one in its annotation, or when its generation is not the
//! one that our last apply returned. An apply that changes nothing changes no generation, so that a repetition is harmless.
//! The API server's merge decides what is ours: fields that other clients add stay. An object that another owner controls is
//! left alone, and one that is changed back again and again is repaired ever more seldom.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::{doubled, is_recent};
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Key, Meta, Object};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::refusals::{Refusal, Refusals, Verb};
use quintet_runtime::model::resource::Resource;
use serde_json::{Value, json};

use crate::api::{AppliedObject, PulsarConsumerStatus};

/// Annotation of what we apply: the hash of the last apply.
pub const APPLIED_ANNOTATION: &str = "quintet.dev/applied";
/// How soon to look again at an object of which no watch tells: one that another owner has, or one that is on its way out.
pub const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How soon to look again after an apply, because the watch shows nothing of one that changed nothing.
pub const FOLLOW_UP: SignedDuration = SignedDuration::from_secs(5);
/// How many repairs in a row follow at once when an object is changed back.
const REPAIRS: u32 = 3;
/// The longest wait between later repairs. The first is [`LOOK_AGAIN`], and each one doubles it.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(1);
/// How long an object must have stayed as applied for the count of repairs to start over, at least.
const HELD: SignedDuration = SignedDuration::from_mins(10);

/// The last apply of an object by this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The object's type.
    pub resource: Resource,
    /// The hash of what was applied.
    pub hash: String,
    /// When it was applied.
    pub at: Timestamp,
    /// How many times in a row it had been changed back.
    pub repairs: u32,
    /// The object's generation before the apply; 0 if there was no object.
    pub before: i64,
    /// The object after the apply, by the API server's answer; None until it is known.
    pub after: Option<AppliedObject>,
}

impl Attempt {
    /// Whether it was made within `wait` before now.
    pub fn is_recent(&self, wait: SignedDuration, now: Timestamp) -> bool {
        is_recent(self.at, wait, now)
    }

    /// Whether it changed the object's spec, as far as is known.
    fn has_changed(&self) -> bool {
        self.after.as_ref().is_none_or(|after| after.generation != self.before)
    }

    /// How long it must stand before the same is applied again.
    fn wait(&self) -> SignedDuration {
        let more = self.repairs.checked_sub(REPAIRS);
        more.map_or(SignedDuration::ZERO, |more| doubled(LOOK_AGAIN, more, LONGEST_WAIT))
    }
}

/// The last apply of each type by this process.
pub type Attempts = BTreeMap<Resource, Attempt>;

/// An object that can be kept.
pub trait Kept: Object {
    /// Its metadata, with our annotations.
    fn meta(&self) -> &Meta;
    /// Its spec, defaults and foreign fields included.
    fn spec(&self) -> &Value;
    /// The field manager that owns its replicas through the scale subresource.
    fn scaled_by(&self) -> Option<&str> {
        None
    }
}

impl Kept for Deployment {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn spec(&self) -> &Value {
        &self.spec
    }

    fn scaled_by(&self) -> Option<&str> {
        self.scaled_by.as_deref()
    }
}

/// What an object should be like.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// Its type.
    pub resource: Resource,
    /// The object that it is for.
    pub owner: &'a Key,
    /// Its name.
    pub name: String,
    /// Every field that we own and no other.
    pub body: Value,
}

/// What was applied before.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// What the status says of it.
    pub told: &'a [AppliedObject],
    /// What this process did.
    pub attempts: &'a Attempts,
    /// What the API server refused lately.
    pub refusals: &'a Refusals,
}

impl<'a> Past<'a> {
    /// What applies of a type returned: this process's last, then what the status says, which may be of another manager.
    pub fn returned(&self, resource: &Resource) -> impl Iterator<Item = &'a AppliedObject> {
        let (kind, told) = (resource.kind, self.told);
        let after = self.attempts.get(resource).and_then(|attempt| attempt.after.as_ref());
        after.into_iter().chain(told.iter().filter(move |one| one.kind == kind))
    }
}

/// Steps of a plan of this kind.
pub type Steps = Vec<Vec<Action<PulsarConsumerStatus, Attempt>>>;

/// How things stand with an object.
#[derive(Debug)]
pub enum Standing<'a, T> {
    /// It is as it should be.
    Settled(&'a T),
    /// It is to be applied now, by these steps.
    Due(Steps),
    /// It is being applied.
    Applying,
    /// The API server has refused it lately.
    Refused(&'a Refusal, Option<&'a T>),
    /// It was applied and changed back several times; when it is applied again.
    Overruled(&'a T, Timestamp),
    /// It is ours and on its way out.
    Terminating(&'a T),
    /// Another owner has an object of its name.
    NotOwned(&'a T),
    /// The object names this PulsarConsumer as its owner, and another operator made it.
    NeverApplied(&'a T),
}

impl<'a, T: Kept> Standing<'a, T> {
    /// How `found`, the object of the target's name, stands to the target.
    pub fn of(target: Target<'_>, found: Option<&'a T>, past: Past<'a>, now: Timestamp) -> Self {
        let Target { resource, owner, name, mut body } = target;
        let hash = format!("v1-{}", digest::of_json(&body, 16));
        body["metadata"]["annotations"] = json!({ APPLIED_ANNOTATION: hash });
        let mut attempt = Attempt { resource, hash, at: now, repairs: 0, before: 0, after: None };
        let own = match found {
            Some(found) if !is_of(found, owner) => return Self::NotOwned(found),
            Some(own) if own.terminating() => return Self::Terminating(own),
            Some(own) if !is_applied_once(own, &resource, past) => return Self::NeverApplied(own),
            own => own,
        };
        let is_kept = own.is_none_or(|own| is_visibly(own, &body, &attempt.hash));
        if let Some(own) = own
            && is_kept
            && past.returned(&resource).any(|one| *one == AppliedObject::of(&resource, own.meta()))
        {
            return Self::Settled(own);
        }
        let refused = |verb| past.refusals.of(verb, &resource, &name).filter(|refusal| refusal.until > now);
        // The merge patch that prepares an apply is part of it.
        if let Some(refusal) = [Verb::Apply, Verb::MergePatch].into_iter().find_map(refused) {
            return Self::Refused(refusal, own);
        }
        if let Some(own) = own {
            attempt.before = own.meta().generation;
            if let Some(last) = past.attempts.get(&resource).filter(|last| last.hash == attempt.hash) {
                let wait = last.wait();
                if last.is_recent(wait, now) {
                    return Self::Overruled(own, in_future(last.at, wait));
                }
                if last.is_recent(wait.max(HELD) * 2, now) {
                    attempt.repairs = last.repairs + u32::from(!is_kept || last.has_changed());
                }
            }
            // If another object has taken the name meanwhile, the API server refuses.
            body["metadata"]["uid"] = json!(own.meta().uid);
            let is_new = own.meta().annotations.get(APPLIED_ANNOTATION) != Some(&attempt.hash)
                && past.attempts.get(&resource).is_none_or(|last| last.hash != attempt.hash);
            if own.scaled_by().is_some()
                && !is_new
                && let Some(spec) = body["spec"].as_object_mut()
            {
                // An autoscaler would set them again at once. Only a change of the PulsarConsumer sets them.
                spec.remove("replicas");
            }
        }
        // An object that is not there yet may be somebody else's by the time it is applied.
        let (namespace, force) = (owner.namespace.clone(), own.is_some());
        let apply = Action::Apply { resource, namespace, name, body, force };
        Self::Due(vec![vec![apply], vec![Action::Effect(attempt)]])
    }

    /// Takes the steps that are due.
    pub fn take_due(&mut self) -> Steps {
        let Self::Due(steps) = self else { return Vec::new() };
        let steps = std::mem::take(steps);
        *self = Self::Applying;
        steps
    }

    /// The object, if it is ours.
    pub fn own(&self) -> Option<&'a T> {
        match self {
            Self::Settled(own) | Self::Overruled(own, _) | Self::Terminating(own) => Some(own),
            Self::Refused(_, own) => *own,
            Self::Due(_) | Self::Applying | Self::NotOwned(_) | Self::NeverApplied(_) => None,
        }
    }

    /// What the status says of its last apply.
    pub fn applied(&self, resource: &Resource, past: Past<'_>) -> Option<AppliedObject> {
        match self {
            Self::Settled(own) => Some(AppliedObject::of(resource, own.meta())),
            _ => past.returned(resource).next().cloned(),
        }
    }

    /// When to look again, because no watch tells.
    pub fn look_again(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Settled(_) | Self::Applying => None,
            Self::Due(_) => Some(in_future(now, FOLLOW_UP)),
            Self::Refused(refusal, _) => Some(refusal.until),
            Self::Overruled(_, at) => Some(*at),
            Self::Terminating(_) | Self::NotOwned(_) | Self::NeverApplied(_) => {
                Some(in_future(now, LOOK_AGAIN))
            }
        }
    }

    /// The reason of a condition that is False because of it, and what to say; None where it is as it should be, or will
    /// be in a moment.
    pub fn trouble(&self, resource: &Resource, name: &str) -> Option<(&'static str, String)> {
        let what = format!("{} {name}", resource.kind);
        match self {
            Self::Settled(_) | Self::Due(_) | Self::Applying => None,
            Self::Refused(refusal, _) => {
                Some(("Refused", format!("{what} was refused: {}", refusal.message)))
            }
            Self::Overruled(..) => Some((
                OVERRULED,
                format!(
                    "{what} was applied several times, and something changed it back each time: look for an admission \
                     webhook or another controller, with `kubectl get --show-managed-fields`."
                ),
            )),
            Self::Terminating(_) => Some((TERMINATING, format!("{what} is being deleted, then made again."))),
            Self::NeverApplied(_) => Some((
                NOT_OWNED,
                format!(
                    "{what} was made for this PulsarConsumer by another operator. Delete it, and the manager makes its \
                     own: kubectl delete {} {name}",
                    resource.plural
                ),
            )),
            Self::NotOwned(found) => {
                let owner = match &found.meta().owner {
                    Some(owner) if *owner.kind == *"PulsarConsumer" => {
                        format!("{} {} (UID {})", owner.kind, owner.name, owner.uid)
                    }
                    Some(owner) => format!("{} {}", owner.kind, owner.name),
                    None => "nobody".to_owned(),
                };
                Some((
                    NOT_OWNED,
                    format!(
                        "{what} exists already and belongs to {owner}. It is left alone: delete it, or give this \
                         PulsarConsumer another name."
                    ),
                ))
            }
        }
    }
}

/// The reason where an object is somebody else's.
pub const NOT_OWNED: &str = "NotOwned";
/// The reason where something changes an object back.
pub const OVERRULED: &str = "Overruled";
/// The reason where an object of ours is on its way out.
pub const TERMINATING: &str = "Terminating";

/// Whether an object's controller is `owner`.
pub fn is_of(found: &impl Kept, owner: &Key) -> bool {
    found.meta().is_controlled_by(owner)
}

/// `now` and a while.
pub fn in_future(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Whether this kind ever applied an object. A webhook may remove the annotation, and then the UID tells.
fn is_applied_once(own: &impl Kept, resource: &Resource, past: Past<'_>) -> bool {
    let meta = own.meta();
    meta.annotations.get(APPLIED_ANNOTATION).is_some()
        || past.returned(resource).any(|one| *one.uid == *meta.uid)
}

/// Whether an object has our annotation and labels, whose change changes no generation, and our replicas, unless something
/// else scales it.
fn is_visibly(own: &impl Kept, body: &Value, hash: &str) -> bool {
    let meta = own.meta();
    let labels = body["metadata"]["labels"].as_object();
    meta.annotations.get(APPLIED_ANNOTATION) == Some(hash)
        && labels.into_iter().flatten().all(|(key, value)| meta.labels.get(key) == value.as_str())
        && (own.scaled_by().is_some() || own.spec()["replicas"] == body["spec"]["replicas"])
}
