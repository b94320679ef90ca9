//! `cargo xtask faults`: every scenario with every fault, on the fake API server; and a soak on a real one.

pub mod build;
mod soak;

use std::time::Duration;

use anyhow::Result;
use quintet_localcluster::{paths, run};

use crate::test;

/// `cargo xtask faults`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run every test scenario of the controllers with every fault at every request and watch event",
    long_about = "Run every test scenario of the controllers with every fault at every request and watch event.\n\n\
    The command runs the manager's controllers, caches and leader election against a fake API server \
    (crates/fake-apiserver). The clock is simulated, and advances only while the controllers wait. A plan is a scenario with \
    one fault, or with two faults (`--pairs`). The command prints the name of each plan that violates a rule. `--plan NAME` \
    runs only the named plan and prints every step of the plan. The last line is \"N plans, N violations\". The exit code is 1 \
    if there are violations. docs/reliability.md explains the names of the plans."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    /// Run only scenarios whose names contain FILTER. With --transitions, --bytes or --mutants, FILTER selects
    /// sequences, decoders or mutants instead
    filter: Option<String>,
    /// Run only the plan with this name, and print every step of the plan
    #[arg(long, value_name = "NAME", conflicts_with = "filter")]
    plan: Option<String>,
    /// Run only one of every N plans, spread evenly over all plans
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    every: Option<usize>,
    /// Run only plans whose names contain TEXT, for example `/crash-after` or `request:create-pods`
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    fault: Option<String>,
    /// The seed for the random order of the fake API server's events
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Instead of plans, run random sequences of spec changes, which the command generates from the kinds' schemas
    #[arg(long, conflicts_with_all = ["fault", "plan", "list"])]
    transitions: bool,
    /// Instead of plans, feed the decoders with more than a million malformed inputs, which cover every decoder
    #[arg(long, conflicts_with_all = ["fault", "plan", "list", "transitions"])]
    bytes: bool,
    /// Instead of plans with one fault, run plans with two faults. Of the plans with the same second fault in equal states, the
    /// command runs one. Select some of the plans with --every, because all of them take very long
    #[arg(long, conflicts_with_all = ["plan", "transitions", "bytes"])]
    pairs: bool,
    /// Instead of plans with one fault, run random plans with several faults for this number of seconds
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["fault", "plan", "list", "transitions", "bytes", "pairs"])]
    soak: Option<u64>,
    /// With --soak, run on a temporary cluster, and kill kube-apiserver, etcd and managers under load
    #[arg(long, requires = "soak", conflicts_with = "filter")]
    real: bool,
    /// Instead of plans, search every state that a small DaemonJob can reach, with more disturbances than in `cargo
    /// xtask test`. The command adds a line to tests/model/log.txt
    #[arg(long, conflicts_with_all = ["filter", "fault", "plan", "list", "transitions", "bytes", "pairs", "soak"])]
    exhaustive: bool,
    /// Print the names of the plans instead of running the plans
    #[arg(long)]
    list: bool,
    /// Insert each bug of xtask/src/mutants into the program, one at a time, and check that a plan or a test detects
    /// the bug
    #[arg(long, conflicts_with_all = ["plan", "every", "fault", "list", "transitions", "bytes", "pairs", "soak", "exhaustive"])]
    mutants: bool,
}

/// Runs the command.
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
    let mut cargo = build::cargo("test");
    cargo.args(["--quiet", "--test", "faults", "--"]);
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
    for (flag, is_set) in [
        ("--list", args.list),
        ("--transitions", args.transitions),
        ("--bytes", args.bytes),
        ("--pairs", args.pairs),
    ] {
        if is_set {
            cargo.arg(flag);
        }
    }
    let mut child = cargo.spawn()?;
    if run::wait(&mut child, || ())?.success() { Ok(()) } else { Err(test::Failed.into()) }
}

/// The long tier of the exhaustive search.
fn exhaustive() -> Result<()> {
    let mut search = build::search()?;
    search.args(["--long", "--log"]);
    search.arg(paths::workspace().join("tests/model/log.txt"));
    let mut child = search.spawn()?;
    if run::wait(&mut child, || ())?.success() { Ok(()) } else { Err(test::Failed.into()) }
}
