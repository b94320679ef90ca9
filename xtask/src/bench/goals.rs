//! `cargo xtask bench goals`: what all benches have found beside what Quintet wants to come to, out of the documents that
//! they have written. The table and the plots change only with those documents.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::manager::Measure;
use super::manager::contender::Contender as Manager;
use super::manager::figures::{Part, Results as ManagerResults};
use super::rig::Setting;
use super::stats::{self, Interval, Spread, float, ratio};
use super::table::{self, NONE, Table, count, decimals};
use super::{daemonjob, greeting, manager, plot, podset, report};
use crate::run::print;

/// The number of nodes that goals speak of.
const NODES: usize = 1_000;

/// The greater one that some of them speak of too.
const MANY_NODES: usize = 5_000;

/// The number of pods of a PodSet that goals speak of.
const PODS: usize = 1_000;

/// `cargo xtask bench goals`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Every goal beside what the benches have found, out of docs/bench",
    long_about = "Every goal beside what the benches have found, out of docs/bench.\n\n\
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
    let folder = report::folder();
    let kept = Kept::read(&folder)?;
    let mut parts: Vec<String> = vec![String::new(), kept.goals().plain()];
    parts.extend(kept.growths().iter().map(|growth| growth.table().plain()));
    print(parts.join("\n"))?;
    if args.write {
        report::write_file(&folder.join("README.md"), &kept.document())?;
        for growth in kept.growths() {
            for curve in &growth.curves {
                report::write_file(&folder.join(curve.file()), &plot::svg(curve)?)?;
            }
        }
    }
    Ok(())
}

/// What the documents keep.
struct Kept {
    daemonjob: BTreeMap<usize, daemonjob::figures::Results>,
    podset: BTreeMap<usize, podset::figures::Results>,
    greeting: BTreeMap<usize, greeting::figures::Results>,
    manager: BTreeMap<usize, ManagerResults>,
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
            (true, true) => "yes",
            (true, false) if self.must.is_some() => "must",
            _ => "no",
        }
    }

    /// A limit, for the table.
    fn show(self, limit: Option<f64>) -> String {
        let sign = if self.both_ways { "±" } else { "" };
        limit.map_or_else(|| NONE.to_owned(), |limit| format!("{sign}{limit}"))
    }
}

/// A figure of some pairs, and with which words `cargo xtask bench` measures it.
struct Found {
    by: String,
    values: Vec<f64>,
}

impl Kept {
    fn read(folder: &Path) -> Result<Self> {
        Ok(Self {
            daemonjob: results(folder, "daemonjob")?,
            podset: results(folder, "podset")?,
            greeting: results(folder, "greeting")?,
            manager: results(folder, "manager")?,
        })
    }

    /// What the manager's bench found.
    fn manager(&self, measure: Measure) -> Option<&ManagerResults> {
        self.manager.get(&measure.kept_as())
    }

    /// Quintet's own figure.
    fn own(&self, measure: Measure, figure: &str, part: Part) -> Found {
        let of_pairs = self.manager(measure).map(|found| found.of_pairs(figure, part, Manager::Quintet));
        let values = of_pairs.into_iter().flatten().map(|(_, value)| value).collect();
        Found { by: by_manager(measure), values }
    }

    /// Quintet's figure over another's.
    fn over_other(&self, measure: Measure, figure: &str, part: Part, to: Manager) -> Found {
        let values = self.manager(measure).map(|found| found.ratios(figure, part, to)).unwrap_or_default();
        Found { by: by_manager(measure), values }
    }

    /// A figure of DaemonJobs.
    fn daemonjob(&self, setting: Setting, figure: fn(&daemonjob::figures::Completion) -> f64) -> Found {
        let ours = daemonjob::figures::Contender::DaemonJob;
        let found = self.daemonjob.get(&NODES).into_iter().flat_map(|found| found.of(setting, ours));
        Found { by: by_daemonjob(NODES), values: found.map(figure).collect() }
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
        Found { by: by_daemonjob(nodes), values }
    }

    /// What a DaemonJob's manager asks for to be written after a restart with everything done, carried out or not.
    fn daemonjob_restart(&self) -> Found {
        let lives = self.daemonjob.get(&NODES).into_iter().flat_map(|found| &found.lives);
        let writes = lives.map(|life| float(life.restart.writes.requests()));
        Found { by: by_daemonjob(NODES), values: writes.collect() }
    }

    /// The same of a PodSet's with all pods ready.
    fn podset_restart(&self, setting: Setting) -> Found {
        let ours = podset::figures::Contender::PodSet;
        let cycles = self.podset.get(&PODS).into_iter().flat_map(|found| found.of(setting, ours));
        let writes = cycles.filter_map(|cycle| Some(float(cycle.restart.as_ref()?.writes.requests())));
        Found { by: format!("podset --pods {PODS}"), values: writes.collect() }
    }

    /// Memory with one Greeting over kopf's.
    fn over_kopf(&self) -> Found {
        use greeting::figures::{Contender, Mode};
        let ratios = self.greeting.values().flat_map(|found| {
            let theirs = found.of(Contender::Kopf, Mode::Undisturbed);
            found.of(Contender::Greeting, Mode::Undisturbed).into_iter().filter_map(move |ours| {
                let theirs = theirs.iter().find(|theirs| theirs.round == ours.round)?;
                ratio(float(ours.idle_memory.rss_kib), float(theirs.idle_memory.rss_kib))
            })
        });
        Found { by: "greeting".to_owned(), values: ratios.collect() }
    }

    fn goals(&self) -> Table {
        let mut goals = Goals(Table::new(
            "Goals",
            &["what", "goal", "found", "pairs", "must", "ambitious", "holds", "measured by"],
        ));
        self.daemonjob_goals(&mut goals);
        self.memory_goals(&mut goals);
        self.time_goals(&mut goals);
        goals.0
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
                &format!("{}, 1,000 nodes: writes per pod, {}", DaemonJob.name(), setting.name()),
                3,
                self.daemonjob(setting, Completion::writes_per_pod),
                must(1.05),
            );
            goals.row(
                "1",
                "the same without one write a second",
                3,
                self.daemonjob(setting, Completion::writes_per_pod_besides_one_a_second),
                ambitious(1.01),
            );
        }
        for (setting, limits) in [(Shipped, must(1.0)), (Tuned, limits(1.0, 0.95))] {
            goals.row(
                "2",
                &format!("DaemonJob: writes / BroadcastJob, {}", setting.name()),
                2,
                self.daemonjob_over(NODES, setting, BroadcastJob, |one| float(one.writes.writes())),
                limits,
            );
        }
        let none = limits(0.0, 0.0);
        goals.row("3", "restart with all nodes done, DaemonJob: writes", 0, self.daemonjob_restart(), none);
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
        for setting in SETTINGS {
            goals.row(
                "4",
                &format!("DaemonJob: last pod created / bare creation, {}", setting.name()),
                2,
                self.daemonjob_over(NODES, setting, Bare, |one| one.last_created_seconds),
                limits(1.25, 1.05),
            );
        }
        for (number, setting, limits) in [("5", Shipped, limits(0.2, 0.1)), ("6", Tuned, limits(1.0, 0.7))] {
            for nodes in [NODES, MANY_NODES] {
                for other in [BroadcastJob, Job, DaemonSet] {
                    let found = self.daemonjob_over(nodes, setting, other, |one| one.creating_seconds);
                    // Such a run is not always kept.
                    if nodes == MANY_NODES && found.values.is_empty() {
                        continue;
                    }
                    let size = if nodes == MANY_NODES { ", 5,000 nodes" } else { "" };
                    let what = format!("DaemonJob: creating / {}, {}{size}", other.name(), setting.name());
                    goals.row(number, &what, 2, found, limits);
                }
            }
        }
    }

    /// Goals 8 to 13: memory and processor time.
    fn memory_goals(&self, goals: &mut Goals) {
        use super::manager::contender::Contender::{Twin, TwinTuned};
        goals.row(
            "8",
            "idle, five kinds: RSS MiB",
            1,
            self.own(Measure::Idle, "rss", Part::P50),
            limits(12.0, 8.0),
        );
        goals.row(
            "8",
            "the same / the twin, tuned",
            2,
            self.over_other(Measure::Idle, "rss", Part::P50, TwinTuned),
            limits(0.3, 0.2),
        );
        goals.row("9", "with one Greeting: RSS / kopf", 2, self.over_kopf(), limits(0.2, 0.1));
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
            2,
            self.over_other(Measure::Own, "bytes", Part::P50, Twin),
            ambitious(0.05),
        );
        goals.row(
            "11",
            "for each foreign pod: bytes",
            0,
            self.own(Measure::Foreign, "bytes", Part::P50),
            around_nothing(10.0),
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
        goals.row(
            "-",
            "a stranger's waits meanwhile, p99: ms",
            0,
            self.own(Measure::Drive, "canary", Part::P99),
            must(1_000.0),
        );
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
                let goal = if figure == "delay" { goal } else { "-" };
                goals.row(goal, &what, 2, self.over_other(Measure::Latency, figure, Part::P50, to), p50);
                let p99_found = self.over_other(Measure::Latency, figure, Part::P99, to);
                goals.row(goal, "the same, p99", 2, p99_found, p99);
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
        // Each pair has one crash: there is nothing to take a p99 of.
        goals.row(
            "19",
            "fail-over after a crash, one a pair: ms",
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
        let back = |measure| self.own(measure, "back", Part::P50);
        goals.row("21", "connections that went silent: s", 1, back(Measure::Silence), limits(45.0, 15.0));
        for (what, to, of) in [
            ("the same / the twin, tuned", TwinTuned, limits(1.0, 0.33)),
            ("the same / kube-runtime's Controller", KubeRuntime, ambitious(0.05)),
        ] {
            goals.row("21", what, 2, self.over_other(Measure::Silence, "back", Part::P50, to), of);
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
        goals.row(
            "25",
            "idle: requests a second",
            2,
            self.own(Measure::Requests, "requests", Part::P50),
            limits(0.3, 0.25),
        );
        goals.row(
            "25",
            "the same / the twin",
            2,
            self.over_other(Measure::Requests, "requests", Part::P50, Twin),
            ambitious(0.5),
        );
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
        for growth in &mut growths {
            growth.curves.retain(Curve::has_several_sizes);
        }
        growths.retain(|growth| !growth.curves.is_empty());
        growths
    }

    /// How memory grows with the pods of a manager.
    fn memory(&self) -> Growth {
        let found = self.manager(Measure::Own);
        let median = |key, who| {
            let of_pairs = found.map(|found| found.of_pairs(key, Part::P50, who)).unwrap_or_default();
            Some(stats::spread(of_pairs.into_iter().map(|(_, value)| value))?.median)
        };
        let (many, (tenth, half)) = (manager::MANY, manager::fewer(manager::MANY));
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
        Growth { title: "Managers", unit: "pods of their own", curves: vec![curve] }
    }

    fn document(&self) -> String {
        let mut parts = vec!["# Measured".to_owned()];
        parts.extend(
            [
                "Written by `cargo xtask bench goals --write`, out of the documents beside this one. Each of them says by which \
                 command, on what and when it was measured; `cargo xtask bench all --write` measures everything anew, in about \
                 six hours on two cores.",
                "[DaemonJob](daemonjob.md), [PodSet](podset.md), [Greeting](greeting.md), [PulsarConsumer](pulsar.md), [the \
                 manager](manager.md).",
                "A figure is the median of the pairs; in parentheses is its interval by bootstrap: the pairs are drawn anew 4,000 \
                 times, and of the medians of all draws the outermost 5 % are left out. With few pairs that is less than the \
                 95 % that it is called by: of seven pairs it goes from the second least value to the second most, which holds \
                 the true median in 87.5 % of cases; of five or fewer from the least to the most. A goal holds if the worse end \
                 of the interval does: `yes` both, `must` the first, `no` neither. The last column is what `cargo xtask bench` \
                 is told to measure it.",
                "The twin is a manager for DaemonJob and PodSet that is written with controller-runtime. Writes are those that were \
                 carried out; requests that were refused are apart in the documents. 1 MB is a million bytes, 1 MiB 1,048,576.",
            ]
            .map(str::to_owned),
        );
        parts.push(self.goals().markdown().trim_end().to_owned());
        parts.push("### Goals that are tests".to_owned());
        parts.push(
            [
                "- 20, a leader that was paused writes nothing after its lease has expired; at best so in 1,000 tries. `cargo xtask \
                 test --e2e a_leader_that_was_stopped` stops one while ten objects wait for it, wakes it when another one leads, and \
                 finds no write of it: one try. The fault plans that pause or cut off a leader at each of its requests have found \
                 none either, on a simulated API server.",
                "- 23, 600 fault plans and no violation, at best 4,000 in less than 10 minutes. `cargo xtask faults` has 29,927 plans of \
                 one fault, and found no violation; they took 646 s beside other work ([reliability](../reliability.md)).",
                "- 24, no duplicate pod: in all plans, in 24 hours under load, with a cache that is frozen for more than 5 minutes; at \
                 best while peers make some in the same run. The plans look for one at every revision and found none. The 24 \
                 hours have not been run, nothing freezes a cache for so long, and no peer runs beside.",
                "- Not measured: 7 (VReplicaSet of Anvil), and 9 against a Java operator.",
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
}

/// The measurements of a document, by their size.
fn results<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<BTreeMap<usize, T>> {
    let runs = report::kept(folder, name)?.into_iter().map(|run| {
        let found = serde_json::from_value(run.measurements).with_context(|| {
            format!("docs/bench/{name}.json: {} is not as this program writes it", run.about)
        })?;
        Ok((run.size, found))
    });
    runs.collect()
}

/// The table of goals.
struct Goals(Table);

impl Goals {
    /// A goal and what was found, with so many decimals.
    fn row(&mut self, number: &str, what: &str, places: usize, found: Found, limits: Limits) {
        let interval = stats::interval(found.values);
        self.0.row(
            what,
            [
                number.to_owned(),
                table::interval(interval, decimals(places)),
                interval.map_or_else(|| "0".to_owned(), |interval| interval.pairs.to_string()),
                limits.show(limits.must),
                limits.show(limits.ambitious),
                interval.map_or("not measured", |interval| limits.kept_by(interval)).to_owned(),
                format!("`{}`", found.by),
            ],
        );
    }
}

fn by_manager(measure: Measure) -> String {
    format!("manager --only {}", measure.word())
}

fn by_daemonjob(nodes: usize) -> String {
    format!("daemonjob --nodes {nodes}")
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
    Growth { title, unit, curves: figures.iter().map(curve).collect() }
}

/// Figures that grow with the same size.
struct Growth {
    title: &'static str,
    unit: &'static str,
    curves: Vec<Curve>,
}

impl Growth {
    /// The points, and the exponent of each line.
    fn table(&self) -> Table {
        let mut sizes: Vec<u64> = Vec::new();
        for line in self.curves.iter().flat_map(|curve| &curve.lines) {
            sizes.extend(line.points.iter().map(|(size, _)| rounded(*size)));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let header: Vec<String> = std::iter::once(String::new())
            .chain(sizes.iter().map(|size| format!("{} {}", count(*size), self.unit)))
            .chain(["exponent".to_owned()])
            .collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = Table::new(format!("{}: how figures grow", self.title), &header);
        for curve in &self.curves {
            for line in &curve.lines {
                let at = |size: &u64| {
                    let point = line.points.iter().find(|(x, _)| rounded(*x) == *size);
                    point.map_or_else(|| NONE.to_owned(), |(_, y)| decimals(2)(*y))
                };
                let exponent = stats::exponent(&line.points).map_or_else(|| NONE.to_owned(), decimals(2));
                table.row(format!("{}: {}", line.name, curve.label), sizes.iter().map(at).chain([exponent]));
            }
        }
        table.note("The exponent is the slope of the line through the logarithms: 1 is proportional.");
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
    fn what_has_one_size_does_not_grow() {
        let curve = |sizes: &[f64]| Curve {
            name: "a".to_owned(),
            size: "pods",
            label: "s",
            lines: vec![Line { name: "A", points: sizes.iter().map(|size| (*size, 1.0)).collect() }],
        };
        assert!(curve(&[100.0, 1_000.0]).has_several_sizes());
        assert!(!curve(&[1_000.0]).has_several_sizes());
        for growth in Kept::read(&report::folder()).unwrap().growths() {
            assert!(growth.table().header.len() > 3, "{} has one size", growth.title);
        }
    }

    #[test]
    fn the_table_in_the_documents_is_the_one_that_they_come_to() {
        let folder = report::folder();
        let kept = Kept::read(&folder).unwrap();
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
