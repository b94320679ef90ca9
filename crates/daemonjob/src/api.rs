//! The DaemonJob custom resource: the tutorial's fields, Quintet's additions, and the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::schema::{number_or_percentage, short_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pod template of a DaemonJob, and the rules for its runs.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dj.dysproz.io",
    version = "v1",
    kind = "DaemonJob",
    plural = "daemonjobs",
    singular = "daemonjob",
    shortname = "dj",
    category = "quintet",
    namespaced,
    status = "DaemonJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "DaemonJob runs a pod to completion once on every eligible node of the cluster.",
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.active"),
    printcolumn(name = "Succeeded", type_ = "integer", json_path = ".status.succeeded"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Complete\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = short_name(63, "the name is also a label of the pods")
)]
#[x_kube(
    validation = Rule::new(
        "!has(self.podFailurePolicy) || has(self.template.spec) && has(self.template.spec.restartPolicy) \
         && self.template.spec.restartPolicy == 'Never'"
    )
    .message(
        "podFailurePolicy needs template.spec.restartPolicy Never: a pod whose containers restart does not show how it failed"
    ),
    // The names are bound once: a lookup for each policy rule would exceed the API server's cost limit.
    validation = Rule::new(
        "!has(self.podFailurePolicy) || !has(self.template.spec) \
         || [self.template.spec.containers.map(container, container.name) + \
         (has(self.template.spec.initContainers) ? self.template.spec.initContainers.map(container, container.name) : [])]\
         .all(names, self.podFailurePolicy.rules.all(rule, !has(rule.onExitCodes) \
         || !has(rule.onExitCodes.containerName) || rule.onExitCodes.containerName in names))"
    )
    .message("onExitCodes.containerName must be the name of a container or init container of the template")
)]
#[serde(rename_all = "camelCase")]
pub struct DaemonJobSpec {
    /// The pod that runs on every node. Its nodeSelector, node affinity and tolerations determine the
    /// eligible nodes, as for a DaemonSet. restartPolicy Always, or no restartPolicy, becomes OnFailure.
    #[x_kube(
        validation = Rule::new("has(self.spec) && has(self.spec.containers) && self.spec.containers.size() > 0")
            .message("template.spec.containers must list at least one container")
    )]
    pub template: RawTemplate,

    /// The number of pods that may run at the same time, or a percentage of the desired nodes, rounded up and
    /// at least 1. By default every eligible node gets its pod immediately. To create no pods, set paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = Rule::new(
            "type(self) == int ? self >= 1 && self <= 1000000 : self.matches('^([1-9]|[1-9][0-9]|100)%$')"
        )
        .message(
            "parallelism must be a whole number from 1 to 1,000,000 or a percentage from 1% to 100%; set paused to create no \
             pods"
        )
    )]
    pub parallelism: Option<IntOrString>,

    /// Deletes running pods and creates none, as for a Job. Done nodes stay done. Resuming begins a new run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Creates no further pods. Running pods continue. The clock of activeDeadlineSeconds stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,

    /// The reaction to failed nodes. Without it the other nodes continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,

    /// Which failures of a pod count, as for a Job. A node is like an index of a Job. Needs restartPolicy
    /// Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_failure_policy: Option<PodFailurePolicy>,

    /// The number of failures that each node may have before it counts as failed. With restartPolicy
    /// OnFailure, restarts of containers count too, as for a Job. Default 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub backoff_limit: Option<i32>,

    /// The number of consecutive disruptions that a node may have before it counts as failed. Disruptions are
    /// evictions, preemptions and rejections by the kubelet. Disruptions on cordoned or tainted nodes do not
    /// count. Without this field there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub disruption_limit: Option<i32>,

    /// The seconds that a run may work, as status.workedSeconds counts them, without the time in which the
    /// run is held. After that the manager deletes the running pods, and the run is Failed with reason
    /// DeadlineExceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<i64>,

    /// The seconds that a pod may be Pending, or that the kubelet may reject a node's pods. After that the
    /// manager deletes the pod and skips its node for this run, with reason PendingDeadlineExceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub pending_deadline_seconds: Option<i64>,

    /// Whether nodes that are created after the run started run too. Default Run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "LateNodes")]
    pub late_nodes: Option<LateNodes>,

    /// The changes that make a done node run again. Default TemplateChange. With an empty list none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub rerun_on: Option<Vec<RerunOn>>,

    /// A new value retries failed nodes, and nodes that were skipped because of pendingDeadlineSeconds or a
    /// lost record. Nodes that are done stay done. Removing the value has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub retry_token: Option<String>,

    /// The treatment of nodes that have not run and that Kubernetes has tainted as unhealthy. By default they
    /// are pending, and skipped after 300 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_nodes: Option<UnhealthyNodes>,

    /// Whether running pods of an older template finish or are replaced. Default Finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "OutdatedPods")]
    pub outdated_pods: Option<OutdatedPods>,

    /// The manager deletes a pod of a done node this number of seconds after the pod's end. Other ended pods
    /// follow this number of seconds after the end of the run. The ledger keeps the outcomes, so no node runs
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// Accepted for compatibility, without effect: pods belong to their DaemonJob by owner reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,

    /// Accepted for compatibility, without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual_selector: Option<bool>,
}

/// The limit of failed nodes, and the reaction when more nodes have failed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Continue: the other nodes continue. FailFast: the run ends and the manager deletes its running pods.
    /// Pause: the manager creates no further pods until maxFailedNodes is raised, or the type, the template
    /// or retryToken changes. Default Continue.
    #[serde(default, rename = "type")]
    pub type_: FailurePolicyType,

    /// The number of failed nodes that are tolerated, or a percentage of status.rollout.base, rounded down.
    /// With Continue, a DaemonJob with at most this number of failed nodes is Complete. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = number_or_percentage("maxFailedNodes", 1_000_000))]
    pub max_failed_nodes: Option<IntOrString>,

    /// The seconds that a node may be not Ready after a pod ran there, before it counts as failed. Default
    /// 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub node_lost_after_seconds: Option<i64>,
}

/// See [`FailurePolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicyType {
    #[default]
    /// The other nodes continue.
    Continue,
    /// The run ends.
    FailFast,
    /// The manager creates no further pods.
    Pause,
}

/// Rules about failed pods, as for a Job. The first rule that matches decides. Without a match the failure
/// counts.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFailurePolicy {
    /// The rules, at most 20.
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodFailureRule>,
}

/// One rule.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.onExitCodes) != (has(self.onPodConditions) && self.onPodConditions.size() > 0)")
        .message("a rule of podFailurePolicy needs one of onExitCodes and onPodConditions, and not both")
)]
pub struct PodFailureRule {
    /// FailJob: the whole run fails. FailIndex: the node fails, without further attempts. Ignore: the failure
    /// does not count, and the manager retries the node. Count: the failure counts against backoffLimit.
    pub action: PodFailureAction,
    /// Matches by the exit codes of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    /// Matches a pod that has one of these conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub on_pod_conditions: Option<Vec<OnPodCondition>>,
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodFailureAction {
    /// The whole run fails.
    FailJob,
    /// The node fails, without further attempts.
    FailIndex,
    /// The failure does not count.
    Ignore,
    /// The failure counts.
    Count,
}

/// Matches by the exit codes of failed containers and init containers.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.operator != 'In' || !self.values.exists(value, value == 0)")
        .message("onExitCodes with operator In cannot list 0: a container that exits with 0 has not failed")
)]
pub struct OnExitCodes {
    /// Only this container counts. Without this field every container counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub container_name: Option<String>,
    /// In: one of the values. NotIn: none of them.
    pub operator: ExitCodeOperator,
    /// Exit codes.
    #[schemars(length(min = 1, max = 255), extend("x-kubernetes-list-type" = "set"))]
    pub values: Vec<i32>,
}

/// See [`OnExitCodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodeOperator {
    /// One of the values.
    In,
    /// None of the values.
    NotIn,
}

/// Matches a condition of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnPodCondition {
    /// The type of the condition, for example DisruptionTarget.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// The status of the condition. Default True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7))]
    pub status: Option<String>,
}

/// The treatment of nodes that have not run and that Kubernetes has tainted as unhealthy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.skipAfterSeconds) || !has(self.policy) || self.policy == 'SkipAfter'")
        .message("skipAfterSeconds needs policy SkipAfter: with policy Wait, no node is skipped because it is unhealthy")
)]
pub struct UnhealthyNodes {
    /// SkipAfter: the manager skips them after skipAfterSeconds. Wait: the run waits. Default SkipAfter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "UnhealthyPolicy")]
    pub policy: Option<UnhealthyPolicy>,

    /// The seconds that the run waits for an unhealthy node. Default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub skip_after_seconds: Option<i64>,
}

/// See [`UnhealthyNodes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnhealthyPolicy {
    /// The manager skips them after a while.
    #[default]
    SkipAfter,
    /// The run waits for them.
    Wait,
}

/// Whether running pods of an older template finish or are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutdatedPods {
    /// They finish, except pods that only wait for a restart after a failure.
    #[default]
    Finish,
    /// The manager deletes them when their node may run the new template.
    Replace,
}

/// Whether nodes that are created after the run started run too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LateNodes {
    /// They run too.
    #[default]
    Run,
    /// They are skipped until the next run.
    Ignore,
}

/// A change that makes a node run again after it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RerunOn {
    /// The template has changed since its last attempt.
    TemplateChange,
    /// The node has booted since its last successful pod was created.
    NodeReboot,
    /// The machine ID has changed since the last successful pod was created: the node was reinstalled.
    MachineChange,
}

/// The observed state of a DaemonJob. Numbers count nodes, but `active` and `terminating` count pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct DaemonJobStatus {
    /// The generation that this status describes. -1 until a manager writes the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = -1))]
    pub observed_generation: Option<i64>,
    /// Nodes that are done, have failed, run or are pending, and other nodes where a pod still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Pods that are neither finished nor terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<i32>,
    /// Selected nodes that are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Selected nodes that have failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Selected nodes whose pod is not created yet, has not started or waits for a restart. Nodes that hold a
    /// slot without a running pod count too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// Selected nodes that get no pod in this run. Nodes with an untolerated taint are not desired either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<i32>,
    /// Pods that are terminating and not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// When the current run started. The manager sets it before it creates the first pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the current run became complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The hash of the template of the current run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// The current rollout, to which failures and limits belong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The number of the current run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// The seconds that the current run worked before workingSince, or before its clock stopped.
    /// activeDeadlineSeconds limits them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worked_seconds: Option<i64>,
    /// When the clock of the current run began to advance. Absent while the clock is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_since: Option<Time>,
    /// The numbers of the ledger shards that the manager has created. Their ConfigMaps' names end with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<i32>")]
    pub ledger_shards: Vec<u8>,
    /// The first failed nodes, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<NodeReason>,
    /// The number of failed nodes that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_failed_nodes: Option<i32>,
    /// The first pending nodes, in the order in which they get their pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_nodes: Vec<NodeReason>,
    /// The number of pending nodes that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_pending_nodes: Option<i32>,
    /// The first skipped nodes, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_nodes: Vec<NodeReason>,
    /// The number of skipped nodes that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_skipped_nodes: Option<i32>,
    /// Ready: the DaemonJob is complete or suspended, or was complete before nodes joined. Complete: every
    /// selected node is done, skipped, or failed within maxFailedNodes. Failed: the run ended otherwise.
    /// Finished: Complete or Failed. Stalled: the manager creates no pods until a user acts. Suspended:
    /// spec.suspend is set. Paused: the manager creates no further pods (DefinitionOutdated, Paused,
    /// MaxFailedNodesExceeded or FleetUnhealthy). PodsRefused: the API server rejects pods (TemplateInvalid:
    /// all pods of this template). LedgerLost: the record of some nodes is lost or in an unknown format.
    /// LedgerRefused: the API server rejects the ledger. SelectorIgnored: selector or manualSelector is set.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "quintet_runtime::model::conditions::lenient"
    )]
    pub conditions: Vec<Condition>,
}

/// The rollout of one template. A change of the template or of retryToken begins a new rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// The number of the rollout. It rises with each change, even if an earlier template returns.
    #[serde(default)]
    pub number: i64,
    /// The retryToken of this rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_token: Option<String>,
    /// The largest number of selected nodes in this rollout, of which maxFailedNodes takes its percentage. It
    /// never falls. Nodes that join raise it, except while the failure policy stops the rollout.
    #[serde(default)]
    pub base: i32,
    /// The smallest number of nodes that were unhealthy at the same time since the run began.
    #[serde(default)]
    pub unhealthy_from_start: i32,
    /// When the failure policy stopped the rollout. Absent while it does not stop the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub braked_since: Option<Time>,
    /// The reason for the end of the rollout: the reason of the condition Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// A digest of the limits that ended the rollout. The rollout continues when the limits change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
}

/// A node that is not done, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReason {
    /// The name of the node.
    pub node: String,
    /// The reason, as one CamelCase word.
    pub reason: String,
    /// The details: the taint, the message of the scheduler, or the time until which the node waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
