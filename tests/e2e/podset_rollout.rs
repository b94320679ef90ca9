//! PodSet: the replacement of pods of an older template, its limits, and the order of deletions. All nodes
//! are simulated: a pod is ready when it runs, or as the annotation `kwok.quintet.dev/ready` states.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use quintet_e2e::objects::Watch;
use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

use crate::daemonjob_samples::{promise, samples};
use crate::podset::{UID_LABEL, podset};

/// A template with this image and these annotations for the cluster's nodes. A node of another test could
/// disappear.
pub(crate) fn template(image: &str, annotations: &Value) -> Value {
    json!({ "metadata": { "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": image }],
            "nodeSelector": { "quintet.dev/simulated": "true" } } })
}

/// A template for the test's nodes only.
pub(crate) fn on_own_nodes(env: &TestEnv) -> Value {
    let mut template = template("busybox", &json!({}));
    template["spec"]["nodeSelector"] = json!({ "env": env.namespace() });
    template
}

fn progressing(set: &Value) -> (String, String) {
    condition(set, "Progressing")
}

/// Whether this number of pods exists, all ready and of the spec's template.
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

/// The maximum number of pods that the watch has shown, and the minimum of ready pods after `from` pods were
/// ready.
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

/// The number of pods of each image.
pub(crate) fn images(env: &TestEnv) -> BTreeMap<String, usize> {
    let mut images = BTreeMap::new();
    for pod in env.list("pods", "quintet.dev/kind=PodSet") {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            let image = pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
            *images.entry(image).or_insert(0) += 1;
        }
    }
    images
}

#[test]
fn stops_at_a_bad_template_and_keeps_the_old_pods() {
    let env = TestEnv::new("pr-roll");
    let _manager = env.manager("podset");
    let strategy = json!({ "maxUnavailable": 2 });
    let spec = |template: &Value| json!({ "replicas": 10, "template": template, "updateStrategy": strategy, "progressDeadlineSeconds": 5 });
    let watch = env.watch("pods", "quintet.dev/kind=PodSet");
    env.apply(&podset("set", &spec(&template("one", &json!({}))))).unwrap();
    env.wait_for("podset", "set", "ten pods of the first template are ready", rolled_out(10));
    env.apply(&podset("set", &spec(&template("two", &json!({}))))).unwrap();
    env.wait_for("podset", "set", "ten pods of the second template are ready", rolled_out(10));
    assert_eq!(images(&env), BTreeMap::from([("two".to_owned(), 10)]));
    assert_eq!(extremes(&watch, 10), (10, 8), "maximum of pods, minimum of ready pods");

    env.apply(&podset("set", &spec(&template("bad", &json!({ "kwok.quintet.dev/ready": "false" })))))
        .unwrap();
    let set = env.wait_for("podset", "set", "the status reports the deadline and the reason", |set| {
        progressing(set) == ("False".into(), "ProgressDeadlineExceeded".into())
            && (&set["status"]["readyReplicas"], &set["status"]["updatedReplicas"]) == (&json!(8), &json!(2))
            && set["status"]["notReady"][0]["reason"] == "NotReady"
    });
    assert_eq!(condition(&set, "Available").0, "True", "the rollout keeps to its limit");
    sleep(Duration::from_secs(2));
    assert_eq!(images(&env), BTreeMap::from([("bad".to_owned(), 2), ("two".to_owned(), 8)]));
    env.wait("the deadline has an Event", || {
        let events = env.list("events.events.k8s.io", "");
        events.iter().any(|event| event["reason"] == "ProgressDeadlineExceeded")
    });

    // Back to the previous template, which the remaining pods still have.
    env.apply(&podset("set", &spec(&template("two", &json!({}))))).unwrap();
    env.wait_for("podset", "set", "ten pods are ready again", rolled_out(10));
    assert_eq!(extremes(&watch, 10), (10, 8));
    let made = env.created_pods().len();
    assert!(made <= 24, "{made} pods were created for 10, 10, 2 and 2");
}

#[test]
fn creates_surge_pods_before_it_deletes_old_pods() {
    let env = TestEnv::new("pr-surge");
    let _manager = env.manager("podset");
    let spec = |image: &str| {
        json!({ "replicas": 4, "template": template(image, &json!({})),
            "updateStrategy": { "maxUnavailable": 0, "maxSurge": "25%" } })
    };
    let watch = env.watch("pods", "quintet.dev/kind=PodSet");
    env.apply(&podset("set", &spec("one"))).unwrap();
    env.wait_for("podset", "set", "four pods are ready", rolled_out(4));
    env.apply(&podset("set", &spec("two"))).unwrap();
    env.wait_for("podset", "set", "four new pods are ready", rolled_out(4));
    assert_eq!(extremes(&watch, 4), (5, 4), "one more than desired, never fewer ready");
    assert_eq!(images(&env), BTreeMap::from([("two".to_owned(), 4)]));
}

#[test]
fn partition_pause_and_on_delete_keep_pods() {
    let env = TestEnv::new("pr-leave");
    let _manager = env.manager("podset");
    let apply = |image: &str, strategy: Value| {
        let spec =
            json!({ "replicas": 4, "template": template(image, &json!({})), "updateStrategy": strategy });
        env.apply(&podset("set", &spec)).unwrap();
    };
    apply("one", json!({ "partition": 3 }));
    env.wait_for("podset", "set", "four pods are ready", rolled_out(4));
    let reached = |reason: &'static str, ready: i64| {
        move |set: &Value| {
            progressing(set).1 == reason
                && set["status"]["readyReplicas"] == ready
                && set["status"]["observedGeneration"] == set["metadata"]["generation"]
        }
    };
    apply("two", json!({ "partition": 3 }));
    let set = env.wait_for("podset", "set", "one pod is replaced", |set| {
        reached("PartitionReached", 4)(set) && set["status"]["updatedReplicas"] == 1
    });
    assert_eq!(condition(&set, "Available").0, "True");
    assert_eq!(images(&env), BTreeMap::from([("one".to_owned(), 3), ("two".to_owned(), 1)]));
    apply("two", json!({ "paused": true }));
    env.wait_for("podset", "set", "the PodSet is paused", reached("Paused", 4));
    // A deleted pod is replaced by one of the same template.
    let old = env.list("pods", "quintet.dev/kind=PodSet");
    let old = old.iter().find(|pod| pod["spec"]["containers"][0]["image"] == "one").unwrap();
    env.kubectl(&["delete", "pod", old["metadata"]["name"].as_str().unwrap(), "--wait=false"]).unwrap();
    env.wait("the pod is replaced", || {
        let pods = env.list("pods", "quintet.dev/kind=PodSet");
        pods.len() == 4 && pods.iter().all(|pod| pod["metadata"]["uid"] != old["metadata"]["uid"])
    });
    env.wait_for("podset", "set", "the PodSet is paused", reached("Paused", 4));
    assert_eq!(images(&env), BTreeMap::from([("one".to_owned(), 3), ("two".to_owned(), 1)]));
    apply("two", json!({ "type": "OnDelete" }));
    env.wait_for("podset", "set", "the status has OnDelete", reached("OnDelete", 4));
    apply("two", json!({}));
    env.wait_for("podset", "set", "the other pods are replaced", rolled_out(4));
}

#[test]
fn deletes_by_name_and_cost_and_respects_min_ready() {
    let env = TestEnv::new("pr-order");
    let _manager = env.manager("podset");
    env.apply(&podset("set", &json!({ "replicas": 6, "template": template("busybox", &json!({})) })))
        .unwrap();
    let set = env.wait_for("podset", "set", "six pods are ready", rolled_out(6));
    let names: Vec<String> = set["status"]["podNames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().into())
        .collect();
    env.kubectl(&["annotate", "pod", &names[4], "controller.kubernetes.io/pod-deletion-cost=-7"]).unwrap();
    env.patch("podset", "set", &json!({ "spec": { "podsToDelete": [names[2], "unknown"], "replicas": 4 } }));
    env.wait_for("podset", "set", "four pods are left", rolled_out(4));
    let left: Vec<String> = env
        .list("pods", "quintet.dev/kind=PodSet")
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(!left.contains(&names[2]) && !left.contains(&names[4]), "{left:?} of {names:?}");
    // A pod is available once it has been ready for minReadySeconds.
    env.patch("podset", "set", &json!({ "spec": { "minReadySeconds": 10, "podsToDelete": [] } }));
    env.wait_for("podset", "set", "four pods are available", rolled_out(4));
    env.patch("podset", "set", &json!({ "spec": { "replicas": 5 } }));
    env.wait_for("podset", "set", "five pods are ready and four are available", |set| {
        set["status"]["readyReplicas"] == 5 && set["status"]["availableReplicas"] == 4
    });
    env.wait_for("podset", "set", "five pods are available", rolled_out(5));
}

#[test]
fn an_autoscaler_scales_a_podset() {
    let env = TestEnv::new("pr-hpa");
    let _manager = env.manager("podset");
    env.apply(&podset("set", &json!({ "replicas": 2 }))).unwrap();
    env.wait_for("podset", "set", "two pods are ready", rolled_out(2));
    // Below its minimum, a HorizontalPodAutoscaler scales without metrics.
    let scaler = json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "set" },
        "spec": { "minReplicas": 5, "maxReplicas": 9,
            "scaleTargetRef": { "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "name": "set" } } });
    env.apply(&scaler).unwrap();
    env.wait_for("podset", "set", "five pods are ready", rolled_out(5));
    let scaler = env.wait_for("horizontalpodautoscaler", "set", "it counts five pods", |scaler| {
        scaler["status"]["currentReplicas"] == 5
    });
    assert_eq!(condition(&scaler, "AbleToScale").0, "True", "{scaler:#}");
}

#[test]
fn a_relabelled_pod_is_released_and_keeps_running() {
    let env = TestEnv::new("pr-free");
    let _manager = env.manager("podset");
    env.node("n");
    env.apply(&podset("set", &json!({ "replicas": 2, "template": on_own_nodes(&env) }))).unwrap();
    let set = env.wait_for("podset", "set", "two pods are ready", rolled_out(2));
    let released = set["status"]["podNames"][0].as_str().unwrap().to_owned();
    env.kubectl(&["label", "pod", &released, &format!("{UID_LABEL}-")]).unwrap();
    let pod = env.wait_for("pod", &released, "no owner", |pod| pod["metadata"]["ownerReferences"].is_null());
    assert!(pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running");
    env.wait_for("podset", "set", "the pod is replaced", |set| {
        rolled_out(2)(set)
            && !set["status"]["podNames"].as_array().unwrap().iter().any(|name| *name == *released)
    });
    // The manager restores the label of its watch, and creates no pod meanwhile.
    let marked = env.list("pods", UID_LABEL)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let before = env.created_pods();
    env.kubectl(&["label", "pod", &marked, "quintet.dev/kind-"]).unwrap();
    env.wait_for("pod", &marked, "the pod has the label again", |pod| {
        pod["metadata"]["labels"]["quintet.dev/kind"] == "PodSet"
    });
    env.wait_for("podset", "set", "two pods are ready", rolled_out(2));
    assert_eq!(env.created_pods(), before);
    env.kubectl(&["delete", "podset", "set", "--timeout=60s"]).unwrap();
    env.wait("the pods are gone", || env.list("pods", UID_LABEL).is_empty());
    assert_eq!(env.get("pod", &released).unwrap()["status"]["phase"], "Running");
}

#[test]
fn every_sample_ends_as_its_comment_states() {
    let env = TestEnv::new("pr-samples");
    let _manager = env.manager("podset");
    for file in samples("podset") {
        let path = file.display().to_string();
        env.kubectl(&["apply", "-f", &path]).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = std::fs::read_to_string(&file).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap();
        let promised = promise(&text, "Progressing (PodsUpdated)");
        env.wait_for("podset", name, &format!("{path} is {promised:?}"), |set| {
            condition(set, &promised.0) == ("True".into(), promised.1.clone())
                && set["status"]["readyReplicas"] == set["spec"]["replicas"]
        });
    }
}
