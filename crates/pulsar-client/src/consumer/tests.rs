//! A consumer between fake brokers and a reader of its lines.

use std::io::{BufRead as _, BufReader, PipeReader, pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread;

use bytes::{Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use pulsar::message::Metadata;
use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::{BaseCommand, CommandMessage, CommandPing, CommandPong, MessageIdData};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{spawn, yield_now};
use tokio_util::codec::{Decoder as _, Encoder as _, Framed};

use super::*;
use crate::address::Host;
use crate::frame::{Codec, Entry, Frame};
use crate::link::{Link, command, number};
use crate::security::Files;
use crate::settings::{ConsumerArgs, DeadLetterPolicy};

/// The interval in which a broker pings, and after which it closes a silent connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The size of a socket.
const SOCKET: usize = 16 << 10;

/// The view that a broker has of the consumer.
#[derive(Debug, Default)]
struct Seen {
    /// The bytes that the socket has accepted.
    sent: AtomicUsize,
    permits: AtomicI64,
    acknowledged: AtomicUsize,
    asked_again: AtomicUsize,
    is_closed: AtomicBool,
}

type Outgoing = (Box<BaseCommand>, Option<Entry>);

/// A broker that writes what the queue has, and reads at the same time.
fn broker(seen: &Arc<Seen>) -> (Link, UnboundedSender<Outgoing>) {
    let (client, socket) = tokio::io::duplex(SOCKET);
    let (mut writer, mut reader) = Framed::new(socket, Codec).split();
    let (outgoing, mut queue) = unbounded_channel::<Outgoing>();
    let to = Arc::clone(seen);
    spawn(async move {
        while let Some((command, entry)) = queue.recv().await {
            let size = entry.as_ref().map_or(0, |entry| entry.payload.len());
            if writer.send((command, entry)).await.is_err() {
                return;
            }
            to.sent.fetch_add(size, Ordering::Relaxed);
        }
    });
    let (seen, answers) = (Arc::clone(seen), outgoing.clone());
    spawn(async move {
        let mut keep_alive = interval(KEEP_ALIVE);
        let mut waits = false;
        loop {
            let frame = tokio::select! {
                frame = reader.next() => frame,
                _ = keep_alive.tick() => {
                    if waits {
                        seen.is_closed.store(true, Ordering::Relaxed);
                        return;
                    }
                    waits = true;
                    let _ = answers.send((command(Type::Ping, |c| c.ping = Some(CommandPing {})), None));
                    continue;
                }
            };
            let Some(Ok(Frame::Command(asked))) = frame else { return };
            waits = false;
            if let Some(flow) = asked.flow {
                seen.permits.fetch_add(flow.message_permits.into(), Ordering::Relaxed);
            } else if let Some(ack) = asked.ack {
                seen.acknowledged.fetch_add(ack.message_id.len(), Ordering::Relaxed);
            } else if let Some(again) = asked.redeliver_unacknowledged_messages {
                seen.asked_again.fetch_add(again.message_ids.len(), Ordering::Relaxed);
            } else if asked.ping.is_some() {
                let _ = answers.send((command(Type::Pong, |c| c.pong = Some(CommandPong {})), None));
            }
        }
    });
    let host = Host { name: "fake".to_owned(), port: 1 };
    (Link::over(Box::new(client), &host, &Files::default()), outgoing)
}

/// A message of a consumer. Its entry has this number.
fn message(consumer: usize, entry: usize, redeliveries: u32, payload: Bytes) -> Outgoing {
    let message_id = MessageIdData { ledger_id: 1, entry_id: number(entry), ..MessageIdData::default() };
    let message = CommandMessage {
        consumer_id: number(consumer),
        message_id,
        redelivery_count: Some(redeliveries),
        ..CommandMessage::default()
    };
    let metadata = Metadata { producer_name: "p".to_owned(), ..Metadata::default() };
    (command(Type::Message, |c| c.message = Some(message)), Some(Entry { metadata, payload }))
}

fn settings(queue_bytes: usize) -> ConsumerSettings {
    let mut settings = ConsumerArgs::default().settings(None).unwrap();
    settings.subscription.queue_bytes = queue_bytes;
    settings.subscription.queue = 10;
    settings
}

/// A consumer, and the reader of its lines.
fn consumer(settings: ConsumerSettings) -> (Consumer, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    let letters = settings.dead_letters.as_ref();
    let letters = letters.map(|policy| Letters::start(policy, &settings.subscription));
    let consumer = Consumer {
        metrics: Metrics::new().unwrap(),
        state: State::default(),
        printer: Printer::to(writer.into()).unwrap(),
        letters,
        said: None,
        settings,
    };
    (consumer, reader)
}

/// Runs a consumer of these partitions, given by their connections, until the scenario ends.
async fn run(
    consumer: &mut Consumer,
    links: Vec<Link>,
    partitions: &[usize],
    scenario: impl Future<Output = ()>,
) {
    let session = Session::over(consumer.settings.subscription.clone(), links, partitions);
    let mut flow = Flow::new(consumer, session, 0);
    let mut stop = Stop::listen().unwrap();
    tokio::select! {
        biased;
        ended = flow.run(&mut stop) => match ended {
            Ok(()) => panic!("stopped"),
            Err(Broken::Session(problem)) => panic!("{problem}"),
            Err(Broken::Stdout(failure)) => panic!("{failure}"),
        },
        () = scenario => {}
    }
}

/// Counts this number of lines and their bytes on a thread.
fn count(lines: PipeReader, until: usize, read: &Arc<AtomicUsize>) -> thread::JoinHandle<usize> {
    let read = Arc::clone(read);
    thread::spawn(move || {
        let mut lines = BufReader::new(lines);
        let (mut count, mut line) = (0, Vec::new());
        while count < until && lines.read_until(b'\n', &mut line).unwrap() > 0 {
            read.fetch_add(line.len(), Ordering::Relaxed);
            line.clear();
            count += 1;
        }
        count
    })
}

/// Waits for a condition, also while the time is paused.
async fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < Duration::from_mins(1), "{what}");
        yield_now().await;
    }
}

/// Waits until this number of lines is read.
async fn lines_of(lines: PipeReader, expected: usize) {
    let count = count(lines, expected, &Arc::default());
    until("all lines are read", || count.is_finished()).await;
    assert_eq!(count.join().unwrap(), expected);
}

/// The limit holds while nothing is read for ten minutes, and while everything is read afterwards.
#[tokio::test(start_paused = true)]
async fn a_thousand_partitions_use_no_memory_above_the_limit() {
    /// The default.
    const LIMIT: usize = 32 << 20;
    const SIZE: usize = 1_000_000;
    let seen: Vec<_> = (0..10).map(|_| Arc::new(Seen::default())).collect();
    let (links, outgoing): (Vec<_>, Vec<_>) = seen.iter().map(broker).unzip();
    let partitions: Vec<usize> = (0..1_000).map(|partition| partition % 10).collect();
    let payload = Bytes::from(vec![b'x'; SIZE]);
    for (partition, link) in partitions.iter().enumerate() {
        outgoing[*link].send(message(partition, 1, 0, payload.clone())).unwrap();
    }
    let (mut consumer, lines) = consumer(settings(LIMIT));
    let sent = || seen.iter().map(|seen| seen.sent.load(Ordering::Relaxed)).sum::<usize>();
    let read = Arc::new(AtomicUsize::new(0));
    // Besides the limit: a message above it, one that is read, the texts, the pipe, and the sockets.
    let most = LIMIT + SIZE + 2 * (CHUNK + SIZE) + (64 << 10) + 10 * SOCKET;
    run(&mut consumer, links, &partitions, async {
        sleep(Duration::from_mins(10)).await;
        let held = sent();
        assert!((LIMIT - 10 * SIZE..=most).contains(&held), "{held}");
        assert!(seen.iter().all(|seen| !seen.is_closed.load(Ordering::Relaxed)));
        let count = count(lines, 1_000, &read);
        until("all lines are read", || {
            let held = sent().saturating_sub(read.load(Ordering::Relaxed));
            assert!(held <= most, "{held}");
            count.is_finished()
        })
        .await;
        assert_eq!(count.join().unwrap(), 1_000);
        let acknowledged =
            || seen.iter().map(|seen| seen.acknowledged.load(Ordering::Relaxed)).sum::<usize>();
        sleep(Duration::from_secs(1)).await;
        until("all messages are acknowledged", || acknowledged() == 1_000).await;
    })
    .await;
}

/// Every message is larger than the limit, and each connection has an incomplete one.
#[tokio::test(start_paused = true)]
async fn messages_above_the_limit_arrive() {
    let seen = Arc::new(Seen::default());
    let (links, outgoing): (Vec<_>, Vec<_>) = (0..3).map(|_| broker(&seen)).unzip();
    for entry in 0..10 {
        for (link, outgoing) in outgoing.iter().enumerate() {
            outgoing.send(message(link, entry, 0, Bytes::from(vec![b'x'; 10 * SOCKET]))).unwrap();
        }
    }
    let (mut consumer, lines) = consumer(settings(1));
    run(&mut consumer, links, &[0, 1, 2], async {
        lines_of(lines, 30).await;
    })
    .await;
}

/// A broker that sends twelve messages, each as large as a text, and the settings of their consumer.
fn with_ack_timeout(seen: &Arc<Seen>) -> (Link, ConsumerSettings) {
    let (link, outgoing) = broker(seen);
    let send = |entry| outgoing.send(message(0, entry, 0, Bytes::from(vec![b'x'; CHUNK]))).unwrap();
    (0..12).for_each(send);
    (link, ConsumerSettings { ack_timeout: Some(Duration::from_secs(30)), ..settings(1 << 30) })
}

/// While the output is blocked, the broker gets the waiting messages back and no permits for them.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_too_long_go_back_once() {
    let seen = Arc::new(Seen::default());
    let (link, settings) = with_ack_timeout(&seen);
    let (mut consumer, lines) = consumer(settings);
    let permits = || seen.permits.load(Ordering::Relaxed);
    let asked_again = || seen.asked_again.load(Ordering::Relaxed);
    run(&mut consumer, vec![link], &[0], async {
        sleep(Duration::from_secs(29)).await;
        assert_eq!(asked_again(), 0);
        sleep(Duration::from_secs(3)).await;
        // One is being printed, and one is a line that comes next.
        assert_eq!((asked_again(), permits()), (10, 0));
        sleep(Duration::from_mins(10)).await;
        assert_eq!((asked_again(), permits()), (10, 0));
        lines_of(lines, 2).await;
        sleep(Duration::from_secs(1)).await;
        // Half of the queue at a time; the last two permits come with later ones.
        assert_eq!(permits(), 10);
    })
    .await;
}

/// The broker does not deliver messages of such a topic again.
#[tokio::test(start_paused = true)]
async fn messages_of_other_topics_do_not_go_back() {
    let seen = Arc::new(Seen::default());
    let (link, mut settings) = with_ack_timeout(&seen);
    settings.subscription.topics = vec!["non-persistent://a/b/t".parse().unwrap()];
    let (mut consumer, lines) = consumer(settings);
    run(&mut consumer, vec![link], &[0], async {
        sleep(Duration::from_mins(10)).await;
        lines_of(lines, 12).await;
        assert_eq!(seen.asked_again.load(Ordering::Relaxed), 0);
    })
    .await;
}

/// The last lost topic was deleted before the lookup.
#[tokio::test(start_paused = true)]
async fn is_ready_without_a_deleted_topic() {
    let seen = Arc::new(Seen::default());
    let (link, _outgoing) = broker(&seen);
    let (mut consumer, _lines) = consumer(settings(1 << 20));
    let service = consumer.settings.subscription.service.clone();
    let session = Session::over(consumer.settings.subscription.clone(), vec![link], &[0, 0]);
    let mut flow = Flow::new(&mut consumer, session, 0);
    flow.complete();
    let located = |missing| {
        Some(Ok(Located {
            brokers: Brokers::over(service.clone(), vec![]),
            links: vec![],
            missing,
            problem: None,
        }))
    };
    assert!(flow.lost(&[1], Problem::passing(Code::Unreachable, "closed")).is_ok());
    assert_eq!(flow.consumer.metrics.connected.get(), 0);
    flow.rejoin = Rejoin::Idle;
    assert!(flow.rejoin(located(vec![1])).is_ok());
    assert_eq!(flow.consumer.metrics.connected.get(), 1);
    assert_eq!(flow.consumer.state.readiness().0, 200);
}

/// The server of the dead letters accepts connections and never answers.
#[tokio::test]
async fn letters_that_hang_delay_no_other_message() {
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(1 << 20);
    settings.subscription.service.address =
        format!("pulsar://{}", hangs.local_addr().unwrap()).parse().unwrap();
    settings.dead_letters = Some(DeadLetterPolicy {
        max_redeliver_count: 1,
        topic: "dead".parse().unwrap(),
        subscription: "dlq".to_owned(),
        retry_delays: None,
    });
    let seen = Arc::new(Seen::default());
    let (link, outgoing) = broker(&seen);
    // More than the queue, and more than may wait for the dead-letter topic.
    for entry in 0..1_000 {
        outgoing.send(message(0, entry, 2, Bytes::from_static(b"poison"))).unwrap();
    }
    outgoing.send(message(0, 1_000, 0, Bytes::from_static(b"healthy"))).unwrap();
    settings.redelivery_delay = Duration::from_millis(1);
    let (mut consumer, lines) = consumer(settings);
    run(&mut consumer, vec![link], &[0], async {
        lines_of(lines, 1).await;
        until("the broker keeps those that do not wait", || {
            seen.permits.load(Ordering::Relaxed) >= 1_000 && seen.asked_again.load(Ordering::Relaxed) >= 900
        })
        .await;
    })
    .await;
}

/// A batch whose checksum is wrong. The broker has counted all its messages.
#[tokio::test]
async fn a_corrupt_batch_returns_its_permits_and_is_discarded() {
    let seen = Arc::new(Seen::default());
    let (link, _outgoing) = broker(&seen);
    let (mut consumer, _lines) = consumer(settings(1 << 20));
    let session = Session::over(consumer.settings.subscription.clone(), vec![link], &[0]);
    let mut flow = Flow::new(&mut consumer, session, 0);
    let (command, entry) = message(0, 1, 0, Bytes::from_static(b"batch"));
    let mut entry = entry.unwrap();
    entry.metadata.num_messages_in_batch = Some(1_000);
    let mut frame = BytesMut::new();
    Codec.encode((command, Some(entry)), &mut frame).unwrap();
    *frame.last_mut().unwrap() ^= 1;
    for (deliveries, discarded) in [(1, 0), (2, 1)] {
        let Frame::Messages(delivery) = Codec.decode(&mut frame.clone()).unwrap().unwrap() else { panic!() };
        assert!(flow.take(*delivery).is_ok());
        let begun = Instant::now();
        while seen.permits.load(Ordering::Relaxed) < deliveries * 1_000 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{seen:?}");
            assert!(flow.session.next_now(0).await.unwrap().is_none());
            yield_now().await;
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(seen.acknowledged.load(Ordering::Relaxed), discarded);
    }
    assert_eq!((flow.consumer.metrics.unreadable.get(), flow.refused.due(), flow.text.len()), (2, None, 0));
}

/// Without a pause, a broker that rejects a subscription during the lookup of another would get requests in a loop.
#[tokio::test(start_paused = true)]
async fn consumers_lost_during_a_lookup_wait_for_their_retry() {
    let seen = Arc::new(Seen::default());
    let (link, _outgoing) = broker(&seen);
    let (mut consumer, _lines) = consumer(settings(1 << 20));
    let service = consumer.settings.subscription.service.clone();
    let session = Session::over(consumer.settings.subscription.clone(), vec![link], &[0, 0, 0]);
    let mut flow = Flow::new(&mut consumer, session, 0);
    for failures in 1..6 {
        flow.rejoin = Rejoin::Locating(Box::pin(pending()));
        flow.session.grow(0, 3 + failures);
        assert!(flow.lost(&[1], Problem::passing(Code::Busy, "busy")).is_ok());
        let brokers = Brokers::over(service.clone(), vec![]);
        let located = Located { brokers, links: vec![], missing: vec![], problem: None };
        assert!(flow.rejoin(Some(Ok(located))).is_ok());
        assert_eq!(flow.failures, failures);
        assert!(matches!(flow.rejoin, Rejoin::At(at) if at > Instant::now()));
    }
    assert_eq!(flow.consumer.state.readiness().0, 409);
}
