//! The measurements as plain data, their tables, and the limits of their counts.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use crate::attempts::{self, Attempt};
use crate::contest::Cost;
use crate::process::Memory;
use crate::report::Measurements;
use crate::rig::Setting;
use crate::stats::{self, float, mebibytes, ratio, signed};
use crate::table::{self, Figure, Table};

/// The allowed status writes besides one a second: at the beginning, at the end, and once between.
pub const FIXED_WRITES: u16 = 3;

/// In the order of odd rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    PodSet,
    ReplicaSet,
}

/// From one number of pods to another. Times begin with the scale request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Until the answer to the last creation or deletion, by the API server's clock.
    pub last_seconds: f64,
    /// Until the status has all pods ready, or no pods.
    pub status_seconds: f64,
    /// Like `status_seconds`; a scale-down also waits until no pod exists.
    pub done_seconds: f64,
    /// The largest surplus of pods over the greater of the two numbers.
    pub most_above: i64,
    /// Late writes included.
    pub writes: Tally,
    #[serde(flatten)]
    pub cost: Cost,
}

/// A restart with all pods ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// From the start of the process until it was ready and its first reconcile was done.
    pub first_pass_seconds: f64,
    /// Reconciles until there were no more.
    pub passes: u64,
    /// By the old process and the new one.
    pub writes: Tally,
    pub memory: Memory,
}

/// A scale-down during a scale-up. Before and after refer to the answer to the second scale request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Halfway {
    pub made_before: u64,
    pub made_after: u64,
    /// The pods of `made_after` whose request arrived after too.
    pub sent_after: u64,
    /// From the second request until the status has exactly the desired pods, all ready.
    pub done_seconds: f64,
    /// From the first request on.
    pub writes: Tally,
}

/// One contender in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cycle {
    pub contender: Contender,
    pub setting: Setting,
    pub round: usize,
    pub up: Phase,
    /// Of a PodSet, between `up` and `down`.
    pub restart: Option<Restart>,
    pub down: Phase,
    pub halfway: Halfway,
}

impl Attempt for Cycle {
    type Contender = Contender;
    type Under = Setting;

    fn key(&self) -> (Contender, Setting, usize) {
        (self.contender, self.setting, self.round)
    }
}

/// Everything measured with one number of pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub pods: usize,
    pub nodes: usize,
    pub cycles: Vec<Cycle>,
}

const UP: [Figure<Cycle>; 9] = [
    ("last created s", 2, |one| Some(one.up.last_seconds)),
    ("all ready s", 1, |one| Some(one.up.done_seconds)),
    ("writes", 0, |one| Some(float(one.up.writes.writes()))),
    ("writes per pod", 3, |one| ratio(float(one.up.writes.writes()), float(one.up.writes.pods))),
    ("status requests", 0, |one| Some(float(one.up.writes.status_requests()))),
    ("rejected", 0, |one| Some(float(one.up.writes.refused))),
    ("most above desired", 0, |one| Some(signed(one.up.most_above))),
    ("Events", 0, |one| Some(float(one.up.writes.events))),
    ("canary p99 ms", 0, |one| one.up.cost.canary_ms),
];

const DOWN: [Figure<Cycle>; 9] = [
    ("last deleted s", 2, |one| Some(one.down.last_seconds)),
    ("status 0 s", 1, |one| Some(one.down.status_seconds)),
    ("all gone s", 1, |one| Some(one.down.done_seconds)),
    ("writes", 0, |one| Some(float(one.down.writes.writes()))),
    ("writes per pod", 3, |one| ratio(float(one.down.writes.writes()), float(one.down.writes.deletions))),
    ("status requests", 0, |one| Some(float(one.down.writes.status_requests()))),
    ("rejected", 0, |one| Some(float(one.down.writes.refused))),
    ("Events", 0, |one| Some(float(one.down.writes.events))),
    ("canary p99 ms", 0, |one| one.down.cost.canary_ms),
];

const HALFWAY: [Figure<Cycle>; 8] = [
    ("created before", 0, |one| Some(float(one.halfway.made_before))),
    ("created after", 0, |one| Some(float(one.halfway.made_after))),
    ("of these sent after", 0, |one| Some(float(one.halfway.sent_after))),
    ("deleted", 0, |one| Some(float(one.halfway.writes.deletions))),
    ("writes", 0, |one| Some(float(one.halfway.writes.writes()))),
    ("status requests", 0, |one| Some(float(one.halfway.writes.status_requests()))),
    ("rejected", 0, |one| Some(float(one.halfway.writes.refused))),
    ("a tenth ready s", 1, |one| Some(one.halfway.done_seconds)),
];

const PROCESSOR: [Figure<Cycle>; 8] = [
    ("up: CPU s", 2, |one| Some(one.up.cost.cpu_seconds)),
    ("reconciles", 0, |one| one.up.cost.passes.map(float)),
    ("API server's CPU s", 1, |one| Some(one.up.cost.api_server_cpu_seconds)),
    ("other processes' CPU %", 0, |one| one.up.cost.others_percent),
    ("down: CPU s", 2, |one| Some(one.down.cost.cpu_seconds)),
    ("reconciles", 0, |one| one.down.cost.passes.map(float)),
    ("API server's CPU s", 1, |one| Some(one.down.cost.api_server_cpu_seconds)),
    ("other processes' CPU %", 0, |one| one.down.cost.others_percent),
];

const MEMORY: [Figure<Cycle>; 5] = [
    ("RSS before MiB", 1, |one| Some(mebibytes(one.up.cost.memory_before?.rss_kib))),
    ("up: peak RSS MiB", 1, |one| Some(mebibytes(one.up.cost.memory?.peak_kib))),
    ("settled RSS MiB", 1, |one| Some(mebibytes(one.up.cost.memory?.rss_kib))),
    ("settled PSS MiB", 1, |one| Some(mebibytes(one.up.cost.memory?.pss_kib))),
    ("down: peak RSS MiB", 1, |one| Some(mebibytes(one.down.cost.memory?.peak_kib))),
];

/// For ratios of both scale-up and scale-down.
const RATIOS: [Figure<Phase>; 6] = [
    ("last request", 2, |phase| Some(phase.last_seconds)),
    ("done", 2, |phase| Some(phase.done_seconds)),
    ("writes", 2, |phase| Some(float(phase.writes.writes()))),
    ("CPU", 2, |phase| Some(phase.cost.cpu_seconds)),
    ("peak RSS", 2, |phase| Some(mebibytes(phase.cost.memory?.peak_kib))),
    ("canary p99", 2, |phase| phase.cost.canary_ms),
];

const RESTART: [Figure<Restart>; 5] = [
    ("writes", 0, |restart| Some(float(restart.writes.writes()))),
    ("reconciles", 0, |restart| Some(float(restart.passes))),
    ("first reconcile done, s", 2, |restart| Some(restart.first_pass_seconds)),
    ("peak MiB", 1, |restart| Some(mebibytes(restart.memory.peak_kib))),
    ("PSS MiB", 1, |restart| Some(mebibytes(restart.memory.pss_kib))),
];

impl Measurements for Results {
    const NAME: &'static str = "podset";
    const TITLE: &'static str = "PodSet benchmark";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for setting in attempts::conditions(&self.cycles) {
            let table = |what: &str, figures: &[Figure<Cycle>]| {
                attempts::table(format!("{what}, {setting}"), &self.cycles, setting, figures)
            };
            let (mut up, mut halfway) =
                (table("Scale up", &UP), table("Scale down to a tenth during the scale-up", &HALFWAY));
            if attempts::of(&self.cycles, setting, Contender::PodSet).count() > 1 {
                up.note(table::MEDIAN_AND_WORST);
            }
            up.note(format!("Flags, {setting}: {}.", setting.description()));
            halfway.note(
                "The seconds begin with the second scale request. Before and after refer to the answer to that request.",
            );
            tables.extend([up, table("Scale down", &DOWN), halfway]);
            tables.extend([table("Processor time", &PROCESSOR), table("Memory", &MEMORY)]);
            if attempts::of(&self.cycles, setting, Contender::ReplicaSet).next().is_some() {
                tables.push(self.ratio_table(setting));
            }
        }
        tables.push(self.restart_table());
        tables.push(self.writes_table());
        tables
    }

    fn failures(&self) -> Option<Vec<String>> {
        let ours = self.cycles.iter().filter(|one| one.contender == Contender::PodSet);
        Some(ours.flat_map(|one| self.failures_of(one)).collect())
    }
}

impl Results {
    fn ratio_table(&self, setting: Setting) -> Table {
        let figures = table::measured(&RATIOS, &self.cycles.iter().map(|one| &one.up).collect::<Vec<_>>());
        let mut table = Table::of(format!("PodSet / ReplicaSet, {setting}"), &figures);
        let both = (Contender::PodSet, Contender::ReplicaSet);
        for (name, phase) in [("up", (|one| &one.up) as fn(&Cycle) -> &Phase), ("down", |one| &one.down)] {
            let cells = figures.iter().map(|&(_, places, figure)| {
                let ratios = attempts::ratios(&self.cycles, setting, both, |one| figure(phase(one)));
                table::interval(stats::interval(ratios), places)
            });
            table.row(name, cells);
        }
        table
    }

    fn restart_table(&self) -> Table {
        let settings = attempts::conditions(&self.cycles);
        let title = "Restart of the PodSet's manager with all pods ready";
        let mut table = Table::new(title, settings.iter().map(Setting::to_string));
        let restarts = |setting: &Setting| {
            let cycles = attempts::of(&self.cycles, *setting, Contender::PodSet);
            cycles.filter_map(|one| one.restart.as_ref()).collect()
        };
        let by_setting: Vec<Vec<&Restart>> = settings.iter().map(restarts).collect();
        table.rows_of(&by_setting, &RESTART);
        table
    }

    fn writes_table(&self) -> Table {
        let setting = attempts::conditions(&self.cycles).last().copied().unwrap_or(Setting::Tuned);
        let title = format!("Writes by verb and resource, {setting}, first round");
        let mut table = Table::new(title, ["up", "restart", "down", "halfway"]);
        for contender in Contender::VARIANTS {
            let mut cycles = attempts::of(&self.cycles, setting, *contender);
            let Some(one) = cycles.find(|one| one.round == 1) else { continue };
            let restart = one.restart.as_ref().map(|restart| &restart.writes);
            let tallies = [Some(&one.up.writes), restart, Some(&one.down.writes), Some(&one.halfway.writes)];
            table.tallies(&contender.to_string(), &tallies);
        }
        table
    }

    fn failures_of(&self, one: &Cycle) -> Vec<String> {
        let pods = u64::try_from(self.pods).unwrap_or(u64::MAX);
        let mut failures = Vec::new();
        for (way, Phase { writes, done_seconds, .. }, changes, what) in [
            ("up", &one.up, one.up.writes.pods, "created"),
            ("down", &one.down, one.down.writes.deletions, "deleted"),
        ] {
            if changes != pods {
                failures.push(format!("scale-{way}: {changes} pods {what} instead of {pods}"));
            }
            if writes.refused > 0 {
                let (refused, codes) = (writes.refused, writes.codes());
                failures.push(format!("scale-{way}: {refused} rejected writes ({codes})"));
            }
            let more = float(writes.requests().saturating_sub(changes));
            let limit = done_seconds.ceil() + f64::from(FIXED_WRITES);
            if more > limit {
                let kinds = writes.describe();
                failures.push(format!(
                    "scale-{way}: {more} writes besides one for each pod, more than {limit}: {kinds}"
                ));
            }
        }
        if one.up.most_above > 0 {
            failures.push(format!("scale-up: {} surplus pods", one.up.most_above));
        }
        if let Some(Restart { writes, .. }) = &one.restart {
            if writes.requests() > 0 {
                failures.push(format!("the restart wrote: {}", writes.describe()));
            }
            if writes.events > 0 {
                failures.push(format!("the restart wrote {} Events", writes.events));
            }
        }
        failures.into_iter().map(|what| format!("round {} {}: {what}", one.round, one.setting)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tally(created: u64, deleted: u64, statuses: u64) -> Tally {
        let kinds = [("create pods", created), ("delete pods", deleted), ("patch podsets/status", statuses)];
        let kinds = kinds.into_iter().filter(|(_, count)| *count > 0);
        Tally {
            by_kind: kinds.map(|(kind, count)| (kind.to_owned(), count)).collect(),
            pods: created,
            deletions: deleted,
            ..Tally::default()
        }
    }

    fn cycle(contender: &str) -> Cycle {
        let memory = json!({"rss_kib": 0, "peak_kib": 0, "pss_kib": 0});
        let phase = |writes: Tally| -> Value {
            json!({
                "last_seconds": 1.5, "status_seconds": 1.5, "done_seconds": 1.5, "most_above": 0, "writes": writes,
                "cpu_seconds": 0.5, "api_server_cpu_seconds": 5.0, "memory_before": memory, "memory": memory,
            })
        };
        let cycle = json!({
            "contender": contender, "setting": "tuned", "round": 1,
            "up": phase(tally(100, 0, 2)), "down": phase(tally(0, 100, 2)),
            "restart": {"first_pass_seconds": 0.1, "passes": 1, "writes": {}, "memory": memory},
            "halfway": {"made_before": 34, "made_after": 3, "sent_after": 0, "done_seconds": 1.0, "writes": {}},
        });
        serde_json::from_value(cycle).unwrap()
    }

    #[test]
    fn counts_that_are_too_high_are_failures() {
        let failures_of = |one| Results { pods: 100, nodes: 4, cycles: vec![one] }.failures().unwrap();
        let failures = |change: fn(&mut Cycle)| {
            let mut one = cycle("pod-set");
            change(&mut one);
            failures_of(one)
        };
        // Two seconds, at one status a second, and three.
        assert!(failures(|one| one.up.writes = tally(100, 0, 5)).is_empty());
        assert_eq!(
            failures(|one| one.up.writes = tally(100, 0, 6)),
            ["round 1 tuned: scale-up: 6 writes besides one for each pod, more than 5: \
                 create pods: 100, patch podsets/status: 6"]
        );
        assert_eq!(failures(|one| one.up.writes = tally(101, 0, 1)).len(), 1);
        assert_eq!(failures(|one| one.up.writes = tally(99, 0, 1)).len(), 1);
        assert_eq!(failures(|one| one.down.writes = tally(0, 99, 1)).len(), 1);
        assert_eq!(failures(|one| one.down.writes.refused = 1).len(), 1);
        assert_eq!(failures(|one| one.up.most_above = 1).len(), 1);
        let restart = failures(|one| {
            if let Some(restart) = &mut one.restart {
                restart.writes = Tally { events: 2, ..tally(0, 0, 1) };
            }
        });
        assert_eq!(restart[0], "round 1 tuned: the restart wrote: patch podsets/status: 1");
        assert_eq!(restart[1], "round 1 tuned: the restart wrote 2 Events");
        let mut peer = cycle("replica-set");
        peer.up.writes = tally(200, 0, 99);
        assert!(failures_of(peer).is_empty(), "a peer has no limits");
    }
}
