//! A cluster in a test: nodes and pods that change, and a manager that reconciles repeatedly.
//!
//! Events return the scene, so that a test is a chain of events. After each event the manager reconciles until
//! nothing changes, except after an event whose name ends in `unseen`, `tick` and [`Scene::edit_pod`].

use super::*;
use crate::api::Rollout;
use crate::labels::{
    APPROVED_ANNOTATION, MACHINE_ID_ANNOTATION, NODE_READY_ANNOTATION, PAUSED_ANNOTATION, ROLLOUT_ANNOTATION,
    RUN_ANNOTATION,
};
use quintet_runtime::model::object::Pairs;

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The taint that an administrator sets.
const UPKEEP: &str = "upkeep";

/// An event of a node or of its pod.
pub type Event = for<'s> fn(&'s mut Scene, &str) -> &'s mut Scene;

/// The state of the cluster, and the seconds since [`START`].
pub struct Scene {
    pub job: DaemonJob,
    pub world: World,
    pub second: i64,
}

/// A DaemonJob that stops at the first failed node.
pub fn cautious(more: &Value) -> DaemonJob {
    let spec = json!({"parallelism": 1, "backoffLimit": 0, "failurePolicy": {"type": "Pause"}});
    with(&merged(spec, more))
}

/// Lets the failure policy tolerate this number of failed nodes.
pub fn tolerate(job: &mut DaemonJob, nodes: i32) {
    job.spec.failure_policy.as_mut().unwrap().max_failed_nodes = Some(IntOrString::Int(nodes));
}

pub fn add_taint(node: &mut Node, key: &str) {
    node.taints = node.taints.iter().cloned().chain([taint(key, "NoSchedule")]).collect();
}

fn remove_taint(node: &mut Node, key: &str) {
    node.taints = node.taints.iter().filter(|taint| &*taint.key != key).cloned().collect();
}

/// Applies a JSON patch of a Node, which must fit: maps of metadata, and the removal of taints.
fn apply_mark(node: &mut Node, operations: &Value) {
    let of = |path: &str, prefix: &str| path.strip_prefix(prefix).map(|key| key.replace("~1", "/"));
    let with = |pairs: &Pairs, key: &str, value: &str| {
        pairs.iter().filter(|(known, _)| *known != key).chain([(key, value)]).collect::<Pairs>()
    };
    for operation in operations.as_array().unwrap() {
        let (op, path, value) = (&operation["op"], operation["path"].as_str().unwrap(), &operation["value"]);
        if op == "remove" {
            let at: usize = of(path, "/spec/taints/").unwrap().parse().unwrap();
            let mut taints = node.taints.to_vec();
            taints.remove(at);
            node.taints = taints.into();
        } else if op == "add" && path == "/metadata/annotations" {
            let pairs = value.as_object().unwrap().iter();
            node.meta.annotations = pairs.map(|(key, text)| (key.as_str(), text.as_str().unwrap())).collect();
            node.has_annotations = true;
        } else if op == "add"
            && let Some(key) = of(path, "/metadata/annotations/")
        {
            node.meta.annotations = with(&node.meta.annotations, &key, value.as_str().unwrap());
        } else if op == "add"
            && let Some(key) = of(path, "/metadata/labels/")
        {
            node.meta.labels = with(&node.meta.labels, &key, value.as_str().unwrap());
        }
    }
}

/// The constructors.
impl Scene {
    /// A DaemonJob that no manager has seen yet, and these nodes, which are Ready.
    pub fn unseen(job: DaemonJob, nodes: &[&str]) -> Self {
        Self { job, world: world(nodes, []), second: 0 }
    }

    /// The same after one reconcile.
    pub fn new(job: DaemonJob, nodes: &[&str]) -> Self {
        let mut scene = Self::unseen(job, nodes);
        scene.pass();
        scene
    }

    /// The same after the first pods were created.
    pub fn begun(job: DaemonJob, nodes: &[&str]) -> Self {
        let mut scene = Self::new(job, nodes);
        scene.passes();
        scene
    }

    /// A DaemonJob that stops at the first failed node, after its first pods were created.
    pub fn cautious(nodes: &[&str]) -> Self {
        Self::cautious_with(&json!({}), nodes)
    }

    /// The same with these fields of the spec.
    pub fn cautious_with(more: &Value, nodes: &[&str]) -> Self {
        Self::begun(cautious(more), nodes)
    }

    /// A DaemonJob that no manager has seen yet, and existing pods: their nodes, numbers and phases.
    pub fn with_pods(job: DaemonJob, nodes: &[&str], pods: &[(&str, u64, &str)]) -> Self {
        let mut scene = Self::unseen(job, nodes);
        scene.set_pods(pods);
        scene
    }

    /// The same after the status was written, and nothing else.
    pub fn started(job: DaemonJob, nodes: &[&str], pods: &[(&str, u64, &str)]) -> Self {
        let mut scene = Self::with_pods(job, nodes, pods);
        scene.write_status();
        scene
    }

    /// The same after the status and the ledger were written.
    pub fn settled(job: DaemonJob, nodes: &[&str], pods: &[(&str, u64, &str)]) -> Self {
        let mut scene = Self::with_pods(job, nodes, pods);
        scene.settle();
        scene
    }
}

/// Single plans, which have no effect unless the test applies them.
impl Scene {
    pub fn now(&self) -> Timestamp {
        later(self.second)
    }

    pub fn plan(&self) -> Plan<DaemonJobStatus> {
        self.plan_at(self.second)
    }

    pub fn plan_at(&self, second: i64) -> Plan<DaemonJobStatus> {
        plan(&self.job, &self.world, later(second))
    }

    /// Time passes without a reconcile.
    pub fn tick(&mut self, seconds: i64) -> &mut Self {
        self.second += seconds;
        self
    }

    pub fn pod_of(&self, node: &str, number: u64, phase: &str) -> Pod {
        pod(&self.job, node, number, phase)
    }

    /// Replaces all pods.
    pub fn set_pods(&mut self, pods: &[(&str, u64, &str)]) -> &mut Self {
        let pods = pods.iter().map(|(node, number, phase)| Arc::new(self.pod_of(node, *number, phase)));
        self.world.pods = pods.collect();
        self
    }

    /// Applies only the status of a plan.
    pub fn write_status(&mut self) -> &mut Self {
        self.job.status = self.plan().status;
        self
    }

    /// Applies only the ledger steps of a plan.
    pub fn record(&mut self, plan: &Plan<DaemonJobStatus>) {
        let old = std::mem::take(&mut self.world);
        self.world = recorded(&self.job, old, plan);
    }

    /// Applies the status and the ledger steps until neither changes.
    pub fn settle(&mut self) -> &mut Self {
        for _ in 0..5 {
            let plan = self.plan();
            self.record(&plan);
            self.job.status = plan.status;
        }
        self
    }
}

/// The manager.
impl Scene {
    /// Reconciles, and applies the plan to the status, the ledger and the pods. Deleted pods are terminating.
    /// A terminating pod without a finalizer that has ended disappears.
    pub fn pass(&mut self) -> Plan<DaemonJobStatus> {
        self.step_clocks();
        let plan = self.plan();
        self.record(&plan);
        for action in plan.steps.iter().flatten() {
            self.carry_out(action);
        }
        if plan.steps.is_empty() {
            plan.background.iter().for_each(|action| self.carry_out(action));
        }
        if let Some(status) = &plan.status {
            self.job.status = Some(status.clone());
        }
        plan
    }

    /// Measures how long nodes have been unhealthy and pods have been pending, and updates the index.
    pub fn step_clocks(&mut self) {
        let steady = SignedDuration::from_secs(self.second);
        let mut clocks = self.world.clocks.clone();
        clocks.step(&self.job, &self.world, (self.now(), steady));
        self.world.clocks = clocks;
        let hash = self.job.spec.template.hash();
        let index = self.world.indexed(&hash);
        self.world.index = Arc::default();
        assert_eq!(index, self.world.indexed(&hash), "the updated index differs from a rebuilt one");
        self.world.index = index;
    }

    fn carry_out(&mut self, action: &Action<DaemonJobStatus>) {
        match action {
            Action::Create { resource: CONFIG_MAPS, .. }
            | Action::MergePatch { resource: CONFIG_MAPS, .. } => {
                self.world.clocks.flushed = Some(self.now());
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
                self.world.clocks.tidied = Some(now);
            }
            Action::JsonPatch { resource: NODES, name, operations, .. } => {
                self.edit_node_unseen(name, |node| apply_mark(node, operations));
            }
            Action::JsonPatch { name, .. } => {
                self.edit_pod_named(name, |pod| pod.meta.finalizers = Box::default());
                self.world.pods.retain(|pod| *pod.meta.name != **name || pod.meta.deleted.is_none());
                self.world.clocks.tidied = Some(self.now());
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

    fn after_passes(&mut self) -> &mut Self {
        self.passes();
        self
    }

    /// Advances the time and reconciles. Returns the nodes of the created pods.
    pub fn wait(&mut self, seconds: i64) -> Vec<String> {
        self.second += seconds;
        self.passes()
    }

    /// Advances the time and reconciles.
    pub fn after(&mut self, seconds: i64) -> &mut Self {
        self.tick(seconds).after_passes()
    }

    /// Whether the manager creates no pod while it waits for each of these times in turn.
    pub fn is_idle_for(&mut self, waits: &[i64]) -> bool {
        waits.iter().all(|seconds| self.wait(*seconds).is_empty())
    }

    /// Whether failed nodes stop the rollout now and after each of these waits, without a new pod.
    pub fn stays_braked(&mut self, waits: &[i64]) -> bool {
        self.is_braked() && waits.iter().all(|seconds| self.wait(*seconds).is_empty() && self.is_braked())
    }

    /// Reconciles once, and the process dies before its writes to Nodes.
    pub fn die_before_marks(&mut self) -> &mut Self {
        let nodes = self.world.nodes.clone();
        self.pass();
        self.world.nodes = nodes;
        self.world.clocks = Clocks::default();
        self
    }

    /// Another process becomes the leader, with empty clocks.
    pub fn change_leader(&mut self) -> &mut Self {
        self.world.clocks = Clocks::default();
        self.after_passes()
    }
}

/// Events of pods.
impl Scene {
    fn edit_pod_named(&mut self, name: &str, edit: impl FnOnce(&mut Pod)) {
        let pod = self.world.pods.iter_mut().find(|pod| *pod.meta.name == *name).unwrap();
        edit(Arc::make_mut(pod));
    }

    /// The last pod for this node name.
    pub fn pod(&self, node: &str) -> &Arc<Pod> {
        let pods = self.world.pods.iter().filter(|pod| pinned_to(pod) == Some(node));
        pods.max_by_key(|pod| number_of(pod)).unwrap_or_else(|| panic!("{node} has no pod"))
    }

    /// Changes the last pod without a reconcile.
    pub fn edit_pod(&mut self, node: &str, edit: impl FnOnce(&mut Pod)) -> &mut Self {
        let name = self.pod(node).meta.name.clone();
        self.edit_pod_named(&name, edit);
        self
    }

    /// The same event for each of these nodes.
    pub fn each(&mut self, nodes: &[&str], event: Event) -> &mut Self {
        for node in nodes {
            event(self, node);
        }
        self
    }

    /// The scheduler binds the pod and the kubelet starts it.
    pub fn run(&mut self, node: &str) -> &mut Self {
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.node, pod.phase, pod.started) = (Some(node.into()), Phase::Running, Some(now));
            pod.has_running_container = true;
        });
        self.after_passes()
    }

    /// The pod runs, if it is Pending.
    fn run_pending(&mut self, node: &str) {
        if self.pod(node).phase == Phase::Pending {
            self.run(node);
        }
    }

    /// The pod ends, and the manager does not reconcile yet.
    pub fn end_unseen(&mut self, node: &str, phase: Phase) -> &mut Self {
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.phase, pod.finished, pod.has_running_container) = (phase, Some(now), false);
        })
    }

    /// The pod is evicted, and the manager does not reconcile yet.
    pub fn evict_unseen(&mut self, node: &str) -> &mut Self {
        self.end_unseen(node, Phase::Failed).edit_pod(node, |pod| pod.disrupted = true)
    }

    /// The pod fails. If it is Pending, it runs first.
    pub fn fail(&mut self, node: &str) -> &mut Self {
        self.run_pending(node);
        self.end_unseen(node, Phase::Failed).after_passes()
    }

    /// The pod succeeds. If it is Pending, it runs first.
    pub fn succeed(&mut self, node: &str) -> &mut Self {
        self.run_pending(node);
        self.end_unseen(node, Phase::Succeeded).after_passes()
    }

    /// The pod is evicted. If it is Pending, it runs first.
    pub fn evict(&mut self, node: &str) -> &mut Self {
        self.run_pending(node);
        self.evict_unseen(node).after_passes()
    }

    /// The kubelet rejects the pod.
    pub fn reject(&mut self, node: &str) -> &mut Self {
        let now = self.now();
        self.edit_pod(node, |pod| {
            (pod.node, pod.phase, pod.finished) = (Some(node.into()), Phase::Failed, Some(now));
            pod.rejection = Some("OutOfpods: too many pods".into());
        });
        self.after_passes()
    }

    /// Another client deletes the pod, which has not run.
    pub fn delete_pod(&mut self, node: &str) -> &mut Self {
        let now = self.now();
        self.edit_pod(node, |pod| pod.meta.deleted = Some(now)).after_passes()
    }
}

/// Events of nodes.
impl Scene {
    /// Changes a node without a reconcile.
    pub fn edit_node_unseen(&mut self, node: &str, edit: impl FnOnce(&mut Node)) -> &mut Self {
        let node = self.world.nodes.iter_mut().find(|one| *one.meta.name == *node).unwrap();
        edit(Arc::make_mut(node));
        self
    }

    pub fn edit_node(&mut self, node: &str, edit: impl FnOnce(&mut Node)) -> &mut Self {
        self.edit_node_unseen(node, edit).after_passes()
    }

    /// The kubelet of the node stops reporting, and the manager does not reconcile yet.
    pub fn kill_unseen(&mut self, node: &str) -> &mut Self {
        self.edit_node_unseen(node, |node| {
            node.ready = false;
            add_taint(node, NOT_READY);
        })
    }

    /// The kubelet of the node stops reporting.
    pub fn kill(&mut self, node: &str) -> &mut Self {
        self.kill_unseen(node).after_passes()
    }

    /// The node is Ready again.
    pub fn heal(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| {
            node.ready = true;
            remove_taint(node, NOT_READY);
        })
    }

    /// An administrator taints the node.
    pub fn taint(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| add_taint(node, UPKEEP))
    }

    pub fn untaint(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| remove_taint(node, UPKEEP))
    }

    pub fn cordon(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| node.unschedulable = true)
    }

    /// The node loses the labels that a template may select.
    pub fn deselect(&mut self, node: &str) -> &mut Self {
        self.edit_node(node, |node| node.meta.labels = [].into())
    }

    /// The Node is deleted, and Kubernetes' pod garbage collector ends its pods.
    pub fn delete_node(&mut self, node: &str) -> &mut Self {
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
        self.after_passes()
    }

    /// A Node of this name is created, with another UID, and the manager does not reconcile yet.
    pub fn create_node_unseen(&mut self, name: &str, uid: &str) -> &mut Self {
        let mut new = (*node(name)).clone();
        (new.meta.uid, new.meta.created) = (uid.into(), Some(self.now()));
        self.world.nodes.push(Arc::new(new));
        self
    }

    /// A Node of this name is created, with another UID.
    pub fn create_node(&mut self, name: &str, uid: &str) -> &mut Self {
        self.create_node_unseen(name, uid).after_passes()
    }
}

/// Events of the spec.
impl Scene {
    /// The user changes the spec.
    pub fn edit(&mut self, edit: impl FnOnce(&mut DaemonJob)) -> &mut Self {
        edit(&mut self.job);
        self.job.metadata.generation = self.job.metadata.generation.map(|generation| generation + 1);
        self.after_passes()
    }

    pub fn use_template(&mut self, image: &str) -> &mut Self {
        self.edit(|job| job.spec.template.0["spec"]["containers"][0]["image"] = json!(image))
    }

    pub fn retry(&mut self, token: &str) -> &mut Self {
        self.edit(|job| job.spec.retry_token = Some(token.into()))
    }

    pub fn suspend(&mut self) -> &mut Self {
        self.edit(|job| job.spec.suspend = Some(true))
    }

    pub fn resume(&mut self) -> &mut Self {
        self.edit(|job| job.spec.suspend = None)
    }

    pub fn pause(&mut self) -> &mut Self {
        self.edit(|job| job.spec.paused = Some(true))
    }

    /// The user sets or removes an annotation, which does not change the generation.
    fn set_annotation(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        let annotations = self.job.metadata.annotations.get_or_insert_default();
        annotations.remove(key);
        annotations.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        self.after_passes()
    }

    /// The user approves a wave, as `<rollout number>/<wave>`, or removes the approval.
    pub fn approve(&mut self, wave: impl Into<Option<&'static str>>) -> &mut Self {
        self.set_annotation(APPROVED_ANNOTATION, wave.into())
    }

    /// The user pauses the DaemonJob for this reason, or removes the annotation.
    pub fn pause_for(&mut self, reason: impl Into<Option<&'static str>>) -> &mut Self {
        self.set_annotation(PAUSED_ANNOTATION, reason.into())
    }
}

/// The state that a test reads.
impl Scene {
    pub fn status(&self) -> &DaemonJobStatus {
        self.job.status.as_ref().unwrap()
    }

    pub fn rollout(&self) -> &Rollout {
        self.status().rollout.as_ref().unwrap()
    }

    /// Status and reason of a condition, or False if it is absent.
    pub fn condition(&self, type_: &str) -> (bool, &str) {
        let condition = self.status().conditions.iter().find(|one| one.type_ == type_);
        condition.map_or((false, ""), |one| (one.status == "True", one.reason.as_str()))
    }

    /// The message of a condition.
    pub fn message(&self, type_: &str) -> &str {
        &self.status().conditions.iter().find(|one| one.type_ == type_).unwrap().message
    }

    /// The reason of a node in a list of the status.
    pub fn reason(&self, node: &str) -> Option<&str> {
        state(self.status(), node)
    }

    /// A node in the list of pending nodes.
    pub fn pending(&self, node: &str) -> &NodeReason {
        self.status().pending_nodes.iter().find(|listed| listed.node == node).unwrap()
    }

    /// Whether failed nodes stop the rollout.
    pub fn is_braked(&self) -> bool {
        self.condition("Paused") == (true, "MaxFailedNodesExceeded")
    }

    /// Whether the last pod of the node runs or may run.
    pub fn has_pod(&self, node: &str) -> bool {
        self.pod(node).is_counted()
    }

    /// The nodes of the pods that run or may run.
    pub fn counted(&self) -> Vec<&str> {
        self.world.pods.iter().filter(|pod| pod.is_counted()).filter_map(|pod| pinned_to(pod)).collect()
    }

    /// The nodes of the pods that are being deleted.
    pub fn terminating(&self) -> Vec<&str> {
        let pods = self.world.pods.iter().filter(|pod| pod.meta.deleted.is_some());
        pods.map(|pod| pinned_to(pod).unwrap()).collect()
    }

    /// The lines that count deleted nodes.
    pub fn gone_lines(&self) -> impl Iterator<Item = &Gone> {
        self.world.ledger.iter().map(|shard| shard.gone.as_ref().unwrap())
    }

    /// The shard that has the line of a node.
    pub fn shard_at(&self, uid: &str) -> usize {
        self.world.ledger.iter().position(|shard| shard.entries.contains_key(uid)).unwrap()
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
