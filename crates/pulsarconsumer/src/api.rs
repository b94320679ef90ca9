//! The PulsarConsumer custom resource: the tutorial's fields, more fields for production, and the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use quintet_pulsar_topic::Topic;
use quintet_runtime::model::conditions::{READY, of_types};
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::model::schema::short_name;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;
use std::borrow::Cow;

use crate::rules::{
    ARE_PERSISTENT, HOST, IS_SECRET, IS_SUBSCRIPTION, KEEPS_SETTINGS, KEEPS_TYPE, NAME, PART, is_address,
    is_duration, is_same, is_topic, not_consumed, of_our_container, partial_template,
};
use crate::topic;

/// The topics and subscription to consume, and the settings of the pods.
#[skip_serializing_none]
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
    doc = "PulsarConsumer runs consumers of Pulsar topics as the pods of a Deployment.",
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
    validation = Rule::new("!has(self.auth) || !has(self.auth.tlsSecret) || self.serverAddress.startsWith('pulsar+ssl://')")
        .message("auth.tlsSecret needs an encrypted serverAddress, as in pulsar+ssl://broker:6651"),
    validation = Rule::new("!has(self.adminTLS) || has(self.adminURL) && self.adminURL.startsWith('https://')")
        .message("adminTLS needs an encrypted adminURL, as in https://broker:8443"),
    validation = Rule::new("!has(self.autoscaling) || has(self.adminURL)")
        .message("autoscaling needs adminURL, where the backlog is read"),
    validation = Rule::new("[has(self.topic), has(self.topics), has(self.topicsPattern)].exists_one(one, one)")
        .message("set exactly one of topic, topics and topicsPattern"),
    validation = Rule::new(format!(
        "!has(self.subscription) || has(self.adminURL) && {ARE_PERSISTENT} \
         || !(has(self.subscription.create) && self.subscription.create) \
         && !(has(self.subscription.cleanup) && self.subscription.cleanup == 'Delete')"
    ))
    .message("subscription.create and the cleanup Delete need adminURL and a persistent topic"),
    validation = Rule::new(format!("!has(self.autoscaling) || {ARE_PERSISTENT}"))
        .message("autoscaling needs a persistent topic: KEDA reads the backlog of no other"),
    validation = Rule::new("!has(self.autoscaling) || !has(self.topicsPattern)")
        .message("autoscaling needs topic or topics: KEDA reads the backlog of named topics only"),
    validation = Rule::new(format!(
        "!has(self.readCompacted) || !self.readCompacted \
         || has(self.subscriptionType) && self.subscriptionType in ['Exclusive', 'Failover'] && {ARE_PERSISTENT}"
    ))
    .message("readCompacted needs the subscriptionType Exclusive or Failover, and a persistent topic"),
    validation = Rule::new("!has(self.ackTimeout) || !has(self.subscriptionType) || self.subscriptionType == 'Shared'")
        .message("ackTimeout needs the subscriptionType Shared"),
    validation = Rule::new("!has(self.ackTimeout) || !has(self.deadLetterPolicy) || has(self.image)")
        .message("ackTimeout and deadLetterPolicy exclude each other for Quintet's image, where messages that are given back would become dead letters"),
    validation = Rule::new(
        "!has(self.deadLetterPolicy) || !has(self.subscriptionType) || self.subscriptionType in ['Shared', 'Key_Shared']"
    )
    .message("deadLetterPolicy needs the subscriptionType Shared or Key_Shared"),
    validation = Rule::new(not_consumed("deadLetterTopic"))
        .message("deadLetterTopic must be another topic than the one that is consumed"),
    validation = Rule::new(not_consumed("retryLetterTopic"))
        .message("retryLetterTopic must be another topic than the one that is consumed"),
    validation = Rule::new(
        "!has(self.deadLetterPolicy) || has(self.deadLetterPolicy.deadLetterTopic) \
         || has(self.topic) && !self.topic.startsWith('non-persistent://')"
    )
    .message("deadLetterPolicy needs a deadLetterTopic for several topics, and for a topic that is not persistent"),
    validation = Rule::new(
        r"!has(self.deadLetterPolicy) || has(self.deadLetterPolicy.deadLetterTopic) || !self.subscriptionName.matches(r'[\s\pZ\p{Cc}]')"
    )
    .message("deadLetterPolicy needs a deadLetterTopic here: one is named after the subscription, and a topic's name has no blanks"),
    validation = Rule::new(
        "!has(self.template) || !has(self.template.metadata) || !has(self.template.metadata.labels) \
         || ['pulsarcrd', 'quintet.dev/kind', 'pulsar.pulsarconsumer.krvarma.com/uid'].all(label, !(label in self.template.metadata.labels))"
    )
    .message("template must not set the labels pulsarcrd, quintet.dev/kind and pulsar.pulsarconsumer.krvarma.com/uid: they select the pods"),
    validation = Rule::new(
        format!(
            "(!has(self.template) || !has(self.template.spec) || !has(self.template.spec.restartPolicy) \
             || self.template.spec.restartPolicy == 'Always') && ({})",
            of_our_container("!has(one.restartPolicy) || one.restartPolicy == 'Always'", "true")
        )
    )
    .message("restartPolicy must be Always or left out in template.spec and in the container pulsarconsumer, because consumers must not end"),
    validation = Rule::new("!has(self.template) || !has(self.template.spec) || !has(self.template.spec.serviceAccount)")
        .message("template must not set the deprecated serviceAccount: set serviceAccountName"),
    validation = Rule::new(of_our_container("!has(one.image)", "has(one.image)"))
        .message("template must set the image of every container but pulsarconsumer, whose image is spec.image"),
    validation = Rule::new(format!("has(self.image) || ({})", of_our_container(KEEPS_SETTINGS, "true")))
    .message("template must not set command, args, variables that begin with PULSAR_ or envFrom without a prefix for Quintet's image: set the fields of the spec"),
    validation = Rule::new(format!("!has(self.image) || ({})", of_our_container(KEEPS_TYPE, "true")))
    .message("template must not set the variable PULSAR_SUBSCRIPTION_TYPE: set subscriptionType, which also decides how pods are replaced"),
    validation = Rule::new(format!(
        "has(self.healthPort) && self.healthPort == 0 || has(self.image) && !has(self.healthPort) || ({})",
        of_our_container(
            "!has(one.livenessProbe) && !has(one.readinessProbe) \
             && (!has(one.ports) || one.ports.all(port, !has(port.name) || port.name != 'health'))",
            "true"
        )
    ))
    .message("template must not set the probes and the port health of the container pulsarconsumer: set healthPort to 0 first")
)]
pub struct PulsarConsumerSpec {
    /// The address of the Pulsar service, such as pulsar://broker:6650 or pulsar+ssl://broker:6651. Separate
    /// several hosts by commas. The pods resolve the host name, so localhost is the pod itself.
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
        validation = Rule::new(is_topic("self"))
            .message("topic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub topic: Option<String>,

    /// Several topics, in place of topic.
    #[schemars(
        length(min = 1, max = 50),
        inner(length(min = 1, max = 512)),
        extend("x-kubernetes-list-type" = "set")
    )]
    #[x_kube(
        validation = Rule::new(format!("self.all(one, {} && !one.contains(','))", is_topic("one")))
            .message("each of topics must be a topic without a comma, such as my-topic or tenant/namespace/my-topic"),
        validation = Rule::new(format!("self.all(one, self.exists_one(two, {}))", is_same("one", "two")))
            .message("topics must have each topic only once")
    )]
    pub topics: Option<Vec<String>>,

    /// The persistent topics to consume, in place of topic: REGEX (in public/default), tenant/namespace/REGEX or
    /// persistent://tenant/namespace/REGEX. The regular expression must match the whole last part of a topic's
    /// name. Pulsar's own topics and the topics in deadLetterPolicy never match.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(
        validation = Rule::new(format!("self.matches(r'^((persistent://)?{PART}/{PART}/)?{NAME}$')"))
            .message("topicsPattern must be REGEX, tenant/namespace/REGEX or persistent://tenant/namespace/REGEX, without a slash in REGEX"),
        validation = Rule::new("''.matches(self.substring(self.lastIndexOf('/') + 1) + '|')")
            .message("topicsPattern must end with a regular expression")
    )]
    pub topics_pattern: Option<String>,

    /// The subscription that all pods share. The manager creates the subscription at adminURL, and without
    /// adminURL the first pod that connects.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(IS_SUBSCRIPTION)
            .message("subscriptionName must have no slash, and no blank at its ends")
    )]
    pub subscription_name: String,

    /// The desired number of pods. The value 0 stops all pods and keeps the subscription. Leave replicas out
    /// if an autoscaler scales the PulsarConsumer.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,

    /// How the pods share the messages. Default Shared, as in the tutorial.
    pub subscription_type: Option<SubscriptionType>,

    /// Where a new subscription begins. Default Latest: with messages that are sent later.
    pub initial_position: Option<InitialPosition>,

    /// When the manager creates and deletes the subscription.
    pub subscription: Option<Subscription>,

    /// How the pods authenticate to the broker, and how the manager authenticates when it reads the backlog.
    /// Default: without authentication.
    pub auth: Option<Auth>,

    /// How the pods verify the broker's certificate. Default: with the CAs that the image trusts.
    pub tls: Option<Tls>,

    /// The topic for messages that were redelivered too often. Default: the broker redelivers such messages
    /// without end. The subscriptionType must be Shared or Key_Shared, because the broker counts redeliveries
    /// only for these types.
    pub dead_letter_policy: Option<DeadLetterPolicy>,

    /// The delay before a message that a consumer rejected is delivered again, such as 30s or 1m30s. Default:
    /// the image's default, which is one minute for Quintet's image.
    #[schemars(length(max = 64))]
    #[x_kube(
        validation = Rule::new(is_duration("self"))
            .message("negativeAckRedeliveryDelay must be a positive duration such as 500ms, 30s or 1m30s")
    )]
    pub negative_ack_redelivery_delay: Option<String>,

    /// The time after which a consumer returns messages that it has not printed yet to the broker, for other
    /// consumers, such as 30s or 1m30s. At least 1s. The subscriptionType must be Shared. Default: a consumer keeps
    /// its messages.
    #[schemars(length(max = 64))]
    #[x_kube(
        validation = Rule::new(format!("{} && duration(self) >= duration('1s')", is_duration("self")))
            .message("ackTimeout must be a duration of at least 1s, such as 30s or 1m30s")
    )]
    pub ack_timeout: Option<String>,

    /// Whether consumers get only the latest message of each key of a compacted topic. The subscriptionType must
    /// be Exclusive or Failover. Default false.
    pub read_compacted: Option<bool>,

    /// Whether the broker replicates the subscription's position to other clusters. Default false.
    pub replicate_subscription_state: Option<bool>,

    /// The advertised listener of the brokers whose addresses the pods use. Default: the brokers' default.
    #[schemars(length(min = 1, max = 256))]
    pub listener_name: Option<String>,

    /// How many messages of each partition a consumer prefetches. Default: the image's default, which is 1000
    /// for Quintet's image.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub receiver_queue_size: Option<i32>,

    /// How many bytes of messages a consumer prefetches from all partitions, and one message more. Default: the
    /// image's default, which is 33554432 (32 MiB) for Quintet's image.
    #[schemars(range(min = 1))]
    pub receiver_queue_bytes: Option<i64>,

    /// The image of the pods. Default: the manager's --pulsar-consumer-image. The container gets the
    /// environment variables PULSAR_SERVER, PULSAR_TOPIC (PULSAR_TOPICS, PULSAR_TOPICS_PATTERN) and
    /// PULSAR_SUBSCRIPTION_NAME, and more variables for optional fields that are set.
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// The port on which the kubelet probes /healthz and /readyz. The container gets the port in
    /// PULSAR_HTTP_BIND_ADDRESS. The value 0 disables the probes. Default: the manager's
    /// --pulsar-consumer-health-port if image is not set, else 0.
    #[schemars(range(min = 0, max = 65_535))]
    pub health_port: Option<i32>,

    /// More of the pods, merged over what the manager makes: maps by key; containers, initContainers and
    /// environment variables by name; ports by containerPort; volumeMounts by mountPath. All else is replaced,
    /// also a volume of the same name and the pod's securityContext. The container of the consumer has the
    /// name pulsarconsumer.
    #[serde(default)]
    #[schemars(schema_with = "partial_template")]
    pub template: Option<RawTemplate>,

    /// The address of the broker's admin API, such as http://broker:8080. The manager reads the backlog, and
    /// creates and deletes the subscription there. Default: the manager does nothing of this.
    #[serde(rename = "adminURL")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address("https?", "(/[A-Za-z0-9_./~-]*)?"))
            .message("adminURL must look like http://host:8080 or https://host:8443, without a query, a user or a password")
    )]
    pub admin_url: Option<String>,

    /// How the manager, and with auth also KEDA, verifies the certificate of adminURL. Default: with the CA in
    /// tls, or else with the public CAs.
    #[serde(rename = "adminTLS")]
    pub admin_tls: Option<Tls>,

    /// Seconds between two reads of the backlog. Default 30.
    #[schemars(range(min = 10, max = 86_400))]
    pub backlog_poll_seconds: Option<i32>,

    /// How KEDA scales the pods with the backlog. Default: no autoscaling.
    pub autoscaling: Option<Autoscaling>,
}

impl PulsarConsumerSpec {
    /// Whether exactly one field has the topics. An object that was stored under the tutorial's definition may have none.
    pub fn has_topics(&self) -> bool {
        let fields = [self.topic.is_some(), self.topics.is_some(), self.topics_pattern.is_some()];
        fields.into_iter().filter(|is_set| *is_set).count() == 1
    }

    /// The topics as the status shows them.
    pub fn shown_topics(&self) -> Cow<'_, str> {
        match self.topic.as_ref().or(self.topics_pattern.as_ref()) {
            Some(topic) => topic.into(),
            None => self.topics.as_deref().unwrap_or_default().join(", ").into(),
        }
    }

    /// The dead-letter topic.
    pub fn dead_letter_topic(&self) -> Option<String> {
        let default = || Some(topic::dead_letter(&Topic::of(self.topic.as_ref()?), &self.subscription_name));
        self.dead_letter_policy.as_ref()?.dead_letter_topic.clone().or_else(default)
    }

    /// The retry-letter topic.
    pub fn retry_letter_topic(&self) -> Option<&str> {
        self.dead_letter_policy.as_ref()?.retry_letter_topic.as_deref()
    }

    /// The Secret with the token.
    pub fn token_secret(&self) -> Option<&SecretKey> {
        self.auth.as_ref()?.token_secret.as_ref()
    }

    /// The OAuth2 issuer.
    pub fn oauth2(&self) -> Option<&OAuth2> {
        self.auth.as_ref()?.oauth2.as_ref()
    }

    /// The Secret with the client certificate and its key.
    pub fn tls_secret(&self) -> Option<&SecretName> {
        self.auth.as_ref()?.tls_secret.as_ref()
    }

    /// The Secret with the client certificate for adminURL; None if its connections are not encrypted.
    pub fn admin_tls_secret(&self) -> Option<&SecretName> {
        self.tls_secret().filter(|_| self.has_encrypted_admin())
    }

    /// Whether requests to adminURL have credentials.
    pub fn has_admin_auth(&self) -> bool {
        self.token_secret().is_some() || self.oauth2().is_some() || self.admin_tls_secret().is_some()
    }

    /// Whether the subscription is deleted with the PulsarConsumer.
    pub fn deletes_subscription(&self) -> bool {
        let cleanup = self.subscription.as_ref().and_then(|subscription| subscription.cleanup);
        cleanup == Some(Cleanup::Delete) && self.has_topics()
    }

    fn has_encrypted_admin(&self) -> bool {
        self.admin_url.as_ref().is_some_and(|url| url.starts_with("https://"))
    }

    /// The field and the Secret with the CA certificates for an `https://` adminURL or issuer; None for the public CAs.
    pub fn admin_ca(&self) -> Option<(&'static str, &SecretKey)> {
        let fields = [("adminTLS.caSecret", &self.admin_tls), ("tls.caSecret", &self.tls)];
        let found = fields.into_iter().find_map(|(field, tls)| Some((field, &tls.as_ref()?.ca_secret)));
        let issuer = self.oauth2().is_some_and(|oauth2| oauth2.token_url.starts_with("https://"));
        found.filter(|_| issuer || self.has_encrypted_admin())
    }
}

const fn one() -> i32 {
    1
}

/// How the consumers of a subscription share its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubscriptionType {
    /// Each message goes to one consumer.
    #[default]
    Shared,
    /// The subscription accepts only one consumer.
    Exclusive,
    /// One consumer gets all messages. Another consumer takes over when that consumer is gone.
    Failover,
    /// Each message goes to one consumer. All messages with the same key go to the same consumer.
    #[serde(rename = "Key_Shared")]
    KeyShared,
}

/// When the manager creates and deletes the subscription.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Whether the manager creates a missing subscription at adminURL, so that messages are kept and KEDA knows
    /// the backlog before the first pod connects. Default true with adminURL and a persistent topic, but false
    /// with image and without initialPosition, because the image may begin at another position.
    pub create: Option<bool>,
    /// Whether the subscription and its backlog stay after the PulsarConsumer is deleted. Default Keep.
    pub cleanup: Option<Cleanup>,
}

/// Whether the subscription of a deleted PulsarConsumer stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Cleanup {
    /// The subscription stays, and Pulsar keeps its backlog.
    Keep,
    /// The manager stops the pods and deletes the subscription with its backlog, unless another
    /// PulsarConsumer has the same subscription. A finalizer keeps the PulsarConsumer until then.
    Delete,
}

/// Where a new subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InitialPosition {
    /// Begin with the oldest stored message.
    Earliest,
    /// Begin with messages that are sent later.
    Latest,
}

/// The authentication of consumers: a token from a Secret or an OAuth2 issuer, a client certificate, or both.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.tokenSecret) || has(self.oauth2) || has(self.tlsSecret)")
        .message("auth needs tokenSecret, oauth2 or tlsSecret"),
    validation = Rule::new("!has(self.tokenSecret) || !has(self.oauth2)")
        .message("auth must not have both tokenSecret and oauth2: a client has one token")
)]
pub struct Auth {
    /// The Secret with the token. The pods mount the token as a file; it is never in an environment variable.
    /// Default key: token.
    pub token_secret: Option<SecretKey>,
    /// The OAuth2 issuer from which the pods, the manager and KEDA get tokens. Its certificate must come from a
    /// public CA or a CA in tls. For the manager and KEDA, adminTLS replaces tls.
    pub oauth2: Option<OAuth2>,
    /// The Secret with the client certificate (tls.crt) and its key (tls.key), such as one of cert-manager. The
    /// pods mount both as files. The manager and KEDA use them for an https adminURL.
    pub tls_secret: Option<SecretName>,
}

/// How to verify a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The Secret with the CA certificates to trust, in PEM. Default key: ca.crt.
    pub ca_secret: SecretKey,
}

/// A client of an OAuth2 issuer, with the grant type client_credentials.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OAuth2 {
    /// The address of the issuer's token endpoint, such as https://issuer.example.com/oauth/token.
    #[serde(rename = "tokenURL")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = Rule::new(is_address("https?", "(/[A-Za-z0-9_./~-]*)?"))
            .message("tokenURL must look like https://issuer.example.com/oauth/token, without a query, a user or a password")
    )]
    pub token_url: String,
    /// The client's ID.
    #[serde(rename = "clientID")]
    #[schemars(length(min = 1, max = 1024))]
    pub client_id: String,
    /// The Secret with the client's secret. Default key: client-secret.
    pub client_secret: SecretKey,
    /// The audience of the tokens, such as urn:pulsar. Default: the issuer's default.
    #[schemars(length(min = 1, max = 1024))]
    pub audience: Option<String>,
    /// The scopes of the tokens, separated by blanks. Default: the issuer's default.
    #[schemars(length(min = 1, max = 1024))]
    pub scope: Option<String>,
}

/// A Secret of the same namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretName {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new(IS_SECRET)
            .message("a Secret's name has lower-case letters, digits, dots and dashes")
    )]
    pub name: String,
}

/// A value in a Secret of the same namespace.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new(IS_SECRET)
            .message("a Secret's name has lower-case letters, digits, dots and dashes")
    )]
    pub name: String,
    /// The key in the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new(r"self.matches(r'^[A-Za-z0-9._-]+$')")
            .message("a Secret's key has letters, digits, dots, dashes and underscores")
    )]
    pub key: Option<String>,
}

/// The topic for messages that were redelivered too often.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(format!(
        "!has(self.retryLetterTopic) || !has(self.deadLetterTopic) || !({})",
        is_same("self.retryLetterTopic", "self.deadLetterTopic")
    ))
    .message("retryLetterTopic must be another topic than deadLetterTopic"),
    validation = Rule::new("!has(self.retryLetterTopic) || has(self.deadLetterTopic)")
        .message("retryLetterTopic needs deadLetterTopic"),
    validation = Rule::new("!has(self.retryDelays) || has(self.retryLetterTopic)")
        .message("retryDelays needs retryLetterTopic")
)]
pub struct DeadLetterPolicy {
    /// The number of redeliveries before a message goes to the dead-letter topic.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_redeliver_count: i32,
    /// The dead-letter topic. Default: `<topic>-<subscription>-DLQ`, as for Pulsar's clients.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(format!("{} && !self.startsWith('non-persistent://')", is_topic("self")))
            .message("deadLetterTopic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub dead_letter_topic: Option<String>,
    /// The subscription that keeps dead letters until they are read. The consumers create it before the first
    /// dead letter. Default: `<subscription>-dlq`.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(IS_SUBSCRIPTION)
            .message("initialSubscription must have no slash, and no blank at its ends")
    )]
    pub initial_subscription: Option<String>,
    /// The persistent topic for rejected messages, which are delivered again after a delay. The consumers
    /// subscribe to it too. Default: a consumer requests rejected messages from the broker again.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new(format!("{} && !self.startsWith('non-persistent://')", is_topic("self")))
            .message("retryLetterTopic must be my-topic, tenant/namespace/my-topic or persistent://tenant/namespace/my-topic")
    )]
    pub retry_letter_topic: Option<String>,
    /// The delays before the first, the second and further retries, such as 30s or 1m30s. The last delay
    /// applies to all further retries. Default: negativeAckRedeliveryDelay.
    #[schemars(length(min = 1, max = 16), inner(length(max = 64)))]
    #[x_kube(
        validation = Rule::new(format!("self.all(one, {})", is_duration("one")))
            .message("each of retryDelays must be a positive duration such as 500ms, 30s or 1m30s")
    )]
    pub retry_delays: Option<Vec<String>>,
}

/// How KEDA scales the consumers with the backlog.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas must not be above maxReplicas")
)]
pub struct Autoscaling {
    /// The minimum number of pods. Default 0, so that no pod runs without a backlog.
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: Option<i32>,
    /// The maximum number of pods.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: i32,
    /// KEDA runs one pod for this number of unacknowledged entries. An entry is a message or a batch of
    /// messages. Default 10.
    #[schemars(range(min = 1))]
    pub target_backlog: Option<i64>,
    /// The number of unacknowledged entries above which KEDA starts the first pod if minReplicas is 0.
    /// Default 0.
    #[schemars(range(min = 0))]
    pub activation_backlog: Option<i64>,
    /// Whether all topics have partitions, which KEDA must know. Default: the manager detects partitions at
    /// adminURL. Set partitioned if the manager may not read the Secrets in auth.
    pub partitioned: Option<bool>,
    /// Seconds between two reads of the backlog by KEDA. Default: KEDA's default, which is 30.
    #[schemars(range(min = 1, max = 86_400))]
    pub polling_interval_seconds: Option<i32>,
    /// Seconds without a backlog until KEDA stops the last pod. Default: KEDA's default, which is 300.
    #[schemars(range(min = 0, max = 86_400))]
    pub cooldown_seconds: Option<i32>,
}

/// An object as the last apply returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedObject {
    /// The object's kind.
    pub kind: String,
    /// The object's UID.
    pub uid: String,
    /// The object's generation after the apply.
    pub generation: i64,
    /// A digest of the Deployment without its replicas. It shows whether another client only scales the
    /// Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl AppliedObject {
    /// The object with this metadata, without a digest.
    pub fn of(resource: &Resource, meta: &Meta) -> Self {
        let (kind, uid) = (resource.kind.to_owned(), (*meta.uid).to_owned());
        Self { kind, uid, generation: meta.generation, digest: None }
    }

    /// Whether an object of this kind with this metadata is unchanged since the apply.
    pub fn is_unchanged(&self, meta: &Meta) -> bool {
        self.uid == *meta.uid && self.generation == meta.generation
    }
}

/// The observed state of a PulsarConsumer and its Deployment.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// kstatus treats an object without a status as ready. The default generation prevents that.
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct PulsarConsumerStatus {
    /// The generation that this status describes. The value is -1 until a manager writes the status.
    #[schemars(extend("default" = -1))]
    pub observed_generation: Option<i64>,
    /// The serverAddress of the spec.
    pub server: Option<String>,
    /// The topic, topics or topicsPattern of the spec.
    pub topic: Option<String>,
    /// The subscriptionName of the spec.
    pub subscription: Option<String>,
    /// The number of existing pods, of the current and of older templates.
    pub replicas: Option<i32>,
    /// The number of pods of the current template.
    pub updated_replicas: Option<i32>,
    /// The number of ready pods.
    pub ready_replicas: Option<i32>,
    /// The label selector of the pods, for the scale subresource.
    pub selector: Option<String>,
    /// The number of unacknowledged entries of the subscription in all its topics. An entry is a message or a batch of
    /// messages. The manager does not write small changes to the status; the metric
    /// quintet_pulsarconsumer_backlog is exact.
    pub backlog: Option<i64>,
    /// The number of delivered but unacknowledged messages. Pulsar counts such messages only for Shared and
    /// Key_Shared.
    pub unacked: Option<i64>,
    /// The number of consumers that the broker reports, for several topics the largest of their numbers.
    pub consumers: Option<i32>,
    /// The time when the manager read backlog, unacked and consumers.
    pub backlog_time: Option<Time>,
    /// The objects that the manager has applied. If the generation of such an object changes, the manager
    /// applies the object again, unless another client only scales it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub applied: Vec<AppliedObject>,
    /// Available is True if the desired number of pods is ready. Applied is True if the Deployment matches the
    /// spec. Ready is True if exactly the desired pods exist, have the current template and are ready.
    /// Progressing is the Deployment's condition. Stalled is True if a rollout exceeds the Deployment's deadline,
    /// and absent otherwise. BacklogObserved, which needs adminURL, is True if the backlog is known.
    /// AutoscalingReady, which needs autoscaling, is True if KEDA scales the PulsarConsumer. SubscriptionDeleted
    /// exists only while the subscription of a deleted PulsarConsumer is being deleted. The reason and message of
    /// a condition that is False name the obstacle.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "conditions")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    of_types(&CONDITIONS, deserializer)
}

/// The types of a PulsarConsumer's conditions.
const CONDITIONS: [&str; 8] = [
    "Available",
    "Applied",
    READY,
    "Progressing",
    "Stalled",
    "BacklogObserved",
    "AutoscalingReady",
    "SubscriptionDeleted",
];
