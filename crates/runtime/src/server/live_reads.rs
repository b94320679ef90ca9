//! Reads from the API server instead of a cache, for the few rules that need the stored state.

use std::sync::Arc;

use http::{Request, header};
use kube::Client;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::FIELD_MANAGER;
use crate::model::object::{Meta, MetaOnly};
use crate::model::plan::Body;
use crate::model::resource::{Resource, escape};
use crate::server::client::{CALL, WINDOW, ask};

/// Reads from the API server instead of a cache. Cheap to clone.
#[derive(Clone)]
pub struct LiveReads {
    client: Client,
    /// Reads have their own window, as large as that of writes, so that they do not wait behind writes.
    window: Arc<Semaphore>,
}

impl LiveReads {
    /// Reads through `client`.
    pub fn new(client: Client) -> Self {
        Self { client, window: Arc::new(Semaphore::new(WINDOW)) }
    }

    /// The metadata of an object; None if the object does not exist.
    pub async fn read_meta(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Meta>, kube::Error> {
        Ok(self.read::<MetaOnly>(resource, namespace, name).await?.map(|only| Meta::from(only.metadata)))
    }

    /// An object; None if it does not exist. Any other 404 is an error, e.g. that of a proxy or for a type that is
    /// not served.
    pub async fn read<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, kube::Error> {
        let path = format!("{}/{}", resource.path(namespace), escape(name));
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let _permit = self.window.acquire().await;
        match timeout(CALL, ask(&self.client, request)).await {
            Ok(Ok(object)) => Ok(Some(object)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && status.reason == "NotFound" => {
                Ok(None)
            }
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// Creates an object as a dry run. Returns the API server's message if the object is invalid (422), and None if
    /// it accepts the object or denies it for another reason. Returns an error if there is no answer about the object
    /// (429 and 5xx too).
    pub async fn find_invalid(
        &self,
        resource: &Resource,
        namespace: &str,
        body: &Body,
    ) -> Result<Option<String>, kube::Error> {
        let path = format!("{}?dryRun=All&fieldManager={FIELD_MANAGER}", resource.path(namespace));
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(body.bytes().to_vec())
            .map_err(kube::Error::HttpError)?;
        let _permit = self.window.acquire().await;
        match timeout(CALL, ask::<IgnoredAny>(&self.client, request)).await {
            Ok(Ok(_)) => Ok(None),
            Ok(Err(kube::Error::Api(status))) if status.code == 422 => Ok(Some(status.message.clone())),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    /// The objects of a namespace that a label selector selects.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<T>, kube::Error> {
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned")]
        struct Page<T> {
            #[serde(default)]
            metadata: kube::api::ListMeta,
            items: Vec<T>,
        }
        let selected = format!("labelSelector={}", escape(selector));
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!("{}?{selected}&limit=500{next}", resource.path(namespace));
            let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            let _permit = self.window.acquire().await;
            let answer = timeout(CALL, ask::<Page<T>>(&self.client, request)).await;
            let Page { metadata, items } =
                answer.map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
            objects.extend(items);
            match metadata.continue_.filter(|continue_| !continue_.is_empty()) {
                Some(continue_) => next = format!("&continue={}", escape(&continue_)),
                None => return Ok(objects),
            }
        }
    }

    /// Whether the API server serves this version of the group. If it does not, no object of the type can be read.
    pub async fn is_served(&self, resource: &Resource) -> Result<bool, kube::Error> {
        let groups = timeout(CALL, self.client.list_api_groups()).await;
        let groups = groups.map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
        let is_asked = |version: &str| version == resource.version;
        let group = groups.groups.into_iter().find(|group| group.name == resource.group);
        Ok(group.is_some_and(|group| group.versions.iter().any(|version| is_asked(&version.version))))
    }
}
