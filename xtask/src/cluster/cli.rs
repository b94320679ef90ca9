//! `cargo xtask cluster ...`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use super::{Cluster, DEFAULT_NAME, UpOptions};
use crate::interrupt;
use crate::run::shell_quote;

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
    let option = option(cluster.name());
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
    let mut table = format!("{:<25} {:>8} {:>6}  STATE\n", "COMPONENT", "PID", "PORT");
    for status in &statuses {
        let pid = status.pid.map_or("-".to_owned(), |pid| pid.to_string());
        let state = match (status.running, status.well) {
            (true, true) => "well",
            (true, false) => "running, not well",
            (false, _) => "not running",
        };
        table += &format!("{:<25} {pid:>8} {:>6}  {state}\n", status.name, status.port);
    }
    print(table.as_bytes())?;
    if statuses.iter().all(|status| status.well) {
        Ok(())
    } else {
        bail!("not everything is well: `cargo xtask cluster up{}` starts what is not", option(name))
    }
}

fn env(name: &str) -> Result<()> {
    let cluster = Cluster::open(name)?;
    let path = |path: PathBuf| shell_quote(&path.to_string_lossy());
    let lines = format!(
        "export KUBECONFIG={}\nexport PATH={}:\"$PATH\"\n",
        path(cluster.kubeconfig()),
        path(cluster.dir().bin())
    );
    print(lines.as_bytes())
}

fn logs(name: &str, component: &str, follow: bool) -> Result<()> {
    let cluster = Cluster::open(name)?;
    let logs = cluster.dir().logs();
    let mut known: Vec<String> = fs::read_dir(&logs)
        .with_context(|| format!("cannot read {}", logs.display()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|file| file.strip_suffix(".log").map_or(file.clone(), str::to_owned))
        .collect();
    known.sort();
    let file = match known.iter().find(|known| *known == component) {
        Some(_) if component.ends_with(".out") => logs.join(component),
        Some(_) => logs.join(format!("{component}.log")),
        None if component == "manager" => bail!(
            "no manager has run against cluster {name} yet: `cargo xtask demo` starts one; there are logs of: {}",
            known.join(", ")
        ),
        None => bail!("there is no log of {component:?}; there are logs of: {}", known.join(", ")),
    };
    let mut log = File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
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

fn option(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

/// To stdout; a reader that has seen enough (`head`) is no error.
fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot print"),
    }
}
