//! The report on one DaemonJob: a pure function of the objects that the command read.
//!
//! The states come from [`crate::survey`], as for the controller, and the fate of pods from its plan. This
//! module adds words, and rows for the nodes that the survey omits.

use crate::api::DaemonJob;
use crate::assess::assess;
use crate::eligibility::Placement;
use crate::history::AssessedPod;
use crate::ledger::{Entry, Outcome};
use crate::node_state::{Cause, Reason, SelectedNode, State, not_tolerated, occupants};
use crate::observe::World;
use crate::outcome::DeletedFor;
use crate::removal::deletion_reason;
use crate::survey::Survey;
use foldhash::{HashMap, HashSet};
use jiff::Timestamp;
use quintet_runtime::model::conditions::is_true;
use quintet_runtime::model::core_types::{Node, Pod, Taint};
use serde_json::Value;

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
    /// The selected nodes in the order in which they get their pods, then the others by name.
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
    /// Whether the node waits only for its turn.
    pub is_queued: bool,
}

/// The state of a node in the report, which has the names of the variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Word {
    /// It is done.
    Done,
    /// It has failed and is not retried.
    Failed,
    /// Its pod runs.
    Running,
    /// Its pod exists and has not started.
    Starting,
    /// It gets a pod later, or when something changes.
    Waiting,
    /// It would get a pod now.
    WouldRun,
    /// It gets no pod in this run.
    Skipped,
    /// The template does not select it.
    #[default]
    NotSelected,
}

impl Word {
    /// All words in the order of the summary, with their form in a sentence.
    pub const COUNTED: [(Self, &'static str); 7] = [
        (Self::Done, "done"),
        (Self::WouldRun, "would run now"),
        (Self::Running, "running"),
        (Self::Starting, "starting"),
        (Self::Waiting, "waiting"),
        (Self::Skipped, "skipped"),
        (Self::Failed, "failed"),
    ];

    /// The word in the report.
    pub fn text(self) -> &'static str {
        self.into()
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

    /// Whether every selected node is done, runs, would run, or waits only for its turn.
    pub fn all_run(&self) -> bool {
        self.rows.iter().all(|row| match row.state {
            Word::Done | Word::WouldRun | Word::NotSelected => true,
            Word::Running | Word::Starting => !row.is_going,
            Word::Waiting => row.is_queued,
            Word::Failed | Word::Skipped => false,
        })
    }

    /// The counts, in one sentence.
    pub fn summary(&self) -> String {
        let counts = Word::COUNTED.iter().map(|(word, words)| format!("{} {words}", self.count(*word)));
        let nodes = if self.selected() == 1 { "node" } else { "nodes" };
        format!("{} {nodes} selected: {}.", self.selected(), counts.collect::<Vec<_>>().join(", "))
    }
}

/// Makes the report.
pub fn report(job: &DaemonJob, world: &World, origin: Origin, now: Timestamp) -> Report {
    let survey = assess(job, world, now);
    let view = View {
        job,
        survey: &survey,
        pods: PodsOfNodes::new(&survey),
        going: deleted_pods(job, &survey, now),
        refused: refused(job, &survey, origin),
        placement: Placement::of(job.spec.template.spec()),
    };
    let mut rows: Vec<Row> = survey.nodes.iter().map(|selected| view.selected(selected)).collect();
    let seen: HashSet<&str> = survey.nodes.iter().map(|selected| &*selected.node.meta.uid).collect();
    let mut others: Vec<&Node> =
        world.nodes.iter().map(|node| &**node).filter(|node| !seen.contains(&*node.meta.uid)).collect();
    others.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
    rows.extend(others.into_iter().map(|node| view.other(node)));
    let mut report = Report {
        namespace: job.metadata.namespace.clone().unwrap_or_default(),
        name: job.metadata.name.clone().unwrap_or_default(),
        origin,
        template_hash: survey.key.hash.to_string(),
        begins: survey.begins && !view.is_ended(),
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
    pods: PodsOfNodes<'a>,
    /// The reasons for the deletion of pods, by UID.
    going: HashMap<&'a str, DeletedFor>,
    /// By name of a node whose pod was rejected: reason and message.
    refused: HashMap<&'a str, (&'a str, &'a str)>,
    /// The node rules of the template.
    placement: Placement,
}

impl View<'_> {
    fn is_ended(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    /// The cells that do not depend on the state.
    fn begin(&self, node: &Node) -> Row {
        let pod = self.pods.of(node);
        let history = self.survey.histories.at(&node.meta.uid).map(|at| &self.survey.histories.nodes[at]);
        let run = pod.filter(|assessed| assessed.pod.is_running()).map(|assessed| assessed.number);
        Row {
            node: node.meta.name.to_string(),
            number: run.or(history.map(|history| history.number).filter(|run| *run > 0)),
            last: history.and_then(|history| history.latest.as_deref().cloned()),
            is_going: pod.is_some_and(|assessed| self.going.contains_key(&*assessed.pod.meta.uid)),
            pod: pod.map(|assessed| assessed.pod.meta.name.to_string()),
            termination_message: pod.and_then(|assessed| termination_message(assessed.pod)),
            ..Row::default()
        }
    }

    /// The row of a node in the survey.
    fn selected(&self, selected: &SelectedNode<'_>) -> Row {
        let node = &**selected.node;
        let (pod, history) = (self.pods.of(node), &self.survey.histories.nodes[selected.at]);
        let mut row = Row { eligible: selected.eligible, ..self.begin(node) };
        match &selected.state {
            State::Done => {
                done(&mut row, &self.survey.key.hash);
                if let (false, Some(taint)) = (selected.eligible, self.taint(node)) {
                    row.message = format!("{}; {}", row.message, not_tolerated(&taint));
                }
            }
            State::Failed(reason) => row.set_from(Word::Failed, reason),
            State::Starting(reason) => row.set_from(Word::Starting, reason),
            State::Skipped(reason) => row.set_from(Word::Skipped, reason),
            State::Running => {
                let since = pod.and_then(|assessed| assessed.pod.started);
                row.set(Word::Running, "", since.map(|since| format!("since {since}")).unwrap_or_default());
                if !selected.eligible
                    && let Some(taint) = self.taint(node)
                {
                    row.set(
                        Word::Running,
                        "Tainted",
                        format!("its pod continues, and {}", not_tolerated(&taint)),
                    );
                }
            }
            State::Waiting(reason) => {
                row.set_from(Word::Waiting, reason);
                row.is_queued = reason.cause == Cause::WaitingForTurn;
                if !pod.is_some_and(|assessed| assessed.pod.is_running()) {
                    row.number = Some(history.number + 1);
                }
            }
            State::Due(run) => {
                row.number = Some(*run);
                match self.refused.get(&*node.meta.name) {
                    Some((reason, message)) => row.set(Word::Waiting, *reason, *message),
                    None => due(&mut row, *run, &self.survey.key.hash),
                }
            }
        }
        if let Some(assessed) = pod
            && let Some(reason) = self.going.get(&*assessed.pod.meta.uid)
        {
            let message = format!("pod {} would be deleted", assessed.pod.meta.name);
            row.set(row.state, reason.word(), message);
        }
        if self.is_ended() && matches!(row.state, Word::WouldRun | Word::Waiting) {
            row.set(Word::Waiting, "Terminating", "the DaemonJob is being deleted");
            row.is_queued = false;
        }
        row
    }

    /// The row of a node that the survey omits.
    fn other(&self, node: &Node) -> Row {
        let mut row = self.begin(node);
        if node.meta.deleted.is_some() {
            row.set(Word::NotSelected, "NodeTerminating", "the Node is being deleted");
        } else {
            let (reason, message) = not_selected(self.job, node);
            row.set(Word::NotSelected, reason, message);
        }
        if let (true, Some(pod)) = (row.is_going, &row.pod) {
            row.message = format!("{}; pod {pod} would be deleted", row.message);
        }
        row
    }

    /// The taint that keeps pods away from a node.
    fn taint(&self, node: &Node) -> Option<Taint> {
        self.placement.eligibility(node).taint().cloned()
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
fn due(row: &mut Row, number: u64, hash: &str) {
    let (reason, message) = match &row.last {
        None if number > 1 => ("Retry", format!("pod {number}")),
        None => ("FirstRun", String::new()),
        Some(last) if *last.hash != *hash => {
            ("TemplateChanged", format!("pod {number}; pod {} had template {}", last.pod, last.hash))
        }
        Some(last) if last.has_succeeded() => (
            "NodeChanged",
            format!("pod {number}; the node was rebooted or reinstalled since pod {}", last.pod),
        ),
        Some(last) => {
            let failures = match last.failures {
                0 => String::new(),
                1 => ", after 1 failure".to_owned(),
                failures => format!(", after {failures} failures"),
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

/// The pod to show for each node.
struct PodsOfNodes<'s> {
    survey: &'s Survey<'s>,
    /// The running pods, by the index of their node.
    running: Vec<Option<&'s AssessedPod<'s>>>,
    /// The last pods, by the index of the node that they count for.
    last: HashMap<usize, &'s AssessedPod<'s>>,
}

impl<'s> PodsOfNodes<'s> {
    fn new(survey: &'s Survey<'s>) -> Self {
        // The pods are sorted by number.
        let of_target = |assessed: &'s AssessedPod<'s>| Some((assessed.target?, assessed));
        let last = survey.pods().iter().filter_map(of_target).collect();
        Self { survey, running: occupants(&survey.histories), last }
    }

    fn of(&self, node: &Node) -> Option<&'s AssessedPod<'s>> {
        let at = self.survey.histories.at(&node.meta.uid)?;
        self.running[at].or_else(|| self.last.get(&at).copied())
    }
}

/// The reason why the manager would delete a pod that has not ended, by pod UID.
fn deleted_pods<'s>(job: &DaemonJob, survey: &'s Survey<'_>, now: Timestamp) -> HashMap<&'s str, DeletedFor> {
    let reason = |assessed: &'s AssessedPod<'_>| {
        Some((&*assessed.pod.meta.uid, deletion_reason(job, survey, assessed, now)?))
    };
    survey.pods().iter().filter_map(reason).collect()
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

fn notes(view: &View<'_>, report: &Report) -> Vec<String> {
    let View { job, survey, going, .. } = view;
    let mut notes = Vec::new();
    let (name, namespace) = (&report.name, &report.namespace);
    match report.origin {
        Origin::New => notes.push(format!(
            "DaemonJob {name} does not exist in namespace {namespace}: applying the file creates it."
        )),
        Origin::Changed => {
            notes.push(format!("Applying the file changes DaemonJob {name} in namespace {namespace}."));
        }
        Origin::Unchanged => {
            notes
                .push(format!("DaemonJob {name} in namespace {namespace} already has the spec of the file."));
        }
        Origin::Cluster => {}
    }
    if view.is_ended() {
        notes.push("The DaemonJob is being deleted, and no pod starts.".to_owned());
        return notes;
    }
    if let Some(hold) = &survey.hold {
        notes.push(format!("The manager creates no pods: {} ({}).", hold.message, hold.cause.word()));
    } else if survey.begins && report.origin != Origin::New {
        notes.push("A new run begins.".to_owned());
    }
    if report.selected() == 0 {
        notes.push("The template selects no node.".to_owned());
    }
    let homeless: Vec<&AssessedPod<'_>> = survey
        .pods()
        .iter()
        .filter(|assessed| assessed.target.is_none() && assessed.pod.is_counted())
        .collect();
    if let Some(first) = homeless.first() {
        let fate = if homeless.iter().all(|assessed| going.contains_key(&*assessed.pod.meta.uid)) {
            "; they would be deleted"
        } else {
            ""
        };
        let (count, first) = (homeless.len(), &first.pod.meta.name);
        notes.push(format!("Pods of deleted nodes: {count}, for example {first}{fate}."));
    }
    let Some(status) = job.status.as_ref().filter(|_| report.origin != Origin::New) else { return notes };
    if report.origin != Origin::Changed {
        for type_ in ["PodsRefused", "LedgerRefused", "Paused"] {
            let found = status.conditions.iter().find(|condition| condition.type_ == type_);
            let is_new = type_ != "Paused" || survey.hold.is_none();
            if let Some(condition) = found.filter(|_| is_new && is_true(&status.conditions, type_)) {
                notes.push(format!(
                    "The condition {type_} is True: {}.",
                    condition.message.trim_end_matches('.')
                ));
            }
        }
        let (seen, now) = (status.observed_generation, job.metadata.generation);
        if seen != now {
            let number = |generation: Option<i64>| generation.unwrap_or_default();
            notes.push(format!(
                "The manager has not reconciled the last change: the status has generation {}, the spec {}.",
                number(seen),
                number(now)
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
