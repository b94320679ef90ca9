//! The outcome of a bench: printed and, with `--write`, kept. The results are JSON lines, the page is made from them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use quintet_localcluster::paths;
use quintet_localcluster::run::print;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::host::{Machine, Versions};
use super::table::Table;

/// Where pages and plots go, below the checkout.
const PAGES: &str = "docs/bench";

/// Where results go.
const RESULTS: &str = "tests/bench/results";

/// A machine whose processors are less idle than this before the start, in percent, is shared with others.
const SHARED: u64 = 80;

/// What a bench found, in one size or several.
#[derive(Debug)]
pub struct Report<M> {
    /// The name of the bench and of its files.
    pub name: &'static str,
    /// The document's title.
    pub title: &'static str,
    /// How it was measured, a paragraph each.
    pub method: Vec<String>,
    /// One for each size.
    pub runs: Vec<Run<M>>,
}

/// What the runs of a bench measure. Each item of its lists is a line of the results.
pub trait Measurements: Serialize + DeserializeOwned {
    /// What was measured, for people.
    fn tables(&self) -> Vec<Table>;
}

/// Everything that is said about one size. A document keeps the newest run of each size, so that a large one can be
/// measured by itself, and less often.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run<M> {
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
    /// What was measured.
    pub measurements: M,
}

/// The folder of pages and plots.
pub fn pages() -> PathBuf {
    paths::workspace().join(PAGES)
}

/// The folder of results.
pub fn results() -> PathBuf {
    paths::workspace().join(RESULTS)
}

/// The runs of a bench in the folder of results, by their size; none where there is no file.
pub fn kept<M: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<Run<M>>> {
    let file = folder.join(format!("{name}.jsonl"));
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    parse(&text).with_context(|| format!("{} is not as this program writes it", file.display()))
}

/// Reads lines as [`Run::lines`] writes them.
fn parse<M: DeserializeOwned>(text: &str) -> serde_json::Result<Vec<Run<M>>> {
    let mut runs: Vec<Value> = Vec::new();
    for line in text.lines() {
        let line: Map<String, Value> = serde_json::from_str(line)?;
        match runs.last_mut().filter(|_| !line.contains_key("about")) {
            None => runs.push(line.into()),
            Some(run) => {
                for (list, item) in line {
                    match &mut run["measurements"][list] {
                        Value::Array(items) => items.push(item),
                        none => *none = json!([item]),
                    }
                }
            }
        }
    }
    runs.into_iter().map(serde_json::from_value).collect()
}

/// Prose without its line breaks: a paragraph or an item of a list is one line, as in the pages.
pub fn unwrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut().filter(|last| !last.is_empty()) {
            Some(last) if !line.is_empty() && !line.starts_with("- ") => {
                last.extend([" ", line.trim()]);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
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

impl<M: Measurements> Report<M> {
    fn print(&self) -> Result<()> {
        let mut parts = Vec::new();
        for run in &self.runs {
            parts.push(format!("\n{}", run.about));
            parts.push(run.machine.describe());
            parts.push(format!("{}\n", run.versions.describe()));
            parts.extend(run.measurements.tables().iter().map(Table::plain));
            parts.extend(run.verdict().map(|verdict| format!("{verdict}\n")));
            parts.extend(run.remarks().into_iter().map(|remark| format!("{remark}\n")));
        }
        print(parts.join("\n"))
    }

    /// Prints the tables and keeps them where that is asked for. Fails if a count is too high.
    pub fn finish(&self, write: bool) -> Result<()> {
        self.print()?;
        if write {
            self.write_to(&pages(), &results())?;
        }
        match self.runs.iter().flat_map(|run| &run.failures).map(Vec::len).sum::<usize>() {
            0 => Ok(()),
            1 => bail!("a count is too high, see above"),
            failures => bail!("{failures} counts are too high, see above"),
        }
    }

    /// Writes the page and the results. What they have of other sizes stays.
    fn write_to(&self, pages: &Path, results: &Path) -> Result<()> {
        let old = kept(results, self.name)?;
        let old = old.iter().filter(|old| self.runs.iter().all(|run| run.size != old.size));
        let mut runs: Vec<&Run<M>> = self.runs.iter().chain(old).collect();
        runs.sort_by_key(|run| run.size);
        let lines = runs.iter().map(|run| run.lines()).collect::<Result<String>>()?;
        write_file(&results.join(format!("{}.jsonl", self.name)), &lines)?;
        write_file(&pages.join(format!("{}.md", self.name)), &self.markdown(&runs))
    }

    fn markdown(&self, runs: &[&Run<M>]) -> String {
        let mut parts = vec![format!("# {}", self.title)];
        parts.extend_from_slice(&self.method);
        for run in runs {
            parts.push(format!("## {}", run.about));
            parts.push(format!("Written by `{}`. {}", run.command, run.machine.describe()));
            parts.push(run.versions.describe());
            parts.extend(run.verdict());
            parts.extend(run.remarks());
            let tables = run.measurements.tables();
            parts.extend(tables.iter().map(Table::markdown));
        }
        parts.join("\n\n") + "\n"
    }
}

impl<M: Serialize> Run<M> {
    /// A line with all but the lists of measurements, and a line for each item of those.
    fn lines(&self) -> Result<String> {
        let (mut run, mut items) = (serde_json::to_value(self)?, String::new());
        if let Some(measurements) = run["measurements"].as_object_mut() {
            measurements.retain(|list, value| {
                let list_items = value.as_array().into_iter().flatten();
                items.extend(list_items.map(|item| format!("{}\n", json!({ list: item }))));
                !value.is_array()
            });
        }
        Ok(format!("{run}\n{items}"))
    }
}

impl<M> Run<M> {
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

    #[derive(Debug, Serialize, Deserialize)]
    struct Rain {
        place: String,
        #[serde(default)]
        hours: Vec<usize>,
    }

    impl Measurements for Rain {
        fn tables(&self) -> Vec<Table> {
            let mut table = Table::new("Times", ["s"]);
            table.row(&self.place, [self.hours.len().to_string()]);
            vec![table]
        }
    }

    fn run(size: usize, failures: &[&str]) -> Run<Rain> {
        Run {
            about: format!("{size} nodes"),
            size,
            command: format!("cargo xtask bench x --nodes {size}"),
            machine: Machine::now(),
            versions: Versions { kwok: "v0".to_owned(), ..Versions::default() },
            failures: Some(failures.iter().map(|&failure| failure.to_owned()).collect()),
            caveats: vec!["It rained.".to_owned()],
            measurements: Rain { place: "here".to_owned(), hours: (1..=size / 10).collect() },
        }
    }

    fn report(runs: Vec<Run<Rain>>) -> Report<Rain> {
        Report { name: "x", title: "X", method: vec!["By looking.".to_owned()], runs }
    }

    #[test]
    fn a_document_says_on_what_it_was_measured_and_what_failed() {
        let text = report(Vec::new()).markdown(&[&run(7, &["a restart wrote"])]);
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
        report(vec![run(7, &["wrong"]), run(50, &[])]).write_to(&folder, &folder).unwrap();
        report(vec![run(7, &[])]).write_to(&folder, &folder).unwrap();
        let text = fs::read_to_string(folder.join("x.md")).unwrap();
        assert!(!text.contains("wrong"), "{text}");
        assert!(text.find("## 7 nodes") < text.find("## 50 nodes"), "{text}");
        let lines = fs::read_to_string(folder.join("x.jsonl")).unwrap();
        assert_eq!(lines.lines().nth(3), Some("{\"hours\":2}"), "a measurement is a line: {lines}");
        let hours: Vec<_> =
            kept::<Rain>(&folder, "x").unwrap().into_iter().map(|run| run.measurements.hours).collect();
        assert_eq!(hours, [vec![], vec![1, 2, 3, 4, 5]]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn pages_are_made_from_the_results() {
        fn check<M: Measurements>(report: &Report<M>) {
            let runs = kept::<M>(&results(), report.name).unwrap();
            let page = fs::read_to_string(pages().join(format!("{}.md", report.name))).unwrap();
            let made = report.markdown(&runs.iter().collect::<Vec<_>>());
            // The method is that of the newest run, and above the first section.
            let sections = |page: &str| page.split_once("\n## ").map(|(_, sections)| sections.to_owned());
            assert!(sections(&made) == sections(&page), "{}.md differs from its results", report.name);
        }
        check(&crate::daemonjob::report(Vec::new()));
        check(&crate::greeting::report(Vec::new()));
        check(&crate::manager::report(Vec::new()));
        check(&crate::podset::report(Vec::new()));
        check(&crate::pulsar::report(Vec::new()));
    }
}
