//! `cargo xtask bench daemonjob`: measures a pod to completion on each of N nodes, beside bare requests and
//! other kinds. It also measures a restart, node changes, and the writes of a DaemonJob's whole life.

pub mod figures;
pub mod kruise;
pub mod runs;

use std::path::Path;

use anyhow::Result;
use clap::value_parser;
use strum::VariantArray as _;

use self::figures::{Contender, Results};
use self::kruise::Kruise;
use super::contest::{Round, order, rounds};
use super::host::Versions;
use super::options::{Options, repeated, word};
use super::rig::{Rig, Setting};

/// Compare DaemonJob with bare pods, BroadcastJob, Job and DaemonSet: time, writes, CPU time and memory.
///
/// Each round has its own cluster with N simulated nodes. In alternating order, each round creates the bare
/// pods of a DaemonJob, a DaemonJob, OpenKruise's BroadcastJob, an Indexed Job of N completions, and a
/// DaemonSet. The bench measures with two settings: kube-controller-manager and kube-scheduler run as shipped
/// (with their default request limits), and tuned. With the last setting, each round also restarts the
/// manager with N finished nodes, changes unread fields and labels of nodes, and deletes the DaemonJob. Then
/// each round runs another DaemonJob with ttlSecondsAfterFinished 0.
///
/// The bench fails if a DaemonJob writes too often to completion. It may write 1.03 times per pod or, if that
/// is more, once per pod, once a second, and 19 times more. It may also delete pods above 1,000. The bench
/// also fails if the API server rejects one of these writes, or if the restart writes or creates pods. A
/// change of an unread node field must not cause a reconcile, and a change of a label may cause one reconcile
/// at most.
///
/// Seven rounds with 1,000 nodes take about an hour on two cores. Most of this time is for the peers as
/// shipped.
///
/// With `--quick`, the bench measures 100 nodes, and only the components as shipped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of simulated nodes. Repeat the flag to measure several numbers
    #[arg(long, value_name = "N", default_values_t = [1_000], value_parser = value_parser!(u16).range(1..=20_000),
        conflicts_with = "quick")]
    nodes: Vec<u16>,
    /// Measure only with this setting of kube-controller-manager and kube-scheduler
    #[arg(long, value_enum, value_name = "SETTING", conflicts_with = "quick")]
    only: Option<Setting>,
    /// Measure only one DaemonJob in each round, from its creation until its last pod is gone
    #[arg(long, conflicts_with = "quick")]
    alone: bool,
    #[command(flatten)]
    options: Options,
}

impl Args {
    /// The settings in the order of the runs. The rest of a DaemonJob's life is measured with the last one.
    fn settings(&self) -> Vec<Setting> {
        Setting::chosen(self.only, self.options.quick)
    }

    fn contenders(&self) -> &'static [Contender] {
        match self {
            Self { alone: true, .. } => &[Contender::DaemonJob],
            Self { options: Options { without_peers: true, .. }, .. } => {
                &[Contender::Bare, Contender::DaemonJob]
            }
            _ => Contender::VARIANTS,
        }
    }

    fn command(&self) -> String {
        let nodes = repeated("--nodes", &self.nodes);
        let only = self.only.map_or_else(String::new, |only| format!("--only {}", word(&only)));
        let alone = if self.alone { " --alone" } else { "" };
        self.options.command("daemonjob", &nodes, &format!("{only}{alone}"))
    }
}

pub fn run(args: &Args) -> Result<()> {
    let sizes = args.options.sizes(&args.nodes, 100);
    args.options.run(sizes, "nodes", &args.command(), |nodes, program| measure(nodes, args, program))
}

fn measure(nodes: usize, args: &Args, program: &Path) -> Result<(Results, Versions)> {
    let settings = args.settings();
    let mut versions = Versions::default();
    let mut results = Results {
        nodes,
        completions: Vec::new(),
        life_setting: settings.last().copied().unwrap_or(Setting::Tuned),
        lives: Vec::new(),
        ttl_lives: Vec::new(),
        kruise: None,
        kubelets: Vec::new(),
    };
    for round in rounds(&settings, args.options.rounds()) {
        let rig = Rig::up(nodes, nodes, program)?;
        versions = Versions::of(&rig, program)?;
        measure_round(&rig, args.contenders(), round, &mut results)?;
    }
    Ok((results, versions))
}

fn measure_round(rig: &Rig, contenders: &[Contender], round: Round, results: &mut Results) -> Result<()> {
    let kruise = contenders.contains(&Contender::BroadcastJob).then(|| Kruise::install(rig)).transpose()?;
    results.kruise = kruise.as_ref().map(|kruise| kruise.version().to_owned());
    let bodies = if contenders.contains(&Contender::Bare) { runs::warm_up(rig)? } else { Vec::new() };
    rig.set(round.setting)?;
    let with_life = round.setting == results.life_setting;
    let label = |what: &str| round.label(rig.nodes(), "nodes", what);
    for contender in order(contenders, round.number) {
        let completion = rig.step(label(&contender.to_string()), || match contender {
            Contender::Bare => runs::bare(rig, &bodies, round),
            Contender::DaemonJob if with_life => {
                let (completion, life) = runs::daemonjob_life(rig, round)?;
                results.lives.push(life);
                Ok(completion)
            }
            _ => runs::completed(rig, contender, kruise.as_ref(), round),
        })?;
        results.completions.push(completion);
    }
    if with_life && !bodies.is_empty() {
        let ttl = label("DaemonJob with ttlSecondsAfterFinished 0");
        results.ttl_lives.push(rig.step(ttl, || runs::daemonjob_ttl_life(rig, round))?);
        let alone = label("simulated kubelets alone");
        results.kubelets.push(rig.step(alone, || runs::kubelets(rig, &bodies))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_states_the_checked_limit() {
        let help = <Args as clap::Args>::augment_args(clap::Command::new("bench")).render_long_help();
        assert!(help.to_string().contains(&format!("{} times more", figures::FIXED_WRITES)), "{help}");
    }
}
