//! The second build of a release: from a copy of the checkout at another path, with nothing that the first build left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use quintet_localcluster::build::Arch;
use quintet_localcluster::paths;
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, Group, Log};

use crate::mutants;
use crate::release::{SIGNED, contents};

/// Builds the files of a release for `arches` again, below `folder`, and fails unless they equal `files`.
pub(super) fn compare(files: &Path, folder: &Path, arches: &[Arch]) -> Result<()> {
    let mut step = Step::start_long("building the files again, in a copy of the checkout");
    let folder = folder.join("again");
    let (copy, output) = (folder.join("checkout"), folder.join("files"));
    clone(&copy)?;
    let log = Log::fresh(folder.join("build.log"))?;
    let mut build = Command::new(run::this_program()?);
    build.args(["release", "--dry-run", "--files-only", "--output"]).arg(&output);
    build.args(arches.iter().flat_map(|arch| ["--arch", arch.name()]));
    // The first variable names the checkout. The others keep the files of this build apart from those of the first build.
    build.env("CARGO_MANIFEST_DIR", copy.join("xtask")).env("CARGO_TARGET_DIR", folder.join("target"));
    build
        .env("TMPDIR", &folder)
        .current_dir(&copy)
        .stdin(Stdio::null())
        .stdout(log.open()?)
        .stderr(log.open()?);
    ensure!(
        Group::spawn(&mut build)?.wait(|| step.tick())?.success(),
        "the second build failed; {}",
        log.tail(30)
    );
    let different = differences(&contents(files)?, &contents(&output)?);
    if !different.is_empty() {
        bail!("a second build differs in {}: a release must be reproducible", different.join(", "));
    }
    step.done();
    Ok(())
}

/// Copies the checkout with its last commit and its changed files. The images name the commit.
fn clone(copy: &Path) -> Result<()> {
    let workspace = paths::workspace();
    let git = |folder: &Path, args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(folder));
    let commit = git(workspace, &["rev-parse", "HEAD"])?;
    fs::create_dir_all(copy).with_context(|| format!("cannot create {}", copy.display()))?;
    let (from, to) = (workspace.display().to_string(), copy.display().to_string());
    git(workspace, &["clone", "--quiet", "--shared", "--no-checkout", &from, &to])?;
    git(copy, &["checkout", "--quiet", "--detach", commit.trim()])?;
    mutants::sync(workspace, copy).with_context(|| format!("cannot copy the checkout to {}", copy.display()))
}

/// The names of the files that differ or that only one folder has.
fn differences(once: &BTreeMap<String, Vec<u8>>, again: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names: BTreeSet<&String> = once.keys().chain(again.keys()).collect();
    // A signature contains a random number, so it differs each time.
    let different = names.into_iter().filter(|name| *name != SIGNED && once.get(*name) != again.get(*name));
    different.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_files_that_differ_or_are_missing() {
        let files = |files: &[(&str, &str)]| {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
        };
        let once = files(&[("a", "1"), ("b", "1"), ("c", "1"), (SIGNED, "x")]);
        assert_eq!(differences(&once, &files(&[("a", "1"), ("b", "2"), ("d", "1")])), ["b", "c", "d"]);
        assert_eq!(differences(&once, &files(&[("a", "1"), ("b", "1"), ("c", "1")])), [""; 0]);
    }
}
