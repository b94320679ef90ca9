use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use quintet_runtime::model::core_types::Phase;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use serde_json::Value;

const START: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    START.parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn podset(spec: &Value) -> PodSet {
    serde_json::from_value(json!({
        "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": {"name": "p", "namespace": "ns", "uid": "set", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

fn of(replicas: i32) -> PodSet {
    podset(&json!({"replicas": replicas}))
}

/// The pod with this number, ready if it runs.
fn pod(podset: &PodSet, number: u64, phase: &str) -> Pod {
    let name = pod_name(podset, number);
    let ready = if phase == "Running" { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "creationTimestamp": START,
            "labels": {NAME_LABEL: "p", UID_LABEL: "set", HASH_LABEL: template_hash(podset)},
        },
        "spec": {"nodeName": format!("node-{number}")},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": START}],
        },
    }))
    .unwrap()
}

/// A plan without the withheld writes.
fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = super::plan(podset, world, now);
    plan.withhold(&world.refusals, now);
    plan
}

fn world(pods: impl IntoIterator<Item = Pod>) -> World {
    World { pods: pods.into_iter().map(Arc::new).collect(), ..World::default() }
}

fn running(podset: &PodSet, count: u64) -> World {
    world((0..count).map(|number| pod(podset, number, "Running")))
}

fn refused(verb: Verb, reason: RefusalReason, until: Timestamp) -> Refusal {
    Refusal { verb, reason, message: "exceeded quota: q".into(), times: 1, until }
}

fn created(plan: &Plan<PodSetStatus>) -> Vec<String> {
    plan.steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Create { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect()
}

fn deleted(plan: &Plan<PodSetStatus>) -> Vec<String> {
    plan.steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Delete { name, .. } => Some(name.to_string()),
            _ => None,
        })
        .collect()
}

fn body(plan: &Plan<PodSetStatus>) -> Value {
    plan.steps
        .iter()
        .flatten()
        .find_map(|action| match action {
            Action::Create { body, .. } => Some(body.value()),
            _ => None,
        })
        .unwrap()
}

fn names(podset: &PodSet, numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(|number| pod_name(podset, number)).collect()
}

fn condition(plan: &Plan<PodSetStatus>, type_: &str) -> (String, String, String) {
    let status = plan.status.as_ref().unwrap();
    let condition = status.conditions.iter().find(|one| one.type_ == type_).unwrap().clone();
    (condition.status, condition.reason, condition.message)
}

#[test]
fn the_tutorials_empty_spec_creates_one_busybox() {
    let plan = plan(&podset(&json!({})), &World::default(), now());
    let body = body(&plan);
    assert_eq!(plan.steps.iter().flatten().count(), 1);
    assert_eq!(
        body["spec"],
        json!({"containers": [{"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}]})
    );
    assert_eq!(
        body["metadata"]["labels"],
        json!({KIND_LABEL: "PodSet", "app": "p", "version": "v0.1", UID_LABEL: "set", HASH_LABEL: "v1-default"})
    );
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("set"), &json!(true)));
    assert!(body["metadata"]["name"].as_str().unwrap().starts_with("p-pod-"));
    assert!(body["metadata"].get("annotations").is_none());
}

#[test]
fn keeps_template_labels_except_its_own() {
    let podset = podset(&json!({"template": {
        "metadata": {"labels": {"app": "x", "version": "v2", "tier": "front", UID_LABEL: "y"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}));
    let plan = plan(&podset, &World::default(), now());
    assert_eq!(
        body(&plan)["metadata"]["labels"],
        json!({KIND_LABEL: "PodSet", "app": "p", "version": "v2", "tier": "front", UID_LABEL: "set",
            HASH_LABEL: podset.spec.template.as_ref().unwrap().hash()})
    );
    assert_eq!(body(&plan)["spec"]["containers"][0]["image"], "i");
}

#[test]
fn names_are_deterministic_and_fit_a_host_name() {
    let mut podset = of(1);
    assert_eq!(pod_name(&podset, 0), pod_name(&podset.clone(), 0));
    assert_ne!(pod_name(&podset, 0), pod_name(&podset, 1));
    podset.metadata.name = Some("x".repeat(63));
    assert_eq!(pod_name(&podset, u64::MAX).len(), 63);
}

/// Frozen: with other names, an old and a new version would create a pod each.
#[test]
fn golden_names() {
    assert_eq!(names(&of(2), [0, 1]), ["p-pod-vcvfslhegy", "p-pod-eahiwkmi4r"]);
}

#[test]
fn creates_all_missing_pods_in_one_step() {
    let podset = of(5);
    let plan = plan(&podset, &running(&podset, 2), now());
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(created(&plan), names(&podset, 2..5));
}

#[test]
fn uses_the_smallest_free_numbers() {
    let podset = of(4);
    let mut going = pod(&podset, 2, "Running");
    going.meta.deleted = Some(now());
    let world = world([pod(&podset, 1, "Running"), going, pod(&podset, 4, "Succeeded")]);
    let plan = plan(&podset, &world, now());
    assert_eq!(created(&plan), names(&podset, [0, 3, 5]));
}

#[test]
fn replaces_a_terminating_pod_and_counts_it_apart() {
    let podset = of(1);
    let mut going = pod(&podset, 0, "Running");
    going.meta.deleted = Some(now());
    let plan = plan(&podset, &world([going]), now());
    assert_eq!(created(&plan), names(&podset, [1]));
    assert!(deleted(&plan).is_empty());
    let status = plan.status.unwrap();
    assert_eq!((status.replicas, status.terminating_replicas), (Some(0), Some(1)));
}

#[test]
fn deletes_surplus_pods_in_one_step() {
    let podset = of(1);
    let world = world([
        pod(&podset, 0, "Running"),
        pod(&podset, 1, "Pending"),
        pod(&podset, 2, "Running"),
        pod(&podset, 3, "Unknown"),
    ]);
    let plan = plan(&podset, &world, now());
    assert_eq!(plan.steps.len(), 1);
    let gone = deleted(&plan);
    assert_eq!(gone[..2], names(&podset, [1, 3]));
    assert_eq!(gone.len(), 3);
    let Action::Delete { uid, resource_version, .. } = &plan.steps[0][0] else { panic!() };
    assert_eq!((&**uid, resource_version), (&*format!("uid-{}", gone[0]), &None));
}

#[test]
fn zero_and_negative_replicas_mean_none() {
    for replicas in [0, -3] {
        let podset = of(replicas);
        let plan = plan(&podset, &running(&podset, 2), now());
        assert_eq!((deleted(&plan).len(), created(&plan).len()), (2, 0));
        assert_eq!(condition(&plan, "Available").2, "0 of 0 pods are available.");
    }
}

#[test]
fn writes_nothing_when_converged() {
    let mut podset = of(3);
    let world = running(&podset, 3);
    let first = plan(&podset, &world, now());
    assert!(first.steps.is_empty() && first.again.is_none() && first.events.is_empty());
    podset.status.clone_from(&first.status);
    assert_eq!(plan(&podset, &world, after(3600)), first);
}

#[test]
fn replaces_and_deletes_an_ended_pod_at_once() {
    let podset = of(2);
    for phase in ["Failed", "Succeeded"] {
        let plan = plan(&podset, &world([pod(&podset, 0, phase), pod(&podset, 1, "Running")]), now());
        assert!(
            matches!(*plan.steps[0], [Action::Create { .. }])
                && matches!(*plan.steps[1], [Action::Delete { .. }])
        );
        assert_eq!(deleted(&plan), names(&podset, [0]));
        assert_eq!(created(&plan), names(&podset, [2]));
        assert_eq!(body(&plan)["metadata"]["annotations"], json!({ATTEMPT_ANNOTATION: "1"}));
    }
}

/// An ended pod with this attempt number.
fn ended(podset: &PodSet, attempt: &str) -> Pod {
    let mut pod = pod(podset, 0, "Failed");
    pod.meta.annotations = [(ATTEMPT_ANNOTATION, attempt)].into();
    pod
}

#[test]
fn backs_off_for_pods_that_keep_ending() {
    let podset = of(1);
    for (attempt, wait, next) in [("1", 10, "2"), ("2", 20, "3"), ("4", 80, "5"), ("99", 600, "100")] {
        let world = world([ended(&podset, attempt)]);
        let early = plan(&podset, &world, after(wait - 1));
        assert!(early.steps.is_empty(), "{:?}", early.steps);
        assert_eq!(early.again, Some(after(wait)));
        assert!(condition(&early, "Available").2.contains("Pods keep ending"));
        let due = plan(&podset, &world, after(wait));
        assert_eq!((deleted(&due).len(), created(&due).len()), (1, 1));
        assert_eq!(body(&due)["metadata"]["annotations"][ATTEMPT_ANNOTATION], next);
    }
}

#[test]
fn a_long_lifetime_resets_the_backoff() {
    let podset = of(1);
    let mut pod = ended(&podset, "7");
    pod.finished = Some(after(600));
    let plan = plan(&podset, &world([pod]), after(600));
    assert_eq!((deleted(&plan).len(), created(&plan).len()), (1, 1));
    assert!(body(&plan)["metadata"].get("annotations").is_none());
}

#[test]
fn deletes_an_ended_pod_without_need_for_a_replacement() {
    let podset = of(1);
    let plan = plan(&podset, &world([ended(&podset, "9"), pod(&podset, 1, "Running")]), now());
    assert_eq!((deleted(&plan), created(&plan).len()), (names(&podset, [0]), 0));
    assert_eq!(plan.again, None);
}

#[test]
fn a_waiting_replacement_delays_no_other() {
    let podset = of(3);
    let plan = plan(&podset, &world([ended(&podset, "9"), pod(&podset, 1, "Running")]), now());
    assert_eq!((deleted(&plan).len(), created(&plan)), (0, names(&podset, [2])));
}

#[test]
fn reports_a_rejected_creation_and_keeps_its_name() {
    let podset = of(5);
    let mut world = running(&podset, 3);
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 3),
        refused(Verb::Create, RefusalReason::Other, after(10)),
    );
    let waiting = plan(&podset, &world, now());
    assert!(waiting.steps.is_empty(), "{:?}", waiting.steps);
    assert_eq!(waiting.again, Some(after(10)));
    let failure = ("True".into(), "FailedCreate".into(), "exceeded quota: q".into());
    assert_eq!(condition(&waiting, "ReplicaFailure"), failure);

    let again = plan(&podset, &world, after(10));
    assert_eq!(again.steps.len(), 2, "the rejected creation first, alone");
    assert_eq!(created(&again), names(&podset, [3, 4]));
    assert_eq!(condition(&again, "ReplicaFailure"), failure, "no new answer yet");
}

/// A quota on objects counts ended pods too.
#[test]
fn deletes_an_ended_pod_before_a_rejected_creation() {
    let podset = of(2);
    let mut world = world([pod(&podset, 0, "Failed"), pod(&podset, 1, "Running")]);
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 2),
        refused(Verb::Create, RefusalReason::Other, after(10)),
    );
    let waiting = plan(&podset, &world, now());
    assert_eq!((deleted(&waiting), created(&waiting).len()), (names(&podset, [0]), 0));
}

#[test]
fn uses_a_free_number_before_a_rejected_one() {
    let podset = of(5);
    let mut world = world([0, 2].map(|number| pod(&podset, number, "Running")));
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 3),
        refused(Verb::Create, RefusalReason::Other, after(10)),
    );
    assert_eq!(created(&plan(&podset, &world, now())), names(&podset, [1]));
}

#[test]
fn drops_refusals_of_writes_that_are_not_needed() {
    let podset = of(3);
    let mut world = running(&podset, 3);
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 3),
        refused(Verb::Create, RefusalReason::Other, after(10)),
    );
    let plan = plan(&podset, &world, now());
    assert_eq!(condition(&plan, "ReplicaFailure").0, "False");
    assert_eq!(plan.again, None);
}

#[test]
fn skips_the_name_of_a_foreign_pod() {
    let podset = of(2);
    let mut world = World::default();
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 0),
        refused(Verb::Create, RefusalReason::NameTaken, after(10)),
    );
    let plan = plan(&podset, &world, now());
    assert_eq!(created(&plan), names(&podset, [1, 2]));
    assert_eq!(condition(&plan, "ReplicaFailure").0, "False");
}

#[test]
fn a_rejected_deletion_is_retried_for_the_same_pod() {
    let podset = of(1);
    let mut world = world([pod(&podset, 0, "Running"), pod(&podset, 1, "Pending")]);
    world.refusals.insert(
        &PODS,
        pod_name(&podset, 1),
        refused(Verb::Delete, RefusalReason::Other, after(10)),
    );
    let waiting = plan(&podset, &world, now());
    assert!(waiting.steps.is_empty());
    assert_eq!(waiting.again, Some(after(10)));
    assert_eq!(condition(&waiting, "ReplicaFailure").1, "FailedDelete");
    assert_eq!(deleted(&plan(&podset, &world, after(10))), names(&podset, [1]));
}

#[test]
fn the_status_counts_pods() {
    let podset = of(5);
    let mut going = pod(&podset, 3, "Running");
    going.meta.deleted = Some(now());
    let mut ended = pod(&podset, 4, "Failed");
    ended.meta.deleted = Some(now());
    let (one, two) = (pod(&podset, 0, "Running"), pod(&podset, 1, "Running"));
    let mut ready = names(&podset, [0, 1]);
    ready.sort();
    let world = world([two, one, pod(&podset, 2, "Pending"), going, ended]);
    let plan = plan(&podset, &world, now());
    assert_eq!(condition(&plan, "Available").2, "2 of 5 pods are available.");
    let status = plan.status.unwrap();
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas, status.terminating_replicas),
        (Some(3), Some(2), Some(2), Some(1))
    );
    assert_eq!(status.pod_names, ready);
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.selector.unwrap(), format!("app=p,{UID_LABEL}=set"));
}

#[test]
fn the_status_has_at_most_a_hundred_names() {
    let podset = of(150);
    let status = plan(&podset, &running(&podset, 150), now()).status.unwrap();
    assert_eq!((status.pod_names.len(), status.ready_replicas), (100, Some(150)));
    assert!(status.pod_names.is_sorted());
}

#[test]
fn a_pod_is_available_after_min_ready_seconds() {
    let podset = podset(&json!({"replicas": 1, "minReadySeconds": 30}));
    let world = running(&podset, 1);
    let early = plan(&podset, &world, after(29));
    assert_eq!(early.again, Some(after(30)));
    assert_eq!(condition(&early, "Available").0, "False");
    let status = early.status.unwrap();
    assert_eq!((status.ready_replicas, status.available_replicas), (Some(1), Some(0)));
    let ripe = plan(&podset, &world, after(30));
    assert_eq!(ripe.again, None);
    assert_eq!(condition(&ripe, "Available").0, "True");
}

#[test]
fn plans_nothing_for_a_deleted_object() {
    let mut podset = of(3);
    podset.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(plan(&podset, &running(&podset, 1), now()), Plan::default());
}

/// Simulates an API server and a kubelet.
#[derive(Clone)]
struct Cluster {
    podset: PodSet,
    pods: Vec<Pod>,
    now: Timestamp,
    made: u32,
}

impl Cluster {
    fn world(&self) -> World {
        let mut pods = self.pods.clone();
        pods.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        world(pods)
    }

    fn counted(&self) -> usize {
        self.pods.iter().filter(|pod| pod.is_counted()).count()
    }

    /// Executes a plan. Actions for which `which` returns false fail, and end the plan.
    fn carry_out(&mut self, plan: &Plan<PodSetStatus>, mut which: impl FnMut() -> bool) {
        for step in &plan.steps {
            let mut complete = true;
            for action in step {
                if which() {
                    self.act(action);
                } else {
                    complete = false;
                }
            }
            if !complete {
                return;
            }
        }
    }

    fn act(&mut self, action: &Action<PodSetStatus>) {
        match action {
            Action::Create { name, body, .. } if self.pods.iter().all(|pod| *pod.meta.name != **name) => {
                let mut pod: Pod = serde_json::from_value(body.value()).unwrap();
                self.made += 1;
                pod.meta.uid = self.made.to_string().into();
                pod.meta.created = Some(self.now);
                self.pods.push(pod);
            }
            Action::Delete { uid, .. } => {
                for pod in self.pods.iter_mut().filter(|pod| pod.meta.uid == *uid) {
                    pod.meta.deleted = Some(self.now);
                }
                self.pods.retain(|pod| pod.meta.deleted.is_none() || pod.is_running());
            }
            _ => {}
        }
    }

    fn becomes(&mut self, at: usize, phase: Phase) {
        if let Some(pod) = self.pods.get_mut(at).filter(|pod| pod.is_running()) {
            pod.phase = phase;
            pod.ready_since = (phase == Phase::Running).then_some(self.now);
        }
    }
}

fn phases() -> impl Strategy<Value = Vec<(u64, usize, bool, u32)>> {
    prop::collection::vec((0..12_u64, 0..5_usize, any::<bool>(), 0..4_u32), 0..12)
}

fn cluster(wanted: i32, pods: &[(u64, usize, bool, u32)]) -> Cluster {
    let podset = of(wanted);
    let mut cluster = Cluster { podset, pods: Vec::new(), now: now(), made: 0 };
    for (number, phase, going, attempt) in pods {
        let phase = ["Pending", "Running", "Unknown", "Failed", "Succeeded"][*phase];
        let mut pod = pod(&cluster.podset, *number, phase);
        pod.meta.deleted = going.then(now);
        pod.meta.annotations = [(ATTEMPT_ANNOTATION, &*attempt.to_string())].into();
        if cluster.pods.iter().all(|other| other.meta.name != pod.meta.name) {
            cluster.pods.push(pod);
        }
    }
    cluster
}

#[derive(Clone, Debug)]
enum Happening {
    /// A plan from the current state, executed as far as the bits allow.
    Pass(u32),
    /// A plan from the state that number of events ago.
    Stale(usize),
    Scale(i32),
    Becomes(usize, usize),
    Deleted(usize),
    Later(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        any::<u32>().prop_map(Happening::Pass),
        (1..6_usize).prop_map(Happening::Stale),
        (0..8_i32).prop_map(Happening::Scale),
        (0..12_usize, 0..4_usize).prop_map(|(at, phase)| Happening::Becomes(at, phase)),
        (0..12_usize).prop_map(Happening::Deleted),
        (0..700_i64).prop_map(Happening::Later),
    ]
}

proptest! {
    /// With any pods, counted and new pods never exceed the desired number, and surplus pods are deleted.
    #[test]
    fn never_exceeds_the_desired_number(wanted in 0..10_i32, pods in phases(), later in 0..1000_i64) {
        let cluster = cluster(wanted, &pods);
        let (wanted, counted) = (usize::try_from(wanted).unwrap(), cluster.counted());
        let plan = plan(&cluster.podset, &cluster.world(), after(later));
        let (made, gone) = (created(&plan), deleted(&plan));
        prop_assert!(counted + made.len() <= wanted.max(counted));
        let going = |pod: &&Pod| gone.iter().any(|name| **name == *pod.meta.name);
        let live = cluster.pods.iter().filter(|pod| pod.is_counted()).filter(going).count();
        prop_assert_eq!(live, counted.saturating_sub(wanted));
        prop_assert!(cluster.pods.iter().filter(going).all(|pod| pod.meta.deleted.is_none()));
        prop_assert_eq!(made.iter().chain(&gone).collect::<BTreeSet<_>>().len(), made.len() + gone.len());
        prop_assert!(cluster.pods.iter().all(|pod| !made.iter().any(|name| **name == *pod.meta.name)));
    }

    /// A partly executed plan that is repeated from the same old cache creates nothing twice.
    #[test]
    fn a_stale_cache_creates_nothing_twice(wanted in 0..10_i32, pods in phases(), which in any::<u32>(), again in any::<u32>()) {
        let mut cluster = cluster(wanted, &pods);
        let limit = usize::try_from(wanted).unwrap().max(cluster.counted());
        let old = plan(&cluster.podset, &cluster.world(), now());
        for mut bits in [which, again] {
            cluster.carry_out(&old, || { bits = bits.rotate_left(1); bits & 1 == 1 });
            let halfway = cluster.clone();
            let new = plan(&cluster.podset, &cluster.world(), now());
            cluster.carry_out(&new, || true);
            prop_assert!(cluster.counted() <= limit);
            cluster.carry_out(&old, || true);
            prop_assert!(cluster.counted() <= limit);
            cluster = halfway;
        }
    }

    /// After any events, with plans from caches of any age, the desired number of pods is ready in the end.
    /// No other pod of the PodSet is left, and the plan writes nothing more.
    #[test]
    fn converges(wanted in 0..8_i32, pods in phases(), happenings in prop::collection::vec(happening(), 0..24)) {
        let mut cluster = cluster(wanted, &pods);
        let mut views = vec![cluster.world()];
        for happening in happenings {
            match happening {
                Happening::Pass(mut bits) => {
                    let plan = plan(&cluster.podset, &cluster.world(), cluster.now);
                    cluster.carry_out(&plan, || { bits = bits.rotate_left(1); bits & 1 == 1 });
                }
                Happening::Stale(ago) => {
                    let view = &views[views.len().saturating_sub(ago)];
                    cluster.carry_out(&plan(&cluster.podset, view, cluster.now), || true);
                }
                Happening::Scale(replicas) => cluster.podset.spec.replicas = replicas,
                Happening::Becomes(at, phase) => cluster.becomes(
                    at, [Phase::Running, Phase::Failed, Phase::Succeeded, Phase::Unknown][phase]),
                Happening::Deleted(at) => if let Some(pod) = cluster.pods.get_mut(at) {
                    pod.meta.deleted = Some(cluster.now);
                }
                Happening::Later(seconds) => cluster.now += SignedDuration::from_secs(seconds),
            }
            views.push(cluster.world());
        }
        // The first plan creates or deletes all pods at once. Only pods that keep ending take longer.
        for _ in 0..3 {
            let plan = plan(&cluster.podset, &cluster.world(), cluster.now);
            cluster.carry_out(&plan, || true);
            cluster.podset.status = plan.status;
            cluster.pods.retain(|pod| pod.meta.deleted.is_none());
            for at in 0..cluster.pods.len() {
                cluster.becomes(at, Phase::Running);
            }
            cluster.now += LONGEST_BACKOFF;
        }
        let wanted = cluster.podset.spec.replicas;
        prop_assert_eq!(cluster.pods.len(), usize::try_from(wanted).unwrap());
        let last = plan(&cluster.podset, &cluster.world(), cluster.now);
        prop_assert!(last.steps.is_empty() && last.again.is_none());
        prop_assert_eq!(last.status.as_ref().unwrap().available_replicas, Some(wanted));
        cluster.podset.status.clone_from(&last.status);
        prop_assert_eq!(plan(&cluster.podset, &cluster.world(), cluster.now + LONGEST_BACKOFF), last);
    }
}

fn of_template(image: &str, spec: &Value) -> PodSet {
    let mut all =
        json!({"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}});
    for (field, value) in spec.as_object().unwrap() {
        all[field] = value.clone();
    }
    podset(&all)
}

/// The PodSet with the status of its plan.
fn told(mut podset: PodSet, world: &World, at: Timestamp) -> PodSet {
    podset.status = plan(&podset, world, at).status;
    podset
}

fn patched(plan: &Plan<PodSetStatus>) -> Vec<(&str, &Value)> {
    let patches = plan.steps.iter().flatten().filter_map(|action| match action {
        Action::Patch { name, operations, .. } => Some((&**name, operations)),
        Action::Merge { name, body, .. } => Some((&**name, &body["metadata"]["labels"])),
        _ => None,
    });
    patches.collect()
}

#[test]
fn golden_hash_of_the_built_in_template() {
    assert_eq!(template_hash(&of(1)), "v1-default");
    assert_eq!(template_hash(&of_template("i", &json!({}))), "v1-ke6a5g4uky");
}

#[test]
fn releases_and_replaces_a_pod_without_its_labels() {
    let set = of(2);
    for kept in [(NAME_LABEL, "p"), (UID_LABEL, "set")] {
        let mut world = running(&set, 2);
        let mut strayed = (*world.pods[0]).clone();
        strayed.meta.labels = [kept].into();
        strayed.meta.owner = Some(Arc::new(quintet_runtime::model::object::Owner {
            group: "g".into(),
            kind: "PodSet".into(),
            name: "p".into(),
            uid: "set".into(),
            at: 1,
        }));
        let name = strayed.meta.name.clone();
        world.pods[0] = Arc::new(strayed);
        let plan = plan(&set, &world, now());
        assert_eq!(created(&plan), names(&set, [2]), "its name is not free");
        assert!(deleted(&plan).is_empty());
        let path = "/metadata/ownerReferences/1";
        let mut operations = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
            {"op": "test", "path": "/metadata/uid", "value": format!("uid-{name}")},
            {"op": "test", "path": format!("{path}/uid"), "value": "set"},
            {"op": "remove", "path": path}]);
        if kept.0 == UID_LABEL {
            let label = "/metadata/labels/batch.tutorial.kubebuilder.io~1podset-uid";
            operations.as_array_mut().unwrap().push(json!({"op": "remove", "path": label}));
        }
        assert_eq!(patched(&plan), [(&*name, &operations)]);
        assert_eq!(plan.status.unwrap().replicas, Some(1));
    }
}

#[test]
fn restores_the_label_of_the_watch() {
    let set = of(1);
    let mut world = running(&set, 1);
    world.unlabelled = world.pods.clone();
    let plan = plan(&set, &world, now());
    assert_eq!(patched(&plan), [(&*world.pods[0].meta.name, &json!({KIND_LABEL: "PodSet"}))]);
    assert!(created(&plan).is_empty(), "it still counts");
}

#[test]
fn adopts_pods_of_the_tutorials_operator() {
    let set = of(2);
    let world = World { unmigrated: vec![Arc::new(pod(&set, 7, "Running"))], ..World::default() };
    let plan = plan(&set, &world, now());
    let labels = json!({KIND_LABEL: "PodSet", "app": "p", UID_LABEL: "set", HASH_LABEL: "v1-default"});
    assert_eq!(patched(&plan), [(&*world.unmigrated[0].meta.name, &labels)]);
    // The pods count already. Without a selector in the status, the search continues.
    assert_eq!(created(&plan).len(), 1);
    let status = plan.status.clone().unwrap();
    assert_eq!((status.replicas, status.updated_replicas, status.selector), (Some(1), Some(1), None));
    // A rejected label stops no other write.
    let mut refused_world = world;
    let name = refused_world.unmigrated[0].meta.name.to_string();
    refused_world.refusals.insert(&PODS, name, refused(Verb::MergePatch, RefusalReason::Other, after(60)));
    let plan = super::tests::plan(&set, &refused_world, now());
    assert!(patched(&plan).is_empty());
    assert_eq!((created(&plan).len(), plan.again), (1, Some(after(60))));
    assert_eq!(condition(&plan, "ReplicaFailure").1, "FailedPatch");
}

#[test]
fn a_new_podset_gets_pods_before_its_status() {
    let world = World { unsearched: true, ..World::default() };
    let plan = plan(&of(2), &world, now());
    assert_eq!((created(&plan).len(), plan.again), (2, Some(now())));
    assert!(plan.status.is_none() && plan.events.is_empty(), "the status ends the search for older pods");
}

/// The deadline starts over when a PodSet that was complete for an hour has work again.
#[test]
fn the_deadline_counts_from_the_start_of_work() {
    let set = of(2);
    let two = running(&set, 2);
    let set = told(set, &two, now());
    let hour = after(3_600);
    assert_eq!(plan(&set, &two, hour).status, set.status, "writes nothing meanwhile");
    for world in [running(&set, 1), running(&of(3), 1)] {
        let plan_ = plan(&set, &world, hour);
        assert_eq!(condition(&plan_, "Progressing").1, "Updating");
        assert!(plan_.events.is_empty());
        let set = told(set.clone(), &world, hour);
        assert_eq!(condition(&plan(&set, &world, after(4_199)), "Progressing").1, "Updating");
        assert_eq!(condition(&plan(&set, &world, after(4_200)), "Progressing").1, "ProgressDeadlineExceeded");
    }
    let mut scaled = set;
    scaled.spec.replicas = 5;
    scaled.metadata.generation = Some(2);
    assert_eq!(condition(&plan(&scaled, &two, hour), "Progressing").1, "Updating");
}

#[test]
fn a_pod_that_keeps_ending_is_not_progress() {
    let set = of(1);
    let mut set = told(set, &World::default(), now());
    for minute in 1..=10 {
        let at = after(minute * 60);
        let pending = world([Pod { ready_since: None, phase: Phase::Pending, ..pod(&set, 0, "Running") }]);
        set = told(set, &pending, at);
        set = told(set, &World::default(), at);
    }
    assert_eq!(
        condition(&plan(&set, &World::default(), after(601)), "Progressing").1,
        "ProgressDeadlineExceeded"
    );
}

#[test]
fn skips_any_number_of_foreign_names() {
    let set = of(3);
    let world = World {
        taken: names(&set, 0..200).iter().map(|name| name.as_str().into()).collect(),
        ..World::default()
    };
    assert_eq!(created(&plan(&set, &world, now())), names(&set, 200..203));
}

#[test]
fn labels_and_counts_a_pod_that_lost_the_watch_label() {
    let set = of(2);
    let mut one = World::default();
    one.refusals.insert(
        &PODS,
        pod_name(&set, 0),
        refused(Verb::Create, RefusalReason::LabelsMissing, after(60)),
    );
    let plan = plan(&set, &one, now());
    assert_eq!(patched(&plan), [(&*pod_name(&set, 0), &json!({KIND_LABEL: "PodSet"}))]);
    assert_eq!(created(&plan), names(&set, [1]));
}

#[test]
fn deletes_and_reports_while_creations_wait() {
    let set = of(3);
    let mut full = world([pod(&set, 0, "Running"), pod(&set, 1, "Failed")]);
    full.refusals.creations = Some(refused(Verb::Create, RefusalReason::Other, after(300)));
    let plan_ = plan(&set, &full, now());
    assert_eq!((created(&plan_).len(), deleted(&plan_).len(), plan_.again), (0, 1, Some(after(300))));
    assert_eq!(
        condition(&plan_, "ReplicaFailure"),
        ("True".into(), "FailedCreate".into(), "exceeded quota: q".into())
    );
    // Then one creation is attempted, and the others follow if it succeeds.
    let later = plan(&set, &full, after(300));
    let creates: Vec<usize> = later
        .steps
        .iter()
        .map(|step| step.iter().filter(|action| matches!(action, Action::Create { .. })).count())
        .collect();
    assert_eq!(creates, [0, 1, 1]);
    full.refusals.namespace_terminating = true;
    let going = plan(&set, &full, after(300));
    assert_eq!(created(&going).len(), 0);
    assert_eq!(condition(&going, "ReplicaFailure").1, "NamespaceTerminating");
}

/// The pause of all creations ends before the rejected names may be retried.
#[test]
fn waits_for_rejected_names_after_the_pause() {
    let set = of(3);
    let mut paused = World::default();
    paused.refusals.creations = Some(refused(Verb::Create, RefusalReason::Other, after(1)));
    for number in 0..3 {
        paused.refusals.insert(
            &PODS,
            pod_name(&set, number),
            refused(Verb::Create, RefusalReason::Other, after(10)),
        );
    }
    assert_eq!(plan(&set, &paused, now()).again, Some(after(1)));
    let after_pause = plan(&set, &paused, after(1));
    assert_eq!((created(&after_pause).len(), after_pause.again), (0, Some(after(10))));
    assert_eq!(condition(&after_pause, "ReplicaFailure").0, "True");
    assert_eq!(created(&plan(&set, &paused, after(10))).len(), 3);
}

/// A crashing rollout that is paused must not write its status repeatedly.
#[test]
fn a_paused_rollout_stops_writing() {
    let old = of_template("old", &json!({}));
    let mut crashing = pod(&of_template("new", &json!({})), 0, "Running");
    crashing.ready_since = None;
    let half = world([crashing, pod(&old, 1, "Running")]);
    let mut paused = of_template("new", &json!({"updateStrategy": {"paused": true}}));
    paused.status = told(of_template("new", &json!({})), &half, now()).status;
    let paused = told(paused, &half, after(10));
    assert_eq!(condition(&plan(&paused, &half, after(20)), "Progressing").1, "Paused");
    for later in [20, 1_000, 100_000] {
        assert_eq!(plan(&paused, &half, after(later)).status, paused.status);
    }
}

#[test]
fn limits_the_creations_of_one_plan() {
    assert_eq!(created(&plan(&of(5_000), &World::default(), now())).len(), MOST_CREATIONS);
    assert_eq!(Limits::of(&of(i32::MAX)).wanted, 100_000);
}

#[test]
fn a_fixed_template_needs_no_backoff() {
    let bad = of_template("bad", &json!({}));
    let mut ended = pod(&bad, 0, "Failed");
    ended.meta.annotations = [(ATTEMPT_ANNOTATION, "7")].into();
    let ended = world([ended, pod(&bad, 1, "Failed")]);
    assert_eq!(created(&plan(&bad, &ended, now())).len(), 1, "one waits");
    let mended = of_template("good", &json!({}));
    let plan = plan(&mended, &ended, now());
    assert_eq!((created(&plan).len(), deleted(&plan).len()), (2, 2));
    let attempts: Vec<bool> = plan
        .steps
        .iter()
        .flatten()
        .filter_map(|action| match action {
            Action::Create { body, .. } => Some(body.value()["metadata"].get("annotations").is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [false, false]);
}

#[test]
fn ignores_the_clock_without_min_ready_seconds() {
    let set = of(1);
    let mut ahead = pod(&set, 0, "Running");
    ahead.ready_since = Some(after(30));
    assert_eq!(plan(&set, &world([ahead]), now()).status.unwrap().available_replicas, Some(1));
}

#[test]
fn a_rollout_keeps_its_limits_and_reports_progress() {
    let old = of_template("old", &json!({}));
    let world_of_old = running(&old, 2);
    let old = told(old, &world_of_old, now());
    assert_eq!(condition(&plan(&old, &world_of_old, now()), "Progressing").1, "PodsUpdated");
    let mut new = of_template("new", &json!({}));
    new.status = old.status;
    let first = plan(&new, &world_of_old, after(5));
    assert_eq!((deleted(&first).len(), created(&first).len()), (1, 0));
    assert_eq!(condition(&first, "Progressing").1, "Updating");
    let status = first.status.as_ref().unwrap();
    assert_eq!((status.updated_replicas, status.replicas), (Some(0), Some(2)));
    assert_eq!(status.last_progress_time, Some(Time(after(5))));
    assert_eq!(first.again, Some(after(605)));
    // The new pod crashes. No other pod is deleted, and after the deadline the status reports it.
    let mut crashing = pod(&new, 0, "Running");
    crashing.ready_since = None;
    crashing.waiting = Some("CrashLoopBackOff".into());
    let exit = quintet_runtime::model::core_types::Exit {
        container: "c".into(),
        code: 3,
        reason: "Error".into(),
        message: "".into(),
    };
    crashing.crashed = Some(Box::new(exit));
    let half = world([crashing, (*world_of_old.pods[1]).clone()]);
    let new = told(new, &half, after(6));
    let waiting = plan(&new, &half, after(100));
    assert!(waiting.steps.is_empty() && waiting.status == new.status, "{:?}", waiting.steps);
    assert_eq!(waiting.again, Some(after(606)));
    let late = plan(&new, &half, after(606));
    let (status, reason, message) = condition(&late, "Progressing");
    assert_eq!((&*status, &*reason), ("False", "ProgressDeadlineExceeded"));
    assert!(message.contains("CrashLoopBackOff container c ended with exit code 3 (Error)"), "{message}");
    assert_eq!(late.events[0].reason, "ProgressDeadlineExceeded");
    assert!(deleted(&late).is_empty());
    let status = late.status.unwrap();
    assert_eq!((status.not_ready[0].reason.as_str(), status.not_ready.len()), ("CrashLoopBackOff", 1));
    // The Event is recorded once, and the next progress ends the failure.
    let mut new = new;
    new.status = Some(status_after(&new, &half, after(606)));
    assert!(plan(&new, &half, after(900)).events.is_empty());
    let healed = world([pod(&new, 0, "Running"), (*world_of_old.pods[1]).clone()]);
    let plan = plan(&new, &healed, after(1_000));
    assert_eq!(deleted(&plan).len(), 1);
    assert_eq!(condition(&plan, "Progressing").1, "Updating");
}

fn status_after(podset: &PodSet, world: &World, at: Timestamp) -> PodSetStatus {
    plan(podset, world, at).status.unwrap()
}

#[test]
fn reports_why_old_pods_stay() {
    let old = of_template("old", &json!({}));
    let pods = running(&old, 2);
    for (strategy, status, reason) in [
        (json!({"type": "OnDelete"}), "True", "OnDelete"),
        (json!({"paused": true}), "Unknown", "Paused"),
        (json!({"partition": "100%"}), "True", "PartitionReached"),
    ] {
        let new = of_template("new", &json!({"updateStrategy": strategy}));
        let plan_ = plan(&new, &pods, now());
        assert!(plan_.steps.is_empty(), "{reason}");
        let (is, why, _) = condition(&plan_, "Progressing");
        assert_eq!((&*is, &*why), (status, reason));
        let new = told(new, &pods, now());
        assert_eq!(plan(&new, &pods, after(100_000)).status, new.status, "no deadline: {reason}");
        // A pod that disappears is still replaced with the new template.
        let gone = world([(*pods.pods[0]).clone()]);
        let body = body(&plan(&new, &gone, now()));
        assert_eq!(body["spec"]["containers"][0]["image"], "new");
    }
}

#[test]
fn reports_foreign_pods() {
    let world = World { strangers: Some("3 pods of others".into()), ..World::default() };
    let plan = plan(&of(0), &world, now());
    assert_eq!((plan.events[0].reason, &*plan.events[0].note), ("ForeignPods", "3 pods of others"));
}

#[test]
fn reports_why_pods_are_not_ready() {
    let set = of(6);
    let unready = |number: u64, change: &dyn Fn(&mut Pod)| {
        let mut pod = pod(&set, number, "Running");
        pod.ready_since = None;
        change(&mut pod);
        pod
    };
    let pods = [
        unready(0, &|pod| {
            (pod.node, pod.phase) = (None, Phase::Pending);
            pod.unschedulable = Some("0/3 nodes are available".into());
        }),
        unready(1, &|pod| (pod.phase, pod.waiting) = (Phase::Pending, Some("ImagePullBackOff".into()))),
        unready(2, &|pod| (pod.phase, pod.waiting) = (Phase::Pending, Some("ContainerCreating".into()))),
        unready(3, &|pod| (pod.node, pod.phase) = (None, Phase::Pending)),
        unready(4, &|_| {}),
        unready(5, &|pod| {
            let (container, reason, message) = ("c".into(), "Error".into(), "".into());
            pod.crashed = Some(Box::new(quintet_runtime::model::core_types::Exit {
                container,
                code: 3,
                reason,
                message,
            }));
        }),
    ];
    let status = plan(&set, &world(pods), now()).status.unwrap();
    let mut reasons: Vec<_> = status.not_ready.iter().map(|pod| pod.reason.as_str()).collect();
    reasons.sort_unstable();
    let expected =
        ["CrashLoopBackOff", "ImagePullBackOff", "NotReady", "Scheduling", "Starting", "Unschedulable"];
    assert_eq!(reasons, expected);
    let crowd = plan(&of(30), &world((0..30).map(|number| unready(number, &|_| {}))), now()).status.unwrap();
    assert_eq!((crowd.not_ready.len(), crowd.more_not_ready), (20, Some(10)));
}

/// A cluster with lagging caches and other clients. The test checks the promises against the true state.
struct Life {
    cluster: Cluster,
    /// The history of the watch, one entry for each change. A cache has a position in it.
    views: Vec<Vec<Pod>>,
    /// The position of the manager's last write; its cache is never behind it.
    written: usize,
    /// Names of released pods.
    released: BTreeSet<String>,
    refusals: quintet_runtime::model::refusals::Refusals,
}

#[derive(Clone, Debug)]
enum Happens {
    Pass { lag: usize, writes: usize },
    Crash,
    Spec { replicas: i32, image: u8, unavailable: i32, surge: i32, partition: i32, type_: u8 },
    Becomes(usize, usize),
    Deleted(usize),
    Gone(usize),
    Unlabelled(usize),
    Later(i64),
}

fn event() -> impl Strategy<Value = Happens> {
    let spec = (0..7_i32, 0..3_u8, 0..3_i32, 0..3_i32, 0..3_i32, 0..4_u8);
    prop_oneof![
        8 => (0..5_usize, prop_oneof![2 => Just(usize::MAX), 1 => 0..4_usize])
            .prop_map(|(lag, writes)| Happens::Pass { lag, writes }),
        1 => Just(Happens::Crash),
        2 => spec.prop_map(|(replicas, image, unavailable, surge, partition, type_)| Happens::Spec {
            replicas, image, unavailable, surge, partition, type_ }),
        8 => (0..12_usize, 0..5_usize).prop_map(|(at, phase)| Happens::Becomes(at, phase)),
        1 => (0..12_usize).prop_map(Happens::Deleted),
        2 => (0..12_usize).prop_map(Happens::Gone),
        1 => (0..12_usize).prop_map(Happens::Unlabelled),
        2 => (0..60_i64).prop_map(Happens::Later),
    ]
}

impl Life {
    fn new() -> Self {
        let cluster = Cluster { podset: of_template("0", &json!({})), pods: Vec::new(), now: now(), made: 0 };
        Self {
            cluster,
            views: vec![Vec::new()],
            written: 0,
            released: BTreeSet::new(),
            refusals: quintet_runtime::model::refusals::Refusals::default(),
        }
    }

    fn limits(&self) -> Limits {
        Limits::of(&self.cluster.podset)
    }

    fn available(pods: &[Pod]) -> usize {
        pods.iter().filter(|pod| pod.is_counted() && pod.ready_since.is_some()).count()
    }

    fn pass(&mut self, lag: usize, writes: usize) -> Result<bool, TestCaseError> {
        let at = self.written.max((self.views.len() - 1).saturating_sub(lag));
        let mut view = World { refusals: self.refusals.clone(), ..world(self.views[at].clone()) };
        view.pods.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        let is_fresh = at + 1 == self.views.len();
        let plan = plan(&self.cluster.podset, &view, self.cluster.now);
        let (mut left, limits) = (writes, self.limits());
        for step in &plan.steps {
            let mut complete = true;
            for action in step {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                let before = (self.cluster.counted(), Self::available(&self.cluster.pods));
                complete &= self.act(action);
                let after = (self.cluster.counted(), Self::available(&self.cluster.pods));
                if after.0 > before.0 {
                    prop_assert!(
                        after.0 <= limits.wanted + limits.surge,
                        "too many: {after:?} of {limits:?}"
                    );
                }
                if after.1 < before.1 && is_fresh && !matches!(action, Action::Patch { .. }) {
                    let least = limits.wanted.saturating_sub(limits.unavailable);
                    prop_assert!(after.1 >= least, "too few: {after:?} of {limits:?}");
                }
            }
            if !complete {
                break;
            }
        }
        self.cluster.podset.status = plan.status;
        Ok(plan.steps.is_empty())
    }

    fn act(&mut self, action: &Action<PodSetStatus>) -> bool {
        match action {
            Action::Create { name, .. } if self.released.contains(name) => {
                self.refusals.insert(
                    &PODS,
                    name.clone(),
                    refused(Verb::Create, RefusalReason::NameTaken, Timestamp::MAX),
                );
                return false;
            }
            Action::Patch { name, .. } => {
                self.released.insert(name.to_string());
                self.cluster.pods.retain(|pod| pod.meta.name != *name);
            }
            other => self.cluster.act(other),
        }
        for pod in &mut self.cluster.pods {
            // The fixture of pods has no owner references.
            pod.meta.owner.get_or_insert_with(|| {
                Arc::new(quintet_runtime::model::object::Owner {
                    group: "g".into(),
                    kind: "PodSet".into(),
                    name: "p".into(),
                    uid: "set".into(),
                    at: 0,
                })
            });
        }
        self.seen();
        self.written = self.views.len() - 1;
        true
    }

    fn seen(&mut self) {
        self.views.push(self.cluster.pods.clone());
    }

    fn happens(&mut self, event: &Happens) -> Result<(), TestCaseError> {
        match *event {
            Happens::Pass { lag, writes } => {
                self.pass(lag, writes)?;
                return Ok(());
            }
            // A new process lists everything.
            Happens::Crash => {
                self.written = self.views.len() - 1;
                self.refusals = quintet_runtime::model::refusals::Refusals::default();
            }
            Happens::Spec { replicas, image, unavailable, surge, partition, type_ } => {
                let strategy = match type_ {
                    0 => json!({"type": "OnDelete"}),
                    1 => json!({"paused": true}),
                    _ => json!({"maxUnavailable": unavailable, "maxSurge": surge, "partition": partition}),
                };
                let spec = json!({"replicas": replicas, "updateStrategy": strategy});
                let status = self.cluster.podset.status.take();
                self.cluster.podset = of_template(&image.to_string(), &spec);
                self.cluster.podset.status = status;
            }
            Happens::Becomes(at, phase) => {
                let phase =
                    [Phase::Running, Phase::Running, Phase::Failed, Phase::Unknown, Phase::Succeeded][phase];
                self.cluster.becomes(at, phase);
            }
            Happens::Deleted(at) => {
                if let Some(pod) = self.cluster.pods.get_mut(at) {
                    pod.meta.deleted = Some(self.cluster.now);
                }
            }
            Happens::Gone(at) => {
                if self.cluster.pods.get(at).is_some_and(|pod| pod.meta.deleted.is_some()) {
                    self.cluster.pods.remove(at);
                }
            }
            Happens::Unlabelled(at) => {
                if let Some(pod) = self.cluster.pods.get_mut(at) {
                    pod.meta.labels = [(UID_LABEL, "set")].into();
                }
            }
            Happens::Later(seconds) => self.cluster.now += SignedDuration::from_secs(seconds),
        }
        self.seen();
        Ok(())
    }
}

proptest! {
    /// Other clients do anything, caches lag, and processes die between two writes. No creation exceeds
    /// replicas plus maxSurge, no deletion leaves too few available pods, and in the end the pods match the
    /// spec.
    #[test]
    fn keeps_its_promises(events in prop::collection::vec(event(), 0..60)) {
        let mut life = Life::new();
        for event in &events {
            life.happens(event)?;
        }
        life.happens(&Happens::Crash)?;
        let mut quiet = false;
        for _ in 0..25 {
            quiet = life.pass(0, usize::MAX)?;
            life.cluster.pods.retain(|pod| pod.meta.deleted.is_none());
            for at in 0..life.cluster.pods.len() {
                life.cluster.becomes(at, Phase::Running);
            }
            life.cluster.now += LONGEST_BACKOFF;
            life.seen();
        }
        prop_assert!(quiet, "it converges");
        let limits = life.limits();
        prop_assert_eq!(life.cluster.counted(), limits.wanted);
        let hash = template_hash(&life.cluster.podset);
        let old = life.cluster.pods.iter().filter(|pod| pod.label(HASH_LABEL) != Some(&*hash)).count();
        prop_assert!(!limits.rolls || old <= limits.partition);
    }
}
