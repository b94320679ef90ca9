//! `quintet rollout`: the commands of `kubectl rollout`, for PodSets.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use quintet_podset::api::PodSet;
use quintet_podset::history::{History, Progress, pause, progress, restart};
use quintet_podset::labels::UID_LABEL;
use quintet_podset::revision::CONTROLLER_REVISIONS;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::object::{Key, Meta, Object as _};
use quintet_runtime::model::resource::Resource;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api_client::{Cluster, ClusterArgs, answered, named, parse_name};
use crate::parse::parse_duration;

/// The pause between two reads of the status.
const POLL: Duration = Duration::from_secs(1);

/// Follow, list, undo, pause, resume or restart the rollout of a PodSet.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    quintet rollout status podset/NAME --timeout=5m\n  \
    quintet rollout history podset/NAME\n  \
    quintet rollout undo podset/NAME --to-revision=2\n  \
    quintet rollout pause podset/NAME\n  \
    quintet rollout resume podset/NAME\n  \
    quintet rollout restart podset/NAME")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(StatusArgs),
    History(HistoryArgs),
    Undo(UndoArgs),
    /// Replace only pods that end or are deleted.
    Pause(Target),
    /// Continue a paused rollout.
    Resume(Target),
    /// Replace the pods by new ones of the same template, as a rollout does: partition and OnDelete keep pods.
    Restart(Target),
}

/// Show how far the rollout is, until it is complete.
///
/// The exit code is 1 if the rollout made no progress for progressDeadlineSeconds, or was not complete in time.
#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    target: Target,

    /// Wait until the rollout is complete. With --watch=false, print the progress once.
    #[arg(short, long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    watch: bool,

    /// Wait at most this long (default: without a limit).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// List the stored templates, or print one of them.
#[derive(Debug, clap::Args)]
struct HistoryArgs {
    #[command(flatten)]
    target: Target,

    /// Print the template of this revision as JSON.
    #[arg(long, value_name = "NUMBER")]
    revision: Option<i64>,
}

/// Return to an older template.
///
/// You need permission to get and patch the PodSet, and to list ControllerRevisions.
#[derive(Debug, clap::Args)]
struct UndoArgs {
    #[command(flatten)]
    target: Target,

    /// The revision to return to (default: status.currentRevision, or else the last one before the template of
    /// the spec).
    #[arg(long, value_name = "NUMBER")]
    to_revision: Option<i64>,
}

/// The PodSet, and its cluster.
#[derive(Debug, clap::Args)]
struct Target {
    /// The PodSet.
    #[arg(value_name = "podset/NAME", num_args = 1..=2, required = true)]
    podset: Vec<String>,

    /// The PodSet's namespace (default: the namespace of the kubeconfig's context).
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse_name)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Runs the command, and prints its result.
pub async fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Status(args) => status(args).await,
        Command::History(args) => history(args).await,
        Command::Undo(args) => undo(args).await,
        Command::Pause(target) => change(target, "paused", |podset| pause(podset, true)).await,
        Command::Resume(target) => change(target, "resumed", |podset| pause(podset, false)).await,
        Command::Restart(target) => {
            change(target, "restarted", |podset| restart(podset, Clock::System.now())).await
        }
    }
}

/// Patches the spec of a PodSet.
async fn change(
    target: &Target,
    done: &str,
    operations: impl Fn(&PodSet) -> Result<Value, String>,
) -> Result<()> {
    let rollout = Rollout::of(target).await?;
    let podset = rollout.read().await?;
    let operations = operations(&podset).map_err(|why| anyhow!(why))?;
    rollout.patch(&podset, &operations).await?;
    tell(&format!("podset/{} {done}", rollout.name));
    Ok(())
}

async fn status(args: &StatusArgs) -> Result<()> {
    let rollout = Rollout::of(&args.target).await?;
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut said = String::new();
    loop {
        let now = Instant::now();
        let late = || anyhow!("the rollout of podset/{} was not complete in time: {said}", rollout.name);
        let found = match deadline {
            Some(deadline) => timeout_at(deadline, rollout.poll()).await.map_err(|_elapsed| late())??,
            None => rollout.poll().await?,
        };
        let text = match found.map(|podset| progress(&podset)) {
            Ok(Progress::Complete(text)) => {
                tell(&text);
                return Ok(());
            }
            Ok(Progress::Failed(text)) => bail!(text),
            Err(text) if !args.watch => bail!(text),
            Ok(Progress::Continues(text)) | Err(text) => text,
        };
        // A closed output (`head`) ends the command.
        if text != said && !tell(&text) || !args.watch {
            return Ok(());
        }
        said = text;
        sleep_until(now + POLL).await;
    }
}

async fn history(args: &HistoryArgs) -> Result<()> {
    let rollout = Rollout::of(&args.target).await?;
    let podset = rollout.read().await?;
    let history = rollout.history(&podset).await?;
    let text = match args.revision {
        Some(number) => format!("{:#}\n", history.template(number).map_err(|why| anyhow!(why))?.0),
        None => history.table(),
    };
    tell(text.trim_end());
    Ok(())
}

async fn undo(args: &UndoArgs) -> Result<()> {
    let rollout = Rollout::of(&args.target).await?;
    let podset = rollout.read().await?;
    let history = rollout.history(&podset).await?;
    let name = &rollout.name;
    match history.undo(args.to_revision).map_err(|why| anyhow!(why))? {
        None => {
            tell(&format!("podset/{name} has the template of this revision already"));
        }
        Some(undo) => {
            rollout.patch(&podset, &undo.operations).await?;
            tell(&format!("podset/{name} returns to revision {} ({})", undo.number, undo.images));
        }
    }
    Ok(())
}

/// A PodSet of a cluster.
struct Rollout {
    cluster: Cluster,
    namespace: String,
    name: String,
}

impl Rollout {
    async fn of(target: &Target) -> Result<Self> {
        let name = named(&target.podset, "rollout", &Resource::of::<PodSet>(), "pset")?;
        let cluster = Cluster::of(&target.cluster).await?;
        let namespace = target.namespace.clone().unwrap_or_else(|| cluster.namespace.to_string());
        Ok(Self { cluster, namespace, name })
    }

    /// The PodSet, or the reason of a failure that a retry may fix.
    async fn poll(&self) -> Result<Result<PodSet, String>> {
        let resource = Resource::of::<PodSet>();
        let found = self.cluster.reads.read::<PodSet>(&resource, &self.namespace, &self.name).await;
        let found = answered(&self.cluster, &format!("cannot read podset/{}", self.name), found)?;
        match found {
            Ok(Some(podset)) if podset.terminating() => bail!("podset/{} is being deleted", self.name),
            Ok(Some(podset)) => Ok(Ok(podset)),
            Ok(None) => bail!(
                "podset/{} does not exist in namespace {}: check the name, or pass --namespace",
                self.name,
                self.namespace
            ),
            Err(why) => Ok(Err(why)),
        }
    }

    async fn read(&self) -> Result<PodSet> {
        self.poll().await?.map_err(|why| anyhow!(why))
    }

    async fn history<'a>(&self, podset: &'a PodSet) -> Result<History<'a>> {
        let key = podset.key();
        let selector = format!("{UID_LABEL}={}", key.uid);
        let found = self.cluster.reads.list(&CONTROLLER_REVISIONS, &self.namespace, &selector).await;
        let stored =
            found.map_err(|error| self.cluster.sorry("cannot list the ControllerRevisions", &error))?;
        Ok(History::of(podset, &key, stored))
    }

    async fn patch(&self, podset: &PodSet, operations: &Value) -> Result<()> {
        let Key { namespace, name, uid } = podset.key();
        let meta = Meta { namespace, name, uid, ..Meta::default() };
        match self.cluster.patch(&Resource::of::<PodSet>(), &meta, operations).await {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) if is_failed_test(&status) => {
                bail!("the spec of podset/{} has changed meanwhile: run the command again", self.name)
            }
            Err(error) => Err(self.cluster.sorry(&format!("cannot change podset/{}", self.name), &error)),
        }
    }
}

/// Whether a test of a JSON patch failed. An invalid object has causes instead.
fn is_failed_test(status: &kube::core::Status) -> bool {
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}

/// Prints a line on standard output. Returns whether it is open.
fn tell(text: &str) -> bool {
    writeln!(std::io::stdout(), "{text}").is_ok()
}
