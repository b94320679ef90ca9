//! Executes plans. Only this module writes to the API server.
//!
//! Each write first asks the gate whether this process may still write; the remaining time is its deadline. Writes
//! run concurrently in a sliding window. Answers are done, stale, refused (one object waits) or failed (all wait).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use crate::cache::tracked::TrackedCache;
use crate::model::clock::Clock;
use crate::model::object::{Key, Meta, MetaOnly};
use crate::model::plan::{Action, Body};
use crate::model::progress::revision;
use crate::model::refusals::{RefusalReason, Verb};
use crate::model::resource::{PODS, Resource};
use crate::server::client::{CALL, Resting, WINDOW, ask_in_term, brief};
use crate::server::gate::Gate;
use crate::server::live_reads::LiveReads;
use crate::write::answer::{Answer, Sorted, sort};
use crate::write::owner_memory::OwnerMemory;
use crate::write::request::{self, Write};
use crate::write::slots::Slots;
use crate::{FIELD_MANAGER, KIND_LABEL};

/// The slots of a kind's writes without urgency.
const BACKGROUND_WINDOW: usize = 4;
/// The shortest time between two lists because of an object that is older than the cache.
const RESTORED_AGAIN: Duration = Duration::from_mins(10);
/// This number of new refusals in a row ends the execution of a plan, because they probably share one cause.
const STOP_AFTER: usize = 3;

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process does not hold the Lease.
    #[error("this process does not hold the lease")]
    NotLeading,
    /// The API server could not be reached, asked for a later retry, or gave an answer with an unknown outcome.
    #[error("{verb} {object}: {error}")]
    Unanswered {
        /// The verb of the request.
        verb: Verb,
        /// The object of the request.
        object: String,
        /// The error instead of a usable answer.
        error: String,
        /// Whether the API server answered with InternalError itself. Such a server may still accept other requests.
        is_said: bool,
    },
    /// The object has changed since the plan was made.
    #[error("{0} has changed meanwhile")]
    Stale(String),
    /// The API server rejected a write to the owner itself.
    #[error("the API server rejected {object}: {message}")]
    Refused {
        /// The object of the write.
        object: String,
        /// The API server's message.
        message: String,
    },
    /// A read for the plan failed.
    #[error("{}", brief(.0))]
    Read(#[from] kube::Error),
    /// The effect of a kind failed.
    #[error("{0}")]
    Effect(String),
}

impl Error {
    /// Whether the API server rejected a status of the owner, or a webhook that must allow the status failed.
    pub fn is_rejection(&self) -> bool {
        let is_failed_webhook = matches!(self, Self::Unanswered { verb: Verb::Status, is_said: true, .. });
        is_failed_webhook || matches!(self, Self::Refused { .. })
    }
}

/// The object of a plan, and the term in which the plan was made. No write follows the plan in a later term.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The object.
    pub key: &'a Key,
    /// The type of the object.
    pub resource: Resource,
    /// The resourceVersion of the object in the plan.
    pub version: &'a str,
    /// The start of the term.
    pub since: Instant,
}

/// The result of executing the steps of a plan.
#[derive(Debug, Default)]
pub struct Execution {
    /// The number of successful writes.
    pub writes: usize,
    /// Whether all actions of all steps succeeded.
    pub complete: bool,
    /// Whether a refusal was stored that the next plan must read.
    pub refused: bool,
    /// Whether an object differed from what the plan saw. The reconcile is repeated soon, because the cache may never
    /// show it (an object that existed only for a moment).
    pub is_stale: bool,
    /// The successful writes, for logs and Events: verb, kind and name.
    pub done: Vec<(Verb, &'static str, String)>,
    /// The metadata of each applied object, as the API server returned it.
    pub applied: Vec<(Resource, Meta)>,
    /// The refused writes: verb, name, and the API server's message.
    pub refusals: Vec<(Verb, String, String)>,
    /// The first failure; no action starts after it.
    pub failure: Option<Error>,
}

impl Execution {
    /// Adds the result of later steps.
    pub fn extend(&mut self, later: Self) {
        self.writes += later.writes;
        self.complete &= later.complete;
        self.refused |= later.refused;
        self.is_stale |= later.is_stale;
        self.done.extend(later.done);
        self.applied.extend(later.applied);
        self.refusals.extend(later.refusals);
        self.failure = self.failure.take().or(later.failure);
    }
}

/// The only writer of the process.
#[derive(Clone)]
pub struct Executor {
    client: Client,
    /// Whether this process may write.
    pub gate: Gate,
    /// The slots of one kind's requests: a slow webhook for the objects of a kind must not delay other kinds.
    pub(super) slots: Slots,
    /// The slots of the kind's writes without urgency, beside the others.
    background: Slots,
    /// Reads from the API server instead of a cache.
    pub reads: LiveReads,
    /// Refusals, and writes that the caches must still show, by owner.
    pub memory: Arc<OwnerMemory>,
}

impl Executor {
    /// Creates an executor that writes while `gate` is open.
    pub fn new(client: Client, gate: Gate, clock: Clock) -> Self {
        Self {
            reads: LiveReads::new(client.clone()),
            client,
            gate,
            slots: Slots::new(WINDOW),
            background: Slots::new(BACKGROUND_WINDOW),
            memory: Arc::new(OwnerMemory::new(clock)),
        }
    }

    /// The same executor for another kind, with a window of its own.
    #[must_use]
    pub fn windowed(&self) -> Self {
        let (slots, background) = (Slots::new(WINDOW), Slots::new(BACKGROUND_WINDOW));
        Self { slots, background, reads: LiveReads::new(self.client.clone()), ..self.clone() }
    }

    /// The same executor for writes without urgency, which have few slots, so that they cost other clients little. `None` if
    /// all these slots are in use.
    pub fn in_background(&self) -> Option<Self> {
        self.background.is_free().then(|| Self { slots: self.background.clone(), ..self.clone() })
    }

    /// Whether the caches of a namespace follow their watches, and were listed since the last restore of etcd.
    pub fn is_current(&self, namespace: &str, caches: &[Arc<dyn TrackedCache>]) -> bool {
        caches.iter().all(|cache| !cache.covers(namespace) || self.gate.is_current(&cache.progress()))
    }

    /// Reads each object whose write has an unknown outcome, so that the next plan waits until the caches show it.
    pub async fn clarify(&self, of: Planned<'_>) -> Result<(), Error> {
        let owner = of.key;
        for (place, deleted) in self.memory.unanswered(owner) {
            let (resource, namespace, name) = &place;
            let found = match self.reads.read_meta(resource, namespace, name).await {
                // If the type is no longer served, the written object is gone too.
                Err(error) if resource.custom && !self.reads.is_served(resource).await.unwrap_or(true) => {
                    tracing::debug!(error = brief(&error), "the type of the written object is gone");
                    None
                }
                found => found?,
            };
            if let Some(meta) = &found {
                self.compare(of, resource, meta);
                self.wrote(owner, *resource, meta);
            }
            let is_gone = |uid: &Arc<str>| found.as_ref().is_none_or(|meta| meta.uid != *uid);
            if let Some(uid) = deleted.filter(is_gone) {
                let key = Key { namespace: namespace.clone(), name: name.as_str().into(), uid };
                self.memory.deleted(owner, *resource, key);
            }
            self.memory.ambiguous(owner, |ambiguous| ambiguous.remove(&place));
        }
        Ok(())
    }

    /// Reports a restore of etcd if the object of a plan was read in an older version than the cache has. The watch cache of an
    /// API server that was not restarted stays wrong, so new lists may change nothing.
    fn compare(&self, of: Planned<'_>, resource: &Resource, read: &Meta) {
        let is_same = *resource == of.resource && read.uid == of.key.uid;
        if is_same && (1..revision(of.version)).contains(&revision(&read.resource_version)) {
            let (object, cache, store) = (of.key, of.version, &*read.resource_version);
            if self.gate.restored(Instant::now().checked_sub(RESTORED_AGAIN)) {
                tracing::warn!(%object, cache, store, "etcd was restored; listing everything again");
            }
        }
    }

    /// Records a version of an object that the store has. A list that is older shows a restore of etcd.
    fn wrote(&self, owner: &Key, resource: Resource, meta: &Meta) {
        self.gate.wrote(resource, revision(&meta.resource_version));
        self.memory.wrote(owner, resource, meta);
    }

    /// Executes the steps in order while `still` returns true: the plan applies to the current object. The caller has
    /// removed waiting refusals from `steps`; see [`OwnerMemory::withhold`].
    pub async fn execute<S, E>(
        &self,
        of: Planned<'_>,
        steps: Vec<Vec<Action<S, E>>>,
        still: &(dyn Fn() -> bool + Sync),
        effect: impl Fn(E) -> Result<(), String>,
    ) -> Execution
    where
        S: Serialize,
    {
        let mut execution = Execution { complete: true, ..Execution::default() };
        for (index, step) in steps.into_iter().enumerate() {
            // The process that made a claim or a patch must also run the effects that follow it.
            let claimed = index > 0;
            let stop = AtomicBool::new(false);
            let (stop, effect) = (&stop, &effect);
            let answers = futures::stream::iter(step)
                // Only one action of a reconcile waits for a slot, so that reconciles take turns, and so that a failure
                // stops the actions that still wait.
                .then(|action| {
                    let is_effect = matches!(action, Action::Effect(_));
                    let is_deletion = matches!(action, Action::Delete { .. });
                    let slots = self.slots.clone();
                    let is_over = stop.load(Ordering::Relaxed) || !is_effect && !still();
                    async move {
                        let slot = if is_effect || is_over { None } else { slots.slot(is_deletion).await };
                        (action, is_effect, slot)
                    }
                })
                .map(|(action, is_effect, slot)| async move {
                    if stop.load(Ordering::Relaxed) || !is_effect && !still() {
                        return None;
                    }
                    let what = describe(&action, of);
                    let answer = self.act(of, action, claimed, effect).await;
                    drop(slot);
                    Some((what, answer))
                })
                .buffer_unordered(Slots::deletions(WINDOW));
            let mut answers = pin!(answers);
            let mut refused_in_a_row = 0;
            while let Some(answer) = answers.next().await {
                if let Some((what, answer)) = answer {
                    if self.settle(of.key, what, answer, &mut refused_in_a_row, &mut execution) {
                        stop.store(true, Ordering::Relaxed);
                    }
                } else {
                    execution.complete = false;
                }
            }
            if !execution.complete {
                break;
            }
        }
        execution
    }

    /// Records an answer. Returns whether to start no more actions of this step.
    fn settle(
        &self,
        owner: &Key,
        (verb, resource, name): (Verb, Resource, String),
        answer: Result<Answer, Error>,
        refused_in_a_row: &mut usize,
        execution: &mut Execution,
    ) -> bool {
        execution.complete &= matches!(answer, Ok(Answer::Done(_)));
        if verb == Verb::MergePatch && matches!(answer, Ok(Answer::Done(_) | Answer::Stale)) {
            self.memory.forget_creation(owner, &resource, &name);
        }
        match answer {
            Ok(Answer::Done(meta)) => {
                *refused_in_a_row = 0;
                if verb != Verb::Effect {
                    execution.writes += 1;
                    self.memory.accepted(owner, verb, &resource, &name);
                    if let (Verb::Apply, Some(meta)) = (verb, meta) {
                        execution.applied.push((resource, *meta));
                    }
                    execution.done.push((verb, resource.kind, name));
                }
                false
            }
            Ok(Answer::Stale) => {
                execution.is_stale = true;
                false
            }
            Ok(Answer::NamespaceTerminating) => {
                // The next plan reads this in its refusals.
                execution.refused |= self.memory.namespace_terminates(owner);
                true
            }
            Ok(Answer::Refused { reason, message, stops_creations }) => {
                execution.refused = true;
                let stops_creations = stops_creations && resource == PODS;
                let what = (verb, &resource, &*name);
                let is_new = self.memory.refused(owner, what, reason, &message, stops_creations);
                // A problem with one name, or an earlier refusal, does not concern the other objects.
                let is_new =
                    is_new && !matches!(reason, RefusalReason::NameTaken | RefusalReason::LabelsMissing);
                *refused_in_a_row += usize::from(is_new);
                let is_pod = verb == Verb::Create && resource == PODS;
                if is_pod && !stops_creations && is_new && *refused_in_a_row == STOP_AFTER {
                    self.memory.pause_creations(owner, &name);
                }
                execution.refusals.push((verb, name, message));
                stops_creations || *refused_in_a_row >= STOP_AFTER
            }
            Err(error) => {
                execution.failure.get_or_insert(error);
                true
            }
        }
    }

    async fn act<S: Serialize, E>(
        &self,
        of: Planned<'_>,
        action: Action<S, E>,
        claimed: bool,
        effect: impl Fn(E) -> Result<(), String>,
    ) -> Result<Answer, Error> {
        let mut labels = None;
        let write = match action {
            Action::Create { resource, namespace, name, owner_label: label, body } => {
                let create = request::create(resource, namespace, name, &body);
                labels = label.map(|owner| Labels { owner, body });
                create
            }
            Action::Delete { resource, namespace, name, uid, resource_version } => {
                request::delete(resource, namespace, &name, uid, resource_version.as_deref())
            }
            Action::Apply { resource, namespace, name, owner_label: label, body, force } => {
                let apply = request::apply(resource, namespace, name, &body, force);
                labels = label.map(|owner| Labels { owner, body: body.into() });
                apply
            }
            Action::JsonPatch { resource, namespace, name, operations } => {
                request::json_patch(resource, namespace, &name, &operations)
            }
            Action::MergePatch { resource, namespace, name, body } => {
                request::merge_patch(resource, namespace, &name, &body)
            }
            Action::Claim { status, token } => {
                return self.claim(of, &status, &token).await;
            }
            Action::Effect(own) => {
                // A claim is carried through even if this process has lost the Lease meanwhile.
                if !claimed && !self.gate.fence(of.since).holds() {
                    return Err(Error::NotLeading);
                }
                return effect(own).map(|()| Answer::Done(None)).map_err(Error::Effect);
            }
        };
        let (verb, resource, namespace, name) =
            (write.verb, write.resource, write.namespace.clone(), write.name.clone());
        match self.write(of, write).await? {
            Answer::Refused { reason: RefusalReason::AlreadyExists, .. } if verb == Verb::Create => {
                self.met(of, (resource, namespace), &name, labels).await
            }
            Answer::Done(Some(meta)) => match labels {
                Some(labels) if labels.missing(of.key, &meta).is_some() => {
                    self.undo(of, verb, (resource, namespace), &meta, &labels).await
                }
                _ => Ok(Answer::Done(Some(meta))),
            },
            answer => Ok(answer),
        }
    }

    /// Deletes an object that was created without a label of the request, or removes the owner reference of one that was
    /// adopted without it. If that is rejected, tries to restore the labels.
    async fn undo(
        &self,
        of: Planned<'_>,
        verb: Verb,
        (resource, namespace): (Resource, Arc<str>),
        meta: &Meta,
        labels: &Labels,
    ) -> Result<Answer, Error> {
        let is_adopted = verb == Verb::Apply;
        let undo = if is_adopted {
            // Without them, the API server removes all fields that the adoption added.
            let identity = json!({ "name": &*meta.name, "namespace": &*namespace, "uid": &*meta.uid });
            let body = json!({ "apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": identity });
            request::apply(resource, namespace.clone(), meta.name.to_string(), &body, true)
        } else {
            request::delete(resource, namespace.clone(), &meta.name, meta.uid.clone(), None)
        };
        let undone = if is_adopted { "released" } else { "deleted" };
        let owner = of.key;
        self.memory.leave(owner, &meta.name, Some(&meta.uid).filter(|_| !is_adopted));
        let outcome = match self.write(of, undo).await {
            Ok(Answer::Refused { message, .. }) => {
                let body = labels.body.value();
                let body = json!({ "metadata": { "uid": &*meta.uid, "labels": body["metadata"]["labels"] } });
                let restore = request::merge_patch(resource, namespace, &meta.name, &body);
                if let Ok(Answer::Done(Some(restored))) = self.write(of, restore).await
                    && labels.missing(owner, &restored).is_none()
                {
                    self.memory.leave(owner, &meta.name, None);
                    return Ok(Answer::Done(Some(restored)));
                }
                format!("cannot be {undone}: {message}")
            }
            Err(error) => format!("may still exist: {error}"),
            Ok(_) => {
                self.memory.leave(owner, &meta.name, None);
                format!("was {undone}")
            }
        };
        let label = labels.missing(owner, meta).unwrap_or(labels.owner);
        let message = format!(
            "An admission policy removed or changed the label {label} of {} {}, which {outcome}; exempt the \
            objects that {FIELD_MANAGER} creates from the policy",
            resource.kind, meta.name
        );
        // The next creation would meet the same policy.
        let stops_creations = !is_adopted;
        Ok(Answer::Refused { reason: RefusalReason::LabelsOverwritten, message, stops_creations })
    }

    /// Handles a creation whose object already exists: our own object after a retried POST or a rejected deletion, or a
    /// foreign object.
    async fn met(
        &self,
        of: Planned<'_>,
        (resource, namespace): (Resource, Arc<str>),
        name: &str,
        labels: Option<Labels>,
    ) -> Result<Answer, Error> {
        let owner = of.key;
        let Some(meta) = self.reads.read_meta(&resource, &namespace, name).await? else {
            return Ok(Answer::Stale);
        };
        if let Some(labels) = &labels
            && labels.missing(owner, &meta).is_some()
            && self.memory.refusals(owner).has_left(&meta)
        {
            // While the object terminates or after its deletion, nothing shows that the policy still exists.
            if meta.deleted.is_some() {
                return Ok(Answer::Stale);
            }
            let answer = self.undo(of, Verb::Create, (resource, namespace), &meta, labels).await?;
            let is_gone = !self.memory.refusals(owner).has_left(&meta);
            let is_over = is_gone && matches!(answer, Answer::Refused { .. });
            return Ok(if is_over { Answer::Stale } else { answer });
        }
        let (reason, message) = if !meta.is_controlled_by(owner) {
            let belongs = meta.owner.map(|other| format!("{} {}", other.kind, other.name));
            let belongs = belongs.as_deref().unwrap_or("no controller");
            let message = format!("{} {name} exists already and belongs to {belongs}", resource.kind);
            (RefusalReason::NameTaken, message)
        } else if resource == PODS && meta.labels.get(KIND_LABEL).is_none() {
            // The Pod watch selects by this label, so the cache will never show this pod.
            let message = format!("Pod {name} exists already, but has lost its label {KIND_LABEL}");
            (RefusalReason::LabelsMissing, message)
        } else {
            self.wrote(owner, resource, &meta);
            return Ok(Answer::Stale);
        };
        Ok(Answer::Refused { reason, message, stops_creations: false })
    }

    /// Sends one write while the gate is open and for up to [`CALL`]. The caller has a slot in the window.
    pub(super) async fn write(&self, of: Planned<'_>, write: Write) -> Result<Answer, Error> {
        let owner = of.key;
        let Write { verb, resource, namespace, name, deletes, request } = write;
        let request = request.map_err(|error| Error::Read(kube::Error::HttpError(error)))?;
        if !self.gate.fence(of.since).holds() {
            return Err(Error::NotLeading);
        }
        // Record the write before it is sent: even if this task is cancelled, the next plan waits for the outcome.
        let place = (resource, namespace.clone(), name.clone());
        self.memory.ambiguous(owner, |ambiguous| ambiguous.insert(place.clone(), deletes.clone()));
        // If the Lease is renewed meanwhile, the deadline moves, because a slow webhook may need the time.
        let mut is_said = false;
        let sorted = match ask_in_term::<MetaOnly>(&self.client, &self.gate, of.since, CALL, request).await {
            None => Sorted::Ambiguous("the lease was lost, or not renewed in time".to_owned()),
            Some(Ok(only)) => {
                let meta = match deletes {
                    None => {
                        let meta = only.metadata;
                        self.wrote(owner, resource, &meta);
                        Some(Box::new(meta))
                    }
                    Some(uid) => {
                        let key = Key { namespace, name: name.as_str().into(), uid };
                        self.memory.deleted(owner, resource, key);
                        None
                    }
                };
                Sorted::Answer(Answer::Done(meta))
            }
            Some(Err(kube::Error::Api(status))) => {
                // A failed webhook has this reason. An error of etcd has none, and such a server gets no further
                // requests.
                is_said = status.code == 500 && status.reason == "InternalError";
                sort(verb, *status)
            }
            // The request was not sent.
            Some(Err(kube::Error::Service(error))) if error.is::<Resting>() => {
                Sorted::Later(error.to_string())
            }
            Some(Err(error)) => Sorted::Ambiguous(brief(&error)),
        };
        if !matches!(sorted, Sorted::Ambiguous(_)) {
            self.memory.ambiguous(owner, |ambiguous| ambiguous.remove(&place));
        }
        match sorted {
            Sorted::Answer(answer) => Ok(answer),
            Sorted::Later(error) | Sorted::Ambiguous(error) => {
                Err(Error::Unanswered { verb, object: format!("{} {name}", resource.kind), error, is_said })
            }
        }
    }
}

/// The labels of a request, which an admission policy must not remove.
struct Labels {
    /// The label with the owner's UID.
    owner: &'static str,
    /// The object of the request.
    body: Body,
}

impl Labels {
    /// The label that an object lacks, of those that no owner's object can be without.
    fn missing(&self, owner: &Key, meta: &Meta) -> Option<&'static str> {
        let has_owner = meta.labels.get(self.owner) == Some(&*owner.uid);
        let has_kind = meta.labels.get(KIND_LABEL).is_some();
        (!has_owner).then_some(self.owner).or_else(|| (!has_kind).then_some(KIND_LABEL))
    }
}

fn describe<S, E>(action: &Action<S, E>, of: Planned<'_>) -> (Verb, Resource, String) {
    let itself = || {
        let verb = if matches!(action, Action::Claim { .. }) { Verb::Claim } else { Verb::Effect };
        (verb, &of.resource, &*of.key.name)
    };
    let (verb, resource, name) = action.target().unwrap_or_else(itself);
    (verb, *resource, name.to_owned())
}
