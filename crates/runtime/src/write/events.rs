//! Sends Kubernetes Events, merged by object, reason and type, without delaying a reconcile.
//!
//! A recorder queues a bounded number of records, and one task sends them. The first record of a series becomes a
//! new Event; later ones only raise its count, at a limited pace. Records that do not fit are dropped and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::FIELD_MANAGER;
use crate::model::clock::Clock;
use crate::model::conditions::shorten;
use crate::model::digest;
use crate::model::object::Key;
use crate::model::plan::{Event, EventType};
use crate::model::resource::{EVENTS, Resource};
use crate::server::client::{ask_in_term, brief};
use crate::server::gate::Gate;
use crate::server::metrics::Metrics;

/// Records that may wait; further records are dropped.
const WAITING: u32 = 256;
/// Series that are kept for merging.
const REMEMBERED: usize = 1024;
/// How long a series is continued before a new Event starts. Below the API server's default `--event-ttl` of 1 h.
const SERIES: Duration = Duration::from_mins(30);
/// The shortest time between two updates of one series.
const PACE: Duration = Duration::from_secs(10);
/// The shortest time between two Events of one series with different notes.
const NEWS: Duration = Duration::from_secs(1);
/// How often a flush checks whether every record is sent.
const LOOK: Duration = Duration::from_millis(2);
/// The time limit of one request.
const CALL: Duration = Duration::from_secs(5);
/// The API's limit for a note, in bytes.
const LONGEST_NOTE: usize = 1024;

struct Record {
    resource: Resource,
    object: Key,
    event: Event,
    /// The start of the term in which the Event was recorded.
    since: Instant,
    /// One of [`WAITING`], until the record is sent or given up.
    _slot: OwnedSemaphorePermit,
}

/// Records Events for the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    gate: Gate,
    sender: mpsc::UnboundedSender<Record>,
    slots: Arc<Semaphore>,
    metrics: Metrics,
}

impl Recorder {
    /// Returns a recorder, and the task that sends its records.
    pub fn new(
        client: Client,
        gate: Gate,
        clock: Clock,
        metrics: Metrics,
        instance: String,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = send_all(client, gate.clone(), clock, instance, receiver);
        (Self { gate, sender, slots: Arc::new(Semaphore::new(WAITING as usize)), metrics }, task)
    }

    /// Records an Event about an object, for this term. Never waits.
    pub fn record(&self, resource: Resource, object: &Key, event: Event) {
        let Some(term) = self.gate.term() else { return };
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            self.metrics.events_dropped.inc();
            return;
        };
        let record = Record { resource, object: object.clone(), event, since: term.since, _slot: slot };
        let _ = self.sender.send(record);
    }

    /// Waits until every record is sent or given up, for up to `limit`. That includes records that arrive meanwhile.
    pub async fn flush(&self, limit: Duration) {
        let all_sent = async {
            // A flush that acquires the slots would take them from new records.
            while self.slots.available_permits() < WAITING as usize {
                sleep(LOOK).await;
            }
        };
        let _ = timeout(limit, all_sent).await;
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
    mut receiver: mpsc::UnboundedReceiver<Record>,
) {
    let mut known: HashMap<SeriesKey, Series> = HashMap::new();
    let mut serial: u64 = 0;
    while let Some(record) = receiver.recv().await {
        // Its request would not be sent, so it must not change a series that a later term continues.
        if !gate.fence(record.since).holds() {
            continue;
        }
        let client = Sender { client: &client, gate: &gate, since: record.since };
        let now = Instant::now();
        let key = (record.object.uid.clone(), record.event.reason, record.event.type_);
        let note = shorten(record.event.note.clone(), LONGEST_NOTE);
        if let Some(series) = known.get_mut(&key)
            && now.duration_since(series.began) < SERIES
        {
            series.count += 1;
            // Only the count of a series may change, so another note needs another Event.
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
                known.clear();
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
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace_of(&record.object) },
        "eventTime": format!("{:.6}", clock.now()),
        "type": record.event.type_.to_string(),
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

/// The API requires the namespace `default` for Events about cluster-scoped objects.
fn namespace_of(object: &Key) -> &str {
    if object.namespace.is_empty() { "default" } else { &object.namespace }
}

/// Sends Events as long as the term lasts in which they are recorded.
struct Sender<'a> {
    client: &'a Client,
    gate: &'a Gate,
    since: Instant,
}

impl Sender<'_> {
    /// Returns whether the API server accepted the request.
    async fn call(&self, method: &str, path: &str, content_type: &str, body: &Value) -> bool {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes());
        let Ok(request) = request else { return false };
        let answer = ask_in_term::<IgnoredAny>(self.client, self.gate, self.since, CALL, request).await;
        match &answer {
            None => tracing::debug!("dropped an Event, because the lease was lost"),
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::debug!(error = brief(error), "cannot send an Event"),
        }
        matches!(answer, Some(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Response;
    use kube::client::Body;

    use super::*;
    use crate::model::resource::PODS;

    /// The method and body of each request.
    type Asked = Arc<Mutex<Vec<(String, Value)>>>;

    /// A recorder over an API server that answers after `takes`.
    fn recorder(gate: &Gate, takes: Duration) -> (Recorder, Asked) {
        let asked = Asked::default();
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = log.clone();
            async move {
                let method = request.method().to_string();
                let body = request.into_body().collect_bytes().await.unwrap();
                sleep(takes).await;
                log.lock().unwrap().push((method, serde_json::from_slice(&body).unwrap()));
                Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let (client, metrics) = (Client::new(service, "n"), Metrics::new().unwrap());
        let (recorder, task) = Recorder::new(client, gate.clone(), Clock::System, metrics, "test".to_owned());
        tokio::spawn(task);
        (recorder, asked)
    }

    /// Records the same Event about the pod with this name.
    fn record(recorder: &Recorder, name: &str) {
        let event =
            Event { type_: EventType::Warning, reason: "Fails", action: "Try", note: "no".to_owned() };
        let key = Key { namespace: "n".into(), name: name.into(), uid: name.into() };
        recorder.record(PODS, &key, event);
    }

    #[tokio::test(start_paused = true)]
    async fn sends_an_event_that_arrives_during_a_flush() {
        let (recorder, asked) = recorder(&Gate::open(), Duration::from_millis(50));
        record(&recorder, "a");
        let later = async {
            sleep(Duration::from_millis(20)).await;
            record(&recorder, "b");
        };
        tokio::join!(recorder.flush(Duration::from_millis(200)), later);
        assert_eq!(asked.lock().unwrap().len(), 2);
        assert_eq!(recorder.metrics.events_dropped.get(), 0);
    }

    /// Another process may have led meanwhile.
    #[tokio::test(start_paused = true)]
    async fn an_event_of_an_ended_term_changes_no_series() {
        let gate = Gate::closed();
        let (recorder, asked) = recorder(&gate, Duration::ZERO);
        let open = || gate.open_until(Instant::now() + Duration::from_hours(1));
        open();
        record(&recorder, "a");
        sleep(NEWS).await;
        record(&recorder, "a");
        gate.close();
        sleep(PACE).await;
        open();
        record(&recorder, "a");
        sleep(NEWS).await;
        let asked = asked.lock().unwrap();
        let methods: Vec<&str> = asked.iter().map(|(method, _)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH"]);
        assert_eq!(asked[1].1["series"]["count"], 2, "{asked:?}");
    }
}
