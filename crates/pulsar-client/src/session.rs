//! A subscription, from the lookup of its brokers to its close. It has one consumer for each partition of the
//! topic, and one connection for each broker that serves some of them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::command_ack::AckType;
use pulsar::message::proto::command_partitioned_topic_metadata_response::LookupType as Found;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use pulsar::message::proto::{
    BaseCommand, CommandAck, CommandCloseConsumer, CommandFlow, CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe, MessageIdData,
};
use tokio::time::timeout;

use crate::address::ServiceAddress;
use crate::brokers::Brokers;
use crate::frame::{Delivery, Frame};
use crate::ledger::{Acks, EntryId};
use crate::link::{command, number};
use crate::problem::{Code, Problem};
use crate::security::Files;
use crate::topic::TopicName;

/// The time limit of a close.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// The parameters of a subscription.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The service.
    pub server: ServiceAddress,
    /// The topic.
    pub topic: TopicName,
    /// The subscription's name.
    pub name: String,
    /// Its type.
    pub kind: SubType,
    /// Where a new subscription begins.
    pub position: InitialPosition,
    /// The consumer's name at the broker.
    pub consumer: Option<String>,
    /// How many messages of each partition a broker may send ahead.
    pub queue: u32,
    /// The token and the CA.
    pub files: Files,
}

/// An event from a broker.
#[derive(Debug)]
pub enum Event {
    /// Messages for a consumer.
    Messages(Box<Delivery>),
    /// Whether this consumer of a Failover subscription is active.
    Active(bool),
    /// The topic was terminated.
    EndOfTopic,
    /// The topic has more partitions than before.
    Grown,
}

#[derive(Debug)]
struct Consumer {
    link: usize,
    /// Handled messages for which the broker has no new permits yet.
    used: u32,
}

/// A running subscription.
#[derive(Debug)]
pub struct Session {
    brokers: Brokers,
    consumers: Vec<Consumer>,
    partitions: u32,
    queue: u32,
}

impl Session {
    /// Finds the brokers, subscribes, and requests messages.
    pub async fn open(subscription: &Subscription) -> Result<Self, Problem> {
        let mut session = Self::subscribed(subscription, false).await?;
        for consumer in 0..session.consumers.len() {
            session.flow(consumer, session.queue).await?;
        }
        Ok(session)
    }

    /// Subscribes to all partitions, perhaps except those where the subscription is busy.
    async fn subscribed(subscription: &Subscription, without_busy: bool) -> Result<Self, Problem> {
        let mut brokers = Brokers::connect(&subscription.server, &subscription.files).await?;
        let partitions = brokers.partitions(&subscription.topic).await?;
        let queue = subscription.queue;
        let mut session = Self { brokers, consumers: Vec::new(), partitions, queue };
        for topic in subscription.topic.partitions(partitions) {
            match session.subscribe(subscription, topic).await {
                Err(problem) if without_busy && problem.code == Code::Busy => {}
                done => done?,
            }
        }
        session.brokers.close_unused(session.consumers.iter_mut().map(|one| &mut one.link).collect());
        Ok(session)
    }

    /// Creates a subscription, if it does not exist yet.
    pub async fn create(subscription: &Subscription) -> Result<(), Problem> {
        // Where consumers of another type are connected to it, it exists.
        Self::subscribed(subscription, true).await?.close().await;
        Ok(())
    }

    async fn subscribe(&mut self, subscription: &Subscription, topic: String) -> Result<(), Problem> {
        let link = self.brokers.find(&topic).await?;
        let consumer_id = number(self.consumers.len());
        let kind = subscription.kind as i32;
        let subscribe = |request_id| CommandSubscribe {
            topic,
            subscription: subscription.name.clone(),
            sub_type: kind,
            consumer_id,
            request_id,
            consumer_name: subscription.consumer.clone(),
            durable: Some(true),
            initial_position: Some(subscription.position as i32),
            force_topic_creation: Some(true),
            ..CommandSubscribe::default()
        };
        self.brokers
            .link(link)
            .request(|request| command(Type::Subscribe, |c| c.subscribe = Some(subscribe(request))))
            .await?;
        self.consumers.push(Consumer { link, used: 0 });
        Ok(())
    }

    /// The number of consumers: one for each partition.
    pub fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// The next event. Cancel safe.
    pub async fn next(&mut self) -> Result<Event, Problem> {
        loop {
            let (link, frame) = poll_fn(|context| self.brokers.poll_frame(context)).await?;
            if let Some(event) = self.event(link, frame).await? {
                return Ok(event);
            }
        }
    }

    /// The next event, if one has arrived.
    pub async fn next_now(&mut self) -> Result<Option<Event>, Problem> {
        loop {
            let now = poll_fn(|context| match self.brokers.poll_frame(context) {
                Poll::Ready(frame) => Poll::Ready(frame.map(Some)),
                Poll::Pending => Poll::Ready(Ok(None)),
            });
            let Some((link, frame)) = now.await? else { return Ok(None) };
            if let Some(event) = self.event(link, frame).await? {
                return Ok(Some(event));
            }
        }
    }

    /// Handles a frame. Returns an event for the consumer, if any.
    async fn event(&mut self, link: usize, frame: Frame) -> Result<Option<Event>, Problem> {
        match frame {
            Frame::Messages(delivery) => Ok(Some(Event::Messages(delivery))),
            Frame::Command(command) if self.brokers.link(link).attend(&command).await? => Ok(None),
            Frame::Command(command) => event(&command, self.partitions),
        }
    }

    /// Records that messages of a consumer were handled. After half of the queue it requests more.
    pub async fn taken(&mut self, consumer: usize, messages: u32) -> Result<(), Problem> {
        let used = self.consumers[consumer].used.saturating_add(messages);
        self.consumers[consumer].used = used;
        if used >= self.queue.div_ceil(2) { self.flow(consumer, used).await } else { Ok(()) }
    }

    async fn flow(&mut self, consumer: usize, messages: u32) -> Result<(), Problem> {
        self.consumers[consumer].used = 0;
        let flow = CommandFlow { consumer_id: number(consumer), message_permits: messages };
        self.send(consumer, command(Type::Flow, |c| c.flow = Some(flow))).await
    }

    /// Acknowledges entries.
    pub async fn acknowledge(&mut self, consumer: usize, acks: Acks) -> Result<(), Problem> {
        let (kind, entries) = match acks {
            Acks::Each(entries) => (AckType::Individual, entries),
            Acks::UpTo(entry) => (AckType::Cumulative, vec![entry]),
        };
        let ack = CommandAck {
            consumer_id: number(consumer),
            ack_type: kind as i32,
            message_id: entries.into_iter().map(message_id).collect(),
            ..CommandAck::default()
        };
        self.send(consumer, command(Type::Ack, |c| c.ack = Some(ack))).await
    }

    /// Requests the redelivery of entries.
    pub async fn redeliver(&mut self, consumer: usize, entries: Vec<EntryId>) -> Result<(), Problem> {
        let redeliver = CommandRedeliverUnacknowledgedMessages {
            consumer_id: number(consumer),
            message_ids: entries.into_iter().map(message_id).collect(),
            ..CommandRedeliverUnacknowledgedMessages::default()
        };
        let kind = Type::RedeliverUnacknowledgedMessages;
        self.send(consumer, command(kind, |c| c.redeliver_unacknowledged_messages = Some(redeliver))).await
    }

    async fn send(&mut self, consumer: usize, command: Box<BaseCommand>) -> Result<(), Problem> {
        let link = self.consumers[consumer].link;
        self.brokers.link(link).send(command).await
    }

    /// Pings silent brokers, and fails if one stays silent.
    pub async fn keep_alive(&mut self) -> Result<(), Problem> {
        self.brokers.keep_alive().await
    }

    /// Requests the number of partitions; [`Event::Grown`] follows if there are more. A topic without
    /// partitions never gets some.
    pub async fn ask_for_growth(&mut self, topic: &TopicName) -> Result<(), Problem> {
        if self.partitions > 0 {
            self.brokers.ask_for_partitions(topic).await?;
        }
        Ok(())
    }

    /// Closes the consumers. Earlier acknowledgements are complete when this returns.
    pub async fn close(mut self) {
        let closing = async {
            for (number, consumer) in (0_u64..).zip(&self.consumers) {
                let close = |request_id| CommandCloseConsumer { consumer_id: number, request_id };
                let link = self.brokers.link(consumer.link);
                link.request(|request| {
                    command(Type::CloseConsumer, |c| c.close_consumer = Some(close(request)))
                })
                .await?;
            }
            Ok::<_, Problem>(())
        };
        // A broker that does not answer notices the closed connection.
        let _ = timeout(CLOSE_LIMIT, closing).await;
    }
}

/// The event of a command, for a topic with this number of partitions.
fn event(command: &BaseCommand, partitions: u32) -> Result<Option<Event>, Problem> {
    if command.close_consumer.is_some() {
        return Err(Problem::passing(
            Code::Unreachable,
            "the broker closed the consumer, because the topic moves",
        ));
    }
    if let Some(error) = &command.error {
        return Err(Problem::answered(error.error(), &error.message));
    }
    if let Some(change) = &command.active_consumer_change {
        return Ok(Some(Event::Active(change.is_active())));
    }
    if let Some(answer) = &command.partition_metadata_response {
        // An error in this answer must not end the session; the next answer may succeed.
        let known = answer.response() == Found::Success && answer.error.is_none();
        return Ok((known && answer.partitions() > partitions).then_some(Event::Grown));
    }
    Ok(command.reached_end_of_topic.is_some().then_some(Event::EndOfTopic))
}

fn message_id(id: EntryId) -> MessageIdData {
    MessageIdData { ledger_id: id.ledger, entry_id: id.entry, ..MessageIdData::default() }
}

#[cfg(test)]
mod tests {
    use pulsar::message::proto::{CommandPartitionedTopicMetadataResponse, ServerError};

    use super::*;

    #[test]
    fn only_more_partitions_cause_an_event() {
        let answer = |found: Found, error: Option<ServerError>, partitions| {
            let answer = CommandPartitionedTopicMetadataResponse {
                partitions: Some(partitions),
                response: Some(found as i32),
                error: error.map(|error| error as i32),
                ..CommandPartitionedTopicMetadataResponse::default()
            };
            let kind = Type::PartitionedMetadataResponse;
            event(&command(kind, |c| c.partition_metadata_response = Some(answer)), 2).unwrap()
        };
        assert!(matches!(answer(Found::Success, None, 3), Some(Event::Grown)));
        assert!(answer(Found::Success, None, 2).is_none());
        assert!(answer(Found::Success, None, 0).is_none());
        assert!(answer(Found::Failed, Some(ServerError::ServiceNotReady), 3).is_none());
        assert!(answer(Found::Success, Some(ServerError::MetadataError), 3).is_none());
    }
}
