//! Informer, executor and election against scripted answers of an API server.
//!
//! The end-to-end tests show that a real API server answers like the scripts.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

mod election;
mod executor;
mod informer;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::Key;
use quintet_runtime::model::resource::PODS;
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

type Answers = Arc<Mutex<VecDeque<(u16, String)>>>;
type Asked = Arc<Mutex<Vec<String>>>;

/// A client that gets these answers in order and then none, and its log of requests.
fn scripted(answers: &[(u16, String)]) -> (Client, Asked) {
    scripted_slowly(answers, Duration::ZERO)
}

/// Like `scripted`, with a delay for every request except GET.
fn scripted_slowly(answers: &[(u16, String)], takes: Duration) -> (Client, Asked) {
    let answers: Answers = Arc::new(Mutex::new(answers.iter().cloned().collect()));
    let asked = Asked::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut answers = answers.lock().unwrap();
        let is_scripted = answers.front().is_some_and(|(_, body)| body.starts_with(NEWEST));
        let answer = if is_for_newest(request.uri()) && !is_scripted {
            Some(newest(u64::MAX))
        } else {
            log.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            answers.pop_front()
        };
        let takes = if request.method() == http::Method::GET { Duration::ZERO } else { takes };
        async move {
            if !takes.is_zero() {
                sleep(takes).await;
            }
            match answer {
                Some((code, body)) => Response::builder().status(code).body(Body::from(body.into_bytes())),
                None => std::future::pending().await,
            }
        }
    });
    (Client::new(service, "default"), asked)
}

/// Before an informer continues a watch, it asks for the newest version of the store. Without a scripted answer, the store
/// is newer than any watch, and the log omits the request.
fn is_for_newest(uri: &http::Uri) -> bool {
    uri.query() == Some("limit=1")
}

/// How the answer to this request begins.
const NEWEST: &str = "{\"metadata\":{\"resourceVersion\"";

/// An empty list at the newest version of the store.
fn newest(version: u64) -> (u16, String) {
    (200, format!("{NEWEST}:\"{version}\"}},\"items\":[]}}"))
}

fn pod(name: &str, version: u64) -> Value {
    json!({ "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
        "labels": { "quintet.dev/kind": "K" },
        "resourceVersion": version.to_string(),
        "ownerReferences": [{ "apiVersion": "g/v1", "kind": "K", "name": "owner", "uid": "owner", "controller": true }] } })
}

fn event(type_: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": type_, "object": object }))
}

fn bookmark(version: u64, end: bool) -> String {
    let annotations = if end { json!({ "k8s.io/initial-events-end": "true" }) } else { json!({}) };
    event(
        "BOOKMARK",
        &json!({ "metadata": { "resourceVersion": version.to_string(), "annotations": annotations } }),
    )
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message });
    (code, status.to_string())
}

fn owner() -> Key {
    Key { namespace: "ns".into(), name: "owner".into(), uid: "owner".into() }
}
