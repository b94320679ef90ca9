//! The checkout, and the user's cache, which keeps everything that outlives a command.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Result, bail};

/// The root of the checkout in which cargo runs this program, or else of the one in which it was built.
/// Checkouts that share a target directory can run each other's builds.
pub fn workspace() -> &'static Path {
    static WORKSPACE: LazyLock<PathBuf> = LazyLock::new(|| {
        let run_in = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let run_in = run_in.as_deref().and_then(checkout_around);
        run_in
            .or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2))
            .unwrap_or(Path::new("."))
            .to_owned()
    });
    &WORKSPACE
}

/// The checkout that contains a package.
fn checkout_around(package: &Path) -> Option<&Path> {
    package.ancestors().find(|root| root.join("crates/localcluster/src/paths.rs").is_file())
}

/// cargo's target directory.
pub fn target() -> PathBuf {
    let set = env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty());
    workspace().join(set.unwrap_or_else(|| "target".into()))
}

/// The Go modules, node stages and policies of the local control plane.
pub fn controlplane() -> PathBuf {
    workspace().join("tests/controlplane")
}

/// `$XDG_CACHE_HOME/quintet`, or `~/.cache/quintet`.
pub fn cache() -> Result<PathBuf> {
    // The XDG specification requires to ignore relative paths.
    let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    match xdg.or_else(|| env::home_dir().map(|home| home.join(".cache"))) {
        Some(cache) => Ok(cache.join("quintet")),
        None => bail!("there is no home directory to keep the cache in: set XDG_CACHE_HOME"),
    }
}

/// The file with a program's name on the `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|file| file.is_file())
}
