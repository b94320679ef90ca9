//! An Apache Pulsar broker on this machine, from its published artefact: one Java process on loopback ports,
//! with optional token authentication and TLS. Several brokers can run at once, by name.
//!
//! The process outlives the command that started it, like those of a [`cluster`](crate::cluster). Its state
//! is in a folder of the user's cache.

mod admin;
pub mod certificates;
pub mod cli;
pub mod distribution;
pub mod issuer;
pub mod perf;
mod server;
pub mod tokens;

use std::fs::{self, File};
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cluster::processes::{self, Launch, Process};
use crate::cluster::state::{self, Dir, VALID_NAMES, is_valid_name};
use crate::cluster::{lock, ports, real};
use crate::progress::Step;
use crate::run::{self, Log};
use crate::{interrupt, paths};

pub use admin::Admin;
pub use certificates::Lifetime;
pub use distribution::missing;
use server::{Files, START_LIMIT};

/// The name of the broker if none is given.
pub const DEFAULT_NAME: &str = "pulsar";

/// The role that may produce and consume in `public/default`, if the broker requires tokens.
pub const ROLE: &str = "app";

/// A heap size for tests.
pub const SMALL_HEAP_MIB: u32 = 256;

const PROCESS: &str = "broker";

/// The record of the gateway to a broker in a cluster's network.
const GATEWAY: &str = "gateway";

/// The options of [`Broker::up`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The broker's name.
    pub name: String,
    /// Whether clients need a token. An existing broker keeps its setting.
    pub auth: bool,
    /// The validity of the first certificate, if clients use TLS; an existing broker keeps its setting.
    pub tls: Option<Lifetime>,
    /// The maximum size of Java's heap, in MiB.
    pub heap_mib: u32,
    /// Whether it serves the pods of the cluster with its name, in the network of that cluster's real nodes.
    pub in_cluster: bool,
    /// Whether clients may have tokens of an OAuth2 issuer, which starts with the broker; needs `auth`.
    pub issuer: bool,
}

impl Options {
    /// A small broker without authentication and TLS.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            auth: false,
            tls: None,
            heap_mib: SMALL_HEAP_MIB,
            in_cluster: false,
            issuer: false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Ports {
    /// For clients without TLS.
    service: u16,
    /// For clients with TLS.
    service_tls: u16,
    web: u16,
    /// For the admin API with TLS.
    #[serde(default)]
    web_tls: u16,
    /// The port of the store.
    bookie: u16,
    /// For tokens.
    #[serde(default)]
    issuer: u16,
    /// For the issuer's clients.
    #[serde(default)]
    issuer_admin: u16,
}

impl Ports {
    fn all(self) -> [u16; 7] {
        let Self { service, service_tls, web, web_tls, bookie, issuer, issuer_admin } = self;
        [service, service_tls, web, web_tls, bookie, issuer, issuer_admin]
    }
}

#[expect(clippy::struct_excessive_bools, reason = "the options of a broker do not depend on each other")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Settings {
    auth: bool,
    tls: bool,
    heap_mib: u32,
    #[serde(default)]
    in_cluster: bool,
    #[serde(default)]
    issuer: bool,
    ports: Ports,
}

impl Settings {
    /// The address for clients.
    fn address(&self) -> Ipv4Addr {
        if self.in_cluster { real::CONTROL_PLANE } else { Ipv4Addr::LOCALHOST }
    }

    /// Whether the broker advertises a second listener, `by-name`.
    fn has_listeners(&self) -> bool {
        !self.tls && !self.in_cluster
    }
}

/// A local broker.
#[derive(Clone, Debug)]
pub struct Broker {
    name: String,
    files: Files,
    settings: Settings,
}

impl Broker {
    /// Brings a broker up: downloads Pulsar if necessary, starts the broker, and waits until it is usable.
    /// The second value is whether it was started now.
    pub fn up(options: &Options) -> Result<(Self, bool)> {
        let files = files(&options.name)?;
        distribution::ensure()?;
        files.create()?;
        let _lock = lock(&files)?;
        // Another command may have removed the folder meanwhile.
        files.create()?;
        let settings = settings(&files, options)?;
        let broker = Self { name: options.name.clone(), files, settings };
        if settings.tls && !broker.ca_file().is_file() {
            let lifetime = options.tls.unwrap_or(Lifetime::Year);
            certificates::authority(&broker.files.tls())?;
            certificates::broker(&broker.files.tls(), lifetime)?;
            certificates::client(&broker.files.tls(), ROLE)?;
        }
        if settings.auth {
            broker.make_tokens()?;
        }
        let started = broker.start()?;
        Ok((broker, started))
    }

    /// Opens a broker that exists.
    pub fn open(name: &str) -> Result<Self> {
        let files = files(name)?;
        let Some(settings) = kept(&files)? else {
            bail!("there is no broker {name:?}: run `cargo xtask pulsar up{}`", name_option(name));
        };
        Ok(Self { name: name.to_owned(), files, settings })
    }

    /// The names of all brokers of this user.
    pub fn names() -> Result<Vec<String>> {
        Ok(state::names_in(&all()?))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL for clients, `pulsar://` or `pulsar+ssl://`. In a cluster's network, only its pods reach it.
    pub fn service_url(&self) -> String {
        let (address, ports) = (self.settings.address(), self.settings.ports);
        if self.settings.tls {
            format!("pulsar+ssl://{address}:{}", ports.service_tls)
        } else {
            format!("pulsar://{address}:{}", ports.service)
        }
    }

    /// The URL of the admin API for the same clients, without TLS.
    pub fn admin_url(&self) -> String {
        format!("http://{}:{}", self.settings.address(), self.settings.ports.web)
    }

    /// The URL of the admin API with TLS, if the broker has it.
    pub fn admin_url_tls(&self) -> String {
        format!("https://{}:{}", self.settings.address(), self.settings.ports.web_tls)
    }

    /// Whether clients need a token.
    pub fn has_auth(&self) -> bool {
        self.settings.auth
    }

    /// Whether clients use TLS.
    pub fn has_tls(&self) -> bool {
        self.settings.tls
    }

    /// The token of [`ROLE`], if clients need one.
    pub fn token_file(&self) -> PathBuf {
        self.files.tokens().join(format!("{ROLE}.token"))
    }

    /// The administrator's token, if clients need one.
    pub fn admin_token_file(&self) -> PathBuf {
        self.files.admin_token()
    }

    /// The CA of the broker's certificate, if it has one.
    pub fn ca_file(&self) -> PathBuf {
        self.files.tls().join("ca.crt")
    }

    /// The issuer's address for tokens, if the broker has an OAuth2 issuer.
    pub fn token_url(&self) -> String {
        format!("{}oauth2/token", issuer::url(self.settings.ports))
    }

    /// Stops the issuer.
    pub fn stop_issuer(&self) -> Result<()> {
        let process = processes::find(&self.files.processes(), issuer::PROCESS)?;
        processes::stop(&process.iter().collect::<Vec<_>>());
        Ok(())
    }

    /// Starts the issuer, unless it is running.
    pub fn start_issuer(&self) -> Result<()> {
        issuer::start(self.dir(), &self.files.processes(), self.settings.ports)
    }

    /// The certificate and the key of [`ROLE`], if the broker has TLS. With authentication, the broker accepts
    /// them in place of a token.
    pub fn client_files(&self) -> [PathBuf; 2] {
        ["client.crt", "client.key"].map(|file| self.files.tls().join(file))
    }

    /// The broker's folder, which is removed with the broker. Tests may add files.
    pub fn dir(&self) -> &Path {
        &self.files.dir
    }

    /// The broker's log.
    pub fn log(&self) -> PathBuf {
        self.files.log()
    }

    /// A token that this broker accepts until it expires.
    pub fn token(&self, role: &str, ends: Option<SystemTime>) -> Result<String> {
        let secret = self.files.secret();
        let secret = fs::read(&secret).with_context(|| format!("cannot read {}", secret.display()))?;
        Ok(tokens::token(&secret, role, ends))
    }

    /// A token signed with another secret, which this broker rejects.
    pub fn foreign_token(&self, role: &str) -> String {
        tokens::token(&[7; 32], role, None)
    }

    /// Replaces the broker's certificate. The broker uses the new one a moment later.
    pub fn renew_certificate(&self, lifetime: Lifetime) -> Result<()> {
        certificates::broker(&self.files.tls(), lifetime)
    }

    /// The admin API, as the administrator.
    pub fn admin(&self) -> Result<Admin> {
        let token = if self.settings.auth {
            let file = self.admin_token_file();
            Some(fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?)
        } else {
            None
        };
        Ok(Admin { port: self.settings.ports.web, token })
    }

    /// The recorded process.
    pub fn process(&self) -> Result<Option<Process>> {
        processes::find(&self.files.processes(), PROCESS)
    }

    /// Whether the broker is running, and whether it is ready.
    pub fn status(&self) -> Result<(bool, bool)> {
        let running = self.process()?.is_some_and(|process| process.is_alive());
        Ok((running, running && self.admin()?.is_well()))
    }

    /// Kills the broker, like a crash. Acknowledged messages of producers survive.
    pub fn kill(&self) -> Result<()> {
        if let Some(process) = self.process()? {
            process.kill();
        }
        Ok(())
    }

    /// Stops the broker gracefully and keeps its data.
    pub fn stop(&self) -> Result<()> {
        if let Some(process) = self.process()? {
            processes::stop(&[&process]);
        }
        Ok(())
    }

    /// Restarts the broker with the same ports and data.
    pub fn restart(&self) -> Result<()> {
        let _lock = lock(&self.files)?;
        self.stop()?;
        for port in self.settings.ports.all() {
            // On a busy machine, the last threads of a process may hold its port a little longer.
            run::poll(&format!("port {port}"), START_LIMIT, Duration::from_millis(20), || {
                Ok(ports::is_free(port).then_some(()))
            })?;
        }
        self.start().map(|_| ())
    }

    /// Stops the broker and removes its files.
    pub fn down(self) -> Result<()> {
        let _lock = lock(&self.files)?;
        self.stop()?;
        self.stop_issuer()?;
        processes::stop(&processes::find(&self.files.processes(), GATEWAY)?.iter().collect::<Vec<_>>());
        fs::remove_dir_all(&self.files.dir)
            .with_context(|| format!("cannot remove {}", self.files.dir.display()))?;
        let _ = fs::remove_file(lock_file(&self.files));
        Ok(())
    }

    fn make_tokens(&self) -> Result<()> {
        let secret = self.files.secret();
        if !secret.is_file() {
            let mut random = [0; 32];
            File::open("/dev/urandom")
                .and_then(|mut source| source.read_exact(&mut random))
                .context("cannot create a secret")?;
            state::write(&secret, &random)?;
        }
        state::write(&self.admin_token_file(), self.token("admin", None)?.as_bytes())?;
        // A test may have written another token.
        if !self.token_file().is_file() {
            state::write(&self.token_file(), self.token(ROLE, None)?.as_bytes())?;
        }
        Ok(())
    }

    /// Forwards the admin API's port into the cluster's network. Returns the process that keeps the network.
    fn open_gateway(&self) -> Result<Process> {
        let cluster = Dir::of(&self.name)?;
        let keeper = real::network::keeper(&cluster)?
            .with_context(|| format!("there is no cluster {} with real nodes", self.name))?;
        let log = self.files.dir.join("gateway.log");
        let launch = real::gateway::launch(GATEWAY, &keeper, &[self.settings.ports.web], None, log)?;
        real::start_gateway(&self.files.processes(), launch, &mut Vec::new())?;
        Ok(keeper)
    }

    /// Starts the broker, unless it is running with the same settings. Returns whether it was started.
    fn start(&self) -> Result<bool> {
        let distribution = distribution::ensure()?;
        let (mut command, mut fingerprint) = server::command(&distribution, &self.files, &self.settings)?;
        if self.settings.in_cluster {
            let keeper = self.open_gateway()?;
            fingerprint = format!("{fingerprint} {} {}", keeper.pid, keeper.started);
            command = real::network::enter(&keeper, &command);
        }
        let admin = self.admin()?;
        if let Some(process) = self.process()? {
            if process.is_alive() && process.fingerprint == fingerprint && admin.is_well() {
                return Ok(false);
            }
            processes::stop(&[&process]);
        }
        if self.settings.issuer {
            self.start_issuer()?;
        }
        let disk = rustix::fs::statvfs(self.dir())?;
        if disk.f_bavail < disk.f_blocks / 100 {
            bail!(
                "the disk of {} is 99 % full, and then Pulsar stores no message: free some space",
                self.dir().display()
            );
        }
        let step = Step::start("starting Apache Pulsar");
        let log = Log::now(self.log());
        let (process, _) = processes::start(
            &self.files.processes(),
            Launch {
                name: PROCESS,
                command,
                port: self.settings.ports.web,
                fingerprint,
                stdout: self.log(),
                stderr: self.log(),
            },
        )?;
        let well = run::poll("Apache Pulsar is ready", START_LIMIT, Duration::from_millis(100), || {
            if !process.is_alive() {
                bail!("Apache Pulsar exited while starting");
            }
            Ok(admin.is_well().then_some(()))
        });
        let ready =
            well.and_then(|()| if self.settings.auth { admin.grant("public/default", ROLE) } else { Ok(()) });
        if let Err(error) = ready {
            processes::stop(&[&process]);
            processes::forget(&self.files.processes(), PROCESS);
            if error.is::<interrupt::Interrupted>() {
                return Err(error);
            }
            bail!("{error}; {}", log.tail(15));
        }
        step.done();
        Ok(true)
    }
}

/// The option that names a broker on a command line, after a space; empty for the default broker.
fn name_option(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

/// The folder with a folder for each broker.
fn all() -> Result<PathBuf> {
    Ok(paths::cache()?.join("brokers"))
}

fn files(name: &str) -> Result<Files> {
    if !is_valid_name(name) {
        bail!("{name:?} is not a valid name for a broker: {VALID_NAMES}");
    }
    Ok(Files { dir: all()?.join(name) })
}

fn kept(files: &Files) -> Result<Option<Settings>> {
    state::read_json(&files.dir.join("settings.json"))
}

/// The settings of a broker; new ones if it is new. It gets new ports if another process took one while it
/// was stopped.
fn settings(files: &Files, options: &Options) -> Result<Settings> {
    let clusters = state::all()?;
    let _ports = lock::take(&clusters.join("ports.lock"), "a cluster or another broker that starts")?;
    let old = kept(files)?;
    for (flag, asked, has) in [
        ("--auth", options.auth, old.map(|old| old.auth)),
        ("--tls", options.tls.is_some(), old.map(|old| old.tls)),
    ] {
        if asked && has == Some(false) {
            bail!("this broker was created without {flag}: take it down first, or use another --name");
        }
    }
    let running = processes::find(&files.processes(), PROCESS)?.is_some_and(|process| process.is_alive());
    let ports = match old {
        Some(old) if running || old.ports.all().iter().all(|port| ports::is_free(*port)) => old.ports,
        _ => {
            let mut taken = Vec::new();
            for name in Broker::names()? {
                taken.extend(kept(&self::files(&name)?)?.into_iter().flat_map(|other| other.ports.all()));
            }
            let [service, service_tls, web, web_tls, bookie, issuer, issuer_admin] =
                ports::choose(&clusters, &taken)?;
            Ports { service, service_tls, web, web_tls, bookie, issuer, issuer_admin }
        }
    };
    let settings = Settings {
        auth: old.map_or(options.auth, |old| old.auth),
        tls: old.map_or(options.tls.is_some(), |old| old.tls),
        in_cluster: old.map_or(options.in_cluster, |old| old.in_cluster),
        issuer: old.map_or(options.issuer, |old| old.issuer),
        heap_mib: options.heap_mib,
        ports,
    };
    state::write_json(&files.dir.join("settings.json"), &settings)?;
    Ok(settings)
}

/// The lock is outside the folder that `down` removes.
fn lock_file(files: &Files) -> PathBuf {
    files.dir.with_extension("lock")
}

fn lock(files: &Files) -> Result<File> {
    lock::take(&lock_file(files), "another command on this broker")
}
