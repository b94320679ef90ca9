//! The executor: its writes, the refusals that it keeps, and the lookups after unclear answers.

use super::*;
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::refusals::{RefusalReason, Refusals, Verb};
use quintet_runtime::server::client::{self, WINDOW};
use quintet_runtime::write::executor::{Error, Execution, Executor, Planned};
use std::sync::atomic::{AtomicI64, Ordering};

fn create(name: &str) -> Action<Value> {
    Action::Create {
        resource: PODS,
        namespace: "ns".into(),
        name: name.into(),
        owner_label: None,
        body: json!({}).into(),
    }
}

fn executor(answers: &[(u16, String)]) -> (Executor, Asked) {
    let (client, asked) = scripted(answers);
    let clock = Clock::tokio("2026-01-01T00:00:00Z".parse().unwrap());
    (Executor::new(client, Gate::open(), clock), asked)
}

/// The object of a plan that is made now.
fn planned<'a>(executor: &Executor, key: &'a Key) -> Planned<'a> {
    let since = executor.gate.term().map_or_else(Instant::now, |term| term.since);
    Planned { key, resource: PODS, version: "1", since }
}

/// Executes a plan of one step. Returns when to retry the actions that were withheld.
async fn carry_or_wait(
    executor: &Executor,
    step: Vec<Action<Value>>,
) -> (Execution, Option<jiff::Timestamp>) {
    let mut plan = Plan { steps: vec![step], ..Plan::default() };
    executor.memory.withhold(&owner(), &mut plan);
    (executor.execute(planned(executor, &owner()), plan.steps, &|| true, |_| Ok(())).await, plan.again)
}

async fn carry(executor: &Executor, step: Vec<Action<Value>>) -> Result<Execution, Error> {
    let (mut execution, _) = carry_or_wait(executor, step).await;
    execution.failure.take().map_or(Ok(execution), Err)
}

/// A running informer whose cache shows a pod, and its task.
async fn informer_with(name: &str) -> (Informer<Pod>, tokio::task::JoinHandle<()>) {
    let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
    let (client, _) = scripted(&[(200, event("ADDED", &pod(name, 1)) + &bookmark(5, true))]);
    let task = tokio::spawn(informer.clone().run(client, Link::default(), Gate::open()));
    sleep(Duration::from_secs(1)).await;
    (informer, task)
}

#[tokio::test(start_paused = true)]
async fn drops_a_plan_for_an_object_that_has_changed() {
    let (executor, asked) = executor(&[]);
    let execution =
        executor.execute(planned(&executor, &owner()), vec![vec![create("a")]], &|| false, |_| Ok(())).await;
    assert!(!execution.complete && execution.writes == 0);
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn looks_up_a_deletion_without_an_answer() {
    // The cache shows a pod that is already deleted in the API server.
    let (informer, task) = informer_with("a").await;
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
    executor.clarify(planned(&executor, &owner())).await.unwrap();
    assert!(!executor.memory.caught_up(&owner(), &caches), "it did commit: the cache must show it");
    task.abort();
}

/// A status write to a replaced or deleted object is the first sign of a stale cache.
#[tokio::test(start_paused = true)]
async fn waits_for_the_cache_after_a_stale_status_write() {
    let (informer, task) = informer_with("owner").await;
    let caches = informer.tracked();
    let stale = failure(409, "Conflict", "the UID is another one");
    for (found, shown) in [
        (failure(404, "NotFound", "gone"), false),
        ((200, pod("owner", 9).to_string()), false),
        ((200, pod("owner", 4).to_string()), true),
    ] {
        let (executor, asked) = executor(&[stale.clone(), found]);
        let owner = Key { uid: "uid-owner".into(), ..owner() };
        let written = executor.write_status(planned(&executor, &owner), &json!({})).await;
        assert!(matches!(written, Err(Error::Stale(_))));
        executor.clarify(planned(&executor, &owner)).await.unwrap();
        assert_eq!(asked.lock().unwrap().len(), 2, "reads the object");
        assert_eq!(executor.memory.caught_up(&owner, &caches), shown);
    }
    task.abort();
}

/// An API server that was not restarted with etcd lists lost objects, but reads a single object from etcd.
#[tokio::test(start_paused = true)]
async fn an_old_owner_shows_that_etcd_was_restored() {
    let stale = failure(409, "Conflict", "the object has been modified");
    for (version, restores) in [(7, 0), (6, 1)] {
        let (executor, _) = executor(&[stale.clone(), (200, pod("owner", version).to_string())]);
        let owner = Key { uid: "uid-owner".into(), ..owner() };
        let of = Planned { version: "7", ..planned(&executor, &owner) };
        assert!(matches!(executor.write_status(of, &json!({})).await, Err(Error::Stale(_))));
        executor.clarify(of).await.unwrap();
        assert_eq!(executor.gate.take_restores(), restores, "{version}");
    }
}

/// A pod without its label would belong to its owner and be invisible to it. Each attempt has a longer pause, also under
/// another name and if the pod cannot be deleted.
#[tokio::test(start_paused = true)]
async fn deletes_a_pod_that_was_created_without_its_label() {
    let stripped = || (201, pod("a", 5).to_string());
    let denied = failure(403, "Forbidden", "denied by a policy");
    let mut invisible = pod("c", 5);
    invisible["metadata"]["labels"] = json!({ "uid": &*owner().uid });
    let (executor, asked) = executor(&[
        stripped(),
        (200, pod("a", 5).to_string()),
        stripped(),
        denied,
        (200, pod("b", 6).to_string()),
        (201, invisible.to_string()),
        (200, pod("c", 5).to_string()),
    ]);
    for (times, name, outcome, pause) in [
        (1, "a", "the label uid of Pod a, which was deleted", 10),
        (2, "b", "denied by a policy", 20),
        (3, "c", "the label quintet.dev/kind of Pod c, which was deleted", 40),
    ] {
        let execution = carry(&executor, vec![create_labelled(name)]).await.unwrap();
        assert!(execution.refusals[0].2.contains(outcome), "{:?}", execution.refusals);
        let stop = executor.memory.refusals(&owner()).creations.unwrap();
        assert_eq!((stop.reason, stop.times), (RefusalReason::LabelsOverwritten, times));
        sleep(Duration::from_secs(pause)).await;
    }
    assert_eq!(verbs(&asked), "POST DELETE POST DELETE PATCH POST DELETE");
}

fn verbs(asked: &Asked) -> String {
    let asked = asked.lock().unwrap();
    asked.iter().map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>().join(" ")
}

/// A creation with the label `uid`.
fn create_labelled(name: &str) -> Action<Value> {
    let mut creation = create(name);
    if let Action::Create { owner_label, .. } = &mut creation {
        *owner_label = Some("uid");
    }
    creation
}

/// A pod with all labels, or none.
fn labelled(name: &str, is_labelled: bool) -> (u16, String) {
    let mut pod = pod(name, 5);
    pod["metadata"]["labels"] =
        if is_labelled { json!({ "uid": "owner", "quintet.dev/kind": "K" }) } else { json!({}) };
    (200, pod.to_string())
}

/// A pod that lost its label and could not be deleted has the name of the next creation, even after a change of the spec.
#[tokio::test(start_paused = true)]
async fn a_retry_deletes_the_pod_that_lost_its_label() {
    let denied = || failure(403, "Forbidden", "denied by a policy");
    let exists = || failure(409, "AlreadyExists", "exists");
    let (executor, asked) = executor(&[
        labelled("a", false),
        denied(),
        denied(),
        exists(),
        labelled("a", false),
        denied(),
        denied(),
        exists(),
        labelled("a", false),
        labelled("a", false),
        exists(),
        labelled("a", true),
    ]);
    for times in 1..=2 {
        let execution = carry(&executor, vec![create_labelled("a")]).await.unwrap();
        assert!(execution.refusals[0].2.contains("denied by a policy"), "{:?}", execution.refusals);
        // Other refusals end with the spec.
        executor.memory.observe_generation(&owner(), times);
        executor.memory.observe_generation(&owner(), times + 1);
        assert_eq!(executor.memory.refusals(&owner()).left.len(), 1);
    }
    let deleted = carry(&executor, vec![create_labelled("a")]).await.unwrap();
    assert!(deleted.is_stale && deleted.refusals.is_empty(), "no policy was met");
    assert!(carry(&executor, vec![create_labelled("a")]).await.unwrap().is_stale);
    assert_eq!(executor.memory.refusals(&owner()), Refusals::default());
    assert_eq!(verbs(&asked), "POST DELETE PATCH POST GET DELETE PATCH POST GET DELETE POST GET");
}

/// A pod that still terminates does not show that the policy still exists.
#[tokio::test(start_paused = true)]
async fn a_terminating_pod_without_its_label_is_not_refused() {
    let mut going = pod("a", 6);
    going["metadata"]["labels"] = json!({});
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let denied = || failure(403, "Forbidden", "denied by a policy");
    let exists = failure(409, "AlreadyExists", "exists");
    let answers = [labelled("a", false), denied(), denied(), exists, (200, going.to_string())];
    let (executor, asked) = executor(&answers);
    assert!(carry(&executor, vec![create_labelled("a")]).await.unwrap().refused);
    sleep(Duration::from_secs(10)).await;
    let execution = carry(&executor, vec![create_labelled("a")]).await.unwrap();
    assert!(execution.is_stale && execution.refusals.is_empty());
    assert_eq!(verbs(&asked), "POST DELETE PATCH POST GET");
}

/// If the pod cannot be deleted, the label can be restored, as a policy for creations alone allows.
#[tokio::test(start_paused = true)]
async fn restores_the_label_of_a_pod_that_cannot_be_deleted() {
    let denied = failure(403, "Forbidden", "denied by a policy");
    let (executor, _) = executor(&[labelled("a", false), denied, labelled("a", true)]);
    assert!(carry(&executor, vec![create_labelled("a")]).await.unwrap().complete);
    assert!(executor.memory.refusals(&owner()).is_empty());
}

/// An adopted pod without its label would be deleted with its owner, and counted by none.
#[tokio::test(start_paused = true)]
async fn releases_a_pod_that_was_adopted_without_its_label() {
    let (executor, asked) = executor(&[labelled("a", false), labelled("a", false)]);
    let (namespace, name, body) = ("ns".into(), "a".to_owned(), json!({}));
    let adoption =
        Action::Apply { resource: PODS, namespace, name, owner_label: Some("uid"), body, force: true };
    let execution = carry(&executor, vec![adoption]).await.unwrap();
    assert!(execution.refusals[0].2.contains("the label uid of Pod a, which was released"));
    let refusals = executor.memory.refusals(&owner());
    assert!(refusals.creations.is_none() && refusals.left.is_empty());
    assert_eq!(verbs(&asked), "PATCH PATCH");
}

/// Requests that were sent together are one attempt.
#[tokio::test(start_paused = true)]
async fn rejections_of_one_step_pause_creations_once() {
    let quota = failure(403, "Forbidden", "pods \"a\" is forbidden: exceeded quota: few");
    let (executor, _) = executor(&vec![quota; 40]);
    let begin = "2026-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap();
    carry(&executor, (0..40).map(|index| create(&format!("p{index}"))).collect()).await.unwrap();
    let stop = executor.memory.refusals(&owner()).creations.unwrap();
    assert_eq!((stop.times, stop.until), (1, begin + Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn lists_all_pages() {
    let page = |name: &str, next: &str| {
        (200, json!({ "metadata": { "continue": next }, "items": [pod(name, 1)] }).to_string())
    };
    let (executor, asked) = executor(&[page("a", "next"), page("b", "")]);
    let pods: Vec<Pod> = executor.reads.list(&PODS, "ns", "app=x").await.unwrap();
    assert_eq!(pods.iter().map(|pod| &*pod.meta.name).collect::<Vec<_>>(), ["a", "b"]);
    let first = "GET /api/v1/namespaces/ns/pods?labelSelector=app%3Dx&limit=500";
    assert_eq!(*asked.lock().unwrap(), [first.to_owned(), format!("{first}&continue=next")]);
}

/// The executor of a server that answers each write after ten seconds.
fn slow_executor(writes: usize) -> (Executor, Asked) {
    let answers = vec![(201, pod("a", 5).to_string()); writes];
    let (client, asked) = scripted_slowly(&answers, Duration::from_secs(10));
    let clock = Clock::tokio("2026-01-01T00:00:00Z".parse().unwrap());
    (Executor::new(client, Gate::open(), clock), asked)
}

fn creations(count: usize) -> Vec<Action<Value>> {
    (0..count).map(|number| create(&format!("of-many-{number}"))).collect()
}

/// When this many writes were sent.
async fn sent(asked: &Asked, count: usize) -> Duration {
    let began = Instant::now();
    while asked.lock().unwrap().len() < count {
        sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

/// A webhook that is slow for the objects of one kind must not delay other kinds, nor one object of this kind for long.
#[tokio::test(start_paused = true)]
async fn a_slow_step_delays_no_other_kind_and_other_objects_by_a_turn() {
    let (executor, asked) = slow_executor(200);
    let other_kind = executor.windowed();
    let work = async {
        futures::join!(carry(&executor, creations(150)), async {
            sent(&asked, WINDOW).await;
            let began = Instant::now();
            carry(&other_kind, vec![create("of-another-kind")]).await.unwrap();
            assert_eq!(began.elapsed().as_secs(), 10, "only its own request");
            carry(&executor, vec![create("of-another-object")]).await.unwrap();
            assert!(
                began.elapsed().as_secs() <= 30,
                "it waits for one turn, not for 150 requests: {began:?}"
            );
        })
    };
    work.await.0.unwrap();
}

/// Other clients wait no longer for 96 deletions than for 64 creations.
#[tokio::test(start_paused = true)]
async fn three_deletions_take_two_slots() {
    let answers = vec![(200, pod("a", 5).to_string()); 4 * WINDOW];
    let (client, asked) = scripted_slowly(&answers, Duration::from_secs(10));
    let executor = Executor::new(client, Gate::open(), Clock::System);
    let deletion = Action::Delete {
        resource: PODS,
        namespace: "ns".into(),
        name: "a".into(),
        uid: "uid-a".into(),
        resource_version: None,
    };
    let sent = async {
        sleep(Duration::from_secs(5)).await;
        asked.lock().unwrap().len()
    };
    let (_, sent) = futures::join!(carry(&executor, vec![deletion; 4 * WINDOW]), sent);
    assert_eq!(sent, 96);
}

/// Writes without urgency have four slots together, which no other write needs.
#[tokio::test(start_paused = true)]
async fn writes_without_urgency_have_few_slots() {
    let (executor, asked) = slow_executor(200);
    let (one, other) = (executor.in_background().unwrap(), executor.in_background().unwrap());
    let began = Instant::now();
    let rest = async { futures::join!(carry(&one, creations(8)), carry(&other, creations(8))) };
    let urgent = async {
        sent(&asked, 4).await;
        assert!(executor.in_background().is_none(), "another reconcile does not wait for them");
        carry(&executor, creations(WINDOW)).await.unwrap();
        began.elapsed().as_secs()
    };
    let (_, urgent) = futures::join!(rest, urgent);
    assert_eq!(urgent, 10, "it does not wait for the others");
    assert_eq!(began.elapsed().as_secs(), 40, "16 writes of ten seconds");
}

/// An action that waited for its turn is not sent after a failure of its step, or after a change of the object.
#[tokio::test(start_paused = true)]
async fn a_failure_or_a_change_stops_the_actions_that_wait() {
    let (executor, asked) = slow_executor(2 * WINDOW);
    let began = Instant::now();
    let still = || began.elapsed() < Duration::from_secs(5);
    let execution =
        executor.execute(planned(&executor, &owner()), vec![creations(2 * WINDOW)], &still, |_| Ok(())).await;
    assert!(!execution.complete);
    assert_eq!((execution.writes, asked.lock().unwrap().len()), (WINDOW, WINDOW));

    // Another reconcile keeps the window full meanwhile.
    let (executor, asked) = slow_executor(800);
    let began = Instant::now();
    let still = || began.elapsed() < Duration::from_secs(5);
    let other = Key { uid: "other".into(), ..owner() };
    let stopped = async {
        let of = planned(&executor, &other);
        executor.execute(of, vec![creations(1_000)], &still, |_| Ok(())).await;
        assert!(began.elapsed() <= Duration::from_secs(25), "one turn, not one for each action: {began:?}");
        asked.lock().unwrap().len()
    };
    let (_, sent) = futures::join!(carry(&executor, creations(600)), stopped);
    assert!(sent < 300, "{sent}");

    let failed = failure(503, "ServiceUnavailable", "no server is available");
    let (client, asked) = scripted_slowly(&vec![failed; 2 * WINDOW], Duration::from_secs(10));
    let executor = Executor::new(client, Gate::open(), Clock::System);
    assert!(carry(&executor, creations(2 * WINDOW)).await.is_err());
    assert_eq!(asked.lock().unwrap().len(), WINDOW, "nothing follows a failure");
}

/// Each claim has a slot in the window already.
#[tokio::test(start_paused = true)]
async fn claims_that_fill_the_window_end() {
    let (executor, _) = slow_executor(2 * WINDOW);
    let claim = || async {
        let claim = Action::<Value>::Claim { status: json!({}), token: "me".into() };
        carry(&executor, vec![claim]).await.unwrap();
    };
    let all = futures::future::join_all((0..2 * WINDOW).map(|_| claim()));
    tokio::time::timeout(Duration::from_secs(30), all).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn restarts_a_list_whose_continue_token_has_expired() {
    let page = (200, json!({ "metadata": { "continue": "x" }, "items": [pod("a", 1)] }).to_string());
    // The API server lists the metadata of no objects like this.
    let nothing = (200, json!({ "metadata": {}, "items": null }).to_string());
    let expired = || failure(410, "Expired", "the continue token is too old");
    for (answers, is_listed) in
        [(vec![page.clone(), expired(), nothing], true), (vec![expired(), expired(), expired(), page], false)]
    {
        let (executor, asked) = executor(&answers);
        let listed = executor.reads.list_meta(&PODS, "ns", "").await;
        assert_eq!(listed.is_ok_and(|metas| metas.is_empty()), is_listed);
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn sends_no_write_while_the_gate_is_closed() {
    let (client, asked) = scripted(&[]);
    let executor = Executor::new(client, Gate::closed(), Clock::System);
    assert!(matches!(carry(&executor, vec![create("a")]).await, Err(Error::NotLeading)));
    assert!(asked.lock().unwrap().is_empty());
}

/// The term ends and another one begins at once, while writes of two reconciles run and wait.
#[tokio::test(start_paused = true)]
async fn sends_no_write_of_a_plan_in_a_later_term() {
    let (client, asked) = scripted(&[]);
    let gate = Gate::closed();
    gate.open_until(Instant::now() + Duration::from_mins(1));
    let executor = Executor::new(client, gate.clone(), Clock::System);
    let (one, other) = (owner(), Key { uid: "other".into(), ..owner() });
    let all = |owner| {
        let of = planned(&executor, owner);
        executor.execute(of, vec![creations(2 * WINDOW)], &|| true, |_| Ok(()))
    };
    let (one, other, ()) = futures::join!(all(&one), all(&other), async {
        sleep(Duration::from_millis(100)).await;
        gate.close();
        gate.open_until(Instant::now() + Duration::from_mins(1));
    });
    assert!(one.failure.is_some() && other.failure.is_some());
    assert_eq!(asked.lock().unwrap().len(), WINDOW, "only those that ran");
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

/// An object that was created again, and the next leader, must see the writes for the deleted object of its name.
#[tokio::test(start_paused = true)]
async fn the_caches_must_show_the_writes_for_a_deleted_owner() {
    for answer in [(201, pod("a", 7).to_string()), failure(504, "Timeout", "later")] {
        let (executor, _) = executor(&[answer]);
        let informer: Informer<Pod> = Informer::new(PODS, &["ns".to_owned()], None);
        let caches = informer.tracked();
        let _ = carry(&executor, vec![create("a")]).await;
        executor.memory.forget(&owner(), &PODS, &caches);
        let again = Key { uid: "another".into(), ..owner() };
        let other = Key { name: "other".into(), ..again.clone() };
        assert!(!executor.memory.caught_up(&again, &caches));
        assert!(executor.memory.caught_up(&other, &caches), "another name");
        assert!(!executor.memory.all_caught_up(&caches));
        assert!(executor.memory.unshown().contains(&PODS));
        let (client, _) = scripted(&[(200, bookmark(6, true)), (200, event("ADDED", &pod("a", 7)))]);
        let task = tokio::spawn(informer.run(client, Link::default(), Gate::open()));
        sleep(Duration::from_secs(1)).await;
        assert!(executor.memory.caught_up(&again, &caches));
        assert!(executor.memory.unshown().is_empty());
        task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn reports_successful_writes_beside_a_failure() {
    let (executor, _) = executor(&[(201, pod("a", 7).to_string()), failure(504, "Timeout", "later")]);
    let steps = vec![vec![create("a"), create("b")], vec![create("c")]];
    let execution =
        executor.execute::<Value, _>(planned(&executor, &owner()), steps, &|| true, |_| Ok(())).await;
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
    let task = tokio::spawn(informer.run(client, Link::default(), Gate::open()));
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
    let webhook = failure(403, "Forbidden", "denied: node n is cordoned because it is being terminated");
    let answers = [proxy, webhook, gone.clone(), gone, (201, pod("a", 7).to_string())];
    let (executor, _) = executor(&answers);
    for name in ["b", "c"] {
        assert!(carry(&executor, vec![create(name)]).await.unwrap().refused);
        assert!(!executor.memory.refusals(&owner()).namespace_terminating);
    }
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
        executor.clarify(planned(&executor, &owner())).await.unwrap();
        executor.clarify(planned(&executor, &owner())).await.unwrap();
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
    assert!(sent <= WINDOW + 1, "only what was in flight: {sent}");
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
    executor.memory.forget(&owner(), &PODS, &[]);
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
    executor.write_status(planned(&executor, &owner()), &json!({ "x": 1 })).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 2);
    assert!(executor.memory.refusals(&owner()).is_empty());
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
    assert!((3..=WINDOW + 8).contains(&first), "{first} were sent");
    let (execution, until) = carry_or_wait(&executor, step()).await;
    assert_eq!((sent(), execution.writes), (first, 0), "not at once");
    assert_eq!(until.unwrap().to_string(), "2026-01-01T00:00:01Z");
    sleep(Duration::from_secs(1)).await;
    carry(&executor, step()).await.unwrap();
    let second = sent();
    assert!((first + 3..=first + WINDOW + 8).contains(&second), "{second} were sent");
    sleep(Duration::from_secs(1)).await;
    carry(&executor, step()).await.unwrap();
    assert_eq!(sent(), second, "the wait is doubled");
}
