//! `cargo xtask test --sixth-kind`: adds the kind Lamp to a copy of the checkout, and tests the copy.
//!
//! The patch is what a contributor writes. It may change only the existing files that CONTRIBUTING.md lists, so that the cost
//! of a new kind stays known.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quintet_localcluster::progress::Step;
use quintet_localcluster::{paths, run};

use super::{Counts, PASSED, Report, cargo_test, check};
use crate::mutants::{self, cargo};

/// The files that a contributor writes, without generated files and `Cargo.lock`.
const PATCH: &str = "tests/lamp.patch";

/// The most existing files that a new kind changes.
const MOST: usize = 14;

/// The packages with tests that a new kind may break.
const PACKAGES: [&str; 6] =
    ["quintet-lamp", "quintet-kinds", "quintet", "quintet-layout", "quintet-localcluster", "xtask"];

/// Applies the patch to a copy, generates, builds and tests. Stops after the first part that fails.
pub(super) fn tests(report: &mut Report) -> Result<()> {
    let copy = paths::workspace().join("target/sixth-kind");
    // A killed run leaves its copy.
    let _ = fs::remove_dir_all(&copy);
    let mut built = BTreeSet::new();
    let done = parts(report, &copy, &mut built);
    mutants::remove(&copy, &built);
    done
}

fn parts(report: &mut Report, copy: &Path, built: &mut BTreeSet<PathBuf>) -> Result<()> {
    let minutes = Duration::from_mins;
    let xtask = |args: &[&str]| check(cargo(copy).args(["run", "--package", "xtask", "--"]).args(args));
    let mut passes = |name, budget, run: &mut dyn FnMut() -> Result<Counts>| {
        report.part(name, minutes(budget), run).map(|counts| counts.failed == 0)
    };
    let packages = PACKAGES.map(|name| ["--package", name]).concat();
    let _ = passes("files of the patch", 1, &mut || objections().map(|()| PASSED))?
        && passes("patched copy", 1, &mut || patch(copy).map(|()| PASSED))?
        && passes("generated files", 5, &mut || {
            mutants::build(copy, &["build", "--package", "xtask"], built)?;
            let mut counts = xtask(&["generate"])?;
            counts += check(cargo(copy).args(["fmt", "--all", "--check"]))?;
            Ok(counts)
        })?
        && passes("tests", 10, &mut || {
            mutants::build(copy, &[&["test", "--no-run"], &packages[..]].concat(), built)?;
            cargo_test(cargo(copy).args(["test", "--no-fail-fast"]).args(&packages))
        })?
        && passes("chart", 2, &mut || xtask(&["chart", "test"]))?
        && passes("end-to-end tests", 15, &mut || {
            mutants::build(copy, &["test", "--no-run", "--package", "quintet-e2e"], built)?;
            xtask(&["e2e", "lamp"])
        })?;
    Ok(())
}

/// Copies the checkout and applies the patch.
fn patch(copy: &Path) -> Result<()> {
    let workspace = paths::workspace();
    let step = Step::start("applying the patch to a copy");
    mutants::sync(workspace, copy).with_context(|| format!("cannot copy to {}", copy.display()))?;
    let mut git = Command::new("git");
    // Without the ceiling, git takes the paths from the checkout's root.
    git.current_dir(copy).env("GIT_CEILING_DIRECTORIES", workspace.join("target"));
    run::stdout(git.arg("apply").arg(workspace.join(PATCH))).with_context(|| {
        format!("{PATCH} does not apply: run `git apply --3way {PATCH}`, repair the files, and write the diff to it")
    })?;
    step.done();
    Ok(())
}

/// Fails unless the patch changes exactly the files that CONTRIBUTING.md lists.
fn objections() -> Result<()> {
    let read = |path: &str| {
        fs::read_to_string(paths::workspace().join(path)).with_context(|| format!("cannot read {path}"))
    };
    let (patch, contributing) = (read(PATCH)?, read("CONTRIBUTING.md")?);
    let found = compare(&touched(&patch), &listed(&contributing));
    if found.is_empty() { Ok(()) } else { bail!("{}", found.join("\n")) }
}

/// The existing files that a patch changes.
fn touched(patch: &str) -> BTreeSet<&str> {
    patch.lines().filter_map(|line| line.strip_prefix("--- a/")).collect()
}

/// The files in the numbered list of the section "Add a kind".
fn listed(contributing: &str) -> BTreeSet<&str> {
    let section = contributing.split("\n## ").find(|section| section.starts_with("Add a kind\n"));
    let items = section.unwrap_or_default().lines().filter_map(|line| line.split_once(". `"));
    items
        .filter(|(number, _)| number.parse::<u32>().is_ok())
        .filter_map(|(_, item)| Some(item.split_once('`')?.0))
        .collect()
}

/// The differences between the changed and the listed files, one sentence each.
fn compare(touched: &BTreeSet<&str>, listed: &BTreeSet<&str>) -> Vec<String> {
    let unlisted = touched.difference(listed).map(|file| {
        format!("{PATCH} changes {file}, but \"Add a kind\" in CONTRIBUTING.md does not list it")
    });
    let untouched = listed.difference(touched).map(|file| {
        format!("\"Add a kind\" in CONTRIBUTING.md lists {file}, but {PATCH} does not change it")
    });
    let many = (touched.len() > MOST)
        .then(|| format!("{PATCH} changes {} existing files: at most {MOST} are allowed", touched.len()));
    unlisted.chain(untouched).chain(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_changes_the_listed_files() {
        objections().unwrap();
    }

    #[test]
    fn names_files_that_differ() {
        let patch = "--- a/a.md\n+++ b/a.md\n--- /dev/null\n+++ b/new.md\n--- a/b.md\n";
        let text = "# C\n\n## Other\n\n1. `x`\n\n## Add a kind\n\nSee `y`.\n\n1. `a.md`: the `z`.\n2. `c.md`\n\n## Last\n\n1. `x`\n";
        assert_eq!(touched(patch), BTreeSet::from(["a.md", "b.md"]));
        assert_eq!(listed(text), BTreeSet::from(["a.md", "c.md"]));
        let found = compare(&touched(patch), &listed(text));
        assert!(found[0].contains("changes b.md") && found[1].contains("lists c.md"), "{found:?}");
        let many: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        let many = many.iter().map(String::as_str).collect();
        assert_eq!(compare(&many, &many).len(), 1);
    }
}
