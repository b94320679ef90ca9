//! PodSet: how pods of an older template are replaced, what is promised meanwhile, and which pods go first.
//!
//! All nodes are simulated: a pod is ready when it runs, or as the annotation `kwok.quintet.dev/ready` says.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::{Arena, Watch, condition};
use serde_json::{Value, json};

use crate::daemonjob_samples::{promise, samples};
use crate::podset::podset;

const HASH: &str = "batch.tutorial.kubebuilder.io/template-hash";

/// A template of this image, with these annotations, for the cluster's own nodes: what runs on a node of another test goes with
/// that one.
pub(crate) fn template(image: &str, annotations: &Value) -> Value {
    json!({ "metadata": { "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": image }],
            "nodeSelector": { "quintet.dev/simulated": "true" } } })
}

/// A template for the test's nodes alone: what runs on a node of another test goes with that one.
pub(crate) fn on_own_nodes(arena: &Arena) -> Value {
    let mut template = template("busybox", &json!({}));
    template["spec"]["nodeSelector"] = json!({ "arena": arena.namespace() });
    template
}

fn progressing(set: &Value) -> (String, String) {
    condition(set, "Progressing")
}

/// As many pods as that, all ready and of the current template.
pub(crate) fn rolled_out(count: i64) -> impl Fn(&Value) -> bool {
    move |set| {
        let status = &set["status"];
        ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]
            .iter()
            .all(|field| status[*field].as_i64().unwrap_or(0) == count)
            && status["observedGeneration"] == set["metadata"]["generation"]
            && progressing(set) == ("True".into(), "PodsUpdated".into())
    }
}

/// What a watch has shown of the pods: the most that counted at any moment, and the fewest that were ready after all of
/// `from` were.
fn extremes(watch: &Watch, from: usize) -> (usize, usize) {
    let (mut pods, mut most, mut fewest) = (BTreeMap::new(), 0, usize::MAX);
    let mut was_full = false;
    for (type_, pod) in watch.events() {
        let name = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if type_ == "DELETED" || ended || !pod["metadata"]["deletionTimestamp"].is_null() {
            pods.remove(&name);
        } else {
            pods.insert(name, condition(&pod, "Ready").0 == "True");
        }
        most = most.max(pods.len());
        let ready = pods.values().filter(|ready| **ready).count();
        was_full |= ready == from;
        if was_full {
            fewest = fewest.min(ready);
        }
    }
    (most, fewest)
}

fn images(arena: &Arena) -> BTreeMap<String, usize> {
    let mut images = BTreeMap::new();
    for pod in arena.list("pods", "quintet.dev/kind=PodSet") {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            let image = pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
            *images.entry(image).or_insert(0) += 1;
        }
    }
    images
}

#[test]
fn a_new_template_is_rolled_out_and_a_bad_one_stops_and_leaves_the_old_pods_serving() {
    let arena = Arena::new("pr-roll");
    let _manager = arena.manager("podset");
    let strategy = json!({ "maxUnavailable": 2 });
    let spec = |template: &Value| json!({ "replicas": 10, "template": template, "updateStrategy": strategy, "progressDeadlineSeconds": 5 });
    let watch = arena.watch("pods", "quintet.dev/kind=PodSet");
    arena.apply(&podset("set", &spec(&template("one", &json!({}))))).unwrap();
    arena.wait_for("podset", "set", "ten pods of the first template", rolled_out(10));
    arena.apply(&podset("set", &spec(&template("two", &json!({}))))).unwrap();
    arena.wait_for("podset", "set", "ten pods of the second template", rolled_out(10));
    assert_eq!(images(&arena), BTreeMap::from([("two".to_owned(), 10)]));
    assert_eq!(extremes(&watch, 10), (10, 8), "the most that counted, the fewest that were ready");

    arena
        .apply(&podset("set", &spec(&template("bad", &json!({ "kwok.quintet.dev/ready": "false" })))))
        .unwrap();
    let set = arena.wait_for("podset", "set", "the deadline is told, and why", |set| {
        progressing(set) == ("False".into(), "ProgressDeadlineExceeded".into())
            && (&set["status"]["readyReplicas"], &set["status"]["updatedReplicas"]) == (&json!(8), &json!(2))
            && set["status"]["notReady"][0]["reason"] == "NotReady"
    });
    assert_eq!(condition(&set, "Available").0, "False");
    sleep(Duration::from_secs(2));
    assert_eq!(images(&arena), BTreeMap::from([("bad".to_owned(), 2), ("two".to_owned(), 8)]));
    arena.wait("an Event tells it", || {
        let events = arena.list("events.events.k8s.io", "");
        events.iter().any(|event| event["reason"] == "ProgressDeadlineExceeded")
    });

    // Back again: the pods that were left are of that template already.
    arena.apply(&podset("set", &spec(&template("two", &json!({}))))).unwrap();
    arena.wait_for("podset", "set", "all is well again", rolled_out(10));
    assert_eq!(extremes(&watch, 10), (10, 8));
    let made = arena.created_pods().len();
    assert!(made <= 24, "{made} pods were made for 10, 10, 2 and 2");
}

#[test]
fn surge_comes_first_and_goes_last() {
    let arena = Arena::new("pr-surge");
    let _manager = arena.manager("podset");
    let spec = |image: &str| {
        json!({ "replicas": 4, "template": template(image, &json!({})),
            "updateStrategy": { "maxUnavailable": 0, "maxSurge": "25%" } })
    };
    let watch = arena.watch("pods", "quintet.dev/kind=PodSet");
    arena.apply(&podset("set", &spec("one"))).unwrap();
    arena.wait_for("podset", "set", "four pods", rolled_out(4));
    arena.apply(&podset("set", &spec("two"))).unwrap();
    arena.wait_for("podset", "set", "four new pods", rolled_out(4));
    assert_eq!(extremes(&watch, 4), (5, 4), "one more, none fewer");
    assert_eq!(images(&arena), BTreeMap::from([("two".to_owned(), 4)]));
}

#[test]
fn partition_pause_and_on_delete_leave_pods_as_they_are() {
    let arena = Arena::new("pr-leave");
    let _manager = arena.manager("podset");
    let apply = |image: &str, strategy: Value| {
        let spec =
            json!({ "replicas": 4, "template": template(image, &json!({})), "updateStrategy": strategy });
        arena.apply(&podset("set", &spec)).unwrap();
    };
    apply("one", json!({ "partition": 3 }));
    arena.wait_for("podset", "set", "four pods", rolled_out(4));
    let reached = |reason: &'static str, ready: i64| {
        move |set: &Value| {
            progressing(set).1 == reason
                && set["status"]["readyReplicas"] == ready
                && set["status"]["observedGeneration"] == set["metadata"]["generation"]
        }
    };
    apply("two", json!({ "partition": 3 }));
    let set = arena.wait_for("podset", "set", "one is replaced", |set| {
        reached("PartitionReached", 4)(set) && set["status"]["updatedReplicas"] == 1
    });
    assert_eq!(condition(&set, "Available").0, "True");
    assert_eq!(images(&arena), BTreeMap::from([("one".to_owned(), 3), ("two".to_owned(), 1)]));
    apply("two", json!({ "paused": true }));
    arena.wait_for("podset", "set", "it is paused", reached("Paused", 4));
    // What goes by itself is replaced, by the current template.
    let old = arena.list("pods", "quintet.dev/kind=PodSet");
    let old = old.iter().find(|pod| pod["spec"]["containers"][0]["image"] == "one").unwrap();
    arena.kubectl(&["delete", "pod", old["metadata"]["name"].as_str().unwrap(), "--wait=false"]).unwrap();
    arena.wait_for("podset", "set", "it is replaced", |set| {
        reached("Paused", 4)(set) && set["status"]["updatedReplicas"] == 2
    });
    apply("two", json!({ "type": "OnDelete" }));
    arena.wait_for("podset", "set", "it waits for a person", reached("OnDelete", 4));
    apply("two", json!({}));
    arena.wait_for("podset", "set", "the rest follows", rolled_out(4));
}

#[test]
fn pods_go_by_name_and_by_cost_and_wait_to_be_available() {
    let arena = Arena::new("pr-order");
    let _manager = arena.manager("podset");
    arena
        .apply(&podset("set", &json!({ "replicas": 6, "template": template("busybox", &json!({})) })))
        .unwrap();
    let set = arena.wait_for("podset", "set", "six pods", rolled_out(6));
    let names: Vec<String> = set["status"]["podNames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().into())
        .collect();
    arena.kubectl(&["annotate", "pod", &names[4], "controller.kubernetes.io/pod-deletion-cost=-7"]).unwrap();
    arena.patch(
        "podset",
        "set",
        &json!({ "spec": { "podsToDelete": [names[2], "unknown"], "replicas": 4 } }),
    );
    arena.wait_for("podset", "set", "four are left", rolled_out(4));
    let left: Vec<String> = arena
        .list("pods", "quintet.dev/kind=PodSet")
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(!left.contains(&names[2]) && !left.contains(&names[4]), "{left:?} of {names:?}");
    // A pod counts as available when it has been ready for so long.
    arena.patch("podset", "set", &json!({ "spec": { "minReadySeconds": 10, "podsToDelete": [] } }));
    arena.wait_for("podset", "set", "four are available", rolled_out(4));
    arena.patch("podset", "set", &json!({ "spec": { "replicas": 5 } }));
    arena.wait_for("podset", "set", "five are ready and four available", |set| {
        set["status"]["readyReplicas"] == 5 && set["status"]["availableReplicas"] == 4
    });
    arena.wait_for("podset", "set", "five are available", rolled_out(5));
}

#[test]
fn an_autoscaler_scales_it() {
    let arena = Arena::new("pr-hpa");
    let _manager = arena.manager("podset");
    arena.apply(&podset("set", &json!({ "replicas": 2 }))).unwrap();
    arena.wait_for("podset", "set", "two pods", rolled_out(2));
    // Below its minimum a HorizontalPodAutoscaler scales without any metric.
    let scaler = json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "set" },
        "spec": { "minReplicas": 5, "maxReplicas": 9,
            "scaleTargetRef": { "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "name": "set" } } });
    arena.apply(&scaler).unwrap();
    arena.wait_for("podset", "set", "the autoscaler's minimum", rolled_out(5));
    let scaler = arena.wait_for("horizontalpodautoscaler", "set", "it sees the pods", |scaler| {
        scaler["status"]["currentReplicas"] == 5
    });
    assert_eq!(condition(&scaler, "AbleToScale").0, "True", "{scaler:#}");
}

#[test]
fn a_pod_without_its_labels_is_released_and_goes_on() {
    let arena = Arena::new("pr-free");
    let _manager = arena.manager("podset");
    arena.node("n");
    arena.apply(&podset("set", &json!({ "replicas": 2, "template": on_own_nodes(&arena) }))).unwrap();
    let set = arena.wait_for("podset", "set", "two pods", rolled_out(2));
    let freed = set["status"]["podNames"][0].as_str().unwrap().to_owned();
    arena.kubectl(&["label", "pod", &freed, "app=debugging", "--overwrite"]).unwrap();
    let pod =
        arena.wait_for("pod", &freed, "it is nobody's", |pod| pod["metadata"]["ownerReferences"].is_null());
    assert!(pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running");
    arena.wait_for("podset", "set", "it is replaced", |set| {
        rolled_out(2)(set)
            && !set["status"]["podNames"].as_array().unwrap().iter().any(|name| *name == *freed)
    });
    // The label by which pods are watched is put back, and nothing is made in the meantime.
    let marked = arena.list("pods", "app=set")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let before = arena.created_pods();
    arena.kubectl(&["label", "pod", &marked, "quintet.dev/kind-"]).unwrap();
    arena.wait_for("pod", &marked, "the label is back", |pod| {
        pod["metadata"]["labels"]["quintet.dev/kind"] == "PodSet"
    });
    arena.wait_for("podset", "set", "two pods", rolled_out(2));
    assert_eq!(arena.created_pods(), before);
    arena.kubectl(&["delete", "podset", "set", "--timeout=60s"]).unwrap();
    arena.wait("its pods go", || arena.list("pods", "app=set").is_empty());
    assert_eq!(arena.get("pod", &freed).unwrap()["status"]["phase"], "Running");
}

#[test]
fn every_sample_comes_to_what_it_promises() {
    let arena = Arena::new("pr-samples");
    let _manager = arena.manager("podset");
    for file in samples("podset") {
        let path = file.display().to_string();
        arena.kubectl(&["apply", "-f", &path]).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = std::fs::read_to_string(&file).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap();
        let promised = promise(&text, "Progressing (PodsUpdated)");
        arena.wait_for("podset", name, &format!("{path} comes to {promised:?}"), |set| {
            condition(set, &promised.0) == ("True".into(), promised.1.clone())
                && set["status"]["readyReplicas"] == set["spec"]["replicas"]
        });
    }
}

/// Pods as the post's operator made them: its labels, its owner reference, and names of its own.
#[test]
fn pods_of_the_posts_operator_are_taken_over() {
    let arena = Arena::new("pr-post");
    arena.apply(&podset("set", &json!({ "replicas": 3 }))).unwrap();
    let uid = arena.get("podset", "set").unwrap()["metadata"]["uid"].clone();
    let pod = |name: &str, owner: Value| {
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": "set", "version": "v0.1" }, "ownerReferences": owner },
            "spec": { "containers": [{ "name": "busybox", "image": "busybox", "command": ["sleep", "3600"] }] } })
    };
    let owner = json!([{ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "name": "set", "uid": uid,
        "controller": true, "blockOwnerDeletion": true }]);
    for number in 0..3 {
        arena.apply(&pod(&format!("set-pod{number}"), owner.clone())).unwrap();
    }
    arena.apply(&pod("stranger", json!([]))).unwrap();
    let _manager = arena.manager("podset");
    let set = arena.wait_for("podset", "set", "three pods", rolled_out(3));
    assert_eq!(set["status"]["podNames"], json!(["set-pod0", "set-pod1", "set-pod2"]));
    assert!(arena.created_pods().is_empty());
    arena.wait("the stranger is mentioned", || {
        let events = arena.list("events.events.k8s.io", "");
        events.iter().any(|event| {
            event["reason"] == "ForeignPods"
                && event["note"].as_str().is_some_and(|note| note.contains("stranger"))
        })
    });
    // The next one is of the same template, since the built-in one is the post's.
    arena.kubectl(&["scale", "podset", "set", "--replicas=4"]).unwrap();
    arena.wait_for("podset", "set", "four pods", rolled_out(4));
    let hashes: Vec<_> = arena
        .list("pods", "quintet.dev/kind=PodSet")
        .iter()
        .map(|pod| pod["metadata"]["labels"][HASH].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(hashes, vec!["v1-default"; 4]);
    assert!(arena.get("pod", "stranger").unwrap()["metadata"]["labels"]["quintet.dev/kind"].is_null());
}
