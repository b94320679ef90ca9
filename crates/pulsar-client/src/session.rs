//! A subscription, from the lookup of its brokers to its close. It has one consumer for each topic, or for each
//! partition of a topic, and one connection for each broker that serves some of them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::command_ack::{AckType, ValidationError};
use pulsar::message::proto::command_partitioned_topic_metadata_response::LookupType as Found;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use pulsar::message::proto::{
    BaseCommand, CommandAck, CommandCloseConsumer, CommandFlow, CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe, MessageIdData,
};
use quintet_pulsar_topic::{Pattern, Topic, split_partition};
use tokio::time::{Instant, timeout};

use crate::brokers::{Brokers, Located, Lost, Reading, Service};
use crate::frame::{Delivery, Frame};
use crate::ledger::{Acks, EntryId};
#[cfg(test)]
use crate::link::Link;
use crate::link::{answers, command, number};
use crate::problem::{Code, Problem};

/// The time limit of a subscription's answer, after which the consumer is lost again.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// The time limit of a close.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// The request number of an error that answers no request: -1 in Java.
const UNREQUESTED: u64 = u64::MAX;

/// The parameters of a subscription.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The service.
    pub service: Service,
    /// The topics.
    pub topics: Vec<Topic>,
    /// More topics.
    pub pattern: Option<Pattern>,
    /// The topic of messages that are delivered again later. Its subscription begins with the first one.
    pub retry_letters: Option<Topic>,
    /// The subscription's name.
    pub name: String,
    /// Its type.
    pub kind: SubType,
    /// Where a new subscription begins.
    pub position: InitialPosition,
    /// Where a new subscription of a topic that matches the pattern begins.
    pub matched_position: InitialPosition,
    /// Whether to get only the latest message of each key.
    pub read_compacted: bool,
    /// Whether the broker replicates the position to other clusters.
    pub replicated: bool,
    /// The consumer's name at the broker.
    pub consumer: Option<String>,
    /// How many messages of each partition a broker may send ahead.
    pub queue: u32,
    /// How many bytes of messages may wait. One message more is always allowed.
    pub queue_bytes: usize,
}

impl Subscription {
    /// The topics with names.
    fn named(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter().chain(&self.retry_letters)
    }

    /// Where a new subscription of a consumer begins.
    fn position_of(&self, consumer: &Consumer) -> InitialPosition {
        let retry = self.retry_letters.as_ref().map(ToString::to_string);
        match retry {
            _ if consumer.is_matched => self.matched_position,
            Some(retry) if retry == split_partition(&consumer.topic).0 => InitialPosition::Earliest,
            _ => self.position,
        }
    }
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
    /// There are new topics or partitions, this number of them. Their consumers are lost until they subscribe.
    Grown(usize),
    /// These consumers have lost their subscriptions.
    Lost(Vec<usize>, Problem),
    /// A consumer that was lost has subscribed again, or its topic was deleted.
    Joined,
}

#[derive(Debug)]
struct Consumer {
    topic: String,
    /// Whether a pattern matches the topic, so that it may be deleted.
    is_matched: bool,
    place: Place,
    /// Handled messages for which the broker has no new permits yet.
    used: u32,
}

impl Consumer {
    fn new(topic: String, is_matched: bool) -> Self {
        Self { topic, is_matched, place: Place::Lost, used: 0 }
    }
}

/// Where a consumer is subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere, and it needs no place: its topic was deleted, or has consumers of another type.
    Gone,
    /// Nowhere.
    Lost,
    /// Nowhere until this request is answered.
    Joining { link: usize, request: u64, since: Instant },
    /// On this connection.
    Joined { link: usize },
}

impl Place {
    /// Whether the answer to a request on a connection is that of the subscription.
    fn is_answered(self, at: usize, answered: u64) -> bool {
        matches!(self, Self::Joining { link, request, .. } if (link, request) == (at, answered))
    }

    fn link(&mut self) -> Option<&mut usize> {
        match self {
            Self::Gone | Self::Lost => None,
            Self::Joining { link, .. } | Self::Joined { link } => Some(link),
        }
    }
}

/// A running subscription.
#[derive(Debug)]
pub struct Session {
    subscription: Subscription,
    brokers: Brokers,
    consumers: Vec<Consumer>,
    /// The number of partitions of each topic with a name; 0 without partitions.
    partitions: Vec<u32>,
    /// The last requests for the numbers of partitions: the request and the index of the topic.
    counted: HashMap<u64, usize>,
}

impl Session {
    /// A session of consumers that are subscribed on these connections.
    #[cfg(test)]
    pub fn over(subscription: Subscription, links: Vec<Link>, consumers: &[usize]) -> Self {
        let brokers = Brokers::over(subscription.service.clone(), links);
        let partitions = u32::try_from(consumers.len()).unwrap();
        let mut session = Self {
            brokers,
            consumers: Vec::new(),
            partitions: vec![0],
            counted: HashMap::new(),
            subscription,
        };
        session.grow(0, partitions);
        for (consumer, link) in session.consumers.iter_mut().zip(consumers) {
            consumer.place = Place::Joined { link: *link };
        }
        session
    }

    /// Finds the brokers, subscribes, and requests messages. Returns why some matching topics have no subscription yet.
    pub async fn open(subscription: &Subscription) -> Result<(Self, Option<Problem>), Problem> {
        let (mut session, problem) = Self::subscribed(subscription, false).await?;
        for consumer in 0..session.consumers.len() {
            session.flow(consumer, subscription.queue)?;
        }
        // All messages of a topic that comes later are newer than the subscription.
        session.subscription.matched_position = InitialPosition::Earliest;
        Ok((session, problem))
    }

    /// Subscribes to all topics, perhaps except those where the subscription is busy. A matching topic that fails delays
    /// no other.
    async fn subscribed(
        subscription: &Subscription,
        without_busy: bool,
    ) -> Result<(Self, Option<Problem>), Problem> {
        let brokers = Brokers::connect(&subscription.service).await?;
        let mut session = Self {
            subscription: subscription.clone(),
            brokers,
            consumers: Vec::new(),
            partitions: Vec::new(),
            counted: HashMap::new(),
        };
        for (number, topic) in subscription.named().enumerate() {
            let partitions = session.brokers.partitions(topic).await?;
            session.partitions.push(0);
            session.grow(number, partitions);
        }
        if let Some(pattern) = &subscription.pattern {
            let topics = session.brokers.topics(pattern).await?;
            session.match_topics(topics);
        }
        let Self { brokers, consumers, .. } = &mut session;
        let mut failed = None;
        for (number, consumer) in consumers.iter_mut().enumerate() {
            let joined = async {
                let link = brokers.find(&consumer.topic).await?;
                brokers.link(link).request(subscribe(subscription, consumer, number)).await?;
                Ok::<_, Problem>(link)
            };
            match joined.await {
                Ok(link) => consumer.place = Place::Joined { link },
                Err(problem) if without_busy && problem.code == Code::Busy => consumer.place = Place::Gone,
                Err(problem) if consumer.is_matched && problem.is_missing_topic => {
                    consumer.place = Place::Gone;
                }
                Err(problem) if consumer.is_matched && problem.end.is_none() => failed = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        if let Some(problem) = failed.take_if(|_| consumers.iter_mut().all(|one| one.place.link().is_none()))
        {
            return Err(problem);
        }
        brokers.close_unused(consumers.iter_mut().filter_map(|one| one.place.link()).collect());
        Ok((session, failed))
    }

    /// Creates a subscription, if it does not exist yet.
    pub async fn create(subscription: &Subscription) -> Result<(), Problem> {
        // Where consumers of another type are connected to it, it exists.
        Self::subscribed(subscription, true).await?.0.close().await;
        Ok(())
    }

    /// Adds lost consumers for the new partitions of a topic, by its index. Returns their number.
    pub fn grow(&mut self, topic: usize, partitions: u32) -> usize {
        let known = self.partitions[topic];
        let Some(name) = self.subscription.named().nth(topic) else { return 0 };
        let before = self.consumers.len();
        let new = name.partitions(partitions).into_iter().skip(known.try_into().unwrap_or(usize::MAX));
        self.consumers.extend(new.map(|topic| Consumer::new(topic.to_string(), false)));
        self.partitions[topic] = known.max(partitions);
        self.consumers.len() - before
    }

    /// Adds lost consumers for new topics that match the pattern. Returns their number.
    fn match_topics(&mut self, topics: Vec<String>) -> usize {
        let Some(pattern) = &self.subscription.pattern else { return 0 };
        let known: HashMap<String, usize> =
            self.consumers.iter().enumerate().map(|(number, one)| (one.topic.clone(), number)).collect();
        let mut new = 0;
        for topic in topics.into_iter().filter(|topic| pattern.matches(topic)) {
            match known.get(&topic).map(|number| &mut self.consumers[*number].place) {
                None => self.consumers.push(Consumer::new(topic, true)),
                Some(place) if *place == Place::Gone => *place = Place::Lost,
                Some(_) => continue,
            }
            new += 1;
        }
        new
    }

    /// The event of an answer about partitions or topics, if there are new ones. An error if a topic was created again
    /// with other partitions.
    fn grown(&mut self, command: BaseCommand) -> Result<Option<Event>, Problem> {
        let new = if let Some(answer) = command.partition_metadata_response {
            let Some(topic) = self.counted.remove(&answer.request_id) else { return Ok(None) };
            // An error in this answer must not end the session; the next answer may succeed.
            let is_known = answer.response() == Found::Success && answer.error.is_none();
            let (known, now) = (self.partitions[topic], answer.partitions());
            // 0 is also the answer for a deleted topic.
            if is_known && now > 0 && (known == 0 || now < known) {
                let sentence = format!("a topic was created again, with {now} partitions");
                return Err(Problem::passing(Code::NotFound, sentence));
            }
            if is_known { self.grow(topic, now) } else { 0 }
        } else {
            let topics = command.get_topics_of_namespace_response.map(|answer| answer.topics);
            self.match_topics(topics.unwrap_or_default())
        };
        Ok((new > 0).then_some(Event::Grown(new)))
    }

    /// The lost consumers and their topics.
    pub fn lost(&self) -> Vec<Lost> {
        let lost = self.consumers.iter().enumerate().filter(|(_, consumer)| consumer.place == Place::Lost);
        lost.map(|(number, one)| Lost { number, topic: one.topic.clone(), is_matched: one.is_matched })
            .collect()
    }

    /// Whether all consumers are subscribed, apart from those of deleted topics.
    pub fn is_complete(&self) -> bool {
        self.consumers.iter().all(|consumer| matches!(consumer.place, Place::Joined { .. } | Place::Gone))
    }

    /// Subscribes lost consumers at their brokers. [`Event::Joined`] or [`Event::Lost`] follows for each that is located.
    pub fn rejoin(&mut self, located: Located) -> Result<(), Problem> {
        for missing in located.missing {
            self.consumers[missing].place = Place::Gone;
        }
        let used: Vec<usize> = located.links.iter().map(|(_, link)| *link).collect();
        let links = self.brokers.take_over(located.brokers, &used);
        for (consumer, link) in located.links {
            let Some(link) = links[link] else { continue };
            let subscribe = subscribe(&self.subscription, &self.consumers[consumer], consumer);
            let request = self.brokers.link(link).ask(subscribe)?;
            self.consumers[consumer].place = Place::Joining { link, request, since: Instant::now() };
        }
        Ok(())
    }

    /// The number of consumers: one for each topic or partition.
    pub fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// The full name of a consumer's topic, or of its partition.
    pub fn topic(&self, consumer: usize) -> &str {
        &self.consumers[consumer].topic
    }

    /// Whether a consumer's topic is persistent. Messages of other topics come once, need no acknowledgement, and all
    /// have the same ID.
    pub fn is_stored(&self, consumer: usize) -> bool {
        self.topic(consumer).starts_with("persistent://")
    }

    /// The next event, while messages of this size wait. Cancel safe.
    pub async fn next(&mut self, waiting: usize) -> Result<Event, Problem> {
        loop {
            let (link, frame) = poll_fn(|context| self.poll(context, waiting)).await;
            if let Some(event) = self.event(link, frame)? {
                return Ok(event);
            }
        }
    }

    /// The next event, if one has arrived.
    pub async fn next_now(&mut self, waiting: usize) -> Result<Option<Event>, Problem> {
        loop {
            let now = poll_fn(|context| match self.poll(context, waiting) {
                Poll::Ready(frame) => Poll::Ready(Some(frame)),
                Poll::Pending => Poll::Ready(None),
            });
            let Some((link, frame)) = now.await else { return Ok(None) };
            if let Some(event) = self.event(link, frame)? {
                return Ok(Some(event));
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, waiting: usize) -> Poll<(usize, Result<Frame, Problem>)> {
        self.brokers.poll_frame(context, self.subscription.queue_bytes, waiting)
    }

    /// Handles a frame. Returns an event for the consumer, if any. Without an await, it cannot be cancelled.
    fn event(&mut self, link: usize, frame: Result<Frame, Problem>) -> Result<Option<Event>, Problem> {
        let command = match frame {
            Err(problem) => return self.lose_link(link, problem),
            Ok(Frame::Messages(delivery)) => {
                let consumer = usize::try_from(delivery.message.consumer_id).unwrap_or(usize::MAX);
                let place = self.consumers.get(consumer).map(|consumer| consumer.place);
                // Later messages of a lost subscription come again.
                return Ok((place == Some(Place::Joined { link })).then_some(Event::Messages(delivery)));
            }
            Ok(Frame::Command(command)) => command,
        };
        if self.brokers.link(link).control(&command)? {
            return Ok(None);
        }
        if let Some(closed) = &command.close_consumer {
            let number = usize::try_from(closed.consumer_id).unwrap_or(usize::MAX);
            let mut place = self.consumers.get(number).map_or(Place::Lost, |consumer| consumer.place);
            if place.link() != Some(&mut { link }) {
                return Ok(None);
            }
            let why = "the broker closed the consumer, because the topic moves or was deleted";
            return self.lose(vec![number], Problem::passing(Code::Unreachable, why)).map(Some);
        }
        if let Some(request) = answers(&command)
            && let Some(consumer) = self.consumers.iter().position(|one| one.place.is_answered(link, request))
        {
            if let Some(error) = &command.error {
                let problem = Problem::answered(error.error(), &error.message);
                if !self.consumers[consumer].is_matched || !problem.is_missing_topic {
                    return self.lose(vec![consumer], problem).map(Some);
                }
                self.consumers[consumer].place = Place::Gone;
                return Ok(Some(Event::Joined));
            }
            self.consumers[consumer].place = Place::Joined { link };
            self.flow(consumer, self.subscription.queue)?;
            return Ok(Some(Event::Joined));
        }
        // A late answer to a request of a consumer that was lost meanwhile changes nothing.
        if let Some(error) = command.error.as_ref().filter(|error| error.request_id == UNREQUESTED) {
            return Err(Problem::answered(error.error(), &error.message));
        }
        if let Some(change) = &command.active_consumer_change {
            return Ok(Some(Event::Active(change.is_active())));
        }
        if command.reached_end_of_topic.is_some() {
            return Ok(Some(Event::EndOfTopic));
        }
        self.grown(*command)
    }

    /// Loses all consumers of a failed connection.
    fn lose_link(&mut self, failed: usize, problem: Problem) -> Result<Option<Event>, Problem> {
        if problem.end.is_some() {
            return Err(problem);
        }
        self.brokers.remove(failed);
        self.counted.clear();
        let mut lost = Vec::new();
        for (number, consumer) in self.consumers.iter_mut().enumerate() {
            match consumer.place.link() {
                Some(link) if *link == failed => lost.push(number),
                Some(link) if *link > failed => *link -= 1,
                _ => {}
            }
        }
        match lost.is_empty() {
            false => self.lose(lost, problem).map(Some),
            // Without topics, too, the session needs a connection.
            true if self.brokers.is_empty() => Err(problem),
            true => Ok(None),
        }
    }

    /// Marks consumers as lost. Fails if no consumer is left.
    fn lose(&mut self, lost: Vec<usize>, problem: Problem) -> Result<Event, Problem> {
        for consumer in &lost {
            self.consumers[*consumer].place = Place::Lost;
            self.consumers[*consumer].used = 0;
        }
        let is_lost = self.consumers.iter().all(|one| matches!(one.place, Place::Lost | Place::Gone));
        if is_lost || problem.end.is_some() { Err(problem) } else { Ok(Event::Lost(lost, problem)) }
    }

    /// Records that messages of a consumer were handled. After half of the queue it requests more.
    pub fn taken(&mut self, consumer: usize, messages: u32) -> Result<(), Problem> {
        let used = self.consumers[consumer].used.saturating_add(messages);
        self.consumers[consumer].used = used;
        if used >= self.subscription.queue.div_ceil(2) { self.flow(consumer, used) } else { Ok(()) }
    }

    fn flow(&mut self, consumer: usize, messages: u32) -> Result<(), Problem> {
        self.consumers[consumer].used = 0;
        let flow = CommandFlow { consumer_id: number(consumer), message_permits: messages };
        self.send(consumer, command(Type::Flow, |c| c.flow = Some(flow)))
    }

    /// Acknowledges entries. `corruption` is why they were not handled.
    pub fn acknowledge(
        &mut self,
        consumer: usize,
        acks: Acks,
        corruption: Option<ValidationError>,
    ) -> Result<(), Problem> {
        let (kind, entries) = match acks {
            Acks::Each(entries) => (AckType::Individual, entries),
            Acks::UpTo(entry) => (AckType::Cumulative, vec![entry]),
        };
        let ack = CommandAck {
            consumer_id: number(consumer),
            ack_type: kind as i32,
            message_id: entries.into_iter().map(message_id).collect(),
            validation_error: corruption.map(|corruption| corruption as i32),
            ..CommandAck::default()
        };
        self.send(consumer, command(Type::Ack, |c| c.ack = Some(ack)))
    }

    /// Requests the redelivery of entries.
    pub fn redeliver(&mut self, consumer: usize, entries: &[EntryId]) -> Result<(), Problem> {
        let redeliver = CommandRedeliverUnacknowledgedMessages {
            consumer_id: number(consumer),
            message_ids: entries.iter().copied().map(message_id).collect(),
            ..CommandRedeliverUnacknowledgedMessages::default()
        };
        let kind = Type::RedeliverUnacknowledgedMessages;
        self.send(consumer, command(kind, |c| c.redeliver_unacknowledged_messages = Some(redeliver)))
    }

    /// Sends a command of a consumer. A lost consumer does not need it, because all its messages come again.
    fn send(&mut self, consumer: usize, command: Box<BaseCommand>) -> Result<(), Problem> {
        match self.consumers[consumer].place {
            Place::Joined { link } => self.brokers.link(link).send(command),
            Place::Gone | Place::Lost | Place::Joining { .. } => Ok(()),
        }
    }

    /// Keeps the connections alive, while messages of this size wait. Loses the consumers of a silent broker.
    pub async fn keep_alive(&mut self, waiting: usize) -> Result<Option<Event>, Problem> {
        match self.brokers.keep_alive(self.subscription.queue_bytes, waiting).await {
            Ok(reading) => self.lose_unanswered(reading),
            Err((link, problem)) => self.lose_link(link, problem),
        }
    }

    /// Loses the consumers whose brokers answer pings but not the subscription, unless the answers are not read.
    fn lose_unanswered(&mut self, reading: Reading) -> Result<Option<Event>, Problem> {
        let mut lost = Vec::new();
        for (number, consumer) in self.consumers.iter_mut().enumerate() {
            let Place::Joining { link, since, .. } = &mut consumer.place else { continue };
            if !reading.includes(*link) {
                *since = Instant::now();
            } else if since.elapsed() >= JOIN_LIMIT {
                lost.push((number, *link));
            }
        }
        for (consumer, link) in &lost {
            // The broker would reject the next subscription as a second one.
            self.brokers.link(*link).ask(close(*consumer))?;
        }
        let lost: Vec<usize> = lost.into_iter().map(|(consumer, _)| consumer).collect();
        let problem = || Problem::passing(Code::Unreachable, "the broker does not answer a subscription");
        if lost.is_empty() { Ok(None) } else { self.lose(lost, problem()).map(Some) }
    }

    /// Requests the numbers of partitions and the topics that match; [`Event::Grown`] follows if there are more. A
    /// topic without partitions gets some only if it is deleted and created again.
    pub fn ask_for_growth(&mut self) -> Result<(), Problem> {
        let is_lost = !self.is_complete();
        for (number, topic) in self.subscription.named().enumerate() {
            // A slow answer is not replaced by a later one.
            if (self.partitions[number] > 0 || is_lost)
                && self.counted.values().all(|counted| *counted != number)
            {
                self.counted.insert(self.brokers.ask_for_partitions(topic)?, number);
            }
        }
        if let Some(pattern) = &self.subscription.pattern {
            self.brokers.ask_for_topics(pattern)?;
        }
        Ok(())
    }

    /// Closes the consumers, and drops the messages that come meanwhile. Earlier acknowledgements are complete when
    /// this returns.
    pub async fn close(mut self) {
        let closing = async {
            let mut open = Vec::new();
            for (number, consumer) in self.consumers.iter().enumerate() {
                let Place::Joined { link } = consumer.place else { continue };
                open.push((link, self.brokers.link(link).ask(close(number))?));
            }
            while !open.is_empty() {
                match poll_fn(|context| self.brokers.poll_frame(context, usize::MAX, 0)).await {
                    (link, Ok(Frame::Command(command))) => {
                        self.brokers.link(link).control(&command)?;
                        open.retain(|(at, request)| (*at, Some(*request)) != (link, answers(&command)));
                    }
                    (_, Ok(Frame::Messages(_))) => {}
                    // The other connections may have acknowledgements to send.
                    (failed, Err(_)) => {
                        self.brokers.remove(failed);
                        open.retain(|(link, _)| *link != failed);
                        open.iter_mut().filter(|(link, _)| *link > failed).for_each(|(link, _)| *link -= 1);
                    }
                }
            }
            Ok::<_, Problem>(())
        };
        // A broker that does not answer notices the closed connection.
        let _ = timeout(CLOSE_LIMIT, closing).await;
    }
}

/// The command that subscribes a consumer to a topic, for a request number.
fn subscribe(to: &Subscription, consumer: &Consumer, index: usize) -> impl FnOnce(u64) -> Box<BaseCommand> {
    let subscribe = CommandSubscribe {
        topic: consumer.topic.clone(),
        subscription: to.name.clone(),
        sub_type: to.kind as i32,
        consumer_id: number(index),
        consumer_name: to.consumer.clone(),
        durable: Some(true),
        initial_position: Some(to.position_of(consumer) as i32),
        read_compacted: to.read_compacted.then_some(true),
        replicate_subscription_state: to.replicated.then_some(true),
        // A topic that matched may be deleted now.
        force_topic_creation: Some(!consumer.is_matched),
        ..CommandSubscribe::default()
    };
    move |request_id| {
        command(Type::Subscribe, |c| c.subscribe = Some(CommandSubscribe { request_id, ..subscribe }))
    }
}

/// The command that closes a consumer, for a request number.
fn close(consumer: usize) -> impl FnOnce(u64) -> Box<BaseCommand> {
    let consumer_id = number(consumer);
    move |request_id| {
        let close = CommandCloseConsumer { consumer_id, request_id };
        command(Type::CloseConsumer, |c| c.close_consumer = Some(close))
    }
}

fn message_id(id: EntryId) -> MessageIdData {
    MessageIdData { ledger_id: id.ledger, entry_id: id.entry, ..MessageIdData::default() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::StreamExt as _;
    use pulsar::message::proto::{
        CommandError, CommandGetTopicsOfNamespaceResponse, CommandMessage,
        CommandPartitionedTopicMetadataResponse, CommandSuccess, ServerError,
    };

    use tokio_util::codec::Framed;

    use super::*;
    use crate::address::Host;
    use crate::frame::Codec;
    use crate::security::Files;
    use rstest::rstest;

    #[test]
    fn only_more_partitions_cause_an_event() {
        let mut session = session(&[0, 0]);
        let mut answer = |found: Found, error: Option<ServerError>, partitions| {
            session.ask_for_growth().unwrap();
            assert_eq!(session.counted.len(), 1);
            let answer = CommandPartitionedTopicMetadataResponse {
                request_id: *session.counted.keys().next().unwrap(),
                partitions: Some(partitions),
                response: Some(found as i32),
                error: error.map(|error| error as i32),
                ..CommandPartitionedTopicMetadataResponse::default()
            };
            let answer =
                command(Type::PartitionedMetadataResponse, |c| c.partition_metadata_response = Some(answer));
            session.event(0, Ok(Frame::Command(answer))).unwrap()
        };
        assert!(answer(Found::Success, None, 2).is_none());
        assert!(answer(Found::Success, None, 0).is_none());
        assert!(answer(Found::Failed, Some(ServerError::ServiceNotReady), 3).is_none());
        assert!(answer(Found::Success, Some(ServerError::MetadataError), 3).is_none());
        assert!(matches!(answer(Found::Success, None, 4), Some(Event::Grown(2))));
        assert!(answer(Found::Success, None, 4).is_none());
    }

    fn topics(names: &[&str]) -> Frame {
        let topics = names.iter().map(|name| format!("persistent://public/default/{name}")).collect();
        let answer =
            CommandGetTopicsOfNamespaceResponse { topics, ..CommandGetTopicsOfNamespaceResponse::default() };
        let kind = Type::GetTopicsOfNamespaceResponse;
        Frame::Command(command(kind, |c| c.get_topics_of_namespace_response = Some(answer)))
    }

    #[test]
    fn topics_of_a_pattern_come_and_go() {
        let mut session = session(&[0]);
        session.subscription.pattern = Some("a.*".parse().unwrap());
        assert!(matches!(session.event(0, Ok(topics(&["a1", "b", "t", "a2"]))), Ok(Some(Event::Grown(2)))));
        assert!(matches!(session.event(0, Ok(topics(&["a1", "b", "t", "a2"]))), Ok(None)));
        // One is deleted before the lookup, the other before its subscription.
        session.rejoin(Located { missing: vec![1], ..located(&[(2, 0)]) }).unwrap();
        assert!(!session.is_complete() && session.lost().is_empty());
        let gone = |error: ServerError| {
            let (error, message) = (error as i32, String::new());
            let error = CommandError { request_id: 0, error, message };
            Ok(Frame::Command(command(Type::Error, |c| c.error = Some(error))))
        };
        let refused = ServerError::SubscriptionNotFound;
        assert!(matches!(session.event(0, gone(refused)), Ok(Some(Event::Lost(lost, _))) if lost == [2]));
        session.rejoin(located(&[(2, 0)])).unwrap();
        let Frame::Command(mut command) = gone(ServerError::TopicNotFound).unwrap() else { panic!() };
        command.error.as_mut().unwrap().request_id = 1;
        let event = session.event(0, Ok(Frame::Command(command)));
        assert!(matches!(event, Ok(Some(Event::Joined))));
        assert!(session.is_complete());
        // They come again.
        assert!(matches!(session.event(0, Ok(topics(&["a1", "a2"]))), Ok(Some(Event::Grown(2)))));
        assert_eq!(session.lost().len(), 2);
    }

    #[test]
    fn a_session_without_topics_ends_with_its_connection() {
        let mut session = session(&[0]);
        session.consumers[0].place = Place::Gone;
        assert!(session.is_complete());
        let failed = Err(Problem::passing(Code::Unreachable, "closed"));
        assert_eq!(session.event(0, failed).unwrap_err().sentence, "closed");
    }

    fn subscription() -> Subscription {
        Subscription {
            service: Service {
                address: "pulsar://fake".parse().unwrap(),
                files: Files::default(),
                listener: None,
            },
            topics: vec!["t".parse().unwrap()],
            pattern: None,
            retry_letters: None,
            name: "s".to_owned(),
            kind: SubType::Exclusive,
            position: InitialPosition::Latest,
            matched_position: InitialPosition::Latest,
            read_compacted: false,
            replicated: false,
            consumer: None,
            queue: 10,
            queue_bytes: 1_000,
        }
    }

    /// A session whose consumers use these connections.
    fn session(consumers: &[usize]) -> Session {
        let link = |number| {
            let host = Host { name: format!("broker-{number}"), port: 1 };
            Link::over(Box::new(tokio::io::duplex(1_000).0), &host, &Files::default())
        };
        let count = consumers.iter().max().unwrap() + 1;
        Session::over(subscription(), (0..count).map(link).collect(), consumers)
    }

    fn message(consumer_id: u64) -> Frame {
        let message = CommandMessage { consumer_id, ..CommandMessage::default() };
        Frame::Messages(Box::new(Delivery { message, encoded: Bytes::new() }))
    }

    fn closed(consumer_id: u64) -> Frame {
        let closed = CommandCloseConsumer { consumer_id, request_id: 0 };
        Frame::Command(command(Type::CloseConsumer, |c| c.close_consumer = Some(closed)))
    }

    fn is_accepted(session: &mut Session, link: usize, consumer: u64) -> bool {
        matches!(session.event(link, Ok(message(consumer))).unwrap(), Some(Event::Messages(_)))
    }

    fn answered(request_id: u64) -> Frame {
        let success = CommandSuccess { request_id, ..CommandSuccess::default() };
        Frame::Command(command(Type::Success, |c| c.success = Some(success)))
    }

    /// The brokers of lost consumers, at these connections.
    fn located(links: &[(usize, usize)]) -> Located {
        let count = links.iter().map(|(_, link)| link + 1).max().unwrap();
        Located {
            brokers: session(&(0..count).collect::<Vec<_>>()).brokers,
            links: links.to_vec(),
            missing: Vec::new(),
            problem: None,
        }
    }

    #[test]
    fn a_closed_consumer_is_lost_alone_and_rejoins() {
        let mut session = session(&[0, 0, 1]);
        assert!(matches!(session.event(0, Ok(closed(1))), Ok(Some(Event::Lost(lost, _))) if lost == [1]));
        assert_eq!(session.lost().into_iter().map(|lost| lost.number).collect::<Vec<_>>(), [1]);
        assert!(is_accepted(&mut session, 0, 0) && is_accepted(&mut session, 1, 2));
        // The broker repeats itself.
        assert!(matches!(session.event(0, Ok(closed(1))), Ok(None)));
        // The partition has moved to the other broker.
        session.rejoin(located(&[(1, 1)])).unwrap();
        assert!(!session.is_complete() && session.lost().is_empty());
        assert!(matches!(session.event(0, Ok(answered(0))), Ok(None)), "the answer of another broker");
        assert!(matches!(session.event(1, Ok(answered(0))), Ok(Some(Event::Joined))));
        assert!(session.is_complete() && is_accepted(&mut session, 1, 1));
    }

    /// The broker redelivers them. An Exclusive consumer would take the redelivered earlier ones for repetitions.
    #[test]
    fn drops_late_messages_of_a_lost_consumer() {
        let mut session = session(&[0, 1]);
        session.event(1, Ok(closed(1))).unwrap();
        assert!(!is_accepted(&mut session, 1, 1));
        session.rejoin(located(&[(1, 0)])).unwrap();
        assert!(!is_accepted(&mut session, 0, 1) && !is_accepted(&mut session, 1, 1));
        session.event(0, Ok(answered(0))).unwrap();
        assert!(is_accepted(&mut session, 0, 1) && !is_accepted(&mut session, 1, 1));
        // A late close of the earlier subscription does not concern the new one.
        assert!(matches!(session.event(1, Ok(closed(1))), Ok(None)));
        assert!(!is_accepted(&mut session, 0, 7), "an unknown consumer");
    }

    #[test]
    fn only_consumers_of_a_failed_connection_are_lost() {
        let mut session = session(&[0, 1, 2, 1]);
        let failed = || Err(Problem::passing(Code::Unreachable, "closed"));
        assert!(matches!(session.event(1, failed()), Ok(Some(Event::Lost(lost, _))) if lost == [1, 3]));
        // The last connection has the number of the failed one now.
        assert!(is_accepted(&mut session, 0, 0) && is_accepted(&mut session, 1, 2));
        session.rejoin(located(&[(1, 3), (3, 3)])).unwrap();
        assert!(matches!(session.event(2, failed()), Ok(Some(Event::Lost(lost, _))) if lost == [1, 3]));
        assert!(matches!(session.event(1, failed()), Ok(Some(Event::Lost(lost, _))) if lost == [2]));
        assert_eq!(session.event(0, failed()).unwrap_err().sentence, "closed", "no consumer is left");
        // The close must not use the failed connections.
        assert_eq!(session.lost().len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_without_an_answer_is_lost_again() {
        let mut session = session(&[0, 0]);
        session.event(0, Ok(closed(1))).unwrap();
        session.rejoin(located(&[(1, 0)])).unwrap();
        // While nothing is read, the answer may have arrived.
        for (seconds, reading, is_lost) in [
            (29, Reading::All, false),
            (2, Reading::None, false),
            (29, Reading::All, false),
            (2, Reading::All, true),
        ] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            let event = session.lose_unanswered(reading).unwrap();
            assert_eq!(matches!(event, Some(Event::Lost(lost, _)) if lost == [1]), is_lost);
        }
        // Its late answers change nothing.
        let late = |request_id| {
            let error = ServerError::ServiceNotReady as i32;
            let error = CommandError { request_id, error, message: "late".to_owned() };
            Ok(Frame::Command(command(Type::Error, |c| c.error = Some(error))))
        };
        assert!(matches!(session.event(0, late(0)), Ok(None)));
        assert!(session.event(0, late(UNREQUESTED)).is_err());
    }

    #[tokio::test]
    async fn a_failed_connection_does_not_end_the_close_of_others() {
        let (mut links, mut ends) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let (client, broker) = tokio::io::duplex(1_000);
            let host = Host { name: format!("broker-{number}"), port: 1 };
            links.push(Link::over(Box::new(client), &host, &Files::default()));
            ends.push(broker);
        }
        let session = Session::over(subscription(), links, &[0, 1]);
        drop(ends.remove(0));
        let mut broker = Framed::new(ends.remove(0), Codec);
        let closed = tokio::spawn(session.close());
        let asked = broker.next().await.unwrap().unwrap();
        assert!(matches!(asked, Frame::Command(command) if command.close_consumer.is_some()));
        assert!(!closed.is_finished(), "it waits for the answer");
    }

    #[test]
    fn a_rejected_subscription_is_lost_again() {
        let mut session = session(&[0, 0]);
        session.event(0, Ok(closed(1))).unwrap();
        session.rejoin(located(&[(1, 0)])).unwrap();
        let error = ServerError::ServiceNotReady as i32;
        let error = CommandError { request_id: 0, error, message: "later".to_owned() };
        let rejected = Ok(Frame::Command(command(Type::Error, |c| c.error = Some(error))));
        assert!(matches!(session.event(0, rejected), Ok(Some(Event::Lost(lost, _))) if lost == [1]));
        assert_eq!(session.lost().len(), 1);
    }

    /// The consumers of a topic that is created again with other partitions would never find their topics.
    #[rstest]
    #[case::fewer(2, 1, false)]
    #[case::with_partitions(0, 3, false)]
    #[case::more(2, 3, true)]
    #[case::deleted(2, 0, true)]
    fn a_topic_with_other_partitions_ends_the_session(
        #[case] known: u32,
        #[case] now: u32,
        #[case] continues: bool,
    ) {
        let mut session = session(&[0, 0]);
        session.partitions = vec![known];
        session.counted.insert(7, 0);
        let answer = CommandPartitionedTopicMetadataResponse {
            partitions: Some(now),
            request_id: 7,
            response: Some(Found::Success as i32),
            ..CommandPartitionedTopicMetadataResponse::default()
        };
        let kind = Type::PartitionedMetadataResponse;
        let frame = Frame::Command(command(kind, |c| c.partition_metadata_response = Some(answer)));
        assert_eq!(session.event(0, Ok(frame)).is_ok(), continues);
    }

    #[test]
    fn new_partitions_begin_as_lost_consumers() {
        let mut session = session(&[0, 0]);
        session.grow(0, 3);
        let lost = session.lost();
        assert_eq!((lost.len(), lost[0].number), (1, 2));
        assert_eq!(lost[0].topic, "persistent://public/default/t-partition-2");
        assert!(!session.is_complete() && is_accepted(&mut session, 0, 1));
    }
}
