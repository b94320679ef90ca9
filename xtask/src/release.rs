//! `cargo xtask release`: builds the files of a release in one folder. The release workflow publishes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use quintet_localcluster::build::Arch;
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, print};
use quintet_localcluster::{image, paths};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::dependencies;

/// `cargo xtask release`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Build the files of a release",
    long_about = "Build the files of a release in one folder: the images with their bills of materials (see cargo xtask image \
    --help), the chart's package, manifests of the definitions and of the whole installation, and SHA256SUMS.\n\n\
    The version of the release is the version of the workspace in Cargo.toml. Other files must state the same version. \
    deny.toml must allow the licences of all crates in the programs, and each crate that a program contains in two \
    versions.\n\n\
    The commit of a release must have the tag vVERSION, no changed files, and a section for the version in CHANGELOG.md. With \
    --dry-run, the command accepts any commit. The command publishes nothing."
)]
pub struct Args {
    /// Accept a commit that is not ready for a release
    #[arg(long)]
    dry_run: bool,
    /// Build images for this processor (default: this machine's processor). Repeat the flag to add more processors
    #[arg(long, value_name = "ARCH")]
    arch: Vec<Arch>,
    /// The folder for the files. The command replaces an earlier release in this folder
    #[arg(long, value_name = "DIR", default_value_os_t = paths::target().join("release-files"))]
    output: PathBuf,
}

/// The version of the release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file with the checksums of the other files.
const SUMS: &str = "SHA256SUMS";

/// Builds the release, and prints its files.
pub fn run(args: &Args) -> Result<()> {
    // Check first, because the build takes long.
    no_objections(&disagreements(VERSION, &read)?)?;
    if !args.dry_run {
        no_objections(&unfit(VERSION, &read("CHANGELOG.md")?))?;
    }
    let arches = if args.arch.is_empty() { Arch::HOST.as_slice() } else { &args.arch };
    no_objections(&dependencies::objections(&image::packages(), arches)?)?;
    make_room(&args.output)?;
    let made = make(args);
    if made.is_err() {
        // The folder was empty: remove the partial release, so that the next attempt finds an empty folder.
        for name in files(&args.output)?.keys() {
            let _ = fs::remove_file(args.output.join(name));
        }
    }
    made
}

/// Writes the files of a release to an empty folder, and prints them.
fn make(args: &Args) -> Result<()> {
    let tools = binaries::ensure(&["helm", "kubectl"])?;
    let step = Step::start("packing the chart and the manifests");
    let chart = paths::workspace().join("charts/quintet");
    let mut helm = Command::new(tools.path("helm")?);
    run::stdout(helm.arg("package").arg(chart).arg("--destination").arg(&args.output))?;
    for (folder, name) in [("config/crd", "crds"), ("config/default", "install")] {
        let mut kubectl = Command::new(tools.path("kubectl")?);
        let manifests = run::stdout(kubectl.arg("kustomize").arg(paths::workspace().join(folder)))?;
        write(&args.output.join(format!("quintet-{VERSION}-{name}.yaml")), manifests)?;
    }
    step.done();
    for image in image::build(&args.arch, &args.output)? {
        image::check(&image)?;
    }

    let files = files(&args.output)?;
    let sums = files.iter().map(|(name, bytes)| format!("{}  {name}\n", run::hex(&Sha256::digest(bytes))));
    write(&args.output.join(SUMS), sums.collect::<String>())?;
    let lines = files.iter().map(|(name, bytes)| {
        format!("{} {} kB\n", args.output.join(name).display(), bytes.len().div_ceil(1_000))
    });
    print(lines.collect::<String>() + &format!("{}\n", args.output.join(SUMS).display()))
}

fn no_objections(objections: &[String]) -> Result<()> {
    if objections.is_empty() { Ok(()) } else { bail!("cannot build a release: {}", objections.join("; ")) }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(paths::workspace().join(path)).with_context(|| format!("cannot read {path}"))
}

fn write(file: &Path, text: String) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
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
    Ok(wrong
        .map(|(place, value)| format!("{place} is {value}, but the version in Cargo.toml is {version}"))
        .collect())
}

/// The reasons why this commit is not a release.
fn unfit(version: &str, changelog: &str) -> Vec<String> {
    let git = |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace()));
    let mut reasons = Vec::new();
    let tag = format!("v{version}");
    if !git(&["tag", "--points-at", "HEAD"]).is_ok_and(|tags| tags.lines().any(|line| line == tag)) {
        reasons.push(format!("the commit has no tag {tag}"));
    }
    if !git(&["status", "--porcelain"]).is_ok_and(|changed| changed.trim().is_empty()) {
        reasons.push("the checkout has uncommitted changes".to_owned());
    }
    if !has_section(changelog, version) {
        reasons.push(format!("CHANGELOG.md has no section [{version}]"));
    }
    reasons
}

fn has_section(changelog: &str, version: &str) -> bool {
    changelog.lines().any(|line| line.starts_with(&format!("## [{version}]")))
}

/// Empties the folder of an earlier release. Fails if the folder contains other files, and does not remove them.
fn make_room(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let sums = folder.join(SUMS);
    if let Ok(text) = fs::read_to_string(&sums) {
        for name in text.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name) {
            // The check below finds a file that could not be removed.
            let _ = fs::remove_file(folder.join(name));
        }
        let _ = fs::remove_file(&sums);
    }
    match files(folder)?.keys().next() {
        None => Ok(()),
        Some(name) => {
            bail!("{} contains {name}, which is not part of a release: use an empty folder", folder.display())
        }
    }
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
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
        let read = |path: &str| {
            Ok(match path {
                "charts/quintet/Chart.yaml" => "version: 1.0.0\nappVersion: \"0.9.0\"\n",
                _ => "images:\n  - newTag: 1.0.0\n",
            }
            .to_owned())
        };
        assert_eq!(
            disagreements("1.0.0", &read).unwrap(),
            ["charts/quintet/Chart.yaml: appVersion is \"0.9.0\", but the version in Cargo.toml is 1.0.0"]
        );
    }

    #[test]
    fn finds_the_section_of_a_release() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n";
        assert!(has_section(changelog, "0.2.0"));
        assert!(!has_section(changelog, "0.2.1"));
    }

    #[test]
    fn removes_only_files_of_a_release() {
        let folder = std::env::temp_dir().join(format!("quintet-release-{}", std::process::id()));
        make_room(&folder).unwrap();
        fs::write(folder.join("a.tar"), "a").unwrap();
        fs::write(folder.join(SUMS), "00  a.tar\n").unwrap();
        make_room(&folder).unwrap();
        assert!(files(&folder).unwrap().is_empty());
        fs::write(folder.join("thesis.txt"), "mine").unwrap();
        let error = make_room(&folder).unwrap_err().to_string();
        assert!(error.contains("thesis.txt"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
