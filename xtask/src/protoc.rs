//! `cargo xtask protoc`: prints the path of protoc.

use anyhow::{Context, Result};
use quintet_localcluster::protoc::{MISSING, find};
use quintet_localcluster::run::print;

/// `cargo xtask protoc`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(
    about = "Print the path of protoc, which the build of the Pulsar programs needs",
    long_about = "Print the path of protoc, which the build of the Pulsar programs needs.\n\n\
    The commands of xtask find protoc without configuration. Before you run cargo itself, run: \
    export PROTOC=\"$(cargo xtask protoc)\""
)]
pub struct Args {}

/// Prints the path.
pub fn run() -> Result<()> {
    print(format!("{}\n", find().context(MISSING)?.display()))
}
