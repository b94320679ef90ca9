//! `pulsar-producer`: see `pulsar-producer --help`.

use std::process::ExitCode;

use clap::Parser as _;
use quintet_pulsar_client::exit::{Exit, Failure, conclude};
use quintet_pulsar_client::producer;
use quintet_pulsar_client::settings::{ProducerArgs, complaint};

fn main() -> ExitCode {
    let args = match ProducerArgs::try_parse().map_err(|error| complaint(&error)) {
        Ok(args) => args,
        Err(Ok(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Err(line)) => return conclude(Err(Failure { exit: Exit::Setting, line })),
    };
    conclude(run(args))
}

fn run(args: ProducerArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(error.to_string()))?;
    let ended = runtime.block_on(producer::run(args));
    // Looking up a host's address cannot be stopped, and is not waited for.
    runtime.shutdown_background();
    ended
}
