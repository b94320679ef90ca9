//! `cargo xtask bench all`: runs every bench, then the goals.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use quintet_localcluster::run;

/// Every bench with its arguments and its time on two cores, except `rollout`, whose stored result compares two builds.
const BENCHES: [(&[&str], &str); 10] = [
    (&["daemonjob", "--nodes=200", "--nodes=1000"], "75 min"),
    (&["podset", "--pods=200", "--pods=1000"], "50 min"),
    (&["greeting"], "40 min"),
    (&["pulsar", "--only=writes"], "5 min"),
    (&["pulsar"], "10 min"),
    (&["fence"], "5 min"),
    (&["manager"], "4 h"),
    (&["daemonjob", "--nodes=5000", "--rounds=3", "--only=tuned"], "60 min"),
    (&["podset", "--pods=5000", "--rounds=3", "--only=tuned"], "20 min"),
    (&["daemonjob", "--nodes=15000", "--rounds=1", "--only=tuned", "--alone"], "30 min"),
];

/// A smoke test of some minutes.
const QUICK: [&[&str]; 7] = [
    &["daemonjob", "--quick"],
    &["rollout", "--quick"],
    &["podset", "--quick"],
    &["greeting", "--quick"],
    &["pulsar", "--quick"],
    &["fence", "--quick"],
    &["manager", "--quick"],
];

/// Run every bench one after another, then compare the results with the goals.
///
/// The command takes about nine hours on two cores. If a bench fails, the command still runs the other
/// benches, and exits with code 1. With --write, the command stores each result when its bench ends, except
/// comparisons of two builds: the stored results of `fence` and of the measure `fill` of `manager` stay. For the
/// same reason, the command leaves out `rollout` without --quick. To continue an interrupted run, run the
/// commands that it has printed for the remaining benches.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Smoke test: measure small sizes, and store no result
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// Store the results in docs/bench and tests/bench/results
    #[arg(long)]
    write: bool,
}

/// Whether `all` stores the result of a command. The stored results of `fence` compare two programs.
fn is_stored(words: &[&str]) -> bool {
    words[0] != "fence"
}

/// The benches with their arguments and times, as part of a sentence.
pub fn parts() -> String {
    let parts = BENCHES.map(|(words, takes)| format!("`{}` ({takes})", words.join(" ")));
    parts.join(", ")
}

pub fn run(args: &Args) -> Result<()> {
    let this = run::this_program()?;
    let mut failed = Vec::new();
    let goals: &[&str] = &["goals"];
    let benches = if args.quick { QUICK.to_vec() } else { BENCHES.map(|(words, _)| words).to_vec() };
    for words in benches.into_iter().chain([goals]) {
        let mut command = Command::new(&this);
        let write = (args.write && is_stored(words)).then_some("--write");
        command.args(words).args(write).stdin(Stdio::null());
        let line = format!("cargo xtask bench {}", words.join(" "));
        eprintln!("\n==> {line}");
        let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
        if !run::wait(&mut child, || ())?.success() {
            failed.push(line);
        }
    }
    if !failed.is_empty() {
        bail!("failed benches: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    use crate::Cli;

    #[test]
    fn every_bench_accepts_its_arguments() {
        for (words, _) in BENCHES {
            let write: &[&str] = if is_stored(words) { &["--write"] } else { &[] };
            Cli::try_parse_from([&["bench"], words, write].concat()).unwrap();
        }
        for words in QUICK {
            Cli::try_parse_from([&["bench"], words].concat()).unwrap();
        }
    }
}
