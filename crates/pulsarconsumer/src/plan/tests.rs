use std::sync::Arc;

use super::*;
use kube::CustomResourceExt as _;
use rstest::rstest;

const START: &str = "2026-01-01T00:00:00Z";
const IMAGE: &str = "krvarma/pulsarconsumer:latest";

fn now() -> Timestamp {
    START.parse().unwrap()
}

/// The post's sample without its label, at which the post's operator panicked.
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

fn world(deployment: Option<Deployment>) -> World {
    World { deployment: deployment.map(Arc::new), image: IMAGE.into(), ..World::default() }
}

fn decoded(raw: Value) -> Deployment {
    serde_json::from_value(raw).unwrap()
}

/// What is applied onto nothing.
fn wanted(consumer: &PulsarConsumer) -> Value {
    deployment(consumer, None, IMAGE).0
}

/// What the server makes of what is applied: identity, defaults, and a status of so many ready pods.
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

/// The Deployment of this consumer as it is once everything has settled.
fn settled(consumer: &PulsarConsumer) -> Value {
    stored(wanted(consumer), consumer.spec.replicas)
}

/// The consumer as it is once the plan's status was written.
fn told(mut consumer: PulsarConsumer, world: &World, at: Timestamp) -> PulsarConsumer {
    consumer.status = plan(&consumer, world, at).status;
    consumer
}

/// The body and the force of the one apply, if there is one.
fn applies(plan: &Plan<PulsarConsumerStatus, Tried>) -> Option<(&Value, bool)> {
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

fn condition(plan: &Plan<PulsarConsumerStatus, Tried>, type_: &str) -> (String, String, String) {
    let found = plan.status.as_ref().unwrap().conditions.iter().find(|one| one.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn the_deployment_is_the_posts_and_no_more_than_we_own() {
    let first = plan(&consumer(), &world(None), now());
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "sample-deployment",
            "namespace": "ns",
            "labels": {"pulsarcrd": "sample-pulsarcrd"},
            "annotations": {"quintet.dev/applied": "v1-vtjrbav3cjhkfkvt"},
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
                "spec": {"containers": [{
                    "name": "pulsarconsumer",
                    "image": "krvarma/pulsarconsumer:latest",
                    "env": [
                        {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"},
                        {"name": "PULSAR_TOPIC", "value": "my-topic"},
                        {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"},
                    ],
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }]},
            },
        },
    });
    assert_eq!(applies(&first), Some((&expected, false)));
}

#[test]
fn the_objects_own_labels_are_for_finding_the_deployment_and_select_nothing() {
    let mut labelled = consumer();
    labelled.metadata.labels =
        Some([("app".to_owned(), "x".to_owned()), (NAME_LABEL.to_owned(), "y".to_owned())].into());
    let (with, without) = (wanted(&labelled), wanted(&consumer()));
    assert_eq!(with["metadata"]["labels"], json!({"app": "x", NAME_LABEL: "sample-pulsarcrd"}));
    assert_eq!(with["spec"], without["spec"], "neither selector nor template, which would roll the pods");
}

#[test]
fn the_objects_image_wins_over_the_managers() {
    let mut own = consumer();
    own.spec.image = Some("mine:1".into());
    assert_eq!(wanted(&own)["spec"]["template"]["spec"]["containers"][0]["image"], "mine:1");
    assert_ne!(wanted(&own)["metadata"]["annotations"], wanted(&consumer())["metadata"]["annotations"]);
}

#[test]
fn one_replica_takes_three_writes() {
    let mut consumer = consumer();
    let first = plan(&consumer, &world(None), now());
    assert!(applies(&first).is_some() && first.status.is_none(), "one write: the apply alone");

    let mut young = settled(&consumer);
    young["metadata"]["creationTimestamp"] = json!(START);
    let at = |status: Value| {
        let mut raw = young.clone();
        raw["status"] = status;
        world(Some(decoded(raw)))
    };
    for status in [json!({}), json!({"observedGeneration": 1})] {
        let waiting = plan(&consumer, &at(status), now());
        assert!(waiting.steps.is_empty() && waiting.status.is_none());
        assert_eq!(waiting.again, Some(now() + SignedDuration::from_secs(2)));
    }
    let counted = at(json!({"observedGeneration": 1, "replicas": 1}));
    let second = plan(&consumer, &counted, now());
    assert!(second.steps.is_empty());
    assert_eq!(condition(&second, "Available").2, "0 of 1 consumers are ready.");
    consumer.status = second.status;

    let ready = at(json!({"observedGeneration": 1, "replicas": 1, "readyReplicas": 1}));
    let third = plan(&consumer, &ready, now());
    assert!(third.steps.is_empty() && third.status != consumer.status);
    consumer.status = third.status;
    let after = plan(&consumer, &ready, now() + SignedDuration::from_hours(1));
    assert!(after.steps.is_empty() && after.events.is_empty() && after.again.is_none());
    assert_eq!(after.status, consumer.status);
}

#[rstest]
#[case::no_pods_in_time("2026-01-01T00:00:02Z", json!({"observedGeneration": 1}))]
#[case::nobody_counts("2026-01-01T00:00:02Z", json!({}))]
#[case::a_clock_far_behind("2025-12-31T23:00:00Z", json!({}))]
#[case::trouble(START, json!({"observedGeneration": 1, "conditions": [
    {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}))]
fn the_first_status_does_not_wait_for_ever(#[case] at: &str, #[case] status: Value) {
    let mut raw = settled(&consumer());
    raw["metadata"]["creationTimestamp"] = json!(START);
    raw["status"] = status;
    let plan = plan(&consumer(), &world(Some(decoded(raw))), at.parse().unwrap());
    assert_eq!(condition(&plan, "Available").0, "False");
}

#[test]
fn the_status_says_what_the_deployment_reports() {
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
        })
    );
}

#[rstest]
#[case::ready(1, 1, 1, None, "True", "ConsumersReady", "1 of 1 consumers are ready.")]
#[case::more_than_wanted(1, 2, 1, None, "True", "ConsumersReady", "2 of 1 consumers are ready.")]
#[case::stale_figures(1, 1, 0, None, "False", "ConsumersNotReady", "1 of 1 consumers are ready.")]
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
#[case::zero(0, 0, 1, None, "True", "ConsumersReady", "No consumer is wanted.")]
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

/// The consumer's settled Deployment with one member changed, or added.
fn changed(consumer: &PulsarConsumer, parent: &str, member: &str, value: Value) -> World {
    let mut raw = settled(consumer);
    raw.pointer_mut(parent).unwrap()[member] = value;
    world(Some(decoded(raw)))
}

/// The pods' spec, and their one container, in a Deployment.
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
fn drift_is_repaired(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let consumer = consumer();
    let plan = plan(&consumer, &changed(&consumer, parent, member, value), now());
    let (body, force) = applies(&plan).unwrap();
    assert!(force);
    // The UID keeps an object away that has taken the name meanwhile.
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
fn what_others_add_is_theirs(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let consumer = consumer();
    let plan = plan(&consumer, &changed(&consumer, parent, member, value), now());
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!(condition(&plan, "Applied").0, "True");
}

#[rstest]
#[case("serverAddress", json!("pulsar://other:6650"))]
#[case("topic", json!("other"))]
#[case("subscriptionName", json!("other"))]
#[case("replicas", json!(0))]
#[case("image", json!("other"))]
fn every_field_of_the_spec_is_applied(#[case] field: &str, #[case] value: Value) {
    let mut consumer = consumer();
    let before = world(Some(decoded(settled(&consumer))));
    let mut spec = serde_json::to_value(&consumer.spec).unwrap();
    spec[field] = value;
    consumer.spec = serde_json::from_value(spec).unwrap();
    let plan = plan(&consumer, &before, now());
    assert!(applies(&plan).unwrap().1);
    assert_eq!(plan.status, None, "what the Deployment makes of it is said when it is known");
    let after = world(Some(decoded(settled(&consumer))));
    assert!(super::plan(&consumer, &after, now()).steps.is_empty());
}

#[rstest]
#[case::another_kind(Some(("StatefulSet", "db", "x")), "belongs to StatefulSet db.")]
#[case::an_earlier_one(Some(("PulsarConsumer", "sample", "x")), "belongs to an earlier PulsarConsumer sample (UID x).")]
#[case::nobody(None, "belongs to nobody.")]
fn a_strangers_deployment_is_left_alone(#[case] owner: Option<(&str, &str, &str)>, #[case] words: &str) {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["ownerReferences"] = match owner {
        Some((kind, name, uid)) => json!([
            {"apiVersion": "x/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]),
        // An owner that is no controller does not count.
        None => json!([{"apiVersion": "x/v1", "kind": "X", "name": "sample", "uid": "me"}]),
    };
    raw["spec"]["replicas"] = json!(9);
    let world = world(Some(decoded(raw)));
    let plan = plan(&consumer, &world, now());
    assert!(plan.steps.is_empty());
    assert_eq!(plan.again, Some(now() + SignedDuration::from_mins(1)));
    for type_ in ["Available", "Applied"] {
        let (status, reason, message) = condition(&plan, type_);
        assert_eq!((&*status, &*reason), ("False", "DeploymentNotOwned"));
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(plan.events.len(), 1);
    let status = plan.status.as_ref().unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (Some(0), Some(0)));
    let again = super::plan(&told(consumer, &world, now()), &world, now() + SignedDuration::from_mins(1));
    assert!(again.events.is_empty());
    assert_eq!(again.status, plan.status);
}

#[test]
fn our_own_with_another_selector_is_adopted() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    let old = json!({"app": "pulsarconsumer", "pulsarcrd": "sample-pulsarcrd"});
    raw["metadata"]["labels"] = old.clone();
    raw["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
    raw["spec"]["selector"] = json!({"matchLabels": old});
    raw["spec"]["template"]["metadata"] = json!({"labels": old});
    let found = world(Some(decoded(raw)));
    let first = plan(&consumer, &found, now());
    let (body, force) = applies(&first).unwrap();
    assert!(force);
    assert_eq!(body["spec"]["selector"], json!({"matchLabels": old}));
    assert_eq!(
        body["spec"]["template"]["metadata"]["labels"],
        json!({
            "app": "pulsarconsumer", "pulsarcrd": "sample-pulsarcrd", "quintet.dev/kind": "PulsarConsumer",
            "pulsar.pulsarconsumer.krvarma.com/uid": "me"})
    );
    let adopted = world(Some(decoded(stored(body.clone(), 1))));
    let second = plan(&consumer, &adopted, now());
    assert!(second.steps.is_empty(), "{:?}", second.steps);
    let selector = second.status.unwrap().selector.unwrap();
    assert_eq!(selector, "app=pulsarconsumer,pulsarcrd=sample-pulsarcrd");
}

#[test]
fn a_refusal_waits_and_is_said_in_the_servers_words() {
    let consumer = consumer();
    let until = now() + SignedDuration::from_secs(10);
    let refusal = Refusal {
        verb: "apply",
        reason: "Forbidden".into(),
        message: "images must come from our registry".into(),
        times: 1,
        until,
    };
    let mut world = world(None);
    world.refusals.insert("sample-deployment", refusal.clone());
    let refused = plan(&consumer, &world, now());
    assert!(refused.steps.is_empty());
    assert_eq!(refused.again, Some(until));
    let (status, reason, message) = condition(&refused, "Applied");
    assert_eq!((&*status, &*reason), ("False", "Refused"));
    assert!(message.ends_with("images must come from our registry"), "{message}");
    assert_eq!(condition(&refused, "Available").1, "DeploymentMissing");
    assert!(applies(&plan(&consumer, &world, until)).is_some());

    // What runs goes on, and is said to.
    let mut changed = consumer.clone();
    changed.spec.image = Some("other".into());
    world.deployment = Some(Arc::new(decoded(settled(&consumer))));
    let running = plan(&changed, &world, now());
    assert!(running.steps.is_empty());
    assert_eq!(
        (condition(&running, "Applied").0, condition(&running, "Available").0),
        ("False".into(), "True".into())
    );
    // A refusal of what is no longer asked for is nobody's.
    assert_eq!(condition(&plan(&consumer, &world, now()), "Applied").0, "True");
}

#[test]
fn who_overrules_us_is_not_fought() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror/pulsarconsumer:latest");
    let mut world = world(Some(decoded(raw.clone())));
    let first = plan(&consumer, &world, now());
    let [apply, after] = &first.steps[..] else { panic!("{:?}", first.steps) };
    assert!(matches!(apply[..], [Action::Apply { .. }]));
    let [Action::Effect(tried)] = &after[..] else { panic!("{after:?}") };
    assert!(!is_overruled(&first));

    // The apply went through and nothing came of it.
    world.tried = Some(tried.clone());
    let second = plan(&consumer, &world, now() + SignedDuration::from_secs(5));
    assert!(second.steps.is_empty() && is_overruled(&second));
    assert!(second.again.is_some());
    let (status, reason, message) = condition(&second, "Applied");
    assert_eq!((&*status, &*reason), ("False", "Overruled"));
    assert!(message.contains("spec.template.spec.containers[pulsarconsumer].image"), "{message}");
    assert_eq!(condition(&second, "Available").0, "True");
    assert_eq!(second.events.len(), 1);

    // It is tried again after a while, and at once where anything has changed.
    assert!(applies(&plan(&consumer, &world, now() + SignedDuration::from_mins(1))).is_some());
    let mut asked = consumer.clone();
    asked.spec.topic = "other".into();
    assert!(applies(&plan(&asked, &world, now())).is_some());
    raw["spec"]["replicas"] = json!(4);
    world.deployment = Some(Arc::new(decoded(raw)));
    assert!(applies(&plan(&consumer, &world, now())).is_some());
}

#[test]
fn a_first_apply_leaves_no_trace_that_could_keep_a_second_away() {
    let first = plan(&consumer(), &world(None), now());
    assert_eq!(first.steps.len(), 1);
}

#[test]
fn a_deployment_on_its_way_out_is_awaited() {
    let consumer = consumer();
    let mut raw = settled(&consumer);
    raw["metadata"]["deletionTimestamp"] = json!(START);
    raw["spec"]["replicas"] = json!(5);
    let plan = plan(&consumer, &world(Some(decoded(raw))), now());
    assert!(plan.steps.is_empty());
    assert_eq!(condition(&plan, "Available").1, "DeploymentTerminating");
}

#[test]
fn an_object_that_goes_gets_nothing() {
    let mut consumer = consumer();
    consumer.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(plan(&consumer, &world(None), now()), Plan::default());
}

#[test]
fn the_schema_is_the_posts_with_what_it_meant() {
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
    assert_eq!(columns, ["Server", "Topic", "Subscription", "Replicas", "Ready", "Age"]);
}
