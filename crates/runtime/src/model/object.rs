//! The common part of every cached object: an identity, a version and an optional controller.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::model::protobuf;
use crate::model::resource::Resource;

/// The identity of one object. A new object with an old name has another key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for cluster-scoped objects.
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
    /// The index in the list of owner references.
    pub at: u8,
}

impl Owner {
    /// Whether the owner is an object of this kind.
    pub fn is_a(&self, kind: &Resource) -> bool {
        *self.group == *kind.group && *self.kind == *kind.kind
    }
}

/// The annotation in which `kubectl apply` stores the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object that an informer can cache.
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// The identity.
    fn key(&self) -> Key;
    /// The resourceVersion.
    fn resource_version(&self) -> &str;
    /// The generation; 0 if the type has none.
    fn generation(&self) -> i64 {
        0
    }
    /// The controller reference.
    fn owner(&self) -> Option<&Owner> {
        None
    }
    /// Whether the object has a deletion timestamp.
    fn terminating(&self) -> bool;
    /// How to decode the object from protobuf; None for types that are decoded from JSON, such as custom resources.
    fn in_protobuf() -> Option<&'static protobuf::Type> {
        None
    }
    /// Drops the fields that no plan reads, before the cache stores the object.
    fn slim(&mut self) {}
    /// Shares equal data with an object of the same owner, to save memory.
    fn share(&mut self, _sibling: &Self) {}
    /// Whether `other` is equal in all fields that plans read. Such a change wakes no subscriber.
    fn same(&self, other: &Self) -> bool {
        self.resource_version() == other.resource_version()
    }
}

/// Implements the common methods of the slim types in their `impl Object`, from their `meta`. With `same`, objects that
/// differ only in their version are equal.
#[macro_export]
macro_rules! identified_by_meta {
    (same) => {
        $crate::identified_by_meta!();

        fn same(&self, other: &Self) -> bool {
            self == other
        }
    };
    () => {
        fn key(&self) -> $crate::model::object::Key {
            self.meta.key()
        }

        fn resource_version(&self) -> &str {
            &self.meta.resource_version
        }

        fn owner(&self) -> Option<&$crate::model::object::Owner> {
            self.meta.owner.as_deref()
        }

        fn terminating(&self) -> bool {
            self.meta.deleted.is_some()
        }

        fn share(&mut self, sibling: &Self) {
            self.meta.share(&sibling.meta);
        }
    };
}

/// The custom resources of the kinds, by their derived types.
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
        // Most of the memory of a small object: the managed fields, and the manifest that `kubectl apply` stored.
        meta.managed_fields = None;
        if let Some(annotations) = &mut meta.annotations {
            annotations.remove(LAST_APPLIED);
        }
    }
}

/// A resourceVersion. All versions are equal, so that objects that differ only in their version are equal. To tell
/// versions apart, compare their texts.
#[derive(Clone, Debug, Default, Eq, Deserialize)]
pub struct Version(pub Box<str>);

impl PartialEq for Version {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Deref for Version {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The metadata of the slim types, decoded once; the decoder skips other fields. The fields that a plan reads of every
/// object come first, so that they lie together in memory.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[repr(C)]
pub struct Meta {
    /// The deletion timestamp, which includes the grace period.
    #[serde(rename = "deletionTimestamp")]
    pub deleted: Option<Timestamp>,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: Pairs,
    /// The annotations that plans read.
    #[serde(deserialize_with = "or_default")]
    pub annotations: Pairs,
    /// The time of creation.
    #[serde(rename = "creationTimestamp")]
    pub created: Option<Timestamp>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Finalizers.
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Box<[Box<str>]>,
    /// Controller reference.
    #[serde(rename = "ownerReferences", deserialize_with = "controller")]
    pub owner: Option<Arc<Owner>>,
    /// The grace period of the deletion, in seconds.
    #[serde(rename = "deletionGracePeriodSeconds", deserialize_with = "or_default")]
    pub grace_seconds: i64,
    /// resourceVersion.
    pub resource_version: Version,
    /// The generation; 0 if the type has none.
    pub generation: i64,
}

impl Meta {
    /// Whether `owner` is the controller of this object.
    pub fn is_controlled_by(&self, owner: &Key) -> bool {
        self.owner.as_ref().is_some_and(|one| one.uid == owner.uid)
    }

    /// Whether the object has this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|one| **one == *finalizer)
    }

    /// Shares equal strings with `other`: most strings of the pods of one template are equal.
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

    /// The time of the delete request, in whole seconds: the deletion timestamp minus the grace period.
    pub fn deletion_asked(&self) -> Option<Timestamp> {
        let deleted = self.deleted?;
        Some(deleted.checked_sub(SignedDuration::from_secs(self.grace_seconds)).unwrap_or(deleted))
    }

    /// The JSON patch that removes a finalizer, if its position has not changed; None if the object does not have it.
    pub fn without_finalizer(&self, finalizer: &str) -> Option<Value> {
        let at = self.finalizers.iter().position(|one| **one == *finalizer)?;
        Some(removal_of_finalizer(&self.uid, at, finalizer))
    }

    /// The JSON patch that removes the controller reference, if its position has not changed; None without a
    /// controller.
    pub fn without_controller(&self) -> Option<Value> {
        let owner = self.owner.as_deref()?;
        let path = format!("/metadata/ownerReferences/{}", owner.at);
        Some(json!([
            { "op": "test", "path": "/metadata/uid", "value": &*self.uid },
            { "op": "test", "path": format!("{path}/uid"), "value": &*owner.uid },
            { "op": "remove", "path": path },
        ]))
    }

    /// The identity of the object.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }
}

/// The JSON patch that removes the finalizer at an index from the object with this UID.
pub fn removal_of_finalizer(uid: &str, index: usize, finalizer: &str) -> Value {
    let path = format!("/metadata/finalizers/{index}");
    json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": path, "value": finalizer },
        { "op": "remove", "path": path },
    ])
}

/// A small sorted map of strings for labels or annotations. All values are in one text, so that reading one
/// touches little memory besides the keys, which the objects of an owner share.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "BTreeMap<Arc<str>, String>")]
pub struct Pairs {
    /// The values, one after another.
    text: Arc<str>,
    shape: Arc<Shape>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Shape {
    keys: Arc<[Arc<str>]>,
    /// Where each value ends in the text.
    ends: Box<[u32]>,
}

impl Pairs {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        // A linear search suffices: the keys are few, and most differ in length.
        self.value(self.shape.keys.iter().position(|name| **name == *key)?)
    }

    /// All pairs, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shape.keys.iter().enumerate().filter_map(|(at, key)| Some((&**key, self.value(at)?)))
    }

    /// Keeps only the pairs for whose key `keep` returns true.
    #[must_use]
    pub fn only(self, keep: impl Fn(&str) -> bool) -> Self {
        if self.shape.keys.iter().all(|key| keep(key)) {
            return self;
        }
        let kept = self.shape.keys.iter().enumerate().filter(|(_, key)| keep(key));
        Self::of_sorted(kept.filter_map(|(at, key)| Some((key.clone(), self.value(at)?))))
    }

    fn of_sorted(pairs: impl Iterator<Item = (Arc<str>, impl AsRef<str>)>) -> Self {
        let mut text = String::new();
        let (keys, ends): (Vec<_>, Vec<_>) = pairs
            .map(|(key, value)| {
                text += value.as_ref();
                // The API server accepts objects of a few MiB at most.
                (key, u32::try_from(text.len()).unwrap_or(u32::MAX))
            })
            .unzip();
        let shape = Shape { keys: keys.into(), ends: ends.into() };
        Self { text: text.into(), shape: Arc::new(shape) }
    }

    fn value(&self, at: usize) -> Option<&str> {
        let end = |at: usize| self.shape.ends.get(at).map(|end| *end as usize);
        self.text.get(at.checked_sub(1).map_or(Some(0), end)?..end(at)?)
    }

    /// Shares equal parts with `other`.
    fn share(&mut self, other: &Self) {
        if self.text == other.text {
            self.text.clone_from(&other.text);
        }
        if self.shape == other.shape {
            self.shape.clone_from(&other.shape);
            return;
        }
        // A shared map stays unchanged.
        let Some(shape) = Arc::get_mut(&mut self.shape) else { return };
        if shape.keys == other.shape.keys {
            shape.keys.clone_from(&other.shape.keys);
            return;
        }
        for key in Arc::get_mut(&mut shape.keys).unwrap_or_default() {
            if let Some(theirs) = other.shape.keys.iter().find(|theirs| **theirs == *key) {
                key.clone_from(theirs);
            }
        }
    }
}

impl From<BTreeMap<Arc<str>, String>> for Pairs {
    fn from(map: BTreeMap<Arc<str>, String>) -> Self {
        Self::of_sorted(map.into_iter())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Pairs {
    fn from(pairs: [(&str, &str); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.to_owned()));
        Self::from(pairs.collect::<BTreeMap<_, _>>())
    }
}

/// Decodes a null as the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Decodes the controller reference from the list of owner references.
fn controller<'de, D: Deserializer<'de>>(references: D) -> Result<Option<Arc<Owner>>, D::Error> {
    let references: Option<Vec<OwnerReference>> = Option::deserialize(references)?;
    let mut references = references.unwrap_or_default().into_iter().enumerate();
    let controller = references.find(|(_, reference)| reference.controller == Some(true));
    Ok(controller.map(|(at, reference)| {
        Arc::new(Owner {
            at: at.try_into().unwrap_or(u8::MAX),
            group: reference.api_version.split_once('/').map_or("", |(group, _)| group).into(),
            kind: reference.kind.into(),
            name: reference.name.into(),
            uid: reference.uid.into(),
        })
    }))
}

/// The metadata of any object in an answer.
#[derive(Deserialize)]
pub(crate) struct MetaOnly {
    #[serde(default)]
    pub(crate) metadata: Meta,
}

/// A controller reference to a custom resource, as JSON for the objects that the manager creates for it.
///
/// With `blockOwnerDeletion`, a foreground deletion of the owner waits for these objects.
pub fn controller_reference(resource: &Resource, meta: &ObjectMeta) -> Value {
    json!({
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
    fn finds_the_controller_and_drops_its_version() {
        let only: MetaOnly = serde_json::from_str(
            r#"{"kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","managedFields":[{"x":1}],
                "labels":{"b":"2","a":"1"},
                "ownerReferences":[{"apiVersion":"v1","kind":"X","name":"x","uid":"1"},
                  {"apiVersion":"dj.dysproz.io/v1","kind":"DaemonJob","name":"d","uid":"2","controller":true}]}}"#,
        )
        .unwrap();
        let meta = only.metadata;
        let owner = meta.owner.unwrap();
        assert_eq!((&*owner.group, &*owner.kind, &*owner.uid), ("dj.dysproz.io", "DaemonJob", "2"));
        assert_eq!(meta.labels.get("a"), Some("1"));
        assert_eq!(meta.labels.get("b"), Some("2"));
        assert_eq!(meta.labels.get("c"), None);
        assert_eq!(meta.labels.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert_eq!(meta.labels.clone().only(|key| key == "b"), Pairs::from([("b", "2")]));
    }

    /// A heartbeat changes only the resourceVersion, and must wake no subscriber.
    #[test]
    fn a_new_version_alone_changes_no_metadata() {
        let meta = |version: &str| Meta { resource_version: Version(version.into()), ..Meta::default() };
        assert_eq!(meta("1"), meta("2"));
        assert_ne!(*meta("1").resource_version, *meta("2").resource_version);
    }

    #[test]
    fn siblings_share_equal_strings() {
        let meta = |name: &str, node: &str| Meta {
            namespace: "n".into(),
            name: name.into(),
            labels: [("kind", "DaemonJob"), ("node", node)].into(),
            owner: Some(Arc::new(Owner {
                group: "g".into(),
                kind: "k".into(),
                name: "o".into(),
                uid: "u".into(),
                at: 0,
            })),
            ..Meta::default()
        };
        let first = meta("a", "1");
        for (node, shares_text, shares_shape) in [("1", true, true), ("2", false, true), ("34", false, false)]
        {
            let mut second = meta("b", node);
            second.share(&first);
            assert_eq!(second, meta("b", node));
            assert!(Arc::ptr_eq(&second.namespace, &first.namespace));
            assert!(Arc::ptr_eq(second.owner.as_ref().unwrap(), first.owner.as_ref().unwrap()));
            assert_eq!(Arc::ptr_eq(&second.labels.text, &first.labels.text), shares_text);
            assert_eq!(Arc::ptr_eq(&second.labels.shape, &first.labels.shape), shares_shape);
            assert!(Arc::ptr_eq(&second.labels.shape.keys, &first.labels.shape.keys));
        }
        let mut other = Pairs::from([("kind", "PodSet")]);
        let first = meta("a", "1").labels;
        other.share(&first);
        assert_eq!(other.get("kind"), Some("PodSet"));
        assert!(Arc::ptr_eq(&other.shape.keys[0], &first.shape.keys[0]));
    }

    #[test]
    fn slim_drops_the_fields_that_no_plan_reads() {
        // Any derived type works here; a ConfigMap has little besides its metadata.
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
