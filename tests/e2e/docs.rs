//! Runs every command of the user's documents, except those that this test run itself makes, and shows every
//! manifest to the API server.

use std::path::PathBuf;
use std::process::{Command, Output};

use quintet_e2e::{TestEnv, program, workspace};
use quintet_localcluster::documents::{self, blocks, commands, without_variables};
use quintet_localcluster::run;

/// Commands that this test does not run: `cargo xtask test` does their work, or a part of it for the benches
/// and the faults. Tests with a broker run the Pulsar programs.
const RUN_BY_THE_TESTS_THEMSELVES: [&str; 17] = [
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
];

/// The time limit of a command, in seconds.
const COMMAND_LIMIT: &str = "180";

/// A user's shell: a kubeconfig whose namespace is the test's, and Quintet's programs on the path.
struct Shell<'a> {
    env: &'a TestEnv,
    home: PathBuf,
}

impl<'a> Shell<'a> {
    fn new(env: &'a TestEnv) -> Self {
        let home = std::env::temp_dir().join(format!("{}.home", env.namespace()));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::copy(env.cluster().kubeconfig(), home.join("kubeconfig")).unwrap();
        for name in ["quintet", "kubectl-quintet"] {
            std::os::unix::fs::symlink(std::fs::canonicalize(program()).unwrap(), home.join(name)).unwrap();
        }
        let shell = Self { env, home };
        let set = format!("kubectl config set-context --current --namespace={}", env.namespace());
        assert!(shell.run(&set).status.success());
        shell
    }

    fn run(&self, command: &str) -> Output {
        let mut path = vec![self.home.clone(), self.env.cluster().dir().bin()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        // A command that never returns is a failure too.
        Command::new("timeout")
            .args([COMMAND_LIMIT, "bash", "-ec", command])
            .current_dir(workspace())
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .env("KUBECACHEDIR", self.env.kube().cache())
            .env("PATH", std::env::join_paths(path).unwrap())
            .output()
            .unwrap()
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

#[test]
fn commands_in_the_documents_work() {
    let env = TestEnv::new("docs");
    let mut manager = Some(env.manager_of_all());
    let node = env.node("a");
    // A drain waits for pods of other tests whose managers may have exited. The taint keeps such pods away.
    let drained = env.node("drained");
    env.kubectl(&["taint", "node", &drained, "docs=only:NoSchedule"]).expect("kubectl taints the node");
    let shell = Shell::new(&env);

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
                manager = bare.contains("--replicas=1").then(|| env.manager_of_all());
                continue;
            }
            let drains = ["kubectl drain", "kubectl uncordon"].iter().any(|verb| command.starts_with(verb));
            let node = if drains { &drained } else { &node };
            let mut command = command.replace("NODE", node).replace("NAMESPACE", env.namespace());
            // The API server only validates commands that would change the cluster for other tests.
            let changes = ["helm install", "helm upgrade", "kubectl label namespace"];
            if changes.iter().any(|change| command.starts_with(change))
                || command.contains("-k config/default")
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
            // Simulated nodes have no logs, and the tests' release has no pod.
            let no_logs = command.contains("kubectl logs");
            if !(output.status.success() || is_rejected_on_purpose || no_logs) {
                failures.push(format!("{}: {command}\n{}\n{text}", document.display(), output.status));
            }
        }
        // The next document needs a manager.
        manager = manager.or_else(|| Some(env.manager_of_all()));
    }
    drop(shell);
    let _ = env.kubectl(&["delete", "greetings", "--all", "--timeout=30s"]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(ran > 40, "only {ran} commands found");
}

#[test]
fn api_server_accepts_manifests_in_the_documents() {
    let env = TestEnv::new("docs-yaml");
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
