//! DaemonJob's rules when nodes die, boot and join.

use std::env;
use std::process::Command;
use std::time::Instant;

use quintet_e2e::{condition, workspace};
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{documents, run, variables};
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

/// Whether the list of a status has the node with this reason.
fn is_listed(job: &Value, list: &str, node: &str, reason: &str) -> bool {
    let nodes = job["status"][list].as_array();
    nodes.into_iter().flatten().any(|one| one["node"] == *node && one["reason"] == *reason)
}

fn is_ready(site: &Site, node: &str) -> bool {
    condition(&site.get("node", node), "Ready").0 == "True"
}

#[test]
fn handles_a_dead_a_rebooted_and_a_new_node() {
    let mut site = Site::new("real-nodes", 2);
    // The managers run on the other node. Their own tests cover the death of a manager's node.
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

    // A job whose containers run while the node dies, longer than the whole test.
    site.apply(&job("running", &["sleep", "600"]));
    site.wait("the containers run on both nodes", || {
        site.get("daemonjob", "running")["status"]["active"] == 2
    });
    let running = site.pods_of("running");
    site.cluster().kill_node(2).unwrap();
    // The node controller adds the NoSchedule taint in a second write.
    let is_tainted = |node: &Value| {
        let taint = |taint: &Value| {
            taint["key"] == "node.kubernetes.io/unreachable" && taint["effect"] == "NoSchedule"
        };
        node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(taint))
    };
    let took = site.wait("the node is not Ready and tainted", || {
        !is_ready(&site, "node-2") && is_tainted(&site.get("node", "node-2"))
    });
    println!("a node that was killed is NotReady after {:.1} s", took.as_secs_f64());
    let on_it = |pods: &std::collections::BTreeMap<String, String>| {
        pods.keys().filter(|name| name.starts_with("node-2 ")).count()
    };
    // The container may still run, so no other pod replaces it.
    assert_eq!(site.pods_of("running"), running);
    // A new run waits some time for the dead node, then skips it.
    let mut meanwhile = job("meanwhile", &["true"]);
    meanwhile["spec"]["unhealthyNodes"] = json!({ "skipAfterSeconds": 15 });
    site.apply(&meanwhile);
    site.wait("the other node has succeeded and the dead node is pending", || {
        let job = site.get("daemonjob", "meanwhile");
        job["status"]["succeeded"] == 1 && is_listed(&job, "pendingNodes", "node-2", "Unreachable")
    });
    assert_eq!(condition(&site.get("daemonjob", "meanwhile"), "Complete").0, "False");
    let took = site.wait("it is complete without the dead node", || is_complete(&site, "meanwhile", 1));
    println!("an unhealthy node is skipped after {:.1} s more", took.as_secs_f64());
    assert!(is_listed(&site.get("daemonjob", "meanwhile"), "skippedNodes", "node-2", "Unreachable"));
    assert_eq!(on_it(&site.pods_of("meanwhile")), 0);

    let begin = Instant::now();
    site.cluster().boot_node(2).unwrap();
    println!("the node is Ready again {:.1} s after it was started", begin.elapsed().as_secs_f64());
    assert_ne!(booted(&site), first_boot);
    site.wait("the rebooted node has succeeded too", || is_complete(&site, "meanwhile", 2));
    site.wait("the container runs again", || {
        let pods = site.list("pods", "daemonjob=running");
        let active =
            pods.iter().filter(|pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object());
        active.count() == 2 && site.get("daemonjob", "running")["status"]["active"] == 2
    });
    assert_eq!(on_it(&site.pods_of("running")), 1, "one pod for a node: {:?}", site.pods_of("running"));
    // The job with rerunOn runs again, in a pod for this boot.
    let boot = booted(&site);
    site.wait("the job with rerunOn has run after the boot", || {
        site.list("pods", "daemonjob=daemonjob-rerun-on-reboot").iter().any(|pod| {
            pod["metadata"]["annotations"]["dj.dysproz.io/boot-id"] == *boot
                && pod["status"]["phase"] == "Succeeded"
        })
    });
    assert_eq!(site.pods_of("done"), done, "done nodes stay done");

    let begin = Instant::now();
    site.cluster().boot_node(3).unwrap();
    println!("a third node is Ready {:.1} s after it was started", begin.elapsed().as_secs_f64());
    site.wait("the new node has run the other jobs", || {
        is_complete(&site, "done", 3) && is_complete(&site, "meanwhile", 3)
    });
    site.wait("the job with lateNodes Ignore skips the new node", || {
        let job = site.get("daemonjob", "daemonjob-late-nodes");
        let skipped = job["status"]["skippedNodes"].as_array().cloned().unwrap_or_default();
        job["status"]["succeeded"] == 2
            && skipped.iter().any(|node| node["node"] == "node-3" && node["reason"] == "Late")
    });
    let after = site.pods_of("done");
    assert!(after.len() == 3 && done.iter().all(|(name, uid)| after.get(name) == Some(uid)), "{after:?}");
}

/// The commands for a cluster of real nodes, with the name of a temporary cluster.
#[test]
fn the_commands_of_the_readme_work() {
    let cluster = Temporary::new("real-readme");
    let xtask = run::shell_quote(&env::var(variables::XTASK).unwrap());
    let commands = documents::commands(&workspace().join("README.md"));
    let named = commands.iter().filter_map(|command| command.strip_suffix(" --name real"));
    let mut ran = 0;
    for command in named {
        let command = format!("{} --name {}", command.replace("cargo xtask", &xtask), cluster.name());
        println!("{command}");
        let status = Command::new("bash").args(["-ec", &command]).current_dir(workspace()).status().unwrap();
        assert!(status.success(), "{command}: {status}");
        ran += 1;
    }
    assert!(ran >= 7, "only {ran} commands found");
    assert!(!Cluster::names().unwrap().contains(&cluster.name()), "the last command removes the cluster");
}
