//! The twin: a manager for the same two kinds, written with controller-runtime (`tests/bench/twin`), built once and kept
//! in the user's cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::cluster::binaries::{go_build, go_version, required_version};
use crate::cluster::lock;
use crate::{paths, run};

/// The Go module whose version is of interest.
const FRAMEWORK: &str = "sigs.k8s.io/controller-runtime";

/// The program.
#[derive(Debug)]
pub struct Twin {
    /// Where it is.
    pub program: PathBuf,
    /// `controller-runtime v0.24.1, go1.26.8`.
    pub version: String,
}

impl Twin {
    /// Builds the program, unless it was built from the same source before: two minutes of two cores for the first time.
    pub fn built() -> Result<Self> {
        let source = paths::workspace().join("tests/bench/twin");
        let go_mod = fs::read_to_string(source.join("go.mod")).context("the twin has no go.mod")?;
        let go = go_version(&source, &go_mod).context("the manager is compared with one written in Go")?;
        let cache = paths::cache()?.join("bin");
        let program = cache.join(format!("twin-{}-{go}", digest(&source)?)).join("twin");
        if !program.is_file() {
            let _lock = lock::take(&cache.join("lock"), "another build of the control plane")?;
            if !program.is_file() {
                let label = "building the twin, once (minutes for the first time)".to_owned();
                go_build(label, &source, ".", "-s -w", &program)?;
            }
        }
        let framework = required_version(&go_mod, FRAMEWORK).context("the twin's go.mod has no framework")?;
        Ok(Self { program, version: format!("controller-runtime {framework}, {go}") })
    }
}

/// Changes with every file of the module.
fn digest(source: &Path) -> Result<String> {
    let entries = fs::read_dir(source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut sum = Sha256::new();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        sum.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        sum.update(text.len().to_le_bytes());
        sum.update(text);
    }
    Ok(run::short_hex(&sum.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_framework_is_stated_once() {
        let go_mod = fs::read_to_string(paths::workspace().join("tests/bench/twin/go.mod")).unwrap();
        assert!(required_version(&go_mod, FRAMEWORK).unwrap().starts_with("v0.24."));
    }

    #[test]
    fn the_program_goes_with_its_source() {
        let folder = std::env::temp_dir().join(format!("quintet-twin-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.go"), "a").unwrap();
        let before = digest(&folder).unwrap();
        assert_eq!(before, digest(&folder).unwrap());
        fs::write(folder.join("a.go"), "b").unwrap();
        assert_ne!(before, digest(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
