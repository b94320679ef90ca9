//! PodSet keeps a number of pods.
//!
//! The controller creates pods directly. A pod's name is a function of the PodSet's UID and the smallest free
//! number, so a repeated creation fails with AlreadyExists. A pod belongs to a PodSet only by controller
//! reference and UID; foreign pods with the same labels are neither counted nor deleted. [`ranking`] has
//! ReplicaSet's order of deletion, [`rollout`] the replacement of pods of an older template.

pub mod adoption;
pub mod api;
pub mod controller;
pub mod history;
pub mod labels;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod ranking;
pub mod revision;
pub mod rollout;
pub mod status;
pub mod template;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "podset";

/// The permissions of the controller.
pub const RULES: &[Rule] = &[
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets"],
        verbs: &["get", "list", "watch"],
        why: "The controller reconciles PodSets.",
    },
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets/status"],
        verbs: &["patch"],
        why: "The controller applies their status.",
    },
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets/finalizers"],
        verbs: &["update"],
        why: "The owner reference of pods has blockOwnerDeletion, which some clusters protect with this permission.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
        why: "The controller creates and deletes pods, releases those that lost a label, and adopts others.",
    },
    Rule {
        group: "apps",
        resources: &["controllerrevisions"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
        why: "The controller keeps the history of templates.",
    },
];

/// The permissions of `quintet uninstall` for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "batch.tutorial.kubebuilder.io",
    resources: &["podsets"],
    verbs: &["list"],
    why: "Uninstall reports the PodSets that remain.",
}];
