//! Prints the results of a bench and, with `--write`, stores them as JSON lines. Makes the page of a bench from them.

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

/// The width of paragraphs in the pages.
const WIDTH: usize = 100;

/// Other processes use a machine whose processors are less idle than this before the start, in percent.
const SHARED: u64 = 80;

/// The measurements of a run. Each item of its lists is a line of the results.
pub trait Measurements: Serialize + DeserializeOwned {
    const NAME: &'static str;
    /// The heading of the page, and of the bench's section in METHOD.md.
    const TITLE: &'static str;
    /// The section of METHOD.md, as Markdown.
    const METHOD: &'static str;

    fn tables(&self) -> Vec<Table>;

    /// Counts that are too high. `None` if no count has a limit.
    fn failures(&self) -> Option<Vec<String>>;

    /// Notes about this run only, for its page and for the goals.
    fn caveats(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One size of a bench. The newest run of each size is stored, so that large sizes can run less often.
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

/// Wraps paragraphs and list items. Tables, headings, images and fenced blocks keep their lines.
pub fn wrapped(text: &str) -> String {
    let (mut lines, mut paragraph, mut is_fenced) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        let is_kept = is_fence || is_fenced || line.is_empty() || line.starts_with(['|', '#', '!']);
        is_fenced ^= is_fence;
        if is_kept || line.starts_with("- ") {
            lines.extend(filled(&paragraph));
            paragraph.clear();
        }
        if is_kept {
            lines.push(line.to_owned());
        } else {
            paragraph.extend([line, " "]);
        }
    }
    lines.extend(filled(&paragraph));
    lines.join("\n") + "\n"
}

/// The lines of a paragraph or a list item. Code between backticks stays on one line.
fn filled(paragraph: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in paragraph.split_whitespace() {
        match words.last_mut().filter(|last| !last.matches('`').count().is_multiple_of(2)) {
            Some(code) => code.extend([" ", word]),
            None => words.push(word.to_owned()),
        }
    }
    let indent = if words.first().is_some_and(|first| first == "-") { "  " } else { "" };
    let width = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        match lines.last_mut().filter(|line| width(line) + 1 + width(word) <= WIDTH) {
            Some(line) => line.extend([" ", word]),
            None if index == 0 => lines.push(word.clone()),
            None => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

/// The anchor of a heading, as GitHub makes it.
pub fn anchor(heading: &str) -> String {
    let words = heading.to_lowercase().replace(' ', "-");
    words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
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
        store(runs, &results())?;
    }
    match runs.iter().flat_map(|run| &run.failures).map(Vec::len).sum::<usize>() {
        0 => Ok(()),
        1 => bail!("a count is too high, see above"),
        failures => bail!("{failures} counts are too high, see above"),
    }
}

/// Writes the results. Stored runs of other sizes stay.
fn store<M: Measurements>(runs: &[Run<M>], results: &Path) -> Result<()> {
    let old = kept(results, M::NAME)?;
    let old = old.iter().filter(|old| runs.iter().all(|run| run.size != old.size));
    let mut runs: Vec<&Run<M>> = runs.iter().chain(old).collect();
    runs.sort_by_key(|run| run.size);
    let lines = runs.iter().map(|run| run.lines()).collect::<Result<String>>()?;
    write_file(&results.join(format!("{}.jsonl", M::NAME)), &lines)
}

/// The page of a bench: the growth of its figures if there is any, and its stored runs.
pub fn page<M: Measurements>(results: &Path, growth: Option<&str>) -> Result<String> {
    let about = format!(
        "Each section has the newest run of a size or a measure, with its command. [METHOD.md](METHOD.md#{}) explains the \
         measurement, and [README.md](README.md) compares the results with the goals.",
        anchor(M::TITLE)
    );
    let mut parts = vec![format!("# {}", M::TITLE), about];
    parts.extend(growth.map(|growth| format!("## Growth\n\n{growth}")));
    for run in kept::<M>(results, M::NAME)? {
        parts.push(format!("## {}", run.about));
        parts.push(format!("Written by `{}`. {}", run.command, run.machine.describe()));
        parts.push(run.versions.describe());
        parts.extend(run.verdict().into_iter().chain(run.remarks()));
        parts.extend(run.measurements.tables().iter().map(Table::markdown));
    }
    Ok(wrapped(&parts.join("\n\n")))
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
        store(&[run(7, 6), run(50, 5)], &folder).unwrap();
        let text = page::<Rain>(&folder, None).unwrap();
        for part in
            ["# X\n\nEach section", "\n## 7 nodes\n", "`x --nodes 7`", "too high: too wet.", "### Times"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        store(&[run(7, 0)], &folder).unwrap();
        let text = page::<Rain>(&folder, Some("![s](x.svg)")).unwrap();
        assert!(!text.contains("too wet") && text.find("## 7 nodes") < text.find("## 50 nodes"), "{text}");
        assert!(text.contains("\n\n## Growth\n\n![s](x.svg)\n\n## 7 nodes\n"), "{text}");
        let lines = fs::read_to_string(folder.join("x.jsonl")).unwrap();
        assert_eq!(lines.lines().nth(3), Some("{\"hours\":2}"), "a measurement is a line: {lines}");
        let kept = kept::<Rain>(&folder, "x").unwrap();
        assert_eq!(kept.iter().map(|run| run.measurements.hours.len()).collect::<Vec<_>>(), [0, 5]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn wraps_paragraphs_and_items_alone() {
        let long = ["word"; 25].join(" ");
        let table = format!("| {long} |");
        let text = format!("# {long}\n\na\n{long}\n- {long}\n- b\n\n{table}\n\n```text\n{long}\n```\n");
        let wrapped = wrapped(&text);
        let lines: Vec<&str> = wrapped.lines().collect();
        let kept = [format!("# {long}"), table, long.clone()];
        assert!(kept.iter().all(|line| lines.contains(&line.as_str())), "{wrapped}");
        let filled: Vec<&&str> = lines.iter().filter(|line| !kept.contains(&(**line).to_owned())).collect();
        assert!(filled.iter().all(|line| line.len() <= WIDTH), "{wrapped}");
        assert!(lines[2].starts_with("a word") && lines[4].starts_with("- word"), "{wrapped}");
        assert!(lines[5].starts_with("  word") && lines[6] == "- b", "{wrapped}");
        let code = format!("{} `a b c`", "w".repeat(WIDTH - 4));
        assert_eq!(super::filled(&code)[1..], ["`a b c`"]);
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
}
