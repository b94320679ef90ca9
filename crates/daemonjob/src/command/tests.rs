use quintet_runtime::model::rollout::{Change, RolloutState, Step};
use rstest::rstest;
use serde_json::{Value, json};

use super::change::{approve, pause, resume, retry};
use super::progress::progress;
use crate::api::DaemonJob;

const APPROVED: &str = "dj.dysproz.io/approved";
const PAUSED: &str = "dj.dysproz.io/paused";

/// A DaemonJob with waves of 1, 3 and 5 nodes in its third rollout. The first wave has started.
fn job() -> Value {
    json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 4},
        "spec": {
            "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}},
            "rollout": {"waveSizes": [1, 3], "approval": "FirstWave"},
        },
        "status": {
            "observedGeneration": 4, "desired": 5, "succeeded": 1, "failed": 0, "skipped": 0,
            "rollout": {"number": 3, "base": 5, "waveSizes": [1, 3], "wave": 1, "started": 1, "settled": 1,
                "waitingFor": "Nodes"},
            "conditions": [condition("Ready", "False", "NodesPending", "1 of 5 nodes are done")],
        },
    })
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The DaemonJob with changes, each a JSON pointer and its value.
fn subject(changes: &[(&str, Value)]) -> DaemonJob {
    let mut job = job();
    for (path, value) in changes {
        let (parent, key) = path.rsplit_once('/').unwrap();
        job.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
    }
    serde_json::from_value(job).unwrap()
}

/// The changes for a hold: the condition of the type, and the reason of Ready.
fn held(type_: &str, reason: &str) -> (&'static str, Value) {
    let conditions =
        json!([condition("Ready", "False", reason, "why"), condition(type_, "True", reason, "why")]);
    ("/status/conditions", conditions)
}

fn waits_for(what: &str) -> (&'static str, Value) {
    ("/status/rollout/waitingFor", json!(what))
}

fn annotated(annotation: &str, value: &str) -> (&'static str, Value) {
    ("/metadata/annotations", json!({ annotation: value }))
}

fn conditions(all: &[(&str, &str, &str)]) -> (&'static str, Value) {
    let all: Vec<Value> =
        all.iter().map(|(type_, status, reason)| condition(type_, status, reason, "why")).collect();
    ("/status/conditions", json!(all))
}

#[rstest]
#[case::new_spec(&[("/metadata/generation", json!(5))],
    RolloutState::Continues, "The manager has not observed the change of the spec yet.")]
#[case::no_status(&[("/status", Value::Null)],
    RolloutState::Continues, "The manager has not observed the change of the spec yet.")]
#[case::working(&[], RolloutState::Continues,
    "Wave 1 of 3 (running): 1 of 1 nodes are settled, 1 have started. 1 of 5 nodes are done")]
#[case::without_waves(&[("/status/rollout", json!({"number": 3, "base": 5}))],
    RolloutState::Continues, "1 of 5 nodes are done")]
#[case::settling(&[waits_for("Settling"), ("/status/rollout/wave", json!(2)), ("/status/rollout/started", json!(3))],
    RolloutState::Continues,
    "Wave 2 of 3 (settling): 1 of 3 nodes are settled, 3 have started. 1 of 5 nodes are done")]
#[case::complete(&[conditions(&[("Ready", "True", "AllNodesDone")])], RolloutState::Complete, "why")]
#[case::complete_before(&[conditions(&[("Ready", "True", "CompletedBefore"), ("Complete", "False", "NodesPending")])],
    RolloutState::Complete, "why")]
#[case::complete_while_paused(
    &[conditions(&[("Ready", "True", "AllNodesDone"), ("Paused", "True", "MaxFailedNodesExceeded")])],
    RolloutState::Complete, "why")]
#[case::failed(&[conditions(&[("Ready", "False", "NodesFailed"), ("Failed", "True", "NodesFailed")])],
    RolloutState::Failed, "daemonjob/a failed (NodesFailed): why")]
#[case::failed_and_paused(&[conditions(&[("Ready", "False", "NodesFailed"), ("Failed", "True", "NodesFailed"),
    ("Paused", "True", "MaxFailedNodesExceeded")])],
    RolloutState::Failed, "daemonjob/a failed (NodesFailed): why")]
#[case::ending(&[conditions(&[("Ready", "False", "DeadlineExceeded"), ("Stalled", "True", "DeadlineExceeded")])],
    RolloutState::Failed, "daemonjob/a failed (DeadlineExceeded): why")]
#[case::invalid_template(&[held("PodsRefused", "TemplateInvalid")],
    RolloutState::Failed, "daemonjob/a failed in wave 1 of 3 (TemplateInvalid): why")]
#[case::invalid_schedule(&[held("ScheduleInvalid", "ScheduleInvalid")],
    RolloutState::Failed, "daemonjob/a failed in wave 1 of 3 (ScheduleInvalid): why")]
#[case::before_the_first_due_time(&[conditions(&[("Ready", "True", "WaitsForDueTime")])],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (WaitsForDueTime): why")]
#[case::runs_at_a_due_time(&[conditions(&[("Ready", "True", "RunsAtDueTime")])],
    RolloutState::Continues,
    "Wave 1 of 3 (running): 1 of 1 nodes are settled, 1 have started. why")]
#[case::rejected_pod(&[conditions(&[("Ready", "False", "NodesPending"), ("PodsRefused", "True", "FailedCreate")])],
    RolloutState::Continues,
    "Wave 1 of 3 (running): 1 of 1 nodes are settled, 1 have started. why")]
#[case::unmarked(&[waits_for("Nodes"), conditions(&[("Ready", "False", "MarkRefused"),
    ("MarkRefused", "True", "NotAllowed"), ("Stalled", "True", "MarkRefused")])],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (MarkRefused): why")]
#[case::retries_a_mark(&[conditions(&[("Ready", "False", "MarkRefused"), ("MarkRefused", "True", "FailedWrite")])],
    RolloutState::Continues, "Wave 1 of 3 (running): 1 of 1 nodes are settled, 1 have started. why")]
#[case::suspended(&[conditions(&[("Ready", "True", "Suspended"), ("Suspended", "True", "Suspended")])],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (Suspended): why")]
#[case::approval(&[held("Paused", "WaitsForApproval")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (WaitsForApproval): why")]
#[case::approval_without_condition(&[waits_for("Approval")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (WaitsForApproval): 1 of 5 nodes are done")]
#[case::approved(&[held("Paused", "WaitsForApproval"), annotated(APPROVED, "3/1")],
    RolloutState::Continues, "The manager has not observed the approval yet.")]
#[case::approved_with_the_next_wave(&[held("Paused", "WaitsForApproval"), annotated(APPROVED, "3/2")],
    RolloutState::Continues, "The manager has not observed the approval yet.")]
#[case::failed_wave_is_approved(&[held("Paused", "WaveFailed"), annotated(APPROVED, "3/1")],
    RolloutState::Continues, "The manager has not observed the approval yet.")]
#[case::approval_of_the_next_wave_only(&[held("Paused", "WaveFailed"), annotated(APPROVED, "3/2")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (WaveFailed): why")]
#[case::approved_in_another_rollout(&[held("Paused", "WaitsForApproval"), annotated(APPROVED, "2/1")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (WaitsForApproval): why")]
#[case::paused(&[held("Paused", "PausedByAnnotation"), annotated(PAUSED, "incident 7")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (PausedByAnnotation): why")]
#[case::resumed(&[held("Paused", "PausedByAnnotation")],
    RolloutState::Continues, "The manager has not observed the end of the pause yet.")]
#[case::pausing(&[annotated(PAUSED, "incident 7")],
    RolloutState::Continues, "The manager has not observed the pause yet.")]
#[case::newer_reason(&[held("Paused", "Newer"), waits_for("Newer")],
    RolloutState::Held, "daemonjob/a is held in wave 1 of 3 (Newer): why")]
fn reads_the_progress(#[case] changes: &[(&str, Value)], #[case] state: RolloutState, #[case] message: &str) {
    let status = progress(&subject(changes));
    assert_eq!((status.state, &*status.message), (state, message));
}

#[rstest]
#[case::approval(held("Paused", "WaitsForApproval"), &["To continue, run: quintet rollout approve daemonjob/a -n ns"])]
#[case::wave(held("Paused", "WaveFailed"), &[
    "n1: BackoffLimitExceeded: 1 failure",
    "To retry the failed nodes, run: quintet rollout retry daemonjob/a -n ns",
    "To continue without them, run: quintet rollout approve daemonjob/a -n ns --wave=1",
])]
#[case::failure_policy(held("Paused", "MaxFailedNodesExceeded"), &[
    "n1: BackoffLimitExceeded: 1 failure",
    "To retry the failed nodes, run: quintet rollout retry daemonjob/a -n ns",
])]
#[case::spec(held("Paused", "Paused"), &[
    "To continue, run: kubectl patch daemonjob a -n ns --type=merge -p '{\"spec\":{\"paused\":false}}'",
])]
#[case::suspend(held("Suspended", "Suspended"), &[
    "To continue, run: kubectl patch daemonjob a -n ns --type=merge -p '{\"spec\":{\"suspend\":false}}'",
])]
#[case::annotation(held("Paused", "PausedByAnnotation"), &["To continue, run: quintet rollout resume daemonjob/a -n ns"])]
#[case::template(held("PodsRefused", "TemplateInvalid"), &["To continue, fix the template."])]
#[case::mark(held("Stalled", "MarkRefused"), &["To continue, allow the keys in the chart, or change onSuccess."])]
#[case::schedule(held("ScheduleInvalid", "ScheduleInvalid"), &["To continue, fix schedule or timeZone."])]
fn names_the_nodes_and_the_way_out(#[case] hold: (&str, Value), #[case] details: &[&str]) {
    let failed = json!([{"node": "n1", "reason": "BackoffLimitExceeded", "message": "1 failure"}]);
    let changes = [hold, ("/status/failedNodes", failed), annotated(PAUSED, "incident 7")];
    assert_eq!(progress(&subject(&changes)).details, details);
}

#[test]
fn lists_few_of_many_failed_nodes() {
    let failed: Vec<Value> =
        (0..20).map(|at| json!({"node": format!("n{at}"), "reason": "NodeLost"})).collect();
    let status = progress(&subject(&[
        held("Paused", "MaxFailedNodesExceeded"),
        ("/status/failedNodes", json!(failed)),
        ("/status/moreFailedNodes", json!(80)),
    ]));
    assert_eq!(status.details.len(), 7);
    assert_eq!(status.details[5], "95 more nodes: quintet explain daemonjob/a -n ns lists them");
}

fn steps(changes: &[(&str, Value)]) -> Vec<(String, u64, u64)> {
    let steps = progress(&subject(changes)).steps;
    steps.into_iter().map(|Step { name, done, size, .. }| (name, done, size)).collect()
}

#[test]
fn each_wave_is_a_step() {
    let waves = |done: [u64; 3]| {
        let step = |(at, size): (usize, u64)| (format!("Wave {}", at + 1), done[at], size);
        [1, 2, 2].into_iter().enumerate().map(step).collect::<Vec<_>>()
    };
    assert_eq!(steps(&[]), waves([1, 0, 0]));
    let second = [("/status/rollout/wave", json!(2)), ("/status/rollout/settled", json!(2))];
    assert_eq!(steps(&second), waves([1, 1, 0]));
    // The failed node of a wave that has passed is not settled.
    let third = [("/status/rollout/wave", json!(3)), ("/status/rollout/settled", json!(2))];
    assert_eq!(steps(&third), waves([1, 2, 0]));
    assert_eq!(steps(&[conditions(&[("Ready", "True", "AllNodesDone")])]), waves([1, 2, 2]));
}

#[test]
fn steps_follow_the_nodes_of_the_rollout() {
    // Two of five nodes are skipped, so that the second wave has all others.
    let skipped = [("/status/skipped", json!(2))];
    assert_eq!(steps(&skipped), [("Wave 1".to_owned(), 1, 1), ("Wave 2".to_owned(), 0, 2)]);
    let without_waves = [("/status/rollout", json!({"number": 3, "base": 5}))];
    assert_eq!(steps(&without_waves), [("Nodes".to_owned(), 1, 5)]);
    assert!(steps(&[("/metadata/generation", json!(5))]).is_empty());
}

/// The last operation of a change. Asserts that the patch is for this version of the object alone.
fn operation(change: Change) -> Value {
    let tests = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
    ]);
    let Value::Array(mut operations) = change.operations else { panic!("a JSON patch is a list") };
    let last = operations.pop().unwrap();
    assert_eq!(Value::Array(operations), tests);
    last
}

#[test]
fn approves_the_wave_that_waits() {
    let waits = subject(&[held("Paused", "WaitsForApproval"), waits_for("Approval")]);
    let change = approve(&waits, None, false).unwrap();
    assert_eq!(change.message, "daemonjob/a: wave 1 of rollout 3 is approved");
    assert_eq!(
        operation(change),
        json!({"op": "add", "path": "/metadata/annotations", "value": {APPROVED: "3/1"}})
    );
    assert_eq!(approve(&waits, Some(1), false), approve(&waits, None, false));
    // An approval of an earlier rollout is replaced.
    let again = subject(&[held("Paused", "WaitsForApproval"), annotated(APPROVED, "2/1")]);
    assert_eq!(
        operation(approve(&again, None, false).unwrap()),
        json!({"op": "add", "path": "/metadata/annotations/dj.dysproz.io~1approved", "value": "3/1"})
    );
}

#[test]
fn a_failed_wave_needs_an_explicit_approval() {
    let failed = subject(&[held("Paused", "WaveFailed"), ("/spec/rollout/approval", json!("None"))]);
    let refusal = approve(&failed, None, true).unwrap_err();
    assert!(
        refusal.starts_with("wave 1 of daemonjob/a failed: to continue nevertheless, pass --wave=1"),
        "{refusal}"
    );
    assert!(approve(&failed, Some(1), false).is_ok());
}

#[test]
fn an_approval_before_the_wave_failed_is_void() {
    let void = ("/status/rollout/voidApproval", json!("3/1"));
    let failed = subject(&[held("Paused", "WaveFailed"), annotated(APPROVED, "3/1"), void.clone()]);
    assert_eq!(progress(&failed).state, RolloutState::Held);
    let refusal = approve(&failed, Some(1), false).unwrap_err();
    assert!(refusal.starts_with("wave 1 of daemonjob/a failed after its approval: "), "{refusal}");
    let removed = subject(&[held("Paused", "WaveFailed"), void]);
    let refusal = approve(&removed, Some(1), false).unwrap_err();
    assert!(refusal.starts_with("the manager has not observed yet"), "{refusal}");
}

#[rstest]
#[case::working(&[], None,
    "wave 1 of daemonjob/a does not wait for its approval yet (1 of 1 nodes are settled): wait, or pass --ahead")]
#[case::unobserved(&[("/metadata/generation", json!(5))], None,
    "the manager has not observed the last change of daemonjob/a yet: wait, and run the command again")]
#[case::no_waves(&[("/status/rollout", json!({"number": 3}))], None,
    "daemonjob/a has no waves, so nothing waits for an approval")]
#[case::complete(&[conditions(&[("Ready", "True", "AllNodesDone")])], None,
    "the rollout of daemonjob/a is over, so nothing waits for an approval")]
#[case::last(&[], Some(3), "wave 3 needs no approval: the last wave of daemonjob/a is 3")]
#[case::passed(&[("/status/rollout/wave", json!(2))], Some(1),
    "wave 1 of daemonjob/a has passed: the current wave is 2")]
#[case::no_approval(&[("/status/rollout/wave", json!(2))], None,
    "spec.rollout.approval of daemonjob/a does not include wave 2")]
#[case::twice(&[held("Paused", "WaitsForApproval"), annotated(APPROVED, "3/1")], None,
    "wave 1 of daemonjob/a is approved already")]
fn rejects_approvals_without_effect(
    #[case] changes: &[(&str, Value)],
    #[case] wave: Option<u64>,
    #[case] expected: &str,
) {
    assert_eq!(approve(&subject(changes), wave, false), Err(expected.to_owned()));
}

#[test]
fn approves_ahead_on_request() {
    assert!(approve(&subject(&[]), None, true).is_ok());
    let every = [("/spec/rollout/approval", json!("EveryWave"))];
    let change = approve(&subject(&every), Some(2), true).unwrap();
    assert_eq!(change.message, "daemonjob/a: wave 2 of rollout 3 is approved");
}

#[test]
fn pauses_and_resumes_by_an_annotation() {
    let change = pause(&subject(&[]), "incident 7").unwrap();
    assert_eq!(change.message, "daemonjob/a paused");
    let add = json!({"op": "add", "path": "/metadata/annotations", "value": {PAUSED: "incident 7"}});
    assert_eq!(operation(change), add);
    let paused = [annotated(PAUSED, "incident 7")];
    assert_eq!(pause(&subject(&paused), "x"), Err("daemonjob/a is paused already: incident 7".to_owned()));
    let change = resume(&subject(&paused)).unwrap();
    assert_eq!(change.message, "daemonjob/a resumed");
    let remove = json!({"op": "remove", "path": "/metadata/annotations/dj.dysproz.io~1paused"});
    assert_eq!(operation(change), remove);
    assert_eq!(resume(&subject(&[])), Err("daemonjob/a is not paused".to_owned()));
}

#[test]
fn a_pause_in_the_spec_stays() {
    let in_spec = ("/spec/paused", json!(true));
    let expected = "daemonjob/a is paused by spec.paused: set it to false in the manifest";
    assert_eq!(resume(&subject(std::slice::from_ref(&in_spec))), Err(expected.to_owned()));
    let both = subject(&[in_spec, annotated(PAUSED, "incident 7")]);
    assert_eq!(resume(&both).unwrap().message, "daemonjob/a resumed, but spec.paused is true");
}

#[test]
fn a_retry_needs_a_new_token() {
    let change = retry(&subject(&[]), "again").unwrap();
    assert!(change.message.starts_with("daemonjob/a retries its failed nodes with spec.retryToken again\n"));
    assert_eq!(operation(change), json!({"op": "add", "path": "/spec/retryToken", "value": "again"}));
    for path in ["/spec/retryToken", "/status/rollout/retryToken"] {
        let expected = "the retryToken of daemonjob/a is \"again\" already: pass another --token";
        assert_eq!(retry(&subject(&[(path, json!("again"))]), "again"), Err(expected.to_owned()));
    }
}
