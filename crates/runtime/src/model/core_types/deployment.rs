//! Deployments, as far as plans read them.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{WireCondition, is_read};
use crate::model::object::{Meta, Object, WireMeta};

/// A Deployment: its spec as the server has it, and what its status says.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireDeployment")]
pub struct Deployment {
    /// Metadata; of the annotations only ours.
    pub meta: Meta,
    /// The spec, defaults and foreign fields included.
    pub spec: Value,
    /// The generation that its controller has seen.
    pub observed_generation: i64,
    /// Pods of any template.
    pub replicas: i32,
    /// Ready pods.
    pub ready: i32,
    /// Why pods cannot be made or do not become available, in its controller's words.
    pub trouble: Option<Box<str>>,
    /// The field manager that owns `spec.replicas` through the scale subresource, as an autoscaler does.
    pub scaled_by: Option<Box<str>>,
}

impl Object for Deployment {
    crate::identified_by_meta!();

    fn same(&self, other: &Self) -> bool {
        let Self { meta, spec, observed_generation, replicas, ready, trouble, scaled_by } = self;
        meta.same(&other.meta)
            && *spec == other.spec
            && *observed_generation == other.observed_generation
            && *replicas == other.replicas
            && *ready == other.ready
            && *trouble == other.trouble
            && *scaled_by == other.scaled_by
    }
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
    meta: WireMeta,
    managed_fields: Vec<WireManager>,
}

/// An entry of `managedFields`, as far as it says who scales.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireManager {
    manager: Box<str>,
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
    ready_replicas: i32,
    conditions: Vec<WireCondition>,
}

impl From<WireDeployment> for Deployment {
    fn from(wire: WireDeployment) -> Self {
        let mut meta = Meta::from(wire.metadata.meta);
        meta.annotations = meta.annotations.only(is_read);
        let trouble = wire.status.conditions.into_iter().find_map(|condition| {
            match (&*condition.type_, &*condition.status) {
                ("ReplicaFailure", "True") | ("Progressing", "False") => condition.message,
                _ => None,
            }
        });
        let scales =
            |one: &WireManager| *one.subresource == *"scale" && one.fields_v1.spec.replicas.is_some();
        let scaled_by = wire.metadata.managed_fields.into_iter().find(scales).map(|one| one.manager);
        Self {
            meta,
            spec: wire.spec,
            observed_generation: wire.status.observed_generation,
            replicas: wire.status.replicas,
            ready: wire.status.ready_replicas,
            trouble,
            scaled_by,
        }
    }
}
