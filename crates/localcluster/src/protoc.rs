//! protoc, the protocol buffer compiler, which builds the crate `pulsar`. It comes as a crate, so that users
//! need not install it. If `PROTOC` is set, that program is used instead.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::paths;

/// The variable from which build scripts read the path.
const VARIABLE: &str = "PROTOC";

/// The error if [`find`] finds none.
pub const MISSING: &str = "no crate has a protoc for this system: install protoc, or set PROTOC";

/// The path of protoc; `None` if this system has none.
pub fn find() -> Option<PathBuf> {
    let given = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    given.or_else(vendored).or_else(|| paths::find_program("protoc"))
}

/// Passes the path to a command, if there is one.
pub fn tell(cargo: &mut Command) -> &mut Command {
    if let Some(protoc) = find() {
        cargo.env(VARIABLE, protoc);
    }
    cargo
}

fn vendored() -> Option<PathBuf> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let path = Some(protoc_bin_vendored_linux_x86_64::protoc_bin_path());
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    let path = Some(protoc_bin_vendored_linux_aarch_64::protoc_bin_path());
    #[cfg(all(target_os = "macos", target_arch = "x86_64"))]
    let path = Some(protoc_bin_vendored_macos_x86_64::protoc_bin_path());
    #[cfg(all(target_os = "macos", target_arch = "aarch64"))]
    let path = Some(protoc_bin_vendored_macos_aarch_64::protoc_bin_path());
    #[cfg(not(all(
        any(target_os = "linux", target_os = "macos"),
        any(target_arch = "x86_64", target_arch = "aarch64")
    )))]
    let path = None;
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protoc_of_the_crate_runs_here() {
        let Some(protoc) = vendored() else { return };
        let version = crate::run::stdout(Command::new(protoc).arg("--version")).unwrap();
        assert!(version.starts_with("libprotoc "), "{version}");
    }
}
