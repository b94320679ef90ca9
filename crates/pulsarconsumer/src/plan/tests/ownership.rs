//! Deployments that are not the manager's own or that it may not write.

use super::*;

#[rstest]
#[case::another_kind(
    json!([{"apiVersion": "x/v1", "kind": "StatefulSet", "name": "db", "uid": "x", "controller": true}]),
    "belongs to StatefulSet db (UID x),")]
#[case::an_earlier_one(
    json!([{"apiVersion": "x/v1", "kind": "PulsarConsumer", "name": "sample", "uid": "x", "controller": true}]),
    "belongs to PulsarConsumer sample (UID x),")]
// An owner that is not a controller does not count.
#[case::no_controller(
    json!([{"apiVersion": "x/v1", "kind": "X", "name": "sample", "uid": "me"}]),
    "belongs to no controller,")]
fn ignores_a_foreign_deployment(#[case] owners: Value, #[case] words: &str) {
    let mut scene = Scene::new(consumer());
    scene.see(1, |raw| {
        raw["metadata"]["ownerReferences"] = owners;
        raw["spec"]["replicas"] = json!(9);
    });
    let plan = scene.pass(0);
    assert_eq!(plan.again, Some(after(60)));
    for type_ in ["Available", "Applied", "Ready"] {
        let (state, message) = condition(&plan, type_);
        assert_eq!(state, "False NotOwned");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(plan.events.len(), 1, "{:?}", plan.events);
    let status = plan.status.as_ref().unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (Some(0), Some(0)));
    let again = scene.plan(60);
    assert!(again.events.is_empty());
    assert_eq!(again.status, plan.status);
}

#[test]
fn ignores_a_deployment_of_another_operator() {
    let mut scene = Scene::new(consumer());
    scene.see(1, |raw| {
        raw["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
        raw["metadata"]["uid"] = json!("another");
    });
    let plan = scene.plan(0);
    let (state, message) = condition(&plan, "Applied");
    assert_eq!(state, "False NotOwned");
    assert!(message.contains("kubectl delete deployments sample-deployment"), "{message}");
}

#[test]
fn waits_for_a_terminating_deployment() {
    let mut scene = Scene::new(consumer());
    scene.see(1, |raw| {
        raw["metadata"]["deletionTimestamp"] = json!(START);
        raw["spec"]["replicas"] = json!(5);
    });
    assert_eq!(condition(&scene.plan(0), "Available").0, "False Terminating");
}

#[rstest]
#[case::a_deleted_object(|scene: &mut Scene| scene.consumer.metadata.deletion_timestamp = Some(Time(after(0))))]
#[case::a_terminating_namespace(|scene: &mut Scene| scene.world.refusals.namespace_terminating = true)]
fn plans_nothing_for_a_deletion(#[case] delete: fn(&mut Scene)) {
    let mut scene = Scene::new(consumer());
    delete(&mut scene);
    assert_eq!(scene.plan(0), Plan::default());
}

#[test]
fn quotes_a_refusal_and_waits() {
    let mut scene = Scene::new(consumer());
    let refusal = refusal(Verb::Apply, "images must come from our registry");
    scene.world.refusals.insert(&DEPLOYMENTS, "sample-deployment", refusal);
    let refused = scene.plan(0);
    assert_eq!(refused.again, Some(after(10)));
    let (state, message) = condition(&refused, "Applied");
    assert_eq!(state, "False Refused");
    assert!(message.ends_with("images must come from our registry"), "{message}");
    assert_eq!(condition(&refused, "Available").0, "False DeploymentMissing");
    assert!(applies(&scene.plan(10)).is_some());

    // The running pods continue, and the status reports them.
    scene.see(1, |_| ());
    scene.consumer.spec.image = Some("other".into());
    let running = scene.plan(0);
    assert_eq!(condition(&running, "Applied").0, "False Refused");
    assert_eq!(condition(&running, "Available").0, "True ConsumersReady");
    // A refusal does not count after the spec has changed.
    scene.consumer = consumer();
    assert_eq!(condition(&scene.plan(0), "Applied").0, "True AsSpecified");
}

#[test]
fn reports_a_refusal_of_the_preparing_patch() {
    let mut scene = Scene::new(consumer());
    scene.see(1, |raw| raw["metadata"]["annotations"] = json!({}));
    scene.consumer = with(&json!({"subscriptionType": "Exclusive"}));
    scene.world.refusals.insert(&DEPLOYMENTS, "sample-deployment", refusal(Verb::MergePatch, "no"));
    let plan = scene.plan(0);
    assert_eq!((&*condition(&plan, "Applied").0, plan.again), ("False Refused", Some(after(10))));
}
