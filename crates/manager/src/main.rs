//! The program `quintet`: the manager of the kinds, and commands for users.

mod api_client;
mod args;
mod check;
mod doctor;
mod explain;
mod kubeconfig;
mod logs;
mod metrics_auth;
mod pages;
mod parse;
mod rollout;
mod run;
mod uninstall;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quintet_runtime::server::client::causes;
use tokio::runtime::Runtime;

use crate::args::{Asked, Command};

/// The exit code of `doctor`, `explain` and `rollout status` on an error. 1 means that the doctor found a problem, that a node
/// would not run, or that the rollout failed.
const NO_ANSWER: u8 = 2;

fn main() -> ExitCode {
    let asked = args::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let failed = match &asked {
        Asked::Command(Command::Doctor(_) | Command::Explain(_)) => NO_ANSWER,
        Asked::Command(Command::Rollout(args)) if args.is_status() => NO_ANSWER,
        _ => 1,
    };
    answer(asked).unwrap_or_else(|error| fail(&why(&error), failed))
}

/// Starts the async runtime for what the user asked for, and returns the exit code.
fn answer(asked: Asked) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let code = run_in(&runtime, asked);
    // A name lookup or a credential plugin without an answer must not delay the exit.
    runtime.shutdown_background();
    code
}

fn run_in(runtime: &Runtime, asked: Asked) -> Result<ExitCode> {
    match asked {
        Asked::Help(help) => say(&help),
        Asked::Manager(args) => {
            let log = args.log.start().context("cannot start the log's thread")?;
            let ended = runtime.block_on(run::run(*args, log.clone()));
            log.flush();
            ended?;
        }
        Asked::Command(Command::Explain(args)) => {
            let explained = runtime.block_on(explain::run(&args))?;
            say(&explained.text);
            return Ok(ExitCode::from(u8::from(!explained.all_run)));
        }
        Asked::Command(Command::Doctor(args)) => {
            let report = runtime.block_on(doctor::run(&args, args::flags_of))?;
            say(&report.text);
            return Ok(ExitCode::from(report.code));
        }
        Asked::Command(Command::Check(args)) => say(&runtime.block_on(check::run(&args))?),
        Asked::Command(Command::Version) => say(&format!("quintet {}\n", env!("CARGO_PKG_VERSION"))),
        Asked::Command(Command::Rollout(args)) => return runtime.block_on(rollout::run(&args)),
        Asked::Command(Command::Uninstall(args)) => runtime.block_on(uninstall::run(&args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints on standard output. A closed pipe (`head`) is not an error.
fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// An error and its causes, without secrets.
fn why(error: &anyhow::Error) -> String {
    causes(error.as_ref()).join(": ")
}

/// Prints the error on standard error, which may be closed.
fn fail(why: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "quintet: {why}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::AuthError;
    use kube::config::{Kubeconfig, KubeconfigError};

    #[test]
    fn errors_are_one_line_without_secrets() {
        let text = "apiVersion: v1\nusers:\n- name: a\n  user:\n    token: [s3cret, {\n";
        let broken = Kubeconfig::from_yaml(text).unwrap_err();
        assert!(matches!(broken, KubeconfigError::Parse(_)));
        let broken: anyhow::Error = Err::<(), _>(broken).context("cannot read the kubeconfig k").unwrap_err();
        let why = why(&broken);
        assert!(
            why.starts_with("cannot read the kubeconfig k: it is not a kubeconfig in YAML, at line "),
            "{why}"
        );
        assert!(!why.contains("s3cret") && !why.contains('\n'), "{why}");
        // The error and its cause both quote the credential plugin's answer.
        let Err(KubeconfigError::Parse(parse)) = Kubeconfig::from_yaml(text) else {
            panic!("the error is not about YAML")
        };
        let error =
            anyhow::Error::new(kube::Error::Auth(AuthError::AuthExecParse(parse))).context("no client");
        assert_eq!(
            super::why(&error),
            "no client: auth error: the credential plugin's answer is not an ExecCredential"
        );
    }

    #[test]
    fn a_cause_is_printed_once() {
        let cause = std::io::Error::other("no such thing");
        let error =
            anyhow::Error::new(cause).context("reading failed: no such thing").context("nothing is done");
        assert_eq!(why(&error), "nothing is done: reading failed: no such thing");
    }
}
