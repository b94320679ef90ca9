//! `cargo xtask bench manager`: the program as a whole beside a manager for the same two kinds that is written with
//! controller-runtime: memory, start, hand-over, latency, processor time, requests and faults.

mod broken;
pub mod contender;
pub mod figures;
mod measure;
mod measures;
mod objects;
mod paused;
pub mod sizes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use quintet_localcluster::build;
use quintet_localcluster::go::Program;

use self::broken::Break;
use self::contender::{Contender, Stand};
use self::figures::{Part, Results, Row};
pub use self::measure::Measure;
use self::measures::{End, Pair};
use self::sizes::Sizes;
use super::contest::order;
use super::host::{Machine, Versions};
use super::report::{Report, Run};
use super::rig::{self, Rig};

/// How far from nothing memory for each pod of others may be, in bytes, above it or below.
pub const FOREIGN_BYTES: f64 = 10.0;

const fn row(key: &'static str, label: &'static str, part: Part, places: usize, goal: &'static str) -> Row {
    Row { key, label, part, places, goal }
}

/// A hand-over of either kind.
const HAND_OVER: [Row; 7] = [
    row("released", "signal to Lease released, p50 ms", Part::P50, 0, ""),
    row("taken", "signal to Lease taken, p50 ms", Part::P50, 0, ""),
    row("taken", "p99", Part::P99, 0, ""),
    row("taken", "worst", Part::Worst, 0, ""),
    row("wrote", "signal to first write, p50 ms", Part::P50, 0, ""),
    row("wrote", "p99", Part::P99, 0, "200"),
    row("wrote", "worst", Part::Worst, 0, ""),
];

impl Measure {
    fn title(self, sizes: &Sizes) -> String {
        let many = super::table::count(sizes.many);
        match self {
            Self::Size => "Size of the program".to_owned(),
            Self::Idle => "Idle".to_owned(),
            Self::Requests => format!("Requests while nothing happens, in {} s", sizes.long.as_secs()),
            Self::Foreign => format!("{many} pods of others"),
            Self::Own => format!("{many} pods of its own"),
            Self::Restart => format!("Restart with {many} objects"),
            Self::Start => "Start".to_owned(),
            Self::Latency => {
                format!("{} events at 100 a second, {} at 25 a second", sizes.events, sizes.calm_events)
            }
            Self::Drive => format!("{} pods to completion", sizes.jobs * sizes.nodes),
            Self::HandOver => "Graceful hand-over".to_owned(),
            Self::HandOverMany => format!("Graceful hand-over with {many} pods"),
            Self::Crash => "Fail-over after a crash".to_owned(),
            Self::Paused => "Leaders that were stopped for longer than their Lease".to_owned(),
            Self::Outage => format!("An API server that was gone for {} s", sizes.outage.as_secs()),
            Self::Silence => "Connections that went silent".to_owned(),
        }
    }

    fn rows(self) -> Vec<Row> {
        match self {
            Self::Size => vec![
                row("bytes", "program MiB", Part::P50, 1, ""),
                row("compressed", "compressed MB", Part::P50, 1, "10, aimed at 5"),
            ],
            Self::Idle => vec![
                row("rss", "RSS MiB", Part::P50, 1, "12, aimed at 8"),
                row("pss", "PSS MiB", Part::P50, 1, ""),
                row("threads", "threads", Part::P50, 0, ""),
            ],
            Self::Requests => vec![
                row("requests", "requests a second", Part::P50, 3, "0.25"),
                row("reads", "of them get and list", Part::P50, 3, "0"),
                row("besides", "all but renewals of the Lease", Part::P50, 3, ""),
            ],
            Self::Foreign => vec![row("bytes", "RSS for each pod, bytes", Part::P50, 0, "±10")],
            Self::Own => vec![
                row("bytes", "RSS for each pod, bytes", Part::P50, 0, "2048, aimed at 1024"),
                row("rss", "RSS MiB", Part::P50, 1, ""),
                row("rss-half", "with half of them", Part::P50, 1, ""),
                row("rss-tenth", "with a tenth of them", Part::P50, 1, ""),
                row("rss-none", "without", Part::P50, 1, ""),
                row("peak", "peak at the start / settled", Part::P50, 2, "1.3"),
                row("first", "start to first write ms", Part::P50, 0, "0.5 of the twin's"),
            ],
            Self::Restart => vec![
                row("writes", "writes", Part::P50, 0, "0"),
                row("reads", "get and list", Part::P50, 0, ""),
                row("steady", "get and list, later on", Part::P50, 0, "0"),
            ],
            Self::Start => vec![row("first", "start to first write ms", Part::P50, 0, "0.5 of the twin's")],
            Self::Latency => vec![
                row("delay", "event to write p50 ms", Part::P50, 1, "0.8 of the twin's"),
                row("delay", "p99", Part::P99, 1, "0.7 of the twin's"),
                row("delay-calm", "at 25 a second, p50 ms", Part::P50, 1, ""),
                row("delay-calm", "p99", Part::P99, 1, ""),
            ],
            Self::Drive => vec![
                row("cpu", "CPU s for 1,000 pods", Part::P50, 2, "0.5 of the tuned twin's"),
                row("writes", "writes for each pod", Part::P50, 2, ""),
                row("refused", "refused for each pod", Part::P50, 2, ""),
                row("seconds", "until all have succeeded s", Part::P50, 1, ""),
                row("canary", "canary p50 ms", Part::P50, 1, ""),
                row("canary", "canary p99 ms", Part::P99, 1, "1000"),
                row("canary-429", "canary asked to come later", Part::P50, 0, "0"),
                row("others", "strangers' CPU %", Part::P50, 0, ""),
            ],
            Self::HandOver | Self::HandOverMany => HAND_OVER.to_vec(),
            Self::Crash => vec![
                row("taken", "signal to Lease taken ms", Part::P50, 0, ""),
                row("wrote", "signal to first write ms", Part::P50, 0, ""),
            ],
            Self::Paused => vec![
                row("tries", "tries", Part::P50, 0, ""),
                row("writes", "writes after they woke", Part::P50, 0, "0"),
                row("unclean", "tries with such a write", Part::P50, 0, ""),
            ],
            Self::Outage => vec![
                row("back", "from its return until made up for s", Part::P50, 1, "5, aimed at 2"),
                row("restarts", "restarts of the process", Part::P50, 0, "0"),
            ],
            Self::Silence => vec![
                row("back", "from the silence until made up for s", Part::P50, 1, "45, aimed at 15"),
                row("restarts", "restarts of the process", Part::P50, 0, "0"),
            ],
        }
    }

    /// How far from nothing Quintet may come at most, where that is a count or as steady as one: figures of its rows. A small run
    /// says little about them, unless there must be none.
    fn limits(self, quick: bool) -> Option<Vec<(&'static str, f64)>> {
        let limits: &[(&str, f64)] = match self {
            Self::Idle => &[("rss", 12.0)],
            Self::Requests => &[("requests", 0.25), ("reads", 0.0)],
            Self::Restart => &[("writes", 0.0), ("steady", 0.0)],
            Self::Outage | Self::Silence => &[("restarts", 0.0)],
            Self::Drive => &[("canary-429", 0.0)],
            Self::Paused => &[("writes", 0.0)],
            Self::Foreign => &[("bytes", FOREIGN_BYTES)],
            Self::Own => &[("bytes", 2_048.0), ("peak", 1.3)],
            Self::Size => &[("compressed", 10.0)],
            _ => &[],
        };
        let limits = limits.iter().copied().filter(|(_, most)| !quick || *most <= 0.0);
        Some(limits.collect::<Vec<_>>()).filter(|limits| !limits.is_empty())
    }

    /// How many simulated nodes the measure needs.
    fn nodes(self, sizes: &Sizes) -> usize {
        if self == Self::Drive { sizes.nodes } else { 1 }
    }

    /// Who is compared.
    fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Latency => Contender::ALL,
            // Both twins have one Lease, and both managers here are left alone at the same time.
            Self::Requests => &[Contender::Quintet, Contender::Twin],
            Self::Paused => &[Contender::Quintet, Contender::TwinTuned],
            Self::Outage | Self::Silence => {
                &[Contender::Quintet, Contender::TwinTuned, Contender::KubeRuntime]
            }
            _ => Contender::MANAGERS,
        }
    }

    /// Who is measured on one cluster, for each cluster of a pair. Where the API server's time is most of what is measured, it
    /// makes a difference who comes first on a cluster, so there each contender has one of its own.
    fn clusters(self, pair: usize) -> Vec<Vec<Contender>> {
        let mut contenders = order(self.contenders(), pair);
        if self == Self::Silence && pair > 1 {
            // Only the end of its watch tells it, and that takes as long every time.
            contenders.retain(|contender| *contender != Contender::KubeRuntime);
        }
        let of_one =
            if matches!(self, Self::Latency | Self::Drive | Self::Own) { 1 } else { contenders.len() };
        contenders.chunks(of_one).map(<[_]>::to_vec).collect()
    }

    /// How often it is measured.
    fn pairs(self, sizes: &Sizes) -> usize {
        // Two of them do not vary, and the third has tries enough in one.
        if matches!(self, Self::Size | Self::Requests | Self::Paused) { 1 } else { sizes.pairs }
    }

    fn measure(self, stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, into: &mut Results) -> Result<()> {
        if self != Self::Size {
            measures::warm_up(stand, pair)?;
        }
        match self {
            Self::Size => measures::size(stand, into),
            Self::Idle => measures::idle(stand, sizes, pair, into),
            Self::Requests => measures::requests(stand, sizes, pair, into),
            Self::Foreign => measures::foreign(stand, sizes, pair, into),
            Self::Own => measures::own(stand, sizes, pair, into),
            Self::Restart => measures::restart(stand, sizes, pair, into),
            Self::Start => measures::start(stand, sizes, pair, into),
            Self::Latency => measures::latency(stand, sizes, pair, into),
            Self::Drive => measures::drive(stand, sizes, pair, into),
            Self::HandOver => measures::hand_over(stand, sizes, pair, End::Graceful, false, into),
            Self::HandOverMany => measures::hand_over(stand, sizes, pair, End::Graceful, true, into),
            Self::Crash => measures::hand_over(stand, sizes, pair, End::Crash, false, into),
            Self::Paused => paused::paused(stand, sizes, pair, into),
            Self::Outage => broken::broken(stand, sizes, pair, Break::Outage, into),
            Self::Silence => broken::broken(stand, sizes, pair, Break::Silence, into),
        }
    }
}

/// Pods that are many.
pub const MANY: usize = 10_000;

/// `cargo xtask bench manager`.
#[derive(Debug, clap::Args)]
#[command(
    about = "The manager beside one written with controller-runtime: memory, start, hand-over, latency, requests, faults",
    long_about = "The manager beside one written with controller-runtime: memory, start, hand-over, latency, requests, faults.\n\n\
    The other one, called the twin, is tests/bench/twin, built from source with Go for the first time. It keeps DaemonJobs \
    and PodSets by the same rules in their simplest form, and is measured twice: with the defaults of controller-runtime, \
    and tuned. From an event to a write and after faults, a manager for PodSets that is written with kube-runtime's Controller \
    (tests/bench/kube-runtime) is measured as well. Each pair measures all of them, in alternating order; ratios are taken \
    within a pair.\n\n\
    With --write each measure is kept as soon as it is done, so that an interrupted run can be continued with --only. \
    With seven pairs everything takes about four hours on two cores."
)]
pub struct Args {
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=99))]
    pairs: u8,
    /// See whether it works: one pair, 100 pods where there are 10,000 else, and little of everything
    #[arg(long, conflicts_with_all = ["pairs", "write"])]
    pub quick: bool,
    /// Measure this alone; may be given several times
    #[arg(long, value_enum, value_name = "MEASURE")]
    only: Vec<Measure>,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Keep the outcome in docs/bench and tests/bench/results, beside runs of other measures
    #[arg(long)]
    write: bool,
}

impl Args {
    fn sizes(&self) -> Sizes {
        let seconds = Duration::from_secs;
        if self.quick {
            return Sizes {
                pairs: 1,
                many: 100,
                events: 50,
                calm_events: 10,
                jobs: 2,
                nodes: 5,
                hand_overs: 2,
                pauses: 4,
                lanes: 2,
                settle: seconds(1),
                standby: seconds(1),
                idle: seconds(5),
                long: seconds(5),
                outage: seconds(3),
                meanwhile: 3,
            };
        }
        Sizes {
            pairs: self.pairs.into(),
            many: MANY,
            events: 1_000,
            calm_events: 250,
            jobs: 5,
            nodes: 200,
            hand_overs: 100,
            pauses: 1_000,
            lanes: 50,
            settle: seconds(8),
            standby: seconds(1),
            idle: seconds(30),
            long: Duration::from_mins(20),
            outage: Duration::from_mins(1),
            meanwhile: 20,
        }
    }

    fn measures(&self) -> Vec<Measure> {
        Measure::ALL
            .into_iter()
            .filter(|measure| self.only.is_empty() || self.only.contains(measure))
            .collect()
    }

    /// The command that measures one thing alike.
    fn command(&self, measure: Measure) -> String {
        let program = if self.program.is_some() { " --program FILE" } else { "" };
        let only = format!("--only {}{program}", measure.word());
        if self.quick {
            return format!("cargo xtask bench manager --quick {only}");
        }
        format!("cargo xtask bench manager --pairs {} {only} --write", self.pairs)
    }
}

/// Runs the bench.
pub fn run(args: &Args) -> Result<()> {
    let program = match &args.program {
        Some(program) => program.canonicalize()?,
        None => build::release()?,
    };
    let twin = Program::built("tests/bench/twin", FRAMEWORK)?;
    let kube_runtime = build::unshipped(KUBE_RUNTIME)?;
    for measure in args.measures() {
        carry_out(args, measure, &program, &twin, &kube_runtime)?;
    }
    Ok(())
}

/// The package of the manager that is written with kube-runtime's Controller, and its program.
const KUBE_RUNTIME: &str = "quintet-bench-kube-runtime";

/// The Go module that the twin is written with.
pub const FRAMEWORK: &str = "sigs.k8s.io/controller-runtime";

/// Measures one thing in every pair, on clusters of its own.
fn carry_out(
    args: &Args,
    measure: Measure,
    program: &Path,
    twin: &Program,
    kube_runtime: &Path,
) -> Result<()> {
    let sizes = args.sizes();
    let machine = Machine::now();
    let (nodes, of) = (measure.nodes(&sizes), measure.pairs(&sizes));
    let mut results = Results::new(measure, measure.title(&sizes), twin.version.clone());
    let mut versions = Versions::default();
    for number in 1..=of {
        for on_cluster in measure.clusters(number) {
            let rig = Rig::up(nodes, sizes.jobs * nodes, program)?;
            versions = Versions::of(&rig, program)?;
            let stand = Stand::new(&rig, twin, kube_runtime)?;
            measure.measure(&stand, &sizes, Pair { number, of, contenders: &on_cluster }, &mut results)?;
        }
    }
    let run = Run {
        about: measure.title(&sizes),
        size: measure.kept_as(),
        command: args.command(measure),
        machine,
        versions: versions.built(args.program.is_none())?,
        failures: measure.limits(args.quick).map(|limits| results.failures(&limits)),
        caveats: Vec::new(),
        measurements: results,
    };
    report(vec![run]).finish(args.write)
}

/// The page and the results, with these runs.
pub fn report(runs: Vec<Run<Results>>) -> Report<Results> {
    Report { name: "manager", title: "The manager, measured", method: method(), runs }
}

/// What a reader of the tables has to know.
fn method() -> Vec<String> {
    [
        "Each section below is from the newest run of its measure, and says by which command.",
        "One cluster for each pair: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as \
         processes of this machine, kubelets simulated by kwok. Quintet is the release program with all five kinds, the \
         Lease and the rights of the chart's ServiceAccount. The twin (tests/bench/twin) is a manager for DaemonJob and \
         PodSet alone, written with controller-runtime: their rules in the simplest form, so without conditions, Events, \
         ledger, rollout, or retries of pods. It is measured with the defaults of controller-runtime, one worker and no limit of \
         requests, and tuned: 16 workers, only pods with its label in the cache, managedFields not kept, caches that are filled \
         before it leads (EnableWarmup), the Lease released at the end. GOGC and GOMEMLIMIT are as Go has them. Both have leader election with 15 s, 10 s and 2 s; but the twin renews its \
         Lease every 2 s, as often as it tries, and Quintet every 5 s, and tries again after 2 s only where that failed.",
        rig::METHOD,
        "Where the time from an event to a write is measured, and what becomes of faults on the way to the API server, there is \
         one more: a manager for PodSets alone that is written \
         with kube-runtime's Controller, as its examples are (tests/bench/kube-runtime), of the version that Quintet has its \
         client of, and built as Quintet is. It has one watch of pods, no limit of requests, and no leader election. For \
         the time to a write, what 1,000 pods cost, and the start with many pods, each has a cluster of its own: on one, it made \
         a difference who came first.",
        "A pair measures all of them one after another, in alternating order. Cells are the median of the pairs and the \
         worst of them in parentheses; where a pair has many attempts, those of all pairs are taken together. Ratios are \
         taken within a pair: the median, and its 95 % interval by bootstrap in parentheses.",
        "Before a pair, each has made a pod that is not measured. Every process is started anew and has its Lease free, so \
         that none waits for the predecessor's. The size of a program is that of a layer with it, as `cargo xtask image` compresses layers. RSS and peak are the kernel's (VmRSS, VmHWM); PSS counts shared pages in part. Memory for a pod is the difference between two \
         starts, without pods and with them. Pods are of 3.8 KB of JSON and unscheduled. Those of its own are made by \
         Quintet, with an owner and labels by which either finds them.",
        "Requests are counted in the API server's audit log, those when idle with renewals of the Lease, those of a restart \
         without; a watch counts when it ends. When idle, Quintet and the twin are left alone at the same time, once: there is little \
         chance in it. Writes for each pod are those that were carried out; those that were refused have \
         a row of their own. For a restart there are Books, Greetings, PodSets of one pod, PulsarConsumers \
         without replicas and DaemonJobs that are done, together so many. Times of writes are the API server's (audit log), to the microsecond; those of the Lease are when a watch says \
         so. Start to first write is from before the process is started until a request to make a pod arrives. \
         The API server has then been left alone for 8 s. Event to \
         write is from the answer to the request that makes a PodSet until that to the one that makes its pod; requests \
         are sent at their time, whatever became of those before. They come at 25 a second, a quarter as many, and when those \
         are deleted at 100 a second to the same process. 100 a second are about what the API server can take on two cores: \
         what is measured then is who leaves it the most of itself, and where it cannot take them everybody waits for seconds. \
         25 a second leave it time.",
        "A hand-over begins with the signal. When the old leader has released the Lease, or has ended if it does not, an \
         object is made for which there is something to do: first write is when the successor's request arrives. The \
         successor was started and ready before. The twin's are fewer, as they take seconds. A crash comes when the successor \
         has seen a renewal of the Lease, in each pair at another moment between two renewals: it waits 15 s from the last one \
         that it saw. Of a crash alone, Quintet renews its Lease every 2 s too (`--leader-elect-renew-period=2s`): every 5 s, the last \
         renewal is longer ago when the crash comes, and its Lease over up to 3 s sooner.",
        "Leaders are stopped by SIGSTOP, many at a time, each with a Lease and a namespace of its own, up to 95 ms after the PodSet \
         that they keep was scaled: in the middle of its pods' creation or deletion. When the standby has taken the Lease and has \
         done what was left, it is stopped as well, another PodSet is scaled, and the first one wakes: whatever the API server is \
         asked for from then until 2 s after it has said that it does not lead, or has ended, is its own, Events among it. Renewals \
         of the Lease are left out.",
        "An API server that is gone, and connections that go silent, are made by a proxy between a manager and the API server: it \
         closes its connections and refuses others for a minute, or passes nothing more over those that are open, while new ones \
         work. What is sent over a silent connection is still acknowledged, so TCP does not tell. 20 PodSets are made meanwhile, \
         and the time is until the last has its pod. The pairs begin at different moments between two renewals of the Lease. The \
         twin ends when its Lease is lost, and whenever it is started and there is no API server; it is started again within a \
         second, without a kubelet's pauses, and waits for its old Lease. What is written with kube-runtime's Controller has no \
         Lease whose renewals would tell it that nobody answers; it waits for the silence once, as that takes it minutes.",
        "A canary is a client of its own that gets one object every 20 ms while the pods are made, with a ServiceAccount that the \
         API server ranks as it does any other and may ask to come later (429). Strangers are processes \
         that have nothing to do with the bench: where they used much of the processors, times and their ratios say \
         little; memory and counts are as good as ever.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed as parse;

    #[test]
    fn options_come_to_sizes_and_measures() {
        let args = parse::<Args>(&[]).unwrap();
        assert_eq!((args.sizes().pairs, args.sizes().many, args.sizes().hand_overs), (7, 10_000, 100));
        assert_eq!(args.measures(), Measure::ALL);
        let args = parse::<Args>(&["--only", "crash", "--only", "idle", "--pairs", "2"]).unwrap();
        assert_eq!((args.measures(), args.sizes().pairs), (vec![Measure::Idle, Measure::Crash], 2));
        assert_eq!(parse::<Args>(&["--quick"]).unwrap().sizes().many, 100);
        assert!(parse::<Args>(&["--quick", "--pairs", "2"]).is_err());
        assert!(parse::<Args>(&["--quick", "--write"]).is_err());
        assert!(parse::<Args>(&["--only", "nothing"]).is_err());
    }

    #[test]
    fn what_is_kept_stays_that_of_its_measure() {
        // The results have runs by these numbers: a new one has the next.
        let kept = Measure::ALL.map(|measure| (measure.kept_as(), measure.word()));
        let kept = kept.each_ref().map(|(number, word)| (*number, word.as_str()));
        assert_eq!(
            kept,
            [
                (0, "size"),
                (1, "idle"),
                (11, "requests"),
                (2, "foreign"),
                (3, "own"),
                (4, "start"),
                (5, "latency"),
                (6, "drive"),
                (7, "hand-over"),
                (8, "hand-over-many"),
                (9, "crash"),
                (14, "paused"),
                (12, "outage"),
                (13, "silence"),
                (10, "restart"),
            ]
        );
    }

    #[test]
    fn a_small_run_must_do_nothing_too_where_nothing_is_to_be_done() {
        let limits = |measure: Measure| measure.limits(true).unwrap_or_default();
        assert_eq!(limits(Measure::Requests), [("reads", 0.0)]);
        assert_eq!(limits(Measure::Restart), [("writes", 0.0), ("steady", 0.0)]);
        assert_eq!(Measure::Own.limits(true), None);
        assert_eq!(Measure::Own.limits(false).unwrap_or_default().len(), 2);
        assert_eq!(Measure::Latency.limits(false), None);
    }

    #[test]
    fn a_cluster_serves_all_of_a_pair_but_where_milliseconds_count() {
        let mut all = Contender::ALL.to_vec();
        assert_eq!(Measure::Idle.clusters(1), [Contender::MANAGERS]);
        assert_eq!(Measure::Own.clusters(1).len(), Contender::MANAGERS.len());
        assert_eq!(Measure::Drive.clusters(1).len(), Contender::MANAGERS.len());
        assert_eq!(Measure::Latency.clusters(1).concat(), all);
        assert_eq!(Measure::Latency.clusters(1).len(), all.len());
        all.reverse();
        assert_eq!(Measure::Latency.clusters(2).concat(), all);
        assert!(Measure::Silence.clusters(1).concat().contains(&Contender::KubeRuntime));
        assert_eq!(Measure::Silence.clusters(2), [[Contender::TwinTuned, Contender::Quintet]]);
    }

    #[test]
    fn a_section_names_the_command_that_made_it() {
        let args = parse::<Args>(&["--pairs", "3"]).unwrap();
        for measure in Measure::ALL {
            let command = args.command(measure);
            let words: Vec<&str> = command.split(' ').skip(4).collect();
            assert_eq!(parse::<Args>(&words).unwrap().measures(), [measure], "{command}");
        }
    }
}
