//! PulsarConsumer: keep a Deployment of consumers of a Pulsar topic.
//!
//! The Deployment is applied (server-side), never replaced: what others put into it survives, what they change of
//! ours is repaired, and nothing is written while it is as it should be. A Deployment of the same name that this kind did
//! not make is left alone. The status says what the Deployment reports, not what was wished for.

mod admin;
pub mod api;
pub mod backlog;
pub mod controller;
pub mod deployment;
mod keda;
mod kept;
pub mod metrics;
pub mod observe;
pub mod plan;
mod pods;
mod poller;
mod secrets;
mod status;
mod topic;

use quintet_runtime::model::rule::Rule;

pub use controller::register;
pub use deployment::Image;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "pulsarconsumer";

/// What this kind may do where the installation says so: see `pulsarConsumer.readSecrets` of the chart.
pub const SECRET_RULES: &[Rule] = &[Rule {
    group: "",
    resources: &["secrets"],
    verbs: &["get"],
    why: "The controller reads the token and the CA of PulsarConsumers with adminURL.",
}];

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers"],
        verbs: &["get", "list", "watch"],
        why: "The controller reconciles PulsarConsumers.",
    },
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers/status"],
        verbs: &["patch"],
        why: "The controller applies their status.",
    },
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers/finalizers"],
        verbs: &["update"],
        why: "The owner reference of Deployments has blockOwnerDeletion, which some clusters protect with this permission.",
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "The controller applies one Deployment for each PulsarConsumer. An apply of a new object needs create too.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch"],
        why: "The status of the pods has the reason why they are not ready.",
    },
    Rule {
        group: "keda.sh",
        resources: &["scaledobjects", "triggerauthentications"],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "The controller applies the objects with which KEDA scales PulsarConsumers.",
    },
];

/// What `quintet uninstall` may do for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "pulsar.pulsarconsumer.krvarma.com",
    resources: &["pulsarconsumers"],
    verbs: &["list"],
    why: "Uninstall reports the PulsarConsumers that remain.",
}];
