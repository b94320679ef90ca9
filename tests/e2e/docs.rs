//! Runs every command of the user's documents, except those that this test run itself makes, and shows every
//! manifest to the API server. A test on real nodes runs the commands that need a pod of the manager.

use quintet_e2e::TestEnv;
use quintet_e2e::shell::{Shell, filled, needs_manager_pod, succeeded};
use quintet_kinds::KINDS;
use quintet_localcluster::documents::{self, blocks, commands, without_variables};
use quintet_localcluster::{gitops, run};
use serde_json::{Value, json};

/// Commands that this test does not run: `cargo xtask test` does their work, or a part of it for the benches
/// and the faults. Tests with a broker run the Pulsar programs.
const RUN_BY_THE_TESTS_THEMSELVES: [&str; 20] = [
    "cargo xtask build",
    "cargo xtask image",
    "cargo xtask release",
    "cargo xtask chart",
    "cargo xtask demo",
    "cargo xtask cluster",
    "cargo xtask test",
    "cargo xtask e2e",
    "cargo xtask generate",
    "cargo xtask bench",
    "cargo xtask faults",
    "cargo xtask prose",
    "cargo xtask pulsar",
    "pulsar-consumer",
    "pulsar-producer",
    "cargo build",
    "cargo test",
    // `cargo xtask release --dry-run` runs these on a local registry.
    "cosign verify",
    "crane copy",
    "sha256sum --check",
];

/// The namespace and the ConfigMap of an installation of Argo CD.
fn install_argo_cd(env: &TestEnv) {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "argocd" } });
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "argocd-cm", "namespace": "argocd" }, "data": { "url": "https://argocd.example.com" } });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [namespace, config] }).to_string();
    run::stdout_with_input(env.kube().kubectl().args(["apply", "-f", "-"]), Some(&list)).unwrap();
}

/// The documented command adds a health check for each kind, and removes nothing.
fn argo_cd_has_the_health_checks(env: &TestEnv) {
    let config: Value = env.kube().get("argocd", "configmap", "argocd-cm").unwrap().unwrap_or_default();
    let data = config["data"].as_object().unwrap();
    let checks = data.keys().filter(|key| key.starts_with("resource.customizations.health."));
    assert_eq!((checks.count(), data.len()), (KINDS.len(), KINDS.len() + 1), "{data:#?}");
}

#[test]
fn commands_in_the_documents_work() {
    let env = TestEnv::new("docs");
    gitops::install_definitions(env.kube()).unwrap();
    install_argo_cd(&env);
    let mut manager = Some(env.manager_of_all());
    let node = env.node("a");
    // A drain waits for pods of other tests whose managers may have exited. The taint keeps such pods away.
    let drained = env.node("drained");
    env.kubectl(&["taint", "node", &drained, "docs=only:NoSchedule"]).expect("kubectl taints the node");
    let shell = Shell::new(env.cluster(), env.namespace());

    // README's reader has run the demo, which applies the samples.
    assert!(shell.run("kubectl apply -k samples").status.success());

    let mut ran = 0;
    let mut failures = Vec::new();
    for document in documents::all() {
        for command in commands(&document) {
            let bare = without_variables(&command);
            if RUN_BY_THE_TESTS_THEMSELVES.iter().any(|own| bare.starts_with(own))
                || bare.starts_with("eval ")
                || bare.starts_with("export ")
            {
                continue;
            }
            // The manager is a local process, not a Deployment.
            if bare.starts_with("kubectl scale deployment") && bare.contains("quintet-system") {
                drop(manager.take());
                manager = (!bare.contains("--replicas=0")).then(|| env.manager_of_all());
                continue;
            }
            if needs_manager_pod(&command) {
                continue;
            }
            let drains = ["kubectl drain", "kubectl uncordon"].iter().any(|verb| command.starts_with(verb));
            let node = if drains { &drained } else { &node };
            let mut command = filled(&command.replace("NODE", node), env.namespace());
            // The API server only validates commands that would change the cluster for other tests.
            let changes = [
                "helm install",
                "helm upgrade",
                "helm template",
                "kubectl label namespace",
                "kubectl delete clusterroles",
                "kubectl delete pods -n",
                "kubectl delete configmaps -n",
                "kubectl patch deployment",
            ];
            if changes.iter().any(|change| command.starts_with(change))
                || ["-k config/default", "-f samples/gitops/"].iter().any(|files| command.contains(files))
            {
                command.push_str(" --dry-run=server");
            }
            if command.starts_with("helm uninstall") {
                command.push_str(" --dry-run");
            }
            // Commands that never return run for 5 s.
            if command.contains("--watch") || command.contains("--follow") {
                command = format!("timeout 5 {command} || test $? = 124");
            }
            // Greetings of other tests stay.
            command = command.replace("--all -A", "--all");
            let output = shell.run(&command);
            ran += 1;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_rejected_on_purpose =
                command.contains("moby-dick") && text.contains("spec.title: Required value");
            if !(succeeded(&command, &output) || is_rejected_on_purpose) {
                failures.push(format!("{}: {command}\n{}\n{text}", document.display(), output.status));
            }
        }
        // The next document needs a manager.
        manager = manager.or_else(|| Some(env.manager_of_all()));
    }
    drop(shell);
    let _ = env.kubectl(&["delete", "greetings", "--all", "--timeout=30s"]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    argo_cd_has_the_health_checks(&env);
    assert!(ran > 40, "only {ran} commands found");
}

#[test]
fn api_server_accepts_manifests_in_the_documents() {
    let env = TestEnv::new("docs-yaml");
    gitops::install_definitions(env.kube()).unwrap();
    let (mut shown, mut failures) = (0, Vec::new());
    for document in documents::all() {
        for manifest in blocks(&document, "yaml") {
            let mut apply = env.kube().kubectl();
            apply.args(["-n", env.namespace(), "apply", "--dry-run=server", "-f", "-"]);
            shown += 1;
            if let Err(error) = run::stdout_with_input(&mut apply, Some(&manifest.join("\n"))) {
                failures.push(format!("{}: {}\n{error:#}", document.display(), manifest.join("\n")));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(shown > 0, "no manifest found");
}
