//! A consumer under load, while its token, its broker and its topic change.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quintet_localcluster::http::{self, Request};
use quintet_localcluster::pulsar::{Broker, ROLE};

use crate::program::{
    Consumer, OUTAGE_RECONNECTS, numbered, own_file, own_with_tokens, produce_with, replace, until,
    until_backlog,
};

const SUBSCRIPTION: &str = "first-subscription";
const TOPIC: &str = "disturbed";

/// Producers that send messages until they are stopped. Each sends one round.
struct Load {
    is_stopped: Arc<AtomicBool>,
    sending: JoinHandle<BTreeSet<String>>,
}

impl Load {
    fn start(broker: &Broker) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let sending = thread::spawn({
            let (broker, is_stopped) = (broker.clone(), Arc::clone(&is_stopped));
            move || {
                let mut confirmed = BTreeSet::new();
                for round in 1.. {
                    let message = format!("round {round}:");
                    send_round(&broker, &message);
                    confirmed.extend(numbered(&message, 500));
                    if is_stopped.load(Ordering::Relaxed) {
                        break;
                    }
                }
                confirmed
            }
        });
        Self { is_stopped, sending }
    }

    /// Stops after the current round, and returns the messages that the broker has confirmed.
    fn stop(self) -> BTreeSet<String> {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.sending.join().unwrap()
    }
}

fn send_round(broker: &Broker, message: &str) {
    let token = broker.token_file();
    let variables = [("PULSAR_TOKEN_FILE", token.to_str().unwrap())];
    let args = ["--message", message, "--count", "500", "--rate", "500", "--timeout", "3m"];
    let output = produce_with(&broker.service_url(), TOPIC, &variables, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn partition(number: usize) -> String {
    format!("{TOPIC}-partition-{number}")
}

/// The web service of a broker that requires tokens.
struct Web {
    port: u16,
    bearer: String,
}

impl Web {
    fn of(broker: &Broker) -> Self {
        let token = fs::read_to_string(broker.admin_token_file()).unwrap();
        let port = broker.admin_url().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { port, bearer: format!("Bearer {token}") }
    }

    fn send(&self, method: &str, path: &str) -> (u16, String) {
        let headers = [("Authorization", self.bearer.as_str())];
        let limit = Duration::from_mins(1);
        http::send(&Request { method, port: self.port, path, headers: &headers, body: "", limit }).unwrap()
    }

    fn bundle(&self, topic: &str) -> String {
        let path = format!("/lookup/v2/topic/persistent/public/default/{topic}/bundle");
        let (status, bundle) = self.send("GET", &path);
        assert_eq!(status, 200, "{bundle}");
        bundle.trim().trim_matches('"').to_owned()
    }

    /// Makes the broker close all topics of a bundle, as the load balancer does.
    fn unload(&self, bundle: &str) {
        let answer = self.send("PUT", &format!("/admin/v2/namespaces/public/default/{bundle}/unload"));
        assert_eq!(answer, (204, String::new()), "{bundle}");
    }
}

/// The consumer looks for new partitions when it connects again. The broker copies the subscription to them, so no
/// earlier message is lost.
#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn survives_disturbances_under_load() {
    let broker = own_with_tokens("disturbed");
    let admin = broker.admin().unwrap();
    admin.create_partitioned_topic(TOPIC, 4).unwrap();
    let good = broker.token(ROLE, None).unwrap();
    let token = own_file(&broker, "replaced", &good);
    let variables = [("PULSAR_TOKEN_FILE", token.to_str().unwrap())];
    let consumer = Consumer::start(&broker.service_url(), TOPIC, &variables);
    consumer.until_ready(200);
    let since = |number| {
        let subscription = admin.subscription(&partition(number), SUBSCRIPTION).unwrap();
        subscription["consumers"][0]["connectedSince"].as_str().map(str::to_owned)
    };
    let process = consumer.started();
    let load = Load::start(&broker);
    let mut reconnects = 0;
    let mut settled = |step: &str, most: u64| {
        consumer.until_ready(200);
        let printed = consumer.messages().len();
        consumer.until_messages(printed + 200);
        let before = std::mem::replace(&mut reconnects, consumer.metric("reconnects_total"));
        assert!((1..=most).contains(&(reconnects - before)), "{step}: {before} to {reconnects}");
        assert_eq!(consumer.started(), process, "{step}");
    };
    consumer.until_messages(200);

    // Two failures: the loss, and an attempt with the rejected token. The next attempt comes 2 s later or more.
    replace(&token, &broker.foreign_token(ROLE));
    admin.unload(&partition(0)).unwrap();
    assert!(consumer.until_ready(401).contains("the broker rejected the credentials"));
    replace(&token, &good);
    settled("a rejected token", 3);

    admin.add_partitions(TOPIC, 5).unwrap();
    broker.stop().unwrap();
    consumer.until_ready(502);
    broker.restart().unwrap();
    settled("a restart and a new partition", OUTAGE_RECONNECTS);
    assert!(since(4).is_some());

    replace(&token, "");
    admin.unload(&partition(1)).unwrap();
    assert!(consumer.until_ready(401).contains("does not contain a token"));
    replace(&token, &good);
    settled("an empty token file", 3);

    // The namespace has four bundles, so two of the five partitions share one.
    let web = Web::of(&broker);
    let bundles: Vec<String> = (0..5).map(|number| web.bundle(&partition(number))).collect();
    let size = |bundle: &&String| bundles.iter().filter(|other| other == bundle).count();
    let bundle = bundles.iter().max_by_key(size).unwrap();
    let unloaded: Vec<usize> = (0..5).filter(|number| bundles[*number] == *bundle).collect();
    assert!(unloaded.len() >= 2, "{bundles:?}");
    let before: Vec<_> = unloaded.iter().copied().map(since).collect();
    web.unload(bundle);
    until("the partitions are subscribed again", || {
        unloaded.iter().zip(&before).all(|(number, before)| since(*number) > *before).then_some(())
    });
    // One failure, because the partitions are lost together. The pauses double, so a slow broker adds few.
    settled("an unloaded bundle", 5);

    let confirmed = load.stop();
    until("every confirmed message", || {
        let printed: BTreeSet<String> = consumer.messages().into_iter().collect();
        confirmed.is_subset(&printed).then_some(())
    });
    (0..5).for_each(|number| until_backlog(&broker, &partition(number), SUBSCRIPTION, 0));
    let printed: BTreeSet<String> = consumer.stop().well().into_iter().collect();
    assert!(printed == confirmed, "{} printed, {} confirmed", printed.len(), confirmed.len());
    broker.down().unwrap();
}
