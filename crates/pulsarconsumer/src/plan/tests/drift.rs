//! A Deployment that other clients change: what the manager repairs, and when.

use super::*;
use crate::managed_object::ManagedObject as _;
use crate::status::desired_replicas;

/// The converged Deployment with one changed or added member. A change of the spec changes the generation.
fn changed(parent: &str, member: &str, value: Value) -> Scene {
    let mut scene = Scene::settled(consumer());
    let generation = if parent.starts_with("/spec") { 2 } else { 1 };
    scene.see(generation, |raw| raw.pointer_mut(parent).unwrap()[member] = value);
    scene
}

#[rstest]
#[case::scaled("/spec", "replicas", json!(5))]
#[case::other_image(CONTAINER, "image", json!("evil"))]
#[case::a_variable_gone(CONTAINER, "env", json!([{"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}]))]
#[case::another_value(CONTAINER, "env", json!([
    {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}, {"name": "PULSAR_TOPIC", "value": "x"},
    {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"}]))]
#[case::the_container_renamed(CONTAINER, "name", json!("x"))]
#[case::capabilities("/spec/template/spec/containers/0/securityContext/capabilities", "drop", json!(["ALL", "X"]))]
#[case::recreate("/spec", "strategy", json!({"type": "Recreate"}))]
#[case::label_gone("/metadata", "labels", json!({"other": "x"}))]
#[case::template_label("/spec/template/metadata/labels", "quintet.dev/kind", json!("x"))]
#[case::mark_gone("/metadata", "annotations", json!({}))]
fn repairs_drift(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let plan = changed(parent, member, value).plan(0);
    // The UID protects another object that has the name meanwhile, and the version a newer Deployment.
    let mut expected = wanted(&consumer());
    expected["metadata"]["uid"] = json!("d");
    expected["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(applies(&plan), Some((&expected, true)));
}

#[rstest]
#[case::sidecar("/spec/template/spec", "containers", {
    let ours = stored(&consumer())["spec"]["template"]["spec"]["containers"][0].clone();
    json!([{"name": "sidecar", "image": "x"}, ours])
})]
#[case::variable(CONTAINER, "env", json!([
    {"name": "X"}, {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"},
    {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"}, {"name": "PULSAR_TOPIC", "value": "my-topic"}]))]
#[case::resources(CONTAINER, "resources", json!({"limits": {"cpu": "1"}}))]
#[case::label("/metadata/labels", "team", json!("a"))]
#[case::restarted("/spec/template/metadata", "annotations", json!({"kubectl.kubernetes.io/restartedAt": "x"}))]
#[case::paused("/spec", "paused", json!(true))]
fn keeps_fields_of_other_clients(#[case] parent: &str, #[case] member: &str, #[case] value: Value) {
    let mut scene = changed(parent, member, value);
    let first = scene.plan(0);
    // The generation shows only that the spec has changed. The apply changes nothing.
    assert_eq!(applies(&first).is_some(), parent.starts_with("/spec"));
    scene.answer(&first, 2);
    let second = scene.plan(0);
    assert_eq!(condition(&second, "Applied").0, "True AsSpecified");
}

#[test]
fn repairs_three_times_and_then_with_backoff() {
    let mut scene = Scene::new(consumer());
    scene.apply(0, 1);
    let (mut second, mut generation) = (0, 1);
    // Another controller always changes the image back within a second.
    for wait in [0, 0, 0, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
        scene.see(generation + 1, other_image);
        second += wait;
        if wait > 0 {
            let overruled = scene.plan(second - 1);
            assert_eq!((overruled.again, overruled.events.len()), (Some(after(second)), 1));
            assert_eq!(condition(&overruled, "Applied").0, "False Drifted");
            assert_eq!(condition(&overruled, "Available").0, "True ConsumersReady");
        }
        generation += 2;
        scene.apply(second, generation);
    }

    // A change of the PulsarConsumer is applied at once.
    scene.see(generation + 1, other_image);
    scene.consumer.spec.topic = Some("other".into());
    assert!(applies(&scene.plan(second)).is_some());
    scene.consumer = consumer();

    // After a long time without a change, a repair is immediate again.
    second += 3 * 3_600;
    scene.apply(second, generation + 2);
    scene.see(generation + 3, other_image);
    assert!(applies(&scene.plan(second)).is_some());
}

#[rstest]
#[case::before_the_apply(1, None, true)]
#[case::between_apply_and_status(2, Some(1), true)]
#[case::after_the_status(2, Some(2), false)]
fn a_new_manager_repeats_an_apply_without_a_status(
    #[case] generation: i64,
    #[case] in_status: Option<i64>,
    #[case] is_applied: bool,
) {
    let mut scene = Scene::new(consumer());
    let applied_to = |generation| applied(&DEPLOYMENTS, generation);
    let applied = in_status.map(applied_to).into_iter().collect();
    scene.consumer.status = Some(PulsarConsumerStatus { applied, ..PulsarConsumerStatus::default() });
    scene.world.attempts.clear();
    scene.see(generation, |_| ());
    let first = scene.plan(0);
    assert_eq!(applies(&first).is_some(), is_applied);
    // The repetition changes nothing and causes no event, but is recorded.
    scene.answer(&first, generation);
    assert!(!is_applied || first.again == Some(after(0) + FOLLOW_UP));
    let second = scene.pass(FOLLOW_UP.as_secs());
    assert!(second.steps.is_empty());
    let recorded = second.status.as_ref().unwrap().applied.iter();
    let without_digest = recorded.map(|one| AppliedObject { digest: None, ..one.clone() });
    assert_eq!(without_digest.collect::<Vec<_>>(), [applied_to(generation)]);
    // The next manager has nothing to do.
    scene.world.attempts.clear();
    let third = scene.plan(0);
    assert!(third.steps.is_empty() && third.status == second.status);
}

type Change = fn(&mut Value);

const NOTHING: Change = |_| ();
const IMAGE_CHANGED: Change = other_image;
const RESTORED: Change = |deployment| deployment["metadata"]["uid"] = json!("restored");
const NEW_DEFAULTS: Change = |deployment| {
    deployment["spec"]["template"]["spec"]["newDefault"] = json!("x");
    deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = json!("26%");
};

/// The caches have a Deployment of this generation. It is due for an apply if the last column has the generation that
/// the apply returns.
#[rstest]
#[case::new_defaults_of_the_api_server(&[(1, NEW_DEFAULTS, None)])]
#[case::another_object_of_the_same_generation(&[(1, RESTORED, Some(1))])]
// Before the cache shows generation 3, another client makes it 4.
#[case::a_change_before_the_answer_is_visible(&[(2, IMAGE_CHANGED, Some(3)), (4, IMAGE_CHANGED, Some(5))])]
// The answer is lost. Later the cache is behind the answer, as KEDA's caches may be. A repetition changes nothing.
#[case::a_lost_answer_and_a_stale_cache(&[(2, NOTHING, Some(2)), (1, NOTHING, Some(2)), (2, NOTHING, None)])]
fn applies_if_the_generation_is_unknown(#[case] history: &[(i64, Change, Option<i64>)]) {
    let mut scene = Scene::new(consumer());
    for (generation, change, answer) in history {
        scene.see(*generation, change);
        match answer {
            Some(answer) => drop(scene.apply(0, *answer)),
            None => assert!(scene.plan(0).steps.is_empty()),
        }
    }
}

#[test]
fn accepts_what_another_manager_applied_meanwhile() {
    let mut scene = Scene::new(consumer());
    scene.see(5, |_| ());
    let applied = vec![applied(&DEPLOYMENTS, 5)];
    scene.consumer.status = Some(PulsarConsumerStatus { applied, ..PulsarConsumerStatus::default() });
    assert!(scene.plan(0).steps.is_empty());
}

/// Without leader election, the other manager may have seen a newer PulsarConsumer. The last apply of this process had the
/// annotation `v1-x-3` and returned generation 1.
#[rstest]
#[case::of_this_process(1, "v1-x-3", None, false)]
#[case::of_another_manager(2, "v1-x-3", None, true)]
#[case::of_labels_by_another_manager(1, "v1-y-3", None, true)]
#[case::in_the_status(2, "v1-y-3", Some("v1-y-3"), false)]
#[case::of_labels_after_the_status(2, "v1-y-3", Some("v1-z-3"), true)]
fn reads_the_consumer_after_an_unknown_apply(
    #[case] generation: i64,
    #[case] last: &str,
    #[case] in_status: Option<&str>,
    #[case] is_read: bool,
) {
    let mut scene = Scene::new(consumer());
    let annotated = |annotation: &str| {
        let annotations = json!({"quintet.dev/applied": annotation});
        move |raw: &mut Value| raw["metadata"]["annotations"] = annotations
    };
    scene.world.attempts.get_mut(&DEPLOYMENTS).unwrap().hash = "v1-x-3".to_owned();
    if let Some(annotation) = in_status {
        scene.see(generation, annotated(annotation));
        let digest = scene.world.deployment.as_ref().unwrap().digest();
        let applied = vec![AppliedObject { digest, ..applied(&DEPLOYMENTS, generation) }];
        scene.consumer.status = Some(PulsarConsumerStatus { applied, ..PulsarConsumerStatus::default() });
    }
    scene.see(generation, |_| ());
    assert!(!may_be_outdated(&scene.consumer, &scene.world), "the same body");
    // Another client changes the object, but not the annotation.
    scene.see(generation, other_image);
    assert!(!may_be_outdated(&scene.consumer, &scene.world));
    scene.see(generation, annotated(last));
    assert_eq!(may_be_outdated(&scene.consumer, &scene.world), is_read);
}

#[rstest]
#[case::unchanged(json!({}), true)]
#[case::another_spec(json!({"generation": 2}), false)]
#[case::another_label(json!({"labels": {"team": "b"}}), false)]
#[case::no_labels(json!({"labels": null}), false)]
#[case::another_object(json!({"uid": "other"}), false)]
#[case::another_status(json!({"resourceVersion": "8"}), true)]
fn compares_the_version_of_the_consumer(#[case] change: Value, #[case] is_same: bool) {
    let mut consumer = consumer();
    consumer.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    let mut found = serde_json::to_value(&consumer.metadata).unwrap();
    found.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let found: Meta = serde_json::from_value(found).unwrap();
    assert_eq!(is_same_version(&consumer, &found), is_same);
}

#[test]
fn accepts_a_webhook_that_changes_every_apply() {
    // The webhook makes the same change each time, so the second apply changes nothing.
    let mut scene = Scene::new(consumer());
    scene.apply(0, 1);
    scene.see(1, other_image);
    assert!(scene.plan(0).steps.is_empty());

    // The webhook makes another change each time, even for the Deployment controller. Each apply returns a
    // new generation, and is the last.
    for generation in [3, 5, 7] {
        scene.see(generation - 1, other_image);
        scene.apply(0, generation);
        scene.see(generation, other_image);
        assert!(scene.plan(0).steps.is_empty());
    }
    scene.see(8, other_image);
    assert_eq!(condition(&scene.plan(0), "Applied").0, "False Drifted");
}

#[rstest]
#[case::annotation("annotations")]
#[case::label("labels")]
fn accepts_a_webhook_that_removes_metadata(#[case] member: &str) {
    // A change of metadata does not change the generation.
    let mut scene = changed("/metadata", member, json!({}));
    for _ in 0..4 {
        scene.apply(0, 1);
    }
    assert_eq!(condition(&scene.pass(0), "Applied").0, "False Drifted");
    // A new manager recognizes its own object by the UID.
    scene.world.attempts.clear();
    assert!(applies(&scene.plan(0)).is_some());
}

/// A HorizontalPodAutoscaler scales the Deployment.
fn scaled(replicas: i32) -> impl FnOnce(&mut Value) {
    move |raw| {
        raw["metadata"]["managedFields"] = json!([{
            "manager": "kube-controller-manager", "operation": "Update", "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }]);
        raw["spec"]["replicas"] = json!(replicas);
        for figure in ["replicas", "updatedReplicas", "readyReplicas"] {
            raw["status"][figure] = json!(replicas);
        }
    }
}

#[test]
fn leaves_replicas_to_an_autoscaler_of_the_deployment() {
    let mut scene = Scene::new(consumer());
    scene.apply(0, 1);
    for replicas in 2..20 {
        let generation = replicas.into();
        scene.see(generation, scaled(replicas));
        let left = scene.apply(0, generation);
        let (body, _) = applies(&left).unwrap();
        assert!(body["spec"]["replicas"].is_null(), "{body}");
        assert_eq!(body["metadata"]["annotations"], wanted(&consumer())["metadata"]["annotations"]);
        // The manager does not repeat the apply every minute, and reports the autoscaler.
        for minute in 0..3 {
            let quiet = scene.plan(minute * 60);
            assert_eq!(quiet.again, None);
            let (state, message) = condition(&quiet, "Applied");
            assert_eq!(state, "False ReplicasManagedElsewhere");
            assert_eq!(condition(&quiet, "Ready").0, "True ConsumersReady");
            assert!(message.starts_with("kube-controller-manager scales Deployment"), "{message}");
        }
    }
    // The last change wins: a change of the PulsarConsumer is applied once.
    scene.consumer.spec.replicas = 3;
    assert_eq!(applies(&scene.apply(0, 20)).unwrap().0["spec"]["replicas"], 3);
    scene.see(21, scaled(7));
    assert!(applies(&scene.apply(0, 21)).unwrap().0["spec"]["replicas"].is_null());
    // Manually scaled to the desired number, it matches the spec.
    scene.see(22, scaled(3));
    scene.apply(0, 22);
    assert_eq!(condition(&scene.plan(0), "Applied").0, "True AsSpecified");
}

/// A client that scales to 0 leaves the replicas without an owner, also when it scales up again.
#[rstest]
#[case::to_zero(0)]
#[case::up_again(3)]
fn leaves_replicas_that_no_field_manager_owns(#[case] replicas: i32) {
    let mut scene = Scene::settled(consumer());
    scene.pass(0);
    scene.see(2, |raw| {
        scaled(replicas)(raw);
        raw["metadata"]["managedFields"] = json!([
            { "manager": "quintet", "operation": "Apply", "fieldsV1": { "f:spec": { "f:template": {} } } },
            { "manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                "fieldsV1": { "f:status": { "f:replicas": {} } } },
        ]);
    });
    let plan = scene.plan(0);
    let (state, message) = condition(&plan, "Applied");
    assert_eq!(state, "False ReplicasManagedElsewhere");
    assert!(message.starts_with("Another client scales Deployment sample-deployment"), "{message}");
}

/// The API server gets no write, not even one without a change, while an autoscaler scales the Deployment.
#[test]
fn does_not_apply_a_deployment_that_is_only_scaled() {
    let mut scene = Scene::settled(consumer());
    scene.pass(0);
    // A new manager knows only the status.
    scene.world.attempts.clear();
    for replicas in 2..5 {
        scene.see(replicas.into(), scaled(replicas));
        let plan = scene.pass(0);
        assert_eq!(condition(&plan, "Applied").0, "False ReplicasManagedElsewhere");
        assert_eq!(plan.status.unwrap().applied[0].generation, i64::from(replicas));
    }
    // Another change together with the replicas is repaired.
    scene.see(5, |raw| {
        scaled(1)(raw);
        other_image(raw);
    });
    assert!(applies(&scene.plan(0)).unwrap().0["spec"]["replicas"].is_null());
    // So is the change of a client that scales through no subresource.
    scene.see(5, |raw| raw["spec"]["replicas"] = json!(4));
    assert_eq!(applies(&scene.plan(0)).unwrap().0["spec"]["replicas"], 1);
    // The digest of an earlier spec does not match.
    scene.consumer.spec.topic = Some("other".into());
    scene.see(5, |raw| {
        scaled(4)(raw);
        raw["spec"] = stored(&consumer())["spec"].clone();
    });
    assert!(applies(&scene.plan(0)).is_some());
}

#[test]
fn repairs_other_fields_beside_an_autoscaler() {
    let mut scene = Scene::new(consumer());
    scene.see(2, |raw| {
        scaled(5)(raw);
        other_image(raw);
    });
    let repair = scene.plan(0);
    let (body, _) = applies(&repair).unwrap();
    assert!(body["spec"]["replicas"].is_null());
    assert_eq!(body.pointer(CONTAINER).unwrap()["image"], IMAGE);
}

#[rstest]
#[case::another_field(json!({"topic": "other"}), "v1-x-1", None)]
#[case::replicas(json!({"replicas": 3}), "v1-x-1", Some(3))]
#[case::both(json!({"topic": "other", "replicas": 3}), "v1-x-1", Some(3))]
#[case::back_to_one(json!({"replicas": 1}), "v1-x-10", Some(1))]
#[case::applied_by_an_earlier_build(json!({"replicas": 3}), "v1-x", None)]
fn only_a_change_of_replicas_overrides_an_autoscaler(
    #[case] fields: Value,
    #[case] last: &str,
    #[case] expected: Option<i64>,
) {
    let mut scene = Scene::new(consumer());
    scene.see(2, |raw| {
        scaled(5)(raw);
        raw["metadata"]["annotations"] = json!({"quintet.dev/applied": last});
    });
    scene.consumer = with(&fields);
    let plan = scene.plan(0);
    let (body, _) = applies(&plan).unwrap();
    assert_eq!(body["spec"]["replicas"].as_i64(), expected);
    // A newer Deployment, which another manager may have scaled, would lose replicas that only Quintet owns.
    assert_eq!(body["metadata"]["resourceVersion"], "7");
}

#[rstest]
#[case(5, Some(1))]
#[case::stopped(0, None)]
fn a_change_to_exclusive_only_lowers_an_autoscalers_replicas(
    #[case] before: i32,
    #[case] expected: Option<i64>,
) {
    let mut scene = Scene::new(consumer());
    scene.see(2, scaled(before));
    scene.consumer = with(&json!({"subscriptionType": "Exclusive"}));
    let change = scene.plan(0);
    // After the patch that removes rollingUpdate.
    let Action::Apply { body, .. } = &change.steps[1][0] else { panic!("{change:?}") };
    assert_eq!(body["spec"]["replicas"].as_i64(), expected);
    scene.answer(&change, 2);
    // The autoscaler continues. The manager does not scale back and forth with it.
    scene.see(3, scaled(5));
    assert!(applies(&scene.apply(0, 3)).unwrap().0["spec"]["replicas"].is_null());
    assert_eq!(condition(&scene.plan(0), "Applied").0, "False ReplicasManagedElsewhere");
}

#[test]
fn keeps_the_replicas_if_a_webhook_removes_the_annotation() {
    let mut scene = Scene::new(consumer());
    scene.apply(0, 1);
    scene.see(2, |raw| {
        scaled(5)(raw);
        raw["metadata"]["annotations"] = json!({});
    });
    assert!(applies(&scene.plan(0)).unwrap().0["spec"]["replicas"].is_null());
    scene.consumer.spec.replicas = 3;
    assert_eq!(applies(&scene.plan(0)).unwrap().0["spec"]["replicas"], 3);
}

#[test]
fn fewer_pods_that_an_autoscaler_desires_are_enough() {
    let mut scene = Scene::new(with(&json!({"replicas": 4})));
    scene.see(1, scaled(2));
    let quiet = scene.plan(0);
    assert_eq!(
        condition(&quiet, "Available"),
        ("True ConsumersReady".to_owned(), "2 of 2 consumers are ready.")
    );
    assert_eq!(condition(&quiet, "Applied").0, "False ReplicasManagedElsewhere");
    assert_eq!(desired_replicas(&scene.consumer), 4);
    scene.consumer.status.clone_from(&quiet.status);
    assert_eq!(desired_replicas(&scene.consumer), 2, "the metric of desired consumers");
}
