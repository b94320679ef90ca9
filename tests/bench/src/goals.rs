//! `cargo xtask bench goals`: what all benches have found beside what Quintet wants to come to, out of their results. The
//! table and the plots change only with the results.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use quintet_localcluster::audit::Tally;
use quintet_localcluster::run::print;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::manager::Measure;
use super::manager::contender::Contender as Manager;
use super::manager::figures::{Part, Results as ManagerResults};
use super::report::Run;
use super::rig::Setting;
use super::stats::{self, Interval, Spread, float, ratio};
use super::table::{self, NONE, Table, count, decimals};
use super::{daemonjob, greeting, manager, plot, podset, report};

/// The number of nodes that goals speak of.
const NODES: usize = 1_000;

/// The greater one that some of them speak of too.
const MANY_NODES: usize = 5_000;

/// The number of pods of a PodSet that goals speak of.
const PODS: usize = 1_000;

/// What is said of a goal that is reached but not at best, and of one that is not reached.
const MUST: &str = "must";
const NO: &str = "no";

/// `cargo xtask bench goals`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Every goal beside what the benches have found, out of tests/bench/results",
    long_about = "Every goal beside what the benches have found, out of tests/bench/results.\n\n\
    Nothing is measured: the figures are those that `cargo xtask bench KIND --write` has kept. A goal holds if the worse end \
    of the 95 % interval does."
)]
pub struct Args {
    /// Keep the table as docs/bench/README.md, with plots of how figures grow
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let kept = Kept::read(&report::results())?;
    let goals = kept.goals();
    let mut parts: Vec<String> = vec![String::new(), goals.table.plain()];
    for (title, list) in goals.lists() {
        parts.push(title.to_owned());
        parts.extend(list);
        parts.push(String::new());
    }
    parts.extend(kept.growths().iter().map(|growth| growth.table().plain()));
    print(parts.join("\n"))?;
    if args.write {
        let folder = report::pages();
        report::write_file(&folder.join("README.md"), &kept.document())?;
        for growth in kept.growths() {
            for curve in &growth.curves {
                report::write_file(&folder.join(curve.file()), &plot::svg(curve)?)?;
            }
        }
    }
    Ok(())
}

/// The results of all benches.
struct Kept {
    daemonjob: BTreeMap<usize, daemonjob::figures::Results>,
    podset: BTreeMap<usize, podset::figures::Results>,
    greeting: BTreeMap<usize, greeting::figures::Results>,
    manager: BTreeMap<usize, ManagerResults>,
    made: BTreeMap<(&'static str, usize), Made>,
}

/// How a run was made.
struct Made {
    /// What `cargo xtask bench` was told.
    by: String,
    /// On which processor; empty where that is not known.
    processor: String,
    /// Of which commit.
    checkout: String,
    /// Whether its program was built as it was before it was optimised for size alone.
    is_larger: bool,
    /// What one has to know of it alone.
    caveats: Vec<String>,
}

impl Made {
    fn of<M>(run: &Run<M>) -> Self {
        Self {
            by: run.command.trim_start_matches("cargo xtask bench ").trim_end_matches(" --write").to_owned(),
            processor: run.machine.processor.clone(),
            checkout: run.versions.checkout.clone(),
            is_larger: run.versions.profile.starts_with("opt-level=s"),
            caveats: run.remarks(),
        }
    }
}

/// A limit for a figure; less is better.
#[derive(Clone, Copy)]
struct Limits {
    must: Option<f64>,
    ambitious: Option<f64>,
    /// Whether the figure may be as far below nothing as above it, and no farther.
    both_ways: bool,
}

const fn limits(must: f64, ambitious: f64) -> Limits {
    Limits { must: Some(must), ambitious: Some(ambitious), both_ways: false }
}

const fn must(must: f64) -> Limits {
    Limits { must: Some(must), ambitious: None, both_ways: false }
}

const fn ambitious(ambitious: f64) -> Limits {
    Limits { must: None, ambitious: Some(ambitious), both_ways: false }
}

/// None: the figure is there to be seen beside those that have some.
const NO_LIMITS: Limits = Limits { must: None, ambitious: None, both_ways: false };

/// No farther from nothing than this.
const fn around_nothing(must: f64) -> Limits {
    Limits { must: Some(must), ambitious: None, both_ways: true }
}

impl Limits {
    /// Which of them the worse end of an interval keeps.
    fn kept_by(self, found: Interval) -> &'static str {
        let worse = if self.both_ways { found.high.max(-found.low) } else { found.high };
        let keeps = |limit: Option<f64>| limit.is_none_or(|limit| worse <= limit);
        match (keeps(self.must), keeps(self.ambitious)) {
            _ if self.must.is_none() && self.ambitious.is_none() => NONE,
            (true, true) => "yes",
            (true, false) if self.must.is_some() => MUST,
            _ => NO,
        }
    }

    /// A limit, for the table.
    fn show(self, limit: Option<f64>) -> String {
        let sign = if self.both_ways { "±" } else { "" };
        limit.map_or_else(|| NONE.to_owned(), |limit| format!("{sign}{limit}"))
    }
}

/// A figure of some pairs, and with which words `cargo xtask bench` measured it.
struct Found {
    by: String,
    values: Vec<f64>,
    /// Where it is a ratio: the medians of Quintet's own figure and of the other's.
    beside: Option<(f64, f64)>,
}

/// Quintet's median and another's.
fn beside(ours: impl IntoIterator<Item = f64>, theirs: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    Some((stats::spread(ours)?.median, stats::spread(theirs)?.median))
}

impl Kept {
    fn read(folder: &Path) -> Result<Self> {
        let mut made = BTreeMap::new();
        results::<IgnoredAny>(folder, "pulsar", &mut made)?;
        Ok(Self {
            daemonjob: results(folder, "daemonjob", &mut made)?,
            podset: results(folder, "podset", &mut made)?,
            greeting: results(folder, "greeting", &mut made)?,
            manager: results(folder, "manager", &mut made)?,
            made,
        })
    }

    /// With which words a run was measured.
    fn by(&self, name: &'static str, size: usize) -> String {
        self.made.get(&(name, size)).map_or_else(|| name.to_owned(), |made| made.by.clone())
    }

    /// What the manager's bench found.
    fn manager(&self, measure: Measure) -> Option<&ManagerResults> {
        self.manager.get(&measure.kept_as())
    }

    /// Quintet's own figure.
    fn own(&self, measure: Measure, figure: &str, part: Part) -> Found {
        let of_pairs = self.manager(measure).map(|found| found.of_pairs(figure, part, Manager::Quintet));
        let values = of_pairs.into_iter().flatten().map(|(_, value)| value).collect();
        Found { by: self.by("manager", measure.kept_as()), values, beside: None }
    }

    /// Quintet's figure over another's, of the pairs that have both.
    fn over_other(&self, measure: Measure, figure: &str, part: Part, to: Manager) -> Found {
        let both = self.manager(measure).map(|found| found.of_both(figure, part, to)).unwrap_or_default();
        let values = both.iter().filter_map(|(ours, theirs)| ratio(*ours, *theirs)).collect();
        let beside = beside(both.iter().map(|(ours, _)| *ours), both.iter().map(|(_, theirs)| *theirs));
        Found { by: self.by("manager", measure.kept_as()), values, beside }
    }

    /// A figure of DaemonJobs.
    fn daemonjob(
        &self,
        nodes: usize,
        setting: Setting,
        figure: fn(&daemonjob::figures::Completion) -> f64,
    ) -> Found {
        let ours = daemonjob::figures::Contender::DaemonJob;
        let found = self.daemonjob.get(&nodes).into_iter().flat_map(|found| found.of(setting, ours));
        Found { by: self.by("daemonjob", nodes), values: found.map(figure).collect(), beside: None }
    }

    /// A figure of DaemonJobs from their creation until their last pod is gone.
    fn daemonjob_lives(&self, figures: impl Fn(&daemonjob::figures::Results) -> Vec<f64>) -> Found {
        let values = self.daemonjob.get(&NODES).map(figures).unwrap_or_default();
        Found { by: self.by("daemonjob", NODES), values, beside: None }
    }

    /// A DaemonJob's figure over another's.
    fn daemonjob_over(
        &self,
        nodes: usize,
        setting: Setting,
        other: daemonjob::figures::Contender,
        figure: fn(&daemonjob::figures::Completion) -> f64,
    ) -> Found {
        let found = self.daemonjob.get(&nodes);
        let values = found.map(|found| found.pairs(setting, other, figure)).unwrap_or_default();
        let of = |who| found.into_iter().flat_map(move |found| found.of(setting, who)).map(figure);
        let beside = beside(of(daemonjob::figures::Contender::DaemonJob), of(other));
        Found { by: self.by("daemonjob", nodes), values, beside }
    }

    /// What a PodSet's manager asks for to be written after a restart with all pods ready, carried out or not.
    fn podset_restart(&self, setting: Setting) -> Found {
        let ours = podset::figures::Contender::PodSet;
        let cycles = self.podset.get(&PODS).into_iter().flat_map(|found| found.of(setting, ours));
        let writes = cycles.filter_map(|cycle| Some(float(cycle.restart.as_ref()?.writes.requests())));
        Found { by: self.by("podset", PODS), values: writes.collect(), beside: None }
    }

    /// A PodSet's figure over a ReplicaSet's, tuned.
    fn podset_over(&self, figure: fn(&podset::figures::Cycle) -> f64) -> Found {
        use podset::figures::Contender::{PodSet, ReplicaSet};
        let found = self.podset.get(&PODS);
        let values = found.map(|found| found.pairs(Setting::Tuned, figure)).unwrap_or_default();
        let of = |who| found.into_iter().flat_map(move |found| found.of(Setting::Tuned, who)).map(figure);
        Found { by: self.by("podset", PODS), values, beside: beside(of(PodSet), of(ReplicaSet)) }
    }

    /// Memory with one Greeting over kopf's, in the largest run.
    fn over_kopf(&self) -> Found {
        use greeting::figures::{Contender, Mode};
        let (size, found) =
            self.greeting.last_key_value().map_or((0, None), |(size, found)| (*size, Some(found)));
        let of = |who| found.into_iter().flat_map(move |found| found.of(who, Mode::Undisturbed));
        let ratios = of(Contender::Greeting).filter_map(|ours| {
            let theirs = of(Contender::Kopf).find(|theirs| theirs.round == ours.round)?;
            ratio(float(ours.idle_memory.rss_kib), float(theirs.idle_memory.rss_kib))
        });
        let mebibytes = |who| of(who).map(|one| stats::mebibytes(one.idle_memory.rss_kib));
        let beside = beside(mebibytes(Contender::Greeting), mebibytes(Contender::Kopf));
        Found { by: self.by("greeting", size), values: ratios.collect(), beside }
    }

    fn goals(&self) -> Goals {
        let header =
            ["what", "goal", "found", "beside", "pairs", "must", "ambitious", "holds", "measured by"];
        let mut goals =
            Goals { table: Table::new("Goals", &header), subject: String::new(), short: Vec::new() };
        self.daemonjob_goals(&mut goals);
        self.memory_goals(&mut goals);
        self.time_goals(&mut goals);
        for made in self.made.values() {
            for caveat in &made.caveats {
                goals.table.note(format!("`{}`: {caveat}", made.by));
            }
        }
        goals
    }

    /// Goals 1 to 6: what is written, and how soon all is made.
    fn daemonjob_goals(&self, goals: &mut Goals) {
        use Setting::{Shipped, Tuned};
        use daemonjob::figures::Completion;
        use daemonjob::figures::Contender::{Bare, BroadcastJob, DaemonJob, DaemonSet, Job};
        const SETTINGS: [Setting; 2] = [Shipped, Tuned];
        for setting in SETTINGS {
            goals.row(
                "1",
                &format!(
                    "{}, 1,000 nodes: writes per pod to completion, {}",
                    DaemonJob.name(),
                    setting.name()
                ),
                3,
                self.daemonjob(NODES, setting, Completion::writes_per_pod),
                must(1.03),
            );
            goals.row(
                "1",
                "the same without one write a second",
                3,
                self.daemonjob(NODES, setting, Completion::writes_per_pod_besides_one_a_second),
                ambitious(1.01),
            );
        }
        // Such a run is not always kept.
        let of_many = self.daemonjob(MANY_NODES, Tuned, Completion::writes_per_pod);
        if !of_many.values.is_empty() {
            let what = "DaemonJob, 5,000 nodes: writes per pod to completion, tuned";
            goals.row("1", what, 3, of_many, must(1.03));
        }
        let per_pod = |tally: &Tally| ratio(float(tally.writes()), float(tally.pods));
        goals.row(
            NONE,
            "DaemonJob, 1,000 nodes: writes per pod until its pods were deleted, finalizers among them",
            3,
            self.daemonjob_lives(|found| {
                found.lives.iter().filter_map(|life| per_pod(&life.writes)).collect()
            }),
            must(2.1),
        );
        goals.row(
            NONE,
            "the same with ttlSecondsAfterFinished 0, where it deletes them",
            3,
            self.daemonjob_lives(|found| {
                found.ttl_lives.iter().filter_map(|life| per_pod(&life.writes)).collect()
            }),
            must(3.1),
        );
        for (nodes, setting, limits) in [
            (NODES, Shipped, must(1.0)),
            (NODES, Tuned, limits(1.0, 0.95)),
            (MANY_NODES, Tuned, limits(1.0, 0.95)),
        ] {
            let found = self.daemonjob_over(nodes, setting, BroadcastJob, |one| float(one.writes.writes()));
            if nodes == NODES || !found.values.is_empty() {
                let what = format!("DaemonJob: writes / BroadcastJob, {}{}", setting.name(), size_of(nodes));
                goals.row("2", &what, 2, found, limits);
                goals.because(
                    "A write for each pod is the least there is, and a BroadcastJob has few more that are carried out. Its \
                     requests that are refused are not counted here; [DaemonJob](daemonjob.md) has them.",
                );
            }
        }
        let none = limits(0.0, 0.0);
        let restart = self.daemonjob_lives(|found| {
            found.lives.iter().map(|life| float(life.restart.writes.requests())).collect()
        });
        goals.row("3", "restart with all nodes done, DaemonJob: writes", 0, restart, none);
        for setting in SETTINGS {
            goals.row(
                "3",
                &format!("restart with all pods ready, PodSet: writes, {}", setting.name()),
                0,
                self.podset_restart(setting),
                none,
            );
        }
        goals.row(
            "3",
            "restart with 10,000 objects of five kinds: writes",
            0,
            self.own(Measure::Restart, "writes", Part::P50),
            none,
        );
        goals.row(
            "3",
            "the same, later on: get and list",
            0,
            self.own(Measure::Restart, "steady", Part::P50),
            none,
        );
        for (nodes, setting) in [(NODES, Shipped), (NODES, Tuned), (MANY_NODES, Tuned)] {
            let found = self.daemonjob_over(nodes, setting, Bare, |one| one.last_created_seconds);
            if nodes == MANY_NODES && found.values.is_empty() {
                continue;
            }
            let what =
                format!("DaemonJob: last pod created / bare creation, {}{}", setting.name(), size_of(nodes));
            goals.row("4", &what, 2, found, limits(1.25, 1.05));
            goals.because(
                "Bare creation hears nothing of its pods. With two processors, what the watch, the ledger and the \
                 status cost the manager and the API server is time in which no pod is made; as shipped bare creation has \
                 the processors for itself, since the scheduler binds 50 pods a second and the kubelets wait for it.",
            );
        }
        let limited = "OpenKruise makes its pods as fast as its own limit of requests lets it, about 30 a second. Bare \
                       creation takes most of a tenth of that time on these processors.";
        let tuned = "These processors are the API server's until the end, whoever asks it. A DaemonJob has 32 requests in \
                     flight, OpenKruise and kube-controller-manager have hundreds. Pods of a BroadcastJob are made sooner; with \
                     200 and 5,000 nodes it is done later than a DaemonJob, with 1,000 about as soon: the table below has when \
                     each is done. A DaemonSet is done as soon as its pods are ready, and nothing is to be counted of pods that \
                     do not end. How others are served meanwhile was measured beside the twin alone (a stranger's waits).";
        for (number, setting, places, limits, why) in
            [("5", Shipped, 3, limits(0.2, 0.1), limited), ("6", Tuned, 2, limits(1.0, 0.7), tuned)]
        {
            for nodes in [NODES, MANY_NODES] {
                for other in [BroadcastJob, Job, DaemonSet] {
                    let found = self.daemonjob_over(nodes, setting, other, |one| one.creating_seconds);
                    if nodes == MANY_NODES && found.values.is_empty() {
                        continue;
                    }
                    let what = format!(
                        "DaemonJob: creating / {}, {}{}",
                        other.name(),
                        setting.name(),
                        size_of(nodes)
                    );
                    goals.row(number, &what, places, found, limits);
                    goals.because(why);
                }
            }
        }
        for (what, figure) in [
            ("last pod made", (|one| one.up.last_seconds) as fn(&podset::figures::Cycle) -> f64),
            ("all ready", |one| one.up.done_seconds),
            ("last pod deleted", |one| one.down.last_seconds),
            ("all gone", |one| one.down.done_seconds),
        ] {
            let what = format!("PodSet, 1,000 pods: {what} / ReplicaSet, tuned");
            goals.row(NONE, &what, 2, self.podset_over(figure), NO_LIMITS);
        }
    }

    /// Goals 8 to 13: memory and processor time.
    fn memory_goals(&self, goals: &mut Goals) {
        use super::manager::contender::Contender::{Twin, TwinTuned};
        let pages = "About 8 of the 9.4 MiB are pages of the program itself, and nearly all of its code is among them: the kernel \
                     maps 16 pages around each that is used. It is optimised for size, and has five kinds, TLS of its own \
                     and the commands.";
        goals.row(
            "8",
            "idle, five kinds: RSS MiB",
            1,
            self.own(Measure::Idle, "rss", Part::P50),
            limits(12.0, 8.0),
        );
        goals.because(pages);
        goals.row(
            "8",
            "the same / the twin, tuned",
            2,
            self.over_other(Measure::Idle, "rss", Part::P50, TwinTuned),
            limits(0.3, 0.2),
        );
        goals.because(pages);
        goals.row("9", "with one Greeting: RSS / kopf", 2, self.over_kopf(), limits(0.2, 0.1));
        goals.because("kopf runs one kind here, and Quintet all five with their caches.");
        goals.row(
            "10",
            "for each own pod: bytes",
            0,
            self.own(Measure::Own, "bytes", Part::P50),
            limits(2_048.0, 1_024.0),
        );
        goals.row(
            "10",
            "the same / the twin, tuned",
            2,
            self.over_other(Measure::Own, "bytes", Part::P50, TwinTuned),
            limits(0.35, 0.15),
        );
        goals.row(
            "10",
            "the same / the twin",
            3,
            self.over_other(Measure::Own, "bytes", Part::P50, Twin),
            ambitious(0.05),
        );
        goals.row(
            "11",
            "for each foreign pod: bytes",
            0,
            self.own(Measure::Foreign, "bytes", Part::P50),
            around_nothing(manager::FOREIGN_BYTES),
        );
        goals.row(
            "12",
            "cold start with 10,000 pods: peak / settled",
            2,
            self.own(Measure::Own, "peak", Part::P50),
            limits(1.3, 1.1),
        );
        goals.row(
            "13",
            "CPU for 1,000 pods / the twin, tuned",
            2,
            self.over_other(Measure::Drive, "cpu", Part::P50, TwinTuned),
            limits(0.5, 0.25),
        );
        goals.because(
            "Each pod is a request, and each of its changes comes by a watch, both by TLS. What these cost apart has not been \
             measured.",
        );
        goals.row(
            NONE,
            "1,000 pods to completion: s / the twin, tuned",
            2,
            self.over_other(Measure::Drive, "seconds", Part::P50, TwinTuned),
            NO_LIMITS,
        );
        goals.row(
            NONE,
            "a stranger's waits meanwhile, p99: ms",
            0,
            self.own(Measure::Drive, "canary", Part::P99),
            must(1_000.0),
        );
        for (what, to) in [("the same / the twin, tuned", TwinTuned), ("the same / the twin", Twin)] {
            goals.row(NONE, what, 2, self.over_other(Measure::Drive, "canary", Part::P99, to), NO_LIMITS);
        }
    }

    /// Goals 14 to 19, 21, 22 and 25: latency, start, size, hand-over, faults and requests.
    fn time_goals(&self, goals: &mut Goals) {
        use super::manager::contender::Contender::{KubeRuntime, Twin, TwinTuned};
        for (goal, to, name, p50, p99) in [
            ("14", TwinTuned, "the twin, tuned", limits(0.8, 0.5), limits(0.7, 0.3)),
            ("15", KubeRuntime, "kube-runtime's Controller", limits(1.0, 0.7), limits(1.0, 0.7)),
        ] {
            for (figure, what) in [
                ("delay", format!("event to write, p50 / {name}")),
                ("delay-calm", format!("the same at 25 events a second, p50 / {name}")),
            ] {
                let why = "At 100 events a second the API server has no processor time to spare here, and the requests of \
                           all wait for it.";
                let (goal, p50, p99) =
                    if figure == "delay" { (goal, p50, p99) } else { (NONE, NO_LIMITS, NO_LIMITS) };
                goals.row(goal, &what, 2, self.over_other(Measure::Latency, figure, Part::P50, to), p50);
                goals.because(why);
                let p99_found = self.over_other(Measure::Latency, figure, Part::P99, to);
                goals.row(goal, "the same, p99", 2, p99_found, p99);
                goals.because(why);
            }
        }
        for (measure, what, least, most) in [
            (Measure::Start, "start to first write", 0.2, 50.0),
            (Measure::Own, "the same with 10,000 pods", 0.4, 500.0),
        ] {
            goals.row(
                "16",
                &format!("{what}: ms"),
                0,
                self.own(measure, "first", Part::P50),
                ambitious(most),
            );
            goals.row(
                "16",
                &format!("{what} / the twin, tuned"),
                2,
                self.over_other(measure, "first", Part::P50, TwinTuned),
                limits(0.5, least),
            );
            goals.because(
                "Both list the same 10,000 pods first, and the API server's time for that is most of it.",
            );
        }
        goals.row(
            "17",
            "program, compressed: MB",
            1,
            self.own(Measure::Size, "compressed", Part::P50),
            limits(10.0, 5.0),
        );
        goals.row(
            "17",
            "the same / the twin",
            2,
            self.over_other(Measure::Size, "compressed", Part::P50, Twin),
            limits(0.3, 0.15),
        );
        goals.because(
            "It has five kinds, TLS of its own and the commands, where the twin has two kinds. It is optimised for size as \
             a whole (one unit, with link-time optimisation) and stripped; folding equal functions when linking brought \
             another 0.04 MB and was left out. What unwinding costs is what keeps one object's panic from the others.",
        );
        for (measure, what) in [
            (Measure::HandOver, "graceful hand-over, p99"),
            (Measure::HandOverMany, "the same with 10,000 pods"),
        ] {
            goals.row(
                "18",
                &format!("{what}: ms"),
                0,
                self.own(measure, "wrote", Part::P99),
                ambitious(200.0),
            );
            goals.row(
                "18",
                &format!("{what} / the twin, tuned"),
                2,
                self.over_other(measure, "wrote", Part::P99, TwinTuned),
                limits(0.3, 0.05),
            );
        }
        // Each pair has one crash, at another moment: there is nothing to take a p99 of.
        goals.row(
            "19",
            "fail-over after a crash, one a pair, both renewing every 2 s: ms",
            0,
            self.own(Measure::Crash, "wrote", Part::P50),
            ambitious(15_300.0),
        );
        goals.row(
            "19",
            "the same / the twin, tuned",
            2,
            self.over_other(Measure::Crash, "wrote", Part::P50, TwinTuned),
            limits(1.0, 0.85),
        );
        goals.because(
            "A Lease of 15 s has to run out for both. What the twin takes longer is until it looks at it next, 2 s and more.",
        );
        goals.row(
            "20",
            "leaders that were stopped for longer than their Lease, 1,000 tries: writes after they woke",
            0,
            self.own(Measure::Paused, "writes", Part::P50),
            limits(0.0, 0.0),
        );
        goals.because(
            "No clock can be looked at in the same moment as something is sent: a process can be stopped between the two. \
             Such a write comes late, as one does that was on the wire, and is refused or does no harm.",
        );
        let back = |measure| self.own(measure, "back", Part::P50);
        let silent = "The next renewal of the Lease tells, 5 s later at most, and has 2.5 s to be answered.";
        goals.row("21", "connections that went silent: s", 1, back(Measure::Silence), limits(45.0, 15.0));
        goals.because(silent);
        for (what, to, of) in [
            ("the same / the twin, tuned", TwinTuned, limits(1.0, 0.33)),
            ("the same / kube-runtime's Controller", KubeRuntime, ambitious(0.05)),
        ] {
            goals.row("21", what, 2, self.over_other(Measure::Silence, "back", Part::P50, to), of);
            goals.because(silent);
        }
        goals.row(
            "22",
            "API server gone for 60 s, after its return: s",
            1,
            back(Measure::Outage),
            limits(5.0, 2.0),
        );
        let restarts = self.own(Measure::Outage, "restarts", Part::Worst);
        goals.row("22", "the same: restarts of the process", 0, restarts, limits(0.0, 0.0));
        let asked = "A renewal of the Lease every 5 s is 0.2 of it. The rest is watches that are opened anew every ten minutes, and \
                     a look every 75 s whether the kinds of KEDA are there.";
        goals.row(
            "25",
            "idle: requests a second",
            2,
            self.own(Measure::Requests, "requests", Part::P50),
            limits(0.3, 0.25),
        );
        goals.because(asked);
        goals.row(
            "25",
            "the same / the twin",
            2,
            self.over_other(Measure::Requests, "requests", Part::P50, Twin),
            ambitious(0.5),
        );
        goals.because(asked);
        // Older runs have not counted them.
        let besides = self.over_other(Measure::Requests, "besides", Part::P50, Twin);
        if !besides.values.is_empty() {
            goals.row(NONE, "the same without renewals of the Lease / the twin", 2, besides, NO_LIMITS);
        }
    }

    /// How figures grow with the number of nodes and of pods, where there is more than one number.
    fn growths(&self) -> Vec<Growth> {
        use daemonjob::figures::{Completion, Contender as OnNodes, Results as DaemonJobs};
        use podset::figures::{Contender as Replicas, Cycle, Results as PodSets};
        let daemonjobs = growth(
            ("daemonjob", "DaemonJob and others, tuned", "nodes"),
            &self.daemonjob,
            &OnNodes::ALL.map(|contender| (contender, contender.name())),
            |found: &DaemonJobs, contender, figure: fn(&Completion) -> f64| {
                stats::spread(found.of(Setting::Tuned, contender).map(figure))
            },
            &[
                ("done", "s until all is done", |one: &Completion| one.done_seconds),
                ("cpu", "CPU s", |one: &Completion| one.cpu_seconds),
                ("writes", "writes", |one: &Completion| float(one.writes.writes())),
            ],
        );
        let podsets = growth(
            ("podset", "PodSet and ReplicaSet, tuned", "pods"),
            &self.podset,
            &Replicas::ALL.map(|contender| (contender, contender.name())),
            |found: &PodSets, contender, figure: fn(&Cycle) -> f64| {
                stats::spread(found.of(Setting::Tuned, contender).map(figure))
            },
            &[
                ("up", "s until all are ready", |one: &Cycle| one.up.done_seconds),
                ("cpu", "CPU s on the way up", |one: &Cycle| one.up.cpu_seconds),
                ("down", "s until all are gone", |one: &Cycle| one.down.done_seconds),
            ],
        );
        let mut growths = vec![daemonjobs, podsets, self.memory()];
        for (growth, name) in growths.iter_mut().zip(["daemonjob", "podset"]) {
            growth.notes.extend(self.machines(name, growth.unit));
            let made = self.made.iter().filter(|((of, _), _)| *of == name);
            growth.processors =
                made.map(|((_, size), made)| (float(*size), made.processor.clone())).collect();
        }
        growths[0].notes.extend(self.kubelets());
        for growth in &mut growths {
            growth.curves.retain(Curve::has_several_sizes);
        }
        growths.retain(|growth| !growth.curves.is_empty());
        growths
    }

    /// On what the runs of each size were made: figures of different machines are not of one line.
    fn machines(&self, name: &str, unit: &str) -> Option<String> {
        let of = |((_, size), made): (&(&str, usize), &Made)| {
            let size = count(u64::try_from(*size).unwrap_or(u64::MAX));
            format!("{size} {unit} on {}, {}", made.processor, made.checkout)
        };
        let made: Vec<String> = self.made.iter().filter(|((of, _), _)| *of == name).map(of).collect();
        (!made.is_empty()).then(|| {
            format!(
                "Measured with {}. Between runs on different processors no exponent is given; between runs of different days \
                 it says something of these as well.",
                made.join("; ")
            )
        })
    }

    /// How long the simulated kubelets take by themselves, and how much that is of what others take with them.
    fn kubelets(&self) -> Option<String> {
        use daemonjob::figures::{Completion, Contender, Results as DaemonJobs};
        const WITH_ENDS: [Contender; 4] =
            [Contender::Bare, Contender::DaemonJob, Contender::BroadcastJob, Contender::Job];
        let of = |(size, found): (&usize, &DaemonJobs)| {
            let alone = stats::spread(found.kubelets.iter().copied())?.median;
            let median = |who, figure: fn(&Completion) -> f64| {
                Some(stats::spread(found.of(found.life_setting, who).map(figure))?.median)
            };
            let bare = median(Contender::Bare, |one| one.last_created_seconds)?;
            let shares = WITH_ENDS.into_iter().filter_map(|who| median(who, |one| one.done_seconds));
            let shares: Vec<f64> = shares.filter_map(|done| ratio(100.0 * alone, done)).collect();
            let (least, most) = (stats::quantile(&shares, 0.0)?, stats::quantile(&shares, 1.0)?);
            let nodes = count(u64::try_from(*size).unwrap_or(u64::MAX));
            Some(format!(
                "{alone:.1} s with {nodes} nodes, where bare creation makes the pods in {bare:.1} s, and {least:.0} to \
                 {most:.0} % of what all take whose pods end"
            ))
        };
        let alone: Vec<String> = self.daemonjob.iter().filter_map(of).collect();
        (!alone.is_empty()).then(|| {
            format!(
                "The simulated kubelets share the processors with the API server. Pods that are on their nodes already take them \
                 {}. So they take longer than pods need to be made, and with 5,000 nodes they are not fast enough: when all is \
                 done there says as much of them as of who makes the pods. Only a DaemonSet does not wait for the end of pods. \
                 When the last pod is made waits for no kubelet, but shares the processors with them.",
                alone.join("; ")
            )
        })
    }

    /// How memory grows with the pods of a manager.
    fn memory(&self) -> Growth {
        let found = self.manager(Measure::Own);
        let median = |key, who| {
            let of_pairs = found.map(|found| found.of_pairs(key, Part::P50, who)).unwrap_or_default();
            Some(stats::spread(of_pairs.into_iter().map(|(_, value)| value))?.median)
        };
        let (many, (tenth, half)) = (manager::MANY, manager::sizes::fewer(manager::MANY));
        let line = |who: Manager| {
            let points = [(tenth, "rss-tenth"), (half, "rss-half"), (many, "rss")]
                .map(|(pods, key)| Some((float(pods), median(key, who)? - median("rss-none", who)?)));
            Line { name: who.name(), points: points.into_iter().flatten().collect() }
        };
        let lines = Manager::MANAGERS.iter().copied().map(line).filter(|line| !line.points.is_empty());
        let curve = Curve {
            name: "manager-memory".to_owned(),
            size: "pods",
            label: "MiB of RSS more than without pods",
            lines: lines.collect(),
        };
        let unit = "pods of their own";
        Growth { title: "Managers", unit, curves: vec![curve], notes: Vec::new(), processors: Vec::new() }
    }

    fn document(&self) -> String {
        let mut parts = vec!["# Measured".to_owned()];
        parts.extend(
            [
                "Written by `cargo xtask bench goals --write`, out of `tests/bench/results`. Each document beside this one says by which \
                 command, on what and when it was measured; `cargo xtask bench all --write` measures everything anew, in about \
                 seven hours on two cores.",
                "[DaemonJob](daemonjob.md), [PodSet](podset.md), [Greeting](greeting.md), [PulsarConsumer](pulsar.md), [the \
                 manager](manager.md).",
                "A figure is the median of the pairs; in parentheses is its interval by bootstrap: the pairs are drawn anew 4,000 \
                 times, and of the medians of all draws the outermost 5 % are left out. With few pairs that is less than the \
                 95 % that it is called by: of seven pairs it goes from the second least value to the second most, which holds \
                 the true median in 87.5 % of cases; of five or fewer from the least to the most. A goal holds if the worse end \
                 of the interval does: `yes` both, `must` the first, `no` neither. Beside a ratio are the medians that it is of, \
                 Quintet's first. The p99 of a pair is the worst of it where it has fewer than a hundred tries, and what is found is \
                 the middle of the pairs'; in the documents are those of all pairs together. Where one pair is all, the verdict \
                 is of that. What has no limits is there to be seen beside what has, as at 25 events a second, where nobody \
                 waits: what is left there is the API server's own time for making a pod. The last column is what `cargo xtask \
                 bench` was told to measure it.",
                "The twin is a manager for DaemonJob and PodSet that is written with controller-runtime. It renews its Lease \
                 every 2 s, as client-go does, and Quintet every 5 s. That is nearly all of the twin's 606 requests in 20 minutes \
                 when idle (25), and about 240 of Quintet's 290: besides, Quintet asks for more than the twin, as nine watches \
                 are opened anew every ten minutes, and every 75 s it looks whether the two kinds of KEDA are there. Writes are \
                 those that were carried out; requests that were refused are apart in the documents. 1 MB is a million bytes, \
                 1 MiB 1,048,576.",
            ]
            .map(str::to_owned),
        );
        parts.extend(self.larger());
        let goals = self.goals();
        parts.push(goals.table.markdown().trim_end().to_owned());
        for (title, list) in goals.lists() {
            parts.push(format!("### {title}"));
            parts.push(list.join("\n"));
        }
        parts.push("### Goals that are tests".to_owned());
        parts.push(
            [
                "- 20, a leader that was paused writes nothing after its lease has expired: beside the 1,000 tries above, `cargo xtask \
                 test --e2e a_leader_that_was_stopped` stops one while ten objects wait for it, and the fault plans pause or cut off \
                 a leader at each of its requests, on a simulated API server. Neither has found a write.",
                "- 23, 600 fault plans and no violation, at best 4,000 in less than 10 minutes. `cargo xtask faults` has 30,197 plans of \
                 one fault, and found no violation; they took 161 s on two idle cores ([reliability](../reliability.md)).",
                "- 24, no duplicate pod: in all plans, in 24 hours under load, with a cache that is frozen for more than 5 minutes; at \
                 best while peers make some in the same run. The plans look for one at every revision and found none. The 24 \
                 hours have not been run, nothing freezes a cache for so long, and no peer runs beside.",
                "- 12, the peak while everything is listed anew: `cargo test -p quintet-runtime --test allocations` counts the bytes that are \
                 held meanwhile.",
            ]
            .join("\n"),
        );
        parts.push("### What is missing".to_owned());
        parts.push(
            [
                "- Not measured: 5 with 5,000 nodes, since a round of it takes half an hour with peers as shipped; PodSet and \
                 ReplicaSet with 5,000 pods; 7 (VReplicaSet of Anvil); and 9 against a Java operator.",
                "- 17 is about images. The twin has none, so the programs are compared.",
                "- 3, the restart with 10,000 objects, has no peer: the twin has two of the five kinds.",
                "- Not explained: why 1,000 pods to completion take longer than with the tuned twin. It makes the pods of one \
                 DaemonJob one after another, so it has five requests for pods in flight and Quintet up to 32, which the \
                 scheduler and the kubelets wait for as well. Whether it is that has not been tried.",
                "- The small runs in `cargo xtask test` leave out `greeting`, `pulsar`, the peers of `daemonjob`, and of `manager` \
                 all but `size`, `requests`, `start`, `latency` and `restart`.",
            ]
            .join("\n"),
        );
        for growth in self.growths() {
            parts.push(format!("## {}", growth.title));
            parts.push(growth.table().markdown().trim_end().to_owned());
            parts.extend(growth.curves.iter().map(|curve| format!("![{}]({})", curve.label, curve.file())));
        }
        parts.join("\n\n") + "\n"
    }

    /// Which runs are of the program as it was when it was larger.
    fn larger(&self) -> Option<String> {
        let runs = self.made.values().filter(|made| made.is_larger).map(|made| format!("`{}`", made.by));
        let runs: Vec<String> = runs.collect();
        (!runs.is_empty()).then(|| {
            format!(
                "Since commit f1a9559 the release program is optimised for size alone (opt-level \"z\", before that \"s\"). These \
                 runs are of the program before that, which was larger: {}.",
                runs.join(", ")
            )
        })
    }
}

/// The measurements of a bench, by their size.
fn results<T: DeserializeOwned>(
    folder: &Path,
    name: &'static str,
    made: &mut BTreeMap<(&'static str, usize), Made>,
) -> Result<BTreeMap<usize, T>> {
    let runs = report::kept(folder, name)?.into_iter().map(|run| {
        made.insert((name, run.size), Made::of(&run));
        (run.size, run.measurements)
    });
    Ok(runs.collect())
}

/// The goals, and why some are not reached, or not at best.
struct Goals {
    table: Table,
    /// What "the same" is of.
    subject: String,
    short: Vec<Short>,
}

/// A goal that is not reached, or not at best.
struct Short {
    /// Its row in the table.
    row: usize,
    /// Which of the two it is, as the row says it.
    verdict: &'static str,
    /// The goal, and what was found.
    what: String,
    why: &'static str,
}

impl Goals {
    /// A goal and what was found, with so many decimals.
    fn row(&mut self, number: &str, what: &str, places: usize, found: Found, limits: Limits) {
        if !what.starts_with("the same") {
            what.clone_into(&mut self.subject);
        }
        let interval = stats::interval(found.values);
        let (shown, verdict) = (
            table::interval(interval, decimals(places)),
            interval.map_or("not measured", |interval| limits.kept_by(interval)),
        );
        if [MUST, NO].contains(&verdict) {
            let number = if number == NONE { String::new() } else { format!("{number}, ") };
            let what = if what == self.subject {
                format!("{number}{what}: {shown}")
            } else {
                format!("{number}{} ({what}): {shown}", self.subject)
            };
            self.short.push(Short { row: self.table.rows.len(), verdict, what, why: "" });
        }
        let beside = found.beside.map(|(ours, theirs)| format!("{} / {}", short(ours), short(theirs)));
        self.table.row(
            what,
            [
                number.to_owned(),
                shown,
                beside.unwrap_or_else(|| NONE.to_owned()),
                interval.map_or_else(|| "0".to_owned(), |interval| interval.pairs.to_string()),
                limits.show(limits.must),
                limits.show(limits.ambitious),
                verdict.to_owned(),
                format!("`{}`", found.by),
            ],
        );
    }

    /// Why the last goal is not reached, or not at best, if it is not.
    fn because(&mut self, why: &'static str) {
        let row = self.table.rows.len().checked_sub(1);
        if let Some(last) = self.short.last_mut().filter(|last| Some(last.row) == row) {
            last.why = why;
        }
    }

    /// The goals that are not reached and those that are not at best, each with a title, if there are any.
    fn lists(&self) -> Vec<(&'static str, Vec<String>)> {
        let titles = [(NO, "Goals that are not reached"), (MUST, "Goals that are reached, but not at best")];
        let lists = titles.into_iter().map(|(verdict, title)| (title, self.list(verdict)));
        lists.filter(|(_, list)| !list.is_empty()).collect()
    }

    /// The goals of which this is said, and why, as items of a list; those of one reason together.
    fn list(&self, verdict: &str) -> Vec<String> {
        let short: Vec<&Short> = self.short.iter().filter(|goal| goal.verdict == verdict).collect();
        let item = |goals: &[&Short]| {
            let what: Vec<&str> = goals.iter().map(|goal| goal.what.as_str()).collect();
            format!("- {}. {}", what.join("; "), goals[0].why).trim_end().to_owned()
        };
        short.chunk_by(|one, next| one.why == next.why).map(item).collect()
    }
}

/// How many nodes there are, where they are not as many as in most rows.
fn size_of(nodes: usize) -> &'static str {
    if nodes == MANY_NODES { ", 5,000 nodes" } else { "" }
}

/// Three digits, or as many as there are before the point.
fn short(value: f64) -> String {
    let places = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    decimals(places)(value)
}

/// A figure that grows: a word for its file, its label, and what it is of a run.
type Shown<T> = (&'static str, &'static str, fn(&T) -> f64);

/// What some results of different sizes say of the same contenders. The first value is a word for files, the title, and what
/// the size counts.
fn growth<R, C: Copy, T>(
    (prefix, title, unit): (&str, &'static str, &'static str),
    found: &BTreeMap<usize, R>,
    contenders: &[(C, &'static str)],
    of: impl Fn(&R, C, fn(&T) -> f64) -> Option<Spread>,
    figures: &[Shown<T>],
) -> Growth {
    let curve = |(word, label, figure): &Shown<T>| {
        let lines = contenders.iter().map(|(contender, name)| {
            let points = found
                .iter()
                .filter_map(|(size, results)| Some((float(*size), of(results, *contender, *figure)?.median)));
            Line { name, points: points.collect() }
        });
        Curve {
            name: format!("{prefix}-{word}"),
            size: unit,
            label,
            lines: lines.filter(|line| !line.points.is_empty()).collect(),
        }
    };
    let curves = figures.iter().map(curve).collect();
    Growth { title, unit, curves, notes: Vec::new(), processors: Vec::new() }
}

/// Figures that grow with the same size.
struct Growth {
    title: &'static str,
    unit: &'static str,
    curves: Vec<Curve>,
    notes: Vec<String>,
    /// On which processor each size was measured; nothing where one run has all of them.
    processors: Vec<(f64, String)>,
}

impl Growth {
    /// The exponent of the last step of a line: what does not grow weighs least there. Nothing where it is one between different
    /// processors, or ones that are not known.
    fn exponent(&self, line: &Line) -> Option<f64> {
        let last = &line.points[line.points.len().saturating_sub(2)..];
        let on = |(size, _): &(f64, f64)| {
            let at = self.processors.iter().find(|(of, _)| rounded(*of) == rounded(*size));
            at.map(|(_, processor)| processor.as_str()).filter(|processor| !processor.is_empty())
        };
        let is_one = self.processors.is_empty()
            || last.windows(2).all(|step| on(&step[0]).is_some() && on(&step[0]) == on(&step[1]));
        stats::exponent(last).filter(|_| is_one)
    }

    /// The points, and the exponent of each line's last step.
    fn table(&self) -> Table {
        let mut sizes: Vec<u64> = Vec::new();
        for line in self.curves.iter().flat_map(|curve| &curve.lines) {
            sizes.extend(line.points.iter().map(|(size, _)| rounded(*size)));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let header: Vec<String> = std::iter::once(String::new())
            .chain(sizes.iter().map(|size| format!("{} {}", count(*size), self.unit)))
            .chain(["exponent of the last step".to_owned()])
            .collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = Table::new(format!("{}: how figures grow", self.title), &header);
        for curve in &self.curves {
            for line in &curve.lines {
                let at = |size: &u64| {
                    let point = line.points.iter().find(|(x, _)| rounded(*x) == *size);
                    point.map_or_else(|| NONE.to_owned(), |(_, y)| decimals(2)(*y))
                };
                let exponent = self.exponent(line).map_or_else(|| NONE.to_owned(), decimals(2));
                table.row(format!("{}: {}", line.name, curve.label), sizes.iter().map(at).chain([exponent]));
            }
        }
        table.note(
            "The exponent is the slope between the logarithms of the last two sizes: 1 is proportional.",
        );
        for note in &self.notes {
            table.note(note);
        }
        table
    }
}

fn rounded(size: f64) -> u64 {
    format!("{size:.0}").parse().unwrap_or_default()
}

/// One figure of several contenders, by size.
pub struct Curve {
    name: String,
    /// What the size counts.
    pub size: &'static str,
    /// The figure, with its unit.
    pub label: &'static str,
    /// One for each contender.
    pub lines: Vec<Line>,
}

/// A contender's figure, by size.
pub struct Line {
    /// The contender.
    pub name: &'static str,
    /// Sizes and figures.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    fn file(&self) -> String {
        format!("{}.svg", self.name)
    }

    fn has_several_sizes(&self) -> bool {
        self.lines.iter().any(|line| line.points.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_end_of_an_interval_decides() {
        let of = |high| Interval { median: 0.1, low: 0.1, high, pairs: 7 };
        let both = limits(0.5, 0.25);
        assert_eq!([0.25, 0.26, 0.51].map(|high| both.kept_by(of(high))), ["yes", "must", "no"]);
        assert_eq!([0.5, 0.51].map(|high| must(0.5).kept_by(of(high))), ["yes", "no"]);
        assert_eq!(NO_LIMITS.kept_by(of(9.0)), NONE);
        assert_eq!([0.5, 0.51].map(|high| ambitious(0.5).kept_by(of(high))), ["yes", "no"]);
        let between = |low, high| Interval { median: 0.0, low, high, pairs: 7 };
        let around = around_nothing(10.0);
        assert_eq!(
            [between(-10.0, 10.0), between(-11.0, 2.0), between(2.0, 11.0)]
                .map(|found| around.kept_by(found)),
            ["yes", "no", "no"]
        );
        assert_eq!(
            (around.show(around.must), around.show(around.ambitious)),
            ("±10".to_owned(), "-".to_owned())
        );
    }

    #[test]
    fn a_goal_that_is_not_reached_says_why() {
        let goals = Kept::read(&report::results()).unwrap().goals();
        let silent = goals.short.iter().filter(|goal| goal.why.is_empty());
        assert_eq!(silent.map(|goal| &goal.what).collect::<Vec<_>>(), Vec::<&String>::new());
        let found = || Found { by: String::new(), values: vec![1.0], beside: Some((123.4, 1.234)) };
        let mut goals = Goals {
            table: Table::new("Goals", &["", "", "", "", "", "", "", "", ""]),
            subject: String::new(),
            short: Vec::new(),
        };
        goals.row("1", "a", 1, found(), must(0.5));
        goals.because("A reason.");
        goals.row("1", "the same, p99", 1, found(), must(0.5));
        goals.because("A reason.");
        goals.row("2", "b", 1, found(), must(2.0));
        goals.because("None is needed.");
        goals.row("3", "c", 1, found(), limits(1.0, 0.5));
        goals.because("Another.");
        assert_eq!(goals.list(NO), ["- 1, a: 1.0; 1, a (the same, p99): 1.0. A reason."]);
        assert_eq!(goals.list(MUST), ["- 3, c: 1.0. Another."]);
        assert_eq!(goals.lists().len(), 2);
        assert_eq!(goals.table.rows[0][3], "123 / 1.23");
    }

    #[test]
    fn there_is_no_exponent_between_different_processors() {
        let exponent = |processors: &[&str]| {
            let line = Line { name: "A", points: vec![(1.0, 1.0), (10.0, 10.0), (100.0, 1_000.0)] };
            let of = |(size, name): (&(f64, f64), &&str)| (size.0, (*name).to_owned());
            let processors = line.points.iter().zip(processors).map(of).collect();
            Growth { title: "", unit: "", curves: Vec::new(), notes: Vec::new(), processors }.exponent(&line)
        };
        assert!(exponent(&[]).is_some() && exponent(&["X", "Y", "Y"]).is_some());
        assert_eq!([exponent(&["X", "X", "Y"]), exponent(&["X", "", ""])], [None, None]);
    }

    #[test]
    fn what_has_one_size_does_not_grow() {
        let curve = |sizes: &[f64]| Curve {
            name: "a".to_owned(),
            size: "pods",
            label: "s",
            lines: vec![Line { name: "A", points: sizes.iter().map(|size| (*size, 1.0)).collect() }],
        };
        assert!(curve(&[100.0, 1_000.0]).has_several_sizes());
        assert!(!curve(&[1_000.0]).has_several_sizes());
        for growth in Kept::read(&report::results()).unwrap().growths() {
            assert!(growth.table().header.len() > 3, "{} has one size", growth.title);
        }
    }

    #[test]
    fn the_table_in_the_documents_is_the_one_that_they_come_to() {
        let folder = report::pages();
        let kept = Kept::read(&report::results()).unwrap();
        let written = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(
            kept.document() == written,
            "`cargo xtask bench goals --write` makes docs/bench/README.md anew"
        );
        for curve in kept.growths().iter().flat_map(|growth| &growth.curves) {
            let written = std::fs::read_to_string(folder.join(curve.file())).unwrap();
            assert!(plot::svg(curve).unwrap() == written, "{} is another one", curve.file());
        }
    }
}
