//! `cargo xtask faults --mutants`: breaks the program in one way at a time. Each time, a plan or a test must fail; otherwise a
//! sweep without violations would prove nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use quintet_localcluster::progress::Step;
use quintet_localcluster::{paths, protoc, run};
use serde_json::Value;

use crate::test;

mod daemonjob;
mod others;

/// One way to break the program.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Replacements. Each text occurs once in the file.
    edits: &'static [(&'static str, &'static str)],
    /// The plans and tests that must fail, all of them.
    catchers: &'static [Catcher],
}

/// A plan or test that must fail.
#[derive(Clone, Copy, Debug)]
enum Catcher {
    /// Plans of `cargo xtask faults`: the scenario, and a part of the plans' names.
    Plans(&'static str, &'static str),
    /// Tests of a package: the package, and a part of their names. They pass in the unbroken program.
    Tests(&'static str, &'static str),
    /// The exhaustive search.
    Search,
}

fn mutants() -> impl Iterator<Item = &'static Mutant> {
    daemonjob::MUTANTS.iter().chain(others::MUTANTS)
}

/// The folder of the broken copy.
fn copy_of(workspace: &Path) -> std::path::PathBuf {
    workspace.join("target/mutants")
}

/// Breaks the program in each way whose name contains `filter`, and prints the plan or test that detected it.
pub fn run(filter: Option<&str>) -> Result<()> {
    let workspace = paths::workspace();
    let copy = copy_of(workspace);
    fs::create_dir_all(&copy).with_context(|| format!("cannot create {}", copy.display()))?;
    let mut built = BTreeSet::new();
    let done = try_all(workspace, &copy, filter.unwrap_or_default(), &mut built);
    remove(&copy, &built);
    done
}

/// Removes a copy and its programs.
pub(crate) fn remove(copy: &Path, built: &BTreeSet<PathBuf>) {
    for file in built {
        let _ = fs::remove_file(file);
    }
    let _ = fs::remove_dir_all(copy);
}

fn try_all(workspace: &Path, copy: &Path, filter: &str, built: &mut BTreeSet<PathBuf>) -> Result<()> {
    let mut caught = 0;
    let mut table = Vec::new();
    let tried: Vec<&Mutant> = mutants().filter(|mutant| mutant.name.contains(filter)).collect();
    for mutant in &tried {
        let step = Step::start_long(format!("mutant: {}", mutant.name));
        let noticed = try_one(workspace, copy, mutant, built)?;
        step.done();
        for noticed in &noticed {
            let line = format!("{:<52} {}", mutant.name, noticed.as_deref().unwrap_or("NOT DETECTED"));
            println!("{line}");
            table.push(line);
        }
        caught += usize::from(noticed.iter().all(Option::is_some));
    }
    println!("\n{}\n{caught} of {} mutants detected", table.join("\n"), tried.len());
    if caught == tried.len() { Ok(()) } else { Err(test::Failed.into()) }
}

/// The first failure of each catcher. Adds the build's files of the copy to `built`.
fn try_one(
    workspace: &Path,
    copy: &Path,
    mutant: &Mutant,
    built: &mut BTreeSet<PathBuf>,
) -> Result<Vec<Option<String>>> {
    for part in ["Cargo.toml", "Cargo.lock", "crates", "tests", "xtask"] {
        sync(&workspace.join(part), &copy.join(part))
            .with_context(|| format!("cannot copy {part} to {}", copy.display()))?;
    }
    let file = copy.join(mutant.file);
    let mut text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    for (from, to) in mutant.edits {
        if text.matches(from).count() != 1 {
            bail!(
                "the mutant {:?} does not match {}: update its text in xtask/src/mutants",
                mutant.name,
                mutant.file
            );
        }
        text = text.replace(from, to);
    }
    fs::write(&file, text)?;
    mutant.catchers.iter().map(|catcher| notices(copy, mutant.name, *catcher, built)).collect()
}

fn notices(
    copy: &Path,
    name: &str,
    catcher: Catcher,
    built: &mut BTreeSet<PathBuf>,
) -> Result<Option<String>> {
    let mut build = |what: &[&str]| build(copy, what, built).with_context(|| format!("{name:?}"));
    let first = |programs: Vec<PathBuf>| programs.into_iter().next().context("cargo reports no program");
    match catcher {
        Catcher::Plans(scenario, fault) => {
            let programs = build(&["test", "--package", "quintet-faults", "--test", "faults", "--no-run"])?;
            plan_that_notices(copy, &first(programs)?, name, (scenario, fault))
        }
        Catcher::Tests(package, filter) => {
            let programs = build(&["test", "--package", package, "--no-run"])?;
            test_that_notices(copy, &programs, (package, filter))
        }
        Catcher::Search => {
            let program = first(build(&["build", "--profile", "faults", "--package", "quintet-model"])?)?;
            let output = run::output(&mut Command::new(program), None)?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let broken = said.lines().find_map(|line| line.split_once(" broken: "));
            Ok(broken.map(|(_, why)| format!("the exhaustive search: {why}")))
        }
    }
}

/// Cargo in the copy.
pub(crate) fn cargo(copy: &Path) -> Command {
    let mut cargo = run::cargo();
    // Share the dependencies with the workspace, and keep no incremental state of the copy.
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", paths::target()).env("CARGO_INCREMENTAL", "0");
    protoc::tell(&mut cargo);
    cargo
}

/// Builds a part of the copy and returns its programs. Adds the build's files of the copy to `built`.
pub(crate) fn build(copy: &Path, what: &[&str], built: &mut BTreeSet<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut cargo = cargo(copy);
    cargo.args(what).args(["--quiet", "--message-format", "json"]);
    let mut programs = Vec::new();
    for line in run::stdout(&mut cargo)?.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let is_ours = message["manifest_path"].as_str().is_some_and(|path| Path::new(path).starts_with(copy));
        if message["reason"] != "compiler-artifact" || !is_ours {
            continue;
        }
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        built.extend(files.map(PathBuf::from));
        programs.extend(message["executable"].as_str().map(PathBuf::from));
    }
    Ok(programs)
}

fn plan_that_notices(
    copy: &Path,
    program: &Path,
    name: &str,
    (scenario, fault): (&str, &str),
) -> Result<Option<String>> {
    let mut faults = Command::new(program);
    faults.env("CARGO_MANIFEST_DIR", copy);
    faults.args([scenario, "--stop-after", "1", "--fault", fault, "--every", "1"]);
    let output = run::output(&mut faults, None)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !said.contains(" violations") {
        bail!("cannot run {name:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    // The output indents a violation below the name of its plan.
    let lines: Vec<&str> = said.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("    ")).filter(|at| *at > 0);
    Ok(at.map(|at| format!("{}: {}", lines[at - 1], lines[at].trim())))
}

/// The first test that fails.
fn test_that_notices(
    copy: &Path,
    programs: &[PathBuf],
    (package, filter): (&str, &str),
) -> Result<Option<String>> {
    let mut count = 0;
    let name = package.trim_start_matches("quintet-");
    for program in programs {
        let mut tests = Command::new(program);
        tests.arg(filter).env("CARGO_MANIFEST_DIR", copy.join("crates").join(name));
        let output = run::output(&mut tests, None)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        if let Some(failed) = failed {
            return Ok(Some(format!("{package}: {failed}")));
        }
        count += said.lines().filter(|line| line.starts_with("test ") && line.contains(" ... ")).count();
    }
    if count == 0 {
        bail!("no test of {package} has a name that contains {filter:?}");
    }
    Ok(None)
}

/// Copies changed files. Deleted files may stay: no build uses them.
pub(crate) fn sync(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if name != "target" && name != "node_modules" && name != ".git" {
                sync(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    let new = fs::read(from)?;
    if fs::read(to).ok().as_ref() != Some(&new) {
        fs::write(to, new)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_matches_the_source() {
        for mutant in mutants() {
            let text = fs::read_to_string(paths::workspace().join(mutant.file)).unwrap();
            for (from, _) in mutant.edits {
                assert_eq!(text.matches(from).count(), 1, "{}", mutant.name);
            }
        }
    }
}
