//! What was measured, and how it is shown: of each figure the contenders' values, and the ratios within a pair.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use crate::stats::{self, quantile, ratio};
use crate::table::{NONE, Table, decimals, interval, spread};

/// What one contender showed in one pair: one value, or one for each of many attempts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The name of the figure, see [`Row::key`].
    pub figure: Cow<'static, str>,
    /// Who.
    pub contender: Contender,
    /// From 1.
    pub pair: usize,
    /// In the figure's unit.
    pub values: Vec<f64>,
}

/// Everything that one measure found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results(Vec<Sample>);

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
    fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Self::P50 => stats::spread(values.iter().copied()).map(|spread| spread.median),
            Self::P99 => quantile(values, 0.99),
            Self::Worst => quantile(values, 1.0),
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

impl Results {
    /// Keeps values.
    pub fn add(&mut self, contender: Contender, pair: usize, figure: &'static str, values: Vec<f64>) {
        self.0.push(Sample { figure: figure.into(), contender, pair, values });
    }

    /// Keeps a value.
    pub fn one(&mut self, contender: Contender, pair: usize, figure: &'static str, value: f64) {
        self.add(contender, pair, figure, vec![value]);
    }

    /// What a contender came to in each pair.
    pub fn of_pairs(&self, key: &str, part: Part, contender: Contender) -> Vec<(usize, f64)> {
        let samples = self.0.iter().filter(|sample| sample.figure == key && sample.contender == contender);
        samples.filter_map(|sample| Some((sample.pair, part.of(&sample.values)?))).collect()
    }

    /// Of many attempts, of all pairs together; of single values, the median of the pairs and the worst of them.
    fn cell(&self, row: &Row, contender: Contender) -> String {
        let values = |sample: &Sample| {
            (sample.figure == row.key && sample.contender == contender).then(|| sample.values.clone())
        };
        let of_pairs: Vec<Vec<f64>> = self.0.iter().filter_map(values).collect();
        if of_pairs.iter().any(|values| values.len() > 1) {
            let all: Vec<f64> = of_pairs.concat();
            return row.part.of(&all).map_or_else(|| NONE.to_owned(), decimals(row.places));
        }
        spread(stats::spread(of_pairs.into_iter().flatten()), decimals(row.places))
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
        let samples = self.0.iter().filter(|sample| sample.figure == key && sample.contender == contender);
        samples.map(|sample| sample.values.len()).sum()
    }

    /// What of Quintet's is farther from nothing than its limit in any pair, a sentence each.
    pub fn failures(&self, limits: &[(&str, f64)]) -> Vec<String> {
        let is_ours = |sample: &&Sample| sample.contender == Contender::Quintet;
        let too_high = |(key, most): &(&str, f64)| {
            let values = self.0.iter().filter(is_ours).filter(|sample| sample.figure == *key);
            let values = values.flat_map(|sample| sample.values.iter().copied());
            let worst = values.max_by(|one, other| one.abs().total_cmp(&other.abs()))?;
            (worst.abs() > *most).then(|| format!("{key} {worst:.2}, and {most} is the most"))
        };
        limits.iter().filter_map(too_high).collect()
    }

    /// The table of a measure: what each contender came to, and Quintet's over each other's.
    pub fn table(&self, title: &str, rows: &[Row], contenders: &[Contender]) -> Table {
        let others = || contenders.iter().filter(|contender| **contender != Contender::Quintet);
        let names = contenders.iter().map(|contender| contender.name().to_owned());
        let ratios = others().map(|other| format!("{} / {}", Contender::Quintet.name(), other.name()));
        let header: Vec<String> =
            [String::new()].into_iter().chain(names).chain(ratios).chain(["goal".to_owned()]).collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = Table::new(title, &header);
        for row in rows {
            let cells = contenders.iter().map(|contender| self.cell(row, *contender));
            let ratios = others()
                .map(|other| interval(stats::interval(self.ratios(row.key, row.part, *other)), decimals(2)));
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

    fn results() -> Results {
        let mut results = Results::default();
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
        let table = results().table("Memory", &[ONE, MANY], Contender::MANAGERS);
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
        let mut results = Results::default();
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
