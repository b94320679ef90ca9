//! `cargo xtask protoc`: where protoc is.

use anyhow::{Context, Result};
use quintet_localcluster::protoc::{MISSING, find};
use quintet_localcluster::run::print;

/// `cargo xtask protoc`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(
    about = "Print where protoc is, which building the Pulsar programs needs",
    long_about = "Print where protoc is, which building the Pulsar programs needs.\n\n\
    The commands of xtask use it by themselves. For cargo itself: export PROTOC=\"$(cargo xtask protoc)\""
)]
pub struct Args {}

/// Prints where it is.
pub fn run() -> Result<()> {
    print(format!("{}\n", find().context(MISSING)?.display()))
}
