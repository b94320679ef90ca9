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
}

const fn limits(must: f64, ambitious: f64) -> Limits {
    Limits { must: Some(must), ambitious: Some(ambitious) }
}

const fn must(must: f64) -> Limits {
    Limits { must: Some(must), ambitious: None }
}

const fn ambitious(ambitious: f64) -> Limits {
    Limits { must: None, ambitious: Some(ambitious) }
}

impl Limits {
    /// Which of them the worse end of an interval keeps.
    fn kept_by(self, found: Interval) -> &'static str {
        let keeps = |limit: Option<f64>| limit.is_none_or(|limit| found.high <= limit);
        match (keeps(self.must), keeps(self.ambitious)) {
            (true, true) => "yes",
            (true, false) if self.must.is_some() => "must",
            _ => "no",
        }
    }
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
        let at = Measure::ALL.iter().position(|one| *one == measure)?;
        self.manager.get(&at)
    }

    /// Quintet's own figure.
    fn own(&self, measure: Measure, figure: &str, part: Part) -> Vec<f64> {
        let of_pairs = self.manager(measure).map(|found| found.of_pairs(figure, part, Manager::Quintet));
        of_pairs.into_iter().flatten().map(|(_, value)| value).collect()
    }

    /// Quintet's figure over another's.
    fn over_other(&self, measure: Measure, figure: &str, part: Part, to: Manager) -> Vec<f64> {
        self.manager(measure).map(|found| found.ratios(figure, part, to)).unwrap_or_default()
    }

    fn daemonjob_over(
        &self,
        setting: Setting,
        other: daemonjob::figures::Contender,
        figure: fn(&daemonjob::figures::Completion) -> f64,
    ) -> Vec<f64> {
        self.daemonjob.get(&NODES).map(|found| found.pairs(setting, other, figure)).unwrap_or_default()
    }

    /// Writes after a restart with everything done, of the kinds whose benches restart a manager.
    fn restart_writes(&self) -> Vec<f64> {
        let daemonjobs = self.daemonjob.values().flat_map(|found| &found.lives);
        let daemonjobs = daemonjobs.map(|life| life.restart.writes.writes());
        let podsets = self.podset.values().flat_map(|found| &found.cycles);
        let podsets = podsets.filter_map(|cycle| Some(cycle.restart.as_ref()?.writes.writes()));
        daemonjobs.chain(podsets).map(float).collect()
    }

    /// Memory with one Greeting over kopf's.
    fn over_kopf(&self) -> Vec<f64> {
        use greeting::figures::{Contender, Mode};
        let ratios = self.greeting.values().flat_map(|found| {
            let theirs = found.of(Contender::Kopf, Mode::Undisturbed);
            found.of(Contender::Greeting, Mode::Undisturbed).into_iter().filter_map(move |ours| {
                let theirs = theirs.iter().find(|theirs| theirs.round == ours.round)?;
                ratio(float(ours.idle_memory.pss_kib), float(theirs.idle_memory.pss_kib))
            })
        });
        ratios.collect()
    }

    fn goals(&self) -> Table {
        use super::manager::contender::Contender::{KubeRuntime, Twin, TwinTuned};
        use Setting::{Shipped, Tuned};
        use daemonjob::figures::Contender::{Bare, BroadcastJob, DaemonJob, DaemonSet, Job};
        let mut goals =
            Goals(Table::new("Goals", &["what", "goal", "found", "pairs", "must", "ambitious", "holds"]));
        let writes =
            self.daemonjob.get(&NODES).into_iter().flat_map(|found| {
                [Shipped, Tuned].into_iter().flat_map(|setting| found.of(setting, DaemonJob))
            });
        goals.row(
            "1",
            "DaemonJob, 1,000 nodes: writes per pod",
            3,
            writes.map(daemonjob::figures::Completion::writes_per_pod),
            must(1.05),
        );
        goals.row(
            "2",
            "DaemonJob: writes / BroadcastJob, as shipped",
            2,
            self.daemonjob_over(Shipped, BroadcastJob, |one| float(one.writes.writes())),
            must(1.0),
        );
        goals.row(
            "2",
            "the same, tuned",
            2,
            self.daemonjob_over(Tuned, BroadcastJob, |one| float(one.writes.writes())),
            limits(1.0, 0.95),
        );
        goals.row(
            "3",
            "restart with all done, DaemonJob and PodSet: writes",
            0,
            self.restart_writes(),
            must(0.0),
        );
        goals.row(
            "3",
            "restart with 10,000 objects of five kinds: writes",
            0,
            self.own(Measure::Restart, "writes", Part::P50),
            must(0.0),
        );
        goals.row(
            "3",
            "the same, later on: get and list",
            0,
            self.own(Measure::Restart, "steady", Part::P50),
            must(0.0),
        );
        let over = |setting, other, figure: fn(&daemonjob::figures::Completion) -> f64| {
            self.daemonjob_over(setting, other, figure)
        };
        goals.row(
            "4",
            "DaemonJob: last pod created / bare creation",
            2,
            over(Tuned, Bare, |one| one.last_created_seconds),
            limits(1.25, 1.05),
        );
        for (number, setting, what, limits) in
            [("5", Shipped, "as shipped", limits(0.2, 0.1)), ("6", Tuned, "tuned", limits(1.0, 0.7))]
        {
            for other in [BroadcastJob, Job, DaemonSet] {
                let what = format!("DaemonJob: creating / {}, {what}", other.name());
                goals.row(number, &what, 2, over(setting, other, |one| one.creating_seconds), limits);
            }
        }
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
        goals.row("9", "with one Greeting: PSS / kopf", 2, self.over_kopf(), limits(0.2, 0.1));
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
            must(10.0),
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
        goals.row(
            "14",
            "event to write, p50 / the twin, tuned",
            2,
            self.over_other(Measure::Latency, "delay", Part::P50, TwinTuned),
            limits(0.8, 0.5),
        );
        goals.row(
            "14",
            "the same, p99",
            2,
            self.over_other(Measure::Latency, "delay", Part::P99, TwinTuned),
            limits(0.7, 0.3),
        );
        goals.row(
            "15",
            "event to write, p50 / kube-runtime's Controller",
            2,
            self.over_other(Measure::Latency, "delay", Part::P50, KubeRuntime),
            limits(1.0, 0.7),
        );
        goals.row(
            "15",
            "the same, p99",
            2,
            self.over_other(Measure::Latency, "delay", Part::P99, KubeRuntime),
            limits(1.0, 0.7),
        );
        goals.row(
            "16",
            "start to first write / the twin, tuned",
            2,
            self.over_other(Measure::Start, "first", Part::P50, TwinTuned),
            limits(0.5, 0.2),
        );
        goals.row(
            "16",
            "the same with 10,000 pods",
            2,
            self.over_other(Measure::Own, "first", Part::P50, TwinTuned),
            limits(0.5, 0.4),
        );
        goals.row(
            "17",
            "program, compressed: MiB",
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
        goals.row(
            "18",
            "graceful hand-over, p99: ms",
            0,
            self.own(Measure::HandOver, "wrote", Part::P99),
            ambitious(200.0),
        );
        goals.row(
            "18",
            "the same / the twin, tuned",
            2,
            self.over_other(Measure::HandOver, "wrote", Part::P99, TwinTuned),
            limits(0.3, 0.05),
        );
        goals.row(
            "18",
            "the same with 10,000 pods",
            2,
            self.over_other(Measure::HandOverMany, "wrote", Part::P99, TwinTuned),
            limits(0.3, 0.05),
        );
        goals.row(
            "19",
            "fail-over after a crash, the longest / the twin, tuned",
            2,
            self.over_other(Measure::Crash, "wrote", Part::Worst, TwinTuned),
            limits(1.0, 0.85),
        );
        goals.row(
            "25",
            "idle: requests a second",
            2,
            self.own(Measure::Idle, "requests", Part::P50),
            limits(0.3, 0.25),
        );
        goals.row(
            "25",
            "the same / the twin",
            2,
            self.over_other(Measure::Idle, "requests", Part::P50, Twin),
            ambitious(0.5),
        );
        goals.0
    }

    /// How figures grow with the number of nodes and of pods.
    fn growths(&self) -> [Growth; 3] {
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
        [daemonjobs, podsets, self.memory()]
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
                 five hours on two cores.",
                "[DaemonJob](daemonjob.md), [PodSet](podset.md), [Greeting](greeting.md), [PulsarConsumer](pulsar.md), [the \
                 manager](manager.md).",
                "A figure is the median of the pairs; in parentheses is its 95 % interval by bootstrap. A goal holds if the upper \
                 end of the interval does: `yes` both, `must` the first, `no` neither. With few pairs an interval is no more than \
                 the least and the most. The twin is a manager for the same two kinds that is written with controller-runtime.",
            ]
            .map(str::to_owned),
        );
        parts.push(self.goals().markdown().trim_end().to_owned());
        parts.push("### Goals that are tests".to_owned());
        parts.push(
            [
                "- 20, a leader that was stopped for longer than its lease writes nothing: `cargo xtask test --e2e \
                 a_leader_that_was_stopped`.",
                "- 21, a silent partition is noticed: `cargo xtask test --e2e watches_that_went_silent`, and the time limits of \
                 crates/kit/src/client.rs.",
                "- 22, an API server that is gone for a minute: `cargo xtask test --e2e an_api_server_that_is_gone`.",
                "- 23 and 24, fault plans and duplicate pods: [reliability](../reliability.md), `cargo xtask faults`.",
                "- Not measured: 7 (VReplicaSet of Anvil), and 9 against a Java operator.",
            ]
            .join("\n"),
        );
        for growth in self.growths() {
            parts.push(format!("## {}", growth.title));
            parts.push(growth.table().markdown().trim_end().to_owned());
            let plots = growth.curves.iter().filter(|curve| curve.has_several_sizes());
            parts.extend(plots.map(|curve| format!("![{}]({})", curve.label, curve.file())));
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
    fn row(
        &mut self,
        number: &str,
        what: &str,
        places: usize,
        found: impl IntoIterator<Item = f64>,
        limits: Limits,
    ) {
        let found = stats::interval(found);
        let limit = |limit: Option<f64>| limit.map_or_else(|| NONE.to_owned(), |limit| limit.to_string());
        self.0.row(
            what,
            [
                number.to_owned(),
                table::interval(found, decimals(places)),
                found.map_or_else(|| "0".to_owned(), |found| found.pairs.to_string()),
                limit(limits.must),
                limit(limits.ambitious),
                found.map_or("not measured", |found| limits.kept_by(found)).to_owned(),
            ],
        );
    }
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
