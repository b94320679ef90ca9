//! A real Apache Pulsar broker on this machine, from its published artefact: one Java process on loopback ports, with
//! token authentication and TLS where they are asked for. Several run beside each other by name.
//!
//! Its process outlives the command that started it, as those of a [`cluster`](crate::cluster) do; everything about it
//! is in a folder in the user's cache.

mod admin;
pub mod certificates;
pub mod cli;
pub mod distribution;
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

/// The name of the broker that commands mean when none is given.
pub const DEFAULT_NAME: &str = "pulsar";

/// The role that may produce and consume in `public/default`, where roles are asked for.
pub const ROLE: &str = "app";

/// A heap that is enough for tests.
pub const SMALL_HEAP_MIB: u32 = 256;

const PROCESS: &str = "broker";

/// The process that passes connections on to it, where it is in a cluster's network.
const GATEWAY: &str = "gateway";

/// What `up` is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The broker's name.
    pub name: String,
    /// Whether clients need a token. A broker that is there keeps what it has where this is not asked for.
    pub auth: bool,
    /// Whether clients use TLS, and how good the broker's first certificate is; likewise.
    pub tls: Option<Lifetime>,
    /// The most that Java's heap may be, in MiB.
    pub heap_mib: u32,
    /// Whether it is in the network of the cluster of its name, whose nodes are real and whose pods it serves.
    pub in_cluster: bool,
}

impl Options {
    /// A small broker without authentication and TLS.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), auth: false, tls: None, heap_mib: SMALL_HEAP_MIB, in_cluster: false }
    }
}

/// The ports of one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Ports {
    /// For clients.
    service: u16,
    /// For clients that use TLS.
    service_tls: u16,
    /// The admin API.
    web: u16,
    /// The store's.
    bookie: u16,
}

impl Ports {
    fn all(self) -> [u16; 4] {
        [self.service, self.service_tls, self.web, self.bookie]
    }
}

/// What was chosen for a broker when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Settings {
    auth: bool,
    tls: bool,
    heap_mib: u32,
    #[serde(default)]
    in_cluster: bool,
    ports: Ports,
}

impl Settings {
    /// Where its clients find it.
    fn address(&self) -> Ipv4Addr {
        if self.in_cluster { real::CONTROL_PLANE } else { Ipv4Addr::LOCALHOST }
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
    /// Brings a broker up: fetches what is missing, starts it where it does not run, and waits until it is of use. The
    /// second value says whether it was started; else it was up.
    pub fn up(options: &Options) -> Result<(Self, bool)> {
        let files = files(&options.name)?;
        distribution::ensure()?;
        files.create()?;
        let _lock = lock(&files)?;
        // Another command may have removed it while this one waited.
        files.create()?;
        let settings = settings(&files, options)?;
        let broker = Self { name: options.name.clone(), files, settings };
        if settings.tls && !broker.ca_file().is_file() {
            let lifetime = options.tls.unwrap_or(Lifetime::Year);
            certificates::authority(&broker.files.tls())?;
            certificates::broker(&broker.files.tls(), lifetime)?;
        }
        if settings.auth {
            broker.make_tokens()?;
        }
        let started = broker.start()?;
        Ok((broker, started))
    }

    /// A broker that was brought up before.
    pub fn open(name: &str) -> Result<Self> {
        let files = files(name)?;
        let Some(settings) = kept(&files)? else {
            bail!("there is no broker {name:?}: `cargo xtask pulsar up{}` makes it", name_option(name));
        };
        Ok(Self { name: name.to_owned(), files, settings })
    }

    /// The names of all brokers of this user.
    pub fn names() -> Result<Vec<String>> {
        let Ok(entries) = fs::read_dir(all()?) else { return Ok(Vec::new()) };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().join("settings.json").is_file())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a client connects to: `pulsar://127.0.0.1:PORT`, or `pulsar+ssl://` where it uses TLS. In a cluster's network the
    /// address is one that its pods reach, and nobody else.
    pub fn service_url(&self) -> String {
        let (address, ports) = (self.settings.address(), self.settings.ports);
        if self.settings.tls {
            format!("pulsar+ssl://{address}:{}", ports.service_tls)
        } else {
            format!("pulsar://{address}:{}", ports.service)
        }
    }

    /// The admin API's address, for the same clients; it has no TLS.
    pub fn admin_url(&self) -> String {
        format!("http://{}:{}", self.settings.address(), self.settings.ports.web)
    }

    /// Whether clients need a token.
    pub fn has_auth(&self) -> bool {
        self.settings.auth
    }

    /// Whether clients use TLS.
    pub fn has_tls(&self) -> bool {
        self.settings.tls
    }

    /// The token of [`ROLE`], where clients need one.
    pub fn token_file(&self) -> PathBuf {
        self.files.tokens().join(format!("{ROLE}.token"))
    }

    /// The administrator's token, where clients need one.
    pub fn admin_token_file(&self) -> PathBuf {
        self.files.admin_token()
    }

    /// The CA that signed the broker's certificate, where it has one.
    pub fn ca_file(&self) -> PathBuf {
        self.files.tls().join("ca.crt")
    }

    /// Its folder, which goes with it: a place for files of a test.
    pub fn dir(&self) -> &Path {
        &self.files.dir
    }

    /// The broker's log.
    pub fn log(&self) -> PathBuf {
        self.files.log()
    }

    /// A token that this broker takes, until it ends. One that has ended is refused.
    pub fn token(&self, role: &str, ends: Option<SystemTime>) -> Result<String> {
        let secret = self.files.secret();
        let secret = fs::read(&secret).with_context(|| format!("cannot read {}", secret.display()))?;
        Ok(tokens::token(&secret, role, ends))
    }

    /// A token signed with another secret, which this broker refuses.
    pub fn foreign_token(&self, role: &str) -> String {
        tokens::token(&[7; 32], role, None)
    }

    /// Gives the broker a new certificate of its CA, which it uses a moment later.
    pub fn renew_certificate(&self, lifetime: Lifetime) -> Result<()> {
        certificates::broker(&self.files.tls(), lifetime)
    }

    /// Its administrator.
    pub fn admin(&self) -> Result<Admin> {
        let token = if self.settings.auth {
            let file = self.admin_token_file();
            Some(fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?)
        } else {
            None
        };
        Ok(Admin { port: self.settings.ports.web, token })
    }

    /// Its process, as it was last started.
    pub fn process(&self) -> Result<Option<Process>> {
        processes::find(&self.files.processes(), PROCESS)
    }

    /// Whether it runs, and whether it answers.
    pub fn status(&self) -> Result<(bool, bool)> {
        let running = self.process()?.is_some_and(|process| process.is_alive());
        Ok((running, running && self.admin()?.is_well()))
    }

    /// Ends it as a crash would. What it acknowledged to producers survives.
    pub fn kill(&self) -> Result<()> {
        if let Some(process) = self.process()? {
            process.kill();
        }
        Ok(())
    }

    /// Ends it in good order. Its data stay.
    pub fn stop(&self) -> Result<()> {
        if let Some(process) = self.process()? {
            processes::stop(&[&process]);
        }
        Ok(())
    }

    /// Starts it again, on the same ports and with the same data; ends it before where it runs.
    pub fn restart(&self) -> Result<()> {
        let _lock = lock(&self.files)?;
        self.stop()?;
        for port in self.settings.ports.all() {
            // On a busy machine the last threads of a process may hold its port for a moment longer.
            run::poll(&format!("port {port}"), START_LIMIT, Duration::from_millis(20), || {
                Ok(ports::is_free(port).then_some(()))
            })?;
        }
        self.start().map(|_| ())
    }

    /// Stops it and removes everything it left.
    pub fn down(self) -> Result<()> {
        let _lock = lock(&self.files)?;
        self.stop()?;
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
                .context("cannot make a secret")?;
            state::write(&secret, &random)?;
        }
        state::write(&self.admin_token_file(), self.token("admin", None)?.as_bytes())?;
        // A test may have put another one there.
        if !self.token_file().is_file() {
            state::write(&self.token_file(), self.token(ROLE, None)?.as_bytes())?;
        }
        Ok(())
    }

    /// Makes the admin API reachable from outside the cluster's network, and says who keeps that network.
    fn open_gateway(&self) -> Result<Process> {
        let cluster = Dir::of(&self.name)?;
        let keeper = real::network::keeper(&cluster)?
            .with_context(|| format!("there is no cluster {} with real nodes", self.name))?;
        let log = self.files.dir.join("gateway.log");
        let launch = real::gateway::launch(GATEWAY, &keeper, &[self.settings.ports.web], None, log)?;
        real::start_gateway(&self.files.processes(), launch, &mut Vec::new())?;
        Ok(keeper)
    }

    /// Starts it where it does not run as it should, and says whether it did.
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
        let well = run::poll("Apache Pulsar is well", START_LIMIT, Duration::from_millis(100), || {
            if !process.is_alive() {
                bail!("Apache Pulsar ended while starting");
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

/// How a command is told which broker is meant, with a space before it; nothing for the default one.
fn name_option(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

/// The folder that holds a folder per broker.
fn all() -> Result<PathBuf> {
    Ok(paths::cache()?.join("brokers"))
}

fn files(name: &str) -> Result<Files> {
    if !is_valid_name(name) {
        bail!("{name:?} is no name for a broker: {VALID_NAMES}");
    }
    Ok(Files { dir: all()?.join(name) })
}

fn kept(files: &Files) -> Result<Option<Settings>> {
    state::read_json(&files.dir.join("settings.json"))
}

/// The settings of a broker: those it has, or new ones where it is new. Its ports are others where somebody took one
/// while it was not running.
fn settings(files: &Files, options: &Options) -> Result<Settings> {
    let clusters = state::all()?;
    let _ports = lock::take(&clusters.join("ports.lock"), "a cluster or another broker that starts")?;
    let old = kept(files)?;
    for (flag, asked, has) in [
        ("--auth", options.auth, old.map(|old| old.auth)),
        ("--tls", options.tls.is_some(), old.map(|old| old.tls)),
    ] {
        if asked && has == Some(false) {
            bail!("this broker was made without {flag}: take it down first, or use another --name");
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
            let [service, service_tls, web, bookie] = ports::choose(&clusters, &taken)?;
            Ports { service, service_tls, web, bookie }
        }
    };
    let settings = Settings {
        auth: old.map_or(options.auth, |old| old.auth),
        tls: old.map_or(options.tls.is_some(), |old| old.tls),
        in_cluster: old.map_or(options.in_cluster, |old| old.in_cluster),
        heap_mib: options.heap_mib,
        ports,
    };
    state::write_json(&files.dir.join("settings.json"), &settings)?;
    Ok(settings)
}

/// It lies beside the folder, which `down` removes.
fn lock_file(files: &Files) -> PathBuf {
    files.dir.with_extension("lock")
}

fn lock(files: &Files) -> Result<File> {
    lock::take(&lock_file(files), "another command that works on this broker")
}
