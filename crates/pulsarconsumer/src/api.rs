//! The PulsarConsumer custom resource: the post's fields, what consumers in earnest need besides, and what the status says
//! of them.

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

/// What a PulsarConsumer should consume, and how many pods should.
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
// The first rule is the only one that a scale can break.
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
    /// The Pulsar service to connect to, as in pulsar://broker:6650 or pulsar+ssl://broker:6651. Several hosts are
    /// separated by commas. It is resolved in the consumer's pod: localhost is the pod itself.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address(r"pulsar(\+ssl)?", &format!("(,{HOST})*/?")))
            .message("serverAddress must look like pulsar://host:6650 or pulsar+ssl://host:6651")
    )]
    pub server_address: String,

    /// The topic to consume: a short name (my-topic, in public/default), one with its tenant and namespace
    /// (tenant/namespace/my-topic) or a full one (persistent://tenant/namespace/my-topic).
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(is_topic())
            .message("topic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub topic: String,

    /// The subscription that all pods share. It is made when the first of them connects.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(r"self.matches(r'^[^\s/]([^\n\r/]*[^\s/])?$')")
            .message("subscriptionName must have no slash, and no blank at its ends")
    )]
    pub subscription_name: String,

    /// How many pods consume. 0 stops consuming and keeps the subscription. Leave it out where something scales this
    /// object.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,

    /// How messages are shared among the pods. Default Shared, as in the post.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_type: Option<SubscriptionType>,

    /// Where a new subscription begins. Default Latest: with messages that are sent from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_position: Option<InitialPosition>,

    /// How the consumers, and whoever reads the backlog, show who they are. Default: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,

    /// How the broker's certificate is checked. Default: by the authorities that the image trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Where messages go that were delivered in vain too often. Default: they are delivered again and again. For Shared and
    /// Key_Shared: for the others the broker counts no deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_policy: Option<DeadLetterPolicy>,

    /// How long a message that was refused waits before it is delivered again, as in 30s or 1m30s. Default: the
    /// consumer's, one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(
        validation = Rule::new(
            r"self.matches(r'^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$') && self.matches('[1-9]')"
        )
        .message("negativeAckRedeliveryDelay must be a duration such as 500ms, 30s or 1m30s, and longer than none")
    )]
    pub negative_ack_redelivery_delay: Option<String>,

    /// How many messages of each partition a consumer keeps at hand. Default: the consumer's, 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub receiver_queue_size: Option<i32>,

    /// The image that the pods run. Default: the one that the manager was told to use. It gets PULSAR_SERVER,
    /// PULSAR_TOPIC and PULSAR_SUBSCRIPTION_NAME in its environment, and further variables for the fields that are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// When the image is pulled. Default: as for every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// The port on which the image answers /healthz and /readyz; it is told in PULSAR_HTTP_BIND_ADDRESS. Default: the one
    /// that goes with the manager's own image; none where `image` is set, and then there are no probes. 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65_535))]
    pub health_port: Option<i32>,

    /// Further environment variables of the consumer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<EnvVar>>")]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = Rule::new("self.all(one, !one.name.startsWith('PULSAR_'))")
            .message("names that begin with PULSAR_ are set from the other fields: use those")
    )]
    pub env: Vec<Value>,

    /// The consumer's requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<ResourceRequirements>>")]
    pub resources: Option<Value>,

    /// How the pods are placed and run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,

    /// The broker's admin API, as in http://broker:8080: where the backlog is read. Default: it is not read.
    #[serde(default, rename = "adminURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address("https?", "(/[A-Za-z0-9_./~-]*)?"))
            .message("adminURL must look like http://host:8080 or https://host:8443, without a query, a user or a password")
    )]
    pub admin_url: Option<String>,

    /// Seconds between two looks at the backlog. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub backlog_poll_seconds: Option<i32>,

    /// Scales with the backlog, by KEDA. Default: it is not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
}

const fn one() -> i32 {
    1
}

/// The rule that dead letters go to another topic, by the full names of both: each is written in one of three ways.
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

/// The rule that a field is a scheme, a host, and whatever `rest` matches.
fn is_address(scheme: &str, rest: &str) -> String {
    format!("self.matches(r'^{scheme}://{HOST}{rest}$')")
}

/// The rule that a field is a topic: a name, or a namespace and a name, or both with the kind of the topic.
fn is_topic() -> String {
    const NAME: &str = r"[^/\s\pZ\p{Cc}]+";
    const PART: &str = "[A-Za-z0-9_=:.-]+";
    format!("self.matches(r'^((persistent|non-persistent)://)?({PART}/{PART}/{NAME})$|^{NAME}$')")
}

/// How the messages of a subscription are shared among its consumers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubscriptionType {
    /// Each message goes to one of them.
    #[default]
    Shared,
    /// There is at most one of them.
    Exclusive,
    /// One of them gets all messages, until it is gone.
    Failover,
    /// Each message goes to one of them, those of one key to the same.
    #[serde(rename = "Key_Shared")]
    KeyShared,
}

/// Where a new subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InitialPosition {
    /// With the oldest message that there is.
    Earliest,
    /// With messages that are sent from then on.
    Latest,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// Whenever a container starts.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// How consumers show who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// The Secret with the token. It is mounted into the pods, and never in their environment. Key: token, unless another is
    /// named.
    pub token_secret: SecretKey,
}

/// How the broker's certificate is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The Secret with the certificates of the authorities that may have signed the broker's, in PEM. Key: ca.crt, unless
    /// another is named.
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

/// Where messages go that were delivered in vain too often.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterPolicy {
    /// How often a message is delivered again before it goes there.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_redeliver_count: i32,
    /// The topic. Default: the topic's own name, the subscription's and DLQ, joined by dashes, as Pulsar's clients name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(is_topic())
            .message("deadLetterTopic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub dead_letter_topic: Option<String>,
}

/// How the pods are placed and run; each field is that of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Further labels. Those that Quintet sets win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Further annotations. Those that Quintet sets win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<Toleration>>")]
    pub tolerations: Vec<Value>,
    /// Where pods should and must not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<Affinity>>")]
    pub affinity: Option<Value>,
    /// How pods are spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "without_descriptions::<Vec<TopologySpreadConstraint>>")]
    pub topology_spread_constraints: Vec<Value>,
    /// The ServiceAccount. Default: the namespace's.
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
    /// Seconds that a stopping consumer has to acknowledge what it has done. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// The pods' security context, in place of ours: user and group 65532, not root, the runtime's default seccomp profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "without_descriptions::<Option<PodSecurityContext>>")]
    pub security_context: Option<Value>,
}

/// How the number of consumers follows the backlog.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas must not be above maxReplicas")
)]
pub struct Autoscaling {
    /// The fewest consumers. Default 0: none while there is nothing to consume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: Option<i32>,
    /// The most consumers.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: i32,
    /// The backlog that one consumer is for, in entries, as Pulsar counts it. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub target_backlog: Option<i64>,
    /// The backlog above which the first consumer is started, where minReplicas is 0. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub activation_backlog: Option<i64>,
    /// Whether the topic has partitions, which KEDA must be told. Default: as it is found out from adminURL; say it where the
    /// manager may not ask there, for want of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitioned: Option<bool>,
    /// Seconds between two looks of KEDA's. Default: KEDA's, 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub polling_interval_seconds: Option<i32>,
    /// Seconds without a backlog before the last consumer is stopped. Default: KEDA's, 300.
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
    /// What the subscription has not acknowledged yet, in entries: Pulsar counts a batch of messages as one. It lags behind
    /// a little on purpose; the exact figure is the metric quintet_pulsarconsumer_backlog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<i64>,
    /// What was delivered and not acknowledged yet, as Pulsar counts it for Shared and Key_Shared subscriptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unacked: Option<i64>,
    /// How many consumers the broker knows of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<i32>,
    /// When backlog, unacked and consumers were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_time: Option<Time>,
    /// What the manager applied: an object whose generation is another one is applied again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub applied: Vec<AppliedObject>,
    /// Available: as many consumers are ready as are wanted. Applied: the Deployment is as this object asks; where
    /// it is False, the reason says who stands against it, and the message in whose words. BacklogObserved, with adminURL:
    /// the backlog is known. AutoscalingReady, with autoscaling: KEDA scales this object.
    // Another operator's conditions may lack what ours have.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
}
