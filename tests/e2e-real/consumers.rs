//! PulsarConsumers whose pods run the consumer's image against a real broker.

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

/// Sends this number of messages from a pod with the producer's image.
fn produce(site: &Site, broker: &Broker, name: &str, count: u32) {
    let args = ["--message", MESSAGE, "--no-batching", "--count", &count.to_string()].map(str::to_owned);
    let variable = |name: &str, value: String| json!({ "name": name, "value": value });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "restartPolicy": "Never", "containers": [{
            "name": "producer", "image": image::name("pulsar-producer"), "args": args,
            "env": [variable("PULSAR_SERVER", broker.service_url()), variable("PULSAR_TOPIC", "t".to_owned())],
        }] } });
    site.apply(&pod);
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
    site.apply(&json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "c", "namespace": "default" },
        "spec": {
            "serverAddress": broker.service_url(), "topic": "t", "subscriptionName": "s", "initialPosition": "Earliest",
            "adminURL": broker.admin_url(), "backlogPollSeconds": 10, "replicas": 1,
        },
    }));
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
        site.kubectl(&["describe", "pods"]).unwrap_or_default().contains("statuscode: 502")
    });
}
