//! `cargo xtask build`: builds the release programs.

use std::fs;

use anyhow::{Context, Result};
use quintet_localcluster::build::{megabytes, musl_release, pulsar_release, release};
use quintet_localcluster::protoc;
use quintet_localcluster::run::print;

/// `cargo xtask build`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(
    about = "Build the release programs",
    long_about = "Build the release programs, and print their paths and sizes. The programs are quintet (the manager), \
    pulsar-consumer (which the pods of PulsarConsumers run) and pulsar-producer (which sends messages).\n\n\
    On Linux with glibc, on x86_64 and aarch64, the programs are static and position independent. Static programs need no \
    loader and no library, and run in an empty image (see cargo xtask image --help). The programs contain no paths of the \
    checkout, of cargo's home or of the build. On other systems, cargo builds the programs with cargo's default settings. The \
    command adds compiler flags to RUSTFLAGS, and does not rebuild debug programs.\n\n\
    Without a protoc for this system, the command skips the Pulsar programs (see cargo xtask protoc --help). If rustup has \
    the musl target for this processor, the command also builds quintet for musl. The build for musl needs musl-gcc, which is \
    in Debian's package musl-tools."
)]
pub struct Args {}

/// Builds the programs, and prints their paths and sizes.
pub fn run() -> Result<()> {
    let mut programs = vec![release()?];
    match pulsar_release()? {
        Some(more) => programs.extend(more),
        None => eprintln!("skipping pulsar-consumer and pulsar-producer: {}", protoc::MISSING),
    }
    programs.extend(musl_release()?);
    let mut lines = Vec::new();
    for program in programs {
        let file = fs::metadata(&program).with_context(|| format!("cannot read {}", program.display()))?;
        lines.push(format!("{} ({})\n", program.display(), megabytes(file.len())));
    }
    print(lines.concat())
}
