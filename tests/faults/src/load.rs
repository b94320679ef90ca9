//! Managers under load, on simulated time: a slow webhook, a take-over with thousands of objects, and a flood of new
//! objects. These tests compare the order of writes and count reconciles.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quintet_fake_apiserver::{Asked, Fate, Script, Server, Showing, Shown};
use quintet_runtime::server::client::WINDOW;
use quintet_runtime::server::metrics::Metrics;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::process::{Kind, Lines, Process, Skew};
use crate::run::types;
use crate::scenarios::{BOOKS, CONSUMERS, DAEMONJOBS, GREETINGS, PODSETS, WHO, node, template};

/// How long the webhook keeps each creation of a pod.
const HANGS: Duration = Duration::from_secs(10);
/// DaemonJobs that want a pod on each node.
const JOBS: usize = 16;
const NODES: usize = 200;
/// The tested turns of the window, and the changed objects of each kind in a turn.
const TURNS: usize = 10;
const EACH: usize = 10;

/// The objects that a new leader reconciles.
const OBJECTS: usize = 5_000;
/// The number of reconciled objects after which a test begins.
const WARM: usize = 500;
/// The most reconciles before that of a changed object.
const NEXT: u64 = 20;
/// New objects that are created at once.
const FLOOD: usize = 2_000;
/// After 16 reconciles of changed objects, one of another object is due.
const BULK_EVERY: usize = 17;

/// A write of the manager.
#[derive(Clone, Debug)]
struct Write {
    /// See [`subject`].
    of: String,
    /// Whether the write creates a pod.
    is_pod: bool,
}

/// The requests and events in the order in which they were sent.
#[derive(Default)]
struct Seen {
    /// All writes, except Leases and Events.
    writes: Vec<Write>,
    /// The objects in the order of their first write.
    begun: Vec<String>,
    /// The number of ended reconciles at the first write of each object.
    first: BTreeMap<String, u64>,
    /// The number of ended reconciles when the manager got the event that a PodSet wants one pod.
    scaled: BTreeMap<String, u64>,
}

/// Records what the manager sends and gets, and plays the webhook.
#[derive(Default)]
struct Recorder {
    /// How long a creation of a pod is kept.
    hangs: Duration,
    /// The metrics of the manager, and the controller whose reconciles are counted.
    metrics: OnceLock<(Metrics, &'static str)>,
    seen: Mutex<Seen>,
}

impl Recorder {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of ended reconciles.
    fn ended(&self) -> u64 {
        self.metrics.get().map_or(0, |(metrics, controller)| {
            metrics.reconcile_time.with_label_values(&[*controller]).get_sample_count()
        })
    }

    /// The number of objects with a write.
    fn begun(&self) -> usize {
        self.seen().begun.len()
    }

    /// The number of creations of pods for DaemonJobs.
    fn pods_of_jobs(&self) -> usize {
        let is_one = |write: &&Write| write.is_pod && write.of.starts_with("daemonjobs/");
        self.seen().writes.iter().filter(is_one).count()
    }
}

impl Script for Recorder {
    fn request(&self, asked: &Asked) -> Fate {
        let is_pod = asked.verb == "create" && asked.resource == "pods";
        let is_left_out = ["events", "leases"].iter().any(|of| asked.resource.starts_with(of));
        if asked.is_write() && !is_left_out {
            let (of, ended) = (subject(asked), self.ended());
            let mut seen = self.seen();
            let seen = &mut *seen;
            if let Entry::Vacant(first) = seen.first.entry(of.clone()) {
                first.insert(ended);
                seen.begun.push(of.clone());
            }
            seen.writes.push(Write { of, is_pod });
        }
        Fate { held: if is_pod { self.hangs } else { Duration::ZERO }, ..Fate::default() }
    }

    fn line(&self, shown: &Shown<'_>) -> Showing {
        if shown.resource.starts_with("podsets.") && shown.object["spec"]["replicas"] == 1 {
            let name = shown.object["metadata"]["name"].as_str().unwrap_or_default();
            let ended = self.ended();
            self.seen().scaled.entry(format!("podsets/{name}")).or_insert(ended);
        }
        Showing::AsIs
    }
}

/// The object that a write concerns, such as `books/o1`: the written object or its owner.
fn subject(asked: &Asked) -> String {
    let owners = asked.body["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match owner {
        Some(owner) => format!("{}s/{}", text(&owner["kind"]).to_lowercase(), text(&owner["name"])),
        None => format!("{}/{}", asked.resource.split('.').next().unwrap_or_default(), asked.name),
    }
}

/// A server with this recorder.
fn server(recorder: &Arc<Recorder>) -> Server {
    let server = Server::new(1);
    for kind in types() {
        server.add(kind.clone());
    }
    server.follow(recorder.clone());
    server
}

fn start(server: &Server, kinds: &[Kind]) -> Process {
    Process::start(server, "manager", kinds, Skew::None, &Lines::default()).unwrap()
}

fn create(server: &Server, collection: &str, name: &str, spec: &Value) {
    let (code, answer) =
        server.create(WHO, collection, &json!({ "metadata": { "name": name }, "spec": spec }));
    assert_eq!(code, 201, "{answer}");
}

fn scale(server: &Server, name: &str) {
    server.merge(WHO, &format!("{PODSETS}/{name}"), &json!({ "spec": { "replicas": 1 } }));
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_mins(10);
    while !is_so() {
        assert!(Instant::now() < limit, "not in time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Creates an object of three kinds, and scales the PodSet of that name. Returns the changed objects.
fn change(server: &Server, name: &str) -> [String; 4] {
    create(server, GREETINGS, name, &json!({ "message": name }));
    create(server, BOOKS, name, &json!({ "author": "A", "title": "T" }));
    let consumer = json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": name });
    create(server, CONSUMERS, name, &consumer);
    scale(server, name);
    ["greetings", "books", "pulsarconsumers", "podsets"].map(|plural| format!("{plural}/{name}"))
}

/// DaemonJobs keep their window full of creations that take 10 s each. The manager sends the first write for a changed object
/// of another kind before any of these creations ends.
#[tokio::test(start_paused = true)]
async fn a_slow_webhook_for_pods_delays_no_other_kind() {
    let recorder = Arc::new(Recorder { hangs: HANGS, ..Recorder::default() });
    let server = server(&recorder);
    for number in 1..=NODES {
        node(&server, &format!("n{number}"));
    }
    let name = |number: usize| format!("o{number}");
    for number in 0..TURNS * EACH {
        create(&server, PODSETS, &name(number), &json!({ "replicas": 0 }));
    }
    let kinds = [Kind::DaemonJob, Kind::PodSet, Kind::PulsarConsumer, Kind::Greeting, Kind::Book];
    let _process = start(&server, &kinds);
    sleep(Duration::from_secs(5)).await;
    for number in 0..JOBS {
        create(&server, DAEMONJOBS, &format!("d{number}"), &json!({ "template": template("done") }));
    }
    until("the window is full", || recorder.pods_of_jobs() >= WINDOW).await;
    let mut between = Instant::now() + HANGS / 2;
    for turn in 0..TURNS {
        sleep_until(between).await;
        between += HANGS;
        let before = recorder.seen().writes.len();
        let numbers = turn * EACH..(turn + 1) * EACH;
        let changed: BTreeSet<String> = numbers.flat_map(|number| change(&server, &name(number))).collect();
        sleep(Duration::from_secs(1)).await;
        let writes = recorder.seen().writes[before..].to_vec();
        let written: BTreeSet<String> = writes.iter().map(|write| write.of.clone()).collect();
        let waiting: Vec<_> = changed.difference(&written).collect();
        assert!(waiting.is_empty(), "turn {turn}: no write for {waiting:?}");
        assert!(written.iter().all(|of| !of.starts_with("daemonjobs/")), "turn {turn}: {written:?}");
    }
    let pods = recorder.pods_of_jobs();
    assert!(pods >= WINDOW * (TURNS - 1), "the window was full all the time: {pods} pods");
}

/// A user scales PodSets that a new leader would reconcile last.
#[tokio::test(start_paused = true)]
async fn a_scaled_podset_is_among_the_next_reconciles() {
    let recorder = Arc::new(Recorder::default());
    let server = server(&recorder);
    let name = |number: usize| format!("s{number:04}");
    for number in 0..OBJECTS {
        create(&server, PODSETS, &name(number), &json!({ "replicas": 0 }));
    }
    let process = start(&server, &[Kind::PodSet]);
    assert!(recorder.metrics.set((process.metrics(), quintet_podset::CONTROLLER)).is_ok());
    until("the manager leads", || recorder.begun() >= WARM).await;
    for number in (OBJECTS - 5..OBJECTS).rev() {
        let of = format!("podsets/{}", name(number));
        assert!(!recorder.seen().first.contains_key(&of), "{of} waits among all");
        scale(&server, &name(number));
        until("the scaled PodSet has a write", || recorder.seen().first.contains_key(&of)).await;
        let seen = recorder.seen();
        let before = seen.first[&of] - seen.scaled[&of];
        assert!(before <= NEXT, "{before} reconciles ended before that of {of}");
    }
    assert!(recorder.begun() < OBJECTS / 2, "most others still wait");
}

/// While new objects keep the manager busy, it also reconciles those that wait since it became the leader.
#[tokio::test(start_paused = true)]
async fn a_flood_of_new_objects_starves_no_other_object() {
    let recorder = Arc::new(Recorder::default());
    let server = server(&recorder);
    let book = json!({ "author": "A", "title": "T" });
    for number in 0..OBJECTS {
        create(&server, BOOKS, &format!("old-{number}"), &book);
    }
    let process = start(&server, &[Kind::Book]);
    assert!(recorder.metrics.set((process.metrics(), quintet_book::CONTROLLER)).is_ok());
    until("the manager leads", || recorder.begun() >= WARM).await;
    let before = recorder.begun();
    for number in 0..FLOOD {
        create(&server, BOOKS, &format!("new-{number}"), &book);
    }
    until("every Book has a status", || recorder.begun() == OBJECTS + FLOOD).await;
    let begun = recorder.seen().begun.split_off(before);
    let is_new = |of: &String| of.starts_with("books/new-");
    let flood = begun.iter().rposition(is_new).unwrap();
    let others = begun[..flood].iter().filter(|of| !is_new(of)).count();
    assert!((FLOOD / BULK_EVERY..FLOOD / 2).contains(&others), "{others} others meanwhile");
    let ended = recorder.ended();
    let most = u64::try_from(3 * (OBJECTS + FLOOD)).unwrap();
    assert!(ended <= most, "{ended} reconciles");
}
