//! CNCF Distribution, an OCI registry that stores its content in a folder. It needs no account, so it must listen only where
//! no other machine reaches it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::{binaries, ports};
use crate::http;
use crate::run::{self, Log};

/// How long a registry may take to start on a busy machine.
pub(crate) const START_LIMIT: Duration = Duration::from_mins(1);

/// A registry on a port of 127.0.0.1. It ends with this value.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    port: u16,
    log: Log,
}

impl Registry {
    /// Starts a registry over the folder `storage`, with its files beside the folder.
    pub fn start(storage: &Path) -> Result<Self> {
        let port = ports::one()?;
        let log = Log::fresh(storage.with_extension("log"))?;
        let mut command = command(&format!("{}:{port}", Ipv4Addr::LOCALHOST), storage, Access::Write)?;
        // Ctrl-C must reach this process first, which then ends the registry.
        let child =
            command.process_group(0).stdin(Stdio::null()).stdout(log.open()?).stderr(log.open()?).spawn();
        let mut registry = Self { child: child.context("cannot run the registry")?, port, log };
        run::poll("the registry answers", START_LIMIT, Duration::from_millis(50), || {
            if let Some(status) = registry.child.try_wait()? {
                bail!("the registry exited ({status}); {}", registry.log.tail(10));
            }
            Ok(http::get(port, "/v2/").filter(|(status, _)| *status == 200).map(|_| ()))
        })?;
        Ok(registry)
    }

    /// Its name in references to images, such as `127.0.0.1:20000`.
    pub fn name(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether clients may push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A registry at `address` over the folder `storage`, ready to start. Writes its configuration beside the folder.
pub(crate) fn command(address: &str, storage: &Path, access: Access) -> Result<Command> {
    let program = binaries::ensure(&[binaries::REGISTRY])?.path(binaries::REGISTRY)?;
    let file: PathBuf = storage.with_extension(if access == Access::Read { "read.yaml" } else { "yaml" });
    fs::create_dir_all(storage)
        .and_then(|()| fs::write(&file, config(address, storage, access)))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = Command::new(program);
    // Without this variable, the registry sends traces to a collector.
    command.arg("serve").arg(&file).env("OTEL_TRACES_EXPORTER", "none").current_dir("/");
    Ok(command)
}

fn config(address: &str, storage: &Path, access: Access) -> String {
    format!(
        r#"version: 0.1
log:
  level: warn
storage:
  filesystem:
    rootdirectory: {storage}
  maintenance:
    uploadpurging:
      enabled: false
    readonly:
      enabled: {read_only}
http:
  addr: "{address}"
"#,
        storage = Value::from(storage.to_string_lossy()),
        read_only = access == Access::Read,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_of_nodes_accepts_no_push() {
        let parse = |access| {
            let text = config("10.88.0.1:5001", Path::new("/a \"b\"/c"), access);
            serde_saphyr::from_str::<Value>(&text).unwrap()
        };
        let read = parse(Access::Read);
        assert_eq!(read["storage"]["maintenance"]["readonly"]["enabled"], true);
        assert_eq!(read["storage"]["filesystem"]["rootdirectory"], "/a \"b\"/c");
        assert_eq!(read["http"]["addr"], "10.88.0.1:5001");
        assert_eq!(parse(Access::Write)["storage"]["maintenance"]["readonly"]["enabled"], false);
    }
}
