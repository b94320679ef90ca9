//! Clients with unusual behavior: a producer of unreadable messages and of batches of any size, and a
//! consumer that rejects messages or returns them unread.

use std::collections::HashMap;

use futures::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::{
    BaseCommand, CommandConnect, CommandProducer, CommandSend, EncryptionKeys, KeyValue,
    SingleMessageMetadata,
};
use pulsar::message::{Codec, Message, Metadata, Payload};
use pulsar::{Consumer, Pulsar, SubType, TokioExecutor};
use quintet_pulsar_client::brokers::Service;
use quintet_pulsar_client::frame::Entry;
use quintet_pulsar_client::publisher::Publisher;
use quintet_pulsar_client::security::Files;
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
    let address = server.trim_start_matches("pulsar://").to_owned();
    let topic =
        if topic.contains("://") { topic.to_owned() } else { format!("persistent://public/default/{topic}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut broker = Framed::new(TcpStream::connect(address).await.unwrap(), Codec);
        let connect = CommandConnect {
            client_version: "test".to_owned(),
            protocol_version: Some(12),
            ..CommandConnect::default()
        };
        let command =
            BaseCommand { r#type: Type::Connect as i32, connect: Some(connect), ..BaseCommand::default() };
        broker.send(Message { command, payload: None }).await.unwrap();
        let answer = broker.next().await.unwrap().unwrap();
        assert!(answer.command.connected.is_some());
        let producer = CommandProducer { topic, producer_id: 1, request_id: 1, ..CommandProducer::default() };
        let command =
            BaseCommand { r#type: Type::Producer as i32, producer: Some(producer), ..BaseCommand::default() };
        broker.send(Message { command, payload: None }).await.unwrap();
        let answer = broker.next().await.unwrap().unwrap();
        let producer_name = answer.command.producer_success.unwrap().producer_name;
        let num_messages = Some(metadata.num_messages_in_batch.unwrap_or(1));
        let send = CommandSend { producer_id: 1, sequence_id: 0, num_messages, ..CommandSend::default() };
        let command = BaseCommand { r#type: Type::Send as i32, send: Some(send), ..BaseCommand::default() };
        let metadata = Metadata { producer_name, publish_time: 1, ..metadata };
        broker.send(Message { command, payload: Some(Payload { metadata, data }) }).await.unwrap();
        let answer = broker.next().await.unwrap().unwrap();
        assert!(answer.command.send_receipt.is_some(), "{answer:?}");
    });
}

/// A consumer that rejects its messages.
pub struct Refuser {
    runtime: Runtime,
    consumer: std::cell::RefCell<Consumer<Vec<u8>, TokioExecutor>>,
}

impl Refuser {
    /// Subscribes.
    pub fn start(server: &str, topic: &str, subscription: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let consumer = runtime.block_on(async {
            let client = Pulsar::builder(server, TokioExecutor).build().await.unwrap();
            let consumer = client.consumer().with_topic(topic).with_subscription(subscription);
            Box::pin(consumer.with_subscription_type(SubType::Shared).build()).await.unwrap()
        });
        Self { runtime, consumer: consumer.into() }
    }

    /// The next entry, unread.
    pub fn receive(&self) -> (Metadata, Vec<u8>) {
        let message = self.runtime.block_on(self.consumer.borrow_mut().next()).unwrap().unwrap();
        (message.payload.metadata, message.payload.data)
    }

    /// Rejects an entry this number of times, and then keeps it.
    pub fn refuse(&self, messages: u32, times: u32) {
        let mut consumer = self.consumer.borrow_mut();
        self.runtime.block_on(async {
            for _ in 0..times {
                for _ in 1..messages {
                    consumer.next().await.unwrap().unwrap();
                }
                let message = consumer.next().await.unwrap().unwrap();
                consumer.nack(&message).await.unwrap();
            }
            consumer.next().await.unwrap().unwrap();
        });
    }

    /// Rejects each of this number of entries this number of times, and then keeps them. The broker delivers them in any
    /// order. No entry is a batch.
    pub fn refuse_each(&self, entries: usize, times: u32) {
        let mut consumer = self.consumer.borrow_mut();
        let mut refused = HashMap::new();
        let mut kept = 0;
        self.runtime.block_on(async {
            while kept < entries {
                let message = consumer.next().await.unwrap().unwrap();
                let id = message.message_id();
                let refused = refused.entry((id.ledger_id, id.entry_id)).or_insert(0);
                if *refused < times {
                    *refused += 1;
                    consumer.nack(&message).await.unwrap();
                } else {
                    kept += 1;
                }
            }
        });
    }

    /// Closes the consumer, so that its entries go to others.
    pub fn leave(self) {
        let mut consumer = self.consumer.into_inner();
        self.runtime.block_on(async { Box::pin(consumer.close()).await.unwrap() });
        self.runtime.shutdown_background();
    }
}
