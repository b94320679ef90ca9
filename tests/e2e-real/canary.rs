//! A canary of a PodSet, while two of three nodes are drained together with the managers.

use std::collections::{BTreeMap, BTreeSet};

use quintet_e2e::condition;
use serde_json::{Value, json};

use crate::site::Site;

const LABEL: &str = "quintet.dev/kind=PodSet";

fn podset(version: &str) -> Value {
    json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "set", "namespace": "default" },
        "spec": { "replicas": 4, "updateStrategy": { "partition": "75%" },
            "template": { "spec": {
                "terminationGracePeriodSeconds": 1,
                "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": { "matchLabels": { "app": "set" } } }],
                "containers": [{ "name": "c", "image": "busybox", "command": ["sleep", "600"],
                    "env": [{ "name": "VERSION", "value": version }] }] } } } })
}

fn pods(site: &Site) -> Vec<Value> {
    let mut pods = site.list("pods", LABEL);
    pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    pods
}

fn version(pod: &Value) -> String {
    pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap().to_owned()
}

/// The number of pods of each version.
fn versions(site: &Site) -> BTreeMap<String, usize> {
    let mut versions = BTreeMap::new();
    for pod in pods(site) {
        *versions.entry(version(&pod)).or_insert(0) += 1;
    }
    versions
}

fn is_ready(site: &Site, reason: &str) -> bool {
    let set = site.get("podset", "set");
    condition(&set, "Ready") == ("True".into(), reason.into())
        && set["status"]["observedGeneration"] == set["metadata"]["generation"]
        && pods(site).len() == 4
}

#[test]
fn drained_nodes_do_not_spread_a_canary() {
    let site = Site::with_chart("qt-canary", 3);
    site.apply(&podset("one"));
    site.wait("four pods are ready", || is_ready(&site, "PodsUpdated"));
    site.apply(&podset("two"));
    site.wait("the canary is ready", || is_ready(&site, "PartitionReached"));
    let expected = BTreeMap::from([("one".to_owned(), 3), ("two".to_owned(), 1)]);
    assert_eq!(versions(&site), expected);

    let canary = pods(&site).into_iter().find(|pod| version(pod) == "two").unwrap();
    let nodes = ["node-1", "node-2", "node-3"];
    let drained: Vec<&str> = nodes.into_iter().filter(|node| canary["spec"]["nodeName"] != *node).collect();
    let lost: BTreeSet<String> = pods(&site)
        .iter()
        .filter(|pod| drained.iter().any(|node| pod["spec"]["nodeName"] == *node))
        .map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned())
        .collect();
    assert!(lost.len() >= 2, "the pods are spread");
    let watch = site.watch("pods", LABEL);
    for node in &drained {
        site.kubectl(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m"])
            .unwrap();
    }
    site.wait("four pods are ready on the last node", || {
        is_ready(&site, "PartitionReached")
            && pods(&site).iter().all(|pod| pod["spec"]["nodeName"] == canary["spec"]["nodeName"])
    });
    assert_eq!(versions(&site), expected);
    let uid = canary["metadata"]["uid"].as_str().unwrap();
    assert!(pods(&site).iter().any(|pod| pod["metadata"]["uid"] == uid), "the canary itself stays");

    let mut uids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, pod) in watch.events() {
        uids.entry(version(&pod)).or_default().insert(pod["metadata"]["uid"].to_string());
    }
    assert_eq!(uids["two"].len(), 1, "no other pod had the new template for a moment: {uids:?}");
    assert!(uids["one"].len() >= 3 + lost.len(), "the watch has shown the replacements: {uids:?}");
}
