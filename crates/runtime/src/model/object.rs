//! What every cached object has: an identity, a version and perhaps a controller that owns it.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::model::protobuf;

/// One object of one kind, for as long as it lives: a new object under an old name is another key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The controller reference of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// API group of the owner, without the version: an owner keeps its objects when its version changes.
    pub group: Arc<str>,
    /// Kind of the owner.
    pub kind: Arc<str>,
    /// Name of the owner.
    pub name: Arc<str>,
    /// UID of the owner.
    pub uid: Arc<str>,
    /// Where it stands among the owner references.
    pub at: u8,
}

/// Where `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object that an informer can keep.
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// Its identity.
    fn key(&self) -> Key;
    /// Its resourceVersion.
    fn resource_version(&self) -> &str;
    /// Its generation; 0 where the type has none.
    fn generation(&self) -> i64 {
        0
    }
    /// Its controller reference.
    fn owner(&self) -> Option<&Owner> {
        None
    }
    /// Whether its deletion was asked for.
    fn terminating(&self) -> bool;
    /// How it is read in protobuf; None where it is read from JSON, as all custom resources are.
    fn in_protobuf() -> Option<&'static protobuf::Type> {
        None
    }
    /// Drops what no plan reads, before it is kept.
    fn slim(&mut self) {}
    /// Keeps what it has in common with an object of the same owner once for both.
    fn share(&mut self, _sibling: &Self) {}
    /// Whether `other` differs from it in nothing that is read. Such a change wakes nobody.
    fn same(&self, other: &Self) -> bool {
        self.resource_version() == other.resource_version()
    }
}

/// What the slim types have in common, to stand in their `impl Object`: they are what their `meta` says.
#[macro_export]
macro_rules! identified_by_meta {
    () => {
        fn key(&self) -> $crate::model::object::Key {
            self.meta.key()
        }

        fn resource_version(&self) -> &str {
            &self.meta.resource_version
        }

        fn owner(&self) -> Option<&$crate::model::object::Owner> {
            self.meta.owner.as_ref()
        }

        fn terminating(&self) -> bool {
            self.meta.deleted.is_some()
        }

        fn share(&mut self, sibling: &Self) {
            self.meta.share(&sibling.meta);
        }
    };
}

/// The custom resources of the five kinds, by their derived types.
impl<K> Object for K
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    fn key(&self) -> Key {
        let meta = self.meta();
        Key {
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
        }
    }

    fn resource_version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or_default()
    }

    fn generation(&self) -> i64 {
        self.meta().generation.unwrap_or_default()
    }

    fn terminating(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    fn slim(&mut self) {
        let meta = self.meta_mut();
        // Most of what a small object takes, decoded: who wrote which field, and what was applied, once more.
        meta.managed_fields = None;
        if let Some(annotations) = &mut meta.annotations {
            annotations.remove(LAST_APPLIED);
        }
    }
}

/// The metadata that the slim types keep, decoded once and small.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Meta {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// resourceVersion.
    pub resource_version: Box<str>,
    /// Generation; 0 where the type has none.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When its deletion was asked for, grace period included.
    pub deleted: Option<Timestamp>,
    /// The grace period of its deletion, in seconds.
    pub grace_seconds: i64,
    /// Labels.
    pub labels: Pairs,
    /// Annotations; only those that are read.
    pub annotations: Pairs,
    /// Finalizers.
    pub finalizers: Box<[Box<str>]>,
    /// Controller reference.
    pub owner: Option<Owner>,
}

impl Meta {
    /// Whether this object is its controller.
    pub fn is_controlled_by(&self, owner: &Key) -> bool {
        self.owner.as_ref().is_some_and(|one| one.uid == owner.uid)
    }

    /// Whether it has this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|one| **one == *finalizer)
    }

    /// Takes the strings of `other` where it has equal ones: of the pods of one template most are.
    pub fn share(&mut self, other: &Self) {
        if self.namespace == other.namespace {
            self.namespace.clone_from(&other.namespace);
        }
        if self.owner == other.owner {
            self.owner.clone_from(&other.owner);
        }
        self.labels.share(&other.labels);
        self.annotations.share(&other.annotations);
    }

    /// Whether `other` differs in nothing but the resourceVersion.
    pub fn same(&self, other: &Self) -> bool {
        let Self {
            namespace,
            name,
            uid,
            resource_version: _,
            generation,
            created,
            deleted,
            grace_seconds,
            labels,
            annotations,
            finalizers,
            owner,
        } = self;
        *namespace == other.namespace
            && *name == other.name
            && *uid == other.uid
            && *generation == other.generation
            && *created == other.created
            && *deleted == other.deleted
            && *grace_seconds == other.grace_seconds
            && *labels == other.labels
            && *annotations == other.annotations
            && *finalizers == other.finalizers
            && *owner == other.owner
    }

    /// When its deletion was asked for, to the second: the API server adds the grace period to the time of the request.
    pub fn deletion_asked(&self) -> Option<Timestamp> {
        let deleted = self.deleted?;
        Some(deleted.checked_sub(SignedDuration::from_secs(self.grace_seconds)).unwrap_or(deleted))
    }

    /// The JSON patch that takes a finalizer off, if it is still where it was seen; None where it is not there.
    pub fn without_finalizer(&self, finalizer: &str) -> Option<Value> {
        let at = self.finalizers.iter().position(|one| **one == *finalizer)?;
        let path = format!("/metadata/finalizers/{at}");
        Some(json!([
            { "op": "test", "path": "/metadata/uid", "value": &*self.uid },
            { "op": "test", "path": path, "value": finalizer },
            { "op": "remove", "path": path },
        ]))
    }

    /// The JSON patch that takes the controller reference off, if it is still where it was seen.
    pub fn without_controller(&self) -> Option<Value> {
        let owner = self.owner.as_ref()?;
        let path = format!("/metadata/ownerReferences/{}", owner.at);
        Some(json!([
            { "op": "test", "path": "/metadata/uid", "value": &*self.uid },
            { "op": "test", "path": format!("{path}/uid"), "value": &*owner.uid },
            { "op": "remove", "path": path },
        ]))
    }

    /// The identity that this metadata names.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }
}

/// A small sorted map of strings: labels or annotations, without a tree node for each.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "std::collections::BTreeMap<Arc<str>, Arc<str>>")]
pub struct Pairs(Arc<[(Arc<str>, Arc<str>)]>);

impl Pairs {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.find(key).map(|(_, value)| &**value)
    }

    /// All pairs, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Only the pairs whose key passes.
    #[must_use]
    pub fn only(self, keep: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(key, _)| keep(key)).cloned().collect())
    }

    /// Takes what `other` has of the same.
    fn share(&mut self, other: &Self) {
        if self == other {
            self.0.clone_from(&other.0);
            return;
        }
        // One that has shared before is left as it is.
        for (key, value) in Arc::get_mut(&mut self.0).unwrap_or_default() {
            let Some((their_key, their_value)) = other.find(key) else { continue };
            key.clone_from(their_key);
            if value == their_value {
                value.clone_from(their_value);
            }
        }
    }

    fn find(&self, key: &str) -> Option<&(Arc<str>, Arc<str>)> {
        // There are few, and most differ in length.
        self.0.iter().find(|(name, _)| **name == *key)
    }
}

impl From<std::collections::BTreeMap<Arc<str>, Arc<str>>> for Pairs {
    fn from(map: std::collections::BTreeMap<Arc<str>, Arc<str>>) -> Self {
        Self(map.into_iter().collect())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Pairs {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self::from(
            pairs
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect::<std::collections::BTreeMap<Arc<str>, Arc<str>>>(),
        )
    }
}

/// Metadata as it stands in JSON; unknown fields are skipped while parsing.
///
/// For types that are decoded into the fields that are read: those of [`crate::model::core_types`] and a kind's own.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct WireMeta {
    namespace: Option<Arc<str>>,
    name: Option<Arc<str>>,
    uid: Option<Arc<str>>,
    resource_version: Option<Box<str>>,
    generation: Option<i64>,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<Pairs>,
    annotations: Option<Pairs>,
    finalizers: Option<Box<[Box<str>]>>,
    owner_references: Option<Vec<WireOwner>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireOwner {
    #[serde(default)]
    api_version: Box<str>,
    #[serde(default)]
    kind: Arc<str>,
    #[serde(default)]
    name: Arc<str>,
    #[serde(default)]
    uid: Arc<str>,
    controller: Option<bool>,
}

impl From<WireMeta> for Meta {
    fn from(wire: WireMeta) -> Self {
        let owner = wire
            .owner_references
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .find(|(_, reference)| reference.controller == Some(true))
            .map(|(at, reference)| Owner {
                at: at.try_into().unwrap_or(u8::MAX),
                group: reference.api_version.split_once('/').map_or("", |(group, _)| group).into(),
                kind: reference.kind,
                name: reference.name,
                uid: reference.uid,
            });
        Self {
            namespace: wire.namespace.unwrap_or_default(),
            name: wire.name.unwrap_or_default(),
            uid: wire.uid.unwrap_or_default(),
            resource_version: wire.resource_version.unwrap_or_default(),
            generation: wire.generation.unwrap_or_default(),
            created: wire.creation_timestamp,
            deleted: wire.deletion_timestamp,
            grace_seconds: wire.deletion_grace_period_seconds.unwrap_or_default(),
            labels: wire.labels.unwrap_or_default(),
            annotations: wire.annotations.unwrap_or_default(),
            finalizers: wire.finalizers.unwrap_or_default(),
            owner,
        }
    }
}

/// Only the metadata of whatever an answer holds.
#[derive(Deserialize)]
pub(crate) struct MetaOnly {
    #[serde(default)]
    pub(crate) metadata: WireMeta,
}

/// A controller reference to a custom resource, as JSON for the objects made for it.
///
/// `blockOwnerDeletion` makes a foreground deletion of the owner wait for them.
pub fn controller_reference(
    resource: &crate::model::resource::Resource,
    meta: &ObjectMeta,
) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_found_among_the_owners_and_its_version_is_dropped() {
        let only: MetaOnly = serde_json::from_str(
            r#"{"kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","managedFields":[{"x":1}],
                "labels":{"b":"2","a":"1"},
                "ownerReferences":[{"apiVersion":"v1","kind":"X","name":"x","uid":"1"},
                  {"apiVersion":"dj.dysproz.io/v1","kind":"DaemonJob","name":"d","uid":"2","controller":true}]}}"#,
        )
        .unwrap();
        let meta = Meta::from(only.metadata);
        let owner = meta.owner.unwrap();
        assert_eq!((&*owner.group, &*owner.kind, &*owner.uid), ("dj.dysproz.io", "DaemonJob", "2"));
        assert_eq!(meta.labels.get("a"), Some("1"));
        assert_eq!(meta.labels.get("b"), Some("2"));
        assert_eq!(meta.labels.get("c"), None);
    }

    #[test]
    fn siblings_keep_once_what_they_have_in_common() {
        let meta = |name: &str, node: &str| Meta {
            namespace: "n".into(),
            name: name.into(),
            labels: [("kind", "DaemonJob"), ("node", node)].into(),
            owner: Some(Owner {
                group: "g".into(),
                kind: "k".into(),
                name: "o".into(),
                uid: "u".into(),
                at: 0,
            }),
            ..Meta::default()
        };
        let first = meta("a", "1");
        for (node, whole) in [("1", true), ("2", false)] {
            let mut second = meta("b", node);
            second.share(&first);
            assert_eq!(second, meta("b", node));
            assert!(Arc::ptr_eq(&second.namespace, &first.namespace));
            let owner = |meta: &Meta| meta.owner.clone().unwrap().uid;
            assert!(Arc::ptr_eq(&owner(&second), &owner(&first)));
            assert_eq!(Arc::ptr_eq(&second.labels.0, &first.labels.0), whole);
            let (ours, theirs) = (second.labels.find("kind").unwrap(), first.labels.find("kind").unwrap());
            assert!(Arc::ptr_eq(&ours.0, &theirs.0) && Arc::ptr_eq(&ours.1, &theirs.1));
        }
    }

    #[test]
    fn a_custom_resource_is_kept_without_what_nobody_reads() {
        // Any derived type will do; this one is its metadata and little else.
        let mut object: k8s_openapi::api::core::v1::ConfigMap = serde_json::from_value(json!({
            "metadata": {
                "name": "a", "uid": "u", "labels": {"l": "1"},
                "annotations": {LAST_APPLIED: "{}", "kept": "1"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:x": {}}}],
            },
        }))
        .unwrap();
        Object::slim(&mut object);
        let kept = serde_json::to_value(&object.metadata).unwrap();
        let expected = json!({"name": "a", "uid": "u", "labels": {"l": "1"}, "annotations": {"kept": "1"}});
        assert_eq!(kept, expected);
    }
}
