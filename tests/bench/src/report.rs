//! Prints the results of a bench and, with `--write`, stores them as JSON lines and writes their page.

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

/// Other processes use a machine whose processors are less idle than this before the start, in percent.
const SHARED: u64 = 80;

/// The measurements of a run. Each item of its lists is a line of the results.
pub trait Measurements: Serialize + DeserializeOwned {
    const NAME: &'static str;
    const TITLE: &'static str;
    /// The method, as Markdown. `{cluster}` is replaced with cluster.md.
    const METHOD: &'static str;

    fn tables(&self) -> Vec<Table>;

    /// Counts that are too high. `None` if no count has a limit.
    fn failures(&self) -> Option<Vec<String>>;

    /// Notes about this run only, for its page and for the goals.
    fn caveats(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One size of a bench. A page has the newest run of each size, so that large sizes can run less often.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run<M> {
    /// Such as `1,000 nodes`.
    pub about: String,
    /// The order in the page.
    pub size: usize,
    pub command: String,
    pub machine: Machine,
    pub versions: Versions,
    pub failures: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    pub measurements: M,
}

pub fn pages() -> PathBuf {
    paths::workspace().join("docs/bench")
}

pub fn results() -> PathBuf {
    paths::workspace().join("tests/bench/results")
}

/// The stored runs of a bench, by size. Empty if there is no file.
pub fn kept<M: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<Run<M>>> {
    let file = folder.join(format!("{name}.jsonl"));
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    parse(&text).with_context(|| format!("{} is not in the format of this program", file.display()))
}

/// The inverse of [`Run::lines`].
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

/// Joins the lines of each paragraph and list item, as in the pages.
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

/// Writes a file, unless it has this text already.
pub fn write_file(file: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    file.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// Prints the tables of some runs, and stores them if `write`. Fails if a count is too high.
pub fn finish<M: Measurements>(runs: &[Run<M>], write: bool) -> Result<()> {
    let mut parts = Vec::new();
    for run in runs {
        parts.push(format!("\n{}", run.about));
        parts.push(run.machine.describe());
        parts.push(format!("{}\n", run.versions.describe()));
        parts.extend(run.measurements.tables().iter().map(Table::plain));
        parts.extend(run.verdict().into_iter().chain(run.remarks()).map(|remark| format!("{remark}\n")));
    }
    print(parts.join("\n"))?;
    if write {
        write_to(runs, &pages(), &results())?;
    }
    match runs.iter().flat_map(|run| &run.failures).map(Vec::len).sum::<usize>() {
        0 => Ok(()),
        1 => bail!("a count is too high, see above"),
        failures => bail!("{failures} counts are too high, see above"),
    }
}

/// Writes the page and the results. Stored runs of other sizes stay.
fn write_to<M: Measurements>(runs: &[Run<M>], pages: &Path, results: &Path) -> Result<()> {
    let old = kept(results, M::NAME)?;
    let old = old.iter().filter(|old| runs.iter().all(|run| run.size != old.size));
    let mut runs: Vec<&Run<M>> = runs.iter().chain(old).collect();
    runs.sort_by_key(|run| run.size);
    let lines = runs.iter().map(|run| run.lines()).collect::<Result<String>>()?;
    write_file(&results.join(format!("{}.jsonl", M::NAME)), &lines)?;
    write_file(&pages.join(format!("{}.md", M::NAME)), &markdown(&runs))
}

fn markdown<M: Measurements>(runs: &[&Run<M>]) -> String {
    let method = unwrapped(M::METHOD).replace("{cluster}", &unwrapped(include_str!("cluster.md")));
    let mut parts = vec![format!("# {}", M::TITLE), method];
    for run in runs {
        parts.push(format!("## {}", run.about));
        parts.push(format!("Written by `{}`. {}", run.command, run.machine.describe()));
        parts.push(run.versions.describe());
        parts.extend(run.verdict().into_iter().chain(run.remarks()));
        parts.extend(run.measurements.tables().iter().map(Table::markdown));
    }
    parts.join("\n\n") + "\n"
}

impl<M: Measurements> Run<M> {
    /// Measures, and records the machine and the versions. `is_built`: built from the checkout.
    pub fn measured(
        about: String,
        size: usize,
        command: String,
        is_built: bool,
        measure: impl FnOnce() -> Result<(M, Versions)>,
    ) -> Result<Self> {
        let machine = Machine::now();
        let (measurements, versions) = measure()?;
        let (failures, caveats) = (measurements.failures(), measurements.caveats());
        let versions = versions.built(is_built)?;
        Ok(Self { about, size, command, machine, versions, failures, caveats, measurements })
    }

    /// One line with everything except the lists of measurements, and one line for each of their items.
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
            _ => format!("Counts that are too high: {}.", failures.join("; ")),
        })
    }

    /// The caveats, and a note if other processes used the machine.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.caveats.clone();
        if self.machine.idle_percent.is_some_and(|idle| idle < SHARED) {
            let shared = "Other processes used the machine: times are not reliable, memory and counts are.";
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
        #[serde(default)]
        hours: Vec<usize>,
    }

    impl Measurements for Rain {
        const NAME: &'static str = "x";
        const TITLE: &'static str = "X";
        const METHOD: &'static str = "By\nlooking.";

        fn tables(&self) -> Vec<Table> {
            vec![Table::new("Times", ["s"])]
        }

        fn failures(&self) -> Option<Vec<String>> {
            Some(if self.hours.len() > 5 { vec!["too wet".to_owned()] } else { Vec::new() })
        }
    }

    fn run(size: usize, hours: usize) -> Run<Rain> {
        let measured = || Ok((Rain { hours: (1..=hours).collect() }, Versions::default()));
        Run::measured(format!("{size} nodes"), size, format!("x --nodes {size}"), false, measured).unwrap()
    }

    #[test]
    fn keeps_the_newest_run_of_each_size() {
        let folder = std::env::temp_dir().join(format!("quintet-report-{}", std::process::id()));
        write_to(&[run(7, 6), run(50, 5)], &folder, &folder).unwrap();
        let text = fs::read_to_string(folder.join("x.md")).unwrap();
        for part in ["# X\n\nBy looking.\n\n## 7 nodes\n", "`x --nodes 7`", "too high: too wet.", "### Times"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        write_to(&[run(7, 0)], &folder, &folder).unwrap();
        let text = fs::read_to_string(folder.join("x.md")).unwrap();
        assert!(!text.contains("too wet") && text.find("## 7 nodes") < text.find("## 50 nodes"), "{text}");
        let lines = fs::read_to_string(folder.join("x.jsonl")).unwrap();
        assert_eq!(lines.lines().nth(3), Some("{\"hours\":2}"), "a measurement is a line: {lines}");
        let kept = kept::<Rain>(&folder, "x").unwrap();
        assert_eq!(kept.iter().map(|run| run.measurements.hours.len()).collect::<Vec<_>>(), [0, 5]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn notes_a_shared_machine() {
        let mut run = run(7, 0);
        let remarks = [None, Some(SHARED), Some(SHARED - 1)].map(|idle| {
            run.machine.idle_percent = idle;
            run.remarks().len()
        });
        assert_eq!(remarks, [0, 0, 1]);
    }

    #[test]
    fn pages_are_made_from_the_results() {
        fn check<M: Measurements>() {
            let runs = kept::<M>(&results(), M::NAME).unwrap();
            let page = fs::read_to_string(pages().join(format!("{}.md", M::NAME))).unwrap();
            let made = markdown(&runs.iter().collect::<Vec<_>>());
            // The method is that of the newest run, and above the first section.
            let sections = |page: &str| page.split_once("\n## ").map(|(_, sections)| sections.to_owned());
            assert!(sections(&made) == sections(&page), "{}.md differs from its results", M::NAME);
        }
        check::<crate::daemonjob::figures::Results>();
        check::<crate::fence::Results>();
        check::<crate::greeting::figures::Results>();
        check::<crate::manager::figures::Results>();
        check::<crate::podset::figures::Results>();
        check::<crate::pulsar::Results>();
        check::<crate::rollout::figures::Results>();
    }
}
