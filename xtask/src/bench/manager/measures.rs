//! One function for each measure: contenders one after another, A B B A, each with a process and, where it makes objects,
//! a namespace of its own.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Sizes;
use super::contender::{Contender, Stand};
use super::figures::Results;
use crate::bench::audit::{Tally, Write};
use crate::bench::contest::{counts, order, remove};
use crate::bench::peer::Running;
use crate::bench::process;
use crate::bench::rig::{LOOK, pods};
use crate::bench::scrape;
use crate::bench::stats::{float, mebibytes, signed};
use crate::progress::Step;
use crate::{interrupt, run};

/// How often the audit log is read; the times are those in it.
const GLANCE: Duration = Duration::from_millis(5);

/// Events a second of the open loop.
const RATE: u32 = 100;

/// How often the canary asks.
const CANARY: Duration = Duration::from_millis(20);

/// Calls `measure` for each contender of each pair.
fn pairs(
    what: &str,
    count: usize,
    mut measure: impl FnMut(Contender, usize, &mut Step) -> Result<()>,
) -> Result<()> {
    for pair in 1..=count {
        for contender in order(&Contender::ALL, pair) {
            let mut step = Step::start_long(format!("{what}, pair {pair} of {count}: {}", contender.name()));
            measure(contender, pair, &mut step)?;
            step.done();
        }
    }
    Ok(())
}

/// The size of the program, as it is and compressed as a layer of an image is.
pub fn size(stand: &Stand<'_>, results: &mut Results) -> Result<()> {
    for contender in Contender::ALL {
        let program = stand.program(contender);
        let bytes =
            fs::metadata(&program).with_context(|| format!("cannot read {}", program.display()))?.len();
        let gzip = run::output(std::process::Command::new("gzip").args(["-9", "-c"]).arg(&program), None)?;
        results.one(contender, 1, "bytes", mebibytes(bytes / 1_024));
        results.one(contender, 1, "compressed", float(gzip.stdout.len()) / (1_024.0 * 1_024.0));
    }
    Ok(())
}

/// Memory and requests while nothing happens.
pub fn idle(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    pairs("idle", sizes.pairs, |contender, pair, _| {
        let running = settled(stand, contender, sizes)?;
        let (before, began) = (requests(&running)?, Instant::now());
        interrupt::pause(sizes.idle)?;
        let asked = requests(&running)? - before;
        let per_second = asked / began.elapsed().as_secs_f64();
        let memory = running.memory()?;
        results.one(contender, pair, "rss", mebibytes(memory.rss_kib));
        results.one(contender, pair, "pss", mebibytes(memory.pss_kib));
        results.one(contender, pair, "threads", threads(&running)?);
        results.one(contender, pair, "requests", per_second);
        running.stop()
    })
}

/// Memory for pods that nobody here owns.
pub fn foreign(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let mut without = BTreeMap::new();
    pairs("memory without pods", sizes.pairs, |contender, pair, _| {
        without.insert((contender, pair), resident(stand, contender, sizes)?);
        Ok(())
    })?;
    let namespace = rig.namespace()?;
    let step = Step::start_long(format!("making {} foreign pods", sizes.many));
    let bodies = (0..sizes.many).map(|number| {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("foreign-{number}")}});
        pod["spec"] = pod_spec("Always");
        serde_json::to_vec(&pod)
    });
    rig.create_all(&pods(&namespace), bodies.collect::<Result<_, _>>()?)?;
    step.done();
    pairs("memory with foreign pods", sizes.pairs, |contender, pair, _| {
        let (with, without) = (resident(stand, contender, sizes)?, without[&(contender, pair)]);
        results.one(contender, pair, "bytes", per_pod(without, with, sizes.many));
        Ok(())
    })?;
    rig.remove_pods(&namespace)
}

/// Memory for pods of its own, at the start and settled, and the time until the first write with so many of them.
pub fn own(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let mut without = BTreeMap::new();
    pairs("memory without pods", sizes.pairs, |contender, pair, _| {
        without.insert((contender, pair), resident(stand, contender, sizes)?);
        Ok(())
    })?;
    let many = many_pods(stand, sizes)?;
    let namespace = rig.namespace()?;
    pairs("memory with its own pods", sizes.pairs, |contender, pair, _| {
        let (running, seconds) = first_write(stand, contender, &namespace)?;
        interrupt::pause(sizes.settle)?;
        let memory = running.memory()?;
        let without = without[&(contender, pair)];
        results.one(contender, pair, "bytes", per_pod(without, memory.rss_kib, sizes.many));
        results.one(contender, pair, "rss", mebibytes(memory.rss_kib));
        results.one(contender, pair, "peak", float(memory.peak_kib) / float(memory.rss_kib));
        results.one(contender, pair, "first", 1_000.0 * seconds);
        clear(stand, &namespace)?;
        running.stop()
    })?;
    remove_many(stand, &many)
}

/// From the start of the program until its first write arrives.
pub fn start(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    let namespace = stand.rig.namespace()?;
    pairs("start to first write", sizes.pairs, |contender, pair, _| {
        let (running, seconds) = first_write(stand, contender, &namespace)?;
        results.one(contender, pair, "first", 1_000.0 * seconds);
        clear(stand, &namespace)?;
        running.stop()
    })
}

/// From the answer to a request that makes an object until the answer to the one that makes its pod.
pub fn latency(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    pairs("event to write", sizes.pairs, |contender, pair, step| {
        let namespace = rig.namespace()?;
        let running = settled(stand, contender, sizes)?;
        rig.forget_writes()?;
        let (api, collection, events) = (rig.api(), pod_sets(&namespace), sizes.events);
        let sender = rig.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
            // One that comes late does not put off the others: the loop is open.
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
            let mut sent = tokio::task::JoinSet::new();
            for number in 0..events {
                ticks.tick().await;
                let (api, collection, object) =
                    (api.clone(), collection.clone(), pod_set(&format!("event-{number}"), 1));
                sent.spawn(async move { api.create(&collection, &object).await.map(|_| ()) });
            }
            while let Some(one) = sent.join_next().await {
                one.context("a request's task ended early")??;
            }
            anyhow::Ok(())
        });
        rig.wait_for(async { sender.await.context("the sender's task ended early")? })?;
        let mut writes = Vec::new();
        run::poll("every event has its pod", rig.patience(), LOOK, || {
            step.tick();
            running.must_run()?;
            writes.extend(rig.writes_so_far(&namespace)?);
            let made = writes.iter().filter(|write| write.is_creation_of_pod()).count();
            Ok((made >= sizes.events).then_some(()))
        })?;
        let owners: BTreeMap<String, String> =
            rig.list(&pods(&namespace))?.iter().filter_map(owner_of_pod).collect();
        let delays = delays(&writes, &owners);
        if delays.len() != sizes.events {
            bail!("{} of {} events have a pod in the audit log", delays.len(), sizes.events);
        }
        results.add(contender, pair, "delay", delays);
        clear(stand, &namespace)?;
        running.stop()
    })
}

/// Milliseconds between the answers to the requests that made an owner and its pod.
fn delays(writes: &[Write], owners: &BTreeMap<String, String>) -> Vec<f64> {
    let made = |resource: &str| -> BTreeMap<&str, Timestamp> {
        let done = writes.iter().filter(|write| write.is_done() && write.verb == "create");
        done.filter(|write| write.resource == resource)
            .map(|write| (write.name.as_str(), write.answered))
            .collect()
    };
    let (sets, pods) = (made("podsets"), made("pods"));
    let delay = |(pod, at): (&&str, &Timestamp)| {
        let event = sets.get(owners.get(*pod)?.as_str())?;
        Some(1_000.0 * at.duration_since(*event).as_secs_f64())
    };
    pods.iter().filter_map(delay).collect()
}

fn owner_of_pod(pod: &Value) -> Option<(String, String)> {
    let name = pod["metadata"]["name"].as_str()?;
    let owner = pod["metadata"]["ownerReferences"][0]["name"].as_str()?;
    Some((name.to_owned(), owner.to_owned()))
}

/// Processor time and writes for pods that run to completion, and how a stranger fares meanwhile.
pub fn drive(stand: &Stand<'_>, sizes: &Sizes, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let driven = sizes.jobs * rig.nodes();
    pairs("pods driven to completion", sizes.pairs, |contender, pair, step| {
        let namespace = rig.namespace()?;
        let running = settled(stand, contender, sizes)?;
        rig.forget_writes()?;
        let canary = Canary::start(stand, &namespace);
        let (cpu, share, began) =
            (process::cpu_seconds(running.pid())?, rig.share([running.pid()])?, Instant::now());
        let paths: Vec<String> =
            (0..sizes.jobs).map(|number| format!("{}/drive-{number}", daemon_jobs(&namespace))).collect();
        for number in 0..sizes.jobs {
            rig.create(&daemon_jobs(&namespace), &daemon_job(&format!("drive-{number}")))?;
        }
        run::poll("all pods have succeeded", rig.patience(), LOOK, || {
            step.tick();
            running.must_run()?;
            for path in &paths {
                let job = rig.get(path)?.unwrap_or_default();
                if !counts(&job["status"]["succeeded"], rig.nodes()) || job["status"]["succeeded"].is_null() {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let waits = canary.finish(stand)?;
        let writes = rig.writes(&namespace)?;
        let tally = Tally::of(&writes, contender.author(), &namespace);
        let cpu = process::cpu_seconds(running.pid())? - cpu;
        results.one(contender, pair, "cpu", cpu * 1_000.0 / float(driven));
        results.one(contender, pair, "writes", float(tally.writes()) / float(driven));
        results.one(contender, pair, "seconds", seconds);
        results.add(contender, pair, "canary", waits);
        if let Some(others) = share.others_percent(rig.share([running.pid()])?) {
            results.one(contender, pair, "others", others);
        }
        for path in &paths {
            remove(rig, &namespace, path)?;
        }
        running.stop()
    })
}

/// Somebody who has nothing to do with the manager and asks the API server for a small object, again and again.
struct Canary {
    ended: Arc<AtomicBool>,
    waits: Arc<Mutex<Vec<f64>>>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Canary {
    fn start(stand: &Stand<'_>, namespace: &str) -> Self {
        let (ended, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (api, path) = (stand.rig.api(), format!("/api/v1/namespaces/{namespace}"));
        let (until, into) = (Arc::clone(&ended), Arc::clone(&waits));
        let task = stand.rig.spawn(async move {
            while !until.load(Ordering::Relaxed) {
                let began = Instant::now();
                api.get(&path).await?;
                let wait = 1_000.0 * began.elapsed().as_secs_f64();
                into.lock().unwrap_or_else(PoisonError::into_inner).push(wait);
                tokio::time::sleep(CANARY).await;
            }
            Ok(())
        });
        Self { ended, waits, task }
    }

    /// Milliseconds that each request took.
    fn finish(self, stand: &Stand<'_>) -> Result<Vec<f64>> {
        self.ended.store(true, Ordering::Relaxed);
        stand.rig.wait_for(async { self.task.await.context("the canary's task ended early")? })?;
        Ok(self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// How the holder of the Lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By SIGTERM, as in a rollout.
    Graceful,
    /// By SIGKILL.
    Crash,
}

/// From the signal until the successor holds the Lease, and until its first write arrives.
pub fn hand_over(
    stand: &Stand<'_>,
    sizes: &Sizes,
    end: End,
    with_many: bool,
    results: &mut Results,
) -> Result<()> {
    let many = with_many.then(|| many_pods(stand, sizes)).transpose()?;
    let what = match end {
        End::Graceful => "graceful hand-over",
        End::Crash => "fail-over after a crash",
    };
    pairs(what, sizes.pairs, |contender, pair, step| {
        let namespace = stand.rig.namespace()?;
        // One that nobody hands over takes as long as the Lease: a few tell as much as a hundred.
        let times = match (end, contender) {
            (End::Graceful, Contender::Quintet) => sizes.hand_overs.div_ceil(sizes.pairs),
            (End::Graceful, Contender::TwinTuned) => sizes.hand_overs.div_ceil(sizes.pairs).div_ceil(5),
            _ => 1,
        };
        stand.free(contender)?;
        let follower = stand.follow(contender);
        let mut leader = stand.start_ready(contender, "a")?;
        let (mut released, mut taken, mut wrote) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..times {
            step.tick();
            let old = follower.wait_for_holder()?;
            let standby = stand.start_ready(contender, if number % 2 == 0 { "b" } else { "a" })?;
            interrupt::pause(sizes.standby)?;
            stand.rig.forget_writes()?;
            let began = Timestamp::now();
            if end == End::Crash {
                leader.kill();
            } else {
                leader.terminate();
                run::poll("the old leader let go", Duration::from_mins(1), Duration::from_millis(1), || {
                    Ok((follower.released(began).is_some() || leader.has_ended()?).then_some(()))
                })?;
            }
            // What the old leader cannot do any more.
            stand.rig.create(&pod_sets(&namespace), &pod_set(&format!("after-{pair}-{number}"), 1))?;
            let first = first_creation(stand, contender, &namespace)?;
            let since = |at: Timestamp| 1_000.0 * at.duration_since(began).as_secs_f64();
            let holder = run::poll("the standby holds the Lease", Duration::from_mins(1), LOOK, || {
                Ok(follower.taken(began, &old))
            })?;
            taken.push(since(holder));
            wrote.push(since(first));
            released.extend(follower.released(began).map(since));
            leader = standby;
        }
        if contender.releases() && end == End::Graceful {
            results.add(contender, pair, "released", released);
        }
        results.add(contender, pair, "taken", taken);
        results.add(contender, pair, "wrote", wrote);
        clear(stand, &namespace)?;
        leader.stop()
    })?;
    many.map_or(Ok(()), |many| remove_many(stand, &many))
}

/// When the first request to make a pod came; waits for it.
fn first_creation(stand: &Stand<'_>, contender: Contender, namespace: &str) -> Result<Timestamp> {
    run::poll("a pod is made", stand.rig.patience(), GLANCE, || {
        let writes = stand.rig.writes_so_far(namespace)?;
        let mut made =
            writes.iter().filter(|write| write.author == contender.author() && write.is_creation_of_pod());
        Ok(made.next().map(|write| write.received))
    })
}

/// Starts a contender for which there is something to do, and says after how many seconds it began to.
fn first_write(stand: &Stand<'_>, contender: Contender, namespace: &str) -> Result<(Running, f64)> {
    stand.free(contender)?;
    stand.rig.create(&pod_sets(namespace), &pod_set("first", 1))?;
    stand.rig.forget_writes()?;
    let running = stand.start(contender, "a")?;
    let first = first_creation(stand, contender, namespace)?;
    let seconds = first.duration_since(running.began).as_secs_f64();
    Ok((running, seconds))
}

/// A contender that holds the Lease and has been at rest for a while.
fn settled(stand: &Stand<'_>, contender: Contender, sizes: &Sizes) -> Result<Running> {
    stand.free(contender)?;
    let follower = stand.follow(contender);
    let running = stand.start_ready(contender, "a")?;
    follower.wait_for_holder()?;
    interrupt::pause(sizes.settle)?;
    Ok(running)
}

/// The RSS of a contender that was just started, in KiB.
fn resident(stand: &Stand<'_>, contender: Contender, sizes: &Sizes) -> Result<u64> {
    let running = settled(stand, contender, sizes)?;
    let memory = running.memory()?;
    running.stop()?;
    Ok(memory.rss_kib)
}

/// Bytes for each pod between two readings in KiB.
fn per_pod(without: u64, with: u64, pods: usize) -> f64 {
    1_024.0 * signed(with.cast_signed() - without.cast_signed()) / float(pods)
}

/// Makes many pods that are everybody's own: Quintet makes them, and they have the labels by which the twin selects.
/// The namespace is returned.
fn many_pods(stand: &Stand<'_>, sizes: &Sizes) -> Result<String> {
    let rig = stand.rig;
    let namespace = rig.namespace()?;
    let mut step = Step::start_long(format!("making {} pods", sizes.many));
    stand.free(Contender::Quintet)?;
    let running = stand.start_ready(Contender::Quintet, "a")?;
    let path = format!("{}/many", pod_sets(&namespace));
    rig.create(&pod_sets(&namespace), &pod_set("many", sizes.many))?;
    let patience = rig.patience() + Duration::from_millis(20) * u32::try_from(sizes.many)?;
    run::poll("the pods are made", patience, Duration::from_millis(500), || {
        step.tick();
        let status = rig.get(&path)?.unwrap_or_default()["status"].take();
        Ok((!status["replicas"].is_null() && counts(&status["replicas"], sizes.many)).then_some(()))
    })?;
    running.stop()?;
    step.done();
    Ok(namespace)
}

fn remove_many(stand: &Stand<'_>, namespace: &str) -> Result<()> {
    let step = Step::start_long("removing the pods");
    clear(stand, namespace)?;
    step.done();
    Ok(())
}

/// Deletes all PodSets of a namespace and their pods.
fn clear(stand: &Stand<'_>, namespace: &str) -> Result<()> {
    let collection = pod_sets(namespace);
    stand.rig.delete(&format!("{collection}?propagationPolicy=Background"))?;
    run::poll("the objects are gone", stand.rig.patience(), LOOK, || {
        Ok((!stand.rig.has_any(&collection, "")?).then_some(()))
    })?;
    stand.rig.remove_pods(namespace)
}

/// All requests that a contender has sent, as it counts them.
fn requests(running: &Running) -> Result<f64> {
    Ok(scrape::sum(&running.metrics()?, "rest_client_requests_total", &[]))
}

fn threads(running: &Running) -> Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).context("no threads are listed")?;
    Ok(float(tasks.count()))
}

fn pod_sets(namespace: &str) -> String {
    format!("/apis/batch.tutorial.kubebuilder.io/v1/namespaces/{namespace}/podsets")
}

fn daemon_jobs(namespace: &str) -> String {
    format!("/apis/dj.dysproz.io/v1/namespaces/{namespace}/daemonjobs")
}

/// Like pods are in practice: some variables, limits and a probe.
fn pod_spec(restart: &str) -> Value {
    let variables: Vec<Value> = ["HOST", "PORT", "REGION", "LEVEL", "MODE", "ENDPOINT"]
        .iter()
        .map(|name| json!({"name": name, "value": format!("the-value-of-{}", name.to_lowercase())}))
        .collect();
    json!({
        "restartPolicy": restart,
        // Nobody puts them on nodes: the manager alone is looked at.
        "schedulerName": "nobody",
        "containers": [{
            "name": "main",
            "image": "registry.example.com/team/application:1.27.3",
            "command": ["/application", "--listen=:8080", "--config=/etc/application/config.yaml"],
            "env": variables,
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        }],
    })
}

fn pod_set(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": {"twin.bench/kind": "PodSet"}}, "spec": pod_spec("Always")},
        },
    })
}

fn daemon_job(name: &str) -> Value {
    let mut spec = pod_spec("OnFailure");
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("schedulerName");
    }
    json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": {"name": name},
        // The simulated kubelets let such pods succeed.
        "spec": {"template": {"metadata": {"annotations": {"kwok.quintet.dev/exit-code": "0"}}, "spec": spec}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::audit::Author;

    fn write(resource: &str, name: &str, millisecond: i64) -> Write {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        Write {
            author: Author::Twin,
            namespace: "n".to_owned(),
            verb: "create".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            code: 201,
            received: at,
            answered: at,
        }
    }

    #[test]
    fn a_delay_is_that_of_a_pod_and_its_owner() {
        let writes = [
            write("podsets", "a", 10),
            write("pods", "b-0", 27),
            write("podsets", "b", 20),
            write("pods", "x", 30),
        ];
        let owners = [("b-0".to_owned(), "b".to_owned())].into();
        let delays = delays(&writes, &owners);
        assert!(delays.len() == 1 && (delays[0] - 7.0).abs() < 1e-9, "{delays:?}");
    }

    #[test]
    fn memory_may_shrink() {
        assert!((per_pod(100, 110, 10) - 1_024.0).abs() < 1e-9);
        assert!((per_pod(110, 100, 10) + 1_024.0).abs() < 1e-9);
    }
}
