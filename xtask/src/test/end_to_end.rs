//! The end-to-end tests on simulated nodes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use quintet_localcluster::cluster::versions;
use quintet_localcluster::cluster::{Cluster, UpOptions};
use quintet_localcluster::run::this_program;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{build, chart, manager, protoc, pulsar, variables};

use super::{
    Counts, PASSED, Report, cargo, cargo_test, control_plane, keda, matrix, threads_of_waiting_tests,
};

pub(super) const CLUSTER: (&str, Duration) = ("cluster with Quintet", Duration::from_mins(2));
pub(super) const TESTS: (&str, Duration) = ("end-to-end tests", Duration::from_mins(25));

/// Names, or the beginnings of names, of the tests that take too long for every run.
const LONG: [&str; 2] = ["manager_restore::", "skew::"];

/// The reason to skip what needs a control plane.
pub(super) const NO_CONTROL_PLANE: &str = "the build of the control plane failed";

/// The tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection<'a> {
    /// All but [`LONG`].
    Short,
    /// [`LONG`].
    Long,
    All,
    /// The tests whose names contain this text.
    Filter(&'a str),
}

impl Selection<'_> {
    /// Whether the test is one of the selected.
    pub(super) fn contains(self, test: &str) -> bool {
        let is_long = || LONG.iter().any(|long| test.starts_with(long));
        match self {
            Self::Short => !is_long(),
            Self::Long => is_long(),
            Self::All => true,
            Self::Filter(filter) => test.contains(filter),
        }
    }

    /// The arguments of the test program.
    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Short => LONG.iter().flat_map(|&test| ["--skip", test]).collect(),
            Self::Long => LONG.to_vec(),
            Self::All => Vec::new(),
            Self::Filter(filter) => vec![*filter],
        }
    }
}

/// Runs the selected tests, after building the control plane.
pub(super) fn build_and_test(report: &mut Report, selection: Selection<'_>) -> Result<()> {
    if control_plane(report)? {
        return tests(report, selection);
    }
    skip(report);
    Ok(())
}

/// Skips the tests, because the build of the control plane failed.
pub(super) fn skip(report: &mut Report) {
    for (name, budget) in [CLUSTER, TESTS] {
        report.skip(name, budget, NO_CONTROL_PLANE);
    }
}

/// Starts a cluster with the chart, and runs the selected tests.
pub(super) fn tests(report: &mut Report, selection: Selection<'_>) -> Result<()> {
    let cluster = Temporary::new("test");
    let mut program = None;
    let counts = report.part(CLUSTER.0, CLUSTER.1, || {
        program = Some(manager::build()?);
        let (cluster, _) = Cluster::up(&UpOptions { name: cluster.name(), ..UpOptions::default() })?;
        chart::install(cluster.kube())?;
        Ok(PASSED)
    })?;
    let Some(program) = program.filter(|_| counts.failed == 0) else {
        report.skip(TESTS.0, TESTS.1, "the cluster failed");
        return Ok(());
    };
    let left_out = matrix::left_out(versions::current(), selection);
    for (test, reason) in &left_out {
        eprintln!("skipping {test}: {reason}");
    }
    report.part(TESTS.0, TESTS.1, || {
        let mut tests = cargo();
        tests
            .args(["test", "--package", "quintet-e2e", "--no-fail-fast", "--", "--skip", keda::MODULE])
            .args(left_out.iter().flat_map(|&(test, _)| ["--skip", test]))
            .args(selection.arguments())
            .arg(threads_of_waiting_tests()?)
            .env(variables::CLUSTER, cluster.name())
            .env(variables::VERSIONS, versions::current().name())
            .env(variables::PROGRAM, program)
            .env(variables::XTASK, this_program()?);
        // Without a broker, the tests that need one stay ignored, and count as skipped.
        let missing = pulsar::missing().or_else(|| protoc::find().is_none().then(|| protoc::MISSING.to_owned()));
        if let Some(missing) = missing {
            eprintln!("skipping the tests with a broker: {missing}");
        } else {
            let programs = build::pulsar_programs()?.unwrap_or_default();
            let folder = programs.first().and_then(|program| program.parent());
            tests.arg("--include-ignored").env(variables::PULSAR_PROGRAMS, folder.unwrap_or(Path::new("")));
        }
        let mut counts = cargo_test(&mut tests)?;
        counts.skipped += left_out.len() as u64;
        if counts == Counts::default() {
            let names = selection.arguments().join(" ");
            bail!("no end-to-end test has a name that contains {names:?}: run `cargo test -p quintet-e2e -- --list` to list them");
        }
        Ok(counts)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use quintet_localcluster::paths;

    use super::*;

    #[test]
    fn the_long_tests_exist() {
        let main = fs::read_to_string(paths::workspace().join("tests/e2e/main.rs")).unwrap();
        for long in LONG {
            let (module, name) = long.split_once("::").unwrap();
            assert!(main.contains(&format!("mod {module};")), "{module}");
            let file = paths::workspace().join(format!("tests/e2e/{module}.rs"));
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(&format!("#[test]\nfn {name}")), "{long}");
        }
    }

    #[test]
    fn each_test_is_short_or_long() {
        let of = |test: &str| {
            [Selection::Short, Selection::Long, Selection::All, Selection::Filter("pod")]
                .map(|selection| selection.contains(test))
        };
        assert_eq!(of("skew::upgrade_and_rollback_run_each_node_once"), [false, true, true, false]);
        assert_eq!(of("podset::runs_the_tutorials_sample"), [true, false, true, true]);
    }
}
