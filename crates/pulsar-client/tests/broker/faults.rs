//! Brokers that disappear and return.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use crate::program::{
    Consumer, OUTAGE_RECONNECTS, numbered, own, plain, producer, send, until, until_backlog,
};

const SUBSCRIPTION: &str = "first-subscription";

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn loses_no_confirmed_message_when_the_broker_is_killed() {
    let broker = own("killed");
    let topic = "killed";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    let load = producer(
        &broker.service_url(),
        topic,
        &[],
        &["--message", "before", "--count", "1000000", "--rate", "2000", "--timeout", "20s"],
    )
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    consumer.until_messages(2_000);
    broker.kill().unwrap();
    let output = load.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let confirmed: usize = said
        .lines()
        .last()
        .and_then(|line| line.rsplit_once("; ")?.1.strip_suffix(" of 1000000 messages were confirmed"))
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!(confirmed >= 1_000, "{said}");
    consumer.until_ready(502);
    broker.restart().unwrap();
    consumer.until_ready(200);
    send(&broker, topic, "after", 1_000, &[]);
    let missing = |printed: &BTreeSet<String>| {
        let expected = numbered("before", confirmed).into_iter().chain(numbered("after", 1_000));
        expected.filter(|message| !printed.contains(message)).count()
    };
    until("every confirmed message", || {
        let printed: BTreeSet<String> = consumer.messages().into_iter().collect();
        (missing(&printed) == 0).then_some(())
    });
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    let reconnects = consumer.metric("reconnects_total");
    assert!((1..=OUTAGE_RECONNECTS).contains(&reconnects), "{reconnects} reconnects");
    consumer.stop().well();
    broker.down().unwrap();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn follows_a_moved_topic() {
    let broker = plain();
    let topic = "moves";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    for round in 1..4 {
        let message = format!("round {round}:");
        send(&broker, topic, &message, 500, &[]);
        let seen = |consumer: &Consumer| {
            let expected = numbered(&message, 500);
            let printed: BTreeSet<String> = consumer.messages().into_iter().collect();
            expected.iter().all(|message| printed.contains(message))
        };
        until("the round's messages", || seen(&consumer).then_some(()));
        broker.admin().unwrap().unload(topic).unwrap();
        until("it reconnects", || (consumer.metric("reconnects_total") >= round).then_some(()));
        consumer.until_ready(200);
    }
    until_backlog(&broker, topic, SUBSCRIPTION, 0);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_moved_partition_leaves_the_others_connected() {
    let broker = plain();
    let admin = broker.admin().unwrap();
    let topic = "one-moves";
    admin.create_partitioned_topic(topic, 3).unwrap();
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    let partition = |number: usize| format!("{topic}-partition-{number}");
    let since = || {
        [0, 1, 2].map(|number| {
            let subscription = admin.subscription(&partition(number), SUBSCRIPTION).unwrap();
            subscription["consumers"][0]["connectedSince"].as_str().map(str::to_owned)
        })
    };
    let before = since();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    for round in 1..4 {
        admin.unload(&partition(1)).unwrap();
        until("the partition is subscribed again", || (since()[1] > before[1]).then_some(()));
        (0..3).for_each(|number| send(&broker, &partition(number), &format!("{number}:"), 100, &[]));
        consumer.until_messages(round * 300);
        until_backlog(&broker, &partition(1), SUBSCRIPTION, 0);
    }
    let after = since();
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert_eq!(consumer.probe("/readyz").unwrap().0, 200);
    assert_eq!(consumer.metric("messages_redelivered_total"), 0);
    assert_eq!(consumer.stop().well().len(), 900);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_producer_follows_a_moved_topic() {
    let broker = plain();
    let topic = "moves-under-load";
    let consumer = Consumer::start(&broker.service_url(), topic, &[]);
    consumer.until_ready(200);
    let args = ["--message", "m", "--count", "2000", "--rate", "500"];
    let load = producer(&broker.service_url(), topic, &[], &args).stderr(Stdio::piped()).spawn().unwrap();
    for count in [200, 800] {
        consumer.until_messages(count);
        broker.admin().unwrap().unload(topic).unwrap();
    }
    let output = load.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("the topic moves"), "{said}");
    until("every message", || {
        let printed: BTreeSet<String> = consumer.messages().into_iter().collect();
        numbered("m", 2_000).iter().all(|message| printed.contains(message)).then_some(())
    });
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_broker_listens_only_on_loopback() {
    let broker = own("listens");
    let pid = broker.process().unwrap().unwrap().pid;
    let sockets: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut listening = BTreeMap::new();
    for file in ["tcp", "tcp6", "udp", "udp6"] {
        let Ok(table) = fs::read_to_string(format!("/proc/{pid}/net/{file}")) else { continue };
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            // Address, state and inode, as in proc(5). 0A means listening; UDP has no such state.
            if sockets.contains(fields[9]) && (file.starts_with("udp") || fields[3] == "0A") {
                listening.insert(fields[1].to_owned(), file);
            }
        }
    }
    assert!(listening.len() >= 3, "{listening:?}");
    for (address, file) in &listening {
        assert!(address.starts_with("0100007F:"), "{address} in {file}: {listening:?}");
    }
    broker.down().unwrap();
}
