//! Two due times of a schedule, with new managers in between.

use std::collections::{BTreeMap, BTreeSet};

use quintet_e2e::{condition, workspace};
use quintet_localcluster::manager::NAMESPACE;
use serde_json::Value;

use crate::site::Site;

const NAME: &str = "daemonjob-nightly";

/// Whether the runs of this number of due times are complete, and no other run has begun.
fn is_complete(site: &Site, times: usize) -> bool {
    let job = site.get("daemonjob", NAME);
    let history = job["status"]["history"].as_array().map_or(&[][..], Vec::as_slice);
    condition(&job, "Complete").0 == "True"
        && history.len() == times
        && history.iter().all(|one| one["result"] == "Complete" && one["succeeded"] == 2)
}

#[test]
fn runs_once_at_each_due_time() {
    let site = Site::with_chart("real-schedule", 2);
    let file = workspace().join("samples/daemonjob/schedule.yaml");
    site.kubectl(&["apply", "-f", &file.display().to_string()]).unwrap();
    let pods = site.watch("pods", &format!("daemonjob={NAME}"));
    site.wait_for("daemonjob", NAME, "Ready", "WaitsForDueTime");
    assert!(site.created_pods().is_empty());

    let patch = |spec: &str| {
        let patch = format!("{{\"spec\":{spec}}}");
        site.kubectl(&["patch", "daemonjob", NAME, "--type=merge", "-p", &patch]).unwrap();
    };
    patch(r#"{"schedule":"* * * * *"}"#);
    let took = site.wait("the run of the first due time is complete", || is_complete(&site, 1));
    println!("the run of the first due time is complete after {:.1} s", took.as_secs_f64());
    site.kubectl(&["rollout", "restart", "deployment", "quintet", "-n", NAMESPACE]).unwrap();
    let took = site.wait("the run of the second due time is complete", || is_complete(&site, 2));
    println!("the run of the second due time is complete after {:.1} s more", took.as_secs_f64());
    patch(r#"{"suspend":true}"#);
    site.kubectl(&["rollout", "status", "deployment", "quintet", "-n", NAMESPACE, "--timeout=3m"]).unwrap();

    let mut runs: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (_, pod) in pods.events() {
        let part = |value: &Value| value.as_str().unwrap().to_owned();
        let annotations = &pod["metadata"]["annotations"];
        let run =
            (part(&annotations["dj.dysproz.io/due-time"]), part(&annotations["dj.dysproz.io/node-name"]));
        runs.entry(run).or_default().insert(part(&pod["metadata"]["uid"]));
    }
    let due_times: BTreeSet<&str> = runs.keys().map(|(due, _)| due.as_str()).collect();
    assert!(due_times.len() == 2 && due_times.iter().all(|due| due.ends_with(":00Z")), "{runs:?}");
    assert!(runs.len() == 4 && runs.values().all(|pods| pods.len() == 1), "{runs:?}");
    let created = site.created_pods();
    assert!(created.len() == 4 && created.values().all(|times| *times == 1), "{created:?}");
}
