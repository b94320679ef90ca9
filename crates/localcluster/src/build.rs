//! Builds the programs of this workspace with cargo, for releases and for tests.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{paths, protoc, run};

/// A processor that static programs are built for, on Linux with glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Arch {
    /// x86_64
    Amd64,
    /// aarch64
    Arm64,
}

impl Arch {
    /// Both architectures.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// The architecture of this machine; `None` if programs cannot be linked statically here.
    pub const HOST: Option<Self> = if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        None
    } else if cfg!(target_arch = "x86_64") {
        Some(Self::Amd64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Self::Arm64)
    } else {
        None
    };

    /// The name that Go and images use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The Rust target.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    fn musl(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    fn cross_linker(self) -> (&'static str, &'static str) {
        match self {
            Self::Amd64 => ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
            Self::Arm64 => ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        }
    }

    /// The C compiler that links programs for this architecture by default.
    pub(crate) fn c_compiler(self) -> &'static str {
        if Some(self) == Self::HOST { "cc" } else { self.cross_linker().0 }
    }

    /// The missing requirement for a build on this machine, with its remedy.
    pub fn missing(self) -> Result<Option<String>> {
        let name = self.name();
        let target = self.target();
        if !is_added(target)? {
            return Ok(Some(format!("{name} needs Rust's library for it: rustup target add {target}")));
        }
        let (linker, package) = self.cross_linker();
        if Some(self) != Self::HOST
            && env::var_os(self.linker_variable()).is_none()
            && paths::find_program(linker).is_none()
        {
            return Ok(Some(format!(
                "{name} needs {linker}: install Debian's package {package}, or set {} to another linker",
                self.linker_variable()
            )));
        }
        Ok(None)
    }

    fn linker_variable(self) -> String {
        format!("CARGO_TARGET_{}_LINKER", self.target().to_uppercase().replace('-', "_"))
    }
}

fn is_added(target: &str) -> Result<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", target]).current_dir(paths::workspace());
    Ok(Path::new(run::stdout(&mut rustc)?.trim()).is_dir())
}

/// Links a program statically; position-independent code is rustc's default.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Packs relocations, which a static program reads at every start. Unpacked, they are a thirtieth of it.
const PACKED: &str = "-Clink-arg=-Wl,-z,pack-relative-relocs";

/// The first glibc whose static programs can read packed relocations.
const PACKED_SINCE: (u32, u32) = (2, 36);

/// The package and the name of the container program on real nodes.
pub(crate) const STANDIN: &str = "quintet-standin";

/// The package of the Pulsar programs, and their names.
const PULSAR: (&str, [&str; 2]) = ("quintet-pulsar-client", ["pulsar-consumer", "pulsar-producer"]);

/// Builds the manager for release and shows cargo's progress.
pub fn release() -> Result<PathBuf> {
    if Arch::HOST.is_none() {
        eprintln!("cannot link statically on this machine: the program will need this system's libraries");
    }
    release_for(Arch::HOST)
}

/// Builds the manager for release, for `arch` or with cargo's defaults.
pub(crate) fn release_for(arch: Option<Arch>) -> Result<PathBuf> {
    let mut cargo = cargo_build();
    let (status, program) = program(as_shipped(&mut cargo, arch)?, || ())?;
    if !status.success() {
        bail!("building quintet failed");
    }
    program
}

/// Builds the manager for musl. Returns `None` if the musl target or its C compiler is missing.
pub fn musl_release() -> Result<Option<PathBuf>> {
    const COMPILER: &str = "musl-gcc";
    let Some(target) = Arch::HOST.map(Arch::musl) else { return Ok(None) };
    if !is_added(target)? {
        return Ok(None);
    }
    let variable = format!("CC_{}", target.replace('-', "_"));
    if env::var_os(&variable).is_none() && paths::find_program(COMPILER).is_none() {
        eprintln!(
            "skipping quintet for musl: install {COMPILER}, or set {variable} to another C compiler for musl"
        );
        return Ok(None);
    }
    let mut cargo = cargo_build();
    let (status, program) = program(for_target(&mut cargo, target, None)?, || ())?;
    if !status.success() {
        bail!("building quintet for musl failed");
    }
    program.map(Some)
}

/// Builds a program that is not shipped with the flags of a release. `package` is also the program's name.
pub fn unshipped(package: &str) -> Result<PathBuf> {
    let mut cargo = cargo_build_of(package);
    as_shipped(&mut cargo, Arch::HOST)?.arg("--quiet");
    let (status, messages) = run_cargo(&mut cargo, || ())?;
    if !status.success() {
        bail!("building {package} failed");
    }
    executable(&messages?, package)
        .with_context(|| format!("cargo built {package} but did not print its path"))
}

/// Builds `pulsar-consumer` and `pulsar-producer` for release. Returns `None` without a protoc.
pub fn pulsar_release() -> Result<Option<Vec<PathBuf>>> {
    pulsar_release_for(Arch::HOST)
}

/// As [`pulsar_release`], for `arch` or with cargo's defaults.
pub(crate) fn pulsar_release_for(arch: Option<Arch>) -> Result<Option<Vec<PathBuf>>> {
    pulsar(|cargo| as_shipped(cargo, arch).map(|_| ()))
}

/// Builds `pulsar-consumer` and `pulsar-producer` for tests and the demo. Returns `None` without a protoc.
pub fn pulsar_programs() -> Result<Option<Vec<PathBuf>>> {
    pulsar(|_| Ok(()))
}

fn pulsar(how: impl FnOnce(&mut Command) -> Result<()>) -> Result<Option<Vec<PathBuf>>> {
    if protoc::find().is_none() {
        return Ok(None);
    }
    let (package, names) = PULSAR;
    let mut cargo = cargo_build_of(package);
    protoc::tell(&mut cargo).arg("--bins");
    how(&mut cargo)?;
    let (status, messages) = run_cargo(&mut cargo, || ())?;
    if !status.success() {
        bail!("building {package} failed");
    }
    let messages = messages?;
    let programs = names.map(|name| {
        executable(&messages, name).with_context(|| format!("cargo built {name} but did not print its path"))
    });
    programs.into_iter().collect::<Result<Vec<_>>>().map(Some)
}

/// Adds the flags of a release build.
fn as_shipped(cargo: &mut Command, arch: Option<Arch>) -> Result<&mut Command> {
    let Some(arch) = arch else { return Ok(cargo.args(["--locked", "--release"])) };
    let packed = (Some(arch) == Arch::HOST && glibc() >= Some(PACKED_SINCE)).then_some(PACKED);
    for_target(cargo, arch.target(), packed)?;
    let (linker, _) = arch.cross_linker();
    if Some(arch) != Arch::HOST && env::var_os(arch.linker_variable()).is_none() {
        cargo.env(arch.linker_variable(), linker);
    }
    Ok(cargo)
}

/// Adds the flags of a static build for `target`, and perhaps one more.
fn for_target<'a>(cargo: &'a mut Command, target: &str, more: Option<&str>) -> Result<&'a mut Command> {
    // With an explicit target, cargo does not pass the flags to build scripts and macros.
    let own = own_flags(env::var_os("CARGO_ENCODED_RUSTFLAGS"), env::var_os("RUSTFLAGS"));
    let traces = [
        (cargo_home()?, "/cargo"),
        (paths::workspace().to_owned(), "/quintet"),
        (paths::target(), "/target"),
    ];
    let flags = flags(own, [STATIC].into_iter().chain(more), &traces);
    Ok(cargo.args(["--locked", "--release", "--target", target]).env("CARGO_ENCODED_RUSTFLAGS", flags))
}

/// The version of this machine's glibc, which static programs contain.
fn glibc() -> Option<(u32, u32)> {
    let version = run::stdout(Command::new("getconf").arg("GNU_LIBC_VERSION")).ok()?;
    let (major, minor) = version.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The folder in which cargo keeps the sources of crates.
fn cargo_home() -> Result<PathBuf> {
    let set = env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    set.or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .context("there is no home directory: set CARGO_HOME")
}

/// `cargo build` of the `quintet` program, for [`program`] to run.
pub(crate) fn cargo_build() -> Command {
    cargo_build_of("quintet")
}

fn cargo_build_of(package: &str) -> Command {
    let mut cargo = run::cargo();
    cargo.args(["build", "--package", package, "--message-format", "json-render-diagnostics"]);
    cargo
}

/// Runs a [`cargo_build`] and calls `tick` while it runs. Returns its exit status and the program's path.
pub(crate) fn program(cargo: &mut Command, tick: impl FnMut()) -> Result<(ExitStatus, Result<PathBuf>)> {
    let (status, messages) = run_cargo(cargo, tick)?;
    let program = messages.and_then(|messages| {
        executable(&messages, "quintet").context("cargo built quintet but did not print its path")
    });
    Ok((status, program))
}

/// Returns cargo's exit status and its JSON messages.
fn run_cargo(cargo: &mut Command, tick: impl FnMut()) -> Result<(ExitStatus, Result<String>)> {
    let mut child = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take();
    let (status, messages) = thread::scope(|scope| {
        let messages = scope.spawn(|| stdout.map(std::io::read_to_string));
        (run::wait(&mut child, tick), messages.join().ok().flatten())
    });
    let messages = messages.transpose().context("cannot read cargo's output");
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

/// The separator in `CARGO_ENCODED_RUSTFLAGS`, which allows flags with spaces.
const SEPARATOR: &str = "\u{1f}";

/// The user's flags, encoded. cargo prefers the encoded variable over the plain one.
fn own_flags(encoded: Option<OsString>, plain: Option<OsString>) -> OsString {
    encoded.unwrap_or_else(|| {
        let plain = plain.unwrap_or_default();
        let words: Vec<&[u8]> =
            plain.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        OsString::from_vec(words.join(SEPARATOR.as_bytes()))
    })
}

/// The user's flags, then `ours`, then flags that replace folders of this machine by other names. If a path
/// is in several of the folders, rustc uses the last match.
fn flags<'a>(own: OsString, ours: impl IntoIterator<Item = &'a str>, traces: &[(PathBuf, &str)]) -> OsString {
    let mut flags = own;
    let mut add = |flag: &OsStr| {
        if !flags.is_empty() {
            flags.push(SEPARATOR);
        }
        flags.push(flag);
    };
    for flag in ours {
        add(OsStr::new(flag));
    }
    for (folder, name) in traces {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(folder);
        flag.push("=");
        flag.push(name);
        add(&flag);
    }
    flags
}

/// Formats bytes as MB (10^6 bytes), rounded to the nearest tenth.
pub fn megabytes(bytes: u64) -> String {
    let tenths = (bytes + 50_000) / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_executable_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"quintet_runtime"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"quintet"},"executable":"/t/debug/quintet"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "quintet"), Some(PathBuf::from("/t/debug/quintet")));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "quintet"), None);
    }

    #[test]
    fn keeps_the_flags_of_the_user() {
        let flags = |encoded: Option<&str>, plain: Option<&str>| {
            let own = own_flags(encoded.map(OsString::from), plain.map(OsString::from));
            flags(own, ["-a", "-b=c"], &[]).to_string_lossy().replace(SEPARATOR, "|")
        };
        assert_eq!(flags(None, None), "-a|-b=c");
        assert_eq!(flags(None, Some(" -g  -v ")), "-g|-v|-a|-b=c");
        assert_eq!(flags(Some("-g\u{1f}-a b"), Some("-x")), "-g|-a b|-a|-b=c");
        assert_eq!(flags(Some(""), None), "-a|-b=c");
    }

    #[test]
    fn replaces_folders_of_this_machine() {
        let traces = [(PathBuf::from("/home/u/my code"), "/quintet"), (PathBuf::from("/t"), "/target")];
        let flags = flags(OsString::new(), [], &traces).to_string_lossy().replace(SEPARATOR, "|");
        let expected = "--remap-path-prefix=/home/u/my code=/quintet|--remap-path-prefix=/t=/target";
        assert_eq!(flags, expected);
    }

    #[test]
    fn names_the_linker_variable_of_cargo() {
        assert_eq!(Arch::Arm64.linker_variable(), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }

    #[test]
    fn rounds_sizes_to_tenths_of_a_megabyte() {
        assert_eq!(megabytes(0), "0.0 MB");
        assert_eq!(megabytes(6_349_999), "6.3 MB");
        assert_eq!(megabytes(6_350_000), "6.4 MB");
        assert_eq!(megabytes(12_000_000), "12.0 MB");
    }
}
