//! The images that every cluster with real nodes has, besides the project's: pause, and stand-ins for
//! `busybox` and `nginx`. All contain the static program of `tests/standin`, so no registry is needed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cluster::state;
use crate::progress::Step;
use crate::{build, image};

/// The image that keeps a pod's namespaces while its containers restart.
pub(super) const PAUSE: &str = "localhost/quintet-pause:1";

/// The name that the samples use for `busybox`.
const BUSYBOX: &str = "docker.io/library/busybox:latest";

/// The image of PodSet samples; the stand-in answers with an empty page.
const NGINX: &str = "docker.io/library/nginx:1.29";

/// The commands of the stand-in, which are those of the samples.
const COMMANDS: [&str; 9] = ["cat", "date", "echo", "false", "hostname", "ip", "sh", "sleep", "true"];

/// The folder with the archives of a cluster's images.
pub(super) fn folder(cluster: &Path) -> PathBuf {
    cluster.join("images")
}

/// Writes the archives of the images.
pub(super) fn ensure(cluster: &Path) -> Result<()> {
    let step = Step::start_long("building the stand-in images");
    let program = build::unshipped(build::STANDIN)?;
    let program = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let folder = folder(cluster);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let links: Vec<String> = COMMANDS.iter().map(|command| format!("bin/{command}")).collect();
    let nginx = vec!["bin/nginx".to_owned()];
    let images = [
        ("pause.tar", PAUSE, Vec::new(), ""),
        ("busybox.tar", BUSYBOX, links, "sh"),
        ("nginx.tar", NGINX, nginx, "nginx"),
    ];
    for (file, name, links, run) in images {
        state::write(&folder.join(file), &image::of_standin(name, &program, &links, run)?)?;
    }
    step.done();
    Ok(())
}

/// Copies archives into the folder that the nodes' registry serves.
pub(super) fn load(cluster: &Path, archives: &[PathBuf]) -> Result<()> {
    for archive in archives {
        let bytes = fs::read(archive).with_context(|| format!("cannot read {}", archive.display()))?;
        let name = archive.file_name().with_context(|| format!("{} is not a file", archive.display()))?;
        state::write(&folder(cluster).join(name), &bytes)?;
    }
    Ok(())
}
