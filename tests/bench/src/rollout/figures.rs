//! The measurements as plain data, their tables, and the limits of their counts.

use quintet_daemonjob::ledger::SHARDS;
use quintet_localcluster::audit::Tally;
use serde::{Deserialize, Serialize};

use crate::attempts::{self, Attempt};
use crate::contest::Cost;
use crate::report::Measurements;
use crate::rig::Setting;
use crate::stats::{float, mebibytes};
use crate::table::{self, Figure, Table, count};

/// The allowed status writes besides one a second: at the beginning, at the end, and once between.
pub const FIXED_WRITES: u16 = 3;

/// The manager writes lines of the ledger that nothing waits for after this number of seconds.
const LEDGER_PAUSE: f64 = 300.0;

/// In the order of odd rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// In waves, with settling.
    #[strum(to_string = "DaemonJob in waves")]
    DaemonJob,
    /// The kind of OpenKruise.
    BroadcastJob,
    /// The rolling update of the kind of Kubernetes.
    #[strum(to_string = "DaemonSet, rolling update")]
    DaemonSet,
    /// The kind of the system-upgrade-controller.
    #[strum(to_string = "Plan of system-upgrade-controller")]
    Plan,
}

/// The fleet, the template that breaks it, and the rules of the rollout.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scenario {
    pub nodes: usize,
    /// A node breaks if its number is a multiple of this.
    pub breaks_every: usize,
    /// From the success on a node until the node is not Ready.
    pub breaks_after_seconds: u32,
    pub settle_seconds: u32,
    pub lost_after_seconds: u32,
    /// A rollout has stopped if it reaches no further node for this time.
    pub quiet_seconds: u32,
}

impl Scenario {
    pub fn full(nodes: usize) -> Self {
        Self {
            nodes,
            breaks_every: 20,
            breaks_after_seconds: 20,
            settle_seconds: 60,
            lost_after_seconds: 30,
            quiet_seconds: 300,
        }
    }

    /// A smoke test. Many nodes break, so that one of the first wave does.
    pub fn small(nodes: usize) -> Self {
        Self {
            nodes,
            breaks_every: 3,
            breaks_after_seconds: 2,
            settle_seconds: 10,
            lost_after_seconds: 2,
            quiet_seconds: 60,
        }
    }

    /// The number of nodes at a time, which is also the size of the first wave.
    pub fn parallelism(&self) -> usize {
        self.nodes / 10
    }

    /// Whether the template breaks a node.
    pub fn breaks(&self, node: &str) -> bool {
        let number = node.rsplit('-').next().and_then(|number| number.parse::<usize>().ok());
        number.is_some_and(|number| number.is_multiple_of(self.breaks_every))
    }
}

/// The rollout of a contender with a template that breaks nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub contender: Contender,
    pub round: usize,
    /// Nodes on which a pod of the template has started.
    pub reached: usize,
    pub broken: usize,
    /// Nodes that the rollout did not reach.
    pub left: usize,
    /// From the beginning of the rollout until it reached its last node.
    pub last_reached_seconds: f64,
    /// The version of a peer.
    pub version: Option<String>,
    /// The first hold of a DaemonJob.
    pub hold: Option<Hold>,
}

/// The answer of `quintet rollout status` during a hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hold {
    pub exit_code: Option<i32>,
    pub text: String,
    /// The parts that a user needs and the text has not.
    pub missing: Vec<String>,
}

/// The rollout rules of a DaemonJob with a good template, in the order of odd rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    #[strum(to_string = "without rollout fields")]
    None,
    /// With the program of `--beside`.
    #[strum(to_string = "without rollout fields, other build")]
    NoneOtherBuild,
    #[strum(to_string = "in waves")]
    Waves,
}

/// A DaemonJob from its creation until it is complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Costed {
    pub rules: Rules,
    pub round: usize,
    pub done_seconds: f64,
    /// Late writes included, without releases of pods.
    pub writes: Tally,
    #[serde(flatten)]
    pub cost: Cost,
}

impl Costed {
    fn ledger_writes(&self) -> u64 {
        let of_ledger = |(kind, count): (&String, &u64)| kind.ends_with(" configmaps").then_some(*count);
        self.writes.by_kind.iter().filter_map(of_ledger).sum()
    }
}

impl Attempt for Stop {
    type Contender = Contender;
    type Under = ();

    fn key(&self) -> (Contender, (), usize) {
        (self.contender, (), self.round)
    }
}

impl Attempt for Costed {
    type Contender = Rules;
    type Under = ();

    fn key(&self) -> (Rules, (), usize) {
        (self.rules, (), self.round)
    }
}

/// Everything measured with one number of nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub scenario: Scenario,
    #[serde(default)]
    pub stops: Vec<Stop>,
    #[serde(default)]
    pub costs: Vec<Costed>,
}

const STOPS: [Figure<Stop>; 4] = [
    ("nodes reached", 0, |one| Some(float(one.reached))),
    ("nodes broken", 0, |one| Some(float(one.broken))),
    ("nodes left", 0, |one| Some(float(one.left))),
    ("last node reached s", 0, |one| Some(one.last_reached_seconds)),
];

const COSTS: [Figure<Costed>; 9] = [
    ("done s", 1, |one| Some(one.done_seconds)),
    ("writes", 0, |one| Some(float(one.writes.writes()))),
    ("of these status", 0, |one| Some(float(one.writes.status_requests()))),
    ("of these ledger", 0, |one| Some(float(one.ledger_writes()))),
    ("rejected", 0, |one| Some(float(one.writes.refused))),
    ("reconciles", 0, |one| one.cost.passes.map(float)),
    ("CPU s", 2, |one| Some(one.cost.cpu_seconds)),
    ("API server's CPU s", 1, |one| Some(one.cost.api_server_cpu_seconds)),
    ("peak RSS MiB", 1, |one| Some(mebibytes(one.cost.memory?.peak_kib))),
];

const RATIOS: [Figure<Costed>; 4] = [
    ("done", 2, |one| Some(one.done_seconds)),
    ("writes", 3, |one| Some(float(one.writes.writes()))),
    ("CPU", 2, |one| Some(one.cost.cpu_seconds)),
    ("peak RSS", 2, |one| Some(mebibytes(one.cost.memory?.peak_kib))),
];

impl Measurements for Results {
    const NAME: &'static str = "rollout";
    const TITLE: &'static str = "Rollout benchmark";
    const METHOD: &'static str = include_str!("method.md");

    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.stops_table(), self.costs_table()];
        if self.costs.iter().any(|one| one.rules == Rules::NoneOtherBuild) {
            let mut table = Table::of("This build / the other build, without rollout fields", &RATIOS);
            let both = (Rules::None, Rules::NoneOtherBuild);
            attempts::add_ratios(&mut table, "DaemonJob".to_owned(), &self.costs, (), both, &RATIOS);
            tables.push(table);
        }
        tables
    }

    fn failures(&self) -> Option<Vec<String>> {
        let of_stop = |one: &Stop| one.failures(&self.scenario);
        let mut failures: Vec<String> = self.stops.iter().flat_map(of_stop).collect();
        failures.extend(self.costs.iter().flat_map(Costed::failures));
        Some(failures)
    }
}

impl Results {
    fn stops_table(&self) -> Table {
        let Scenario {
            nodes, breaks_every, breaks_after_seconds, settle_seconds, lost_after_seconds, ..
        } = self.scenario;
        let mut table = attempts::table("Nodes broken before it stops", &self.stops, (), &STOPS);
        if self.stops.iter().any(|one| one.round > 1) {
            table.note(table::MEDIAN_AND_WORST);
        }
        table.note(format!(
            "{} nodes, {} at a time, with {settle_seconds} s for each node to settle. The template breaks {} nodes, \
             {breaks_after_seconds} s after their success. DaemonJob: nodeLostAfterSeconds {lost_after_seconds}.",
            count(nodes),
            count(self.scenario.parallelism()),
            count(nodes / breaks_every),
        ));
        let mut versions: Vec<&str> = self.stops.iter().filter_map(|one| one.version.as_deref()).collect();
        versions.sort_unstable();
        versions.dedup();
        if !versions.is_empty() {
            table.note(format!("Peers: {}.", versions.join("; ")));
        }
        table.note(format!("Flags, as shipped: {}.", Setting::Shipped.description()));
        if let Some(hold) = self.stops.iter().find_map(|one| one.hold.as_ref()) {
            table.note(format!(
                "`quintet rollout status` when the DaemonJob stopped:\n\n```text\n{}\n```",
                hold.text
            ));
        }
        table
    }

    fn costs_table(&self) -> Table {
        let mut table = attempts::table("Complete rollouts of a DaemonJob", &self.costs, (), &COSTS);
        if self.costs.iter().any(|one| one.round > 1) {
            table.note(table::MEDIAN_AND_WORST);
        }
        if let Some(waves) = attempts::of(&self.costs, (), Rules::Waves).next() {
            let limit = ledger_limit(waves.done_seconds);
            table.note(format!(
                "In waves, the limit was {limit:.0} writes of the ledger, for any number of nodes that settle."
            ));
        }
        table
    }
}

/// The most writes of the ledger in a run: each of its ConfigMaps every five minutes, and at the end.
fn ledger_limit(seconds: f64) -> f64 {
    float(SHARDS) * ((seconds / LEDGER_PAUSE).floor() + 1.0)
}

impl Stop {
    fn failures(&self, scenario: &Scenario) -> Vec<String> {
        if self.contender != Contender::DaemonJob {
            return Vec::new();
        }
        let mut failures = Vec::new();
        let limit = scenario.parallelism() + self.broken;
        if self.reached > limit {
            failures.push(format!("reached {} nodes, more than {limit}", self.reached));
        }
        match &self.hold {
            None => failures.push("did not stop".to_owned()),
            Some(Hold { exit_code, missing, .. }) => {
                if *exit_code != Some(3) {
                    failures.push(format!("`quintet rollout status` exited with {exit_code:?} instead of 3"));
                }
                let missing = missing.iter();
                failures.extend(
                    missing.map(|part| format!("`quintet rollout status` does not print \"{part}\"")),
                );
            }
        }
        failures.into_iter().map(|what| format!("round {} {}: {what}", self.round, self.contender)).collect()
    }
}

impl Costed {
    fn failures(&self) -> Vec<String> {
        // The limits of a DaemonJob without rollout fields are those of `cargo xtask bench daemonjob`.
        if self.rules != Rules::Waves {
            return Vec::new();
        }
        let mut failures = Vec::new();
        let (statuses, limit) =
            (self.writes.status_requests(), self.done_seconds.ceil() + f64::from(FIXED_WRITES));
        if float(statuses) > limit {
            failures.push(format!("{statuses} writes of the status, more than {limit:.0}"));
        }
        let (ledger, limit) = (self.ledger_writes(), ledger_limit(self.done_seconds));
        if float(ledger) > limit {
            failures.push(format!("{ledger} writes of the ledger, more than {limit:.0}"));
        }
        if self.writes.refused > 0 {
            failures.push(format!("{} rejected writes ({})", self.writes.refused, self.writes.codes()));
        }
        failures.into_iter().map(|what| format!("round {} {}: {what}", self.round, self.rules)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stop(reached: usize, hold: Option<Hold>) -> Stop {
        let broken = 5;
        let (contender, left) = (Contender::DaemonJob, 1_000 - reached);
        Stop { contender, round: 1, reached, broken, left, last_reached_seconds: 2.0, version: None, hold }
    }

    #[test]
    fn a_daemonjob_must_stop_in_its_first_wave() {
        let scenario = Scenario::full(1_000);
        let hold = |missing: &[&str]| {
            let missing = missing.iter().map(|part| (*part).to_owned()).collect();
            Some(Hold { exit_code: Some(3), text: String::new(), missing })
        };
        assert_eq!(stop(105, hold(&[])).failures(&scenario), [""; 0]);
        let failures = stop(106, hold(&["a node"])).failures(&scenario);
        assert_eq!(failures[0], "round 1 DaemonJob in waves: reached 106 nodes, more than 105");
        assert!(failures[1].ends_with("`quintet rollout status` does not print \"a node\""), "{failures:?}");
        assert!(stop(100, None).failures(&scenario)[0].ends_with("did not stop"));
        let peer = Stop { contender: Contender::Plan, ..stop(1_000, None) };
        assert!(peer.failures(&scenario).is_empty());
    }

    #[test]
    fn settled_nodes_cause_no_writes_of_the_ledger() {
        let failures = |statuses: u64, ledger: u64| {
            let by_kind = json!({"create configmaps": 16, "patch configmaps": ledger - 16,
                "patch daemonjobs/status": statuses});
            let costed = json!({"rules": "waves", "round": 1, "done_seconds": 601.5,
                "writes": {"by_kind": by_kind}, "cpu_seconds": 1.0, "api_server_cpu_seconds": 2.0});
            serde_json::from_value::<Costed>(costed).unwrap().failures()
        };
        assert!(failures(605, 48).is_empty());
        assert_eq!(failures(606, 48), ["round 1 in waves: 606 writes of the status, more than 605"]);
        assert_eq!(failures(605, 49), ["round 1 in waves: 49 writes of the ledger, more than 48"]);
    }
}
