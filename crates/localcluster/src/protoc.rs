//! protoc, the compiler of protocol buffers, which the crate `pulsar` is built with. It comes as a crate, so that nobody has
//! to install it; whoever has set `PROTOC` uses that one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::paths;

/// The variable by which build scripts find it.
const VARIABLE: &str = "PROTOC";

/// Why there is none.
pub const MISSING: &str = "there is no protoc for this system among the crates: install it, or set PROTOC";

/// Where it is; nothing where there is none for this system.
pub fn find() -> Option<PathBuf> {
    let given = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    given.or_else(vendored).or_else(|| paths::find_program("protoc"))
}

/// Tells a command where it is, as far as it is anywhere.
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
    fn a_protoc_of_the_crates_runs_here() {
        let Some(protoc) = vendored() else { return };
        let said = crate::run::stdout(Command::new(protoc).arg("--version")).unwrap();
        assert!(said.starts_with("libprotoc "), "{said}");
    }
}
