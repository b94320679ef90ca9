//! Clients with unusual behavior: a producer of unreadable messages and of batches of any size, and a
//! consumer that rejects messages or returns them unread.

use std::cell::RefCell;
use std::collections::HashSet;

use futures::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::command_subscribe::SubType;
use pulsar::message::proto::{
    BaseCommand, CommandConnect, CommandFlow, CommandLookupTopic, CommandMessage, CommandPong,
    CommandProducer, CommandRedeliverUnacknowledgedMessages, CommandSend, CommandSubscribe, EncryptionKeys,
    KeyValue, SingleMessageMetadata,
};
use pulsar::message::{Codec, Message, Metadata, Payload};
use quintet_pulsar_client::brokers::Service;
use quintet_pulsar_client::frame::Entry;
use quintet_pulsar_client::publisher::Publisher;
use quintet_pulsar_client::security::Files;
use quintet_pulsar_topic::Topic;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_util::codec::Framed;

/// Sends a message that claims to be encrypted.
pub fn send_encrypted(server: &str, topic: &str, data: &[u8]) {
    let metadata = Metadata {
        encryption_keys: vec![EncryptionKeys { key: "key".to_owned(), ..EncryptionKeys::default() }],
        properties: vec![KeyValue { key: "colour".to_owned(), value: "red".to_owned() }],
        ..Metadata::default()
    };
    send_entry(server, topic, metadata, data.to_vec());
}

/// Sends a message with a key.
pub fn send_keyed(server: &str, topic: &str, key: &str, data: &[u8]) {
    let metadata = Metadata { partition_key: Some(key.to_owned()), ..Metadata::default() };
    send_entry(server, topic, metadata, data.to_vec());
}

/// Sends messages as one batch.
pub fn send_batch(server: &str, topic: &str, messages: &[String]) {
    let mut data = Vec::new();
    for message in messages {
        let own = SingleMessageMetadata {
            payload_size: i32::try_from(message.len()).unwrap(),
            ..SingleMessageMetadata::default()
        };
        data.extend_from_slice(&u32::try_from(own.encoded_len()).unwrap().to_be_bytes());
        own.encode(&mut data).unwrap();
        data.extend_from_slice(message.as_bytes());
    }
    let count = i32::try_from(messages.len()).unwrap();
    send_entry(server, topic, Metadata { num_messages_in_batch: Some(count), ..Metadata::default() }, data);
}

/// Sends messages of this size, which begin with their number, to the partitions in turn.
pub fn send_large(server: &str, topic: &str, count: usize, size: usize) {
    let service = Service { address: server.parse().unwrap(), files: Files::default(), listener: None };
    let topic = topic.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut publisher = Publisher::open(&service, &topic).await.unwrap();
        for number in 0..count {
            let payload = format!("{number} {}", "x".repeat(size)).into();
            publisher.send(Entry { metadata: Metadata::default(), payload }).await.unwrap();
            if number >= 4 {
                publisher.confirmed().await.unwrap();
            }
        }
        while publisher.waits_since().is_some() {
            publisher.confirmed().await.unwrap();
        }
    });
}

fn send_entry(server: &str, topic: &str, metadata: Metadata, data: Vec<u8>) {
    let topic = topic.parse::<Topic>().unwrap().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut broker = connect(server).await;
        let producer = CommandProducer { topic, producer_id: 1, request_id: 1, ..CommandProducer::default() };
        send(&mut broker, BaseCommand { producer: Some(producer), ..command(Type::Producer) }).await;
        let answer = broker.next().await.unwrap().unwrap();
        let producer_name = answer.command.producer_success.unwrap().producer_name;
        let num_messages = Some(metadata.num_messages_in_batch.unwrap_or(1));
        let send = CommandSend { producer_id: 1, sequence_id: 0, num_messages, ..CommandSend::default() };
        let command = BaseCommand { send: Some(send), ..command(Type::Send) };
        let metadata = Metadata { producer_name, publish_time: 1, ..metadata };
        broker.send(Message { command, payload: Some(Payload { metadata, data }) }).await.unwrap();
        let answer = broker.next().await.unwrap().unwrap();
        assert!(answer.command.send_receipt.is_some(), "{answer:?}");
    });
}

/// A consumer that rejects its messages.
pub struct Refuser {
    runtime: Runtime,
    broker: RefCell<Framed<TcpStream, Codec>>,
}

impl Refuser {
    /// Subscribes.
    pub fn start(server: &str, topic: &str, subscription: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let broker = runtime.block_on(async {
            let mut broker = connect(server).await;
            let topic = topic.parse::<Topic>().unwrap().to_string();
            // The broker serves a topic after a lookup.
            let lookup = CommandLookupTopic { topic: topic.clone(), ..CommandLookupTopic::default() };
            send(&mut broker, BaseCommand { lookup_topic: Some(lookup), ..command(Type::Lookup) }).await;
            let answer = broker.next().await.unwrap().unwrap();
            assert!(answer.command.lookup_topic_response.is_some(), "{answer:?}");
            let subscribe = CommandSubscribe {
                topic,
                subscription: subscription.to_owned(),
                sub_type: SubType::Shared as i32,
                ..CommandSubscribe::default()
            };
            let command = command(Type::Subscribe);
            send(&mut broker, BaseCommand { subscribe: Some(subscribe), ..command }).await;
            let answer = broker.next().await.unwrap().unwrap();
            assert!(answer.command.success.is_some(), "{answer:?}");
            let flow = Some(CommandFlow { consumer_id: 0, message_permits: 10_000 });
            send(&mut broker, BaseCommand { flow, ..self::command(Type::Flow) }).await;
            broker
        });
        Self { runtime, broker: broker.into() }
    }

    /// The next entry, unread.
    pub fn receive(&self) -> (Metadata, Vec<u8>) {
        let (_, Payload { metadata, data }) = self.runtime.block_on(next(&mut self.broker.borrow_mut()));
        (metadata, data)
    }

    /// Rejects each of this number of entries this number of times, and then keeps them. The broker delivers them in any
    /// order, and counts itself, because it may deliver an entry twice.
    pub fn refuse(&self, entries: usize, times: u32) {
        let mut broker = self.broker.borrow_mut();
        let mut kept = HashSet::new();
        self.runtime.block_on(async {
            while kept.len() < entries {
                let (CommandMessage { message_id, redelivery_count, .. }, _) = next(&mut broker).await;
                if redelivery_count.unwrap_or_default() >= times {
                    kept.insert((message_id.ledger_id, message_id.entry_id));
                    continue;
                }
                let again = CommandRedeliverUnacknowledgedMessages {
                    message_ids: vec![message_id],
                    ..CommandRedeliverUnacknowledgedMessages::default()
                };
                let command = command(Type::RedeliverUnacknowledgedMessages);
                let redeliver_unacknowledged_messages = Some(again);
                send(&mut broker, BaseCommand { redeliver_unacknowledged_messages, ..command }).await;
            }
        });
    }

    /// Disconnects, so that its entries go to others.
    pub fn leave(self) {
        drop(self.broker);
    }
}

/// The next entry.
async fn next(broker: &mut Framed<TcpStream, Codec>) -> (CommandMessage, Payload) {
    loop {
        let Message { command, payload } = broker.next().await.unwrap().unwrap();
        if let (Some(message), Some(payload)) = (command.message, payload) {
            return (message, payload);
        }
        if command.ping.is_some() {
            let pong = Some(CommandPong {});
            send(broker, BaseCommand { pong, ..self::command(Type::Pong) }).await;
        }
    }
}

fn command(of: Type) -> BaseCommand {
    BaseCommand { r#type: of as i32, ..BaseCommand::default() }
}

async fn send(broker: &mut Framed<TcpStream, Codec>, command: BaseCommand) {
    broker.send(Message { command, payload: None }).await.unwrap();
}

async fn connect(server: &str) -> Framed<TcpStream, Codec> {
    let address = server.trim_start_matches("pulsar://").to_owned();
    let mut broker = Framed::new(TcpStream::connect(address).await.unwrap(), Codec);
    let connect = CommandConnect {
        client_version: "test".to_owned(),
        protocol_version: Some(12),
        ..CommandConnect::default()
    };
    send(&mut broker, BaseCommand { connect: Some(connect), ..command(Type::Connect) }).await;
    let answer = broker.next().await.unwrap().unwrap();
    assert!(answer.command.connected.is_some());
    broker
}
