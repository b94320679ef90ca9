//! The broker's process: a standalone Pulsar, configured to be small and to listen on loopback. It is broker,
//! bookie and metadata store in one Java program.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use super::admin::Admin;
use super::distribution::Distribution;
use super::{Ports, Settings, issuer};
use crate::cluster::{ports, state};
use crate::progress::Step;
use crate::run::{self, Log};

/// How long a broker may take to become ready, on a busy machine.
pub const START_LIMIT: Duration = Duration::from_mins(3);

/// The packages of Java's library that Pulsar opens.
const OPENED: [&str; 7] = [
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
];

/// Logs to stdout, at a level that includes the reasons of rejections.
const LOG4J: &str = "status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} - %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
";

/// The files of a broker.
#[derive(Clone, Debug)]
pub struct Files {
    /// The folder of the files.
    pub dir: PathBuf,
}

impl Files {
    fn configuration(&self) -> PathBuf {
        self.dir.join("standalone.conf")
    }

    fn log4j(&self) -> PathBuf {
        self.dir.join("log4j2.properties")
    }

    /// Messages and metadata.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Certificates and keys.
    pub fn tls(&self) -> PathBuf {
        self.dir.join("tls")
    }

    /// Tokens, and the secret that signs them.
    pub fn tokens(&self) -> PathBuf {
        self.dir.join("tokens")
    }

    /// The secret that signs tokens.
    pub fn secret(&self) -> PathBuf {
        self.tokens().join("secret.key")
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> PathBuf {
        self.tokens().join("admin.token")
    }

    /// The broker's log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("broker.log")
    }

    /// The records of processes.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("processes")
    }

    /// Creates the folders, which only the user can read, because they contain keys.
    pub fn create(&self) -> Result<()> {
        state::create_private(&[&self.dir, &self.data(), &self.tls(), &self.tokens(), &self.processes()])
    }
}

/// Writes the configuration of a broker. Returns the command that runs the broker, and a fingerprint.
pub fn command(java: &Distribution, files: &Files, settings: &Settings) -> Result<(Command, String)> {
    let original = java.home.join("conf/standalone.conf");
    let original =
        fs::read_to_string(&original).with_context(|| format!("cannot read {}", original.display()))?;
    let mut changes = common(settings);
    if settings.tls {
        changes.extend(tls(settings.ports, &files.tls()));
    }
    if settings.auth {
        let token = fs::read_to_string(files.admin_token()).context("the administrator has no token")?;
        changes.extend(authentication(settings, &files.secret(), &token));
    }
    let configuration = configuration(&original, &changes);
    state::write(&files.configuration(), configuration.as_bytes())?;
    state::write(&files.log4j(), LOG4J.as_bytes())?;
    let mut command = Command::new(&java.java);
    command.args(java_flags(settings.heap_mib));
    command.arg(format!("-XX:SharedArchiveFile={}", java.classes.display()));
    command.args(arguments(java, files, settings)).current_dir(&files.dir);
    let mut digest = Sha256::new().chain_update(&configuration);
    for word in command.get_args() {
        digest.update(word.as_encoded_bytes());
        digest.update([0]);
    }
    Ok((command, run::short_hex(&digest.finalize())))
}

/// The heap, and half as much direct memory. The flags for a fast start slow a broker down later, so only
/// small brokers get them.
fn java_flags(heap_mib: u32) -> Vec<String> {
    let mut flags = vec![
        format!("-Xmx{heap_mib}m"),
        format!("-XX:MaxDirectMemorySize={}m", heap_mib.max(256) / 2),
        "-Xshare:auto".to_owned(),
        "-Xlog:disable".to_owned(),
        "-Xlog:all=warning:stderr".to_owned(),
        "-Djava.net.preferIPv4Stack=true".to_owned(),
        "-Dio.netty.tryReflectionSetAccessible=true".to_owned(),
    ];
    if heap_mib <= super::SMALL_HEAP_MIB {
        flags.extend(["-XX:+UseSerialGC".to_owned(), "-XX:TieredStopAtLevel=1".to_owned()]);
    }
    let metadata = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata";
    flags.push(format!("-Dbookkeeper.metadata.bookie.drivers={metadata}BookieDriver"));
    flags.push(format!("-Dbookkeeper.metadata.client.drivers={metadata}ClientDriver"));
    flags.extend(OPENED.map(|package| format!("--add-opens={package}=ALL-UNNAMED")));
    flags
}

fn arguments(java: &Distribution, files: &Files, settings: &Settings) -> Vec<String> {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut arguments = vec![
        format!("-Dlog4j.configurationFile=file://{}", files.log4j().display()),
        // Java unpacks libraries at each start. In another folder they would remain.
        format!("-Djava.io.tmpdir={}", files.data().display()),
        "-cp".to_owned(),
        class_path(java),
        "org.apache.pulsar.PulsarStandaloneStarter".to_owned(),
        "--config".to_owned(),
        path(files.configuration()),
        "--metadata-dir".to_owned(),
        path(files.data().join("metadata")),
        "--bookkeeper-dir".to_owned(),
        path(files.data().join("bookkeeper")),
        "--bookkeeper-port".to_owned(),
        settings.ports.bookie.to_string(),
        "-nfw".to_owned(),
        "-nss".to_owned(),
    ];
    if !settings.has_listeners() {
        arguments.extend(["-a".to_owned(), settings.address().to_string()]);
    }
    arguments
}

/// All jars, sorted, because a class data archive is valid only for one class path.
fn class_path(java: &Distribution) -> String {
    let mut jars: Vec<String> = fs::read_dir(java.home.join("lib"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().to_string_lossy().into_owned())
        .filter(|path| Path::new(path).extension().is_some_and(|extension| extension == "jar"))
        .collect();
    jars.sort();
    jars.join(":")
}

type Changes = Vec<(&'static str, String)>;

fn common(settings: &Settings) -> Changes {
    let ports = settings.ports;
    let mut changes = vec![
        ("brokerServicePort", ports.service.to_string()),
        ("webServicePort", ports.web.to_string()),
        ("webSocketServiceEnabled", "false".to_owned()),
        ("managedLedgerCacheSizeMB", "32".to_owned()),
        ("dbStorage_writeCacheMaxSizeMb", "16".to_owned()),
        ("dbStorage_readAheadCacheMaxSizeMb", "16".to_owned()),
        ("dbStorage_rocksDB_blockCacheSize", (8 << 20).to_string()),
        // Otherwise, the bookie listens on all interfaces, and on a random port despite its configuration.
        ("allowEphemeralPorts", "true".to_owned()),
        // Topics without use are deleted after a minute, as by default, but the broker looks more often.
        ("brokerDeleteInactiveTopicsFrequencySeconds", "5".to_owned()),
        ("brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", "60".to_owned()),
        ("listeningInterface", "lo".to_owned()),
    ];
    // In a cluster's network, the broker also listens at the address that pods reach.
    let bind = if settings.in_cluster { Ipv4Addr::UNSPECIFIED } else { settings.address() };
    changes.push(("bindAddress", bind.to_string()));
    if settings.has_listeners() {
        let port = ports.service;
        let listeners = format!("internal:pulsar://127.0.0.1:{port},by-name:pulsar://localhost:{port}");
        changes.push(("advertisedListeners", listeners));
        changes.push(("internalListenerName", "internal".to_owned()));
    } else {
        changes.push(("advertisedAddress", settings.address().to_string()));
    }
    changes
}

fn tls(ports: Ports, certificates: &Path) -> Changes {
    let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
    vec![
        ("brokerServicePortTls", ports.service_tls.to_string()),
        ("webServicePortTls", ports.web_tls.to_string()),
        ("tlsCertificateFilePath", file("broker.crt")),
        ("tlsKeyFilePath", file("broker.key")),
        ("tlsTrustCertsFilePath", file("ca.crt")),
        // A renewed certificate is used without a restart.
        ("tlsCertRefreshCheckDurationSec", "1".to_owned()),
    ]
}

fn authentication(settings: &Settings, secret: &Path, admin_token: &str) -> Changes {
    let mut providers = vec!["AuthenticationProviderToken", "AuthenticationProviderTls"];
    let mut changes = Vec::new();
    if settings.issuer {
        providers.push("oidc.AuthenticationProviderOpenID");
        changes.push(("openIDAllowedTokenIssuers", issuer::url(settings.ports)));
        changes.push(("openIDAllowedAudiences", issuer::AUDIENCE.to_owned()));
        changes.push(("openIDRequireIssuersUseHttps", "false".to_owned()));
        // After its restart, the issuer has other keys.
        changes.push(("openIDKeyIdCacheMissRefreshSeconds", "1".to_owned()));
    }
    let providers = providers.iter().map(|name| format!("org.apache.pulsar.broker.authentication.{name}"));
    changes.extend([
        ("authenticationEnabled", "true".to_owned()),
        ("authenticationProviders", providers.collect::<Vec<_>>().join(",")),
        ("tokenSecretKey", format!("file://{}", secret.display())),
        ("authorizationEnabled", "true".to_owned()),
        // The broker asks clients for a new token soon after theirs expires.
        ("authenticationRefreshCheckSeconds", "1".to_owned()),
        ("superUserRoles", "admin".to_owned()),
        (
            "brokerClientAuthenticationPlugin",
            "org.apache.pulsar.client.impl.auth.AuthenticationToken".to_owned(),
        ),
        ("brokerClientAuthenticationParameters", format!("token:{admin_token}")),
    ]);
    changes
}

/// Replaces settings of a configuration, and adds missing ones.
fn configuration(original: &str, changes: &Changes) -> String {
    let is_changed = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default().trim();
        changes.iter().any(|(changed, _)| *changed == name)
    };
    let mut lines: Vec<String> =
        original.lines().filter(|line| !is_changed(line)).map(str::to_owned).collect();
    lines.extend(changes.iter().map(|(name, value)| format!("{name}={value}")));
    lines.join("\n") + "\n"
}

/// Runs a broker once to record the classes that it loads. Later starts take half the time.
pub fn record_classes(java: &Distribution) -> Result<()> {
    let mut step = Step::start_long("starting Apache Pulsar once, to speed up later starts");
    let dir = java.classes.with_extension("recording");
    let _ = fs::remove_dir_all(&dir);
    let files = Files { dir: dir.clone() };
    let recorded = record(java, &files, &mut step);
    let _ = fs::remove_dir_all(&dir);
    recorded?;
    step.done();
    Ok(())
}

fn record(java: &Distribution, files: &Files, step: &mut Step) -> Result<()> {
    files.create()?;
    let ports =
        Ports { service: ports::one()?, web: ports::one()?, bookie: ports::one()?, ..Ports::default() };
    let settings = Settings { heap_mib: super::SMALL_HEAP_MIB, ports, ..Settings::default() };
    let recording = files.dir.join("classes.jsa");
    let unrecorded = Distribution { classes: PathBuf::from("/nonexistent"), ..java.clone() };
    let (command, _) = command(&unrecorded, files, &settings)?;
    let log = Log::fresh(files.log())?;
    let mut recorder = Command::new(command.get_program());
    recorder
        .arg(format!("-XX:ArchiveClassesAtExit={}", recording.display()))
        .args(
            command.get_args().filter(|word| !word.as_encoded_bytes().starts_with(b"-XX:SharedArchiveFile")),
        )
        .current_dir(&files.dir)
        .stdin(Stdio::null())
        .stdout(log.open()?)
        .stderr(log.open()?);
    let mut child = recorder.spawn().context("cannot run java")?;
    let admin = Admin { port: settings.ports.web, token: None };
    let well = run::poll("Apache Pulsar is ready", START_LIMIT, Duration::from_millis(200), || {
        step.tick();
        if child.try_wait()?.is_some() {
            bail!("Apache Pulsar exited while starting");
        }
        Ok(admin.is_well().then_some(()))
    });
    if let Err(error) = well {
        let _ = child.kill();
        let _ = child.wait();
        bail!("{error}; {}", log.tail(15));
    }
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    run::wait(&mut child, || step.tick())?;
    if recording.is_file() {
        fs::rename(&recording, &java.classes)
    } else {
        // This Java records none. An empty file marks the attempt, and Java ignores it.
        fs::write(&java.classes, "")
    }
    .with_context(|| format!("cannot write {}", java.classes.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_adds_settings() {
        let changes = vec![("b", "3".to_owned()), ("d", "4".to_owned())];
        let changed = configuration("a=1\n# b=0\nb=2\nc=", &changes);
        assert_eq!(changed, "a=1\n# b=0\nc=\nb=3\nd=4\n");
    }

    #[test]
    fn all_listeners_use_loopback() {
        let settings = Settings::default();
        let changes = common(&settings);
        let value = |name: &str| {
            changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(value("bindAddress"), Some("127.0.0.1"));
        assert_eq!(value("listeningInterface"), Some("lo"));
        assert_eq!(value("allowEphemeralPorts"), Some("true"));
    }

    #[test]
    fn advertises_the_address_for_pods_in_a_cluster_network() {
        let settings = Settings { in_cluster: true, ..Settings::default() };
        let changes = common(&settings);
        assert!(changes.contains(&("advertisedAddress", "10.88.0.1".to_owned())));
        assert!(changes.contains(&("bindAddress", "0.0.0.0".to_owned())));
    }

    #[test]
    fn only_small_brokers_have_flags_for_a_fast_start() {
        let has = |heap: u32| java_flags(heap).iter().any(|flag| flag.contains("TieredStopAtLevel"));
        assert!(has(crate::pulsar::SMALL_HEAP_MIB));
        assert!(!has(1024));
    }
}
