//! The core types that plans look at, decoded into just the fields that are read.
//!
//! serde skips everything else while it parses, so a Pod of 5 KB of JSON costs a few hundred bytes and nothing at
//! the peak. A field that a plan begins to read is added here, to the wire form, to the kept form and to its table in
//! [`crate::model::protobuf`].

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

use crate::model::conditions::shorten;
use crate::model::object::{Key, Meta, Object, WireMeta};
use crate::model::protobuf;

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
pub enum Phase {
    /// Not started; also what a pod without a phase is.
    #[default]
    Pending,
    /// At least one container runs or is about to.
    Running,
    /// All containers ended well.
    Succeeded,
    /// A container ended badly, or the pod was evicted.
    Failed,
    /// The node does not answer.
    #[serde(other)]
    Unknown,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WirePod")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the cache keeps a bool in place of the specs of containers"
)]
pub struct Pod {
    /// Metadata; of the annotations only those of Kubernetes' controllers and ours.
    pub meta: Meta,
    /// The node that it is bound to.
    pub node: Option<Arc<str>>,
    /// Phase.
    pub phase: Phase,
    /// Why the whole pod is in its phase (`Evicted`, `DeadlineExceeded`).
    pub reason: Option<Box<str>>,
    /// Since when it is Ready.
    pub ready_since: Option<Timestamp>,
    /// The scheduler's words where it found no node.
    pub unschedulable: Option<Box<str>>,
    /// Whether the scheduler waits until its scheduling gates are removed (KEP-3521).
    pub is_gated: bool,
    /// Whether it was disrupted: preempted, evicted by the API, deleted by a taint.
    pub disrupted: bool,
    /// Restarts of its init and main containers, added up. Restarts of sidecars do not count: a sidecar is an init
    /// container with restartPolicy Always.
    pub restarts: u32,
    /// Whether the kubelet restarts every container that is now terminated with an exit code other than 0. The restart
    /// policy and the restart rules of each container decide (KEP-5307). Without such a container it equals
    /// `restarts_containers`. Sidecars do not count.
    pub restartable: bool,
    /// Whether a restart policy or a restart rule lets the kubelet restart any init or main container after a failure.
    /// Sidecars do not count.
    pub restarts_containers: bool,
    /// Whether any init or main container is running. Sidecars do not count.
    pub has_running_container: bool,
    /// Why a container waits (`ImagePullBackOff`, `CrashLoopBackOff`).
    pub waiting: Option<Box<str>>,
    /// How a container ended last that waits to be started again.
    pub crashed: Option<Box<Exit>>,
    /// How a container ended last that is not ready, whatever it does now.
    pub last_exit: Option<Box<Exit>>,
    /// When the first of its containers started: none has before.
    pub started: Option<Timestamp>,
    /// The containers that have ended badly and were not started again.
    pub exits: Box<[Exit]>,
    /// When its last container ended. If no container has an end and the pod is Succeeded or Failed, it is the time
    /// when the pod became not Ready, as for a Job.
    pub finished: Option<Timestamp>,
    /// Reason and message, if the kubelet rejected the pod at admission (`OutOfcpu: Pod was rejected: ...`).
    pub rejection: Option<Box<str>>,
    /// Type and status of its conditions; only of a pod that has failed.
    pub conditions: Box<[(Box<str>, Box<str>)]>,
}

/// How a container ended, other than well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The container's name.
    pub container: Box<str>,
    /// Its exit code, not 0.
    pub code: i32,
    /// The kubelet's or the runtime's word for it (`Error`, `OOMKilled`).
    pub reason: Box<str>,
    /// Its last words: the end of them, where they are long.
    pub message: Box<str>,
}

impl Pod {
    /// A running pod: neither Succeeded nor Failed, terminating or not.
    pub fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// A counted pod: running and not asked to go.
    pub fn is_counted(&self) -> bool {
        self.is_running() && self.meta.deleted.is_none()
    }

    /// Why a container of it waits, unless that is just beginning.
    pub fn held_up(&self) -> Option<&str> {
        let reason = self.waiting.as_deref()?;
        (!matches!(reason, "ContainerCreating" | "PodInitializing")).then_some(reason)
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta.labels.get(key)
    }
}

impl Object for Pod {
    crate::identified_by_meta!();

    fn in_protobuf() -> Option<&'static protobuf::Type> {
        Some(&protobuf::POD)
    }

    fn same(&self, other: &Self) -> bool {
        let Self {
            meta,
            node,
            phase,
            reason,
            ready_since,
            unschedulable,
            is_gated,
            disrupted,
            restarts,
            restartable,
            restarts_containers,
            has_running_container,
            waiting,
            crashed,
            last_exit,
            started,
            exits,
            finished,
            rejection,
            conditions,
        } = self;
        meta.same(&other.meta)
            && *node == other.node
            && *phase == other.phase
            && *reason == other.reason
            && *ready_since == other.ready_since
            && *unschedulable == other.unschedulable
            && *is_gated == other.is_gated
            && *disrupted == other.disrupted
            && *restarts == other.restarts
            && *restartable == other.restartable
            && *restarts_containers == other.restarts_containers
            && *has_running_container == other.has_running_container
            && *waiting == other.waiting
            && *crashed == other.crashed
            && *last_exit == other.last_exit
            && *started == other.started
            && *exits == other.exits
            && *finished == other.finished
            && *rejection == other.rejection
            && *conditions == other.conditions
    }
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct WirePod {
    metadata: WireMeta,
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
struct WireCondition {
    #[serde(rename = "type")]
    type_: Box<str>,
    status: Box<str>,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
    last_transition_time: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireContainer {
    name: Box<str>,
    ready: bool,
    restart_count: u32,
    state: WireState,
    last_state: WireState,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireState {
    waiting: Option<WireWaiting>,
    running: Option<WireRunning>,
    terminated: Option<WireTerminated>,
}

impl WireState {
    fn started(&self) -> Option<Timestamp> {
        let running = self.running.as_ref().and_then(|running| running.started_at);
        running.or(self.terminated.as_ref().and_then(|ended| ended.started_at))
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireRunning {
    started_at: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireWaiting {
    reason: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireTerminated {
    exit_code: i32,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

/// Annotations that some plan reads.
fn is_read(annotation: &str) -> bool {
    ["controller.kubernetes.io/", "dj.dysproz.io/", "batch.tutorial.kubebuilder.io/", "quintet.dev/"]
        .iter()
        .any(|prefix| annotation.starts_with(prefix))
}

/// The longest last words that are kept, in bytes: a kubelet keeps 4,096.
const LAST_WORDS: usize = 256;

/// The end of a text, at most so many bytes of it, from a character on.
fn end_of(text: &str, bytes: usize) -> &str {
    let from = text.len().saturating_sub(bytes);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[from..]
}

/// How a container ended in one of its states, if badly.
fn exit(container: &WireContainer, state: &WireState) -> Option<Exit> {
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    let reason = ended.reason.clone().unwrap_or_default();
    let message = end_of(ended.message.as_deref().unwrap_or_default().trim_end(), LAST_WORDS).into();
    Some(Exit { container: container.name.clone(), code: ended.exit_code, reason, message })
}

/// How a container ended badly that waits for its restart. A kubelet looks at a pod only when the wait is over: until then
/// the container is terminated, and waiting (`CrashLoopBackOff`) for an instant at the end (seen with Kubernetes 1.37).
fn crash(container: &WireContainer, spec: &WirePodSpec) -> Option<Exit> {
    match exit(container, &container.state) {
        Some(exit) => spec.restarts_after(&container.name, exit.code).then_some(exit),
        None if container.state.waiting.is_some() => exit(container, &container.last_state),
        None => None,
    }
}

/// The longest message of a rejection that is kept, in bytes.
const REJECTION: usize = 256;

/// The reasons that the kubelet gives when it ends a pod that it had admitted.
const OF_ADMITTED_PODS: [&str; 2] = ["DeadlineExceeded", "Evicted"];

/// Reason and message of a pod that the kubelet rejected at admission: none of its containers ever ran.
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

/// The kubelet's reason for the end of a container that it restarts together with all others of the pod.
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
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = meta.annotations.only(is_read);
        let rejection = rejection(&wire.status);
        let restartable = is_restartable(&wire.spec, &wire.status);
        let WirePodStatus { phase, reason, conditions, container_statuses, init_container_statuses, .. } =
            wire.status;
        let mut ready_since = None;
        let mut not_ready_since = None;
        let mut unschedulable = None;
        let mut is_gated = false;
        let mut disrupted = false;
        let ended_badly = phase == Phase::Failed;
        let mut kept = Vec::new();
        for condition in conditions {
            if ended_badly {
                kept.push((condition.type_.clone(), condition.status.clone()));
            }
            match (&*condition.type_, &*condition.status) {
                ("Ready", "True") => {
                    ready_since = Some(condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH));
                }
                ("Ready", "False") => not_ready_since = condition.last_transition_time,
                ("PodScheduled", "False") => match condition.reason.as_deref() {
                    Some("Unschedulable") => unschedulable = Some(condition.message.unwrap_or_default()),
                    Some("SchedulingGated") => is_gated = true,
                    _ => {}
                },
                ("DisruptionTarget", "True") => disrupted = true,
                _ => {}
            }
        }
        let containers = || init_container_statuses.iter().chain(&container_statuses);
        let without_sidecars = || containers().filter(|container| !wire.spec.has_sidecar(&container.name));
        let finished = containers()
            .filter_map(|container| container.state.terminated.as_ref())
            .filter_map(|ended| ended.finished_at)
            .max();
        let has_ended = matches!(phase, Phase::Succeeded | Phase::Failed);
        Self {
            phase,
            reason,
            ready_since,
            unschedulable,
            is_gated,
            disrupted,
            restarts: without_sidecars()
                .fold(0, |sum, container| sum.saturating_add(container.restart_count)),
            restartable,
            restarts_containers: wire.spec.restarts_containers(),
            has_running_container: without_sidecars().any(|container| container.state.running.is_some()),
            waiting: containers().find_map(|container| {
                container.state.waiting.as_ref().and_then(|waiting| waiting.reason.clone())
            }),
            started: containers()
                .flat_map(|container| [container.state.started(), container.last_state.started()])
                .flatten()
                .min(),
            crashed: containers()
                .find_map(|container| crash(container, &wire.spec).map(Box::new))
                .filter(|_| !has_ended && meta.deleted.is_none()),
            last_exit: containers().filter(|container| !container.ready).find_map(|container| {
                exit(container, &container.state)
                    .or_else(|| exit(container, &container.last_state))
                    .map(Box::new)
            }),
            exits: containers().filter_map(|container| exit(container, &container.state)).collect(),
            conditions: kept.into(),
            finished: finished.or(not_ready_since.filter(|_| has_ended)),
            rejection,
            meta,
            node: wire.spec.node_name,
        }
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    #[serde(default)]
    pub value: Box<str>,
    /// Effect: NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: Box<str>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireNode")]
pub struct Node {
    /// Metadata, without annotations.
    pub meta: Meta,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Box<[Taint]>,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Changes with each boot.
    pub boot_id: Box<str>,
    /// The machine's ID (`/etc/machine-id`). It stays the same across boots and differs on another machine.
    pub machine_id: Box<str>,
}

impl Object for Node {
    fn in_protobuf() -> Option<&'static protobuf::Type> {
        Some(&protobuf::NODE)
    }

    fn key(&self) -> Key {
        self.meta.key()
    }

    fn resource_version(&self) -> &str {
        &self.meta.resource_version
    }

    fn terminating(&self) -> bool {
        self.meta.deleted.is_some()
    }

    fn same(&self, other: &Self) -> bool {
        let Self { meta, unschedulable, taints, ready, boot_id, machine_id } = self;
        meta.same(&other.meta)
            && *unschedulable == other.unschedulable
            && *taints == other.taints
            && *ready == other.ready
            && *boot_id == other.boot_id
            && *machine_id == other.machine_id
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNode {
    metadata: WireMeta,
    spec: WireNodeSpec,
    status: WireNodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNodeSpec {
    unschedulable: bool,
    taints: Option<Box<[Taint]>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireNodeStatus {
    conditions: Vec<WireCondition>,
    node_info: WireNodeInfo,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNodeInfo {
    #[serde(rename = "bootID")]
    boot_id: Box<str>,
    #[serde(rename = "machineID")]
    machine_id: Box<str>,
}

impl From<WireNode> for Node {
    fn from(wire: WireNode) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = crate::model::object::Pairs::default();
        Self {
            meta,
            unschedulable: wire.spec.unschedulable,
            taints: wire.spec.taints.unwrap_or_default(),
            ready: wire
                .status
                .conditions
                .iter()
                .any(|condition| &*condition.type_ == "Ready" && &*condition.status == "True"),
            boot_id: wire.status.node_info.boot_id,
            machine_id: wire.status.node_info.machine_id,
        }
    }
}

/// A Deployment: its spec as the server has it, and what its status says.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireDeployment")]
pub struct Deployment {
    /// Metadata; of the annotations only ours.
    pub meta: Meta,
    /// The spec, defaults and foreign fields included.
    pub spec: Value,
    /// The generation that its controller has seen.
    pub observed_generation: i64,
    /// Pods of any template.
    pub replicas: i32,
    /// Ready pods.
    pub ready: i32,
    /// Why pods cannot be made or do not become available, in its controller's words.
    pub trouble: Option<Box<str>>,
}

impl Object for Deployment {
    crate::identified_by_meta!();

    fn same(&self, other: &Self) -> bool {
        let Self { meta, spec, observed_generation, replicas, ready, trouble } = self;
        meta.same(&other.meta)
            && *spec == other.spec
            && *observed_generation == other.observed_generation
            && *replicas == other.replicas
            && *ready == other.ready
            && *trouble == other.trouble
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireDeployment {
    metadata: WireMeta,
    spec: Value,
    status: WireDeploymentStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireDeploymentStatus {
    observed_generation: i64,
    replicas: i32,
    ready_replicas: i32,
    conditions: Vec<WireCondition>,
}

impl From<WireDeployment> for Deployment {
    fn from(wire: WireDeployment) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = meta.annotations.only(is_read);
        let trouble = wire.status.conditions.into_iter().find_map(|condition| {
            match (&*condition.type_, &*condition.status) {
                ("ReplicaFailure", "True") | ("Progressing", "False") => condition.message,
                _ => None,
            }
        });
        Self {
            meta,
            spec: wire.spec,
            observed_generation: wire.status.observed_generation,
            replicas: wire.status.replicas,
            ready: wire.status.ready_replicas,
            trouble,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_decoded_into_what_is_read() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7",
                "annotations": {"dj.dysproz.io/boot-id": "b", "other": "x"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
            "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [
                    {"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                    {"restartCount": 1, "state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:05Z"}}}]}
        }))
        .unwrap();
        assert_eq!(
            (pod.restarts, pod.exits[0].code, pod.waiting.as_deref()),
            (3, 3, Some("CrashLoopBackOff"))
        );
        assert!(pod.ready_since.is_some() && pod.is_counted());
        assert_eq!(pod.meta.annotations.get("dj.dysproz.io/boot-id"), Some("b"));
        assert_eq!(pod.meta.annotations.get("other"), None);
    }

    #[test]
    fn nulls_and_unknown_phases_are_no_errors() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": null, "ownerReferences": null},
            "status": {"phase": "Dreaming"}
        }))
        .unwrap();
        assert_eq!(pod.phase, Phase::Unknown);
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": null}})).unwrap();
        assert!(!node.ready && node.taints.is_empty());
    }

    #[test]
    fn a_heartbeat_changes_nothing_that_is_read() {
        let node = |version: &str, beat: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n", "resourceVersion": version},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": beat}]}
            }))
            .unwrap()
        };
        assert!(node("1", "2026-01-01T00:00:00Z").same(&node("2", "2026-01-01T00:05:00Z")));
    }

    #[test]
    fn another_machine_or_boot_is_another_node() {
        let node = |machine: &str, boot: &str| -> Node {
            let info = json!({"machineID": machine, "bootID": boot});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})).unwrap()
        };
        assert_eq!((&*node("m", "b").machine_id, &*node("m", "b").boot_id), ("m", "b"));
        for (machine, boot, same) in [("m", "b", true), ("other", "b", false), ("m", "other", false)] {
            assert_eq!(node("m", "b").same(&node(machine, boot)), same, "{machine} {boot}");
        }
    }

    /// A pod with this spec and this status.
    fn pod(spec: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
    }

    /// The status of a container that is terminated.
    fn ended(name: &str, code: i32) -> Value {
        json!({"name": name, "state": {"terminated": {"exitCode": code}}})
    }

    #[test]
    fn restarts_and_running_of_sidecars_do_not_count() {
        let of = |name: &str, restarts: u32, state: &str| {
            let state = json!({state: {}});
            json!({"name": name, "restartCount": restarts, "state": state})
        };
        let spec = json!({
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init", "restartPolicy": "OnFailure"},
                {"name": "plain"}],
            // The policy Always makes no sidecar of a main container.
            "containers": [{"name": "main", "restartPolicy": "Always"}]});
        let (r, w) = ("running", "waiting");
        for (side, init, plain, main, restarts, running) in [
            ((5, r), (1, w), (2, w), (4, w), 7, false),
            ((5, w), (0, r), (0, w), (0, w), 0, true),
            ((5, w), (0, w), (u32::MAX, w), (1, r), u32::MAX, true),
        ] {
            let status = json!({
                "initContainerStatuses": [of("side", side.0, side.1), of("init", init.0, init.1), of("plain", plain.0, plain.1)],
                "containerStatuses": [of("main", main.0, main.1)]});
            let pod = pod(&spec, &status);
            assert_eq!((pod.restarts, pod.has_running_container), (restarts, running), "{status}");
        }
    }

    #[test]
    fn a_container_restarts_by_its_policy_or_its_rules() {
        let rule = |action: &str, operator: &str, values: &[i32]| {
            let codes = json!({"operator": operator, "values": values});
            json!({"action": action, "exitCodes": codes})
        };
        let restart = |operator: &str, values: &[i32]| json!([rule("Restart", operator, values)]);
        let all = |values: &[i32]| json!([rule("RestartAllContainers", "In", values)]);
        let first = |one: &str, two: &str| json!([rule(one, "In", &[3]), rule(two, "In", &[3])]);
        let none = || json!([]);
        // Of the pod, of the container, its rules, its exit code; restartable, restarts_containers.
        for (of_pod, own, rules, code, restartable, restarts) in [
            (None, None, none(), 3, true, true),
            (Some("Always"), None, none(), 3, true, true),
            (Some("OnFailure"), None, none(), 3, true, true),
            (Some("Never"), None, none(), 3, false, false),
            (Some("Strange"), None, none(), 3, true, true),
            (Some("Always"), Some("Never"), none(), 3, false, false),
            (Some("Never"), Some("OnFailure"), none(), 3, true, true),
            (Some("Never"), Some("Always"), none(), 3, true, true),
            (Some("Never"), Some("Strange"), none(), 3, false, false),
            (Some("Always"), Some("Never"), restart("In", &[1, 3]), 3, true, true),
            (Some("Always"), Some("Never"), restart("In", &[1, 2]), 3, false, true),
            (Some("Always"), Some("Never"), restart("NotIn", &[1, 2]), 3, true, true),
            (Some("Always"), Some("Never"), restart("NotIn", &[3]), 3, false, true),
            (Some("Always"), Some("Never"), restart("Strange", &[3]), 3, false, false),
            (Some("Always"), Some("Never"), restart("In", &[0]), 3, false, false),
            (Some("Always"), Some("Never"), json!([{"action": "Restart"}]), 3, false, false),
            (Some("Always"), Some("Never"), all(&[3]), 3, true, true),
            (Some("Always"), Some("Never"), all(&[4]), 3, false, true),
            (Some("Always"), Some("OnFailure"), restart("In", &[4]), 3, true, true),
            // The first rule that matches decides.
            (Some("Always"), Some("Never"), first("Restart", "Strange"), 3, true, true),
            (Some("Always"), Some("Never"), first("Strange", "Restart"), 3, false, true),
            // It ended well: what the policy and the rules may do decides.
            (Some("Never"), None, none(), 0, false, false),
            (Some("Always"), Some("Never"), none(), 0, false, false),
            (Some("Never"), Some("Never"), restart("In", &[3]), 0, true, true),
            (Some("OnFailure"), None, none(), 0, true, true),
        ] {
            let container = json!({"name": "c", "restartPolicy": own, "restartPolicyRules": rules});
            // An init container with the policy Always is a sidecar.
            let kinds = [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")];
            for (specs, statuses) in kinds.into_iter().take(if own == Some("Always") { 1 } else { 2 }) {
                let mut spec = json!({"restartPolicy": of_pod,
                    "containers": [{"name": "other", "restartPolicy": "Never"}]});
                spec[specs] = json!([container, {"name": "other", "restartPolicy": "Never"}]);
                let pod = pod(&spec, &json!({statuses: [ended("c", code)]}));
                let case = format!("{spec} {code}");
                assert_eq!((pod.restartable, pod.restarts_containers), (restartable, restarts), "{case}");
            }
        }
    }

    #[test]
    fn a_failed_container_that_waits_for_its_restart_has_crashed() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let (waiting, running) = (json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({"running": {}}));
        let deleted = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let alive = json!({"name": "p"});
        for (meta, policy, phase, state, last, crashed) in [
            (&alive, "OnFailure", "Running", &ended(3), json!({}), Some(3)),
            (&alive, "OnFailure", "Running", &ended(3), ended(4), Some(3)),
            (&alive, "Always", "Running", &ended(3), json!({}), Some(3)),
            (&alive, "OnFailure", "Running", &waiting, ended(3), Some(3)),
            (&alive, "OnFailure", "Pending", &ended(3), json!({}), Some(3)),
            // It runs, or it ended well, or it never ran.
            (&alive, "OnFailure", "Running", &running, ended(3), None),
            (&alive, "Always", "Running", &ended(0), ended(3), None),
            (&alive, "OnFailure", "Running", &waiting, json!({}), None),
            // It is not restarted.
            (&alive, "Never", "Running", &ended(3), json!({}), None),
            (&alive, "OnFailure", "Failed", &ended(3), json!({}), None),
            (&deleted, "OnFailure", "Running", &ended(3), json!({}), None),
        ] {
            for (specs, statuses) in
                [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
            {
                let status =
                    json!({"phase": phase, statuses: [{"name": "c", "state": state, "lastState": last}]});
                let spec = json!({"restartPolicy": policy, specs: [{"name": "c"}]});
                let pod: Pod =
                    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status}))
                        .unwrap();
                assert_eq!(pod.crashed.map(|exit| exit.code), crashed, "{meta} {spec} {status}");
            }
        }
    }

    #[test]
    fn a_pod_is_restartable_if_all_failed_containers_are() {
        let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [3]}}]);
        let spec = |action: &str| {
            json!({"restartPolicy": "Never",
                "initContainers": [{"name": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "yes", "restartPolicy": "OnFailure"}, {"name": "no"},
                    {"name": "rule", "restartPolicy": "Never", "restartPolicyRules": rule(action)}]})
        };
        let running = |name: &str| json!({"name": name, "state": {"running": {}}, "lastState": ended(name, 1)["state"]});
        let swept = |name: &str| {
            let end = json!({"exitCode": 137, "reason": "RestartingAllContainers"});
            json!({"name": name, "state": {"terminated": end}})
        };
        let one = "Restart";
        let all = "RestartAllContainers";
        for (action, containers, restartable) in [
            (one, vec![], true),
            (one, vec![ended("yes", 1)], true),
            (one, vec![ended("yes", 1), ended("no", 0)], true),
            (one, vec![ended("yes", 1), running("no")], true),
            (one, vec![ended("yes", 1), ended("no", 1)], false),
            (one, vec![ended("yes", 1), ended("rule", 3)], true),
            (one, vec![ended("yes", 1), ended("rule", 4)], false),
            (one, vec![ended("no", 1), ended("rule", 3)], false),
            // The rule restarts the others too.
            (all, vec![ended("no", 1), ended("rule", 3)], true),
            (all, vec![ended("no", 1), ended("rule", 4)], false),
            (all, vec![running("rule"), swept("no")], true),
            // A container that is not in the spec has the pod's policy.
            (one, vec![ended("unknown", 1)], false),
        ] {
            let status = json!({"containerStatuses": containers});
            assert_eq!(pod(&spec(action), &status).restartable, restartable, "{action} {status}");
        }
        // How a sidecar ends decides nothing.
        let status =
            json!({"initContainerStatuses": [ended("side", 143)], "containerStatuses": [ended("no", 1)]});
        assert!(!pod(&spec(one), &status).restartable);
    }

    #[test]
    fn only_policies_of_sidecars_restart_no_container() {
        let side =
            |rules: Value| json!([{"name": "side", "restartPolicy": "Always", "restartPolicyRules": rules}]);
        let rule =
            |action: &str| json!([{"action": action, "exitCodes": {"operator": "NotIn", "values": [0]}}]);
        for (rules, restarts) in [
            (json!([]), false),
            (rule("Restart"), false),
            // This rule of a sidecar restarts the main container.
            (rule("RestartAllContainers"), true),
        ] {
            let spec = json!({"restartPolicy": "Never", "initContainers": side(rules), "containers": [{"name": "c"}]});
            let pod = pod(&spec, &json!({"initContainerStatuses": [ended("side", 0)]}));
            assert_eq!((pod.restartable, pod.restarts_containers), (restarts, restarts), "{spec}");
        }
        for (policy, restarts) in [("Never", false), ("OnFailure", true)] {
            let pod = pod(&json!({"restartPolicy": policy}), &json!({}));
            assert_eq!((pod.restartable, pod.restarts_containers), (restarts, restarts), "{policy}");
        }
    }

    #[test]
    fn a_pod_without_ends_finished_when_it_became_not_ready() {
        let (container, condition) = ("2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z");
        let ready = |status: &str, at: Option<&str>| json!({"type": "Ready", "status": status, "lastTransitionTime": at});
        let scheduled = json!({"type": "PodScheduled", "status": "False", "lastTransitionTime": condition});
        for (phase, ready, end, finished) in [
            ("Failed", ready("False", Some(condition)), None, Some(condition)),
            ("Succeeded", ready("False", Some(condition)), None, Some(condition)),
            ("Failed", ready("False", Some(condition)), Some(container), Some(container)),
            ("Running", ready("False", Some(condition)), None, None),
            ("Pending", ready("False", Some(condition)), None, None),
            ("Unknown", ready("False", Some(condition)), None, None),
            ("Running", ready("False", Some(condition)), Some(container), Some(container)),
            ("Failed", ready("True", Some(condition)), None, None),
            ("Failed", ready("Unknown", Some(condition)), None, None),
            ("Failed", ready("False", None), None, None),
            ("Failed", scheduled, None, None),
        ] {
            let status = json!({"phase": phase, "conditions": [ready], "containerStatuses": [
                {"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": end}}},
                {"name": "d", "state": {"waiting": {}}}]});
            let finished = finished.map(|at| at.parse::<Timestamp>().unwrap());
            assert_eq!(pod(&json!({}), &status).finished, finished, "{status}");
        }
    }

    #[test]
    fn a_pod_that_the_kubelet_did_not_admit_is_rejected() {
        let container =
            |state: &Value, last: &Value| json!([{"name": "c", "state": state, "lastState": last}]);
        let (waiting, running) = (json!({"waiting": {}}), json!({"running": {}}));
        let (ended, none) = (json!({"terminated": {"exitCode": 0}}), json!({}));
        let idle = || container(&waiting, &none);
        let (cpu, short) = (Some("OutOfcpu"), Some("Pod was rejected"));
        let whole = Some("OutOfcpu: Pod was rejected");
        for (phase, reason, message, containers, expected) in [
            ("Failed", cpu, short, json!([]), whole),
            ("Failed", cpu, short, idle(), whole),
            ("Failed", cpu, short, container(&none, &none), whole),
            ("Failed", cpu, None, idle(), cpu),
            ("Failed", cpu, Some(""), idle(), cpu),
            ("Failed", None, short, idle(), None),
            ("Failed", Some(""), short, idle(), None),
            ("Failed", Some("Evicted"), short, idle(), None),
            ("Failed", Some("DeadlineExceeded"), short, idle(), None),
            ("Pending", cpu, short, idle(), None),
            ("Succeeded", cpu, short, idle(), None),
            ("Failed", cpu, short, container(&running, &none), None),
            ("Failed", cpu, short, container(&ended, &none), None),
            ("Failed", cpu, short, container(&waiting, &ended), None),
        ] {
            for statuses in ["containerStatuses", "initContainerStatuses"] {
                let status =
                    json!({"phase": phase, "reason": reason, "message": message, statuses: containers});
                assert_eq!(pod(&json!({}), &status).rejection.as_deref(), expected, "{status}");
            }
        }
    }

    #[test]
    fn the_message_of_a_rejection_is_shortened() {
        let message = "ä".repeat(REJECTION);
        let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": message});
        let rejection = pod(&json!({}), &status).rejection.unwrap();
        let kept = rejection.strip_prefix("OutOfcpu: ää").unwrap();
        assert!(kept.ends_with("ä…") && kept.len() <= REJECTION - "ää".len(), "{rejection}");
    }

    #[test]
    fn each_field_of_restarts_and_rejection_is_compared() {
        let changes: [fn(&mut Pod); 5] = [
            |pod| pod.restartable = true,
            |pod| pod.restarts_containers = true,
            |pod| pod.has_running_container = true,
            |pod| pod.rejection = Some("OutOfcpu".into()),
            |pod| pod.finished = Some(Timestamp::UNIX_EPOCH),
        ];
        for change in changes {
            let mut pod = Pod::default();
            change(&mut pod);
            assert!(!pod.same(&Pod::default()) && pod.same(&pod.clone()), "{pod:?}");
        }
    }
}
