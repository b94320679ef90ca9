//! Apache Pulsar's programs: published artefacts that Maven downloads once into the user's cache. Only this
//! module states the version.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::server;
use crate::cluster::lock;
use crate::paths;
use crate::progress::Step;
use crate::run::{self, Log};

/// The version of Apache Pulsar.
pub const VERSION: &str = "4.0.8";

/// The oldest Java version that runs Pulsar.
const JAVA: u32 = 17;

/// The parts of the archive that are unpacked.
const PARTS: [&str; 4] = ["lib", "conf", "LICENSE", "NOTICE"];

/// An unpacked Pulsar, and the programs that run it.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// The folder with `lib` and `conf`.
    pub home: PathBuf,
    /// The `java` program.
    pub java: PathBuf,
    /// The class data archive, which halves the start time. Java ignores an unusable one.
    pub classes: PathBuf,
}

/// The missing requirement for running Pulsar, as a sentence with its remedy; `None` if nothing is missing.
pub fn missing() -> Option<String> {
    match java().and_then(|java| home(&java.1)) {
        Ok(distribution) if distribution.classes.is_file() => None,
        Ok(_) => maven().err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns Pulsar, and downloads it (250 MB, with visible progress) unless the cache has it.
pub fn ensure() -> Result<Distribution> {
    let (java, version) = java()?;
    let distribution = Distribution { java, ..home(&version)? };
    if distribution.classes.is_file() {
        return Ok(distribution);
    }
    let cache = paths::cache()?;
    let _lock = lock::take(&cache.join("pulsar.lock"), "another command that downloads Pulsar")?;
    if !distribution.home.is_dir() {
        fetch(&distribution.home)?;
    }
    if !distribution.classes.is_file() {
        server::record_classes(&distribution)?;
    }
    Ok(distribution)
}

/// The paths of Pulsar and of its class data archive for a version of Java.
fn home(java_version: &str) -> Result<Distribution> {
    let home = paths::cache()?.join(format!("pulsar-{VERSION}"));
    let java = run::short_hex(&Sha256::digest(java_version));
    let classes = home.join(format!("classes-{java}.jsa"));
    Ok(Distribution { home, java: PathBuf::new(), classes })
}

fn fetch(home: &Path) -> Result<()> {
    let maven = maven()?;
    // Next to its target, for an atomic rename: an interrupted download leaves no incomplete folder.
    let half_made = home.with_extension("unpacking");
    let _ = fs::remove_dir_all(&half_made);
    fs::create_dir_all(&half_made).with_context(|| format!("cannot create {}", half_made.display()))?;
    let fetched = download(&maven, &half_made).and_then(|unpacked| {
        fs::rename(&unpacked, home).with_context(|| format!("cannot write {}", home.display()))
    });
    let _ = fs::remove_dir_all(&half_made);
    fetched
}

/// Downloads the archive into a folder and unpacks it there.
fn download(maven: &Path, folder: &Path) -> Result<PathBuf> {
    let log = Log::fresh(folder.with_extension("log"))?;
    let artefact = format!("org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin");
    let mut copy = Command::new(maven);
    copy.args(["-B", "-q", "dependency:copy", "-Dmdep.overWriteReleases=true"])
        .arg(format!("-Dartifact={artefact}"))
        .arg(format!("-DoutputDirectory={}", folder.display()));
    logged(
        copy.current_dir(folder),
        &log,
        &format!("downloading Apache Pulsar {VERSION} with Maven, once (250 MB)"),
    )?;
    let archive = folder.join(format!("pulsar-server-distribution-{VERSION}-bin.tar.gz"));
    let top = format!("apache-pulsar-{VERSION}");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(folder).args(PARTS.map(|part| format!("{top}/{part}")));
    logged(&mut tar, &log, "unpacking it")?;
    let _ = fs::remove_file(&log.path);
    Ok(folder.join(top))
}

fn logged(command: &mut Command, log: &Log, what: &str) -> Result<()> {
    let mut step = Step::start_long(what);
    let program = command.get_program().to_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.open()?)
        .stderr(log.open()?)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !run::wait(&mut child, || step.tick())?.success() {
        bail!("{what} failed; {}", log.tail(15));
    }
    step.done();
    Ok(())
}

fn maven() -> Result<PathBuf> {
    paths::find_program("mvn").context(
        "downloading Apache Pulsar needs Maven, but there is no `mvn` on the PATH: install it (Debian: maven)",
    )
}

/// The path of `java`, and its output for `-version`.
fn java() -> Result<(PathBuf, String)> {
    let of_home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let needs = format!("Apache Pulsar needs Java {JAVA} or newer");
    let Some(java) = of_home.filter(|java| java.is_file()).or_else(|| paths::find_program("java")) else {
        bail!(
            "{needs}, but there is no `java` on the PATH: install it (Debian: openjdk-{JAVA}-jre-headless)"
        );
    };
    let output = run::output(Command::new(&java).arg("-version"), None)?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match major(&text) {
        Some(version) if version >= JAVA => Ok((java, text)),
        Some(version) => bail!("{needs}, but {} is version {version}", java.display()),
        None => bail!("{needs}, but {} does not print its version", java.display()),
    }
}

/// The number in `openjdk version "17.0.15" 2025-04-15`; before Java 9, it followed `1.`.
fn major(text: &str) -> Option<u32> {
    let version = text.split_once("version \"")?.1;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    match numbers.next()?.parse().ok()? {
        1 => numbers.next()?.parse().ok(),
        major => Some(major),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_of_java() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime\n"), Some(17));
        assert_eq!(major("java version \"1.8.0_402\""), Some(8));
        assert_eq!(major("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(major("openjdk version \"24-ea\" 2025-03-18"), Some(24));
        assert_eq!(major("no java"), None);
    }
}
