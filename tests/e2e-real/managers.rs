//! The chart's two managers in pods of its image: their logs, the commands of the documents, and the takeover when the leader
//! disappears.

use std::process::Command;
use std::time::{Duration, Instant};

use quintet_e2e::shell::{Shell, filled, limited, needs_manager_pod, succeeded};
use quintet_localcluster::documents;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::site::Site;

/// The holder of the Lease. It contains the name of a pod.
fn holder(site: &Site) -> String {
    let get = ["get", "lease", "quintet-manager", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
    site.kubectl(&get).unwrap_or_default()
}

fn managers(site: &Site) -> Vec<String> {
    let pods = site.list("pods", "app.kubernetes.io/name=quintet");
    let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    pods.iter().filter(ready).map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Applies a Greeting and waits until the logs have its line.
fn greet(site: &Site, name: &str, logs: impl Fn() -> String) {
    site.apply(&json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "message": format!("from {name}") } }));
    site.wait(&format!("{name} is printed"), || times_printed(&logs(), name) > 0);
}

fn times_printed(logs: &str, name: &str) -> usize {
    let line = format!("Create: from {name}");
    logs.lines().filter(|one| *one == line).count()
}

fn logs(site: &Site, pod: &str, more: &[&str]) -> String {
    site.kubectl(&[&["logs", "-n", NAMESPACE, pod], more].concat()).unwrap_or_default()
}

/// `quintet doctor` with the account of the managers, in both pods. The leader's pod reads its debug pages, and the standby's
/// the leader's metrics. The command leaves the managers enough memory.
fn doctor_runs_in_both_pods(site: &Site) {
    site.wait("a manager leads", || !holder(site).is_empty());
    let held = holder(site);
    let leader = held.split('_').next().unwrap();
    let both = managers(site);
    assert!(both.len() == 2 && both.iter().any(|pod| pod == leader), "{held}: {both:?}");
    for pod in both {
        let exec = format!("kubectl exec -n {NAMESPACE} {pod} -- /quintet doctor");
        let output = site.command(&exec).output().unwrap();
        let report = format!("in {pod}: {}", String::from_utf8_lossy(&output.stdout));
        assert!(report.contains(", as system:serviceaccount:quintet-system:quintet, "), "{report}");
        assert!(report.contains(&format!("{leader} leads: it renews Lease ")), "{report}");
        let found: Vec<(&str, &str)> = report.lines().filter_map(verdict).collect();
        let expected = [
            ("ok", "leader"),
            ("ok", "managers"),
            ("ok", "versions"),
            ("ok", "caches"),
            ("ok", "reconciles"),
            ("ok", "schemas"),
            ("ok", "permissions"),
            // The account may not list webhooks.
            ("UNKNOWN", "webhooks"),
            ("ok", "objects"),
        ];
        assert_eq!(found, expected, "{report}");
        assert_eq!(output.status.code(), Some(2), "{report}");
    }
    let pods = site.list("pods", "app.kubernetes.io/name=quintet");
    let restarts = pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]["restartCount"]);
    assert_eq!(restarts.filter(|count| **count != 0).count(), 0, "{pods:#?}");
}

/// The verdict and the name of the check on a line of the report.
fn verdict(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let verdict = words.next().filter(|word| ["ok", "PROBLEM", "UNKNOWN"].contains(word))?;
    Some((verdict, words.next()?))
}

/// Applies a sample of each kind, for the commands of the documents, and waits until their containers have run.
fn apply_samples(site: &Site, shell: &Shell<'_>) {
    shell.stdout("kubectl label nodes --all app=v1");
    shell.stdout("kubectl apply -k samples");
    site.wait_for("daemonjob", "daemonjob-sample", "Complete", "AllNodesDone");
    site.wait("a consumer runs", || {
        let pods = site.list("pods", "quintet.dev/kind=PulsarConsumer");
        pods.iter().any(|pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object())
    });
}

/// Runs the commands of the release's notes, except those that uninstall it.
fn notes_work(site: &Site) {
    let notes = site.helm(&["get", "notes", "quintet"]).unwrap();
    let (begin, _) = notes.split_once("To uninstall:\n").unwrap();
    let commands: Vec<&str> = begin.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert!(commands.len() >= 3, "{notes}");
    let shell = site.shell();
    for command in commands {
        shell.stdout(command);
    }
}

/// Runs the commands of all documents that need a pod of the manager. The test of the documents runs the others.
fn documented_commands_work(site: &Site) {
    let shell = site.shell();
    apply_samples(site, &shell);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let leader = holder(site).split('_').next().unwrap_or_default().to_owned();
    let (mut exports, mut failures, mut ran) = (String::new(), Vec::new(), 0);
    let all = documents::all();
    let commands = all.iter().flat_map(|document| documents::commands(document));
    for command in commands.filter(|command| needs_manager_pod(command)) {
        if command.starts_with("export ") {
            exports += &format!("{command}; ");
        } else {
            let command = limited(filled(&command, "default").replace(" POD", &format!(" {leader}")));
            let output = shell.run(&format!("{exports}{command}"));
            let (printed, error) = (text(&output.stdout), text(&output.stderr));
            let never_restarted = error.contains("previous terminated container");
            let is_shown = !command.contains("/debug/controllers") || printed.contains("daemonjob: ");
            if !(succeeded(&command, &output) && is_shown || never_restarted) {
                failures.push(format!("{command}\n{}\n{printed}{error}", output.status));
            }
            ran += 1;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(ran > 20, "only {ran} commands found");
    let found = text(&shell.run(&format!("{exports}echo $LEADER")).stdout);
    assert_eq!(found.trim(), leader, "the page finds the leader");
    let scrape = format!(
        "kubectl port-forward pod/{leader} 18080:8080 -n {NAMESPACE} >/dev/null & sleep 3; \
         curl --silent localhost:18080/metrics; kill $!"
    );
    let metrics = text(&shell.run(&scrape).stdout);
    for line in ["quintet_memory_limit_bytes 67108864\n", "quintet_namespace_leader{watched=\"*\"} 1\n"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn second_manager_takes_over() {
    let site = Site::with_chart("real-managers", 2);
    site.wait("both managers are ready", || managers(&site).len() == 2);
    doctor_runs_in_both_pods(&site);
    greet(&site, "before", || site.logs_of_managers());
    notes_work(&site);
    documented_commands_work(&site);

    for (how, flags) in [("deleted", &[][..]), ("deleted by force", &["--grace-period=0", "--force"])] {
        let both = managers(&site);
        let held = holder(&site);
        let leader =
            both.iter().find(|name| held.contains(name.as_str())).expect("one manager leads").clone();
        site.kubectl(&[&["delete", "pod", &leader, "-n", NAMESPACE, "--wait=false"], flags].concat())
            .unwrap();
        let begin = Instant::now();
        loop {
            let now = holder(&site);
            if !now.is_empty() && !now.contains(&leader) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_mins(2), "no manager takes over from {leader}: {now:?}");
        }
        println!("the leader's pod is {how}: another leads after {:.2} s", begin.elapsed().as_secs_f64());
        greet(&site, if flags.is_empty() { "after" } else { "at-last" }, || site.logs_of_managers());
        site.wait("both managers are ready again", || managers(&site).len() == 2);
    }
    let printed = site.logs_of_managers();
    assert_eq!(times_printed(&printed, "at-last"), 1, "{printed}");
}

/// How long a node is unplugged at least: twice the time in which a manager must notice.
const SILENCE: Duration = Duration::from_secs(30);

/// No connection is rejected or closed, so the manager can notice only by its clocks.
#[test]
fn unplugged_leader_stops_leading_and_becomes_a_standby() {
    let mut site = Site::new("real-partition", 2);
    let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": { "matchLabels": { "app.kubernetes.io/name": "quintet" } } }] } });
    site.install(&["--set-json", &format!("affinity={apart}")]);
    site.wait("both managers are ready", || managers(&site).len() == 2);
    doctor_runs_in_both_pods(&site);
    greet(&site, "before", || site.logs_of_managers());

    let both = managers(&site);
    let held = holder(&site);
    let (leads, standbys): (Vec<_>, Vec<_>) = both.iter().partition(|name| held.contains(name.as_str()));
    let [leader, other] =
        [leads, standbys].map(|one| one.first().expect("one leads, one is a standby").as_str());
    let node =
        site.kubectl(&["get", "pod", leader, "-n", NAMESPACE, "-o", "jsonpath={.spec.nodeName}"]).unwrap();
    let number: u8 = node.strip_prefix("node-").unwrap().parse().unwrap();

    site.cluster().plug_node(number, false).unwrap();
    let begin = Instant::now();
    let took = site.wait("the other manager leads", || holder(&site).contains(other));
    println!("the leader's node is unplugged: another leads after {:.2} s", took.as_secs_f64());
    greet(&site, "meanwhile", || logs(&site, other, &[]));
    std::thread::sleep(SILENCE.saturating_sub(begin.elapsed()));
    let plugged = run::stdout(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S"])).unwrap();
    site.cluster().plug_node(number, true).unwrap();

    let begin = Instant::now();
    site.wait("the manager is ready and its node answers", || {
        managers(&site) == both && !logs(&site, leader, &[]).is_empty()
    });
    println!("the node is plugged in: its log is read after {:.2} s", begin.elapsed().as_secs_f64());
    for name in &both {
        let restarts = ["get", "pod", name, "-n", NAMESPACE, "-o", "jsonpath={..restartCount}"];
        assert_eq!(site.kubectl(&restarts).unwrap(), "0", "{name}");
    }
    let alone = logs(&site, leader, &["--timestamps"]);
    let noticed = |what: &str| alone.lines().any(|line| line.contains(what) && line < plugged.trim());
    assert!(noticed("the renew deadline has passed"), "{alone}");
    assert!(noticed("a list or watch was interrupted"), "{alone}");
    assert_eq!(times_printed(&logs(&site, leader, &[]), "meanwhile"), 0, "{alone}");
    assert!(holder(&site).contains(other), "the Lease stays with its holder");

    // When it leads again, it knows what happened without it.
    site.kubectl(&["delete", "pod", other, "-n", NAMESPACE, "--wait=false"]).unwrap();
    site.wait("the first manager leads again", || holder(&site).contains(leader));
    greet(&site, "after", || logs(&site, leader, &[]));
    let printed = logs(&site, leader, &[]);
    assert_eq!((times_printed(&printed, "meanwhile"), times_printed(&printed, "after")), (0, 1), "{printed}");
}
