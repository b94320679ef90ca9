//! The objects with which KEDA scales a PulsarConsumer.
//!
//! KEDA scales objects with a scale subresource, so the ScaledObject names the PulsarConsumer. Then the
//! autoscaler is the only writer of `replicas`, and this controller the only reader. The field names are
//! those of `keda.sh/v1alpha1` and of KEDA's `pulsar` scaler.

use kube::Resource as _;
use quintet_pulsar_topic::Topic;
use quintet_runtime::model::object::{Meta, Object, controller_reference};
use quintet_runtime::model::resource::Resource;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Autoscaling, OAuth2, PulsarConsumer, PulsarConsumerSpec, SubscriptionType};
use crate::backlog::Partitions;
use crate::deployment::{AUTHORITIES, NAME_LABEL, OAUTH2, TLS_KEYS, TOKEN, label_value};
use crate::managed_object::{APPLIED_ANNOTATION, ManagedObject};
use crate::topic::Topics;

/// ScaledObjects.
pub const SCALED_OBJECTS: Resource = Resource::custom("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects");
/// TriggerAuthentications.
pub const TRIGGER_AUTHENTICATIONS: Resource =
    Resource::custom("keda.sh", "v1alpha1", "TriggerAuthentication", "triggerauthentications");

/// The default backlog for one consumer; KEDA's default.
const TARGET_BACKLOG: i64 = 10;

/// The name of a PulsarConsumer's ScaledObject.
pub fn scaled_object_name(consumer: &PulsarConsumer) -> String {
    label_value(consumer)
}

/// The name of a PulsarConsumer's TriggerAuthentication.
pub fn trigger_authentication_name(consumer: &PulsarConsumer) -> String {
    format!("{}-token", label_value(consumer))
}

/// An object of KEDA, with its spec in the API server and its readiness.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "Wire")]
pub struct KedaObject {
    /// The metadata, with only the annotation of this kind.
    pub meta: Meta,
    /// The spec.
    pub spec: Value,
    /// KEDA's condition Ready; None before KEDA has set it.
    pub ready: Option<Ready>,
}

/// KEDA's condition Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whether it is True.
    pub is_true: bool,
    /// KEDA's message.
    pub message: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Wire {
    metadata: Meta,
    spec: Value,
    status: Value,
}

impl From<Wire> for KedaObject {
    fn from(wire: Wire) -> Self {
        let mut meta = wire.metadata;
        meta.annotations = meta.annotations.only(|annotation| annotation == APPLIED_ANNOTATION);
        let mut conditions = wire.status["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|one| one["type"] == "Ready" && one["status"] != "Unknown");
        let ready = ready.map(|one| Ready {
            is_true: one["status"] == "True",
            message: one["message"].as_str().unwrap_or_default().into(),
        });
        Self { meta, spec: wire.spec, ready }
    }
}

impl Object for KedaObject {
    quintet_runtime::identified_by_meta!(same);
}

impl ManagedObject for KedaObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn spec(&self) -> &Value {
        &self.spec
    }
}

/// The most pods that KEDA may run. Each partition has only one active consumer of a Failover subscription.
/// If the partitions of a topic are unknown, the limit of `own` stays, which is the existing ScaledObject.
pub fn max_replicas(
    spec: &PulsarConsumerSpec,
    autoscaling: &Autoscaling,
    topics: &Topics,
    partitions: &Partitions,
    own: Option<&KedaObject>,
) -> i32 {
    if spec.subscription_type != Some(SubscriptionType::Failover) {
        return autoscaling.max_replicas;
    }
    let last = || own.and_then(|own| own.spec["maxReplicaCount"].as_i64()?.try_into().ok());
    let unread = (autoscaling.partitioned == Some(false)).then_some(&1);
    let known = topics.names().try_fold(0_u32, |sum, topic| {
        Some(sum.saturating_add(partitions.get(topic).or(unread).copied()?.max(1)))
    });
    let active = known.or_else(last).unwrap_or(u32::MAX);
    let active = i32::try_from(active).unwrap_or(i32::MAX);
    autoscaling.max_replicas.min(active).max(autoscaling.min_replicas.unwrap_or_default())
}

/// The ScaledObject, with only the fields of this kind. KEDA must know whether each topic has partitions.
pub fn scaled_object(
    consumer: &PulsarConsumer,
    autoscaling: &Autoscaling,
    topics: &[(&Topic, bool)],
    max_replicas: i32,
) -> Value {
    let spec = &consumer.spec;
    let Autoscaling {
        min_replicas,
        max_replicas: _,
        target_backlog,
        activation_backlog,
        polling_interval_seconds,
        cooldown_seconds,
        partitioned: _,
    } = autoscaling;
    // Values in a trigger's metadata and in scalingModifiers are text.
    let target = target_backlog.unwrap_or(TARGET_BACKLOG).to_string();
    let activation = activation_backlog.unwrap_or_default().to_string();
    let mut metadata = json!({
        "adminURL": spec.admin_url.as_deref().unwrap_or_default().trim_end_matches('/'),
        "subscription": spec.subscription_name,
        "msgBacklogThreshold": target,
        "activationMsgBacklogThreshold": activation,
    });
    let mut trigger = json!({ "type": "pulsar" });
    let modes = [
        spec.token_secret().map(|_| "bearer"),
        spec.oauth2().map(|_| "oauth"),
        spec.admin_tls_secret().map(|_| "tls"),
    ];
    let modes: Vec<&str> = modes.into_iter().flatten().collect();
    if let Some(oauth2) = spec.oauth2() {
        metadata["oauthTokenURI"] = (*oauth2.token_url).into();
        metadata["clientID"] = (*oauth2.client_id).into();
        // Otherwise each query of the autoscaler, too, requests a token.
        trigger["useCachedMetrics"] = true.into();
        if let Some(scope) = &oauth2.scope {
            metadata["scope"] = scope.split_whitespace().collect::<Vec<_>>().join(",").into();
        }
        if let Some(audience) = &oauth2.audience {
            let mut parameters = form_urlencoded::Serializer::new(String::new());
            metadata["EndpointParams"] = parameters.append_pair("audience", audience).finish().into();
        }
    }
    if spec.has_admin_auth() {
        metadata["authModes"] = modes.join(",").into();
        trigger["authenticationRef"] = json!({ "name": trigger_authentication_name(consumer) });
    }
    trigger["metadata"] = metadata;
    let mut triggers = Vec::new();
    for (topic, partitioned) in topics {
        trigger["metadata"]["topic"] = topic.to_string().into();
        trigger["metadata"]["isPartitionedTopic"] = partitioned.to_string().into();
        triggers.push(trigger.clone());
    }
    let kind = Resource::of::<PulsarConsumer>();
    let mut wanted = json!({
        "scaleTargetRef": {
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "name": consumer.meta().name,
        },
        "minReplicaCount": min_replicas.unwrap_or_default(),
        "maxReplicaCount": max_replicas,
    });
    if triggers.len() > 1 {
        // Without a formula, KEDA scales by the largest backlog, not by the sum.
        let names: Vec<String> = (0..triggers.len()).map(|number| format!("topic{number}")).collect();
        for (trigger, name) in triggers.iter_mut().zip(&names) {
            trigger["name"] = (**name).into();
        }
        wanted["advanced"] = json!({ "scalingModifiers": {
            "formula": names.join(" + "),
            "target": target,
            "activationTarget": activation,
            "metricType": "AverageValue",
        } });
    }
    wanted["triggers"] = triggers.into();
    if let Some(seconds) = polling_interval_seconds {
        wanted["pollingInterval"] = (*seconds).into();
    }
    if let Some(seconds) = cooldown_seconds {
        wanted["cooldownPeriod"] = (*seconds).into();
    }
    object(consumer, &SCALED_OBJECTS, &scaled_object_name(consumer), &wanted)
}

/// The TriggerAuthentication; None if KEDA needs no Secret to authenticate. Its name is older than certificates.
pub fn trigger_authentication(consumer: &PulsarConsumer) -> Option<Value> {
    let spec = &consumer.spec;
    if !spec.has_admin_auth() {
        return None;
    }
    let parameter =
        |name: &str, secret: &str, key: &str| json!({ "parameter": name, "name": secret, "key": key });
    let mut parameters = Vec::new();
    if let Some(secret) = spec.token_secret() {
        parameters.push(parameter("bearerToken", &secret.name, TOKEN.key_of(secret)));
    }
    if let Some(OAuth2 { client_secret: secret, .. }) = spec.oauth2() {
        parameters.push(parameter("clientSecret", &secret.name, OAUTH2.key_of(secret)));
    }
    if let Some(secret) = spec.admin_tls_secret() {
        parameters.extend(
            ["cert", "key"].into_iter().zip(TLS_KEYS).map(|(name, key)| parameter(name, &secret.name, key)),
        );
    }
    if let Some((_, secret)) = spec.admin_ca() {
        parameters.push(parameter("ca", &secret.name, AUTHORITIES.key_of(secret)));
    }
    let wanted = json!({ "secretTargetRef": parameters });
    Some(object(consumer, &TRIGGER_AUTHENTICATIONS, &trigger_authentication_name(consumer), &wanted))
}

/// Whether a topic has partitions according to a ScaledObject; None if it has no trigger for this topic.
pub fn is_partitioned(scaled_object: &KedaObject, topic: &Topic) -> Option<bool> {
    let mut triggers = scaled_object.spec["triggers"].as_array()?.iter();
    let trigger = triggers.find(|trigger| trigger["metadata"]["topic"] == topic.to_string())?;
    trigger["metadata"]["isPartitionedTopic"].as_str()?.parse().ok()
}

fn object(consumer: &PulsarConsumer, resource: &Resource, name: &str, spec: &Value) -> Value {
    let meta = consumer.meta();
    json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": { NAME_LABEL: label_value(consumer) },
            "ownerReferences": [controller_reference(&Resource::of::<PulsarConsumer>(), meta)],
        },
        "spec": spec,
    })
}
