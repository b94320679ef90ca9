//! What a DaemonJob promises when nodes die, boot and join.

use std::time::Instant;

use quintet_e2e::{condition, workspace};
use serde_json::{Value, json};

use crate::site::Site;

fn job(name: &str, command: &[&str]) -> Value {
    json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": { "name": name, "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "OnFailure",
            "containers": [{ "name": "work", "image": "busybox", "command": command }] } } } })
}

fn is_complete(site: &Site, name: &str, succeeded: i64) -> bool {
    let job = site.get("daemonjob", name);
    condition(&job, "Complete").0 == "True" && job["status"]["succeeded"] == succeeded
}

/// Whether a list of a status has a node with this reason.
fn is_told(job: &Value, list: &str, node: &str, reason: &str) -> bool {
    let nodes = job["status"][list].as_array();
    nodes.into_iter().flatten().any(|one| one["node"] == *node && one["reason"] == *reason)
}

fn is_ready(site: &Site, node: &str) -> bool {
    condition(&site.get("node", node), "Ready").0 == "True"
}

#[test]
fn a_node_dies_and_boots_again_and_another_one_joins() {
    let mut site = Site::new("real-nodes", 2);
    // The managers are elsewhere when the node dies: what happens when theirs does is told by the tests of the managers.
    site.kubectl(&["cordon", "node-2"]).unwrap();
    site.install(&[]);
    site.kubectl(&["uncordon", "node-2"]).unwrap();
    for sample in ["late-nodes", "rerun-on-reboot"] {
        let file = workspace().join(format!("samples/daemonjob/{sample}.yaml"));
        site.kubectl(&["apply", "-f", &file.display().to_string()]).unwrap();
    }
    site.apply(&job("done", &["true"]));
    for name in ["done", "daemonjob-late-nodes", "daemonjob-rerun-on-reboot"] {
        let took = site.wait(&format!("{name} has run on both nodes"), || is_complete(&site, name, 2));
        println!("{name} has run on both nodes after {:.1} s more", took.as_secs_f64());
    }
    let done = site.pods_of("done");
    assert_eq!(done.len(), 2, "{done:?}");
    let booted = |site: &Site| {
        let node = site.get("node", "node-2");
        node["status"]["nodeInfo"]["bootID"].as_str().unwrap().to_owned()
    };
    let first_boot = booted(&site);

    // One whose containers run while their node dies: it runs for as long as the whole test could.
    site.apply(&job("running", &["sleep", "600"]));
    site.wait("its containers run on both nodes", || {
        site.get("daemonjob", "running")["status"]["active"] == 2
    });
    let running = site.pods_of("running");
    site.cluster().kill_node(2).unwrap();
    // The taint that keeps pods away comes by a second write.
    let is_shunned = |node: &Value| {
        let taint = |taint: &Value| {
            taint["key"] == "node.kubernetes.io/unreachable" && taint["effect"] == "NoSchedule"
        };
        node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(taint))
    };
    let took = site.wait("the node's silence is noticed", || {
        !is_ready(&site, "node-2") && is_shunned(&site.get("node", "node-2"))
    });
    println!("a node that was killed is NotReady after {:.1} s", took.as_secs_f64());
    let on_it = |pods: &std::collections::BTreeMap<String, String>| {
        pods.keys().filter(|name| name.starts_with("node-2 ")).count()
    };
    // Whether its container runs nobody can know: no other pod takes its place.
    assert_eq!(site.pods_of("running"), running);
    // A run that begins now waits for the dead node for a while, and skips it by name then.
    let mut meanwhile = job("meanwhile", &["true"]);
    meanwhile["spec"]["unhealthyNodes"] = json!({ "skipAfterSeconds": 15 });
    site.apply(&meanwhile);
    site.wait("the other node is done, and the dead one is pending", || {
        let job = site.get("daemonjob", "meanwhile");
        job["status"]["succeeded"] == 1 && is_told(&job, "pendingNodes", "node-2", "Unreachable")
    });
    assert_eq!(condition(&site.get("daemonjob", "meanwhile"), "Complete").0, "False");
    let took = site.wait("it is complete without the dead node", || is_complete(&site, "meanwhile", 1));
    println!("an unhealthy node is skipped after {:.1} s more", took.as_secs_f64());
    assert!(is_told(&site.get("daemonjob", "meanwhile"), "skippedNodes", "node-2", "Unreachable"));
    assert_eq!(on_it(&site.pods_of("meanwhile")), 0);

    let begin = Instant::now();
    site.cluster().boot_node(2).unwrap();
    println!("it is Ready again {:.1} s after it was started", begin.elapsed().as_secs_f64());
    assert_ne!(booted(&site), first_boot);
    site.wait("the node that is back is done too", || is_complete(&site, "meanwhile", 2));
    site.wait("its container runs again", || {
        let pods = site.list("pods", "daemonjob=running");
        let active =
            pods.iter().filter(|pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object());
        active.count() == 2 && site.get("daemonjob", "running")["status"]["active"] == 2
    });
    assert_eq!(on_it(&site.pods_of("running")), 1, "one pod for a node: {:?}", site.pods_of("running"));
    // What asked for it runs once more, in a pod that is made for this boot.
    let boot = booted(&site);
    site.wait("what is asked to run after a boot has run", || {
        site.list("pods", "daemonjob=daemonjob-rerun-on-reboot").iter().any(|pod| {
            pod["metadata"]["annotations"]["dj.dysproz.io/boot-id"] == *boot
                && pod["status"]["phase"] == "Succeeded"
        })
    });
    assert_eq!(site.pods_of("done"), done, "what is done stays done");

    let begin = Instant::now();
    site.cluster().boot_node(3).unwrap();
    println!("a third node is Ready {:.1} s after it was started", begin.elapsed().as_secs_f64());
    site.wait("the one that joins runs what the others have run", || {
        is_complete(&site, "done", 3) && is_complete(&site, "meanwhile", 3)
    });
    site.wait("it is too late for what said so", || {
        let job = site.get("daemonjob", "daemonjob-late-nodes");
        let skipped = job["status"]["skippedNodes"].as_array().cloned().unwrap_or_default();
        job["status"]["succeeded"] == 2
            && skipped.iter().any(|node| node["node"] == "node-3" && node["reason"] == "Late")
    });
    let after = site.pods_of("done");
    assert!(after.len() == 3 && done.iter().all(|(name, uid)| after.get(name) == Some(uid)), "{after:?}");
}
