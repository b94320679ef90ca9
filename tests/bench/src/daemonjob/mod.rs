//! `cargo xtask bench daemonjob`: a pod to completion on each of N nodes, beside bare requests and Kubernetes' own kinds;
//! what a restart and changes of nodes cost; and what a whole life writes.

pub mod figures;
mod kruise;
mod runs;

use std::path::{Path, PathBuf};

use anyhow::Result;
use quintet_localcluster::build;

use self::figures::{Contender, Results};
#[cfg(test)]
pub use self::kruise::KRUISE;
use self::kruise::Kruise;
use super::contest::{Round, order};
use super::host::{Machine, Versions};
use super::report::{Report, Run};
use super::rig::{self, Rig, Setting};
use super::table::count;

/// `cargo xtask bench daemonjob`.
#[derive(Debug, clap::Args)]
#[command(
    about = "DaemonJob beside bare pods, BroadcastJob, Job and DaemonSet: time, writes, processor time and memory",
    long_about = "DaemonJob beside bare pods, BroadcastJob, Job and DaemonSet: time, writes, processor time and memory.\n\n\
    Each round runs, on a cluster of its own with N simulated nodes and in alternating order: bare creation of the pods that a \
    DaemonJob makes, a DaemonJob, OpenKruise's BroadcastJob, an Indexed Job of N completions, and a DaemonSet until all \
    its pods are ready. This is done with kube-controller-manager and kube-scheduler as shipped (their default request limits) and \
    tuned. With the last of these settings each round also restarts the manager with N finished nodes, changes nodes in \
    what no template can speak of and in labels, deletes the DaemonJob, and runs another one with \
    ttlSecondsAfterFinished 0.\n\n\
    It fails if a DaemonJob writes more than 1.03 times per pod to completion (with fewer than 1,000 nodes it may write \
    once per pod, 19 times more, and once a second), if a write of it is refused until then, if the restart writes or makes pods, if a change of a node causes a \
    pass without need, or another one more than one pass.\n\n\
    Seven rounds with 1,000 nodes take about an hour on two cores; the peers as shipped, whose limits set their \
    times, are most of that."
)]
pub struct Args {
    /// Number of simulated nodes; may be given several times
    #[arg(long, value_name = "N", default_values_t = [1_000], value_parser = clap::value_parser!(u16).range(1..=20_000))]
    nodes: Vec<u16>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// See whether it works: 100 nodes, one round, without tuned peers
    #[arg(long, conflicts_with_all = ["nodes", "rounds", "only", "write"])]
    pub quick: bool,
    /// Measure with one setting of kube-controller-manager and kube-scheduler instead of both
    #[arg(long, value_enum, value_name = "SETTING")]
    only: Option<Setting>,
    /// Leave BroadcastJob, Job and DaemonSet out
    #[arg(long)]
    without_peers: bool,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Keep the outcome in docs/bench and tests/bench/results, beside runs with other numbers of nodes
    #[arg(long)]
    write: bool,
}

/// What the options come to.
struct Plan {
    nodes: Vec<usize>,
    rounds: usize,
    contenders: Vec<Contender>,
    /// In the order of the runs; the rest of a DaemonJob's life is measured with the last.
    settings: Vec<Setting>,
}

impl Args {
    fn plan(&self) -> Plan {
        let contenders = if self.without_peers { &Contender::ALL[..2] } else { &Contender::ALL }.to_vec();
        if self.quick {
            return Plan { nodes: vec![100], rounds: 1, contenders, settings: vec![Setting::Shipped] };
        }
        Plan {
            contenders,
            nodes: self.nodes.iter().copied().map(usize::from).collect(),
            rounds: usize::from(self.rounds),
            settings: self.only.map_or_else(|| vec![Setting::Shipped, Setting::Tuned], |only| vec![only]),
        }
    }

    /// The command that does the same, as far as it changes what is measured.
    fn command(&self) -> String {
        let mut words = vec!["cargo xtask bench daemonjob".to_owned()];
        if self.quick {
            words.push("--quick".to_owned());
        } else {
            words.extend(self.nodes.iter().map(|nodes| format!("--nodes {nodes}")));
            words.push(format!("--rounds {}", self.rounds));
            words.extend(self.only.map(|only| format!("--only {}", only.word())));
        }
        if self.without_peers {
            words.push("--without-peers".to_owned());
        }
        words.extend(self.program.is_some().then(|| "--program FILE".to_owned()));
        words.extend((!self.quick).then(|| "--write".to_owned()));
        words.join(" ")
    }
}

/// Runs the bench.
pub fn run(args: &Args) -> Result<()> {
    let plan = args.plan();
    let program = match &args.program {
        Some(program) => program.canonicalize()?,
        None => build::release()?,
    };
    let mut runs = Vec::new();
    for &nodes in &plan.nodes {
        let machine = Machine::now();
        let (results, versions) = measure(nodes, &plan, &program)?;
        runs.push(Run {
            about: format!("{} nodes", count(nodes)),
            size: nodes,
            command: args.command(),
            machine,
            versions: versions.built(args.program.is_none())?,
            failures: Some(results.failures()),
            caveats: caveats(&plan),
            measurements: results,
        });
    }
    report(runs).finish(args.write)
}

/// The page and the results, with these runs.
pub fn report(runs: Vec<Run<Results>>) -> Report<Results> {
    Report { name: "daemonjob", title: "DaemonJob, measured", method: method(), runs }
}

/// What has to be known of one round.
fn caveats(plan: &Plan) -> Vec<String> {
    let order: Vec<&str> = order(&plan.contenders, 1).into_iter().map(Contender::name).collect();
    let once = format!(
        "There was one round: each ran once, one after another on one cluster ({}). What changes with time is in the ratios.",
        order.join(", ")
    );
    if plan.rounds == 1 { vec![once] } else { Vec::new() }
}

/// Measures every round, each on a cluster of its own.
fn measure(nodes: usize, plan: &Plan, program: &Path) -> Result<(Results, Versions)> {
    let life_setting = plan.settings.last().copied().unwrap_or(Setting::Tuned);
    let mut versions = Versions::default();
    let mut results = Results {
        nodes,
        completions: Vec::new(),
        life_setting,
        lives: Vec::new(),
        ttl_lives: Vec::new(),
        kruise: None,
        kubelets: Vec::new(),
    };
    for &setting in &plan.settings {
        for number in 1..=plan.rounds {
            let rig = Rig::up(nodes, nodes, program)?;
            versions = Versions::of(&rig, program)?;
            measure_round(&rig, &plan.contenders, Round { setting, number, of: plan.rounds }, &mut results)?;
        }
    }
    Ok((results, versions))
}

fn measure_round(rig: &Rig, contenders: &[Contender], round: Round, results: &mut Results) -> Result<()> {
    let kruise = contenders.contains(&Contender::BroadcastJob).then(|| Kruise::install(rig)).transpose()?;
    results.kruise = kruise.as_ref().map(|kruise| kruise.version().to_owned());
    let bodies = runs::warm_up(rig)?;
    rig.set(round.setting)?;
    let with_life = round.setting == results.life_setting;
    for contender in order(contenders, round.number) {
        let mut step = round.start(rig.nodes(), "nodes", contender.name());
        match contender {
            Contender::Bare => results.completions.push(runs::bare(rig, &bodies, round, &mut step)?),
            Contender::DaemonJob if with_life => {
                let (completion, life) = runs::daemonjob_life(rig, round, &mut step)?;
                results.completions.push(completion);
                results.lives.push(life);
            }
            Contender::DaemonJob => results.completions.push(runs::daemonjob(rig, round, &mut step)?),
            Contender::BroadcastJob => {
                let Some(kruise) = &kruise else { continue };
                results.completions.push(runs::broadcastjob(rig, kruise, round, &mut step)?);
            }
            Contender::Job | Contender::DaemonSet => {
                results.completions.push(runs::peer(rig, contender, round, &mut step)?);
            }
        }
        step.done();
    }
    if with_life {
        let mut step = round.start(rig.nodes(), "nodes", "DaemonJob with ttlSecondsAfterFinished 0");
        results.ttl_lives.push(runs::daemonjob_ttl_life(rig, round, &mut step)?);
        step.done();
        let mut step = round.start(rig.nodes(), "nodes", "simulated kubelets alone");
        results.kubelets.push(runs::kubelets(rig, &bodies, &mut step)?);
        step.done();
    }
    Ok(())
}

/// What a reader of the tables has to know.
fn method() -> Vec<String> {
    [
        "Each section below is from the newest run with its number of nodes, and says by which command.",
        "One cluster for each round: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as \
         processes of this machine, nodes and kubelets simulated by kwok, where a pod runs for a second. So no image is \
         pulled and no container started; what remains is the control plane's work, which all contenders share the \
         processors with.",
        rig::METHOD,
        "Bare creation sends the pods that a DaemonJob made, without owner and finalizers, over 32 connections, with the \
         identity of the manager's ServiceAccount, and with no manager running: what a client that decides nothing takes with as \
         many requests in flight as a DaemonJob has. Somebody with more of them in flight may make pods sooner, and hold up \
         everybody else's requests. Its processor time is that of the bench itself. It is looked at less often than the others, \
         0.5 ms for each of its pods, so that looking does not slow it down: that much it may seem to be done later. The DaemonJob is the sample, run by the release program, which is \
         started anew for each run. Job and DaemonSet run the sample's pod; their processor time and memory are those of \
         the whole kube-controller-manager.",
        "Creating is from the first request to make a pod to the answer to the last one; last created, from the creation \
         of the object to the same moment; done, until a DaemonJob or a Job is Complete, a DaemonSet has all its pods \
         ready, and all bare pods have Succeeded. Creating and all writes are taken from the API server's audit log, \
         Leases left out and Events counted apart. A write is one that was carried out; requests that were refused (429, or \
         409 for a status that had changed meanwhile) have a column of their own. Ratios are taken between runs of the same round: the median, \
         and its 95 % interval by bootstrap in parentheses.",
        "A BroadcastJob is run by OpenKruise's own controller in a manager of its own (tests/bench/kruise), which is started \
         anew for each run and has the rights of a ServiceAccount; its pods are bound by the scheduler, as a DaemonJob's.",
        "An Indexed Job spreads its pods, but does not promise one on each node: a column says how many nodes had any. A \
         DaemonSet's pods do not end.",
        "The simulated kubelets are measured alone as well: they stand still while pods are made that name their nodes, and go \
         on when all are there. No contender whose pods have to succeed can be done sooner than that; a DaemonSet is done when \
         its pods are ready. As shipped, the 50 requests a second of the scheduler, which puts every pod on its node, set \
         when bare creation and a DaemonJob are done.",
        "The API server's processor time is for everything that it did until the contender was done, so it is also that \
         of binding pods and of playing kubelets. Strangers are processes that have nothing to do with the bench: where \
         they used much of the processors, times and their ratios say little; counts, processor time and memory are as \
         good as ever.",
        "In the rest of a DaemonJob's life, changes of nodes that nobody looks at are those of the time of a heartbeat, \
         of an annotation, of the images on a node and of its capacity. A pass is what /metrics calls a reconcile; its \
         mean is taken over the passes that changes of one node's label caused.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed as parse;

    #[test]
    fn options_come_to_a_plan() {
        let plan = parse::<Args>(&[]).unwrap().plan();
        assert_eq!((plan.nodes, plan.rounds), (vec![1_000], 7));
        assert_eq!(plan.settings, [Setting::Shipped, Setting::Tuned]);
        let plan = parse::<Args>(&["--nodes", "1000", "--nodes", "5000", "--only", "tuned"]).unwrap().plan();
        assert_eq!((plan.nodes, plan.settings), (vec![1_000, 5_000], vec![Setting::Tuned]));
        let plan = parse::<Args>(&["--quick"]).unwrap().plan();
        assert_eq!((plan.nodes, plan.rounds, plan.settings), (vec![100], 1, vec![Setting::Shipped]));
        assert_eq!(plan.contenders, Contender::ALL);
        let plan = parse::<Args>(&["--quick", "--without-peers"]).unwrap().plan();
        assert_eq!(plan.contenders, [Contender::Bare, Contender::DaemonJob]);
        assert!(caveats(&plan)[0].contains("(bare creation, DaemonJob)"));
        assert!(caveats(&parse::<Args>(&[]).unwrap().plan()).is_empty());
        assert!(parse::<Args>(&["--quick", "--rounds", "2"]).is_err());
        assert!(parse::<Args>(&["--quick", "--write"]).is_err());
        assert!(parse::<Args>(&["--nodes", "0"]).is_err());
    }

    #[test]
    fn a_document_names_the_command_that_made_it() {
        let command = |words: &[&str]| parse::<Args>(words).unwrap().command();
        assert_eq!(command(&["--quick"]), "cargo xtask bench daemonjob --quick");
        assert_eq!(
            command(&["--nodes", "5000", "--only", "tuned"]),
            "cargo xtask bench daemonjob --nodes 5000 --rounds 7 --only tuned --write"
        );
    }

    #[test]
    fn the_help_says_the_limit_that_is_checked() {
        let help =
            <Args as clap::Args>::augment_args(clap::Command::new("bench")).render_long_help().to_string();
        assert!(help.contains(&format!("{} times more", figures::FIXED_WRITES)), "{help}");
    }
}
