//! The options that the benches of kinds share.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ValueEnum, value_parser};
use quintet_localcluster::build;

use super::host::Versions;
use super::optimised;
use super::report::{self, Measurements, Run};
use super::table::count;

/// The options of every bench that compares contenders in rounds.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Smoke test: measure one round of a small size, and store no result
    #[arg(long, conflicts_with_all = ["rounds", "write"])]
    pub quick: bool,
    /// Measure Quintet without its peers
    #[arg(long)]
    pub without_peers: bool,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Store the result in docs/bench and tests/bench/results, and keep the stored results of other sizes
    #[arg(long)]
    pub write: bool,
}

impl Options {
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.into() }
    }

    /// Measures each size with the selected program, and reports the results.
    pub fn run<M: Measurements>(
        &self,
        sizes: Vec<usize>,
        unit: &str,
        command: &str,
        measure: impl Fn(usize, &Path) -> Result<(M, Versions)>,
    ) -> Result<()> {
        if !self.quick {
            optimised::become_optimised()?;
        }
        let program = program(self.program.as_ref())?;
        let run = |size| {
            let (about, is_built) = (format!("{} {unit}", count(size)), self.program.is_none());
            Run::measured(about, size, command.to_owned(), is_built, || measure(size, &program))
        };
        let runs = sizes.into_iter().map(run).collect::<Result<Vec<_>>>()?;
        report::finish(&runs, self.write)
    }

    /// The given sizes, or `small` in a quick run.
    pub fn sizes(&self, given: &[u16], small: usize) -> Vec<usize> {
        if self.quick { vec![small] } else { given.iter().copied().map(usize::from).collect() }
    }

    /// The command that repeats this measurement, with the bench's arguments before and after `--rounds`.
    pub fn command(&self, bench: &str, before: &str, after: &str) -> String {
        let rounds = format!("{before} --rounds {} {after}", self.rounds);
        command(
            bench,
            [
                if self.quick { "--quick" } else { &rounds },
                if self.without_peers { "--without-peers" } else { "" },
                if self.program.is_some() { "--program FILE" } else { "" },
                if self.quick { "" } else { "--write" },
            ],
        )
    }
}

/// The command of a bench. Empty words are left out.
pub fn command<'a>(bench: &'a str, words: impl IntoIterator<Item = &'a str>) -> String {
    let words = words.into_iter().flat_map(str::split_whitespace);
    ["cargo", "xtask", "bench", bench].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The program at this path, or the release program of the checkout.
pub fn program(path: Option<&PathBuf>) -> Result<PathBuf> {
    path.map_or_else(build::release, |path| Ok(path.canonicalize()?))
}

/// Repeats an option for each value.
pub fn repeated(option: &str, values: &[impl Display]) -> String {
    let words: Vec<String> = values.iter().map(|value| format!("{option} {value}")).collect();
    words.join(" ")
}

/// The name of an enum value on the command line.
pub fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn the_command_measures_the_same() {
        let given = |words: &[&str]| {
            let options = parsed::<Options>(words).unwrap();
            (options.command("x", &repeated("--size", &[1, 2]), "--more 2"), options.sizes(&[1, 2], 100))
        };
        let written = "cargo xtask bench x --size 1 --size 2 --rounds 7 --more 2 --without-peers --write";
        assert_eq!(given(&["--without-peers"]), (written.to_owned(), vec![1, 2]));
        let quick = "cargo xtask bench x --quick --program FILE";
        assert_eq!(given(&["--quick", "--program", "a"]), (quick.to_owned(), vec![100]));
        assert!(parsed::<Options>(&["--quick", "--rounds", "2"]).is_err());
        assert!(parsed::<Options>(&["--quick", "--write"]).is_err());
    }
}
