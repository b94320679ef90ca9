//! What there is to say of every node: done, failed, running, skipped, or why it waits.
//!
//! One pure function that the plan acts upon and that `quintet explain` prints.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource as _;
use quintet_kit::clock::{FIRST_BACKOFF, LONGEST_BACKOFF, doubled, whole_seconds};
use quintet_kit::conditions;
use quintet_kit::digest;
use quintet_kit::plan::{LABELS_MISSING, MOST_CREATIONS, NAME_TAKEN};
use quintet_kit::share::{Round, of_whole};
use quintet_kit::types::{Node, Phase, Pod, Taint};

use crate::api::{DaemonJob, FailurePolicyType, LateNodes, RerunOn};
use crate::ledger::{Ended, Entry, MOST_RUNS, Outcome, SHARDS, shard_of};
use crate::nodes::{Placement, Verdict, Why};
use crate::observe::World;
use crate::outcome::{Fate, Rules};

/// Label: the UID of the node that the pod is for.
pub const NODE_UID_LABEL: &str = "dj.dysproz.io/node-uid";
/// Label: the hash of the template that the pod was made from.
pub const HASH_LABEL: &str = "dj.dysproz.io/template-hash";
/// Label: the run number, counted for each node by itself.
pub const RUN_LABEL: &str = "dj.dysproz.io/run";
/// Annotation: the name of the node that the pod is for.
pub const NODE_NAME_ANNOTATION: &str = "dj.dysproz.io/node-name";
/// Annotation: the node's boot ID when the pod was made.
pub const BOOT_ID_ANNOTATION: &str = "dj.dysproz.io/boot-id";

/// How often it is asked whether the Job of the post's operator is gone.
const OLD_JOB: SignedDuration = SignedDuration::from_secs(10);

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is done.
    Done,
    /// It has failed and is not tried again.
    Failed(Reason),
    /// Its pod runs.
    Running,
    /// Its pod is there and has not started.
    Starting(Reason),
    /// It has no pod and must wait.
    Waiting(Reason),
    /// It gets a pod of this run number.
    Due(u64),
    /// It gets no pod in this run.
    Skipped(Reason),
}

/// Why a node is in its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In one CamelCase word.
    pub word: &'static str,
    /// For a person.
    pub message: String,
}

fn because(word: &'static str, message: impl Into<String>) -> Reason {
    Reason { word, message: message.into() }
}

/// Why the run ends before every node is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// activeDeadlineSeconds have passed.
    Deadline,
    /// Under FailFast, more nodes have failed than maxFailedNodes allows.
    FailFast,
    /// A rule of podFailurePolicy says FailJob.
    FailJob,
}

impl Ending {
    const ALL: [Self; 3] = [Self::Deadline, Self::FailFast, Self::FailJob];

    /// The reason of the condition Failed.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Deadline => "DeadlineExceeded",
            Self::FailFast => "MaxFailedNodesExceeded",
            Self::FailJob => "PodFailurePolicy",
        }
    }
}

/// A node that is selected.
#[derive(Clone, Debug)]
pub struct Surveyed<'a> {
    /// The node.
    pub node: &'a Arc<Node>,
    /// Whether it may have a pod: a taint may keep pods away from a node that is selected.
    pub eligible: bool,
    /// Its state.
    pub state: State,
}

/// A pod, and what it means.
#[derive(Clone, Debug)]
pub struct Judged<'a> {
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// The UID of the node that it counts for; None where that node is gone.
    pub home: Option<&'a Arc<str>>,
    /// The name of the node that it was made for: as [`pinned_to`] has it; else, where somebody took the annotation off before the
    /// pod was bound, that of the node that it counts for.
    pub on: Option<&'a str>,
    /// Its run number.
    pub run: u64,
    /// What has become of it.
    pub fate: Fate,
    /// Whether the ledger has its outcome.
    pub recorded: bool,
    /// Whether the kubelet has started it too often.
    pub exhausted: bool,
}

impl Judged<'_> {
    /// Whether it keeps its node's name occupied: it runs, or may yet.
    pub fn occupies(&self) -> bool {
        self.pod.is_running() && self.fate == Fate::Open
    }
}

/// What is known of one node that exists, whether or not it is selected.
#[derive(Clone, Debug, Default)]
pub struct History<'a> {
    /// The node.
    pub node: Option<&'a Arc<Node>>,
    /// Its line in the ledger.
    pub recorded: Option<&'a Entry>,
    /// Ledger and pods together: the higher run wins.
    pub latest: Option<Entry>,
    /// Whether its line is lost or unreadable, and no pod tells enough.
    pub lost: bool,
    /// Whether its line is in a shard that a newer version of Quintet has written, and no pod tells enough.
    pub unknown: bool,
    /// The greatest run number so far.
    pub run: u64,
    /// Whether a pod tells all that is to be known: it runs, or has succeeded with the current template.
    is_told: bool,
}

/// Everything that there is to say.
#[derive(Debug)]
pub struct Survey<'a> {
    /// The hash of the template.
    pub hash: Arc<str>,
    /// When the current run started.
    pub start: Timestamp,
    /// Whether the current run begins now: then its start is told before anything is done.
    pub begins: bool,
    /// The nodes that are selected, in the order in which they get their pods.
    pub nodes: Vec<Surveyed<'a>>,
    /// The pods.
    pub pods: Vec<Judged<'a>>,
    /// What is known of the nodes that exist, by UID.
    pub histories: HashMap<&'a str, History<'a>>,
    /// Names of nodes that several counted pods are there for: by a write that came late.
    pub doubled: Vec<&'a str>,
    /// Nodes that are not eligible, or gone, but where a pod still runs.
    pub elsewhere: usize,
    /// Why the run ends, or has ended.
    pub ending: Option<Ending>,
    /// Why no pods are made, where that is not for want of nodes.
    pub hold: Option<Reason>,
    /// The template's view of the nodes.
    pub placement: Placement,
    /// When time alone would change any of this.
    pub again: Option<Timestamp>,
}

impl Survey<'_> {
    /// How many eligible nodes are in such a state.
    pub fn count(&self, wanted: fn(&State) -> bool) -> usize {
        self.nodes.iter().filter(|node| node.eligible && wanted(&node.state)).count()
    }

    /// Nodes that are eligible, and those where a pod still runs.
    pub fn desired(&self) -> usize {
        self.nodes.iter().filter(|node| node.eligible).count() + self.elsewhere
    }

    /// Eligible nodes that are neither done nor failed nor skipped.
    pub fn unfinished(&self) -> usize {
        self.count(|state| !matches!(state, State::Done | State::Failed(_) | State::Skipped(_)))
    }

    /// Whether any pod is there that has not ended and was not asked to go.
    pub fn has_counted_pods(&self) -> bool {
        self.pods.iter().any(|judged| judged.pod.is_counted())
    }

    /// Whether the run is over: nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.unfinished() == 0 && self.elsewhere == 0 && !self.has_counted_pods()
    }

    fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |already| already.min(at)));
    }
}

/// The name of the node that a pod was made for.
pub fn pinned_to(pod: &Pod) -> Option<&str> {
    pod.meta.annotations.get(NODE_NAME_ANNOTATION).or(pod.node.as_deref())
}

/// The run number of a pod: its label, or the end of its name where somebody took the label off.
pub fn run_of(pod: &Pod) -> u64 {
    let named = || pod.meta.name.rsplit('-').next();
    let believed = |run: &&str| run.parse().is_ok_and(|run: u64| run <= MOST_RUNS);
    let run = pod.label(RUN_LABEL).filter(believed).or_else(|| named().filter(believed));
    run.and_then(|run| run.parse().ok()).unwrap_or(0)
}

/// The template that a pod was made from. One that has lost this label is taken to be of the current one: better none
/// than a second run.
pub fn hash_of<'p>(pod: &'p Pod, current: &'p str) -> &'p str {
    pod.label(HASH_LABEL).unwrap_or(current)
}

/// The name of a node's pod: the same for whoever makes it, so that two makers collide at the API server.
pub fn pod_name(job: &DaemonJob, node: &Node, run: u64) -> String {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let name = job.meta().name.as_deref().unwrap_or_default();
    format!("{}-{}-{run}", digest::cut(name, 40), digest::short(&[uid, &node.meta.uid], 10))
}

/// How many pods may run at a time; None where nothing bounds them.
pub fn parallelism(job: &DaemonJob, desired: usize) -> Option<usize> {
    let amount = job.spec.parallelism.as_ref()?;
    // A percentage of few nodes, or of none yet, lets one pod run all the same.
    let least = usize::from(matches!(amount, IntOrString::String(_)));
    of_whole(amount, desired, Round::Up).map(|limit| limit.max(least))
}

/// How many failed nodes the failure policy bears.
pub fn max_failed(job: &DaemonJob, desired: usize) -> usize {
    let max = job.spec.failure_policy.as_ref().and_then(|policy| policy.max_failed_nodes.as_ref());
    max.and_then(|max| of_whole(max, desired, Round::Down)).unwrap_or(0)
}

fn reruns_on(job: &DaemonJob, what: RerunOn) -> bool {
    job.spec.rerun_on.as_ref().map_or(what == RerunOn::TemplateChange, |list| list.contains(&what))
}

/// How the last run ended, as the status says; it holds until the generation changes.
fn ended_before(job: &DaemonJob) -> Option<Ending> {
    let failed = job.status.as_ref()?.conditions.iter().find(|one| one.type_ == "Failed")?;
    (failed.status == "True" && failed.observed_generation == job.metadata.generation).then_some(())?;
    Ending::ALL.into_iter().find(|ending| ending.reason() == failed.reason)
}

/// Surveys every node.
pub fn survey<'a>(job: &DaemonJob, world: &'a World, now: Timestamp) -> Survey<'a> {
    let rules = Rules::of(job);
    let hash: Arc<str> = job.spec.template.hash().into();
    let placement = Placement::of(job.spec.template.spec());
    let before = job.status.as_ref();
    let started = before.and_then(|before| before.start_time.as_ref()).map(|start| start.0);

    let (histories, pods) = histories(job, world, &rules, &hash, now);

    let mut survey = Survey {
        hash,
        start: if job.spec.suspend == Some(true) || world.old_job {
            // The next run starts after all that was, and after every node that is there.
            Timestamp::MAX
        } else {
            started.unwrap_or_else(|| whole_seconds(now))
        },
        begins: false,
        nodes: Vec::new(),
        pods,
        histories,
        doubled: Vec::new(),
        elsewhere: 0,
        ending: None,
        hold: None,
        placement,
        again: None,
    };
    survey.nodes = selected(&survey, job, world);
    look_at_nodes(&mut survey, job, world, &rules, now);

    // Does a run begin? At creation, at resume, at a change of the template, or when a run that was over has work again.
    let ended = ended_before(job);
    // The status of the post's operator knows no template: what it says began elsewhere.
    let is_other_template = match before.and_then(|before| before.template_hash.as_deref()) {
        Some(hash) => *hash != *survey.hash && reruns_on(job, RerunOn::TemplateChange),
        None => true,
    };
    let was_finished = before.is_some_and(|before| {
        conditions::is_true(&before.conditions, "Complete")
            || before.conditions.iter().any(|one| one.type_ == "Failed" && one.reason == "NodesFailed")
    });
    survey.begins = ended.is_none()
        && job.spec.suspend != Some(true)
        && !world.old_job
        && (started.is_none() || is_other_template || was_finished && survey.unfinished() > 0);
    // What has ended before anything was told counts for the first run.
    if survey.begins && before.is_some() {
        // After all that has ended, also where the clock was set back meanwhile.
        let ends = survey.histories.values().filter_map(|history| Some(history.latest.as_ref()?.at));
        let after = ends.max().and_then(|end| end.checked_add(SignedDuration::from_secs(1)).ok());
        survey.start = after.map_or(now, |after| after.max(now));
        survey.start = whole_seconds(survey.start);
        look_at_nodes(&mut survey, job, world, &rules, now);
    }

    // Does it end before its nodes are finished?
    let is_open = survey.unfinished() > 0 || survey.elsewhere > 0 || survey.has_counted_pods();
    let deadline = job.spec.active_deadline_seconds.and_then(|seconds| {
        let runs = is_open && (started.is_some() || survey.begins);
        survey.start.checked_add(SignedDuration::from_secs(seconds)).ok().filter(|_| runs)
    });
    let failed = survey.count(|state| matches!(state, State::Failed(_)));
    let (desired, policy) = (survey.desired(), job.spec.failure_policy.as_ref());
    let is_over = failed > max_failed(job, desired);
    let fails_job = survey.histories.values().any(|history| {
        let latest = history.latest.as_ref();
        latest.is_some_and(|latest| latest.outcome == Outcome::FailedJob && latest.hash == survey.hash)
    });
    survey.ending = ended.or_else(|| {
        if fails_job {
            Some(Ending::FailJob)
        } else if is_over && policy.is_some_and(|policy| policy.type_ == FailurePolicyType::FailFast) {
            Some(Ending::FailFast)
        } else {
            deadline.is_some_and(|deadline| deadline <= now).then_some(Ending::Deadline)
        }
    });
    if let (Some(deadline), None) = (deadline, survey.ending) {
        survey.look_again(deadline);
    }

    survey.hold = if world.old_job {
        survey.look_again(now.checked_add(OLD_JOB).unwrap_or(now));
        let name = job.metadata.name.as_deref().unwrap_or_default();
        Some(because("OldJobPresent", format!("the Job {name}-job of the post's operator is still there")))
    } else if job.spec.suspend == Some(true) {
        Some(because("Suspended", "spec.suspend is set"))
    } else if let Some(ending) = survey.ending {
        Some(because(ending.reason(), "the run has ended"))
    } else if job.spec.paused == Some(true) {
        Some(because("Paused", "spec.paused is set"))
    } else if is_over && policy.is_some_and(|policy| policy.type_ == FailurePolicyType::Pause) {
        let max = max_failed(job, desired);
        let message = format!("{failed} nodes have failed and maxFailedNodes allows {max}");
        Some(because("MaxFailedNodesExceeded", message))
    } else if world.refusals.namespace_terminating {
        Some(because("NamespaceTerminating", "the namespace is being deleted"))
    } else {
        None
    };
    take_turns(&mut survey, job);
    survey
}

/// Judges every pod, and folds what the pods say into what the ledger says.
fn histories<'a>(
    job: &DaemonJob,
    world: &'a World,
    rules: &Rules<'_>,
    current: &str,
    now: Timestamp,
) -> (HashMap<&'a str, History<'a>>, Vec<Judged<'a>>) {
    let by_name: HashMap<&str, &Arc<Node>> =
        world.nodes.iter().map(|node| (&*node.meta.name, node)).collect();
    let by_uid: HashMap<&str, &Arc<Node>> = world.nodes.iter().map(|node| (&*node.meta.uid, node)).collect();
    let mut histories: HashMap<&str, History<'_>> = world
        .nodes
        .iter()
        .map(|node| (&*node.meta.uid, History { node: Some(node), ..History::default() }))
        .collect();
    let known = world.shards().filter(|shard| shard.is_known_format());
    for (uid, entry) in known.flat_map(|shard| shard.entries.iter()) {
        if let Some(history) = histories.get_mut(&**uid) {
            match entry {
                Ok(entry) => (history.recorded, history.run) = (Some(entry), entry.run),
                Err(_) => history.lost = true,
            }
        }
    }
    let (missing, unknown) = unread_shards(job, world);
    if missing.contains(&true) || unknown.contains(&true) {
        for (uid, history) in &mut histories {
            history.lost |= missing[usize::from(shard_of(uid))];
            history.unknown |= unknown[usize::from(shard_of(uid))];
        }
    }

    let mut pods: Vec<Judged<'_>> = world
        .pods
        .iter()
        .map(|pod| {
            let uid = pod.label(NODE_UID_LABEL);
            let own = uid.and_then(|uid| by_uid.get(uid));
            let renewed = || {
                let node = by_name.get(pinned_to(pod)?)?;
                let is_its = match uid {
                    // A node that was made anew under its name: what ran on the new machine counts for it.
                    Some(_) => pod.phase == Phase::Succeeded && pod.started? >= node.meta.created?,
                    None => pod.meta.created? >= node.meta.created?,
                };
                is_its.then_some(node)
            };
            let home = own.copied().or_else(|| renewed().copied());
            Judged {
                pod,
                home: home.map(|node| &node.meta.uid),
                on: pinned_to(pod).or_else(|| home.map(|node| &*node.meta.name)),
                run: run_of(pod),
                fate: Fate::Open,
                recorded: false,
                exhausted: false,
            }
        })
        .collect();
    pods.sort_by(|one, other| one.home.cmp(&other.home).then(one.run.cmp(&other.run)));
    let mut homeless = History::default();
    for judged in &mut pods {
        let history = match judged.home.and_then(|uid| histories.get_mut(&**uid)) {
            Some(history) => history,
            None => &mut homeless,
        };
        let hash: Arc<str> = hash_of(judged.pod, current).into();
        let before = history.latest.as_ref().or(history.recorded);
        let failures = before
            .filter(|before| before.hash == hash && before.outcome != Outcome::Succeeded)
            .map_or(0, |before| before.failures);
        judged.fate = rules.fate(judged.pod, failures);
        judged.recorded = history.recorded.is_some_and(|recorded| judged.run <= recorded.run);
        judged.exhausted = judged.fate == Fate::Open && rules.restarts_too_often(judged.pod, failures);
        history.run = history.run.max(judged.run);
        history.is_told |= match judged.fate {
            Fate::Open => judged.pod.is_running(),
            Fate::NeverRan => false,
            Fate::Ended { outcome, .. } => outcome == Outcome::Succeeded && *hash == *current,
        };
        if let (Fate::Ended { outcome, failures, at }, false, true) =
            (&judged.fate, judged.recorded, judged.home.is_some())
        {
            let boot = judged.pod.meta.annotations.get(BOOT_ID_ANNOTATION).unwrap_or_default();
            let node = judged.on.unwrap_or_default();
            let ended = Ended {
                node: node.into(),
                hash,
                run: judged.run,
                outcome: *outcome,
                failures: *failures,
                boot: boot.split_whitespace().collect::<String>().into(),
                // The clock of a node may be ahead. That of a pod that was given up is the start of its run.
                at: if *outcome == Outcome::PendingDeadlineExceeded { *at } else { (*at).min(now) },
            };
            history.latest = Some(Entry::after(before, ended));
        }
    }
    for history in histories.values_mut() {
        history.lost &= !history.is_told;
        history.unknown &= !history.is_told;
        if history.latest.is_none() {
            history.latest = history.recorded.cloned();
        }
    }
    (histories, pods)
}

/// The shards that were written once, and of which nothing is to be seen any more; and those that a newer version of
/// Quintet has written.
fn unread_shards(job: &DaemonJob, world: &World) -> ([bool; SHARDS as usize], [bool; SHARDS as usize]) {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let (mut missing, mut unknown) = ([false; SHARDS as usize], [false; SHARDS as usize]);
    for shard in job.status.iter().flat_map(|status| &status.ledger_shards) {
        if let Some(missing) = missing.get_mut(usize::from(*shard)) {
            *missing = true;
        }
    }
    for shard in world.shards() {
        if let Some(number) = shard.number(name) {
            missing[usize::from(number)] = false;
            unknown[usize::from(number)] = !shard.is_known_format();
        }
    }
    (missing, unknown)
}

/// Sets the state of every node that is selected, but for what depends on the others.
fn look_at_nodes(survey: &mut Survey<'_>, job: &DaemonJob, world: &World, rules: &Rules<'_>, now: Timestamp) {
    survey.again = None;
    let pods = std::mem::take(&mut survey.pods);
    let blocking = occupants(&pods);
    let mut counted: HashSet<&str> = HashSet::new();
    survey.doubled.clear();
    for name in pods.iter().filter(|judged| judged.pod.is_counted()).filter_map(|judged| judged.on) {
        if !counted.insert(name) {
            survey.doubled.push(name);
        }
    }
    let mut nodes = std::mem::take(&mut survey.nodes);
    for surveyed in &mut nodes {
        let blocking = blocking.get(&*surveyed.node.meta.name).copied();
        if surveyed.eligible {
            surveyed.state = state(survey, job, world, rules, surveyed.node, blocking, now);
        } else if let Some(judged) = blocking {
            surveyed.state = occupied(judged, &survey.hash);
        }
    }
    let eligible: HashSet<&str> =
        nodes.iter().filter(|node| node.eligible).map(|node| &*node.node.meta.name).collect();
    survey.elsewhere = blocking.keys().filter(|name| !eligible.contains(*name)).count();
    (survey.nodes, survey.pods) = (nodes, pods);
}

/// The nodes that are selected, in the order in which they get their pods: Ready ones first, then by name. A node that
/// a taint keeps pods away from is named with the taint, unless it is done or its pod goes on running.
fn selected<'a>(survey: &Survey<'a>, job: &DaemonJob, world: &'a World) -> Vec<Surveyed<'a>> {
    let mut nodes: Vec<Surveyed<'_>> = Vec::new();
    for node in world.nodes.iter().filter(|node| node.meta.deleted.is_none()) {
        match survey.placement.verdict(node) {
            Verdict::Run => nodes.push(Surveyed { node, eligible: true, state: State::Done }),
            Verdict::Continue(Why::Taint(taint)) | Verdict::Refuse(Why::Taint(taint)) => {
                let history = survey.histories.get(&*node.meta.uid);
                if !history.is_some_and(|history| is_done(history, &survey.hash, job, node)) {
                    nodes.push(Surveyed { node, eligible: false, state: State::Skipped(kept_away(&taint)) });
                }
            }
            Verdict::Continue(Why::NotSelected) | Verdict::Refuse(Why::NotSelected) => {}
        }
    }
    nodes.sort_by(|one, other| {
        let (one, other) = (one.node, other.node);
        other.ready.cmp(&one.ready).then_with(|| one.meta.name.cmp(&other.meta.name))
    });
    nodes
}

fn kept_away(taint: &Taint) -> Reason {
    let word = match &*taint.key {
        "node.kubernetes.io/not-ready" => "NotReady",
        "node.kubernetes.io/unreachable" => "Unreachable",
        _ => "Tainted",
    };
    because(word, not_tolerated(taint))
}

/// Why a taint keeps pods away, for a person.
pub fn not_tolerated(taint: &Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("the template does not tolerate the taint {}{value}:{}", taint.key, taint.effect)
}

/// The pods that keep a node's name occupied, whichever node, template or run they were made for. Of several for one
/// name the one that was not asked to go tells the node's state.
pub fn occupants<'p, 'a>(pods: &'p [Judged<'a>]) -> HashMap<&'a str, &'p Judged<'a>> {
    let mut occupants: HashMap<&str, &Judged<'_>> = HashMap::new();
    for judged in pods.iter().filter(|judged| judged.occupies()) {
        if let Some(name) = judged.on {
            let told = occupants.entry(name).or_insert(judged);
            if told.pod.meta.deleted.is_some() {
                *told = judged;
            }
        }
    }
    occupants
}

/// Whether the node's last success still stands.
fn is_done(history: &History<'_>, hash: &str, job: &DaemonJob, node: &Node) -> bool {
    history.latest.as_ref().and_then(Entry::last_success).is_some_and(|success| {
        let is_current = *success.hash == *hash || !reruns_on(job, RerunOn::TemplateChange);
        let has_booted = node.ready
            && !success.boot.is_empty()
            && !node.boot_id.is_empty()
            && *success.boot != *node.boot_id
            && reruns_on(job, RerunOn::NodeReboot);
        is_current && !has_booted
    })
}

/// The state of an eligible node, by itself.
fn state(
    survey: &mut Survey<'_>,
    job: &DaemonJob,
    world: &World,
    rules: &Rules<'_>,
    node: &Node,
    blocking: Option<&Judged<'_>>,
    now: Timestamp,
) -> State {
    let Some(history) = survey.histories.get(&*node.meta.uid) else { return State::Due(1) };
    if is_done(history, &survey.hash, job, node) {
        return State::Done;
    }
    if let Some(judged) = blocking {
        return occupied(judged, &survey.hash);
    }
    let latest = history.latest.as_ref();
    let current = latest.filter(|latest| latest.hash == survey.hash);
    if history.lost || current.is_some_and(|latest| latest.outcome == Outcome::RecordLost) {
        return State::Skipped(because(
            "RecordLost",
            "what was recorded of this node is gone; change an annotation of the template to run everywhere again",
        ));
    }
    if history.unknown {
        return State::Skipped(because(
            "LedgerFormat",
            "what was recorded of this node was written by a newer version of Quintet: upgrade this one",
        ));
    }
    let next = history.run + 1;
    if let Some(latest) = current {
        let failures = latest.failures;
        match latest.outcome {
            Outcome::FailedIndex | Outcome::FailedJob => {
                let message = format!("podFailurePolicy takes the failure of run {} for final", latest.run);
                return State::Failed(because("PodFailurePolicy", message));
            }
            Outcome::PendingDeadlineExceeded if latest.at >= survey.start => {
                let message = format!("the pod of run {} did not start in time", latest.run);
                return State::Skipped(because("PendingDeadlineExceeded", message));
            }
            _ if latest.outcome != Outcome::Succeeded && rules.exceeds_limit(failures) => {
                let message =
                    format!("{failures} failures exceed backoffLimit; the last one was run {}", latest.run);
                return State::Failed(because("BackoffLimitExceeded", message));
            }
            _ => {}
        }
    }
    let is_late = node.meta.created.is_some_and(|created| created > survey.start);
    if is_late && job.spec.late_nodes == Some(LateNodes::Ignore) {
        return State::Skipped(because("Late", "the node was created after the run started"));
    }
    if let Some(latest) = latest
        && latest.outcome == Outcome::Disrupted
        && node.unschedulable
    {
        return State::Waiting(because(
            "Cordoned",
            format!("run {} was disrupted and the node is cordoned", latest.run),
        ));
    }
    if let Some(latest) = current
        && latest.outcome != Outcome::Succeeded
        && latest.at >= survey.start
    {
        let tries = latest.failures.saturating_add(latest.disruptions);
        let wait = doubled(FIRST_BACKOFF, tries.saturating_sub(1), LONGEST_BACKOFF);
        let until = latest.at.checked_add(wait).unwrap_or(now);
        if tries > 0 && until > now {
            survey.look_again(until);
            let message = format!("backs off until {} after {tries} tries", whole_seconds(until));
            return State::Waiting(because("BackingOff", message));
        }
    }
    if !world.refusals.is_empty()
        && let Some(refusal) = world.refusals.of("create", &pod_name(job, node, next))
        && refusal.until > now
        && refusal.reason != LABELS_MISSING
    {
        survey.look_again(refusal.until);
        let word = if refusal.reason == NAME_TAKEN { NAME_TAKEN } else { "FailedCreate" };
        let message = conditions::shorten(refusal.message.clone(), 256);
        return State::Waiting(because(word, message));
    }
    if let Some(stop) = world.refusals.creations.as_ref().filter(|stop| stop.until > now) {
        survey.look_again(stop.until);
        return State::Waiting(because("FailedCreate", conditions::shorten(stop.message.clone(), 256)));
    }
    State::Due(next)
}

/// The state of a node that a pod keeps occupied.
fn occupied(judged: &Judged<'_>, hash: &str) -> State {
    let pod = judged.pod;
    let outdated = hash_of(pod, hash) != hash;
    if pod.meta.deleted.is_some() {
        let message = format!("waits until {} has ended", pod.meta.name);
        State::Waiting(because("PreviousPodTerminating", message))
    } else if pod.phase != Phase::Pending {
        State::Running
    } else if outdated || judged.home.is_none() {
        State::Waiting(because("PreviousPod", format!("{} is replaced", pod.meta.name)))
    } else if let Some(message) = &pod.unschedulable {
        State::Starting(because("Unschedulable", conditions::shorten(message.to_string(), 256)))
    } else if let Some(waiting) = pod.held_up() {
        State::Starting(because("ContainerWaiting", format!("{waiting} in {}", pod.meta.name)))
    } else if pod.node.is_none() {
        State::Starting(because("Scheduling", ""))
    } else {
        State::Starting(because("Starting", ""))
    }
}

/// A pod that holds a place and stands in no list, since its node is gone or not selected.
fn elsewhere(survey: &Survey<'_>) -> Option<String> {
    let told: HashSet<&str> = survey.nodes.iter().map(|surveyed| &*surveyed.node.meta.name).collect();
    let mut holders = survey.pods.iter().filter(|judged| {
        let is_told = judged.on.is_some_and(|name| told.contains(name));
        judged.occupies() && !is_told
    });
    let Judged { pod, on, .. } = holders.next()?;
    Some(format!("; {} on {} is one of them", pod.meta.name, on.unwrap_or("no node")))
}

/// Gives the nodes their turns: as many as may run side by side, in order; none while something holds them all.
fn take_turns(survey: &mut Survey<'_>, job: &DaemonJob) {
    let limit = parallelism(job, survey.desired());
    let running = survey.pods.iter().filter(|judged| judged.occupies()).count();
    let places = limit.map_or(usize::MAX, |limit| limit.saturating_sub(running));
    let hold = survey.hold.clone();
    let holder = limit.and_then(|_| elsewhere(survey));
    let mut made = 0;
    let mut waits = false;
    for surveyed in &mut survey.nodes {
        let State::Due(_) = surveyed.state else { continue };
        if let Some(hold) = &hold {
            surveyed.state = State::Waiting(hold.clone());
        } else if made >= places {
            waits = true;
            let message = match limit {
                Some(0) => "parallelism is 0".to_owned(),
                limit => format!(
                    "{running} pods run and parallelism allows {}{}",
                    limit.unwrap_or_default(),
                    holder.as_deref().unwrap_or_default()
                ),
            };
            surveyed.state = State::Waiting(because("WaitingForTurn", message));
        } else if made >= MOST_CREATIONS {
            surveyed.state = State::Waiting(because("WaitingForTurn", "its pod is made with the next ones"));
        } else {
            made += 1;
        }
    }
    // What has not started holds a place that another node waits for.
    if let Some(limit) = limit.filter(|_| waits) {
        for surveyed in &mut survey.nodes {
            if let State::Starting(reason) | State::Waiting(reason) = &mut surveyed.state
                && matches!(reason.word, "Unschedulable" | "ContainerWaiting" | "PreviousPodTerminating")
            {
                let held = "; it holds one of";
                let _ = write!(reason.message, "{held} {limit} places (see pendingDeadlineSeconds)");
            }
        }
    }
}
