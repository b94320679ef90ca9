//! The rehearsal of a publication: everything that the release workflow does with the files of a release, on this machine. A
//! temporary key replaces the identity of the workflow, and a local registry replaces ghcr.io.

mod again;
mod install;
mod mirror;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use quintet_localcluster::build::Arch;
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::distribution::Registry;
use quintet_localcluster::image::PUBLISHED;
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, Group, Log, print};
use quintet_localcluster::{documents, paths};

use super::files::DIGESTS;
use super::platform::{NAMES, Platform, Programs};
use super::{VERSION, krew};

/// The parts that need the release workflow.
const ONLY_THE_WORKFLOW: &str =
    "keyless signatures, the transparency log, and the release page of the repository";

/// The registry to which docs/images.md copies a release.
const MIRROR: &str = "registry.example.com";

/// The platform of the archives in docs/images.md.
const PLATFORM: &str = "linux-amd64";

/// The environment variables from which `.ci/publish` writes the provenance, with values for a rehearsal.
const WORKFLOW: [(&str, &str); 9] = [
    ("GITHUB_SERVER_URL", "https://github.com"),
    ("GITHUB_REPOSITORY", "quintet-operator/quintet"),
    ("GITHUB_REPOSITORY_ID", "1"),
    ("GITHUB_REPOSITORY_OWNER_ID", "2"),
    ("GITHUB_EVENT_NAME", "push"),
    ("GITHUB_WORKFLOW_REF", "quintet-operator/quintet/.github/workflows/release.yaml@refs/tags/rehearsal"),
    ("GITHUB_RUN_ID", "3"),
    ("GITHUB_RUN_ATTEMPT", "1"),
    ("RUNNER_ENVIRONMENT", "rehearsal"),
];

/// The files, the tools and the registry of a rehearsal.
struct Rehearsal<'a> {
    /// The files of the release.
    files: &'a Path,
    /// The folder for everything that the rehearsal writes.
    folder: &'a Path,
    /// The folder with the tools.
    tools: PathBuf,
    registry: Registry,
}

/// Rehearses the publication of `files` with `programs`, and prints the parts that were not rehearsed. Writes only to `folder`
/// and `files`. Returns the result for the record.
pub(super) fn run(files: &Path, folder: &Path, programs: &Programs) -> Result<String> {
    let tools = binaries::ensure(&[&binaries::RELEASE[..], &["helm", "kubectl"]].concat())?;
    let rehearsal = Rehearsal {
        files,
        folder,
        tools: folder.join("tools"),
        registry: Registry::start(&folder.join("registry"))?,
    };
    for name in ["tools", "home"] {
        fs::create_dir_all(folder.join(name))
            .with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    binaries::link(&tools, &rehearsal.tools)?;
    rehearsal.make_keys()?;
    rehearsal.publish()?;
    rehearsal.must_reject()?;
    rehearsal.verify()?;
    rehearsal.copy()?;
    rehearsal.plugin()?;
    let mut omitted = vec![ONLY_THE_WORKFLOW.to_owned()];
    omitted.extend(programs.missing().iter().map(|platform| format!("the programs for {platform}")));
    let arches = programs.arches();
    if arches.len() < Arch::ALL.len() {
        omitted.push("images for several processors".to_owned());
    }
    omitted.extend(rehearsal.install()?.map(|why| format!("the installation on real nodes: {why}")));
    again::compare(files, folder, &arches)?;
    let lines = omitted.iter().map(|part| format!("not rehearsed: {part}\n")).collect::<Vec<_>>();
    print(lines.concat())?;
    Ok(format!("passed, {} parts not rehearsed", omitted.len()))
}

impl Rehearsal<'_> {
    /// A tool, which writes its own files to the rehearsal's folder.
    fn tool(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(program);
        command.env("PATH", self.path()?).env("COSIGN_PASSWORD", "");
        self.keep_files(&mut command).current_dir(self.files).stdin(Stdio::null());
        Ok(command)
    }

    /// Lets a program keep its own files, such as caches, in the rehearsal's folder.
    fn keep_files<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DOCKER_CONFIG"] {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.join("home")).env("TMPDIR", self.folder)
    }

    /// A `PATH` on which the tools come first, and then the plugins of krew.
    fn path(&self) -> Result<OsString> {
        let mut folders = vec![self.tools.clone(), self.folder.join("krew/bin")];
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        env::join_paths(folders).context("the PATH is not valid")
    }

    /// The repository of an image, or of another content of the registry.
    fn repository(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.registry.name(), PUBLISHED[1])
    }

    fn key(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// Makes the key of the rehearsal, and another one that signs nothing.
    fn make_keys(&self) -> Result<()> {
        for name in ["signer", "other"] {
            let prefix = self.key(name);
            run::stdout(self.tool("cosign")?.args(["generate-key-pair", "--output-key-prefix", &prefix]))?;
        }
        Ok(())
    }

    /// Runs `.ci/publish` on the files, for a namespace of the registry. Returns whether it succeeded, and its log.
    fn run_publish(&self, name: &str, namespace: &str) -> Result<(bool, Log)> {
        let mut step = Step::start_long(format!("{name} with .ci/publish"));
        let log = Log::fresh(self.folder.join("publish.log"))?;
        let signer =
            format!("--key {} --use-signing-config=false --tlog-upload=false", self.key("signer.key"));
        let mut command = self.tool("bash")?;
        command.arg(paths::workspace().join(".ci/publish")).arg(self.files);
        command.arg(format!("{}/{namespace}", self.registry.name())).arg(VERSION);
        command.envs(WORKFLOW).env("GITHUB_SHA", "0".repeat(40)).env("COSIGN_ARGUMENTS", signer);
        command.stdout(log.open()?).stderr(log.open()?);
        let status = Group::spawn(&mut command)?.wait(|| step.tick())?;
        step.done();
        Ok((status.success(), log))
    }

    fn publish(&self) -> Result<()> {
        let (is_published, log) = self.run_publish("publishing to a local registry", PUBLISHED[1])?;
        ensure!(is_published, ".ci/publish failed; {}", log.tail(30));
        Ok(())
    }

    /// Controls, without which the successes would prove nothing.
    fn must_reject(&self) -> Result<()> {
        let another = format!("{}:{VERSION}", self.repository("pulsar-consumer"));
        let taken = format!("{}/taken/quintet:{VERSION}", self.registry.name());
        run::stdout(self.tool("crane")?.args(["copy", &another, &taken]))?;
        let (is_published, log) = self.run_publish("publishing where another image has the tag", "taken")?;
        ensure!(!is_published, ".ci/publish replaced a tag that exists");
        let tail = log.tail(5);
        ensure!(tail.contains("a release replaces no tag"), ".ci/publish failed for another reason; {tail}");

        let step = Step::start("rejecting another key, and an image without a signature");
        let image = format!("{}:{VERSION}", self.repository("quintet"));
        let verify = |image: &str, key: &str| {
            let key = self.key(key);
            let args = ["verify", "--key", &key, "--insecure-ignore-tlog", image];
            Ok::<_, anyhow::Error>(run::output(self.tool("cosign")?.args(args), None)?.status.success())
        };
        ensure!(verify(&image, "signer.pub")?, "cosign does not accept the signature of {image}");
        ensure!(!verify(&image, "other.pub")?, "cosign accepts {image} with a key that did not sign it");
        let unsigned = format!("{}:{VERSION}", self.repository("unsigned"));
        run::stdout(self.tool("crane")?.args(["copy", &image, &unsigned]))?;
        ensure!(!verify(&unsigned, "signer.pub")?, "cosign accepts {unsigned}, which has no signature");
        step.done();
        Ok(())
    }

    /// Runs the commands of docs/verify.md.
    fn verify(&self) -> Result<()> {
        let step = Step::start_long("verifying with the commands of docs/verify.md");
        let document = paths::workspace().join("docs/verify.md");
        let (registry, key) = (self.registry.name(), self.key("signer.pub"));
        // The installation on real nodes installs the chart.
        let commands = documents::commands(&document).into_iter();
        for command in commands.filter(|command| !command.starts_with("helm install ")) {
            let command = rehearsed(&command, &registry, &key);
            run::stdout(self.tool("bash")?.args(["-euo", "pipefail", "-c", &command]))
                .with_context(|| format!("a command of docs/verify.md failed: {command}"))?;
        }
        step.done();
        Ok(())
    }

    /// Unpacks the archive of `quintet`, and installs the plugin with krew.
    fn plugin(&self) -> Result<()> {
        let step = Step::start("installing the plugin with krew");
        let host = Platform::host()?;
        let archive = |name| self.files.join(krew::archive(name, host));
        run::stdout(self.tool("tar")?.arg("-xzf").arg(archive(NAMES[0])).arg("-C").arg(self.folder))?;
        let mut krew = self.tool("krew")?;
        krew.env("KREW_ROOT", self.folder.join("krew")).env("KREW_NO_UPGRADE_CHECK", "1").arg("install");
        for word in mirror::install_plugin()?.replace("VERSION", VERSION).split_whitespace().skip(3) {
            let (name, file) = word.split_once('=').with_context(|| format!("{word} is not a flag"))?;
            krew.arg(flag(name, &self.files.join(file.replace(PLATFORM, &host.name()))));
        }
        run::stdout(&mut krew)?;
        let unpacked = self.folder.join(NAMES[0]).display().to_string();
        let programs: [(&str, &[&str]); 2] =
            [(&unpacked, &["version"]), ("kubectl", &["quintet", "version"])];
        for (program, args) in programs {
            let version = run::stdout(self.tool(program)?.args(args))?;
            ensure!(version.trim() == format!("quintet {VERSION}"), "{program} prints {version:?}");
        }
        step.done();
        Ok(())
    }

    /// The digests of the release by repository.
    fn digests(&self) -> Result<Vec<(String, String)>> {
        let file = self.files.join(DIGESTS);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let images = text.lines().filter_map(|line| line.strip_prefix("image "));
        let found: Vec<_> = images
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?.to_owned(), words.next()?.to_owned()))
            })
            .collect();
        if found.is_empty() {
            bail!("{} names no image", file.display())
        }
        Ok(found)
    }
}

fn flag(name: &str, file: &Path) -> String {
    format!("{name}={}", file.display())
}

/// A command for users as the rehearsal runs it: with this version, the local registry, and a key instead of the identity of
/// the workflow.
fn rehearsed(command: &str, registry: &str, key: &str) -> String {
    let mut words = Vec::new();
    let mut given = command.split_whitespace();
    while let Some(word) = given.next() {
        match word {
            "--certificate-identity" => {
                given.next();
            }
            "--certificate-oidc-issuer" => {
                given.next();
                words.push(format!("--key {} --insecure-ignore-tlog", run::shell_quote(key)));
            }
            word => words.push(word.replace(PUBLISHED[0], registry).replace("VERSION", VERSION)),
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_for_users_gets_the_key_and_the_registry() {
        let command = "cosign verify --certificate-identity https://example.com/a@refs/tags/vVERSION \
            --certificate-oidc-issuer https://issuer.example.com ghcr.io/quintet-operator/quintet:VERSION";
        assert_eq!(
            rehearsed(command, "127.0.0.1:20000", "/a b/k.pub"),
            format!(
                "cosign verify --key '/a b/k.pub' --insecure-ignore-tlog 127.0.0.1:20000/quintet-operator/quintet:{VERSION}"
            )
        );
        assert_eq!(rehearsed("sha256sum --check X", "r", "k"), "sha256sum --check X");
    }

    #[test]
    fn users_verify_the_identity_of_the_release_workflow() {
        let commands = documents::commands(&paths::workspace().join("docs/verify.md"));
        let verifying: Vec<_> =
            commands.iter().filter(|command| command.starts_with("cosign verify")).collect();
        let repository = env!("CARGO_PKG_REPOSITORY");
        let identity =
            format!("--certificate-identity {repository}/.github/workflows/release.yaml@refs/tags/vVERSION ");
        assert!(verifying.len() >= 4, "{verifying:?}");
        for command in verifying {
            let words = command.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(&identity), "{words}");
            assert!(words.contains("--certificate-oidc-issuer https://token.actions.githubusercontent.com "));
        }
    }
}
