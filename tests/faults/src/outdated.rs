//! Two managers without leader election, on simulated time. One of them gets its events of PulsarConsumers late, and must
//! not take back what the other has written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quintet_fake_apiserver::types::Type;
use quintet_fake_apiserver::{Asked, Fate, Script, Server, Showing, Shown};
use quintet_pulsarconsumer::{Image, Settings};
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::server::client::{self, LONGEST_REST};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::run::types;
use crate::scenarios::{CONSUMERS, WHO};

/// The manager that gets events late.
const OUTDATED: &str = "outdated";
/// The delay of an event.
const LATE: Duration = Duration::from_secs(10);
/// How long the test observes the managers before the first late event arrives.
const MEANWHILE: Duration = Duration::from_secs(5);
/// The time in which the managers settle.
const SETTLED: Duration = Duration::from_secs(30);

/// Delays events, and records the requests of the outdated manager meanwhile.
#[derive(Default)]
struct Lag {
    is_on: AtomicBool,
    asked: Mutex<Vec<Asked>>,
}

impl Lag {
    fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn concerns(&self, who: &str) -> bool {
        who == OUTDATED && self.is_on.load(Ordering::Relaxed)
    }
}

impl Script for Lag {
    fn request(&self, asked: &Asked) -> Fate {
        if self.concerns(&asked.who) {
            self.asked.lock().unwrap().push(asked.clone());
        }
        Fate::default()
    }

    fn line(&self, shown: &Shown<'_>) -> Showing {
        let is_late = self.concerns(shown.who) && shown.resource.starts_with("pulsarconsumers.");
        if is_late { Showing::Later(LATE) } else { Showing::AsIs }
    }
}

/// A type of KEDA, whose schema accepts each spec.
fn keda(kind: &str, plural: &str) -> Type {
    Type {
        group: "keda.sh".to_owned(),
        version: "v1alpha1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        namespaced: true,
        has_status: true,
        has_generation: true,
        schema: Some(json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })),
    }
}

/// A server with this script and one PulsarConsumer.
fn server(lag: &Arc<Lag>, more: &Value) -> Server {
    let server = Server::new(1);
    for kind in types() {
        server.add(kind.clone());
    }
    server.add(Arc::new(keda("ScaledObject", "scaledobjects")));
    server.add(Arc::new(keda("TriggerAuthentication", "triggerauthentications")));
    server.follow(lag.clone());
    let mut spec = json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s" });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let (code, answer) = server.create(WHO, CONSUMERS, &json!({ "metadata": { "name": "c" }, "spec": spec }));
    assert_eq!(code, 201, "{answer}");
    server
}

/// Starts a manager. Dropping the result kills it.
fn start(server: &Server, who: &str) -> (JoinSet<()>, watch::Sender<bool>) {
    let metrics = Metrics::new().unwrap();
    let (stop, stopped) = watch::channel(false);
    let context = Context::new(ContextConfig {
        client: client::over(server.connect(who), &metrics, LONGEST_REST),
        link: Link::default(),
        gate: Gate::open(),
        metrics,
        clock: Clock::tokio(server.now()),
        instance: who.to_owned(),
        namespaces: Vec::new(),
        stop: stopped,
    });
    let image = Image { name: "consumer".to_owned(), ..Image::default() };
    quintet_pulsarconsumer::register(&context, Settings { image, ..Settings::default() }).unwrap();
    let mut tasks = JoinSet::new();
    for (_, task) in context.take_tasks().into_iter().chain(context.take_controllers()) {
        tasks.spawn(task);
    }
    (tasks, stop)
}

/// The labels and specs of the applied objects.
fn applied(server: &Server) -> Vec<Value> {
    let objects = ["deployments.apps", "scaledobjects.keda.sh"].map(|plural| server.objects(plural));
    let parts = |object: &Arc<Value>| json!([object["metadata"]["labels"], object["spec"]]);
    objects.iter().flatten().map(parts).collect()
}

/// The other manager's write arrives before the change of the PulsarConsumer. The outdated manager reads the PulsarConsumer
/// and waits for its cache.
#[tokio::test(start_paused = true)]
async fn never_takes_back_the_writes_of_a_newer_version() {
    let none = json!({});
    let scales = json!({ "autoscaling": { "maxReplicas": 5, "partitioned": false } });
    for (what, spec, change) in [
        ("replicas", &none, json!({ "spec": { "replicas": 3 } })),
        ("a label", &none, json!({ "metadata": { "labels": { "team": "a" } } })),
        ("another limit", &scales, json!({ "spec": { "autoscaling": { "maxReplicas": 9 } } })),
        ("new autoscaling", &none, json!({ "spec": scales })),
        ("no more autoscaling", &scales, json!({ "spec": { "autoscaling": null } })),
    ] {
        let lag = Arc::new(Lag::default());
        let server = server(&lag, spec);
        let _managers = ["current", OUTDATED].map(|who| start(&server, who));
        sleep(SETTLED).await;
        let before = applied(&server);
        lag.set(true);
        let (code, answer) = server.merge(WHO, &format!("{CONSUMERS}/c"), &change);
        assert_eq!(code, 200, "{what}: {answer}");
        sleep(MEANWHILE).await;
        let after = applied(&server);
        assert_ne!(before, after, "{what}: the other manager applies it");
        let asked = lag.asked.lock().unwrap().split_off(0);
        let writes: Vec<_> = asked.iter().filter(|asked| asked.is_write()).collect();
        assert!(writes.is_empty(), "{what}: {writes:?}");
        let is_read = |asked: &Asked| asked.verb == "get" && asked.resource.starts_with("pulsarconsumers.");
        assert!(asked.iter().any(is_read), "{what}: {asked:?}");
        lag.set(false);
        sleep(LATE + SETTLED).await;
        assert_eq!(applied(&server), after, "{what}: with the late events");
    }
}
