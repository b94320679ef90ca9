//! A client's connection: requests travel, are executed, and their answers travel back. Watches are streamed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Response, header};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tower::{BoxError, Service};

use crate::store::{Logged, Reply, Request, Target, Watching, decode, expired};
use crate::{Asked, Fate, Server, Showing, Shown, Then};

/// The maximum usual travel time of a request or an answer, in milliseconds.
const SLOWEST: u64 = 4;
/// The interval of a watch's bookmarks.
const BOOKMARK: Duration = Duration::from_mins(1);

/// A client's connection to the server.
#[derive(Clone)]
pub struct Connection {
    server: Server,
    who: Arc<str>,
}

/// The body of an answer: the bytes sent through a channel until that is closed.
pub struct AnswerBody(mpsc::UnboundedReceiver<Result<Bytes, BoxError>>);

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|sent| sent.map(|sent| sent.map(Frame::data)))
    }
}

type Answer = Result<Response<AnswerBody>, BoxError>;

fn reset() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

impl Connection {
    pub(crate) fn new(server: Server, who: &str) -> Self {
        Self { server, who: who.into() }
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (server, who) = (self.server.clone(), self.who.clone());
        let (sender, receiver) = oneshot::channel();
        // Like bytes on a wire, the request continues if its sender stops waiting.
        tokio::spawn(serve(server, who, request, sender));
        Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(reset())) })
    }
}

pub(crate) fn parse_query(query: &str) -> BTreeMap<String, String> {
    let parts = query.split('&').filter_map(|part| part.split_once('='));
    parts.map(|(name, value)| (decode(name), decode(&value.replace('+', " ")))).collect()
}

fn full(code: u16, content_type: &'static str, text: String) -> Answer {
    let (sender, receiver) = mpsc::unbounded_channel();
    let _ = sender.send(Ok(text.into_bytes().into()));
    Ok(Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, content_type)
        .body(AnswerBody(receiver))?)
}

async fn serve(server: Server, who: Arc<str>, request: http::Request<Body>, answer: oneshot::Sender<Answer>) {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.unwrap_or_default();
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let query = parse_query(parts.uri.query().unwrap_or_default());
    let target = Target::parse(parts.uri.path());
    let request = Request {
        who: who.to_string(),
        method: parts.method.clone(),
        target: target.clone().unwrap_or_default(),
        query,
        content_type: header(header::CONTENT_TYPE).to_owned(),
        accept: header(header::ACCEPT).to_owned(),
        body: body.to_vec(),
    };
    let asked = asked(&server, &request, parts.uri.path());
    let epoch = server.epoch();
    let Fate { held, is_lost, behind, then } = server.script().request(&asked);
    let pace = |server: &Server| Duration::from_millis(1 + server.below(SLOWEST));
    sleep(pace(&server) + held).await;
    let is_collection = matches!(asked.verb, "list" | "watch") && !request.query.contains_key("continue");
    let mut old = None;
    if let Some((revision, wait)) = behind.filter(|_| is_collection) {
        // Version 0 allows any state. A list, or a watch's beginning, without a version needs the newest.
        match request.query.get("resourceVersion").map_or("", String::as_str) {
            "0" => old = Some(revision),
            "" => sleep(wait).await,
            asked if request.query.get("resourceVersionMatch").is_some_and(|rule| rule == "NotOlderThan") => {
                old = asked.parse().ok().map(|asked| revision.max(asked));
            }
            _ => {}
        }
    }
    let reply = if is_lost || server.epoch() != epoch {
        None
    } else if target.is_none() {
        Some(groups(&server, parts.uri.path()))
    } else {
        Some(server.handle_as_of(&request, old))
    };
    if let Some(Reply::Object(code, _)) = &reply {
        server.script().answered(&asked, *code);
    }
    sleep(pace(&server)).await;
    let answered = match then {
        Then::Silence => {
            // Until the client stops waiting.
            let mut answer = answer;
            answer.closed().await;
            return;
        }
        Then::Reset => Err(reset()),
        Then::Status(status, retry_after) => {
            let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let mut answer = full(code, "application/json", status.to_string());
            if let (Ok(answer), Some(seconds)) = (&mut answer, retry_after) {
                answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            }
            answer
        }
        Then::Text(code, text) => full(code, "text/plain", text.to_owned()),
        Then::Event(status) => full(200, "application/json", line("ERROR", &status)),
        Then::Answer | Then::Truncated | Then::Late(_) => {
            if let Then::Late(late) = then {
                sleep(late).await;
            }
            match reply {
                None => Err(reset()),
                Some(Reply::Text(code, text)) => full(code, "text/plain", text.to_owned()),
                Some(Reply::Object(code, object)) => {
                    let text = object.to_string();
                    if matches!(then, Then::Truncated) {
                        torn(code, &text)
                    } else {
                        full(code, "application/json", text)
                    }
                }
                Some(Reply::Watch(watching)) => {
                    let (sender, receiver) = mpsc::unbounded_channel();
                    let resource = asked.resource.clone();
                    tokio::spawn(stream(server.clone(), who, resource, watching, sender));
                    let opened = Response::builder().header(header::CONTENT_TYPE, "application/json");
                    opened.body(AnswerBody(receiver)).map_err(Into::into)
                }
            }
        }
    };
    let _ = answer.send(answered);
}

/// The first half of an answer, then a broken connection.
fn torn(code: u16, text: &str) -> Answer {
    let (sender, receiver) = mpsc::unbounded_channel();
    let half = text.as_bytes()[..text.len() / 2].to_vec();
    let _ = sender.send(Ok(half.into()));
    let _ = sender.send(Err(reset()));
    Ok(Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(AnswerBody(receiver))?)
}

fn asked(server: &Server, request: &Request, path: &str) -> Asked {
    let target = &request.target;
    let known = server.look(|state| state.kind_of(target).map(|kind| state.types[kind].qualified()));
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let is_watch = request.query.get("watch").is_some_and(|watch| watch == "true");
    let verb = match request.method {
        Method::GET if !target.name.is_empty() => "get",
        Method::GET if is_watch => "watch",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::DELETE if target.name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ if request.content_type.starts_with("application/apply-patch") => "apply",
        _ if request.content_type.starts_with("application/merge-patch") => "merge",
        _ => "patch",
    };
    let name = match verb {
        "create" => body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        _ => target.name.clone(),
    };
    let version = request.query.get("resourceVersion").map_or("", String::as_str);
    let is_begun = verb == "watch" && version.is_empty() && !request.query.contains_key("sendInitialEvents");
    Asked {
        may_be_old: matches!(verb, "list" | "watch") && version == "0" || is_begun,
        who: request.who.clone(),
        verb,
        resource: known.unwrap_or_else(|| path.to_owned()),
        subresource: target.subresource.clone(),
        namespace: target.namespace.clone(),
        name,
        body,
    }
}

/// The list of groups, the only part of discovery that clients use.
fn groups(server: &Server, path: &str) -> Reply {
    if path.trim_end_matches('/') != "/apis" {
        return Reply::Text(404, "404 page not found\n");
    }
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    server.look(|state| {
        for kind in state.types.iter().filter(|kind| !kind.group.is_empty() && kind.version != "removed") {
            groups.insert(kind.group.clone(), kind.version.clone());
        }
    });
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, version)| {
            let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
            json!({ "name": group, "versions": [version], "preferredVersion": version })
        })
        .collect();
    Reply::Object(200, json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
}

type Lines = mpsc::UnboundedSender<Result<Bytes, BoxError>>;

fn line(type_: &str, object: &Value) -> String {
    format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n")
}

enum Next {
    Event(&'static str, Value),
    Bookmark { is_initial_end: bool },
}

/// Streams a watch until its timeout or until the client closes it.
async fn stream(server: Server, who: Arc<str>, resource: String, watching: Watching, lines: Lines) {
    let Watching {
        kind,
        namespace,
        selection,
        mut from,
        initial,
        marks_initial,
        bookmarks,
        seconds,
        is_expired,
    } = watching;
    let mut revision = server.revision();
    let restarts = server.epoch().restarts;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut bookmark = Instant::now() + BOOKMARK;
    if is_expired {
        let _ = lines.send(Ok(line("ERROR", &expired()).into()));
        return;
    }
    let shown_first = initial.len();
    let mut waiting: VecDeque<Next> =
        initial.into_iter().map(|object| Next::Event("ADDED", (*object).clone())).collect();
    let mut shown = 0;
    if marks_initial {
        waiting.push_back(Next::Bookmark { is_initial_end: true });
    }
    loop {
        while let Some(next) = waiting.pop_front() {
            shown += 1;
            let is_initial = shown <= shown_first + usize::from(marks_initial);
            let (type_, object) = match next {
                Next::Event(type_, object) => (type_, object),
                Next::Bookmark { is_initial_end } => ("BOOKMARK", mark(&server, kind, from, is_initial_end)),
            };
            let shown = Shown { who: &who, resource: &resource, type_, object: &object, is_initial };
            let showing = server.script().line(&shown);
            if send(&lines, showing, line(type_, &object)).await.is_break() {
                return;
            }
        }
        let news = server.look(|state| {
            if state.types[kind].version == "removed" || server.epoch().restarts != restarts {
                return Err(None);
            }
            if from < state.compacted {
                return Err(Some(expired()));
            }
            let start = state.log.partition_point(|logged| logged.revision <= from);
            let news: Vec<Logged> =
                state.log.range(start..).filter(|logged| logged.kind == kind).cloned().collect();
            Ok((state.revision, news))
        });
        match news {
            Err(status) => {
                if let Some(status) = status {
                    let _ = lines.send(Ok(line("ERROR", &status).into()));
                }
                return;
            }
            Ok((now, news)) => {
                // A watch may begin at a revision that the store has not reached, after a restore.
                from = from.max(now);
                waiting.extend(
                    news.iter()
                        .filter_map(|logged| event(logged, &namespace, |object| selection.selects(object))),
                );
            }
        }
        if !waiting.is_empty() {
            continue;
        }
        tokio::select! {
            changed = revision.changed() => {
                if changed.is_err() {
                    return;
                }
                // The event travels.
                sleep(Duration::from_millis(1 + server.below(SLOWEST))).await;
            }
            () = sleep_until(bookmark) => {
                bookmark += BOOKMARK;
                if bookmarks && from <= server.look(|state| state.revision) {
                    waiting.push_back(Next::Bookmark { is_initial_end: false });
                }
            }
            () = sleep_until(end) => return,
            () = lines.closed() => return,
        }
    }
}

/// Sends a line as the script decides. Breaks if the stream has ended.
async fn send(lines: &Lines, showing: Showing, text: String) -> ControlFlow<()> {
    let send = |text: String| match lines.send(Ok(text.into())) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let wait = async |wait: Duration| {
        tokio::select! {
            () = sleep(wait) => ControlFlow::Continue(()),
            () = lines.closed() => ControlFlow::Break(()),
        }
    };
    match showing {
        Showing::AsIs => return send(text),
        Showing::Twice => {
            send(text.clone())?;
            return send(text);
        }
        Showing::Later(later) => {
            wait(later).await?;
            return send(text);
        }
        Showing::Close => {}
        Showing::Torn => {
            let half = text.floor_char_boundary(text.len() / 2);
            let _ = send(text[..half].to_owned());
            let _ = lines.send(Err(reset()));
        }
        Showing::Expired => {
            let _ = send(line("ERROR", &expired()));
        }
        Showing::ExpiredLater(later) => {
            wait(later).await?;
            let _ = send(line("ERROR", &expired()));
        }
        Showing::Silence => lines.closed().await,
    }
    ControlFlow::Break(())
}

fn mark(server: &Server, kind: usize, at: u64, is_initial_end: bool) -> Value {
    let (kind, version) =
        server.look(|state| (state.types[kind].kind.clone(), state.types[kind].api_version()));
    let mut meta = json!({ "resourceVersion": at.to_string(), "creationTimestamp": null });
    if is_initial_end {
        meta["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    json!({ "kind": kind, "apiVersion": version, "metadata": meta })
}

/// The event of a change for a watch: an object may enter or leave the watch's selection.
fn event(logged: &Logged, namespace: &str, selects: impl Fn(&Value) -> bool) -> Option<Next> {
    let is_here = |object: &Value| {
        (namespace.is_empty() || object["metadata"]["namespace"] == namespace) && selects(object)
    };
    let was = logged.old.as_deref().filter(|object| is_here(object));
    let is = logged.new.as_deref().filter(|object| is_here(object));
    match (was, is) {
        (Some(_), Some(new)) => Some(Next::Event("MODIFIED", new.clone())),
        (None, Some(new)) => Some(Next::Event("ADDED", new.clone())),
        (Some(old), None) => {
            // The last selected state, with the version of the change.
            let mut old = old.clone();
            old["metadata"]["resourceVersion"] = json!(logged.revision.to_string());
            Some(Next::Event("DELETED", old))
        }
        (None, None) => None,
    }
}
