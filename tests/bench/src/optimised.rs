//! The bench's own client must not be what is measured: a program that is compiled for debugging spends more on a
//! request than the API server does. So the bench builds itself once more, optimised, and goes on as that program.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, Log};
use quintet_localcluster::{interrupt, paths};
use serde_json::Value;

/// Returns where this program is optimised. Where it is not, this process becomes the optimised program.
pub fn go_on_there() -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    let program = build()?;
    interrupt::check()?;
    let error = Command::new(&program).args(env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot run {}", program.to_string_lossy()))
}

fn build() -> Result<OsString> {
    let log = Log::fresh(paths::cache()?.join("bench-build.log"))?;
    let mut step = Step::start_long("building the bench, optimised (minutes for the first time)");
    // As the release profile, without what makes it small and takes long.
    let profile = ["opt-level=2", "lto=\"off\"", "codegen-units=16"];
    let mut cargo = run::cargo();
    cargo.args(["build", "--release", "--package", "quintet-bench"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    for setting in profile {
        cargo.args(["--config", &format!("profile.release.{setting}")]);
    }
    let mut child = cargo
        .current_dir(paths::workspace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.open()?)
        .spawn()
        .context("cannot run cargo")?;
    let stdout = child.stdout.take();
    let (status, messages) = std::thread::scope(|scope| {
        let messages = scope.spawn(|| stdout.map(std::io::read_to_string));
        (run::wait(&mut child, || step.tick()), messages.join().ok().flatten())
    });
    if !status?.success() {
        bail!("building the bench failed; {}", log.tail(40));
    }
    let messages = messages.transpose().context("cannot read what cargo says")?.unwrap_or_default();
    step.done();
    executable(&messages).context("cargo built quintet-bench but does not say where it is")
}

/// The executable that cargo's JSON messages name.
fn executable(messages: &str) -> Option<OsString> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "quintet-bench")
        .find_map(|message| message["executable"].as_str().map(OsString::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_one_with_an_executable() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"quintet_bench"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"serde"},"executable":"/t/serde"}
{"reason":"compiler-artifact","target":{"name":"quintet-bench"},"executable":"/t/release/quintet-bench"}"#;
        assert_eq!(executable(messages), Some(OsString::from("/t/release/quintet-bench")));
        assert_eq!(executable("not json"), None);
    }
}
