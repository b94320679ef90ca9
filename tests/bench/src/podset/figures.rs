//! What was measured: plain data, the tables that show it, and the counts that must hold.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};

use crate::process::Memory;
use crate::report::Measurements;
use crate::rig::Setting;
use crate::stats::{self, float, mebibytes, ratio, signed};
use crate::table::{self, Figure, Table};

/// The statuses that a PodSet may write besides one a second: at the beginning, at the end, and once between.
pub const FIXED_WRITES: u16 = 3;

/// Who keeps a number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Ours.
    PodSet,
    /// Kubernetes' own.
    ReplicaSet,
}

impl Contender {
    /// All of them, in the order of odd rounds; the peer is last.
    pub const ALL: [Self; 2] = [Self::PodSet, Self::ReplicaSet];

    /// As tables say it; with an s and in small letters, as the API server says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::PodSet => "PodSet",
            Self::ReplicaSet => "ReplicaSet",
        }
    }
}

/// From one number of pods to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// From the request to scale until the answer to the last creation or deletion, by the API server's clock.
    pub last_seconds: f64,
    /// Until the status said that all pods are there and ready, or that there are none.
    pub status_seconds: f64,
    /// The same, and on the way down no pod was left.
    pub done_seconds: f64,
    /// By how many pods there were more than the greater of the two numbers, at the worst moment.
    pub most_above: i64,
    /// What was written, until nothing trailed behind.
    pub writes: Tally,
    /// What the contender's process used of the processors until all was done.
    pub cpu_seconds: f64,
    /// What the API server used until then, for everybody.
    pub api_server_cpu_seconds: f64,
    /// What processes used of the processors meanwhile that have nothing to do with it. Much makes times worthless.
    pub others_percent: Option<f64>,
    /// The passes of a PodSet, until nothing trailed behind.
    pub passes: Option<u64>,
    /// The contender's process before.
    pub memory_before: Memory,
    /// The contender's process when it was done and quiet.
    pub memory: Memory,
}

/// What a restart with all pods ready did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// From the start of the process until it was ready and its first pass was over.
    pub first_pass_seconds: f64,
    /// The passes until there were no more.
    pub passes: u64,
    /// What was written, by the process that ended and by the new one.
    pub writes: Tally,
    /// The new process.
    pub memory: Memory,
}

/// Fewer pods are wanted while they are made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Halfway {
    /// Pods that were made until the answer to the second request to scale.
    pub made_before: u64,
    /// Pods that were made after it.
    pub made_after: u64,
    /// Those of them whose request came after it too.
    pub sent_after: u64,
    /// From the second request until the status said that exactly so many are there, all ready.
    pub done_seconds: f64,
    /// What was written from the first request on.
    pub writes: Tally,
}

/// One contender in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cycle {
    /// Who.
    pub contender: Contender,
    /// How kube-controller-manager and the scheduler were set.
    pub setting: Setting,
    /// From 1.
    pub round: usize,
    /// From nothing to all.
    pub up: Phase,
    /// After that; of a PodSet.
    pub restart: Option<Restart>,
    /// From all to nothing.
    pub down: Phase,
    /// To all again and, on the way, to a tenth.
    pub halfway: Halfway,
}

impl Phase {
    fn writes_per_pod(&self, pods: u64) -> Option<f64> {
        ratio(float(self.writes.writes()), float(pods))
    }
}

/// Everything measured with one number of pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The number of pods.
    pub pods: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// Every contender in every round.
    pub cycles: Vec<Cycle>,
}

impl Measurements for Results {
    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for setting in self.settings() {
            tables.push(self.up_table(setting));
            tables.push(self.down_table(setting));
            tables.push(self.halfway_table(setting));
            tables.push(self.processor_table(setting));
            tables.push(self.memory_table(setting));
            if self.of(setting, Contender::ReplicaSet).next().is_some() {
                tables.push(self.ratio_table(setting));
            }
        }
        tables.push(self.restart_table());
        tables.push(self.writes_table());
        tables
    }
}

impl Results {
    /// The cycles of one contender.
    pub fn of(&self, setting: Setting, contender: Contender) -> impl Iterator<Item = &Cycle> {
        let mine = move |one: &&Cycle| one.setting == setting && one.contender == contender;
        self.cycles.iter().filter(mine)
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings: Vec<Setting> = self.cycles.iter().map(|one| one.setting).collect();
        settings.dedup();
        settings
    }

    /// Ours over the peer's in the same round, for each round.
    pub fn pairs(&self, setting: Setting, figure: impl Fn(&Cycle) -> f64) -> Vec<f64> {
        let ratios = self.of(setting, Contender::PodSet).filter_map(|ours| {
            let theirs = self.of(setting, Contender::ReplicaSet).find(|theirs| theirs.round == ours.round)?;
            ratio(figure(ours), figure(theirs))
        });
        ratios.collect()
    }

    fn up_table(&self, setting: Setting) -> Table {
        let mut table = self.rows(
            format!("From nothing to all, {}", setting.name()),
            setting,
            &[
                ("last created s", 2, |one| Some(one.up.last_seconds)),
                ("all ready s", 1, |one| Some(one.up.done_seconds)),
                ("writes", 0, |one| Some(float(one.up.writes.writes()))),
                ("writes per pod", 3, |one| one.up.writes_per_pod(one.up.writes.pods)),
                ("requests for a status", 0, |one| Some(float(one.up.writes.status_requests()))),
                ("refused", 0, |one| Some(float(one.up.writes.refused))),
                ("most above the wanted", 0, |one| Some(signed(one.up.most_above))),
                ("Events", 0, |one| Some(float(one.up.writes.events))),
            ],
        );
        if self.of(setting, Contender::PodSet).count() > 1 {
            table.note("Median of the rounds, the worst in parentheses.");
        }
        table.note(format!("Set {}: {}.", setting.name(), setting.description()));
        table
    }

    fn down_table(&self, setting: Setting) -> Table {
        self.rows(
            format!("From all to nothing, {}", setting.name()),
            setting,
            &[
                ("last deleted s", 2, |one| Some(one.down.last_seconds)),
                ("status 0 s", 1, |one| Some(one.down.status_seconds)),
                ("all gone s", 1, |one| Some(one.down.done_seconds)),
                ("writes", 0, |one| Some(float(one.down.writes.writes()))),
                ("writes per pod", 3, |one| one.down.writes_per_pod(one.down.writes.deletions)),
                ("requests for a status", 0, |one| Some(float(one.down.writes.status_requests()))),
                ("refused", 0, |one| Some(float(one.down.writes.refused))),
                ("Events", 0, |one| Some(float(one.down.writes.events))),
            ],
        )
    }

    fn halfway_table(&self, setting: Setting) -> Table {
        let mut table = self.rows(
            format!("To all, and halfway to a tenth, {}", setting.name()),
            setting,
            &[
                ("made before", 0, |one| Some(float(one.halfway.made_before))),
                ("made after", 0, |one| Some(float(one.halfway.made_after))),
                ("of them sent after", 0, |one| Some(float(one.halfway.sent_after))),
                ("deleted", 0, |one| Some(float(one.halfway.writes.deletions))),
                ("writes", 0, |one| Some(float(one.halfway.writes.writes()))),
                ("requests for a status", 0, |one| Some(float(one.halfway.writes.status_requests()))),
                ("refused", 0, |one| Some(float(one.halfway.writes.refused))),
                ("a tenth ready s", 1, |one| Some(one.halfway.done_seconds)),
            ],
        );
        table.note(
            "The seconds are from the second request to scale on; made before and after, by the answer to it.",
        );
        table
    }

    fn processor_table(&self, setting: Setting) -> Table {
        self.rows(
            format!("Processor time, {}", setting.name()),
            setting,
            &[
                ("up: CPU s", 2, |one| Some(one.up.cpu_seconds)),
                ("passes", 0, |one| one.up.passes.map(float)),
                ("API server's CPU s", 1, |one| Some(one.up.api_server_cpu_seconds)),
                ("strangers' CPU %", 0, |one| one.up.others_percent),
                ("down: CPU s", 2, |one| Some(one.down.cpu_seconds)),
                ("passes", 0, |one| one.down.passes.map(float)),
                ("API server's CPU s", 1, |one| Some(one.down.api_server_cpu_seconds)),
                ("strangers' CPU %", 0, |one| one.down.others_percent),
            ],
        )
    }

    fn memory_table(&self, setting: Setting) -> Table {
        self.rows(
            format!("Memory, {}", setting.name()),
            setting,
            &[
                ("RSS before MiB", 1, |one| Some(mebibytes(one.up.memory_before.rss_kib))),
                ("up: peak RSS MiB", 1, |one| Some(mebibytes(one.up.memory.peak_kib))),
                ("settled RSS MiB", 1, |one| Some(mebibytes(one.up.memory.rss_kib))),
                ("settled PSS MiB", 1, |one| Some(mebibytes(one.up.memory.pss_kib))),
                ("down: peak RSS MiB", 1, |one| Some(mebibytes(one.down.memory.peak_kib))),
            ],
        )
    }

    /// A row for each contender.
    fn rows(&self, title: impl Into<String>, setting: Setting, figures: &[Figure<Cycle>]) -> Table {
        let mut table = Table::of(title, figures);
        for contender in Contender::ALL {
            let runs: Vec<&Cycle> = self.of(setting, contender).collect();
            if !runs.is_empty() {
                table.figures(contender.name(), &runs, figures);
            }
        }
        table
    }

    fn ratio_table(&self, setting: Setting) -> Table {
        let mut table = Table::new(
            format!("PodSet / ReplicaSet, {}", setting.name()),
            ["last request", "done", "writes", "CPU", "peak RSS"],
        );
        let show =
            |figure: &dyn Fn(&Cycle) -> f64| table::interval(stats::interval(self.pairs(setting, figure)), 2);
        for (name, phase) in [("up", (|one| &one.up) as fn(&Cycle) -> &Phase), ("down", |one| &one.down)] {
            let cells = [
                show(&|one| phase(one).last_seconds),
                show(&|one| phase(one).done_seconds),
                show(&|one| float(phase(one).writes.writes())),
                show(&|one| phase(one).cpu_seconds),
                show(&|one| mebibytes(phase(one).memory.peak_kib)),
            ];
            table.row(name, cells);
        }
        table
    }

    fn restart_table(&self) -> Table {
        let settings = self.settings();
        let header = settings.iter().map(|setting| setting.name());
        let mut table = Table::new("A restart of the PodSet's manager with all pods ready", header);
        let figures: [Figure<Restart>; 5] = [
            ("writes", 0, |restart| Some(float(restart.writes.writes()))),
            ("passes", 0, |restart| Some(float(restart.passes))),
            ("first pass over, s", 2, |restart| Some(restart.first_pass_seconds)),
            ("peak MiB", 1, |restart| Some(mebibytes(restart.memory.peak_kib))),
            ("PSS MiB", 1, |restart| Some(mebibytes(restart.memory.pss_kib))),
        ];
        for (name, places, figure) in figures {
            let cells = settings.iter().map(|&setting| {
                let restarts =
                    self.of(setting, Contender::PodSet).filter_map(|one| figure(one.restart.as_ref()?));
                table::spread(restarts, places)
            });
            table.row(name, cells);
        }
        table
    }

    fn writes_table(&self) -> Table {
        let setting = self.settings().last().copied().unwrap_or(Setting::Tuned);
        let mut table = Table::new(
            format!("Writes by verb and resource, {}, first round", setting.name()),
            ["up", "restart", "down", "halfway"],
        );
        for contender in Contender::ALL {
            let Some(one) = self.of(setting, contender).find(|one| one.round == 1) else { continue };
            let restart = one.restart.as_ref().map(|restart| &restart.writes);
            table.tallies(
                contender.name(),
                &[Some(&one.up.writes), restart, Some(&one.down.writes), Some(&one.halfway.writes)],
            );
        }
        table
    }

    /// What must hold and does not, a sentence each.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let pods = u64::try_from(self.pods).unwrap_or(u64::MAX);
        for one in self.cycles.iter().filter(|one| one.contender == Contender::PodSet) {
            let mut fail =
                |what: String| failures.push(format!("round {} {}: {what}", one.round, one.setting.name()));
            for (way, phase, changes, what) in [
                ("up", &one.up, one.up.writes.pods, "made"),
                ("down", &one.down, one.down.writes.deletions, "deleted"),
            ] {
                if changes != pods {
                    fail(format!("{changes} pods were {what} on the way {way}, not {pods}"));
                }
                if phase.writes.refused > 0 {
                    fail(format!(
                        "{} writes were refused on the way {way}, by code {}",
                        phase.writes.refused,
                        phase.writes.codes()
                    ));
                }
                let (more, limit) =
                    (float(phase.writes.requests().saturating_sub(changes)), most_more(phase));
                if more > limit {
                    fail(format!(
                        "{more} writes on the way {way} besides one for each pod, more than {limit}: {}",
                        phase.writes.describe()
                    ));
                }
            }
            if one.up.most_above > 0 {
                fail(format!("{} pods too many counted at some moment on the way up", one.up.most_above));
            }
            if let Some(restart) = &one.restart {
                if restart.writes.requests() > 0 {
                    fail(format!("the restart wrote: {}", restart.writes.describe()));
                }
                if restart.writes.events > 0 {
                    fail(format!("the restart wrote {} Events", restart.writes.events));
                }
            }
        }
        failures
    }
}

/// The writes that a phase may cost besides one for each pod.
fn most_more(phase: &Phase) -> f64 {
    phase.done_seconds.ceil() + f64::from(FIXED_WRITES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(created: u64, deleted: u64, statuses: u64) -> Tally {
        let kinds = [("create pods", created), ("delete pods", deleted), ("patch podsets/status", statuses)];
        Tally {
            by_kind: kinds
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| (kind.to_owned(), count))
                .collect(),
            pods: created,
            deletions: deleted,
            ..Tally::default()
        }
    }

    fn phase(seconds: f64, writes: Tally) -> Phase {
        Phase {
            last_seconds: seconds,
            status_seconds: seconds,
            done_seconds: seconds,
            most_above: 0,
            writes,
            cpu_seconds: 0.5,
            api_server_cpu_seconds: 5.0,
            others_percent: Some(1.0),
            passes: None,
            memory_before: Memory::default(),
            memory: Memory { peak_kib: 10_240, ..Memory::default() },
        }
    }

    fn cycle(contender: Contender, round: usize, seconds: f64) -> Cycle {
        Cycle {
            contender,
            setting: Setting::Tuned,
            round,
            up: phase(seconds, tally(100, 0, 2)),
            restart: (contender == Contender::PodSet).then(|| Restart {
                first_pass_seconds: 0.1,
                passes: 1,
                writes: Tally::default(),
                memory: Memory::default(),
            }),
            down: phase(seconds, tally(0, 100, 2)),
            halfway: Halfway {
                made_before: 34,
                made_after: 3,
                sent_after: 0,
                done_seconds: 1.0,
                writes: tally(37, 27, 4),
            },
        }
    }

    fn results(cycles: Vec<Cycle>) -> Results {
        Results { pods: 100, nodes: 4, cycles }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let results = results(vec![
            cycle(Contender::PodSet, 1, 2.0),
            cycle(Contender::ReplicaSet, 1, 4.0),
            cycle(Contender::ReplicaSet, 2, 8.0),
            cycle(Contender::PodSet, 2, 2.0),
        ]);
        let ratio = results.pairs(Setting::Tuned, |one| one.up.last_seconds);
        assert_eq!(ratio, [0.5, 0.25]);
        assert_eq!(results.pairs(Setting::Shipped, |one| one.up.last_seconds), [0.0; 0]);
        assert_eq!(results.failures(), Vec::<String>::new());
        let text: String = results.tables().iter().map(Table::plain).collect();
        for part in
            ["PodSet / ReplicaSet, tuned", "0.38 (0.25 to 0.50)", "PodSet: create pods", "1.020 (1.020)"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let text: String =
            results(vec![cycle(Contender::PodSet, 1, 2.0)]).tables().iter().map(Table::plain).collect();
        assert!(!text.contains("ReplicaSet"), "{text}");
    }

    #[test]
    fn counts_that_are_too_high_are_failures() {
        let failures = |change: fn(&mut Cycle)| {
            let mut one = cycle(Contender::PodSet, 1, 1.5);
            change(&mut one);
            results(vec![one]).failures()
        };
        // Two seconds, at one status a second, and three.
        assert!(failures(|one| one.up.writes = tally(100, 0, 5)).is_empty());
        assert_eq!(
            failures(|one| one.up.writes = tally(100, 0, 6)),
            ["round 1 tuned: 6 writes on the way up besides one for each pod, more than 5: \
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
        assert_eq!(
            restart,
            [
                "round 1 tuned: the restart wrote: patch podsets/status: 1",
                "round 1 tuned: the restart wrote 2 Events"
            ]
        );
        let peer = Cycle { up: phase(1.0, tally(200, 0, 99)), ..cycle(Contender::ReplicaSet, 1, 1.0) };
        assert!(results(vec![peer]).failures().is_empty());
    }
}
