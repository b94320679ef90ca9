//! Tables as plain text and as Markdown, and the format of their numbers.

use std::iter;

use quintet_localcluster::audit::Tally;

use super::stats::{self, Interval, Spread};

/// A column of a table: its name, the decimals, and the figure of a run if it was measured.
pub type Figure<T> = (&'static str, usize, fn(&T) -> Option<f64>);

/// The figures that at least one of the runs has. The runs of an earlier bench lack newer figures.
pub fn measured<T>(figures: &[Figure<T>], runs: &[&T]) -> Vec<Figure<T>> {
    let is_measured = |(_, _, figure): &&Figure<T>| runs.iter().any(|run| figure(run).is_some());
    figures.iter().filter(is_measured).copied().collect()
}

/// The cell of a figure that was not measured.
pub const NONE: &str = "-";

/// The note of a table with [`spread`] cells.
pub const MEDIAN_AND_WORST: &str = "Cells are the median of the rounds, with the worst in parentheses.";

/// A title, a header and rows. The first column is text, the others are numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub title: String,
    /// Names with units.
    pub header: Vec<String>,
    /// Rows of the header's length.
    pub rows: Vec<Vec<String>>,
    /// Sentences below the table.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows. The first column has no name.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item: Into<String>>) -> Self {
        let header = iter::once(String::new()).chain(columns.into_iter().map(Into::into)).collect();
        Self { title: title.into(), header, ..Self::default() }
    }

    /// A table without rows that has a column for each figure.
    pub fn of<T>(title: impl Into<String>, figures: &[Figure<T>]) -> Self {
        Self::new(title, figures.iter().map(|figure| figure.0))
    }

    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let mut row = vec![name.into()];
        row.extend(cells);
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// Adds a row with the median and the worst of each figure.
    pub fn figures<T>(&mut self, name: impl Into<String>, runs: &[&T], figures: &[Figure<T>]) {
        let cells = figures
            .iter()
            .map(|(_, places, figure)| spread(runs.iter().filter_map(|run| figure(run)), *places));
        self.row(name, cells);
    }

    /// Adds a row for each figure, with the median and the worst of each group of runs.
    pub fn rows_of<T>(&mut self, groups: &[Vec<&T>], figures: &[Figure<T>]) {
        for (name, places, figure) in figures {
            let cell = |runs: &Vec<&T>| spread(runs.iter().filter_map(|run| figure(run)), *places);
            self.row(*name, groups.iter().map(cell));
        }
    }

    /// Adds rows for an author's writes by verb and resource, with a column for each tally.
    pub fn tallies(&mut self, name: &str, tallies: &[Option<&Tally>]) {
        let mut kinds: Vec<&String> =
            tallies.iter().flatten().flat_map(|tally| tally.by_kind.keys()).collect();
        kinds.sort();
        kinds.dedup();
        let cells = |of: &dyn Fn(&Tally) -> u64| {
            let cell =
                |tally: Option<&Tally>| tally.map_or_else(|| NONE.to_owned(), |tally| count(of(tally)));
            tallies.iter().copied().map(cell).collect::<Vec<String>>()
        };
        for kind in kinds {
            let of_kind = |tally: &Tally| tally.by_kind.get(kind).copied().unwrap_or_default();
            self.row(format!("{name}: {kind}"), cells(&of_kind));
        }
        self.row(format!("{name}: rejected, of these"), cells(&|tally| tally.refused));
        self.row(format!("{name}: Events, in addition"), cells(&|tally| tally.events));
    }

    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub fn plain(&self) -> String {
        let rows = iter::once(&self.header).chain(&self.rows);
        let rows = rows.map(|row| format!("  {}", self.padded(row, "  ").trim_end()));
        let notes = self.notes.iter().map(|note| format!("  {note}"));
        let lines: Vec<String> = iter::once(self.title.clone()).chain(rows).chain(notes).collect();
        lines.join("\n") + "\n"
    }

    /// A heading of the third level, the table, and the notes.
    pub fn markdown(&self) -> String {
        format!("### {}\n\n{}", self.title, self.body())
    }

    /// The table and the notes as Markdown.
    pub fn body(&self) -> String {
        let line = |row: &[String]| format!("| {} |", self.padded(row, " | "));
        let rule = |(column, width): (usize, usize)| match column {
            0 => "-".repeat(width),
            _ => format!("{}:", "-".repeat(width - 1)),
        };
        let rule: Vec<String> = self.widths().enumerate().map(rule).collect();
        let mut lines = vec![line(&self.header), line(&rule)];
        lines.extend(self.rows.iter().map(|row| line(row)));
        for note in &self.notes {
            lines.extend([String::new(), note.clone()]);
        }
        lines.join("\n")
    }

    fn widths(&self) -> impl Iterator<Item = usize> {
        (0..self.header.len()).map(|column| {
            let cells = iter::once(&self.header).chain(&self.rows).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        })
    }

    fn padded(&self, row: &[String], separator: &str) -> String {
        let cells = row.iter().zip(self.widths()).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join(separator)
    }
}

/// Formats a count with thousands separators.
pub fn count(count: impl TryInto<u64>) -> String {
    let digits = count.try_into().unwrap_or(u64::MAX).to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

pub fn decimals(decimals: usize) -> impl Fn(f64) -> String {
    move |value| format!("{value:.decimals$}")
}

/// Two significant digits, or all digits of the integer part if these are more.
pub fn significant(value: f64) -> String {
    // The exponent is that of the rounded value.
    let scientific = format!("{value:.1e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    let places = exponent.filter(|_| value > 0.0).map_or(0, |exponent| 1 - exponent);
    let places = usize::try_from(places).unwrap_or_default();
    format!("{value:.places$}")
}

/// The median, with the worst in parentheses if there is more than one value.
pub fn spread(values: impl IntoIterator<Item = f64>, places: usize) -> String {
    match stats::spread(values) {
        None => NONE.to_owned(),
        Some(Spread { median, rounds: 1, .. }) => format!("{median:.places$}"),
        Some(Spread { median, worst, .. }) => format!("{median:.places$} ({worst:.places$})"),
    }
}

/// The median, with the lowest and the highest value in parentheses if there is more than one value.
pub fn range(values: impl IntoIterator<Item = f64>, places: usize) -> String {
    let values: Vec<f64> = values.into_iter().collect();
    let ends = stats::spread(values.iter().copied()).zip(stats::quantile(&values, 0.0));
    match ends {
        None => NONE.to_owned(),
        Some((Spread { median, rounds: 1, .. }, _)) => format!("{median:.places$}"),
        Some((Spread { median, worst, .. }, least)) => {
            format!("{median:.places$} ({least:.places$} to {worst:.places$})")
        }
    }
}

/// The median, with its interval in parentheses if there is more than one pair.
pub fn interval(interval: Option<Interval>, places: usize) -> String {
    match interval {
        None => NONE.to_owned(),
        Some(Interval { median, pairs: 1, .. }) => format!("{median:.places$}"),
        Some(Interval { median, low, high, .. }) => {
            format!("{median:.places$} ({low:.places$} to {high:.places$})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_columns() {
        let mut table = Table::new("Two", ["time s"]);
        table.row("bare", ["1.5".to_owned()]);
        table.row("DaemonJob", []);
        table.note("As it was.");
        let plain = "Two\n             time s\n  bare          1.5\n  DaemonJob\n  As it was.\n";
        assert_eq!(table.plain(), plain);
        let markdown = "### Two\n\n|           | time s |\n| --------- | -----: |\n| bare      |    1.5 |\n\
            | DaemonJob |        |\n\nAs it was.";
        assert_eq!(table.markdown(), markdown);
    }

    #[test]
    fn tallies_share_their_rows() {
        let tally = |kind: &str, count, events| Tally {
            by_kind: [(kind.to_owned(), count)].into(),
            events,
            ..Tally::default()
        };
        let mut table = Table::new("Writes", ["up", "restart", "down"]);
        table.tallies("A", &[Some(&tally("create pods", 1_000, 2)), None, Some(&tally("delete pods", 7, 0))]);
        let expected = [
            ["A: create pods", "1,000", "-", "0"],
            ["A: delete pods", "0", "-", "7"],
            ["A: rejected, of these", "0", "-", "0"],
            ["A: Events, in addition", "2", "-", "0"],
        ];
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn writes_numbers() {
        assert_eq!([0_u64, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([spread([1.0], 1), spread([1.0, 3.0], 2), spread([], 1)], ["1.0", "2.00 (3.00)", "-"]);
        let few = [0.0, 0.0476, 0.0996, 1.75, 9.96, 216.7].map(significant);
        assert_eq!(few, ["0", "0.048", "0.10", "1.8", "10", "217"]);
        let ranges = [range([3.0, 2.0, 9.0], 1), range([2.0], 2), range([], 1)];
        assert_eq!(ranges, ["3.0 (2.0 to 9.0)", "2.00", "-"]);
        let of = |pairs| Some(Interval { median: 1.0, low: 0.9, high: 1.1, pairs });
        assert_eq!([of(1), of(7), None].map(|found| interval(found, 1)), ["1.0", "1.0 (0.9 to 1.1)", "-"]);
    }
}
