//! What is said of one DaemonJob: a pure function of what was read.
//!
//! The states are those of [`quintet_daemonjob::survey`], the function that the controller acts upon, and what becomes of
//! pods is read off its plan; here they only get words, and the nodes that the survey leaves out get a line too.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::ledger::{Entry, Outcome};
use quintet_daemonjob::nodes::{Verdict, Why};
use quintet_daemonjob::observe::World;
use quintet_daemonjob::plan::plan;
use quintet_daemonjob::survey::{
    Judged, Reason, State, Survey, Surveyed, hash_of, not_tolerated, occupants, parallelism, survey,
};
use quintet_kit::conditions::is_true;
use quintet_kit::plan::{Action, NAME_TAKEN};
use quintet_kit::resource::PODS;
use quintet_kit::types::{Node, Taint};
use serde_json::Value;

/// Where the explained spec comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The cluster.
    Cluster,
    /// A file, and there is no such DaemonJob yet.
    New,
    /// A file that says something else than the cluster.
    Changed,
    /// A file that says what the cluster says.
    Unchanged,
}

/// What is said of one DaemonJob.
#[derive(Debug)]
pub struct Report {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where its spec comes from.
    pub origin: Origin,
    /// The hash of its template.
    pub template_hash: String,
    /// Whether a run would begin now.
    pub begins: bool,
    /// Why no pods are made, where that is not for want of nodes.
    pub hold: Option<Reason>,
    /// The selected nodes in the order in which they get their pods, then the others by name.
    pub rows: Vec<Row>,
    /// What there is to say besides, a sentence each.
    pub notes: Vec<String>,
}

/// What is said of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its name.
    pub node: String,
    /// What would happen there.
    pub state: Word,
    /// Why, in one word.
    pub reason: String,
    /// Why, for a person.
    pub message: String,
    /// Whether the node may have a pod.
    pub eligible: bool,
    /// The number of the run that would begin or goes on, else of the last one.
    pub run: Option<u64>,
    /// How the last run there ended.
    pub last: Option<Entry>,
    /// The node's pod: the running one, else the last one.
    pub pod: Option<String>,
    /// Whether the pod that runs there would be deleted.
    pub is_going: bool,
    /// Whether it waits for its turn alone.
    pub is_queued: bool,
}

/// What would happen on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// Nothing: it is done.
    Done,
    /// Nothing: it has failed and is not tried again.
    Failed,
    /// Its pod runs.
    Running,
    /// Its pod is there and has not started.
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
    /// All words, in the order in which they are counted, and how a sentence counts them.
    pub const COUNTED: [(Self, &'static str); 7] = [
        (Self::Done, "done"),
        (Self::WouldRun, "would run now"),
        (Self::Running, "running"),
        (Self::Starting, "starting"),
        (Self::Waiting, "waiting"),
        (Self::Skipped, "skipped"),
        (Self::Failed, "failed"),
    ];

    /// As it is printed.
    pub fn text(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Running => "Running",
            Self::Starting => "Starting",
            Self::Waiting => "Waiting",
            Self::WouldRun => "WouldRun",
            Self::Skipped => "Skipped",
            Self::NotSelected => "NotSelected",
        }
    }
}

impl Report {
    /// How many nodes have this word.
    pub fn count(&self, word: Word) -> usize {
        self.rows.iter().filter(|row| row.state == word).count()
    }

    /// Nodes that the template selects.
    pub fn selected(&self) -> usize {
        self.rows.len() - self.count(Word::NotSelected)
    }

    /// Whether every selected node is done, runs, would run or waits for nothing but its turn.
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

/// Says what there is to say.
pub fn report(job: &DaemonJob, world: &World, origin: Origin, now: Timestamp) -> Report {
    let survey = survey(job, world, now);
    let view = View {
        job,
        survey: &survey,
        pods: PodsOfNodes::new(&survey),
        going: deleted_pods(job, world, now),
        refused: refused(job, &survey, origin),
        is_open: parallelism(job, survey.desired()) != Some(0),
    };
    let mut rows: Vec<Row> = survey.nodes.iter().map(|surveyed| view.selected(surveyed)).collect();
    let seen: HashSet<&str> = survey.nodes.iter().map(|surveyed| &*surveyed.node.meta.uid).collect();
    let mut others: Vec<&Node> =
        world.nodes.iter().map(|node| &**node).filter(|node| !seen.contains(&*node.meta.uid)).collect();
    others.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
    rows.extend(others.into_iter().map(|node| view.other(node)));
    let mut report = Report {
        namespace: job.metadata.namespace.clone().unwrap_or_default(),
        name: job.metadata.name.clone().unwrap_or_default(),
        origin,
        template_hash: survey.hash.to_string(),
        begins: survey.begins && !view.is_ended(),
        hold: survey.hold.clone(),
        rows,
        notes: Vec::new(),
    };
    report.notes = notes(&view, &report);
    report
}

impl Row {
    fn say(&mut self, state: Word, reason: impl Into<String>, message: impl Into<String>) {
        self.state = state;
        self.reason = reason.into();
        self.message = message.into();
    }

    fn repeat(&mut self, state: Word, reason: &Reason) {
        self.say(state, reason.word, reason.message.clone());
    }
}

/// What is looked at for every node.
struct View<'a> {
    job: &'a DaemonJob,
    survey: &'a Survey<'a>,
    pods: PodsOfNodes<'a>,
    /// UIDs of pods that would be deleted.
    going: HashSet<String>,
    /// Nodes whose pods were refused: reason and message by name.
    refused: HashMap<&'a str, (&'a str, &'a str)>,
    /// Whether parallelism lets any pod run.
    is_open: bool,
}

impl View<'_> {
    fn is_ended(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    /// What is the same for every node.
    fn begin(&self, node: &Node) -> Row {
        let (pod, history) = (self.pods.of(node), self.survey.histories.get(&*node.meta.uid));
        let run = pod.filter(|judged| judged.pod.is_running()).map(|judged| judged.run);
        Row {
            node: node.meta.name.to_string(),
            run: run.or(history.map(|history| history.run).filter(|run| *run > 0)),
            last: history.and_then(|history| history.latest.clone()),
            is_going: pod.is_some_and(|judged| self.going.contains(&*judged.pod.meta.uid)),
            pod: pod.map(|judged| judged.pod.meta.name.to_string()),
            ..Row::default()
        }
    }

    /// A node that the survey knows.
    fn selected(&self, surveyed: &Surveyed<'_>) -> Row {
        let node = &**surveyed.node;
        let (pod, history) = (self.pods.of(node), self.survey.histories.get(&*node.meta.uid));
        let mut row = Row { eligible: surveyed.eligible, ..self.begin(node) };
        match &surveyed.state {
            State::Done => done(&mut row, &self.survey.hash),
            State::Failed(reason) => row.repeat(Word::Failed, reason),
            State::Starting(reason) => row.repeat(Word::Starting, reason),
            State::Skipped(reason) => row.repeat(Word::Skipped, reason),
            State::Running => {
                let since = pod.and_then(|judged| judged.pod.started);
                row.say(Word::Running, "", since.map(|since| format!("since {since}")).unwrap_or_default());
                if !surveyed.eligible
                    && let Some(taint) = self.taint(node)
                {
                    row.say(
                        Word::Running,
                        "Tainted",
                        format!("its pod goes on, and {}", not_tolerated(&taint)),
                    );
                }
            }
            State::Waiting(reason) => {
                row.repeat(Word::Waiting, reason);
                row.is_queued = self.is_open && reason.word == "WaitingForTurn";
                if !pod.is_some_and(|judged| judged.pod.is_running()) {
                    row.run = Some(history.map_or(1, |history| history.run + 1));
                }
            }
            State::Due(run) => {
                row.run = Some(*run);
                match self.refused.get(&*node.meta.name) {
                    Some((reason, message)) => row.say(Word::Waiting, *reason, *message),
                    None => due(&mut row, *run, &self.survey.hash),
                }
            }
        }
        if let (true, Some(judged)) = (row.is_going, pod) {
            let message = format!("pod {} would be deleted", judged.pod.meta.name);
            row.say(row.state, why_deleted(self.survey, judged, row.eligible), message);
        }
        if self.is_ended() && matches!(row.state, Word::WouldRun | Word::Waiting) {
            row.say(Word::Waiting, "Terminating", "the DaemonJob is being deleted");
            row.is_queued = false;
        }
        row
    }

    /// A node that the survey leaves out.
    fn other(&self, node: &Node) -> Row {
        let mut row = self.begin(node);
        if node.meta.deleted.is_some() {
            row.say(Word::NotSelected, "NodeTerminating", "the Node is being deleted");
        } else if let Some(taint) = self.taint(node) {
            // One that is tainted and done: there is nothing left to do.
            done(&mut row, &self.survey.hash);
            row.message = format!("{}; {}", row.message, not_tolerated(&taint));
        } else {
            let (reason, message) = not_selected(self.job, node);
            row.say(Word::NotSelected, reason, message);
        }
        if let (true, Some(pod)) = (row.is_going, &row.pod) {
            row.message = format!("{}; pod {pod} would be deleted", row.message);
        }
        row
    }

    /// The taint that keeps pods away from a node.
    fn taint(&self, node: &Node) -> Option<Taint> {
        match self.survey.placement.verdict(node) {
            Verdict::Continue(Why::Taint(taint)) | Verdict::Refuse(Why::Taint(taint)) => Some(taint),
            _ => None,
        }
    }
}

fn done(row: &mut Row, hash: &str) {
    let message = match &row.last {
        Some(last) if last.outcome == Outcome::Succeeded => {
            let other = if *last.hash == *hash { "" } else { ", with another template" };
            format!("run {} at {}{other}", last.run, last.at)
        }
        Some(last) => format!("in a run before {}, which was {}", last.run, last.outcome.word()),
        None => String::new(),
    };
    row.say(Word::Done, "Succeeded", message);
}

/// Why a node would run now.
fn due(row: &mut Row, run: u64, hash: &str) {
    let (reason, message) = match &row.last {
        None if run > 1 => ("Retry", format!("run {run}")),
        None => ("FirstRun", String::new()),
        Some(last) if *last.hash != *hash => {
            ("TemplateChanged", format!("run {run}; run {} was of {}", last.run, last.hash))
        }
        Some(last) if last.outcome == Outcome::Succeeded => {
            ("NodeRebooted", format!("run {run}; the node has booted since run {}", last.run))
        }
        Some(last) => {
            let failures = match last.failures {
                0 => String::new(),
                1 => ", after 1 failure".to_owned(),
                failures => format!(", after {failures} failures"),
            };
            ("Retry", format!("run {run}; run {} was {}{failures}", last.run, last.outcome.word()))
        }
    };
    row.say(Word::WouldRun, reason, message);
}

/// Which part of the template does not select a node.
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
        let wanted = value.as_str().unwrap_or_default();
        let message = match node.meta.labels.get(key) {
            Some(label) if label == wanted => continue,
            Some(label) => format!("nodeSelector wants {key}={wanted} and the node has {key}={label}"),
            None => format!("nodeSelector wants {key}={wanted} and the node has no label {key}"),
        };
        return ("NodeSelector", message);
    }
    ("NodeAffinity", "the required node affinity does not match".to_owned())
}

/// The pod that tells most about each node.
struct PodsOfNodes<'s> {
    /// Running ones, by the name of the node that they are for.
    running: HashMap<&'s str, &'s Judged<'s>>,
    /// The last ones, by the UID of the node that they count for.
    last: HashMap<&'s str, &'s Judged<'s>>,
}

impl<'s> PodsOfNodes<'s> {
    fn new(survey: &'s Survey<'_>) -> Self {
        // They are sorted by run.
        let of_home = |judged: &'s Judged<'s>| Some((&**judged.home?, judged));
        let last = survey.pods.iter().filter_map(of_home).collect();
        let running = occupants(&survey.pods);
        Self { running, last }
    }

    fn of(&self, node: &Node) -> Option<&'s Judged<'s>> {
        self.running.get(&*node.meta.name).or_else(|| self.last.get(&*node.meta.uid)).copied()
    }
}

/// UIDs of the pods that have not ended and that the controller would delete.
fn deleted_pods(job: &DaemonJob, world: &World, now: Timestamp) -> HashSet<String> {
    let counted: HashSet<&str> =
        world.pods.iter().filter(|pod| pod.is_counted()).map(|pod| &*pod.meta.uid).collect();
    let steps = plan(job, world, now).steps;
    let deleted = steps.iter().flatten().filter_map(|action| match action {
        Action::Delete { resource, uid, .. } if *resource == PODS => Some(&**uid),
        _ => None,
    });
    deleted.filter(|uid| counted.contains(uid)).map(str::to_owned).collect()
}

/// Why the controller would delete a running pod.
fn why_deleted(survey: &Survey<'_>, judged: &Judged<'_>, eligible: bool) -> &'static str {
    let pod = judged.pod;
    let is_doubled = judged.on.is_some_and(|name| survey.doubled.contains(&name));
    match &survey.hold {
        Some(hold) if survey.ending.is_some() || hold.word == "Suspended" => hold.word,
        _ if !eligible => "Tainted",
        _ if judged.exhausted => "BackoffLimitExceeded",
        _ if judged.recorded || is_doubled => "Surplus",
        _ if judged.home.is_none() => "NodeReplaced",
        _ if hash_of(pod, &survey.hash) != &*survey.hash => "TemplateChanged",
        _ => "PendingDeadlineExceeded",
    }
}

/// Nodes whose pods the API server did not take, as the manager has last said: reason and message by name.
fn refused<'a>(
    job: &'a DaemonJob,
    survey: &Survey<'_>,
    origin: Origin,
) -> HashMap<&'a str, (&'a str, &'a str)> {
    let status = job
        .status
        .as_ref()
        .filter(|status| origin != Origin::Changed && status.template_hash.as_deref() == Some(&*survey.hash));
    let pending = status.iter().flat_map(|status| &status.pending_nodes);
    pending
        .filter(|node| matches!(&*node.reason, "FailedCreate" | NAME_TAKEN))
        .map(|node| (&*node.node, (&*node.reason, &*node.message)))
        .collect()
}

fn notes(view: &View<'_>, report: &Report) -> Vec<String> {
    let View { job, survey, going, .. } = view;
    let mut notes = Vec::new();
    let (name, namespace) = (&report.name, &report.namespace);
    match report.origin {
        Origin::New => notes.push(format!(
            "DaemonJob {name} is not in namespace {namespace} yet: applying the file creates it."
        )),
        Origin::Changed => {
            notes.push(format!("Applying the file changes DaemonJob {name} in namespace {namespace}."));
        }
        Origin::Unchanged => {
            notes
                .push(format!("DaemonJob {name} in namespace {namespace} has the spec of the file already."));
        }
        Origin::Cluster => {}
    }
    if view.is_ended() {
        notes.push("It is being deleted: its pods go, and nothing runs any more.".to_owned());
        return notes;
    }
    if let Some(hold) = &survey.hold {
        notes.push(format!("No pods are made: {} ({}).", hold.message, hold.word));
    } else if survey.begins && report.origin != Origin::New {
        notes.push("A new run begins.".to_owned());
    }
    if report.selected() == 0 {
        notes.push("The template selects no node.".to_owned());
    }
    let homeless: Vec<&Judged<'_>> =
        survey.pods.iter().filter(|judged| judged.home.is_none() && judged.pod.is_counted()).collect();
    if let Some(first) = homeless.first() {
        let fate = if homeless.iter().all(|judged| going.contains(&*judged.pod.meta.uid)) {
            "; they would be deleted"
        } else {
            ""
        };
        let (count, first) = (homeless.len(), &first.pod.meta.name);
        notes.push(format!("Pods of nodes that are gone: {count}, {first} for instance{fate}."));
    }
    let Some(status) = job.status.as_ref().filter(|_| report.origin != Origin::New) else { return notes };
    if report.origin != Origin::Changed {
        for type_ in ["PodsRefused", "LedgerRefused"] {
            let said = status.conditions.iter().find(|condition| condition.type_ == type_);
            if let Some(said) = said.filter(|_| is_true(&status.conditions, type_)) {
                notes.push(format!("The manager says {type_}: {}.", said.message.trim_end_matches('.')));
            }
        }
        let (seen, now) = (status.observed_generation, job.metadata.generation);
        if seen != now {
            let number = |generation: Option<i64>| generation.unwrap_or_default();
            notes.push(format!(
                "The manager has not looked at it since it was changed: its status is of generation {}, the spec of {}.",
                number(seen),
                number(now)
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
