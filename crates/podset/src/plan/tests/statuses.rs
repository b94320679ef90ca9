//! The figures of the status.

use super::*;

/// The counted, ready, available and terminating pods.
#[rstest]
#[case(5, "0-1 Running, 2 Pending, 3 Terminating, 4 Terminated", [3, 2, 2, 1], "2 of 5 pods are available.")]
#[case::terminating_pods_apart(1, "0 Terminating", [0, 0, 0, 1], "0 of 1 pods are available.")]
#[case::of_zero_replicas(0, "0-1 Running", [2, 2, 2, 0], "0 of 0 pods are available.")]
#[case::of_negative_replicas(-3, "0-1 Running", [2, 2, 2, 0], "0 of 0 pods are available.")]
fn counts_pods(#[case] replicas: i32, #[case] pods: &str, #[case] counts: [i32; 4], #[case] message: &str) {
    let plan = Scene::new(of(replicas), pods).plan(0);
    assert_eq!(condition(&plan, "Available").2, message);
    let status = plan.status.unwrap();
    let figures =
        [status.replicas, status.ready_replicas, status.available_replicas, status.terminating_replicas];
    assert_eq!(figures, counts.map(Some));
}

#[test]
fn the_status_names_the_ready_pods_and_selects_all() {
    let scene = Scene::new(of(5), "1 Running, 0 Running, 2 Pending, 3 Terminating, 4 Terminated");
    let status = scene.plan(0).status.unwrap();
    let mut ready = [name(0), name(1)];
    ready.sort();
    assert_eq!(status.pod_names, ready);
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.selector, Some(format!("{UID_LABEL}=set")));
}

#[test]
fn the_status_has_at_most_a_hundred_names() {
    let status = Scene::new(of(150), "0-149 Running").plan(0).status.unwrap();
    assert_eq!((status.pod_names.len(), status.ready_replicas), (100, Some(150)));
    assert!(status.pod_names.is_sorted());
}

#[rstest]
#[case(29, Some(30), "False", 0)]
#[case(30, None, "True", 1)]
fn a_pod_is_available_after_min_ready_seconds(
    #[case] second: i64,
    #[case] again: Option<i64>,
    #[case] is_available: &str,
    #[case] available: i32,
) {
    let plan = Scene::new(podset(&json!({"minReadySeconds": 30})), "0 Running").plan(second);
    assert_eq!((plan.again, condition(&plan, "Available").0), (again.map(after), is_available));
    let status = plan.status.unwrap();
    assert_eq!((status.ready_replicas, status.available_replicas), (Some(1), Some(available)));
}

#[test]
fn ignores_the_clock_without_min_ready_seconds() {
    let mut scene = Scene::new(of(1), "0 Running");
    Arc::make_mut(&mut scene.world.pods[0]).ready_since = Some(after(30));
    assert_eq!(scene.plan(0).status.unwrap().available_replicas, Some(1));
}

#[rstest]
#[case("Scheduling", |pod: &mut Pod| (pod.node, pod.phase) = (None, Phase::Pending))]
#[case("Unschedulable", |pod: &mut Pod| {
    (pod.node, pod.phase) = (None, Phase::Pending);
    pod.unschedulable = Some("0/3 nodes are available".into());
})]
#[case("ImagePullBackOff", |pod: &mut Pod| (pod.phase, pod.waiting) = (Phase::Pending, Some("ImagePullBackOff".into())))]
#[case("Starting", |pod: &mut Pod| (pod.phase, pod.waiting) = (Phase::Pending, Some("ContainerCreating".into())))]
#[case("NotReady", |_: &mut Pod| ())]
#[case("CrashLoopBackOff", |pod: &mut Pod| pod.crashed = Some(Box::new(exit())))]
fn reports_why_a_pod_is_not_ready(#[case] reason: &str, #[case] change: fn(&mut Pod)) {
    let mut scene = Scene::new(of(30), "0-29 Running");
    for pod in &mut scene.world.pods {
        let pod = Arc::make_mut(pod);
        pod.ready_since = None;
        change(pod);
    }
    let status = scene.plan(0).status.unwrap();
    assert!(status.not_ready.iter().all(|pod| pod.reason == reason), "{:?}", status.not_ready);
    assert_eq!((status.not_ready.len(), status.more_not_ready), (20, Some(10)));
}
