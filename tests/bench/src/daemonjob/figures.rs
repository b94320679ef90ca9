//! What was measured: plain data, the tables that show it, and the counts that must hold.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};

use super::kruise;

use crate::process::Memory;
use crate::report::Measurements;
use crate::rig::Setting;
use crate::stats::{self, float, kibibytes, mebibytes, ratio, signed};
use crate::table::{self, Figure, Table};

/// The most writes per pod that a DaemonJob may cost until it is complete.
const WRITES_PER_POD: f64 = 1.03;

/// From this number of nodes on the limit is that alone. With fewer, what does not grow with them weighs more.
const MANY_NODES: usize = 1_000;

/// The writes that a DaemonJob of any size may cost besides one per pod and one status a second: the ledger's 16
/// ConfigMaps, and the status at the beginning, at the end and once between.
pub const FIXED_WRITES: u16 = 16 + 3;

/// Who runs a pod on every node, or many pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Plain requests, over as many connections as ours has.
    Bare,
    /// Ours.
    DaemonJob,
    /// OpenKruise's.
    BroadcastJob,
    /// Kubernetes' own, Indexed.
    Job,
    /// Kubernetes' own; its pods run on.
    DaemonSet,
}

impl Contender {
    /// All of them, in the order of odd rounds; the peers are last.
    pub const ALL: [Self; 5] = [Self::Bare, Self::DaemonJob, Self::BroadcastJob, Self::Job, Self::DaemonSet];

    /// As tables say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare creation",
            Self::DaemonJob => "DaemonJob",
            Self::BroadcastJob => "BroadcastJob",
            Self::Job => "Job",
            Self::DaemonSet => "DaemonSet",
        }
    }
}

/// One contender in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Completion {
    /// Who.
    pub contender: Contender,
    /// How kube-controller-manager and the scheduler were set.
    pub setting: Setting,
    /// From 1.
    pub round: usize,
    /// From the first request to make a pod to the answer to the last one, by the API server's clock.
    pub creating_seconds: f64,
    /// From the beginning (the object is created, or the first request is sent) to the answer to the last creation.
    pub last_created_seconds: f64,
    /// From the beginning until all is done, as the contender says it: Complete, or all ready, or all pods Succeeded.
    pub done_seconds: f64,
    /// Of bare creation, the same as `creating_seconds` by the client's clock.
    pub client_seconds: Option<f64>,
    /// The nodes that its pods were put on.
    pub nodes_covered: usize,
    /// What it wrote, from the beginning until nothing trailed behind.
    pub writes: Tally,
    /// What its process used of the processors until it was done.
    pub cpu_seconds: f64,
    /// What the API server used until then, for everybody.
    pub api_server_cpu_seconds: f64,
    /// What processes used of the processors meanwhile that have nothing to do with it. Much makes times worthless.
    pub others_percent: Option<f64>,
    /// The passes of a DaemonJob, from its creation until nothing trailed behind.
    pub passes: Option<u64>,
    /// Its process before the beginning, where that is of interest.
    pub memory_before: Option<Memory>,
    /// Its process when it was done and quiet.
    pub memory: Option<Memory>,
}

impl Completion {
    /// What was written, over the pods that were made.
    pub fn writes_per_pod(&self) -> f64 {
        ratio(float(self.writes.writes()), float(self.writes.pods)).unwrap_or_default()
    }

    fn cpu_seconds_per_thousand(&self) -> f64 {
        ratio(self.cpu_seconds * 1_000.0, float(self.writes.pods)).unwrap_or_default()
    }
}

/// What a restart with all nodes finished did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// From the start of the process until it was ready and its first pass was over.
    pub first_pass_seconds: f64,
    /// What it wrote.
    pub writes: Tally,
    /// Pods more than before.
    pub extra_pods: i64,
    /// The new process.
    pub memory: Memory,
}

/// What changes of nodes cost while all is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeEvents {
    /// Changes of nodes in nothing that a DaemonJob looks at, heartbeats among them.
    pub unread_changes: u64,
    /// Passes that came of them.
    pub unread_passes: u64,
    /// Changes of a label of one node.
    pub label_changes: u64,
    /// Passes that came of them.
    pub label_passes: u64,
    /// How long one of those took.
    pub pass_seconds: Option<f64>,
    /// What was written because of all these changes.
    pub writes: Tally,
}

/// How large objects are that grow with the number of nodes, when all of them are done: as JSON, as the API server
/// sends it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sizes {
    /// The whole DaemonJob, with the fields that the API server manages.
    pub daemonjob_bytes: usize,
    /// Its status.
    pub status_bytes: usize,
    /// How many ConfigMaps its ledger has.
    pub shards: usize,
    /// The largest of them, with the fields that the API server manages.
    pub largest_shard_bytes: usize,
    /// The data of the one with the most.
    pub most_data_bytes: usize,
}

/// A DaemonJob from its creation until the last of its pods is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// From 1.
    pub round: usize,
    /// After completion.
    pub sizes: Sizes,
    /// After that.
    pub restart: Restart,
    /// After the restart.
    pub node_events: NodeEvents,
    /// From the deletion of the DaemonJob until its last pod was gone.
    pub deletion_seconds: f64,
    /// Everything that was written from beginning to end.
    pub writes: Tally,
}

/// A DaemonJob with `ttlSecondsAfterFinished: 0`, from its creation until the last of its pods is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TtlLife {
    /// From 1.
    pub round: usize,
    /// Until it was Complete.
    pub done_seconds: f64,
    /// From then on until its pods were gone; nothing where they stayed until the DaemonJob was deleted.
    pub gone_seconds: Option<f64>,
    /// Everything that was written from beginning to end.
    pub writes: Tally,
}

/// Everything measured with one number of nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The number of nodes.
    pub nodes: usize,
    /// Every contender in every round.
    #[serde(default)]
    pub completions: Vec<Completion>,
    /// The setting of the rest.
    pub life_setting: Setting,
    /// One a round.
    #[serde(default)]
    pub lives: Vec<Life>,
    /// One a round.
    #[serde(default)]
    pub ttl_lives: Vec<TtlLife>,
    /// What ran the BroadcastJobs.
    #[serde(default)]
    pub kruise: Option<String>,
    /// The simulated kubelets alone: seconds until all pods had succeeded that were on their nodes already, one a round.
    #[serde(default)]
    pub kubelets: Vec<f64>,
}

impl Measurements for Results {
    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for setting in self.settings() {
            tables.push(self.completion_table(setting));
            tables.push(self.process_table(setting));
            tables.push(self.ratio_table(setting));
        }
        tables.push(self.writes_table());
        tables.push(self.life_table());
        tables
    }
}

impl Results {
    /// The runs of one contender.
    pub fn of(&self, setting: Setting, contender: Contender) -> impl Iterator<Item = &Completion> {
        let mine = move |one: &&Completion| one.setting == setting && one.contender == contender;
        self.completions.iter().filter(mine)
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings: Vec<Setting> = self.completions.iter().map(|one| one.setting).collect();
        settings.dedup();
        settings
    }

    /// Ours over another's in the same round, for each round.
    pub fn pairs(&self, setting: Setting, other: Contender, figure: impl Fn(&Completion) -> f64) -> Vec<f64> {
        let ratios = self.of(setting, Contender::DaemonJob).filter_map(|ours| {
            let theirs = self.of(setting, other).find(|theirs| theirs.round == ours.round)?;
            ratio(figure(ours), figure(theirs))
        });
        ratios.collect()
    }

    fn completion_table(&self, setting: Setting) -> Table {
        let mut table = self.rows(
            format!("To completion, {}", setting.name()),
            setting,
            &[
                ("creating s", 2, |one| Some(one.creating_seconds)),
                ("last created s", 2, |one| Some(one.last_created_seconds)),
                ("done s", 1, |one| Some(one.done_seconds)),
                ("nodes with pods", 0, |one| Some(float(one.nodes_covered))),
                ("writes", 0, |one| Some(float(one.writes.writes()))),
                ("writes per pod", 3, |one| Some(one.writes_per_pod())),
                ("refused", 0, |one| Some(float(one.writes.refused))),
                ("Events", 0, |one| Some(float(one.writes.events))),
            ],
        );
        if self.of(setting, Contender::DaemonJob).count() > 1 {
            table.note("Median of the rounds, the worst in parentheses.");
        }
        table.note(format!("Set {}: {}.", setting.name(), setting.description()));
        if let Some(kruise) = &self.kruise {
            let flags = kruise::flags(setting).join(" ");
            let flags = if flags.is_empty() { "its defaults".to_owned() } else { flags };
            table.note(format!("The BroadcastJob: {kruise}, with {flags}."));
        }
        if setting == self.life_setting && !self.kubelets.is_empty() {
            let seconds = table::spread(self.kubelets.iter().copied(), 1);
            table.note(format!(
                "The simulated kubelets alone, with all pods on their nodes and nothing else to do: {seconds} s."
            ));
        }
        table
    }

    fn process_table(&self, setting: Setting) -> Table {
        self.rows(
            format!("Processor time and memory to completion, {}", setting.name()),
            setting,
            &[
                ("CPU s", 2, |one| Some(one.cpu_seconds)),
                ("CPU s per 1,000 pods", 2, |one| Some(one.cpu_seconds_per_thousand())),
                ("API server's CPU s", 1, |one| Some(one.api_server_cpu_seconds)),
                ("strangers' CPU %", 0, |one| one.others_percent),
                ("passes", 0, |one| one.passes.map(float)),
                ("RSS before MiB", 1, |one| one.memory_before.map(|memory| mebibytes(memory.rss_kib))),
                ("peak RSS MiB", 1, |one| one.memory.map(|memory| mebibytes(memory.peak_kib))),
                ("settled RSS MiB", 1, |one| one.memory.map(|memory| mebibytes(memory.rss_kib))),
                ("settled PSS MiB", 1, |one| one.memory.map(|memory| mebibytes(memory.pss_kib))),
            ],
        )
    }

    /// A row for each contender: figures of its rounds, each with so many decimals.
    fn rows(&self, title: impl Into<String>, setting: Setting, figures: &[Figure<Completion>]) -> Table {
        let mut table = Table::of(title, figures);
        for contender in Contender::ALL {
            let runs: Vec<&Completion> = self.of(setting, contender).collect();
            if !runs.is_empty() {
                table.figures(contender.name(), &runs, figures);
            }
        }
        table
    }

    fn ratio_table(&self, setting: Setting) -> Table {
        let mut table = Table::new(
            format!("DaemonJob / others, {}", setting.name()),
            ["creating", "last created", "done", "writes", "CPU", "peak RSS"],
        );
        for other in Contender::ALL.into_iter().filter(|other| *other != Contender::DaemonJob) {
            if self.of(setting, other).next().is_none() {
                continue;
            }
            let show = |figure: &dyn Fn(&Completion) -> f64| {
                table::interval(stats::interval(self.pairs(setting, other, figure)), 2)
            };
            let cells = [
                show(&|one| one.creating_seconds),
                show(&|one| one.last_created_seconds),
                show(&|one| one.done_seconds),
                show(&|one| float(one.writes.writes())),
                show(&|one| one.cpu_seconds),
                show(&|one| one.memory.map_or(0.0, |memory| mebibytes(memory.peak_kib))),
            ];
            table.row(format!("/ {}", other.name()), cells);
        }
        table
    }

    fn writes_table(&self) -> Table {
        let setting = self.life_setting;
        let mut table = Table::new(
            format!("Writes by verb and resource, {}, first round", setting.name()),
            ["to completion", "whole life", "whole life, ttl 0"],
        );
        for contender in Contender::ALL.into_iter().filter(|one| *one != Contender::Bare) {
            let Some(completion) = self.of(setting, contender).find(|one| one.round == 1) else { continue };
            let ours = contender == Contender::DaemonJob;
            let life = self.lives.first().filter(|_| ours).map(|life| &life.writes);
            let ttl = self.ttl_lives.first().filter(|_| ours).map(|life| &life.writes);
            table.tallies(contender.name(), &[Some(&completion.writes), life, ttl]);
        }
        table
    }

    fn life_table(&self) -> Table {
        let mut table =
            Table::new(format!("The rest of a DaemonJob's life, {}", self.life_setting.name()), ["measured"]);
        let nodes = float(self.nodes);
        let mut show = |what: &str, places: usize, values: Vec<f64>| {
            table.row(what, [table::spread(values, places)]);
        };
        let lives = |figure: fn(&Life) -> f64| self.lives.iter().map(figure).collect::<Vec<f64>>();
        show("size of the DaemonJob, KiB", 1, lives(|life| kibibytes(life.sizes.daemonjob_bytes)));
        show("size of its status, KiB", 1, lives(|life| kibibytes(life.sizes.status_bytes)));
        show("ConfigMaps of its ledger", 0, lives(|life| float(life.sizes.shards)));
        show("size of the largest of them, KiB", 1, lives(|life| kibibytes(life.sizes.largest_shard_bytes)));
        show("most data in one of them, KiB", 1, lives(|life| kibibytes(life.sizes.most_data_bytes)));
        show("restart: first pass over, s", 2, lives(|life| life.restart.first_pass_seconds));
        show("restart: writes", 0, lives(|life| float(life.restart.writes.writes())));
        show(
            "restart: extra pods",
            0,
            self.lives.iter().map(|life| signed(life.restart.extra_pods)).collect(),
        );
        show("restart: peak MiB", 1, lives(|life| mebibytes(life.restart.memory.peak_kib)));
        show("restart: settled MiB", 1, lives(|life| mebibytes(life.restart.memory.rss_kib)));
        show("restart: PSS MiB", 1, lives(|life| mebibytes(life.restart.memory.pss_kib)));
        show(
            "changes of nodes that nobody looks at",
            0,
            lives(|life| float(life.node_events.unread_changes)),
        );
        show(
            "changes of nodes that nobody looks at: passes",
            0,
            lives(|life| float(life.node_events.unread_passes)),
        );
        show("changes of one node's label", 0, lives(|life| float(life.node_events.label_changes)));
        show("changes of one node's label: passes", 0, lives(|life| float(life.node_events.label_passes)));
        let passes = self.lives.iter().filter_map(|life| Some(life.node_events.pass_seconds? * 1_000.0));
        show("such a pass, mean ms", 3, passes.collect());
        show("all these changes: writes", 0, lives(|life| float(life.node_events.writes.writes())));
        show("deletion: until the last pod was gone, s", 1, lives(|life| life.deletion_seconds));
        let per_pod = |tally: &Tally| ratio(float(tally.writes()), nodes).unwrap_or_default();
        show("whole life: writes per pod", 3, self.lives.iter().map(|life| per_pod(&life.writes)).collect());
        show("ttl 0: complete after s", 1, self.ttl_lives.iter().map(|life| life.done_seconds).collect());
        show(
            "ttl 0: pods gone by themselves, s",
            1,
            self.ttl_lives.iter().filter_map(|life| life.gone_seconds).collect(),
        );
        show(
            "ttl 0: whole life: writes per pod",
            3,
            self.ttl_lives.iter().map(|life| per_pod(&life.writes)).collect(),
        );
        if self.ttl_lives.iter().any(|life| life.gone_seconds.is_none()) {
            table.note("With ttlSecondsAfterFinished 0 the pods stayed until the DaemonJob was deleted.");
        }
        table
    }

    /// What must hold and does not, a sentence each.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for one in self.completions.iter().filter(|one| one.contender == Contender::DaemonJob) {
            let mut fail =
                |what: String| failures.push(format!("round {} {}: {what}", one.round, one.setting.name()));
            // Ours has no request to spare: one that was refused counts, and is a failure of its own.
            let (writes, limit) = (float(one.writes.requests()), self.write_limit(one));
            if writes > limit {
                fail(format!("{writes} writes to completion, more than {limit:.0}"));
            }
            if one.writes.refused > 0 {
                fail(format!("{} writes were refused, by code {}", one.writes.refused, one.writes.codes()));
            }
        }
        for life in &self.lives {
            let mut fail = |what: String| failures.push(format!("round {}: {what}", life.round));
            let Life { restart, node_events, .. } = life;
            if restart.writes.requests() > 0 {
                fail(format!("the restart wrote: {}", restart.writes.describe()));
            }
            if restart.extra_pods > 0 {
                fail(format!("the restart made {} pods", restart.extra_pods));
            }
            let NodeEvents { unread_changes, unread_passes, label_changes, label_passes, writes, .. } =
                node_events;
            if *unread_passes > 0 {
                fail(format!(
                    "{unread_changes} changes of nodes that nobody looks at caused {unread_passes} passes"
                ));
            }
            if label_passes > label_changes {
                fail(format!("{label_changes} changes of a label of a node caused {label_passes} passes"));
            }
            if writes.requests() > 0 {
                fail(format!("changes of nodes wrote: {}", writes.describe()));
            }
        }
        failures
    }

    fn write_limit(&self, one: &Completion) -> f64 {
        let nodes = float(self.nodes);
        let limit = nodes * WRITES_PER_POD;
        if self.nodes >= MANY_NODES {
            limit
        } else {
            limit.max(nodes + f64::from(FIXED_WRITES) + one.done_seconds.ceil())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(contender: Contender, round: usize, seconds: f64, writes: u64) -> Completion {
        Completion {
            contender,
            setting: Setting::Tuned,
            round,
            creating_seconds: seconds,
            last_created_seconds: seconds,
            done_seconds: 2.0 * seconds,
            client_seconds: None,
            nodes_covered: 1_000,
            writes: Tally {
                by_kind: [("create pods".to_owned(), writes)].into(),
                pods: 1_000,
                ..Tally::default()
            },
            cpu_seconds: 0.5,
            api_server_cpu_seconds: 5.0,
            others_percent: Some(1.0),
            passes: None,
            memory_before: None,
            memory: None,
        }
    }

    fn results(nodes: usize, completions: Vec<Completion>) -> Results {
        Results {
            nodes,
            completions,
            life_setting: Setting::Tuned,
            lives: vec![life()],
            ttl_lives: Vec::new(),
            kruise: None,
            kubelets: vec![1.4, 1.6],
        }
    }

    fn life() -> Life {
        Life {
            round: 1,
            sizes: Sizes {
                daemonjob_bytes: 4_096,
                status_bytes: 1_024,
                shards: 8,
                largest_shard_bytes: 30_000,
                most_data_bytes: 20_000,
            },
            restart: Restart {
                first_pass_seconds: 0.1,
                writes: Tally::default(),
                extra_pods: 0,
                memory: Memory::default(),
            },
            node_events: NodeEvents {
                unread_changes: 20,
                unread_passes: 0,
                label_changes: 10,
                label_passes: 10,
                pass_seconds: Some(0.001),
                writes: Tally::default(),
            },
            deletion_seconds: 3.0,
            writes: Tally::default(),
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let results = results(
            1_000,
            vec![
                completion(Contender::Bare, 1, 1.0, 1_000),
                completion(Contender::DaemonJob, 1, 2.0, 1_003),
                completion(Contender::DaemonJob, 2, 3.0, 1_003),
                completion(Contender::Bare, 2, 2.0, 1_000),
            ],
        );
        let ratio = results.pairs(Setting::Tuned, Contender::Bare, |one| one.creating_seconds);
        assert_eq!(ratio, [2.0, 1.5]);
        assert_eq!(results.pairs(Setting::Tuned, Contender::Job, |one| one.creating_seconds), [0.0; 0]);
        assert_eq!(results.failures(), Vec::<String>::new());
        let text: String = results.tables().iter().map(Table::plain).collect();
        assert!(text.contains("1.75 (1.50 to 2.00)"), "{text}");
        assert!(text.contains("DaemonJob / others, tuned"), "{text}");
    }

    #[test]
    fn counts_that_are_too_high_are_failures() {
        let ours =
            |nodes, writes| results(nodes, vec![completion(Contender::DaemonJob, 1, 1.0, writes)]).failures();
        assert!(ours(1_000, 1_030).is_empty());
        assert_eq!(ours(1_000, 1_031), ["round 1 tuned: 1031 writes to completion, more than 1030"]);
        // Two seconds, at one status a second.
        assert!(ours(10, 31).is_empty());
        assert_eq!(ours(10, 32).len(), 1);

        let refused = Tally {
            by_kind: [("create pods".to_owned(), 1_002), ("patch daemonjobs/status".to_owned(), 1)].into(),
            refused: 2,
            refused_by_code: [(429, 2)].into(),
            pods: 1_000,
            ..Tally::default()
        };
        let one = Completion { writes: refused, ..completion(Contender::DaemonJob, 1, 1.0, 0) };
        assert!((one.writes_per_pod() - 1.001).abs() < f64::EPSILON, "nothing was changed by the two");
        assert_eq!(
            results(1_000, vec![one]).failures(),
            ["round 1 tuned: 2 writes were refused, by code 429: 2"]
        );

        let mut results = results(1_000, Vec::new());
        results.lives[0].restart.extra_pods = 1;
        results.lives[0].restart.writes.by_kind.insert("create pods".to_owned(), 1);
        results.lives[0].node_events.unread_passes = 2;
        results.lives[0].node_events.label_passes = 11;
        let failures = results.failures();
        assert_eq!(failures.len(), 4, "{failures:?}");
        assert!(failures[0].ends_with("the restart wrote: create pods: 1"), "{failures:?}");
    }
}
