//! The end-to-end tests on real nodes, and what they need.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use quintet_localcluster::cluster::{binaries, real};
use quintet_localcluster::run::this_program;
use quintet_localcluster::{build, image, protoc, pulsar, variables};

use super::{Counts, PASSED, Report, cargo, cargo_test};

pub(super) const PROGRAMS: (&str, Duration) = ("programs of real nodes", Duration::from_mins(5));
pub(super) const TESTS: (&str, Duration) = ("real nodes", Duration::from_mins(5));

/// The budget of all tests on real nodes, and of any selection by name.
const ALL: Duration = Duration::from_mins(45);

/// The tests of every run: nodes that die, boot and join, and a manager that takes over.
const SHORT: [&str; 2] = ["nodes::handles", "managers::second"];

/// The tests to run.
#[derive(Clone, Copy)]
pub(super) enum Selection<'a> {
    /// [`SHORT`].
    Short,
    All,
    /// The tests whose names contain this text.
    Filter(&'a str),
}

impl Selection<'_> {
    fn filters(&self) -> &[&str] {
        match self {
            Self::Short => &SHORT,
            Self::All => &[],
            Self::Filter(filter) => std::slice::from_ref(filter),
        }
    }

    fn budget(self) -> Duration {
        match self {
            Self::Short => TESTS.1,
            Self::All | Self::Filter(_) => ALL,
        }
    }
}

/// Runs the selected tests. Skips them with a reason if this machine does not support real nodes.
pub(super) fn tests(report: &mut Report, selection: Selection<'_>) -> Result<()> {
    let missing = match real::missing() {
        Some(missing) => Some(missing),
        None => image::missing(&[])?,
    };
    if let Some(missing) = missing {
        for (name, budget) in [PROGRAMS, TESTS] {
            report.skip(name, budget, &missing);
        }
        return Ok(());
    }
    let counts = report.part(PROGRAMS.0, PROGRAMS.1, || binaries::ensure(&binaries::REAL).map(|_| PASSED))?;
    if counts.failed > 0 {
        report.skip(TESTS.0, TESTS.1, "the build of the programs of real nodes failed");
        return Ok(());
    }
    report.part(TESTS.0, selection.budget(), || {
        let images = env::temp_dir().join(format!("quintet-real-{}", std::process::id()));
        let counts = image::build(&[], &images).and_then(|_| run(&images, selection));
        let _ = fs::remove_dir_all(&images);
        counts
    })?;
    Ok(())
}

fn run(images: &Path, selection: Selection<'_>) -> Result<Counts> {
    let mut tests = cargo();
    tests
        .args(["test", "--package", "quintet-e2e", "--test", "e2e-real", "--no-fail-fast", "--"])
        // One at a time, because the tests print times.
        .args(["--test-threads=1", "--nocapture"])
        .args(selection.filters())
        .env(variables::XTASK, this_program()?)
        .env(variables::IMAGES, images)
        // The program of the images, for `quintet explain` and the other commands.
        .env(variables::PROGRAM, build::release()?);
    if let Some(missing) =
        pulsar::missing().or_else(|| protoc::find().is_none().then(|| protoc::MISSING.to_owned()))
    {
        eprintln!("skipping the test with a broker: {missing}");
    } else {
        pulsar::distribution::ensure()?;
        tests.arg("--include-ignored");
    }
    let counts = cargo_test(&mut tests)?;
    let filters = selection.filters();
    if !filters.is_empty() && counts.passed + counts.failed + counts.skipped < filters.len() as u64 {
        bail!("too few tests on real nodes have names that contain {filters:?}");
    }
    Ok(counts)
}
