//! Real nodes: each has a containerd, a kubelet and a kube-proxy in its own namespaces, and runs pods with
//! runc. The control plane is that of every local cluster, in its own network namespace.
//!
//! Only the gateway listens outside these namespaces, on loopback. The machine's sysctls, links and files
//! stay unchanged, except for empty folders that containerd and kubelet create for plugins
//! (`/opt/containerd`, `/usr/libexec/kubernetes`). Control groups and namespaces end with the recorded
//! processes.

mod cgroups;
mod config;
pub(crate) mod gateway;
mod images;
pub(super) mod init;
mod mirror;
mod missing;
pub(crate) mod network;
mod registry;
pub(super) mod seccomp;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::components::Component;
use super::processes::{self, Launch, Process};
use super::state::{self, Dir};
use super::{Cluster, START_LIMIT, lock};
use crate::progress::Step;
use crate::run::{self, Log};
use crate::variables;
use cgroups::Hierarchies;

pub use missing::missing;
use network::name_of;
pub use network::{CONTROL_PLANE, MAX_NODES};

/// The number of real nodes of a new cluster.
pub const DEFAULT_NODES: usize = 2;

/// The record of the gateway, which forwards connections.
const GATEWAY: &str = "gateway";

/// The program of `cargo xtask`.
pub(crate) fn this_program() -> Result<PathBuf> {
    match env::var_os(variables::XTASK) {
        Some(program) => Ok(PathBuf::from(program)),
        None => run::this_program(),
    }
}

/// Whether a running process is healthy; `None` for a manager.
pub(super) fn is_well(cluster: &Cluster, record: &str) -> Result<Option<bool>> {
    match number_of(record) {
        Some(number) => is_ready(cluster, number).map(Some),
        None => Ok(is_ours(record).then_some(true)),
    }
}

fn number_of(record: &str) -> Option<u8> {
    record.strip_prefix("node-")?.parse().ok()
}

/// Whether a record is that of a node, of the network, of the gateway or of a registry.
pub(super) fn is_ours(record: &str) -> bool {
    [network::KEEPER, GATEWAY, mirror::MIRROR].contains(&record) || number_of(record).is_some()
}

fn node_files(dir: &Dir, number: u8) -> PathBuf {
    dir.path().join("nodes").join(name_of(number))
}

/// A file that exists once the API server has been ready.
fn server_is_ready(dir: &Dir) -> PathBuf {
    dir.path().join("server-is-ready")
}

/// The control groups that were chosen for a cluster.
fn hierarchies(dir: &Dir) -> Result<Hierarchies> {
    state::read_json(&dir.path().join("cgroups.json"))?
        .context("no control groups were chosen for this cluster")
}

/// Chooses control groups, or keeps the chosen ones if they still exist.
fn choose_hierarchies(dir: &Dir) -> Result<()> {
    let file = dir.path().join("cgroups.json");
    let kept: Option<Hierarchies> = state::read_json(&file)?;
    if kept.is_some_and(|kept| kept.iter().all(|hierarchy| hierarchy.parent.is_dir())) {
        return Ok(());
    }
    state::write_json(&file, &Hierarchies::of_machine()?)
}

/// More arguments of a component in a cluster with real nodes. If a flag is given twice, the last one wins.
pub(super) fn arguments(component: Component, dir: &Dir) -> Vec<String> {
    let pki = |file: &str| dir.pki().join(file).display().to_string();
    match component {
        Component::Apiserver => vec![
            // In its namespace: loopback, and the bridge of the nodes.
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={CONTROL_PLANE}"),
            "--endpoint-reconciler-type=lease".to_owned(),
            format!("--service-cluster-ip-range={}", network::SERVICES),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")),
            format!("--kubelet-client-key={}", pki("kubelet-client.key")),
        ],
        Component::ControllerManager => vec![format!("--node-monitor-grace-period={}", config::GRACE)],
        _ => Vec::new(),
    }
}

/// Creates the network, the gateway into it, and the images.
pub(super) fn prepare(cluster: &Cluster, started: &mut Vec<Process>) -> Result<()> {
    let dir = cluster.dir();
    choose_hierarchies(dir)?;
    images::ensure(dir.path())?;
    let (keeper, made) = network::ensure(dir)?;
    if made {
        started.push(keeper.clone());
    }
    let ports: Vec<u16> = Component::REAL.iter().map(|component| component.port(&cluster.settings)).collect();
    let log = dir.logs().join(format!("{GATEWAY}.log"));
    let launch = gateway::launch(GATEWAY, &keeper, &ports, Some(&images::folder(dir.path())), log)?;
    start_gateway(&dir.processes(), launch, started)
}

/// Starts a gateway, unless one with the same arguments is running, and waits until it listens.
pub(crate) fn start_gateway(records: &Path, launch: Launch<'_>, started: &mut Vec<Process>) -> Result<()> {
    if let Some(process) = processes::find(records, launch.name)? {
        if process.is_alive() && process.fingerprint == launch.fingerprint {
            return Ok(());
        }
        processes::stop(&[&process]);
    }
    let log = Log::now(launch.stderr.clone());
    let port = launch.port;
    let (process, _) = processes::start(records, launch)?;
    started.push(process.clone());
    run::poll("the gateway listens", START_LIMIT, Duration::from_millis(10), || {
        if !process.is_alive() {
            bail!("the gateway exited while starting; {}", log.tail(5));
        }
        Ok((!super::ports::is_free(port)).then_some(()))
    })
}

/// Whether the cluster's gateway holds the ports of the cluster.
pub(super) fn holds_ports(dir: &Dir) -> Result<bool> {
    Ok(processes::find(&dir.processes(), GATEWAY)?.is_some_and(|process| process.is_alive()))
}

/// Lets the nodes start their kubelets.
pub(super) fn server_became_ready(dir: &Dir) -> Result<()> {
    state::write(&server_is_ready(dir), b"")
}

fn numbers(nodes: usize) -> impl Iterator<Item = u8> {
    (1..=MAX_NODES).take(nodes)
}

/// Starts the stopped nodes; their kubelets wait for the API server.
pub(super) fn start_nodes(cluster: &Cluster, started: &mut Vec<Process>) -> Result<()> {
    for number in numbers(cluster.settings.nodes) {
        started.extend(start_node(cluster, number)?);
    }
    Ok(())
}

/// Starts a node, unless it is running.
fn start_node(cluster: &Cluster, number: u8) -> Result<Option<Process>> {
    let (dir, name) = (cluster.dir(), name_of(number));
    let keeper =
        network::keeper(dir)?.context("the cluster's network is gone: run `cargo xtask cluster up`")?;
    let fingerprint = format!("{} {} {}", keeper.pid, keeper.started, cluster.settings.ports.apiserver);
    if let Some(process) = processes::find(&dir.processes(), &name)? {
        if process.is_alive() && process.fingerprint == fingerprint {
            return Ok(None);
        }
        process.kill();
    }
    hierarchies(dir)?.clear(cluster.name(), &name)?;
    init::forget_boot(&node_files(dir, number));
    let mut command = Command::new(this_program()?);
    command
        .args(["cluster", "--name", cluster.name(), "node-boot", "--number", &number.to_string()])
        .current_dir("/");
    let log = Log::now(dir.logs().join(format!("{name}.log")));
    let launch = Launch {
        name: &name,
        command,
        port: 0,
        fingerprint,
        stdout: log.path.clone(),
        stderr: log.path.clone(),
    };
    let (process, _) = processes::start(&dir.processes(), launch)?;
    let plugged = first_process(&process).and_then(|pid| {
        network::await_own(pid, &process)?;
        let ip = || network::within(&keeper, "ip".as_ref());
        // The cable of the previous node, if the kernel has not removed it yet.
        let _ = run::stdout(ip().args(["link", "del", &network::port(number)]));
        let lines = network::cable(number, pid).join("\n");
        run::stdout_with_input(ip().args(["-batch", "-"]), Some(&lines))
    });
    if let Err(error) = plugged {
        process.kill();
        bail!("{name} does not start: {error:#}; {}", log.tail(5));
    }
    Ok(Some(process))
}

/// The first process in the node's PID namespace, as numbered outside.
fn first_process(process: &Process) -> Result<i32> {
    run::poll("the node's first process", START_LIMIT, Duration::from_millis(5), || {
        ensure!(process.is_alive(), "it exited immediately");
        Ok(children(process.pid)?.first().copied())
    })
}

/// The children of a process, as numbered outside.
fn children(pid: i32) -> Result<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

pub(super) fn wait_until_ready(cluster: &Cluster) -> Result<()> {
    numbers(cluster.settings.nodes).try_for_each(|number| wait_for(cluster, number))
}

fn wait_for(cluster: &Cluster, number: u8) -> Result<()> {
    let name = name_of(number);
    let process = processes::find(&cluster.dir().processes(), &name)?;
    let process = process.with_context(|| format!("{name} was not started"))?;
    let ready = run::poll(&format!("{name} is Ready"), START_LIMIT, Duration::from_millis(100), || {
        ensure!(process.is_alive(), "{name} exited while starting");
        Ok(is_ready(cluster, number)?.then_some(()))
    });
    match ready {
        Err(error) if !error.is::<crate::interrupt::Interrupted>() => {
            let log = |part: &str| Log::whole(cluster.dir().logs().join(format!("{name}{part}.log"))).tail(5);
            bail!("{error:#}; {}\n{}", log(""), log(".kubelet"))
        }
        other => other,
    }
}

/// Whether a node has reported Ready since its last start, and has no taints except that of its registration.
fn is_ready(cluster: &Cluster, number: u8) -> Result<bool> {
    let node = cluster.kube.get("default", "node", &name_of(number))?.unwrap_or_default();
    let files = node_files(cluster.dir(), number);
    let booted = init::boot_id(&files);
    if booted.as_deref() != node["status"]["nodeInfo"]["bootID"].as_str() {
        return Ok(false);
    }
    let conditions = node["status"]["conditions"].as_array();
    let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    let registered = init::registered_taint(&files);
    let part = |taint: &Value, member: &str| taint[member].as_str().unwrap_or_default().to_owned();
    let is_other = |taint: &Value| {
        let text = format!("{}={}:{}", part(taint, "key"), part(taint, "value"), part(taint, "effect"));
        registered.as_ref() != Some(&text)
    };
    let tainted = node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(is_other));
    Ok(!tainted && conditions.is_some_and(|all| all.iter().any(ready)))
}

/// Kills nodes, and removes their control groups.
pub(super) fn end_nodes(cluster: &Cluster, ended: &[Process]) -> Result<()> {
    let is_node = |process: &&Process| number_of(&process.name).is_some();
    ended.iter().filter(is_node).for_each(Process::kill);
    let recorded = processes::all(&cluster.dir().processes())?;
    let others_run = recorded.iter().filter(is_node).any(Process::is_alive);
    match hierarchies(cluster.dir()) {
        // The other nodes keep running.
        Ok(hierarchies) if others_run => {
            ended.iter().filter(is_node).try_for_each(|node| hierarchies.clear(cluster.name(), &node.name))
        }
        Ok(hierarchies) => hierarchies.remove(cluster.name()),
        // The cluster failed before it chose control groups.
        Err(_) => Ok(()),
    }
}

impl Cluster {
    /// Whether its nodes are real.
    pub fn is_real(&self) -> bool {
        self.settings.real
    }

    /// Kills a node like a power failure: its kubelet, its container runtime and its pods die at once.
    pub fn kill_node(&self, number: u8) -> Result<()> {
        let _lock = lock(&self.dir)?;
        let name = name_of(number);
        match processes::find(&self.dir.processes(), &name)? {
            Some(process) if process.is_alive() => {
                process.kill();
                hierarchies(&self.dir)?.clear(&self.name, &name)
            }
            _ => bail!("{name} does not run"),
        }
    }

    /// Pulls a node's cable, or plugs it in again. The node continues to run; packets are lost silently.
    pub fn plug_node(&self, number: u8, is_in: bool) -> Result<()> {
        let _lock = lock(&self.dir)?;
        let name = name_of(number);
        let runs = processes::find(&self.dir.processes(), &name)?.is_some_and(|process| process.is_alive());
        let keeper = network::keeper(&self.dir)?.filter(|_| runs);
        let keeper = keeper.with_context(|| format!("{name} does not run"))?;
        run::stdout(network::within(&keeper, "ip".as_ref()).args(network::plug(number, is_in)))?;
        Ok(())
    }

    /// Stops a node's kubelet, or continues it. The process keeps its state, and the pods continue to run.
    pub fn stop_kubelet(&self, number: u8, is_stopped: bool) -> Result<()> {
        let _lock = lock(&self.dir)?;
        let name = name_of(number);
        let process = processes::find(&self.dir.processes(), &name)?.filter(Process::is_alive);
        let process = process.with_context(|| format!("{name} does not run"))?;
        let is_kubelet = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|program| program.trim() == "kubelet")
        };
        let kubelet =
            children(first_process(&process)?)?.into_iter().find(is_kubelet).and_then(Pid::from_raw);
        let kubelet = kubelet.with_context(|| format!("{name} runs no kubelet"))?;
        kill_process(kubelet, if is_stopped { Signal::STOP } else { Signal::CONT })
            .with_context(|| format!("cannot signal the kubelet of {name}"))
    }

    /// Sets the taint with which a new node registers, such as `example.com/unprepared=:NoSchedule`.
    pub fn register_with_taint(&self, number: u8, taint: &str) -> Result<()> {
        ensure!(self.settings.real, "the nodes of cluster {} are simulated", self.name);
        init::register_with_taint(&node_files(&self.dir, number), taint)
    }

    /// Starts a killed node or a new one, and waits until it is Ready.
    pub fn boot_node(&mut self, number: u8) -> Result<()> {
        ensure!(self.settings.real, "the nodes of cluster {} are simulated", self.name);
        let next = self.settings.nodes + 1;
        ensure!(
            (1..=MAX_NODES).contains(&number) && usize::from(number) <= next,
            "cannot boot {}: the next new node is node-{next}, and the last one is node-{MAX_NODES}",
            name_of(number)
        );
        let _lock = lock(&self.dir)?;
        self.settings.nodes = self.settings.nodes.max(usize::from(number));
        self.dir.keep_settings(&self.settings)?;
        let step = Step::start(format!("starting {}", name_of(number)));
        start_node(self, number)?;
        wait_for(self, number)?;
        step.done();
        Ok(())
    }

    /// Makes the images of archives available to the nodes.
    pub fn load_images(&self, archives: &[PathBuf]) -> Result<()> {
        ensure!(self.settings.real, "the nodes of cluster {} are simulated: they run no image", self.name);
        images::load(self.dir.path(), archives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_records_of_nodes_from_managers() {
        for ours in ["node-1", "node-8", "network", "gateway", "mirror"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["manager", "node-", "node-x", "e2e-node-1"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn numbers_nodes_from_one() {
        assert_eq!(numbers(3).map(name_of).collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
        assert_eq!(numbers(100).count(), usize::from(MAX_NODES));
    }
}
