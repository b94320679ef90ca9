//! A PodSet and its pods in a test, and the steps of plans in words.

use super::*;
use crate::revision::StoredRevision;

const START: &str = "2026-01-01T00:00:00Z";

/// The time this number of seconds after the creation of all pods.
pub fn after(seconds: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

pub fn podset(spec: &Value) -> PodSet {
    serde_json::from_value(json!({
        "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": {"name": "p", "namespace": "ns", "uid": "set", "generation": 1, "creationTimestamp": START},
        "spec": spec,
    }))
    .unwrap()
}

/// A PodSet of the built-in template.
pub fn of(replicas: i32) -> PodSet {
    podset(&json!({"replicas": replicas}))
}

/// A PodSet of two replicas with this image.
pub fn of_image(image: &str) -> PodSet {
    updating(image, &Value::Null)
}

/// The same with an update strategy.
pub fn updating(image: &str, strategy: &Value) -> PodSet {
    let template = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
    podset(&json!({"replicas": 2, "template": template, "updateStrategy": strategy}))
}

/// The name of the pod with this number.
pub fn name(number: u64) -> String {
    pod_name(&of(0), None, number)
}

/// The pod with this number. A running or terminating pod is ready.
pub fn pod(podset: &PodSet, number: u64, state: &str) -> Pod {
    let name = name(number);
    let (phase, deleted) = match state {
        "Terminating" => ("Running", Some(START)),
        "Terminated" => ("Failed", Some(START)),
        phase => (phase, None),
    };
    let ready = if phase == "Running" { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "creationTimestamp": START, "deletionTimestamp": deleted,
            "labels": {NAME_LABEL: "p", UID_LABEL: "set", HASH_LABEL: template_hash(podset)},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "other"},
                {"apiVersion": "g/v1", "kind": "PodSet", "name": "p", "uid": "set", "controller": true},
            ],
        },
        "spec": {"nodeName": format!("node-{number}")},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": START}],
        },
    }))
    .unwrap()
}

/// A container that failed.
pub fn exit() -> Exit {
    Exit { container: "c".into(), code: 3, reason: "Error".into(), message: "".into() }
}

/// Pods in words: "0-2 Running, 3 Failed 9" are three running pods, and a failed one of attempt 9.
fn pods(podset: &PodSet, words: &str) -> Vec<Pod> {
    let mut pods = Vec::new();
    for group in words.split_terminator(", ") {
        let words: Vec<&str> = group.split(' ').collect();
        let (first, last) = words[0].split_once('-').unwrap_or((words[0], words[0]));
        for number in first.parse().unwrap()..=last.parse().unwrap() {
            let mut pod = pod(podset, number, words[1]);
            pod.meta.annotations = words[2..].iter().map(|attempt| (ATTEMPT_ANNOTATION, *attempt)).collect();
            pods.push(pod);
        }
    }
    pods
}

pub fn world(pods: impl IntoIterator<Item = Pod>) -> World {
    World { pods: pods.into_iter().map(Arc::new).collect(), ..World::default() }
}

pub fn refusal_until(verb: Verb, reason: RefusalReason, until: Timestamp) -> Refusal {
    Refusal { verb, reason, message: "exceeded quota: q".into(), times: 1, until }
}

/// A plan without the withheld writes.
pub fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = crate::plan::plan(podset, world, now);
    plan.withhold(&world.refusals, now);
    plan
}

/// A PodSet, and its state in the caches.
pub struct Scene {
    pub podset: PodSet,
    pub world: World,
}

impl Scene {
    /// A scene with these pods in words.
    pub fn new(podset: PodSet, pods: &str) -> Self {
        let mut scene = Self { podset, world: World::default() };
        scene.see(pods);
        scene
    }

    /// The caches have these pods of the spec's template, and its revision.
    pub fn see(&mut self, pods: &str) {
        let revisions = std::mem::take(&mut self.world.revisions);
        self.world = World { revisions, ..world(self::pods(&self.podset, pods)) };
        self.add_revision();
    }

    /// The caches have the revision of the spec's template, which has the highest number.
    fn add_revision(&mut self) {
        let name = revision::name(&self.podset, &template_hash(&self.podset));
        let revisions = &mut self.world.revisions;
        revisions.retain(|one| *one.meta.name != *name);
        let number = revisions.iter().map(|one| one.number).max().unwrap_or_default() + 1;
        let meta = json!({"name": name, "namespace": "ns", "uid": format!("uid-{name}")});
        revisions.push(serde_json::from_value(json!({"metadata": meta, "revision": number})).unwrap());
    }

    /// The API server has rejected a write of the pod with this number.
    pub fn refuse(&mut self, verb: Verb, number: u64, reason: RefusalReason, until: i64) {
        self.world.refusals.insert(&PODS, name(number), refusal_until(verb, reason, after(until)));
    }

    /// The user changes the spec, and the revision of the template is written.
    pub fn edit(&mut self, podset: PodSet) {
        self.podset = PodSet { status: self.podset.status.take(), ..podset };
        self.add_revision();
    }

    /// The plan's template of the current revision is read from this PodSet.
    pub fn read_revision(&mut self, of: &PodSet) {
        let name = revision_to_read(&self.podset, &self.world).unwrap();
        let stored = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")}, "revision": 1,
            "data": {"spec": {"template": of.spec.template}},
        });
        let stored: StoredRevision = serde_json::from_value(stored).unwrap();
        self.world.current_template = CurrentTemplate::of(&self.podset, &name, &stored);
    }

    /// The plan in this second.
    pub fn plan(&self, second: i64) -> Plan<PodSetStatus> {
        plan(&self.podset, &self.world, after(second))
    }

    /// Plans and writes the status.
    pub fn pass(&mut self, second: i64) -> Plan<PodSetStatus> {
        let plan = self.plan(second);
        self.podset.status.clone_from(&plan.status);
        plan
    }
}

/// The steps of a plan with pods, in words: "create 2 (attempt 1); delete 0 1".
pub fn steps(plan: &Plan<PodSetStatus>) -> String {
    let steps = plan.steps.iter().filter(|step| step[0].target().unwrap().1 == &PODS).map(|step| {
        let verb = step[0].target().unwrap().0;
        let pods = step.iter().map(|action| {
            let (also, _, name) = action.target().unwrap();
            assert_eq!(also, verb, "one step has one verb");
            let has_name = |number: &u64| self::name(*number) == name;
            // Pods of the current template, which is an older one, have names of their own.
            let Some(number) = (0..300).find(has_name) else {
                assert_eq!(verb, Verb::Create, "{name}");
                return " older".to_owned();
            };
            let annotations = match action {
                Action::Create { body, .. } => body.value()["metadata"]["annotations"].clone(),
                _ => Value::Null,
            };
            let attempt =
                annotations[ATTEMPT_ANNOTATION].as_str().map(|attempt| format!(" (attempt {attempt})"));
            format!(" {number}{}", attempt.unwrap_or_default())
        });
        format!("{verb}{}", pods.collect::<String>())
    });
    steps.collect::<Vec<_>>().join("; ")
}

/// The status, reason and message of a condition.
pub fn condition<'a>(plan: &'a Plan<PodSetStatus>, type_: &str) -> (&'a str, &'a str, &'a str) {
    let mut conditions = plan.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|one| one.type_ == type_).unwrap();
    (&condition.status, &condition.reason, &condition.message)
}

/// The first created pod.
pub fn body(plan: &Plan<PodSetStatus>) -> Value {
    let mut bodies = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::Create { body, .. } => Some(body.value()),
        _ => None,
    });
    bodies.next().unwrap()
}

/// The operations of patches, and the labels of merge patches.
pub fn patches(plan: &Plan<PodSetStatus>) -> Vec<&Value> {
    let patches = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::JsonPatch { operations, .. } => Some(operations),
        Action::MergePatch { body, .. } => Some(&body["metadata"]["labels"]),
        _ => None,
    });
    patches.collect()
}
