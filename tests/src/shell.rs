//! Runs commands of the documents, as a user's shell does.

use std::path::PathBuf;
use std::process::{Command, Output};

use quintet_kinds::KINDS;
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::run;

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
        let home = std::env::temp_dir().join(format!("quintet-{}-{namespace}.home", std::process::id()));
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

    /// Runs a command.
    pub fn run(&self, command: &str) -> Output {
        let mut path = vec![self.home.clone(), self.cluster.dir().bin()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut bash = Command::new("timeout");
        bash.args([LIMIT, "bash", "-ec", command])
            .current_dir(workspace())
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .env("KUBECACHEDIR", self.cluster.kube().cache())
            .env("PATH", std::env::join_paths(path).expect("the path has no colon"));
        run::output(&mut bash, None).expect("bash runs")
    }
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
    let command = command.replace("NAMESPACE", namespace).replace(" KIND ", " podset ");
    let kinds = KINDS;
    let kind = kinds.iter().find(|kind| command.contains(kind.controller)).unwrap_or(&kinds[0]);
    let name = kind.sample.trim_end_matches(".yaml");
    // Columns of kubectl are called NAME too.
    let fill =
        |command: String, before| command.replace(&format!("{before}NAME"), &format!("{before}{name}"));
    [" ", "/", "="].into_iter().fold(command, fill)
}

/// Whether a command succeeded. It did if grep found nothing, or if `quintet doctor` printed its report.
pub fn succeeded(command: &str, output: &Output) -> bool {
    let is_empty = command.contains("| grep") && output.stderr.is_empty() && output.status.code() == Some(1);
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
    fn knows_the_commands_that_need_a_pod() {
        assert!(needs_manager_pod("kubectl describe pod POD -n quintet-system"));
        assert!(!needs_manager_pod(
            "kubectl get pods -A -o custom-columns='NS:.metadata.namespace,POD:.metadata.name'"
        ));
        assert!(!needs_manager_pod("kubectl get leases -A"));
    }
}
