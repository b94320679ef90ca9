//! PulsarConsumer: keep a Deployment of consumers of a Pulsar topic.
//!
//! The Deployment is applied (server-side), never replaced: what others put into it survives, what they change of
//! ours is repaired, and nothing is written while it is as it should be. A Deployment of the same name that belongs
//! to somebody else is left alone. The status says what the Deployment reports, not what was wished for.

pub mod api;
pub mod controller;
pub mod observe;
pub mod plan;

use quintet_kit::rbac::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "pulsarconsumer";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers"],
        verbs: &["get", "list", "watch"],
        why: "PulsarConsumers are what this controller acts for.",
    },
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers/status"],
        verbs: &["patch"],
        why: "Their status is applied.",
    },
    Rule {
        group: "pulsar.pulsarconsumer.krvarma.com",
        resources: &["pulsarconsumers/finalizers"],
        verbs: &["update"],
        why: "Deployments name their PulsarConsumer as owner with blockOwnerDeletion, which clusters may guard by this.",
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "One Deployment is applied for each PulsarConsumer; an apply that makes one needs create too.",
    },
];
