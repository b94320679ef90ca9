//! PodSet: exactly as many pods as wanted, whatever happens to the manager.
//!
//! All nodes are simulated. The manager's crashes are real. Pods are counted by the API server's audit log and by a watch.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::{Arena, Dice};
use serde_json::json;

use crate::podset::podset;
use crate::podset_rollout::{on_own_nodes, rolled_out};

/// Killed at 50 random moments while it scales up in steps: each pod is made once, and there are never too many.
#[test]
fn fifty_kills_make_no_pod_twice() {
    let arena = Arena::new("pf-kills");
    arena.nodes(0..4);
    arena.apply(&podset("set", &json!({ "replicas": 0, "template": on_own_nodes(&arena) }))).unwrap();
    let watch = arena.watch("pods", "quintet.dev/kind=PodSet");
    let mut dice = Dice::new();
    let mut wanted = 0;
    for _ in 0..50 {
        wanted += 4;
        arena.kubectl(&["scale", "podset", "set", &format!("--replicas={wanted}")]).unwrap();
        let mut manager = arena.bare_manager("podset");
        sleep(Duration::from_millis(30 + dice.below(300)));
        manager.kill().unwrap();
        manager.wait().unwrap();
    }
    let _manager = arena.manager("podset");
    arena.wait_for("podset", "set", "all are there", rolled_out(wanted));
    let created = arena.created_pods();
    assert!(created.values().all(|times| *times == 1), "{created:?}");
    let seen: BTreeSet<String> =
        watch.events().iter().map(|(_, pod)| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        seen.len(),
        usize::try_from(wanted).unwrap(),
        "each pod was made once, by what a watch has shown"
    );
}

/// Two managers that both believe that they may write scale up and down: their names collide, so none is made twice; and from
/// pods of one node and one age they choose the same, so nobody deletes what the other keeps.
#[test]
fn two_managers_at_once_keep_the_number() {
    let arena = Arena::new("pf-two");
    arena.node("n");
    let _first = arena.manager_with("first", "podset", &[]);
    let _second = arena.manager_with("second", "podset", &[]);
    arena.apply(&podset("set", &json!({ "replicas": 30, "template": on_own_nodes(&arena) }))).unwrap();
    arena.wait_for("podset", "set", "thirty pods", rolled_out(30));
    let created = arena.created_pods();
    assert!(created.len() == 30 && created.values().all(|times| *times == 1), "{created:?}");
    arena.kubectl(&["scale", "podset", "set", "--replicas=10"]).unwrap();
    arena.wait_for("podset", "set", "ten pods", rolled_out(10));
    sleep(Duration::from_secs(2));
    let created = arena.created_pods();
    assert!(
        created.len() == 30 && created.values().all(|times| *times == 1),
        "none was made again: {created:?}"
    );
    let left = arena.list("pods", "quintet.dev/kind=PodSet");
    let left = left.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count();
    assert_eq!(left, 10);
}
