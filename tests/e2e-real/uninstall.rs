//! An uninstall while objects exist, a new installation that serves them, and an uninstall of everything.

use std::collections::BTreeSet;
use std::time::Instant;

use quintet_e2e::condition;
use serde_json::{Value, json};

use crate::site::Site;

const GREETINGS: usize = 200;

fn held(site: &Site, kind: &str, finalizer: &str) -> usize {
    let objects = site.list(kind, "");
    objects.iter().filter(|object| object["metadata"]["finalizers"].to_string().contains(finalizer)).count()
}

/// A release's objects, of every kind in the chart.
fn of_release(site: &Site) -> BTreeSet<String> {
    let kinds = [
        "deployments",
        "services",
        "poddisruptionbudgets",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "serviceaccounts",
        "jobs",
        "leases",
        "configmaps",
        "networkpolicies",
    ];
    let objects = kinds.iter().flat_map(|kind| {
        let named = site.list(kind, "").into_iter().map(move |object| {
            let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            format!("{kind} {}/{}", part("namespace"), part("name"))
        });
        // Every namespace has a ServiceAccount and a ConfigMap of Kubernetes.
        named
            .filter(|name| name.rsplit_once('/').is_some_and(|(_, name)| name.contains("quintet")))
            .collect::<Vec<_>>()
    });
    objects.collect()
}

fn uninstall(site: &Site) -> String {
    let begin = Instant::now();
    let mut helm = site.command("helm uninstall quintet --namespace quintet-system --timeout 4m");
    let output = helm.output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{printed}");
    println!("helm uninstall took {:.1} s", begin.elapsed().as_secs_f64());
    // The annotation hook-output-log-policy makes helm print the Job's log.
    assert!(printed.contains("Deleted Lease quintet-system/quintet-manager."), "{printed}");
    printed
}

#[test]
fn uninstalls_with_objects_and_serves_them_when_reinstalled() {
    let site = Site::with_chart("real-uninstall", 2);
    let greetings: Vec<Value> = (0..GREETINGS)
        .map(|number| {
            json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": { "name": format!("g{number}"), "namespace": "default" }, "spec": { "message": "Hi" } })
        })
        .collect();
    site.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": greetings }));
    site.apply(&json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": "running", "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "work", "image": "busybox", "command": ["sleep", "60"] }] } } } }));
    site.wait("all objects have finalizers and the pods run", || {
        held(&site, "greetings", "farewell") == GREETINGS
            && held(&site, "pods", "ledger") == 2
            && site.get("daemonjob", "running")["status"]["active"] == 2
    });
    let pods = site.pods_of("running");

    let printed = uninstall(&site);
    let definitions = site.list("crds", "");
    assert_eq!(definitions.len(), 5);
    for definition in &definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert!(printed.contains(name), "{name} is kept but not listed: {printed}");
    }
    assert_eq!((held(&site, "greetings", "farewell"), held(&site, "pods", "ledger")), (0, 0));
    assert_eq!((site.list("greetings", "").len(), site.list("daemonjobs", "").len()), (GREETINGS, 1));
    assert_eq!(site.pods_of("running"), pods, "no pod disappears");
    assert_eq!(of_release(&site), BTreeSet::new());

    site.install(&["--set", "crds.keep=false"]);
    let took =
        site.wait("the Greetings have finalizers", || held(&site, "greetings", "farewell") == GREETINGS);
    println!("{GREETINGS} Greetings have finalizers {:.1} s after reinstallation", took.as_secs_f64());
    site.kubectl(&["delete", "greeting", "g0", "--timeout=60s"]).unwrap();
    site.wait("the DaemonJob is complete", || {
        let job = site.get("daemonjob", "running");
        condition(&job, "Complete").0 == "True" && job["status"]["succeeded"] == 2
    });
    assert_eq!(site.pods_of("running"), pods, "no node runs twice");

    uninstall(&site);
    site.wait("the definitions and all objects are gone", || site.list("crds", "").is_empty());
    assert_eq!(of_release(&site), BTreeSet::new());
    site.wait("the DaemonJob's pods are gone", || site.list("pods", "daemonjob=running").is_empty());
}
