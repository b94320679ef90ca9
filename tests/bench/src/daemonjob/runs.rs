//! Runs a contender from its creation until it is done, measures it, and removes it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use quintet_localcluster::audit::{Author, Request, Tally};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::kube::is_true;
use quintet_localcluster::manager::Manager;
use quintet_localcluster::paths;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};

use super::figures::{Completion, Contender, Life, NodeEvents, Restart, Sizes, TtlLife};
use super::kruise::Kruise;
use crate::client::Patch;
use crate::contest::{Controller, Cost, Meter, Round, Worker, counts, remove, stop};
use crate::process;
use crate::rig::{LOOK, Rig, node_name, pods};
use crate::stats;

pub const CONTROLLER: Controller = Controller("daemonjob");

const SAMPLE: &str = "samples/daemonjob/daemonjob-sample.yaml";

/// Nodes with a change of an unread field.
const UNREAD_CHANGES: usize = 20;

const LABEL_CHANGES: u64 = 10;

/// The polling interval per pod, so that polling does not slow down the measurement.
const LOOK_AT_POD: Duration = Duration::from_micros(500);

/// With ttl 0, the pods stay if their number has not changed for this time.
const TTL_PATIENCE: Duration = Duration::from_secs(20);

/// Fields that the API server and the scheduler fill in. The only volume is the ServiceAccount's token.
const IN_SPEC: [&str; 11] = [
    "dnsPolicy",
    "enableServiceLinks",
    "nodeName",
    "preemptionPolicy",
    "priority",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "volumes",
];
const IN_CONTAINERS: [&str; 5] =
    ["imagePullPolicy", "resources", "terminationMessagePath", "terminationMessagePolicy", "volumeMounts"];

/// The sample of the tutorial.
pub fn sample() -> Result<Value> {
    let file = paths::workspace().join(SAMPLE);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", file.display()))
}

/// The object of a contender.
struct Entry {
    contender: Contender,
    author: Author,
    collection: String,
    object: Value,
    is_done: fn(&Value, usize) -> bool,
}

impl Entry {
    /// The sample, or an object of another kind with the same pod.
    fn new(contender: Contender, namespace: &str, nodes: usize) -> Result<Self> {
        type IsDone = fn(&Value, usize) -> bool;
        let sample = sample()?;
        let mut pod = sample["spec"]["template"]["spec"].clone();
        let (author, group, spec, is_done): (_, _, _, IsDone) = match contender {
            Contender::Bare | Contender::DaemonJob => {
                (Author::Quintet, "dj.dysproz.io/v1", sample["spec"].clone(), is_done_everywhere)
            }
            Contender::BroadcastJob => {
                // The simulated kubelet completes pods with this annotation.
                let metadata = json!({"annotations": {"kwok.quintet.dev/exit-code": "0"}});
                let spec = json!({"template": {"metadata": metadata, "spec": pod}});
                let is_done: IsDone = |job, nodes| {
                    job["status"]["phase"] == "completed" && counts(&job["status"]["succeeded"], nodes)
                };
                (Author::Kruise, "apps.kruise.io/v1alpha1", spec, is_done)
            }
            Contender::Job => {
                let mut spec = json!({"completionMode": "Indexed", "template": {"spec": pod}});
                (spec["completions"], spec["parallelism"]) = (json!(nodes), json!(nodes));
                (Author::JobController, "batch/v1", spec, |job, _| is_true(job, "Complete"))
            }
            Contender::DaemonSet => {
                // A DaemonSet requires the policy Always, the default.
                pod.as_object_mut().context("the sample's pod has no spec")?.remove("restartPolicy");
                let labels = json!({"app": "daemonset-sample"});
                let template = json!({"metadata": {"labels": labels}, "spec": pod});
                let spec = json!({"selector": {"matchLabels": labels}, "template": template});
                let is_done: IsDone = |set, nodes| counts(&set["status"]["numberReady"], nodes);
                (Author::DaemonSetController, "apps/v1", spec, is_done)
            }
        };
        let (kind, word) = (contender.to_string(), contender.to_string().to_lowercase());
        let metadata = json!({"name": format!("{word}-sample")});
        let object = json!({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec});
        let collection = format!("/apis/{group}/namespaces/{namespace}/{word}s");
        Ok(Self { contender, author, collection, object, is_done })
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.object["metadata"]["name"].as_str().unwrap_or_default())
    }

    fn create_and_wait(&self, rig: &Rig) -> Result<()> {
        rig.create(&self.collection, &self.object)?;
        let (path, mut last) = (self.path(), Value::Null);
        rig.wait_until(&format!("{} is done", self.contender), || {
            last = rig.get(&path)?.unwrap_or_default();
            Ok((self.is_done)(&last, rig.nodes()))
        })
        .with_context(|| format!("its status is {}", last["status"]))
    }
}

/// Starts Quintet's or OpenKruise's manager; other contenders run in kube-controller-manager.
fn start(rig: &Rig, contender: Contender, kruise: Option<&Kruise>, round: Round) -> Result<Worker> {
    match (contender, kruise) {
        (Contender::DaemonJob, _) => rig.manager().map(Worker::Quintet),
        (Contender::BroadcastJob, Some(kruise)) => kruise.start(rig, round.setting).map(Worker::Peer),
        _ => rig.pid(Component::ControllerManager).map(Worker::Other),
    }
}

/// Whether a DaemonJob is complete, with a success on each of the nodes.
pub fn is_done_everywhere(job: &Value, nodes: usize) -> bool {
    is_true(job, "Complete") && counts(&job["status"]["succeeded"], nodes)
}

/// Creates the object of an entry and measures until it is done. Also returns all writes until the cluster is quiet.
fn to_completion(
    rig: &Rig,
    namespace: &str,
    entry: &Entry,
    worker: &Worker,
    round: Round,
) -> Result<(Completion, Vec<Request>)> {
    let meter = Meter::start(rig, worker, CONTROLLER)?;
    rig.forget_requests()?;
    let (began_at, began) = (Timestamp::now(), Instant::now());
    entry.create_and_wait(rig)?;
    let (done_at, done_seconds) = (Timestamp::now(), began.elapsed().as_secs_f64());
    let used = meter.used()?;
    let writes = rig.writes(namespace)?;
    let until_done: Vec<Request> = writes.iter().filter(|one| one.received <= done_at).cloned().collect();
    let tally = Tally::of(&until_done, entry.author, namespace);
    let (creating_seconds, last_created_seconds) = creation(&tally, began_at, rig.nodes())?;
    let completion = Completion {
        contender: entry.contender,
        setting: round.setting,
        round: round.number,
        creating_seconds,
        last_created_seconds,
        done_seconds,
        client_seconds: None,
        nodes_covered: rig.nodes_covered(namespace)?,
        writes: tally,
        cost: meter.settled(used)?,
    };
    Ok((completion, writes))
}

/// Seconds from the first request to create a pod to the last answer, and from the beginning to that answer.
fn creation(writes: &Tally, began_at: Timestamp, nodes: usize) -> Result<(f64, f64)> {
    let (Some(creating_seconds), Some(last)) = (writes.creating_seconds(), writes.last_pod) else {
        bail!("the audit log has no creation of a pod by this contender")
    };
    if usize::try_from(writes.pods) != Ok(nodes) {
        eprintln!("note: the audit log has {} creations of pods for {nodes} nodes", writes.pods);
    }
    Ok((creating_seconds, last.duration_since(began_at).as_secs_f64()))
}

/// Runs a DaemonJob as a warm-up, and returns the bodies of requests that create such pods on all nodes.
pub fn warm_up(rig: &Rig) -> Result<Vec<Vec<u8>>> {
    rig.step("warming up with a DaemonJob", || {
        let namespace = rig.namespace()?;
        let manager = rig.manager()?;
        let entry = Entry::new(Contender::DaemonJob, &namespace, rig.nodes())?;
        entry.create_and_wait(rig)?;
        let made = rig.list(&pods(&namespace))?.into_iter().next().context("the DaemonJob has no pod")?;
        let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let pinned = made["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let body = bare_body(made).to_string();
        // The manager keeps at most 1,000 succeeded pods, so the others are copies for the other nodes.
        let copy = |number| {
            let (stem, node) = (name.trim_end_matches("-1"), node_name(number));
            let other = format!("{}{number:010}", stem.get(..stem.len() - 10).unwrap_or_default());
            body.replace(&pinned, &node).replace(stem, &other).into_bytes()
        };
        let bodies = (1..=rig.nodes()).map(copy).collect();
        remove(rig, &namespace, &entry.path())?;
        stop(manager)?;
        Ok(bodies)
    })
}

/// A pod as the manager sent it, without an owner and a finalizer. Another value of the label
/// `quintet.dev/kind` keeps it from managers, and an annotation instead of that label makes the simulated
/// kubelet complete it.
fn bare_body(mut pod: Value) -> Value {
    let mut metadata = Map::new();
    for part in ["name", "labels", "annotations"] {
        metadata.insert(part.to_owned(), pod["metadata"][part].take());
    }
    let mut spec = pod["spec"].take();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|field, _| !IN_SPEC.contains(&field.as_str()));
        for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                container.retain(|field, _| !IN_CONTAINERS.contains(&field.as_str()));
            }
        }
    }
    let mut body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    body["metadata"]["labels"]["quintet.dev/kind"] = json!("Bare");
    body["metadata"]["annotations"]["kwok.quintet.dev/exit-code"] = json!("0");
    body
}

/// Creates the same pods by plain requests, without a manager: the speed of the API server.
pub fn bare(rig: &Rig, bodies: &[Vec<u8>], round: Round) -> Result<Completion> {
    let namespace = rig.namespace()?;
    let bodies = bodies.to_vec();
    let me = Worker::Other(i32::try_from(std::process::id())?);
    rig.forget_requests()?;
    let meter = Meter::start(rig, &me, CONTROLLER)?;
    let (began_at, began) = (Timestamp::now(), Instant::now());
    let created = rig.create_all(&pods(&namespace), bodies)?;
    // The wait is not a part of it.
    let Cost { cpu_seconds, .. } = meter.used()?;
    wait_for_success(rig, &namespace)?;
    let done_seconds = began.elapsed().as_secs_f64();
    let cost = Cost { cpu_seconds, ..meter.used()? };
    if created.retries > 0 {
        eprintln!("note: {} creations were sent again because the API server was too busy", created.retries);
    }
    let writes = rig.tally(&namespace, Author::Bench)?;
    let (creating_seconds, last_created_seconds) = creation(&writes, began_at, rig.nodes())?;
    let completion = Completion {
        contender: Contender::Bare,
        setting: round.setting,
        round: round.number,
        creating_seconds,
        last_created_seconds,
        done_seconds,
        client_seconds: Some(created.took.as_secs_f64()),
        nodes_covered: rig.nodes_covered(&namespace)?,
        writes,
        cost,
    };
    rig.remove_pods(&namespace)?;
    Ok(completion)
}

/// Waits until all pods of a namespace have succeeded, one for each node.
fn wait_for_success(rig: &Rig, namespace: &str) -> Result<()> {
    // The server reads every pod for this answer.
    let pause = LOOK.max(LOOK_AT_POD * u32::try_from(rig.nodes())?);
    rig.poll("all pods have succeeded", pause, || {
        let unfinished = rig.has_any(&pods(namespace), "fieldSelector=status.phase!%3DSucceeded")?;
        Ok((!unfinished).then_some(()))
    })
}

/// The process of the simulated kubelets, paused until this is dropped.
struct Halted(Pid);

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Seconds of the simulated kubelets alone: they begin when all pods are on their nodes, and complete them.
pub fn kubelets(rig: &Rig, bodies: &[Vec<u8>]) -> Result<f64> {
    let namespace = rig.namespace()?;
    let bound = |body: &Vec<u8>| {
        let mut pod: Value = serde_json::from_slice(body)?;
        pod["spec"]["nodeName"] = pod["metadata"]["annotations"]["dj.dysproz.io/node-name"].clone();
        serde_json::to_vec(&pod)
    };
    let bodies = bodies.iter().map(bound).collect::<Result<Vec<_>, _>>()?;
    let kwok = Pid::from_raw(rig.pid(Component::Kwok)?).context("kwok has no pid")?;
    let halted = Halted(kwok);
    kill_process(kwok, Signal::STOP)?;
    rig.create_all(&pods(&namespace), bodies)?;
    drop(halted);
    let began = Instant::now();
    wait_for_success(rig, &namespace)?;
    let seconds = began.elapsed().as_secs_f64();
    rig.remove_pods(&namespace)?;
    Ok(seconds)
}

/// Runs any contender except bare creation to completion.
pub fn completed(
    rig: &Rig,
    contender: Contender,
    kruise: Option<&Kruise>,
    round: Round,
) -> Result<Completion> {
    let namespace = rig.namespace()?;
    let worker = start(rig, contender, kruise, round)?;
    let entry = Entry::new(contender, &namespace, rig.nodes())?;
    let (completion, _) = to_completion(rig, &namespace, &entry, &worker, round)?;
    remove(rig, &namespace, &entry.path())?;
    worker.stop()?;
    Ok(completion)
}

/// Runs a DaemonJob to completion, restarts the manager, changes nodes, and deletes the DaemonJob.
pub fn daemonjob_life(rig: &Rig, round: Round) -> Result<(Completion, Life)> {
    let namespace = rig.namespace()?;
    let worker = Worker::Quintet(rig.manager()?);
    let entry = Entry::new(Contender::DaemonJob, &namespace, rig.nodes())?;
    let (completion, mut writes) = to_completion(rig, &namespace, &entry, &worker, round)?;
    let path = entry.path();
    let sizes = sizes(rig, &namespace, &path)?;
    let canary = rig.canary();
    rig.wait_until_released(&namespace)?;
    let release_canary_ms = stats::quantile(&canary.seen()?.waits, 0.99);
    drop(canary);
    worker.stop()?;
    writes.extend(rig.writes(&namespace)?);

    let pods_before = rig.list(&pods(&namespace))?.len();
    let (manager, first_pass_seconds, _) = CONTROLLER.restarted(rig)?;
    let restart_writes = rig.writes(&namespace)?;
    let pods_after = rig.list(&pods(&namespace))?.len();
    let restart = Restart {
        first_pass_seconds,
        writes: Tally::of(&restart_writes, Author::Quintet, &namespace),
        extra_pods: i64::try_from(pods_after)? - i64::try_from(pods_before)?,
        memory: process::memory(manager.pid())?,
    };
    writes.extend(restart_writes);

    let mut node_events = node_events(rig, &manager)?;
    let node_writes = rig.writes(&namespace)?;
    node_events.writes = Tally::of(&node_writes, Author::Quintet, &namespace);
    writes.extend(node_writes);

    let began = Instant::now();
    rig.delete(&format!("{path}?propagationPolicy=Background"))?;
    rig.wait_until_empty(&pods(&namespace))?;
    let deletion_seconds = began.elapsed().as_secs_f64();
    writes.extend(rig.writes(&namespace)?);
    stop(manager)?;
    let writes = Tally::of(&writes, Author::Quintet, &namespace);
    let round = round.number;
    let life = Life { round, sizes, release_canary_ms, restart, node_events, deletion_seconds, writes };
    Ok((completion, life))
}

/// Runs a DaemonJob with ttlSecondsAfterFinished 0 until it is deleted and its pods are gone.
pub fn daemonjob_ttl_life(rig: &Rig, round: Round) -> Result<TtlLife> {
    let namespace = rig.namespace()?;
    let manager = rig.manager()?;
    let mut entry = Entry::new(Contender::DaemonJob, &namespace, rig.nodes())?;
    entry.object["spec"]["ttlSecondsAfterFinished"] = json!(0);
    rig.forget_requests()?;
    let began = Instant::now();
    entry.create_and_wait(rig)?;
    let done_seconds = began.elapsed().as_secs_f64();
    let gone_seconds = gone_by_themselves(rig, &namespace)?;
    let mut writes = rig.writes(&namespace)?;
    rig.delete(&format!("{}?propagationPolicy=Background", entry.path()))?;
    rig.wait_until_empty(&pods(&namespace))?;
    writes.extend(rig.writes(&namespace)?);
    stop(manager)?;
    let writes = Tally::of(&writes, Author::Quintet, &namespace);
    Ok(TtlLife { round: round.number, done_seconds, gone_seconds, writes })
}

/// Seconds until there are no pods. `None` if their number does not change.
fn gone_by_themselves(rig: &Rig, namespace: &str) -> Result<Option<f64>> {
    let began = Instant::now();
    let (mut count, mut changed) = (usize::MAX, Instant::now());
    rig.poll("the pods are gone or do not change", Duration::from_millis(250), || {
        // A count of many pods costs the API server time; this check does not.
        if !rig.has_any(&pods(namespace), "")? {
            return Ok(Some(Some(began.elapsed().as_secs_f64())));
        }
        if changed.elapsed() < TTL_PATIENCE {
            return Ok(None);
        }
        let now = rig.list(&pods(namespace))?.len();
        let stays = now == count;
        (count, changed) = (now, Instant::now());
        Ok(stays.then_some(None))
    })
}

/// The sizes of objects that grow with the number of nodes.
fn sizes(rig: &Rig, namespace: &str, daemonjob: &str) -> Result<Sizes> {
    let bytes = |value: &Value| serde_json::to_vec(value).map_or(0, |bytes| bytes.len());
    let daemonjob = rig.get(daemonjob)?.context("the DaemonJob is gone")?;
    let shards: Vec<Value> = rig
        .list(&format!("/api/v1/namespaces/{namespace}/configmaps"))?
        .into_iter()
        .filter(|map| map["metadata"]["labels"].get("dj.dysproz.io/ledger").is_some())
        .collect();
    Ok(Sizes {
        daemonjob_bytes: bytes(&daemonjob),
        status_bytes: bytes(&daemonjob["status"]),
        shards: shards.len(),
        largest_shard_bytes: shards.iter().map(bytes).max().unwrap_or_default(),
        most_data_bytes: shards.iter().map(|shard| bytes(&shard["data"])).max().unwrap_or_default(),
    })
}

/// A change of a node field that no DaemonJob reads: a heartbeat's time, an annotation, the images, the
/// capacity. Returns the subresource and the patch.
fn unread_change(number: usize) -> (&'static str, Value) {
    let now = Timestamp::now();
    let (second, now) = (now.as_second().to_string(), now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    match number % 4 {
        0 => ("/status", json!({"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": now}]}})),
        1 => ("", json!({"metadata": {"annotations": {"bench.quintet.dev/change": now}}})),
        2 => {
            ("/status", json!({"status": {"images": [{"names": [format!("bench:{now}")], "sizeBytes": 1}]}}))
        }
        _ => ("/status", json!({"status": {"capacity": {"bench.quintet.dev/thing": second}}})),
    }
}

/// Changes nodes while a DaemonJob is complete, and counts the reconciles. The caller counts the writes.
fn node_events(rig: &Rig, manager: &Manager) -> Result<NodeEvents> {
    let nodes = rig.list("/api/v1/nodes")?;
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let before = CONTROLLER.settled_passes(rig, manager)?;
    let changed = nodes.iter().take(UNREAD_CHANGES);
    let unread_changes = u64::try_from(changed.len())?;
    for (number, node) in changed.enumerate() {
        let (subresource, patch) = unread_change(number);
        let path = format!("/api/v1/nodes/{}", name(node));
        let was = rig.get(&path)?.unwrap_or_default();
        let is = rig.patch(&format!("{path}{subresource}"), Patch::Strategic, &patch)?;
        if was["metadata"]["resourceVersion"] == is["metadata"]["resourceVersion"] {
            bail!("the API server sees no change of {path} in {patch}");
        }
    }
    let unread_passes = CONTROLLER.settled_passes(rig, manager)? - before;

    let node = nodes.first().map(name).context("there is no node")?;
    let before = CONTROLLER.pass_time(manager)?;
    let mut label_passes = 0;
    for change in 1..=LABEL_CHANGES {
        let before = CONTROLLER.passes(manager)?;
        let patch = json!({"metadata": {"labels": {"bench.quintet.dev/change": change.to_string()}}});
        rig.patch(&format!("/api/v1/nodes/{node}"), Patch::Merge, &patch)?;
        label_passes += CONTROLLER.settled_passes(rig, manager)? - before;
    }
    let after = CONTROLLER.pass_time(manager)?;
    let patch = json!({"metadata": {"labels": {"bench.quintet.dev/change": null}}});
    rig.patch(&format!("/api/v1/nodes/{node}"), Patch::Merge, &patch)?;
    CONTROLLER.settled_passes(rig, manager)?;
    Ok(NodeEvents {
        unread_changes,
        unread_passes,
        label_changes: LABEL_CHANGES,
        label_passes,
        pass_seconds: stats::ratio(after.0 - before.0, after.1 - before.1),
        writes: Tally::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_pod_is_the_sent_pod_without_an_owner() {
        let pod = json!({
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "finalizers": ["f"], "ownerReferences": [{}],
                "labels": {"quintet.dev/kind": "DaemonJob", "daemonjob": "d"}, "annotations": {"a": "b"},
            },
            "spec": {
                "restartPolicy": "OnFailure", "nodeName": "node-1", "volumes": [{"name": "kube-api-access-x"}],
                "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "volumeMounts": [{}]}],
            },
            "status": {"phase": "Succeeded"},
        });
        let metadata = json!({
            "name": "a", "labels": {"quintet.dev/kind": "Bare", "daemonjob": "d"},
            "annotations": {"a": "b", "kwok.quintet.dev/exit-code": "0"},
        });
        let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]});
        let expected = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        assert_eq!(bare_body(pod), expected);
    }

    #[test]
    fn daemonjob_is_done_when_complete_on_every_node() {
        let job = |complete: &str, succeeded: u64| json!({"status": {"succeeded": succeeded, "conditions": [{"type": "Complete", "status": complete}]}});
        let done = |job: &Value| is_done_everywhere(job, 3);
        assert!(done(&job("True", 3)));
        assert!(!done(&job("False", 3)));
        assert!(!done(&job("True", 2)));
        assert!(!done(&Value::Null));
    }
}
