//! Makes this process the only writer: it stops the managers and holds their Lease like a candidate. Managers without leader
//! election ignore the Lease, so that it waits until they have exited.

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

use super::{MANUALLY, tell};
use crate::api_client::{Cluster, ClusterArgs, answered, is_absent, parse_name};
use crate::kubeconfig;

/// How long a stopping manager may take to release its Lease, plus the time until this process notices.
const PATIENCE: Duration = Duration::from_secs(45);

/// The longest wait for the Lease of a killed manager, and for pods without leader election. The chart's Job has 240 s in
/// total.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// The manager's container, in the chart and in `config`.
pub const CONTAINER: &str = "manager";

/// The prefix of the environment variables for leader election.
const ELECTION_VARIABLES: &str = "QUINTET_LEADER_ELECT";

/// Pause between two reads of the pods.
const PAUSE: Duration = Duration::from_secs(1);

/// The lease duration.
pub fn lasts(lease: &Value) -> Option<Duration> {
    lease["spec"]["leaseDurationSeconds"].as_u64().map(Duration::from_secs)
}

/// How long to wait for the Lease: the Lease of a killed manager must expire first.
fn patience(lease: Option<&Value>) -> Duration {
    let lasts = lease.and_then(lasts).filter(|lasts| *lasts <= LONGEST_WAIT);
    PATIENCE + lasts.unwrap_or_default().max(Duration::from_secs(15))
}

/// A manager's Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub deployment: String,
}

/// For clap: `NAMESPACE/DEPLOYMENT`.
pub fn parse_manager(text: &str) -> Result<Manager, String> {
    let (namespace, deployment) =
        text.split_once('/').ok_or("must be NAMESPACE/DEPLOYMENT, such as quintet-system/quintet")?;
    Ok(Manager { namespace: parse_name(namespace)?, deployment: parse_name(deployment)? })
}

/// The flags that name the manager's Lease. They need a flag `--manager`.
#[derive(Debug, Default, clap::Args)]
pub struct LeaseArgs {
    /// Namespace of the manager's Lease (default: the manager's namespace).
    #[arg(id = "lease-namespace", long, value_name = "NAMESPACE", value_parser = parse_name, requires = "manager")]
    namespace: Option<String>,

    /// Name of the manager's Lease (default: quintet-manager).
    #[arg(id = "lease-name", long, value_name = "NAME", value_parser = parse_name, requires = "manager")]
    name: Option<String>,
}

impl LeaseArgs {
    /// The Lease of a manager.
    pub fn of(&self, manager: &Manager) -> Lease {
        self.or(Lease { namespace: manager.namespace.clone(), name: LEASE_NAME.to_owned() })
    }

    /// The Lease of the flags. `other` has the parts that they do not name.
    pub fn or(&self, other: Lease) -> Lease {
        Lease {
            namespace: self.namespace.clone().unwrap_or(other.namespace),
            name: self.name.clone().unwrap_or(other.name),
        }
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

/// Proof that this process writes and no manager does.
pub struct Writer {
    gate: Gate,
    stop: watch::Sender<bool>,
    election: JoinHandle<Result<(), election::Error>>,
    lease: Lease,
}

impl Writer {
    /// Stops the manager, waits for its pods that do not use the Lease, and acquires the Lease.
    pub async fn acquire_exclusive(
        cluster: &Cluster,
        reached_by: &ClusterArgs,
        manager: &Manager,
        lease: Lease,
    ) -> Result<Self> {
        let Manager { namespace: home, deployment } = manager;
        match cluster.scale_to_zero(home, deployment).await {
            Ok(selector) => {
                tell(&format!("Scaled Deployment {home}/{deployment} to 0."));
                wait_for_others(cluster, manager, &selector, &lease).await?;
            }
            Err(error) if is_absent(&error) => tell(&format!(
                "Deployment {home}/{deployment} does not exist. Not waiting for managers without leader election."
            )),
            Err(error) => {
                let sorry = cluster.sorry(&format!("cannot scale Deployment {home}/{deployment}"), &error);
                bail!("{sorry}\n{MANUALLY}\n  kubectl scale deployment -n {home} {deployment} --replicas=0");
            }
        }
        // If this read fails, the election reports the error.
        let before = cluster.reads.read::<Value>(&LEASES, &lease.namespace, &lease.name).await.ok().flatten();
        let gate = Gate::closed();
        let (stop, stopped) = watch::channel(false);
        let Lease { namespace, name } = &lease;
        let settings =
            Settings { name: name.clone(), ..Settings::new(namespace.clone(), kubeconfig::identity()) };
        let (config, link) = (kubeconfig::configure(reached_by).await?, Link::default());
        let client = client::build(config, &Metrics::new()?, settings.retry, &link)?;
        let candidate = Candidate::new(client, settings, gate.clone(), link, Clock::System);
        let mut election = tokio::spawn(candidate.run(Seen::new, Vec::new, stopped));
        let mut opened = gate.watch();
        tokio::select! {
            held = tokio::time::timeout(patience(before.as_ref()), opened.wait_for(Option::is_some)) => if held.is_err() {
                let now = match cluster.reads.read::<Value>(&LEASES, namespace, name).await {
                    Ok(now) => now.unwrap_or_default(),
                    Err(error) => bail!("{}", cluster.sorry("cannot acquire the managers' Lease", &error)),
                };
                bail!(
                    "cannot acquire {lease}: its holder is {:?}. This is a running manager outside Deployment \
                     {home}/{deployment}, or a killed manager whose Lease lasts {} s. Stop the manager, or wait, and run this \
                     command again",
                    now["spec"]["holderIdentity"].as_str().unwrap_or_default(),
                    lasts(&now).unwrap_or_default().as_secs()
                );
            },
            ended = &mut election => return Err(match ended {
                Ok(Ok(())) => anyhow!("the election exited unexpectedly"),
                Ok(Err(error)) => error.into(),
                Err(error) => anyhow!("the election panicked: {error}"),
            }),
        }
        tell(&format!("Acquired {lease}. No manager writes now."));
        Ok(Self { gate, stop, election, lease })
    }

    /// Runs `work` while this process holds the Lease. Returns None if it does not, or if it loses the Lease first.
    pub async fn while_held<F: Future>(&self, work: F) -> Option<F::Output> {
        self.gate.while_held(self.gate.term()?.since, work).await
    }

    /// Releases the Lease and deletes it, unless another process has acquired it.
    pub async fn end(self, cluster: &Cluster) {
        let _ = self.stop.send(true);
        let _ = self.election.await;
        let place = self.lease;
        let lease = match cluster.reads.read::<Value>(&LEASES, &place.namespace, &place.name).await {
            Ok(Some(lease)) => lease,
            Ok(None) => return,
            Err(error) => return tell(&format!("Cannot delete {place}: {}.", brief(&error))),
        };
        if lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()) {
            return tell(&format!("Not deleting {place}: {} holds it now.", lease["spec"]["holderIdentity"]));
        }
        match cluster.delete(&LEASES, &lease["metadata"]).await {
            Ok(()) => tell(&format!("Deleted {place}.")),
            Err(error) => tell(&format!("Cannot delete {place}: {}.", brief(&error))),
        }
    }
}

/// Waits up to [`LONGEST_WAIT`] until no pod of the Deployment can write without the Lease.
///
/// A pod whose arguments name this Lease writes nothing while another process holds it, even on a lost node. Any other pod
/// can write until it has exited, even while it is being deleted. So can a pod that the Deployment is about to create.
async fn wait_for_others(cluster: &Cluster, manager: &Manager, pods: &str, lease: &Lease) -> Result<()> {
    let start = Instant::now();
    let mut printed = String::new();
    while let Some((what, help)) = others(cluster, manager, pods, lease).await? {
        if start.elapsed() >= LONGEST_WAIT {
            bail!("timed out after {} s waiting for {what}: {help}", LONGEST_WAIT.as_secs());
        }
        if printed != what {
            tell(&format!("Waiting for {what}."));
            printed = what;
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns the obstacle to wait for, and the remedy on a timeout; None if no pod can write without the Lease.
async fn others(
    cluster: &Cluster,
    manager: &Manager,
    selector: &str,
    lease: &Lease,
) -> Result<Option<(String, String)>> {
    let Manager { namespace: home, deployment } = manager;
    let place = format!("Deployment {home}/{deployment}");
    let unanswered = |why: String| {
        Ok(Some((format!("the API server: {why}"), "run this command again when it answers".to_owned())))
    };
    let read = cluster.reads.read::<Value>(&DEPLOYMENTS, home, deployment).await;
    let now = match answered(cluster, &format!("cannot read {place}"), read)? {
        Ok(now) => now.unwrap_or_default(),
        Err(why) => return unanswered(why),
    };
    if !elects(&now["spec"]["template"]["spec"], home, lease) && !has_scaled(&now) {
        let what = format!("{place} to have no pods, because they can write without {lease}");
        let help = "check that the Deployment controller runs and that no client scales it up, and run this command again";
        return Ok(Some((what, help.to_owned())));
    }

    let listed = cluster.reads.list::<Value>(&PODS, home, selector).await;
    let pods = match answered(cluster, &format!("cannot list the pods of {place}"), listed)? {
        Ok(pods) => pods,
        Err(why) => return unanswered(why),
    };
    let writing = pods.iter().filter(|pod| may_write(pod, home, lease));
    let names: Vec<&str> = writing.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let what = format!("{} of {place} to exit, because it can write without {lease}", names.join(", "));
    let help = format!(
        "run this command again when it has exited; if its node is lost permanently, first run\n  kubectl delete pod -n {home} {} --force",
        names.join(" ")
    );
    Ok(Some((what, help)))
}

/// Whether a pod can write while another process holds the Lease. A terminating pod can, until it has exited.
fn may_write(pod: &Value, home: &str, lease: &Lease) -> bool {
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !has_ended && !elects(&pod["spec"], home, lease)
}

/// Whether the Deployment controller has observed the scale to 0. Terminating pods may remain.
fn has_scaled(deployment: &Value) -> bool {
    let status = &deployment["status"];
    status["observedGeneration"].as_i64() >= deployment["metadata"]["generation"].as_i64()
        && status["replicas"].as_i64().unwrap_or_default() == 0
}

/// Whether the manager's arguments in this pod spec elect a leader with this Lease. False if its environment could override
/// them, because the values are unknown.
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

/// The value of a flag, which may have several names. The last one wins, as it does for the manager.
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
    fn does_not_wait_for_pods_that_use_the_lease() {
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
    fn other_pods_can_write_until_they_have_exited() {
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
    fn has_scaled_needs_an_observed_generation() {
        let deployment = |observed: i64, replicas: i64| {
            json!({ "metadata": { "generation": 2 },
                "status": { "observedGeneration": observed, "replicas": replicas } })
        };
        assert!(has_scaled(&deployment(2, 0)));
        assert!(!has_scaled(&deployment(1, 0)) && !has_scaled(&deployment(2, 1)));
        assert!(!has_scaled(&json!({ "metadata": { "generation": 1 } })), "not observed");
        assert!(has_scaled(&Value::Null), "deleted");
    }

    #[test]
    fn waits_for_the_lease_duration() {
        let lasting = |seconds: u64| Some(json!({"spec": {"leaseDurationSeconds": seconds}}));
        for (lease, waits) in [(None, 60), (lasting(15), 60), (lasting(120), 165), (lasting(121), 60)] {
            assert_eq!(patience(lease.as_ref()).as_secs(), waits, "{lease:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stops_a_write_when_the_lease_is_lost() {
        let (gate, stop) = (Gate::closed(), watch::Sender::new(false));
        let election = tokio::spawn(async { Ok(()) });
        let writer = Writer { gate: gate.clone(), stop, election, lease: ours() };
        let mut has_begun = false;
        let cut = writer.while_held(async { has_begun = true }).await;
        assert!(cut.is_none() && !has_begun, "without the Lease");
        let began = Instant::now();
        gate.open_until(began + Duration::from_secs(10));
        let slow = || writer.while_held(sleep(Duration::from_secs(5)));
        assert!(slow().await.is_some());
        let (cut, ()) = tokio::join!(slow(), async {
            sleep(Duration::from_secs(1)).await;
            gate.close();
        });
        assert_eq!((cut, began.elapsed().as_secs()), (None, 6));
    }

    #[test]
    fn parses_a_manager_with_its_namespace() {
        let manager = parse_manager("quintet-system/quintet").unwrap();
        assert_eq!((&*manager.namespace, &*manager.deployment), ("quintet-system", "quintet"));
        assert!(parse_manager("quintet").unwrap_err().contains("NAMESPACE/DEPLOYMENT"));
        for bad in ["/quintet", "a/", "a/b/c", "A/b"] {
            assert!(parse_manager(bad).is_err(), "{bad}");
        }
    }
}
