//! Reads from the API server instead of a cache, for the commands and the few rules that need the stored state.

use std::sync::Arc;

use http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::Client;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::Semaphore;

use crate::FIELD_MANAGER;
use crate::model::object::{Meta, MetaOnly};
use crate::model::plan::Body;
use crate::model::resource::{Resource, escape};
use crate::server::client::{CALL, WINDOW, call};

/// Objects in one page of a list. Nodes with many images are 20 KB each, and a page must arrive within [`CALL`].
const PAGE: usize = 500;
/// How often a list is tried. A list restarts if its continue token has expired (410).
const LISTS: usize = 3;
/// The media type of whole objects.
const WHOLE: &str = "application/json";
/// The media type of lists of metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

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
        Ok(self.read::<MetaOnly>(resource, namespace, name).await?.map(|only| only.metadata))
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
        let _permit = self.window.acquire().await;
        match call(&self.client, CALL, Request::get(path).body(Vec::new())).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
            Err(error) => Err(error),
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
            .header(header::CONTENT_TYPE, WHOLE)
            .header(header::ACCEPT, WHOLE)
            .body(body.bytes().to_vec());
        let _permit = self.window.acquire().await;
        match call::<IgnoredAny>(&self.client, CALL, request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(Some(status.message.clone())),
            Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The metadata of the objects that [`Self::list`] returns.
    pub async fn list_meta(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Meta>, kube::Error> {
        let listed = self.list_as::<MetaOnly>(resource, namespace, selector, METADATA).await?;
        Ok(listed.into_iter().map(|only| only.metadata).collect())
    }

    /// The objects of a namespace that a label selector selects. An empty namespace means all namespaces, and an empty
    /// selector selects all objects.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<T>, kube::Error> {
        self.list_as(resource, namespace, selector, WHOLE).await
    }

    /// Reads the objects of a namespace, one page at a time. `add` adds each page to the result, which begins as `start`,
    /// also when the list restarts.
    pub async fn fold<T: DeserializeOwned, S>(
        &self,
        resource: &Resource,
        namespace: &str,
        start: impl Fn() -> S,
        add: impl Fn(&mut S, Vec<T>),
    ) -> Result<S, kube::Error> {
        self.fold_as(resource, namespace, "", WHOLE, start, add).await
    }

    async fn list_as<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
        accept: &'static str,
    ) -> Result<Vec<T>, kube::Error> {
        let add = |objects: &mut Vec<T>, page: Vec<T>| objects.extend(page);
        self.fold_as(resource, namespace, selector, accept, Vec::new, add).await
    }

    async fn fold_as<T: DeserializeOwned, S>(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
        accept: &'static str,
        start: impl Fn() -> S,
        add: impl Fn(&mut S, Vec<T>),
    ) -> Result<S, kube::Error> {
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned")]
        struct Page<T> {
            #[serde(default)]
            metadata: kube::api::ListMeta,
            /// Null in an empty list of metadata. An answer without items is not a list.
            #[serde(deserialize_with = "Option::deserialize")]
            items: Option<Vec<T>>,
        }
        let path = format!("{}?labelSelector={}&limit={PAGE}", resource.path(namespace), escape(selector));
        let (mut result, mut next, mut started) = (start(), String::new(), 1);
        loop {
            let request = Request::get(format!("{path}{next}")).header(header::ACCEPT, accept);
            let _permit = self.window.acquire().await;
            match call::<Page<T>>(&self.client, CALL, request.body(Vec::new())).await {
                Ok(Page { metadata, items }) => {
                    add(&mut result, items.unwrap_or_default());
                    match metadata.continue_.filter(|continue_| !continue_.is_empty()) {
                        Some(continue_) => next = format!("&continue={}", escape(&continue_)),
                        None => return Ok(result),
                    }
                }
                Err(kube::Error::Api(status)) if status.code == 410 && started < LISTS => {
                    (result, next, started) = (start(), String::new(), started + 1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the API server serves this version of the group. If it does not, no object of the type can be read.
    pub async fn is_served(&self, resource: &Resource) -> Result<bool, kube::Error> {
        let groups: APIGroupList = call(&self.client, CALL, Request::get("/apis").body(Vec::new())).await?;
        let is_asked = |version: &str| version == resource.version;
        let group = groups.groups.into_iter().find(|group| group.name == resource.group);
        Ok(group.is_some_and(|group| group.versions.iter().any(|version| is_asked(&version.version))))
    }
}
