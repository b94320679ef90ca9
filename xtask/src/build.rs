//! `cargo xtask build`: the release programs as they are shipped, and how large they are.

use std::fs;

use anyhow::{Context, Result};
use quintet_localcluster::build::{megabytes, musl_release, pulsar_release, release};
use quintet_localcluster::protoc;
use quintet_localcluster::run::print;

/// `cargo xtask build`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(
    about = "Build the release programs as they are shipped",
    long_about = "Build the release programs as they are shipped, and print their paths and sizes: quintet, the manager, and \
    pulsar-consumer and pulsar-producer, which PulsarConsumers run and are fed by.\n\n\
    On Linux with glibc, on x86_64 and aarch64, they are static and position independent: they need no loader and no \
    library, and run in an empty image (see cargo xtask image --help). Where the checkout, cargo's home and the build lie \
    leaves no trace in them. Elsewhere they are built as cargo does by itself. The flags that this takes are \
    added to those in RUSTFLAGS, and leave what is built for debugging as it is. The Pulsar programs are left out where \
    there is no protoc for this system (see cargo xtask protoc --help). Where rustup has added the target of musl for this \
    processor, quintet is built for that as well; it needs musl-gcc, which is Debian's package musl-tools."
)]
pub struct Args {}

/// Builds the programs and says where they are and how large.
pub fn run() -> Result<()> {
    let mut programs = vec![release()?];
    match pulsar_release()? {
        Some(more) => programs.extend(more),
        None => eprintln!("pulsar-consumer and pulsar-producer are left out: {}", protoc::MISSING),
    }
    programs.extend(musl_release()?);
    let mut lines = Vec::new();
    for program in programs {
        let file = fs::metadata(&program).with_context(|| format!("cannot read {}", program.display()))?;
        lines.push(format!("{} ({})\n", program.display(), megabytes(file.len())));
    }
    print(lines.concat())
}
