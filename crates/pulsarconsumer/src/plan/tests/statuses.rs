//! The status: readiness of the consumers, and their backlog.

use super::*;
use crate::managed_object::ManagedObject as _;

#[test]
fn reports_each_step_until_it_is_ready() {
    let mut scene = Scene::new(consumer());
    let first = scene.plan(0);
    assert!(applies(&first).is_some() && first.status.is_none(), "only the apply");

    for (status, words) in [
        (json!({}), "0 of 1 consumers are ready."),
        (json!({"observedGeneration": 1, "replicas": 1}), "0 of 1 consumers are ready."),
        (
            json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}),
            "1 of 1 consumers are ready.",
        ),
    ] {
        scene.see(1, |raw| raw["status"] = status);
        let before = scene.consumer.status.clone();
        let next = scene.pass(0);
        assert_ne!(next.status, before);
        assert_eq!(condition(&next, "Available").1, words);
    }
    let after = scene.plan(3_600);
    assert!(after.steps.is_empty() && after.events.is_empty() && after.again.is_none());
    assert_eq!(after.status, scene.consumer.status);
}

#[test]
fn the_status_has_the_deployments_figures() {
    let mut scene = Scene::settled(with(&json!({"replicas": 3})));
    scene.see(1, |raw| raw["status"]["readyReplicas"] = json!(2));
    let plan = scene.plan(0);
    let available = ("False ConsumersNotReady".to_owned(), "2 of 3 consumers are ready.");
    assert_eq!(condition(&plan, "Available"), available);
    assert_eq!(condition(&plan, "Applied").0, "True AsSpecified");
    let status = PulsarConsumerStatus { conditions: vec![], ..plan.status.unwrap() };
    let digest = scene.world.deployment.unwrap().digest();
    assert_eq!(
        serde_json::to_value(status).unwrap(),
        json!({
            "observedGeneration": 1, "server": "pulsar://localhost:6650", "topic": "my-topic",
            "subscription": "first-subscription", "replicas": 3, "updatedReplicas": 3, "readyReplicas": 2,
            "selector": "pulsarcrd=sample-pulsarcrd",
            "applied": [{"kind": "Deployment", "uid": "d", "generation": 1, "digest": digest}],
        })
    );
}

#[rstest]
#[case::ready(1, 1, 1, None, "True ConsumersReady", "1 of 1 consumers are ready.")]
#[case::more_than_desired(1, 2, 1, None, "True ConsumersReady", "2 of 1 consumers are ready.")]
#[case::stale_figures(1, 1, 0, None, "Unknown NotObservedYet", "Not observed yet.")]
#[case::stale_figures_of_too_few(2, 1, 0, None, "False ConsumersNotReady", "1 of 2 consumers are ready.")]
#[case::trouble(1, 0, 1, Some("no quota"), "False DeploymentTrouble", "0 of 1 consumers are ready: no quota")]
#[case::stuck(1, 1, 1, Some("too slow"), "True ConsumersReady", "1 of 1 consumers are ready: too slow")]
#[case::zero(0, 0, 1, None, "True ConsumersReady", "No consumer is desired.")]
fn available_follows_readiness(
    #[case] wanted: i32,
    #[case] ready: i32,
    #[case] observed: i64,
    #[case] trouble: Option<&str>,
    #[case] state: &str,
    #[case] message: &str,
) {
    let mut scene = Scene::settled(with(&json!({"replicas": wanted})));
    let deployment = Arc::make_mut(scene.world.deployment.as_mut().unwrap());
    deployment.ready = ready;
    deployment.observed_generation = observed;
    deployment.trouble = trouble.map(Into::into);
    assert_eq!(condition(&scene.plan(0), "Available"), (state.to_owned(), message));
}

#[test]
fn keeps_available_until_the_new_spec_is_counted() {
    let mut scene = Scene::settled(with(&json!({"replicas": 2})));
    scene.pass(0);
    scene.consumer.spec.replicas = 1;
    scene.consumer.status.as_mut().unwrap().applied[0].generation = 2;
    scene.see(2, |raw| {
        raw["status"] = json!({"observedGeneration": 1, "replicas": 1, "readyReplicas": 2});
    });
    assert_eq!(condition(&scene.plan(0), "Available").1, "2 of 2 consumers are ready.");
}

/// The consumer with its only pod, which is not ready.
fn unready(status: &Value) -> Scene {
    let mut scene = Scene::settled(consumer());
    scene.see(1, |raw| raw["status"]["readyReplicas"] = json!(0));
    scene.see_pod(status);
    scene
}

fn waiting(reason: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": reason}}}]})
}

fn crashed(container: &str) -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": container,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": "log line\nno token"}}}]})
}

#[rstest]
#[case::unschedulable(json!({"phase": "Pending", "conditions": [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]}),
    "Unschedulable", "0/3 nodes")]
#[case::no_image(waiting("ErrImagePull"), "ImagePullFailed", "pod-1")]
#[case::still_no_image(waiting("ImagePullBackOff"), "ImagePullFailed", "pod-1")]
#[case::no_container(waiting("CreateContainerConfigError"), "ContainerNotCreated", "pod-1")]
#[case::crashed(crashed("pulsarconsumer"), "ConsumerFailed", "exit code 2; last output: no token")]
#[case::crashed_sidecar(crashed("proxy"), "ConsumerFailed", "exit code 2; last output of proxy: no token")]
#[case::starting(waiting("ContainerCreating"), "ConsumersNotReady", "run: kubectl describe pod pod-1")]
#[case::not_ready(json!({"phase": "Running"}), "ConsumersNotReady", "run: kubectl describe pod pod-1")]
fn reports_why_a_consumer_is_not_ready(#[case] status: Value, #[case] reason: &str, #[case] words: &str) {
    let plan = unready(&status).plan(0);
    let (state, message) = condition(&plan, "Available");
    assert_eq!(state, format!("False {reason}"), "{message}");
    assert!(message.contains(words), "{message}");
    assert_eq!(plan.events.len(), usize::from(reason != "ConsumersNotReady"));
}

/// A Deployment of 2 pods whose new template has no ready pod yet.
fn rolling(pod: &Value, progressing: &Value) -> Scene {
    let mut scene = Scene::settled(with(&json!({"replicas": 2})));
    scene.see(1, |raw| {
        raw["status"] = json!({
            "observedGeneration": 1, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2,
            "conditions": [progressing],
        });
    });
    scene.see_pod(pod);
    scene
}

#[rstest]
#[case::starting(waiting("ContainerCreating"), "ReplicaSetUpdated", "RolloutUnfinished", &[])]
#[case::bad_image(waiting("ImagePullBackOff"), "ReplicaSetUpdated", "ImagePullFailed", &["RolloutBlocked"])]
#[case::too_late(waiting("ContainerCreating"), "ProgressDeadlineExceeded", "DeploymentTrouble", &["RolloutBlocked"])]
#[case::bad_image_too_late(waiting("ErrImagePull"), "ProgressDeadlineExceeded", "ImagePullFailed",
    &["RolloutBlocked"])]
#[case::of_a_newer_kubernetes(waiting("ContainerCreating"), "News", "RolloutUnfinished", &[])]
fn reports_an_unfinished_rollout(
    #[case] pod: Value,
    #[case] reason: &str,
    #[case] ready: &str,
    #[case] events: &[&str],
) {
    let is_late = reason == "ProgressDeadlineExceeded";
    let status = if is_late { "False" } else { "True" };
    let mut scene = rolling(
        &pod,
        &json!({"type": "Progressing", "status": status, "reason": reason, "message": "so far"}),
    );
    let plan = scene.pass(0);
    let (state, message) = condition(&plan, "Ready");
    assert_eq!(state, format!("False {ready}"));
    assert!(message.starts_with("1 of 2 consumers have the current template, 2 are ready"), "{message}");
    let (state, message) = condition(&plan, "Available");
    assert_eq!(state, "True ConsumersReady");
    let words = "2 of 2 consumers are ready, 1 of 2 have the current template";
    assert_eq!(message, if is_late { format!("{words}: so far") } else { format!("{words}.") });
    let expected = if reason == "News" { "OtherReason" } else { reason };
    assert_eq!(condition(&plan, "Progressing"), (format!("{status} {expected}"), "so far"));
    let status = plan.status.as_ref().unwrap();
    assert_eq!(status.updated_replicas, Some(1));
    assert_eq!(status.conditions.iter().any(|one| one.type_ == "Stalled" && one.status == "True"), is_late);
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), events);
    assert!(scene.plan(0).events.is_empty());
}

#[rstest]
#[case::complete(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}), "True ConsumersReady")]
#[case::old_pods(json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 2, "readyReplicas": 3}), "False RolloutUnfinished")]
#[case::too_few(json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}), "False RolloutUnfinished")]
#[case::not_ready(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}), "False RolloutUnfinished")]
#[case::not_observed(json!({"observedGeneration": 0, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}), "False RolloutUnfinished")]
fn ready_means_that_the_rollout_is_complete(#[case] status: Value, #[case] state: &str) {
    let mut scene = Scene::settled(with(&json!({"replicas": 2})));
    scene.see(1, |raw| raw["status"] = status);
    assert_eq!(condition(&scene.plan(0), "Ready").0, state);
}

#[test]
fn keeps_progressing_until_the_new_spec_is_observed() {
    let progressing = |message: &str| json!({"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": message});
    let mut scene = rolling(&waiting("ContainerCreating"), &progressing("before"));
    scene.pass(0);
    scene.see(1, |raw| {
        raw["status"] = json!({"observedGeneration": 0, "conditions": [progressing("after")]});
    });
    assert_eq!(condition(&scene.plan(0), "Progressing").1, "before");
}

#[test]
fn keeps_the_message_of_a_crash_loop() {
    let ended = |words: &str| json!({"terminated": {"exitCode": 1, "reason": "Error", "message": words}});
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let mut scene = unready(&json!({}));
    for (at, container) in [
        json!({"name": "c", "state": waits, "lastState": ended("12:00 no")}),
        json!({"name": "c", "state": {"running": {}}, "lastState": ended("12:00 no")}),
        json!({"name": "c", "state": ended("12:01 no")}),
        json!({"name": "c", "state": waits, "lastState": ended("12:01 no")}),
    ]
    .iter()
    .enumerate()
    {
        scene.see_pod(&json!({"phase": "Running", "containerStatuses": [container]}));
        let before = scene.consumer.status.clone();
        let plan = scene.pass(0);
        assert_eq!(plan.events.len(), usize::from(at == 0), "{:?}", plan.events);
        assert!(at == 0 || plan.status == before, "{:?}", plan.status);
    }
}

#[test]
fn reports_the_backlog_and_writes_nothing_after_a_restart() {
    let mut scene = Scene::settled(with(&json!({"adminURL": "http://broker:8080"})));
    scene.world.backlog = Some(figures(7));
    let first = scene.pass(0);
    let status = first.status.as_ref().unwrap();
    assert_eq!((status.backlog, status.unacked, status.consumers), (Some(7), Some(0), Some(1)));
    assert_eq!(condition(&first, "BacklogObserved").0, "True Observed");

    // A new process has not read it yet.
    scene.world.backlog = None;
    assert_eq!(scene.plan(300).status, first.status);

    scene.world.backlog = Some(unknown());
    let third = scene.plan(0);
    assert_eq!(condition(&third, "BacklogObserved").0, "False TopicNotFound");
    assert_eq!(third.events.len(), 1);
    assert_eq!(third.status.unwrap().backlog, None);

    // Without adminURL the figures are removed.
    scene.consumer.spec.admin_url = None;
    let fourth = scene.plan(0).status.unwrap();
    assert_eq!((fourth.backlog, fourth.consumers, fourth.conditions.len()), (None, None, 3));
}

#[rstest]
#[case(None, "Unknown NotObservedYet")]
#[case(Some(unknown()), "False TopicNotFound")]
fn a_new_topic_drops_the_old_backlog(#[case] backlog: Option<BacklogSample>, #[case] state: &str) {
    let mut scene = Scene::settled(with(&json!({"adminURL": "http://broker:8080"})));
    scene.world.backlog = Some(figures(5_000));
    scene.pass(0);
    scene.consumer.spec.topic = Some("other".into());
    scene.see(1, |_| ());
    scene.world.backlog = backlog;
    let plan = scene.plan(0);
    assert_eq!(condition(&plan, "BacklogObserved").0, state);
    let status = plan.status.unwrap();
    assert_eq!((status.backlog, status.backlog_time), (None, None));
}

#[rstest]
#[case(json!({"topics": ["my-topic", "other"]}), "my-topic, other")]
#[case(json!({"topicsPattern": "my-.*"}), "my-.*")]
fn other_topics_replace_the_pods_and_drop_the_backlog(#[case] fields: Value, #[case] shown: &str) {
    let admin = json!({"adminURL": "http://broker:8080"});
    let mut scene = Scene::settled(with(&admin));
    scene.world.backlog = Some(figures(5_000));
    scene.pass(0);
    let status = scene.consumer.status.clone();
    let mut all = fields;
    all.as_object_mut().unwrap().extend(admin.as_object().unwrap().clone());
    scene.consumer = PulsarConsumer { status, ..with(&all) };
    scene.world.backlog = None;
    assert!(applies(&scene.plan(0)).is_some());
    scene.see(1, |_| ());
    let plan = scene.pass(0);
    assert_eq!(condition(&plan, "BacklogObserved").0, "Unknown NotObservedYet");
    let status = plan.status.unwrap();
    assert_eq!((status.topic.as_deref(), status.backlog), (Some(shown), None));
    // No topic matches, or all are empty.
    scene.world.backlog = Some(BacklogSample::sum(Ok(Vec::new()), Partitions::new()));
    let plan = scene.plan(0);
    assert_eq!(condition(&plan, "BacklogObserved").0, "True Observed");
    assert_eq!(plan.status.unwrap().backlog, Some(0));
}

/// It may have been stored under the tutorial's definition.
#[test]
fn an_object_without_topics_keeps_its_deployment() {
    let mut scene = Scene::new(consumer());
    scene.consumer.spec.topic = None;
    let plan = scene.plan(0);
    assert!(plan.steps.is_empty() && plan.again.is_none());
    let status = plan.status.unwrap();
    for condition in &status.conditions {
        assert_eq!((&*condition.status, &*condition.reason), ("False", "TopicMissing"));
    }
    assert_eq!((status.conditions.len(), status.observed_generation), (2, Some(1)));
}
