//! The process that the bench stops. It writes through the manager's client for as long as its term lasts.

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, Uri};
use kube::{Client, Config};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::object::Key;
use quintet_runtime::model::plan::{Action, Body};
use quintet_runtime::model::resource::PODS;
use quintet_runtime::server::client;
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use quintet_runtime::write::executor::{Executor, Planned};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::server::TERM;

/// The attempts to get a term.
const ATTEMPTS: usize = 3;

/// Create pods on the server of `cargo xtask bench fence` while a term lasts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// URL of the server, whose certificate is on stdin
    #[arg(long)]
    server: Uri,
    /// Size of a pod in bytes
    #[arg(long)]
    bytes: usize,
}

/// A term that the server grants.
#[derive(Deserialize)]
struct Granted {
    number: u64,
    length: Duration,
}

/// Writes until the server is gone.
pub fn run(args: &Args) -> Result<()> {
    end_with_the_bench()?;
    let mut certificate = Vec::new();
    io::stdin().read_to_end(&mut certificate).context("cannot read the server's certificate")?;
    let mut config = Config::new(args.server.clone());
    config.root_cert = Some(vec![certificate]);
    // As in the manager.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(write(config, args.bytes))
}

/// Makes the kernel kill this process when the bench ends. A stopped process does not notice it.
fn end_with_the_bench() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

async fn write(config: Config, bytes: usize) -> Result<()> {
    let client = client::build(config, &Metrics::new()?, client::LONGEST_REST, &Link::default())?;
    let gate = Gate::closed();
    let executor = Executor::new(client.clone(), gate.clone(), Clock::System);
    let owner = Key { namespace: "fence".into(), name: "owner".into(), uid: "owner".into() };
    let body = pod(bytes);
    loop {
        // As for a Lease, the term counts from before the request.
        let asked = Instant::now();
        let Granted { number, length } = request_term(&client).await?;
        gate.open_until(asked + length);
        while let Some(term) = gate.term() {
            let create = Action::<(), Infallible>::Create {
                resource: PODS,
                namespace: number.to_string().into(),
                name: "pod".to_owned(),
                owner_label: None,
                body: body.clone(),
            };
            let planned = Planned { key: &owner, resource: PODS, version: "1", since: term.since };
            executor.execute(planned, vec![vec![create]], &|| true, |none| match none {}).await;
        }
        executor.memory.forget(&owner, &PODS, &[]);
    }
}

async fn request_term(client: &Client) -> Result<Granted> {
    let mut attempts = 1;
    loop {
        match client::ask(client, Request::get(TERM).body(Vec::new())?).await {
            Ok(granted) => return Ok(granted),
            Err(error) if attempts == ATTEMPTS => return Err(error).context("the server grants no term"),
            Err(_) => attempts += 1,
        }
    }
}

/// A pod of this size. An annotation fills it.
fn pod(bytes: usize) -> Body {
    let pod = |filling: usize| {
        Body::from(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", "annotations": {"filling": "x".repeat(filling)}},
            "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }))
    };
    pod(bytes.saturating_sub(pod(0).bytes().len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_size() {
        assert_eq!([1_000, 300_000].map(|bytes| pod(bytes).bytes().len()), [1_000, 300_000]);
    }
}
