//! `cargo xtask cluster ...`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use super::{Cluster, DEFAULT_NAME, UpOptions, name_option};
use crate::interrupt;
use crate::run::{print, shell_quote};

/// `cargo xtask cluster`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's name; several may run at once
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a cluster up, or what of it is not running
    ///
    /// The first time builds Kubernetes, etcd, kwok and helm from source with Go, which takes minutes; they are kept
    /// in the user's cache. After that a cluster is up in seconds. A directory with etcd, kube-apiserver and kubectl
    /// named by KUBEBUILDER_ASSETS is used in place of built ones. Everything listens on 127.0.0.1 only.
    Up {
        /// How many simulated nodes the cluster has (3 for a new one)
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=5000))]
        nodes: Option<u16>,
    },
    /// Stop a cluster and remove everything it left
    Down,
    /// Show the cluster's processes
    Status,
    /// Print the lines that make a shell use the cluster: eval "$(cargo xtask cluster env)"
    Env,
    /// Print a log
    Logs {
        /// A component, `audit`, or a manager: `manager` is its log, `manager.out` its stdout
        #[arg(default_value = "manager")]
        component: String,
        /// Go on printing what is added
        #[arg(short, long)]
        follow: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Up { nodes } => up(args.name, nodes.map(usize::from)),
        Command::Down => down(&args.name),
        Command::Status => status(&args.name),
        Command::Env => env(&args.name),
        Command::Logs { component, follow } => logs(&args.name, &component, follow),
    }
}

fn up(name: String, nodes: Option<usize>) -> Result<()> {
    let begin = Instant::now();
    let (cluster, started) = Cluster::up(&UpOptions { name, nodes })?;
    let nodes = cluster.nodes();
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
        let state = match (status.running, status.well) {
            (true, true) => "well",
            (true, false) => "running, not well",
            (false, _) => "not running",
        };
        table.push(format!("{:<25} {pid:>8} {:>6}  {state}\n", status.name, status.port));
    }
    print(table.concat())?;
    if statuses.iter().filter(|status| status.is_component()).all(|status| status.well) {
        Ok(())
    } else {
        bail!("not everything is well: `cargo xtask cluster up{}` starts what is not", name_option(name))
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
