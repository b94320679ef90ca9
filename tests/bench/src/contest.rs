//! What the contenders of every bench are run and measured with: rounds, what a process uses, a manager and its passes,
//! and how objects are taken away again.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::manager::Manager;
use quintet_localcluster::progress::Step;
use quintet_localcluster::run;
use serde_json::Value;

use super::host::Share;
use super::process;
use super::rig::{LOOK, Rig, Setting, settled};
use super::scrape;
use super::table::count;

/// How long there must be no pass until no further one is expected.
const QUIET: Duration = Duration::from_secs(1);

/// The round that a run belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// How kube-controller-manager and the scheduler are set.
    pub setting: Setting,
    /// From 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Round {
    /// Says on stderr what is run now. `unit` is what there are `size` of.
    pub fn start(self, size: usize, unit: &str, what: &str) -> Step {
        let size = count(size);
        let Self { setting, number, of } = self;
        Step::start_long(format!("{size} {unit}, {setting}, round {number} of {of}: {what}"))
    }
}

/// Every round with every setting.
pub fn rounds(settings: &[Setting], of: usize) -> impl Iterator<Item = Round> {
    settings.iter().flat_map(move |&setting| (1..=of).map(move |number| Round { setting, number, of }))
}

/// A B in odd rounds, B A in even ones, so that what changes with time meets all alike.
pub fn order<T: Copy>(contenders: &[T], round: usize) -> Vec<T> {
    let mut order = contenders.to_vec();
    if round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// What a process, the API server and strangers use of the processors from now on.
pub struct Meter<'a> {
    rig: &'a Rig,
    manager: Option<&'a Manager>,
    pid: i32,
    api_server: i32,
    cpu_before: f64,
    api_server_before: f64,
    share_before: Share,
}

/// Processor time that was used.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// By the process.
    pub cpu_seconds: f64,
    /// By the API server, for everybody.
    pub api_server_cpu_seconds: f64,
    /// By processes that have nothing to do with the bench, in percent of all there was.
    pub others_percent: Option<f64>,
}

impl<'a> Meter<'a> {
    /// Begins to measure a process. `manager` is the one that runs, if one does: it is no stranger.
    pub fn start(rig: &'a Rig, pid: i32, manager: Option<&'a Manager>) -> Result<Self> {
        let api_server = rig.pid(Component::Apiserver)?;
        Ok(Self {
            share_before: rig.share(manager.map(Manager::pid).into_iter().chain([pid]))?,
            cpu_before: process::cpu_seconds(pid)?,
            api_server_before: process::cpu_seconds(api_server)?,
            rig,
            manager,
            pid,
            api_server,
        })
    }

    /// What the process has used until now.
    pub fn cpu_seconds(&self) -> Result<f64> {
        Ok(process::cpu_seconds(self.pid)? - self.cpu_before)
    }

    /// What all have used until now.
    pub fn used(&self) -> Result<Used> {
        let ours = self.manager.map(Manager::pid).into_iter().chain([self.pid]);
        Ok(Used {
            cpu_seconds: self.cpu_seconds()?,
            api_server_cpu_seconds: process::cpu_seconds(self.api_server)? - self.api_server_before,
            others_percent: self.share_before.others_percent(self.rig.share(ours)?),
        })
    }
}

/// Deletes an object and the pods that it made.
pub fn remove(rig: &Rig, namespace: &str, path: &str) -> Result<()> {
    rig.delete(&format!("{path}?propagationPolicy=Background"))?;
    run::poll("the object is gone", rig.patience(), LOOK, || Ok(rig.get(path)?.is_none().then_some(())))?;
    rig.remove_pods(namespace)
}

/// Ends a manager, which must end well.
pub fn stop(manager: Manager) -> Result<()> {
    match manager.stop()? {
        Some(0) => Ok(()),
        code => bail!("the manager ended with {code:?} instead of 0: see its log"),
    }
}

/// The passes of one controller of a manager, as /metrics tells.
#[derive(Clone, Copy, Debug)]
pub struct Controller(pub &'static str);

impl Controller {
    /// How many there have been.
    pub fn passes(self, manager: &Manager) -> Result<u64> {
        let passes =
            scrape::sum(&manager.metrics()?, "controller_runtime_reconcile_total", &[("controller", self.0)]);
        format!("{passes:.0}").parse().context("/metrics counts passes, but not in numbers")
    }

    /// The same once there are no more.
    pub fn settled_passes(self, rig: &Rig, manager: &Manager) -> Result<u64> {
        settled("the manager is quiet", QUIET, rig.patience(), || self.passes(manager))
    }

    /// The seconds that all passes took, and how many there were.
    pub fn pass_time(self, manager: &Manager) -> Result<(f64, f64)> {
        let text = manager.metrics()?;
        let of = |part: &str| {
            let name = format!("controller_runtime_reconcile_time_seconds_{part}");
            scrape::sum(&text, &name, &[("controller", self.0)])
        };
        Ok((of("sum"), of("count")))
    }

    /// Waits until a manager that was just started has made its first pass.
    pub fn first_pass(self, rig: &Rig, manager: &Manager) -> Result<()> {
        run::poll("the restarted manager has looked at the object", rig.patience(), LOOK, || {
            Ok((self.passes(manager)? > 0).then_some(()))
        })
    }
}

/// Whether a number of an object is this count. One that is left out is 0.
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
        assert_eq!(order(&[1, 2, 3], 1), [1, 2, 3]);
        assert_eq!(order(&[1, 2, 3], 2), [3, 2, 1]);
        assert_eq!(order(&[1, 2, 3], 3), [1, 2, 3]);
    }

    #[test]
    fn a_count_that_is_left_out_is_nothing() {
        assert!(counts(&json!(3), 3));
        assert!(!counts(&json!(2), 3));
        assert!(counts(&Value::Null, 0));
        assert!(!counts(&Value::Null, 3));
        assert!(!counts(&json!("3"), 3));
    }
}
