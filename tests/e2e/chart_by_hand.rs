//! An uninstall whose Job cannot start: runs the commands of the release's notes instead.

use std::time::Duration;

use quintet_e2e::shell::Shell;
use quintet_e2e::{PATIENCE, condition};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Site, chart, daemonjob, held, wait};

/// The commands of the notes after the text `from`.
fn commands(notes: &str, from: &str) -> Vec<String> {
    let (_, part) = notes.split_once(from).unwrap_or_else(|| panic!("no {from:?} in {notes}"));
    part.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect()
}

fn gone(site: &Site, kinds: &[&str]) {
    let mut left = Vec::new();
    let waited = run::poll("the objects are gone", PATIENCE, Duration::from_millis(500), || {
        left = kinds.iter().flat_map(|kind| site.list(kind)).collect();
        Ok(left.is_empty().then_some(()))
    });
    waited.unwrap_or_else(|error| panic!("{error}: {left:#?}"));
}

#[test]
fn uninstalls_with_the_commands_of_the_notes() {
    let site = Site::new("ch-by-hand", 2);
    // No node matches the hook's pod, as if its image could not be pulled.
    let set = "replicas=0,nodeSelector.kubelet=none,crds.keep=false,uninstallHook.activeDeadlineSeconds=5,uninstallHook.backoffLimit=0";
    site.helm(&["install", "quintet", &chart(), "--create-namespace", "--set", set]).unwrap();
    let manager = site.manager();
    let mut greetings: Vec<Value> = (0..20)
        .map(|number| {
            json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": { "name": format!("g{number}"), "namespace": "default" }, "spec": { "message": "Hi" } })
        })
        .collect();
    // Another controller has its finalizer on this one.
    greetings[7]["metadata"]["finalizers"] = json!(["other.example/finalizer"]);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": greetings }).to_string();
    site.kubectl(&["apply", "--server-side", "-f", "-"], Some(&list)).unwrap();
    let mut running = daemonjob("running");
    running["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/hold"] = json!("true");
    site.kubectl(&["apply", "-f", "-"], Some(&running.to_string())).unwrap();
    // This job's pods end, and keep their finalizer until the ledger has their outcome.
    site.kubectl(&["apply", "-f", "-"], Some(&daemonjob("done").to_string())).unwrap();
    wait("the objects have finalizers", || {
        held(&site, "greetings", "farewell") == 20
            && held(&site, "pods", "ledger") >= 2
            && condition(&site.get("default", "daemonjob", "done"), "Complete").0 == "True"
    });

    // The garbage collector discovers kinds every 30 s, and keeps pods of owners that it never saw.
    site.kubectl(&["apply", "-f", "-"], Some(&daemonjob("first").to_string())).unwrap();
    let foreground =
        ["delete", "daemonjob", "first", "-n", "default", "--cascade=foreground", "--timeout=90s"];
    site.kubectl(&foreground, None).unwrap();

    let notes = site.helm(&["get", "notes", "quintet"]).unwrap();
    let printed = site.helm(&["uninstall", "quintet", "--timeout", "2m"]).unwrap_err();
    assert!(printed.contains("quintet-uninstall"), "{printed}");
    assert_eq!(manager.stop().unwrap(), Some(0));
    site.helm(&["uninstall", "quintet", "--no-hooks"]).unwrap();
    wait("the Greetings are being deleted", || {
        let greetings = site.list("greetings");
        greetings.len() == 20 && greetings.iter().all(|one| one["metadata"]["deletionTimestamp"].is_string())
    });
    assert_eq!(held(&site, "greetings", "farewell"), 20);

    let lines = commands(&notes, "To uninstall:\n");
    assert_eq!(lines[0], format!("helm uninstall quintet --namespace {NAMESPACE}"));
    assert!(lines.len() > 4, "{lines:?}");
    let shell = Shell::new(site.cluster(), "default");
    for line in &lines[1..] {
        shell.stdout(line);
    }
    assert_eq!((held(&site, "greetings", "farewell"), held(&site, "pods", "ledger")), (0, 0));
    // The other controller's finalizer stays.
    let waiting = site.list("greetings");
    assert_eq!(waiting.len(), 1, "{waiting:#?}");
    assert_eq!(waiting[0]["metadata"]["finalizers"], json!(["other.example/finalizer"]));
    site.kubectl(
        &[
            "patch",
            "greeting",
            "g7",
            "-n",
            "default",
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ],
        None,
    )
    .unwrap();
    gone(&site, &["crds", "pods"]);
    wait("the release's objects and its Job are gone", || site.remains().is_empty());
    // A second run of the commands changes nothing. The Greeting type no longer exists.
    for line in lines[1..].iter().filter(|line| !line.contains("greetings")) {
        shell.stdout(line);
    }
}
