//! The definitions of the kinds of Argo CD and Flux. No cluster here runs these tools.

use std::path::PathBuf;

use anyhow::Result;

use crate::kube::Kube;
use crate::{chart, paths, run};

/// The definitions: a Go module, a file in it, and the definition's name. The modules contain them beside code, which is not
/// built.
const DEFINITIONS: [(&str, &str, &str); 3] = [
    ("github.com/argoproj/argo-cd/v3", "manifests/crds/application-crd.yaml", "applications.argoproj.io"),
    (
        "github.com/fluxcd/helm-controller",
        "config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",
        "helmreleases.helm.toolkit.fluxcd.io",
    ),
    (
        "github.com/fluxcd/source-controller",
        "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
        "gitrepositories.source.toolkit.fluxcd.io",
    ),
];

/// The files with the definitions. Downloads their modules unless Go has them.
pub fn definitions() -> Result<Vec<PathBuf>> {
    let folder = paths::controlplane().join("gitops");
    let files =
        DEFINITIONS.iter().map(|(module, file, _)| run::go_module(&folder, module).map(|dir| dir.join(file)));
    files.collect()
}

/// Adds the definitions to a cluster, so that its API server validates manifests for these tools.
pub fn install_definitions(kube: &Kube) -> Result<()> {
    for file in definitions()? {
        // An annotation with the whole object, as of a client-side apply, would be too long.
        let apply = ["apply", "--server-side", "--force-conflicts", "-f"];
        run::stdout(kube.kubectl().args(apply).arg(file))?;
    }
    chart::are_established(kube, &DEFINITIONS.map(|(_, _, name)| name))
}
