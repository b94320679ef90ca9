//! The end of a consumer, and the messages that it leaves.

use rustix::process::Signal;

use crate::program::{Consumer, numbered, plain, produce, send, sorted, until, until_backlog};
use crate::raw;

const SUBSCRIPTION: &str = "first-subscription";

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn acknowledges_only_printed_messages() {
    let broker = plain();
    for (topic, signal) in [("stopped-by-term", Signal::TERM), ("stopped-by-int", Signal::INT)] {
        let consumer = Consumer::start(&broker.service_url(), topic, &[("PULSAR_RECEIVER_QUEUE_SIZE", "50")]);
        consumer.until_ready(200);
        let sender = std::thread::spawn({
            let broker = broker.clone();
            move || send(&broker, topic, "m", 3_000, &["--no-batching"])
        });
        consumer.until_messages(200);
        consumer.signal(signal);
        let printed = consumer.ended().well();
        sender.join().unwrap();
        until_backlog(&broker, topic, SUBSCRIPTION, i64::try_from(3_000 - printed.len()).unwrap());
        // The next consumer gets the rest.
        let next = Consumer::start(&broker.service_url(), topic, &[]);
        let rest = next.until_messages(3_000 - printed.len());
        assert_eq!(sorted([printed, rest].concat()), sorted(numbered("m", 3_000)));
        next.stop().well();
    }
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn stops_while_starting_and_with_a_blocked_reader() {
    let broker = plain();
    let consumer = Consumer::start("pulsar://no.such.host.invalid", "t", &[]);
    consumer.until_ready(502);
    consumer.stop().well();
    let consumer = Consumer::unread(&broker.service_url(), "unread", &[]);
    consumer.until_ready(200);
    send(&broker, "unread", &"x".repeat(1_000), 500, &["--no-batching"]);
    until("the pipe is full", || (consumer.metric("messages_received_total") > 64).then_some(()));
    let ended = consumer.stop();
    assert!(ended.stderr.iter().any(|line| line.contains("were not printed in time")), "{:?}", ended.stderr);
    ended.well();
    assert!(broker.admin().unwrap().backlog("unread", SUBSCRIPTION).unwrap() > Some(300));
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_closed_stdout_ends_the_consumer_and_the_message_stays() {
    let broker = plain();
    let mut consumer = Consumer::unread(&broker.service_url(), "closed-stdout", &[]);
    consumer.until_ready(200);
    drop(consumer.take_stdout());
    send(&broker, "closed-stdout", "m", 1, &[]);
    let ended = consumer.ended();
    assert!(ended.badly(5).contains("cannot print"), "{:?}", ended.stderr);
    until_backlog(&broker, "closed-stdout", SUBSCRIPTION, 1);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn an_unreadable_message_becomes_a_dead_letter() {
    let broker = plain();
    let (topic, dead) = ("letters", "dead-letters");
    let reader = raw::Refuser::start(&broker.service_url(), dead, SUBSCRIPTION);
    let variables = [
        ("PULSAR_DEAD_LETTER_TOPIC", dead),
        ("PULSAR_MAX_REDELIVER_COUNT", "2"),
        ("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "100ms"),
    ];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    raw::send_encrypted(&broker.service_url(), topic, b"sealed");
    send(&broker, topic, "m", 1, &[]);
    assert_eq!(consumer.until_messages(1), ["m"]);
    let (metadata, data) = reader.receive();
    // Another client can decrypt it.
    assert_eq!((metadata.encryption_keys[0].key.as_str(), &*data), ("key", &b"sealed"[..]));
    assert_eq!(metadata.properties[0].value, "red");
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    // Delivered once, and redelivered twice.
    assert_eq!(consumer.metric("entries_unreadable_total"), 3);
    assert_eq!(consumer.metric("messages_dead_lettered_total"), 1);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn another_consumer_continues_after_a_kill() {
    let broker = plain();
    let start =
        || Consumer::start(&broker.service_url(), "handed-over", &[("PULSAR_SUBSCRIPTION_TYPE", "Failover")]);
    let (first, second) = (start(), start());
    first.until_ready(200);
    second.until_ready(200);
    produce(&broker.service_url(), "handed-over", &["--message", "one"]);
    let (active, other) =
        until("one of them prints", || match (first.messages().len(), second.messages().len()) {
            (1, 0) => Some((&first, &second)),
            (0, 1) => Some((&second, &first)),
            _ => None,
        });
    active.signal(Signal::KILL);
    produce(&broker.service_url(), "handed-over", &["--message", "two"]);
    until("the other prints", || other.messages().contains(&"two".to_owned()).then_some(()));
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_message_redelivered_too_often_is_a_dead_letter() {
    let broker = plain();
    let (topic, dead) = ("too-often", "dead-too-often");
    let reader = Consumer::start(&broker.service_url(), dead, &[]);
    reader.until_ready(200);
    // Another consumer rejects the message until its third redelivery, and leaves.
    let refuser = raw::Refuser::start(&broker.service_url(), topic, SUBSCRIPTION);
    send(&broker, topic, "m", 1, &[]);
    refuser.refuse(1, 3);
    let variables = [("PULSAR_DEAD_LETTER_TOPIC", dead), ("PULSAR_MAX_REDELIVER_COUNT", "2")];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    refuser.leave();
    assert_eq!(reader.until_messages(1), ["m"]);
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.metric("messages_dead_lettered_total"), 1);
    assert!(consumer.stop().well().is_empty());
    reader.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn dead_letters_without_a_reader_survive_the_inactivity_check() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    admin.create_namespace("public/unread").unwrap();
    admin.delete_unused_topics("public/unread").unwrap();
    let [topic, dead, unused] = ["t", "dead", "unused"].map(|name| format!("public/unread/{name}"));
    let letters = 20;
    let refuser = raw::Refuser::start(&broker.service_url(), &topic, SUBSCRIPTION);
    send(&broker, &topic, "m", letters, &["--no-batching"]);
    refuser.refuse(letters, 3);
    let variables = [("PULSAR_DEAD_LETTER_TOPIC", dead.as_str()), ("PULSAR_MAX_REDELIVER_COUNT", "2")];
    let consumer = Consumer::start(&broker.service_url(), &topic, &variables);
    consumer.until_ready(200);
    refuser.leave();
    until_backlog(&broker, &topic, SUBSCRIPTION, 0);
    let ended = consumer.stop();
    assert_eq!(ended.well(), [""; 0]);
    // When the broker has deleted a topic that nothing keeps, it has looked at the dead letters too.
    for _ in 0..2 {
        send(&broker, &unused, "m", 1, &[]);
        until("the unused topic is gone", || admin.stats(&unused).unwrap().is_none().then_some(()));
    }
    let name = "first-subscription-dlq";
    assert_eq!(admin.backlog(&dead, name).unwrap(), i64::try_from(letters).ok());
    let reader = Consumer::start(&broker.service_url(), &dead, &[("PULSAR_SUBSCRIPTION_NAME", name)]);
    until_backlog(&broker, &dead, name, 0);
    assert_eq!(sorted(reader.stop().well()), sorted(numbered("m", letters)));
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_large_batch_becomes_complete_dead_letters() {
    let broker = plain();
    let (topic, dead) = ("large-letter", "dead-large-letter");
    let reader = Consumer::start(&broker.service_url(), dead, &[]);
    reader.until_ready(200);
    let refuser = raw::Refuser::start(&broker.service_url(), topic, SUBSCRIPTION);
    // More messages than the queue of the crate's producer.
    raw::send_batch(&broker.service_url(), topic, &numbered("m", 300));
    refuser.refuse(1, 3);
    let variables = [("PULSAR_DEAD_LETTER_TOPIC", dead), ("PULSAR_MAX_REDELIVER_COUNT", "2")];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    refuser.leave();
    assert_eq!(sorted(reader.until_messages(300)), sorted(numbered("m", 300)));
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.metric("messages_dead_lettered_total"), 300);
    assert!(consumer.stop().well().is_empty());
    assert_eq!(reader.stop().well().len(), 300);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn prints_messages_once_despite_a_redelivery_request() {
    let broker = plain();
    let topic = "asked-for-again";
    let variables =
        [("PULSAR_SUBSCRIPTION_TYPE", "Exclusive"), ("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "100ms")];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    for _ in 0..3 {
        raw::send_encrypted(&broker.service_url(), topic, b"sealed");
    }
    // Each request for one of those returns all unacknowledged messages.
    send(&broker, topic, "m", 3_000, &["--no-batching"]);
    consumer.until_messages(3_000);
    let unreadable = || consumer.metric("entries_unreadable_total");
    let before = unreadable();
    until("the broker redelivers them", || (unreadable() >= before + 30).then_some(()));
    until_backlog(&broker, topic, SUBSCRIPTION, 3);
    assert_eq!(consumer.metric("messages_received_total"), 3_000);
    assert!(consumer.stop().well() == numbered("m", 3_000));
}
