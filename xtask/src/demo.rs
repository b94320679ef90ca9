//! `cargo xtask demo`: one command, from a fresh clone to all five kinds at work. Every line it prints about a kind was
//! seen, not assumed: it fails with a sentence where something is not as it should be.

mod consumers;
mod real;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::cli::Nodes;
use quintet_localcluster::cluster::{Cluster, DEFAULT_NAME, UpOptions, name_option};
use quintet_localcluster::kube::{self, Kube};
use quintet_localcluster::manager::{self, Manager, ManagerOptions};
use quintet_localcluster::progress::Step;
use quintet_localcluster::pulsar::Broker;
use quintet_localcluster::run::{self, print, shell_quote};
use quintet_localcluster::{chart, interrupt, paths};
use serde_json::Value;

use consumers::Consumers;

/// Where the samples, which name no namespace, are applied.
const SAMPLES: &str = "default";

/// How long a kind may take to do its work. On a cluster with real nodes images are pulled meanwhile.
const LIMIT: Duration = Duration::from_mins(3);

/// `cargo xtask demo`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Show the product: a cluster, Quintet on it, a sample of each kind applied and seen to work",
    long_about = "Show the product: a cluster, Quintet on it, a sample of each kind applied and seen to work.\n\n\
    Brings a local cluster up (see `cargo xtask cluster up --help`), installs the chart, applies a sample of each kind and waits \
    until each kind has done its work. Where this machine can have real nodes, the managers are pods of the project's \
    image and so are the samples' containers; else nodes are simulated, what is missing is said, and the manager is a \
    process with the rights of the chart's ServiceAccount. Where \
    there are Java and Maven, a broker of Apache Pulsar is part of it (see `cargo xtask pulsar --help`), and consumers \
    are run. All is left running. It can be run again at any time."
)]
pub struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// How many simulated nodes the local cluster has (3 for a new one), or `real` or `real:N` for N real ones (2 for a new one)
    #[arg(long)]
    nodes: Option<Nodes>,
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
        let kube = Kube::with_context(context)?;
        refuse_a_manager_of_the_cluster(&kube, context)?;
        (kube, None)
    } else {
        let (cluster, started) = up(args)?;
        if started.is_empty() {
            eprintln!("cluster {} is up already, with {} nodes", cluster.name(), cluster.nodes());
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

/// A local cluster: with real nodes where none were asked for by number and this machine can have them. One that is there
/// keeps its own.
fn up(args: &Args) -> Result<(Cluster, Vec<String>)> {
    let options = |nodes: Option<usize>| UpOptions { name: args.name.clone(), nodes };
    match args.nodes {
        Some(Nodes::Simulated(nodes)) => Cluster::up(&options(Some(nodes))),
        Some(Nodes::Real(nodes)) => Cluster::up_real(&options(nodes)),
        None => match Cluster::open(&args.name) {
            Ok(cluster) if cluster.is_real() => Cluster::up_real(&options(None)),
            Ok(_) => Cluster::up(&options(None)),
            Err(_) => {
                if let Some(missing) = real::missing()? {
                    eprintln!("nodes are simulated: {missing}");
                    return Cluster::up(&options(None));
                }
                eprintln!("nodes are real, and pods are run (--nodes 3 simulates three)");
                Cluster::up_real(&options(None))
            }
        },
    }
}

/// Everything after the cluster is there.
fn show(args: &Args, kube: &Kube, local: Option<&Cluster>, begin: Instant) -> Result<()> {
    let repeated = kube.get(SAMPLES, "crd", chart::DEFINITIONS[3])?.is_some()
        && kube.get(SAMPLES, chart::DEFINITIONS[3], "hello-world")?.is_some();
    let real = local.filter(|cluster| cluster.is_real());
    match real {
        Some(cluster) => real::install(cluster)?,
        None => chart::install(kube)?,
    }
    let consumers = match (local, consumers::missing()) {
        (None, _) => None,
        (Some(_), Some(missing)) => {
            eprintln!("no consumer is run: {missing}");
            None
        }
        (Some(cluster), None) => Some(Consumers::start(cluster)?),
    };
    if real.is_none() {
        let (process, started) = Manager::ensure(kube, &ManagerOptions::default())?;
        eprintln!("the manager {} (pid {})", if started { "runs" } else { "runs already" }, process.pid);
    }
    let samples = paths::workspace().join("samples");
    run::stdout(kube.kubectl().args(["apply", "-n", SAMPLES, "-k"]).arg(&samples))?;

    let nodes = local.map(Cluster::nodes);
    let ran_on =
        seen("DaemonJob daemonjob-sample: a pod ran to completion on every node", || daemonjob(kube, nodes))?;
    seen("PodSet podset-sample: as many pods as wanted are ready", || podset(kube))?;
    // Where its image is really run, what it is and needs is not ours to promise.
    let all_ready = local.is_some() && real.is_none() && consumers.is_none();
    let consumer = if all_ready {
        "PulsarConsumer pulsarconsumer-sample-1: its Deployment is there, and all its pods are ready"
    } else {
        "PulsarConsumer pulsarconsumer-sample-1: its Deployment is there"
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
    let said = seen("Greeting hello-world: it was said", || greeting(kube, repeated, real.is_some()))?;
    seen("Book david-copperfield: it is Ready", || book(kube))?;
    let refusal = seen("Book moby-dick: it was refused, with the reasons", || refused(kube, &samples))?;

    let get = |args: &[&str]| run::stdout(kube.kubectl().arg("get").args(args).args(["-n", SAMPLES]));
    let pods = ["pods", "-l", "quintet.dev/kind=DaemonJob", "-o", "wide"];
    print(format!("\n$ kubectl get quintet\n{}", get(&["quintet"])?))?;
    print(format!("\n$ kubectl get {}   # {ran_on} nodes\n{}", pods.join(" "), get(&pods)?))?;
    print(consumed)?;
    print(format!("\nWhat the Greeting had the manager print:\n{said}\n"))?;
    print(format!("\n$ kubectl apply -f samples/book/moby-dick.yaml\n{}\n\n", refusal.trim()))?;
    print(format!("All five kinds work ({:.0} s). ", begin.elapsed().as_secs_f64()))?;
    print("Cluster and manager are left running. Go on by hand:\n")?;
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

/// What ends what a demo leaves running.
fn stop_command(args: &Args) -> String {
    match &args.context {
        None if consumers::missing().is_none() => {
            format!("cargo xtask demo --stop{}", name_option(&args.name))
        }
        None => format!("cargo xtask cluster down{}", name_option(&args.name)),
        Some(context) => format!("cargo xtask demo --context {} --stop", shell_quote(context)),
    }
}

/// For a demo that does not get to its end.
fn how_to_stop(args: &Args) -> String {
    match &args.context {
        None => format!("cluster {} is left running; stop it: {}", args.name, stop_command(args)),
        Some(_) => format!("a manager may be left running; stop it: {}", stop_command(args)),
    }
}

/// The chart is installed without a manager in the cluster: one that is there would be scaled away.
fn refuse_a_manager_of_the_cluster(kube: &Kube, context: &str) -> Result<()> {
    let namespace = manager::NAMESPACE;
    match kube.get(namespace, "deployment", "quintet")? {
        Some(deployment) if has_replicas(&deployment) => bail!(
            "Deployment quintet in namespace {namespace} runs a manager already, which the demo would scale away: \
             uninstall it (`helm --kube-context {} uninstall quintet -n {namespace}` if it came with helm) or use \
             another cluster",
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
        // Of a cluster that it lives in, it goes first.
        let cluster = Cluster::open(&args.name)?;
        if let Ok(broker) = Broker::open(&args.name) {
            broker.down()?;
            eprintln!("broker {} is gone", args.name);
        }
        cluster.down()?;
        eprintln!("cluster {} is gone", args.name);
        return Ok(());
    };
    let kube = Kube::with_context(context)?;
    let ran = Manager::stop_recorded(&kube, "manager")?;
    eprintln!("the manager {}", if ran { "is stopped" } else { "was not running" });
    let context = shell_quote(context);
    eprintln!("the samples and the release are still there; to remove them:");
    eprintln!("  cargo xtask demo --context {context}   # a manager must run while Greetings go");
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
        Err(error) => Err(error.context(format!("not so: {what}"))),
    }
}

/// The number of nodes that it ran on.
fn daemonjob(kube: &Kube, nodes: Option<usize>) -> Result<i64> {
    let done = until(kube, chart::DEFINITIONS[0], "daemonjob-sample", |object| is_true(object, "Complete"))?;
    ran_on(&done, nodes, kube.context())
}

/// The number of nodes that a DaemonJob which is Complete ran on: all, where their number is known, and one at least.
fn ran_on(done: &Value, nodes: Option<usize>, context: Option<&str>) -> Result<i64> {
    let succeeded = done["status"]["succeeded"].as_i64().unwrap_or_default();
    if succeeded == 0 {
        let context =
            context.map(|context| format!(" --context {}", shell_quote(context))).unwrap_or_default();
        bail!(
            "it is Complete with 0 nodes, as no node that may run it carries the label app=v1: run `kubectl label \
             node NODE app=v1{context}` and then the demo again"
        );
    }
    match nodes.and_then(|nodes| i64::try_from(nodes).ok()) {
        Some(nodes) if succeeded != nodes => bail!("it is Complete, but ran on {succeeded} of {nodes} nodes"),
        _ => Ok(succeeded),
    }
}

fn podset(kube: &Kube) -> Result<()> {
    until(kube, chart::DEFINITIONS[1], "podset-sample", |object| {
        let wanted = object["spec"]["replicas"].as_i64();
        wanted.is_some() && object["status"]["readyReplicas"].as_i64() == wanted
    })?;
    Ok(())
}

fn pulsarconsumer(kube: &Kube, ready: bool) -> Result<()> {
    let name = "pulsarconsumer-sample-1";
    let consumer = until(kube, chart::DEFINITIONS[2], name, |object| has_consumers(object, ready))?;
    let deployment = format!("{name}-deployment");
    match kube.get(SAMPLES, "deployment", &deployment)? {
        Some(found) if found["spec"]["replicas"] == consumer["spec"]["replicas"] => Ok(()),
        Some(_) => bail!("Deployment {deployment} has another number of replicas"),
        None => bail!("there is no Deployment {deployment}"),
    }
}

/// Whether a PulsarConsumer has as many pods as it wants; with `ready`, whether all of them are ready.
fn has_consumers(object: &Value, ready: bool) -> bool {
    let (wanted, status) = (&object["spec"]["replicas"], &object["status"]);
    wanted.is_i64() && status["replicas"] == *wanted && (!ready || status["readyReplicas"] == *wanted)
}

/// The lines that it had printed.
fn greeting(kube: &Kube, repeated: bool, in_pods: bool) -> Result<String> {
    let all = ["Greeting: Hello, World!", "Create: Hello, World!", "Timer: Hello, World!"];
    // A Greeting that was there already was greeted then, perhaps by a manager whose output was not kept.
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
    .with_context(|| format!("the manager's stdout is {}", file.display()))
}

fn book(kube: &Kube) -> Result<()> {
    until(kube, chart::DEFINITIONS[4], "david-copperfield", |object| is_true(object, "Ready"))?;
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
    of_now && kube::is_true(object, condition)
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

    #[test]
    fn a_daemonjob_that_ran_nowhere_is_not_taken_for_one_that_ran() {
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
    fn consumers_that_are_not_ready_count_where_nothing_is_promised_of_them() {
        let object = |replicas: i64, ready: i64| json!({"spec": {"replicas": 2}, "status": {"replicas": replicas, "readyReplicas": ready}});
        assert!(has_consumers(&object(2, 2), true));
        assert!(has_consumers(&object(2, 1), false));
        assert!(!has_consumers(&object(2, 1), true));
        assert!(!has_consumers(&object(1, 1), false));
        assert!(!has_consumers(&json!({}), false));
    }

    #[test]
    fn only_a_deployment_with_replicas_runs_a_manager() {
        assert!(has_replicas(&json!({"spec": {"replicas": 1}})));
        assert!(!has_replicas(&json!({"spec": {"replicas": 0}})));
        assert!(!has_replicas(&json!({})));
    }

    #[test]
    fn an_interrupted_demo_says_how_to_stop_what_runs() {
        let args = |name: &str, context: Option<&str>| Args {
            name: name.to_owned(),
            nodes: None,
            context: context.map(str::to_owned),
            stop: false,
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
