//! Runs and measures the contenders of every bench: rounds, the cost of a process, a manager and its
//! reconciles, and the removal of objects.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::manager::Manager;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::canary::Canary;
use super::host::Share;
use super::peer::Running;
use super::process::{self, Memory};
use super::rig::{Rig, Setting, settled};
use super::scrape;
use super::stats;
use super::table::count;

/// After this time without a reconcile, no further one is expected.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub setting: Setting,
    pub number: usize,
    pub of: usize,
}

impl Round {
    /// The progress label of one run. `unit` is the plural noun of `size`.
    pub fn label(self, size: usize, unit: &str, what: &str) -> String {
        let (size, Self { setting, number, of }) = (count(size), self);
        format!("{size} {unit}, {setting}, round {number} of {of}: {what}")
    }
}

/// Every round with every setting.
pub fn rounds(settings: &[Setting], of: usize) -> impl Iterator<Item = Round> {
    settings.iter().flat_map(move |&setting| (1..=of).map(move |number| Round { setting, number, of }))
}

/// A B in odd rounds, B A in even ones, so that changes over time affect all contenders.
pub fn order<T: Copy>(contenders: &[T], round: usize) -> Vec<T> {
    let mut order = contenders.to_vec();
    if round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// The cost of a contender until its work was done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    pub cpu_seconds: f64,
    /// For all clients.
    pub api_server_cpu_seconds: f64,
    /// The processors' share of processes outside the bench. A high share makes times unreliable.
    pub others_percent: Option<f64>,
    /// Reconciles of a Quintet manager until it was quiet.
    pub passes: Option<u64>,
    pub memory_before: Option<Memory>,
    /// The memory of a quiet process.
    pub memory: Option<Memory>,
    /// The latency of the canary, p99.
    pub canary_ms: Option<f64>,
}

/// The process of a contender.
pub enum Worker {
    Quintet(Manager),
    Peer(Running),
    /// A process of the cluster or of the bench, which the contender does not stop.
    Other(i32),
}

impl Worker {
    pub fn pid(&self) -> i32 {
        match self {
            Self::Quintet(manager) => manager.pid(),
            Self::Peer(running) => running.pid(),
            Self::Other(pid) => *pid,
        }
    }

    pub fn stop(self) -> Result<()> {
        match self {
            Self::Quintet(manager) => return stop(manager),
            Self::Peer(running) => running.end(),
            Self::Other(_) => {}
        }
        Ok(())
    }

    pub fn kill(self) -> Result<()> {
        match self {
            Self::Quintet(manager) => return manager.kill().map(drop),
            Self::Peer(running) => running.kill(),
            Self::Other(_) => {}
        }
        Ok(())
    }
}

/// Measures a [`Cost`].
pub struct Meter<'a> {
    rig: &'a Rig,
    /// The controller whose reconciles are counted, and its manager.
    manager: Option<(Controller, &'a Manager)>,
    pid: i32,
    before: Cost,
    share_before: Share,
    canary: Canary,
}

impl<'a> Meter<'a> {
    /// If the worker is a Quintet manager, the meter counts the reconciles of `controller`.
    pub fn start(rig: &'a Rig, worker: &'a Worker, controller: Controller) -> Result<Self> {
        let pid = worker.pid();
        let manager = if let Worker::Quintet(manager) = worker { Some((controller, manager)) } else { None };
        let (before, share_before) = (Cost::default(), rig.share([pid])?);
        let mut meter = Self { rig, manager, pid, before, share_before, canary: rig.canary() };
        meter.before = Cost { memory: Some(process::memory(pid)?), passes: meter.passes()?, ..meter.now()? };
        Ok(meter)
    }

    fn now(&self) -> Result<Cost> {
        Ok(Cost {
            cpu_seconds: process::cpu_seconds(self.pid)?,
            api_server_cpu_seconds: process::cpu_seconds(self.rig.pid(Component::Apiserver)?)?,
            ..Cost::default()
        })
    }

    fn passes(&self) -> Result<Option<u64>> {
        self.manager.map(|(controller, manager)| controller.passes(manager)).transpose()
    }

    /// The cost until now, without reconciles and memory.
    pub fn used(&self) -> Result<Cost> {
        let (now, canary) = (self.now()?, self.canary.seen()?);
        Ok(Cost {
            canary_ms: stats::quantile(&canary.waits, 0.99),
            cpu_seconds: now.cpu_seconds - self.before.cpu_seconds,
            api_server_cpu_seconds: now.api_server_cpu_seconds - self.before.api_server_cpu_seconds,
            others_percent: self.share_before.others_percent(self.rig.share([self.pid])?),
            ..now
        })
    }

    /// Adds the reconciles and the memory; call it when the process is quiet.
    pub fn settled(&self, used: Cost) -> Result<Cost> {
        let passes = self.before.passes.zip(self.passes()?).map(|(before, after)| after - before);
        let memory = Some(process::memory(self.pid)?);
        Ok(Cost { passes, memory_before: self.before.memory, memory, ..used })
    }
}

/// Deletes an object and all pods of its namespace.
pub fn remove(rig: &Rig, namespace: &str, path: &str) -> Result<()> {
    rig.delete(&format!("{path}?propagationPolicy=Background"))?;
    rig.wait_until("the object is gone", || Ok(rig.get(path)?.is_none()))?;
    rig.remove_pods(namespace)
}

/// Stops a manager. Fails if its exit code is not 0.
pub fn stop(manager: Manager) -> Result<()> {
    match manager.stop()? {
        Some(0) => Ok(()),
        code => bail!("the manager exited with {code:?} instead of 0: see its log"),
    }
}

/// The reconciles of one controller of a manager, from /metrics.
#[derive(Clone, Copy, Debug)]
pub struct Controller(pub &'static str);

impl Controller {
    pub fn passes(self, manager: &Manager) -> Result<u64> {
        let passes =
            scrape::sum(&manager.metrics()?, "controller_runtime_reconcile_total", &[("controller", self.0)]);
        format!("{passes:.0}").parse().context("the count of reconciles in /metrics is not a number")
    }

    /// Waits until there are no more reconciles, and returns their number.
    pub fn settled_passes(self, rig: &Rig, manager: &Manager) -> Result<u64> {
        settled("the manager is quiet", QUIET, rig.patience(), || self.passes(manager))
    }

    /// The total seconds of all reconciles, and their number.
    pub fn pass_time(self, manager: &Manager) -> Result<(f64, f64)> {
        let text = manager.metrics()?;
        let of = |part: &str| {
            let name = format!("controller_runtime_reconcile_time_seconds_{part}");
            scrape::sum(&text, &name, &[("controller", self.0)])
        };
        Ok((of("sum"), of("count")))
    }

    /// Starts a manager and waits until it has no more reconciles. Returns the seconds until the first one
    /// was done, and their number.
    pub fn restarted(self, rig: &Rig) -> Result<(Manager, f64, u64)> {
        let began = Instant::now();
        let manager = rig.manager()?;
        rig.wait_until("the restarted manager has reconciled the object", || Ok(self.passes(&manager)? > 0))?;
        let seconds = began.elapsed().as_secs_f64();
        let passes = self.settled_passes(rig, &manager)?;
        Ok((manager, seconds, passes))
    }
}

/// Whether a field of an object has this count. An omitted field is 0.
pub fn counts(value: &Value, expected: usize) -> bool {
    let count = if value.is_null() { Some(0) } else { value.as_u64() };
    count.is_some_and(|count| usize::try_from(count) == Ok(expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_alternates() {
        assert_eq!([1, 2].map(|round| order(&[1, 2, 3], round)), [[1, 2, 3], [3, 2, 1]]);
    }

    #[test]
    fn omitted_count_is_0() {
        assert!(counts(&json!(3), 3) && counts(&Value::Null, 0));
        assert!(!counts(&json!(2), 3) && !counts(&Value::Null, 3) && !counts(&json!("3"), 3));
    }
}
