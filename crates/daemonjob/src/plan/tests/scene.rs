//! A cluster in a test: nodes and pods that change, and a manager that reconciles repeatedly.

use super::*;
use crate::clocks::Clocks;
use crate::labels::{
    MACHINE_ID_ANNOTATION, NODE_READY_ANNOTATION, ROLLOUT_ANNOTATION, RUN_ANNOTATION, number_of,
};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The state of the cluster, and the seconds since [`START`].
pub struct Scene {
    pub job: DaemonJob,
    pub world: World,
    pub second: i64,
}

/// A DaemonJob that stops at the first failed node.
pub fn cautious(more: &Value) -> DaemonJob {
    let mut spec = json!({"parallelism": 1, "backoffLimit": 0, "failurePolicy": {"type": "Pause"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    with(&spec)
}

impl Scene {
    /// A new DaemonJob, and nodes that are Ready.
    pub fn new(job: DaemonJob, nodes: &[&str]) -> Self {
        let mut scene = Self { job, world: world(nodes, vec![]), second: 0 };
        scene.pass();
        scene
    }

    pub fn now(&self) -> Timestamp {
        later(self.second)
    }

    /// Reconciles, and applies the plan to the status, the ledger and the pods. Deleted pods are terminating.
    /// A terminating pod without a finalizer that has ended disappears.
    pub fn pass(&mut self) -> Plan<DaemonJobStatus> {
        let steady = SignedDuration::from_secs(self.second);
        let mut clocks = self.world.clocks.clone();
        clocks.step(&self.job, &self.world, (self.now(), steady));
        self.world.clocks = clocks;
        let plan = plan(&self.job, &self.world, self.now());
        let old = std::mem::take(&mut self.world);
        self.world = recorded(&self.job, old, &plan);
        for action in plan.steps.iter().flatten() {
            self.carry_out(action);
        }
        if let Some(status) = &plan.status {
            self.job.status = Some(status.clone());
        }
        plan
    }

    fn carry_out(&mut self, action: &Action<DaemonJobStatus>) {
        match action {
            Action::Create { resource: CONFIG_MAPS, .. }
            | Action::MergePatch { resource: CONFIG_MAPS, .. } => {
                self.world.clocks.ledger_written(self.now());
            }
            Action::Create { resource: PODS, body, .. } => {
                let mut body = body.value();
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                body["metadata"]["uid"] = json!(format!("pod-{name}"));
                body["metadata"]["resourceVersion"] = json!("1");
                body["metadata"]["creationTimestamp"] = json!(self.now().to_string());
                body["status"] = json!({"phase": "Pending"});
                self.world.pods.push(Arc::new(serde_json::from_value(body).unwrap()));
            }
            Action::MergePatch { resource: PODS, name, body, .. } => {
                let word = body["metadata"]["annotations"][DELETED_FOR_ANNOTATION].as_str();
                self.edit_pod_named(name, |pod| {
                    let kept = pod.meta.annotations.iter().filter(|(key, _)| *key != DELETED_FOR_ANNOTATION);
                    let marked = word.map(|word| (DELETED_FOR_ANNOTATION, word));
                    pod.meta.annotations = kept.chain(marked).collect();
                });
            }
            Action::Delete { name, .. } => {
                let now = self.now();
                self.edit_pod_named(name, |pod| pod.meta.deleted = Some(now));
                let is_over =
                    |pod: &Pod| *pod.meta.name == **name && (pod.node.is_none() || !pod.is_running());
                self.world.pods.retain(|pod| !is_over(pod) || pod.meta.has_finalizer(FINALIZER));
                self.world.clocks.pods_tidied(now);
            }
            Action::JsonPatch { name, .. } => {
                self.edit_pod_named(name, |pod| pod.meta.finalizers = Box::default());
                self.world.pods.retain(|pod| *pod.meta.name != **name || pod.meta.deleted.is_none());
                self.world.clocks.pods_tidied(self.now());
            }
            _ => {}
        }
    }

    /// Reconciles until nothing changes. Returns the nodes of the created pods.
    pub fn passes(&mut self) -> Vec<String> {
        let mut made = Vec::new();
        for _ in 0..10 {
            made.extend(created(&self.pass()));
        }
        made
    }

    /// Advances the time and reconciles.
    pub fn wait(&mut self, seconds: i64) -> Vec<String> {
        self.second += seconds;
        self.passes()
    }

    fn edit_pod_named(&mut self, name: &str, edit: impl FnOnce(&mut Pod)) {
        let pod = self.world.pods.iter_mut().find(|pod| *pod.meta.name == *name).unwrap();
        edit(Arc::make_mut(pod));
    }

    /// The last pod for this node name.
    pub fn pod(&self, node: &str) -> &Arc<Pod> {
        let pods = self.world.pods.iter().filter(|pod| pinned_to(pod) == Some(node));
        pods.max_by_key(|pod| number_of(pod)).unwrap_or_else(|| panic!("{node} has no pod"))
    }

    pub fn edit_pod(&mut self, node: &str, edit: impl FnOnce(&mut Pod)) {
        let name = self.pod(node).meta.name.clone();
        self.edit_pod_named(&name, edit);
    }

    /// The scheduler binds the pod and the kubelet starts it.
    pub fn run(&mut self, node: &str) {
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.node, pod.phase, pod.started) = (Some(node.into()), Phase::Running, Some(now));
            pod.has_running_container = true;
        });
        self.passes();
    }

    /// The pod ends. If it is Pending, it runs first.
    pub fn end(&mut self, node: &str, phase: Phase) {
        if self.pod(node).phase == Phase::Pending {
            self.run(node);
        }
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.phase, pod.finished, pod.has_running_container) = (phase, Some(now), false);
        });
        self.passes();
    }

    pub fn fail(&mut self, node: &str) {
        self.end(node, Phase::Failed);
    }

    pub fn succeed(&mut self, node: &str) {
        self.end(node, Phase::Succeeded);
    }

    /// The pod is evicted.
    pub fn evict(&mut self, node: &str) {
        if self.pod(node).phase == Phase::Pending {
            self.run(node);
        }
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.phase, pod.disrupted, pod.finished) = (Phase::Failed, true, Some(now));
            pod.has_running_container = false;
        });
        self.passes();
    }

    /// The kubelet rejects the pod.
    pub fn reject(&mut self, node: &str) {
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.node, pod.phase, pod.finished) = (Some(node.into()), Phase::Failed, Some(now));
            pod.rejection = Some("OutOfpods: too many pods".into());
        });
        self.passes();
    }

    pub fn edit_node(&mut self, node: &str, edit: impl FnOnce(&mut Node)) {
        let node = self.world.nodes.iter_mut().find(|one| *one.meta.name == *node).unwrap();
        edit(Arc::make_mut(node));
        self.passes();
    }

    fn taint_with(&mut self, node: &str, key: &str) {
        let taint = json!({"key": key, "effect": "NoSchedule"});
        self.edit_node(node, |node| {
            let taints = node.taints.iter().cloned().chain([serde_json::from_value(taint).unwrap()]);
            node.taints = taints.collect();
        });
    }

    /// The kubelet of the node stops reporting.
    pub fn kill(&mut self, node: &str) {
        let name = node.to_owned();
        let at = self.world.nodes.iter().position(|one| *one.meta.name == *name).unwrap();
        Arc::make_mut(&mut self.world.nodes[at]).ready = false;
        self.taint_with(node, NOT_READY);
    }

    /// The node is Ready again.
    pub fn heal(&mut self, node: &str) {
        self.edit_node(node, |node| {
            node.ready = true;
            node.taints = node.taints.iter().filter(|taint| &*taint.key != NOT_READY).cloned().collect();
        });
    }

    /// An administrator taints the node.
    pub fn taint(&mut self, node: &str) {
        self.taint_with(node, "upkeep");
    }

    pub fn untaint(&mut self, node: &str) {
        self.edit_node(node, |node| {
            node.taints = node.taints.iter().filter(|taint| &*taint.key != "upkeep").cloned().collect();
        });
    }

    /// The Node is deleted, and Kubernetes' pod garbage collector ends its pods.
    pub fn delete_node(&mut self, node: &str) {
        self.world.nodes.retain(|one| *one.meta.name != *node);
        self.passes();
        let now = self.now();
        for pod in &mut self.world.pods {
            if pod.node.as_deref() == Some(node) {
                let pod = Arc::make_mut(pod);
                if pod.is_running() {
                    (pod.phase, pod.disrupted) = (Phase::Failed, true);
                }
                pod.meta.deleted = Some(now);
            }
        }
        self.passes();
    }

    /// Another client deletes the pod, which has not run.
    pub fn delete_pod(&mut self, node: &str) {
        let now = self.now();
        self.edit_pod(node, |pod| pod.meta.deleted = Some(now));
        self.passes();
    }

    /// A Node of this name is created, with another UID.
    pub fn create_node(&mut self, name: &str, uid: &str) {
        let mut new = (*node(name)).clone();
        (new.meta.uid, new.meta.created) = (uid.into(), Some(self.now()));
        self.world.nodes.push(Arc::new(new));
        self.passes();
    }

    /// The user changes the spec.
    pub fn edit(&mut self, edit: impl FnOnce(&mut DaemonJob)) {
        edit(&mut self.job);
        self.job.metadata.generation = self.job.metadata.generation.map(|generation| generation + 1);
        self.passes();
    }

    pub fn use_template(&mut self, image: &str) {
        self.edit(|job| job.spec.template.0["spec"]["containers"][0]["image"] = json!(image));
    }

    /// Another process becomes the leader, with empty clocks.
    pub fn change_leader(&mut self) {
        self.world.clocks = Clocks::default();
        self.passes();
    }

    pub fn status(&self) -> &DaemonJobStatus {
        self.job.status.as_ref().unwrap()
    }

    /// Status and reason of a condition, or False if it is absent.
    pub fn condition(&self, type_: &str) -> (bool, &str) {
        let condition = self.status().conditions.iter().find(|one| one.type_ == type_);
        condition.map_or((false, ""), |one| (one.status == "True", one.reason.as_str()))
    }

    /// The reason of a node in a list of the status.
    pub fn reason(&self, node: &str) -> Option<&str> {
        state(self.status(), node)
    }

    /// Whether failed nodes stop the rollout.
    pub fn is_braked(&self) -> bool {
        self.condition("Paused") == (true, "MaxFailedNodesExceeded")
    }

    /// The lines that count deleted nodes.
    pub fn gone_lines(&self) -> impl Iterator<Item = &Gone> {
        self.world.ledger.iter().map(|shard| shard.gone.as_ref().unwrap())
    }

    /// The line of a node in the ledger.
    pub fn line(&self, uid: &str) -> Option<String> {
        let entry = self.world.ledger.iter().find_map(|shard| shard.entries.get(uid))?;
        Some(entry.as_ref().unwrap().to_string())
    }
}

/// Annotations of a pod that a test creates directly.
pub fn annotate(pod: &mut Pod, rollout: u64, run: u64) {
    let (rollout, run) = (rollout.to_string(), run.to_string());
    let name = pinned_to(pod).unwrap_or_default().to_owned();
    pod.meta.annotations = [
        (NODE_NAME_ANNOTATION, name.as_str()),
        (ROLLOUT_ANNOTATION, rollout.as_str()),
        (RUN_ANNOTATION, run.as_str()),
        (NODE_READY_ANNOTATION, "true"),
        (MACHINE_ID_ANNOTATION, ""),
    ]
    .into();
}
