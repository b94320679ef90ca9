//! `cargo xtask test --keda`: the end-to-end tests with KEDA, in a network namespace.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::{build, keda, manager, protoc, pulsar, variables};

use super::{PASSED, Report, cargo, cargo_test};

/// The module of the tests, which other runs leave out.
pub(super) const MODULE: &str = "pulsarconsumer_keda::";

const PROGRAMS: (&str, Duration) = ("programs of KEDA", Duration::from_mins(30));
const TESTS: (&str, Duration) = ("KEDA", Duration::from_mins(10));

/// Runs the tests. If something is missing, they fail, because they run only by request.
pub(super) fn tests(report: &mut Report) -> Result<()> {
    // Everything is built here, because the namespace has no access to registries.
    let mut programs = None;
    report.part(PROGRAMS.0, PROGRAMS.1, || {
        binaries::ensure(&binaries::ALL)?;
        binaries::ensure(&binaries::KEDA)?;
        if let Some(missing) = pulsar::missing() {
            bail!("the tests with KEDA need a broker: {missing}");
        }
        pulsar::distribution::ensure()?;
        let pulsar = build::pulsar_programs()?.context(protoc::MISSING)?;
        programs = Some((manager::build()?, pulsar));
        Ok(PASSED)
    })?;
    let Some((manager, pulsar)) = programs else {
        report.skip(TESTS.0, TESTS.1, "the build of its programs failed");
        return Ok(());
    };
    report.part(TESTS.0, TESTS.1, || {
        let folder = pulsar.first().and_then(|program| program.parent()).unwrap_or(Path::new(""));
        let mut tests = cargo();
        tests
            .args(["test", "--package", "quintet-e2e", "--test", "e2e", "--no-fail-fast", "--"])
            // KEDA's ports are those of its manifests.
            .args(["--include-ignored", "--test-threads=1", MODULE])
            .env(variables::PROGRAM, manager)
            .env(variables::PULSAR_PROGRAMS, folder);
        let counts = cargo_test(&mut keda::in_namespace(&tests))?;
        if counts.passed + counts.failed == 0 {
            bail!("no end-to-end test is in the module {MODULE}");
        }
        Ok(counts)
    })?;
    Ok(())
}
