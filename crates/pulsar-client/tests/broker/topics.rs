//! Several topics, patterns, retry letters, and what a subscription asks of the broker.

use std::process::{Child, Stdio};

use quintet_localcluster::pulsar::Broker;

use crate::program::{Consumer, numbered, plain, produce_with, producer, send, sorted, until, until_backlog};
use crate::raw;

const SUBSCRIPTION: &str = "first-subscription";

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn consumes_several_topics() {
    let broker = plain();
    let [one, two] = ["several-one", "several-two"];
    broker.admin().unwrap().create_partitioned_topic(two, 2).unwrap();
    let topics = format!("{one},{two}");
    let consumer = Consumer::start(&broker.service_url(), "", &[("PULSAR_TOPICS", &topics)]);
    consumer.until_ready(200);
    send(&broker, one, "one", 100, &[]);
    send(&broker, two, "two", 100, &["--no-batching"]);
    let expected = sorted([numbered("one", 100), numbered("two", 100)].concat());
    assert_eq!(sorted(consumer.until_messages(200)), expected);
    for topic in [one, "several-two-partition-0", "several-two-partition-1"] {
        until_backlog(&broker, topic, SUBSCRIPTION, 0);
    }
    let ended = consumer.stop();
    assert!(ended.stderr.contains(&format!("Topic: {topics}")), "{:?}", ended.stderr);
    ended.well();
}

/// A consumer of a topic that gets partitions under load, and the producers. The broker copies the subscription to new
/// partitions, so no message is lost before the consumer finds them.
fn consumer_of_new_partitions(broker: &Broker) -> (Consumer, [Child; 2]) {
    let admin = broker.admin().unwrap();
    admin.create_partitioned_topic("grows", 1).unwrap();
    let consumer = Consumer::start(&broker.service_url(), "grows", &[]);
    consumer.until_ready(200);
    // Longer than the minute until the consumer finds the partitions.
    let load = |message| {
        let args = ["--message", message, "--count", "1300", "--rate", "20"];
        let mut producer = producer(&broker.service_url(), "grows", &[], &args);
        producer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let before = load("before");
    consumer.until_messages(1);
    admin.add_partitions("grows", 3).unwrap();
    (consumer, [before, load("after")])
}

/// A topic comes while the consumer runs, one is deleted, and the letters' topics match too. A consumer looks for new
/// topics and partitions every minute, so one test waits for both.
#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn finds_new_topics_and_partitions() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    let (growing, loads) = consumer_of_new_partitions(&broker);
    admin.create_namespace("public/matched").unwrap();
    let topic = |name: &str| format!("public/matched/{name}");
    for name in ["a-old", "a-deleted", "b"] {
        admin.create_topic(&topic(name)).unwrap();
    }
    let variables = [
        ("PULSAR_TOPICS_PATTERN", "public/matched/a-.*"),
        ("PULSAR_DEAD_LETTER_TOPIC", "public/matched/a-dead"),
        ("PULSAR_RETRY_LETTER_TOPIC", "public/matched/a-retry"),
        ("PULSAR_MAX_REDELIVER_COUNT", "1"),
        ("PULSAR_RETRY_DELAYS", "1s"),
    ];
    let consumer = Consumer::start(&broker.service_url(), "", &variables);
    consumer.until_ready(200);
    admin.delete_topic(&topic("a-deleted")).unwrap();
    for name in ["a-old", "a-new", "b"] {
        send(&broker, &topic(name), name, 10, &[]);
    }
    raw::send_encrypted(&broker.service_url(), "persistent://public/matched/a-old", b"sealed");
    // The new topic is read from its first message.
    let expected = sorted([numbered("a-old", 10), numbered("a-new", 10)].concat());
    assert_eq!(sorted(consumer.until_messages(20)), expected);
    until_backlog(&broker, &topic("a-dead"), "first-subscription-dlq", 1);
    consumer.until_said("Found 1 new topics or partitions");
    assert_eq!(admin.stats(&topic("a-deleted")).unwrap(), None);
    consumer.until_ready(200);
    assert_eq!(consumer.metric("reconnects_total"), 1, "the deleted topic");
    assert_eq!(sorted(consumer.stop().well()), expected);
    assert_eq!(admin.backlog(&topic("a-dead"), SUBSCRIPTION).unwrap(), None);

    growing.until_said("Found 2 new topics or partitions");
    for mut load in loads {
        assert!(load.wait().unwrap().success());
    }
    let expected = sorted([numbered("before", 1_300), numbered("after", 1_300)].concat());
    assert_eq!(sorted(growing.until_messages(2_600)), expected);
    assert_eq!(growing.metric("reconnects_total"), 0);
    assert_eq!(growing.stop().well().len(), 2_600);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn an_unreadable_message_is_retried_with_growing_delays() {
    let broker = plain();
    let [topic, retry, dead] = ["retried", "retried-retry", "retried-dead"];
    let reader = raw::Refuser::start(&broker.service_url(), dead, SUBSCRIPTION);
    let variables = [
        ("PULSAR_DEAD_LETTER_TOPIC", dead),
        ("PULSAR_RETRY_LETTER_TOPIC", retry),
        ("PULSAR_MAX_REDELIVER_COUNT", "3"),
        ("PULSAR_RETRY_DELAYS", "100ms,200ms"),
    ];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    raw::send_encrypted(&broker.service_url(), topic, b"sealed");
    let (metadata, data) = reader.receive();
    assert_eq!((metadata.encryption_keys[0].key.as_str(), &*data), ("key", &b"sealed"[..]));
    let properties: Vec<(&str, &str)> =
        metadata.properties.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
    assert_eq!(properties[..2], [("colour", "red"), ("REAL_TOPIC", "persistent://public/default/retried")]);
    assert_eq!(properties[3..], [("RECONSUMETIMES", "3"), ("DELAY_TIME", "200")]);
    for topic in [topic, retry] {
        until_backlog(&broker, topic, SUBSCRIPTION, 0);
    }
    let counts = ["entries_unreadable_total", "entries_retried_total", "messages_dead_lettered_total"];
    assert_eq!(counts.map(|name| consumer.metric(name)), [4, 3, 1]);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn retry_letters_survive_the_inactivity_check() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    admin.create_namespace("public/waiting").unwrap();
    admin.delete_unused_topics("public/waiting").unwrap();
    let [topic, retry, dead, unused] =
        ["t", "retry", "dead", "unused"].map(|name| format!("public/waiting/{name}"));
    let letters = numbered("sealed", 20);
    let variables = [
        ("PULSAR_DEAD_LETTER_TOPIC", dead.as_str()),
        ("PULSAR_RETRY_LETTER_TOPIC", retry.as_str()),
        ("PULSAR_MAX_REDELIVER_COUNT", "1"),
        // Longer than the first consumer runs after the first letter.
        ("PULSAR_RETRY_DELAYS", "10s"),
    ];
    let start = || Consumer::start(&broker.service_url(), &topic, &variables);
    let consumer = start();
    consumer.until_ready(200);
    for letter in &letters {
        raw::send_encrypted(&broker.service_url(), &format!("persistent://{topic}"), letter.as_bytes());
    }
    until_backlog(&broker, &retry, SUBSCRIPTION, 20);
    until_backlog(&broker, &topic, SUBSCRIPTION, 0);
    assert!(consumer.stop().well().is_empty());
    // When the broker has deleted a topic that nothing keeps, it has looked at the retry letters too.
    for _ in 0..2 {
        send(&broker, &unused, "m", 1, &[]);
        until("the unused topic is gone", || admin.stats(&unused).unwrap().is_none().then_some(()));
    }
    assert_eq!(admin.backlog(&retry, SUBSCRIPTION).unwrap(), Some(20));
    let consumer = start();
    until_backlog(&broker, &dead, "first-subscription-dlq", 20);
    until_backlog(&broker, &retry, SUBSCRIPTION, 0);
    consumer.stop().well();
    let reader = raw::Refuser::start(&broker.service_url(), &dead, "first-subscription-dlq");
    let dead_letters = letters.iter().map(|_| String::from_utf8(reader.receive().1).unwrap()).collect();
    assert_eq!(sorted(dead_letters), sorted(letters));
}

/// The blocked consumer keeps what it is printing. Without a timeout it would keep the queue.
#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn another_consumer_gets_the_messages_of_a_blocked_one() {
    let broker = plain();
    let topic = "given-back";
    let blocked = Consumer::unread(&broker.service_url(), topic, &[("PULSAR_ACK_TIMEOUT", "1s")]);
    blocked.until_ready(200);
    let message = "x".repeat(50_000);
    send(&broker, topic, &message, 20, &["--no-batching"]);
    blocked.until_said("Output is blocked");
    let other = Consumer::start(&broker.service_url(), topic, &[]);
    // A pipe has room for 64 KiB, and the program for two texts of 64 KiB and a message each.
    other.until_messages(14);
    assert!(blocked.metric("messages_acknowledged_total") <= 2);
    other.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn the_broker_gets_the_options_of_a_subscription() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    let topic = "compacted";
    for (key, message) in [("k", "old"), ("other", "only"), ("k", "new")] {
        raw::send_keyed(&broker.service_url(), topic, key, message.as_bytes());
    }
    admin.compact(topic).unwrap();
    until("the topic is compacted", || admin.is_compacted(topic).unwrap().then_some(()));
    let variables = [
        ("PULSAR_SUBSCRIPTION_TYPE", "Exclusive"),
        ("PULSAR_INITIAL_POSITION", "Earliest"),
        ("PULSAR_READ_COMPACTED", "true"),
        ("PULSAR_REPLICATE_SUBSCRIPTION_STATE", "true"),
        ("PULSAR_LISTENER_NAME", "by-name"),
    ];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    assert_eq!(consumer.until_messages(2), ["only", "new"]);
    assert_eq!(admin.subscription(topic, SUBSCRIPTION).unwrap()["isReplicated"], true);
    consumer.stop().well();
    // A broker without such a listener cannot be used.
    let other = [("PULSAR_LISTENER_NAME", "unknown")];
    let consumer = Consumer::start(&broker.service_url(), topic, &other);
    assert!(consumer.until_ready(502).contains("listener"));
    consumer.stop().well();
    let sent = produce_with(&broker.service_url(), topic, &[("PULSAR_LISTENER_NAME", "by-name")], &[]);
    assert!(sent.status.success());
}
