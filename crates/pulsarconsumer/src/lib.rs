//! PulsarConsumer keeps a Deployment of consumers of a Pulsar topic.
//!
//! The controller uses server-side apply. It keeps fields of other clients, repairs its own fields, and
//! writes nothing while they match. It never changes a foreign Deployment. The status has what the Deployment
//! reports.

mod admin;
mod answer;
pub mod api;
pub mod backlog;
mod cleanup;
pub mod controller;
pub mod deployment;
mod keda;
mod managed_object;
mod merge;
pub mod metrics;
pub mod observe;
pub mod plan;
mod pods;
mod poller;
mod reach;
mod rules;
mod secrets;
mod status;
mod topic;

use quintet_runtime::model::rule::Rule;

pub use controller::{Settings, register};
pub use deployment::Image;
pub use reach::Reach;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "pulsarconsumer";

/// The finalizer of PulsarConsumers whose subscription is deleted with them.
pub const FINALIZER: &str = "pulsar.pulsarconsumer.krvarma.com/subscription";

/// The sweeper's name in metrics and logs.
pub const SWEEPER: &str = "pulsarconsumer-sweeper";

/// The permissions of the sweeper, which runs while the kind is off.
pub const SWEEP_RULES: &[Rule] = &[Rule::allow(
    "pulsar.pulsarconsumer.krvarma.com",
    &["pulsarconsumers"],
    &["get", "list", "watch", "patch"],
)
.because("The sweeper removes the finalizer from deleted PulsarConsumers while their kind is off.")];

/// The optional permissions of the controller: see `pulsarConsumer.readSecrets` of the chart.
pub const SECRET_RULES: &[Rule] = &[Rule::allow("", &["secrets"], &["get"])
    .because("The controller reads the credentials and the CA for requests to adminURL.")];

/// The permissions of the controller.
pub const RULES: &[Rule] = &[
    Rule::allow("pulsar.pulsarconsumer.krvarma.com", &["pulsarconsumers"], &["get", "list", "watch", "patch"])
        .because("The controller reconciles PulsarConsumers, and adds and removes the finalizer of subscription.cleanup."),
    Rule::allow("pulsar.pulsarconsumer.krvarma.com", &["pulsarconsumers/status"], &["patch"])
        .because("The controller applies their status."),
    Rule::allow("pulsar.pulsarconsumer.krvarma.com", &["pulsarconsumers/finalizers"], &["update"])
        .because("The owner reference of Deployments has blockOwnerDeletion, which some clusters protect with this permission."),
    Rule::allow("apps", &["deployments"], &["get", "list", "watch", "create", "patch"])
        .because("The controller applies one Deployment for each PulsarConsumer. An apply of a new object needs create too."),
    Rule::allow("", &["pods"], &["get", "list", "watch"])
        .because("The status of the pods has the reason why they are not ready."),
    Rule::allow(
        "keda.sh",
        &["scaledobjects", "triggerauthentications"],
        &["get", "list", "watch", "create", "patch", "delete"],
    )
    .because("The controller applies the objects with which KEDA scales PulsarConsumers."),
];

/// The permissions of `quintet uninstall` for this kind.
pub const UNINSTALL_RULES: &[Rule] =
    &[Rule::allow("pulsar.pulsarconsumer.krvarma.com", &["pulsarconsumers"], &["list", "patch"])
        .because("Uninstall removes the finalizer from PulsarConsumers, and reports those that remain.")];
