//! The files of a cluster: everything that a later command needs to find, stop or continue it. A file is
//! replaced as a whole, so that no reader sees half of it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ports::Ports;
use crate::paths;

/// The settings of a cluster, chosen when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The number of nodes.
    pub nodes: usize,
    /// Whether the nodes are real.
    #[serde(default)]
    pub real: bool,
    /// The ports that the components listen on.
    pub ports: Ports,
}

/// The rule for names, for messages.
pub(crate) const VALID_NAMES: &str = "use up to 40 lower-case letters, digits and hyphens";

/// The folder of one cluster.
#[derive(Clone, Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// The folder of the cluster with that name, which need not exist.
    pub fn of(name: &str) -> Result<Self> {
        if !is_valid_name(name) {
            bail!("{name:?} is not a valid name for a cluster: {VALID_NAMES}");
        }
        Ok(Self(all()?.join(name)))
    }

    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.0.join("pki")
    }

    /// Links to the programs.
    pub fn bin(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// The logs of its processes.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// etcd's data.
    pub fn data(&self) -> PathBuf {
        self.0.join("etcd")
    }

    /// The records of the cluster's processes.
    pub fn processes(&self) -> PathBuf {
        self.0.join("processes")
    }

    /// The kubeconfig of a user; `admin` is for the administrator.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.0.join(format!("{user}.kubeconfig"))
    }

    /// The lock of commands that change the cluster, outside the folder that `down` removes.
    pub fn lock(&self) -> PathBuf {
        self.0.with_extension("lock")
    }

    /// Creates the folders, which only the user can read, because they contain keys.
    pub fn create(&self) -> Result<()> {
        create_private(&[&self.0, &self.pki(), &self.bin(), &self.logs(), &self.data(), &self.processes()])
    }

    /// The settings; `None` if there is no such cluster.
    pub fn settings(&self) -> Result<Option<Settings>> {
        read_json(&self.0.join("settings.json"))
    }

    /// Writes the settings.
    pub fn keep_settings(&self, settings: &Settings) -> Result<()> {
        write_json(&self.0.join("settings.json"), settings)
    }
}

/// The folder with a folder for each cluster.
pub fn all() -> Result<PathBuf> {
    Ok(paths::cache()?.join("clusters"))
}

/// The names of the folders that have settings, sorted.
pub fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let has_settings = |entry: &fs::DirEntry| entry.path().join("settings.json").is_file();
    let names = entries.flatten().filter(has_settings).map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Reads a JSON file; `None` if it does not exist.
pub fn read_json<T: DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    match fs::read(file) {
        Ok(text) => {
            let value = serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged: remove it", file.display()))?;
            Ok(Some(value))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Creates folders that only the user can read.
pub fn create_private(folders: &[&Path]) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    let create =
        |dir: &&Path| builder.create(dir).with_context(|| format!("cannot create {}", dir.display()));
    folders.iter().try_for_each(create)
}

/// Replaces a JSON file as a whole.
pub fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    write(file, serde_json::to_string_pretty(value)?.as_bytes())
}

/// Replaces a file as a whole; only the user can read it.
pub fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = file.with_added_extension(format!("{}.tmp", std::process::id()));
    let written = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut open| std::io::Write::write_all(&mut open, bytes))
        .and_then(|()| fs::rename(&temporary, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// Whether a name is valid for a folder of a cluster or a broker.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.len() <= 40 && name.chars().all(allowed) && !name.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_name_stays_inside_the_cache() {
        assert!(is_valid_name("quintet"));
        assert!(is_valid_name("test-4711"));
        for bad in ["", "..", "a/b", "A", "-n", "a b", &"x".repeat(41)] {
            assert!(!is_valid_name(bad), "{bad:?}");
        }
    }
}
