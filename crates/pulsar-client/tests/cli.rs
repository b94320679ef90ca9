//! What the programs say of settings that cannot work: one line, and an exit code. No broker is needed.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::io::{PipeWriter, Write as _, pipe};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quintet_localcluster::cluster::ports;
use quintet_localcluster::http;
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};

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
#[case(CONSUMER, &[("PULSAR_SERVER", "localhost:6650")], &[], 2, "no address of a Pulsar service")]
#[case(CONSUMER, &[("PULSAR_TOPIC", "a/b")], &[], 2, "no name of a topic")]
#[case(CONSUMER, &[("PULSAR_SUBSCRIPTION_TYPE", "Any")], &[], 2, "no type of a subscription")]
#[case(CONSUMER, &[("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "soon")], &[], 2, "no duration")]
#[case(CONSUMER, &[], &["--nonsense"], 2, "unexpected argument '--nonsense'")]
#[case(CONSUMER, &[], &["--http-bind-address", "nowhere"], 1, "cannot listen on nowhere")]
#[case(PRODUCER, &[("PULSAR_SERVER", "http://localhost")], &[], 2, "no address of a Pulsar service")]
#[case(PRODUCER, &[], &["--count", "0"], 2, "0 is not in 1..")]
#[case(PRODUCER, &[], &["--timeout", "1"], 2, "no duration")]
fn what_is_malformed_ends_the_program(
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
fn help_names_the_variables(#[case] program: &str, #[case] variable: &str) {
    let output = run(program, &[], &["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for variable in [variable, "PULSAR_SERVER", "PULSAR_TOPIC", "PULSAR_TOKEN_FILE", "PULSAR_TLS_CA_FILE"] {
        assert!(text.contains(variable), "{variable}: {text}");
    }
}

#[test]
fn a_producer_gives_up_in_time_and_says_how_far_it_came() {
    // A port that nobody listens on, as far as one can know.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("pulsar://127.0.0.1:{port}");
    let output = run(PRODUCER, &[("PULSAR_SERVER", &server)], &["--timeout", "300ms"]);
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("cannot connect") && line.contains("0 of 1 messages were confirmed"), "{line}");
}

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Fills a pipe: who writes to it from now on waits for its reader.
fn fill(pipe: &PipeWriter) {
    let mut pipe = pipe.try_clone().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    thread::spawn(move || {
        while pipe.write_all(&[b'.'; 512]).is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut before = 0;
    until("the pipe is full", || {
        thread::sleep(Duration::from_millis(200));
        let now = written.load(Ordering::SeqCst);
        let full = now > 0 && now == before;
        before = now;
        full.then_some(())
    });
}

/// A program that runs no longer than its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_consumer_whose_stderr_nobody_reads_answers_and_ends() {
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    let (nobody, port) = (ports::one().unwrap(), ports::one().unwrap());
    let mut consumer = Running(
        Command::new(CONSUMER)
            .env_clear()
            .env("PULSAR_SERVER", format!("pulsar://127.0.0.1:{nobody}"))
            .env("PULSAR_HTTP_BIND_ADDRESS", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(writer)
            .spawn()
            .unwrap(),
    );
    for (path, expected) in [("/healthz", 200), ("/readyz", 502)] {
        until(path, || http::get(port, path).filter(|(status, _)| *status == expected));
    }
    kill_process(Pid::from_child(&consumer.0), Signal::TERM).unwrap();
    let status = until("the consumer ends", || consumer.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    drop(reader);
}
