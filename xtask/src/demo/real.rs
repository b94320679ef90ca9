//! The demo on real nodes: the chart with its defaults, and managers in pods.

use std::time::Duration;

use anyhow::Result;
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::kube::Kube;
use quintet_localcluster::progress::Step;
use quintet_localcluster::{chart, image, manager, paths, run};

use super::LIMIT;

/// The reason why this machine cannot run real nodes.
pub(super) fn missing() -> Result<Option<String>> {
    match quintet_localcluster::cluster::real::missing() {
        Some(missing) => Ok(Some(missing)),
        None => image::missing(&[]),
    }
}

/// Builds the images, loads them on the nodes, and installs the chart with two managers.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    let images = image::build(&[], &paths::target().join("image"))?;
    let archives: Vec<_> = images.into_iter().map(|image| image.file).collect();
    cluster.load_images(&archives)?;
    let step = Step::start("installing the chart, with two managers in pods");
    let kube = cluster.kube();
    run::stdout(
        kube.helm()
            .args(["upgrade", "--install", "quintet"])
            .arg(paths::workspace().join("charts/quintet"))
            .args(["--namespace", manager::NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"]),
    )?;
    chart::definitions_are_established(kube)?;
    step.done();
    Ok(())
}

/// The logs of the running managers.
fn written(kube: &Kube) -> Result<String> {
    let pods = ["-l", "app.kubernetes.io/name=quintet", "--tail=-1"];
    run::stdout(kube.kubectl().args(["logs", "-n", manager::NAMESPACE]).args(pods))
}

/// Waits for the needed lines of a Greeting, and returns them with the other printed ones.
pub(super) fn greeting(kube: &Kube, needed: &[&str], all: &[&str]) -> Result<String> {
    run::poll("the lines of the Greeting", LIMIT, Duration::from_millis(500), || {
        let written = written(kube)?;
        let there = |line: &&str| written.lines().any(|one| one == *line);
        Ok(needed
            .iter()
            .all(there)
            .then(|| all.iter().filter(|line| there(line)).copied().collect::<Vec<_>>().join("\n")))
    })
}
