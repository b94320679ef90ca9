//! Runs a DaemonJob with a good template until it is complete, and measures it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quintet_localcluster::audit::{Author, Request, Tally};
use quintet_localcluster::run;
use serde_json::Value;

use super::figures::{Costed, Rules, Scenario};
use super::objects::Entry;
use super::stops::{LIMIT, LOOK_AT_NODES};
use crate::contest::{Meter, Round, Worker, remove};
use crate::daemonjob::runs::{CONTROLLER, is_done_everywhere};
use crate::rig::{LOOK, Rig};

pub fn completed(
    rig: &Rig,
    rules: Rules,
    program: &Path,
    round: Round,
    scenario: &Scenario,
) -> Result<Costed> {
    let namespace = rig.namespace()?;
    let worker = Worker::Quintet(rig.manager_of(program)?);
    let (entry, pause) = match rules {
        Rules::None | Rules::NoneOtherBuild => (Entry::plain(&namespace)?, LOOK),
        // It takes minutes, and its time is not compared.
        Rules::Waves => (Entry::in_waves(&namespace, scenario)?, LOOK_AT_NODES),
    };
    let meter = Meter::start(rig, &worker, CONTROLLER)?;
    rig.forget_requests()?;
    let began = Instant::now();
    rig.create(&entry.collection, &entry.object)?;
    wait_until_done(rig, &entry.path, pause)?;
    let done_seconds = began.elapsed().as_secs_f64();
    let used = meter.used()?;
    let writes = Tally::of(&without_releases(&rig.writes(&namespace)?), Author::Quintet, &namespace);
    let cost = meter.settled(used)?;
    remove(rig, &namespace, &entry.path)?;
    worker.stop()?;
    Ok(Costed { rules, round: round.number, done_seconds, writes, cost })
}

/// The writes without releases of pods, which come after a quiet time.
fn without_releases(writes: &[Request]) -> Vec<Request> {
    let is_release = |write: &&Request| write.resource == "pods" && write.verb == "patch";
    writes.iter().filter(|write| !is_release(write)).cloned().collect()
}

fn wait_until_done(rig: &Rig, path: &str, pause: Duration) -> Result<()> {
    let mut last = Value::Null;
    run::poll("the DaemonJob is complete", LIMIT, pause, || {
        rig.tick();
        last = rig.get(path)?.unwrap_or_default();
        Ok(is_done_everywhere(&last, rig.nodes()).then_some(()))
    })
    .with_context(|| format!("its status is {}", last["status"]))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn releases_are_not_part_of_the_completion() {
        let request = |(verb, resource): (&str, &str)| Request {
            author: Author::Quintet,
            namespace: String::new(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
            code: 200,
            message: String::new(),
            received: Timestamp::UNIX_EPOCH,
            answered: Timestamp::UNIX_EPOCH,
        };
        let all =
            [("create", "pods"), ("patch", "configmaps"), ("patch", "pods"), ("patch", "daemonjobs/status")];
        assert_eq!(without_releases(&all.map(request)).len(), 3);
    }
}
