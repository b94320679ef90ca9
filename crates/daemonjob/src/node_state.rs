//! The state of one node: done, failed, running, skipped, or the reason why it waits.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::Resource as _;
use quintet_runtime::model::conditions;
use quintet_runtime::model::core_types::{Node, Phase, Taint};
use quintet_runtime::model::digest;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use quintet_runtime::model::resource::PODS;

use crate::api::{DaemonJob, LateNodes, RerunOn, UnhealthyPolicy};
use crate::backoff::backs_off;
use crate::clocks::settle_time;
use crate::eligibility::Eligibility;
use crate::history::{AssessedPod, Histories, History};
use crate::ledger::{Attempt, Entry, Outcome, exit_text, id_digest};
use crate::observe::World;
use crate::outcome::{Exceeded, Rules};
use crate::rollout::{Ending, Key, was_finished};
use crate::schedule::DueTimeWait;

/// The default of nodeLostAfterSeconds.
const NODE_LOST_AFTER: i64 = 600;
/// The default of skipAfterSeconds.
const SKIP_AFTER: i64 = 300;

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is done.
    Done,
    /// It has failed.
    Failed(Reason),
    /// Its pod runs.
    Running,
    /// Its pod exists and has not started.
    Starting(Reason),
    /// It has no pod, or holds a slot without a healthy pod.
    Waiting(Reason),
    /// It gets a pod with this number.
    Due(u64),
    /// It gets no pod in this run.
    Skipped(Reason),
}

impl State {
    /// Whether the run must wait for the node.
    pub fn is_unfinished(&self) -> bool {
        !matches!(self, Self::Done | Self::Failed(_) | Self::Skipped(_))
    }
}

/// The reason for the state of a node, or why a run creates no pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[allow(missing_docs, reason = "docs/daemonjob.md describes each word")]
pub enum Cause {
    BackingOff,
    BackoffLimitExceeded,
    ContainerWaiting,
    Cordoned,
    Creating,
    DeadlineExceeded,
    DefinitionOutdated,
    DisruptionLimitExceeded,
    FailedAndGone,
    FailedCreate,
    FleetUnhealthy,
    Late,
    LedgerFormat,
    MaxFailedNodesExceeded,
    NameTaken,
    NamespaceTerminating,
    NodeLost,
    NotReady,
    NotReadySinceAttempt,
    OutdatedTemplate,
    Paused,
    PausedByAnnotation,
    PendingDeadlineExceeded,
    PodFailurePolicy,
    PreviousPod,
    PreviousPodTerminating,
    RecordLost,
    Rejected,
    Restarting,
    ScheduleInvalid,
    Scheduling,
    Settling,
    Starting,
    Suspended,
    Tainted,
    TemplateInvalid,
    Unhealthy,
    Unreachable,
    Unschedulable,
    WaitingForTurn,
    WaitsForApproval,
    WaitsForDueTime,
    WaitsForWave,
    WaveFailed,
}

impl Cause {
    /// The word in the status.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// Why an ended run creates no pods.
    pub fn of_ending(ending: Ending) -> Self {
        match ending {
            Ending::DeadlineExceeded => Self::DeadlineExceeded,
            Ending::MaxFailedNodesExceeded => Self::MaxFailedNodesExceeded,
            Ending::PodFailurePolicy => Self::PodFailurePolicy,
        }
    }

    /// Why a node waits whose pod the API server rejects.
    pub fn of_refused_creation(refusal: &Refusal) -> Self {
        if refusal.reason == RefusalReason::NameTaken { Self::NameTaken } else { Self::FailedCreate }
    }

    /// Whether the failure is provisional: it ends when the node can be retried or is Ready.
    pub fn is_provisional(self) -> bool {
        matches!(self, Self::FailedAndGone | Self::NodeLost)
    }

    /// Whether a taint keeps pods away from the node, so that the node is not desired.
    pub fn is_a_taint(self) -> bool {
        matches!(self, Self::Tainted | Self::NotReady | Self::Unreachable | Self::Unhealthy)
    }
}

/// A cause and a message for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The cause.
    pub cause: Cause,
    /// The message.
    pub message: Message,
}

impl Reason {
    pub(crate) fn new(cause: Cause, message: impl Into<Message>) -> Self {
        Self { cause, message: message.into() }
    }
}

/// A message for users. The status lists few nodes, so a frequent message is formatted only when it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The text.
    Text(Cow<'static, str>),
    /// The limit that the node exceeds, and its last pod.
    Exceeded {
        /// The limit.
        limit: Exceeded,
        /// The failures or disruptions that exceed it.
        times: u32,
        /// The number of the last pod.
        pod: u64,
        /// How the last failed pod ended, as in the ledger.
        exit: Option<Arc<str>>,
    },
    /// The node settles. The time until which it must stay Ready, if this process knows it.
    Settling(Option<Timestamp>),
    /// The node runs at the next due time, if there is one.
    DueTime(Option<Timestamp>),
    /// The wave has no room for the node.
    Wave {
        /// The number of the wave.
        number: usize,
        /// The number of nodes that may have started in it.
        size: usize,
    },
}

impl Message {
    /// Whether the message has no text.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for Message {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, times, pod, exit) = match self {
            Self::Text(text) => return f.write_str(text),
            Self::Settling(Some(until)) => return write!(f, "the node must stay Ready until {until}"),
            Self::Settling(None) => return f.write_str("the node must stay Ready for settleSeconds"),
            Self::DueTime(Some(due)) => return write!(f, "the node runs at the next due time, {due}"),
            Self::DueTime(None) => return f.write_str("the node runs at the next due time"),
            Self::Wave { number, size } => {
                let nodes = counted(*size as u64, "node");
                return write!(f, "wave {number} allows {nodes} to start");
            }
            Self::Exceeded { limit, times, pod, exit } => (limit, u64::from(*times), pod, exit.as_deref()),
        };
        let exit = exit_text(exit, ", with ");
        match limit {
            Exceeded::Rule => write!(f, "a rule of podFailurePolicy failed the node at pod {pod}{exit}"),
            Exceeded::BackoffLimit(limit) => {
                let failures = counted(times, "failure");
                write!(f, "{failures}, backoffLimit allows {limit}; the last pod was {pod}{exit}")
            }
            Exceeded::DisruptionLimit(limit) => {
                let disruptions = counted(times, "disruption");
                write!(f, "{disruptions} in a row, disruptionLimit allows {limit}")
            }
        }
    }
}

/// A number with its noun, in the singular or the plural.
pub(crate) fn counted(count: u64, noun: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| match (count, noun.strip_suffix('y')) {
        (1, _) => write!(f, "1 {noun}"),
        (_, Some(stem)) => write!(f, "{count} {stem}ies"),
        (_, None) => write!(f, "{count} {noun}s"),
    })
}

/// A selected node.
#[derive(Clone, Debug)]
pub struct SelectedNode<'a> {
    /// The node.
    pub node: &'a Arc<Node>,
    /// Its index in [`Histories::nodes`](crate::history::Histories::nodes).
    pub at: usize,
    /// Whether the node may have a pod. A taint may keep pods away from a selected node.
    pub eligible: bool,
    /// Whether it counts as started in this rollout. Only with rollout rules.
    pub has_started: bool,
    /// Its state.
    pub state: State,
    /// Since when it holds a slot without a running pod. It gets its pod before nodes without a slot.
    pub holds_slot: Option<Timestamp>,
}

/// The name of a node's pod. It is deterministic, so that a second creation fails with AlreadyExists.
pub fn pod_name(job: &DaemonJob, node: &Node, number: u64) -> String {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let name = job.meta().name.as_deref().unwrap_or_default();
    format!("{}-{}-{number}", digest::cut(name, 40), digest::short(&[uid, &node.meta.uid], 10))
}

/// The refusal of the creation of a node's pod, even if its backoff is over.
pub fn refusal<'w>(job: &DaemonJob, world: &'w World, node: &Node, number: u64) -> Option<&'w Refusal> {
    let refusals = Some(&world.refusals).filter(|refusals| !refusals.is_empty())?;
    refusals.of(Verb::Create, &PODS, &pod_name(job, node, number))
}

pub(crate) fn reruns_on(job: &DaemonJob, what: RerunOn) -> bool {
    job.spec.rerun_on.as_ref().map_or(what == RerunOn::TemplateChange, |list| list.contains(&what))
}

/// Whether the node's last attempt succeeded and still counts: with the current template, and at the current due time.
/// The success of a later due time does not count: a clock that was ahead began it.
pub(crate) fn is_done(history: &History<'_>, key: &Key, job: &DaemonJob, node: &Node) -> bool {
    let Some(latest) = history.latest.as_ref().filter(|latest| latest.has_succeeded()) else { return false };
    let Some(attempt) = &latest.attempt else { return false };
    let is_current = *attempt.hash == *key.hash || !reruns_on(job, RerunOn::TemplateChange);
    let is_of_due_time = key.due.is_none() || attempt.due == key.due;
    // A reboot or reinstallation begins a run only if the node is Ready. During a run it always counts.
    let is_known = node.ready || !was_finished(job);
    let changed = |what, then: &str, is: &str| {
        !then.is_empty() && !is.is_empty() && is_known && reruns_on(job, what) && *id_digest(is) != *then
    };
    is_current
        && is_of_due_time
        && !changed(RerunOn::NodeReboot, &attempt.boot, &node.boot_id)
        && !changed(RerunOn::MachineChange, &attempt.machine, &node.machine_id)
}

/// How long a node may be not Ready after an attempt before it is lost.
pub fn node_lost_after(job: &DaemonJob) -> SignedDuration {
    let after = job.spec.failure_policy.as_ref().and_then(|policy| policy.node_lost_after_seconds);
    SignedDuration::from_secs(after.unwrap_or(NODE_LOST_AFTER))
}

/// The input for the judgement of nodes.
#[derive(Clone, Copy)]
pub(crate) struct Assessor<'s> {
    pub job: &'s DaemonJob,
    pub world: &'s World,
    pub rules: &'s Rules<'s>,
    pub key: &'s Key,
    /// Whether the fleet is unhealthy as a whole. If so, no node is lost, or skipped as unhealthy.
    pub is_fleet_unhealthy: bool,
    /// When the current run started.
    pub start: Timestamp,
    /// With a schedule, which nodes wait for the next due time.
    pub due_times: Option<DueTimeWait>,
    pub now: Timestamp,
}

/// The judgement of a node before its pods count.
#[derive(Debug)]
pub(crate) struct NodeAssessment {
    pub is_unhealthy: bool,
    /// The rollout of the attempt after which the node has not been Ready.
    pub suspect: Option<u64>,
    /// Whether the node was not Ready, or unhealthy, for so long that its pods hold no slots.
    pub is_written_off: bool,
    /// Whether the node is Ready after a success and has not settled.
    pub is_settling: bool,
    /// Why it counts as failed in this rollout.
    pub failure: Option<Reason>,
    /// When time alone changes this judgement.
    pub again: Option<Timestamp>,
}

impl NodeAssessment {
    /// Whether the node is suspect and not lost. It keeps its slot until it is Ready.
    pub fn is_suspect(&self) -> bool {
        self.suspect.is_some() && !self.is_written_off
    }

    /// Whether the node keeps its slot after an attempt.
    pub fn keeps_slot(&self) -> bool {
        self.is_suspect() || self.is_settling
    }
}

impl Assessor<'_> {
    /// The judgement of an existing node.
    pub fn assessment(&self, node: &Node, history: &History<'_>) -> NodeAssessment {
        let is_unhealthy = history.eligibility.taint().is_some() && self.rules.placement.is_unhealthy(node);
        let suspect = history.suspect_rollout();
        let after = node_lost_after(self.job);
        let uid = &*node.meta.uid;
        let mut again = None;
        let mut is_over = |since: Timestamp| {
            let over = self.has_been(since, after);
            again = again.into_iter().chain(over.err().flatten()).min();
            over.is_ok()
        };
        let clock = self.world.clocks.node(uid);
        let not_ready = || clock.not_ready.unwrap_or(self.now).max(self.settling_since(history));
        let is_lost = suspect.is_some() && is_over(not_ready());
        let is_long_unhealthy = is_unhealthy && is_over(clock.unhealthy.unwrap_or(self.now));
        // A pod on a node that is Ready again runs, even if the taint still exists.
        let is_written_off = is_lost || is_long_unhealthy && !node.ready;
        // A new leader cannot know how long the node has been not Ready. The rollout may have stopped for it.
        let inherited = self.world.clocks.is_inherited(uid);
        let mut failure = self.recorded_failure(history);
        if failure.is_none()
            && (is_lost || inherited && suspect.is_some())
            && suspect == Some(self.key.rollout)
            && !clock.is_leaving
        {
            let message = if is_lost {
                format!("not Ready for more than {} s since a pod ran here", after.as_secs())
            } else {
                "not Ready since a pod ran here, and maxFailedNodes was exceeded before this manager led"
                    .to_owned()
            };
            let message = format!("{message}; it recovers when the node is Ready");
            failure = Some(Reason::new(Cause::NodeLost, message));
        }
        if failure.is_none() && self.has_failed(history) {
            let is_gone = is_long_unhealthy || inherited && is_unhealthy;
            failure = self.failed_and_gone(node, history, is_gone);
            let until = self.rejected_until(history).filter(|until| *until > self.now);
            again = again.into_iter().chain(until).min();
        }
        let is_settling = history.is_settling();
        let settles_at = || self.world.clocks.settles_at(self.job, uid);
        again = again.into_iter().chain(is_settling.then(settles_at).flatten()).min();
        NodeAssessment { is_unhealthy, suspect, is_written_off, is_settling, failure, again }
    }

    /// Since when a node must become Ready to settle. It may have been not Ready before its pod ran.
    fn settling_since(&self, history: &History<'_>) -> Timestamp {
        let latest = history.latest.as_deref().filter(|_| settle_time(self.job).is_some());
        let succeeded = latest.filter(|latest| latest.has_succeeded());
        succeeded.map_or(Timestamp::MIN, |latest| latest.ended.min(self.now))
    }

    /// A failure that no later change of the node ends.
    fn recorded_failure(&self, history: &History<'_>) -> Option<Reason> {
        let latest = history.latest.as_ref()?;
        let limit = self.rules.exceeded(latest, self.key.rollout)?;
        let (cause, times) = match limit {
            Exceeded::Rule => (Cause::PodFailurePolicy, latest.failures),
            Exceeded::BackoffLimit(_) => (Cause::BackoffLimitExceeded, latest.failures),
            Exceeded::DisruptionLimit(_) => (Cause::DisruptionLimitExceeded, latest.disruptions),
        };
        let message = Message::Exceeded { limit, times, pod: latest.pod, exit: latest.exit.clone() };
        Some(Reason::new(cause, message))
    }

    /// A node whose last attempt failed and that cannot be retried now.
    fn failed_and_gone(&self, node: &Node, history: &History<'_>, is_long_unhealthy: bool) -> Option<Reason> {
        let why = match &history.eligibility {
            _ if node.meta.deleted.is_some() => "its Node is being deleted".to_owned(),
            Eligibility::Run => self.given_up(history)?.message.to_string(),
            eligibility if !eligibility.is_selected() => "the template no longer selects the node".to_owned(),
            _ if self.rules.placement.is_tainted(node) || is_long_unhealthy => {
                not_tolerated(history.eligibility.taint()?)
            }
            _ => return None,
        };
        let exit = exit_text(history.latest.as_deref()?.exit.as_deref(), " with ");
        let message = format!("a pod failed here{exit}, and the node cannot be retried: {why}");
        Some(Reason::new(Cause::FailedAndGone, message))
    }

    /// The state of a selected node, and when time alone would change it. A node that settles waits, even if it would
    /// be skipped, because it holds a slot.
    pub fn state(
        &self,
        node: &Node,
        history: &History<'_>,
        assessment: &mut NodeAssessment,
        blocking: Option<&AssessedPod<'_>>,
    ) -> (State, Option<Timestamp>) {
        let (state, again) = self.state_if_settled(node, history, assessment, blocking);
        if !(assessment.is_settling && matches!(state, State::Done | State::Skipped(_))) {
            return (state, again);
        }
        let until = self.world.clocks.settles_at(self.job, &node.meta.uid);
        (State::Waiting(Reason { cause: Cause::Settling, message: Message::Settling(until) }), again)
    }

    /// The state of a node that has settled, and when time alone would change it.
    fn state_if_settled(
        &self,
        node: &Node,
        history: &History<'_>,
        assessment: &mut NodeAssessment,
        blocking: Option<&AssessedPod<'_>>,
    ) -> (State, Option<Timestamp>) {
        let state = |state| (state, None);
        let is_done = is_done(history, self.key, self.job, node);
        let shows = |reason: &mut Reason| match reason.cause {
            Cause::NodeLost => true,
            Cause::FailedAndGone => blocking.is_none() || assessment.is_written_off,
            _ => !is_done && blocking.is_none(),
        };
        if let Some(reason) = assessment.failure.take_if(shows) {
            return state(State::Failed(reason));
        }
        if assessment.is_suspect() {
            let is_leaving = self.world.clocks.node(&node.meta.uid).is_leaving;
            let counts = assessment.suspect == Some(self.key.rollout) && !is_leaving;
            return state(State::Waiting(self.suspect(history, blocking, counts)));
        }
        let blocking = blocking.filter(|assessed| {
            // A pod of the current template on a done node is superfluous. Only if it has started, it is an attempt
            // after the success: a schedule, or a reason in rerunOn, that is removed now has created it.
            !is_done || !assessed.is_current || !assessed.recorded && assessed.has_started()
        });
        if let Some(assessed) = blocking {
            if assessment.is_written_off {
                return state(State::Skipped(kept_away(history, assessment)));
            }
            return state(occupied(assessed));
        }
        if is_done {
            return state(State::Done);
        }
        if let Some(skipped) = self.unrecorded(history) {
            return state(State::Skipped(skipped));
        }
        if self.rules.placement.is_tainted(node) {
            return state(State::Skipped(kept_away(history, assessment)));
        }
        if let Some(reason) = self.waits_for_due_time(node, history) {
            // A failed node is never skipped.
            let has_failed = self.has_failed(history);
            return state(if has_failed { State::Waiting(reason) } else { State::Skipped(reason) });
        }
        if let Some(reason) = self.late(node).or_else(|| self.given_up(history)) {
            return state(State::Skipped(reason));
        }
        if history.eligibility != Eligibility::Run {
            let (state, until) = self.away(node, history, kept_away(history, assessment));
            return (state, until.into_iter().chain(self.rejected_until(history)).min());
        }
        self.waits(node, history)
    }

    /// Why a suspect node waits.
    fn suspect(&self, history: &History<'_>, blocking: Option<&AssessedPod<'_>>, counts: bool) -> Reason {
        let after = node_lost_after(self.job).as_secs();
        let last = history.latest.as_ref().map_or(0, |latest| latest.pod);
        let since = blocking.map_or_else(
            || format!("since its pod {last} ran"),
            |assessed| format!("while {} runs here", assessed.pod.meta.name),
        );
        let then = if counts { "counts as failed" } else { "gives up its slot" };
        let message = format!("the node has not been Ready {since}; it {then} after {after} s");
        Reason::new(Cause::NotReadySinceAttempt, message)
    }

    /// A node that waits for the next due time.
    fn waits_for_due_time(&self, node: &Node, history: &History<'_>) -> Option<Reason> {
        let wait = self.due_times.filter(|wait| wait.applies(self.is_late(node), self.has_run(history)))?;
        Some(Reason { cause: Cause::WaitsForDueTime, message: Message::DueTime(wait.next) })
    }

    /// Whether the node had a pod at the current due time.
    fn has_run(&self, history: &History<'_>) -> bool {
        let is_of_due_time = |attempt: &Attempt| attempt.due == self.key.due;
        history.latest.as_deref().is_some_and(|latest| {
            latest.run == self.key.run || latest.attempt.as_ref().is_some_and(is_of_due_time)
        })
    }

    fn has_failed(&self, history: &History<'_>) -> bool {
        history.latest.as_ref().is_some_and(|latest| latest.has_failed_in(self.key.rollout))
    }

    fn is_late(&self, node: &Node) -> bool {
        node.meta.created.is_some_and(|created| created > self.start)
    }

    /// A node that joined too late for this run.
    fn late(&self, node: &Node) -> Option<Reason> {
        let is_ignored = self.is_late(node) && self.job.spec.late_nodes == Some(LateNodes::Ignore);
        is_ignored.then(|| Reason::new(Cause::Late, "the node was created after the run started"))
    }

    /// A node whose pod did not start in time in this run.
    fn given_up(&self, history: &History<'_>) -> Option<Reason> {
        let latest = self.latest_of_run(history)?;
        let message = if latest.outcome == Outcome::PendingDeadlineExceeded {
            format!("pod {} did not start in time", latest.pod)
        } else if self.rejected_until(history).is_some_and(|until| until <= self.now) {
            "the kubelet rejected every pod for pendingDeadlineSeconds".to_owned()
        } else {
            return None;
        };
        Some(Reason::new(Cause::PendingDeadlineExceeded, message))
    }

    /// When the manager skips a node whose pods the kubelet rejected in this run.
    fn rejected_until(&self, history: &History<'_>) -> Option<Timestamp> {
        self.rules.rejected_until(self.latest_of_run(history)?.rejected_since?)
    }

    /// The latest record of a node, if it is of the current run.
    fn latest_of_run<'h>(&self, history: &'h History<'_>) -> Option<&'h Entry> {
        let is_current = |latest: &&Entry| latest.rollout == self.key.rollout && latest.run == self.key.run;
        history.latest.as_deref().filter(is_current)
    }

    /// A node without a usable record.
    fn unrecorded(&self, history: &History<'_>) -> Option<Reason> {
        if history.unknown {
            let message = "the record of this node is in a format of another version of Quintet: upgrade Quintet, or \
                           delete the ConfigMap of an older format";
            return Some(Reason::new(Cause::LedgerFormat, message));
        }
        let is_lost = history.is_record_lost_since(Timestamp::MIN, self.key.rollout);
        let message = "the record of this node is lost; set spec.retryToken to a new value to run it again";
        is_lost.then(|| Reason::new(Cause::RecordLost, message))
    }

    /// The state of a node that is unhealthy, and that has not failed.
    fn away(&self, node: &Node, history: &History<'_>, reason: Reason) -> (State, Option<Timestamp>) {
        // A node whose pod failed counts as failed after it was unhealthy for some time.
        let rule = self.job.spec.unhealthy_nodes.as_ref();
        if self.has_failed(history) || rule.and_then(|rule| rule.policy) == Some(UnhealthyPolicy::Wait) {
            return (State::Waiting(reason), None);
        }
        let after = rule.and_then(|rule| rule.skip_after_seconds).unwrap_or(SKIP_AFTER);
        let since = self.world.clocks.node(&node.meta.uid).unhealthy.unwrap_or(self.now);
        match self.has_been(since, SignedDuration::from_secs(after)) {
            Ok(()) => (State::Skipped(reason), None),
            Err(until) => (State::Waiting(reason), until),
        }
    }

    /// Ok if a node has been unwell for this duration, or else when it will have been. While the fleet is
    /// unhealthy as a whole, the clocks are stopped and that time is unknown.
    fn has_been(&self, since: Timestamp, after: SignedDuration) -> Result<(), Option<Timestamp>> {
        let until = since.checked_add(after).unwrap_or(Timestamp::MAX);
        let looked = self.world.clocks.looked_at().unwrap_or(since);
        let now = if self.is_fleet_unhealthy { looked } else { self.now };
        if until <= now { Ok(()) } else { Err(Some(until).filter(|_| !self.is_fleet_unhealthy)) }
    }

    /// The state of a node that may have a pod and has none.
    fn waits(&self, node: &Node, history: &History<'_>) -> (State, Option<Timestamp>) {
        let skipped_at = self.rejected_until(history);
        if let Some(latest) = history.latest.as_ref().filter(|latest| latest.rollout == self.key.rollout)
            && matches!(latest.outcome, Outcome::Disrupted | Outcome::Ignored)
            && node.unschedulable
        {
            let message = format!("pod {} was disrupted and the node is cordoned", latest.pod);
            return (State::Waiting(Reason::new(Cause::Cordoned, message)), skipped_at);
        }
        let sooner = |until: Timestamp| Some(skipped_at.map_or(until, |at| at.min(until)));
        let current = self.latest_of_run(history);
        if let Some((reason, until)) = current.and_then(|latest| backs_off(latest, history, self.now)) {
            return (State::Waiting(reason), sooner(until));
        }
        let number = history.number + 1;
        if let Some(refusal) = self.refusal(node, number) {
            let message = conditions::shorten(refusal.message.clone(), 256);
            let reason = Reason::new(Cause::of_refused_creation(refusal), message);
            return (State::Waiting(reason), sooner(refusal.until));
        }
        (State::Due(number), skipped_at)
    }

    /// The refusal for which the manager does not create the pod now.
    fn refusal(&self, node: &Node, number: u64) -> Option<&Refusal> {
        let own = refusal(self.job, self.world, node, number);
        let own = own.filter(|refusal| refusal.reason != RefusalReason::LabelsMissing);
        let mut all = own.into_iter().chain(&self.world.refusals.creations);
        all.find(|refusal| refusal.until > self.now)
    }
}

/// Why taints keep pods away from a node.
fn kept_away(history: &History<'_>, assessment: &NodeAssessment) -> Reason {
    let Some(taint) = history.eligibility.taint() else {
        return Reason::new(Cause::Unhealthy, "the node is not Ready");
    };
    let cause = match &*taint.key {
        "node.kubernetes.io/not-ready" => Cause::NotReady,
        "node.kubernetes.io/unreachable" => Cause::Unreachable,
        _ if assessment.is_unhealthy => Cause::Unhealthy,
        _ => Cause::Tainted,
    };
    Reason::new(cause, not_tolerated(taint))
}

/// A message that names the taint which keeps pods away.
pub fn not_tolerated(taint: &Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("the template does not tolerate the taint {}{value}:{}", taint.key, taint.effect)
}

/// The state of a node whose name a pod occupies.
fn occupied(assessed: &AssessedPod<'_>) -> State {
    let pod = assessed.pod;
    let outdated = !assessed.is_current;
    if assessed.is_deleted {
        let message = format!("{} is terminating; the node waits until it is gone", pod.meta.name);
        State::Waiting(Reason::new(Cause::PreviousPodTerminating, message))
    } else if outdated && assessed.has_started() {
        let message = format!("{} runs an older template", pod.meta.name);
        State::Waiting(Reason::new(Cause::OutdatedTemplate, message))
    } else if outdated || assessed.target.is_none() {
        State::Waiting(Reason::new(Cause::PreviousPod, format!("{} is being replaced", pod.meta.name)))
    } else if assessed.is_crashed
        && let Some(exit) = &pod.crashed
    {
        let restarts = counted(u64::from(pod.restarts), "restart");
        let reason = if exit.reason.is_empty() { "Error" } else { &*exit.reason };
        let message = format!("{restarts} of {}; last exit {} ({reason})", pod.meta.name, exit.code);
        State::Waiting(Reason::new(Cause::Restarting, message))
    } else if assessed.phase != Phase::Pending {
        State::Running
    } else if let Some(message) = &pod.unschedulable {
        State::Starting(Reason::new(Cause::Unschedulable, conditions::shorten(message.to_string(), 256)))
    } else if let Some(waiting) = pod.held_up() {
        State::Starting(Reason::new(Cause::ContainerWaiting, format!("{waiting} in {}", pod.meta.name)))
    } else if pod.is_gated {
        let message =
            format!("{} has scheduling gates; the scheduler waits until they are removed", pod.meta.name);
        State::Starting(Reason::new(Cause::Scheduling, message))
    } else if pod.node.is_none() {
        State::Starting(Reason::new(Cause::Scheduling, ""))
    } else {
        State::Starting(Reason::new(Cause::Starting, ""))
    }
}

/// The pods that occupy the names of existing nodes, by the index of the node. The pods may be for another
/// node, template or number. If a name has several, a pod that is not terminating determines the state.
pub fn occupants<'p, 'a>(histories: &'p Histories<'a>) -> Vec<Option<&'p AssessedPod<'a>>> {
    let mut occupants: Vec<Option<&AssessedPod<'_>>> = vec![None; histories.nodes.len()];
    for assessed in histories.pods.iter().filter(|assessed| assessed.occupies()) {
        if let Some(at) = assessed.on_at {
            let occupant = occupants[at].get_or_insert(assessed);
            if occupant.is_deleted {
                *occupant = assessed;
            }
        }
    }
    occupants
}
