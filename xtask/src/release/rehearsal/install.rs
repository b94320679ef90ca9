//! The installation of a release on real nodes. The nodes pull the images of ghcr.io, by their digests, from the registry to
//! which the rehearsal published.

use std::fs;

use anyhow::{Context, Result, ensure};
use quintet_localcluster::cluster::{Cluster, UpOptions, real};
use quintet_localcluster::image::{self, PUBLISHED};
use quintet_localcluster::progress::Step;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{documents, manager, paths, run};
use serde_json::Value;

use super::{MIRROR, Rehearsal};
use crate::release::VERSION;

/// The number of nodes: one for each manager.
const NODES: usize = 2;

/// The document that describes the installation of a release, and a part of its command.
const BY_VERSION: (&str, &str) = ("docs/operations.md", "/charts/quintet --version VERSION ");

/// The document that describes the installation of a verified chart, and a part of its command.
const BY_DIGEST: (&str, &str) = ("docs/verify.md", "/charts/quintet@DIGEST ");

impl Rehearsal<'_> {
    /// Installs the chart from the registry. Returns the reason if this machine has no real nodes.
    pub(super) fn install(&self) -> Result<Option<String>> {
        if let Some(missing) = real::missing() {
            return Ok(Some(missing));
        }
        let name = Temporary::new("release");
        let (cluster, _) =
            Cluster::up_real(&UpOptions { name: name.name(), nodes: Some(NODES), ..UpOptions::default() })?;
        let requests = cluster.mirror(&[PUBLISHED[0], MIRROR], &self.folder.join("registry"))?;

        let step = Step::start_long("installing the chart from the registry on real nodes");
        self.follow(&cluster, &documented(BY_VERSION)?)?;
        let digests = self.digests()?;
        for (program, digest) in &digests {
            let image = format!("{}@{digest}", image::repository(program));
            if program == "quintet" {
                managers_run(&cluster, &image)?;
            } else {
                prints_its_version(&cluster, program, program, &image)?;
            }
        }
        let requests =
            fs::read_to_string(&requests).with_context(|| format!("cannot read {}", requests.display()))?;
        for (program, digest) in &digests {
            let asked = format!("/{program}/manifests/{digest}");
            ensure!(requests.contains(&asked), "no node pulled {program} by its digest {digest}");
        }
        step.done();
        self.explain(&cluster)?;
        self.install_by_digest(&cluster)?;
        self.install_copy(&cluster)?;
        Ok(None)
    }

    /// Runs a documented command of helm with the local registry and this version, and waits until the release is ready.
    pub(super) fn follow(&self, cluster: &Cluster, command: &str) -> Result<()> {
        let registry = self.registry.name();
        let command = command.replace(&format!("oci://{}", PUBLISHED[0]), &format!("oci://{registry}"));
        let command = command.replace(&format!("oci://{MIRROR}"), &format!("oci://{registry}"));
        let command = command.replace("VERSION", VERSION);
        let mut helm = cluster.helm();
        self.keep_files(&mut helm).args(command.split_whitespace().skip(1));
        run::stdout(helm.args(["--plain-http", "--wait", "--timeout", "5m"])).map(drop)
    }

    /// Replaces the installation by one of the chart with the digest that its tag has.
    fn install_by_digest(&self, cluster: &Cluster) -> Result<()> {
        let step = Step::start_long("installing the chart by its digest");
        let uninstall =
            ["uninstall", "quintet", "--namespace", manager::NAMESPACE, "--wait", "--timeout", "5m"];
        run::stdout(cluster.helm().args(uninstall))?;
        let chart = format!("{}:{VERSION}", self.repository("charts/quintet"));
        let digest = run::stdout(self.tool("crane")?.args(["digest", &chart]))?;
        self.follow(cluster, &documented(BY_DIGEST)?.replace("DIGEST", digest.trim()))?;
        let digests = self.digests()?;
        let (_, digest) = digests.iter().find(|(program, _)| program == "quintet").context("no manager")?;
        managers_run(cluster, &format!("{}@{digest}", image::repository("quintet")))?;
        step.done();
        Ok(())
    }

    /// Runs `quintet explain` in a manager's pod, as the documents advise, and from the archive of the release.
    fn explain(&self, cluster: &Cluster) -> Result<()> {
        let step = Step::start("explaining a DaemonJob with the released programs");
        let sample = paths::workspace().join("samples/daemonjob/daemonjob-sample.yaml");
        run::stdout(cluster.kubectl().arg("apply").arg("-f").arg(sample))?;
        let explain = ["explain", "daemonjob/daemonjob-sample", "--namespace", "default"];
        let mut in_pod = cluster.kubectl();
        in_pod.args(["exec", "--namespace", manager::NAMESPACE, "deploy/quintet", "--", "/quintet"]);
        let mut released = self.tool(&self.folder.join("quintet").display().to_string())?;
        released.env("KUBECONFIG", cluster.kubeconfig());
        for command in [in_pod.args(explain), released.args(explain)] {
            let output = run::output(command, None)?;
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            // The exit code depends on whether the pods have ended.
            ensure!(printed.contains("node-1"), "quintet explain does not list node-1: {printed}{error}");
        }
        step.done();
        Ok(())
    }
}

/// Fails unless every pod of the release runs the image, which has a digest. Omits pods that are being deleted.
pub(super) fn managers_run(cluster: &Cluster, image: &str) -> Result<()> {
    let (_, digest) = image.split_once('@').with_context(|| format!("{image} has no digest"))?;
    let get = ["get", "pods", "--namespace", manager::NAMESPACE, "--output", "json"];
    let pods: Value = serde_json::from_str(&run::stdout(cluster.kubectl().args(get))?)
        .context("kubectl get pods printed no JSON")?;
    let pods = pods["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let remaining: Vec<_> =
        pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
    ensure!(remaining.len() == NODES, "the release has {} pods, expected {NODES}", remaining.len());
    for pod in remaining {
        let named = &pod["spec"]["containers"][0]["image"];
        ensure!(*named == image, "a manager has the image {named}, expected {image}");
        let runs = pod["status"]["containerStatuses"][0]["imageID"].as_str().unwrap_or_default();
        ensure!(runs.ends_with(digest), "a manager runs {runs}, expected {digest}");
    }
    Ok(())
}

/// Runs the image of a program in the pod `name`, which must print the program's version.
pub(super) fn prints_its_version(cluster: &Cluster, name: &str, program: &str, image: &str) -> Result<()> {
    let image = format!("--image={image}");
    run::stdout(cluster.kubectl().args(["run", name, &image, "--restart=Never", "--", "--version"]))?;
    let ended = ["wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=2m"];
    run::stdout(cluster.kubectl().args(ended).arg(format!("pod/{name}")))?;
    let version = run::stdout(cluster.kubectl().args(["logs", name]))?;
    ensure!(version.trim() == format!("{program} {VERSION}"), "the pod {name} prints {version:?}");
    Ok(())
}

/// The command of helm in a document that contains `part`.
pub(super) fn documented((document, part): (&str, &str)) -> Result<String> {
    let commands = documents::commands(&paths::workspace().join(document));
    let found = commands.into_iter().find(|command| command.starts_with("helm ") && command.contains(part));
    found.with_context(|| format!("{document} has no command of helm with `{part}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_install_the_published_chart() {
        for which in [BY_VERSION, BY_DIGEST] {
            let command = documented(which).unwrap();
            let begin = format!("helm install quintet oci://{}", image::repository("charts/quintet"));
            assert!(command.starts_with(&begin), "{command}");
            assert!(command.contains(&format!(" --namespace {} ", manager::NAMESPACE)), "{command}");
        }
    }
}
