//! The files of a release.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::image::{self, Built};
use quintet_localcluster::progress::Step;
use quintet_localcluster::{paths, run};
use sha2::{Digest as _, Sha256};

use super::package::{self, Pins};
use super::platform::{NAMES, Platform, Programs};
use super::{SUMS, VERSION, contents, krew, write};

/// The file with the digests of the images and of the chart, which `.ci/publish` reads. Each line has a kind, a repository, a
/// digest and a file: an archive to push, or a bill of materials to attest.
pub(super) const DIGESTS: &str = "DIGESTS";

/// The repository of the chart. Its last word is the chart's name, which helm requires.
const CHART: &str = "charts/quintet";

/// Writes the files to an empty folder.
pub(super) fn make(programs: &Programs, output: &Path) -> Result<()> {
    let tools = binaries::ensure(&["helm", "kubectl"])?;
    let images = image::write(&programs.of_images, output)?;
    images.iter().try_for_each(image::check)?;
    let pins = Pins(images.iter().map(|image| (image.program, image.digest.clone())).collect());

    let step = Step::start("packing the chart, the manifests and the programs");
    let chart = package::chart(&tools.path("helm")?, &pins, output)?;
    let package = &chart.package;
    let bytes = fs::read(package).with_context(|| format!("cannot read {}", package.display()))?;
    let (archive, digest) = image::of_chart(&chart.metadata, &bytes)?;
    let name = format!("quintet-chart-{VERSION}.tar");
    write(&output.join(&name), archive)?;
    write(&output.join(DIGESTS), digests(&images, (name.as_str(), digest.as_str())))?;
    let kubectl = tools.path("kubectl")?;
    let definitions = package::manifests(&kubectl, &pins, "crd")?;
    for (name, manifests) in [("crds", definitions), ("install", package::installation(&kubectl, &pins)?)] {
        write(&output.join(format!("quintet-{VERSION}-{name}.yaml")), manifests)?;
    }
    let plugins = archives(programs, output)?;
    write(&output.join("quintet-krew.yaml"), krew::manifest(&plugins))?;

    let sums = contents(output)?;
    let sums = sums.iter().map(|(name, bytes)| format!("{}  {name}\n", sum(bytes))).collect::<Vec<_>>();
    write(&output.join(SUMS), sums.concat())?;
    step.done();
    Ok(())
}

/// Writes an archive of each program for each platform. Returns the sums of the plugin's archives.
fn archives(programs: &Programs, output: &Path) -> Result<BTreeMap<Platform, String>> {
    let license = paths::workspace().join("LICENSE");
    let license = fs::read(&license).with_context(|| format!("cannot read {}", license.display()))?;
    let mut plugins = BTreeMap::new();
    for (platform, program) in &programs.quintet {
        for name in NAMES {
            let archive =
                image::tar(&[(name, 0o755, program.as_slice()), ("LICENSE", 0o644, license.as_slice())])?;
            let archive = image::gzip(&archive)?;
            if name == NAMES[1] {
                plugins.insert(*platform, sum(&archive));
            }
            write(&output.join(krew::archive(name, *platform)), archive)?;
        }
    }
    Ok(plugins)
}

fn sum(bytes: &[u8]) -> String {
    run::hex(&Sha256::digest(bytes))
}

/// The content of [`DIGESTS`]. A bill of materials follows the image of its architecture.
fn digests(images: &[Built], (chart, digest): (&str, &str)) -> String {
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut lines = Vec::new();
    for Built { program, file, bills, digest, images } in images {
        lines.push(format!("image {program} {digest} {}\n", name(file)));
        for ((_, digest, _), bill) in images.iter().zip(bills) {
            lines.push(format!("sbom {program} {digest} {}\n", name(bill)));
        }
    }
    lines.push(format!("chart {CHART} {digest} {chart}\n"));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_localcluster::build::Arch;

    #[test]
    fn digests_list_images_before_their_bills() {
        let built = Built {
            program: "quintet",
            file: "/r/quintet-1.tar".into(),
            bills: vec!["/r/a.cdx.json".into(), "/r/b.cdx.json".into()],
            digest: "sha256:00".to_owned(),
            images: vec![(Arch::Amd64, "sha256:aa".to_owned(), 1), (Arch::Arm64, "sha256:bb".to_owned(), 1)],
        };
        assert_eq!(
            digests(&[built], ("chart.tar", "sha256:cc")),
            "image quintet sha256:00 quintet-1.tar\n\
             sbom quintet sha256:aa a.cdx.json\n\
             sbom quintet sha256:bb b.cdx.json\n\
             chart charts/quintet sha256:cc chart.tar\n"
        );
    }
}
