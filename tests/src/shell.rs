//! Runs commands of the documents, as a user's shell does.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use quintet_kinds::KINDS;
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::{documents, run};

use crate::{program, workspace};

/// The time limit of a command, in seconds. A command that never returns is a failure too.
const LIMIT: &str = "180";

/// A user's shell: a kubeconfig with a namespace, and Quintet's programs on the path.
pub struct Shell<'a> {
    cluster: &'a Cluster,
    home: PathBuf,
}

impl<'a> Shell<'a> {
    /// A shell in a namespace of the cluster.
    pub fn new(cluster: &'a Cluster, namespace: &str) -> Self {
        static SERIAL: AtomicUsize = AtomicUsize::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let home = format!("quintet-{}-{namespace}-{serial}.home", std::process::id());
        let home = std::env::temp_dir().join(home);
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(&home).expect("the folder can be created");
        std::fs::copy(cluster.kubeconfig(), home.join("kubeconfig")).expect("the kubeconfig can be copied");
        let program = std::fs::canonicalize(program()).expect("the program is there");
        for name in ["quintet", "kubectl-quintet"] {
            std::os::unix::fs::symlink(&program, home.join(name)).expect("the program can be linked");
        }
        let shell = Self { cluster, home };
        let set = format!("kubectl config set-context --current --namespace={namespace}");
        assert!(shell.run(&set).status.success());
        shell
    }

    /// Runs a command. A pipeline fails if one of its commands fails.
    pub fn run(&self, command: &str) -> Output {
        let mut path = vec![self.home.clone(), self.cluster.dir().bin()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut bash = Command::new("timeout");
        bash.args([LIMIT, "bash", "-o", "pipefail", "-ec", command])
            .current_dir(workspace())
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .env("KUBECACHEDIR", self.cluster.kube().cache())
            .env("PATH", std::env::join_paths(path).expect("the path has no colon"));
        run::output(&mut bash, None).expect("bash runs")
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn stdout(&self, command: &str) -> String {
        let output = self.run(command);
        printed_if(output.status.success(), command, &output)
    }

    /// Runs the commands of a section of a document, with this name and namespace of an object. Returns their standard output.
    pub fn follow(&self, document: &str, heading: &str, namespace: &str, name: &str) -> String {
        let commands = documents::commands_of_section(&workspace().join(document), heading);
        assert!(!commands.is_empty(), "{document} has no command below {heading:?}");
        let run = |command: &String| {
            let command = named(command, namespace, name);
            let output = self.run(&command);
            printed_if(output.status.success() || is_verdict(&command, &output), &command, &output)
        };
        commands.iter().map(run).collect()
    }
}

/// The standard output of a command. Panics unless the command succeeded.
fn printed_if(is_success: bool, command: &str, output: &Output) -> String {
    let [printed, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(is_success, "{command}\n{}\n{printed}{error}", output.status);
    printed.into_owned()
}

/// Whether the exit code reports the state of a DaemonJob: a held rollout, or a node that does not run.
fn is_verdict(command: &str, output: &Output) -> bool {
    let verdicts = [("quintet rollout status ", 3), ("quintet explain ", 1)];
    let is_it = |(begin, code): (&str, i32)| command.starts_with(begin) && output.status.code() == Some(code);
    verdicts.into_iter().any(is_it) && !output.stdout.is_empty()
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// Whether a command needs a pod of the manager, which only tests on real nodes have.
pub fn needs_manager_pod(command: &str) -> bool {
    let parts =
        ["kubectl logs", "kubectl exec", "kubectl port-forward", "$LEADER", " POD", "lease quintet-manager"];
    parts.iter().any(|part| command.contains(part))
}

/// A command with an object instead of the placeholders: the first sample of the kind that the command names.
pub fn filled(command: &str, namespace: &str) -> String {
    let command = command.replace(" KIND ", " podset ");
    let kinds = KINDS;
    let kind = kinds.iter().find(|kind| command.contains(kind.controller)).unwrap_or(&kinds[0]);
    named(&command, namespace, kind.sample.trim_end_matches(".yaml"))
}

/// A command with this name and namespace instead of the placeholders.
fn named(command: &str, namespace: &str, name: &str) -> String {
    // Columns of kubectl are called NAME too.
    let fill =
        |command: String, before| command.replace(&format!("{before}NAME"), &format!("{before}{name}"));
    [" ", "/", "="].into_iter().fold(command.replace("NAMESPACE", namespace), fill)
}

/// The command of a substitution, such as `export NAME="$(COMMAND)"`, which would hide that the command fails.
pub fn substituted(command: &str) -> &str {
    let is_substitution = command.starts_with("eval ") || command.starts_with("export ");
    let inner = command.split_once("\"$(").and_then(|(_, rest)| rest.strip_suffix(")\""));
    inner.filter(|_| is_substitution).unwrap_or(command)
}

/// A command that never returns, limited to 5 s; another command as it is.
pub fn limited(command: String) -> String {
    let is_endless = ["--watch", "--follow"].iter().any(|flag| command.split(' ').any(|word| word == *flag));
    if is_endless { format!("timeout 5 {command} || test $? = 124") } else { command }
}

/// Whether a command succeeded. It did if grep, at the end of a pipeline, found nothing, or if `quintet doctor` printed its
/// report.
pub fn succeeded(command: &str, output: &Output) -> bool {
    let greps = command.rsplit_once(" | ").is_some_and(|(_, last)| last.starts_with("grep "));
    let is_empty = greps && output.stderr.is_empty() && output.status.code() == Some(1);
    let is_report =
        command.contains("quintet doctor") && output.stdout.windows(11).any(|part| part == b"\nProblems: ");
    output.status.success() || is_empty || is_report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_placeholders_and_keeps_columns() {
        let filled = |command: &str| filled(command, "shop");
        assert_eq!(
            filled("kubectl describe KIND NAME -n NAMESPACE"),
            "kubectl describe podset podset-sample -n shop"
        );
        assert_eq!(filled("quintet explain daemonjob/NAME"), "quintet explain daemonjob/daemonjob-sample");
        let pods = "kubectl get pods --selector pulsarcrd=daemonjob-sample-pulsarcrd";
        assert_eq!(filled("kubectl get pods --selector pulsarcrd=NAME-pulsarcrd"), pods);
        let columns =
            "kubectl get books -o custom-columns='NS:.metadata.namespace,NAME:.metadata.name,KIND:.kind'";
        assert_eq!(filled(columns), columns);
    }

    #[test]
    fn finds_the_command_of_a_substitution() {
        assert_eq!(substituted("eval \"$(cargo xtask cluster env)\""), "cargo xtask cluster env");
        assert_eq!(substituted("export A=\"$(b --c='d' | cut -f1)\""), "b --c='d' | cut -f1");
        let label = "kubectl label pod \"$(kubectl get podset a)\" \"$(b)\"";
        assert_eq!(substituted(label), label);
    }

    #[test]
    fn limits_the_commands_that_never_return() {
        let endless = "kubectl get podset a --watch";
        assert_eq!(limited(endless.to_owned()), format!("timeout 5 {endless} || test $? = 124"));
        let once = "quintet rollout status podset/a --watch=false";
        assert_eq!(limited(once.to_owned()), once);
    }

    #[test]
    fn only_a_last_grep_may_find_nothing() {
        use std::os::unix::process::ExitStatusExt as _;
        let with = |code: i32, error: &str| Output {
            status: std::process::ExitStatus::from_raw(code << 8),
            stdout: Vec::new(),
            stderr: error.as_bytes().to_vec(),
        };
        assert!(succeeded("kubectl logs a | grep -e b", &with(1, "")));
        assert!(!succeeded("kubectl logs a | grep -e b", &with(1, "error: no pod")));
        assert!(!succeeded("kubectl logs a | grep -e b", &with(2, "")));
        assert!(!succeeded("kubectl logs a | grep -e b | sort", &with(1, "")));
        assert!(!succeeded("kubectl logs a", &with(1, "")));
    }

    #[test]
    fn knows_the_commands_that_need_a_pod() {
        assert!(needs_manager_pod("kubectl describe pod POD -n quintet-system"));
        assert!(!needs_manager_pod(
            "kubectl get pods -A -o custom-columns='NS:.metadata.namespace,POD:.metadata.name'"
        ));
        assert!(!needs_manager_pod("kubectl get leases -A"));
    }
}
