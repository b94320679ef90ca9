//! `quintet check`: whether the manager's pods are ready and the leader renews the Lease, as the API server shows it.
//! `helm test` runs this command.

use std::time::Duration;

use anyhow::{Result, bail};
use quintet_runtime::election::lease::LONGEST_LEASE;
use quintet_runtime::model::resource::{DEPLOYMENTS, LEASES};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::api_client::{Cluster, ClusterArgs, answered};
use crate::parse::parse_duration;
use crate::uninstall::{LeaseArgs, Manager, parse_manager};

/// Pause between two reads.
const PAUSE: Duration = Duration::from_secs(1);

/// The shortest default of `--within`.
const LEAST: Duration = Duration::from_mins(1);

/// Wait until all pods of the manager are ready and the leader renews the Lease. The command writes nothing.
///
/// The exit code is 1 if a pod is not ready or the leader does not renew the Lease within the time of --within. You
/// need permission to get the manager's Deployment and Lease.
#[derive(Debug, clap::Args)]
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

/// The examples in the help, with the program's name.
pub fn examples(program: &str) -> String {
    format!("Examples:\n  {program} check --manager quintet-system/quintet")
}

/// The fields of a Deployment that the check reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Deployment {
    metadata: Generation,
    spec: Wanted,
    status: Counted,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Generation {
    generation: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wanted {
    replicas: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Counted {
    observed_generation: i64,
    replicas: u32,
    updated_replicas: u32,
    ready_replicas: u32,
}

/// The fields of a Lease that the check reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Lease {
    spec: LeaseSpec,
}

/// Only a change of the renew time proves a renewal: the holder's clock is not trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<String>,
    lease_duration_seconds: Option<u64>,
}

/// The number of ready pods, or the problem.
fn pods(deployment: &Deployment, elects: bool) -> Result<String, String> {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let Counted { observed_generation, replicas, updated_replicas, ready_replicas } = deployment.status;
    if wanted == 0 {
        return if elects {
            Ok("the Deployment has 0 replicas".to_owned())
        } else {
            Err("the Deployment has 0 replicas: no manager runs".to_owned())
        };
    }
    if observed_generation < deployment.metadata.generation {
        return Err(
            "the Deployment has changed, and its controller has not observed the change yet".to_owned()
        );
    }
    let ready = format!("{ready_replicas} of {wanted} managers are ready");
    if ready_replicas < wanted {
        Err(ready)
    } else if updated_replicas < wanted || replicas > wanted {
        Err(format!("{ready}, but only {updated_replicas} of {replicas} pods are up to date"))
    } else {
        Ok(ready)
    }
}

/// The holder that renews the Lease, or the problem. `before` is an earlier read.
fn lease(place: &str, before: Option<&Lease>, now: Option<&Lease>) -> Result<String, String> {
    let Some(now) = now else {
        return Err(format!("Lease {place} does not exist: no manager has been the leader yet"));
    };
    let holder = now.spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return Err(format!("Lease {place} has no holder"));
    }
    match before {
        Some(before) if before.spec.holder_identity == now.spec.holder_identity && before != now => {
            Ok(format!("{holder} renews Lease {place}"))
        }
        _ => Err(format!("{holder} holds Lease {place}, but has not renewed it during the check")),
    }
}

/// How long to wait for a renewal. A lease duration above the manager's maximum is ignored.
fn patience(lease: Option<&Lease>) -> Duration {
    let lasts = lease.and_then(|lease| lease.spec.lease_duration_seconds).map(Duration::from_secs);
    lasts.filter(|lasts| *lasts <= LONGEST_LEASE).unwrap_or_default().max(LEAST) + PAUSE
}

/// Waits until all checks pass and returns the result; an error if they do not in time.
pub async fn run(args: &Args) -> Result<String> {
    let cluster = Cluster::of(&args.cluster).await?;
    let (home, name) = (args.manager.namespace(), args.manager.deployment());
    let held = args.lease.of(&args.manager);
    let place = format!("{}/{}", held.namespace, held.name);
    let start = Instant::now();
    let mut first: Option<Lease> = None;
    loop {
        let deployment = cluster.reads.read::<Deployment>(&DEPLOYMENTS, home, name).await;
        let deployment = answered(&cluster, "cannot read the Deployment", deployment)?;
        let mut said = vec![match deployment {
            Ok(Some(deployment)) => pods(&deployment, args.leader_elect),
            Ok(None) => {
                bail!("Deployment {home}/{name} does not exist: pass the manager's Deployment to --manager")
            }
            Err(why) => Err(why),
        }];
        if args.leader_elect {
            let now = cluster.reads.read::<Lease>(&LEASES, &held.namespace, &held.name).await;
            said.push(match answered(&cluster, "cannot read the Lease", now)? {
                Ok(now) => {
                    let seen = lease(&place, first.as_ref(), now.as_ref());
                    let is_same = first
                        .as_ref()
                        .zip(now.as_ref())
                        .is_some_and(|(first, now)| first.spec.holder_identity == now.spec.holder_identity);
                    if !is_same {
                        first = now;
                    }
                    seen
                }
                Err(why) => Err(why),
            });
        }
        let troubles: Vec<&str> =
            said.iter().filter_map(|one| one.as_ref().err()).map(String::as_str).collect();
        if troubles.is_empty() {
            let well: Vec<String> = said.into_iter().flatten().collect();
            return Ok(format!("{}.\n", well.join("; ")));
        }
        if start.elapsed() >= args.within.unwrap_or_else(|| patience(first.as_ref())) {
            bail!(
                "{}\nTo find the reason, run\n  kubectl describe pods --namespace {home}\n  kubectl logs --namespace {home} \
                 deployment/{name}",
                troubles.join("; ")
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

    fn held(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({ "spec": { "holderIdentity": holder, "renewTime": renewed } })).unwrap()
    }

    #[test]
    fn requires_all_managers_ready_and_up_to_date() {
        assert_eq!(pods(&deployment(2, 2, 2, 2), true).unwrap(), "2 of 2 managers are ready");
        assert_eq!(pods(&deployment(2, 2, 2, 1), true).unwrap_err(), "1 of 2 managers are ready");
        assert!(pods(&deployment(2, 3, 1, 2), true).unwrap_err().contains("1 of 3 pods are up to date"));
        let mut changed = deployment(2, 2, 2, 2);
        changed.metadata.generation = 3;
        assert!(pods(&changed, true).unwrap_err().contains("has changed"));
        assert!(pods(&Deployment::default(), true).is_err(), "replicas defaults to 1");
    }

    #[test]
    fn waits_for_the_lease_duration() {
        let lasting = |seconds: u64| Lease {
            spec: LeaseSpec { lease_duration_seconds: Some(seconds), ..LeaseSpec::default() },
        };
        assert_eq!(patience(None), LEAST + PAUSE);
        assert_eq!(patience(Some(&Lease::default())), LEAST + PAUSE);
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
        assert_eq!(lease("ns/l", Some(&first), Some(&next)).unwrap(), "a renews Lease ns/l");
        for before in [None, Some(&next), Some(&held("b", "1"))] {
            assert!(
                lease("ns/l", before, Some(&next)).unwrap_err().contains("has not renewed"),
                "{before:?}"
            );
        }
        assert!(lease("ns/l", None, None).unwrap_err().contains("does not exist"));
        assert!(lease("ns/l", Some(&first), Some(&held("", "3"))).unwrap_err().contains("no holder"));
    }
}
