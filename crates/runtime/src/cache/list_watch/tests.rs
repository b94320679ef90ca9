//! Informers follow scripted answers, in protobuf and in JSON.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use http::{Request, Response, header};
use kube::Client;
use kube::client::Body;
use serde_json::json;

use crate::cache::informer::{Change, Informer};
use crate::cache::response::{Events, Interrupted, LARGEST_EVENT};
use crate::cache::state::{Health, SILENCE};
use crate::model::core_types::Pod;
use crate::model::protobuf::CONTENT_TYPE;
use crate::model::protobuf::tests::{expired, frame, named};
use crate::model::resource::PODS;
use crate::server::connectivity::Link;
use crate::server::gate::Gate;

/// The result of following a script.
struct Followed {
    /// The changes that the subscribers received.
    told: Vec<String>,
    /// The resourceVersion of each request, and whether the request was for JSON.
    asked: Vec<(String, bool)>,
}

/// Follows a script of answers: code, content type and body.
async fn follow(answers: Vec<(u16, &'static str, Vec<u8>)>) -> Followed {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let is_for_newest = query == "limit=1";
        let from = query.split('&').find_map(|word| word.strip_prefix("resourceVersion=")).unwrap_or("list");
        let answer = if is_for_newest {
            let newest = r#"{"metadata":{"resourceVersion":"1000"},"items":[]}"#;
            Some((200, "application/json", newest.as_bytes().to_vec()))
        } else {
            log.lock().unwrap().push((from.to_owned(), request.headers().get(header::ACCEPT).is_none()));
            answers.lock().unwrap().pop_front()
        };
        async move {
            let Some((code, of, body)) = answer else { return std::future::pending().await };
            Response::builder().status(code).header(header::CONTENT_TYPE, of).body(Body::from(body))
        }
    });
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    informer.subscribe(move |change| {
        let (how, name) = match change {
            Change::Applied { new, old: None, .. } => ("new", &new.meta.name),
            Change::Applied { new, .. } => ("changed", &new.meta.name),
            Change::Deleted { old } => ("deleted", &old.meta.name),
            Change::Undecodable { key, .. } | Change::Vanished { key } => ("undecodable", &key.name),
        };
        sink.lock().unwrap().push(format!("{how} {name}"));
    });
    let task = informer.run(Client::new(service, "default"), Link::default(), Gate::open());
    let _ = tokio::time::timeout(Duration::from_mins(2), task).await;
    let (told, asked) = (told.lock().unwrap().clone(), asked.lock().unwrap().clone());
    Followed { told, asked }
}

fn asked(of: &[(&str, bool)]) -> Vec<(String, bool)> {
    of.iter().map(|(from, json)| ((*from).to_owned(), *json)).collect()
}

const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

#[tokio::test(start_paused = true)]
async fn follows_a_watch_in_protobuf() {
    let list = |name: &str, version: &str| {
        [frame("ADDED", &named(name, version)), frame("BOOKMARK", &named("", version))].concat()
    };
    // The last event is incomplete, so the next watch starts before it.
    let cut = frame("ADDED", &named("c", "5"));
    let events = [
        &frame("ADDED", &named("b", "2"))[..],
        &frame("MODIFIED", &named("a", "3")),
        &frame("DELETED", &named("b", "4")),
        &cut[..cut.len() - 1],
    ];
    let followed = follow(vec![
        (200, WATCH, list("a", "1")),
        (200, WATCH, events.concat()),
        // The same error within a watch, and as the answer to one.
        (200, WATCH, frame("ERROR", &expired())),
        (200, WATCH, list("a", "6")),
        (410, CONTENT_TYPE, expired()),
        (200, WATCH, list("c", "7")),
    ])
    .await;
    assert_eq!(
        followed.told,
        ["new a", "new b", "changed a", "deleted b", "changed a", "new c", "deleted a"]
    );
    let from = ["list", "1", "4", "list", "6", "list", "7"].map(|from| (from, false));
    assert_eq!(followed.asked, asked(&from));
}

#[tokio::test(start_paused = true)]
async fn falls_back_to_json_if_protobuf_is_unreadable() {
    let line = |type_: &str, name: &str| {
        let meta = json!({"name": name, "uid": name, "resourceVersion": "1",
            "annotations": {"k8s.io/initial-events-end": "true"}});
        format!("{}\n", json!({"type": type_, "object": {"metadata": meta}})).into_bytes()
    };
    let in_json = [line("ADDED", "a"), line("BOOKMARK", "")].concat();
    // An API server that always answers in JSON.
    let followed = follow(vec![(200, "application/json", in_json.clone())]).await;
    assert_eq!(followed.told, ["new a"]);
    assert_eq!(followed.asked, asked(&[("list", false), ("1", false)]));
    let frame = frame("ADDED", &named("a", "1"));
    for (code, of, body) in [
        (200, WATCH, self::frame("ADDED", b"an object")),
        (200, WATCH, vec![0xff; 8]),
        // One proxy changes the content type, and one accepts JSON only.
        (200, "application/json", [&frame[..], b"\n"].concat()),
        (406, "text/html", b"<html>".to_vec()),
    ] {
        let followed = follow(vec![(code, of, body), (200, "application/json", in_json.clone())]).await;
        assert_eq!(followed.told, ["new a"], "{code} {of}");
        assert_eq!(followed.asked, asked(&[("list", false), ("list", true), ("1", true)]), "{code} {of}");
    }
}

/// The time limit is for each event, not for the whole list.
#[tokio::test(start_paused = true)]
async fn a_list_of_five_minutes_fills_the_cache() {
    let service = tower::service_fn(|_request: Request<Body>| async {
        let pods = (0..20).map(|number| {
            let meta = json!({ "name": format!("p{number}"), "uid": "u", "resourceVersion": "1" });
            json!({ "type": "ADDED", "object": { "metadata": meta } })
        });
        let end = json!({ "resourceVersion": "1", "annotations": { "k8s.io/initial-events-end": "true" } });
        let events = pods.chain([json!({ "type": "BOOKMARK", "object": { "metadata": end } })]);
        let lines: Vec<String> = events.map(|event| format!("{event}\n")).collect();
        let slowly = futures::stream::iter(lines).then(|line| async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            Ok::<_, Infallible>(line)
        });
        Response::builder().body(axum::body::Body::from_stream(slowly))
    });
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let task = informer.clone().run(Client::new(service, "default"), Link::default(), Gate::open());
    let _ = tokio::time::timeout(Duration::from_secs(320), task).await;
    assert_eq!(informer.all().len(), 20);
    assert!(matches!(informer.health(), Health::Synced { .. }));
}

/// A proxy may send bytes without end. The process must not run out of memory.
#[tokio::test]
async fn a_line_has_a_limit() {
    for length in [LARGEST_EVENT, LARGEST_EVENT + 1, LARGEST_EVENT + 10] {
        let mut body = vec![b'x'; length];
        body[length - 1] = b'\n';
        let mut events = Events { body: &body[..], of: None, frame: Vec::new() };
        let mut line = Vec::new();
        let read = events.next(&mut line, SILENCE).await;
        let is_allowed = length == LARGEST_EVENT;
        assert_eq!(matches!(read, Ok(true)), is_allowed, "{length}");
        assert_eq!(matches!(read, Err(Interrupted::TooLarge)), !is_allowed, "{length}");
        assert!(line.len() <= LARGEST_EVENT + 1, "{} bytes of {length}", line.len());
    }
}

#[tokio::test(start_paused = true)]
async fn decodes_errors_in_protobuf_json_and_plain_text() {
    let list = frame("BOOKMARK", &named("", "1"));
    for (of, body) in
        [(CONTENT_TYPE, expired()), ("text/html", b"<html>".to_vec()), ("application/json", b"{}".to_vec())]
    {
        let followed = follow(vec![(200, WATCH, list.clone()), (410, of, body)]).await;
        assert_eq!(followed.asked, asked(&[("list", false), ("1", false), ("list", false)]), "{of}");
    }
}
