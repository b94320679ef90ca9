use std::sync::Arc;

use super::*;
use crate::api::Autoscaling;
use crate::backlog::{Figures, Reading, Unknown};
use crate::deployment::{Image, NAME_LABEL};
use crate::observe::Keda;
use jiff::SignedDuration;
use kube::CustomResourceExt as _;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use rstest::rstest;

const START: &str = "2026-01-01T00:00:00Z";
const IMAGE: &str = "krvarma/pulsarconsumer:latest";

fn now() -> Timestamp {
    START.parse().unwrap()
}

/// The tutorial's sample without its label, which made the tutorial's operator panic.
fn consumer() -> PulsarConsumer {
    serde_json::from_value(json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": {"name": "sample", "namespace": "ns", "uid": "me", "generation": 1},
        "spec": {
            "serverAddress": "pulsar://localhost:6650", "topic": "my-topic",
            "subscriptionName": "first-subscription", "replicas": 1},
    }))
    .unwrap()
}

/// A world in which this process applied the objects an hour ago, and each has the generation that the apply returned.
fn world(deployment: Option<Deployment>) -> World {
    let mut world = World { deployment: deployment.map(Arc::new), image: image(), ..World::default() };
    for (resource, uid) in [
        (DEPLOYMENTS, "d"),
        (SCALED_OBJECTS, "ScaledObject"),
        (TRIGGER_AUTHENTICATIONS, "TriggerAuthentication"),
    ] {
        let after = AppliedObject { kind: resource.kind.to_owned(), uid: uid.to_owned(), generation: 1 };
        let (hash, at) = (String::new(), now() - SignedDuration::from_hours(1));
        let attempt = Attempt { resource, hash, at, repairs: 0, before: 0, after: Some(after) };
        world.attempts.insert(resource, attempt);
    }
    world
}

/// Records the answer to the plan's apply: the object has this generation after it.
fn answered(world: &mut World, plan: &ConsumerPlan, generation: i64) {
    for action in plan.steps.iter().flatten() {
        if let Action::Effect(attempt) = action {
            let after = AppliedObject { kind: attempt.resource.kind.to_owned(), uid: "d".into(), generation };
            world.attempts.insert(attempt.resource, Attempt { after: Some(after), ..attempt.clone() });
        }
    }
}

fn image() -> Arc<Image> {
    Arc::new(Image { name: IMAGE.to_owned(), health_port: None })
}

fn decoded(raw: Value) -> Deployment {
    serde_json::from_value(raw).unwrap()
}

/// The body of a first apply.
fn wanted(consumer: &PulsarConsumer) -> Value {
    match plan(consumer, &world(None), now()).steps.remove(0).remove(0) {
        Action::Apply { body, .. } => body,
        other => panic!("{other:?}"),
    }
}

/// The stored object after an apply: with identity, defaults, and a status with this number of ready pods.
fn stored(body: Value, ready: i32) -> Value {
    let mut raw = body;
    raw["metadata"]["uid"] = json!("d");
    raw["metadata"]["resourceVersion"] = json!("7");
    raw["metadata"]["generation"] = json!(1);
    raw["metadata"]["creationTimestamp"] = json!("2025-12-31T23:00:00Z");
    raw["spec"]["progressDeadlineSeconds"] = json!(600);
    raw["spec"]["revisionHistoryLimit"] = json!(10);
    let template = &mut raw["spec"]["template"]["spec"];
    template["restartPolicy"] = json!("Always");
    template["containers"][0]["imagePullPolicy"] = json!("Always");
    let replicas = raw["spec"]["replicas"].clone();
    raw["status"] = json!({"observedGeneration": 1, "replicas": replicas, "readyReplicas": ready});
    raw
}

/// The converged Deployment of this consumer.
fn settled(consumer: &PulsarConsumer) -> Value {
    stored(wanted(consumer), consumer.spec.replicas)
}

/// The consumer with the status of its plan.
fn told(mut consumer: PulsarConsumer, world: &World, at: Timestamp) -> PulsarConsumer {
    consumer.status = plan(&consumer, world, at).status;
    consumer
}

/// The body and `force` of the only apply, if there is one.
fn applies(plan: &Plan<PulsarConsumerStatus, Attempt>) -> Option<(&Value, bool)> {
    let actions: Vec<_> =
        plan.steps.iter().flatten().filter(|action| !matches!(action, Action::Effect(_))).collect();
    match actions[..] {
        [] => None,
        [Action::Apply { body, force, name, namespace, resource }] => {
            assert_eq!((name.as_str(), &**namespace), ("sample-deployment", "ns"));
            assert_eq!(*resource, DEPLOYMENTS);
            Some((body, *force))
        }
        ref others => panic!("more than one apply: {others:?}"),
    }
}

fn condition(plan: &Plan<PulsarConsumerStatus, Attempt>, type_: &str) -> (String, String, String) {
    let found = plan.status.as_ref().unwrap().conditions.iter().find(|one| one.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn applies_the_tutorials_deployment_with_only_owned_fields() {
    let first = plan(&consumer(), &world(None), now());
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "sample-deployment",
            "namespace": "ns",
            "labels": {"pulsarcrd": "sample-pulsarcrd"},
            "annotations": {"quintet.dev/applied": "v1-ahts4hfs3rttkbns"},
            "ownerReferences": [{
                "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
                "name": "sample", "uid": "me", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"pulsarcrd": "sample-pulsarcrd"}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
            "template": {
                "metadata": {"labels": {
                    "pulsarcrd": "sample-pulsarcrd",
                    "quintet.dev/kind": "PulsarConsumer",
                    "pulsar.pulsarconsumer.krvarma.com/uid": "me",
                }},
                "spec": {
                    "automountServiceAccountToken": false,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                    "name": "pulsarconsumer",
                    "image": "krvarma/pulsarconsumer:latest",
                        "imagePullPolicy": "Always",
                    "env": [
                        {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"},
                        {"name": "PULSAR_TOPIC", "value": "my-topic"},
                        {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"},
                    ],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": true,
                    },
                }]},
            },
        },
    });
    assert_eq!(applies(&first), Some((&expected, false)));
}

#[test]
fn the_objects_labels_are_not_in_the_selector() {
    let mut labelled = consumer();
    labelled.metadata.labels =
        Some([("app".to_owned(), "x".to_owned()), (NAME_LABEL.to_owned(), "y".to_owned())].into());
    let (with, without) = (wanted(&labelled), wanted(&consumer()));
    assert_eq!(with["metadata"]["labels"], json!({"app": "x", NAME_LABEL: "sample-pulsarcrd"}));
    assert_eq!(with["spec"], without["spec"], "neither the selector nor the template changes");
}

#[test]
fn the_spec_overrides_the_managers_image() {
    let mut own = consumer();
    own.spec.image = Some("mine:1".into());
    assert_eq!(wanted(&own)["spec"]["template"]["spec"]["containers"][0]["image"], "mine:1");
    assert_ne!(wanted(&own)["metadata"]["annotations"], wanted(&consumer())["metadata"]["annotations"]);
}

#[test]
fn reports_each_step_until_it_is_ready() {
    let mut consumer = consumer();
    let first = plan(&consumer, &world(None), now());
    assert!(applies(&first).is_some() && first.status.is_none(), "only the apply");

    let young = settled(&consumer);
    let at = |status: Value| {
        let mut raw = young.clone();
        raw["status"] = status;
        world(Some(decoded(raw)))
    };
    for (status, words) in [
        (json!({}), "0 of 1 consumers are ready."),
        (json!({"observedGeneration": 1, "replicas": 1}), "0 of 1 consumers are ready."),
        (json!({"observedGeneration": 1, "replicas": 1, "readyReplicas": 1}), "1 of 1 consumers are ready."),
    ] {
        let next = plan(&consumer, &at(status), now());
        assert!(next.steps.is_empty() && next.status != consumer.status);
        assert_eq!(condition(&next, "Available").2, words);
        consumer.status = next.status;
    }
    let ready = at(json!({"observedGeneration": 1, "replicas": 1, "readyReplicas": 1}));
    let after = plan(&consumer, &ready, now() + SignedDuration::from_hours(1));
    assert!(after.steps.is_empty() && after.events.is_empty() && after.again.is_none());
    assert_eq!(after.status, consumer.status);
}

#[test]
fn the_status_has_the_deployments_figures() {
    let mut consumer = consumer();
    consumer.spec.replicas = 3;
    let world = world(Some(decoded(stored(wanted(&consumer), 2))));
    let plan = plan(&consumer, &world, now());
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    let (available, applied) = (condition(&plan, "Available"), condition(&plan, "Applied"));
    assert_eq!(
        (&*available.0, &*available.1, &*available.2),
        ("False", "ConsumersNotReady", "2 of 3 consumers are ready.")
    );
    assert_eq!((&*applied.0, &*applied.1), ("True", "AsSpecified"));
    let status = PulsarConsumerStatus { conditions: vec![], ..plan.status.unwrap() };
    assert_eq!(
        serde_json::to_value(status).unwrap(),
        json!({
            "observedGeneration": 1, "server": "pulsar://localhost:6650", "topic": "my-topic",
            "subscription": "first-subscription", "replicas": 3, "readyReplicas": 2,
            "selector": "pulsarcrd=sample-pulsarcrd",
            "applied": [{"kind": "Deployment", "uid": "d", "generation": 1}],
        })
    );
}

#[rstest]
#[case::ready(1, 1, 1, None, "True", "ConsumersReady", "1 of 1 consumers are ready.")]
#[case::more_than_desired(1, 2, 1, None, "True", "ConsumersReady", "2 of 1 consumers are ready.")]
#[case::stale_figures(1, 1, 0, None, "Unknown", "NotObservedYet", "Not observed yet.")]
#[case::stale_figures_of_too_few(2, 1, 0, None, "False", "ConsumersNotReady", "1 of 2 consumers are ready.")]
#[case::trouble(
    1,
    0,
    1,
    Some("no quota"),
    "False",
    "DeploymentTrouble",
    "0 of 1 consumers are ready: no quota"
)]
#[case::stuck_rollout(
    1,
    1,
    1,
    Some("too slow"),
    "True",
    "ConsumersReady",
    "1 of 1 consumers are ready: too slow"
)]
#[case::zero(0, 0, 1, None, "True", "ConsumersReady", "No consumer is desired.")]
fn available_follows_readiness(
    #[case] wanted: i32,
    #[case] ready: i32,
    #[case] observed: i64,
    #[case] trouble: Option<&str>,
    #[case] status: &str,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let mut consumer = consumer();
    consumer.spec.replicas = wanted;
    let mut deployment = decoded(settled(&consumer));
    deployment.ready = ready;
    deployment.observed_generation = observed;
    deployment.trouble = trouble.map(Into::into);
    let plan = plan(&consumer, &world(Some(deployment)), now());
    assert_eq!(condition(&plan, "Available"), (status.into(), reason.into(), message.into()));
}

/// The converged Deployment with one changed or added member. A change of the spec changes the generation.
fn changed(consumer: &PulsarConsumer, parent: &str, member: &str, value: Value) -> World {
    let mut raw = settled(consumer);
    raw.pointer_mut(parent).unwrap()[member] = value;
    raw["metadata"]["generation"] = json!(if parent.starts_with("/spec") { 2 } else { 1 });
    world(Some(decoded(raw)))
}

/// The pods' spec and their container in a Deployment.
const POD: &str = "/spec/template/spec";
const CONTAINER_ZERO: &str = "/spec/template/spec/containers/0";

#[rstest]
#[case::scaled("/spec", "replicas", json!(5))]
#[case::other_image(CONTAINER_ZERO, "image", json!("evil"))]
#[case::a_variable_gone(CONTAINER_ZERO, "env", json!([{"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}]))]
#[case::another_value(CONTAINER_ZERO, "env", json!([
    {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}, {"name": "PULSAR_TOPIC", "value": "x"},
    {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"}]))]
#[case::the_container_renamed(CONTAINER_ZERO, "name", json!("x"))]
#[case::capabilities("/spec/template/spec/containers/0/securityContext/capabilities", "drop", json!(["ALL", "X"]))]
#[case::recreate("/spec", "strategy", json!({"type": "Recreate"}))]
#[case::label_gone("/metadata", "labels", json!({"other": "x"}))]
#[case::template_label("/spec/template/metadata/labels", "quintet.dev/kind", json!("x"))]
#[case::mark_gone("/metadata", "annotations", json!({}))]
fn repairs_drift(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let consumer = consumer();
    let plan = plan(&consumer, &changed(&consumer, parent, member, value), now());
    let (body, force) = applies(&plan).unwrap();
    assert!(force);
    // The UID protects another object that has the name meanwhile.
    let mut expected = wanted(&consumer);
    expected["metadata"]["uid"] = json!("d");
    assert_eq!(*body, expected);
}

#[rstest]
#[case::sidecar(POD, "containers", {
    let ours = settled(&consumer())["spec"]["template"]["spec"]["containers"][0].clone();
    json!([{"name": "sidecar", "image": "x"}, ours])
})]
#[case::variable(CONTAINER_ZERO, "env", json!([
    {"name": "X"}, {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"},
    {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}, {"name": "PULSAR_TOPIC", "value": "my-topic"}]))]
#[case::resources(CONTAINER_ZERO, "resources", json!({"limits": {"cpu": "1"}}))]
#[case::label("/metadata/labels", "team", json!("a"))]
#[case::restarted("/spec/template/metadata", "annotations", json!({"kubectl.kubernetes.io/restartedAt": "x"}))]
#[case::paused("/spec", "paused", json!(true))]
fn keeps_fields_of_other_clients(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let consumer = consumer();
    let mut world = changed(&consumer, parent, member, value);
    let first = plan(&consumer, &world, now());
    // The generation shows only that the spec has changed. The apply changes nothing.
    assert_eq!(applies(&first).is_some(), parent.starts_with("/spec"));
    answered(&mut world, &first, 2);
    let second = plan(&consumer, &world, now());
    assert!(second.steps.is_empty(), "{:?}", second.steps);
    assert_eq!(condition(&second, "Applied").0, "True");
}

#[rstest]
#[case("serverAddress", json!("pulsar://other:6650"))]
#[case("topic", json!("other"))]
#[case("subscriptionName", json!("other"))]
#[case("replicas", json!(0))]
#[case("image", json!("other"))]
fn applies_every_field_of_the_spec(#[case] field: &str, #[case] value: Value) {
    let mut consumer = consumer();
    let before = world(Some(decoded(settled(&consumer))));
    let mut spec = serde_json::to_value(&consumer.spec).unwrap();
    spec[field] = value;
    consumer.spec = serde_json::from_value(spec).unwrap();
    let plan = plan(&consumer, &before, now());
    assert!(applies(&plan).unwrap().1);
    assert_eq!(plan.status, None, "the status waits for the Deployment");
    let after = world(Some(decoded(settled(&consumer))));
    assert!(super::plan(&consumer, &after, now()).steps.is_empty());
}

#[rstest]
#[case::another_kind(Some(("StatefulSet", "db", "x")), "belongs to StatefulSet db.")]
#[case::an_earlier_one(Some(("PulsarConsumer", "sample", "x")), "belongs to PulsarConsumer sample (UID x).")]
#[case::no_controller(None, "belongs to no controller.")]
fn ignores_a_foreign_deployment(#[case] owner: Option<(&str, &str, &str)>, #[case] words: &str) {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["ownerReferences"] = match owner {
        Some((kind, name, uid)) => json!([
            {"apiVersion": "x/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]),
        // An owner that is not a controller does not count.
        None => json!([{"apiVersion": "x/v1", "kind": "X", "name": "sample", "uid": "me"}]),
    };
    raw["spec"]["replicas"] = json!(9);
    let world = world(Some(decoded(raw)));
    let plan = plan(&consumer, &world, now());
    assert!(plan.steps.is_empty());
    assert_eq!(plan.again, Some(now() + SignedDuration::from_mins(1)));
    for type_ in ["Available", "Applied"] {
        let (status, reason, message) = condition(&plan, type_);
        assert_eq!((&*status, &*reason), ("False", "NotOwned"));
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(plan.events.len(), 1, "{:?}", plan.events);
    let status = plan.status.as_ref().unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (Some(0), Some(0)));
    let again = super::plan(&told(consumer, &world, now()), &world, now() + SignedDuration::from_mins(1));
    assert!(again.events.is_empty());
    assert_eq!(again.status, plan.status);
}

#[test]
fn ignores_a_deployment_of_another_operator() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
    raw["metadata"]["uid"] = json!("another");
    let world = world(Some(decoded(raw)));
    let plan = plan(&consumer, &world, now());
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    let (status, reason, message) = condition(&plan, "Applied");
    assert_eq!((&*status, &*reason), ("False", "NotOwned"));
    assert!(message.ends_with("kubectl delete deployments sample-deployment"), "{message}");
}

#[test]
fn quotes_a_refusal_and_waits() {
    let consumer = consumer();
    let until = now() + SignedDuration::from_secs(10);
    let refusal = Refusal {
        verb: Verb::Apply,
        reason: RefusalReason::Other,
        message: "images must come from our registry".into(),
        times: 1,
        until,
    };
    let mut world = world(None);
    world.refusals.insert(&DEPLOYMENTS, "sample-deployment", refusal.clone());
    let refused = plan(&consumer, &world, now());
    assert!(refused.steps.is_empty());
    assert_eq!(refused.again, Some(until));
    let (status, reason, message) = condition(&refused, "Applied");
    assert_eq!((&*status, &*reason), ("False", "Refused"));
    assert!(message.ends_with("images must come from our registry"), "{message}");
    assert_eq!(condition(&refused, "Available").1, "DeploymentMissing");
    assert!(applies(&plan(&consumer, &world, until)).is_some());

    // The running pods continue, and the status reports them.
    let mut changed = consumer.clone();
    changed.spec.image = Some("other".into());
    world.deployment = Some(Arc::new(decoded(settled(&consumer))));
    let running = plan(&changed, &world, now());
    assert!(running.steps.is_empty());
    assert_eq!(
        (condition(&running, "Applied").0, condition(&running, "Available").0),
        ("False".into(), "True".into())
    );
    // A refusal does not count after the spec has changed.
    assert_eq!(condition(&plan(&consumer, &world, now()), "Applied").0, "True");
}

/// The converged Deployment at a generation, with another image if `is_changed`.
fn at_generation(consumer: &PulsarConsumer, generation: i64, is_changed: bool) -> Arc<Deployment> {
    let mut raw = settled(consumer);
    raw["metadata"]["generation"] = json!(generation);
    raw["status"]["observedGeneration"] = json!(generation);
    if is_changed {
        raw["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror/pulsarconsumer:latest");
    }
    Arc::new(decoded(raw))
}

#[test]
fn repairs_three_times_and_then_with_backoff() {
    let consumer = consumer();
    let mut world = world(None);
    let create = plan(&consumer, &world, now());
    answered(&mut world, &create, 1);
    let (mut at, mut generation) = (now(), 1);
    // Another controller always changes the image back within a second.
    for wait in [0, 0, 0, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
        world.deployment = Some(at_generation(&consumer, generation + 1, true));
        if wait > 0 {
            let overruled = plan(&consumer, &world, at + SignedDuration::from_secs(wait - 1));
            assert!(overruled.steps.is_empty(), "{:?}", overruled.steps);
            assert_eq!(overruled.again, Some(at + SignedDuration::from_secs(wait)));
            let (status, reason, _) = condition(&overruled, "Applied");
            assert_eq!((&*status, &*reason), ("False", "Overruled"));
            assert_eq!(condition(&overruled, "Available").0, "True");
            assert_eq!(overruled.events.len(), 1);
        }
        at += SignedDuration::from_secs(wait);
        let repair = plan(&consumer, &world, at);
        assert!(applies(&repair).is_some(), "after {wait} s");
        generation += 2;
        answered(&mut world, &repair, generation);
    }

    // A change of the PulsarConsumer is applied at once.
    world.deployment = Some(at_generation(&consumer, generation + 1, true));
    let mut asked = consumer.clone();
    asked.spec.topic = "other".into();
    assert!(applies(&plan(&asked, &world, at)).is_some());

    // After a long time without a change, a repair is immediate again.
    let late = at + SignedDuration::from_hours(3);
    let repair = plan(&consumer, &world, late);
    assert!(applies(&repair).is_some());
    answered(&mut world, &repair, generation + 2);
    world.deployment = Some(at_generation(&consumer, generation + 3, true));
    assert!(applies(&plan(&consumer, &world, late)).is_some());
}

#[rstest]
#[case::before_the_apply(1, None, true)]
#[case::between_apply_and_status(2, Some(1), true)]
#[case::after_the_status(2, Some(2), false)]
fn a_new_manager_repeats_an_apply_without_a_status(
    #[case] generation: i64,
    #[case] told: Option<i64>,
    #[case] is_applied: bool,
) {
    let mut consumer = consumer();
    let applied =
        told.map(|generation| AppliedObject { kind: "Deployment".into(), uid: "d".into(), generation });
    consumer.status = Some(PulsarConsumerStatus {
        applied: applied.into_iter().collect(),
        ..PulsarConsumerStatus::default()
    });
    let mut world = world(None);
    world.attempts.clear();
    world.deployment = Some(at_generation(&consumer, generation, false));
    let first = plan(&consumer, &world, now());
    assert_eq!(applies(&first).is_some(), is_applied);
    // The repetition changes nothing and causes no event, but is recorded.
    answered(&mut world, &first, generation);
    assert!(!is_applied || first.again == Some(now() + FOLLOW_UP));
    let second = plan(&consumer, &world, now() + FOLLOW_UP);
    assert!(second.steps.is_empty());
    let status = second.status.unwrap();
    assert_eq!(status.applied, [AppliedObject { kind: "Deployment".into(), uid: "d".into(), generation }]);
    // The next manager has nothing to do.
    consumer.status = Some(status);
    world.attempts.clear();
    let third = plan(&consumer, &world, now());
    assert!(third.steps.is_empty() && third.status == consumer.status);
}

#[test]
fn repairs_a_change_before_the_answer_is_visible() {
    let consumer = consumer();
    let mut world = changed(&consumer, CONTAINER_ZERO, "image", json!("evil"));
    let first = plan(&consumer, &world, now());
    // The apply returned generation 3. Before the cache showed it, another client made it 4.
    answered(&mut world, &first, 3);
    world.deployment = Some(at_generation(&consumer, 4, true));
    assert!(applies(&plan(&consumer, &world, now())).is_some());
}

#[test]
fn repeats_an_apply_after_a_stale_cache_or_a_lost_answer() {
    let consumer = consumer();
    let mut world = world(None);
    // The answer is lost, so the generation after the apply is unknown.
    world.deployment = Some(at_generation(&consumer, 2, false));
    assert!(applies(&plan(&consumer, &world, now())).is_some());
    // The cache is behind the answer, as KEDA's caches may be. A repetition changes nothing.
    let first = plan(&consumer, &world, now());
    answered(&mut world, &first, 2);
    world.deployment = Some(at_generation(&consumer, 1, false));
    assert!(applies(&plan(&consumer, &world, now())).is_some());
    world.deployment = Some(at_generation(&consumer, 2, false));
    assert!(plan(&consumer, &world, now()).steps.is_empty());
}

#[test]
fn applies_to_another_object_of_the_same_generation() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["uid"] = json!("restored");
    assert!(applies(&plan(&consumer, &world(Some(decoded(raw))), now())).is_some());
}

#[test]
fn accepts_what_another_manager_applied_meanwhile() {
    let mut consumer = consumer();
    let mut world = world(None);
    world.deployment = Some(at_generation(&consumer, 5, false));
    let applied = vec![AppliedObject { kind: "Deployment".into(), uid: "d".into(), generation: 5 }];
    consumer.status = Some(PulsarConsumerStatus { applied, ..PulsarConsumerStatus::default() });
    assert!(plan(&consumer, &world, now()).steps.is_empty());
}

#[test]
fn new_defaults_of_the_api_server_cause_no_apply() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["spec"]["template"]["spec"]["newDefault"] = json!("x");
    raw["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = json!("26%");
    assert!(plan(&consumer, &world(Some(decoded(raw))), now()).steps.is_empty());
}

#[test]
fn accepts_a_webhook_that_changes_every_apply() {
    let consumer = consumer();
    // The webhook makes the same change each time, so the second apply changes nothing.
    let mut world = world(None);
    let create = plan(&consumer, &world, now());
    answered(&mut world, &create, 1);
    world.deployment = Some(at_generation(&consumer, 1, true));
    assert!(plan(&consumer, &world, now()).steps.is_empty());

    // The webhook makes another change each time, even for the Deployment controller. Each apply returns a
    // new generation, and is the last.
    let mut generation = 1;
    for _ in 0..3 {
        world.deployment = Some(at_generation(&consumer, generation + 1, true));
        let repair = plan(&consumer, &world, now());
        assert!(applies(&repair).is_some());
        generation += 2;
        answered(&mut world, &repair, generation);
        world.deployment = Some(at_generation(&consumer, generation, true));
        assert!(plan(&consumer, &world, now()).steps.is_empty());
    }
    world.deployment = Some(at_generation(&consumer, generation + 1, true));
    assert_eq!(condition(&plan(&consumer, &world, now()), "Applied").1, "Overruled");
}

#[rstest]
#[case::annotation("annotations", json!({}))]
#[case::label("labels", json!({}))]
fn accepts_a_webhook_that_removes_metadata(#[case] member: &str, #[case] value: Value) {
    let consumer = consumer();
    // A change of metadata does not change the generation.
    let mut world = changed(&consumer, "/metadata", member, value);
    for _ in 0..4 {
        let repair = plan(&consumer, &world, now());
        assert!(applies(&repair).is_some());
        answered(&mut world, &repair, 1);
    }
    let overruled = plan(&consumer, &world, now());
    assert_eq!(condition(&overruled, "Applied").1, "Overruled");
    // A new manager recognizes its own object by the UID.
    let mut told = consumer;
    told.status = overruled.status;
    world.attempts.clear();
    assert!(applies(&plan(&told, &world, now())).is_some());
}

/// The converged Deployment, scaled by a HorizontalPodAutoscaler.
fn autoscaled(consumer: &PulsarConsumer, generation: i64, replicas: i32) -> Arc<Deployment> {
    let mut raw = settled(consumer);
    raw["metadata"]["generation"] = json!(generation);
    raw["metadata"]["managedFields"] = json!([{
        "manager": "kube-controller-manager", "operation": "Update", "subresource": "scale",
        "fieldsV1": { "f:spec": { "f:replicas": {} } },
    }]);
    raw["spec"]["replicas"] = json!(replicas);
    Arc::new(decoded(raw))
}

#[test]
fn leaves_replicas_to_an_autoscaler_of_the_deployment() {
    let mut consumer = consumer();
    let mut world = world(None);
    let create = plan(&consumer, &world, now());
    answered(&mut world, &create, 1);
    for generation in 2..20 {
        let replicas = i32::try_from(generation).unwrap();
        world.deployment = Some(autoscaled(&consumer, generation, replicas));
        let left = plan(&consumer, &world, now());
        let (body, _) = applies(&left).unwrap();
        assert!(body["spec"]["replicas"].is_null(), "{body}");
        assert_eq!(body["metadata"]["annotations"], wanted(&consumer)["metadata"]["annotations"]);
        answered(&mut world, &left, generation);
        // The manager does not repeat the apply every minute, and reports the autoscaler.
        for minute in 0..3 {
            let quiet = plan(&consumer, &world, now() + SignedDuration::from_mins(minute));
            assert!(quiet.steps.is_empty() && quiet.again.is_none());
            let (status, reason, message) = condition(&quiet, "Applied");
            assert_eq!((&*status, &*reason), ("False", "ReplicasManagedElsewhere"));
            assert!(message.starts_with("kube-controller-manager scales Deployment"), "{message}");
        }
    }
    // The last change wins: a change of the PulsarConsumer is applied once.
    consumer.spec.replicas = 3;
    let asked = plan(&consumer, &world, now());
    assert_eq!(applies(&asked).unwrap().0["spec"]["replicas"], 3);
    answered(&mut world, &asked, 20);
    world.deployment = Some(autoscaled(&consumer, 21, 7));
    let left = plan(&consumer, &world, now());
    assert!(applies(&left).unwrap().0["spec"]["replicas"].is_null());
    // Manually scaled to the desired number, it matches the spec.
    answered(&mut world, &left, 21);
    world.deployment = Some(autoscaled(&consumer, 22, 3));
    let applied = plan(&consumer, &world, now());
    answered(&mut world, &applied, 22);
    assert_eq!(condition(&plan(&consumer, &world, now()), "Applied").1, "AsSpecified");
}

#[test]
fn repairs_other_fields_beside_an_autoscaler() {
    let consumer = consumer();
    let mut world = world(None);
    let mut scaled = (*autoscaled(&consumer, 2, 5)).clone();
    scaled.spec["template"]["spec"]["containers"][0]["image"] = json!("evil");
    world.deployment = Some(Arc::new(scaled));
    let repair = plan(&consumer, &world, now());
    let spec = &applies(&repair).unwrap().0["spec"];
    assert!(spec["replicas"].is_null());
    assert_eq!(spec["template"]["spec"]["containers"][0]["image"], IMAGE);
}

#[test]
fn a_first_apply_does_not_force() {
    assert!(!applies(&plan(&consumer(), &world(None), now())).unwrap().1);
}

#[test]
fn waits_for_a_terminating_deployment() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["deletionTimestamp"] = json!(START);
    raw["spec"]["replicas"] = json!(5);
    let plan = plan(&consumer, &world(Some(decoded(raw))), now());
    assert!(plan.steps.is_empty());
    assert_eq!(condition(&plan, "Available").1, "Terminating");
}

#[test]
fn plans_nothing_for_a_deleted_object() {
    let mut consumer = consumer();
    consumer.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(plan(&consumer, &world(None), now()), Plan::default());
}

#[test]
fn the_schema_has_the_tutorials_fields() {
    let crd = serde_json::to_value(PulsarConsumer::crd()).unwrap();
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(schema["required"], json!(["serverAddress", "subscriptionName", "topic"]));
    let replicas = &schema["properties"]["replicas"];
    assert_eq!((&replicas["default"], &replicas["minimum"]), (&json!(1), &json!(0.0)));
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["pcon"]));
    assert_eq!(
        version["subresources"]["scale"],
        json!({
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector"})
    );
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["Server", "Topic", "Subscription", "Replicas", "Ready", "Backlog", "Age"]);
}

/// The sample with more fields.
fn with(fields: &Value) -> PulsarConsumer {
    let mut spec = serde_json::to_value(consumer().spec).unwrap();
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    PulsarConsumer { spec: serde_json::from_value(spec).unwrap(), ..consumer() }
}

fn container(consumer: &PulsarConsumer) -> Value {
    wanted(consumer)["spec"]["template"]["spec"]["containers"][0].clone()
}

fn variable(container: &Value, name: &str) -> Option<String> {
    let env = container["env"].as_array().unwrap();
    env.iter().find(|one| one["name"] == name).map(|one| one["value"].as_str().unwrap_or_default().to_owned())
}

#[rstest]
#[case(json!({ "subscriptionType": "Key_Shared" }), "PULSAR_SUBSCRIPTION_TYPE", "Key_Shared")]
#[case(json!({ "initialPosition": "Earliest" }), "PULSAR_INITIAL_POSITION", "Earliest")]
#[case(json!({ "auth": { "tokenSecret": { "name": "s" } } }), "PULSAR_TOKEN_FILE", "/var/run/secrets/pulsar/token/token")]
#[case(json!({ "tls": { "caSecret": { "name": "s" } } }), "PULSAR_TLS_CA_FILE", "/var/run/secrets/pulsar/ca/ca.crt")]
#[case(json!({ "deadLetterPolicy": { "maxRedeliverCount": 3 } }), "PULSAR_MAX_REDELIVER_COUNT", "3")]
#[case(json!({ "deadLetterPolicy": { "maxRedeliverCount": 3 } }), "PULSAR_DEAD_LETTER_TOPIC",
    "persistent://public/default/my-topic-first-subscription-DLQ")]
#[case(json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "dead" } }), "PULSAR_DEAD_LETTER_TOPIC", "dead")]
#[case(json!({ "negativeAckRedeliveryDelay": "1m30s" }), "PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "1m30s")]
#[case(json!({ "receiverQueueSize": 10 }), "PULSAR_RECEIVER_QUEUE_SIZE", "10")]
#[case(json!({ "env": [{ "name": "A", "value": "b" }] }), "A", "b")]
#[case(json!({ "healthPort": 9000 }), "PULSAR_HTTP_BIND_ADDRESS", "[::]:9000")]
fn sets_variables_for_further_fields(#[case] fields: Value, #[case] name: &str, #[case] value: &str) {
    assert_eq!(variable(&container(&with(&fields)), name).as_deref(), Some(value));
    assert_eq!(variable(&container(&consumer()), name), None);
}

#[test]
fn mounts_secrets_and_sets_no_variable_from_them() {
    let secured = with(&json!({
        "serverAddress": "pulsar+ssl://broker:6651",
        "auth": { "tokenSecret": { "name": "credentials", "key": "jwt" } },
        "tls": { "caSecret": { "name": "authorities" } },
    }));
    let pod = &wanted(&secured)["spec"]["template"]["spec"];
    assert_eq!(
        pod["volumes"],
        json!([
            { "name": "pulsar-token", "secret": {
                "secretName": "credentials", "items": [{ "key": "jwt", "path": "token" }] } },
            { "name": "pulsar-ca", "secret": {
                "secretName": "authorities", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        ])
    );
    let mounts = json!([
        { "name": "pulsar-token", "mountPath": "/var/run/secrets/pulsar/token", "readOnly": true },
        { "name": "pulsar-ca", "mountPath": "/var/run/secrets/pulsar/ca", "readOnly": true },
    ]);
    assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
    assert!(!pod["containers"][0]["env"].to_string().contains("secretKeyRef"));
}

#[test]
fn copies_pod_settings_to_the_pods() {
    let settings = json!({
        "labels": { "team": "a", "pulsarcrd": "stolen" },
        "annotations": { "x": "y" },
        "nodeSelector": { "disk": "ssd" },
        "tolerations": [{ "key": "k", "operator": "Exists" }],
        "affinity": { "nodeAffinity": {} },
        "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }],
        "serviceAccountName": "consumer",
        "imagePullSecrets": [{ "name": "registry" }],
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 60,
        "securityContext": { "runAsUser": 1000 },
    });
    let consumer = with(&json!({
        "pod": settings, "resources": { "limits": { "cpu": "1" } }, "imagePullPolicy": "Never", "image": "mine",
    }));
    let template = &wanted(&consumer)["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["team"], "a");
    assert_eq!(template["metadata"]["labels"]["pulsarcrd"], "sample-pulsarcrd");
    assert_eq!(template["metadata"]["annotations"], json!({ "x": "y" }));
    for (field, value) in settings.as_object().unwrap() {
        if !["labels", "annotations"].contains(&field.as_str()) {
            assert_eq!(template["spec"][field], *value, "{field}");
        }
    }
    assert!(
        template["spec"]["automountServiceAccountToken"].is_null(),
        "the ServiceAccount decides about its token"
    );
    let container = &template["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["cpu"], "1");
    assert_eq!(container["imagePullPolicy"], "Never");
    assert!(
        container["securityContext"]["readOnlyRootFilesystem"].is_null(),
        "another image may write files"
    );
}

#[rstest]
#[case::the_tutorials_image(json!({}), None, None)]
#[case::the_managers_own(json!({}), Some(8080), Some(8080))]
#[case::another_image(json!({ "image": "mine" }), Some(8080), None)]
#[case::another_image_with_probes(json!({ "image": "mine", "healthPort": 9000 }), None, Some(9000))]
#[case::switched_off(json!({ "healthPort": 0 }), Some(8080), None)]
fn probes_images_with_a_health_port(
    #[case] fields: Value,
    #[case] default: Option<u16>,
    #[case] port: Option<u16>,
) {
    let mut world = world(None);
    world.image = Arc::new(Image { name: IMAGE.into(), health_port: default });
    let plan = plan(&with(&fields), &world, now());
    let container = &applies(&plan).unwrap().0["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"][0]["containerPort"].as_u64(), port.map(u64::from));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let expected = if port.is_some() { json!(path) } else { Value::Null };
        assert_eq!(container[probe]["httpGet"]["path"], expected);
    }
}

#[test]
fn exclusive_uses_recreate_and_removes_rolling_update() {
    let exclusive = with(&json!({ "subscriptionType": "Exclusive" }));
    assert_eq!(wanted(&exclusive)["spec"]["strategy"], json!({ "type": "Recreate" }));
    let plan = plan(&exclusive, &world(Some(decoded(settled(&consumer())))), now());
    let [first, second, _] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    let [Action::Merge { body, .. }] = &first[..] else { panic!("{first:?}") };
    assert_eq!(
        *body,
        json!({
            "metadata": { "uid": "d", "resourceVersion": "7" },
            "spec": { "strategy": { "type": "Recreate", "rollingUpdate": null } },
        })
    );
    assert!(matches!(second[..], [Action::Apply { .. }]));
}

fn figures(backlog: i64) -> Reading {
    let figures = Figures { backlog, unacked: 0, consumers: 1, rate: 0.5 };
    Reading { figures: Ok(figures), partitioned: Some(false) }
}

fn unknown() -> Reading {
    let unknown = Unknown { reason: "TopicNotFound", message: "There is no topic x.".into() };
    Reading { figures: Err(unknown), partitioned: None }
}

#[test]
fn reports_the_backlog_and_writes_nothing_after_a_restart() {
    let asks = with(&json!({ "adminURL": "http://broker:8080" }));
    let mut world = world(Some(decoded(settled(&asks))));
    world.backlog = Some(figures(7));
    let first = plan(&asks, &world, now());
    let status = first.status.clone().unwrap();
    assert_eq!((status.backlog, status.unacked, status.consumers), (Some(7), Some(0), Some(1)));
    assert_eq!(condition(&first, "BacklogObserved").0, "True");

    // A new process has not read it yet.
    let asks = told(asks, &world, now());
    world.backlog = None;
    let second = plan(&asks, &world, now() + SignedDuration::from_mins(5));
    assert_eq!(second.status, asks.status);

    world.backlog = Some(unknown());
    let third = plan(&asks, &world, now());
    assert_eq!(condition(&third, "BacklogObserved").1, "TopicNotFound");
    assert_eq!(third.status.unwrap().backlog, Some(7));
    assert_eq!(third.events.len(), 1);

    // Without adminURL the figures are removed.
    let mut quiet = asks;
    quiet.spec.admin_url = None;
    let fourth = plan(&quiet, &world, now()).status.unwrap();
    assert_eq!((fourth.backlog, fourth.consumers, fourth.conditions.len()), (None, None, 2));
}

/// A PulsarConsumer with autoscaling.
fn scaled() -> PulsarConsumer {
    with(&json!({
        "adminURL": "https://broker:8443/",
        "auth": { "tokenSecret": { "name": "credentials" } },
        "autoscaling": { "maxReplicas": 30, "minReplicas": 1, "targetBacklog": 50, "activationBacklog": 5,
            "pollingIntervalSeconds": 10, "cooldownSeconds": 100 },
    }))
}

/// KEDA is installed and has no objects.
fn nothing_of_keda() -> Keda {
    Keda::There { scaled_object: None, trigger_authentication: None }
}

/// The applied objects of KEDA in order, beside a converged Deployment.
fn keda_applies(consumer: &PulsarConsumer, keda: Keda, known: Option<Reading>) -> Vec<Value> {
    let mut world = world(Some(decoded(settled(consumer))));
    world.keda = keda;
    world.backlog = known;
    let steps = plan(consumer, &world, now()).steps.into_iter().flatten();
    steps
        .filter_map(|action| match action {
            Action::Apply { body, .. } => Some(body),
            _ => None,
        })
        .collect()
}

#[test]
fn applies_the_objects_of_keda() {
    let bodies = keda_applies(&scaled(), nothing_of_keda(), Some(figures(0)));
    let [authentication, object] = &bodies[..] else { panic!("{bodies:?}") };
    let owner = json!([{
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer", "name": "sample",
        "uid": "me", "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(authentication["kind"], "TriggerAuthentication");
    assert_eq!(authentication["metadata"]["ownerReferences"], owner);
    assert_eq!(
        authentication["spec"],
        json!({ "secretTargetRef": [{ "parameter": "bearerToken", "name": "credentials", "key": "token" }] })
    );
    assert_eq!(
        (&object["apiVersion"], &object["kind"]),
        (&json!("keda.sh/v1alpha1"), &json!("ScaledObject"))
    );
    assert_eq!(object["metadata"]["name"], "sample-pulsarcrd");
    assert_eq!(
        object["spec"],
        json!({
            "scaleTargetRef": {
                "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer", "name": "sample",
            },
            "minReplicaCount": 1, "maxReplicaCount": 30, "pollingInterval": 10, "cooldownPeriod": 100,
            "triggers": [{
                "type": "pulsar",
                "metadata": {
                    "adminURL": "https://broker:8443", "topic": "persistent://public/default/my-topic",
                    "subscription": "first-subscription", "isPartitionedTopic": "false",
                    "msgBacklogThreshold": "50", "activationMsgBacklogThreshold": "5", "authModes": "bearer",
                },
                "authenticationRef": { "name": authentication["metadata"]["name"] },
            }],
        })
    );
}

#[test]
fn waits_for_the_partitions_of_the_topic() {
    assert!(
        keda_applies(&scaled(), nothing_of_keda(), None).is_empty(),
        "waits for the first read of the topic"
    );
    let partitioned = Reading { partitioned: Some(true), ..figures(0) };
    let bodies = keda_applies(&scaled(), nothing_of_keda(), Some(partitioned));
    assert_eq!(bodies[1]["spec"]["triggers"][0]["metadata"]["isPartitionedTopic"], "true");
    // The last value stays while the topic cannot be read, for instance after a restart.
    let stored = |body: &Value| Some(Arc::new(keda_object(body.clone())));
    let keda = Keda::There { trigger_authentication: stored(&bodies[0]), scaled_object: stored(&bodies[1]) };
    for known in [None, Some(unknown())] {
        assert!(keda_applies(&scaled(), keda.clone(), known).is_empty());
    }
    // An unreadable topic counts as not partitioned, so that KEDA can scale later.
    let bodies = keda_applies(&scaled(), nothing_of_keda(), Some(unknown()));
    assert_eq!(bodies[1]["spec"]["triggers"][0]["metadata"]["isPartitionedTopic"], "false");
}

/// A stored object of KEDA.
fn keda_object(mut body: Value) -> KedaObject {
    body["metadata"]["uid"] = json!(body["kind"]);
    body["metadata"]["generation"] = json!(1);
    serde_json::from_value(body).unwrap()
}

#[rstest]
#[case::none(None, "False", "KedaMissing")]
#[case::silent(Some(json!([])), "Unknown", "KedaPending")]
#[case::unready(Some(json!([{ "type": "Ready", "status": "False", "message": "no token" }])), "False", "ScaledObjectNotReady")]
#[case::ready(Some(json!([{ "type": "Ready", "status": "True", "message": "ok" }])), "True", "ScaledObjectReady")]
fn autoscaling_ready_reports_kedas_condition(
    #[case] conditions: Option<Value>,
    #[case] status: &str,
    #[case] reason: &str,
) {
    let consumer = scaled();
    let mut world = world(Some(decoded(settled(&consumer))));
    world.backlog = Some(figures(0));
    world.keda = conditions.map_or(Keda::Absent, |conditions| {
        let mut bodies = keda_applies(&consumer, nothing_of_keda(), Some(figures(0)));
        bodies[1]["status"] = json!({ "conditions": conditions });
        let [authentication, object] = [0, 1].map(|at| Some(Arc::new(keda_object(bodies[at].clone()))));
        Keda::There { scaled_object: object, trigger_authentication: authentication }
    });
    let plan = plan(&consumer, &world, now());
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    let (found, why, _) = condition(&plan, "AutoscalingReady");
    assert_eq!((&*found, &*why), (status, reason));
}

#[test]
fn deletes_its_keda_objects_and_keeps_foreign_ones() {
    let bodies = keda_applies(&scaled(), nothing_of_keda(), Some(figures(0)));
    let [authentication, object] = [0, 1].map(|at| Some(Arc::new(keda_object(bodies[at].clone()))));
    let mut world = world(Some(decoded(settled(&consumer()))));
    world.keda = Keda::There { scaled_object: object, trigger_authentication: authentication };
    let plan = plan(&consumer(), &world, now());
    let deleted: Vec<&str> = plan
        .steps
        .iter()
        .flatten()
        .map(|action| match action {
            Action::Delete { resource, .. } => resource.kind,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(deleted, ["ScaledObject", "TriggerAuthentication"]);

    let mut theirs = bodies[1].clone();
    theirs["metadata"]["ownerReferences"] = json!([]);
    world.keda =
        Keda::There { scaled_object: Some(Arc::new(keda_object(theirs))), trigger_authentication: None };
    assert!(super::plan(&consumer(), &world, now()).steps.is_empty());
    let mut asked = scaled();
    asked.spec.auth = None;
    world.deployment = Some(Arc::new(decoded(settled(&asked))));
    world.backlog = Some(figures(0));
    let plan = super::plan(&asked, &world, now());
    assert!(plan.steps.is_empty());
    assert_eq!(condition(&plan, "AutoscalingReady").1, "NotOwned");
}

#[test]
fn retries_a_rejected_deletion_of_a_keda_object() {
    let bodies = keda_applies(&scaled(), nothing_of_keda(), Some(figures(0)));
    let mut world = world(Some(decoded(settled(&consumer()))));
    let object = Some(Arc::new(keda_object(bodies[1].clone())));
    world.keda = Keda::There { scaled_object: object, trigger_authentication: None };
    let until = now() + SignedDuration::from_secs(10);
    let refusal =
        Refusal { verb: Verb::Delete, reason: RefusalReason::Other, message: "no".into(), times: 1, until };
    world.refusals.insert(&SCALED_OBJECTS, "sample-pulsarcrd", refusal);
    let waits = plan(&consumer(), &world, now());
    assert!(waits.steps.is_empty() && waits.status.is_some());
    assert_eq!(waits.again, Some(until));
    assert_eq!(plan(&consumer(), &world, until).steps.len(), 1);
}

#[test]
fn applies_the_replicas_that_an_autoscaler_wrote() {
    let mut consumer = scaled();
    consumer.spec.replicas = 17;
    assert_eq!(wanted(&consumer)["spec"]["replicas"], 17);
    let autoscaling: Autoscaling = serde_json::from_value(json!({ "maxReplicas": 2 })).unwrap();
    assert_eq!((autoscaling.min_replicas, autoscaling.max_replicas), (None, 2));
}

/// A pod of the consumer that is not ready.
fn unready(status: &Value) -> Vec<Arc<Pod>> {
    let pod = json!({
        "metadata": { "name": "pod-1", "namespace": "ns", "uid": "p", "creationTimestamp": START },
        "spec": { "nodeName": "n" },
        "status": status,
    });
    vec![Arc::new(serde_json::from_value(pod).unwrap())]
}

fn waiting(reason: &str) -> Value {
    json!({ "phase": "Pending", "containerStatuses": [{ "name": "c", "state": { "waiting": { "reason": reason } } }] })
}

#[rstest]
#[case::unschedulable(json!({ "phase": "Pending", "conditions": [
    { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes" }] }),
    "Unschedulable", "0/3 nodes")]
#[case::no_image(waiting("ErrImagePull"), "ImagePullFailed", "pod-1")]
#[case::still_no_image(waiting("ImagePullBackOff"), "ImagePullFailed", "pod-1")]
#[case::no_container(waiting("CreateContainerConfigError"), "ContainerNotCreated", "pod-1")]
#[case::crashed(json!({ "phase": "Running", "containerStatuses": [{ "name": "c",
    "state": { "waiting": { "reason": "CrashLoopBackOff" } },
    "lastState": { "terminated": { "exitCode": 2, "reason": "Error", "message": "log line\nthe broker refuses the token" } } }] }),
    "ConsumerFailed", "exit code 2; last output: the broker refuses the token")]
#[case::starting(waiting("ContainerCreating"), "ConsumersNotReady", "run: kubectl describe pod pod-1")]
#[case::not_ready(json!({ "phase": "Running" }), "ConsumersNotReady", "run: kubectl describe pod pod-1")]
fn reports_why_a_consumer_is_not_ready(#[case] status: Value, #[case] reason: &str, #[case] words: &str) {
    let consumer = consumer();
    let mut world = world(Some(decoded(stored(wanted(&consumer), 0))));
    world.unready = unready(&status);
    let plan = plan(&consumer, &world, now());
    let (_, why, message) = condition(&plan, "Available");
    assert_eq!(why, reason, "{message}");
    assert!(message.contains(words), "{message}");
    assert_eq!(plan.events.len(), usize::from(reason != "ConsumersNotReady"));
}

#[test]
fn keeps_the_message_of_a_crash_loop() {
    let mut failing = consumer();
    let mut world = world(Some(decoded(stored(wanted(&failing), 0))));
    let ended = |words: &str| json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": words } });
    let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let states = [
        json!({ "name": "c", "state": waits, "lastState": ended("12:00 no") }),
        json!({ "name": "c", "state": { "running": {} }, "lastState": ended("12:00 no") }),
        json!({ "name": "c", "state": ended("12:01 no") }),
        json!({ "name": "c", "state": waits, "lastState": ended("12:01 no") }),
    ];
    for (at, state) in states.iter().enumerate() {
        world.unready = unready(&json!({ "phase": "Running", "containerStatuses": [state] }));
        let plan = plan(&failing, &world, now());
        assert_eq!(plan.events.len(), usize::from(at == 0), "{:?}", plan.events);
        assert!(at == 0 || plan.status == failing.status, "{:?}", plan.status);
        failing.status = plan.status;
    }
}

#[test]
fn keeps_available_until_the_new_spec_is_counted() {
    let mut scaled = consumer();
    scaled.spec.replicas = 2;
    scaled = told(scaled.clone(), &world(Some(decoded(settled(&scaled)))), now());
    scaled.spec.replicas = 1;
    scaled.status.as_mut().unwrap().applied[0].generation = 2;
    let mut raw = stored(wanted(&scaled), 2);
    raw["metadata"]["generation"] = json!(2);
    let plan = plan(&scaled, &world(Some(decoded(raw))), now());
    assert_eq!(condition(&plan, "Available").2, "2 of 2 consumers are ready.");
}

#[test]
fn reports_a_refusal_of_the_preparing_patch() {
    let (verb, consumer) = (Verb::MergePatch, with(&json!({ "subscriptionType": "Exclusive" })));
    let mut world = changed(&super::tests::consumer(), "/metadata", "annotations", json!({}));
    let until = now() + SignedDuration::from_secs(10);
    let refusal = Refusal { verb, reason: RefusalReason::Other, message: "no".into(), times: 1, until };
    world.refusals.insert(&DEPLOYMENTS, "sample-deployment", refusal);
    let plan = plan(&consumer, &world, now());
    assert_eq!((condition(&plan, "Applied").1.as_str(), plan.again), ("Refused", Some(until)));
}

#[test]
fn a_new_topic_drops_the_old_backlog() {
    let mut asks = with(&json!({ "adminURL": "http://broker:8080" }));
    let mut world = world(Some(decoded(settled(&asks))));
    world.backlog = Some(figures(5_000));
    asks = told(asks, &world, now());
    asks.spec.topic = "other".into();
    world.deployment = Some(Arc::new(decoded(settled(&asks))));
    for (known, reason) in [(None, "NotObservedYet"), (Some(unknown()), "TopicNotFound")] {
        world.backlog = known;
        let plan = plan(&asks, &world, now());
        assert_eq!(condition(&plan, "BacklogObserved").1, reason);
        let status = plan.status.unwrap();
        assert_eq!((status.backlog, status.backlog_time), (None, None));
    }
}

#[test]
fn writes_nothing_while_keda_is_unknown() {
    let consumer = scaled();
    let mut world = world(Some(decoded(settled(&consumer))));
    world.backlog = Some(figures(0));
    world.keda = Keda::Absent;
    let before = told(consumer, &world, now());
    world.keda = Keda::Unknown;
    let after = plan(&before, &world, now() + SignedDuration::from_hours(1));
    assert!(after.steps.is_empty() && after.events.is_empty());
    assert_eq!(after.status, before.status);
}

#[test]
fn plans_nothing_in_a_terminating_namespace() {
    let mut world = world(None);
    world.refusals.namespace_terminating = true;
    assert_eq!(plan(&consumer(), &world, now()), Plan::default());
}

#[rstest]
#[case("busybox", "Always")]
#[case("registry:5000/busybox", "Always")]
#[case("busybox:latest", "Always")]
#[case("busybox:1.0", "IfNotPresent")]
#[case("busybox@sha256:0", "IfNotPresent")]
fn uses_the_default_pull_policy_of_kubernetes(#[case] image: &str, #[case] policy: &str) {
    assert_eq!(container(&with(&json!({ "image": image })))["imagePullPolicy"], policy);
}

#[test]
fn escapes_references_to_variables() {
    let container = container(&with(&json!({ "topic": "a$(PULSAR_SERVER)" })));
    assert_eq!(variable(&container, "PULSAR_TOPIC").as_deref(), Some("a$$(PULSAR_SERVER)"));
}
