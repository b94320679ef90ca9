//! The bench's own client must not be what is measured: a program that is compiled for debugging spends more on a request
//! than the API server does. So cargo builds the bench once more, optimised, and this process becomes that program.

use std::env;
use std::os::unix::process::CommandExt as _;

use anyhow::{Error, Result};
use quintet_localcluster::{paths, run};

/// The release profile without what makes the program small and takes long.
const PROFILE: [&str; 3] = ["opt-level=2", "lto=\"off\"", "codegen-units=16"];

/// Returns if this program is optimised: a bench that is timed calls this first. Otherwise, this process becomes the optimised program.
pub fn go_on_there() -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    eprintln!("building the bench, optimised (minutes for the first time)");
    let mut cargo = run::cargo();
    cargo.args(["run", "--quiet", "--release", "--package", "quintet-bench", "--manifest-path"]);
    cargo.arg(paths::workspace().join("Cargo.toml"));
    for setting in PROFILE {
        cargo.args(["--config", &format!("profile.release.{setting}")]);
    }
    let error = cargo.arg("--").args(env::args_os().skip(1)).exec();
    Err(Error::new(error).context("cannot run cargo"))
}
