//! The PodSet custom resource: the tutorial's fields, a template, and the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use quintet_runtime::model::conditions::{READY, of_types};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::schema::{number_or_percentage, short_name};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

/// The desired number of pods and their template. Every field has a default, because the tutorial's manifest
/// has an empty spec.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "batch.tutorial.kubebuilder.io",
    version = "v1",
    kind = "PodSet",
    plural = "podsets",
    singular = "podset",
    shortname = "pset",
    category = "quintet",
    namespaced,
    status = "PodSetStatus",
    derive = "PartialEq",
    doc = "PodSet keeps a fixed number of pods of one template running.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = short_name(63, "the name is also a label of the pods")
)]
// Without this default the API server drops an empty spec, and then the scale subresource has no replicas.
#[schemars(extend("default" = {}))]
#[serde(rename_all = "camelCase")]
pub struct PodSetSpec {
    /// Desired number of pods. Default 1.
    #[serde(default = "replicas")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: i32,

    /// The template of the pods. Its restartPolicy must be Always or unset. Default: one busybox container
    /// that runs `sleep 3600`. The manager adds the labels app and quintet.dev/kind, and labels with the
    /// PodSet's UID and the hash of the template. The manager also adds the label version: v0.1 unless the
    /// template sets the label version.
    #[x_kube(
        validation = Rule::new("has(self.spec) && has(self.spec.containers) && self.spec.containers.size() > 0")
            .message("template.spec.containers must list at least one container; leave template out for the default"),
        validation = Rule::new("!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'")
            .message("template.spec.restartPolicy must be Always or left out, because pods of a PodSet must not end")
    )]
    pub template: Option<RawTemplate>,

    /// Seconds for which a pod must be ready before it counts as available. Default 0.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub min_ready_seconds: Option<i32>,

    /// How the manager replaces pods of an older template. Default: RollingUpdate with maxUnavailable 25%.
    pub update_strategy: Option<UpdateStrategy>,

    /// Seconds without progress after which the condition Progressing is False. Default 600.
    #[schemars(range(min = 1, max = 315_360_000))]
    pub progress_deadline_seconds: Option<i32>,

    /// TerminatingOrFailed replaces a pod as soon as its deletion begins. Failed waits until the pod has ended or is
    /// gone, for pods that must not run twice. Default TerminatingOrFailed.
    pub pod_replacement_policy: Option<PodReplacementPolicy>,

    /// Adopts pods without an owner instead of creating pods. Without this field, the manager adopts no pod.
    pub adopt: Option<Adoption>,

    /// How many older templates the manager keeps for an undo, besides those of existing pods. Default 10.
    #[schemars(range(min = 0, max = 1_000))]
    pub revision_history_limit: Option<i32>,

    /// Names of pods that the manager deletes first when replicas falls or the template changes. The manager
    /// ignores names that no pod of the PodSet has. Quintet never changes this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000), inner(length(max = 253)))]
    pub pods_to_delete: Vec<String>,
}

/// How to replace pods of an older template.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// RollingUpdate replaces pods of an older template a few at a time. OnDelete replaces such a pod after a
    /// user or another client has deleted the pod. Default RollingUpdate.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,

    /// How many desired pods may be unavailable during a rollout: a number, or a percentage of replicas,
    /// rounded down. Default 25%. If maxUnavailable and maxSurge are both 0, maxUnavailable counts as 1.
    #[x_kube(validation = number_or_percentage("maxUnavailable", 100_000))]
    pub max_unavailable: Option<IntOrString>,

    /// How many pods may exist above replicas during a rollout: a number, or a percentage of replicas,
    /// rounded up. Default 0.
    #[x_kube(validation = number_or_percentage("maxSurge", 100_000))]
    pub max_surge: Option<IntOrString>,

    /// How many pods of older templates a rollout keeps: a number, or a percentage of replicas, rounded up. If a kept
    /// pod is lost, its replacement has the template of the last complete rollout. Default 0.
    #[x_kube(validation = number_or_percentage("partition", 100_000))]
    pub partition: Option<IntOrString>,

    /// True stops the rollout. The manager still replaces pods that end or are deleted, with the template of the last
    /// complete rollout. Default false.
    pub paused: Option<bool>,
}

/// See [`UpdateStrategy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Replace pods of an older template a few at a time.
    #[default]
    RollingUpdate,
    /// Replace a pod of an older template after a user or another client has deleted the pod.
    OnDelete,
}

/// When to replace a pod that is being deleted, as in a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodReplacementPolicy {
    /// As soon as the deletion begins.
    #[default]
    TerminatingOrFailed,
    /// When the pod has ended or is gone.
    Failed,
}

/// Which pods without an owner to adopt.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// The labels of the pods, in the PodSet's namespace. While fewer than the desired number of pods exist, the manager
    /// adopts pods that have not ended, even if a pod is not ready.
    #[x_kube(validation = Rule::new("has(self.matchLabels) && self.matchLabels.size() > 0 || has(self.matchExpressions) && self.matchExpressions.size() > 0")
        .message("adopt.selector must not be empty, because it would select every pod of the namespace"))]
    pub selector: LabelSelector,
}

/// The default number of pods, as for every workload.
const fn replicas() -> i32 {
    1
}

/// The observed state of a PodSet.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct PodSetStatus {
    /// The generation that this status describes. The value is -1 until a manager writes the status.
    #[schemars(extend("default" = -1))]
    pub observed_generation: Option<i64>,
    /// The number of pods that have not ended and are not being deleted.
    pub replicas: Option<i32>,
    /// The number of pods among the replicas that are ready.
    pub ready_replicas: Option<i32>,
    /// The number of pods among the replicas that have been ready for minReadySeconds.
    pub available_replicas: Option<i32>,
    /// The number of pods among the replicas that have the spec's template.
    pub updated_replicas: Option<i32>,
    /// The number of pods that are being deleted and have not ended. With podReplacementPolicy TerminatingOrFailed, the
    /// manager creates replacements without waiting for the end of these pods.
    pub terminating_replicas: Option<i32>,
    /// The first 100 names of ready pods, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_names: Vec<String>,
    /// The first 20 pods that are not ready, sorted by name, each with a reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<NotReady>,
    /// The number of pods that are not ready and that notReady does not list.
    pub more_not_ready: Option<i32>,
    /// The ControllerRevision of the spec's template.
    pub update_revision: Option<String>,
    /// The ControllerRevision of the last complete rollout. While partition or paused keeps pods of it, lost ones are
    /// replaced from it.
    pub current_revision: Option<String>,
    /// The hash of the spec's template. The pods of this template have the hash as a label.
    pub template_hash: Option<String>,
    /// The last time when more pods became available, when fewer pods had an older template, or when a change
    /// of the pods began.
    pub last_progress_time: Option<Time>,
    /// The label selector of exactly this PodSet's pods, for autoscalers.
    pub selector: Option<String>,
    /// Ready is True if all desired pods are available, and have the template that updateStrategy demands. Stalled is
    /// True after progressDeadlineSeconds without progress, and otherwise absent. Available is True if enough pods are
    /// available. Progressing is True if the pods match the spec or a change is in progress, and False after
    /// progressDeadlineSeconds without progress. ReplicaFailure is True if the API server rejects a write, or if the
    /// namespace is being deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "conditions")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    of_types(&[READY, "Stalled", "Available", "Progressing", "ReplicaFailure"], deserializer)
}

/// A pod that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotReady {
    /// The pod's name.
    pub pod: String,
    /// Why the pod is not ready, as one word in CamelCase.
    pub reason: String,
    /// Why the pod is not ready, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    fn version() -> Value {
        serde_json::to_value(PodSet::crd()).unwrap()["spec"]["versions"][0].clone()
    }

    /// Without the default on `spec` itself, the API server drops the tutorial's empty spec, and `/scale`
    /// answers 500.
    #[test]
    fn an_empty_spec_gets_its_defaults() {
        let version = version();
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["default"], json!({}));
        let replicas = &spec["properties"]["replicas"];
        assert_eq!(replicas["default"], json!(1));
        assert_eq!(
            (replicas["minimum"].as_f64(), replicas["maximum"].as_f64()),
            (Some(0.0), Some(100_000.0))
        );
        assert!(spec.get("required").is_none(), "{}", spec["required"]);
        assert!(spec["properties"]["template"].get("default").is_none());
        assert!(spec["properties"]["minReadySeconds"].get("default").is_none());
    }

    #[test]
    fn has_a_scale_subresource() {
        assert_eq!(
            version()["subresources"]["scale"],
            json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                   "labelSelectorPath": ".status.selector"})
        );
    }

    #[test]
    fn every_field_has_a_description() {
        let version = version();
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            for (name, field) in schema[part]["properties"].as_object().unwrap() {
                assert!(field["description"].is_string(), "{part}.{name}");
            }
        }
    }

    #[test]
    fn decodes_an_empty_spec() {
        let spec: PodSetSpec = serde_json::from_value(json!({})).unwrap();
        assert_eq!((spec.replicas, spec.template, spec.pods_to_delete), (1, None, vec![]));
    }
}
