//! The dead-letter topic, for messages that were redelivered too often. A separate task sends them, so that a
//! slow topic does not block the consumer. As in Pulsar's clients, a message keeps its payload, key and
//! properties, and two more properties name its origin.
//!
//! A broker deletes messages, and by default the topic too, if no subscription keeps them. So the task creates
//! a subscription before it sends the first message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pulsar::message::Metadata;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use pulsar::producer::Message;
use pulsar::{
    Authentication, ConnectionRetryOptions, OperationRetryOptions, Producer, ProducerOptions, Pulsar,
    TokioExecutor,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::batch;
use crate::frame::Entry;
use crate::ledger::EntryId;
use crate::notes::note;
use crate::session::{Session, Subscription, connect_any};
use crate::settings::DeadLetterPolicy;
use crate::topic::TopicName;

/// The time limit for a confirmation.
const LIMIT: Duration = Duration::from_secs(30);

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
            let mut producer = None;
            while let Some(letter) = next(&mut to_send, &below).await {
                let sent =
                    match timeout(LIMIT, Box::pin(send(&mut producer, &reader, &of.topic, &letter))).await {
                        Ok(sent) => sent,
                        Err(_) => Err("no confirmation in time".to_owned()),
                    };
                if let Err(why) = &sent {
                    note(&format!("Dead letter: cannot send to {}: {why}", reader.topic));
                    producer = None;
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
    producer: &mut Option<Producer<TokioExecutor>>,
    reader: &Subscription,
    origin: &TopicName,
    letter: &Letter,
) -> Result<u64, String> {
    let producer = match producer {
        Some(producer) => producer,
        none => none.insert(Box::pin(connect(reader)).await?),
    };
    let mut receipts = Vec::new();
    for message in messages(letter, origin) {
        receipts
            .push(Box::pin(producer.send_non_blocking(message)).await.map_err(|error| error.to_string())?);
    }
    let mut sent = 0;
    for receipt in receipts {
        receipt.await.map_err(|error| error.to_string())?;
        sent += 1;
    }
    Ok(sent)
}

/// The messages to send for an entry.
fn messages(letter: &Letter, topic: &TopicName) -> Vec<Message> {
    let entry = &letter.entry;
    let mut messages = Vec::new();
    let kept = |index| batch::is_kept(&letter.ack_set, index);
    let read = batch::each(entry, kept, |one| messages.push(message(one, &entry.metadata)));
    if read.is_err() {
        // An unreadable entry is sent unchanged.
        messages = vec![message(batch::Message { payload: &entry.payload, single: None }, &entry.metadata)];
    }
    let EntryId { ledger, entry } = letter.from.entry;
    for Message { properties, .. } in &mut messages {
        properties.entry(REAL_TOPIC.to_owned()).or_insert_with(|| topic.to_string());
        properties.entry(ORIGIN.to_owned()).or_insert_with(|| format!("{ledger}:{entry}:-1"));
    }
    messages
}

/// A message with its key, properties and time. In a batch, each message has its own.
fn message(one: batch::Message<'_>, entry: &Metadata) -> Message {
    let (properties, partition_key, b64_encoded, ordering_key, event_time) = if let Some(own) = one.single {
        let b64_encoded = own.partition_key_b64_encoded;
        (&own.properties, &own.partition_key, b64_encoded, &own.ordering_key, own.event_time)
    } else {
        let b64_encoded = entry.partition_key_b64_encoded;
        (&entry.properties, &entry.partition_key, b64_encoded, &entry.ordering_key, entry.event_time)
    };
    Message {
        payload: one.payload.to_vec(),
        properties: properties.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect(),
        partition_key: partition_key.clone(),
        partition_key_b64_encoded: b64_encoded,
        ordering_key: ordering_key.clone(),
        event_time,
        ..Message::default()
    }
}

/// Creates the subscription of the dead letters, and connects a producer to their topic.
async fn connect(reader: &Subscription) -> Result<Producer<TokioExecutor>, String> {
    Session::create(reader).await.map_err(|problem| problem.sentence)?;
    let client = client(reader).await?;
    // A batch may have more messages than the producer's queue, so sending must block.
    let options = ProducerOptions { block_queue_if_full: true, ..ProducerOptions::default() };
    let builder = client.producer().with_topic(reader.topic.to_string()).with_options(options);
    let built = Box::pin(builder.build()).await;
    built.map_err(|error| error.to_string())
}

/// The crate's client for a broker that has answered. It does not retry.
async fn client(of: &Subscription) -> Result<Pulsar<TokioExecutor>, String> {
    let host = connect_any(&of.server, &of.files).await.map_err(|problem| problem.sentence)?.host().clone();
    open(&of.server.of(&host), &of.files).await
}

/// The crate's client for one address.
pub async fn open(url: &str, files: &crate::security::Files) -> Result<Pulsar<TokioExecutor>, String> {
    let mut builder = Pulsar::builder(url, TokioExecutor)
        .with_connection_retry_options(ConnectionRetryOptions {
            max_retries: 0,
            ..ConnectionRetryOptions::default()
        })
        .with_operation_retry_options(OperationRetryOptions {
            max_retries: Some(0),
            ..OperationRetryOptions::default()
        });
    if let Some(token) = files.token().map_err(|problem| problem.sentence)? {
        builder = builder.with_auth(Authentication { name: "token".to_owned(), data: token.into_bytes() });
    }
    if let Some(ca) = files.ca().map_err(|problem| problem.sentence)? {
        builder = builder.with_certificate_chain(ca);
    }
    builder.build().await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use prost::Message as _;
    use pulsar::message::proto::{KeyValue, SingleMessageMetadata};

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
        let sent = messages(&letter(Entry { metadata, payload: payload.freeze() }), &topic);
        for (message, name) in sent.iter().zip(["a", "b"]) {
            assert_eq!((&*message.payload, message.event_time), (name.as_bytes(), Some(5)));
            assert_eq!(message.partition_key.as_deref(), Some(&*format!("key of {name}")));
            assert_eq!(message.partition_key_b64_encoded, Some(name == "b"));
            assert_eq!(message.properties["whose"], name);
            assert_eq!(message.properties[REAL_TOPIC], "persistent://public/default/t");
            assert_eq!(message.properties[ORIGIN], "7:9:-1");
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
            let sent = messages(&letter(Entry { metadata, payload: Bytes::from_static(b"?") }), &topic);
            assert_eq!((sent.len(), &*sent[0].payload), (1, &b"?"[..]));
            assert_eq!((sent[0].partition_key.as_deref(), &*sent[0].properties["whose"]), (Some("k"), "all"));
        }
    }
}
