//! The other actors of a cluster: the scheduler, kubelets, the node and pod garbage collectors, and users.

use jiff::SignedDuration;
use quintet_daemonjob::eligibility::{Eligibility, Placement};
use quintet_daemonjob::labels::NODE_NAME_ANNOTATION;
use quintet_runtime::model::core_types::{Phase, Pod};
use serde_json::{Value, json};

use crate::marks::{LABEL, TAINT};
use crate::server::Server;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A taint with which an autoscaler announces the deletion of a node.
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

fn disruption_target(json: &mut Value) {
    let mut conditions = json["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.push(json!({"type": "DisruptionTarget", "status": "True"}));
    json["status"]["conditions"] = json!(conditions);
}

/// The container ends, and so does the pod.
fn end(json: &mut Value, code: i32, reason: &str, at: &str) {
    let state = &mut json["status"]["containerStatuses"][0]["state"];
    // A container that never started has an end and no start.
    let started = state["running"]["startedAt"].clone();
    *state =
        json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": at}});
    json["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
}

fn restart(json: &mut Value, at: &str) {
    let container = &mut json["status"]["containerStatuses"][0];
    let started = container["state"]["running"]["startedAt"].clone();
    let count = container["restartCount"].as_u64().unwrap_or_default() + 1;
    *container = json!({
        "name": "c", "restartCount": count, "state": {"running": {"startedAt": at}},
        "lastState": {"terminated": {"exitCode": 1, "startedAt": started, "finishedAt": at}},
    });
}

impl Server {
    /// The names of the pods that match, in order.
    pub fn pods_that(&self, matches: impl Fn(&Pod) -> bool) -> Vec<String> {
        self.pods
            .objects
            .values()
            .filter(|pod| matches(&pod.seen))
            .map(|pod| pod.seen.meta.name.to_string())
            .collect()
    }

    /// Whether the node that a pod is bound to exists and is Ready.
    pub fn is_kept(&self, pod: &Pod) -> bool {
        pod.node
            .as_ref()
            .is_some_and(|node| self.nodes.objects.get(&**node).is_some_and(|node| node.seen.ready))
    }

    fn spec(&self, pod: &str) -> &Value {
        &self.pods.objects[pod].json["spec"]
    }

    fn is_restarted(&self, pod: &str) -> bool {
        self.spec(pod)["restartPolicy"] == "OnFailure"
    }

    /// The pods that the scheduler may bind.
    pub fn unbound(&self) -> Vec<String> {
        self.pods_that(|pod| pod.node.is_none() && pod.meta.deleted.is_none() && pod.phase == Phase::Pending)
    }

    /// The scheduler binds a pod to the node of its affinity, or sets the reason. `full`: no pod fits there.
    pub fn schedule(&mut self, pod: &str, full: bool) {
        let pin = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0";
        let pin = self.spec(pod).pointer(pin).unwrap();
        assert_eq!((&pin["key"], &pin["operator"]), (&json!("metadata.name"), &json!("In")));
        let name = pin["values"][0].as_str().unwrap().to_owned();
        let annotated =
            self.pods.objects[pod].json["metadata"]["annotations"][NODE_NAME_ANNOTATION].as_str().unwrap();
        assert_eq!(name, annotated, "a pod is pinned to the node of its annotation");
        let placement = Placement::of(self.spec(pod).as_object().unwrap());
        let node = self.nodes.objects.get(&name);
        let fits = !full && node.is_some_and(|node| placement.eligibility(&node.seen) == Eligibility::Run);
        self.edit_pod(pod, |json| {
            if fits {
                json["spec"]["nodeName"] = json!(name);
                json["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
                json["status"]["containerStatuses"] =
                    json!([{"name": "c", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]);
            } else {
                json["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "message": "0/3 nodes are available"}]);
            }
        });
    }

    /// The pods that their kubelet may start.
    pub fn startable(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.phase == Phase::Pending && pod.meta.deleted.is_none())
    }

    pub fn start(&mut self, pod: &str) {
        let at = self.node_stamp();
        self.edit_pod(pod, |json| {
            json["status"]["phase"] = json!("Running");
            json["status"]["containerStatuses"] =
                json!([{"name": "c", "restartCount": 0, "state": {"running": {"startedAt": at}}}]);
        });
    }

    /// The kubelet rejects a pod at admission. The pod fails, and no container starts.
    pub fn reject(&mut self, pod: &str) {
        let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"});
        self.edit_pod(pod, |json| json["status"] = status);
    }

    /// The pods whose containers run.
    pub fn running(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.phase == Phase::Running)
    }

    /// The container of a pod ends. If it fails, the kubelet restarts it according to the restart policy.
    pub fn finish(&mut self, pod: &str, well: bool) {
        let (at, restarts) = (self.node_stamp(), self.is_restarted(pod));
        let is_terminating = self.pods.objects[pod].seen.meta.deleted.is_some();
        self.edit_pod(pod, |json| match (well, restarts && !is_terminating) {
            (true, _) => end(json, 0, "Completed", &at),
            (false, true) => restart(json, &at),
            (false, false) => end(json, 1, "Error", &at),
        });
        self.confirm(pod);
    }

    /// The terminating pods that their kubelet has not ended yet.
    pub fn killable(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.is_running() && pod.meta.deleted.is_some())
    }

    pub fn kill(&mut self, pod: &str) {
        let at = self.node_stamp();
        self.edit_pod(pod, |json| end(json, 137, "Error", &at));
        self.confirm(pod);
    }

    /// The kubelet reports that no container of a terminating pod runs.
    fn confirm(&mut self, pod: &str) {
        if self.pods.objects[pod].seen.meta.deleted.is_some() {
            self.delete_pod(pod, Some(0));
        }
    }

    /// The kubelet evicts a pod because its node is short of a resource.
    pub fn evict(&mut self, pod: &str) {
        let at = self.node_stamp();
        self.edit_pod(pod, |json| {
            disruption_target(json);
            end(json, 137, "Error", &at);
            json["status"]["reason"] = json!("Evicted");
        });
        self.confirm(pod);
    }

    /// A drain evicts a pod through the API.
    pub fn drain(&mut self, pod: &str) {
        self.edit_pod(pod, disruption_target);
        self.delete_pod(pod, None);
    }

    /// The pods that the pod garbage collector deletes. Their Node was deleted, or they terminate on a node
    /// that is out of service, or they were deleted before they were bound.
    pub fn orphaned(&self) -> Vec<String> {
        self.pods_that(|pod| match &pod.node {
            Some(node) => {
                let is_released =
                    pod.meta.deleted.is_some() && !pod.is_running() && pod.meta.grace_seconds == 0;
                let node = self.nodes.objects.get(&**node);
                let is_lost = node.is_none_or(|node| {
                    let is_out = node.seen.taints.iter().any(|taint| *taint.key == *OUT_OF_SERVICE);
                    is_out && !node.seen.ready && pod.meta.deleted.is_some()
                });
                !is_released && is_lost
            }
            None => pod.meta.deleted.is_some() && pod.meta.grace_seconds > 0,
        })
    }

    pub fn collect_pod(&mut self, pod: &str) {
        if self.pods.objects[pod].seen.node.is_some() && self.pods.objects[pod].seen.is_running() {
            self.edit_pod(pod, |json| {
                disruption_target(json);
                json["status"]["phase"] = json!("Failed");
            });
        }
        self.delete_pod(pod, Some(0));
    }

    /// A Node is deleted and created again. `same`: the kubelet of the same machine registers again.
    pub fn replace_node(&mut self, name: &str, same: bool) {
        self.delete_node(name);
        self.wait(SignedDuration::from_secs(2));
        self.create_node(name);
        self.wait(SignedDuration::from_secs(2));
        if !same {
            self.lose_containers(name);
        }
    }

    /// The containers of a node are lost. Its kubelet restarts them according to the restart policy.
    pub fn lose_containers(&mut self, node: &str) {
        let at = self.node_stamp();
        for pod in self.pods_that(|pod| pod.node.as_deref() == Some(node) && pod.phase == Phase::Running) {
            let is_terminating = self.pods.objects[&pod].seen.meta.deleted.is_some();
            if self.is_restarted(&pod) && !is_terminating {
                self.edit_pod(&pod, |json| restart(json, &at));
            } else {
                self.edit_pod(&pod, |json| end(json, 137, "ContainerStatusUnknown", &at));
                self.confirm(&pod);
            }
        }
    }

    /// A node reboots so fast that it stays Ready.
    pub fn reboot(&mut self, node: &str) {
        let boot = self.new_id();
        self.wait(SignedDuration::from_secs(1));
        self.edit_node(node, |json| json["status"]["nodeInfo"]["bootID"] = json!(boot));
        self.lose_containers(node);
    }

    /// A node is reinstalled and keeps its Node object.
    pub fn reinstall(&mut self, node: &str) {
        let machine = self.new_id();
        self.edit_node(node, |json| json["status"]["nodeInfo"]["machineID"] = json!(machine));
        self.reboot(node);
    }

    /// A node shuts down gracefully: the kubelet reports that it is not Ready, and then ends its pods.
    pub fn shut_down(&mut self, node: &str) {
        self.set_ready(node, false);
        self.down.insert(node.to_owned());
        let at = self.node_stamp();
        for pod in self.pods_that(|pod| pod.node.as_deref() == Some(node) && pod.is_running()) {
            self.edit_pod(&pod, |json| {
                disruption_target(json);
                end(json, 137, "Error", &at);
                json["status"]["reason"] = json!("Terminated");
            });
            self.confirm(&pod);
        }
    }

    /// A node loses its power, and no kubelet reports the ends of its pods.
    pub fn die(&mut self, node: &str) {
        self.set_ready(node, false);
        self.down.insert(node.to_owned());
    }

    pub fn cordon(&mut self, node: &str, cordoned: bool) {
        self.edit_node(node, |json| json["spec"]["unschedulable"] = json!(cordoned));
    }

    /// A user adds a taint that no pod tolerates, or removes it.
    pub fn taint(&mut self, node: &str, effect: Option<&str>) {
        let taints = effect.map(|effect| json!({"key": "upkeep", "effect": effect}));
        self.replace_taints(node, &["upkeep"], taints);
    }

    /// An administrator puts a node into quarantine: a taint that a success removes, and no label.
    pub fn quarantine(&mut self, node: &str) {
        self.replace_taints(node, &[TAINT], Some(json!({"key": TAINT, "effect": "NoSchedule"})));
        self.edit_node(node, |json| {
            json["metadata"]["labels"].as_object_mut().unwrap().remove(LABEL);
        });
    }

    /// An autoscaler announces the deletion of a node, or cancels it.
    pub fn mark_for_deletion(&mut self, node: &str, is_marked: bool) {
        let taint = is_marked.then(|| json!({"key": LEAVING, "effect": "NoSchedule"}));
        self.replace_taints(node, &[LEAVING], taint);
    }

    /// A user deletes a Node that has a finalizer and is removed later.
    pub fn begin_to_delete_node(&mut self, node: &str) {
        let stamp = self.node_stamp();
        self.edit_node(node, |json| json["metadata"]["deletionTimestamp"] = json!(stamp));
    }

    /// A user declares that a node that is not Ready is out of service. Its pods are deleted.
    pub fn take_out_of_service(&mut self, node: &str) {
        if self.nodes.objects[node].seen.ready {
            return;
        }
        let taint = json!({"key": OUT_OF_SERVICE, "effect": "NoExecute"});
        self.replace_taints(node, &[OUT_OF_SERVICE], Some(taint));
        for pod in self.pods_that(|pod| pod.node.as_deref() == Some(node) && pod.meta.deleted.is_none()) {
            self.delete_pod(&pod, None);
        }
    }

    /// A user moves a node into or out of the pool that the template selects.
    pub fn select(&mut self, node: &str, is_selected: bool) {
        self.edit_node(node, |json| {
            json["metadata"]["labels"]["pool"] = json!(if is_selected { "a" } else { "b" });
        });
    }

    /// The kubelet of a node stops reporting, or reports again.
    pub fn set_ready(&mut self, node: &str, ready: bool) {
        let key = "node.kubernetes.io/not-ready";
        let taints =
            [json!({"key": key, "effect": "NoSchedule"}), json!({"key": key, "effect": "NoExecute"})];
        self.edit_node(node, |json| {
            json["status"]["conditions"][0]["status"] = json!(if ready { "True" } else { "Unknown" });
        });
        // The node controller follows the condition.
        self.replace_taints(node, &[key, OUT_OF_SERVICE], taints.into_iter().filter(|_| !ready));
        if ready && self.down.remove(node) {
            self.reboot(node);
        }
    }

    fn replace_taints(&mut self, node: &str, keys: &[&str], taints: impl IntoIterator<Item = Value>) {
        self.edit_node(node, |json| {
            let list = json["spec"]["taints"].as_array_mut().unwrap();
            list.retain(|taint| !keys.contains(&taint["key"].as_str().unwrap()));
            list.extend(taints);
        });
    }

    /// Every node is Ready and not cordoned, and has no taint except that of a quarantine. Terminating Nodes are
    /// removed.
    pub fn heal_nodes(&mut self) {
        for node in self.nodes.objects.keys().cloned().collect::<Vec<_>>() {
            if self.nodes.objects[&node].seen.meta.deleted.is_some() {
                self.delete_node(&node);
            }
        }
        for node in self.nodes.objects.keys().cloned().collect::<Vec<_>>() {
            self.set_ready(&node, true);
            self.cordon(&node, false);
            self.edit_node(&node, |json| {
                json["spec"]["taints"].as_array_mut().unwrap().retain(|taint| taint["key"] == TAINT);
            });
        }
    }
}
