//! The PulsarConsumer custom resource: the post's fields and what the status says of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a PulsarConsumer should consume, and how many pods should.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "pulsar.pulsarconsumer.krvarma.com",
    version = "v1",
    kind = "PulsarConsumer",
    plural = "pulsarconsumers",
    singular = "pulsarconsumer",
    shortname = "pcon",
    category = "quintet",
    namespaced,
    status = "PulsarConsumerStatus",
    derive = "PartialEq",
    doc = "PulsarConsumer runs consumers of a Pulsar topic, as the pods of a Deployment.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Server", type_ = "string", json_path = ".status.server"),
    printcolumn(name = "Topic", type_ = "string", json_path = ".status.topic"),
    printcolumn(name = "Subscription", type_ = "string", json_path = ".status.subscription"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 53")
        .message("the name, with -pulsarcrd after it, is a label of the pods: use at most 53 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct PulsarConsumerSpec {
    /// The Pulsar service to connect to, as in pulsar://broker:6650 or pulsar+ssl://broker:6651. Several hosts are
    /// separated by commas. It is resolved in the consumer's pod: localhost is the pod itself.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new(
            r"self.matches(r'^pulsar(\+ssl)?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?)(:[0-9]{1,5})?(,(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?)(:[0-9]{1,5})?)*/?$')"
        )
        .message("serverAddress must look like pulsar://host:6650 or pulsar+ssl://host:6651")
    )]
    pub server_address: String,

    /// The topic to consume: a short name (my-topic, in public/default) or a full one
    /// (persistent://tenant/namespace/my-topic).
    #[schemars(length(min = 1, max = 1024))]
    pub topic: String,

    /// The subscription that all pods share. It is made when the first of them connects.
    #[schemars(length(min = 1, max = 1024))]
    pub subscription_name: String,

    /// How many pods consume. 0 stops consuming and keeps the subscription.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,

    /// The image that the pods run. Default: the one that the manager was told to use. It gets PULSAR_SERVER,
    /// PULSAR_TOPIC and PULSAR_SUBSCRIPTION_NAME in its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
}

fn one() -> i32 {
    1
}

/// What is observed of a PulsarConsumer and its Deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PulsarConsumerStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The Pulsar service of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The topic of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The subscription of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Pods that there are, of the current and of older templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Available: as many consumers are ready as are wanted. Applied: the Deployment is as this object asks; where
    /// it is False, the reason says who stands against it, and the message in whose words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
