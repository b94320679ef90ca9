//! libseccomp's headers, the one thing that no Go module has and that runc needs to be built: without it no pod could ask for
//! the profile RuntimeDefault.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{paths, run};

const PACKAGE: &str = "libseccomp-dev";

/// Whether this system has them, or a package manager that can fetch them without installing anything.
pub(super) fn is_there() -> bool {
    is_installed() || can_fetch()
}

fn is_installed() -> bool {
    Command::new("pkg-config").args(["--exists", "libseccomp"]).status().is_ok_and(|status| status.success())
}

fn can_fetch() -> bool {
    ["apt-get", "dpkg-deb"].iter().all(|program| paths::find_program(program).is_some())
}

/// The folder that pkg-config must be told of, where they are not installed: Debian's package of them is then fetched and
/// unpacked below `dir`, and nothing is installed.
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
        // A system that has never been told what there is.
        run::stdout(Command::new("apt-get").arg("update")).context(MISSING)?;
        fetch().context(MISSING)?;
    }
    let package =
        find_file(&home, &|name| name.starts_with(PACKAGE)).context("apt-get fetched no package")?;
    run::stdout(Command::new("dpkg-deb").arg("-x").args([&package, &home]))?;
    let _ = fs::remove_file(&package);
    let original = find_file(&home.join("usr"), &|name| name == "libseccomp.pc");
    let Some(original) = original else { bail!("{PACKAGE} has no libseccomp.pc") };
    let text = fs::read_to_string(&original)?;
    let moved = moved(&text, &home.join("usr"));
    fs::write(described.join("libseccomp.pc"), moved).context("cannot describe libseccomp")?;
    Ok(Some(described))
}

/// What to do where there are none.
pub(super) const MISSING: &str = "runc is built with libseccomp's headers and pkg-config: install your system's packages of them \
    (Debian and Ubuntu: libseccomp-dev and pkg-config)";

/// A description for pkg-config of what lies in another folder.
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

fn find_file(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found = entries.iter().find(|path| path.is_file() && wanted(&name(path)));
    found
        .cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|dir| find_file(dir, wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_that_lies_elsewhere_names_its_own_folder() {
        let original = "prefix=/usr\nexec_prefix=${prefix}\nlibdir=${prefix}/lib\nincludedir=/usr/include\nLibs: -L${libdir} -lseccomp\n";
        let expected = "prefix=/c/usr\nexec_prefix=${prefix}\nlibdir=${prefix}/lib\nincludedir=${prefix}/include\nLibs: -L${libdir} -lseccomp\n";
        assert_eq!(moved(original, Path::new("/c/usr")), expected);
    }
}
