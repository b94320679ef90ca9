//! `pulsar-consumer`: see `pulsar-consumer --help`.

use std::process::ExitCode;

use clap::Parser as _;
use quintet_pulsar_client::consumer;
use quintet_pulsar_client::exit::{Exit, Failure, conclude};
use quintet_pulsar_client::settings::{ConsumerArgs, complaint};

fn main() -> ExitCode {
    let args = match ConsumerArgs::try_parse().map_err(|error| complaint(&error)) {
        Ok(args) => args,
        Err(Ok(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Err(line)) => return conclude(Err(Failure { exit: Exit::Setting, line })),
    };
    conclude(run(&args))
}

fn run(args: &ConsumerArgs) -> Result<(), Failure> {
    let host = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    let settings = args.settings(host).map_err(|line| Failure { exit: Exit::Setting, line })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(error.to_string()))?;
    let ended = runtime.block_on(consumer::run(settings));
    // Looking up a host's address cannot be stopped, and is not waited for.
    runtime.shutdown_background();
    ended
}
