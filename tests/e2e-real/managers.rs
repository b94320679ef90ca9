//! The chart's two managers, in pods of its image: what they say, and what happens when the one that leads goes.

use std::process::Command;
use std::time::{Duration, Instant};

use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::site::Site;

/// Who holds the Lease: the name of a pod is in it.
fn holder(site: &Site) -> String {
    let get = ["get", "lease", "quintet-manager", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
    site.kubectl(&get).unwrap_or_default()
}

fn managers(site: &Site) -> Vec<String> {
    let pods = site.list("pods", "app.kubernetes.io/name=quintet");
    let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    pods.iter().filter(ready).map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Applies a Greeting and waits until it is said, where the logs tell it.
fn greet(site: &Site, name: &str, logs: impl Fn() -> String) {
    site.apply(&json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "message": format!("from {name}") } }));
    site.wait(&format!("{name} is said"), || times_said(&logs(), name) > 0);
}

fn times_said(logs: &str, name: &str) -> usize {
    let line = format!("Create: from {name}");
    logs.lines().filter(|one| *one == line).count()
}

fn logs(site: &Site, pod: &str, more: &[&str]) -> String {
    site.kubectl(&[&["logs", "-n", NAMESPACE, pod], more].concat()).unwrap_or_default()
}

#[test]
fn the_other_manager_takes_over() {
    let site = Site::with_chart("real-managers", 2);
    site.wait("both managers are ready", || managers(&site).len() == 2);
    greet(&site, "before", || site.logs_of_managers());

    for (how, flags) in [("deleted", &[][..]), ("gone without a word", &["--grace-period=0", "--force"])] {
        let both = managers(&site);
        let held = holder(&site);
        let leader =
            both.iter().find(|name| held.contains(name.as_str())).expect("one of them leads").clone();
        site.kubectl(&[&["delete", "pod", &leader, "-n", NAMESPACE, "--wait=false"], flags].concat())
            .unwrap();
        let begin = Instant::now();
        loop {
            let now = holder(&site);
            if !now.is_empty() && !now.contains(&leader) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_mins(2), "nobody takes over from {leader}: {now:?}");
        }
        println!("the leader's pod is {how}: another leads after {:.2} s", begin.elapsed().as_secs_f64());
        greet(&site, if flags.is_empty() { "after" } else { "at-last" }, || site.logs_of_managers());
        site.wait("both managers are ready again", || managers(&site).len() == 2);
    }
    let said = site.logs_of_managers();
    assert_eq!(times_said(&said, "at-last"), 1, "{said}");
}

/// How long a node stays cut off at the least: twice what it may take a manager to notice.
const SILENCE: Duration = Duration::from_secs(30);

/// Nobody refuses and nothing is closed, so that only its own clocks tell a manager that it is alone.
#[test]
fn a_leader_that_is_cut_off_leads_no_more_and_stands_by_when_it_is_back() {
    let mut site = Site::new("real-partition", 2);
    let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": { "matchLabels": { "app.kubernetes.io/name": "quintet" } } }] } });
    site.install(&["--set-json", &format!("affinity={apart}")]);
    site.wait("both managers are ready", || managers(&site).len() == 2);
    greet(&site, "before", || site.logs_of_managers());

    let both = managers(&site);
    let held = holder(&site);
    let (leads, stands_by): (Vec<_>, Vec<_>) = both.iter().partition(|name| held.contains(name.as_str()));
    let [leader, other] =
        [leads, stands_by].map(|one| one.first().expect("one leads, one stands by").as_str());
    let node =
        site.kubectl(&["get", "pod", leader, "-n", NAMESPACE, "-o", "jsonpath={.spec.nodeName}"]).unwrap();
    let number: u8 = node.strip_prefix("node-").unwrap().parse().unwrap();

    site.cluster().plug_node(number, false).unwrap();
    let begin = Instant::now();
    let took = site.wait("the other leads", || holder(&site).contains(other));
    println!("the leader's node is cut off: another leads after {:.2} s", took.as_secs_f64());
    greet(&site, "meanwhile", || logs(&site, other, &[]));
    std::thread::sleep(SILENCE.saturating_sub(begin.elapsed()));
    let plugged = run::stdout(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S"])).unwrap();
    site.cluster().plug_node(number, true).unwrap();

    let begin = Instant::now();
    site.wait("it is ready, and its node answers", || {
        managers(&site) == both && !logs(&site, leader, &[]).is_empty()
    });
    println!("the cable is in again: its log is read after {:.2} s", begin.elapsed().as_secs_f64());
    for name in &both {
        let restarts = ["get", "pod", name, "-n", NAMESPACE, "-o", "jsonpath={..restartCount}"];
        assert_eq!(site.kubectl(&restarts).unwrap(), "0", "{name}");
    }
    let alone = logs(&site, leader, &["--timestamps"]);
    let noticed = |what: &str| alone.lines().any(|line| line.contains(what) && line < plugged.trim());
    assert!(noticed("the renew deadline has passed"), "{alone}");
    assert!(noticed("a list or watch was interrupted"), "{alone}");
    assert_eq!(times_said(&logs(&site, leader, &[]), "meanwhile"), 0, "{alone}");
    assert!(holder(&site).contains(other), "it does not take the Lease from who has it");

    // What happened without it is known to it when it leads again.
    site.kubectl(&["delete", "pod", other, "-n", NAMESPACE, "--wait=false"]).unwrap();
    site.wait("it leads again", || holder(&site).contains(leader));
    greet(&site, "after", || logs(&site, leader, &[]));
    let said = logs(&site, leader, &[]);
    assert_eq!((times_said(&said, "meanwhile"), times_said(&said, "after")), (0, 1), "{said}");
}
