//! Sends many requests in the background, a few at a time, and records when each was sent.

use std::time::Instant;

use anyhow::{Context, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::client::{Api, Patch};
use crate::rig::Rig;

const CONNECTIONS: usize = 8;

#[derive(Clone, Debug)]
pub enum Request {
    /// Collection and object.
    Create(String, Value),
    /// Path and patch.
    Merge(String, Value),
    /// Does not wait until the object is gone.
    Delete(String),
}

impl Request {
    async fn send(self, api: Api) -> Result<()> {
        match self {
            Self::Create(collection, object) => api.create(&collection, &object).await.map(drop),
            Self::Merge(path, patch) => api.patch(&path, Patch::Merge, &patch).await.map(drop),
            Self::Delete(path) => api.delete(&path).await,
        }
    }
}

#[derive(Debug)]
pub struct Requests(JoinHandle<Result<Vec<(usize, Instant)>>>);

impl Requests {
    pub fn start(rig: &Rig, requests: Vec<Request>) -> Self {
        let api = rig.api();
        let sent = stream::iter(requests.into_iter().enumerate())
            .map(move |(number, request)| {
                let api = api.clone();
                async move {
                    let sent = Instant::now();
                    request.send(api).await.map(|()| (number, sent))
                }
            })
            .buffer_unordered(CONNECTIONS);
        Self(rig.spawn(sent.try_collect()))
    }

    /// Waits until all have succeeded, and returns when each was sent.
    pub fn finish(self, rig: &Rig) -> Result<Vec<Instant>> {
        let mut sent = rig.wait_for(async { self.0.await.context("the task of requests ended early")? })?;
        sent.sort_by_key(|(number, _)| *number);
        Ok(sent.into_iter().map(|(_, at)| at).collect())
    }
}
