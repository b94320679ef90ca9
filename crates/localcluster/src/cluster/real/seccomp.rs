//! libseccomp's headers, which no Go module has. runc is built with them, because otherwise no pod could use
//! the profile RuntimeDefault.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{paths, run};

const PACKAGE: &str = "libseccomp-dev";

/// Whether the headers are installed, or apt-get can download them without installing them.
pub(super) fn is_there() -> bool {
    is_installed() || can_fetch()
}

fn is_installed() -> bool {
    Command::new("pkg-config").args(["--exists", "libseccomp"]).status().is_ok_and(|status| status.success())
}

fn can_fetch() -> bool {
    ["apt-get", "dpkg-deb"].iter().all(|program| paths::find_program(program).is_some())
}

/// The folder for `PKG_CONFIG_PATH`; `None` if the headers are installed. Otherwise Debian's package is
/// downloaded and unpacked below `dir`, and nothing is installed.
pub(in crate::cluster) fn find(dir: &Path) -> Result<Option<PathBuf>> {
    if is_installed() {
        return Ok(None);
    }
    ensure!(can_fetch(), "{MISSING}");
    let home = dir.join("libseccomp");
    let described = home.join("pkgconfig");
    if described.join("libseccomp.pc").is_file() {
        return Ok(Some(described));
    }
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&described).with_context(|| format!("cannot create {}", home.display()))?;
    let fetch = || run::stdout(Command::new("apt-get").args(["download", PACKAGE]).current_dir(&home));
    if fetch().is_err() {
        // The package lists may be missing.
        run::stdout(Command::new("apt-get").arg("update")).context(MISSING)?;
        fetch().context(MISSING)?;
    }
    let package =
        find_file(&home, &|name| name.starts_with(PACKAGE)).context("apt-get downloaded no package")?;
    run::stdout(Command::new("dpkg-deb").arg("-x").args([&package, &home]))?;
    let _ = fs::remove_file(&package);
    let original = find_file(&home.join("usr"), &|name| name == "libseccomp.pc");
    let Some(original) = original else { bail!("{PACKAGE} has no libseccomp.pc") };
    let text = fs::read_to_string(&original)?;
    let moved = moved(&text, &home.join("usr"));
    fs::write(described.join("libseccomp.pc"), moved).context("cannot describe libseccomp")?;
    Ok(Some(described))
}

/// The error without headers, with its remedy.
pub(super) const MISSING: &str = "building runc needs libseccomp's headers and pkg-config: install their packages \
    (Debian and Ubuntu: libseccomp-dev and pkg-config)";

/// Rewrites a `.pc` file for another prefix.
fn moved(description: &str, prefix: &Path) -> String {
    let line = |line: &str| {
        if line.starts_with("prefix=") {
            format!("prefix={}\n", prefix.display())
        } else {
            format!("{}\n", line.replace("=/usr/", "=${prefix}/"))
        }
    };
    description.lines().map(line).collect()
}

fn find_file(folder: &Path, is_searched: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found = entries.iter().find(|path| path.is_file() && is_searched(&name(path)));
    found
        .cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|dir| find_file(dir, is_searched)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_the_prefix_of_a_description() {
        let original = "prefix=/usr\nexec_prefix=${prefix}\nlibdir=${prefix}/lib\nincludedir=/usr/include\nLibs: -L${libdir} -lseccomp\n";
        let expected = "prefix=/c/usr\nexec_prefix=${prefix}\nlibdir=${prefix}/lib\nincludedir=${prefix}/include\nLibs: -L${libdir} -lseccomp\n";
        assert_eq!(moved(original, Path::new("/c/usr")), expected);
    }
}
