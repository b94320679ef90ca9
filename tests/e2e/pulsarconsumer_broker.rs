//! PulsarConsumer with a real broker and real consumers.
//!
//! Nodes are simulated, but each container is a `pulsar-consumer` process with the pod's environment and
//! Secrets. `quintet_localcluster::consumers` writes its /readyz answers to the pod's status and Events, as a
//! kubelet does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use quintet_e2e::{PATIENCE, TestEnv, condition};
use quintet_localcluster::cluster::binaries::keda_source;
use quintet_localcluster::consumers::Kubelet;
use quintet_localcluster::http::{self, Request};
use quintet_localcluster::manager::Manager;
use quintet_localcluster::pulsar::issuer::{AUDIENCE, CLIENT_SECRET};
use quintet_localcluster::pulsar::{Broker, Lifetime, Options, ROLE};
use quintet_localcluster::run;
use quintet_localcluster::variables;
use serde_json::{Value, json};

use crate::pulsarconsumer::{consumer, is_available};

fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os(variables::PULSAR_PROGRAMS).expect("run by `cargo xtask test`");
    PathBuf::from(folder).join(name)
}

/// A broker, taken down on drop.
pub struct TestBroker(Option<Broker>);

impl TestBroker {
    pub fn up(env: &TestEnv, what: &str, options: &Options) -> Self {
        let options = Options { name: format!("{}-{what}", env.cluster().name()), ..options.clone() };
        Self(Some(Broker::up(&options).expect("the broker starts").0))
    }
}

impl std::ops::Deref for TestBroker {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        self.0.as_ref().unwrap()
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Some(broker) = self.0.take() {
            let _ = broker.down();
        }
    }
}

/// Plays the kubelets until drop.
pub struct Kubelets {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelets {
    pub fn start(env: &TestEnv) -> Self {
        let kubelet = Kubelet::new(env.kube(), &program("pulsar-consumer")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let go_on = move || {
            anyhow::ensure!(!stopped.load(Ordering::Relaxed), "the test has ended");
            Ok(())
        };
        let thread = thread::spawn(move || {
            let _ = kubelet.run(go_on);
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends this number of messages, each as a separate entry.
pub fn produce(server: &str, topic: &str, message: &str, count: u32, files: &[(&str, PathBuf)]) {
    let mut producer = Command::new(program("pulsar-producer"));
    producer.env("PULSAR_SERVER", server).env("PULSAR_TOPIC", topic);
    producer.envs(files.iter().map(|(name, file)| (name, file)));
    producer.args(["--message", message, "--count", &count.to_string(), "--no-batching"]);
    run::stdout(&mut producer).expect("the messages are sent");
}

/// The output of all consumers of a PulsarConsumer.
pub fn output(env: &TestEnv, name: &str) -> String {
    let logs = fs::read_dir(env.kube().log("")).unwrap().flatten();
    let prefix = format!("{name}-deployment-");
    let of_it = logs.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
    of_it.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect()
}

/// The number of lines with this prefix that the consumers of a PulsarConsumer have printed.
fn printed(env: &TestEnv, name: &str, line: &str) -> usize {
    output(env, name).lines().filter(|printed| printed.starts_with(line)).count()
}

/// Waits until the condition has this reason.
pub fn comes_to(env: &TestEnv, name: &str, type_: &str, reason: &str) {
    env.wait_for("pulsarconsumer", name, &format!("{type_} ({reason})"), |consumer| {
        condition(consumer, type_).1 == reason
    });
}

/// Whether `kubectl describe` of a PulsarConsumer's pods contains these words.
fn describes(env: &TestEnv, name: &str, words: &str) -> bool {
    let label = format!("pulsarcrd={name}-pulsarcrd");
    env.kubectl(&["describe", "pods", "-l", &label]).is_ok_and(|text| text.contains(words))
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn consumes_and_reports_the_state_of_consumers() {
    let env = TestEnv::alone("pb-plain");
    env.node("one");
    let broker = TestBroker::up(&env, "plain", &Options::new(""));
    let _kubelets = Kubelets::start(&env);
    let manager = env.manager("pulsarconsumer");
    let server = broker.service_url();
    let of = |name: &str, topic: &str, fields: &Value| {
        let mut consumer = consumer(name, fields);
        consumer["spec"]["serverAddress"] = json!(server);
        consumer["spec"]["topic"] = json!(topic);
        consumer["spec"]["adminURL"] = json!(broker.admin_url());
        consumer["spec"]["backlogPollSeconds"] = json!(10);
        consumer
    };
    // The tutorial's sample: its localhost is the pod, which has no broker.
    env.apply_sample("pulsarconsumer/pulsarconsumer-sample-1.yaml").unwrap();

    env.apply(&of("live", "live", &json!({}))).unwrap();
    env.wait_for("pulsarconsumer", "live", "the consumer is connected", |one| {
        is_available(one) && one["status"]["consumers"] == 1
    });
    produce(&server, "live", "hello", 50, &[]);
    env.wait("all messages are printed", || printed(&env, "live", "Message Received: hello") == 50);

    // Without consumers, the backlog is the number of sent messages.
    env.kubectl(&["scale", "pcon", "live", "--replicas=0"]).unwrap();
    env.wait_for("pulsarconsumer", "live", "no consumer is left", |one| one["status"]["consumers"] == 0);
    produce(&server, "live", "later", 20, &[]);
    let metric =
        format!("quintet_pulsarconsumer_backlog{{name=\"live\",namespace=\"{}\"}} 20", env.namespace());
    env.wait("the backlog is measured", || manager.metrics().is_ok_and(|metrics| metrics.contains(&metric)));
    // A backlog read during the sending is not updated for one or two further messages.
    let seen = env.wait_for("pulsarconsumer", "live", "the status has the backlog", |one| {
        one["status"]["backlog"].as_u64().is_some_and(|backlog| backlog >= 18)
    });
    let columns = env.kubectl(&["get", "pcon", "live"]).unwrap();
    assert!(
        columns.contains("BACKLOG") && columns.contains(&format!(" {} ", seen["status"]["backlog"])),
        "{columns}"
    );
    env.kubectl(&["scale", "pcon", "live", "--replicas=2"]).unwrap();
    env.wait_for("pulsarconsumer", "live", "the backlog is 0", |one| {
        one["status"]["backlog"] == 0 && one["status"]["consumers"] == 2
    });
    assert_eq!(printed(&env, "live", "Message Received: later"), 20);

    // Two objects share one Exclusive subscription.
    let exclusive = json!({ "subscriptionType": "Exclusive" });
    env.apply(&of("first", "taken", &exclusive)).unwrap();
    env.wait_for("pulsarconsumer", "first", "the consumer is available", is_available);
    env.apply(&of("second", "taken", &exclusive)).unwrap();
    for (name, code) in [("second", 409), ("pulsarconsumer-sample-1", 502)] {
        comes_to(&env, name, "Available", "ConsumersNotReady");
        env.wait("the probe's status code is in an Event of the pod", || {
            describes(&env, name, &format!("statuscode: {code}"))
        });
    }

    // Conditions from the admin API's answers about topics.
    let admin = broker.admin().unwrap();
    admin.create_topic("empty").unwrap();
    admin.create_partitioned_topic("parts", 3).unwrap();
    for (name, topic, reason) in
        [("no-topic", "absent", "TopicNotFound"), ("no-subscription", "empty", "SubscriptionNotFound")]
    {
        let fields = json!({ "replicas": 0, "subscription": { "create": false } });
        env.apply(&of(name, topic, &fields)).unwrap();
        comes_to(&env, name, "BacklogObserved", reason);
    }
    env.apply(&of("parts", "parts", &json!({ "initialPosition": "Earliest" }))).unwrap();
    env.wait_for("pulsarconsumer", "parts", "the consumer reads every partition", |one| {
        is_available(one) && condition(one, "BacklogObserved").0 == "True" && one["status"]["consumers"] == 1
    });

    creates_and_deletes_subscriptions(&env, &broker, &of);
    follows_the_topics_that_match(&env, &broker, &of);

    // The status reports an absent broker, and recovers without an action of the user.
    broker.kill().unwrap();
    comes_to(&env, "live", "BacklogObserved", "AdminUnreachable");
    comes_to(&env, "live", "Available", "ConsumersNotReady");
    broker.restart().unwrap();
    env.wait_for("pulsarconsumer", "live", "the consumer is available again", |one| {
        is_available(one) && condition(one, "BacklogObserved").0 == "True"
    });
    produce(&server, "live", "again", 5, &[]);
    env.wait("the consumer prints again", || printed(&env, "live", "Message Received: again") >= 5);

    // Deleting the object removes its metrics.
    env.kubectl(&["delete", "pcon", "live", "--timeout=60s"]).unwrap();
    env.wait("the object's metrics are gone", || !manager.metrics().unwrap().contains("name=\"live\""));
}

/// The manager creates a subscription before the first consumer, and deletes it with its PulsarConsumer.
fn creates_and_deletes_subscriptions(
    env: &TestEnv,
    broker: &TestBroker,
    of: &dyn Fn(&str, &str, &Value) -> Value,
) {
    let admin = broker.admin().unwrap();
    env.apply(&of("sleeping", "asleep", &json!({ "replicas": 0 }))).unwrap();
    comes_to(env, "sleeping", "BacklogObserved", "Observed");
    produce(&broker.service_url(), "asleep", "early", 20, &[]);
    assert_eq!(admin.backlog("asleep", "s").unwrap(), Some(20));
    env.kubectl(&["scale", "pcon", "sleeping", "--replicas=1"]).unwrap();
    env.wait("all messages are printed", || printed(env, "sleeping", "Message Received: early") == 20);
    // By default, the subscription stays.
    env.kubectl(&["delete", "pcon", "sleeping", "--timeout=60s"]).unwrap();
    assert!(!admin.subscription("asleep", "s").unwrap().is_null());

    // "doomed" waits for the consumer of "other", whose addresses differ, so that "doomed" does not know it.
    let partition = "parts-partition-0";
    let shared = |name: &str, fields: Value| {
        let mut consumer = of(name, "parts", &fields);
        consumer["spec"]["subscriptionName"] = json!("shared");
        consumer
    };
    env.apply(&shared("doomed", json!({ "subscription": { "cleanup": "Delete" } }))).unwrap();
    let mut other = shared("other", json!({}));
    other["spec"].as_object_mut().unwrap().remove("adminURL");
    other["spec"]["serverAddress"] = json!(broker.service_url().replace("127.0.0.1", "localhost"));
    env.apply(&other).unwrap();
    for name in ["doomed", "other"] {
        env.wait_for("pulsarconsumer", name, "the consumer is available", is_available);
    }
    env.kubectl(&["delete", "pcon", "doomed", "--wait=false"]).unwrap();
    comes_to(env, "doomed", "SubscriptionDeleted", "SubscriptionInUse");
    assert!(!admin.subscription(partition, "shared").unwrap().is_null());
    env.kubectl(&["scale", "pcon", "other", "--replicas=0"]).unwrap();
    env.wait("the PulsarConsumer is deleted", || env.get("pulsarconsumer", "doomed").is_none());
    assert!(admin.subscription(partition, "shared").unwrap().is_null());
}

/// A topic that comes after the subscription loses no message, and the retry-letter topic has the subscription too.
fn follows_the_topics_that_match(
    env: &TestEnv,
    broker: &TestBroker,
    of: &dyn Fn(&str, &str, &Value) -> Value,
) {
    let admin = broker.admin().unwrap();
    admin.create_topic("matched-a").unwrap();
    let letters = json!({ "maxRedeliverCount": 1, "deadLetterTopic": "matched-dead", "retryLetterTopic": "matched-again" });
    let fields = json!({ "replicas": 0, "subscription": { "cleanup": "Delete" }, "deadLetterPolicy": letters,
        "topicsPattern": "matched-.*" });
    let mut consumer = of("matched", "", &fields);
    consumer["spec"].as_object_mut().unwrap().remove("topic");
    env.apply(&consumer).unwrap();
    comes_to(env, "matched", "BacklogObserved", "Observed");
    for topic in ["matched-a", "matched-b"] {
        produce(&broker.service_url(), topic, "matched", 10, &[]);
    }
    let matched = env.wait_for("pulsarconsumer", "matched", "the backlog is the sum", |one| {
        one["status"]["backlog"] == 20
    });
    assert_eq!(matched["status"]["topic"], "matched-.*");
    env.kubectl(&["scale", "pcon", "matched", "--replicas=1"]).unwrap();
    env.wait("all messages are printed", || printed(env, "matched", "Message Received: matched") == 20);
    let topics = ["matched-a", "matched-b", "matched-again"];
    assert!(topics.iter().all(|topic| !admin.subscription(topic, "s").unwrap().is_null()));
    env.kubectl(&["delete", "pcon", "matched", "--timeout=60s"]).unwrap();
    assert!(topics.iter().all(|topic| admin.subscription(topic, "s").unwrap().is_null()));
}

/// Lets the manager read the Secrets of the namespace.
pub fn may_read_secrets(env: &TestEnv) {
    env.kubectl(&["create", "role", "secrets", "--verb=get", "--resource=secrets"]).unwrap();
    let account = "--serviceaccount=quintet-system:quintet";
    env.kubectl(&["create", "rolebinding", "secrets", "--role=secrets", account]).unwrap();
}

/// Creates KEDA's definitions, so that the manager creates KEDA's objects. KEDA does not run.
fn define_keda(env: &TestEnv) {
    for definition in ["scaledobjects", "triggerauthentications"] {
        let file = keda_source().unwrap().join(format!("config/crd/bases/keda.sh_{definition}.yaml"));
        env.kubectl(&["create", "-f", file.to_str().unwrap()]).unwrap();
        let crd = format!("crd/{definition}.keda.sh");
        env.kubectl(&["wait", &crd, "--for=condition=Established", "--timeout=60s"]).unwrap();
    }
}

/// A part of a value of a Secret that is found wherever the value is shown, as text and as in the Secret's `data`.
fn parts(env: &TestEnv, secret: &str, key: &str) -> [String; 2] {
    let value = env.kube().secret_value(env.namespace(), secret, key).unwrap();
    let encoded = env.get("secret", secret).unwrap()["data"][key].as_str().unwrap().to_owned();
    // The first line of a PEM file is not a secret, and a text may show its lines separately.
    match value.lines().nth(1).filter(|_| value.starts_with("-----BEGIN")) {
        Some(line) => [line.to_owned(), encoded[60..120].to_owned()],
        None => [value, encoded],
    }
}

/// The environment and the arguments of the programs of a broker that run now.
fn processes(broker: &TestBroker) -> Vec<String> {
    let server = format!("PULSAR_SERVER={}", broker.service_url());
    let folders = fs::read_dir("/proc").unwrap().flatten().map(|folder| folder.path());
    let texts = folders.filter_map(|folder| {
        let environment = fs::read(folder.join("environ")).ok()?;
        let arguments = fs::read(folder.join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&[environment, arguments].concat()).into_owned())
    });
    texts.filter(|text| text.split('\0').any(|variable| variable == server)).collect()
}

/// Asserts that no secret is in a text of the manager, in an object that the API server shows (except Secrets), or in
/// the output or the environment of a consumer. Each consumer in `autoscaled` has KEDA's objects, and an environment
/// with its variable.
fn assert_shows_none_of(
    secrets: &[String],
    env: &TestEnv,
    manager: &Manager,
    broker: &TestBroker,
    autoscaled: &[(&str, &str)],
) {
    let environments = processes(broker);
    for (name, variable) in autoscaled {
        for (kind, object) in [("scaledobject", "pulsarcrd"), ("triggerauthentication", "pulsarcrd-token")] {
            env.wait_for(kind, &format!("{name}-{object}"), "the manager creates it", Value::is_object);
        }
        assert!(environments.iter().any(|one| one.contains(variable)), "{variable}: {environments:?}");
        assert!(output(env, name).contains("Message Received"), "{name} has printed messages");
    }
    let kinds = "events,pods,replicasets,deployments,configmaps,pcon,scaledobjects,triggerauthentications";
    let logs = fs::read_dir(env.kube().log("")).unwrap().flatten().map(|file| file.path());
    let is_of_consumer = |path: &PathBuf| path.to_string_lossy().contains("-deployment-");
    let outputs = logs.filter(is_of_consumer).map(|path| fs::read_to_string(path).unwrap());
    let mut texts = vec![
        ("the manager's log", manager.logged()),
        ("the manager's output", manager.printed()),
        ("the metrics", manager.metrics().unwrap()),
        ("the objects", env.kubectl(&["get", kinds, "-o", "json"]).unwrap()),
    ];
    texts.extend(outputs.map(|text| ("the output of a consumer", text)));
    texts.extend(environments.into_iter().map(|text| ("the environment of a consumer", text)));
    for secret in secrets {
        assert!(secret.len() >= 20, "{secret:?} may be a part of another word");
        for (what, text) in &texts {
            assert!(!text.contains(secret), "{what} contains {secret}");
        }
    }
}

/// The part that all access tokens of the issuer begin with: the header, which names the issuer's key.
fn issued_tokens_begin_with(broker: &TestBroker) -> String {
    let url = broker.token_url();
    let (_, address) = url.split_once("127.0.0.1:").unwrap();
    let (port, path) = address.split_once('/').unwrap();
    let audience = AUDIENCE.replace(':', "%3A");
    let header = || {
        let request = Request {
            method: "POST",
            port: port.parse().unwrap(),
            path: &format!("/{path}"),
            headers: &[("Content-Type", "application/x-www-form-urlencoded")],
            body: &format!(
                "grant_type=client_credentials&client_id={ROLE}&client_secret={CLIENT_SECRET}&audience={audience}"
            ),
            limit: PATIENCE,
        };
        let (code, answer) = http::send(&request).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let token = answer["access_token"].as_str().unwrap_or_else(|| panic!("{code}: {answer}"));
        assert_eq!(token.split('.').count(), 3, "a JWT: {token}");
        token.split('.').next().unwrap().to_owned()
    };
    let (one, another) = (header(), header());
    assert_eq!(one, another);
    one
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn mounts_tokens_and_reports_rejected_ones() {
    let env = TestEnv::alone("pb-tokens");
    env.node("one");
    let broker = TestBroker::up(&env, "tokens", &Options { auth: true, ..Options::new("") });
    let _kubelets = Kubelets::start(&env);
    define_keda(&env);
    let manager = env.manager("pulsarconsumer");
    let good = fs::read_to_string(broker.token_file()).unwrap().trim().to_owned();
    let bad = broker.foreign_token("app");
    for (name, token) in [("good", &good), ("bad", &bad)] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { "token": token } });
        env.apply(&secret).unwrap();
    }
    for name in ["good", "bad", "absent"] {
        let fields =
            json!({ "auth": { "tokenSecret": { "name": name } }, "autoscaling": { "maxReplicas": 3 } });
        let mut consumer = consumer(name, &fields);
        consumer["spec"]["serverAddress"] = json!(broker.service_url());
        consumer["spec"]["adminURL"] = json!(broker.admin_url());
        consumer["spec"]["backlogPollSeconds"] = json!(10);
        env.apply(&consumer).unwrap();
    }
    env.wait_for("pulsarconsumer", "good", "the consumer is available", is_available);
    produce(&broker.service_url(), "t", "hello", 3, &[("PULSAR_TOKEN_FILE", broker.token_file())]);
    env.wait("all messages are printed", || printed(&env, "good", "Message Received: hello") == 3);
    comes_to(&env, "bad", "Available", "ConsumersNotReady");
    comes_to(&env, "absent", "Available", "ConsumersNotReady");
    env.wait("the missing Secret is in an Event of the pod", || {
        describes(&env, "absent", "secret \"absent\" not found")
    });

    // The manager may not read Secrets until the Role allows it.
    comes_to(&env, "good", "BacklogObserved", "SecretForbidden");
    may_read_secrets(&env);
    comes_to(&env, "good", "BacklogObserved", "Observed");
    comes_to(&env, "bad", "BacklogObserved", "AdminRefused");
    comes_to(&env, "absent", "BacklogObserved", "SecretNotFound");
    // The kubelet waits for a missing Secret and mounts it once it exists.
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "absent" },
        "stringData": { "token": good } });
    env.apply(&secret).unwrap();
    env.wait_for("pulsarconsumer", "absent", "the consumer is available", is_available);

    let secrets = ["good", "bad", "absent"].map(|secret| parts(&env, secret, "token")).concat();
    assert!(secrets.contains(&good) && secrets.contains(&bad));
    assert_shows_none_of(&secrets, &env, &manager, &broker, &[("good", "PULSAR_TOKEN_FILE")]);
}

/// The broker takes the role from the certificate, in its own protocol and in the admin API.
#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn authenticates_with_certificates_and_tokens_of_an_issuer() {
    let env = TestEnv::alone("pb-certificates");
    env.node("one");
    let options = Options { auth: true, tls: Some(Lifetime::Year), issuer: true, ..Options::new("") };
    let broker = TestBroker::up(&env, "certificates", &options);
    let _kubelets = Kubelets::start(&env);
    define_keda(&env);
    let manager = env.manager("pulsarconsumer");
    may_read_secrets(&env);
    let [certificate, key] = broker.client_files();
    let text = |file: &PathBuf| fs::read_to_string(file).unwrap();
    let secrets = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "identity" }, "type": "kubernetes.io/tls",
            "stringData": { "tls.crt": text(&certificate), "tls.key": text(&key) } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca" },
            "stringData": { "ca.crt": text(&broker.ca_file()) } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "unusable" },
            "stringData": { "tls.crt": text(&certificate), "tls.key": "no key" } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "client" },
            "stringData": { "client-secret": CLIENT_SECRET, "wrong": "wrong" } },
    ] });
    env.apply(&secrets).unwrap();
    let of = |name: &str, auth: &Value| {
        let fields = json!({ "topic": name, "serverAddress": broker.service_url(), "adminURL": broker.admin_url_tls(),
            "backlogPollSeconds": 10, "tls": { "caSecret": { "name": "ca" } }, "auth": auth,
            "autoscaling": { "maxReplicas": 3 } });
        env.apply(&consumer(name, &fields)).unwrap();
    };
    of("good", &json!({ "tlsSecret": { "name": "identity" } }));
    let oauth2 = |key: &str| {
        json!({ "oauth2": { "tokenURL": broker.token_url(), "clientID": ROLE, "audience": AUDIENCE,
            "clientSecret": { "name": "client", "key": key } } })
    };
    of("issued", &oauth2("client-secret"));
    of("refused", &oauth2("wrong"));
    of("unusable", &json!({ "tlsSecret": { "name": "unusable" } }));
    env.wait_for("pulsarconsumer", "good", "the consumer is available", is_available);
    let files = [
        ("PULSAR_TLS_CA_FILE", broker.ca_file()),
        ("PULSAR_TLS_CERT_FILE", certificate),
        ("PULSAR_TLS_KEY_FILE", key),
    ];
    env.wait_for("pulsarconsumer", "issued", "the consumer is available", is_available);
    for name in ["good", "issued"] {
        produce(&broker.service_url(), name, "hello", 3, &files);
        env.wait("all messages are printed", || printed(&env, name, "Message Received: hello") == 3);
    }
    comes_to(&env, "good", "BacklogObserved", "Observed");
    comes_to(&env, "issued", "BacklogObserved", "Observed");
    comes_to(&env, "refused", "BacklogObserved", "TokenUnavailable");
    comes_to(&env, "unusable", "BacklogObserved", "AdminFailed");
    env.wait("the probe's status code is in an Event of the pod", || {
        describes(&env, "unusable", "statuscode: 525")
    });
    let mut secrets = [parts(&env, "identity", "tls.key"), parts(&env, "client", "client-secret")].concat();
    assert!(secrets.contains(&CLIENT_SECRET.to_owned()));
    secrets.push(issued_tokens_begin_with(&broker));
    let autoscaled = [("good", "PULSAR_TLS_KEY_FILE"), ("issued", "PULSAR_OAUTH2_CLIENT_SECRET_FILE")];
    assert_shows_none_of(&secrets, &env, &manager, &broker, &autoscaled);
}
