//! PulsarConsumers whose pods run the consumer's image against a real broker.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quintet_e2e::condition;
use quintet_localcluster::image;
use quintet_localcluster::pulsar::{Broker, Options};
use serde_json::{Value, json};

use crate::site::Site;

const MESSAGE: &str = "Hello from a pod";

/// A broker, taken down on drop.
struct TestBroker(Option<Broker>);

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Some(broker) = self.0.take() {
            let _ = broker.down();
        }
    }
}

/// Applies the PulsarConsumer `c`, with several pods if its type allows them.
fn apply(site: &Site, broker: &Broker, subscription_type: &str, replicas: u8) {
    site.apply(&json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "c", "namespace": "default" },
        "spec": {
            "serverAddress": broker.service_url(), "topic": "t", "subscriptionName": "s", "initialPosition": "Earliest",
            "adminURL": broker.admin_url(), "backlogPollSeconds": 10, "subscriptionType": subscription_type,
            "replicas": if subscription_type == "Exclusive" { 1 } else { replicas },
        },
    }));
}

/// Begins to send this number of messages from a pod with the producer's image.
fn begin_to_produce(site: &Site, broker: &Broker, name: &str, count: u32, more: &[&str]) {
    let count = count.to_string();
    let args = [&["--message", MESSAGE, "--no-batching", "--count", &count], more].concat();
    let variable = |name: &str, value: String| json!({ "name": name, "value": value });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "restartPolicy": "Never", "containers": [{
            "name": "producer", "image": image::name("pulsar-producer"), "args": args,
            "env": [variable("PULSAR_SERVER", broker.service_url()), variable("PULSAR_TOPIC", "t".to_owned())],
        }] } });
    site.apply(&pod);
}

fn produce(site: &Site, broker: &Broker, name: &str, count: u32) {
    begin_to_produce(site, broker, name, count, &[]);
    site.wait(&format!("{count} messages are sent"), || {
        site.get("pod", name)["status"]["phase"] == "Succeeded"
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_pod_consumes_from_a_real_broker() {
    let site = Site::with_chart("real-consumers", 2);
    let options = Options { in_cluster: true, ..Options::new(site.name()) };
    let broker = TestBroker(Some(Broker::up(&options).unwrap_or_else(|error| panic!("{error:#}")).0));
    let broker = broker.0.as_ref().unwrap();
    apply(&site, broker, "Shared", 1);
    let is = |field: &'static str, count: i64| {
        let duration = site.wait(&format!("{field} is {count}"), || {
            site.get("pulsarconsumer", "c")["status"][field] == count
        });
        println!("{field} is {count} after {:.1} s", duration.as_secs_f64());
    };
    is("readyReplicas", 1);
    is("consumers", 1);
    produce(&site, broker, "first", 2);
    let printed = || site.kubectl(&["logs", "deployment/c-deployment"]).unwrap_or_default();
    site.wait("both messages are printed", || {
        printed().lines().filter(|line| line.contains(MESSAGE)).count() == 2
    });

    site.kubectl(&["scale", "pulsarconsumer", "c", "--replicas=0"]).unwrap();
    is("consumers", 0);
    produce(&site, broker, "second", 3);
    is("backlog", 3);
    site.kubectl(&["scale", "pulsarconsumer", "c", "--replicas=1"]).unwrap();
    is("backlog", 0);
    let pods = site.list("pods", "quintet.dev/kind=PulsarConsumer");
    let images: Vec<&Value> = pods.iter().map(|pod| &pod["spec"]["containers"][0]["image"]).collect();
    assert_eq!(images, [&json!(image::name("pulsar-consumer"))]);

    // Without its broker, a consumer is not ready, and the kubelet's Event has the probe's status code.
    broker.kill().unwrap();
    site.wait("the consumer is not ready", || {
        condition(&site.get("pulsarconsumer", "c"), "Available").1 == "ConsumersNotReady"
    });
    site.wait("the Event has the status code", || {
        // Of several pods, kubectl shows no Events.
        let describe = ["describe", "pods", "-l", "quintet.dev/kind=PulsarConsumer"];
        site.kubectl(&describe).unwrap_or_default().contains("statuscode: 502")
    });
}

/// Every type follows every other type once.
const TYPES: [&str; 13] = [
    "Shared",
    "Key_Shared",
    "Shared",
    "Failover",
    "Shared",
    "Exclusive",
    "Key_Shared",
    "Failover",
    "Key_Shared",
    "Exclusive",
    "Failover",
    "Exclusive",
    "Shared",
];

fn pods(site: &Site) -> Vec<Value> {
    site.list("pods", "quintet.dev/kind=PulsarConsumer")
}

/// Collects what every pod of a consumer prints, until `stop`. The logs are followed, because they are deleted with
/// their pods.
fn follow(site: &Site, printed: &Mutex<String>, stop: &AtomicBool) {
    let mut followed = BTreeSet::new();
    thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            for pod in pods(site) {
                let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                if !followed.insert(name.clone()) {
                    continue;
                }
                scope.spawn(move || {
                    // The first attempts fail, because the container has not started.
                    while site.get("pod", &name) != Value::Null {
                        let output = site.command(&format!("kubectl logs -f {name}")).output().unwrap();
                        printed.lock().unwrap().push_str(&String::from_utf8_lossy(&output.stdout));
                        thread::sleep(Duration::from_millis(100));
                        if output.status.success() {
                            return;
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
}

/// Ends the followers on drop: without consumers their logs end.
struct Followers<'a>(&'a Site, &'a AtomicBool);

impl Drop for Followers<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        let _ = self.0.kubectl(&["delete", "pulsarconsumer", "c"]);
    }
}

#[test]
#[ignore = "needs a broker"]
fn every_change_of_the_subscription_type_loses_no_message() {
    const COUNT: u32 = 20_000;
    let site = Site::with_chart("real-types", 2);
    let options = Options { in_cluster: true, ..Options::new(site.name()) };
    let broker = TestBroker(Some(Broker::up(&options).unwrap_or_else(|error| panic!("{error:#}")).0));
    let broker = broker.0.as_ref().unwrap();
    let (printed, stop) = (Mutex::new(String::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| follow(&site, &printed, &stop));
        let _followers = Followers(&site, &stop);
        for (at, type_) in TYPES.iter().enumerate() {
            apply(&site, broker, type_, 3);
            let reasons = RefCell::new(BTreeSet::new());
            let duration = site.wait(&format!("change {at}, to {type_}, is ready"), || {
                let consumer = site.get("pulsarconsumer", "c");
                let is_current =
                    consumer["status"]["observedGeneration"] == consumer["metadata"]["generation"];
                let (ready, reason) = condition(&consumer, "Ready");
                let is_ready = is_current && ready == "True";
                if is_ready {
                    let replicas = &consumer["spec"]["replicas"];
                    for field in ["replicas", "updatedReplicas", "readyReplicas"] {
                        assert_eq!(&consumer["status"][field], replicas, "{field}: {consumer:#}");
                    }
                    for type_ in ["Available", "Applied"] {
                        assert_eq!(condition(&consumer, type_).0, "True", "{consumer:#}");
                    }
                    // A pod that has ended may still exist.
                    let running = pods(&site).into_iter().filter(|pod| pod["status"]["phase"] == "Running");
                    let env = |pod: &Value| pod["spec"]["containers"][0]["env"].to_string();
                    let others = running.filter(|pod| !env(pod).contains(&format!("\"value\":\"{type_}\"")));
                    let others: Vec<String> = others.map(|pod| env(&pod)).collect();
                    assert!(others.is_empty(), "{type_} is Ready beside {others:?}");
                } else if is_current {
                    reasons.borrow_mut().insert(reason);
                }
                is_ready
            });
            let reasons = reasons.into_inner();
            println!("change {at}, to {type_}: {reasons:?}, ready after {:.1} s", duration.as_secs_f64());
            assert!(at == 0 || !reasons.is_empty(), "Ready is not True while the pods change");
            if at + 1 == TYPES.len() {
                assert_eq!(
                    site.get("pod", "load")["status"]["phase"],
                    "Running",
                    "the load ends after the changes"
                );
            }
            if at == 0 {
                begin_to_produce(&site, broker, "load", COUNT, &["--rate", "100"]);
            }
        }
        site.wait("all messages are sent", || site.get("pod", "load")["status"]["phase"] == "Succeeded");
        site.wait("all messages are acknowledged", || {
            let status = &site.get("pulsarconsumer", "c")["status"];
            status["backlog"] == 0 && status["unacked"] == 0
        });
    });
    let printed = printed.into_inner().unwrap();
    let of_message = |line: &str| line.rsplit_once(' ')?.1.parse::<u32>().ok();
    let numbers: BTreeSet<u32> =
        printed.lines().filter(|line| line.contains(MESSAGE)).filter_map(of_message).collect();
    let lost: Vec<u32> = (1..=COUNT).filter(|number| !numbers.contains(number)).collect();
    assert!(lost.is_empty(), "{} of {COUNT} messages were not printed: {lost:?}", lost.len());
}
