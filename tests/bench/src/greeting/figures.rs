//! The measurements as plain data, their tables, and the limits of their counts.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::runs::{INTERVAL, WINDOW};
use crate::attempts::{self, Attempt};
use crate::process::Memory;
use crate::report::Measurements;
use crate::stats::{Quantiles, float, mebibytes, ratio};
use crate::table::{Figure, MEDIAN_AND_WORST, Table, count};

/// In the order of odd rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    Greeting,
    /// kopf with the tutorial's handlers.
    #[strum(to_string = "kopf")]
    Kopf,
}

/// The signal to the process in the middle of each phase, before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    #[strum(to_string = "no restart")]
    Undisturbed,
    #[strum(to_string = "SIGTERM")]
    Sigterm,
    #[strum(to_string = "SIGKILL")]
    Sigkill,
}

/// All Greetings created, or changed, or deleted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// The number of expected lines, and of printed ones with duplicates.
    pub expected: usize,
    pub printed: usize,
    pub missing: usize,
    pub doubled: usize,
    /// After a restart: from the end of the old process to the first line of the new one.
    pub lines_again_seconds: Option<f64>,
    pub writes: Tally,
}

/// One contender in one round and one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cycle {
    pub contender: Contender,
    pub mode: Mode,
    pub round: usize,
    /// `Greeting:` and `Create:`.
    pub create: Phase,
    /// `Update:`.
    pub update: Phase,
    /// `Delete:`.
    pub delete: Phase,
    /// Milliseconds from the create request to the `Create:` line, without other requests meanwhile.
    pub one_at_a_time: Option<Quantiles>,
    /// The same for Greetings that were created as fast as possible.
    pub all_at_once: Option<Quantiles>,
    /// With one Greeting.
    pub idle_memory: Memory,
    /// With all of them.
    pub memory: Memory,
    /// For all phases, if the process was not restarted.
    pub cpu_seconds: Option<f64>,
}

impl Attempt for Cycle {
    type Contender = Contender;
    type Under = Mode;

    fn key(&self) -> (Contender, Mode, usize) {
        (self.contender, self.mode, self.round)
    }
}

impl Cycle {
    fn phases(&self) -> [&Phase; 3] {
        [&self.create, &self.update, &self.delete]
    }

    fn lines(&self, of: impl Fn(&Phase) -> usize) -> f64 {
        float(self.phases().into_iter().map(of).sum::<usize>())
    }

    fn writes(&self, of: impl Fn(&Tally) -> u64) -> f64 {
        float(self.phases().into_iter().map(|phase| of(&phase.writes)).sum::<u64>())
    }

    /// `number` per Greeting. Each Greeting has one line in the delete phase.
    fn per_greeting(&self, number: f64) -> Option<f64> {
        ratio(number, float(self.delete.expected))
    }
}

/// Many Greetings and their ticks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timers {
    pub contender: Contender,
    pub count: usize,
    /// From the first create request to the last `Create:` line.
    pub created_seconds: f64,
    /// The number of `Create:` lines, and the writes for them.
    pub said: usize,
    pub created: Tally,
    /// Printed ticks in [`WINDOW`], due ticks, and the cost meanwhile.
    pub ticks: usize,
    pub due: f64,
    pub writes: Tally,
    pub cpu_seconds: f64,
    /// With one Greeting.
    pub memory_before: Memory,
    /// With all of them.
    pub memory: Memory,
}

/// Everything measured with one number of Greetings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub greetings: usize,
    pub kopf: Option<String>,
    #[serde(default)]
    pub cycles: Vec<Cycle>,
    #[serde(default)]
    pub timers: Vec<Timers>,
}

const LINES: [Figure<Cycle>; 5] = [
    ("due", 0, |one| Some(one.lines(|phase| phase.expected))),
    ("printed", 0, |one| Some(one.lines(|phase| phase.printed))),
    ("missing", 0, |one| Some(one.lines(|phase| phase.missing))),
    ("duplicates", 0, |one| Some(one.lines(|phase| phase.doubled))),
    ("pause after restart s", 1, |one| {
        one.phases().into_iter().filter_map(|phase| phase.lines_again_seconds).reduce(f64::max)
    }),
];

const COST: [Figure<Cycle>; 7] = [
    ("create", 2, |one| one.per_greeting(float(one.create.writes.writes()))),
    ("change", 2, |one| one.per_greeting(float(one.update.writes.writes()))),
    ("delete", 2, |one| one.per_greeting(float(one.delete.writes.writes()))),
    ("total", 2, |one| one.per_greeting(one.writes(Tally::writes))),
    ("rejected", 0, |one| Some(one.writes(|tally| tally.refused))),
    ("Events, total", 0, |one| Some(one.writes(|tally| tally.events))),
    ("CPU s", 2, |one| one.cpu_seconds),
];

const TIME: [Figure<Cycle>; 4] = [
    ("one at a time: p50", 0, |one| Some(one.one_at_a_time?.p50)),
    ("p99", 0, |one| Some(one.one_at_a_time?.p99)),
    ("all at once: p50", 0, |one| Some(one.all_at_once?.p50)),
    ("p99", 0, |one| Some(one.all_at_once?.p99)),
];

const MEMORY: [Figure<Cycle>; 4] = [
    ("idle RSS MiB", 1, |one| Some(mebibytes(one.idle_memory.rss_kib))),
    ("idle PSS MiB", 1, |one| Some(mebibytes(one.idle_memory.pss_kib))),
    ("with all PSS MiB", 1, |one| Some(mebibytes(one.memory.pss_kib))),
    ("peak RSS MiB", 1, |one| Some(mebibytes(one.memory.peak_kib))),
];

const TIMERS: [Figure<Timers>; 10] = [
    ("Greetings", 0, |one| Some(float(one.count))),
    ("printed", 0, |one| Some(float(one.said))),
    ("after s", 1, |one| Some(one.created_seconds)),
    ("ticks due", 0, |one| Some(one.due)),
    ("ticks printed", 0, |one| Some(float(one.ticks))),
    ("writes", 0, |one| Some(float(one.writes.writes()))),
    ("CPU s", 2, |one| Some(one.cpu_seconds)),
    ("PSS before MiB", 1, |one| Some(mebibytes(one.memory_before.pss_kib))),
    ("PSS MiB", 1, |one| Some(mebibytes(one.memory.pss_kib))),
    ("KiB per Greeting", 2, |one| {
        ratio(float(one.memory.pss_kib.saturating_sub(one.memory_before.pss_kib)), float(one.count))
    }),
];

impl Measurements for Results {
    const NAME: &'static str = "greeting";
    const TITLE: &'static str = "Greeting benchmark";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let cost = "Writes per Greeting and total processor time, without a restart";
        let time = "Milliseconds from the create request to the line";
        let memory = format!("Memory, with one Greeting and with {}", self.greetings);
        let table = |title: &str, figures: &[Figure<Cycle>]| {
            attempts::table(title, &self.cycles, Mode::Undisturbed, figures)
        };
        let mut tables =
            vec![self.lines_table(), table(cost, &COST), table(time, &TIME), table(&memory, &MEMORY)];
        if !self.timers.is_empty() {
            tables.push(self.timers_table());
        }
        tables.push(self.writes_table());
        tables
    }

    fn failures(&self) -> Option<Vec<String>> {
        let ours = self.cycles.iter().filter(|one| one.contender == Contender::Greeting);
        let mut failures: Vec<String> = ours.flat_map(|one| self.failures_of(one)).collect();
        let timers = self.timers.iter().filter(|one| one.contender == Contender::Greeting);
        let ticks = timers.filter(|one| one.writes.requests() > 0);
        failures.extend(ticks.map(|one| format!("ticks wrote: {}", one.writes.describe())));
        Some(failures)
    }
}

impl Results {
    fn of(&self, mode: Mode, contender: Contender) -> Vec<&Cycle> {
        attempts::of(&self.cycles, mode, contender).collect()
    }

    fn lines_table(&self) -> Table {
        let title = format!("Lines of {} Greetings created, changed and deleted", self.greetings);
        let mut table = Table::of(title, &LINES);
        for mode in Mode::VARIANTS {
            for contender in Contender::VARIANTS {
                let runs = self.of(*mode, *contender);
                if !runs.is_empty() {
                    table.figures(format!("{contender}, {mode}"), &runs, &LINES);
                }
            }
        }
        if self.of(Mode::Undisturbed, Contender::Greeting).len() > 1 {
            table.note(MEDIAN_AND_WORST);
        }
        table.notes.extend(self.kopf.iter().map(|kopf| format!("{kopf}.")));
        table
    }

    fn timers_table(&self) -> Table {
        let mut table = Table::of("Many Greetings with a timer", &TIMERS);
        for one in &self.timers {
            table.figures(one.contender.to_string(), &[one], &TIMERS);
        }
        table.note(format!(
            "Ticks, writes and processor time are those of {} s, with a tick every {INTERVAL} s.",
            WINDOW.as_secs()
        ));
        table
    }

    fn writes_table(&self) -> Table {
        let title = "Writes by verb and resource, without a restart, first round";
        let mut table = Table::new(title, ["create", "change", "delete"]);
        for contender in Contender::VARIANTS {
            if let Some(first) = self.of(Mode::Undisturbed, *contender).first() {
                table.tallies(&contender.to_string(), &first.phases().map(|phase| Some(&phase.writes)));
            }
        }
        table
    }

    fn failures_of(&self, one: &Cycle) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, phase, writes) in
            [("create", &one.create, 2), ("change", &one.update, 1), ("delete", &one.delete, 2)]
        {
            let Phase { missing, doubled, .. } = *phase;
            if doubled > 0 {
                failures.push(format!("{name}: {} duplicate lines", count(doubled)));
            }
            // Only a crash between the claim and the line loses a line.
            if missing > 0 && one.mode != Mode::Sigkill {
                failures.push(format!("{name}: {} missing lines", count(missing)));
            }
            let allowed = writes * u64::try_from(self.greetings).unwrap_or_default();
            let made = phase.writes.requests();
            if one.mode == Mode::Undisturbed && made > allowed {
                failures.push(format!("{name}: {} writes instead of {}", count(made), count(allowed)));
            }
        }
        failures.into_iter().map(|what| format!("{}, round {}: {what}", one.mode, one.round)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results(contender: &str, mode: Mode, missing: usize, doubled: usize, writes: u64) -> Results {
        let memory = json!({"rss_kib": 0, "peak_kib": 0, "pss_kib": 0});
        let phase = |missing: usize, doubled: usize, writes: u64| {
            let writes = json!({"by_kind": {"patch greetings": writes}});
            json!({"expected": 10, "printed": 10, "missing": missing, "doubled": doubled, "writes": writes})
        };
        let timers = json!({
            "contender": contender, "count": 5, "created_seconds": 1.0, "said": 5, "created": {}, "ticks": 15,
            "due": 15.0, "writes": {}, "cpu_seconds": 0.1, "memory_before": memory, "memory": memory,
        });
        let cycle = json!({
            "contender": contender, "mode": mode, "round": 1, "create": phase(missing, doubled, writes),
            "update": phase(0, 0, 10), "delete": phase(0, 0, 10), "idle_memory": memory, "memory": memory,
        });
        serde_json::from_value(json!({"greetings": 10, "cycles": [cycle], "timers": [timers]})).unwrap()
    }

    #[test]
    fn only_a_crash_may_lose_lines() {
        let of = |mode, missing, doubled, writes| {
            results("greeting", mode, missing, doubled, writes).failures().unwrap()
        };
        assert!(of(Mode::Undisturbed, 0, 0, 20).is_empty());
        assert_eq!(of(Mode::Undisturbed, 0, 0, 21), ["no restart, round 1: create: 21 writes instead of 20"]);
        assert!(of(Mode::Sigterm, 0, 0, 30).is_empty(), "a restart may repeat a write");
        assert_eq!(of(Mode::Sigterm, 1, 0, 20), ["SIGTERM, round 1: create: 1 missing lines"]);
        assert!(of(Mode::Sigkill, 3, 0, 20).is_empty());
        assert_eq!(of(Mode::Sigkill, 0, 1, 20), ["SIGKILL, round 1: create: 1 duplicate lines"]);
        assert!(results("kopf", Mode::Sigkill, 5, 5, 99).failures().unwrap().is_empty());
    }

    #[test]
    fn ticks_do_not_write() {
        let mut all = results("greeting", Mode::Undisturbed, 0, 0, 0);
        all.timers[0].writes.by_kind.insert("patch greetings".to_owned(), 2);
        assert_eq!(all.failures().unwrap(), ["ticks wrote: patch greetings: 2"]);
    }
}
