//! The images that every cluster with real nodes has besides those of the project: the one that keeps a pod's namespaces, and
//! those that stand in for `busybox` and `nginx`. All are the program of `tests/standin`, which is static: no registry is asked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cluster::state;
use crate::progress::Step;
use crate::{build, image};

/// The image that keeps a pod's namespaces while its containers come and go.
pub(super) const PAUSE: &str = "localhost/quintet-pause:1";

/// What the samples name `busybox`.
const BUSYBOX: &str = "docker.io/library/busybox:latest";

/// What samples of PodSets name `nginx:1.29`: it answers with an empty page.
const NGINX: &str = "docker.io/library/nginx:1.29";

/// The commands that the stand-in knows: those of the samples.
const COMMANDS: [&str; 9] = ["cat", "date", "echo", "false", "hostname", "ip", "sh", "sleep", "true"];

/// The folder of a cluster's images.
pub(super) fn folder(cluster: &Path) -> PathBuf {
    cluster.join("images")
}

/// Writes their archives.
pub(super) fn ensure(cluster: &Path) -> Result<()> {
    let step = Step::start_long("building the images that stand in for others");
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

/// Makes images known to the nodes of a cluster.
pub(super) fn load(cluster: &Path, archives: &[PathBuf]) -> Result<()> {
    for archive in archives {
        let bytes = fs::read(archive).with_context(|| format!("cannot read {}", archive.display()))?;
        let name = archive.file_name().with_context(|| format!("{} is no file", archive.display()))?;
        state::write(&folder(cluster).join(name), &bytes)?;
    }
    Ok(())
}
