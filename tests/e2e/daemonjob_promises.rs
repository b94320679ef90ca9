//! DaemonJob's rules while nodes break: checks every status and pod against the nodes and pods of the moment.
//!
//! One etcd holds all objects, so resourceVersions order the events of all watches. All nodes are simulated.
//! The API server, the scheduler and the node controllers are real.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quintet_e2e::objects::Watch;
use quintet_e2e::{Dice, TestEnv, condition};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, running, told, word};

/// Reasons of failed nodes that can recover.
const PROVISIONAL: [&str; 2] = ["NodeLost", "FailedAndGone"];
/// The judge ignores changes younger than this, because the manager may not know them yet.
const LAG: SignedDuration = SignedDuration::from_secs(3);
/// The default of `failurePolicy.nodeLostAfterSeconds`.
const NODE_LOST_AFTER: i64 = 600;
/// The annotation of a Node with the time at which a test changed its labels.
const RELABELLED: &str = "quintet.dev/relabelled";

/// All events of nodes, DaemonJobs and pods in an env.
struct Record {
    watches: [Watch; 3],
}

/// Counts of what the judge checked, so that a test can assert that the record was not vacuous.
#[derive(Debug, Default)]
struct Seen {
    /// Statuses with Complete=True.
    complete: usize,
    /// Created pods.
    pods: usize,
    /// Stops of a rollout by the failure policy that only the user can lift.
    stops: usize,
    /// Pods that were created while other pods or suspect nodes held slots.
    beside_slots: usize,
    /// Suspect nodes that held a slot while a pod was created.
    holders: usize,
}

/// A DaemonJob that is Failed.
#[derive(Debug)]
struct Failure {
    generation: i64,
    /// The value of `acts` at the last status that was not Failed: the manager may have missed later acts.
    acts: usize,
    /// Whether a failed node can recover.
    recovers: bool,
}

/// A node that a status listed as failed for a reason that does not recover.
#[derive(Debug)]
struct FailedNode {
    rollout: i64,
    generation: i64,
    uid: String,
    /// The number of later statuses that do not list the node.
    unlisted: usize,
}

/// The state of the record at one moment.
#[derive(Default)]
struct Moment {
    seen: Seen,
    nodes: BTreeMap<String, Value>,
    /// UIDs of nodes that were Ready without a condition taint for [`LAG`] before they stopped being Ready.
    was_well: BTreeSet<String>,
    /// Pods that have not ended.
    running: BTreeMap<String, Value>,
    /// The number of changes that may turn Failed into Complete.
    acts: usize,
    /// `acts` at the last status, by UID of the DaemonJob.
    acts_at_status: BTreeMap<String, usize>,
    failures: BTreeMap<String, Failure>,
    /// By UID of the DaemonJob and name of the node.
    failed_nodes: BTreeMap<(String, String), FailedNode>,
    jobs: BTreeMap<String, Value>,
    /// Successes: UID of the DaemonJob, UID of the node, template.
    done: BTreeSet<(String, String, String)>,
    /// Pods that have appeared.
    pods: BTreeSet<String>,
    /// Stops that only a change of the spec lifts: rollout and generation, by UID of the DaemonJob.
    stops: BTreeMap<String, (i64, i64)>,
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn time(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

fn label<'v>(pod: &'v Value, key: &str) -> &'v str {
    text(pod, &format!("/metadata/labels/dj.dysproz.io~1{key}"))
}

/// Whether the pod has ended. A pod deleted before it was scheduled never runs.
fn has_ended(pod: &Value) -> bool {
    let is_over = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    is_over || !pod["metadata"]["deletionTimestamp"].is_null() && pod["spec"]["nodeName"].is_null()
}

/// Whether a node is Ready, and since when.
fn readiness(node: &Value) -> Option<(bool, Timestamp)> {
    let conditions = node["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
    Some((ready["status"] == "True", time(ready, "/lastTransitionTime")?))
}

fn has_condition_taint(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.into_iter().flatten().any(|taint| text(taint, "/key").starts_with("node.kubernetes.io/"))
}

/// Whether the template's nodeSelector matches the node.
fn is_selected(job: &Value, node: &Value) -> bool {
    let selector = job["spec"]["template"]["spec"]["nodeSelector"].as_object();
    selector.into_iter().flatten().all(|(key, value)| node["metadata"]["labels"][key] == *value)
}

fn failed_nodes(job: &Value) -> impl Iterator<Item = &Value> {
    job["status"]["failedNodes"].as_array().into_iter().flatten()
}

fn failed_for_good(job: &Value) -> usize {
    failed_nodes(job).filter(|node| !PROVISIONAL.contains(&text(node, "/reason"))).count()
}

/// Returns violations of this rule: the status lists every failed, pending or skipped node with a reason. If
/// no pod runs, a condition or a pending node explains what the run waits for.
fn unexplained(job: &Value) -> Vec<String> {
    let (name, status) = (text(job, "/metadata/name"), &job["status"]);
    let mut wrong = Vec::new();
    for (count, list, more) in [
        ("failed", "failedNodes", "moreFailedNodes"),
        ("pending", "pendingNodes", "morePendingNodes"),
        ("skipped", "skippedNodes", "moreSkippedNodes"),
    ] {
        let listed: Vec<&Value> = status[list].as_array().into_iter().flatten().collect();
        let (counted, count) = (status[count].as_u64().unwrap_or(0), format!("status.{count}"));
        if counted != listed.len() as u64 + status[more].as_u64().unwrap_or(0) {
            wrong.push(format!("{count} of {name} is {counted}, {list} has {}", listed.len()));
        }
        let silent = listed.iter().filter(|node| text(node, "/reason").is_empty());
        wrong.extend(silent.map(|node| format!("{list} of {name} has no reason for {}", node["node"])));
    }
    let is_told = ["Complete", "Failed", "Suspended", "Paused", "PodsRefused"]
        .iter()
        .any(|type_| condition(job, type_).0 == "True");
    let has_pods = number(job, "/status/active") + number(job, "/status/terminating") > 0;
    if !is_told && !has_pods && number(job, "/status/pending") == 0 {
        wrong.push(format!("{name} makes no progress, and its status has no reason"));
    }
    wrong
}

impl Record {
    fn begin(env: &TestEnv) -> Self {
        let nodes = env.watch("nodes", &format!("env={}", env.namespace()));
        let watches = [
            nodes,
            env.watch("daemonjobs.dj.dysproz.io", ""),
            env.watch("pods", "quintet.dev/kind=DaemonJob"),
        ];
        assert!(!watches[0].events().is_empty(), "the watch has started");
        Self { watches }
    }

    /// Checks all events so far and returns what it checked.
    fn judge(&self) -> Seen {
        let version = |object: &Value| text(object, "/metadata/resourceVersion").parse::<u64>().unwrap();
        let mut events: Vec<(u64, String, Value)> = Vec::new();
        for watch in &self.watches {
            events
                .extend(watch.events().into_iter().map(|(type_, object)| (version(&object), type_, object)));
        }
        events.sort_by_key(|(version, _, _)| *version);
        let (mut moment, mut wrong) = (Moment::default(), Vec::new());
        for (_, type_, object) in events {
            let uid = text(&object, "/metadata/uid").to_owned();
            match object["kind"].as_str().unwrap() {
                "Node" => moment.node(uid, object, type_ == "DELETED"),
                "Pod" => wrong.extend(moment.pod(object, type_ == "DELETED")),
                _ if type_ == "DELETED" => drop(moment.jobs.remove(&uid)),
                _ => {
                    moment.seen.complete += usize::from(is_complete(&object));
                    wrong.extend(moment.status(&object));
                    moment.jobs.insert(uid, object);
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        moment.seen
    }
}

impl Moment {
    fn node(&mut self, uid: String, node: Value, is_deleted: bool) {
        if is_deleted {
            self.acts += 1;
            self.nodes.remove(&uid);
            return;
        }
        let before = self.nodes.get(&uid);
        let labels = |node: &Value| node["metadata"]["labels"].clone();
        self.acts += usize::from(before.is_none_or(|before| labels(before) != labels(&node)));
        match (before.and_then(|before| Some((before, readiness(before)?))), readiness(&node)) {
            (Some((before, (true, since))), Some((false, until))) => {
                let was_well = until.duration_since(since) > LAG && !has_condition_taint(before);
                if was_well {
                    self.was_well.insert(uid.clone())
                } else {
                    self.was_well.remove(&uid)
                };
            }
            (_, Some((true, _))) => drop(self.was_well.remove(&uid)),
            _ => {}
        }
        self.nodes.insert(uid, node);
    }

    fn pod(&mut self, pod: Value, is_deleted: bool) -> Vec<String> {
        let uid = text(&pod, "/metadata/uid").to_owned();
        let job = label(&pod, "daemonjob-uid").to_owned();
        if text(&pod, "/status/phase") == "Succeeded" {
            let node = label(&pod, "node-uid").to_owned();
            let done = (job.clone(), node, label(&pod, "template-hash").to_owned());
            self.acts += usize::from(self.done.insert(done));
        }
        let is_new = self.pods.insert(uid.clone());
        let mut wrong = Vec::new();
        if is_new {
            self.seen.pods += 1;
            self.acts += 1;
            let node = text(&pod, "/metadata/annotations/dj.dysproz.io~1node-name").to_owned();
            self.failed_nodes.remove(&(job, node));
            wrong.extend(self.while_stopped(&pod));
            wrong.extend(self.beyond_parallelism(&pod));
        }
        if is_deleted || has_ended(&pod) {
            self.running.remove(&uid);
        } else {
            self.running.insert(uid, pod);
        }
        wrong
    }

    /// No pod is created while the failure policy stops the rollout.
    fn while_stopped(&self, pod: &Value) -> Option<String> {
        let job = label(pod, "daemonjob-uid");
        let (rollout, generation) = self.stops.get(job)?;
        let is_of = text(pod, "/metadata/annotations/dj.dysproz.io~1rollout") == rollout.to_string();
        let is_stopped = number(self.jobs.get(job)?, "/metadata/generation") == *generation;
        (is_of && is_stopped)
            .then(|| format!("{} is created while the rollout is stopped", text(pod, "/metadata/name")))
    }

    /// No created pod raises running pods and held slots above `parallelism`.
    fn beyond_parallelism(&mut self, pod: &Value) -> Option<String> {
        let uid = label(pod, "daemonjob-uid");
        let job = self.jobs.get(uid)?;
        let most = job["spec"]["parallelism"].as_u64()?;
        let now = time(pod, "/metadata/creationTimestamp")?;
        let of_job = self.running.values().filter(|one| label(one, "daemonjob-uid") == uid);
        // A pod on a deleted or possibly lost node may not hold a slot.
        let running = of_job.clone().filter(|one| {
            let node = self.nodes.get(label(one, "node-uid"));
            node.is_some_and(|node| self.keeps_slots(job, node, now))
        });
        let running = running.count();
        let busy: BTreeSet<&str> = of_job
            .map(|one| text(one, "/metadata/annotations/dj.dysproz.io~1node-name"))
            .chain([text(pod, "/metadata/annotations/dj.dysproz.io~1node-name")])
            .collect();
        let pending = job["status"]["pendingNodes"].as_array();
        let suspect = pending.into_iter().flatten().filter(|one| one["reason"] == "NotReadySinceAttempt");
        let holders = suspect.map(|one| text(one, "/node")).filter(|name| {
            let mut nodes = self.nodes.values();
            let node = nodes.find(|node| text(node, "/metadata/name") == *name);
            // Suspect by its status, and not Ready for longer than the manager may not know.
            !busy.contains(name)
                && node.is_some_and(|node| {
                    self.keeps_slots(job, node, now)
                        && readiness(node)
                            .is_some_and(|(is_ready, since)| !is_ready && now.duration_since(since) > LAG)
                })
        });
        let holders = holders.count();
        self.seen.beside_slots += usize::from(running + holders > 0);
        self.seen.holders += holders;
        let name = text(pod, "/metadata/name");
        let held = u64::try_from(1 + running + holders).unwrap();
        (held > most).then(|| {
            format!(
                "{name} is created beside {running} running pods and {holders} suspect nodes, parallelism is {most}"
            )
        })
    }

    /// Whether pods and attempts on a node certainly hold slots, because the node is not lost. It was Ready
    /// for longer than [`LAG`], and still is or stopped less than `nodeLostAfterSeconds` ago.
    fn keeps_slots(&self, job: &Value, node: &Value, now: Timestamp) -> bool {
        let lost_after = job["spec"]["failurePolicy"]["nodeLostAfterSeconds"].as_i64();
        // Timestamps of objects have whole seconds.
        let lost_after = SignedDuration::from_secs(lost_after.unwrap_or(NODE_LOST_AFTER) - 1);
        readiness(node).is_some_and(|(is_ready, since)| {
            let time = now.duration_since(since);
            if is_ready {
                time > LAG
            } else {
                time < lost_after && self.was_well.contains(text(node, "/metadata/uid"))
            }
        })
    }

    fn status(&mut self, job: &Value) -> Vec<String> {
        let uid = text(job, "/metadata/uid").to_owned();
        let generation = number(job, "/metadata/generation");
        let mut wrong: Vec<String> = self.recovered(job).into_iter().collect();
        if number(job, "/status/observedGeneration") != generation {
            return wrong;
        }
        wrong.extend(unexplained(job));
        wrong.extend(self.no_longer_failed(job));
        let key = (number(job, "/status/rollout/number"), generation);
        let is_on = !job["status"]["rollout"]["brakedSince"].is_null();
        if self.stops.get(&uid) == Some(&key) {
            if !is_on {
                wrong.push(format!("the failure policy no longer stops {}", text(job, "/metadata/name")));
            }
        } else {
            self.stops.remove(&uid);
            let most = number(job, "/spec/failurePolicy/maxFailedNodes");
            if is_on && i64::try_from(failed_for_good(job)).unwrap() > most {
                self.seen.stops += 1;
                self.stops.insert(uid.clone(), key);
            }
        }
        let before = self.jobs.get(&uid);
        if is_complete(job) && !before.is_some_and(is_complete) {
            wrong.extend(self.complete(job));
        }
        wrong
    }

    /// Failed becomes Complete only if a failed node can recover, or after a change of the spec or a further
    /// attempt. Deleted, created and relabelled nodes allow it too.
    fn recovered(&mut self, job: &Value) -> Option<String> {
        let uid = text(job, "/metadata/uid").to_owned();
        let generation = number(job, "/metadata/generation");
        let before = self.acts_at_status.insert(uid.clone(), self.acts).unwrap_or(self.acts);
        if condition(job, "Failed").0 == "True" {
            let recovers = failed_for_good(job) != failed_nodes(job).count();
            let fresh = Failure { generation, acts: before, recovers };
            let failure = self.failures.entry(uid).or_insert(fresh);
            if failure.generation == generation {
                failure.recovers |= recovers;
            } else {
                *failure = Failure { generation, acts: self.acts, recovers };
            }
            return None;
        }
        let failure = self.failures.remove(&uid)?;
        let is_same = failure.generation == generation && failure.acts == self.acts && !failure.recovers;
        (is_same && is_complete(job)).then(|| {
            format!("{} is Failed and then Complete, and nothing happened", text(job, "/metadata/name"))
        })
    }

    /// A failed node that cannot recover stays failed in its rollout until it is deleted, deselected or gets
    /// a further pod. One status may be wrong, because the manager may not know the node's labels yet.
    fn no_longer_failed(&mut self, job: &Value) -> Vec<String> {
        let uid = text(job, "/metadata/uid");
        let (rollout, generation) =
            (number(job, "/status/rollout/number"), number(job, "/metadata/generation"));
        let nodes: BTreeMap<&str, &Value> =
            self.nodes.values().map(|node| (text(node, "/metadata/name"), node)).collect();
        let stays = |name: &str, failed: &FailedNode| {
            let node = nodes.get(name);
            (failed.rollout, failed.generation) == (rollout, generation)
                && node
                    .is_some_and(|node| text(node, "/metadata/uid") == failed.uid && is_selected(job, node))
        };
        self.failed_nodes.retain(|(of, name), failed| of != uid || stays(name, failed));
        let lasts = |node: &&Value| !PROVISIONAL.contains(&text(node, "/reason"));
        let listed: BTreeSet<&str> = failed_nodes(job).filter(lasts).map(|one| text(one, "/node")).collect();
        let mut wrong = Vec::new();
        for ((_, name), failed) in self.failed_nodes.iter_mut().filter(|((of, _), _)| of == uid) {
            failed.unlisted = if listed.contains(&**name) { 0 } else { failed.unlisted + 1 };
            if failed.unlisted == 2 {
                wrong.push(format!(
                    "{name} failed in {} and is no longer failed",
                    text(job, "/metadata/name")
                ));
            }
        }
        for name in listed {
            let uid_of_node = nodes.get(name).map(|node| text(node, "/metadata/uid").to_owned());
            let Some(uid_of_node) = uid_of_node else { continue };
            self.failed_nodes.entry((uid.to_owned(), name.to_owned())).or_insert(FailedNode {
                rollout,
                generation,
                uid: uid_of_node,
                unlisted: 0,
            });
        }
        wrong
    }

    /// A Complete job has every selected node done, skipped, or failed within the tolerated number.
    fn complete(&self, job: &Value) -> Vec<String> {
        let (uid, hash) = (text(job, "/metadata/uid"), text(job, "/status/templateHash"));
        let conditions = job["status"]["conditions"].as_array().unwrap();
        let since = conditions.iter().find(|one| one["type"] == "Complete").unwrap();
        let since = text(since, "/lastTransitionTime").to_owned();
        let listed = |list: &str, name: &str| {
            job["status"][list].as_array().is_some_and(|nodes| nodes.iter().any(|node| node["node"] == *name))
        };
        let left = self.nodes.values().filter(|node| {
            let name = text(node, "/metadata/name");
            let done = (uid.to_owned(), text(node, "/metadata/uid").to_owned(), hash.to_owned());
            let is_tolerated =
                condition(job, "Complete").1 == "FailuresTolerated" && listed("failedNodes", name);
            let relabelled = node["metadata"]["annotations"][RELABELLED].as_str().unwrap_or_default();
            // The manager may not know a node or its labels from this second yet.
            is_selected(job, node)
                && text(node, "/metadata/creationTimestamp").max(relabelled) < since.as_str()
                && !(self.done.contains(&done) || listed("skippedNodes", name) || is_tolerated)
        });
        let name = text(job, "/metadata/name");
        left.map(|node| format!("{name} is Complete without {}", text(node, "/metadata/name"))).collect()
    }
}

/// Makes a simulated node stop or resume reporting, and waits for the node controller to update the taint.
pub(crate) fn hold_down(env: &TestEnv, node: &str, is_down: bool) {
    let value = if is_down { json!("true") } else { Value::Null };
    env.patch(
        "node",
        node,
        &json!({ "metadata": { "annotations": { "kwok.quintet.dev/not-ready": value } } }),
    );
    env.wait_for("node", node, "the node controller updates the taint", |node| {
        let taints = node["spec"]["taints"].as_array();
        let is_tainted = taints.is_some_and(|taints| {
            taints
                .iter()
                .any(|one| one["key"] == "node.kubernetes.io/not-ready" && one["effect"] == "NoSchedule")
        });
        is_tainted == is_down
    });
}

fn is_stopped(job: &Value) -> bool {
    condition(job, "Paused") == ("True".into(), "MaxFailedNodesExceeded".into())
}

/// Regression: a bad template ran on every node after the failed node was tainted, not Ready, and recovered.
#[test]
fn pause_holds_while_the_failed_node_changes() {
    let env = TestEnv::new("dr-brake");
    let nodes = env.nodes(["a", "b", "c", "d"]);
    let record = Record::begin(&env);
    let _manager = env.manager("daemonjob");
    let spec = json!({ "parallelism": 1, "backoffLimit": 0, "failurePolicy": { "type": "Pause" } });
    env.apply(&held(&env, "bad", &spec)).unwrap();
    end(&env, &[&running(&env, "bad", &nodes[0], 1)], 1);
    env.wait_for("daemonjob", "bad", "the job pauses", is_stopped);
    let still = |what: &str| {
        sleep(Duration::from_secs(3));
        let job = env.get("daemonjob", "bad").unwrap();
        assert!(is_stopped(&job), "{what}: {:#}", job["status"]);
        assert_eq!(
            (&job["status"]["failed"], condition(&job, "Complete").0),
            (&json!(1), "False".to_owned())
        );
        assert_eq!(env.created_pods().len(), 1, "{what}");
    };
    env.kubectl(&["taint", "node", &nodes[0], "broken=yes:NoSchedule"]).unwrap();
    still("tainted");
    hold_down(&env, &nodes[0], true);
    still("not Ready");
    env.kubectl(&["taint", "node", &nodes[0], "broken-"]).unwrap();
    hold_down(&env, &nodes[0], false);
    still("Ready again");
    for suspend in [true, false] {
        env.patch("daemonjob", "bad", &json!({ "spec": { "suspend": suspend } }));
        env.wait_for("daemonjob", "bad", "the status observes suspend", |job| {
            (condition(job, "Suspended").0 == "True") == suspend
                && job["status"]["observedGeneration"] == job["metadata"]["generation"]
        });
    }
    env.wait_for("daemonjob", "bad", "the job pauses after resume", is_stopped);
    still("resumed");

    // The user has fixed the cause: the failed node is retried, and the others follow.
    env.patch("daemonjob", "bad", &json!({ "spec": { "retryToken": "fixed" } }));
    for (node, number) in nodes.iter().zip([2, 1, 1, 1]) {
        end(&env, &[&running(&env, "bad", node, number)], 0);
    }
    env.wait_for("daemonjob", "bad", "it is complete", is_complete);
    let seen = record.judge();
    assert!(seen.complete > 0 && seen.pods == 5 && seen.stops > 0, "{seen:?}");
}

/// An unhealthy node is pending, then skipped. A done node stays done when it is tainted.
#[test]
fn unhealthy_nodes_are_pending_then_skipped() {
    let env = TestEnv::new("dr-unhealthy");
    let nodes = env.nodes(["a", "b", "c"]);
    let [a, _, c] = &nodes[..] else { unreachable!() };
    let record = Record::begin(&env);
    let _manager = env.manager("daemonjob");
    hold_down(&env, c, true);
    env.apply(&daemonjob(&env, "waits", &json!({ "unhealthyNodes": { "policy": "Wait" } }))).unwrap();
    env.apply(&daemonjob(&env, "skips", &json!({ "unhealthyNodes": { "skipAfterSeconds": 8 } }))).unwrap();
    let job = env.wait_for("daemonjob", "skips", "the other nodes have succeeded", |job| {
        job["status"]["succeeded"] == 2 && word(job, "pendingNodes", c) == "NotReady"
    });
    assert!(!is_complete(&job), "the job waits for the unhealthy node: {:#}", job["status"]);
    let job = env.wait_for("daemonjob", "skips", "it is complete", is_complete);
    assert_eq!(condition(&job, "Complete").1, "NodesSkipped");
    let (reason, message) = told(&job, "skippedNodes", c).unwrap();
    assert!(reason == "NotReady" && message.contains("node.kubernetes.io/not-ready"), "{reason} {message}");
    let job = env.get("daemonjob", "waits").unwrap();
    assert!(!is_complete(&job) && word(&job, "pendingNodes", c) == "NotReady", "{:#}", job["status"]);

    env.kubectl(&["taint", "node", a, "special=yes:NoSchedule"]).unwrap();
    hold_down(&env, c, false);
    for name in ["waits", "skips"] {
        let job = env.wait_for("daemonjob", name, "all nodes have succeeded", |job| {
            is_complete(job) && job["status"]["succeeded"] == 3
        });
        assert_eq!((&job["status"]["skipped"], &job["status"]["desired"]), (&json!(0), &json!(3)), "{name}");
    }
    assert_eq!(env.created_pods().len(), 6);
    let seen = record.judge();
    assert!(seen.complete >= 2 && seen.pods == 6, "{seen:?}");
}

/// Sets or removes the label by which the jobs of the storm select nodes.
fn relabel(env: &TestEnv, node: &str, is_selected: bool) {
    let label = if is_selected { json!("yes") } else { Value::Null };
    // Rounded up, so that the API server has the label before this time.
    let now = (Timestamp::now() + SignedDuration::from_secs(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let metadata = json!({ "labels": { "in-storm": label }, "annotations": { RELABELLED: now } });
    env.patch("node", node, &json!({ "metadata": metadata }));
}

/// The node of a running pod, if any.
fn busy_node(env: &TestEnv) -> Option<String> {
    let pods = env.list("pods", "quintet.dev/kind=DaemonJob");
    let pod = pods.iter().find(|pod| pod["status"]["phase"] == "Running")?;
    pod["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// Deletes the Node of a running pod and creates another with the same name.
fn recreate(env: &TestEnv, node: &str) {
    env.kubectl(&["delete", "node", node]).unwrap();
    env.node(node.strip_prefix(&format!("{}-", env.namespace())).unwrap());
    relabel(env, node, true);
}

/// Applies one random event to a node, job or pod.
fn strike(env: &TestEnv, dice: &mut Dice, nodes: &mut [String], step: usize) {
    let below = |dice: &mut Dice, count: usize| usize::try_from(dice.below(count as u64)).unwrap();
    let at = below(dice, nodes.len());
    let node = nodes[at].clone();
    match dice.below(12) {
        0 => drop(env.kubectl(&["taint", "node", &node, "storm=yes:NoExecute", "--overwrite"])),
        1 => drop(env.kubectl(&["taint", "node", &node, "storm-"])),
        2 | 3 => {
            let value = if dice.below(2) == 0 {
                "kwok.quintet.dev/not-ready=true"
            } else {
                "kwok.quintet.dev/not-ready-"
            };
            drop(env.kubectl(&["annotate", "node", &node, value, "--overwrite"]));
        }
        4 if step.is_multiple_of(4) => {
            env.kubectl(&["delete", "node", &node]).unwrap();
            nodes[at] = env.node(&format!("new-{step}"));
            relabel(env, &nodes[at], true);
        }
        5 => {
            let name = ["on", "pause", "fast"][below(dice, 3)];
            let version = format!("{}", dice.below(3));
            let change =
                json!({ "spec": { "template": { "metadata": { "annotations": { "version": version } } } } });
            env.patch("daemonjob", name, &change);
        }
        6 => drop(env.kubectl(&["cordon", &node])),
        7 => drop(env.kubectl(&["uncordon", &node])),
        8 => {
            let info = json!({ "bootID": format!("boot-{step}") });
            env.patch("node/status", &node, &json!({ "status": { "nodeInfo": info } }));
        }
        9 => relabel(env, &node, dice.below(2) == 0),
        10 => {
            if let Some(node) = busy_node(env).filter(|node| nodes.contains(node)) {
                recreate(env, &node);
            }
        }
        _ => {
            let pods = env.list("pods", "quintet.dev/kind=DaemonJob");
            let runs = pods.iter().find(|pod| pod["status"]["phase"] == "Running");
            if let Some(name) = runs.and_then(|pod| pod["metadata"]["name"].as_str()) {
                let fails = "kwok.quintet.dev/exit-code=1";
                drop(env.kubectl(&["annotate", "pod", name, fails, "--overwrite"]));
            }
        }
    }
}

/// Nodes are tainted, cordoned, rebooted, relabelled, deleted and created at random while four jobs run. Some
/// pods of three jobs fail. All pods of the fourth fail, so its rollout is stopped throughout.
#[test]
fn rules_hold_while_nodes_come_and_go() {
    let env = TestEnv::new("dr-storm");
    let mut nodes = env.nodes(0..8);
    for node in &nodes {
        relabel(&env, node, true);
    }
    let record = Record::begin(&env);
    let _manager = env.manager("daemonjob");
    let mut dice = Dice::new();
    for (name, policy, max) in
        [("on", "Continue", 2), ("pause", "Pause", 2), ("fast", "FailFast", 2), ("bad", "Pause", 1)]
    {
        let spec = json!({ "parallelism": 2, "backoffLimit": 0, "unhealthyNodes": { "skipAfterSeconds": 5 },
            "rerunOn": ["TemplateChange", "NodeReboot"],
            "failurePolicy": { "type": policy, "maxFailedNodes": max, "nodeLostAfterSeconds": 8 } });
        let mut job = daemonjob(&env, name, &spec);
        job["spec"]["template"]["spec"]["nodeSelector"]["in-storm"] = json!("yes");
        let annotations = &mut job["spec"]["template"]["metadata"]["annotations"];
        annotations["kwok.quintet.dev/run-seconds"] = json!("2");
        if name == "bad" {
            annotations["kwok.quintet.dev/exit-code"] = json!("1");
        }
        env.apply(&job).unwrap();
    }
    env.wait_for("daemonjob", "bad", "the job pauses", is_stopped);
    for step in 0..60 {
        strike(&env, &mut dice, &mut nodes, step);
        sleep(Duration::from_millis(300));
    }
    // The storm is over: every job finishes, or its status reports which action it needs.
    for node in &nodes {
        drop(env.kubectl(&["taint", "node", node, "storm-"]));
        drop(env.kubectl(&["annotate", "node", node, "kwok.quintet.dev/not-ready-"]));
        env.kubectl(&["uncordon", node]).unwrap();
        relabel(&env, node, true);
    }
    for name in ["on", "pause", "fast"] {
        env.wait_for("daemonjob", name, "the job is complete, failed or paused by failed nodes", |job| {
            is_complete(job) || condition(job, "Failed").0 == "True" || is_stopped(job)
        });
    }
    let job = env.get("daemonjob", "bad").unwrap();
    assert!(is_stopped(&job), "no event of a node resumes the rollout: {:#}", job["status"]);
    // The user fixes the cause, and every job completes.
    let annotations = json!({ "kwok.quintet.dev/exit-code": null });
    env.patch(
        "daemonjob",
        "bad",
        &json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } }),
    );
    for name in ["on", "pause", "fast", "bad"] {
        env.patch("daemonjob", name, &json!({ "spec": { "retryToken": "fixed" } }));
        env.wait_for("daemonjob", name, "all nodes have succeeded", |job| {
            is_complete(job)
                && job["status"]["succeeded"] == 8
                && job["status"]["rollout"]["retryToken"] == "fixed"
        });
    }
    let seen = record.judge();
    println!("{seen:?}");
    assert!(seen.pods > 0 && seen.complete > 0 && seen.stops > 0, "the storm was vacuous: {seen:?}");
    assert!(seen.beside_slots > 0, "no pod was created while another held a slot: {seen:?}");
}

/// Needs no cluster: the judge reports each violated rule, and nothing else.
#[test]
fn judge_finds_each_violation() {
    let at = |seconds: i64| (Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)).to_string();
    let node = |name: &str, is_ready: bool, since: i64| {
        let status = if is_ready { "True" } else { "False" };
        json!({ "metadata": { "name": name, "uid": name, "creationTimestamp": at(0) },
            "status": { "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": at(since) }] } })
    };
    let pod = |uid: &str, node: &str, phase: &str, created: i64| {
        json!({ "metadata": { "name": uid, "uid": uid, "creationTimestamp": at(created),
                "labels": { "dj.dysproz.io/daemonjob-uid": "job", "dj.dysproz.io/node-uid": node },
                "annotations": { "dj.dysproz.io/node-name": node, "dj.dysproz.io/rollout": "1" } },
            "spec": { "nodeName": node }, "status": { "phase": phase } })
    };
    let job = |status: Value| {
        let spec = json!({ "parallelism": 1, "failurePolicy": { "nodeLostAfterSeconds": 60 } });
        let mut job = json!({ "metadata": { "name": "job", "uid": "job", "generation": 1 }, "spec": spec, "status": status });
        job["status"]["observedGeneration"] = json!(1);
        job
    };
    let is_true = |type_: &str| json!([{ "type": type_, "status": "True", "lastTransitionTime": at(0) }]);
    let begin = || {
        let mut moment = Moment::default();
        for name in ["a", "b"] {
            moment.node(name.to_owned(), node(name, true, 0), false);
        }
        let wrong = moment.status(&job(json!({ "active": 1 })));
        assert!(wrong.is_empty(), "{wrong:?}");
        moment.jobs.insert("job".to_owned(), job(json!({ "active": 1 })));
        assert!(moment.pod(pod("1", "a", "Running", 10), false).is_empty());
        moment
    };

    // A second pod while the first runs, while the first node is suspect, and when that node may be lost.
    let mut moment = begin();
    assert_eq!(moment.pod(pod("2", "b", "Pending", 11), false).len(), 1);
    for (created, expected) in [(30, 1), (79, 0)] {
        let mut moment = begin();
        moment.node("a".to_owned(), node("a", false, 20), false);
        assert!(moment.pod(pod("1", "a", "Failed", 10), false).is_empty());
        let pending = json!([{ "node": "a", "reason": "NotReadySinceAttempt" }]);
        let suspect = job(json!({ "pending": 1, "pendingNodes": pending }));
        assert!(moment.status(&suspect).is_empty());
        moment.jobs.insert("job".to_owned(), suspect);
        assert_eq!(moment.pod(pod("2", "b", "Pending", created), false).len(), expected, "{created}");
    }

    // Failed becomes Complete without an act, and after a node was deleted.
    let failed = job(json!({ "conditions": is_true("Failed"), "failed": 1,
        "failedNodes": [{ "node": "a", "reason": "BackoffLimitExceeded" }] }));
    for (is_deleted, expected) in [(false, 1), (true, 0)] {
        let mut moment = begin();
        assert!(moment.status(&job(json!({ "active": 1 }))).is_empty());
        assert!(moment.status(&failed).is_empty());
        if is_deleted {
            moment.node("a".to_owned(), node("a", true, 0), true);
        }
        let complete = job(json!({ "conditions": is_true("Complete") }));
        assert_eq!(moment.recovered(&complete).iter().count(), expected, "{is_deleted}");
    }

    // A failed node is no longer listed: wrong from the second such status on.
    let mut moment = begin();
    assert!(moment.status(&failed).is_empty());
    let found = [0, 1].map(|_| moment.status(&job(json!({ "active": 1 }))).len());
    assert_eq!(found, [0, 1]);

    // Nothing runs without a reason; a node is counted but not listed; a node is listed without a reason.
    let pending = |nodes: Value| job(json!({ "pending": 1, "pendingNodes": nodes }));
    for (job, expected) in [
        (job(json!({})), 1),
        (pending(json!([])), 1),
        (pending(json!([{ "node": "a" }])), 1),
        (pending(json!([{ "node": "a", "reason": "BackingOff" }])), 0),
        (failed, 0),
    ] {
        assert_eq!(unexplained(&job).len(), expected, "{job}");
    }
}
