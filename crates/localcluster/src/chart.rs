//! The chart on a cluster without a manager of its own: the tests, the benches and the demo run managers as processes.

use anyhow::Result;

use crate::kube::Kube;
use crate::progress::Step;
use crate::{manager, paths, run};

/// Installs the chart without a manager in the cluster, as there is no image for it: the manager is a process here.
pub fn install(kube: &Kube) -> Result<()> {
    let step = Step::start("installing the chart");
    run::stdout(
        kube.helm()
            .args(["upgrade", "--install", "quintet"])
            .arg(paths::workspace().join("charts/quintet"))
            .args(["--namespace", manager::NAMESPACE, "--create-namespace"])
            .args(["--set", "replicas=0,uninstallHook.enabled=false"]),
    )?;
    definitions_are_established(kube)?;
    step.done();
    Ok(())
}

/// Waits until the API server serves every kind.
pub fn definitions_are_established(kube: &Kube) -> Result<()> {
    // Not --for=condition: kubectl takes a definition that has no condition yet for an error.
    let established = r#"--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True"#;
    let ours = ["wait", "crd", "--selector=app.kubernetes.io/name=quintet"];
    run::stdout(kube.kubectl().args(ours).args([established, "--timeout=60s"]))?;
    Ok(())
}
