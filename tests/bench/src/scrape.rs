//! Reads the text that a manager's /metrics answers, as far as a bench asks about it.

/// The sum of a metric over all series that have these labels; 0 where there is none.
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
        // The sum of nothing would be -0.
        .fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_labels() {
        let text = "# HELP a_total b\n# TYPE a_total counter\n\
            a_total{controller=\"daemonjob\",result=\"success\"} 3\n\
            a_total{controller=\"daemonjob\",result=\"error\"} 1\n\
            a_total{controller=\"podset\",result=\"success\"} 7\n\
            a_total_sum{controller=\"daemonjob\"} 0.25\nplain 2\n";
        let is =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        is(sum(text, "a_total", &[("controller", "daemonjob")]), 4.0);
        is(sum(text, "a_total", &[]), 11.0);
        is(sum(text, "a_total_sum", &[("controller", "daemonjob")]), 0.25);
        is(sum(text, "plain", &[]), 2.0);
        assert_eq!(format!("{:.0}", sum(text, "none", &[])), "0");
    }
}
