//! helm and kubectl of the `PATH`, which the demo uses instead of building the pinned ones if their version fits.

use std::env;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::interrupt::Interrupted;
use crate::{paths, run};

/// The oldest minor version of Helm 3 that has all the options that docs/operations.md uses.
const OLDEST_HELM_3: u32 = 14;

/// Where a cluster gets helm and kubectl from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// The pinned versions, which tests and benches depend on.
    Pinned,
    /// The `PATH`, for each program whose version there fits.
    Installed,
}

/// A program that the `PATH` may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Helm,
    Kubectl,
}

/// Whether an installed program can replace the pinned one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fit {
    /// It can. The version is for messages.
    Fits(String),
    /// It cannot, for this reason.
    DoesNot(String),
}

impl Tool {
    pub(super) const ALL: [Self; 2] = [Self::Helm, Self::Kubectl];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::Kubectl => "kubectl",
        }
    }

    /// The arguments that print the version without a cluster.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Helm => &["version", "--short"],
            Self::Kubectl => &["version", "--client", "--output=json"],
        }
    }

    /// Returns the program of the `PATH` if its version fits, and prints which program is used and why. `pinned` is the
    /// pinned version.
    pub(super) fn find(self, pinned: &str) -> Result<Option<PathBuf>> {
        let path = env::var_os("PATH").unwrap_or_default();
        let Some(file) = on_path(self.name(), env::split_paths(&path), &paths::cache()?) else {
            return Ok(None);
        };
        let fit = match run::stdout(Command::new(&file).args(self.arguments())) {
            Ok(printed) => fit(self, &printed, pinned),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => Fit::DoesNot(format!("{error:#}")),
        };
        // Indented, because these lines do not belong to the picture of the demo.
        match fit {
            Fit::Fits(version) => {
                eprintln!("  using {} {version}", file.display());
                Ok(Some(file))
            }
            Fit::DoesNot(reason) => {
                eprintln!("  using {} {pinned} instead of {}: {reason}", self.name(), file.display());
                Ok(None)
            }
        }
    }
}

/// The absolute path of a program in the first of these folders that has it. Folders in `cache` do not count: after
/// `cargo xtask cluster env`, the `PATH` contains the links that this program would replace.
fn on_path(name: &str, folders: impl Iterator<Item = PathBuf>, cache: &Path) -> Option<PathBuf> {
    folders
        .filter_map(|folder| absolute(folder).ok())
        .filter(|folder| !folder.starts_with(cache))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Decides by what a program printed for its [`Tool::arguments`]. Any Helm of the pinned major version fits, and Helm 3. For
/// kubectl, Kubernetes supports one minor version more or less than the API server's, which is `pinned`
/// (<https://kubernetes.io/releases/version-skew-policy/>).
fn fit(tool: Tool, printed: &str, pinned: &str) -> Fit {
    let version = match tool {
        Tool::Helm => printed.trim().to_owned(),
        Tool::Kubectl => match serde_json::from_str::<Value>(printed) {
            Ok(printed) => printed["clientVersion"]["gitVersion"].as_str().unwrap_or_default().to_owned(),
            Err(error) => return Fit::DoesNot(format!("it printed no JSON for its version: {error}")),
        },
    };
    let (Some((major, minor)), Some((pinned_major, pinned_minor))) = (numbers(&version), numbers(pinned))
    else {
        return Fit::DoesNot(format!("its version is {version:?}"));
    };
    let (fits, needed) = match tool {
        Tool::Helm => (
            major == pinned_major || major == 3 && minor >= OLDEST_HELM_3,
            format!("Helm {pinned_major}, or Helm 3.{OLDEST_HELM_3} or newer"),
        ),
        Tool::Kubectl => (
            major == pinned_major && minor.abs_diff(pinned_minor) <= 1,
            format!("at most one minor version from {pinned}"),
        ),
    };
    if fits {
        Fit::Fits(version)
    } else {
        Fit::DoesNot(format!("its version is {version}, and the demo needs {needed}"))
    }
}

/// The major and the minor version of a version such as `v4.3.1+g0123456`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn helm(printed: &str) -> Result<String, String> {
        result(fit(Tool::Helm, printed, "v4.3.1"))
    }

    fn kubectl(version: &str) -> Result<String, String> {
        let printed = format!(r#"{{"clientVersion":{{"major":"1","gitVersion":"{version}"}}}}"#);
        result(fit(Tool::Kubectl, &printed, "v1.37.1"))
    }

    fn result(fit: Fit) -> Result<String, String> {
        match fit {
            Fit::Fits(version) => Ok(version),
            Fit::DoesNot(reason) => Err(reason),
        }
    }

    #[test]
    fn helm_fits_by_its_major_version_or_as_a_recent_helm_3() {
        assert_eq!(helm("v4.0.0+g99cd196\n"), Ok("v4.0.0+g99cd196".to_owned()));
        assert_eq!(helm("v4.9.2"), Ok("v4.9.2".to_owned()));
        assert_eq!(helm("v3.14.0+g3fc9f4b"), Ok("v3.14.0+g3fc9f4b".to_owned()));
        let old = helm("v3.13.3+gc8b9489").unwrap_err();
        assert_eq!(old, "its version is v3.13.3+gc8b9489, and the demo needs Helm 4, or Helm 3.14 or newer");
        assert!(helm("v5.0.0").is_err());
        assert!(helm("v2.17.0").is_err());
    }

    #[test]
    fn kubectl_fits_within_one_minor_version() {
        for version in ["v1.36.0", "v1.37.4-dispatcher", "v1.38.0-alpha.1"] {
            assert_eq!(kubectl(version), Ok(version.to_owned()));
        }
        let old = kubectl("v1.35.9").unwrap_err();
        assert_eq!(old, "its version is v1.35.9, and the demo needs at most one minor version from v1.37.1");
        assert!(kubectl("v1.39.0").is_err());
        assert!(kubectl("v2.37.1").is_err());
    }

    #[test]
    fn a_program_without_a_version_does_not_fit() {
        assert_eq!(
            helm("Client: v2.17.0+ga690bad").unwrap_err(),
            "its version is \"Client: v2.17.0+ga690bad\""
        );
        assert!(helm("").is_err());
        assert!(helm("v4").is_err());
        assert!(kubectl("").is_err());
        let reason = result(fit(Tool::Kubectl, "command not found", "v1.37.1")).unwrap_err();
        assert!(reason.starts_with("it printed no JSON"), "{reason}");
        assert!(result(fit(Tool::Kubectl, "{}", "v1.37.1")).is_err());
    }

    #[test]
    fn links_in_the_cache_are_not_installed_programs() {
        let folder = env::temp_dir().join(format!("quintet-installed-{}", std::process::id()));
        let (cache, system) = (folder.join("cache"), folder.join("usr"));
        let linked = cache.join("clusters/quintet/bin");
        for folder in [&linked, &system] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("helm"), "").unwrap();
        }
        let found = |folders: &[&PathBuf]| on_path("helm", folders.iter().copied().cloned(), &cache);
        assert_eq!(found(&[&linked, &system]), Some(system.join("helm")));
        assert_eq!(found(&[&linked]), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
