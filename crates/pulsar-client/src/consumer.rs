//! The consumer: it turns entries into lines, prints the lines, and acknowledges the printed ones. It resumes
//! a lost subscription.
//!
//! Memory is bounded. The broker sends only the requested number of messages of each partition, and the
//! consumer requests more only when entries become lines. It makes lines only while one text is being printed
//! and another is filled. So a slow reader slows down the broker.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use pulsar::message::proto::command_subscribe::SubType;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};

use crate::backoff;
use crate::batch;
use crate::dead_letters::{DeadLetters, Letter, Sender};
use crate::exit::{Exit, Failure};
use crate::frame::{Damage, Delivery};
use crate::ledger::{Acks, EntryId, Ledger};
use crate::line;
use crate::metrics::Metrics;
use crate::notes::note;
use crate::printer::Printer;
use crate::probes::{self, State};
use crate::problem::{Code, Problem};
use crate::refused::Refused;
use crate::session::{Event, Session};
use crate::settings::ConsumerSettings;

/// The size at which a text is printed.
const CHUNK: usize = 64 << 10;

/// The time limit to print the received messages at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The interval of activity without events.
const LOOK: Duration = Duration::from_secs(1);

/// The interval of requests for new partitions.
const GROWTH: Duration = Duration::from_mins(1);

/// A subscription that lasted this long is resumed without backoff.
const STABLE: Duration = Duration::from_secs(10);

/// Runs until SIGTERM or SIGINT.
pub async fn run(settings: ConsumerSettings) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    let metrics = Metrics::new().map_err(|error| Failure::other(error.to_string()))?;
    let state = State::default();
    let [server, topic] = &settings.given;
    note(&format!("Server: {server}"));
    note(&format!("Topic: {topic}"));
    note(&format!("Subscription: {}", settings.subscription.name));
    if let Some(address) = &settings.http {
        let listener = probes::listen(address)
            .await
            .map_err(|error| Failure::other(format!("cannot listen on {address}: {error}")))?;
        tokio::spawn(probes::serve(listener, state.clone(), metrics.clone()));
    }
    let printer = Printer::start().map_err(|error| Failure::other(format!("cannot print: {error}")))?;
    let dead_letters = settings
        .dead_letters
        .as_ref()
        .map(|policy| DeadLetters::start(policy, settings.subscription.clone()));
    let mut consumer = Consumer { settings, metrics, state, printer, dead_letters, said: None };
    consumer.run(&mut stop).await
}

/// SIGTERM and SIGINT.
struct Stop {
    term: Signal,
    int: Signal,
    /// The time of the signal.
    signalled_at: Option<Instant>,
}

impl Stop {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::other(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
            signalled_at: None,
        })
    }

    /// Waits for a signal. Cancel safe.
    async fn wanted(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
        self.signalled_at.get_or_insert_with(Instant::now);
    }

    /// The deadline of the shutdown, the same for all its waits.
    fn deadline(&self) -> Instant {
        self.signalled_at.unwrap_or_else(Instant::now) + DRAIN_LIMIT
    }
}

struct Consumer {
    settings: ConsumerSettings,
    metrics: Metrics,
    state: State,
    printer: Printer,
    dead_letters: Option<DeadLetters>,
    /// The last reported problem. The same problem is reported once.
    said: Option<Problem>,
}

/// How a subscription ended.
enum End {
    /// By a signal.
    Stopped,
    /// By a failure.
    Lost(Problem),
}

impl Consumer {
    async fn run(&mut self, stop: &mut Stop) -> Result<(), Failure> {
        let mut failures = 0_u32;
        for number in 0.. {
            let subscription = self.settings.subscription.clone();
            let Some(opened) = watched(&self.state, stop, Session::open(&subscription)).await else { break };
            let problem = match opened {
                Ok(session) => {
                    let since = Instant::now();
                    self.state.set(Code::Subscribed, "subscribed");
                    self.metrics.connected.set(1);
                    self.said = None;
                    note("Subscribed");
                    let ended = self.consume(session, number, stop).await;
                    self.metrics.connected.set(0);
                    if let Some(dead_letters) = &self.dead_letters {
                        dead_letters.forget(number);
                    }
                    if since.elapsed() >= STABLE {
                        failures = 0;
                    }
                    match ended? {
                        End::Stopped => break,
                        End::Lost(problem) => problem,
                    }
                }
                Err(problem) => problem,
            };
            // The files are read for each connection, so a renewed Secret ends some permanent failures.
            let limits = match problem.failure() {
                None => backoff::CONNECT,
                Some(_) if subscription.files.may_end(&problem) => backoff::RENEWAL,
                Some(failure) => return Err(failure),
            };
            failures = failures.saturating_add(1);
            self.metrics.reconnects.inc();
            self.report(problem);
            let pause = backoff::pause(&limits, failures, backoff::random());
            if watched(&self.state, stop, sleep(pause)).await.is_none() {
                break;
            }
        }
        if self.printer.is_busy() {
            // Lines of a lost subscription. Wait, so that no line is incomplete.
            let _ = timeout_at(stop.deadline(), self.printer.printed()).await;
        }
        note("Stopped");
        Ok(())
    }

    /// Reports a problem once.
    fn report(&mut self, problem: Problem) {
        self.state.set(problem.code, problem.sentence.clone());
        if self.said.as_ref() != Some(&problem) {
            note(&format!("Not subscribed; retrying: {problem}"));
            self.said = Some(problem);
        }
    }

    async fn consume(&mut self, session: Session, number: u64, stop: &mut Stop) -> Result<End, Failure> {
        let mut flow = Flow::new(self, session, number);
        match flow.run(stop).await {
            Ok(End::Stopped) => {
                flow.consumer.state.set(Code::Starting, "shutting down");
                flow.finish(stop.deadline()).await?;
                Ok(End::Stopped)
            }
            Ok(lost) => {
                // The close sends pending acknowledgements, so that these messages do not come again.
                flow.session.close().await;
                Ok(lost)
            }
            Err(Broken::Stdout(failure)) => Err(failure),
            Err(Broken::Session(problem)) => Ok(End::Lost(problem)),
        }
    }
}

/// Waits for a future or a signal, and records activity meanwhile. Returns None after a signal.
async fn watched<T>(state: &State, stop: &mut Stop, what: impl Future<Output = T>) -> Option<T> {
    let mut look = interval(LOOK);
    tokio::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return Some(done),
            () = stop.wanted() => return None,
            _ = look.tick() => state.looked(),
        }
    }
}

/// Why the flow of messages stopped.
enum Broken {
    Session(Problem),
    Stdout(Failure),
}

impl From<Problem> for Broken {
    fn from(problem: Problem) -> Self {
        Self::Session(problem)
    }
}

/// The flow from one session to standard output.
struct Flow<'a> {
    consumer: &'a mut Consumer,
    session: Session,
    number: u64,
    /// One for each of the session's consumers.
    ledgers: Vec<Ledger>,
    /// Deliveries that wait to become lines.
    waiting: VecDeque<Box<Delivery>>,
    /// Lines that are not being printed yet.
    text: Vec<u8>,
    /// The number of messages in the text, for each consumer.
    in_text: Vec<u64>,
    /// The number of messages in the text that is being printed.
    printing: Vec<u64>,
    /// Entries to request again.
    refused: Refused,
    /// Whether entries without messages wait for their acknowledgement.
    empty_entries: bool,
    /// Whether the topic has more partitions than the session has consumers.
    grown: bool,
}

impl<'a> Flow<'a> {
    fn new(consumer: &'a mut Consumer, session: Session, number: u64) -> Self {
        let subscription = &consumer.settings.subscription;
        let kind = subscription.kind;
        let all_at_once = matches!(kind, SubType::Exclusive | SubType::Failover);
        let count = session.consumers();
        Self {
            ledgers: (0..count).map(|_| Ledger::new(kind)).collect(),
            waiting: VecDeque::new(),
            text: Vec::new(),
            in_text: vec![0; count],
            printing: vec![0; count],
            refused: Refused::new(all_at_once),
            empty_entries: false,
            grown: false,
            consumer,
            session,
            number,
        }
    }

    /// Runs until a signal, or until the topic has more partitions. Then it makes no more lines, and ends
    /// when all are printed and acknowledged.
    async fn run(&mut self, stop: &mut Stop) -> Result<End, Broken> {
        let mut look = interval(LOOK);
        let mut grown = interval(GROWTH);
        grown.reset();
        loop {
            if !self.grown {
                self.fill().await?;
            }
            if !self.consumer.printer.is_busy() {
                if self.grown && self.text.is_empty() {
                    let what = "the topic has more partitions now";
                    return Ok(End::Lost(Problem::passing(Code::Starting, what)));
                }
                if !self.text.is_empty() {
                    self.print();
                }
            }
            let asked_again = self.refused.due();
            let answer = async {
                match &mut self.consumer.dead_letters {
                    Some(dead_letters) => dead_letters.answer().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.wanted() => return Ok(End::Stopped),
                printed = self.consumer.printer.printed() => self.printed(printed).await?,
                event = self.session.next() => self.happened(event?),
                (sender, sent) = answer => self.dead_lettered(sender, sent).await?,
                () = sleep_until(asked_again.unwrap_or_else(Instant::now)), if asked_again.is_some() => {
                    self.ask_again().await?;
                }
                _ = look.tick() => {
                    self.consumer.state.looked();
                    self.session.keep_alive().await?;
                }
                _ = grown.tick() => {
                    self.session.ask_for_growth(&self.consumer.settings.subscription.topic).await?;
                }
            }
        }
    }

    /// Makes lines of waiting and received entries while there is room.
    async fn fill(&mut self) -> Result<(), Broken> {
        while self.text.len() < CHUNK {
            if let Some(delivery) = self.waiting.pop_front() {
                self.take(*delivery).await?;
            } else if let Some(event) = self.session.next_now().await? {
                self.happened(event);
            } else {
                break;
            }
        }
        if self.empty_entries && self.text.is_empty() && !self.consumer.printer.is_busy() {
            self.empty_entries = false;
            for consumer in 0..self.ledgers.len() {
                self.done(consumer, 0).await?;
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Messages(delivery) => self.waiting.push_back(delivery),
            Event::Active(true) => note("Active: this consumer receives the messages"),
            Event::Active(false) => note("Standing by: another consumer receives the messages"),
            Event::EndOfTopic => note("The topic was terminated; there are no more messages"),
            Event::Grown => self.grown = true,
        }
    }

    /// Makes lines of an entry, or sends it to the dead-letter topic.
    async fn take(&mut self, delivery: Delivery) -> Result<(), Broken> {
        let Delivery { message, entry } = delivery;
        let consumer = usize::try_from(message.consumer_id).unwrap_or(usize::MAX);
        if consumer >= self.ledgers.len() {
            let what = "the broker sent messages for an unknown consumer";
            return Err(Problem::passing(Code::Unreachable, what).into());
        }
        let id = EntryId { ledger: message.message_id.ledger_id, entry: message.message_id.entry_id };
        let redeliveries = message.redelivery_count();
        let ack_set = message.ack_set;
        let batched = entry.as_ref().ok().and_then(|entry| entry.metadata.num_messages_in_batch);
        let permits = batch::permits(batched, &ack_set);
        if self.is_stored() && self.ledgers[consumer].is_repeated(id) {
            // A request for one entry of an Exclusive or Failover subscription returns all unacknowledged
            // ones.
            return Ok(self.session.taken(consumer, permits).await?);
        }
        // It may have been requested.
        self.refused.came(consumer, id);
        let policy = self.consumer.settings.dead_letters.as_ref();
        let too_often = policy.is_some_and(|policy| redeliveries > policy.max_redeliver_count);
        if let (true, Ok(entry), Some(dead_letters)) = (too_often, &entry, &self.consumer.dead_letters) {
            let from = Sender { session: self.number, consumer, entry: id, permits };
            dead_letters.send(Letter { from, entry: entry.clone(), ack_set });
            self.ledgers[consumer].withhold(id);
            return Ok(());
        }
        let before = self.text.len();
        let mut bytes = 0;
        let text = &mut self.text;
        let read = entry.and_then(|entry| {
            batch::each(
                &entry,
                |index| batch::is_kept(&ack_set, index),
                |message| {
                    bytes += message.payload.len();
                    line::write(message.payload, text);
                },
            )
        });
        match read {
            Ok(messages) => {
                let metrics = &self.consumer.metrics;
                metrics.received.inc_by(messages);
                metrics.bytes.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
                if redeliveries > 0 {
                    metrics.redelivered.inc_by(messages);
                }
                self.ledgers[consumer].received(id, messages);
                self.in_text[consumer] += messages;
                self.empty_entries |= messages == 0;
            }
            Err(damage) => {
                self.text.truncate(before);
                self.refuse(consumer, id, &damage);
            }
        }
        Ok(self.session.taken(consumer, permits).await?)
    }

    /// Handles an unreadable entry, which another consumer may be able to read later.
    fn refuse(&mut self, consumer: usize, id: EntryId, damage: &Damage) {
        self.consumer.metrics.unreadable.inc();
        if !self.is_stored() {
            note(&format!(
                "Cannot read a message: {damage}; its topic is not persistent, so the message is lost"
            ));
            return;
        }
        let delay = self.consumer.settings.redelivery_delay;
        note(&format!(
            "Cannot read the message {}:{}: {damage}; requesting it again in {delay:?}",
            id.ledger, id.entry
        ));
        self.ledgers[consumer].withhold(id);
        self.refused.push(Instant::now() + delay, consumer, id);
    }

    /// Whether the topic is persistent. Messages of other topics come once, need no acknowledgement, and all
    /// have the same ID.
    fn is_stored(&self) -> bool {
        self.consumer.settings.subscription.topic.persistent
    }

    async fn ask_again(&mut self) -> Result<(), Broken> {
        let delay = self.consumer.settings.redelivery_delay;
        let now = Instant::now();
        while let Some((consumer, id)) = self.refused.take_due(now, delay) {
            self.session.redeliver(consumer, vec![id]).await?;
        }
        Ok(())
    }

    async fn dead_lettered(&mut self, from: Sender, sent: Result<u64, String>) -> Result<(), Broken> {
        if let Ok(messages) = &sent {
            self.consumer.metrics.dead_lettered.inc_by(*messages);
        }
        if from.session != self.number {
            // Its session has ended, so the entry comes again.
            return Ok(());
        }
        if sent.is_ok() {
            let acks = self.ledgers[from.consumer].settled(from.entry);
            self.acknowledge(from.consumer, acks).await?;
        } else {
            let due = Instant::now() + self.consumer.settings.redelivery_delay;
            self.refused.push(due, from.consumer, from.entry);
        }
        Ok(self.session.taken(from.consumer, from.permits).await?)
    }

    fn print(&mut self) {
        let count = self.in_text.len();
        self.printing = std::mem::replace(&mut self.in_text, vec![0; count]);
        self.consumer.printer.print(std::mem::take(&mut self.text));
    }

    /// Handles a printed text of this session or an earlier one.
    async fn printed(&mut self, printed: std::io::Result<Vec<u8>>) -> Result<(), Broken> {
        match printed {
            Ok(memory) if self.text.is_empty() => self.text = memory,
            Ok(_) => {}
            Err(error) => {
                let line = format!("cannot print; acknowledging no more messages: {error}");
                return Err(Broken::Stdout(Failure { exit: Exit::StdoutClosed, line }));
            }
        }
        let count = self.printing.len();
        let printing = std::mem::replace(&mut self.printing, vec![0; count]);
        for (consumer, messages) in printing.into_iter().enumerate().filter(|(_, messages)| *messages > 0) {
            self.done(consumer, messages).await?;
            self.consumer.metrics.acknowledged.inc_by(messages);
        }
        Ok(())
    }

    async fn done(&mut self, consumer: usize, messages: u64) -> Result<(), Broken> {
        match self.ledgers[consumer].done(messages) {
            Some(acks) => self.acknowledge(consumer, acks).await,
            None => Ok(()),
        }
    }

    async fn acknowledge(&mut self, consumer: usize, acks: Acks) -> Result<(), Broken> {
        if self.is_stored() {
            self.session.acknowledge(consumer, acks).await?;
        }
        Ok(())
    }

    /// Prints and acknowledges the remaining lines, and closes the session.
    async fn finish(mut self, until: Instant) -> Result<(), Failure> {
        let printing = async {
            while self.consumer.printer.is_busy() || !self.text.is_empty() {
                if !self.consumer.printer.is_busy() {
                    self.print();
                }
                let printed = self.consumer.printer.printed().await;
                self.printed(printed).await?;
            }
            Ok(())
        };
        match timeout_at(until, printing).await {
            Ok(Ok(())) => {}
            Ok(Err(Broken::Stdout(failure))) => return Err(failure),
            Ok(Err(Broken::Session(problem))) => note(&format!("Some messages will come again: {problem}")),
            Err(_) => note("Some messages were not printed in time and will come again"),
        }
        self.session.close().await;
        Ok(())
    }
}
