//! Builds the HTTP requests of writes.

use std::sync::Arc;

use http::{Request, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::FIELD_MANAGER;
use crate::model::object::Key;
use crate::model::plan::Body;
use crate::model::refusals::Verb;
use crate::model::resource::{Resource, escape};

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

const JSON: &str = "application/json";
/// The answer to a write needs no spec and no status. Other servers than kube-apiserver may answer with the whole object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";

pub(super) fn create(resource: Resource, namespace: Arc<str>, name: String, body: &Body) -> Write {
    let path = format!("{}?fieldManager={FIELD_MANAGER}", resource.path(&namespace));
    let request = request("POST", path, JSON, body.bytes().to_vec());
    Write { verb: Verb::Create, resource, namespace, name, deletes: None, request }
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
    let path = format!("{}/{name}", resource.path(&namespace));
    let request = request("DELETE", path, JSON, body.to_string().into());
    Write { verb: Verb::Delete, resource, namespace, name: name.to_owned(), deletes: Some(uid), request }
}

pub(super) fn apply(
    resource: Resource,
    namespace: Arc<str>,
    name: String,
    body: &Value,
    force: bool,
) -> Write {
    let more = format!("&force={force}&fieldValidation=Strict");
    patch(Verb::Apply, resource, namespace, name, (APPLY, &more, body))
}

/// Patches an object with the operations of a JSON patch.
pub fn json_patch(resource: Resource, namespace: Arc<str>, name: &str, operations: &Value) -> Write {
    patch(Verb::JsonPatch, resource, namespace, name.to_owned(), (JSON_PATCH, "", operations))
}

/// Merges a body into an object.
pub fn merge_patch(resource: Resource, namespace: Arc<str>, name: &str, body: &Value) -> Write {
    patch(Verb::MergePatch, resource, namespace, name.to_owned(), (MERGE_PATCH, "", body))
}

fn patch(
    verb: Verb,
    resource: Resource,
    namespace: Arc<str>,
    name: String,
    (content_type, more, body): (&str, &str, &Value),
) -> Write {
    let path = format!("{}/{name}?fieldManager={FIELD_MANAGER}{more}", resource.path(&namespace));
    let request = request("PATCH", path, content_type, body.to_string().into());
    Write { verb, resource, namespace, name, deletes: None, request }
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
    status_patch(Verb::Status, owner, resource, (APPLY, "&force=true", &body))
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
    status_patch(Verb::JsonPatch, owner, resource, (JSON_PATCH, "", &operations))
}

fn status_patch(
    verb: Verb,
    owner: &Key,
    resource: Resource,
    (content_type, more, body): (&str, &str, &Value),
) -> Write {
    let (namespace, name) = (owner.namespace.clone(), owner.name.to_string());
    let at = format!("{}/{}/status", resource.path(&namespace), escape(&name));
    let path = format!("{at}?fieldManager={FIELD_MANAGER}{more}");
    let request = request("PATCH", path, content_type, body.to_string().into());
    Write { verb, resource, namespace, name, deletes: None, request }
}

fn request(
    method: &str,
    path: String,
    content_type: &str,
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, http::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, content_type)
        .header(header::ACCEPT, METADATA)
        .body(body)
}
