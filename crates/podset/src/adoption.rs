//! The adoption of running pods without an owner, e.g. after `kubectl delete --cascade=orphan`.
//!
//! A pod is adopted only in place of a missing one, so that a selector of too many pods deletes none. The PodSet's own pods
//! are younger than the PodSet, and a pod is adopted once. Otherwise the manager would take back a pod that a user took out
//! to debug it.

use std::sync::Arc;

use kube::Resource as _;
use kube::core::Selector;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::controller_reference;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::{PODS, Resource};
use serde_json::json;

use crate::api::{PodSet, PodSetStatus};
use crate::labels::{ADOPTED_LABEL, UID_LABEL};

/// The label selector of the pods to adopt, if pods are missing. `counted` is the number of counted pods.
pub fn selector(podset: &PodSet, counted: usize) -> Option<String> {
    let adoption = podset.spec.adopt.as_ref()?;
    let is_missing = usize::try_from(podset.spec.replicas).is_ok_and(|replicas| counted < replicas);
    // The schema demands a valid selector. An object from before the schema may have another one.
    let selector = Selector::try_from(adoption.selector.clone()).ok()?.to_string();
    (is_missing && !selector.is_empty()).then_some(selector)
}

/// The pods to adopt among `pods`, at most `missing`: ready ones first, and then by name.
pub fn adoptable<'a>(podset: &PodSet, pods: &'a [Arc<Pod>], missing: usize) -> Vec<&'a Arc<Pod>> {
    let meta = podset.meta();
    let began = meta.creation_timestamp.as_ref().map(|time| time.0);
    let is_adoptable = |pod: &&Arc<Pod>| {
        pod.meta.owner.is_none()
            && pod.is_counted()
            && pod.meta.created < began
            && pod.label(ADOPTED_LABEL) != meta.uid.as_deref()
    };
    let mut found: Vec<&Arc<Pod>> = pods.iter().filter(is_adoptable).collect();
    found.sort_by_key(|pod| (pod.ready_since.is_none(), pod.meta.name.clone()));
    found.truncate(missing);
    found
}

/// Adopts a pod, if it is unchanged.
pub fn adopt(podset: &PodSet, pod: &Pod) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": &*pod.meta.name,
            "namespace": &*pod.meta.namespace,
            "uid": &*pod.meta.uid,
            "resourceVersion": &*pod.meta.resource_version,
            "labels": { KIND_LABEL: "PodSet", UID_LABEL: meta.uid, ADOPTED_LABEL: meta.uid },
            "ownerReferences": [controller_reference(&Resource::of::<PodSet>(), meta)],
        },
    });
    let (namespace, name) = (pod.meta.namespace.clone(), pod.meta.name.to_string());
    Action::Apply { resource: PODS, namespace, name, body, force: true }
}
