//! The PodSet custom resource: the post's fields, the template that it lacked, and what the status says of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::schema::{number_or_percentage, short_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many pods a PodSet should keep, and which. Everything has a default: the post's manifest gives nothing.
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
    derive = "Default",
    doc = "PodSet keeps a number of pods of one template.",
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
// Without a default of its own an empty spec would be dropped, and then the scale subresource has no replicas.
#[schemars(extend("default" = {}))]
#[serde(rename_all = "camelCase")]
pub struct PodSetSpec {
    /// How many pods there should be. Default 1.
    #[serde(default = "replicas")]
    #[schemars(range(min = 0, max = 100_000))]
    pub replicas: i32,

    /// The pod that is kept. Its restartPolicy is Always. Default: one container that runs `sleep 3600` in busybox.
    /// The labels app and quintet.dev/kind, and one with the PodSet's UID, are always added; version: v0.1 unless
    /// the template has a version of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = Rule::new("has(self.spec) && has(self.spec.containers) && self.spec.containers.size() > 0")
            .message("template.spec.containers must list at least one container; leave template out for the default"),
        validation = Rule::new("!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'")
            .message("template.spec.restartPolicy must be Always or left out: a pod of a PodSet is not meant to end")
    )]
    pub template: Option<RawTemplate>,

    /// Seconds for which a pod must have been ready before it counts as available. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub min_ready_seconds: Option<i32>,

    /// What happens to pods of an older template. Default: they are replaced a few at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// Seconds without progress after which the condition Progressing is False. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub progress_deadline_seconds: Option<i32>,

    /// Names of pods that go first when there are too many, or when pods are replaced. Names that no pod has are of no
    /// effect; it is never changed by Quintet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000), inner(length(max = 253)))]
    pub pods_to_delete: Vec<String>,
}

/// What happens to pods that were made from an older template.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// RollingUpdate replaces them a few at a time; OnDelete leaves them until somebody else deletes them. Default
    /// RollingUpdate.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,

    /// How many pods may be missing from the available ones while pods are replaced: a number or a percentage of
    /// replicas, rounded down. Default 25%. If this and maxSurge come to 0, it is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = number_or_percentage("maxUnavailable", 100_000))]
    pub max_unavailable: Option<IntOrString>,

    /// How many pods there may be above replicas while pods are replaced: a number or a percentage of replicas, rounded
    /// up. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = number_or_percentage("maxSurge", 100_000))]
    pub max_surge: Option<IntOrString>,

    /// How many pods of older templates are left as they are: a number or a percentage of replicas, rounded up. One of
    /// them that goes is replaced by a pod of the current template. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = number_or_percentage("partition", 100_000))]
    pub partition: Option<IntOrString>,

    /// Stops replacing pods for their template. Pods that go otherwise are replaced all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// See [`UpdateStrategy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Replace pods a few at a time.
    #[default]
    RollingUpdate,
    /// Leave pods until somebody else deletes them.
    OnDelete,
}

/// How many pods there are where the spec does not say: as for every workload.
const fn replicas() -> i32 {
    1
}

impl Default for PodSetSpec {
    fn default() -> Self {
        Self {
            replicas: replicas(),
            template: None,
            min_ready_seconds: None,
            update_strategy: None,
            progress_deadline_seconds: None,
            pods_to_delete: Vec::new(),
        }
    }
}

/// What is observed of a PodSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSetStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that are neither finished nor terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Those of them that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Those of them that have been ready for minReadySeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Those of them that were made from the current template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Pods that are terminating and not finished. A replacement does not wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    /// The names of the ready pods, sorted; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_names: Vec<String>,
    /// The pods that are not ready and why, by name; the first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<NotReady>,
    /// How many more are not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_not_ready: Option<i32>,
    /// The hash of the current template, a label of the pods that were made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// When more pods were last seen to be updated, ready or available, or fewer to be out of date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// Selects the pods of this PodSet and no other's, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Available: as many pods as wanted are available. Progressing: pods become what the spec
    /// wants, or are so; False once progressDeadlineSeconds have passed without progress. ReplicaFailure: the API server
    /// does not take a creation or deletion, for the reason in its message.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "quintet_runtime::model::conditions::lenient"
    )]
    pub conditions: Vec<Condition>,
}

/// A pod that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotReady {
    /// Its name.
    pub pod: String,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// Why, for a person.
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

    /// Without the default on `spec` itself, the post's empty spec is dropped and `/scale` answers 500.
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
    fn it_can_be_scaled() {
        assert_eq!(
            version()["subresources"]["scale"],
            json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                   "labelSelectorPath": ".status.selector"})
        );
    }

    #[test]
    fn every_field_is_described() {
        let version = version();
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            for (name, field) in schema[part]["properties"].as_object().unwrap() {
                assert!(field["description"].is_string(), "{part}.{name}");
            }
        }
    }

    #[test]
    fn a_spec_without_anything_is_decoded() {
        let spec: PodSetSpec = serde_json::from_value(json!({})).unwrap();
        assert_eq!(spec, PodSetSpec::default());
        assert_eq!(spec.replicas, 1);
    }
}
