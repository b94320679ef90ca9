//! `cargo xtask cluster ...`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use super::{Cluster, DEFAULT_NAME, State, UpOptions, name_option, real};
use crate::interrupt;
use crate::manager;
use crate::run::{print, shell_quote};

/// `cargo xtask cluster`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's name. Clusters with different names can run at the same time
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster, or the stopped parts of a running cluster
    ///
    /// The first start builds Kubernetes, etcd, kwok and helm from source with Go, which takes minutes. The
    /// user's cache directory keeps these programs, so that later starts take seconds. If KUBEBUILDER_ASSETS
    /// names a directory with etcd, kube-apiserver and kubectl, the cluster runs the programs in that
    /// directory. On this machine, the cluster listens only on 127.0.0.1.
    ///
    /// With `--nodes real`, which needs root on Linux, the nodes run pods. Each real node runs containerd,
    /// runc and kubelet in its own Linux namespaces. The first start of a real node also builds these
    /// programs from source. `cargo xtask image` writes archives of images, and `cargo xtask cluster load`
    /// loads the images into the nodes. Instead of busybox, every real node has a small image with the
    /// commands that the samples use.
    Up {
        /// The number of simulated nodes (3 by default), or `real` or `real:N` for N real nodes (2 by
        /// default)
        #[arg(long)]
        nodes: Option<Nodes>,
    },
    /// Load images from archives into real nodes
    Load {
        /// Archives that `cargo xtask image` wrote
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Kill, boot, disconnect or reconnect a real node
    Node {
        /// The action
        #[arg(value_enum)]
        what: Power,
        /// The node's number. `boot` accepts the number of a killed node, or the next unused number for a new
        /// node
        #[arg(value_parser = clap::value_parser!(u8).range(1..=i64::from(real::MAX_NODES)))]
        number: u8,
    },
    /// Forward connections to the network of real nodes
    #[command(hide = true)]
    Gateway(real::gateway::Args),
    /// Start a real node
    #[command(hide = true)]
    NodeBoot(real::init::Args),
    /// Run a real node, in its namespaces
    #[command(hide = true)]
    NodeInit(real::init::Args),
    /// Stop a cluster and remove its files
    Down,
    /// Show the cluster's processes
    Status,
    /// Print the commands that make a shell use the cluster: eval "$(cargo xtask cluster env)"
    Env,
    /// Print the log of a component or of a manager
    Logs {
        /// The log to print: the name of a component, `audit` for the audit log, `manager` for a manager's
        /// log, or `manager.out` for a manager's stdout
        #[arg(default_value = "manager")]
        component: String,
        /// Print new lines when they appear
        #[arg(short, long)]
        follow: bool,
    },
}

/// The number and kind of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// This number of simulated nodes.
    Simulated(usize),
    /// This number of real nodes; without one, the present number.
    Real(Option<usize>),
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const KNOWN: &str = "give a number from 1 to 5000, `real`, or `real:N` with N from 1 to";
        let max = real::MAX_NODES;
        let number = |text: &str, max: usize| {
            let number = text.parse().ok().filter(|number| (1..=max).contains(number));
            number.ok_or_else(|| format!("{KNOWN} {max}", max = real::MAX_NODES))
        };
        match text.strip_prefix("real") {
            Some("") => Ok(Self::Real(None)),
            Some(rest) => {
                number(rest.strip_prefix(':').unwrap_or_default(), max.into()).map(|n| Self::Real(Some(n)))
            }
            None => number(text, 5000).map(Self::Simulated),
        }
    }
}

/// An action on a node.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Power {
    /// Kill the node's kubelet, container runtime and pods at once, as a power failure does
    Kill,
    /// Start the node
    Boot,
    /// Disconnect the node: its processes continue to run, and all its packets are lost without an error
    Unplug,
    /// Connect the node again
    Plug,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Up { nodes } => up(&args.name, nodes),
        Command::Load { archives } => Cluster::open(&args.name)?.load_images(&archives),
        Command::Node { what: Power::Kill, number } => Cluster::open(&args.name)?.kill_node(number),
        Command::Node { what: Power::Boot, number } => Cluster::open(&args.name)?.boot_node(number),
        Command::Node { what: Power::Unplug, number } => Cluster::open(&args.name)?.plug_node(number, false),
        Command::Node { what: Power::Plug, number } => Cluster::open(&args.name)?.plug_node(number, true),
        Command::Gateway(gateway) => real::gateway::run(&gateway),
        Command::NodeBoot(node) => real::init::boot(&args.name, &node),
        Command::NodeInit(node) => real::init::run(&args.name, &node),
        Command::Down => down(&args.name),
        Command::Status => status(&args.name),
        Command::Env => env(&args.name),
        Command::Logs { component, follow } => logs(&args.name, &component, follow),
    }
}

fn up(name: &str, nodes: Option<Nodes>) -> Result<()> {
    let begin = Instant::now();
    let options = |nodes| UpOptions { name: name.to_owned(), nodes, ..UpOptions::default() };
    let (cluster, started) = match nodes {
        None if Cluster::open(name).is_ok_and(|cluster| cluster.is_real()) => {
            Cluster::up_real(&options(None))?
        }
        None => Cluster::up(&options(None))?,
        Some(Nodes::Simulated(nodes)) => Cluster::up(&options(Some(nodes)))?,
        Some(Nodes::Real(nodes)) => Cluster::up_real(&options(nodes))?,
    };
    let kind = if cluster.is_real() { "real" } else { "simulated" };
    let nodes = format!("{} {kind}", cluster.nodes());
    if started.is_empty() {
        eprintln!("cluster {} is up already, with {nodes} nodes", cluster.name());
    } else {
        eprintln!(
            "cluster {} is up, with {nodes} nodes, after {:.1} s",
            cluster.name(),
            begin.elapsed().as_secs_f64()
        );
    }
    let option = name_option(cluster.name());
    eprintln!(
        "use it:  eval \"$(cargo xtask cluster env{option})\"\nstop it: cargo xtask cluster down{option}"
    );
    Ok(())
}

fn down(name: &str) -> Result<()> {
    let begin = Instant::now();
    Cluster::open(name)?.down()?;
    eprintln!("cluster {name} is gone ({:.1} s)", begin.elapsed().as_secs_f64());
    Ok(())
}

fn status(name: &str) -> Result<()> {
    let cluster = Cluster::open(name)?;
    let statuses = cluster.status()?;
    let mut table = vec![format!("{:<25} {:>8} {:>6}  STATE\n", "COMPONENT", "PID", "PORT")];
    for status in &statuses {
        let pid = status.pid.map_or("-".to_owned(), |pid| pid.to_string());
        let state = match status.state {
            State::Stopped => "stopped",
            State::Running => "running",
            State::NotReady => "not ready",
            State::Ready => "ready",
        };
        let port = if status.port == 0 { "-".to_owned() } else { status.port.to_string() };
        table.push(format!("{:<25} {pid:>8} {port:>6}  {state}\n", status.name));
    }
    print(table.concat())?;
    if statuses.iter().filter(|status| status.is_component()).all(|status| status.state == State::Ready) {
        Ok(())
    } else {
        bail!("a component is not ready: `cargo xtask cluster up{}` starts it", name_option(name))
    }
}

fn env(name: &str) -> Result<()> {
    let cluster = Cluster::open(name)?;
    let path = |path: PathBuf| shell_quote(&path.to_string_lossy());
    let lines = format!(
        "export KUBECONFIG={}\nexport KUBECACHEDIR={}\nexport PATH={}:\"$PATH\"\n",
        path(cluster.kubeconfig()),
        path(cluster.kube().cache()),
        path(cluster.dir().bin())
    );
    print(lines)
}

fn logs(name: &str, component: &str, follow: bool) -> Result<()> {
    let cluster = Cluster::open(name)?;
    if cluster.is_real() && component == "manager" {
        // The manager is a pod there.
        let mut kubectl = cluster.kubectl();
        kubectl.args([
            "logs",
            "--namespace",
            manager::NAMESPACE,
            "--selector",
            "app.kubernetes.io/name=quintet",
        ]);
        kubectl.args(["--prefix", "--tail=-1"]).args(follow.then_some("--follow"));
        if !kubectl.status().context("cannot run kubectl")?.success() {
            bail!("cluster {name}: cannot read the managers' logs, see above");
        }
        return Ok(());
    }
    let logs = cluster.dir().logs();
    let known: BTreeMap<String, PathBuf> = fs::read_dir(&logs)
        .with_context(|| format!("cannot read {}", logs.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter_map(|path| {
            let file = path.file_name()?.to_string_lossy().into_owned();
            Some((file.strip_suffix(".log").map(str::to_owned).unwrap_or(file), path))
        })
        .collect();
    let Some(file) = known.get(component) else {
        let why = match component {
            "manager" => "no manager has run against it yet (`cargo xtask demo` starts one)".to_owned(),
            other => format!("there is no log of {other:?}"),
        };
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        bail!("cluster {name}: {why}; there are logs of: {}", known.join(", "));
    };
    let mut log = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match log.read(&mut buffer)? {
            0 if follow => {
                if interrupt::check().is_err() {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(200));
            }
            0 => return Ok(()),
            read => print(&buffer[..read])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nodes_as_a_number_or_real() {
        assert_eq!("5".parse(), Ok(Nodes::Simulated(5)));
        assert_eq!("real".parse(), Ok(Nodes::Real(None)));
        assert_eq!("real:3".parse(), Ok(Nodes::Real(Some(3))));
        for bad in ["0", "5001", "", "reel", "real3", "real:", "real:0", "real:9"] {
            let error = bad.parse::<Nodes>().unwrap_err();
            assert!(error.contains("`real:N` with N from 1 to 8"), "{bad}: {error}");
        }
    }
}
