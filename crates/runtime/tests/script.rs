//! Informer, executor and election against scripted answers of an API server.
//!
//! The end-to-end tests show that a real API server answers like the scripts.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use quintet_runtime::cache::deselected::Departed;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::election::{self, Settings};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Key, Object as _};
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::progress::Progress;
use quintet_runtime::model::refusals::{RefusalReason, Verb};
use quintet_runtime::model::resource::PODS;
use quintet_runtime::server::client;
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::{Gate, Seen};
use quintet_runtime::server::metrics::Metrics;
use quintet_runtime::write::executor::{Error, Execution, Executor};
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
        log.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        let answer = answers.lock().unwrap().pop_front();
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

/// Runs an informer over a script. Returns the informer, the changes that its subscribers received, and the requests.
async fn follow(answers: &[(u16, String)]) -> (Informer<Pod>, Vec<String>, Asked) {
    let (client, asked) = scripted(answers);
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], Some("quintet.dev/kind"));
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = told.clone();
    informer.subscribe(move |change| {
        let said = match change {
            Change::Applied { new, .. } if new.meta.name.starts_with("stumble") => panic!("on purpose"),
            Change::Applied { new, old: None, came: false } => format!("new {}", new.meta.name),
            Change::Applied { new, old: None, came: true } => format!("come {}", new.meta.name),
            Change::Applied { new, .. } => format!("changed {}", new.meta.name),
            Change::Deleted { old } => format!("deleted {}", old.meta.name),
            Change::Undecodable { key, .. } => format!("undecodable {}", key.name),
            Change::Vanished { key } => format!("vanished {}", key.name),
        };
        sink.lock().unwrap().push(said);
    });
    let task = tokio::spawn(informer.clone().run(client, Link::default()));
    sleep(Duration::from_secs(100)).await;
    task.abort();
    let told = told.lock().unwrap().clone();
    (informer, told, asked)
}

#[tokio::test(start_paused = true)]
async fn watches_from_the_end_of_a_streamed_list() {
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &pod("b", 2)) + &bookmark(5, true);
    let mut changed = pod("a", 6);
    changed["status"]["phase"] = json!("Running");
    let watch = event("MODIFIED", &changed)
        + &event("MODIFIED", &{
            let mut same = changed.clone();
            same["metadata"]["resourceVersion"] = json!("7");
            same
        })
        + &event("DELETED", &pod("b", 8))
        + &bookmark(20, false);
    let (informer, told, asked) = follow(&[(200, list), (200, watch)]).await;
    assert_eq!(told, ["new a", "new b", "changed a", "deleted b"], "an unread field wakes no controller");
    assert_eq!(informer.owned_by(&owner()).len(), 1);
    assert_eq!(informer.parts()[0].progress().borrow().position, 20);
    let asked = asked.lock().unwrap();
    assert!(
        asked[0].contains("sendInitialEvents=true") && asked[0].contains("labelSelector=quintet.dev%2Fkind")
    );
    assert!(asked[1].contains("resourceVersion=5&"), "{asked:?}");
    assert!(asked[2].contains("resourceVersion=20&"), "continued after the server ended it: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_by_pages_without_streaming_lists() {
    let refused = failure(422, "Invalid", "sendInitialEvents is forbidden");
    let one = json!({ "metadata": { "resourceVersion": "9", "continue": "t/1" }, "items": [pod("a", 1)] });
    let two = json!({ "metadata": { "resourceVersion": "9" }, "items": [pod("b", 2)] });
    let (informer, told, asked) = follow(&[refused, (200, one.to_string()), (200, two.to_string())]).await;
    assert_eq!(told, ["new a", "new b"]);
    assert_eq!(informer.parts()[0].progress().borrow().position, 9);
    let asked = asked.lock().unwrap();
    assert!(asked[2].contains("continue=t%2F1"), "{asked:?}");
    assert!(asked[3].contains("watch=true") && asked[3].contains("resourceVersion=9"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_relist_drops_deleted_and_reports_only_changed_objects() {
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &pod("b", 2)) + &bookmark(5, true);
    let expired =
        event("ERROR", &json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" }));
    let again = event("ADDED", &pod("b", 2)) + &event("ADDED", &pod("c", 11)) + &bookmark(12, true);
    let (informer, told, asked) = follow(&[(200, list), (200, expired), (200, again)]).await;
    assert_eq!(told, ["new a", "new b", "new c", "deleted a"]);
    assert_eq!(informer.all().len(), 2);
    assert!(asked.lock().unwrap()[2].contains("sendInitialEvents"));
}

/// A proxy's 404 must not look like the deletion of every pod.
#[tokio::test(start_paused = true)]
async fn a_core_type_is_never_absent() {
    let list = event("ADDED", &pod("a", 1)) + &bookmark(5, true);
    let (informer, told, _) = follow(&[(200, list), failure(404, "NotFound", "page not found")]).await;
    assert_eq!(told, ["new a"]);
    assert_eq!(informer.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn drops_a_plan_for_an_object_that_has_changed() {
    let (executor, asked) = executor(&[]);
    let execution =
        executor.execute(&owner(), &PODS, "1", vec![vec![create("a")]], &|| false, |_| Ok(())).await;
    assert!(!execution.complete && execution.writes == 0);
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn looks_up_a_deletion_without_an_answer() {
    // The cache shows a pod that is already deleted in the API server.
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    let (client, _) = scripted(&[(200, event("ADDED", &pod("a", 1)) + &bookmark(5, true))]);
    let task = tokio::spawn(informer.clone().run(client, Link::default()));
    sleep(Duration::from_secs(1)).await;
    let caches = informer.tracked();
    let (executor, _) = executor(&[failure(504, "Timeout", "later"), failure(404, "NotFound", "gone")]);
    let delete = Action::<Value>::Delete {
        resource: PODS,
        namespace: "ns".into(),
        name: "a".into(),
        uid: "uid-a".into(),
        resource_version: None,
    };
    assert!(matches!(carry(&executor, vec![delete]).await, Err(Error::Unanswered { .. })));
    executor.clarify(&owner()).await.unwrap();
    assert!(!executor.memory.caught_up(&owner(), &caches), "it did commit: the cache must show it");
    task.abort();
}

/// An owner reference from another namespace is not valid and must hide no pod.
#[tokio::test(start_paused = true)]
async fn a_forged_owner_hides_no_pod() {
    let mut forged = pod("a", 3);
    forged["metadata"]["namespace"] = json!("other");
    forged["metadata"]["uid"] = json!("forged");
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &forged) + &bookmark(5, true);
    let (client, _) = scripted(&[(200, list), (200, event("DELETED", &forged))]);
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let task = tokio::spawn(informer.clone().run(client, Link::default()));
    sleep(Duration::from_secs(1)).await;
    let owned: Vec<String> = informer.owned_by(&owner()).iter().map(|pod| pod.meta.uid.to_string()).collect();
    assert_eq!(owned, ["uid-a"]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!((informer.owned_by(&owner()).len(), informer.all().len()), (1, 1));
    task.abort();
}

/// A status write to a replaced or deleted object is the first sign of a stale cache.
#[tokio::test(start_paused = true)]
async fn waits_for_the_cache_after_a_stale_status_write() {
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    let (client, _) = scripted(&[(200, event("ADDED", &pod("owner", 1)) + &bookmark(5, true))]);
    let task = tokio::spawn(informer.clone().run(client, Link::default()));
    sleep(Duration::from_secs(1)).await;
    let caches = informer.tracked();
    let stale = failure(409, "Conflict", "the UID is another one");
    for (found, shown) in [
        (failure(404, "NotFound", "gone"), false),
        ((200, pod("owner", 9).to_string()), false),
        ((200, pod("owner", 4).to_string()), true),
    ] {
        let (executor, asked) = executor(&[stale.clone(), found]);
        let owner = Key { uid: "uid-owner".into(), ..owner() };
        let written = executor.write_status(&owner, &PODS, &json!({}), "1").await;
        assert!(matches!(written, Err(Error::Stale(_))));
        executor.clarify(&owner).await.unwrap();
        assert_eq!(asked.lock().unwrap().len(), 2, "reads the object");
        assert_eq!(executor.memory.caught_up(&owner, &caches), shown);
    }
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_affects_no_other_object() {
    let mut poisoned = pod("bad", 2);
    poisoned["spec"]["nodeName"] = json!(5);
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &poisoned) + &bookmark(5, true);
    let watch = event("ADDED", &pod("c", 6)) + &event("DELETED", &poisoned);
    let (informer, told, _) = follow(&[(200, list), (200, watch)]).await;
    assert_eq!(told, ["new a", "undecodable bad", "come c", "vanished bad"]);
    assert_eq!(informer.all().len(), 2);
    assert_eq!(informer.undecodable(), []);
}

/// A panic over one object ends neither the cache nor the process.
#[tokio::test(start_paused = true)]
async fn a_panic_over_one_object_affects_no_other_object() {
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &pod("stumble", 2)) + &bookmark(5, true);
    let watch = event("ADDED", &pod("c", 6));
    let (informer, told, _) = follow(&[(200, list), (200, watch)]).await;
    assert_eq!(told, ["new a", "undecodable stumble", "come c"]);
    assert!(informer.undecodable()[0].1.contains("panic"), "{:?}", informer.undecodable());
}

/// After a restore of etcd, resourceVersions start below those of earlier writes.
#[tokio::test(start_paused = true)]
async fn accepts_lower_versions_after_a_restore_of_etcd() {
    let list = event("ADDED", &pod("a", 900)) + &bookmark(1_000, true);
    let expired = failure(410, "Expired", "too new");
    let again = event("ADDED", &pod("a", 400)) + &bookmark(500, true);
    let (informer, ..) = follow(&[(200, list), expired, (200, again)]).await;
    assert_eq!(informer.position("ns"), 500);
}

/// The informer drops an undecodable object even if no watch reported its deletion.
#[tokio::test(start_paused = true)]
async fn a_relist_drops_undecodable_objects() {
    let mut poisoned = pod("bad", 2);
    poisoned["spec"]["nodeName"] = json!(5);
    let list = event("ADDED", &poisoned) + &bookmark(5, true);
    let expired = failure(410, "Expired", "too old");
    let again = event("ADDED", &pod("a", 6)) + &bookmark(7, true);
    let (informer, told, _) = follow(&[(200, list), expired, (200, again)]).await;
    assert_eq!(told, ["undecodable bad", "new a", "vanished bad"]);
    assert_eq!(informer.undecodable(), []);
}

#[tokio::test(start_paused = true)]
async fn an_object_with_an_old_name_replaces_the_old_object() {
    let mut again = pod("a", 6);
    again["metadata"]["uid"] = json!("other");
    let list = event("ADDED", &pod("a", 1)) + &bookmark(5, true);
    let (informer, told, _) = follow(&[(200, list), (200, event("MODIFIED", &again))]).await;
    assert_eq!(told, ["new a", "deleted a", "new a"]);
    assert_eq!(&*informer.find("ns", "a").unwrap().key().uid, "other");
}

fn create(name: &str) -> Action<Value> {
    Action::Create { resource: PODS, namespace: "ns".into(), name: name.into(), body: json!({}).into() }
}

fn executor(answers: &[(u16, String)]) -> (Executor, Asked) {
    let (client, asked) = scripted(answers);
    let clock = Clock::tokio("2026-01-01T00:00:00Z".parse().unwrap());
    (Executor::new(client, Gate::open(), clock), asked)
}

/// Executes a plan of one step. Returns when to retry the actions that were withheld.
async fn carry_or_wait(
    executor: &Executor,
    step: Vec<Action<Value>>,
) -> (Execution, Option<jiff::Timestamp>) {
    let mut plan = Plan { steps: vec![step], ..Plan::default() };
    executor.memory.withhold(&owner(), &mut plan);
    (executor.execute(&owner(), &PODS, "1", plan.steps, &|| true, |_| Ok(())).await, plan.again)
}

async fn carry(executor: &Executor, step: Vec<Action<Value>>) -> Result<Execution, Error> {
    let (mut execution, _) = carry_or_wait(executor, step).await;
    execution.failure.take().map_or(Ok(execution), Err)
}

/// The first page of a list names the oldest accepted resourceVersion. If the API server has not reached it, the list
/// is repeated without it.
#[tokio::test(start_paused = true)]
async fn lists_at_a_version_or_later() {
    let page = |name: &str, next: &str| {
        (200, json!({ "metadata": { "continue": next }, "items": [pod(name, 1)] }).to_string())
    };
    let too_large = failure(504, "Timeout", "Too large resource version: 9, current: 3");
    let (executor, asked) =
        executor(&[page("a", "next"), page("b", ""), too_large, page("c", ""), page("d", "")]);
    for (since, expected) in [(9, vec!["a", "b"]), (9, vec!["c"]), (0, vec!["d"])] {
        let pods: Vec<Pod> = executor.reads.list(&PODS, "ns", "app=x", since).await.unwrap();
        let names: Vec<&str> = pods.iter().map(|pod| &*pod.meta.name).collect();
        assert_eq!(names, expected);
    }
    let asked: Vec<String> = asked
        .lock()
        .unwrap()
        .iter()
        .map(|line| line.replace("GET /api/v1/namespaces/ns/pods?labelSelector=app%3Dx&limit=500", ""))
        .collect();
    let at = "&resourceVersion=9&resourceVersionMatch=NotOlderThan";
    assert_eq!(asked, [at, "&continue=next", at, "", ""]);
}

#[tokio::test(start_paused = true)]
async fn sends_no_write_while_the_gate_is_closed() {
    let (client, asked) = scripted(&[]);
    let executor = Executor::new(client, Gate::closed(), Clock::System);
    assert!(matches!(carry(&executor, vec![create("a")]).await, Err(Error::NotLeading)));
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn cancels_a_running_write_when_the_lease_is_lost() {
    let (client, asked) = scripted(&[]);
    let gate = Gate::closed();
    gate.open_until(Instant::now() + Duration::from_secs(10));
    let executor = Executor::new(client, gate.clone(), Clock::System);
    let began = Instant::now();
    let (execution, ()) = futures::join!(carry(&executor, vec![create("a")]), async {
        sleep(Duration::from_millis(100)).await;
        gate.close();
    });
    assert!(matches!(execution, Err(Error::Unanswered { .. })));
    assert_eq!((began.elapsed().as_millis(), asked.lock().unwrap().len()), (100, 1), "not at the deadline");
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_at_the_deadline_of_the_gate() {
    let (client, _) = scripted(&[]);
    let gate = Gate::closed();
    gate.open_until(Instant::now() + Duration::from_secs(3));
    let executor = Executor::new(client, gate, Clock::System);
    let began = Instant::now();
    assert!(matches!(carry(&executor, vec![create("a")]).await, Err(Error::Unanswered { .. })));
    assert_eq!(began.elapsed().as_secs(), 3);
}

/// A webhook may take 10 s, as long as a term. Renewals give the write more time, up to the limit of a call.
#[tokio::test(start_paused = true)]
async fn renewals_give_a_slow_write_more_time() {
    for (takes, is_done, ends) in [(12, true, 12), (60, false, 20)] {
        let metrics = Metrics::new().unwrap();
        let answers = Arc::new(Mutex::new(VecDeque::from([(201, pod("a", 7).to_string())])));
        let transport = tower::service_fn(move |_: Request<Body>| {
            let answer = answers.lock().unwrap().pop_front();
            async move {
                sleep(Duration::from_secs(takes)).await;
                let (code, body) = answer.unwrap();
                Response::builder().status(code).body(Body::from(body.into_bytes()))
            }
        });
        let gate = Gate::closed();
        let began = Instant::now();
        gate.open_until(began + Duration::from_secs(10));
        let executor =
            Executor::new(client::over(transport, &metrics, Duration::ZERO), gate.clone(), Clock::System);
        let written = async {
            let execution = carry(&executor, vec![create("a")]).await;
            (execution.is_ok_and(|execution| execution.writes == 1), began.elapsed().as_secs())
        };
        let renewed = async {
            for _ in 0..6 {
                sleep(Duration::from_secs(5)).await;
                gate.open_until(Instant::now() + Duration::from_secs(10));
            }
        };
        let (written, ()) = futures::join!(written, renewed);
        assert_eq!(written, (is_done, ends));
    }
}

#[tokio::test(start_paused = true)]
async fn reports_successful_writes_beside_a_failure() {
    let (executor, _) = executor(&[(201, pod("a", 7).to_string()), failure(504, "Timeout", "later")]);
    let steps = vec![vec![create("a"), create("b")], vec![create("c")]];
    let execution = executor.execute::<Value, _>(&owner(), &PODS, "1", steps, &|| true, |_| Ok(())).await;
    assert_eq!((execution.writes, execution.complete, execution.done.len()), (1, false, 1));
    assert!(matches!(execution.failure, Some(Error::Unanswered { .. })), "{execution:?}");
}

#[tokio::test(start_paused = true)]
async fn the_caches_must_show_all_writes() {
    let (executor, _) = executor(&[(201, pod("a", 7).to_string())]);
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    let caches = informer.tracked();
    assert!(executor.memory.caught_up(&owner(), &caches));
    assert_eq!(carry(&executor, vec![create("a")]).await.unwrap().writes, 1);
    assert!(!executor.memory.caught_up(&owner(), &caches));
    let (client, _) = scripted(&[(200, bookmark(6, true)), (200, event("ADDED", &pod("a", 7)))]);
    let task = tokio::spawn(informer.run(client, Link::default()));
    sleep(Duration::from_secs(1)).await;
    assert!(executor.memory.all_caught_up(&caches));
    assert!(executor.memory.unshown().is_empty(), "the hand-over includes the positions of the caches");
    assert!(executor.memory.caught_up(&owner(), &caches));
    task.abort();
}

/// A proxy's 404 does not count. A 404 of the API server counts for ten minutes.
#[tokio::test(start_paused = true)]
async fn only_the_api_server_reports_a_deleted_namespace() {
    let proxy = failure(404, "NotFound", "The requested URL /api/v1/namespaces/ns/pods was not found");
    let gone = failure(404, "NotFound", "namespaces \"ns\" not found");
    let (executor, _) = executor(&[proxy, gone.clone(), gone, (201, pod("a", 7).to_string())]);
    assert!(carry(&executor, vec![create("b")]).await.unwrap().refused);
    assert!(!executor.memory.refusals(&owner()).namespace_terminating);
    for _ in 0..2 {
        assert!(carry(&executor, vec![create("a")]).await.unwrap().refused);
        assert!(executor.memory.refusals(&owner()).namespace_terminating);
        assert!(executor.memory.terminating_until(&owner()).is_some(), "the namespace is read again then");
        sleep(Duration::from_mins(10)).await;
        assert!(!executor.memory.refusals(&owner()).namespace_terminating, "the namespace may exist again");
    }
    assert_eq!(carry(&executor, vec![create("a")]).await.unwrap().writes, 1);
    assert!(executor.memory.terminating_until(&owner()).is_none());
}

/// After a long outage, the informer retries once a second, even if a proxy answers for the API server.
#[tokio::test(start_paused = true)]
async fn retries_soon_after_an_outage() {
    for code in [502, 503, 504] {
        let mut answers: Vec<_> = (0..60).map(|_| failure(code, "", "no server is available")).collect();
        answers.push((200, event("ADDED", &pod("a", 1)) + &bookmark(5, true)));
        let (informer, _, _) = follow(&answers).await;
        assert_eq!(informer.all().len(), 1, "{code}");
    }
    // The first rejection by a starting API server must not cause a long backoff either.
    let mut answers: Vec<_> = (0..60).map(|_| failure(503, "", "no server is available")).collect();
    answers.push(failure(403, "Forbidden", "no role is known yet"));
    answers.push((200, event("ADDED", &pod("a", 1)) + &bookmark(5, true)));
    let (informer, _, _) = follow(&answers).await;
    assert_eq!(informer.all().len(), 1);
}

/// A connection that was cut and opened again is not reported as a recovery.
#[tokio::test(start_paused = true)]
async fn reports_a_recovery_only_after_an_outage() {
    for (times, is_news) in [(1, false), (8, true)] {
        let mut answers = vec![(200, bookmark(5, true))];
        answers.extend((0..times).map(|_| failure(503, "", "no server is available")));
        answers.push((200, bookmark(6, false)));
        let (client, _) = scripted(&answers);
        let (informer, link): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Link::default());
        let returns = link.recoveries();
        let task = tokio::spawn(informer.run(client, link));
        sleep(Duration::from_secs(100)).await;
        assert_eq!(returns.has_changed().unwrap(), is_news, "{times}");
        task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_existing_name_is_stale_if_owned_and_else_refused() {
    let exists = failure(409, "AlreadyExists", "exists");
    let mut theirs = pod("b", 3);
    theirs["metadata"]["ownerReferences"][0]["uid"] = json!("somebody");
    let (executor, asked) =
        executor(&[exists.clone(), (200, pod("a", 7).to_string()), exists, (200, theirs.to_string())]);
    let execution = carry(&executor, vec![create("a")]).await.unwrap();
    assert!(!execution.complete && !execution.refused);
    let execution = carry(&executor, vec![create("b")]).await.unwrap();
    assert!(execution.refused);
    assert_eq!(
        executor.memory.refusals(&owner()).of(Verb::Create, &PODS, "b").unwrap().reason,
        RefusalReason::NameTaken
    );
    let sent = asked.lock().unwrap().len();
    let (execution, until) = carry_or_wait(&executor, vec![create("b")]).await;
    assert!(until.is_some() && execution.writes == 0);
    assert_eq!(asked.lock().unwrap().len(), sent, "not asked again before its time");
}

#[tokio::test(start_paused = true)]
async fn an_unclear_answer_costs_one_get_before_the_next_plan() {
    // A proxy may answer too, in JSON that is not a Status.
    let between = (504, json!({ "message": "upstream timed out" }).to_string());
    for unclear in [failure(504, "Timeout", "later"), between] {
        let (executor, asked) = executor(&[unclear, (200, pod("a", 7).to_string())]);
        assert!(matches!(carry(&executor, vec![create("a")]).await, Err(Error::Unanswered { .. })));
        executor.clarify(&owner()).await.unwrap();
        executor.clarify(&owner()).await.unwrap();
        assert_eq!(asked.lock().unwrap().len(), 2);
        let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
        let caches = informer.tracked();
        assert!(!executor.memory.caught_up(&owner(), &caches), "it did commit: the cache must show it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_ends_the_step() {
    let quota = failure(403, "Forbidden", "pods \"a\" is forbidden: exceeded quota: few");
    let answers: Vec<_> = std::iter::repeat_n(quota, 100).collect();
    let (executor, asked) = executor(&answers);
    let step = (0..100).map(|index| create(&format!("p{index}"))).collect();
    let execution = carry(&executor, step).await.unwrap();
    assert!(!execution.complete && execution.refused);
    let sent = asked.lock().unwrap().len();
    assert!(sent <= 33, "only what was in flight: {sent}");
    let more = (200..300).map(|index| create(&format!("p{index}"))).collect();
    assert!(carry_or_wait(&executor, more).await.1.is_some());
    assert_eq!(asked.lock().unwrap().len(), sent, "other names wait as well");
}

#[tokio::test(start_paused = true)]
async fn looks_up_a_claim_after_an_unclear_answer() {
    for (stored, won) in [("me", true), ("other", false)] {
        let lookup = json!({ "status": { "claim": { "token": stored } } });
        let (executor, _) = executor(&[failure(504, "Timeout", "later"), (200, lookup.to_string())]);
        let claim = Action::<Value>::Claim { status: json!({}), token: "me".into() };
        let execution = carry(&executor, vec![claim]).await;
        assert_eq!(execution.is_ok_and(|execution| execution.complete), won);
    }
}

#[tokio::test(start_paused = true)]
async fn drops_a_refusal_after_success_and_a_deleted_owner() {
    let invalid = failure(422, "Invalid", "no");
    let (executor, _) = executor(&[invalid, (201, pod("a", 7).to_string())]);
    assert!(carry(&executor, vec![create("a")]).await.unwrap().refused);
    assert_eq!(executor.memory.refusals(&owner()).of(Verb::Create, &PODS, "a").unwrap().times, 1);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(carry(&executor, vec![create("a")]).await.unwrap().writes, 1);
    assert!(executor.memory.refusals(&owner()).is_empty());
    executor.memory.forget(&owner());
    assert!(executor.memory.caught_up(&owner(), &[]));
}

/// If the clock is set back by a day, a refusal does not wait for a day.
#[tokio::test(start_paused = true)]
async fn a_refusal_ends_even_if_the_clock_is_set_back() {
    static SET: AtomicI64 = AtomicI64::new(0);
    let clock = Clock::tokio_that_is_set("2026-01-02T00:00:00Z".parse().unwrap(), &SET);
    let (client, asked) = scripted(&[failure(422, "Invalid", "no"), (201, pod("a", 7).to_string())]);
    let executor = Executor::new(client, Gate::open(), clock);
    assert!(carry(&executor, vec![create("a")]).await.unwrap().refused);
    SET.store(-86_400, Ordering::Relaxed);
    let until = executor.memory.refusals(&owner()).of(Verb::Create, &PODS, "a").unwrap().until;
    assert!(until <= clock.now() + Duration::from_mins(10), "{until}");
    let (_, again) = carry_or_wait(&executor, vec![create("a")]).await;
    assert_eq!((again, asked.lock().unwrap().len()), (Some(until), 1), "not at once either");
    sleep(Duration::from_mins(10)).await;
    assert_eq!(carry(&executor, vec![create("a")]).await.unwrap().writes, 1);
}

#[tokio::test(start_paused = true)]
async fn patches_a_status_that_cannot_be_applied() {
    let untyped =
        failure(500, "InternalError", "failed to create typed live object: .spec.author: expected string");
    let (executor, asked) = executor(&[untyped, (200, pod("owner", 9).to_string())]);
    executor.write_status(&owner(), &PODS, &json!({ "x": 1 }), "1").await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 2);
    assert!(executor.memory.refusals(&owner()).is_empty());
}

/// A Lease as the API server returns it.
fn lease(holder: &str, version: u64, renewed: u64) -> String {
    json!({ "metadata": { "name": "quintet-manager", "namespace": "ns", "resourceVersion": version.to_string() },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z") } })
    .to_string()
}

/// Runs an election over a script for `seconds`. Returns the verbs of the requests, and the gate.
async fn elect(answers: &[(u16, String)], seconds: u64) -> (Vec<String>, Gate) {
    elect_by(scripted(answers), seconds).await
}

async fn elect_by((client, asked): (Client, Asked), seconds: u64) -> (Vec<String>, Gate) {
    let gate = Gate::closed();
    let _ = elect_with(&gate, client, seconds).await;
    (verbs(&asked), gate)
}

/// The result of an election over a script, if it returns within `seconds`.
async fn elect_with(gate: &Gate, client: Client, seconds: u64) -> Option<Result<(), election::Error>> {
    elect_counting(gate, client, seconds, &Metrics::new().unwrap()).await
}

/// Like `elect_with`, with the metrics in which the election counts.
async fn elect_counting(
    gate: &Gate,
    client: Client,
    seconds: u64,
    metrics: &Metrics,
) -> Option<Result<(), election::Error>> {
    let settings = Settings::new("ns".into(), "me".into());
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let clock = Clock::tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let (gate, metrics) = (gate.clone(), metrics.clone());
    let candidate = Candidate { client, settings, gate, link: Link::default(), clock, metrics };
    let election = candidate.run(Seen::new, stopped);
    tokio::time::timeout(Duration::from_millis(seconds * 1000 + 500), election).await.ok()
}

fn verbs(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().map(|asked| asked.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_holder_reads_the_lease_only_after_a_conflict() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1, 0)),
        (200, lease("me", 2, 5)),
        failure(409, "Conflict", "changed"),
        (200, lease("me", 3, 5)),
        (200, lease("me", 4, 10)),
    ];
    let (gate, metrics, (client, asked)) = (Gate::closed(), Metrics::new().unwrap(), scripted(&answers));
    let _ = elect_counting(&gate, client, 11, &metrics).await;
    assert_eq!(verbs(&asked), ["GET", "POST", "PUT", "PUT", "GET", "PUT"]);
    assert!(gate.deadline().is_some());
    let text = metrics.text().unwrap();
    assert!(text.contains("leader_election_slowpath_total{name=\"quintet-manager\"} 1"), "{text}");
}

/// A late answer must not extend a term, because other processes measure from the arrival of the request.
#[tokio::test(start_paused = true)]
async fn a_term_counts_from_before_the_request() {
    let began = Instant::now();
    let answers = [failure(404, "NotFound", "none"), (201, lease("me", 1, 0))];
    let (_, gate) = elect_by(scripted_slowly(&answers, Duration::from_secs(2)), 3).await;
    let ends = gate.deadline().unwrap() - began;
    assert!(ends <= Settings::new("ns".into(), "me".into()).renew_deadline, "{ends:?}");
}

/// If each write takes seconds, the holder keeps the Lease, as in client-go.
#[tokio::test(start_paused = true)]
async fn keeps_the_lease_with_a_slow_api_server() {
    for takes in [2_200, 3_000, 4_500] {
        let mut answers = vec![failure(404, "NotFound", "none")];
        answers.extend((0..30).map(|at| (if at == 0 { 201 } else { 200 }, lease("me", at + 1, at))));
        let began = Instant::now();
        let (_, gate) = elect_by(scripted_slowly(&answers, Duration::from_millis(takes)), 60).await;
        let term = gate.term().unwrap();
        assert!(
            term.since.duration_since(began) <= Duration::from_millis(takes),
            "it was lost at {takes} ms"
        );
    }
}

/// The election has its own thread. It must not keep the Lease while reconciles hang.
#[tokio::test(start_paused = true)]
async fn a_hanging_process_loses_the_lease() {
    let mut answers = vec![failure(404, "NotFound", "none"), (201, lease("me", 1, 0))];
    answers.extend((0..9).map(|at| (200, lease("me", 2, at))));
    let (client, asked) = scripted(&answers);
    let gate = Gate::closed();
    gate.heartbeat();
    assert!(elect_with(&gate, client, 16).await.is_none());
    assert!(gate.deadline().is_none());
    let asked = verbs(&asked);
    assert_eq!(asked[..4], ["GET", "POST", "PUT", "GET"]);
    assert!(asked[4..].iter().all(|verb| verb == "GET"), "{asked:?}");
    // After a new heartbeat, the process may acquire the Lease again.
    gate.heartbeat();
    let (client, asked) = scripted(&[(200, lease("", 3, 9)), (200, lease("me", 4, 9))]);
    assert!(elect_with(&gate, client, 1).await.is_none());
    assert!(gate.deadline().is_some() && verbs(&asked) == ["GET", "PUT"]);
}

#[tokio::test(start_paused = true)]
async fn exits_if_a_write_outlives_the_lease() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1, 0)),
        failure(409, "Conflict", "changed"),
        (200, lease("other", 9, 5)),
    ];
    let gate = Gate::closed();
    let writing = gate.writing();
    let ended = elect_with(&gate, scripted(&answers).0, 30).await;
    assert!(matches!(ended, Some(Err(election::Error::Uncancelled { holder })) if holder == "other"));
    drop(writing);
    let gate = Gate::closed();
    assert!(elect_with(&gate, scripted(&answers).0, 10).await.is_none(), "it stands by");
}

/// A process that may read the Lease but not write it must not seem to stand by.
#[tokio::test(start_paused = true)]
async fn gives_up_a_free_lease_that_it_may_only_read() {
    let released: Value = serde_json::from_str(&lease("", 2, 0)).unwrap();
    let mut answers = vec![(200, lease("other", 1, 0)), (200, event("MODIFIED", &released))];
    for _ in 0..40 {
        answers.push((200, lease("", 2, 0)));
        answers.push(failure(403, "Forbidden", "no update"));
    }
    let ended = elect_with(&Gate::closed(), scripted(&answers).0, 60).await;
    assert!(matches!(ended, Some(Err(election::Error::Forbidden { verb: "update", .. }))));
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_expires_by_the_candidates_own_clock() {
    // The renew time in the Lease is long ago and must not matter. The watch shows no change.
    let answers = [(200, lease("other", 1, 0))];
    let (asked, gate) = elect(&answers, 14).await;
    assert_eq!((asked.len(), gate.deadline()), (2, None), "a read and a watch");
    let (asked, _) = elect(&answers, 16).await;
    assert_eq!(asked.len(), 3, "the next read is at the expiry");

    // Without the permission to watch, the candidate polls, and acquires the Lease when it expires.
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push((200, lease("other", 1, 0)));
        answers.push(failure(403, "Forbidden", "no watch"));
    }
    answers.extend([(200, lease("other", 1, 0)), (200, lease("me", 2, 16))]);
    let (asked, gate) = elect(&answers, 13).await;
    assert!(asked.iter().all(|verb| verb == "GET") && gate.deadline().is_none(), "{asked:?}");
    let (asked, gate) = elect(&answers, 18).await;
    assert_eq!(
        (asked.last().map(String::as_str), gate.deadline().is_some()),
        (Some("PUT"), true),
        "{asked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn takes_a_released_lease_at_once_with_its_record() {
    let mut released: Value = serde_json::from_str(&lease("", 3, 7)).unwrap();
    released["metadata"]["annotations"] =
        json!({ "quintet.dev/written": r#"{"leaseTransitions": 1, "seen": {"pods.": 41}}"# });
    let renewed: Value = serde_json::from_str(&lease("other", 2, 5)).unwrap();
    let answers = [
        (200, lease("other", 1, 0)),
        (200, event("MODIFIED", &renewed) + &event("MODIFIED", &released)),
        (200, released.to_string()),
        (200, lease("me", 4, 7)),
    ];
    let (asked, gate) = elect(&answers, 1).await;
    assert_eq!(asked, ["GET", "GET", "GET", "PUT"]);
    assert!(gate.deadline().is_some());
    assert_eq!(gate.handed("pods."), Some(41));
}

/// If the Lease is deleted, its holder writes until it notices.
#[tokio::test(start_paused = true)]
async fn re_creates_a_deleted_lease_at_its_expiry() {
    let gone: Value = serde_json::from_str(&lease("other", 2, 5)).unwrap();
    let answers = [
        (200, lease("other", 1, 0)),
        (200, event("DELETED", &gone)),
        failure(404, "NotFound", "gone"),
        (201, lease("me", 3, 16)),
    ];
    let (asked, gate) = elect(&answers, 13).await;
    assert_eq!((asked.len(), gate.deadline()), (2, None), "{asked:?}");
    let (asked, gate) = elect(&answers, 16).await;
    assert_eq!(asked.last().map(String::as_str), Some("POST"));
    assert!(gate.deadline().is_some());
}

/// If another process held the Lease meanwhile, a new term starts, and the caches must catch up.
#[tokio::test(start_paused = true)]
async fn starts_a_new_term_after_an_unseen_interruption() {
    let mut released: Value = serde_json::from_str(&lease("", 4, 4)).unwrap();
    released["metadata"]["annotations"] =
        json!({ "quintet.dev/written": r#"{"leaseTransitions": 1, "seen": {"pods.": 7}}"# });
    let mut answers = vec![failure(404, "NotFound", "none"), (201, lease("me", 1, 0))];
    let (_, gate) = elect(&answers, 6).await;
    let first = gate.term().unwrap().since;
    answers.extend([
        failure(409, "Conflict", "changed"),
        (200, released.to_string()),
        (200, lease("me", 5, 5)),
    ]);
    let begun = Instant::now();
    let (asked, gate) = elect(&answers, 6).await;
    assert_eq!(asked, ["GET", "POST", "PUT", "GET", "PUT"]);
    let second = gate.term().unwrap().since;
    assert!(first < begun && second.duration_since(begun) >= Duration::from_secs(5), "a new term");
    assert_eq!(gate.handed("pods."), Some(7));
}

/// The same, if the PUT that acquired the Lease again succeeded without an answer.
#[tokio::test(start_paused = true)]
async fn starts_a_new_term_after_an_unanswered_takeover() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1, 0)),
        failure(409, "Conflict", "changed"),
        (200, lease("", 4, 4)),
        failure(500, "InternalError", "too slow"),
        (200, lease("me", 5, 5)),
        (200, lease("me", 6, 7)),
    ];
    let begun = Instant::now();
    let (asked, gate) = elect(&answers, 8).await;
    assert_eq!(asked, ["GET", "POST", "PUT", "GET", "PUT", "GET", "PUT"]);
    let since = gate.term().unwrap().since;
    assert!(since.duration_since(begun) >= Duration::from_secs(5), "a new term");
}

/// A starting API server rejects requests that it granted before, and so does one whose roles are being replaced.
#[tokio::test(start_paused = true)]
async fn a_standby_does_not_give_up_after_a_rejection() {
    let mut answers = vec![(200, lease("other", 1, 0)), failure(403, "Forbidden", "no watch")];
    answers.extend((0..30).map(|_| failure(403, "Forbidden", "no role is known yet")));
    answers.extend([(200, lease("other", 1, 0)), (200, lease("me", 2, 59))]);
    let (asked, gate) = elect(&answers, 70).await;
    assert!(asked.len() >= answers.len() && gate.deadline().is_some(), "{asked:?}");
}

/// If the PUT succeeded without an answer, the predecessor of the term is unknown.
#[tokio::test(start_paused = true)]
async fn ignores_an_old_record_after_an_unanswered_takeover() {
    let mut released: Value = serde_json::from_str(&lease("", 4, 0)).unwrap();
    released["metadata"]["annotations"] =
        json!({ "quintet.dev/written": r#"{"leaseTransitions": 1, "seen": {"pods.": 41}}"# });
    let answers = [
        (200, released.to_string()),
        (200, lease("me", 5, 0)),
        // Another process has acquired the Lease.
        failure(409, "Conflict", "changed"),
        (200, lease("other", 9, 6)),
        // The watch shows nothing until the Lease expires; then the PUT succeeds without an answer.
        (200, String::new()),
    ];
    let (_, gate) = elect(&answers, 4).await;
    assert_eq!(gate.handed("pods."), Some(41));
    let mut answers = answers[..4].to_vec();
    for _ in 0..12 {
        answers.push(failure(403, "Forbidden", "no watch"));
        answers.push((200, lease("other", 9, 6)));
    }
    answers.truncate(4 + 2 * 8);
    answers.push(failure(500, "InternalError", "too slow"));
    answers.extend([(200, lease("me", 10, 22)), (200, lease("me", 11, 22))]);
    let (asked, gate) = elect(&answers, 40).await;
    assert!(gate.handed("pods.").is_none(), "{asked:?}");
}

#[test]
fn only_a_caught_up_cache_counts_as_seen() {
    let gate = Gate::closed();
    let at = |position, listed| Progress { position, seen: position, listed };
    let before = Instant::now();
    assert!(!gate.is_caught_up("pods.", &at(9, Some(before))), "this process never led");
    gate.hand_over([("pods.".to_owned(), 5)].into());
    gate.open_until(Instant::now() + Duration::from_secs(10));
    gate.close();
    assert!(gate.is_caught_up("pods.", &at(5, Some(before))), "caught up with the predecessor");
    assert!(!gate.is_caught_up("pods.", &at(4, Some(before))));
    assert!(!gate.is_caught_up("nodes.", &at(9, Some(before))), "the predecessor recorded no position");
    assert!(gate.is_caught_up("nodes.", &at(1, Some(Instant::now()))), "listed after the take-over");
}

#[tokio::test(start_paused = true)]
async fn closes_the_gate_at_the_deadline_without_an_answer() {
    let answers = [failure(404, "NotFound", "none"), (201, lease("me", 1, 0))];
    let (asked, gate) = elect(&answers, 9).await;
    assert!(gate.deadline().is_some());
    assert!(asked.len() >= 4, "several attempts fit before the deadline: {asked:?}");
    let (_, gate) = elect(&answers, 11).await;
    assert!(gate.deadline().is_none());
}

/// The informer's departed objects are kept as long as their owner exists.
#[tokio::test(start_paused = true)]
async fn keeps_departed_objects_while_their_owner_exists() {
    let owner_list =
        event("ADDED", &json!({ "metadata": { "name": "owner", "namespace": "ns", "uid": "owner" } }))
            + &bookmark(5, true);
    let (client, _) = scripted(&[(200, owner_list)]);
    let owners: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    tokio::spawn(owners.clone().run(client, Link::default()));
    sleep(Duration::from_secs(1)).await;

    let mut stray = pod("stray", 3);
    stray["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    let mut going = pod("going", 4);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let list = event("ADDED", &pod("a", 1))
        + &event("ADDED", &pod("b", 2))
        + &event("ADDED", &stray)
        + &event("ADDED", &going)
        + &bookmark(5, true);
    let gone = [pod("a", 6), pod("b", 7), stray, going].map(|pod| event("DELETED", &pod)).concat();
    let (client, _) = scripted(&[(200, list), (200, gone + &event("ADDED", &pod("b", 10)))]);
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], Some("quintet.dev/kind"));
    let departed = Departed::from(&informer, &owners, |pod: &Pod| !pod.terminating());
    tokio::spawn(informer.clone().run(client, Link::default()));
    sleep(Duration::from_secs(10)).await;
    let names = |departed: &Departed<Pod>| -> Vec<String> {
        departed.owned_by(&owner()).iter().map(|pod| pod.meta.name.to_string()).collect()
    };
    assert_eq!(names(&departed), ["a"], "b is back, and the others do not count");
    let a = departed.owned_by(&owner()).remove(0);
    departed.settle(&a);
    assert!(names(&departed).is_empty());
}

/// A fault that affects every object, with another message for each, is not tried on all objects at once.
#[tokio::test(start_paused = true)]
async fn refusals_in_a_row_pause_all_creations() {
    let refusals: Vec<_> =
        (0..1_000).map(|number| failure(422, "Invalid", &format!("p-{number} is not valid"))).collect();
    let (executor, asked) = executor(&refusals);
    let step = || (0..500).map(|number| create(&format!("p-{number}"))).collect::<Vec<_>>();
    let sent = || asked.lock().unwrap().len();
    carry(&executor, step()).await.unwrap();
    let first = sent();
    assert!((3..=40).contains(&first), "{first} were sent");
    let (execution, until) = carry_or_wait(&executor, step()).await;
    assert_eq!((sent(), execution.writes), (first, 0), "not at once");
    assert_eq!(until.unwrap().to_string(), "2026-01-01T00:00:01Z");
    sleep(Duration::from_secs(1)).await;
    carry(&executor, step()).await.unwrap();
    let second = sent();
    assert!((first + 3..=first + 40).contains(&second), "{second} were sent");
    sleep(Duration::from_secs(1)).await;
    carry(&executor, step()).await.unwrap();
    assert_eq!(sent(), second, "the wait is doubled");
}

/// If two undecodable objects had the same name in turn, the first is gone.
#[tokio::test(start_paused = true)]
async fn an_undecodable_successor_replaces_its_predecessor() {
    let mut poisoned = pod("bad", 2);
    poisoned["spec"]["nodeName"] = json!(5);
    let mut successor = poisoned.clone();
    successor["metadata"]["uid"] = json!("another");
    let list = event("ADDED", &poisoned) + &bookmark(5, true);
    let (informer, told, _) = follow(&[(200, list), (200, event("ADDED", &successor))]).await;
    assert_eq!(told, ["undecodable bad", "vanished bad", "undecodable bad"]);
    assert_eq!(informer.undecodable().len(), 1);
}
