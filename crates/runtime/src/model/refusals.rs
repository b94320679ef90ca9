//! What the API server refused for one owner, and until when it is not asked again.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::resource::{PODS, Resource};

/// What is done to an object.
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
    /// A status that claims something.
    Claim,
    /// An effect of a kind's own: it is no write.
    Effect,
}

/// Why something was refused, as far as it is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// An object of this name exists already.
    AlreadyExists,
    /// An object of this name exists already and is not the owner's.
    NameTaken,
    /// The pod exists already and has lost the label that the watch selects by.
    LabelsMissing,
    /// An apply that the server cannot carry out because what is stored does not fit the schema.
    Untyped,
    /// Anything else: the message says more.
    Other,
}

impl RefusalReason {
    /// Whether it is about the name of an object and not about the object.
    pub fn is_of_the_name(self) -> bool {
        matches!(self, Self::NameTaken | Self::LabelsMissing)
    }
}

/// An answer of the API server that counts against one object of ours (a pod, say) and not against its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was tried.
    pub verb: Verb,
    /// Why.
    pub reason: RefusalReason,
    /// The server's words.
    pub message: String,
    /// How often in a row.
    pub times: u32,
    /// Not tried again before.
    pub until: Timestamp,
}

/// What was refused for one owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refusals {
    by_target: BTreeMap<(Verb, &'static str, String), Refusal>,
    /// No pod is made for this owner before this one's time: a quota is exceeded, or one creation after the other was
    /// refused. It stays until a creation has gone through.
    pub creations: Option<Refusal>,
    /// The owner's namespace is being deleted: nothing can be made in it any more, whatever is tried.
    pub namespace_terminating: bool,
}

impl Refusals {
    /// The refusal to do `verb` to the object of this type and name, whether or not it may be tried again by now.
    pub fn of(&self, verb: Verb, resource: &Resource, name: &str) -> Option<&Refusal> {
        self.by_target.get(&(verb, resource.kind, name.to_owned()))
    }

    /// Until when this is not tried again, if it was refused.
    pub fn until(&self, verb: Verb, resource: &Resource, name: &str) -> Option<Timestamp> {
        if self.is_empty() {
            return None;
        }
        let stop = self.creations.as_ref().filter(|_| verb == Verb::Create && *resource == PODS);
        self.of(verb, resource, name).into_iter().chain(stop).map(|refusal| refusal.until).max()
    }

    /// Takes note of a refusal.
    pub fn insert(&mut self, resource: &Resource, name: impl Into<String>, refusal: Refusal) {
        self.by_target.insert((refusal.verb, resource.kind, name.into()), refusal);
    }

    /// Forgets what was refused to the object of this type and name: something went through.
    pub fn forget(&mut self, verb: Verb, resource: &Resource, name: &str) {
        self.by_target.remove(&(verb, resource.kind, name.to_owned()));
    }

    /// Forgets what does not pass.
    pub fn retain(&mut self, keep: impl Fn(&Refusal) -> bool) {
        self.by_target.retain(|_, refusal| keep(refusal));
    }

    /// One that still waits at this time, if there is any.
    pub fn waiting(&self, now: Timestamp) -> Option<&Refusal> {
        self.by_target.values().chain(&self.creations).find(|refusal| refusal.until > now)
    }

    /// Lets nothing wait longer than until then: what says otherwise was said before the clock was set back.
    pub fn wait_until_at_most(&mut self, latest: Timestamp) {
        for refusal in self.by_target.values_mut().chain(&mut self.creations) {
            refusal.until = refusal.until.min(latest);
        }
    }

    /// Forgets every refusal.
    pub fn clear(&mut self) {
        self.by_target.clear();
        self.creations = None;
    }

    /// Whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.by_target.is_empty() && self.creations.is_none()
    }
}
