//! A PulsarConsumer and its Deployment in a test.

use super::*;
use quintet_runtime::model::resource::Resource;

pub const START: &str = "2026-01-01T00:00:00Z";
pub const IMAGE: &str = "krvarma/pulsarconsumer:latest";
/// The container in a Deployment.
pub const CONTAINER: &str = "/spec/template/spec/containers/0";

/// The time this number of seconds after [`START`].
pub fn after(seconds: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// The tutorial's sample without its label, which made the tutorial's operator panic.
pub fn consumer() -> PulsarConsumer {
    serde_json::from_value(json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": {"name": "sample", "namespace": "ns", "uid": "me", "generation": 1},
        "spec": {
            "serverAddress": "pulsar://localhost:6650", "topic": "my-topic",
            "subscriptionName": "first-subscription", "replicas": 1},
    }))
    .unwrap()
}

/// The sample with more fields. Topics replace its topic.
pub fn with(fields: &Value) -> PulsarConsumer {
    let mut spec = serde_json::to_value(consumer().spec).unwrap();
    if fields.get("topics").or(fields.get("topicsPattern")).is_some() {
        spec["topic"] = Value::Null;
    }
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    PulsarConsumer { spec: serde_json::from_value(spec).unwrap(), ..consumer() }
}

/// The object after an apply that returned this generation.
pub fn applied(resource: &Resource, generation: i64) -> AppliedObject {
    AppliedObject { kind: resource.kind.to_owned(), uid: "d".into(), generation, digest: None }
}

/// The body of a first apply.
pub fn wanted(consumer: &PulsarConsumer) -> Value {
    applies(&Scene::new(consumer.clone()).plan(0)).unwrap().0.clone()
}

pub fn container(consumer: &PulsarConsumer) -> Value {
    wanted(consumer).pointer(CONTAINER).unwrap().clone()
}

/// The stored object after an apply: with identity, defaults, and a status with all pods ready.
pub fn stored(consumer: &PulsarConsumer) -> Value {
    let mut raw = wanted(consumer);
    raw["metadata"]["uid"] = json!("d");
    raw["metadata"]["resourceVersion"] = json!("7");
    raw["metadata"]["generation"] = json!(1);
    raw["metadata"]["creationTimestamp"] = json!("2025-12-31T23:00:00Z");
    raw["spec"]["progressDeadlineSeconds"] = json!(600);
    raw["spec"]["revisionHistoryLimit"] = json!(10);
    raw["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    raw.pointer_mut(CONTAINER).unwrap()["imagePullPolicy"] = json!("Always");
    let replicas = raw["spec"]["replicas"].clone();
    raw["status"] = json!({
        "observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas,
    });
    raw
}

/// Another client replaces the image.
pub fn other_image(deployment: &mut Value) {
    deployment.pointer_mut(CONTAINER).unwrap()["image"] = json!("mirror/pulsarconsumer:latest");
}

pub fn figures(backlog: i64) -> BacklogSample {
    let figures = Figures { backlog, unacked: 0, consumers: 1, rate: 0.5 };
    BacklogSample { figures: Ok(figures), partitions: partitions(&[("my-topic", 0)]) }
}

pub fn partitions(known: &[(&str, u32)]) -> Partitions {
    known.iter().map(|(topic, partitions)| (Topic::of(topic), *partitions)).collect()
}

pub fn unknown() -> BacklogSample {
    let unknown = Unknown::new("TopicNotFound", "There is no topic x.");
    BacklogSample { figures: Err(unknown), partitions: Partitions::new() }
}

/// A refusal that ends 10 seconds after [`START`].
pub fn refusal(verb: Verb, message: &str) -> Refusal {
    Refusal { verb, reason: RefusalReason::Other, message: message.into(), times: 1, until: after(10) }
}

/// A PulsarConsumer, and its state in the caches.
pub struct Scene {
    pub consumer: PulsarConsumer,
    pub world: World,
}

impl Scene {
    /// A scene without a Deployment. This process applied the objects an hour ago, which returned generation 1.
    pub fn new(consumer: PulsarConsumer) -> Self {
        let image = Arc::new(Image { name: IMAGE.to_owned(), ..Image::default() });
        let mut world = World { image, ..World::default() };
        for resource in [DEPLOYMENTS, SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS] {
            let (hash, at, after) = (String::new(), after(-3_600), Some(applied(&resource, 1)));
            world.attempts.insert(resource, Attempt { resource, hash, at, repairs: 0, before: 0, after });
        }
        Self { consumer, world }
    }

    /// A scene with the converged Deployment.
    pub fn settled(consumer: PulsarConsumer) -> Self {
        let mut scene = Self::new(consumer);
        scene.see(1, |_| ());
        scene
    }

    /// The caches have the converged Deployment of this generation, with these changes.
    pub fn see(&mut self, generation: i64, change: impl FnOnce(&mut Value)) {
        let mut raw = stored(&self.consumer);
        raw["metadata"]["generation"] = json!(generation);
        raw["status"]["observedGeneration"] = json!(generation);
        change(&mut raw);
        self.world.deployment = Some(Arc::new(serde_json::from_value(raw).unwrap()));
    }

    /// The caches have this pod, which is not ready.
    pub fn see_pod(&mut self, status: &Value) {
        let pod = json!({
            "metadata": {"name": "pod-1", "namespace": "ns", "uid": "p", "creationTimestamp": START},
            "spec": {"nodeName": "n"},
            "status": status,
        });
        self.world.unready = vec![Arc::new(serde_json::from_value(pod).unwrap())];
    }

    /// The plan in this second.
    pub fn plan(&self, second: i64) -> ConsumerPlan {
        plan(&self.consumer, &self.world, after(second))
    }

    /// Plans and writes the status.
    pub fn pass(&mut self, second: i64) -> ConsumerPlan {
        let plan = self.plan(second);
        self.consumer.status.clone_from(&plan.status);
        plan
    }

    /// Plans an apply. Its answer has this generation.
    pub fn apply(&mut self, second: i64, generation: i64) -> ConsumerPlan {
        let plan = self.plan(second);
        assert!(applies(&plan).is_some(), "in second {second}");
        self.answer(&plan, generation);
        plan
    }

    /// The answer to an apply, if the plan has one, has this generation.
    pub fn answer(&mut self, plan: &ConsumerPlan, generation: i64) {
        for action in plan.steps.iter().flatten() {
            if let Action::Effect(Effect::Attempt(attempt)) = action {
                let after = Some(applied(&attempt.resource, generation));
                let attempt = Attempt { after, ..(**attempt).clone() };
                self.world.attempts.insert(attempt.resource, attempt);
            }
        }
    }
}

/// The body and `force` of the only write, if there is one.
pub fn applies(plan: &ConsumerPlan) -> Option<(&Value, bool)> {
    let writes = plan.steps.iter().flatten().filter(|action| !matches!(action, Action::Effect(_)));
    match writes.collect::<Vec<_>>()[..] {
        [] => None,
        [Action::Apply { body, force, name, namespace, resource, .. }] => {
            assert_eq!((name.as_str(), &**namespace), ("sample-deployment", "ns"));
            assert_eq!(*resource, DEPLOYMENTS);
            Some((body, *force))
        }
        ref others => panic!("not a single apply: {others:?}"),
    }
}

/// A condition: its status and reason, such as "True AsSpecified", and its message. A plan with a status has no
/// steps.
pub fn condition<'a>(plan: &'a ConsumerPlan, type_: &str) -> (String, &'a str) {
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    let mut conditions = plan.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.find(|one| one.type_ == type_).unwrap();
    (format!("{} {}", found.status, found.reason), &found.message)
}
