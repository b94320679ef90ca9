//! `cargo xtask demo`: one command, from a fresh clone to all five kinds at work. Every line it prints about a kind was
//! seen, not assumed: it fails with a sentence where something is not as it should be.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::{Cluster, DEFAULT_NAME, UpOptions, name_option};
use crate::kube::Kube;
use crate::manager::{self, Manager, ManagerOptions};
use crate::progress::Step;
use crate::run::{self, print, shell_quote};
use crate::{interrupt, paths};

/// The five definitions, by their full names.
const DEFINITIONS: [&str; 5] = [
    "daemonjobs.dj.dysproz.io",
    "podsets.batch.tutorial.kubebuilder.io",
    "pulsarconsumers.pulsar.pulsarconsumer.krvarma.com",
    "greetings.example.com",
    "books.christianb93.github.com",
];

/// Where the samples, which name no namespace, are applied.
const SAMPLES: &str = "default";

/// How long a kind may take to do its work. On a cluster with real nodes images are pulled meanwhile.
const LIMIT: Duration = Duration::from_mins(3);

/// `cargo xtask demo`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Show the product: a cluster, Quintet on it, every sample applied and seen to work",
    long_about = "Show the product: a cluster, Quintet on it, every sample applied and seen to work.\n\n\
    Brings a local cluster up (see `cargo xtask cluster up --help`), installs the chart, runs the manager as a process \
    with the rights of the chart's ServiceAccount, applies all samples and waits until each kind has done its work. \
    Cluster and manager are left running. It can be run again at any time."
)]
pub struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// How many simulated nodes the local cluster has (3 for a new one)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=5000))]
    nodes: Option<u16>,
    /// Use a cluster that you have, by its context in your kubeconfig, instead of a local one
    #[arg(long, conflicts_with_all = ["name", "nodes"])]
    context: Option<String>,
    /// Stop what an earlier demo left running; the local cluster is removed, one of your own stays as it is
    #[arg(long)]
    stop: bool,
}

/// Runs the demo.
pub fn run(args: &Args) -> Result<()> {
    if args.stop {
        return stop(args);
    }
    let begin = Instant::now();
    let (kube, local) = if let Some(context) = &args.context {
        (Kube::with_context(context)?, None)
    } else {
        let options = UpOptions { name: args.name.clone(), nodes: args.nodes.map(usize::from) };
        let (cluster, started) = Cluster::up(&options)?;
        if started.is_empty() {
            eprintln!("cluster {} is up already, with {} nodes", cluster.name(), cluster.nodes());
        }
        (cluster.kube().clone(), Some(cluster))
    };
    let repeated = kube.get(SAMPLES, "crd", DEFINITIONS[3])?.is_some()
        && kube.get(SAMPLES, DEFINITIONS[3], "hello-world")?.is_some();
    install(&kube)?;
    let (process, started) = Manager::ensure(&kube, &ManagerOptions::default())?;
    eprintln!("the manager {} (pid {})", if started { "runs" } else { "runs already" }, process.pid);
    let samples = paths::workspace().join("samples");
    run::stdout(kube.kubectl().args(["apply", "-n", SAMPLES, "-k"]).arg(&samples))?;

    let nodes = local.as_ref().map(Cluster::nodes);
    let ran_on = seen("DaemonJob daemonjob-sample: a pod ran to completion on every node", || {
        daemonjob(&kube, nodes)
    })?;
    seen("PodSet podset-sample: as many pods as wanted are ready", || podset(&kube))?;
    seen("PulsarConsumer pulsarconsumer-sample-1: its Deployment is there", || pulsarconsumer(&kube))?;
    let said = seen("Greeting hello-world: it was said", || greeting(&kube, repeated))?;
    seen("Book david-copperfield: it is Ready", || book(&kube))?;
    let refusal = seen("Book moby-dick: it was refused, with the reasons", || refused(&kube, &samples))?;

    let get = |args: &[&str]| run::stdout(kube.kubectl().arg("get").args(args).args(["-n", SAMPLES]));
    let pods = ["pods", "-l", "quintet.dev/kind=DaemonJob", "-o", "wide"];
    print(format!("\n$ kubectl get quintet\n{}", get(&["quintet"])?))?;
    print(format!("\n$ kubectl get {}   # {ran_on} nodes\n{}", pods.join(" "), get(&pods)?))?;
    print(format!("\nWhat the Greeting had the manager print:\n{said}\n"))?;
    print(format!("\n$ kubectl apply -f samples/book/moby-dick.yaml\n{}\n\n", refusal.trim()))?;
    print(format!("All five kinds work ({:.0} s). ", begin.elapsed().as_secs_f64()))?;
    print("Cluster and manager are left running. Go on by hand:\n")?;
    print(match &args.context {
        None => {
            let option = name_option(&args.name);
            format!(
                "  eval \"$(cargo xtask cluster env{option})\"\n  kubectl get quintet -A\n\
                 The manager's log: cargo xtask cluster logs -f{option}\n\
                 Stop and clean up: cargo xtask cluster down{option}\n"
            )
        }
        Some(context) => {
            let context = shell_quote(context);
            format!(
                "  kubectl config use-context {context}\n  kubectl get quintet -A\n\
                 The manager's log: {}\n\
                 Stop the manager:  cargo xtask demo --context {context} --stop\n",
                kube.log("manager.log").display()
            )
        }
    })
}

fn stop(args: &Args) -> Result<()> {
    let Some(context) = &args.context else {
        Cluster::open(&args.name)?.down()?;
        eprintln!("cluster {} is gone", args.name);
        return Ok(());
    };
    let kube = Kube::with_context(context)?;
    let ran = Manager::stop_recorded(&kube, "manager")?;
    eprintln!("the manager {}", if ran { "is stopped" } else { "was not running" });
    let context = shell_quote(context);
    eprintln!("the samples and the release are still there; to remove them:");
    eprintln!(
        "  cargo xtask demo --context {context}   # a manager must run while Greetings and DaemonJobs go"
    );
    eprintln!("  kubectl --context {context} delete -k samples");
    eprintln!("  cargo xtask demo --context {context} --stop");
    eprintln!("  helm --kube-context {context} uninstall quintet -n {}", manager::NAMESPACE);
    Ok(())
}

/// Installs the chart without a manager in the cluster, as there is no image for it: the manager is a process here.
pub fn install(kube: &Kube) -> Result<()> {
    let step = Step::start("installing the chart");
    run::stdout(
        kube.helm()
            .args(["upgrade", "--install", "quintet"])
            .arg(paths::workspace().join("charts/quintet"))
            .args(["--namespace", manager::NAMESPACE, "--create-namespace", "--set", "replicas=0"]),
    )?;
    let definitions = DEFINITIONS.map(|name| format!("crd/{name}"));
    run::stdout(
        kube.kubectl().args(["wait", "--for=condition=Established", "--timeout=60s"]).args(definitions),
    )?;
    step.done();
    Ok(())
}

fn seen<T>(what: &str, look: impl FnOnce() -> Result<T>) -> Result<T> {
    let step = Step::start(what);
    match look() {
        Ok(value) => {
            step.done();
            Ok(value)
        }
        Err(error) if error.is::<interrupt::Interrupted>() => Err(error),
        Err(error) => Err(error.context(format!("not so: {what}"))),
    }
}

/// The number of nodes that it ran on.
fn daemonjob(kube: &Kube, nodes: Option<usize>) -> Result<i64> {
    let done = until(kube, DEFINITIONS[0], "daemonjob-sample", |object| is_true(object, "Complete"))?;
    let succeeded = done["status"]["succeeded"].as_i64().unwrap_or_default();
    match nodes.and_then(|nodes| i64::try_from(nodes).ok()) {
        Some(nodes) if succeeded != nodes => bail!("it is Complete, but ran on {succeeded} of {nodes} nodes"),
        _ => Ok(succeeded),
    }
}

fn podset(kube: &Kube) -> Result<()> {
    until(kube, DEFINITIONS[1], "podset-sample", |object| {
        let wanted = object["spec"]["replicas"].as_i64();
        wanted.is_some() && object["status"]["readyReplicas"].as_i64() == wanted
    })?;
    Ok(())
}

fn pulsarconsumer(kube: &Kube) -> Result<()> {
    let name = "pulsarconsumer-sample-1";
    let consumer = until(kube, DEFINITIONS[2], name, |object| {
        object["status"]["replicas"].is_i64() && object["status"]["replicas"] == object["spec"]["replicas"]
    })?;
    let deployment = format!("{name}-deployment");
    match kube.get(SAMPLES, "deployment", &deployment)? {
        Some(found) if found["spec"]["replicas"] == consumer["spec"]["replicas"] => Ok(()),
        Some(_) => bail!("Deployment {deployment} has another number of replicas"),
        None => bail!("there is no Deployment {deployment}"),
    }
}

/// The lines that it had printed.
fn greeting(kube: &Kube, repeated: bool) -> Result<String> {
    let file = kube.log("manager.out");
    let all = ["Greeting: Hello, World!", "Create: Hello, World!", "Timer: Hello, World!"];
    // A Greeting that was there already was greeted then, perhaps by a manager whose output was not kept.
    let needed = if repeated { &all[2..] } else { &all[..] };
    run::poll("the lines of the Greeting", LIMIT, Duration::from_millis(200), || {
        let printed = fs::read_to_string(&file).unwrap_or_default();
        let there = |line: &&str| printed.lines().any(|printed| printed == *line);
        Ok(needed
            .iter()
            .all(there)
            .then(|| all.iter().filter(|line| there(line)).copied().collect::<Vec<_>>()))
    })
    .map(|lines| lines.join("\n"))
    .with_context(|| format!("the manager's stdout is {}", file.display()))
}

fn book(kube: &Kube) -> Result<()> {
    until(kube, DEFINITIONS[4], "david-copperfield", |object| is_true(object, "Ready"))?;
    Ok(())
}

/// The sentence of the refusal.
fn refused(kube: &Kube, samples: &Path) -> Result<String> {
    let file = samples.join("book/moby-dick.yaml");
    let output = run::output(kube.kubectl().args(["apply", "-n", SAMPLES, "-f"]).arg(file), None)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        bail!("it was accepted");
    }
    for field in ["spec.author", "spec.title"] {
        if !said.contains(&format!("{field}: Required value")) {
            bail!("the refusal does not say that {field} is required: {}", said.trim());
        }
    }
    Ok(said)
}

/// Waits until a sample is as it should be.
fn until(kube: &Kube, kind: &str, name: &str, as_it_should_be: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    run::poll(name, LIMIT, Duration::from_millis(200), || {
        last = kube.get(SAMPLES, kind, name)?.unwrap_or_default();
        Ok(as_it_should_be(&last).then_some(()))
    })
    .with_context(|| format!("its status is {}", last["status"]))?;
    Ok(last)
}

/// Whether a condition is True, and about the object as it is.
fn is_true(object: &Value, condition: &str) -> bool {
    let of_now = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let conditions = object["status"]["conditions"].as_array();
    of_now
        && conditions
            .is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_about_an_older_generation_does_not_count() {
        let object = |observed: i64, status: &str| {
            json!({
                "metadata": {"generation": 2},
                "status": {"observedGeneration": observed, "conditions": [{"type": "Ready", "status": status}]},
            })
        };
        assert!(is_true(&object(2, "True"), "Ready"));
        assert!(!is_true(&object(1, "True"), "Ready"));
        assert!(!is_true(&object(2, "False"), "Ready"));
        assert!(!is_true(&object(2, "True"), "Complete"));
        assert!(!is_true(&json!({}), "Ready"));
    }
}
