//! The `quintet` program as a process outside the cluster, with a token of the chart's ServiceAccount. A
//! request that the chart does not allow is denied here as it is in a pod.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::processes::{self, Launch, Process};
use crate::cluster::{ports, state};
use crate::kube::Kube;
use crate::progress::Step;
use crate::run::{self, Log};
use crate::{build, http, interrupt, paths};

/// The namespace that the demo and the tests install the chart into.
pub const NAMESPACE: &str = "quintet-system";

const READY_LIMIT: Duration = Duration::from_mins(1);

/// The variable of a flag, which an older program ignores: local brokers have loopback addresses.
const LOCAL_URLS: (&str, &str) = ("QUINTET_PULSAR_CONSUMER_LOCAL_URLS", "true");

/// How long a manager uses its token, which is valid for a day.
const TOKEN_IS_OLD: Duration = Duration::from_hours(12);

/// The options of a manager.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The name of the process: its log is `NAME.log` and its stdout `NAME.out`.
    pub name: String,
    /// The namespace of the chart's release, of the ServiceAccount and of the Lease.
    pub namespace: String,
    /// The ServiceAccount whose token the manager gets.
    pub service_account: String,
    /// The namespace of the Lease, if not `namespace`.
    pub lease_namespace: Option<String>,
    /// The port of 127.0.0.1 through which the manager reaches the API server, if not the server's port.
    pub through: Option<u16>,
    /// Whether the manager competes for the Lease.
    pub leader_elect: bool,
    /// Further arguments.
    pub args: Vec<String>,
    /// The program to run; without one, cargo builds it.
    pub program: Option<PathBuf>,
    /// Whether the process outlives the [`Manager`] value.
    pub detached: bool,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            name: "manager".to_owned(),
            namespace: NAMESPACE.to_owned(),
            service_account: "quintet".to_owned(),
            lease_namespace: None,
            through: None,
            leader_elect: true,
            args: Vec::new(),
            program: None,
            detached: false,
        }
    }
}

/// A running manager. Dropping it stops the process, unless it was started detached.
#[derive(Debug)]
pub struct Manager {
    kube: Kube,
    process: Process,
    child: Option<Child>,
    detached: bool,
    metrics_port: u16,
}

impl Manager {
    /// Starts a manager and waits until it is ready. A running manager with the same name is stopped first.
    pub fn start(kube: &Kube, options: &ManagerOptions) -> Result<Self> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => build()?,
        };
        let metrics_port = ports::one()?;
        let health_port = ports::one()?;
        let kubeconfig = kubeconfig(kube, &options.name);
        let mut config = kube.kubeconfig_of_service_account(&options.namespace, &options.service_account)?;
        if let Some(port) = options.through {
            config = kubeconfig_through(&config, port)?;
        }
        let lease_namespace = options.lease_namespace.as_ref().unwrap_or(&options.namespace);
        state::write(&kubeconfig, config.as_bytes())?;
        let mut command = Command::new(&program);
        command
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg(format!("--metrics-bind-address=127.0.0.1:{metrics_port}"))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{health_port}"))
            .arg(format!("--leader-elect={}", options.leader_elect))
            .arg(format!("--leader-election-namespace={lease_namespace}"))
            .args(&options.args)
            .env(LOCAL_URLS.0, LOCAL_URLS.1)
            .current_dir(kube.dir());
        let records = records(kube)?;
        if let Some(before) = processes::find(&records, &options.name)? {
            processes::stop(&[&before]);
        }
        let log = Log::now(kube.log(&format!("{}.log", options.name)));
        let (process, child) = processes::start(
            &records,
            Launch {
                name: &options.name,
                command,
                port: health_port,
                fingerprint: fingerprint(&program, options)?,
                stdout: kube.log(&format!("{}.out", options.name)),
                stderr: log.path.clone(),
            },
        )?;
        let mut manager = Self {
            kube: kube.clone(),
            process,
            child: Some(child),
            // Dropping the value stops the process until it is ready.
            detached: false,
            metrics_port,
        };
        manager.wait_until_ready(&log)?;
        manager.detached = options.detached;
        Ok(manager)
    }

    /// Starts a detached manager, or keeps a running one with the same options. The second value is whether a
    /// manager was started.
    pub fn ensure(kube: &Kube, options: &ManagerOptions) -> Result<(Process, bool)> {
        let program = build()?;
        let options = ManagerOptions { program: Some(program.clone()), detached: true, ..options.clone() };
        if let Some(process) = processes::find(&records(kube)?, &options.name)? {
            let token_is_young = fs::metadata(kubeconfig(kube, &options.name))
                .and_then(|file| file.modified())
                .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < TOKEN_IS_OLD));
            let current = process.fingerprint == fingerprint(&program, &options)?;
            if current && token_is_young && process.is_alive() && is_ready(process.port) {
                return Ok((process, false));
            }
        }
        let manager = Self::start(kube, &options)?;
        Ok((manager.process.clone(), true))
    }

    /// Stops the recorded manager with this name. Returns whether one was running.
    pub fn stop_recorded(kube: &Kube, name: &str) -> Result<bool> {
        let records = records(kube)?;
        let Some(process) = processes::find(&records, name)? else { return Ok(false) };
        let ran = process.is_alive();
        processes::stop(&[&process]);
        processes::forget(&records, name);
        Ok(ran)
    }

    /// The process ID.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Whether the process is running.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// The stdout of all managers with this name.
    pub fn printed(&self) -> String {
        fs::read_to_string(self.kube.log(&format!("{}.out", self.process.name))).unwrap_or_default()
    }

    /// The log of all managers with this name.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.kube.log(&format!("{}.log", self.process.name))).unwrap_or_default()
    }

    /// The port of `/metrics`.
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port
    }

    /// The port of `/healthz` and `/readyz`.
    pub fn health_port(&self) -> u16 {
        self.process.port
    }

    /// The body of `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        match http::get(self.metrics_port, "/metrics") {
            Some((200, body)) => Ok(body),
            Some((status, _)) => bail!("/metrics answers {status}"),
            None => bail!("/metrics does not answer"),
        }
    }

    /// Whether the manager's metrics report that it is the leader.
    pub fn leads(&self) -> bool {
        let status = "leader_election_master_status{name=\"quintet-manager\"} 1";
        self.metrics().is_ok_and(|metrics| metrics.contains(status))
    }

    /// Stops the manager with SIGTERM and returns its exit code; `None` if a signal ended it.
    pub fn stop(mut self) -> Result<Option<i32>> {
        self.end(|process| processes::stop(&[process]))
    }

    /// Kills the manager, as a crash would.
    pub fn kill(mut self) -> Result<Option<i32>> {
        self.end(Process::kill)
    }

    fn end(&mut self, how: impl FnOnce(&Process)) -> Result<Option<i32>> {
        how(&self.process);
        if let Ok(records) = records(&self.kube) {
            processes::forget(&records, &self.process.name);
        }
        match self.child.take() {
            Some(mut child) => Ok(child.wait().context("cannot wait for the manager")?.code()),
            None => Ok(None),
        }
    }

    fn wait_until_ready(&self, log: &Log) -> Result<()> {
        let Process { name, port, .. } = &self.process;
        let waited = run::poll(&format!("{name} is ready"), READY_LIMIT, Duration::from_millis(50), || {
            if !self.process.is_alive() {
                bail!("{name} exited while starting");
            }
            Ok(is_ready(*port).then_some(()))
        });
        match waited {
            Err(error) if !error.is::<interrupt::Interrupted>() => {
                bail!("{error}; {}", log.tail(15))
            }
            other => other,
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if !self.detached && self.child.is_some() {
            let _ = self.end(|process| processes::stop(&[process]));
        }
    }
}

/// Whether `/readyz` on this port answers 200.
pub fn is_ready(port: u16) -> bool {
    http::get(port, "/readyz").is_some_and(|(status, _)| status == 200)
}

/// Builds the `quintet` program and returns its path.
pub fn build() -> Result<PathBuf> {
    build_with("building quintet", &mut build::cargo_build())
}

/// Runs a [`build::cargo_build`] under a label and returns the program's path.
pub(crate) fn build_with(label: &str, cargo: &mut Command) -> Result<PathBuf> {
    let log = Log::fresh(paths::cache()?.join("quintet-build.log"))?;
    let mut step = Step::start(label);
    let (status, program) = build::program(cargo.stderr(log.open()?), || step.tick())?;
    if !status.success() {
        bail!("building quintet failed; {}", log.tail(40));
    }
    step.built();
    program
}

fn records(kube: &Kube) -> Result<PathBuf> {
    let records = kube.dir().join("processes");
    fs::create_dir_all(&records).with_context(|| format!("cannot create {}", records.display()))?;
    Ok(records)
}

/// The kubeconfig of a ServiceAccount, changed to reach the API server through a port of 127.0.0.1.
pub fn kubeconfig_through(config: &str, port: u16) -> Result<String> {
    let mut parsed: Value = serde_json::from_str(config).context("the kubeconfig is not JSON")?;
    parsed["clusters"][0]["cluster"]["server"] = format!("https://127.0.0.1:{port}").into();
    Ok(parsed.to_string())
}

fn kubeconfig(kube: &Kube, name: &str) -> PathBuf {
    kube.dir().join(format!("{name}.kubeconfig"))
}

/// A text that changes with the program and its arguments.
fn fingerprint(program: &std::path::Path, options: &ManagerOptions) -> Result<String> {
    let file = fs::metadata(program).with_context(|| format!("cannot read {}", program.display()))?;
    let built = file.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ManagerOptions { namespace, leader_elect, args, .. } = options;
    let (program, size, built) = (program.display(), file.len(), built.as_nanos());
    Ok(format!("{program} {size} {built} {namespace} {leader_elect} {args:?}"))
}
