//! Kubernetes Events: merged per object and reason, bounded in number, never in the way of a pass.
//!
//! A recorder only puts a record into a bounded channel. One task sends them: the first of its kind as a new Event,
//! later ones as a count on that Event's series, at most once in a while. What does not fit is dropped and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::FIELD_MANAGER;
use crate::model::clock::Clock;
use crate::model::conditions::shorten;
use crate::model::digest;
use crate::model::object::Key;
use crate::model::plan::{Event, EventType};
use crate::model::resource::{EVENTS, Resource};
use crate::server::client::{ask_in_term, brief};
use crate::server::gate::{Gate, Term};
use crate::server::metrics::Metrics;

/// Records that may wait; more are dropped.
const WAITING: usize = 256;
/// Distinct (object, reason) pairs that are remembered for merging.
const REMEMBERED: usize = 1024;
/// How long an Event is continued as a series; afterwards a new one is made. Below the server's default of 1 h.
const SERIES: Duration = Duration::from_mins(30);
/// The shortest time between two updates of one series.
const PACE: Duration = Duration::from_secs(10);
/// The shortest time between two Events of one object and reason with different notes.
const NEWS: Duration = Duration::from_secs(1);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);
/// The API's limit on a note, in bytes.
const LONGEST_NOTE: usize = 1024;

struct Record {
    resource: Resource,
    object: Key,
    event: Event,
    _unsent: Unsent,
}

/// A record that is not dealt with yet.
struct Unsent(Arc<watch::Sender<usize>>);

impl Unsent {
    fn one_of(all: &Arc<watch::Sender<usize>>) -> Self {
        all.send_modify(|unsent| *unsent += 1);
        Self(all.clone())
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.0.send_modify(|unsent| *unsent -= 1);
    }
}

/// Where controllers put their news. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Record>,
    unsent: Arc<watch::Sender<usize>>,
    metrics: Metrics,
}

impl Recorder {
    /// A recorder, and the task that sends what it records.
    pub fn new(
        client: Client,
        gate: Gate,
        clock: Clock,
        metrics: Metrics,
        instance: String,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let task = send_all(client, gate, clock, instance, receiver);
        (Self { sender, unsent: Arc::default(), metrics }, task)
    }

    /// Records news about an object. Never waits.
    pub fn record(&self, resource: Resource, object: &Key, event: Event) {
        let record =
            Record { resource, object: object.clone(), event, _unsent: Unsent::one_of(&self.unsent) };
        if self.sender.try_send(record).is_err() {
            self.metrics.events_dropped.inc();
        }
    }

    /// Waits until all that was recorded so far is sent, or given up, but not for longer than `limit`.
    pub async fn flush(&self, limit: Duration) {
        let mut unsent = self.unsent.subscribe();
        let _ = timeout(limit, unsent.wait_for(|unsent| *unsent == 0)).await;
    }
}

struct Series {
    name: String,
    began: Instant,
    sent: Instant,
    count: i64,
    note: String,
}

type SeriesKey = (Arc<str>, &'static str, EventType);

async fn send_all(
    client: Client,
    gate: Gate,
    clock: Clock,
    instance: String,
    mut receiver: mpsc::Receiver<Record>,
) {
    let mut known: HashMap<SeriesKey, Series> = HashMap::new();
    let mut serial: u64 = 0;
    while let Some(record) = receiver.recv().await {
        let Some(term) = gate.term() else { continue };
        let client = Sender { client: &client, gate: &gate, term };
        let now = Instant::now();
        let key = (record.object.uid.clone(), record.event.reason, record.event.type_);
        let note = shorten(record.event.note.clone(), LONGEST_NOTE);
        if let Some(series) = known.get_mut(&key)
            && now.duration_since(series.began) < SERIES
        {
            series.count += 1;
            // The API lets a series change its count and no more: other words need another Event.
            if series.note == note {
                if now.duration_since(series.sent) >= PACE {
                    series.sent = now;
                    if !continue_series(&client, &record, series, &clock).await {
                        known.remove(&key);
                    }
                }
                continue;
            }
            if now.duration_since(series.sent) < NEWS {
                continue;
            }
        }
        serial += 1;
        let name = format!(
            "{}.{}",
            digest::cut(&record.object.name, 200),
            digest::short(&[&record.object.uid, record.event.reason, &instance, &serial.to_string()], 16)
        );
        let body = event(&record, &name, &note, &clock, &instance);
        let path = format!("{}?fieldManager={FIELD_MANAGER}", EVENTS.path(namespace_of(&record.object)));
        if client.call("POST", &path, "application/json", &body).await {
            if known.len() >= REMEMBERED {
                known.retain(|_, series| now.duration_since(series.began) < SERIES / 4);
                if known.len() >= REMEMBERED {
                    known.clear();
                }
            }
            known.insert(key, Series { name, began: now, sent: now, count: 1, note });
        }
    }
}

async fn continue_series(client: &Sender<'_>, record: &Record, series: &Series, clock: &Clock) -> bool {
    let patch = json!({
        "series": { "count": series.count, "lastObservedTime": format!("{:.6}", clock.now()) },
    });
    let path =
        format!("{}/{}?fieldManager={FIELD_MANAGER}", EVENTS.path(namespace_of(&record.object)), series.name);
    client.call("PATCH", &path, "application/merge-patch+json", &patch).await
}

fn event(record: &Record, name: &str, note: &str, clock: &Clock, instance: &str) -> Value {
    let type_ = match record.event.type_ {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace_of(&record.object) },
        "eventTime": format!("{:.6}", clock.now()),
        "type": type_,
        "reason": record.event.reason,
        "action": record.event.action,
        "note": note,
        "reportingController": "quintet.dev/manager",
        "reportingInstance": shorten(instance.to_owned(), 128),
        "regarding": {
            "apiVersion": record.resource.api_version(),
            "kind": record.resource.kind,
            "namespace": &*record.object.namespace,
            "name": &*record.object.name,
            "uid": &*record.object.uid,
        },
    })
}

/// Events about cluster-scoped objects live in `default`.
fn namespace_of(object: &Key) -> &str {
    if object.namespace.is_empty() { "default" } else { &object.namespace }
}

/// Sends Events for as long as the term lasts in which they were to be sent.
struct Sender<'a> {
    client: &'a Client,
    gate: &'a Gate,
    term: Term,
}

impl Sender<'_> {
    /// Whether the API server has taken it.
    async fn call(&self, method: &str, path: &str, content_type: &str, body: &Value) -> bool {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes());
        let Ok(request) = request else { return false };
        match ask_in_term::<IgnoredAny>(self.client, self.gate, self.term, CALL, request).await {
            None => {
                tracing::debug!("an Event was given up with the lease");
                false
            }
            Some(Ok(Ok(_))) => true,
            Some(Ok(Err(error))) => {
                tracing::debug!(error = brief(&error), "an Event was not sent");
                false
            }
            Some(Err(_elapsed)) => {
                tracing::debug!("an Event was not sent in time");
                false
            }
        }
    }
}
