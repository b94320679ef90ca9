//! The commands that take too long for every run, and when each last passed: `tests/long-tier.toml`. A command writes its
//! record when it passes.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

use crate::{paths, run};

/// The file with the records, below the checkout.
const FILE: &str = "tests/long-tier.toml";

/// The comment at the beginning of the file.
const HEAD: &str =
    "# When each command of the long tier last passed. The commands write this file: commit it.\n";

/// A command of the long tier.
#[derive(Clone, Copy, Debug)]
pub struct Long {
    /// The command as a user types it.
    pub command: &'static str,
    /// The checks that no shorter command has.
    pub checks: &'static str,
    /// The time on two cores.
    pub takes: &'static str,
}

/// All commands of the long tier.
pub const COMMANDS: [Long; 11] = [
    Long { command: "cargo xtask bench all --write", checks: "all benches in full", takes: "7 h" },
    Long { command: "cargo xtask faults", checks: "all plans with one fault", takes: "15 min" },
    Long {
        command: "cargo xtask faults --pairs --every 140",
        checks: "100,000 plans with two faults",
        takes: "25 min",
    },
    Long { command: "cargo xtask faults --mutants", checks: "bugs that a test must detect", takes: "15 min" },
    Long {
        command: "cargo xtask faults --exhaustive",
        checks: "the long exhaustive search",
        takes: "70 min",
    },
    Long { command: "cargo xtask test --nodes real", checks: "all tests on real nodes", takes: "40 min" },
    Long { command: "cargo xtask test --sixth-kind", checks: "a sixth kind", takes: "5 min" },
    Long { command: "cargo xtask test --keda", checks: "scaling by KEDA", takes: "5 min" },
    Long { command: "cargo xtask test --long", checks: "restores of etcd, and upgrades", takes: "10 min" },
    Long {
        command: "cargo xtask test --versions oldest",
        checks: "Kubernetes 1.33 and Helm 3",
        takes: "50 min",
    },
    Long { command: "cargo xtask release --dry-run", checks: "the rehearsal of a release", takes: "10 min" },
];

/// The last time that a command passed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Record {
    /// The day in UTC.
    date: String,
    /// The commit, with the suffix `-dirty` if other files than the records differed from it.
    commit: String,
    /// The counts, or `passed`.
    result: String,
    seconds: u64,
}

/// The records by command.
type Records = BTreeMap<String, Record>;

/// Records that the command of this process passed, if the command is one of the long tier. `program` is the beginning of the
/// command, such as `cargo xtask`. A failure to write is a warning, because the command passed.
pub fn passed(program: &str, result: &str, took: Duration) {
    let words: Vec<String> = env::args().skip(1).collect();
    let typed = format!("{program} {}", words.join(" "));
    if let Some(long) = COMMANDS.iter().find(|long| long.command == typed)
        && let Err(error) = write(long, result, took)
    {
        eprintln!("warning: cannot record that `{typed}` passed: {error:#}");
    }
}

/// The commands with the time that each takes and its record, as a table.
pub fn table() -> Result<String> {
    Ok(rows(&parse(&fs::read_to_string(file()).with_context(|| format!("cannot read {FILE}"))?)?))
}

fn file() -> PathBuf {
    paths::workspace().join(FILE)
}

fn write(long: &Long, result: &str, took: Duration) -> Result<()> {
    let mut records = parse(&fs::read_to_string(file()).unwrap_or_default())?;
    let record = Record {
        date: Timestamp::now().strftime("%Y-%m-%d").to_string(),
        commit: commit()?,
        result: result.to_owned(),
        seconds: took.as_secs(),
    };
    records.insert(long.command.to_owned(), record);
    fs::write(file(), print(&records)).with_context(|| format!("cannot write {FILE}"))?;
    eprintln!("recorded in {FILE}: commit it");
    Ok(())
}

/// The commit of the checkout, for a record.
fn commit() -> Result<String> {
    let git = |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace()));
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = git(&["status", "--porcelain"])?;
    Ok(format!("{}{}", commit.trim(), if is_dirty(&changed) { "-dirty" } else { "" }))
}

/// Whether `git status --porcelain` lists other files than the records.
fn is_dirty(status: &str) -> bool {
    status.lines().any(|line| line.get(3..) != Some(FILE))
}

fn parse(text: &str) -> Result<Records> {
    toml::from_str(text).with_context(|| format!("{FILE} is not valid"))
}

fn print(records: &Records) -> String {
    let mut text = HEAD.to_owned();
    for (command, Record { date, commit, result, seconds }) in records {
        // The values are numbers, dates and counts, so they need no escapes.
        let _ = write!(
            text,
            "\n[\"{command}\"]\ndate = \"{date}\"\ncommit = \"{commit}\"\nresult = \"{result}\"\nseconds = {seconds}\n"
        );
    }
    text
}

fn rows(records: &Records) -> String {
    let mut lines = vec![format!("{:<52} {:>6}  {:<39}  LAST PASSED", "COMMAND", "TAKES", "CHECKS")];
    for Long { command, checks, takes } in COMMANDS {
        let last = records.get(command).map_or_else(
            || "not recorded".to_owned(),
            |Record { date, commit, result, seconds }| {
                format!("{date}, commit {commit}, {seconds} s: {result}")
            },
        );
        lines.push(format!("{command:<52} {takes:>6}  {checks:<39}  {last}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            date: "2026-11-27".to_owned(),
            commit: "d6f6678".to_owned(),
            result: "8 passed, 0 failed, 0 skipped".to_owned(),
            seconds: 175,
        }
    }

    #[test]
    fn reads_the_records_that_it_writes() {
        let records = Records::from([
            ("cargo xtask faults".to_owned(), record()),
            ("cargo xtask test --keda".to_owned(), record()),
        ]);
        assert_eq!(parse(&print(&records)).unwrap(), records);
    }

    #[test]
    fn the_file_has_only_commands_of_the_long_tier() {
        let text = fs::read_to_string(file()).unwrap();
        let records = parse(&text).unwrap();
        for command in records.keys() {
            assert!(COMMANDS.iter().any(|long| long.command == command), "{command}");
        }
        assert_eq!(print(&records), text);
    }

    #[test]
    fn shows_the_last_record_of_each_command() {
        let rows = rows(&Records::from([("cargo xtask test --keda".to_owned(), record())]));
        assert_eq!(rows.lines().count(), 1 + COMMANDS.len());
        let line = |command: &str| rows.lines().find(|line| line.starts_with(command)).unwrap().to_owned();
        let last = "2026-11-27, commit d6f6678, 175 s: 8 passed, 0 failed, 0 skipped";
        assert!(line("cargo xtask test --keda").ends_with(last), "{rows}");
        assert!(line("cargo xtask faults --mutants").ends_with("  not recorded"), "{rows}");
    }

    #[test]
    fn a_changed_record_does_not_make_a_commit_dirty() {
        assert!(!is_dirty(""));
        assert!(!is_dirty(" M tests/long-tier.toml\n"));
        assert!(is_dirty(" M tests/long-tier.toml\n?? notes.txt\n"));
    }
}
