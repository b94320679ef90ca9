//! The copy of a release in another registry, with the commands of docs/images.md. The copies are in a folder of the local
//! registry, and the nodes know this registry also by the name in the document.

use anyhow::{Context, Result, bail, ensure};
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::image::PUBLISHED;
use quintet_localcluster::progress::Step;
use quintet_localcluster::{documents, manager, paths, run};

use super::install::{documented, managers_run, prints_its_version};
use super::{MIRROR, Rehearsal};
use crate::release::VERSION;

/// The document that describes the copy.
const DOCUMENT: &str = "docs/images.md";

/// The document, and a part of its command that installs the copy.
const COPY: (&str, &str) = (DOCUMENT, "oci://registry.example.com/");

/// The folder for the copies in the registry.
const FOLDER: &str = "mirror";

impl Rehearsal<'_> {
    /// Copies the release. Fails unless the copies have the digests of the release.
    pub(super) fn copy(&self) -> Result<()> {
        let step = Step::start("copying the release with the commands of docs/images.md");
        let registry = self.registry.name();
        for command in copies() {
            let command = command.replace(PUBLISHED[0], &registry).replace(MIRROR, &registry);
            let command = command.replace("VERSION", VERSION);
            let words: Vec<_> = command.split_whitespace().collect();
            let [crane, copy, from, to] = words[..] else { bail!("{command} has more than two images") };
            run::stdout(self.tool(crane)?.args([copy, from, to]))?;
            let digest = |image: &str| run::stdout(self.tool(crane)?.args(["digest", image]));
            ensure!(digest(from)? == digest(to)?, "{to} has another digest than {from}");
        }
        step.done();
        Ok(())
    }

    /// Installs the copy of the chart, which must run the copies of the images.
    pub(super) fn install_copy(&self, cluster: &Cluster) -> Result<()> {
        let step = Step::start_long("installing the chart and the images from a mirror");
        let command = documented(COPY)?;
        let digests = self.digests()?;
        let consumer = copied(&digests, "pulsar-consumer");
        let (_, digest) = consumer.split_once('@').unwrap_or_default();
        self.follow(cluster, &command.replace("DIGEST", digest))?;
        managers_run(cluster, &copied(&digests, "quintet"))?;
        let path = "jsonpath={.items[*].spec.template.spec.containers[*].args}";
        let get = ["get", "deployments", "--namespace", manager::NAMESPACE, "--output", path];
        let args = run::stdout(cluster.kubectl().args(get))?;
        let flag = format!("--pulsar-consumer-image={consumer}");
        ensure!(args.contains(&flag), "the manager does not have the flag {flag}: {args}");
        prints_its_version(cluster, "pulsar-consumer-copy", "pulsar-consumer", &consumer)?;
        step.done();
        Ok(())
    }
}

/// The commands of the document that copy the release.
fn copies() -> Vec<String> {
    let commands = documents::commands(&paths::workspace().join(DOCUMENT));
    commands.into_iter().filter(|command| command.starts_with("crane copy ")).collect()
}

/// The command of the document that installs the plugin from files.
pub(super) fn install_plugin() -> Result<String> {
    let commands = documents::commands(&paths::workspace().join(DOCUMENT));
    let found = commands.into_iter().find(|command| command.starts_with("kubectl krew install "));
    found.with_context(|| format!("{DOCUMENT} has no command `kubectl krew install …`"))
}

/// The reference to the copy of an image, by the digest of the release.
fn copied(digests: &[(String, String)], program: &str) -> String {
    let digest = digests.iter().find(|(one, _)| one == program).map_or("", |(_, digest)| digest.as_str());
    format!("{MIRROR}/{FOLDER}/{}/{program}@{digest}", PUBLISHED[1])
}

#[cfg(test)]
mod tests {
    use quintet_localcluster::image;

    use super::*;

    #[test]
    fn a_document_copies_what_the_chart_needs() {
        let expected = ["quintet", "pulsar-consumer", "charts/quintet"].map(|name| {
            let to = image::repository(name).replace(PUBLISHED[0], &format!("{MIRROR}/{FOLDER}"));
            format!("crane copy {}:VERSION {to}:VERSION", image::repository(name))
        });
        assert_eq!(copies(), expected);
    }

    #[test]
    fn a_document_installs_the_copies() {
        let command = documented(COPY).unwrap();
        let consumer = copied(&[("pulsar-consumer".to_owned(), "DIGEST".to_owned())], "pulsar-consumer");
        for part in [
            format!("oci://{MIRROR}/{FOLDER}/{}/charts/quintet --version VERSION", PUBLISHED[1]),
            format!("--reset-then-reuse-values --set global.imageRegistry={MIRROR}/{FOLDER}"),
            format!("--set pulsarConsumer.image={consumer}"),
        ] {
            assert!(command.contains(&part), "{command} lacks {part}");
        }
    }
}
