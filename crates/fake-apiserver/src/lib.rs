//! An API server for tests: in memory, in the process of the test, and as slow or broken as a test wants it.
//!
//! [`Server::client`] gives the real client of kube, whose requests are answered without sockets, so that tokio's paused
//! clock works: an hour of a controller's life takes milliseconds. What the server keeps and answers is in [`store`];
//! [`types`] says which types there are, [`ownership`] is server-side apply, and [`models`] plays those who are missed
//! otherwise: scheduler, kubelets, garbage collector, node lifecycle.
//!
//! One seed gives one order of everything that the server decides: how long requests are on their way, and UIDs.
//!
//! # Where it differs from the real one
//!
//! [`conformance`] is a script that runs on both and must have the same answers. What it leaves out is not here, on
//! purpose: admission beyond schemas (no expression rules, no quota), strategic merge patches, `generateName`,
//! `/scale`, `managedFields` in answers, the defaults of core types that nobody of ours reads, and the two faces of an
//! Event (`v1` and `events.k8s.io/v1` are two types here). A continued list can be continued once. Orphaning is done at
//! once, where a controller does it later. Priority and fairness never say 429 unless a [`Script`] does.

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
use store::{Moment, Reply, Request, State, Target};
use types::Type;

/// The time of the wall when a server begins.
pub const ORIGIN: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// A request, before anything is done about it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Whose it is: the name that [`Server::connect`] was given.
    pub who: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `apply`, `merge`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The qualified plural: `pods`, `podsets.batch.tutorial.kubebuilder.io`; the path where it names no type.
    pub resource: String,
    /// `status`, or nothing.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name; of what is created, too.
    pub name: String,
    /// Whether it is a list, or a watch that begins with one, that any state answers, however old.
    pub may_be_old: bool,
    /// The body.
    pub body: Value,
}

impl Asked {
    /// Whether it changes anything.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// How long it is on its way before the server has it, besides the usual time.
    pub held: Duration,
    /// Whether the server never gets it, or refuses it.
    pub is_lost: bool,
    /// The server that gets it has come no further than to this revision, and for so long: a list or the beginning of a watch
    /// that may be old is; one that may not waits.
    pub behind: Option<(u64, Duration)>,
    /// What comes back.
    pub then: Then,
}

/// What comes back.
#[derive(Clone, Debug, Default)]
pub enum Then {
    /// The answer.
    #[default]
    Answer,
    /// This status instead, perhaps with Retry-After in seconds.
    Status(Value, Option<u32>),
    /// No status but this text, as of a proxy.
    Text(u16, &'static str),
    /// The connection breaks.
    Reset,
    /// Half of the answer.
    Truncated,
    /// Nothing, ever.
    Silence,
    /// The answer, so much later.
    Late(Duration),
}

/// A line of a watch that is about to be sent.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Who watches.
    pub who: &'a str,
    /// The qualified plural.
    pub resource: &'a str,
    /// `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
    pub type_: &'a str,
    /// The object.
    pub object: &'a Value,
    /// Whether it belongs to what a watch shows first.
    pub is_initial: bool,
}

/// What becomes of a line of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Showing {
    /// It is sent.
    #[default]
    AsIs,
    /// It is sent twice.
    Twice,
    /// It and all after it are sent so much later.
    Later(Duration),
    /// The watch ends instead.
    Close,
    /// The watch ends in the middle of it.
    Torn,
    /// The watch says that its version is too old (410) instead.
    Expired,
    /// So much later the watch says that its version is too old: whoever lists anew sees the later state alone.
    ExpiredLater(Duration),
    /// Nothing is sent any more, and nothing ends.
    Silence,
}

/// A change that was made.
pub struct Commit<'a> {
    /// When, by the wall's clock.
    pub now: Timestamp,
    /// Its revision.
    pub revision: u64,
    /// Whose it is.
    pub who: &'a str,
    /// The qualified plural.
    pub resource: String,
    /// The object as it was; of one that is gone, as it was last.
    pub old: Option<&'a Value>,
    /// The object as it is.
    pub new: Option<&'a Value>,
    /// Everything, after the change.
    pub state: &'a State,
}

/// What a test has to say, and what it is told. By default all goes well.
pub trait Script: Send + Sync {
    /// What becomes of a request; called when it is sent.
    fn request(&self, _asked: &Asked) -> Fate {
        Fate::default()
    }

    /// The server has carried a request out, or refused it; called for every request that it got.
    fn answered(&self, _asked: &Asked, _code: u16) {}

    /// What becomes of a line of a watch.
    fn line(&self, _shown: &Shown<'_>) -> Showing {
        Showing::AsIs
    }

    /// A change was made. The server waits meanwhile: this must not ask it anything.
    fn committed(&self, _commit: &Commit<'_>) {}
}

struct AllGoesWell;

impl Script for AllGoesWell {}

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
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

    /// Has a script decide and be told from now on.
    pub fn follow(&self, script: Arc<dyn Script>) {
        *lock(&self.inner.script) = script;
    }

    /// Adds the type that a CustomResourceDefinition makes.
    pub fn define(&self, crd: &Value) {
        if let Some(kind) = Type::defined_by(crd) {
            self.add(Arc::new(kind));
        }
    }

    /// Adds a type.
    pub fn add(&self, kind: Arc<Type>) {
        lock(&self.inner.state).types.push(kind);
    }

    /// Takes a type of a CustomResourceDefinition away, with its objects.
    pub fn undefine(&self, plural: &str) {
        lock(&self.inner.state).undefine(plural);
    }

    /// The wall's time.
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.inner.since.elapsed()).unwrap_or_default();
        ORIGIN.checked_add(elapsed).unwrap_or(ORIGIN)
    }

    /// A connection of somebody.
    pub fn connect(&self, who: &str) -> Connection {
        Connection::new(self.clone(), who)
    }

    /// A client of somebody, without limits of its own.
    pub fn client(&self, who: &str) -> kube::Client {
        kube::Client::new(self.connect(who), "default")
    }

    /// Becomes the newest revision whenever there is one.
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.inner.revision.subscribe()
    }

    /// Forgets what was before: watches and continued lists from before must begin anew.
    pub fn compact(&self) {
        lock(&self.inner.state).compact();
        self.inner.revision.send_modify(|_| {});
    }

    /// Looks at everything at one moment.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&lock(&self.inner.state))
    }

    /// The objects of a type, by its qualified plural.
    pub fn objects(&self, plural: &str) -> Vec<Arc<Value>> {
        self.look(|state| state.objects(plural).cloned().collect())
    }

    /// Carries a request out at once, past connections and scripts' troubles: for tests and [`models`]. Returns the code
    /// and the answer.
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

    /// An object by its path, or nothing.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (code, object) = self.ask("test", &Method::GET, path, "", None);
        (code == 200).then_some(object)
    }

    /// Makes an object in the collection of this path.
    pub fn create(&self, who: &str, path: &str, object: &Value) -> (u16, Value) {
        self.ask(who, &Method::POST, path, "application/json", Some(object))
    }

    /// A JSON merge patch.
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

    /// As it was at an older revision, where one is given and its log is still there; that is for reading.
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

    /// A number below `bound`, the next of this seed's.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        // xorshift64
        let mut dice = lock(&self.inner.dice);
        *dice ^= *dice << 13;
        *dice ^= *dice >> 7;
        *dice ^= *dice << 17;
        *dice % bound
    }
}
