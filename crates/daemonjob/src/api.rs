//! The DaemonJob custom resource: the tutorial's fields, Quintet's additions, and the status.

mod on_success;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use quintet_runtime::model::conditions::{READY, of_types};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::schema::{number_or_percentage, short_name};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

pub use on_success::{OnSuccess, RemovedTaint, TaintEffect};

/// The pod template of a DaemonJob, and the rules for its runs.
#[skip_serializing_none]
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
    printcolumn(name = "Wave", type_ = "integer", json_path = ".status.rollout.wave", priority = 1),
    printcolumn(
        name = "Waiting For",
        type_ = "string",
        json_path = ".status.rollout.waitingFor",
        priority = 1
    ),
    printcolumn(
        name = "Next Due",
        type_ = "string",
        json_path = ".status.schedule.nextDueTime",
        priority = 1
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
    .message("onExitCodes.containerName must be the name of a container or init container of the template"),
    validation = Rule::new(
        "!has(self.rollout) || !has(self.rollout.waveSizes) || has(self.failurePolicy) && has(self.failurePolicy.type) \
         && self.failurePolicy.type in ['FailFast', 'Pause']"
    )
    .message(
        "rollout.waveSizes needs failurePolicy.type Pause or FailFast: with Continue, failed nodes do not stop the rollout"
    ),
    validation = Rule::new("!has(self.schedule) || !has(self.rerunOn)")
        .message("schedule and rerunOn exclude each other: with schedule, every node runs again at each due time"),
    validation = Rule::new(
        "!has(self.schedule) || !has(self.rollout) || !has(self.rollout.approval) || self.rollout.approval == 'None'"
    )
    .message("schedule and rollout.approval exclude each other: a run at a due time cannot wait for a user"),
    validation = Rule::new("has(self.schedule) || !has(self.timeZone) && !has(self.startingDeadlineSeconds)")
        .message("timeZone and startingDeadlineSeconds need schedule: set schedule, or remove them")
)]
#[serde(rename_all = "camelCase")]
pub struct DaemonJobSpec {
    /// The template of the pod that runs on every eligible node. As for a DaemonSet, the pod's nodeSelector,
    /// node affinity and tolerations determine the eligible nodes. If restartPolicy is Always or absent, the
    /// manager sets OnFailure.
    #[x_kube(
        validation = Rule::new("has(self.spec) && has(self.spec.containers) && self.spec.containers.size() > 0")
            .message("template.spec.containers must list at least one container")
    )]
    pub template: RawTemplate,

    /// The number of pods that may run at the same time, or a percentage of status.desired. A percentage is
    /// rounded up to at least 1 pod. By default, every eligible node gets its pod immediately. To create no
    /// pods, set paused instead.
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

    /// If suspend is true, the manager deletes running pods and creates no pods, as for a Job. Nodes that are
    /// done do not run again. When suspend becomes false, a new run begins.
    pub suspend: Option<bool>,

    /// If paused is true, the manager creates no further pods, but running pods continue. The paused time
    /// does not count for activeDeadlineSeconds.
    pub paused: Option<bool>,

    /// How the DaemonJob reacts to failed nodes. Without a failurePolicy, the other nodes continue when a
    /// node fails.
    pub failure_policy: Option<FailurePolicy>,

    /// Rules that decide how the failure of a pod counts. They work as the podFailurePolicy of a Job, with
    /// nodes instead of indexes. podFailurePolicy needs restartPolicy Never.
    pub pod_failure_policy: Option<PodFailurePolicy>,

    /// The number of failures that each node may have. A node with more failures counts as failed. With
    /// restartPolicy OnFailure, restarts of containers count as failures too, as for a Job. Default 6.
    #[schemars(range(min = 0, max = 1_000))]
    pub backoff_limit: Option<i32>,

    /// The number of consecutive disruptions that each node may have. A node with more disruptions counts as
    /// failed. Disruptions are deletions by other clients, evictions, preemptions, and rejections by the
    /// kubelet. Deletions, evictions and preemptions on a cordoned or tainted node do not count. By default,
    /// disruptions are not limited.
    #[schemars(range(min = 0, max = 1_000))]
    pub disruption_limit: Option<i32>,

    /// The limit of status.workedSeconds, in seconds. Time does not count while the DaemonJob is paused, or
    /// while every remaining node waits for a retry or is unhealthy. When a run exceeds this limit, the
    /// manager deletes its running pods, and the run is Failed with the reason DeadlineExceeded.
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<i64>,

    /// The number of seconds that a pod may be Pending, and that the kubelet may reject the pods of a node.
    /// When this time has passed, the manager deletes the pod, and skips its node in this run with the reason
    /// PendingDeadlineExceeded.
    #[schemars(range(min = 1, max = 315_360_000))]
    pub pending_deadline_seconds: Option<i64>,

    /// Whether a node that is created after a run started gets a pod in this run (Run) or waits for the next
    /// run (Ignore). Default Run.
    #[serde(default)]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "LateNodes")]
    pub late_nodes: Option<LateNodes>,

    /// The changes that make a node run again after its pod succeeded. The default is TemplateChange. If the
    /// list is empty, a node never runs again after a success.
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub rerun_on: Option<Vec<RerunOn>>,

    /// A new value of retryToken retries failed nodes, and nodes that were skipped because of
    /// pendingDeadlineSeconds or a lost record. Nodes that are done do not run again. Removing retryToken has
    /// no effect.
    #[schemars(length(min = 1, max = 63))]
    pub retry_token: Option<String>,

    /// The due times as five crontab fields: minute, hour, day of month, month and day of week, for example
    /// "30 3 * * *". Every selected node runs again at each due time, and no node runs at other times. If both
    /// day fields are set and neither begins with *, one of them must match. Without a schedule, nodes run as
    /// soon as possible.
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,

    /// The time zone of schedule, as a name in the IANA time zone database, for example Europe/Berlin. A local
    /// time that does not exist is not a due time. A local time that exists twice is due once. Default UTC.
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,

    /// The number of seconds after a due time within which its run must begin. Later, the manager waits for the
    /// next due time. The run itself may take longer. By default, the run of the last due time begins even if it
    /// is late.
    #[schemars(range(min = 1, max = 315_360_000))]
    pub starting_deadline_seconds: Option<i64>,

    /// How a rollout advances over the nodes. By default, the nodes run in one wave, without approval, and a
    /// node is finished when it is Ready after its success.
    pub rollout: Option<RolloutSpec>,

    /// The changes that the manager makes to a Node after the success of its pod. The administrator of the
    /// cluster must allow the keys with the chart value daemonJob.nodeMarks.
    pub on_success: Option<OnSuccess>,

    /// How a run treats nodes that have not run yet and that Kubernetes has tainted as unhealthy. By default,
    /// the run waits 300 seconds for an unhealthy node, and then skips the node.
    pub unhealthy_nodes: Option<UnhealthyNodes>,

    /// Whether running pods of an older template finish (Finish) or are replaced (Replace). Default Finish.
    #[serde(default)]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "OutdatedPods")]
    pub outdated_pods: Option<OutdatedPods>,

    /// The number of seconds after which the manager deletes ended pods. For pods of done nodes, the time
    /// begins when the pod ends. For other pods, the time begins when the run ends. The deletion of an ended
    /// pod does not make its node run again. By default, ended pods stay.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// The manager ignores selector, which exists for compatibility with the tutorial. Pods belong to their
    /// DaemonJob by owner reference.
    pub selector: Option<LabelSelector>,

    /// The manager ignores manualSelector, which exists for compatibility with the tutorial.
    pub manual_selector: Option<bool>,
}

/// The number of failed nodes that are tolerated, and the reaction when more nodes have failed.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// The reaction when more nodes have failed than maxFailedNodes allows. Continue: the other nodes
    /// continue. FailFast: the run ends, and the manager deletes its running pods. Pause: the manager creates
    /// no further pods until maxFailedNodes is raised, or the type, the template or retryToken changes.
    /// Default Continue.
    #[serde(default, rename = "type")]
    pub type_: FailurePolicyType,

    /// The number of failed nodes that are tolerated, or a percentage of status.rollout.base, rounded down.
    /// If maxFailedNodes is set and the type is Continue, a DaemonJob with at most this number of failed
    /// nodes can be Complete. Default 0.
    #[x_kube(validation = number_or_percentage("maxFailedNodes", 1_000_000))]
    pub max_failed_nodes: Option<IntOrString>,

    /// The number of seconds that a node may be not Ready after its pod started. A node that is not Ready for
    /// longer counts as failed, even if its pod succeeded. Default 600.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub node_lost_after_seconds: Option<i64>,
}

/// See [`FailurePolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicyType {
    #[default]
    /// When more nodes have failed than maxFailedNodes allows, the other nodes continue.
    Continue,
    /// When more nodes have failed than maxFailedNodes allows, the run ends.
    FailFast,
    /// When more nodes have failed than maxFailedNodes allows, the manager creates no further pods.
    Pause,
}

/// Rules that decide how the failure of a pod counts, as for a Job. The first rule that matches the pod
/// decides. If no rule matches, a failure counts against backoffLimit, and a disruption against
/// disruptionLimit.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFailurePolicy {
    /// The rules for failed pods. The list may have at most 20 rules.
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodFailureRule>,
}

/// One rule for failed pods.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.onExitCodes) != (has(self.onPodConditions) && self.onPodConditions.size() > 0)")
        .message("a rule of podFailurePolicy needs one of onExitCodes and onPodConditions, and not both")
)]
pub struct PodFailureRule {
    /// The effect when the rule matches a pod. FailJob: the whole run fails. FailIndex: the node of the pod
    /// fails, and the manager does not retry the node. Ignore: the failure does not count, and the manager
    /// retries the node. Count: the failure counts against backoffLimit.
    pub action: PodFailureAction,
    /// The rule matches a pod if the exit codes of its failed containers meet this requirement.
    pub on_exit_codes: Option<OnExitCodes>,
    /// The rule matches a pod that has at least one of these conditions.
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub on_pod_conditions: Option<Vec<OnPodCondition>>,
}

/// The effect when a rule matches a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodFailureAction {
    /// The whole run fails.
    FailJob,
    /// The node of the pod fails, and the manager does not retry the node.
    FailIndex,
    /// The failure does not count, and the manager retries the node.
    Ignore,
    /// The failure counts against backoffLimit.
    Count,
}

/// A requirement for the exit codes of failed containers and init containers.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.operator != 'In' || !self.values.exists(value, value == 0)")
        .message("onExitCodes with operator In cannot list 0: a container that exits with 0 has not failed")
)]
pub struct OnExitCodes {
    /// The name of the container or init container whose exit code counts. Without containerName, the exit
    /// codes of all containers count.
    #[schemars(length(max = 253))]
    pub container_name: Option<String>,
    /// In: the rule matches if an exit code is in values. NotIn: the rule matches if an exit code is not in
    /// values.
    pub operator: ExitCodeOperator,
    /// The exit codes with which the operator compares the exit codes of containers.
    #[schemars(length(min = 1, max = 255), extend("x-kubernetes-list-type" = "set"))]
    pub values: Vec<i32>,
}

/// See [`OnExitCodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodeOperator {
    /// The rule matches if an exit code is in values.
    In,
    /// The rule matches if an exit code is not in values.
    NotIn,
}

/// A condition of a pod that a rule matches.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnPodCondition {
    /// The type of the pod condition, for example DisruptionTarget.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// The status of the pod condition. Default True.
    #[schemars(length(max = 7))]
    pub status: Option<String>,
}

/// How a rollout advances over the nodes.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.approval) || self.approval == 'None' || has(self.waveSizes)")
        .message("approval FirstWave or EveryWave needs waveSizes: set waveSizes, or remove approval")
)]
pub struct RolloutSpec {
    /// The sizes of the waves. Each size is the number of nodes that may have started in all, or a percentage
    /// of status.rollout.base, rounded up. The next wave begins when this number of nodes are done and settled
    /// or failed, and more of them succeeded than failed. The last wave has all other nodes. A size that is
    /// not larger than the size before it has no effect. waveSizes needs failurePolicy.type Pause or FailFast.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    // The API server estimates the cost of matches() for the longest possible strings. Ten of them would exceed its
    // limit.
    #[x_kube(
        validation = Rule::new(
            "self.all(one, type(one) == int ? one >= 1 && one <= 1000000 : one == '100%' || one.endsWith('%') \
             && one.size() < 4 && one.charAt(0) in ['1', '2', '3', '4', '5', '6', '7', '8', '9'] && (one.size() == 2 \
             || one.charAt(1) in ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']))"
        )
        .message("each of waveSizes must be a whole number from 1 to 1,000,000 or a percentage from 1% to 100%"),
        validation = Rule::new(
            "self.all(one, type(one) != int || self.exists_one(other, type(other) == int && int(other) == int(one))) \
             && self.filter(one, type(one) == int).map(one, int(one)).isSorted()"
        )
        .message(
            "the numbers in waveSizes must grow, because each is the number of nodes in all: use [1, 10] for 1 node \
             and then 9 more"
        )
    )]
    pub wave_sizes: Option<Vec<IntOrString>>,

    /// The waves after which the rollout waits for a user. FirstWave: after the first wave. EveryWave: after
    /// every wave except the last. To approve wave 1 of rollout 3, set the annotation dj.dysproz.io/approved
    /// to 3/1. Default None.
    #[serde(default)]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "Approval")]
    pub approval: Option<Approval>,

    /// The number of seconds for which a node must stay Ready after its success, before it counts as settled.
    /// A node that settles holds its slot of parallelism. Default 0.
    #[schemars(range(min = 0, max = 86_400))]
    pub settle_seconds: Option<i64>,
}

/// The waves after which a rollout waits for the approval of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Approval {
    /// No wave needs approval.
    #[default]
    None,
    /// The first wave needs approval.
    FirstWave,
    /// Every wave except the last needs approval.
    EveryWave,
}

/// How a run treats nodes that have not run yet and that Kubernetes has tainted as unhealthy.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.skipAfterSeconds) || !has(self.policy) || self.policy == 'SkipAfter'")
        .message("skipAfterSeconds needs policy SkipAfter: with policy Wait, no node is skipped because it is unhealthy")
)]
pub struct UnhealthyNodes {
    /// SkipAfter: the manager skips an unhealthy node after skipAfterSeconds. Wait: the run waits until the
    /// node is healthy. Default SkipAfter.
    #[serde(default)]
    // A nullable enumeration must list null. The API server drops the null of a field that is not nullable.
    #[schemars(with = "UnhealthyPolicy")]
    pub policy: Option<UnhealthyPolicy>,

    /// The number of seconds that the run waits for an unhealthy node before it skips the node. Default 300.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub skip_after_seconds: Option<i64>,
}

/// See [`UnhealthyNodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnhealthyPolicy {
    /// The manager skips an unhealthy node after skipAfterSeconds.
    SkipAfter,
    /// The run waits until an unhealthy node is healthy.
    Wait,
}

/// Whether running pods of an older template finish or are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutdatedPods {
    /// Running pods of an older template finish. Pods that only wait for a restart after a failure are
    /// replaced.
    Finish,
    /// The manager deletes a running pod of an older template when its node may run the new template.
    Replace,
}

/// Whether nodes that are created after the start of a run get a pod in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LateNodes {
    /// Nodes that are created after the start of a run get a pod in this run.
    Run,
    /// Nodes that are created after the start of a run wait for the next run.
    Ignore,
}

/// A change that makes a node run again after its pod succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RerunOn {
    /// The template has changed since the last attempt on the node.
    TemplateChange,
    /// The node has booted since its last successful pod was created.
    NodeReboot,
    /// The machine ID of the node has changed since its last successful pod was created, for example by a
    /// reinstallation.
    MachineChange,
}

/// The observed state of a DaemonJob. Most numbers count nodes, but `active` and `terminating` count pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct DaemonJobStatus {
    /// The generation of the spec that this status describes. The value is -1 until a manager writes the
    /// status.
    #[schemars(extend("default" = -1))]
    pub observed_generation: Option<i64>,
    /// The number of selected nodes that no taint keeps away, plus the number of other nodes where a pod
    /// still runs.
    pub desired: Option<i32>,
    /// The number of pods that have not ended and are not terminating.
    pub active: Option<i32>,
    /// The number of selected nodes that are done: the last attempt on the node succeeded, and no change
    /// makes the node run again.
    pub succeeded: Option<i32>,
    /// The number of selected nodes that have failed.
    pub failed: Option<i32>,
    /// The number of selected nodes whose pod is not created yet, has not started or waits for a restart.
    /// Nodes that hold a slot of parallelism without a healthy running pod count too.
    pub pending: Option<i32>,
    /// The number of selected nodes that get no pod in this run. Nodes that are skipped because of a taint do
    /// not count as desired.
    pub skipped: Option<i32>,
    /// The number of pods that are terminating and have not ended.
    pub terminating: Option<i32>,
    /// The time when the current run started. The manager sets startTime before it creates the first pod of
    /// the run.
    pub start_time: Option<Time>,
    /// The time when the current run became Complete.
    pub completion_time: Option<Time>,
    /// The hash of the template of the current run.
    pub template_hash: Option<String>,
    /// The current rollout. Failures count, and are compared with the limits, within one rollout.
    pub rollout: Option<Rollout>,
    /// The number of the current run.
    pub run: Option<i64>,
    /// The schedule that the manager has observed, and its due times.
    pub schedule: Option<ScheduleStatus>,
    /// The last five due times of the schedule, newest first, and what happened at each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ScheduledRun>,
    /// The number of seconds that the current run worked before workingSince. If workingSince is absent,
    /// workedSeconds is the complete working time of the run. activeDeadlineSeconds limits the working time.
    pub worked_seconds: Option<i64>,
    /// The time up to which workedSeconds counts the current run. The field is absent while the run does not
    /// work, for example while the DaemonJob is paused.
    pub working_since: Option<Time>,
    /// The numbers of the ConfigMaps in which the manager has recorded the outcomes of pods. The name of each
    /// ConfigMap ends with its number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<i32>")]
    pub ledger_shards: Vec<u8>,
    /// The first 20 failed nodes, sorted by name, with Ready nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<NodeReason>,
    /// The number of failed nodes that are not in failedNodes.
    pub more_failed_nodes: Option<i32>,
    /// The first 20 pending nodes, sorted by name, with Ready nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_nodes: Vec<NodeReason>,
    /// The number of pending nodes that are not in pendingNodes.
    pub more_pending_nodes: Option<i32>,
    /// The first 20 skipped nodes, sorted by name, with Ready nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_nodes: Vec<NodeReason>,
    /// The number of skipped nodes that are not in skippedNodes.
    pub more_skipped_nodes: Option<i32>,
    /// Ready: the DaemonJob is complete or suspended, waits for a due time, or was complete before new, recovered or
    /// changed nodes or the nodes of a due time began to run. Complete: every selected node is done, skipped, or
    /// failed within maxFailedNodes. Failed: the run ended, and is not Complete. Finished: Complete or Failed is True.
    /// Stalled: the DaemonJob stays as it is until a user acts. Suspended: spec.suspend is true. Paused: the manager
    /// creates no further pods, for the reason DefinitionOutdated, Paused, PausedByAnnotation,
    /// MaxFailedNodesExceeded, FleetUnhealthy, WaveFailed or WaitsForApproval. PodsRefused: the API server rejects a
    /// pod, or with the reason TemplateInvalid every pod of the template. LedgerLost: the records of some nodes are
    /// lost, or have an unknown format. LedgerRefused: the API server rejects a write of the outcomes. MarkRefused:
    /// the manager may not make the changes of onSuccess, or the API server rejects them. ScheduleInvalid: schedule
    /// or timeZone is invalid, and the manager creates no pods. SelectorIgnored: selector or manualSelector is set,
    /// but has no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "conditions")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    of_types(&CONDITIONS, deserializer)
}

/// The types of a DaemonJob's conditions.
const CONDITIONS: [&str; 13] = [
    READY,
    "Complete",
    "Failed",
    "Finished",
    "Stalled",
    "Suspended",
    "Paused",
    "PodsRefused",
    "LedgerLost",
    "LedgerRefused",
    "MarkRefused",
    "ScheduleInvalid",
    "SelectorIgnored",
];

/// The rollout of one template. A change of the template or of retryToken begins a new rollout. With a schedule,
/// a due time begins a new rollout, and a change of the template has no effect before that.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// The number of the rollout. The number rises with each new rollout, even if its template is an earlier one.
    #[serde(default)]
    pub number: i64,
    /// The retryToken of this rollout.
    pub retry_token: Option<String>,
    /// The due time that began this rollout. A node is done after a success of this due time.
    pub due_time: Option<Time>,
    /// Whether every node was finished. Nodes without a pod of this due time then wait for the next one. Only
    /// with a schedule.
    pub over: Option<bool>,
    /// The largest number of selected nodes in this rollout. A percentage in maxFailedNodes is a percentage
    /// of base. Nodes that join raise base, except while the failure policy stops the rollout. Nodes that
    /// leave do not lower base.
    #[serde(default)]
    pub base: i32,
    /// The smallest number of selected nodes that were unhealthy at the same time since the run began.
    #[serde(default)]
    pub unhealthy_from_start: i32,
    /// The time when the failure policy stopped the rollout. The field is absent while the failure policy
    /// does not stop the rollout.
    pub braked_since: Option<Time>,
    /// The reason why the run ended early, as in the condition Failed: DeadlineExceeded,
    /// MaxFailedNodesExceeded or PodFailurePolicy.
    pub ended: Option<String>,
    /// A digest of the limits that ended the run early. When one of these limits changes, the run continues.
    pub ended_by: Option<String>,
    /// The sizes of the waves in nodes, without the last wave. Sizes in spec.rollout.waveSizes that are not
    /// larger than the size before them are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wave_sizes: Vec<i32>,
    /// The number of the current wave, from 1. The last wave has one number more than waveSizes has sizes.
    pub wave: Option<i32>,
    /// The number of nodes that have started: nodes with an attempt in this rollout or with a pod that may
    /// become one, and nodes that failed. Skipped nodes do not count.
    pub started: Option<i32>,
    /// The number of started nodes that are done and settled.
    pub settled: Option<i32>,
    /// The reason why the current wave is not over. Nodes: nodes run, or wait for a slot or a retry. Settling:
    /// nodes must stay Ready. Approval: a user must approve the wave. WaveFailed: at least as many nodes
    /// failed as succeeded. Paused: the DaemonJob is paused or suspended. Repair: a condition names a problem.
    /// The field is absent after the end of the run.
    pub waiting_for: Option<String>,
    /// The last size in spec.rollout.waveSizes whose wave is over, as in the spec.
    pub passed_size: Option<IntOrString>,
    /// The approval that was set before the current wave failed. It has no effect on the failed wave.
    pub void_approval: Option<String>,
}

/// The schedule that the manager has observed, and its due times.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// The schedule that the manager has observed.
    #[serde(default)]
    pub schedule: String,
    /// The timeZone that the manager has observed.
    pub time_zone: Option<String>,
    /// The time when the manager observed the last change of the schedule, or the end of a suspend. Earlier due
    /// times begin no run.
    pub since: Option<Time>,
    /// The last due time whose run began, was held or was missed.
    pub last_due_time: Option<Time>,
    /// The next due time.
    pub next_due_time: Option<Time>,
}

/// A due time of the schedule, and what happened.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledRun {
    /// The due time.
    pub due_time: Time,
    /// The time when its run began.
    pub start_time: Option<Time>,
    /// The time when its run became Complete or Failed, or when the run of the next due time began.
    pub end_time: Option<Time>,
    /// The number of nodes that are done, as at the end of the run.
    pub succeeded: Option<i32>,
    /// The number of nodes that have failed, as at the end of the run.
    pub failed: Option<i32>,
    /// The result. Complete and Failed: as the conditions. Unfinished: the next due time came first. Held: failed
    /// nodes or a failed wave of the rollout before stopped the run. Missed: the run could not begin within
    /// startingDeadlineSeconds. The field is absent while the run continues.
    pub result: Option<String>,
}

/// A node that is not done, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReason {
    /// The name of the node.
    pub node: String,
    /// The reason for the state of the node, as one CamelCase word.
    pub reason: String,
    /// The details of the reason, for example the taint, the message of the scheduler, or the time of the
    /// next retry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
