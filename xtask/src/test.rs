//! `cargo xtask test`: every check and test in one command, with one line at the end that says how it went and a table
//! that says where the time went.

mod real;

use std::env;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::{Cluster, UpOptions, binaries};
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{build, health, image, interrupt, manager, paths, protoc, pulsar, run, variables};

use crate::chart;

/// `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run every check and test, and say where the time went",
    long_about = "Run every check and test, and say where the time went.\n\n\
    Formatting, lints, generated files, the texts (see `cargo xtask prose --help`), the workspace's tests, the Pulsar programs against real brokers (see `cargo xtask \
    pulsar --help`; skipped where there is no Java or no Maven), the release build (see `cargo xtask build --help`), the \
    images, twice, which must be equal (see `cargo xtask image --help`), the chart, the files of a release, the demo, twice on a local cluster of its own, and the end-to-end tests on another. Both clusters are removed \
    at the end. Then the end-to-end tests on real nodes (see `cargo xtask cluster up --help`; skipped where there can be none). A failure does not keep the other parts from being run. The last line sums everything up: \"N passed, N \
    failed, N skipped\"; the exit code is 1 if anything failed."
)]
pub struct Args {
    /// Leave out what takes long or needs Go or Java: brokers, the release build, the chart, the demo and the end-to-end tests
    #[arg(long)]
    fast: bool,
    /// Run only the end-to-end tests whose names contain FILTER, on a cluster of their own; nothing else is counted
    #[arg(long, value_name = "FILTER", conflicts_with = "fast")]
    e2e: Option<String>,
    /// Run only the end-to-end tests on nodes of that kind; nothing else is counted
    #[arg(long, value_enum, conflicts_with = "fast")]
    nodes: Option<Nodes>,
    /// Run only the tests of the Pulsar programs whose names contain FILTER, with brokers of their own; nothing else is
    /// counted
    #[arg(long, value_name = "FILTER", conflicts_with_all = ["fast", "e2e", "nodes"])]
    pulsar: Option<String>,
}

/// A kind of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Nodes {
    /// They only say what they do
    Simulated,
    /// They run pods
    Real,
}

/// `cargo xtask e2e`.
#[derive(Debug, clap::Args)]
#[command(about = "Run the end-to-end tests alone: cargo xtask test --nodes KIND")]
pub struct EndToEndArgs {
    /// What the nodes are
    #[arg(long, value_enum, default_value_t = Nodes::Simulated)]
    nodes: Nodes,
    /// Only tests whose names contain it
    filter: Option<String>,
}

/// Runs the end-to-end tests alone.
pub fn run_end_to_end(args: EndToEndArgs) -> Result<()> {
    run(&Args { fast: false, e2e: args.filter, nodes: Some(args.nodes), pulsar: None })
}

/// How many tests or checks went how.
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

/// Something failed, and what it was has been said: the line of counts is the last word.
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

/// A part of the test command, as it was run.
struct Part {
    name: &'static str,
    /// What it may take on two cores, cold caches included. It is printed, not enforced.
    budget: Duration,
    took: Duration,
    counts: Counts,
}

#[derive(Default)]
struct Report(Vec<Part>);

impl Report {
    /// Runs a part. A part that fails to run is a failure like any other; only an interruption ends the whole.
    fn part(
        &mut self,
        name: &'static str,
        budget: Duration,
        run: impl FnOnce() -> Result<Counts>,
    ) -> Result<Counts> {
        eprintln!("\n==> {name}");
        let begin = Instant::now();
        let counts = match run() {
            Ok(counts) => counts,
            Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
            Err(error) => {
                eprintln!("error: {error:#}");
                FAILED
            }
        };
        self.0.push(Part { name, budget, took: begin.elapsed(), counts });
        Ok(counts)
    }

    fn skip(&mut self, name: &'static str, budget: Duration, why: &str) {
        eprintln!("\n==> {name}: skipped, {why}");
        self.0.push(Part { name, budget, took: Duration::ZERO, counts: SKIPPED });
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for part in &self.0 {
            total += part.counts;
        }
        total
    }

    fn table(&self) -> String {
        let mut lines = vec![format!("{:<24} {:>9} {:>9}  RESULT", "PART", "TOOK", "BUDGET")];
        let columns = |took: Duration, budget: Duration| {
            (format!("{:.1} s", took.as_secs_f64()), format!("{} min", budget.as_secs() / 60))
        };
        for Part { name, budget, took, counts } in &self.0 {
            let (took, budget) = columns(*took, *budget);
            lines.push(format!("{name:<24} {took:>9} {budget:>9}  {counts}"));
        }
        let (took, budget) =
            columns(self.0.iter().map(|part| part.took).sum(), self.0.iter().map(|part| part.budget).sum());
        lines.push(format!("{:<24} {took:>9} {budget:>9}", "all"));
        lines.join("\n")
    }
}

/// What a run may put on the disk, when nothing is compiled yet: bytes.
const DISK: u64 = 30 << 30;

/// Says so where the disk is too small for a run: what then fails, fails for reasons that say something else.
fn look_at_disk() {
    for folder in [Some(paths::workspace().to_owned()), paths::cache().ok()].into_iter().flatten() {
        let folder = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        let Ok(disk) = rustix::fs::statvfs(folder) else { continue };
        let free = disk.f_bavail * disk.f_frsize;
        if free < DISK {
            eprintln!(
                "warning: {} GB are free below {}, and a run from cold caches needs {} GB: what fails below may fail for that",
                free >> 30,
                folder.display(),
                DISK >> 30
            );
        }
    }
}

/// Runs everything, or the end-to-end tests that were asked for.
pub fn run(args: &Args) -> Result<()> {
    let mut report = Report::default();
    look_at_disk();
    let filter = args.e2e.as_deref();
    let everything_asked = filter.is_none() && args.pulsar.is_none() && args.nodes.is_none();
    match (args.nodes, filter, &args.pulsar) {
        (Some(Nodes::Real), ..) => real::tests(&mut report, filter)?,
        (Some(Nodes::Simulated), ..) | (None, Some(_), _) => some_end_to_end(&mut report, filter)?,
        (None, None, Some(filter)) => pulsar_programs(&mut report, Some(filter))?,
        (None, None, None) => everything(&mut report, args.fast)?,
    }
    println!("\n{}\n", report.table());
    if everything_asked {
        println!("Long tier, not run: {LONG_TIER}.");
    }
    let total = report.total();
    println!("{total}");
    if total.failed > 0 { Err(Failed.into()) } else { Ok(()) }
}

/// What takes too long for every run and is run by hand.
const LONG_TIER: &str = "the benches (cargo xtask bench --help), half an hour each, of which three are run in small, without kopf and \
                         OpenKruise; all plans of the faults (cargo xtask faults, of which a part is among the workspace's tests), their mutants (cargo xtask faults --mutants) and the long exhaustive search (cargo xtask faults --exhaustive), a quarter of an hour each";

/// The package of the programs for Pulsar.
const PULSAR_CLIENT: &str = "quintet-pulsar-client";

/// The parts that --fast leaves out, with their budgets.
const PULSAR_PROGRAMS: (&str, Duration) = ("Pulsar programs", Duration::from_mins(3));
const RELEASE_BUILD: (&str, Duration) = ("release build", Duration::from_mins(9));
const IMAGES: (&str, Duration) = ("images", Duration::from_mins(1));
const CONTROL_PLANE: (&str, Duration) = ("control plane, built", Duration::from_mins(12));
const CHART: (&str, Duration) = ("chart", Duration::from_mins(1));
const RELEASE: (&str, Duration) = ("release files", Duration::from_mins(1));
const DEMO: (&str, Duration) = ("demo", Duration::from_mins(4));
const BENCHES: (&str, Duration) = ("benches, in small", Duration::from_mins(8));
const CLUSTER: (&str, Duration) = ("cluster with Quintet", Duration::from_mins(2));
const END_TO_END: (&str, Duration) = ("end-to-end tests", Duration::from_mins(22));

fn everything(report: &mut Report, fast: bool) -> Result<()> {
    let minutes = Duration::from_mins;
    report.part("formatting", minutes(1), || check(cargo().args(["fmt", "--all", "--check"])))?;
    // Without a protoc the programs for Pulsar cannot be built.
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
    let tests = ["test", "--workspace", "--exclude", "quintet-e2e", "--no-fail-fast"];
    report.part("workspace tests", minutes(8), || {
        let mut counts = cargo_test(cargo().args(tests).args(["--exclude", PULSAR_CLIENT]))?;
        if without.is_empty() {
            // Its other tests want a broker: see below.
            let programs = ["test", "--package", PULSAR_CLIENT, "--lib", "--bins", "--no-fail-fast"];
            counts += cargo_test(cargo().args(programs))?;
        }
        Ok(counts)
    })?;
    report.part("exhaustive search", minutes(4), || {
        check(cargo().args(["run", "--quiet", "--package", "quintet-model"]))
    })?;
    if fast {
        for (name, budget) in
            [PULSAR_PROGRAMS, RELEASE_BUILD, IMAGES, CONTROL_PLANE, CHART, RELEASE, DEMO, BENCHES, CLUSTER]
                .into_iter()
                .chain([END_TO_END, real::PROGRAMS, real::TESTS])
        {
            report.skip(name, budget, "as --fast was given");
        }
        return Ok(());
    }
    pulsar_programs(report, None)?;
    report.part(RELEASE_BUILD.0, RELEASE_BUILD.1, || check(xtask()?.arg("build")))?;
    images(report)?;
    if !control_plane(report)? {
        let rest = [CHART, RELEASE, DEMO, BENCHES, CLUSTER, END_TO_END, real::PROGRAMS, real::TESTS];
        for (name, budget) in rest {
            report.skip(name, budget, "as the control plane could not be built");
        }
        return Ok(());
    }
    report.part(CHART.0, CHART.1, || chart::counts(None))?;
    if let Some(missing) = image::missing(&[])? {
        report.skip(RELEASE.0, RELEASE.1, &missing);
    } else {
        report.part(RELEASE.0, RELEASE.1, || {
            let folder = env::temp_dir().join(format!("quintet-release-{}", std::process::id()));
            let counts = check(xtask()?.args(["release", "--dry-run", "--output"]).arg(&folder));
            let _ = fs::remove_dir_all(&folder);
            counts
        })?;
    }
    // What a newcomer runs first, on a cluster of its own; twice, since it may be run again on what is up.
    let shown = Temporary::new("demo");
    report.part(DEMO.0, DEMO.1, || {
        let mut counts = check(xtask()?.args(["demo", "--nodes", "3", "--name", &shown.name()]))?;
        counts += check(xtask()?.args(["demo", "--nodes", "3", "--name", &shown.name()]))?;
        counts += check(xtask()?.args(["demo", "--stop", "--name", &shown.name()]))?;
        Ok(counts)
    })?;
    drop(shown);
    // What they find is nobody's; that their counts keep the limits, and that they work, is.
    report.part(BENCHES.0, BENCHES.1, || {
        let mut counts = check(xtask()?.args(["bench", "daemonjob", "--quick", "--without-peers"]))?;
        counts += check(xtask()?.args(["bench", "podset", "--quick"]))?;
        let measures = ["--only=size", "--only=requests", "--only=start", "--only=latency", "--only=restart"];
        counts += check(xtask()?.args(["bench", "manager", "--quick"]).args(measures))?;
        counts += check(xtask()?.args(["bench", "goals"]))?;
        Ok(counts)
    })?;
    end_to_end(report, None)?;
    real::tests(report, None)
}

/// Each image is built twice: both must be equal, byte for byte, and hold up when they are read back.
fn images(report: &mut Report) -> Result<()> {
    let (name, budget) = IMAGES;
    if let Some(missing) = image::missing(&[])? {
        report.skip(name, budget, &missing);
        return Ok(());
    }
    report.part(name, budget, || {
        let folder = env::temp_dir().join(format!("quintet-images-{}", std::process::id()));
        let counts = image::build(&[], &folder.join("once")).and_then(|once| {
            let again = image::build(&[], &folder.join("again"))?;
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
        });
        let _ = fs::remove_dir_all(&folder);
        counts
    })?;
    Ok(())
}

/// The Pulsar programs against brokers of their own, where something here can run a broker: all tests, or those whose names
/// contain `filter`.
fn pulsar_programs(report: &mut Report, filter: Option<&str>) -> Result<()> {
    let (name, budget) = PULSAR_PROGRAMS;
    if protoc::find().is_none() {
        report.skip(name, budget, &format!("as they cannot be built: {}", protoc::MISSING));
    } else if let Some(missing) = pulsar::missing() {
        report.skip(name, budget, &format!("as no broker can be run. {missing}"));
    } else {
        report.part(name, budget, || {
            pulsar::distribution::ensure()?;
            let brokers = Temporary::new("brokers");
            let tests = ["test", "--package", PULSAR_CLIENT, "--test", "broker", "--no-fail-fast"];
            let counts = cargo_test(
                cargo()
                    .args(tests)
                    .args(["--", "--include-ignored"])
                    .args(filter)
                    .env(variables::BROKERS, brokers.name()),
            )?;
            match filter {
                Some(filter) if counts == Counts::default() => {
                    bail!("no test of the programs has {filter:?} in its name")
                }
                _ => Ok(counts),
            }
        })?;
    }
    Ok(())
}

/// The end-to-end tests whose names contain `filter`, and what they need.
fn some_end_to_end(report: &mut Report, filter: Option<&str>) -> Result<()> {
    if control_plane(report)? {
        return end_to_end(report, filter);
    }
    for (name, budget) in [CLUSTER, END_TO_END] {
        report.skip(name, budget, "as the control plane could not be built");
    }
    Ok(())
}

/// Builds the programs of a cluster, of the chart's tests and of `tests/health`. Returns whether that worked.
fn control_plane(report: &mut Report) -> Result<bool> {
    let counts = report.part(CONTROL_PLANE.0, CONTROL_PLANE.1, || {
        binaries::ensure(&binaries::ALL)?;
        binaries::ensure(&binaries::CHART)?;
        health::program()?;
        Ok(PASSED)
    })?;
    Ok(counts.failed == 0)
}

/// Brings a cluster with the chart up and runs the end-to-end tests on it: all, or those whose names contain `filter`.
fn end_to_end(report: &mut Report, filter: Option<&str>) -> Result<()> {
    let cluster = Temporary::new("test");
    let mut program = None;
    let counts = report.part(CLUSTER.0, CLUSTER.1, || {
        program = Some(manager::build()?);
        let (cluster, _) = Cluster::up(&UpOptions { name: cluster.name(), nodes: None })?;
        quintet_localcluster::chart::install(cluster.kube())?;
        Ok(PASSED)
    })?;
    let Some(program) = program.filter(|_| counts.failed == 0) else {
        report.skip(END_TO_END.0, END_TO_END.1, "as there is no cluster to run them on");
        return Ok(());
    };
    report.part(END_TO_END.0, END_TO_END.1, || {
        let mut tests = cargo();
        tests
            .args(["test", "--package", "quintet-e2e", "--no-fail-fast", "--"])
            .args(filter)
            .env(variables::CLUSTER, cluster.name())
            .env(variables::PROGRAM, program);
        // Tests that need a broker are ignored where there can be none, and counted as skipped.
        let missing = pulsar::missing().or_else(|| protoc::find().is_none().then(|| protoc::MISSING.to_owned()));
        if let Some(missing) = missing {
            eprintln!("tests with a broker are skipped: {missing}");
        } else {
            let programs = build::pulsar_programs()?.unwrap_or_default();
            let folder = programs.first().and_then(|program| program.parent());
            tests.arg("--include-ignored").env(variables::PULSAR_PROGRAMS, folder.unwrap_or(Path::new("")));
        }
        let counts = cargo_test(&mut tests)?;
        match filter {
            Some(filter) if counts == Counts::default() => {
                bail!("no end-to-end test has {filter:?} in its name: `cargo test -p quintet-e2e -- --list` lists them")
            }
            _ => Ok(counts),
        }
    })?;
    Ok(())
}

/// Another command of this program.
fn xtask() -> Result<Command> {
    Ok(Command::new(run::this_program()?))
}

fn cargo() -> Command {
    let mut cargo = run::cargo();
    protoc::tell(&mut cargo);
    cargo
}

/// A program that passes or fails as a whole; what it says is shown.
fn check(command: &mut Command) -> Result<Counts> {
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| {
        let program = PathBuf::from(command.get_program());
        format!("cannot run {}", program.display())
    })?;
    Ok(if run::wait(&mut child, || ())?.success() { PASSED } else { FAILED })
}

/// `cargo test`: shown as it goes, and its own counts added up.
fn cargo_test(command: &mut Command) -> Result<Counts> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take();
    let (status, mut counts) = thread::scope(|scope| {
        let counts = scope.spawn(|| {
            let mut counts = Counts::default();
            for line in stdout
                .into_iter()
                .flat_map(|stdout| BufReader::new(stdout).split(b'\n'))
                .map_while(Result::ok)
            {
                let line = String::from_utf8_lossy(&line);
                // Where nobody reads, the counts still count.
                let _ = writeln!(std::io::stdout(), "{line}");
                if let Some(more) = parse_result(&line) {
                    counts += more;
                }
            }
            counts
        });
        (run::wait(&mut child, || ()), counts.join().unwrap_or_default())
    });
    if !status?.success() && counts.failed == 0 {
        // It did not compile, or a test program died: no line tells.
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn the_counts_of_cargo_test_are_read() {
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
    fn the_last_line_says_it_all() {
        let counts = Counts { passed: 7, failed: 0, skipped: 2 };
        assert_eq!(counts.to_string(), "7 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn a_part_that_cannot_run_is_a_failure_and_the_next_one_runs() {
        let (mut report, minute) = (Report::default(), Duration::from_mins(1));
        report.part("a", minute, || bail!("no")).unwrap();
        report.part("b", minute, || Ok(Counts { passed: 3, failed: 0, skipped: 1 })).unwrap();
        report.skip("c", minute, "not today");
        assert_eq!(report.total(), Counts { passed: 3, failed: 1, skipped: 2 });
        let table = report.table();
        assert_eq!(table.lines().count(), 5);
        assert!(table.ends_with("3 min"), "{table}");
    }

    #[test]
    fn a_filter_of_end_to_end_tests_and_fast_exclude_each_other() {
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
    }
}
