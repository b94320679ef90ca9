//! KEDA's objects: what scales a PulsarConsumer with its backlog.
//!
//! KEDA scales whatever has a scale subresource, so its ScaledObject names the PulsarConsumer itself: replicas have one
//! writer, the autoscaler, and one reader, us. The names of fields are those of KEDA's `keda.sh/v1alpha1` and of its
//! `pulsar` scaler.

use kube::Resource as _;
use quintet_runtime::model::object::{Meta, Object, WireMeta, controller_reference};
use quintet_runtime::model::resource::Resource;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Autoscaling, PulsarConsumer, SecretKey};
use crate::deployment::{AUTHORITIES, NAME_LABEL, TOKEN, key_of, label_value};
use crate::kept::{APPLIED_ANNOTATION, Kept};
use crate::topic::Topic;

/// ScaledObjects.
pub const SCALED_OBJECTS: Resource = Resource {
    group: "keda.sh",
    version: "v1alpha1",
    kind: "ScaledObject",
    plural: "scaledobjects",
    namespaced: true,
    custom: true,
};
/// TriggerAuthentications.
pub const TRIGGER_AUTHENTICATIONS: Resource = Resource {
    group: "keda.sh",
    version: "v1alpha1",
    kind: "TriggerAuthentication",
    plural: "triggerauthentications",
    namespaced: true,
    custom: true,
};

/// The backlog for one consumer where the object names none: KEDA's own.
const TARGET_BACKLOG: i64 = 10;

/// The name of a PulsarConsumer's ScaledObject.
pub fn scaled_object_name(consumer: &PulsarConsumer) -> String {
    label_value(consumer)
}

/// The name of a PulsarConsumer's TriggerAuthentication.
pub fn trigger_authentication_name(consumer: &PulsarConsumer) -> String {
    format!("{}-token", label_value(consumer))
}

/// An object of KEDA's: its spec as the server has it, and whether KEDA can work with it.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "Wire")]
pub struct KedaObject {
    /// Metadata; of the annotations only ours.
    pub meta: Meta,
    /// The spec.
    pub spec: Value,
    /// KEDA's condition Ready; none where KEDA has not looked at it yet.
    pub ready: Option<Ready>,
}

/// KEDA's condition Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whether it is True.
    pub is_true: bool,
    /// KEDA's words.
    pub message: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Wire {
    metadata: WireMeta,
    spec: Value,
    status: WireStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireStatus {
    conditions: Vec<WireCondition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: Box<str>,
    status: Box<str>,
    message: Box<str>,
}

impl From<Wire> for KedaObject {
    fn from(wire: Wire) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = meta.annotations.only(|annotation| annotation == APPLIED_ANNOTATION);
        let mut conditions = wire.status.conditions.into_iter();
        let ready = conditions.find(|one| &*one.type_ == "Ready" && &*one.status != "Unknown");
        let ready = ready.map(|one| Ready { is_true: &*one.status == "True", message: one.message });
        Self { meta, spec: wire.spec, ready }
    }
}

impl Object for KedaObject {
    quintet_runtime::identified_by_meta!();

    fn same(&self, other: &Self) -> bool {
        let Self { meta, spec, ready } = self;
        meta.same(&other.meta) && *spec == other.spec && *ready == other.ready
    }
}

impl Kept for KedaObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn spec(&self) -> &Value {
        &self.spec
    }
}

/// The ScaledObject, with every field that we own and no other. `partitioned` is whether the topic has partitions, which
/// KEDA must be told.
pub fn scaled_object(consumer: &PulsarConsumer, autoscaling: &Autoscaling, partitioned: bool) -> Value {
    let spec = &consumer.spec;
    let Autoscaling {
        min_replicas,
        max_replicas,
        target_backlog,
        activation_backlog,
        polling_interval_seconds,
        cooldown_seconds,
        partitioned: _,
    } = autoscaling;
    // Values in a trigger's metadata are text.
    let mut metadata = json!({
        "adminURL": spec.admin_url.as_deref().unwrap_or_default().trim_end_matches('/'),
        "topic": Topic::of(&spec.topic).to_string(),
        "subscription": spec.subscription_name,
        "isPartitionedTopic": partitioned.to_string(),
        "msgBacklogThreshold": target_backlog.unwrap_or(TARGET_BACKLOG).to_string(),
        "activationMsgBacklogThreshold": activation_backlog.unwrap_or_default().to_string(),
    });
    let mut trigger = json!({ "type": "pulsar" });
    if spec.auth.is_some() {
        metadata["authModes"] = "bearer".into();
        trigger["authenticationRef"] = json!({ "name": trigger_authentication_name(consumer) });
    }
    trigger["metadata"] = metadata;
    let kind = Resource::of::<PulsarConsumer>();
    let mut wanted = json!({
        "scaleTargetRef": {
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "name": consumer.meta().name,
        },
        "minReplicaCount": min_replicas.unwrap_or_default(),
        "maxReplicaCount": max_replicas,
        "triggers": [trigger],
    });
    if let Some(seconds) = polling_interval_seconds {
        wanted["pollingInterval"] = (*seconds).into();
    }
    if let Some(seconds) = cooldown_seconds {
        wanted["cooldownPeriod"] = (*seconds).into();
    }
    object(consumer, &SCALED_OBJECTS, &scaled_object_name(consumer), &wanted)
}

/// The TriggerAuthentication; None where there is nothing to authenticate with.
pub fn trigger_authentication(consumer: &PulsarConsumer) -> Option<Value> {
    let spec = &consumer.spec;
    let parameter = |name: &str, secret: &SecretKey, volume: &str| json!({ "parameter": name, "name": secret.name, "key": key_of(secret, volume) });
    let mut parameters = vec![parameter("bearerToken", &spec.auth.as_ref()?.token_secret, TOKEN.0)];
    let is_encrypted = spec.admin_url.as_ref().is_some_and(|url| url.starts_with("https://"));
    if let Some(tls) = spec.tls.as_ref().filter(|_| is_encrypted) {
        parameters.push(parameter("ca", &tls.ca_secret, AUTHORITIES.0));
    }
    let wanted = json!({ "secretTargetRef": parameters });
    Some(object(consumer, &TRIGGER_AUTHENTICATIONS, &trigger_authentication_name(consumer), &wanted))
}

/// Whether a ScaledObject says that the topic has partitions; None where it says nothing.
pub fn is_partitioned(scaled_object: &KedaObject) -> Option<bool> {
    scaled_object.spec.pointer("/triggers/0/metadata/isPartitionedTopic")?.as_str()?.parse().ok()
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
