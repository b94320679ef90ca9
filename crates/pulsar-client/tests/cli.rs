//! The programs report invalid settings with one line and an exit code. These tests need no broker.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::process::{Command, Output};

use rstest::rstest;

const CONSUMER: &str = env!("CARGO_BIN_EXE_pulsar-consumer");
const PRODUCER: &str = env!("CARGO_BIN_EXE_pulsar-producer");

fn run(program: &str, variables: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(program).env_clear().envs(variables.iter().copied()).args(args).output().unwrap()
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert_eq!(text.lines().last(), Some(errors[0]), "{text}");
    errors[0].to_owned()
}

#[rstest]
#[case(CONSUMER, &[("PULSAR_SERVER", "localhost:6650")], &[], 2, "not an address of a Pulsar service")]
#[case(CONSUMER, &[("PULSAR_TOPIC", "a/b")], &[], 2, "not a topic name")]
#[case(CONSUMER, &[("PULSAR_SUBSCRIPTION_TYPE", "Any")], &[], 2, "not a subscription type")]
#[case(CONSUMER, &[("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "soon")], &[], 2, "not a duration")]
#[case(CONSUMER, &[], &["--nonsense"], 2, "unexpected argument '--nonsense'")]
#[case(CONSUMER, &[], &["--http-bind-address", "nowhere"], 1, "cannot listen on nowhere")]
#[case(PRODUCER, &[("PULSAR_SERVER", "http://localhost")], &[], 2, "not an address of a Pulsar service")]
#[case(PRODUCER, &[], &["--count", "0"], 2, "0 is not in 1..")]
#[case(PRODUCER, &[], &["--timeout", "1"], 2, "not a duration")]
fn a_malformed_setting_ends_the_program(
    #[case] program: &str,
    #[case] variables: &[(&str, &str)],
    #[case] args: &[&str],
    #[case] code: i32,
    #[case] why: &str,
) {
    let output = run(program, variables, args);
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.contains(why), "{line}");
    assert!(output.stdout.is_empty());
}

#[rstest]
#[case(CONSUMER, "PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY")]
#[case(PRODUCER, "PULSAR_MESSAGE")]
fn help_lists_the_variables(#[case] program: &str, #[case] variable: &str) {
    let output = run(program, &[], &["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for variable in [variable, "PULSAR_SERVER", "PULSAR_TOPIC", "PULSAR_TOKEN_FILE", "PULSAR_TLS_CA_FILE"] {
        assert!(text.contains(variable), "{variable}: {text}");
    }
}

#[test]
fn a_producer_gives_up_in_time_with_its_progress() {
    // A port without a listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("pulsar://127.0.0.1:{port}");
    let output = run(PRODUCER, &[("PULSAR_SERVER", &server)], &["--timeout", "300ms"]);
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("cannot connect") && line.contains("0 of 1 messages were confirmed"), "{line}");
}
