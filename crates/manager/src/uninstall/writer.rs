//! Being the one who writes: the managers are stopped, and their Lease is held as any candidate holds it.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use quintet_kit::client::{self, brief};
use quintet_kit::clock::Clock;
use quintet_kit::election::{self, Candidate, LEASE_NAME, Settings};
use quintet_kit::gate::{Gate, Seen};
use quintet_kit::link::Link;
use quintet_kit::metrics::Metrics;
use quintet_kit::resource::LEASES;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::tell;
use crate::cluster::{Cluster, ClusterArgs, is_absent, parse_name};
use crate::run;

/// How long a manager that is told to end may take until it has released its Lease, or this process until it has noticed.
const PATIENCE: Duration = Duration::from_secs(45);

/// The longest Lease of a manager that was killed that is waited for: the chart's Job has 240 s for everything.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// For how long a Lease lasts whose holder is silent.
fn lasts(lease: &Value) -> Option<Duration> {
    lease["spec"]["leaseDurationSeconds"].as_u64().map(Duration::from_secs)
}

/// How long it may take until a Lease is held: that of a manager that was killed lasts as long as it says.
fn patience(lease: Option<&Value>) -> Duration {
    let lasts = lease.and_then(lasts).filter(|lasts| *lasts <= LONGEST_WAIT);
    PATIENCE + lasts.unwrap_or_default().max(Duration::from_secs(15))
}

/// A manager's Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    namespace: String,
    deployment: String,
}

impl Manager {
    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn deployment(&self) -> &str {
        &self.deployment
    }
}

/// For clap: `NAMESPACE/DEPLOYMENT`.
pub fn parse_manager(text: &str) -> Result<Manager, String> {
    let (namespace, deployment) =
        text.split_once('/').ok_or("write it as NAMESPACE/DEPLOYMENT, such as quintet-system/quintet")?;
    Ok(Manager { namespace: parse_name(namespace)?, deployment: parse_name(deployment)? })
}

/// Flags that say which Lease is a manager's; beside a flag `--manager`.
#[derive(Debug, clap::Args)]
pub struct LeaseArgs {
    /// Namespace of the manager's Lease. Default: the manager's.
    #[arg(id = "lease-namespace", long, value_name = "NAMESPACE", value_parser = parse_name, requires = "manager")]
    namespace: Option<String>,

    /// Name of the manager's Lease.
    #[arg(id = "lease-name", long, value_name = "NAME", value_parser = parse_name, default_value = LEASE_NAME)]
    name: String,
}

impl LeaseArgs {
    /// The Lease of this manager.
    pub fn of(&self, manager: &Manager) -> Lease {
        let namespace = self.namespace.as_deref().unwrap_or(&manager.namespace).to_owned();
        Lease { namespace, name: self.name.clone() }
    }
}

/// A manager's Lease.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Lease {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Lease {}/{}", self.namespace, self.name)
    }
}

/// That this process writes, and no manager does.
pub struct Writer {
    gate: Gate,
    stop: watch::Sender<bool>,
    election: JoinHandle<Result<(), election::Error>>,
    lease: Lease,
}

impl Writer {
    /// Stops the manager and takes its Lease.
    pub async fn become_the_one(
        cluster: &Cluster,
        reached_by: &ClusterArgs,
        manager: &Manager,
        lease: Lease,
    ) -> Result<Self> {
        let Manager { namespace: home, deployment } = manager;
        match cluster.scale_to_zero(home, deployment).await {
            Ok(()) => tell(&format!("Deployment {home}/{deployment} is scaled to 0.")),
            Err(error) if is_absent(&error) => tell(&format!("There is no Deployment {home}/{deployment}.")),
            Err(error) => {
                let sorry =
                    cluster.sorry(&format!("Deployment {home}/{deployment} cannot be scaled"), &error);
                bail!(
                    "{sorry}\nBy hand, by somebody who may:\n  kubectl scale deployment -n {home} {deployment} --replicas=0"
                );
            }
        }
        // Where it cannot be read, the election says why.
        let before = cluster.get::<Value>(&LEASES, &lease.namespace, &lease.name).await.ok().flatten();
        let gate = Gate::closed();
        let (stop, stopped) = watch::channel(false);
        let Lease { namespace, name } = &lease;
        let settings = Settings { name: name.clone(), ..Settings::new(namespace.clone(), run::identity()) };
        let (metrics, link) = (Metrics::new()?, Link::default());
        let candidate = Candidate {
            client: client::build(run::configure(reached_by).await?, &metrics, settings.retry, &link)?,
            settings,
            gate: gate.clone(),
            link,
            clock: Clock::System,
            metrics,
        };
        let mut election = tokio::spawn(election::run(candidate, Seen::new, stopped));
        let mut opened = gate.watch();
        tokio::select! {
            held = tokio::time::timeout(patience(before.as_ref()), opened.wait_for(Option::is_some)) => if held.is_err() {
                let now = match cluster.get::<Value>(&LEASES, namespace, name).await {
                    Ok(now) => now.unwrap_or_default(),
                    Err(error) => bail!("{}", cluster.sorry("the managers' Lease cannot be taken", &error)),
                };
                bail!(
                    "{lease} is held by {}: a manager still runs that is not of Deployment {home}/{deployment}, or was killed \
                     and holds it for {} s; stop it, or wait, and run this again",
                    now["spec"]["holderIdentity"].as_str().unwrap_or("nobody, and cannot be taken"),
                    lasts(&now).unwrap_or_default().as_secs()
                );
            },
            ended = &mut election => return Err(match ended {
                Ok(Ok(())) => anyhow!("the election has ended, which it must not"),
                Ok(Err(error)) => error.into(),
                Err(error) => anyhow!("the election has failed: {error}"),
            }),
        }
        tell(&format!("{lease} is held: no manager writes."));
        Ok(Self { gate, stop, election, lease })
    }

    /// Whether it is still so.
    pub fn may_write(&self) -> bool {
        self.gate.term().is_some()
    }

    /// Gives the Lease back and deletes it, unless somebody has taken it meanwhile.
    pub async fn end(self, cluster: &Cluster) {
        let _ = self.stop.send(true);
        let _ = self.election.await;
        let place = self.lease;
        let lease = match cluster.get::<Value>(&LEASES, &place.namespace, &place.name).await {
            Ok(Some(lease)) => lease,
            Ok(None) => return,
            Err(error) => return tell(&format!("{place} stays: {}.", brief(&error))),
        };
        if lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()) {
            return tell(&format!("{place} stays: {} holds it now.", lease["spec"]["holderIdentity"]));
        }
        match cluster.delete(&LEASES, &lease["metadata"]).await {
            Ok(()) => tell(&format!("{place} is deleted.")),
            Err(error) => tell(&format!("{place} stays: {}.", brief(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_lasts_longer_is_waited_for() {
        let lasting = |seconds: u64| Some(serde_json::json!({"spec": {"leaseDurationSeconds": seconds}}));
        for (lease, waits) in [(None, 60), (lasting(15), 60), (lasting(120), 165), (lasting(121), 60)] {
            assert_eq!(patience(lease.as_ref()).as_secs(), waits, "{lease:?}");
        }
    }

    #[test]
    fn a_manager_is_named_with_its_namespace() {
        let manager = parse_manager("quintet-system/quintet").unwrap();
        assert_eq!((manager.namespace(), &*manager.deployment), ("quintet-system", "quintet"));
        assert!(parse_manager("quintet").unwrap_err().contains("NAMESPACE/DEPLOYMENT"));
        for bad in ["/quintet", "a/", "a/b/c", "A/b"] {
            assert!(parse_manager(bad).is_err(), "{bad}");
        }
    }
}
