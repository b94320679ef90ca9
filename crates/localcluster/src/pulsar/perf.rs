//! `pulsar-perf`, the measuring program of Apache Pulsar itself, from the same distribution as the broker: a producer and
//! a consumer that are not ours.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::distribution;

/// What its own script opens of Java's own library.
const OPENED: [&str; 5] = [
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
];

/// The command, as its own script makes it, to be given arguments. What it writes besides its output goes to `dir`.
pub fn command(dir: &Path) -> Result<Command> {
    let distribution = distribution::ensure()?;
    let home = &distribution.home;
    let mut command = Command::new(&distribution.java);
    command
        .args(["-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true"])
        .args(OPENED.map(|package| format!("--add-opens={package}=ALL-UNNAMED")))
        .arg(format!("-Dlog4j.configurationFile=file://{}", home.join("conf/log4j2.yaml").display()))
        .args(["-Dpulsar.log.appender=Console", "-Dpulsar.log.level=info"])
        .args(["-Dpulsar.log.root.level=info", "-Dpulsar.log.immediateFlush=false"])
        .arg(format!("-Dpulsar.log.dir={}", dir.display()))
        .arg("-Dpulsar.log.file=perf.log")
        .args(["-cp", &format!("{}/*", home.join("lib").display())])
        .arg("org.apache.pulsar.testclient.PulsarPerfTestTool")
        .arg(home.join("conf/client.conf"))
        .current_dir(dir);
    Ok(command)
}
