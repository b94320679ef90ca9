//! Installs the chart without a manager: tests, benches and the demo run managers as processes.

use anyhow::Result;

use crate::kube::Kube;
use crate::progress::Step;
use crate::{manager, paths, run};

/// The user name of a manager of another release, for tests of the guard rails.
const OTHER_MANAGER: &str = "system:serviceaccount:quintet-system:other-release";

/// Installs the chart with 0 replicas, because a local cluster has no image of the manager.
pub fn install(kube: &Kube) -> Result<()> {
    let step = Step::start("installing the chart");
    run::stdout(
        kube.helm()
            .args(["upgrade", "--install", "quintet"])
            .arg(paths::workspace().join("charts/quintet"))
            .args(["--namespace", manager::NAMESPACE, "--create-namespace"])
            .args(["--set", "replicas=0,uninstallHook.enabled=false"])
            // The right to change Nodes. Flags allow it to the managers that need it.
            .args(["--set", "daemonJob.nodeMarks.default={example.com/}"])
            .args(["--set", &format!("guardRails.managers={{{OTHER_MANAGER}}}")]),
    )?;
    definitions_are_established(kube)?;
    step.done();
    Ok(())
}

/// Waits until the API server serves every kind.
pub fn definitions_are_established(kube: &Kube) -> Result<()> {
    are_established(kube, &["--selector=app.kubernetes.io/name=quintet"])
}

/// Waits until the API server serves these definitions: their names, or a selector.
pub(crate) fn are_established(kube: &Kube, definitions: &[&str]) -> Result<()> {
    // Not --for=condition: kubectl fails if a definition has no condition yet.
    let established = r#"--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True"#;
    let mut kubectl = kube.kubectl();
    kubectl.args(["wait", "crd"]).args(definitions).args([established, "--timeout=60s"]);
    run::stdout(&mut kubectl).map(drop)
}
