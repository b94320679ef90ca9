//! The fields of Deployments that plans read.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{WireCondition, is_read};
use crate::model::object::{Meta, Object};

/// A Deployment: its raw spec and a part of its status.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireDeployment")]
pub struct Deployment {
    /// The metadata, with only the manager's own annotations.
    pub meta: Meta,
    /// The spec, including defaults and unknown fields.
    pub spec: Value,
    /// The generation that the Deployment controller has observed.
    pub observed_generation: i64,
    /// The number of pods of any template.
    pub replicas: i32,
    /// The number of pods of the current template.
    pub updated: i32,
    /// The number of ready pods.
    pub ready: i32,
    /// The Deployment controller's message if pods cannot be created or do not become available.
    pub trouble: Option<Box<str>>,
    /// The condition Progressing; None if the Deployment controller has not set it.
    pub progressing: Option<Progressing>,
    /// The field manager that owns `spec.replicas` through the scale subresource, as an autoscaler does, or
    /// [`ANOTHER_CLIENT`].
    pub scaled_by: Option<Box<str>>,
}

/// A Deployment's condition Progressing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progressing {
    /// The status; None for Unknown.
    pub status: Option<bool>,
    /// The reason.
    pub reason: Box<str>,
    /// The message.
    pub message: Box<str>,
}

impl Object for Deployment {
    crate::identified_by_meta!(same);
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireDeployment {
    metadata: WireDeploymentMeta,
    spec: Value,
    status: WireDeploymentStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireDeploymentMeta {
    #[serde(flatten)]
    meta: Meta,
    managed_fields: Vec<WireManager>,
}

/// The fields of a `managedFields` entry that identify a scaler.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireManager {
    manager: Box<str>,
    operation: Box<str>,
    subresource: Box<str>,
    fields_v1: WireFields,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireFields {
    #[serde(rename = "f:spec")]
    spec: WireSpecFields,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireSpecFields {
    #[serde(rename = "f:replicas")]
    replicas: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireDeploymentStatus {
    observed_generation: i64,
    replicas: i32,
    updated_replicas: i32,
    ready_replicas: i32,
    conditions: Vec<WireCondition>,
}

/// A client that has scaled to 0, and maybe back.
const ANOTHER_CLIENT: &str = "Another client";

/// The field manager that scales a Deployment. A Scale with 0 replicas omits the field, so the API server removes it from
/// its owner, and later scales add no owner: apimachinery's `ScaleHandler` and `skipNonAppliedManager`.
fn scaled_by(managers: Vec<WireManager>) -> Option<Box<str>> {
    let is_applied = managers.iter().any(|one| *one.operation == *"Apply");
    let mut owners = managers.into_iter().filter(|one| one.fields_v1.spec.replicas.is_some()).peekable();
    if owners.peek().is_none() {
        return is_applied.then(|| ANOTHER_CLIENT.into());
    }
    owners.find(|one| *one.subresource == *"scale").map(|one| one.manager)
}

impl From<WireDeployment> for Deployment {
    fn from(wire: WireDeployment) -> Self {
        let mut meta = wire.metadata.meta;
        meta.annotations = meta.annotations.only(is_read);
        let mut conditions = wire.status.conditions.iter();
        let progressing = conditions.find(|one| &*one.type_ == "Progressing").map(|one| Progressing {
            status: match &*one.status {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            },
            reason: one.reason.clone().unwrap_or_default(),
            message: one.message.clone().unwrap_or_default(),
        });
        let trouble = wire.status.conditions.into_iter().find_map(|condition| {
            match (&*condition.type_, &*condition.status) {
                ("ReplicaFailure", "True") | ("Progressing", "False") => condition.message,
                _ => None,
            }
        });
        let scaled_by = scaled_by(wire.metadata.managed_fields);
        Self {
            meta,
            spec: wire.spec,
            observed_generation: wire.status.observed_generation,
            replicas: wire.status.replicas,
            updated: wire.status.updated_replicas,
            ready: wire.status.ready_replicas,
            trouble,
            progressing,
            scaled_by,
        }
    }
}
