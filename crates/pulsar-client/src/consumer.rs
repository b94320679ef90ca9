//! The consumer: it turns entries into lines, prints the lines, and acknowledges the printed ones. It resumes
//! lost subscriptions.
//!
//! Memory is bounded. The broker sends only the requested number of messages of each partition, and the
//! consumer requests more only when entries become lines. It makes lines only while one text is being printed
//! and another is filled, and reads nothing while the waiting messages use their limit. So a slow reader slows
//! down the broker.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::ops::Range;
use std::time::Duration;

use futures::future::BoxFuture;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};

use crate::backoff;
use crate::batch;
use crate::brokers::{Brokers, Located};
use crate::exit::{Exit, Failure};
use crate::frame::{Damage, Delivery, Entry};
use crate::ledger::{Acks, EntryId, Ledger};
use crate::letters::{Destination, Letters, Sender, retries};
use crate::line;
use crate::metrics::Metrics;
use crate::notes::note;
use crate::printer::Printer;
use crate::probes::{self, State};
use crate::problem::{Code, Problem};
use crate::refused::{Refused, Verdict, verdict};
use crate::session::{Event, Session};
use crate::settings::ConsumerSettings;
use crate::stop::Stop;
use crate::waiting::Waiting;

/// The size at which a text is printed.
const CHUNK: usize = 64 << 10;

/// The interval of activity without events.
const LOOK: Duration = Duration::from_secs(1);

/// The interval of requests for new partitions and topics.
const GROWTH: Duration = Duration::from_mins(1);

/// The limit of entries in a request for redelivery.
const REDELIVERED: usize = 1_000;

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
    let letters = settings.dead_letters.as_ref().map(|policy| Letters::start(policy, &settings.subscription));
    let mut consumer = Consumer { settings, metrics, state, printer, letters, said: None };
    consumer.run(&mut stop).await
}

struct Consumer {
    settings: ConsumerSettings,
    metrics: Metrics,
    state: State,
    printer: Printer,
    letters: Option<Letters>,
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
                Ok((session, problem)) => {
                    let since = Instant::now();
                    self.settings.subscription.matched_position = InitialPosition::Earliest;
                    let ended = self.consume(session, problem, number, stop).await;
                    self.metrics.connected.set(0);
                    if let Some(letters) = &self.letters {
                        letters.forget(number);
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
            let limits = self.backoff(&problem)?;
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

    /// The pauses between retries after a problem, or the failure of the program if a retry cannot help.
    fn backoff(&self, problem: &Problem) -> Result<Range<Duration>, Failure> {
        match problem.failure() {
            None => Ok(backoff::CONNECT),
            // The files are read for each connection, so a renewed Secret ends some permanent failures.
            Some(_) if self.settings.subscription.service.files.may_end(problem) => Ok(backoff::RENEWAL),
            Some(failure) => Err(failure),
        }
    }

    /// Reports a problem once.
    fn report(&mut self, problem: Problem) {
        self.state.set(problem.code, problem.sentence.clone());
        if self.said.as_ref() != Some(&problem) {
            note(&format!("Not subscribed; retrying: {problem}"));
            self.said = Some(problem);
        }
    }

    /// Consumes until the session ends. `problem` is why some topics have no subscription yet.
    async fn consume(
        &mut self,
        session: Session,
        problem: Option<Problem>,
        number: u64,
        stop: &mut Stop,
    ) -> Result<End, Failure> {
        let mut flow = Flow::new(self, session, number);
        let mut ended = match problem.map_or(Ok(()), |problem| flow.retry(problem)) {
            Ok(()) => flow.run(stop).await,
            failed => failed,
        };
        if ended.is_ok() {
            flow.consumer.state.set(Code::Starting, "shutting down");
            ended = flow.finish(stop.deadline()).await;
        }
        // The close sends pending acknowledgements, so that these messages do not come again.
        flow.session.close().await;
        match ended {
            Ok(()) => Ok(End::Stopped),
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

/// The next step to subscribe lost consumers again.
enum Rejoin {
    /// None is lost.
    Idle,
    /// Look up their brokers at this time.
    At(Instant),
    /// A lookup of their brokers is in progress.
    Locating(BoxFuture<'static, Result<Located, Problem>>),
}

impl Rejoin {
    /// Waits for the time, or for the brokers. Cancel safe.
    async fn next(&mut self) -> Option<Result<Located, Problem>> {
        match self {
            Self::Idle => pending().await,
            Self::At(time) => {
                sleep_until(*time).await;
                None
            }
            Self::Locating(located) => Some(located.await),
        }
    }
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
    waiting: Waiting,
    /// Lines that are not being printed yet.
    text: Vec<u8>,
    /// The number of messages in the text, for each consumer.
    in_text: Vec<u64>,
    /// The number of messages in the text that is being printed.
    printing: Vec<u64>,
    /// Entries to request again.
    refused: Refused,
    /// Consumers, and permits that the broker gets when messages are printed again.
    owed: Vec<(usize, u32)>,
    /// Whether entries without messages wait for their acknowledgement.
    empty_entries: bool,
    rejoin: Rejoin,
    /// Why consumers were lost during a lookup that does not include them.
    missed: Option<Problem>,
    /// How often in a row lost consumers failed to subscribe.
    failures: u32,
    /// Since when all consumers are subscribed.
    complete_since: Option<Instant>,
}

impl<'a> Flow<'a> {
    fn new(consumer: &'a mut Consumer, session: Session, number: u64) -> Self {
        let subscription = &consumer.settings.subscription;
        let kind = subscription.kind;
        let all_at_once = matches!(kind, SubType::Exclusive | SubType::Failover);
        let count = session.consumers();
        Self {
            ledgers: (0..count).map(|_| Ledger::new(kind)).collect(),
            waiting: Waiting::default(),
            text: Vec::new(),
            in_text: vec![0; count],
            printing: vec![0; count],
            refused: Refused::new(all_at_once),
            owed: Vec::new(),
            empty_entries: false,
            rejoin: Rejoin::Idle,
            missed: None,
            failures: 0,
            complete_since: None,
            consumer,
            session,
            number,
        }
    }

    /// Runs until a signal.
    async fn run(&mut self, stop: &mut Stop) -> Result<(), Broken> {
        self.complete();
        let mut look = interval(LOOK);
        let mut growth = interval(GROWTH);
        growth.reset();
        loop {
            self.fill().await?;
            if !self.consumer.printer.is_busy() && !self.text.is_empty() {
                self.print();
            }
            let asked_again = self.refused.due();
            let answer = async {
                match &mut self.consumer.letters {
                    Some(letters) => letters.answer().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = stop.wanted() => return Ok(()),
                printed = self.consumer.printer.printed() => self.printed(printed)?,
                event = self.session.next(self.waiting.bytes()) => self.happened(event?)?,
                located = self.rejoin.next() => self.rejoin(located)?,
                (sender, sent) = answer => self.sent(&sender, sent)?,
                () = sleep_until(asked_again.unwrap_or_else(Instant::now)), if asked_again.is_some() => {
                    self.ask_again()?;
                }
                _ = look.tick() => {
                    self.consumer.state.looked();
                    self.give_back()?;
                    if let Some(event) = self.session.keep_alive(self.waiting.bytes()).await? {
                        self.happened(event)?;
                    }
                }
                _ = growth.tick() => self.session.ask_for_growth()?,
            }
        }
    }

    /// Makes lines of waiting and received entries while there is room.
    async fn fill(&mut self) -> Result<(), Broken> {
        while self.text.len() < CHUNK {
            if let Some(delivery) = self.waiting.pop() {
                self.take(delivery)?;
            } else if let Some(event) = self.session.next_now(self.waiting.bytes()).await? {
                self.happened(event)?;
            } else {
                break;
            }
        }
        if self.empty_entries && self.text.is_empty() && !self.consumer.printer.is_busy() {
            self.empty_entries = false;
            for consumer in 0..self.ledgers.len() {
                self.done(consumer, 0)?;
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Messages(delivery) => self.waiting.push(delivery),
            Event::Active(true) => note("Active: this consumer receives the messages"),
            Event::Active(false) => note("Standing by: another consumer receives the messages"),
            Event::EndOfTopic => note("The topic was terminated; there are no more messages"),
            Event::Grown(new) => {
                note(&format!("Found {new} new topics or partitions"));
                let kind = self.consumer.settings.subscription.kind;
                self.ledgers.resize_with(self.session.consumers(), || Ledger::new(kind));
                self.in_text.resize(self.session.consumers(), 0);
                self.printing.resize(self.session.consumers(), 0);
                self.rejoin_at(Instant::now());
            }
            Event::Lost(lost, problem) => self.lost(&lost, problem)?,
            Event::Joined => self.complete(),
        }
        Ok(())
    }

    /// Sets the state if all topics are subscribed.
    fn complete(&mut self) {
        if self.session.is_complete() {
            self.complete_since = Some(Instant::now());
            self.consumer.metrics.connected.set(1);
            self.consumer.state.set(Code::Subscribed, "subscribed");
            self.consumer.said = None;
            note("Subscribed");
        }
    }

    /// Handles lost consumers. Their unacknowledged messages come again, so their state is dropped.
    fn lost(&mut self, lost: &[usize], problem: Problem) -> Result<(), Broken> {
        self.waiting.drop_from(lost);
        self.owed.retain(|(consumer, _)| !lost.contains(consumer));
        for consumer in lost.iter().copied() {
            self.refused.drop_from(consumer);
            self.ledgers[consumer] = Ledger::new(self.consumer.settings.subscription.kind);
            self.in_text[consumer] = 0;
            self.printing[consumer] = 0;
        }
        if self.complete_since.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.failures = 0;
        }
        self.consumer.metrics.connected.set(0);
        // Consumers that are lost together are one failure.
        match self.rejoin {
            Rejoin::Idle => return self.retry(problem),
            Rejoin::At(_) => {}
            Rejoin::Locating(_) => self.missed = Some(problem),
        }
        Ok(())
    }

    /// Subscribes lost consumers again after a pause.
    fn retry(&mut self, problem: Problem) -> Result<(), Broken> {
        let Ok(limits) = self.consumer.backoff(&problem) else { return Err(problem.into()) };
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            note(&format!("A topic or partition is not subscribed; retrying: {problem}"));
        } else {
            self.consumer.report(problem);
        }
        self.consumer.metrics.reconnects.inc();
        self.rejoin_at(Instant::now() + backoff::pause(&limits, self.failures, backoff::random()));
        Ok(())
    }

    fn rejoin_at(&mut self, time: Instant) {
        if let Rejoin::Idle = self.rejoin {
            self.rejoin = Rejoin::At(time);
        }
    }

    /// Looks up the brokers of lost consumers, or subscribes at the found ones.
    fn rejoin(&mut self, located: Option<Result<Located, Problem>>) -> Result<(), Broken> {
        self.rejoin = Rejoin::Idle;
        let missed = self.missed.take();
        match located {
            None => {
                let service = &self.consumer.settings.subscription.service;
                let mut lost = self.session.lost();
                // A partition without a broker must not always delay the others.
                let first = usize::try_from(self.failures).unwrap_or_default() % lost.len().max(1);
                lost.rotate_left(first);
                if !lost.is_empty() {
                    self.rejoin = Rejoin::Locating(Box::pin(Brokers::locate(service.clone(), lost)));
                }
                Ok(())
            }
            Some(Ok(mut located)) => {
                let problem = located.problem.take();
                self.session.rejoin(located)?;
                if let Some(problem) = problem {
                    return self.retry(problem);
                }
                if self.session.lost().is_empty() {
                    // The remaining topics may have been deleted.
                    self.complete();
                    return Ok(());
                }
                if let Some(problem) = missed {
                    return self.retry(problem);
                }
                // New partitions were found meanwhile.
                self.rejoin_at(Instant::now());
                Ok(())
            }
            Some(Err(problem)) => self.retry(problem),
        }
    }

    /// Makes lines of an entry, or sends it to the dead-letter topic.
    fn take(&mut self, delivery: Delivery) -> Result<(), Broken> {
        let (entry, size) = (delivery.entry(), delivery.encoded.len());
        let message = delivery.message;
        let consumer = usize::try_from(message.consumer_id).unwrap_or(usize::MAX);
        let id = EntryId::of(&message.message_id);
        let redeliveries = message.redelivery_count();
        let ack_set = message.ack_set;
        let permits = batch::permits_of(&entry, &ack_set, self.consumer.settings.subscription.queue);
        self.session.taken(consumer, permits)?;
        let is_stored = self.session.is_stored(consumer);
        if is_stored && self.ledgers[consumer].is_repeated(id) {
            // A request for one entry of an Exclusive or Failover subscription returns all unacknowledged
            // ones.
            return Ok(());
        }
        let was_requested = self.refused.came(consumer, id);
        let policy = self.consumer.settings.dead_letters.as_ref();
        let too_often = policy.is_some_and(|policy| redeliveries > policy.max_redeliver_count);
        if let (true, Ok(entry)) = (too_often, &entry) {
            self.send((consumer, id, size), entry, ack_set, Destination::DeadLetter);
            return Ok(());
        }
        let before = self.text.len();
        let mut bytes = 0;
        let text = &mut self.text;
        let read = entry.as_ref().map_err(Damage::clone).and_then(|entry| {
            batch::each(entry, &ack_set, |payload| {
                bytes += payload.len();
                line::write(payload, text);
            })
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
                Ok(())
            }
            Err(damage) => {
                self.text.truncate(before);
                self.consumer.metrics.unreadable.inc();
                if !is_stored {
                    note(&format!(
                        "Cannot read a message: {damage}; its topic is not persistent, so the message is lost"
                    ));
                    return Ok(());
                }
                let policy = self.consumer.settings.dead_letters.as_ref();
                let retries = entry.as_ref().ok().map(retries);
                let verdict = verdict(&damage, was_requested || redeliveries > 0, policy, retries);
                let delay = self.consumer.settings.redelivery_delay;
                let what = match verdict {
                    Verdict::Repeat => format!("requesting it again in {delay:?}"),
                    Verdict::Send(Destination::DeadLetter) => {
                        "sending it to the dead-letter topic".to_owned()
                    }
                    Verdict::Send(Destination::Retry(number, delay)) => {
                        format!("sending it to the retry-letter topic (retry {number} in {delay:?})")
                    }
                    Verdict::Discard(_) => "discarding it, because it is corrupt".to_owned(),
                };
                note(&format!("Cannot read the message {}:{}: {damage}; {what}", id.ledger, id.entry));
                match (verdict, &entry) {
                    (Verdict::Send(destination), Ok(entry)) => {
                        self.send((consumer, id, size), entry, ack_set, destination);
                    }
                    (Verdict::Discard(corruption), _) => {
                        let acks = self.ledgers[consumer].settled(id);
                        self.session.acknowledge(consumer, acks, Some(corruption))?;
                    }
                    (Verdict::Repeat | Verdict::Send(_), _) => {
                        self.ledgers[consumer].withhold(id);
                        self.ask_later(consumer, id);
                    }
                }
                Ok(())
            }
        }
    }

    /// Sends an entry of a consumer, with its size, to another topic.
    fn send(
        &mut self,
        (consumer, id, size): (usize, EntryId, usize),
        entry: &Entry,
        ack_set: Vec<i64>,
        destination: Destination,
    ) {
        let topic = self.session.topic(consumer).to_owned();
        let from = Sender { session: self.number, consumer, topic, destination, entry: id, size };
        self.ledgers[consumer].withhold(id);
        let letters = self.consumer.letters.as_mut();
        if !letters.is_some_and(|letters| letters.send(from, entry, ack_set)) {
            self.ask_later(consumer, id);
        }
    }

    /// Gives all waiting messages of persistent topics back to the broker if the first one waits for too long, so that
    /// other consumers get them. The broker gets no permits for them while nothing is printed.
    fn give_back(&mut self) -> Result<(), Broken> {
        let Some(limit) = self.consumer.settings.ack_timeout else { return Ok(()) };
        let taken = self.waiting.take_older(limit, |consumer| self.session.is_stored(consumer));
        if taken.is_empty() {
            return Ok(());
        }
        note(&format!("Output is blocked; giving back {} messages or batches to the broker", taken.len()));
        let mut entries: BTreeMap<usize, Vec<EntryId>> = BTreeMap::new();
        for delivery in taken {
            let message = &delivery.message;
            let consumer = usize::try_from(message.consumer_id).unwrap_or(usize::MAX);
            let queue = self.consumer.settings.subscription.queue;
            self.owed.push((consumer, batch::permits_of(&delivery.entry(), &message.ack_set, queue)));
            entries.entry(consumer).or_default().push(EntryId::of(&message.message_id));
        }
        for (consumer, entries) in entries {
            self.ask_for(consumer, &entries)?;
        }
        Ok(())
    }

    /// Requests an entry again after the delay.
    fn ask_later(&mut self, consumer: usize, id: EntryId) {
        let due = Instant::now() + self.consumer.settings.redelivery_delay;
        self.refused.push(due, consumer, id);
    }

    fn ask_again(&mut self) -> Result<(), Broken> {
        let delay = self.consumer.settings.redelivery_delay;
        for (consumer, entries) in self.refused.take_due(Instant::now(), delay) {
            self.ask_for(consumer, &entries)?;
        }
        Ok(())
    }

    fn ask_for(&mut self, consumer: usize, entries: &[EntryId]) -> Result<(), Broken> {
        for entries in entries.chunks(REDELIVERED) {
            self.session.redeliver(consumer, entries)?;
        }
        Ok(())
    }

    /// Handles the number of sent messages, or a failure.
    fn sent(&mut self, from: &Sender, sent: Option<u64>) -> Result<(), Broken> {
        let metrics = &self.consumer.metrics;
        let counter = match from.destination {
            Destination::DeadLetter => &metrics.dead_lettered,
            Destination::Retry(..) => &metrics.retried,
        };
        counter.inc_by(sent.unwrap_or_default());
        if from.session != self.number {
            // Its session has ended, so the entry comes again.
            return Ok(());
        }
        if sent.is_none() {
            self.ask_later(from.consumer, from.entry);
            return Ok(());
        }
        let acks = self.ledgers[from.consumer].settled(from.entry);
        self.acknowledge(from.consumer, acks)
    }

    fn print(&mut self) {
        let count = self.in_text.len();
        self.printing = std::mem::replace(&mut self.in_text, vec![0; count]);
        self.consumer.printer.print(std::mem::take(&mut self.text));
    }

    /// Handles a printed text of this session or an earlier one.
    fn printed(&mut self, printed: std::io::Result<Vec<u8>>) -> Result<(), Broken> {
        match printed {
            Ok(memory) if self.text.is_empty() => self.text = memory,
            Ok(_) => {}
            Err(error) => {
                let line = format!("cannot print; acknowledging no more messages: {error}");
                return Err(Broken::Stdout(Failure { exit: Exit::StdoutClosed, line }));
            }
        }
        for (consumer, permits) in std::mem::take(&mut self.owed) {
            self.session.taken(consumer, permits)?;
        }
        let count = self.printing.len();
        let printing = std::mem::replace(&mut self.printing, vec![0; count]);
        for (consumer, messages) in printing.into_iter().enumerate().filter(|(_, messages)| *messages > 0) {
            self.done(consumer, messages)?;
            self.consumer.metrics.acknowledged.inc_by(messages);
        }
        Ok(())
    }

    fn done(&mut self, consumer: usize, messages: u64) -> Result<(), Broken> {
        match self.ledgers[consumer].done(messages) {
            Some(acks) => self.acknowledge(consumer, acks),
            None => Ok(()),
        }
    }

    fn acknowledge(&mut self, consumer: usize, acks: Acks) -> Result<(), Broken> {
        if self.session.is_stored(consumer) {
            self.session.acknowledge(consumer, acks, None)?;
        }
        Ok(())
    }

    /// Prints and acknowledges the remaining lines.
    async fn finish(&mut self, until: Instant) -> Result<(), Broken> {
        let printing = async {
            while self.consumer.printer.is_busy() || !self.text.is_empty() {
                if !self.consumer.printer.is_busy() {
                    self.print();
                }
                let printed = self.consumer.printer.printed().await;
                self.printed(printed)?;
            }
            Ok(())
        };
        match timeout_at(until, printing).await {
            Err(_) => note("Some messages were not printed in time and will come again"),
            Ok(Err(Broken::Session(problem))) => note(&format!("Some messages will come again: {problem}")),
            Ok(printed) => return printed,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
