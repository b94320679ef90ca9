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
    Rule::allow("batch.tutorial.kubebuilder.io", &["podsets"], &["get", "list", "watch"])
        .because("The controller reconciles PodSets."),
    Rule::allow("batch.tutorial.kubebuilder.io", &["podsets/status"], &["patch"])
        .because("The controller applies their status."),
    Rule::allow("batch.tutorial.kubebuilder.io", &["podsets/finalizers"], &["update"])
        .because("The owner reference of pods has blockOwnerDeletion, which some clusters protect with this permission."),
    Rule::allow("", &["pods"], &["get", "list", "watch", "create", "delete", "patch"])
        .because("The controller creates and deletes pods, releases those that lost a label, and adopts others."),
    Rule::allow("apps", &["controllerrevisions"], &["get", "list", "watch", "create", "delete", "patch"])
        .because("The controller keeps the history of templates."),
];

/// The permissions of `quintet uninstall` for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule::allow("batch.tutorial.kubebuilder.io", &["podsets"], &["list"])
    .because("Uninstall reports the PodSets that remain.")];
