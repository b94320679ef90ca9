//! The chart's package and the manifests of a release. Both name the images by digest, so that a moved tag changes nothing, and
//! link to the documents of the release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use quintet_localcluster::{image, paths, run};
use serde_json::Value;

use super::VERSION;
use crate::mutants;
use crate::scratch::Scratch;

/// The files of the chart that name images or documents.
const EDITED: [&str; 3] = ["Chart.yaml", "values.yaml", "README.md"];

/// The file of the chart with the digest of the manager's image. A chart in a checkout does not have it.
const DIGEST: &str = "files/image-digest";

/// The images of a release: their programs and digests.
#[derive(Clone, Debug)]
pub(super) struct Pins(pub Vec<(&'static str, String)>);

impl Pins {
    fn digest(&self, program: &str) -> Result<&str> {
        let pinned = self.0.iter().find(|(one, _)| *one == program);
        pinned.map(|(_, digest)| digest.as_str()).with_context(|| format!("{program} has no image"))
    }

    /// The reference to an image by its digest.
    pub fn reference(&self, program: &str) -> Result<String> {
        Ok(by_digest(program, self.digest(program)?))
    }

    /// A text of this version: images have digests instead of tags, and links lead to the tag instead of the branch.
    pub fn released(&self, text: &str) -> String {
        let text = text.replace("/blob/main/", &format!("/blob/v{VERSION}/"));
        self.0.iter().fold(text, |text, (program, digest)| {
            text.replace(&image::name(program), &by_digest(program, digest))
        })
    }
}

fn by_digest(program: &str, digest: &str) -> String {
    format!("{}@{digest}", image::repository(program))
}

/// The chart of a release.
pub(super) struct Chart {
    /// The output of `helm package`.
    pub package: PathBuf,
    /// The content of Chart.yaml.
    pub metadata: Value,
}

/// Packages the chart, with the images of this release as its defaults, into the folder `output`.
pub(super) fn chart(helm: &Path, pins: &Pins, output: &Path) -> Result<Chart> {
    let scratch = Scratch::new("release-chart")?;
    let copy = scratch.0.join("quintet");
    mutants::sync(&paths::workspace().join("charts/quintet"), &copy).context("cannot copy the chart")?;
    let mut metadata = Value::Null;
    for name in EDITED {
        let file = copy.join(name);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let released = pins.released(&text);
        ensure!(released != text, "{name} of the chart names no image: update EDITED in xtask/src/release");
        if name == "Chart.yaml" {
            metadata = serde_saphyr::from_str(&released).context("Chart.yaml is not YAML")?;
        }
        fs::write(&file, released).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let file = copy.join(DIGEST);
    fs::write(&file, format!("{}\n", pins.digest("quintet")?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut package = Command::new(helm);
    // Without this variable, helm writes the times of the files.
    package.env("SOURCE_DATE_EPOCH", image::created()?.to_string());
    run::stdout(package.arg("package").arg(&copy).arg("--destination").arg(output))?;
    let package = output.join(format!("quintet-{VERSION}.tgz"));
    check(helm, pins, &package)?;
    Ok(Chart { package, metadata })
}

/// Fails unless the packaged chart runs the images of the release by default, and other images if the user names them.
fn check(helm: &Path, pins: &Pins, package: &Path) -> Result<()> {
    let other = format!("sha256:{}", "0".repeat(64));
    let cases = [
        (String::new(), pins.reference("quintet")?),
        // The digests of a mirror are the same.
        (
            "image.registry=r.example".to_owned(),
            pins.reference("quintet")?.replacen(image::PUBLISHED[0], "r.example", 1),
        ),
        ("image.tag=other".to_owned(), image::repository("quintet:other")),
        (format!("image.digest={other}"), by_digest("quintet", &other)),
    ];
    for (set, manager) in cases {
        let mut template = Command::new(helm);
        template.args(["template", "quintet"]).arg(package);
        if !set.is_empty() {
            template.args(["--set", &set]);
        }
        let rendered = run::stdout(&mut template)?;
        for image in [format!("image: \"{manager}\""), pins.reference("pulsar-consumer")?] {
            ensure!(rendered.contains(&image), "the packaged chart with {set:?} does not run {image}");
        }
    }
    Ok(())
}

/// Builds a folder of `config` with kustomize, for this release.
pub(super) fn manifests(kubectl: &Path, pins: &Pins, folder: &str) -> Result<String> {
    let mut kubectl = Command::new(kubectl);
    let manifests =
        run::stdout(kubectl.arg("kustomize").arg(paths::workspace().join("config").join(folder)))?;
    Ok(pins.released(&manifests))
}

/// Builds the manifests of the whole installation. Fails unless they run the images of the release.
pub(super) fn installation(kubectl: &Path, pins: &Pins) -> Result<String> {
    let manifests = manifests(kubectl, pins, "default")?;
    for program in ["quintet", "pulsar-consumer"] {
        let image = pins.reference(program)?;
        ensure!(manifests.contains(&image), "config/default does not run {image}");
    }
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins() -> Pins {
        Pins(vec![("quintet", "sha256:aa".to_owned()), ("pulsar-consumer", "sha256:bb".to_owned())])
    }

    #[test]
    fn a_released_text_names_digests_and_the_tag() {
        let text = format!(
            "image: {}\nflag: --image={}\nurl: https://example.com/q/blob/main/docs/a.md\n",
            image::name("quintet"),
            image::name("pulsar-consumer"),
        );
        assert_eq!(
            pins().released(&text),
            format!(
                "image: ghcr.io/quintet-operator/quintet@sha256:aa\n\
                 flag: --image=ghcr.io/quintet-operator/pulsar-consumer@sha256:bb\n\
                 url: https://example.com/q/blob/v{VERSION}/docs/a.md\n"
            )
        );
        assert!(pins().reference("other").is_err());
    }

    #[test]
    fn the_edited_files_of_the_chart_name_images() {
        for name in EDITED {
            let file = paths::workspace().join("charts/quintet").join(name);
            let text = fs::read_to_string(&file).unwrap();
            assert_ne!(pins().released(&text), text, "{name}");
        }
        let chart = paths::workspace().join("charts/quintet");
        assert!(!chart.join(DIGEST).exists(), "a chart in a checkout must run the image of its version");
        let helpers = fs::read_to_string(chart.join("templates/_helpers.tpl")).unwrap();
        assert!(helpers.contains(&format!(".Files.Get \"{DIGEST}\"")));
    }
}
