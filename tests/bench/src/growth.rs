//! The tables and curves of growth in the pages: how figures grow with the number of nodes and pods.

use std::iter;

use super::kept::{self, Kept, KeptRun};
use super::stats::{self, float, ratio};
use super::table::{NONE, Table, count, decimals};

/// A curve: a word for its file, its label, and the path of the figure.
type Figure = (&'static str, &'static str, &'static str);

const DAEMONJOBS: [&str; 5] = ["bare", "daemon-job", "broadcast-job", "job", "daemon-set"];

const OF_DAEMONJOBS: [Figure; 4] = [
    ("done", "s until done", "done_seconds"),
    ("cpu", "CPU s", "cpu_seconds"),
    ("writes", "writes", "writes.writes"),
    ("memory", "peak RSS, MiB", "memory.peak_mib"),
];

const PODSETS: [&str; 2] = ["pod-set", "replica-set"];

const OF_PODSETS: [Figure; 3] = [
    ("up", "s until all ready", "up.done_seconds"),
    ("cpu", "CPU s of the scale-up", "up.cpu_seconds"),
    ("down", "s until all gone", "down.done_seconds"),
];

const MANAGERS: [&str; 3] = ["quintet", "twin", "twin-tuned"];

/// Numbers of pods, and the figure of the memory with each.
const MEMORY: [(f64, &str); 3] =
    [(1_000.0, "figures.rss-tenth"), (5_000.0, "figures.rss-half"), (10_000.0, "figures.rss")];

/// Figures that grow with the same size.
pub struct Growth {
    /// The bench on whose page it is.
    pub bench: &'static str,
    title: &'static str,
    unit: &'static str,
    pub curves: Vec<Curve>,
    note: Option<String>,
    /// The processor of each size. Empty if one run has all sizes.
    processors: Vec<(f64, String)>,
}

/// One figure of several contenders, by size.
pub struct Curve {
    name: String,
    /// The unit of the size.
    pub size: &'static str,
    /// The figure, with its unit.
    pub label: &'static str,
    pub lines: Vec<Line>,
}

/// One contender of a [`Curve`].
pub struct Line {
    pub name: &'static str,
    /// Sizes and figures.
    pub points: Vec<(f64, f64)>,
}

/// The growth of everything that was measured with more than one size.
pub fn growths(kept: &Kept) -> Vec<Growth> {
    let daemonjobs = ("daemonjob", "DaemonJob and others, tuned", "nodes");
    let podsets = ("podset", "PodSet and ReplicaSet, tuned", "pods");
    let mut growths = vec![
        of_sizes(kept, daemonjobs, &DAEMONJOBS, &OF_DAEMONJOBS),
        of_sizes(kept, podsets, &PODSETS, &OF_PODSETS),
        of_memory(kept),
    ];
    growths[0].note = kubelets(kept);
    for growth in &mut growths {
        growth.curves.retain(Curve::has_several_sizes);
    }
    growths.retain(|growth| !growth.curves.is_empty());
    growths
}

/// The growth over the runs of a bench with different sizes.
fn of_sizes(
    kept: &Kept,
    (bench, title, unit): (&'static str, &'static str, &'static str),
    contenders: &[&str],
    figures: &[Figure],
) -> Growth {
    let curve = |(word, label, path): &Figure| {
        let lines = contenders.iter().map(|contender| {
            let point =
                |one: &KeptRun| Some((float(one.run.size), one.median(Some("tuned"), contender, path)?));
            Line::new(contender, kept.of(bench).filter_map(point))
        });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        Curve { name: format!("{bench}-{word}"), size: unit, label, lines }
    };
    let processors = kept.of(bench).map(|one| (float(one.run.size), one.run.machine.processor.clone()));
    Growth {
        bench,
        title,
        unit,
        curves: figures.iter().map(curve).collect(),
        note: None,
        processors: processors.collect(),
    }
}

/// The growth of memory with the pods of a manager, from one run.
fn of_memory(kept: &Kept) -> Growth {
    let median =
        |contender: &str, path: &str| kept.find("manager", Some("own"))?.median(None, contender, path);
    let lines = MANAGERS.map(|contender| {
        let point = |(pods, path): (f64, &str)| {
            Some((pods, median(contender, path)? - median(contender, "figures.rss-none")?))
        };
        Line::new(contender, MEMORY.into_iter().filter_map(point))
    });
    let curve = Curve {
        name: "manager-memory".to_owned(),
        size: "pods",
        label: "added RSS, MiB",
        lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
    };
    Growth {
        bench: "manager",
        title: "Managers",
        unit: "own pods",
        curves: vec![curve],
        note: None,
        processors: Vec::new(),
    }
}

/// A note with the time of the simulated kubelets alone, and its share in the times of contenders.
fn kubelets(kept: &Kept) -> Option<String> {
    let of = |one: &KeptRun| {
        let measurements = &one.run.measurements;
        let seconds = measurements["kubelets"].as_array()?.iter().filter_map(serde_json::Value::as_f64);
        let alone = stats::spread(seconds)?.median;
        let under = measurements["life_setting"].as_str();
        let bare = one.median(under, "bare", "last_created_seconds")?;
        let with_ends = ["bare", "daemon-job", "broadcast-job", "job"];
        let done = with_ends.into_iter().filter_map(|contender| one.median(under, contender, "done_seconds"));
        let shares: Vec<f64> = done.filter_map(|done| ratio(100.0 * alone, done)).collect();
        let (least, most) = (stats::quantile(&shares, 0.0)?, stats::quantile(&shares, 1.0)?);
        Some(format!(
            "With {} nodes they take {alone:.1} s, {least:.0} to {most:.0} % of the time of the contenders whose pods end; \
             bare creation creates the pods in {bare:.1} s.",
            count(one.run.size)
        ))
    };
    let alone: Vec<String> = kept.of("daemonjob").filter_map(of).collect();
    (!alone.is_empty()).then(|| {
        format!(
            "The simulated kubelets share the processors with the API server. The bench also measures how long they take \
             alone, with all pods already on their nodes. {}",
            alone.join(" ")
        )
    })
}

impl Growth {
    /// The exponent of the last step of a line, where constant parts weigh least, and the one between its first and last
    /// size. `None` if the sizes were measured on two processors, or if one of them is unknown.
    fn exponents(&self, line: &Line) -> [Option<f64>; 2] {
        let ends = [line.points.first(), line.points.last()].map(|end| end.copied().unwrap_or_default());
        let last = &line.points[line.points.len().saturating_sub(2)..];
        [last, &ends].map(|points| self.exponent(points))
    }

    fn exponent(&self, points: &[(f64, f64)]) -> Option<f64> {
        let on = |(size, _): &(f64, f64)| {
            let at = self.processors.iter().find(|(of, _)| rounded(*of) == rounded(*size));
            at.map(|(_, processor)| processor.as_str()).filter(|processor| !processor.is_empty())
        };
        let is_one = self.processors.is_empty()
            || points.windows(2).all(|step| on(&step[0]).is_some() && on(&step[0]) == on(&step[1]));
        stats::exponent(points).filter(|_| is_one)
    }

    pub fn table(&self) -> Table {
        let points = self.curves.iter().flat_map(|curve| &curve.lines).flat_map(|line| &line.points);
        let mut sizes: Vec<u64> = points.map(|(size, _)| rounded(*size)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let header = sizes.iter().map(|size| format!("{} {}", count(*size), self.unit));
        let mut table = Table::new(
            self.title,
            header.chain(["exponent of the last step", "exponent from first to last"].map(str::to_owned)),
        );
        for curve in &self.curves {
            for line in &curve.lines {
                let at = |size: &u64| line.points.iter().find(|(x, _)| rounded(*x) == *size).map(|(_, y)| *y);
                let cells = sizes.iter().map(at).chain(self.exponents(line));
                let cells = cells.map(|value| value.map_or_else(|| NONE.to_owned(), decimals(2)));
                table.row(format!("{}: {}", line.name, curve.label), cells);
            }
        }
        table.notes.extend(self.note.clone());
        table
    }

    /// The table and the plots.
    pub fn markdown(&self) -> String {
        let plots = self.curves.iter().map(|curve| format!("![{}]({})", curve.label, curve.file()));
        iter::once(self.table().markdown()).chain(plots).collect::<Vec<_>>().join("\n\n")
    }
}

impl Line {
    fn new(contender: &str, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self { name: kept::name(contender).unwrap_or_default(), points: points.collect() }
    }
}

impl Curve {
    pub fn file(&self) -> String {
        format!("{}.svg", self.name)
    }

    fn has_several_sizes(&self) -> bool {
        self.lines.iter().any(|line| line.points.len() > 1)
    }
}

fn rounded(size: f64) -> u64 {
    format!("{size:.0}").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_no_exponent_between_processors() {
        let exponent = |processors: &[&str]| {
            let line = Line { name: "A", points: vec![(1.0, 1.0), (10.0, 10.0), (100.0, 1_000.0)] };
            let of = |(size, name): (&(f64, f64), &&str)| (size.0, (*name).to_owned());
            let processors = line.points.iter().zip(processors).map(of).collect();
            let growth =
                Growth { bench: "", title: "", unit: "", curves: Vec::new(), note: None, processors };
            growth.exponents(&line).map(|exponent| exponent.map(decimals(2)))
        };
        let [two, one_and_half] = ["2.00", "1.50"].map(|exponent| Some(exponent.to_owned()));
        assert_eq!(exponent(&[]), [two.clone(), one_and_half]);
        assert_eq!(exponent(&["X", "Y", "Y"]), [two, None]);
        assert_eq!([exponent(&["X", "X", "Y"]), exponent(&["X", "", ""])], [[None, None], [None, None]]);
    }
}
