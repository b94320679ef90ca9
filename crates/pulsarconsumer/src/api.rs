//! The PulsarConsumer custom resource: the tutorial's fields, more fields for production, and the status.

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, LocalObjectReference, PodSecurityContext, ResourceRequirements, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use quintet_runtime::model::conditions::lenient;
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::model::schema::{short_name, without_descriptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The subscription to consume, and the number of pods.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    derive = "Default",
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
    printcolumn(name = "Backlog", type_ = "integer", json_path = ".status.backlog"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = short_name(53, "the name, with -pulsarcrd after it, is a label of the pods")
)]
#[serde(rename_all = "camelCase")]
// A scale can violate only the first rule.
#[x_kube(
    validation = Rule::new(
        "!has(self.subscriptionType) || self.subscriptionType != 'Exclusive' || !has(self.replicas) || self.replicas <= 1"
    )
    .message(
        "an Exclusive subscription has one consumer: set replicas to 0 or 1, or subscriptionType to Shared, Failover or Key_Shared"
    ),
    validation = Rule::new(
        "!has(self.subscriptionType) || self.subscriptionType != 'Exclusive' || !has(self.autoscaling)"
    )
    .message("an Exclusive subscription has one consumer: remove autoscaling, or choose another subscriptionType"),
    validation = Rule::new("!has(self.tls) || self.serverAddress.startsWith('pulsar+ssl://')")
        .message("tls needs an encrypted serverAddress, as in pulsar+ssl://broker:6651"),
    validation = Rule::new("!has(self.autoscaling) || has(self.adminURL)")
        .message("autoscaling needs adminURL, where the backlog is read"),
    validation = Rule::new("!has(self.autoscaling) || !self.topic.startsWith('non-persistent://')")
        .message("autoscaling needs a persistent topic: KEDA reads the backlog of no other"),
    validation = Rule::new(
        "!has(self.deadLetterPolicy) || !has(self.subscriptionType) || self.subscriptionType in ['Shared', 'Key_Shared']"
    )
    .message("deadLetterPolicy needs the subscriptionType Shared or Key_Shared"),
    validation = Rule::new(another_topic()).message("deadLetterTopic must be another topic than the one that is consumed"),
    validation = Rule::new(
        r"!has(self.deadLetterPolicy) || has(self.deadLetterPolicy.deadLetterTopic) || !self.subscriptionName.matches(r'[\s\pZ\p{Cc}]')"
    )
    .message("deadLetterPolicy needs a deadLetterTopic here: one is named after the subscription, and a topic's name has no blanks")
)]
pub struct PulsarConsumerSpec {
    /// The Pulsar service, such as pulsar://broker:6650 or pulsar+ssl://broker:6651. Separate several hosts
    /// by commas. The pod of the consumer resolves the name, so localhost is the pod itself.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address(r"pulsar(\+ssl)?", &format!("(,{HOST})*/?")))
            .message("serverAddress must look like pulsar://host:6650 or pulsar+ssl://host:6651")
    )]
    pub server_address: String,

    /// The topic: my-topic (in public/default), tenant/namespace/my-topic or
    /// persistent://tenant/namespace/my-topic.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(is_topic())
            .message("topic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub topic: String,

    /// The subscription that all pods share. The first pod that connects creates it.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(r"self.matches(r'^[^\s/]([^\n\r/]*[^\s/])?$')")
            .message("subscriptionName must have no slash, and no blank at its ends")
    )]
    pub subscription_name: String,

    /// The number of pods. 0 stops consuming and keeps the subscription. Leave it out if an autoscaler scales
    /// this object.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,

    /// How pods share the messages. Default Shared, as in the tutorial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_type: Option<SubscriptionType>,

    /// Where a new subscription begins. Default Latest: with messages that are sent later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_position: Option<InitialPosition>,

    /// The authentication of the consumers and of the backlog's reader. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,

    /// How to verify the broker's certificate. Default: with the CAs that the image trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Where messages go that were redelivered too often. Default: the broker redelivers them without end.
    /// Only for Shared and Key_Shared, because the broker counts no deliveries of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_policy: Option<DeadLetterPolicy>,

    /// The delay before a rejected message is delivered again, such as 30s or 1m30s. Default: the consumer's,
    /// one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(
        validation = Rule::new(
            r"self.matches(r'^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$') && self.matches('[1-9]')"
        )
        .message("negativeAckRedeliveryDelay must be a positive duration such as 500ms, 30s or 1m30s")
    )]
    pub negative_ack_redelivery_delay: Option<String>,

    /// How many messages of each partition a consumer prefetches. Default: the consumer's, 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub receiver_queue_size: Option<i32>,

    /// The image of the pods. Default: the manager's --pulsar-consumer-image. It gets the variables
    /// PULSAR_SERVER, PULSAR_TOPIC and PULSAR_SUBSCRIPTION_NAME, and more for the fields that are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// When to pull the image. Default: as for every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// The port of /healthz and /readyz, which the image gets in PULSAR_HTTP_BIND_ADDRESS. 0 disables probes.
    /// Default: the manager's --pulsar-consumer-health-port without `image`, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65_535))]
    pub health_port: Option<i32>,

    /// More environment variables of the consumer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<EnvVar>>")]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = Rule::new("self.all(one, !one.name.startsWith('PULSAR_'))")
            .message("names that begin with PULSAR_ are reserved: set the other fields instead")
    )]
    pub env: Vec<Value>,

    /// The consumer's requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<ResourceRequirements>>")]
    pub resources: Option<Value>,

    /// Fields of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,

    /// The broker's admin API, such as http://broker:8080, for the backlog. Default: the backlog is not read.
    #[serde(default, rename = "adminURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address("https?", "(/[A-Za-z0-9_./~-]*)?"))
            .message("adminURL must look like http://host:8080 or https://host:8443, without a query, a user or a password")
    )]
    pub admin_url: Option<String>,

    /// Seconds between two reads of the backlog. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub backlog_poll_seconds: Option<i32>,

    /// Scale with the backlog, with KEDA. Default: no autoscaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
}

const fn one() -> i32 {
    1
}

/// The rule that dead letters go to another topic. It compares all three forms of both names.
fn another_topic() -> String {
    let (topic, dead) = ("self.topic", "self.deadLetterPolicy.deadLetterTopic");
    let longer = |name: &str| {
        ["persistent://", "public/default/", "persistent://public/default/"]
            .map(|beginning| format!("'{beginning}' + {name}"))
            .join(", ")
    };
    format!(
        "!has(self.deadLetterPolicy) || !has({dead}) || !({topic} in [{dead}, {}] || {dead} in [{}])",
        longer(dead),
        longer(topic)
    )
}

/// A host with or without a port, as a regular expression. The client that connects checks the IPv6 address and
/// the port.
const HOST: &str =
    r"(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?)(:[1-9][0-9]{0,4})?";

/// The rule that a field is a scheme, a host, and a match of `rest`.
fn is_address(scheme: &str, rest: &str) -> String {
    format!("self.matches(r'^{scheme}://{HOST}{rest}$')")
}

/// The rule that a field is a topic in one of its forms.
fn is_topic() -> String {
    const NAME: &str = r"[^/\s\pZ\p{Cc}]+";
    const PART: &str = "[A-Za-z0-9_=:.-]+";
    format!("self.matches(r'^((persistent|non-persistent)://)?({PART}/{PART}/{NAME})$|^{NAME}$')")
}

/// How the consumers of a subscription share its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubscriptionType {
    /// Each message goes to one consumer.
    #[default]
    Shared,
    /// At most one consumer.
    Exclusive,
    /// One consumer gets all messages until it is gone.
    Failover,
    /// Each message goes to one consumer; messages of one key go to the same.
    #[serde(rename = "Key_Shared")]
    KeyShared,
}

/// Where a new subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InitialPosition {
    /// With the oldest stored message.
    Earliest,
    /// With messages that are sent later.
    Latest,
}

/// When to pull an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At each start of a container.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// The authentication of consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// The Secret with the token. It is mounted into the pods, and never in their environment. Default key:
    /// token.
    pub token_secret: SecretKey,
}

/// How to verify the broker's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The Secret with the CA certificates to trust, in PEM. Default key: ca.crt.
    pub ca_secret: SecretKey,
}

/// A value in a Secret of the same namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new(r"self.matches(r'^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
            .message("a Secret's name has lower-case letters, digits, dots and dashes")
    )]
    pub name: String,
    /// The key in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new(r"self.matches(r'^[A-Za-z0-9._-]+$')")
            .message("a Secret's key has letters, digits, dots, dashes and underscores")
    )]
    pub key: Option<String>,
}

/// Where messages go that were redelivered too often.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterPolicy {
    /// The number of redeliveries before a message goes there.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_redeliver_count: i32,
    /// The dead-letter topic. Default: `<topic>-<subscription>-DLQ`, as for Pulsar's clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(is_topic())
            .message("deadLetterTopic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub dead_letter_topic: Option<String>,
}

/// Fields of the pods.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// More labels. Quintet's labels override them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// More annotations. Quintet's annotations override them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Required labels of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerated taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<Toleration>>")]
    pub tolerations: Vec<Value>,
    /// Affinity to nodes and pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<Affinity>>")]
    pub affinity: Option<Value>,
    /// How to spread the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<TopologySpreadConstraint>>")]
    pub topology_spread_constraints: Vec<Value>,
    /// The ServiceAccount. Default: the default ServiceAccount of the namespace, without its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets to pull the image with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<LocalObjectReference>>")]
    pub image_pull_secrets: Vec<Value>,
    /// The priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Seconds for a stopping consumer to acknowledge its messages. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// The pods' security context. Default: user and group 65532, not root, the runtime's default seccomp
    /// profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<PodSecurityContext>>")]
    pub security_context: Option<Value>,
}

/// How KEDA scales the consumers with the backlog.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas must not be above maxReplicas")
)]
pub struct Autoscaling {
    /// The minimum number of consumers. Default 0: none without a backlog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: Option<i32>,
    /// The maximum number of consumers.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: i32,
    /// The backlog for one consumer, in entries, as Pulsar counts it. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub target_backlog: Option<i64>,
    /// The backlog above which KEDA starts the first consumer if minReplicas is 0. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub activation_backlog: Option<i64>,
    /// Whether the topic has partitions, which KEDA must know. Default: detected through adminURL. Set it if
    /// the manager may not read the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitioned: Option<bool>,
    /// Seconds between two reads by KEDA. Default: KEDA's, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub polling_interval_seconds: Option<i32>,
    /// Seconds without a backlog until KEDA stops the last consumer. Default: KEDA's, 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub cooldown_seconds: Option<i32>,
}

/// An object as the last apply returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedObject {
    /// Its kind.
    pub kind: String,
    /// Its UID.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

impl AppliedObject {
    /// The object with this metadata.
    pub fn of(resource: &Resource, meta: &Meta) -> Self {
        Self { kind: resource.kind.to_owned(), uid: (*meta.uid).to_owned(), generation: meta.generation }
    }
}

/// The observed state of a PulsarConsumer and its Deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PulsarConsumerStatus {
    /// The generation that this status describes.
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
    /// Existing pods of the current and of older templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Ready pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Unacknowledged entries of the subscription. Pulsar counts a batch of messages as one. Small changes
    /// are not written; the metric quintet_pulsarconsumer_backlog is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<i64>,
    /// Delivered and unacknowledged messages, which Pulsar counts only for Shared and Key_Shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unacked: Option<i64>,
    /// The number of consumers that the broker reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<i32>,
    /// When backlog, unacked and consumers were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_time: Option<Time>,
    /// The applied objects. The manager applies an object again if its generation differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub applied: Vec<AppliedObject>,
    /// Available: all desired consumers are ready. Applied: the Deployment matches the spec; if False, the
    /// reason and message name the obstacle. BacklogObserved, with adminURL: the backlog is known.
    /// AutoscalingReady, with autoscaling: KEDA scales this object.
    // Conditions of another operator may lack fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
}
