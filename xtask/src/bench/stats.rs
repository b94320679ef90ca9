//! Numbers out of a few rounds: with so few, the median and the worst one say more than a mean and a deviation.

use serde::Serialize;

/// The middle and the far end of some measurements, of which less is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the measurements are not above it.
    pub median: f64,
    /// The greatest one.
    pub worst: f64,
    /// How many there are.
    pub rounds: usize,
}

/// Nothing where nothing was measured.
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

/// The value that this part of the values does not exceed, such as 0.5 for the median; nothing where there are none.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let below = sorted.iter().enumerate().find(|(index, _)| float(index + 1) >= part * float(values.len()));
    below.map(|(_, value)| *value)
}

/// How many of `this` make one of `that`; nothing where `that` is nothing.
pub fn ratio(this: f64, that: f64) -> Option<f64> {
    (that > 0.0).then(|| this / that)
}

/// KiB as MiB.
pub fn mebibytes(kib: u64) -> f64 {
    float(kib) / 1_024.0
}

/// Bytes as KiB.
pub fn kibibytes(bytes: usize) -> f64 {
    float(bytes) / 1_024.0
}

/// A difference of counts as a number that can be divided.
pub fn signed(count: i64) -> f64 {
    i32::try_from(count).map_or(f64::NAN, f64::from)
}

/// A count as a number that can be divided. Counts here are far below the limit.
pub fn float(count: impl TryInto<u32>) -> f64 {
    f64::from(count.try_into().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let of = |values: &[f64]| spread(values.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]), Some(Spread { median: 2.0, worst: 2.0, rounds: 1 }));
        assert_eq!(of(&[3.0, 1.0]), Some(Spread { median: 2.0, worst: 3.0, rounds: 2 }));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, worst: 9.0, rounds: 3 }));
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), Some(100.0));
        assert_eq!(quantile(&values, 0.99), Some(198.0));
        assert_eq!(quantile(&values, 1.0), Some(200.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
        assert_eq!(ratio(3.0, 0.0), None);
    }

    #[test]
    fn counts_become_numbers() {
        assert!((float(1_000_u64) - 1_000.0).abs() < f64::EPSILON);
        assert!((float(-1_i64) - f64::from(u32::MAX)).abs() < f64::EPSILON);
    }
}
