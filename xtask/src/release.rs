//! `cargo xtask release`: builds the files of a release in one folder, and rehearses their publication. The release workflow
//! publishes them with `.ci/publish`.

mod files;
mod krew;
mod package;
mod platform;
#[cfg(test)]
mod publish;
mod rehearsal;
#[cfg(test)]
mod workflows;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use quintet_localcluster::build::Arch;
use quintet_localcluster::run::{self, print};
use quintet_localcluster::{documents, image, long_tier, paths};
use serde_json::Value;

use crate::dependencies;
use crate::scratch::Scratch;
use platform::{Platform, Programs};

/// `cargo xtask release`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Build the files of a release",
    long_about = "Build the files of a release in one folder: the images with their bills of materials (see cargo xtask image \
    --help), the chart's package, manifests of the definitions and of the whole installation, archives of quintet and of the \
    kubectl plugin for each platform, a krew manifest, DIGESTS and SHA256SUMS. The chart and the manifests name the images by \
    digest.\n\n\
    The version of the release is the version of the workspace in Cargo.toml. Other files must state the same version. \
    deny.toml must allow the licences of all crates in the programs, and each crate that a program contains in two \
    versions.\n\n\
    The commit of a release must have the tag vVERSION, no changed files, and a section for the version in CHANGELOG.md. A \
    release needs programs for Linux and macOS on amd64 and arm64, which `--programs-only` builds on a machine of each \
    kind. The command publishes nothing.\n\n\
    With --dry-run, the command accepts any commit and the programs for Linux that this machine can build, and rehearses the \
    publication in a temporary folder. It signs with a temporary key, publishes to a local registry with .ci/publish, and runs \
    the commands of docs/verify.md. It copies the release with the commands of docs/images.md, and installs the plugin with \
    krew. It installs the chart from the registry on real nodes, which pull the images by digest, and then installs the copy. \
    It builds the files again in a copy of the checkout, and compares them. The last lines name the parts that it did not \
    rehearse."
)]
pub struct Args {
    /// Accept a commit that is not ready for a release, and rehearse the publication
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run, build only the files
    #[arg(long, requires = "dry_run")]
    files_only: bool,
    /// With --files-only, build programs for this processor (default: this machine's processor). Repeat the flag to add more
    /// processors
    #[arg(long, value_name = "ARCH", requires = "files_only")]
    arch: Vec<Arch>,
    /// Use the programs in the subfolders of this folder, such as linux-amd64, instead of building programs
    #[arg(long, value_name = "DIR", conflicts_with = "arch")]
    programs: Option<PathBuf>,
    /// Build and run only this machine's programs, in a subfolder that `--programs` reads on another machine
    #[arg(long, conflicts_with_all = ["dry_run", "programs"])]
    programs_only: bool,
    /// The folder for the files (default: target/release-files; with --dry-run, unless with --files-only, a temporary folder;
    /// with --programs-only target/release-programs). The command replaces an earlier release in this folder
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

impl Args {
    /// The processors to build programs for.
    fn arches(&self) -> Result<Vec<Arch>> {
        if let Some(missing) = image::missing(&self.arch)? {
            bail!("{missing}");
        }
        let mut arches = self.arch.clone();
        if arches.is_empty() {
            arches.extend(Arch::HOST);
        }
        // A build for another processor takes minutes.
        if self.dry_run && !self.files_only {
            for arch in Arch::ALL.into_iter().filter(|arch| Some(*arch) != Arch::HOST) {
                if arch.missing()?.is_none() {
                    arches.push(arch);
                }
            }
        }
        Ok(arches)
    }
}

/// The version of the release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file with the checksums of the other files.
const SUMS: &str = "SHA256SUMS";

/// The file that `.ci/publish` adds.
const SIGNED: &str = "SHA256SUMS.sigstore.json";

/// Builds the release, and prints its files or the parts that were not rehearsed.
pub fn run(args: &Args) -> Result<()> {
    let folder = |name: &str| args.output.clone().unwrap_or_else(|| paths::target().join(name));
    if args.programs_only {
        return platform::build_into(&folder("release-programs"), Platform::host()?);
    }
    let began = Instant::now();
    // Check first, because the build takes long.
    no_objections(&disagreements(VERSION, &read)?)?;
    if !args.dry_run {
        no_objections(&unfit(VERSION, &read("CHANGELOG.md")?)?)?;
    }
    no_objections(&dependencies::objections(&image::packages())?)?;
    let scratch = Scratch::new("release")?;
    let programs = if let Some(folder) = &args.programs {
        Programs::read(folder)?
    } else {
        // A release reads the programs from a folder too.
        let folder = scratch.0.join("programs");
        for arch in args.arches()? {
            platform::build_into(&folder, Platform::linux(arch))?;
        }
        Programs::read(&folder)?
    };
    let missing = programs.missing();
    if !args.dry_run && !missing.is_empty() {
        bail!("a release needs programs for {}: build them with --programs-only", missing.join(", "));
    }
    if !args.dry_run || args.files_only {
        return build(&programs, &folder("release-files"));
    }
    let files = match &args.output {
        Some(output) => std::path::absolute(output).context("cannot find the current directory")?,
        None => scratch.0.join("files"),
    };
    build(&programs, &files)?;
    let result = rehearsal::run(&files, &scratch.0, &programs)?;
    long_tier::passed("cargo xtask", &result, began.elapsed());
    Ok(())
}

/// Writes the files of a release to an empty folder, and prints them.
fn build(programs: &Programs, output: &Path) -> Result<()> {
    make_room(output)?;
    let made = files::make(programs, output);
    if made.is_err() {
        // The folder was empty: remove the partial release, so that the next attempt finds an empty folder.
        for name in contents(output)?.keys() {
            let _ = fs::remove_file(output.join(name));
        }
    }
    made?;
    let lines = contents(output)?
        .iter()
        .map(|(name, bytes)| format!("{} {} kB\n", output.join(name).display(), bytes.len().div_ceil(1_000)))
        .collect::<Vec<_>>();
    print(lines.concat())
}

fn no_objections(objections: &[String]) -> Result<()> {
    if objections.is_empty() { Ok(()) } else { bail!("cannot build a release: {}", objections.join("; ")) }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(paths::workspace().join(path)).with_context(|| format!("cannot read {path}"))
}

fn write(file: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// The files that state another version than the workspace, one sentence each.
fn disagreements(version: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<Vec<String>> {
    let yaml = |path: &str| -> Result<Value> {
        serde_saphyr::from_str(&read(path)?).with_context(|| format!("{path} is not YAML"))
    };
    let (chart, kustomization) =
        (yaml("charts/quintet/Chart.yaml")?, yaml("config/manager/kustomization.yaml")?);
    let stated = [
        ("charts/quintet/Chart.yaml: version", &chart["version"]),
        ("charts/quintet/Chart.yaml: appVersion", &chart["appVersion"]),
        ("config/manager/kustomization.yaml: newTag", &kustomization["images"][0]["newTag"]),
    ];
    let wrong = stated.iter().filter(|(_, value)| value.as_str() != Some(version));
    let mut reasons: Vec<String> = wrong
        .map(|(place, value)| format!("{place} is {value}, but the version in Cargo.toml is {version}"))
        .collect();
    let ours = image::repository("");
    for path in ["charts/quintet/Chart.yaml", "charts/quintet/values.yaml", "config/manager/manager.yaml"] {
        let text = read(path)?;
        let words = text.split(|c: char| c.is_whitespace() || c == '=');
        let images = words.filter(|word| word.starts_with(&ours));
        let old = images.filter(|image| image.rsplit(':').next() != Some(version));
        reasons.extend(old.map(|image| format!("{path} names {image}, but the version is {version}")));
    }
    Ok(reasons)
}

/// The reasons why this commit is not a release.
fn unfit(version: &str, changelog: &str) -> Result<Vec<String>> {
    let git = |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace()));
    let mut reasons = Vec::new();
    let tag = format!("v{version}");
    if !git(&["tag", "--points-at", "HEAD"])?.lines().any(|line| line == tag) {
        reasons.push(format!("the commit has no tag {tag}"));
    }
    if !git(&["status", "--porcelain"])?.trim().is_empty() {
        reasons.push("the checkout has uncommitted changes".to_owned());
    }
    if !has_section(changelog, version) {
        reasons.push(format!("CHANGELOG.md has no section [{version}]"));
    }
    let mut texts = vec![("CHANGELOG.md".to_owned(), changelog.to_owned())];
    for document in documents::all() {
        let name = document.strip_prefix(paths::workspace()).unwrap_or(&document).display().to_string();
        texts.push((name.clone(), read(&name)?));
    }
    let denials = texts.iter().filter(|(_, text)| denies_releases(text));
    reasons.extend(denials.map(|(name, _)| format!("{name} states that no release is published")));
    let chart = read("charts/quintet/Chart.yaml")?;
    if !version.contains('-') && chart.contains("artifacthub.io/prerelease: \"true\"") {
        reasons.push(format!("charts/quintet/Chart.yaml marks {version} as a prerelease"));
    }
    Ok(reasons)
}

/// Whether a document of the project states that no release exists.
fn denies_releases(text: &str) -> bool {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    ["No release is published", "not published yet"].iter().any(|words| text.contains(words))
}

fn has_section(changelog: &str, version: &str) -> bool {
    changelog.lines().any(|line| line.starts_with(&format!("## [{version}]")))
}

/// Empties the folder of an earlier release. Fails if the folder contains other files, and does not remove them.
fn make_room(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if let Ok(text) = fs::read_to_string(folder.join(SUMS)) {
        for name in text.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name) {
            // The check below finds a file that could not be removed.
            let _ = fs::remove_file(folder.join(name));
        }
        for name in [SUMS, SIGNED] {
            let _ = fs::remove_file(folder.join(name));
        }
    }
    match contents(folder)?.keys().next() {
        None => Ok(()),
        Some(name) => {
            bail!("{} contains {name}, which is not part of a release: use an empty folder", folder.display())
        }
    }
}

/// The files of a folder, by name.
fn contents(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let read = || {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
        }
        Ok::<_, std::io::Error>(files)
    };
    read().with_context(|| format!("cannot read {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_states_the_workspaces_version() {
        assert_eq!(disagreements(VERSION, &read).unwrap(), [""; 0]);
    }

    #[test]
    fn names_a_file_with_another_version() {
        let (new, old) = (image::repository("a:1.0.0"), image::repository("b:0.9.0"));
        let read = |path: &str| {
            Ok(match path {
                "charts/quintet/Chart.yaml" => {
                    format!(
                        "version: 1.0.0\nappVersion: \"0.9.0\"\nannotations:\n  a: |\n    - image: {new}\n      image: {old}\n"
                    )
                }
                "charts/quintet/values.yaml" => format!("image: {old}\n"),
                "config/manager/manager.yaml" => format!("args:\n  - --image={old}\n  - --image={new}\n"),
                _ => "images:\n  - newTag: 1.0.0\n".to_owned(),
            })
        };
        assert_eq!(
            disagreements("1.0.0", &read).unwrap(),
            [
                "charts/quintet/Chart.yaml: appVersion is \"0.9.0\", but the version in Cargo.toml is 1.0.0"
                    .to_owned(),
                format!("charts/quintet/Chart.yaml names {old}, but the version is 1.0.0"),
                format!("charts/quintet/values.yaml names {old}, but the version is 1.0.0"),
                format!("config/manager/manager.yaml names {old}, but the version is 1.0.0"),
            ]
        );
    }

    #[test]
    fn finds_the_section_of_a_release() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n";
        assert!(has_section(changelog, "0.2.0"));
        assert!(!has_section(changelog, "0.2.1"));
    }

    #[test]
    fn finds_documents_that_deny_releases() {
        assert!(denies_releases("You need Kubernetes. No release\nis published yet."));
        assert!(denies_releases("their images, which are not\npublished yet:"));
        assert!(!denies_releases("Verify the images after a release is published."));
    }

    #[test]
    fn removes_only_files_of_a_release() {
        let folder = std::env::temp_dir().join(format!("quintet-release-{}", std::process::id()));
        make_room(&folder).unwrap();
        fs::write(folder.join("a.tar"), "a").unwrap();
        fs::write(folder.join(SUMS), "00  a.tar\n").unwrap();
        fs::write(folder.join(SIGNED), "{}").unwrap();
        make_room(&folder).unwrap();
        assert!(contents(&folder).unwrap().is_empty());
        fs::write(folder.join("thesis.txt"), "mine").unwrap();
        let error = make_room(&folder).unwrap_err().to_string();
        assert!(error.contains("thesis.txt"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
