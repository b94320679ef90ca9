//! The compared managers: their processes, rights, Leases and kubeconfigs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use kube::core::WatchEvent;
use quintet_localcluster::audit::Author;
use quintet_localcluster::cluster::ports;
use quintet_localcluster::go::Program;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::peer::{self, GLANCE, LIMIT, Running, rule};
use crate::rig::Rig;

/// The peers' ServiceAccount, and the Lease of the controller-runtime manager.
const TWIN: &str = "twin";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The release program with its five kinds.
    Quintet,
    /// The controller-runtime manager with controller-runtime's defaults.
    #[strum(to_string = "controller-runtime")]
    Twin,
    /// The controller-runtime manager with the settings of an expert.
    #[strum(to_string = "controller-runtime, tuned")]
    TwinTuned,
    /// A manager for PodSets only, written with kube-runtime's Controller. It has no Lease.
    #[strum(to_string = "kube-runtime")]
    KubeRuntime,
    /// The program of `--beside`: Quintet, built from another commit.
    #[strum(to_string = "other build")]
    OtherBuild,
}

impl Contender {
    /// The contenders of most measures.
    pub const MANAGERS: &'static [Self] = &[Self::Quintet, Self::Twin, Self::TwinTuned];

    /// Quintet and all its peers.
    pub const WITH_PEERS: &'static [Self] = &[Self::Quintet, Self::Twin, Self::TwinTuned, Self::KubeRuntime];

    pub fn author(self) -> Author {
        match self {
            Self::Quintet | Self::OtherBuild => Author::Quintet,
            Self::Twin | Self::TwinTuned => Author::Twin,
            Self::KubeRuntime => Author::KubeRuntime,
        }
    }

    fn account(self) -> &'static str {
        match self {
            Self::Quintet | Self::OtherBuild => "quintet",
            Self::Twin | Self::TwinTuned | Self::KubeRuntime => TWIN,
        }
    }

    /// The path of its Lease in a namespace, if it has one.
    pub fn lease(self, namespace: &str) -> Option<String> {
        let name = match self {
            Self::Quintet | Self::OtherBuild => "quintet-manager",
            Self::Twin | Self::TwinTuned => TWIN,
            Self::KubeRuntime => return None,
        };
        Some(format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"))
    }

    /// Whether it releases its Lease in a graceful exit.
    pub fn releases(self) -> bool {
        self != Self::Twin
    }
}

pub struct Programs {
    pub quintet: PathBuf,
    pub twin: Program,
    pub kube_runtime: PathBuf,
    pub other_build: Option<PathBuf>,
}

impl Programs {
    /// Whether there is a program of this contender.
    pub fn have(&self, contender: Contender) -> bool {
        contender != Contender::OtherBuild || self.other_build.is_some()
    }
}

/// Starts contenders on a cluster.
pub struct Stand<'a> {
    pub rig: &'a Rig,
    programs: &'a Programs,
}

impl<'a> Stand<'a> {
    /// Grants the rights of the peers, and writes the kubeconfigs.
    pub fn new(rig: &'a Rig, programs: &'a Programs) -> Result<Self> {
        allow(rig)?;
        for contender in [Contender::Quintet, Contender::Twin] {
            peer::write_kubeconfig(rig, contender.account(), None)?;
        }
        Ok(Self { rig, programs })
    }

    /// Sets the port of the API server for later processes of this contender; `None` is its real port.
    pub fn lead_through(&self, contender: Contender, port: Option<u16>) -> Result<()> {
        peer::write_kubeconfig(self.rig, contender.account(), port)
    }

    pub fn program(&self, contender: Contender) -> &Path {
        match contender {
            // The rig's copy does not change if the release program is built again.
            Contender::Quintet => self.rig.program(),
            Contender::Twin | Contender::TwinTuned => &self.programs.twin.file,
            Contender::KubeRuntime => &self.programs.kube_runtime,
            // See `Programs::have`.
            Contender::OtherBuild => self.programs.other_build.as_deref().unwrap_or(self.rig.program()),
        }
    }

    /// Grants Quintet the Leases of all namespaces. The controller-runtime manager has them already.
    pub fn allow_every_lease(&self) -> Result<()> {
        let rules = [rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "list", "watch", "create", "update", "patch"],
        )];
        peer::grant(self.rig, NAMESPACE, Contender::Quintet.account(), "bench-leases", &rules)
    }

    /// Starts a contender and does not wait until it is ready. `place` distinguishes its processes.
    pub fn start(&self, contender: Contender, place: &str) -> Result<Running> {
        self.launch(contender, place, NAMESPACE, None)
    }

    /// Starts a contender that renews its Lease every 2 s, as client-go does.
    pub fn start_renewing_alike(&self, contender: Contender, place: &str) -> Result<Running> {
        let renewal = (contender == Contender::Quintet).then_some("--leader-elect-renew-period=2s");
        self.launch(contender, place, NAMESPACE, renewal)
    }

    /// Starts a contender that watches one namespace and has its Lease there.
    pub fn start_in(&self, contender: Contender, place: &str, namespace: &str) -> Result<Running> {
        let (name, watched) = (format!("{namespace}-{place}"), format!("--watch-namespace={namespace}"));
        self.launch(contender, &name, namespace, Some(&watched))
    }

    fn launch(
        &self,
        contender: Contender,
        place: &str,
        namespace: &str,
        more: Option<&str>,
    ) -> Result<Running> {
        let (metrics_port, health_port) = (ports::one()?, ports::one()?);
        let mut command = Command::new(self.program(contender));
        command
            .arg(format!("--kubeconfig={}", peer::kubeconfig(self.rig, contender.account()).display()))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{health_port}"));
        if contender.lease(namespace).is_some() {
            command
                .arg(format!("--metrics-bind-address=127.0.0.1:{metrics_port}"))
                .arg("--leader-elect=true")
                .arg(format!("--leader-election-namespace={namespace}"));
        }
        command.args(more).args((contender == Contender::TwinTuned).then_some("--tuned"));
        let name = format!("{}-{place}", contender.account());
        Running::start(self.rig, &name, command, health_port, metrics_port)
    }

    /// Deletes the Lease of a process that has exited, so that the next one does not wait for it.
    pub fn free(&self, contender: Contender) -> Result<()> {
        contender.lease(NAMESPACE).map_or(Ok(()), |lease| self.rig.delete(&lease))
    }

    /// Follows a contender's Lease in a namespace, if it has one.
    pub fn follow(&self, contender: Contender, namespace: &str) -> Option<Follower> {
        contender.lease(namespace).map(|lease| Follower::start(self.rig, &lease))
    }
}

/// Follows a Lease by a watch.
#[derive(Debug)]
pub struct Follower {
    /// The time of each event and the holder then, empty if there is none.
    seen: Arc<Mutex<Vec<(Timestamp, String)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    fn start(rig: &Rig, lease: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (collection, name) = lease.rsplit_once('/').unwrap_or_default();
        let path = format!("{collection}?watch=1&fieldSelector=metadata.name={name}");
        let (api, into) = (rig.api(), Arc::clone(&seen));
        let task = rig.spawn(async move {
            // When the server ends the watch, it is opened again.
            while let Ok(events) = api.watch(&path).await {
                pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let at = Timestamp::now();
                    let holder = match event {
                        WatchEvent::Added(lease) | WatchEvent::Modified(lease) => holder(&lease),
                        WatchEvent::Deleted(_) => String::new(),
                        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                    };
                    into.lock().unwrap_or_else(PoisonError::into_inner).push((at, holder));
                }
            }
        });
        Self { seen, task }
    }

    fn first(&self, after: Timestamp, is: impl Fn(&str) -> bool) -> Option<Timestamp> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().find(|(at, holder)| *at >= after && is(holder)).map(|(at, _)| *at)
    }

    /// When the Lease was released after a moment.
    pub fn released(&self, after: Timestamp) -> Option<Timestamp> {
        self.first(after, str::is_empty)
    }

    /// When another process than `old` held the Lease after a moment.
    pub fn taken(&self, after: Timestamp, old: &str) -> Option<Timestamp> {
        self.first(after, |holder| !holder.is_empty() && holder != old)
    }

    /// Waits until the Lease has a holder, and returns it.
    pub fn wait_for_holder(&self) -> Result<String> {
        run::poll("the Lease has a holder", LIMIT, GLANCE, || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(seen.last().map(|(_, holder)| holder.clone()).filter(|holder| !holder.is_empty()))
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn holder(lease: &Value) -> String {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

fn allow(rig: &Rig) -> Result<()> {
    let (read, own) = (["get", "list", "watch"], ["get", "list", "watch", "update"]);
    let (daemonjobs, podsets) = ("dj.dysproz.io", "batch.tutorial.kubebuilder.io");
    let rules = [
        rule("", &["pods"], &["get", "list", "watch", "create", "delete"]),
        rule("", &["nodes"], &read),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        rule(daemonjobs, &["daemonjobs", "daemonjobs/finalizers"], &own),
        rule(daemonjobs, &["daemonjobs/status"], &["update"]),
        rule(podsets, &["podsets", "podsets/finalizers"], &own),
        rule(podsets, &["podsets/status"], &["update"]),
    ];
    peer::allow(rig, NAMESPACE, TWIN, &rules)
}
