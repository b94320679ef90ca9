//! The measurements and their tables: each contender's figures, and the ratios within a pair.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::measure::{Measure, Part, Row};
use crate::report::Measurements;
use crate::stats::{self, Quantiles, ratio};
use crate::table::{Table, interval, range, spread};

/// A figure: one value, or many attempts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Values {
    One(f64),
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

    fn part(self, part: Part) -> f64 {
        match (self, part) {
            (Self::One(value), _) => value,
            (Self::Many(quantiles), Part::P50 | Part::Range) => quantiles.p50,
            (Self::Many(quantiles), Part::P99) => quantiles.p99,
            (Self::Many(quantiles), Part::Worst) => quantiles.max,
        }
    }
}

/// The figures of one contender in one pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub contender: Contender,
    /// From 1. `None` for the attempts of all pairs together, if a pair has many.
    pub pair: Option<usize>,
    pub figures: BTreeMap<String, Values>,
}

/// The results of one measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub measure: Measure,
    pub title: String,
    /// The version of the controller-runtime manager.
    pub twin: String,
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// All attempts until now, for the quantiles over all pairs.
    #[serde(skip)]
    pub attempts: BTreeMap<(Contender, &'static str), Vec<f64>>,
    /// The limits of Quintet's figures, as distances from 0.
    #[serde(skip)]
    pub limits: Vec<(&'static str, f64)>,
}

impl Measurements for Results {
    const NAME: &'static str = "manager";
    const TITLE: &'static str = "Manager benchmark";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let is_shown = |contender: &Contender| {
            *contender != Contender::OtherBuild || self.samples.iter().any(|one| one.contender == *contender)
        };
        let contenders: Vec<Contender> = self.measure.contenders().iter().copied().filter(is_shown).collect();
        let mut table = self.table(self.measure.rows(), &contenders);
        if contenders.iter().any(|contender| matches!(contender, Contender::Twin | Contender::TwinTuned)) {
            table.note(format!("The controller-runtime manager: {}.", self.twin));
        }
        vec![table]
    }

    /// Figures of Quintet that exceed their limit in any pair.
    fn failures(&self) -> Option<Vec<String>> {
        let too_high = |(key, most): &(&str, f64)| {
            let of_pairs = self.of_pairs(key, Part::Worst, Contender::Quintet).into_values();
            let worst = of_pairs.max_by(|one, other| one.abs().total_cmp(&other.abs()))?;
            (worst.abs() > *most).then(|| format!("{key} {worst:.2}, limit {most}"))
        };
        (!self.limits.is_empty()).then(|| self.limits.iter().filter_map(too_high).collect())
    }
}

impl Results {
    /// Stores the values of many attempts, for the pair and for all pairs.
    pub fn add(&mut self, contender: Contender, pair: usize, figure: &'static str, values: Vec<f64>) {
        self.keep(contender, Some(pair), figure, &values);
        let mut all = self.attempts.remove(&(contender, figure)).unwrap_or_default();
        all.extend(values);
        if self.of(figure, contender).any(|(_, values)| values.attempts() > 1) {
            self.keep(contender, None, figure, &all);
        }
        self.attempts.insert((contender, figure), all);
    }

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

    /// A contender's figure for each pair and, if a pair has many attempts, for all pairs.
    fn of(&self, key: &str, contender: Contender) -> impl Iterator<Item = (Option<usize>, Values)> {
        let samples = self.samples.iter().filter(move |sample| sample.contender == contender);
        samples.filter_map(move |sample| Some((sample.pair, *sample.figures.get(key)?)))
    }

    fn of_pairs(&self, key: &str, part: Part, contender: Contender) -> BTreeMap<usize, f64> {
        self.of(key, contender).filter_map(|(pair, values)| Some((pair?, values.part(part)))).collect()
    }

    /// Many attempts: the value over all pairs. Single values: the median of the pairs and the worst, or both ends.
    fn cell(&self, (key, _, part, places, _): Row, contender: Contender) -> String {
        match self.of(key, contender).find(|(pair, _)| pair.is_none()) {
            Some((_, all)) => format!("{:.places$}", all.part(part)),
            None if matches!(part, Part::Range) => {
                range(self.of_pairs(key, part, contender).into_values(), places)
            }
            None => spread(self.of_pairs(key, part, contender).into_values(), places),
        }
    }

    /// Quintet's figure divided by another's, for each pair that has both.
    fn ratios(&self, key: &str, part: Part, other: Contender) -> Vec<f64> {
        let (ours, theirs) = (self.of_pairs(key, part, Contender::Quintet), self.of_pairs(key, part, other));
        ours.iter().filter_map(|(pair, ours)| ratio(*ours, *theirs.get(pair)?)).collect()
    }

    fn attempts(&self, key: &str, contender: Contender) -> usize {
        let of_pairs = self.of(key, contender).filter(|(pair, _)| pair.is_some());
        of_pairs.map(|(_, values)| values.attempts()).sum()
    }

    fn table(&self, rows: &[Row], contenders: &[Contender]) -> Table {
        let others = || contenders.iter().filter(|contender| **contender != Contender::Quintet);
        let names = contenders.iter().map(Contender::to_string);
        let ratios = others().map(|other| format!("{} / {other}", Contender::Quintet));
        let mut table = Table::new(&self.title, names.chain(ratios).chain(["goal".to_owned()]));
        for row in rows {
            let (key, label, part, _, goal) = *row;
            // Older runs lack some figures.
            if contenders.iter().all(|contender| self.attempts(key, *contender) == 0) {
                continue;
            }
            let cells = contenders.iter().map(|contender| self.cell(*row, *contender));
            let ratios = others().map(|other| interval(stats::interval(self.ratios(key, part, *other)), 2));
            table.row(label, cells.chain(ratios).chain([goal.to_owned()]));
        }
        // Rows differ: some attempts lack a figure, and the canary has many values.
        let least = contenders.iter().map(|contender| {
            let of_rows = rows.iter().map(|row| self.attempts(row.0, *contender));
            of_rows.filter(|attempts| *attempts > 0).min().unwrap_or_default().to_string()
        });
        table.note(format!("Number of measurements, at least: {}.", least.collect::<Vec<_>>().join(", ")));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [Row; 2] = [("rss", "RSS MiB", Part::P50, 1, "8"), ("ms", "p99 ms", Part::P99, 0, "")];

    fn results() -> Results {
        let empty = r#"{"measure": "own", "title": "Memory", "twin": "v0"}"#;
        let mut results: Results = serde_json::from_str(empty).unwrap();
        for (contender, pair, rss) in [
            (Contender::Quintet, 1, 8.0),
            (Contender::Quintet, 2, 10.0),
            (Contender::Twin, 1, 40.0),
            (Contender::Twin, 2, 20.0),
            (Contender::KubeRuntime, 2, 5.0),
        ] {
            results.one(contender, pair, "rss", rss);
        }
        results.add(Contender::Quintet, 1, "ms", vec![1.0, 2.0]);
        results.add(Contender::Quintet, 2, "ms", vec![9.0, 3.0]);
        results
    }

    #[test]
    fn ratios_are_taken_within_a_pair() {
        let table = results().table(&ROWS, Contender::MANAGERS);
        let rows = [
            ["RSS MiB", "9.0 (10.0)", "30.0 (40.0)", "-", "0.35 (0.20 to 0.50)", "-", "8"],
            ["p99 ms", "9", "-", "-", "-", "-", ""],
        ];
        assert_eq!(table.rows, rows);
        assert_eq!(table.notes, ["Number of measurements, at least: 2, 2, 0."]);
        assert_eq!(
            results().ratios("rss", Part::P50, Contender::KubeRuntime),
            [2.0],
            "of the pair with both"
        );
    }

    #[test]
    fn a_range_has_both_ends() {
        let row = ("rss", "RSS MiB", Part::Range, 1, "");
        assert_eq!(results().cell(row, Contender::Twin), "30.0 (20.0 to 40.0)");
    }

    #[test]
    fn limits_apply_to_every_pair_and_below_0() {
        let mut results = results();
        results.one(Contender::Quintet, 1, "bytes", -11.0);
        results.limits = vec![("rss", 10.0), ("ms", 9.0), ("bytes", 11.0)];
        assert_eq!(results.failures().unwrap(), [""; 0]);
        results.limits = vec![("rss", 9.5), ("bytes", 10.0)];
        let failures = ["rss 10.00, limit 9.5", "bytes -11.00, limit 10"];
        assert_eq!(results.failures().unwrap(), failures);
    }
}
