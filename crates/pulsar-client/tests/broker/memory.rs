//! Memory is bounded in bytes, while and after the reader blocks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::ChildStdout;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::program::{Consumer, large, until, until_backlog};
use crate::raw;

const PARTITIONS: u32 = 64;
const MESSAGES: usize = 2 * 64;
const SIZE: usize = 1_000_000;

/// The highest resident memory of a process in KiB, if it still runs.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().trim_end_matches(" kB").parse().ok()
}

/// Reads lines until the end or until this number, and returns the numbers of their messages.
fn numbers(stdout: ChildStdout, count: usize) -> thread::JoinHandle<Vec<usize>> {
    thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let (mut numbers, mut line) = (Vec::new(), Vec::new());
        while numbers.len() < count && stdout.read_until(b'\n', &mut line).unwrap() > 0 {
            let text = String::from_utf8_lossy(&line);
            numbers.push(text["Message Received: ".len()..].split(' ').next().unwrap().parse().unwrap());
            line.clear();
        }
        numbers
    })
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn large_messages_of_many_partitions_use_at_most_64_mib() {
    const MOST: u64 = 64 << 10;
    let broker = large();
    let topic = "large";
    broker.admin().unwrap().create_partitioned_topic(topic, PARTITIONS).unwrap();
    let start = || {
        let consumer = Consumer::unread(&broker.service_url(), topic, &[]);
        consumer.until_ready(200);
        consumer
    };
    let mut first = start();
    raw::send_large(&broker.service_url(), topic, MESSAGES, SIZE);
    let bytes = |consumer: &Consumer| {
        until("it waits for its reader", || {
            let before = peak(consumer.pid());
            thread::sleep(Duration::from_secs(1));
            peak(consumer.pid()).filter(|peak| Some(*peak) == before)
        })
    };
    let held = bytes(&first);
    // It receives as much as it may, so the limit is a limit.
    assert!((32 << 10..MOST).contains(&held), "{held} KiB");
    // The messages that the broker still sends are dropped.
    let lines = numbers(first.take_stdout(), MESSAGES);
    first.signal(Signal::TERM);
    let mut highest = held;
    while let Some(now) = peak(first.pid()) {
        highest = now;
        thread::sleep(Duration::from_millis(1));
    }
    assert!(highest < MOST, "{highest} KiB");
    first.ended().well();
    let mut printed = lines.join().unwrap();
    let mut second = start();
    bytes(&second);
    printed.extend(numbers(second.take_stdout(), MESSAGES - printed.len()).join().unwrap());
    assert_eq!(printed.len(), MESSAGES);
    assert_eq!(printed.into_iter().collect::<BTreeSet<_>>(), (0..MESSAGES).collect());
    let highest = peak(second.pid()).unwrap();
    assert!(highest < MOST, "{highest} KiB");
    assert_eq!(second.metric("reconnects_total"), 0);
    for partition in 0..PARTITIONS {
        until_backlog(&broker, &format!("{topic}-partition-{partition}"), "first-subscription", 0);
    }
    second.stop().well();
    broker.down().unwrap();
}
