//! The producer: sends messages and waits until the broker has confirmed each.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use prost::Message as _;
use pulsar::message::Metadata;
use pulsar::message::proto::SingleMessageMetadata;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::backoff;
use crate::exit::{Exit, Failure};
use crate::frame::Entry;
use crate::notes::note;
use crate::problem::Problem;
use crate::publisher::Publisher;
use crate::settings::ProducerArgs;

/// The limit of messages that wait for confirmation. A higher limit uses more memory without more speed.
const UNCONFIRMED: u64 = 10_000;

/// The limit of their bytes.
const UNCONFIRMED_BYTES: u64 = 64 << 20;

/// The limit of messages in a batch.
const BATCH: i32 = 1_000;

/// The approximate limit of bytes in a batch, as in Pulsar's clients.
const BATCH_BYTES: usize = 128 << 10;

/// How long a batch waits for more messages.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// How often a long run reports its progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Sends the messages.
pub async fn run(args: ProducerArgs) -> Result<(), Failure> {
    let setting = |line| Failure { exit: Exit::Setting, line };
    let service = args.location.service().map_err(setting)?;
    let topic = args.location.topic().map_err(setting)?;
    let mut interrupted =
        signal(SignalKind::interrupt()).map_err(|error| Failure::other(error.to_string()))?;
    let mut terminated =
        signal(SignalKind::terminate()).map_err(|error| Failure::other(error.to_string()))?;
    let connect = || Publisher::open(&service, &topic);
    let mut progress = Progress { confirmed: 0, sent: 0 };
    let sent = async {
        let publisher = Box::pin(within(args.timeout, connect)).await?;
        let run = Run {
            publisher,
            connect,
            args: &args,
            waiting: VecDeque::new(),
            failing: None,
            progress: &mut progress,
        };
        Box::pin(run.send_all()).await
    };
    let ended = tokio::select! {
        ended = sent => ended,
        _ = interrupted.recv() => Err(Failure::other("interrupted")),
        _ = terminated.recv() => Err(Failure::other("stopped by SIGTERM")),
    };
    ended.map_err(|failure| Failure {
        line: format!("{failure}; {} of {} messages were confirmed", progress.confirmed, args.count),
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
        let problem = match timeout_at(deadline, attempt()).await {
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
        let _ =
            timeout_at(deadline, sleep(backoff::pause(&backoff::PRODUCE, failures, backoff::random()))).await;
    }
}

struct Progress {
    /// Messages that were sent.
    sent: u64,
    /// Messages that a broker has confirmed.
    confirmed: u64,
}

struct Run<'a, C> {
    publisher: Publisher,
    connect: C,
    args: &'a ProducerArgs,
    /// Entries to send, in their order.
    waiting: VecDeque<Entry>,
    /// Since when, and how often, the connection failed without a confirmation.
    failing: Option<(Instant, u32)>,
    progress: &'a mut Progress,
}

impl<C: AsyncFn() -> Result<Publisher, Problem>> Run<'_, C> {
    async fn send_all(mut self) -> Result<(), Failure> {
        let args = self.args;
        let begun = Instant::now();
        let mut spoke = begun;
        let is_batched = args.count > 1 && !args.no_batching;
        let mut batch = Batch::default();
        for number in 1..=args.count {
            if let Some(rate) = args.rate {
                let at = begun + due(number - 1, rate);
                if at > Instant::now() + BATCH_DELAY {
                    self.send(&mut batch).await?;
                }
                self.confirm(Some(at), 0).await?;
                sleep_until(at).await;
            }
            let text = if args.count == 1 {
                args.message().to_owned()
            } else {
                format!("{} {number}", args.message())
            };
            batch.add(&text, is_batched);
            let is_old = batch.begun.is_some_and(|begun| begun.elapsed() >= BATCH_DELAY);
            if !is_batched || is_old || batch.count >= BATCH || batch.payload.len() >= BATCH_BYTES {
                self.send(&mut batch).await?;
            }
            if spoke.elapsed() >= PROGRESS {
                spoke = Instant::now();
                note(&format!(
                    "{number} of {} messages sent, {} confirmed",
                    args.count, self.progress.confirmed
                ));
            }
        }
        self.send(&mut batch).await?;
        self.confirm(None, 0).await
    }

    /// Sends the batch, and counts the confirmations that have arrived.
    async fn send(&mut self, batch: &mut Batch) -> Result<(), Failure> {
        let count = u64::from(batch.count.unsigned_abs());
        if count == 0 {
            return Ok(());
        }
        self.confirm(Some(Instant::now()), 0).await?;
        let length = u64::try_from(self.args.message().len()).unwrap_or(u64::MAX).max(1);
        self.confirm(None, UNCONFIRMED.min(UNCONFIRMED_BYTES / length).saturating_sub(1)).await?;
        self.progress.sent += count;
        self.waiting.push_back(std::mem::take(batch).entry());
        self.send_waiting().await
    }

    async fn send_waiting(&mut self) -> Result<(), Failure> {
        while let Some(entry) = self.waiting.pop_front() {
            let sent = timeout(self.args.timeout, self.publisher.send(entry)).await;
            if let Err(problem) = sent.map_err(|_| self.overdue())? {
                self.reconnect(problem).await?;
            }
        }
        Ok(())
    }

    /// Counts confirmations until a time, or until at most this number of messages is unconfirmed.
    async fn confirm(&mut self, at: Option<Instant>, unconfirmed: u64) -> Result<(), Failure> {
        while self.progress.sent - self.progress.confirmed > unconfirmed {
            let overdue = self.publisher.waits_since().unwrap_or_else(Instant::now) + self.args.timeout;
            let until = at.map_or(overdue, |at| at.min(overdue));
            let kept = match timeout_at(until, self.publisher.confirmed()).await {
                Ok(Ok(messages)) => {
                    self.progress.confirmed += u64::from(messages);
                    self.failing = None;
                    continue;
                }
                Ok(Err(problem)) => Err(problem),
                Err(_) if until == overdue => return Err(self.overdue()),
                // The broker may wait for a token.
                Err(_) => self.publisher.keep_alive().await,
            };
            match kept {
                Ok(()) => return Ok(()),
                Err(problem) => {
                    self.reconnect(problem).await?;
                    Box::pin(self.send_waiting()).await?;
                }
            }
        }
        Ok(())
    }

    /// Connects again. The unconfirmed entries wait again; those that a broker has stored are stored twice.
    async fn reconnect(&mut self, problem: Problem) -> Result<(), Failure> {
        if let Some(failure) = problem.failure() {
            return Err(failure);
        }
        let (since, times) = self.failing.unwrap_or_else(|| (Instant::now(), 0));
        let left = self.args.timeout.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(Failure::other(format!("the broker did not accept a message: {problem}")));
        }
        note(&format!("Retrying: {problem}"));
        self.failing = Some((since, times + 1));
        let mut again = self.publisher.take_unconfirmed();
        again.append(&mut self.waiting);
        self.waiting = again;
        sleep(backoff::pause(&backoff::PRODUCE, times + 1, backoff::random())).await;
        self.publisher = within(left, &self.connect).await?;
        Ok(())
    }

    fn overdue(&self) -> Failure {
        Failure::other(format!("the broker did not confirm a message within {:?}", self.args.timeout))
    }
}

/// Messages that are sent together, or one that is sent alone.
#[derive(Default)]
struct Batch {
    payload: BytesMut,
    count: i32,
    is_batched: bool,
    /// When its first message was added.
    begun: Option<Instant>,
}

impl Batch {
    fn add(&mut self, text: &str, is_batched: bool) {
        if is_batched {
            let payload_size = i32::try_from(text.len()).unwrap_or(i32::MAX);
            let metadata = SingleMessageMetadata { payload_size, ..SingleMessageMetadata::default() };
            self.payload.put_u32(u32::try_from(metadata.encoded_len()).unwrap_or(u32::MAX));
            // A buffer in memory has room.
            let _ = metadata.encode(&mut self.payload);
        }
        self.payload.put_slice(text.as_bytes());
        self.is_batched = is_batched;
        self.count += 1;
        self.begun.get_or_insert_with(Instant::now);
    }

    fn entry(self) -> Entry {
        let num_messages_in_batch = self.is_batched.then_some(self.count);
        let metadata = Metadata { num_messages_in_batch, ..Metadata::default() };
        Entry { metadata, payload: self.payload.freeze() }
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
    use crate::problem::Code;

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
            Err::<(), _>(Problem::last(Exit::Unauthorized, Code::Unauthorized, "no"))
        })
        .await
        .unwrap_err();
        assert_eq!(failure, Failure { exit: Exit::Unauthorized, line: "no".to_owned() });
    }
}
