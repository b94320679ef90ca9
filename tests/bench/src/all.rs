//! `cargo xtask bench all`: every bench, one after another, and the goals at the end.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use quintet_localcluster::run;

/// Every bench, and its words besides those that all take.
const BENCHES: [&[&str]; 7] = [
    &["daemonjob", "--nodes=200", "--nodes=1000"],
    &["podset", "--pods=200", "--pods=1000"],
    &["greeting"],
    &["pulsar", "--only=writes"],
    &["pulsar"],
    &["manager"],
    &["daemonjob", "--nodes=5000", "--rounds=1", "--only=tuned"],
];

/// The same to see whether they work, in some minutes.
const QUICK: [&[&str]; 5] = [
    &["daemonjob", "--quick"],
    &["podset", "--quick"],
    &["greeting", "--quick"],
    &["pulsar", "--quick"],
    &["manager", "--quick"],
];

/// Every bench, one after another, and the goals at the end.
///
/// It takes about seven hours on two cores. A bench that fails does not keep the others from being run; the exit code
/// is 1 then. With --write what is done is kept, so that an interrupted run goes on with the commands that are printed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// See whether they work: little of everything, nothing is kept
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// Keep every outcome in docs/bench and tests/bench/results
    #[arg(long)]
    write: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let this = run::this_program()?;
    let mut failed = Vec::new();
    let goals: &[&str] = &["goals"];
    let benches = if args.quick { QUICK.to_vec() } else { BENCHES.to_vec() };
    for words in benches.into_iter().chain([goals]) {
        let mut command = Command::new(&this);
        command.args(words).args(args.write.then_some("--write")).stdin(Stdio::null());
        let line = format!("cargo xtask bench {}", words.join(" "));
        eprintln!("\n==> {line}");
        let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
        if !run::wait(&mut child, || ())?.success() {
            failed.push(line);
        }
    }
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    use crate::Cli;

    #[test]
    fn every_bench_takes_its_words() {
        for words in BENCHES {
            Cli::try_parse_from([&["bench"], words, &["--write"]].concat()).unwrap();
        }
        for words in QUICK {
            Cli::try_parse_from([&["bench"], words].concat()).unwrap();
        }
    }
}
