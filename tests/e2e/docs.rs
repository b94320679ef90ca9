//! Every command in the documents that a user reads is run, or is one of the few that this very test run makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use quintet_e2e::{Arena, workspace};

/// What `cargo xtask test` does itself, as one of its parts or by being run.
const RUN_BY_THE_TESTS_THEMSELVES: [&str; 7] = [
    "cargo xtask build",
    "cargo xtask demo",
    "cargo xtask cluster",
    "cargo xtask test",
    "cargo xtask generate",
    "cargo build",
    "cargo test",
];

/// The fenced `sh` blocks of a document, one command a line.
fn commands(document: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(document).expect("the document is there");
    let mut commands = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.trim() {
            "```sh" => inside = true,
            "```" => inside = false,
            command if inside && !command.is_empty() => {
                commands.push(command.split(" #").next().unwrap_or_default().trim().to_owned());
            }
            _ => {}
        }
    }
    commands
}

fn documents() -> Vec<PathBuf> {
    let mut documents = vec![workspace().join("README.md"), workspace().join("CONTRIBUTING.md")];
    for entry in std::fs::read_dir(workspace().join("samples")).unwrap().flatten() {
        let readme = entry.path().join("README.md");
        if readme.is_file() {
            documents.push(readme);
        }
    }
    documents.sort();
    documents
}

#[test]
fn commands_in_the_documents_work() {
    let arena = Arena::new("docs");
    let _manager = arena.manager("daemonjob,podset,pulsarconsumer,greeting,book");
    let node = arena.node("a");
    // The user's kubeconfig, with this test's namespace as the current one.
    let kubeconfig = std::env::temp_dir().join(format!("{}.kubeconfig", arena.namespace()));
    std::fs::copy(arena.cluster().kubeconfig(), &kubeconfig).unwrap();
    let shell = |command: &str| {
        let bin = arena.cluster().dir().bin();
        let path = std::env::join_paths(
            std::iter::once(bin).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )
        .unwrap();
        Command::new("bash")
            .args(["-ec", command])
            .current_dir(workspace())
            .env("KUBECONFIG", &kubeconfig)
            .env("KUBECACHEDIR", arena.kube().cache())
            .env("PATH", path)
            .output()
            .unwrap()
    };
    let set = format!("kubectl config set-context --current --namespace={}", arena.namespace());
    assert!(shell(&set).status.success());

    // README's reader has run the demo, which applied them.
    assert!(shell("kubectl apply -k samples").status.success());

    let mut ran = 0;
    let mut failures = Vec::new();
    for document in documents() {
        for command in commands(&document) {
            let bare = command
                .split_whitespace()
                .skip_while(|word| word.contains('='))
                .collect::<Vec<_>>()
                .join(" ");
            if RUN_BY_THE_TESTS_THEMSELVES.iter().any(|own| bare.starts_with(own))
                || bare.starts_with("eval ")
            {
                continue;
            }
            let mut command = command.replace("NODE", &node);
            // What would change the cluster for the tests beside this one is only checked by the server.
            if command.starts_with("helm install") || command.contains("-k config/default") {
                command.push_str(" --dry-run=server");
            }
            // What goes on for ever is looked at for a moment.
            if command.contains("--watch") || command.contains("--follow") {
                command = format!("timeout 5 {command} || test $? = 124");
            }
            // Greetings of other tests are not ours to delete.
            command = command.replace("--all -A", "--all");
            let output = shell(&command);
            ran += 1;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let refused_on_purpose =
                command.contains("moby-dick") && text.contains("spec.title: Required value");
            // Simulated nodes keep no logs, and the release of the tests has no pod.
            let no_logs = command.contains("kubectl logs");
            if !(output.status.success() || refused_on_purpose || no_logs) {
                failures.push(format!("{}: {command}\n{text}", document.display()));
            }
        }
    }
    let _ = std::fs::remove_file(kubeconfig);
    let _ = arena.kubectl(&["delete", "greetings", "--all", "--timeout=30s"]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(ran > 10, "only {ran} commands were found");
}
