//! The PodSet custom resource: the post's fields, the template that it lacked, and what the status says of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use quintet_kit::template::RawTemplate;
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
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name is also a label of the pods: use at most 63 characters")
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
}

/// How many pods there are where the spec does not say: as for every workload.
const fn replicas() -> i32 {
    1
}

impl Default for PodSetSpec {
    fn default() -> Self {
        Self { replicas: replicas(), template: None, min_ready_seconds: None }
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
    /// Pods that are terminating and not finished. A replacement does not wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    /// The names of the ready pods, sorted; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_names: Vec<String>,
    /// Selects the pods of this PodSet and no other's, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Available: as many pods as wanted are available. ReplicaFailure: the API server does not take a creation or
    /// deletion, for the reason in its message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
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
