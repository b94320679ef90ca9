//! The chart and the program of an earlier commit, for tests of upgrades and rollbacks: built once from the history of the
//! checkout, and kept in the user's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cluster::lock;
use crate::{build, manager, paths, run};

/// The commit of the chart and the program, the last one before admission policies. Name a release's commit here after the
/// release.
pub const COMMIT: &str = "c67e5bfcab3b9782a2e1e477bf5ebe2fe8b0da3e";

/// The chart and the program of [`COMMIT`].
#[derive(Clone, Debug)]
pub struct Previous {
    /// The folder of the chart.
    pub chart: PathBuf,
    /// The manager's program.
    pub program: PathBuf,
}

/// Returns the chart and the program, and builds them unless the cache has them. The first build takes five minutes. Fails if
/// the checkout's history lacks the commit.
pub fn ensure() -> Result<Previous> {
    let cache = paths::cache()?.join("previous");
    let dir = cache.join(COMMIT);
    let previous = Previous { chart: dir.join("charts/quintet"), program: dir.join("quintet") };
    if !previous.program.is_file() {
        let _lock = lock::take(&cache.join("lock"), "another build of the previous version")?;
        if !previous.program.is_file() {
            require(paths::workspace(), COMMIT)?;
            fill(&dir, &previous)?;
        }
    }
    Ok(previous)
}

/// Fails unless a repository has a commit.
fn require(repository: &Path, commit: &str) -> Result<()> {
    let mut git = Command::new("git");
    git.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).current_dir(repository);
    run::stdout(&mut git).map(drop).with_context(|| {
        format!(
            "cannot find commit {commit} of the previous version in {}: if the clone is shallow, run `git fetch --unshallow`",
            repository.display()
        )
    })
}

/// Fills the folder of the cache. The program comes last, because its presence means that all is there.
fn fill(dir: &Path, previous: &Previous) -> Result<()> {
    // A killed build leaves its files.
    let _ = fs::remove_dir_all(dir);
    let (source, target) = (dir.join("source"), dir.join("target"));
    fs::create_dir_all(&source).with_context(|| format!("cannot create {}", source.display()))?;
    let archive = dir.join("source.tar");
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", "--output"]).arg(&archive).arg(COMMIT);
    run::stdout(git.current_dir(paths::workspace()))?;
    File::open(&archive)
        .and_then(|file| tar::Archive::new(file).unpack(&source))
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    let mut cargo = build::cargo_build();
    // A target directory of its own, because the present program has the same name.
    cargo.arg("--locked").current_dir(&source).env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
    let program =
        manager::build_with("building the previous quintet, once (this takes minutes)", &mut cargo)?;
    let charts = dir.join("charts");
    fs::rename(source.join("charts"), &charts)
        .and_then(|()| fs::rename(&program, &previous.program))
        .with_context(|| format!("cannot write {}", dir.display()))?;
    for leftover in [source, target] {
        let _ = fs::remove_dir_all(leftover);
    }
    let _ = fs::remove_file(archive);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_commit_that_the_history_lacks() {
        let missing = "0".repeat(40);
        let error = require(paths::workspace(), &missing).unwrap_err().to_string();
        assert!(error.contains(&missing) && error.contains("git fetch --unshallow"), "{error}");
    }

    #[test]
    fn the_commit_is_in_the_history() {
        let git = |args: &[&str]| {
            run::output(Command::new("git").args(args).current_dir(paths::workspace()), None).unwrap()
        };
        // A shallow clone lacks the commit.
        if git(&["rev-parse", "--is-shallow-repository"]).stdout == b"false\n" {
            assert!(git(&["merge-base", "--is-ancestor", COMMIT, "HEAD"]).status.success(), "{COMMIT}");
        }
    }
}
