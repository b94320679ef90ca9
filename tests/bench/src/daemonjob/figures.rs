//! The measurements as plain data, their tables, and the limits of their counts.

use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::kruise;
use crate::attempts::{self, Attempt};
use crate::contest::Cost;
use crate::process::Memory;
use crate::report::Measurements;
use crate::rig::Setting;
use crate::stats::{float, kibibytes, mebibytes, ratio, signed};
use crate::table::{self, Figure, Table};

/// The limit of writes per pod until a DaemonJob is complete.
const WRITES_PER_POD: f64 = 1.03;

/// The number of succeeded pods that the manager keeps. Each other pod needs a deletion, and the removal of its
/// finalizer.
const KEPT_PODS: usize = 1_000;

/// The limit of writes besides one per pod and one status a second. These are the ledger's 16 ConfigMaps, and
/// the status at the beginning, at the end and once between.
pub const FIXED_WRITES: u16 = 16 + 3;

/// In the order of odd rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Plain requests, over the number of connections of Quintet.
    #[strum(to_string = "bare creation")]
    Bare,
    DaemonJob,
    /// The kind of OpenKruise.
    BroadcastJob,
    /// An Indexed Job of Kubernetes.
    Job,
    /// The kind of Kubernetes. Its pods do not end.
    DaemonSet,
}

/// One contender in one round. Times begin at the creation of the object, or at the first request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Completion {
    pub contender: Contender,
    pub setting: Setting,
    pub round: usize,
    /// From the first request to make a pod to the answer to the last one, by the API server's clock.
    pub creating_seconds: f64,
    /// Until the answer to the last creation.
    pub last_created_seconds: f64,
    /// Until Complete, all ready, or all pods Succeeded.
    pub done_seconds: f64,
    /// The `creating_seconds` of bare creation by the client's clock.
    pub client_seconds: Option<f64>,
    pub nodes_covered: usize,
    /// From the beginning, late writes included.
    pub writes: Tally,
    #[serde(flatten)]
    pub cost: Cost,
}

impl Attempt for Completion {
    type Contender = Contender;
    type Under = Setting;

    fn key(&self) -> (Contender, Setting, usize) {
        (self.contender, self.setting, self.round)
    }
}

/// A restart with all nodes finished.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// From the start of the process until it was ready and its first reconcile was done.
    pub first_pass_seconds: f64,
    pub writes: Tally,
    pub extra_pods: i64,
    pub memory: Memory,
}

/// Changes of nodes while all nodes are done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeEvents {
    /// Changes of fields that no DaemonJob reads, such as heartbeats, and the reconciles that they caused.
    pub unread_changes: u64,
    pub unread_passes: u64,
    /// Changes of a label of one node, and the reconciles that they caused.
    pub label_changes: u64,
    pub label_passes: u64,
    /// The mean time of these reconciles.
    pub pass_seconds: Option<f64>,
    pub writes: Tally,
}

/// The size of objects that grow with the number of nodes, when all are done, as JSON from the API server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sizes {
    /// With the fields that the API server manages.
    pub daemonjob_bytes: usize,
    pub status_bytes: usize,
    /// The number of ConfigMaps of the ledger.
    pub shards: usize,
    /// With the fields that the API server manages.
    pub largest_shard_bytes: usize,
    /// The data of the ConfigMap with the most.
    pub most_data_bytes: usize,
}

/// A DaemonJob from its creation until the last of its pods is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    pub round: usize,
    pub sizes: Sizes,
    /// The latency of the canary until the finalizers of the pods were removed, p99.
    #[serde(default)]
    pub release_canary_ms: Option<f64>,
    pub restart: Restart,
    pub node_events: NodeEvents,
    /// From the deletion of the DaemonJob until its last pod was gone.
    pub deletion_seconds: f64,
    pub writes: Tally,
}

/// A DaemonJob with `ttlSecondsAfterFinished: 0`, from its creation until the last of its pods is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TtlLife {
    pub round: usize,
    pub done_seconds: f64,
    /// From then until its pods were gone. `None` if they stayed until the DaemonJob was deleted.
    pub gone_seconds: Option<f64>,
    pub writes: Tally,
}

/// Everything measured with one number of nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub nodes: usize,
    #[serde(default)]
    pub completions: Vec<Completion>,
    /// The setting of the fields below.
    pub life_setting: Setting,
    #[serde(default)]
    pub lives: Vec<Life>,
    #[serde(default)]
    pub ttl_lives: Vec<TtlLife>,
    #[serde(default)]
    pub kruise: Option<String>,
    /// Seconds of the simulated kubelets alone, with all pods on their nodes, one value for each round.
    #[serde(default)]
    pub kubelets: Vec<f64>,
}

const COMPLETION: [Figure<Completion>; 9] = [
    ("creating s", 2, |one| Some(one.creating_seconds)),
    ("last created s", 2, |one| Some(one.last_created_seconds)),
    ("done s", 1, |one| Some(one.done_seconds)),
    ("nodes with pods", 0, |one| Some(float(one.nodes_covered))),
    ("writes", 0, |one| Some(float(one.writes.writes()))),
    ("writes per pod", 3, |one| writes_per_pod(&one.writes)),
    ("rejected", 0, |one| Some(float(one.writes.refused))),
    ("Events", 0, |one| Some(float(one.writes.events))),
    ("canary p99 ms", 0, |one| one.cost.canary_ms),
];

const PROCESS: [Figure<Completion>; 9] = [
    ("CPU s", 2, |one| Some(one.cost.cpu_seconds)),
    ("CPU s per 1,000 pods", 2, |one| ratio(one.cost.cpu_seconds * 1_000.0, float(one.writes.pods))),
    ("API server's CPU s", 1, |one| Some(one.cost.api_server_cpu_seconds)),
    ("other processes' CPU %", 0, |one| one.cost.others_percent),
    ("reconciles", 0, |one| one.cost.passes.map(float)),
    ("RSS before MiB", 1, |one| Some(mebibytes(one.cost.memory_before?.rss_kib))),
    ("peak RSS MiB", 1, |one| Some(mebibytes(one.cost.memory?.peak_kib))),
    ("settled RSS MiB", 1, |one| Some(mebibytes(one.cost.memory?.rss_kib))),
    ("settled PSS MiB", 1, |one| Some(mebibytes(one.cost.memory?.pss_kib))),
];

const RATIOS: [Figure<Completion>; 7] = [
    ("creating", 2, |one| Some(one.creating_seconds)),
    ("last created", 2, |one| Some(one.last_created_seconds)),
    ("done", 2, |one| Some(one.done_seconds)),
    ("writes", 2, |one| Some(float(one.writes.writes()))),
    ("CPU", 2, |one| Some(one.cost.cpu_seconds)),
    ("peak RSS", 2, |one| Some(mebibytes(one.cost.memory?.peak_kib))),
    ("canary p99", 2, |one| one.cost.canary_ms),
];

const LIFE: [Figure<Life>; 20] = [
    ("size of the DaemonJob, KiB", 1, |life| Some(kibibytes(life.sizes.daemonjob_bytes))),
    ("size of its status, KiB", 1, |life| Some(kibibytes(life.sizes.status_bytes))),
    ("ConfigMaps of its ledger", 0, |life| Some(float(life.sizes.shards))),
    ("largest ConfigMap, KiB", 1, |life| Some(kibibytes(life.sizes.largest_shard_bytes))),
    ("most data in a ConfigMap, KiB", 1, |life| Some(kibibytes(life.sizes.most_data_bytes))),
    ("removal of finalizers: canary p99 ms", 0, |life| life.release_canary_ms),
    ("restart: first reconcile done, s", 2, |life| Some(life.restart.first_pass_seconds)),
    ("restart: writes", 0, |life| Some(float(life.restart.writes.writes()))),
    ("restart: extra pods", 0, |life| Some(signed(life.restart.extra_pods))),
    ("restart: peak MiB", 1, |life| Some(mebibytes(life.restart.memory.peak_kib))),
    ("restart: settled MiB", 1, |life| Some(mebibytes(life.restart.memory.rss_kib))),
    ("restart: PSS MiB", 1, |life| Some(mebibytes(life.restart.memory.pss_kib))),
    ("changes of unread node fields", 0, |life| Some(float(life.node_events.unread_changes))),
    ("changes of unread node fields: reconciles", 0, |life| Some(float(life.node_events.unread_passes))),
    ("changes of one node's label", 0, |life| Some(float(life.node_events.label_changes))),
    ("changes of one node's label: reconciles", 0, |life| Some(float(life.node_events.label_passes))),
    ("mean of these reconciles, ms", 3, |life| Some(life.node_events.pass_seconds? * 1_000.0)),
    ("all node changes: writes", 0, |life| Some(float(life.node_events.writes.writes()))),
    ("deletion: until the last pod was gone, s", 1, |life| Some(life.deletion_seconds)),
    ("whole life: writes per pod", 3, |life| writes_per_pod(&life.writes)),
];

const TTL_LIFE: [Figure<TtlLife>; 3] = [
    ("ttl 0: complete after s", 1, |life| Some(life.done_seconds)),
    ("ttl 0: pods then gone after s", 1, |life| life.gone_seconds),
    ("ttl 0: whole life: writes per pod", 3, |life| writes_per_pod(&life.writes)),
];

fn writes_per_pod(writes: &Tally) -> Option<f64> {
    ratio(float(writes.writes()), float(writes.pods))
}

impl Measurements for Results {
    const NAME: &'static str = "daemonjob";
    const TITLE: &'static str = "DaemonJob benchmark";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for setting in attempts::conditions(&self.completions) {
            let title = format!("Processor time and memory to completion, {setting}");
            tables.push(self.completion_table(setting));
            tables.push(attempts::table(title, &self.completions, setting, &PROCESS));
            tables.push(self.ratio_table(setting));
        }
        tables.push(self.writes_table());
        tables.push(self.life_table());
        tables
    }

    fn failures(&self) -> Option<Vec<String>> {
        let ours = self.completions.iter().filter(|one| one.contender == Contender::DaemonJob);
        let mut failures: Vec<String> = ours.flat_map(|one| self.failures_to_completion(one)).collect();
        failures.extend(self.lives.iter().flat_map(Life::failures));
        Some(failures)
    }

    fn caveats(&self) -> Vec<String> {
        if self.completions.iter().any(|one| one.round > 1) {
            return Vec::new();
        }
        let has_run =
            |contender: &&Contender| self.completions.iter().any(|one| one.contender == **contender);
        let order = Contender::VARIANTS.iter().filter(has_run).map(Contender::to_string);
        vec![format!(
            "This run has one round. The contenders ran one after another on one cluster ({}), so the ratios include \
             changes over time.",
            order.collect::<Vec<_>>().join(", ")
        )]
    }
}

impl Results {
    fn of(&self, setting: Setting, contender: Contender) -> impl Iterator<Item = &Completion> {
        attempts::of(&self.completions, setting, contender)
    }

    fn completion_table(&self, setting: Setting) -> Table {
        let title = format!("To completion, {setting}");
        let mut table = attempts::table(title, &self.completions, setting, &COMPLETION);
        if self.of(setting, Contender::DaemonJob).count() > 1 {
            table.note(table::MEDIAN_AND_WORST);
        }
        table.note(format!("Flags, {setting}: {}.", setting.description()));
        if let Some(kruise) = &self.kruise {
            let flags = kruise::flags(setting).join(" ");
            let flags = if flags.is_empty() { "its defaults".to_owned() } else { flags };
            table.note(format!("BroadcastJob: {kruise}, with {flags}."));
        }
        if setting == self.life_setting && !self.kubelets.is_empty() {
            let seconds = table::spread(self.kubelets.iter().copied(), 1);
            table.note(format!(
                "The simulated kubelets alone, with all pods already on their nodes, took {seconds} s."
            ));
        }
        table
    }

    fn ratio_table(&self, setting: Setting) -> Table {
        let figures = table::measured(&RATIOS, &self.completions.iter().collect::<Vec<_>>());
        let mut table = Table::of(format!("DaemonJob / others, {setting}"), &figures);
        for other in Contender::VARIANTS.iter().filter(|other| **other != Contender::DaemonJob) {
            if self.of(setting, *other).next().is_some() {
                let (name, both) = (format!("/ {other}"), (Contender::DaemonJob, *other));
                attempts::add_ratios(&mut table, name, &self.completions, setting, both, &figures);
            }
        }
        table
    }

    fn writes_table(&self) -> Table {
        let setting = self.life_setting;
        let title = format!("Writes by verb and resource, {setting}, first round");
        let mut table = Table::new(title, ["to completion", "whole life", "whole life, ttl 0"]);
        for contender in Contender::VARIANTS.iter().filter(|one| **one != Contender::Bare) {
            let Some(completion) = self.of(setting, *contender).find(|one| one.round == 1) else { continue };
            let ours = *contender == Contender::DaemonJob;
            let life = self.lives.first().filter(|_| ours).map(|life| &life.writes);
            let ttl = self.ttl_lives.first().filter(|_| ours).map(|life| &life.writes);
            table.tallies(&contender.to_string(), &[Some(&completion.writes), life, ttl]);
        }
        table
    }

    fn life_table(&self) -> Table {
        let title = format!("The rest of a DaemonJob's life, {}", self.life_setting);
        let mut table = Table::new(title, ["measured"]);
        table.rows_of(&[self.lives.iter().collect()], &LIFE);
        table.rows_of(&[self.ttl_lives.iter().collect()], &TTL_LIFE);
        if self.ttl_lives.iter().any(|life| life.gone_seconds.is_none()) {
            table.note("With ttlSecondsAfterFinished 0 the pods stayed until the DaemonJob was deleted.");
        }
        table
    }

    /// A rejected request counts as a write, and is a separate failure.
    fn failures_to_completion(&self, one: &Completion) -> Vec<String> {
        let Completion { round, setting, writes, .. } = one;
        let (made, limit) = (float(writes.requests()), self.write_limit(one));
        let mut failures = Vec::new();
        if made > limit {
            failures.push(format!("{made} writes to completion, more than {limit:.0}"));
        }
        if writes.refused > 0 {
            failures.push(format!("{} rejected writes ({})", writes.refused, writes.codes()));
        }
        failures.into_iter().map(|what| format!("round {round} {setting}: {what}")).collect()
    }

    fn write_limit(&self, one: &Completion) -> f64 {
        let nodes = float(self.nodes);
        let limit = (nodes * WRITES_PER_POD).max(nodes + f64::from(FIXED_WRITES) + one.done_seconds.ceil());
        limit + 2.0 * float(self.nodes.saturating_sub(KEPT_PODS))
    }
}

impl Life {
    fn failures(&self) -> Vec<String> {
        let Self { restart, node_events, .. } = self;
        let NodeEvents { unread_changes, unread_passes, label_changes, label_passes, writes, .. } =
            node_events;
        let mut failures = Vec::new();
        if restart.writes.requests() > 0 {
            failures.push(format!("the restart wrote: {}", restart.writes.describe()));
        }
        if restart.extra_pods > 0 {
            failures.push(format!("the restart created {} pods", restart.extra_pods));
        }
        if *unread_passes > 0 {
            failures.push(format!(
                "{unread_changes} changes of unread node fields caused {unread_passes} reconciles"
            ));
        }
        if label_passes > label_changes {
            failures
                .push(format!("{label_changes} changes of a node's label caused {label_passes} reconciles"));
        }
        if writes.requests() > 0 {
            failures.push(format!("node changes caused writes: {}", writes.describe()));
        }
        failures.into_iter().map(|what| format!("round {}: {what}", self.round)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Results of one valid round, with this tally of the DaemonJob's writes.
    fn results(nodes: usize, writes: &Value) -> Results {
        let (none, memory) = (json!({}), json!({"rss_kib": 0, "peak_kib": 0, "pss_kib": 0}));
        serde_json::from_value(json!({
            "nodes": nodes,
            "life_setting": "tuned",
            "completions": [{
                "contender": "daemon-job", "setting": "tuned", "round": 1, "creating_seconds": 1.0,
                "last_created_seconds": 1.0, "done_seconds": 2.0, "nodes_covered": nodes, "writes": writes,
                "cpu_seconds": 0.5, "api_server_cpu_seconds": 5.0,
            }],
            "lives": [{
                "round": 1, "deletion_seconds": 3.0, "writes": none,
                "sizes": {"daemonjob_bytes": 4_096, "status_bytes": 1_024, "shards": 8,
                    "largest_shard_bytes": 30_000, "most_data_bytes": 20_000},
                "restart": {"first_pass_seconds": 0.1, "writes": none, "extra_pods": 0, "memory": memory},
                "node_events": {"unread_changes": 20, "unread_passes": 0, "label_changes": 10,
                    "label_passes": 10, "writes": none},
            }],
        }))
        .unwrap()
    }

    #[test]
    fn too_many_writes_are_failures() {
        let failures = |nodes, writes: u64| {
            results(nodes, &json!({"by_kind": {"create pods": writes}, "pods": nodes})).failures().unwrap()
        };
        assert!(failures(1_000, 1_030).is_empty());
        assert_eq!(failures(1_000, 1_031), ["round 1 tuned: 1031 writes to completion, more than 1030"]);
        // Two seconds, at one status a second.
        assert!(failures(10, 31).is_empty());
        assert_eq!(failures(10, 32).len(), 1);
        let refused = json!({"by_kind": {"create pods": 1_002}, "refused": 2, "refused_by_code": {"429": 2}});
        let expected = ["round 1 tuned: 2 rejected writes (429: 2)"];
        assert_eq!(results(1_000, &refused).failures().unwrap(), expected);
    }

    #[test]
    fn restarts_and_unread_changes_cause_nothing() {
        let mut results = results(1_000, &json!({}));
        assert_eq!(results.failures().unwrap(), [""; 0]);
        results.lives[0].restart.extra_pods = 1;
        results.lives[0].restart.writes.by_kind.insert("create pods".to_owned(), 1);
        results.lives[0].node_events.unread_passes = 2;
        results.lives[0].node_events.label_passes = 11;
        let failures = results.failures().unwrap();
        assert_eq!(failures.len(), 4, "{failures:?}");
        assert!(failures[0].ends_with("the restart wrote: create pods: 1"), "{failures:?}");
    }
}
