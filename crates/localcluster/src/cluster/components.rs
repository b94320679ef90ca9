//! The processes of a control plane: their arguments and their health checks.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::state::{self, Dir, Settings};
use super::{pki, real};
use crate::kube::Kube;
use crate::{http, paths, run};

/// A component of the control plane. The order is the order of start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    Apiserver,
    /// The controllers of Deployments, garbage collection, service accounts and so on.
    ControllerManager,
    /// Binds pods to nodes.
    Scheduler,
    /// Plays nodes and kubelets.
    Kwok,
}

impl Component {
    /// The components of a cluster with simulated nodes, in the order of start.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::Apiserver, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// The components of a cluster with real nodes, in the order of start.
    pub const REAL: [Self; 4] = [Self::Etcd, Self::Apiserver, Self::ControllerManager, Self::Scheduler];

    pub(super) fn of(settings: &Settings) -> &'static [Self] {
        if settings.real { &Self::REAL } else { &Self::ALL }
    }

    /// The name of its program, record and log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    /// The port that the component serves on.
    pub fn port(self, settings: &Settings) -> u16 {
        match self {
            Self::Etcd => settings.ports.etcd,
            Self::Apiserver => settings.ports.apiserver,
            Self::ControllerManager => settings.ports.controller_manager,
            Self::Scheduler => settings.ports.scheduler,
            Self::Kwok => settings.ports.kwok,
        }
    }

    /// Whether the component's health endpoint answers 200.
    pub fn is_well(self, kube: &Kube, settings: &Settings) -> Result<bool> {
        let port = self.port(settings);
        let well = |path: &str| http::get(port, path).is_some_and(|(status, _)| status == 200);
        Ok(match self {
            Self::Etcd => well("/health"),
            Self::Kwok => well("/readyz"),
            // These speak TLS, so kubectl sends the request.
            Self::Apiserver => raw(kube, port, "/readyz")?,
            Self::ControllerManager | Self::Scheduler => raw(kube, port, "/healthz")?,
        })
    }

    fn args(self, dir: &Dir, settings: &Settings) -> Vec<String> {
        let ports = settings.ports;
        let pki = |file: &str| dir.pki().join(file).display().to_string();
        let kubeconfig = dir.kubeconfig(self.name()).display().to_string();
        let serving = || {
            vec![
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={}", self.port(settings)),
                format!("--tls-cert-file={}", pki("serving.crt")),
                format!("--tls-private-key-file={}", pki("serving.key")),
            ]
        };
        // The default limits are for clients that share an API server with others.
        let client = || {
            vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--leader-elect=false".to_owned(),
                "--kube-api-qps=1000".to_owned(),
                "--kube-api-burst=2000".to_owned(),
            ]
        };
        match self {
            Self::Etcd => vec![
                "--name=default".to_owned(),
                format!("--data-dir={}", dir.data().display()),
                format!("--listen-client-urls=http://127.0.0.1:{}", ports.etcd),
                format!("--advertise-client-urls=http://127.0.0.1:{}", ports.etcd),
                format!("--listen-peer-urls=http://127.0.0.1:{}", ports.etcd_peer),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", ports.etcd_peer),
                format!("--initial-cluster=default=http://127.0.0.1:{}", ports.etcd_peer),
                // A cluster that a machine's crash destroys can be created again.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
            Self::Apiserver => [
                serving(),
                vec![
                    format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
                    // Without a default route no address is detected, and no other server needs one.
                    "--advertise-address=127.0.0.1".to_owned(),
                    "--endpoint-reconciler-type=none".to_owned(),
                    "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                    "--authorization-mode=Node,RBAC".to_owned(),
                    "--allow-privileged=true".to_owned(),
                    format!("--client-ca-file={}", pki("ca.crt")),
                    // For extension API servers. No kube-proxy routes the address of their Service.
                    format!("--requestheader-client-ca-file={}", pki("ca.crt")),
                    format!("--requestheader-allowed-names={}", pki::FRONT_PROXY),
                    "--requestheader-username-headers=X-Remote-User".to_owned(),
                    "--requestheader-group-headers=X-Remote-Group".to_owned(),
                    "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
                    format!("--proxy-client-cert-file={}", pki(&format!("{}.crt", pki::FRONT_PROXY))),
                    format!("--proxy-client-key-file={}", pki(&format!("{}.key", pki::FRONT_PROXY))),
                    "--enable-aggregator-routing".to_owned(),
                    "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                    format!("--service-account-key-file={}", pki("service-accounts.pub")),
                    format!("--service-account-signing-key-file={}", pki("service-accounts.key")),
                    format!("--audit-policy-file={}", audit_policy(dir).display()),
                    format!("--audit-log-path={}", dir.logs().join("audit.log").display()),
                    "--audit-log-maxsize=100".to_owned(),
                    "--audit-log-maxbackup=1".to_owned(),
                ],
            ]
            .concat(),
            Self::ControllerManager => [
                serving(),
                client(),
                vec![
                    "--use-service-account-credentials".to_owned(),
                    format!("--service-account-private-key-file={}", pki("service-accounts.key")),
                    format!("--root-ca-file={}", pki("ca.crt")),
                    // Simulated nodes report rarely, and a busy machine must not make them NotReady.
                    "--node-monitor-grace-period=24h".to_owned(),
                ],
            ]
            .concat(),
            Self::Scheduler => [serving(), client()].concat(),
            Self::Kwok => vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--config={}", kwok_config(dir).display()),
                format!("--server-address=127.0.0.1:{}", ports.kwok),
            ],
        }
    }

    /// The command that starts the component, with `more` arguments at the end, and a fingerprint of
    /// everything that it is started with. If a flag is given twice, the last one wins.
    pub fn command(self, dir: &Dir, settings: &Settings, more: &[&str]) -> Result<(Command, String)> {
        // The link's target changes with the version.
        let program = fs::canonicalize(dir.bin().join(self.name()))
            .with_context(|| format!("{} is missing", self.name()))?;
        let mut args = self.args(dir, settings);
        if settings.real {
            args.extend(real::arguments(self, dir));
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let mut digest = Sha256::new();
        let mut add = |bytes: &[u8]| {
            digest.update(bytes);
            digest.update([0]);
        };
        add(program.to_string_lossy().as_bytes());
        for arg in &args {
            add(arg.as_bytes());
        }
        add(serde_json::to_string(&settings.ports)?.as_bytes());
        let read_at_start = match self {
            Self::Apiserver => Some(audit_policy(dir)),
            Self::Kwok => Some(kwok_config(dir)),
            _ => None,
        };
        if let Some(file) = read_at_start {
            add(&fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        }
        add(&fs::read(dir.pki().join("ca.crt")).context("the certificates are gone")?);
        let mut command = Command::new(&program);
        if settings.real {
            let keeper = real::network::keeper(dir)?.context("the cluster's network is gone")?;
            add(format!("{} {}", keeper.pid, keeper.started).as_bytes());
            command = real::network::within(&keeper, &program);
        }
        let fingerprint = run::short_hex(&digest.finalize());
        command.args(args).current_dir(dir.path());
        Ok((command, fingerprint))
    }
}

fn raw(kube: &Kube, port: u16, path: &str) -> Result<bool> {
    let server = format!("--server=https://127.0.0.1:{port}");
    let output =
        run::output(kube.kubectl().args([&server, "--request-timeout=5s", "get", "--raw", path]), None)?;
    Ok(output.status.success())
}

fn audit_policy(dir: &Dir) -> PathBuf {
    dir.path().join("audit-policy.yaml")
}

fn kwok_config(dir: &Dir) -> PathBuf {
    dir.path().join("kwok.yaml")
}

/// Writes the files that the components read: kubeconfigs, the audit policy, and kwok's settings and stages
/// in one file. Files of the checkout are copied, because the cluster may outlive the checkout.
pub fn configure(dir: &Dir, settings: &Settings) -> Result<()> {
    let clients = pki::clients().map(|name| (name.to_owned(), Ipv4Addr::LOCALHOST));
    let nodes = pki::nodes().map(|(name, _)| (name, real::CONTROL_PLANE));
    for (client, server) in clients.chain(nodes) {
        // On a node, loopback does not lead to the API server.
        let server = if client == "kube-proxy" { real::CONTROL_PLANE } else { server };
        let file = |name: String| dir.pki().join(name).display().to_string();
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "quintet", "cluster": {
                "server": format!("https://{server}:{}", settings.ports.apiserver),
                "certificate-authority": file("ca.crt".to_owned()),
            }}],
            "users": [{"name": client, "user": {
                "client-certificate": file(format!("{client}.crt")),
                "client-key": file(format!("{client}.key")),
            }}],
            "contexts": [{"name": "quintet", "context": {"cluster": "quintet", "user": client}}],
            "current-context": "quintet",
        });
        // YAML includes JSON.
        state::write(&dir.kubeconfig(&client), format!("{config:#}\n").as_bytes())?;
    }
    let source = paths::controlplane();
    let read =
        |file: &Path| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    state::write(&audit_policy(dir), read(&source.join("audit-policy.yaml"))?.as_bytes())?;
    let stages = source.join("stages");
    let mut files: Vec<PathBuf> = fs::read_dir(&stages)
        .with_context(|| format!("cannot read {}", stages.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files.insert(0, source.join("kwok.yaml"));
    let documents = files.iter().map(|file| read(file)).collect::<Result<Vec<String>>>()?;
    state::write(&kwok_config(dir), documents.join("---\n").as_bytes())
}
