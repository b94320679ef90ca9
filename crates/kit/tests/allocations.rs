//! What a cached pod costs, exactly: bytes that stay allocated, as the allocator counts them.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use quintet_kit::informer::Informer;
use quintet_kit::link::Link;
use quintet_kit::metrics::Metrics;
use quintet_kit::resource::PODS;
use quintet_kit::types::Pod;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const PODS_LISTED: usize = 1_000;

/// The most bytes that a pod of ours may keep in the cache: what `cargo xtask bench manager --only own` measures from outside, less
/// what the allocator itself adds.
const LIMIT: usize = 720;

/// A pod as the API server lists it, with everything that nobody reads.
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

#[tokio::test(start_paused = true)]
async fn a_cached_pod_keeps_few_bytes() {
    let list = Arc::new(Mutex::new(Some(listed())));
    let service = tower::service_fn(move |_request: Request<Body>| {
        let answer = list.lock().unwrap().take();
        async move {
            match answer {
                Some(body) => Response::builder().body(Body::from(body.into_bytes())),
                None => std::future::pending().await,
            }
        }
    });
    let informer: Informer<Pod> = Informer::new(PODS, &[], Some("quintet.dev/kind"));
    let client = Client::new(service, "default");
    let metrics = Metrics::new().unwrap();
    // The list itself was allocated before, and is not counted.
    let _profiler = dhat::Profiler::builder().testing().build();
    let task = tokio::spawn(informer.clone().run(client, metrics, Link::default()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(informer.all().len(), PODS_LISTED);
    let bytes = dhat::HeapStats::get().curr_bytes / PODS_LISTED;
    println!("{bytes} bytes for each pod");
    assert!(bytes <= LIMIT, "{bytes} bytes for each pod");
    task.abort();
}
