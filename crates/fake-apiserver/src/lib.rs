//! An API server for tests: in memory, in the test's process, and as slow or broken as the test requires.
//!
//! [`Server::client`] returns kube's real client. Its requests are answered without sockets, so that tokio's
//! paused clock works: an hour of a controller takes milliseconds. [`store`] keeps objects and answers
//! requests, [`types`] has the types, [`ownership`] is server-side apply, and [`models`] plays scheduler,
//! kubelets, garbage collector and node lifecycle controller.
//!
//! A seed determines everything that the server decides: travel times and UIDs.
//!
//! # Differences from a real API server
//!
//! [`conformance`] is a script that both must answer equally. The server has no other features. Missing are
//! admission beyond schemas (expression rules, quota), strategic merge patches, `generateName`, `/scale`,
//! `managedFields` in answers, and defaults of core types that no plan reads. `v1` and `events.k8s.io/v1`
//! Events are two types. A continued list can be continued once. Only a [`Script`] answers 429.

pub mod conformance;
mod connection;
pub mod models;
pub mod ownership;
mod patch;
mod select;
pub mod store;
pub mod types;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

pub use connection::Connection;
use store::{Moment, Reply, Request, Snapshot, State, Target};
use types::Type;

/// The wall-clock time at which a server starts.
pub const ORIGIN: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// A request before it is executed.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The client, by the name given to [`Server::connect`].
    pub who: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `apply`, `merge`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The qualified plural: `pods`, `podsets.batch.tutorial.kubebuilder.io`; the path for an unknown type.
    pub resource: String,
    /// `status`, or empty.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name, also that of an object to create.
    pub name: String,
    /// Whether it is a list, or a watch that begins with one, for which any old state is good enough.
    pub may_be_old: bool,
    /// The body.
    pub body: Value,
}

impl Asked {
    /// Whether it may change an object.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// The decision of a script about a request.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// How long the request is delayed, besides the usual travel time.
    pub held: Duration,
    /// Whether the server does not execute the request.
    pub is_lost: bool,
    /// A revision that the server has not passed, and for how long. A list or watch that may be old gets this
    /// revision; another one waits.
    pub behind: Option<(u64, Duration)>,
    /// The answer that the client gets.
    pub then: Then,
}

/// The answer that a client gets.
#[derive(Clone, Debug, Default)]
pub enum Then {
    /// The server's answer.
    #[default]
    Answer,
    /// This status, perhaps with Retry-After in seconds.
    Status(Value, Option<u32>),
    /// This text without a status, as from a proxy.
    Text(u16, &'static str),
    /// A watch with only this status, as an event.
    Event(Value),
    /// A broken connection.
    Reset,
    /// Half of the server's answer.
    Truncated,
    /// No answer.
    Silence,
    /// The server's answer after a delay.
    Late(Duration),
}

/// A line of a watch that is about to be sent.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// The client that watches.
    pub who: &'a str,
    /// The qualified plural.
    pub resource: &'a str,
    /// `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
    pub type_: &'a str,
    /// The object.
    pub object: &'a Value,
    /// Whether it is part of the watch's initial state.
    pub is_initial: bool,
}

/// The decision of a script about a line of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Showing {
    /// Send the line.
    #[default]
    AsIs,
    /// Send the line twice.
    Twice,
    /// Delay this line and all later ones.
    Later(Duration),
    /// End the watch instead.
    Close,
    /// End the watch in the middle of the line.
    Torn,
    /// Report instead that the version is too old (410).
    Expired,
    /// Report after a delay that the version is too old. A new list has only the later state.
    ExpiredLater(Duration),
    /// Send nothing more, and keep the watch open.
    Silence,
}

/// A committed change.
pub struct Commit<'a> {
    /// The wall-clock time.
    pub now: Timestamp,
    /// Its revision.
    pub revision: u64,
    /// The client that made the change.
    pub who: &'a str,
    /// The qualified plural.
    pub resource: String,
    /// The object before the change; the last state of a deleted object.
    pub old: Option<&'a Value>,
    /// The object after the change.
    pub new: Option<&'a Value>,
    /// The server's state after the change.
    pub state: &'a State,
}

/// The decisions of a test about requests and watches, and its callbacks. By default there are no faults.
pub trait Script: Send + Sync {
    /// Decides about a request when it is sent.
    fn request(&self, _asked: &Asked) -> Fate {
        Fate::default()
    }

    /// Called for every request that the server executed or rejected.
    fn answered(&self, _asked: &Asked, _code: u16) {}

    /// Decides about a line of a watch.
    fn line(&self, _shown: &Shown<'_>) -> Showing {
        Showing::AsIs
    }

    /// Called for a change. The server is locked meanwhile, so this must not call it.
    fn committed(&self, _commit: &Commit<'_>) {}
}

struct AllGoesWell;

impl Script for AllGoesWell {}

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

/// A request that began in another epoch is lost.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// The number of restores of the store.
    restores: u64,
    /// The number of restarts of the server. A restart ends all watches.
    pub restarts: u64,
}

struct Inner {
    state: Mutex<State>,
    epoch: Mutex<Epoch>,
    script: Mutex<Arc<dyn Script>>,
    revision: watch::Sender<u64>,
    since: Instant,
    dice: Mutex<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// A server with the types of Kubernetes itself and the namespace `default`. Its clock is tokio's.
    pub fn new(seed: u64) -> Self {
        let server = Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State::new(seed)),
                epoch: Mutex::default(),
                script: Mutex::new(Arc::new(AllGoesWell)),
                revision: watch::Sender::new(0),
                since: Instant::now(),
                dice: Mutex::new(seed.wrapping_mul(2).wrapping_add(1)),
            }),
        };
        let default =
            serde_json::json!({ "metadata": { "name": "default" }, "status": { "phase": "Active" } });
        server.ask("test", &Method::POST, "/api/v1/namespaces", "application/json", Some(&default));
        server
    }

    /// Replaces the script.
    pub fn follow(&self, script: Arc<dyn Script>) {
        *lock(&self.inner.script) = script;
    }

    /// Adds the type of a CustomResourceDefinition.
    pub fn define(&self, crd: &Value) {
        if let Some(kind) = Type::defined_by(crd) {
            self.add(Arc::new(kind));
        }
    }

    /// Adds a type.
    pub fn add(&self, kind: Arc<Type>) {
        lock(&self.inner.state).types.push(kind);
    }

    /// Removes the type of a CustomResourceDefinition and its objects.
    pub fn undefine(&self, plural: &str) {
        lock(&self.inner.state).undefine(plural);
    }

    /// The wall-clock time.
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.inner.since.elapsed()).unwrap_or_default();
        ORIGIN.checked_add(elapsed).unwrap_or(ORIGIN)
    }

    /// A connection of a client with this name.
    pub fn connect(&self, who: &str) -> Connection {
        Connection::new(self.clone(), who)
    }

    /// A client with this name, without client-side limits.
    pub fn client(&self, who: &str) -> kube::Client {
        kube::Client::new(self.connect(who), "default")
    }

    /// Receives the newest revision.
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.inner.revision.subscribe()
    }

    /// Drops the log: older watches and continued lists must start again.
    pub fn compact(&self) {
        lock(&self.inner.state).compact();
        self.inner.revision.send_modify(|_| {});
    }

    /// A backup of the store, for [`Self::restore`].
    pub fn snapshot(&self) -> Snapshot {
        self.look(State::snapshot)
    }

    /// Restores the store from a backup, as `etcdutl snapshot restore` does, while the server runs. Requests under way are
    /// lost. An open watch gets no event until the store passes the revision of the watch. With `bump`, which is added to the
    /// revision, open watches end because their revision is too old. Unlike the real server, this one lists the restored objects
    /// at once, even without `bump`.
    pub fn restore(&self, snapshot: &Snapshot, bump: u64) {
        lock(&self.inner.epoch).restores += 1;
        let mut state = lock(&self.inner.state);
        state.restore(snapshot, bump);
        let revision = state.revision;
        drop(state);
        self.inner.revision.send_replace(revision);
    }

    /// Restarts the server: watches end, and requests under way are lost.
    pub fn restart(&self) {
        lock(&self.inner.epoch).restarts += 1;
        self.inner.revision.send_modify(|_| {});
    }

    pub(crate) fn epoch(&self) -> Epoch {
        *lock(&self.inner.epoch)
    }

    /// Reads the state at one moment.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&lock(&self.inner.state))
    }

    /// The objects of a type, by its qualified plural.
    pub fn objects(&self, plural: &str) -> Vec<Arc<Value>> {
        self.look(|state| state.objects(plural).cloned().collect())
    }

    /// Executes a request immediately, without connections and scripts, for tests and [`models`]. Returns the
    /// status code and the answer.
    pub fn ask(
        &self,
        who: &str,
        method: &Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let Some(target) = Target::parse(path) else { return (404, Value::Null) };
        let request = Request {
            who: who.to_owned(),
            method: method.clone(),
            target,
            query: connection::parse_query(query),
            content_type: content_type.to_owned(),
            accept: String::new(),
            body: body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
        };
        match self.handle(&request) {
            Reply::Object(code, object) => (code, object),
            Reply::Text(code, text) => (code, Value::from(text)),
            Reply::Watch(_) => (200, Value::Null),
        }
    }

    /// An object by its path; `None` if it does not exist.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (code, object) = self.ask("test", &Method::GET, path, "", None);
        (code == 200).then_some(object)
    }

    /// Creates an object in the collection at this path.
    pub fn create(&self, who: &str, path: &str, object: &Value) -> (u16, Value) {
        self.ask(who, &Method::POST, path, "application/json", Some(object))
    }

    /// Sends a JSON merge patch.
    pub fn merge(&self, who: &str, path: &str, patch: &Value) -> (u16, Value) {
        self.ask(who, &Method::PATCH, path, "application/merge-patch+json", Some(patch))
    }

    /// Deletes an object or a collection.
    pub fn delete(&self, who: &str, path: &str, options: &Value) -> (u16, Value) {
        self.ask(who, &Method::DELETE, path, "application/json", Some(options))
    }

    pub(crate) fn script(&self) -> Arc<dyn Script> {
        lock(&self.inner.script).clone()
    }

    pub(crate) fn handle(&self, request: &Request) -> Reply {
        self.handle_as_of(request, None)
    }

    /// As [`Self::handle`], or a read at an older revision if the log still has it.
    pub(crate) fn handle_as_of(&self, request: &Request, revision: Option<u64>) -> Reply {
        let script = self.script();
        let moment = Moment { now: self.now(), script: &*script, who: &request.who };
        let mut state = lock(&self.inner.state);
        if let Some(mut past) = revision.and_then(|revision| state.as_of(revision)) {
            return past.handle(request, &moment);
        }
        if request.query.get("dryRun").is_some_and(|dry_run| dry_run == "All") {
            let now = state.revision;
            if let Some(mut copy) = state.as_of(now) {
                let silent = Moment { now: moment.now, script: &AllGoesWell, who: &request.who };
                return copy.handle(request, &silent);
            }
        }
        let before = state.revision;
        let reply = state.handle(request, &moment);
        let after = state.revision;
        drop(state);
        if after != before {
            self.inner.revision.send_replace(after);
        }
        reply
    }

    /// The next pseudorandom number below `bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        // xorshift64
        let mut dice = lock(&self.inner.dice);
        *dice ^= *dice << 13;
        *dice ^= *dice >> 7;
        *dice ^= *dice << 17;
        *dice % bound
    }
}
