//! The adoption of running pods without an owner, e.g. after `kubectl delete --cascade=orphan`.
//!
//! A pod is adopted only in place of a missing one, so that a selector of too many pods deletes none. A pod that a user took
//! out has a label, so that the manager does not take it back.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::Resource as _;
use kube::core::Selector;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::controller_reference;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::refusals::{Refusals, Verb};
use quintet_runtime::model::resource::{PODS, Resource};
use serde_json::json;

use crate::api::{PodSet, PodSetStatus};
use crate::labels::{HASH_LABEL, RELEASED_LABEL, UID_LABEL};

/// The pods that the selector of `adopt` selects.
#[derive(Debug, Default, PartialEq)]
pub enum Orphans {
    /// No pod is missing, or the PodSet adopts none.
    #[default]
    Unread,
    /// The pods, with and without an owner.
    Found(Vec<Arc<Pod>>),
    /// The API server rejects the selector, for this reason.
    Rejected(String),
}

/// The label selector of the pods to adopt, if pods are missing. `counted` is the number of counted pods with the label of
/// the PodSet's selector. An error is one sentence.
pub fn selector(podset: &PodSet, counted: usize) -> Option<Result<String, String>> {
    let adoption = podset.spec.adopt.as_ref()?;
    let is_missing = usize::try_from(podset.spec.replicas).is_ok_and(|replicas| counted < replicas);
    is_missing.then(|| text(&adoption.selector))
}

/// A selector as in a URL. The conversion of the crate neither escapes nor checks values.
fn text<'a>(selector: &'a LabelSelector) -> Result<String, String> {
    let name = |key: &'a str| key.rsplit('/').next().unwrap_or(key);
    let labels = selector.match_labels.iter().flatten();
    let expressions = || selector.match_expressions.iter().flatten();
    let values = |one: &'a LabelSelectorRequirement| one.values.as_deref().unwrap_or_default();
    let parts = labels.flat_map(|(key, value)| [name(key), value]);
    let mut parts = parts.chain(
        expressions().flat_map(|one| values(one).iter().map(|value| &**value).chain([name(&one.key)])),
    );
    if let Some(bad) = parts.find(|part| !is_label(part)) {
        return Err(format!(
            "adopt.selector is not valid: {bad:?} is neither a key nor a value of a label; use letters, digits, '-', \
             '_' and '.'"
        ));
    }
    let is_wrong = |one: &&'a LabelSelectorRequirement| {
        matches!(&*one.operator, "In" | "NotIn") == values(one).is_empty()
    };
    if let Some(LabelSelectorRequirement { key, operator, .. }) = expressions().find(is_wrong) {
        return Err(format!(
            "adopt.selector is not valid: {operator} of {key}; In and NotIn need values, Exists and DoesNotExist have none"
        ));
    }
    let selector = Selector::try_from(selector.clone())
        .map_err(|error| format!("adopt.selector is not valid: {error}"))?;
    if selector.selects_all() {
        return Err("adopt.selector is empty: it would select every pod of the namespace".to_owned());
    }
    Ok(selector.to_string())
}

/// Whether a text can be the value of a label, or the name in its key.
fn is_label(text: &str) -> bool {
    let is_outer = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= 63 && is_outer(bytes.first()) && is_outer(bytes.last()) && bytes.iter().all(is_inner)
}

/// Whether a PodSet may adopt the pod: it runs without an owner, and no user took it out.
pub fn is_orphan(pod: &Pod) -> bool {
    pod.meta.owner.is_none() && pod.is_counted() && pod.label(RELEASED_LABEL).is_none()
}

/// The pods to adopt, at most `missing`: ready ones first, and then by name. A pod whose adoption was rejected leaves its
/// place to another one.
pub fn adoptable<'a>(
    orphans: &'a Orphans,
    missing: usize,
    refusals: &Refusals,
    now: Timestamp,
) -> Vec<&'a Arc<Pod>> {
    let Orphans::Found(pods) = orphans else { return Vec::new() };
    let waits =
        |pod: &Pod| refusals.until(Verb::Apply, &PODS, &pod.meta.name).is_some_and(|until| until > now);
    let mut found: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is_orphan(pod) && !waits(pod)).collect();
    found.sort_by_key(|pod| (pod.ready_since.is_none(), pod.meta.name.clone()));
    found.truncate(missing);
    found
}

/// The message of a rejected selector or adoption.
pub fn problem<'a>(orphans: &'a Orphans, refusals: &'a Refusals) -> Option<&'a str> {
    match orphans {
        Orphans::Unread => None,
        Orphans::Rejected(why) => Some(why),
        Orphans::Found(pods) => pods
            .iter()
            .find_map(|pod| refusals.of(Verb::Apply, &PODS, &pod.meta.name))
            .map(|refusal| &*refusal.message),
    }
}

/// Adopts a pod, if it is unchanged. A pod without a hash gets `hash`, that of the current template, so that a later
/// rollout replaces it.
pub fn adopt(podset: &PodSet, pod: &Pod, hash: &str) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let hash = pod.label(HASH_LABEL).unwrap_or(hash);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": &*pod.meta.name,
            "namespace": &*pod.meta.namespace,
            "uid": &*pod.meta.uid,
            "resourceVersion": &*pod.meta.resource_version,
            "labels": { KIND_LABEL: "PodSet", UID_LABEL: meta.uid, HASH_LABEL: hash },
            "ownerReferences": [controller_reference(&Resource::of::<PodSet>(), meta)],
        },
    });
    let (namespace, name) = (pod.meta.namespace.clone(), pod.meta.name.to_string());
    Action::Apply { resource: PODS, namespace, name, owner_label: Some(UID_LABEL), body, force: true }
}
