//! The chart's two managers, in pods of its image: what they say, and what happens when the one that leads goes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xtask::manager::NAMESPACE;

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

fn greet(site: &Site, name: &str) {
    site.apply(&json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "message": format!("from {name}") } }));
    site.wait(&format!("{name} is said"), || {
        site.logs_of_managers().lines().any(|line| line == format!("Create: from {name}"))
    });
}

#[test]
fn the_other_manager_takes_over() {
    let site = Site::with_chart("real-managers", 2);
    site.wait("both managers are ready", || managers(&site).len() == 2);
    greet(&site, "before");

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
        greet(&site, if flags.is_empty() { "after" } else { "at-last" });
        site.wait("both managers are ready again", || managers(&site).len() == 2);
    }
    let said = site.logs_of_managers();
    let times = said.lines().filter(|line| *line == "Create: from at-last").count();
    assert_eq!(times, 1, "{said}");
}
