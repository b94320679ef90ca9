//! Every sample with real containers ends as its comment states.

use std::fs;
use std::path::PathBuf;

use quintet_e2e::{condition, workspace};
use serde_json::Value;

use crate::site::Site;

/// The line of a sample with its final condition: `# Ends as: CONDITION (REASON)`.
const PROMISE: &str = "# Ends as: ";

fn samples(kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join("samples").join(kind)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// Applies every sample of a kind. Returns name, final condition and reason of each.
fn apply(site: &Site, kind: &str, usual: &str) -> Vec<(String, String, String)> {
    let mut promised = Vec::new();
    for file in samples(kind) {
        let text = fs::read_to_string(&file).unwrap();
        let applied = site.kubectl(&["apply", "-f", &file.display().to_string(), "-o", "json"]);
        let applied: Value =
            serde_json::from_str(&applied.unwrap_or_else(|error| panic!("{error}"))).unwrap();
        let objects = applied["items"].as_array().cloned().unwrap_or_else(|| vec![applied]);
        let object = objects.iter().find(|one| one["kind"].as_str().unwrap().to_lowercase() == kind).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let promise = text.lines().find_map(|line| line.strip_prefix(PROMISE)).unwrap_or(usual);
        let (type_, reason) = promise.split_once(" (").unwrap();
        promised.push((name, type_.to_owned(), reason.trim_end_matches(')').to_owned()));
    }
    promised
}

#[test]
fn every_sample_ends_as_its_comment_states() {
    // The third node is a control plane node for samples that select one.
    let site = Site::new("real-samples", 3);
    site.install(&["--set", "daemonJob.nodeMarks.default={example.com/}"]);
    let role = "node-role.kubernetes.io/control-plane";
    site.kubectl(&["label", "node", "node-3", &format!("{role}=")]).unwrap();
    site.kubectl(&["taint", "node", "node-3", &format!("{role}=:NoSchedule")]).unwrap();

    site.kubectl(&[
        "apply",
        "-f",
        &workspace().join("samples/book/david-copperfield.yaml").display().to_string(),
    ])
    .unwrap();
    for (kind, usual) in [
        ("greeting", "Ready (Greeted)"),
        ("podset", "Progressing (PodsUpdated)"),
        ("daemonjob", "Complete (AllNodesDone)"),
    ] {
        let promised = apply(&site, kind, usual);
        assert!(promised.len() >= 3, "{promised:?}");
        for (name, type_, reason) in promised {
            let took = site.wait_for(kind, &name, &type_, &reason);
            println!("{kind} {name} is {type_} ({reason}), after {:.1} s more", took.as_secs_f64());
        }
    }
    site.wait("the Book is Ready", || condition(&site.get("book", "david-copperfield"), "Ready").0 == "True");

    // The containers have written these logs.
    let logs = |selector: &str| site.kubectl(&["logs", "-l", selector, "--tail=-1"]).unwrap();
    let names = logs("daemonjob=daemonjob-control-plane");
    assert!(names.lines().count() == 1 && names.starts_with("daemonjob-control-plane-"), "{names}");
    assert!(logs("daemonjob=daemonjob-fail-fast").contains("this fails on purpose"));
    // Nodes have separate boot IDs, but a container's /proc has the machine's.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boots = logs("daemonjob=daemonjob-rerun-on-reboot");
    assert!(boots.lines().count() == 2 && boots.lines().all(|line| line == boot.trim()), "{boots}");
    let routes = logs("daemonjob=daemonjob-host-network");
    assert!(routes.contains("default via 10.88.0.1 dev eth0"), "{routes}");
    let failed = site.list("pods", "daemonjob=daemonjob-pod-failure-policy");
    let code =
        |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64();
    assert!(!failed.is_empty() && failed.iter().any(|pod| code(pod) == Some(42)), "{failed:#?}");

    // PodSets' pods run, and stop when the PodSet shrinks.
    let running = site.get("podset", "podset-sample")["status"]["readyReplicas"].as_i64().unwrap();
    assert_eq!(Some(running), site.get("podset", "podset-sample")["spec"]["replicas"].as_i64());
    site.kubectl(&["scale", "podset", "podset-surge", "--replicas=1"]).unwrap();
    let took = site.wait("the pods of a smaller PodSet are gone", || {
        let pods = site.list("pods", "quintet.dev/kind=PodSet");
        let name = |pod: &&Value| {
            pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("podset-surge-"))
        };
        pods.iter().filter(name).count() == 1 && site.get("podset", "podset-surge")["status"]["replicas"] == 1
    });
    println!("a pod of a PodSet ended {:.1} s after the scale-down", took.as_secs_f64());

    // The leader prints these lines.
    for line in ["Greeting: Hello, World!", "Create: Hello, World!"] {
        site.wait(line, || site.logs_of_managers().lines().any(|one| one == line));
    }
}
