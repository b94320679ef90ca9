//! `cargo xtask test`: every check and test in one command, with one line at the end that says how it went and a table
//! that says where the time went.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::{Cluster, UpOptions, binaries};
use crate::{demo, interrupt, manager, paths, run};

/// The variable that tells the end-to-end tests which cluster is theirs.
pub const CLUSTER_VARIABLE: &str = "QUINTET_E2E_CLUSTER";

/// The variable that tells the end-to-end tests which program to run as the manager.
pub const PROGRAM_VARIABLE: &str = "QUINTET_E2E_PROGRAM";

/// `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run every check and test, and say where the time went",
    long_about = "Run every check and test, and say where the time went.\n\n\
    Formatting, lints, generated files, the workspace's tests, the chart, and the end-to-end tests on a local cluster \
    of their own, which is removed at the end. A failure does not keep the other parts from being run. The last line \
    sums everything up: \"N passed, N failed, N skipped\"; the exit code is 1 if anything failed."
)]
pub struct Args {
    /// Leave out what needs a cluster or Go: the chart and the end-to-end tests
    #[arg(long)]
    fast: bool,
}

/// How many tests or checks went how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
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

const PASSED: Counts = Counts { passed: 1, failed: 0, skipped: 0 };
const FAILED: Counts = Counts { passed: 0, failed: 1, skipped: 0 };
const SKIPPED: Counts = Counts { passed: 0, failed: 0, skipped: 1 };

/// A part of the test command, as it was run.
struct Part {
    name: &'static str,
    /// What it may take on two cores, cold caches included. It is printed, not enforced.
    budget_minutes: u32,
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
        budget_minutes: u32,
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
        self.0.push(Part { name, budget_minutes, took: begin.elapsed(), counts });
        Ok(counts)
    }

    fn skip(&mut self, name: &'static str, budget_minutes: u32, why: &str) {
        eprintln!("\n==> {name}: skipped, {why}");
        self.0.push(Part { name, budget_minutes, took: Duration::ZERO, counts: SKIPPED });
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
        for Part { name, budget_minutes, took, counts } in &self.0 {
            let (took, budget) = (format!("{:.1} s", took.as_secs_f64()), format!("{budget_minutes} min"));
            lines.push(format!("{name:<24} {took:>9} {budget:>9}  {counts}"));
        }
        let took: Duration = self.0.iter().map(|part| part.took).sum();
        let budget: u32 = self.0.iter().map(|part| part.budget_minutes).sum();
        let (took, budget) = (format!("{:.1} s", took.as_secs_f64()), format!("{budget} min"));
        lines.push(format!("{:<24} {took:>9} {budget:>9}", "all"));
        lines.join("\n")
    }
}

/// Runs everything.
pub fn run(args: &Args) -> Result<()> {
    let mut report = Report::default();
    report.part("formatting", 1, || check(cargo().args(["fmt", "--all", "--check"])))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    report.part("lints", 8, || check(cargo().args(clippy)))?;
    let this = env::current_exe().context("cannot find this program")?;
    report.part("generated files", 1, || check(Command::new(&this).args(["generate", "--check"])))?;
    let tests = ["test", "--workspace", "--exclude", "quintet-e2e", "--no-fail-fast"];
    report.part("workspace tests", 10, || cargo_test(cargo().args(tests)))?;
    if args.fast {
        for (name, budget_minutes) in CLUSTER_PARTS {
            report.skip(name, budget_minutes, "as --fast was given");
        }
    } else {
        with_cluster(&mut report)?;
    }
    println!("\n{}\n", report.table());
    let total = report.total();
    println!("{total}");
    if total.failed > 0 { Err(Failed.into()) } else { Ok(()) }
}

/// The parts that need Go's programs, with their budgets in minutes.
const CLUSTER_PARTS: [(&str, u32); 5] = [
    ("control plane, built", 15),
    ("chart", 1),
    ("cluster with Quintet", 3),
    ("end-to-end tests", 15),
    ("demo", 3),
];

fn with_cluster(report: &mut Report) -> Result<()> {
    let [built, chart, up, end_to_end, demo_part] = CLUSTER_PARTS;
    let mut helm = None;
    let counts = report.part(built.0, built.1, || {
        helm = Some(binaries::ensure(&binaries::ALL)?.path("helm")?);
        Ok(PASSED)
    })?;
    let Some(helm) = helm.filter(|_| counts.failed == 0) else {
        for (name, budget_minutes) in [chart, up, end_to_end, demo_part] {
            report.skip(name, budget_minutes, "as the control plane could not be built");
        }
        return Ok(());
    };
    let lint = || {
        check(Command::new(&helm).args(["lint", "--strict"]).arg(paths::workspace().join("charts/quintet")))
    };
    report.part(chart.0, chart.1, lint)?;

    // What a newcomer runs first, on a cluster of its own; twice, since it may be run again on what is up.
    let shown = TestCluster::new("demo");
    let this = env::current_exe().context("cannot find this program")?;
    report.part(demo_part.0, demo_part.1, || {
        let mut counts = check(Command::new(&this).args(["demo", "--name", &shown.name()]))?;
        counts += check(Command::new(&this).args(["demo", "--name", &shown.name()]))?;
        Ok(counts)
    })?;
    drop(shown);

    let cluster = TestCluster::new("test");
    let mut program = None;
    let counts = report.part(up.0, up.1, || {
        program = Some(manager::build()?);
        let (cluster, _) = Cluster::up(&UpOptions { name: cluster.name(), nodes: None })?;
        demo::install(cluster.kube())?;
        Ok(PASSED)
    })?;
    let Some(program) = program.filter(|_| counts.failed == 0) else {
        report.skip(end_to_end.0, end_to_end.1, "as there is no cluster to run them on");
        return Ok(());
    };
    report.part(end_to_end.0, end_to_end.1, || {
        cargo_test(
            cargo()
                .args(["test", "--package", "quintet-e2e", "--no-fail-fast"])
                .env(CLUSTER_VARIABLE, cluster.name())
                .env(PROGRAM_VARIABLE, program),
        )
    })?;
    Ok(())
}

/// A cluster that goes with this value, whatever happens in between.
struct TestCluster(String);

impl TestCluster {
    fn new(purpose: &str) -> Self {
        Self(format!("{purpose}-{}", std::process::id()))
    }

    fn name(&self) -> String {
        self.0.clone()
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // One that was never made cannot be opened.
        let Ok(cluster) = Cluster::open(&self.0) else { return };
        if let Err(error) = cluster.down() {
            eprintln!("cluster {} could not be removed: {error:#}", self.0);
        }
    }
}

fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(paths::workspace());
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
        let mut report = Report::default();
        report.part("a", 1, || anyhow::bail!("no")).unwrap();
        report.part("b", 1, || Ok(Counts { passed: 3, failed: 0, skipped: 1 })).unwrap();
        report.skip("c", 1, "not today");
        assert_eq!(report.total(), Counts { passed: 3, failed: 1, skipped: 2 });
        assert_eq!(report.table().lines().count(), 5);
    }
}
