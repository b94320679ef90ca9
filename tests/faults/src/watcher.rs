//! Injects the faults of a plan, and checks every request and write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use quintet_fake_apiserver::store::{Snapshot, State};
use quintet_fake_apiserver::{Asked, Commit, Fate, Script, Server, Showing, Shown, Then};
use quintet_pulsarconsumer::api::PulsarConsumerSpec;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::blindness::Blindness;
use crate::end;
use crate::moments::{Moment, Place, Recorder, Target};
use crate::plan::{Event, Fault, Plan, Trouble};
use crate::process::MANAGER;
use crate::promises::{Assessor, Knowledge};
use crate::settling::{DoneNode, Settling, settles};

/// The fault's orders to the task that runs the processes.
#[derive(Debug)]
pub enum Order {
    /// This process dies.
    Crash(String),
    /// This process gets SIGTERM.
    End(String),
    /// Another client's object is deleted again.
    RemoveStranger {
        /// The path of the object.
        path: String,
        /// The name of the object.
        name: String,
    },
    /// The run does not settle for this time.
    StayActive(Duration),
}

/// The part of a run that a watcher keeps, besides the violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// The steps, for a reader.
    Steps,
    /// The moments at which another fault can occur.
    Moments,
}

/// The process that is a standby from the beginning.
const STANDBY: &str = "manager-b-2";

/// The time for which a process is partitioned.
const CUT_OFF: Duration = Duration::from_secs(40);
/// The delay of a late request, longer than a takeover.
const LATE: Duration = Duration::from_secs(25);
/// The delay of a successor's watches.
const BEHIND: Duration = Duration::from_secs(8);
/// The time for which one process, or all of them, are blind; then the time to notice that they no longer are.
const BLIND: Duration = Duration::from_mins(5);
const ALL_BLIND: Duration = Duration::from_mins(25);
const RECOVERY: Duration = Duration::from_secs(100);
/// The age of a stale API server's state, longer than the actions between two pauses of a scenario.
const FAR_BEHIND: Duration = Duration::from_secs(10);
/// The delay of a watch, so that a write comes first.
const DELAYED: Duration = Duration::from_secs(5);
const REORDERED: Duration = Duration::from_millis(300);

/// The time for which an API server restarts, or rejects lists and watches.
const RESTART: Duration = Duration::from_secs(5);
/// The number that a restore adds to the version.
const BUMP: u64 = 1_000_000;

/// This many rejections of one write are a violation.
const OFTEN: usize = 30;

/// The time for which a late write excuses a violation.
const LATE_EXCUSED: Duration = Duration::from_secs(20);

/// Injects the faults of a plan and records violations.
pub struct Watcher {
    plan: Plan,
    server: Mutex<Option<Server>>,
    orders: mpsc::UnboundedSender<Order>,
    inner: Mutex<Inner>,
    keeps_trace: bool,
}

#[derive(Default)]
struct Inner {
    requests: BTreeMap<String, usize>,
    lines: BTreeMap<String, usize>,
    /// The number of faults that have occurred.
    hits: usize,
    /// Whether the standby has led. It is no longer blind then.
    has_standby_led: bool,
    recorder: Option<Recorder>,
    dead: BTreeSet<String>,
    cut_off: Vec<CutOff>,
    /// Processes whose watches are delayed: the prefix of their names, and until when.
    behind: Vec<(String, Instant)>,
    /// Processes with a write that arrives late, and until when.
    late: Vec<(String, Instant)>,
    /// The time of each revision.
    revisions: Vec<(Instant, u64)>,
    /// The revision of a stale API server, the prefix of its clients' names, and until when.
    stale: Option<(String, u64, Instant)>,
    blindness: Option<Blindness>,
    last_write: Option<Instant>,
    violations: BTreeSet<String>,
    excused: BTreeSet<String>,
    trace: Vec<String>,
    created: BTreeMap<String, usize>,
    deleted: BTreeMap<String, usize>,
    /// The number of objects that were created for a deleted owner, which only delayed views allow.
    for_the_dead: usize,
    /// Completed writes: process, verb, type, and the name of a created or the UID of a deleted object.
    done: BTreeSet<(String, &'static str, String, String)>,
    /// The number of rejections of each write of each process.
    rejected: BTreeMap<(String, String, String), usize>,
    /// The names that another client has taken, and that no status or Event has reported, with the UIDs of the owners that
    /// need the names.
    unreported: BTreeMap<String, String>,
    /// The writes of the requests that had a fault.
    unclear: BTreeSet<(String, &'static str, String, String)>,
    doubled: BTreeMap<String, Timestamp>,
    succeeded: BTreeSet<(String, String, String)>,
    /// The most pods that each generation of a PodSet allows.
    allowed: BTreeMap<String, BTreeMap<i64, i64>>,
    /// The labels of the pods that each generation of a PodSet adopts.
    adopts: BTreeMap<String, BTreeMap<i64, Value>>,
    /// True statements about an object since its last status write, by UID.
    truths: BTreeMap<String, BTreeSet<Truth>>,
    /// Statements about an object that were ever true, by UID.
    once: BTreeMap<String, BTreeSet<Truth>>,
    /// UIDs of DaemonJobs that ever had a spec under which a node stays done when the template changes.
    lasting: BTreeSet<String>,
    /// UIDs of DaemonJobs, with the hash of each template that ever had a pod.
    hashes: BTreeSet<(String, String)>,
    /// UIDs of DaemonJobs, with the name of each node on which a pod has failed.
    failed: BTreeSet<(String, String)>,
    /// Names of nodes that were ever not Ready.
    unready: BTreeSet<String>,
    /// The rules of DaemonJob.
    promises: Assessor,
    settling: Settling,
    /// The store after the last step, and the knowledge of it.
    backup: Option<Backup>,
    /// The restore after which the API server is not reachable as usual, and until when.
    down: Option<(Trouble, Instant)>,
}

/// A backup of the store, and the knowledge that a restore takes back.
#[derive(Clone)]
struct Backup {
    store: Snapshot,
    succeeded: BTreeSet<(String, String, String)>,
    promises: Assessor,
}

/// A partition of a process from the API server.
struct CutOff {
    who: String,
    from: Instant,
    until: Instant,
    /// Whether its requests arrive afterwards.
    comes_late: bool,
}

/// A statement of a status: its subject, and two numbers that one cache shows at the same time.
type Truth = (String, i64, i64);

/// The subject of the nodes that are done with a template.
fn done_with(hash: &str) -> String {
    format!("nodes done with template {hash}")
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The plural without its group.
fn short(resource: &str) -> &str {
    resource.split('.').next().unwrap_or_default()
}

fn name_of(asked: &Asked) -> String {
    let sub = if asked.subresource.is_empty() { String::new() } else { format!("-{}", asked.subresource) };
    let resource = short(&asked.resource).trim_matches('/').replace('/', "_");
    // The dry run of a template creates nothing, so another client cannot take its name.
    let is_dry_run = asked.verb == "create" && asked.resource == "pods" && asked.name.ends_with("-0");
    let verb = if is_dry_run { "try" } else { asked.verb };
    format!("{verb}-{resource}{sub}")
}

/// The object of a request, for a [`Recorder`].
fn target(asked: &Asked) -> Target {
    Target {
        resource: short(&asked.resource).to_owned(),
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
    }
}

/// The creation or deletion that a request asks for.
fn deed(asked: &Asked) -> Option<(String, &'static str, String, String)> {
    let what = match asked.verb {
        "create" => asked.name.clone(),
        "delete" => text(&asked.body, "/preconditions/uid").to_owned(),
        _ => return None,
    };
    let is_of_interest = !matches!(short(&asked.resource), "leases" | "events");
    is_of_interest.then(|| (asked.who.clone(), asked.verb, asked.resource.clone(), what))
}

fn is_manager(who: &str) -> bool {
    who.starts_with(MANAGER)
}

/// The UID of an object's controller.
fn owner(object: &Value) -> &str {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    controller.and_then(|owner| owner["uid"].as_str()).unwrap_or_default()
}

fn is_running(pod: &Value) -> bool {
    !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether a container has started, so that the pod counts as an attempt.
fn has_started(pod: &Value) -> bool {
    let states = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let mut states =
        states.flat_map(|container| ["running", "terminated"].map(|state| &container["state"][state]));
    states.any(|state| state["startedAt"].is_string())
}

fn is_counted(pod: &Value) -> bool {
    is_running(pod) && text(pod, "/metadata/deletionTimestamp").is_empty()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

impl Inner {
    /// The partition of this process at this time.
    fn cut_off(&self, who: &str, now: Instant) -> Option<&CutOff> {
        let is_now = |cut: &&CutOff| who.starts_with(&*cut.who) && cut.from <= now && now < cut.until;
        self.cut_off.iter().find(is_now)
    }

    /// A fault occurs. Another fault has its place later.
    fn hit(&mut self) {
        self.hits += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.moments.clear();
        }
    }
}

impl Watcher {
    /// Creates the watcher of a run of `plan`.
    pub fn new(plan: Plan, keeps: Keeps) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let recorder = (keeps == Keeps::Moments).then(Recorder::default);
        let inner = Mutex::new(Inner { recorder, ..Inner::default() });
        let keeps_trace = keeps == Keeps::Steps;
        let watcher = Self { plan, server: Mutex::default(), orders, inner, keeps_trace };
        (watcher, receiver)
    }

    /// Sets the server, and clears it after the run.
    pub fn attach(&self, server: Option<Server>) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time of the last write.
    pub fn last_write(&self) -> Option<Instant> {
        self.inner().last_write
    }

    /// Counts as activity, so that the run does not settle.
    pub fn touch(&self) {
        self.inner().last_write = Some(Instant::now());
    }

    /// The number of faults that have occurred.
    pub fn hits(&self) -> usize {
        self.inner().hits
    }

    /// The moments after the last fault.
    pub fn moments(&self) -> Vec<Moment> {
        self.inner().recorder.take().map(|recorder| recorder.moments).unwrap_or_default()
    }

    /// The numbers of requests by name, and of watch lines by type.
    pub fn recorded(&self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let inner = self.inner();
        (inner.requests.clone(), inner.lines.clone())
    }

    /// The numbers of objects that managers have created and deleted, by type.
    pub fn counts(&self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let inner = self.inner();
        (inner.created.clone(), inner.deleted.clone())
    }

    /// The number of objects that were created for a deleted owner.
    pub fn for_the_dead(&self) -> usize {
        self.inner().for_the_dead
    }

    /// The names that another client has taken, and that no status or Event has reported.
    pub fn unreported(&self) -> Vec<String> {
        self.inner().unreported.keys().cloned().collect()
    }

    /// Whether a report that this name is taken is missing, and another fault may delay it.
    pub fn awaits_report(&self, name: &str) -> bool {
        self.plan.is_compound() && self.inner().unreported.contains_key(name)
    }

    /// The violations.
    pub fn violations(&self) -> Vec<String> {
        self.inner().violations.iter().cloned().collect()
    }

    /// Violations that a late write excuses.
    pub fn excused(&self) -> Vec<String> {
        self.inner().excused.iter().cloned().collect()
    }

    /// The steps, for a reader.
    pub fn trace(&self) -> Vec<String> {
        self.inner().trace.clone()
    }

    /// Adds a step to the trace.
    pub fn note(&self, what: &str) {
        if self.keeps_trace {
            let at = self.server().map_or(String::new(), |server| clock(server.now()));
            self.inner().trace.push(format!("{at} {what}"));
        }
    }

    /// Records a violation.
    pub fn violate(&self, what: String) {
        self.note(&format!("VIOLATION {what}"));
        self.inner().violations.insert(what);
    }

    /// Reports managers that hold the Lease although they cannot watch.
    pub fn judge_leaders(&self) {
        let wrong = self.inner().blindness.as_ref().map(Blindness::wrong).unwrap_or_default();
        // Crashes and partitions also move the Lease. No pair has a blind manager.
        for what in wrong.into_iter().filter(|_| !self.plan.is_compound()) {
            self.violate(what);
        }
    }

    fn order(&self, order: Order) {
        self.note(&format!("FAULT {order:?}"));
        self.touch();
        let _ = self.orders.send(order);
    }

    /// A step of the scenario is done. Keeps a backup of the store, if the plan restores it.
    pub fn step_done(&self) {
        if let Some(recorder) = &mut self.inner().recorder {
            recorder.step += 1;
        }
        let Some(server) = self.server().filter(|_| self.plan.has_restore()) else { return };
        let store = server.snapshot();
        let mut inner = self.inner();
        let (succeeded, promises) = (inner.succeeded.clone(), inner.promises.clone());
        inner.backup = Some(Backup { store, succeeded, promises });
    }

    /// Restores the backup. Requests under way are lost. Returns whether there is a backup.
    fn restore(&self, server: &Server, bump: u64) -> bool {
        let mut inner = self.inner();
        let Some(Backup { store, succeeded, promises }) = inner.backup.clone() else { return false };
        (inner.succeeded, inner.promises) = (succeeded, promises);
        inner.doubled.clear();
        inner.revisions.clear();
        inner.settling.restored();
        drop(inner);
        server.restore(&store, bump);
        self.touch();
        true
    }

    /// Whether a process is a standby that sees nothing until it leads.
    pub fn is_blind(&self, who: &str) -> bool {
        self.plan.has_trouble(Trouble::TakeOverBlind) && who == STANDBY && !self.inner().has_standby_led
    }

    /// From now on, requests of this process are lost.
    pub fn bury(&self, who: &str) {
        self.inner().dead.insert(who.to_owned());
        self.ended(who);
    }

    /// This process has ended.
    pub fn ended(&self, who: &str) {
        if let Some(recorder) = &mut self.inner().recorder {
            recorder.ended(who);
        }
    }

    /// Records the moment before a request, or before a line that the process is shown.
    fn record(&self, who: &str, place: Place, kind: &str) {
        let mut inner = self.inner();
        let Inner { recorder: Some(recorder), cut_off, behind, late, stale, .. } = &mut *inner else {
            return;
        };
        let Some(server) = self.server() else { return };
        let now = Instant::now();
        let clock =
            [Trouble::ClockAhead, Trouble::ClockBehind].map(|one| usize::from(self.plan.has_trouble(one)));
        let effects = |who: &str| {
            let lasts = |of: &str, until: Instant| who.starts_with(of) && now < until;
            [
                cut_off.iter().filter(|cut| lasts(&cut.who, cut.until)).count(),
                behind.iter().filter(|(of, until)| lasts(of, *until)).count(),
                late.iter().filter(|(of, until)| lasts(of, *until)).count(),
                stale.iter().filter(|(of, _, until)| lasts(of, *until)).count(),
                clock[0],
                clock[1],
            ]
        };
        recorder.moment(who, place, kind, || server.look(end::detailed), effects);
    }

    fn holds_lease(&self, who: &str) -> bool {
        self.server().is_none_or(|server| {
            server.look(|state| {
                let mut leases = state.objects("leases.coordination.k8s.io");
                leases.any(|lease| text(lease, "/spec/holderIdentity") == who)
            })
        })
    }

    fn failure(code: u16, reason: &str, message: &str) -> Value {
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message })
    }

    fn status(code: u16, reason: &str, message: &str) -> Then {
        Then::Status(Self::failure(code, reason, message), (code == 429).then_some(2))
    }

    /// Partitions the processes with this name prefix.
    fn cut_off(&self, who: String, after: Duration, length: Duration, comes_late: bool) {
        let from = Instant::now() + after;
        self.inner().cut_off.push(CutOff { who, from, until: from + length, comes_late });
    }

    #[expect(clippy::too_many_lines, reason = "one match arm for each fault")]
    fn fate(&self, trouble: Trouble, asked: &Asked) -> Fate {
        let lost = |then: Then| Fate { is_lost: true, then, ..Fate::default() };
        let carried_out = |then: Then| Fate { then, ..Fate::default() };
        let who = asked.who.clone();
        let resource = &asked.resource;
        let name = &asked.name;
        match trouble {
            Trouble::CrashBefore | Trouble::ClockAhead | Trouble::ClockBehind => {
                self.order(Order::Crash(who));
                lost(Then::Silence)
            }
            Trouble::CrashAfter | Trouble::TakeOverBlind => {
                self.order(Order::Crash(who));
                carried_out(Then::Silence)
            }
            Trouble::TakeOverBehind => {
                let other = if who.starts_with("manager-a") { "manager-b" } else { "manager-a" };
                self.inner().behind.push((other.to_owned(), Instant::now() + LATE));
                self.order(Order::Crash(who));
                carried_out(Then::Silence)
            }
            Trouble::HandOver => {
                self.order(Order::End(who));
                Fate::default()
            }
            Trouble::Conflict => lost(Self::status(
                409,
                "Conflict",
                &format!(
                    "Operation cannot be fulfilled on {resource} \"{name}\": the object has been modified; please apply your changes to the latest version and try again"
                ),
            )),
            Trouble::Stranger => {
                self.take_name(asked);
                Fate::default()
            }
            Trouble::NotFound => {
                lost(Self::status(404, "NotFound", &format!("{resource} \"{name}\" not found")))
            }
            Trouble::ProxyNotFound => lost(Then::Text(404, "404 page not found\n")),
            Trouble::ProxyBadRequest => lost(Then::Text(400, "400 Bad Request\n")),
            Trouble::Unstreamable => lost(Then::Event(Self::failure(
                500,
                "InternalError",
                "Internal error occurred: the watch of the store does not report its progress",
            ))),
            Trouble::Lagging => {
                lost(Then::Event(Self::failure(504, "Timeout", "Timeout: Too large resource version")))
            }
            Trouble::Gone => {
                lost(Self::status(410, "Expired", "The resourceVersion for the provided list is too old."))
            }
            Trouble::Invalid => lost(Self::status(
                422,
                "Invalid",
                &format!("{resource} \"{name}\" is invalid: a fault of the test"),
            )),
            Trouble::Forbidden => lost(Self::status(
                403,
                "Forbidden",
                &format!("{resource} \"{name}\" is forbidden: a fault of the test"),
            )),
            Trouble::Busy => {
                lost(Self::status(429, "TooManyRequests", "too many requests, please try again later"))
            }
            Trouble::Error => {
                lost(Self::status(500, "InternalError", "Internal error occurred: a fault of the test"))
            }
            Trouble::Unavailable => lost(Self::status(
                503,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            )),
            Trouble::TimeoutAfter => carried_out(Self::status(
                504,
                "Timeout",
                "Timeout: request did not complete within requested timeout",
            )),
            Trouble::TimeoutBefore => lost(Self::status(
                504,
                "Timeout",
                "Timeout: request did not complete within requested timeout",
            )),
            Trouble::ResetBefore => lost(Then::Reset),
            Trouble::ResetAfter => carried_out(Then::Reset),
            Trouble::Truncated => carried_out(Then::Truncated),
            Trouble::SilenceBefore => lost(Then::Silence),
            Trouble::SilenceAfter => carried_out(Then::Silence),
            Trouble::Slow => carried_out(Then::Late(Duration::from_secs(30))),
            Trouble::Late => {
                self.inner().late.push((who, Instant::now() + LATE));
                Fate { held: LATE, ..Fate::default() }
            }
            Trouble::LateAfterTakeOver => {
                self.cut_off(who, Duration::ZERO, CUT_OFF, false);
                Fate { held: LATE, ..Fate::default() }
            }
            Trouble::Paused => {
                self.cut_off(who, Duration::ZERO, LATE, true);
                Fate { held: LATE, ..Fate::default() }
            }
            Trouble::CutOff => {
                self.cut_off(who, Duration::ZERO, CUT_OFF, false);
                lost(Then::Silence)
            }
            Trouble::Crossed => {
                let other = if who.starts_with("manager-a") { "manager-b" } else { "manager-a" };
                let until = Instant::now() + CUT_OFF * 3;
                self.inner().behind.extend([(MANAGER.to_owned(), until)]);
                self.cut_off(who, Duration::ZERO, CUT_OFF, false);
                self.cut_off(other.to_owned(), CUT_OFF, CUT_OFF, false);
                carried_out(Then::Silence)
            }
            Trouble::Blind | Trouble::AllBlind => {
                let is_everywhere = trouble == Trouble::AllBlind;
                let (who, length) =
                    if is_everywhere { (MANAGER.to_owned(), ALL_BLIND) } else { (who, BLIND) };
                self.inner().blindness = Some(Blindness::new(who, is_everywhere, length));
                self.order(Order::StayActive(length + RECOVERY));
                Fate::default()
            }
            Trouble::Restored | Trouble::RestoredBumped | Trouble::RestoredRejected => {
                let ends_watches = trouble != Trouble::RestoredBumped;
                if let Some(server) = self.server()
                    && self.restore(&server, if ends_watches { 0 } else { BUMP })
                    && ends_watches
                {
                    self.inner().down = Some((trouble, Instant::now() + RESTART));
                    server.restart();
                }
                Fate::default()
            }
            Trouble::StaleServer => {
                let base = who.rsplit_once('-').map_or(&*who, |(base, _)| base).to_owned();
                let (now, inner) = (Instant::now(), self.inner());
                let long_ago = |(at, _): &&(Instant, u64)| *at + FAR_BEHIND <= now;
                let revision =
                    inner.revisions.iter().rev().find(long_ago).map_or(0, |(_, revision)| *revision);
                drop(inner);
                let until = Instant::now() + LATE;
                self.inner().stale = Some((base.clone(), revision, until));
                self.inner().behind.push((base, until));
                self.order(Order::Crash(who));
                carried_out(Then::Silence)
            }
        }
    }

    /// Another client creates an object with the same name first.
    fn take_name(&self, asked: &Asked) {
        let Some(server) = self.server() else { return };
        let mut body = asked.body.clone();
        body["metadata"] = json!({ "name": asked.name, "labels": { "stranger": "yes" } });
        // The other client's pod never runs, so that it conflicts only by its name.
        if asked.resource == "pods" {
            body["spec"]["nodeSelector"] = json!({ "no": "where" });
        }
        let version = text(&asked.body, "/apiVersion");
        let root = if version.contains('/') { "apis" } else { "api" };
        let path = format!("/{root}/{version}/namespaces/{}/{}", asked.namespace, short(&asked.resource));
        match server.create("stranger", &path, &body) {
            (201, _) => {
                let (name, owner) = (asked.name.clone(), owner(&asked.body).to_owned());
                self.inner().unreported.insert(name.clone(), owner);
                self.order(Order::RemoveStranger { path: format!("{path}/{name}"), name });
            }
            // After another fault, the object may exist already.
            (409, _) if self.plan.is_compound() => {}
            (code, answer) => self.violate(format!("another client cannot take {path}: {code} {answer}")),
        }
    }

    /// The statements that are true of PodSets and DaemonJobs in a state.
    fn truths(state: &State, inner: &mut Inner) -> BTreeMap<String, Vec<Truth>> {
        let Inner { succeeded, hashes, .. } = inner;
        let mut truths = BTreeMap::new();
        let podsets = state.objects("podsets.batch.tutorial.kubebuilder.io");
        let daemonjobs = state.objects("daemonjobs.dj.dysproz.io");
        let count = |pods: &[&Arc<Value>], is: &dyn Fn(&Value) -> bool| {
            i64::try_from(pods.iter().filter(|pod| is(pod)).count()).unwrap_or(i64::MAX)
        };
        for object in podsets.chain(daemonjobs) {
            let uid = text(object, "/metadata/uid");
            let pods: Vec<&Arc<Value>> = state.objects("pods").filter(|pod| owner(pod) == uid).collect();
            let counted = count(&pods, &is_counted);
            let mut all = Vec::new();
            if object["kind"] == "PodSet" {
                let ready = count(&pods, &|pod| is_counted(pod) && is_ready(pod));
                all.push(("pods counted and ready".to_owned(), counted, ready));
            } else {
                let going = count(&pods, &|pod| is_running(pod) && !is_counted(pod));
                all.push(("pods active and terminating".to_owned(), counted, going));
                let label =
                    |pod: &Value| text(pod, "/metadata/labels/dj.dysproz.io~1template-hash").to_owned();
                hashes.extend(pods.iter().map(|pod| (uid.to_owned(), label(pod))));
                for (_, hash) in hashes.iter().filter(|(of, _)| of == uid) {
                    let is_done = |node: &&Arc<Value>| {
                        let of = (uid.to_owned(), text(node, "/metadata/uid").to_owned(), hash.clone());
                        succeeded.contains(&of)
                    };
                    let done: Vec<&Arc<Value>> = state.objects("nodes").filter(is_done).collect();
                    // A done node is suspect if it has not been Ready since its attempt.
                    all.push((done_with(hash), count(&done, &is_ready), 0));
                    all.push((done_with(hash), count(&done, &|_| true), 0));
                }
            }
            truths.insert(uid.to_owned(), all);
        }
        truths
    }

    /// A status contains only statements that were true at some moment since the previous status.
    fn judge_statements(&self, commit: &Commit<'_>, object: &Value, statements: &[Truth]) {
        let uid = text(object, "/metadata/uid").to_owned();
        let has_status =
            commit.old.is_some_and(|old| old["status"] != object["status"]) && is_manager(commit.who);
        if !has_status {
            return;
        }
        let mut inner = self.inner();
        // With delayed views, a statement may be older, but it must have been true.
        let late = self.plan.delays_views();
        let once = inner.once.get(&uid).cloned().unwrap_or_default();
        let truths = inner.truths.remove(&uid).unwrap_or_default();
        let now = Self::truths(commit.state, &mut inner).remove(&uid).unwrap_or_default();
        inner.truths.insert(uid, now.into_iter().collect());
        drop(inner);
        if self.plan.is_late() {
            return;
        }
        for one in statements {
            // No node is done with a template that had no pod yet.
            let is_new = one.1 == 0 && once.iter().all(|(what, ..)| *what != one.0);
            let was_once = late && once.contains(one);
            if !(truths.contains(one) || was_once || is_new) {
                let known: Vec<(i64, i64)> =
                    truths.iter().filter(|(what, ..)| *what == one.0).map(|(_, a, b)| (*a, *b)).collect();
                self.violate(format!(
                    "a status has {} {}, {}; since the previous status there were {known:?}",
                    one.0, one.1, one.2
                ));
            }
        }
    }

    fn judge_pod(&self, commit: &Commit<'_>, pod: &Value, is_new: bool) {
        let uid = text(pod, "/metadata/labels/dj.dysproz.io~1daemonjob-uid").to_owned();
        if !uid.is_empty() {
            self.judge_node(commit, pod, &uid, is_new);
        }
        let of = owner(pod).to_owned();
        let has_come = commit.new.is_some() && commit.old.is_none_or(|old| owner(old) != of);
        let most = self.inner().allowed.get(&of).cloned();
        if let (true, Some(most)) = (has_come, most) {
            let sets = commit.state.objects("podsets.batch.tutorial.kubebuilder.io");
            let mut sets = sets.filter(|set| text(set, "/metadata/uid") == of);
            let known = sets.next().and_then(|set| set["status"]["observedGeneration"].as_i64()).unwrap_or(0);
            let most = most.range(known..).map(|(_, most)| *most).max().unwrap_or(i64::MAX);
            let there =
                commit.state.objects("pods").filter(|one| owner(one) == of && is_counted(one)).count();
            if i64::try_from(there).unwrap_or(i64::MAX) > most {
                let name = text(pod, "/metadata/name");
                let what = format!("{there} counted pods of a PodSet that allows {most}, after {name}");
                // Without other changes, a late creation finds its name taken.
                if self.plan.is_late() && !self.plan.scenario.ends_with("-create") {
                    self.inner().excused.insert(what);
                } else {
                    self.violate(what);
                }
            }
        }
    }

    /// A manager adopts only pods without a controller that the PodSet selects. The scenarios of adoption have no
    /// superfluous pods, so that each pod stays.
    fn judge_adoption(&self, commit: &Commit<'_>) {
        let Some(old) = commit.old else { return };
        let (name, labels) = (text(old, "/metadata/name"), &old["metadata"]["labels"]);
        let stays = commit.new.is_some_and(|new| text(new, "/metadata/deletionTimestamp").is_empty());
        if !stays && self.plan.scenario.starts_with("podset-adopt") && labels["stranger"].is_null() {
            self.violate(format!("{} deletes {name}", commit.who));
        }
        let by = commit.new.map(owner).unwrap_or_default();
        if !is_manager(commit.who) || by.is_empty() || by == owner(old) {
            return;
        }
        let selects = |selector: &Value| {
            selector.as_object().is_some_and(|all| all.iter().all(|(key, value)| labels[key] == *value))
        };
        let is_selected = self.inner().adopts.get(by).is_some_and(|all| all.values().any(selects));
        let was_released = !labels["batch.tutorial.kubebuilder.io/released"].is_null();
        if !owner(old).is_empty() || !is_counted(old) || was_released || !is_selected {
            self.violate(format!("{} adopts {name}, which is not an orphan of the selector", commit.who));
        }
    }

    /// DaemonJobs of one name have at most one running pod on a node, and none where this one has succeeded.
    fn judge_node(&self, commit: &Commit<'_>, pod: &Value, uid: &str, is_new: bool) {
        let node = text(pod, "/metadata/annotations/dj.dysproz.io~1node-name").to_owned();
        let hash = text(pod, "/metadata/labels/dj.dysproz.io~1template-hash").to_owned();
        let name = text(pod, "/metadata/labels/daemonjob").to_owned();
        let of_node = |one: &Value| {
            text(one, "/metadata/labels/daemonjob") == name
                && text(one, "/metadata/annotations/dj.dysproz.io~1node-name") == node
        };
        let running = commit.state.objects("pods").filter(|one| of_node(one) && is_running(one)).count();
        let key = format!("{name} {node}");
        let mut wrong = Vec::new();
        {
            let mut inner = self.inner();
            if running > 1 {
                inner.doubled.entry(key).or_insert(commit.now);
                if !self.plan.is_late() {
                    wrong.push(format!("{running} running pods of a DaemonJob on node {node}"));
                }
            } else if let Some(since) = inner.doubled.remove(&key) {
                let lasted = Duration::try_from(commit.now.duration_since(since)).unwrap_or_default();
                let what =
                    format!("two running pods of a DaemonJob on node {node} for {} s", lasted.as_secs());
                if self.plan.is_late() && lasted <= LATE_EXCUSED {
                    inner.excused.insert(what);
                } else {
                    wrong.push(what);
                }
            }
            let node_uid = text(pod, "/metadata/labels/dj.dysproz.io~1node-uid").to_owned();
            let done = (uid.to_owned(), node_uid, hash);
            if is_new && inner.succeeded.contains(&done) {
                let what = format!("node {node} runs again, but has succeeded with this template");
                // A late creation succeeds if the pod is already gone. The manager undoes it at once, or the
                // end would differ.
                if self.plan.is_late() {
                    inner.excused.insert(what);
                } else {
                    wrong.push(what);
                }
            }
            // A success lasts until an attempt with another template begins.
            if has_started(pod) && !commit.old.is_some_and(has_started) {
                let (uid, on, hash) = &done;
                inner.succeeded.retain(|(of, node, with)| of != uid || node != on || with == hash);
            }
            match text(pod, "/status/phase") {
                "Succeeded" if commit.old.is_none_or(|old| text(old, "/status/phase") != "Succeeded") => {
                    inner.settling.succeeded(&done.0, &done.1);
                    inner.succeeded.insert(done);
                }
                "Failed" => {
                    inner.failed.insert((uid.to_owned(), node.clone()));
                }
                _ => {}
            }
        }
        for what in wrong {
            self.violate(what);
        }
    }

    /// A process does not repeat a creation or deletion that it knows to have succeeded.
    fn judge_again(&self, asked: &Asked, code: u16) {
        if !is_manager(&asked.who) || self.plan.is_late() || self.plan.needs_standby() {
            return;
        }
        let Some(deed) = deed(asked) else { return };
        let mut inner = self.inner();
        if inner.unclear.contains(&deed) {
            return;
        }
        match code {
            200..300 => {
                inner.done.insert(deed);
            }
            404 | 409 if inner.done.contains(&deed) => {
                drop(inner);
                let (who, verb, resource, what) = deed;
                self.violate(format!("{who} repeats a write that has succeeded: {verb} {resource} {what}"));
            }
            _ => {}
        }
    }

    fn judge_podset(&self, commit: &Commit<'_>, podset: &Value) {
        let uid = text(podset, "/metadata/uid").to_owned();
        let generation = podset["metadata"]["generation"].as_i64().unwrap_or(0);
        let desired = podset["spec"]["replicas"].as_i64().unwrap_or(1);
        let surge = match &podset["spec"]["updateStrategy"]["maxSurge"] {
            // Rounded up.
            Value::String(share) => {
                let percent: i64 = share.trim_end_matches('%').parse().unwrap_or(0);
                (desired * percent + 99) / 100
            }
            number => number.as_i64().unwrap_or(0),
        };
        let mut inner = self.inner();
        inner.allowed.entry(uid.clone()).or_default().insert(generation, desired + surge);
        let adopted = podset["spec"]["adopt"]["selector"]["matchLabels"].clone();
        inner.adopts.entry(uid).or_default().insert(generation, adopted);
        drop(inner);
        let count = |field: &str| podset["status"][field].as_i64().unwrap_or(0);
        let statements = ("pods counted and ready".to_owned(), count("replicas"), count("readyReplicas"));
        self.judge_statements(commit, podset, &[statements]);
    }

    /// A manager releases a PulsarConsumer that deletes its subscription only when no consumer runs.
    fn judge_cleanup(&self, commit: &Commit<'_>, consumer: &Value) {
        let holds = |one: Option<&Value>| {
            one.is_some_and(|one| {
                one["metadata"]["finalizers"].to_string().contains(quintet_pulsarconsumer::FINALIZER)
            })
        };
        let spec = serde_json::from_value::<PulsarConsumerSpec>(consumer["spec"].clone());
        if !spec.is_ok_and(|spec| spec.deletes_subscription()) || !holds(commit.old) || holds(commit.new) {
            return;
        }
        let uid = text(consumer, "/metadata/uid");
        for deployment in commit.state.objects("deployments.apps").filter(|one| owner(one) == uid) {
            if deployment["spec"]["replicas"] != 0 || deployment["status"]["replicas"].as_i64() > Some(0) {
                self.violate(format!("{} releases a PulsarConsumer with running consumers", commit.who));
            }
        }
    }

    /// The nodes whose last success has this template.
    fn done_nodes(&self, commit: &Commit<'_>, job: &str, hash: &str) -> Vec<DoneNode> {
        let inner = self.inner();
        let nodes = commit.state.objects("nodes").map(|node| DoneNode {
            name: text(node, "/metadata/name").to_owned(),
            uid: text(node, "/metadata/uid").to_owned(),
        });
        let is_done =
            |node: &DoneNode| inner.succeeded.contains(&(job.to_owned(), node.uid.clone(), hash.to_owned()));
        nodes.filter(is_done).collect()
    }

    fn judge_daemonjob(&self, commit: &Commit<'_>, daemonjob: &Value) {
        let count = |field: &str| daemonjob["status"][field].as_i64().unwrap_or(0);
        let hash = text(daemonjob, "/status/templateHash");
        let reasons = daemonjob["spec"]["rerunOn"].as_array();
        if reasons.is_some_and(|reasons| reasons.iter().all(|reason| reason != "TemplateChange")) {
            self.inner().lasting.insert(text(daemonjob, "/metadata/uid").to_owned());
        }
        let uid = text(daemonjob, "/metadata/uid");
        let is_lasting = self.inner().lasting.contains(uid);
        let done_nodes = self.done_nodes(commit, uid, hash);
        // A node that settles is done, although the status does not count it yet.
        let settling = done_nodes.iter().filter(|node| settles(daemonjob, &node.name)).count();
        let succeeded = count("succeeded") + i64::try_from(settling).unwrap_or(i64::MAX);
        let done = if is_lasting { None } else { Some((done_with(hash), succeeded, 0)) };
        let pods = ("pods active and terminating".to_owned(), count("active"), count("terminating"));
        let statements: Vec<Truth> = std::iter::once(pods).chain(done).collect();
        self.judge_statements(commit, daemonjob, &statements);
        let is_written =
            is_manager(commit.who) && commit.old.is_some_and(|old| old["status"] != daemonjob["status"]);
        if is_written && !is_lasting && !self.plan.is_late() {
            let wrong = self.inner().settling.status(daemonjob, &done_nodes);
            for what in wrong {
                self.violate(what);
            }
        }
        for node in daemonjob["status"]["failedNodes"].as_array().into_iter().flatten() {
            let name = text(node, "/node").to_owned();
            // A lost node needs no failed pod.
            if text(node, "/reason") == "NodeLost" && self.inner().unready.contains(&name) {
                continue;
            }
            if !self.inner().failed.contains(&(uid.to_owned(), name.clone())) {
                self.violate(format!("a status lists node {name} as failed, but no pod failed there"));
            }
        }
    }
}

fn clock(at: Timestamp) -> String {
    let since = at.duration_since(quintet_fake_apiserver::ORIGIN);
    format!("{:>4}.{:03}", since.as_secs(), since.subsec_millis())
}

impl Script for Watcher {
    fn request(&self, asked: &Asked) -> Fate {
        if !is_manager(&asked.who) {
            return Fate::default();
        }
        let name = name_of(asked);
        let now = Instant::now();
        let nth = {
            let mut inner = self.inner();
            if asked.is_write() && !inner.unreported.is_empty() {
                let body = asked.body.to_string();
                // One Event reports all failures of one reconcile, and names the first. Only another fault adds a second failure.
                let is_of_several =
                    self.plan.is_compound() && body.contains("FailedCreate") && body.contains(" more): ");
                inner.unreported.retain(|name, owner| {
                    let is_named = body.contains(&format!("{name} exists already"));
                    !is_named && (!is_of_several || !body.contains(&**owner))
                });
            }
            if inner.dead.contains(&asked.who) {
                return Fate { is_lost: true, then: Then::Silence, ..Fate::default() };
            }
            let count = inner.requests.entry(name.clone()).or_default();
            *count += 1;
            let nth = *count;
            if asked.is_write() && !matches!(short(&asked.resource), "leases" | "events") {
                inner.last_write = Some(now);
            }
            nth
        };
        if self.keeps_trace {
            let write = if asked.is_write() { asked.body.to_string() } else { String::new() };
            self.note(&format!("{} {name}.{nth} {} {write}", asked.who, asked.name));
        }
        if asked.may_be_old {
            self.violate(format!("{} sends a read that allows old data ({name})", asked.who));
        }
        if asked.is_write()
            && !matches!(short(&asked.resource), "leases" | "events")
            && !self.holds_lease(&asked.who)
        {
            self.violate(format!("{} sends a write ({name}) without the Lease", asked.who));
        }
        let due = self.plan.fault.parts().iter().find_map(|fault| match fault {
            Fault::Request(of, at, trouble) if *of == name && *at == nth => Some(trouble),
            _ => None,
        });
        self.record(&asked.who, Place::Request(name.clone(), nth), &name);
        if let Some(recorder) = &mut self.inner().recorder {
            recorder.asked(&asked.who, &name, target(asked), due.copied());
        }
        if let Some(trouble) = due {
            {
                let mut inner = self.inner();
                inner.hit();
                inner.unclear.extend(deed(asked));
            }
            self.note(&format!("FAULT {trouble:?} at {name}.{nth}"));
            return self.fate(*trouble, asked);
        }
        let inner = self.inner();
        let is_read = matches!(asked.verb, "list" | "watch");
        let down = inner.down.filter(|(_, until)| *until > now).map(|(trouble, _)| trouble);
        if down == Some(Trouble::Restored) {
            return Fate { is_lost: true, then: Then::Reset, ..Fate::default() };
        }
        if down.is_some() && is_read {
            let then = Self::status(500, "InternalError", "Internal error occurred: etcd is away");
            return Fate { is_lost: true, then, ..Fate::default() };
        }
        let hits = |blindness: &Blindness| blindness.hits(&asked.who, short(&asked.resource));
        let is_blind = is_read && inner.blindness.as_ref().is_some_and(hits);
        match inner.cut_off(&asked.who, now) {
            Some(cut) if cut.comes_late => Fate { held: cut.until - now, ..Fate::default() },
            Some(_) => Fate { is_lost: true, then: Then::Silence, ..Fate::default() },
            None if is_blind => Fate { is_lost: true, then: Then::Silence, ..Fate::default() },
            None => {
                let stale = inner.stale.as_ref();
                let stale = stale.filter(|(who, _, until)| asked.who.starts_with(&**who) && *until > now);
                Fate { behind: stale.map(|(_, revision, _)| (*revision, BEHIND)), ..Fate::default() }
            }
        }
    }

    fn answered(&self, asked: &Asked, code: u16) {
        if self.keeps_trace && is_manager(&asked.who) && asked.is_write() {
            self.note(&format!("    {} {} {} answered {code}", asked.who, name_of(asked), asked.name));
        }
        if let Some(recorder) = &mut self.inner().recorder {
            recorder.answered(&asked.who, &name_of(asked), &target(asked), code);
        }
        if is_manager(&asked.who) && asked.is_write() && (400..500).contains(&code) {
            let what = (asked.who.clone(), name_of(asked), asked.name.clone());
            let mut inner = self.inner();
            let times = inner.rejected.entry(what).or_default();
            *times += 1;
            if *times == OFTEN && !matches!(short(&asked.resource), "leases" | "events") {
                drop(inner);
                let name = name_of(asked);
                self.violate(format!("{} was rejected {OFTEN} times: {name} {}", asked.who, asked.name));
            }
        }
        self.judge_again(asked, code);
    }

    fn line(&self, shown: &Shown<'_>) -> Showing {
        if !is_manager(shown.who) {
            return Showing::AsIs;
        }
        let now = Instant::now();
        let resource = short(shown.resource).to_owned();
        let leads = self.holds_lease(STANDBY);
        self.inner().has_standby_led |= leads;
        let is_blind = self.is_blind(shown.who)
            && !shown.is_initial
            && matches!(&*resource, "pods" | "configmaps" | "deployments");
        let nth = {
            let mut inner = self.inner();
            if inner.dead.contains(shown.who) {
                return Showing::Silence;
            }
            if let Some(cut) = inner.cut_off(shown.who, now) {
                return Showing::Later(cut.until - now);
            }
            if is_blind || inner.blindness.as_ref().is_some_and(|one| one.hits(shown.who, &resource)) {
                return Showing::Silence;
            }
            let is_behind = |(who, until): &(String, Instant)| shown.who.starts_with(&**who) && *until > now;
            if !shown.is_initial && inner.behind.iter().any(is_behind) {
                return Showing::Later(BEHIND);
            }
            if shown.type_ == "BOOKMARK" && !shown.is_initial {
                return Showing::AsIs;
            }
            let count = inner.lines.entry(resource.clone()).or_default();
            *count += 1;
            *count
        };
        self.record(shown.who, Place::Line(resource.clone(), nth), &format!("{resource} {}", shown.type_));
        let due = self.plan.fault.parts().iter().find_map(|fault| match fault {
            Fault::Line(of, at, event) if *of == resource && *at == nth => Some(event),
            _ => None,
        });
        let delivers = due.is_none_or(|event| *event == Event::Twice);
        if let (true, Some(recorder)) = (delivers, &mut self.inner().recorder) {
            let revision = text(shown.object, "/metadata/resourceVersion").parse().unwrap_or_default();
            let target = Target {
                resource: resource.clone(),
                namespace: text(shown.object, "/metadata/namespace").to_owned(),
                name: text(shown.object, "/metadata/name").to_owned(),
            };
            recorder.shown(shown.who, shown.type_, &target, revision);
        }
        let Some(event) = due else { return Showing::AsIs };
        self.inner().hit();
        self.note(&format!(
            "FAULT {event:?} at line {resource}.{nth}: {} {}",
            shown.type_,
            text(shown.object, "/metadata/name")
        ));
        self.touch();
        if matches!(event, Event::Expired | Event::Dropped)
            && let Some(server) = self.server()
        {
            // Without the compaction, a new watch would still get the later lines.
            server.compact();
        }
        match event {
            Event::Twice => Showing::Twice,
            Event::Reordered => Showing::Later(REORDERED),
            Event::Delayed => Showing::Later(DELAYED),
            Event::Closed => Showing::Close,
            Event::Torn => Showing::Torn,
            Event::Expired => Showing::Expired,
            Event::Dropped => Showing::ExpiredLater(DELAYED),
            Event::Silence => Showing::Silence,
            Event::Crash => {
                self.order(Order::Crash(shown.who.to_owned()));
                Showing::Silence
            }
        }
    }

    fn committed(&self, commit: &Commit<'_>) {
        self.inner().revisions.push((Instant::now(), commit.revision));
        let object = commit.new.or(commit.old).unwrap_or(&Value::Null);
        let kind = short(&commit.resource).to_owned();
        if let Some(recorder) = &mut self.inner().recorder {
            recorder.committed(&kind, commit.revision, object);
        }
        let is_going = commit.new.is_none_or(|new| !text(new, "/metadata/deletionTimestamp").is_empty());
        if is_going && self.plan.is_compound() {
            // Another fault may delay the report until the deleted owner no longer needs the name.
            let uid = text(object, "/metadata/uid");
            self.inner().unreported.retain(|_, owner| **owner != *uid);
        }
        if kind == "leases" {
            let (holder, mut inner) = (text(object, "/spec/holderIdentity"), self.inner());
            inner.settling.lease(holder, commit.now);
            if let Some(blindness) = &mut inner.blindness {
                blindness.saw(holder);
            }
        }
        if !matches!(&*kind, "leases" | "events") {
            let mut inner = self.inner();
            inner.last_write = Some(Instant::now());
            if is_manager(commit.who) {
                let of = owner(object);
                let is_dead =
                    !of.is_empty() && commit.state.values().all(|one| text(one, "/metadata/uid") != of);
                match (commit.old, commit.new) {
                    (None, Some(_)) if is_dead && self.plan.delays_views() => inner.for_the_dead += 1,
                    (None, Some(_)) => *inner.created.entry(kind.clone()).or_default() += 1,
                    (Some(_), None) => *inner.deleted.entry(kind.clone()).or_default() += 1,
                    (Some(old), Some(new)) => {
                        let asked = |object: &Value| !text(object, "/metadata/deletionTimestamp").is_empty();
                        if asked(new) && !asked(old) {
                            *inner.deleted.entry(kind.clone()).or_default() += 1;
                        }
                    }
                    (None, None) => {}
                }
            }
        }
        if self.keeps_trace && kind != "leases" && kind != "events" {
            let what = match (commit.old, commit.new) {
                (None, _) => "created",
                (_, None) => "deleted",
                _ => "changed",
            };
            let phase = text(object, "/status/phase");
            let trace = format!(
                "{} r{} {kind} {} {what} by {} {phase}",
                clock(commit.now),
                commit.revision,
                text(object, "/metadata/name"),
                commit.who
            );
            self.inner().trace.push(trace);
        }
        let knows = Knowledge {
            is_exact: !self.plan.delays_views() && !self.plan.is_late(),
            is_late: self.plan.is_late(),
        };
        let wrong = self.inner().promises.committed(commit, knows);
        for what in wrong {
            self.violate(what);
        }
        if kind == "nodes" && commit.new.is_some_and(|node| !is_ready(node)) {
            self.inner().unready.insert(text(object, "/metadata/name").to_owned());
        }
        if kind == "pods" {
            self.judge_pod(commit, object, commit.old.is_none());
            self.judge_adoption(commit);
        }
        if kind == "podsets"
            && let Some(podset) = commit.new
        {
            self.judge_podset(commit, podset);
        }
        if kind == "daemonjobs"
            && let Some(daemonjob) = commit.new
        {
            self.judge_daemonjob(commit, daemonjob);
        }
        if kind == "pulsarconsumers" {
            self.judge_cleanup(commit, object);
        }
        if matches!(&*kind, "pods" | "nodes" | "podsets" | "daemonjobs") {
            let mut inner = self.inner();
            for (uid, truths) in Self::truths(commit.state, &mut inner) {
                inner.truths.entry(uid.clone()).or_default().extend(truths.iter().cloned());
                inner.once.entry(uid).or_default().extend(truths);
            }
        }
    }
}
