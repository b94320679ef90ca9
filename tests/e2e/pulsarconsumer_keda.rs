//! PulsarConsumer with KEDA itself, its HorizontalPodAutoscaler, a real broker and real consumers.
//! `cargo xtask test --keda` runs these tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use quintet_e2e::{TestEnv, condition};
use quintet_localcluster::cluster::binaries::KEDA;
use quintet_localcluster::keda;
use quintet_localcluster::manager::Manager;
use quintet_localcluster::pulsar::Options;
use quintet_localcluster::run::Log;
use serde_json::{Value, json};

use crate::pulsarconsumer::{consumer, is_available};
use crate::pulsarconsumer_broker::{Kubelets, TestBroker, comes_to, may_read_secrets, output, produce};

const COUNT: u32 = 100;
/// Less than the number of pods for the backlog.
const MAX_REPLICAS: u32 = 3;
const TARGET_BACKLOG: u32 = 10;
const POLL_SECONDS: u32 = 2;
const COOLDOWN_SECONDS: u32 = 10;

/// A cluster with KEDA, a node and a broker. The fields are dropped in this order.
struct Site {
    _kubelets: Kubelets,
    _manager: Manager,
    broker: TestBroker,
    node: String,
    env: TestEnv,
}

impl Site {
    fn up(name: &str, auth: bool) -> Self {
        let env = TestEnv::alone(name);
        keda::start(env.kube()).unwrap_or_else(|error| panic!("{error:#}"));
        let node = env.node("one");
        let broker = TestBroker::up(&env, "broker", &Options { auth, ..Options::new("") });
        Self { _kubelets: Kubelets::start(&env), _manager: env.manager("pulsarconsumer"), broker, node, env }
    }

    /// A PulsarConsumer of the broker's topic with its own name.
    fn consumer(&self, name: &str, fields: &Value) -> Value {
        let mut consumer = consumer(name, fields);
        consumer["spec"]["serverAddress"] = json!(self.broker.service_url());
        consumer["spec"]["adminURL"] = json!(self.broker.admin_url());
        consumer["spec"]["topic"] = json!(name);
        consumer["spec"]["backlogPollSeconds"] = json!(10);
        consumer
    }

    fn has_replicas(&self, kind: &str, name: &str, replicas: u32) {
        self.env.wait_for(kind, name, &format!("KEDA scales {kind} {name} to {replicas}"), |one| {
            one["spec"]["replicas"] == replicas
        });
    }

    /// Sends messages while KEDA has scaled to 0, until KEDA and its HorizontalPodAutoscaler have scaled to the maximum.
    /// The pods wait for a node, so that they do not consume the backlog before the autoscaler sees it.
    fn scale_up(
        &self,
        consumer: &str,
        scaled_object: &str,
        (kind, name): (&str, &str),
        files: &[(&str, PathBuf)],
    ) {
        self.has_replicas(kind, name, 0);
        self.env.wait_for("pulsarconsumer", consumer, "the last consumer has disconnected", |one| {
            one["status"]["consumers"] == 0
        });
        self.env.kubectl(&["cordon", &self.node]).unwrap();
        produce(&self.broker.service_url(), consumer, "hello", COUNT, files);
        self.has_replicas(kind, name, MAX_REPLICAS);
        let autoscaler = format!("keda-hpa-{scaled_object}");
        self.env.wait_for("hpa", &autoscaler, "the HorizontalPodAutoscaler has scaled", |one| {
            one["spec"]["scaleTargetRef"]["name"] == name && one["status"]["desiredReplicas"] == MAX_REPLICAS
        });
    }

    /// Lets the pods consume all messages, until KEDA has scaled to 0.
    fn scale_down(&self, consumer: &str, kind: &str, name: &str) {
        self.env.kubectl(&["uncordon", &self.node]).unwrap();
        let all: BTreeSet<u32> = (1..=COUNT).collect();
        let printed = || -> BTreeSet<u32> {
            let output = output(&self.env, consumer);
            let messages = output.lines().filter_map(|line| line.strip_prefix("Message Received: hello "));
            messages.filter_map(|number| number.parse().ok()).collect()
        };
        self.env.wait("every message is printed", || printed() == all);
        self.has_replicas(kind, name, 0);
        self.env.wait_for("pulsarconsumer", consumer, "no consumer is left", |one| {
            one["status"]["consumers"] == 0 && one["status"]["backlog"] == 0 && one["status"]["replicas"] == 0
        });
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for name in KEDA.into_iter().filter(|_| std::thread::panicking()) {
            let log = Log::whole(self.env.kube().log(&format!("{name}.log")));
            eprintln!("--- {name}: {}\n---", log.tail(40));
        }
    }
}

#[test]
#[ignore = "needs KEDA: cargo xtask test --keda"]
fn keda_scales_from_zero_to_the_backlog_and_back() {
    let site = Site::up("keda", true);
    let (env, broker) = (&site.env, &site.broker);
    may_read_secrets(env);
    let good = fs::read_to_string(broker.token_file()).unwrap().trim().to_owned();
    let autoscaled = |name: &str, token: &str| {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { "token": token } });
        env.apply(&secret).unwrap();
        let fields = json!({ "auth": { "tokenSecret": { "name": name } }, "autoscaling": {
            "maxReplicas": MAX_REPLICAS, "targetBacklog": TARGET_BACKLOG,
            "pollingIntervalSeconds": POLL_SECONDS, "cooldownSeconds": COOLDOWN_SECONDS } });
        let mut consumer = site.consumer(name, &fields);
        consumer["spec"].as_object_mut().unwrap().remove("replicas");
        consumer
    };
    let mut scaled = autoscaled("scaled", &good);
    env.apply(&scaled).unwrap();
    env.apply(&autoscaled("refused", &broker.foreign_token("app"))).unwrap();
    let mut unused = autoscaled("unused", &good);
    unused["spec"]["replicas"] = json!(0);
    unused["spec"]["subscription"] = json!({ "create": false });
    env.apply(&unused).unwrap();
    comes_to(env, "scaled", "AutoscalingReady", "ScaledObjectReady");
    comes_to(env, "refused", "AutoscalingReady", "ScaledObjectNotReady");
    // Neither the manager nor a first consumer creates its subscription.
    comes_to(env, "unused", "AutoscalingReady", "ScaledObjectNotReady");

    site.scale_up(
        "scaled",
        "scaled-pulsarcrd",
        ("pulsarconsumer", "scaled"),
        &[("PULSAR_TOKEN_FILE", broker.token_file())],
    );
    site.scale_down("scaled", "pulsarconsumer", "scaled");
    comes_to(env, "scaled", "AutoscalingReady", "ScaledObjectReady");
    comes_to(env, "scaled", "Ready", "ConsumersReady");

    // The backlog of each topic alone would need two pods.
    let spec = scaled["spec"].as_object_mut().unwrap();
    spec.remove("topic");
    spec.insert("topics".to_owned(), json!(["scaled", "more"]));
    env.apply(&scaled).unwrap();
    env.wait_for("scaledobject", "scaled-pulsarcrd", "it has a trigger for each topic", |one| {
        one["spec"]["triggers"].as_array().is_some_and(|triggers| triggers.len() == 2)
    });
    comes_to(env, "scaled", "BacklogObserved", "Observed");
    env.kubectl(&["cordon", &site.node]).unwrap();
    for topic in ["scaled", "more"] {
        let files = [("PULSAR_TOKEN_FILE", broker.token_file())];
        produce(&broker.service_url(), topic, "sum", 15, &files);
    }
    site.has_replicas("pulsarconsumer", "scaled", MAX_REPLICAS);
    env.kubectl(&["uncordon", &site.node]).unwrap();
    site.has_replicas("pulsarconsumer", "scaled", 0);
    env.wait_for("pulsarconsumer", "scaled", "both topics are consumed", |one| {
        one["status"]["backlog"] == 0 && one["status"]["replicas"] == 0
    });

    // KEDA restores the replicas from before its installation.
    scaled["spec"].as_object_mut().unwrap().remove("autoscaling");
    env.apply(&scaled).unwrap();
    env.wait_for("pulsarconsumer", "scaled", "its replicas are restored", |one| {
        one["spec"]["replicas"] == 1 && condition(one, "AutoscalingReady").0.is_empty() && is_available(one)
    });
    env.wait("the objects of KEDA are gone", || {
        env.get("scaledobject", "scaled-pulsarcrd").is_none()
            && env.get("triggerauthentication", "scaled-pulsarcrd-token").is_none()
            && env.get("hpa", "keda-hpa-scaled-pulsarcrd").is_none()
    });
}

#[test]
#[ignore = "needs KEDA: cargo xtask test --keda"]
fn leaves_the_deployment_to_a_scaled_object_of_the_user() {
    let site = Site::up("keda-deployment", false);
    let env = &site.env;
    env.apply(&site.consumer("plain", &json!({}))).unwrap();
    env.wait_for("pulsarconsumer", "plain", "the consumer is available", is_available);
    let writes = || env.writes_at_rest().iter().filter(|write| write.contains(" deployments")).count();
    let before = writes();
    let object = json!({ "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": { "name": "theirs" },
        "spec": { "scaleTargetRef": { "name": "plain-deployment" }, "maxReplicaCount": MAX_REPLICAS,
            "pollingInterval": POLL_SECONDS, "cooldownPeriod": COOLDOWN_SECONDS,
            "triggers": [{ "type": "pulsar", "metadata": {
                "adminURL": site.broker.admin_url(), "topic": "persistent://public/default/plain",
                "subscription": "s", "msgBacklogThreshold": TARGET_BACKLOG.to_string() } }] } });
    env.apply(&object).unwrap();
    site.scale_up("plain", "theirs", ("deployment", "plain-deployment"), &[]);
    comes_to(env, "plain", "Applied", "ReplicasManagedElsewhere");
    site.scale_down("plain", "deployment", "plain-deployment");
    comes_to(env, "plain", "Applied", "ReplicasManagedElsewhere");
    assert_eq!(writes(), before, "the manager does not write the Deployment");

    // The condition contains the command that gives the replicas back.
    env.kubectl(&["delete", "scaledobject", "theirs"]).unwrap();
    let plain = env.get("pulsarconsumer", "plain").unwrap();
    let conditions = plain["status"]["conditions"].as_array().unwrap();
    let applied = conditions.iter().find(|one| one["type"] == "Applied").unwrap();
    let (_, command) = applied["message"].as_str().unwrap().split_once("run: kubectl ").unwrap();
    env.kubectl(&command.split(' ').collect::<Vec<_>>()).unwrap();
    comes_to(env, "plain", "Applied", "AsSpecified");
    env.wait_for("pulsarconsumer", "plain", "the consumer is available", is_available);
}
