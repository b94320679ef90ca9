//! The stored results of all benches. Figures are selected by their path in the JSON, so that the goals are
//! data and need no types of the benches.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use quintet_localcluster::audit::Tally;
use serde::Deserialize;
use serde_json::Value;

use super::report::{self, Run};
use super::stats::{self, float, mebibytes, ratio};

/// The benches with results: the name, the list that most goals read, and Quintet's contender.
const BENCHES: [(&str, &str, &str); 5] = [
    ("daemonjob", "completions", "daemon-job"),
    ("greeting", "cycles", "greeting"),
    ("manager", "samples", "quintet"),
    ("podset", "cycles", "pod-set"),
    ("pulsar", "runs", "pulsar-consumer"),
];

/// The contenders by their names in the results.
const NAMES: [(&str, &str); 12] = [
    ("bare", "bare creation"),
    ("broadcast-job", "BroadcastJob"),
    ("daemon-job", "DaemonJob"),
    ("daemon-set", "DaemonSet"),
    ("job", "Job"),
    ("kopf", "kopf"),
    ("kube-runtime", "kube-runtime"),
    ("pod-set", "PodSet"),
    ("quintet", "Quintet"),
    ("replica-set", "ReplicaSet"),
    ("twin", "controller-runtime"),
    ("twin-tuned", "controller-runtime, tuned"),
];

/// A client that decides nothing, so it is not a peer.
const BARE: &str = "bare";

/// The name of a contender in tables. Returns `None` if the results have no such contender.
pub fn name(contender: &str) -> Option<&'static str> {
    NAMES.iter().find(|(found, _)| *found == contender).map(|(_, name)| *name)
}

/// The runs of all benches, by bench and size.
pub struct Kept(Vec<KeptRun>);

pub struct KeptRun {
    bench: &'static str,
    pub run: Run<Value>,
}

impl Kept {
    /// Reads the folder of results.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut runs = Vec::new();
        for (bench, ..) in BENCHES {
            runs.extend(report::kept(folder, bench)?.into_iter().map(|run| KeptRun { bench, run }));
        }
        Ok(Self(runs))
    }

    /// The runs of a bench, the smallest first.
    pub fn of(&self, bench: &str) -> impl DoubleEndedIterator<Item = &KeptRun> {
        self.0.iter().filter(move |kept| kept.bench == bench)
    }

    /// The run of a bench with this size or of this measure. Without a name, the largest run.
    pub fn find(&self, bench: &str, name: Option<&str>) -> Option<&KeptRun> {
        self.of(bench).rfind(|kept| {
            name.is_none_or(|name| {
                kept.run.size.to_string() == name || kept.run.measurements["measure"] == name
            })
        })
    }
}

impl KeptRun {
    /// A link to the section of this run, with its date. An asterisk marks a run with a note.
    pub fn link(&self) -> String {
        let mark = if self.run.remarks().is_empty() { "" } else { "\\*" };
        let (bench, anchor) = (self.bench, report::anchor(&self.run.about));
        format!("[{bench}, {}]({bench}.md#{anchor}){mark}", self.run.machine.date)
    }

    /// A figure of a contender in each round, or in each pair.
    pub fn rounds(&self, list: &str, under: Option<&str>, contender: &str, path: &str) -> BTreeMap<u64, f64> {
        let items = self.run.measurements[list].as_array().into_iter().flatten();
        let items = items.filter(|item| {
            let is_under = |under| item["setting"] == under || item["mode"] == under;
            under.is_none_or(is_under) && item.get("contender").is_none_or(|found| found == contender)
        });
        let of_round = |item: &Value| {
            let round = item.get("round").or(item.get("pair"))?.as_u64()?;
            Some((round, figure(item, path)?))
        };
        items.filter_map(of_round).collect()
    }

    /// The median of a figure of the list that most goals read.
    pub fn median(&self, under: Option<&str>, contender: &str, path: &str) -> Option<f64> {
        let list = BENCHES.iter().find(|(bench, ..)| *bench == self.bench)?.1;
        Some(stats::spread(self.rounds(list, under, contender, path).into_values())?.median)
    }
}

/// The figure of a goal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    bench: String,
    /// The size of the run or its measure; the largest run if there is none.
    run: Option<String>,
    /// The list of measurements, if it is not the one that most goals read.
    list: Option<String>,
    /// The setting or the mode.
    under: Option<String>,
    /// See [`figure`].
    figure: String,
    /// The other contender of a ratio, within a round.
    over: Option<String>,
}

/// The answer to a [`Query`].
pub struct Found<'a> {
    pub run: Option<&'a KeptRun>,
    /// The number of rounds with the figure, of both sides of a ratio.
    pub rounds: usize,
    /// One for each round. Ratios leave out the rounds in which the other side is 0.
    pub values: Vec<f64>,
    /// The medians of both sides of a ratio, Quintet's first.
    pub beside: Option<(f64, f64)>,
}

impl Query {
    /// The other contender of a ratio.
    pub fn other(&self) -> Option<&'static str> {
        name(self.over.as_deref()?)
    }

    pub fn is_beside_peer(&self) -> bool {
        self.over.as_deref().is_some_and(|over| over != BARE)
    }

    pub fn found<'a>(&self, kept: &'a Kept) -> Found<'a> {
        let Some(run) = kept.find(&self.bench, self.run.as_deref()) else {
            return Found { run: None, rounds: 0, values: Vec::new(), beside: None };
        };
        let (_, list, own) = BENCHES.iter().find(|(bench, ..)| *bench == run.bench).unwrap_or(&BENCHES[0]);
        let list = self.list.as_deref().unwrap_or(list);
        let of = |contender| run.rounds(list, self.under.as_deref(), contender, &self.figure);
        let ours = of(own);
        let Some(over) = &self.over else {
            let values: Vec<f64> = ours.into_values().collect();
            return Found { run: Some(run), rounds: values.len(), values, beside: None };
        };
        let theirs = of(over);
        let both: Vec<(f64, f64)> =
            ours.iter().filter_map(|(round, ours)| Some((*ours, *theirs.get(round)?))).collect();
        let medians =
            stats::spread(both.iter().map(|pair| pair.0)).zip(stats::spread(both.iter().map(|pair| pair.1)));
        Found {
            run: Some(run),
            rounds: both.len(),
            values: both.iter().filter_map(|(ours, theirs)| ratio(*ours, *theirs)).collect(),
            beside: medians.map(|(ours, theirs)| (ours.median, theirs.median)),
        }
    }
}

/// A figure of a measurement by its path in the JSON, such as `up.done_seconds`, or a sum of such figures.
fn figure(item: &Value, paths: &str) -> Option<f64> {
    paths.split(" + ").map(|path| one_figure(item, path)).sum()
}

/// Every quantile of a number is that number. The last part of the path may also be a name of [`counted`].
fn one_figure(item: &Value, path: &str) -> Option<f64> {
    let mut at = item;
    for part in path.split('.') {
        match at.get(part) {
            _ if at.is_number() => break,
            Some(value) => at = value,
            None => return counted(item, at, part),
        }
    }
    at.as_f64()
}

/// A figure that is derived from the tally or the memory at `parent`.
fn counted(item: &Value, parent: &Value, part: &str) -> Option<f64> {
    if let Some(name) = part.strip_suffix("_mib") {
        return Some(mebibytes(parent[format!("{name}_kib")].as_u64()?));
    }
    let tally = Tally::deserialize(parent).ok()?;
    let writes = float(tally.writes());
    match part {
        "requests" => Some(float(tally.requests())),
        "writes" => Some(writes),
        "writes_per_pod" => ratio(writes, float(tally.pods)),
        // A DaemonJob may write its status once a second.
        "writes_per_pod_besides_one_a_second" => {
            let paced = float(tally.status_requests()).min(item["done_seconds"].as_f64()?);
            ratio(writes - paced, float(tally.pods))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_figures_by_their_path() {
        let item = json!({
            "up": {"seconds": 1.5},
            "memory": {"rss_kib": 2_048},
            "figures": {"rss": 9.5, "delay": {"p50": 1.0, "p99": 7.0}},
        });
        let paths = ["up.seconds", "memory.rss_mib", "figures.rss.p99", "figures.delay.p99", "up.minutes"];
        assert_eq!(paths.map(|path| figure(&item, path)), [Some(1.5), Some(2.0), Some(9.5), Some(7.0), None]);
        let sums = ["up.seconds + figures.rss", "up.seconds + up.minutes"];
        assert_eq!(sums.map(|sum| figure(&item, sum)), [Some(11.0), None]);
    }

    #[test]
    fn counts_writes_without_rejected_requests() {
        let item = json!({
            "done_seconds": 2.0,
            "writes": {"by_kind": {"create pods": 1_002, "patch daemonjobs/status": 1}, "refused": 2, "pods": 1_000},
        });
        let found = |part: &str| figure(&item, &format!("writes.{part}"));
        assert_eq!((found("requests"), found("writes")), (Some(1_003.0), Some(1_001.0)));
        assert_eq!(found("writes_per_pod"), Some(1.001));
        assert_eq!(found("writes_per_pod_besides_one_a_second"), Some(1.0));
    }
}
