//! Go programs with source in this repository, one Go module each, built once per state of the source. They
//! are kept in the user's cache, like the programs of [`crate::cluster::binaries`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::cluster::binaries::{go_build, go_version, required_version};
use crate::cluster::lock;
use crate::{paths, run};

/// A program that was built.
#[derive(Debug)]
pub struct Program {
    /// The executable file.
    pub file: PathBuf,
    /// Such as `controller-runtime v0.24.1, go1.26.8`.
    pub version: String,
    source: PathBuf,
    module: &'static str,
}

impl Program {
    /// Returns the program in `folder`, a path below the checkout, and builds it unless the cache has it. A
    /// first build takes minutes. `module` is the required module that [`Program::version`] names.
    pub fn built(folder: &str, module: &'static str) -> Result<Self> {
        let source = paths::workspace().join(folder);
        let name = folder.rsplit('/').next().unwrap_or(folder);
        let go_mod =
            fs::read_to_string(source.join("go.mod")).with_context(|| format!("{folder} has no go.mod"))?;
        let go = go_version(&source, &go_mod).with_context(|| format!("{folder} is a program in Go"))?;
        let cache = paths::cache()?.join("bin");
        let file = cache.join(format!("{name}-{}-{go}", digest(&source)?)).join(name);
        if !file.is_file() {
            let _lock = lock::take(&cache.join("lock"), "another build of a program in Go")?;
            if !file.is_file() {
                let label = format!("building {folder}, once (the first time takes minutes)");
                go_build(label, &source, ".", "-s -w", &file)?;
            }
        }
        let version = required_version(&go_mod, module)
            .with_context(|| format!("the go.mod of {folder} does not require {module}"))?;
        let word = module.rsplit('/').next().unwrap_or(module);
        Ok(Self { file, version: format!("{word} {version}, {go}"), source, module })
    }

    /// The folder with the files of the required module.
    pub fn module_folder(&self) -> Result<PathBuf> {
        run::go_module(&self.source, self.module)
    }
}

/// A digest of all files of the program.
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
    fn digest_changes_with_the_source() {
        let folder = std::env::temp_dir().join(format!("quintet-go-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.go"), "a").unwrap();
        let before = digest(&folder).unwrap();
        assert_eq!(before, digest(&folder).unwrap());
        fs::write(folder.join("a.go"), "b").unwrap();
        assert_ne!(before, digest(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
