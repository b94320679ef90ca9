//! `quintet doctor`: checks an installation, and prints one report.
//!
//! [`reader`] reads the facts. Each check is a pure function from facts to findings. A fact that cannot be read concerns only
//! the checks that need it.

mod activity;
mod definitions;
mod finding;
mod installation;
mod leader;
mod objects;
mod permissions;
mod reader;
mod webhooks;

use anyhow::{Result, anyhow};
use quintet_runtime::model::clock::{Clock, whole_seconds};

pub use self::finding::Report;
use self::finding::{Check, Finding, report};
pub use self::installation::{Flags, Parser};
use self::installation::{Installation, manager_of_pod};
use self::leader::VERSION;
use self::reader::Reader;
use crate::api_client::{Cluster, ClusterArgs};
use crate::uninstall::{LeaseArgs, Manager, parse_manager};

/// Check an installation of Quintet, and print one report with the next commands. The command writes nothing.
///
/// The command checks which pod leads and renews the Lease, the managers' pods, the versions, the schemas of the kinds,
/// the permissions of the manager's ServiceAccount, the leader's caches and reconciles, the webhooks that match writes
/// of Quintet, and the conditions of all objects of its kinds. The report contains names and messages of objects, but
/// no Secrets.
///
/// A check whose facts you may not read, or that gets no answer, is UNKNOWN, and the other checks continue. The
/// command waits up to a minute for a renewal of the Lease. In the leader's pod, the report also names the objects that
/// the leader cannot reconcile.
///
/// The exit code is 0 if each check is ok, and 1 if a check found a problem. The exit code is 2 if the command found no
/// problem, but a check is UNKNOWN.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    quintet doctor\n  \
    quintet doctor --manager quintet-system/quintet\n  \
    kubectl exec -n quintet-system deployment/quintet -- /quintet doctor")]
pub struct Args {
    /// The manager's Deployment (default: the Deployment of the pod in which the command runs, or else
    /// quintet-system/quintet).
    #[arg(long, value_name = "NAMESPACE/DEPLOYMENT", value_parser = parse_manager)]
    manager: Option<Manager>,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    /// The manager's Deployment.
    fn manager(&self) -> Manager {
        let of_this_pod = || {
            let (namespace, pod) = (std::env::var("POD_NAMESPACE").ok()?, std::env::var("POD_NAME").ok()?);
            manager_of_pod(&namespace, &pod)
        };
        self.manager.clone().or_else(of_this_pod).unwrap_or_else(|| Manager {
            namespace: "quintet-system".to_owned(),
            deployment: "quintet".to_owned(),
        })
    }
}

/// Checks the installation. `parse` parses the flags of the manager.
pub async fn run(args: &Args, parse: Parser) -> Result<Report> {
    let manager = args.manager();
    let cluster = Cluster::of(&args.cluster).await?;
    let reader = Reader::new(&cluster);
    let deployment = reader.deployment(&manager).await;
    let installation =
        Installation::of(manager, &args.lease, &deployment, parse).map_err(|why| anyhow!(why))?;
    let user = reader.user().await;
    // The leader renews the Lease after some seconds.
    let (lease, checked) =
        tokio::join!(reader.lease(&installation), Box::pin(independent(&reader, &installation)));
    let leader = reader.leader(&installation, &lease).await;
    let activity = reader.activity(&installation, &leader).await.and_then(activity::Activity::of_leader);
    let known = leader.as_ref().ok().map(String::as_str);
    let version = activity.as_ref().ok().and_then(activity::Activity::version);
    let server = reader.version().await;
    let checks = [
        Check { name: "leader", findings: leader::leader(&installation, &lease) },
        Check { name: "managers", findings: leader::managers(&installation, &deployment) },
        Check {
            name: "versions",
            findings: leader::versions(&installation, &server, version.or(installation.version.as_deref())),
        },
        Check { name: "caches", findings: activity::caches(&installation, known, &activity) },
        Check { name: "reconciles", findings: activity::reconciles(&installation, known, &activity) },
    ];
    let checks: Vec<Check> = checks.into_iter().chain(checked).collect();
    Ok(report(&head(&cluster, &installation, &user), &checks))
}

/// The checks that do not need the leader.
async fn independent(reader: &Reader<'_>, installation: &Installation) -> Vec<Check> {
    let check = |name, findings: Vec<Finding>| Check { name, findings };
    let definitions = reader.definitions(installation).await;
    let permissions = reader.permissions(installation).await;
    let webhooks = reader.webhooks().await;
    let objects = reader.objects(installation, Clock::System.now()).await;
    vec![
        check("schemas", definitions::definitions(installation, &definitions)),
        check("permissions", permissions::permissions(installation, &permissions)),
        check("webhooks", webhooks::webhooks(&webhooks)),
        check("objects", objects::objects(&objects)),
    ]
}

/// The first line of the report.
fn head(cluster: &Cluster, installation: &Installation, user: &finding::Fact<String>) -> String {
    let Manager { namespace, deployment } = &installation.manager;
    let (now, url) = (whole_seconds(Clock::System.now()), &cluster.url);
    let user = user.as_deref().unwrap_or("an unknown user");
    format!("quintet {VERSION} doctor: {namespace}/{deployment} at {url}, as {user}, {now}")
}
