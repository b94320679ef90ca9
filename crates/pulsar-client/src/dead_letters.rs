//! The dead-letter topic: where messages go that were delivered too often. A task of its own sends them, so that a topic
//! that is slow to take them stops nothing else. As in Pulsar's own clients, a message keeps its payload, key and
//! properties, and two properties tell where it comes from.

use std::time::Duration;

use pulsar::{
    Authentication, ConnectionRetryOptions, OperationRetryOptions, Producer, Pulsar, TokioExecutor,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::batch;
use crate::exit::note;
use crate::frame::Entry;
use crate::ledger::EntryId;
use crate::session::{Subscription, connect_any};
use crate::topic::TopicName;

/// How long the broker may take to confirm.
const LIMIT: Duration = Duration::from_secs(30);

/// Names of properties, as Pulsar's own clients have them.
const REAL_TOPIC: &str = "REAL_TOPIC";
const ORIGIN: &str = "ORIGIN_MESSAGE_ID";

/// An entry that was delivered too often.
#[derive(Debug)]
pub struct Letter {
    /// Whose it is: returned with the answer.
    pub from: Sender,
    /// The entry.
    pub entry: Entry,
    /// The messages of a batch that are not acknowledged, as [`batch::is_kept`] takes it.
    pub ack_set: Vec<i64>,
}

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The session, by its number.
    pub session: u64,
    /// The consumer in it.
    pub consumer: usize,
    /// The entry.
    pub entry: EntryId,
    /// The messages that the broker counts for it.
    pub permits: u32,
}

/// Sends messages to a dead-letter topic.
#[derive(Debug)]
pub struct DeadLetters {
    letters: UnboundedSender<Letter>,
    answers: UnboundedReceiver<(Sender, Result<u64, String>)>,
}

impl DeadLetters {
    /// Begins to send to a topic. It connects when there is something to send.
    pub fn start(topic: TopicName, of: Subscription) -> Self {
        let (letters, mut to_send) = unbounded_channel::<Letter>();
        let (answer, answers) = unbounded_channel();
        tokio::spawn(async move {
            let mut producer = None;
            while let Some(letter) = to_send.recv().await {
                let sent = match timeout(LIMIT, Box::pin(send(&mut producer, &topic, &of, &letter))).await {
                    Ok(sent) => sent,
                    Err(_) => Err("no confirmation in time".to_owned()),
                };
                if let Err(why) = &sent {
                    note(&format!("Dead letter: cannot send to {topic}: {why}"));
                    producer = None;
                }
                if answer.send((letter.from, sent)).is_err() {
                    return;
                }
            }
        });
        Self { letters, answers }
    }

    /// Has an entry sent.
    pub fn send(&self, letter: Letter) {
        // Without the task there is no answer, and the entry is delivered again to somebody else.
        let _ = self.letters.send(letter);
    }

    /// The next entry that was sent, with the number of its messages, or that could not be. Waits for ever where there is
    /// none. May be dropped while it waits.
    pub async fn answer(&mut self) -> (Sender, Result<u64, String>) {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

async fn send(
    producer: &mut Option<Producer<TokioExecutor>>,
    topic: &TopicName,
    of: &Subscription,
    letter: &Letter,
) -> Result<u64, String> {
    let producer = match producer {
        Some(producer) => producer,
        none => none.insert(Box::pin(connect(topic, of)).await?),
    };
    let mut payloads = Vec::new();
    let read = batch::each(
        &letter.entry,
        |index| batch::is_kept(&letter.ack_set, index),
        |payload| payloads.push(payload.to_vec()),
    );
    if read.is_err() {
        // What cannot be read goes as it is.
        payloads = vec![letter.entry.payload.to_vec()];
    }
    let metadata = &letter.entry.metadata;
    let mut properties: std::collections::HashMap<String, String> =
        metadata.properties.iter().map(|property| (property.key.clone(), property.value.clone())).collect();
    let EntryId { ledger, entry } = letter.from.entry;
    properties.entry(REAL_TOPIC.to_owned()).or_insert_with(|| of.topic.to_string());
    properties.entry(ORIGIN.to_owned()).or_insert_with(|| format!("{ledger}:{entry}:-1"));
    let mut receipts = Vec::new();
    for payload in payloads {
        let message = pulsar::producer::Message {
            payload,
            properties: properties.clone(),
            partition_key: metadata.partition_key.clone(),
            ordering_key: metadata.ordering_key.clone(),
            event_time: metadata.event_time,
            ..pulsar::producer::Message::default()
        };
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

async fn connect(topic: &TopicName, of: &Subscription) -> Result<Producer<TokioExecutor>, String> {
    let client = client(of).await?;
    let built = Box::pin(client.producer().with_topic(topic.to_string()).build()).await;
    built.map_err(|error| error.to_string())
}

/// The crate's client, for a broker that was found to answer. It does not try again by itself.
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
