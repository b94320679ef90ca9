//! Runs every command of the user's documents, except those that other tests run, and shows every manifest to the API
//! server. A test on real nodes runs the commands that need a pod of the manager.

use std::env;
use std::fs;
use std::path::Path;

use quintet_e2e::shell::{Shell, filled, limited, needs_manager_pod, substituted, succeeded};
use quintet_e2e::{TestEnv, workspace};
use quintet_kinds::KINDS;
use quintet_localcluster::documents::{self, blocks, commands, without_variables};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::temporary::TemporaryCluster;
use quintet_localcluster::{gitops, protoc, run, variables};
use serde_json::{Value, json};

/// Commands that other tests run: the beginning of the command, and the part of `cargo xtask test`, or the function, that
/// runs it.
const RUN_ELSEWHERE: [(&str, &str); 37] = [
    ("cargo build", "workspace tests"),
    ("cargo test", "workspace tests"),
    ("cargo xtask bench", "short benches"),
    ("cargo xtask build", "release build"),
    ("cargo xtask chart", "chart"),
    ("cargo xtask cluster up", "tests/e2e-real/nodes.rs::the_commands_of_the_readme_work"),
    ("cargo xtask cluster node", "tests/e2e-real/nodes.rs::the_commands_of_the_readme_work"),
    ("cargo xtask cluster down", "tests/e2e-real/nodes.rs::the_commands_of_the_readme_work"),
    ("cargo xtask demo", "demo"),
    ("cargo xtask e2e", "end-to-end tests"),
    ("cargo xtask faults", "pairs of faults"),
    ("cargo xtask generate", "generated files"),
    ("cargo xtask image", "images"),
    ("cargo xtask prose", "prose"),
    ("cargo xtask pulsar", "Pulsar programs"),
    ("cargo xtask release", "release files"),
    ("cargo xtask test", "end-to-end tests"),
    ("cosign verify", "xtask/src/release/rehearsal.rs::verify"),
    ("crane copy", "xtask/src/release/rehearsal/mirror.rs::copy"),
    ("crane digest", "xtask/src/release/rehearsal.rs::verify"),
    ("sha256sum --check", "xtask/src/release/rehearsal.rs::verify"),
    ("etcdutl", "tests/e2e/manager_restore.rs::documented_restore"),
    ("helm install quintet oci://", "xtask/src/release/rehearsal/install.rs::install"),
    ("helm upgrade --install quintet oci://", "xtask/src/release/rehearsal/mirror.rs::install_copy"),
    (
        "helm uninstall quintet --namespace quintet-system",
        "tests/e2e/chart.rs::uninstalls_while_objects_exist",
    ),
    ("kubectl krew install", "xtask/src/release/rehearsal.rs::plugin"),
    ("kubectl annotate scaledobject", "tests/e2e/pulsarconsumer_autoscaling.rs::follow_the_page"),
    ("kubectl get scaledobject", "tests/e2e/pulsarconsumer_autoscaling.rs::follow_the_page"),
    (
        "kubectl delete deployment NAME-deployment",
        "tests/e2e/pulsarconsumer.rs::replaces_a_deployment_of_the_tutorial_when_it_is_deleted",
    ),
    ("kubectl delete application", "tests/e2e/chart_applied.rs::deletes_an_application_of_argo_cd"),
    ("kubectl patch application", "tests/e2e/chart_applied.rs::deletes_an_application_of_argo_cd"),
    (
        "quintet uninstall --manager quintet-system/quintet",
        "tests/e2e/chart_applied.rs::deletes_an_application_of_argo_cd",
    ),
    ("kubectl patch pulsarconsumer preview", "tests/e2e/pulsarconsumer_health.rs::terminating_when_deleted"),
    ("pulsar-consumer", "crates/pulsar-client/tests/broker/docs.rs::commands_in_the_document_work"),
    ("pulsar-producer", "crates/pulsar-client/tests/broker/docs.rs::commands_in_the_document_work"),
    ("quintet rollout approve", "tests/e2e/daemonjob_rollout.rs::follows_the_runbooks_of_a_held_rollout"),
    (
        "quintet rollout resume daemonjob/NAME",
        "tests/e2e/daemonjob_rollout.rs::follows_the_runbooks_of_a_held_rollout",
    ),
];

/// Whether another test runs the command.
fn runs_elsewhere(command: &str) -> bool {
    let bare = without_variables(substituted(command));
    RUN_ELSEWHERE.iter().any(|(begin, _)| bare.starts_with(begin))
}

/// Whether a command changes the installation, which the tests share. It runs on a cluster of its own.
fn changes_the_installation(command: &str) -> bool {
    let begins = [
        "helm install ",
        "helm rollback ",
        "helm upgrade ",
        "kubectl delete clusterroles",
        "kubectl label namespace ",
        "kubectl patch deployment quintet ",
        "kubectl rollout restart deployment/quintet ",
        "kubectl scale deployment quintet ",
    ];
    let applies_the_chart = command.starts_with("helm template ") && command.contains(" | kubectl ");
    !runs_elsewhere(command)
        && (begins.iter().any(|begin| command.starts_with(begin))
            || ["-k config/default", "-f samples/gitops/"].iter().any(|files| command.contains(files))
            || applies_the_chart)
}

/// All documents with their commands.
fn documented() -> impl Iterator<Item = (String, Vec<String>)> {
    let name = |document: &Path| document.strip_prefix(workspace()).unwrap().display().to_string();
    documents::all().into_iter().map(move |document| (name(&document), commands(&document)))
}

#[test]
fn commands_that_run_elsewhere_have_a_test() {
    let all: Vec<String> = documented().flat_map(|(_, commands)| commands).collect();
    let read = |file: &str| fs::read_to_string(workspace().join(file)).unwrap();
    let parts = ["xtask/src/test.rs", "xtask/src/test/end_to_end.rs"].map(read).concat();
    for (begin, runner) in RUN_ELSEWHERE {
        let is_documented = |command: &String| without_variables(substituted(command)).starts_with(begin);
        assert!(all.iter().any(is_documented), "no document has the command {begin:?}");
        let exists = match runner.split_once("::") {
            Some((file, function)) => read(file).contains(&format!("fn {function}(")),
            None => parts.contains(&format!("(\"{runner}\"")),
        };
        assert!(exists, "{runner} does not exist");
    }
}

/// The namespace and the ConfigMap of an installation of Argo CD.
fn install_argo_cd(kube: &Kube) {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "argocd" } });
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "argocd-cm", "namespace": "argocd" }, "data": { "url": "https://argocd.example.com" } });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [namespace, config] }).to_string();
    run::stdout_with_input(kube.kubectl().args(["apply", "-f", "-"]), Some(&list)).unwrap();
}

/// The documented command adds a health check for each kind, and removes nothing.
fn argo_cd_has_the_health_checks(env: &TestEnv) {
    let config: Value = env.kube().get("argocd", "configmap", "argocd-cm").unwrap().unwrap_or_default();
    let data = config["data"].as_object().unwrap();
    let checks = data.keys().filter(|key| key.starts_with("resource.customizations.health."));
    assert_eq!((checks.count(), data.len()), (KINDS.len(), KINDS.len() + 1), "{data:#?}");
}

/// A command of `cargo xtask` for this cluster.
fn of_xtask(env: &TestEnv, command: &str) -> String {
    let program = env::var(variables::XTASK).unwrap_or_else(|_| panic!("{} is not set", variables::XTASK));
    let cluster = env.cluster().name();
    // Each test has its own managers.
    let logs = format!("cluster logs {}-manager", env.namespace());
    let command = command.replace("cluster logs", &logs).replace("cargo xtask", &run::shell_quote(&program));
    if command.contains(" cluster ") { format!("{command} --name {cluster}") } else { command }
}

#[test]
fn commands_in_the_documents_work() {
    let env = TestEnv::new("docs");
    gitops::install_definitions(env.kube()).unwrap();
    install_argo_cd(env.kube());
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
    for (document, commands) in documented() {
        for command in &commands {
            // The manager is a local process, not a Deployment.
            if command.starts_with("kubectl scale deployment quintet ") {
                drop(manager.take());
                manager = (!command.contains("--replicas=0")).then(|| env.manager_of_all());
            }
            if runs_elsewhere(command) || changes_the_installation(command) || needs_manager_pod(command) {
                continue;
            }
            // Only the build of the Pulsar programs needs it.
            if command.contains("xtask protoc") && protoc::find().is_none() {
                continue;
            }
            let drains = ["kubectl drain", "kubectl uncordon"].iter().any(|verb| command.starts_with(verb));
            let node = if drains { &drained } else { &node };
            let mut command = filled(&substituted(command).replace("NODE", node), env.namespace());
            if command.starts_with("cargo xtask ") {
                command = of_xtask(&env, &command);
            }
            let command = limited(command);
            let output = shell.run(&command);
            ran += 1;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_rejected_on_purpose =
                command.contains("moby-dick") && text.contains("spec.title: Required value");
            if !(succeeded(&command, &output) || is_rejected_on_purpose) {
                failures.push(format!("{document}: {command}\n{}\n{text}", output.status));
            }
        }
        // The next document needs a manager.
        manager = manager.or_else(|| Some(env.manager_of_all()));
    }
    drop(shell);
    let _ = env.kubectl(&["delete", "greetings", "--all", "--timeout=30s"]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    argo_cd_has_the_health_checks(&env);
    assert!(ran > 100, "only {ran} commands found");
}

/// The command that installs Quintet, for commands that need an installation.
const INSTALL: &str = "helm install quintet charts/quintet --namespace quintet-system --create-namespace";
const APPLY: &str = "kubectl apply -k config/default";
const DELETE: &str = "kubectl delete -k config/default";

/// The command that takes back an installation.
fn removal(command: &str) -> Option<String> {
    if command.starts_with("helm install ") {
        let namespace = command.split(" --namespace ").nth(1)?.split(' ').next()?;
        // No program runs in the simulated pods, so the uninstall Job has no effect.
        return Some(format!("helm uninstall quintet --no-hooks --wait --namespace {namespace}"));
    }
    let applies = command == APPLY || command.starts_with("helm template ");
    applies.then(|| command.replace("kubectl apply", "kubectl delete"))
}

/// An installation on a cluster of its own, and the command that removes it.
struct Installation<'a> {
    shell: Shell<'a>,
    removal: Option<String>,
}

impl Installation<'_> {
    fn remove(&mut self) {
        if let Some(removal) = self.removal.take() {
            self.shell.stdout(&removal);
        }
    }

    /// Runs a command with the installation that it needs.
    fn run(&mut self, command: &str) {
        let (installs, current) = (removal(command), self.removal.take());
        if command == DELETE || command.starts_with("kubectl patch deployment ") {
            self.replace(current, Some(APPLY));
        } else if installs.is_some() {
            self.replace(current, None);
        } else if command.starts_with("helm ") || current.is_none() {
            self.replace(current, Some(INSTALL));
        } else {
            self.removal = current;
        }
        // Only some installations create it, and their removal deletes it.
        self.shell.stdout("kubectl get namespace quintet-system || kubectl create namespace quintet-system");
        self.shell.stdout(command);
        if installs.is_some() {
            self.list_installed_kinds();
        }
        if installs.is_some() || command == DELETE {
            self.removal = installs;
        }
    }

    /// Waits until the API server serves the installed kinds, as a user does before using them. Kubernetes 1.37 can take five
    /// minutes to delete a CustomResourceDefinition whose objects were never listed: CRDFinalizer's first attempt fails because
    /// the storage is initializing, its second with a conflict, and then it waits for the resync.
    fn list_installed_kinds(&self) {
        for resource in KINDS.map(|kind| (kind.resource)()) {
            let (plural, group, path) = (resource.plural, resource.group, resource.path(""));
            let is_installed = format!("kubectl get crd {plural}.{group} || exit 0");
            self.shell.stdout(&format!("{is_installed}; until kubectl get --raw {path}; do sleep 0.2; done"));
        }
    }

    /// Removes the current installation, and runs the command of another one, unless both are the same.
    fn replace(&mut self, current: Option<String>, other: Option<&str>) {
        let next = other.and_then(removal);
        if current == next {
            self.removal = current;
            return;
        }
        self.removal = current;
        self.remove();
        if let Some(install) = other {
            self.run(install);
        }
    }
}

/// The nodes are simulated: the pods of the managers become ready, but no manager runs.
#[test]
fn commands_that_change_the_installation_work() {
    let cluster = TemporaryCluster::up("docs-installs", 2).unwrap();
    gitops::install_definitions(cluster.kube()).unwrap();
    install_argo_cd(cluster.kube());
    let mut installation = Installation { shell: Shell::new(&cluster, "default"), removal: None };
    let all: Vec<String> = documented().flat_map(|(_, commands)| commands).collect();
    for known in [INSTALL, APPLY, DELETE] {
        assert!(all.iter().any(|command| command == known), "no document has the command {known:?}");
    }
    let mut ran = 0;
    for (document, commands) in documented() {
        let changing = commands.iter().filter(|command| changes_the_installation(command));
        let changing: Vec<String> = changing.map(|command| filled(command, "default")).collect();
        for command in &changing {
            println!("{document}: {command}");
            installation.run(command);
        }
        ran += changing.len();
        // Each document begins without an installation.
        installation.remove();
    }
    assert!(ran > 20, "only {ran} commands found");
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
