//! `cargo xtask pulsar ...`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Subcommand;

use super::{Broker, DEFAULT_NAME, Lifetime, Options, name_option};
use crate::run::{print, shell_quote};

/// `cargo xtask pulsar`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a broker if the broker does not run yet
    ///
    /// The first start downloads Apache Pulsar with Maven (250 MB), prepares it, and keeps it in the user's
    /// cache directory. Later starts take seconds. A broker needs Java 17 or newer, and listens only on
    /// 127.0.0.1. A broker keeps its data until `cargo xtask pulsar down`.
    Up {
        /// The broker's name. Brokers with different names can run at the same time
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
        /// Require tokens. The command creates a token of the administrator, and a token of a role that may
        /// produce and consume
        #[arg(long)]
        auth: bool,
        /// Require TLS. The command creates a CA for this broker, and a certificate of this CA
        #[arg(long)]
        tls: bool,
    },
    /// Stop a broker and remove its files
    Down {
        /// The broker's name
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
    },
    /// Show all brokers
    List,
}

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Up { name, auth, tls } => up(name, auth, tls),
        Command::Down { name } => down(&name),
        Command::List => list(),
    }
}

fn up(name: String, auth: bool, tls: bool) -> Result<()> {
    let begin = Instant::now();
    let tls = tls.then_some(Lifetime::Year);
    let (broker, started) = Broker::up(&Options { auth, tls, ..Options::new(name) })?;
    let name = broker.name();
    if started {
        eprintln!("broker {name} is up after {:.1} s", begin.elapsed().as_secs_f64());
    } else {
        eprintln!("broker {name} is up already");
    }
    eprintln!(
        "its admin API: {}\nstop it: cargo xtask pulsar down{}\nuse it:",
        broker.admin_url(),
        name_option(name)
    );
    let mut lines = vec![format!("export PULSAR_SERVER={}\n", broker.service_url())];
    let line = |variable: &str, file: PathBuf| {
        format!("export {variable}={}\n", shell_quote(&file.to_string_lossy()))
    };
    if broker.has_auth() {
        lines.push(line("PULSAR_TOKEN_FILE", broker.token_file()));
    }
    if broker.has_tls() {
        lines.push(line("PULSAR_TLS_CA_FILE", broker.ca_file()));
    }
    print(lines.concat())
}

fn down(name: &str) -> Result<()> {
    let begin = Instant::now();
    Broker::open(name)?.down()?;
    eprintln!("broker {name} is gone ({:.1} s)", begin.elapsed().as_secs_f64());
    Ok(())
}

fn list() -> Result<()> {
    let mut table = vec![format!("{:<25} {:>8} {:<30} {:<25} STATE\n", "BROKER", "PID", "SERVICE", "ADMIN")];
    for name in Broker::names()? {
        let broker = Broker::open(&name)?;
        let pid = broker.process()?.map_or("-".to_owned(), |process| process.pid.to_string());
        let state = match broker.status()? {
            (true, true) => "ready",
            (true, false) => "running, not ready",
            (false, _) => "not running",
        };
        table.push(format!(
            "{name:<25} {pid:>8} {:<30} {:<25} {state}\n",
            broker.service_url(),
            broker.admin_url()
        ));
    }
    print(table.concat())
}
