//! The consumers of the demo, with a real broker. On simulated nodes, processes of this machine play the containers of
//! PulsarConsumers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::cluster::processes::{self, Launch};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::progress::Step;
use quintet_localcluster::pulsar::{Broker, Options};
use quintet_localcluster::{build, consumers, image, protoc, pulsar, run};
use serde_json::{Value, json};

use super::{LIMIT, SAMPLES, until};

/// The definition of PulsarConsumer.
pub(super) const KIND: &str = "pulsarconsumers.pulsar.pulsarconsumer.krvarma.com";
/// The PulsarConsumer that consumes.
const NAME: &str = "pulsarconsumer-demo";
/// The message.
const MESSAGE: &str = "Hello, Pulsar!";
/// The producer's pod on real nodes.
const PRODUCER: &str = "pulsarconsumer-demo-producer";
/// The process that plays the kubelets.
const KUBELETS: &str = "consumers";

/// The broker and the producer of the demo.
pub(super) struct Consumers {
    broker: Broker,
    /// The producer's program; None on real nodes, where it runs in a pod.
    producer: Option<PathBuf>,
}

/// The reason why this machine cannot run consumers.
pub(super) fn missing() -> Option<String> {
    pulsar::missing().or_else(|| protoc::find().is_none().then(|| protoc::MISSING.to_owned()))
}

impl Consumers {
    /// Starts a broker and, on simulated nodes, the process that plays the kubelets.
    pub(super) fn start(cluster: &Cluster) -> Result<Self> {
        if cluster.is_real() {
            let (broker, _) = Broker::up(&Options { in_cluster: true, ..Options::new(cluster.name()) })?;
            return Ok(Self { broker, producer: None });
        }
        let programs = build::pulsar_programs()?.context(protoc::MISSING)?;
        let [consumer, producer] = &programs[..] else {
            bail!("expected two Pulsar programs, got {}", programs.len())
        };
        let (broker, started) = Broker::up(&Options::new(cluster.name()))?;
        if !started {
            eprintln!("broker {} is already running", broker.name());
        }
        let kube = cluster.kube();
        consumers::take_over(kube)?;
        let records = kube.dir().join("processes");
        fs::create_dir_all(&records).with_context(|| format!("cannot create {}", records.display()))?;
        let runs = processes::find(&records, KUBELETS)?.is_some_and(|process| process.is_alive());
        if !runs {
            let this = std::env::current_exe().context("cannot find this program")?;
            let mut command = Command::new(this);
            command.args(["consumers", "--name", cluster.name(), "--program"]).arg(consumer);
            let log = kube.log(&format!("{KUBELETS}.log"));
            let launch = Launch {
                name: KUBELETS,
                command,
                port: 0,
                fingerprint: String::new(),
                stdout: log.clone(),
                stderr: log,
            };
            processes::start(&records, launch)?;
        }
        Ok(Self { broker, producer: Some(producer.clone()) })
    }

    /// Sends messages with and without a consumer, and returns the lines that show the consumer and the backlog.
    pub(super) fn show(&self, kube: &Kube) -> Result<String> {
        let consumer = json!({
            "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
            "metadata": { "name": NAME, "namespace": SAMPLES },
            "spec": {
                "serverAddress": self.broker.service_url(), "topic": "demo", "subscriptionName": "demo",
                "initialPosition": "Earliest", "adminURL": self.broker.admin_url(), "backlogPollSeconds": 10,
                "replicas": 1,
            },
        });
        let apply = ["apply", "-n", SAMPLES, "-f", "-"];
        run::stdout_with_input(kube.kubectl().args(apply), Some(&consumer.to_string()))?;
        let is = |field: &'static str, count: i64| move |object: &Value| object["status"][field] == count;
        until(kube, KIND, NAME, is("consumers", 1))?;
        self.send(kube, 2)?;
        let line =
            run::poll("the message on the consumer's stdout", LIMIT, Duration::from_millis(200), || {
                let printed = if self.producer.is_some() { printed(kube)? } else { printed_in_pods(kube) };
                Ok(printed.lines().find(|line| line.contains(MESSAGE)).map(str::to_owned))
            })?;
        let get = || run::stdout(kube.kubectl().args(["get", "pulsarconsumers", NAME, "-n", SAMPLES]));
        let scale = |to: &str| {
            let args = ["scale", "pulsarconsumer", NAME, "-n", SAMPLES, to];
            run::stdout(kube.kubectl().args(args))
        };
        scale("--replicas=0")?;
        until(kube, KIND, NAME, is("consumers", 0))?;
        self.send(kube, 3)?;
        until(kube, KIND, NAME, is("backlog", 3))?;
        let behind = get()?;
        scale("--replicas=1")?;
        until(kube, KIND, NAME, is("backlog", 0))?;
        Ok(format!(
            "\nThe consumer printed for a message:\n{line}\n\
             \n$ kubectl get pulsarconsumers {NAME}   # no consumers, three messages sent\n{behind}"
        ))
    }

    fn send(&self, kube: &Kube, count: u32) -> Result<()> {
        let count = count.to_string();
        let args = ["--message", MESSAGE, "--no-batching", "--count", &count];
        let variables = [("PULSAR_SERVER", self.broker.service_url()), ("PULSAR_TOPIC", "demo".to_owned())];
        let Some(producer) = &self.producer else {
            // Flags are visible, but topic and broker are not secrets.
            let mut pod = kube.kubectl();
            pod.args(["run", PRODUCER, "-n", SAMPLES, "--rm", "--attach", "--restart=Never", "--quiet"]);
            pod.arg(format!("--image={}", image::name("pulsar-producer")));
            pod.args(variables.map(|(name, value)| format!("--env={name}={value}")));
            run::stdout(pod.arg("--").args(args))?;
            return Ok(());
        };
        run::stdout(Command::new(producer).envs(variables).args(args))?;
        Ok(())
    }
}

/// Waits until the tutorial's sample reports that its consumer is not ready: in a pod, localhost is the pod itself.
pub(super) fn unreachable(kube: &Kube) -> Result<()> {
    let step = Step::start(
        "PulsarConsumer pulsarconsumer-sample-1: its broker is unreachable, and its consumer is not ready",
    );
    until(kube, KIND, "pulsarconsumer-sample-1", |object| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.is_some_and(|all| {
            all.iter().any(|one| one["type"] == "Available" && one["reason"] == "ConsumersNotReady")
        })
    })?;
    step.done();
    Ok(())
}

/// The output of the consumers on real nodes; empty without pods.
fn printed_in_pods(kube: &Kube) -> String {
    let deployment = format!("deployment/{NAME}-deployment");
    run::stdout(kube.kubectl().args(["logs", "-n", SAMPLES, &deployment])).unwrap_or_default()
}

/// The output of the consumers on simulated nodes.
fn printed(kube: &Kube) -> Result<String> {
    let mut all = String::new();
    for file in fs::read_dir(kube.log(""))?.flatten() {
        if file.file_name().to_string_lossy().starts_with(&format!("{NAME}-deployment-")) {
            all.push_str(&fs::read_to_string(file.path()).unwrap_or_default());
        }
    }
    Ok(all)
}
