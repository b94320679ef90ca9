//! Tests of the models and of the connection.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use http::Request;
use quintet_fake_apiserver::models::{self, Life};
use quintet_fake_apiserver::store::State;
use quintet_fake_apiserver::{Asked, Fate, Script, Server, Showing, Shown, Then};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn cluster(life: fn(&Value) -> Life) -> Server {
    let server = Server::new(1);
    let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    server.create("test", "/api/v1/nodes", &json!({ "metadata": { "name": "n" }, "status": ready }));
    tokio::spawn(models::run(server.clone(), Arc::new(life)));
    server
}

fn pod(server: &Server, name: &str, more: &Value) {
    let mut pod =
        json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["metadata"][field] = value.clone();
    }
    assert_eq!(server.create("test", PODS, &pod).0, 201);
}

fn phase(server: &Server, name: &str) -> Option<String> {
    server.get(&format!("{PODS}/{name}")).map(|pod| pod["status"]["phase"].as_str().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_runs_and_exits() {
    let server = cluster(|_| Life::Fails(Duration::from_secs(5), 3));
    pod(&server, "p", &json!({}));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(phase(&server, "p").as_deref(), Some("Running"));
    sleep(Duration::from_secs(5)).await;
    let ended = server.get(&format!("{PODS}/p")).unwrap();
    assert_eq!(ended["status"]["phase"], "Failed");
    assert_eq!(ended.pointer("/status/containerStatuses/0/state/terminated/exitCode"), Some(&json!(3)));
}

#[tokio::test(start_paused = true)]
async fn stops_a_running_pod_first_and_a_finalizer_keeps_it() {
    let server = cluster(|_| Life::Runs);
    pod(&server, "p", &json!({}));
    pod(&server, "held", &json!({ "finalizers": ["example.org/one"] }));
    sleep(Duration::from_secs(1)).await;
    for name in ["p", "held"] {
        server.delete("test", &format!("{PODS}/{name}"), &json!({}));
        assert_eq!(phase(&server, name).as_deref(), Some("Running"), "it has a grace period");
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(phase(&server, "p"), None);
    assert_eq!(phase(&server, "held").as_deref(), Some("Failed"));
    server.merge("test", &format!("{PODS}/held"), &json!({ "metadata": { "finalizers": null } }));
    assert_eq!(phase(&server, "held"), None);
}

/// Creates a pod and the ConfigMap `owner`, which owns the pod.
fn owned_pod(server: &Server, name: &str) {
    let owner = server.create("test", CONFIG_MAPS, &json!({ "metadata": { "name": "owner" } })).1;
    let owners = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"] }]);
    pod(server, name, &json!({ "ownerReferences": owners }));
}

#[tokio::test(start_paused = true)]
async fn an_orphaning_deletion_keeps_the_dependents() {
    let server = cluster(|_| Life::Runs);
    owned_pod(&server, "p");
    let path = format!("{CONFIG_MAPS}/owner");
    server.delete("test", &path, &json!({ "propagationPolicy": "Orphan" }));
    assert_eq!(server.get(&path).unwrap()["metadata"]["finalizers"], json!(["orphan"]));
    sleep(Duration::from_secs(3)).await;
    assert_eq!((server.get(&path), phase(&server, "p").as_deref()), (None, Some("Running")));
    assert!(server.get(&format!("{PODS}/p")).unwrap()["metadata"]["ownerReferences"].is_null());
}

#[tokio::test(start_paused = true)]
async fn deletes_dependents_without_owner_and_empties_a_namespace() {
    let server = cluster(|_| Life::Runs);
    owned_pod(&server, "p");
    sleep(Duration::from_secs(1)).await;
    server.delete("test", &format!("{CONFIG_MAPS}/owner"), &json!({}));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(phase(&server, "p"), None);
    pod(&server, "q", &json!({}));
    server.create("test", CONFIG_MAPS, &json!({ "metadata": { "name": "a" } }));
    server.delete("test", "/api/v1/namespaces/default", &json!({}));
    let (code, status) = server.create("test", CONFIG_MAPS, &json!({ "metadata": { "name": "b" } }));
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (403, &json!("NamespaceTerminating")));
    sleep(Duration::from_secs(10)).await;
    assert!(server.objects("pods").is_empty() && server.objects("namespaces").is_empty());
}

/// Breaks one write or one line of a watch.
struct Once(Mutex<Option<Then>>, Mutex<Option<Showing>>);

impl Script for Once {
    fn request(&self, asked: &Asked) -> Fate {
        let then = self.0.lock().unwrap().take_if(|_| asked.is_write());
        Fate { then: then.unwrap_or_default(), ..Fate::default() }
    }

    fn line(&self, _: &Shown<'_>) -> Showing {
        self.1.lock().unwrap().take().unwrap_or_default()
    }
}

fn request(method: &str, path: &str, body: &Value) -> Request<Vec<u8>> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    Request::builder().method(method).uri(path).header("content-type", "application/json").body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_write_stays_committed_if_its_answer_is_lost() {
    let server = Server::new(1);
    let client = server.client("somebody");
    for (number, then) in [Then::Reset, Then::Truncated, Then::Silence].into_iter().enumerate() {
        server.follow(Arc::new(Once(Mutex::new(Some(then)), Mutex::default())));
        let name = format!("a{number}");
        let body = json!({ "metadata": { "name": name } });
        let answer = client.request::<Value>(request("POST", CONFIG_MAPS, &body));
        assert!(!matches!(timeout(Duration::from_mins(1), answer).await, Ok(Ok(_))), "{name}");
        assert!(server.get(&format!("{CONFIG_MAPS}/{name}")).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_its_events_and_breaks_as_scripted() {
    let server = Server::new(1);
    let client = server.client("somebody");
    let events = async |showing: Option<Showing>, path: String| {
        server.follow(Arc::new(Once(Mutex::default(), Mutex::new(showing))));
        let mut lines = client.request_stream(request("GET", &path, &Value::Null)).await.unwrap();
        let (mut text, mut events) = (String::new(), Vec::new());
        while let Ok(Ok(1..)) = timeout(Duration::from_secs(5), lines.read_line(&mut text)).await {
            let event: Option<Value> = serde_json::from_str(&text).ok();
            events.push(event.map_or("torn".to_owned(), |event| event["type"].as_str().unwrap().to_owned()));
            text.clear();
        }
        events
    };
    let from = server.look(State::revision);
    server.create("test", CONFIG_MAPS, &json!({ "metadata": { "name": "a" } }));
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}");
    assert_eq!(events(None, path.clone()).await, ["ADDED"]);
    assert_eq!(events(Some(Showing::Twice), path.clone()).await, ["ADDED", "ADDED"]);
    assert_eq!(events(Some(Showing::Expired), path.clone()).await, ["ERROR"]);
    assert!(events(Some(Showing::Close), path.clone()).await.is_empty());
    assert!(events(Some(Showing::Silence), path.clone()).await.is_empty());
    server.compact();
    assert_eq!(events(None, path).await, ["ERROR"], "the log was compacted");
}

/// The types of the events within five seconds, and whether the watch has ended.
async fn read(lines: &mut (impl futures::AsyncBufRead + Unpin)) -> (Vec<String>, bool) {
    let (mut text, mut events) = (String::new(), Vec::new());
    while let Ok(read) = timeout(Duration::from_secs(5), lines.read_line(&mut text)).await {
        if read.unwrap() == 0 {
            return (events, true);
        }
        let event: Value = serde_json::from_str(&text).unwrap();
        events.push(event["type"].as_str().unwrap().to_owned());
        text.clear();
    }
    (events, false)
}

/// A restored store counts from an earlier version, unless the restore has raised it.
#[tokio::test(start_paused = true)]
async fn a_restored_store_sends_no_event_to_open_watches() {
    let server = Server::new(1);
    let client = server.client("somebody");
    let create = |name: &str| server.create("test", CONFIG_MAPS, &json!({ "metadata": { "name": name } }));
    create("kept");
    let backup = server.snapshot();
    let lost = create("lost").1;
    let from = lost["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}");
    let watch = async || client.request_stream(request("GET", &path, &Value::Null)).await.unwrap();
    let mut open = watch().await;
    server.restore(&backup, 0);
    let stored = server.objects("configmaps");
    assert_eq!((stored.len(), &stored[0]["metadata"]["name"]), (1, &json!("kept")));
    let again = create("lost").1;
    assert_eq!(again["metadata"]["resourceVersion"], from);
    assert_ne!(again["metadata"]["uid"], lost["metadata"]["uid"]);
    assert_eq!(read(&mut open).await, (vec![], false), "the store has not passed the watch");
    create("later");
    assert_eq!(read(&mut open).await, (vec!["ADDED".to_owned()], false), "without the events in between");

    server.restore(&backup, 1_000_000);
    assert_eq!(read(&mut open).await, (vec!["ERROR".to_owned()], true));
    let mut open = watch().await;
    assert_eq!(read(&mut open).await, (vec!["ERROR".to_owned()], true), "too old");
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_watches_and_loses_requests() {
    let server = Server::new(1);
    let client = server.client("somebody");
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion=1001");
    let mut open = client.request_stream(request("GET", &path, &Value::Null)).await.unwrap();
    let create = request("POST", CONFIG_MAPS, &json!({ "metadata": { "name": "lost" } }));
    let answer = tokio::spawn(async move { client.request::<Value>(create).await });
    for _ in 0..50 {
        // The clock stays, so the request is under way.
        tokio::task::yield_now().await;
    }
    server.restart();
    assert_eq!(read(&mut open).await, (vec![], true));
    assert!(answer.await.unwrap().is_err());
    assert!(server.get(&format!("{CONFIG_MAPS}/lost")).is_none());
}
