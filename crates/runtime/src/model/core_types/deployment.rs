//! The fields of Deployments that plans read.

use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Deserialize;
use serde_json::Value;

use super::is_read;
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
    status: DeploymentStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireDeploymentMeta {
    #[serde(flatten)]
    meta: Meta,
    managed_fields: Vec<ManagedFieldsEntry>,
}

/// A client that has scaled to 0, and maybe back.
const ANOTHER_CLIENT: &str = "Another client";

/// The field manager that scales a Deployment. A Scale with 0 replicas omits the field, so the API server removes it from
/// its owner, and later scales add no owner: apimachinery's `ScaleHandler` and `skipNonAppliedManager`.
fn scaled_by(managers: &[ManagedFieldsEntry]) -> Option<Box<str>> {
    let is_owner = |one: &&ManagedFieldsEntry| {
        one.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:spec"]["f:replicas"].is_null())
    };
    let mut owners = managers.iter().filter(is_owner).peekable();
    if owners.peek().is_none() {
        let is_applied = managers.iter().any(|one| one.operation.as_deref() == Some("Apply"));
        return is_applied.then(|| ANOTHER_CLIENT.into());
    }
    let scaler = owners.find(|one| one.subresource.as_deref() == Some("scale"))?;
    Some(scaler.manager.as_deref().unwrap_or_default().into())
}

impl From<WireDeployment> for Deployment {
    fn from(wire: WireDeployment) -> Self {
        let mut meta = wire.metadata.meta;
        meta.annotations = meta.annotations.only(is_read);
        let conditions = wire.status.conditions.unwrap_or_default();
        let is_progressing = |one: &&DeploymentCondition| one.type_.as_deref() == Some("Progressing");
        let progressing = conditions.iter().find(is_progressing).map(|one| Progressing {
            status: match one.status.as_deref() {
                Some("True") => Some(true),
                Some("False") => Some(false),
                _ => None,
            },
            reason: one.reason.as_deref().unwrap_or_default().into(),
            message: one.message.as_deref().unwrap_or_default().into(),
        });
        let trouble =
            conditions.iter().find_map(|one| match (one.type_.as_deref()?, one.status.as_deref()?) {
                ("ReplicaFailure", "True") | ("Progressing", "False") => one.message.as_deref(),
                _ => None,
            });
        Self {
            meta,
            spec: wire.spec,
            observed_generation: wire.status.observed_generation.unwrap_or_default(),
            replicas: wire.status.replicas.unwrap_or_default(),
            updated: wire.status.updated_replicas.unwrap_or_default(),
            ready: wire.status.ready_replicas.unwrap_or_default(),
            trouble: trouble.map(Into::into),
            progressing,
            scaled_by: scaled_by(&wire.metadata.managed_fields),
        }
    }
}
