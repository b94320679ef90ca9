//! The dead-letter topic, for messages that were redelivered too often. A separate task sends them, so that a
//! slow topic does not block the consumer. As in Pulsar's clients, a message keeps its payload, key and
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

use crate::batch;
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

/// The limit of entries that wait for confirmation.
const UNCONFIRMED: usize = 1_000;

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
    /// The entry.
    pub entry: EntryId,
    /// The number of messages that the broker counts for it.
    pub permits: u32,
}

/// Sends messages to a dead-letter topic.
#[derive(Debug)]
pub struct DeadLetters {
    letters: UnboundedSender<Letter>,
    answers: UnboundedReceiver<(Sender, Result<u64, String>)>,
    /// Sessions below this number have ended.
    gone: Arc<AtomicU64>,
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
        let below = Arc::clone(&gone);
        tokio::spawn(async move {
            let mut publisher = None;
            loop {
                let letter = tokio::select! {
                    letter = next(&mut to_send, &below) => letter,
                    _ = idle(&mut publisher) => {
                        publisher = None;
                        continue;
                    }
                };
                let Some(letter) = letter else { return };
                let sent = Box::pin(send(&mut publisher, &reader, &of.topic, &letter)).await;
                let sent = sent.map_err(|problem| problem.sentence);
                if let Err(why) = &sent {
                    note(&format!("Dead letter: cannot send to {}: {why}", reader.topic));
                    publisher = None;
                }
                if answer.send((letter.from, sent)).is_err() {
                    return;
                }
            }
        });
        Self { letters, answers, gone }
    }

    /// Sends an entry.
    pub fn send(&self, letter: Letter) {
        // Without the task there is no answer, and the broker redelivers the entry.
        let _ = self.letters.send(letter);
    }

    /// Drops the waiting entries of an ended session, which come again in another session.
    pub fn forget(&self, session: u64) {
        self.gone.store(session + 1, Ordering::Relaxed);
    }

    /// The next result: the number of sent messages, or an error. Without an entry it waits permanently.
    /// Cancel safe.
    pub async fn answer(&mut self) -> (Sender, Result<u64, String>) {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

/// The next letter of a current session.
async fn next(letters: &mut UnboundedReceiver<Letter>, gone: &AtomicU64) -> Option<Letter> {
    loop {
        let letter = letters.recv().await?;
        if letter.from.session >= gone.load(Ordering::Relaxed) {
            return Some(letter);
        }
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
    for entry in entries(letter, origin, publisher.max_message_size()) {
        in_time(publisher.send(entry)).await?;
        count += 1;
        unconfirmed += 1;
        if unconfirmed == UNCONFIRMED {
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

/// The entries to send for an entry: one for each of its messages that is not acknowledged. An unreadable entry is
/// sent unchanged, so that another client may read it; so is an entry with a message above `limit` bytes, which the
/// broker stored compressed.
fn entries(letter: &Letter, topic: &TopicName, limit: usize) -> Vec<Entry> {
    let entry = &letter.entry;
    let mut entries = Vec::new();
    let kept = |index| batch::is_kept(&letter.ack_set, index);
    let read = batch::each(entry, kept, |one| entries.push(message(one, &entry.metadata)));
    if read.is_err() || entries.iter().any(|entry| entry.payload.len() > limit) {
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
        entries = vec![Entry { metadata, payload: entry.payload.clone() }];
    }
    let EntryId { ledger, entry } = letter.from.entry;
    for Entry { metadata, .. } in &mut entries {
        for (key, value) in [(REAL_TOPIC, topic.to_string()), (ORIGIN, format!("{ledger}:{entry}:-1"))] {
            if metadata.properties.iter().all(|pair| pair.key != key) {
                metadata.properties.push(KeyValue { key: key.to_owned(), value });
            }
        }
    }
    entries
}

/// A message with its key, properties and time. In a batch, each message has its own.
fn message(one: batch::Message<'_>, entry: &Metadata) -> Entry {
    let metadata = match one.single {
        Some(own) => Metadata {
            properties: own.properties.clone(),
            partition_key: own.partition_key.clone(),
            partition_key_b64_encoded: own.partition_key_b64_encoded,
            ordering_key: own.ordering_key.clone(),
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
    Entry { metadata, payload: Bytes::copy_from_slice(one.payload) }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use prost::Message as _;
    use pulsar::message::proto::SingleMessageMetadata;

    use super::*;

    fn letter(entry: Entry) -> Letter {
        let id = EntryId { ledger: 7, entry: 9 };
        Letter { from: Sender { session: 1, consumer: 0, entry: id, permits: 1 }, entry, ack_set: Vec::new() }
    }

    #[tokio::test]
    async fn does_not_send_letters_of_an_ended_session() {
        let (letters, mut to_send) = unbounded_channel();
        for session in [0, 1, 1, 2, 3] {
            let mut letter = letter(Entry { metadata: Metadata::default(), payload: Bytes::new() });
            letter.from.session = session;
            letters.send(letter).unwrap();
        }
        let (_, answers) = unbounded_channel();
        let dead_letters = DeadLetters { letters, answers, gone: Arc::default() };
        let mut sent = Vec::new();
        sent.extend(next(&mut to_send, &dead_letters.gone).await.map(|letter| letter.from.session));
        dead_letters.forget(1);
        let gone = Arc::clone(&dead_letters.gone);
        drop(dead_letters);
        while let Some(letter) = next(&mut to_send, &gone).await {
            sent.push(letter.from.session);
        }
        assert_eq!(sent, [0, 2, 3]);
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
        let sent = entries(&letter(Entry { metadata, payload: payload.freeze() }), &topic, 100);
        for (message, name) in sent.iter().zip(["a", "b"]) {
            let Entry { metadata, payload } = message;
            assert_eq!((&**payload, metadata.event_time), (name.as_bytes(), Some(5)));
            assert_eq!(metadata.partition_key.as_deref(), Some(&*format!("key of {name}")));
            assert_eq!(metadata.partition_key_b64_encoded, Some(name == "b"));
            let origin = [(REAL_TOPIC, "persistent://public/default/t"), (ORIGIN, "7:9:-1")];
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
            let sent = entries(&letter(Entry { metadata, payload: Bytes::from_static(b"?") }), &topic, 100);
            assert_eq!((sent.len(), &*sent[0].payload), (1, &b"?"[..]));
            assert_eq!(sent[0].metadata.partition_key.as_deref(), Some("k"));
            assert_eq!(properties(&sent[0].metadata)[0], ("whose", "all"));
            assert_eq!(sent[0].metadata.num_messages_in_batch, count, "an unreadable batch stays a batch");
        }
    }
}
