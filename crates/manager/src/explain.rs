//! `quintet explain`: every node of a DaemonJob, what would happen there now, and why.
//!
//! It reads what the controller reads and calls the pure functions that the controller calls, so that what it says is what
//! happens. It writes nothing. For a file it says what applying the file would do.

mod file;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use futures::future::join_all;
use jiff::Timestamp;
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::explain::print;
use quintet_daemonjob::explain::report::{Origin, Report, report};
use quintet_daemonjob::ledger::{Shard, shard_names};
use quintet_daemonjob::observe::World;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES, PODS, Resource};

use crate::cluster::{Cluster, ClusterArgs, is_name, is_type_absent, parse_name};

/// Shows every node, what would happen there now, and why, without writing anything.
///
/// States: Done; Failed, not tried again; Running; Starting, its pod is there and has not started; Waiting; WouldRun, it
/// would get a pod now; Skipped, it gets none in this run; NotSelected by the template. Nodes come in the order in which
/// they get their pods.
///
/// With -f nothing is applied: what is shown is what applying the file would do, with the status, pods and ledger that a
/// DaemonJob of that name has.
///
/// You need to be allowed to get the DaemonJob and ConfigMaps and to list pods and nodes.
///
/// Exit code: 0 if every selected node is done, runs, would run or waits for its turn; 1 if some selected node would not
/// run; 2 if that could not be found out.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// The DaemonJob.
    #[arg(value_name = "daemonjob/NAME", num_args = 1..=2, group = "what")]
    target: Vec<String>,

    /// A file of DaemonJobs instead, YAML or JSON; - is standard input.
    #[arg(short, long, value_name = "FILE", group = "what")]
    filename: Option<PathBuf>,

    /// The namespace. Default: the file's, else that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse_name)]
    namespace: Option<String>,

    /// The form of the answer.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Output,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// The selected nodes, one line each.
    #[default]
    Table,
    /// One JSON document for each DaemonJob, all nodes included.
    Json,
    /// All nodes, with run number, last outcome and pod.
    Wide,
}

/// Examples, for a program that is called by this name.
pub fn examples(program: &str) -> String {
    format!(
        "Examples:\n  \
         {program} explain daemonjob/NAME -n NAMESPACE\n  \
         {program} explain -f daemonjob.yaml\n  \
         {program} explain daemonjob/NAME -o json | jq '.nodes[] | select(.state == \"Waiting\")'"
    )
}

/// The answer.
#[derive(Debug)]
pub struct Explained {
    /// What is printed.
    pub text: String,
    /// Whether every selected node is done, runs or would run.
    pub all_run: bool,
}

/// Finds out.
pub async fn run(args: &Args) -> Result<Explained> {
    // Mistakes in arguments and files are reported before a cluster is asked.
    let wanted = match &args.filename {
        Some(file) => file::read(file)?.into_iter().map(|job| Wanted::Spec(Box::new(job))).collect(),
        None => vec![Wanted::Named(target(&args.target)?)],
    };
    for wanted in &wanted {
        agree(args, wanted)?;
    }
    let cluster = Cluster::of(&args.cluster).await?;
    let (nodes, subjects) = tokio::join!(nodes(&cluster), async {
        let mut subjects = Vec::new();
        for wanted in wanted {
            let namespace = args.namespace.clone().or_else(|| wanted.namespace().map(str::to_owned));
            let namespace = namespace.unwrap_or_else(|| cluster.namespace().to_owned());
            subjects.push(observe(&cluster, &namespace, wanted).await?);
        }
        Ok::<_, anyhow::Error>(subjects)
    });
    // Where both fail the same one is named every time, whichever answer came first.
    let (nodes, subjects) = (nodes?, subjects?);
    let now = Clock::System.now();
    let reports: Vec<_> = subjects.into_iter().map(|subject| subject.report(&nodes, now)).collect();
    Ok(Explained {
        text: match args.output {
            Output::Json => print::documents(&reports),
            form => print::table(&reports, form == Output::Wide),
        },
        all_run: reports.iter().all(Report::all_run),
    })
}

/// What is to be explained.
enum Wanted {
    /// What the cluster has under this name.
    Named(String),
    /// What a file says.
    Spec(Box<DaemonJob>),
}

impl Wanted {
    fn namespace(&self) -> Option<&str> {
        match self {
            Self::Named(_) => None,
            Self::Spec(job) => job.metadata.namespace.as_deref(),
        }
    }
}

/// The name in `daemonjob/NAME` or `daemonjob NAME`.
fn target(words: &[String]) -> Result<String> {
    let resource = Resource::of::<DaemonJob>();
    let (kind, name) = match words {
        [word] => word
            .split_once('/')
            .ok_or_else(|| anyhow!("{word:?} names no DaemonJob: write daemonjob/{word}"))?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => bail!("name one DaemonJob, as daemonjob/NAME"),
    };
    let kind = kind.to_ascii_lowercase();
    let is_ours = [resource.plural, "daemonjob", "dj"].contains(&kind.as_str())
        || kind == resource.crd_name()
        || kind == format!("daemonjob.{}", resource.group);
    if !is_ours {
        bail!("only DaemonJobs can be explained, and {kind:?} is something else: write daemonjob/NAME");
    }
    if !is_name(name) {
        bail!("{name:?} cannot be the name of a DaemonJob (lower case letters, digits, '-' and '.')");
    }
    Ok(name.to_owned())
}

/// Refuses a file for one namespace where another one is asked for, as kubectl.
fn agree(args: &Args, wanted: &Wanted) -> Result<()> {
    let Some(theirs) = wanted.namespace() else { return Ok(()) };
    if !is_name(theirs) {
        bail!("{theirs:?} in the file cannot be the name of a namespace");
    }
    match &args.namespace {
        Some(asked) if asked != theirs => {
            bail!("the file is for namespace {theirs:?}, and --namespace says {asked:?}")
        }
        _ => Ok(()),
    }
}

async fn nodes(cluster: &Cluster) -> Result<Vec<Arc<Node>>> {
    let nodes = cluster.list::<Node>(&NODES, "", "").await;
    let nodes = nodes.map_err(|error| cluster.sorry("nodes cannot be listed", &error))?;
    Ok(nodes.into_iter().map(Arc::new).collect())
}

/// A DaemonJob and what was read about it.
struct Subject {
    job: DaemonJob,
    origin: Origin,
    world: World,
}

impl Subject {
    fn report(mut self, nodes: &[Arc<Node>], now: Timestamp) -> Report {
        self.world.nodes = nodes.to_vec();
        report(&self.job, &self.world, self.origin, now)
    }
}

/// Reads what the controller reads of one DaemonJob.
async fn observe(cluster: &Cluster, namespace: &str, wanted: Wanted) -> Result<Subject> {
    let name = match &wanted {
        Wanted::Named(name) => name.clone(),
        Wanted::Spec(job) => job.metadata.name.clone().unwrap_or_default(),
    };
    let resource = Resource::of::<DaemonJob>();
    let found = match cluster.get::<DaemonJob>(&resource, namespace, &name).await {
        Ok(found) => found,
        // Where the type is unknown a file's DaemonJob is new.
        Err(error) if is_type_absent(&error) && matches!(wanted, Wanted::Spec(_)) => None,
        Err(error) => return Err(cluster.sorry(&format!("DaemonJob {name} cannot be read"), &error)),
    };
    let (job, origin) = match (wanted, found) {
        (Wanted::Named(_), Some(job)) => (job, Origin::Cluster),
        (Wanted::Named(_), None) => bail!("there is no DaemonJob {name} in namespace {namespace}"),
        (Wanted::Spec(file), found) => merged(*file, found, namespace),
    };
    let mut subject = Subject { job, origin, world: World::default() };
    if origin != Origin::New {
        // The DaemonJob first, for its status lists the shards that must be there; then the pods, then the ledger: a pod
        // that goes in between is recorded before.
        read_pods(cluster, &mut subject).await?;
        read_ledger(cluster, &mut subject).await?;
    }
    Ok(subject)
}

/// What the DaemonJob would be if the file were applied.
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
            // The API server counts the change, and what was said of the generation before ends with it.
            job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            (job, Origin::Changed)
        }
    }
}

async fn read_pods(cluster: &Cluster, subject: &mut Subject) -> Result<()> {
    let key = subject.job.key();
    let pods = cluster.list::<Pod>(&PODS, &key.namespace, KIND_LABEL).await;
    let pods = pods.map_err(|error| {
        cluster.sorry("pods cannot be listed, and without them nothing is known of the nodes", &error)
    })?;
    subject.world.pods =
        pods.into_iter().filter(|pod| pod.meta.is_controlled_by(&key)).map(Arc::new).collect();
    Ok(())
}

async fn read_ledger(cluster: &Cluster, subject: &mut Subject) -> Result<()> {
    let key = subject.job.key();
    let reads = shard_names(&key.name).map(|name| {
        let namespace = key.namespace.clone();
        async move { cluster.get::<Shard>(&CONFIG_MAPS, &namespace, &name).await }
    });
    // If several reads fail, the first shard's failure is named every time.
    let shards: kube::Result<Vec<_>> = join_all(reads).await.into_iter().collect();
    let shards = shards.map_err(|error| {
        let what =
            "ConfigMaps cannot be read, and without the ledger in them it is not known which nodes are done";
        cluster.sorry(what, &error)
    })?;
    subject.world.ledger = shards
        .into_iter()
        .flatten()
        .filter(|shard| shard.meta.is_controlled_by(&key) && !shard.terminating())
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
    fn a_daemonjob_is_named_as_for_kubectl(#[case] text: &str, #[case] name: &str) {
        assert_eq!(target(&words(text)).unwrap(), name);
    }

    #[rstest]
    #[case("a", "write daemonjob/a")]
    #[case("podset/a", "\"podset\" is something else")]
    #[case("dj/A", "\"A\" cannot be the name")]
    #[case("dj/a/b", "\"a/b\" cannot be the name")]
    #[case("dj/", "\"\" cannot be the name")]
    fn what_is_no_daemonjob_is_refused(#[case] text: &str, #[case] expected: &str) {
        let refusal = target(&words(text)).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{refusal}");
    }

    fn job(image: &str) -> DaemonJob {
        serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": [{"image": image}]}}}}))
        .unwrap()
    }

    #[test]
    fn a_file_is_merged_into_what_is_there() {
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
