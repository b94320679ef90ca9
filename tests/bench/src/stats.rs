//! Statistics of a few rounds: median and worst, which suit few values better than mean and deviation.

use quintet_localcluster::chance::Chance;
use serde::{Deserialize, Serialize};

/// The median and the highest value of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub worst: f64,
    pub rounds: usize,
}

/// Returns `None` without values.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let worst = *values.last()?;
    let upper = values[values.len() / 2];
    let median = if values.len().is_multiple_of(2) {
        f64::midpoint(values[values.len() / 2 - 1], upper)
    } else {
        upper
    };
    Some(Spread { median, worst, rounds: values.len() })
}

/// The median of some pairs with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: usize,
}

/// The number of bootstrap samples.
const DRAWS: usize = 4_000;

/// The median with its 95 % bootstrap interval: samples with repetition, without the outermost 5 % of their
/// medians. The samples are the same each time. Returns `None` without values.
///
/// With few pairs the interval contains the true median less often. With seven pairs it goes from the second
/// lowest to the second highest value and contains the median in 87.5 % of cases.
pub fn interval(values: impl IntoIterator<Item = f64>) -> Option<Interval> {
    let values: Vec<f64> = values.into_iter().collect();
    let median = spread(values.iter().copied())?.median;
    let (mut chance, pairs) = (Chance::new(1), u64::try_from(values.len()).ok()?);
    let mut draw = || values[usize::try_from(chance.below(pairs)).unwrap_or_default()];
    let medians = (0..DRAWS).filter_map(|_| {
        let drawn: Vec<f64> = values.iter().map(|_| draw()).collect();
        spread(drawn).map(|spread| spread.median)
    });
    let medians: Vec<f64> = medians.collect();
    let (low, high) = (quantile(&medians, 0.025)?, quantile(&medians, 0.975)?);
    Some(Interval { median, low, high, pairs: values.len() })
}

/// The standard deviations around the mean that hold 95 % of a normal distribution.
const DEVIATIONS: f64 = 1.96;

/// Wilson's 95 % interval of a probability, from the number of hits in some attempts. Returns `None` without
/// attempts.
pub fn wilson(hits: usize, attempts: usize) -> Option<(f64, f64)> {
    let (all, square) = (float(attempts), DEVIATIONS.powi(2));
    let share = ratio(float(hits), all)?;
    let middle = share + square / (2.0 * all);
    let half = DEVIATIONS * (share * (1.0 - share) / all + square / (4.0 * all.powi(2))).sqrt();
    let scaled = |end: f64| (end / (1.0 + square / all)).clamp(0.0, 1.0);
    Some((scaled(middle - half), scaled(middle + half)))
}

/// The summary of many attempts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub n: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Quantiles {
    /// Returns `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Spread { median: p50, worst: max, rounds: n } = spread(values.iter().copied())?;
        Some(Self { n, p50, p90: quantile(values, 0.9)?, p99: quantile(values, 0.99)?, max })
    }
}

/// The exponent by which a figure grows with a size: the least-squares slope through their logarithms.
/// Returns `None` with fewer than two sizes.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let number = float(logs.len());
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / number;
    let (middle_x, middle_y) = (mean(|log| log.0), mean(|log| log.1));
    let square: f64 = logs.iter().map(|(x, _)| (x - middle_x).powi(2)).sum();
    let product: f64 = logs.iter().map(|(x, y)| (x - middle_x) * (y - middle_y)).sum();
    ratio(product, square)
}

/// The lowest value that is not exceeded by this part of the values. Returns `None` without values.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let below = sorted.iter().enumerate().find(|(index, _)| float(index + 1) >= part * float(values.len()));
    below.map(|(_, value)| *value)
}

/// `this / that`. Returns `None` if `that` is not above 0.
pub fn ratio(this: f64, that: f64) -> Option<f64> {
    (that > 0.0).then(|| this / that)
}

pub fn mebibytes(kib: u64) -> f64 {
    float(kib) / 1_024.0
}

pub fn kibibytes(bytes: usize) -> f64 {
    float(bytes) / 1_024.0
}

/// A difference of counts as a float.
pub fn signed(count: i64) -> f64 {
    i32::try_from(count).map_or(f64::NAN, f64::from)
}

/// A count as a float. Counts here are far below the limit of `u32`.
pub fn float(count: impl TryInto<u32>) -> f64 {
    f64::from(count.try_into().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_median_is_between_the_middle_values() {
        let of = |values: &[f64]| spread(values.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0, 1.0]), Some(Spread { median: 2.0, worst: 3.0, rounds: 2 }));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, worst: 9.0, rounds: 3 }));
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = Quantiles { n: 200, p50: 100.5, p90: 180.0, p99: 198.0, max: 200.0 };
        assert_eq!((Quantiles::of(&values), Quantiles::of(&[])), (Some(found), None));
    }

    #[test]
    fn interval_of_seven_excludes_the_outermost() {
        assert_eq!(interval([]), None);
        assert_eq!(interval([0.5]), Some(Interval { median: 0.5, low: 0.5, high: 0.5, pairs: 1 }));
        let seven = || interval((1..=7).map(f64::from));
        assert_eq!(seven(), Some(Interval { median: 4.0, low: 2.0, high: 6.0, pairs: 7 }));
        assert_eq!(seven(), seven());
    }

    #[test]
    fn no_hit_in_a_thousand_has_an_interval() {
        let percent = |hits, attempts| {
            let (low, high) = wilson(hits, attempts).unwrap();
            format!("{:.2} to {:.2}", 100.0 * low, 100.0 * high)
        };
        assert_eq!([percent(0, 1_000), percent(1, 1_000)], ["0.00 to 0.38", "0.02 to 0.56"]);
        assert_eq!([percent(5_000, 10_000), percent(7, 7)], ["49.02 to 50.98", "64.57 to 100.00"]);
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn linear_growth_has_exponent_1() {
        let sizes = [100.0, 1_000.0, 5_000.0];
        let exponent_of = |of: fn(f64) -> f64| exponent(&sizes.map(|size| (size, of(size)))).unwrap();
        assert!((exponent_of(|size| 3.0 * size) - 1.0).abs() < 1e-9);
        assert!(exponent_of(|_| 7.0).abs() < 1e-9);
        assert_eq!(exponent(&[(1_000.0, 1.0)]), None);
    }
}
