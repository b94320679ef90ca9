//! The fields of Pods that plans read.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerState;
use serde::Deserialize;
use std::sync::Arc;

use super::{WireCondition, is_read};
use crate::model::conditions::shorten;
use crate::model::object::{Meta, Object};
use crate::model::protobuf;

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
pub enum Phase {
    /// Not started; also the phase of a pod without a phase.
    #[default]
    Pending,
    /// At least one container runs or is about to run.
    Running,
    /// All containers exited with 0.
    Succeeded,
    /// A container failed, or the pod was evicted.
    Failed,
    /// The node does not respond, or the phase is not known to Quintet.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Whether no container will run again.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A pod. The fields that a plan reads of every pod come first, so that they lie together in memory.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WirePod")]
#[repr(C)]
pub struct Pod {
    /// Phase.
    pub phase: Phase,
    /// Whether the pod was disrupted: preempted, evicted through the API, or deleted because of a taint.
    pub disrupted: bool,
    /// Whether the scheduler waits until its scheduling gates are removed (KEP-3521).
    pub is_gated: bool,
    /// Whether the kubelet restarts every container that is now terminated with an exit code other than 0. The restart
    /// policy and the restart rules of each container decide (KEP-5307). Without such a container it equals
    /// `restarts_containers`. Sidecars do not count.
    pub restartable: bool,
    /// Whether a restart policy or a restart rule lets the kubelet restart any init or main container after a failure.
    /// Sidecars do not count.
    pub restarts_containers: bool,
    /// Whether any init or main container is running. Sidecars do not count.
    pub has_running_container: bool,
    /// Restarts of its init and main containers, added up. Restarts of sidecars do not count: a sidecar is an init
    /// container with restartPolicy Always.
    pub restarts: u32,
    /// The restarts of the main container that restarted most, which a ReplicaSet compares.
    pub most_restarts: u32,
    /// The node that the pod is bound to.
    pub node: Option<Arc<str>>,
    /// The metadata, with only the annotations of Kubernetes' controllers and of the manager.
    pub meta: Meta,
    /// When the first container started.
    pub started: Option<Timestamp>,
    /// When its last container ended. Without such a time, a Succeeded or Failed pod has the time when it became not
    /// Ready, as for a Job.
    pub finished: Option<Timestamp>,
    /// Reason and message, if the kubelet rejected the pod at admission (`OutOfcpu: Pod was rejected: ...`).
    pub rejection: Option<Box<str>>,
    /// The last failure of a container that waits for its restart.
    pub crashed: Option<Box<Exit>>,
    /// Why the whole pod is in its phase (`Evicted`, `DeadlineExceeded`).
    pub reason: Option<Box<str>>,
    /// When the pod became Ready.
    pub ready_since: Option<Timestamp>,
    /// The scheduler's message if it found no node.
    pub unschedulable: Option<Box<str>>,
    /// Why a container waits (`ImagePullBackOff`, `CrashLoopBackOff`).
    pub waiting: Option<Box<str>>,
    /// The last failure of a container that is not ready, whatever its current state.
    pub last_exit: Option<Box<Exit>>,
    /// The failed containers that were not restarted.
    pub exits: Box<[Exit]>,
    /// The type and status of the conditions; empty unless the pod has failed.
    pub conditions: Box<[(Box<str>, Box<str>)]>,
}

/// The failure of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The name of the container.
    pub container: Box<str>,
    /// The exit code, not 0.
    pub code: i32,
    /// The reason that the kubelet or the container runtime gives (`Error`, `OOMKilled`).
    pub reason: Box<str>,
    /// The termination message; only its end if it is long.
    pub message: Box<str>,
}

impl Pod {
    /// A running pod: neither Succeeded nor Failed, terminating or not.
    pub fn is_running(&self) -> bool {
        !self.phase.has_ended()
    }

    /// A counted pod: running and not terminating.
    pub fn is_counted(&self) -> bool {
        self.is_running() && self.meta.deleted.is_none()
    }

    /// Why a container waits, except while it is being created.
    pub fn held_up(&self) -> Option<&str> {
        let reason = self.waiting.as_deref()?;
        (!matches!(reason, "ContainerCreating" | "PodInitializing")).then_some(reason)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta.labels.get(key)
    }
}

impl Object for Pod {
    crate::identified_by_meta!(same);

    fn in_protobuf() -> Option<&'static protobuf::Type> {
        Some(&protobuf::POD)
    }
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct WirePod {
    metadata: Meta,
    spec: WirePodSpec,
    status: WirePodStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WirePodSpec {
    node_name: Option<Arc<str>>,
    restart_policy: Option<RestartPolicy>,
    init_containers: Vec<WireContainerSpec>,
    containers: Vec<WireContainerSpec>,
}

/// The restart policy of a pod or of a container.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum RestartPolicy {
    Always,
    OnFailure,
    Never,
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireContainerSpec {
    name: Box<str>,
    restart_policy: Option<RestartPolicy>,
    restart_policy_rules: Vec<WireRestartRule>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireRestartRule {
    action: RestartAction,
    exit_codes: WireExitCodes,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum RestartAction {
    Restart,
    /// A match restarts all containers of the pod, not only the one that ended.
    RestartAllContainers,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireExitCodes {
    operator: ExitCodeOperator,
    values: Vec<i32>,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum ExitCodeOperator {
    In,
    NotIn,
    #[default]
    #[serde(other)]
    Unknown,
}

impl WireExitCodes {
    fn contain(&self, code: i32) -> bool {
        match self.operator {
            ExitCodeOperator::In => self.values.contains(&code),
            ExitCodeOperator::NotIn => !self.values.contains(&code),
            ExitCodeOperator::Unknown => false,
        }
    }

    fn contain_a_failure(&self) -> bool {
        match self.operator {
            ExitCodeOperator::In => self.values.iter().any(|code| *code != 0),
            ExitCodeOperator::NotIn => true,
            ExitCodeOperator::Unknown => false,
        }
    }
}

impl WireContainerSpec {
    /// The action of the first rule that matches (the kubelet's `FindMatchingContainerRestartRule`).
    fn action_after(&self, code: i32) -> RestartAction {
        let rule = self.restart_policy_rules.iter().find(|rule| rule.exit_codes.contain(code));
        rule.map(|rule| rule.action).unwrap_or_default()
    }

    /// Whether an init container with this spec is a sidecar.
    fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }

    fn has_rule(&self, matches: impl Fn(&WireRestartRule) -> bool) -> bool {
        self.restart_policy_rules.iter().any(matches)
    }
}

impl WirePodSpec {
    fn all_containers(&self) -> impl Iterator<Item = &WireContainerSpec> {
        self.init_containers.iter().chain(&self.containers)
    }

    fn container(&self, name: &str) -> Option<&WireContainerSpec> {
        self.all_containers().find(|container| &*container.name == name)
    }

    /// Whether an init container of this name is a sidecar.
    fn has_sidecar(&self, name: &str) -> bool {
        self.init_containers.iter().any(|container| container.is_sidecar() && &*container.name == name)
    }

    /// Whether the effective restart policy restarts a container after a failure. The container's own policy overrides
    /// the pod's, whose default is Always.
    fn policy_restarts(&self, container: Option<&WireContainerSpec>) -> bool {
        let own = container.and_then(|container| container.restart_policy);
        let policy = own.filter(|policy| *policy != RestartPolicy::Unknown).or(self.restart_policy);
        policy != Some(RestartPolicy::Never)
    }

    /// Whether the kubelet restarts a container after this exit code, not 0 (its `ContainerShouldRestart`).
    fn restarts_after(&self, name: &str, code: i32) -> bool {
        let container = self.container(name);
        self.policy_restarts(container)
            || container.is_some_and(|container| container.action_after(code) != RestartAction::Unknown)
    }

    /// Whether the kubelet may restart any init or main container after a failure.
    fn restarts_containers(&self) -> bool {
        let all_restart = |rule: &WireRestartRule| rule.action == RestartAction::RestartAllContainers;
        let one_restarts = |rule: &WireRestartRule| {
            rule.action == RestartAction::Restart && rule.exit_codes.contain_a_failure()
        };
        let init = self.init_containers.iter().filter(|container| !container.is_sidecar());
        // A pod of the API server has containers. Without them only the pod's policy can tell.
        self.all_containers().any(|container| container.has_rule(all_restart))
            || init
                .chain(&self.containers)
                .any(|container| self.policy_restarts(Some(container)) || container.has_rule(one_restarts))
            || self.containers.is_empty() && self.policy_restarts(None)
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WirePodStatus {
    phase: Phase,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
    conditions: Vec<WireCondition>,
    container_statuses: Vec<WireContainer>,
    init_container_statuses: Vec<WireContainer>,
}

impl WirePodStatus {
    fn containers(&self) -> impl Iterator<Item = &WireContainer> {
        self.init_container_statuses.iter().chain(&self.container_statuses)
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireContainer {
    name: Box<str>,
    ready: bool,
    restart_count: u32,
    state: ContainerState,
    last_state: ContainerState,
}

fn started(state: &ContainerState) -> Option<Timestamp> {
    let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
    let started = running.or(state.terminated.as_ref().and_then(|ended| ended.started_at.as_ref()));
    started.map(|started| started.0)
}

/// The limit of a stored termination message in bytes; the kubelet keeps 4,096.
const LAST_WORDS: usize = 256;

/// The end of a text, up to `bytes` bytes, from a character boundary on.
fn end_of(text: &str, bytes: usize) -> &str {
    let from = text.len().saturating_sub(bytes);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[from..]
}

/// The failure of a container in one of its states, if it failed.
fn exit(container: &WireContainer, state: &ContainerState) -> Option<Exit> {
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    let reason = ended.reason.as_deref().unwrap_or_default().into();
    let message = end_of(ended.message.as_deref().unwrap_or_default().trim_end(), LAST_WORDS).into();
    Some(Exit { container: container.name.clone(), code: ended.exit_code, reason, message })
}

/// The failure of a container that waits for its restart. The kubelet syncs a pod only after the backoff. Until then
/// the container is terminated; only at the end is it briefly waiting in `CrashLoopBackOff` (Kubernetes 1.37).
fn crash(container: &WireContainer, spec: &WirePodSpec) -> Option<Exit> {
    match exit(container, &container.state) {
        Some(exit) => spec.restarts_after(&container.name, exit.code).then_some(exit),
        None if container.state.waiting.is_some() => exit(container, &container.last_state),
        None => None,
    }
}

/// The limit of a stored rejection message in bytes.
pub(super) const REJECTION: usize = 256;

/// The reasons with which the kubelet ends a pod that it had admitted.
const OF_ADMITTED_PODS: [&str; 2] = ["DeadlineExceeded", "Evicted"];

/// The reason and message for a pod that the kubelet rejected at admission, before any container ran.
fn rejection(status: &WirePodStatus) -> Option<Box<str>> {
    let reason = status.reason.as_deref()?;
    let has_run = |container: &WireContainer| {
        container.state.running.is_some()
            || container.state.terminated.is_some()
            || container.last_state.terminated.is_some()
    };
    let is_rejected = status.phase == Phase::Failed
        && !reason.is_empty()
        && !OF_ADMITTED_PODS.contains(&reason)
        && !status.containers().any(has_run);
    let message = status.message.as_deref().unwrap_or_default().trim_end();
    is_rejected.then(|| match message {
        "" => reason.into(),
        _ => format!("{reason}: {}", shorten(message.to_owned(), REJECTION)).into(),
    })
}

/// The kubelet's reason for a container that it restarts together with all others of the pod.
const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Whether the kubelet restarts every container that is now terminated with an exit code other than 0.
fn is_restartable(spec: &WirePodSpec, status: &WirePodStatus) -> bool {
    let ended = || {
        status
            .containers()
            .filter_map(|container| Some((&*container.name, container.state.terminated.as_ref()?)))
    };
    let restarts_all = |name: &str, code: i32| {
        let container = spec.container(name);
        container.is_some_and(|container| container.action_after(code) == RestartAction::RestartAllContainers)
    };
    if ended().any(|(name, end)| restarts_all(name, end.exit_code)) {
        return true;
    }
    let mut failed = ended().filter(|(name, end)| end.exit_code != 0 && !spec.has_sidecar(name)).peekable();
    if failed.peek().is_none() {
        return spec.restarts_containers();
    }
    failed.all(|(name, end)| {
        end.reason.as_deref() == Some(RESTARTING_ALL) || spec.restarts_after(name, end.exit_code)
    })
}

impl From<WirePod> for Pod {
    fn from(wire: WirePod) -> Self {
        let WirePod { metadata: mut meta, spec, status } = wire;
        meta.annotations = meta.annotations.only(is_read);
        let (phase, has_ended) = (status.phase, status.phase.has_ended());
        let containers = || status.containers();
        let without_sidecars = || containers().filter(|container| !spec.has_sidecar(&container.name));
        let mut pod = Self {
            phase,
            restarts: without_sidecars()
                .fold(0, |sum, container| sum.saturating_add(container.restart_count)),
            most_restarts: status
                .container_statuses
                .iter()
                .map(|container| container.restart_count)
                .max()
                .unwrap_or_default(),
            restartable: is_restartable(&spec, &status),
            restarts_containers: spec.restarts_containers(),
            has_running_container: without_sidecars().any(|container| container.state.running.is_some()),
            waiting: containers()
                .find_map(|container| Some(container.state.waiting.as_ref()?.reason.as_deref()?.into())),
            started: containers()
                .flat_map(|container| [started(&container.state), started(&container.last_state)])
                .flatten()
                .min(),
            finished: containers()
                .filter_map(|container| container.state.terminated.as_ref()?.finished_at.as_ref())
                .map(|finished| finished.0)
                .max(),
            crashed: containers()
                .find_map(|container| crash(container, &spec).map(Box::new))
                .filter(|_| !has_ended && meta.deleted.is_none()),
            last_exit: containers().filter(|container| !container.ready).find_map(|container| {
                exit(container, &container.state)
                    .or_else(|| exit(container, &container.last_state))
                    .map(Box::new)
            }),
            exits: containers().filter_map(|container| exit(container, &container.state)).collect(),
            rejection: rejection(&status),
            meta,
            ..Self::default()
        };
        let mut kept = Vec::new();
        for condition in status.conditions {
            if phase == Phase::Failed {
                kept.push((condition.type_.clone(), condition.status.clone()));
            }
            match (&*condition.type_, &*condition.status) {
                ("Ready", "True") => {
                    pod.ready_since = Some(condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH));
                }
                ("Ready", "False") if has_ended => {
                    pod.finished = pod.finished.or(condition.last_transition_time);
                }
                ("PodScheduled", "False") => match condition.reason.as_deref() {
                    Some("Unschedulable") => pod.unschedulable = Some(condition.message.unwrap_or_default()),
                    Some("SchedulingGated") => pod.is_gated = true,
                    _ => {}
                },
                ("DisruptionTarget", "True") => pod.disrupted = true,
                _ => {}
            }
        }
        Self { conditions: kept.into(), reason: status.reason, node: spec.node_name, ..pod }
    }
}
