//! Requests of the commands: one after the other, without caches, with the user's permissions.
//!
//! An error is one sentence for the user.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use http::{Method, Request};
use kube::Client;
use quintet_runtime::model::object::{Meta, WireMeta};
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource, escape};
use quintet_runtime::server::client::{self, CALL, LONGEST_REST, causes};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::metrics::Metrics;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubeconfig;

/// Objects in one page of a list. Nodes with many images are 20 KB each, and a page must arrive within [`CALL`].
const PAGE: usize = 500;
/// How often a list restarts when its continue token has expired.
const LISTS: usize = 3;
/// The accept header for lists of metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The accept header for whole objects.
const WHOLE: &str = "application/json";

/// The cluster to use.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file (default: $KUBECONFIG, else ~/.kube/config, else the ServiceAccount of the pod).
    #[arg(long, env = "QUINTET_KUBECONFIG", value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<std::path::PathBuf>,

    /// The context of the kubeconfig (default: its current context).
    #[arg(long, env = "QUINTET_CONTEXT", value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
}

/// A cluster that a command talks to.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    url: Arc<str>,
    namespace: Arc<str>,
}

/// The metadata of an object of any type.
#[derive(Deserialize)]
#[serde(from = "Wire")]
struct MetaOf(Meta);

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: WireMeta,
}

impl From<Wire> for MetaOf {
    fn from(wire: Wire) -> Self {
        Self(wire.metadata.into())
    }
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMeta {
    #[serde(rename = "continue")]
    rest: Option<String>,
}

impl Cluster {
    /// The cluster of the flags, the kubeconfig or the pod. Sends no request.
    pub async fn of(args: &ClusterArgs) -> Result<Self> {
        let config = kubeconfig::configure(args).await?;
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        // The client needs metrics; a command does not serve them.
        let client = client::build(config, &Metrics::new()?, LONGEST_REST, &Link::default())?;
        Ok(Self { client, url: url.trim_end_matches('/').into(), namespace: namespace.into() })
    }

    /// The namespace of the kubeconfig's context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        headers: &[(&'static str, &'static str)],
        body: Vec<u8>,
    ) -> kube::Result<T> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(kube::Error::HttpError)?;
        match tokio::time::timeout(CALL, client::ask::<T>(&self.client, request)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// An object; None if it does not exist. An unknown type is an error.
    pub async fn get<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> kube::Result<Option<T>> {
        let path = format!("{}/{name}", resource.path(namespace));
        match self.call(Method::GET, path, &[("accept", WHOLE)], Vec::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_absent(&error) && !is_type_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a type in a namespace. An empty namespace means all.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> kube::Result<Vec<T>> {
        self.list_as(resource, namespace, selector, WHOLE).await
    }

    /// The metadata of all objects of a type.
    pub async fn list_metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> kube::Result<Vec<Meta>> {
        let metas = self.list_as::<MetaOf>(resource, namespace, selector, METADATA).await?;
        Ok(metas.into_iter().map(|meta| meta.0).collect())
    }

    async fn list_as<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
        accept: &'static str,
    ) -> kube::Result<Vec<T>> {
        let path = resource.path(namespace);
        let selector = escape(selector);
        let (mut items, mut rest, mut begun) = (Vec::new(), String::new(), 1);
        loop {
            let query = format!("{path}?limit={PAGE}&labelSelector={selector}&continue={rest}");
            match self.call::<Page<T>>(Method::GET, query, &[("accept", accept)], Vec::new()).await {
                Ok(page) => {
                    items.extend(page.items.unwrap_or_default());
                    match page.metadata.rest.filter(|rest| !rest.is_empty()) {
                        Some(token) => rest = escape(&token),
                        None => return Ok(items),
                    }
                }
                Err(error) if code_of(&error) == Some(410) && begun < LISTS => {
                    (items, rest, begun) = (Vec::new(), String::new(), begun + 1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a JSON patch.
    pub async fn patch(&self, resource: &Resource, meta: &Meta, operations: &Value) -> kube::Result<()> {
        let path = format!(
            "{}/{}?fieldManager={}",
            resource.path(&meta.namespace),
            meta.name,
            quintet_runtime::FIELD_MANAGER
        );
        let headers = [("content-type", "application/json-patch+json"), ("accept", WHOLE)];
        let body = operations.to_string().into_bytes();
        self.call::<serde::de::IgnoredAny>(Method::PATCH, path, &headers, body).await.map(|_| ())
    }

    /// Scales a Deployment to 0 and returns the selector of its pods.
    pub async fn scale_to_zero(&self, namespace: &str, name: &str) -> kube::Result<String> {
        let path = format!(
            "{}/{name}/scale?fieldManager={}",
            DEPLOYMENTS.path(namespace),
            quintet_runtime::FIELD_MANAGER
        );
        let headers = [("content-type", "application/merge-patch+json"), ("accept", WHOLE)];
        let body = json!({ "spec": { "replicas": 0 } }).to_string().into_bytes();
        let scale = self.call::<Value>(Method::PATCH, path, &headers, body).await?;
        Ok(scale["status"]["selector"].as_str().unwrap_or_default().to_owned())
    }

    /// Deletes an object if its UID and resourceVersion have not changed.
    pub async fn delete(&self, resource: &Resource, metadata: &Value) -> kube::Result<()> {
        let part = |name: &str| metadata[name].as_str().unwrap_or_default();
        let path = format!("{}/{}", resource.path(part("namespace")), part("name"));
        let preconditions = json!({ "uid": part("uid"), "resourceVersion": part("resourceVersion") });
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions });
        let headers = [("content-type", "application/json"), ("accept", WHOLE)];
        let body = options.to_string().into_bytes();
        self.call::<serde::de::IgnoredAny>(Method::DELETE, path, &headers, body).await.map(|_| ())
    }

    /// One sentence for the user: `what` failed, and why.
    pub fn sorry(&self, what: &str, error: &kube::Error) -> anyhow::Error {
        let url = &self.url;
        match error {
            kube::Error::Api(status) => match status.code {
                401 => anyhow!("{what}: {url} rejects your credentials (401 {})", status.message),
                _ if is_type_absent(error) => {
                    anyhow!(
                        "{what}: {url} has no such resource type: install Quintet's CustomResourceDefinitions first"
                    )
                }
                // The server's message names the user, the verb and the type.
                403 => anyhow!("{what}: permission denied: {}", status.message),
                code => anyhow!("{what}: {url} answered {code}: {}", status.message),
            },
            kube::Error::SerdeError(error) => anyhow!("{what}: cannot decode the answer of {url}: {error}"),
            kube::Error::Service(cause) => {
                if cause.is::<tokio::time::error::Elapsed>() {
                    anyhow!("{what}: {url} did not answer within {} s", CALL.as_secs())
                } else {
                    let causes = causes(&**cause);
                    let deepest = causes.last().map(String::as_str).unwrap_or_default();
                    anyhow!("{what}: cannot reach {url}: {deepest}")
                }
            }
            other => anyhow!("{what}: {}", causes(other).join(": ")),
        }
    }
}

/// The status code of the server's answer, if it answered.
pub fn code_of(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The object, or the reason of a failure that a retry may fix. Any other failure is an error.
pub fn answered<T>(cluster: &Cluster, what: &str, answer: kube::Result<T>) -> Result<Result<T, String>> {
    match answer {
        Ok(read) => Ok(Ok(read)),
        Err(error) => {
            let is_final = matches!(code_of(&error), Some(code) if code != 429 && code < 500);
            let sorry = cluster.sorry(what, &error);
            if is_final { Err(sorry) } else { Ok(Err(sorry.to_string())) }
        }
    }
}

/// Whether the object or its type does not exist.
pub fn is_absent(error: &kube::Error) -> bool {
    code_of(error) == Some(404)
}

/// Whether the type does not exist: the server's answer then names no object.
pub fn is_type_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty()))
}

/// The server's Retry-After, or one second.
pub fn wait_of(error: &kube::Error) -> Duration {
    let seconds = match error {
        kube::Error::Api(status) => status.details.as_ref().map_or(1, |details| details.retry_after_seconds),
        _ => 1,
    };
    Duration::from_secs(u64::from(seconds.clamp(1, 30)))
}

/// Whether a text is a valid name of an object (an RFC 1123 subdomain).
pub fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_outer =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 253
        && is_outer(bytes.first())
        && is_outer(bytes.last())
        && bytes.iter().copied().all(is_inner)
}

/// The name in `kind/NAME` or `kind NAME`, of an object of this type. `short` is the type's short name.
pub fn named(words: &[String], command: &str, resource: &Resource, short: &str) -> Result<String> {
    let singular = resource.kind.to_ascii_lowercase();
    let (kind, name) = match words {
        [word] => word
            .split_once('/')
            .ok_or_else(|| anyhow!("{word:?} has no resource type: use {singular}/{word}"))?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => bail!("pass one {}, as {singular}/NAME", resource.kind),
    };
    let kind = kind.to_ascii_lowercase();
    let is_ours = [resource.plural, &singular, short].contains(&kind.as_str())
        || kind == resource.crd_name()
        || kind == format!("{singular}.{}", resource.group);
    if !is_ours {
        bail!("{command} supports only {}s, got {kind:?}: use {singular}/NAME", resource.kind);
    }
    if !is_name(name) {
        bail!("{name:?} is not a valid name: use lower case letters, digits, '-' and '.'");
    }
    Ok(name.to_owned())
}

/// For clap: a valid name.
pub fn parse_name(text: &str) -> Result<String, String> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("a name consists of lower case letters, digits, '-' and '.', and starts and ends with a letter or digit"
            .to_owned())
    }
}

/// An error answer of an API server.
#[cfg(test)]
pub fn answer(code: u16, message: &str, name: &str) -> kube::Error {
    let status = serde_json::json!({ "code": code, "message": message, "details": { "name": name } });
    kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_an_absent_object_from_an_absent_type() {
        assert!(is_absent(&answer(404, "", "a")) && !is_type_absent(&answer(404, "", "a")));
        assert!(is_type_absent(&answer(404, "404 page not found", "")));
        assert!(!is_type_absent(&answer(403, "", "")));
    }

    #[test]
    fn validates_object_names() {
        assert!(is_name("a-b.c") && is_name("0"));
        for bad in ["", "A", "-a", "a-", "a/b", "a?b", "ä", &"a".repeat(254)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
