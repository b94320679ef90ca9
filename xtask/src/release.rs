//! `cargo xtask release`: everything that a release consists of, in one folder. Publishing it is the release workflow's.

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
    about = "Build everything that a release consists of",
    long_about = "Build everything that a release consists of, in one folder: the images with their bills of materials (see \
    cargo xtask image --help), the chart's package, the definitions and the whole installation as manifests for kubectl, and \
    SHA256SUMS over all of them.\n\n\
    The version is the workspace's, in Cargo.toml; what else states it must agree. The licences of all crates that the \
    programs are built with, and crates that are there in two versions, must be allowed by deny.toml.\n\n\
    A release is made of a commit with the tag v and the version, without changed files, and with a section in CHANGELOG.md. \
    With --dry-run any commit will do. Nothing is published."
)]
pub struct Args {
    /// Do it for a commit that is no release
    #[arg(long)]
    dry_run: bool,
    /// Processors that the images are for; may be given several times. This machine's own by default
    #[arg(long, value_name = "ARCH")]
    arch: Vec<Arch>,
    /// The folder that all of it is written to; an earlier release in it is replaced
    #[arg(long, value_name = "DIR", default_value_os_t = paths::target().join("release-files"))]
    output: PathBuf,
}

/// The version of everything.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file that names every other one.
const SUMS: &str = "SHA256SUMS";

/// Builds everything and says what came of it.
pub fn run(args: &Args) -> Result<()> {
    // What takes long comes last.
    no_objections(&disagreements(VERSION, &read)?)?;
    if !args.dry_run {
        no_objections(&unfit(VERSION, &read("CHANGELOG.md")?))?;
    }
    let arches = if args.arch.is_empty() { Arch::HOST.as_slice() } else { &args.arch };
    no_objections(&dependencies::objections(&image::packages(), arches)?)?;
    make_room(&args.output)?;
    let made = make(args);
    if made.is_err() {
        // There was nothing before: what is there now is part of a release, and would be in the way of the next.
        for name in files(&args.output)?.keys() {
            let _ = fs::remove_file(args.output.join(name));
        }
    }
    made
}

/// Makes the files of a release in an empty folder, and says what they are.
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
    if objections.is_empty() {
        Ok(())
    } else {
        bail!("there is no release to be made: {}", objections.join("; "))
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(paths::workspace().join(path)).with_context(|| format!("cannot read {path}"))
}

fn write(file: &Path, text: String) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Where files state another version than the workspace's, a sentence each.
fn disagreements(version: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<Vec<String>> {
    let yaml = |path: &str| -> Result<Value> {
        serde_saphyr::from_str(&read(path)?).with_context(|| format!("{path} is no YAML"))
    };
    let (chart, kustomization) =
        (yaml("charts/quintet/Chart.yaml")?, yaml("config/manager/kustomization.yaml")?);
    let stated = [
        ("charts/quintet/Chart.yaml: version", &chart["version"]),
        ("charts/quintet/Chart.yaml: appVersion", &chart["appVersion"]),
        ("config/manager/kustomization.yaml: newTag", &kustomization["images"][0]["newTag"]),
    ];
    let wrong = stated.iter().filter(|(_, value)| value.as_str() != Some(version));
    Ok(wrong.map(|(place, value)| format!("{place} is {value}, and Cargo.toml says {version}")).collect())
}

/// Why this commit is no release.
fn unfit(version: &str, changelog: &str) -> Vec<String> {
    let git = |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace()));
    let mut reasons = Vec::new();
    let tag = format!("v{version}");
    if !git(&["tag", "--points-at", "HEAD"]).is_ok_and(|tags| tags.lines().any(|line| line == tag)) {
        reasons.push(format!("this commit has no tag {tag}"));
    }
    if !git(&["status", "--porcelain"]).is_ok_and(|changed| changed.trim().is_empty()) {
        reasons.push("files differ from the commit".to_owned());
    }
    if !has_section(changelog, version) {
        reasons.push(format!("CHANGELOG.md has no section [{version}]"));
    }
    reasons
}

fn has_section(changelog: &str, version: &str) -> bool {
    changelog.lines().any(|line| line.starts_with(&format!("## [{version}]")))
}

/// An empty folder. What an earlier release left there goes; anything else is not ours to remove.
fn make_room(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let sums = folder.join(SUMS);
    if let Ok(text) = fs::read_to_string(&sums) {
        for name in text.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name) {
            // One that is gone already is no trouble; one that cannot be removed is found below.
            let _ = fs::remove_file(folder.join(name));
        }
        let _ = fs::remove_file(&sums);
    }
    match files(folder)?.keys().next() {
        None => Ok(()),
        Some(name) => {
            bail!("{} has {name} in it, which no release left there: name an empty folder", folder.display())
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
    fn a_file_that_states_another_version_is_named() {
        let read = |path: &str| {
            Ok(match path {
                "charts/quintet/Chart.yaml" => "version: 1.0.0\nappVersion: \"0.9.0\"\n",
                _ => "images:\n  - newTag: 1.0.0\n",
            }
            .to_owned())
        };
        assert_eq!(
            disagreements("1.0.0", &read).unwrap(),
            ["charts/quintet/Chart.yaml: appVersion is \"0.9.0\", and Cargo.toml says 1.0.0"]
        );
    }

    #[test]
    fn a_release_has_a_section() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n";
        assert!(has_section(changelog, "0.2.0"));
        assert!(!has_section(changelog, "0.2.1"));
    }

    #[test]
    fn only_what_a_release_left_is_removed() {
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
