//! The informer: its lists and watches, the changes that it reports, and its retries.

use super::*;
use quintet_runtime::cache::deselected::Deselected;
use quintet_runtime::cache::informer::Change;
use quintet_runtime::cache::tracked::TrackedCache as _;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::resource::NODES;
use quintet_runtime::server::client::{self, LONGEST_REST};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs an informer over a script. Returns the informer, the changes that its subscribers received, and the requests.
async fn follow(answers: &[(u16, String)]) -> (Informer<Pod>, Vec<String>, Asked) {
    follow_after(answers, |_| ()).await
}

/// Like `follow`, with another subscriber before the one that records the changes.
async fn follow_after(
    answers: &[(u16, String)],
    first: impl Fn(&Change<'_, Pod>) + Send + Sync + 'static,
) -> (Informer<Pod>, Vec<String>, Asked) {
    let (client, asked) = scripted(answers);
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], Some("quintet.dev/kind"));
    informer.subscribe(first);
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
    let task = tokio::spawn(informer.clone().run(client, Link::default(), Gate::open()));
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
    assert_eq!(informer.parts()[0].progress().position, 20);
    let asked = asked.lock().unwrap();
    assert!(
        asked[0].contains("sendInitialEvents=true") && asked[0].contains("labelSelector=quintet.dev%2Fkind")
    );
    assert!(asked[1].contains("resourceVersion=5&"), "{asked:?}");
    assert!(asked[2].contains("resourceVersion=20&"), "continued after the server ended it: {asked:?}");
}

/// A subscriber usually owns informers, such as that of a controller.
#[tokio::test(start_paused = true)]
async fn drops_its_subscribers_at_its_end() {
    for runs in [true, false] {
        let (client, _) = scripted(&[(200, bookmark(5, true))]);
        let informer: Informer<Pod> = Informer::new(PODS, &[], None);
        let counts: Arc<Mutex<Vec<usize>>> = Arc::default();
        let (kept, own) = (Arc::downgrade(&counts), informer.clone());
        informer.subscribe(move |_| counts.lock().unwrap().push(own.all().len()));
        let task = informer.run(client, Link::default(), Gate::open());
        if runs {
            let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
        } else {
            drop(task);
        }
        assert_eq!(kept.strong_count(), 0, "polled: {runs}");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_by_pages_without_streaming_lists() {
    let refused = failure(422, "Invalid", "sendInitialEvents is forbidden");
    let one = json!({ "metadata": { "resourceVersion": "9", "continue": "t/1" }, "items": [pod("a", 1)] });
    let two = json!({ "metadata": { "resourceVersion": "9" }, "items": [pod("b", 2)] });
    let (informer, told, asked) = follow(&[refused, (200, one.to_string()), (200, two.to_string())]).await;
    assert_eq!(told, ["new a", "new b"]);
    assert_eq!(informer.parts()[0].progress().position, 9);
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

/// An owner reference from another namespace is not valid and must hide no pod.
#[tokio::test(start_paused = true)]
async fn a_forged_owner_hides_no_pod() {
    let mut forged = pod("a", 3);
    forged["metadata"]["namespace"] = json!("other");
    forged["metadata"]["uid"] = json!("forged");
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &forged) + &bookmark(5, true);
    let (client, _) = scripted(&[(200, list), (200, event("DELETED", &forged))]);
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let task = tokio::spawn(informer.clone().run(client, Link::default(), Gate::open()));
    sleep(Duration::from_secs(1)).await;
    let owned: Vec<String> = informer.owned_by(&owner()).iter().map(|pod| pod.meta.uid.to_string()).collect();
    assert_eq!(owned, ["uid-a"]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!((informer.owned_by(&owner()).len(), informer.all().len()), (1, 1));
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

/// A panic of one subscriber over any change neither hides the change from another nor ends the watch.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_subscriber_affects_no_other_subscriber() {
    let mut poisoned = pod("bad", 2);
    poisoned["spec"]["nodeName"] = json!(5);
    let list = event("ADDED", &pod("a", 1)) + &event("ADDED", &poisoned) + &bookmark(5, true);
    let watch = event("ADDED", &pod("b", 6))
        + &event("DELETED", &pod("a", 7))
        + &event("DELETED", &poisoned)
        + &event("ADDED", &pod("c", 8));
    let (informer, told, _) = follow_after(&[(200, list), (200, watch)], |change| match change {
        Change::Applied { new, .. } if &*new.meta.name != "b" => {}
        _ => panic!("on purpose"),
    })
    .await;
    assert_eq!(
        told,
        ["new a", "undecodable bad", "come b", "undecodable b", "deleted a", "vanished bad", "come c"]
    );
    assert_eq!(informer.all().len(), 2, "b and c");
}

/// After a restore of etcd, resourceVersions start below those of earlier writes. The API server accepts a watch from a
/// version that its store has not reached, and sends nothing.
#[tokio::test(start_paused = true)]
async fn lists_again_after_a_restore_of_etcd() {
    let list = event("ADDED", &pod("a", 900)) + &bookmark(1_000, true);
    let again = event("ADDED", &pod("a", 400)) + &bookmark(500, true);
    let ended = bookmark(1_000, false);
    for store in [1_000, 999] {
        let answers = [(200, list.clone()), (200, ended.clone()), newest(store), (200, again.clone())];
        let (_, _, asked) = follow(&answers).await;
        assert_eq!(asked.lock().unwrap()[3].contains("sendInitialEvents"), store < 1_000, "{asked:?}");
    }
}

/// Small answers may arrive where events do not. Only a complete list proves that the cache is up to date.
#[tokio::test(start_paused = true)]
async fn lists_again_after_a_long_silence() {
    let asked: Arc<Mutex<Vec<(u64, String)>>> = Arc::default();
    let (log, began) = (asked.clone(), Instant::now());
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let mut log = log.lock().unwrap();
        let answer = match &*query {
            "limit=1" => Some(newest(u64::MAX).1),
            _ if log.is_empty() => Some(bookmark(5, true)),
            _ => None,
        };
        log.push((began.elapsed().as_secs(), query));
        // A proxy cuts what is long: the headers arrive.
        let silence = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        let body = answer.map_or_else(|| axum::body::Body::from_stream(silence), axum::body::Body::from);
        std::future::ready(Response::builder().body(body))
    });
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let client = client::over(service, &Metrics::new().unwrap(), LONGEST_REST);
    let task = tokio::spawn(informer.run(client, Link::default(), Gate::open()));
    sleep(Duration::from_secs(100)).await;
    task.abort();
    let asked = asked.lock().unwrap();
    let lists: Vec<u64> =
        asked.iter().filter(|(_, query)| query.contains("sendInitialEvents")).map(|(at, _)| *at).collect();
    assert!(lists[0] == 0 && (75..90).contains(&lists[1]), "{asked:?}");
}

/// The API server may list a type and reject its watches. Plans wait meanwhile, so frequent lists would only be a load.
#[tokio::test(start_paused = true)]
async fn lists_less_often_while_watches_are_rejected() {
    for (code, reason) in
        [(403, "Forbidden"), (410, "Expired"), (429, "TooManyRequests"), (500, "InternalError")]
    {
        let lists: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let rejects = Arc::new(AtomicBool::new(true));
        let (log, is_rejecting) = (lists.clone(), rejects.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let bookmarks = futures::StreamExt::then(futures::stream::repeat(()), |()| async {
                sleep(Duration::from_mins(1)).await;
                Ok::<String, std::io::Error>(bookmark(5, false))
            });
            let (code, body) = match query {
                "limit=1" => (200, newest(5).1.into()),
                _ if query.contains("sendInitialEvents") => {
                    log.lock().unwrap().push(Instant::now());
                    (200, bookmark(5, true).into())
                }
                _ if is_rejecting.load(Ordering::Relaxed) => {
                    (code, failure(code, reason, "rejected").1.into())
                }
                _ => (200, axum::body::Body::from_stream(bookmarks)),
            };
            std::future::ready(Response::builder().status(code).body(body))
        });
        let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
        let (client, link) = (Client::new(service, "default"), Link::default());
        let mut recoveries = link.recoveries();
        let task = tokio::spawn(informer.clone().run(client, link, gate.clone()));
        let part = &informer.parts()[0];
        let count = || lists.lock().unwrap().len();
        sleep(Duration::from_mins(5)).await;
        recoveries.mark_unchanged();
        sleep(Duration::from_mins(55)).await;
        let gaps: Vec<Duration> = lists.lock().unwrap().windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((9..25).contains(&gaps.len()), "{code}: {gaps:?}");
        assert!(gaps[0] < Duration::from_secs(12), "{code}: {gaps:?}");
        assert!(gaps[gaps.len() - 1] >= Duration::from_mins(5), "{code}: {gaps:?}");
        assert!(!gate.is_caught_up("pods.", &part.progress()), "{code}: plans wait");
        assert!(part.state().unwatched().unwrap().elapsed() > Duration::from_mins(59), "{code}");
        assert!(!recoveries.has_changed().unwrap(), "{code}: a list alone is not a recovery");

        let before = count();
        part.relist(Instant::now());
        sleep(Duration::from_secs(5)).await;
        assert_eq!(count() - before, 1, "{code}: the list for a new leader does not wait");

        rejects.store(false, Ordering::Relaxed);
        // Only the next list ends the pause after 410.
        sleep(Duration::from_secs(if code == 410 { 301 } else { 61 })).await;
        assert_eq!(count() - before, 2, "{code}: a list before the watch that opens");
        assert!(gate.is_caught_up("pods.", &part.progress()), "{code}");
        assert_eq!(part.state().unwatched(), None, "{code}");
        task.abort();
    }
}

/// A rejection would be the same for another manager, so the cache is not dead.
#[tokio::test(start_paused = true)]
async fn a_rejection_is_an_answer() {
    for (code, is_answer) in [(403, true), (500, true), (503, false)] {
        let mut answers = vec![(200, bookmark(5, true))];
        answers.extend((0..200).map(|_| failure(code, "", "no")));
        let (informer, _, _) = follow(&answers).await;
        let silence = informer.parts()[0].state().last_answer().elapsed();
        assert_eq!(silence < Duration::from_secs(90), is_answer, "{code}: {silence:?}");
    }
}

/// A proxy may end each list at the same object. A slow list gets further.
#[tokio::test(start_paused = true)]
async fn a_list_that_gets_further_is_an_answer() {
    for gets_further in [true, false] {
        let mut answers = Vec::new();
        for attempt in 1..200 {
            let length = if gets_further { attempt } else { 1 };
            let pods = (0..length).map(|number| pod(&format!("p-{number}"), 1));
            let events: String = pods.map(|pod| event("ADDED", &pod)).collect();
            answers.extend([(200, events), failure(503, "", "no page either")]);
        }
        let (informer, _, _) = follow(&answers).await;
        let silence = informer.parts()[0].state().last_answer().elapsed();
        assert_eq!(silence < Duration::from_secs(90), gets_further, "{silence:?}");
    }
}

/// A restore may lose writes of this process that no cache has shown. Another type may be in another etcd.
#[tokio::test(start_paused = true)]
async fn a_list_older_than_an_own_write_shows_a_restore() {
    for (resource, version, restores) in [(PODS, 1_000, 0), (PODS, 1_001, 1), (NODES, 1_001, 0)] {
        let (client, _) = scripted(&[(200, event("ADDED", &pod("a", 900)) + &bookmark(1_000, true))]);
        let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
        gate.wrote(resource, version);
        let task = tokio::spawn(informer.run(client, Link::default(), gate.clone()));
        sleep(Duration::from_secs(100)).await;
        assert_eq!(gate.take_restores(), restores, "{} {version}", resource.plural);
        task.abort();
    }
}

/// A restore may raise the version of the store, so that only objects are old. An object that cannot be decoded is in no cache.
#[tokio::test(start_paused = true)]
async fn an_old_object_shows_that_etcd_was_restored() {
    let mut bad = pod("bad", 3);
    bad["spec"]["nodeName"] = json!(5);
    let list = event("ADDED", &pod("a", 900)) + &event("ADDED", &bad) + &bookmark(1_000, true);
    let expired = failure(410, "Expired", "too old");
    for (listed, restores) in
        [(pod("a", 900), 0), (pod("a", 1_001), 0), (pod("a", 400), 1), (pod("deleted", 400), 1)]
    {
        let again = event("ADDED", &listed) + &event("ADDED", &bad) + &bookmark(2_000, true);
        let (client, _) = scripted(&[(200, list.clone()), expired.clone(), (200, again)]);
        let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
        let task = tokio::spawn(informer.clone().run(client, Link::default(), gate.clone()));
        sleep(Duration::from_secs(100)).await;
        assert_eq!(informer.parts()[0].progress().position, 2_000);
        assert_eq!(gate.take_restores(), restores, "{listed}");
        task.abort();
    }
}

/// While the API server was gone or rejected the watch, etcd may have been restored, and its version may have passed the old
/// ones since.
#[tokio::test(start_paused = true)]
async fn begins_with_a_list_after_an_outage() {
    for code in [403, 429, 500, 503] {
        for (failures, is_list) in [(1, false), (4, true)] {
            let mut answers = vec![(200, bookmark(5, true))];
            answers.extend((0..failures).map(|_| failure(code, "", "no server is available")));
            answers.push((200, bookmark(6, true)));
            let (_, _, asked) = follow(&answers).await;
            let asked = asked.lock().unwrap();
            assert_eq!(asked[1 + failures].contains("sendInitialEvents"), is_list, "{code} {asked:?}");
        }
    }
}

/// No plan uses a cache between the end of its history and the next list.
#[tokio::test(start_paused = true)]
async fn a_cache_without_history_shows_nothing_until_its_list() {
    let list = (200, bookmark(5, true));
    let (client, _) = scripted(&[list.clone(), failure(410, "Expired", "too old"), list]);
    let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
    let task = tokio::spawn(informer.clone().run(client, Link::default(), gate.clone()));
    let shows = || gate.is_caught_up("pods.", &informer.parts()[0].progress());
    sleep(Duration::from_millis(100)).await;
    assert!(!shows(), "the informer waits before the second list");
    sleep(Duration::from_secs(2)).await;
    assert!(shows());
    task.abort();
}

/// While the API server rejects a watch, etcd may be restored.
#[tokio::test(start_paused = true)]
async fn a_rejected_watch_shows_nothing_until_it_continues() {
    for code in [403, 429, 500] {
        let answers = [(200, bookmark(5, true)), failure(code, "", "rejected"), (200, bookmark(6, false))];
        let (client, _) = scripted(&answers);
        let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
        let task = tokio::spawn(informer.clone().run(client, Link::default(), gate.clone()));
        let part = &informer.parts()[0];
        let shows = || gate.is_caught_up("pods.", &part.progress());
        sleep(Duration::from_millis(100)).await;
        assert!(!shows(), "{code}");
        let mut progress = part.watch_progress();
        progress.wait_for(|progress| progress.position == 6).await.unwrap();
        assert!(shows(), "{code}");
        task.abort();
    }
}

/// A watch may end because the API server lost etcd. If every watch ends at once, plans still start.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ended_shows_nothing_until_it_continues() {
    for (lasts, moments) in [(10_000, [9_000, 12_000, 16_000]), (0, [500, 3_000, 7_000])] {
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move {
                let end = async move {
                    sleep(Duration::from_millis(lasts)).await;
                    Ok::<Vec<u8>, std::io::Error>(Vec::new())
                };
                let body = match &*query {
                    "limit=1" => {
                        sleep(Duration::from_secs(5)).await;
                        newest(5).1.into()
                    }
                    _ if query.contains("sendInitialEvents") => bookmark(5, true).into(),
                    _ => axum::body::Body::from_stream(futures::stream::once(end)),
                };
                Response::builder().body(body)
            }
        });
        let (informer, gate): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Gate::open());
        let (client, began) = (Client::new(service, "default"), Instant::now());
        let task = tokio::spawn(informer.clone().run(client, Link::default(), gate.clone()));
        for (moment, shows) in moments.into_iter().zip([true, false, true]) {
            tokio::time::sleep_until(began + Duration::from_millis(moment)).await;
            let is_shown = gate.is_caught_up("pods.", &informer.parts()[0].progress());
            assert_eq!(is_shown, shows, "a watch of {lasts} ms, after {moment} ms");
        }
        task.abort();
    }
}

/// While the API server cannot read its store, a watch that it accepts may be silent.
#[tokio::test(start_paused = true)]
async fn opens_no_watch_while_the_store_cannot_be_read() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let end = async {
            sleep(Duration::from_secs(2)).await;
            Ok::<Vec<u8>, std::io::Error>(Vec::new())
        };
        let (code, body) = match &*query {
            "limit=1" => (500, failure(500, "InternalError", "no etcd").1.into()),
            _ if query.contains("sendInitialEvents") => (200, bookmark(5, true).into()),
            _ => (200, axum::body::Body::from_stream(futures::stream::once(end))),
        };
        log.lock().unwrap().push(query);
        std::future::ready(Response::builder().status(code).body(body))
    });
    let informer: Informer<Pod> = Informer::new(PODS, &[], None);
    let client = Client::new(service, "default");
    let task = tokio::spawn(informer.run(client, Link::default(), Gate::open()));
    sleep(Duration::from_secs(10)).await;
    task.abort();
    assert_eq!(asked.lock().unwrap()[2..4], ["limit=1", "limit=1"], "a list, a watch, and no other watch");
}

/// The store or the watch cache may be unable to stream a list, which only an event reports. A proxy may cut the stream, or
/// answer for the API server.
#[tokio::test(start_paused = true)]
async fn lists_by_pages_after_a_stream_that_failed() {
    let status =
        |code: u16| event("ERROR", &json!({ "kind": "Status", "code": code, "message": "cannot stream" }));
    let page = json!({ "metadata": { "resourceVersion": "9" }, "items": [pod("a", 1), pod("b", 2)] });
    let half = event("ADDED", &pod("a", 1)) + &event("ADDED", &pod("gone", 1));
    for first in [(200, status(500)), (200, half.clone() + &status(504)), (200, half), (400, "no".to_owned())]
    {
        let expired = failure(410, "Expired", "too old");
        let (informer, told, asked) = follow(&[first.clone(), (200, page.to_string()), expired]).await;
        assert_eq!(
            (informer.all().len(), informer.parts()[0].progress().position),
            (2, 9),
            "{first:?} {told:?}"
        );
        let asked = asked.lock().unwrap();
        assert!(asked[1].contains("limit=") && asked[3].contains("sendInitialEvents"), "{asked:?}");
    }
}

/// A list may take long, as long as it makes progress.
#[tokio::test(start_paused = true)]
async fn an_informer_asks_for_time_to_stream_a_list() {
    let (_, _, asked) = follow(&[]).await;
    assert!(asked.lock().unwrap()[0].contains("timeoutSeconds=590"), "{asked:?}");
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
        answers.push((200, bookmark(6, true)));
        let (client, _) = scripted(&answers);
        let (informer, link): (Informer<Pod>, _) = (Informer::new(PODS, &[], None), Link::default());
        let returns = link.recoveries();
        let task = tokio::spawn(informer.run(client, link, Gate::open()));
        sleep(Duration::from_secs(100)).await;
        assert_eq!(returns.has_changed().unwrap(), is_news, "{times}");
        task.abort();
    }
}

/// The informer's deselected objects are kept as long as their owner exists.
#[tokio::test(start_paused = true)]
async fn keeps_departed_objects_while_their_owner_exists() {
    let owner_list =
        event("ADDED", &json!({ "metadata": { "name": "owner", "namespace": "ns", "uid": "owner" } }))
            + &bookmark(5, true);
    let (client, _) = scripted(&[(200, owner_list)]);
    let owners: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    tokio::spawn(owners.clone().run(client, Link::default(), Gate::open()));
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
    let deselected = Deselected::from(&informer, &owners, |pod: &Pod| !pod.terminating());
    tokio::spawn(informer.clone().run(client, Link::default(), Gate::open()));
    sleep(Duration::from_secs(10)).await;
    let names = |deselected: &Deselected<Pod>| -> Vec<String> {
        deselected.owned_by(&owner()).iter().map(|pod| pod.meta.name.to_string()).collect()
    };
    assert_eq!(names(&deselected), ["a"], "b is back, and the others do not count");
    let a = deselected.owned_by(&owner()).remove(0);
    deselected.settle(&a);
    assert!(names(&deselected).is_empty());
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
