//! Everyone else who acts in a cluster: the scheduler, kubelets, the pod garbage collector, and people.

use jiff::SignedDuration;
use quintet_daemonjob::nodes::{Placement, Verdict};
use quintet_daemonjob::survey::NODE_NAME_ANNOTATION;
use quintet_kit::types::{Phase, Pod};
use serde_json::{Value, json};

use crate::server::Server;

fn disruption_target(json: &mut Value) {
    let mut conditions = json["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.push(json!({"type": "DisruptionTarget", "status": "True"}));
    json["status"]["conditions"] = json!(conditions);
}

/// The container ends, and with it the pod.
fn end(json: &mut Value, code: i32, reason: &str, at: &str) {
    let state = &mut json["status"]["containerStatuses"][0]["state"];
    // One that never started has no start; the kubelet tells its end all the same.
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
    /// The names of the pods that pass, by name.
    pub fn pods_that(&self, wanted: impl Fn(&Pod) -> bool) -> Vec<String> {
        self.pods
            .objects
            .values()
            .filter(|pod| wanted(&pod.seen))
            .map(|pod| pod.seen.meta.name.to_string())
            .collect()
    }

    /// Whether the kubelet of the node that a pod is bound to is there and answers.
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

    /// Pods that the scheduler looks at.
    pub fn unbound(&self) -> Vec<String> {
        self.pods_that(|pod| pod.node.is_none() && pod.meta.deleted.is_none() && pod.phase == Phase::Pending)
    }

    /// The scheduler binds a pod to the node that it is pinned to, or says why not. `full`: nothing fits there.
    pub fn schedule(&mut self, pod: &str, full: bool) {
        let pin = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0";
        let pin = self.spec(pod).pointer(pin).unwrap();
        assert_eq!((&pin["key"], &pin["operator"]), (&json!("metadata.name"), &json!("In")));
        let name = pin["values"][0].as_str().unwrap().to_owned();
        let told =
            self.pods.objects[pod].json["metadata"]["annotations"][NODE_NAME_ANNOTATION].as_str().unwrap();
        assert_eq!(name, told, "a pod is pinned to the node that it says");
        let placement = Placement::of(self.spec(pod).as_object().unwrap());
        let node = self.nodes.objects.get(&name);
        let fits = !full && node.is_some_and(|node| placement.verdict(&node.seen) == Verdict::Run);
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

    /// Pods that their kubelet may start.
    pub fn startable(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.phase == Phase::Pending && pod.meta.deleted.is_none())
    }

    pub fn start(&mut self, pod: &str) {
        let at = self.stamp();
        self.edit_pod(pod, |json| {
            json["status"]["phase"] = json!("Running");
            json["status"]["containerStatuses"] =
                json!([{"name": "c", "restartCount": 0, "state": {"running": {"startedAt": at}}}]);
        });
    }

    /// The kubelet does not admit a pod: it fails without having started.
    pub fn reject(&mut self, pod: &str) {
        self.edit_pod(pod, |json| json["status"] = json!({"phase": "Failed", "reason": "OutOfcpu"}));
    }

    /// Pods whose containers run.
    pub fn running(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.phase == Phase::Running)
    }

    /// The container of a pod ends: with success, or badly, when it is started again or the pod has failed.
    pub fn finish(&mut self, pod: &str, well: bool) {
        let (at, restarts) = (self.stamp(), self.is_restarted(pod));
        let is_terminating = self.pods.objects[pod].seen.meta.deleted.is_some();
        self.edit_pod(pod, |json| match (well, restarts && !is_terminating) {
            (true, _) => end(json, 0, "Completed", &at),
            (false, true) => restart(json, &at),
            (false, false) => end(json, 1, "Error", &at),
        });
        self.confirm(pod);
    }

    /// Terminating pods that their kubelet has not ended yet.
    pub fn killable(&self) -> Vec<String> {
        self.pods_that(|pod| self.is_kept(pod) && pod.is_running() && pod.meta.deleted.is_some())
    }

    /// The kubelet kills a terminating pod.
    pub fn kill(&mut self, pod: &str) {
        let at = self.stamp();
        self.edit_pod(pod, |json| end(json, 137, "Error", &at));
        self.confirm(pod);
    }

    /// The kubelet says that nothing of a terminating pod runs any more: it goes, unless a finalizer holds it.
    fn confirm(&mut self, pod: &str) {
        if self.pods.objects[pod].seen.meta.deleted.is_some() {
            self.delete_pod(pod, Some(0));
        }
    }

    /// The kubelet evicts a pod because its node is short of something.
    pub fn evict(&mut self, pod: &str) {
        let at = self.stamp();
        self.edit_pod(pod, |json| {
            disruption_target(json);
            end(json, 137, "Error", &at);
            json["status"]["reason"] = json!("Evicted");
        });
        self.confirm(pod);
    }

    /// A drain evicts a pod by the API.
    pub fn drain(&mut self, pod: &str) {
        self.edit_pod(pod, disruption_target);
        self.delete_pod(pod, None);
    }

    /// Pods that the pod garbage collector takes: their node is gone, or they were deleted before they had one.
    pub fn orphaned(&self) -> Vec<String> {
        self.pods_that(|pod| match &pod.node {
            Some(node) => {
                let is_let_go =
                    pod.meta.deleted.is_some() && !pod.is_running() && pod.meta.grace_seconds == 0;
                !is_let_go && !self.nodes.objects.contains_key(&**node)
            }
            None => pod.meta.deleted.is_some() && pod.meta.grace_seconds > 0,
        })
    }

    pub fn collect_pod(&mut self, pod: &str) {
        let seen = self.pods.objects[pod].seen.clone();
        if seen.node.is_some() && seen.is_running() {
            self.edit_pod(pod, |json| {
                disruption_target(json);
                json["status"]["phase"] = json!("Failed");
            });
        }
        self.delete_pod(pod, Some(0));
    }

    /// A node goes and another of the same name comes. `same`: it is the same machine, which registers anew.
    pub fn replace_node(&mut self, name: &str, same: bool) {
        self.delete_node(name);
        self.wait(SignedDuration::from_secs(2));
        self.create_node(name);
        self.wait(SignedDuration::from_secs(2));
        if !same {
            self.lose_containers(name);
        }
    }

    /// The containers of a node are lost: its kubelet starts them again where the pod says so.
    pub fn lose_containers(&mut self, node: &str) {
        let at = self.stamp();
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

    pub fn reboot(&mut self, node: &str) {
        let boot = self.boot_id();
        self.wait(SignedDuration::from_secs(1));
        self.edit_node(node, |json| json["status"]["nodeInfo"]["bootID"] = json!(boot));
        self.lose_containers(node);
    }

    pub fn cordon(&mut self, node: &str, cordoned: bool) {
        self.edit_node(node, |json| json["spec"]["unschedulable"] = json!(cordoned));
    }

    /// A node gets a taint that no pod tolerates, or is freed of all of them.
    pub fn taint(&mut self, node: &str, effect: Option<&str>) {
        let taints: Vec<Value> =
            effect.iter().map(|effect| json!({"key": "upkeep", "effect": effect})).collect();
        self.edit_node(node, |json| json["spec"]["taints"] = json!(taints));
    }

    /// The kubelet of a node answers no more, or again.
    pub fn set_ready(&mut self, node: &str, ready: bool) {
        let key = "node.kubernetes.io/not-ready";
        let taints =
            [json!({"key": key, "effect": "NoSchedule"}), json!({"key": key, "effect": "NoExecute"})];
        let taints = if ready { &[][..] } else { &taints[..] };
        self.edit_node(node, |json| {
            json["status"]["conditions"][0]["status"] = json!(if ready { "True" } else { "Unknown" });
            json["spec"]["taints"] = json!(taints);
        });
    }
}
