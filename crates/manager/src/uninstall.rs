//! `quintet uninstall`: takes our finalizers off, so that what Quintet made can be deleted when no manager runs.
//!
//! Every object is changed by itself and only if it still is what was seen, so the command may be interrupted and run
//! again. A manager that ran meanwhile would put finalizers back: with `--manager` it is stopped and kept from writing
//! first ([`writer`]), else that is up to whoever calls.

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
pub use self::writer::{LeaseArgs, Manager, parse_manager};
use crate::cluster::{Cluster, ClusterArgs, code_of, is_absent, is_type_absent, parse_name, wait_of};

/// Rounds in a row in which nothing could be changed, before it is given up.
const FRUITLESS: usize = 5;
/// How many objects progress is told after.
const PROGRESS: usize = 500;
/// How many objects are named when they could not be changed.
const NAMED: usize = 10;

/// Takes Quintet's finalizers off: dj.dysproz.io/ledger off pods, example.com/farewell off Greetings. Pods and Greetings
/// can then be deleted while no manager runs. No object of a user is deleted.
///
/// The manager must be stopped and stay so: one that runs puts finalizers on again, and outcomes of pods without one are
/// lost when the pods go. With --manager that is done first; else do it before (kubectl scale deployment NAME
/// --replicas=0, in its namespace).
///
/// It may be interrupted at any time; run it again and it goes on. You need to be allowed to list and patch pods and
/// greetings; with --manager, to get its Deployment and patch the scale of it, to list pods beside it, and to use its Lease.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The only namespaces to look at, separated by commas or each by a flag of its own. Default: all.
    #[arg(short, long, value_name = "NAMESPACE,...", value_delimiter = ',', value_parser = parse_name)]
    namespace: Vec<String>,

    /// Stop this manager first: its Deployment is scaled to 0, pods of it that do not elect a leader by the Lease are waited
    /// for, two minutes at most, and the Lease is held meanwhile and deleted at the end.
    #[arg(long, value_name = "NAMESPACE/DEPLOYMENT", value_parser = parse_manager)]
    manager: Option<Manager>,

    #[command(flatten)]
    lease: LeaseArgs,

    /// Do not ask.
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Examples, for a program that is called by this name.
pub fn examples(program: &str) -> String {
    format!(
        "Examples:\n  \
         {program} uninstall --manager quintet-system/quintet\n  \
         {program} uninstall --namespace NAMESPACE\n  \
         {program} uninstall --yes"
    )
}

/// Objects that have one of our finalizers.
struct Held {
    resource: Resource,
    /// What one is called in a sentence.
    name: &'static str,
    finalizer: &'static str,
}

impl Held {
    /// So many of them.
    fn counted(&self, count: usize) -> String {
        format!("{count} {}{}", self.name, if count == 1 { "" } else { "s" })
    }
}

fn held() -> impl Iterator<Item = Held> {
    KINDS.iter().filter_map(|kind| kind.finalizer).map(|finalizer| {
        let resource = (finalizer.resource)();
        Held { resource, name: resource.kind, finalizer: finalizer.name }
    })
}

/// Takes the finalizers off and says what stays.
pub async fn run(args: &Args) -> Result<()> {
    if !args.yes {
        ask(&everywhere(&args.namespace), args.manager.is_some())?;
    }
    let cluster = Cluster::of(&args.cluster).await?;
    let writer = match &args.manager {
        None => None,
        Some(manager) => {
            Some(Writer::become_the_one(&cluster, &args.cluster, manager, args.lease.of(manager)).await?)
        }
    };
    let freed = free_all(&cluster, &args.namespace, writer.as_ref()).await;
    if let Some(writer) = writer {
        writer.end(&cluster).await;
    }
    freed
}

/// The same, as far as the cluster goes.
async fn free_all(cluster: &Cluster, namespaces: &[String], writer: Option<&Writer>) -> Result<()> {
    // The empty name is that of all namespaces.
    let all = [String::new()];
    let namespaces = if namespaces.is_empty() { &all } else { namespaces };
    // What cannot be done in one place keeps nothing from being done in the others.
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

/// A line on standard output, which may be closed.
fn tell(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Where, in words.
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
        bail!("there is no terminal to ask on: say --yes to take the finalizers off {everywhere}");
    }
    let mut stdout = std::io::stdout();
    let _ = write!(
        stdout,
        "Takes Quintet's finalizers off pods and Greetings {everywhere}. The manager {}. Go on? [y/N] ",
        if stops_the_manager { "is stopped first" } else { "must have been stopped" }
    );
    let _ = stdout.flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}

/// What one patch came to.
enum Freed {
    /// The finalizer is off.
    Yes,
    /// The object has changed or is gone: the next list tells.
    News,
    /// The server is busy, or did not answer: tried again after a while.
    Later(Duration, String),
    /// The server does not allow it.
    No(String),
}

/// Lists and patches until a list shows none that has the finalizer.
async fn free(cluster: &Cluster, held: &Held, namespace: &str, writer: Option<&Writer>) -> Result<()> {
    let finalizer = held.finalizer;
    let (mut freed, mut fruitless, mut done) = (0_usize, 0, HashSet::<Arc<str>>::new());
    loop {
        // One that has lost its labels has the finalizer all the same.
        let listed = cluster.list_metadata(&held.resource, namespace, "").await;
        let listed = match listed {
            Err(error) if held.resource.custom && is_type_absent(&error) => Vec::new(),
            listed => listed.map_err(|error| {
                let sorry = cluster.sorry(&format!("{}s cannot be listed", held.name), &error);
                anyhow!("{sorry}\n{}", by_hand_for_all(held, namespace))
            })?,
        };
        let waiting: Vec<Meta> =
            listed.into_iter().filter(|meta| meta.without_finalizer(finalizer).is_some()).collect();
        if waiting.is_empty() {
            tell(&format!("{} freed of {finalizer} {}.", held.counted(freed), everywhere(&[namespace])));
            return Ok(());
        }
        if let Some(again) = waiting.iter().find(|meta| done.contains(&meta.uid)) {
            bail!(
                "{finalizer} was put back on {}/{}: a manager still runs; stop it and run this again",
                again.namespace,
                again.name
            );
        }
        tell(&format!("{} to be freed of {finalizer}.", held.counted(waiting.len())));
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
                        tell(&format!("{} freed …", held.counted(freed)));
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
            let why = later.map_or("they change all the time".to_owned(), |(_, why)| why);
            bail!(
                "{} cannot be freed of {finalizer}: {why}\nRun this again, or\n{}",
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
    if writer.is_some_and(|writer| !writer.may_write()) {
        return Freed::Later(
            Duration::from_secs(2),
            "the managers' Lease was lost, and is not had again".to_owned(),
        );
    }
    let Some(operations) = meta.without_finalizer(held.finalizer) else { return Freed::News };
    match cluster.patch(&held.resource, meta, &operations).await {
        Ok(()) => Freed::Yes,
        Err(error) => sorted(&error),
    }
}

/// What an answer means that is no success.
fn sorted(error: &kube::Error) -> Freed {
    if is_absent(error) {
        return Freed::News;
    }
    match code_of(error) {
        Some(409) => Freed::News,
        // A `test` that fails; a whole object that the server does not take is named in the answer.
        Some(422) if !names_object(error) => Freed::News,
        Some(code) if code != 429 && code < 500 => Freed::No(brief(error)),
        _ => Freed::Later(wait_of(error), brief(error)),
    }
}

fn names_object(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.details.as_ref().is_some_and(|details| !details.name.is_empty()))
}

/// Why objects could not be changed, and what to run by hand.
fn refusal(held: &Held, refused: &[(&Meta, String)]) -> String {
    let why = refused.first().map(|(_, why)| why.as_str()).unwrap_or_default();
    let mut text = format!(
        "{} cannot be freed of {}: {why}\nBy hand, by somebody who may:",
        held.counted(refused.len()),
        held.finalizer
    );
    for (meta, _) in refused.iter().take(NAMED) {
        text.push_str("\n  ");
        text.push_str(&by_hand(held, meta));
    }
    if let Some(more) = refused.len().checked_sub(NAMED).filter(|more| *more > 0) {
        let _ = write!(text, "\nand {more} more; run this again to have them named.");
    }
    text
}

/// The command that does the same to one object.
fn by_hand(held: &Held, meta: &Meta) -> String {
    let operations = meta.without_finalizer(held.finalizer).unwrap_or_default();
    let resource = kubectl_name(&held.resource);
    format!("kubectl patch {resource} -n {} {} --type=json -p '{operations}'", meta.namespace, meta.name)
}

/// The command that does it to all, where they could not be listed; the chart's notes have the same.
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
    format!("By hand, by somebody who may:\n  {line}")
}

fn kubectl_name(resource: &Resource) -> String {
    if resource.group.is_empty() { resource.plural.to_owned() } else { resource.crd_name() }
}

/// What stays, and how it goes.
async fn remaining(cluster: &Cluster, namespace: &str) -> String {
    let (mut stays, mut custom, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for resource in KINDS.map(|kind| (kind.resource)()) {
        match cluster.list_metadata(&resource, namespace, "").await {
            Ok(objects) if objects.is_empty() => {}
            Ok(objects) => {
                stays.push(format!("{} {}", objects.len(), resource.crd_name()));
                custom.push(resource.crd_name());
            }
            Err(error) if is_type_absent(&error) => {}
            Err(_) => unknown.push(resource.crd_name()),
        }
    }
    match cluster.list_metadata(&PODS, namespace, KIND_LABEL).await {
        Ok(pods) if pods.is_empty() => {}
        Ok(pods) => {
            let going = pods.iter().filter(|pod| pod.deleted.is_some()).count();
            stays.push(format!("{} pods, {going} of which are being deleted", pods.len()));
        }
        Err(_) => unknown.push("pods".to_owned()),
    }
    let mut lines = Vec::new();
    if stays.is_empty() && unknown.is_empty() {
        lines.push(format!("Nothing of Quintet's kinds is left {}.", everywhere(&[namespace])));
    } else if !stays.is_empty() {
        lines.push(format!("What stays {}: {}.", everywhere(&[namespace]), stays.join(", ")));
    }
    if !unknown.is_empty() {
        lines.push(format!(
            "What else stays is not known, for these cannot be listed: {}.",
            unknown.join(", ")
        ));
    }
    if !custom.is_empty() {
        let scope = if namespace.is_empty() { "-A".to_owned() } else { format!("-n {namespace}") };
        lines.push(format!(
            "Custom resources go, and what was made for them with them, by\n  kubectl delete {} --all {scope}",
            custom.join(",")
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_finalizer_is_taken_from_where_it_stands_and_off_this_object_alone() {
        let [pods, greetings] =
            held().collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("two finalizers"));
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
        sorted(&crate::cluster::answer(code, "", name))
    }

    #[test]
    fn answers_are_sorted() {
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
    fn where_it_is_done_is_said_in_words() {
        assert_eq!(everywhere(&[""; 0]), "in all namespaces");
        assert_eq!(everywhere(&[""]), "in all namespaces");
        assert_eq!(everywhere(&["a"]), "in namespace a");
        assert_eq!(everywhere(&["a", "b"]), "in namespaces a, b");
    }

    #[test]
    fn a_refusal_says_what_to_run() {
        let [pods, greetings] =
            held().collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("two finalizers"));
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
