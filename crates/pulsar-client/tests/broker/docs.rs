//! The commands in docs/pulsar-programs.md work.

use std::path::Path;
use std::process::Command;

use quintet_localcluster::documents::{commands, without_variables};

use crate::program::plain;

/// Commands that build the programs or start and stop the broker, which the tests do.
const DONE: [&str; 2] = ["cargo xtask ", "eval "];

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn commands_in_the_document_work() {
    let broker = plain();
    let document = quintet_localcluster::paths::workspace().join("docs/pulsar-programs.md");
    let programs = Path::new(env!("CARGO_BIN_EXE_pulsar-consumer")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    let commands = commands(&document).into_iter();
    for command in commands.filter(|line| !DONE.iter().any(|done| line.starts_with(done))) {
        // The consumer runs until a signal.
        let command = if without_variables(&command) == "pulsar-consumer" {
            command.replace("pulsar-consumer", "timeout --preserve-status 3 pulsar-consumer")
        } else {
            command
        };
        let mut bash = Command::new("bash");
        bash.args(["-ec", &command])
            .env("PATH", &path)
            .env("PULSAR_SERVER", broker.service_url())
            .env("PULSAR_HTTP_BIND_ADDRESS", "127.0.0.1:0");
        if !command.contains("PULSAR_TOPICS_PATTERN=") {
            bash.env("PULSAR_TOPIC", "documented");
        }
        let output = bash.output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        ran += 1;
    }
    assert!(ran >= 6, "only {ran} commands were found");
}

#[test]
fn the_document_has_every_code_and_variable() {
    use quintet_pulsar_client::exit::Exit;
    use quintet_pulsar_client::problem::Code;
    let text =
        std::fs::read_to_string(quintet_localcluster::paths::workspace().join("docs/pulsar-programs.md"))
            .unwrap();
    let codes = Code::ALL.iter().map(|code| code.status());
    for row in codes.chain(Exit::ALL.iter().map(|exit| u16::from(exit.code()))) {
        assert!(text.contains(&format!("\n| {row} | ")), "{row}");
    }
    for program in [env!("CARGO_BIN_EXE_pulsar-consumer"), env!("CARGO_BIN_EXE_pulsar-producer")] {
        let help = Command::new(program).arg("--help").output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        for variable in help.split("[env: ").skip(1).map(|rest| rest.split(['=', ']']).next().unwrap()) {
            assert!(text.contains(&format!("\n| `{variable}` | ")), "{variable}");
        }
    }
}
