//! `cargo xtask bench`: the benches are a program of their own (`tests/bench`), so that nothing else compiles what they
//! measure and plot with.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::{Context, Result};
use quintet_localcluster::{paths, run};

/// `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(about = "Measure a kind beside its peers, on a cluster of its own", disable_help_flag = true)]
pub struct Args {
    /// The arguments of the bench program, which reads `--help` too
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes the bench program, so that its exit code and the user's signals need no translation.
pub fn run(args: &Args) -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["run", "--quiet", "--package", "quintet-bench", "--manifest-path"]);
    cargo.arg(paths::workspace().join("Cargo.toml")).arg("--").args(&args.words);
    // Paths among the arguments are relative to where the user is.
    cargo.current_dir(env::current_dir().context("cannot find the current directory")?);
    Err(cargo.exec()).context("cannot run cargo")
}
