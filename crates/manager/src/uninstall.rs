//! `quintet uninstall`: removes Quintet's finalizers, so that objects can be deleted while no manager runs.
//!
//! Each patch tests that the object is unchanged, so that the user may interrupt the command and run it again. A running
//! manager would add the finalizers again. With `--manager`, the command stops the manager first ([`writer`]); without it,
//! the user must stop the manager.

mod hook;
mod writer;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use futures::{StreamExt as _, stream};
use quintet_kinds::KINDS;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::object::Meta;
use quintet_runtime::model::resource::{PODS, Resource};
use quintet_runtime::server::client::{WINDOW, brief};
use serde_json::json;

use self::writer::Writer;
pub use self::writer::{CONTAINER, Lease, LeaseArgs, Manager, lasts, parse_manager};
use crate::api_client::{Cluster, ClusterArgs, code_of, is_absent, is_type_absent, parse_name, wait_of};

/// Consecutive rounds without progress before the command gives up.
const FRUITLESS: usize = 5;
/// Objects between two lines of progress.
const PROGRESS: usize = 500;
/// The most objects that an error lists.
const NAMED: usize = 10;
/// The line above commands for a user with more permissions.
const MANUALLY: &str = "To do it manually, with sufficient permissions, run:";

/// Remove Quintet's finalizers from pods, PulsarConsumers and Greetings, so that they can be deleted while no manager runs.
///
/// The finalizers are dj.dysproz.io/ledger on pods, pulsar.pulsarconsumer.krvarma.com/subscription on PulsarConsumers
/// and example.com/farewell on Greetings. The command deletes no objects of users.
///
/// Stop the manager before you run the command, and do not start the manager again. A running manager adds the
/// finalizers again, and loses the outcome of each pod that is deleted without a finalizer. With --manager, the command
/// stops the manager for you. Without --manager, stop the manager yourself: kubectl scale deployment NAME --replicas=0
/// -n NAMESPACE.
///
/// You can interrupt the command at any time, and run it again to continue. You need permission to list and patch pods,
/// PulsarConsumers and Greetings. With --manager, you also need permission to get the manager's Deployment, to patch the Deployment's
/// scale, to list the pods in its namespace, and to get, watch, create, update and delete the manager's Lease. With
/// --helm-hook, you also need permission to get the Job.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    quintet uninstall --manager quintet-system/quintet\n  \
    quintet uninstall --namespace NAMESPACE\n  \
    quintet uninstall --yes")]
pub struct Args {
    /// Remove finalizers only in these namespaces, separated by commas (default: all namespaces). Repeat the flag to
    /// add more namespaces.
    #[arg(short, long, value_name = "NAMESPACE,...", value_delimiter = ',', value_parser = parse_name)]
    namespace: Vec<String>,

    /// Stop this manager first: scale its Deployment to 0, hold its Lease, and delete the Lease at the end. If a pod of
    /// the Deployment does not use the Lease, the command waits up to two minutes until the pod has exited, because the
    /// pod could still write.
    #[arg(long, value_name = "NAMESPACE/DEPLOYMENT", value_parser = parse_manager)]
    manager: Option<Manager>,

    #[command(flatten)]
    lease: LeaseArgs,

    /// The Job that runs this command, in the manager's namespace. The chart contains the Job as a Helm hook. The command
    /// changes nothing and fails if a tool that ignores Helm hooks created the Job beside the manager.
    #[arg(long, value_name = "JOB", value_parser = parse_name, requires = "manager")]
    helm_hook: Option<String>,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A type of objects with a finalizer of Quintet.
struct Held {
    resource: Resource,
    finalizer: &'static str,
}

impl Held {
    /// A count with the kind, for messages.
    fn counted(&self, count: usize) -> String {
        format!("{count} {}{}", self.resource.kind, if count == 1 { "" } else { "s" })
    }
}

fn held() -> impl Iterator<Item = Held> {
    let finalizers = KINDS.iter().filter_map(|kind| kind.finalizer);
    finalizers.map(|one| Held { resource: (one.resource)(), finalizer: one.name })
}

/// Removes the finalizers and prints the remaining objects.
pub async fn run(args: &Args) -> Result<()> {
    if !args.yes {
        ask(&everywhere(&args.namespace), args.manager.is_some())?;
    }
    let cluster = Cluster::of(&args.cluster).await?;
    if let (Some(manager), Some(job)) = (&args.manager, &args.helm_hook) {
        hook::check(&cluster, manager, &args.lease.of(manager), job).await?;
    }
    let writer = match &args.manager {
        None => None,
        Some(manager) => {
            Some(Writer::acquire_exclusive(&cluster, &args.cluster, manager, args.lease.of(manager)).await?)
        }
    };
    let freed = free_all(&cluster, &args.namespace, writer.as_ref()).await;
    if let Some(writer) = writer {
        writer.end(&cluster).await;
    }
    freed
}

/// Removes the finalizers in these namespaces.
async fn free_all(cluster: &Cluster, namespaces: &[String], writer: Option<&Writer>) -> Result<()> {
    // An empty name means all namespaces.
    let all = [String::new()];
    let namespaces = if namespaces.is_empty() { &all } else { namespaces };
    // A failure in one namespace must not stop the others.
    let mut failed = Vec::new();
    for held in held() {
        for namespace in namespaces {
            if let Err(error) = free(cluster, &held, namespace, writer).await {
                failed.push(format!("{error:#}"));
            }
        }
    }
    for namespace in namespaces {
        tell(&remaining(cluster, namespace).await);
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

/// Prints a line on standard output, which may be closed.
fn tell(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The namespaces, for messages.
fn everywhere(namespaces: &[impl AsRef<str>]) -> String {
    let named: Vec<&str> = namespaces.iter().map(AsRef::as_ref).filter(|name| !name.is_empty()).collect();
    match named.as_slice() {
        [] => "in all namespaces".to_owned(),
        [name] => format!("in namespace {name}"),
        names => format!("in namespaces {}", names.join(", ")),
    }
}

fn ask(everywhere: &str, stops_the_manager: bool) -> Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!(
            "cannot ask for confirmation without a terminal: pass --yes to remove the finalizers {everywhere}"
        );
    }
    let mut stdout = std::io::stdout();
    let _ = write!(
        stdout,
        "This removes Quintet's finalizers {everywhere}. {} Continue? [y/N] ",
        if stops_the_manager { "It stops the manager first." } else { "Stop the manager first." }
    );
    let _ = stdout.flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        bail!("canceled: nothing was changed");
    }
    Ok(())
}

/// The result of a patch.
enum Freed {
    /// The finalizer is removed.
    Yes,
    /// The object has changed or is gone: list again.
    News,
    /// The server is busy or did not answer: retry after this time.
    Later(Duration, String),
    /// The server rejects the patch.
    No(String),
}

/// Lists and patches until no object has the finalizer.
async fn free(cluster: &Cluster, held: &Held, namespace: &str, writer: Option<&Writer>) -> Result<()> {
    let finalizer = held.finalizer;
    let (mut freed, mut fruitless, mut done) = (0_usize, 0, HashSet::<Arc<str>>::new());
    loop {
        // Without a label selector: an object that lost its labels still has the finalizer.
        let listed = cluster.reads.list_meta(&held.resource, namespace, "").await;
        let listed = match listed {
            Err(error) if held.resource.custom && is_type_absent(&error) => Vec::new(),
            listed => listed.map_err(|error| {
                let sorry = cluster.sorry(&format!("cannot list {}s", held.resource.kind), &error);
                anyhow!("{sorry}\n{}", by_hand_for_all(held, namespace))
            })?,
        };
        let waiting: Vec<Meta> =
            listed.into_iter().filter(|meta| meta.without_finalizer(finalizer).is_some()).collect();
        if waiting.is_empty() {
            tell(&format!("Removed {finalizer} from {} {}.", held.counted(freed), everywhere(&[namespace])));
            return Ok(());
        }
        if let Some(again) = waiting.iter().find(|meta| done.contains(&meta.uid)) {
            bail!(
                "{finalizer} is back on {}/{}: a manager still runs; stop it and run this command again",
                again.namespace,
                again.name
            );
        }
        tell(&format!("Removing {finalizer} from {}.", held.counted(waiting.len())));
        let mut refused: Vec<(&Meta, String)> = Vec::new();
        let mut later: Option<(Duration, String)> = None;
        let before = freed;
        let mut answers = stream::iter(&waiting)
            .map(|meta| async move { (meta, patch(cluster, held, meta, writer).await) })
            .buffered(WINDOW);
        while let Some((meta, answer)) = answers.next().await {
            match answer {
                Freed::Yes => {
                    freed += 1;
                    done.insert(meta.uid.clone());
                    if freed % PROGRESS == 0 {
                        tell(&format!("{} done …", held.counted(freed)));
                    }
                }
                Freed::News => {}
                Freed::Later(wait, why) => {
                    let longest = later.as_ref().map_or(wait, |(longest, _)| wait.max(*longest));
                    later = Some((longest, why));
                }
                Freed::No(why) => refused.push((meta, why)),
            }
        }
        drop(answers);
        if !refused.is_empty() {
            return Err(anyhow!("{}", refusal(held, &refused)));
        }
        fruitless = if freed > before { 0 } else { fruitless + 1 };
        if fruitless == FRUITLESS {
            let why = later.map_or("they change continuously".to_owned(), |(_, why)| why);
            bail!(
                "cannot remove {finalizer} from {}: {why}\nRun this command again.\n{}",
                held.counted(waiting.len()),
                by_hand_for_all(held, namespace)
            );
        }
        if let Some((wait, _)) = later {
            tokio::time::sleep(wait).await;
        } else if freed == before {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn patch(cluster: &Cluster, held: &Held, meta: &Meta, writer: Option<&Writer>) -> Freed {
    let Some(operations) = meta.without_finalizer(held.finalizer) else { return Freed::News };
    let sent = cluster.patch(&held.resource, meta, &operations);
    let answer = match writer {
        None => Some(sent.await),
        Some(writer) => writer.while_held(sent).await,
    };
    match answer {
        None => {
            let why = "lost the managers' Lease, and has not re-acquired it";
            Freed::Later(Duration::from_secs(2), why.to_owned())
        }
        Some(Ok(())) => Freed::Yes,
        Some(Err(error)) => sorted(&error),
    }
}

/// The result of a failed patch.
fn sorted(error: &kube::Error) -> Freed {
    if is_absent(error) {
        return Freed::News;
    }
    match code_of(error) {
        Some(409) => Freed::News,
        // A failed `test`. If the server rejects the resulting object, the answer names the object.
        Some(422) if !names_object(error) => Freed::News,
        Some(code) if code != 429 && code < 500 => Freed::No(brief(error)),
        _ => Freed::Later(wait_of(error), brief(error)),
    }
}

fn names_object(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.details.as_ref().is_some_and(|details| !details.name.is_empty()))
}

/// The error for rejected patches, with commands for an administrator.
fn refusal(held: &Held, refused: &[(&Meta, String)]) -> String {
    let why = refused.first().map(|(_, why)| why.as_str()).unwrap_or_default();
    let mut text =
        format!("cannot remove {} from {}: {why}\n{MANUALLY}", held.finalizer, held.counted(refused.len()));
    for (meta, _) in refused.iter().take(NAMED) {
        text.push_str("\n  ");
        text.push_str(&by_hand(held, meta));
    }
    if let Some(more) = refused.len().checked_sub(NAMED).filter(|more| *more > 0) {
        let _ = write!(text, "\nand {more} more. Run this command again to list them.");
    }
    text
}

/// The kubectl command that removes the finalizer from one object.
fn by_hand(held: &Held, meta: &Meta) -> String {
    let operations = meta.without_finalizer(held.finalizer).unwrap_or_default();
    let resource = kubectl_name(&held.resource);
    format!("kubectl patch {resource} -n {} {} --type=json -p '{operations}'", meta.namespace, meta.name)
}

/// The kubectl command that removes the finalizer from all objects, as in the chart's notes.
fn by_hand_for_all(held: &Held, namespace: &str) -> String {
    let scope = if namespace.is_empty() { "-A".to_owned() } else { format!("-n {namespace}") };
    let found = r#"{{range .items}}{{$of := .metadata}}{{range $at, $name := $of.finalizers}}{{if eq $name "FINALIZER"}}{{$of.namespace}} {{$of.name}} {{$at}}{{"\n"}}{{end}}{{end}}{{end}}"#;
    let path = r#"/metadata/finalizers/'"$at"'"#;
    let operations =
        json!([{ "op": "test", "path": "PATH", "value": "FINALIZER" }, { "op": "remove", "path": "PATH" }]);
    let line = format!(
        "kubectl get RESOURCE {scope} -o go-template='{found}' | while read -r ns name at; do kubectl patch RESOURCE -n \"$ns\" \
         \"$name\" --type=json -p '{operations}'; done"
    );
    let line = line.replace("RESOURCE", &kubectl_name(&held.resource));
    let line = line.replace("FINALIZER", held.finalizer).replace("PATH", path);
    format!("{MANUALLY}\n  {line}")
}

fn kubectl_name(resource: &Resource) -> String {
    if resource.group.is_empty() { resource.plural.to_owned() } else { resource.crd_name() }
}

/// The remaining objects, and how to delete them.
async fn remaining(cluster: &Cluster, namespace: &str) -> String {
    let (mut stays, mut custom, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for resource in KINDS.map(|kind| (kind.resource)()) {
        match cluster.reads.list_meta(&resource, namespace, "").await {
            Ok(objects) if objects.is_empty() => {}
            Ok(objects) => {
                stays.push(format!("{} {}", objects.len(), resource.crd_name()));
                custom.push(resource.crd_name());
            }
            Err(error) if is_type_absent(&error) => {}
            Err(_) => unknown.push(resource.crd_name()),
        }
    }
    match cluster.reads.list_meta(&PODS, namespace, KIND_LABEL).await {
        Ok(pods) if pods.is_empty() => {}
        Ok(pods) => {
            let going = pods.iter().filter(|pod| pod.deleted.is_some()).count();
            stays.push(format!("{} pods, of which {going} are being deleted", pods.len()));
        }
        Err(_) => unknown.push("pods".to_owned()),
    }
    let mut lines = Vec::new();
    if stays.is_empty() && unknown.is_empty() {
        lines.push(format!("No objects of Quintet's kinds remain {}.", everywhere(&[namespace])));
    } else if !stays.is_empty() {
        lines.push(format!("Remaining {}: {}.", everywhere(&[namespace]), stays.join(", ")));
    }
    if !unknown.is_empty() {
        lines.push(format!("Other objects may remain. Cannot list: {}.", unknown.join(", ")));
    }
    if !custom.is_empty() {
        let scope = if namespace.is_empty() { "-A".to_owned() } else { format!("-n {namespace}") };
        lines.push(format!(
            "To delete the custom resources and the objects that they own, run\n  kubectl delete {} --all {scope}",
            custom.join(",")
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_of(kind: &str) -> Held {
        held().find(|held| held.resource.kind == kind).unwrap()
    }

    fn meta(finalizers: &[&str]) -> Meta {
        Meta {
            namespace: "ns".into(),
            name: "p".into(),
            uid: "u".into(),
            finalizers: finalizers.iter().map(|finalizer| (*finalizer).into()).collect(),
            ..Meta::default()
        }
    }

    #[test]
    fn patches_the_position_of_the_finalizer_and_tests_the_uid() {
        let [pods, greetings] = ["Pod", "Greeting"].map(held_of);
        assert_eq!(
            meta(&["other/one", "dj.dysproz.io/ledger"]).without_finalizer(pods.finalizer).unwrap(),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/finalizers/1", "value": "dj.dysproz.io/ledger"},
                {"op": "remove", "path": "/metadata/finalizers/1"},
            ])
        );
        assert!(meta(&["dj.dysproz.io/ledger"]).without_finalizer(greetings.finalizer).is_none());
        assert!(meta(&["example.com/farewell"]).without_finalizer(greetings.finalizer).is_some());
    }

    fn answer(code: u16, name: &str) -> Freed {
        sorted(&crate::api_client::answer(code, "", name))
    }

    #[test]
    fn classifies_answers() {
        assert!(matches!(answer(404, ""), Freed::News));
        assert!(matches!(answer(409, ""), Freed::News));
        assert!(matches!(answer(422, ""), Freed::News));
        assert!(matches!(answer(422, "p"), Freed::No(_)));
        assert!(matches!(answer(403, ""), Freed::No(_)));
        assert!(matches!(answer(401, ""), Freed::No(_)));
        for code in [429, 500, 503] {
            assert!(matches!(answer(code, ""), Freed::Later(..)), "{code}");
        }
    }

    #[test]
    fn names_the_namespaces() {
        assert_eq!(everywhere(&[""; 0]), "in all namespaces");
        assert_eq!(everywhere(&[""]), "in all namespaces");
        assert_eq!(everywhere(&["a"]), "in namespace a");
        assert_eq!(everywhere(&["a", "b"]), "in namespaces a, b");
    }

    #[test]
    fn a_rejection_lists_commands() {
        let [pods, greetings] = ["Pod", "Greeting"].map(held_of);
        let pod = meta(&["dj.dysproz.io/ledger"]);
        let refused: Vec<(&Meta, String)> = (0..12).map(|_| (&pod, "403 Forbidden: no".to_owned())).collect();
        let text = refusal(&pods, &refused);
        assert!(text.contains("12 Pods") && text.contains("403 Forbidden: no"), "{text}");
        assert!(text.contains("kubectl patch pods -n ns p --type=json -p '[{"), "{text}");
        assert_eq!(text.matches("kubectl patch").count(), 10);
        assert!(text.contains("2 more"), "{text}");
        let all = by_hand_for_all(&greetings, "");
        assert!(
            all.contains("kubectl get greetings.example.com -A -o go-template='{{range .items}}"),
            "{all}"
        );
        assert!(
            all.contains(r#""path":"/metadata/finalizers/'"$at"'","value":"example.com/farewell"}"#),
            "{all}"
        );
        let all = by_hand_for_all(&pods, "ns");
        assert!(all.contains("kubectl get pods -n ns -o"), "{all}");
    }
}
