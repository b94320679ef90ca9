//! The core types that plans look at, decoded into just the fields that are read.
//!
//! serde skips everything else while it parses, so a Pod of 5 KB of JSON costs a few hundred bytes and nothing at
//! the peak. A field that a plan begins to read is added here, to the wire form, to the kept form and to its table in
//! [`crate::protobuf`].

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

use crate::object::{Key, Meta, Object, WireMeta};
use crate::protobuf;

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
    /// Whether it was disrupted: preempted, evicted by the API, deleted by a taint.
    pub disrupted: bool,
    /// Restarts of its containers, added up.
    pub restarts: u32,
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
    /// When its last container ended.
    pub finished: Option<Timestamp>,
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
            disrupted,
            restarts,
            waiting,
            crashed,
            last_exit,
            started,
            exits,
            finished,
            conditions,
        } = self;
        meta.same(&other.meta)
            && *node == other.node
            && *phase == other.phase
            && *reason == other.reason
            && *ready_since == other.ready_since
            && *unschedulable == other.unschedulable
            && *disrupted == other.disrupted
            && *restarts == other.restarts
            && *waiting == other.waiting
            && *crashed == other.crashed
            && *last_exit == other.last_exit
            && *started == other.started
            && *exits == other.exits
            && *finished == other.finished
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
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WirePodStatus {
    phase: Phase,
    reason: Option<Box<str>>,
    conditions: Vec<WireCondition>,
    container_statuses: Vec<WireContainer>,
    init_container_statuses: Vec<WireContainer>,
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

impl From<WirePod> for Pod {
    fn from(wire: WirePod) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = meta.annotations.only(is_read);
        let WirePodStatus { phase, reason, conditions, container_statuses, init_container_statuses } =
            wire.status;
        let mut ready_since = None;
        let mut unschedulable = None;
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
                ("PodScheduled", "False") if condition.reason.as_deref() == Some("Unschedulable") => {
                    unschedulable = Some(condition.message.unwrap_or_default());
                }
                ("DisruptionTarget", "True") => disrupted = true,
                _ => {}
            }
        }
        let containers = || init_container_statuses.iter().chain(&container_statuses);
        let ended = || containers().filter_map(|container| container.state.terminated.as_ref());
        Self {
            node: wire.spec.node_name,
            phase,
            reason,
            ready_since,
            unschedulable,
            disrupted,
            restarts: containers().fold(0, |sum, container| sum.saturating_add(container.restart_count)),
            waiting: containers().find_map(|container| {
                container.state.waiting.as_ref().and_then(|waiting| waiting.reason.clone())
            }),
            started: containers()
                .flat_map(|container| [container.state.started(), container.last_state.started()])
                .flatten()
                .min(),
            crashed: containers()
                .filter(|container| container.state.waiting.is_some())
                .find_map(|container| exit(container, &container.last_state).map(Box::new)),
            last_exit: containers().filter(|container| !container.ready).find_map(|container| {
                exit(container, &container.state)
                    .or_else(|| exit(container, &container.last_state))
                    .map(Box::new)
            }),
            exits: containers().filter_map(|container| exit(container, &container.state)).collect(),
            conditions: kept.into(),
            finished: ended().filter_map(|ended| ended.finished_at).max(),
            meta,
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
        let Self { meta, unschedulable, taints, ready, boot_id } = self;
        meta.same(&other.meta)
            && *unschedulable == other.unschedulable
            && *taints == other.taints
            && *ready == other.ready
            && *boot_id == other.boot_id
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
}

impl From<WireNode> for Node {
    fn from(wire: WireNode) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = crate::object::Pairs::default();
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
}
