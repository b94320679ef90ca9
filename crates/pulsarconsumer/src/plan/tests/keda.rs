//! The objects of KEDA.

use super::*;
use crate::api::{Autoscaling, SubscriptionType};
use crate::keda::KedaObject;
use quintet_runtime::model::resource::Resource;

/// A converged Deployment with autoscaling, and a topic without partitions. KEDA has these objects.
fn scaled(stored: &[Value]) -> Scene {
    let mut scene = Scene::settled(with(&json!({
        "adminURL": "https://broker:8443/",
        "auth": {"tokenSecret": {"name": "credentials"}},
        "autoscaling": {"maxReplicas": 30, "minReplicas": 1, "targetBacklog": 50, "activationBacklog": 5,
            "pollingIntervalSeconds": 10, "cooldownSeconds": 100},
    })));
    scene.world.backlog = Some(figures(0));
    scene.world.keda = keda(stored);
    scene
}

/// The same after the user removed the autoscaling.
fn unscaled(stored: &[Value]) -> Scene {
    let mut scene = Scene::settled(consumer());
    scene.world.keda = keda(stored);
    scene
}

/// KEDA is installed and has these objects.
fn keda(stored: &[Value]) -> Keda {
    let find = |kind: &str| {
        let mut object = stored.iter().find(|object| object["kind"] == kind)?.clone();
        object["metadata"]["uid"] = json!("d");
        object["metadata"]["generation"] = json!(1);
        Some(Arc::new(serde_json::from_value::<KedaObject>(object).unwrap()))
    };
    Keda::There { scaled_object: find("ScaledObject"), trigger_authentication: find("TriggerAuthentication") }
}

/// The applied objects of KEDA in order.
fn bodies(scene: &Scene) -> Vec<Value> {
    let actions = scene.plan(0).steps.into_iter().flatten();
    let bodies = actions.filter_map(|action| match action {
        Action::Apply { body, .. } => Some(body),
        _ => None,
    });
    bodies.collect()
}

/// The TriggerAuthentication and the ScaledObject.
fn objects() -> Vec<Value> {
    bodies(&scaled(&[]))
}

#[test]
fn applies_the_objects_of_keda() {
    let bodies = objects();
    let [authentication, object] = &bodies[..] else { panic!("{bodies:?}") };
    let owner = json!([{
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer", "name": "sample",
        "uid": "me", "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(authentication["kind"], "TriggerAuthentication");
    assert_eq!(authentication["metadata"]["ownerReferences"], owner);
    assert_eq!(
        authentication["spec"],
        json!({"secretTargetRef": [{"parameter": "bearerToken", "name": "credentials", "key": "token"}]})
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
                "authenticationRef": {"name": authentication["metadata"]["name"]},
            }],
        })
    );
}

#[test]
fn waits_for_the_partitions_of_the_topic() {
    let mut scene = scaled(&[]);
    scene.world.backlog = None;
    assert!(bodies(&scene).is_empty(), "waits for the first read of the topic");
    let is_partitioned = |body: &Value| body["spec"]["triggers"][0]["metadata"]["isPartitionedTopic"].clone();
    // An unreadable topic counts as not partitioned, so that KEDA can scale later.
    scene.world.backlog = Some(unknown());
    assert_eq!(is_partitioned(&bodies(&scene)[1]), "false");
    scene.world.backlog = Some(BacklogSample { partitions: partitions(&[("my-topic", 3)]), ..figures(0) });
    let partitioned = bodies(&scene);
    assert_eq!(is_partitioned(&partitioned[1]), "true");
    // The last value stays while the topic cannot be read, for instance after a restart.
    scene.world.keda = keda(&partitioned);
    for known in [None, Some(unknown())] {
        scene.world.backlog = known;
        assert!(bodies(&scene).is_empty());
    }
}

#[test]
fn keda_scales_by_the_sum_of_several_topics() {
    let mut scene = scaled(&[]);
    scene.consumer.spec.topic = None;
    scene.consumer.spec.topics = Some(vec!["a".to_owned(), "b/c/d".to_owned()]);
    let letters = json!({"maxRedeliverCount": 3, "deadLetterTopic": "dead", "retryLetterTopic": "again"});
    scene.consumer.spec.dead_letter_policy = serde_json::from_value(letters).unwrap();
    scene.world.backlog =
        Some(BacklogSample { partitions: partitions(&[("a", 0), ("b/c/d", 2)]), ..figures(0) });
    scene.see(1, |_| ());
    let several = bodies(&scene);
    let trigger = |number: usize| {
        let trigger = &several[1]["spec"]["triggers"][number];
        ["/name", "/metadata/topic", "/metadata/isPartitionedTopic"]
            .map(|path| trigger.pointer(path).unwrap().as_str().unwrap())
    };
    assert_eq!(trigger(0), ["topic0", "persistent://public/default/a", "false"]);
    assert_eq!(trigger(1), ["topic1", "persistent://b/c/d", "true"]);
    assert_eq!(trigger(2), ["topic2", "persistent://public/default/again", "false"]);
    assert_eq!(
        several[1]["spec"]["advanced"]["scalingModifiers"],
        json!({"formula": "topic0 + topic1 + topic2", "target": "50", "activationTarget": "5", "metricType": "AverageValue"})
    );

    // A new leader knows the partitions from the ScaledObject, but not those of a new topic.
    scene.see(1, |_| ());
    scene.world.keda = keda(&several);
    scene.world.backlog = None;
    assert!(bodies(&scene).is_empty());
    scene.consumer.spec.topics = Some(vec!["b/c/d".to_owned(), "new".to_owned()]);
    scene.see(1, |_| ());
    assert_eq!(condition(&scene.plan(0), "AutoscalingReady").0, "Unknown NotObservedYet");
    scene.world.backlog = Some(unknown());
    let known = bodies(&scene)[0]["spec"]["triggers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trigger| trigger["metadata"]["isPartitionedTopic"] == "true")
        .collect::<Vec<_>>();
    assert_eq!(known, [true, false, false]);
}

#[rstest]
#[case::none(None, "False KedaMissing")]
#[case::silent(Some(json!([])), "Unknown KedaPending")]
#[case::unready(Some(json!([{"type": "Ready", "status": "False", "message": "no token"}])), "False ScaledObjectNotReady")]
#[case::ready(Some(json!([{"type": "Ready", "status": "True", "message": "ok"}])), "True ScaledObjectReady")]
fn autoscaling_ready_reports_kedas_condition(#[case] conditions: Option<Value>, #[case] state: &str) {
    let mut scene = scaled(&[]);
    scene.world.keda = conditions.map_or(Keda::Absent, |conditions| {
        let mut objects = objects();
        objects[1]["status"] = json!({"conditions": conditions});
        keda(&objects)
    });
    assert_eq!(condition(&scene.plan(0), "AutoscalingReady").0, state);
}

#[test]
fn deletes_its_keda_objects_and_keeps_foreign_ones() {
    let plan = unscaled(&objects()).plan(0);
    let deleted = plan.steps.iter().flatten().map(|action| match action {
        Action::Delete { resource, .. } => resource.kind,
        other => panic!("{other:?}"),
    });
    assert_eq!(deleted.collect::<Vec<_>>(), ["ScaledObject", "TriggerAuthentication"]);

    let mut theirs = objects().remove(1);
    theirs["metadata"]["ownerReferences"] = json!([]);
    let theirs = [theirs];
    assert!(unscaled(&theirs).plan(0).steps.is_empty());
    let mut scene = scaled(&theirs);
    scene.consumer.spec.auth = None;
    scene.see(1, |_| ());
    assert_eq!(condition(&scene.plan(0), "AutoscalingReady").0, "False NotOwned");
}

/// Without leader election, the other manager may have seen a newer PulsarConsumer.
#[rstest]
#[case::authentication(0, TRIGGER_AUTHENTICATIONS)]
#[case::scaled_object(1, SCALED_OBJECTS)]
fn reads_the_consumer_before_it_takes_back_keda_objects(#[case] at: usize, #[case] resource: Resource) {
    let is_read = |scene: &Scene| may_be_outdated(&scene.consumer, &scene.world);
    assert!(!is_read(&scaled(&objects())), "the same bodies");
    let mut changed = objects();
    changed[at]["metadata"]["annotations"] = json!({"quintet.dev/applied": "v1-x"});
    let mut scene = scaled(&changed);
    assert!(is_read(&scene));
    scene.world.attempts.get_mut(&resource).unwrap().hash = "v1-x".to_owned();
    assert!(!is_read(&scene), "of this process");
    changed.remove(at);
    let mut scene = scaled(&changed);
    assert!(is_read(&scene), "another manager may have deleted it");
    scene.world.attempts.clear();
    assert!(!is_read(&scene), "never applied");
    assert!(is_read(&unscaled(&objects()[at..=at])), "before a deletion");
    let mut theirs = objects();
    theirs[at]["metadata"]["ownerReferences"] = json!([]);
    assert!(!is_read(&unscaled(&theirs[at..=at])), "a foreign object");
    assert!(!is_read(&unscaled(&[])));
}

#[test]
fn keda_restores_the_replicas_that_it_set_to_zero() {
    let mut scene = unscaled(&objects());
    scene.consumer.spec.replicas = 0;
    scene.see(1, |_| ());
    let plan = scene.plan(0);
    let [first, second, third] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    let [Action::MergePatch { body, resource, .. }] = &first[..] else { panic!("{first:?}") };
    assert_eq!(*resource, SCALED_OBJECTS);
    assert_eq!(
        *body,
        json!({"metadata": {"uid": "d"}, "spec": {"advanced": {"restoreToOriginalReplicaCount": true}}})
    );
    for (step, kind) in [(second, "ScaledObject"), (third, "TriggerAuthentication")] {
        assert!(matches!(&step[..], [Action::Delete { resource, .. }] if resource.kind == kind), "{step:?}");
    }
    // After the patch, only the deletions remain.
    let mut patched = objects();
    patched[1]["spec"]["advanced"] = json!({"restoreToOriginalReplicaCount": true});
    scene.world.keda = keda(&patched);
    assert_eq!(scene.plan(0).steps.len(), 2);
}

#[test]
fn retries_a_rejected_deletion_of_a_keda_object() {
    let mut scene = unscaled(&objects()[1..]);
    scene.world.refusals.insert(&SCALED_OBJECTS, "sample-pulsarcrd", refusal(Verb::Delete, "no"));
    let waits = scene.plan(0);
    assert!(waits.steps.is_empty() && waits.status.is_some());
    assert_eq!(waits.again, Some(after(10)));
    assert_eq!(scene.plan(10).steps.len(), 1);
}

#[test]
fn applies_the_replicas_that_an_autoscaler_wrote() {
    let mut consumer = scaled(&[]).consumer;
    consumer.spec.replicas = 17;
    assert_eq!(wanted(&consumer)["spec"]["replicas"], 17);
    let autoscaling: Autoscaling = serde_json::from_value(json!({"maxReplicas": 2})).unwrap();
    assert_eq!((autoscaling.min_replicas, autoscaling.max_replicas), (None, 2));
}

#[test]
fn writes_nothing_while_keda_is_unknown() {
    let mut scene = scaled(&[]);
    scene.world.keda = Keda::Absent;
    scene.pass(0);
    scene.world.keda = Keda::Unknown;
    let after = scene.plan(3_600);
    assert!(after.steps.is_empty() && after.events.is_empty());
    assert_eq!(after.status, scene.consumer.status);
}

#[rstest]
#[case(json!({}), None)]
#[case(json!({"tls": {"caSecret": {"name": "broker"}}}), Some("broker"))]
#[case(json!({"tls": {"caSecret": {"name": "broker"}}, "adminTLS": {"caSecret": {"name": "admin"}}}), Some("admin"))]
#[case(json!({"adminTLS": {"caSecret": {"name": "admin"}}}), Some("admin"))]
#[case::not_encrypted(json!({"tls": {"caSecret": {"name": "broker"}}, "adminURL": "http://b"}), None)]
fn verifies_the_admin_api_with_its_own_ca_first(#[case] fields: Value, #[case] expected: Option<&str>) {
    let mut all =
        json!({"adminURL": "https://broker:8443", "auth": {"tokenSecret": {"name": "credentials"}}});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let authentication = trigger_authentication(&with(&all)).unwrap();
    let found = authentication["spec"]["secretTargetRef"].as_array().unwrap().iter();
    let found = found.filter(|one| one["parameter"] == "ca").find_map(|one| one["name"].as_str());
    assert_eq!(found, expected);
}

#[rstest]
#[case(json!({"tokenSecret": {"name": "t"}}), "bearer", &["bearerToken"])]
#[case(json!({"tlsSecret": {"name": "c"}}), "tls", &["cert", "key"])]
#[case(json!({"oauth2": {"tokenURL": "https://i/token", "clientID": "app", "clientSecret": {"name": "s"},
    "audience": "urn:pulsar", "scope": "a b"}}), "oauth", &["clientSecret"])]
#[case(json!({"tokenSecret": {"name": "t"}, "tlsSecret": {"name": "c"}}), "bearer,tls", &["bearerToken", "cert", "key"])]
fn keda_authenticates_as_the_consumers_do(
    #[case] auth: Value,
    #[case] modes: &str,
    #[case] parameters: &[&str],
) {
    let consumer =
        with(&json!({"adminURL": "https://broker:8443", "auth": auth, "autoscaling": {"maxReplicas": 1}}));
    let topics = [(&Topic::of("t"), false)];
    let scaled = scaled_object(&consumer, consumer.spec.autoscaling.as_ref().unwrap(), &topics, 30);
    let metadata = &scaled["spec"]["triggers"][0]["metadata"];
    assert_eq!(metadata["authModes"], modes);
    if modes == "oauth" {
        let fields = ["oauthTokenURI", "clientID", "scope", "EndpointParams"].map(|field| &metadata[field]);
        assert_eq!(scaled["spec"]["triggers"][0]["useCachedMetrics"], true);
        assert_eq!(fields, ["https://i/token", "app", "a,b", "audience=urn%3Apulsar"]);
    }
    let authentication = trigger_authentication(&consumer).unwrap();
    let found = authentication["spec"]["secretTargetRef"].as_array().unwrap().iter();
    assert_eq!(found.map(|one| one["parameter"].as_str().unwrap()).collect::<Vec<_>>(), parameters);
}

/// A certificate without TLS would only make the broker refuse.
#[test]
fn keda_has_no_certificate_for_an_admin_api_without_tls() {
    let fields = json!({"adminURL": "http://broker:8080", "auth": {"tlsSecret": {"name": "c"}}, "autoscaling": {"maxReplicas": 1}});
    let consumer = with(&fields);
    assert_eq!(trigger_authentication(&consumer), None);
    let topics = [(&Topic::of("t"), false)];
    let scaled = scaled_object(&consumer, consumer.spec.autoscaling.as_ref().unwrap(), &topics, 30);
    assert!(scaled["spec"]["triggers"][0].get("authenticationRef").is_none());
}

#[rstest]
#[case::unpartitioned(&[("my-topic", 0)], 1, 1)]
#[case::partitioned(&[("my-topic", 3)], 1, 3)]
#[case::many_partitions(&[("my-topic", 99)], 1, 30)]
#[case::a_minimum(&[("my-topic", 3)], 5, 5)]
#[case::unknown(&[], 1, 30)]
#[case::several_topics(&[("my-topic", 3), ("b", 0)], 1, 4)]
fn partitions_limit_failover_consumers(#[case] known: &[(&str, u32)], #[case] min: i32, #[case] max: i64) {
    let mut scene = scaled(&[]);
    let scaling = scene.consumer.spec.autoscaling.as_mut().unwrap();
    scaling.min_replicas = Some(min);
    if known.len() > 1 {
        scene.consumer.spec.topic = None;
        scene.consumer.spec.topics = Some(known.iter().map(|(topic, _)| (*topic).to_owned()).collect());
    }
    scene.world.backlog = Some(BacklogSample { partitions: partitions(known), ..figures(0) });
    let limit = |scene: &Scene| {
        let scaled_object = bodies(scene).into_iter().find(|body| body["kind"] == "ScaledObject")?;
        scaled_object["spec"]["maxReplicaCount"].as_i64()
    };
    assert_eq!(limit(&scene), Some(30), "other types have no limit");
    scene.consumer.spec.subscription_type = Some(SubscriptionType::Failover);
    assert_eq!(limit(&scene), Some(max));
    // A new leader, which has not counted the partitions yet, changes nothing.
    scene.see(1, |_| ());
    scene.world.keda = keda(&bodies(&scene));
    for unknown in [None, Some(unknown())] {
        scene.world.backlog = unknown;
        assert_eq!(limit(&scene), None);
    }
}

/// The manager may not read the Secret for the admin API.
#[test]
fn the_spec_may_state_that_a_topic_has_no_partitions() {
    let mut scene = scaled(&[]);
    scene.consumer.spec.subscription_type = Some(SubscriptionType::Failover);
    scene.consumer.spec.autoscaling.as_mut().unwrap().partitioned = Some(false);
    scene.world.backlog = Some(unknown());
    let scaled_object = bodies(&scene).into_iter().find(|body| body["kind"] == "ScaledObject").unwrap();
    assert_eq!(scaled_object["spec"]["maxReplicaCount"], 1);
}

#[test]
fn the_condition_reports_the_limit_of_partitions() {
    let failover = |objects: &[Value]| {
        let mut scene = scaled(objects);
        scene.consumer.spec.subscription_type = Some(SubscriptionType::Failover);
        scene.see(1, |_| ());
        scene
    };
    let mut objects = bodies(&failover(&[]));
    objects[1]["status"] = json!({"conditions": [{"type": "Ready", "status": "True", "message": "ok"}]});
    let plan = failover(&objects).plan(0);
    let (state, message) = condition(&plan, "AutoscalingReady");
    assert_eq!(state, "True ScaledObjectReady");
    assert!(message.contains("at most 1 of 30 pods"), "{message}");
}
