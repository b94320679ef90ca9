//! A debug build of the bench spends more time on a request than the API server does. So cargo builds the
//! bench again, optimised, and this process becomes that program.

use std::env;
use std::os::unix::process::CommandExt as _;

use anyhow::{Error, Result};
use quintet_localcluster::{paths, run};

/// The release profile without the slow settings that reduce the size.
const PROFILE: [&str; 3] = ["opt-level=2", "lto=\"off\"", "codegen-units=16"];

/// A timed bench calls this first. It returns only in the optimised program.
pub fn become_optimised() -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    eprintln!("building the optimised bench (the first build takes minutes)");
    let mut cargo = run::cargo();
    cargo.args(["run", "--quiet", "--release", "--package", "quintet-bench", "--manifest-path"]);
    cargo.arg(paths::workspace().join("Cargo.toml"));
    for setting in PROFILE {
        cargo.args(["--config", &format!("profile.release.{setting}")]);
    }
    let error = cargo.arg("--").args(env::args_os().skip(1)).exec();
    Err(Error::new(error).context("cannot run cargo"))
}
