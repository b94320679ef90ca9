//! The outcome of a bench: printed, and kept as a document for people and as JSON for programs where that is asked for.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::host::{Machine, Versions};
use super::table::Table;
use crate::paths;
use crate::run::print;

/// Where documents go, below the checkout.
const FOLDER: &str = "docs/bench";

/// Everything that is said about one run of a bench.
#[derive(Debug)]
pub struct Report {
    /// The name of the bench and of its files.
    pub name: &'static str,
    /// The document's title.
    pub title: &'static str,
    /// How it was measured, a paragraph each.
    pub method: Vec<String>,
    /// The command that did it.
    pub command: String,
    /// On what.
    pub machine: Machine,
    /// With what.
    pub versions: Versions,
    /// What was measured.
    pub tables: Vec<Table>,
    /// Counts that are too high, a sentence each.
    pub failures: Vec<String>,
}

impl Report {
    /// Prints the tables.
    pub fn print(&self) -> Result<()> {
        let mut text = format!("\n{}\n{}\n", self.machine.describe(), self.versions.describe());
        for table in &self.tables {
            text.push('\n');
            text.push_str(&table.plain());
        }
        print(format!("{text}\nCounts\n  {}\n", self.verdict()))
    }

    /// Writes the document and, with the raw measurements, the JSON.
    pub fn write(&self, measurements: &impl Serialize) -> Result<()> {
        let folder = paths::workspace().join(FOLDER);
        let write = |extension: &str, text: String| {
            let file = folder.join(format!("{}.{extension}", self.name));
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(&file, text))
                .with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("wrote {}", file.display());
            Ok::<_, anyhow::Error>(())
        };
        write("md", self.markdown())?;
        let document = json!({
            "bench": self.name,
            "command": self.command,
            "machine": self.machine,
            "versions": self.versions,
            "failures": self.failures,
            "measurements": measurements,
        });
        write("json", format!("{document:#}\n"))
    }

    fn markdown(&self) -> String {
        let mut parts = vec![
            format!("# {}", self.title),
            format!("Written by `{}`. {}", self.command, self.machine.describe()),
            self.versions.describe(),
            "## How it was measured".to_owned(),
        ];
        parts.extend_from_slice(&self.method);
        parts.extend(["## Counts".to_owned(), self.verdict(), "## Figures".to_owned()]);
        parts.extend(self.tables.iter().map(|table| table.markdown().trim_end().to_owned()));
        parts.join("\n\n") + "\n"
    }

    fn verdict(&self) -> String {
        if self.failures.is_empty() {
            "All within their limits.".to_owned()
        } else {
            format!("Too high: {}.", self.failures.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_on_what_it_was_measured_and_what_failed() {
        let mut table = Table::new("Times", &["", "s"]);
        table.row("a", ["1".to_owned()]);
        let report = Report {
            name: "x",
            title: "X",
            method: vec!["By looking.".to_owned()],
            command: "cargo xtask bench x".to_owned(),
            machine: Machine::now(),
            versions: Versions { kwok: "v0".to_owned(), ..Versions::default() },
            tables: vec![table],
            failures: vec!["a restart wrote".to_owned()],
        };
        let text = report.markdown();
        for part in [
            "# X\n",
            "`cargo xtask bench x`",
            "kwok v0",
            "By looking.",
            "Too high: a restart wrote.",
            "### Times",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
