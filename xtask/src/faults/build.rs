//! Builds the fault plans and the exhaustive search together.

use std::process::Command;

use anyhow::{Result, ensure};
use quintet_localcluster::{paths, protoc, run};

const PROFILE: &str = "faults";
/// The package of the fault plans.
pub(crate) const PLANS: &str = "quintet-faults";
/// The package of the exhaustive search, and its program.
pub(crate) const SEARCH: &str = "quintet-model";

/// A command of cargo for the plans and the exhaustive search. It names both packages, because the features of their
/// dependencies, and so the builds, depend on the packages of a command.
pub(crate) fn cargo(command: &str) -> Command {
    let mut cargo = run::cargo();
    protoc::tell(&mut cargo);
    cargo.args([command, "--profile", PROFILE, "--package", PLANS, "--package", SEARCH]);
    cargo
}

/// Builds the program of the exhaustive search.
pub(crate) fn search() -> Result<Command> {
    let built = run::wait(&mut cargo("build").args(["--quiet", "--bin", SEARCH]).spawn()?, || ())?;
    ensure!(built.success(), "building {SEARCH} failed");
    Ok(Command::new(paths::target().join(PROFILE).join(SEARCH)))
}
