//! The strategy of rollouts: pods of two subscription types must never wait for each other.

use super::*;
use std::collections::BTreeMap;

/// The strategy of the next apply, or of the Deployment if none is due.
fn strategy(scene: &Scene) -> String {
    let steps = scene.plan(0).steps.into_iter().flatten();
    let mut applied = steps.filter_map(|action| match action {
        Action::Apply { body, .. } => Some(body["spec"]["strategy"]["type"].clone()),
        _ => None,
    });
    let own = &scene.world.deployment.as_ref().unwrap().spec["strategy"]["type"];
    applied.next().as_ref().unwrap_or(own).as_str().unwrap().to_owned()
}

const TYPES: [&str; 4] = ["Shared", "Exclusive", "Failover", "Key_Shared"];

#[test]
fn every_change_of_the_type_recreates_the_pods() {
    for old in TYPES {
        for new in TYPES {
            let mut scene = Scene::settled(with(&json!({"subscriptionType": old})));
            scene.consumer = with(&json!({"subscriptionType": new}));
            let recreates = old != new || new == "Exclusive";
            let expected = if recreates { "Recreate" } else { "RollingUpdate" };
            assert_eq!(strategy(&scene), expected, "{old} to {new}");
        }
    }
}

#[rstest]
#[case::the_default_type(json!({"subscriptionType": "Shared"}), "RollingUpdate")]
#[case::another_topic(json!({"topic": "other"}), "RollingUpdate")]
#[case::another_topic_and_type(json!({"topic": "other", "subscriptionType": "Failover"}), "Recreate")]
fn changes_without_another_type_roll(#[case] fields: Value, #[case] expected: &str) {
    let mut scene = Scene::settled(consumer());
    scene.consumer = with(&fields);
    assert_eq!(strategy(&scene), expected);
}

#[rstest]
#[case::rolled_out(2, json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}), "RollingUpdate")]
#[case::old_pods(2, json!({"observedGeneration": 2, "replicas": 2}), "Recreate")]
#[case::terminating_pods(2, json!({"observedGeneration": 2}), "Recreate")]
#[case::too_few(2, json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1}), "RollingUpdate")]
#[case::stale_figures(2, json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}), "Recreate")]
#[case::zero(0, json!({"observedGeneration": 2}), "Recreate")]
fn recreate_stays_until_the_new_pods_exist(
    #[case] replicas: i32,
    #[case] status: Value,
    #[case] expected: &str,
) {
    let mut scene = Scene::settled(with(&json!({"subscriptionType": "Failover", "replicas": replicas})));
    scene.see(2, |raw| {
        raw["spec"]["strategy"] = json!({"type": "Recreate"});
        raw["status"] = status;
    });
    assert_eq!(strategy(&scene), expected);
}

/// A pod in the simulation.
struct Pod {
    template: Value,
    terminating: bool,
}

fn type_of(template: &Value) -> String {
    let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
    let found = env.iter().find(|one| one["name"] == "PULSAR_SUBSCRIPTION_TYPE");
    found.map_or("Shared", |one| one["value"].as_str().unwrap()).to_owned()
}

/// An API server and a Deployment controller.
#[derive(Default)]
struct Cluster {
    /// The versions of the Deployment, the current one last.
    versions: Vec<Value>,
    pods: Vec<Pod>,
    /// The replicas that each ReplicaSet is annotated with, by the template.
    desired: BTreeMap<String, usize>,
}

impl Cluster {
    fn now(&self) -> &Value {
        self.versions.last().unwrap()
    }

    /// Writes the Deployment unless the body has another version. Returns whether it did.
    fn write(&mut self, body: &Value, merge: fn(&mut Value, &Value)) -> bool {
        let mut next =
            self.versions.last().cloned().unwrap_or_else(|| json!({"metadata": {"generation": 0}}));
        let condition = &body["metadata"]["resourceVersion"];
        if !condition.is_null() && *condition != next["metadata"]["resourceVersion"] {
            return false;
        }
        let spec = next["spec"].clone();
        merge(&mut next, body);
        let generation = next["metadata"]["generation"].as_i64().unwrap() + i64::from(next["spec"] != spec);
        next["metadata"]["generation"] = json!(generation);
        if self.versions.last() == Some(&next) {
            return true;
        }
        next["metadata"]["resourceVersion"] = json!(self.versions.len().to_string());
        self.versions.push(next);
        true
    }

    /// Executes a plan of the manager.
    fn execute(&mut self, plan: &ConsumerPlan) -> bool {
        plan.steps.iter().flatten().all(|action| match action {
            Action::MergePatch { body, .. } => self.write(body, |next, body| {
                next["spec"]["strategy"] = json!({"type": body["spec"]["strategy"]["type"]});
            }),
            Action::Apply { body, .. } => self.write(body, |next, body| {
                let mut metadata = body["metadata"].clone();
                for field in ["generation", "resourceVersion"] {
                    metadata[field] = next["metadata"][field].clone();
                }
                metadata["uid"] = json!("d");
                next["metadata"] = metadata;
                next["spec"] = body["spec"].clone();
            }),
            _ => true,
        })
    }

    /// One step of the Deployment controller, with the rules of Kubernetes.
    fn roll(&mut self) {
        let spec = self.now()["spec"].clone();
        let mut template = &spec["template"];
        let replicas = usize::try_from(spec["replicas"].as_u64().unwrap()).unwrap();
        let recreate = spec["strategy"]["type"] == "Recreate";
        let active: BTreeMap<String, Value> = self
            .pods
            .iter()
            .filter(|pod| !pod.terminating)
            .map(|pod| (pod.template.to_string(), pod.template.clone()))
            .collect();
        let is_scaled = active.keys().any(|set| self.desired[set] != replicas);
        let is_one = active.len() == 1;
        if is_scaled && !is_one && recreate {
            // `sync` in the Deployment controller only scales then, and scales nothing for Recreate.
            return;
        }
        if let (true, true, Some(only)) = (is_scaled, is_one, active.values().next()) {
            template = only;
        }
        self.desired.extend(active.keys().map(|set| (set.clone(), replicas)));
        self.desired.insert(template.to_string(), replicas);
        let is_new = |pod: &Pod| pod.template == *template;
        let new = self.pods.iter().filter(|pod| is_new(pod) && !pod.terminating).count();
        let has_old = self.pods.iter().any(|pod| !is_new(pod));
        // A broker rejects a pod while pods of another type are connected.
        let is_ready = self.pods.iter().all(|pod| type_of(&pod.template) == type_of(template));
        if has_old && !is_scaled && (recreate || is_ready && new >= replicas) {
            for pod in self.pods.iter_mut().filter(|pod| !is_new(pod)) {
                pod.terminating = true;
            }
        } else if new < replicas {
            self.pods.push(Pod { template: template.clone(), terminating: false });
        } else if new > replicas {
            self.pods.iter_mut().find(|pod| is_new(pod) && !pod.terminating).unwrap().terminating = true;
        }
    }

    /// The Deployment controller writes the status.
    fn report(&mut self) {
        let template = self.now()["spec"]["template"].clone();
        let pods = || self.pods.iter().filter(|pod| !pod.terminating);
        let updated = pods().filter(|pod| pod.template == template).count();
        let generation = &self.now()["metadata"]["generation"];
        let status =
            json!({"observedGeneration": generation, "replicas": pods().count(), "updatedReplicas": updated});
        self.write(&json!({"status": status}), |next, body| next["status"] = body["status"].clone());
    }

    /// A rolling update with pods of another type is a deadlock.
    fn check(&self) {
        let spec = &self.now()["spec"];
        if spec["strategy"]["type"] == "RollingUpdate" {
            let type_ = type_of(&spec["template"]);
            assert!(self.pods.iter().all(|pod| type_of(&pod.template) == type_), "{spec}");
        }
    }
}

/// A pseudo-random number below `limit`.
fn draw(seed: &mut u64, limit: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap() % limit
}

/// The manager plans with this version of the Deployment, which may be stale.
fn reconcile(scene: &mut Scene, cluster: &mut Cluster, version: usize, second: i64) {
    let seen = cluster.versions.get(version).cloned();
    scene.world.deployment = seen.map(|raw| Arc::new(serde_json::from_value(raw).unwrap()));
    let plan = scene.plan(second);
    if plan.steps.is_empty() {
        scene.consumer.status.clone_from(&plan.status);
    } else if cluster.execute(&plan) {
        let generation = cluster.now()["metadata"]["generation"].as_i64().unwrap();
        scene.answer(&plan, generation);
    }
}

/// With several ReplicaSets, a Deployment controller that sees other replicas does nothing for Recreate.
#[test]
fn other_replicas_do_not_block_another_type_during_a_rollout() {
    let (mut scene, mut cluster) = (Scene::new(with(&json!({"replicas": 3}))), Cluster::default());
    let settle = |scene: &mut Scene, cluster: &mut Cluster, steps: std::ops::Range<i64>| {
        for step in steps {
            let last = cluster.versions.len().saturating_sub(1);
            reconcile(scene, cluster, last, step * 10_000);
            cluster.roll();
            cluster.pods.retain(|pod| !pod.terminating);
            cluster.report();
            cluster.check();
        }
    };
    settle(&mut scene, &mut cluster, 0..20);
    for fields in [
        json!({"replicas": 3, "image": "broken"}),
        json!({"replicas": 1, "image": "broken", "subscriptionType": "Failover"}),
    ] {
        let status = scene.consumer.status.take();
        scene.consumer = with(&fields);
        scene.consumer.status = status;
        settle(&mut scene, &mut cluster, 20..22);
    }
    settle(&mut scene, &mut cluster, 22..60);
    assert_eq!(cluster.pods.len(), 1);
    assert_eq!(type_of(&cluster.pods[0].template), "Failover");
}

#[test]
fn never_rolls_while_pods_of_another_type_may_exist() {
    for first in 0..30 {
        let mut seed = first;
        let (mut scene, mut cluster) = (Scene::new(consumer()), Cluster::default());
        reconcile(&mut scene, &mut cluster, 0, 0);
        for step in 1..150 {
            // Repairs a long time apart do not wait.
            let second = step * 10_000;
            let last = cluster.versions.len() - 1;
            match draw(&mut seed, 14) {
                0 => {
                    let type_ = TYPES[draw(&mut seed, 4)];
                    let most = if type_ == "Exclusive" { 2 } else { 4 };
                    let status = scene.consumer.status.take();
                    scene.consumer = with(&json!({
                        "subscriptionType": type_, "replicas": draw(&mut seed, most),
                        "topic": format!("topic-{}", draw(&mut seed, 2)),
                        "image": format!("image-{}", draw(&mut seed, 2)),
                    }));
                    scene.consumer.status = status;
                }
                // Another manager takes over.
                1 => scene.world.attempts.clear(),
                2 => {
                    let stale = last.saturating_sub(draw(&mut seed, 15));
                    reconcile(&mut scene, &mut cluster, stale, second);
                }
                3 | 4 => reconcile(&mut scene, &mut cluster, last, second),
                5 | 6 => cluster.report(),
                7 | 8 => {
                    let gone = cluster.pods.iter().position(|pod| pod.terminating);
                    gone.map(|gone| cluster.pods.remove(gone));
                }
                _ => cluster.roll(),
            }
            cluster.check();
        }
        // Without more changes, every rollout ends.
        for step in 150..220 {
            cluster.roll();
            cluster.pods.retain(|pod| !pod.terminating);
            cluster.report();
            let last = cluster.versions.len() - 1;
            reconcile(&mut scene, &mut cluster, last, step * 10_000);
            cluster.check();
        }
        let spec = &scene.consumer.spec;
        let wanted = spec.subscription_type.unwrap_or_default();
        assert_eq!(cluster.pods.len(), usize::try_from(spec.replicas).unwrap());
        assert!(cluster.pods.iter().all(|pod| json!(type_of(&pod.template)) == json!(wanted)));
        if spec.replicas > 0 {
            let strategy = &cluster.now()["spec"]["strategy"]["type"];
            assert_eq!(*strategy == "Recreate", json!(wanted) == "Exclusive", "seed {first}");
        }
    }
}
