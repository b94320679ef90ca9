//! Tables that are read in a terminal and the same ones for Markdown, and how numbers are written in them.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};

use super::stats::{self, Interval, Spread};

/// A column of a table: its name, the decimals, and the figure of a run, where it was measured.
pub type Figure<T> = (&'static str, usize, fn(&T) -> Option<f64>);

/// A title, a header and rows. The first column is text, the others are numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// One name a column, with the unit.
    pub header: Vec<String>,
    /// As many cells as the header has.
    pub rows: Vec<Vec<String>>,
    /// What one has to know to read it right; a sentence each.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.into(), header, ..Self::default() }
    }

    /// A table without rows that has a column for each figure.
    pub fn of<T>(title: impl Into<String>, figures: &[Figure<T>]) -> Self {
        let header: Vec<&str> = std::iter::once("").chain(figures.iter().map(|figure| figure.0)).collect();
        Self::new(title, &header)
    }

    /// Adds a row.
    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let mut row = vec![name.into()];
        row.extend(cells);
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// Adds a row of figures of some runs: the median of each and the worst, with so many decimals.
    pub fn figures<T>(&mut self, name: impl Into<String>, runs: &[&T], figures: &[Figure<T>]) {
        let cells = figures.iter().map(|(_, places, figure)| {
            let values = runs.iter().filter_map(|run| figure(run));
            spread(stats::spread(values), decimals(*places))
        });
        self.row(name, cells);
    }

    /// Adds rows for what somebody wrote, by verb and resource, in as many columns as there are tallies.
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
            self.row(
                format!("{name}: {kind}"),
                cells(&|tally| tally.by_kind.get(kind).copied().unwrap_or_default()),
            );
        }
        self.row(format!("{name}: refused, of these"), cells(&|tally| tally.refused));
        self.row(format!("{name}: Events, apart"), cells(&|tally| tally.events));
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// For a terminal: columns aligned, the title above.
    pub fn plain(&self) -> String {
        let widths = self.widths();
        let mut lines = vec![self.title.clone()];
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| pad(cell, width, column))
                .collect();
            lines.push(format!("  {}", cells.join("  ").trim_end()));
        }
        lines.extend(self.notes.iter().map(|note| format!("  {note}")));
        lines.join("\n") + "\n"
    }

    /// For a document: a heading of the third level, the table, the notes.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let line = |row: &[String]| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| pad(cell, width, column))
                .collect();
            format!("| {} |", cells.join(" | "))
        };
        let rule: Vec<String> =
            widths
                .iter()
                .enumerate()
                .map(|(column, &width)| {
                    if column == 0 { "-".repeat(width) } else { format!("{}:", "-".repeat(width.max(2) - 1)) }
                })
                .collect();
        let mut lines = vec![
            format!("### {}", self.title),
            String::new(),
            line(&self.header),
            format!("| {} |", rule.join(" | ")),
        ];
        lines.extend(self.rows.iter().map(|row| line(row)));
        for note in &self.notes {
            lines.extend([String::new(), note.clone()]);
        }
        lines.join("\n") + "\n"
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.header.len())
            .map(|column| {
                let cells = std::iter::once(&self.header).chain(&self.rows);
                cells
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    .max(3)
            })
            .collect()
    }
}

fn pad(cell: &str, width: usize, column: usize) -> String {
    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
}

/// What stands where nothing was measured.
pub const NONE: &str = "-";

/// A count, with commas between thousands.
pub fn count(count: impl Into<u64>) -> String {
    let digits = count.into().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with so many decimals.
pub fn decimals(decimals: usize) -> impl Fn(f64) -> String {
    move |value| format!("{value:.decimals$}")
}

/// The median and, where there is more than one round, the worst in parentheses.
pub fn spread(spread: Option<Spread>, number: impl Fn(f64) -> String) -> String {
    match spread {
        None => NONE.to_owned(),
        Some(Spread { median, rounds: 1, .. }) => number(median),
        Some(Spread { median, worst, .. }) => format!("{} ({})", number(median), number(worst)),
    }
}

/// The median of the ratios of pairs and, where there is more than one pair, its 95 % interval in parentheses.
pub fn interval(interval: Option<Interval>, number: impl Fn(f64) -> String) -> String {
    match interval {
        None => NONE.to_owned(),
        Some(Interval { median, pairs: 1, .. }) => number(median),
        Some(Interval { median, low, high, .. }) => {
            format!("{} ({} to {})", number(median), number(low), number(high))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("Two", &["who", "time s"]);
        table.row("bare", ["1.5".to_owned()]);
        table.row("DaemonJob", []);
        table.note("As it was.");
        table
    }

    #[test]
    fn columns_are_aligned_in_a_terminal() {
        assert_eq!(
            table().plain(),
            "Two\n  who        time s\n  bare          1.5\n  DaemonJob\n  As it was.\n"
        );
    }

    #[test]
    fn a_document_gets_the_same_table() {
        assert_eq!(
            table().markdown(),
            "### Two\n\n| who       | time s |\n| --------- | -----: |\n| bare      |    1.5 |\n| DaemonJob |        |\n\nAs it was.\n"
        );
    }

    #[test]
    fn writes_of_several_parts_share_their_rows() {
        let tally = |kind: &str, count, events| Tally {
            by_kind: [(kind.to_owned(), count)].into(),
            events,
            ..Tally::default()
        };
        let mut table = Table::new("Writes", &["", "up", "restart", "down"]);
        table.tallies("A", &[Some(&tally("create pods", 1_000, 2)), None, Some(&tally("delete pods", 7, 0))]);
        assert_eq!(
            table.rows,
            [
                ["A: create pods", "1,000", "-", "0"],
                ["A: delete pods", "0", "-", "7"],
                ["A: refused, of these", "0", "-", "0"],
                ["A: Events, apart", "2", "-", "0"],
            ]
        );
    }

    #[test]
    fn counts_have_commas() {
        assert_eq!(count(0_u64), "0");
        assert_eq!(count(999_u64), "999");
        assert_eq!(count(1_000_u64), "1,000");
        assert_eq!(count(1_234_567_u64), "1,234,567");
    }

    #[test]
    fn one_round_has_no_worst() {
        let of = |rounds| Some(Spread { median: 1.0, worst: 2.0, rounds });
        assert_eq!(spread(of(1), decimals(1)), "1.0");
        assert_eq!(spread(of(3), decimals(2)), "1.00 (2.00)");
        assert_eq!(spread(None, decimals(1)), "-");
        let of = |pairs| Some(Interval { median: 1.0, low: 0.9, high: 1.1, pairs });
        assert_eq!(interval(of(1), decimals(1)), "1.0");
        assert_eq!(interval(of(7), decimals(2)), "1.00 (0.90 to 1.10)");
        assert_eq!(interval(None, decimals(1)), "-");
    }
}
