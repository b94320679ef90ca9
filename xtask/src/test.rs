//! `cargo xtask test`: runs every check and test, and prints a table of times and a line of totals.

mod disk;
mod end_to_end;
mod keda;
mod matrix;
mod real;
mod report;
mod sixth_kind;

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::cluster::versions::{self, Versions};
use quintet_localcluster::run::Group;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{gitops, health, image, interrupt, long_tier, protoc, pulsar, run, variables};

use crate::chart;
use crate::faults::build;
use crate::scratch::Scratch;
use report::Report;

/// `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run every check and test",
    long_about = "Run every check and test, and print how long each part took.\n\n\
    The first parts need no cluster: formatting, lints, generated files, the texts (see `cargo xtask prose --help`), the \
    workspace's tests, a search of all states of a small DaemonJob, and plans with one or two faults (see `cargo xtask faults \
    --help`). \
    Then the command tests the Pulsar programs with real brokers, which need Java and Maven (see `cargo xtask pulsar \
    --help`). The command builds the release programs (see `cargo xtask build --help`). The command builds the images twice \
    and compares them (see `cargo xtask image --help`). The command tests the chart, and builds the files of a release. The \
    last parts use temporary clusters: two runs of the demo, short benches, and the end-to-end tests on simulated and on real \
    nodes (see `cargo xtask cluster up --help`).\n\n\
    The command skips parts that this machine does not support, and continues after a failed part. It ends a part that takes \
    longer than three times its budget, and counts it as failed. The last line is \"N passed, N failed, N skipped\". The exit code \
    is 1 if a part failed."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Args {
    /// Skip the parts that take long or need Go or Java, such as brokers, the release build, the chart, the demo and
    /// the end-to-end tests
    #[arg(long)]
    fast: bool,
    /// Run only end-to-end tests whose names contain FILTER, on a temporary cluster
    #[arg(long, value_name = "FILTER", conflicts_with = "fast")]
    e2e: Option<String>,
    /// Run only the end-to-end tests that take too long for every run, on a temporary cluster
    #[arg(long, conflicts_with_all = ["fast", "e2e", "nodes"])]
    long: bool,
    /// Run only the end-to-end tests on nodes of this kind
    #[arg(long, value_enum, conflicts_with = "fast")]
    nodes: Option<Nodes>,
    /// Run only the tests of the chart and the end-to-end tests, with these versions of Kubernetes and Helm; with --e2e,
    /// only the end-to-end tests whose names contain FILTER
    #[arg(long, value_enum, conflicts_with_all = ["fast", "long", "nodes", "pulsar", "sixth_kind", "keda"])]
    versions: Option<Versions>,
    /// Run only tests of the Pulsar programs whose names contain FILTER, on temporary brokers
    #[arg(long, value_name = "FILTER", conflicts_with_all = ["fast", "e2e", "long", "nodes"])]
    pulsar: Option<String>,
    /// Run only the test that a sixth kind can be added: apply tests/lamp.patch to a copy of the checkout, and test the
    /// copy
    #[arg(long, conflicts_with_all = ["fast", "e2e", "long", "nodes", "pulsar"])]
    sixth_kind: bool,
    /// Run only the end-to-end tests with KEDA, in a network namespace, which needs root on Linux
    #[arg(long, conflicts_with_all = ["fast", "e2e", "long", "nodes", "pulsar", "sixth_kind"])]
    keda: bool,
}

/// A kind of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Nodes {
    /// Nodes that simulate pods
    Simulated,
    /// Nodes that run pods
    Real,
}

/// `cargo xtask e2e`.
#[derive(Debug, clap::Args)]
#[command(about = "Run only the end-to-end tests, as `cargo xtask test --nodes KIND` does")]
pub struct EndToEndArgs {
    /// The kind of nodes
    #[arg(long, value_enum, default_value_t = Nodes::Simulated)]
    nodes: Nodes,
    /// Run only tests whose names contain FILTER
    filter: Option<String>,
}

/// Runs only the end-to-end tests.
pub fn run_end_to_end(args: EndToEndArgs) -> Result<()> {
    run(&Args {
        fast: false,
        e2e: args.filter,
        long: false,
        nodes: Some(args.nodes),
        versions: None,
        pulsar: None,
        sixth_kind: false,
        keda: false,
    })
}

/// The numbers of tests and checks by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// A failure that the command has already printed: `main` must not print it after the line of totals.
#[derive(Debug)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tests failed")
    }
}

impl std::error::Error for Failed {}

pub(crate) const PASSED: Counts = Counts { passed: 1, failed: 0, skipped: 0 };
pub(crate) const FAILED: Counts = Counts { passed: 0, failed: 1, skipped: 0 };
const SKIPPED: Counts = Counts { passed: 0, failed: 0, skipped: 1 };

/// Runs all parts, or the ones that the arguments select.
pub fn run(args: &Args) -> Result<()> {
    let mut report = Report::default();
    disk::warn_if_small();
    let filter = args.e2e.as_deref();
    let mut everything_asked = false;
    if let Some(versions) = args.versions {
        versions::choose(versions);
    }
    match (args.nodes, filter, &args.pulsar) {
        _ if args.versions.is_some() => matrix::tests(&mut report, filter)?,
        (Some(Nodes::Real), ..) => {
            real::tests(&mut report, filter.map_or(real::Selection::All, real::Selection::Filter))?;
        }
        _ if args.long => end_to_end::build_and_test(&mut report, end_to_end::Selection::Long)?,
        (Some(Nodes::Simulated), ..) | (None, Some(_), _) => {
            let selected = filter.map_or(end_to_end::Selection::Short, end_to_end::Selection::Filter);
            end_to_end::build_and_test(&mut report, selected)?;
        }
        (None, None, Some(filter)) => pulsar_programs(&mut report, Some(filter))?,
        (None, None, None) if args.sixth_kind => sixth_kind::tests(&mut report)?,
        (None, None, None) if args.keda => keda::tests(&mut report)?,
        (None, None, None) => {
            everything_asked = true;
            everything(&mut report, args.fast)?;
        }
    }
    println!("\n{}\n", report.table());
    if everything_asked {
        // The results must appear even if the records cannot be read.
        let table = long_tier::table().unwrap_or_else(|error| format!("{error:#}"));
        println!("Not run, because they take too long:\n{table}\n");
    }
    let total = report.total();
    println!("{total}");
    if total.failed > 0 {
        return Err(Failed.into());
    }
    // Without real nodes, every part is skipped.
    if total.passed > 0 {
        long_tier::passed("cargo xtask", &total.to_string(), report.took());
    }
    Ok(())
}

/// The package of the programs for Pulsar.
const PULSAR_CLIENT: &str = "quintet-pulsar-client";

/// The parts that --fast skips, with their budgets.
const PAIRS: (&str, Duration) = ("pairs of faults", Duration::from_mins(7));
const PULSAR_PROGRAMS: (&str, Duration) = ("Pulsar programs", Duration::from_mins(6));
const RELEASE_BUILD: (&str, Duration) = ("release build", Duration::from_mins(9));
const IMAGES: (&str, Duration) = ("images", Duration::from_mins(1));
const CONTROL_PLANE: (&str, Duration) = ("build of control plane", Duration::from_mins(12));
const CHART: (&str, Duration) = ("chart", Duration::from_mins(1));
const RELEASE: (&str, Duration) = ("release files", Duration::from_mins(1));
const DEMO: (&str, Duration) = ("demo", Duration::from_mins(4));
const BENCHES: (&str, Duration) = ("short benches", Duration::from_mins(8));

fn everything(report: &mut Report, fast: bool) -> Result<()> {
    let minutes = Duration::from_mins;
    report.part("formatting", minutes(1), || check(cargo().args(["fmt", "--all", "--check"])))?;
    // The Pulsar programs need protoc.
    let without: &[&str] = if protoc::find().is_some() { &[] } else { &["--exclude", PULSAR_CLIENT] };
    report.part("lints", minutes(5), || {
        let clippy = ["clippy", "--workspace", "--all-targets"];
        check(cargo().args(clippy).args(without).args(["--", "-D", "warnings"]))
    })?;
    report.part("generated files", minutes(1), || check(xtask()?.args(["generate", "--check"])))?;
    if fast && !quintet_prose::is_built() {
        report.skip("prose", minutes(2), "as Vale is not built; `cargo xtask prose` builds it");
    } else {
        report.part("prose", minutes(2), || check(xtask()?.arg("prose")))?;
    }
    let tests = ["test", "--workspace", "--no-fail-fast"];
    let others =
        ["quintet-e2e", build::PLANS, build::SEARCH, PULSAR_CLIENT].map(|package| ["--exclude", package]);
    report.part("workspace tests", minutes(8), || {
        let mut counts = cargo_test(cargo().args(tests).args(others.as_flattened()))?;
        if without.is_empty() {
            // Its other tests need a broker: see `pulsar_programs`.
            let programs = ["test", "--package", PULSAR_CLIENT, "--lib", "--bins", "--no-fail-fast"];
            counts += cargo_test(cargo().args(programs))?;
        }
        Ok(counts)
    })?;
    // The budget includes a build of the dependencies with the profile of the fault plans.
    report.part("exhaustive search", minutes(5), || check(&mut build::search()?))?;
    report.part("single faults", minutes(4), || cargo_test(build::cargo("test").arg("--no-fail-fast")))?;
    if fast {
        for (name, budget) in
            [PAIRS, PULSAR_PROGRAMS, RELEASE_BUILD, IMAGES, CONTROL_PLANE, CHART, RELEASE, DEMO, BENCHES]
                .into_iter()
                .chain([end_to_end::CLUSTER, end_to_end::TESTS, real::PROGRAMS, real::TESTS])
        {
            report.skip(name, budget, "--fast");
        }
        return Ok(());
    }
    // At least 5,000 plans.
    report.part(PAIRS.0, PAIRS.1, || cargo_test(xtask()?.args(["faults", "--pairs", "--every", "5000"])))?;
    pulsar_programs(report, None)?;
    report.part(RELEASE_BUILD.0, RELEASE_BUILD.1, || check(xtask()?.arg("build")))?;
    images(report)?;
    if !control_plane(report)? {
        for (name, budget) in [CHART, RELEASE, DEMO, BENCHES] {
            report.skip(name, budget, end_to_end::NO_CONTROL_PLANE);
        }
        end_to_end::skip(report);
        for (name, budget) in [real::PROGRAMS, real::TESTS] {
            report.skip(name, budget, end_to_end::NO_CONTROL_PLANE);
        }
        return Ok(());
    }
    report.part(CHART.0, CHART.1, || chart::counts(None))?;
    if let Some(missing) = image::missing(&[])? {
        report.skip(RELEASE.0, RELEASE.1, &missing);
    } else {
        report.part(RELEASE.0, RELEASE.1, || {
            let folder = Scratch::new("release-files")?;
            let release = ["release", "--dry-run", "--files-only", "--output"];
            check(xtask()?.args(release).arg(&folder.0))
        })?;
    }
    // Twice, because users may run the demo again on a running cluster.
    let shown = Temporary::new("demo");
    report.part(DEMO.0, DEMO.1, || {
        let mut counts = check(xtask()?.args(["demo", "--nodes", "3", "--name", &shown.name()]))?;
        counts += check(xtask()?.args(["demo", "--nodes", "3", "--name", &shown.name()]))?;
        counts += check(xtask()?.args(["demo", "--stop", "--name", &shown.name()]))?;
        Ok(counts)
    })?;
    drop(shown);
    // Only that the benches work and keep their limits: the times of a shared machine mean nothing.
    report.part(BENCHES.0, BENCHES.1, || {
        let mut counts = check(xtask()?.args(["bench", "daemonjob", "--quick", "--without-peers"]))?;
        counts += check(xtask()?.args(["bench", "podset", "--quick"]))?;
        let measures = ["--only=size", "--only=requests", "--only=start", "--only=restart"];
        counts += check(xtask()?.args(["bench", "manager", "--quick"]).args(measures))?;
        counts += check(xtask()?.args(["bench", "goals"]))?;
        Ok(counts)
    })?;
    end_to_end::tests(report, end_to_end::Selection::Short)?;
    real::tests(report, real::Selection::Short)
}

/// Builds each image twice, verifies both, and compares their bytes.
fn images(report: &mut Report) -> Result<()> {
    let (name, budget) = IMAGES;
    if let Some(missing) = image::missing(&[])? {
        report.skip(name, budget, &missing);
        return Ok(());
    }
    report.part(name, budget, || {
        let folder = Scratch::new("images")?;
        let once = image::build(&[], &folder.0.join("once"))?;
        let again = image::build(&[], &folder.0.join("again"))?;
        let mut counts = Counts::default();
        for (once, again) in once.iter().zip(&again) {
            for checked in [image::check(once), once.must_equal(again)] {
                match checked {
                    Ok(()) => counts += PASSED,
                    Err(error) => {
                        eprintln!("error: {error:#}");
                        counts += FAILED;
                    }
                }
            }
        }
        Ok(counts)
    })?;
    Ok(())
}

/// Runs the tests of the Pulsar programs whose names contain `filter`, on temporary brokers.
fn pulsar_programs(report: &mut Report, filter: Option<&str>) -> Result<()> {
    let (name, budget) = PULSAR_PROGRAMS;
    if protoc::find().is_none() {
        report.skip(name, budget, protoc::MISSING);
    } else if let Some(missing) = pulsar::missing() {
        report.skip(name, budget, &missing);
    } else {
        report.part(name, budget, || {
            pulsar::distribution::ensure()?;
            binaries::ensure(&binaries::ISSUER)?;
            let brokers = Temporary::new("brokers");
            let tests = ["test", "--package", PULSAR_CLIENT, "--test", "broker", "--no-fail-fast"];
            let counts = cargo_test(
                cargo()
                    .args(tests)
                    .args(["--", "--include-ignored"])
                    .arg(threads_of_waiting_tests()?)
                    .args(filter)
                    .env(variables::BROKERS, brokers.name()),
            )?;
            match filter {
                Some(filter) if counts == Counts::default() => {
                    bail!("no test of the Pulsar programs has a name that contains {filter:?}")
                }
                _ => Ok(counts),
            }
        })?;
    }
    Ok(())
}

/// Builds the programs of a cluster, of the chart's tests and of `tests/health`, and downloads the definitions of other tools.
/// Returns whether the build succeeded.
fn control_plane(report: &mut Report) -> Result<bool> {
    let counts = report.part(CONTROL_PLANE.0, CONTROL_PLANE.1, || {
        binaries::ensure(&binaries::ALL)?;
        binaries::ensure(&binaries::CHART)?;
        binaries::ensure(&binaries::ISSUER)?;
        binaries::ensure(&binaries::RESTORE)?;
        health::program()?;
        gitops::definitions()?;
        Ok(PASSED)
    })?;
    Ok(counts.failed == 0)
}

/// A command of this program.
fn xtask() -> Result<Command> {
    Ok(Command::new(run::this_program()?))
}

fn cargo() -> Command {
    let mut cargo = run::cargo();
    protoc::tell(&mut cargo);
    cargo
}

/// The number of threads for tests that wait most of the time: two more than there are cores.
fn threads_of_waiting_tests() -> Result<String> {
    Ok(format!("--test-threads={}", thread::available_parallelism()?.get() + 2))
}

/// Runs a program that passes or fails as a whole, with its output.
fn check(command: &mut Command) -> Result<Counts> {
    let status = Group::spawn(command.stdin(Stdio::null()))?.wait(|| ())?;
    Ok(if status.success() { PASSED } else { FAILED })
}

/// Runs `cargo test`, prints its output, and adds up its counts.
fn cargo_test(command: &mut Command) -> Result<Counts> {
    let mut group = Group::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let stdout = group.take_stdout();
    let (results, printed) = mpsc::channel();
    thread::spawn(move || {
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).split(b'\n'));
        for line in lines.map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            // A closed stdout must not end the count.
            let _ = writeln!(std::io::stdout(), "{line}");
            if let Some(more) = parse_result(&line) {
                let _ = results.send(more);
            }
        }
    });
    let status = group.wait(|| ())?;
    let mut counts = Counts::default();
    // A process that outlives the tests may keep the pipe open.
    loop {
        match printed.recv_timeout(Duration::from_millis(20)) {
            Ok(more) => counts += more,
            Err(RecvTimeoutError::Timeout) => interrupt::check()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if !status.success() && counts.failed == 0 {
        // A failed build or a killed test program prints no counts.
        counts += FAILED;
    }
    Ok(counts)
}

/// Reads `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`.
fn parse_result(line: &str) -> Option<Counts> {
    let (_, counted) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        counted.split(';').find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
    };
    Some(Counts { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

/// A command for tests of this file.
#[cfg(test)]
fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    shell
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn parses_the_counts_of_cargo_test() {
        let line =
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(parse_result(line), Some(Counts { passed: 5, failed: 0, skipped: 1 }));
        let line =
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1s";
        assert_eq!(parse_result(line), Some(Counts { passed: 12, failed: 3, skipped: 0 }));
        assert_eq!(parse_result("running 5 tests"), None);
        assert_eq!(parse_result("test result: "), None);
    }

    #[test]
    fn prints_the_totals() {
        let counts = Counts { passed: 7, failed: 0, skipped: 2 };
        assert_eq!(counts.to_string(), "7 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn adds_up_the_counts_of_all_test_programs() {
        let script = "for i in 1 2; do echo 'test result: ok. 2 passed; 0 failed; 1 ignored'; done";
        assert_eq!(cargo_test(&mut shell(script)).unwrap(), Counts { passed: 4, failed: 0, skipped: 2 });
        assert_eq!(cargo_test(&mut shell("exit 101")).unwrap(), FAILED);
    }

    #[test]
    fn fast_conflicts_with_end_to_end_filters() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let parse = |words: &[&str]| Cli::try_parse_from([&["test"], words].concat()).map(|cli| cli.args);
        assert_eq!(parse(&["--e2e", "podset"]).unwrap().e2e.as_deref(), Some("podset"));
        assert!(parse(&["--fast"]).unwrap().fast);
        assert!(parse(&["--fast", "--e2e", "podset"]).is_err());
        assert!(parse(&["--fast", "--nodes", "real"]).is_err());
        let real = parse(&["--nodes", "real", "--e2e", "uninstall"]).unwrap();
        assert_eq!((real.nodes, real.e2e.as_deref()), (Some(Nodes::Real), Some("uninstall")));
        let oldest = parse(&["--versions", "oldest", "--e2e", "podset"]).unwrap();
        assert_eq!(oldest.versions, Some(Versions::Oldest));
        assert!(parse(&["--versions", "oldest", "--nodes", "real"]).is_err());
    }
}
