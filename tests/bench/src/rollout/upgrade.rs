//! The system-upgrade-controller, whose Plans run a Job on each node: its unchanged controller in a program of
//! the bench (`tests/bench/system-upgrade-controller`).

use std::process::Command;

use anyhow::Result;
use quintet_localcluster::cluster::ports;
use quintet_localcluster::go::Program;
use quintet_localcluster::manager::NAMESPACE;

use crate::peer::{self, Running, rule};
use crate::rig::Rig;

/// The Go module of the controller.
pub const UPGRADE_CONTROLLER: &str = "github.com/rancher/system-upgrade-controller";

const ACCOUNT: &str = "system-upgrade-controller";

/// Builds the controller, grants its rights, and starts it for the Plans of a namespace. It installs its own
/// definition. Also returns its version.
pub fn start(rig: &Rig, namespace: &str) -> Result<(Running, String)> {
    let program = Program::built("tests/bench/system-upgrade-controller", UPGRADE_CONTROLLER)?;
    let all = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let definitions = rule("apiextensions.k8s.io", &["customresourcedefinitions"], &all[..6]);
    peer::allow(
        rig,
        NAMESPACE,
        ACCOUNT,
        &[
            rule("batch", &["jobs"], &all),
            rule("", &["nodes"], &["get", "list", "watch", "update"]),
            rule("", &["namespaces", "secrets"], &all[..3]),
            rule("", &["events"], &all[..6]),
            rule("upgrade.cattle.io", &["plans", "plans/status"], &all),
            definitions,
        ],
    )?;
    peer::write_kubeconfig(rig, ACCOUNT, None)?;
    let (metrics_port, health_port) = (ports::one()?, ports::one()?);
    let mut command = Command::new(&program.file);
    command
        .arg(format!("--kubeconfig={}", peer::kubeconfig(rig, ACCOUNT).display()))
        .arg(format!("--namespace={namespace}"))
        .arg(format!("--health-probe-addr=127.0.0.1:{health_port}"));
    let running = Running::start(rig, ACCOUNT, command, health_port, metrics_port)?.once_ready()?;
    Ok((running, program.version))
}
