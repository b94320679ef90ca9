//! The canary: another client, which gets a small object again and again. Its latency shows what a burst costs other clients.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::client::Api;

/// The canary's namespace, and the object that it gets. It has the default priority there.
pub const NAMESPACE: &str = "default";

/// The pause between requests.
const PAUSE: Duration = Duration::from_millis(20);

/// The requests of a canary until now.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The milliseconds until each request was answered, with its repetitions after answers 429.
    pub waits: Vec<f64>,
    /// The number of answers 429.
    pub refused: usize,
    /// The error of a request without an answer.
    failed: Option<String>,
}

/// A running canary. Its requests end when it is dropped.
pub struct Canary {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Canary {
    pub fn start(runtime: &Runtime, api: &Api) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (api, into) = (api.clone(), Arc::clone(&seen));
        let task = runtime.spawn(async move {
            let path = format!("/api/v1/namespaces/{NAMESPACE}");
            let mut began = Instant::now();
            loop {
                let answer = api.is_served(&path).await;
                let is_over = !matches!(answer, Ok(false));
                let wait = 1_000.0 * began.elapsed().as_secs_f64();
                {
                    let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
                    match answer {
                        Ok(true) => seen.waits.push(wait),
                        Ok(false) => seen.refused += 1,
                        Err(error) => seen.failed = Some(format!("{error:#}")),
                    }
                }
                tokio::time::sleep(PAUSE).await;
                if is_over {
                    began = Instant::now();
                }
            }
        });
        Self { seen, task }
    }

    /// Fails if a request had no answer.
    pub fn seen(&self) -> Result<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(error) = &seen.failed {
            bail!("the canary's request failed: {error}");
        }
        Ok(seen)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.task.abort();
    }
}
