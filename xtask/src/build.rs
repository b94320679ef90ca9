//! `cargo xtask build`: the release programs as they are shipped, and how large they are.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{self, print};
use crate::{paths, protoc};

/// `cargo xtask build`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(
    about = "Build the release programs as they are shipped",
    long_about = "Build the release programs as they are shipped, and print their paths and sizes: quintet, the manager, and \
    pulsar-consumer and pulsar-producer, which PulsarConsumers run and are fed by.\n\n\
    On Linux with glibc, on x86_64 and aarch64, they are static and position independent: they need no loader and no \
    library, and run in an empty image. Elsewhere they are built as cargo does by itself. The flags that this takes are \
    added to those in RUSTFLAGS, and leave what is built for debugging as it is. The Pulsar programs are left out where \
    there is no protoc for this system (see cargo xtask protoc --help)."
)]
pub struct Args {}

/// The target that this machine is and that links statically on request; none elsewhere.
const STATIC_TARGET: Option<&str> = if !cfg!(all(target_os = "linux", target_env = "gnu")) {
    None
} else if cfg!(target_arch = "x86_64") {
    Some("x86_64-unknown-linux-gnu")
} else if cfg!(target_arch = "aarch64") {
    Some("aarch64-unknown-linux-gnu")
} else {
    None
};

/// What makes a program static; position independent it is by default.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// The package of the programs for Pulsar, and their names.
const PULSAR: (&str, [&str; 2]) = ("quintet-pulsar-client", ["pulsar-consumer", "pulsar-producer"]);

/// Builds the programs and says where they are and how large.
pub fn run() -> Result<()> {
    let mut programs = vec![release()?];
    match pulsar_release()? {
        Some(more) => programs.extend(more),
        None => eprintln!("pulsar-consumer and pulsar-producer are left out: {}", protoc::MISSING),
    }
    let mut lines = Vec::new();
    for program in programs {
        let file = fs::metadata(&program).with_context(|| format!("cannot read {}", program.display()))?;
        lines.push(format!("{} ({})\n", program.display(), megabytes(file.len())));
    }
    print(lines.concat())
}

/// Builds the manager as it is shipped; cargo's progress is shown.
pub fn release() -> Result<PathBuf> {
    let mut cargo = cargo_build();
    if STATIC_TARGET.is_none() {
        eprintln!("this machine links no static program: the program will need this system's libraries");
    }
    let (status, program) = program(as_shipped(&mut cargo), || ())?;
    if !status.success() {
        bail!("building quintet failed");
    }
    program
}

/// Builds the programs for Pulsar as they are shipped: the consumer and the producer. Nothing where there is no protoc.
pub fn pulsar_release() -> Result<Option<Vec<PathBuf>>> {
    pulsar(|cargo| {
        as_shipped(cargo);
    })
}

/// Builds the programs for Pulsar for tests and for the demo: the consumer and the producer. Nothing where there is no
/// protoc.
pub fn pulsar_programs() -> Result<Option<Vec<PathBuf>>> {
    pulsar(|_| ())
}

fn pulsar(how: impl FnOnce(&mut Command)) -> Result<Option<Vec<PathBuf>>> {
    if protoc::find().is_none() {
        return Ok(None);
    }
    let (package, names) = PULSAR;
    let mut cargo = cargo_build_of(package);
    protoc::tell(&mut cargo).arg("--bins");
    how(&mut cargo);
    let (status, messages) = run_cargo(&mut cargo, || ())?;
    if !status.success() {
        bail!("building {package} failed");
    }
    let messages = messages?;
    let programs = names.map(|name| {
        executable(&messages, name)
            .with_context(|| format!("cargo built {name} but does not say where it is"))
    });
    programs.into_iter().collect::<Result<Vec<_>>>().map(Some)
}

/// Adds what makes a release build one that is shipped.
fn as_shipped(cargo: &mut Command) -> &mut Command {
    cargo.arg("--release");
    if let Some(target) = STATIC_TARGET {
        // With a target named, build scripts and macros do not get the flags, and the folder is one of its own.
        let (variable, flags) = flags(env::var_os("CARGO_ENCODED_RUSTFLAGS"), env::var_os("RUSTFLAGS"));
        cargo.args(["--target", target]).env(variable, flags);
    }
    cargo
}

/// `cargo build` of the `quintet` program, for [`program`] to run.
pub(crate) fn cargo_build() -> Command {
    cargo_build_of("quintet")
}

fn cargo_build_of(package: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--package", package, "--message-format", "json-render-diagnostics"])
        .current_dir(paths::workspace());
    cargo
}

/// Runs a [`cargo_build`], calling `tick` meanwhile: how it ended, and where the program is.
pub(crate) fn program(cargo: &mut Command, tick: impl FnMut()) -> Result<(ExitStatus, Result<PathBuf>)> {
    let (status, messages) = run_cargo(cargo, tick)?;
    let program = messages.and_then(|messages| {
        executable(&messages, "quintet").context("cargo built quintet but does not say where it is")
    });
    Ok((status, program))
}

/// How cargo ended, and its messages.
fn run_cargo(cargo: &mut Command, tick: impl FnMut()) -> Result<(ExitStatus, Result<String>)> {
    let mut child = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take();
    let (status, messages) = thread::scope(|scope| {
        let messages = scope.spawn(|| stdout.map(std::io::read_to_string));
        (run::wait(&mut child, tick), messages.join().ok().flatten())
    });
    let messages = messages.transpose().context("cannot read what cargo says");
    Ok((status?, messages.map(Option::unwrap_or_default)))
}

/// The executable that cargo's JSON messages name.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// The variable that cargo reads, and the user's own flags in it with ours after them. Of the two variables cargo
/// takes the encoded one, which separates flags by a control character.
fn flags(encoded: Option<OsString>, plain: Option<OsString>) -> (&'static str, OsString) {
    let (variable, separator, own) = match encoded {
        Some(encoded) => ("CARGO_ENCODED_RUSTFLAGS", "\u{1f}", encoded),
        None => ("RUSTFLAGS", " ", plain.unwrap_or_default()),
    };
    let mut flags = own;
    if !flags.is_empty() {
        flags.push(separator);
    }
    flags.push(STATIC);
    (variable, flags)
}

/// A number of bytes in MB, of a million bytes each, rounded to the nearest tenth.
fn megabytes(bytes: u64) -> String {
    let tenths = (bytes + 50_000) / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"quintet_kit"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"quintet"},"executable":"/t/debug/quintet"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "quintet"), Some(PathBuf::from("/t/debug/quintet")));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "quintet"), None);
    }

    #[test]
    fn the_users_own_flags_stay() {
        let flags = |encoded: Option<&str>, plain: Option<&str>| {
            let (variable, flags) = flags(encoded.map(OsString::from), plain.map(OsString::from));
            format!("{variable}={}", flags.to_string_lossy())
        };
        assert_eq!(flags(None, None), "RUSTFLAGS=-Ctarget-feature=+crt-static");
        assert_eq!(flags(None, Some("-g")), "RUSTFLAGS=-g -Ctarget-feature=+crt-static");
        assert_eq!(
            flags(Some("-g"), Some("-x")),
            "CARGO_ENCODED_RUSTFLAGS=-g\u{1f}-Ctarget-feature=+crt-static"
        );
        assert_eq!(flags(Some(""), None), "CARGO_ENCODED_RUSTFLAGS=-Ctarget-feature=+crt-static");
    }

    #[test]
    fn sizes_are_rounded_to_tenths_of_a_megabyte() {
        assert_eq!(megabytes(0), "0.0 MB");
        assert_eq!(megabytes(6_349_999), "6.3 MB");
        assert_eq!(megabytes(6_350_000), "6.4 MB");
        assert_eq!(megabytes(12_000_000), "12.0 MB");
    }
}
