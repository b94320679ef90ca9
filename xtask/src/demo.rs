//! `cargo xtask demo`: shows every kind on a local cluster. The demo verifies every line that it prints about a kind, and
//! fails with a sentence otherwise.

mod consumers;
mod real;

use std::env;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quintet_kinds::KINDS;
use quintet_localcluster::cluster::cli::Nodes;
use quintet_localcluster::cluster::installed::Tools;
use quintet_localcluster::cluster::{Cluster, DEFAULT_NAME, UpOptions, name_option};
use quintet_localcluster::kube::{self, Kube};
use quintet_localcluster::manager::{self, Manager, ManagerOptions};
use quintet_localcluster::progress::Step;
use quintet_localcluster::pulsar::Broker;
use quintet_localcluster::run::{self, print, shell_quote};
use quintet_localcluster::{chart, interrupt, paths};
use serde_json::Value;

use crate::pictures;
use consumers::Consumers;

/// The namespace for the samples.
const SAMPLES: &str = "default";

/// The controllers of the kinds with checks of their own.
const SHOWN: [&str; 4] = ["daemonjob", "podset", "pulsarconsumer", "greeting"];

/// The timeout for a kind. It includes the image pulls of real nodes.
const LIMIT: Duration = Duration::from_mins(3);

/// `cargo xtask demo`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Install Quintet on a local cluster, apply a sample of each kind, and verify that it works",
    long_about = "Install Quintet on a local cluster, apply a sample of each kind, and verify that it works.\n\n\
    The command starts a local cluster (see `cargo xtask cluster up --help`), installs the chart, applies a sample of each \
    kind, and waits until each sample works. If this machine supports real nodes, managers and samples run in pods. Otherwise, \
    the command simulates nodes, prints the reason, and runs the manager as a process with the permissions of the chart's \
    ServiceAccount. The command uses helm and kubectl of the PATH if their versions fit, and otherwise builds them. If Java and \
    Maven are installed, the demo includes an Apache Pulsar broker (see `cargo xtask pulsar --help`) and running consumers.\n\n\
    After the command, the cluster and the manager continue to run. You can run the command again at any time."
)]
pub struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// The number of simulated nodes (a new cluster has 3), or `real` or `real:N` for real nodes (a new cluster has 2)
    #[arg(long)]
    nodes: Option<Nodes>,
    /// Use the cluster of this kubeconfig context instead of a local one
    #[arg(long, conflicts_with_all = ["name", "nodes"])]
    context: Option<String>,
    /// Stop an earlier demo: remove the local cluster, or with --context stop the manager in that cluster
    #[arg(long)]
    stop: bool,
    /// Write a picture of the output to docs/pictures/demo.svg
    #[arg(long, conflicts_with = "stop")]
    picture: bool,
}

/// Runs the demo.
pub fn run(args: &Args) -> Result<()> {
    if args.stop {
        return stop(args);
    }
    if args.picture {
        return pictures::write_demo(env::args().skip(2).filter(|arg| arg != "--picture"));
    }
    let begin = Instant::now();
    let (kube, local) = if let Some(context) = &args.context {
        let kube = Kube::with_context(context)?;
        refuse_a_manager_of_the_cluster(&kube, context)?;
        (kube, None)
    } else {
        let (cluster, started) = up(args)?;
        if started.is_empty() {
            eprintln!("cluster {} is already running, with {} nodes", cluster.name(), cluster.nodes());
        }
        (cluster.kube().clone(), Some(cluster))
    };
    let shown = show(args, &kube, local.as_ref(), begin);
    if let Err(error) = &shown
        && error.is::<interrupt::Interrupted>()
    {
        eprintln!("{}", how_to_stop(args));
    }
    shown
}

/// Starts a local cluster. Without --nodes, an existing cluster keeps its nodes, and a new one has real nodes if this machine
/// supports them.
fn up(args: &Args) -> Result<(Cluster, Vec<String>)> {
    let options =
        |nodes: Option<usize>| UpOptions { name: args.name.clone(), nodes, tools: Tools::Installed };
    match args.nodes {
        Some(Nodes::Simulated(nodes)) => Cluster::up(&options(Some(nodes))),
        Some(Nodes::Real(nodes)) => Cluster::up_real(&options(nodes)),
        None => match Cluster::open(&args.name) {
            Ok(cluster) if cluster.is_real() => Cluster::up_real(&options(None)),
            Ok(_) => Cluster::up(&options(None)),
            Err(_) => {
                if let Some(missing) = real::missing()? {
                    eprintln!("simulating nodes: {missing}");
                    return Cluster::up(&options(None));
                }
                eprintln!("using real nodes, which run pods (--nodes 3 simulates three nodes)");
                Cluster::up_real(&options(None))
            }
        },
    }
}

/// The demo on a running cluster.
fn show(args: &Args, kube: &Kube, local: Option<&Cluster>, begin: Instant) -> Result<()> {
    let greetings = "greetings.example.com";
    let repeated = kube.get(SAMPLES, "crd", greetings)?.is_some()
        && kube.get(SAMPLES, greetings, "hello-world")?.is_some();
    let real = local.filter(|cluster| cluster.is_real());
    match real {
        Some(cluster) => real::install(cluster)?,
        None => chart::install(kube)?,
    }
    let consumers = match (local, consumers::missing()) {
        (None, _) => None,
        (Some(_), Some(missing)) => {
            eprintln!("not running consumers: {missing}");
            None
        }
        (Some(cluster), None) => Some(Consumers::start(cluster)?),
    };
    if real.is_none() {
        let (process, started) = Manager::ensure(kube, &ManagerOptions::default())?;
        eprintln!(
            "the manager {} (pid {})",
            if started { "is running" } else { "is already running" },
            process.pid
        );
    }
    let samples = paths::workspace().join("samples");
    run::stdout(kube.kubectl().args(["apply", "-n", SAMPLES, "-k"]).arg(&samples))?;

    let nodes = local.map(Cluster::nodes);
    let ran_on =
        seen("DaemonJob daemonjob-sample: a pod completed on every node", || daemonjob(kube, nodes))?;
    seen("PodSet podset-sample: all desired pods are ready", || podset(kube))?;
    // Real nodes run the tutorial's image, which may not become ready.
    let all_ready = local.is_some() && real.is_none() && consumers.is_none();
    let consumer = if all_ready {
        "PulsarConsumer pulsarconsumer-sample-1: its Deployment exists, and all its pods are ready"
    } else {
        "PulsarConsumer pulsarconsumer-sample-1: its Deployment exists"
    };
    seen(consumer, || pulsarconsumer(kube, all_ready))?;
    let consumed = match &consumers {
        None => String::new(),
        Some(consumers) => {
            let shown = seen("PulsarConsumer pulsarconsumer-demo: it consumes from a real broker", || {
                consumers.show(kube)
            })?;
            consumers::unreachable(kube)?;
            shown
        }
    };
    let said =
        seen("Greeting hello-world: the manager printed it", || greeting(kube, repeated, real.is_some()))?;
    others(kube)?;
    let refusal =
        seen("Book moby-dick: the API server rejected it, with the reasons", || refused(kube, &samples))?;

    let get = |args: &[&str]| run::stdout(kube.kubectl().arg("get").args(args).args(["-n", SAMPLES]));
    let pods = ["pods", "-l", "quintet.dev/kind=DaemonJob", "-o", "wide"];
    print(format!("\n$ kubectl get quintet\n{}", get(&["quintet"])?))?;
    print(format!("\n$ kubectl get {}   # {ran_on} nodes\n{}", pods.join(" "), get(&pods)?))?;
    print(consumed)?;
    print(format!("\nThe manager printed for the Greeting:\n{said}\n"))?;
    print(format!("\n$ kubectl apply -f samples/book/moby-dick.yaml\n{}\n\n", refusal.trim()))?;
    print(format!("All kinds work ({:.0} s). ", begin.elapsed().as_secs_f64()))?;
    print("The cluster and the manager keep running. To continue:\n")?;
    print(match &args.context {
        None => {
            let option = name_option(&args.name);
            format!(
                "  eval \"$(cargo xtask cluster env{option})\"\n  kubectl get quintet -A\n\
                 The manager's log: {}\n\
                 Stop and clean up: {}\n",
                match real {
                    Some(_) =>
                        format!("kubectl logs -f -n {} -l app.kubernetes.io/name=quintet", manager::NAMESPACE),
                    None => format!("cargo xtask cluster logs -f{option}"),
                },
                stop_command(args)
            )
        }
        Some(context) => {
            let context = shell_quote(context);
            format!(
                "  kubectl config use-context {context}\n  kubectl get quintet -A\n\
                 The manager's log: {}\n\
                 Stop the manager:  {}\n",
                kube.log("manager.log").display(),
                stop_command(args)
            )
        }
    })
}

/// The command that stops the demo.
fn stop_command(args: &Args) -> String {
    match &args.context {
        None if consumers::missing().is_none() => {
            format!("cargo xtask demo --stop{}", name_option(&args.name))
        }
        None => format!("cargo xtask cluster down{}", name_option(&args.name)),
        Some(context) => format!("cargo xtask demo --context {} --stop", shell_quote(context)),
    }
}

/// The hint after an interruption.
fn how_to_stop(args: &Args) -> String {
    match &args.context {
        None => format!("cluster {} keeps running; to stop it: {}", args.name, stop_command(args)),
        Some(_) => format!("a manager may still run; to stop it: {}", stop_command(args)),
    }
}

/// Rejects a cluster with a manager: the demo installs the chart with 0 replicas.
fn refuse_a_manager_of_the_cluster(kube: &Kube, context: &str) -> Result<()> {
    let namespace = manager::NAMESPACE;
    match kube.get(namespace, "deployment", "quintet")? {
        Some(deployment) if has_replicas(&deployment) => bail!(
            "Deployment quintet in namespace {namespace} already runs a manager, and the demo would scale it to 0. \
             Uninstall it (with helm: `helm --kube-context {} uninstall quintet -n {namespace}`), or use another cluster",
            shell_quote(context)
        ),
        _ => Ok(()),
    }
}

fn has_replicas(deployment: &Value) -> bool {
    deployment["spec"]["replicas"].as_i64().is_some_and(|replicas| replicas > 0)
}

fn stop(args: &Args) -> Result<()> {
    let Some(context) = &args.context else {
        // First the broker, which may run inside the cluster.
        let cluster = Cluster::open(&args.name)?;
        if let Ok(broker) = Broker::open(&args.name) {
            broker.down()?;
            eprintln!("removed broker {}", args.name);
        }
        cluster.down()?;
        eprintln!("removed cluster {}", args.name);
        return Ok(());
    };
    let kube = Kube::with_context(context)?;
    let ran = Manager::stop_recorded(&kube, "manager")?;
    eprintln!("{}", if ran { "stopped the manager" } else { "the manager was not running" });
    let context = shell_quote(context);
    eprintln!("the samples and the release remain; to remove them:");
    eprintln!("  cargo xtask demo --context {context}   # Greetings need a running manager to be deleted");
    eprintln!("  kubectl --context {context} delete -k samples");
    eprintln!("  cargo xtask demo --context {context} --stop");
    eprintln!("  helm --kube-context {context} uninstall quintet -n {}", manager::NAMESPACE);
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
        Err(error) => Err(error.context(format!("failed: {what}"))),
    }
}

/// The number of nodes that the sample ran on.
fn daemonjob(kube: &Kube, nodes: Option<usize>) -> Result<i64> {
    let done =
        until(kube, "daemonjobs.dj.dysproz.io", "daemonjob-sample", |object| is_true(object, "Complete"))?;
    ran_on(&done, nodes, kube.context())
}

/// The number of nodes of a complete DaemonJob. Fails if it ran on none, or on fewer than the known number of nodes.
fn ran_on(done: &Value, nodes: Option<usize>, context: Option<&str>) -> Result<i64> {
    let succeeded = done["status"]["succeeded"].as_i64().unwrap_or_default();
    if succeeded == 0 {
        let context =
            context.map(|context| format!(" --context {}", shell_quote(context))).unwrap_or_default();
        bail!(
            "it is Complete with 0 nodes, because no eligible node has the label app=v1: run `kubectl label node NODE \
             app=v1{context}`, and run the demo again"
        );
    }
    match nodes.and_then(|nodes| i64::try_from(nodes).ok()) {
        Some(nodes) if succeeded != nodes => bail!("it is Complete, but ran on {succeeded} of {nodes} nodes"),
        _ => Ok(succeeded),
    }
}

fn podset(kube: &Kube) -> Result<()> {
    until(kube, "podsets.batch.tutorial.kubebuilder.io", "podset-sample", |object| {
        let wanted = object["spec"]["replicas"].as_i64();
        wanted.is_some() && object["status"]["readyReplicas"].as_i64() == wanted
    })?;
    Ok(())
}

fn pulsarconsumer(kube: &Kube, ready: bool) -> Result<()> {
    let name = "pulsarconsumer-sample-1";
    let consumer = until(kube, consumers::KIND, name, |object| has_consumers(object, ready))?;
    let deployment = format!("{name}-deployment");
    match kube.get(SAMPLES, "deployment", &deployment)? {
        Some(found) if found["spec"]["replicas"] == consumer["spec"]["replicas"] => Ok(()),
        Some(_) => bail!("Deployment {deployment} has a different number of replicas"),
        None => bail!("Deployment {deployment} does not exist"),
    }
}

/// Whether a PulsarConsumer has its desired pods; with `ready`, whether all of them are ready.
fn has_consumers(object: &Value, ready: bool) -> bool {
    let (wanted, status) = (&object["spec"]["replicas"], &object["status"]);
    wanted.is_i64() && status["replicas"] == *wanted && (!ready || status["readyReplicas"] == *wanted)
}

/// The lines that the manager printed for the Greeting.
fn greeting(kube: &Kube, repeated: bool, in_pods: bool) -> Result<String> {
    let all = ["Greeting: Hello, World!", "Create: Hello, World!", "Timer: Hello, World!"];
    // For an existing Greeting, an earlier manager printed the first lines, and its output may be lost.
    let needed = if repeated { &all[2..] } else { &all[..] };
    if in_pods {
        return real::greeting(kube, needed, &all);
    }
    let file = kube.log("manager.out");
    run::poll("the lines of the Greeting", LIMIT, Duration::from_millis(200), || {
        let printed = fs::read_to_string(&file).unwrap_or_default();
        let there = |line: &&str| printed.lines().any(|printed| printed == *line);
        Ok(needed
            .iter()
            .all(there)
            .then(|| all.iter().filter(|line| there(line)).copied().collect::<Vec<_>>()))
    })
    .map(|lines| lines.join("\n"))
    .with_context(|| format!("see the manager's stdout in {}", file.display()))
}

/// Waits for the samples of the other kinds, whose condition Ready shows all that they do.
fn others(kube: &Kube) -> Result<()> {
    for kind in KINDS.iter().filter(|kind| !SHOWN.contains(&kind.controller)) {
        let (resource, name) = ((kind.resource)(), kind.sample.trim_end_matches(".yaml"));
        let is_ready = || until(kube, &resource.crd_name(), name, |object| is_true(object, "Ready"));
        seen(&format!("{} {name}: it is Ready", resource.kind), is_ready)?;
    }
    Ok(())
}

/// The message of the rejection.
fn refused(kube: &Kube, samples: &Path) -> Result<String> {
    let file = samples.join("book/moby-dick.yaml");
    let output = run::output(kube.kubectl().args(["apply", "-n", SAMPLES, "-f"]).arg(file), None)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        bail!("the API server accepted it");
    }
    for field in ["spec.author", "spec.title"] {
        if !said.contains(&format!("{field}: Required value")) {
            bail!("the message does not require {field}: {}", said.trim());
        }
    }
    Ok(said)
}

/// Waits until a sample meets the condition.
fn until(kube: &Kube, kind: &str, name: &str, as_it_should_be: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    run::poll(name, LIMIT, Duration::from_millis(200), || {
        last = kube.get(SAMPLES, kind, name)?.unwrap_or_default();
        Ok(as_it_should_be(&last).then_some(()))
    })
    .with_context(|| format!("its status is {}", last["status"]))?;
    Ok(last)
}

/// Whether a condition is True for the current generation.
fn is_true(object: &Value, condition: &str) -> bool {
    let of_now = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    of_now && kube::is_true(object, condition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ignores_a_condition_of_an_older_generation() {
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

    #[test]
    fn rejects_a_daemonjob_that_ran_on_no_node() {
        let done = |succeeded: i64| json!({"status": {"succeeded": succeeded}});
        assert_eq!(ran_on(&done(3), Some(3), None).unwrap(), 3);
        assert_eq!(ran_on(&done(2), None, Some("mine")).unwrap(), 2);
        let error = ran_on(&done(2), Some(3), None).unwrap_err().to_string();
        assert!(error.contains("2 of 3 nodes"), "{error}");
        let error = ran_on(&done(0), None, Some("mine")).unwrap_err().to_string();
        assert!(error.contains("`kubectl label node NODE app=v1 --context mine`"), "{error}");
        let error = ran_on(&json!({}), Some(3), None).unwrap_err().to_string();
        assert!(error.contains("`kubectl label node NODE app=v1`"), "{error}");
    }

    #[test]
    fn counts_consumers_that_are_not_ready_unless_required() {
        let object = |replicas: i64, ready: i64| json!({"spec": {"replicas": 2}, "status": {"replicas": replicas, "readyReplicas": ready}});
        assert!(has_consumers(&object(2, 2), true));
        assert!(has_consumers(&object(2, 1), false));
        assert!(!has_consumers(&object(2, 1), true));
        assert!(!has_consumers(&object(1, 1), false));
        assert!(!has_consumers(&json!({}), false));
    }

    #[test]
    fn a_deployment_with_0_replicas_runs_no_manager() {
        assert!(has_replicas(&json!({"spec": {"replicas": 1}})));
        assert!(!has_replicas(&json!({"spec": {"replicas": 0}})));
        assert!(!has_replicas(&json!({})));
    }

    #[test]
    fn an_interrupted_demo_prints_the_stop_command() {
        let args = |name: &str, context: Option<&str>| Args {
            name: name.to_owned(),
            nodes: None,
            context: context.map(str::to_owned),
            stop: false,
            picture: false,
        };
        let command = if consumers::missing().is_some() {
            "cargo xtask cluster down"
        } else {
            "cargo xtask demo --stop"
        };
        assert!(how_to_stop(&args(DEFAULT_NAME, None)).ends_with(&format!("stop it: {command}")));
        assert!(how_to_stop(&args("mine", None)).ends_with(&format!("stop it: {command} --name mine")));
        let line = how_to_stop(&args(DEFAULT_NAME, Some("my cluster")));
        assert!(line.ends_with("stop it: cargo xtask demo --context 'my cluster' --stop"), "{line}");
    }
}
