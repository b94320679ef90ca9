//! One function for each measure. The contenders run one after another on a cluster, each with its own
//! process and, if it needs objects, its own namespace.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use quintet_localcluster::audit::Request;
use quintet_localcluster::image::gzip;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::{interrupt, run};
use serde_json::{Value, json};

use super::contender::{Contender, Stand};
use super::figures::Results;
use super::objects::{KINDS, daemon_job, daemon_jobs, pod_set, pod_sets, pod_spec};
use super::sizes::Sizes;
use crate::contest::{counts, remove};
use crate::peer::{LIMIT, Running};
use crate::process;
use crate::rig::{LOOK, Rig, pods, settled as quiet};
use crate::scrape;
use crate::stats::{float, mebibytes, signed};

/// The polling interval of the audit log, which has the exact times.
const GLANCE: Duration = Duration::from_millis(5);

/// Events a second: about the limit of the API server on two cores.
const RATE: u32 = 100;

/// Events a second that leave the API server time.
const CALM_RATE: u32 = 25;

/// A manager without a reconcile for this time is at rest. Statuses are written a second after one another.
const QUIET: Duration = Duration::from_secs(5);

/// Quintet's renew period; the controller-runtime manager's is 2 s.
const RENEWAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub number: usize,
    pub of: usize,
    /// The contenders on this cluster, in this order.
    pub contenders: &'a [Contender],
}

impl Pair<'_> {
    /// The delay between a renewal of the Lease and the fault, another one in each pair.
    pub fn phase(self) -> Result<Duration> {
        Ok(RENEWAL * u32::try_from(self.number - 1)? / u32::try_from(self.of)?)
    }

    pub fn each(self, rig: &Rig, what: &str, mut measure: impl FnMut(Contender) -> Result<()>) -> Result<()> {
        let Self { number, of, contenders } = self;
        contenders.iter().try_for_each(|&contender| {
            rig.step(format!("{what}, pair {number} of {of}: {contender}"), || measure(contender))
        })
    }
}

/// Lets every contender create a pod as a warm-up of the cluster.
pub fn warm_up(stand: &Stand<'_>, pair: Pair) -> Result<()> {
    let namespace = stand.rig.namespace()?;
    for &contender in pair.contenders.iter().rev() {
        stand.rig.step(format!("warming up: {contender}"), || {
            let (running, _) = first_write(stand, contender, &namespace)?;
            clear(stand, &namespace)?;
            running.stop()
        })?;
    }
    Ok(())
}

/// The size of the program, plain and compressed as a layer of an image.
pub fn size(stand: &Stand<'_>, results: &mut Results) -> Result<()> {
    for &contender in Contender::MANAGERS {
        let program = stand.program(contender);
        let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        results.one(contender, 1, "bytes", float(bytes.len()) / 1_048_576.0);
        // The sizes of images are in MB.
        results.one(contender, 1, "compressed", float(gzip(&bytes)?.len()) / 1e6);
    }
    Ok(())
}

pub fn idle(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    pair.each(stand.rig, "idle", |contender| {
        let running = settled(stand, contender, sizes)?;
        interrupt::pause(sizes.idle)?;
        let memory = running.memory()?;
        results.one(contender, pair.number, "rss", mebibytes(memory.rss_kib));
        results.one(contender, pair.number, "pss", mebibytes(memory.pss_kib));
        results.one(contender, pair.number, "threads", threads(&running)?);
        running.stop()
    })
}

/// Requests of all idle contenders at the same time, for longer than a watch.
pub fn requests(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let label = format!("requests of idle managers, {} s", sizes.long.as_secs());
    stand.rig.step(label, || {
        let settle = |&contender: &Contender| Ok((contender, settled(stand, contender, sizes)?));
        let started = pair.contenders.iter().map(settle).collect::<Result<Vec<_>>>()?;
        stand.rig.forget_requests()?;
        let began = Instant::now();
        while let Some(left) = sizes.long.checked_sub(began.elapsed()) {
            stand.rig.tick();
            interrupt::pause(left.min(Duration::from_secs(1)))?;
        }
        let requests = stand.rig.requests_so_far()?;
        let seconds = began.elapsed().as_secs_f64();
        for (contender, running) in started {
            let mut add = |figure, is: fn(&Request) -> bool| {
                let own =
                    requests.iter().filter(|request| request.author == contender.author() && is(request));
                results.one(contender, pair.number, figure, float(own.count()) / seconds);
            };
            add("requests", |_| true);
            add("reads", Request::is_read);
            add("besides", |request| !request.is_of_election());
            running.stop()?;
        }
        Ok(())
    })
}

/// Memory for foreign pods.
pub fn foreign(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let mut without = BTreeMap::new();
    pair.each(stand.rig, "memory without pods", |contender| {
        without.insert(contender, resident(stand, contender, sizes)?);
        Ok(())
    })?;
    let namespace = rig.namespace()?;
    rig.step(format!("creating {} foreign pods", sizes.many), || {
        let (metadata, spec) = (|number| json!({"name": format!("foreign-{number}")}), pod_spec("Always"));
        let pod =
            |number| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(number), "spec": spec});
        let bodies = (0..sizes.many).map(|number| serde_json::to_vec(&pod(number)));
        rig.create_all(&pods(&namespace), bodies.collect::<Result<_, _>>()?)
    })?;
    pair.each(stand.rig, "memory with foreign pods", |contender| {
        let (with, without) = (resident(stand, contender, sizes)?, without[&contender]);
        results.one(contender, pair.number, "bytes", per_pod(without, with, sizes.many));
        Ok(())
    })
}

/// Memory for own pods, at the start and settled, and the time until the first write with them.
pub fn own(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let mut without = BTreeMap::new();
    pair.each(stand.rig, "memory without pods", |contender| {
        let rss = resident(stand, contender, sizes)?;
        results.one(contender, pair.number, "rss-none", mebibytes(rss));
        without.insert(contender, rss);
        Ok(())
    })?;
    let many = rig.namespace()?;
    let (tenth, half) = (sizes.many / 10, sizes.many / 2);
    for (figure, part, more) in [("rss-tenth", "a tenth", tenth), ("rss-half", "half", half - tenth)] {
        many_pods(stand, &many, figure, more)?;
        pair.each(stand.rig, &format!("memory with {part} of its pods"), |contender| {
            results.one(contender, pair.number, figure, mebibytes(resident(stand, contender, sizes)?));
            Ok(())
        })?;
    }
    many_pods(stand, &many, "all", sizes.many - half)?;
    let namespace = rig.namespace()?;
    pair.each(stand.rig, "memory with its own pods", |contender| {
        // Wait until the API server has finished its work for the previous contender.
        interrupt::pause(sizes.settle)?;
        let (running, seconds) = first_write(stand, contender, &namespace)?;
        interrupt::pause(sizes.settle)?;
        let memory = running.memory()?;
        results.one(
            contender,
            pair.number,
            "bytes",
            per_pod(without[&contender], memory.rss_kib, sizes.many),
        );
        results.one(contender, pair.number, "rss", mebibytes(memory.rss_kib));
        results.one(contender, pair.number, "peak", float(memory.peak_kib) / float(memory.rss_kib));
        results.one(contender, pair.number, "first", 1_000.0 * seconds);
        clear(stand, &namespace)?;
        running.stop()
    })
}

/// Requests of a restarted manager when all objects are in their desired state, and of the idle manager.
pub fn restart(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let (rig, ours) = (stand.rig, Contender::Quintet);
    let namespace = rig.namespace()?;
    let (number, of) = (pair.number, pair.of);
    rig.step(format!("{} objects of five kinds, pair {number} of {of}", sizes.many), || {
        stand.free(ours)?;
        let running = stand.start(ours, "a")?.once_ready()?;
        for kind in KINDS {
            let bodies = (0..kind.share(sizes.many)).map(|number| serde_json::to_vec(&kind.object(number)));
            let bodies = bodies.collect::<Result<_, _>>()?;
            rig.wait_for(rig.api().create_all(&kind.collection(&namespace), bodies))?;
            rig.tick();
        }
        at_rest(stand, &running, sizes.many)?;
        rig.wait_until_released(&namespace)?;
        at_rest(stand, &running, sizes.many)?;
        running.stop()
    })?;
    rig.step(format!("restart, pair {number} of {of}"), || {
        stand.free(ours)?;
        rig.forget_requests()?;
        let running = stand.start(ours, "a")?.once_ready()?;
        rig.wait_until("every object was reconciled", || {
            let metrics = running.metrics()?;
            Ok(KINDS.iter().all(|kind| {
                let passes =
                    scrape::sum(&metrics, "controller_runtime_reconcile_total", &[("controller", kind.name)]);
                passes >= float(kind.share(sizes.many))
            }))
        })?;
        at_rest(stand, &running, sizes.many)?;
        let count = |requests: &[Request], is: fn(&Request) -> bool| {
            let is_ours =
                |request: &&Request| request.author == ours.author() && request.resource != "leases";
            float(requests.iter().filter(is_ours).filter(|request| is(request)).count())
        };
        let requests = rig.requests_so_far()?;
        results.one(ours, number, "writes", count(&requests, Request::is_write));
        results.one(ours, number, "reads", count(&requests, Request::is_read));
        interrupt::pause(sizes.idle)?;
        results.one(ours, number, "steady", count(&rig.requests_so_far()?, Request::is_read));
        running.stop()
    })
}

/// From the start of the program to the arrival of its first write.
pub fn start(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let namespace = stand.rig.namespace()?;
    pair.each(stand.rig, "start to first write", |contender| {
        interrupt::pause(sizes.settle)?;
        let (running, seconds) = first_write(stand, contender, &namespace)?;
        results.one(contender, pair.number, "first", 1_000.0 * seconds);
        clear(stand, &namespace)?;
        running.stop()
    })
}

/// From the answer to the creation of an object to the answer to the creation of its pod.
pub fn latency(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    pair.each(stand.rig, "event to write", |contender| {
        let running = settled(stand, contender, sizes)?;
        for (figure, rate, events) in
            [("delay-calm", CALM_RATE, sizes.calm_events), ("delay", RATE, sizes.events)]
        {
            let delays = delays_at(stand, &running, rate, events)?;
            results.add(contender, pair.number, figure, delays);
        }
        running.stop()
    })
}

/// Milliseconds from each event to the write that it causes. `rate` is the number of events a second.
fn delays_at(stand: &Stand<'_>, running: &Running, rate: u32, events: usize) -> Result<Vec<f64>> {
    let rig = stand.rig;
    let namespace = rig.namespace()?;
    rig.forget_requests()?;
    let (api, collection) = (rig.api(), pod_sets(&namespace));
    let sender = rig.spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        // The loop is open: a late event does not delay the others.
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
    rig.wait_until("every event has its pod", || {
        running.must_run()?;
        writes.extend(rig.writes_so_far(&namespace)?);
        let made = writes.iter().filter(|write| write.is_creation_of_pod()).count();
        Ok(made >= events)
    })?;
    let owners: BTreeMap<String, String> =
        rig.list(&pods(&namespace))?.iter().filter_map(owner_of_pod).collect();
    let delays = delays(&writes, &owners);
    if delays.len() != events {
        bail!("only {} of {events} events have a pod in the audit log", delays.len());
    }
    clear(stand, &namespace)?;
    Ok(delays)
}

/// Milliseconds between the answers to the creations of an owner and of its pod.
fn delays(writes: &[Request], owners: &BTreeMap<String, String>) -> Vec<f64> {
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

/// Processor time and writes for pods that run to completion, and a canary's latency meanwhile.
pub fn drive(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    let driven = sizes.jobs * rig.nodes();
    pair.each(stand.rig, "pods to completion", |contender| {
        let namespace = rig.namespace()?;
        let running = settled(stand, contender, sizes)?;
        rig.forget_requests()?;
        let canary = rig.canary();
        let (cpu, share, began) =
            (process::cpu_seconds(running.pid())?, rig.share([running.pid()])?, Instant::now());
        let paths: Vec<String> =
            (0..sizes.jobs).map(|number| format!("{}/drive-{number}", daemon_jobs(&namespace))).collect();
        for number in 0..sizes.jobs {
            rig.create(&daemon_jobs(&namespace), &daemon_job(&format!("drive-{number}")))?;
        }
        rig.wait_until("all pods have succeeded", || {
            running.must_run()?;
            for path in &paths {
                let job = rig.get(path)?.unwrap_or_default();
                if !counts(&job["status"]["succeeded"], rig.nodes()) || job["status"]["succeeded"].is_null() {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let seen = canary.seen()?;
        drop(canary);
        let tally = rig.tally(&namespace, contender.author())?;
        let cpu = process::cpu_seconds(running.pid())? - cpu;
        results.one(contender, pair.number, "cpu", cpu * 1_000.0 / float(driven));
        results.one(contender, pair.number, "writes", float(tally.writes()) / float(driven));
        results.one(contender, pair.number, "refused", float(tally.refused) / float(driven));
        results.one(contender, pair.number, "seconds", seconds);
        results.add(contender, pair.number, "canary", seen.waits);
        results.one(contender, pair.number, "canary-429", float(seen.refused));
        if let Some(others) = share.others_percent(rig.share([running.pid()])?) {
            results.one(contender, pair.number, "others", others);
        }
        for path in &paths {
            remove(rig, &namespace, path)?;
        }
        running.stop()
    })
}

/// The signal to the holder of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGTERM, as in a rollout.
    Graceful,
    /// SIGKILL.
    Crash,
}

/// From the signal until the successor holds the Lease, and to the arrival of its first write.
pub fn hand_over(
    stand: &Stand<'_>,
    sizes: &Sizes,
    pair: Pair<'_>,
    end: End,
    with_many: bool,
    results: &mut Results,
) -> Result<()> {
    if with_many {
        many_pods(stand, &stand.rig.namespace()?, "many", sizes.many)?;
    }
    let what = match end {
        End::Graceful => "graceful hand-over",
        End::Crash => "fail-over after a crash",
    };
    pair.each(stand.rig, what, |contender| {
        let namespace = stand.rig.namespace()?;
        // Without a hand-over, the time is that of the Lease, which varies little.
        let times = match (end, contender) {
            (End::Graceful, Contender::Quintet) => sizes.hand_overs.div_ceil(sizes.pairs),
            (End::Graceful, Contender::TwinTuned) => sizes.hand_overs.div_ceil(sizes.pairs).div_ceil(5),
            _ => 1,
        };
        stand.free(contender)?;
        let Some(follower) = stand.follow(contender, NAMESPACE) else { return Ok(()) };
        let start = |place| match end {
            End::Graceful => stand.start(contender, place)?.once_ready(),
            End::Crash => stand.start_renewing_alike(contender, place)?.once_ready(),
        };
        let mut leader = start("a")?;
        let (mut released, mut taken, mut wrote) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..times {
            let old = follower.wait_for_holder()?;
            let standby = start(if number % 2 == 0 { "b" } else { "a" })?;
            interrupt::pause(sizes.standby)?;
            if end == End::Crash {
                interrupt::pause(RENEWAL + pair.phase()?)?;
            }
            stand.rig.forget_requests()?;
            let began = Timestamp::now();
            if end == End::Crash {
                leader.kill();
            } else {
                leader.terminate();
                run::poll("the old leader left", LIMIT, Duration::from_millis(1), || {
                    Ok((follower.released(began).is_some() || leader.has_ended()?).then_some(()))
                })?;
            }
            // Only the successor can reconcile this object.
            stand.rig.create(&pod_sets(&namespace), &pod_set(&format!("after-{number}"), 1))?;
            let first = first_creation(stand, contender, &namespace)?;
            let since = |at: Timestamp| 1_000.0 * at.duration_since(began).as_secs_f64();
            let holder =
                run::poll("the standby holds the Lease", LIMIT, LOOK, || Ok(follower.taken(began, &old)))?;
            taken.push(since(holder));
            wrote.push(since(first));
            released.extend(follower.released(began).map(since));
            leader = standby;
        }
        if contender.releases() && end == End::Graceful {
            results.add(contender, pair.number, "released", released);
        }
        results.add(contender, pair.number, "taken", taken);
        results.add(contender, pair.number, "wrote", wrote);
        clear(stand, &namespace)?;
        leader.stop()
    })
}

/// Waits for the first creation of a pod, and returns the time of its arrival.
pub(super) fn first_creation(stand: &Stand<'_>, contender: Contender, namespace: &str) -> Result<Timestamp> {
    stand.rig.poll("a pod is created", GLANCE, || {
        let writes = stand.rig.writes_so_far(namespace)?;
        let mut made =
            writes.iter().filter(|write| write.author == contender.author() && write.is_creation_of_pod());
        Ok(made.next().map(|write| write.received))
    })
}

/// Creates a PodSet and starts a contender. Returns the seconds until the first creation of a pod.
fn first_write(stand: &Stand<'_>, contender: Contender, namespace: &str) -> Result<(Running, f64)> {
    stand.free(contender)?;
    stand.rig.create(&pod_sets(namespace), &pod_set("first", 1))?;
    stand.rig.forget_requests()?;
    let running = stand.start(contender, "a")?;
    let first = first_creation(stand, contender, namespace)?;
    let seconds = first.duration_since(running.began).as_secs_f64();
    Ok((running, seconds))
}

/// Starts a contender that holds the Lease, and waits until it is settled.
pub(super) fn settled(stand: &Stand<'_>, contender: Contender, sizes: &Sizes) -> Result<Running> {
    stand.free(contender)?;
    let follower = stand.follow(contender, NAMESPACE);
    let running = stand.start(contender, "a")?.once_ready()?;
    if let Some(follower) = follower {
        follower.wait_for_holder()?;
    }
    interrupt::pause(sizes.settle)?;
    Ok(running)
}

/// The time limit of work with this number of objects.
fn patience(stand: &Stand<'_>, things: usize) -> Result<Duration> {
    Ok(stand.rig.patience() + Duration::from_millis(20) * u32::try_from(things)?)
}

/// Waits until a manager has no more reconciles.
fn at_rest(stand: &Stand<'_>, running: &Running, objects: usize) -> Result<()> {
    quiet("the manager is quiet", QUIET, patience(stand, objects)?, || {
        running.must_run()?;
        Ok(scrape::sum(&running.metrics()?, "controller_runtime_reconcile_total", &[]))
    })?;
    Ok(())
}

/// Starts a contender, and returns its settled RSS in KiB.
fn resident(stand: &Stand<'_>, contender: Contender, sizes: &Sizes) -> Result<u64> {
    let running = settled(stand, contender, sizes)?;
    let memory = running.memory()?;
    running.stop()?;
    Ok(memory.rss_kib)
}

/// Bytes per pod from two readings in KiB.
fn per_pod(without: u64, with: u64, pods: usize) -> f64 {
    1_024.0 * signed(with.cast_signed() - without.cast_signed()) / float(pods)
}

/// Lets Quintet create many pods for a PodSet of this name. Their labels are those that both managers select.
/// They stay until the cluster is removed.
fn many_pods(stand: &Stand<'_>, namespace: &str, name: &str, pods: usize) -> Result<()> {
    let rig = stand.rig;
    rig.step(format!("creating {pods} pods"), || {
        stand.free(Contender::Quintet)?;
        let running = stand.start(Contender::Quintet, "a")?.once_ready()?;
        let path = format!("{}/{name}", pod_sets(namespace));
        rig.create(&pod_sets(namespace), &pod_set(name, pods))?;
        run::poll("the pods exist", patience(stand, pods)?, Duration::from_millis(500), || {
            rig.tick();
            let status = rig.get(&path)?.unwrap_or_default()["status"].take();
            Ok((!status["replicas"].is_null() && counts(&status["replicas"], pods)).then_some(()))
        })?;
        running.stop()
    })
}

/// Deletes all PodSets of a namespace and their pods.
pub(super) fn clear(stand: &Stand<'_>, namespace: &str) -> Result<()> {
    let collection = pod_sets(namespace);
    stand.rig.delete(&format!("{collection}?propagationPolicy=Background"))?;
    stand.rig.wait_until_empty(&collection)?;
    stand.rig.remove_pods(namespace)
}

fn threads(running: &Running) -> Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).context("cannot list the threads")?;
    Ok(float(tasks.count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_localcluster::audit::Author;

    fn write(resource: &str, name: &str, millisecond: i64) -> Request {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        Request {
            author: Author::Twin,
            namespace: "n".to_owned(),
            verb: "create".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            code: 201,
            message: String::new(),
            received: at,
            answered: at,
        }
    }

    #[test]
    fn delay_is_between_an_owner_and_its_pod() {
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
