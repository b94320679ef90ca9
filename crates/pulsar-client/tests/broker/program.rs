//! The programs as processes, and the brokers that they meet.

use std::env;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quintet_localcluster::cluster::ports;
use quintet_localcluster::http;
use quintet_localcluster::pulsar::{Broker, Lifetime, Options};
use quintet_localcluster::variables;
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

/// A broker that tests share, or one of one test, by its name: whoever comes first starts it.
fn broker(name: &str, auth: bool, tls: Option<Lifetime>) -> Broker {
    let prefix = env::var(variables::BROKERS).expect("these tests are run by `cargo xtask test --pulsar ''`");
    let options = Options { auth, tls, ..Options::new(format!("{prefix}-{name}")) };
    Broker::up(&options).unwrap().0
}

/// A broker without authentication and TLS, for all tests.
pub fn plain() -> Broker {
    broker("plain", false, None)
}

/// A broker that asks for tokens, for all tests.
pub fn with_tokens() -> Broker {
    broker("tokens", true, None)
}

/// A broker with TLS, for one test.
pub fn with_tls(name: &str, lifetime: Lifetime) -> Broker {
    broker(name, false, Some(lifetime))
}

/// A broker for one test, which may do with it what it wants.
pub fn own(name: &str) -> Broker {
    broker(name, false, None)
}

/// Waits until something is so.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A consumer that runs.
pub struct Consumer {
    child: Child,
    port: u16,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
}

/// How a consumer ended.
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its lines on stdout.
    pub stdout: Vec<String>,
    /// Its lines on stderr.
    pub stderr: Vec<String>,
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            to.lock().unwrap().push(line);
        }
    });
    lines
}

impl Consumer {
    /// Starts a consumer of a broker's topic. What it prints is read.
    pub fn start(server: &str, topic: &str, variables: &[(&str, &str)]) -> Self {
        let mut consumer = Self::unread(server, topic, variables);
        consumer.read();
        consumer
    }

    /// The same, but nobody reads what it prints.
    pub fn unread(server: &str, topic: &str, variables: &[(&str, &str)]) -> Self {
        let port = ports::one().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pulsar-consumer"))
            .env_clear()
            .env("PULSAR_SERVER", server)
            .env("PULSAR_TOPIC", topic)
            .env("PULSAR_HTTP_BIND_ADDRESS", format!("127.0.0.1:{port}"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = collect(child.stderr.take().unwrap());
        Self { child, port, stdout: Arc::default(), stderr }
    }

    /// Begins to read what it prints.
    pub fn read(&mut self) {
        self.stdout = collect(self.child.stdout.take().unwrap());
    }

    /// Takes the pipe that it prints to.
    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it answers to a probe.
    pub fn probe(&self, path: &str) -> Option<(u16, String)> {
        http::get(self.port, path)
    }

    /// Waits until it answers so.
    pub fn until_ready(&self, status: u16) -> String {
        until(&format!("/readyz answers {status}"), || match self.probe("/readyz") {
            Some((code, body)) if code == status => Some(body),
            other => {
                eprintln!("/readyz answers {other:?}");
                None
            }
        })
    }

    /// A counter of its metrics.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.probe("/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("pulsar_consumer_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// The payloads that it has printed so far.
    pub fn messages(&self) -> Vec<String> {
        messages(&self.stdout.lock().unwrap())
    }

    /// Waits until it has printed so many messages, and returns them.
    pub fn until_messages(&self, count: usize) -> Vec<String> {
        until(&format!("{count} messages"), || {
            let printed = self.stdout.lock().unwrap().len();
            (printed >= count).then(|| self.messages())
        })
    }

    /// Waits until it has said something on stderr.
    pub fn until_said(&self, what: &str) {
        until(what, || self.stderr.lock().unwrap().iter().any(|line| line.contains(what)).then_some(()));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGTERM, and how it ended.
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until it ends.
    pub fn ended(mut self) -> Ended {
        let status = until("the consumer ends", || self.child.try_wait().unwrap());
        // The threads that read are at the end once the pipes are.
        let lines = |of: &Arc<Mutex<Vec<String>>>| {
            until("the last line", || (Arc::strong_count(of) == 1).then(|| of.lock().unwrap().clone()))
        };
        Ended { code: status.code(), stdout: lines(&self.stdout), stderr: lines(&self.stderr) }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the consumer said: {:#?}", self.stderr.lock().unwrap());
        }
    }
}

impl Ended {
    /// It ended well.
    pub fn well(self) -> Vec<String> {
        assert_eq!(self.code, Some(0), "{:?}", self.stderr);
        messages(&self.stdout)
    }

    /// It ended by itself, with one line that says why.
    pub fn badly(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{:?}", self.stderr);
        let errors: Vec<&String> = self.stderr.iter().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{:?}", self.stderr);
        errors[0]
    }
}

fn messages(lines: &[String]) -> Vec<String> {
    let payload = |line: &String| {
        line.strip_prefix("Message Received: ").unwrap_or_else(|| panic!("{line:?} is no message")).to_owned()
    };
    lines.iter().map(payload).collect()
}

/// A producer, run to its end.
pub fn produce(server: &str, topic: &str, args: &[&str]) -> Output {
    produce_with(server, topic, &[], args)
}

/// The same with more variables.
pub fn produce_with(server: &str, topic: &str, variables: &[(&str, &str)], args: &[&str]) -> Output {
    producer(server, topic, variables, args).output().unwrap()
}

/// A producer, to be run.
pub fn producer(server: &str, topic: &str, variables: &[(&str, &str)], args: &[&str]) -> Command {
    let mut producer = Command::new(env!("CARGO_BIN_EXE_pulsar-producer"));
    producer
        .env_clear()
        .env("PULSAR_SERVER", server)
        .env("PULSAR_TOPIC", topic)
        .envs(variables.iter().copied())
        .args(args)
        .stdin(Stdio::null());
    producer
}

/// Sends messages `MESSAGE 1` to `MESSAGE COUNT`, and makes sure that it worked.
pub fn send(broker: &Broker, topic: &str, message: &str, count: usize, args: &[&str]) {
    let count = count.to_string();
    let args = [&["--message", message, "--count", &count], args].concat();
    let output = produce(&broker.service_url(), topic, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `MESSAGE 1` to `MESSAGE COUNT`.
pub fn numbered(message: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{message} {number}")).collect()
}

/// Those, in any order.
pub fn sorted(mut messages: Vec<String>) -> Vec<String> {
    messages.sort();
    messages
}

/// Waits until a subscription has nothing left to acknowledge.
pub fn until_backlog(broker: &Broker, topic: &str, subscription: &str, backlog: i64) {
    let admin = broker.admin().unwrap();
    until(&format!("a backlog of {backlog}"), || {
        let now = admin.backlog(topic, subscription).unwrap();
        (now == Some(backlog)).then_some(()).or_else(|| {
            eprintln!("the backlog is {now:?}");
            None
        })
    });
}

/// A file of a test, which goes with the broker.
pub fn own_file(broker: &Broker, name: &str, text: &str) -> PathBuf {
    let file = broker.dir().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// Writes a file whole, as the kubelet changes a mounted one.
pub fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}
