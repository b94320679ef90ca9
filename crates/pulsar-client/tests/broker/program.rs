//! The programs as processes, and their brokers.

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

/// The time limit of a wait on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);

/// A limit of the reconnects while a broker restarts. The pauses between them grow to 30 s less the jitter, so 16 failures
/// in a row take 115 s or more.
pub const OUTAGE_RECONNECTS: u64 = 15;

/// A shared broker, or one of a single test, by its name. The first test starts it.
fn broker(name: &str, auth: bool, tls: Option<Lifetime>) -> Broker {
    let prefix = env::var(variables::BROKERS).expect("these tests are run by `cargo xtask test --pulsar ''`");
    let options = Options { auth, tls, ..Options::new(format!("{prefix}-{name}")) };
    Broker::up(&options).unwrap().0
}

/// A broker without authentication and TLS, for all tests.
pub fn plain() -> Broker {
    broker("plain", false, None)
}

/// A broker that requires tokens, for all tests.
pub fn with_tokens() -> Broker {
    broker("tokens", true, None)
}

/// A broker with TLS that requires tokens or client certificates, for one test.
pub fn with_certificates() -> Broker {
    broker("certificates", true, Some(Lifetime::Year))
}

/// A broker with an OAuth2 issuer, for one test.
pub fn with_issuer() -> Broker {
    let prefix = env::var(variables::BROKERS).expect("these tests are run by `cargo xtask test --pulsar ''`");
    let options = Options { auth: true, issuer: true, ..Options::new(format!("{prefix}-issuer")) };
    Broker::up(&options).unwrap().0
}

/// A broker for large messages, for one test. A small one runs out of memory.
pub fn large() -> Broker {
    let prefix = env::var(variables::BROKERS).expect("these tests are run by `cargo xtask test --pulsar ''`");
    Broker::up(&Options { heap_mib: 1_024, ..Options::new(format!("{prefix}-large")) }).unwrap().0
}

/// A broker with TLS, for one test.
pub fn with_tls(name: &str, lifetime: Lifetime) -> Broker {
    broker(name, false, Some(lifetime))
}

/// A broker for one test, which may change it.
pub fn own(name: &str) -> Broker {
    broker(name, false, None)
}

/// A broker that requires tokens, for one test, which may change it.
pub fn own_with_tokens(name: &str) -> Broker {
    broker(name, true, None)
}

/// Waits for a condition.
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

/// A running consumer.
pub struct Consumer {
    child: Child,
    port: u16,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
}

/// The end of a consumer.
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
    /// Starts a consumer of a topic, and reads its output.
    pub fn start(server: &str, topic: &str, variables: &[(&str, &str)]) -> Self {
        let mut consumer = Self::unread(server, topic, variables);
        consumer.read();
        consumer
    }

    /// Starts a consumer of a topic without reading its output.
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

    /// Starts to read its output.
    pub fn read(&mut self) {
        self.stdout = collect(self.child.stdout.take().unwrap());
    }

    /// Takes the pipe of its standard output.
    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its answer to a probe.
    pub fn probe(&self, path: &str) -> Option<(u16, String)> {
        http::get(self.port, path)
    }

    /// Waits for this answer.
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

    /// When its process started, according to its metrics. A restarted process has another time.
    pub fn started(&self) -> String {
        let (_, text) = self.probe("/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    /// The printed payloads.
    pub fn messages(&self) -> Vec<String> {
        messages(&self.stdout.lock().unwrap())
    }

    /// Waits for this number of printed messages, and returns them.
    pub fn until_messages(&self, count: usize) -> Vec<String> {
        until(&format!("{count} messages"), || {
            let printed = self.stdout.lock().unwrap().len();
            (printed >= count).then(|| self.messages())
        })
    }

    /// Waits for a text on stderr.
    pub fn until_said(&self, what: &str) {
        until(what, || self.stderr.lock().unwrap().iter().any(|line| line.contains(what)).then_some(()));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM, and returns the end.
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until it ends.
    pub fn ended(mut self) -> Ended {
        let status = until("the consumer ends", || self.child.try_wait().unwrap());
        // The reading threads end with the pipes.
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
            eprintln!("stderr of the consumer: {:#?}", self.stderr.lock().unwrap());
        }
    }
}

impl Ended {
    /// Asserts a success.
    pub fn well(self) -> Vec<String> {
        assert_eq!(self.code, Some(0), "{:?}", self.stderr);
        messages(&self.stdout)
    }

    /// Asserts a failure with one line, and returns the line.
    pub fn badly(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{:?}", self.stderr);
        let errors: Vec<&String> = self.stderr.iter().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{:?}", self.stderr);
        errors[0]
    }
}

fn messages(lines: &[String]) -> Vec<String> {
    let payload = |line: &String| {
        line.strip_prefix("Message Received: ")
            .unwrap_or_else(|| panic!("{line:?} is not a message"))
            .to_owned()
    };
    lines.iter().map(payload).collect()
}

/// Runs a producer.
pub fn produce(server: &str, topic: &str, args: &[&str]) -> Output {
    produce_with(server, topic, &[], args)
}

/// Runs a producer with more variables.
pub fn produce_with(server: &str, topic: &str, variables: &[(&str, &str)], args: &[&str]) -> Output {
    producer(server, topic, variables, args).output().unwrap()
}

/// The command of a producer.
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

/// Sends messages `MESSAGE 1` to `MESSAGE COUNT`, and asserts the success.
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

/// Sorted messages, to compare them in any order.
pub fn sorted(mut messages: Vec<String>) -> Vec<String> {
    messages.sort();
    messages
}

/// Waits until a subscription has this backlog.
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

/// A file of a test, which is deleted with the broker.
pub fn own_file(broker: &Broker, name: &str, text: &str) -> PathBuf {
    let file = broker.dir().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// Replaces a file atomically, as the kubelet does.
pub fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}
