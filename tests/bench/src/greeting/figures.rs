//! What was measured: plain data, the tables that show it, and the counts that must hold.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};

use super::runs::{INTERVAL, WINDOW};
use crate::process::Memory;
use crate::report::Measurements;
use crate::stats::{Quantiles, float, mebibytes, ratio};
use crate::table::{self, Figure, Table};

/// Who says the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Ours.
    Greeting,
    /// The post's handlers with kopf.
    Kopf,
}

impl Contender {
    /// All of them, in the order of odd rounds; the peer is last.
    pub const ALL: [Self; 2] = [Self::Greeting, Self::Kopf];

    /// As tables say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greeting => "Greeting",
            Self::Kopf => "kopf",
        }
    }
}

/// What happens to the process in the middle of each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing.
    Undisturbed,
    /// It is ended as a rollout does, and started anew.
    Sigterm,
    /// It is killed, and started anew.
    Sigkill,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Undisturbed, Self::Sigterm, Self::Sigkill];

    /// As tables say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Undisturbed => "no restart",
            Self::Sigterm => "SIGTERM",
            Self::Sigkill => "SIGKILL",
        }
    }
}

/// All Greetings created, or changed, or deleted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// How many lines there should be.
    pub expected: usize,
    /// How many there were.
    pub printed: usize,
    /// How many of the expected ones never came.
    pub missing: usize,
    /// How many came again.
    pub doubled: usize,
    /// After a restart: from the end of the old process until the first line of the new one.
    pub lines_again_seconds: Option<f64>,
    /// What was written.
    pub writes: Tally,
}

impl Phase {
    fn writes_for(&self, greetings: usize) -> Option<f64> {
        ratio(float(self.writes.writes()), float(greetings))
    }
}

/// One contender in one round and one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cycle {
    /// Who.
    pub contender: Contender,
    /// How.
    pub mode: Mode,
    /// From 1.
    pub round: usize,
    /// `Greeting:` and `Create:`.
    pub create: Phase,
    /// `Update:`.
    pub update: Phase,
    /// `Delete:`.
    pub delete: Phase,
    /// Milliseconds from the request to create until the `Create:` line, where nothing else is asked for meanwhile.
    pub one_at_a_time: Option<Quantiles>,
    /// The same of the Greetings that were created as fast as the API server took them.
    pub all_at_once: Option<Quantiles>,
    /// The process with one Greeting.
    pub idle_memory: Memory,
    /// The process with all of them.
    pub memory: Memory,
    /// What it used of the processors for all phases, where it was not restarted.
    pub cpu_seconds: Option<f64>,
}

impl Cycle {
    fn phases(&self) -> [&Phase; 3] {
        [&self.create, &self.update, &self.delete]
    }

    fn sum(&self, of: impl Fn(&Phase) -> usize) -> f64 {
        float(self.phases().into_iter().map(of).sum::<usize>())
    }

    /// The longest pause of the three.
    fn pause(&self) -> Option<f64> {
        self.phases().into_iter().filter_map(|phase| phase.lines_again_seconds).reduce(f64::max)
    }
}

/// Many Greetings and their ticks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timers {
    /// Who.
    pub contender: Contender,
    /// How many Greetings.
    pub count: usize,
    /// From the first request to create until the last `Create:` line.
    pub created_seconds: f64,
    /// How many `Create:` lines came.
    pub said: usize,
    /// What was written for that.
    pub created: Tally,
    /// Ticks that were said in [`WINDOW`].
    pub ticks: usize,
    /// How many were due.
    pub due: f64,
    /// What was written meanwhile.
    pub writes: Tally,
    /// What was used of the processors meanwhile.
    pub cpu_seconds: f64,
    /// The process with one Greeting.
    pub memory_before: Memory,
    /// The process with all of them.
    pub memory: Memory,
}

/// Everything measured with one number of Greetings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// How many were created, changed and deleted.
    pub greetings: usize,
    /// kopf and Python.
    pub kopf: Option<String>,
    /// Every contender in every mode and round.
    #[serde(default)]
    pub cycles: Vec<Cycle>,
    /// Many of them.
    #[serde(default)]
    pub timers: Vec<Timers>,
}

impl Measurements for Results {
    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.lines_table(), self.cost_table(), self.time_table(), self.memory_table()];
        if !self.timers.is_empty() {
            tables.push(self.timers_table());
        }
        tables.push(self.writes_table());
        tables
    }
}

impl Results {
    /// The cycles of one contender.
    pub fn of(&self, contender: Contender, mode: Mode) -> Vec<&Cycle> {
        let mine = |one: &&Cycle| one.contender == contender && one.mode == mode;
        self.cycles.iter().filter(mine).collect()
    }

    fn lines_table(&self) -> Table {
        let figures: [Figure<Cycle>; 5] = [
            ("due", 0, |one| Some(one.sum(|phase| phase.expected))),
            ("printed", 0, |one| Some(one.sum(|phase| phase.printed))),
            ("missing", 0, |one| Some(one.sum(|phase| phase.missing))),
            ("doubled", 0, |one| Some(one.sum(|phase| phase.doubled))),
            ("until lines come again s", 1, Cycle::pause),
        ];
        let title = format!("Lines of {} Greetings created, changed and deleted", self.greetings);
        let mut table = Table::of(title, &figures);
        for mode in Mode::ALL {
            for contender in Contender::ALL {
                let runs = self.of(contender, mode);
                if !runs.is_empty() {
                    table.figures(format!("{}, {}", contender.name(), mode.name()), &runs, &figures);
                }
            }
        }
        if self.of(Contender::Greeting, Mode::Undisturbed).len() > 1 {
            table.note("Median of the rounds, the worst in parentheses.");
        }
        if let Some(kopf) = &self.kopf {
            table.note(format!("{kopf}."));
        }
        table
    }

    fn rows(&self, title: impl Into<String>, figures: &[Figure<Cycle>]) -> Table {
        let mut table = Table::of(title, figures);
        for contender in Contender::ALL {
            let runs = self.of(contender, Mode::Undisturbed);
            if !runs.is_empty() {
                table.figures(contender.name(), &runs, figures);
            }
        }
        table
    }

    fn cost_table(&self) -> Table {
        self.rows(
            "API writes for each Greeting, and processor time for all, without a restart",
            &[
                ("create", 2, |one| one.create.writes_for(one.delete.expected)),
                ("change", 2, |one| one.update.writes_for(one.delete.expected)),
                ("delete", 2, |one| one.delete.writes_for(one.delete.expected)),
                ("in all", 2, |one| {
                    let writes: u64 = one.phases().iter().map(|phase| phase.writes.writes()).sum();
                    ratio(float(writes), float(one.delete.expected))
                }),
                ("refused", 0, |one| {
                    Some(float(one.phases().iter().map(|phase| phase.writes.refused).sum::<u64>()))
                }),
                ("Events in all", 0, |one| {
                    Some(float(one.phases().iter().map(|phase| phase.writes.events).sum::<u64>()))
                }),
                ("CPU s", 2, |one| one.cpu_seconds),
            ],
        )
    }

    fn time_table(&self) -> Table {
        self.rows(
            "Milliseconds from the request to create until the line",
            &[
                ("one at a time: p50", 0, |one| Some(one.one_at_a_time?.p50)),
                ("p99", 0, |one| Some(one.one_at_a_time?.p99)),
                ("all at once: p50", 0, |one| Some(one.all_at_once?.p50)),
                ("p99", 0, |one| Some(one.all_at_once?.p99)),
            ],
        )
    }

    fn memory_table(&self) -> Table {
        self.rows(
            format!("Memory, with one Greeting and with {}", self.greetings),
            &[
                ("idle RSS MiB", 1, |one| Some(mebibytes(one.idle_memory.rss_kib))),
                ("idle PSS MiB", 1, |one| Some(mebibytes(one.idle_memory.pss_kib))),
                ("with all PSS MiB", 1, |one| Some(mebibytes(one.memory.pss_kib))),
                ("peak RSS MiB", 1, |one| Some(mebibytes(one.memory.peak_kib))),
            ],
        )
    }

    fn timers_table(&self) -> Table {
        let figures: [Figure<Timers>; 10] = [
            ("Greetings", 0, |one| Some(float(one.count))),
            ("said", 0, |one| Some(float(one.said))),
            ("after s", 1, |one| Some(one.created_seconds)),
            ("ticks due", 0, |one| Some(one.due)),
            ("ticks said", 0, |one| Some(float(one.ticks))),
            ("writes", 0, |one| Some(float(one.writes.writes()))),
            ("CPU s", 2, |one| Some(one.cpu_seconds)),
            ("PSS before MiB", 1, |one| Some(mebibytes(one.memory_before.pss_kib))),
            ("PSS MiB", 1, |one| Some(mebibytes(one.memory.pss_kib))),
            ("KiB a Greeting", 2, |one| {
                ratio(float(one.memory.pss_kib.saturating_sub(one.memory_before.pss_kib)), float(one.count))
            }),
        ];
        let mut table = Table::of("Many Greetings with a timer", &figures);
        for one in &self.timers {
            table.figures(one.contender.name(), &[one], &figures);
        }
        table.note(format!(
            "Ticks, writes and processor time of {} s, with a tick every {INTERVAL} s.",
            WINDOW.as_secs()
        ));
        table
    }

    fn writes_table(&self) -> Table {
        let mut table = Table::new(
            "Writes by verb and resource, without a restart, first round",
            ["create", "change", "delete"],
        );
        for contender in Contender::ALL {
            if let Some(first) = self.of(contender, Mode::Undisturbed).first() {
                let tallies = first.phases().map(|phase| Some(&phase.writes));
                table.tallies(contender.name(), &tallies);
            }
        }
        table
    }

    /// Counts that are too high, a sentence each.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let count = |count: usize| table::count(count);
        for one in self.cycles.iter().filter(|one| one.contender == Contender::Greeting) {
            let (mode, round) = (one.mode.name(), one.round);
            let mut check = |wrong: bool, what: String| {
                if wrong {
                    failures.push(format!("{mode}, round {round}: {what}"));
                }
            };
            for (name, phase, writes) in
                [("create", &one.create, 2), ("change", &one.update, 1), ("delete", &one.delete, 2)]
            {
                let Phase { missing, doubled, .. } = phase;
                check(*doubled > 0, format!("{name}: {} lines were doubled", count(*doubled)));
                // A crash between the claim and the line loses it, and nothing else does.
                check(
                    *missing > 0 && one.mode != Mode::Sigkill,
                    format!("{name}: {} lines are missing", count(*missing)),
                );
                let (allowed, made) =
                    (writes * u64::try_from(self.greetings).unwrap_or_default(), phase.writes.requests());
                check(
                    one.mode == Mode::Undisturbed && made > allowed,
                    format!("{name}: {} writes instead of {}", table::count(made), table::count(allowed)),
                );
            }
        }
        for one in self.timers.iter().filter(|one| one.contender == Contender::Greeting) {
            if one.writes.requests() > 0 {
                failures.push(format!("ticks wrote: {}", one.writes.describe()));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(expected: usize, missing: usize, doubled: usize, writes: u64) -> Phase {
        Phase {
            expected,
            printed: expected - missing + doubled,
            missing,
            doubled,
            lines_again_seconds: Some(1.5),
            writes: Tally { by_kind: [("patch greetings".to_owned(), writes)].into(), ..Tally::default() },
        }
    }

    fn cycle(contender: Contender, mode: Mode, missing: usize, doubled: usize, writes: u64) -> Cycle {
        Cycle {
            contender,
            mode,
            round: 1,
            create: phase(20, missing, doubled, writes),
            update: phase(10, 0, 0, 10),
            delete: phase(10, 0, 0, 10),
            one_at_a_time: Quantiles::of(&[3.0, 1.0, 2.0]),
            all_at_once: Quantiles::of(&[5.0]),
            idle_memory: Memory::default(),
            memory: Memory::default(),
            cpu_seconds: Some(0.5),
        }
    }

    fn results(cycles: Vec<Cycle>) -> Results {
        Results { greetings: 10, kopf: Some("kopf 1 on Python 3".to_owned()), cycles, timers: Vec::new() }
    }

    #[test]
    fn ours_doubles_nothing_and_loses_nothing_but_by_a_crash() {
        let of = |mode, missing, doubled, writes| {
            results(vec![cycle(Contender::Greeting, mode, missing, doubled, writes)]).failures()
        };
        assert!(of(Mode::Undisturbed, 0, 0, 20).is_empty());
        assert_eq!(of(Mode::Undisturbed, 0, 0, 21), ["no restart, round 1: create: 21 writes instead of 20"]);
        assert!(of(Mode::Sigterm, 0, 0, 30).is_empty(), "a restart may have repeated a write");
        assert_eq!(of(Mode::Sigterm, 1, 0, 20), ["SIGTERM, round 1: create: 1 lines are missing"]);
        assert!(of(Mode::Sigkill, 3, 0, 20).is_empty());
        assert_eq!(of(Mode::Sigkill, 0, 1, 20), ["SIGKILL, round 1: create: 1 lines were doubled"]);
        let theirs = cycle(Contender::Kopf, Mode::Sigkill, 5, 5, 99);
        assert!(results(vec![theirs]).failures().is_empty(), "the peer is shown and not judged");
    }

    #[test]
    fn tables_have_a_row_for_each_that_ran() {
        let both = results(vec![
            cycle(Contender::Greeting, Mode::Undisturbed, 0, 0, 20),
            cycle(Contender::Kopf, Mode::Undisturbed, 0, 0, 20),
            cycle(Contender::Kopf, Mode::Sigkill, 0, 7, 20),
        ]);
        let text: Vec<String> = both.tables().iter().map(Table::plain).collect();
        assert!(text[0].contains("kopf, SIGKILL") && !text[0].contains("Greeting, SIGKILL"), "{}", text[0]);
        assert!(text[0].contains("kopf 1 on Python 3"), "{}", text[0]);
        let cost = both.cost_table();
        assert_eq!(cost.rows[0], ["Greeting", "2.00", "1.00", "1.00", "4.00", "0", "0", "0.50"]);
        assert_eq!(both.time_table().rows[1], ["kopf", "2", "3", "5", "5"]);
    }

    #[test]
    fn a_tick_that_writes_is_told() {
        let mut all = results(Vec::new());
        all.timers.push(Timers {
            contender: Contender::Greeting,
            count: 5,
            created_seconds: 1.0,
            said: 5,
            created: Tally::default(),
            ticks: 15,
            due: 15.0,
            writes: phase(0, 0, 0, 2).writes,
            cpu_seconds: 0.1,
            memory_before: Memory::default(),
            memory: Memory::default(),
        });
        assert_eq!(all.failures(), ["ticks wrote: patch greetings: 2"]);
        assert_eq!(all.timers_table().rows.len(), 1);
    }
}
