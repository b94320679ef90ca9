//! The command `quintet doctor`, and the first line of the debug pages, which names the leader.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quintet_e2e::{MANAGER_ROLE, TestEnv, condition, program, workspace};
use quintet_localcluster::cluster::ports;
use quintet_localcluster::documents::blocks;
use quintet_localcluster::manager::{Manager, ManagerOptions, NAMESPACE};
use quintet_localcluster::{http, run};
use serde_json::{Value, json};

use crate::book::book;
use crate::daemonjob::daemonjob;
use crate::greeting::greeting;
use crate::podset::podset;
use crate::pulsarconsumer::consumer;

const LEASE: &str = "quintet-manager";

/// The report and the exit code.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    text: String,
}

impl Answer {
    /// The verdicts and sentences of a check.
    fn of<'a>(&'a self, check: &str) -> Vec<(&'a str, &'a str)> {
        let of_check = |line: &'a str| {
            let (verdict, rest) = line.split_once(' ')?;
            let sentence = rest.trim_start().strip_prefix(check)?.strip_prefix(' ')?;
            Some((verdict, sentence.trim_start()))
        };
        self.text.lines().filter_map(of_check).collect()
    }

    /// The verdicts of a check.
    fn verdicts(&self, check: &str) -> Vec<&str> {
        self.of(check).into_iter().map(|(verdict, _)| verdict).collect()
    }

    /// Whether a check has a problem whose sentence has these words.
    fn has_problem(&self, check: &str, words: &str) -> bool {
        self.of(check).iter().any(|(verdict, sentence)| *verdict == "PROBLEM" && sentence.contains(words))
    }
}

const CHECKS: [&str; 9] = [
    "leader",
    "managers",
    "versions",
    "caches",
    "reconciles",
    "schemas",
    "permissions",
    "webhooks",
    "objects",
];

/// Runs the command with a kubeconfig and these variables.
fn doctor_with(kubeconfig: &Path, args: &[&str], variables: &[(&str, &str)]) -> Answer {
    let output = Command::new(program())
        .arg("doctor")
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .envs(variables.iter().copied())
        .output()
        .expect("the program runs");
    let text = [output.stdout, output.stderr].concat();
    Answer { code: output.status.code(), text: String::from_utf8(text).expect("the program prints UTF-8") }
}

/// Runs the command as an administrator.
fn doctor(env: &TestEnv) -> Answer {
    doctor_with(&env.cluster().kubeconfig(), &["--manager=quintet-system/quintet"], &[])
}

/// Runs the command until the report fulfils a condition, because other components need some time to notice a change.
fn doctor_until(env: &TestEnv, what: &str, is_right: impl Fn(&Answer) -> bool) -> Answer {
    let mut last = None;
    let found = run::poll(what, quintet_e2e::PATIENCE, Duration::from_secs(1), || {
        let answer = doctor(env);
        let found = is_right(&answer);
        last = Some(answer);
        Ok(found.then_some(()))
    });
    let last = last.expect("the command ran");
    assert!(found.is_ok(), "{what}: {}", last.text);
    last
}

/// A kubeconfig of a ServiceAccount, in the cluster's folder.
fn kubeconfig_of(env: &TestEnv, namespace: &str, account: &str) -> std::path::PathBuf {
    let config = env.kube().kubeconfig_of_service_account(namespace, account).unwrap();
    let file = env.kube().dir().join(format!("{}-{account}.kubeconfig", env.namespace()));
    std::fs::write(&file, config).unwrap();
    file
}

/// A manager of all kinds that elects a leader with the release's Lease, and serves debug pages.
fn manager(env: &TestEnv, name: &str, debug: u16) -> Manager {
    let options = ManagerOptions {
        name: format!("{}-{name}", env.namespace()),
        args: vec![format!("--debug-bind-address=127.0.0.1:{debug}")],
        program: Some(program()),
        ..ManagerOptions::default()
    };
    Manager::start(env.kube(), &options).unwrap()
}

/// Sets the debug port of the Deployment, which the command reads.
fn set_debug_port(env: &TestEnv, port: u16) {
    let mut helm = env.kube().helm();
    helm.args(["upgrade", "quintet"]).arg(workspace().join("charts/quintet"));
    helm.args(["--namespace", NAMESPACE, "--reuse-values", "--set", &format!("debug.port={port}")]);
    run::stdout(&mut helm).unwrap();
}

/// A cluster with a leader whose debug port is that of the Deployment.
fn installed(test: &str) -> (TestEnv, Manager) {
    let env = TestEnv::alone(test);
    let port = ports::one().unwrap();
    set_debug_port(&env, port);
    let manager = manager(&env, "leader", port);
    env.wait("the manager leads", || manager.leads());
    (env, manager)
}

#[test]
fn an_installation_without_problems_is_well() {
    let (env, _manager) = installed("doctor-well");
    let answer = doctor(&env);
    for check in CHECKS {
        assert_eq!(answer.verdicts(check), ["ok"], "{check}: {}", answer.text);
    }
    assert_eq!(answer.code, Some(0), "{}", answer.text);
    let (_, leads) = answer.of("leader")[0];
    assert!(leads.ends_with(" leads: it renews Lease quintet-system/quintet-manager."), "{leads}");
    the_document_has_the_real_report(&env);
}

/// Fails unless exactly these checks have no result.
fn lacks_only(answer: &Answer, unknown: &[&str]) {
    for check in CHECKS {
        let expected = if unknown.contains(&check) { "UNKNOWN" } else { "ok" };
        assert_eq!(answer.verdicts(check), [expected], "{check}: {}", answer.text);
    }
    assert_eq!(answer.code, Some(2), "{}", answer.text);
}

/// With the account of the managers, beside the leader, in the pod of a standby, and beside a standby. The debug pages of a
/// standby name the leader, also after the Lease has changed hands.
#[test]
fn each_manager_reports_what_it_cannot_check() {
    let (env, leader) = installed("doctor-standby");
    let port = ports::one().unwrap();
    let standby = manager(&env, "standby", port);
    let first_line = || {
        let (_, page) = http::get(port, "/debug/controllers").unwrap();
        page.lines().next().unwrap_or_default().to_owned()
    };
    env.wait("the standby names the leader", || first_line().contains(", this manager, is a standby, "));
    assert!(first_line().starts_with("Leader: "), "{}", first_line());
    let own = kubeconfig_of(&env, NAMESPACE, "quintet");
    let beside = || doctor_with(&own, &["--manager=quintet-system/quintet"], &[]);

    let answer = beside();
    lacks_only(&answer, &["webhooks"]);
    assert!(answer.of("webhooks")[0].1.contains("permission denied"), "{}", answer.text);

    // A standby finds its Deployment by the name of its pod, and cannot read the leader's pages.
    let pod = [("POD_NAME", "quintet-5d8c9f7b6-abcde"), ("POD_NAMESPACE", NAMESPACE)];
    let answer = doctor_with(&own, &[], &pod);
    lacks_only(&answer, &["caches", "reconciles", "webhooks"]);
    assert!(answer.of("webhooks")[0].1.contains("permission denied"), "{}", answer.text);
    let (name, _) = answer.of("leader")[0].1.split_once(" leads: ").unwrap();
    for check in ["caches", "reconciles"] {
        let why = answer.of(check)[0].1;
        let expected = format!("cannot read the metrics of the leader, {name}");
        assert!(why.starts_with(&expected) && why.contains("permission denied"), "{why}");
    }
    let remedy = format!("$ kubectl exec --namespace quintet-system {name} -- /quintet doctor");
    assert!(answer.text.contains(&remedy), "{}", answer.text);

    // These pages are those of a standby, as if the leader had changed after the command read the Lease.
    set_debug_port(&env, port);
    let answer = beside();
    lacks_only(&answer, &["caches", "reconciles", "webhooks"]);
    for check in ["caches", "reconciles"] {
        let changed = "The leader changed during the check. Run this command again.";
        assert_eq!(answer.of(check), [("UNKNOWN", changed)], "{}", answer.text);
    }

    assert_eq!(leader.stop().unwrap(), Some(0));
    env.wait("the standby leads", || first_line().ends_with(", this manager."));
    lacks_only(&beside(), &["webhooks"]);
    assert_eq!(standby.stop().unwrap(), Some(0));
}

/// The text with a `#` for each number.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for character in text.chars() {
        let character = if character.is_ascii_digit() { '#' } else { character };
        if character != '#' || !masked.ends_with('#') {
            masked.push(character);
        }
    }
    masked
}

/// The report of docs/doctor.md is the real one, except names and numbers.
fn the_document_has_the_real_report(env: &TestEnv) {
    let mut job = daemonjob(env, "backup", &json!({}));
    job["spec"]["schedule"] = json!("0 3 * * *");
    job["spec"]["timeZone"] = json!("Mars/Olympus");
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "backup", "its schedule is invalid", |job| {
        condition(job, "ScheduleInvalid").0 == "True"
    });
    let answer = doctor(env);
    assert_eq!(answer.code, Some(1), "{}", answer.text);
    let (_, leads) = answer.of("leader")[0];
    let (host, _) = leads.split_once(" leads").unwrap();
    let report = answer
        .text
        .replace(&format!("{host} leads"), "quintet-5d8c9f7b6-x2x8q leads")
        .replace("as quintet:admin", "as kubernetes-admin")
        .replace(env.namespace(), "team-a")
        // The manager of the tests is not a pod.
        .replace("The Deployment has 0 replicas.", "2 of 2 managers are ready.");
    let document = workspace().join("docs/doctor.md");
    let shown = blocks(&document, "text").remove(0).join("\n");
    assert_eq!(masked(&shown), masked(report.trim_end()), "{report}");
}

/// Lets the API server accept any spec of a kind, like the first definition of its tutorial.
fn relax(env: &TestEnv, definition: &str, more: &[Value]) {
    let lax = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let first = [json!({ "op": "replace", "path": path, "value": lax })];
    let operations = json!([&first[..], more].concat()).to_string();
    env.kubectl(&["patch", "crd", definition, "--type=json", "-p", &operations]).unwrap();
}

#[test]
fn finds_problems_of_objects_and_of_the_cluster() {
    let (env, manager) = installed("doctor-finds");
    names_a_failing_object_of_each_kind(&env);
    finds_a_webhook_without_endpoints(&env);
    finds_a_missing_permission(&env);
    finds_a_missing_leader(&env, manager);
    finds_a_missing_definition(&env);
}

/// An object of each kind that fails, and its line in the report.
fn names_a_failing_object_of_each_kind(env: &TestEnv) {
    relax(env, "greetings.example.com", &[]);
    let selectable = json!({ "op": "remove", "path": "/spec/versions/0/selectableFields" });
    relax(env, "books.christianb93.github.com", &[selectable]);
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
        "spec": { "hard": { "pods": "0", "count/deployments.apps": "0" } } });
    env.apply(&quota).unwrap();
    env.wait_for("resourcequota", "none", "the quota takes effect", |quota| {
        quota["status"]["hard"]["count/deployments.apps"] == "0"
    });
    env.node("a");
    env.apply(&daemonjob(env, "job", &json!({}))).unwrap();
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "nginx" }] } });
    env.apply(&podset("set", &json!({ "replicas": 1, "template": template }))).unwrap();
    env.apply(&consumer("consumer", &json!({}))).unwrap();
    let (mut silent, mut untitled) = (greeting("silent", ""), book("untitled"));
    (silent["spec"], untitled["spec"]) = (json!({}), json!({}));
    for object in [silent, untitled] {
        env.wait("the changed definition is served", || env.apply(&object).is_ok());
    }
    let namespace = env.namespace();
    let expected = [
        format!("DaemonJob {namespace}/job: PodsRefused is True"),
        format!("PodSet {namespace}/set: ReplicaFailure is True"),
        format!("PulsarConsumer {namespace}/consumer: Applied is False"),
        format!("Greeting {namespace}/silent: Stalled is True"),
        format!("Book {namespace}/untitled: Stalled is True"),
    ];
    let answer = doctor_until(env, "the report has an object of each kind", |answer| {
        expected.iter().all(|words| answer.has_problem("objects", words))
            && answer.has_problem("reconciles", &format!("podset: rejected {namespace}/set"))
            && answer.has_problem("schemas", "The schema of greetings.example.com differs")
            && answer.has_problem("schemas", "The schema of books.christianb93.github.com differs")
    });
    assert_eq!(answer.code, Some(1), "{}", answer.text);
    assert!(answer.text.contains("exceeded quota: none"), "{}", answer.text);
    assert_eq!(answer.verdicts("schemas"), ["PROBLEM", "PROBLEM"], "{}", answer.text);
    for check in ["leader", "managers", "versions", "caches", "permissions", "webhooks"] {
        assert_eq!(answer.verdicts(check), ["ok"], "{check}: {}", answer.text);
    }
}

/// A webhook whose Service does not exist.
fn finds_a_webhook_without_endpoints(env: &TestEnv) {
    let webhook = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "gone" }, "webhooks": [{ "name": "gone.example.com", "failurePolicy": "Fail",
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "namespace": "default", "name": "gone", "path": "/" } },
            "rules": [{ "apiGroups": ["christianb93.github.com"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["books"] }] }] });
    env.apply(&webhook).unwrap();
    let answer = doctor(env);
    let expected =
        "Webhook gone.example.com of gone rejects CREATE books: Service default/gone has no ready endpoint.";
    assert_eq!(answer.of("webhooks"), [("PROBLEM", expected)], "{}", answer.text);
    assert_eq!(answer.code, Some(1), "{}", answer.text);
    env.kubectl(&["delete", "validatingwebhookconfiguration", "gone"]).unwrap();
}

fn finds_a_missing_permission(env: &TestEnv) {
    let name = MANAGER_ROLE.trim_start_matches("--clusterrole=");
    let mut role = env.get("clusterrole", name).unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        if rule["resources"].to_string().contains("\"podsets/status\"") {
            rule["verbs"] = json!(["get"]);
        }
    }
    env.apply(&json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name }, "rules": role["rules"] }))
        .unwrap();
    let answer = doctor_until(env, "the role takes effect", |answer| {
        answer.has_problem(
            "permissions",
            "lacks permission to patch podsets.batch.tutorial.kubebuilder.io/status. ",
        )
    });
    assert_eq!((answer.code, answer.of("permissions").len()), (Some(1), 1), "{}", answer.text);
}

/// A leader that does not renew the Lease, and a deleted Lease.
fn finds_a_missing_leader(env: &TestEnv, manager: Manager) {
    assert_eq!(manager.kill().unwrap(), None);
    let answer = doctor(env);
    assert!(answer.has_problem("leader", "has not renewed it during the check. Pod "), "{}", answer.text);
    for check in ["caches", "reconciles"] {
        assert_eq!(answer.verdicts(check), ["UNKNOWN"], "{}", answer.text);
    }
    assert_eq!(answer.code, Some(1), "{}", answer.text);
    env.kubectl(&["delete", "lease", LEASE, "-n", NAMESPACE]).unwrap();
    let answer = doctor(env);
    assert!(
        answer.has_problem("leader", "No pod leads: Lease quintet-system/quintet-manager does not exist")
    );

    // An object that no manager observes.
    env.apply(&book("unseen")).unwrap();
    let unseen = format!("Book {}/unseen: No manager has observed the last change for ", env.namespace());
    doctor_until(env, "the Book is reported after a minute", |answer| answer.has_problem("objects", &unseen));
}

fn finds_a_missing_definition(env: &TestEnv) {
    env.kubectl(&["delete", "crd", "books.christianb93.github.com", "--timeout=60s"]).unwrap();
    let words = "The API server does not serve books.christianb93.github.com, version v1.";
    let answer = doctor_until(env, "the definition is gone", |answer| answer.has_problem("schemas", words));
    let objects = answer.of("objects");
    let (verdict, why) = objects.last().unwrap();
    assert!(*verdict == "UNKNOWN" && why.contains("cannot list books"), "{}", answer.text);
    assert_eq!(answer.code, Some(1), "{}", answer.text);
}

#[test]
fn without_permissions_each_check_reports_it() {
    let env = TestEnv::new("doctor-rights");
    env.kubectl(&["create", "serviceaccount", "restricted"]).unwrap();
    let restricted = kubeconfig_of(&env, env.namespace(), "restricted");
    let answer = doctor_with(&restricted, &["--manager=quintet-system/quintet"], &[]);
    assert_eq!(answer.code, Some(2), "{}", answer.text);
    for check in ["leader", "managers", "permissions", "webhooks", "objects"] {
        let (verdict, why) = answer.of(check)[0];
        assert_eq!(verdict, "UNKNOWN", "{}", answer.text);
        assert!(why.contains("permission denied: "), "{}", answer.text);
    }
    for check in ["caches", "reconciles"] {
        assert_eq!(answer.of(check), [("UNKNOWN", "The leader is unknown.")], "{}", answer.text);
    }
    // Every user may read the schemas and the version of Kubernetes, but not that of the manager.
    assert_eq!(answer.verdicts("schemas"), ["ok"], "{}", answer.text);
    assert_eq!(answer.verdicts("versions"), ["ok", "UNKNOWN"], "{}", answer.text);
}

#[test]
fn without_an_api_server_each_check_reports_it() {
    let port = ports::one().unwrap();
    let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }] });
    let file = std::env::temp_dir().join(format!("doctor-away-{}", std::process::id()));
    std::fs::write(&file, config.to_string()).unwrap();
    let answer = doctor_with(&file, &[], &[]);
    assert_eq!(answer.code, Some(2), "{}", answer.text);
    for check in CHECKS.iter().filter(|check| !["caches", "reconciles"].contains(check)) {
        let (verdict, why) = answer.of(check)[0];
        assert_eq!(verdict, "UNKNOWN", "{check}: {}", answer.text);
        assert!(why.contains(&format!("cannot reach http://127.0.0.1:{port}")), "{check}: {why}");
    }
    assert!(answer.text.contains("\nProblems: 0. Unknown: "), "{}", answer.text);
    std::fs::remove_file(&file).unwrap();
    let answer = doctor_with(&file, &[], &[]);
    assert_eq!(answer.code, Some(2), "no kubeconfig: {}", answer.text);
    assert!(answer.text.starts_with("quintet: "), "{}", answer.text);
}
