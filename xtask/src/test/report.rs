//! Runs the parts of the test command with a time limit, and keeps their results.

use std::time::{Duration, Instant};

use anyhow::Result;
use quintet_localcluster::interrupt::{self, Interrupted};
use quintet_localcluster::temporary;

use super::{Counts, FAILED, SKIPPED, disk};

/// A part of the test command, with its result.
struct Part {
    name: &'static str,
    /// The expected maximum on two cores with cold caches. [`limit`] is enforced.
    budget: Duration,
    took: Duration,
    /// The free disk space after the part, in bytes.
    free: Option<u64>,
    counts: Counts,
}

/// The time after which a part is ended, as a multiple of its budget. Tests that all wait in vain must not use the time
/// of the other parts. On a machine at half speed, the build of the control plane took more than twice its budget.
const LIMIT: u32 = 3;

/// The shortest limit, because a busy machine can delay a part of seconds by minutes.
const SHORTEST_LIMIT: Duration = Duration::from_mins(10);

/// The time that all parts may take. A build server may end a run after 90 minutes, and then shows no table. The build of
/// xtask took 210 s on a slow machine.
const TOTAL_LIMIT: Duration = Duration::from_mins(85);

/// The time after which a part with this budget is ended, if the parts before it took `before`.
fn limit(budget: Duration, before: Duration) -> Duration {
    (budget * LIMIT).max(SHORTEST_LIMIT).min(TOTAL_LIMIT.saturating_sub(before))
}

/// The parts so far.
#[derive(Default)]
pub(super) struct Report(Vec<Part>);

impl Report {
    /// Runs a part until its [`limit`]. An error counts as a failed test, except Ctrl-C, which ends the command.
    pub(super) fn part(
        &mut self,
        name: &'static str,
        budget: Duration,
        run: impl FnOnce() -> Result<Counts>,
    ) -> Result<Counts> {
        self.part_within(limit(budget, self.took()), name, budget, run)
    }

    fn part_within(
        &mut self,
        limit: Duration,
        name: &'static str,
        budget: Duration,
        run: impl FnOnce() -> Result<Counts>,
    ) -> Result<Counts> {
        eprintln!("\n==> {name}");
        let begin = Instant::now();
        let run = || if limit.is_zero() { Err(Interrupted::TooLate.into()) } else { run() };
        let counts = match interrupt::within(limit, run) {
            Ok(counts) => counts,
            Err(error) => {
                match error.downcast_ref::<Interrupted>() {
                    Some(Interrupted::ByUser) => return Err(error),
                    Some(Interrupted::TooLate) => {
                        eprintln!("error: {}", ended(name, limit));
                        // Tests that were ended could not remove their clusters.
                        temporary::remove_remains();
                    }
                    None => eprintln!("error: {error:#}"),
                }
                FAILED
            }
        };
        self.0.push(Part { name, budget, took: begin.elapsed(), free: disk::free(), counts });
        Ok(counts)
    }

    pub(super) fn skip(&mut self, name: &'static str, budget: Duration, why: &str) {
        eprintln!("\n==> {name}: skipped, {why}");
        self.0.push(Part { name, budget, took: Duration::ZERO, free: None, counts: SKIPPED });
    }

    /// The time that all parts took.
    pub(super) fn took(&self) -> Duration {
        self.0.iter().map(|part| part.took).sum()
    }

    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for part in &self.0 {
            total += part.counts;
        }
        total
    }

    pub(super) fn table(&self) -> String {
        let mut lines =
            vec![format!("{:<24} {:>9} {:>9} {:>9}  RESULT", "PART", "TOOK", "BUDGET", "FREE DISK")];
        let columns = |took: Duration, budget: Duration| {
            (format!("{:.1} s", took.as_secs_f64()), format!("{} min", budget.as_secs() / 60))
        };
        for Part { name, budget, took, free, counts } in &self.0 {
            let (took, budget) = columns(*took, *budget);
            let free = free.map_or_else(|| "-".to_owned(), disk::gigabytes);
            lines.push(format!("{name:<24} {took:>9} {budget:>9} {free:>9}  {counts}"));
        }
        let (took, budget) = columns(self.took(), self.0.iter().map(|part| part.budget).sum());
        lines.push(format!("{:<24} {took:>9} {budget:>9}", "all"));
        lines.join("\n")
    }
}

/// The message about a part that was ended at its limit.
fn ended(name: &str, limit: Duration) -> String {
    format!("part {name} took longer than {} min and was ended", limit.as_secs() / 60)
}

#[cfg(test)]
mod tests {
    use super::super::{PASSED, cargo_test, check, end_to_end, shell};
    use super::*;
    use anyhow::bail;

    #[test]
    fn counts_an_error_as_failure_and_continues() {
        let (mut report, minute) = (Report::default(), Duration::from_mins(1));
        report.part("a", minute, || bail!("no")).unwrap();
        report.part("b", minute, || Ok(Counts { passed: 3, failed: 0, skipped: 1 })).unwrap();
        report.skip("c", minute, "not today");
        assert_eq!(report.total(), Counts { passed: 3, failed: 1, skipped: 2 });
        let table = report.table();
        assert_eq!(table.lines().count(), 5);
        let free: Vec<bool> = table.lines().skip(1).map(|line| line.contains(" GB  ")).collect();
        assert_eq!(free, [true, true, false, false], "{table}");
        assert!(table.ends_with("3 min"), "{table}");
    }

    #[test]
    fn runs_no_part_after_the_limit_of_all_parts() {
        let (mut report, minute) = (Report::default(), Duration::from_mins(1));
        report.part_within(Duration::ZERO, "too late", minute, || unreachable!()).unwrap();
        assert_eq!(report.total(), FAILED);
    }

    #[test]
    fn ends_a_late_part_and_runs_the_next() {
        let (mut report, budget) = (Report::default(), Duration::from_mins(1));
        let mut late = |command: &str| {
            let mut command = shell(command);
            let run = || cargo_test(&mut command);
            report.part_within(Duration::from_millis(100), "late", budget, run).unwrap()
        };
        assert_eq!(late("exec sleep 600"), FAILED);
        // The counts of an incomplete run do not count.
        assert_eq!(late("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exec sleep 600"), FAILED);
        let in_time = report.part("in time", budget, || check(&mut shell("exit 0"))).unwrap();
        assert_eq!(in_time, PASSED);
        assert_eq!(report.total(), Counts { passed: 1, failed: 2, skipped: 0 });
        assert!(report.0.iter().all(|part| part.took < budget && part.free.is_some()));
    }

    #[test]
    fn a_limit_is_three_times_the_budget_or_more() {
        let limit_after =
            |before: u64, budget: u64| limit(Duration::from_mins(budget), Duration::from_mins(before));
        assert_eq!(limit_after(0, 25), Duration::from_mins(75));
        assert_eq!(limit_after(0, 1), SHORTEST_LIMIT);
        assert_eq!(limit_after(50, 25), Duration::from_mins(35));
        assert_eq!(limit_after(90, 25), Duration::ZERO);
        let said = ended("end-to-end tests", limit(end_to_end::TESTS.1, Duration::ZERO));
        assert_eq!(said, "part end-to-end tests took longer than 75 min and was ended");
    }
}
