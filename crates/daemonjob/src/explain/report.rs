//! The report on one DaemonJob: a pure function of the objects that the command read.
//!
//! The states come from [`crate::survey`], as for the controller, and the fate of pods from its plan. This
//! module adds words, and rows for the nodes that the survey omits.

use crate::api::DaemonJob;
use crate::assess::assess;
use crate::history::AssessedPod;
use crate::ledger::{Entry, Outcome};
use crate::marks::REFUSED;
use crate::node_state::{Cause, Reason, SelectedNode, State, counted, not_tolerated, occupants};
use crate::observe::World;
use crate::outcome::DeletedFor;
use crate::removal::deletion_reason;
use crate::rollout::Key;
use crate::schedule::{Agenda, PassedOver};
use crate::survey::Survey;
use crate::waves::Waves;
use foldhash::{HashMap, HashSet};
use jiff::Timestamp;
use quintet_runtime::model::conditions::find_true;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object as _;
use serde_json::Value;
use strum::VariantArray as _;

/// The source of the explained spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The cluster.
    Cluster,
    /// A file with a DaemonJob that does not exist yet.
    New,
    /// A file that changes the spec in the cluster.
    Changed,
    /// A file with the same spec as the cluster.
    Unchanged,
}

/// The report on one DaemonJob.
#[derive(Debug)]
pub struct Report {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The source of its spec.
    pub origin: Origin,
    /// The hash of its template.
    pub template_hash: String,
    /// Whether a run would begin now.
    pub begins: bool,
    /// The reason why no pods are created, apart from a lack of nodes.
    pub hold: Option<Reason>,
    /// The selected nodes in the order of the survey, then the others by name.
    pub rows: Vec<Row>,
    /// Further sentences.
    pub notes: Vec<String>,
}

/// The row of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its name.
    pub node: String,
    /// The state of the node.
    pub state: Word,
    /// The reason, as one CamelCase word.
    pub reason: String,
    /// The details of the reason.
    pub message: String,
    /// Whether the node may have a pod.
    pub eligible: bool,
    /// The number of the pod that runs or would be created, or else of the last pod.
    pub number: Option<u64>,
    /// The record of the last pod.
    pub last: Option<Entry>,
    /// The node's pod: the running pod, or else the last pod.
    pub pod: Option<String>,
    /// The termination message of the container that failed last.
    pub termination_message: Option<String>,
    /// Whether the pod that runs there would be deleted.
    pub is_going: bool,
    /// Whether the node waits only for its turn or for a due time, or is done and settles.
    pub is_queued: bool,
}

/// The state of a node in the report, which has the names of the variants. The summary has their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
pub enum Word {
    /// It is done.
    Done,
    /// It would get a pod now.
    WouldRun,
    /// Its pod runs.
    Running,
    /// Its pod exists and has not started.
    Starting,
    /// It gets a pod later, or when something changes.
    Waiting,
    /// It gets no pod in this run.
    Skipped,
    /// It has failed and is not retried.
    Failed,
    /// The template does not select it.
    #[default]
    NotSelected,
}

impl Word {
    /// The word in the report.
    pub fn text(self) -> &'static str {
        self.into()
    }

    /// The word in a sentence.
    fn in_a_sentence(self) -> String {
        if self == Self::WouldRun { "would run now".to_owned() } else { self.text().to_lowercase() }
    }
}

impl Report {
    /// The number of nodes with this word.
    pub fn count(&self, word: Word) -> usize {
        self.rows.iter().filter(|row| row.state == word).count()
    }

    /// The number of nodes that the template selects.
    pub fn selected(&self) -> usize {
        self.rows.len() - self.count(Word::NotSelected)
    }

    /// Whether every selected node is done, runs, would run, or waits only for its turn or for a due time.
    pub fn all_run(&self) -> bool {
        self.rows.iter().all(|row| match row.state {
            Word::Done | Word::WouldRun | Word::NotSelected => true,
            Word::Running | Word::Starting => !row.is_going,
            Word::Waiting | Word::Skipped => row.is_queued,
            Word::Failed => false,
        })
    }

    /// The counts, in one sentence.
    pub fn summary(&self) -> String {
        let words = Word::VARIANTS.iter().filter(|word| **word != Word::NotSelected);
        let counts = words.map(|word| format!("{} {}", self.count(*word), word.in_a_sentence()));
        let nodes = counted(self.selected() as u64, "node");
        format!("{nodes} selected: {}.", counts.collect::<Vec<_>>().join(", "))
    }
}

/// Makes the report.
pub fn report(job: &DaemonJob, world: &World, origin: Origin, now: Timestamp) -> Report {
    let survey = assess(job, world, now);
    let pods = survey.pods().iter();
    let going = pods.clone().filter_map(|one| Some((one, deletion_reason(job, &survey, one, now)?)));
    let view = View {
        job,
        survey: &survey,
        running: occupants(&survey.histories),
        // The pods are sorted by number.
        last: pods.filter_map(|assessed| Some((assessed.target?, assessed))).collect(),
        going: going.map(|(one, reason)| (&*one.pod.meta.uid, reason)).collect(),
        refused: refused(job, &survey, origin),
    };
    let mut rows: Vec<Row> = survey.nodes.iter().map(|selected| view.selected(selected)).collect();
    let selected: HashSet<usize> = survey.nodes.iter().map(|selected| selected.at).collect();
    let others = (0..survey.histories.nodes.len()).filter(|at| !selected.contains(at));
    rows.extend(others.map(|at| view.other(at)));
    let mut report = Report {
        namespace: job.metadata.namespace.clone().unwrap_or_default(),
        name: job.metadata.name.clone().unwrap_or_default(),
        origin,
        template_hash: survey.key.hash.to_string(),
        begins: survey.begins && !job.terminating(),
        hold: survey.hold.clone(),
        rows,
        notes: Vec::new(),
    };
    report.notes = notes(&view, &report);
    report
}

impl Row {
    fn set(&mut self, state: Word, reason: impl Into<String>, message: impl Into<String>) {
        self.state = state;
        self.reason = reason.into();
        self.message = message.into();
    }

    fn set_from(&mut self, state: Word, reason: &Reason) {
        self.set(state, reason.cause.word(), reason.message.to_string());
    }
}

/// The input for every row.
struct View<'a> {
    job: &'a DaemonJob,
    survey: &'a Survey<'a>,
    /// The running pods, by the index of their node.
    running: Vec<Option<&'a AssessedPod<'a>>>,
    /// The last pods, by the index of the node that they count for.
    last: HashMap<usize, &'a AssessedPod<'a>>,
    /// The reasons for the deletion of pods, by UID.
    going: HashMap<&'a str, DeletedFor>,
    /// By name of a node whose pod was rejected: reason and message.
    refused: HashMap<&'a str, (&'a str, &'a str)>,
}

impl View<'_> {
    /// The pod to show for a node.
    fn pod(&self, at: usize) -> Option<&AssessedPod<'_>> {
        self.running[at].or_else(|| self.last.get(&at).copied())
    }

    /// The cells that do not depend on the state.
    fn begin(&self, at: usize) -> Row {
        let (pod, history) = (self.pod(at), &self.survey.histories.nodes[at]);
        let run = pod.filter(|assessed| assessed.pod.is_running()).map(|assessed| assessed.number);
        Row {
            node: history.node.meta.name.to_string(),
            number: run.or(Some(history.number).filter(|number| *number > 0)),
            last: history.latest.as_deref().cloned(),
            is_going: pod.is_some_and(|assessed| self.going.contains_key(&*assessed.pod.meta.uid)),
            pod: pod.map(|assessed| assessed.pod.meta.name.to_string()),
            termination_message: pod.and_then(|assessed| termination_message(assessed.pod)),
            ..Row::default()
        }
    }

    /// The row of a node in the survey.
    fn selected(&self, selected: &SelectedNode<'_>) -> Row {
        let (pod, history) = (self.pod(selected.at), &self.survey.histories.nodes[selected.at]);
        let mut row = Row { eligible: selected.eligible, ..self.begin(selected.at) };
        match &selected.state {
            State::Done => {
                done(&mut row, &self.survey.key.hash);
                if let Some(taint) = history.eligibility.taint() {
                    row.message = format!("{}; {}", row.message, not_tolerated(taint));
                }
            }
            State::Failed(reason) => row.set_from(Word::Failed, reason),
            State::Starting(reason) => row.set_from(Word::Starting, reason),
            State::Skipped(reason) => {
                row.set_from(Word::Skipped, reason);
                row.is_queued = reason.cause == Cause::WaitsForDueTime;
            }
            State::Running => {
                let since = pod.and_then(|assessed| assessed.pod.started);
                row.set(Word::Running, "", since.map(|since| format!("since {since}")).unwrap_or_default());
                if let Some(taint) = history.eligibility.taint() {
                    let message = format!("its pod continues, and {}", not_tolerated(taint));
                    row.set(Word::Running, "Tainted", message);
                }
            }
            State::Waiting(reason) => {
                row.set_from(Word::Waiting, reason);
                row.is_queued = matches!(
                    reason.cause,
                    Cause::WaitingForTurn | Cause::WaitsForWave | Cause::Settling | Cause::WaitsForDueTime
                );
                if reason.cause != Cause::Settling && !pod.is_some_and(|assessed| assessed.pod.is_running()) {
                    row.number = Some(history.number + 1);
                }
            }
            State::Due(run) => {
                row.number = Some(*run);
                match self.refused.get(&*selected.node.meta.name) {
                    Some((reason, message)) => row.set(Word::Waiting, *reason, *message),
                    None => due(&mut row, *run, &self.survey.key),
                }
            }
        }
        if let Some(assessed) = pod
            && let Some(reason) = self.going.get(&*assessed.pod.meta.uid)
        {
            let message = format!("pod {} would be deleted", assessed.pod.meta.name);
            row.set(row.state, reason.word(), message);
        }
        if self.job.terminating() && matches!(row.state, Word::WouldRun | Word::Waiting) {
            row.set(Word::Waiting, "Terminating", "the DaemonJob is being deleted");
            row.is_queued = false;
        }
        row
    }

    /// The row of a node that the survey omits.
    fn other(&self, at: usize) -> Row {
        let (mut row, node) = (self.begin(at), self.survey.histories.nodes[at].node);
        let (reason, message) = if node.meta.deleted.is_some() {
            ("NodeTerminating", "the Node is being deleted".to_owned())
        } else {
            not_selected(self.job, node)
        };
        row.set(Word::NotSelected, reason, message);
        if let (true, Some(pod)) = (row.is_going, &row.pod) {
            row.message = format!("{}; pod {pod} would be deleted", row.message);
        }
        row
    }
}

/// The termination message of the container that failed. The status and Events omit it, because a user who
/// may read a DaemonJob may not be allowed to read its pods.
fn termination_message(pod: &Pod) -> Option<String> {
    let exit = pod.exits.first().or(pod.crashed.as_deref()).or(pod.last_exit.as_deref())?;
    (!exit.message.is_empty()).then(|| exit.message.to_string())
}

fn done(row: &mut Row, hash: &str) {
    let message = match &row.last {
        Some(last) if last.outcome == Outcome::Succeeded => {
            let other = if *last.hash == *hash { "" } else { ", with another template" };
            format!("pod {} at {}{other}", last.pod, last.ended)
        }
        Some(last) => format!("before pod {}, which was {}", last.pod, last.outcome.word()),
        None => String::new(),
    };
    row.set(Word::Done, "Succeeded", message);
}

/// The reason why a node would run now.
fn due(row: &mut Row, number: u64, key: &Key) {
    let is_of_another = |last: &Entry| last.attempt.as_ref().is_some_and(|attempt| attempt.due != key.due);
    let (reason, message) = match (&row.last, key.due) {
        (None, _) if number > 1 => ("Retry", format!("pod {number}")),
        (None, _) => ("FirstRun", String::new()),
        (Some(last), Some(due)) if last.has_succeeded() && is_of_another(last) => {
            ("DueTime", format!("pod {number}, for the due time {due}"))
        }
        (Some(last), _) if *last.hash != *key.hash => {
            ("TemplateChanged", format!("pod {number}; pod {} had template {}", last.pod, last.hash))
        }
        (Some(last), _) if last.has_succeeded() => (
            "NodeChanged",
            format!("pod {number}; the node was rebooted or reinstalled since pod {}", last.pod),
        ),
        (Some(last), _) => {
            let failures = match last.failures {
                0 => String::new(),
                failures => format!(", after {}", counted(u64::from(failures), "failure")),
            };
            ("Retry", format!("pod {number}; pod {} was {}{failures}", last.pod, last.outcome.word()))
        }
    };
    row.set(Word::WouldRun, reason, message);
}

/// The part of the template that does not select a node.
fn not_selected(job: &DaemonJob, node: &Node) -> (&'static str, String) {
    let spec = job.spec.template.spec();
    if let Some(name) = spec.get("nodeName").and_then(Value::as_str)
        && name != &*node.meta.name
        && !name.is_empty()
    {
        return ("NodeName", format!("nodeName is {name}"));
    }
    let selector = spec.get("nodeSelector").and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        let required = value.as_str().unwrap_or_default();
        let message = match node.meta.labels.get(key) {
            Some(label) if label == required => continue,
            Some(label) => format!("nodeSelector requires {key}={required}, the node has {key}={label}"),
            None => format!("nodeSelector requires {key}={required}, the node has no label {key}"),
        };
        return ("NodeSelector", message);
    }
    ("NodeAffinity", "the required node affinity does not match".to_owned())
}

/// By name of a node whose pod the API server rejected, from the last status: reason and message.
fn refused<'a>(
    job: &'a DaemonJob,
    survey: &Survey<'_>,
    origin: Origin,
) -> HashMap<&'a str, (&'a str, &'a str)> {
    let status = job.status.as_ref().filter(|status| {
        origin != Origin::Changed && status.template_hash.as_deref() == Some(&*survey.key.hash)
    });
    let pending = status.iter().flat_map(|status| &status.pending_nodes);
    pending
        .filter(|node| matches!(&*node.reason, "FailedCreate" | "NameTaken"))
        .map(|node| (&*node.node, (&*node.reason, &*node.message)))
        .collect()
}

/// The current wave, unless all nodes may start.
fn wave_note(waves: &Waves) -> Option<String> {
    let (number, size) = waves.open()?;
    let (started, settled) = (waves.progress.started(), waves.progress.settled);
    let nodes = counted(size as u64, "node");
    Some(format!("Wave {number} allows {nodes} to start: {started} started, {settled} done and settled."))
}

/// The changes of onSuccess, and the number of done nodes without them.
fn mark_notes(job: &DaemonJob, survey: &Survey<'_>) -> Vec<String> {
    let (Some(spec), Some(marks)) = (&job.spec.on_success, &survey.marks) else { return Vec::new() };
    let labels = spec.labels().map(|(key, value)| format!("sets label {key}={value}"));
    let removed = spec.taints().map(|taint| {
        let effect: &str = taint.effect.into();
        format!("removes taint {}:{effect}", taint.key)
    });
    let changes: Vec<String> = labels.chain(removed).collect();
    let mut notes =
        vec![format!("After each success, the manager changes the Node: {}.", changes.join(", "))];
    if marks.missing > 0 {
        notes.push(format!("Done nodes without the changes of their last success: {}.", marks.missing));
    }
    notes
}

/// The due time that waits for the end of a pause, the last one if it began no run, and the next one.
fn schedule_notes(job: &DaemonJob, agenda: &Agenda) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(due) = agenda.waiting() {
        let until = agenda.late_at.map_or_else(String::new, |late_at| format!(" before {late_at}"));
        notes.push(format!("The due time {due} has come. Its run begins if the pause ends{until}."));
    }
    let before = job.status.as_ref().map_or(&[][..], |status| &status.history);
    let history = agenda.history(before, None);
    if let Some(last) = history.first().filter(|_| agenda.begins.is_none())
        && let Some(why) = PassedOver::of(last)
    {
        let (due, why) = (last.due_time.0, <&'static str>::from(why));
        notes.push(format!("No run began at the last due time, {due} ({why})."));
    }
    if let Ok(next) = &agenda.next {
        notes.push(format!("The next due time is {next}."));
    }
    notes
}

fn notes(view: &View<'_>, report: &Report) -> Vec<String> {
    let View { job, survey, .. } = view;
    let mut notes = Vec::new();
    let (name, namespace) = (&report.name, &report.namespace);
    let subject = format!("DaemonJob {name} in namespace {namespace}");
    match report.origin {
        Origin::New => notes.push(format!(
            "DaemonJob {name} does not exist in namespace {namespace}: applying the file creates it."
        )),
        Origin::Changed => notes.push(format!("Applying the file changes {subject}.")),
        Origin::Unchanged => notes.push(format!("{subject} already has the spec of the file.")),
        Origin::Cluster => {}
    }
    if job.terminating() {
        notes.push("The DaemonJob is being deleted, and no pod starts.".to_owned());
        return notes;
    }
    if let Some(hold) = &survey.hold {
        notes.push(format!("The manager creates no pods: {} ({}).", hold.message, hold.cause.word()));
    } else if survey.begins && report.origin != Origin::New {
        notes.push("A new run begins.".to_owned());
    }
    notes.extend(survey.waves.as_ref().and_then(wave_note));
    notes.extend(mark_notes(job, survey));
    notes.extend(survey.agenda.iter().flat_map(|agenda| schedule_notes(job, agenda)));
    if report.selected() == 0 {
        notes.push("The template selects no node.".to_owned());
    }
    let is_homeless = |assessed: &&AssessedPod<'_>| assessed.target.is_none() && assessed.is_counted();
    let homeless: Vec<_> = survey.pods().iter().filter(is_homeless).collect();
    if let Some(first) = homeless.first() {
        let (count, first) = (homeless.len(), &first.pod.meta.name);
        notes.push(format!("Pods of deleted nodes: {count}, for example {first}; they would be deleted."));
    }
    let Some(status) = job.status.as_ref().filter(|_| report.origin != Origin::New) else { return notes };
    if report.origin != Origin::Changed {
        for type_ in ["PodsRefused", "LedgerRefused", REFUSED, "Paused"] {
            let found = find_true(&status.conditions, type_);
            if let Some(condition) = found.filter(|_| type_ != "Paused" || survey.hold.is_none()) {
                let message = condition.message.trim_end_matches('.');
                notes.push(format!("The condition {type_} is True: {message}."));
            }
        }
        let (seen, now) = (status.observed_generation.unwrap_or_default(), job.generation());
        if seen != now {
            notes.push(format!(
                "The manager has not reconciled the last change: the status has generation {seen}, the spec {now}."
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
