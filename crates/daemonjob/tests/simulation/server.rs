//! An API server in memory: the objects as JSON, its changes to them, and the events of its watches.
//!
//! It implements the features on which the plan relies: UIDs, resourceVersions, finalizers, graceful
//! deletion, preconditions, and name conflicts. The informers' types decode the objects from their JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus};
use quintet_daemonjob::ledger::Shard;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES, PODS, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::marks::TAINT;

/// The only namespace.
pub const NAMESPACE: &str = "ns";
/// The only DaemonJob.
pub const JOB: &str = "d";
/// The grace period of pods, in seconds.
const GRACE: i64 = 30;

/// The objects of one type, and their events.
pub struct Kind<T> {
    pub objects: BTreeMap<String, Stored<T>>,
    pub log: Vec<Change<T>>,
}

pub struct Stored<T> {
    pub json: Value,
    pub seen: Arc<T>,
}

/// One event of a watch.
pub struct Change<T> {
    pub revision: u64,
    pub name: String,
    /// None if the object was removed.
    pub object: Option<Arc<T>>,
}

/// The server's answer to a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, with the new resourceVersion.
    Done(u64),
    /// The object does not exist, or differs from the one that the writer saw.
    News,
    /// An object of this name exists.
    Exists { revision: u64, owner: String },
    /// The write is rejected.
    Refused,
}

/// The clocks of the cluster, as differences from the true time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// The clock of the API server, which sets creation and deletion times.
    pub server: SignedDuration,
    /// The clocks of the nodes, which set the start and end times of containers.
    pub nodes: SignedDuration,
}

pub struct Server {
    /// The true time.
    pub now: Timestamp,
    clocks: Clocks,
    pub revision: u64,
    uids: u64,
    pub pods: Kind<Pod>,
    pub nodes: Kind<Node>,
    pub shards: Kind<Shard>,
    pub jobs: Kind<DaemonJob>,
    /// The number of pod creations that the server will reject.
    pub refuse_pods: u8,
    /// The number of ledger writes that the server will reject.
    pub refuse_ledger: u8,
    /// The number of patches of Nodes that the server will reject.
    pub refuse_marks: u8,
    /// Whether new nodes register with a taint.
    pub registers_taint: bool,
    /// Nodes that are down. They have booted and lost their containers when they are Ready again.
    pub down: BTreeSet<String>,
}

impl<T: for<'a> Deserialize<'a>> Kind<T> {
    fn new() -> Self {
        Self { objects: BTreeMap::new(), log: Vec::new() }
    }

    fn put(&mut self, revision: &mut u64, mut json: Value) -> u64 {
        *revision += 1;
        json["metadata"]["resourceVersion"] = json!(revision.to_string());
        let name = json["metadata"]["name"].as_str().unwrap().to_owned();
        let seen = Arc::new(T::deserialize(&json).unwrap());
        self.log.push(Change { revision: *revision, name: name.clone(), object: Some(seen.clone()) });
        self.objects.insert(name, Stored { json, seen });
        *revision
    }

    fn remove(&mut self, revision: &mut u64, name: &str) -> u64 {
        *revision += 1;
        self.objects.remove(name);
        self.log.push(Change { revision: *revision, name: name.to_owned(), object: None });
        *revision
    }

    /// Changes an object. Without a difference there is no event.
    fn edit(&mut self, revision: &mut u64, name: &str, change: impl FnOnce(&mut Value)) {
        let Some(stored) = self.objects.get(name) else { return };
        let mut json = stored.json.clone();
        change(&mut json);
        if json != stored.json {
            self.put(revision, json);
        }
    }
}

fn text<'a>(json: &'a Value, path: &str) -> &'a str {
    json.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub fn revision_of(json: &Value) -> u64 {
    text(json, "/metadata/resourceVersion").parse().unwrap()
}

fn owner_of(json: &Value) -> String {
    text(json, "/metadata/ownerReferences/0/uid").to_owned()
}

fn has_finalizers(json: &Value) -> bool {
    json.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

fn has_ended(json: &Value) -> bool {
    matches!(text(json, "/status/phase"), "Succeeded" | "Failed")
}

impl Server {
    pub fn new(now: Timestamp, clocks: Clocks) -> Self {
        Self {
            now,
            clocks,
            revision: 0,
            uids: 0,
            pods: Kind::new(),
            nodes: Kind::new(),
            shards: Kind::new(),
            jobs: Kind::new(),
            refuse_pods: 0,
            refuse_ledger: 0,
            refuse_marks: 0,
            registers_taint: false,
            down: BTreeSet::new(),
        }
    }

    pub fn wait(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).unwrap();
    }

    /// The time of the server's clock, in whole seconds.
    fn time(&self) -> Timestamp {
        whole_seconds(self.now.checked_add(self.clocks.server).unwrap())
    }

    /// Whether the clocks of the nodes are ahead of the server's.
    pub fn nodes_are_ahead(&self) -> bool {
        self.clocks.nodes > self.clocks.server
    }

    /// The time of a node's clock, as its kubelet writes it into pods.
    pub fn node_stamp(&self) -> String {
        whole_seconds(self.now.checked_add(self.clocks.nodes).unwrap()).to_string()
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("u{}", self.uids)
    }

    fn give_identity(&mut self, json: &mut Value) {
        json["metadata"]["uid"] = json!(self.uid());
        json["metadata"]["creationTimestamp"] = json!(self.time().to_string());
    }

    pub fn job(&self) -> Option<&Stored<DaemonJob>> {
        self.jobs.objects.get(JOB)
    }

    pub fn job_uid(&self) -> &str {
        self.job().map_or("", |stored| text(&stored.json, "/metadata/uid"))
    }

    pub fn create_job(&mut self, spec: &Value) {
        let mut json = json!({
            "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": JOB, "namespace": NAMESPACE, "generation": 1},
            "spec": spec,
        });
        self.give_identity(&mut json);
        self.jobs.put(&mut self.revision, json);
    }

    /// A user changes the spec.
    pub fn edit_spec(&mut self, change: impl FnOnce(&mut Value)) {
        self.jobs.edit(&mut self.revision, JOB, |json| {
            let before = json["spec"].clone();
            change(&mut json["spec"]);
            if json["spec"] != before {
                json["metadata"]["generation"] = json!(json["metadata"]["generation"].as_i64().unwrap() + 1);
            }
        });
    }

    /// A user sets or removes an annotation of the DaemonJob, which does not change its generation.
    pub fn annotate_job(&mut self, key: &str, value: Option<&str>) {
        self.jobs.edit(&mut self.revision, JOB, |json| {
            if let Some(value) = value {
                json["metadata"]["annotations"][key] = json!(value);
            } else if let Some(Value::Object(annotations)) = json.pointer_mut("/metadata/annotations") {
                annotations.remove(key);
            }
        });
    }

    /// A user deletes the DaemonJob. `foreground`: it exists until its pods are removed.
    pub fn delete_job(&mut self, foreground: bool) {
        if foreground {
            let stamp = self.time().to_string();
            self.jobs.edit(&mut self.revision, JOB, |json| {
                json["metadata"]["deletionTimestamp"] = json!(stamp);
                json["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
            });
        } else if self.job().is_some() {
            self.jobs.remove(&mut self.revision, JOB);
        }
    }

    /// Server-side apply of the status. UID and resourceVersion of the DaemonJob are preconditions.
    pub fn write_status(&mut self, seen: &DaemonJob, status: &DaemonJobStatus) -> Answer {
        let version = |job: &DaemonJob| (job.metadata.uid.clone(), job.metadata.resource_version.clone());
        if self.job().is_none_or(|stored| version(&stored.seen) != version(seen)) {
            return Answer::News;
        }
        let status = serde_json::to_value(status).unwrap();
        self.jobs.edit(&mut self.revision, JOB, |json| json["status"] = status);
        Answer::Done(revision_of(&self.jobs.objects[JOB].json))
    }

    pub fn create_node(&mut self, name: &str) {
        let info = json!({"bootID": self.uid(), "machineID": self.uid()});
        let taints: Vec<Value> =
            self.registers_taint.then(|| json!({"key": TAINT, "effect": "NoSchedule"})).into_iter().collect();
        let mut json = json!({
            "metadata": {"name": name, "labels": {"pool": "a"}},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info},
        });
        self.give_identity(&mut json);
        self.nodes.put(&mut self.revision, json);
    }

    pub fn delete_node(&mut self, name: &str) {
        self.down.remove(name);
        self.nodes.remove(&mut self.revision, name);
    }

    pub fn edit_node(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.nodes.edit(&mut self.revision, name, change);
    }

    pub fn new_id(&mut self) -> String {
        self.uid()
    }

    pub fn edit_pod(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.pods.edit(&mut self.revision, name, change);
    }

    /// DELETE of a pod, by default with its own grace period. Without finalizers it is removed when nothing
    /// runs.
    pub fn delete_pod(&mut self, name: &str, grace: Option<i64>) -> u64 {
        let json = self.pods.objects[name].json.clone();
        let is_bound = json.pointer("/spec/nodeName").is_some();
        let mut grace = grace.unwrap_or(GRACE);
        if !is_bound || has_ended(&json) {
            grace = 0;
        }
        let pending = self.pods.objects[name].seen.meta.clone();
        let asked = match pending.deletion_asked() {
            // A shorter grace period counts from the first request.
            Some(_) if pending.grace_seconds <= grace => return revision_of(&json),
            Some(asked) => asked,
            None => self.time(),
        };
        if grace == 0 && !has_finalizers(&json) {
            return self.pods.remove(&mut self.revision, name);
        }
        let until = asked.checked_add(SignedDuration::from_secs(grace)).unwrap();
        self.edit_pod(name, |json| {
            json["metadata"]["deletionTimestamp"] = json!(until.to_string());
            json["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        });
        self.revision
    }

    /// Another client deletes a shard of the ledger.
    pub fn delete_shard(&mut self, name: &str) {
        self.shards.remove(&mut self.revision, name);
    }

    /// The garbage collector deletes the objects of a deleted or terminating DaemonJob.
    pub fn collect_garbage(&mut self) {
        let living = self.job().filter(|stored| stored.seen.metadata.deletion_timestamp.is_none());
        let living = living.map(|stored| text(&stored.json, "/metadata/uid").to_owned());
        let orphans = |json: &Value| Some(owner_of(json)) != living;
        let pods: Vec<String> = self
            .pods
            .objects
            .iter()
            .filter(|(_, pod)| orphans(&pod.json))
            .map(|(name, _)| name.clone())
            .collect();
        for name in pods {
            self.delete_pod(&name, None);
        }
        let shards: Vec<String> = self
            .shards
            .objects
            .iter()
            .filter(|(_, shard)| orphans(&shard.json))
            .map(|(name, _)| name.clone())
            .collect();
        for name in shards {
            self.delete_shard(&name);
        }
        if living.is_none() && self.job().is_some() && self.pods.objects.is_empty() {
            self.jobs.remove(&mut self.revision, JOB);
        }
    }

    /// Executes one write of a manager.
    pub fn commit(&mut self, action: &Action<DaemonJobStatus>) -> Answer {
        match action {
            Action::Create { resource, name, body, .. } => self.create(*resource, name, &body.value()),
            Action::Delete { resource, name, uid, resource_version, .. } => {
                assert_eq!(*resource, PODS, "only pods are deleted");
                let Some(stored) = self.pods.objects.get(&**name) else { return Answer::News };
                let meta = &stored.seen.meta;
                let is_same = meta.uid == *uid
                    && resource_version.as_ref().is_none_or(|version| **version == *meta.resource_version);
                if is_same { Answer::Done(self.delete_pod(name, None)) } else { Answer::News }
            }
            Action::JsonPatch { resource, name, operations, .. } if *resource == NODES => {
                self.patch_node(name, operations)
            }
            Action::JsonPatch { resource, name, operations, .. } => {
                assert_eq!(*resource, PODS, "only pods and Nodes are patched");
                self.patch_pod(name, operations)
            }
            Action::MergePatch { resource, name, body, .. } if *resource == CONFIG_MAPS => {
                if self.refuse_ledger > 0 {
                    self.refuse_ledger -= 1;
                    return Answer::Refused;
                }
                merge(&mut self.shards, &mut self.revision, name, body)
            }
            Action::MergePatch { resource, name, body, .. } if *resource == PODS => {
                merge(&mut self.pods, &mut self.revision, name, body)
            }
            other => panic!("unexpected action: {other:?}"),
        }
    }

    fn create(&mut self, resource: Resource, name: &str, body: &Value) -> Answer {
        let is_pod = resource == PODS;
        let refuse = if is_pod { &mut self.refuse_pods } else { &mut self.refuse_ledger };
        if *refuse > 0 {
            *refuse -= 1;
            return Answer::Refused;
        }
        let there = if is_pod {
            self.pods.objects.get(name).map(|stored| &stored.json)
        } else {
            self.shards.objects.get(name).map(|stored| &stored.json)
        };
        if let Some(there) = there {
            return Answer::Exists { revision: revision_of(there), owner: owner_of(there) };
        }
        let mut json = body.clone();
        assert_eq!(text(&json, "/metadata/name"), name);
        assert_eq!(text(&json, "/metadata/namespace"), NAMESPACE);
        self.give_identity(&mut json);
        if is_pod {
            json["status"] = json!({"phase": "Pending"});
            Answer::Done(self.pods.put(&mut self.revision, json))
        } else {
            Answer::Done(self.shards.put(&mut self.revision, json))
        }
    }

    fn patch_node(&mut self, name: &str, operations: &Value) -> Answer {
        let Some(stored) = self.nodes.objects.get(name) else { return Answer::News };
        if self.refuse_marks > 0 {
            self.refuse_marks -= 1;
            return Answer::Refused;
        }
        let mut json = stored.json.clone();
        if !fits(&mut json, operations) {
            return Answer::News;
        }
        Answer::Done(self.nodes.put(&mut self.revision, json))
    }

    fn patch_pod(&mut self, name: &str, operations: &Value) -> Answer {
        let Some(stored) = self.pods.objects.get(name) else { return Answer::News };
        let mut json = stored.json.clone();
        if !fits(&mut json, operations) {
            return Answer::News;
        }
        let is_over = json.pointer("/metadata/deletionTimestamp").is_some()
            && json.pointer("/metadata/deletionGracePeriodSeconds") == Some(&json!(0));
        if is_over && !has_finalizers(&json) {
            return Answer::Done(self.pods.remove(&mut self.revision, name));
        }
        Answer::Done(self.pods.put(&mut self.revision, json))
    }
}

/// Applies a JSON patch with the operations `test`, `add` and `remove`. False if it does not fit the object.
fn fits(json: &mut Value, operations: &Value) -> bool {
    operations.as_array().unwrap().iter().all(|operation| {
        let path = text(operation, "/path");
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/");
        match (text(operation, "/op"), json.pointer_mut(parent)) {
            // A test for null holds if the value is absent.
            ("test", _) => json.pointer(path).unwrap_or(&Value::Null) == &operation["value"],
            ("add", Some(Value::Object(members))) => {
                members.insert(last, operation["value"].clone());
                true
            }
            ("remove", Some(Value::Array(items))) => {
                let at: usize = last.parse().unwrap();
                let is_there = at < items.len();
                if is_there {
                    items.remove(at);
                }
                is_there
            }
            (op, parent) => panic!("{op} {path}: {parent:?}"),
        }
    })
}

/// A JSON merge patch, in which a uid or resourceVersion is a precondition.
fn merge<T: for<'a> Deserialize<'a>>(
    kind: &mut Kind<T>,
    revision: &mut u64,
    name: &str,
    body: &Value,
) -> Answer {
    let Some(stored) = kind.objects.get(name) else { return Answer::News };
    for guard in ["/metadata/uid", "/metadata/resourceVersion"] {
        if body.pointer(guard).is_some_and(|expected| Some(expected) != stored.json.pointer(guard)) {
            return Answer::News;
        }
    }
    kind.edit(revision, name, |json| merge_value(json, body));
    Answer::Done(revision_of(&kind.objects[name].json))
}

fn merge_value(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in members {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge_value(&mut target[key], value);
        }
    }
}
