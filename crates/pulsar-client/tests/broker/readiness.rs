//! /readyz says why a consumer has no subscription, and that it has one again.

use quintet_localcluster::cluster::ports;

use crate::program::{Consumer, plain, send, until};

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_broker_that_cannot_be_reached_is_tried_for_ever() {
    let port = ports::one().unwrap();
    let refused = Consumer::start(&format!("pulsar://127.0.0.1:{port}"), "t", &[]);
    let unknown = Consumer::start("pulsar://no.such.host.invalid:6650", "t", &[]);
    assert!(refused.until_ready(502).contains("cannot connect"));
    assert!(unknown.until_ready(502).contains("host is not known"));
    until("several tries", || (refused.metric("reconnects_total") > 3).then_some(()));
    let said = refused.stop();
    // What lasts is said once.
    let complaints = said.stderr.iter().filter(|line| line.contains("trying again")).count();
    assert_eq!(complaints, 1, "{:?}", said.stderr);
    assert!(said.well().is_empty());
    assert!(unknown.stop().well().is_empty());
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn what_does_not_speak_pulsar_is_not_ready() {
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
fn an_absent_topic_is_waited_for() {
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
fn the_second_consumer_of_an_exclusive_subscription_waits_and_takes_over() {
    let broker = plain();
    let start =
        || Consumer::start(&broker.service_url(), "exclusive", &[("PULSAR_SUBSCRIPTION_TYPE", "Exclusive")]);
    let first = start();
    first.until_ready(200);
    let second = start();
    assert!(second.until_ready(409).contains("taken"));
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
fn another_type_of_subscription_is_told_that_it_is_taken() {
    let broker = plain();
    let first = Consumer::start(&broker.service_url(), "types", &[]);
    first.until_ready(200);
    let second = Consumer::start(&broker.service_url(), "types", &[("PULSAR_SUBSCRIPTION_TYPE", "Failover")]);
    second.until_ready(409);
    first.stop().well();
    second.until_ready(200);
    second.stop().well();
}
