//! The DaemonJob custom resource: the post's fields and what the status says of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use quintet_kit::template::RawTemplate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a DaemonJob should run, and how.
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
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name is also a label of the pods: use at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct DaemonJobSpec {
    /// The pod that runs on every node. Its nodeSelector, node affinity and tolerations say which nodes are
    /// eligible, as for a DaemonSet. restartPolicy Always, or none, becomes OnFailure.
    #[x_kube(
        validation = Rule::new("has(self.spec) && has(self.spec.containers) && self.spec.containers.size() > 0")
            .message("template.spec.containers must list at least one container")
    )]
    pub template: RawTemplate,

    /// Seconds that a run may take, counted from status.startTime. A run that takes longer is Failed with reason
    /// DeadlineExceeded and its running pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_deadline_seconds: Option<i64>,

    /// How many failed pods a node may have before it counts as failed. Default 6, for each node by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub backoff_limit: Option<i32>,

    /// Seconds after which the pods of a finished run are to be removed. Accepted and kept; it takes effect with
    /// the ledger, since without one the removed pods would run again.
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

/// What is observed of a DaemonJob. Nodes are counted, not pods, except in `active` and `terminating`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonJobStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that are eligible now, and nodes that are not but where a pod still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Pods that are neither finished nor terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<i32>,
    /// Eligible nodes that are done: their last success was made from the current template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Eligible nodes that have failed more often than backoffLimit allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Eligible nodes that wait for their pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// Pods that are terminating and not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// When the current run started: set before its first pod is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the current run was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Identifies the template that the current run is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// Complete: every eligible node is done. Failed: the run ended otherwise. PodsRefused: the API server does
    /// not take some pods. SelectorIgnored: selector or manualSelector is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
