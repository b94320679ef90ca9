//! /readyz names the reason why a consumer has no subscription.

use quintet_localcluster::cluster::ports;

use crate::program::{Consumer, plain, send, until};

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn retries_an_unreachable_broker_without_end() {
    let port = ports::one().unwrap();
    let refused = Consumer::start(&format!("pulsar://127.0.0.1:{port}"), "t", &[]);
    let unknown = Consumer::start("pulsar://no.such.host.invalid:6650", "t", &[]);
    assert!(refused.until_ready(502).contains("cannot connect"));
    assert!(unknown.until_ready(502).contains("unknown host"));
    until("several tries", || (refused.metric("reconnects_total") > 3).then_some(()));
    let said = refused.stop();
    // The same problem is reported once.
    let complaints = said.stderr.iter().filter(|line| line.contains("retrying")).count();
    assert_eq!(complaints, 1, "{:?}", said.stderr);
    assert!(said.well().is_empty());
    assert!(unknown.stop().well().is_empty());
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn is_not_ready_with_another_protocol() {
    let broker = plain();
    let web = broker.admin_url().replace("http://", "pulsar://");
    let consumer = Consumer::start(&web, "t", &[]);
    consumer.until_ready(502);
    consumer.stop().well();
    let tls = broker.service_url().replace("pulsar://", "pulsar+ssl://");
    let consumer = Consumer::start(&tls, "t", &[]);
    consumer.until_ready(525);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn waits_for_a_missing_topic() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    let topic = "public/strict/later";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(404);
    admin.create_strict_namespace("public/strict").unwrap();
    consumer.until_ready(404);
    admin.create_topic(topic).unwrap();
    consumer.until_ready(200);
    send(&broker, topic, "m", 1, &[]);
    assert_eq!(consumer.until_messages(1), ["m"]);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_second_exclusive_consumer_waits_and_takes_over() {
    let broker = plain();
    let start =
        || Consumer::start(&broker.service_url(), "exclusive", &[("PULSAR_SUBSCRIPTION_TYPE", "Exclusive")]);
    let first = start();
    first.until_ready(200);
    let second = start();
    assert!(second.until_ready(409).contains("in use"));
    send(&broker, "exclusive", "for the first", 1, &[]);
    assert_eq!(first.until_messages(1), ["for the first"]);
    first.stop().well();
    second.until_ready(200);
    send(&broker, "exclusive", "for the second", 1, &[]);
    assert_eq!(second.until_messages(1), ["for the second"]);
    assert_eq!(second.stop().well(), ["for the second"]);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn another_subscription_type_is_a_conflict() {
    let broker = plain();
    let first = Consumer::start(&broker.service_url(), "types", &[]);
    first.until_ready(200);
    let second = Consumer::start(&broker.service_url(), "types", &[("PULSAR_SUBSCRIPTION_TYPE", "Failover")]);
    second.until_ready(409);
    first.stop().well();
    second.until_ready(200);
    second.stop().well();
}
