//! Runs Vale on the documents and on the prose of the other files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::{paths, run};
use serde::Deserialize;

use crate::Finding;
use crate::text::Text;

/// The prose of a file, as Vale reads it.
#[derive(Debug)]
struct Page {
    /// The path of the source.
    path: String,
    lines: Vec<String>,
    /// The lines of the source; none where the page is the source itself.
    numbers: Option<Vec<usize>>,
}

/// The pages that Vale checks in one run. The folder with the extracted texts goes with this value.
pub struct Vale {
    folder: PathBuf,
    /// By the path that Vale reads.
    pages: BTreeMap<String, Page>,
}

/// A finding in Vale's JSON.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Alert {
    check: String,
    line: usize,
    #[serde(rename = "Match")]
    found: String,
    message: String,
    severity: String,
}

impl Vale {
    /// An empty run.
    pub fn new() -> Result<Self> {
        let count = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("quintet-prose-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, pages: BTreeMap::new() })
    }

    /// Adds a document, which Vale reads itself.
    pub fn document(&mut self, path: &str, source: &str) {
        let lines = source.lines().map(str::to_owned).collect();
        let file = paths::workspace().join(path);
        self.pages.insert(file.display().to_string(), Page { path: path.to_owned(), lines, numbers: None });
    }

    /// Adds the prose of a file.
    pub fn text(&mut self, path: &str, text: Text) -> Result<()> {
        let (text, numbers) = text.finish();
        if text.is_empty() {
            return Ok(());
        }
        let file = self.folder.join(format!("{}.txt", path.replace('/', "%")));
        fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
        let lines = text.lines().map(str::to_owned).collect();
        let page = Page { path: path.to_owned(), lines, numbers: Some(numbers) };
        self.pages.insert(file.display().to_string(), page);
        Ok(())
    }

    /// Runs Vale, and returns its findings in the order of the files.
    pub fn run(&self) -> Result<Vec<Finding>> {
        if self.pages.is_empty() {
            return Ok(Vec::new());
        }
        let program = binaries::ensure(&binaries::PROSE)?.path(binaries::PROSE[0])?;
        let mut command = Command::new(program);
        command.arg("--config").arg(paths::workspace().join("tests/prose/.vale.ini"));
        command.args(["--no-exit", "--no-global", "--output", "JSON"]).args(self.pages.keys());
        let printed = run::stdout(command.current_dir(paths::workspace()))?;
        let alerts: BTreeMap<String, Vec<Alert>> = serde_json::from_str(&printed)
            .with_context(|| format!("Vale printed no findings: {}", printed.trim()))?;
        let mut findings = Vec::new();
        for (file, alerts) in alerts {
            let page =
                self.pages.get(&file).with_context(|| format!("Vale checked {file}, which is unknown"))?;
            findings.extend(alerts.iter().map(|alert| page.finding(alert)));
        }
        findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
        Ok(findings)
    }
}

/// The number of runs of this process, for the names of their folders.
static RUNS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl Drop for Vale {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Page {
    fn finding(&self, alert: &Alert) -> Finding {
        let at = alert.line.saturating_sub(1);
        let line = self.numbers.as_ref().map_or(alert.line, |numbers| numbers.get(at).copied().unwrap_or(1));
        Finding {
            path: self.path.clone(),
            line,
            rule: alert.check.trim_start_matches("Quintet.").to_owned(),
            // The words may be on two lines: those on the first one are marked.
            sentence: self
                .lines
                .get(at)
                .map(|line| around(line, alert.found.lines().next().unwrap_or_default()))
                .unwrap_or_default(),
            word: alert.found.replace('\n', " "),
            message: alert.message.replace('\n', " "),
            is_error: alert.severity == "error",
        }
    }
}

/// The words of a line around a match, which is marked.
fn around(line: &str, found: &str) -> String {
    const SIDE: usize = 40;
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let whole = line
        .match_indices(found)
        .find(|(at, _)| !line[..*at].ends_with(is_part) && !line[at + found.len()..].starts_with(is_part));
    let Some((at, _)) = whole else {
        return line.trim().to_owned();
    };
    let (before, after) = (&line[..at], &line[at + found.len()..]);
    let begin =
        before.char_indices().rev().nth(SIDE).and_then(|(at, _)| before[at..].find(' ').map(|s| at + s));
    let end = after.char_indices().nth(SIDE).and_then(|(at, _)| after[..at].rfind(' '));
    let before = begin.map_or(before.to_owned(), |at| format!("…{}", &before[at..]));
    let after = end.map_or(after.to_owned(), |at| format!("{} …", &after[..at]));
    format!("{}«{found}»{}", before.trim_start(), after.trim_end())
}

/// The path of a file in the checkout, with slashes.
pub fn relative(file: &Path) -> String {
    file.strip_prefix(paths::workspace()).unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_words_around_a_match() {
        assert_eq!(around("A pod runs now.", "runs"), "A pod «runs» now.");
        assert_eq!(around("pod_runs then runs", "runs"), "pod_runs then «runs»");
        let long = format!("{}runs {}", "word ".repeat(20), "word ".repeat(20));
        assert!(around(&long, "runs").len() < 110);
    }
}
