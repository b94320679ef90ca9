//! Many requests, a few at a time, while something else is looked at; each with the time at which it was sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::client::{Api, Patch};
use crate::rig::Rig;

/// How many are in flight.
const CONNECTIONS: usize = 8;

/// What a user asks the API server for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Makes an object in a collection.
    Create(String, Value),
    /// Changes an object.
    Merge(String, Value),
    /// Deletes an object, without waiting until it is gone.
    Delete(String),
}

/// Requests that are on their way.
#[derive(Debug)]
pub struct Requests {
    sent: Arc<Mutex<Vec<Option<Instant>>>>,
    workers: Vec<JoinHandle<Result<()>>>,
}

impl Requests {
    /// Sends all of them, in order, in the background.
    pub fn start(rig: &Rig, requests: Vec<Request>) -> Self {
        let sent = Arc::new(Mutex::new(vec![None; requests.len()]));
        let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
        let workers = (0..CONNECTIONS)
            .map(|_| rig.spawn(work(rig.api(), requests.clone(), next.clone(), sent.clone())))
            .collect();
        Self { sent, workers }
    }

    /// Waits until all are answered, which they must be with success, and says when each was sent.
    pub fn finish(self, rig: &Rig) -> Result<Vec<Option<Instant>>> {
        for worker in self.workers {
            rig.wait_for(async { worker.await.context("a connection's task ended early")? })?;
        }
        Ok(self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

async fn work(
    api: Api,
    requests: Arc<Vec<Request>>,
    next: Arc<AtomicUsize>,
    sent: Arc<Mutex<Vec<Option<Instant>>>>,
) -> Result<()> {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(request) = requests.get(at) else { return Ok(()) };
        if let Some(sent) = sent.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at) {
            *sent = Some(Instant::now());
        }
        match request {
            Request::Create(collection, object) => api.create(collection, object).await.map(|_| ())?,
            Request::Merge(path, patch) => api.patch(path, Patch::Merge, patch).await.map(|_| ())?,
            Request::Delete(path) => api.delete(path).await?,
        }
    }
}
