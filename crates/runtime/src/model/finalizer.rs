//! Finalizers of custom resources: whether an object has one, and the patches that add and remove it.

use serde_json::{Value, json};

use crate::model::object::{Key, Object, removal_of_finalizer};
use crate::model::plan::Action;
use crate::model::resource::Resource;

/// The index of a finalizer in an object; None if the object does not have it.
fn index(object: &impl kube::Resource, finalizer: &str) -> Option<usize> {
    object.meta().finalizers.iter().flatten().position(|one| one == finalizer)
}

/// Whether an object has a finalizer.
pub fn has(object: &impl kube::Resource, finalizer: &str) -> bool {
    index(object, finalizer).is_some()
}

/// Adds a finalizer, if the object has not changed. A patch of the metadata does not touch the spec.
pub fn add<K, S, E>(object: &K, finalizer: &str) -> Action<S, E>
where
    K: kube::Resource<DynamicType = ()> + Object,
{
    let operation = if object.meta().finalizers.as_ref().is_none_or(Vec::is_empty) {
        json!({ "op": "add", "path": "/metadata/finalizers", "value": [finalizer] })
    } else {
        json!({ "op": "add", "path": "/metadata/finalizers/-", "value": finalizer })
    };
    let uid = object.meta().uid.as_deref();
    let is_same = json!({ "op": "test", "path": "/metadata/uid", "value": uid });
    patch(Resource::of::<K>(), object.key(), json!([is_same, is_unchanged(object), operation]))
}

/// Removes a finalizer, if it is still at the same index. A repeated or late removal does no harm: an object that is not
/// being deleted, whose spec may demand the finalizer again, must also be unchanged.
pub fn remove<K, S, E>(object: &K, finalizer: &str) -> Action<S, E>
where
    K: kube::Resource<DynamicType = ()> + Object,
{
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    let mut operations = removal_of_finalizer(uid, index(object, finalizer).unwrap_or_default(), finalizer);
    if let Some(tests) = operations.as_array_mut().filter(|_| object.meta().deletion_timestamp.is_none()) {
        tests.insert(0, is_unchanged(object));
    }
    patch(Resource::of::<K>(), object.key(), operations)
}

/// The test that an object has not changed.
fn is_unchanged(object: &impl Object) -> Value {
    json!({ "op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version() })
}

fn patch<S, E>(resource: Resource, object: Key, operations: Value) -> Action<S, E> {
    Action::JsonPatch { resource, namespace: object.namespace, name: object.name, operations }
}
