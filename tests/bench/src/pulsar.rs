//! `cargo xtask bench pulsar`: counts the writes of PulsarConsumers, and compares the rate and memory of
//! `pulsar-consumer` with `pulsar-perf consume` of Apache Pulsar on the same topic.

mod writes;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quintet_localcluster::progress::Step;
use quintet_localcluster::pulsar::distribution::VERSION;
use quintet_localcluster::pulsar::{Admin, Broker, Options, perf};
use quintet_localcluster::run::{self, Log};
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{build, protoc};
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use self::writes::Written;
use super::attempts::{self, Attempt};
use super::contest::order;
use super::host::Versions;
use super::optimised;
use super::options::{command, repeated, word};
use super::process::{self, Memory};
use super::report::{self, Measurements, Run};
use super::stats::{float, mebibytes, ratio};
use super::table::{Figure, Table, count, range};

/// Large enough that the broker's heap does not limit the rate.
const HEAP_MIB: u32 = 1_024;

/// About 100 bytes with the number that pulsar-producer adds.
const MESSAGE: &str =
    "a small message, as sensors send them: {\"id\": 4711, \"celsius\": 21.5, \"volt\": 3.29} and its number";

const TOPIC: &str = "bench";

const LOOK: Duration = Duration::from_millis(20);

const LIMIT: Duration = Duration::from_mins(10);

/// Count PulsarConsumer's writes, and compare pulsar-consumer with pulsar-perf: rate, memory, processor time.
///
/// The first part uses a separate cluster, and counts the manager's writes from the creation of a
/// PulsarConsumer to its settled status. This part fails above three writes per PulsarConsumer and one write
/// per second, or if a restart of the manager writes.
///
/// The second part starts a broker (see `cargo xtask pulsar --help`: it needs Java and Maven) and fills a
/// topic. Both programs consume all messages of the topic in alternating order, each time with a new
/// Exclusive or Shared subscription. The output of pulsar-consumer goes to /dev/null; pulsar-perf does not
/// print messages. This part fails if a message is not acknowledged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of messages. Repeat the flag to measure several numbers
    #[arg(long, value_name = "N", default_values_t = [1_000_000], value_parser = clap::value_parser!(u32).range(10_000..=20_000_000))]
    messages: Vec<u32>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Smoke test: measure one round with 100,000 messages
    #[arg(long, conflicts_with_all = ["messages", "rounds", "write"])]
    quick: bool,
    /// Measure only this part of the bench
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Store the result in docs/bench and tests/bench/results, and keep the stored results of other parts and
    /// sizes
    #[arg(long)]
    write: bool,
}

impl Args {
    fn command(&self) -> String {
        let messages = repeated("--messages", &self.messages);
        let rates = format!("{messages} --rounds {}", self.rounds);
        let size = match self.quick {
            true => "--quick",
            false if self.includes(Part::Rate) => &rates,
            false => "",
        };
        let only = self.only.map_or_else(String::new, |part| format!("--only {}", word(&part)));
        command("pulsar", [size, &only, if self.quick { "" } else { "--write" }])
    }

    fn includes(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// the manager's writes on a cluster; needs no broker
    Writes,
    /// the rate of the programs on a broker
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
enum Contender {
    #[strum(to_string = "pulsar-consumer")]
    PulsarConsumer,
    #[strum(to_string = "pulsar-perf consume")]
    PulsarPerf,
}

/// The type of the subscription. Exclusive acknowledges all messages up to one, Shared does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::VariantArray)]
enum Kind {
    Exclusive,
    Shared,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    contender: Contender,
    kind: Kind,
    round: usize,
    /// From the first reading above 0 to the last message.
    messages_per_second: f64,
    /// The same for the second half, when a Java program is warm.
    second_half_per_second: f64,
    /// After the last acknowledgement.
    memory: Memory,
    cpu_seconds: f64,
    /// The broker's count of entries that were not acknowledged in the end.
    left: i64,
}

impl Attempt for Taken {
    type Contender = Contender;
    type Under = Kind;

    fn key(&self) -> (Contender, Kind, usize) {
        (self.contender, self.kind, self.round)
    }
}

/// The results of one part with one number of messages.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    #[serde(default)]
    writes: Vec<Written>,
    #[serde(default)]
    runs: Vec<Taken>,
}

const FIGURES: [Figure<Taken>; 5] = [
    ("messages/s", 0, |run| Some(run.messages_per_second)),
    ("second half, messages/s", 0, |run| Some(run.second_half_per_second)),
    ("peak MiB", 1, |run| Some(mebibytes(run.memory.peak_kib))),
    ("PSS MiB", 1, |run| Some(mebibytes(run.memory.pss_kib))),
    ("CPU s", 2, |run| Some(run.cpu_seconds)),
];

impl Measurements for Results {
    const NAME: &'static str = "pulsar";
    const TITLE: &'static str = "PulsarConsumer benchmark";
    const METHOD: &'static str = include_str!("pulsar/method.md");

    fn tables(&self) -> Vec<Table> {
        match self.writes[..] {
            [] => Kind::VARIANTS.iter().map(|kind| self.table(*kind)).collect(),
            _ => vec![writes::table(&self.writes)],
        }
    }

    fn failures(&self) -> Option<Vec<String>> {
        let left = self.runs.iter().filter(|run| run.left > 0);
        let left = left.map(|Taken { contender, kind, round, left, .. }| {
            format!("{contender} left {left} entries of {kind}, round {round}")
        });
        Some(left.chain(self.writes.iter().flat_map(Written::failures)).collect())
    }
}

impl Results {
    fn table(&self, kind: Kind) -> Table {
        let mut table = Table::of(format!("{kind} subscription"), &FIGURES);
        for contender in Contender::VARIANTS {
            let runs: Vec<&Taken> = attempts::of(&self.runs, kind, *contender).collect();
            let cells =
                FIGURES.map(|(_, places, figure)| range(runs.iter().filter_map(|run| figure(run)), places));
            table.row(contender.to_string(), cells);
        }
        let both = (Contender::PulsarConsumer, Contender::PulsarPerf);
        let ratios = FIGURES.map(|(_, _, figure)| range(attempts::ratios(&self.runs, kind, both, figure), 2));
        table.row("ratio", ratios);
        table.note("Cells are the median of the rounds, with the lowest and the highest in parentheses.");
        table
    }
}

pub fn run(args: &Args) -> Result<()> {
    if !args.quick && args.includes(Part::Rate) {
        optimised::become_optimised()?;
    }
    let mut runs = Vec::new();
    if args.includes(Part::Writes) {
        let program = build::release()?;
        let (about, measure) = ("Writes to the API server".to_owned(), || writes::measured(&program));
        // Size 0 is first on the page.
        runs.push(Run::measured(about, 0, args.command(), true, measure)?);
    }
    if args.includes(Part::Rate) {
        let Some(programs) = build::pulsar_release()? else { bail!("{}", protoc::MISSING) };
        let [consumer, producer] = &programs[..] else { bail!("cargo built unexpected programs") };
        let (sizes, rounds) =
            if args.quick { (vec![100_000], 1) } else { (args.messages.clone(), usize::from(args.rounds)) };
        for messages in sizes {
            let (about, size) = (format!("{} messages", count(messages)), usize::try_from(messages)?);
            let measure = || {
                let rig = PulsarRig::up(consumer, messages)?;
                rig.fill(producer)?;
                Ok((rig.measure(rounds, !args.quick)?, Versions::of_pulsar(consumer, VERSION)?))
            };
            runs.push(Run::measured(about, size, args.command(), true, measure)?);
        }
    }
    report::finish(&runs, args.write)
}

/// A broker with a topic of messages.
struct PulsarRig<'a> {
    broker: Broker,
    admin: Admin,
    consumer: &'a Path,
    messages: u32,
    _temporary: Temporary,
}

impl<'a> PulsarRig<'a> {
    fn up(consumer: &'a Path, messages: u32) -> Result<Self> {
        let temporary = Temporary::new("bench-broker");
        let (broker, _) = Broker::up(&Options { heap_mib: HEAP_MIB, ..Options::new(temporary.name()) })?;
        Ok(Self { admin: broker.admin()?, broker, consumer, messages, _temporary: temporary })
    }

    fn fill(&self, producer: &Path) -> Result<()> {
        let step = Step::start_long(format!("sending {} messages", count(self.messages)));
        // Without a subscription, the broker would not store the messages.
        self.admin.create_topic(TOPIC)?;
        self.admin.create_subscription(TOPIC, "keeper")?;
        let mut command = Command::new(producer);
        command.env("PULSAR_SERVER", self.broker.service_url()).env("PULSAR_TOPIC", TOPIC);
        command.args(["--message", MESSAGE, "--count", &self.messages.to_string()]);
        run::stdout(&mut command)?;
        step.done();
        Ok(())
    }

    fn measure(&self, rounds: usize, warm: bool) -> Result<Results> {
        let mut results = Results::default();
        if warm {
            for contender in Contender::VARIANTS {
                self.take(*contender, Kind::Exclusive, 0, format!("warming up: {contender}"))?;
            }
        }
        for kind in Kind::VARIANTS {
            for round in 1..=rounds {
                for contender in order(Contender::VARIANTS, round) {
                    let label = format!("{kind}, round {round} of {rounds}: {contender}");
                    results.runs.push(self.take(contender, *kind, round, label)?);
                }
            }
        }
        Ok(results)
    }

    fn take(&self, contender: Contender, kind: Kind, round: usize, label: String) -> Result<Taken> {
        let step = Step::start_long(label);
        let subscription = format!("{contender}-{kind}-{round}").replace(' ', "-");
        self.admin.create_subscription(TOPIC, &subscription)?;
        let log = Log::fresh(self.broker.dir().join(format!("{subscription}.log")))?;
        let mut child = Running(self.start(contender, kind, &subscription, &log)?);
        let taken = self.watch(&mut child.0, &subscription, (contender, kind, round));
        let taken = taken.with_context(|| log.tail(15))?;
        step.done();
        Ok(taken)
    }

    fn start(&self, contender: Contender, kind: Kind, subscription: &str, log: &Log) -> Result<Child> {
        let server = self.broker.service_url();
        let mut command = match contender {
            Contender::PulsarConsumer => {
                let mut command = Command::new(self.consumer);
                command
                    .env("PULSAR_SERVER", server)
                    .env("PULSAR_TOPIC", TOPIC)
                    .env("PULSAR_SUBSCRIPTION_NAME", subscription)
                    .env("PULSAR_SUBSCRIPTION_TYPE", kind.to_string())
                    .env("PULSAR_HTTP_BIND_ADDRESS", "127.0.0.1:0")
                    .stdout(File::create("/dev/null")?);
                command
            }
            Contender::PulsarPerf => {
                let mut command = perf::command(self.broker.dir())?;
                command
                    .args(["consume", "--service-url", &server, "--subscriptions", subscription])
                    .args(["--subscription-type", &kind.to_string(), "--receiver-queue-size", "1000", TOPIC])
                    .stdout(log.open()?);
                command
            }
        };
        command
            .stdin(Stdio::null())
            .stderr(log.open()?)
            .spawn()
            .with_context(|| format!("cannot run {contender}"))
    }

    /// Polls the broker's counts until the last message, and then measures the process.
    fn watch(
        &self,
        child: &mut Child,
        subscription: &str,
        (contender, kind, round): (Contender, Kind, usize),
    ) -> Result<Taken> {
        let pid = i32::try_from(child.id())?;
        let mut readings: Vec<(Instant, u32)> = Vec::new();
        run::poll("all messages are sent", LIMIT, LOOK, || {
            if child.try_wait()?.is_some() {
                bail!("the program exited before it had all messages");
            }
            let sent = self.admin.subscription(TOPIC, subscription)?["msgOutCounter"].as_u64();
            let sent = u32::try_from(sent.unwrap_or_default())?;
            if sent > 0 {
                readings.push((Instant::now(), sent));
            }
            Ok((sent >= self.messages).then_some(()))
        })?;
        // Acknowledgements can be late.
        let mut left = i64::MAX;
        let _ = run::poll("all messages are acknowledged", Duration::from_secs(10), LOOK, || {
            left = self.admin.backlog(TOPIC, subscription)?.unwrap_or(i64::MAX);
            Ok((left == 0).then_some(()))
        });
        let half = readings.iter().position(|(_, sent)| *sent >= self.messages / 2).unwrap_or_default();
        Ok(Taken {
            contender,
            kind,
            round,
            messages_per_second: rate(&readings),
            second_half_per_second: rate(&readings[half..]),
            memory: process::memory(pid)?,
            cpu_seconds: process::cpu_seconds(pid)?,
            left,
        })
    }
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Messages per second between the first reading and the last. 0 with a single reading.
fn rate(readings: &[(Instant, u32)]) -> f64 {
    let (Some((first, before)), Some((last, after))) = (readings.first(), readings.last()) else {
        return 0.0;
    };
    ratio(float(after - before), (*last - *first).as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unacknowledged_message_is_a_failure() {
        let left = r#"{"runs": [{"contender": "pulsar-consumer", "kind": "Shared", "round": 1, "left": 3,
            "messages_per_second": 1.0, "second_half_per_second": 1.0, "cpu_seconds": 1.0,
            "memory": {"rss_kib": 1, "peak_kib": 1, "pss_kib": 1}}]}"#;
        let failures = serde_json::from_str::<Results>(left).unwrap().failures().unwrap();
        assert_eq!(failures, ["pulsar-consumer left 3 entries of Shared, round 1"]);
    }

    #[test]
    fn rate_is_between_the_first_and_the_last_reading() {
        let now = Instant::now();
        let readings = [(now, 100), (now + Duration::from_secs(1), 150), (now + Duration::from_secs(2), 500)];
        let rates = [rate(&readings), rate(&readings[..1]), rate(&[])];
        assert_eq!(rates.map(|rate| format!("{rate:.3}")), ["200.000", "0.000", "0.000"]);
    }
}
