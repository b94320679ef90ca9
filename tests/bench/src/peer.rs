//! The managers that a bench runs beside Quintet's: their processes and their rights.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use quintet_localcluster::cluster::processes::{self, Launch, Process};
use quintet_localcluster::cluster::state;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run::Log;
use quintet_localcluster::{http, manager, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::process;
use super::rig::Rig;

/// The time limit of every wait for a manager.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The polling interval for changes within milliseconds.
pub const GLANCE: Duration = Duration::from_millis(1);

pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// Creates a ServiceAccount with these rights.
pub fn allow(rig: &Rig, namespace: &str, account: &str, rules: &[Value]) -> Result<()> {
    let service_account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}});
    rig.create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &service_account)?;
    grant(rig, namespace, account, account, rules)
}

/// Gives a ServiceAccount more rights, by a ClusterRole named `role`.
pub fn grant(rig: &Rig, namespace: &str, account: &str, role: &str, rules: &[Value]) -> Result<()> {
    let name = json!({"name": role});
    let cluster_role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": name, "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": name,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    });
    rig.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &cluster_role)?;
    rig.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding)?;
    Ok(())
}

pub fn kubeconfig(rig: &Rig, account: &str) -> PathBuf {
    rig.cluster().kube().dir().join(format!("bench-{account}.kubeconfig"))
}

/// Writes the kubeconfig of a ServiceAccount, with the port of a proxy if there is one.
pub fn write_kubeconfig(rig: &Rig, account: &str, through: Option<u16>) -> Result<()> {
    let mut text = rig.cluster().kube().kubeconfig_of_service_account(NAMESPACE, account)?;
    if let Some(port) = through {
        text = manager::kubeconfig_through(&text, port)?;
    }
    state::write(&kubeconfig(rig, account), text.as_bytes())
}

/// A running manager. Dropping it kills the process.
#[derive(Debug)]
pub struct Running {
    process: Process,
    child: Child,
    log: Log,
    metrics_port: u16,
    pub began: Timestamp,
}

impl Running {
    /// Starts a manager and does not wait until it is ready.
    pub fn start(
        rig: &Rig,
        name: &str,
        mut command: Command,
        health_port: u16,
        metrics_port: u16,
    ) -> Result<Self> {
        let kube = rig.cluster().kube();
        command.current_dir(kube.dir());
        let records = kube.dir().join("processes");
        fs::create_dir_all(&records).with_context(|| format!("cannot create {}", records.display()))?;
        let log = Log::now(kube.log(&format!("{name}.log")));
        let began = Timestamp::now();
        let (process, child) = processes::start(
            &records,
            Launch {
                name,
                command,
                port: health_port,
                fingerprint: String::new(),
                stdout: kube.log(&format!("{name}.out")),
                stderr: kube.log(&format!("{name}.log")),
            },
        )?;
        Ok(Self { process, child, log, metrics_port, began })
    }

    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    pub fn memory(&self) -> Result<process::Memory> {
        process::memory(self.pid())
    }

    pub fn metrics(&self) -> Result<String> {
        match http::get(self.metrics_port, "/metrics") {
            Some((200, body)) => Ok(body),
            _ => bail!("{} does not answer at /metrics", self.process.name),
        }
    }

    pub fn once_ready(self) -> Result<Self> {
        run::poll(&format!("{} is ready", self.process.name), LIMIT, Duration::from_millis(10), || {
            self.must_run()?;
            Ok(manager::is_ready(self.process.port).then_some(()))
        })
        .with_context(|| self.log.tail(5))?;
        Ok(self)
    }

    /// Sends SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.process.pid).filter(|_| self.process.is_alive()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Fails if the process has exited: controller-runtime exits when it loses the Lease.
    pub fn must_run(&self) -> Result<()> {
        if !self.process.is_alive() {
            bail!("{} has exited; {}", self.process.name, self.log.tail(5));
        }
        Ok(())
    }

    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("cannot wait for a manager")?.is_some())
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub fn stop(mut self) -> Result<()> {
        self.terminate();
        run::poll(&format!("{} has exited", self.process.name), LIMIT, GLANCE, || {
            Ok(self.has_ended()?.then_some(()))
        })
    }

    /// Sends SIGTERM, and SIGKILL if the process does not exit in time.
    pub fn end(self) {
        processes::stop(&[&self.process]);
    }

    pub fn kill(self) {
        self.process.kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{daemonjob::kruise::KRUISE, manager::FRAMEWORK, rollout::upgrade::UPGRADE_CONTROLLER};
    use quintet_localcluster::cluster::binaries::required_version;
    use quintet_localcluster::paths;

    #[test]
    fn go_mod_states_the_versions_of_peers() {
        for (name, module, version) in [
            ("twin", FRAMEWORK, "v0.24."),
            ("kruise", KRUISE, "v1."),
            ("system-upgrade-controller", UPGRADE_CONTROLLER, "v0.20."),
        ] {
            let go_mod = paths::workspace().join("tests/bench").join(name).join("go.mod");
            let go_mod = fs::read_to_string(go_mod).unwrap();
            assert!(required_version(&go_mod, module).unwrap().starts_with(version), "{name}");
        }
    }
}
