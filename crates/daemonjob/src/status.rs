//! The status of a survey: conditions, lists, and Events for their changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions::{self, READY, Wanted, number};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::{Event, EventType};
use quintet_runtime::model::refusals::{Refusal, RefusalReason};

use crate::api::{DaemonJob, DaemonJobStatus, NodeReason, Rollout, ScheduledRun};
use crate::deadline::worked;
use crate::failure_policy::{max_failed, tolerates};
use crate::marks::{MARKING, Marks, REFUSED};
use crate::node_state::{Cause, Reason, SelectedNode, State, counted, refusal};
use crate::observe::World;
use crate::record::Record;
use crate::rollout::Ending;
use crate::schedule::PassedOver;
use crate::survey::Survey;
use crate::waves::{WaitingFor, WaveState, Waves};

/// The length of a list of nodes. A further field has the number of the other nodes.
const LISTED: usize = 20;

/// The reason of Ready while nodes run at a due time.
pub const RUNS_AT_DUE_TIME: &str = "RunsAtDueTime";

/// The complete status.
pub(crate) fn status(job: &DaemonJob, world: &World, record: &Record<'_>, now: Timestamp) -> DaemonJobStatus {
    let survey = record.survey;
    let before = job.status.clone().unwrap_or_default();
    let wanted = conditions(job, world, record);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    // The shard numbers in a status without a rollout have an older format.
    let mut ledger_shards = if before.rollout.is_some() { before.ledger_shards.clone() } else { Vec::new() };
    ledger_shards.extend(world.shards().filter_map(|shard| shard.number(name)));
    ledger_shards.sort_unstable();
    ledger_shards.dedup();
    let (mut failed, mut pending, mut skipped) = (List::default(), List::default(), List::default());
    for selected in &survey.nodes {
        match &selected.state {
            State::Failed(reason) => {
                failed.add(selected, reason);
                // The node keeps its slot until it is Ready or lost.
                if selected.holds_slot.is_some() {
                    pending.add(selected, &Reason { cause: Cause::NotReadySinceAttempt, ..reason.clone() });
                }
            }
            State::Starting(reason) | State::Waiting(reason) => pending.add(selected, reason),
            State::Due(_) => pending.add(selected, &Reason::new(Cause::Creating, "")),
            State::Skipped(reason) => skipped.add(selected, reason),
            State::Done | State::Running => {}
        }
    }
    let terminating =
        survey.pods().iter().filter(|assessed| assessed.occupies() && assessed.is_deleted).count();
    let is_suspended = job.spec.suspend == Some(true);
    // With a schedule, no run has begun before the first due time.
    let start = (!is_suspended && survey.start < Timestamp::MAX).then_some(Time(survey.start));
    let is_true = |type_| wanted.iter().any(|wanted| wanted.type_ == type_ && wanted.status == Some(true));
    let (complete, has_ended) = (is_true("Complete"), is_true("Finished") || survey.ending.is_some());
    let is_over = survey.is_over || is_true("Finished") && survey.ending.is_none();
    let (worked_seconds, working_since) = worked(&before, survey, is_suspended, now);
    let mut status = DaemonJobStatus {
        observed_generation: job.metadata.generation,
        desired: number(survey.desired()),
        active: number(survey.pods().iter().filter(|assessed| assessed.is_counted()).count()),
        succeeded: number(survey.count(|state| *state == State::Done)),
        failed: number(failed.count),
        pending: number(pending.count),
        skipped: number(skipped.count),
        terminating: number(terminating),
        completion_time: match (&before.completion_time, complete) {
            (Some(at), true) if before.start_time == start => Some(at.clone()),
            (_, true) => Some(Time(whole_seconds(now))),
            (_, false) => None,
        },
        start_time: start,
        template_hash: Some(survey.key.hash.to_string()),
        rollout: Some(rollout(job, survey, (has_ended, is_over), now)),
        run: i64::try_from(survey.key.run).ok(),
        schedule: survey.agenda.as_ref().map(|agenda| agenda.status(job)),
        history: Vec::new(),
        worked_seconds,
        working_since,
        ledger_shards,
        more_failed_nodes: failed.more(),
        failed_nodes: failed.nodes,
        more_pending_nodes: pending.more(),
        pending_nodes: pending.nodes,
        more_skipped_nodes: skipped.more(),
        skipped_nodes: skipped.nodes,
        conditions: conditions::next(
            // The conditions of an earlier run do not set transition times of this run.
            if survey.begins { &[] } else { &before.conditions },
            wanted,
            job.metadata.generation,
            now,
        ),
    };
    if let Some(agenda) = &survey.agenda {
        status.history = agenda.history(&before.history, scheduled_run(&status, survey, now));
    }
    if let Some(since) = status.working_since.clone().filter(|_| status != before) {
        // A successor counts only the time that a status has.
        let now = whole_seconds(now);
        let more = now.duration_since(since.0).as_secs().max(0);
        status.worked_seconds = status.worked_seconds.map(|worked| worked.saturating_add(more));
        status.working_since = Some(Time(since.0.max(now)));
    }
    status
}

/// The run of the current due time, for the history.
fn scheduled_run(status: &DaemonJobStatus, survey: &Survey<'_>, now: Timestamp) -> Option<ScheduledRun> {
    let start_time = Some(status.start_time.clone()?);
    let result = ["Complete", "Failed"];
    let result = result.into_iter().find(|type_| conditions::is_true(&status.conditions, type_));
    Some(ScheduledRun {
        due_time: Time(survey.key.due?),
        start_time,
        end_time: result.map(|_| status.completion_time.clone().unwrap_or(Time(whole_seconds(now)))),
        succeeded: status.succeeded,
        failed: status.failed,
        result: result.map(str::to_owned),
    })
}

/// `has_ended`: whether the run has ended. `is_over`: whether every node is or was finished.
fn rollout(
    job: &DaemonJob,
    survey: &Survey<'_>,
    (has_ended, is_over): (bool, bool),
    now: Timestamp,
) -> Rollout {
    let before = job.status.as_ref().and_then(|before| before.rollout.as_ref());
    let token = before.and_then(|before| before.retry_token.clone());
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let braked_since = survey.braked_since.unwrap_or(whole_seconds(now));
    let waves = survey.waves.as_ref();
    let waiting_for = waiting_for(survey).filter(|_| !has_ended);
    Rollout {
        number: i64::try_from(survey.key.rollout).unwrap_or(i64::MAX),
        // A token remains in effect after its removal.
        retry_token: job.spec.retry_token.clone().or(token),
        due_time: survey.key.due.map(Time),
        over: (survey.key.due.is_some() && is_over).then_some(true),
        base: count(survey.base),
        unhealthy_from_start: count(survey.unhealthy_from_start),
        braked_since: survey.failures.brakes().then_some(Time(braked_since)),
        ended: survey.ending.map(|ending| ending.reason().to_owned()),
        ended_by: survey.ending.map(|ending| ending.limits(job)),
        wave_sizes: waves.map(|waves| waves.sizes().map(count).collect()).unwrap_or_default(),
        wave: waves.map(|waves| count(waves.current())),
        started: waves.map(|waves| count(waves.progress.started())),
        settled: waves.map(|waves| count(waves.progress.settled)),
        waiting_for: waiting_for.map(|what| what.word().to_owned()),
        passed_size: waves.and_then(Waves::passed_size).cloned(),
        void_approval: waves.and_then(|waves| waves.void_approval.clone()),
    }
}

/// The reason why the current wave is not over. None without rollout rules.
fn waiting_for(survey: &Survey<'_>) -> Option<WaitingFor> {
    let waves = survey.waves.as_ref()?;
    if waves.state == WaveState::Failed {
        return Some(WaitingFor::WaveFailed);
    }
    let is_due = |one: &SelectedNode<'_>| matches!(one.state, State::Due(_));
    let runs = waves.progress.working > 0 || survey.nodes.iter().any(is_due);
    Some(match survey.hold.as_ref().map(|hold| hold.cause) {
        Some(Cause::Paused | Cause::PausedByAnnotation | Cause::Suspended) => WaitingFor::Paused,
        Some(Cause::WaitsForApproval) => WaitingFor::Approval,
        Some(Cause::WaitsForDueTime) => return None,
        Some(_) => WaitingFor::Repair,
        None if !runs && waves.progress.settling > 0 => WaitingFor::Settling,
        None => WaitingFor::Nodes,
    })
}

/// Nodes with their reasons: the first [`LISTED`], and the number of all.
#[derive(Default)]
struct List {
    nodes: Vec<NodeReason>,
    count: usize,
}

impl List {
    fn add(&mut self, selected: &SelectedNode<'_>, reason: &Reason) {
        self.count += 1;
        if self.count <= LISTED {
            let (message, reason) = (reason.message.to_string(), reason.cause.word().to_owned());
            self.nodes.push(NodeReason { node: selected.node.meta.name.to_string(), reason, message });
        }
    }

    /// The number of nodes that are not listed.
    fn more(&self) -> Option<i32> {
        number(self.count.saturating_sub(LISTED)).filter(|more| *more > 0)
    }
}

/// The result of the run so far, for the conditions.
struct RunResult {
    complete: bool,
    failed: bool,
    /// Whether the manager creates no pods until a user acts.
    stalled: bool,
    reason: &'static str,
    message: String,
}

fn run_result(job: &DaemonJob, survey: &Survey<'_>) -> RunResult {
    let done = survey.count(|state| *state == State::Done);
    let failed = survey.failed(|_| true);
    let failed_for_good = survey.failed(|cause| !cause.is_provisional());
    // A tainted node that the template does not tolerate is not a part of the run, as for a DaemonSet.
    let skipped = survey.skipped(|cause| cause != Cause::Tainted);
    let desired = survey.desired();
    let hold = survey.hold.as_ref();
    let is_idle = hold.is_some_and(|hold| is_idle(hold.cause));
    let ending = survey.ending.filter(|_| !is_idle);
    let is_over = survey.is_finished() && !is_idle && ending.is_none();
    let is_tolerated = failed > 0 && tolerates(job, failed, survey.base);
    // A failed node that has been not Ready since its attempt keeps its slot until it is Ready or lost.
    let is_suspect =
        |one: &&SelectedNode<'_>| matches!(one.state, State::Failed(_)) && one.holds_slot.is_some();
    let suspect = survey.nodes.iter().find(is_suspect).filter(|_| is_tolerated);
    let has_failed = failed > 0 && !is_tolerated;
    let unmarked = survey.marks.as_ref().filter(|marks| is_over && !has_failed && marks.missing > 0);
    let is_over = is_over && suspect.is_none() && unmarked.is_none();
    let complete = is_over && !has_failed;
    let so_far = format!("{done} of {desired} nodes are done");
    let next = survey.agenda.as_ref().and_then(|agenda| agenda.next.as_ref().ok());
    let next = next.filter(|_| is_over).map(|next| format!(" The next due time is {next}."));
    let (reason, message) = if complete && is_tolerated {
        let max = max_failed(job, survey.base);
        ("FailuresTolerated", format!("{done} nodes are done, {failed} failed, maxFailedNodes allows {max}."))
    } else if complete && desired == 0 {
        ("NoEligibleNodes", "No node is eligible.".to_owned())
    } else if complete && skipped > 0 {
        ("NodesSkipped", format!("{done} nodes are done, {skipped} are skipped."))
    } else if complete {
        ("AllNodesDone", format!("All {done} eligible nodes are done."))
    } else if ending == Some(Ending::MaxFailedNodesExceeded) {
        // The run stays ended even if failed nodes are deleted or recover.
        let why = survey.failures.hold().map_or_else(
            || "more nodes failed than maxFailedNodes allows; set spec.retryToken to a new value".to_owned(),
            |hold| hold.message.to_string(),
        );
        (Ending::MaxFailedNodesExceeded.reason(), format!("{so_far}; {why}."))
    } else if let Some(ending) = ending {
        (ending.reason(), format!("{so_far}, {failed} have failed."))
    } else if is_over {
        ("NodesFailed", format!("{failed} of {desired} nodes have failed, {done} are done."))
    } else if let Some(hold) = hold {
        (hold.cause.word(), format!("{}; {so_far}.", hold.message))
    } else if let Some(suspect) = suspect {
        ("NodesPending", format!("{so_far}; {} has not been Ready since its pod ran", suspect.node.meta.name))
    } else if let Some(marks) = unmarked {
        unmarked_result(marks, &so_far)
    } else {
        let waits = survey.nodes.iter().find_map(|selected| match &selected.state {
            State::Starting(reason) | State::Waiting(reason)
                if !matches!(reason.cause, Cause::WaitingForTurn | Cause::WaitsForWave) =>
            {
                Some(format!("; {}: {} {}", selected.node.meta.name, reason.cause.word(), reason.message))
            }
            _ => None,
        });
        let settles = waiting_for(survey) == Some(WaitingFor::Settling);
        let reason = if settles { Cause::Settling.word() } else { "NodesPending" };
        (reason, format!("{so_far}{}", waits.unwrap_or_default()))
    };
    let stays_failed = is_over && failed_for_good > 0 && !tolerates(job, failed_for_good, survey.base);
    RunResult {
        complete,
        // A run has ended when its last pod is terminating.
        failed: is_over && !complete || ending.is_some() && !survey.has_counted_pods(),
        // A complete run needs no pods.
        stalled: !complete
            && (ending.is_some()
                || stays_failed
                || hold.is_some_and(|hold| needs_user(hold.cause, survey))
                || hold.is_none() && unmarked.is_some_and(Marks::needs_user)),
        reason,
        message: message + &next.unwrap_or_default(),
    }
}

/// The reason and the message while only marks are missing.
fn unmarked_result(marks: &Marks, so_far: &str) -> (&'static str, String) {
    let so_far = format!("{so_far}, {} of them without the changes of onSuccess", marks.missing);
    match &marks.refusal {
        Some(refusal) => (REFUSED, format!("{so_far}; {}", refusal.message)),
        None => (MARKING, so_far),
    }
}

/// Whether a hold means that there is no result, even if no node is left to run.
fn is_idle(hold: Cause) -> bool {
    matches!(hold, Cause::Suspended | Cause::WaitsForDueTime | Cause::ScheduleInvalid)
}

/// Whether a hold that neither the user nor an administrator set needs one of them to end it.
fn needs_user(hold: Cause, survey: &Survey<'_>) -> bool {
    match hold {
        Cause::DefinitionOutdated | Cause::ScheduleInvalid | Cause::TemplateInvalid => true,
        Cause::MaxFailedNodesExceeded => survey.failures.brakes_for_good(),
        Cause::WaveFailed => survey.waves.as_ref().is_some_and(Waves::fails_for_good),
        _ => false,
    }
}

/// The condition Ready, for tools that wait (kstatus): the DaemonJob matches its spec. It stays True while
/// nodes join or change after the rollout was complete, and while nodes run at a due time.
fn ready(job: &DaemonJob, survey: &Survey<'_>, run_result: &RunResult) -> Wanted {
    let hold = survey.hold.as_ref().map(|hold| hold.cause);
    let is_due = survey.agenda.as_ref().is_some_and(|agenda| agenda.begins.is_some());
    let before = job.status.as_ref().filter(|_| !survey.changes || is_due);
    let ready = before.and_then(|before| conditions::find_true(&before.conditions, READY));
    let was_ready = ready.is_some_and(|ready| ready.reason != Cause::Suspended.word());
    let continues = !run_result.failed && !run_result.stalled && hold.is_none();
    let waits = matches!(hold, Some(Cause::Suspended | Cause::WaitsForDueTime));
    let (is_ready, reason) = if run_result.complete || waits {
        (true, run_result.reason)
    } else if was_ready && continues {
        (true, if survey.agenda.is_some() { RUNS_AT_DUE_TIME } else { "CompletedBefore" })
    } else {
        (false, run_result.reason)
    };
    Wanted { type_: READY, status: Some(is_ready), reason, message: run_result.message.clone() }
}

fn conditions(job: &DaemonJob, world: &World, record: &Record<'_>) -> Vec<Wanted> {
    let survey = record.survey;
    let run_result = run_result(job, survey);
    let ready = ready(job, survey, &run_result);
    let RunResult { complete, failed, stalled, reason, message } = run_result;
    let of_run = |type_, status| Wanted { type_, status: Some(status), reason, message: message.clone() };
    let not_failed =
        Wanted { type_: "Failed", status: Some(false), reason: "NotFailed", message: String::new() };
    let mut wanted = vec![
        ready,
        of_run("Complete", complete),
        if failed { of_run("Failed", true) } else { not_failed },
        of_run("Finished", complete || failed),
    ];
    wanted.extend(stalled.then(|| of_run("Stalled", true)));
    let mut add = |type_, reason, message: String| {
        wanted.push(Wanted { type_, status: Some(true), reason, message });
    };
    let of_hold = survey.hold.as_ref().and_then(|hold| match hold.cause {
        Cause::Suspended => Some(("Suspended", hold)),
        Cause::TemplateInvalid => Some(("PodsRefused", hold)),
        Cause::ScheduleInvalid => Some(("ScheduleInvalid", hold)),
        Cause::NamespaceTerminating | Cause::WaitsForDueTime => None,
        _ => survey.ending.is_none().then_some(("Paused", hold)),
    });
    if let Some((type_, hold)) = of_hold {
        add(type_, hold.cause.word(), hold.message.to_string());
    }
    if let Some(refusal) = refused_pod(job, world, survey) {
        add("PodsRefused", Cause::of_refused_creation(refusal).word(), refusal.message.clone());
    }
    let skipped_for = |cause| survey.skipped(|one| one == cause);
    let (lost, foreign) = (skipped_for(Cause::RecordLost), skipped_for(Cause::LedgerFormat));
    if lost > 0 {
        let how = "set spec.retryToken to a new value to run them again";
        let message = format!("the record of {lost} nodes is lost, so the run skips them; {how}");
        add("LedgerLost", "RecordLost", message);
    } else if foreign > 0 {
        let shards = foreign_shards(world);
        let how = "upgrade Quintet, or delete the ConfigMaps of an older format to run these nodes again";
        let message = format!(
            "the record of {foreign} nodes is in another format, so the run skips them{shards}; {how}"
        );
        add("LedgerLost", "LedgerFormat", message);
    }
    if let Some(refusal) = record.refusal {
        let reason =
            if refusal.reason == RefusalReason::NameTaken { Cause::NameTaken.word() } else { "FailedWrite" };
        add("LedgerRefused", reason, format!("outcomes cannot be recorded: {}", refusal.message));
    }
    if let Some(refusal) = survey.marks.as_ref().and_then(|marks| marks.refusal.as_ref()) {
        add(REFUSED, refusal.reason(), refusal.message.clone());
    }
    if job.spec.selector.is_some() || job.spec.manual_selector.is_some() {
        let message = "selector and manualSelector are accepted without effect: pods belong to their DaemonJob by owner \
                       reference";
        add("SelectorIgnored", "NoEffect", message.to_owned());
    }
    wanted
}

/// The names of the ConfigMaps of another format, for a message.
fn foreign_shards(world: &World) -> String {
    let foreign = world.shards().filter(|shard| !shard.is_known_format());
    let names: Vec<&str> = foreign.map(|shard| &*shard.meta.name).collect();
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// The refusal of a pod that is due. It stays in the status until a creation succeeds.
fn refused_pod<'a>(job: &DaemonJob, world: &'a World, survey: &Survey<'_>) -> Option<&'a Refusal> {
    let wanted = survey.nodes.iter().filter(|selected| match &selected.state {
        State::Due(_) => true,
        State::Waiting(reason) => {
            matches!(reason.cause, Cause::FailedCreate | Cause::NameTaken | Cause::WaitingForTurn)
        }
        _ => false,
    });
    let mut refused = wanted.filter_map(|selected| {
        let number = survey.histories.nodes[selected.at].number + 1;
        refusal(job, world, selected.node, number)
    });
    refused.find(|refusal| refusal.reason != RefusalReason::LabelsMissing)
}

/// Whether the status shows that the run is complete or has failed.
pub fn is_finished(status: &DaemonJobStatus) -> bool {
    conditions::is_true(&status.conditions, "Finished")
}

/// The Events for the difference between two statuses, so that each is recorded once.
pub fn events(job: &DaemonJob, after: &DaemonJobStatus) -> Vec<Event> {
    let nothing = DaemonJobStatus::default();
    let before = job.status.as_ref().unwrap_or(&nothing);
    let mut events = Vec::new();
    for (condition, type_, reason, action) in [
        ("Complete", EventType::Normal, "Completed", "Finish"),
        ("Failed", EventType::Warning, "Failed", "Finish"),
        ("Suspended", EventType::Normal, "Suspended", "Suspend"),
        ("Paused", EventType::Normal, "Paused", "Pause"),
        ("PodsRefused", EventType::Warning, "TemplateInvalid", "Create"),
        ("LedgerLost", EventType::Warning, "LedgerLost", "Skip"),
        ("LedgerRefused", EventType::Warning, "LedgerRefused", "Record"),
        (REFUSED, EventType::Warning, REFUSED, "Mark"),
        ("ScheduleInvalid", EventType::Warning, "ScheduleInvalid", "Schedule"),
    ] {
        let find = |conditions| {
            // The manager retries a rejected pod. An invalid template needs a user.
            let is_news = |one: &&Condition| condition != "PodsRefused" || one.reason == reason;
            conditions::find_true(conditions, condition).filter(is_news)
        };
        if let (Some(current), None) = (find(&after.conditions), find(&before.conditions)) {
            events.push(Event { type_, reason, action, note: current.message.clone() });
        }
    }
    let was_suspended = conditions::is_true(&before.conditions, "Suspended");
    if was_suspended && !conditions::is_true(&after.conditions, "Suspended") {
        let note = "A new run begins.".to_owned();
        events.push(Event { type_: EventType::Normal, reason: "Resumed", action: "Resume", note });
    }
    events.extend(next_wave(before.rollout.as_ref(), after.rollout.as_ref()));
    events.extend(due_times(&before.history, &after.history));
    if after.failed > before.failed.or(Some(0)) {
        let first = after.failed_nodes.iter().find(|node| !before.failed_nodes.contains(node));
        let first = first.map(|node| format!("; {}: {}", node.node, node.message)).unwrap_or_default();
        let count = u64::try_from(after.failed.unwrap_or_default()).unwrap_or_default();
        let note = format!("{} failed{first}", counted(count, "node"));
        events.push(Event { type_: EventType::Warning, reason: "NodeFailed", action: "Run", note });
    }
    events
}

/// The Events about ConfigMaps and labels that the plan restores.
pub fn repairs(world: &World) -> Vec<Event> {
    let mut events = Vec::new();
    let unlabelled = world.unlabelled.pods.len() + world.unlabelled.shards.len();
    if unlabelled > 0 {
        let note = format!(
            "{unlabelled} pods or ConfigMaps lost the label that the manager watches; the manager restored it"
        );
        events.push(Event { type_: EventType::Warning, reason: "LabelsRestored", action: "Label", note });
    }
    if world.deleted_shards.iter().any(|shard| !shard.terminating()) {
        let note =
            "A ConfigMap of the ledger was deleted; the manager recreated it from its cache".to_owned();
        events.push(Event { type_: EventType::Warning, reason: "LedgerRestored", action: "Record", note });
    }
    events
}

/// The Event for a wave after the first one that begins.
fn next_wave(before: Option<&Rollout>, after: Option<&Rollout>) -> Option<Event> {
    let (before, after) = (before?, after?);
    let wave = after.wave.filter(|wave| before.number == after.number && before.wave < Some(*wave))?;
    let size = usize::try_from(wave - 1).ok().and_then(|at| after.wave_sizes.get(at));
    let nodes = size.map_or_else(|| "all nodes".to_owned(), |size| format!("{size} nodes in all"));
    let note = format!("Wave {wave} begins: {nodes} may start.");
    before.wave.map(|_| Event { type_: EventType::Normal, reason: "WaveStarted", action: "Advance", note })
}

/// The Events for due times that begin a run, are held or are missed.
fn due_times(before: &[ScheduledRun], after: &[ScheduledRun]) -> Vec<Event> {
    let is_known = |one: &ScheduledRun| before.iter().any(|known| known.due_time == one.due_time);
    let new = after.iter().filter(|one| !is_known(one));
    // An older due time returns into the list when it is retried.
    let new = new.filter(|one| before.first().is_none_or(|last| one.due_time > last.due_time));
    let event = |one: &ScheduledRun| {
        let due = one.due_time.0;
        let (type_, reason, note) = match PassedOver::of(one) {
            Some(PassedOver::Held) => {
                let note = format!("No run begins at {due}: failed nodes stop the rollout.");
                (EventType::Warning, "DueTimeHeld", note)
            }
            Some(PassedOver::Missed) => {
                let note = format!("No run begins for {due}: startingDeadlineSeconds have passed.");
                (EventType::Warning, "DueTimeMissed", note)
            }
            None => (EventType::Normal, "DueTimeReached", format!("The run of {due} begins.")),
        };
        Event { type_, reason, action: "Schedule", note }
    };
    new.map(event).collect()
}
