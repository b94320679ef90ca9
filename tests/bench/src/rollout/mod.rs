//! `cargo xtask bench rollout`: rolls out a template that breaks nodes, with a DaemonJob in waves and with other
//! kinds. It counts the nodes that each kind breaks, and measures what a complete rollout in waves costs.

mod costs;
pub mod figures;
mod objects;
mod stops;
pub mod upgrade;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::value_parser;
use strum::VariantArray as _;

use self::figures::{Contender, Results, Rules, Scenario};
use super::contest::{Round, order, rounds};
use super::daemonjob::runs;
use super::host::Versions;
use super::options::{Options, repeated};
use super::rig::{Rig, Setting};

/// The number of nodes of a smoke test.
const SMALL: usize = 100;

/// Roll out a template that breaks nodes, and count the nodes that it breaks before the rollout stops.
///
/// The template breaks every twentieth node: 20 s after its success, the node is not Ready. The bench rolls out
/// the template with a DaemonJob in waves, OpenKruise's BroadcastJob, the rolling update of a DaemonSet, and a
/// Plan of the system-upgrade-controller. Each has a separate cluster, and may work on a tenth of the nodes at
/// a time. A rollout has stopped when it reaches no further node for five minutes.
///
/// Then the bench measures complete rollouts of a good template. It runs a DaemonJob without rollout fields, the
/// same with the program of --beside, and a DaemonJob in waves whose nodes settle for 60 s.
///
/// The bench fails if the DaemonJob in waves reaches more nodes than its parallelism and its broken nodes. It
/// also fails if `quintet rollout status` does not print the first wave, the reason, a broken node and the
/// command that continues. In one of 200 runs, no node of the first wave breaks, and the bench fails too.
///
/// A complete rollout in waves may write the status once a second (3 more are allowed). It may write its ledger
/// every five minutes and at the end. The API server may not reject these writes.
///
/// A round with 1,000 nodes takes at least 45 minutes, because most kinds wait while their nodes settle. The
/// first run builds the system-upgrade-controller with Go.
///
/// With `--quick`, the bench measures 100 nodes of which every third breaks, in seconds instead of minutes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of simulated nodes. Repeat the flag to measure several numbers
    #[arg(long, value_name = "N", default_values_t = [1_000], value_parser = value_parser!(u16).range(100..=20_000),
        conflicts_with = "quick")]
    nodes: Vec<u16>,
    /// Measure a complete rollout of this program too: Quintet, built from another commit. --write needs it
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn command(&self) -> String {
        let beside = if self.beside.is_some() { "--beside FILE" } else { "" };
        self.options.command("rollout", &repeated("--nodes", &self.nodes), beside)
    }

    fn contenders(&self) -> &'static [Contender] {
        if self.options.without_peers { &Contender::VARIANTS[..1] } else { Contender::VARIANTS }
    }

    /// The complete rollouts. The program of `--beside` is optional.
    fn rules(&self) -> Vec<Rules> {
        let is_measured = |rules: &Rules| *rules != Rules::NoneOtherBuild || self.beside.is_some();
        Rules::VARIANTS.iter().copied().filter(is_measured).collect()
    }

    fn scenario(&self, nodes: usize) -> Scenario {
        if self.options.quick { Scenario::small(nodes) } else { Scenario::full(nodes) }
    }
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(
        !args.options.write || args.beside.is_some(),
        "the stored result compares two builds: add --beside, or leave out --write"
    );
    let canonical =
        |file: &PathBuf| file.canonicalize().with_context(|| format!("cannot find {}", file.display()));
    let beside = args.beside.as_ref().map(canonical).transpose()?;
    let sizes = args.options.sizes(&args.nodes, SMALL);
    args.options.run(sizes, "nodes", &args.command(), |nodes, program| {
        measure(&args.scenario(nodes), args, program, beside.as_deref())
    })
}

fn measure(
    scenario: &Scenario,
    args: &Args,
    program: &Path,
    beside: Option<&Path>,
) -> Result<(Results, Versions)> {
    let nodes = scenario.nodes;
    let mut versions = Versions::default();
    let mut results = Results { scenario: *scenario, stops: Vec::new(), costs: Vec::new() };
    // The components as shipped, as users run them.
    for round in rounds(&[Setting::Shipped], args.options.rounds()) {
        for contender in order(args.contenders(), round.number) {
            let rig = Rig::up(nodes, nodes, program)?;
            rig.set(round.setting)?;
            let label = round.label(nodes, "nodes", &format!("{contender} breaks nodes"));
            let stop = rig.step(label, || stops::stop(&rig, contender, round, scenario))?;
            results.stops.push(stop);
        }
        let rig = Rig::up(nodes, nodes, program)?;
        versions = Versions::of(&rig, program)?;
        measure_costs(&rig, &args.rules(), round, beside, &mut results)?;
    }
    Ok((results, versions))
}

fn measure_costs(
    rig: &Rig,
    rules: &[Rules],
    round: Round,
    beside: Option<&Path>,
    results: &mut Results,
) -> Result<()> {
    runs::warm_up(rig)?;
    rig.set(round.setting)?;
    for rules in order(rules, round.number) {
        // Only `NoneOtherBuild` runs the program of `--beside`.
        let program = beside.filter(|_| rules == Rules::NoneOtherBuild).unwrap_or(rig.program());
        let label = round.label(rig.nodes(), "nodes", &format!("complete rollout, {rules}"));
        let scenario = results.scenario;
        let costed = rig.step(label, || costs::completed(rig, rules, program, round, &scenario))?;
        results.costs.push(costed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn stores_only_comparisons_of_two_builds() {
        let error = run(&parsed::<Args>(&["--rounds", "1", "--write"]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("add --beside"), "{error}");
        let args = parsed::<Args>(&["--rounds", "1", "--beside", "a", "--write"]).unwrap();
        let command = "cargo xtask bench rollout --nodes 1000 --rounds 1 --beside FILE --write";
        assert_eq!((args.command().as_str(), args.rules()), (command, Rules::VARIANTS.to_vec()));
        assert_eq!(parsed::<Args>(&[]).unwrap().rules(), [Rules::None, Rules::Waves]);
    }

    #[test]
    fn help_states_the_checked_limit() {
        let help = <Args as clap::Args>::augment_args(clap::Command::new("bench")).render_long_help();
        assert!(
            help.to_string().contains(&format!("({} more are allowed)", figures::FIXED_WRITES)),
            "{help}"
        );
    }
}
