//! Being the one who writes: the managers are stopped, and their Lease is held as any candidate holds it. Managers that do not
//! elect a leader know no Lease: it is waited until they have ended.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use quintet_runtime::LEASE_NAME;
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::election::{self, Settings};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::resource::{DEPLOYMENTS, LEASES, PODS};
use quintet_runtime::server::client::{self, brief};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::{Gate, Seen};
use quintet_runtime::server::metrics::Metrics;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::tell;
use crate::cluster::{Cluster, ClusterArgs, answered, is_absent, parse_name};
use crate::kubeconfig;

/// How long a manager that is told to end may take until it has released its Lease, or this process until it has noticed.
const PATIENCE: Duration = Duration::from_secs(45);

/// The longest Lease of a manager that was killed that is waited for, and the longest wait for pods that do not elect: the
/// chart's Job has 240 s for everything.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// The manager's container, in the chart and in `config`.
const CONTAINER: &str = "manager";

/// How the variables begin that say by which Lease a manager elects.
const ELECTION_VARIABLES: &str = "QUINTET_LEADER_ELECT";

/// The pause between two looks at those pods.
const PAUSE: Duration = Duration::from_secs(1);

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
    /// Stops the manager, waits for those of its pods that know no Lease, and takes the Lease.
    pub async fn become_the_one(
        cluster: &Cluster,
        reached_by: &ClusterArgs,
        manager: &Manager,
        lease: Lease,
    ) -> Result<Self> {
        let Manager { namespace: home, deployment } = manager;
        match cluster.scale_to_zero(home, deployment).await {
            Ok(selector) => {
                tell(&format!("Deployment {home}/{deployment} is scaled to 0."));
                wait_for_others(cluster, manager, &selector, &lease).await?;
            }
            Err(error) if is_absent(&error) => tell(&format!(
                "There is no Deployment {home}/{deployment}: a manager that does not elect a leader is not waited for."
            )),
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
        let settings =
            Settings { name: name.clone(), ..Settings::new(namespace.clone(), kubeconfig::identity()) };
        let (metrics, link) = (Metrics::new()?, Link::default());
        let candidate = Candidate {
            client: client::build(kubeconfig::configure(reached_by).await?, &metrics, settings.retry, &link)?,
            settings,
            gate: gate.clone(),
            link,
            clock: Clock::System,
            metrics,
        };
        let mut election = tokio::spawn(candidate.run(Seen::new, stopped));
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
                Ok(Ok(())) => anyhow!("the election ended unexpectedly"),
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

/// Waits until no pod of the Deployment may write that the Lease does not keep from it, for two minutes at most.
///
/// A pod that elects a leader by this Lease, as its arguments say, is not waited for: it writes nothing while somebody else
/// holds the Lease, also on a node that is lost. Any other may write until it has ended, also while it is being deleted; so
/// may one that is about to be made.
async fn wait_for_others(cluster: &Cluster, manager: &Manager, pods: &str, lease: &Lease) -> Result<()> {
    let start = Instant::now();
    let mut told = String::new();
    while let Some((what, help)) = others(cluster, manager, pods, lease).await? {
        if start.elapsed() >= LONGEST_WAIT {
            bail!("waited {} s for {what}: {help}", LONGEST_WAIT.as_secs());
        }
        if told != what {
            tell(&format!("Waiting for {what}."));
            told = what;
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// What is waited for, and what helps where it does not come; nothing where no pod may write without the Lease.
async fn others(
    cluster: &Cluster,
    manager: &Manager,
    selector: &str,
    lease: &Lease,
) -> Result<Option<(String, String)>> {
    let Manager { namespace: home, deployment } = manager;
    let place = format!("Deployment {home}/{deployment}");
    let unanswered =
        |why: String| Ok(Some((format!("an answer: {why}"), "run this again when there is one".to_owned())));
    let read = cluster.get::<Value>(&DEPLOYMENTS, home, deployment).await;
    let now = match answered(cluster, &format!("{place} cannot be read"), read)? {
        Ok(now) => now.unwrap_or_default(),
        Err(why) => return unanswered(why),
    };
    if !elects(&now["spec"]["template"]["spec"], home, lease) && !has_scaled(&now) {
        let what = format!("{place} to have no pods, as they may write without {lease}");
        let help = "see that its controller works and that nothing scales it up, and run this again";
        return Ok(Some((what, help.to_owned())));
    }

    let listed = cluster.list::<Value>(&PODS, home, selector).await;
    let pods = match answered(cluster, &format!("the pods of {place} cannot be listed"), listed)? {
        Ok(pods) => pods,
        Err(why) => return unanswered(why),
    };
    let writing = pods.iter().filter(|pod| may_write(pod, home, lease));
    let names: Vec<&str> = writing.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let what = format!("{} of {place} to end, as it may write without {lease}", names.join(", "));
    let help = format!(
        "run this again when it has ended; where its node is lost for good, first\n  kubectl delete pod -n {home} {} --force",
        names.join(" ")
    );
    Ok(Some((what, help)))
}

/// Whether a pod may write though somebody else holds the Lease. One that is being deleted may, until it has ended.
fn may_write(pod: &Value, home: &str, lease: &Lease) -> bool {
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !has_ended && !elects(&pod["spec"], home, lease)
}

/// Whether the Deployment's controller has seen that no pod is wanted, and has none left but those that go.
fn has_scaled(deployment: &Value) -> bool {
    let status = &deployment["status"];
    status["observedGeneration"].as_i64() >= deployment["metadata"]["generation"].as_i64()
        && status["replicas"].as_i64().unwrap_or_default() == 0
}

/// Whether a pod of this spec elects a leader by this Lease, by the arguments of its manager. Where its environment has a word in
/// that, which is not known, it does not.
fn elects(spec: &Value, home: &str, lease: &Lease) -> bool {
    let containers = spec["containers"].as_array().into_iter().flatten();
    containers.filter(|container| container["name"] == CONTAINER).any(|container| {
        let names = container["env"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
        if container["envFrom"].is_array()
            || names.into_iter().any(|name| name.starts_with(ELECTION_VARIABLES))
        {
            return false;
        }
        let args = container["args"].as_array().into_iter().flatten();
        let args: Vec<&str> = args.filter_map(Value::as_str).collect();
        let namespace = said(&args, &["--leader-election-namespace"]);
        let namespace = namespace.filter(|name| !matches!(*name, "" | "$(POD_NAMESPACE)"));
        said(&args, &["--leader-elect", "--enable-leader-election"]) == Some("true")
            && said(&args, &["--leader-election-id"]).unwrap_or(LEASE_NAME) == lease.name
            && namespace.unwrap_or(home) == lease.namespace
    })
}

/// The value of the flag of these names among arguments: the last one wins, as it does for the manager.
fn said<'a>(args: &[&'a str], names: &[&str]) -> Option<&'a str> {
    args.iter().rev().find_map(|arg| {
        names.iter().find_map(|name| match arg.strip_prefix(name)? {
            "" => Some("true"),
            rest => rest.strip_prefix('='),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ours() -> Lease {
        Lease { namespace: "ns".to_owned(), name: "ours".to_owned() }
    }

    fn pod(phase: &str, args: &[&str]) -> Value {
        json!({ "spec": { "containers": [{ "name": "sidecar" }, { "name": "manager", "args": args }] }, "status": { "phase": phase } })
    }

    #[test]
    fn a_pod_that_elects_by_the_lease_is_not_waited_for() {
        for args in [
            &["--leader-elect", "--leader-election-id=ours", "--leader-election-namespace=ns"][..],
            &["--leader-elect", "--leader-election-id=ours", "--leader-election-namespace=$(POD_NAMESPACE)"],
            &["--leader-election-id=ours", "--enable-leader-election", "--leader-elect-lease-duration=30s"],
            &["--leader-elect=false", "--leader-elect=true", "--leader-election-id=ours"],
        ] {
            assert!(!may_write(&pod("Running", args), "ns", &ours()), "{args:?}");
        }
        let usual = Lease { name: LEASE_NAME.to_owned(), ..ours() };
        assert!(!may_write(&pod("Running", &["--leader-elect"]), "ns", &usual));
    }

    #[test]
    fn any_other_pod_may_write_until_it_has_ended() {
        for args in [
            &["--leader-elect"][..],
            &[],
            &["--leader-elect-lease-duration=30s", "--leader-election-id=ours"],
            &["--leader-elect", "--leader-election-id=ours", "--leader-elect=false"],
            &["--leader-elect", "--leader-election-id", "ours"],
            &["--leader-elect", "--leader-election-id=ours", "--leader-election-namespace=leases"],
        ] {
            for phase in ["Pending", "Running", "Unknown"] {
                assert!(may_write(&pod(phase, args), "ns", &ours()), "{phase} {args:?}");
            }
            for phase in ["Succeeded", "Failed"] {
                assert!(!may_write(&pod(phase, args), "ns", &ours()), "{phase} {args:?}");
            }
        }
    }

    #[test]
    fn a_deployment_has_scaled_when_its_controller_has_seen_it() {
        let deployment = |observed: i64, replicas: i64| {
            json!({ "metadata": { "generation": 2 },
                "status": { "observedGeneration": observed, "replicas": replicas } })
        };
        assert!(has_scaled(&deployment(2, 0)));
        assert!(!has_scaled(&deployment(1, 0)) && !has_scaled(&deployment(2, 1)));
        assert!(!has_scaled(&json!({ "metadata": { "generation": 1 } })), "it was just made");
        assert!(has_scaled(&Value::Null), "there is none any more");
    }

    #[test]
    fn a_lease_that_lasts_longer_is_waited_for() {
        let lasting = |seconds: u64| Some(json!({"spec": {"leaseDurationSeconds": seconds}}));
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
