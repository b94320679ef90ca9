//! The dead-letter topic, for messages that were redelivered too often. A separate task sends them, and few of them
//! wait for it, so that a slow topic delays no other messages. As in Pulsar's clients, a message keeps its payload, key and
//! properties, and two more properties name its origin.
//!
//! A broker deletes messages, and by default the topic too, if no subscription keeps them. So the task creates
//! a subscription before it sends the first message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pulsar::message::Metadata;
use pulsar::message::proto::KeyValue;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::batch::{self, Messages};
use crate::frame::Entry;
use crate::ledger::EntryId;
use crate::notes::note;
use crate::problem::{Code, Problem};
use crate::publisher::Publisher;
use crate::session::{Session, Subscription};
use crate::settings::DeadLetterPolicy;
use crate::topic::TopicName;

/// The time limit for the connection, and for each entry.
const LIMIT: Duration = Duration::from_secs(30);

/// The limit of entries that wait for the task. More would only wait longer, and the broker keeps them meanwhile.
const HELD: usize = 100;

/// The limit of entries that wait for confirmation.
const UNCONFIRMED: usize = 1_000;

/// The waiting entries may use this part of the limit of the received messages, in addition to it.
const SHARE: usize = 4;

/// Names of properties, as in Pulsar's clients.
const REAL_TOPIC: &str = "REAL_TOPIC";
const ORIGIN: &str = "ORIGIN_MESSAGE_ID";

/// An entry that was redelivered too often.
#[derive(Debug)]
pub struct Letter {
    /// Its sender, which the answer returns.
    pub from: Sender,
    /// The entry.
    pub entry: Entry,
    /// The unacknowledged messages of a batch, for [`batch::is_kept`].
    pub ack_set: Vec<i64>,
}

/// The recipient of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The session, by its number.
    pub session: u64,
    /// The consumer in the session.
    pub consumer: usize,
    /// The number of its partition, or -1.
    pub partition: i32,
    /// The entry.
    pub entry: EntryId,
    /// The size of its payload.
    pub size: usize,
}

/// Sends messages to a dead-letter topic.
#[derive(Debug)]
pub struct DeadLetters {
    letters: UnboundedSender<Letter>,
    answers: UnboundedReceiver<(Sender, Option<u64>)>,
    /// Sessions below this number have ended.
    gone: Arc<AtomicU64>,
    /// The number of entries without an answer, and their size.
    held: (usize, usize),
    /// The limit of their size.
    limit: usize,
}

impl DeadLetters {
    /// Starts the task. It connects before the first message.
    pub fn start(policy: &DeadLetterPolicy, of: Subscription) -> Self {
        let reader = Subscription {
            topic: policy.topic.clone(),
            name: policy.subscription.clone(),
            kind: SubType::Shared,
            position: InitialPosition::Earliest,
            ..of.clone()
        };
        let (letters, mut to_send) = unbounded_channel::<Letter>();
        let (answer, answers) = unbounded_channel();
        let gone = Arc::new(AtomicU64::new(0));
        let of_bytes = of.queue_bytes;
        let below = Arc::clone(&gone);
        tokio::spawn(async move {
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
                if letter.from.session < below.load(Ordering::Relaxed) {
                    let _ = answer.send((letter.from, None));
                    continue;
                }
                let sent = Box::pin(send(&mut publisher, &reader, &of.topic, &letter)).await;
                if let Err(why) = &sent {
                    note(&format!("Dead letter: cannot send to {}: {why}", reader.topic));
                    publisher = None;
                    // The others would fail too, perhaps after a long wait.
                    while let Ok(letter) = to_send.try_recv() {
                        let _ = answer.send((letter.from, None));
                    }
                }
                if answer.send((letter.from, sent.ok())).is_err() {
                    return;
                }
            }
        });
        Self { letters, answers, gone, held: (0, 0), limit: of_bytes / SHARE }
    }

    /// Sends an entry. Returns false if too many wait. An answer follows otherwise.
    pub fn send(&mut self, from: Sender, entry: &Entry, ack_set: Vec<i64>) -> bool {
        let (count, size) = self.held;
        if count >= HELD || (count > 0 && size + from.size > self.limit) {
            return false;
        }
        self.held = (count + 1, size + from.size);
        // A copy, because the payload may be a part of a larger buffer.
        let entry = Entry { payload: Bytes::copy_from_slice(&entry.payload), ..entry.clone() };
        // Without the task there is no answer, and the broker redelivers the entry.
        let _ = self.letters.send(Letter { from, entry, ack_set });
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

async fn send(
    publisher: &mut Option<Publisher>,
    reader: &Subscription,
    origin: &TopicName,
    letter: &Letter,
) -> Result<u64, Problem> {
    let publisher = match publisher {
        Some(publisher) => publisher,
        none => none.insert(in_time(Box::pin(connect(reader))).await?),
    };
    in_time(publisher.keep_alive()).await?;
    let mut unconfirmed = 0;
    let mut count = 0;
    let payload = readable(letter, publisher.max_message_size());
    for entry in entries(letter, payload.as_deref(), origin) {
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

/// Creates the subscription of the dead letters, and the producers of their topic.
async fn connect(reader: &Subscription) -> Result<Publisher, Problem> {
    Session::create(reader).await?;
    Publisher::open(&reader.server, &reader.files, &reader.topic).await
}

/// Waits until a connection fails; without a connection permanently. Cancel safe.
async fn idle(publisher: &mut Option<Publisher>) -> Problem {
    match publisher {
        Some(publisher) => publisher.idle().await,
        None => std::future::pending().await,
    }
}

/// The unpacked payload of an entry whose messages can be sent one by one. An unreadable entry cannot; nor can one
/// with a message above `limit` bytes, which the broker stored compressed.
fn readable(letter: &Letter, limit: usize) -> Option<Bytes> {
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
fn entries<'a>(
    letter: &'a Letter,
    payload: Option<&'a [u8]>,
    topic: &'a TopicName,
) -> impl Iterator<Item = Entry> + 'a {
    let unchanged = payload.is_none().then(|| {
        let entry = &letter.entry;
        let metadata = Metadata {
            replicated_from: None,
            // Schemas and sequences are those of the other topic.
            schema_version: None,
            highest_sequence_id: None,
            deliver_at_time: None,
            txnid_least_bits: None,
            txnid_most_bits: None,
            ..entry.metadata.clone()
        };
        from_origin(letter, topic, None, Entry { metadata, payload: entry.payload.clone() })
    });
    let messages = payload.into_iter().flat_map(|payload| messages(letter, payload)).map_while(Result::ok);
    unchanged.into_iter().chain(messages.map(|message| {
        let index = message.single.as_ref().map(|(index, _)| *index);
        from_origin(letter, topic, index, single(message, &letter.entry.metadata))
    }))
}

/// Adds the properties that name the origin, unless the message has them from an earlier topic. The ID has the form
/// of Java's: the segment, the entry, the partition and, in a batch, the index.
fn from_origin(letter: &Letter, topic: &TopicName, index: Option<usize>, mut entry: Entry) -> Entry {
    let Sender { partition, entry: EntryId { ledger, entry: number }, .. } = letter.from;
    let index = index.map(|index| format!(":{index}")).unwrap_or_default();
    let properties = &mut entry.metadata.properties;
    for (key, value) in
        [(REAL_TOPIC, topic.to_string()), (ORIGIN, format!("{ledger}:{number}:{partition}{index}"))]
    {
        if properties.iter().all(|pair| pair.key != key) {
            properties.push(KeyValue { key: key.to_owned(), value });
        }
    }
    entry
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
            from: Sender { session: 1, consumer: 0, partition: 3, entry: id, size: 1 },
            entry,
            ack_set: Vec::new(),
        }
    }

    #[tokio::test]
    async fn few_letters_wait() {
        let (letters, mut to_send) = unbounded_channel();
        let (answer, answers) = unbounded_channel();
        let mut dead = DeadLetters { letters, answers, gone: Arc::default(), held: (0, 0), limit: 1_000 };
        let send = |dead: &mut DeadLetters, size: usize| {
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

    fn sent(letter: &Letter, topic: &TopicName) -> Vec<Entry> {
        entries(letter, readable(letter, 100).as_deref(), topic).collect()
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
        let topic: TopicName = "t".parse().unwrap();
        let sent = sent(&letter(Entry { metadata, payload: payload.freeze() }), &topic);
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
        let topic: TopicName = "t".parse().unwrap();
        for count in [None, Some(2)] {
            let metadata = Metadata {
                num_messages_in_batch: count,
                partition_key: Some("k".to_owned()),
                properties: vec![pair("all")],
                ..Metadata::default()
            };
            let sent = sent(&letter(Entry { metadata, payload: Bytes::from_static(b"?") }), &topic);
            assert_eq!((sent.len(), &*sent[0].payload), (1, &b"?"[..]));
            assert_eq!(sent[0].metadata.partition_key.as_deref(), Some("k"));
            assert_eq!(properties(&sent[0].metadata)[0], ("whose", "all"));
            assert_eq!(properties(&sent[0].metadata)[2], (ORIGIN, "7:9:3"));
            assert_eq!(sent[0].metadata.num_messages_in_batch, count, "an unreadable batch stays a batch");
        }
    }
}
