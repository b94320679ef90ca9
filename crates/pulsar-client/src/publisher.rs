//! Sends entries to a topic: one producer for each partition, without waiting for each confirmation.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::{Duration, SystemTime};

use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::{BaseCommand, CommandProducer, CommandSend, ServerError};
use quintet_pulsar_topic::Topic;
use tokio::time::{Instant, sleep};

use crate::backoff;
use crate::brokers::{Brokers, Service};
use crate::exit::Exit;
use crate::frame::{Entry, Frame};
use crate::link::{command, number};
use crate::problem::{Code, Problem};

/// How often an idle publisher looks whether a broker is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The producers of a topic.
#[derive(Debug)]
pub struct Publisher {
    brokers: Brokers,
    /// By partition.
    producers: Vec<Producer>,
    /// The partition of the next entry without a key.
    next: usize,
}

#[derive(Debug)]
struct Producer {
    link: usize,
    name: String,
    /// The number of the next message.
    sequence: u64,
    /// The unconfirmed entries in their order, with the times of their sends and the numbers of their first messages.
    sent: VecDeque<(Instant, u64, Entry)>,
}

impl Publisher {
    /// Finds the brokers of a topic, and creates a producer for each partition.
    pub async fn open(service: &Service, topic: &Topic) -> Result<Self, Problem> {
        let mut brokers = Brokers::connect(service).await?;
        let partitions = brokers.partitions(topic).await?;
        let mut producers: Vec<Producer> = Vec::new();
        for topic in topic.partitions(partitions) {
            let link = brokers.find(topic.as_str()).await?;
            let producer_id = number(producers.len());
            let create = |request_id| CommandProducer {
                topic: topic.to_string(),
                producer_id,
                request_id,
                user_provided_producer_name: Some(false),
                ..CommandProducer::default()
            };
            let answer = brokers
                .link(link)
                .request(|request| command(Type::Producer, |c| c.producer = Some(create(request))))
                .await?;
            let name = answer.producer_success.unwrap_or_default().producer_name;
            producers.push(Producer { link, name, sequence: 0, sent: VecDeque::new() });
        }
        brokers.close_unused(producers.iter_mut().map(|producer| &mut producer.link).collect());
        // Many publishers send only one entry.
        let next = usize::try_from(backoff::random()).unwrap_or_default() % producers.len();
        Ok(Self { brokers, producers, next })
    }

    /// The size limit of an entry's payload at the brokers, in bytes.
    pub fn max_message_size(&mut self) -> usize {
        self.brokers.link(0).max_message_size()
    }

    /// Takes the entries that no broker has confirmed. They may be stored nevertheless.
    pub fn take_unconfirmed(&mut self) -> VecDeque<Entry> {
        self.producers.iter_mut().flat_map(|one| one.sent.drain(..)).map(|(.., entry)| entry).collect()
    }

    /// When the oldest unconfirmed entry was sent.
    pub fn waits_since(&self) -> Option<Instant> {
        self.producers.iter().filter_map(|one| Some(one.sent.front()?.0)).min()
    }

    /// Pings silent brokers, answers requests for a token, and fails if a broker stays silent.
    pub async fn keep_alive(&mut self) -> Result<(), Problem> {
        self.brokers.keep_alive(usize::MAX, 0).await.map(drop).map_err(|(_, problem)| problem)
    }

    /// Sends an entry. Sets the producer, the sequence and the time in its metadata. After an error the entry is
    /// unconfirmed.
    pub async fn send(&mut self, mut entry: Entry) -> Result<(), Problem> {
        let at = self.partition(entry.metadata.partition_key.as_deref());
        let producer = &mut self.producers[at];
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        entry.metadata.producer_name.clone_from(&producer.name);
        entry.metadata.sequence_id = producer.sequence;
        entry.metadata.publish_time = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let send = CommandSend {
            producer_id: number(at),
            sequence_id: producer.sequence,
            num_messages: entry.metadata.num_messages_in_batch,
            ..CommandSend::default()
        };
        producer.sent.push_back((Instant::now(), producer.sequence, entry.clone()));
        producer.sequence += u64::from(messages(&entry));
        let link = producer.link;
        self.brokers.link(link).send_with(command(Type::Send, |c| c.send = Some(send)), entry).await
    }

    /// Waits for the next confirmation, and returns the number of messages. Cancel safe.
    pub async fn confirmed(&mut self) -> Result<u32, Problem> {
        loop {
            let (link, frame) = poll_fn(|context| self.brokers.poll_frame(context, usize::MAX, 0)).await;
            let Frame::Command(command) = frame? else { continue };
            let link = self.brokers.link(link);
            let is_handled = link.control(&command)?;
            link.answer_challenge().await?;
            if is_handled {
                continue;
            }
            if let Some(messages) = self.receipt(&command)? {
                return Ok(messages);
            }
        }
    }

    /// Keeps the connections alive until one fails.
    pub async fn idle(&mut self) -> Problem {
        loop {
            let kept = tokio::select! {
                confirmed = self.confirmed() => confirmed.map(drop),
                () = sleep(KEEP_ALIVE) => self.keep_alive().await,
            };
            if let Err(problem) = kept {
                return problem;
            }
        }
    }

    fn receipt(&mut self, command: &BaseCommand) -> Result<Option<u32>, Problem> {
        if let Some(error) = &command.send_error {
            let problem = Problem::answered(error.error(), &error.message);
            // The same entry would be rejected again.
            let is_final =
                matches!(error.error(), ServerError::NotAllowedError | ServerError::TopicTerminatedError);
            return Err(Problem { end: problem.end.or(is_final.then_some(Exit::Other)), ..problem });
        }
        if let Some(error) = &command.error {
            return Err(Problem::answered(error.error(), &error.message));
        }
        if command.close_producer.is_some() {
            let sentence = "the broker closed the producer, because the topic moves";
            return Err(Problem::passing(Code::Unreachable, sentence));
        }
        let Some(receipt) = &command.send_receipt else { return Ok(None) };
        let producer = usize::try_from(receipt.producer_id).ok();
        let Some(producer) = producer.and_then(|at| self.producers.get_mut(at)) else { return Ok(None) };
        // Usually the first: only a non-persistent topic may confirm entries in another order.
        let confirmed = producer.sent.iter().position(|(_, sequence, _)| *sequence == receipt.sequence_id);
        let confirmed = confirmed.and_then(|at| producer.sent.remove(at));
        Ok(confirmed.map(|(.., entry)| messages(&entry)))
    }

    /// The partition of an entry: by its key, as in Pulsar's clients, or else the next one.
    fn partition(&mut self, key: Option<&str>) -> usize {
        let count = self.producers.len();
        self.next = (self.next + 1) % count;
        key.map_or(self.next, |key| usize::try_from(java_hash(key)).unwrap_or_default() % count)
    }
}

/// The default hash of Pulsar's clients for keys: that of a Java string, without its sign.
fn java_hash(key: &str) -> u32 {
    let hash = key.encode_utf16().fold(0_u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
    hash & 0x7fff_ffff
}

/// The number of messages in an entry.
fn messages(entry: &Entry) -> u32 {
    entry.metadata.num_messages_in_batch.and_then(|count| u32::try_from(count).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_keys_as_java_does() {
        // "".hashCode(), "a", "hello" and "polygenelubricants", whose hash is the smallest integer.
        let known = [("", 0), ("a", 97), ("hello", 99_162_322), ("polygenelubricants", 0), ("ä", 228)];
        for (key, hash) in known {
            assert_eq!(java_hash(key), hash, "{key}");
        }
    }
}
