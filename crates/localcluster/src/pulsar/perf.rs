//! `pulsar-perf`, Apache Pulsar's benchmark program: a foreign producer and consumer to compare with.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::distribution;

/// The packages of Java's library that pulsar-perf's script opens.
const OPENED: [&str; 5] = [
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
];

/// The command of pulsar-perf's script, without arguments. Its files, except its output, go to `dir`.
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
