//! The outcome of a bench: printed, and kept as a document for people and as JSON for programs where that is asked for.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use quintet_localcluster::paths;
use quintet_localcluster::run::print;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::host::{Machine, Versions};
use super::table::Table;

/// Where documents go, below the checkout.
const FOLDER: &str = "docs/bench";

/// A machine whose processors are less idle than this before the start, in percent, is shared with others.
const SHARED: u64 = 80;

/// What a bench found, in one size or several.
#[derive(Debug)]
pub struct Report {
    /// The name of the bench and of its files.
    pub name: &'static str,
    /// The document's title.
    pub title: &'static str,
    /// How it was measured, a paragraph each.
    pub method: Vec<String>,
    /// One for each size.
    pub runs: Vec<Run>,
}

/// Everything that is said about one size. A document keeps the newest run of each size, so that a large one can be
/// measured by itself, and less often.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What there is so much of, such as `1,000 nodes`.
    pub about: String,
    /// How much; documents are in this order.
    pub size: usize,
    /// The command that did it.
    pub command: String,
    /// On what.
    pub machine: Machine,
    /// With what.
    pub versions: Versions,
    /// Counts that are too high, a sentence each; nothing where none has a limit.
    pub failures: Option<Vec<String>>,
    /// What one has to know of this run alone, a sentence each: the goals say it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    /// What was measured, for people.
    pub tables: Vec<Table>,
    /// The same, raw.
    pub measurements: Value,
}

/// What is kept of a document for programs.
#[derive(Default, Deserialize)]
struct Kept {
    runs: Vec<Run>,
}

/// The folder that documents are in.
pub fn folder() -> PathBuf {
    paths::workspace().join(FOLDER)
}

/// The runs that the document of this name keeps, by their size; none where there is no document.
pub fn kept(folder: &Path, name: &str) -> Result<Vec<Run>> {
    let file = folder.join(format!("{name}.json"));
    match fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str::<Kept>(&text)
            .map(|kept| kept.runs)
            .with_context(|| format!("{} is not as this program writes it", file.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Writes a file of a document.
pub fn write_file(file: &Path, text: &str) -> Result<()> {
    file.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

impl Report {
    fn print(&self) -> Result<()> {
        let mut parts = Vec::new();
        for run in &self.runs {
            parts.push(format!("\n{}", run.about));
            parts.push(run.machine.describe());
            parts.push(format!("{}\n", run.versions.describe()));
            parts.extend(run.tables.iter().map(Table::plain));
            parts.extend(run.verdict().map(|verdict| format!("{verdict}\n")));
            parts.extend(run.remarks().into_iter().map(|remark| format!("{remark}\n")));
        }
        print(parts.join("\n"))
    }

    /// Prints the tables and keeps them where that is asked for. Fails if a count is too high.
    pub fn finish(&self, write: bool) -> Result<()> {
        self.print()?;
        if write {
            self.write()?;
        }
        match self.runs.iter().flat_map(|run| &run.failures).map(Vec::len).sum::<usize>() {
            0 => Ok(()),
            1 => bail!("a count is too high, see above"),
            failures => bail!("{failures} counts are too high, see above"),
        }
    }

    /// Writes the document and, with the raw measurements, the JSON. What they have of other sizes stays.
    fn write(&self) -> Result<()> {
        self.write_to(&folder())
    }

    fn write_to(&self, folder: &Path) -> Result<()> {
        let mut runs = self.runs.clone();
        let old = kept(folder, self.name)?.into_iter();
        runs.extend(old.filter(|old| self.runs.iter().all(|run| run.size != old.size)));
        runs.sort_by_key(|run| run.size);
        let write = |extension: &str, text: &str| {
            write_file(&folder.join(format!("{}.{extension}", self.name)), text)
        };
        write("md", &self.markdown(&runs))?;
        write("json", &format!("{:#}\n", json!({"bench": self.name, "runs": runs})))
    }

    fn markdown(&self, runs: &[Run]) -> String {
        let mut parts = vec![format!("# {}", self.title)];
        parts.extend_from_slice(&self.method);
        for run in runs {
            parts.push(format!("## {}", run.about));
            parts.push(format!("Written by `{}`. {}", run.command, run.machine.describe()));
            parts.push(run.versions.describe());
            parts.extend(run.verdict());
            parts.extend(run.remarks());
            parts.extend(run.tables.iter().map(|table| table.markdown().trim_end().to_owned()));
        }
        parts.join("\n\n") + "\n"
    }
}

impl Run {
    fn verdict(&self) -> Option<String> {
        let failures = self.failures.as_ref()?;
        Some(match failures[..] {
            [] => "Counts: all within their limits.".to_owned(),
            _ => format!("Counts: too high: {}.", failures.join("; ")),
        })
    }

    /// What one has to know to read its figures right.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.caveats.clone();
        if self.machine.idle_percent.is_some_and(|idle| idle < SHARED) {
            let shared = "The machine was shared with others: times say little, memory and counts do.";
            remarks.push(shared.to_owned());
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(size: usize, failures: &[&str]) -> Run {
        let mut table = Table::new("Times", &["", "s"]);
        table.row("a", [size.to_string()]);
        Run {
            about: format!("{size} nodes"),
            size,
            command: format!("cargo xtask bench x --nodes {size}"),
            machine: Machine::now(),
            versions: Versions { kwok: "v0".to_owned(), ..Versions::default() },
            failures: Some(failures.iter().map(|&failure| failure.to_owned()).collect()),
            caveats: vec!["It rained.".to_owned()],
            tables: vec![table],
            measurements: json!({"size": size}),
        }
    }

    fn report(runs: Vec<Run>) -> Report {
        Report { name: "x", title: "X", method: vec!["By looking.".to_owned()], runs }
    }

    #[test]
    fn a_document_says_on_what_it_was_measured_and_what_failed() {
        let report = report(vec![run(7, &["a restart wrote"])]);
        let text = report.markdown(&report.runs);
        for part in [
            "# X\n",
            "## 7 nodes\n",
            "`cargo xtask bench x --nodes 7`",
            "kwok v0",
            "By looking.",
            "too high: a restart wrote.",
            "\n\nIt rained.\n\n",
            "### Times",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_run_on_a_machine_that_was_shared_says_so() {
        let mut run = run(7, &[]);
        let remarks = [None, Some(SHARED), Some(SHARED - 1)].map(|idle| {
            run.machine.idle_percent = idle;
            run.remarks().len()
        });
        assert_eq!(remarks, [1, 1, 2]);
    }

    #[test]
    fn a_document_keeps_the_newest_run_of_each_size() {
        let folder = std::env::temp_dir().join(format!("quintet-report-{}", std::process::id()));
        report(vec![run(7, &["wrong"]), run(50, &[])]).write_to(&folder).unwrap();
        report(vec![run(7, &[])]).write_to(&folder).unwrap();
        let text = fs::read_to_string(folder.join("x.md")).unwrap();
        assert!(!text.contains("wrong"), "{text}");
        assert!(text.find("## 7 nodes") < text.find("## 50 nodes"), "{text}");
        let kept: Kept = serde_json::from_str(&fs::read_to_string(folder.join("x.json")).unwrap()).unwrap();
        assert_eq!(kept.runs.len(), 2);
        assert_eq!(kept.runs[1].measurements["size"], 50);
        fs::remove_dir_all(&folder).unwrap();
    }
}
