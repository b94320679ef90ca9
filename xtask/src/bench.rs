//! `cargo xtask bench`: runs the program of `tests/bench`. It is a separate package, because only the benches need its
//! dependencies.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::{Context, Result};
use quintet_localcluster::{paths, run};

/// `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(about = "Measure a kind and its peers, on a temporary cluster", disable_help_flag = true)]
pub struct Args {
    /// The arguments of the bench program. Use --help to list the arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process by the bench program, which then gets signals and sets the exit code.
pub fn run(args: &Args) -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["run", "--quiet", "--package", "quintet-bench", "--manifest-path"]);
    cargo.arg(paths::workspace().join("Cargo.toml")).arg("--").args(&args.words);
    // Paths in the arguments are relative to the user's directory.
    cargo.current_dir(env::current_dir().context("cannot find the current directory")?);
    Err(cargo.exec()).context("cannot run cargo")
}
