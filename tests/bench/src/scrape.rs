//! Reads sums from the text of a manager's /metrics.

/// The sum of a metric over all series with these labels. 0 without a series.
pub fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, ""));
            let has = |(label, value): &(&str, &str)| {
                let pair = format!("{label}=\"{value}\"");
                rest.trim_end_matches('}').split(',').any(|one| one == pair)
            };
            (found == name && labels.iter().all(has)).then(|| value.parse::<f64>().ok())?
        })
        // `sum` of no values would be -0.
        .fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_series_by_name_and_labels() {
        let text = "# TYPE a counter\na{controller=\"x\",result=\"ok\"} 3\na{controller=\"x\",result=\"error\"} 1\n\
            a{controller=\"y\"} 7\na_sum{controller=\"x\"} 0.25\nplain 2\n";
        let sums = [("a", "x"), ("a_sum", "x"), ("none", "x")]
            .map(|(name, of)| sum(text, name, &[("controller", of)]));
        assert_eq!(sums.map(|sum| sum.to_string()), ["4", "0.25", "0"]);
        assert_eq!([sum(text, "a", &[]), sum(text, "plain", &[])].map(|sum| sum.to_string()), ["11", "2"]);
    }
}
