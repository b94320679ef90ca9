//! Builds the HTTP requests of writes.

use std::sync::Arc;

use http::{Method, Request, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::FIELD_MANAGER;
use crate::model::object::Key;
use crate::model::plan::Body;
use crate::model::refusals::Verb;
use crate::model::resource::Resource;

/// One write to one object.
pub struct Write {
    pub(super) verb: Verb,
    pub(super) resource: Resource,
    pub(super) namespace: Arc<str>,
    pub(super) name: String,
    /// The UID of the object to delete.
    pub(super) deletes: Option<Arc<str>>,
    /// The request to send.
    pub request: Result<Request<Vec<u8>>, http::Error>,
}

/// The answer to a write needs no spec and no status. Other servers than kube-apiserver may answer with the whole object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

pub(super) fn create(resource: Resource, namespace: Arc<str>, name: String, body: &Body) -> Write {
    let path = format!("?fieldManager={FIELD_MANAGER}");
    build(Verb::Create, resource, namespace, name, &path, body.bytes().to_vec())
}

/// Deletes an object if it still has this UID, and this resourceVersion if there is one.
pub fn delete(
    resource: Resource,
    namespace: Arc<str>,
    name: &str,
    uid: Arc<str>,
    version: Option<&str>,
) -> Write {
    let mut preconditions = json!({ "uid": uid });
    if let Some(version) = version {
        preconditions["resourceVersion"] = Value::from(version);
    }
    let body = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
    let (path, body) = (format!("/{name}"), body.to_string().into());
    let write = build(Verb::Delete, resource, namespace, name.to_owned(), &path, body);
    Write { deletes: Some(uid), ..write }
}

pub(super) fn apply(
    resource: Resource,
    namespace: Arc<str>,
    name: String,
    body: &Value,
    force: bool,
) -> Write {
    let path = format!("/{name}?fieldManager={FIELD_MANAGER}&force={force}&fieldValidation=Strict");
    build(Verb::Apply, resource, namespace, name, &path, body.to_string().into())
}

/// Patches an object with the operations of a JSON patch.
pub fn json_patch(resource: Resource, namespace: Arc<str>, name: &str, operations: &Value) -> Write {
    let path = format!("/{name}?fieldManager={FIELD_MANAGER}");
    build(Verb::JsonPatch, resource, namespace, name.to_owned(), &path, operations.to_string().into())
}

/// Merges a body into an object.
pub fn merge_patch(resource: Resource, namespace: Arc<str>, name: &str, body: &Value) -> Write {
    let path = format!("/{name}?fieldManager={FIELD_MANAGER}");
    build(Verb::MergePatch, resource, namespace, name.to_owned(), &path, body.to_string().into())
}

/// Applies the whole status of an object.
pub(super) fn status<S: Serialize>(owner: &Key, resource: Resource, status: &S, version: &str) -> Write {
    let body = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {
            "name": &*owner.name,
            "namespace": &*owner.namespace,
            "uid": &*owner.uid,
            "resourceVersion": version,
        },
        "status": status,
    });
    let path = format!("/{}/status?fieldManager={FIELD_MANAGER}&force=true", owner.name);
    let (namespace, name) = (owner.namespace.clone(), owner.name.to_string());
    build(Verb::Status, resource, namespace, name, &path, body.to_string().into())
}

/// Writes the status by JSON patch. The API server rejects any server-side apply to an object that was stored with
/// types other than the schema's.
pub(super) fn untyped_status<S: Serialize>(
    owner: &Key,
    resource: Resource,
    status: &S,
    version: &str,
) -> Write {
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": &*owner.uid },
        { "op": "test", "path": "/metadata/resourceVersion", "value": version },
        { "op": "add", "path": "/status", "value": status },
    ]);
    let name = owner.name.to_string();
    let write = json_patch(resource, owner.namespace.clone(), &format!("{name}/status"), &operations);
    Write { name, ..write }
}

/// A write to the collection's path with this suffix.
fn build(
    verb: Verb,
    resource: Resource,
    namespace: Arc<str>,
    name: String,
    suffix: &str,
    body: Vec<u8>,
) -> Write {
    let (method, content_type) = match verb {
        Verb::Create => (Method::POST, "application/json"),
        Verb::Delete => (Method::DELETE, "application/json"),
        Verb::JsonPatch => (Method::PATCH, "application/json-patch+json"),
        Verb::MergePatch => (Method::PATCH, "application/merge-patch+json"),
        Verb::Apply | Verb::Status | Verb::Claim | Verb::Effect => {
            (Method::PATCH, "application/apply-patch+yaml")
        }
    };
    let request = Request::builder()
        .method(method)
        .uri(resource.path(&namespace) + suffix)
        .header(header::CONTENT_TYPE, content_type)
        .header(header::ACCEPT, METADATA)
        .body(body);
    Write { verb, resource, namespace, name, deletes: None, request }
}
