//! A folder for the files of one command.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// A folder that is removed with this value.
pub(crate) struct Scratch(pub PathBuf);

impl Scratch {
    /// An empty folder below the system's folder for temporary files.
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("quintet-{purpose}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
