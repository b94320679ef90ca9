//! What PulsarConsumers cost the API server: the manager's writes from an object to its settled status, on a real control
//! plane with simulated nodes.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::bench::audit::{Author, Tally};
use crate::bench::contest::{self, Controller, counts};
use crate::bench::host::{Machine, Versions};
use crate::bench::report::Run;
use crate::bench::rig::{LOOK, Rig};
use crate::bench::table::{Table, count, decimals};
use crate::progress::Step;
use crate::run;

const CONTROLLER: Controller = Controller("pulsarconsumer");

/// So many nodes take all pods of the largest case.
const NODES: usize = 3;

/// With one replica: the Deployment, what is said when it is there, and what is said when its pod is ready.
const WRITES_OF_ONE: u64 = 3;

/// PulsarConsumers that are made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    objects: usize,
    /// Of each.
    replicas: usize,
}

const CASES: [Case; 3] =
    [Case { objects: 1, replicas: 1 }, Case { objects: 50, replicas: 1 }, Case { objects: 1, replicas: 20 }];

impl Case {
    fn name(self) -> String {
        let of = |number: usize, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
        let each = if self.objects == 1 { "" } else { " each" };
        format!("{}, {}{each}", of(self.objects, "object"), of(self.replicas, "replica"))
    }
}

/// What was written for a case.
#[derive(Debug, Serialize)]
struct Written {
    case: Case,
    /// Until all statuses were settled.
    seconds: f64,
    /// Until then, and until nothing trailed behind.
    settling: Tally,
    /// After that, by a manager that was started anew.
    restart: Tally,
}

impl Written {
    fn failures(&self) -> Vec<String> {
        let Case { objects, replicas } = self.case;
        let (name, writes) = (self.case.name(), self.settling.writes());
        let objects = u64::try_from(objects).unwrap_or(u64::MAX);
        let mut failures = Vec::new();
        let mut fail = |bad: bool, what: String| {
            if bad {
                failures.push(format!("{name}: {what}"));
            }
        };
        if replicas == 1 {
            let limit = objects * WRITES_OF_ONE;
            fail(
                writes > limit,
                format!("{writes} writes and not {limit} at most ({})", self.settling.describe()),
            );
        } else {
            // A status a second while pods become ready, the first and the last apart.
            let statuses = self.settling.status_writes();
            let slow =
                self.seconds > f64::from(u32::try_from(statuses).unwrap_or(u32::MAX).saturating_sub(2));
            fail(!slow, format!("{statuses} writes of the status within {:.1} s", self.seconds));
        }
        fail(self.settling.refused > 0, format!("{} writes were refused", self.settling.refused));
        let again = self.restart.writes();
        fail(again > 0, format!("a restart wrote {again} times ({})", self.restart.describe()));
        failures
    }
}

/// Counts, on a cluster of its own.
pub(super) fn run(program: &Path, command: String) -> Result<Run> {
    let machine = Machine::now();
    let rig = Rig::up(NODES, CASES.iter().map(|case| case.objects * case.replicas).sum(), program)?;
    let versions = Versions::of(&rig, program)?;
    let written = CASES.iter().map(|case| measure(&rig, *case)).collect::<Result<Vec<_>>>()?;
    Ok(Run {
        about: "Writes to the API server".to_owned(),
        // Before everything else.
        size: 0,
        command,
        machine,
        versions,
        failures: written.iter().flat_map(Written::failures).collect(),
        tables: vec![table(&written)],
        measurements: serde_json::to_value(&written).context("what was measured is no JSON")?,
    })
}

/// How they were counted, for the document.
pub(super) const METHOD: &str = "Writes to the API server are those of the manager, by the API server's audit log, on a cluster of its own: etcd, \
    kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine, with simulated nodes, where a \
    pod is ready as soon as it is bound. They are counted from the creation of an object until its status says that all \
    replicas are ready and nothing is written for two seconds; then the manager is started anew. Leases are left out, Events \
    counted apart. With one replica three writes are the most that is allowed, with more a status write each second; a \
    restart writes nothing.";

fn measure(rig: &Rig, case: Case) -> Result<Written> {
    let step = Step::start_long(format!("counting writes: {}", case.name()));
    let namespace = rig.namespace()?;
    let path = format!("/apis/pulsar.pulsarconsumer.krvarma.com/v1/namespaces/{namespace}/pulsarconsumers");
    let manager = rig.manager()?;
    rig.forget_writes()?;
    let begin = Instant::now();
    for number in 1..=case.objects {
        rig.create(&path, &consumer(number, case.replicas))?;
    }
    run::poll("every status is settled", rig.patience(), LOOK, || {
        let objects = rig.list(&path)?;
        let all =
            objects.len() == case.objects && objects.iter().all(|object| is_settled(object, case.replicas));
        Ok(all.then_some(()))
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let settling = Tally::of(&rig.writes(&namespace)?, Author::Quintet, &namespace);

    contest::stop(manager)?;
    let manager = rig.manager()?;
    run::poll("the restarted manager has looked at every object", rig.patience(), LOOK, || {
        Ok((usize::try_from(CONTROLLER.passes(&manager)?)? >= case.objects).then_some(()))
    })?;
    CONTROLLER.settled_passes(rig, &manager)?;
    let restart = Tally::of(&rig.writes(&namespace)?, Author::Quintet, &namespace);
    // What is left would be looked at by the next case's managers.
    rig.delete(&path)?;
    run::poll("the objects are gone", rig.patience(), LOOK, || Ok((!rig.has_any(&path, "")?).then_some(())))?;
    contest::stop(manager)?;
    step.done();
    Ok(Written { case, seconds, settling, restart })
}

fn consumer(number: usize, replicas: usize) -> Value {
    json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": format!("consumer-{number}") },
        "spec": {
            "serverAddress": "pulsar://broker.pulsar.svc:6650", "topic": "my-topic",
            "subscriptionName": format!("subscription-{number}"), "replicas": replicas,
        },
    })
}

/// Whether a status says of the current generation that all replicas are ready.
fn is_settled(object: &Value, replicas: usize) -> bool {
    let status = &object["status"];
    let available =
        |all: &Vec<Value>| all.iter().any(|one| one["type"] == "Available" && one["status"] == "True");
    status["conditions"].as_array().is_some_and(available)
        && counts(&status["readyReplicas"], replicas)
        && status["observedGeneration"] == object["metadata"]["generation"]
}

fn table(written: &[Written]) -> Table {
    let names: Vec<String> = written.iter().map(|one| one.case.name()).collect();
    let header: Vec<&str> = std::iter::once("").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new("From an object to its settled status", &header);
    table.row("seconds", written.iter().map(|one| decimals(1)(one.seconds)));
    let settling: Vec<Option<&Tally>> = written.iter().map(|one| Some(&one.settling)).collect();
    table.tallies("quintet", &settling);
    table.row("quintet: all but Events", written.iter().map(|one| count(one.settling.writes())));
    table.row("after a restart", written.iter().map(|one| count(one.restart.writes())));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(kinds: &[(&str, u64)]) -> Tally {
        Tally {
            by_kind: kinds.iter().map(|&(kind, count)| (kind.to_owned(), count)).collect(),
            ..Tally::default()
        }
    }

    fn written(objects: usize, replicas: usize, statuses: u64, seconds: f64) -> Written {
        let settling = tally(&[("patch deployments", 1), ("patch pulsarconsumers/status", statuses)]);
        Written { case: Case { objects, replicas }, seconds, settling, restart: Tally::default() }
    }

    #[test]
    fn three_writes_of_one_replica_are_the_most() {
        assert_eq!(written(1, 1, 2, 1.0).failures(), [""; 0]);
        let failures = written(1, 1, 3, 9.0).failures();
        assert_eq!(
            failures,
            [
                "1 object, 1 replica: 4 writes and not 3 at most (patch deployments: 1, patch pulsarconsumers/status: 3)"
            ]
        );
        assert_eq!(written(2, 1, 5, 1.0).failures(), [""; 0]);
    }

    #[test]
    fn a_status_is_written_once_a_second() {
        assert_eq!(written(1, 20, 4, 3.0).failures(), [""; 0]);
        assert_eq!(
            written(1, 20, 5, 2.9).failures(),
            ["1 object, 20 replicas: 5 writes of the status within 2.9 s"]
        );
    }

    #[test]
    fn a_restart_writes_nothing() {
        let restart = tally(&[("patch deployments", 1)]);
        let failures = Written { restart, ..written(1, 1, 1, 1.0) }.failures();
        assert_eq!(failures, ["1 object, 1 replica: a restart wrote 1 times (patch deployments: 1)"]);
    }

    #[test]
    fn a_status_of_an_older_spec_is_not_settled() {
        let mut object = json!({
            "metadata": { "generation": 2 },
            "status": {
                "observedGeneration": 2, "readyReplicas": 3,
                "conditions": [{ "type": "Available", "status": "True" }],
            },
        });
        assert!(is_settled(&object, 3));
        assert!(!is_settled(&object, 4));
        object["status"]["observedGeneration"] = json!(1);
        assert!(!is_settled(&object, 3));
    }
}
