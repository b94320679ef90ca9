//! Installs the chart without a manager: tests, benches and the demo run managers as processes.

use anyhow::Result;

use crate::kube::Kube;
use crate::progress::Step;
use crate::{manager, paths, run};

/// The five definitions, by their full names.
pub const DEFINITIONS: [&str; 5] = [
    "daemonjobs.dj.dysproz.io",
    "podsets.batch.tutorial.kubebuilder.io",
    "pulsarconsumers.pulsar.pulsarconsumer.krvarma.com",
    "greetings.example.com",
    "books.christianb93.github.com",
];

/// Installs the chart with 0 replicas, because a local cluster has no image of the manager.
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

/// Waits until the API server serves all kinds.
pub fn definitions_are_established(kube: &Kube) -> Result<()> {
    let definitions = DEFINITIONS.map(|name| format!("crd/{name}"));
    // Not --for=condition: kubectl fails if a definition has no condition yet.
    let established = r#"--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True"#;
    run::stdout(kube.kubectl().args(["wait", established, "--timeout=60s"]).args(definitions))?;
    Ok(())
}
