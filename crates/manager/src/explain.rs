//! `quintet explain`: what a DaemonJob would do on each node now, and why.
//!
//! The command reads the same objects and calls the same pure functions as the controller, so that its output matches what
//! the controller does. It writes nothing. For a file, it shows the effect of applying the file.

mod file;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use futures::future::join_all;
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::explain::print;
use quintet_daemonjob::explain::report::{Origin, Report, report};
use quintet_daemonjob::labels::daemonjob_of;
use quintet_daemonjob::ledger::{Shard, shard_names};
use quintet_daemonjob::mark_prefixes::Permitted;
use quintet_daemonjob::observe::World;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::{Key, Object as _};
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES, PODS, Resource};

use crate::api_client::{Cluster, ClusterArgs, Supported, is_name, is_type_absent, named, parse_name};

/// Show what a DaemonJob would do on each node now, and why. The command writes nothing.
///
/// The command prints the state of each node. A node is Done if the DaemonJob's last attempt on it succeeded. A Failed
/// node gets no retry. The pod of a Running node runs, and the pod of a Starting node has not started. A Waiting node
/// gets a pod later, or when something changes. A WouldRun node would get a pod now. A Skipped node gets no pod in this
/// run. The template does not select a NotSelected node. The command lists nodes in the order in which they get their
/// pods, or with waves in the order of their names.
///
/// With -f, the command shows what would happen if you applied the file, but it does not apply the file. If the
/// DaemonJob in the file exists in the cluster, the command uses its status, its pods and its ledger (the ConfigMaps
/// with the outcomes of nodes).
///
/// You need permission to get the DaemonJob and ConfigMaps, and to list pods and nodes.
///
/// The exit code is 0 if every selected node is done, runs, would run, or waits for its turn or for a due time. The exit
/// code is 1 if a selected node would not run, and 2 on an error.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true),
    after_help = "Examples:\n  \
        quintet explain daemonjob/NAME -n NAMESPACE\n  \
        quintet explain -f daemonjob.yaml\n  \
        quintet explain daemonjob/NAME -o json | jq '.nodes[] | select(.state == \"Waiting\")'"
)]
pub struct Args {
    /// The DaemonJob to explain.
    #[arg(value_name = "daemonjob/NAME", num_args = 1..=2, group = "what")]
    target: Vec<String>,

    /// A YAML or JSON file with DaemonJobs, or - for standard input.
    #[arg(short, long, value_name = "FILE", group = "what")]
    filename: Option<PathBuf>,

    /// The DaemonJob's namespace (default: the namespace in the file, or else the namespace of the kubeconfig's
    /// context).
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse_name)]
    namespace: Option<String>,

    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Output,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// The selected nodes, one per line.
    #[default]
    Table,
    /// One JSON document for each DaemonJob, with all nodes.
    Json,
    /// All nodes, with the pod number, the last outcome and the pod of each node.
    Wide,
}

/// The result.
#[derive(Debug)]
pub struct Explained {
    /// The text to print.
    pub text: String,
    /// Whether every selected node is done, runs or would run.
    pub all_run: bool,
}

/// Explains the DaemonJobs of the arguments.
pub async fn run(args: &Args) -> Result<Explained> {
    // Report mistakes in arguments and files before any request.
    let wanted: Vec<(Arc<str>, Option<DaemonJob>)> = match &args.filename {
        Some(file) => file::read(file)?.into_iter().map(|job| (job.key().name, Some(job))).collect(),
        None => vec![(target(&args.target)?.into(), None)],
    };
    for job in wanted.iter().filter_map(|(_, job)| job.as_ref()) {
        agree(args, job)?;
    }
    let cluster = Cluster::of(&args.cluster).await?;
    let (nodes, subjects) = tokio::join!(nodes(&cluster), async {
        let mut subjects = Vec::new();
        for (name, file) in wanted {
            let of_file = || file.as_ref()?.metadata.namespace.clone();
            let namespace = args.namespace.clone().or_else(of_file);
            let namespace = namespace.unwrap_or_else(|| cluster.namespace.to_string());
            subjects.push(observe(&cluster, &namespace, &name, file).await?);
        }
        Ok::<_, anyhow::Error>(subjects)
    });
    // If both fail, always report the same one.
    let (nodes, subjects) = (nodes?, subjects?);
    let now = Clock::System.now();
    let with_nodes = |world| World { nodes: nodes.clone(), ..world };
    let reports: Vec<_> = subjects
        .into_iter()
        .map(|(job, origin, world)| report(&job, &with_nodes(world), origin, now))
        .collect();
    Ok(Explained {
        text: match args.output {
            Output::Json => print::documents(&reports),
            form => print::table(&reports, form == Output::Wide),
        },
        all_run: reports.iter().all(Report::all_run),
    })
}

fn target(words: &[String]) -> Result<String> {
    let types = [Supported { resource: Resource::of::<DaemonJob>(), short: "dj" }];
    Ok(named(words, "explain", &types)?.1)
}

/// Rejects a file whose namespace differs from --namespace, like kubectl.
fn agree(args: &Args, file: &DaemonJob) -> Result<()> {
    let Some(theirs) = &file.metadata.namespace else { return Ok(()) };
    if !is_name(theirs) {
        bail!(
            "namespace {theirs:?} in the file is not a valid name: use lower case letters, digits, '-' and '.'"
        );
    }
    match &args.namespace {
        Some(asked) if asked != theirs => {
            bail!(
                "the namespace of the file is {theirs:?}, but --namespace is {asked:?}: make them equal, or omit --namespace"
            )
        }
        _ => Ok(()),
    }
}

async fn nodes(cluster: &Cluster) -> Result<Vec<Arc<Node>>> {
    let nodes = cluster.reads.list::<Node>(&NODES, "", "").await;
    let nodes = nodes.map_err(|error| cluster.sorry("cannot list nodes", &error))?;
    Ok(nodes.into_iter().map(Arc::new).collect())
}

/// Reads the objects that the controller reads for one DaemonJob, except nodes. `file` is the DaemonJob in the file.
async fn observe(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    file: Option<DaemonJob>,
) -> Result<(DaemonJob, Origin, World)> {
    let resource = Resource::of::<DaemonJob>();
    let found = match cluster.reads.read::<DaemonJob>(&resource, namespace, name).await {
        Ok(found) => found,
        // If the type does not exist, a DaemonJob from a file is new.
        Err(error) if is_type_absent(&error) && file.is_some() => None,
        Err(error) => return Err(cluster.sorry(&format!("cannot read DaemonJob {name}"), &error)),
    };
    let (job, origin) = match (file, found) {
        (None, Some(job)) => (job, Origin::Cluster),
        (None, None) => bail!(
            "DaemonJob {name} does not exist in namespace {namespace}: check the name, or pass --namespace"
        ),
        (Some(file), found) => merged(file, found, namespace),
    };
    let mut world = World { permitted_marks: Permitted::Unknown, ..World::default() };
    if origin != Origin::New {
        // In this order: the DaemonJob's status lists the required shards, and the ledger records a pod before the pod goes.
        read_pods(cluster, &job.key(), &mut world).await?;
        read_ledger(cluster, &job.key(), &mut world).await?;
    }
    Ok((job, origin, world))
}

/// The DaemonJob after applying the file.
fn merged(file: DaemonJob, found: Option<DaemonJob>, namespace: &str) -> (DaemonJob, Origin) {
    match found {
        None => {
            let mut job = DaemonJob { status: None, ..file };
            job.metadata.namespace = Some(namespace.to_owned());
            (job, Origin::New)
        }
        Some(job) if job.spec == file.spec => (job, Origin::Unchanged),
        Some(mut job) => {
            job.spec = file.spec;
            // The API server increments the generation, which makes conditions of the old one stale.
            job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            (job, Origin::Changed)
        }
    }
}

async fn read_pods(cluster: &Cluster, key: &Key, world: &mut World) -> Result<()> {
    let pods = cluster.reads.list::<Pod>(&PODS, &key.namespace, KIND_LABEL).await;
    let pods =
        pods.map_err(|error| cluster.sorry("cannot list pods, which show the state of the nodes", &error))?;
    let (own, others): (Vec<_>, Vec<_>) =
        pods.into_iter().map(Arc::new).partition(|pod| pod.meta.is_controlled_by(key));
    let is_predecessor = |pod: &Arc<Pod>| daemonjob_of(pod).is_some_and(|owner| owner.name == key.name);
    world.pods = own;
    world.predecessors = others.into_iter().filter(is_predecessor).collect();
    Ok(())
}

async fn read_ledger(cluster: &Cluster, key: &Key, world: &mut World) -> Result<()> {
    let reads = shard_names(&key.name).map(|name| {
        let namespace = key.namespace.clone();
        async move { cluster.reads.read::<Shard>(&CONFIG_MAPS, &namespace, &name).await }
    });
    // If several reads fail, always report the first shard's failure.
    let shards: kube::Result<Vec<_>> = join_all(reads).await.into_iter().collect();
    let shards = shards.map_err(|error| {
        let what = "cannot read the ConfigMaps of the ledger, which records the nodes that are done";
        cluster.sorry(what, &error)
    })?;
    world.ledger = shards
        .into_iter()
        .flatten()
        .filter(|shard| shard.meta.is_controlled_by(key) && !shard.terminating())
        .map(Arc::new)
        .collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_daemonjob::api::DaemonJobStatus;
    use rstest::rstest;
    use serde_json::json;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[rstest]
    #[case("daemonjob/a", "a")]
    #[case("DaemonJob/a-b", "a-b")]
    #[case("dj/a", "a")]
    #[case("daemonjobs/a", "a")]
    #[case("daemonjob.dj.dysproz.io/a", "a")]
    #[case("daemonjobs.dj.dysproz.io a", "a")]
    fn accepts_names_like_kubectl(#[case] text: &str, #[case] name: &str) {
        assert_eq!(target(&words(text)).unwrap(), name);
    }

    #[rstest]
    #[case("a", "use daemonjob/a")]
    #[case("podset/a", "got \"podset\"")]
    #[case("dj/A", "\"A\" is not a valid name")]
    #[case("dj/a/b", "\"a/b\" is not a valid name")]
    #[case("dj/", "\"\" is not a valid name")]
    fn rejects_other_targets(#[case] text: &str, #[case] expected: &str) {
        let refusal = target(&words(text)).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{refusal}");
    }

    fn job(image: &str) -> DaemonJob {
        serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": [{"image": image}]}}}}))
        .unwrap()
    }

    #[test]
    fn merges_a_file_into_the_stored_object() {
        let (new, origin) = merged(job("x"), None, "ns");
        assert_eq!(
            (origin, new.metadata.namespace.as_deref(), new.metadata.uid),
            (Origin::New, Some("ns"), None)
        );
        let mut stored = job("x");
        (stored.metadata.uid, stored.metadata.generation) = (Some("u".to_owned()), Some(3));
        stored.status = Some(DaemonJobStatus::default());
        let (same, origin) = merged(job("x"), Some(stored.clone()), "ns");
        assert_eq!((origin, same.metadata.generation), (Origin::Unchanged, Some(3)));
        let (changed, origin) = merged(job("y"), Some(stored), "ns");
        assert_eq!((origin, changed.metadata.generation), (Origin::Changed, Some(4)));
        assert!(changed.status.is_some() && changed.metadata.uid.is_some());
        assert_eq!(changed.spec, job("y").spec);
    }
}
