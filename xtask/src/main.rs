//! `cargo xtask COMMAND`: the developer commands of Quintet.

mod bench;
mod build;
mod chart;
mod cli;
mod demo;
mod dependencies;
mod faults;
mod generate;
mod image;
mod mutants;
mod pictures;
mod protoc;
mod release;
mod scratch;
mod test;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;
use quintet_localcluster::{cluster, consumers, interrupt, long_tier, pulsar};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let began = Instant::now();
    let done = interrupt::install().and_then(|()| match cli.command {
        Command::Cluster(args) => cluster::cli::run(args),
        Command::Pulsar(args) => pulsar::cli::run(args),
        Command::Generate(args) => generate::run(args.check),
        Command::Chart(args) => chart::run(&args),
        Command::Consumers(args) => consumers::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Build(build::Args {}) => build::run(),
        Command::Image(args) => image::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Protoc(protoc::Args {}) => protoc::run(),
        Command::Test(args) => test::run(&args),
        Command::E2e(args) => test::run_end_to_end(args),
        Command::Faults(args) => {
            faults::run(&args).inspect(|()| long_tier::passed("cargo xtask", "passed", began.elapsed()))
        }
        Command::Bench(args) => bench::run(&args),
        Command::Prose(args) => quintet_prose::run(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<interrupt::Interrupted>() => {
            eprintln!("{error}");
            ExitCode::from(130)
        }
        Err(error) if error.is::<test::Failed>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
