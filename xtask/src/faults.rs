//! `cargo xtask faults`: every story with every fault, on the fake API server; and a soak on a real one.

mod soak;

use std::time::Duration;

use anyhow::Result;
use quintet_localcluster::{paths, protoc, run};

use crate::test;

/// `cargo xtask faults`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run every story of a controller with every fault at every request and watch event",
    long_about = "Run every story of a controller with every fault at every request and watch event.\n\n\
    The controllers, their caches and the election are those of the program; the API server is the fake one \
    (crates/fake-apiserver) and the clock stands still but for what they wait for. A plan with violations is printed by its \
    name, and `--plan NAME` runs it alone and prints everything that happens. The last line is \"N plans, N violations\"; \
    the exit code is 1 if there are any. docs/reliability.md explains the names."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    /// Only stories (sequences, decoders, mutants) whose names contain FILTER
    filter: Option<String>,
    /// One plan alone, by the name that a run has printed, with everything that happens
    #[arg(long, value_name = "NAME", conflicts_with = "filter")]
    plan: Option<String>,
    /// Only one plan of every N, spread evenly
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    every: Option<usize>,
    /// Only plans whose names contain TEXT, for instance `/crash-after` or `request:create-pods`
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    fault: Option<String>,
    /// The seed that the server's order of things follows from
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Sequences of changes made up from the kinds' schemas, in place of plans
    #[arg(long, conflicts_with_all = ["fault", "plan", "list"])]
    transitions: bool,
    /// More than a million hostile inputs for everything that is decoded, in place of plans
    #[arg(long, conflicts_with_all = ["fault", "plan", "list", "transitions"])]
    bytes: bool,
    /// Plans of several faults, made up by chance from the seed, for so many seconds, in place of plans of one
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["fault", "plan", "list", "transitions", "bytes"])]
    soak: Option<u64>,
    /// The soak on a real control plane instead, on a cluster of its own: kube-apiserver, etcd and managers are killed under load
    #[arg(long, requires = "soak", conflicts_with = "filter")]
    real: bool,
    /// Every state that a small DaemonJob can reach, in place of plans: more disturbances than `cargo xtask test` allows.
    /// Adds a line to tests/model/log.txt
    #[arg(long, conflicts_with_all = ["filter", "fault", "plan", "list", "transitions", "bytes", "soak"])]
    exhaustive: bool,
    /// Print the names of the plans and run none
    #[arg(long)]
    list: bool,
    /// Break the program in each of the ways in xtask/src/mutants.rs, and show that a plan notices
    #[arg(long, conflicts_with_all = ["plan", "every", "fault", "list", "transitions", "bytes", "soak", "exhaustive"])]
    mutants: bool,
}

/// Runs the stories.
pub fn run(args: &Args) -> Result<()> {
    if args.exhaustive {
        return exhaustive();
    }
    if args.mutants {
        return crate::mutants::run(args.filter.as_deref());
    }
    if let (Some(seconds), true) = (args.soak, args.real) {
        return soak::run(Duration::from_secs(seconds), args.seed.unwrap_or(1));
    }
    let mut cargo = run::cargo();
    protoc::tell(&mut cargo);
    cargo.args(["test", "--quiet", "--profile", "faults", "--package", "quintet-faults"]);
    cargo.args(["--test", "faults", "--"]);
    cargo.args(&args.filter);
    for (flag, value) in [
        ("--plan", args.plan.clone()),
        ("--fault", args.fault.clone()),
        ("--soak", args.soak.map(|seconds| seconds.to_string())),
        ("--every", args.every.map(|every| every.to_string())),
        ("--seed", args.seed.map(|seed| seed.to_string())),
    ] {
        if let Some(value) = value {
            cargo.args([flag, &value]);
        }
    }
    if args.every.is_none() && args.plan.is_none() {
        cargo.arg("--all");
    }
    for (flag, is_set) in
        [("--list", args.list), ("--transitions", args.transitions), ("--bytes", args.bytes)]
    {
        if is_set {
            cargo.arg(flag);
        }
    }
    let mut child = cargo.spawn()?;
    if run::wait(&mut child, || ())?.success() { Ok(()) } else { Err(test::Failed.into()) }
}

/// The long tier of the exhaustive search.
fn exhaustive() -> Result<()> {
    let mut cargo = run::cargo();
    protoc::tell(&mut cargo);
    cargo.args(["run", "--quiet", "--profile", "faults", "--package", "quintet-model"]);
    cargo.args(["--", "--long", "--log"]);
    cargo.arg(paths::workspace().join("tests/model/log.txt"));
    let mut child = cargo.spawn()?;
    if run::wait(&mut child, || ())?.success() { Ok(()) } else { Err(test::Failed.into()) }
}
