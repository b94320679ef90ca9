//! The writes that the API server rejected for one owner, and when each may be retried.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::object::Meta;
use crate::model::resource::{PODS, Resource};

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Verb {
    /// POST.
    Create,
    /// DELETE.
    Delete,
    /// Server-side apply.
    Apply,
    /// JSON patch.
    #[strum(serialize = "patch")]
    JsonPatch,
    /// JSON merge patch.
    #[strum(serialize = "merge")]
    MergePatch,
    /// Server-side apply of the status.
    #[strum(serialize = "update")]
    Status,
    /// A status that contains a claim.
    Claim,
    /// An effect of a kind, which is not a write.
    Effect,
}

/// The reason of a refusal, as far as the manager distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// An object with this name already exists.
    AlreadyExists,
    /// An object with this name already exists and has another controller.
    NameTaken,
    /// The pod already exists and has lost the label that the watch selects by.
    LabelsMissing,
    /// The API server created the object without a label of the request, so the object was deleted again.
    LabelsOverwritten,
    /// The API server cannot apply, because the stored object does not fit the schema.
    Untyped,
    /// Any other reason; see the message.
    Other,
}

/// A rejected write to an object that the manager creates, such as a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of the write.
    pub verb: Verb,
    /// The reason.
    pub reason: RefusalReason,
    /// The API server's message.
    pub message: String,
    /// Refusals in a row.
    pub times: u32,
    /// The earliest time of the next attempt.
    pub until: Timestamp,
}

/// The refusals of one owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refusals {
    by_target: BTreeMap<(Verb, &'static str, String), Refusal>,
    /// Blocks all pod creations of this owner until its time: a quota is exceeded, or several creations in a row were
    /// rejected. It stays until a creation succeeds.
    pub creations: Option<Refusal>,
    /// Whether the owner's namespace is being deleted, so that no object can be created in it.
    pub namespace_terminating: bool,
    /// The UIDs of objects that were created without a label of the request and could not be deleted, by name. They
    /// outlast a change of the spec.
    pub left: BTreeMap<String, Arc<str>>,
}

impl Refusals {
    /// The refusal of `verb` for the object with this type and name, even if its backoff is over.
    pub fn of(&self, verb: Verb, resource: &Resource, name: &str) -> Option<&Refusal> {
        self.by_target.get(&(verb, resource.kind, name.to_owned()))
    }

    /// Whether this object was created without a label of the request, and could not be deleted.
    pub fn has_left(&self, meta: &Meta) -> bool {
        self.left.get(&*meta.name) == Some(&meta.uid)
    }

    /// When a rejected write may be retried.
    pub fn until(&self, verb: Verb, resource: &Resource, name: &str) -> Option<Timestamp> {
        if self.is_empty() {
            return None;
        }
        let stop = self.creations.as_ref().filter(|_| verb == Verb::Create && *resource == PODS);
        self.of(verb, resource, name).into_iter().chain(stop).map(|refusal| refusal.until).max()
    }

    /// Stores a refusal.
    pub fn insert(&mut self, resource: &Resource, name: impl Into<String>, refusal: Refusal) {
        self.by_target.insert((refusal.verb, resource.kind, name.into()), refusal);
    }

    /// Drops the refusal of `verb` for this object.
    pub fn forget(&mut self, verb: Verb, resource: &Resource, name: &str) {
        self.by_target.remove(&(verb, resource.kind, name.to_owned()));
    }

    /// Drops every refusal for which `keep` returns false, except `creations`.
    pub fn retain(&mut self, keep: impl Fn(&Refusal) -> bool) {
        self.by_target.retain(|_, refusal| keep(refusal));
    }

    /// A refusal whose backoff is not over, if there is one.
    pub fn waiting(&self, now: Timestamp) -> Option<&Refusal> {
        self.by_target.values().chain(&self.creations).find(|refusal| refusal.until > now)
    }

    /// Limits every backoff to `latest`. A longer one dates from before the clock was set back.
    pub fn wait_until_at_most(&mut self, latest: Timestamp) {
        for refusal in self.by_target.values_mut().chain(&mut self.creations) {
            refusal.until = refusal.until.min(latest);
        }
    }

    /// Drops every refusal.
    pub fn clear(&mut self) {
        self.by_target.clear();
        self.creations = None;
    }

    /// Whether there is no refusal.
    pub fn is_empty(&self) -> bool {
        self.by_target.is_empty() && self.creations.is_none()
    }
}
