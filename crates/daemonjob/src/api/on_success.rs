//! `onSuccess`: the changes to a Node after a success.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The changes that the manager makes to a Node. It makes them once for each success, when the node has
/// settled. It does not revert later changes by other clients. A change of onSuccess has an effect at the next
/// success.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnSuccess {
    /// Labels that the manager sets on the Node.
    #[serde(default)]
    #[schemars(schema_with = "few_labels")]
    #[x_kube(
        validation = Rule::new(
            "self.all(key, key.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))"
        )
        .message("each key of onSuccess.labels must be the key of a label with a domain, such as example.com/ready"),
        validation = Rule::new(
            "self.all(key, self[key].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'))"
        )
        .message(
            "each value of onSuccess.labels must be the value of a label: letters, digits, '-', '_' and '.', with a letter or \
             digit at both ends"
        ),
        validation = Rule::new("self.all(key, !key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/'))")
            .message("onSuccess.labels cannot set labels of kubernetes.io or k8s.io: use another domain")
    )]
    pub labels: Option<BTreeMap<String, String>>,

    /// Taints that the manager removes from the Node. The template must tolerate them.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub remove_taints: Option<Vec<RemovedTaint>>,
}

/// The schema of the labels of [`OnSuccess`].
fn few_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

/// A taint that the manager removes, with any value.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedTaint {
    /// The key of the taint.
    #[schemars(length(max = 317))]
    #[x_kube(
        validation = Rule::new(
            "self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')"
        )
        .message("each key of onSuccess.removeTaints must be the key of a taint with a domain, such as example.com/unprepared"),
        validation = Rule::new("!self.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/')")
            .message("onSuccess.removeTaints cannot remove taints of kubernetes.io or k8s.io: use another domain")
    )]
    pub key: String,
    /// The effect of the taint.
    pub effect: TaintEffect,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
pub enum TaintEffect {
    /// The scheduler places no pods on the node that do not tolerate the taint.
    NoSchedule,
    /// The scheduler avoids the node for pods that do not tolerate the taint.
    PreferNoSchedule,
    /// Pods that do not tolerate the taint are also evicted from the node.
    NoExecute,
}

impl OnSuccess {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.labels.as_ref().is_none_or(BTreeMap::is_empty)
            && self.remove_taints.as_ref().is_none_or(Vec::is_empty)
    }

    /// The labels to set.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().flatten().map(|(key, value)| (&**key, &**value))
    }

    /// The taints to remove.
    pub fn taints(&self) -> impl Iterator<Item = &RemovedTaint> {
        self.remove_taints.iter().flatten()
    }

    /// The keys that it changes.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.labels().map(|(key, _)| key).chain(self.taints().map(|taint| &*taint.key))
    }
}
