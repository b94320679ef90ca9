//! `quintet check`: whether the manager's pods are ready and the leader renews the Lease, as the API server shows it.
//! `helm test` runs this command.

use std::time::Duration;

use anyhow::{Result, bail};
use quintet_runtime::election::lease::LONGEST_LEASE;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::resource::{DEPLOYMENTS, LEASES};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::api_client::{Cluster, ClusterArgs, answered};
use crate::kubeconfig::pod_of;
use crate::parse::parse_duration;
use crate::uninstall::{LeaseArgs, Manager, lasts, parse_manager};

/// Pause between two reads.
const PAUSE: Duration = Duration::from_secs(1);

/// The line about the leader if the managers elect none.
const UNELECTED: &str = "Leader election is off: no Lease names a leader";

/// The shortest default of `--within`.
const LEAST: Duration = Duration::from_mins(1);

/// Wait until all pods of the manager are ready and the leader renews the Lease. The command writes nothing.
///
/// The first line of the output names the leader's pod, or reports that leader election is off. The exit code is 1 if a
/// pod is not ready or the leader does not renew the Lease within the time of --within. You need permission to get the
/// manager's Deployment and Lease.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quintet check --manager quintet-system/quintet")]
pub struct Args {
    /// The manager's Deployment. If the Deployment has 0 replicas, the manager runs elsewhere, and the command checks
    /// only the Lease.
    #[arg(long, value_name = "NAMESPACE/DEPLOYMENT", value_parser = parse_manager)]
    manager: Manager,

    #[command(flatten)]
    lease: LeaseArgs,

    /// Whether the managers elect a leader. With --leader-elect=false, the command does not check the Lease.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    leader_elect: bool,

    /// Wait at most this long (default: 1m, or the duration of the Lease if it is longer).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    within: Option<Duration>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The number of ready pods, or the problem.
pub fn pods(deployment: &Deployment, elects: bool) -> Result<String, String> {
    let Deployment { meta, spec, observed_generation, replicas, updated, ready, .. } = deployment;
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    if wanted == 0 {
        return if elects {
            Ok("The Deployment has 0 replicas".to_owned())
        } else {
            Err("The Deployment has 0 replicas: no manager runs".to_owned())
        };
    }
    if *observed_generation < meta.generation {
        return Err(
            "The Deployment has changed, and its controller has not observed the change yet".to_owned()
        );
    }
    let counted = format!("{ready} of {wanted} managers are ready");
    if i64::from(*ready) < wanted {
        Err(counted)
    } else if i64::from(*updated) < wanted || i64::from(*replicas) > wanted {
        Err(format!("{counted}, but only {updated} of {replicas} pods are up to date"))
    } else {
        Ok(counted)
    }
}

/// The holder of a Lease; empty if it has none.
pub fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// The pod that leads, or the problem. `before` is an earlier read.
///
/// Only a change of the renew time proves a renewal: the holder's clock is not trusted.
fn lease(place: &str, before: Option<&Value>, now: Option<&Value>) -> Result<String, String> {
    let Some(now) = now else {
        return Err(format!(
            "No pod leads: Lease {place} does not exist, so no manager has been the leader yet"
        ));
    };
    let name = holder(now);
    if name.is_empty() {
        return Err(format!("No pod leads: Lease {place} has no holder"));
    }
    let (pod, renewed) = (pod_of(name), |lease: &Value| lease["spec"]["renewTime"].clone());
    match before {
        Some(before) if holder(before) == name && renewed(before) != renewed(now) => {
            Ok(format!("{pod} leads: it renews Lease {place}"))
        }
        _ => Err(format!("{pod} holds Lease {place}, but has not renewed it during the check")),
    }
}

/// Follows a Lease over several reads.
#[derive(Debug, Default)]
pub struct Renewals {
    /// The first read with the current holder.
    first: Option<Value>,
}

impl Renewals {
    /// The pod that leads by this read and earlier ones, or the problem.
    pub fn observe(&mut self, place: &str, now: Option<Value>) -> Result<String, String> {
        let seen = lease(place, self.first.as_ref(), now.as_ref());
        let both = self.first.as_ref().zip(now.as_ref());
        if both.is_none_or(|(first, now)| holder(first) != holder(now)) {
            self.first = now;
        }
        seen
    }

    /// The Lease when its current holder was read first.
    pub fn lease(&self) -> Option<&Value> {
        self.first.as_ref()
    }
}

/// How long to wait for a renewal. A lease duration above the manager's maximum is ignored.
fn patience(lease: Option<&Value>) -> Duration {
    lease.and_then(lasts).filter(|lasts| *lasts <= LONGEST_LEASE).unwrap_or_default().max(LEAST) + PAUSE
}

/// Waits until all checks pass and returns the result; an error if they do not in time.
pub async fn run(args: &Args) -> Result<String> {
    let cluster = Cluster::of(&args.cluster).await?;
    let Manager { namespace: home, deployment: name } = &args.manager;
    let held = args.lease.of(&args.manager);
    let place = format!("{}/{}", held.namespace, held.name);
    let start = Instant::now();
    let mut renewals = Renewals::default();
    loop {
        let leads = if args.leader_elect {
            let now = cluster.reads.read::<Value>(&LEASES, &held.namespace, &held.name).await;
            match answered(&cluster, "cannot read the Lease", now)? {
                Ok(now) => renewals.observe(&place, now),
                Err(why) => Err(why),
            }
        } else {
            Ok(UNELECTED.to_owned())
        };
        let deployment = cluster.reads.read::<Deployment>(&DEPLOYMENTS, home, name).await;
        let deployment = answered(&cluster, "cannot read the Deployment", deployment)?;
        let ready = match deployment {
            Ok(Some(deployment)) => pods(&deployment, args.leader_elect),
            Ok(None) => {
                bail!("Deployment {home}/{name} does not exist: pass the manager's Deployment to --manager")
            }
            Err(why) => Err(why),
        };
        let results = [leads, ready];
        let is_well = results.iter().all(Result::is_ok);
        let lines: Vec<String> = results.into_iter().map(|(Ok(line) | Err(line))| line + ".\n").collect();
        if is_well {
            return Ok(lines.concat());
        }
        if start.elapsed() >= args.within.unwrap_or_else(|| patience(renewals.lease())) {
            bail!(
                "{}To find the reason, run\n  kubectl describe pods --namespace {home}\n  kubectl logs --namespace {home} \
                 deployment/{name} --all-pods",
                lines.concat()
            );
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(wanted: u32, replicas: u32, updated: u32, ready: u32) -> Deployment {
        serde_json::from_value(json!({ "metadata": { "generation": 2 }, "spec": { "replicas": wanted },
            "status": { "observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready } }))
        .unwrap()
    }

    fn held(holder: &str, renewed: &str) -> Value {
        json!({ "spec": { "holderIdentity": holder, "renewTime": renewed } })
    }

    #[test]
    fn requires_all_managers_ready_and_up_to_date() {
        assert_eq!(pods(&deployment(2, 2, 2, 2), true).unwrap(), "2 of 2 managers are ready");
        assert_eq!(pods(&deployment(2, 2, 2, 1), true).unwrap_err(), "1 of 2 managers are ready");
        assert!(pods(&deployment(2, 3, 1, 2), true).unwrap_err().contains("1 of 3 pods are up to date"));
        let mut changed = deployment(2, 2, 2, 2);
        changed.meta.generation = 3;
        assert!(pods(&changed, true).unwrap_err().contains("has changed"));
        assert!(pods(&Deployment::default(), true).is_err(), "replicas defaults to 1");
    }

    #[test]
    fn waits_for_the_lease_duration() {
        let lasting = |seconds: u64| json!({ "spec": { "leaseDurationSeconds": seconds } });
        assert_eq!(patience(None), LEAST + PAUSE);
        assert_eq!(patience(Some(&json!({}))), LEAST + PAUSE);
        assert_eq!(patience(Some(&lasting(15))), LEAST + PAUSE);
        assert_eq!(patience(Some(&lasting(300))), Duration::from_mins(5) + PAUSE);
        assert_eq!(patience(Some(&lasting(u64::MAX))), LEAST + PAUSE, "above the maximum");
    }

    #[test]
    fn accepts_0_replicas_only_with_leader_election() {
        assert!(pods(&deployment(0, 0, 0, 0), true).is_ok());
        assert!(pods(&deployment(0, 0, 0, 0), false).unwrap_err().contains("0 replicas"));
    }

    #[test]
    fn requires_the_holder_to_renew_the_lease() {
        let (first, next) = (held("a", "1"), held("a", "2"));
        assert_eq!(lease("ns/l", Some(&first), Some(&next)).unwrap(), "a leads: it renews Lease ns/l");
        for before in [None, Some(&next), Some(&held("b", "1"))] {
            assert!(
                lease("ns/l", before, Some(&next)).unwrap_err().contains("has not renewed"),
                "{before:?}"
            );
        }
        assert!(lease("ns/l", None, None).unwrap_err().contains("does not exist"));
        assert!(lease("ns/l", Some(&first), Some(&held("", "3"))).unwrap_err().contains("no holder"));
    }

    #[test]
    fn a_renewal_counts_only_for_the_current_holder() {
        let mut renewals = Renewals::default();
        let mut observe = |holder: &str, renewed: &str| renewals.observe("ns/l", Some(held(holder, renewed)));
        assert!(observe("pod-1_a", "1").is_err());
        assert!(observe("pod-2_b", "2").is_err(), "another holder");
        assert!(observe("pod-2_b", "2").is_err());
        assert_eq!(observe("pod-2_b", "3").unwrap(), "pod-2 leads: it renews Lease ns/l");
    }
}
