//! Deployments, as far as plans read them.

use serde::Deserialize;
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
}

impl Object for Deployment {
    crate::identified_by_meta!();

    fn same(&self, other: &Self) -> bool {
        let Self { meta, spec, observed_generation, replicas, ready, trouble } = self;
        meta.same(&other.meta)
            && *spec == other.spec
            && *observed_generation == other.observed_generation
            && *replicas == other.replicas
            && *ready == other.ready
            && *trouble == other.trouble
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireDeployment {
    metadata: WireMeta,
    spec: Value,
    status: WireDeploymentStatus,
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
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = meta.annotations.only(is_read);
        let trouble = wire.status.conditions.into_iter().find_map(|condition| {
            match (&*condition.type_, &*condition.status) {
                ("ReplicaFailure", "True") | ("Progressing", "False") => condition.message,
                _ => None,
            }
        });
        Self {
            meta,
            spec: wire.spec,
            observed_generation: wire.status.observed_generation,
            replicas: wire.status.replicas,
            ready: wire.status.ready_replicas,
            trouble,
        }
    }
}
