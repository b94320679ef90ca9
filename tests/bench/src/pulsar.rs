//! `cargo xtask bench pulsar`: what PulsarConsumers cost the API server; and how fast `pulsar-consumer` takes messages from
//! a broker and in how much memory, beside `pulsar-perf consume`, the measuring program of Apache Pulsar itself, from the
//! same topic of the same broker.

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
use super::stats::{self, Spread, float, mebibytes, ratio};
use super::table::{Figure, NONE, Table, count};

/// The broker's heap: enough that it is not what is measured.
const HEAP_MIB: u32 = 1_024;

/// Every message has about so many bytes.
const MESSAGE: &str =
    "a small message, as sensors send them: {\"id\": 4711, \"celsius\": 21.5, \"volt\": 3.29} and its number";

const TOPIC: &str = "bench";

const LOOK: Duration = Duration::from_millis(20);

const LIMIT: Duration = Duration::from_mins(10);

/// PulsarConsumer's writes; pulsar-consumer beside pulsar-perf: messages in a second, memory, processor time.
///
/// First it counts what the manager writes from an object to its settled status, on a cluster of its own: at most three
/// writes, and one for each second that it takes, none after a restart; it fails if there are more.
///
/// Then it starts a broker of its own (see `cargo xtask pulsar --help`: it needs Java and Maven), fills a topic, and
/// has both take all of it, in alternating order, each time with a new subscription: Exclusive and Shared. What
/// pulsar-consumer prints goes to /dev/null; pulsar-perf prints nothing of a message.
///
/// It fails if a message is not acknowledged in the end.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of messages; may be given several times
    #[arg(long, value_name = "N", default_values_t = [1_000_000], value_parser = clap::value_parser!(u32).range(10_000..=20_000_000))]
    messages: Vec<u32>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// See whether it works: 100,000 messages, one round
    #[arg(long, conflicts_with_all = ["messages", "rounds", "write"])]
    quick: bool,
    /// Measure this alone
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Keep the outcome in docs/bench and tests/bench/results, beside runs of the other part and with other numbers of messages
    #[arg(long)]
    write: bool,
}

impl Args {
    fn command(&self) -> String {
        let messages = repeated("--messages", &self.messages);
        let rates = format!("{messages} --rounds {}", self.rounds);
        let size = match self.quick {
            true => "--quick",
            false if self.wants(Part::Rate) => &rates,
            false => "",
        };
        let only = self.only.map_or_else(String::new, |part| format!("--only {}", word(&part)));
        command("pulsar", [size, &only, if self.quick { "" } else { "--write" }])
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// How the manager writes, on a cluster; needs no broker
    Writes,
    /// How the programs take messages, from a broker
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

/// The subscriptions that are measured: one that acknowledges all up to a message, and one that does not.
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
    /// From the first look at which there were some to the last message.
    messages_per_second: f64,
    /// The same for the second half, when a Java program is warm.
    second_half_per_second: f64,
    /// When all were acknowledged.
    memory: Memory,
    cpu_seconds: f64,
    /// What the broker says was not acknowledged in the end.
    left: i64,
}

impl Attempt for Taken {
    type Contender = Contender;
    type Under = Kind;

    fn key(&self) -> (Contender, Kind, usize) {
        (self.contender, self.kind, self.round)
    }
}

/// Everything of one part, with one number of messages.
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
    const TITLE: &'static str = "PulsarConsumer, measured";
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
        table.note("Median of the rounds, the least and the greatest in parentheses.");
        table
    }
}

/// The median, and the ends if there is more than one value.
fn range(values: impl IntoIterator<Item = f64>, places: usize) -> String {
    let values: Vec<f64> = values.into_iter().collect();
    let ends = stats::spread(values.iter().copied()).zip(stats::quantile(&values, 0.0));
    match ends {
        None => NONE.to_owned(),
        Some((Spread { median, rounds: 1, .. }, _)) => format!("{median:.places$}"),
        Some((Spread { median, worst, .. }, least)) => {
            format!("{median:.places$} ({least:.places$} to {worst:.places$})")
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    if !args.quick && args.wants(Part::Rate) {
        optimised::go_on_there()?;
    }
    let mut runs = Vec::new();
    if args.wants(Part::Writes) {
        let program = build::release()?;
        let (about, measure) = ("Writes to the API server".to_owned(), || writes::measured(&program));
        // Before everything else.
        runs.push(Run::measured(about, 0, args.command(), true, measure)?);
    }
    if args.wants(Part::Rate) {
        let Some(programs) = build::pulsar_release()? else { bail!("{}", protoc::MISSING) };
        let [consumer, producer] = &programs[..] else { bail!("cargo built other programs than asked for") };
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

/// A broker that is full of messages.
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
        // Without a subscription nothing would be kept.
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
                self.take(*contender, Kind::Exclusive, 0, format!("{contender}, uncounted"))?;
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

    /// Follows the broker's counts to the last message, and measures the process then.
    fn watch(
        &self,
        child: &mut Child,
        subscription: &str,
        (contender, kind, round): (Contender, Kind, usize),
    ) -> Result<Taken> {
        let pid = i32::try_from(child.id())?;
        let mut looks: Vec<(Instant, u32)> = Vec::new();
        run::poll("all messages are sent", LIMIT, LOOK, || {
            if child.try_wait()?.is_some() {
                bail!("it ended before it had all messages");
            }
            let sent = self.admin.subscription(TOPIC, subscription)?["msgOutCounter"].as_u64();
            let sent = u32::try_from(sent.unwrap_or_default())?;
            if sent > 0 {
                looks.push((Instant::now(), sent));
            }
            Ok((sent >= self.messages).then_some(()))
        })?;
        // Acknowledgements may trail behind.
        let mut left = i64::MAX;
        let _ = run::poll("all messages are acknowledged", Duration::from_secs(10), LOOK, || {
            left = self.admin.backlog(TOPIC, subscription)?.unwrap_or(i64::MAX);
            Ok((left == 0).then_some(()))
        });
        let half = looks.iter().position(|(_, sent)| *sent >= self.messages / 2).unwrap_or_default();
        Ok(Taken {
            contender,
            kind,
            round,
            messages_per_second: rate(&looks),
            second_half_per_second: rate(&looks[half..]),
            memory: process::memory(pid)?,
            cpu_seconds: process::cpu_seconds(pid)?,
            left,
        })
    }
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Messages in a second between the first look and the last; 0 where there was one look only.
fn rate(looks: &[(Instant, u32)]) -> f64 {
    let (Some((first, before)), Some((last, after))) = (looks.first(), looks.last()) else { return 0.0 };
    ratio(float(after - before), (*last - *first).as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_left_is_a_failure() {
        let left = r#"{"runs": [{"contender": "pulsar-consumer", "kind": "Shared", "round": 1, "left": 3,
            "messages_per_second": 1.0, "second_half_per_second": 1.0, "cpu_seconds": 1.0,
            "memory": {"rss_kib": 1, "peak_kib": 1, "pss_kib": 1}}]}"#;
        let failures = serde_json::from_str::<Results>(left).unwrap().failures().unwrap();
        assert_eq!(failures, ["pulsar-consumer left 3 entries of Shared, round 1"]);
    }

    #[test]
    fn shows_both_ends() {
        let shown = [range([3.0, 2.0, 9.0], 1), range([2.0], 2), range([], 1)];
        assert_eq!(shown, ["3.0 (2.0 to 9.0)", "2.00", "-"]);
    }

    #[test]
    fn a_rate_lies_between_the_first_and_the_last_look() {
        let now = Instant::now();
        let looks = [(now, 100), (now + Duration::from_secs(1), 150), (now + Duration::from_secs(2), 500)];
        let rates = [rate(&looks), rate(&looks[..1]), rate(&[])];
        assert_eq!(rates.map(|rate| format!("{rate:.3}")), ["200.000", "0.000", "0.000"]);
    }
}
