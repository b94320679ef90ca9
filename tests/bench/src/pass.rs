//! `cargo xtask bench pass`: the time of one reconcile of a DaemonJob, observe and plan, without a cluster.
//!
//! The objects are decoded and share their strings as in the manager's caches. The measured part copies the
//! lists of the caches, steps the clocks of the nodes, and computes the plan.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::clocks::Clocks;
use quintet_daemonjob::index::Index;
use quintet_daemonjob::ledger::Shard;
use quintet_daemonjob::observe::World;
use quintet_daemonjob::plan::plan;
use quintet_localcluster::progress::Step;
use quintet_runtime::model::object::Object;
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::{CONFIG_MAPS, PODS};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::optimised;
use super::stats::{self, float};
use super::table::{Table, spread};

/// Measure one reconcile of a DaemonJob (observe and plan), without a cluster.
///
/// The bench prints the milliseconds of a reconcile and their growth with the number of nodes. It also prints
/// the sizes of the largest ConfigMap of the ledger and of the largest status.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of nodes
    #[arg(long, default_values_t = [1_000, 5_000, 15_000])]
    nodes: Vec<usize>,
    /// Number of measured reconciles in each state of the DaemonJob
    #[arg(long, default_value_t = 31)]
    passes: usize,
}

/// The limit of a reconcile in milliseconds, by the number of nodes.
const LIMITS: [(usize, f64); 2] = [(5_000, 5.0), (15_000, 20.0)];
/// The limit of a ConfigMap of the ledger at 15,000 nodes in KiB. The API server's limit is 1,024.
const SHARD_LIMIT: f64 = 300.0;

/// Reconciles before the measured ones.
const WARM: usize = 3;

/// A state of a DaemonJob, and the times of its reconciles.
struct Measured {
    state: &'static str,
    milliseconds: Vec<f64>,
}

pub fn run(args: &Args) -> Result<()> {
    optimised::become_optimised()?;
    let mut by_size: Vec<Sized> = Vec::new();
    for nodes in &args.nodes {
        let mut step = Step::start_long(format!("measuring reconciles with {nodes} nodes"));
        by_size.push((*nodes, measure(*nodes, args.passes, || step.tick())?));
        step.done();
    }
    let header = args.nodes.iter().map(|nodes| format!("{nodes} nodes")).chain(["exponent".to_owned()]);
    let mut table = Table::new("One reconcile of a DaemonJob: median (worst)", header);
    table.header[0] = "ms per reconcile".into();
    let states = by_size.first().map_or(&[][..], |(_, (measured, _))| measured);
    for (at, Measured { state, .. }) in states.iter().enumerate() {
        let times = |(_, (measured, _)): &Sized| measured[at].milliseconds.clone();
        let point = |one: &Sized| Some((float(one.0), stats::spread(times(one))?.median));
        let points: Vec<(f64, f64)> = by_size.iter().filter_map(point).collect();
        let growth = stats::exponent(&points).map_or_else(String::new, |grows| format!("{grows:.2}"));
        table.row(*state, by_size.iter().map(|one| spread(times(one), 1)).chain([growth]));
    }
    let limit = |nodes: &usize| {
        let limit = LIMITS.iter().find(|(of, _)| of == nodes);
        limit.map_or_else(String::new, |(_, limit)| format!("{limit:.0}"))
    };
    table.row("limit", args.nodes.iter().map(limit));
    let sizes = |size: fn(&Sizes) -> usize| {
        by_size.iter().map(move |(_, (_, sizes))| format!("{:.1}", float(size(sizes)) / 1024.0))
    };
    table.row("largest ConfigMap of the ledger, KiB", sizes(|sizes| sizes.shard));
    table.row("status with every node failed, KiB", sizes(|sizes| sizes.status));
    table.notes.push(format!(
        "The limit of a ConfigMap of the ledger is {SHARD_LIMIT:.0} KiB at 15,000 nodes; the API server's is 1,024."
    ));
    println!("{}", table.plain());
    Ok(())
}

/// The measurements with a number of nodes.
type Sized = (usize, (Vec<Measured>, Sizes));

struct Sizes {
    shard: usize,
    status: usize,
}

fn began() -> Timestamp {
    Timestamp::from_second(1_790_000_000).unwrap_or_default()
}

fn daemonjob(more: &Value, status: &Value) -> Result<DaemonJob> {
    let mut spec = json!({ "template": { "spec": { "restartPolicy": "Never", "nodeSelector": { "app": "v1" },
        "tolerations": [{ "operator": "Exists", "key": "x" }],
        "containers": [{ "name": "c", "image": "busybox" }] } } });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let object = json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "spec": spec, "status": status,
        "metadata": { "name": "sample", "namespace": "default", "uid": "owner", "generation": 1,
            "creationTimestamp": began().to_string() } });
    serde_json::from_value(object).context("not a DaemonJob")
}

/// Like UIDs of the API server, two of these differ in the first characters.
fn uid(number: usize, of: u64) -> String {
    let mixed = |salt: u64| {
        let number = u64::try_from(number).unwrap_or_default() + 1;
        let x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ of.rotate_left(32) ^ salt);
        (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
    };
    let (high, low) = (format!("{:016x}", mixed(1)), format!("{:016x}", mixed(2)));
    format!("{}-{}-4{}-9{}-{}", &high[..8], &high[8..12], &high[12..15], &low[..3], &low[3..15])
}

fn node(number: usize) -> Value {
    let name = format!("node-{number:05}");
    json!({ "metadata": { "name": name, "uid": uid(number, 7), "resourceVersion": "1",
            "creationTimestamp": "2025-12-01T00:00:00Z",
            "labels": { "app": "v1", "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": { "bootID": uid(number, 11), "machineID": uid(number, 13) } } })
}

/// Decodes objects that share their strings, as in a cache.
fn decoded<T: DeserializeOwned + Object + Clone>(bodies: &[String]) -> Result<Vec<Arc<T>>> {
    let mut all: Vec<Arc<T>> = Vec::new();
    for body in bodies {
        let mut object: T = serde_json::from_str(body).context("an object cannot be decoded")?;
        if let Some(sibling) = all.last() {
            object.share(sibling);
        }
        all.push(Arc::new(object));
    }
    Ok(all)
}

/// The pods that the plans for all nodes create, bound to their nodes.
fn created(job: &DaemonJob, world: &World) -> Vec<Value> {
    let mut pods: Vec<Value> = Vec::new();
    for nodes in world.nodes.chunks(1_000) {
        let some = World { nodes: nodes.to_vec(), ..World::default() };
        for action in plan(job, &some, began()).steps.into_iter().flatten() {
            let Action::Create { resource: PODS, body, .. } = action else { continue };
            let mut pod = body.value();
            pod["metadata"]["uid"] = uid(pods.len(), 17).into();
            pod["metadata"]["resourceVersion"] = "1".into();
            pod["metadata"]["creationTimestamp"] = began().to_string().into();
            pod["spec"]["nodeName"] = pod["metadata"]["annotations"]["dj.dysproz.io/node-name"].clone();
            pods.push(pod);
        }
    }
    pods.sort_by_cached_key(|pod| pod["metadata"]["name"].to_string());
    pods
}

fn with_state(pods: &[Value], phase: &str, state: &Value) -> Vec<String> {
    let with_state = |pod: &Value| {
        let mut pod = pod.clone();
        pod["status"] = json!({ "phase": phase, "containerStatuses": [{ "name": "c", "state": state }] });
        pod.to_string()
    };
    pods.iter().map(with_state).collect()
}

/// The ledger that a plan writes.
fn ledger(job: &DaemonJob, world: &World) -> Result<(Vec<Arc<Shard>>, usize)> {
    let mut shards = Vec::new();
    for action in plan(job, world, began()).steps.into_iter().flatten() {
        if let Action::Create { resource: CONFIG_MAPS, body, .. } = action {
            shards.push(body.value().to_string());
        }
    }
    let largest = shards.iter().map(String::len).max().unwrap_or_default();
    Ok((decoded(&shards)?, largest))
}

/// The DaemonJob with the status of the plan.
fn with_status(spec: &Value, job: &DaemonJob, world: &World) -> Result<DaemonJob> {
    daemonjob(spec, &serde_json::to_value(plan(job, world, began()).status)?)
}

fn measure(nodes: usize, passes: usize, mut tick: impl FnMut()) -> Result<(Vec<Measured>, Sizes)> {
    let nodes: Vec<String> = (0..nodes).map(|number| node(number).to_string()).collect();
    let mut world = World { nodes: decoded(&nodes)?, ..World::default() };
    let every = json!({});
    let job = with_status(&every, &daemonjob(&every, &Value::Null)?, &world)?;
    let at = began().to_string();
    let ended = |code: i32| {
        json!({ "terminated": { "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
        "startedAt": at, "finishedAt": at } })
    };
    let pods = created(&job, &world);
    let running = with_state(&pods, "Running", &json!({ "running": { "startedAt": at } }));
    let (succeeded, failed) =
        (with_state(&pods, "Succeeded", &ended(0)), with_state(&pods, "Failed", &ended(1)));
    // All bodies exist before the measured objects, as if they came from the API server. The trees of values
    // would leave gaps between the objects, which a manager's memory does not have.
    drop(pods);
    world.nodes = decoded(&nodes)?;
    let mut measured = Vec::new();
    let mut add = |state, job: &DaemonJob, world: &World| {
        measured.push(Measured { state, milliseconds: times(job, world, passes) });
        tick();
    };
    let few = json!({ "parallelism": 10 });
    add("no pods yet, parallelism 10", &with_status(&few, &daemonjob(&few, &Value::Null)?, &world)?, &world);
    world.pods = decoded(&running)?;
    add("all pods run", &job, &world);
    world.pods = decoded(&succeeded)?;
    let (shards, _) = ledger(&job, &world)?;
    world.ledger = shards;
    let done = with_status(&every, &job, &world)?;
    add("all nodes are done, with pods", &done, &world);
    world.pods.clear();
    add("all nodes are done, without pods", &done, &world);
    world.ledger.clear();
    world.pods = decoded(&failed)?;
    let strict = json!({ "backoffLimit": 0 });
    let job = with_status(&strict, &daemonjob(&strict, &Value::Null)?, &world)?;
    let (shards, shard) = ledger(&job, &world)?;
    world.ledger = shards;
    let failed = with_status(&strict, &job, &world)?;
    add("all nodes have failed, with pods", &failed, &world);
    let status = serde_json::to_string(&failed.status)?.len();
    Ok((measured, Sizes { shard, status }))
}

/// Milliseconds of reconciles, after a warm-up. Before each, one pod and one node in a hundred change.
fn times(job: &DaemonJob, world: &World, passes: usize) -> Vec<f64> {
    let (mut clocks, mut index) = (Clocks::default(), Arc::<Index>::default());
    let (mut pods, mut nodes) = (world.pods.clone(), world.nodes.clone());
    let pass = |number: usize| {
        let passed = SignedDuration::from_secs(i64::try_from(number).unwrap_or_default());
        let now = began().checked_add(passed).unwrap_or_default();
        for pod in pods.iter_mut().skip(number % 100).step_by(100) {
            *pod = Arc::new((**pod).clone());
        }
        for node in nodes.iter_mut().skip(number % 100).step_by(100) {
            let mut changed = (**node).clone();
            changed.meta.uid = (*changed.meta.uid).into();
            *node = Arc::new(changed);
        }
        let begin = Instant::now();
        let mut observed = World {
            pods: pods.clone(),
            nodes: nodes.clone(),
            ledger: world.ledger.clone(),
            index: index.clone(),
            ..World::default()
        };
        clocks.step(job, &observed, (now, passed));
        observed.clocks = clocks.clone();
        observed.index = observed.indexed(&job.spec.template.hash());
        index = observed.index.clone();
        std::hint::black_box(plan(job, &observed, now));
        drop(observed);
        begin.elapsed().as_secs_f64() * 1e3
    };
    (0..WARM + passes).map(pass).skip(WARM).collect()
}
