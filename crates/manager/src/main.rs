//! `quintet`: one process, five kinds.

mod args;
mod run;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    args.log.start();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return fail(&format!("the runtime cannot be started: {error}"));
        }
    };
    match runtime.block_on(run::run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}")),
    }
}

/// Says why on standard error, which may be closed.
fn fail(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "quintet: {why}");
    ExitCode::FAILURE
}
