//! Messages for other topics: those that were redelivered too often go to the dead-letter topic, and unreadable ones to
//! the retry-letter topic, which delivers them again after a delay. Separate tasks send them, and few of them wait, so that
//! a slow topic delays no other messages. As in Pulsar's clients, a message keeps its payload, key and properties, and
//! more properties name its origin and count its retries.
//!
//! A broker deletes messages, and by default the topic too, if no subscription keeps them. So the task of the dead letters
//! creates a subscription before it sends the first message. The consumer itself subscribes to the retry-letter topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use pulsar::message::Metadata;
use pulsar::message::proto::KeyValue;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use quintet_pulsar_topic::{Topic, split_partition};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::batch::{self, Messages};
use crate::brokers::Service;
use crate::exit::Exit;
use crate::frame::Entry;
use crate::ledger::EntryId;
use crate::notes::note;
use crate::problem::{Code, Problem};
use crate::publisher::Publisher;
use crate::session::{Session, Subscription};
use crate::settings::DeadLetterPolicy;

/// The time limit for the connection, and for each entry.
const LIMIT: Duration = Duration::from_secs(30);

/// The limit of entries that wait for both tasks. More would only wait longer, and the broker keeps them meanwhile.
const HELD: usize = 100;

/// The limit of entries that wait for confirmation.
const UNCONFIRMED: usize = 1_000;

/// The waiting entries may use this part of the limit of the received messages, in addition to it.
const SHARE: usize = 4;

/// Names of properties, as in Pulsar's clients.
const REAL_TOPIC: &str = "REAL_TOPIC";
const ORIGIN: &str = "ORIGIN_MESSAGE_ID";
const RETRIES: &str = "RECONSUMETIMES";
const DELAY: &str = "DELAY_TIME";

/// An entry for another topic.
#[derive(Debug)]
pub struct Letter {
    /// Its sender, which the answer returns.
    pub from: Sender,
    /// The entry.
    pub entry: Entry,
    /// The unacknowledged messages of a batch, for [`batch::is_kept`].
    pub ack_set: Vec<i64>,
}

/// The topic of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The dead-letter topic.
    DeadLetter,
    /// The retry-letter topic. The number of this retry, from 1, and the delay before the next delivery.
    Retry(u32, Duration),
}

/// The recipient of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The session, by its number.
    pub session: u64,
    /// The consumer in the session.
    pub consumer: usize,
    /// The full name of its topic, or of its partition.
    pub topic: String,
    /// The destination.
    pub destination: Destination,
    /// The entry.
    pub entry: EntryId,
    /// The size of its payload.
    pub size: usize,
}

/// Sends messages to the dead-letter topic and the retry-letter topic.
#[derive(Debug)]
pub struct Letters {
    dead: UnboundedSender<Letter>,
    retries: Option<UnboundedSender<Letter>>,
    answers: UnboundedReceiver<(Sender, Option<u64>)>,
    /// Sessions below this number have ended.
    gone: Arc<AtomicU64>,
    /// The number of entries without an answer, and their size.
    held: (usize, usize),
    /// The limit of their size.
    limit: usize,
}

impl Letters {
    /// Starts the tasks. They connect before the first message.
    pub fn start(policy: &DeadLetterPolicy, of: &Subscription) -> Self {
        let (answer, answers) = unbounded_channel();
        let gone = Arc::new(AtomicU64::new(0));
        let start = |topic: &Topic, reader| {
            let (letters, to_send) = unbounded_channel();
            let target = Target { service: of.service.clone(), topic: topic.clone(), reader };
            tokio::spawn(send_all(target, to_send, answer.clone(), Arc::clone(&gone)));
            letters
        };
        let reader = Subscription {
            topics: vec![policy.topic.clone()],
            pattern: None,
            retry_letters: None,
            name: policy.subscription.clone(),
            kind: SubType::Shared,
            position: InitialPosition::Earliest,
            read_compacted: false,
            replicated: false,
            ..of.clone()
        };
        let dead = start(&policy.topic, Some(reader));
        let retries = of.retry_letters.as_ref().map(|topic| start(topic, None));
        Self { dead, retries, answers, gone, held: (0, 0), limit: of.queue_bytes / SHARE }
    }

    /// Sends an entry. Returns false if too many wait, or without the topic. An answer follows otherwise.
    pub fn send(&mut self, from: Sender, entry: &Entry, ack_set: Vec<i64>) -> bool {
        let letters = match from.destination {
            Destination::DeadLetter => Some(&self.dead),
            Destination::Retry(..) => self.retries.as_ref(),
        };
        let Some(letters) = letters else { return false };
        let (count, size) = self.held;
        if count >= HELD || (count > 0 && size + from.size > self.limit) {
            return false;
        }
        self.held = (count + 1, size + from.size);
        // A copy, because the payload may be a part of a larger buffer.
        let entry = Entry { payload: Bytes::copy_from_slice(&entry.payload), ..entry.clone() };
        // Without the task there is no answer, and the broker redelivers the entry.
        let _ = letters.send(Letter { from, entry, ack_set });
        true
    }

    /// Drops the waiting entries of an ended session, which come again in another session.
    pub fn forget(&self, session: u64) {
        self.gone.store(session + 1, Ordering::Relaxed);
    }

    /// The next answer: the number of sent messages, or None after a failure. Without an entry it waits permanently.
    /// Cancel safe.
    pub async fn answer(&mut self) -> (Sender, Option<u64>) {
        let Some((from, sent)) = self.answers.recv().await else { return std::future::pending().await };
        self.held = (self.held.0 - 1, self.held.1 - from.size);
        (from, sent)
    }
}

/// The topic of a task's letters.
struct Target {
    service: Service,
    topic: Topic,
    /// The subscription that keeps the letters; None if the consumer itself has one.
    reader: Option<Subscription>,
}

/// Sends the letters of a channel.
async fn send_all(
    target: Target,
    mut to_send: UnboundedReceiver<Letter>,
    answer: UnboundedSender<(Sender, Option<u64>)>,
    gone: Arc<AtomicU64>,
) {
    let mut publisher = None;
    loop {
        let letter = tokio::select! {
            letter = to_send.recv() => letter,
            _ = idle(&mut publisher) => {
                publisher = None;
                continue;
            }
        };
        let Some(letter) = letter else { return };
        if letter.from.session < gone.load(Ordering::Relaxed) {
            let _ = answer.send((letter.from, None));
            continue;
        }
        let sent = Box::pin(send(&mut publisher, &target, &letter)).await;
        if let Err(why) = &sent {
            note(&format!("Cannot send a message to {}: {why}", target.topic));
            // The broker may reject one letter for its size, and accept the others.
            let is_rejected = publisher.take().is_some() && why.end == Some(Exit::Other);
            // Otherwise the others would fail too, perhaps after a long wait.
            while !is_rejected && let Ok(letter) = to_send.try_recv() {
                let _ = answer.send((letter.from, None));
            }
        }
        if answer.send((letter.from, sent.ok())).is_err() {
            return;
        }
    }
}

async fn send(publisher: &mut Option<Publisher>, target: &Target, letter: &Letter) -> Result<u64, Problem> {
    let publisher = match publisher {
        Some(publisher) => publisher,
        none => none.insert(in_time(Box::pin(connect(target))).await?),
    };
    in_time(publisher.keep_alive()).await?;
    let mut unconfirmed = 0;
    let mut count = 0;
    let payload = readable(letter, publisher.max_message_size());
    for entry in entries(letter, payload.as_deref()) {
        in_time(publisher.send(entry)).await?;
        count += 1;
        unconfirmed += 1;
        if unconfirmed == UNCONFIRMED {
            in_time(publisher.keep_alive()).await?;
            in_time(publisher.confirmed()).await?;
            unconfirmed -= 1;
        }
    }
    for _ in 0..unconfirmed {
        in_time(publisher.confirmed()).await?;
    }
    Ok(count)
}

async fn in_time<T>(step: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let late = |_| Problem::passing(Code::Unreachable, "no confirmation in time");
    timeout(LIMIT, step).await.map_err(late)?
}

/// Creates the subscription of the letters, and the producers of their topic.
async fn connect(target: &Target) -> Result<Publisher, Problem> {
    if let Some(reader) = &target.reader {
        Session::create(reader).await?;
    }
    Publisher::open(&target.service, &target.topic).await
}

/// Waits until a connection fails; without a connection permanently. Cancel safe.
async fn idle(publisher: &mut Option<Publisher>) -> Problem {
    match publisher {
        Some(publisher) => publisher.idle().await,
        None => std::future::pending().await,
    }
}

/// The unpacked payload of an entry whose messages can be sent one by one. An unreadable entry cannot; nor can one
/// with a message above `limit` bytes, which the broker stored compressed. An entry that is delivered again is not split.
fn readable(letter: &Letter, limit: usize) -> Option<Bytes> {
    if letter.from.destination != Destination::DeadLetter {
        return None;
    }
    let payload = batch::unpacked(&letter.entry).ok()?;
    let is_readable =
        messages(letter, &payload).all(|message| message.is_ok_and(|message| message.payload.len() <= limit));
    is_readable.then_some(payload)
}

fn messages<'a>(letter: &'a Letter, payload: &'a [u8]) -> Messages<'a> {
    Messages::new(letter.entry.metadata.num_messages_in_batch, payload, &letter.ack_set)
}

/// The entries to send for an entry: one for each of its messages that is not acknowledged, or the unchanged entry
/// without a readable payload, so that another client may read it.
fn entries<'a>(letter: &'a Letter, payload: Option<&'a [u8]>) -> impl Iterator<Item = Entry> + 'a {
    let unchanged = payload.is_none().then(|| {
        let entry = &letter.entry;
        let metadata = Metadata {
            replicated_from: None,
            // Schemas and sequences are those of the other topic.
            schema_version: None,
            highest_sequence_id: None,
            deliver_at_time: match letter.from.destination {
                Destination::DeadLetter => None,
                Destination::Retry(_, delay) => Some(delivery_time(delay)),
            },
            txnid_least_bits: None,
            txnid_most_bits: None,
            ..entry.metadata.clone()
        };
        from_origin(letter, None, Entry { metadata, payload: entry.payload.clone() })
    });
    let messages = payload.into_iter().flat_map(|payload| messages(letter, payload)).map_while(Result::ok);
    unchanged.into_iter().chain(messages.map(|message| {
        let index = message.single.as_ref().map(|(index, _)| *index);
        from_origin(letter, index, single(message, &letter.entry.metadata))
    }))
}

/// The time after a delay, in milliseconds since 1970.
fn delivery_time(delay: Duration) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.saturating_add(delay).as_millis()).unwrap_or(i64::MAX)
}

/// Adds the properties that name the origin, unless the message has them from an earlier topic, and those of a retry. The
/// ID has the form of Java's: the segment, the entry, the partition and, in a batch, the index.
fn from_origin(letter: &Letter, index: Option<usize>, mut entry: Entry) -> Entry {
    let Sender { topic, destination, entry: EntryId { ledger, entry: number }, .. } = &letter.from;
    let (topic, partition) = split_partition(topic);
    let partition = partition.map_or_else(|| "-1".to_owned(), |number| number.to_string());
    let index = index.map(|index| format!(":{index}")).unwrap_or_default();
    let properties = &mut entry.metadata.properties;
    let mut set =
        |key: &str, value: String, replaces: bool| match properties.iter_mut().find(|pair| pair.key == key) {
            Some(pair) if replaces => pair.value = value,
            Some(_) => {}
            None => properties.push(KeyValue { key: key.to_owned(), value }),
        };
    set(REAL_TOPIC, topic.to_owned(), false);
    set(ORIGIN, format!("{ledger}:{number}:{partition}{index}"), false);
    if let Destination::Retry(number, delay) = destination {
        set(RETRIES, number.to_string(), true);
        set(DELAY, delay.as_millis().to_string(), true);
    }
    entry
}

/// How often an entry was sent to the retry-letter topic.
pub fn retries(entry: &Entry) -> u32 {
    let mut properties = entry.metadata.properties.iter();
    let retries = properties.find(|pair| pair.key == RETRIES);
    retries.and_then(|pair| pair.value.parse().ok()).unwrap_or_default()
}

/// A message with its key, properties and time. In a batch, each message has its own.
fn single(message: batch::Message<'_>, entry: &Metadata) -> Entry {
    let metadata = match message.single {
        Some((_, own)) => Metadata {
            properties: own.properties,
            partition_key: own.partition_key,
            partition_key_b64_encoded: own.partition_key_b64_encoded,
            ordering_key: own.ordering_key,
            event_time: own.event_time,
            null_value: own.null_value,
            null_partition_key: own.null_partition_key,
            ..Metadata::default()
        },
        None => Metadata {
            properties: entry.properties.clone(),
            partition_key: entry.partition_key.clone(),
            partition_key_b64_encoded: entry.partition_key_b64_encoded,
            ordering_key: entry.ordering_key.clone(),
            event_time: entry.event_time,
            null_value: entry.null_value,
            null_partition_key: entry.null_partition_key,
            ..Metadata::default()
        },
    };
    Entry { metadata, payload: Bytes::copy_from_slice(message.payload) }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use prost::Message as _;
    use pulsar::message::proto::SingleMessageMetadata;

    use super::*;

    fn letter(entry: Entry) -> Letter {
        let id = EntryId { ledger: 7, entry: 9 };
        Letter {
            from: Sender {
                session: 1,
                consumer: 0,
                topic: "persistent://public/default/t-partition-3".to_owned(),
                destination: Destination::DeadLetter,
                entry: id,
                size: 1,
            },
            entry,
            ack_set: Vec::new(),
        }
    }

    #[tokio::test]
    async fn few_letters_wait() {
        let (dead, mut to_send) = unbounded_channel();
        let (answer, answers) = unbounded_channel();
        let gone = Arc::default();
        let mut dead = Letters { dead, retries: None, answers, gone, held: (0, 0), limit: 1_000 };
        let send = |dead: &mut Letters, size: usize| {
            let from = letter(Entry { metadata: Metadata::default(), payload: Bytes::new() }).from;
            let entry = Entry { metadata: Metadata::default(), payload: vec![0; size].into() };
            dead.send(Sender { size, ..from }, &entry, Vec::new())
        };
        // One that is larger than the limit is sent alone.
        assert!(send(&mut dead, 2_000) && !send(&mut dead, 1));
        answer.send((to_send.recv().await.unwrap().from, None)).unwrap();
        dead.answer().await;
        assert!(send(&mut dead, 600) && send(&mut dead, 400) && !send(&mut dead, 1));
        for _ in 2..HELD {
            assert!(send(&mut dead, 0));
        }
        assert!(!send(&mut dead, 0));
    }

    fn sent(letter: &Letter) -> Vec<Entry> {
        entries(letter, readable(letter, 100).as_deref()).collect()
    }

    fn pair(value: &str) -> KeyValue {
        KeyValue { key: "whose".to_owned(), value: value.to_owned() }
    }

    fn properties(metadata: &Metadata) -> Vec<(&str, &str)> {
        metadata.properties.iter().map(|pair| (&*pair.key, &*pair.value)).collect()
    }

    #[test]
    fn each_message_of_a_batch_keeps_its_metadata() {
        let mut payload = BytesMut::new();
        for name in ["a", "b"] {
            let own = SingleMessageMetadata {
                payload_size: 1,
                partition_key: Some(format!("key of {name}")),
                partition_key_b64_encoded: Some(name == "b"),
                event_time: Some(5),
                properties: vec![pair(name)],
                ..SingleMessageMetadata::default()
            };
            payload.put_u32(u32::try_from(own.encoded_len()).unwrap());
            own.encode(&mut payload).unwrap();
            payload.put_slice(name.as_bytes());
        }
        let metadata = Metadata { num_messages_in_batch: Some(2), ..Metadata::default() };
        let sent = sent(&letter(Entry { metadata, payload: payload.freeze() }));
        for (message, name) in sent.iter().zip(["a", "b"]) {
            let Entry { metadata, payload } = message;
            assert_eq!((&**payload, metadata.event_time), (name.as_bytes(), Some(5)));
            assert_eq!(metadata.partition_key.as_deref(), Some(&*format!("key of {name}")));
            assert_eq!(metadata.partition_key_b64_encoded, Some(name == "b"));
            let id = if name == "a" { "7:9:3:0" } else { "7:9:3:1" };
            let origin = [(REAL_TOPIC, "persistent://public/default/t"), (ORIGIN, id)];
            assert_eq!(properties(metadata), [&[("whose", name)], &origin[..]].concat());
        }
        assert_eq!(sent.len(), 2);
    }

    #[test]
    fn single_and_unreadable_messages_keep_the_entrys_metadata() {
        for count in [None, Some(2)] {
            let metadata = Metadata {
                num_messages_in_batch: count,
                partition_key: Some("k".to_owned()),
                properties: vec![pair("all")],
                ..Metadata::default()
            };
            let sent = sent(&letter(Entry { metadata, payload: Bytes::from_static(b"?") }));
            assert_eq!((sent.len(), &*sent[0].payload), (1, &b"?"[..]));
            assert_eq!(sent[0].metadata.partition_key.as_deref(), Some("k"));
            assert_eq!(properties(&sent[0].metadata)[0], ("whose", "all"));
            assert_eq!(properties(&sent[0].metadata)[2], (ORIGIN, "7:9:3"));
            assert_eq!(sent[0].metadata.num_messages_in_batch, count, "an unreadable batch stays a batch");
        }
    }
    #[test]
    fn a_retry_is_delayed_and_counted() {
        let mut entry = Entry { metadata: Metadata::default(), payload: Bytes::from_static(b"?") };
        for number in 1..3 {
            let mut letter = letter(entry);
            letter.from.destination = Destination::Retry(number, Duration::from_secs(10));
            let before = delivery_time(Duration::from_secs(10));
            let mut sent = sent(&letter);
            assert_eq!(sent.len(), 1);
            entry = sent.remove(0);
            let due = entry.metadata.deliver_at_time.unwrap();
            assert!((before..before + 5_000).contains(&due), "{due}");
            assert_eq!(retries(&entry), number);
        }
        let origin = [(REAL_TOPIC, "persistent://public/default/t"), (ORIGIN, "7:9:3")];
        assert_eq!(properties(&entry.metadata), [&origin[..], &[(RETRIES, "2"), (DELAY, "10000")]].concat());
        // As a dead letter it is delivered at once.
        assert_eq!(sent(&letter(entry))[0].metadata.deliver_at_time, None);
    }
}
