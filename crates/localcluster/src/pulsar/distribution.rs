//! Apache Pulsar's programs: fetched by Maven as the project publishes them, once, and kept in the user's cache. The
//! version is stated here alone.

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

/// The oldest Java that runs it.
const JAVA: u32 = 17;

/// What is taken out of the archive.
const PARTS: [&str; 4] = ["lib", "conf", "LICENSE", "NOTICE"];

/// Pulsar, unpacked, and what runs it.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// The folder with `lib` and `conf`.
    pub home: PathBuf,
    /// The `java` program.
    pub java: PathBuf,
    /// What loads the broker's classes in half the time. Java passes over one that it cannot use.
    pub classes: PathBuf,
}

/// A sentence that says what is missing to run Pulsar here; nothing where nothing is.
pub fn missing() -> Option<String> {
    match java().and_then(|java| home(&java.1)) {
        Ok(distribution) if distribution.classes.is_file() => None,
        Ok(_) => maven().err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Makes sure that Pulsar is there. The first time fetches 250 MB, and says so.
pub fn ensure() -> Result<Distribution> {
    let (java, version) = java()?;
    let distribution = Distribution { java, ..home(&version)? };
    if distribution.classes.is_file() {
        return Ok(distribution);
    }
    let cache = paths::cache()?;
    let _lock = lock::take(&cache.join("pulsar.lock"), "another command that fetches Pulsar")?;
    if !distribution.home.is_dir() {
        fetch(&distribution.home)?;
    }
    if !distribution.classes.is_file() {
        server::record_classes(&distribution)?;
    }
    Ok(distribution)
}

/// Where Pulsar is kept, and its classes for a Java of that version.
fn home(java_version: &str) -> Result<Distribution> {
    let home = paths::cache()?.join(format!("pulsar-{VERSION}"));
    let java = run::short_hex(&Sha256::digest(java_version));
    let classes = home.join(format!("classes-{java}.jsa"));
    Ok(Distribution { home, java: PathBuf::new(), classes })
}

fn fetch(home: &Path) -> Result<()> {
    let maven = maven()?;
    // Beside its place, so that it can be moved there in one step: what was interrupted leaves nothing half-made.
    let half_made = home.with_extension("unpacking");
    let _ = fs::remove_dir_all(&half_made);
    fs::create_dir_all(&half_made).with_context(|| format!("cannot create {}", half_made.display()))?;
    let fetched = download(&maven, &half_made).and_then(|unpacked| {
        fs::rename(&unpacked, home).with_context(|| format!("cannot write {}", home.display()))
    });
    let _ = fs::remove_dir_all(&half_made);
    fetched
}

/// Fetches the archive into a folder and unpacks it there.
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
        &format!("fetching Apache Pulsar {VERSION} by Maven, once (250 MB)"),
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
        "Apache Pulsar is fetched by Maven, and there is no `mvn` on the PATH: install it (Debian: maven)",
    )
}

/// The `java` to use, and what it calls its version.
fn java() -> Result<(PathBuf, String)> {
    let of_home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let needs = format!("Apache Pulsar needs Java {JAVA} or newer");
    let Some(java) = of_home.filter(|java| java.is_file()).or_else(|| paths::find_program("java")) else {
        bail!(
            "{needs}, and there is no `java` on the PATH: install it (Debian: openjdk-{JAVA}-jre-headless)"
        );
    };
    let output = run::output(Command::new(&java).arg("-version"), None)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match major(&said) {
        Some(version) if version >= JAVA => Ok((java, said)),
        Some(version) => bail!("{needs}, and {} is version {version}", java.display()),
        None => bail!("{needs}, and {} does not say its version", java.display()),
    }
}

/// The number in `openjdk version "17.0.15" 2025-04-15`. Before Java 9 it stood after `1.`.
fn major(said: &str) -> Option<u32> {
    let version = said.split_once("version \"")?.1;
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
    fn the_version_of_java_is_read() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime\n"), Some(17));
        assert_eq!(major("java version \"1.8.0_402\""), Some(8));
        assert_eq!(major("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(major("openjdk version \"24-ea\" 2025-03-18"), Some(24));
        assert_eq!(major("no java"), None);
    }
}
