//! The problems that the status of a DaemonJob shows, for the metric that names objects.
//!
//! While a user suspends or pauses a DaemonJob, its nodes and due times wait for this user. So pending nodes, and a due
//! time that began no run, are not a problem then.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use quintet_runtime::model::clock::is_recent;
use quintet_runtime::model::conditions::{find_true, is_true};
use quintet_runtime::model::problem::{Problem, ProblemState, or_stalled};

use crate::api::{DaemonJob, DaemonJobStatus};

/// How long a due time without a run is a problem, unless the next due time comes first.
const REPORTED: SignedDuration = SignedDuration::from_hours(24);
/// How late the manager may process a due time.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// The reasons for which failed or unhealthy nodes stop a rollout.
const STOPS: [&str; 3] = ["FleetUnhealthy", "MaxFailedNodesExceeded", "WaveFailed"];

/// The problems of a DaemonJob.
pub fn problems(job: &DaemonJob, now: Timestamp) -> Vec<Problem> {
    let Some(status) = &job.status else { return Vec::new() };
    let mut problems = Vec::new();
    if let Some(suspended) = find_true(&status.conditions, "Suspended") {
        problems.push(Problem::held("Suspended", since(suspended)));
    } else {
        problems.extend(failed_nodes(status));
        problems.extend(stop(status));
        problems.extend(pending_nodes(status));
        problems.extend(pause(status));
    }
    for type_ in ["MarkRefused", "ScheduleInvalid"] {
        let condition = find_true(&status.conditions, type_);
        problems.extend(condition.map(|condition| Problem::failing(type_, since(condition))));
    }
    let is_held = problems.iter().any(|problem| problem.state >= ProblemState::Paused);
    // A due time does not explain why the DaemonJob is stalled.
    let mut problems = or_stalled(problems, &status.conditions);
    problems.extend(late_due_time(status, now));
    problems.extend(due_time_without_run(status, now).filter(|_| !is_held));
    problems
}

fn since(condition: &Condition) -> Timestamp {
    condition.last_transition_time.0
}

/// When the run began. The status has no time for each of its nodes.
fn start(status: &DaemonJobStatus) -> Timestamp {
    status.start_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |start| start.0)
}

/// Failed nodes, unless the run is complete although they failed. The problem continues when the run ends.
fn failed_nodes(status: &DaemonJobStatus) -> Option<Problem> {
    let has_failed = status.failed.is_some_and(|failed| failed > 0);
    let is_complete = is_true(&status.conditions, "Complete");
    (has_failed && !is_complete).then(|| Problem::failing("NodesFailed", start(status)))
}

/// A rollout that failed or unhealthy nodes have stopped.
fn stop(status: &DaemonJobStatus) -> Option<Problem> {
    let conditions = ["Paused", "Failed"].map(|type_| find_true(&status.conditions, type_));
    let stopped = conditions.into_iter().flatten().find_map(|condition| {
        let reason = STOPS.into_iter().find(|reason| *reason == condition.reason)?;
        Some(Problem::failing(reason, since(condition)))
    });
    stopped.or_else(|| {
        // A user may pause a rollout whose wave has failed.
        let waiting_for = status.rollout.as_ref()?.waiting_for.as_deref()?;
        (waiting_for == "WaveFailed").then(|| Problem::failing("WaveFailed", start(status)))
    })
}

/// Pending nodes of a run that nothing holds. During a hold, the condition Complete has the reason of the hold.
fn pending_nodes(status: &DaemonJobStatus) -> Option<Problem> {
    let runs =
        |one: &&Condition| one.type_ == "Complete" && one.status == "False" && one.reason == "NodesPending";
    let running = status.conditions.iter().find(runs)?;
    let is_pending = status.pending.is_some_and(|pending| pending > 0);
    is_pending.then(|| Problem::waiting("NodesPending", since(running).max(start(status))))
}

/// A rollout that waits for an approval, or that a user has paused.
fn pause(status: &DaemonJobStatus) -> Option<Problem> {
    let paused = find_true(&status.conditions, "Paused")?;
    match &*paused.reason {
        "WaitsForApproval" => Some(Problem::waiting("WaitsForApproval", since(paused))),
        "Paused" => Some(Problem::held("Paused", since(paused))),
        "PausedByAnnotation" => Some(Problem::paused("PausedByAnnotation", since(paused))),
        _ => None,
    }
}

/// A due time that has passed, and that no manager has processed.
fn late_due_time(status: &DaemonJobStatus, now: Timestamp) -> Option<Problem> {
    let due = status.schedule.as_ref()?.next_due_time.as_ref()?.0;
    (now.duration_since(due) > LATE).then(|| Problem::failing("DueTimeLate", due))
}

/// The last due time, if no run began at it.
fn due_time_without_run(status: &DaemonJobStatus, now: Timestamp) -> Option<Problem> {
    let last = status.history.first()?;
    let reason = match last.result.as_deref()? {
        "Held" => "DueTimeHeld",
        "Missed" => "DueTimeMissed",
        _ => return None,
    };
    is_recent(last.due_time.0, REPORTED, now).then(|| Problem::failing(reason, last.due_time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// The minute at which the conditions of [`status`] changed.
    const CHANGED: &str = "2026-01-01T02:00:00Z";

    /// A status with the conditions `TYPE=STATUS:REASON`, in a run that began at 01:00.
    fn status(conditions: &[&str], more: &Value) -> Value {
        let condition = |text: &&str| {
            let (type_, rest) = text.split_once('=').unwrap();
            let (status, reason) = rest.split_once(':').unwrap();
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": CHANGED})
        };
        let mut status = json!({"startTime": "2026-01-01T01:00:00Z",
            "conditions": conditions.iter().map(condition).collect::<Vec<_>>()});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        status
    }

    /// The problems at 03:00, as `STATE REASON`.
    fn found(status: &Value) -> Vec<String> {
        let job: DaemonJob = serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1",
            "kind": "DaemonJob", "metadata": {"name": "d"}, "spec": {"template": {}}, "status": status}))
        .unwrap();
        let problems = problems(&job, "2026-01-01T03:00:00Z".parse().unwrap());
        problems.iter().map(|one| format!("{} {}", one.state.word(), one.reason)).collect()
    }

    #[rstest]
    #[case::runs(&["Complete=False:NodesPending"], json!({"pending": 2}), &["waiting NodesPending"])]
    #[case::all_run(&["Complete=False:NodesPending"], json!({"pending": 0, "active": 2}), &[])]
    #[case::settles(&["Complete=False:Settling"], json!({"pending": 2}), &[])]
    #[case::suspended(&["Complete=False:Suspended", "Suspended=True:Suspended"],
        json!({"pending": 2, "failed": 1}), &["held Suspended"])]
    #[case::suspended_in_a_failed_wave(&["Complete=False:Suspended", "Suspended=True:Suspended"],
        json!({"rollout": {"waitingFor": "WaveFailed"}}), &["held Suspended"])]
    #[case::paused(&["Complete=False:Paused", "Paused=True:Paused"], json!({"pending": 2}), &["held Paused"])]
    #[case::paused_by_annotation(&["Complete=False:PausedByAnnotation", "Paused=True:PausedByAnnotation"],
        json!({"pending": 2}), &["paused PausedByAnnotation"])]
    #[case::paused_in_a_failed_wave(&["Complete=False:PausedByAnnotation", "Paused=True:PausedByAnnotation"],
        json!({"pending": 2, "rollout": {"waitingFor": "WaveFailed"}}),
        &["failing WaveFailed", "paused PausedByAnnotation"])]
    #[case::approval(&["Complete=False:WaitsForApproval", "Paused=True:WaitsForApproval"],
        json!({"pending": 2}), &["waiting WaitsForApproval"])]
    #[case::first_due_time(&["Complete=False:WaitsForDueTime"], json!({"pending": 2}), &[])]
    #[case::fail_fast(
        &["Complete=False:MaxFailedNodesExceeded", "Failed=True:MaxFailedNodesExceeded",
            "Stalled=True:MaxFailedNodesExceeded"],
        json!({"pending": 2, "failed": 1}), &["failing NodesFailed", "failing MaxFailedNodesExceeded"])]
    #[case::failed_nodes_pause(
        &["Complete=False:MaxFailedNodesExceeded", "Paused=True:MaxFailedNodesExceeded"],
        json!({"pending": 2, "failed": 1}), &["failing NodesFailed", "failing MaxFailedNodesExceeded"])]
    #[case::fleet(&["Complete=False:FleetUnhealthy", "Paused=True:FleetUnhealthy"],
        json!({"pending": 2}), &["failing FleetUnhealthy"])]
    #[case::deadline(
        &["Complete=False:DeadlineExceeded", "Failed=True:DeadlineExceeded", "Stalled=True:DeadlineExceeded"],
        json!({"pending": 2}), &["failing Stalled"])]
    #[case::template(&["Complete=False:TemplateInvalid", "Stalled=True:TemplateInvalid"],
        json!({"pending": 2}), &["failing Stalled"])]
    #[case::failed(&["Complete=False:NodesFailed", "Failed=True:NodesFailed", "Stalled=True:NodesFailed"],
        json!({"failed": 1}), &["failing NodesFailed"])]
    #[case::tolerated(&["Complete=True:FailuresTolerated"], json!({"failed": 1}), &[])]
    #[case::fails_while_it_runs(&["Complete=False:NodesPending"], json!({"failed": 1, "pending": 3}),
        &["failing NodesFailed", "waiting NodesPending"])]
    #[case::marks(&["Complete=False:MarkRefused", "MarkRefused=True:NotAllowed", "Stalled=True:MarkRefused"],
        json!({}), &["failing MarkRefused"])]
    #[case::schedule(
        &["Complete=False:ScheduleInvalid", "ScheduleInvalid=True:ScheduleInvalid",
            "Stalled=True:ScheduleInvalid"],
        json!({"pending": 2}), &["failing ScheduleInvalid"])]
    #[case::complete(&["Complete=True:AllNodesDone"], json!({"succeeded": 3}), &[])]
    #[case::no_status(&[], json!({}), &[])]
    fn finds_the_problems_of_each_state(
        #[case] conditions: &[&str],
        #[case] more: Value,
        #[case] expected: &[&str],
    ) {
        assert_eq!(found(&status(conditions, &more)), expected);
    }

    /// The due times in the history, newest first, and their results.
    #[rstest]
    #[case::held(&[("03:00", "Held")], &["failing DueTimeHeld"])]
    #[case::missed(&[("01:00", "Missed"), ("00:00", "Complete")], &["failing DueTimeMissed"])]
    #[case::ran_since(&[("02:00", "Complete"), ("01:00", "Missed")], &[])]
    #[case::runs_now(&[("02:00", ""), ("01:00", "Held")], &[])]
    fn reports_only_the_last_due_time(#[case] history: &[(&str, &str)], #[case] expected: &[&str]) {
        let run = |(hour, result): &(&str, &str)| {
            let result = Some(result).filter(|result| !result.is_empty());
            json!({"dueTime": format!("2026-01-01T{hour}:00Z"), "result": result})
        };
        let history: Vec<Value> = history.iter().map(run).collect();
        assert_eq!(found(&status(&[], &json!({"history": history}))), expected);
    }

    /// A pause may be the reason why a due time is missed. Hundreds of paused DaemonJobs must not fill the list.
    #[rstest]
    #[case::suspended("Suspended=True:Suspended", &["held Suspended"])]
    #[case::paused("Paused=True:Paused", &["held Paused"])]
    #[case::paused_by_annotation("Paused=True:PausedByAnnotation", &["paused PausedByAnnotation"])]
    #[case::waits("Paused=True:WaitsForApproval", &["waiting WaitsForApproval", "failing DueTimeMissed"])]
    #[case::failed_nodes(
        "Paused=True:MaxFailedNodesExceeded", &["failing MaxFailedNodesExceeded", "failing DueTimeMissed"])]
    fn a_due_time_may_pass_while_a_user_holds_the_daemonjob(
        #[case] condition: &str,
        #[case] expected: &[&str],
    ) {
        let history = json!([{"dueTime": "2026-01-01T02:00:00Z", "result": "Missed"}]);
        assert_eq!(found(&status(&[condition], &json!({"history": history}))), expected);
    }

    #[test]
    fn reports_a_missed_due_time_for_a_day() {
        let missed = |due: &str| {
            let history = json!([{"dueTime": due, "result": "Missed"}]);
            found(&status(&[], &json!({"history": history})))
        };
        assert_eq!(missed("2025-12-31T03:00:01Z"), ["failing DueTimeMissed"], "found when a manager is back");
        assert_eq!(missed("2025-12-31T03:00:00Z"), [""; 0]);
    }

    /// A missed due time is reported for a day. The condition must not be hidden for that long.
    #[test]
    fn a_due_time_does_not_hide_that_the_daemonjob_is_stalled() {
        let stalled = |more: Value| found(&status(&["Stalled=True:TemplateInvalid"], &more));
        let missed = json!([{"dueTime": "2026-01-01T01:00:00Z", "result": "Missed"}]);
        assert_eq!(stalled(json!({"history": missed})), ["failing Stalled", "failing DueTimeMissed"]);
        let late = json!({"schedule": "@", "nextDueTime": "2026-01-01T02:00:00Z"});
        assert_eq!(stalled(json!({"schedule": late})), ["failing Stalled", "failing DueTimeLate"]);
        let next = json!({"schedule": "@", "nextDueTime": "2026-01-01T04:00:00Z"});
        assert_eq!(stalled(json!({"schedule": next})), ["failing Stalled"], "waits for the next due time");
    }

    #[test]
    fn reports_a_due_time_that_is_not_processed() {
        let next = |due: &str| {
            let schedule = json!({"schedule": "@", "nextDueTime": due});
            found(&status(&[], &json!({"schedule": schedule})))
        };
        assert_eq!(next("2026-01-01T02:58:59Z"), ["failing DueTimeLate"]);
        assert_eq!(next("2026-01-01T02:59:00Z"), [""; 0], "the manager may take a minute");
        assert_eq!(next("2026-01-01T04:00:00Z"), [""; 0]);
    }

    #[test]
    fn takes_the_time_from_the_condition_or_the_run() {
        let since = |conditions: &[&str], more: Value| {
            let status = serde_json::from_value(status(conditions, &more)).unwrap();
            let job = DaemonJob { status: Some(status), ..DaemonJob::default() };
            let problem = problems(&job, Timestamp::UNIX_EPOCH)[0];
            assert_eq!(problem.state, ProblemState::Failing);
            problem.since.to_string()
        };
        let start = "2026-01-01T01:00:00Z";
        assert_eq!(since(&[], json!({"failed": 1})), start);
        assert_eq!(since(&["Failed=True:NodesFailed"], json!({"failed": 1})), start, "the same problem");
        assert_eq!(since(&["Stalled=True:TemplateInvalid"], json!({})), CHANGED);
    }
}
