//! Scales a contender from 0 to N pods and back, restarts its manager in between, and interrupts a scale-up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quintet_localcluster::audit::{Author, Request, Tally};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::manager::Manager;
use serde_json::{Value, json};

use super::counting::{last_scaling, made_around, most_above, removed};
use super::figures::{Contender, Cycle, Halfway, Phase, Restart};
use crate::client::Patch;
use crate::contest::{Controller, Meter, Round, Worker, counts, remove, stop};
use crate::process;
use crate::rig::{Rig, pods};

const CONTROLLER: Controller = Controller("podset");

/// The polling interval of the audit log while created pods are counted.
const GLANCE: Duration = Duration::from_millis(10);

const NAME: &str = "bench";

/// The default pod of a PodSet.
fn pod_spec() -> Value {
    json!({
        "restartPolicy": "Always",
        "containers": [{"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}],
    })
}

/// The object of a contender.
struct Entry {
    contender: Contender,
    author: Author,
    namespace: String,
    collection: String,
    object: Value,
}

impl Entry {
    fn new(contender: Contender, namespace: &str) -> Self {
        let (group, author, mut object) = match contender {
            Contender::PodSet => (
                "batch.tutorial.kubebuilder.io/v1",
                Author::Quintet,
                json!({"kind": "PodSet", "spec": {"template": {"spec": pod_spec()}}}),
            ),
            Contender::ReplicaSet => (
                "apps/v1",
                Author::ReplicaSetController,
                json!({
                    "kind": "ReplicaSet",
                    "spec": {
                        "selector": {"matchLabels": {"app": NAME}},
                        "template": {"metadata": {"labels": {"app": NAME}}, "spec": pod_spec()},
                    },
                }),
            ),
        };
        object["apiVersion"] = json!(group);
        object["metadata"] = json!({"name": NAME});
        object["spec"]["replicas"] = json!(0);
        let plural = format!("{}s", contender.to_string().to_lowercase());
        Self {
            contender,
            author,
            namespace: namespace.to_owned(),
            collection: format!("/apis/{group}/namespaces/{namespace}/{plural}"),
            object,
        }
    }

    fn path(&self) -> String {
        format!("{}/{NAME}", self.collection)
    }

    fn scale(&self, rig: &Rig, replicas: usize) -> Result<()> {
        let patch = json!({"spec": {"replicas": replicas}});
        rig.patch(&format!("{}/scale", self.path()), Patch::Merge, &patch).map(|_| ())
    }

    fn wait_for_status(&self, rig: &Rig, replicas: usize) -> Result<()> {
        let (path, what) = (self.path(), format!("{} has {replicas} ready pods", self.contender));
        let mut last = Value::Null;
        rig.wait_until(&what, || {
            last = rig.get(&path)?.unwrap_or_default();
            Ok(has_exactly(&last, replicas))
        })
        .with_context(|| format!("its status is {}", last["status"]))
    }
}

/// Whether the status of the current generation has exactly this number of pods, all ready.
fn has_exactly(object: &Value, replicas: usize) -> bool {
    let status = &object["status"];
    let generation = &object["metadata"]["generation"];
    !generation.is_null()
        && status["observedGeneration"] == *generation
        && counts(&status["replicas"], replicas)
        && counts(&status["readyReplicas"], replicas)
}

/// Runs a PodSet of a tenth of the pods as a warm-up.
pub fn warm_up(rig: &Rig) -> Result<()> {
    rig.step("warming up with a PodSet", || {
        let namespace = rig.namespace()?;
        let manager = rig.manager()?;
        let entry = Entry::new(Contender::PodSet, &namespace);
        rig.create(&entry.collection, &entry.object)?;
        entry.scale(rig, tenth(rig))?;
        entry.wait_for_status(rig, tenth(rig))?;
        remove(rig, &namespace, &entry.path())?;
        stop(manager)
    })
}

fn tenth(rig: &Rig) -> usize {
    rig.pods() / 10
}

pub fn cycle(rig: &Rig, contender: Contender, round: Round) -> Result<Cycle> {
    let namespace = rig.namespace()?;
    let entry = Entry::new(contender, &namespace);
    let mut worker = match contender {
        Contender::PodSet => Worker::Quintet(rig.manager()?),
        Contender::ReplicaSet => Worker::Other(rig.pid(Component::ControllerManager)?),
    };
    rig.create(&entry.collection, &entry.object)?;
    entry.wait_for_status(rig, 0)?;
    if let Worker::Quintet(manager) = &worker {
        CONTROLLER.settled_passes(rig, manager)?;
    }

    let up = phase(rig, &entry, &worker, (0, rig.pods()))?;
    let mut restarted = None;
    if let Worker::Quintet(old) = worker {
        let (new, restart) = restart(rig, &entry, old)?;
        (worker, restarted) = (Worker::Quintet(new), Some(restart));
    }
    let down = phase(rig, &entry, &worker, (rig.pods(), 0))?;
    let halfway = halfway(rig, &entry)?;

    remove(rig, &namespace, &entry.path())?;
    worker.stop()?;
    let (setting, round) = (round.setting, round.number);
    Ok(Cycle { contender, setting, round, up, restart: restarted, down, halfway })
}

/// Scales and measures until all pods are ready, or gone.
fn phase(rig: &Rig, entry: &Entry, worker: &Worker, (from, to): (usize, usize)) -> Result<Phase> {
    let meter = Meter::start(rig, worker, CONTROLLER)?;
    rig.forget_requests()?;
    let began = Instant::now();
    entry.scale(rig, to)?;
    entry.wait_for_status(rig, to)?;
    let status_seconds = began.elapsed().as_secs_f64();
    let mut writes = rig.writes_so_far(&entry.namespace)?;
    // The log shows the removals by the simulated kubelets. Lists would cost the API server time of the removals.
    rig.wait_until("all surplus pods are gone", || {
        writes.extend(rig.writes_so_far(&entry.namespace)?);
        Ok(removed(&writes) >= from.saturating_sub(to))
    })?;
    let done_seconds = began.elapsed().as_secs_f64();
    let used = meter.used()?;
    writes.extend(rig.writes(&entry.namespace)?);
    ensure!(to > 0 || !rig.has_any(&pods(&entry.namespace), "")?, "a pod has no removal in the audit log");
    let tally = Tally::of(&writes, entry.author, &entry.namespace);
    let last = if to > from { tally.last_pod } else { tally.last_deletion };
    let scaled = last_scaling(&writes).context("the audit log has no scale request")?.received;
    let last = last.context("the audit log has no creation or deletion of a pod by this contender")?;
    Ok(Phase {
        last_seconds: last.duration_since(scaled).as_secs_f64(),
        status_seconds,
        done_seconds,
        most_above: most_above(&writes, entry.author, from, from.max(to)),
        writes: tally,
        cost: meter.settled(used)?,
    })
}

/// Restarts the manager and counts its writes.
fn restart(rig: &Rig, entry: &Entry, manager: Manager) -> Result<(Manager, Restart)> {
    rig.forget_requests()?;
    stop(manager)?;
    let (manager, first_pass_seconds, passes) = CONTROLLER.restarted(rig)?;
    let writes = rig.tally(&entry.namespace, entry.author)?;
    let memory = process::memory(manager.pid())?;
    Ok((manager, Restart { first_pass_seconds, passes, writes, memory }))
}

/// Scales from 0 to N and, when a third of the pods exist, to a tenth of N.
fn halfway(rig: &Rig, entry: &Entry) -> Result<Halfway> {
    let third = rig.pods() / 3;
    let made = |writes: &[Request]| {
        writes.iter().filter(|write| write.author == entry.author && write.is_creation_of_pod()).count()
    };
    rig.forget_requests()?;
    entry.scale(rig, rig.pods())?;
    let mut writes = Vec::new();
    rig.poll("a third of the pods exist", GLANCE, || {
        writes.extend(rig.writes_so_far(&entry.namespace)?);
        Ok((made(&writes) >= third).then_some(()))
    })?;
    let began = Instant::now();
    entry.scale(rig, tenth(rig))?;
    entry.wait_for_status(rig, tenth(rig))?;
    let done_seconds = began.elapsed().as_secs_f64();
    writes.extend(rig.writes(&entry.namespace)?);
    let scaled = last_scaling(&writes).context("the audit log has no scale request")?.answered;
    let (made_before, made_after, sent_after) = made_around(&writes, entry.author, scaled);
    Ok(Halfway {
        made_before,
        made_after,
        sent_after,
        done_seconds,
        writes: Tally::of(&writes, entry.author, &entry.namespace),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_counts_for_its_generation() {
        let object = |generation: u64, replicas: u64, ready: Value| {
            json!({
                "metadata": {"generation": 2},
                "status": {"observedGeneration": generation, "replicas": replicas, "readyReplicas": ready},
            })
        };
        assert!(has_exactly(&object(2, 3, json!(3)), 3));
        assert!(!has_exactly(&object(1, 3, json!(3)), 3));
        assert!(!has_exactly(&object(2, 3, json!(2)), 3));
        assert!(!has_exactly(&object(2, 4, json!(3)), 3));
        assert!(has_exactly(&object(2, 0, Value::Null), 0));
        assert!(!has_exactly(&Value::Null, 0));
    }
}
