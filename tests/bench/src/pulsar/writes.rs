//! Counts the manager's writes from the creation of a PulsarConsumer to its settled status, on a real control
//! plane with simulated nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use quintet_localcluster::audit::{Author, Tally};
use quintet_localcluster::kube::is_true;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Results;
use crate::contest::{self, Controller, counts};
use crate::host::Versions;
use crate::rig::Rig;
use crate::stats::Quantiles;
use crate::table::{NONE, Table, count, decimals};

const CONTROLLER: Controller = Controller("pulsarconsumer");

/// Enough nodes for all pods of the largest case.
const NODES: usize = 3;

/// An object that settles within a second: the Deployment, the status with it, the status with ready pods.
const WRITES_AT_LEAST: u64 = 3;

/// PulsarConsumers that are created at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Case {
    objects: usize,
    /// For each object.
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

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    case: Case,
    /// The seconds from the creation of an object to its settled status.
    settled_in: Option<Quantiles>,
    limit: u64,
    /// Until then, late writes included.
    settling: Tally,
    /// After that, by a restarted manager.
    restart: Tally,
}

/// The limit of writes: the status can change once a second until the object is settled.
fn limit(settled_in: &[f64]) -> u64 {
    let more = settled_in.iter().map(|&seconds| Duration::from_secs_f64(seconds).as_secs());
    more.map(|seconds| WRITES_AT_LEAST + seconds).sum()
}

impl Written {
    pub(super) fn failures(&self) -> Vec<String> {
        let (name, writes, limit) = (self.case.name(), self.settling.requests(), self.limit);
        let (refused, again) = (self.settling.refused, self.restart.requests());
        let mut failures = Vec::new();
        if writes > limit {
            let kinds = self.settling.describe();
            failures.push(format!("{name}: {writes} writes, more than {limit} ({kinds})"));
        }
        if refused > 0 {
            failures.push(format!("{name}: {refused} rejected writes"));
        }
        if again > 0 {
            failures.push(format!("{name}: a restart wrote {again} times ({})", self.restart.describe()));
        }
        failures
    }
}

/// Counts all cases on a separate cluster.
pub(super) fn measured(program: &Path) -> Result<(Results, Versions)> {
    let rig = Rig::up(NODES, CASES.iter().map(|case| case.objects * case.replicas).sum(), program)?;
    let versions = Versions::of(&rig, program)?;
    let writes =
        CASES.map(|case| rig.step(format!("counting writes: {}", case.name()), || measure(&rig, case)));
    let writes = writes.into_iter().collect::<Result<Vec<_>>>()?;
    Ok((Results { writes, ..Results::default() }, versions))
}

fn measure(rig: &Rig, case: Case) -> Result<Written> {
    let namespace = rig.namespace()?;
    let path = format!("/apis/pulsar.pulsarconsumer.krvarma.com/v1/namespaces/{namespace}/pulsarconsumers");
    let manager = rig.manager()?;
    rig.forget_requests()?;
    let mut waiting = BTreeMap::new();
    for number in 1..=case.objects {
        let object = consumer(number, case.replicas);
        waiting.insert(object["metadata"]["name"].as_str().unwrap_or_default().to_owned(), Instant::now());
        rig.create(&path, &object)?;
    }
    let mut settled_in: Vec<f64> = Vec::new();
    rig.wait_until("every status is settled", || {
        for object in rig.list(&path)?.iter().filter(|object| is_settled(object, case.replicas)) {
            let since = waiting.remove(object["metadata"]["name"].as_str().unwrap_or_default());
            settled_in.extend(since.map(|since| since.elapsed().as_secs_f64()));
        }
        Ok(waiting.is_empty())
    })?;
    let settling = rig.tally(&namespace, Author::Quintet)?;

    contest::stop(manager)?;
    let manager = rig.manager()?;
    rig.wait_until("the restarted manager has reconciled every object", || {
        Ok(usize::try_from(CONTROLLER.passes(&manager)?)? >= case.objects)
    })?;
    CONTROLLER.settled_passes(rig, &manager)?;
    let restart = rig.tally(&namespace, Author::Quintet)?;
    // The managers of the next case would reconcile these objects.
    rig.delete(&path)?;
    rig.wait_until_empty(&path)?;
    contest::stop(manager)?;
    let (limit, settled_in) = (limit(&settled_in), Quantiles::of(&settled_in));
    Ok(Written { case, settled_in, limit, settling, restart })
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

/// Whether the status of the current generation has all replicas ready.
fn is_settled(object: &Value, replicas: usize) -> bool {
    let status = &object["status"];
    is_true(object, "Available")
        && counts(&status["readyReplicas"], replicas)
        && status["observedGeneration"] == object["metadata"]["generation"]
}

pub(super) fn table(written: &[Written]) -> Table {
    let header = written.iter().map(|one| one.case.name());
    let mut table = Table::new("From the creation of an object to its settled status", header);
    let slowest =
        |one: &Written| one.settled_in.map_or_else(|| NONE.to_owned(), |found| decimals(1)(found.max));
    table.row("slowest object, s", written.iter().map(slowest));
    let settling: Vec<Option<&Tally>> = written.iter().map(|one| Some(&one.settling)).collect();
    table.tallies("quintet", &settling);
    table.row("quintet: writes without Events", written.iter().map(|one| count(one.settling.writes())));
    table.row("limit", written.iter().map(|one| count(one.limit)));
    table.row("writes after a restart", written.iter().map(|one| count(one.restart.writes())));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(settled_in: &[f64], statuses: u64, restart: Tally) -> Vec<String> {
        let by_kind =
            [("patch deployments".to_owned(), 1), ("patch pulsarconsumers/status".to_owned(), statuses)];
        let settling = Tally { by_kind: by_kind.into(), ..Tally::default() };
        let case = Case { objects: settled_in.len(), replicas: 1 };
        let (limit, settled_in) = (limit(settled_in), Quantiles::of(settled_in));
        Written { case, settled_in, limit, settling, restart }.failures()
    }

    #[test]
    fn slower_objects_may_write_more() {
        assert_eq!(failures(&[0.9], 2, Tally::default()), [""; 0]);
        let kinds = "patch deployments: 1, patch pulsarconsumers/status: 3";
        let too_many = format!("1 object, 1 replica: 4 writes, more than 3 ({kinds})");
        assert_eq!(failures(&[0.9], 3, Tally::default()), [too_many]);
        assert_eq!(failures(&[1.2], 3, Tally::default()), [""; 0]);
    }

    #[test]
    fn restart_must_not_write() {
        let restart = Tally { by_kind: [("patch deployments".to_owned(), 1)].into(), ..Tally::default() };
        let wrote = ["1 object, 1 replica: a restart wrote 1 times (patch deployments: 1)"];
        assert_eq!(failures(&[0.5], 1, restart), wrote);
    }
}
