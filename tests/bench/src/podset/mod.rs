//! `cargo xtask bench podset`: from nothing to N pods and back, beside Kubernetes' own ReplicaSet; what a restart in
//! between costs; and what happens when fewer pods are wanted while they are made.

mod counting;
pub mod figures;
mod runs;

use std::path::{Path, PathBuf};

use anyhow::Result;
use quintet_localcluster::build;

use self::figures::{Contender, Results};
use super::contest::{Round, order};
use super::host::{Machine, Versions};
use super::report::{Report, Run};
use super::rig::{self, Rig, Setting};
use super::table::count;

/// How many pods a node takes is 110; the scheduler needs some room to choose.
const PODS_PER_NODE: usize = 100;

/// Nodes more than these.
const SPARE_NODES: usize = 3;

/// `cargo xtask bench podset`.
#[derive(Debug, clap::Args)]
#[command(
    about = "PodSet beside ReplicaSet: time, writes, processor time, memory, and pods that are too many",
    long_about = "PodSet beside ReplicaSet: time, writes, processor time, memory, and pods that are too many.\n\n\
    Each round runs, in alternating order, a PodSet and a ReplicaSet of the same pod: made with no replicas, scaled to N, \
    scaled to 0; then to N again and, when a third of the pods are made, to a tenth of N. Between the first two the \
    PodSet's manager is restarted. This is done with kube-controller-manager and kube-scheduler as shipped (their default \
    request limits) and tuned.\n\n\
    It fails if a PodSet does not make exactly N pods and delete exactly N, if a request of it is refused, if it writes \
    more than that and one status a second (3 more are allowed), if the restart writes, or if more pods count than are \
    wanted at any moment on the way up.\n\n\
    A round with 1,000 pods takes about six minutes on two cores; the ReplicaSet as shipped, whose limits set its times, \
    is most of that."
)]
pub struct Args {
    /// Number of pods; may be given several times, each gets a cluster of its own
    #[arg(long, value_name = "N", default_values_t = [1_000], value_parser = clap::value_parser!(u16).range(10..=20_000))]
    pods: Vec<u16>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// See whether it works: 100 pods, one round, as shipped only
    #[arg(long, conflicts_with_all = ["pods", "rounds", "only", "write"])]
    pub quick: bool,
    /// Measure with one setting of kube-controller-manager and kube-scheduler instead of both
    #[arg(long, value_enum, value_name = "SETTING")]
    only: Option<Setting>,
    /// Leave ReplicaSet out
    #[arg(long)]
    without_peers: bool,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Keep the outcome in docs/bench and tests/bench/results, beside runs with other numbers of pods
    #[arg(long)]
    write: bool,
}

/// What the options come to.
struct Plan {
    pods: Vec<usize>,
    rounds: usize,
    contenders: Vec<Contender>,
    /// In the order of the runs.
    settings: Vec<Setting>,
}

impl Args {
    fn plan(&self) -> Plan {
        let contenders = if self.without_peers { &Contender::ALL[..1] } else { &Contender::ALL }.to_vec();
        if self.quick {
            return Plan { pods: vec![100], rounds: 1, contenders, settings: vec![Setting::Shipped] };
        }
        Plan {
            contenders,
            pods: self.pods.iter().copied().map(usize::from).collect(),
            rounds: usize::from(self.rounds),
            settings: self.only.map_or_else(|| vec![Setting::Shipped, Setting::Tuned], |only| vec![only]),
        }
    }

    /// The command that does the same, as far as it changes what is measured.
    fn command(&self) -> String {
        let mut words = vec!["cargo xtask bench podset".to_owned()];
        if self.quick {
            words.push("--quick".to_owned());
        } else {
            words.extend(self.pods.iter().map(|pods| format!("--pods {pods}")));
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

/// How many nodes so many pods need.
fn nodes(pods: usize) -> usize {
    pods.div_ceil(PODS_PER_NODE) + SPARE_NODES
}

/// Runs the bench.
pub fn run(args: &Args) -> Result<()> {
    let plan = args.plan();
    let program = match &args.program {
        Some(program) => program.canonicalize()?,
        None => build::release()?,
    };
    let mut runs = Vec::new();
    for &pods in &plan.pods {
        let machine = Machine::now();
        let (results, versions) = measure(pods, &plan, &program)?;
        runs.push(Run {
            about: format!("{} pods", count(pods)),
            size: pods,
            command: args.command(),
            machine,
            versions: versions.built(args.program.is_none())?,
            failures: Some(results.failures()),
            caveats: Vec::new(),
            measurements: results,
        });
    }
    report(runs).finish(args.write)
}

/// The page and the results, with these runs.
pub fn report(runs: Vec<Run<Results>>) -> Report<Results> {
    Report { name: "podset", title: "PodSet, measured", method: method(), runs }
}

/// Measures every round, each on a cluster of its own.
fn measure(pods: usize, plan: &Plan, program: &Path) -> Result<(Results, Versions)> {
    let mut versions = Versions::default();
    let mut results = Results { pods, nodes: nodes(pods), cycles: Vec::new() };
    for &setting in &plan.settings {
        for number in 1..=plan.rounds {
            let rig = Rig::up(nodes(pods), pods, program)?;
            versions = Versions::of(&rig, program)?;
            runs::warm_up(&rig)?;
            rig.set(setting)?;
            let round = Round { setting, number, of: plan.rounds };
            for contender in order(&plan.contenders, number) {
                let mut step = round.start(pods, "pods", contender.name());
                results.cycles.push(runs::cycle(&rig, contender, round, &mut step)?);
                step.done();
            }
        }
    }
    Ok((results, versions))
}

/// What a reader of the tables has to know.
fn method() -> Vec<String> {
    [
        "Each section below is from the newest run with its number of pods, and says by which command.",
        "One cluster for each round: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as \
         processes of this machine, nodes and kubelets simulated by kwok, where a pod is ready as soon as it is bound and \
         gone as soon as it is asked to go. So no image is pulled and no container started; what remains is the control \
         plane's work, which both contenders share the processors with.",
        rig::METHOD,
        "The PodSet is run by the release program, started anew for each run, with the identity of the chart's \
         ServiceAccount. The ReplicaSet has the same pod; its processor time and memory are those of the whole \
         kube-controller-manager, which is started anew for each round.",
        "An object is made with no replicas; when that is in its status, it is scaled by its scale subresource, and all \
         times are from then. Last created and last deleted are the answers to the last request that made a pod or asked \
         one to go, as the API server's audit log has them, like all writes. All ready is when the status says so of the \
         current generation; all gone, when it says that there are none and none are left in the API server. Leases are \
         left out, Events counted apart. A write is one that was carried out; requests that were refused have a column of their \
         own, and those for a status are counted whatever became of them. Ratios are taken between runs of the same round: \
         the median, and its 95 % interval by bootstrap in parentheses.",
        "Most above the wanted is by how many pods there were more than N at the worst moment on the way up: creations \
         less deletions, in the order of their answers. 0 is right.",
        "With raised limits a ReplicaSet sends hundreds of requests at a time, a PodSet 32. So the ReplicaSet's requests \
         may be answered sooner, while what the scheduler and the kubelets have to do waits behind them: all ready and \
         all gone are what counts.",
        "When fewer are wanted halfway, the question is how many pods are made nevertheless. Those whose request was \
         answered after that of the second scaling were too late; of them, those that came after it could have been \
         spared: what came before was in flight.",
        "Strangers are processes that have nothing to do with the bench: where they used much of the processors, times \
         and their ratios say little; counts, processor time and memory are as good as ever. A pass is what /metrics \
         calls a reconcile.",
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
        assert_eq!((plan.pods, plan.rounds), (vec![1_000], 7));
        assert_eq!(plan.settings, [Setting::Shipped, Setting::Tuned]);
        let plan = parse::<Args>(&["--pods", "1000", "--pods", "5000", "--only", "tuned"]).unwrap().plan();
        assert_eq!((plan.pods, plan.settings), (vec![1_000, 5_000], vec![Setting::Tuned]));
        let plan = parse::<Args>(&["--quick"]).unwrap().plan();
        assert_eq!((plan.pods, plan.rounds, plan.settings), (vec![100], 1, vec![Setting::Shipped]));
        assert_eq!(plan.contenders, Contender::ALL);
        let plan = parse::<Args>(&["--quick", "--without-peers"]).unwrap().plan();
        assert_eq!(plan.contenders, [Contender::PodSet]);
        assert!(parse::<Args>(&["--quick", "--rounds", "2"]).is_err());
        assert!(parse::<Args>(&["--quick", "--write"]).is_err());
        assert!(parse::<Args>(&["--pods", "9"]).is_err());
    }

    #[test]
    fn a_document_names_the_command_that_made_it() {
        let command = |words: &[&str]| parse::<Args>(words).unwrap().command();
        assert_eq!(command(&["--quick"]), "cargo xtask bench podset --quick");
        assert_eq!(
            command(&["--pods", "5000", "--only", "tuned", "--without-peers"]),
            "cargo xtask bench podset --pods 5000 --rounds 7 --only tuned --without-peers --write"
        );
    }

    #[test]
    fn the_help_says_the_limit_that_is_checked() {
        let help =
            <Args as clap::Args>::augment_args(clap::Command::new("bench")).render_long_help().to_string();
        assert!(help.contains(&format!("({} more are allowed)", figures::FIXED_WRITES)), "{help}");
    }

    #[test]
    fn there_is_room_for_all_pods() {
        for pods in [10, 100, 101, 1_000, 20_000] {
            assert!(nodes(pods) * 110 > pods + 110, "{pods}");
        }
    }
}
