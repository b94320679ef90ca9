//! A small client of the API server: JSON in and out, many creations at a time, and no hidden retries. It
//! does as little as possible, because bare creation of pods is measured with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::Stream;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT as USER_AGENT_HEADER};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::WatchEvent;
use kube::{Client, Config};
use quintet_runtime::server::client::WINDOW;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::task::JoinSet;

/// The audit log identifies the bench by it; a manager has `quintet/`.
pub const USER_AGENT: &str = concat!("quintet-bench/", env!("CARGO_PKG_VERSION"));

/// Requests in flight while many objects are created, as many as a manager has.
pub const CONNECTIONS: usize = WINDOW;

/// Attempts of a creation while the server is too busy.
const ATTEMPTS: u32 = 100;

const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Objects in a page of a list.
const PAGE: usize = 500;

#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// RFC 7386.
    Merge,
    /// Lists are merged by the keys of their elements.
    Strategic,
}

#[derive(Clone)]
pub struct Api(Client);

#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// From the first request to the last answer.
    pub took: Duration,
    /// Requests that were sent again because the server was too busy.
    pub retries: usize,
}

impl Api {
    /// A client for the current context of a kubeconfig.
    pub async fn new(kubeconfig: Kubeconfig) -> Result<Self> {
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("cannot use the cluster's kubeconfig")?;
        config.headers.push((USER_AGENT_HEADER, HeaderValue::from_static(USER_AGENT)));
        config.default_retry = false;
        Ok(Self(Client::try_from(config).context("cannot make a client from the cluster's kubeconfig")?))
    }

    /// Returns `None` if the object does not exist.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.send(Method::GET, path, None, Vec::new()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some).with_context(|| format!("cannot get {path}")),
        }
    }

    /// Gets an existing object. Returns false if the server answers 429.
    pub async fn is_served(&self, path: &str) -> Result<bool> {
        match self.send::<IgnoredAny>(Method::GET, path, None, Vec::new()).await {
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
            other => other.map(|_| true).with_context(|| format!("cannot get {path}")),
        }
    }

    /// Gets a page that is not JSON.
    pub async fn text(&self, path: &str) -> Result<String> {
        let request = Request::builder().method(Method::GET).uri(path).body(Vec::new())?;
        self.0.request_text(request).await.with_context(|| format!("cannot get {path}"))
    }

    /// Lists a collection in pages. `query` may be empty.
    pub async fn list(&self, path: &str, query: &str) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let page = format!("{path}?limit={PAGE}&{query}{next}");
            let mut list: Value = self
                .send(Method::GET, &page, None, Vec::new())
                .await
                .with_context(|| format!("cannot list {path}"))?;
            if let Value::Array(more) = list["items"].take() {
                items.extend(more);
            }
            match list["metadata"]["continue"].as_str() {
                // The token is base64 for use in URLs.
                Some(token) if !token.is_empty() => next = format!("&continue={token}"),
                _ => return Ok(items),
            }
        }
    }

    /// Whether a collection has an object that `query` selects. The server reads all of them, and sends one.
    pub async fn has_any(&self, path: &str, query: &str) -> Result<bool> {
        let list: Value = self
            .send(Method::GET, &format!("{path}?limit=1&{query}"), None, Vec::new())
            .await
            .with_context(|| format!("cannot list {path}"))?;
        Ok(list["items"].as_array().is_some_and(|items| !items.is_empty()))
    }

    /// Watches the objects that `path` selects, until the server ends the watch.
    pub async fn watch(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, kube::Error>> + use<>> {
        let request = Request::builder().method(Method::GET).uri(path).body(Vec::new())?;
        self.0.request_events(request).await.with_context(|| format!("cannot watch {path}"))
    }

    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.send(Method::POST, path, Some("application/json"), serde_json::to_vec(object)?)
            .await
            .with_context(|| format!("cannot create in {path}"))
    }

    pub async fn patch(&self, path: &str, kind: Patch, patch: &Value) -> Result<Value> {
        let content_type = match kind {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        self.send(Method::PATCH, path, Some(content_type), serde_json::to_vec(patch)?)
            .await
            .with_context(|| format!("cannot patch {path}"))
    }

    /// Deletes an object or a collection. A 404 is a success. The garbage collector deletes the dependents.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.send::<IgnoredAny>(Method::DELETE, path, None, Vec::new()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()).with_context(|| format!("cannot delete {path}")),
        }
    }

    /// Creates many objects in one collection, [`CONNECTIONS`] at a time.
    pub async fn create_all(&self, path: &str, bodies: Vec<Vec<u8>>) -> Result<Created> {
        let bodies = Arc::new(bodies);
        let next = Arc::new(AtomicUsize::new(0));
        let path: Arc<str> = path.into();
        let mut workers = JoinSet::new();
        let began = Instant::now();
        for _ in 0..CONNECTIONS {
            let (api, bodies, next, path) = (self.clone(), bodies.clone(), next.clone(), path.clone());
            workers.spawn(async move {
                let mut retries = 0;
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    retries += api.create_patiently(&path, body).await?;
                }
                anyhow::Ok(retries)
            });
        }
        let mut retries = 0;
        while let Some(worker) = workers.join_next().await {
            retries += worker.context("a connection's task ended early")??;
        }
        Ok(Created { took: began.elapsed(), retries })
    }

    /// Creates an object, with retries while the server is too busy. Returns the number of retries.
    async fn create_patiently(&self, path: &str, body: &[u8]) -> Result<usize> {
        let mut retries = 0;
        for _ in 0..ATTEMPTS {
            match self.send::<IgnoredAny>(Method::POST, path, Some("application/json"), body.to_vec()).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503) => {
                    retries += 1;
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                other => {
                    other.with_context(|| format!("cannot create in {path}"))?;
                    return Ok(retries);
                }
            }
        }
        bail!("cannot create in {path}: the API server was too busy {ATTEMPTS} times")
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        body: Vec<u8>,
    ) -> Result<T, kube::Error> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        self.0.request(request.body(body).map_err(kube::Error::HttpError)?).await
    }
}
