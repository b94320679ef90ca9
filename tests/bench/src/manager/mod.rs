//! `cargo xtask bench manager`: the whole program beside a manager for two of its kinds, written with
//! controller-runtime: memory, start, hand-over, latency, processor time, requests and faults.

mod broken;
mod contender;
pub mod figures;
mod measure;
mod measures;
mod objects;
mod paused;
mod sizes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::value_parser;
use quintet_localcluster::build;
use quintet_localcluster::go::Program;
use strum::VariantArray as _;

use self::broken::Break;
use self::contender::{Programs, Stand};
use self::figures::Results;
use self::measure::Measure;
use self::measures::{End, Pair};
use self::sizes::Sizes;
use super::host::Versions;
use super::optimised;
use super::options::{command, program, word};
use super::report::{self, Run};
use super::rig::Rig;

/// The package and the program of the kube-runtime manager.
const KUBE_RUNTIME: &str = "quintet-bench-kube-runtime";

/// The Go module whose version is that of the controller-runtime manager.
pub const FRAMEWORK: &str = "sigs.k8s.io/controller-runtime";

/// Compare the manager with a controller-runtime manager: memory, start, hand-over, latency, requests,
/// faults.
///
/// The controller-runtime manager is tests/bench/twin, which the first run builds from source with Go. The
/// controller-runtime manager runs DaemonJobs and PodSets by the same rules in their simplest form. The bench
/// measures this manager twice: with the defaults of controller-runtime, and tuned. For latency and faults,
/// the bench also measures a manager for PodSets that is written with kube-runtime's Controller
/// (tests/bench/kube-runtime). Each pair measures all managers in alternating order, and the bench computes
/// ratios within a pair.
///
/// With --write, the bench stores each measure when the measure is done. Continue an interrupted run with
/// --only. Seven pairs of all measures take about four hours on two cores.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of pairs
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = value_parser!(u8).range(1..=99))]
    pairs: u8,
    /// Smoke test: one pair, 100 pods instead of 10,000, and other small sizes
    #[arg(long, conflicts_with_all = ["pairs", "write"])]
    quick: bool,
    /// Measure only this. Repeat the flag to add more measures
    #[arg(long, value_enum, value_name = "MEASURE")]
    only: Vec<Measure>,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Store the result in docs/bench and tests/bench/results, and keep the stored results of other measures
    #[arg(long)]
    write: bool,
}

impl Args {
    fn sizes(&self) -> Sizes {
        if self.quick { Sizes::small() } else { Sizes::full(self.pairs.into()) }
    }

    fn measures(&self) -> impl Iterator<Item = Measure> {
        let is_selected = |measure: &Measure| self.only.is_empty() || self.only.contains(measure);
        Measure::VARIANTS.iter().copied().filter(is_selected)
    }

    /// The command that repeats this measure.
    fn command(&self, measure: Measure) -> String {
        let (pairs, only) = (format!("--pairs {}", self.pairs), format!("--only {}", word(&measure)));
        let program = if self.program.is_some() { "--program FILE" } else { "" };
        let (size, write) = if self.quick { ("--quick", "") } else { (pairs.as_str(), "--write") };
        command("manager", [size, &only, program, write])
    }
}

pub fn run(args: &Args) -> Result<()> {
    if !args.quick {
        optimised::become_optimised()?;
    }
    let programs = Programs {
        quintet: program(args.program.as_ref())?,
        twin: Program::built("tests/bench/twin", FRAMEWORK)?,
        kube_runtime: build::unshipped(KUBE_RUNTIME)?,
    };
    let sizes = args.sizes();
    for measure in args.measures() {
        let (about, command) = (measure.title(&sizes), args.command(measure));
        let found = || in_pairs(measure, &sizes, &programs, measure.limits(args.quick));
        let run = Run::measured(about, measure as usize, command, args.program.is_none(), found)?;
        report::finish(&[run], args.write)?;
    }
    Ok(())
}

/// Runs one measure in every pair, on separate clusters.
fn in_pairs(
    measure: Measure,
    sizes: &Sizes,
    programs: &Programs,
    limits: Vec<(&'static str, f64)>,
) -> Result<(Results, Versions)> {
    let (nodes, of) = (measure.nodes(sizes), measure.pairs(sizes));
    let mut results = Results {
        measure,
        title: measure.title(sizes),
        twin: programs.twin.version.clone(),
        samples: Vec::new(),
        attempts: BTreeMap::new(),
        limits,
    };
    let mut versions = Versions::default();
    for number in 1..=of {
        for on_cluster in measure.clusters(number) {
            let rig = Rig::up(nodes, sizes.jobs * nodes, &programs.quintet)?;
            versions = Versions::of(&rig, &programs.quintet)?;
            let stand = Stand::new(&rig, programs)?;
            in_pair(measure, &stand, sizes, Pair { number, of, contenders: &on_cluster }, &mut results)?;
        }
    }
    Ok((results, versions))
}

fn in_pair(
    measure: Measure,
    stand: &Stand<'_>,
    sizes: &Sizes,
    pair: Pair<'_>,
    into: &mut Results,
) -> Result<()> {
    if measure != Measure::Size {
        measures::warm_up(stand, pair)?;
    }
    match measure {
        Measure::Size => measures::size(stand, into),
        Measure::Idle => measures::idle(stand, sizes, pair, into),
        Measure::Requests => measures::requests(stand, sizes, pair, into),
        Measure::Foreign => measures::foreign(stand, sizes, pair, into),
        Measure::Own => measures::own(stand, sizes, pair, into),
        Measure::Restart => measures::restart(stand, sizes, pair, into),
        Measure::Start => measures::start(stand, sizes, pair, into),
        Measure::Latency => measures::latency(stand, sizes, pair, into),
        Measure::Drive => measures::drive(stand, sizes, pair, into),
        Measure::HandOver => measures::hand_over(stand, sizes, pair, End::Graceful, false, into),
        Measure::HandOverMany => measures::hand_over(stand, sizes, pair, End::Graceful, true, into),
        Measure::Crash => measures::hand_over(stand, sizes, pair, End::Crash, false, into),
        Measure::Paused => paused::paused(stand, sizes, pair, into),
        Measure::Outage => broken::broken(stand, sizes, pair, Break::Outage, into),
        Measure::Silence => broken::broken(stand, sizes, pair, Break::Silence, into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn options_select_measures() {
        let args = parsed::<Args>(&["--only", "crash", "--only", "idle", "--pairs", "2"]).unwrap();
        assert!(args.measures().eq([Measure::Idle, Measure::Crash]));
        assert!(parsed::<Args>(&[]).unwrap().measures().eq(Measure::VARIANTS.iter().copied()));
        assert!(parsed::<Args>(&["--quick", "--pairs", "2"]).is_err());
        assert!(parsed::<Args>(&["--quick", "--write"]).is_err());
    }

    #[test]
    fn section_names_its_command() {
        let args = parsed::<Args>(&["--pairs", "3"]).unwrap();
        assert_eq!(
            args.command(Measure::HandOverMany),
            "cargo xtask bench manager --pairs 3 --only hand-over-many --write"
        );
        let quick = parsed::<Args>(&["--quick", "--program", "a"]).unwrap().command(Measure::Own);
        assert_eq!(quick, "cargo xtask bench manager --quick --only own --program FILE");
    }
}
