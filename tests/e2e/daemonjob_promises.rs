//! What a DaemonJob promises while nodes break: every status and every pod, held against the nodes and pods of that moment.
//!
//! All objects are in one etcd, so the resourceVersions of all watches are in one order. All nodes are simulated; the API
//! server, the scheduler and the node controllers are real.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::{Arena, Dice, Watch, condition};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_ledger::{end, held, running, told, word};

/// Reasons of failed nodes that heal.
const PROVISIONAL: [&str; 2] = ["NodeLost", "FailedAndGone"];

/// Everything that happens in an arena, in its order.
struct Record {
    watches: [Watch; 3],
}

/// What the judge knows at one moment.
#[derive(Default)]
struct Moment {
    nodes: BTreeMap<String, Value>,
    jobs: BTreeMap<String, Value>,
    /// Successes: UID of the DaemonJob, UID of the node, template.
    done: BTreeSet<(String, String, String)>,
    /// Pods that were seen.
    pods: BTreeSet<String>,
    /// Brakes that nothing but the spec takes off, by UID of the DaemonJob: rollout and generation.
    brakes: BTreeMap<String, (i64, i64)>,
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn failed_for_good(job: &Value) -> usize {
    let nodes = job["status"]["failedNodes"].as_array();
    let lasts = |node: &&Value| !PROVISIONAL.contains(&text(node, "/reason"));
    nodes.into_iter().flatten().filter(lasts).count()
}

impl Record {
    fn begin(arena: &Arena) -> Self {
        let nodes = arena.watch("nodes", &format!("arena={}", arena.namespace()));
        let watches = [
            nodes,
            arena.watch("daemonjobs.dj.dysproz.io", ""),
            arena.watch("pods", "quintet.dev/kind=DaemonJob"),
        ];
        assert!(!watches[0].events().is_empty(), "the watch has begun");
        Self { watches }
    }

    /// Judges everything so far. Returns how many statuses said Complete and how many pods were made.
    fn judge(&self) -> (usize, usize) {
        let version = |object: &Value| text(object, "/metadata/resourceVersion").parse::<u64>().unwrap();
        let mut events: Vec<(u64, String, Value)> = Vec::new();
        for watch in &self.watches {
            events
                .extend(watch.events().into_iter().map(|(type_, object)| (version(&object), type_, object)));
        }
        events.sort_by_key(|(version, _, _)| *version);
        let (mut moment, mut wrong) = (Moment::default(), Vec::new());
        let (mut complete, mut made) = (0, 0);
        for (_, type_, object) in events {
            let uid = text(&object, "/metadata/uid").to_owned();
            match object["kind"].as_str().unwrap() {
                "Node" if type_ == "DELETED" => drop(moment.nodes.remove(&uid)),
                "Node" => drop(moment.nodes.insert(uid, object)),
                "Pod" => {
                    made += usize::from(moment.pods.insert(uid.clone()));
                    wrong.extend(moment.pod(&object, type_ == "ADDED"));
                }
                _ if type_ == "DELETED" => drop(moment.jobs.remove(&uid)),
                _ => {
                    let found = moment.status(&object);
                    complete += usize::from(is_complete(&object));
                    wrong.extend(found);
                    moment.jobs.insert(uid, object);
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        (complete, made)
    }
}

impl Moment {
    fn pod(&mut self, pod: &Value, is_new: bool) -> Option<String> {
        let label = |key: &str| text(pod, &format!("/metadata/labels/dj.dysproz.io~1{key}")).to_owned();
        let job = label("daemonjob-uid");
        if text(pod, "/status/phase") == "Succeeded" {
            self.done.insert((job.clone(), label("node-uid"), label("template-hash")));
        }
        let (rollout, generation) = self.brakes.get(&job)?;
        let is_of = text(pod, "/metadata/annotations/dj.dysproz.io~1rollout") == rollout.to_string();
        let is_braked = number(self.jobs.get(&job)?, "/metadata/generation") == *generation;
        (is_new && is_of && is_braked)
            .then(|| format!("{} is made under the brake", text(pod, "/metadata/name")))
    }

    fn status(&mut self, job: &Value) -> Vec<String> {
        let uid = text(job, "/metadata/uid").to_owned();
        let generation = number(job, "/metadata/generation");
        if number(job, "/status/observedGeneration") != generation {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        let key = (number(job, "/status/rollout/number"), generation);
        let is_on = !job["status"]["rollout"]["brakedSince"].is_null();
        if self.brakes.get(&uid) == Some(&key) {
            if !is_on {
                wrong.push(format!("the brake of {} comes off", text(job, "/metadata/name")));
            }
        } else {
            self.brakes.remove(&uid);
            let most = number(job, "/spec/failurePolicy/maxFailedNodes");
            if is_on && i64::try_from(failed_for_good(job)).unwrap() > most {
                self.brakes.insert(uid.clone(), key);
            }
        }
        let before = self.jobs.get(&uid);
        if is_complete(job) && !before.is_some_and(is_complete) {
            wrong.extend(self.complete(job));
        }
        wrong
    }

    /// Complete: every selected node is done, skipped by name, or failed within the tolerated number.
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
            // The manager may not know a node of this second yet.
            text(node, "/metadata/creationTimestamp") < since.as_str()
                && !(self.done.contains(&done) || listed("skippedNodes", name) || is_tolerated)
        });
        let name = text(job, "/metadata/name");
        left.map(|node| format!("{name} is Complete without {}", text(node, "/metadata/name"))).collect()
    }
}

/// The node falls silent, or is heard again: the node controller sets and removes the taint.
fn hold_down(arena: &Arena, node: &str, is_down: bool) {
    let value = if is_down { json!("true") } else { Value::Null };
    arena.patch(
        "node",
        node,
        &json!({ "metadata": { "annotations": { "kwok.quintet.dev/not-ready": value } } }),
    );
    arena.wait_for("node", node, "the taint follows", |node| {
        let taints = node["spec"]["taints"].as_array();
        let is_tainted = taints.is_some_and(|taints| {
            taints
                .iter()
                .any(|one| one["key"] == "node.kubernetes.io/not-ready" && one["effect"] == "NoSchedule")
        });
        is_tainted == is_down
    });
}

fn is_braked(job: &Value) -> bool {
    condition(job, "Paused") == ("True".into(), "MaxFailedNodesExceeded".into())
}

/// The sequence that ran a bad template on every node: a failed node is tainted, falls silent and is heard again.
#[test]
fn pause_holds_whatever_becomes_of_the_failed_node() {
    let arena = Arena::new("dr-brake");
    let nodes = arena.nodes(["a", "b", "c", "d"]);
    let record = Record::begin(&arena);
    let _manager = arena.manager("daemonjob");
    let spec = json!({ "parallelism": 1, "backoffLimit": 0, "failurePolicy": { "type": "Pause" } });
    arena.apply(&held(&arena, "bad", &spec)).unwrap();
    end(&arena, &[&running(&arena, "bad", &nodes[0], 1)], 1);
    arena.wait_for("daemonjob", "bad", "it pauses", is_braked);
    let still = |what: &str| {
        sleep(Duration::from_secs(3));
        let job = arena.get("daemonjob", "bad").unwrap();
        assert!(is_braked(&job), "{what}: {:#}", job["status"]);
        assert_eq!(
            (&job["status"]["failed"], condition(&job, "Complete").0),
            (&json!(1), "False".to_owned())
        );
        assert_eq!(arena.created_pods().len(), 1, "{what}");
    };
    arena.kubectl(&["taint", "node", &nodes[0], "broken=yes:NoSchedule"]).unwrap();
    still("tainted");
    hold_down(&arena, &nodes[0], true);
    still("not Ready");
    arena.kubectl(&["taint", "node", &nodes[0], "broken-"]).unwrap();
    hold_down(&arena, &nodes[0], false);
    still("Ready again");
    for suspend in [true, false] {
        arena.patch("daemonjob", "bad", &json!({ "spec": { "suspend": suspend } }));
        arena.wait_for("daemonjob", "bad", "suspend is seen", |job| {
            (condition(job, "Suspended").0 == "True") == suspend
                && job["status"]["observedGeneration"] == job["metadata"]["generation"]
        });
    }
    arena.wait_for("daemonjob", "bad", "it pauses after resume", is_braked);
    still("resumed");

    // A person has mended the cause: the failed node is tried again, and the others follow.
    arena.patch("daemonjob", "bad", &json!({ "spec": { "retryToken": "mended" } }));
    for (node, number) in nodes.iter().zip([2, 1, 1, 1]) {
        end(&arena, &[&running(&arena, "bad", node, number)], 0);
    }
    arena.wait_for("daemonjob", "bad", "it is complete", is_complete);
    let (complete, made) = record.judge();
    assert!(complete > 0 && made == 5, "{complete} {made}");
}

/// Unhealthy nodes are waited for and then skipped by name; a done node that is tainted stays done.
#[test]
fn unhealthy_nodes_are_pending_then_skipped() {
    let arena = Arena::new("dr-unhealthy");
    let nodes = arena.nodes(["a", "b", "c"]);
    let [a, _, c] = &nodes[..] else { unreachable!() };
    let record = Record::begin(&arena);
    let _manager = arena.manager("daemonjob");
    hold_down(&arena, c, true);
    arena.apply(&daemonjob(&arena, "waits", &json!({ "unhealthyNodes": { "policy": "Wait" } }))).unwrap();
    arena
        .apply(&daemonjob(&arena, "skips", &json!({ "unhealthyNodes": { "skipAfterSeconds": 8 } })))
        .unwrap();
    let job = arena.wait_for("daemonjob", "skips", "the others are done", |job| {
        job["status"]["succeeded"] == 2 && word(job, "pendingNodes", c) == "NotReady"
    });
    assert!(!is_complete(&job), "it waits for the unhealthy node: {:#}", job["status"]);
    let job = arena.wait_for("daemonjob", "skips", "it is complete", is_complete);
    assert_eq!(condition(&job, "Complete").1, "NodesSkipped");
    let (reason, message) = told(&job, "skippedNodes", c).unwrap();
    assert!(reason == "NotReady" && message.contains("node.kubernetes.io/not-ready"), "{reason} {message}");
    let job = arena.get("daemonjob", "waits").unwrap();
    assert!(!is_complete(&job) && word(&job, "pendingNodes", c) == "NotReady", "{:#}", job["status"]);

    arena.kubectl(&["taint", "node", a, "special=yes:NoSchedule"]).unwrap();
    hold_down(&arena, c, false);
    for name in ["waits", "skips"] {
        let job = arena.wait_for("daemonjob", name, "all are done", |job| {
            is_complete(job) && job["status"]["succeeded"] == 3
        });
        assert_eq!((&job["status"]["skipped"], &job["status"]["desired"]), (&json!(0), &json!(3)), "{name}");
    }
    assert_eq!(arena.created_pods().len(), 6);
    let (complete, made) = record.judge();
    assert!(complete >= 2 && made == 6, "{complete} {made}");
}

/// Nodes are tainted, silenced, deleted and created at random while three jobs run, some of whose pods fail.
#[test]
fn promises_hold_while_nodes_come_and_go() {
    let arena = Arena::new("dr-storm");
    let mut nodes = arena.nodes(0..8);
    let record = Record::begin(&arena);
    let _manager = arena.manager("daemonjob");
    let mut dice = Dice::new();
    for (name, policy) in [("on", "Continue"), ("pause", "Pause"), ("fast", "FailFast")] {
        let spec = json!({ "parallelism": 2, "backoffLimit": 0, "unhealthyNodes": { "skipAfterSeconds": 5 },
            "failurePolicy": { "type": policy, "maxFailedNodes": 2, "nodeLostAfterSeconds": 8 } });
        let mut job = daemonjob(&arena, name, &spec);
        job["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/run-seconds"] = json!("2");
        arena.apply(&job).unwrap();
    }
    let below = |dice: &mut Dice, count: usize| usize::try_from(dice.below(count as u64)).unwrap();
    for step in 0..40 {
        let at = below(&mut dice, nodes.len());
        let node = nodes[at].clone();
        match dice.below(7) {
            0 => drop(arena.kubectl(&["taint", "node", &node, "storm=yes:NoExecute", "--overwrite"])),
            1 => drop(arena.kubectl(&["taint", "node", &node, "storm-"])),
            2 | 3 => {
                let value = if dice.below(2) == 0 {
                    "kwok.quintet.dev/not-ready=true"
                } else {
                    "kwok.quintet.dev/not-ready-"
                };
                drop(arena.kubectl(&["annotate", "node", &node, value, "--overwrite"]));
            }
            4 if step % 4 == 0 => {
                arena.kubectl(&["delete", "node", &node]).unwrap();
                nodes[at] = arena.node(&format!("new-{step}"));
            }
            5 => {
                let name = ["on", "pause", "fast"][below(&mut dice, 3)];
                let version = format!("{}", dice.below(3));
                let change = json!({ "spec": { "template": { "metadata": { "annotations": { "version": version } } } } });
                arena.patch("daemonjob", name, &change);
            }
            _ => {
                let pods = arena.list("pods", "quintet.dev/kind=DaemonJob");
                let runs = pods.iter().find(|pod| pod["status"]["phase"] == "Running");
                if let Some(name) = runs.and_then(|pod| pod["metadata"]["name"].as_str()) {
                    drop(arena.kubectl(&[
                        "annotate",
                        "pod",
                        name,
                        "kwok.quintet.dev/exit-code=1",
                        "--overwrite",
                    ]));
                }
            }
        }
        sleep(Duration::from_millis(300));
    }
    // The storm is over: every job ends, or says for what act it waits.
    for node in &nodes {
        drop(arena.kubectl(&["taint", "node", node, "storm-"]));
        drop(arena.kubectl(&["annotate", "node", node, "kwok.quintet.dev/not-ready-"]));
    }
    for name in ["on", "pause", "fast"] {
        arena.wait_for("daemonjob", name, "it is complete, failed or held by its failed nodes", |job| {
            is_complete(job) || condition(job, "Failed").0 == "True" || is_braked(job)
        });
    }
    let (complete, made) = record.judge();
    println!("{complete} statuses said Complete, {made} pods were made");
}
