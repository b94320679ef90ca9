//! `cargo xtask bench fence`: stops a process while it writes, and counts the writes that arrive after its term.

mod server;
pub mod writer;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::value_parser;
use quintet_localcluster::chance::Chance;
use quintet_localcluster::progress::Step;
use quintet_localcluster::{interrupt, run};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use self::server::{Server, Term};
use super::contest::order;
use super::host::Versions;
use super::optimised;
use super::options::{command, repeated};
use super::report::{self, Measurements, Run};
use super::stats::{self, float, ratio};
use super::table::{NONE, Table, count, significant};

/// The length of a term. It has room for many small writes, and for a few large ones.
const TERM: Duration = Duration::from_millis(6);

/// The attempts are split into this number of rounds, each with new processes.
const ROUNDS: usize = 10;

/// The number of attempts and the size of a write in a smoke test.
const SMALL: (usize, u32) = (100, 1_000);

/// The time limit for the request for a term.
const LIMIT: Duration = Duration::from_secs(20);

/// How often a wait for that request checks the process and Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// Stop a process while it writes, and count the attempts with a write that arrives after the term.
///
/// The process creates pods on a small HTTPS server through the manager's client, in terms of 6 ms. The bench
/// stops the process with SIGSTOP at a random moment of a term, and resumes the process after the end of the
/// term. A write is late if its last byte arrives after that.
///
/// With --program, the bench measures the writing process of another checkout too, in alternating order. To
/// get that program, run `cargo xtask bench fence --attempts 10` there, and copy target/release/quintet-bench.
/// Ten thousand attempts take about two minutes for each program and size.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of attempts with each program
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(10..=1_000_000))]
    attempts: u32,
    /// Size of a write in bytes. Repeat the flag to measure several sizes
    #[arg(long, value_name = "N", default_values_t = [1_000, 300_000], value_parser = value_parser!(u32).range(1_000..=1_000_000))]
    bytes: Vec<u32>,
    /// Smoke test: 100 attempts with small writes, and store no result
    #[arg(long, conflicts_with_all = ["attempts", "bytes", "write"])]
    quick: bool,
    /// Measure the bench program of another checkout too
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The commit of that program, which the table names
    #[arg(long, value_name = "COMMIT", requires = "program")]
    program_commit: Option<String>,
    /// Store the result in docs/bench and tests/bench/results, and keep the stored results of other sizes. Needs
    /// --program-commit
    #[arg(long)]
    write: bool,
}

impl Args {
    fn sizes(&self) -> Vec<u32> {
        if self.quick { vec![SMALL.1] } else { self.bytes.clone() }
    }

    /// The number of rounds, and the attempts in each.
    fn rounds(&self) -> Result<(usize, usize)> {
        if self.quick {
            return Ok((1, SMALL.0));
        }
        Ok((ROUNDS, usize::try_from(self.attempts)?.div_ceil(ROUNDS)))
    }

    /// The command that repeats this measurement.
    fn command(&self) -> String {
        let size = format!("{} --attempts {}", repeated("--bytes", &self.bytes), self.attempts);
        let program = if self.program.is_some() { "--program FILE" } else { "" };
        let commit = self.program_commit.as_ref().map(|commit| format!("--program-commit {commit}"));
        let (size, write) = if self.quick { ("--quick", "") } else { (size.as_str(), "--write") };
        command("fence", [size, program, &commit.unwrap_or_default(), write])
    }
}

/// The writing process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
enum Contender {
    #[strum(to_string = "this checkout")]
    Checkout,
    #[strum(to_string = "--program")]
    Program,
}

/// The attempts of a contender in one round, or in all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    contender: Contender,
    round: usize,
    /// The terms in which the process was stopped.
    attempts: usize,
    /// Those with a late write.
    late: usize,
    /// The writes that arrived before the process was stopped.
    writes: usize,
    /// The time from the beginning of these terms until the process was stopped.
    running_seconds: f64,
}

impl Measured {
    fn empty(contender: Contender, round: usize) -> Self {
        Self { contender, round, attempts: 0, late: 0, writes: 0, running_seconds: 0.0 }
    }

    fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.late += other.late;
        self.writes += other.writes;
        self.running_seconds += other.running_seconds;
    }

    /// The share of attempts with a late write.
    fn share(&self) -> Option<f64> {
        ratio(float(self.late), float(self.attempts))
    }

    /// The part of a write in which a stop makes the write late, in microseconds.
    fn window(&self) -> Option<f64> {
        ratio(self.share()? * self.running_seconds * 1e6, float(self.writes))
    }

    fn cells(&self) -> [String; 5] {
        let percent = |share: f64| format!("{:.2}", 100.0 * share);
        let none = || NONE.to_owned();
        let share = self.share().zip(stats::wilson(self.late, self.attempts));
        let share = share.map(|(share, (low, high))| {
            format!("{} ({} to {})", percent(share), percent(low), percent(high))
        });
        let writes = ratio(float(self.writes), float(self.attempts));
        [
            count(self.attempts),
            count(self.late),
            share.unwrap_or_else(none),
            writes.map_or_else(none, |writes| format!("{writes:.1}")),
            self.window().map_or_else(none, significant),
        ]
    }
}

/// The results with one size of a write.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    bytes: u32,
    /// The commit of the program of `--program`, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program_commit: Option<String>,
    #[serde(default)]
    rounds: Vec<Measured>,
}

impl Measurements for Results {
    const NAME: &'static str = "fence";
    const TITLE: &'static str = "Writes after a term";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let columns =
            ["attempts", "with a late write", "% (95 % interval)", "writes per attempt", "window µs"];
        let mut table = Table::new(title(self.bytes), columns);
        for contender in Contender::VARIANTS {
            let mut all = Measured::empty(*contender, 0);
            for round in self.rounds.iter().filter(|round| round.contender == *contender) {
                all.add(round);
            }
            if all.attempts > 0 {
                table.row(contender.to_string(), all.cells());
            }
        }
        if self.rounds.iter().any(|round| round.contender == Contender::Program) {
            let commit = self.program_commit.as_deref().unwrap_or("unknown");
            table.note(format!("The program of {}: commit {commit}.", Contender::Program));
        }
        vec![table]
    }

    fn failures(&self) -> Option<Vec<String>> {
        None
    }
}

fn title(bytes: u32) -> String {
    format!("Writes of {} bytes", count(bytes))
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(
        !args.write || args.program_commit.is_some(),
        "the stored results compare two programs: add --program and --program-commit, or leave out --write"
    );
    if !args.quick {
        optimised::become_optimised()?;
    }
    let found =
        |file: &PathBuf| file.canonicalize().with_context(|| format!("cannot find {}", file.display()));
    let (this, other) = (run::this_program()?, args.program.as_ref().map(found).transpose()?);
    let mut programs = vec![(Contender::Checkout, this.as_path())];
    programs.extend(other.as_deref().map(|other| (Contender::Program, other)));
    let mut runs = Vec::new();
    for bytes in args.sizes() {
        let measured = || {
            let rounds = measure(bytes, &programs, args.rounds()?)?;
            let program_commit = args.program_commit.clone();
            Ok((Results { bytes, program_commit, rounds }, Versions::of_checkout()))
        };
        runs.push(Run::measured(title(bytes), usize::try_from(bytes)?, args.command(), false, measured)?);
    }
    report::finish(&runs, args.write)
}

fn measure(
    bytes: u32,
    programs: &[(Contender, &Path)],
    (rounds, attempts): (usize, usize),
) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for number in 1..=rounds {
        for (contender, program) in order(programs, number) {
            let label = format!("{} bytes, round {number} of {rounds}: {contender}", count(bytes));
            let mut step = Step::start_long(label);
            let round = Measured::empty(contender, number);
            measured.push(measure_round(round, program, bytes, attempts, || step.tick())?);
            step.done();
        }
    }
    Ok(measured)
}

fn measure_round(
    mut round: Measured,
    program: &Path,
    bytes: u32,
    attempts: usize,
    mut tick: impl FnMut(),
) -> Result<Measured> {
    let server = Server::start(TERM)?;
    let mut writer = Writer::start(program, &server, bytes)?;
    let mut chance = Chance::new(u64::try_from(round.round)?);
    let mut stopped = BTreeSet::new();
    let length = u64::try_from(TERM.as_micros())?;
    while stopped.len() < attempts {
        tick();
        let after = Duration::from_micros(chance.below(length));
        let Some(stop) = writer.stop_in_a_term(&server, after)? else { continue };
        stopped.insert(stop.term);
        round.writes += stop.writes;
        round.running_seconds += stop.after.as_secs_f64();
    }
    // The process requests a term when it has ended its last one.
    writer.next_term(&server)?;
    (round.attempts, round.late) = (stopped.len(), server.late().intersection(&stopped).count());
    Ok(round)
}

/// A process that was stopped in a term and resumed after it.
struct Stop {
    term: u64,
    /// The time from the beginning of the term until the process was stopped.
    after: Duration,
    /// The writes that arrived before.
    writes: usize,
}

/// The writing process. Dropping it kills the process, even while it is stopped.
struct Writer {
    child: Child,
    pid: Pid,
}

impl Writer {
    fn start(program: &Path, server: &Server, bytes: u32) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["fence-writer", "--server", &server.url, "--bytes", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let (pid, stdin) = (Pid::from_child(&child), child.stdin.take());
        let writer = Self { child, pid };
        let mut stdin = stdin.context("the writing process has no stdin")?;
        stdin.write_all(&server.certificate).context("cannot send the certificate to the writing process")?;
        Ok(writer)
    }

    /// Stops the process `after` the beginning of its next term, and resumes it when the term is over. Returns
    /// `None` if the stop came too late.
    fn stop_in_a_term(&mut self, server: &Server, after: Duration) -> Result<Option<Stop>> {
        let term = self.next_term(server)?;
        sleep_until(term.began + after);
        self.stop()?;
        let after = term.began.elapsed();
        sleep_until(term.began + TERM);
        // The server has read all bytes from before the stop, so each further write is late.
        server.settle()?;
        let writes = server.end(term.number);
        kill_process(self.pid, Signal::CONT).context("cannot resume the writing process")?;
        Ok(writes.filter(|_| after < TERM).map(|writes| Stop { term: term.number, after, writes }))
    }

    /// Waits until the server grants a term.
    fn next_term(&mut self, server: &Server) -> Result<Term> {
        let began = Instant::now();
        loop {
            interrupt::check()?;
            if let Ok(term) = server.terms.recv_timeout(LOOK) {
                // The process may have ended this term already, and be in a newer one.
                return Ok(server.terms.try_iter().last().unwrap_or(term));
            }
            if let Some(status) = self.child.try_wait().context("cannot wait for the writing process")? {
                bail!("the writing process has ended ({status})");
            }
            if began.elapsed() >= LIMIT {
                bail!("the writing process requested no term within {} s", LIMIT.as_secs());
            }
        }
    }

    /// Sends SIGSTOP, and waits until all threads of the process are stopped.
    fn stop(&self) -> Result<()> {
        kill_process(self.pid, Signal::STOP).context("cannot stop the writing process")?;
        let waited = waitpid(Some(self.pid), WaitOptions::UNTRACED);
        match waited.context("cannot wait for the writing process")? {
            Some((_, status)) if status.stopped() => Ok(()),
            _ => bail!("the writing process has ended"),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    #[test]
    fn the_command_measures_the_same() {
        let given = |words: &[&str]| {
            let args = parsed::<Args>(words).unwrap();
            (args.command(), args.sizes(), args.rounds().unwrap())
        };
        let written =
            "cargo xtask bench fence --bytes 2000 --attempts 105 --program FILE --program-commit b --write";
        let words = ["--bytes", "2000", "--attempts", "105", "--program", "a", "--program-commit", "b"];
        assert_eq!(given(&words), (written.to_owned(), vec![2_000], (10, 11)));
        let quick = "cargo xtask bench fence --quick";
        assert_eq!(given(&["--quick"]), (quick.to_owned(), vec![1_000], (1, 100)));
        assert!(parsed::<Args>(&["--quick", "--write"]).is_err());
        assert!(parsed::<Args>(&["--program-commit", "b"]).is_err());
    }

    #[test]
    fn stores_only_comparisons_of_two_programs() {
        for words in [&["--write"][..], &["--write", "--program", "a"]] {
            let error = run(&parsed::<Args>(words).unwrap()).unwrap_err();
            assert!(error.to_string().starts_with("the stored results compare two programs"), "{error}");
        }
    }

    #[test]
    fn adds_the_rounds_of_a_contender() {
        let round = |contender, number, late| Measured {
            attempts: 500,
            late,
            writes: 2_000,
            running_seconds: 1.0,
            ..Measured::empty(contender, number)
        };
        let rounds = [(Contender::Checkout, 1, 4), (Contender::Program, 1, 0), (Contender::Checkout, 2, 6)];
        let rounds = rounds.map(|(contender, number, late)| round(contender, number, late));
        let mut results = Results { bytes: 1_000, program_commit: None, rounds: rounds.to_vec() };
        // A percent of the stops hits one of 2,000 writes a second in a window of 5 µs.
        let expected = [
            ["this checkout", "1,000", "10", "1.00 (0.54 to 1.83)", "4.0", "5.0"],
            ["--program", "500", "0", "0.00 (0.00 to 0.76)", "4.0", "0"],
        ];
        assert_eq!(results.tables()[0].rows, expected);
        assert_eq!(results.tables()[0].notes, ["The program of --program: commit unknown."]);
        results.program_commit = Some("0123abc".to_owned());
        assert_eq!(results.tables()[0].notes, ["The program of --program: commit 0123abc."]);
    }
}
