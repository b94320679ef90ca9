//! An OAuth2 issuer for a broker: Ory Hydra with its data in memory, and one client.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::{Ports, ROLE};
use crate::cluster::binaries;
use crate::cluster::processes::{self, Launch};
use crate::http::{self, Request};
use crate::progress::Step;
use crate::run;

/// The record of the process.
pub(super) const PROCESS: &str = "issuer";

/// The audience of the tokens, which the broker requires.
pub const AUDIENCE: &str = "urn:pulsar";

/// The secret of the client, whose ID is [`ROLE`].
pub const CLIENT_SECRET: &str = "not-a-secret-but-long-enough";

/// The time limit of the start, on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(3);

/// The lifetime of the tokens, short enough for a test.
const LIFETIME: &str = "20s";

/// The issuer's address, as in its tokens.
pub(super) fn url(ports: Ports) -> String {
    format!("http://127.0.0.1:{}/", ports.issuer)
}

/// Starts the issuer, unless it is running, and creates the client. Its log is in `dir`.
pub(super) fn start(dir: &Path, records: &Path, ports: Ports) -> Result<()> {
    if processes::find(records, PROCESS)?.is_some_and(|process| process.is_alive()) {
        return Ok(());
    }
    let hydra = binaries::ensure(&binaries::ISSUER)?.path(binaries::HYDRA)?;
    let step = Step::start("starting an OAuth2 issuer");
    let mut command = Command::new(hydra);
    command.args(["serve", "all", "--dev", "--sqa-opt-out"]).env_clear().current_dir(dir);
    let [public, admin] = [ports.issuer, ports.issuer_admin].map(|port| port.to_string());
    command.envs([
        ("DSN", "memory"),
        ("STRATEGIES_ACCESS_TOKEN", "jwt"),
        ("TTL_ACCESS_TOKEN", LIFETIME),
        ("URLS_SELF_ISSUER", &url(ports)),
        ("SECRETS_SYSTEM", "only-for-tests-on-this-machine"),
        ("SERVE_PUBLIC_HOST", "127.0.0.1"),
        ("SERVE_PUBLIC_PORT", &public),
        ("SERVE_ADMIN_HOST", "127.0.0.1"),
        ("SERVE_ADMIN_PORT", &admin),
    ]);
    let log = dir.join("issuer.log");
    let launch = Launch {
        name: PROCESS,
        command,
        port: ports.issuer_admin,
        fingerprint: String::new(),
        stdout: log.clone(),
        stderr: log,
    };
    let (process, _) = processes::start(records, launch)?;
    let is_ready = || {
        if !process.is_alive() {
            bail!("the OAuth2 issuer exited while starting");
        }
        Ok(http::get(ports.issuer_admin, "/health/ready").filter(|(status, _)| *status == 200))
    };
    run::poll("the OAuth2 issuer is ready", START_LIMIT, Duration::from_millis(100), is_ready)?;
    let client = json!({ "client_id": ROLE, "client_secret": CLIENT_SECRET, "audience": [AUDIENCE],
        "grant_types": ["client_credentials"], "token_endpoint_auth_method": "client_secret_post" });
    let request = Request {
        method: "POST",
        port: ports.issuer_admin,
        path: "/admin/clients",
        headers: &[("Content-Type", "application/json")],
        body: &client.to_string(),
        limit: Duration::from_secs(30),
    };
    let (status, answer) = http::send(&request).context("the OAuth2 issuer does not answer")?;
    if status != 201 {
        bail!("the OAuth2 issuer rejected the client: {status} {answer}");
    }
    step.done();
    Ok(())
}
