//! All messages arrive and are acknowledged.

use quintet_localcluster::cluster::ports;
use rstest::rstest;

use crate::program::{
    Consumer, numbered, own_file, plain, produce, produce_with, send, sorted, until, until_backlog,
};
use crate::raw;

const SUBSCRIPTION: &str = "first-subscription";

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn the_defaults_match_the_tutorials_programs() {
    let broker = plain();
    // An empty variable counts as not set.
    let consumer = Consumer::start(&broker.service_url(), "", &[("PULSAR_SUBSCRIPTION_NAME", "")]);
    consumer.until_ready(200);
    let output = produce(&broker.service_url(), "", &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Published message\n");
    assert_eq!(consumer.until_messages(1), ["Sample Message"]);
    let subscription = broker.admin().unwrap().subscription("my-topic", SUBSCRIPTION).unwrap();
    assert_eq!(subscription["type"], "Shared");
    let output = produce_with(&broker.service_url(), "", &[("PULSAR_MESSAGE", "a\nb")], &[]);
    assert!(output.status.success());
    assert_eq!(consumer.until_messages(2)[1], "a\\nb");
    assert_eq!((consumer.metric("messages_received_total"), consumer.metric("connected")), (2, 1));
    assert_eq!(consumer.probe("/healthz").unwrap().0, 200);
    let ended = consumer.stop();
    for line in [
        format!("Server: {}", broker.service_url()),
        "Topic: my-topic".to_owned(),
        format!("Subscription: {SUBSCRIPTION}"),
    ] {
        assert!(ended.stderr.contains(&line), "{line}: {:?}", ended.stderr);
    }
    assert_eq!(ended.well().len(), 2);
    until_backlog(&broker, "my-topic", SUBSCRIPTION, 0);
}

#[rstest]
#[case("Shared")]
#[case("Exclusive")]
#[case("Failover")]
#[case("Key_Shared")]
#[ignore = "needs a broker: cargo xtask test"]
fn every_type_of_subscription_gets_every_message(#[case] kind: &str) {
    let broker = plain();
    let topic = &format!("type-{kind}");
    let consumer = Consumer::start(&broker.service_url(), topic, &[("PULSAR_SUBSCRIPTION_TYPE", kind)]);
    consumer.until_ready(200);
    send(&broker, topic, "batched", 2_500, &[]);
    send(&broker, topic, "alone", 100, &["--no-batching"]);
    let expected = [numbered("batched", 2_500), numbered("alone", 100)].concat();
    assert_eq!(sorted(consumer.until_messages(2_600)), sorted(expected));
    assert_eq!(broker.admin().unwrap().subscription(topic, SUBSCRIPTION).unwrap()["type"], kind);
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.metric("messages_acknowledged_total"), 2_600);
    assert_eq!(consumer.stop().well().len(), 2_600);
}

#[rstest]
#[case("Earliest", &["before 1", "before 2", "after 1", "after 2"])]
#[case("Latest", &["after 1", "after 2"])]
#[ignore = "needs a broker: cargo xtask test"]
fn a_new_subscription_begins_at_its_position(#[case] position: &str, #[case] expected: &[&str]) {
    let broker = plain();
    let topic = &format!("position-{position}");
    send(&broker, topic, "before", 2, &[]);
    let consumer = Consumer::start(&broker.service_url(), topic, &[("PULSAR_INITIAL_POSITION", position)]);
    consumer.until_ready(200);
    send(&broker, topic, "after", 2, &[]);
    assert_eq!(consumer.until_messages(expected.len()), expected);
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.stop().well(), expected);
}

#[rstest]
#[case("Shared")]
#[case("Exclusive")]
#[ignore = "needs a broker: cargo xtask test"]
fn many_batches_arrive_once_each_and_in_order(#[case] kind: &str) {
    let broker = plain();
    let topic = &format!("batches-{kind}");
    let variables = [("PULSAR_SUBSCRIPTION_TYPE", kind), ("PULSAR_RECEIVER_QUEUE_SIZE", "100")];
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    send(&broker, topic, "m", 50_000, &[]);
    assert!(consumer.until_messages(50_000) == numbered("m", 50_000));
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    // The next consumer gets nothing again.
    assert_eq!(consumer.stop().well().len(), 50_000);
    let consumer = Consumer::start(&broker.service_url(), topic, &variables);
    consumer.until_ready(200);
    send(&broker, topic, "last", 1, &[]);
    assert_eq!(consumer.until_messages(1), ["last"]);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn consumes_every_partition() {
    let broker = plain();
    let topic = "partitioned";
    broker.admin().unwrap().create_partitioned_topic(topic, 3).unwrap();
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    for partition in 0..3 {
        send(&broker, &format!("{topic}-partition-{partition}"), &format!("p{partition}"), 1_500, &[]);
    }
    let expected = (0..3).flat_map(|partition| numbered(&format!("p{partition}"), 1_500)).collect();
    assert_eq!(sorted(consumer.until_messages(4_500)), sorted(expected));
    for partition in 0..3 {
        until_backlog(&broker, &format!("{topic}-partition-{partition}"), SUBSCRIPTION, 0);
    }
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn consumes_a_non_persistent_topic() {
    let broker = plain();
    let topic = "non-persistent://public/default/fleeting";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    raw::send_encrypted(&broker.service_url(), topic, b"sealed");
    send(&broker, topic, "now", 3, &["--no-batching"]);
    assert_eq!(consumer.until_messages(3), numbered("now", 3));
    consumer.until_said("its topic is not persistent");
    assert_eq!(consumer.metric("entries_unreadable_total"), 1);
    consumer.stop().well();
}

/// All messages have the same ID, so none may count as the one that is being printed.
#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn consumes_non_persistent_messages_while_others_wait() {
    let broker = plain();
    let topic = "non-persistent://public/default/fleeting-and-slow";
    let mut consumer = Consumer::unread(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    let received = |count| {
        until(&format!("{count} messages are received"), || {
            (consumer.metric("messages_received_total") == count).then_some(())
        });
    };
    // More than the capacity of a pipe.
    let long = "x".repeat(100_000);
    send(&broker, topic, &long, 1, &["--no-batching"]);
    received(1);
    send(&broker, topic, "later", 3, &["--no-batching"]);
    received(4);
    consumer.read();
    assert_eq!(consumer.until_messages(4), [vec![long], numbered("later", 3)].concat());
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn uses_any_of_several_hosts() {
    let broker = plain();
    let alive = broker.service_url();
    let dead = ports::one().unwrap();
    let server =
        format!("pulsar://127.0.0.1:{dead},{},no.such.host.invalid", alive.trim_start_matches("pulsar://"));
    let consumer = Consumer::start(&server, "several-hosts", &[]);
    consumer.until_ready(200);
    send(&broker, "several-hosts", "m", 1, &[]);
    assert_eq!(consumer.until_messages(1), ["m"]);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_blocked_reader_uses_no_memory() {
    let broker = plain();
    let topic = "slow-reader";
    let mut consumer = Consumer::unread(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    send(&broker, topic, &"x".repeat(500), 60_000, &[]);
    // The pipe is full, and the broker keeps the rest.
    let received = until("the consumer waits for its reader", || {
        let before = consumer.metric("messages_received_total");
        std::thread::sleep(std::time::Duration::from_secs(2));
        (before > 0 && consumer.metric("messages_received_total") == before).then_some(before)
    });
    assert!(received < 10_000, "{received} messages were received by a blocked consumer");
    let status = std::fs::read_to_string(format!("/proc/{}/status", consumer.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(resident < 40_000, "{resident} KiB");
    assert_eq!(consumer.probe("/healthz").unwrap().0, 200);
    assert_eq!(consumer.probe("/readyz").unwrap().0, 200);
    consumer.read();
    consumer.until_messages(60_000);
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.stop().well().len(), 60_000);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn reads_messages_that_java_producers_compressed() {
    let broker = plain();
    let topic = "compressed";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    let payload = own_file(&broker, "payload", "compressed by Java, and again compressed by Java");
    let mut expected = 0;
    for compression in ["LZ4", "ZLIB", "ZSTD", "SNAPPY"] {
        let output = quintet_localcluster::pulsar::perf::command(broker.dir())
            .unwrap()
            .args([
                "produce",
                "--service-url",
                &broker.service_url(),
                "--num-messages",
                "50",
                "--rate",
                "1000",
            ])
            .args(["--compression", compression, "--payload-file"])
            .args([payload.to_str().unwrap(), topic])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        expected += 50;
        let printed = consumer.until_messages(expected);
        let wrong = printed.iter().find(|line| *line != "compressed by Java, and again compressed by Java");
        assert_eq!(wrong, None, "{compression}");
    }
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    assert_eq!(consumer.metric("entries_unreadable_total"), 0);
    consumer.stop().well();
}
