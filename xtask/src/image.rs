//! `cargo xtask image`: builds the images of the three programs as archives.

use std::path::PathBuf;

use anyhow::Result;
use quintet_localcluster::build::{Arch, megabytes};
use quintet_localcluster::image::{build, check};
use quintet_localcluster::paths;
use quintet_localcluster::run::print;

/// `cargo xtask image`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Build the images of the three programs",
    long_about = "Build the images of the three programs: quintet, pulsar-consumer and pulsar-producer. The command needs no \
    container engine.\n\n\
    Each image is one archive in the OCI image layout, for `ctr images import`, `docker load`, `podman load` and `skopeo copy \
    oci-archive:`. An image contains only the static release program (see cargo xtask build --help), which runs as user and \
    group 65532. Builds of one commit with the same versions of Rust and the C library produce the same bytes. The command \
    also writes a bill of materials for each archive and processor, in CycloneDX 1.6.\n\n\
    The timestamps in an image are the time of the commit, or SOURCE_DATE_EPOCH if this variable is set. An image for another \
    processor needs the Rust target and a linker for that processor. If the target or the linker is missing, the command \
    names it.\n\n\
    The command verifies each archive: it checks digests and sizes, and runs the program if this machine can run it."
)]
pub struct Args {
    /// Build images for this processor (default: this machine's processor). Repeat the flag to add more processors
    #[arg(long, value_name = "ARCH")]
    arch: Vec<Arch>,
    /// The folder for the archives
    #[arg(long, value_name = "DIR", default_value_os_t = paths::target().join("image"))]
    output: PathBuf,
}

/// Builds and verifies the images, and prints their digests and sizes.
pub fn run(args: &Args) -> Result<()> {
    let mut lines = Vec::new();
    for image in build(&args.arch, &args.output)? {
        check(&image)?;
        lines.push(format!("{} {}\n", image.file.display(), image.digest));
        for (arch, digest, compressed) in &image.images {
            lines.push(format!("  linux/{} {digest} {} compressed\n", arch.name(), megabytes(*compressed)));
        }
        lines.extend(image.bills.iter().map(|bill| format!("  {}\n", bill.display())));
    }
    print(lines.concat())
}
