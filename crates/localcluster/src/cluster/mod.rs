//! A Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler as plain processes on loopback ports, with nodes that kwok simulates. It needs no container
//! engine and no root and starts in seconds. Several clusters can run at once, by name. Root on Linux can
//! have [`real`] nodes.
//!
//! The processes outlive the command that started them. Their state is in a folder of the user's cache
//! ([`state`]), so that a later command can find, continue or stop them.

pub mod binaries;
pub mod cli;
pub mod components;
pub mod installed;
mod kwok;
pub(crate) mod lock;
pub mod nodes;
mod pki;
pub mod ports;
pub mod processes;
pub mod real;
pub mod state;
pub mod versions;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::interrupt;
use crate::kube::Kube;
use crate::progress::Step;
use crate::run::{self, Log};
use components::Component;
use installed::Tools;
use ports::Ports;
use processes::{Launch, Process};
use state::{Dir, Settings};

/// The name of the cluster if none is given.
pub const DEFAULT_NAME: &str = "quintet";

/// The number of simulated nodes of a new cluster.
pub const DEFAULT_NODES: usize = 3;

/// How long a component may take to become healthy, on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(2);

/// The options of [`Cluster::up`].
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The cluster's name.
    pub name: String,
    /// The number of nodes. Without one, an existing cluster keeps its number.
    pub nodes: Option<usize>,
    /// The source of helm and kubectl.
    pub tools: Tools,
}

impl Default for UpOptions {
    fn default() -> Self {
        Self { name: DEFAULT_NAME.to_owned(), nodes: None, tools: Tools::Pinned }
    }
}

/// A local cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    name: String,
    dir: Dir,
    settings: Settings,
    kube: Kube,
}

/// The status of a process of a cluster.
#[derive(Clone, Debug)]
pub struct Status {
    /// The component, or a manager that runs against the cluster.
    pub name: String,
    /// Its process ID, if it was ever started.
    pub pid: Option<i32>,
    /// The port that it serves on, or 0.
    pub port: u16,
    /// Whether it runs and is ready.
    pub state: State,
}

/// Whether a process runs and is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not running.
    Stopped,
    /// Running, without a port for a health check.
    Running,
    /// Running, and not ready.
    NotReady,
    /// Running and ready.
    Ready,
}

impl State {
    fn of(is_running: bool, is_ready: impl FnOnce() -> Result<bool>) -> Result<Self> {
        Ok(match is_running {
            false => Self::Stopped,
            true if is_ready()? => Self::Ready,
            true => Self::NotReady,
        })
    }
}

impl Status {
    /// Whether it is a part of the cluster and not a manager.
    pub fn is_component(&self) -> bool {
        is_component(&self.name)
    }
}

impl Cluster {
    /// Brings a cluster up: builds missing programs, starts stopped processes, and waits until the cluster is
    /// usable. If that fails, it stops the processes that it started. The second value names the started
    /// processes; empty if the cluster was up.
    pub fn up(options: &UpOptions) -> Result<(Self, Vec<String>)> {
        Self::up_with(options, false)
    }

    /// As [`up`](Self::up), with real nodes.
    pub fn up_real(options: &UpOptions) -> Result<(Self, Vec<String>)> {
        if let Some(missing) = real::missing() {
            bail!("{missing}");
        }
        Self::up_with(options, true)
    }

    fn up_with(options: &UpOptions, real: bool) -> Result<(Self, Vec<String>)> {
        let dir = Dir::of(&options.name)?;
        let names = if real { &binaries::REAL[..] } else { &binaries::ALL };
        let binaries = binaries::ensure_with(names, options.tools)?;
        dir.create()?;
        let _lock = lock(&dir)?;
        // Another command may have removed the folder meanwhile.
        dir.create()?;
        let settings = settings(&dir, options, real)?;
        binaries::link(&binaries, &dir.bin())?;
        pki::ensure(&dir.pki())?;
        components::configure(&dir, &settings)?;
        let cluster = Self::at(options.name.clone(), dir, settings);
        let mut started = Vec::new();
        match cluster.start(&mut started) {
            Ok(()) => Ok((cluster, started.into_iter().map(|process| process.name).collect())),
            Err(error) => {
                if real {
                    let _ = real::end_nodes(&cluster, &started);
                }
                let processes: Vec<&Process> = started.iter().rev().collect();
                processes::stop(&processes);
                for process in processes {
                    processes::forget(&cluster.dir.processes(), &process.name);
                }
                Err(error)
            }
        }
    }

    /// Opens a cluster that exists.
    pub fn open(name: &str) -> Result<Self> {
        let dir = Dir::of(name)?;
        let Some(settings) = dir.settings()? else {
            bail!("there is no cluster {name:?}: run `cargo xtask cluster up{}`", name_option(name));
        };
        Ok(Self::at(name.to_owned(), dir, settings))
    }

    /// The names of all clusters of this user.
    pub fn names() -> Result<Vec<String>> {
        Ok(state::names_in(&state::all()?))
    }

    fn at(name: String, dir: Dir, settings: Settings) -> Self {
        let kube = Kube::with_kubeconfig(&dir.bin(), dir.kubeconfig("admin"), dir.path().to_owned());
        Self { name, dir, settings, kube }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.kubeconfig("admin")
    }

    /// The number of its nodes.
    pub fn nodes(&self) -> usize {
        self.settings.nodes
    }

    /// Access to the cluster as its administrator.
    pub fn kube(&self) -> &Kube {
        &self.kube
    }

    /// `kubectl` as the administrator.
    pub fn kubectl(&self) -> Command {
        self.kube.kubectl()
    }

    /// `helm` as the administrator.
    pub fn helm(&self) -> Command {
        self.kube.helm()
    }

    /// The cluster's folder.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The API server's audit log ([`crate::audit`]).
    pub fn audit_log(&self) -> PathBuf {
        self.dir.logs().join("audit.log")
    }

    /// The recorded process of a component, for tests that stop or kill one.
    pub fn process(&self, component: Component) -> Result<Option<Process>> {
        processes::find(&self.dir.processes(), component.name())
    }

    /// Restarts a component with `more` arguments, for a benchmark, until the next [`up`](Self::up).
    pub fn restart(&self, component: Component, more: &[&str]) -> Result<Process> {
        let _lock = lock(&self.dir)?;
        if let Some(process) = self.process(component)? {
            processes::stop(&[&process]);
        }
        // On a busy machine, the last threads of a process may hold its port a little longer.
        let port = component.port(&self.settings);
        run::poll(&format!("port {port}"), START_LIMIT, Duration::from_millis(20), || {
            Ok(ports::is_free(port).then_some(()))
        })?;
        let (process, log, step) = self.launch(component, more)?;
        self.wait_until_well(component, &process, &log)?;
        step.done();
        Ok(process)
    }

    /// The status of each process.
    pub fn status(&self) -> Result<Vec<Status>> {
        let recorded = processes::all(&self.dir.processes())?;
        let mut statuses = Vec::new();
        for &component in Component::of(&self.settings) {
            let process = recorded.iter().find(|process| process.name == component.name());
            let is_running = process.is_some_and(Process::is_alive);
            statuses.push(Status {
                name: component.name().to_owned(),
                pid: process.map(|process| process.pid),
                port: component.port(&self.settings),
                state: State::of(is_running, || component.is_well(&self.kube, &self.settings))?,
            });
        }
        let is_shown = |process: &&Process| Component::ALL.iter().all(|one| one.name() != process.name);
        for process in recorded.iter().filter(is_shown) {
            let is_ready = || match real::is_well(self, &process.name)? {
                Some(is_ready) => Ok(is_ready),
                None => Ok(crate::manager::is_ready(process.port)),
            };
            let state = match State::of(process.is_alive(), is_ready)? {
                State::NotReady if process.port == 0 => State::Running,
                state => state,
            };
            statuses.push(Status {
                name: process.name.clone(),
                pid: Some(process.pid),
                port: process.port,
                state,
            });
        }
        Ok(statuses)
    }

    /// Stops every process of the cluster and removes the cluster.
    pub fn down(self) -> Result<()> {
        let _lock = lock(&self.dir)?;
        let recorded = processes::all(&self.dir.processes())?;
        let component = |searched: Component| move |process: &&Process| process.name == searched.name();
        let store = component(Component::Etcd);
        let server = component(Component::Apiserver);
        if self.settings.real {
            real::end_nodes(&self, &recorded)?;
        }
        // Clients first, then the server, then its store, so that no process waits for an answer.
        processes::stop(&recorded.iter().filter(|p| !store(p) && !server(p)).collect::<Vec<_>>());
        processes::stop(&recorded.iter().filter(|p| server(p)).collect::<Vec<_>>());
        processes::stop(&recorded.iter().filter(|p| store(p)).collect::<Vec<_>>());
        fs::remove_dir_all(self.dir.path())
            .with_context(|| format!("cannot remove {}", self.dir.path().display()))?;
        let _ = fs::remove_file(self.dir.lock());
        Ok(())
    }

    fn start(&self, started: &mut Vec<Process>) -> Result<()> {
        if self.settings.real {
            return self.start_real(started);
        }
        // The last three components need only the API server, so they start together.
        self.start_together(&[Component::Etcd], started)?;
        self.start_together(&[Component::Apiserver], started)?;
        nodes::ensure(&self.kube, self.settings.nodes)?;
        self.start_together(&[Component::ControllerManager, Component::Scheduler, Component::Kwok], started)?;
        let step = Step::start("waiting for the nodes");
        nodes::wait_until_ready(&self.kube, self.settings.nodes)?;
        self.wait_for_account()?;
        if !started.is_empty() {
            step.done();
        }
        Ok(())
    }

    fn start_real(&self, started: &mut Vec<Process>) -> Result<()> {
        real::prepare(self, started)?;
        self.start_together(&[Component::Etcd], started)?;
        // The nodes start while the API server starts.
        real::start_nodes(self, started)?;
        self.start_together(&[Component::Apiserver], started)?;
        real::server_became_ready(&self.dir)?;
        self.start_together(&[Component::ControllerManager, Component::Scheduler], started)?;
        let step = Step::start("waiting for the nodes");
        real::wait_until_ready(self)?;
        self.wait_for_account()?;
        if !started.is_empty() {
            step.done();
        }
        Ok(())
    }

    /// Waits for the service account that the controller-manager creates. Until then, pods are rejected.
    fn wait_for_account(&self) -> Result<()> {
        run::poll("the default service account", START_LIMIT, Duration::from_millis(150), || {
            Ok(self.kube.get("default", "serviceaccount", "default")?.map(|_| ()))
        })
    }

    fn start_together(&self, components: &[Component], started: &mut Vec<Process>) -> Result<()> {
        let records = self.dir.processes();
        let mut waiting = Vec::new();
        for &component in components {
            let (_, fingerprint) = component.command(&self.dir, &self.settings, &[])?;
            if let Some(process) = processes::find(&records, component.name())? {
                let current = process.is_alive() && process.fingerprint == fingerprint;
                if current && component.is_well(&self.kube, &self.settings)? {
                    continue;
                }
                processes::stop(&[&process]);
            }
            let (process, log, step) = self.launch(component, &[])?;
            started.push(process.clone());
            waiting.push((component, process, log, step));
        }
        for (component, process, log, step) in waiting {
            self.wait_until_well(component, &process, &log)?;
            step.done();
        }
        Ok(())
    }

    /// Starts a component that is not running.
    fn launch(&self, component: Component, more: &[&str]) -> Result<(Process, Log, Step)> {
        let (command, fingerprint) = component.command(&self.dir, &self.settings, more)?;
        let log = Log::now(self.dir.logs().join(format!("{}.log", component.name())));
        let step = Step::start(format!("starting {}", component.name()));
        let (process, _) = processes::start(
            &self.dir.processes(),
            Launch {
                name: component.name(),
                command,
                port: component.port(&self.settings),
                fingerprint,
                stdout: log.path.clone(),
                stderr: log.path.clone(),
            },
        )?;
        Ok((process, log, step))
    }

    fn wait_until_well(&self, component: Component, process: &Process, log: &Log) -> Result<()> {
        let name = component.name();
        let waited = run::poll(&format!("{name} is healthy"), START_LIMIT, Duration::from_millis(50), || {
            if !process.is_alive() {
                bail!("{name} exited while starting");
            }
            Ok(component.is_well(&self.kube, &self.settings)?.then_some(()))
        });
        match waited {
            Err(error) if !error.is::<interrupt::Interrupted>() => {
                bail!("{error}; {}", log.tail(15))
            }
            other => other,
        }
    }
}

/// The option that names a cluster on a command line, after a space; empty for the default cluster.
pub fn name_option(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

fn is_component(name: &str) -> bool {
    Component::ALL.iter().any(|component| component.name() == name) || real::is_ours(name)
}

/// The settings of the cluster in `dir`. It gets new ports if another process took one while it was stopped.
fn settings(dir: &Dir, options: &UpOptions, real: bool) -> Result<Settings> {
    let clusters = state::all()?;
    let _ports = lock::take(&clusters.join("ports.lock"), "another cluster that starts")?;
    let old = dir.settings()?;
    if let Some(old) = old.filter(|old| old.real != real) {
        let (has, asked) = if old.real { ("real", "simulated") } else { ("simulated", "real") };
        bail!(
            "cluster {} has {has} nodes and cannot have {asked} ones: take it down first (`cargo xtask cluster down{}`), or use \
             another --name",
            options.name,
            name_option(&options.name)
        );
    }
    let ports = match old {
        Some(old) if ports_are_ours(dir, &old)? => old.ports,
        _ => Ports::choose(&clusters)?,
    };
    let default = if real { real::DEFAULT_NODES } else { DEFAULT_NODES };
    let nodes = options.nodes.or(old.map(|old| old.nodes)).unwrap_or(default);
    let settings = Settings { nodes, real, ports };
    dir.keep_settings(&settings)?;
    Ok(settings)
}

fn ports_are_ours(dir: &Dir, settings: &Settings) -> Result<bool> {
    if settings.real && real::holds_ports(dir)? {
        return Ok(true);
    }
    for &component in Component::of(settings) {
        let alive =
            processes::find(&dir.processes(), component.name())?.is_some_and(|process| process.is_alive());
        if !alive && !ports::is_free(component.port(settings)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(dir: &Dir) -> Result<File> {
    lock::take(&dir.lock(), "another command on this cluster")
}
