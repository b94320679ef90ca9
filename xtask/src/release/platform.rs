//! The platforms of a release, and the programs for each. Only a machine of a platform can link and start its programs, so a
//! release collects programs that several machines built.

use std::collections::BTreeMap;
use std::env::consts;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use quintet_localcluster::build::{self, Arch};
use quintet_localcluster::image;

/// The names of `quintet` in a release. kubectl runs it as a plugin by the second one.
pub(super) const NAMES: [&str; 2] = ["quintet", "kubectl-quintet"];

/// An operating system and a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Platform {
    /// As Go names it.
    pub system: &'static str,
    pub arch: Arch,
}

impl Platform {
    /// The platforms of a release.
    pub const ALL: [Self; 4] = [
        Self { system: "linux", arch: Arch::Amd64 },
        Self { system: "linux", arch: Arch::Arm64 },
        Self { system: "darwin", arch: Arch::Amd64 },
        Self { system: "darwin", arch: Arch::Arm64 },
    ];

    /// Linux on a processor.
    pub fn linux(arch: Arch) -> Self {
        Self { system: "linux", arch }
    }

    /// The platform of this machine.
    pub fn host() -> Result<Self> {
        let found = Self::ALL.into_iter().find(|platform| {
            let system = if platform.system == "darwin" { "macos" } else { platform.system };
            (system, platform.arch.target().split('-').next()) == (consts::OS, Some(consts::ARCH))
        });
        found.with_context(|| format!("a release has no programs for {} on {}", consts::OS, consts::ARCH))
    }

    /// Such as `linux-amd64`.
    pub fn name(self) -> String {
        format!("{}-{}", self.system, self.arch.name())
    }
}

/// The programs of a release.
#[derive(Debug)]
pub(super) struct Programs {
    /// `quintet` by platform.
    pub quintet: BTreeMap<Platform, Vec<u8>>,
    /// The programs of the images.
    pub of_images: Vec<image::Programs>,
}

impl Programs {
    /// Reads the folders to which [`build_into`] copied programs, one for each platform.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut programs = Self { quintet: BTreeMap::new(), of_images: Vec::new() };
        for platform in Platform::ALL {
            let folder = folder.join(platform.name());
            if !folder.is_dir() {
                continue;
            }
            programs.quintet.insert(platform, read(&folder.join(NAMES[0]))?);
            if platform.system == "linux" {
                programs.of_images.push(image::Programs::read(platform.arch, &folder)?);
            }
        }
        if programs.of_images.is_empty() {
            bail!("{} has no folder of a platform, such as linux-amd64", folder.display());
        }
        Ok(programs)
    }

    /// The processors for which there are images.
    pub fn arches(&self) -> Vec<Arch> {
        let linux = self.quintet.keys().filter(|platform| platform.system == "linux");
        linux.map(|platform| platform.arch).collect()
    }

    /// The platforms of a release that have no program.
    pub fn missing(&self) -> Vec<String> {
        let missing = Platform::ALL.into_iter().filter(|platform| !self.quintet.contains_key(platform));
        missing.map(Platform::name).collect()
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Builds the programs for a platform, and copies them to a folder with the platform's name below `output`. Runs each if the
/// platform is that of this machine.
pub(super) fn build_into(output: &Path, platform: Platform) -> Result<()> {
    let folder = output.join(platform.name());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if platform.system == "linux" {
        image::Programs::build(platform.arch)?.copy_to(&folder)?;
    } else {
        // Images contain only programs for Linux.
        fs::copy(build::release()?, folder.join(NAMES[0]))
            .with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    if platform != Platform::host()? {
        return Ok(());
    }
    let quintet = read(&folder.join(NAMES[0]))?;
    NAMES.into_iter().try_for_each(|name| image::starts(name, &quintet))?;
    for program in ["pulsar-consumer", "pulsar-producer"] {
        let file = folder.join(program);
        if file.is_file() {
            image::starts(program, &read(&file)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_programs_for_four_platforms() {
        let names: Vec<_> = Platform::ALL.map(Platform::name).into();
        assert_eq!(names, ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"]);
        let programs = Programs {
            quintet: BTreeMap::from([(Platform::ALL[0], Vec::new()), (Platform::ALL[3], Vec::new())]),
            of_images: Vec::new(),
        };
        assert_eq!(programs.missing(), ["linux-arm64", "darwin-amd64"]);
        assert_eq!(programs.arches(), [Arch::Amd64]);
    }

    #[test]
    fn this_machine_has_a_platform() {
        assert!(Platform::ALL.contains(&Platform::host().unwrap()));
    }
}
