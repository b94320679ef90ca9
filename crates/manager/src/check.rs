//! `quintet check`: whether a manager works, asked of the API server: what kubelets say of its pods, which ask `/readyz`, and
//! whether the Lease is renewed. `helm test` runs it.

use std::time::Duration;

use anyhow::{Result, bail};
use quintet_runtime::election::lease::LONGEST_LEASE;
use quintet_runtime::model::resource::{DEPLOYMENTS, LEASES};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::args::parse_duration;
use crate::cluster::{Cluster, ClusterArgs, answered};
use crate::uninstall::{LeaseArgs, Manager, parse_manager};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a manager is waited for where nothing is said, at the least.
const LEAST: Duration = Duration::from_mins(1);

/// Says whether a manager works: all of its pods are ready, and one of them renews the Lease. A manager that works is waited
/// for; the exit code is 1 where there is none in time.
///
/// Nothing is written. You need to be allowed to get the Deployment and the Lease.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The manager's Deployment. Where it has no replicas, the manager may run elsewhere, and the Lease alone is looked at.
    #[arg(long, value_name = "NAMESPACE/DEPLOYMENT", value_parser = parse_manager)]
    manager: Manager,

    #[command(flatten)]
    lease: LeaseArgs,

    /// Whether the managers elect a leader; without it no Lease is looked at.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    leader_elect: bool,

    /// How long it is waited for. Default: 1m, or as long as the Lease lasts, if that is longer, for its holder need not renew
    /// it sooner.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    within: Option<Duration>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Examples, for a program that is called by this name.
pub fn examples(program: &str) -> String {
    format!("Examples:\n  {program} check --manager quintet-system/quintet")
}

/// A Deployment, as far as it is looked at.
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

/// A Lease, as far as it is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Lease {
    spec: LeaseSpec,
}

/// The holder's clock is not trusted: that a time has changed says that it renews.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<String>,
    lease_duration_seconds: Option<u64>,
}

/// What the pods say: how many are ready, or what is wrong.
fn pods(deployment: &Deployment, elects: bool) -> Result<String, String> {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let Counted { observed_generation, replicas, updated_replicas, ready_replicas } = deployment.status;
    if wanted == 0 {
        return if elects {
            Ok("no manager is wanted here".to_owned())
        } else {
            Err("no manager is wanted (replicas is 0)".to_owned())
        };
    }
    if observed_generation < deployment.metadata.generation {
        return Err("the Deployment has changed, and nothing was done about it yet".to_owned());
    }
    let ready = format!("{ready_replicas} of {wanted} managers are ready");
    if ready_replicas < wanted {
        Err(ready)
    } else if updated_replicas < wanted || replicas > wanted {
        Err(format!("{ready}, and {updated_replicas} of {replicas} are what the Deployment says now"))
    } else {
        Ok(ready)
    }
}

/// What the Lease says, of which an earlier look is known: who renews it, or what is wrong.
fn lease(place: &str, before: Option<&Lease>, now: Option<&Lease>) -> Result<String, String> {
    let Some(now) = now else { return Err(format!("there is no Lease {place}: no manager has led yet")) };
    let holder = now.spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return Err(format!("nobody holds the Lease {place}"));
    }
    match before {
        Some(before) if before.spec.holder_identity == now.spec.holder_identity && before != now => {
            Ok(format!("{holder} renews the Lease {place}"))
        }
        _ => Err(format!("{holder} holds the Lease {place} and was not seen to renew it")),
    }
}

/// How long a renewal may take to be seen. What a Lease says may be nonsense, and is believed up to the longest that a manager
/// takes.
fn patience(lease: Option<&Lease>) -> Duration {
    let lasts = lease.and_then(|lease| lease.spec.lease_duration_seconds).map(Duration::from_secs);
    lasts.filter(|lasts| *lasts <= LONGEST_LEASE).unwrap_or_default().max(LEAST) + PAUSE
}

/// Looks until all is well, and says so; an error where it is not in time.
pub async fn run(args: &Args) -> Result<String> {
    let cluster = Cluster::of(&args.cluster).await?;
    let (home, name) = (args.manager.namespace(), args.manager.deployment());
    let held = args.lease.of(&args.manager);
    let place = format!("{}/{}", held.namespace, held.name);
    let start = Instant::now();
    let mut first: Option<Lease> = None;
    loop {
        let deployment = cluster.get::<Deployment>(&DEPLOYMENTS, home, name).await;
        let deployment = answered(&cluster, "the Deployment cannot be read", deployment)?;
        let mut said = vec![match deployment {
            Ok(Some(deployment)) => pods(&deployment, args.leader_elect),
            Ok(None) => bail!("there is no Deployment {home}/{name}"),
            Err(why) => Err(why),
        }];
        if args.leader_elect {
            let now = cluster.get::<Lease>(&LEASES, &held.namespace, &held.name).await;
            said.push(match answered(&cluster, "the Lease cannot be read", now)? {
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
                "{}\nWhy a manager is not ready says\n  kubectl describe pods --namespace {home}\n  kubectl logs --namespace {home} \
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
    fn all_managers_must_be_ready_and_new() {
        assert_eq!(pods(&deployment(2, 2, 2, 2), true).unwrap(), "2 of 2 managers are ready");
        assert_eq!(pods(&deployment(2, 2, 2, 1), true).unwrap_err(), "1 of 2 managers are ready");
        assert!(
            pods(&deployment(2, 3, 1, 2), true).unwrap_err().contains("1 of 3 are what the Deployment says")
        );
        let mut changed = deployment(2, 2, 2, 2);
        changed.metadata.generation = 3;
        assert!(pods(&changed, true).unwrap_err().contains("has changed"));
        assert!(pods(&Deployment::default(), true).is_err(), "one is wanted where nothing is said");
    }

    #[test]
    fn a_holder_is_given_as_long_as_its_lease_lasts() {
        let lasting = |seconds: u64| Lease {
            spec: LeaseSpec { lease_duration_seconds: Some(seconds), ..LeaseSpec::default() },
        };
        assert_eq!(patience(None), LEAST + PAUSE);
        assert_eq!(patience(Some(&Lease::default())), LEAST + PAUSE);
        assert_eq!(patience(Some(&lasting(15))), LEAST + PAUSE);
        assert_eq!(patience(Some(&lasting(300))), Duration::from_mins(5) + PAUSE);
        assert_eq!(patience(Some(&lasting(u64::MAX))), LEAST + PAUSE, "nonsense");
    }

    #[test]
    fn a_manager_may_run_elsewhere_if_a_lease_tells_of_it() {
        assert!(pods(&deployment(0, 0, 0, 0), true).is_ok());
        assert!(pods(&deployment(0, 0, 0, 0), false).unwrap_err().contains("replicas is 0"));
    }

    #[test]
    fn a_lease_must_be_renewed_by_its_holder() {
        let (first, next) = (held("a", "1"), held("a", "2"));
        assert_eq!(lease("ns/l", Some(&first), Some(&next)).unwrap(), "a renews the Lease ns/l");
        for before in [None, Some(&next), Some(&held("b", "1"))] {
            assert!(
                lease("ns/l", before, Some(&next)).unwrap_err().contains("not seen to renew"),
                "{before:?}"
            );
        }
        assert!(lease("ns/l", None, None).unwrap_err().contains("no Lease"));
        assert!(lease("ns/l", Some(&first), Some(&held("", "3"))).unwrap_err().contains("nobody"));
    }
}
