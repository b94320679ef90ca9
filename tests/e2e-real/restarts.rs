//! A crash loop: the kubelet restarts the container with a growing backoff, and the pod stays Running.

use quintet_e2e::condition;
use serde_json::{Value, json};

use crate::site::Site;

fn restarts(site: &Site) -> i64 {
    let pods = site.list("pods", "daemonjob=crashes");
    pods.first().and_then(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64()).unwrap_or(0)
}

/// The message about the only node, if its reason is Restarting.
fn restarting(job: &Value) -> Option<&str> {
    let mut nodes = job["status"]["pendingNodes"].as_array().into_iter().flatten();
    let node = nodes.find(|one| one["node"] == "node-1" && one["reason"] == "Restarting")?;
    node["message"].as_str()
}

#[test]
fn crash_loop_is_in_the_status_before_the_third_restart() {
    let site = Site::with_chart("real-restarts", 1);
    site.apply(&json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": "crashes", "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "OnFailure",
            "containers": [{ "name": "work", "image": "busybox", "command": ["sh", "-c", "exit 3"] }] } } } }));
    let took = site
        .wait("the status has the crash loop", || restarting(&site.get("daemonjob", "crashes")).is_some());
    // Read after the status.
    let restarted = restarts(&site);
    println!("the status has the crash loop after {:.1} s and {restarted} restarts", took.as_secs_f64());
    assert!(restarted < 3, "{restarted} restarts");

    let took = site.wait("the message has two restarts", || {
        let job = site.get("daemonjob", "crashes");
        restarting(&job).is_some_and(|message| {
            message.starts_with("2 restarts of crashes-") && message.ends_with("; last exit 3 (Error)")
        })
    });
    let restarted = restarts(&site);
    println!("the message has two restarts after {:.1} s more", took.as_secs_f64());
    assert_eq!(restarted, 2, "the kubelet waits 20 s before the third restart");
    let job = site.get("daemonjob", "crashes");
    assert_eq!(
        (condition(&job, "Complete").0, condition(&job, "Failed").0),
        ("False".into(), "False".into())
    );
    assert_eq!(job["status"]["failed"], 0);
}
