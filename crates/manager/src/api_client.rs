//! Requests of the commands: one after the other, without caches, with the user's permissions.
//!
//! An error is one sentence for the user.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use kube::Client;
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource};
use quintet_runtime::server::client::{self, CALL, LONGEST_REST, NoAnswer, call, call_text, causes};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::live_reads::LiveReads;
use quintet_runtime::server::metrics::Metrics;
use quintet_runtime::write::request;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use crate::kubeconfig;

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
    /// Reads objects and lists.
    pub reads: LiveReads,
    /// The URL of the API server.
    pub url: Arc<str>,
    /// The namespace of the kubeconfig's context.
    pub namespace: Arc<str>,
}

impl Cluster {
    /// The cluster of the flags, the kubeconfig or the pod. Sends no request.
    pub async fn of(args: &ClusterArgs) -> Result<Self> {
        let config = kubeconfig::configure(args).await?;
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        // The client needs metrics; a command does not serve them.
        let client = client::build(config, &Metrics::new()?, LONGEST_REST, &Link::default())?;
        let reads = LiveReads::new(client.clone());
        Ok(Self { client, reads, url: url.trim_end_matches('/').into(), namespace: namespace.into() })
    }

    /// Gets JSON that is not an object of a resource type.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> kube::Result<T> {
        let request = Request::get(path).header(ACCEPT, "application/json").body(Vec::new());
        call(&self.client, CALL, request).await
    }

    /// Gets a text.
    pub async fn get_text(&self, path: &str) -> kube::Result<String> {
        call_text(&self.client, CALL, Request::get(path).body(Vec::new())).await
    }

    /// Sends a review, such as a SelfSubjectAccessReview, and returns its status.
    pub async fn review(&self, path: &str, review: &Value) -> kube::Result<Value> {
        send_review(&self.client, CALL, path, review).await
    }

    /// Sends a JSON patch.
    pub async fn patch(&self, resource: &Resource, meta: &Meta, operations: &Value) -> kube::Result<()> {
        let patch = request::json_patch(*resource, meta.namespace.clone(), &meta.name, operations);
        call::<IgnoredAny>(&self.client, CALL, patch.request).await.map(|_| ())
    }

    /// Scales a Deployment to 0 and returns the selector of its pods.
    pub async fn scale_to_zero(&self, namespace: &str, name: &str) -> kube::Result<String> {
        let (scale, body) = (format!("{name}/scale"), json!({ "spec": { "replicas": 0 } }));
        let mut patch = request::merge_patch(DEPLOYMENTS, namespace.into(), &scale, &body).request;
        if let Ok(request) = &mut patch {
            request.headers_mut().remove(ACCEPT);
        }
        let scale: Value = call(&self.client, CALL, patch).await?;
        Ok(scale["status"]["selector"].as_str().unwrap_or_default().to_owned())
    }

    /// Deletes an object if its UID and resourceVersion have not changed.
    pub async fn delete(&self, resource: &Resource, metadata: &Value) -> kube::Result<()> {
        let part = |name: &str| metadata[name].as_str().unwrap_or_default();
        let (namespace, uid, version) = (part("namespace"), part("uid"), part("resourceVersion"));
        let delete = request::delete(*resource, namespace.into(), part("name"), uid.into(), Some(version));
        call::<IgnoredAny>(&self.client, CALL, delete.request).await.map(|_| ())
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
                if let Some(NoAnswer(limit)) = cause.downcast_ref() {
                    anyhow!("{what}: {url} did not answer within {} s", limit.as_secs())
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

/// Sends a review, such as a TokenReview, and returns its status.
pub async fn send_review(
    client: &Client,
    limit: Duration,
    path: &str,
    review: &Value,
) -> kube::Result<Value> {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let review: Value = call(client, limit, request.body(review.to_string().into_bytes())).await?;
    Ok(review["status"].clone())
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
    (1..=253).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
}

/// A type that a command supports.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// The type.
    pub resource: Resource,
    /// Its short name.
    pub short: &'static str,
}

impl Supported {
    fn singular(&self) -> String {
        self.resource.kind.to_ascii_lowercase()
    }

    /// Whether a word names the type, as for kubectl.
    fn is_called(&self, word: &str) -> bool {
        let (resource, singular) = (&self.resource, self.singular());
        [resource.plural, &singular, self.short].contains(&word)
            || word == resource.crd_name()
            || word == format!("{singular}.{}", resource.group)
    }
}

/// The type and the name in `type/NAME` or `type NAME`: the index in `types`, and the name.
pub fn named(words: &[String], command: &str, types: &[Supported]) -> Result<(usize, String)> {
    let each = |word: &dyn Fn(&Supported) -> String, separator: &str| {
        types.iter().map(word).collect::<Vec<_>>().join(separator)
    };
    let example = |name: &str| each(&|one| format!("{}/{name}", one.singular()), " or ");
    let (kind, name) = match words {
        [word] => word
            .split_once('/')
            .ok_or_else(|| anyhow!("{word:?} has no resource type: use {}", example(word)))?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => bail!("pass one object, as {}", example("NAME")),
    };
    let kind = kind.to_ascii_lowercase();
    let Some(index) = types.iter().position(|one| one.is_called(&kind)) else {
        let kinds = each(&|one| format!("{}s", one.resource.kind), " and ");
        bail!("{command} supports only {kinds}, got {kind:?}: use {}", example("NAME"));
    };
    if !is_name(name) {
        bail!("{name:?} is not a valid name: use lower case letters, digits, '-' and '.'");
    }
    Ok((index, name.to_owned()))
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
