//! What was measured, and how it is shown: of each figure the contenders' values, and the ratios within a pair.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::measure::Measure;
use crate::report::Measurements;
use crate::stats::{self, Quantiles, ratio};
use crate::table::{Table, decimals, interval, spread};

/// What a figure was: one value, or many attempts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Values {
    /// In the figure's unit.
    One(f64),
    /// The same.
    Many(Quantiles),
}

impl Values {
    fn of(values: &[f64]) -> Option<Self> {
        match values {
            [value] => Some(Self::One(*value)),
            _ => Quantiles::of(values).map(Self::Many),
        }
    }

    fn attempts(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(quantiles) => quantiles.n,
        }
    }
}

/// What one contender showed in one pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Who.
    pub contender: Contender,
    /// From 1; nothing for the attempts of all pairs together, where a pair has many.
    pub pair: Option<usize>,
    /// By the name of the figure, see [`Row::key`].
    pub figures: BTreeMap<String, Values>,
}

/// Everything that one measure found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    measure: Measure,
    title: String,
    /// The version of the twin.
    twin: String,
    #[serde(default)]
    samples: Vec<Sample>,
    /// All attempts until now, of which the quantiles of all pairs together are taken.
    #[serde(skip)]
    attempts: BTreeMap<(Contender, &'static str), Vec<f64>>,
}

/// What is shown of the values of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// The middle.
    P50,
    /// All but one of a hundred are not above it.
    P99,
    /// The greatest.
    Worst,
}

impl Part {
    fn of(self, values: Values) -> f64 {
        match (self, values) {
            (_, Values::One(value)) => value,
            (Self::P50, Values::Many(quantiles)) => quantiles.p50,
            (Self::P99, Values::Many(quantiles)) => quantiles.p99,
            (Self::Worst, Values::Many(quantiles)) => quantiles.max,
        }
    }
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The figure's name in samples.
    pub key: &'static str,
    /// What it is, with its unit.
    pub label: &'static str,
    /// What is shown of many attempts.
    pub part: Part,
    /// How many decimals.
    pub places: usize,
    /// What Quintet should come to.
    pub goal: &'static str,
}

impl Measurements for Results {
    fn tables(&self) -> Vec<Table> {
        let mut table = self.table(&self.measure.rows(), self.measure.contenders());
        table.note(format!("The twin: {}.", self.twin));
        vec![table]
    }
}

impl Results {
    /// Of a measure of which nothing was measured yet.
    pub fn new(measure: Measure, title: String, twin: String) -> Self {
        Self { measure, title, twin, samples: Vec::new(), attempts: BTreeMap::new() }
    }

    /// Keeps the values of many attempts, of the pair and of all pairs together.
    pub fn add(&mut self, contender: Contender, pair: usize, figure: &'static str, values: Vec<f64>) {
        self.keep(contender, Some(pair), figure, &values);
        let mut all = self.attempts.remove(&(contender, figure)).unwrap_or_default();
        all.extend(values);
        if self.of(figure, contender).any(|(_, values)| values.attempts() > 1) {
            self.keep(contender, None, figure, &all);
        }
        self.attempts.insert((contender, figure), all);
    }

    /// Keeps a value.
    pub fn one(&mut self, contender: Contender, pair: usize, figure: &str, value: f64) {
        self.keep(contender, Some(pair), figure, &[value]);
    }

    fn keep(&mut self, contender: Contender, pair: Option<usize>, figure: &str, values: &[f64]) {
        let Some(values) = Values::of(values) else { return };
        let is_same = |sample: &Sample| (sample.contender, sample.pair) == (contender, pair);
        let at = self.samples.iter().position(is_same).unwrap_or_else(|| {
            self.samples.push(Sample { contender, pair, figures: BTreeMap::new() });
            self.samples.len() - 1
        });
        self.samples[at].figures.insert(figure.to_owned(), values);
    }

    /// A figure of a contender: of each pair and, where a pair has many attempts, of all pairs together.
    fn of(&self, key: &str, contender: Contender) -> impl Iterator<Item = (Option<usize>, Values)> {
        let samples = self.samples.iter().filter(move |sample| sample.contender == contender);
        samples.filter_map(move |sample| Some((sample.pair, *sample.figures.get(key)?)))
    }

    /// What a contender came to in each pair.
    pub fn of_pairs(&self, key: &str, part: Part, contender: Contender) -> Vec<(usize, f64)> {
        self.of(key, contender).filter_map(|(pair, values)| Some((pair?, part.of(values)))).collect()
    }

    /// Of many attempts, of all pairs together; of single values, the median of the pairs and the worst of them.
    fn cell(&self, row: &Row, contender: Contender) -> String {
        if let Some((_, all)) = self.of(row.key, contender).find(|(pair, _)| pair.is_none()) {
            return decimals(row.places)(row.part.of(all));
        }
        let of_pairs = self.of_pairs(row.key, row.part, contender);
        spread(of_pairs.into_iter().map(|(_, value)| value), row.places)
    }

    /// Quintet's and another's, for each pair that has both.
    pub fn of_both(&self, key: &str, part: Part, other: Contender) -> Vec<(f64, f64)> {
        let theirs = self.of_pairs(key, part, other);
        let ours = self.of_pairs(key, part, Contender::Quintet).into_iter();
        let both = ours.filter_map(|(pair, ours)| {
            let (_, theirs) = theirs.iter().find(|(other, _)| *other == pair)?;
            Some((ours, *theirs))
        });
        both.collect()
    }

    /// Quintet's over another's, for each pair.
    fn ratios(&self, key: &str, part: Part, to: Contender) -> Vec<f64> {
        self.of_both(key, part, to).into_iter().filter_map(|(ours, theirs)| ratio(ours, theirs)).collect()
    }

    /// How many attempts of a figure there were.
    fn attempts(&self, key: &str, contender: Contender) -> usize {
        let of_pairs = self.of(key, contender).filter(|(pair, _)| pair.is_some());
        of_pairs.map(|(_, values)| values.attempts()).sum()
    }

    /// What of Quintet's is farther from nothing than its limit in any pair, a sentence each.
    pub fn failures(&self, limits: &[(&str, f64)]) -> Vec<String> {
        let too_high = |(key, most): &(&str, f64)| {
            let values = self.of_pairs(key, Part::Worst, Contender::Quintet).into_iter();
            let worst =
                values.map(|(_, value)| value).max_by(|one, other| one.abs().total_cmp(&other.abs()))?;
            (worst.abs() > *most).then(|| format!("{key} {worst:.2}, and {most} is the most"))
        };
        limits.iter().filter_map(too_high).collect()
    }

    /// The table of a measure: what each contender came to, and Quintet's over each other's.
    fn table(&self, rows: &[Row], contenders: &[Contender]) -> Table {
        let others = || contenders.iter().filter(|contender| **contender != Contender::Quintet);
        let names = contenders.iter().map(|contender| contender.name().to_owned());
        let ratios = others().map(|other| format!("{} / {}", Contender::Quintet.name(), other.name()));
        let mut table = Table::new(&self.title, names.chain(ratios).chain(["goal".to_owned()]));
        // Older runs lack some figures.
        let has = |row: &&Row| contenders.iter().any(|contender| self.attempts(row.key, *contender) > 0);
        for row in rows.iter().filter(has) {
            let cells = contenders.iter().map(|contender| self.cell(row, *contender));
            let ratios =
                others().map(|other| interval(stats::interval(self.ratios(row.key, row.part, *other)), 2));
            table.row(row.label, cells.chain(ratios).chain([row.goal.to_owned()]));
        }
        let attempts = contenders.iter().map(|contender| {
            // Some figures have no value in some attempts, and the canary has many.
            let of_rows = rows.iter().map(|row| self.attempts(row.key, *contender));
            of_rows.filter(|attempts| *attempts > 0).min().unwrap_or_default().to_string()
        });
        table.note(format!("Times measured, at least: {}.", attempts.collect::<Vec<_>>().join(", ")));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Row = Row { key: "rss", label: "RSS MiB", part: Part::P50, places: 1, goal: "8" };
    const MANY: Row = Row { key: "ms", label: "p99 ms", part: Part::P99, places: 0, goal: "" };

    fn none() -> Results {
        Results::new(Measure::Own, "Memory".to_owned(), "v0".to_owned())
    }

    fn results() -> Results {
        let mut results = none();
        results.one(Contender::Quintet, 1, "rss", 8.0);
        results.one(Contender::Quintet, 2, "rss", 10.0);
        results.one(Contender::Twin, 1, "rss", 40.0);
        results.one(Contender::Twin, 2, "rss", 20.0);
        results.add(Contender::Quintet, 1, "ms", vec![1.0, 2.0]);
        results.add(Contender::Quintet, 2, "ms", vec![9.0, 3.0]);
        results
    }

    #[test]
    fn ratios_are_taken_within_a_pair() {
        let table = results().table(&[ONE, MANY], Contender::MANAGERS);
        assert_eq!(
            table.rows[0],
            ["RSS MiB", "9.0 (10.0)", "30.0 (40.0)", "-", "0.35 (0.20 to 0.50)", "-", "8"].map(str::to_owned)
        );
        assert_eq!(table.rows[1], ["p99 ms", "9", "-", "-", "-", "-", ""].map(str::to_owned));
        assert_eq!(table.notes, ["Times measured, at least: 2, 2, 0."]);
    }

    #[test]
    fn what_is_too_high_in_one_pair_is_said() {
        let results = results();
        assert_eq!(results.failures(&[("rss", 10.0), ("ms", 9.0)]), Vec::<String>::new());
        assert_eq!(results.failures(&[("rss", 9.5), ("ms", 9.0)]), ["rss 10.00, and 9.5 is the most"]);
    }

    #[test]
    fn what_is_far_below_nothing_is_said_too() {
        let mut results = none();
        results.one(Contender::Quintet, 1, "bytes", -11.0);
        results.one(Contender::Quintet, 2, "bytes", 2.0);
        assert_eq!(results.failures(&[("bytes", 11.0)]), Vec::<String>::new());
        assert_eq!(results.failures(&[("bytes", 10.0)]), ["bytes -11.00, and 10 is the most"]);
    }

    #[test]
    fn both_have_a_value_in_a_pair_or_neither_counts() {
        let mut results = results();
        results.one(Contender::TwinTuned, 2, "rss", 5.0);
        assert_eq!(results.of_both("rss", Part::P50, Contender::TwinTuned), [(10.0, 5.0)]);
        assert_eq!(results.of_both("rss", Part::P50, Contender::Twin), [(8.0, 40.0), (10.0, 20.0)]);
        assert_eq!(results.of_both("rss", Part::P50, Contender::KubeRuntime), [(0.0, 0.0); 0]);
    }
}
