//! The manifests for Argo CD and Flux in samples/gitops: they name this version, and the chart accepts their values. The
//! end-to-end tests of the documents show the manifests to an API server that has the definitions of these tools.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use quintet_localcluster::paths;
use serde_json::{Value, json};

use super::manifests::Manifests;
use super::{RELEASE, Scratch, Tools, chart};

/// The chart's folder, relative to the repository's root.
const FOLDER: &str = "charts/quintet";

/// The time that the HelmRelease gives Helm, in seconds.
const TIMEOUT: (&str, u64) = ("5m", 300);

/// Fails if a manifest does not install this version of the chart.
pub(super) fn install_the_chart(tools: &Tools) -> Result<()> {
    let tag = json!(concat!("v", env!("CARGO_PKG_VERSION")));

    let argo_cd = objects("argo-cd.yaml")?;
    let application = &argo_cd[0];
    let source = &application["spec"]["source"];
    ensure!(source["targetRevision"] == tag && source["path"] == FOLDER, "{source:#}");
    let names = [&source["helm"]["releaseName"], &application["metadata"]["name"]];
    ensure!(
        names == [RELEASE[0], RELEASE[0]],
        "Argo CD may write the Application's name to a label: {names:?}"
    );
    ensure!(application["spec"]["destination"]["namespace"] == RELEASE[1], "{application:#}");
    let rendered = render(tools, &source["helm"]["valuesObject"])?;
    let mut hooks = rendered.all().iter().filter(|object| is_hook(object));
    ensure!(hooks.next().is_none(), "Argo CD would get a hook");

    let flux = objects("flux.yaml")?;
    let [repository, release] = [&flux[0]["spec"], &flux[1]["spec"]];
    ensure!(repository["ref"]["tag"] == tag, "{repository:#}");
    ensure!(
        release["chart"]["spec"]["chart"] == FOLDER && release["releaseName"] == RELEASE[0],
        "{release:#}"
    );
    let rendered = render(tools, &release["values"])?;
    let job = rendered.all().iter().find(|object| object["kind"] == "Job");
    let deadline = job.context("Flux gets no uninstall Job")?["spec"]["activeDeadlineSeconds"].as_u64();
    let is_within = release["timeout"] == TIMEOUT.0 && deadline.is_some_and(|deadline| deadline < TIMEOUT.1);
    ensure!(
        is_within,
        "Flux gives up after {}, before the uninstall Job ({deadline:?} s)",
        release["timeout"]
    );
    Ok(())
}

fn is_hook(object: &Value) -> bool {
    !object["metadata"]["annotations"]["helm.sh/hook"].is_null()
}

/// The objects of a file in samples/gitops.
fn objects(name: &str) -> Result<Vec<Value>> {
    let file = paths::workspace().join("samples/gitops").join(name);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Manifests::of(&text)?.all().to_vec())
}

/// Renders the chart with these values.
fn render(tools: &Tools, values: &Value) -> Result<Manifests> {
    let scratch = Scratch::new("values")?;
    let file = scratch.0.join("values.yaml");
    // JSON is YAML.
    let text = if values.is_null() { "{}".to_owned() } else { values.to_string() };
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Manifests::of(&tools.render(&chart(), RELEASE[1], &["--values", &file.display().to_string()])?)
}

#[cfg(test)]
mod tests {
    use quintet_localcluster::documents::blocks;

    use super::*;

    #[test]
    fn the_page_shows_the_manifests() {
        let page = blocks(&paths::workspace().join("docs/gitops.md"), "yaml");
        let shown: Vec<String> = page.into_iter().map(|lines| lines.join("\n") + "\n").collect();
        let files = ["argo-cd.yaml", "flux.yaml"]
            .map(|name| fs::read_to_string(paths::workspace().join("samples/gitops").join(name)).unwrap());
        assert_eq!(shown, files);
    }
}
