//! The scenarios: what users and nodes do to a cluster with managers. Plans name them; do not rename one.

use std::sync::LazyLock;
use std::time::Duration;

use quintet_fake_apiserver::Server;
use quintet_fake_apiserver::models::Life;
use quintet_fake_apiserver::store::State;
use serde_json::{Value, json};

use crate::end;
use crate::process::Kind;

pub const PODSETS: &str = "/apis/batch.tutorial.kubebuilder.io/v1/namespaces/default/podsets";
pub const DAEMONJOBS: &str = "/apis/dj.dysproz.io/v1/namespaces/default/daemonjobs";
pub const GREETINGS: &str = "/apis/example.com/v1/namespaces/default/greetings";
pub const BOOKS: &str = "/apis/christianb93.github.com/v1/namespaces/default/books";
pub const CONSUMERS: &str = "/apis/pulsar.pulsarconsumer.krvarma.com/v1/namespaces/default/pulsarconsumers";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The client that makes the changes.
pub const WHO: &str = "person";

/// When a step happens.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Before the first manager starts. Such steps come first.
    Before,
    /// Once no write has happened for some time.
    Settled,
    /// This long after the previous step, even if managers still write.
    After(Duration),
    /// Once a pod runs on this node.
    RunningOn(&'static str),
    /// Once a pod on this node has succeeded.
    DoneOn(&'static str),
}

/// When a step happens, and what it does.
pub type Step = (When, fn(&Server));

/// A sequence of steps with a name.
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// The kinds that the managers serve.
    pub kinds: &'static [Kind],
    /// The steps.
    pub steps: &'static [Step],
}

/// A step of a generated sequence.
pub type Made<'a> = (When, Box<dyn Fn(&Server) + 'a>);

/// The input of a run: a scenario or a generated sequence.
pub struct Story<'a> {
    /// The kinds that the managers serve.
    pub kinds: &'static [Kind],
    /// The steps.
    pub steps: Vec<Made<'a>>,
    /// The part of the end to compare.
    pub end: fn(&State) -> Vec<String>,
}

impl Scenario {
    /// The scenario in the form that a run plays.
    pub fn story(&self) -> Story<'static> {
        let step = |(when, step): &Step| -> Made<'static> { (*when, Box::new(*step)) };
        Story { kinds: self.kinds, steps: self.steps.iter().map(step).collect(), end: end::state }
    }
}

const fn at_once() -> When {
    When::After(Duration::from_millis(50))
}

const SETTLED: When = When::Settled;

const fn after(milliseconds: u64) -> When {
    When::After(Duration::from_millis(milliseconds))
}

/// All scenarios.
pub static ALL: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
    let all: [(&'static [Kind], &'static [Named]); 5] = [
        (&[Kind::PodSet], PODSET_SCENARIOS),
        (&[Kind::DaemonJob], DAEMONJOB_SCENARIOS),
        (&[Kind::Greeting], GREETING_SCENARIOS),
        (&[Kind::PulsarConsumer], CONSUMER_SCENARIOS),
        (&[Kind::Book], BOOK_SCENARIOS),
    ];
    let scenario = |kinds| move |&(name, steps): &Named| Scenario { name, kinds, steps };
    all.into_iter().flat_map(|(kinds, named)| named.iter().map(scenario(kinds))).collect()
});

/// A scenario's name and steps.
type Named = (&'static str, &'static [Step]);

const PODSET_SCENARIOS: &[Named] = &[
    ("podset-create", &[(at_once(), |server| begin_with_podset(server, &json!({ "replicas": 3 })))]),
    (
        "podset-scale",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 4 } }))),
            (SETTLED, |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 1 } }))),
        ],
    ),
    (
        "podset-scale-back",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 3 }))),
            (SETTLED, |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 1 } }))),
            // Pods get their names again between the repeated deletion (20 s) and the late one (25 s).
            (after(22_000), |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 3 } }))),
        ],
    ),
    (
        "podset-scale-hastily",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 1 }))),
            (after(40), |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 4 } }))),
            (after(110), |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 2 } }))),
        ],
    ),
    (
        "podset-template",
        &[
            (at_once(), |server| {
                begin_with_podset(
                    server,
                    &json!({ "replicas": 3, "template": template("one"),
                    "updateStrategy": { "maxUnavailable": 1, "maxSurge": 1 } }),
                );
            }),
            (SETTLED, |server| {
                change(server, PODSETS, "s", &json!({ "spec": { "template": template("two") } }));
            }),
        ],
    ),
    (
        "podset-canary",
        &[
            (at_once(), |server| {
                begin_with_podset(
                    server,
                    &json!({ "replicas": 3, "template": template("one"), "updateStrategy": { "partition": 2 } }),
                );
            }),
            (SETTLED, |server| {
                change(server, PODSETS, "s", &json!({ "spec": { "template": template("two") } }));
            }),
            (SETTLED, remove_a_pod),
            (SETTLED, remove_a_pod),
            (SETTLED, |server| {
                change(server, PODSETS, "s", &json!({ "spec": { "template": template("one") } }));
            }),
        ],
    ),
    (
        "podset-pod-lost",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| {
                // Evicted: the pod has ended and still exists.
                if let Some(name) = a_pod(server) {
                    server.merge(
                        "models",
                        &format!("{PODS}/{name}/status"),
                        &json!({ "status": { "phase": "Failed", "reason": "Evicted" } }),
                    );
                }
            }),
            (SETTLED, remove_a_pod),
        ],
    ),
    (
        "podset-node-lost",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| remove(server, NODES, "n1")),
        ],
    ),
    (
        "podset-label-lost",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| {
                if let Some(name) = a_pod(server) {
                    change(
                        server,
                        PODS,
                        &name,
                        &json!({ "metadata": { "labels": { "quintet.dev/kind": null } } }),
                    );
                }
            }),
        ],
    ),
    (
        "podset-delete",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 3 }))),
            (after(300), |server| remove(server, PODSETS, "s")),
        ],
    ),
    (
        "podset-again",
        &[
            (at_once(), |server| begin_with_podset(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| {
                remove(server, PODSETS, "s");
                podset(server, &json!({ "replicas": 1 }));
            }),
        ],
    ),
    (
        "podset-label-lost-before",
        &[
            (When::Before, |server| {
                begin_with_podset(server, &json!({ "replicas": 2 }));
                unlabelled_pods(server);
            }),
            (SETTLED, |server| change(server, PODSETS, "s", &json!({ "spec": { "replicas": 3 } }))),
        ],
    ),
    // Two PodSets adopt the same pods. There are more pods, so that another pod replaces a rejected one.
    (
        "podset-adopt",
        &[
            (When::Before, |server| {
                two_nodes(server);
                orphans(server, &json!({ "app": "s" }), 6);
                pods_to_leave(server);
            }),
            (at_once(), |server| {
                podset(server, &adopting(1));
                server.create(WHO, PODSETS, &json!({ "metadata": { "name": "t" }, "spec": adopting(1) }));
            }),
        ],
    ),
    // One pod is missing at first, and one is superfluous after `kubectl delete --cascade=orphan`.
    (
        "podset-adopt-again",
        &[
            (When::Before, |server| {
                two_nodes(server);
                orphans(server, &json!({ "app": "s" }), 2);
            }),
            (at_once(), |server| podset(server, &adopting(3))),
            (SETTLED, |server| orphan(server, PODSETS, "s")),
            (SETTLED, |server| podset(server, &adopting(2))),
        ],
    ),
];

const DAEMONJOB_SCENARIOS: &[Named] = &[
    (
        "daemonjob-create",
        &[(at_once(), |server| {
            begin_with_daemonjob(server, &json!({ "template": template("done") }));
        })],
    ),
    (
        "daemonjob-template",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("done") }))),
            (SETTLED, |server| {
                change(server, DAEMONJOBS, "d", &json!({ "spec": { "template": template("done-too") } }));
            }),
        ],
    ),
    (
        "daemonjob-template-hastily",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("done") }))),
            (after(700), |server| {
                change(server, DAEMONJOBS, "d", &json!({ "spec": { "template": template("done-too") } }));
            }),
        ],
    ),
    (
        "daemonjob-nodes",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("done") }))),
            (SETTLED, |server| node(server, "n3")),
            (SETTLED, |server| remove(server, NODES, "n1")),
            (SETTLED, |server| node(server, "n1")),
        ],
    ),
    (
        "daemonjob-node-lost",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("slow") }))),
            (When::RunningOn("n1"), |server| remove(server, NODES, "n1")),
        ],
    ),
    (
        "daemonjob-node-tainted",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("slow") }))),
            (When::RunningOn("n1"), |server| {
                change(
                    server,
                    NODES,
                    "n1",
                    &json!({ "spec": { "taints": [{ "key": "no", "effect": "NoExecute" }] } }),
                );
            }),
            (SETTLED, |server| change(server, NODES, "n1", &json!({ "spec": { "taints": null } }))),
        ],
    ),
    (
        "daemonjob-brake",
        &[
            (at_once(), |server| begin_with_pausing_daemonjob(server, "fail-on-n1")),
            // The other node gets no pod, even if the failed node changes.
            (SETTLED, |server| {
                ready(server, "n1", false);
                change(server, NODES, "n2", &json!({ "metadata": { "labels": { "go": "yes" } } }));
            }),
            (SETTLED, |server| {
                let taints = json!([{ "key": "no", "effect": "NoSchedule" }]);
                change(server, NODES, "n1", &json!({ "spec": { "taints": taints } }));
                ready(server, "n1", true);
            }),
            (SETTLED, |server| change(server, NODES, "n1", &json!({ "spec": { "taints": null } }))),
        ],
    ),
    (
        "daemonjob-brake-and-retry",
        &[
            (at_once(), |server| begin_with_pausing_daemonjob(server, "fail-first")),
            // The node that failed once waits for its retry and holds the only slot.
            (after(7_000), |server| {
                change(server, NODES, "n2", &json!({ "metadata": { "labels": { "go": "yes" } } }));
            }),
        ],
    ),
    (
        "daemonjob-waves",
        &[
            (at_once(), |server| {
                two_nodes(server);
                node(server, "n3");
                let rollout = json!({ "waveSizes": [1, 2], "approval": "FirstWave", "settleSeconds": 4 });
                let spec = json!({ "template": template("done"), "rollout": rollout,
                    "failurePolicy": { "type": "Pause" } });
                daemonjob(server, &spec);
            }),
            // The first wave waits for its approval. The second one is paused while it works.
            (SETTLED, approve),
            (after(1_000), |server| pause(server, Some("incident"))),
            (SETTLED, |server| pause(server, None)),
        ],
    ),
    (
        "daemonjob-marks",
        &[
            (at_once(), |server| {
                raw_node(server, "n1");
                raw_node(server, "n2");
                let on_success = json!({ "labels": { "example.com/ready": "yes" },
                    "removeTaints": [{ "key": "example.com/raw", "effect": "NoSchedule" }] });
                let rollout = json!({ "settleSeconds": 4 });
                let template = preparing("done");
                daemonjob(
                    server,
                    &json!({ "template": template, "onSuccess": on_success, "rollout": rollout }),
                );
            }),
            // The next success reverts this change of an administrator.
            (SETTLED, |server| {
                change(
                    server,
                    NODES,
                    "n2",
                    &json!({ "metadata": { "labels": { "example.com/ready": null } } }),
                );
            }),
            (SETTLED, |server| {
                change(server, DAEMONJOBS, "d", &json!({ "spec": { "template": preparing("done-too") } }));
            }),
            // No success follows a quarantine, although the manager reconciles for another node.
            (SETTLED, |server| {
                let taints = json!([{ "key": "example.com/raw", "effect": "NoSchedule" }]);
                let labels = json!({ "example.com/ready": null });
                change(
                    server,
                    NODES,
                    "n1",
                    &json!({ "metadata": { "labels": labels }, "spec": { "taints": taints } }),
                );
            }),
            (SETTLED, |server| raw_node(server, "n3")),
        ],
    ),
    (
        "daemonjob-failed-node-tainted",
        &[
            (at_once(), |server| {
                let spec = json!({ "template": template("fail-on-n1"), "backoffLimit": 0 });
                begin_with_daemonjob(server, &spec);
            }),
            (SETTLED, |server| {
                let taints = json!([{ "key": "no", "effect": "NoSchedule" }]);
                change(server, NODES, "n1", &json!({ "spec": { "taints": taints } }));
            }),
        ],
    ),
    (
        "daemonjob-node-deleted",
        &[
            (at_once(), |server| begin_with_pausing_daemonjob(server, "slow")),
            (When::RunningOn("n1"), |server| remove(server, NODES, "n1")),
            (SETTLED, |server| {
                change(server, NODES, "n2", &json!({ "metadata": { "labels": { "go": "yes" } } }));
            }),
            // A new machine of that name does not resume the rollout.
            (SETTLED, |server| {
                node(server, "n1");
                change(server, NODES, "n1", &json!({ "metadata": { "labels": { "go": "yes" } } }));
            }),
        ],
    ),
    (
        "daemonjob-node-not-ready",
        &[
            (at_once(), |server| {
                begin_with_policy(server, "slow", &json!({ "type": "Pause", "nodeLostAfterSeconds": 20 }));
            }),
            // The kubelet stops while its pod runs. Then the node is lost and the run pauses.
            (When::RunningOn("n1"), |server| kubelet_stops(server, "n1")),
            (SETTLED, |server| select(server, "n2")),
            (SETTLED, |server| kubelet_starts(server, "n1")),
        ],
    ),
    (
        "daemonjob-node-rebooted",
        &[
            (at_once(), |server| {
                begin_with_daemonjob(server, &json!({ "template": template("slow"), "parallelism": 1 }));
            }),
            (When::RunningOn("n1"), |server| {
                cordon(server, "n1", true);
                end_pod_on(server, "n1", true);
            }),
            (after(100), |server| kubelet_stops(server, "n1")),
            (after(20_000), |server| {
                boot(server, "n1", "boot-again");
                kubelet_starts(server, "n1");
            }),
            (SETTLED, |server| cordon(server, "n1", false)),
        ],
    ),
    (
        "daemonjob-node-shut-down",
        &[
            (at_once(), |server| {
                let spec = json!({ "template": template("slow"), "parallelism": 1, "failurePolicy": { "type": "Pause" } });
                begin_with_daemonjob(server, &spec);
            }),
            // The kubelet of a node that shuts down first reports not Ready, then ends its pods.
            (When::RunningOn("n1"), |server| {
                cordon(server, "n1", true);
                kubelet_stops(server, "n1");
            }),
            (after(100), |server| end_pod_on(server, "n1", true)),
            // The node holds the only slot until it is Ready.
            (SETTLED, |server| {
                boot(server, "n1", "boot-again");
                kubelet_starts(server, "n1");
            }),
            (SETTLED, |server| cordon(server, "n1", false)),
        ],
    ),
    (
        "daemonjob-failed-node-deselected",
        &[
            (at_once(), |server| begin_with_pausing_daemonjob(server, "fail-on-n1")),
            (SETTLED, |server| {
                change(server, NODES, "n1", &json!({ "metadata": { "labels": { "go": null } } }));
                select(server, "n2");
            }),
            (SETTLED, |server| select(server, "n1")),
        ],
    ),
    (
        "daemonjob-failed-node-evicted",
        &[
            (at_once(), |server| {
                node(server, "n1");
                unready_node(server, "n2");
                let spec = json!({ "template": template("fail-on-n1"), "backoffLimit": 0,
                    "unhealthyNodes": { "policy": "Wait" }, "failurePolicy": { "type": "Pause" } });
                daemonjob(server, &spec);
            }),
            // The run waits for n2. The taint controller sets DisruptionTarget on the failed pod.
            (SETTLED, |server| {
                let taints = json!([{ "key": "no", "effect": "NoExecute" }]);
                change(server, NODES, "n1", &json!({ "spec": { "taints": taints } }));
            }),
            (SETTLED, |server| ready(server, "n2", true)),
            (SETTLED, |server| change(server, NODES, "n1", &json!({ "spec": { "taints": null } }))),
        ],
    ),
    (
        "daemonjob-failed-node-not-ready",
        &[
            (at_once(), |server| {
                let policy = json!({ "type": "Continue", "maxFailedNodes": 1 });
                let spec = json!({ "template": template("slow-on-n2"), "parallelism": 2, "backoffLimit": 0,
                    "failurePolicy": policy });
                begin_with_daemonjob(server, &spec);
            }),
            // The pod fails while the node is not Ready. The failure is tolerated; the node keeps its slot.
            (When::RunningOn("n2"), |server| kubelet_stops(server, "n2")),
            (after(100), |server| end_pod_on(server, "n2", false)),
            (SETTLED, |server| kubelet_starts(server, "n2")),
        ],
    ),
    (
        "daemonjob-fleet-unhealthy",
        &[
            (at_once(), |server| {
                two_nodes(server);
                node(server, "n3");
                tainted_node(server, "n4");
                let policy = json!({ "type": "Pause", "nodeLostAfterSeconds": 20 });
                daemonjob(server, &json!({ "template": template("slow"), "failurePolicy": policy }));
            }),
            // Three pods run. The outage exceeds `nodeLostAfterSeconds`, and a fourth node could get a pod.
            (after(4_500), |server| {
                for name in ["n1", "n2", "n3"] {
                    kubelet_stops(server, name);
                }
            }),
            (after(15_000), |server| change(server, NODES, "n4", &json!({ "spec": { "taints": null } }))),
            (after(45_000), |server| {
                for name in ["n1", "n2", "n3"] {
                    kubelet_starts(server, name);
                }
            }),
        ],
    ),
    (
        "daemonjob-retry",
        &[(at_once(), |server| {
            begin_with_daemonjob(server, &json!({ "template": template("fail-first") }));
        })],
    ),
    (
        "daemonjob-failure",
        &[(at_once(), |server| {
            begin_with_daemonjob(
                server,
                &json!({ "template": template("fail-on-n1"), "backoffLimit": 1,
                "failurePolicy": { "type": "FailFast" } }),
            );
        })],
    ),
    (
        "daemonjob-ttl",
        &[(at_once(), |server| {
            begin_with_daemonjob(
                server,
                &json!({ "template": template("done"), "ttlSecondsAfterFinished": 5 }),
            );
        })],
    ),
    (
        "daemonjob-pod-deleted",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("slow") }))),
            (When::RunningOn("n1"), remove_a_pod),
            (SETTLED, |server| {
                // A node that is done and recorded does not run again.
                remove_a_pod(server);
            }),
        ],
    ),
    (
        "daemonjob-done-deleted",
        &[
            (at_once(), |server| {
                begin_with_daemonjob(server, &json!({ "template": template("slow-on-n2") }));
            }),
            (When::DoneOn("n1"), |server| {
                // The pod has succeeded, but the ledger may not have the outcome yet.
                remove_a_pod(server);
            }),
        ],
    ),
    (
        "daemonjob-suspend",
        &[
            (at_once(), |server| {
                begin_with_daemonjob(server, &json!({ "template": template("slow"), "parallelism": 1 }));
            }),
            (When::RunningOn("n1"), |server| {
                change(server, DAEMONJOBS, "d", &json!({ "spec": { "suspend": true } }));
            }),
            (SETTLED, |server| change(server, DAEMONJOBS, "d", &json!({ "spec": { "suspend": false } }))),
        ],
    ),
    (
        "daemonjob-again",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("slow") }))),
            (When::RunningOn("n1"), |server| {
                remove(server, DAEMONJOBS, "d");
                daemonjob(server, &json!({ "template": template("slow") }));
            }),
        ],
    ),
    (
        "daemonjob-delete",
        &[
            (at_once(), |server| begin_with_daemonjob(server, &json!({ "template": template("slow") }))),
            (When::RunningOn("n1"), |server| remove(server, DAEMONJOBS, "d")),
        ],
    ),
];

const GREETING_SCENARIOS: &[Named] = &[
    (
        "greeting-life",
        &[
            (at_once(), |server| greeting(server, "one")),
            (SETTLED, |server| change(server, GREETINGS, "g", &json!({ "spec": { "message": "two" } }))),
            (SETTLED, |server| remove(server, GREETINGS, "g")),
        ],
    ),
    (
        "greeting-hastily",
        &[
            (at_once(), |server| greeting(server, "one")),
            (after(15), |server| change(server, GREETINGS, "g", &json!({ "spec": { "message": "two" } }))),
            (after(2_000), |server| {
                change(server, GREETINGS, "g", &json!({ "spec": { "message": "three" } }));
            }),
            (after(30), |server| remove(server, GREETINGS, "g")),
        ],
    ),
    (
        "greeting-again",
        &[
            (at_once(), |server| greeting(server, "one")),
            (SETTLED, |server| remove(server, GREETINGS, "g")),
            (SETTLED, |server| greeting(server, "two")),
        ],
    ),
    (
        "greeting-many",
        &[
            (at_once(), |server| {
                for name in ["g1", "g2", "g3"] {
                    let message = json!({ "message": format!("from {name}") });
                    server.create(WHO, GREETINGS, &json!({ "metadata": { "name": name }, "spec": message }));
                }
            }),
            (SETTLED, |server| {
                remove(server, GREETINGS, "g1");
                change(server, GREETINGS, "g2", &json!({ "spec": { "message": "changed" } }));
            }),
        ],
    ),
    (
        "greeting-finalizer-lost",
        &[
            (at_once(), |server| greeting(server, "one")),
            (SETTLED, |server| {
                change(server, GREETINGS, "g", &json!({ "metadata": { "finalizers": null } }));
            }),
            (SETTLED, |server| remove(server, GREETINGS, "g")),
        ],
    ),
    (
        "greeting-interval",
        &[
            (at_once(), |server| greeting(server, "one")),
            (SETTLED, |server| change(server, GREETINGS, "g", &json!({ "spec": { "intervalSeconds": 3 } }))),
        ],
    ),
];

const CONSUMER_SCENARIOS: &[Named] = &[
    (
        "consumer-name-taken",
        &[
            (at_once(), |server| {
                let labels = json!({ "app": "theirs" });
                server.create(WHO, DEPLOYMENTS, &json!({ "metadata": { "name": "c-deployment", "labels": { "stranger": "yes" } },
                    "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
                        "spec": { "containers": [{ "name": "a", "image": "b" }] } } } }));
                consumer(server, &json!({}));
            }),
            (SETTLED, |server| remove(server, DEPLOYMENTS, "c-deployment")),
        ],
    ),
    (
        "consumer-two",
        &[
            (at_once(), |server| {
                consumer(server, &json!({}));
                let spec =
                    json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s" });
                server.create(WHO, CONSUMERS, &json!({ "metadata": { "name": "e" }, "spec": spec }));
            }),
            (SETTLED, |server| {
                remove(server, CONSUMERS, "e");
                change(server, CONSUMERS, "c", &json!({ "spec": { "subscriptionName": "other" } }));
            }),
        ],
    ),
    (
        "consumer-again",
        &[
            (at_once(), |server| consumer(server, &json!({}))),
            (SETTLED, |server| {
                remove(server, CONSUMERS, "c");
                consumer(server, &json!({ "replicas": 2 }));
            }),
        ],
    ),
    (
        "consumer-life",
        &[
            (at_once(), |server| consumer(server, &json!({}))),
            (SETTLED, |server| change(server, CONSUMERS, "c", &json!({ "spec": { "replicas": 3 } }))),
            (SETTLED, |server| change(server, CONSUMERS, "c", &json!({ "spec": { "topic": "other" } }))),
        ],
    ),
    (
        "consumer-drift",
        &[
            (at_once(), |server| consumer(server, &json!({ "replicas": 2 }))),
            (SETTLED, |server| {
                change(server, DEPLOYMENTS, "c-deployment", &json!({ "spec": { "replicas": 9 } }));
            }),
            (SETTLED, |server| remove(server, DEPLOYMENTS, "c-deployment")),
        ],
    ),
    (
        "consumer-delete",
        &[
            (at_once(), |server| consumer(server, &json!({}))),
            (after(400), |server| remove(server, CONSUMERS, "c")),
        ],
    ),
    // Without the Secret, the subscription stays, and no request leaves the process.
    (
        "consumer-cleanup",
        &[
            (at_once(), |server| consumer(server, &with_cleanup())),
            (SETTLED, |server| remove(server, CONSUMERS, "c")),
        ],
    ),
    (
        "consumer-cleanup-ended",
        &[
            (at_once(), |server| consumer(server, &with_cleanup())),
            (after(400), |server| remove(server, CONSUMERS, "c")),
            (after(1_000), |server| {
                change(server, CONSUMERS, "c", &json!({ "spec": { "subscription": { "cleanup": "Keep" } } }));
            }),
        ],
    ),
];

const BOOK_SCENARIOS: &[Named] = &[
    (
        "book-status-changed",
        &[
            (at_once(), |server| {
                server.create(
                    WHO,
                    BOOKS,
                    &json!({ "metadata": { "name": "b" }, "spec": { "author": "A", "title": "T" } }),
                );
            }),
            (SETTLED, |server| {
                server.merge(WHO, &format!("{BOOKS}/b/status"), &json!({ "status": null }));
            }),
        ],
    ),
    (
        "book-again",
        &[
            (at_once(), |server| {
                for name in ["a", "b"] {
                    server.create(
                        WHO,
                        BOOKS,
                        &json!({ "metadata": { "name": name }, "spec": { "author": "A", "title": "T" } }),
                    );
                }
            }),
            (SETTLED, |server| {
                remove(server, BOOKS, "b");
                server.create(
                    WHO,
                    BOOKS,
                    &json!({ "metadata": { "name": "b" }, "spec": { "author": "C", "title": "U" } }),
                );
            }),
        ],
    ),
    (
        "book-life",
        &[
            (at_once(), |server| {
                server.create(
                    WHO,
                    BOOKS,
                    &json!({ "metadata": { "name": "b" }, "spec": { "author": "A", "title": "T" } }),
                );
            }),
            (SETTLED, |server| change(server, BOOKS, "b", &json!({ "spec": { "title": "U" } }))),
            (SETTLED, |server| remove(server, BOOKS, "b")),
        ],
    ),
];

/// The image's name selects what a pod does.
pub fn lives(pod: &Value) -> Life {
    let image = pod.pointer("/spec/containers/0/image").and_then(Value::as_str).unwrap_or_default();
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    let number =
        pod.pointer("/metadata/labels/dj.dysproz.io~1pod-number").and_then(Value::as_str).unwrap_or_default();
    let soon = Duration::from_millis(1_500);
    match image {
        "stuck" => Life::NeverStarts,
        "never-ready" => Life::NeverReady,
        "slow" => Life::Succeeds(Duration::from_secs(8)),
        "slow-on-n2" if node == "n2" => Life::Succeeds(Duration::from_secs(8)),
        "fail-first" if number == "1" => Life::Fails(soon, 1),
        "fail-on-n1" if node == "n1" => Life::Fails(soon, 3),
        "done" | "done-too" | "fail-first" | "fail-on-n1" | "slow-on-n2" => Life::Succeeds(soon),
        _ => Life::Runs,
    }
}

pub fn template(image: &str) -> Value {
    json!({ "spec": { "restartPolicy": if image == "one" || image == "two" { "Always" } else { "Never" },
        "containers": [{ "name": "main", "image": image }] } })
}

pub fn node(server: &Server, name: &str) {
    server.create(WHO, NODES, &ready_node(name));
}

fn tainted_node(server: &Server, name: &str) {
    let mut node = ready_node(name);
    node["spec"]["taints"] = json!([{ "key": "no", "effect": "NoSchedule" }]);
    server.create(WHO, NODES, &node);
}

/// A node that registers with a taint. Another taint comes first.
fn raw_node(server: &Server, name: &str) {
    let mut node = ready_node(name);
    let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
    node["spec"]["taints"] =
        json!([taint("other", "PreferNoSchedule"), taint("example.com/raw", "NoSchedule")]);
    server.create(WHO, NODES, &node);
}

/// A template that tolerates the taint of [`raw_node`].
fn preparing(image: &str) -> Value {
    let mut template = template(image);
    template["spec"]["tolerations"] = json!([{ "key": "example.com/raw", "operator": "Exists" }]);
    template
}

fn unready_node(server: &Server, name: &str) {
    let mut node = ready_node(name);
    node["status"]["conditions"] = json!([{ "type": "Ready", "status": "False" }]);
    let taints = ["NoSchedule", "NoExecute"]
        .map(|effect| json!({ "key": "node.kubernetes.io/not-ready", "effect": effect }));
    node["spec"]["taints"] = json!(taints);
    server.create(WHO, NODES, &node);
}

fn ready_node(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }], "nodeInfo": { "bootID": format!("boot-{name}") } } })
}

pub fn two_nodes(server: &Server) {
    node(server, "n1");
    node(server, "n2");
}

fn begin_with_podset(server: &Server, spec: &Value) {
    two_nodes(server);
    podset(server, spec);
}

fn begin_with_daemonjob(server: &Server, spec: &Value) {
    two_nodes(server);
    daemonjob(server, spec);
}

/// One pod at a time, and none after a failed node. At first, only n1 is selected.
fn begin_with_pausing_daemonjob(server: &Server, image: &str) {
    begin_with_policy(server, image, &json!({ "type": "Pause" }));
}

/// One pod at a time, with this failure policy. At first, only n1 is selected.
fn begin_with_policy(server: &Server, image: &str, failure_policy: &Value) {
    two_nodes(server);
    change(server, NODES, "n1", &json!({ "metadata": { "labels": { "go": "yes" } } }));
    let mut template = template(image);
    template["spec"]["nodeSelector"] = json!({ "go": "yes" });
    let backoff_limit = i32::from(image == "fail-first");
    daemonjob(
        server,
        &json!({ "template": template, "parallelism": 1, "backoffLimit": backoff_limit,
            "failurePolicy": failure_policy }),
    );
}

/// Approves the first wave of the current rollout.
fn approve(server: &Server) {
    let job = server.get(&format!("{DAEMONJOBS}/d")).unwrap_or_default();
    let approval = format!("{}/1", job["status"]["rollout"]["number"]);
    let annotations = json!({ "dj.dysproz.io/approved": approval });
    change(server, DAEMONJOBS, "d", &json!({ "metadata": { "annotations": annotations } }));
}

/// Pauses the DaemonJob by annotation, or ends the pause.
fn pause(server: &Server, reason: Option<&str>) {
    let annotations = json!({ "dj.dysproz.io/paused": reason });
    change(server, DAEMONJOBS, "d", &json!({ "metadata": { "annotations": annotations } }));
}

/// Adds the label that the template of [`begin_with_policy`] selects.
fn select(server: &Server, name: &str) {
    change(server, NODES, name, &json!({ "metadata": { "labels": { "go": "yes" } } }));
}

fn cordon(server: &Server, name: &str, is_cordoned: bool) {
    change(server, NODES, name, &json!({ "spec": { "unschedulable": is_cordoned.then_some(true) } }));
}

/// The node becomes not Ready, and the kubelet leaves its pods unchanged.
fn kubelet_stops(server: &Server, name: &str) {
    change(server, NODES, name, &json!({ "metadata": { "annotations": { "fake/kubelet": "stopped" } } }));
    ready(server, name, false);
}

fn kubelet_starts(server: &Server, name: &str) {
    change(server, NODES, name, &json!({ "metadata": { "annotations": { "fake/kubelet": null } } }));
    ready(server, name, true);
}

fn boot(server: &Server, name: &str, boot_id: &str) {
    let status = json!({ "nodeInfo": { "bootID": boot_id } });
    server.merge(WHO, &format!("{NODES}/{name}/status"), &json!({ "status": status }));
}

/// Fails the pod. `is_disrupted` adds the condition of an eviction or a node shutdown.
fn end_pod_on(server: &Server, node: &str, is_disrupted: bool) {
    let pods = server.objects("pods");
    let runs =
        |pod: &&std::sync::Arc<Value>| pod["spec"]["nodeName"] == node && pod["status"]["phase"] == "Running";
    let Some(pod) = pods.iter().find(runs) else { return };
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let container = &pod["status"]["containerStatuses"][0];
    let started = &container["state"]["running"]["startedAt"];
    let code = if is_disrupted { 143 } else { 1 };
    let ended = json!({ "exitCode": code, "reason": "Error", "startedAt": started, "finishedAt": started });
    let mut conditions = vec![json!({ "type": "Ready", "status": "False" })];
    if is_disrupted {
        let reason = "TerminationByKubelet";
        conditions.push(json!({ "type": "DisruptionTarget", "status": "True", "reason": reason }));
    }
    let status = json!({ "phase": "Failed", "conditions": conditions,
        "containerStatuses": [{ "name": container["name"], "ready": false, "restartCount": 0, "state": { "terminated": ended } }] });
    server.merge("models", &format!("{PODS}/{name}/status"), &json!({ "status": status }));
}

fn ready(server: &Server, name: &str, is_ready: bool) {
    let status = if is_ready { "True" } else { "False" };
    let conditions = json!([{ "type": "Ready", "status": status }]);
    server.merge(WHO, &format!("{NODES}/{name}/status"), &json!({ "status": { "conditions": conditions } }));
}

fn podset(server: &Server, spec: &Value) {
    server.create(WHO, PODSETS, &json!({ "metadata": { "name": "s" }, "spec": spec }));
}

/// Creates two pods of the PodSet that have lost the label of the watch.
fn unlabelled_pods(server: &Server) {
    let uid = server.look(|state| {
        let set = state.objects("podsets.batch.tutorial.kubebuilder.io").next();
        set.map(|set| set["metadata"]["uid"].clone()).unwrap_or_default()
    });
    let owner = json!([{ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "name": "s", "uid": uid,
        "controller": true, "blockOwnerDeletion": true }]);
    for name in ["s-podabcde", "s-podfghij"] {
        let labels = json!({ "app": "s", "batch.tutorial.kubebuilder.io/podset-uid": uid });
        server.create(WHO, PODS, &json!({
            "metadata": { "name": name, "labels": labels, "ownerReferences": owner },
            "spec": { "containers": [{ "name": "busybox", "image": "busybox", "command": ["sleep", "3600"] }] },
        }));
    }
}

/// The spec of a PodSet that adopts the pods with the label `app: s`.
fn adopting(replicas: i32) -> Value {
    json!({ "replicas": replicas, "adopt": { "selector": { "matchLabels": { "app": "s" } } } })
}

fn pod(server: &Server, meta: &Value) {
    server.create(WHO, PODS, &json!({ "metadata": meta, "spec": template("one")["spec"] }));
}

/// Creates pods without an owner.
pub fn orphans(server: &Server, labels: &Value, count: usize) {
    for number in 1..=count {
        pod(server, &json!({ "name": format!("web-{number}"), "labels": labels }));
    }
}

/// Creates a pod with a controller, one that [`adopting`] does not select, and one that a user took out.
fn pods_to_leave(server: &Server) {
    let node = server.get(&format!("{NODES}/n1")).unwrap_or_default();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"], "controller": true });
    pod(server, &json!({ "name": "mirror", "labels": { "app": "s" }, "ownerReferences": [owner] }));
    pod(server, &json!({ "name": "other", "labels": { "app": "other" } }));
    let labels = json!({ "app": "s", "batch.tutorial.kubebuilder.io/released": "true" });
    pod(server, &json!({ "name": "out", "labels": labels }));
}

fn daemonjob(server: &Server, spec: &Value) {
    server.create(WHO, DAEMONJOBS, &json!({ "metadata": { "name": "d" }, "spec": spec }));
}

fn greeting(server: &Server, message: &str) {
    server.create(WHO, GREETINGS, &json!({ "metadata": { "name": "g" }, "spec": { "message": message } }));
}

fn with_cleanup() -> Value {
    json!({
        "adminURL": "http://broker:8080",
        "auth": { "tokenSecret": { "name": "absent" } },
        "subscription": { "cleanup": "Delete" },
    })
}

fn consumer(server: &Server, more: &Value) {
    let mut spec = json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s" });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    server.create(WHO, CONSUMERS, &json!({ "metadata": { "name": "c" }, "spec": spec }));
}

fn change(server: &Server, collection: &str, name: &str, patch: &Value) {
    server.merge(WHO, &format!("{collection}/{name}"), patch);
}

fn remove(server: &Server, collection: &str, name: &str) {
    server.delete(WHO, &format!("{collection}/{name}"), &json!({}));
}

/// Deletes an object as `kubectl delete --cascade=orphan` does.
pub fn orphan(server: &Server, collection: &str, name: &str) {
    server.delete(WHO, &format!("{collection}/{name}"), &json!({ "propagationPolicy": "Orphan" }));
}

fn remove_a_pod(server: &Server) {
    if let Some(name) = a_pod(server) {
        remove(server, PODS, &name);
    }
}

/// A pod of a manager without a deletion timestamp, on the first node by name.
fn a_pod(server: &Server) -> Option<String> {
    let is_there = |pod: &Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && pod["metadata"]["labels"]["stranger"].is_null()
            && pod["spec"]["nodeName"].is_string()
    };
    let pods = server.objects("pods");
    // Names differ between runs, so the node decides.
    let mut pods: Vec<_> = pods.iter().filter(|pod| is_there(pod)).collect();
    pods.sort_by_key(|pod| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned());
    pods.first().and_then(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned)
}
