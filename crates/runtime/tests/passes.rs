//! The loop of a controller: a panic, a hanging reconcile and a failure each affect one object only.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use futures::channel::mpsc;
use http::{Request, Response};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Meta, Object};
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::{PODS, Resource};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use quintet_runtime::write::executor::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

/// Counts the reconciles of each object, and misbehaves as the name of the object demands.
#[derive(Clone, Default)]
struct Odd {
    passes: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Odd {
    fn passes(&self, name: &str) -> u32 {
        self.passes.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl Reconciler for Odd {
    type Object = Pod;
    type Status = ();
    type World = ();
    type Effect = std::convert::Infallible;

    async fn observe(&self, object: &Pod, _refusals: Refusals) -> Result<(), Error> {
        let name = object.meta.name.to_string();
        let pass = {
            let mut passes = self.passes.lock().unwrap();
            let pass = passes.entry(name.clone()).or_insert(0);
            *pass += 1;
            *pass
        };
        match (name.as_str(), pass) {
            ("panics", 1) => panic!("on purpose"),
            ("hangs", 1) => std::future::pending().await,
            ("fails", 1..=3) => Err(Error::Effect("on purpose".into())),
            _ => Ok(()),
        }
    }

    fn plan(&self, object: &Pod, (): &(), now: Timestamp) -> Plan<()> {
        let mut plan = Plan::default();
        if &*object.meta.name == "again" {
            plan.requeue_at(now + Duration::from_secs(10));
        }
        if &*object.meta.name == "makes" {
            let body = json!({}).into();
            plan.steps.push(vec![Action::Create {
                owner_label: None,
                resource: PODS,
                namespace: "n".into(),
                name: "made".into(),
                body,
            }]);
            plan.status = Some(());
        }
        plan
    }

    fn concerns(&self, object: &Pod) -> bool {
        &*object.meta.name != "foreign"
    }

    fn has_last_pass(&self) -> bool {
        true
    }
}

/// A running controller.
struct Started {
    odd: Odd,
    objects: Informer<Pod>,
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

/// Starts a controller for the pods of these namespaces; empty means all namespaces.
fn start(client: Client, gate: &Gate, metrics: &Metrics, namespaces: Vec<String>) -> Started {
    start_by(Clock::System, client, gate, metrics, namespaces)
}

fn start_by(
    clock: Clock,
    client: Client,
    gate: &Gate,
    metrics: &Metrics,
    namespaces: Vec<String>,
) -> Started {
    let (stop, stopped) = watch::channel(false);
    let (gate, metrics) = (gate.clone(), metrics.clone());
    let (link, instance) = (Link::default(), "test".into());
    let setup = ContextConfig { client, link, gate, metrics, clock, instance, namespaces, stop: stopped };
    let odd = Odd::default();
    let (objects, controller) = set_up(odd.clone(), PODS, setup);
    let running = tokio::spawn(controller.run());
    Started { odd, objects, stop, running }
}

/// A controller and its running cache.
fn set_up<R: Reconciler>(
    kind: R,
    resource: Resource,
    setup: ContextConfig,
) -> (Informer<R::Object>, Controller<R>) {
    let context = Context::new(setup);
    let objects = context.informer::<R::Object>(resource, None);
    let controller = Controller::new(&context, "odd", kind, objects.clone(), []);
    for (_, task) in context.take_tasks() {
        tokio::spawn(task);
    }
    (objects, controller)
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_one_object_stops_no_other_object() {
    let metrics = Metrics::new().unwrap();
    let Started { odd, objects, stop, running } =
        start(once(listed(&["panics", "hangs", "fails", "good"])), &Gate::open(), &metrics, Vec::new());

    sleep(Duration::from_secs(20)).await;
    assert_eq!((odd.passes("good"), odd.passes("panics"), odd.passes("fails")), (1, 2, 4));
    assert_eq!(odd.passes("hangs"), 1);
    sleep(Duration::from_mins(6)).await;
    assert_eq!(odd.passes("hangs"), 2, "aborted by the time limit and retried");
    assert_eq!(
        (odd.passes("good"), odd.passes("panics"), odd.passes("fails")),
        (1, 2, 4),
        "no other object is affected"
    );
    let text = metrics.text().unwrap();
    for line in [
        "controller_runtime_reconcile_panics_total{controller=\"odd\"} 1",
        "controller_runtime_reconcile_timeouts_total{controller=\"odd\"} 1",
        "controller_runtime_reconcile_errors_total{controller=\"odd\"} 5",
        "workqueue_depth{controller=\"odd\",name=\"odd\",priority=\"0\"} 0",
        "workqueue_depth{controller=\"odd\",name=\"odd\",priority=\"-100\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    stop.send(true).unwrap();
    running.await.unwrap();
    assert_eq!(odd.passes("good"), 2, "one more pass at the end");
    assert!(objects.all().iter().all(|pod| !pod.terminating()));
}

/// If the machine's clock jumps back and ahead, every object is reconciled as often as before.
#[tokio::test(start_paused = true)]
async fn a_clock_jump_stops_no_reconciles() {
    static SET: AtomicI64 = AtomicI64::new(0);
    let clock = Clock::tokio_that_is_set("2026-01-02T00:00:00Z".parse().unwrap(), &SET);
    let metrics = Metrics::new().unwrap();
    let Started { odd, stop: _stop, .. } =
        start_by(clock, once(listed(&["again", "good"])), &Gate::open(), &metrics, Vec::new());
    sleep(Duration::from_secs(65)).await;
    assert_eq!((odd.passes("again"), odd.passes("good")), (7, 1));
    for (jump, passes) in [(-86_400, 13), (86_400, 19), (0, 25)] {
        SET.store(jump, Ordering::Relaxed);
        sleep(Duration::from_mins(1)).await;
        assert_eq!((odd.passes("again"), odd.passes("good")), (passes, 1), "{jump}");
    }
}

/// While a webhook fails, the API server answers 500 with InternalError, and the status is still written. After other
/// failures it is not.
#[tokio::test(start_paused = true)]
async fn writes_the_status_while_a_webhook_fails() {
    for (code, reason, told) in
        [(500, "InternalError", 1), (500, "", 0), (503, "ServiceUnavailable", 0), (429, "TooManyRequests", 0)]
    {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (list, log) = (Arc::new(Mutex::new(Some(listed(&["makes"])))), asked.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let verb = request.method().to_string();
            if verb != "GET" {
                log.lock().unwrap().push(verb.clone());
            }
            let answer = match (verb.as_str(), request.uri().path()) {
                ("POST", _) => Some((code, failure(code, reason))),
                ("PATCH", _) => {
                    let metadata =
                        json!({ "name": "makes", "namespace": "n", "uid": "makes", "resourceVersion": "9" });
                    Some((200, json!({ "metadata": metadata }).to_string()))
                }
                (_, path) if path.ends_with("/made") => Some((404, failure(404, "NotFound"))),
                _ => list.lock().unwrap().take().map(|list| (200, list)),
            };
            async move {
                match answer {
                    Some((code, body)) => {
                        Response::builder().status(code).body(Body::from(body.into_bytes()))
                    }
                    None => std::future::pending().await,
                }
            }
        });
        let metrics = Metrics::new().unwrap();
        let Started { stop: _stop, .. } =
            start(Client::new(service, "n"), &Gate::open(), &metrics, Vec::new());
        sleep(Duration::from_secs(20)).await;
        let asked = asked.lock().unwrap();
        assert_eq!(
            (&*asked[0], asked.iter().filter(|verb| *verb == "PATCH").count()),
            ("POST", told),
            "{code}"
        );
    }
}

/// The body of an error answer.
fn failure(code: u16, reason: &str) -> String {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": "failed calling webhook" });
    status.to_string()
}

const COUNTERS: Resource = Resource::custom("example.com", "v1", "Counter", "counters");

/// A custom resource with a number as its status. Odd numbers are settled.
#[derive(Deserialize)]
struct Counter {
    #[serde(rename = "metadata")]
    meta: Meta,
    status: Option<u32>,
}

impl Object for Counter {
    quintet_runtime::identified_by_meta!();
}

/// Every plan wants a higher number.
struct Counters;

impl Reconciler for Counters {
    type Object = Counter;
    type Status = u32;
    type World = ();
    type Effect = std::convert::Infallible;

    fn status<'a>(&self, object: &'a Counter) -> Option<&'a u32> {
        object.status.as_ref()
    }

    fn is_settled(&self, status: &u32) -> bool {
        status % 2 == 1
    }

    async fn observe(&self, _object: &Counter, _refusals: Refusals) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, object: &Counter, (): &(), now: Timestamp) -> Plan<u32> {
        if ["tidies", "blocked"].contains(&&*object.meta.name) {
            return tidy(object);
        }
        let step = if &*object.meta.name == "settles" { 1 } else { 2 };
        let mut plan = Plan { status: Some(object.status.unwrap_or(0) + step), ..Plan::default() };
        plan.requeue_at(now + Duration::from_millis(100));
        if &*object.meta.name == "fails" {
            for pod in ["made", "refused"] {
                plan.steps.push(vec![Action::Create {
                    owner_label: None,
                    resource: PODS,
                    namespace: "n".into(),
                    name: pod.into(),
                    body: json!({ "metadata": { "name": pod } }).into(),
                }]);
            }
        }
        plan
    }
}

/// A plan that creates a pod and writes the status, and in the background deletes another pod. `blocked` creates a pod for
/// which a webhook fails.
fn tidy(counter: &Counter) -> Plan<u32> {
    let pod = if &*counter.meta.name == "blocked" { "refused" } else { "made" };
    let (name, body) = (pod.into(), json!({ "metadata": { "name": pod } }).into());
    let made = Action::Create { owner_label: None, resource: PODS, namespace: "n".into(), name, body };
    let old: Meta = serde_json::from_value(json!({ "name": "old", "namespace": "n", "uid": "old" })).unwrap();
    Plan {
        steps: if counter.status.is_none() { vec![vec![made]] } else { Vec::new() },
        background: vec![Action::delete(PODS, &old, false)],
        status: Some(2),
        ..Plan::default()
    }
}

/// An API server with these counters, and the log of its writes. A webhook fails for the pod `refused`. Each write takes
/// 10 ms, so that the clock advances even if writes follow each other immediately.
fn serve_counters(names: &[&str]) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (show, shown) = mpsc::unbounded::<Result<String, std::convert::Infallible>>();
    let streams = [axum::body::Body::from(listed(names)), axum::body::Body::from_stream(shown)];
    let streams = Arc::new(Mutex::new(VecDeque::from(streams)));
    let (writes, versions) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicI64::new(6)));
    let log = writes.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (streams, versions, show, log) = (streams.clone(), versions.clone(), show.clone(), log.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            let verb = head.method.as_str();
            if verb != "GET" {
                log.lock().unwrap().push(format!("{verb} {name}"));
                sleep(Duration::from_millis(10)).await;
            }
            let version = versions.fetch_add(1, Ordering::Relaxed).to_string();
            let metadata = json!({ "name": name, "namespace": "n", "uid": name, "resourceVersion": version });
            let object = json!({ "metadata": metadata, "status": body["status"] });
            let answer = match (verb, head.uri.path()) {
                ("GET", path) if path.ends_with("/pods/refused") => {
                    Some((404, failure(404, "NotFound").into()))
                }
                ("GET", _) => streams.lock().unwrap().pop_front().map(|stream| (200, stream)),
                ("POST", _) if name == "refused" => Some((500, failure(500, "InternalError").into())),
                ("DELETE", _) => Some((200, object.to_string().into())),
                ("POST", _) if name == "made" => Some((201, object.to_string().into())),
                ("PATCH", _) => {
                    let line = json!({ "type": "MODIFIED", "object": object }).to_string() + "\n";
                    show.unbounded_send(Ok(line)).unwrap();
                    Some((200, object.to_string().into()))
                }
                _ => None,
            };
            match answer {
                Some((code, body)) => Response::builder().status(code).body(body),
                None => std::future::pending().await,
            }
        }
    });
    (Client::new(service, "n"), writes)
}

/// The writes in their order, each a verb and a name.
#[derive(Clone)]
struct Writes(Arc<Mutex<Vec<String>>>);

impl Writes {
    fn count(&self, write: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|done| **done == write).count()
    }
}

/// Runs a controller of these counters. Returns its writes, and the sender that stops the controller.
fn start_counters(names: &[&str]) -> (Writes, watch::Sender<bool>) {
    let (client, writes) = serve_counters(names);
    let (stop, stopped) = watch::channel(false);
    let setup = ContextConfig {
        client,
        link: Link::default(),
        gate: Gate::open(),
        metrics: Metrics::new().unwrap(),
        clock: Clock::System,
        instance: "test".into(),
        namespaces: Vec::new(),
        stop: stopped,
    };
    let (_, controller) = set_up(Counters, COUNTERS, setup);
    tokio::spawn(controller.run());
    (Writes(writes), stop)
}

/// Each status write causes a reconcile, which wants another status. The controller writes one status a second, and one a
/// second that settles the object.
#[tokio::test(start_paused = true)]
async fn writes_one_status_a_second_and_one_that_settles() {
    let (writes, _stop) = start_counters(&["restless", "settles"]);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(
        [writes.count("PATCH restless"), writes.count("PATCH settles")],
        [1, 1],
        "the first status does not wait"
    );
    sleep(Duration::from_secs(10)).await;
    assert_eq!([writes.count("PATCH restless"), writes.count("PATCH settles")], [11, 21]);
}

/// Each reconcile creates a pod, and then a webhook fails. The backoff is shorter than the pace of the status at first: 0.2 s,
/// doubled with each failure, less up to a quarter.
#[tokio::test(start_paused = true)]
async fn failed_reconciles_keep_the_status_pace() {
    let (writes, _stop) = start_counters(&["fails"]);
    let began = tokio::time::Instant::now();
    for (millis, reconciles, statuses) in [(100, 1, 1), (1_000, 3, 1), (1_700, 4, 2), (3_300, 5, 3)] {
        tokio::time::sleep_until(began + Duration::from_millis(millis)).await;
        let counted = [writes.count("POST made"), writes.count("POST refused"), writes.count("PATCH fails")];
        assert_eq!(counted, [reconciles, reconciles, statuses], "after {millis} ms");
    }
}

/// Writes without urgency wait for a plan whose steps write nothing. A failed webhook does not stop them.
#[tokio::test(start_paused = true)]
async fn writes_without_urgency_follow_the_others() {
    for (name, pod) in [("tidies", "made"), ("blocked", "refused")] {
        let (writes, _stop) = start_counters(&[name]);
        sleep(Duration::from_secs(10)).await;
        let mut writes = writes.0.lock().unwrap().clone();
        writes.retain(|write| !write.starts_with(&format!("POST {name}.")));
        if name == "blocked" {
            // The failed creation is repeated.
            writes.truncate(3);
        }
        assert_eq!(writes, [format!("POST {pod}"), format!("PATCH {name}"), "DELETE ".to_owned()]);
    }
}

/// An API server that answers once and then never again.
fn once(list: String) -> Client {
    let list = Arc::new(Mutex::new(Some(list)));
    let service = tower::service_fn(move |_request: Request<Body>| {
        let answer = list.lock().unwrap().take();
        async move {
            match answer {
                Some(body) => Response::builder().body(Body::from(body.into_bytes())),
                None => std::future::pending().await,
            }
        }
    });
    Client::new(service, "n")
}

/// The lines of a complete streaming list of pods.
fn listed(names: &[&str]) -> String {
    let pods = names.iter().map(|name| {
        // Only a pod that is newer than a list may be missing in it.
        let version = if *name == "b" { "6" } else { "1" };
        let metadata = json!({ "name": name, "namespace": "n", "uid": name, "resourceVersion": version });
        json!({ "type": "ADDED", "object": { "metadata": metadata } })
    });
    let end = json!({ "resourceVersion": "5", "annotations": { "k8s.io/initial-events-end": "true" } });
    let events = pods.chain([json!({ "type": "BOOKMARK", "object": { "metadata": end } })]);
    events.map(|event| event.to_string() + "\n").collect()
}

/// A new leader lists the caches of its plans again, and plans nothing before.
#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_its_caches_again() {
    let lists = Arc::new(Mutex::new(0));
    let counted = lists.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_list = request.uri().query().is_some_and(|query| query.contains("sendInitialEvents"));
        let first = is_list && {
            let mut lists = counted.lock().unwrap();
            *lists += 1;
            *lists == 1
        };
        async move {
            match (is_list, first) {
                (true, true) => Response::builder().body(Body::from(listed(&["a", "foreign"]).into_bytes())),
                (true, false) => {
                    sleep(Duration::from_secs(3)).await;
                    Response::builder().body(Body::from(listed(&["a", "b", "foreign"]).into_bytes()))
                }
                (false, _) => std::future::pending().await,
            }
        }
    });
    let gate = Gate::closed();
    let Started { odd, stop, running, .. } =
        start(Client::new(service, "n"), &gate, &Metrics::new().unwrap(), Vec::new());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (odd.passes("a"), *lists.lock().unwrap()),
        (0, 1),
        "a standby has warm caches and does nothing"
    );
    gate.open_until(tokio::time::Instant::now() + Duration::from_hours(1));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((odd.passes("a"), *lists.lock().unwrap()), (0, 2), "it waits for the new list");
    sleep(Duration::from_secs(2)).await;
    assert_eq!((odd.passes("a"), odd.passes("b"), odd.passes("foreign")), (1, 1, 0));
    gate.open_until(tokio::time::Instant::now() + Duration::from_hours(2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(*lists.lock().unwrap(), 2, "a renewal is not a take-over");
    gate.close();
    sleep(Duration::from_secs(1)).await;
    gate.open_until(tokio::time::Instant::now() + Duration::from_hours(1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((odd.passes("a"), *lists.lock().unwrap()), (2, 3));

    // After an orderly release, a cache that has seen as much as the predecessor needs no relist.
    for (seen, lists_then) in [(5, 3), (6, 4)] {
        gate.close();
        sleep(Duration::from_secs(1)).await;
        gate.hand_over([(PODS.crd_name(), seen)].into());
        let passes = odd.passes("a");
        gate.open_until(tokio::time::Instant::now() + Duration::from_hours(1));
        sleep(Duration::from_millis(100)).await;
        assert_eq!(odd.passes("a") - passes, u32::from(lists_then == 3), "seen {seen}");
        sleep(Duration::from_secs(10)).await;
        assert_eq!((odd.passes("a") - passes, *lists.lock().unwrap()), (1, lists_then), "seen {seen}");
    }
    stop.send(true).unwrap();
    running.await.unwrap();
    assert_eq!((odd.passes("a"), odd.passes("foreign")), (5, 0));
}

/// The watch of one of two namespaces fails twice for a while. The objects of the other namespace do not wait.
#[tokio::test(start_paused = true)]
async fn a_failing_watch_delays_only_its_own_namespace() {
    let refused = Arc::new(Mutex::new(true));
    let asked = refused.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_list = request.uri().query().is_some_and(|query| query.contains("sendInitialEvents"));
        let shut = request.uri().path().contains("/shut/");
        let refuses = shut && *asked.lock().unwrap();
        async move {
            match (refuses, is_list) {
                (true, _) => {
                    let status = json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                        "message": "no", "metadata": {} });
                    Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))
                }
                (false, true) => {
                    let (name, namespace) = if shut { ("b", "shut") } else { ("a", "n") };
                    let list = listed(&[name])
                        .replace("\"namespace\":\"n\"", &format!("\"namespace\":\"{namespace}\""));
                    Response::builder().body(Body::from(list.into_bytes()))
                }
                (false, false) => std::future::pending().await,
            }
        }
    });
    let gate = Gate::open();
    let Started { odd, stop, running, .. } = start(
        Client::new(service, "n"),
        &gate,
        &Metrics::new().unwrap(),
        vec!["n".to_owned(), "shut".to_owned()],
    );
    sleep(Duration::from_secs(5)).await;
    assert_eq!((odd.passes("a"), odd.passes("b")), (1, 0));
    *refused.lock().unwrap() = false;
    sleep(Duration::from_mins(1)).await;
    assert_eq!((odd.passes("a"), odd.passes("b")), (1, 1), "does not reconcile known objects again");
    // A new term reconciles all objects.
    gate.close();
    sleep(Duration::from_secs(1)).await;
    gate.open_until(tokio::time::Instant::now() + Duration::from_hours(1));
    sleep(Duration::from_secs(5)).await;
    assert_eq!((odd.passes("a"), odd.passes("b")), (2, 2));
    stop.send(true).unwrap();
    running.await.unwrap();
}

/// The watch is cut after nine seconds, and the API server is away for three.
#[tokio::test(start_paused = true)]
async fn an_interrupted_watch_delays_keys_and_drops_none() {
    let began = tokio::time::Instant::now();
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_away = (Duration::from_secs(9)..Duration::from_secs(12)).contains(&began.elapsed());
        let cut = async {
            sleep(Duration::from_secs(9)).await;
            Err::<Vec<u8>, _>(std::io::Error::other("cut"))
        };
        let newest = json!({ "metadata": { "resourceVersion": "5" }, "items": [] }).to_string();
        let (code, body) = match &*query {
            _ if is_away => (503, "away".into()),
            "limit=1" => (200, newest.into()),
            _ if query.contains("sendInitialEvents") => (200, listed(&["a", "again"]).into()),
            _ => (200, axum::body::Body::from_stream(futures::stream::once(cut))),
        };
        std::future::ready(Response::builder().status(code).body(body))
    });
    let gate = Gate::open();
    let Started { odd, stop, running, .. } =
        start(Client::new(service, "n"), &gate, &Metrics::new().unwrap(), Vec::new());
    sleep(Duration::from_millis(11_500)).await;
    assert_eq!((odd.passes("a"), odd.passes("again")), (1, 1), "the second reconcile was due after 10 s");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(
        (odd.passes("a"), odd.passes("again")),
        (1, 2),
        "and no object is reconciled without a reason"
    );
    stop.send(true).unwrap();
    running.await.unwrap();
}
