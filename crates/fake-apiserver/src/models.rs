//! Small models of the actors beside the controllers: scheduler, kubelets, node lifecycle, pod and owner
//! garbage collection, Deployments and namespaces. They write only what is due. The test decides what a pod
//! does ([`Life`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::Server;
use crate::store::State;

/// The name of the models as a client.
pub const WHO: &str = "models";

/// The behaviour of a pod after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs until it is deleted.
    Runs,
    /// It runs and never becomes ready.
    NeverReady,
    /// It never starts.
    NeverStarts,
    /// It succeeds this long after its start.
    Succeeds(Duration),
    /// It fails with this exit code this long after its start.
    Fails(Duration, i32),
}

const SCHEDULED: Duration = Duration::from_millis(20);
const STARTED: Duration = Duration::from_millis(200);
const STOPPED: Duration = Duration::from_millis(700);
const COLLECTED: Duration = Duration::from_millis(300);
const PODS_OF_NO_NODE: Duration = Duration::from_secs(40);
const ROLLED_OUT: Duration = Duration::from_millis(500);
const NAMESPACE: Duration = Duration::from_millis(400);

/// Runs the models until the future is dropped.
pub async fn run(server: Server, life: Arc<dyn Fn(&Value) -> Life + Send + Sync>) {
    let mut revision = server.revision();
    let mut models = Models { server: server.clone(), life, since: HashMap::new(), wake: None };
    loop {
        revision.borrow_and_update();
        models.step();
        let wake = models.wake.unwrap_or_else(|| Instant::now() + Duration::from_hours(1));
        tokio::select! {
            changed = revision.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(wake) => {}
        }
    }
}

struct Models {
    server: Server,
    life: Arc<dyn Fn(&Value) -> Life + Send + Sync>,
    /// When a task for an object became possible.
    since: HashMap<(String, &'static str), Instant>,
    wake: Option<Instant>,
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Models {
    fn step(&mut self) {
        self.wake = None;
        let (pods, nodes, deployments, namespaces) = self.server.look(|state| {
            let of = |plural: &str| -> Vec<Arc<Value>> { state.objects(plural).cloned().collect() };
            (of("pods"), of("nodes"), of("deployments.apps"), of("namespaces"))
        });
        for pod in &pods {
            self.pod(pod, &nodes);
        }
        for node in &nodes {
            self.node(node);
        }
        for deployment in &deployments {
            self.deployment(deployment);
        }
        for namespace in
            namespaces.iter().filter(|space| !text(space, "/metadata/deletionTimestamp").is_empty())
        {
            self.namespace(namespace);
        }
        self.orphan();
        self.collect();
    }

    /// Whether a task has been possible for the time `after`. Otherwise schedules another step for then.
    fn is_due(&mut self, object: &Value, what: &'static str, after: Duration) -> bool {
        let uid = text(object, "/metadata/uid").to_owned();
        let now = Instant::now();
        let at = *self.since.entry((uid, what)).or_insert(now) + after;
        if at <= now {
            return true;
        }
        self.wake = Some(self.wake.map_or(at, |already| already.min(at)));
        false
    }

    fn forget(&mut self, object: &Value, what: &'static str) {
        self.since.remove(&(text(object, "/metadata/uid").to_owned(), what));
    }

    fn path(object: &Value) -> String {
        let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        format!("/api/v1/namespaces/{namespace}/pods/{name}")
    }

    fn now(&self) -> String {
        let now = self.server.now();
        Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
    }

    fn pod(&mut self, pod: &Value, nodes: &[Arc<Value>]) {
        let path = Self::path(pod);
        let is_going = !text(pod, "/metadata/deletionTimestamp").is_empty();
        let phase = text(pod, "/status/phase");
        let bound_to = text(pod, "/spec/nodeName");
        if bound_to.is_empty() {
            if !is_going {
                self.schedule(pod, &path, nodes);
            }
            return;
        }
        let node = nodes.iter().find(|node| text(node, "/metadata/name") == bound_to);
        let Some(node) = node else {
            if self.is_due(pod, "no-node", PODS_OF_NO_NODE) {
                if !matches!(phase, "Succeeded" | "Failed") {
                    let gone = json!({ "status": { "phase": "Failed", "conditions": [
                        { "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC" }] } });
                    self.server.merge(WHO, &format!("{path}/status"), &gone);
                }
                self.delete_now(pod, &path);
            }
            return;
        };
        self.forget(pod, "no-node");
        if text(node, "/metadata/annotations/fake~1kubelet") == "stopped" {
            return;
        }
        let life = (self.life)(pod);
        let container = text(pod, "/spec/containers/0/name").to_owned();
        if is_going {
            if !self.is_due(pod, "stop", STOPPED) {
                return;
            }
            if phase == "Running" || phase == "Pending" {
                let now = self.now();
                let started = pod.pointer("/status/containerStatuses/0/state/running/startedAt").cloned();
                let ended =
                    json!({ "exitCode": 143, "reason": "Error", "startedAt": started, "finishedAt": now });
                let status = json!({ "status": { "phase": "Failed",
                    "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": now }],
                    "containerStatuses": [{ "name": container, "ready": false, "restartCount": 0, "state": { "terminated": ended } }] } });
                self.server.merge(WHO, &format!("{path}/status"), &status);
            }
            self.delete_now(pod, &path);
            return;
        }
        if self.is_evicted(pod, node) {
            let gone = json!({ "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager" }] } });
            self.server.merge(WHO, &format!("{path}/status"), &gone);
            self.server.delete(WHO, &path, &json!({}));
            return;
        }
        match phase {
            "Pending" if life != Life::NeverStarts && self.is_due(pod, "start", STARTED) => {
                let now = self.now();
                let ready = if life == Life::NeverReady { "False" } else { "True" };
                let status = json!({ "status": { "phase": "Running", "startTime": now,
                    "conditions": [
                        { "type": "PodScheduled", "status": "True", "lastTransitionTime": now },
                        { "type": "Ready", "status": ready, "lastTransitionTime": now }],
                    "containerStatuses": [{ "name": container, "ready": ready == "True", "restartCount": 0,
                        "state": { "running": { "startedAt": now } } }] } });
                self.server.merge(WHO, &format!("{path}/status"), &status);
            }
            "Running" => {
                let (after, code) = match life {
                    Life::Succeeds(after) => (after, 0),
                    Life::Fails(after, code) => (after, code),
                    _ => return,
                };
                if self.is_due(pod, "end", after) {
                    let now = self.now();
                    let started = pod.pointer("/status/containerStatuses/0/state/running/startedAt").cloned();
                    let reason = if code == 0 { "Completed" } else { "Error" };
                    let ended = json!({ "exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now });
                    let status = json!({ "status": { "phase": if code == 0 { "Succeeded" } else { "Failed" },
                        "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": now }],
                        "containerStatuses": [{ "name": container, "ready": false, "restartCount": 0, "state": { "terminated": ended } }] } });
                    self.server.merge(WHO, &format!("{path}/status"), &status);
                }
            }
            _ => {}
        }
    }

    /// Deletes a pod as its kubelet does after the containers have stopped; only finalizers can keep it.
    fn delete_now(&self, pod: &Value, path: &str) {
        let uid = text(pod, "/metadata/uid");
        let options = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": uid } });
        self.server.delete(WHO, path, &options);
    }

    fn schedule(&mut self, pod: &Value, path: &str, nodes: &[Arc<Value>]) {
        if !self.is_due(pod, "schedule", SCHEDULED) {
            return;
        }
        let fits =
            |node: &&Arc<Value>| selects(pod, node) && tolerates(pod, node, &["NoSchedule", "NoExecute"]);
        if let Some(node) = nodes.iter().find(fits) {
            let name = text(node, "/metadata/name");
            self.server.merge(WHO, path, &json!({ "spec": { "nodeName": name } }));
        } else if items(&pod["status"]["conditions"]).all(|condition| condition["type"] != "PodScheduled") {
            let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0 nodes are available", "lastTransitionTime": self.now() });
            self.server.merge(
                WHO,
                &format!("{path}/status"),
                &json!({ "status": { "conditions": [condition] } }),
            );
        }
    }

    #[allow(clippy::unused_self, reason = "one of the models")]
    fn is_evicted(&self, pod: &Value, node: &Value) -> bool {
        !tolerates(pod, node, &["NoExecute"])
    }

    /// Sets or removes the taints of a node that is not ready.
    fn node(&self, node: &Value) {
        let is_ready = items(&node["status"]["conditions"])
            .find(|condition| condition["type"] == "Ready")
            .is_none_or(|condition| condition["status"] == "True");
        let is_ours = |taint: &Value| taint["key"] == "node.kubernetes.io/not-ready";
        let has = items(&node["spec"]["taints"]).any(is_ours);
        if is_ready != has {
            return;
        }
        let mut taints: Vec<Value> =
            items(&node["spec"]["taints"]).filter(|taint| !is_ours(taint)).cloned().collect();
        if !is_ready {
            for effect in ["NoSchedule", "NoExecute"] {
                taints.push(json!({ "key": "node.kubernetes.io/not-ready", "effect": effect }));
            }
        }
        let path = format!("/api/v1/nodes/{}", text(node, "/metadata/name"));
        self.server.merge(WHO, &path, &json!({ "spec": { "taints": taints } }));
    }

    fn deployment(&mut self, deployment: &Value) {
        let generation = &deployment["metadata"]["generation"];
        let replicas = &deployment["spec"]["replicas"];
        let status = &deployment["status"];
        if status["observedGeneration"] == *generation {
            self.forget(deployment, "roll-out");
            return;
        }
        if self.is_due(deployment, "roll-out", ROLLED_OUT) {
            let (namespace, name) =
                (text(deployment, "/metadata/namespace"), text(deployment, "/metadata/name"));
            let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/status");
            let available =
                json!([{ "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable" }]);
            let status = json!({ "status": { "observedGeneration": generation, "replicas": replicas,
                "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
                "conditions": available } });
            self.server.merge(WHO, &path, &status);
        }
    }

    /// Deletes the pods of a namespace, then its other objects, then the namespace.
    fn namespace(&mut self, namespace: &Value) {
        if !self.is_due(namespace, "empty", NAMESPACE) {
            return;
        }
        let name = text(namespace, "/metadata/name");
        let there =
            self.server.look(|state| paths(state, |object| text(object, "/metadata/namespace") == name));
        let pods: Vec<&(String, String, bool)> =
            there.iter().filter(|(plural, ..)| plural == "pods").collect();
        let all: Vec<&(String, String, bool)> = there.iter().collect();
        let first = if pods.is_empty() { &all } else { &pods };
        for (_, path, is_going) in first {
            if !is_going {
                self.server.delete(WHO, path, &json!({}));
            }
        }
        if there.is_empty() {
            let path = format!("/api/v1/namespaces/{name}");
            self.server.merge(WHO, &path, &json!({ "spec": { "finalizers": null } }));
        }
    }

    /// Deletes objects whose owners are all gone, and finishes foreground deletions without dependents.
    fn collect(&mut self) {
        let (orphans, waiting) = self.server.look(|state| {
            let uids: HashSet<&str> = state.values().map(|object| text(object, "/metadata/uid")).collect();
            let going: HashSet<&str> = state
                .values()
                .filter(|object| is_held(object, "foregroundDeletion"))
                .map(|object| text(object, "/metadata/uid"))
                .collect();
            let is_orphan = |object: &Value| {
                let mut owners = items(&object["metadata"]["ownerReferences"]).peekable();
                owners.peek().is_some()
                    && owners.all(|owner| {
                        let uid = owner["uid"].as_str().unwrap_or_default();
                        !uids.contains(uid) || going.contains(uid)
                    })
                    && text(object, "/metadata/deletionTimestamp").is_empty()
            };
            let owned: HashSet<&str> = state
                .values()
                .flat_map(|object| items(&object["metadata"]["ownerReferences"]))
                .filter_map(|owner| owner["uid"].as_str())
                .collect();
            let orphans: Vec<Arc<Value>> =
                state.values().filter(|object| is_orphan(object)).cloned().collect();
            let waiting: Vec<(String, String, bool)> = paths(state, |object| {
                let uid = text(object, "/metadata/uid");
                going.contains(uid) && !owned.contains(uid)
            });
            (orphans, waiting)
        });
        for orphan in &orphans {
            if self.is_due(orphan, "collect", COLLECTED) {
                let uid = text(orphan, "/metadata/uid").to_owned();
                let paths =
                    self.server.look(|state| paths(state, |object| text(object, "/metadata/uid") == uid));
                for (_, path, _) in paths {
                    self.server.delete(WHO, &path, &json!({ "preconditions": { "uid": uid } }));
                }
            }
        }
        for (_, path, _) in waiting {
            self.remove(&path, "finalizers", |one| one == "foregroundDeletion");
        }
    }

    /// Finishes deletions that keep the dependents.
    fn orphan(&mut self) {
        let is_going = |object: &&Arc<Value>| is_held(object, "orphan");
        let owners: Vec<_> = self.server.look(|state| state.values().filter(is_going).cloned().collect());
        for owner in owners {
            if !self.is_due(&owner, "orphan", COLLECTED) {
                continue;
            }
            let uid = text(&owner, "/metadata/uid");
            let is_it = |reference: &Value| reference["uid"] == uid;
            let (dependents, own) = self.server.look(|state| {
                let is_owned = |object: &Value| items(&object["metadata"]["ownerReferences"]).any(is_it);
                (paths(state, is_owned), paths(state, |object| text(object, "/metadata/uid") == uid))
            });
            for (_, path, _) in dependents {
                self.remove(&path, "ownerReferences", is_it);
            }
            for (_, path, _) in own {
                self.remove(&path, "finalizers", |one| one == "orphan");
            }
        }
    }

    /// Removes items of a list in an object's metadata.
    fn remove(&self, path: &str, list: &str, is_removed: impl Fn(&Value) -> bool) {
        let (_, object) = self.server.ask(WHO, &Method::GET, path, "", None);
        let left: Vec<&Value> = items(&object["metadata"][list]).filter(|item| !is_removed(item)).collect();
        self.server.merge(WHO, path, &json!({ "metadata": { list: left } }));
    }
}

/// Whether an object is being deleted and has this finalizer.
fn is_held(object: &Value, finalizer: &str) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
        && items(&object["metadata"]["finalizers"]).any(|one| one == finalizer)
}

/// Type, path, and whether it is being deleted, of each selected object.
fn paths(state: &State, is_selected: impl Fn(&Value) -> bool) -> Vec<(String, String, bool)> {
    let found = state.all().filter(|(_, object)| is_selected(object));
    found
        .map(|(plural, object)| {
            let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
            let version = text(object, "/apiVersion");
            let root = if version.contains('/') { "apis" } else { "api" };
            let short = plural.split('.').next().unwrap_or_default().to_owned();
            let place = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
            let is_going = !text(object, "/metadata/deletionTimestamp").is_empty();
            (plural, format!("/{root}/{version}{place}/{short}/{name}"), is_going)
        })
        .collect()
}

/// Whether a node matches a pod's selector and its required affinity to names and labels.
fn selects(pod: &Value, node: &Value) -> bool {
    let label = |key: &str| node["metadata"]["labels"][key].as_str();
    let by_selector = pod["spec"]["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| label(key) == value.as_str());
    let required =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let meets = |requirement: &Value, value: Option<&str>| {
        let listed = value.is_some_and(|value| items(&requirement["values"]).any(|one| one == value));
        match requirement["operator"].as_str().unwrap_or_default() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    let by_affinity = pod.pointer(required).and_then(Value::as_array).is_none_or(|terms| {
        terms.iter().any(|term| {
            items(&term["matchFields"]).all(|field| meets(field, node["metadata"]["name"].as_str()))
                && items(&term["matchExpressions"])
                    .all(|labels| meets(labels, label(labels["key"].as_str().unwrap_or_default())))
        })
    });
    by_selector && by_affinity
}

/// Whether a pod tolerates all taints of a node with these effects. A cordon counts as a taint.
fn tolerates(pod: &Value, node: &Value, effects: &[&str]) -> bool {
    let cordon = json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" });
    let taints =
        items(&node["spec"]["taints"]).chain((node["spec"]["unschedulable"] == true).then_some(&cordon));
    taints.filter(|taint| effects.iter().any(|effect| taint["effect"] == *effect)).all(|taint| {
        items(&pod["spec"]["tolerations"]).any(|toleration| {
            let field = |name: &str| toleration[name].as_str().unwrap_or_default();
            let by_key = field("key").is_empty() || taint["key"] == field("key");
            let by_effect = field("effect").is_empty() || taint["effect"] == field("effect");
            let by_value = field("operator") == "Exists"
                || field("value") == taint["value"].as_str().unwrap_or_default();
            by_key && by_effect && by_value
        })
    })
}
