//! The safety rules of DaemonJob, checked at every write of every plan.
//!
//! The judge reads the API server's state, so it knows more than the caches of a manager. If a plan delays a
//! manager's views or writes, the judge ignores what the manager could not know.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::eligibility::Placement;
use quintet_fake_apiserver::Commit;
use quintet_fake_apiserver::store::State;
use serde_json::Value;

use crate::marks::Marks;

const FINALIZER: &str = "dj.dysproz.io/ledger";
/// The time for which a manager may not know of a change.
const LAG: SignedDuration = SignedDuration::from_secs(5);
/// The default of `failurePolicy.nodeLostAfterSeconds`.
const NODE_LOST_AFTER: i64 = 600;
/// Reasons of failed nodes that can recover.
const PROVISIONAL: [&str; 2] = ["NodeLost", "FailedAndGone"];

/// The knowledge that a plan allows a manager.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge {
    /// The manager sees every change within [`LAG`].
    pub is_exact: bool,
    /// A write may arrive after its sender has given it up.
    pub is_late: bool,
}

/// A stop of the rollout by the failure policy that only a change of the spec lifts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stop {
    rollout: i64,
    generation: i64,
}

#[derive(Clone, Debug)]
struct NodeTrack {
    /// When the node was created or its labels changed.
    since: Timestamp,
    not_ready: Option<Timestamp>,
}

/// The last failed attempt on a node.
#[derive(Clone, Debug)]
struct FailedAttempt {
    at: Timestamp,
    rollout: String,
    /// Whether the attempt was disrupted: then its node holds no slot while it waits for the retry.
    is_disrupted: bool,
}

/// Checks the rules of the module.
#[derive(Clone, Debug, Default)]
pub struct Assessor {
    /// By UID of the DaemonJob.
    stops: BTreeMap<String, Stop>,
    /// By UID of the Node.
    nodes: BTreeMap<String, NodeTrack>,
    /// Successes: UID of the DaemonJob, UID of the node, template.
    done: BTreeSet<(String, String, String)>,
    /// By UIDs of DaemonJob and Node.
    failed: BTreeMap<(String, String), FailedAttempt>,
    /// Pods that ran when their Node was deleted.
    left: BTreeSet<String>,
    /// Begin and end of each outage, by UID of the DaemonJob.
    outages: BTreeMap<String, Vec<(Timestamp, Option<Timestamp>)>>,
    /// The number of changes that may turn Failed into Complete.
    acts: usize,
    /// `acts` at the last two statuses, the earlier one first, by UID of the DaemonJob.
    acts_at_status: BTreeMap<String, [Option<usize>; 2]>,
    /// Failed DaemonJobs by UID: the generation, the acts, and whether a failed node can recover.
    failures: BTreeMap<String, (i64, usize, bool)>,
    /// Since when an annotation pauses a DaemonJob, by UID.
    paused: BTreeMap<String, Timestamp>,
    /// The approvals that were ever set: UID of the DaemonJob and rollout number.
    approved: BTreeSet<(String, String)>,
    marks: Marks,
    /// UIDs of the nodes on which a container started, by UID of the DaemonJob and rollout number.
    started: BTreeMap<(String, String), BTreeSet<String>>,
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, path: &str) -> i64 {
    value.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn annotation<'v>(pod: &'v Value, key: &str) -> &'v str {
    text(pod, &format!("/metadata/annotations/dj.dysproz.io~1{key}"))
}

fn label<'v>(pod: &'v Value, key: &str) -> &'v str {
    text(pod, &format!("/metadata/labels/dj.dysproz.io~1{key}"))
}

fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn has_finalizer(pod: &Value) -> bool {
    pod["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == FINALIZER))
}

fn is_disrupted(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True")
}

/// Whether at least 3 nodes were healthy when the run began, and more than half of them are not Ready.
fn is_outage(state: &State, job: &Value) -> bool {
    let Some(template) = job["spec"]["template"]["spec"].as_object() else { return false };
    let (placement, start) = (Placement::of(template), text(job, "/status/startTime"));
    let was_there = |node: &&std::sync::Arc<Value>| {
        // Both timestamps have whole seconds, so their text order is their time order.
        let is_member = text(node, "/metadata/creationTimestamp") <= start;
        let node = serde_json::from_value(Value::clone(node));
        is_member && node.is_ok_and(|node| placement.eligibility(&node).is_selected())
    };
    let members: Vec<_> = state.objects("nodes").filter(was_there).collect();
    let unhealthy = members.iter().filter(|node| !is_ready(node)).count();
    let from_start = usize::try_from(number(job, "/status/rollout/unhealthyFromStart")).unwrap_or_default();
    let healthy = members.len().saturating_sub(from_start);
    healthy >= 3 && unhealthy.saturating_sub(from_start) * 2 > healthy
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// The reason of a condition that is True.
pub fn true_condition<'v>(object: &'v Value, type_: &str) -> Option<&'v str> {
    let conditions = object["status"]["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.find(|one| one["type"] == type_ && one["status"] == "True").map(|one| text(one, "/reason"))
}

fn failed_nodes(job: &Value) -> impl Iterator<Item = &Value> {
    job["status"]["failedNodes"].as_array().into_iter().flatten()
}

/// The tolerated failures, or None if the failure policy does not stop the rollout.
fn limit(job: &Value) -> Option<i64> {
    let policy = &job["spec"]["failurePolicy"];
    if !matches!(policy["type"].as_str(), Some("Pause" | "FailFast")) {
        return None;
    }
    Some(match &policy["maxFailedNodes"] {
        Value::String(share) => {
            let percent: i64 = share.trim_end_matches('%').parse().unwrap_or(0);
            number(job, "/status/rollout/base") * percent / 100
        }
        count => count.as_i64().unwrap_or(0),
    })
}

/// The number of deleted nodes that the ledger counts as failed in this rollout.
fn deleted(state: &State, job: &Value, rollout: i64) -> i64 {
    let uid = text(job, "/metadata/uid");
    let shards = state.objects("configmaps").filter(|shard| label(shard, "daemonjob-uid") == uid);
    let mut count = 0;
    for (key, line) in shards.flat_map(|shard| shard["data"].as_object().into_iter().flatten()) {
        let words: Vec<&str> = line.as_str().unwrap_or_default().split(' ').collect();
        if !words.contains(&format!("rollout={rollout}").as_str()) {
            continue;
        }
        if key == "gone" {
            let hours = words.iter().filter(|word| word.starts_with("hour-"));
            let counts = hours.filter_map(|word| word.rsplit_once('=')?.1.parse::<i64>().ok());
            count += counts.sum::<i64>();
        } else {
            count += i64::from(words.iter().any(|word| word.starts_with("gone=")));
        }
    }
    count
}

impl Assessor {
    /// Checks one write. Returns the violations.
    pub fn committed(&mut self, commit: &Commit<'_>, knows: Knowledge) -> Vec<String> {
        let is_manager = commit.who.starts_with(crate::process::MANAGER);
        match commit.resource.split('.').next().unwrap_or_default() {
            "nodes" => {
                self.node(commit);
                self.outage(commit);
                match (commit.old, commit.new) {
                    (Some(old), Some(new)) if is_manager => self.marks.patched(old, new),
                    _ => Vec::new(),
                }
            }
            "pods" => {
                let mut wrong = Vec::new();
                if let (None, Some(pod), true) = (commit.old, commit.new, is_manager) {
                    wrong.extend(self.creation(commit, pod, knows));
                }
                if let (Some(pod), true) = (commit.old, is_manager) {
                    wrong.extend(self.release(commit, pod, knows));
                }
                self.pod(commit);
                wrong
            }
            "daemonjobs" => {
                self.outage(commit);
                self.annotated(commit);
                match (commit.old, commit.new) {
                    (Some(old), Some(new)) if is_manager && old["status"] != new["status"] => {
                        self.status(commit, old, new, knows)
                    }
                    _ => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    fn node(&mut self, commit: &Commit<'_>) {
        let Some(node) = commit.new else {
            self.acts += 1;
            let uid = commit.old.map(|old| text(old, "/metadata/uid")).unwrap_or_default();
            self.nodes.remove(uid);
            let ran = |pod: &&std::sync::Arc<Value>| {
                label(pod, "node-uid") == uid
                    && !has_ended(pod)
                    && !text(pod, "/spec/nodeName").is_empty()
                    && !annotation(pod, "node-ready").is_empty()
            };
            let left = commit.state.objects("pods").filter(ran);
            self.left.extend(left.map(|pod| text(pod, "/metadata/uid").to_owned()));
            return;
        };
        let uid = text(node, "/metadata/uid").to_owned();
        let is_changed = commit.old.is_none_or(|old| old["metadata"]["labels"] != node["metadata"]["labels"]);
        self.acts += usize::from(is_changed);
        let fresh = NodeTrack { since: commit.now, not_ready: None };
        let track = self.nodes.entry(uid).or_insert(fresh);
        if is_changed {
            track.since = commit.now;
        }
        track.not_ready = if is_ready(node) { None } else { track.not_ready.or(Some(commit.now)) };
    }

    /// Records for every DaemonJob whether an outage begins or ends.
    fn outage(&mut self, commit: &Commit<'_>) {
        for job in commit.state.objects("daemonjobs.dj.dysproz.io") {
            let is_now = is_outage(commit.state, job);
            let outages = self.outages.entry(text(job, "/metadata/uid").to_owned()).or_default();
            match outages.last_mut() {
                Some((_, end @ None)) if !is_now => *end = Some(commit.now),
                Some((_, None)) => {}
                _ if is_now => outages.push((commit.now, None)),
                _ => {}
            }
        }
    }

    /// The time for which a node has not been Ready, without outages.
    fn unready_for(&self, job: &str, node: &str, now: Timestamp) -> Option<SignedDuration> {
        let since = self.nodes.get(node)?.not_ready?;
        let outages = self.outages.get(job).into_iter().flatten();
        let left_out = outages.map(|(from, to)| to.unwrap_or(now).duration_since((*from).max(since)));
        let left_out: SignedDuration = left_out.filter(SignedDuration::is_positive).sum();
        Some(now.duration_since(since) - left_out)
    }

    /// Records the approval and the pause of a DaemonJob.
    fn annotated(&mut self, commit: &Commit<'_>) {
        let Some(job) = commit.new else { return };
        let uid = text(job, "/metadata/uid").to_owned();
        if let Some((rollout, _)) = annotation(job, "approved").split_once('/') {
            self.approved.insert((uid.clone(), rollout.to_owned()));
        }
        if annotation(job, "paused").is_empty() {
            self.paused.remove(&uid);
        } else {
            self.paused.entry(uid).or_insert(commit.now);
        }
    }

    fn pod(&mut self, commit: &Commit<'_>) {
        let Some(pod) = commit.new else { return };
        let job = label(pod, "daemonjob-uid").to_owned();
        if job.is_empty() {
            return;
        }
        if matches!(text(pod, "/status/phase"), "Running" | "Succeeded") {
            let started = self.started.entry((job.clone(), annotation(pod, "rollout").to_owned()));
            started.or_default().insert(label(pod, "node-uid").to_owned());
        }
        self.acts += usize::from(commit.old.is_none());
        if commit.old.is_some_and(has_ended) || !has_ended(pod) {
            return;
        }
        let key = (job.clone(), label(pod, "node-uid").to_owned());
        if text(pod, "/status/phase") == "Succeeded" {
            self.acts += 1;
            self.failed.remove(&key);
            let success = format!("{}/{}", annotation(pod, "rollout"), label(pod, "pod-number"));
            self.marks.succeeded(&job, &key.1, success);
            self.done.insert((job, key.1, label(pod, "template-hash").to_owned()));
        } else if text(pod, "/metadata/deletionTimestamp").is_empty() {
            let rollout = annotation(pod, "rollout").to_owned();
            let is_disrupted = is_disrupted(pod);
            self.failed.insert(key, FailedAttempt { at: commit.now, rollout, is_disrupted });
        }
    }

    /// No pod is created while the rollout is stopped, in an outage, or beyond `parallelism`.
    fn creation(&self, commit: &Commit<'_>, pod: &Value, knows: Knowledge) -> Vec<String> {
        let uid = label(pod, "daemonjob-uid");
        let mut jobs = commit.state.objects("daemonjobs.dj.dysproz.io");
        let Some(job) = jobs.find(|job| text(job, "/metadata/uid") == uid) else { return Vec::new() };
        let name = text(pod, "/metadata/name");
        let mut wrong = Vec::new();
        if knows.is_late {
            return wrong;
        }
        if let Some(stop) = self.stops.get(uid)
            && annotation(pod, "rollout") == stop.rollout.to_string()
            && number(job, "/metadata/generation") == stop.generation
        {
            wrong.push(format!("{name} is created while too many nodes have failed"));
        }
        let is_known = number(job, "/metadata/generation") == number(job, "/status/observedGeneration");
        if knows.is_exact && is_known {
            let outage = self.outages.get(uid).and_then(|outages| outages.last());
            if let Some((since, None)) = outage
                && commit.now.duration_since(*since) > LAG
            {
                wrong.push(format!("{name} is created while more than half of the nodes are not Ready"));
            }
            if self.is_stopped_by_lost_nodes(commit, job, pod) {
                wrong.push(format!("{name} is created while too many nodes have failed or are lost"));
            }
            let paused = self.paused.get(uid);
            if paused.is_some_and(|since| commit.now.duration_since(*since) > LAG) {
                wrong.push(format!("{name} is created while an annotation pauses the DaemonJob"));
            }
            wrong.extend(self.exceeds_wave(commit, job, pod));
        }
        // The fake API server accepts values that the real one rejects.
        let most = job["spec"]["parallelism"].as_i64().filter(|most| *most >= 0);
        if let (Some(most), true) = (most, is_known) {
            let (running, holders) = self.slots(commit, job, pod, knows);
            if running + holders > most {
                wrong.push(format!(
                    "{name} is created: {running} pods run, {holders} other nodes hold slots, parallelism is {most}"
                ));
            }
        }
        wrong
    }

    /// A node starts only if fewer nodes have started than the wave in the status allows.
    fn exceeds_wave(&self, commit: &Commit<'_>, job: &Value, pod: &Value) -> Option<String> {
        let (uid, rollout) = (text(job, "/metadata/uid"), annotation(pod, "rollout"));
        if number(job, "/status/rollout/number").to_string() != rollout {
            return None;
        }
        let wave = usize::try_from(number(job, "/status/rollout/wave")).ok()?.checked_sub(1)?;
        let size = usize::try_from(job["status"]["rollout"]["waveSizes"][wave].as_i64()?).ok()?;
        let placement = Placement::of(job["spec"]["template"]["spec"].as_object()?);
        let skipped = job["status"]["skippedNodes"].as_array();
        let counts = |node: &&str| {
            let mut nodes = commit.state.objects("nodes");
            let Some(found) = nodes.find(|one| text(one, "/metadata/uid") == *node) else { return false };
            let name = text(found, "/metadata/name");
            let parsed = serde_json::from_value(Value::clone(found));
            let is_skipped = skipped.into_iter().flatten().any(|one| text(one, "/node") == name);
            parsed.is_ok_and(|node| placement.eligibility(&node).is_selected()) && !is_skipped
        };
        let started = self.started.get(&(uid.to_owned(), rollout.to_owned()));
        let started: BTreeSet<&str> = started.into_iter().flatten().map(String::as_str).collect();
        let own = label(pod, "node-uid");
        let others = started.iter().copied().filter(|node| *node != own).filter(counts).count();
        (!started.contains(own) && others >= size).then(|| {
            let name = text(pod, "/metadata/name");
            format!("{name} is created, but {others} nodes have started and wave {} allows {size}", wave + 1)
        })
    }

    /// Whether too many listed nodes have failed and cannot have recovered. A lost node is still not Ready.
    fn is_stopped_by_lost_nodes(&self, commit: &Commit<'_>, job: &Value, created: &Value) -> bool {
        let rollout = number(job, "/status/rollout/number").to_string();
        let is_on = !job["status"]["rollout"]["brakedSince"].is_null();
        let Some(limit) = limit(job).filter(|_| is_on && annotation(created, "rollout") == rollout) else {
            return false;
        };
        let stays_failed = |failed: &&Value| match text(failed, "/reason") {
            "NodeLost" => {
                let mut nodes = commit.state.objects("nodes");
                let node = nodes.find(|node| text(node, "/metadata/name") == text(failed, "/node"));
                let uid = node.map(|node| text(node, "/metadata/uid")).unwrap_or_default();
                let since = self.nodes.get(uid).and_then(|track| track.not_ready);
                let job = text(job, "/metadata/uid");
                let has_succeeded = self.done.iter().any(|(of, on, _)| of == job && on == uid);
                since.is_some_and(|since| commit.now.duration_since(since) > LAG) && !has_succeeded
            }
            reason => !PROVISIONAL.contains(&reason),
        };
        i64::try_from(failed_nodes(job).filter(stays_failed).count()).is_ok_and(|count| count > limit)
    }

    /// The numbers of pods that have not ended, and of nodes that hold a slot without a pod.
    fn slots(&self, commit: &Commit<'_>, job: &Value, created: &Value, knows: Knowledge) -> (i64, i64) {
        let uid = text(job, "/metadata/uid");
        let lost_after = &job["spec"]["failurePolicy"]["nodeLostAfterSeconds"];
        let lost_after = SignedDuration::from_secs(lost_after.as_i64().unwrap_or(NODE_LOST_AFTER));
        let unready_for = |node: &str| self.unready_for(uid, node, commit.now);
        let pods = commit.state.objects("pods").filter(|pod| label(pod, "daemonjob-uid") == uid);
        let running: BTreeSet<&str> =
            pods.filter(|pod| !has_ended(pod)).map(|pod| label(pod, "node-uid")).collect();
        let running: BTreeSet<&str> = running
            .into_iter()
            .filter(|node| unready_for(node).is_none_or(|time| time < lost_after))
            .collect();
        let waits_for_retry =
            matches!(job["spec"]["failurePolicy"]["type"].as_str(), Some("Pause" | "FailFast"));
        let target = label(created, "node-uid");
        let is_failed = |node: &str| {
            let mut nodes = commit.state.objects("nodes");
            let name = nodes.find(|one| text(one, "/metadata/uid") == node);
            let name = name.map(|one| text(one, "/metadata/name")).unwrap_or_default();
            name.is_empty() || failed_nodes(job).any(|failed| text(failed, "/node") == name)
        };
        let holds = |(of, node): &(String, String), attempt: &FailedAttempt| {
            let not_ready = self.nodes.get(node).and_then(|track| track.not_ready);
            let is_suspect = not_ready.is_some_and(|since| {
                commit.now.duration_since(since) > LAG
                    && since < attempt.at
                    && unready_for(node).is_some_and(|time| time < lost_after)
            });
            let waits = waits_for_retry
                && !attempt.is_disrupted
                && attempt.rollout == annotation(created, "rollout")
                && commit.now.duration_since(attempt.at) > LAG;
            of == uid
                && node != target
                && !running.contains(node.as_str())
                && !is_failed(node)
                && (is_suspect || waits)
        };
        let holders =
            self.failed.iter().filter(|(key, attempt)| knows.is_exact && holds(key, attempt)).count();
        (i64::try_from(running.len()).unwrap_or(i64::MAX), i64::try_from(holders).unwrap_or(i64::MAX))
    }

    /// The ledger counts a deleted node before the node's pod is released.
    fn release(&self, commit: &Commit<'_>, pod: &Value, knows: Knowledge) -> Vec<String> {
        // If a pod disappears with its last finalizer, the commit shows the pod without the finalizer.
        let was_released = commit.new.is_none_or(|new| has_finalizer(pod) && !has_finalizer(new));
        let is_owed = self.left.contains(text(pod, "/metadata/uid"))
            && text(pod, "/status/phase") != "Succeeded"
            && annotation(pod, "deleted-for") != "Superfluous";
        if !(was_released && is_owed && knows.is_exact) {
            return Vec::new();
        }
        let uid = label(pod, "daemonjob-uid");
        let mut jobs = commit.state.objects("daemonjobs.dj.dysproz.io");
        let job = jobs.find(|job| text(job, "/metadata/uid") == uid);
        let Some(job) = job.filter(|job| text(job, "/metadata/deletionTimestamp").is_empty()) else {
            return Vec::new();
        };
        let rollout = number(job, "/status/rollout/number");
        let is_current = annotation(pod, "rollout") == rollout.to_string();
        if is_current && deleted(commit.state, job, rollout) == 0 {
            let name = text(pod, "/metadata/name");
            return vec![format!(
                "{name} ran on a deleted node, and is released before the ledger counts the node"
            )];
        }
        Vec::new()
    }

    fn status(&mut self, commit: &Commit<'_>, old: &Value, new: &Value, knows: Knowledge) -> Vec<String> {
        let mut wrong = Vec::new();
        let before = number(old, "/status/rollout/number");
        let after = number(new, "/status/rollout/number");
        let is_same = text(old, "/status/templateHash") == text(new, "/status/templateHash")
            && old["status"]["rollout"]["retryToken"] == new["status"]["rollout"]["retryToken"];
        if before > 0 && (after < before || is_same != (after == before)) {
            wrong.push(format!("rollout {after} follows {before}, same template and token: {is_same}"));
        }
        wrong.extend(self.unapproved(old, new));
        wrong.extend(self.stop(commit, new));
        wrong.extend(self.complete(commit, new, knows));
        wrong.extend(self.recovered(old, new));
        wrong.extend(self.lost_too_early(commit, old, new, knows));
        wrong.extend(self.no_longer_failed(old, new, knows));
        wrong.extend(unexplained(new));
        wrong
    }

    /// A wave that needs approval is over only with an approval of its rollout.
    fn unapproved(&self, old: &Value, new: &Value) -> Option<String> {
        let is_same = ["/metadata/generation", "/status/observedGeneration", "/status/rollout/number"]
            .iter()
            .all(|path| number(old, path) == number(new, path));
        let from = number(old, "/status/rollout/wave");
        let needs_approval = match text(new, "/spec/rollout/approval") {
            "FirstWave" => from == 1,
            "EveryWave" => from > 0,
            _ => false,
        };
        let key = (text(new, "/metadata/uid").to_owned(), number(new, "/status/rollout/number").to_string());
        let is_over = from < number(new, "/status/rollout/wave");
        (is_same && is_over && needs_approval && !self.approved.contains(&key))
            .then(|| format!("wave {from} is over without an approval"))
    }

    /// A stop by failures that cannot recover lasts until the spec changes.
    fn stop(&mut self, commit: &Commit<'_>, job: &Value) -> Option<String> {
        let uid = text(job, "/metadata/uid").to_owned();
        let (rollout, generation) =
            (number(job, "/status/rollout/number"), number(job, "/metadata/generation"));
        let now = Stop { rollout, generation };
        if number(job, "/status/observedGeneration") != generation {
            return None;
        }
        let is_on = !job["status"]["rollout"]["brakedSince"].is_null();
        if self.stops.get(&uid) == Some(&now) {
            return (!is_on).then(|| "the rollout resumes without a change of the spec".to_owned());
        }
        self.stops.remove(&uid);
        let lasting = failed_nodes(job).filter(|node| !PROVISIONAL.contains(&text(node, "/reason"))).count();
        let count = i64::try_from(lasting).unwrap_or(i64::MAX) + deleted(commit.state, job, rollout);
        if is_on && limit(job).is_some_and(|limit| count > limit) {
            self.stops.insert(uid, now);
        }
        None
    }

    /// A Complete job has every selected node done, skipped, or failed within the tolerated number.
    fn complete(&self, commit: &Commit<'_>, job: &Value, knows: Knowledge) -> Vec<String> {
        let Some(reason) = true_condition(job, "Complete") else { return Vec::new() };
        let mut wrong = Vec::new();
        let failed = number(job, "/status/failed");
        let tolerated = &job["spec"]["failurePolicy"]["maxFailedNodes"];
        let is_tolerated = reason == "FailuresTolerated" && !tolerated.is_null();
        let most = tolerated.as_i64().filter(|_| is_tolerated);
        if failed > 0 && (!is_tolerated || most.is_some_and(|most| failed > most)) {
            wrong.push(format!("Complete with {failed} failed nodes"));
        }
        let is_current = number(job, "/status/observedGeneration") == number(job, "/metadata/generation");
        let reruns = job["spec"]["rerunOn"].as_array();
        let has_more = reruns.is_some_and(|all| all.iter().any(|one| one != "TemplateChange"));
        let Some(template) = job["spec"]["template"]["spec"].as_object() else { return wrong };
        if !knows.is_exact || knows.is_late || !is_current || has_more {
            return wrong;
        }
        let (uid, hash) = (text(job, "/metadata/uid"), text(job, "/status/templateHash"));
        let placement = Placement::of(template);
        let any_template = reruns.is_some();
        for node in commit.state.objects("nodes") {
            let node_uid = text(node, "/metadata/uid");
            let is_new =
                self.nodes.get(node_uid).is_none_or(|track| commit.now.duration_since(track.since) < LAG);
            let Ok(parsed) = serde_json::from_value(Value::clone(node)) else { continue };
            if is_new || !placement.eligibility(&parsed).is_selected() {
                continue;
            }
            let name = text(node, "/metadata/name");
            let listed = |list: &str| {
                let nodes = job["status"][list].as_array();
                nodes.into_iter().flatten().any(|one| text(one, "/node") == name)
            };
            let is_done = self
                .done
                .iter()
                .any(|(of, on, with)| of == uid && on == node_uid && (any_template || with == hash));
            if !(is_done || listed("skippedNodes") || listed("failedNodes")) {
                wrong.push(format!("Complete, but node {name} is neither done nor skipped nor failed"));
            }
        }
        wrong
    }

    /// A failed node that cannot recover stays failed in its rollout. Exceptions follow a deleted or
    /// relabelled node, or a created or succeeded pod, since the status before the one that lists the node.
    fn no_longer_failed(&mut self, old: &Value, new: &Value, knows: Knowledge) -> Vec<String> {
        let uid = text(new, "/metadata/uid").to_owned();
        let acts = self.acts_at_status.entry(uid).or_default();
        let [before, last] = *acts;
        *acts = [last, Some(self.acts)];
        let is_same = ["/metadata/generation", "/status/observedGeneration", "/status/rollout/number"]
            .iter()
            .all(|path| number(old, path) == number(new, path));
        if !is_same || !knows.is_exact || before != Some(self.acts) {
            return Vec::new();
        }
        let for_good = |job: &Value| -> BTreeSet<String> {
            let lasting = failed_nodes(job).filter(|node| !PROVISIONAL.contains(&text(node, "/reason")));
            lasting.map(|node| text(node, "/node").to_owned()).collect()
        };
        let gone = &for_good(old) - &for_good(new);
        gone.into_iter().map(|name| format!("node {name} failed and is no longer failed")).collect()
    }

    /// A node is lost only after `nodeLostAfterSeconds` without Ready, not counting outages.
    fn lost_too_early(&self, commit: &Commit<'_>, old: &Value, new: &Value, knows: Knowledge) -> Vec<String> {
        // A new manager counts suspect nodes as lost if the rollout was stopped before.
        let was_stopped = !old["status"]["rollout"]["brakedSince"].is_null();
        if was_stopped || !knows.is_exact {
            return Vec::new();
        }
        let lost_after = new["spec"]["failurePolicy"]["nodeLostAfterSeconds"].as_i64();
        let least = SignedDuration::from_secs(lost_after.unwrap_or(NODE_LOST_AFTER)) - LAG;
        let is_lost = |one: &Value| text(one, "/reason") == "NodeLost";
        let is_new = |one: &&Value| {
            is_lost(one) && !failed_nodes(old).any(|two| is_lost(two) && two["node"] == one["node"])
        };
        let mut wrong = Vec::new();
        for name in failed_nodes(new).filter(is_new).map(|one| text(one, "/node")) {
            let mut nodes = commit.state.objects("nodes");
            let Some(node) = nodes.find(|node| text(node, "/metadata/name") == name) else { continue };
            let uid = text(new, "/metadata/uid");
            let time = self.unready_for(uid, text(node, "/metadata/uid"), commit.now).unwrap_or_default();
            if time < least {
                wrong.push(format!("node {name} is lost after {} s without Ready", time.as_secs()));
            }
        }
        wrong
    }

    /// Failed does not become Complete without a reason.
    fn recovered(&mut self, old: &Value, new: &Value) -> Option<String> {
        let uid = text(new, "/metadata/uid").to_owned();
        let generation = number(new, "/metadata/generation");
        if true_condition(new, "Failed").is_some() {
            let can_recover = failed_nodes(new).any(|node| PROVISIONAL.contains(&text(node, "/reason")));
            self.failures.insert(uid, (generation, self.acts, can_recover));
            return None;
        }
        let failure = self.failures.remove(&uid)?;
        let is_complete =
            true_condition(new, "Complete").is_some() && true_condition(old, "Failed").is_some();
        (is_complete && failure == (generation, self.acts, false))
            .then(|| "Failed becomes Complete without a change that allows it".to_owned())
    }
}

/// If a run makes no progress, a condition or a pending node must give the reason.
pub fn unexplained(job: &Value) -> Option<String> {
    let known =
        ["Complete", "Failed", "MarkRefused", "Paused", "PodsRefused", "ScheduleInvalid", "Suspended"];
    let is_explained = known.iter().any(|type_| true_condition(job, type_).is_some());
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let waits = conditions.any(|one| {
        one["type"] == "Complete" && (one["reason"] == "Marking" || one["reason"] == "WaitsForDueTime")
    });
    let has_pods = number(job, "/status/active") + number(job, "/status/terminating") > 0;
    let pending = job["status"]["pendingNodes"].as_array();
    let has_reason = pending.is_some_and(|nodes| nodes.iter().any(|node| !text(node, "/reason").is_empty()));
    let is_new = job["status"]["conditions"].is_null();
    (!is_explained && !waits && !has_pods && !has_reason && !is_new)
        .then(|| "a run makes no progress, and no condition or pending node gives the reason".to_owned())
}
