//! `cargo xtask image`: the images of the three programs, as archives, and what is in them.

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
    long_about = "Build the images of the three programs: quintet, pulsar-consumer and pulsar-producer. No container engine is \
    needed.\n\n\
    Each becomes one archive in the OCI image layout, which `ctr images import`, `docker load`, `podman load` and `skopeo copy \
    oci-archive:` read. In an image is the static release program (see cargo xtask build --help) and nothing else; it runs as \
    user and group 65532. The same commit, built with the same Rust and the same C library, makes the same bytes. Beside each archive there is a bill of materials for each processor, in CycloneDX 1.6.\n\n\
    The time in an image is the commit's, or that of SOURCE_DATE_EPOCH. For a processor that is not this machine's Rust's \
    library for it and a linker are needed; the command says which.\n\n\
    Each archive is read back before it is called done: digests, sizes, and the program, which is run where it can be."
)]
pub struct Args {
    /// Processors that the images are for; may be given several times. This machine's own by default
    #[arg(long, value_name = "ARCH")]
    arch: Vec<Arch>,
    /// The folder that the archives are written to
    #[arg(long, value_name = "DIR", default_value_os_t = paths::target().join("image"))]
    output: PathBuf,
}

/// Builds the images and says what came of it.
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
