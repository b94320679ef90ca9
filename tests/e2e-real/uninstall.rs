//! An uninstallation with objects still there, a reinstallation that picks them up, and one that leaves nothing.

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

/// The objects that a release makes, of every kind that a chart of ours has.
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
        // Every namespace has an account and a ConfigMap of its own.
        named
            .filter(|name| name.rsplit_once('/').is_some_and(|(_, name)| name.contains("quintet")))
            .collect::<Vec<_>>()
    });
    objects.collect()
}

fn uninstall(site: &Site) -> String {
    let begin = Instant::now();
    let said =
        site.helm(&["uninstall", "quintet", "--timeout", "4m"]).unwrap_or_else(|error| panic!("{error}"));
    println!("helm uninstall took {:.1} s", begin.elapsed().as_secs_f64());
    said
}

#[test]
fn an_uninstall_ends_by_itself_and_a_reinstall_picks_up_what_it_left() {
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
    site.wait("all is held and runs", || {
        held(&site, "greetings", "farewell") == GREETINGS
            && held(&site, "pods", "ledger") == 2
            && site.get("daemonjob", "running")["status"]["active"] == 2
    });
    let pods = site.pods_of("running");

    let said = uninstall(&site);
    let definitions = site.list("crds", "");
    assert_eq!(definitions.len(), 5);
    for definition in &definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert!(said.contains(name), "{name} is kept and not listed: {said}");
    }
    assert_eq!((held(&site, "greetings", "farewell"), held(&site, "pods", "ledger")), (0, 0));
    assert_eq!((site.list("greetings", "").len(), site.list("daemonjobs", "").len()), (GREETINGS, 1));
    assert_eq!(site.pods_of("running"), pods, "no pod is lost");
    assert_eq!(of_release(&site), BTreeSet::new());

    site.install(&["--set", "crds.keep=false"]);
    let took =
        site.wait("the Greetings are held again", || held(&site, "greetings", "farewell") == GREETINGS);
    println!("{GREETINGS} Greetings are held again {:.1} s after the reinstallation", took.as_secs_f64());
    site.kubectl(&["delete", "greeting", "g0", "--timeout=60s"]).unwrap();
    site.wait("the DaemonJob is complete", || {
        let job = site.get("daemonjob", "running");
        condition(&job, "Complete").0 == "True" && job["status"]["succeeded"] == 2
    });
    assert_eq!(site.pods_of("running"), pods, "no node has run it twice");

    uninstall(&site);
    site.wait("the definitions and all objects are gone", || site.list("crds", "").is_empty());
    assert_eq!(of_release(&site), BTreeSet::new());
    site.wait("the DaemonJob's pods go with it", || site.list("pods", "daemonjob=running").is_empty());
}
