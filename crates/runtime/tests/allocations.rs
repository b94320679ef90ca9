//! The exact memory cost of a cached pod and of a reconcile: bytes that stay allocated, and allocations.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::PODS;
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use quintet_runtime::write::executor::Error;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const PODS_LISTED: usize = 1_000;

/// The limit of bytes that the cache keeps per pod. `cargo xtask bench manager --only own` measures the same from
/// outside, including the overhead of the allocator.
const LIMIT: usize = 744;

/// The limit of bytes at one time during a list or relist, in tenths of the bytes that the cache keeps.
const PEAK: usize = 12;

/// The limit of allocations of a reconcile without a write, except those of its plan.
const A_PASS: u64 = 15;

/// A pod as the API server lists it, with all fields that no plan reads.
fn pod(number: usize) -> Value {
    let name = format!("sample-{number:05}");
    json!({ "metadata": {
            "name": name, "namespace": "default", "uid": format!("7f9a2c1e-5b7d-4c58-9b1e-{number:012}"),
            "resourceVersion": (100_000 + number).to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "labels": { "quintet.dev/kind": "PodSet", "podset": "sample", "quintet.dev/template-hash": "5d8f7c9b44" },
            "ownerReferences": [{ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "name": "sample",
                "uid": "0b8e3e6f-3c7e-4ac2-8f57-0d9c8ab0d111", "controller": true, "blockOwnerDeletion": true }],
            "managedFields": [{ "manager": "quintet", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:containers": "x".repeat(1_500) } } }] },
        "spec": { "nodeName": format!("node-{}", number % 100), "restartPolicy": "Always",
            "containers": [{ "name": "c", "image": "busybox", "command": ["sleep", "x".repeat(500)] }] },
        "status": { "phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z" }],
            "containerStatuses": [{ "name": "c", "ready": true, "restartCount": 0, "image": "busybox",
                "imageID": "x".repeat(100), "state": { "running": { "startedAt": "2026-01-01T00:00:01Z" } } }] } })
}

fn listed() -> String {
    let end = json!({ "resourceVersion": "200000", "annotations": { "k8s.io/initial-events-end": "true" } });
    let pods = (0..PODS_LISTED).map(|number| json!({ "type": "ADDED", "object": pod(number) }));
    let events = pods.chain([json!({ "type": "BOOKMARK", "object": { "metadata": end } })]);
    events.map(|event| event.to_string() + "\n").collect()
}

/// An answer that arrives after a delay and in parts, as over a connection.
struct Answer {
    begin: Pin<Box<Sleep>>,
    ends: bool,
    parts: VecDeque<Bytes>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.begin.is_elapsed() && self.begin.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        match self.parts.pop_front() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// An API server that answers with the list. After ten minutes of watching its resourceVersion is too old, and the
/// API server answers with the list again.
fn server() -> Client {
    let parts = |text: String| text.into_bytes().chunks(16 * 1_024).map(Bytes::copy_from_slice).collect();
    let expired = json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "reason": "Expired", "status": "Failure" } });
    let minutes = Duration::from_mins;
    let answers: Vec<(Duration, VecDeque<Bytes>)> = vec![
        (minutes(0), parts(listed())),
        (minutes(10), parts(format!("{expired}\n"))),
        (minutes(0), parts(listed())),
    ];
    let answers = Arc::new(Mutex::new(answers));
    let service = tower::service_fn(move |request: Request<Body>| {
        let ends = request.uri().query() == Some("limit=1");
        let answer = if ends {
            // The newest version of the store, before a watch continues.
            Some((minutes(0), parts(json!({ "metadata": { "resourceVersion": "200000" } }).to_string())))
        } else {
            answers.lock().unwrap().pop()
        };
        async move {
            match answer {
                Some((wait, parts)) => {
                    Response::builder().body(Answer { begin: Box::pin(sleep(wait)), ends, parts })
                }
                None => std::future::pending().await,
            }
        }
    });
    Client::new(service, "default")
}

/// dhat counts the allocations of the whole process, so only one test may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_cached_pod_keeps_few_bytes() {
    alone(async {
        let informer: Informer<Pod> = Informer::new(PODS, &[], Some("quintet.dev/kind"));
        let client = server();
        // The lists were allocated before, so they do not count.
        let _profiler = dhat::Profiler::builder().testing().build();
        let task = tokio::spawn(informer.clone().run(client, Link::default(), Gate::open()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(informer.all().len(), PODS_LISTED);
        let first = dhat::HeapStats::get();
        let bytes = first.curr_bytes / PODS_LISTED;
        println!(
            "{bytes} bytes for each pod, {} at most while they are listed",
            first.max_bytes / PODS_LISTED
        );
        assert!(bytes <= LIMIT, "{bytes} bytes for each pod");
        assert!(first.max_bytes * 10 <= first.curr_bytes * PEAK, "{first:?}");

        // The second list arrives, without a change.
        sleep(Duration::from_mins(15)).await;
        let again = dhat::HeapStats::get();
        assert!(
            again.total_bytes > first.total_bytes + first.curr_bytes as u64,
            "it was read again: {again:?}"
        );
        println!("{} at most when they are listed again", again.max_bytes / PODS_LISTED);
        assert_eq!(informer.all().len(), PODS_LISTED);
        assert!(again.max_bytes * 10 <= again.curr_bytes * PEAK, "{again:?}");
        task.abort();
    });
}

/// A kind that never writes, and requeues after ten seconds.
struct Content;

impl Reconciler for Content {
    type Object = Pod;
    type Status = ();
    type World = ();
    type Effect = Infallible;

    async fn observe(&self, _object: &Pod, _refusals: Refusals) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, _object: &Pod, (): &(), now: Timestamp) -> Plan<()> {
        let mut plan = Plan::default();
        plan.requeue_at(now + Duration::from_secs(10));
        plan
    }
}

/// The cost around a kind's plan: the queue, the read of the cache, and the metrics.
#[test]
fn a_reconcile_without_a_write_allocates_little() {
    alone(async {
        let metrics = Metrics::new().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let context = Context::new(ContextConfig {
            client: server(),
            link: Link::default(),
            gate: Gate::open(),
            metrics: metrics.clone(),
            clock: Clock::System,
            instance: "test".into(),
            namespaces: Vec::new(),
            stop: stopped,
        });
        let objects = context.informer::<Pod>(PODS, None);
        let controller = Controller::new(&context, "content", Content, objects, []);
        for (_, task) in context.take_tasks() {
            tokio::spawn(task);
        }
        tokio::spawn(controller.run());
        let passes = || {
            let text = metrics.text().unwrap();
            let of = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<u64>().ok());
            let lines = text.lines().filter(|line| line.starts_with("controller_runtime_reconcile_total{"));
            lines.filter_map(of).sum::<u64>()
        };
        sleep(Duration::from_secs(30)).await;
        let before = passes();
        let profiler = dhat::Profiler::builder().testing().build();
        sleep(Duration::from_mins(5)).await;
        let allocations = dhat::HeapStats::get().total_blocks;
        drop(profiler);
        let passes = passes() - before;
        assert!(passes >= 20 * PODS_LISTED as u64, "{passes} passes");
        println!("{} allocations for each of {passes} reconciles", allocations / passes);
        assert!(allocations <= A_PASS * passes, "{allocations} allocations in {passes} reconciles");
    });
}

fn alone(test: impl Future<Output = ()>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test);
}
