//! The election: the terms of a holder, and the candidates that wait for the Lease.

use super::*;
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::election::{self, Settings};
use quintet_runtime::model::progress::Progress;
use quintet_runtime::server::gate::Seen;

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
    elect_with_link(gate, client, seconds, &Link::default()).await
}

/// Like `elect_with`, with the link that the election notifies.
async fn elect_with_link(
    gate: &Gate,
    client: Client,
    seconds: u64,
    link: &Link,
) -> Option<Result<(), election::Error>> {
    elect_as(gate, client, seconds, link, Vec::new).await
}

/// Like `elect_with_link`, for a process whose caches have had no answers for `silences`.
async fn elect_as(
    gate: &Gate,
    client: Client,
    seconds: u64,
    link: &Link,
    silences: impl Fn() -> Vec<Duration>,
) -> Option<Result<(), election::Error>> {
    let settings = Settings::new("ns".into(), "me".into());
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let clock = Clock::tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let candidate = Candidate::new(client, settings, gate.clone(), link.clone(), clock);
    let election = candidate.run(Seen::new, silences, stopped);
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
    let (asked, gate) = elect(&answers, 11).await;
    assert_eq!(asked, ["GET", "POST", "PUT", "PUT", "GET", "PUT"]);
    assert!(gate.deadline().is_some());
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

/// Runs an election over a script, for a process with a dead cache and a live one. Returns the verbs of the requests, and
/// the gate.
async fn elect_blind(answers: &[(u16, String)], seconds: u64) -> (Vec<String>, Gate) {
    let (gate, (client, asked), began) = (Gate::closed(), scripted(answers), Instant::now());
    let silences = || vec![began.elapsed(), Duration::ZERO];
    let _ = elect_as(&gate, client, seconds, &Link::default(), silences).await;
    (verbs(&asked), gate)
}

/// A leader may be able to renew the Lease while a watch gets no answer. It releases the Lease, and takes it back if no
/// other process takes it.
#[tokio::test(start_paused = true)]
async fn releases_the_lease_if_a_cache_is_dead() {
    let mut answers = vec![failure(404, "NotFound", "none"), (201, lease("me", 1, 0))];
    answers.extend((1..22).map(|at| (200, lease("me", at + 1, at))));
    let released = [(200, lease("me", 22, 21)), (200, lease("", 23, 22))];
    let (asked, gate) = elect_blind(&answers, 109).await;
    assert_eq!((asked.len(), gate.deadline().is_some()), (23, true), "{asked:?}");

    let taken = [&answers[..], &released, &[(200, lease("other", 24, 23))]].concat();
    let (asked, gate) = elect_blind(&taken, 114).await;
    assert_eq!(asked[23..], ["GET", "PUT", "GET", "GET"], "a release, a read and a watch");
    assert_eq!(gate.deadline(), None);

    answers.extend(released);
    answers.extend((0..6).map(|_| (200, lease("", 23, 22))));
    let (asked, gate) = elect_blind(&answers, 119).await;
    assert_eq!((asked[25..].len(), gate.deadline()), (5, None), "{asked:?}");
    answers.extend((24..30).map(|at| (200, lease("me", at, at))));
    let (asked, gate) = elect_blind(&answers, 140).await;
    assert!(asked[31..].iter().all(|verb| verb == "PUT") && gate.deadline().is_some(), "{asked:?}");
}

/// A process with a dead cache takes a free Lease only if no other process does.
#[tokio::test(start_paused = true)]
async fn leaves_a_free_lease_to_processes_with_live_caches() {
    let mut answers = Vec::new();
    for at in 0..47 {
        answers.extend([(200, lease("other", at, at)), failure(403, "Forbidden", "no watch")]);
    }
    answers.extend((0..11).map(|_| (200, lease("", 50, 50))));
    answers.push((200, lease("me", 51, 51)));
    // The Lease is free after 94 s. The last holder would take it ten seconds later.
    let (asked, gate) = elect_blind(&answers, 112).await;
    assert_eq!((asked.len(), gate.deadline()), (104, None), "{asked:?}");
    let (asked, gate) = elect_blind(&answers, 115).await;
    assert_eq!((asked.last().map(String::as_str), gate.deadline().is_some()), (Some("PUT"), true));
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

/// Other processes may take and release the Lease between its attempts.
#[tokio::test(start_paused = true)]
async fn gives_up_a_lease_that_it_may_only_read_between_holders() {
    let mut answers = Vec::new();
    for version in (1..120).step_by(3) {
        let released: Value = serde_json::from_str(&lease("", version + 2, 0)).unwrap();
        answers.extend([
            (200, lease("", version, 0)),
            failure(403, "Forbidden", "no update"),
            (200, lease("other", version + 1, 0)),
            (200, event("MODIFIED", &released)),
        ]);
    }
    let ended = elect_with(&Gate::closed(), scripted(&answers).0, 60).await;
    assert!(matches!(ended, Some(Err(election::Error::Forbidden { verb: "update", .. }))));
}

/// Two short times without roles, as of an API server that starts twice.
#[tokio::test(start_paused = true)]
async fn a_granted_read_ends_a_time_of_denied_reads() {
    let mut answers = vec![failure(403, "Forbidden", "no role is known yet")];
    for at in 1..18 {
        answers.extend([(200, lease("other", at, at)), failure(403, "Forbidden", "no watch")]);
    }
    answers.extend([(200, lease("", 50, 50)), failure(403, "Forbidden", "no role is known yet")]);
    answers.extend([(200, lease("", 50, 50)), (200, lease("me", 51, 51))]);
    let (asked, gate) = elect(&answers, 42).await;
    assert!(asked.len() >= answers.len() && gate.deadline().is_some(), "{asked:?}");
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

/// The holder notices a deletion when it renews. A process that has created the Lease may write from then on.
#[tokio::test(start_paused = true)]
async fn stands_by_after_losing_the_race_to_create() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1, 0)),
        failure(404, "NotFound", "deleted"),
        failure(404, "NotFound", "deleted"),
        failure(409, "AlreadyExists", "created"),
        (200, lease("other", 9, 5)),
    ];
    let (asked, gate) = elect(&answers, 6).await;
    assert_eq!(asked, ["GET", "POST", "PUT", "GET", "POST", "GET", "GET"], "the last is a watch");
    assert_eq!(gate.deadline(), None);
}

#[tokio::test(start_paused = true)]
async fn names_the_holder_after_losing_a_released_lease() {
    let answers = [(200, lease("", 1, 0)), failure(409, "Conflict", "changed"), (200, lease("other", 2, 0))];
    let (gate, (client, asked)) = (Gate::closed(), scripted(&answers));
    let _writing = gate.writing();
    let ended = elect_with(&gate, client, 2).await;
    assert!(matches!(ended, Some(Err(election::Error::Uncancelled { holder })) if holder == "other"));
    assert_eq!(verbs(&asked), ["GET", "PUT", "GET"]);
}

/// Another client may change the Lease, e.g. its labels, without acquiring it.
#[tokio::test(start_paused = true)]
async fn conflicts_do_not_count_as_an_outage() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1, 0)),
        failure(409, "Conflict", "changed"),
        (200, lease("me", 2, 0)),
        failure(409, "Conflict", "changed"),
        (200, lease("me", 3, 0)),
        (200, lease("me", 4, 5)),
    ];
    let (gate, link, (client, asked)) = (Gate::closed(), Link::default(), scripted(&answers));
    let recoveries = link.recoveries();
    let _ = elect_with_link(&gate, client, 8, &link).await;
    assert_eq!(verbs(&asked), ["GET", "POST", "PUT", "GET", "PUT", "GET", "PUT"]);
    assert!(gate.deadline().is_some());
    assert!(!recoveries.has_changed().unwrap());
}

/// A webhook may reject every write with 409. The attempts must keep their pace.
#[tokio::test(start_paused = true)]
async fn retries_at_its_pace_if_every_write_conflicts() {
    let mut answers = Vec::new();
    for _ in 0..40 {
        answers.extend([(200, lease("", 1, 0)), failure(409, "Conflict", "no")]);
    }
    let (asked, gate) = elect(&answers, 3).await;
    assert_eq!((asked.len(), gate.deadline()), (20, None), "two attempts of five turns");
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

/// A restore of etcd brings back an older Lease. Plans so far may follow from lost changes.
#[tokio::test(start_paused = true)]
async fn starts_its_term_again_after_a_restore() {
    let answers = [
        failure(404, "NotFound", "none"),
        (201, lease("me", 1_000, 0)),
        failure(409, "Conflict", "changed"),
        (200, lease("me", 400, 0)),
        (200, lease("me", 401, 5)),
    ];
    let begun = Instant::now();
    let (asked, gate) = elect(&answers, 6).await;
    assert_eq!(asked, ["GET", "POST", "PUT", "GET", "PUT"]);
    let since = gate.term().unwrap().since;
    assert!(since.duration_since(begun) >= Duration::from_secs(5), "a new term");
    assert_eq!(gate.take_restores(), 1);
}

/// The older Lease may name this process, or no holder, while the present holder has not noticed the restore.
#[tokio::test(start_paused = true)]
async fn waits_for_the_holder_that_a_restore_removed() {
    for holder in ["me", ""] {
        let mut answers = vec![(200, lease("other", 1_000, 0)), (200, String::new())];
        for _ in 0..7 {
            answers.extend([(200, lease(holder, 400, 0)), (200, String::new())]);
        }
        answers.extend([(200, lease(holder, 400, 0)), (200, lease("me", 401, 16))]);
        let (asked, gate) = elect(&answers, 14).await;
        assert!(gate.deadline().is_none() && !asked.contains(&"PUT".to_owned()), "{asked:?}");
        assert_eq!(gate.take_restores(), 1);
        let (asked, gate) = elect(&answers, 17).await;
        assert_eq!(asked.last().map(String::as_str), Some("PUT"));
        assert!(gate.deadline().is_some());
    }
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

/// The first answer may come from an API server that has not loaded its roles yet, long after the start of the process.
#[tokio::test(start_paused = true)]
async fn a_candidate_does_not_give_up_after_its_first_answer() {
    // A rejection before the outage does not count.
    let mut answers = vec![failure(403, "Forbidden", "no role is known yet")];
    answers.extend((0..20).map(|_| failure(503, "ServiceUnavailable", "it starts")));
    answers.push(failure(403, "Forbidden", "no role is known yet"));
    answers.extend([(200, lease("", 2, 0)), (200, lease("me", 3, 0))]);
    let (asked, gate) = elect(&answers, 46).await;
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
    let at = |position, listed| Progress { position, seen: position, listed, expired: false };
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
