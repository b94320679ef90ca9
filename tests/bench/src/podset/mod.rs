//! `cargo xtask bench podset`: from 0 to N pods and back, beside ReplicaSet; the cost of a restart in
//! between; and a scale-down during a scale-up.

mod counting;
pub mod figures;
mod runs;

use std::path::Path;

use anyhow::Result;
use clap::value_parser;
use strum::VariantArray as _;

use self::figures::{Contender, Results};
use super::contest::{order, rounds};
use super::host::Versions;
use super::options::{Options, repeated, word};
use super::rig::{Rig, Setting};

/// A node takes 110 pods; the scheduler needs some room to choose.
const PODS_PER_NODE: usize = 100;
const SPARE_NODES: usize = 3;

/// Compare PodSet with ReplicaSet: time, writes, processor time, memory, and surplus pods.
///
/// Each round runs, in alternating order, a PodSet and a ReplicaSet of the same pod. Each round creates both
/// with no replicas, and scales both to N and to 0. Then the round scales both to N again and, when a third
/// of the pods exist, to a tenth of N. The round restarts the PodSet's manager while the PodSet has N pods.
/// The bench measures with two settings: kube-controller-manager and kube-scheduler run as shipped (with
/// their default request limits), and tuned.
///
/// The bench fails if a PodSet does not create exactly N pods and delete exactly N pods, or if the API server
/// rejects one of the requests. Besides these writes, the manager may write one status a second (3 more are
/// allowed), and a restart writes nothing. There may be no more than N pods at any moment of the scale-up.
///
/// A round with 1,000 pods takes about six minutes on two cores. Most of this time is for the ReplicaSet as
/// shipped.
///
/// With `--quick`, the bench measures 100 pods, and only the components as shipped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of pods. Repeat the flag to measure several numbers, each on a separate cluster
    #[arg(long, value_name = "N", default_values_t = [1_000], value_parser = value_parser!(u16).range(10..=20_000),
        conflicts_with = "quick")]
    pods: Vec<u16>,
    /// Measure only with this setting of kube-controller-manager and kube-scheduler
    #[arg(long, value_enum, value_name = "SETTING", conflicts_with = "quick")]
    only: Option<Setting>,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn command(&self) -> String {
        let pods = repeated("--pods", &self.pods);
        let only = self.only.map_or_else(String::new, |only| format!("--only {}", word(&only)));
        self.options.command("podset", &pods, &only)
    }
}

fn nodes(pods: usize) -> usize {
    pods.div_ceil(PODS_PER_NODE) + SPARE_NODES
}

pub fn run(args: &Args) -> Result<()> {
    let sizes = args.options.sizes(&args.pods, 100);
    args.options.run(sizes, "pods", &args.command(), |pods, program| measure(pods, args, program))
}

fn measure(pods: usize, args: &Args, program: &Path) -> Result<(Results, Versions)> {
    let contenders = if args.options.without_peers { &[Contender::PodSet][..] } else { Contender::VARIANTS };
    let mut versions = Versions::default();
    let mut results = Results { pods, nodes: nodes(pods), cycles: Vec::new() };
    for round in rounds(&Setting::chosen(args.only, args.options.quick), args.options.rounds()) {
        let rig = Rig::up(nodes(pods), pods, program)?;
        versions = Versions::of(&rig, program)?;
        runs::warm_up(&rig)?;
        rig.set(round.setting)?;
        for contender in order(contenders, round.number) {
            let label = round.label(pods, "pods", &contender.to_string());
            results.cycles.push(rig.step(label, || runs::cycle(&rig, contender, round))?);
        }
    }
    Ok((results, versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_states_the_checked_limit() {
        let help = <Args as clap::Args>::augment_args(clap::Command::new("bench")).render_long_help();
        assert!(
            help.to_string().contains(&format!("({} more are allowed)", figures::FIXED_WRITES)),
            "{help}"
        );
    }

    #[test]
    fn nodes_have_room_for_all_pods() {
        for pods in [10, 100, 101, 1_000, 20_000] {
            assert!(nodes(pods) * 110 > pods + 110, "{pods}");
        }
    }
}
