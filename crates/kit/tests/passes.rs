//! The controller's loop: a panic, a pass that hangs and a failure concern one object each.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use quintet_kit::clock::Clock;
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::election::Gate;
use quintet_kit::executor::Error;
use quintet_kit::metrics::Metrics;
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::shared::Shared;
use quintet_kit::types::Pod;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Duration, sleep};

/// Counts the passes over each object, and does to some what its name says.
#[derive(Clone, Default)]
struct Odd {
    passes: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Odd {
    fn passes(&self, name: &str) -> u32 {
        self.passes.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

impl Reconciler for Odd {
    type Object = Pod;
    type Status = ();
    type World = ();
    type Effect = std::convert::Infallible;

    fn name(&self) -> &'static str {
        "odd"
    }

    fn resource(&self) -> Resource {
        PODS
    }

    fn status<'a>(&self, _object: &'a Pod) -> Option<&'a ()> {
        None
    }

    async fn observe(&self, object: &Pod, _refusals: Refusals) -> Result<(), Error> {
        let name = object.meta.name.to_string();
        let pass = {
            let mut passes = self.passes.lock().unwrap();
            let pass = passes.entry(name.clone()).or_insert(0);
            *pass += 1;
            *pass
        };
        match (name.as_str(), pass) {
            ("panics", 1) => panic!("on purpose"),
            ("hangs", 1) => std::future::pending().await,
            ("fails", 1..=3) => Err(Error::Effect("on purpose".into())),
            _ => Ok(()),
        }
    }

    fn plan(&self, _object: &Pod, (): &(), _now: Timestamp) -> Plan<()> {
        Plan::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_with_one_object_stops_no_other() {
    let mut list = String::new();
    for name in ["panics", "hangs", "fails", "good"] {
        let pod =
            json!({ "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": "1" } });
        list.push_str(&json!({ "type": "ADDED", "object": pod }).to_string());
        list.push('\n');
    }
    let end = json!({ "metadata": { "resourceVersion": "5", "annotations": { "k8s.io/initial-events-end": "true" } } });
    list.push_str(&json!({ "type": "BOOKMARK", "object": end }).to_string());
    list.push('\n');
    let list = Arc::new(Mutex::new(Some(list)));
    let service = tower::service_fn(move |_request: Request<Body>| {
        let answer = list.lock().unwrap().take();
        async move {
            match answer {
                Some(body) => Response::builder().body(Body::from(body.into_bytes())),
                None => std::future::pending().await,
            }
        }
    });
    let metrics = Metrics::new().unwrap();
    let (stop, stopped) = watch::channel(false);
    let shared = Shared::new(
        Client::new(service, "n"),
        Gate::open(),
        metrics.clone(),
        Clock::System,
        "test".into(),
        String::new(),
        stopped,
    );
    let odd = Odd::default();
    let objects = shared.informer::<Pod>("pods", PODS, None);
    let controller = Controller::new(&shared, odd.clone(), objects.clone(), []);
    for (_, task) in shared.take_tasks() {
        tokio::spawn(task);
    }
    let running = tokio::spawn(controller.run());

    sleep(Duration::from_secs(20)).await;
    assert_eq!((odd.passes("good"), odd.passes("panics"), odd.passes("fails")), (1, 2, 4));
    assert_eq!(odd.passes("hangs"), 1);
    sleep(Duration::from_mins(6)).await;
    assert_eq!(odd.passes("hangs"), 2, "cut off by the time limit and repeated");
    assert_eq!(
        (odd.passes("good"), odd.passes("panics"), odd.passes("fails")),
        (1, 2, 4),
        "nobody else is disturbed"
    );
    let text = metrics.text().unwrap();
    for line in [
        "controller_runtime_reconcile_panics_total{controller=\"odd\"} 1",
        "controller_runtime_reconcile_timeouts_total{controller=\"odd\"} 1",
        "controller_runtime_reconcile_errors_total{controller=\"odd\"} 5",
        "workqueue_depth{controller=\"odd\",name=\"odd\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    stop.send(true).unwrap();
    running.await.unwrap();
    assert!(objects.all().iter().all(|pod| !pod.terminating()));
}
