//! `cargo xtask bench manager`: the whole program beside a manager for two of its kinds, written with
//! controller-runtime: memory, start, hand-over, latency, processor time, requests and faults. It also measures
//! the idle memory, 1,000 pods to completion and the filling of caches beside another build of the program.

mod broken;
mod contender;
pub mod figures;
mod fill;
mod measure;
mod measures;
mod objects;
mod paused;
mod sizes;
mod slow_webhook;
mod webhook;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
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
/// The measure `fill` starts only this manager, and the program of --beside. With --write and without
/// --beside, the bench leaves out `fill`, because its stored result compares two builds.
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
    /// Number of pods of the measure `fill`. Repeat the flag to measure several numbers
    #[arg(long, value_name = "N", default_values_t = [10_000, 50_000], value_parser = value_parser!(u16).range(100..=60_000),
        conflicts_with = "quick")]
    pods: Vec<u16>,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// In the measures `idle`, `drive` and `fill`, measure this program too: Quintet, built from another commit
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// Store the result in docs/bench and tests/bench/results, and keep the stored results of other measures
    #[arg(long)]
    write: bool,
}

impl Args {
    /// The sizes of each run of a measure.
    fn sizes(&self, measure: Measure) -> Vec<Sizes> {
        match (measure, self.quick) {
            (_, true) => vec![Sizes::small()],
            (Measure::Fill, false) => {
                let with_pods = |&pods: &u16| Sizes { many: pods.into(), ..Sizes::full(self.pairs.into()) };
                self.pods.iter().map(with_pods).collect()
            }
            _ => vec![Sizes::full(self.pairs.into())],
        }
    }

    fn measures(&self) -> impl Iterator<Item = Measure> {
        let is_selected = move |measure: &Measure| match &self.only[..] {
            [] => *measure != Measure::Fill || self.may_store_fill(),
            only => only.contains(measure),
        };
        Measure::VARIANTS.iter().copied().filter(is_selected)
    }

    /// Whether the measure `fill` replaces no stored comparison with a result of one build.
    fn may_store_fill(&self) -> bool {
        !self.write || self.beside.is_some()
    }

    /// The command that repeats this run of a measure.
    fn command(&self, measure: Measure, sizes: &Sizes) -> String {
        let (pairs, only) = (format!("--pairs {}", self.pairs), format!("--only {}", word(&measure)));
        let is_fill = measure == Measure::Fill;
        let pods = if is_fill && !self.quick { format!("--pods {}", sizes.many) } else { String::new() };
        let program = if self.program.is_some() { "--program FILE" } else { "" };
        let beside = if measure.compares_builds() && self.beside.is_some() { "--beside FILE" } else { "" };
        let (size, write) = if self.quick { ("--quick", "") } else { (pairs.as_str(), "--write") };
        command("manager", [size, &only, &pods, program, beside, write])
    }

    /// The file of `--beside`.
    fn other_build(&self) -> Result<Option<PathBuf>> {
        let Some(file) = &self.beside else { return Ok(None) };
        ensure!(
            self.measures().any(Measure::compares_builds),
            "--beside needs the measure idle, drive or fill"
        );
        let found = file.canonicalize().with_context(|| format!("cannot find {}", file.display()))?;
        Ok(Some(found))
    }
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.may_store_fill() || !args.only.contains(&Measure::Fill),
        "the stored result of `fill` compares two builds: add --beside, or leave out --write"
    );
    if !args.quick {
        optimised::become_optimised()?;
    }
    let programs = Programs {
        other_build: args.other_build()?,
        quintet: program(args.program.as_ref())?,
        twin: Program::built("tests/bench/twin", FRAMEWORK)?,
        kube_runtime: build::unshipped(KUBE_RUNTIME)?,
    };
    for measure in args.measures() {
        for sizes in args.sizes(measure) {
            let (about, command) = (measure.title(&sizes), args.command(measure, &sizes));
            let found = || in_pairs(measure, &sizes, &programs, measure.limits(args.quick));
            let run = Run::measured(about, measure.id(&sizes), command, args.program.is_none(), found)?;
            report::finish(&[run], args.write)?;
        }
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
        for mut on_cluster in measure.clusters(number) {
            on_cluster.retain(|contender| programs.have(*contender));
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
        Measure::SlowWebhook => slow_webhook::slow_webhook(stand, sizes, pair, into),
        Measure::HandOver => measures::hand_over(stand, sizes, pair, End::Graceful, false, into),
        Measure::HandOverMany => measures::hand_over(stand, sizes, pair, End::Graceful, true, into),
        Measure::Crash => measures::hand_over(stand, sizes, pair, End::Crash, false, into),
        Measure::Paused => paused::paused(stand, sizes, pair, into),
        Measure::Outage => broken::broken(stand, sizes, pair, Break::Outage, into),
        Measure::Silence => broken::broken(stand, sizes, pair, Break::Silence, into),
        Measure::Fill => fill::fill(stand, sizes, pair, into),
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
        let commands = |words: &[&str], measure: Measure| -> Vec<String> {
            let args = parsed::<Args>(words).unwrap();
            args.sizes(measure).iter().map(|sizes| args.command(measure, sizes)).collect()
        };
        let written = ["cargo xtask bench manager --pairs 3 --only hand-over-many --write"];
        assert_eq!(commands(&["--pairs", "3"], Measure::HandOverMany), written);
        let beside = ["cargo xtask bench manager --pairs 7 --only idle --program FILE --beside FILE --write"];
        assert_eq!(commands(&["--program", "a", "--beside", "b"], Measure::Idle), beside);
        let quick = ["cargo xtask bench manager --quick --only own --program FILE"];
        assert_eq!(commands(&["--quick", "--program", "a"], Measure::Own), quick);
        let filled = ["10000", "50000"].map(|pods| {
            format!("cargo xtask bench manager --pairs 7 --only fill --pods {pods} --beside FILE --write")
        });
        assert_eq!(commands(&["--beside", "a"], Measure::Fill), filled);
        let quick = ["cargo xtask bench manager --quick --only fill"];
        assert_eq!(commands(&["--quick"], Measure::Fill), quick);
    }

    #[test]
    fn each_number_of_pods_is_a_run() {
        let args = parsed::<Args>(&["--pods", "300", "--pods", "200"]).unwrap();
        let ids = |measure: Measure| -> Vec<usize> {
            args.sizes(measure).iter().map(|sizes| measure.id(sizes)).collect()
        };
        assert_eq!((ids(Measure::Fill), ids(Measure::Own)), (vec![300, 200], vec![3]));
        let beside = parsed::<Args>(&["--only", "own", "--beside", "a"]).unwrap();
        assert!(beside.other_build().is_err());
        assert!(parsed::<Args>(&["--quick", "--pods", "200"]).is_err());
    }

    #[test]
    fn stores_only_comparisons_of_two_builds() {
        let has_fill = |words: &[&str]| {
            let args = parsed::<Args>(words).unwrap();
            args.measures().any(|measure| measure == Measure::Fill)
        };
        assert!(!has_fill(&["--write"]));
        assert!(has_fill(&["--write", "--beside", "a"]) && has_fill(&["--quick"]));
        let error = run(&parsed::<Args>(&["--only", "fill", "--write"]).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("the stored result of `fill` compares two builds"), "{error}");
    }
}
