//! Reading and patching for the commands that end by themselves: one request after the other, without caches.
//!
//! The manager watches; a command asks once, pages what is long, and says in one sentence why it could not. It acts
//! with the rights of the person who calls it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
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

/// Objects of one page of a list. Nodes with many images are 20 KB each, and a page must come in one call's time.
const PAGE: usize = 500;
/// How often a list begins anew when the server forgets where it was.
const LISTS: usize = 3;
/// Asks for the metadata of a list's objects alone.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Asks for whole objects.
const WHOLE: &str = "application/json";

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount.
    #[arg(long, env = "QUINTET_KUBECONFIG", value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<std::path::PathBuf>,

    /// The kubeconfig's context.
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

/// The metadata of an object, whatever else it holds.
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
    /// The cluster that the flags, the kubeconfig or the pod say. Nothing is asked yet.
    pub async fn of(args: &ClusterArgs) -> Result<Self> {
        let config = kubeconfig::configure(args).await?;
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        // Nobody reads these counters: the client of the manager is the only one there is.
        let client = client::build(config, &Metrics::new()?, LONGEST_REST, &Link::default())?;
        Ok(Self { client, url: url.trim_end_matches('/').into(), namespace: namespace.into() })
    }

    /// The namespace that the kubeconfig's context names.
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

    /// An object; None where there is none of this name. That the type is unknown is an error.
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

    /// All objects of a type, of one namespace or of all where it is empty, by name.
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

    /// Changes an object by a JSON patch.
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

    /// Lets a Deployment have no pods, and says what selects those that it has.
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

    /// Deletes an object, if it still is what its metadata say.
    pub async fn delete(&self, resource: &Resource, metadata: &Value) -> kube::Result<()> {
        let part = |name: &str| metadata[name].as_str().unwrap_or_default();
        let path = format!("{}/{}", resource.path(part("namespace")), part("name"));
        let preconditions = json!({ "uid": part("uid"), "resourceVersion": part("resourceVersion") });
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions });
        let headers = [("content-type", "application/json"), ("accept", WHOLE)];
        let body = options.to_string().into_bytes();
        self.call::<serde::de::IgnoredAny>(Method::DELETE, path, &headers, body).await.map(|_| ())
    }

    /// Why something could not be done, in one sentence that begins with what that was.
    pub fn sorry(&self, what: &str, error: &kube::Error) -> anyhow::Error {
        let url = &self.url;
        match error {
            kube::Error::Api(status) => match status.code {
                401 => anyhow!("{what}: {url} does not accept your credentials (401 {})", status.message),
                _ if is_type_absent(error) => {
                    anyhow!("{what}: {url} does not know this type of object (is Quintet installed there?)")
                }
                // The server's words name the person, the verb and the type.
                403 => anyhow!("{what}: you may not: {}", status.message),
                code => anyhow!("{what}: {url} answers {code}: {}", status.message),
            },
            kube::Error::SerdeError(error) => anyhow!("{what}: the answer of {url} cannot be read: {error}"),
            kube::Error::Service(cause) => {
                if cause.is::<tokio::time::error::Elapsed>() {
                    anyhow!("{what}: {url} took longer than {} s", CALL.as_secs())
                } else {
                    let causes = causes(&**cause);
                    let deepest = causes.last().map(String::as_str).unwrap_or_default();
                    anyhow!("{what}: {url} cannot be reached: {deepest}")
                }
            }
            other => anyhow!("{what}: {}", causes(other).join(": ")),
        }
    }
}

/// The code of the server's answer, where there was one.
pub fn code_of(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// What was read, or why it could not be for now; an error where asking again is of no use.
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

/// Whether the server says that something is not there: the object, or its type.
pub fn is_absent(error: &kube::Error) -> bool {
    code_of(error) == Some(404)
}

/// Whether the server does not know the type: it names no object then.
pub fn is_type_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty()))
}

/// How long the server asks to wait, where it does; one second else.
pub fn wait_of(error: &kube::Error) -> Duration {
    let seconds = match error {
        kube::Error::Api(status) => status.details.as_ref().map_or(1, |details| details.retry_after_seconds),
        _ => 1,
    };
    Duration::from_secs(u64::from(seconds.clamp(1, 30)))
}

/// Whether a text may be the name of a namespace or of an object: lower case letters, digits, `-` and `.`.
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

/// For clap: a name, or why it is none.
pub fn parse_name(text: &str) -> Result<String, String> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("a name has lower case letters, digits, '-' and '.' and begins and ends with a letter or digit"
            .to_owned())
    }
}

/// An answer of an API server; the name of an object is in it where the server knows one.
#[cfg(test)]
pub fn answer(code: u16, message: &str, name: &str) -> kube::Error {
    let status = serde_json::json!({ "code": code, "message": message, "details": { "name": name } });
    kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_object_is_told_from_an_absent_type() {
        assert!(is_absent(&answer(404, "", "a")) && !is_type_absent(&answer(404, "", "a")));
        assert!(is_type_absent(&answer(404, "404 page not found", "")));
        assert!(!is_type_absent(&answer(403, "", "")));
    }

    #[test]
    fn names_of_objects() {
        assert!(is_name("a-b.c") && is_name("0"));
        for bad in ["", "A", "-a", "a-", "a/b", "a?b", "ä", &"a".repeat(254)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
