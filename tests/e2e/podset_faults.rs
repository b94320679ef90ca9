//! PodSet: the desired number of pods, despite crashes of the manager. Only the nodes are simulated. The API
//! server's audit log and a watch count the pods.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::{Dice, TestEnv};
use serde_json::json;

use crate::podset::podset;
use crate::podset_rollout::{on_own_nodes, rolled_out};

/// Kills the manager at 50 random moments of a scale-up: no pod is created twice, and never too many exist.
#[test]
fn fifty_kills_create_no_pod_twice() {
    let env = TestEnv::new("pf-kills");
    env.nodes(0..4);
    env.apply(&podset("set", &json!({ "replicas": 0, "template": on_own_nodes(&env) }))).unwrap();
    let watch = env.watch("pods", "quintet.dev/kind=PodSet");
    let mut dice = Dice::new();
    let mut desired = 0;
    for _ in 0..50 {
        desired += 4;
        env.kubectl(&["scale", "podset", "set", &format!("--replicas={desired}")]).unwrap();
        let mut manager = env.bare_manager("podset");
        sleep(Duration::from_millis(30 + dice.below(300)));
        manager.kill().unwrap();
        manager.wait().unwrap();
    }
    let _manager = env.manager("podset");
    env.wait_for("podset", "set", "all pods are ready", rolled_out(desired));
    let created = env.created_pods();
    assert!(created.values().all(|times| *times == 1), "{created:?}");
    let seen: BTreeSet<String> =
        watch.events().iter().map(|(_, pod)| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen.len(), usize::try_from(desired).unwrap(), "the watch shows each pod once");
}

/// Two managers may both write. Pod names collide, so no pod is created twice. Among equal pods, both choose
/// the same ones to delete.
#[test]
fn two_active_managers_keep_the_number_of_pods() {
    let env = TestEnv::new("pf-two");
    env.node("n");
    let _first = env.manager_with("first", "podset", &[]);
    let _second = env.manager_with("second", "podset", &[]);
    env.apply(&podset("set", &json!({ "replicas": 30, "template": on_own_nodes(&env) }))).unwrap();
    env.wait_for("podset", "set", "thirty pods are ready", rolled_out(30));
    let created = env.created_pods();
    assert!(created.len() == 30 && created.values().all(|times| *times == 1), "{created:?}");
    env.kubectl(&["scale", "podset", "set", "--replicas=10"]).unwrap();
    env.wait_for("podset", "set", "ten pods are ready", rolled_out(10));
    sleep(Duration::from_secs(2));
    let created = env.created_pods();
    assert!(
        created.len() == 30 && created.values().all(|times| *times == 1),
        "no pod was created again: {created:?}"
    );
    let left = env.list("pods", "quintet.dev/kind=PodSet");
    let left = left.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count();
    assert_eq!(left, 10);
}
