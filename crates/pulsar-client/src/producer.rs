//! The producer: sends messages and waits until the broker has confirmed each.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use pulsar::producer::SendFuture;
use pulsar::{Producer, ProducerOptions, TokioExecutor};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff;
use crate::dead_letters::open;
use crate::exit::{Exit, Failure};
use crate::notes::note;
use crate::problem::{Code, Problem};
use crate::session::connect_any;
use crate::settings::ProducerArgs;

/// The limit of messages that wait for confirmation. A higher limit uses more memory without more speed.
const UNCONFIRMED: usize = 10_000;

/// The limit of messages in a batch.
const BATCH: u32 = 1_000;

/// The approximate limit of bytes in a batch, as in Pulsar's clients.
const BATCH_BYTES: usize = 128 << 10;

/// How long a batch waits for more messages.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// How often a long run reports its progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Sends the messages.
pub async fn run(args: ProducerArgs) -> Result<(), Failure> {
    let setting = |line| Failure { exit: Exit::Setting, line };
    let server = args.location.server().map_err(setting)?;
    let topic = args.location.topic().map_err(setting)?.to_string();
    let files = args.location.files();
    let mut interrupted =
        signal(SignalKind::interrupt()).map_err(|error| Failure::other(error.to_string()))?;
    let mut terminated =
        signal(SignalKind::terminate()).map_err(|error| Failure::other(error.to_string()))?;
    let batched = args.count > 1 && !args.no_batching;
    let connect = async || {
        let host = connect_any(&server, &files).await?.host().clone();
        // The broker has just answered, so a failure may be temporary.
        let passing = |why: String| Problem::passing(Code::Unreachable, why);
        let client = open(&server.of(&host), &files).await.map_err(passing)?;
        let options = ProducerOptions {
            batch_size: batched.then_some(BATCH),
            batch_byte_size: batched.then_some(BATCH_BYTES),
            batch_timeout: batched.then_some(BATCH_DELAY),
            block_queue_if_full: true,
            ..ProducerOptions::default()
        };
        let producer = Box::pin(client.producer().with_topic(&topic).with_options(options).build()).await;
        producer.map_err(|error| passing(format!("the broker does not accept messages for {topic}: {error}")))
    };
    let mut run = Run { confirmed: 0, pending: VecDeque::new() };
    let sent = async {
        let mut producer = Box::pin(within(args.timeout, connect)).await?;
        Box::pin(run.send_all(&mut producer, &args)).await
    };
    let ended = tokio::select! {
        ended = sent => ended,
        _ = interrupted.recv() => Err(Failure::other("interrupted")),
        _ = terminated.recv() => Err(Failure::other("stopped by SIGTERM")),
    };
    ended.map_err(|failure| Failure {
        line: format!("{failure}; {} of {} messages were confirmed", run.confirmed, args.count),
        ..failure
    })?;
    if args.count == 1 {
        println("Published message")
    } else {
        println(&format!("Published {} messages", args.count))
    }
}

/// Retries until success, a permanent failure or the time limit.
async fn within<T>(limit: Duration, attempt: impl AsyncFn() -> Result<T, Problem>) -> Result<T, Failure> {
    let deadline = Instant::now() + limit;
    let mut failures = 0;
    let mut last: Option<Problem> = None;
    loop {
        let over = |why: &str| Failure::other(format!("{why} (gave up after {limit:?})"));
        let problem = match tokio::time::timeout_at(deadline, attempt()).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(problem)) => problem,
            Err(_) => {
                return Err(over(last.as_ref().map_or("the broker does not answer", |last| &last.sentence)));
            }
        };
        if let Some(failure) = problem.failure() {
            return Err(failure);
        }
        if Instant::now() >= deadline {
            return Err(over(&problem.sentence));
        }
        if last.as_ref() != Some(&problem) {
            note(&format!("Retrying: {problem}"));
        }
        failures += 1;
        last = Some(problem);
        // The wait ends at the time limit; then there is one more attempt.
        let _ = tokio::time::timeout_at(
            deadline,
            sleep(backoff::pause(&backoff::PRODUCE, failures, backoff::random())),
        )
        .await;
    }
}

struct Run {
    confirmed: u64,
    pending: VecDeque<SendFuture>,
}

impl Run {
    async fn send_all(
        &mut self,
        producer: &mut Producer<TokioExecutor>,
        args: &ProducerArgs,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut spoke = begun;
        for number in 1..=args.count {
            if let Some(rate) = args.rate {
                sleep_until(begun + due(number - 1, rate)).await;
            }
            self.confirm_what_is_there()?;
            if self.pending.len() >= UNCONFIRMED {
                self.confirm(args.timeout).await?;
            }
            let text = if args.count == 1 {
                args.message().to_owned()
            } else {
                format!("{} {number}", args.message())
            };
            let sent = timeout(args.timeout, Box::pin(producer.send_non_blocking(text))).await;
            let receipt = sent.map_err(|_| Failure::other("the broker accepts no more messages"))?;
            self.pending.push_back(receipt.map_err(|error| Failure::other(error.to_string()))?);
            if spoke.elapsed() >= PROGRESS {
                spoke = Instant::now();
                note(&format!("{number} of {} messages sent, {} confirmed", args.count, self.confirmed));
            }
        }
        while !self.pending.is_empty() {
            self.confirm(args.timeout).await?;
        }
        Ok(())
    }

    /// Counts the confirmations that have arrived, in order.
    fn confirm_what_is_there(&mut self) -> Result<(), Failure> {
        while let Some(confirmed) = self.pending.front_mut().and_then(FutureExt::now_or_never) {
            self.pending.pop_front();
            self.count(confirmed)?;
        }
        Ok(())
    }

    fn count<T>(&mut self, confirmed: Result<T, pulsar::Error>) -> Result<(), Failure> {
        confirmed.map_err(|error| Failure::other(format!("the broker did not accept a message: {error}")))?;
        self.confirmed += 1;
        Ok(())
    }

    /// Waits for the oldest pending confirmation.
    async fn confirm(&mut self, limit: Duration) -> Result<(), Failure> {
        let Some(receipt) = self.pending.pop_front() else { return Ok(()) };
        match timeout(limit, receipt).await {
            Ok(confirmed) => self.count(confirmed),
            Err(_) => Err(Failure::other(format!("the broker did not confirm a message within {limit:?}"))),
        }
    }
}

/// When to send the message with this number, from 0, at this rate per second.
fn due(number: u64, rate: u32) -> Duration {
    let rate = u64::from(rate);
    Duration::from_secs(number / rate) + Duration::from_nanos(number % rate * 1_000_000_000 / rate)
}

fn println(line: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure {
        exit: Exit::StdoutClosed,
        line: format!("cannot print, but all messages were confirmed: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_spreads_messages_over_time() {
        assert_eq!(due(0, 10), Duration::ZERO);
        assert_eq!(due(5, 10), Duration::from_millis(500));
        assert_eq!(due(25, 10), Duration::from_millis(2_500));
        assert_eq!(due(u64::from(u32::MAX), u32::MAX), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_temporary_failures_until_the_limit() {
        let tries = std::cell::Cell::new(0);
        let failure = within(Duration::from_secs(5), async || {
            tries.set(tries.get() + 1);
            Err::<(), _>(Problem::passing(Code::Unreachable, "refused"))
        })
        .await
        .unwrap_err();
        assert!(failure.line.starts_with("refused (gave up after 5s)"), "{failure}");
        assert!(tries.get() > 3);
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_retry_permanent_failures() {
        let failure = within(Duration::from_secs(5), async || {
            Err::<(), _>(Problem::last(Exit::TokenRefused, Code::TokenRefused, "no"))
        })
        .await
        .unwrap_err();
        assert_eq!(failure, Failure { exit: Exit::TokenRefused, line: "no".to_owned() });
    }
}
