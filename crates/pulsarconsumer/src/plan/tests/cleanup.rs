//! The subscription of a deleted PulsarConsumer.

use super::*;
use crate::FINALIZER;
use crate::api::{Cleanup, Subscription};
use crate::cleanup::is_shared;
use crate::observe::{DeletionAttempt, Sharing};
use quintet_runtime::model::plan::EventType;
use quintet_runtime::model::resource::Resource;

/// A PulsarConsumer that deletes its subscription, with its Deployment. It has the finalizer, and is being deleted.
fn deleted() -> Scene {
    let mut scene = Scene::settled(with(&json!({"adminURL": "http://broker:8080"})));
    let cleanup = Some(Cleanup::Delete);
    scene.consumer.spec.subscription = Some(Subscription { cleanup, ..Subscription::default() });
    scene.consumer.metadata.finalizers = Some(vec!["other/one".to_owned(), FINALIZER.to_owned()]);
    scene.consumer.metadata.deletion_timestamp = Some(Time(after(0)));
    scene
}

/// The same after the last pod has stopped.
fn stopped() -> Scene {
    let mut scene = deleted();
    see_stopped(&mut scene, |_| ());
    scene
}

/// The caches have a Deployment without pods, with these changes.
fn see_stopped(scene: &mut Scene, change: impl FnOnce(&mut Value)) {
    let mut running = Scene::new(with(&json!({})));
    running.see(2, |raw| {
        raw["spec"]["replicas"] = json!(0);
        raw["status"]["replicas"] = json!(0);
        change(raw);
    });
    scene.world.deployment = running.world.deployment;
}

fn failure(reason: &'static str) -> Result<(), Unknown> {
    Err(Unknown::new(reason, "It failed."))
}

/// The actions of a plan in short form.
fn actions(plan: &ConsumerPlan) -> Vec<String> {
    let name = |action: &Action<_, Effect>| match action {
        Action::JsonPatch { operations, .. } => operations.as_array().unwrap().last().unwrap().to_string(),
        Action::MergePatch { resource, body, .. } => format!("{} {}", resource.kind, body["spec"]),
        Action::Effect(effect) => format!("{effect:?}"),
        other => panic!("{other:?}"),
    };
    plan.steps.iter().flatten().map(name).collect()
}

const RELEASE: &str = r#"{"op":"remove","path":"/metadata/finalizers/1"}"#;
const DELETE: &str = "DeleteSubscription";

fn reason(plan: &ConsumerPlan) -> &str {
    let mut conditions = plan.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|one| one.type_ == "SubscriptionDeleted").map_or("", |one| &one.reason)
}

#[test]
fn adds_the_finalizer_before_the_first_pod() {
    let mut scene = Scene::new(with(&json!({"adminURL": "http://b", "subscription": {"cleanup": "Delete"}})));
    let added = format!(r#"{{"op":"add","path":"/metadata/finalizers","value":["{FINALIZER}"]}}"#);
    assert_eq!(actions(&scene.plan(0)), [added]);
    // The Deployment does not wait for a rejected finalizer.
    let refusal = refusal(Verb::JsonPatch, "forbidden");
    scene.world.refusals.insert(&Resource::of::<PulsarConsumer>(), "sample", refusal);
    let plan = scene.plan(0);
    assert!(applies(&plan).is_some());
    assert_eq!(plan.again, Some(after(5)));
}

#[test]
fn removes_the_finalizer_if_the_subscription_stays() {
    let mut scene = deleted();
    scene.consumer.spec.subscription = None;
    assert_eq!(actions(&scene.plan(0)), [RELEASE]);
    scene.consumer.metadata.deletion_timestamp = None;
    let plan = scene.plan(0);
    assert_eq!(actions(&plan), [RELEASE]);
    // The spec may demand the finalizer again before the removal arrives.
    let Action::JsonPatch { operations, .. } = &plan.steps[0][0] else { panic!("{plan:?}") };
    assert_eq!(operations[0]["path"], "/metadata/resourceVersion");
}

#[test]
fn stops_the_pods_before_it_deletes_the_subscription() {
    let mut scene = deleted();
    let plan = scene.plan(0);
    assert_eq!(
        (actions(&plan), reason(&plan)),
        (vec![r#"Deployment {"replicas":0}"#.into()], "ConsumersRunning")
    );
    // The Deployment controller has not seen the new replicas, and then a pod still runs.
    for changed in [("observedGeneration", 1), ("replicas", 1)] {
        see_stopped(&mut scene, |raw| raw["status"][changed.0] = json!(changed.1));
        let plan = scene.plan(0);
        assert_eq!((actions(&plan), reason(&plan)), (vec![], "ConsumersRunning"));
    }
    // The Deployment does not count a terminating pod.
    let mut draining = stopped();
    draining.world.running_pods = 1;
    let plan = draining.plan(0);
    assert_eq!((actions(&plan), reason(&plan)), (vec![], "ConsumersRunning"));
    assert_eq!(plan.again, Some(after(5)));
    let plan = stopped().plan(0);
    assert_eq!((actions(&plan), reason(&plan)), (vec![DELETE.into()], "Deleting"));
    scene.world.deployment = None;
    assert_eq!(actions(&scene.plan(0)), [DELETE]);
}

#[test]
fn repeats_the_deletion_every_ten_seconds() {
    let mut scene = stopped();
    scene.world.deletion = Some(DeletionAttempt { at: after(5), result: failure("SubscriptionInUse") });
    let plan = scene.pass(6);
    assert_eq!((actions(&plan), plan.again), (vec![], Some(after(15))));
    assert_eq!(reason(&plan), "SubscriptionInUse");
    assert_eq!(plan.events.len(), 1, "{:?}", plan.events);
    assert!(plan.events[0].note.contains("kubectl patch pulsarconsumer sample"));
    let plan = scene.pass(15);
    assert_eq!(actions(&plan), [DELETE]);
    assert!(plan.events.is_empty(), "the Event is recorded once");
}

#[rstest]
#[case::deleted(Ok(()), None)]
#[case::without_the_secret(failure("SecretNotFound"), Some(EventType::Warning))]
#[case::without_permission(failure("SecretForbidden"), Some(EventType::Warning))]
fn removes_the_finalizer_at_the_end(#[case] result: Result<(), Unknown>, #[case] event: Option<EventType>) {
    let mut scene = stopped();
    scene.world.deletion = Some(DeletionAttempt { at: after(0), result });
    let plan = scene.plan(0);
    assert_eq!(actions(&plan), [RELEASE]);
    assert_eq!(plan.events.first().map(|event| event.type_), event);
}

#[test]
fn an_orphaned_deployment_keeps_its_pods_and_subscription() {
    let mut scene = deleted();
    scene.consumer.metadata.finalizers.as_mut().unwrap()[0] = "orphan".to_owned();
    assert_eq!(actions(&scene.plan(0)), [RELEASE]);
    assert!(is_shared(&twin(), &scene.consumer));

    // The garbage collector was faster than the manager.
    for has_stopped in [false, true] {
        let mut scene = deleted();
        let orphan = |raw: &mut Value| raw["metadata"]["ownerReferences"] = json!([]);
        if has_stopped {
            see_stopped(&mut scene, orphan);
        } else {
            let mut running = Scene::new(with(&json!({})));
            running.see(2, orphan);
            scene.world.deployment = running.world.deployment;
            scene.world.running_pods = 1;
        }
        let plan = scene.plan(0);
        assert_eq!(actions(&plan), [RELEASE]);
        assert_eq!(plan.events[0].reason, "SubscriptionKept");
    }
}

/// Another PulsarConsumer with the same spec, which is being deleted.
fn twin() -> PulsarConsumer {
    let mut twin = deleted().consumer;
    twin.metadata.uid = Some("other".to_owned());
    twin
}

/// The consumers of the old status may have stopped.
#[test]
fn the_status_of_a_deletion_is_up_to_date() {
    let mut scene = deleted();
    scene.consumer.metadata.generation = Some(2);
    let status = scene.plan(0).status.unwrap();
    assert_eq!((status.observed_generation, status.ready_replicas), (Some(2), Some(1)));
    see_stopped(&mut scene, |_| ());
    let status = scene.plan(0).status.unwrap();
    assert_eq!(status.replicas, Some(0));
    let types: Vec<&str> = status.conditions.iter().map(|one| &*one.type_).collect();
    assert_eq!(types, ["SubscriptionDeleted"]);
}

#[test]
fn reports_obstacles_of_the_deletion() {
    let mut scene = deleted();
    scene.world.refusals.insert(&DEPLOYMENTS, "sample-deployment", refusal(Verb::MergePatch, "no"));
    let plan = scene.plan(0);
    assert_eq!((actions(&plan), reason(&plan)), (vec![], "Refused"));
    // Nothing is kept before the finalizer is removed.
    let mut scene = deleted();
    scene.world.sharing = Sharing::With("ns/other".to_owned());
    let refusal = refusal(Verb::JsonPatch, "no");
    scene.world.refusals.insert(&Resource::of::<PulsarConsumer>(), "sample", refusal);
    let plan = scene.plan(0);
    assert_eq!((actions(&plan), plan.events.len()), (vec![], 0));
}

/// A namespace that was not listed may have a PulsarConsumer that uses the subscription.
#[test]
fn deletes_no_subscription_while_a_consumer_may_be_unknown() {
    let mut scene = deleted();
    see_stopped(&mut scene, |_| ());
    scene.world.sharing = Sharing::Unknown(Unknown::new("CacheIncomplete", "No list."));
    let plan = scene.plan(0);
    assert_eq!((actions(&plan), reason(&plan), plan.again), (vec![], "CacheIncomplete", Some(after(10))));
}

#[test]
fn keeps_a_subscription_of_another_consumer() {
    let mut scene = deleted();
    scene.world.sharing = Sharing::With("ns/other".to_owned());
    let plan = scene.plan(0);
    assert_eq!(actions(&plan), [RELEASE]);
    assert_eq!(plan.events[0].reason, "SubscriptionKept");

    let other = |change: fn(&mut PulsarConsumer)| {
        let mut other = twin();
        other.metadata.deletion_timestamp = None;
        change(&mut other);
        is_shared(&scene.consumer, &other)
    };
    assert!(other(|_| ()));
    assert!(other(|other| other.spec.topic = Some("persistent://public/default/my-topic".to_owned())));
    assert!(other(|other| other.spec.topics_pattern = other.spec.topic.take()));
    assert!(other(|other| other.spec.admin_url = Some("http://broker:8080/".to_owned())));
    assert!(!other(|other| other.metadata.uid = Some("me".to_owned())));
    assert!(!other(|other| other.spec.subscription_name = "another".to_owned()));
    assert!(other(|other| other.spec.admin_url = None), "the server is the same");
    assert!(!other(|other| {
        other.spec.admin_url = None;
        other.spec.server_address = "pulsar://elsewhere".to_owned();
    }));
    // Its dead letters are stored only while the subscription exists.
    assert!(other(|other| {
        let letters = json!({"maxRedeliverCount": 1, "deadLetterTopic": "my-topic", "initialSubscription": "first-subscription"});
        other.spec.dead_letter_policy = Some(serde_json::from_value(letters).unwrap());
        (other.spec.topic, other.spec.subscription_name) = (Some("another".to_owned()), "another".to_owned());
    }));
    // Two that are deleted together do not keep it for each other.
    assert!(!other(|other| other.metadata.deletion_timestamp = Some(Time(after(0)))));
}
