//! `cargo xtask bench <kind>`: measures the cost and the speed of a kind beside its peers.
//!
//! Times depend on the machine, so a bench prints them with the machine and never asserts them. Counts do
//! not: a count above its limit fails the command. Each bench is a module: [`daemonjob`], [`rollout`] (with
//! nodes that break), [`greeting`], [`podset`], [`manager`] (the whole program), [`fence`] and [`pass`] (no
//! cluster), and [`pulsar`] (with a broker). [`pages`] makes docs/bench from the stored results. The other modules are
//! shared.

mod all;
mod attempts;
mod canary;
mod client;
mod contest;
mod daemonjob;
mod fence;
mod goals;
mod greeting;
mod growth;
mod host;
mod kept;
mod manager;
mod optimised;
mod options;
mod pages;
mod pass;
mod peer;
mod plot;
mod podset;
mod process;
mod pulsar;
mod report;
mod rig;
mod rollout;
mod scrape;
mod stats;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, Subcommand};
use quintet_localcluster::{interrupt, long_tier};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    disable_help_subcommand = true,
    about = "Measure a kind beside its peers, on a separate cluster",
    long_about = "Measure a kind beside its peers, on a separate cluster.\n\n\
    Each bench except `fence` and `pass` starts a local cluster (see `cargo xtask cluster up --help`) with simulated \
    nodes and the chart. The bench builds the release program and runs it as the manager, with the permissions of \
    the chart's ServiceAccount. The bench runs Quintet and its peers one after another, in alternating order, and \
    computes ratios within a round. It counts the writes of each client in the API server's audit log. It removes the \
    cluster at the end, even after Ctrl-C. The bench `pulsar` also starts a broker.\n\n\
    The bench prints tables to stdout and progress to stderr. The exit code is 1 if a count is too high. The bench \
    prints times, but does not check them. Run the bench on an idle machine."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    All(all::Args),
    Daemonjob(daemonjob::Args),
    Fence(fence::Args),
    #[command(hide = true)]
    FenceWriter(fence::writer::Args),
    Goals(goals::Args),
    Greeting(greeting::Args),
    Manager(manager::Args),
    Pass(pass::Args),
    Podset(podset::Args),
    Pulsar(pulsar::Args),
    Rollout(rollout::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let began = Instant::now();
    match interrupt::install().and_then(|()| run(&cli)) {
        Ok(()) => {
            long_tier::passed("cargo xtask bench", "passed", began.elapsed());
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<interrupt::Interrupted>() => {
            eprintln!("{error}");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let measured = match &cli.command {
        Command::All(args) => all::run(args),
        Command::FenceWriter(args) => return fence::writer::run(args),
        Command::Goals(args) => return goals::run(args),
        Command::Daemonjob(args) => daemonjob::run(args),
        Command::Fence(args) => fence::run(args),
        Command::Greeting(args) => greeting::run(args),
        Command::Manager(args) => manager::run(args),
        Command::Pass(args) => pass::run(args),
        Command::Podset(args) => podset::run(args),
        Command::Pulsar(args) => pulsar::run(args),
        Command::Rollout(args) => rollout::run(args),
    };
    // A bench with a count that is too high has stored its results too.
    let written = pages::write_stored();
    measured.and(written)
}

#[cfg(test)]
fn parsed<A: clap::Args>(words: &[&str]) -> Result<A, clap::Error> {
    #[derive(Parser)]
    struct One<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }
    One::try_parse_from([&["bench"], words].concat()).map(|one| one.args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_localcluster::documents;

    #[test]
    fn benches_in_the_documents_are_benches() {
        let mut failures = Vec::new();
        for document in documents::all() {
            for command in documents::commands(&document) {
                let bare = documents::without_variables(&command);
                if !bare.starts_with("cargo xtask bench") {
                    continue;
                }
                match Cli::try_parse_from(bare.split_whitespace().skip(2)) {
                    Err(error) if error.use_stderr() => {
                        failures.push(format!("{}: {command}\n{error}", document.display()));
                    }
                    _ => {}
                }
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
