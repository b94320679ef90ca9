//! The fields of Nodes that plans read.

use k8s_openapi::api::core::v1::NodeSystemInfo;
use serde::Deserialize;

use super::{WireCondition, is_read};
use crate::model::object::{Meta, Object, Pairs};
use crate::model::protobuf;

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    #[serde(default)]
    pub value: Box<str>,
    /// Effect: NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: Box<str>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireNode")]
pub struct Node {
    /// The metadata, with only the annotations that plans read.
    pub meta: Meta,
    /// Whether the Node has annotations, even those that no plan reads. A JSON patch cannot add to an absent map.
    pub has_annotations: bool,
    /// Whether the node is cordoned.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Box<[Taint]>,
    /// Whether the kubelet reports the node as Ready.
    pub ready: bool,
    /// The boot ID, which changes with each boot.
    pub boot_id: Box<str>,
    /// The machine's ID (`/etc/machine-id`). It stays the same across boots and differs on another machine.
    pub machine_id: Box<str>,
}

impl Object for Node {
    crate::identified_by_meta!(same);

    fn in_protobuf() -> Option<&'static protobuf::Type> {
        Some(&protobuf::NODE)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNode {
    metadata: Meta,
    spec: WireNodeSpec,
    status: WireNodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNodeSpec {
    unschedulable: bool,
    taints: Option<Box<[Taint]>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireNodeStatus {
    conditions: Vec<WireCondition>,
    node_info: NodeSystemInfo,
}

impl From<WireNode> for Node {
    fn from(wire: WireNode) -> Self {
        let mut meta = wire.metadata;
        let has_annotations = meta.annotations.iter().next().is_some();
        // Most Nodes have none that a plan reads.
        let is_one_read = meta.annotations.iter().any(|(key, _)| is_read(key));
        let annotations = std::mem::take(&mut meta.annotations);
        meta.annotations = if is_one_read { annotations.only(is_read) } else { Pairs::default() };
        Self {
            meta,
            has_annotations,
            unschedulable: wire.spec.unschedulable,
            taints: wire.spec.taints.unwrap_or_default(),
            ready: wire
                .status
                .conditions
                .iter()
                .any(|condition| &*condition.type_ == "Ready" && &*condition.status == "True"),
            boot_id: wire.status.node_info.boot_id.into(),
            machine_id: wire.status.node_info.machine_id.into(),
        }
    }
}
